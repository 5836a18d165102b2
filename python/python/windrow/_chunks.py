"""Arrow columns of many short chunks, which cost more to hand out one by one than to copy."""

from __future__ import annotations

from typing import Any

# A chunk costs its library some 0.5 us to return, and 3 us where it divides a table: as long as to copy these bytes.
_MANY, _SHORT_BYTES = 16, 4096
_NUMBERS = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "halffloat", "float", "double"}


def joined(data: Any) -> Any:
    """A column or a table of pyarrow or polars with one chunk in place of many short ones; all others as they are."""
    library = type(data).__module__.partition(".")[0]
    if library == "polars":
        count = data.n_chunks()
        return data.rechunk() if count >= _MANY and data.estimated_size() <= count * _SHORT_BYTES else data
    if library != "pyarrow":
        return data
    import pyarrow as pa

    if isinstance(data, pa.ChunkedArray):
        return _column(data)
    if not isinstance(data, pa.Table) or not data.num_columns or data.column(0).num_chunks < _MANY:
        return data
    return pa.Table.from_arrays([_column(column) for column in data.columns], schema=data.schema)


def _column(column: Any) -> Any:
    """A chunked array of pyarrow, by the rule of `joined`."""
    import pyarrow as pa

    count = column.num_chunks
    if count < _MANY:
        return column
    if str(column.type) in _NUMBERS and not column.null_count:
        is_short = len(column) * column.type.byte_width <= count * _SHORT_BYTES
        # Ten times as fast as to join them.
        return pa.array(column.to_numpy()) if is_short else column
    # A buffer that several chunks share is counted once.
    some = range(0, count, count // 8)
    if column.get_total_buffer_size() > count * _SHORT_BYTES or max(column.chunk(i).nbytes for i in some) > 4 * _SHORT_BYTES:
        return column
    try:
        return pa.Table.from_arrays([column], [""]).combine_chunks().column(0)
    except pa.ArrowNotImplementedError:
        return column
