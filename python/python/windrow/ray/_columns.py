"""Columns of a batch as samples, in the memory that they are in."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, NoReturn, Optional, Tuple

import numpy as np
import pyarrow as pa

import windrow as wr

# Ray's extension types by the names that they are stored under.
_RAY_TENSORS = ("ray.data.arrow_tensor", "ray.data.arrow_tensor_v2")
_RAY_RAGGED_TENSOR = "ray.data.arrow_variable_shaped_tensor"
_ARROW_TENSOR = "arrow.fixed_shape_tensor"

_CURE = "leave the column out (columns=) or convert it before"


def refuse(path: str, row: int, expected: str, got: str, cure: str) -> NoReturn:
    """Raises what names the column and the row."""
    error = wr.DTypeError(f"row {row} of column {path!r}: expected {expected}, got {got}; {cure}")
    error.index, error.path, error.expected, error.got = row, path, expected, got
    raise error


def columns_of(batch: Any, names: Optional[Iterable[str]]) -> Dict[str, wr.SampleList]:
    """The columns of a batch by name; fields of structs by their path, joined by a dot.

    Args:
        batch: a ``pyarrow.Table`` or a mapping of names to NumPy arrays.
        names: columns to take; None: all.

    Raises:
        KeyError: for a name that is no column.
        DTypeError: for a column that does not hold numbers, and for a null, naming column and row.
    """
    is_table = isinstance(batch, pa.Table)
    if not is_table and not isinstance(batch, Mapping):
        raise TypeError(f"expected a pyarrow.Table or a dict of arrays, got {type(batch).__name__}")
    there = batch.column_names if is_table else list(batch)
    wanted = there if names is None else list(names)
    for name in wanted:
        if name not in there:
            raise KeyError(f"no column {name!r}; there are {', '.join(map(repr, there))}")
    if not is_table:
        return {name: _from_numpy(batch[name], name) for name in wanted}
    table = batch.select(wanted)
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return {name: _from_arrow(column, name) for name, column in zip(table.column_names, table.columns)}


def _from_numpy(column: Any, path: str) -> wr.SampleList:
    array = np.asarray(column)
    if array.dtype.kind == "O":
        for row, item in enumerate(array):
            if item is None or isinstance(item, (str, bytes)):
                refuse(path, row, "an array of numbers", type(item).__name__, _CURE)
        return wr.SampleList(list(array))
    if array.dtype.kind not in "biufc":
        refuse(path, 0, "numbers", str(array.dtype), _CURE)
    return wr.SampleList(array)


def _from_arrow(column: pa.ChunkedArray, path: str) -> wr.SampleList:
    samples: Optional[wr.SampleList] = None
    first = 0
    for chunk in column.chunks:
        if len(chunk) == 0:
            continue
        rows = _Chunk(path, first).samples(chunk)
        first += len(chunk)
        if samples is None:
            samples = rows
        else:
            samples.extend(rows)
    return wr.SampleList() if samples is None else samples


class _Chunk:
    """One chunk of a column, whose first row is row `first` of the batch."""

    def __init__(self, path: str, first: int) -> None:
        self.path = path
        self.first = first

    def samples(self, array: pa.Array) -> wr.SampleList:
        """Row for row, without a copy; but for bools, which Arrow packs into bits."""
        self.check_nulls(array, np.arange(len(array) + 1))
        name = getattr(array.type, "extension_name", None)
        if name == _RAY_RAGGED_TENSOR:
            return self.ragged_tensors(array)
        if name in _RAY_TENSORS or name == _ARROW_TENSOR:
            return wr.SampleList(self.tensors(array))
        if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
            values, offsets = self.lists(array)
            return wr.SampleList.split(values, offsets)
        return wr.SampleList(self.table(array, np.arange(len(array) + 1)))

    def tensors(self, array: pa.Array) -> Any:
        """Tensors of one shape: a table of one more dim."""
        storage, shape = array.storage, tuple(array.type.shape)
        starts = np.arange(len(array) + 1) * int(np.prod(shape, dtype=np.int64))
        table = self.table(storage.flatten(), starts).reshape(len(array), *shape)
        order = getattr(array.type, "permutation", None)
        return table if order is None else table.transpose(0, *(dim + 1 for dim in order))

    def ragged_tensors(self, array: pa.Array) -> wr.SampleList:
        """Tensors whose shapes stand beside them."""
        values, offsets = self.lists(array.storage.field("data"))
        shapes = array.storage.field("shape").flatten().to_numpy()
        return wr.SampleList.split(values, offsets, shapes.reshape(len(array), array.type.ndim))

    def lists(self, array: pa.Array) -> Tuple[Any, Any]:
        """Values of all rows, and where each begins."""
        offsets = array.offsets.to_numpy()
        start, end = int(offsets[0]), int(offsets[-1])
        offsets = offsets - start
        return self.table(array.values.slice(start, end - start), offsets), offsets

    def table(self, array: pa.Array, starts: Any) -> Any:
        """Numbers, with the dims of fixed-size lists behind the first one. `starts` are the first
        element of each row, and the end."""
        shape: List[int] = [len(array)]
        self.check_nulls(array, starts)
        while pa.types.is_fixed_size_list(array.type):
            size = array.type.list_size
            array, starts = array.flatten(), starts * size
            shape.append(size)
            self.check_nulls(array, starts)
        kind = array.type
        if pa.types.is_boolean(kind):
            return array.to_numpy(zero_copy_only=False).reshape(shape)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            cure = "decode it before (dictionary_decode)" if pa.types.is_dictionary(kind) else _CURE
            refuse(self.path, self.first, "numbers, or lists or tensors of them", str(kind), cure)
        return array.to_numpy(zero_copy_only=True).reshape(shape)

    def check_nulls(self, array: pa.Array, starts: Any) -> None:
        """Refuses nulls, naming the row that the first one is in."""
        if array.null_count:
            position = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
            row = int(np.searchsorted(starts, position, side="right")) - 1
            cure = "fill or drop nulls before (pyarrow.compute.fill_null, drop_null)"
            refuse(self.path, self.first + row, "a value", "null", cure)
