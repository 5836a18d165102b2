"""A workload: samples, the expected batch, the contenders that make it and how, and why others cannot."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Sequence, Tuple

from windrow._system import load
from windrow.bench.samples import LAYOUTS, Samples, Setting

Contender = Callable[[Samples], Any]
"""Makes one tensor or a tuple of them, of any library."""

HOST_ONLY = "host memory only"

LIBRARIES = {
    "NumPy": "numpy",
    "torch": "torch",
    "DALI": "nvidia.dali.experimental.dynamic",
    "JAX": "jax.numpy",
    "CuPy": "cupy",
    "PyG": "torch_geometric.data",
    "TensorDict": "tensordict",
    "pyarrow": "pyarrow",
    "datasets": "datasets",
    "transformers": "transformers",
    "tokenizers": "tokenizers",
    "polars": "polars",
    "binpacking": "binpacking",
    "trl": "trl.data_utils",
}
"""The libraries that windrow is compared with, and the module of each."""

# JAX would take three quarters of a GPU at its first use, and make 64-bit integers ones of 32.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("JAX_ENABLE_X64", "1")


def module(library: str) -> Any:
    """The module of a library that is there, see `missing`."""
    return load(LIBRARIES[library])[0]


def missing(library: str, setting: Setting) -> str:
    """Why a library cannot take part, or nothing."""
    if library == "NumPy" and not setting.on_host:
        return HOST_ONLY
    if library == "CuPy" and setting.on_host:
        return "device memory only"
    if library == "compiled torch":
        return missing("torch", setting) if setting.compiles else "compiling takes 20 s: not with --quick or --seconds"
    if library == "DALI" and not setting.on_host:
        return "not compared on a device"
    return load(LIBRARIES[library])[1] if library in LIBRARIES else ""


def too_many_for_jax(count: int) -> str:
    """Why JAX cannot stack so many samples, or nothing: each is an operand of a compiled program, and 4096 took 9 s to compile."""
    return "" if count <= 1024 else "more than 1024 operands"


def dali(arrays: List[Any], change: Callable[[Any, Any], Any] = lambda ndd, batch: batch, **options: Any) -> Any:
    """A tensor of DALI's batch, which `change` makes of its module and of the batch of these arrays."""
    ndd = module("DALI")
    return ndd.as_tensor(change(ndd, ndd.as_batch(arrays, device="cpu", **options))).evaluate()


class Skip(Exception):
    """Why a workload is not run."""


def require(setting: Setting, *libraries: str, host_only: str = "") -> None:
    """Raises Skip where a library is missing, or on a device if `host_only` says why."""
    reasons = [host_only if not setting.on_host else "", *(missing(library, setting) for library in libraries)]
    for reason in filter(None, reasons):
        raise Skip(reason)


@dataclass
class Target:
    """A ratio that the project asks of itself: the fastest of `peers` against `ours`."""

    ours: str
    peers: Tuple[str, ...]
    at_least: float


def over(at_least: float, *peers: str, ours: str = "windrow") -> Target:
    return Target(ours, peers, at_least)


@dataclass
class Workload:
    """Samples, the expected batch, the contenders, and why others cannot take part."""

    setting: Setting
    sets: List[Samples]
    expected: Contender
    # How far a contender other than windrow may be off where it rounds more often than is defined.
    tolerance: float = 0.0
    # Calls in one measurement, where a single one is too short for the clock.
    repeat: int = 1
    # The text behind the title of the case.
    remark: str = ""
    calls: Dict[str, Contender] = field(default_factory=dict)
    # The way of windrow that does the same as the contender: with `out=`, by index.
    against: Dict[str, str] = field(default_factory=dict)
    # Why others cannot take part.
    absent: Dict[str, str] = field(default_factory=dict)
    # The case that makes it gives these.
    name: str = ""
    title: str = ""
    targets: Sequence[Target] = ()

    def add(self, library: str, name: str, call: Contender, against: str = "windrow", cannot: str = "") -> None:
        """One contender; `cannot` says why it is not able to, and is empty if it is."""
        reason = cannot or missing(library, self.setting)
        if reason:
            self.absent[name] = reason
        else:
            self.calls[name] = call
            self.against[name] = against


class Case:
    """A workload that can be made in any setting, by a function of the setting and of the arguments that are given here."""

    def __init__(
        self, title: str, make: Callable[..., Workload], *args: Any,
        targets: Sequence[Target] = (), layouts: Sequence[str] = LAYOUTS, **kwargs: Any,
    ) -> None:  # fmt: skip
        self.title, self.targets, self.layouts = title, targets, layouts
        self.make: Callable[[Setting], Workload] = lambda setting: make(setting, *args, **kwargs)

    def __call__(self, name: str, setting: Setting) -> Workload:
        """Makes it; raises Skip where it cannot be run."""
        some = "" if setting.scale == 1 else f", {setting.scale:g} of the samples"
        made = self.make(setting)
        return replace(made, name=name, title=self.title + some + made.remark, targets=self.targets)
