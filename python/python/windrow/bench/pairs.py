"""Moves between tensors that are there already: many to as many others, a tree to one buffer and back."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, Iterable, List, Tuple

import numpy as np

import windrow as wr
from windrow.bench.moves import copy_each
from windrow.bench.results import MEMCPY
from windrow.bench.samples import LAYOUTS, Setting, opaque, torch
from windrow.bench.workload import Case, Workload, over, require


def as_bytes(tensors: Iterable[Any]) -> Tuple[Any, ...]:
    """The memory of each tensor as uint8."""
    return tuple(tensor.reshape(-1).view(torch.uint8) for tensor in tensors)


def add_writer(made: Workload, name: str, dsts: List[Any], bind: Callable[[List[Any]], Callable[[], object]]) -> None:
    """A contender that writes to tensors like `dsts`, by the call that `bind` gives for them. Each has its own, or one that
    writes nothing would have the values of the one before."""
    own = [torch.zeros_like(dst) for dst in dsts]
    write, written = bind(own), as_bytes(own)
    made.add("windrow" if name.startswith("windrow") else "torch", name, lambda _: (write(), written)[1])


def started(setting: Setting, srcs: List[Any], want: List[Any], repeat: int = 1) -> Workload:
    """A workload of moves without contenders, which give the bytes of `want`."""
    return Workload(setting, [opaque(sum(tensor.nbytes for tensor in srcs))], lambda _: as_bytes(want), repeat=repeat)


def rng_of(setting: Setting) -> np.random.Generator:
    """Random numbers for a workload of the host's, whose tensors are torch's; Skip on a device and without torch."""
    require(setting, "torch", host_only="moves are compared on the host")
    return np.random.default_rng(30)


def copied(setting: Setting, num_tensors: int, dtype: str) -> Workload:
    """Tensors of 64 float32 to as many others of a dtype."""
    rng, count, engine = rng_of(setting), setting.count(num_tensors), setting.engine
    srcs = [torch.from_numpy(rng.random(64, np.float32)) for _ in range(count)]
    want = [src.to(getattr(torch, dtype)) for src in srcs]
    listed = wr.SampleList(srcs)
    made = started(setting, srcs, want, max(1, 4096 // count))
    add_writer(made, "windrow", want, lambda dsts: partial(wr.copy_many, dsts, srcs, engine=engine))
    add_writer(made, "windrow, SampleLists", want, lambda dsts: partial(wr.copy_many, wr.SampleList(dsts), listed, engine=engine))
    add_writer(made, "torch._foreach_copy_", want, lambda dsts: partial(torch._foreach_copy_, dsts, srcs))
    add_writer(made, "loop of copy_", want, lambda dsts: partial(copy_each, dsts, srcs))
    return made


def parameters(setting: Setting) -> Dict[str, Any]:
    """Tensors of 1 KiB to 4 MiB, of two dtypes."""
    rng, tree = rng_of(setting), {}
    for position, exponent in enumerate(rng.uniform(10, 22, setting.count(300))):
        raw = torch.from_numpy(rng.integers(0, 256, int(2**exponent) // 256 * 256, np.uint8))
        tree[f"layer{position}.weight"] = raw.view(torch.bfloat16 if position % 2 else torch.float32)
    return tree


def packed(setting: Setting) -> Workload:
    """A tree to one buffer, a new one or one that is there."""
    tree, engine = parameters(setting), setting.engine
    tensors = list(tree.values())
    made = started(setting, tensors, [torch.cat(as_bytes(tensors))])
    outs = [torch.zeros(made.sets[0].num_bytes, dtype=torch.uint8) for _ in range(2)]
    made.add("windrow", "windrow", lambda _: wr.pack(tree, engine=engine).buffer)
    made.add("windrow", "windrow, out=", lambda _: wr.pack(tree, out=outs[0], engine=engine).buffer)
    made.add("torch", "torch.cat of views", lambda _: torch.cat(as_bytes(tensors)))
    made.add("torch", "torch.cat(out=) of views", lambda _: torch.cat(as_bytes(tensors), out=outs[1]), "windrow, out=")
    return made


def unpacked(setting: Setting) -> Workload:
    """One buffer to tensors that are there."""
    tree = parameters(setting)
    source = wr.pack(tree)
    buffer = source.buffer.torch()
    views = [tensor.torch() for tensor in source.unpack().values()]
    tensors = list(tree.values())
    made = started(setting, tensors, tensors)
    add_writer(made, "windrow", tensors, lambda dsts: partial(wr.unpack, buffer, source.layout, into=dict(zip(tree, dsts))))
    add_writer(made, "torch._foreach_copy_ of views", tensors, lambda dsts: partial(torch._foreach_copy_, dsts, views))
    add_writer(made, "loop of copy_", tensors, lambda dsts: partial(copy_each, dsts, views))
    return made


def cases() -> Dict[str, Case]:
    found: Dict[str, Case] = {}
    once = LAYOUTS[:1]
    for count, most in ((64, 1.0), (1024, 0.9), (4096, 0.6)):
        title, target = f"copy_many of {count} x 64 float32 tensors", over(round(1 / most, 2), "torch._foreach_copy_")
        found[f"move-copy{count}"] = Case(title, copied, count, "float32", targets=[target], layouts=once)
        title, target = f"{title} to bfloat16", over(3.0, "loop of copy_")
        found[f"move-cast{count}"] = Case(title, copied, count, "bfloat16", targets=[target], layouts=once)
    targets = [over(0.9, MEMCPY, ours="windrow, out="), over(1.0, "torch.cat of views")]
    found["move-pack"] = Case("pack 300 tensors of 1 KiB to 4 MiB", packed, targets=targets, layouts=once)
    targets = [over(0.9, MEMCPY), over(1.0, "torch._foreach_copy_ of views", "loop of copy_")]
    found["move-unpack"] = Case("unpack into 300 tensors of 1 KiB to 4 MiB", unpacked, targets=targets, layouts=once)
    return found
