"""Training windows of long recordings and random crops of images, without a Python slice for each."""

import numpy as np

import windrow as wr

rng = np.random.default_rng(0)

# 64 windows of 400 samples out of a recording, as int16 in memory, normalised to float32 on the way.
recording = rng.integers(-(2**15), 2**15, 160_000, np.int16)
starts = rng.integers(0, len(recording) - 400, 64)
clips = wr.stack(wr.windows(recording, starts, 400), dtype="float32", transform=wr.Transform(scale=2**-15))
print(clips.shape, clips.dtype)  # (64, 400) float32

# A random 64 x 64 crop of each image, half of them mirrored, to float16 CHW in the same pass.
images = [rng.integers(0, 256, (rng.integers(80, 120), rng.integers(80, 120), 3), np.uint8) for _ in range(8)]
left = np.array([rng.integers(0, image.shape[1] - 64) for image in images])
top = np.array([rng.integers(0, image.shape[0] - 64) for image in images])
boxes = np.stack([left, top, left + 64, top + 64], axis=1)
normal = wr.Transform(scale=1 / 255, permute=(2, 0, 1))
batch = wr.stack(wr.crops(images, boxes, flip=rng.random(8) < 0.5), dtype="float16", transform=normal)
print(batch.shape, batch.dtype)  # (8, 3, 64, 64) float16
