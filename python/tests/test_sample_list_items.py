"""wr.SampleList as a list: items that are replaced, and slices."""

import gc
import itertools
import random
import weakref

import numpy as np
import pytest

import windrow as wr
from helpers import assert_tensor, paint, refusal, rss_bytes

ROWS = [paint((3, 4), "int32", 7 * i) for i in range(10)]


def everything(samples):
    return [memoryview(sample).tolist() for sample in (samples[i] for i in range(len(samples)))]


def makers(torch):
    """Samples of every kind that a list can hold: a maker, and the values."""
    return [
        lambda seed: np.full(3, seed, np.int64),
        lambda seed: torch.full((3,), seed),
        lambda seed: [seed, seed, seed],
        lambda seed: wr.asarray(np.full(3, seed, np.int64)),
        lambda seed: np.full((2, 3), seed, np.int64)[1],
        lambda seed: np.full(5, seed, np.int64)[: seed % 4],
        lambda seed: np.full((2, 4), seed, np.int64).T,
        lambda seed: torch.full((6,), seed)[::2],
    ]


@pytest.mark.parametrize("kinds", [slice(0, 1), slice(0, 3), slice(0, 6), slice(0, 8), slice(3, 4), slice(6, 8)])
@pytest.mark.parametrize("start", ["list", "table", "take", "appended", "empty"])
def test_a_random_walk_is_that_of_a_plain_list(kinds, start, torch):
    chance = random.Random(f"{kinds}{start}")
    make = makers(torch)[kinds]
    table = np.arange(30).reshape(10, 3)
    ours = wr.SampleList({"list": list(table), "table": table, "take": wr.SampleList(table).take(np.arange(10))}.get(start))
    plain = [] if start in ("empty", "appended") else table.tolist()
    for row in table.tolist() if start == "appended" else ():
        ours.append(np.array(row))
        plain.append(row)
    snapshots = []
    for step in range(300):
        sample = chance.choice(make)(step)
        values = sample if isinstance(sample, list) else memoryview(np.asarray(sample)).tolist()
        what = chance.random()
        if not plain or what < 0.15:
            ours.append(sample)
            plain.append(values)
        elif what < 0.75:
            index = chance.randrange(-len(plain), len(plain))
            ours[index] = sample
            plain[index] = values
        elif what < 0.8:
            source, target = chance.randrange(len(plain)), chance.randrange(len(plain))
            ours[target] = ours[source]
            plain[target] = plain[source]
        elif what < 0.85:
            indices = [chance.randrange(len(plain)) for _ in range(3)]
            ours.extend(ours.take(indices))
            plain += [plain[index] for index in indices]
        elif what < 0.95:
            part = slice(*(chance.choice([None, *range(-len(plain) - 2, len(plain) + 2)]) for _ in range(2)), chance.choice([None, 1, 2, -1, -3]))
            snapshots.append((ours[part], plain[part]))
        else:
            indices = [chance.randrange(-len(plain), len(plain)) for _ in range(5)]
            snapshots.append((ours.take(np.array(indices)), [plain[index] for index in indices]))
            del snapshots[:-6]
        if step % 20 == 0:
            gc.collect()
            assert everything(ours) == plain
            for taken, values in snapshots:
                assert everything(taken) == values
    gc.collect()
    assert everything(ours) == plain and len(ours) == len(plain)


def test_a_replaced_sample_is_not_written_to():
    rows = [row.copy() for row in ROWS]
    samples = wr.SampleList(rows)
    before, kept = samples.take([2, 3]), samples[2]
    samples[2] = np.zeros((3, 4), np.int32)
    samples[-7] = np.ones((3, 4), np.int32)
    assert (rows[2] == ROWS[2]).all()
    assert_tensor(wr.stack(samples), np.stack([*ROWS[:2], np.zeros((3, 4), np.int32), np.ones((3, 4), np.int32), *ROWS[4:]]))
    assert_tensor(wr.stack(before), np.stack(ROWS[2:4]))
    assert_tensor(kept, ROWS[2])


class Held(np.ndarray):
    """An array that a weak reference can watch."""


def array(value):
    return np.full(4, value, np.float32).view(Held)


@pytest.mark.parametrize("start", ["list", "append"])
def test_replaced_samples_are_let_go_of(start):
    first = [array(i) for i in range(8)]
    dead = [weakref.ref(sample) for sample in first]
    samples = wr.SampleList(first if start == "list" else None)
    if start == "append":
        for sample in first:
            samples.append(sample)
    del first
    sample = None
    for turn in range(3):
        for index in range(8):
            sample = array(10 * turn + index)
            dead.append(weakref.ref(sample))
            samples[index] = sample
        sample = None
        gc.collect()
        alive = [ref() is not None for ref in dead]
        assert alive == [False] * (len(dead) - 8) + [True] * 8, turn
        assert (samples.stack(range(8)).numpy()[:, 0] == 10 * turn + np.arange(8)).all()
    taken, item = samples.take([0, 5]), samples[1]
    samples[0] = samples[1] = samples[5] = array(7)
    gc.collect()
    assert sum(ref() is not None for ref in dead) == 8
    assert wr.stack(taken).numpy()[:, 0].tolist() == [20, 25] and item.numpy()[0] == 21
    del taken, item
    gc.collect()
    assert sum(ref() is not None for ref in dead) == 5


class Lent:
    def __init__(self, value):
        self.array = np.full(4, value, np.float32)


class LentByInterface(Lent):
    @property
    def __array_interface__(self):
        return self.array.__array_interface__


class LentByCapsule(Lent):
    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class LentByBuffer(bytearray):
    pass


KINDS = {
    "numpy": array,
    "strided": lambda value: np.full((4, 3), value, np.float32)[:, 1].view(Held),
    "array interface": LentByInterface,
    "dlpack": LentByCapsule,
    "buffer": lambda value: LentByBuffer(np.full(16, value, np.uint8).tobytes()),
    "asarray": lambda value: wr.asarray(array(value)),
    "batch": lambda value: wr.stack([array(value)]),
    "torch": lambda value: __import__("torch").full((4,), float(value)),
    "torch subclass": lambda value: subclass_of(__import__("torch"), value),
    "jax": lambda value: pytest.importorskip("jax").numpy.full(4, float(value)),
}


def subclass_of(torch, value):
    return torch.full((4,), float(value)).as_subclass(type("Mine", (torch.Tensor,), {}))


def watched(sample, kind):
    """A weak reference to what has to end with the sample."""
    return weakref.ref(sample.untyped_storage() if kind.startswith("torch") else sample)


BEGIN = {
    "list": wr.SampleList,
    "tuple": lambda first: wr.SampleList(tuple(first)),
    "iterator": lambda first: wr.SampleList(iter(first)),
    "extend": lambda first: changed(lambda samples: samples.extend(first)),
    "append": lambda first: changed(lambda samples: [samples.append(sample) for sample in first]),
    "joined": lambda first: changed(lambda samples: [samples.extend(wr.SampleList(part)) for part in (first[:3], first[3:])]),
    "take": lambda first: wr.SampleList(first).take(range(len(first))),
    "slice": lambda first: wr.SampleList(first)[:],
    "tree": lambda first: wr.SampleList([{"x": [sample, 1]} for sample in first]),
}


def changed(change):
    samples = wr.SampleList()
    change(samples)
    return samples


@pytest.mark.parametrize("begin", BEGIN)
@pytest.mark.parametrize("kind", KINDS)
def test_each_sample_is_let_go_of_at_once(kind, begin, torch):
    make, refs = KINDS[kind], []

    def one(value):
        sample = make(value)
        refs.append(watched(sample, kind))
        return sample

    def alive():
        return [number for number, ref in enumerate(refs) if ref() is not None]

    samples = BEGIN[begin]([one(value) for value in range(6)])
    gc.collect()
    assert alive() == [0, 1, 2, 3, 4, 5]
    put = (lambda sample: {"x": [sample, 2]}) if begin == "tree" else lambda sample: sample
    samples[1] = put(one(6))
    assert alive() == [0, 2, 3, 4, 5, 6]
    samples[-1] = put(one(7))
    assert alive() == [0, 2, 3, 4, 6, 7]
    samples = samples[2:]
    assert alive() == [2, 3, 4, 7]
    samples.append(put(one(8)))
    samples = samples[::-2]
    assert alive() == [2, 4, 8]
    kept = samples[1]
    del samples
    assert alive() == [4]
    del kept
    assert alive() == []


@pytest.mark.parametrize("begin", ["append", "extend", "replace", "tree"])
def test_a_list_of_numbers_is_let_go_of_at_once(begin):
    """Numbers that are given one list at a time are released one list at a time."""
    wrap = (lambda numbers: {"x": numbers}) if begin == "tree" else lambda numbers: numbers
    samples = wr.SampleList([wrap([0.0])])
    for turn in range(60):
        if turn == 20:
            before = rss_bytes()
        numbers = wrap([float(turn)] * 200_000)
        if begin == "append":
            samples.append(numbers)
        elif begin == "extend":
            samples.extend([numbers])
        else:
            samples[0] = numbers
        samples = samples[-1:]
    assert rss_bytes() - before < 16 << 20


@pytest.mark.parametrize("length", [1, 255, 256, 1000])
def test_numbers_that_are_given_together_are_released_by_chunks(length):
    """Rows of 256 numbers or more one by one, shorter ones with others, of 65,536 numbers at most."""

    def num_holders():
        gc.collect()
        return sum(type(held).__name__ == "_Holder" for held in gc.get_objects())

    others, count = num_holders(), 2000
    samples = wr.SampleList([[0.5] * length for _ in range(count)])
    whole = num_holders() - others
    assert whole == count if length >= 256 else count * length // 65536 <= whole < 20
    for index in range(count // 2):
        samples[index] = ROWS[0]
    left = num_holders() - others
    assert left == count // 2 if length >= 256 else left <= whole // 2 + 1
    samples = samples[count // 2 :]
    assert (wr.stack(samples).numpy() == 0.5).all()
    del samples
    assert num_holders() == others


@pytest.mark.parametrize("lengths", [(256, 1), (40_000, 1, 0), (0, 300, 3), (255, 256)])
def test_numbers_of_long_rows_and_short_ones(lengths):
    """A long row in between neither ends the chunk of short ones nor decides how large the next is."""
    rows = [[float(number)] * lengths[number % len(lengths)] for number in range(600)]
    gc.collect()
    before = rss_bytes()
    samples = wr.SampleList(rows)
    assert rss_bytes() - before < 1.5 * 8 * sum(map(len, rows)) + (4 << 20)
    for number in range(0, 600, 2):
        samples[number] = ROWS[0]
    gc.collect()
    others = [[-1.0] * max(lengths) for _ in range(50)]
    for number in range(1, 600, 2):
        assert samples[number].numpy().tolist() == rows[number]
    del others


def test_rows_of_a_table_keep_it_until_the_last():
    tables = [np.zeros((3, 4)).view(Held) for _ in range(3)]
    refs = [weakref.ref(table) for table in tables]
    samples = wr.SampleList(tables[0])
    samples.extend(wr.SampleList(tables[1]))
    samples.extend(wr.windows(tables[2], [0, 1], 1))
    del tables
    samples = samples[2:]
    assert [ref() is not None for ref in refs] == [True] * 3
    samples = samples[1:]
    assert [ref() is not None for ref in refs] == [False, True, True]
    samples = samples[3:]
    assert [ref() is not None for ref in refs] == [False, False, True]
    samples[0] = samples[1] = ROWS[0]
    assert [ref() is not None for ref in refs] == [False] * 3


WIDTHS = itertools.count()
EPISODES = {
    "arrays": lambda: [np.zeros(1000) for _ in range(4)],
    "table": lambda: wr.SampleList(np.zeros((4, 1000))),
    "rows": lambda: np.zeros((4, 1000)),
    "lengths": lambda: [np.zeros(1000 - n) for n in range(4)],
    "bytes": lambda: [bytes(8000) for _ in range(4)],
    "torch": lambda: list(__import__("torch").zeros(4, 1000)),
    "numbers": lambda: [[0.0] * 200 for _ in range(4)],
    "batch": lambda: wr.ragged([np.zeros(1000)] * 4),
    "list": lambda: wr.SampleList([np.zeros(1000) for _ in range(4)]),
    "windows": lambda: wr.windows(np.zeros(4000), [0, 1000, 2000, 3000], 1000),
    "split": lambda: wr.SampleList.split(np.zeros(4000), [0, 1000, 2000, 3000, 4000]),
    "shapes": lambda: [np.zeros((1,) * 15 + (0, next(WIDTHS))) for _ in range(4)],
    "trees": lambda: [{"x": np.zeros(1000), "n": 1.5, "name": "a"} for _ in range(4)],
}


@pytest.mark.parametrize("kind", EPISODES)
def test_a_queue_of_episodes_stays_flat(kind, torch):
    make, samples = EPISODES[kind], wr.SampleList()
    for turn in range(20_000 if kind in ("arrays", "table", "shapes") else 3000):
        samples.extend(make())
        if turn >= 20:
            samples = samples[4:]
        if turn == 400:
            before = rss_bytes()
    assert len(samples) == 80 and rss_bytes() - before < 16 << 20


def test_a_ring_buffer_holds_what_it_has():
    first = [array(value) for value in range(50)]
    refs = [weakref.ref(sample) for sample in first]
    samples = wr.SampleList(first)
    del first
    for turn in range(300):
        sample = array(turn)
        refs.append(weakref.ref(sample))
        samples[turn * 7 % 50] = sample
        del sample
        assert sum(ref() is not None for ref in refs) == 50


def test_a_taken_list_reads_nothing_of_other_samples():
    """Valgrind alone sees such a read: `scripts/ci/valgrind.sh python/tests/test_sample_list_items.py`."""
    samples = wr.SampleList()
    for value in range(4):
        samples.append(np.full(4, value, np.float32))
    taken = samples.take([1, 1, 1, 1, 1])
    del samples
    gc.collect()
    assert_tensor(wr.stack(taken), np.full((5, 4), 1, np.float32))
    assert_tensor(wr.stack(taken.take([0, -1])), np.full((2, 4), 1, np.float32))


def test_a_sample_of_its_own_outlives_the_one_it_came_from():
    samples = wr.SampleList([array(0), array(1)])
    samples[0] = array(5)
    samples.append(samples[0])
    samples[1] = samples[0]
    samples[0] = array(6)
    gc.collect()
    assert samples.stack([0, 1, 2]).numpy()[:, 0].tolist() == [6, 5, 5]


def test_memory_that_moves_is_noticed_in_replaced_samples(torch):
    samples = wr.SampleList([torch.full((4,), float(i)) for i in range(5)])
    moved = torch.zeros(4)
    samples[3] = moved
    taken = samples.take([0, 3])
    moved.resize_(1 << 20)
    for call, index in ((lambda: wr.stack(samples), 3), (lambda: wr.stack(taken), 1), (lambda: samples[3], 3)):
        refusal(call, wr.LayoutError, "moved or freed", index=index)
    samples[3] = torch.ones(4)
    assert wr.stack(samples).numpy()[:, 0].tolist() == [0, 1, 2, 1, 4]
    refusal(lambda: wr.stack(taken), wr.LayoutError, index=1)


def test_slices():
    samples = wr.SampleList(ROWS)
    for part in (slice(None), slice(2, 5), slice(-3, None), slice(None, None, -1), slice(8, 2, -2), slice(4, 4), slice(99)):
        assert isinstance(samples[part], wr.SampleList)
        assert everything(samples[part]) == [row.tolist() for row in ROWS[part]]
    part = samples[2:4]
    part[0] = ROWS[9]
    assert_tensor(samples[2], ROWS[2])


def test_errors_name_the_position():
    samples = wr.SampleList(ROWS)

    def put(index, sample):
        samples[index] = sample

    refusal(lambda: put(3, "text"), TypeError, "^sample 3: expected an array-like, got str")
    refusal(lambda: put(-1, [1, None]), TypeError, "^sample 9: expected a Python number, got NoneType at position 1")
    for index in (10, -11, 2**63 - 1, -(2**63), 2**63, -(2**70)):
        refusal(lambda: put(index, ROWS[0]), IndexError, f"^index {index} in a list of 10 samples")
        refusal(lambda: samples[index], IndexError, f"^index {index} in a list of 10 samples")
    for index in ([1, 2], np.array([1, 2]), 1.0, None, "a"):
        refusal(lambda: put(index, ROWS[0]), TypeError, r"an int or a slice; take\(indices\) takes an array of them")
        refusal(lambda: samples[index], TypeError, "an int or a slice")
    refusal(lambda: put(slice(0, 2), ROWS[:2]), TypeError, "a slice of a SampleList cannot be assigned")
    for index in (0, slice(0, 2)):
        refusal(lambda: samples.__delitem__(index), TypeError, r"cannot be deleted; assign another one, or take\(indices\)")
    assert_tensor(wr.stack(samples), np.stack(ROWS))
    assert_tensor(samples[np.int8(3)], ROWS[3])


# Lists without numbers have the dtype of what comes to them


def joined(first, *more):
    samples = wr.SampleList(first)
    for given in more:
        samples.append(given)
    return samples


def replaced(first, *items):
    samples = wr.SampleList(first)
    for index, given in items:
        samples[index] = given
    return samples


def extended(first, more):
    samples = wr.SampleList(first)
    samples.extend(more)
    return samples


@pytest.mark.parametrize("empty", [[], ()])
@pytest.mark.parametrize("row", [[1, 2], [True], [2.5], np.arange(3, dtype="int16"), np.zeros(0, "float16")])
def test_lists_without_numbers_before_their_neighbours(empty, row):
    others = [1.5, 2.5] if wr.asarray(row).dtype != "float64" else [1]
    lists = [
        (lambda: joined([empty], row), [empty, row]),
        (lambda: joined([empty, empty], empty, row, empty), [empty, empty, empty, row, empty]),
        (lambda: joined([empty, empty][:1], row).take([1, 0]), [row, empty]),
        (lambda: extended([empty], [row]), [empty, row]),
        (lambda: extended([empty] * 2, wr.SampleList([row])), [empty, empty, row]),
        (lambda: extended([row], wr.SampleList([empty] * 2)), [row, empty, empty]),
        (lambda: extended(wr.SampleList([empty] * 3).take([0, 1]), wr.SampleList([empty, row])), [empty] * 3 + [row]),
        (lambda: replaced([empty, empty], (1, row)), [empty, row]),
        (lambda: replaced([empty] * 3, (0, row), (2, row)), [row, empty, row]),
        (lambda: wr.SampleList([others, empty, row]).take([1, 2]), [empty, row]),
        (lambda: joined([empty, row], others)[:2], [empty, row]),
    ]
    for make, plain in lists:
        got, want = wr.ragged(make()), wr.ragged(plain)
        assert got.dtype == want.dtype == wr.asarray(row).dtype
        assert np.array_equal(got.numpy(), want.numpy()) and np.array_equal(got.offsets.numpy(), want.offsets.numpy())
    samples = replaced([others, others, others], (0, empty), (1, row), (2, row))
    assert wr.ragged(samples).dtype == wr.asarray(row).dtype
    samples = joined([empty], row)
    other = [1.5, 2.5] if samples[1].dtype != "float64" else [1]
    samples.append(other)
    refusal(lambda: wr.ragged(samples), wr.DTypeError, "sample [12]: expected")
    assert wr.ragged(joined([empty], empty)).dtype == "float64"
    assert wr.SampleList([others, empty, np.zeros(0, "int8")]).stack([1, 2]).dtype == "int8"
