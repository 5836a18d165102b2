"""windrow.plan beside naive packings."""

import pickle
import random

import numpy as np
import pytest

import windrow as wr
from windrow import plan


def lengths_of(count, most, seed=0):
    return [random.Random(seed * 1000 + i).randint(0, most) for i in range(count)]


def first_fit_decreasing(lengths, max_tokens, max_sequences=None):
    rows, room = [], []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        for row, left in enumerate(room):
            if left >= lengths[i] and (max_sequences is None or len(rows[row]) < max_sequences):
                break
        else:
            row = len(rows)
            rows.append([])
            room.append(max_tokens)
        rows[row].append(i)
        room[row] -= lengths[i]
    return rows


@pytest.mark.parametrize("max_sequences", [None, 1, 3])
@pytest.mark.parametrize("count", [0, 1, 257])
def test_first_fit_decreasing_is_the_textbooks(count, max_sequences):
    lengths = lengths_of(count, 64)
    rows = plan.pack(lengths, 100, max_sequences=max_sequences)
    assert rows == first_fit_decreasing(lengths, 100, max_sequences)
    assert rows.num_tokens == sum(lengths) and rows.max_tokens == 100
    assert not rows or rows.waste == pytest.approx(1 - sum(lengths) / (100 * len(rows)))


@pytest.mark.parametrize("how", ["first_fit_decreasing", "best_fit_decreasing", "in_order"])
def test_each_sample_is_in_one_row_that_fits(how):
    lengths = lengths_of(1000, 512, seed=1)
    rows = plan.pack(np.array(lengths, np.uint16), 1024, how)
    assert sorted(i for row in rows for i in row) == list(range(1000))
    assert max(sum(lengths[i] for i in row) for row in rows) <= 1024
    if how == "in_order":
        assert [i for row in rows for i in row] == list(range(1000))
    else:
        assert rows.waste < 0.02


def test_token_budgets_count_padding():
    lengths = lengths_of(300, 100, seed=2)
    rows = plan.token_budget(lengths, 1024, pad_to_multiple_of=8)
    padded = [max(-(-lengths[i] // 8) * 8 for i in row) * len(row) for row in rows]
    assert max(padded) <= 1024 and sorted(i for row in rows for i in row) == list(range(300))
    assert rows.waste == pytest.approx(1 - sum(lengths) / sum(padded)) and rows.waste < 0.2
    # No batch has room for the next sample.
    for row, behind in zip(rows, rows[1:]):
        assert -(-lengths[behind[0]] // 8) * 8 * (len(row) + 1) > 1024


def test_buckets():
    lengths = lengths_of(100, 19, seed=3)
    rows = plan.buckets(lengths, 8, boundaries=[5, 12], seed=1)
    assert all(len({np.digitize(lengths[i], [5, 12]) for i in row}) == 1 for row in rows)
    assert rows == plan.buckets(lengths, 8, boundaries=[5, 12], seed=1) != plan.buckets(lengths, 8, boundaries=[5, 12], seed=2)
    assert plan.buckets([3, 1, 2, 0, 9], 2, drop_last=True) == [[3, 1], [2, 0]]


def test_balance():
    lengths = lengths_of(999, 4000, seed=4)
    rows = plan.balance(lengths, 8)
    sums = [sum(lengths[i] for i in row) for row in rows]
    assert len(rows) == 8 and max(sums) - min(sums) < 100 and rows.waste < 1e-3
    assert rows == plan.balance(lengths, 8) and plan.balance([], 2) == [[], []]


def test_rows_are_a_batch_sampler_and_pickle():
    rows = plan.pack([3, 6, 2, 5], 8)
    copy = pickle.loads(pickle.dumps(rows))
    assert copy == rows == [[1, 2], [3, 0]] and (copy.max_tokens, copy.waste) == (8, 0.0)
    data = pytest.importorskip("torch").utils.data
    loader = data.DataLoader(list("abcd"), batch_sampler=rows, collate_fn="".join)
    assert list(loader) == ["bc", "da"]


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: plan.pack([1, 9, 2], 8), ValueError, "sample 1: a length of 9, more than max_tokens=8"),
        (lambda: plan.pack([1, -1], 8), ValueError, "sample 1: a negative length, -1"),
        (lambda: plan.pack([1], 0), ValueError, "max_tokens=0"),
        (lambda: plan.pack([1], 8, "worst_fit"), ValueError, '"best_fit_decreasing"'),
        (lambda: plan.pack([1], 8, max_sequences=0), ValueError, "max_sequences=0"),
        (lambda: plan.pack([1.5], 8), TypeError, ""),
        (lambda: plan.pack(np.ones((2, 2), int), 8), TypeError, "lengths are integers of one dim"),
        (lambda: plan.token_budget([7], 7, pad_to_multiple_of=4), ValueError, "sample 0: a length of 8"),
        (lambda: plan.token_budget([7], 7, pad_to_multiple_of=0), ValueError, "pad_to_multiple_of=0"),
        (lambda: plan.buckets([1], 0), ValueError, "batch_size=0"),
        (lambda: plan.buckets([1], 1, boundaries=[4, 4]), ValueError, "number 1"),
        (lambda: plan.balance([1], 0), ValueError, "num_ranks=0"),
        (lambda: plan.balance([1], 1 << 60), MemoryError, ""),
    ],
)
def test_bad_input_is_named(call, error, text):
    with pytest.raises(error) as found:
        call()
    assert text in str(found.value)
    assert wr.stack([1]).shape == (1,)
