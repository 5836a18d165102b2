"""Samples larger than memory, sizes beyond 64 bits, and samples that have no elements or no dims."""

import numpy as np
import pytest

import oracle
import windrow as wr
from dlpack_harness import Producer
from helpers import assert_tensor, broadcast, memory, paint, refusal, settle

TERABYTES = [(1 << 46,), (1 << 20, 1 << 26), (3, 1 << 45, 1)]
FORMS = {"stack": wr.stack, "concat": wr.concat, "pad": wr.pad, "ragged": wr.ragged}


@pytest.mark.parametrize("shape", TERABYTES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_samples_larger_than_memory_are_refused_before_anything_is_done(form, shape):
    settle()
    before = wr.stats()["pool_used_bytes"]
    refusal(lambda: FORMS[form]([broadcast(shape)] * 2), MemoryError, "could not allocate")
    refusal(lambda: FORMS[form]([broadcast(shape)] * 2, dtype="float64"), MemoryError)
    facts = wr.explain([broadcast(shape)] * 2, form).as_dict()
    assert facts["bytes_written"] >= 2 << 46
    settle()
    assert wr.stats()["pool_used_bytes"] == before


@pytest.mark.parametrize("form", FORMS)
def test_sizes_beyond_64_bits(form):
    largest = broadcast((1 << 62,), "uint8")
    for samples, options in (([largest] * 4, {}), ([largest], {"dtype": "float64"}), ([largest] * 2, {"dtype": "int16"})):
        refusal(lambda: FORMS[form](samples, **options), (ValueError, MemoryError))
    refusal(lambda: wr.pad([paint(3)], size=1 << 62, dtype="float64"), ValueError)
    refusal(lambda: wr.pad([paint(3)] * 8, size=(1 << 62)), ValueError)
    refusal(lambda: wr.pad([paint(3)], multiple_of=(1 << 63) - 1), (ValueError, MemoryError))


def test_a_view_of_a_sample_larger_than_memory():
    """Nothing has to be allocated for it."""

    class Far:
        array = paint(8)
        __array_interface__ = {"version": 3, "shape": (1 << 45,), "typestr": "|u1", "data": (array.ctypes.data, False)}

    batch = wr.stack([Far()], copy=False)
    assert batch.shape == (1, 1 << 45) and batch.data_ptr() == Far.array.ctypes.data


# nothing at all

EMPTY_SHAPES = [(0,), (0, 3), (3, 0), (2, 0, 4), (0, 0), (1 << 40, 0), (0, 1 << 62)]


@pytest.mark.parametrize("name", oracle.STORAGE)
@pytest.mark.parametrize("shape", EMPTY_SHAPES, ids=str)
def test_samples_without_elements(shape, name):
    storage = oracle.STORAGE[name]
    strides = (1,) * len(shape)

    def producer():
        return Producer(np.empty(0, storage), name=name, data=None, shape=shape, strides=strides)

    def array():
        return np.empty(shape, storage)

    # NumPy has not all dtypes, nor all shapes.
    is_numpys = name == storage.name and max(shape) < 1 << 60
    for make in (producer, array) if is_numpys else (producer,):
        rows = [make() for _ in range(3)]
        batch = wr.stack(rows)
        assert batch.shape == (3, *shape) and batch.dtype == name and batch.nbytes == 0 and len(batch) == 3
        assert batch[1].shape == shape and batch.data.shape == batch.shape
        joined = wr.concat(rows)
        assert joined.shape == (3 * shape[0], *shape[1:])
        assert memory(joined.offsets).tolist() == [n * shape[0] for n in range(4)]
        assert memory(joined.lengths).tolist() == [shape[0]] * 3
        ragged = wr.ragged(rows)
        assert ragged.shape == joined.shape and ragged.max_length == shape[0]
        if shape[0] < 9:
            indexed = wr.ragged(rows, batch_index=True)
            assert memory(indexed.batch_index).tolist() == [i for i in range(3) for _ in range(shape[0])]
            padded = wr.pad(rows, dims=0, mask="real")
            assert padded.shape == (3, *shape) and memory(padded.mask).tolist() == [[True] * shape[0]] * 3
            assert memory(padded.lengths).tolist() == [shape[0]] * 3
        if name in oracle.ARITHMETIC:
            assert wr.stack(rows, dtype="float32", transform=wr.Transform(scale=2.0)).shape == (3, *shape)
        batch.__dlpack__(max_version=(1, 0)), repr(batch), list(batch)


@pytest.mark.parametrize("form", FORMS)
def test_one_sample_of_many_has_elements(form):
    rows = [np.empty((0, 2), np.int32)] * 5 + [paint((3, 2), "int32")] + [np.empty((0, 2), np.int32)] * 5
    if form == "stack":
        refusal(lambda: wr.stack(rows), wr.ShapeError, index=5)
        return
    batch = FORMS[form](rows)
    assert memory(batch.lengths).tolist() == [0] * 5 + [3] + [0] * 5
    want = np.zeros((11, 3, 2), np.int32)
    want[5] = paint((3, 2), "int32")
    assert_tensor(batch, want if form == "pad" else paint((3, 2), "int32"))


def test_samples_without_dims():
    rows = [np.float32(n) for n in range(4)]
    assert_tensor(wr.stack(rows), np.arange(4, dtype=np.float32))
    assert_tensor(wr.pad(rows), np.arange(4, dtype=np.float32))
    for form in ("concat", "ragged"):
        refusal(lambda: FORMS[form](rows), (ValueError, wr.ShapeError))
    for form in FORMS:
        refusal(lambda: FORMS[form]([]), ValueError)
        refusal(lambda: FORMS[form](wr.SampleList()), ValueError)
        refusal(lambda: FORMS[form](np.empty((0, 3))), ValueError)
