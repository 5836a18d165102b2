"""windrow.sequence.pack_rows beside loops over Python lists."""

import collections
import random

import numpy as np
import pytest

import windrow as wr
from helpers import refusal
from windrow import plan
from windrow.sequence import pack_rows, pack_tokens


def expected(samples, rows, length, pad=0, labels=None):
    want = {"input_ids": [], "labels": [], "position_ids": [], "segment_ids": [], "cu_seqlens": [0]}
    for row in rows:
        line = {name: [] for name in want if name != "cu_seqlens"}
        for segment, index in enumerate(row, 1):
            ids = list(samples[index])
            line["input_ids"] += ids
            line["labels"] += ([-100] + list(labels[index] if labels else ids)[1:]) if ids else []
            line["position_ids"] += range(len(ids))
            line["segment_ids"] += [segment] * len(ids)
            want["cu_seqlens"].append(len(want["input_ids"]) * length + len(line["input_ids"]))
        rest = length - len(line["input_ids"])
        for name, fill in (("input_ids", pad), ("labels", -100), ("position_ids", 0), ("segment_ids", 0)):
            want[name].append(line[name] + [fill] * rest)
        if rest:
            want["cu_seqlens"].append(len(want["input_ids"]) * length)
    return want


def same(batch, want):
    assert list(batch) == list(want)
    for name, values in want.items():
        assert np.asarray(batch[name]).tolist() == values, name
        assert np.asarray(batch[name]).dtype == (np.int32 if name == "cu_seqlens" else np.int64)


@pytest.mark.parametrize("how", ["first_fit_decreasing", "in_order"])
@pytest.mark.parametrize("as_ids", [list, np.array, lambda ids: np.array(ids, np.int32)[None]])
def test_rows_of_a_plan(how, as_ids):
    samples = [[random.Random(i).randint(0, 50000) for _ in range(random.Random(-i).randint(1, 60))] for i in range(150)]
    rows = plan.pack([len(ids) for ids in samples], 64, how)
    same(pack_rows([as_ids(ids) for ids in samples], rows, return_tensors="np"), expected(samples, rows, 64))


def test_features_with_labels_and_other_padding():
    samples, labels = [[5, 6, 7], [], [8, 9]], [[1, 2, 3], [], [4, 5]]
    features = [{"input_ids": ids, "labels": own} for ids, own in zip(samples, labels)]
    rows = [[2, 1], [0], [0, 2]]
    batch = pack_rows(features, rows, max_tokens=6, pad_token_id=99, return_tensors="np")
    same(batch, expected(samples, rows, 6, 99, labels))


def test_torch_tensors_and_attention_over_the_flattened_rows():
    torch = pytest.importorskip("torch")
    samples = [torch.arange(n) for n in (3, 6, 2, 5)]
    batch = pack_rows(samples, plan.pack([3, 6, 2, 5], 8))
    assert batch["input_ids"].shape == (2, 8) and batch["cu_seqlens"].dtype == torch.int32
    flat, bounds = batch["input_ids"].view(-1), batch["cu_seqlens"].tolist()
    assert [flat[a:b].tolist() for a, b in zip(bounds, bounds[1:])] == [list(range(n)) for n in (6, 2, 5, 3)]


@pytest.mark.parametrize(
    "samples, rows, options, error, text",
    [
        ([[1, 2, 3]], [[0]], {"max_tokens": 2}, ValueError, "row 0 of the plan has more than max_tokens=2"),
        ([[1, 2, 3]], [[0], [1]], {"max_tokens": 4}, IndexError, "row 1 of the plan names sample 1 of 1"),
        ([[1, 2, 3]], [[0]], {}, ValueError, "max_tokens= is needed"),
        ([[1, 2, 3]], plan.pack([3], 4)[:1], {}, ValueError, "only the whole plan of windrow.plan.pack has one, and no part of it"),
        ([[1, 2, 3]], [[0], 0], {"max_tokens": 4}, TypeError, "row 1 of the plan is 0 in place of a list of indices of samples"),
        ([[1, 2, 3]], [[0]], {"max_tokens": 0}, ValueError, "max_tokens must be at least 1, got 0"),
        ([[1, 2, 3]], [[0]], {"max_tokens": 2**31}, ValueError, "beyond int32"),
        ([[1, 2, 3]], [], {"max_tokens": 4}, ValueError, "names no samples"),
        ([[1, 2, 3]], [[0]], {"max_tokens": 4.5}, TypeError, "max_tokens must be an int, got 4.5"),
        ([[1, 2, 3]], [["a"]], {"max_tokens": 4}, TypeError, "row 0 of the plan has 'a' in place of the index of a sample"),
        ([[1.5]], [[0]], {"max_tokens": 4}, wr.DTypeError, "not whole"),
        ([[1], np.ones(2)], [[0, 1]], {"max_tokens": 4}, wr.DTypeError, 'sample 1 at "input_ids": expected whole numbers, got float64'),
        ([np.ones((2, 2), int)], [[0]], {"max_tokens": 4}, wr.ShapeError, "(L,) or (1, L)"),
        ([{"input_ids": [1], "labels": [1, 2]}], [[0]], {"max_tokens": 4}, wr.ShapeError, "a label for each id"),
    ],
)
def test_bad_plans_and_samples(samples, rows, options, error, text):
    with pytest.raises(error) as found:
        pack_rows(samples, rows, **options)
    assert text in str(found.value)


def test_labels_that_the_first_sequence_lacks():
    """They are not replaced by ids, whatever the order."""
    samples = [{"input_ids": [1, 2]}, {"input_ids": [3, 4], "labels": [9, 9]}]
    for call in (lambda: pack_rows(samples, [[0, 1]], max_tokens=4), lambda: pack_tokens(samples), lambda: pack_tokens(collections.UserList(samples))):
        refusal(call, KeyError, "sample 0: expected 'labels', which a later sample has, got none", index=0, path="labels")
    refusal(lambda: pack_rows(samples, [[1, 0]], max_tokens=4), KeyError, "sample 1: the key 'labels' is missing")
    none = [{"input_ids": [1, 2], "labels": None}] * 2
    assert pack_rows(none, [[0, 1]], max_tokens=4, return_tensors="np")["labels"].tolist() == [[-100, 2, -100, 2]]


def test_a_label_of_the_whole_sequence_is_not_read():
    samples = [{"input_ids": [1, 2], "labels": [7, 8], "label": 0}]
    for batch in (pack_tokens(samples, return_tensors="np"), pack_rows(samples, [[0]], max_tokens=2, return_tensors="np")):
        assert batch["labels"].tolist() == [[-100, 8]]


def test_a_plan_of_a_column():
    pa = pytest.importorskip("pyarrow", reason="SKIP: pyarrow is not installed")
    batch = pack_rows([[1, 2], [3]], pa.array([[1, 0]]), max_tokens=4, return_tensors="np")
    assert batch["input_ids"].tolist() == [[3, 1, 2, 0]]
    for index, text in ((None, "NullScalar|Int64Scalar"), (0.5, "DoubleScalar")):
        refusal(lambda: pack_rows([[1]], pa.array([[0], [index]]), max_tokens=4), TypeError, f"row [01] of the plan has .*({text}).* in place")


def test_a_plan_of_iterators():
    want = pack_rows([[1, 2], [3]], [[0, 1]], max_tokens=4, return_tensors="np")
    for rows in (iter([[0, 1]]), [iter([0, 1])]):
        got = pack_rows([[1, 2], [3]], rows, max_tokens=4, return_tensors="np")
        assert all(got[name].tolist() == want[name].tolist() for name in want)
    refusal(lambda: pack_rows([[1, 2], [3]], [[True, False]], max_tokens=4), TypeError, "row 0 of the plan has True")
