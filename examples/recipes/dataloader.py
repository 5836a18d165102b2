"""A DataLoader whose batches windrow assembles: one line, the same batches."""

import torch
import windrow as wr
import windrow.torch
from torch.utils.data import DataLoader

samples = [{"image": torch.full((3, 8, 8), i, dtype=torch.uint8), "box": torch.rand(i % 3, 4), "label": i} for i in range(8)]

# As default_collate gives them; boxes are as many as there are, so that they are joined instead.
collate = windrow.torch.collate_fn({"box": wr.Ragged()})

if __name__ == "__main__":
    for batch in DataLoader(samples, batch_size=4, num_workers=2, collate_fn=collate):
        assert batch["image"].shape == (4, 3, 8, 8)
        boxes = batch["box"]
        print(batch["label"], boxes.data.shape, boxes.offsets)
