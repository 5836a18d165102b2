"""Workloads of equal shapes that are only moved: rows, images, pages, a random batch of a large list."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, List

import numpy as np

import windrow as wr
from windrow._measure import Array
from windrow.bench.samples import Samples, Setting, Shape, empty, equal_samples, samples_of, sets_of, torch
from windrow.bench.workload import Case, Skip, Workload, dali, module, too_many_for_jax

TAKE = "windrow, SampleList.take"


def stacked(samples: Samples) -> Array:
    return np.stack(samples.arrays)


def copy_each(dsts: Any, srcs: List[Any]) -> Any:
    """`dsts`, a list of tensors or the rows of one, with each source written to its own."""
    for dst, src in zip(dsts, srcs):
        dst.copy_(src)
    return dsts


def jax_stack(samples: Samples) -> Any:
    jnp = module("JAX")
    convert: Callable[[Any], Any] = jnp.asarray if samples.best is samples.arrays else jnp.from_dlpack
    return jnp.stack(samples.converted("JAX", convert)).block_until_ready()


def stack(setting: Setting, shape: Shape, num_samples: int, dtype: str, odd: bool = False, repeat: int = 1) -> Workload:
    """A workload of samples of equal shape. `odd`: they begin at any byte."""
    count, engine = setting.count(num_samples), setting.engine
    array, tensor = empty((count, *shape), dtype)
    out = array if tensor is None else tensor.to(setting.device)
    is_short = array.nbytes // count <= 4096
    every = np.arange(count)
    made = Workload(setting, equal_samples(1, shape, num_samples, dtype, setting, odd), stacked, repeat=repeat)
    made.add("windrow", "windrow", lambda s: wr.stack(s.best, engine=engine))
    made.add("windrow", "windrow, out=", lambda s: (wr.stack(s.best, out=out, engine=engine), out)[1])
    if is_short:
        for samples in made.sets:
            samples.listed = wr.SampleList(samples.best)
        made.add("windrow", TAKE, lambda s: wr.stack(s.listed.take(every), engine=engine))
    made.add("NumPy", "windrow, NumPy samples", lambda s: wr.stack(s.arrays, engine=engine))
    made.add("NumPy", "np.stack", stacked)
    made.add("NumPy", "np.stack(out=)", lambda s: np.stack(s.arrays, out=array), "windrow, out=")
    made.add("torch", "torch.stack", lambda s: torch.stack(s.tensors))
    made.add("torch", "torch.stack(out=)", lambda s: torch.stack(s.tensors, out=out), "windrow, out=")
    made.add("torch", "torch.cat, view", lambda s: torch.cat(s.tensors).view(count, *shape))
    made.add("torch", "default_collate", lambda s: torch.utils.data.default_collate(s.tensors))
    made.add("torch", "torch._foreach_copy_(out)", lambda s: (torch._foreach_copy_(list(out.unbind(0)), s.tensors), out)[1], "windrow, out=")
    made.add("DALI", "DALI as_batch", lambda s: dali(s.arrays))
    made.add("JAX", "jnp.stack", jax_stack, cannot=too_many_for_jax(count))
    made.add("CuPy", "cupy.stack", lambda s: module("CuPy").stack(s.converted("CuPy", module("CuPy").from_dlpack)))
    if setting.layout == "contiguous":
        # The controls: samples in one piece already need no assembly.
        rows = torch.arange(count, device=setting.device) if torch else None
        way = TAKE if is_short else "windrow"
        made.add("torch", "torch.index_select of the one table", lambda s: torch.index_select(s.table, 0, rows), way)
        made.add("NumPy", "copy of the one table", lambda s: np.array(s.array_table))
    return made


def sized(count: int, sample_bytes: int) -> Case:
    """A stack of `count` samples of `sample_bytes` bytes each."""
    repeat = max(1, 65536 // (count * sample_bytes))
    return Case(f"stack {count} x {sample_bytes} B", stack, (sample_bytes,), count, "uint8", repeat=repeat)


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

    def drawn(s: Samples) -> Any:
        return s.whole("indices", lambda s: torch.from_numpy(s.indices).to(setting.device))

    made = Workload(setting, sets_of(draw, setting), stacked)
    made.add("windrow", "windrow", lambda s: wr.stack(listed.take(s.indices), engine=engine))
    made.add("torch", "torch.stack of the same items", lambda s: torch.stack([pool.tensors[i] for i in s.indices]))
    made.add("NumPy", "np.stack of the same items", lambda s: np.stack([pool.arrays[i] for i in s.indices]))
    made.add("torch", "torch.index_select of one table", lambda s: torch.index_select(s.table, 0, drawn(s)))
    made.add("NumPy", "np.take of one table", lambda s: np.take(s.array_table, s.indices, 0))
    return made


def upload(setting: Setting, shape: Shape, num_samples: int, dtype: str) -> Workload:
    """Samples in page-locked memory to one batch on a device."""
    if setting.on_host:
        raise Skip("page-locked memory to a device: needs a GPU")
    rng, count = np.random.default_rng(6), setting.count(num_samples)

    def pinned() -> Samples:
        made = samples_of([shape] * count, dtype, replace(setting, device="cpu"), rng)
        return Samples(made.arrays, [tensor.pin_memory() for tensor in made.tensors])

    stage = torch.empty((count, *shape), dtype=getattr(torch, dtype), pin_memory=True)
    made = Workload(setting, sets_of(pinned, setting), stacked)
    made.add("windrow", "windrow", lambda s: wr.stack(s.best, device=setting.device, engine=setting.engine))
    made.add("torch", "torch.stack, to", lambda s: torch.stack(s.tensors).to(setting.device))
    made.add("torch", "torch.stack(out=pinned), to", lambda s: torch.stack(s.tensors, out=stage).to(setting.device, non_blocking=True))
    return made
