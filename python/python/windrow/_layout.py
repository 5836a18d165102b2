"""`Layout`: the place of each leaf of a tree in a buffer, as an object and as JSON."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

from windrow import _windrow

# A leaf of the tree that the buffer has, one that it has not, or a container: "dict" and its keys, "list" or "tuple" and its length.
# Each container is before its children.
Node = Any
# The first byte, dtype and shape of the leaf that a piece is cut from.
Piece = Tuple[int, str, Tuple[int, ...]]

LEAF = "leaf"
_MOST = 2**63 - 1


@dataclasses.dataclass(frozen=True, repr=False)
class Layout:
    """The place of each leaf of a tree in a buffer. Made by `pack` and `pack_buckets`, or by `from_json`.

    Leaves are in the order of the tree. Tied leaves have the same offset.

    Attributes:
        paths (tuple of str): the names of each leaf, joined by dots.
        dtypes (tuple of str): the names of their element types.
        shapes (tuple of tuple of int): their extents. A piece that `pack_buckets` cut is bytes: uint8, ``(n,)``.
        offsets (tuple of int): the first byte of each in the buffer.
        nbytes (int): how many bytes the buffer has.

    Two layouts are equal if they have the same leaves in the same places, in dicts, lists and tuples of the same keys and lengths.
    """

    paths: Tuple[str, ...]
    dtypes: Tuple[str, ...]
    shapes: Tuple[Tuple[int, ...], ...]
    offsets: Tuple[int, ...]
    nbytes: int
    _nodes: Tuple[Node, ...]
    _pieces: Tuple[Optional[Piece], ...]
    # The containers themselves, of whatever class; not in a pickle and not in JSON.
    _structure: Any = dataclasses.field(default=None, compare=False)

    @functools.cached_property
    def _parts(self) -> Optional[List[Tuple[str, Tuple[int, ...], int]]]:
        """Dtype, shape and first byte of each leaf; None if some are tied, or pieces of leaves."""
        parts = list(zip(self.dtypes, self.shapes, self.offsets))
        return None if len(set(parts)) < len(parts) or any(self._pieces) else parts

    def __repr__(self) -> str:
        return f"Layout({len(self.paths)} leaves, nbytes={self.nbytes})"

    def __reduce__(self) -> Tuple[Any, ...]:
        arguments = (self.paths, self.dtypes, self.shapes, self.offsets, self.nbytes, self._nodes, self._pieces)
        return Layout, arguments

    def to_json(self) -> str:
        """The layout as text, from which `from_json` makes an equal one, on any machine.

        dicts, lists and tuples stay apart, and keys are whole, whatever is in them. Other mappings, dataclasses and classes become
        dicts, and namedtuples become tuples.

        Raises:
            TypeError: a key of a mapping that is not a str, int, float, bool or None.
        """
        for node in self._nodes:
            if isinstance(node, tuple) and node[0] == "dict":
                for key in node[1]:
                    if not isinstance(key, (str, int, float, bool, type(None))):
                        raise TypeError(f"JSON has no such keys as {key!r}, a {type(key).__name__}; give the tree keys of str")
        leaves = []
        for path, dtype, shape, offset, piece in zip(self.paths, self.dtypes, self.shapes, self.offsets, self._pieces):
            leaf = {"path": path, "dtype": dtype, "shape": shape, "offset": offset}
            if piece is not None:
                leaf["piece"] = piece
            leaves.append(leaf)
        return json.dumps({"nbytes": self.nbytes, "leaves": leaves, "tree": self._nodes}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: Union[str, bytes]) -> Layout:
        """The layout that `to_json` gave the text of, which is not trusted.

        Raises:
            ValueError: it is not JSON of a layout; numbers that are negative or too large, unknown dtypes, leaves that lie outside of
                the buffer or that share bytes without being the same.
            TypeError: not a str or bytes.
        """
        try:
            given = json.loads(text)
        except RecursionError:
            raise ValueError("a layout's JSON is not nested so deep") from None
        if not isinstance(given, dict) or not isinstance(given.get("leaves"), list) or not isinstance(given.get("tree"), list):
            raise ValueError("a layout's JSON has nbytes, leaves and tree")
        nbytes = _number(given.get("nbytes"), "nbytes")
        leaves = [_leaf_of(leaf, position) for position, leaf in enumerate(given["leaves"])]
        _check_apart(leaves, nbytes)
        nodes = _checked_nodes(given["tree"], len(leaves))
        return layout_of(leaves, nbytes, nodes, None)


class LeafPlace(NamedTuple):
    """A leaf, and the bytes of the buffer that it has."""

    path: str
    dtype: str
    shape: Tuple[int, ...]
    offset: int
    nbytes: int
    piece: Optional[Piece]


def layout_of(leaves: Sequence[LeafPlace], nbytes: int, nodes: Iterable[Node], structure: Any) -> Layout:
    paths, dtypes, shapes, offsets, _, pieces = zip(*leaves) if leaves else ((),) * 6
    return Layout(paths, dtypes, shapes, offsets, nbytes, tuple(nodes), pieces, structure)


# JSON that is not trusted


def _number(given: Any, what: str) -> int:
    """A number from 0 to 2**63 - 1; refuses anything else."""
    if type(given) is not int or not 0 <= given <= _MOST:
        raise ValueError(f"{what}: expected an integer from 0 to 2**63 - 1, got {_short(given)}")
    return given


def _short(given: Any) -> str:
    """A text of the given object, of bounded length, for an error."""
    text = repr(given)
    return text if len(text) <= 40 else f"{text[:40]}..."


@functools.lru_cache(maxsize=64)
def _item_bytes(dtype: str) -> int:
    """Bytes of an element; TypeError for an unknown dtype."""
    return _windrow._tensor_of_bytes(bytes(16), dtype, (1,)).nbytes


def _type_and_bytes(dtype: Any, shape: Any, what: str) -> Tuple[Tuple[int, ...], int]:
    """The shape, and the bytes of a tensor of it; refuses what is none, and more than 2**63 - 1 bytes."""
    if not isinstance(dtype, str) or len(dtype) > 40 or not isinstance(shape, list) or len(shape) > 64:
        raise ValueError(f"{what}: expected the name of a dtype and a list of at most 64 extents")
    try:
        total = most = _item_bytes(dtype)
    except TypeError as error:
        raise ValueError(f"{what}: {error}") from None
    extents = tuple(_number(extent, f"{what}: shape") for extent in shape)
    for extent in extents:
        total, most = total * extent, most * max(extent, 1)
    if most > _MOST:
        raise ValueError(f"{what}: a tensor of shape {_short(extents)} has more than 2**63 - 1 bytes")
    return extents, total


def _leaf_of(given: Any, position: int) -> LeafPlace:
    """A leaf, and a piece that lies within its tensor; refuses anything else."""
    what = f"leaf {position}"
    if not isinstance(given, dict) or not isinstance(given.get("path"), str):
        raise ValueError(f"{what}: expected path, dtype, shape and offset")
    shape, nbytes = _type_and_bytes(given.get("dtype"), given.get("shape"), what)
    offset = _number(given.get("offset"), f"{what}: offset")
    piece = given.get("piece")
    if piece is not None:
        if not isinstance(piece, list) or len(piece) != 3:
            raise ValueError(f"{what}: expected a piece as its first byte, dtype and shape")
        start, (whole, total) = _number(piece[0], f"{what}: piece"), _type_and_bytes(piece[1], piece[2], what)
        if given["dtype"] != "uint8" or len(shape) != 1 or start + nbytes > total:
            raise ValueError(f"{what}: a piece is bytes within its tensor")
        piece = (start, piece[1], whole)
    return LeafPlace(given["path"], given["dtype"], shape, offset, nbytes, piece)


def _check_apart(leaves: Sequence[LeafPlace], nbytes: int) -> None:
    """Refuses leaves that end outside of the buffer, or that share bytes without being the same."""
    last: Optional[LeafPlace] = None
    for leaf in sorted(leaves, key=lambda leaf: (leaf.offset, leaf.nbytes)):
        if leaf.offset + leaf.nbytes > nbytes:
            raise ValueError(f'leaf "{leaf.path}" ends at byte {leaf.offset + leaf.nbytes} of {nbytes}')
        if not leaf.nbytes:
            continue
        if last is not None and leaf.offset < last.offset + last.nbytes and leaf[1:] != last[1:]:
            raise ValueError(f'leaf "{leaf.path}" shares bytes with leaf "{last.path}"')
        last = leaf


def _checked_nodes(given: Sequence[Any], num_leaves: int) -> List[Node]:
    """The nodes of one tree of this many leaves, each container before its children; refuses anything else."""
    nodes: List[Node] = []
    due = 1
    for node in given:
        due -= 1
        if due < 0:
            break
        if node == LEAF or node is None:
            num_leaves -= node is not None
            nodes.append(node)
            continue
        kind, of = node if isinstance(node, list) and len(node) == 2 else (None, None)
        if kind == "dict" and isinstance(of, list):
            if not all(isinstance(key, (str, int, float, bool, type(None))) for key in of) or len(set(of)) != len(of):
                raise ValueError("tree: a dict whose keys are no keys, or not distinct")
            nodes.append(("dict", tuple(of)))
            due += len(of)
        elif kind in ("list", "tuple"):
            length = _number(of, f"tree: the length of a {kind}")
            nodes.append((kind, length))
            due += length
        else:
            raise ValueError(f"tree: expected a leaf, dict, list or tuple, got {_short(node)}")
    if due or num_leaves or len(nodes) != len(given):
        raise ValueError("tree: another number of entries or leaves than its containers have")
    return nodes


# trees


def nodes_of(structure: Any) -> List[Node]:
    """The leaves and containers of a tree as a layout has them."""
    nodes: List[Node] = []
    for node in structure.nodes():
        if node is None:
            nodes.append(LEAF)
        elif isinstance(node, list):
            nodes.append(("dict", tuple(node)))
        else:
            nodes.append(("tuple" if node[1] else "list", node[0]))
    return nodes


def plain_tree(nodes: Sequence[Node], leaves: Sequence[Any]) -> Any:
    """The tree of these leaves in dicts, lists and tuples, with None for the leaves that are elsewhere."""
    made: List[Any] = []
    position = len(leaves)
    for node in reversed(nodes):
        if node == LEAF:
            position -= 1
            made.append(leaves[position])
        elif node is None:
            made.append(None)
        else:
            kind, of = node
            first = len(made) - (len(of) if kind == "dict" else of)
            children = made[first:][::-1]
            del made[first:]
            made.append(dict(zip(of, children)) if kind == "dict" else tuple(children) if kind == "tuple" else children)
    return made[0]
