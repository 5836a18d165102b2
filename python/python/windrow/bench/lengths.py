"""Workloads of unequal lengths: tokens padded, clips ragged and padded."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Optional, Tuple

import numpy as np

import windrow as wr
from windrow._measure import Array, numpy_padded, numpy_ragged, torch_padded, torch_ragged
from windrow.bench.samples import Samples, Setting, torch, unequal_rows
from windrow.bench.workload import Workload, module

Padded = Tuple[Any, Any, Any]
"""Data, mask, lengths."""

padded_parts = attrgetter("data", "mask", "lengths")


def all_padded(s: Samples, dtype: str, scale: Optional[float] = None) -> Padded:
    """NumPy makes the batch."""
    return (*numpy_padded(s.arrays, dtype, scale), np.array([len(row) for row in s.arrays], np.int64))


def scaling(scale: Optional[float]) -> Optional[wr.Transform]:
    return None if scale is None else wr.Transform(scale=scale)


def padded(setting: Setting, shortest: int, longest: int, num_samples: int, source: str, dtype: str, scale: Optional[float] = None) -> Workload:
    """Rows of many lengths to one rectangle, its mask and lengths."""
    transform, engine = scaling(scale), setting.engine

    def by_numpy(s: Samples) -> Padded:
        return all_padded(s, dtype, scale)

    def by_torch(s: Samples) -> Padded:
        data, mask, lengths = torch_padded(s.tensors, dtype)
        return (data if scale is None else data.mul_(scale)), mask, lengths

    def by_foreach(s: Samples) -> Padded:
        sizes = [len(row) for row in s.tensors]
        lengths = torch.tensor(sizes, device=setting.device)
        data = torch.zeros((len(sizes), max(sizes)), dtype=getattr(torch, dtype), device=setting.device)
        torch._foreach_copy_([data[i, :n] for i, n in enumerate(sizes)], s.tensors)
        return data, torch.arange(data.shape[1], device=setting.device) < lengths[:, None], lengths

    made = Workload(setting, unequal_rows(3, shortest, longest, num_samples, source, setting), by_numpy)
    made.add("windrow", "windrow", lambda s: padded_parts(wr.pad(s.best, dtype=dtype, mask="real", transform=transform, engine=engine)))
    made.add("NumPy", "NumPy loop", by_numpy)
    made.add("torch", "pad_sequence, cast, mask", by_torch)
    if scale is None:
        made.add("torch", "torch._foreach_copy_, mask", by_foreach)
    made.add("DALI", "DALI", by_numpy, cannot="makes neither mask nor lengths")
    return made


def ragged(setting: Setting, shortest: int, longest: int, num_samples: int, source: str, dtype: str, scale: Optional[float] = None) -> Workload:
    """Clips of many lengths one after another, and where each begins."""
    transform, engine, parts = scaling(scale), setting.engine, attrgetter("data", "offsets")

    def by_numpy(s: Samples) -> Tuple[Array, Array]:
        data, offsets = numpy_ragged(s.arrays)
        return (data if scale is None else np.multiply(data, np.float32(scale), dtype=dtype)), offsets

    def by_torch(data: Any, offsets: Any) -> Tuple[Any, Any]:
        return (data if scale is None else data.to(getattr(torch, dtype)).mul_(scale)), offsets

    def by_nested(s: Samples) -> Tuple[Any, Any]:
        nested = torch.nested.nested_tensor(s.tensors, layout=torch.jagged)
        return by_torch(nested.values(), nested.offsets())

    def by_cupy(s: Samples) -> Tuple[Any, Any]:
        cupy = module("CuPy")
        rows = s.converted("CuPy", cupy.from_dlpack)
        return cupy.concatenate(rows), cupy.asarray(np.concatenate([[0], np.cumsum([len(row) for row in rows])]))

    made = Workload(setting, unequal_rows(4, shortest, longest, num_samples, source, setting), by_numpy)
    made.add("windrow", "windrow", lambda s: parts(wr.ragged(s.best, dtype=dtype, transform=transform, engine=engine)))
    made.add("NumPy", "np.concatenate, offsets", by_numpy)
    made.add("torch", "torch.cat, offsets", lambda s: by_torch(*torch_ragged(s.tensors)))
    made.add("torch", "torch.nested, jagged", by_nested)
    made.add("DALI", "DALI", by_numpy, cannot="has no batch of unequal lengths in one tensor")
    made.add("CuPy", "cupy.concatenate, offsets", by_cupy, cannot="" if scale is None else "two passes as torch")
    return made
