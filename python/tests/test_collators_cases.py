"""Situations that transformers tests its data collators in, with windrow's beside the installed ones."""

import copy
import pickle

import numpy as np
import pytest

import windrow as wr
from helpers import refusal
from test_collators import assert_same, both, sequence, tokenizer, torch, transformers, words

KINDS = pytest.mark.parametrize("kind", ["pt", "np"])
SIDES = pytest.mark.parametrize("side", ["right", "left"])
# The classes of a feature's entries.
WRAPS = {"list": list, "array": np.array, "tensor": torch.tensor}
EVEN, UNEVEN = [list(range(10)), list(range(10))], [list(range(5)), list(range(10))]


def rows_of(ids, wrap=list, **more):
    return [{"input_ids": wrap(row), **{key: values[i] for key, values in more.items()}} for i, row in enumerate(ids)]


@KINDS
@SIDES
def test_padding(kind, side):
    rows = rows_of([list(range(3)), list(range(6))])
    both("DataCollatorWithPadding", rows, tokenizer(side), kind=kind)
    both("DataCollatorWithPadding", rows, tokenizer(side), kind=kind, padding="max_length", max_length=10)
    both("DataCollatorWithPadding", rows, tokenizer(side), kind=kind, pad_to_multiple_of=8)
    both("DataCollatorWithPadding", rows[:1], tokenizer(side), kind=kind)


SINGLES = [[0, 1], [True, False], [0.5, 2.0], list(np.float32([1, 2])), [np.int32(3), 2]]
# Python's numbers, and NumPy's, of several kinds: what all of them are together does not depend on the first.
MIXED = [[0, 1.5], [1.5, 0], [True, 0], [0, True], [True, 1.5], [1.5, True], [2**40, 1.5], [np.float32(1.5), 0], [0, np.float64(1.5)]]
LISTS = [[[1, 2], [3, 4]], [[0.5], [0.25]], [[0, 1], [0.5, 1]], [[True, False], [False, True]], [[True, False], [3, 4]], [[], []]]
NESTED = [
    [[[1, 2, 3, 4], [5, 6, 7, 8]], [[9, 10, 11, 12], [13, 14, 15, 16]]],
    [[(0, 1), (1, 2)], [(2, 3), (3, 7)]],
    [[[1, 2.5], [5, 6]], [[1, 2], [3, 4]]],
    [[[True, False]], [[True, True]]],
    [[[True, 2]], [[3, 4]]],
    [[[[1], [2]], [[3], [4]]]] * 2,
    [[np.arange(2), np.arange(2)]] * 2,
    [[[], []]] * 2,
]


@KINDS
@pytest.mark.parametrize("values", [*SINGLES, *MIXED, *LISTS, *NESTED])
def test_labels_of_every_kind(kind, values):
    for name in ("label", "label_ids", "labels"):
        both("DataCollatorWithPadding", rows_of(UNEVEN, **{name: values}), tokenizer(), kind=kind)


@KINDS
@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("values", [np.float64, np.float32, np.array, torch.tensor, lambda value: torch.tensor(value, dtype=torch.float64)])
def test_floats_beside_ids_of_every_kind(kind, wrap, values):
    """transformers makes Python numbers of all arrays where the ids are arrays."""
    if (kind, wrap, values) == ("np", "list", np.array):
        pytest.skip("SKIP: transformers takes no arrays without dims beside lists")
    rows = rows_of(UNEVEN, WRAPS[wrap], label=[values(0.1), values(2.5)])
    both("DataCollatorWithPadding", rows, tokenizer(), kind=kind)


@KINDS
@SIDES
@pytest.mark.parametrize("wrap", WRAPS)
def test_token_classification(kind, side, wrap):
    if (kind, wrap) == ("np", "tensor"):
        pytest.skip("SKIP: transformers makes no NumPy arrays of torch tensors of several lengths")
    make = WRAPS[wrap]
    rows = rows_of([list(range(3)), list(range(6))], make, labels=[make(list(range(3))), make(list(range(6)))])
    for more in ({}, {"padding": "max_length", "max_length": 10}, {"pad_to_multiple_of": 8}, {"label_pad_token_id": -1}):
        both("DataCollatorForTokenClassification", rows, tokenizer(side), kind=kind, **more)


@KINDS
@SIDES
@pytest.mark.parametrize("wrap", ["list", "array"])
def test_sequence_to_sequence(kind, side, wrap):
    make = WRAPS[wrap]
    labels = [make(list(range(2))), make(list(range(8)))]
    strategy = transformers.utils.PaddingStrategy
    for padding in (True, "longest", strategy.LONGEST):
        for more in ({}, {"pad_to_multiple_of": 8}, {"label_pad_token_id": -1}):
            both("DataCollatorForSeq2Seq", rows_of(UNEVEN, make, labels=labels), tokenizer(side), kind=kind, padding=padding, **more)
    for padding in ("max_length", strategy.MAX_LENGTH):
        both("DataCollatorForSeq2Seq", rows_of(UNEVEN, make, labels=labels), tokenizer(side), kind=kind, padding=padding, max_length=12)
    even = [make(list(range(4)))] * 2
    for padding in (False, "do_not_pad", strategy.DO_NOT_PAD):
        for module in (sequence, transformers):
            collate = module.DataCollatorForSeq2Seq(tokenizer(side), padding=padding, return_tensors=kind)
            with pytest.raises(ValueError):
                collate(rows_of(UNEVEN, make, labels=labels))
        if padding != "do_not_pad":
            both("DataCollatorForSeq2Seq", rows_of(EVEN, make, labels=even), tokenizer(side), kind=kind, padding=padding)
    both("DataCollatorForSeq2Seq", rows_of(UNEVEN, make, labels=[None, None]), tokenizer(side), kind=kind)
    both("DataCollatorForSeq2Seq", rows_of(UNEVEN, make), tokenizer(side), kind=kind)


@KINDS
@SIDES
def test_language_modelling_without_masks(kind, side):
    for ids in (EVEN, UNEVEN):
        for rows in (rows_of(ids), ids, [np.array(row) for row in ids]):
            for more in ({}, {"pad_to_multiple_of": 8}):
                results = []
                for module in (sequence, transformers):
                    collate = module.DataCollatorForLanguageModeling(tokenizer(side), mlm=False, return_tensors=kind, **more)
                    results.append(dict(collate(copy.deepcopy(rows))))
                assert_same(*results)


@KINDS
def test_no_padding_token(kind):
    """Lists of one length need none; everything else that has to be padded is refused, as by transformers."""
    arguments = {"mlm": False, "return_tensors": kind}
    collators = [module.DataCollatorForLanguageModeling(tokenizer(pad_token=None), **arguments) for module in (sequence, transformers)]
    assert_same(*(dict(collate(EVEN)) for collate in collators))
    for collate in collators:
        for rows in (UNEVEN, rows_of(UNEVEN)):
            with pytest.raises(ValueError):
                collate(rows)
    even = [module.DataCollatorForLanguageModeling(tokenizer(pad_token=None), pad_to_multiple_of=5, **arguments) for module in (sequence, transformers)]
    assert_same(*(dict(collate(EVEN)) for collate in even))


@KINDS
@SIDES
@pytest.mark.parametrize("shares", [(0.8, 0.1), (1, 0), (0, 1), (0.5, 0.4), (0, 0), (0.5, 0.5)])
def test_masks(kind, side, shares):
    """The same numbers are drawn in the same order, batch after batch, with a seed and from the library's own generator."""
    replaced, others = shares
    arguments = {"mlm_probability": 0.4, "mask_replace_prob": replaced, "random_replace_prob": others, "return_tensors": kind}
    rng = np.random.default_rng(0)
    ids = [rng.integers(4, 60, n).tolist() for n in (30, 7, 21)]
    special = [[int(token % 7 == 0) for token in row] for row in ids]
    cases = (rows_of(ids), rows_of(ids, special_tokens_mask=special), ids, rows_of(ids, attention_mask=[[1] * len(row) for row in ids]))
    for seed in (3, None):
        transformers.set_seed(5)
        ours = sequence.DataCollatorForLanguageModeling(tokenizer(side), seed=seed, **arguments)
        got = [ours(copy.deepcopy(rows)) for rows in cases for _ in range(2)]
        transformers.set_seed(5)
        theirs = transformers.DataCollatorForLanguageModeling(tokenizer(side), seed=seed, **arguments)
        for batch, rows in zip(got, [rows for rows in cases for _ in range(2)]):
            assert_same(batch, dict(theirs(copy.deepcopy(rows))))


@KINDS
def test_seeds(kind):
    rows = [list(range(4, 60))] * 10

    def made(seed):
        return sequence.DataCollatorForLanguageModeling(tokenizer(), seed=seed, return_tensors=kind)(rows)

    assert (made(42)["input_ids"] == made(42)["input_ids"]).all() and (made(42)["labels"] == made(42)["labels"]).all()
    assert not (made(42)["input_ids"] == made(43)["input_ids"]).all()
    # A collator that was used pickles, and goes on where it was.
    collate = sequence.DataCollatorForLanguageModeling(tokenizer(), seed=1, return_tensors=kind)
    collate(rows)
    assert_same(pickle.loads(pickle.dumps(collate))(rows), collate(rows))
    # The other kind, asked for in the call, is that of a collator of this kind.
    other = "np" if kind == "pt" else "pt"
    asked = sequence.DataCollatorForLanguageModeling(tokenizer(), seed=2, return_tensors=kind)(rows, return_tensors=other)
    assert_same(asked, sequence.DataCollatorForLanguageModeling(tokenizer(), seed=2, return_tensors=other)(rows))


@pytest.mark.slow
def test_workers_draw_apart_after_a_call_in_the_main_process():
    rows = [list(range(4, 60))] * 2
    collate = sequence.DataCollatorForLanguageModeling(tokenizer(), seed=1)
    collate(rows)
    first, second = torch.utils.data.DataLoader(rows, 1, num_workers=2, collate_fn=collate)
    assert not (first["labels"] == second["labels"]).all()


def test_shares_that_are_rounded_up():
    """The share of what is left, 0.1 / (1 - 0.9), is above 1."""
    collate = sequence.DataCollatorForLanguageModeling(tokenizer(), mask_replace_prob=0.9, random_replace_prob=0.1, return_tensors="np")
    assert collate([[5, 6]])["labels"].shape == (1, 2)


@KINDS
@SIDES
def test_whole_words(kind, side):
    arguments = {"whole_word_mask": True, "mask_replace_prob": 1, "random_replace_prob": 0, "seed": 11, "mlm_probability": 0.4}
    rows = [words(np.random.default_rng(4), 12) for _ in range(3)]
    both("DataCollatorForLanguageModeling", rows, tokenizer(side), kind=kind, **arguments)


@KINDS
@pytest.mark.parametrize("key", ["next_sentence_label", "sentence_order_label"])
def test_labels_of_sentences(key, kind):
    rows = rows_of([list(range(5))] * 2, token_type_ids=[[0, 0, 1, 1, 1]] * 2, **{key: [0, 1]})
    for more in ({}, {"pad_to_multiple_of": 8}):
        both("DataCollatorForLanguageModeling", rows, tokenizer(), kind=kind, seed=1, **more)


FEATURES = {
    "DataCollatorWithPadding": {"label": [0, 1]},
    "DataCollatorForTokenClassification": {"labels": UNEVEN},
    "DataCollatorForSeq2Seq": {"labels": UNEVEN},
    "DataCollatorForLanguageModeling": {},
    "DataCollatorWithFlattening": {},
}


@KINDS
@pytest.mark.parametrize("wrap", ["list", "array"])
@pytest.mark.parametrize("key", ["attention_mask", "token_type_ids", "special_tokens_mask"])
@pytest.mark.parametrize("lengths", [(2, 2), (3, 1)])
def test_bools_of_a_tokenizer_are_numbers_where_some_are_added(lengths, key, wrap, kind):
    rows = [{"input_ids": WRAPS[wrap](range(1, n + 1)), key: WRAPS[wrap]([True, False, True][:n])} for n in lengths]
    both("DataCollatorWithPadding", rows, tokenizer(), kind=kind)


@KINDS
def test_nested_lists_that_do_not_fit_are_named(kind):
    collate = sequence.DataCollatorWithPadding(tokenizer(), return_tensors=kind)
    text = 'sample 1 at "bbox": expected nested lists of one length, got 1 and 2 items'
    refusal(lambda: collate(rows_of(EVEN, bbox=[[[1, 2]] * 2, [[1, 2], [3]]])), wr.ShapeError, text, index=1, path="bbox")
    refusal(lambda: collate(rows_of(EVEN, bbox=[[1, 2], [3, [4]]])), TypeError, "got list at position 1", index=1, path="bbox")
    refusal(lambda: collate(rows_of(EVEN, bbox=[[[1, 2]], [[1, 2]] * 2])), wr.ShapeError, "take the collator for it", index=1, path="bbox")
    refusal(lambda: collate(rows_of(EVEN, bbox=[[[1]], [[2**63]]])), wr.DTypeError, "an int beyond 64 bits", index=1, path="bbox")
    refusal(lambda: collate(rows_of(EVEN, bbox=[[["a"]], [["b"]]])), TypeError, index=0, path="bbox")


@KINDS
@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("ids", [[[1, 2], [], [3]], [[], [1, 2], [3]], [[1], [2, 3], []], [[], [1]]])
def test_flattening_leaves_empty_sequences_out(ids, wrap, kind):
    make = WRAPS[wrap] if wrap != "tensor" else lambda row: torch.tensor(row, dtype=torch.int64)
    arguments = {"kind": kind, "return_flash_attn_kwargs": True, "return_seq_idx": True}
    both("DataCollatorWithFlattening", rows_of(ids, make), **arguments)
    both("DataCollatorWithFlattening", rows_of(ids, make, labels=[make(row) for row in ids]), **arguments)
    # Nothing is asked of an empty one.
    both("DataCollatorWithFlattening", [{"input_ids": row, **({"labels": row} if row else {})} for row in ids], **arguments)
    both("DataCollatorWithFlattening", rows_of(ids, labels=[row or [7] for row in ids]), **arguments)


@KINDS
def test_flattening_of_empty_sequences_alone(kind):
    for ids in ([[]], [[], []], [np.zeros((1, 0), np.int64)]):
        refusal(lambda: sequence.DataCollatorWithFlattening(return_tensors=kind)(rows_of(ids, np.array)), ValueError, "every sequence is empty")


def test_flattening_names_the_sample_that_the_caller_has():
    collate = sequence.DataCollatorWithFlattening()
    rows = rows_of([[], [1, 2], [], [3]], labels=[[], [1, 2], [], [3, 4]])
    refusal(lambda: collate(rows), wr.ShapeError, 'sample 3 at "labels"', index=3, path="labels")
    del rows[3]["labels"]
    refusal(lambda: collate(rows), KeyError, "sample 3: the key 'labels' is missing", index=3, path="labels")
    refusal(lambda: collate(rows_of([[], ["a"]])), TypeError, 'sample 1 at "input_ids"', index=1, path="input_ids")


@KINDS
def test_labels_that_language_modelling_replaces(kind):
    """Transformers lets labels in arrays have any length; no tensor can hold them."""
    rows = rows_of(UNEVEN, labels=UNEVEN)
    for more in ({"mlm": False}, {"seed": 3}):
        if kind == "np":
            both("DataCollatorForLanguageModeling", rows, tokenizer(), kind=kind, **more)
        else:
            collate = sequence.DataCollatorForLanguageModeling(tokenizer(), **more)
            refusal(lambda: collate(rows), wr.ShapeError, 'sample 1 at "labels"', index=1, path="labels")
        both("DataCollatorForLanguageModeling", rows_of(UNEVEN, labels=EVEN), tokenizer(), kind=kind, **more)


@KINDS
@pytest.mark.parametrize("key", ["label", "labels"])
@pytest.mark.parametrize("name", ["DataCollatorForTokenClassification", "DataCollatorForSeq2Seq"])
def test_errors_of_labels_say_where_they_are(name, key, kind):
    collate = getattr(sequence, name)(tokenizer(), padding="max_length", max_length=10, return_tensors=kind)
    for second, error in (([0] * 11, wr.ShapeError), (None, TypeError), (["a"], TypeError), ([2**63], wr.DTypeError), ([[1], [2, 3]], wr.ShapeError)):
        refusal(lambda: collate(rows_of(EVEN, **{key: [[1], second]})), error, f'sample 1 at "{key}"', index=1, path=key)
    refusal(lambda: collate(rows_of(EVEN, **{key: [1, 2]})), wr.ShapeError, f'sample 0 at "{key}"', index=0, path=key)
    rows = [*rows_of(EVEN[:1], **{key: [[1]]}), *rows_of(EVEN[:1])]
    refusal(lambda: collate(rows), KeyError, f"sample 1: the key '{key}' is missing", index=1, path=key)


def test_cures_name_what_the_call_has():
    """No `spec`, `dtype` or `wr` of calls that are built on."""
    uneven, dtypes = [[1, 2], [3]], [np.zeros(2, "float32"), np.zeros(2, "float64")]
    calls = [
        lambda: sequence.DataCollatorWithPadding(tokenizer())(rows_of(EVEN, x=uneven)),
        lambda: sequence.DataCollatorWithPadding(tokenizer())(rows_of(EVEN, x=dtypes)),
        lambda: sequence.DataCollatorForSeq2Seq(tokenizer(), padding=False)(rows_of(EVEN, labels=uneven)),
        lambda: sequence.DataCollatorForLanguageModeling(tokenizer())(rows_of(EVEN, x=uneven)),
        lambda: sequence.pad_tokens(rows_of(EVEN, x=dtypes)),
        lambda: sequence.pad_tokens(rows_of(EVEN, x=uneven), padding=False),
        lambda: sequence.pad_tokens(rows_of(EVEN, x=[np.zeros((2, 2)), np.zeros((2, 3))])),
    ]
    for call in calls:
        with pytest.raises((wr.ShapeError, wr.DTypeError)) as caught:
            call()
        assert not any(word in str(caught.value) for word in ("spec", "dtype=", "wr.", "dims=")), caught.value


@KINDS
@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("name", FEATURES)
def test_features_stay_as_they_are(name, wrap, kind):
    """Features stay too where a batch could be a view of its one sample."""
    make = WRAPS[wrap]
    more = {key: [make(v) if isinstance(v, list) else v for v in values] for key, values in FEATURES[name].items()}
    arguments = () if "Flattening" in name else (tokenizer(),)
    for rows in (rows_of(UNEVEN, make, **more), rows_of(UNEVEN, make, **more)[1:]):
        before = pickle.dumps(rows)
        batch = getattr(sequence, name)(*arguments, return_tensors=kind)(rows)
        for values in batch.values():
            if hasattr(values, "dtype"):
                values[:] = 7
        assert pickle.dumps(rows) == before


def test_batches_are_used_as_transformers_own():
    batch = sequence.DataCollatorWithPadding(tokenizer())(rows_of(UNEVEN, label=[0, 1]))
    assert isinstance(batch, dict) and batch.input_ids is batch["input_ids"]
    assert batch.to("meta") is batch and batch.labels.device.type == "meta"
    with pytest.raises(AttributeError, match="no 'pixel_values'; it has input_ids, attention_mask, labels"):
        batch.pixel_values
    arrays = sequence.DataCollatorWithPadding(tokenizer(), return_tensors="np")(rows_of(UNEVEN))
    again = pickle.loads(pickle.dumps(copy.copy(arrays)))
    assert type(again) is type(arrays) and (again.to("cpu").input_ids == arrays.input_ids).all()
    loader = torch.utils.data.DataLoader(rows_of(UNEVEN), 2, collate_fn=sequence.DataCollatorWithPadding(tokenizer()), num_workers=1)
    assert next(iter(loader)).attention_mask.tolist() == [[1] * 5 + [0] * 5, [1] * 10]
