"""Many tensors in one buffer: `pack`, `unpack` and `pack_buckets`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, TypeVar, overload

from windrow import _windrow
from windrow._flattener import at_path
from windrow._layout import LEAF, Layout, LeafPlace, Piece, layout_of, nodes_of, plain_tree
from windrow._windrow import DeviceError, Engine, Tensor
from windrow.plan import int_of

if TYPE_CHECKING:
    from windrow._windrow import _ArrayLike, _Device

__all__ = ["Layout", "Packed", "pack", "pack_buckets", "unpack"]

_T = TypeVar("_T")


class _Tree:
    """A tree taken apart: its leaves as tensors, and for each the first leaf of the same memory, dtype, shape and strides; a leaf without
    bytes is its own first."""

    def __init__(self, tree: Any) -> None:
        self.paths, leaves, _, self.structure = _windrow._flatten(tree)
        self.nodes = nodes_of(self.structure)
        tensors = _windrow._leaf_tensors(leaves, self.paths, "tree")
        self.tensors = [tensor for tensor, _ in tensors]
        self.dtypes = [dtype for _, dtype in tensors]
        first: Dict[Any, int] = {}
        self.first = []
        for position, tensor in enumerate(self.tensors):
            key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.strides)
            self.first.append(first.setdefault(key, position) if tensor.nbytes else position)
        # The positions of the leaves that are first, which alone are stored.
        self.stored = [position for position, first in enumerate(self.first) if first == position]

    def places(self, align: int) -> Tuple[List[Tuple[int, int]], int]:
        """The first byte and the size of each leaf that is stored, and the size of all."""
        parts = [(self.dtypes[position], self.tensors[position].shape) for position in self.stored]
        places, nbytes = _windrow._places(parts, align)
        return [place[1:] for place in places], nbytes

    def device(self, device: Any) -> Any:
        """The device of a buffer of these leaves: `device`, if it is given, else that of all leaves with bytes;
        DeviceError for several."""
        if device is not None:
            return device
        # A leaf without bytes may name any device.
        expected = next((tensor.device for tensor in self.tensors if tensor.nbytes), "cpu")
        for path, tensor in zip(self.paths, self.tensors):
            if tensor.nbytes and tensor.device != expected:
                error = DeviceError(f'tree at "{path}": expected {expected}, got {tensor.device}; device= says where the buffer is')
                error.path, error.expected, error.got = path, expected, tensor.device
                raise error
        return expected


def _alignment(align: Any) -> int:
    """The alignment, a power of two up to 1 GiB; TypeError or ValueError for anything else."""
    number = int_of("align", align)
    if number & (number - 1) or number > 1 << 30:
        raise ValueError(f"align must be a power of two, of at most 1 GiB, got {number}")
    return number


class Packed:
    """The leaves of a tree in one buffer.

    A pickle has the buffer's bytes, by protocol 5 beside it, and the layout with dicts in place of dataclasses and other classes and with
    tuples in place of namedtuples.

    Attributes:
        buffer (Tensor): uint8, 1-d.
        layout (Layout): where each leaf is in it.
        nbytes (int): the size of the buffer.
    """

    __slots__ = ("buffer", "layout")

    def __init__(self, buffer: Tensor, layout: Layout) -> None:
        self.buffer = buffer
        self.layout = layout

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    def unpack(self) -> Any:
        """The tree, with a `Tensor` view of the buffer for each leaf; tied leaves are one object."""
        return unpack(self.buffer, self.layout)

    def __reduce__(self) -> Tuple[Any, ...]:
        return Packed, (self.buffer, self.layout)

    def __repr__(self) -> str:
        return f"Packed({len(self.layout.paths)} leaves, nbytes={self.nbytes}, device={self.buffer.device})"


def pack(tree: Any, *, device: Optional[_Device] = None, align: int = 64, out: Optional[_ArrayLike] = None, engine: Optional[Engine] = None) -> Packed:
    """Copies all leaves of one tree into one buffer, by one `copy_many`: a model's parameters, the metadata of a step.

    A tree is what `collate` takes for one sample; Python numbers are leaves without dims. Leaves of the same memory, dtype, shape
    and strides, such as tied weights, are stored once. Bytes between the leaves are 0. Leaves on a device go to a buffer on the
    host by one copy, from memory of the device in which they are packed first. A buffer on a device is written in stream order,
    as by `copy_many`.

    Args:
        tree: dicts, lists, tuples, namedtuples, dataclasses and classes of `register_node` with array-likes as leaves.
        device: of the buffer, ``"cpu"``, ``"pinned"`` or ``"cuda"``. None: where the leaves are, which must then be one place.
        align (int): leaves begin at multiples of it, in bytes; a power of two.
        out: writable bytes (uint8) that are the buffer, as many as the layout has or more, in place of a new one.
        engine (Engine): None: the default one.

    Raises:
        TypeError: a leaf that is no array-like, such as None or a str, with its ``.path``; ``align`` that is no int.
        ValueError: ``align`` that is no power of two, or above 1 GiB; ``out`` that is too short, or shares bytes with a leaf.
        DTypeError: ``out`` of another dtype than uint8.
        LayoutError: ``out`` that is read-only or has gaps, a leaf whose memory cannot be read, as of a torch tensor that requires grad
            while torch's grad mode is on.
        DeviceError: leaves in different places without ``device``; ``out`` elsewhere than ``device``.
        CudaUnavailable, CudaError: ``device`` cannot be used, or a call of the driver failed.

    Examples:
        >>> import windrow as wr
        >>> packed = wr.pack({"w": memoryview(b"abcdef"), "step": 7})
        >>> packed.layout.offsets, packed.nbytes
        ((0, 64), 72)
        >>> tree = packed.unpack()
        >>> bytes(tree["w"]), int(tree["step"])
        (b'abcdef', 7)
        >>> layout = wr.Layout.from_json(packed.layout.to_json())
        >>> int(wr.unpack(bytes(packed.buffer), layout)["step"])
        7
    """
    plan = PlannedPack(tree, align)
    if out is None:
        buffer = _windrow._unwritten(plan.layout.nbytes, plan.leaves.device(device), engine)
    else:
        buffer = _bytes_of(out, plan.layout.nbytes, "out")
        if device is not None and _windrow._device_name(device) != buffer.device:
            raise DeviceError(f"out: expected {device}, got {buffer.device}")
    try:
        plan.write(buffer, engine)
    except Exception as error:
        if getattr(error, "side", None) == "destination":
            _name_out(error, plan.leaves.paths)
        raise
    return Packed(buffer, plan.layout)


def _name_out(error: Any, paths: Sequence[str]) -> None:
    """Makes the error of a destination, which is a part of the buffer, one of `out`. Its index and path become those of the leaf that
    shares memory with it, if one does."""
    text = str(error).removeprefix(f"destination {error.index}{at_path(error.path)}: ")
    shared = re.search(r"\bsource (\d+)", text)
    error.index, error.path, error.side = (int(shared[1]), paths[int(shared[1])], None) if shared else (None, "", None)

    def named(text: str) -> str:
        return text.replace(shared[0], f"the leaf{at_path(error.path)}") if shared else text

    error.args = ("out: " + named(text),)
    for name in ("expected", "got"):
        if hasattr(error, name):
            setattr(error, name, named(getattr(error, name)))


class PlannedPack:
    """The layout of a tree before there is a buffer."""

    def __init__(self, tree: Any, align: int) -> None:
        align = _alignment(align)
        self.leaves = leaves = _Tree(tree)
        places, nbytes = leaves.places(align)
        place_of = dict(zip(leaves.stored, places))
        entries = []
        for path, dtype, tensor, first in zip(leaves.paths, leaves.dtypes, leaves.tensors, leaves.first):
            entries.append(LeafPlace(path, dtype, tensor.shape, *place_of[first], None))
        self.entries = [entries[position] for position in leaves.stored]
        self.layout = layout_of(entries, nbytes, leaves.nodes, leaves.structure)

    def write(self, buffer: Tensor, engine: Optional[Engine] = None) -> None:
        """Writes all leaves, and zeros between them, to a buffer that has as many bytes as the layout or more."""
        stored = self.leaves.stored
        _write(buffer, self.entries, [self.leaves.tensors[position] for position in stored], stored, engine)


def _bytes_of(buffer: Any, nbytes: int, name: str) -> Tensor:
    """The first bytes of a buffer; refuses one that has fewer, gaps or another dtype than uint8, by its `name`."""
    return _windrow._parts(buffer, [("uint8", (nbytes,), 0)], nbytes, name)[0]


def _write(
    buffer: Tensor, entries: Sequence[LeafPlace], tensors: Sequence[Tensor], numbers: Sequence[int], engine: Optional[Engine]
) -> None:
    """Writes tensors, and zeros between them; to a host from a device by way of memory there. `numbers`: of each among the leaves of the
    tree, as errors say."""
    parts, paths, gaps, end = [], [], [], 0
    for leaf in entries:
        if leaf.offset > end:
            gaps.append((leaf.offset - end, end))
        end = leaf.offset + leaf.nbytes
        parts.append((leaf.dtype, leaf.shape, leaf.offset))
        paths.append(leaf.path)
    zeros = bytes(max(gaps)[0] if gaps else 0)
    between = _windrow._parts(zeros, [("uint8", (length,), 0) for length, _ in gaps], 0, "buffer")
    parts += [("uint8", (length,), first) for length, first in gaps]
    dsts, srcs = _windrow._parts(buffer, parts, buffer.nbytes, "buffer"), [*tensors, *between]
    paths += [""] * len(gaps)
    on_device = [tensor.device for tensor in tensors if _is_on_device(tensor)]
    if not on_device or _is_on_device(buffer):
        _windrow._copy_leaves(dsts, srcs, paths, engine, list(numbers))
        return
    # Each leaf would be a copy of its own to the host. Leaves on the host may still share memory with the buffer.
    _windrow._check_leaves(dsts, srcs, paths, list(numbers))
    there = _windrow._unwritten(buffer.nbytes, on_device[0], engine)
    _write(there, entries, tensors, numbers, engine)
    _windrow._copy_leaves([buffer], [there], [""], engine)


def _is_on_device(tensor: Tensor) -> bool:
    return tensor.device.startswith("cuda")


def _views(buffer: Any, layout: Layout) -> List[Tensor]:
    """A view for each leaf, one object for those that are tied."""
    parts: Dict[Any, int] = {}
    which = [parts.setdefault(part, len(parts)) for part in zip(layout.dtypes, layout.shapes, layout.offsets)]
    views = _windrow._parts(buffer, list(parts), layout.nbytes, "buffer")
    return [views[position] for position in which]


@overload
def unpack(buffer: _ArrayLike, layout: Layout, *, into: None = None) -> Any: ...
@overload
def unpack(buffer: _ArrayLike, layout: Layout, *, into: _T) -> _T: ...
def unpack(buffer: _ArrayLike, layout: Layout, *, into: Any = None) -> Any:
    """The tree that was packed: views of the buffer, or written into existing tensors by one `copy_many`.

    The views are `Tensor` objects where the buffer is, read-only if that is; tied leaves are one object. In place of a TensorDict or a graph of PyTorch
    Geometric is a dict. Of a bucket of `pack_buckets`, leaves that are in others
    are None, and pieces are bytes.

    Args:
        buffer: bytes (uint8), as many as the layout has or more, on the host or a device: the buffer of a `Packed`, bytes, an array, a memory map.
        layout (Layout): where each leaf is.
        into: a tree of tensors to write to, such as a model's parameters, with the keys and lengths of the one that was packed. Dtypes may
            differ, and they may be elsewhere than the buffer, as for `copy_many`. Identical destinations of tied leaves are written once. Of a bucket the whole tree is given,
            and what the bucket has of it is written; what was cut needs the dtype and shape that it had, without gaps.

    Returns:
        The tree of views, or ``into``.

    Raises:
        TypeError: ``layout`` that is none. ValueError: a buffer that is shorter than the layout.
        DTypeError, LayoutError: a buffer that is not of uint8, or has gaps.
        KeyError, TypeError, ValueError, and the errors of `copy_many`: ``into`` that does not fit, with its ``.path``; nothing is written.
    """
    if not isinstance(layout, Layout):
        raise TypeError(f"layout must be a wr.Layout, got {type(layout).__name__}; Layout.from_json reads text")
    if into is None:
        views = _views(buffer, layout)
        if layout._structure is None or None in layout._nodes:
            return plain_tree(layout._nodes, views)
        return layout._structure.unflatten(views)
    # Leaves are matched by keys and positions alone, so that a dataclass takes the leaves of a dict.
    paths, leaves, _, structure = _windrow._flatten(into)
    nodes = nodes_of(structure)
    # Most often each leaf is by itself and whole, and the buffer is on the host.
    parts = layout._parts if tuple(nodes) == layout._nodes else None
    if parts is not None and _windrow._copy_parts(leaves, buffer, parts, layout.nbytes, paths):
        return into
    sources = views = _views(buffer, layout)
    if tuple(nodes) != layout._nodes:
        _, leaves, sources, _ = _windrow._flatten(plain_tree(nodes, leaves), plain_tree(layout._nodes, views))
    count: Dict[int, int] = {}
    for view in views:
        count[id(view)] = count.get(id(view), 0) + 1
    pieces = {id(view): piece for view, piece in zip(views, layout._pieces) if piece is not None}
    near = _on_the_host(buffer, layout, views, zip(leaves, sources, paths))
    written: Set[Any] = set()
    dsts, srcs, places, numbers = [], [], [], []
    for number, (path, dst, src) in enumerate(zip(paths, leaves, sources)):
        if src is None:
            continue
        if id(src) in pieces:
            dst = _piece_of(dst, path, pieces[id(src)], src.nbytes)
        if count.get(id(src), 0) > 1:
            place = (id(src), _place_of(dst, path))
            if place in written:
                continue
            written.add(place)
        dsts.append(dst)
        srcs.append(near[id(src)] if near and not _is_written_on_device(dst, path) else src)
        places.append(path)
        numbers.append(number)
    _windrow._copy_leaves(dsts, srcs, places, None, numbers)
    return into


def _on_the_host(buffer: Any, layout: Layout, views: Sequence[Tensor], pairs: Iterable[Tuple[Any, Any, str]]) -> Dict[int, Tensor]:
    """Copies of the views in host memory, by id of the view, made by one copy if the views are on a device and some
    destinations are not: each of these would otherwise be a copy of its own. Empty in all other cases."""
    if not views or not _is_on_device(views[0]) or all(src is None or _is_written_on_device(dst, path) for dst, src, path in pairs):
        return {}
    near = _windrow._unwritten(layout.nbytes, "cpu", None)
    _windrow._copy_leaves([near], [_bytes_of(buffer, layout.nbytes, "buffer")], [""])
    return dict(zip(map(id, views), _views(near, layout)))


def _destination(dst: Any, path: str) -> Optional[Tensor]:
    """A destination as a tensor; None where it is refused later."""
    try:
        return _windrow._leaf_tensors([dst], [path], "into")[0][0]
    except (BufferError, TypeError, ValueError):
        return None


def _is_written_on_device(dst: Any, path: str) -> bool:
    """Whether a destination is on a device; False where it is refused later."""
    tensor = _destination(dst, path)
    return tensor is not None and _is_on_device(tensor)


def _place_of(dst: Any, path: str) -> Any:
    """A key that is equal for identical destinations; the id of an object that is refused later."""
    tensor = _destination(dst, path)
    return id(dst) if tensor is None else (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.strides)


def _piece_of(dst: Any, path: str, piece: Piece, nbytes: int) -> Tensor:
    """The bytes of a destination that a piece goes to; DTypeError or ShapeError for a destination that is not as the leaf that was cut."""
    start, dtype, shape = piece
    tensor = _windrow._leaf_tensors([dst], [path], "into")[0][0]
    for kind, expected, got in ((_windrow.DTypeError, dtype, tensor.dtype), (_windrow.ShapeError, shape, tensor.shape)):
        if expected != got:
            error = kind(f'into at "{path}": expected {expected}, got {got}; the leaf was cut along its bytes')
            error.path, error.expected, error.got = path, expected, got
            raise error
    return _windrow._parts(_windrow._leaf_bytes(dst, path, "into"), [("uint8", (nbytes,), start)], start + nbytes, "into")[0]


def pack_buckets(tree: Any, max_bytes: int, *, device: Optional[_Device] = None, align: int = 64) -> Iterator[Packed]:
    """The leaves of one tree in buffers of at most ``max_bytes``, one after the other: weights sent to another process or machine.

    All of them share one buffer: each is valid until the next one is asked for. A leaf that is larger than a bucket is cut along its bytes.
    On the other side, `unpack` of each bucket ``into`` the whole tree puts them together, also of bytes and `Layout.from_json`.

    Args:
        tree: as for `pack`. Its leaves are read as the buckets are asked for.
        max_bytes (int): the size of a bucket, at least 1.
        device, align: as for `pack`. Leaves on a device whose buckets are on the host are packed there, one bucket at a time.

    Raises:
        ValueError: ``max_bytes`` below 1. TypeError: ``max_bytes`` that is no int. The others as for `pack`, at the call.

    Examples:
        >>> import windrow as wr
        >>> model = {"w": bytearray(100), "b": bytearray(8)}
        >>> for bucket in wr.pack_buckets({"w": b"w" * 100, "b": b"b" * 8}, 64):
        ...     text, sent = bucket.layout.to_json(), bytes(bucket.buffer)
        ...     _ = wr.unpack(sent, wr.Layout.from_json(text), into=model)
        >>> bytes(model["w"]) == b"w" * 100, bytes(model["b"])
        (True, b'bbbbbbbb')
    """
    align = _alignment(align)
    max_bytes = int_of("max_bytes", max_bytes)
    leaves = _Tree(tree)
    buffer = _windrow._unwritten(min(max_bytes, leaves.places(align)[1]), leaves.device(device), None)
    return _buckets(leaves, buffer, align)


# The piece of each leaf in a bucket, by the leaf's position: the tensor that is stored, its first byte in the leaf, and
# its place.
_Bucket = Dict[int, Tuple[Tensor, int, int]]


def _buckets(leaves: _Tree, buffer: Tensor, align: int) -> Iterator[Packed]:
    """The buckets in the order of the leaves, each in `buffer` until the next one is asked for."""
    bucket: _Bucket = {}
    end = 0
    for position, tensor in enumerate(leaves.tensors):
        if leaves.first[position] != position:
            continue
        start, size = 0, tensor.nbytes
        is_cut = size > buffer.nbytes
        whole: Optional[Tensor] = None
        while True:
            offset = -(-end // align) * align
            room = buffer.nbytes - offset
            if bucket and (room < 1 if is_cut else room < size):
                yield _filled(leaves, buffer, bucket)
                bucket, end = {}, 0
                continue
            length = min(room, size - start)
            if is_cut and whole is None:
                whole = _whole_bytes(tensor, leaves.dtypes[position], leaves.paths[position])
            part = tensor if whole is None else _windrow._parts(whole, [("uint8", (length,), start)], 0, "tree")[0]
            bucket[position] = (part, start, offset)
            start, end = start + length, offset + length
            if start == size:
                break
            yield _filled(leaves, buffer, bucket)
            bucket, end = {}, 0
    if bucket:
        yield _filled(leaves, buffer, bucket)


def _filled(leaves: _Tree, buffer: Tensor, bucket: _Bucket) -> Packed:
    """Writes a bucket to the beginning of the buffer; its layout has a node for every leaf of the tree."""
    entries: List[LeafPlace] = []
    nodes, stored, tensors, numbers = list(leaves.nodes), [], [], []
    places = [place for place, node in enumerate(nodes) if node == LEAF]
    end = 0
    for position, (path, dtype, tensor) in enumerate(zip(leaves.paths, leaves.dtypes, leaves.tensors)):
        first = leaves.first[position]
        if first not in bucket:
            nodes[places[position]] = None
            continue
        part, start, offset = bucket[first]
        length = part.nbytes
        if length == tensor.nbytes:
            leaf = LeafPlace(path, dtype, tensor.shape, offset, length, None)
        else:
            leaf = LeafPlace(path, "uint8", (length,), offset, length, (start, dtype, tensor.shape))
        entries.append(leaf)
        if first == position:
            stored.append(leaf)
            tensors.append(part)
            numbers.append(position)
        end = max(end, offset + length)
    part = _bytes_of(buffer, end, "buffer")
    _write(part, stored, tensors, numbers, None)
    return Packed(part, layout_of(entries, end, nodes, leaves.structure))


def _whole_bytes(tensor: Tensor, dtype: str, path: str) -> Tensor:
    """The bytes of a leaf that is cut, row-major and of native byte order: a copy if they are not so."""
    if tensor.dtype != dtype or _steps(tensor.shape) != tensor.strides:
        tensor = _windrow.stack([tensor])[0]
    return _windrow._leaf_bytes(tensor, path, "tree")


def _steps(shape: Tuple[int, ...]) -> Tuple[int, ...]:
    """The strides of a tensor without gaps, in elements."""
    steps = [1]
    for extent in reversed(shape[1:]):
        steps.append(steps[-1] * extent)
    return tuple(reversed(steps))[: len(shape)] if shape else ()
