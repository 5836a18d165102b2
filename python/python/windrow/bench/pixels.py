"""Workloads of images and frames: cast, normalised, permuted and padded on the way."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Tuple

import numpy as np

import windrow as wr
from windrow._measure import MEAN, STD, Array, normalised, numpy_normalised, torch_constants, torch_normalised, transform
from windrow.bench.samples import Samples, Setting, Shape, equal_samples, samples_of, sets_of, torch
from windrow.bench.workload import Workload, dali

# The roundings of the others' chains of operations.
TOLERANCE = 3e-3


def normalise(setting: Setting, shape: Shape, num_samples: int, dtype: str, odd: bool = False) -> Workload:
    """8-bit HWC images to normalised CHW. `odd`: they begin at any byte."""
    engine = setting.engine

    def by_dali(ndd: Any, batch: Any) -> Any:
        mean, std = ([value * 255 for value in values] for values in (MEAN, STD))
        return ndd.crop_mirror_normalize(batch, dtype=getattr(ndd, dtype), output_layout="CHW", mean=mean, std=std)

    # The tensors are made before the clock starts: each copy there makes the host wait.
    constants: Any = torch_constants(setting.device) if torch else None
    sets = equal_samples(2, shape, num_samples, "uint8", setting, odd)
    made = Workload(setting, sets, lambda s: np.stack(normalised(s.arrays, dtype)), TOLERANCE)
    made.add("windrow", "windrow", lambda s: wr.stack(s.best, dtype=dtype, transform=transform(), engine=engine))
    made.add("NumPy", "NumPy eager", lambda s: numpy_normalised(np.stack(s.arrays), dtype))
    add_torch(made, lambda x: torch_normalised(x, dtype, constants))
    made.add("DALI", "DALI crop_mirror_normalize", lambda s: dali(s.arrays, by_dali, layout="HWC"))
    return made


def add_torch(made: Workload, tail: Callable[[Any], Any]) -> None:
    """torch.stack and then `tail`: as a view of planes, in memory order, compiled to one loop, and that loop on the one table."""
    made.add("torch", "torch eager", lambda s: tail(torch.stack(s.tensors)))
    made.add("torch", "torch eager, contiguous", lambda s: tail(torch.stack(s.tensors)).contiguous())
    compiled: Any = torch.compile(lambda x: tail(x).contiguous(), dynamic=False) if torch and made.setting.compiles else None
    made.add("compiled torch", "torch.stack, compiled tail", lambda s: compiled(torch.stack(s.tensors)))
    if made.setting.layout == "contiguous":
        made.add("compiled torch", "compiled tail of the one table", lambda s: compiled(s.table))


def frames(setting: Setting, shape: Shape, num_samples: int, dtype: str) -> Workload:
    """8-bit frames to floats in [0, 1], in the order they have."""
    scale, engine = wr.Transform(scale=1 / 255), setting.engine

    def by_numpy(s: Samples) -> Array:
        """One product in float32, rounded once more to the result."""
        return (np.stack(s.arrays).astype(np.float32) * np.float32(1 / 255)).astype(dtype)

    def by_dali(ndd: Any, batch: Any) -> Any:
        return ndd.cast(batch * np.float32(1 / 255), dtype=getattr(ndd, dtype))

    made = Workload(setting, equal_samples(7, shape, num_samples, "uint8", setting), by_numpy, TOLERANCE)
    made.add("windrow", "windrow", lambda s: wr.stack(s.best, dtype=dtype, transform=scale, engine=engine))
    made.add("NumPy", "NumPy eager", by_numpy)
    add_torch(made, lambda x: (x / 255).to(getattr(torch, dtype)))
    made.add("DALI", "DALI as_batch, cast", lambda s: dali(s.arrays, by_dali))
    return made


def padded_images(setting: Setting, num_samples: int, height: int, width: int) -> Workload:
    """8-bit HWC images of many sizes to normalised CHW in one rectangle of multiples of 32, and where there are pixels."""
    rng, count, engine = np.random.default_rng(8), setting.count(num_samples), setting.engine
    less = zip(rng.integers(0, 160, count), rng.integers(0, 534, count))
    shapes = [(height - int(h), width - int(w), 3) for h, w in less]
    shapes[0] = (height, width, 3)
    whole = -(-height // 32) * 32, -(-width // 32) * 32
    constants: Any = torch_constants(setting.device) if torch else None

    def placed(images: Iterable[Array]) -> Tuple[Array, Array]:
        data, mask = np.zeros((count, 3, *whole), np.float16), np.zeros((count, *whole), bool)
        for i, planes in enumerate(images):
            h, w = planes.shape[1:]
            data[i, :, :h, :w] = planes
            mask[i, :h, :w] = True
        return data, mask

    def by_torch(s: Samples) -> Tuple[Any, Any]:
        data = torch.zeros((count, 3, *whole), dtype=torch.float16, device=setting.device)
        mask = torch.zeros((count, *whole), dtype=torch.bool, device=setting.device)
        for i, image in enumerate(s.tensors):
            h, w = image.shape[:2]
            data[i, :, :h, :w].copy_(torch_normalised(image[None], "float16", constants)[0])
            mask[i, :h, :w] = True
        return data, mask

    def by_windrow(s: Samples) -> Tuple[Any, Any]:
        batch = wr.pad(s.best, multiple_of=(32, 32, 1), mask="real", dtype="float16", transform=transform(), engine=engine)
        return batch.data, batch.mask

    sets = sets_of(lambda: samples_of(shapes, "uint8", setting, rng), setting)
    made = Workload(setting, sets, lambda s: placed(normalised(s.arrays, "float16")), TOLERANCE)
    made.add("windrow", "windrow", by_windrow)
    made.add("torch", "torch, loop of copies", by_torch)
    made.add("NumPy", "NumPy, loop of copies", lambda s: placed(numpy_normalised(image[None], "float16")[0] for image in s.arrays))
    made.add("DALI", "DALI", by_torch, cannot="pads to the largest image, not to a multiple, and makes no mask")
    return made
