"""Workloads of images and frames: cast, normalised, permuted and padded on the way."""

from __future__ import annotations

from typing import Any, Callable, Iterable, List, Sequence, Tuple

import numpy as np

import windrow as wr
from windrow._measure import MEAN, STD, Array, normalised, numpy_normalised, torch_constants, torch_normalised, transform
from windrow.bench.samples import Samples, Setting, Shape, equal_samples, samples_of, sets_of, torch
from windrow.bench.workload import Contenders, Target, Workload, in_any_setting, module

# The roundings of the others' chains of operations.
TOLERANCE = 3e-3


# Equal images to normalised planes


@in_any_setting
def normalise(setting: Setting, shape: Shape, num_samples: int, dtype: str, targets: List[Target], odd: bool = False) -> Workload:
    """8-bit HWC images to normalised CHW. `odd`: they begin at any byte."""
    sets, engine = equal_samples(2, shape, setting.count(num_samples), "uint8", setting, odd), setting.engine
    found = Contenders(setting)
    found.add("windrow", "windrow", lambda s: wr.stack(s.best, dtype=dtype, transform=transform(), engine=engine))
    found.add("NumPy", "NumPy eager", lambda s: numpy_normalised(np.stack(s.arrays), dtype))
    # The tensors are made before the clock starts: each copy there makes the host wait.
    constants: Any = torch_constants(setting.device) if torch else None
    add_torch(found, setting, lambda x: torch_normalised(x, dtype, constants))
    found.add("DALI", "DALI crop_mirror_normalize", lambda s: dali_normalised(s.arrays, dtype))
    expected: Callable[[Samples], Tuple[Array, ...]] = lambda s: (np.stack(normalised(s.arrays, dtype)),)
    return Workload(sets, expected, found, targets, TOLERANCE)


def add_torch(found: Contenders, setting: Setting, tail: Callable[[Any], Any]) -> None:
    """torch.stack and then `tail`: as a view of planes, in memory order, compiled to one loop, and that loop on the one table."""
    found.add("torch", "torch eager", lambda s: tail(torch.stack(s.tensors)))
    found.add("torch", "torch eager, contiguous", lambda s: tail(torch.stack(s.tensors)).contiguous())
    compiled: Any = torch.compile(lambda x: tail(x).contiguous(), dynamic=False) if torch and setting.compiles else None
    slow = "" if setting.compiles else "compiling takes 20 s: not with --quick or --seconds"
    found.add("torch", "torch.stack, compiled tail", lambda s: compiled(torch.stack(s.tensors)), cannot=slow)
    if setting.layout == "contiguous":
        found.add("torch", "compiled tail of the one table", lambda s: compiled(s.table), cannot=slow)


def dali_normalised(arrays: List[Array], dtype: str) -> Any:
    ndd = module("DALI")
    batch = ndd.as_batch(arrays, layout="HWC", device="cpu")
    mean, std = ([value * 255 for value in values] for values in (MEAN, STD))
    batch = ndd.crop_mirror_normalize(batch, dtype=getattr(ndd, dtype), output_layout="CHW", mean=mean, std=std)
    return ndd.as_tensor(batch).evaluate()


# Frames to floats


@in_any_setting
def frames(setting: Setting, shape: Shape, num_samples: int, dtype: str) -> Workload:
    """8-bit frames to floats in [0, 1], in the order they have."""
    sets, engine = equal_samples(7, shape, setting.count(num_samples), "uint8", setting), setting.engine
    scale = wr.Transform(scale=1 / 255)
    # One product in float32, rounded once more to the result.
    expected: Callable[[Samples], Tuple[Array, ...]] = lambda s: (
        (np.stack(s.arrays).astype(np.float32) * np.float32(1 / 255)).astype(dtype),
    )
    found = Contenders(setting)
    found.add("windrow", "windrow", lambda s: wr.stack(s.best, dtype=dtype, transform=scale, engine=engine))
    found.add("NumPy", "NumPy eager", lambda s: expected(s)[0])
    add_torch(found, setting, lambda x: (x / 255).to(getattr(torch, dtype)))
    found.add("DALI", "DALI as_batch, cast", lambda s: dali_scaled(s.arrays, dtype))
    return Workload(sets, expected, found, [], TOLERANCE)


def dali_scaled(arrays: List[Array], dtype: str) -> Any:
    ndd = module("DALI")
    batch = ndd.as_batch(arrays, device="cpu") * np.float32(1 / 255)
    return ndd.as_tensor(ndd.cast(batch, dtype=getattr(ndd, dtype))).evaluate()


# Images of many sizes


def rounded_up(sizes: Sequence[int], multiple: int) -> int:
    """The largest of the sizes, rounded up."""
    return -(-max(sizes) // multiple) * multiple


@in_any_setting
def padded_images(setting: Setting, num_samples: int, longest: Tuple[int, int]) -> Workload:
    """8-bit HWC images of many sizes to normalised CHW in one rectangle, and where there are pixels."""
    rng, count, engine = np.random.default_rng(8), setting.count(num_samples), setting.engine
    height, width = longest
    sizes = [(height - int(h), width - int(w)) for h, w in zip(rng.integers(0, 160, count), rng.integers(0, 534, count))]
    shapes = [(height, width, 3), *((h, w, 3) for h, w in sizes[1:])]
    sets = sets_of(lambda: samples_of(shapes, "uint8", setting, rng), setting)
    constants: Any = torch_constants(setting.device) if torch else None
    whole = (rounded_up([s[0] for s in shapes], 32), rounded_up([s[1] for s in shapes], 32))

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
        batch = wr.pad(
            s.best, multiple_of=(32, 32, 1), mask="real", dtype="float16", transform=transform(), engine=engine
        )
        return batch.data, batch.mask

    found = Contenders(setting)
    found.add("windrow", "windrow", by_windrow)
    found.add("torch", "torch, loop of copies", by_torch)
    found.add("NumPy", "NumPy, loop of copies", lambda s: placed(numpy_normalised(image[None], "float16")[0] for image in s.arrays))
    found.add("DALI", "DALI", lambda s: None, cannot="pads to the largest image, not to a multiple, and makes no mask")
    return Workload(sets, lambda s: placed(normalised(s.arrays, "float16")), found, [], TOLERANCE)
