"""Moves between tensors that are there already: many to as many others, a tree to one buffer and back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, List

import numpy as np

import windrow as wr
from windrow.bench.results import MEMCPY
from windrow.bench.samples import LAYOUTS, Setting, torch
from windrow.bench.small import Anything
from windrow.bench.workload import Contender, Contenders, Definition, Target, Workload, require


@dataclass
class WrittenTensors:
    """Tensors that a contender has written, as one of their bytes when it is asked for."""

    tensors: List[Any]

    def cpu(self) -> Any:
        return torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in self.tensors])


def moves(title: str, make: Callable[[Setting, np.random.Generator], Workload]) -> Definition:
    """A workload of the host's, whose tensors are torch's; Skip on a device and without torch."""

    def build(setting: Setting) -> Workload:
        require(setting, "torch", host_only="moves are compared on the host")
        return make(setting, np.random.default_rng(30))

    return Definition(title, build, layouts=LAYOUTS[:1])


def workload(srcs: List[Any], want: Any, found: Contenders, targets: List[Target], repeat: int = 1) -> Workload:
    """A workload of moves, whose contenders give all bytes that they have written."""
    samples = Anything([], [], size=sum(tensor.nbytes for tensor in srcs))
    return Workload([samples], lambda _: (want.numpy(),), found, targets, repeat=repeat)


def bytes_of(tensors: List[Any]) -> Any:
    """The bytes of all tensors as one."""
    return WrittenTensors(tensors).cpu()


# Copies of many tensors to as many others


def copied(setting: Setting, rng: np.random.Generator, num_tensors: int, dtype: str, peer: str, goal: float) -> Workload:
    """Tensors of 64 float32 to others of a dtype."""
    count, engine = setting.count(num_tensors), setting.engine
    srcs = [torch.from_numpy(rng.random(64, np.float32)) for _ in range(count)]
    listed = wr.SampleList(srcs)
    lists: Dict[int, Any] = {}
    found = Contenders(setting)

    def add(library: str, name: str, write: Callable[[List[Any]], object]) -> None:
        # Each has its own, or one that writes nothing would have the values of the one before.
        dsts = [torch.zeros(64, dtype=getattr(torch, dtype)) for _ in srcs]
        written = WrittenTensors(dsts)
        found.add(library, name, lambda _: (write(dsts), written)[1])

    def by_lists(dsts: List[Any]) -> None:
        known = lists.get(id(dsts))
        if known is None:
            known = lists[id(dsts)] = wr.SampleList(dsts)
        wr.copy_many(known, listed, engine=engine)

    add("windrow", "windrow", lambda dsts: wr.copy_many(dsts, srcs, engine=engine))
    add("windrow", "windrow, SampleLists", by_lists)
    add("torch", "torch._foreach_copy_", lambda dsts: torch._foreach_copy_(dsts, srcs))
    add("torch", "loop of copy_", lambda dsts: [dst.copy_(src) for dst, src in zip(dsts, srcs)])
    want = bytes_of([src.to(getattr(torch, dtype)) for src in srcs])
    return workload(srcs, want, found, [Target("windrow", (peer,), goal)], max(1, 4096 // count))


# A tree to one buffer, and back


def parameters(setting: Setting, rng: np.random.Generator) -> Dict[str, Any]:
    """Tensors of 1 KiB to 4 MiB, of two dtypes."""
    tree = {}
    for position, exponent in enumerate(rng.uniform(10, 22, setting.count(300))):
        raw = torch.from_numpy(rng.integers(0, 256, int(2**exponent) // 256 * 256, np.uint8))
        tree[f"layer{position}.weight"] = raw.view(torch.bfloat16 if position % 2 else torch.float32)
    return tree


def packed(setting: Setting, rng: np.random.Generator) -> Workload:
    """A tree to one buffer, a new one or one that is there."""
    tree, engine = parameters(setting, rng), setting.engine
    tensors = list(tree.values())
    want = bytes_of(tensors)
    outs = [torch.zeros_like(want) for _ in range(2)]

    def views() -> List[Any]:
        return [tensor.reshape(-1).view(torch.uint8) for tensor in tensors]

    found = Contenders(setting)
    found.add("windrow", "windrow", lambda _: wr.pack(tree, engine=engine).buffer)
    found.add("windrow", "windrow, out=", lambda _: wr.pack(tree, out=outs[0], engine=engine).buffer)
    found.add("torch", "torch.cat of views", lambda _: torch.cat(views()))
    found.add("torch", "torch.cat(out=) of views", lambda _: torch.cat(views(), out=outs[1]), "windrow, out=")
    targets = [Target("windrow, out=", (MEMCPY,), 0.9), Target("windrow", ("torch.cat of views",), 1.0)]
    return workload(tensors, want, found, targets)


def unpacked(setting: Setting, rng: np.random.Generator) -> Workload:
    """One buffer to tensors that are there."""
    tree = parameters(setting, rng)
    source = wr.pack(tree)
    buffer = source.buffer.torch()
    views = [tensor.torch() for tensor in source.unpack().values()]
    want = bytes_of(list(tree.values()))
    found = Contenders(setting)

    def add(library: str, name: str, write: Callable[[Dict[str, Any]], object]) -> None:
        into = {key: torch.zeros_like(tensor) for key, tensor in tree.items()}
        written = WrittenTensors(list(into.values()))
        call: Contender = lambda _: (write(into), written)[1]  # noqa: E731
        found.add(library, name, call)

    add("windrow", "windrow", lambda into: wr.unpack(buffer, source.layout, into=into))
    add("torch", "torch._foreach_copy_ of views", lambda into: torch._foreach_copy_(list(into.values()), views))
    add("torch", "loop of copy_", lambda into: [dst.copy_(src) for dst, src in zip(into.values(), views)])
    targets = [Target("windrow", (MEMCPY,), 0.9), Target("windrow", ("torch._foreach_copy_ of views", "loop of copy_"), 1.0)]
    return workload(views, want, found, targets)


def cases() -> Dict[str, Definition]:
    found: Dict[str, Definition] = {}
    for count, most in ((64, 1.0), (1024, 0.9), (4096, 0.6)):
        title = f"copy_many of {count} x 64 float32 tensors"
        make = partial(copied, num_tensors=count, dtype="float32", peer="torch._foreach_copy_", goal=round(1 / most, 2))
        found[f"move-copy{count}"] = moves(title, make)
        title = f"copy_many of {count} x 64 float32 tensors to bfloat16"
        make = partial(copied, num_tensors=count, dtype="bfloat16", peer="loop of copy_", goal=3.0)
        found[f"move-cast{count}"] = moves(title, make)
    found["move-pack"] = moves("pack 300 tensors of 1 KiB to 4 MiB", packed)
    found["move-unpack"] = moves("unpack into 300 tensors of 1 KiB to 4 MiB", unpacked)
    return found
