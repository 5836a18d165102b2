"""Lists and tuples of Python numbers as samples of one dim, beside numpy.array of the same lists."""

import enum
from collections import namedtuple

import numpy as np
import pytest

import windrow as wr
from helpers import assert_tensor, refusal

ROWS = [[1, 2, 3], [4], [], (5, -6)]


@pytest.mark.parametrize(
    "row",
    [
        [1],
        (3, 2, 1),
        [2**63 - 1, -(2**63)],
        [1.5, float("inf"), -0.0],
        [1, 2.5],
        [2.5, 1],
        [2**53 + 1, 0.0, -(2**63)],
        [True],
        [True, False] * 4,
        [False, True, True] * 3,
        list(range(3000)),
    ],
)
def test_values_and_dtype(row):
    want = np.array(row)
    assert_tensor(wr.asarray(row), want)
    assert_tensor(wr.stack([row, tuple(row)]), np.stack([want, want]))


def test_number_subclasses_and_tuple_subclasses():
    Color = enum.IntEnum("Color", "RED GREEN")
    point = namedtuple("Point", "x y")(Color.GREEN, 3)
    assert_tensor(wr.stack([point, [Color.RED, 1]]), np.array([[2, 3], [1, 1]]))
    assert_tensor(wr.asarray([np.float64(1.5), 2.0]), np.array([1.5, 2.0]))


def test_every_form():
    flat = np.array([1, 2, 3, 4, 5, -6])
    padded = np.array([[1, 2, 3], [4, 9, 9], [9, 9, 9], [5, -6, 9]])
    assert_tensor(wr.concat(ROWS), flat)
    assert_tensor(wr.ragged(ROWS), flat)
    assert wr.ragged(ROWS).lengths.numpy().tolist() == [3, 1, 0, 2]
    assert_tensor(wr.pad(ROWS, value=9), padded)
    assert_tensor(wr.pad(ROWS, value=9, dtype="float32"), padded.astype("f4"))
    assert_tensor(wr.pad(wr.SampleList(ROWS).take([3, 1]), value=9), padded[[3, 1], :2])
    assert wr.explain(ROWS, "ragged").bytes_written == wr.explain([np.array(row, int) for row in ROWS], "ragged").bytes_written


def test_beside_other_samples():
    samples = [np.array([1, 2]), [3], wr.asarray([4, 5]), np.arange(1), []]
    assert_tensor(wr.concat(samples), np.array([1, 2, 3, 4, 5, 0]))


def test_many_rows_share_memory_and_do_not_move():
    rows = [list(range(n, 2 * n)) for n in range(600)]
    taken = wr.SampleList(rows)
    assert_tensor(wr.concat(taken), np.concatenate([np.array(row, int) for row in rows]))
    bools = [[i % 3 == 0 for i in range(n)] for n in range(40)]
    assert_tensor(wr.concat(bools), np.concatenate([np.array(row, bool) for row in bools]))


@pytest.mark.parametrize("other", [[1, 2], [1.5], [True], np.ones(2, "f4"), np.ones(2, "u1")[::-1], memoryview(b"ab")])
def test_an_empty_row_has_the_dtype_of_its_neighbours(other):
    want = np.asarray(other)
    for rows in ([other, []], [[], other], [(), [], other, []], [[], other, other]):
        assert_tensor(wr.concat(rows), np.concatenate([want] * sum(len(row) > 0 for row in rows)))
        assert wr.ragged(rows).lengths.numpy().tolist() == [len(row) for row in rows]
    grown = wr.SampleList([other])
    grown.append([])
    grown.extend([[], other])
    assert_tensor(wr.concat(grown), np.concatenate([want, want]))


def test_empty_rows_alone():
    for rows in ([[]], [[], ()]):
        assert_tensor(wr.ragged(rows), np.zeros(0))
    assert_tensor(wr.asarray([]), np.zeros(0))


@pytest.mark.parametrize(
    "row, error, text",
    [
        ([1, True], wr.DTypeError, "expected int64, got a bool at position 1"),
        ([0.5, 1, False], wr.DTypeError, "expected float64, got a bool at position 2"),
        ([True, 1], wr.DTypeError, "expected bool, got an int at position 1"),
        ([True, 1.0], wr.DTypeError, "expected bool, got a float at position 1"),
        ([1, None], TypeError, "got NoneType at position 1$"),
        ([None], TypeError, "got NoneType at position 0$"),
        ([[1, 2]], TypeError, "got list at position 0; numpy.asarray"),
        ([1, (2,)], TypeError, "got tuple at position 1"),
        ([1, "a"], TypeError, "got str at position 1$"),
        ([b"1"], TypeError, "got bytes at position 0$"),
        ([1j], TypeError, "got complex at position 0"),
        ([np.float32(1)], TypeError, "got numpy.float32 at position 0"),
        ([np.ones(2)], TypeError, "got numpy.ndarray at position 0"),
        ([1, 2**63], wr.DTypeError, f"expected int64, got the int {2**63} at position 1"),
        ([1, 2**70, True, -(2**63) - 1], wr.DTypeError, f"expected int64, got the int {2**70} at position 1"),
        ([1.5, 10**400], wr.DTypeError, "expected float64, got an int that no float has at position 1"),
        ([-(10**400), 1.5], wr.DTypeError, "expected float64, got an int that no float has at position 0"),
        ([2**70, 1.5, True], wr.DTypeError, "expected float64, got a bool at position 2"),
        ([10**5000], wr.DTypeError, "got an int beyond 64 bits at position 0"),
    ],
)
def test_rows_that_are_refused(row, error, text):
    for make in (list, tuple):
        refusal(lambda: wr.pad([[1], make(row)]), error, "^sample 1: ", text, index=1)
        refusal(lambda: wr.collate([{"a": [1]}, {"a": make(row)}], {"a": wr.Pad()}), error, '^sample 1 at "a": ', text, path="a")
    refusal(lambda: wr.asarray(row), error, text)


def test_rows_of_several_dtypes_are_not_cast_unasked():
    refusal(lambda: wr.pad([[1], [1.5]]), wr.DTypeError, "dtype=", index=1)
    assert_tensor(wr.pad([[1], [1.5]], dtype="float64"), np.array([[1], [1.5]]))


def test_a_list_is_no_output():
    refusal(lambda: wr.stack([1, 2], out=[0, 0]), TypeError, "got list")


def test_a_leaf_only_where_a_spec_names_exactly_its_path():
    trees = [{"a": [1, 2], "b": (1, 2)}, {"a": [3], "b": (3, 4)}]
    batch = wr.collate(trees, {"a": wr.Pad(mask="real")})
    assert_tensor(batch["a"], np.array([[1, 2], [3, 0]]))
    assert type(batch["b"]) is tuple
    assert_tensor(batch["b"][1], np.array([2, 4]))
    batch = wr.collate(trees, {"a": wr.Ragged(), "b": wr.Stack(dtype="float32")})
    assert_tensor(batch["a"], np.array([1, 2, 3]))
    assert_tensor(batch["b"], np.array([[1, 2], [3, 4]], "f4"))
    assert_tensor(wr.collate([[1, 2], [3]], {"": wr.Pad()}), np.array([[1, 2], [3, 0]]))
    deep = wr.collate([{"x": [{"y": [1]}]}, {"x": [{"y": [2, 3]}]}], {"x.0.y": wr.Ragged()})
    assert_tensor(deep["x"][0]["y"], np.array([1, 2, 3]))
    # A glob is not the path: the lists are containers, of unequal length here.
    for spec in (None, {"*": wr.Pad()}, wr.Pad()):
        cure = r'sample 1 at "a": expected 2 entries, got 1; spec={"a": wr.Pad\(\)} takes a list of numbers as one sample'
        refusal(lambda: wr.collate(trees, spec), ValueError, cure)


def test_an_array_in_one_sample_and_a_list_in_the_next():
    trees = [{"a": np.array([1, 2])}, {"a": [3, 4]}]
    for samples, at in ((trees, 1), (trees[::-1], 1)):
        refusal(lambda: wr.collate(samples), TypeError, f'sample {at} at "a"')
        assert wr.collate(samples, {"a": wr.Stack()})["a"].shape == (2, 2)
    refusal(lambda: wr.collate(trees), TypeError, r'spec={"a": wr.Pad\(\)}')


def test_in_a_collate_fn_of_torch(torch):
    import windrow.torch

    trees = [{"a": [1, 2], "b": [1, 2]}, {"a": [3], "b": [3, 4]}]
    batch = windrow.torch.collate_fn({"a": wr.Pad()})(trees)
    assert batch["a"].data.tolist() == [[1, 2], [3, 0]] and batch["a"].lengths.tolist() == [2, 1]
    assert [column.tolist() for column in batch["b"]] == [[1, 3], [2, 4]]
    mixed = [{"a": torch.ones(2)}, {"a": [1.0, 1.0]}]
    with pytest.raises(TypeError) as ours:
        windrow.torch.collate_fn()(mixed)
    with pytest.raises(TypeError) as theirs:
        torch.utils.data.default_collate(mixed)
    assert str(ours.value) == str(theirs.value)


def test_an_int_of_a_class_is_read_as_an_int():
    def converted(self):
        raise KeyboardInterrupt

    number = type("Own", (int,), {"__float__": converted})
    assert wr.asarray([1.5, number(2**70), number(7)]).numpy().tolist() == [1.5, float(2**70), 7.0]


@pytest.mark.parametrize("make", [list, tuple])
@pytest.mark.parametrize(
    "values",
    [
        [0, 1, -1, 255, 256, -5, -6],
        [2**30 - 1, 2**30, -(2**30) + 1, -(2**30)],
        [2**60, -(2**60), 2**63 - 1, -(2**63)],
        list(range(-300, 300)),
        [0.0, -0.0, 1.5, float("inf"), 5e-324],
        [1, 2.5, 3],
        [2.5, 1, 2**40],
        [2.5, 2**70, -(2**65)],
        [2**70, 7, 2**64, 2.5],
        [True, False, True],
    ],
)
def test_numbers_of_every_size(make, values):
    """Ints of one digit are read from the objects, the others by a call."""
    want = np.array(values, float if float in map(type, values) else None)
    for rows in ([make(values)], [make(values), make(values[::-1])]):
        batch = wr.ragged(rows)
        assert batch.dtype == want.dtype.name
        assert batch.numpy().tolist() == [value for row in rows for value in row]


class Whole(int):
    pass


def test_subclasses_among_ints():
    assert wr.stack([[1, Whole(2), 3]]).numpy().tolist() == [[1, 2, 3]]
    assert wr.stack([[Whole(7), 2]]).dtype == "int64"


@pytest.mark.parametrize("other, got", [(True, "a bool"), (None, "NoneType"), ([1], "list"), (2**64, "the int")])
@pytest.mark.parametrize("position", [0, 1, 39])
def test_what_is_no_int_is_named_by_sample_and_position(other, got, position):
    row = list(range(40))
    row[position] = other
    if position == 0 and other is True:
        got = "an int"
    with pytest.raises((TypeError, wr.DTypeError), match=f"sample 1: .*{got}.* at position {1 if got == 'an int' else position}"):
        wr.pad([[1, 2], row])
