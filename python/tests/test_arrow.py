"""Arrow objects of pyarrow, polars, pandas and duckdb in place of a list: the list of their rows."""

import gc
import weakref

import numpy as np
import pytest

import windrow as wr
from helpers import assert_same, paint, paint_values, refusal

pa = pytest.importorskip("pyarrow", reason="SKIP: pyarrow is not installed")

LENGTHS = (3, 0, 5, 1, 4, 2, 7)
ROWS = [paint_values((n,), "int32", 3 * i) for i, n in enumerate(LENGTHS)]
FIXED = paint((7, 2, 3), "float32")


def offsets_of(rows):
    return np.concatenate([[0], np.cumsum([len(row) for row in rows])])


def flat(rows):
    return pa.array(np.concatenate(rows).reshape(-1))


def lists(rows=ROWS):
    return pa.ListArray.from_arrays(pa.array(offsets_of(rows), pa.int32()), flat(rows))


def large_lists(rows=ROWS):
    return pa.LargeListArray.from_arrays(pa.array(offsets_of(rows), pa.int64()), flat(rows))


def list_views(kind=pa.ListViewArray, ints=pa.int32()):
    """Rows in another order in memory than in the array, with gaps."""
    values, starts = [paint_values((2,), "int32")], []
    for row in reversed(ROWS):
        starts.append(sum(map(len, values)))
        values += [row, paint_values((1,), "int32")]
    return kind.from_arrays(pa.array(starts[::-1], ints), pa.array([len(row) for row in ROWS], ints), flat(values))


def fixed(table=FIXED):
    values = pa.array(table.reshape(-1))
    for extent in reversed(table.shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, extent)
    return values


def tensors(permutation=None):
    kind = pa.fixed_shape_tensor(pa.float32(), (2, 3), permutation=permutation)
    return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(pa.array(FIXED.reshape(-1)), 6))


class Variable(pa.ExtensionType):
    """``arrow.variable_shape_tensor``, which pyarrow does not have yet."""

    def __init__(self, metadata=b""):
        self.metadata = metadata
        storage = pa.struct({"data": pa.list_(pa.float32()), "shape": pa.list_(pa.int32(), 2)})
        super().__init__(storage, "arrow.variable_shape_tensor")

    def __arrow_ext_serialize__(self):
        return self.metadata

    @classmethod
    def __arrow_ext_deserialize__(cls, storage, serialized):
        return cls(serialized)


SHAPED = [paint((1 + i % 3, 4 - i % 2), "float32", i) for i in range(7)]


def variable(metadata=b"", shapes=None):
    data = pa.array([array.reshape(-1) for array in SHAPED], pa.list_(pa.float32()))
    shapes = pa.array(shapes or [array.shape for array in SHAPED], pa.list_(pa.int32(), 2))
    return pa.ExtensionArray.from_storage(Variable(metadata), pa.StructArray.from_arrays([data, shapes], ["data", "shape"]))


BOOLS = [paint_values((n,), "bool", i) for i, n in enumerate(LENGTHS)]
BITS = np.concatenate(BOOLS)

# The array, and its rows by NumPy.
CASES = {
    "list": (lists, ROWS),
    "large_list": (large_lists, ROWS),
    "list_view": (list_views, ROWS),
    "large_list_view": (lambda: list_views(pa.LargeListViewArray, pa.int64()), ROWS),
    "list of fixed lists": (
        lambda: pa.ListArray.from_arrays(pa.array(offsets_of(ROWS), pa.int32()), fixed(paint((22, 2, 3)))),
        np.split(paint((22, 2, 3)), offsets_of(ROWS)[1:-1]),
    ),
    "fixed_size_list": (fixed, list(FIXED)),
    "fixed_shape_tensor": (tensors, list(FIXED)),
    "fixed_shape_tensor in another order": (lambda: tensors([1, 0]), list(FIXED.transpose(0, 2, 1))),
    "list of tensors": (
        lambda: pa.ListArray.from_arrays(pa.array([0, 2, 2, 7], pa.int32()), tensors()),
        [FIXED[:2], FIXED[2:2], FIXED[2:]],
    ),
    "variable_shape_tensor": (variable, SHAPED),
    "variable_shape_tensor in another order": (
        lambda: variable(b'{"dim_names": ["permutation", "\\"{"], "permutation": [1, 0]}'),
        [array.T for array in SHAPED],
    ),
    "list of bools": (lambda: lists(BOOLS), BOOLS),
    "bools": (lambda: pa.array(BITS), list(BITS)),
    "fixed lists of bools": (lambda: fixed(BITS[:20].reshape(10, 2)), list(BITS[:20].reshape(10, 2))),
}
for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"):
    values = paint_values(9, name)
    CASES[name] = (lambda values=values: pa.array(values), list(values))

# How an array is handed over, and which of its rows come.
CUTS = {
    "whole": (lambda array: array, slice(None)),
    "slice": (lambda array: array.slice(1, len(array) - 2), slice(1, -1)),
    "chunks": (lambda array: pa.chunked_array([array.slice(1, 1), array.slice(0, 0), array.slice(2)]), slice(1, None)),
    "column": (lambda array: pa.table({"x": array}).column("x"), slice(None)),
}


def assert_rows(samples, rows):
    assert len(samples) == len(rows)
    for got, want in zip((samples[i] for i in range(len(samples))), rows):
        assert_same(got.numpy(), np.asarray(want))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("case", CASES)
def test_rows(case, cut):
    make, rows = CASES[case]
    hand, part = CUTS[cut]
    samples = wr.SampleList(hand(make()))
    gc.collect()
    assert_rows(samples, rows[part])


@pytest.mark.parametrize("case", [case for case in CASES if "bool" not in case])
def test_rows_are_where_arrow_has_them(case):
    array = CASES[case][0]()
    memory = [range(b.address, b.address + b.size) for b in array.buffers() if b is not None]
    samples = wr.SampleList(array)
    assert all(any(samples[i].data_ptr() in part for part in memory) for i in range(len(samples)) if samples[i].nbytes)


def test_every_form():
    for array in (lists(), lists().slice(2), pa.chunked_array([lists(), lists()])):
        rows = [np.array(row, "int32") for row in array.to_pylist()]
        batch = wr.pad(array, value=-1, mask="real", dtype="int64")
        want = wr.pad(rows, value=-1, mask="real", dtype="int64")
        assert_same(batch.numpy(), want.numpy())
        assert_same(batch.mask.numpy(), want.mask.numpy())
        assert_same(wr.ragged(array).offsets.numpy(), wr.ragged(rows).offsets.numpy())
        assert_same(wr.concat(array).numpy(), wr.concat(rows).numpy())
    assert_same(wr.stack(fixed()).numpy(), FIXED)
    samples = wr.SampleList(lists())
    samples.extend(large_lists())
    assert_rows(samples, ROWS + ROWS)
    assert wr.explain(lists(), "pad").as_dict()


def test_a_view_is_read_only_and_keeps_the_array():
    array = fixed()
    view = wr.stack(array, copy=False)
    address = array.buffers()[-1].address
    del array
    gc.collect()
    assert view.data_ptr() == address
    assert_same(view.numpy(), FIXED)
    assert not view.numpy().flags.writeable


@pytest.mark.parametrize("interface", ["__arrow_c_array__", "__arrow_c_stream__", "__arrow_c_device_array__"])
def test_each_interface_alone(interface):
    class Only:
        def __init__(self, lender):
            setattr(type(self), interface, lambda self, *args, **kwargs: getattr(lender, interface)(*args, **kwargs))

    lender = pa.chunked_array([lists()]) if "stream" in interface else lists()
    assert_rows(wr.SampleList(Only(lender)), ROWS)


def test_an_element_of_a_list_is_one_sample():
    assert_same(wr.stack([pa.array([1, 2]), pa.array([3, 4])]).numpy(), np.array([[1, 2], [3, 4]]))
    refusal(lambda: wr.stack([pa.array([1, None])]), wr.LayoutError, index=0)
    refusal(lambda: wr.stack([pa.chunked_array([[1, 2]])]), TypeError, r"use \.to_numpy\(\)", index=0)


class Memory:
    """The owner that an Arrow buffer holds on to."""

    def __init__(self, values):
        self.values = values

    def buffer(self):
        return pa.foreign_buffer(self.values.ctypes.data, self.values.nbytes, self)


def test_arrays_are_released_once_with_the_last_user():
    def lent():
        memory = Memory(np.arange(6, dtype="int32"))
        array = pa.Array.from_buffers(pa.int32(), 6, [None, memory.buffer()])
        return weakref.ref(memory), pa.FixedSizeListArray.from_arrays(array, 2)

    alive, array = lent()
    samples = wr.SampleList(array)
    sample = samples.take([2])[0]
    del array, samples
    gc.collect()
    assert alive() is not None and sample.numpy().tolist() == [4, 5]
    del sample
    gc.collect()
    assert alive() is None
    # Nothing stays after an error of a later column.
    alive, array = lent()
    with pytest.raises(wr.DTypeError):
        wr.collate(pa.table({"x": array, "y": pa.nulls(3)}))
    del array
    gc.collect()
    assert alive() is None


# Tables


def table():
    inner = pa.StructArray.from_arrays([lists(), pa.array(range(7))], ["ids", "n"])
    columns = {"image": fixed(), "text": inner, "y": pa.array(paint_values(7, "float64")), "name": pa.array(list("abcdefg"))}
    return pa.table(columns)


TABLES = {
    "table": table,
    "chunks": lambda: pa.concat_tables([table().slice(0, 3), table().slice(3, 0), table().slice(3)]),
    "record batch": lambda: table().to_batches()[0],
    "struct array": lambda: table().to_batches()[0].to_struct_array(),
    "reader": lambda: table().to_reader(),
}


@pytest.mark.parametrize("case", TABLES)
def test_collate_takes_a_table_as_its_rows(case):
    spec = {"text.ids": wr.Pad(value=-1, mask="real"), "y": wr.Stack(dtype="float32")}
    got = wr.collate(TABLES[case](), spec)
    rows = [
        {"image": FIXED[i], "text": {"ids": ROWS[i], "n": i}, "y": paint_values(7, "float64")[i], "name": "abcdefg"[i]}
        for i in range(7)
    ]
    want = wr.collate(rows, spec)
    assert list(got) == list(want) and list(got["text"]) == list(want["text"])
    assert got["name"] == want["name"] == list("abcdefg")
    for a, b in [(got["image"], want["image"]), (got["text"]["ids"], want["text"]["ids"]), (got["text"]["n"], want["text"]["n"]), (got["y"], want["y"])]:
        assert_same(a.numpy(), b.numpy())
    assert_same(got["text"]["ids"].mask.numpy(), want["text"]["ids"].mask.numpy())


@pytest.mark.parametrize("row", [{}, {"s": {}}, {"s": {"t": {}}, "x": 1}, {"x": 1, "s": {}, "y": {"t": {}, "u": 2}}])
def test_structs_without_fields_are_empty_dicts(row):
    rows, array = [row] * 3, pa.array([row] * 3)
    for given in (array, pa.chunked_array([array, array]).slice(3)):
        assert str(wr.collate(given)) == str(wr.collate(rows))
        assert len(wr.SampleList(given)) == 3
        assert str(wr.SampleList(given)[2]) == str(wr.SampleList(rows)[2])


def test_collate_of_a_table_with_out_sep_arena_and_of_a_single_column():
    part = table().select(["text"])
    out = {"text": {"ids": np.zeros((7, 7), "int32"), "n": np.zeros(7, "int64")}}
    wr.collate(part, {"text/ids": wr.Pad()}, sep="/", out=out)
    assert_same(out["text"]["n"], np.arange(7))
    refusal(lambda: wr.collate(part, {"*": wr.Pad()}, out={**out, "z": 1}), KeyError, '"z"')
    refusal(lambda: wr.collate(part, {"*": wr.Pad()}, out={}), KeyError, '"text"')
    tree = wr.collate(part, {"text.ids": wr.Pad()}, arena=True)
    assert tree["text"]["n"].arena is not None
    assert_same(wr.collate(lists(), wr.Pad()).numpy(), wr.pad(ROWS).numpy())
    assert wr.explain(table(), "collate", spec={"text.ids": wr.Pad()}).names == ["image", "text.ids", "text.n", "y"]


TEXTS = ["", "short", "a text of more than twelve bytes", "é" * 9, "x"]


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "binary", "large_binary", "binary_view"])
def test_strings_and_bytes_become_lists(kind):
    values = TEXTS if "string" in kind else [text.encode() for text in TEXTS]
    array = pa.array(values, getattr(pa, kind)())
    for cut, want in ((array, values), (array.slice(1, 3), values[1:4])):
        assert wr.collate(pa.table({"t": cut, "i": np.arange(len(cut))}))["t"] == want
    refusal(lambda: wr.stack(array), TypeError, "strings or bytes; wr.collate takes it")


# Other libraries


def test_polars():
    pl = pytest.importorskip("polars", reason="SKIP: polars is not installed")
    series = pl.Series("ids", [row.tolist() for row in ROWS], pl.List(pl.Int32))
    assert_rows(wr.SampleList(series), ROWS)
    assert_rows(wr.SampleList(pl.concat([series, series], rechunk=False)), ROWS + ROWS)
    assert_rows(wr.SampleList(pl.Series(BITS)), list(BITS))
    assert_rows(wr.SampleList(pl.Series(FIXED, dtype=pl.Array(pl.Float32, (2, 3)))), list(FIXED))
    frame = pl.DataFrame({"ids": series, "name": list("abcdefg"), "y": np.arange(7.0)})
    batch = wr.collate(frame, {"ids": wr.Pad()})
    assert batch["name"] == list("abcdefg")
    assert_same(batch["ids"].numpy(), wr.pad(ROWS).numpy())
    assert_same(batch["y"].numpy(), np.arange(7.0))
    refusal(lambda: wr.pad(frame), TypeError, "a table, whose rows are dicts; wr.collate takes it")
    refusal(lambda: wr.collate(pl.DataFrame({"c": ["a"]}, schema={"c": pl.Categorical})), wr.DTypeError, "dictionary", index=0, path="c")


def test_the_index_of_pandas_is_no_column():
    pd = pytest.importorskip("pandas", minversion="2.2", reason="SKIP: pandas 2.2 is not installed")
    frame = pd.DataFrame({"x": np.arange(6), "y": np.arange(6) / 2})
    indexes = {
        "in order": frame,
        "shuffled": frame.sample(frac=1, random_state=0),
        "filtered": frame[frame.x % 2 == 1],
        "strings": frame.set_index(pd.Index(list("abcdef"))),
        "times": frame.set_index(pd.date_range("2020", periods=6)),
        "levels": frame.set_index(pd.MultiIndex.from_arrays([list("abcdef"), range(6)])),
    }
    for name, own in indexes.items():
        for table in (own, pa.Table.from_pandas(own), pa.RecordBatch.from_pandas(own)):
            batch = wr.collate(table)
            assert list(batch) == ["x", "y"], name
            for column in batch:
                assert_same(batch[column].numpy(), own[column].to_numpy())
            assert list(wr.SampleList(table)[0]) == ["x", "y"]
    named = wr.collate(indexes["shuffled"].rename_axis("row"))
    assert_same(named["row"].numpy(), indexes["shuffled"].index.to_numpy())
    # A column that no pandas has made.
    assert list(wr.collate(pa.table({"__index_level_0__": [1, 2], "x": [3, 4]}))) == ["__index_level_0__", "x"]
    assert list(wr.collate(pa.Table.from_pandas(frame.rename(columns={"y": "__index_level__"})))) == ["x", "__index_level__"]
    # A column of the table's own, beside an index that is none or that has the next name.
    own = frame.rename(columns={"x": "__index_level_0__"})
    for table in (own, own.sample(frac=1, random_state=0)):
        batch = wr.collate(pa.Table.from_pandas(table))
        assert list(batch) == ["__index_level_0__", "y"]
        assert_same(batch["__index_level_0__"].numpy(), table["__index_level_0__"].to_numpy())


def test_the_index_of_pandas_is_no_column_of_torch_batches():
    pd = pytest.importorskip("pandas", minversion="2.2", reason="SKIP: pandas 2.2 is not installed")
    torch = pytest.importorskip("torch", reason="SKIP: torch is not installed")
    import windrow.hf
    import windrow.torch

    frame = pd.DataFrame({"x": np.arange(6), "y": np.arange(6) / 2}).sample(frac=1, random_state=0)
    for table in (frame, pa.Table.from_pandas(frame), pa.RecordBatch.from_pandas(frame)):
        for collate in (windrow.torch.collate_fn(), windrow.torch.collate_fn({}), windrow.hf.collate_columns):
            batch = collate(table)
            assert list(batch) == ["x", "y"], collate
            for name, column in batch.items():
                assert torch.equal(column, torch.from_numpy(frame[name].to_numpy()))


def test_pandas():
    pd = pytest.importorskip("pandas", minversion="2.2", reason="SKIP: pandas 2.2 is not installed")
    frame = pd.DataFrame({"a": np.arange(3), "b": np.arange(3.0)})
    batch = wr.collate(frame)
    assert_same(batch["a"].numpy(), np.arange(3))
    assert_same(batch["b"].numpy(), np.arange(3.0))
    if hasattr(pd.Series, "__arrow_c_stream__"):
        assert_same(wr.stack(frame["a"]).numpy(), np.arange(3))


def test_duckdb():
    duckdb = pytest.importorskip("duckdb", reason="SKIP: duckdb is not installed")
    query = "select range as y, list_transform(range(range % 4), lambda i: (i + range)::int) as ids from range(3000)"
    batch = wr.collate(duckdb.sql(query), {"ids": wr.Ragged()})
    rows = [np.arange(i % 4, dtype="int32") + i for i in range(3000)]
    assert_same(batch["ids"].numpy(), np.concatenate(rows).astype("int32"))
    assert_same(batch["y"].numpy(), np.arange(3000))


# Out


@pytest.mark.parametrize("tail", [(), (2,), (2, 3)])
@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"])
def test_ragged_batches_are_list_arrays(name, tail):
    rows = [paint_values((n, *tail), name, 3 * i) for i, n in enumerate(LENGTHS)]
    for offsets, kind in (("int64", pa.types.is_large_list), ("int32", pa.types.is_list)):
        batch = wr.ragged(rows, offsets_dtype=offsets)
        array = pa.array(batch)
        array.validate(full=True)
        assert kind(array.type) and array.to_pylist() == [row.tolist() for row in rows]
        if not tail:
            assert array.type.value_type == pa.from_numpy_dtype(name)
            assert array.buffers()[-1].address == batch.data_ptr()
        assert_rows(wr.SampleList(array), rows)


def test_other_batches_are_their_rows():
    for shape in ((4,), (4, 3), (4, 0), (0, 3), (4, 2, 3)):
        batch = wr.concat([paint(shape, "int16")])
        array = pa.array(batch)
        array.validate(full=True)
        assert array.to_pylist() == batch.numpy().tolist()
    padded = pa.array(wr.pad(ROWS))
    assert padded.type == pa.list_(pa.int32(), 7) and padded.to_pylist() == wr.pad(ROWS).numpy().tolist()


def test_polars_and_tables_take_batches():
    pl = pytest.importorskip("polars", reason="SKIP: polars is not installed")
    batch = wr.ragged(ROWS)
    assert pl.Series(batch).to_list() == [row.tolist() for row in ROWS]
    assert wr.collate(pa.table({"ids": pa.array(batch)}), wr.Ragged())["ids"].offsets.numpy().tolist() == offsets_of(ROWS).tolist()


def test_an_array_keeps_the_batch_and_parts_of_it_too():
    row = np.arange(5, dtype="int32")
    # A view, so that the memory of the batch is that of an object whose end can be seen.
    source = Memory(row)
    holder = pa.Array.from_buffers(pa.int32(), 5, [None, source.buffer()])
    alive = weakref.ref(source)
    batch = wr.ragged([holder], copy=False)
    del source, holder
    array = pa.array(batch)
    values = array.values
    del batch, array
    gc.collect()
    assert alive() is not None and values.to_pylist() == [0, 1, 2, 3, 4]
    del values
    gc.collect()
    assert alive() is None
    # One capsule is dropped unused, the other is taken.
    schema, unused = wr.ragged(ROWS).__arrow_c_array__()
    del unused
    assert pa.DataType._import_from_c_capsule(schema) == pa.large_list(pa.int32())


def test_what_arrow_has_no_memory_for():
    refusal(lambda: wr.ragged(BOOLS).__arrow_c_array__(), wr.DTypeError, "batch: expected integers, float16, float32 or float64, got bool")
    refusal(lambda: wr.ragged(ROWS, dtype="bfloat16").__arrow_c_array__(), wr.DTypeError, "got bfloat16")
    refusal(lambda: wr.concat([paint((2, 3), "int16")], out=np.empty((2, 6), "int16")[:, ::2]).__arrow_c_array__(), wr.LayoutError, "without gaps")


def test_batches_on_a_device(any_driver):
    refusal(lambda: wr.ragged(ROWS, device="cuda").__arrow_c_array__(), wr.DeviceError, "host memory, got cuda:0")
    assert pa.array(wr.ragged(ROWS, device="pinned")).to_pylist() == [row.tolist() for row in ROWS]


# Bad input


def with_null(values, kind=None):
    return pa.chunked_array([pa.array(values[:2], kind), pa.array(values[2:], kind)])


NULLS = {
    "value": (with_null([1, 2, 3, None, 5]), 3),
    "far value": (pa.array([*range(100), None]).slice(3), 97),
    "bool": (with_null([True, False, None], pa.bool_()), 2),
    "list": (with_null([[1], [2], [3], None, [5]]), 3),
    "inside a list": (with_null([[1], [2], [], [3, None], [5]]), 3),
    "list view": (pa.array([[1], None], pa.list_view(pa.int64())), 1),
    "inside a list view": (pa.array([[1], [], [2, None]], pa.list_view(pa.int64())), 2),
    "fixed-size list": (with_null([[1, 2], [3, 4], None, [5, 6]], pa.list_(pa.int64(), 2)), 2),
    "inside a fixed-size list": (with_null([[1, 2], [3, 4], [5, 6], [7, None]], pa.list_(pa.int64(), 2)), 3),
    "inside a list of fixed-size lists": (with_null([[], [[1, 2]], [[1, 2], [3, None]]], pa.list_(pa.list_(pa.int64(), 2))), 2),
    "struct": (with_null([{"a": 1}, {"a": 2}, None], pa.struct({"a": pa.int64()})), 2),
    "empty struct": (with_null([{}, {}, None], pa.struct([])), 2),
    "string": (with_null(["a", "b", None], pa.string()), 2),
}


@pytest.mark.parametrize("case", NULLS)
def test_nulls_name_column_and_row(case):
    column, row = NULLS[case]
    path = "x.a" if case == "struct" else "x"
    whole = pa.table({"x": column})
    refusal(
        lambda: wr.collate(whole, {path: wr.Ragged()} if "str" not in case else None),
        wr.DTypeError, f"sample {row} at \"{path}\": expected a value, got null; fill or drop", index=row, path=path,
    )  # fmt: skip
    if case not in ("struct", "empty struct", "string"):
        refusal(lambda: wr.SampleList(column), wr.DTypeError, f"^sample {row}: ", index=row)
    wr.collate(whole.slice(0, row), wr.Ragged() if "list" in case else None)


@pytest.mark.filterwarnings("error")
def test_a_null_in_an_array_that_is_one_sample():
    """pyarrow refuses it; it is not asked once more in the way of older producers, of which it warns."""
    refusal(lambda: wr.stack([pa.array([1, 2]), pa.array([3, None])]), wr.LayoutError, "sample 1: .*no nulls", index=1)


UNREADABLE = {
    "dictionary": (pa.array(["a", "b"]).dictionary_encode(), "dictionary; decode it before"),
    "run-end encoded": (pa.RunEndEncodedArray.from_arrays([2], [1]), "run-end encoded"),
    "timestamp": (pa.array([0, 1], pa.timestamp("s")), "timestamp"),
    "decimal": (pa.array([1, 2], pa.decimal128(5)), "decimal"),
    "null": (pa.nulls(2), "null"),
    "list of strings": (pa.array([["a"], ["b"]]), "strings"),
    "list of lists": (pa.array([[[1], [2, 3]], [[4]]]), "lists of lists whose type does not fix the inner length; flatten"),
    "list of structs": (pa.array([[{"a": 1}], []]), "struct"),
    "map": (pa.array([[(1, 2)], []], pa.map_(pa.int64(), pa.int64())), "map"),
    "uuid": (pa.array([b"0" * 16] * 2, pa.uuid()), 'the extension type "arrow.uuid"'),
    "date": (pa.array([1, 2], pa.date32()), "date"),
    "duration": (pa.array([1, 2], pa.duration("s")), "duration"),
    "interval": (pa.array([(1, 2, 3)] * 2, pa.month_day_nano_interval()), "interval"),
    "fixed-size binary": (pa.array([b"ab", b"cd"], pa.binary(2)), "fixed-size binary"),
    "list of dictionaries": (pa.array([["a"], ["b"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))), "dictionary; decode it before"),
    "list of run-end encoded": (pa.ListArray.from_arrays([0, 1, 2], pa.RunEndEncodedArray.from_arrays([2], [1])), "run-end encoded"),
    "dense union": (pa.UnionArray.from_dense(pa.array([0, 0], pa.int8()), pa.array([0, 1], pa.int32()), [pa.array([1, 2])]), "union"),
    "union": (pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, 2])]), "union"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_columns_that_hold_no_numbers(case):
    column, text = UNREADABLE[case]
    batch = pa.table({"y": [1, 2], "x": column})
    refusal(lambda: wr.collate(batch), wr.DTypeError, 'sample 0 at "x": expected numbers', text, index=0, path="x")
    refusal(lambda: wr.stack(column), wr.DTypeError, text, index=0)


def test_what_else_is_refused():
    refusal(lambda: wr.stack(table()), TypeError, "a table, whose rows are dicts")
    refusal(lambda: wr.stack(pa.array([], pa.int64())), ValueError, "an empty list")
    refusal(lambda: wr.collate(table().slice(0, 0)), ValueError, "an empty list")
    refusal(lambda: wr.stack(lists()), wr.ShapeError, "wr.pad", index=1)
    for first, second in (([1], [2]), ([{"a": 1}], [{"b": 2}]), ([{}], [{}])):
        refusal(lambda pair=(first, second): wr.collate(pa.table(pair, ["s", "s"])), ValueError, 'two columns are named "s"')
    refusal(lambda: wr.stack(variable(shapes=[(1, 1)] * 7)), wr.LayoutError, "a shape of 4 elements", index=0)

    class Wrong:
        def __arrow_c_array__(self, requested_schema=None):
            return 1, 2

    refusal(lambda: wr.stack(Wrong()), TypeError, "capsules")
    Wrong.__arrow_c_array__ = lambda self, requested_schema=None: lists().__arrow_c_array__()[::-1]
    refusal(lambda: wr.stack(Wrong()), ValueError, "a capsule named arrow_schema")
    Wrong.__arrow_c_array__ = lambda self, requested_schema=None: 1 / 0
    refusal(lambda: wr.stack(Wrong()), wr.LayoutError, "division by zero")


def test_a_stream_that_fails_says_why():
    def batches():
        yield table().to_batches()[0]
        raise ValueError("the disk is gone")

    reader = pa.RecordBatchReader.from_batches(table().schema, batches())
    refusal(lambda: wr.collate(reader), wr.LayoutError, "the disk is gone")


def test_a_table_within_a_list_is_told_its_place():
    table = pa.table({"a": [1, 2]})
    for call in (lambda: wr.stack([table]), lambda: wr.collate([table]), lambda: wr.collate([{"t": table}])):
        refusal(call, TypeError, "expected an array-like, got pyarrow.lib.Table; give it in place of the list", index=0)
