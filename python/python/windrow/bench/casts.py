"""Workloads that cast rows to float8 and back, as stores of keys and values do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, List, Optional, Tuple

import numpy as np

import windrow as wr
from windrow._measure import Array
from windrow.bench.moves import TAKE
from windrow.bench.samples import Samples, Setting, equal_samples, samples_of, sets_of, torch
from windrow.bench.workload import Contenders, Target, Workload, in_any_setting, require


@in_any_setting
def float8_rows(setting: Setting, length: int, num_samples: int, source: str, target: str, targets: List[Target]) -> Workload:
    """Rows of numbers that both dtypes have room for. Results are compared as bytes, since NumPy lacks these dtypes."""
    require(setting, "torch")
    count, engine = setting.count(num_samples), setting.engine
    dtype = getattr(torch, target)
    sets = rows_of(9, length, count, source, setting)
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
    return Workload(sets, expected, found, targets)


def rows_of(seed: int, length: int, count: int, dtype: str, setting: Setting) -> List[Samples]:
    """Lists of rows of floats in another dtype; arrays are of the bytes."""
    rng = np.random.default_rng(seed)
    return sets_of(lambda: cast_to(samples_of([(length,)] * count, "float32", setting, rng), getattr(torch, dtype)), setting)


def cast_to(samples: Samples, dtype: Any) -> Samples:
    """The same in another dtype; arrays are of the bytes."""
    tensors = [tensor.to(dtype) for tensor in samples.tensors]
    table = None if samples.table is None else samples.table.to(dtype)
    tensors = tensors if table is None else list(table.unbind(0))
    return replace(samples, arrays=[as_bytes(tensor).cpu().numpy() for tensor in tensors], tensors=tensors, table=table)


def as_bytes(tensor: Any) -> Any:
    """The same memory as uint8."""
    return tensor.view(torch.uint8)


def copied(tensors: List[Any], out: Any) -> Any:
    """`out`, with each tensor written to its row."""
    for row, tensor in zip(out.unbind(0), tensors):
        row.copy_(tensor)
    return out


@in_any_setting
def quantised_rows(setting: Setting, length: int, num_samples: int, source: str, block: Optional[int], targets: List[Target]) -> Workload:
    """Rows to float8_e4m3fn by a scale for each of them or for each block, and the scales. Results are compared as bytes."""
    require(setting, "torch", host_only="its outputs and its results to compare with are on the host")
    count, engine = setting.count(num_samples), setting.engine
    sets = rows_of(11, length, count, source, setting)
    transform = wr.Quantize("float8_e4m3fn", scale=block or "row")
    blocks = length // (block or length)
    outs = torch.empty((count, length), dtype=torch.float8_e4m3fn), torch.empty((count, blocks) if block else (count,))

    def own(batch: Any) -> Any:
        return both(batch.torch(), batch.scales.torch())

    def eager(s: Samples) -> Any:
        return both(*by_formula(torch.stack(s.tensors), blocks))

    expected: Callable[[Samples], Tuple[Array, ...]] = lambda s: tuple(part.numpy() for part in eager(s))
    found = Contenders(setting)
    found.add("windrow", "windrow", lambda s: own(wr.stack(s.tensors, transform=transform, engine=engine)))
    found.add("windrow", "windrow, out=", lambda s: (wr.stack(s.tensors, transform=transform, out=outs, engine=engine), both(*outs))[1])
    found.add("torch", "torch.stack, amax, divide, to", eager)
    compiled: Any = torch.compile(by_formula, dynamic=False) if setting.compiles else None
    slow = "" if setting.compiles else "compiling takes 20 s: not with --quick or --seconds"
    found.add(
        "torch",
        "torch.stack, torch.compile of the rest",
        lambda s: both(*compiled(torch.stack(s.tensors), blocks)),
        cannot=slow,
    )
    return Workload(sets, expected, found, targets)


@in_any_setting
def images(setting: Setting, num_samples: int, targets: List[Target]) -> Workload:
    """Images of bytes to float8_e4m3fn in 0 to 1."""
    require(setting, "torch")
    sets, engine = equal_samples(12, (224, 224, 3), setting.count(num_samples), "uint8", setting), setting.engine
    transform = wr.Transform(scale=1 / 255)
    dtype = torch.float8_e4m3fn
    eager: Callable[[Samples], Any] = lambda s: as_bytes(torch.stack(s.tensors).float().mul(1 / 255).to(dtype))
    expected: Callable[[Samples], Tuple[Array, ...]] = lambda s: (eager(s).cpu().numpy(),)
    found = Contenders(setting)
    found.add("windrow", "windrow", lambda s: as_bytes(wr.stack(s.tensors, dtype=dtype, transform=transform, engine=engine).torch()))
    found.add("torch", "torch.stack, float, mul, to", eager)
    return Workload(sets, expected, found, targets)


def by_formula(rows: Any, blocks: int) -> Tuple[Any, Any]:
    """vLLM's quantisation by tokens, or by blocks of them."""
    groups = rows.float().reshape(len(rows), blocks, -1)
    scales = groups.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / 448
    data = (groups / scales).clamp(-448, 448).to(torch.float8_e4m3fn)
    return data.reshape(rows.shape), scales.squeeze(-1)


def both(data: Any, scales: Any) -> Tuple[Any, Any]:
    """The bytes of the data, and the scales with two dims."""
    return as_bytes(data), scales.reshape(len(scales), -1)
