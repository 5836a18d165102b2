"""Images of unequal size for a detector: decoded bytes in, normalised padded floats and a mask out."""

import numpy as np
import windrow as wr
from windrow.structure import pad_images

images = [np.random.randint(0, 256, (h, w, 3), np.uint8) for h, w in ((30, 40), (25, 61), (48, 20))]
normal = wr.Transform(
    scale=1 / 255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), channel_dim=2, permute=(2, 0, 1)
)

if __name__ == "__main__":
    batch = pad_images(images, multiple_of=32, channels_last=True, transform=normal, dtype="float32")
    assert batch.tensors.shape == (3, 3, 64, 64) and batch.mask.shape == (3, 64, 64)
    print(batch.sizes, "padding:", batch.mask.float().mean().item())
