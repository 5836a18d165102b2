"""Batches of images of unequal size, graphs, keyed features and requests of an inference server.

`pad_images`, `concat_graphs` and `keyed_jagged` work where the samples are, on a device by one launch; `batch_input` takes
them on the host. They need NumPy, and torch for ``return_tensors="pt"``.
"""

from __future__ import annotations

import array
import operator
import re
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import windrow as wr
from windrow import _windrow
from windrow._fields import check, column_of, give, numpy, refusal, row, with_hint
from windrow._flattener import located
from windrow._padding import rows_of
from windrow._worker_results import for_workers
from windrow.plan import int_of

if TYPE_CHECKING:
    import numpy as np

__all__ = ["BATCH_INPUT_KINDS", "KeyedJagged", "PaddedImages", "batch_input", "concat_graphs", "keyed_jagged", "pad_images"]


class PaddedImages(NamedTuple):
    """Images of one size, the mask that is True on padding, and the sizes they had."""

    tensors: Any
    mask: Any
    sizes: List[Tuple[int, int]]


@for_workers
def pad_images(
    images: Sequence[Any],
    *,
    multiple_of: int = 1,
    value: float = 0,
    channels_last: bool = False,
    transform: Optional[wr.Transform] = None,
    dtype: Any = None,
    return_tensors: str = "pt",
) -> PaddedImages:
    """Pads images at the right and bottom to the largest height and width, as DETR does.

    Args:
        images: array-likes ``[C, H, W]``, or ``[H, W, C]`` with ``channels_last``.
        multiple_of: height and width in pixels are rounded up to it; the pixels added count as padding.
        value: of padding; it is not transformed.
        transform, dtype: as for `windrow.stack`.
        return_tensors: ``"pt"`` or ``"np"``.

    Returns:
        PaddedImages: ``tensors`` ``[N, ...]``; ``mask`` bool ``[N, H, W]``, True on padding, in the order that ``transform`` gives H and W;
        ``sizes`` a list of ``(height, width)``.

    Raises:
        ShapeError: the images differ in channels or rank.
        ValueError: there are no images, or the first has not three dims.

    Example:
        >>> import numpy as np
        >>> from windrow.structure import pad_images
        >>> batch = pad_images([np.ones((3, 2, 5), "f4"), np.ones((3, 4, 3), "f4")], multiple_of=4)
        >>> tuple(batch.tensors.shape), batch.sizes
        ((2, 3, 4, 8), [(2, 5), (4, 3)])
    """
    check(return_tensors)
    if transform is not None and not isinstance(transform, wr.Transform):
        raise TypeError(f"transform must be a wr.Transform, got {transform!r}; wr.pad takes others, and gives their scales")
    images = rows_of(images) if hasattr(images, "__len__") else list(images)
    try:
        first = wr.asarray(images[0]).shape if len(images) else (0, 0, 0)
    except (TypeError, ValueError, BufferError):
        first = (0, 0, 0)  # No array: the call below says so.
    if len(first) != 3:
        raise ValueError(f"sample 0: expected an image of three dims, got shape {first}")
    dims = (0, 1) if channels_last else (1, 2)
    try:
        batch = wr.pad(
            images, dims=dims, multiple_of=multiple_of, value=value, mask="pad", transform=transform, dtype=dtype
        )
    except wr.ShapeError as error:
        raise with_hint(error, {"dims=": "images of one batch have equally many channels"}) from None
    if batch.device in ("cpu", "pinned"):
        sizes = list(map(tuple, numpy(batch.lengths).tolist()))
    else:
        # The lengths are on the device, where they would have to be waited for.
        shapes = [wr.asarray(image).shape for image in images]
        sizes = [(shape[dims[0]], shape[dims[1]]) for shape in shapes]
    return PaddedImages(give(batch, return_tensors), give(batch.mask, return_tensors), sizes)


Increment = Union[str, int, Callable[[Mapping[str, Any]], int]]


@for_workers
def concat_graphs(
    graphs: Sequence[Mapping[str, Any]],
    *,
    cat_dims: Optional[Mapping[str, int]] = None,
    increments: Optional[Mapping[str, Increment]] = None,
    num_nodes: Union[str, Callable[[Mapping[str, Any]], int]] = "x",
    follow_batch: Sequence[str] = (),
    return_tensors: str = "pt",
) -> Dict[str, Any]:
    """Joins graphs to one graph of disconnected parts, as PyTorch Geometric batches ``Data``.

    Args:
        graphs: mappings of array-likes, such as ``Data.to_dict()``, or an Arrow table of them; an entry without dims becomes one of
            ``[N]``.
        cat_dims: by key, the dim that an entry is joined along; -1 for ``face`` and keys with ``index``
            in their name, else 0.
        increments: by key, how much each graph raises the values of the graphs after it: a number, ``"num_nodes"``, or a function of
            the graph. Keys without an entry follow `Data.__inc__` of PyTorch Geometric: for an array whose key contains ``batch`` its
            largest value plus 1, for ``face`` and keys that contain ``index`` ``"num_nodes"``, else 0. Raised bools become int64, and
            Python floats float32, as with `Data`.
        num_nodes: the key whose length is a graph's number of nodes, or a function of a graph.
        follow_batch: keys that get ``<key>_batch`` and ``<key>_ptr`` of their own.
        return_tensors: ``"pt"`` or ``"np"``.

    Returns:
        dict: by key; ``batch`` int64, the graph of each node, and ``ptr`` int64 ``[N + 1]``.

    Entries on a device are joined and raised there, all by one launch; ``batch`` and ``ptr`` are there too. Sums wrap around
    there, as torch's do. A key with ``batch`` in its name is copied to the host first, for its largest values.

    Raises:
        ShapeError, DTypeError: entries do not fit together, are lists of mixed numbers, or their raised values do not
            fit their dtype; on a device, floats that have to be raised.
        DeviceError: entries are on several devices.
        KeyError: an entry is missing.
        TypeError: a graph is not a mapping, ``num_nodes`` is neither a key nor a function, or a function gives no int.
        ValueError: there are no graphs, a number of nodes is negative, ``cat_dims`` or ``increments`` have a key that the first graph has
            not, ``follow_batch`` gives the name of an entry, or an increment is beyond int64 or another text than ``"num_nodes"``.

    Example:
        >>> import numpy as np
        >>> from windrow.structure import concat_graphs
        >>> ring = {"x": np.ones((3, 1)), "edge_index": np.array([[0, 1, 2], [1, 2, 0]])}
        >>> batch = concat_graphs([ring, ring])
        >>> batch["edge_index"].tolist(), batch["batch"].tolist()
        ([[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3]], [0, 0, 0, 1, 1, 1])
    """
    check(return_tensors)
    graphs = rows_of(graphs) if hasattr(graphs, "__len__") else list(graphs)
    if not len(graphs):
        raise ValueError("cannot assemble an empty list of graphs")
    _check_mappings(graphs)
    keys = list(graphs[0])
    for argument, names in (("cat_dims", cat_dims or {}), ("increments", increments or {})):
        if unknown := [key for key in names if key not in keys]:
            raise ValueError(f"{argument} has {unknown[0]!r}, which sample 0 has not; it has {', '.join(map(repr, keys))}")
    if taken := [name for key in follow_batch for name in (f"{key}_batch", f"{key}_ptr") if name in keys]:
        raise ValueError(f"follow_batch gives {taken[0]!r}, which is an entry of the graphs: rename theirs")
    dims = {key: (cat_dims or {}).get(key, -1 if _is_index(key) else 0) for key in keys}
    steps = {key: how for key in keys if (how := _steps_of(key, graphs, increments or {})) is not None}
    if not isinstance(num_nodes, str) and not callable(num_nodes):
        raise TypeError(f"num_nodes must be a key or a function of a graph, got {num_nodes!r}")
    nodes = _whole("num_nodes", num_nodes, graphs) if callable(num_nodes) else num_nodes
    try:
        joined = _windrow._join_graphs(graphs, dims, steps, nodes, list(follow_batch))
    except wr.DTypeError as error:
        raise with_hint(error, {"spec=": "entries of one key have one dtype"}) from None
    return {key: give(field, return_tensors) for key, field in joined.items()}


def _check_mappings(samples: Sequence[Any], what: str = "") -> None:
    """TypeError for a sample that is no mapping."""
    if all(issubclass(cls, Mapping) for cls in set(map(type, samples))):
        return
    index, sample = next((index, sample) for index, sample in enumerate(samples) if not isinstance(sample, Mapping))
    hint = "; give its to_dict()" if hasattr(sample, "to_dict") else ""
    text = f"{what}sample {index}: expected a mapping of array-likes, got {type(sample).__name__}{hint}"
    raise located(TypeError(text), index, "")


def _steps_of(
    key: str, graphs: Sequence[Mapping[str, Any]], increments: Mapping[str, Increment]
) -> Union[str, List[int], None]:
    """The increment that each graph adds to later ones: ``"nodes"``, ``"ends"`` (its largest value plus 1), a number for each
    graph but the last, or None."""
    if key in increments:
        increment = increments[key]
        if callable(increment):
            return _whole("increments", increment, graphs[:-1])
        if increment == "num_nodes":
            return "nodes"
        if isinstance(increment, str):
            raise ValueError(f"increments[{key!r}] must be 'num_nodes', an int or a function of the graph, got {increment!r}")
        return [int_of(f"increments[{key!r}]", increment, -(2**63))] * (len(graphs) - 1)
    if "batch" in key and not isinstance(graphs[0][key], (int, float)):
        return "ends"
    return "nodes" if _is_index(key) else None


def _whole(argument: str, function: Callable[[Mapping[str, Any]], Any], graphs: Sequence[Mapping[str, Any]]) -> List[int]:
    """What a function gives for each graph; TypeError for what is no whole number."""
    numbers: List[int] = []
    for index, graph in enumerate(graphs):
        number = function(graph)
        try:
            numbers.append(operator.index(number))
        except (TypeError, RuntimeError) as error:
            raise located(TypeError(f"sample {index}: {argument} gives {number!r} in place of an int"), index, "") from error
    return numbers


def _is_index(key: str) -> bool:
    return "index" in key or key == "face"


class KeyedJagged(NamedTuple):
    """Lists of values by key and sample, one after the other: all samples of the first key come first.

    The arguments of torchrec's ``KeyedJaggedTensor``, in its order but for ``stride``, the batch size.
    """

    keys: List[str]
    values: Any
    weights: Any
    lengths: Any
    offsets: Any
    stride: int


@for_workers
def keyed_jagged(
    samples: Sequence[Mapping[str, Any]],
    keys: Optional[Sequence[str]] = None,
    *,
    weights: Optional[Sequence[Mapping[str, Any]]] = None,
    dtype: Any = None,
    return_tensors: str = "pt",
) -> KeyedJagged:
    """Gathers keyed lists of unequal length in key-major order.

    Args:
        samples: mappings from a key to a list or an array-like of one dim. Lists of Python's floats are float32, of its ints, or
            of these and others of bools, int64; NumPy's scalars keep their dtype.
        keys: the keys to take, in this order; None: those of the first sample.
        weights: mappings like ``samples``, with a weight for each value.
        dtype: dtype of the values; None: theirs.
        return_tensors: ``"pt"`` or ``"np"``.

    Returns:
        KeyedJagged: ``values`` ``[total]``, ``weights`` like it or None, ``lengths`` int64
        ``[len(keys) * N]``, ``offsets`` int64 with one more.

    Raises:
        ShapeError: there are not as many weights as values.
        DTypeError, LayoutError, DeviceError: values do not fit together, require grad, or are in several places.
        KeyError: an entry is missing.
        TypeError: a sample is no mapping, or an entry no list of numbers.
        ValueError: there are no samples, or no keys.

    Example:
        >>> from windrow.structure import keyed_jagged
        >>> batch = keyed_jagged([{"user": [1, 2], "item": [7]}, {"user": [3], "item": []}])
        >>> batch.values.tolist(), batch.lengths.tolist()
        ([1, 2, 3, 7], [2, 1, 1, 0])
    """
    check(return_tensors)
    samples, weights = rows_of(samples), weights if weights is None else rows_of(weights)
    if not len(samples):
        raise ValueError("cannot assemble an empty list of samples")
    _check_mappings(samples)
    _check_mappings(() if weights is None else weights, "weights of ")
    keys = list(samples[0] if keys is None else keys)
    if not keys:
        raise ValueError("no keys: there is nothing to gather")

    rows, weighed = _rows_of(samples, keys), None
    others = None
    if weights is not None:
        if len(weights) != len(samples):
            raise wr.ShapeError(f"expected weights of {len(samples)} samples, got {len(weights)}")
        others = _rows_of(weights, keys)
        _check_weights(rows, others, keys, len(samples))
    try:
        if others is None:
            values = wr.ragged(rows, dtype=dtype)
        else:
            spec = {"values": wr.Ragged(dtype=dtype), "weights": wr.Ragged()}
            both = wr.collate([{"values": row, "weights": other} for row, other in zip(rows, others)], spec=spec)
            values, weighed = both["values"], both["weights"]
    except (wr.DTypeError, wr.ShapeError, wr.LayoutError, wr.DeviceError, TypeError) as error:
        raise _at_key(error, keys, len(samples)) from None
    return KeyedJagged(
        keys,
        give(values, return_tensors),
        None if weighed is None else give(weighed, return_tensors),
        give(values.lengths, return_tensors),
        give(values.offsets, return_tensors),
        len(samples),
    )


def _rows_of(trees: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> List[Any]:
    """The entries of all samples, key by key; empty lists as such, which take the dtype of their neighbours, where any is not empty; lists
    of bools as int64, unless all values are bools."""
    rows = [values for key in keys for values in column_of(trees, key)]
    bools = [type(values) is memoryview and values.format == "?" for values in rows]
    others = [values for is_bool, values in zip(bools, rows) if not is_bool and _length(values) != 0]
    if any(bools) and not all(str(getattr(values, "dtype", "")).endswith("bool") for values in others):
        rows = [array.array("q", values) if is_bool else values for is_bool, values in zip(bools, rows)]
    empty = [type(values) is array.array and not len(values) for values in rows]
    return rows if all(empty) else [[] if is_empty else values for values, is_empty in zip(rows, empty)]


def _at_key(error: Any, keys: Sequence[str], num_samples: int) -> Any:
    """The same error of a sample and a key in place of a row; an error of no row as it is."""
    if getattr(error, "path", None) not in ("", "values", "weights") or error.index is None:
        return error
    column, index = divmod(error.index, num_samples)
    if not hasattr(error, "expected"):
        place = f'sample {index} at "{keys[column]}"'
        text = re.sub(f'^sample {error.index}( at "{error.path}")?', lambda _: place, str(error))
        return located(type(error)(text), index, keys[column])
    hint = "values of all keys have one dtype, and so have weights" if isinstance(error, wr.DTypeError) else ""
    return refusal(type(error), index, keys[column], error.expected, error.got, hint)


def _check_weights(rows: Sequence[Any], weights: Sequence[Any], keys: Sequence[str], num_samples: int) -> None:
    """ShapeError for weights that are not as many as the values they are of."""
    for position, (row, other) in enumerate(zip(rows, weights)):
        if (count := _length(row)) != (got := _length(other)):
            column, index = divmod(position, num_samples)
            hint = "there is one for each value"
            raise refusal(wr.ShapeError, index, keys[column], f"{count} weights", type(other).__name__ if got is None else got, hint)


def _length(values: Any) -> Optional[int]:
    """The number of values; None for an array without dims, which the call itself refuses."""
    shape = getattr(values, "shape", None)
    if shape is None:
        return len(values) if hasattr(values, "__len__") else None
    return int(shape[0]) if len(shape) else None


BATCH_INPUT_KINDS = (
    "BATCH_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
    "BATCH_ITEM_SHAPE",
    "BATCH_ITEM_SHAPE_FLATTEN",
)


def batch_input(kind: str, requests: Sequence[Any], *, dtype: str = "int32") -> np.ndarray[Any, Any]:
    """A ``batch_input`` of Triton Inference Server for requests that are joined without padding.

    Args:
        kind: one of ``BATCH_INPUT_KINDS``.
        requests: the source input of each request, array-likes ``[batch, *item]``.
        dtype: of the result; ``"int32"`` or ``"float32"``, as the model's configuration says.

    Returns:
        numpy.ndarray: of ``dtype``: counts ``[N]``, or ``[N + 1]`` with the leading zero; for ``..._AS_SHAPE`` zeros ``[max]``, of which
        only the length matters; item shapes ``[items, rank]``, or flat for ``..._FLATTEN``.

    Raises:
        ValueError: an unknown ``kind`` or ``dtype``, no requests, a request without dims, or a count above 2^31 - 1.
        ShapeError: items differ in rank.

    Example:
        >>> import numpy as np
        >>> from windrow.structure import batch_input
        >>> requests = [np.ones((1, n)) for n in (3, 1, 2)]
        >>> batch_input("BATCH_ACCUMULATED_ELEMENT_COUNT", requests).tolist()
        [3, 4, 6]
    """
    import numpy as np

    if kind not in BATCH_INPUT_KINDS:
        raise ValueError(f"kind must be one of {', '.join(BATCH_INPUT_KINDS)}, got {kind!r}")
    if dtype not in ("int32", "float32"):
        raise ValueError(f"dtype must be 'int32' or 'float32', got {dtype!r}")
    shapes = [wr.asarray(row(request, index, what="request")).shape for index, request in enumerate(requests)]
    if not shapes or not all(shapes):
        raise ValueError("requests must be array-likes [batch, *item], at least one")
    counts = np.array([np.prod(shape, dtype=np.int64) for shape in shapes])
    if kind.startswith("BATCH_ITEM_SHAPE"):
        items: List[Tuple[int, ...]] = [shape[1:] for shape in shapes for _ in range(shape[0])]
        if len({len(item) for item in items}) > 1:
            raise wr.ShapeError("requests differ in rank")
        shape = (-1,) if kind.endswith("FLATTEN") else (len(items), len(shapes[0]) - 1)
        values: Any = np.array(items, dtype=np.int64).reshape(shape)
    elif kind in ("BATCH_ELEMENT_COUNT", "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"):
        values = counts
    else:
        values = np.cumsum([0, *counts] if kind.endswith("WITH_ZERO") else counts)
    if values.size and values.max() > np.iinfo(np.int32).max:
        raise ValueError(f"{kind}: {values.max()} is beyond 2^31 - 1")
    return np.zeros(int(values.max()), dtype) if kind.endswith("AS_SHAPE") else values.astype(dtype)
