"""Samples for bench_torch.py: tensors of their own all over the memory, or rows of one piece; and the memory that others write to."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Callable

import numpy as np
import torch


@dataclass
class Bench:
    """The device and options of the bench."""

    dry: bool
    compiles: bool = False
    stream: Any = None

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.dry else "cuda:0")

    @property
    def target(self) -> str:
        """The device as windrow names it."""
        return "cpu" if self.dry else "cuda"

    def some(self, count: int) -> int:
        """Few samples where nothing is timed."""
        return min(count, max(2, count // 512)) if self.dry else count

    def uploaded(self, tensor: torch.Tensor) -> torch.Tensor:
        """A small tensor on the device, and the host does not wait for it: as an expert writes it."""
        return tensor if self.dry else tensor.pin_memory().to(self.device, non_blocking=True)

    def addresses(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """A table of addresses on the device."""
        return self.uploaded(torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.int64))


@dataclass
class Set:
    """One list of samples: on the device, and as arrays on the host."""

    tensors: list[Any]
    arrays: list[Any]
    # The same in other forms, made before the clock starts.
    kept: dict[str, Any] = field(default_factory=dict)

    def keep(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]


def noise(count: int, dtype: str, seed: int) -> torch.Tensor:
    """Random elements. Zeros and constants would flatter caches and clocks."""
    kind, generator = getattr(torch, dtype), torch.Generator().manual_seed(seed)
    if kind.is_floating_point:
        return torch.randn(count, generator=generator).to(kind)
    if kind == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator, dtype=torch.uint8).bool()
    high = min(torch.iinfo(kind).max, 30_000) + 1
    return torch.randint(0, high, (count,), generator=generator, dtype=torch.int64).to(kind)


def samples(bench: Bench, shapes: list[tuple[int, ...]], dtype: str, seed: int, layout: str = "scattered") -> Set:
    """Samples on the device. Scattered ones are allocated in another order than listed; those `at any byte` begin at one."""
    sizes = [int(np.prod(shape)) for shape in shapes]
    data = noise(sum(sizes), dtype, seed)
    table = data.to(bench.device)
    pieces = [piece.view(shape) for piece, shape in zip(table.split(sizes), shapes)]
    made: list[Any] = pieces
    if layout != "contiguous":
        draw = random.Random(seed)
        made = [None] * len(shapes)
        for i in draw.sample(range(len(shapes)), len(shapes)):
            if layout == "scattered":
                made[i] = torch.empty(shapes[i], dtype=data.dtype, device=bench.device)
            else:
                first = draw.randrange(1, 16)
                whole = torch.empty(sizes[i] + 16, dtype=data.dtype, device=bench.device)
                made[i] = whole[first : first + sizes[i]].view(shapes[i])
        torch._foreach_copy_(made, pieces)
    arrays = [piece.view(shape).numpy() for piece, shape in zip(data.split(sizes), shapes)]
    return Set(made, arrays)


def sets_of(bench: Bench, make: Callable[[int], Any], num_samples: int) -> list[Any]:
    """Lists that take turns, so that the host finds other objects. The device's cache is swept instead, before each run."""
    return [make(seed) for seed in range(2 if bench.dry or num_samples > 4096 else 4)]


def shuffled(bench: Bench, made: Set, seed: int = 7) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """One table of the samples in another order, which of its rows each sample is, and the samples in that order."""
    order = torch.randperm(len(made.tensors), generator=torch.Generator().manual_seed(seed))
    table = torch.stack([made.tensors[i] for i in order])
    return table, torch.argsort(order).to(bench.device), [made.tensors[i] for i in order]
