"""Named tensors that go to a device together, again and again: `Staging`."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from windrow import _windrow
from windrow._windrow import Engine, Tensor

if TYPE_CHECKING:
    from windrow._windrow import _Device, _DType, _Stream

__all__ = ["Staging"]

# Blocks are aligned like a device's own allocations, in bytes.
_ALIGN = 256


class Staging:
    """Memory for the metadata of a step (ids, positions, lengths, block tables): filled on the host and brought to a device by one copy.

    There are two blocks of host memory in turn, page-locked where `device` is a CUDA device, and one block of the device, each with a place
    for every name. While the device still reads one block of the host, the other one is filled. All begin as zeros, and a step that
    fills no new values into a name uploads those of the step before last.

    Args:
        spec: names, each with the shape and the dtype of its tensor.
        device: ``"cuda"``, ``"cuda:1"`` or ``"cpu"``. None: that of ``engine``, else ``"cuda"`` where there is a driver, else ``"cpu"``.
        engine (Engine): None: the default one.

    Attributes:
        host (Mapping): names to `Tensor` objects of the block that no copy reads; after `upload` to those of the other one. Read it anew
            for each step: a tensor that was kept is in a block that may be on its way.
        device (Mapping): names to `Tensor` objects of the device, which stay and see later uploads.
        nbytes (int): how much one upload copies.

    Raises:
        TypeError: ``spec`` that is no mapping of names to pairs of shape and dtype. ValueError: a negative extent, more than 63 bits of
            bytes, an unknown device.
        DeviceError: ``device="pinned"``. CudaUnavailable, CudaError: ``device`` cannot be used.

    Examples:
        >>> import windrow as wr
        >>> step = wr.Staging({"ids": ((4,), "int32"), "scale": ((), "float32")}, device="cpu")
        >>> for first in range(3):
        ...     step.host["ids"].numpy()[:] = [first, 7, 8, 9]
        ...     step.upload()
        >>> step.device["ids"].numpy().tolist(), float(step.device["scale"])
        ([2, 7, 8, 9], 0.0)
    """

    __slots__ = ("_blocks", "device", "host", "nbytes")

    def __init__(self, spec: Mapping[str, Tuple[Sequence[int], _DType]], *, device: Optional[_Device] = None, engine: Optional[Engine] = None) -> None:
        parts, nbytes = _parts_of(spec)
        self.nbytes = nbytes
        self._blocks = blocks = _windrow._Staging(nbytes, device, engine)
        views = [dict(zip(spec, _windrow._parts(block, parts, nbytes, "buffer"))) for block in (*blocks.hosts, blocks.device)]
        self.host: Mapping[str, Tensor] = _Host(blocks, views[:2])
        self.device: Mapping[str, Tensor] = MappingProxyType(views[2])

    def upload(self, stream: Optional[_Stream] = None) -> None:
        """Enqueues one copy of all that is in ``host``, and gives ``host`` the other block.

        The copy is in the order of ``stream``, behind all that was enqueued on the tensors of ``device`` by streams that were named:
        those of earlier uploads, and those that libraries gave as they took the tensors by DLPack. Upload on the stream whose work reads
        the tensors: that work is then in order, and nothing is waited for. A library that works on another stream takes the tensors anew
        after each upload; the next upload then waits for the device. The call itself waits only where the copy of the upload before it has
        not ended, which reads the block that comes next. It allocates nothing. One thread fills and uploads at a time; on the host, where
        the call copies, nothing else reads ``device`` meanwhile. If the call fails, ``host`` stays as it is.

        Args:
            stream: as for `copy_many`. None: torch's current stream, if torch uses the device, else one of the engine's own.

        Raises:
            ValueError: a stream of another device or context, or one that is being captured: a graph would copy the same block each
                time. Graphs that read the tensors of ``device`` are launched behind an upload. ``stream`` on the host.
            CudaError: a call of the driver failed.
        """
        self._blocks.upload(stream)

    def __repr__(self) -> str:
        return f"Staging({', '.join(self.device)}, nbytes={self.nbytes}, device={self._blocks.device.device})"


class _Host(Mapping[str, Tensor]):
    """The tensors of the block whose turn it is."""

    __slots__ = ("_blocks", "_views")

    def __init__(self, blocks: _windrow._Staging, views: List[Dict[str, Tensor]]) -> None:
        self._blocks = blocks
        self._views = views

    def __getitem__(self, name: str) -> Tensor:
        return self._views[self._blocks.turn][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views[0])

    def __len__(self) -> int:
        return len(self._views[0])


def _parts_of(spec: Any) -> Tuple[List[Tuple[str, Tuple[int, ...], int]], int]:
    """The dtype, shape and first byte of each name, in order, and the bytes of all; TypeError and ValueError as of `Staging`."""
    if not isinstance(spec, Mapping):
        raise TypeError(f"spec must be a mapping of names to (shape, dtype), got {type(spec).__name__}")
    wanted: List[Tuple[Any, Tuple[int, ...]]] = []
    for name, entry in spec.items():
        if not isinstance(name, str):
            raise TypeError(f"a name in spec must be a str, got {name!r}")
        if not isinstance(entry, (tuple, list)) or len(entry) != 2 or not isinstance(entry[0], (tuple, list)):
            raise TypeError(f'spec of "{name}": expected (shape, dtype) such as ((512,), "int32"), got {entry!r}')
        shape, dtype = entry
        if dtype is None or not all(hasattr(extent, "__index__") and not isinstance(extent, bool) for extent in shape):
            raise TypeError(f'spec of "{name}": expected (shape, dtype) such as ((512,), "int32"), got {entry!r}')
        part = (dtype, tuple(extent.__index__() for extent in shape))
        try:
            _windrow._places([part], _ALIGN)
        except (TypeError, ValueError, OverflowError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f'spec of "{name}": {error}') from None
        wanted.append(part)
    places, nbytes = _windrow._places(wanted, _ALIGN)
    return [(dtype, shape, first) for (dtype, first, _), (_, shape) in zip(places, wanted)], nbytes
