"""Workloads that cast rows to float8 and back, as stores of keys and values do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, List, Tuple

import numpy as np

import windrow as wr
from windrow._measure import Array
from windrow.bench.moves import TAKE
from windrow.bench.samples import Samples, Setting, samples_of, sets_of, torch
from windrow.bench.workload import Contenders, Skip, Target, Workload


def float8_rows(length: int, num_samples: int, source: str, target: str, targets: List[Target]) -> Callable[..., Workload]:
    """Rows of numbers that both dtypes have room for. Results are compared as bytes, since NumPy lacks these dtypes."""

    def make(name: str, title: str, setting: Setting) -> Workload:
        if torch is None:
            raise Skip("torch is not installed")
        rng, count, engine = np.random.default_rng(9), setting.count(num_samples), setting.engine
        dtype = getattr(torch, target)

        def rows() -> Samples:
            return of_dtype(samples_of([(length,)] * count, "float32", setting, rng), getattr(torch, source))

        sets = sets_of(rows, setting)
        out = torch.empty((count, length), dtype=dtype, device=setting.device)
        lists = {id(s): wr.SampleList(s.tensors) for s in sets}
        every = np.arange(count)
        eager: Callable[[Samples], Any] = lambda s: as_bytes(torch.stack(s.tensors).to(dtype))
        expected: Callable[[Samples], Tuple[Array, ...]] = lambda s: (eager(s).cpu().numpy(),)
        found = Contenders(setting)
        found.add("windrow", "windrow", lambda s: as_bytes(wr.stack(s.tensors, dtype=dtype, engine=engine).torch()))
        found.add("windrow", "windrow, out=", lambda s: (wr.stack(s.tensors, dtype=dtype, out=out, engine=engine), as_bytes(out))[1])
        found.add("windrow", TAKE, lambda s: as_bytes(wr.stack(lists[id(s)].take(every), dtype=dtype, engine=engine).torch()))
        found.add("torch", "torch.stack, to", eager)
        found.add("torch", "copy_ of each row", lambda s: as_bytes(copied(s.tensors, out)), "windrow, out=")
        return Workload(name, title, setting, sets, expected, found, targets)

    return make


def of_dtype(samples: Samples, dtype: Any) -> Samples:
    """The same in another dtype; arrays are of the bytes."""
    tensors = [tensor.to(dtype) for tensor in samples.tensors]
    table = None if samples.table is None else samples.table.to(dtype)
    tensors = tensors if table is None else list(table.unbind(0))
    return replace(samples, arrays=[as_bytes(tensor).cpu().numpy() for tensor in tensors], tensors=tensors, table=table)


def as_bytes(tensor: Any) -> Any:
    return tensor.view(torch.uint8)


def copied(tensors: List[Any], out: Any) -> Any:
    for row, tensor in zip(out.unbind(0), tensors):
        row.copy_(tensor)
    return out
