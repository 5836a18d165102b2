"""Findings of fuzzing, and a short run of each target of `python/fuzz`."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import windrow as wr

sys.path.append(str(Path(__file__).parents[1] / "fuzz"))

import targets  # noqa: E402


@pytest.mark.parametrize("target", targets.TARGETS, ids=lambda target: target.__name__)
def test_target(target):
    targets.run(target, examples=150)


class Endless(Sequence):
    """An infinite sequence that reports any length."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return 1


class Long(list):
    def __len__(self):
        return 2**45


@pytest.mark.parametrize("length", [-1, 0, 3, 2**45, 2**60])
@pytest.mark.parametrize("key", ["shape", "strides"])
def test_interface_without_an_end(key, length):
    array = np.zeros((2, 3), np.float32)
    interface = {**array.__array_interface__, key: Endless(length)}
    holder = type("Holder", (), {"__array_interface__": interface})()
    with pytest.raises(ValueError if key == "shape" else (BufferError, ValueError)):
        wr.asarray(holder)
    interface[key] = range(2**60)
    with pytest.raises((ValueError, BufferError)):
        wr.asarray(holder)


def test_ranges_beyond_memory():
    row, endless = np.zeros(3), range(2**60)
    samples = wr.SampleList([row])
    calls = [wr.stack, wr.collate, wr.SampleList, samples.take, samples.extend, lambda r: wr.SampleList.split(row, r)]
    for call in calls:
        with pytest.raises(MemoryError):
            call(endless)
    for name in ("dims", "size", "multiple_of", "side"):
        with pytest.raises(MemoryError):
            wr.pad([row], **{name: endless})
    for name in ("mean", "std", "permute"):
        with pytest.raises(MemoryError):
            wr.Transform(**{name: endless})
    assert len(samples) == 1


@pytest.mark.parametrize("length", [0, 2**45, 2**60])
def test_names_of_fields_that_lie_about_their_number(length):
    class Names(Endless):
        def __getitem__(self, index):
            return "xyz"[index]

    named = type("Named", (tuple,), {"_fields": Names(length), "__new__": lambda cls, *entries: tuple.__new__(cls, entries)})
    batch = wr.collate([named(1, 2), named(3, 4)], {"y": wr.Stack(dtype="float32")})
    assert type(batch) is named and [entry.dtype for entry in batch] == ["int64", "float32"]


def test_lists_that_lie_about_their_length():
    with pytest.raises(IndexError):
        wr.collate([Long([1, 2])])
    rows = wr.SampleList([1.0, 2.0, 3.0])
    assert len(rows.take(Long([2, 0]))) == 2


def test_a_spec_that_changes_while_it_is_read():
    spec = {}

    class Growing:
        form = "stack"

        @property
        def kwargs(self):
            spec[f"other{len(spec)}"] = wr.Stack()
            return {}

    spec["x"] = Growing()
    spec["y"] = Growing()
    batch = wr.collate([{"x": 1, "y": 3}, {"x": 2, "y": 4}], spec)
    assert batch["x"].numpy().tolist() == [1, 2]


def test_more_rows_than_memory():
    for table in (np.empty((2**45, 0)), np.broadcast_to(np.arange(3.0), (2**45, 3))):
        with pytest.raises(MemoryError):
            wr.stack(table)
        rows = wr.SampleList(table)
        with pytest.raises(MemoryError):
            rows.append(table[0])
        with pytest.raises(MemoryError):
            rows.extend(rows)
        assert len(rows) == 2**45
        assert wr.stack(rows.take([5, -1])).numpy().tolist() == table[:2].tolist()


def test_outputs_of_a_tree_that_share_memory():
    """All leaves are written at the same time: `out` of one must not be that of another, nor its samples."""
    x, y = np.arange(6, dtype=np.int32), np.arange(6, dtype=np.int32) * 10
    samples = [{"a": x, "b": y}] * 2
    out = np.full((4, 6), 0x5A, np.int32)
    for a, b in [(out[:2], out[:2]), (out[:2], out[1:3]), (out[::2], out[1:3]), (out[:2], out[1::-1])]:
        with pytest.raises(wr.LayoutError, match='the output at "a"') as error:
            wr.collate(samples, out={"a": a, "b": b})
        assert error.value.path == "b" and (out == 0x5A).all()
    own = np.arange(12, dtype=np.int32).reshape(2, 6)
    with pytest.raises(wr.LayoutError, match='the output at "b"') as error:
        wr.collate([{"a": y, "b": y}, {"a": own[1], "b": y}], out={"a": out[:2], "b": own})
    assert (error.value.path, error.value.index) == ("a", 1)
    assert own.ravel().tolist() == list(range(12)) and (out == 0x5A).all()


@pytest.mark.parametrize("step", [1, -1])
def test_outputs_of_a_tree_side_by_side(step):
    """Columns of one table are apart, though their bytes are between each other."""
    samples = [{"a": np.arange(3) + i, "b": np.arange(2) - i, "c": np.int64(i)} for i in range(4)]
    table = np.full((4, 6), 99)[::step]
    wr.collate(samples, out={"a": table[:, 1:4], "b": table[:, 4:], "c": table[:, 0]})
    want = [[i, *range(i, i + 3), -i, 1 - i] for i in range(4)]
    assert table.tolist() == want
    with pytest.raises(wr.LayoutError):
        wr.collate(samples, out={"a": table[:, :3], "b": table[:, 2:4], "c": np.zeros(4, int)})
