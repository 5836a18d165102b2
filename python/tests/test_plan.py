"""windrow.plan beside naive packings."""

import gc
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


@pytest.mark.parametrize("is_on", [True, False])
def test_lists_are_made_without_the_collector(is_on):
    before, runs = gc.isenabled(), []
    lengths = np.ones(40_000, int)
    plan.pack(lengths, 2)
    gc.callbacks.append(lambda phase, info: runs.append(phase))
    try:
        (gc.enable if is_on else gc.disable)()
        assert len(plan.pack(lengths, 2)) == 20_000 and gc.isenabled() == is_on
    finally:
        gc.callbacks.pop()
        (gc.enable if before else gc.disable)()
    # One behind it, when it is on again, and no more.
    assert len(runs) <= 2 * 2


def test_lengths_of_arrow():
    pa = pytest.importorskip("pyarrow", reason="SKIP: pyarrow is not installed")
    lengths = [3, 6, 2, 5]
    for column in (pa.array(lengths), pa.chunked_array([lengths[:1], lengths[1:]])):
        assert plan.pack(column, 8) == plan.pack(lengths, 8)
        assert plan.balance(column, 2) == plan.balance(lengths, 2)
        assert plan.buckets(lengths, 2, boundaries=pa.chunked_array([[3, 5]])) == plan.buckets(lengths, 2, boundaries=[3, 5])
    for empty in (pa.array([], pa.int64()), pa.chunked_array([], pa.int64())):
        assert plan.pack(empty, 8) == plan.pack([], 8) == []
    for lists in (pa.chunked_array([[[1], [2, 3]]]), pa.chunked_array([[[1, 2], [2, 3]]])):
        with pytest.raises(TypeError, match="integers"):
            plan.pack(lists, 8)


@pytest.mark.parametrize("most", [64, 1000])
@pytest.mark.parametrize("max_tokens", [1000, 1024])
def test_no_more_rows_than_trls_best_fit(most, max_tokens):
    utils = pytest.importorskip("trl.data_utils", reason="SKIP: trl is not installed")
    if not hasattr(utils, "_pack_bfd"):
        pytest.skip("SKIP: this trl does not pack by best fit, 0.20 does")
    pa = pytest.importorskip("pyarrow")
    lengths = [1 + length for length in lengths_of(3000, most - 1, seed=5)]
    theirs = len(utils._pack_bfd(pa.table({"ids": [list(range(length)) for length in lengths]}), max_tokens))
    ours = len(plan.pack(lengths, max_tokens, "best_fit_decreasing"))
    # trl searches a tree that finds the least room only where the limit is a power of two.
    assert ours == theirs if max_tokens == 1024 else ours <= theirs
    assert len(plan.pack(lengths, max_tokens)) <= theirs + 2


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
    by_seed = [plan.balance(lengths, 8, seed=seed) for seed in (0, 1, 2)]
    assert by_seed == [plan.balance(lengths, 8, seed=seed) for seed in (0, 1, 2)]
    assert len({str(rows) for rows in [*by_seed, rows]}) == 4
    for shuffled in by_seed:
        # Samples of equal length change places: the work of each rank stays.
        assert sorted(i for row in shuffled for i in row) == list(range(999))
        assert [sum(lengths[i] for i in row) for row in shuffled] == sums


def test_rows_are_a_batch_sampler_and_pickle():
    rows = plan.pack([3, 6, 2, 5], 8)
    copy = pickle.loads(pickle.dumps(rows))
    assert copy == rows == [[1, 2], [3, 0]] and (copy.max_tokens, copy.waste) == (8, 0.0)
    data = pytest.importorskip("torch").utils.data
    loader = data.DataLoader(list("abcd"), batch_sampler=rows, collate_fn="".join)
    assert list(loader) == ["bc", "da"]


@pytest.mark.parametrize("num_rows, num_ranks", [(0, 1), (1, 1), (7, 2), (8, 2), (9, 4), (2, 4)])
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batch_samplers_divide_and_shuffle_rows(num_rows, num_ranks, seed, drop_last):
    pytest.importorskip("torch", reason="SKIP: torch is not installed")
    import windrow.torch

    rows = plan.Rows([[2 * i, 2 * i + 1] for i in range(num_rows)])
    samplers = [windrow.torch.BatchSampler(rows, seed=seed, rank=rank, num_ranks=num_ranks, drop_last=drop_last) for rank in range(num_ranks)]
    orders = []
    for epoch in range(4):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        shares = [list(pickle.loads(pickle.dumps(sampler))) for sampler in samplers]
        assert [len(share) for share in shares] == [len(sampler) for sampler in samplers]
        # The rows in turn: all of them, repeated or left out so that every rank has as many.
        joined = [row for turn in zip(*shares) for row in turn]
        each = num_rows // num_ranks if drop_last else -(-num_rows // num_ranks)
        assert len(joined) == each * num_ranks
        whole = joined[:num_rows]
        assert all(row in rows for row in joined) and len({tuple(row) for row in whole}) == len(whole)
        assert joined[num_rows:] == (joined * num_ranks)[: len(joined[num_rows:])]
        orders.append(whole)
    if seed is None:
        assert all(order == rows[: len(order)] for order in orders)
    elif num_rows > 6:
        assert len({str(order) for order in orders}) == 4
        samplers[0].set_epoch(0)
        first = orders[0][::num_ranks]
        assert list(samplers[0])[: len(first)] == first


def test_batch_samplers_in_a_loader():
    data = pytest.importorskip("torch", reason="SKIP: torch is not installed").utils.data
    import windrow.torch

    sampler = windrow.torch.BatchSampler(plan.pack([3, 6, 2, 5], 8), seed=1)
    loader = data.DataLoader(list("abcd"), batch_sampler=sampler, collate_fn="".join, num_workers=1)
    assert sorted(loader) == ["bc", "da"] and len(loader) == 2
    for arguments, text in (
        ({"rank": 2, "num_ranks": 2}, "rank must be from 0 to num_ranks - 1, 1, got 2"),
        ({"rank": -1}, "rank must be at least 0, got -1"),
        ({"num_ranks": 0}, "num_ranks must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=text):
            windrow.torch.BatchSampler([[0]], **arguments)
    for arguments, text in (({"rank": 0.5}, "rank must be an int, got 0.5"), ({"seed": "a"}, "seed must be an int, got 'a'")):
        with pytest.raises(TypeError, match=text):
            windrow.torch.BatchSampler([[0]], **arguments)
    with pytest.raises(ValueError, match="epoch must be at least 0, got -1"):
        sampler.set_epoch(-1)


class NoIndex:
    """An object that is no int though it has the method, as `torch.tensor(8.0)`."""

    def __index__(self):
        raise TypeError("only integer tensors")

    def __repr__(self):
        return "NoIndex()"


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: plan.pack([1, 9, 2], 8), ValueError, "sample 1: a length of 9, more than max_tokens=8"),
        (lambda: plan.pack([1, -1], 8), ValueError, "sample 1: a negative length, -1"),
        (lambda: plan.pack(np.array([1, 2**63], np.uint64), 8), ValueError, "lengths[1] is beyond 63 bits"),
        (lambda: plan.buckets([1], 1, boundaries=[2, 2**64]), ValueError, "boundaries[1] is beyond 63 bits"),
        (lambda: plan.pack([1, 2**63], 8), ValueError, "lengths[1] is beyond 63 bits"),
        (lambda: plan.pack([1], 0), ValueError, "max_tokens must be at least 1, got 0"),
        (lambda: plan.pack([1], 8, "worst_fit"), ValueError, '"best_fit_decreasing"'),
        (lambda: plan.pack([1], 8, max_sequences=0), ValueError, "max_sequences must be at least 1, got 0"),
        (lambda: plan.pack([1.5], 8), TypeError, "lengths[0]=1.5; lengths are ints"),
        (lambda: plan.pack([1], 8.0), TypeError, "max_tokens must be an int, got 8.0"),
        (lambda: plan.pack([1], True), TypeError, "max_tokens must be an int, got True"),
        (lambda: plan.pack([1], NoIndex()), TypeError, "max_tokens must be an int, got NoIndex()"),
        (lambda: plan.pack([1], 2**63), ValueError, f"max_tokens={2**63} is beyond 63 bits"),
        (lambda: plan.pack([1], 8, max_sequences=1.5), TypeError, "max_sequences must be an int, got 1.5"),
        (lambda: plan.pack([1], 8, how=None), TypeError, "how must be a string, got None"),
        (lambda: plan.buckets([1], 1, seed=-1), ValueError, "seed must be at least 0, got -1"),
        (lambda: plan.buckets([1], None), TypeError, "batch_size must be an int, got None"),
        (lambda: plan.balance([1], 2, seed="a"), TypeError, "seed must be an int, got 'a'"),
        (lambda: plan.pack(np.ones((2, 2), int), 8), TypeError, "lengths are integers of one dim"),
        (lambda: plan.token_budget([7], 7, pad_to_multiple_of=4), ValueError, "sample 0: a length of 7, rounded up to 8, more than max_tokens=7"),
        (lambda: plan.token_budget([7], 7, pad_to_multiple_of=0), ValueError, "pad_to_multiple_of must be at least 1, got 0"),
        (lambda: plan.buckets([1], 0), ValueError, "batch_size must be at least 1, got 0"),
        (lambda: plan.buckets([1], 1, boundaries=[4, 4]), ValueError, "number 1"),
        (lambda: plan.balance([1], 0), ValueError, "num_ranks must be at least 1, got 0"),
        (lambda: plan.balance([1], 1 << 60), MemoryError, ""),
    ],
)
def test_bad_input_is_named(call, error, text):
    with pytest.raises(error) as found:
        call()
    assert text in str(found.value)
    assert wr.stack([1]).shape == (1,)
