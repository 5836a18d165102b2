"""Workloads of unequal lengths: tokens padded, clips ragged and padded."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import numpy as np

import windrow as wr
from windrow._measure import Array, numpy_padded, numpy_ragged, torch_padded, torch_ragged
from windrow.bench.samples import Samples, Setting, torch, unequal_rows
from windrow.bench.workload import Contenders, Target, Workload, in_any_setting, module

NO_RAGGED = "has no batch of unequal lengths in one tensor"


def lengths_of(samples: Samples) -> Array:
    return np.array([len(row) for row in samples.arrays], np.int64)


def scaling(scale: Optional[float]) -> Optional[wr.Transform]:
    return None if scale is None else wr.Transform(scale=scale)


# Padded: data, mask, lengths


def all_padded(s: Samples, dtype: str, scale: Optional[float] = None) -> Tuple[Array, Array, Array]:
    """NumPy makes the batch."""
    return (*numpy_padded(s.arrays, dtype, scale), lengths_of(s))


def foreach_padded(s: Samples, dtype: str) -> Tuple[Any, Any, Any]:
    sizes = [len(row) for row in s.tensors]
    lengths = torch.tensor(sizes, device=s.tensors[0].device)
    data = torch.zeros((len(sizes), max(sizes)), dtype=getattr(torch, dtype), device=lengths.device)
    torch._foreach_copy_([data[i, :n] for i, n in enumerate(sizes)], s.tensors)
    return data, torch.arange(data.shape[1], device=lengths.device) < lengths[:, None], lengths


@in_any_setting
def padded(
    setting: Setting, shortest: int, longest: int, num_samples: int, source: str, dtype: str, targets: List[Target], scale: Optional[float] = None
) -> Workload:
    """Rows of many lengths to one rectangle, its mask and lengths."""

    def by_windrow(s: Samples) -> Tuple[Any, Any, Any]:
        batch = wr.pad(s.best, dtype=dtype, mask="real", transform=transform, engine=setting.engine)
        return batch.data, batch.mask, batch.lengths

    def by_torch(s: Samples) -> Tuple[Any, Any, Any]:
        data, mask, lengths = torch_padded(s.tensors, dtype)
        return (data if scale is None else data.mul_(scale)), mask, lengths

    transform = scaling(scale)
    found = Contenders(setting)
    found.add("windrow", "windrow", by_windrow)
    found.add("NumPy", "NumPy loop", lambda s: all_padded(s, dtype, scale))
    found.add("torch", "pad_sequence, cast, mask", by_torch)
    if scale is None:
        found.add("torch", "torch._foreach_copy_, mask", lambda s: foreach_padded(s, dtype))
    found.add("DALI", "DALI", lambda s: None, cannot="makes neither mask nor lengths")
    sets = unequal_rows(3, shortest, longest, num_samples, source, setting)
    return Workload(sets, lambda s: all_padded(s, dtype, scale), found, targets)


# Ragged: values, offsets


def torch_nested(s: Samples) -> Tuple[Any, Any]:
    nested = torch.nested.nested_tensor(s.tensors, layout=torch.jagged)
    return nested.values(), nested.offsets()


def cupy_ragged(s: Samples) -> Tuple[Any, Any]:
    cupy = module("CuPy")
    rows = s.converted("CuPy", cupy.from_dlpack)
    return cupy.concatenate(rows), cupy.asarray(np.concatenate([[0], np.cumsum([len(row) for row in rows])]))


@in_any_setting
def ragged(
    setting: Setting, shortest: int, longest: int, num_samples: int, source: str, dtype: str, targets: List[Target], scale: Optional[float] = None
) -> Workload:
    """Clips of many lengths one after another, and where each begins."""

    def by_windrow(s: Samples) -> Tuple[Any, Any]:
        batch = wr.ragged(s.best, dtype=dtype, transform=transform, engine=setting.engine)
        return batch.data, batch.offsets

    def by_numpy(s: Samples) -> Tuple[Array, Array]:
        data, offsets = numpy_ragged(s.arrays)
        return (data if scale is None else np.multiply(data, np.float32(scale), dtype=dtype)), offsets

    def scaled(made: Tuple[Any, Any]) -> Tuple[Any, Any]:
        data, offsets = made
        return (data if scale is None else data.to(getattr(torch, dtype)).mul_(scale)), offsets

    transform = scaling(scale)
    found = Contenders(setting)
    found.add("windrow", "windrow", by_windrow)
    found.add("NumPy", "np.concatenate, offsets", by_numpy)
    found.add("torch", "torch.cat, offsets", lambda s: scaled(torch_ragged(s.tensors)))
    found.add("torch", "torch.nested, jagged", lambda s: scaled(torch_nested(s)))
    found.add("DALI", "DALI", lambda s: None, cannot=NO_RAGGED)
    found.add("CuPy", "cupy.concatenate, offsets", cupy_ragged, cannot="" if scale is None else "two passes as torch")
    return Workload(unequal_rows(4, shortest, longest, num_samples, source, setting), by_numpy, found, targets)
