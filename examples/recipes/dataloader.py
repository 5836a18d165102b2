"""A DataLoader whose workers crop images of many sizes. One pass makes the batch of them: gathered, normalised, HWC to CHW."""

from typing import Any

import numpy as np
import torch
import windrow as wr
import windrow.torch
from torch.utils.data import DataLoader, Dataset

SIZE = 64
rng = np.random.default_rng(0)
images = [rng.integers(0, 256, (int(rng.integers(80, 120)), int(rng.integers(80, 120)), 3), np.uint8) for _ in range(8)]


class Crops(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return len(images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = images[index]
        top, left = (int(torch.randint(extent - SIZE + 1, ())) for extent in image.shape[:2])
        # A crop is a view, and so is a mirrored one: nothing is copied or converted here.
        crop = image[top : top + SIZE, left : left + SIZE]
        if torch.rand(()) < 0.5:
            crop = crop[:, ::-1]
        return {"image": crop, "boxes": rng.random((index % 3, 4), np.float32), "label": index}


normal = wr.Transform(scale=1 / 255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), permute=(2, 0, 1))
# Boxes are as many as there are, so that they are joined. What is not named is as default_collate gives it.
collate = windrow.torch.collate_fn({"image": wr.Stack(dtype="float32", transform=normal), "boxes": wr.Ragged()})

if __name__ == "__main__":
    for batch in DataLoader(Crops(), batch_size=4, num_workers=2, collate_fn=collate):
        assert batch["image"].shape == (4, 3, SIZE, SIZE) and batch["image"].dtype == torch.float32
        boxes = batch["boxes"]
        print(batch["label"], boxes.data.shape, boxes.offsets)
