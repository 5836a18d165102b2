"""Batches from Hugging Face `datasets`, in the memory of their Arrow tables.

    dataset = dataset.with_format("arrow")
    for table in dataset.iter(batch_size=64):
        batch = windrow.hf.collate_columns(table, {"input_ids": wr.Pad(mask="real")})

A table is taken from anything with the Arrow PyCapsule interface, so neither `datasets` nor pyarrow is imported here.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Optional

import windrow as wr
from windrow._fields import check, give
from windrow._leaves import named_fields

__all__ = ["collate_columns"]


def collate_columns(
    table: Any,
    spec: Any = None,
    *,
    columns: Optional[Iterable[str]] = None,
    return_tensors: str = "pt",
    **common: Any,
) -> Dict[str, Any]:
    """The rows of a table as one batch: a flat dict of tensors, as models of transformers take them.

    `windrow.collate` with named results: what a batch has besides its data is an entry of its own, as
    ``<name>_lengths``, ``<name>_offsets``, ``<name>_mask`` and ``<name>_batch_index``. Columns of strings and bytes are
    lists. It pickles as a ``collate_fn`` with ``functools.partial``.

    Args:
        table: what ``dataset.with_format("arrow")`` gives for a slice, a list of indices or ``iter(batch_size=...)``; or
            another Arrow table or record batch.
        spec: column to `windrow.Pad` and the like, with globs; columns without an entry are stacked.
        columns: names of the columns to take; None: all. The table has ``select`` then, as pyarrow's and polars' have.
        return_tensors: ``"pt"`` or ``"np"``.
        common: as for `windrow.stack`.

    Returns:
        dict: by column; a struct is a dict of its fields.

    Raises:
        DTypeError: for a null, a dictionary or a column without numbers, with ``.path`` the column and ``.index`` the row.
        ShapeError: for rows of several lengths in a column that is stacked. ValueError: for a spec that matches no column,
        and for two results of one name. TypeError: for what is no Arrow table.

    Example:
        >>> import pyarrow as pa, windrow as wr
        >>> from windrow.hf import collate_columns
        >>> rows = pa.table({"input_ids": [[5, 6, 7], [8]], "label": [0, 1], "text": ["a", "b"]})
        >>> batch = collate_columns(rows, {"input_ids": wr.Pad(mask="real")})
        >>> batch["input_ids"].tolist(), batch["input_ids_mask"].tolist(), batch["label"].tolist(), batch["text"]
        ([[5, 6, 7], [8, 0, 0]], [[True, True, True], [True, False, False]], [0, 1], ['a', 'b'])
    """
    check(return_tensors)
    if columns is not None:
        table = table.select(list(columns))
    batch = wr.collate(table, spec, **common)
    if not isinstance(batch, dict):
        raise TypeError(f"expected a table of columns, got a single one: {type(table).__name__}; wr.collate takes it")
    return _named(batch, return_tensors)


def _named(batch: Dict[str, Any], return_tensors: str) -> Dict[str, Any]:
    """Batches of a tree as tensors, each field under a name of its own."""
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
