"""A workload: samples, the expected batch, the contenders that make it and how, and why others cannot."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Tuple

from windrow._measure import Array
from windrow._system import load
from windrow.bench.samples import LAYOUTS, Samples, Setting, num_bytes

Contender = Callable[[Samples], Any]
"""Makes one tensor or a tuple of them."""

Oracle = Callable[[Samples], Tuple[Array, ...]]

TOO_MANY_FOR_JAX = 1024
"""Each sample is an operand of a compiled program: 4096 took 9 s to compile."""

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
        return "host memory only"
    if library == "CuPy" and setting.on_host:
        return "device memory only"
    if library == "DALI" and not setting.on_host:
        return "not compared on a device"
    return load(LIBRARIES[library])[1] if library in LIBRARIES else ""


class Skip(Exception):
    """Why a workload is not run."""


def require(setting: Setting, *libraries: str, host_only: str = "") -> None:
    """Raises Skip where a library is missing, or on a device if `host_only` says why."""
    reasons = [host_only if not setting.on_host else "", *(missing(library, setting) for library in libraries)]
    for reason in filter(None, reasons):
        raise Skip(reason)


@dataclass
class Contenders:
    """The contenders, and why others cannot take part."""

    setting: Setting
    calls: Dict[str, Contender] = field(default_factory=dict)
    # The way of windrow that does the same as the contender: with `out=`, by index.
    against: Dict[str, str] = field(default_factory=dict)
    absent: Dict[str, str] = field(default_factory=dict)

    def add(self, library: str, name: str, call: Contender, against: str = "windrow", cannot: str = "") -> None:
        """One contender; `cannot` says why it is not able to, and is empty if it is."""
        reason = cannot or missing(library, self.setting)
        if reason:
            self.absent[name] = reason
        else:
            self.calls[name] = call
            self.against[name] = against


@dataclass
class Target:
    """A ratio that the project asks of itself: the fastest of `peers` against `ours`."""

    ours: str
    peers: Tuple[str, ...]
    at_least: float


@dataclass
class Workload:
    """Samples, contenders, expected values."""

    sets: List[Samples]
    expected: Oracle
    contenders: Contenders
    targets: List[Target] = field(default_factory=list)
    # How far a contender other than windrow may be off where it rounds more often than is defined.
    tolerance: float = 0.0
    # Calls in one measurement, where a single one is too short for the clock.
    repeat: int = 1
    # The text behind the title of the workload's definition.
    remark: str = ""
    name: str = ""
    title: str = ""

    @property
    def setting(self) -> Setting:
        return self.contenders.setting

    def bytes_of(self, expected: Tuple[Array, ...]) -> Tuple[int, int]:
        """Bytes read and bytes written for one batch."""
        return self.sets[0].num_bytes, num_bytes(expected)


Make = Callable[[Setting], Workload]
"""Makes a workload in a setting; raises Skip where it cannot be run."""


def in_any_setting(make: Callable[..., Workload]) -> Callable[..., Make]:
    """Takes the arguments behind the setting first: what is left is a `Make`."""

    @functools.wraps(make)
    def bind(*args: Any, **kwargs: Any) -> Make:
        return lambda setting: make(setting, *args, **kwargs)

    return bind


@dataclass
class Definition:
    """A workload that can be made in any setting."""

    title: str
    make: Make
    # Why it cannot be run on the host, or nothing.
    no_host: str = ""
    # The layouts that its samples can have.
    layouts: Tuple[str, ...] = LAYOUTS

    def __call__(self, name: str, setting: Setting) -> Workload:
        """Makes it; raises Skip where it cannot be run."""
        if setting.on_host and self.no_host:
            raise Skip(self.no_host)
        some = "" if setting.scale == 1 else f", {setting.scale:g} of the samples"
        made = self.make(setting)
        made.name, made.title = name, self.title + some + made.remark
        return made
