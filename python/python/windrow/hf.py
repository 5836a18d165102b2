"""Batches from Hugging Face `datasets`, in the memory of their Arrow tables.

    spec = {"input_ids": wr.Pad(mask="real")}
    batch = windrow.hf.collate_columns(dataset, spec, rows=[5, 2, 7])

    for table in dataset.with_format("arrow").iter(batch_size=64):
        batch = windrow.hf.collate_columns(table, spec)

A table is taken from anything with the Arrow PyCapsule interface, so neither `datasets` nor pyarrow is imported here.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, Iterable, Optional, Sequence, Union

import windrow as wr
from windrow import _windrow
from windrow._fields import check, give, refusal
from windrow._leaves import named_fields
from windrow._worker_results import for_workers

__all__ = ["collate_columns"]


@for_workers
def collate_columns(
    table: Any,
    spec: Any = None,
    *,
    rows: Optional[Union[slice, Sequence[int]]] = None,
    columns: Optional[Iterable[str]] = None,
    return_tensors: str = "pt",
    **common: Any,
) -> Dict[str, Any]:
    """The rows of a table as one batch: a flat dict of tensors, as models of transformers take them.

    `windrow.collate` with named results: what a batch has besides its data is an entry of its own, as
    ``<name>_lengths``, ``<name>_offsets``, ``<name>_mask`` and ``<name>_batch_index``. Columns of strings and bytes are
    lists. It pickles as a ``collate_fn`` with ``functools.partial``.

    Args:
        table: a `datasets.Dataset` as it is, whatever its format: its table is read without it, shuffled or selected rows
            through the dataset's indices. Or what ``dataset.with_format("arrow")`` gives for a slice, a list of indices or
            ``iter(batch_size=...)``; or another Arrow table or record batch.
        rows: of a dataset, a slice, a range, or a list or array of indices; None: all.
        spec: column to `windrow.Pad` and the like, with globs; columns without an entry are stacked.
        columns: list of the names of the columns to take; None: all, or those of the dataset's format. It needs a table with
            ``select``, such as those of pyarrow and polars.
        return_tensors: ``"pt"`` or ``"np"``.
        common: as for `windrow.stack`.

    Returns:
        dict: by column; a struct is a dict of its fields, and a feature such as ``Array2D`` has its shape.

    Raises:
        DTypeError: for a null, a dictionary or a column without numbers, with ``.path`` the column and ``.index`` the row.
        ShapeError: for rows of several lengths in a column that is stacked.
        ValueError: for a spec that matches no column, and for two results of one name.
        TypeError: for an object that is not an Arrow table, for ``rows`` with anything but a dataset, for a str as ``columns``, and for a
            dataset with a transform, whose results are not in its table.
        IndexError: for a row that the dataset does not have.

    Example:
        >>> import pyarrow as pa, windrow as wr
        >>> from windrow.hf import collate_columns
        >>> rows = pa.table({"input_ids": [[5, 6, 7], [8]], "label": [0, 1], "text": ["a", "b"]})
        >>> batch = collate_columns(rows, {"input_ids": wr.Pad(mask="real")})
        >>> batch["input_ids"].tolist(), batch["input_ids_mask"].tolist(), batch["label"].tolist(), batch["text"]
        ([[5, 6, 7], [8, 0, 0]], [[True, True, True], [True, False, False]], [0, 1], ['a', 'b'])
    """
    check(return_tensors)
    if isinstance(columns, str):
        raise TypeError(f"columns must be a list of names, got {columns!r}; give [{columns!r}]")
    if _is_dataset(table):
        columns = table._format_columns if columns is None else columns
        table = _rows_of(table, slice(None) if rows is None else rows)
    elif rows is not None:
        raise TypeError(f"rows= are those of a datasets.Dataset, got {type(table).__name__}; take them from the table before")
    elif not isinstance(table, wr.SampleList) and not _windrow._is_arrow(table):
        raise TypeError(f"expected an Arrow table or a datasets.Dataset, got {type(table).__name__}; wr.collate takes a list of rows")
    if columns is not None:
        table = table.select(list(columns))
    try:
        batch = wr.collate(table, spec, **common)
    except wr.DTypeError:
        plain = _with_fixed_arrays(table)
        if plain is None:
            raise
        batch = wr.collate(plain, spec, **common)
    if not isinstance(batch, dict):
        raise TypeError(f"expected a table of columns, got a single one: {type(table).__name__}; wr.collate takes it")
    return _named(batch, return_tensors)


def _is_dataset(table: Any) -> bool:
    datasets = sys.modules.get("datasets")
    return datasets is not None and isinstance(table, datasets.Dataset)


def _rows_of(dataset: Any, rows: Any) -> Any:
    """A table of rows of a dataset: what the dataset itself gives in the format "arrow", without the work of its formats."""
    if dataset._format_type == "custom":
        raise TypeError("the dataset has a transform, whose results are not in its table; wr.collate takes what dataset[rows] gives")
    table, indices = dataset.data, dataset._indices
    count = len(dataset)
    if isinstance(rows, slice):
        rows = range(*rows.indices(count))
    is_piece = isinstance(rows, range) and rows.step == 1 and 0 <= rows.start <= rows.stop <= count
    if is_piece and indices is None:
        return table.table if len(rows) == count else table.fast_slice(rows.start, len(rows))
    rows = _positions(rows, count)
    if not len(rows):
        return table.table.slice(0, 0)
    return table.fast_gather(rows if indices is None else _mapped(indices, rows))


def _positions(rows: Any, count: int) -> Any:
    """Indices of rows from 0 on, in place of negative ones too; TypeError for others than a list of integers, IndexError out of range."""
    import numpy as np

    positions = np.asarray(rows)
    if positions.ndim != 1 or len(positions) and positions.dtype.kind not in "iu":
        raise TypeError(f"rows must be a slice or indices, got {type(rows).__name__} of {positions.dtype}")
    # Before a cast, which would make large unsigned ones negative.
    outside = (positions >= count) | (positions.astype(np.int64) < -count if positions.dtype.kind == "i" else False)
    if outside.any():
        index = int(outside.argmax())
        raise IndexError(f"rows[{index}]: row {positions[index]} of a dataset of {count} rows")
    positions = positions.astype(np.int64)
    return np.where(positions < 0, positions + count, positions)


def _mapped(indices: Any, positions: Any) -> Any:
    """The rows that a dataset's indices have at these positions; only those of their batches are looked at."""
    import numpy as np

    batches, offsets = indices._batches, indices._offsets
    batch_of = np.searchsorted(offsets, positions, side="right") - 1
    rows = np.empty(len(positions), np.int64)
    for batch in np.unique(batch_of):
        is_in_batch = batch_of == batch
        rows[is_in_batch] = batches[batch].column(0).to_numpy()[positions[is_in_batch] - offsets[batch]]
    return rows


def _with_fixed_arrays(table: Any) -> Any:
    """The table with its columns of `datasets.Array2D` and the like as lists of fixed size in the same memory; None if it has none."""
    datasets = sys.modules.get("datasets")
    if datasets is None or not hasattr(table, "set_column"):
        return None
    kind, found = datasets.features.features._ArrayXDExtensionType, None
    for position, field in enumerate(table.schema):
        if isinstance(field.type, kind):
            arrays = _fixed_arrays(table.column(position), field)
            found = (table if found is None else found).set_column(position, field.name, arrays)
    return found


def _fixed_arrays(column: Any, field: Any) -> Any:
    """A column of arrays of one shape, or of several extents of dim 0, whose type has nested lists of any length. DTypeError for a
    null, ShapeError for another extent than the type says."""
    import numpy as np
    import pyarrow as pa

    parts, start, (first, *rest) = [], 0, field.type.shape
    for part in column.chunks:
        values, bounds, lengths = part.storage, None, (first, *rest)
        rows = np.arange(len(part))
        for depth, length in enumerate(lengths):
            if values.null_count:
                row = start + int(rows[values.is_null().to_numpy(zero_copy_only=False).argmax()])
                raise refusal(wr.DTypeError, row, field.name, "a value", "null", "fill or drop the nulls")
            sizes = values.value_lengths().to_numpy(zero_copy_only=False)
            if length is None:
                bounds = np.append(0, np.cumsum(sizes))
            elif (sizes != length).any():
                at = int((sizes != length).argmax())
                raise refusal(wr.ShapeError, start + int(rows[at]), field.name, f"{length} entries in dim {depth}", int(sizes[at]))
            rows, values = np.repeat(rows, sizes), values.flatten()
        for length in reversed(rest):
            values = pa.FixedSizeListArray.from_arrays(values, length)
        if bounds is None:
            parts.append(pa.FixedSizeListArray.from_arrays(values, first))
        else:
            parts.append(pa.LargeListArray.from_arrays(pa.array(bounds, pa.int64()), values))
        start += len(part)
    return pa.chunked_array(parts)


def _named(batch: Dict[str, Any], return_tensors: str) -> Dict[str, Any]:
    """Batches of a tree as tensors, each field under a name of its own; ValueError for two of one name. Structs stay dicts."""
    results: Dict[str, Any] = {}
    for name, leaf in batch.items():
        if isinstance(leaf, wr.Batch):
            fields = [(key, give(field, return_tensors)) for key, field in named_fields(name, leaf)]
        else:
            fields = [(name, _named(leaf, return_tensors) if isinstance(leaf, dict) else leaf)]
        for key, value in fields:
            if key in results or key != name and key in batch:
                raise ValueError(f"two results are named {key!r}; rename a column")
            results[key] = value
    return results
