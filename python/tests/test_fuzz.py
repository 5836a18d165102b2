"""What fuzzing found, and a short run of each target of `python/fuzz`."""

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
    """A sequence without an end, of any length that it likes to give."""

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
