"""Columns of a batch as samples, in the memory that they are in."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping, NoReturn, Optional

import numpy as np
import pyarrow as pa

import windrow as wr
from windrow import _windrow

_CURE = "leave the column out (columns=) or convert it first"


def refuse(path: str, row: int, expected: str, got: str, hint: str) -> NoReturn:
    """Raises a DTypeError that names the column and the row."""
    error = wr.DTypeError(f"sample {row} at \"{path}\": expected {expected}, got {got}; {hint}")
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
        TypeError: for a batch that is neither.
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
    columns: Dict[str, wr.SampleList] = _windrow._arrow_columns(batch.select(wanted))
    return columns


def _from_numpy(column: Any, path: str) -> wr.SampleList:
    """The samples of a NumPy column, rows of objects too; DTypeError for what are no numbers."""
    array = np.asarray(column)
    if array.dtype.kind == "O":
        for row, item in enumerate(array):
            if item is None or isinstance(item, (str, bytes)):
                refuse(path, row, "an array of numbers", type(item).__name__, _CURE)
        return wr.SampleList(list(array))
    if array.dtype.kind not in "biufc":
        refuse(path, 0, "numbers", str(array.dtype), _CURE)
    return wr.SampleList(array)
