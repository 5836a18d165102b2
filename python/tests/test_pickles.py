"""Pickles and deep copies of tensors, batches and lists: by value, of any layout."""

import copy
import multiprocessing
import pickle

import numpy as np
import pytest

import windrow as wr
from helpers import PICKLED_BY, assert_same, assert_tensor, memory, paint, paint_values, refusal
from test_sample_list_trees import assert_same_tree, makers, nested, registered  # noqa: F401

LAYOUTS = {
    "row-major": lambda x: x,
    "strided": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "rows apart": lambda x: np.pad(x, ((0, 0), (2, 3)))[:, 2:-3],
    "Fortran": np.asfortranarray,
    "reversed": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "empty": lambda x: x[:0],
    "no dims": lambda x: x[1, 2],
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
}


@pytest.mark.parametrize("how", PICKLED_BY)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["float32", "uint8", "complex128"])
def test_tensors(layout, how, name):
    array = np.asarray(LAYOUTS[layout](paint((4, 6), name)))
    tensor = wr.asarray(array)
    again = PICKLED_BY[how](tensor)
    assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
    assert_same(memory(again), np.array(array, order="C"))
    assert again.data_ptr() != tensor.data_ptr() or tensor.nbytes == 0


def outputs():
    rows = [paint_values((n, 3), "float32", n) for n in (2, 4, 1)]
    even = [row[:1] for row in rows]
    return {
        "stack": lambda out: wr.stack(even, out=out((3, 1, 3))),
        "pad": lambda out: wr.pad(rows, mask="pad", out=out((3, 4, 3))),
        "ragged": lambda out: wr.ragged(rows, out=out((7, 3))),
        "concat": lambda out: wr.concat(rows, out=out((7, 3))),
        "view": lambda out: wr.stack(list(out((2, 3))), copy=None),
    }


OUTS = {
    "strided": lambda shape: np.zeros((*shape, 2), np.float32)[..., 0],
    "Fortran": lambda shape: np.zeros(shape, np.float32, "F"),
    "reversed": lambda shape: np.zeros(shape, np.float32)[::-1],
}


@pytest.mark.parametrize("how", PICKLED_BY)
@pytest.mark.parametrize("layout", OUTS)
@pytest.mark.parametrize("form", outputs())
def test_batches_in_outputs_of_any_layout(form, layout, how):
    batch = outputs()[form](OUTS[layout])
    again = PICKLED_BY[how](batch)
    assert len(again) == len(batch) and again.max_length == batch.max_length
    for name in ("data", "lengths", "offsets", "mask", "batch_index"):
        got, want = getattr(again, name), getattr(batch, name)
        assert (got is None) == (want is None)
        if want is not None:
            assert_tensor(got, np.array(want.numpy(), order="C"))
    for got, want in zip(again, batch):
        assert_tensor(got, np.array(want.numpy(), order="C"))


def test_outputs_of_torch(torch):
    for out in (torch.zeros(4, 6)[:, ::2], torch.zeros(3, 4).t(), torch.zeros(4, 3)):
        batch = wr.stack(list(paint_values((4, 3), "float32")), out=out)
        assert_tensor(PICKLED_BY["deepcopy"](batch).data, paint_values((4, 3), "float32"))


TABLE = paint((5, 4), "int32")
LISTS = {
    "empty": lambda: wr.SampleList(),
    "uniform": lambda: wr.SampleList(list(TABLE)),
    "rows of a table": lambda: wr.SampleList(TABLE[:, ::2]),
    "lengths": lambda: wr.SampleList([paint(n, "int64", n) for n in (3, 0, 7, 3, 1)]),
    "shapes": lambda: wr.SampleList([paint((n, n, 2), "uint8", n) for n in (3, 1, 2, 3, 0)]),
    "numbers of dims": lambda: wr.SampleList([paint((2,) * n, "uint8", n) for n in (2, 0, 1, 3, 0, 2)]),
    "dtypes": lambda: wr.SampleList([paint(3, name) for name in ("int8", "bool", "float64", "int8", "complex64", "float16")]),
    "numbers": lambda: wr.SampleList([1, 2.5, True, [1, 2], (0.5,)]),
    "bytes": lambda: wr.SampleList([b"ab", b"", b"cde"]),
    "strides": lambda: wr.SampleList([paint((4, 6))[:, ::2], paint((3, 4)).T, paint((4, 3))[::-1], np.broadcast_to(paint(3), (2, 3))]),
    "windows": lambda: wr.windows(paint(40), [3, 0, 3, 20], 7),
    "crops": lambda: wr.crops([paint((9, 9))] * 2, [[0, 0, 3, 4], [2, 2, 5, 6]], flip=[True, False]),
    "split": lambda: wr.SampleList.split(paint(12), [0, 2, 2, 12]),
    "taken": lambda: wr.SampleList(list(TABLE)).take([3, 0, 3]),
    "slice": lambda: wr.SampleList(TABLE)[::-2],
    "replaced": lambda: replaced(wr.SampleList(TABLE), 2, paint((2, 2), "float32")),
    "layouts of samples that are gone": lambda: replaced(wr.SampleList([paint((2, 3)), paint(4)]), 0, paint(4)),
    "batch": lambda: wr.SampleList(wr.ragged([paint(2), paint(5)])),
    "zero bytes": lambda: wr.SampleList(np.zeros((4, 0, 3), np.float32)),
}


def replaced(samples, index, sample):
    samples[index] = sample
    return samples


def assert_same_lists(got, want):
    assert type(got) is wr.SampleList and len(got) == len(want)
    for one, other in zip((got[i] for i in range(len(got))), (want[i] for i in range(len(want)))):
        assert one.dtype == other.dtype
        assert_tensor(one, np.array(other.numpy(), order="C"))


@pytest.mark.parametrize("how", PICKLED_BY)
@pytest.mark.parametrize("kind", LISTS)
def test_lists(kind, how):
    samples = LISTS[kind]()
    again = PICKLED_BY[how](samples)
    assert_same_lists(again, samples)
    again.append(paint(3))
    assert len(again) == len(samples) + 1


WITHOUT_NUMBERS = {
    "alone": lambda: wr.SampleList([[], ()]),
    "before others": lambda: wr.SampleList([[], [], [1, 2]]),
    "among others": lambda: wr.SampleList([[1.5], [], [2.5, 3.5], []]),
    "beside an empty array": lambda: wr.SampleList([[], np.zeros(0, np.float32), []]),
    "whose dtype was another's": lambda: replaced(wr.SampleList([[], np.zeros(2, np.int16)]), 1, []),
    "among dtypes": lambda: wr.SampleList([paint(3, "int8"), [], paint(3, "float16"), paint(3, "int8"), []]),
}


@pytest.mark.parametrize("how", PICKLED_BY)
@pytest.mark.parametrize("sample", [[1, 2], [0.5], np.ones(2, np.uint8)])
@pytest.mark.parametrize("kind", WITHOUT_NUMBERS)
def test_rows_without_numbers_have_the_dtype_of_later_ones(kind, sample, how):
    samples = WITHOUT_NUMBERS[kind]()
    again = PICKLED_BY[how](samples)
    assert_same_lists(again, samples)
    for one in (samples, again):
        one.append(sample)
    assert_same_lists(again, samples)


def test_lists_of_torch_tensors(torch):
    samples = wr.SampleList([torch.full((n, 2), float(n), dtype=torch.bfloat16) for n in (1, 3, 2)])
    again = PICKLED_BY["deepcopy"](samples)
    assert [t.torch().tolist() for t in (again[0], again[1], again[2])] == [[[n, n]] * int(n) for n in (1.0, 3.0, 2.0)]


@pytest.mark.parametrize("make", [wr.asarray, wr.stack])
def test_shallow_copies_share_memory(make):
    made = make(TABLE)
    assert copy.copy(made).data_ptr() == made.data_ptr() != PICKLED_BY["deepcopy"](made).data_ptr()


def test_a_list_is_pickled_by_value():
    table = TABLE.copy()
    samples = wr.SampleList(table)
    again, shared = PICKLED_BY["deepcopy"](samples), copy.copy(samples)
    table[:] = 0
    assert_same_lists(again, wr.SampleList(TABLE))
    assert not shared[1].numpy().any()
    shared[1] = TABLE[1]
    assert not samples[1].numpy().any(), "a list that shared its samples changed with the other"


def test_the_samples_of_one_shape_are_one_buffer():
    buffers = []
    samples = wr.SampleList([paint(9, "int16", n) for n in range(2000)])
    head = pickle.dumps(samples, 5, buffer_callback=buffers.append)
    assert len(buffers) == 1 and len(head) < 1000 and buffers[0].raw().nbytes == 2000 * 18


@pytest.mark.parametrize("how", PICKLED_BY)
def test_lists_of_trees(how, registered):  # noqa: F811
    for make in [*makers(registered).values(), nested]:
        samples = wr.SampleList([make(i) for i in range(5)]).take([4, 0, 2])
        again = PICKLED_BY[how](samples)
        assert type(again) is wr.SampleList and len(again) == 3
        assert_same_tree(wr.collate(again), wr.collate(samples))
        again[0] = make(7)
        again.append(make(8))
        assert_same_tree(wr.collate(again), wr.collate([make(i) for i in (7, 0, 2, 8)]))


@pytest.mark.parametrize("how", PICKLED_BY)
@pytest.mark.parametrize("tree", [{}, {"a": {}}, {"a": [{}, {}], "b": {}}])
def test_trees_without_leaves(tree, how):
    again = PICKLED_BY[how](wr.SampleList([tree] * 3))
    assert len(again) == 3 and [again[i] for i in range(3)] == [tree] * 3
    refusal(lambda: again.append({"b": 1}), (KeyError, TypeError, ValueError))


@pytest.mark.parametrize("how", PICKLED_BY)
def test_a_list_of_no_trees(how, registered):  # noqa: F811
    for make in [*makers(registered).values(), nested, lambda i: {"x": paint(3, "int16", i), "y": "a", "z": [1, 2]}]:
        again = PICKLED_BY[how](wr.SampleList([make(0), make(1)])[:0])
        assert len(again) == 0
        # Appended samples must have the structure that the samples had.
        refusal(lambda again=again: again.append({"no such": 1}), (KeyError, TypeError, ValueError))
        again.extend([make(7), make(8)])
        assert_same_tree(wr.collate(again), wr.collate([make(7), make(8)]))


def test_a_list_of_no_graphs():
    data = pytest.importorskip("torch_geometric.data").Data
    again = PICKLED_BY["deepcopy"](wr.SampleList([{"g": data(), "y": 1}])[:0])
    refusal(lambda: again.append({"g": 1, "y": 1}), TypeError, "g")


def test_memory_that_moved_is_no_pickle(torch):
    sample = torch.zeros(3)
    for samples in (wr.SampleList([sample]), wr.SampleList([{"x": sample}])):
        sample.resize_(100_000)
        refusal(lambda: pickle.dumps(samples), wr.LayoutError, "sample 0", "moved")
        sample = torch.zeros(3)


@pytest.mark.parametrize("change", [[0, 0], [0, 2], [-1, 0], [0], [0, 1, 1]])
def test_a_list_that_lies_is_an_error(change):
    make, ([first, second],) = wr.SampleList([paint(2), paint((2, 2))]).__reduce_ex__(5)
    numbers = np.array(change, "<i8").tobytes()
    lies = [(first[0], None, numbers[:8]), (second[0], None, numbers[8:])]
    refusal(lambda: make(lies), ValueError, "positions")
    refusal(lambda: make([(first[0], np.array([0, 3], "<i8").tobytes(), None)]), wr.ShapeError)
    make, (tree, columns, count) = wr.SampleList([{"x": paint(2), "y": "a"}] * 2).__reduce_ex__(5)
    refusal(lambda: make(tree, columns[:1], count), ValueError, "structure")
    refusal(lambda: make(tree, columns[::-1], count), ValueError, "structure")
    refusal(lambda: make(tree, [columns[0], ["a"]], count), ValueError, "structure")
    refusal(lambda: make(tree, columns, 3), ValueError, "structure")


def sum_of(samples):
    return sum(int(samples[i].numpy().sum()) for i in range(len(samples)))


@pytest.mark.slow
def test_a_worker_that_is_spawned_has_the_list():
    samples = LISTS["lengths"]()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(sum_of, (samples,)) == sum_of(samples)
