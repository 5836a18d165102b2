"""A workload of bench_torch.py: samples, what they become, and who makes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable

import windrow as wr
from native_peers import Absent

Call = Callable[[Any], Any]


@dataclass
class Contender:
    """Makes one tensor of a set, or a tuple of them."""

    call: Call
    # It copies nothing from the host, so that a graph can hold it.
    is_captured: bool = False
    # How far it may be off, where it rounds more often than is defined.
    tolerance: float = 0.0


@dataclass
class Workload:
    """`want` are the arrays that the first and the last set become, made by NumPy."""

    name: str
    title: str
    layout: str
    num_samples: int
    # Read and written, or those that cross the bus.
    num_bytes: int
    sets: list[Any]
    want: Callable[[Any], Any]
    crosses: bool = False
    contenders: dict[str, Contender] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, call: Call, is_captured: bool = False, tolerance: float = 0.0) -> None:
        self.contenders[name] = Contender(call, is_captured, tolerance)

    def try_add(self, name: str, make: Callable[[], Call], is_captured: bool = False, tolerance: float = 0.0) -> None:
        """The same of a call that has to be made first, if it can be."""
        try:
            self.add(name, make(), is_captured, tolerance)
        except Absent as reason:
            self.absent[name] = str(reason)


def ours(value: Any) -> Any:
    """A tensor of windrow as one of torch, as a training loop takes it."""
    return value.torch() if isinstance(value, (wr.Batch, wr.Tensor)) else tuple(map(ours, value)) if isinstance(value, tuple) else value


def triton_kernels(bench: Any) -> Any:
    """The module of the Triton kernels."""
    if bench.dry:
        raise Absent("needs a GPU")
    try:
        import torch_triton
    except ImportError as error:
        raise Absent(f"{error.name or 'triton'} is not installed") from None
    return torch_triton
