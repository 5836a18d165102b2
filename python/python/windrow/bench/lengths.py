"""Workloads of unequal lengths: tokens padded, clips ragged and padded."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Tuple

import numpy as np

import windrow as wr
from windrow._measure import Array
from windrow.bench.samples import Samples, Setting, samples_of, sets_of, torch
from windrow.bench.workload import Contenders, Target, Workload, module

NO_RAGGED = "has no batch of unequal lengths in one tensor"


def lengths_of(samples: Samples) -> Array:
    return np.array([len(row) for row in samples.arrays], np.int64)


# Padded: data, mask, lengths


def numpy_padded(s: Samples, dtype: str, scale: Optional[float]) -> Tuple[Array, Array, Array]:
    lengths = lengths_of(s)
    data = np.zeros((len(lengths), lengths.max()), dtype)
    mask = np.zeros(data.shape, bool)
    for i, row in enumerate(s.arrays):
        data[i, : len(row)] = row if scale is None else row * np.float32(scale)
        mask[i, : len(row)] = True
    return data, mask, lengths


def torch_padded(s: Samples, dtype: str, scale: Optional[float]) -> Tuple[Any, Any, Any]:
    lengths = torch.tensor([len(row) for row in s.tensors], device=s.tensors[0].device)
    data = torch.nn.utils.rnn.pad_sequence(s.tensors, batch_first=True).to(getattr(torch, dtype))
    if scale is not None:
        data *= scale
    return data, torch.arange(data.shape[1], device=lengths.device) < lengths[:, None], lengths


def foreach_padded(s: Samples, dtype: str) -> Tuple[Any, Any, Any]:
    sizes = [len(row) for row in s.tensors]
    lengths = torch.tensor(sizes, device=s.tensors[0].device)
    data = torch.zeros((len(sizes), max(sizes)), dtype=getattr(torch, dtype), device=lengths.device)
    torch._foreach_copy_([data[i, :n] for i, n in enumerate(sizes)], s.tensors)
    return data, torch.arange(data.shape[1], device=lengths.device) < lengths[:, None], lengths


def padded(
    shortest: int, longest: int, num_samples: int, source: str, dtype: str, targets: List[Target], scale: Optional[float] = None
) -> Callable[..., Workload]:
    """Rows of many lengths to one rectangle, its mask and lengths."""

    def make(name: str, title: str, setting: Setting) -> Workload:
        rng, engine = np.random.default_rng(3), setting.engine
        shapes = [(int(n),) for n in rng.integers(shortest, longest + 1, setting.count(num_samples))]
        sets = sets_of(lambda: samples_of(shapes, source, setting, rng), setting)
        transform = None if scale is None else wr.Transform(scale=scale)

        def by_windrow(s: Samples) -> Tuple[Any, Any, Any]:
            batch = wr.pad(s.best, dtype=dtype, mask="real", transform=transform, engine=engine)
            return batch.data, batch.mask, batch.lengths

        found = Contenders(setting)
        found.add("windrow", "windrow", by_windrow)
        found.add("NumPy", "NumPy loop", lambda s: numpy_padded(s, dtype, scale))
        found.add("torch", "pad_sequence, cast, mask", lambda s: torch_padded(s, dtype, scale))
        if scale is None:
            found.add("torch", "torch._foreach_copy_, mask", lambda s: foreach_padded(s, dtype))
        found.add("DALI", "DALI", lambda s: None, cannot="makes neither mask nor lengths")
        return Workload(name, title, setting, sets, lambda s: numpy_padded(s, dtype, scale), found, targets)

    return make


# Ragged: values, offsets


def numpy_ragged(s: Samples, dtype: str, scale: Optional[float]) -> Tuple[Array, Array]:
    offsets = np.zeros(len(s.arrays) + 1, np.int64)
    np.cumsum(lengths_of(s), out=offsets[1:])
    data = np.concatenate(s.arrays)
    return (data if scale is None else np.multiply(data, np.float32(scale), dtype=dtype)), offsets


def torch_ragged(s: Samples, dtype: str, scale: Optional[float]) -> Tuple[Any, Any]:
    sizes = torch.tensor([0, *(len(row) for row in s.tensors)])
    offsets = torch.cumsum(sizes, 0).to(s.tensors[0].device)
    data = torch.cat(s.tensors)
    return (data if scale is None else data.to(getattr(torch, dtype)).mul_(scale)), offsets


def torch_nested(s: Samples, dtype: str, scale: Optional[float]) -> Tuple[Any, Any]:
    nested = torch.nested.nested_tensor(s.tensors, layout=torch.jagged)
    data = nested.values() if scale is None else nested.values().to(getattr(torch, dtype)).mul_(scale)
    return data, nested.offsets()


def ragged(
    shortest: int, longest: int, num_samples: int, source: str, dtype: str, targets: List[Target], scale: Optional[float] = None
) -> Callable[..., Workload]:
    """Clips of many lengths one after another, and where each begins."""

    def make(name: str, title: str, setting: Setting) -> Workload:
        rng, engine = np.random.default_rng(4), setting.engine
        shapes = [(int(n),) for n in rng.integers(shortest, longest + 1, setting.count(num_samples))]
        sets = sets_of(lambda: samples_of(shapes, source, setting, rng), setting)
        transform = None if scale is None else wr.Transform(scale=scale)

        def by_windrow(s: Samples) -> Tuple[Any, Any]:
            batch = wr.ragged(s.best, dtype=dtype, transform=transform, engine=engine)
            return batch.data, batch.offsets

        found = Contenders(setting)
        found.add("windrow", "windrow", by_windrow)
        found.add("NumPy", "np.concatenate, offsets", lambda s: numpy_ragged(s, dtype, scale))
        found.add("torch", "torch.cat, offsets", lambda s: torch_ragged(s, dtype, scale))
        found.add("torch", "torch.nested, jagged", lambda s: torch_nested(s, dtype, scale))
        found.add("DALI", "DALI", lambda s: None, cannot=NO_RAGGED)
        found.add("CuPy", "cupy.concatenate, offsets", lambda s: cupy_ragged(s), cannot="" if scale is None else "two passes as torch")
        return Workload(name, title, setting, sets, lambda s: numpy_ragged(s, dtype, scale), found, targets)

    return make


def cupy_ragged(s: Samples) -> Tuple[Any, Any]:
    cupy = module("CuPy")
    rows = s.of("CuPy", cupy.from_dlpack)
    return cupy.concatenate(rows), cupy.asarray(np.concatenate([[0], np.cumsum([len(row) for row in rows])]))
