"""`Stats`: the counters of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List

if TYPE_CHECKING:
    from typing import Literal, overload

    _Base = Dict[str, Any]

    _Counts = Literal["paths", "workers"]
    _Fractions = Literal["padding_waste", "import_seconds", "plan_seconds", "run_seconds", "wait_seconds"]
    _Sums = Literal[
        "batches",
        "samples",
        "moves",
        "bytes_in",
        "bytes_out",
        "data_bytes",
        "padding_bytes",
        "views",
        "launches",
        "bytes_to_device",
        "bytes_to_host",
        "waits",
        "pool_bytes",
        "pool_used_bytes",
        "pool_hits",
        "pool_misses",
        "device_bytes",
        "lent_bytes",
        "pinned_bytes",
        "pinned_used_bytes",
    ]
else:
    _Base = dict


class Stats(_Base):
    """Counters of an engine, at the time of the call. It is a dict, prints as a table, and each item is an attribute too.

    Bytes named ``pool``, ``device`` and ``pinned`` are those at present. ``pool_hits`` and ``pool_misses`` count from the start of the
    engine. Seconds are those of the calling threads.

    Attributes:
        batches (int): batches; each leaf of a tree is one.
        samples (int): samples.
        moves (int): those of the samples that are pairs of `copy_many`, in no batch.
        bytes_in (int): bytes read.
        bytes_out (int): bytes written.
        data_bytes (int): bytes of data, padding included.
        padding_bytes (int): bytes of padding.
        padding_waste (float): share of padding in the data, 0 to 1.
        paths (dict): batches by path, named as in `explain`.
        views (int): batches that are views.
        launches (int): launches of kernels.
        bytes_to_device (int): bytes copied from the host to devices.
        bytes_to_host (int): bytes copied from devices to the host.
        waits (int): waits for a device.
        import_seconds (float): reading of samples.
        plan_seconds (float): planning.
        run_seconds (float): execution.
        wait_seconds (float): waits, part of which is also in ``run_seconds``.
        pool_bytes (int): free output memory.
        pool_used_bytes (int): output memory in use.
        pool_hits (int): outputs whose memory came from the pool.
        pool_misses (int): outputs whose memory the system gave.
        device_bytes (int): memory of devices in use.
        lent_bytes (int): bytes of outputs in torch's memory.
        pinned_bytes (int): free page-locked memory.
        pinned_used_bytes (int): page-locked memory in use.
        workers (dict): what worker processes of torch's loaders have counted that this process reads from: ``batches`` (or single
            tensors) by way of their pools and their ``bytes``; how often there was no room (``refused``) and the batch went torch's way;
            ``blocks`` that were made; ``pool_bytes`` at present. Of these blocks this process has page-locked this many (``locked``),
            and ``locked_bytes`` are at present. Empty for an engine of one's own.
    """

    __module__ = "windrow"
    __slots__ = ()

    if TYPE_CHECKING:
        batches: int
        samples: int
        moves: int
        bytes_in: int
        bytes_out: int
        data_bytes: int
        padding_bytes: int
        padding_waste: float
        paths: Dict[str, int]
        views: int
        launches: int
        bytes_to_device: int
        bytes_to_host: int
        waits: int
        import_seconds: float
        plan_seconds: float
        run_seconds: float
        wait_seconds: float
        pool_bytes: int
        pool_used_bytes: int
        pool_hits: int
        pool_misses: int
        device_bytes: int
        lent_bytes: int
        pinned_bytes: int
        pinned_used_bytes: int
        workers: Dict[str, int]

        @overload
        def __getitem__(self, name: _Counts, /) -> Dict[str, int]: ...
        @overload
        def __getitem__(self, name: _Fractions, /) -> float: ...
        @overload
        def __getitem__(self, name: _Sums, /) -> int: ...
        @overload
        def __getitem__(self, name: str, /) -> Any: ...
        def __getitem__(self, name: str, /) -> Any: ...

    if not TYPE_CHECKING:  # A checker knows the names above alone.

        def __getattr__(self, name):
            if name in self:
                return self[name]
            raise AttributeError(f"'Stats' has no attribute {name!r}")

    def __dir__(self) -> List[str]:
        return [*super().__dir__(), *self]

    def __str__(self) -> str:
        width = max(map(len, self), default=0)
        return "\n".join(f"{name:<{width}}  {_shown(value)}" for name, value in self.items())

    def __repr__(self) -> str:
        return f"Stats({super().__repr__()})"

    def copy(self) -> "Stats":
        """The same counters."""
        return Stats(self)


def _shown(value: object) -> str:
    """A counter in a table: digits in groups, seconds and shares to six significant ones, and dicts as pairs."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(count)}" for name, count in value.items()) or "-"
    return f"{value:.6g}" if isinstance(value, float) else f"{value:,}"
