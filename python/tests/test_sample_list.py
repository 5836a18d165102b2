"""wr.SampleList: samples imported once, taken by index arrays."""

import array
import gc
import weakref

import numpy as np
import pytest

import oracle
import windrow as wr
from helpers import assert_same, assert_tensor, assert_values, memory, paint, refusal, relocate, rss_bytes, settle

ROWS = [paint((3, 4), "int32", 7 * i) for i in range(10)]


def test_every_call_takes_one():
    uneven = [paint((n, 3), "int16", n) for n in (2, 5, 1)]
    assert_tensor(wr.stack(wr.SampleList(ROWS)), np.stack(ROWS))
    assert_tensor(wr.concat(wr.SampleList(uneven)), oracle.concat(uneven, "int16").data)
    assert_tensor(wr.pad(wr.SampleList(uneven), value=-1), oracle.pad(uneven, "int16", -1).data)
    batch = wr.ragged(wr.SampleList(uneven))
    assert_tensor(batch, oracle.ragged(uneven, "int16").data)
    assert_values(batch.offsets, [0, 2, 7, 8])
    assert wr.explain(wr.SampleList(ROWS)).as_dict()["bytes_written"] >= 10 * 48


def test_len_and_items():
    samples = wr.SampleList(ROWS)
    assert len(samples) == 10
    for i in (0, 3, 9, -1):
        assert isinstance(samples[i], wr.Tensor)
        assert_tensor(samples[i], ROWS[i])
        assert samples[i].data_ptr() == ROWS[i].ctypes.data
    for i in (10, -11):
        with pytest.raises(IndexError):
            samples[i]


INDICES = [
    lambda i: list(i),
    lambda i: tuple(i),
    lambda i: np.array(i),
    lambda i: np.array(i, np.int32),
    lambda i: np.array(i, np.uint8),
    lambda i: np.array(i, np.uint64),
    lambda i: np.array(i, np.int16),
    lambda i: np.repeat(np.array(i), 2)[::2],
    lambda i: array.array("i", i),
    lambda i: bytes(i),
    lambda i: wr.asarray(np.array(i)),
    lambda i: pytest.importorskip("torch").tensor(i),
    lambda i: pytest.importorskip("torch").tensor(i, dtype=pytest.importorskip("torch").int32),
    lambda i: pytest.importorskip("jax").numpy.array(i),
]


@pytest.mark.parametrize("kind", INDICES)
def test_take_by_any_integer_array(kind):
    indices = [3, 3, 0, 9, 1]
    taken = wr.SampleList(ROWS).take(kind(indices))
    assert len(taken) == 5
    assert_tensor(wr.stack(taken), np.stack([ROWS[i] for i in indices]))


def test_take_of_range():
    assert_tensor(wr.stack(wr.SampleList(ROWS).take(range(2, 8, 3))), np.stack(ROWS[2:8:3]))


def test_take_feeds_every_form():
    uneven = [paint((n, 3), "int16", n) for n in (2, 5, 1, 4)]
    samples, indices = wr.SampleList(uneven), [2, 0, 2]
    chosen = [uneven[i] for i in indices]
    assert_tensor(wr.pad(samples.take(indices)), oracle.pad(chosen, "int16").data)
    assert_tensor(wr.ragged(samples.take(indices)), oracle.ragged(chosen, "int16").data)
    assert_tensor(wr.concat(samples.take(indices)), oracle.concat(chosen, "int16").data)


def test_take_of_a_take():
    samples = wr.SampleList(ROWS).take([5, 6, 7]).take([2, 0])
    assert_tensor(wr.stack(samples), np.stack([ROWS[7], ROWS[5]]))


def test_take_of_nothing_is_an_empty_list():
    taken = wr.SampleList(ROWS).take(np.array([], np.int64))
    assert len(taken) == 0
    refusal(lambda: wr.stack(taken), ValueError)


def test_one_list_serves_many_batches():
    samples = wr.SampleList(ROWS)
    rng = np.random.default_rng(3)
    for _ in range(50):
        indices = rng.integers(0, 10, 6)
        assert_tensor(wr.stack(samples.take(indices), dtype="float32"), np.stack([ROWS[i] for i in indices]).astype("f4"))


def test_writes_to_a_sample_show_in_the_next_batch():
    rows = [row.copy() for row in ROWS]
    samples = wr.SampleList(rows)
    wr.stack(samples)
    rows[4][:] = -1
    assert_tensor(wr.stack(samples), np.stack(rows))


def test_append_and_extend():
    samples = wr.SampleList([])
    assert len(samples) == 0
    samples.append(ROWS[0])
    samples.extend(ROWS[1:4])
    samples.extend(wr.SampleList(ROWS[4:6]))
    samples.extend([])
    assert len(samples) == 6
    assert_tensor(wr.stack(samples), np.stack(ROWS[:6]))


def test_append_leaves_an_earlier_take_alone():
    samples = wr.SampleList(ROWS[:3])
    taken = samples.take([0, 2])
    samples.extend(ROWS[3:] * 50)
    assert len(taken) == 2
    assert_tensor(wr.stack(taken), np.stack([ROWS[0], ROWS[2]]))


def test_samples_of_its_own_again_and_again():
    samples = wr.SampleList(ROWS)
    table = wr.SampleList(np.stack(ROWS))
    for start in (samples, table):
        before = rss_bytes()
        for _ in range(4000):
            start.append(start[3])
        for _ in range(40):
            start.extend(start.take([3]))
            earlier = start.take([3])
            start.append(ROWS[3])
            start.extend(earlier)
        assert rss_bytes() - before < 32 << 20, "owners were kept once more for each sample"
        assert_tensor(wr.stack(start.take(range(10, 4130))), np.stack([ROWS[3]] * 4120))


def test_samples_of_any_kind_and_shape(torch):
    samples = wr.SampleList([ROWS[0], torch.ones(2), 3, b"abc"])
    assert [tuple(samples[i].shape) for i in range(4)] == [(3, 4), (2,), (), (3,)]
    assert [samples[i].dtype for i in range(4)] == ["int32", "float32", "int64", "uint8"]


def test_samples_are_kept_alive():
    rows = [row.copy() for row in ROWS]
    refs = [weakref.ref(row) for row in rows]
    samples = wr.SampleList(rows)
    taken = samples.take([1])
    del rows
    gc.collect()
    assert all(ref() is not None for ref in refs)
    assert_tensor(wr.stack(samples), np.stack(ROWS))
    del samples
    settle()
    assert refs[1]() is not None
    assert_tensor(wr.stack(taken), np.stack(ROWS[1:2]))
    del taken
    settle()
    assert all(ref() is None for ref in refs)


def test_a_table_is_kept_alive_by_the_list_and_by_each_sample():
    table = paint((5, 3), "int32").copy()
    ref, want = weakref.ref(table), table.copy()
    rows = wr.SampleList(table)
    del table
    settle()
    assert ref() is not None
    assert_tensor(wr.stack(rows), want)
    row = rows[3]
    del rows
    settle()
    assert ref() is not None
    assert_tensor(row, want[3])
    del row
    settle()
    assert ref() is None


def test_a_batch_does_not_hold_the_list():
    row = ROWS[0].copy()
    ref = weakref.ref(row)
    batch = wr.stack(wr.SampleList([row]))
    del row
    settle()
    assert ref() is None
    assert_tensor(batch, np.stack(ROWS[:1]))


# errors


def test_sample_that_is_no_array():
    refusal(lambda: wr.SampleList([ROWS[0], object()]), TypeError, "1", "object")
    samples = wr.SampleList(ROWS)
    refusal(lambda: samples.append("text"), TypeError, "str")
    refusal(lambda: samples.extend([ROWS[0], None]), TypeError, "NoneType")
    assert len(samples) in (10, 11)
    assert_tensor(wr.stack(samples.take(range(10))), np.stack(ROWS))


@pytest.mark.parametrize("bad", [[10], [0, 1, 10**12], np.array([255], np.uint8), np.array([2**64 - 1], np.uint64), [-11]])
def test_index_out_of_range(bad):
    refusal(lambda: wr.SampleList(ROWS).take(bad), IndexError)


@pytest.mark.parametrize("bad", [[0.0, 1.0], np.array([1.5]), "12", [None], 3.5, np.zeros((2, 2), np.int64)])
def test_indices_that_are_no_integer_array(bad):
    refusal(lambda: wr.SampleList(ROWS).take(bad), (TypeError, ValueError))


def test_shape_error_counts_in_the_list_that_was_passed():
    samples = wr.SampleList([paint(3), paint(4), paint(3)])
    refusal(lambda: wr.stack(samples), wr.ShapeError, index=1, expected=(3,), got=(4,))
    refusal(lambda: wr.stack(samples.take([0, 2, 1])), wr.ShapeError, index=2)
    assert_tensor(wr.stack(samples.take([0, 2])), np.stack([paint(3), paint(3)]))


def test_a_tensor_is_the_list_of_its_rows(library_table):
    table, expected = library_table
    rows = wr.SampleList(table)
    assert len(rows) == 5
    assert_tensor(wr.stack(rows.take([4, 0, -4])), expected[[4, 0, 1]])
    assert_tensor(wr.stack(table), expected)
    assert rows[2].data_ptr() == wr.asarray(table).data_ptr() + 2 * expected.strides[0]
    rows.append(expected[1])
    assert_tensor(wr.stack(rows.take([5, 3])), expected[[1, 3]])


@pytest.fixture(params=["numpy", "strided", "torch", "jax", "windrow"])
def library_table(request):
    expected = paint((5, 2, 3), "int32")
    if request.param == "torch":
        return pytest.importorskip("torch").from_numpy(expected.copy()), expected
    if request.param == "jax":
        return pytest.importorskip("jax.numpy").asarray(expected), expected
    if request.param == "windrow":
        return wr.stack(list(expected)), expected
    if request.param == "strided":
        expected = paint((10, 2, 3), "int32")[::2]
    return expected, expected


def test_a_table_without_dims_has_no_rows():
    for call in (wr.SampleList, wr.stack):
        words = r"^samples: expected at least one dim, got shape \(\)$"
        refusal(lambda: call(np.array(1.0)), wr.ShapeError, words, index=None)


# split and joined


@pytest.mark.parametrize("offsets", [[0, 3, 3, 10], [2, 5, 9], [4], [0, 10], [10, 10]])
@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[::-1], lambda x: x[:, ::2], lambda x: x.T.copy().T])
def test_split_gives_the_pieces(offsets, view):
    values = view(paint((10, 4), "int16"))
    for kind in (list, np.array, lambda x: np.array(x, np.int32)):
        samples = wr.SampleList.split(values, kind(offsets))
        assert len(samples) == len(offsets) - 1
        for i, (start, end) in enumerate(zip(offsets, offsets[1:])):
            assert_same(memory(samples[i]), values[start:end])
            assert start == end or samples[i].data_ptr() == values[start:end].ctypes.data


def test_split_of_empty_values():
    samples = wr.SampleList.split(np.empty((0, 3), np.float32), [0, 0, 0])
    assert_tensor(wr.ragged(samples), np.empty((0, 3), np.float32))


def test_split_with_shapes():
    shapes = np.array([[2, 3], [0, 7], [1, 1], [4, 1]])
    offsets = np.concatenate([[0], np.cumsum(shapes.prod(axis=1))])
    values = paint(int(offsets[-1]), "float64")
    samples = wr.SampleList.split(values, offsets, shapes.astype(np.int32))
    rows = [values[a:b].reshape(shape) for a, b, shape in zip(offsets, offsets[1:], shapes)]
    for i, row in enumerate(rows):
        assert_tensor(samples[i], row)
    assert_tensor(wr.pad(samples, value=-1), oracle.pad(rows, "float64", -1).data)
    assert_tensor(wr.SampleList.split(values[:2], [0, 1, 2], np.empty((2, 0), np.int64))[1], values[1])


def test_split_keeps_its_values():
    values = paint((6, 2), "int32")
    watch = weakref.ref(values)
    samples = wr.SampleList.split(values, [0, 1, 6])
    want = values.copy()
    del values
    assert watch() is not None
    assert_tensor(wr.concat(samples), want)
    del samples
    settle()
    assert watch() is None


def test_split_of_read_only_values_is_read_only():
    values = paint(4)
    values.flags.writeable = False
    assert memoryview(wr.SampleList.split(values, [0, 4])[0]).readonly


@pytest.mark.parametrize(
    "offsets, index",
    [([0, 5, 4, 10], 1), ([0, 11], 0), ([0, 5, 11], 1), ([-1, 5], 0), ([11], 0), ([], 0), ([0, 2**63 - 1], 0)],
)
def test_split_checks_offsets(offsets, index):
    refusal(lambda: wr.SampleList.split(paint(10), offsets), wr.ShapeError, index=index)


def test_split_checks_what_it_is_given():
    flat = paint(6)
    split = wr.SampleList.split
    refusal(lambda: split(np.uint8(3), [0, 0]), wr.ShapeError)
    refusal(lambda: split(flat, [[0, 6]]), TypeError)
    refusal(lambda: split(flat, np.array([0.0, 6.0])), TypeError, "offsets are integers")
    refusal(lambda: split(flat, [0, 6], np.array([6])), TypeError, "shapes are integers of two dims")
    refusal(lambda: split(flat, [0, 6], np.array([[2, 2]])), wr.ShapeError, index=0)
    refusal(lambda: split(flat, [0, 2, 6], np.array([[1, 2], [-2, -2]])), wr.ShapeError, index=1)
    refusal(lambda: split(flat, [0, 0, 6], np.array([[0, 2], [2**62, 2**62]])), wr.ShapeError, index=1)
    refusal(lambda: split(flat, [0, 6], np.array([[2, 3], [2, 3]])), wr.ShapeError, "1 shapes")
    refusal(lambda: split(paint((3, 2)), [0, 3], np.array([[3, 2]])), wr.LayoutError, "flat")
    refusal(lambda: split(paint(12)[::2], [0, 6], np.array([[3, 2]])), wr.LayoutError, "flat")


def test_extend_by_another_list():
    table = paint((5, 3), "int16")
    samples = wr.SampleList(table[:2])
    samples.extend(wr.SampleList(table[2:4]))
    samples.extend(wr.SampleList())
    samples.extend(wr.SampleList.split(table.reshape(-1), [12, 15]))
    assert_tensor(wr.stack(samples), table)
    samples.extend(samples)
    assert_tensor(wr.stack(samples), np.concatenate([table, table]))


def test_a_joined_list_outlives_the_other():
    table = paint((4, 3)).copy()
    ref, samples = weakref.ref(table), wr.SampleList()
    samples.extend(wr.SampleList(table))
    del table
    settle()
    assert ref() is not None
    assert_tensor(wr.stack(samples), paint((4, 3)))
    del samples
    settle()
    assert ref() is None


@pytest.mark.parametrize("kind", INDICES)
def test_stack_by_any_integer_array(kind):
    samples, indices = wr.SampleList(ROWS), [3, 3, 0, 9, 1]
    want = np.stack([ROWS[i] for i in indices])
    assert_tensor(samples.stack(kind(indices)), want)
    out = np.zeros((5, 3, 4), np.float32)
    batch = samples.stack(kind(indices), out=out, dtype="float32")
    assert_tensor(batch, want.astype("f4"))
    assert out.tolist() == want.astype("f4").tolist() and batch.data_ptr() == out.ctypes.data


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_stack_by_negative_indices(dtype):
    table = paint((10, 3), "float32")
    samples = wr.SampleList(table)
    assert_tensor(samples.stack(np.array([-1, 0, -10], dtype)), table[[-1, 0, 0]])
    for outside in (10, -11):
        with pytest.raises(IndexError, match=f"index {outside} in a list of 10 samples"):
            samples.stack(np.array([1, outside], dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "<i4"])
def test_rows_of_a_table_by_any_integer_dtype(dtype):
    table = paint((40, 17), "float32")
    samples, indices = wr.SampleList(table), np.array([5, 39, 0, 5, 12], dtype)
    for given in (indices, np.repeat(indices, 2)[::2], np.frombuffer(b"-" + indices.tobytes(), "u1")[1:].view(dtype)):
        assert_tensor(samples.stack(given), table[indices])
        assert_tensor(wr.stack(samples.take(given)), table[indices])
    assert_tensor(samples.stack(indices, dtype="float64"), table[indices].astype("f8"))
    with pytest.raises(IndexError, match="index 40 in a list of 40 samples"):
        samples.stack(np.array([0, 40], dtype))


@pytest.mark.parametrize("indices", [np.array([[0]]), np.array([0.0]), np.array([True]), np.array(0)])
def test_indices_are_integers_of_one_dim(indices):
    with pytest.raises(TypeError, match="indices are integers of one dim"):
        wr.SampleList(paint((4, 3))).stack(indices)


def test_rows_of_a_table_that_moved_are_refused():
    table = np.zeros((4, 3), np.float32)
    samples = wr.SampleList(table)
    relocate(table)
    refusal(lambda: samples.stack(np.array([2])), wr.LayoutError, "memory that was moved", index=0)


def test_stack_of_a_list_refuses_what_stack_does():
    samples = wr.SampleList([ROWS[0], ROWS[1][:2]])
    refusal(lambda: samples.stack([0, 0, 1]), wr.ShapeError, r"sample 2: expected shape \(3, 4\)", index=2)
    refusal(lambda: samples.stack([]), ValueError)
    refusal(lambda: samples.stack([0], axis=0), TypeError, "dim 0 is always that of the samples")
    with pytest.raises(TypeError):
        samples.stack([0.5])
    moved = np.zeros(6, np.uint8)
    samples = wr.SampleList([moved, np.zeros(6, np.uint8)])
    relocate(moved)
    assert_tensor(samples.stack([1]), np.zeros((1, 6), np.uint8))
    refusal(lambda: samples.stack([1, 0]), wr.LayoutError, index=1)
