"""Arrow columns and tables of many chunks, beside the same ones in a single chunk."""

import numpy as np
import pytest

import windrow as wr
from helpers import refusal
from windrow import _chunks

pa = pytest.importorskip("pyarrow", reason="SKIP: pyarrow is not installed")

COUNT = 40
CHUNKS = {
    **{name: lambda i, name=name: pa.array(np.arange(i % 3, dtype=name) + np.array(i).astype(name)) for name in ("int8", "uint64", "float16", "float64")},
    "bool": lambda i: pa.array([True, False, i % 2 == 0][: i % 4], pa.bool_()),
    "list": lambda i: pa.array([[1.0] * (i % 5), [], [float(i)]][: i % 4], pa.list_(pa.float32())),
    "large list": lambda i: pa.array([[i, 1]] * (i % 2), pa.large_list(pa.int32())),
    "list view": lambda i: pa.array([[1], [i, 3]], pa.list_view(pa.int32())),
    "fixed list": lambda i: pa.array([[i, 2]] * (i % 3), pa.list_(pa.int16(), 2)),
    "list of fixed": lambda i: pa.array([[[i, 2]] * (i % 3)], pa.list_(pa.list_(pa.int16(), 2))),
    "tensor": lambda i: pa.FixedShapeTensorArray.from_numpy_ndarray(np.full((1 + i % 2, 2, 3), i, "float32")),
    "turned tensor": lambda i: pa.FixedShapeTensorArray.from_numpy_ndarray((np.arange(6.0) + i).reshape(1, 2, 3).transpose(0, 2, 1)),
}


def same(got, want):
    assert len(got) == len(want)
    for own, other in zip(got, want):
        np.testing.assert_array_equal(own.numpy(), other.numpy(), strict=True)


@pytest.mark.parametrize("is_short", [True, False])
@pytest.mark.parametrize("case", CHUNKS)
def test_columns(monkeypatch, case, is_short):
    """Joined by the library where chunks are short, and read one by one where they are not."""
    column = pa.chunked_array([CHUNKS[case](i) for i in range(COUNT)])
    if not is_short:
        monkeypatch.setattr(_chunks, "_SHORT_BYTES", -1)
    joined = _chunks.joined(column)
    assert (getattr(joined, "num_chunks", 1) == 1) == is_short and joined.type == column.type
    (single,) = pa.table({"x": column}).combine_chunks()["x"].chunks
    same(wr.SampleList(column), wr.SampleList(single))
    same([wr.ragged(column) if "list" in case else wr.stack(column)], [wr.ragged(single) if "list" in case else wr.stack(single)])
    same(wr.SampleList(column.slice(3, 20)), wr.SampleList(single.slice(3, 20)))


def tables(count):
    texts = [f"t{i}" for i in range(count)]
    columns = {"a": list(range(count)), "b": [[float(i)] * (i % 3) for i in range(count)], "c": texts, "d": [{"e": i} for i in range(count)]}
    whole = pa.table(columns)
    return whole, pa.concat_tables([whole.slice(i, 1) for i in range(count)])


@pytest.mark.parametrize("is_short", [True, False])
def test_tables(monkeypatch, is_short):
    whole, table = tables(COUNT)
    if not is_short:
        monkeypatch.setattr(_chunks, "_SHORT_BYTES", -1)
    joined = _chunks.joined(table)
    assert joined.equals(table) and joined.schema == table.schema
    assert {column.num_chunks for column in joined.columns} == ({1} if is_short else {COUNT})
    spec = {"b": wr.Ragged()}
    got, want = wr.collate(table, spec), wr.collate(whole, spec)
    same([got["a"], got["b"], got["d"]["e"]], [want["a"], want["b"], want["d"]["e"]])
    assert got["c"] == want["c"] == [f"t{i}" for i in range(COUNT)]
    # Columns whose chunks differ, the first of which has one.
    mixed = table.set_column(0, "a", whole["a"])
    same([wr.collate(mixed, spec)["b"]], [want["b"]])


def test_polars():
    pl = pytest.importorskip("polars", reason="SKIP: polars is not installed")
    whole, _ = tables(COUNT)
    frame = pl.concat([pl.DataFrame(whole.slice(i, 1)) for i in range(COUNT)], rechunk=False)
    assert frame.n_chunks() == COUNT and _chunks.joined(frame).n_chunks() == 1
    got, want = wr.collate(frame, {"b": wr.Ragged()}), wr.collate(whole, {"b": wr.Ragged()})
    same([got["a"], got["b"], got["d"]["e"]], [want["a"], want["b"], want["d"]["e"]])
    assert got["c"] == want["c"] and frame.n_chunks() == COUNT
    series = frame["a"]
    same([wr.stack(series)], [want["a"]])
    assert series.n_chunks() == COUNT


def test_chunks_that_are_long_or_few_or_the_same_are_left():
    short, long = pa.array([1, 2]), pa.array(np.arange(5000))
    texts = pa.array(["x" * 500] * 1000)
    for column in (
        pa.chunked_array([short] * (_chunks._MANY - 1)),
        pa.chunked_array([long] * COUNT),
        # Memory that all chunks share is counted once.
        pa.chunked_array([texts] * 200),
    ):
        assert _chunks.joined(column) is column
        table = pa.table({"x": column})
        assert _chunks.joined(table).column(0).num_chunks == column.num_chunks
    same([wr.stack(pa.chunked_array([long] * COUNT))], [wr.stack(np.tile(np.arange(5000), COUNT))])


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.list_(pa.int64())])
def test_a_null_is_named_by_its_row(kind):
    value = {"int64": 1, "string": "a"}.get(str(kind), [1])
    column = pa.chunked_array([pa.array([value, value, None if i == 30 else value], kind) for i in range(COUNT)])
    for data in (pa.table({"x": column}), pa.concat_tables([pa.table({"x": column}), pa.table({"x": column})])):
        refusal(lambda: wr.collate(data), wr.DTypeError, 'sample 92 at "x": expected a value, got null', index=92, path="x")


def test_strings_that_are_none():
    bad = pa.StringArray.from_buffers(2, pa.py_buffer(np.array([0, 1, 2], "i4")), pa.py_buffer(b"a\xff"))
    refusal(lambda: wr.collate(pa.table({"x": bad})), wr.LayoutError, 'sample 1 at "x": expected a string in UTF-8', index=1)
    words = ["", "a", "é", "日本", "😀" * 3, "x" * 1000] * 3
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        assert wr.collate(pa.array(words, kind)) == words
    assert wr.collate(pa.array([word.encode() for word in words])) == [word.encode() for word in words]
