"""Workloads of equal shapes that are only moved: rows, images, pages, a random batch of a large list."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, List, Tuple

import numpy as np

import windrow as wr
from windrow._measure import Array
from windrow.bench.samples import Samples, Setting, Shape, equal_samples, samples_of, sets_of, torch
from windrow.bench.workload import TOO_MANY_FOR_JAX, Contenders, Definition, Target, Workload, in_any_setting, module

TAKE = "windrow, SampleList.take"


def stacked(samples: Samples) -> Tuple[Array]:
    return (np.stack(samples.arrays),)


def output(count: int, shape: Shape, dtype: str, setting: Setting) -> Any:
    """Memory for a batch: an array or, with torch, a tensor on the device."""
    if torch is None:
        return np.empty((count, *shape), dtype)
    return torch.empty((count, *shape), dtype=getattr(torch, dtype), device=setting.device)


def foreach_copy(samples: Samples, out: Any) -> Any:
    torch._foreach_copy_(list(out.unbind(0)), samples.tensors)
    return out


def dali_stack(samples: Samples) -> Any:
    ndd = module("DALI")
    return ndd.as_tensor(ndd.as_batch(samples.arrays, device="cpu")).evaluate()


def jax_stack(samples: Samples) -> Any:
    jnp = module("JAX")
    convert: Callable[[Any], Any] = jnp.asarray if samples.best is samples.arrays else jnp.from_dlpack
    return jnp.stack(samples.converted("JAX", convert)).block_until_ready()


@in_any_setting
def stack(setting: Setting, shape: Shape, num_samples: int, dtype: str, targets: List[Target], odd: bool = False, repeat: int = 1) -> Workload:
    """A workload of samples of equal shape. `odd`: they begin at any byte."""
    count = setting.count(num_samples)
    sets = equal_samples(1, shape, count, dtype, setting, odd)
    out, engine = output(count, shape, dtype, setting), setting.engine
    row = int(np.prod(shape)) * np.dtype(dtype).itemsize
    found = Contenders(setting)
    found.add("windrow", "windrow", lambda s: wr.stack(s.best, engine=engine))
    found.add("windrow", "windrow, out=", lambda s: (wr.stack(s.best, out=out, engine=engine), out)[1])
    if row <= 4096:
        # The import is paid for once, in a data set that stays: a batch is then an index array.
        lists = {id(s): wr.SampleList(s.best) for s in sets}
        every = np.arange(count)
        found.add("windrow", TAKE, lambda s: wr.stack(lists[id(s)].take(every), engine=engine))
    found.add("NumPy", "windrow, NumPy samples", lambda s: wr.stack(s.arrays, engine=engine))
    host = np.asarray(out) if setting.on_host else None
    found.add("NumPy", "np.stack", lambda s: np.stack(s.arrays))
    found.add("NumPy", "np.stack(out=)", lambda s: np.stack(s.arrays, out=host), "windrow, out=")
    found.add("torch", "torch.stack", lambda s: torch.stack(s.tensors))
    found.add("torch", "torch.stack(out=)", lambda s: torch.stack(s.tensors, out=out), "windrow, out=")
    found.add("torch", "torch.cat, view", lambda s: torch.cat(s.tensors).view(count, *shape))
    found.add("torch", "default_collate", lambda s: torch.utils.data.default_collate(s.tensors))
    found.add("torch", "torch._foreach_copy_(out)", lambda s: foreach_copy(s, out), "windrow, out=")
    found.add("DALI", "DALI as_batch", dali_stack)
    found.add("JAX", "jnp.stack", jax_stack, cannot="" if count <= TOO_MANY_FOR_JAX else f"more than {TOO_MANY_FOR_JAX} operands")
    found.add("CuPy", "cupy.stack", lambda s: module("CuPy").stack(s.converted("CuPy", module("CuPy").from_dlpack)))
    if setting.layout == "contiguous":
        # The controls: samples in one piece already need no assembly.
        rows = torch.arange(count, device=setting.device) if torch else None
        way = TAKE if row <= 4096 else "windrow"
        found.add("torch", "torch.index_select of the one table", lambda s: torch.index_select(s.table, 0, rows), way)
        found.add("NumPy", "copy of the one table", lambda s: np.array(s.array_table))
    return Workload(sets, stacked, found, targets, repeat=repeat)


def sized(count: int, sample_bytes: int) -> Definition:
    """A stack of `count` samples of `sample_bytes` bytes each."""
    repeat = max(1, 65536 // (count * sample_bytes))
    return Definition(f"stack {count} x {sample_bytes} B", stack((sample_bytes,), count, "uint8", [], repeat=repeat))


# A random batch of a list that stays


@in_any_setting
def random_batch(setting: Setting, num_samples: int, batch: int) -> Workload:
    """A batch by indices out of many registered samples of 512 bytes."""
    rng, count, engine = np.random.default_rng(5), setting.count(num_samples), setting.engine
    pool = samples_of([(128,)] * count, "float32", setting, rng)
    # The control in any layout: what it costs if all rows were in one tensor from the beginning.
    table = pool.table if pool.table is not None else torch.stack(pool.tensors) if torch else np.stack(pool.arrays)
    listed = wr.SampleList(table if setting.layout == "contiguous" else pool.best)

    def draw() -> Samples:
        indices = rng.integers(0, count, min(batch, count))
        tensors = [pool.tensors[i] for i in indices] if pool.tensors else []
        return Samples([pool.arrays[i] for i in indices], tensors, table, indices)

    sets = sets_of(draw, setting)
    drawn = {id(s): torch.from_numpy(s.indices).to(setting.device) for s in sets} if torch else {}
    found = Contenders(setting)
    found.add("windrow", "windrow", lambda s: wr.stack(listed.take(s.indices), engine=engine))
    found.add("torch", "torch.stack of the same items", lambda s: torch.stack([pool.tensors[i] for i in s.indices]))
    found.add("NumPy", "np.stack of the same items", lambda s: np.stack([pool.arrays[i] for i in s.indices]))
    found.add("torch", "torch.index_select of one table", lambda s: torch.index_select(s.table, 0, drawn[id(s)]))
    found.add("NumPy", "np.take of one table", lambda s: np.take(s.array_table, s.indices, 0))
    targets = [
        Target("windrow", ("torch.stack of the same items",), 8.0),
        Target("windrow", ("torch.index_select of one table",), 1.0),
    ]
    return Workload(sets, stacked, found, targets)


# Host memory to a device


@in_any_setting
def upload(setting: Setting, shape: Shape, num_samples: int, dtype: str) -> Workload:
    """Samples in page-locked memory to one batch on a device."""
    rng, count = np.random.default_rng(6), setting.count(num_samples)
    on_host = replace(setting, device="cpu")

    def pinned() -> Samples:
        made = samples_of([shape] * count, dtype, on_host, rng)
        return Samples(made.arrays, [tensor.pin_memory() for tensor in made.tensors])

    sets = sets_of(pinned, setting)
    stage = torch.empty((count, *shape), dtype=getattr(torch, dtype), pin_memory=True)
    found = Contenders(setting)
    found.add("windrow", "windrow", lambda s: wr.stack(s.best, device=setting.device, engine=setting.engine))
    found.add("torch", "torch.stack, to", lambda s: torch.stack(s.tensors).to(setting.device))
    found.add("torch", "torch.stack(out=pinned), to", lambda s: torch.stack(s.tensors, out=stage).to(setting.device, non_blocking=True))
    return Workload(sets, stacked, found)
