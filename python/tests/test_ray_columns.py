"""windrow.ray on Arrow and NumPy batches, without a cluster."""

import doctest
import pickle

import numpy as np
import pytest

import isolated
import oracle
import windrow as wr
from helpers import assert_same, paint, paint_values, refusal

pa = pytest.importorskip("pyarrow", reason="SKIP: pyarrow is not installed")
pytest.importorskip("ray.data", reason="SKIP: ray[data] is not installed", exc_type=ImportError)
torch = pytest.importorskip("torch")

import windrow.ray  # noqa: E402
from ray.data.collate_fn import ArrowBatchCollateFn, NumpyBatchCollateFn, is_tensor_batch_type  # noqa: E402
from ray.data.extensions import (  # noqa: E402
    ArrowTensorArray,
    ArrowTensorTypeV2,
    ArrowVariableShapedTensorArray,
)
from windrow.ray._columns import columns_of  # noqa: E402

LENGTHS = (3, 0, 5, 1, 4, 2, 7)


def rows_of(lengths=LENGTHS, name="int32", tail=()):
    return [paint_values((n, *tail), name, 3 * i) for i, n in enumerate(lengths)]


def lists(rows, kind=None):
    """An Arrow list array of 1-D rows, or of rows of fixed-size lists."""
    flat = np.concatenate(rows)
    values = pa.array(flat.reshape(-1))
    for extent in reversed(flat.shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, extent)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    if kind == "large":
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def fixed(table):
    """Rows of a table as fixed-size lists, nested as deep as it has dims."""
    values = pa.array(table.reshape(-1))
    for extent in reversed(table.shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, extent)
    return values


def chunked(array):
    """The same column whole, cut out of a longer one, and in chunks of which one is empty."""
    n = len(array)
    return {
        "whole": (pa.chunked_array([array]), slice(None)),
        "slice": (pa.chunked_array([array.slice(2, n - 3)]), slice(2, n - 1)),
        "chunks": (
            pa.chunked_array([array.slice(1, 3), array.slice(0, 0), array.slice(4, n - 4)]),
            slice(1, n),
        ),
    }


def each_chunking(array):
    return [pytest.param(*case, id=name) for name, case in chunked(array).items()]


def read(column, name="x"):
    return columns_of(pa.table({name: column}), None)[name]


def assert_rows(samples, rows):
    assert len(samples) == len(rows)
    for got, want in zip((samples[i] for i in range(len(samples))), rows):
        assert_same(got.numpy(), want)


# Columns


@pytest.mark.parametrize("cut", ["whole", "slice", "chunks"])
@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_integers(name, cut):
    values = paint_values(9, name)
    column, part = chunked(pa.array(values))[cut]
    assert_rows(read(column), values[part])


@pytest.mark.parametrize("cut", ["whole", "slice", "chunks"])
@pytest.mark.parametrize("name", ["float16", "float32", "float64", "bool"])
def test_floats_and_bools(name, cut):
    values = paint_values(19, name)
    column, part = chunked(pa.array(values))[cut]
    assert_rows(read(column), values[part])


@pytest.mark.parametrize("cut", ["whole", "slice", "chunks"])
@pytest.mark.parametrize("tail", [(), (2,), (2, 3)])
@pytest.mark.parametrize("kind", ["small", "large"])
def test_lists(kind, tail, cut):
    rows = rows_of(tail=tail)
    column, part = chunked(lists(rows, kind))[cut]
    assert_rows(read(column), rows[part])


def test_lists_of_bools():
    rows = rows_of(name="bool")
    for column, part in chunked(lists(rows)).values():
        assert_rows(read(column), rows[part])


@pytest.mark.parametrize("cut", ["whole", "slice", "chunks"])
@pytest.mark.parametrize("shape", [(9, 4), (9, 2, 3), (9, 2, 1, 3)])
def test_fixed_size_lists(shape, cut):
    table = paint(shape, "uint16")
    column, part = chunked(fixed(table))[cut]
    assert_rows(read(column), table[part])


TENSORS = paint((9, 2, 3), "float32")


def tensor_columns():
    v1 = ArrowTensorArray.from_numpy(TENSORS)
    storage = pa.LargeListArray.from_arrays(
        pa.array(np.arange(0, 9 * 6 + 1, 6), pa.int64()), pa.array(TENSORS.reshape(-1))
    )
    kind = pa.fixed_shape_tensor(pa.float32(), (2, 3))
    native = pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(pa.array(TENSORS.reshape(-1)), 6))
    return {"ray": v1, "v2": ArrowTensorTypeV2((2, 3), pa.float32()).wrap_array(storage), "native": native}


@pytest.mark.parametrize("cut", ["whole", "slice", "chunks"])
@pytest.mark.parametrize("kind", ["ray", "v2", "native"])
def test_tensor_extension_types(kind, cut):
    column, part = chunked(tensor_columns()[kind])[cut]
    assert_rows(read(column), TENSORS[part])


def test_bool_tensors():
    table = paint((9, 5), "bool")
    for column, part in chunked(ArrowTensorArray.from_numpy(table)).values():
        assert_rows(read(column), table[part])


def test_permuted_tensors():
    kind = pa.fixed_shape_tensor(pa.float32(), (2, 3), permutation=[1, 0])
    storage = pa.FixedSizeListArray.from_arrays(pa.array(TENSORS.reshape(-1)), 6)
    column = pa.ExtensionArray.from_storage(kind, storage)
    assert_rows(read(column), column.to_numpy_ndarray())


@pytest.mark.parametrize("cut", ["whole", "slice", "chunks"])
def test_variable_shaped_tensors(cut):
    tensors = [paint((1 + i % 3, 4 - i % 2, 2), "int16", i) for i in range(8)]
    column, part = chunked(ArrowVariableShapedTensorArray.from_numpy(tensors))[cut]
    assert_rows(read(column), tensors[part])


@pytest.mark.parametrize("cut", ["whole", "slice", "chunks"])
def test_structs(cut):
    rows, labels = rows_of(), paint_values(len(LENGTHS), "int64")
    inner = pa.StructArray.from_arrays([lists(rows)], ["ids"])
    column, part = chunked(pa.StructArray.from_arrays([inner, pa.array(labels)], ["text", "label"]))[cut]
    columns = columns_of(pa.table({"x": column}), None)
    assert sorted(columns) == ["x.label", "x.text.ids"]
    assert_rows(columns["x.text.ids"], rows[part])
    assert_rows(columns["x.label"], labels[part])


def addresses(buffer):
    return range(buffer.address, buffer.address + buffer.size)


@pytest.mark.parametrize("array", [lists(rows_of()), fixed(paint((7, 3))), pa.array(paint(7)), tensor_columns()["v2"]])
def test_samples_lie_in_the_buffers_of_arrow(array):
    array = array.slice(2, 4)
    samples = read(pa.chunked_array([array, array]))
    assert len(samples) == 8
    memory = [addresses(buffer) for buffer in array.buffers() if buffer is not None]
    for sample in (samples[i] for i in range(8)):
        assert any(sample.data_ptr() in part for part in memory)


def test_memory_outlives_the_table():
    samples = read(pa.chunked_array([lists(rows_of())]))
    assert_rows(samples, rows_of())


def test_numpy_columns():
    rows = np.empty(3, object)
    rows[:] = rows_of((2, 4, 1))
    table = paint((3, 2, 2), "float32")
    table.flags.writeable = False
    columns = columns_of({"ragged": rows, "table": table, "y": np.arange(3)}, None)
    assert_rows(columns["ragged"], list(rows))
    assert_rows(columns["table"], table)
    assert_rows(columns["y"], np.arange(3))


# Results


def batch_of():
    return pa.table(
        {
            "ids": chunked(lists(rows_of()))["chunks"][0],
            "image": chunked(fixed(paint((7, 2, 3))))["chunks"][0],
            "y": chunked(pa.array(paint_values(7, "float64")))["chunks"][0],
        }
    )


def test_what_ray_asks_of_a_collate_function():
    collate = windrow.ray.GatherCollate({"ids": wr.Pad(mask="real")})
    assert isinstance(collate, ArrowBatchCollateFn)
    assert isinstance(windrow.ray.NumpyGatherCollate(), NumpyBatchCollateFn)
    assert is_tensor_batch_type(collate(batch_of()))


def assert_tensors(got, **want):
    assert list(got) == list(want)
    for name, array in want.items():
        assert isinstance(got[name], torch.Tensor)
        assert_same(got[name].numpy(), array)


def test_padded_stacked_and_cast():
    rows = rows_of()[1:]
    spec = {"i*": wr.Pad(value=-1, mask="pad", multiple_of=4), "image": wr.Stack(dtype="float32")}
    got = windrow.ray.GatherCollate(spec)(batch_of())
    want = oracle.pad(rows, "int32", -1, multiple_of=4, mask="pad")
    assert_tensors(
        got,
        ids=want.data,
        ids_lengths=np.array([len(row) for row in rows]),
        ids_mask=want.mask,
        image=paint((7, 2, 3))[1:].astype(np.float32),
        y=paint_values(7, "float64")[1:],
    )


def test_ragged():
    rows = rows_of()[1:]
    got = windrow.ray.GatherCollate({"ids": wr.Ragged(batch_index=True)}, columns=["ids"])(batch_of())
    lengths = [len(row) for row in rows]
    assert_tensors(
        got,
        ids=np.concatenate(rows),
        ids_lengths=np.array(lengths),
        ids_offsets=np.concatenate([[0], np.cumsum(lengths)]),
        ids_batch_index=np.repeat(np.arange(6), lengths),
    )


def test_padded_images_of_varying_shape():
    images = [paint((2 + i, 5 - i, 3), "uint8", i) for i in range(4)]
    batch = pa.table({"image": ArrowVariableShapedTensorArray.from_numpy(images)})
    t = oracle.T(scale=1 / 255, mean=[0.4, 0.5, 0.6], std=[0.2, 0.2, 0.3], channel_dim=2, permute=(2, 0, 1))
    spec = wr.Pad(dtype="float32", mask="real", transform=wr.Transform(**t.arguments()))
    got = windrow.ray.GatherCollate(spec)(batch)
    want = oracle.pad(images, "uint8", 0, mask="real", dst="float32", t=t)
    assert_tensors(got, image=want.data, image_lengths=want.lengths, image_mask=want.mask)


def test_the_index_of_pandas_is_no_column():
    pd = pytest.importorskip("pandas", reason="SKIP: pandas is not installed")
    frame = pd.DataFrame({"x": np.arange(6), "y": np.arange(6) / 2}).sample(frac=1, random_state=0)
    for table in (pa.Table.from_pandas(frame), pa.Table.from_pandas(frame).slice(1, 4)):
        want = {name: table[name].to_numpy() for name in "xy"}
        assert_tensors(windrow.ray.GatherCollate()(table), **want)
        assert_tensors(windrow.ray.unpack(windrow.ray.pack(table)), **want)


def test_numpy_batches_give_the_same():
    spec = {"ids": wr.Pad(mask="real")}
    ids = np.empty(7, object)
    ids[:] = rows_of()
    numpy_batch = {"ids": ids, "y": paint_values(7, "float64")}
    arrow_batch = pa.table({"ids": lists(rows_of()), "y": numpy_batch["y"]})
    want = windrow.ray.GatherCollate(spec)(arrow_batch)
    for collate in (windrow.ray.NumpyGatherCollate(spec), windrow.ray.GatherCollate(spec)):
        assert_tensors(collate(numpy_batch), **{name: tensor.numpy() for name, tensor in want.items()})


def test_it_pickles():
    collate = windrow.ray.GatherCollate({"ids": wr.Pad(value=7)}, "cpu", columns=["ids"])
    again = pickle.loads(pickle.dumps(collate))
    assert torch.equal(again(batch_of())["ids"], collate(batch_of())["ids"])


def test_out_on_a_device(any_driver):
    collate = windrow.ray.GatherCollate({"ids": wr.Pad(value=-1)}, "cuda", columns=["ids"])
    name, fields, _ = next(iter(collate.results(batch_of(), "cuda")))
    assert (name, fields[0][0], fields[0][1].device) == ("ids", "ids", "cuda:0")
    assert_same(wr.stack(fields[0][1], device="cpu").numpy(), oracle.pad(rows_of()[1:], "int32", -1).data)


@pytest.mark.skipif(torch.cuda.is_available(), reason="SKIP: there is a device")
def test_page_locked_memory_needs_a_device():
    collate = windrow.ray.GatherCollate({"ids": wr.Pad()}, "pinned")
    refusal(lambda: collate(batch_of()), wr.CudaUnavailable, "pinned")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="SKIP: torch finds no device")
def test_page_locked_memory():
    got = windrow.ray.GatherCollate({"ids": wr.Pad(value=-1)}, "pinned")(batch_of())
    assert all(tensor.is_pinned() for tensor in got.values())
    assert_same(got["ids"].numpy(), oracle.pad(rows_of()[1:], "int32", -1).data)


@pytest.mark.parametrize("name", ["GatherCollate", "NumpyGatherCollate", "unpack"])
def test_the_examples_of_docstrings_run(name):
    found = doctest.DocTestFinder(recurse=False).find(getattr(windrow.ray, name), name)
    assert found and doctest.DocTestRunner(verbose=False).run(found[0]) == (0, len(found[0].examples))


@pytest.mark.slow
def test_windrow_does_not_import_them():
    code = "import sys, windrow; assert not {'ray', 'pyarrow', 'torch', 'numpy', 'jax'} & set(sys.modules)"
    assert isolated.python("-c", code).returncode == 0


# pack and unpack

PACKED = {"ids": wr.Pad(value=-1, mask="real", dtype="bfloat16"), "y": wr.Stack(dtype="uint8")}


def assert_equal_tensors(got, want):
    assert list(got) == list(want)
    for name in want:
        assert got[name].dtype == want[name].dtype and torch.equal(got[name], want[name]), name


@pytest.mark.parametrize("device", [None, "cpu"])
def test_unpack_gives_what_was_packed(device):
    want = windrow.ray.GatherCollate(PACKED)(batch_of())
    packed = windrow.ray.pack(batch_of(), PACKED)
    assert packed.num_rows == 1
    assert_equal_tensors(windrow.ray.unpack(packed, device), want)
    assert_equal_tensors(windrow.ray.unpack(packed.to_pylist()[0], device), want)
    assert_equal_tensors(windrow.ray.UnpackCollate(device)(packed), want)


def test_packed_batches_are_views_of_one_buffer():
    packed = windrow.ray.pack(batch_of(), PACKED)
    memory = addresses(packed["windrow_arena"].chunks[0].buffers()[2])
    for tensor in windrow.ray.unpack(packed).values():
        assert tensor.data_ptr() in memory
    copies = windrow.ray.unpack(packed, "cpu")
    assert len({tensor.untyped_storage().data_ptr() for tensor in copies.values()}) == 1
    assert not any(tensor.data_ptr() in memory for tensor in copies.values())


def test_the_header_of_a_packed_batch_is_a_layout():
    packed = windrow.ray.pack(batch_of(), PACKED)
    layout = wr.Layout.from_json(packed["windrow_header"][0].as_py())
    (arena,) = packed["windrow_arena"].to_pylist()
    assert len(arena) % 64 == 0 and len(arena) - 64 < layout.nbytes <= len(arena)
    views = {name: view.torch() for name, view in wr.unpack(bytearray(arena), layout).items()}
    assert_equal_tensors(views, windrow.ray.unpack(packed))
    for header in ("", "{}", layout.to_json().replace('"offset":0', '"offset":-64')):
        with pytest.raises(ValueError):
            windrow.ray.unpack({"windrow_header": header, "windrow_arena": arena})


def test_several_packed_batches_in_a_block():
    packed = [windrow.ray.pack(batch_of().slice(i, 2), PACKED) for i in range(3)]
    block = pa.concat_tables(packed).combine_chunks()
    for i in range(3):
        want = windrow.ray.GatherCollate(PACKED)(batch_of().slice(i, 2))
        assert_equal_tensors(windrow.ray.unpack(block.slice(i, 1)), want)
    refusal(lambda: windrow.ray.unpack(block), ValueError, "3 packed batches", "batch_size=1")
    refusal(lambda: windrow.ray.unpack(batch_of()), (KeyError, ValueError))


# Bad input


def with_null(values, kind=None):
    return pa.chunked_array([pa.array(values[:2], kind), pa.array(values[2:], kind)])


NULLS = {
    "value": (with_null([1, 2, 3, None, 5]), 3),
    "list": (with_null([[1], [2], [3], None, [5]]), 3),
    "inside a list": (with_null([[1], [2], [], [3, None], [5]]), 3),
    "fixed-size list": (with_null([[1, 2], [3, 4], None, [5, 6]], pa.list_(pa.int64(), 2)), 2),
    "inside a fixed-size list": (with_null([[1, 2], [3, 4], [5, 6], [7, None]], pa.list_(pa.int64(), 2)), 3),
    "inside a list of fixed-size lists": (with_null([[], [[1, 2]], [[1, 2], [3, None]]], pa.list_(pa.list_(pa.int64(), 2))), 2),
    "struct": (with_null([{"a": 1}, {"a": 2}, None], pa.struct({"a": pa.int64()})), 2),
}


@pytest.mark.parametrize("case", NULLS)
def test_nulls_name_column_and_row(case):
    column, row = NULLS[case]
    path = "x.a" if case == "struct" else "x"
    collate = windrow.ray.GatherCollate(wr.Ragged())
    table = pa.table({"x": column})
    refusal(lambda: collate(table), wr.DTypeError, f'sample {row} at "{path}": ', "got null", index=row, path=path)
    if row > 2:
        assert columns_of(table.slice(0, row), None)


def test_nulls_outside_of_a_slice_do_not_matter():
    array = pa.array([[1], None, [2, 3], [4, None], [5]])
    assert_rows(read(pa.chunked_array([array.slice(2, 1), array.slice(4, 1)])), [np.array([2, 3]), np.array([5])])


UNREADABLE = {
    "string": pa.array(["a", "b"]),
    "dictionary": pa.array(["a", "b"]).dictionary_encode(),
    "timestamp": pa.array([0, 1], pa.timestamp("s")),
    "decimal": pa.array([1, 2], pa.decimal128(5)),
    "binary": pa.array([b"a", b"b"]),
    "null": pa.nulls(2),
    "list<string>": pa.array([["a"], ["b"]]),
    "list<list>": pa.array([[[1], [2, 3]], [[4]]]),
    "map": pa.array([[(1, 2)], []], pa.map_(pa.int64(), pa.int64())),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_columns_that_hold_no_numbers(case):
    batch = pa.table({"y": [1, 2], "x": UNREADABLE[case]})
    refusal(lambda: windrow.ray.GatherCollate()(batch), wr.DTypeError, 'sample 0 at "x": ', path="x", index=0)
    assert list(windrow.ray.GatherCollate(columns=["y"])(batch)) == ["y"]


@pytest.mark.parametrize("column", [np.array(["a", "b"]), np.array([None, 1], object), np.array(["a", 1], object)])
def test_numpy_columns_that_hold_no_numbers(column):
    collate = windrow.ray.NumpyGatherCollate()
    refusal(lambda: collate({"x": column}), wr.DTypeError, 'sample 0 at "x": ', path="x", index=0)


def test_errors_of_the_engine_name_the_column():
    collate = windrow.ray.GatherCollate()
    refusal(lambda: collate(batch_of()), wr.ShapeError, "column 'ids'", "wr.pad", path="ids", index=1)
    collate = windrow.ray.GatherCollate(wr.Pad(size=2))
    refusal(lambda: collate(batch_of()), wr.ShapeError, "column 'ids'", path="ids", index=1)


def test_bad_arguments():
    refusal(lambda: windrow.ray.GatherCollate({"x": "pad"}), TypeError, "'x'", "wr.Pad")
    refusal(lambda: windrow.ray.GatherCollate(3), TypeError)
    collate = windrow.ray.GatherCollate({"idz": wr.Pad()})
    refusal(lambda: collate(batch_of()), ValueError, "'idz' matches no column", "'ids', 'image', 'y'")
    refusal(lambda: windrow.ray.GatherCollate(columns=["z"])(batch_of()), KeyError, "'z'", "'ids'")
    refusal(lambda: windrow.ray.GatherCollate()([1, 2]), TypeError, "pyarrow.Table")
    refusal(lambda: windrow.ray.GatherCollate(columns="ids"), TypeError, "a list of names, got 'ids'; give \\['ids'\\]")
    refusal(lambda: windrow.ray.GatherCollate()(pa.table({"y": pa.array([], pa.int64())})), ValueError, "column 'y'")
    batch = pa.table({"a": [[1], [2]], "a_lengths": [1, 2]})
    for call in (windrow.ray.GatherCollate({"a": wr.Pad()}), lambda batch: windrow.ray.pack(batch, {"a": wr.Pad()})):
        for names in (["a", "a_lengths"], ["a_lengths", "a"]):
            refusal(lambda: call(batch.select(names)), ValueError, "two results", "'a_lengths'")
