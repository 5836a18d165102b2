"""Workloads that cast rows to float8 and back, as stores of keys and values do.

Results are compared as bytes, since NumPy lacks these dtypes.
"""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import numpy as np

import windrow as wr
from windrow.bench.moves import TAKE, copy_each
from windrow.bench.samples import Samples, Setting, equal_samples, samples_of, sets_of, torch
from windrow.bench.workload import Workload, require


def as_bytes(tensor: Any) -> Any:
    """The same memory as uint8."""
    return tensor.view(torch.uint8)


def rows_of(seed: int, length: int, num_samples: int, dtype: str, setting: Setting) -> List[Samples]:
    """Lists of rows of floats in another dtype; arrays are of the bytes."""
    rng, shapes = np.random.default_rng(seed), [(length,)] * setting.count(num_samples)

    def make() -> Samples:
        samples = samples_of(shapes, "float32", setting, rng)
        table = None if samples.table is None else samples.table.to(getattr(torch, dtype))
        tensors = [tensor.to(getattr(torch, dtype)) for tensor in samples.tensors] if table is None else list(table.unbind(0))
        return Samples([as_bytes(tensor).cpu().numpy() for tensor in tensors], tensors, table)

    return sets_of(make, setting)


def float8_rows(setting: Setting, length: int, num_samples: int, source: str, target: str) -> Workload:
    """Rows of numbers that both dtypes have room for."""
    require(setting, "torch")
    count, engine, dtype = setting.count(num_samples), setting.engine, getattr(torch, target)
    out, every = torch.empty((count, length), dtype=dtype, device=setting.device), np.arange(count)

    def eager(s: Samples) -> Any:
        return as_bytes(torch.stack(s.tensors).to(dtype))

    made = Workload(setting, rows_of(9, length, num_samples, source, setting), eager)
    for samples in made.sets:
        samples.listed = wr.SampleList(samples.tensors)
    made.add("windrow", "windrow", lambda s: as_bytes(wr.stack(s.tensors, dtype=dtype, engine=engine).torch()))
    made.add("windrow", "windrow, out=", lambda s: (wr.stack(s.tensors, dtype=dtype, out=out, engine=engine), as_bytes(out))[1])
    made.add("windrow", TAKE, lambda s: as_bytes(wr.stack(s.listed.take(every), dtype=dtype, engine=engine).torch()))
    made.add("torch", "torch.stack, to", eager)
    made.add("torch", "copy_ of each row", lambda s: as_bytes(copy_each(out, s.tensors)), "windrow, out=")
    return made


def quantised_rows(setting: Setting, length: int, num_samples: int, source: str, block: Optional[int]) -> Workload:
    """Rows to float8_e4m3fn by a scale for each of them or for each block, and the scales."""
    require(setting, "torch", host_only="its outputs and its results to compare with are on the host")
    count, engine = setting.count(num_samples), setting.engine
    transform = wr.Quantize("float8_e4m3fn", scale=block or "row")
    blocks = length // (block or length)
    outs = torch.empty((count, length), dtype=torch.float8_e4m3fn), torch.empty((count, blocks) if block else (count,))

    def both(data: Any, scales: Any) -> Tuple[Any, Any]:
        return as_bytes(data), scales.reshape(count, -1)

    def by_formula(rows: Any) -> Tuple[Any, Any]:
        """vLLM's quantisation by tokens, or by blocks of them."""
        groups = rows.float().reshape(count, blocks, -1)
        scales = groups.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / 448
        data = (groups / scales).clamp(-448, 448).to(torch.float8_e4m3fn)
        return data.reshape(rows.shape), scales.squeeze(-1)

    def by_windrow(s: Samples) -> Tuple[Any, Any]:
        batch: Any = wr.stack(s.tensors, transform=transform, engine=engine)
        return both(batch.torch(), batch.scales.torch())

    def eager(s: Samples) -> Tuple[Any, Any]:
        return both(*by_formula(torch.stack(s.tensors)))

    made = Workload(setting, rows_of(11, length, num_samples, source, setting), eager)
    made.add("windrow", "windrow", by_windrow)
    made.add("windrow", "windrow, out=", lambda s: (wr.stack(s.tensors, transform=transform, out=outs, engine=engine), both(*outs))[1])
    made.add("torch", "torch.stack, amax, divide, to", eager)
    compiled: Any = torch.compile(by_formula, dynamic=False) if setting.compiles else None
    made.add("compiled torch", "torch.stack, torch.compile of the rest", lambda s: both(*compiled(torch.stack(s.tensors))))
    return made


def images(setting: Setting, num_samples: int) -> Workload:
    """Images of bytes to float8_e4m3fn in 0 to 1."""
    require(setting, "torch")
    engine, transform, dtype = setting.engine, wr.Transform(scale=1 / 255), torch.float8_e4m3fn

    def eager(s: Samples) -> Any:
        return as_bytes(torch.stack(s.tensors).float().mul(1 / 255).to(dtype))

    made = Workload(setting, equal_samples(12, (224, 224, 3), num_samples, "uint8", setting), eager)
    made.add("windrow", "windrow", lambda s: as_bytes(wr.stack(s.tensors, dtype=dtype, transform=transform, engine=engine).torch()))
    made.add("torch", "torch.stack, float, mul, to", eager)
    return made
