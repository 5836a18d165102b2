"""Collators of `windrow.sequence` beside transformers' of the same names."""

import collections
import pickle
from collections import UserDict

import numpy as np
import pytest

import windrow as wr
from helpers import refusal
from windrow import sequence
from windrow.sequence import TokenizerNumbers

torch = pytest.importorskip("torch", reason="SKIP: torch is not installed")
transformers = pytest.importorskip("transformers", reason="SKIP: transformers is not installed")

RNG = np.random.default_rng(0)
LENGTHS = (3, 7, 1, 5)


def tokenizer(side="right", **more):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = {"[PAD]": 0, "[MASK]": 1, "[CLS]": 2, "[SEP]": 3, **{f"w{i}": i for i in range(4, 60)}}
    names = {"pad_token": "[PAD]", "mask_token": "[MASK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "model_max_length": 12, **more}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="[PAD]")), padding_side=side, **names
    )


def features(*keys, wrap=lambda ids: ids):
    rows = []
    for n in LENGTHS:
        row = {"input_ids": [2, *RNG.integers(4, 60, n).tolist(), 3]}
        for key in keys:
            own = {"label": int(n % 2), "score": n / 2, "labels": RNG.integers(0, 5, n + 2).tolist(), "span": [n, n + 1]}
            own.update({"attention_mask": [1] * (n + 2), "token_type_ids": [0] * n + [1, 1], "special_tokens_mask": [1] + [0] * n + [1]})
            row[key] = own[key]
        rows.append({key: wrap(value) if isinstance(value, list) else value for key, value in row.items()})
    return rows


def assert_same(got, want):
    assert set(got) == set(want)
    for key, value in want.items():
        if value is None or isinstance(value, int):
            assert got[key] == value, key
            continue
        assert type(got[key]) is type(value) and got[key].dtype == value.dtype and got[key].shape == value.shape, key
        assert (got[key] == value).all(), key


def both(name, rows, *args, kind="pt", **kwargs):
    """The same call of both; features are copied, as transformers changes some."""
    results = []
    for module in (sequence, transformers):
        collate = getattr(module, name)(*args, return_tensors=kind, **kwargs)
        results.append(dict(collate([dict(row) for row in rows])))
    assert_same(*results)


PADDING = {
    "longest": {},
    "multiple": {"pad_to_multiple_of": 8},
    "max_length": {"padding": "max_length", "max_length": 12},
    "both": {"padding": "max_length", "max_length": 12, "pad_to_multiple_of": 8},
    "length of the model": {"padding": "max_length", "pad_to_multiple_of": 8},
    "strategy": {"padding": transformers.utils.PaddingStrategy.LONGEST},
}


@pytest.mark.parametrize("kind", ["pt", "np"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("how", PADDING)
def test_with_padding(how, side, kind):
    for keys in ((), ("attention_mask", "token_type_ids", "special_tokens_mask"), ("label", "span", "score")):
        both("DataCollatorWithPadding", features(*keys), tokenizer(side), kind=kind, **PADDING[how])


def test_with_padding_of_what_tokenizers_and_datasets_give():
    both("DataCollatorWithPadding", features()[:1], tokenizer(model_max_length=10**30), padding="max_length")
    both("DataCollatorWithPadding", features("label", wrap=np.array), tokenizer())
    rows = [UserDict(row) for row in features("token_type_ids")]
    assert_same(sequence.DataCollatorWithPadding(tokenizer())(rows), sequence.DataCollatorWithPadding(tokenizer())([dict(row) for row in rows]))
    encoded = [transformers.BatchEncoding(dict(row)) for row in rows]
    assert_same(dict(sequence.DataCollatorWithPadding(tokenizer())(encoded)), dict(transformers.DataCollatorWithPadding(tokenizer())(encoded)))


@pytest.mark.parametrize("kind", ["pt", "np"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("how", PADDING)
def test_token_classification(how, side, kind):
    for keys in ((), ("labels",), ("labels", "attention_mask")):
        rows = features(*keys)
        both("DataCollatorForTokenClassification", rows, tokenizer(side), kind=kind, label_pad_token_id=-7, **PADDING[how])
    both("DataCollatorForTokenClassification", [{"input_ids": row["input_ids"], "label": row["labels"]} for row in features("labels")], tokenizer(side), kind=kind)


@pytest.mark.parametrize("kind", ["pt", "np"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("how", PADDING)
def test_seq2seq(how, side, kind):
    rows = features("attention_mask")
    for row, n in zip(rows, (4, 2, 9, 1)):
        row["labels"] = list(range(n))
    for case in (rows, features(), [{**row, "labels": None} for row in features()]):
        both("DataCollatorForSeq2Seq", case, tokenizer(side), kind=kind, **PADDING[how])
    both("DataCollatorForSeq2Seq", [{**row, "labels": np.array(row["labels"])} for row in rows], tokenizer(side), kind=kind)


def test_seq2seq_asks_the_model():
    class Model:
        def prepare_decoder_input_ids_from_labels(self, labels):
            return labels + 1

    rows = [{**row, "labels": [1, 2]} for row in features()]
    both("DataCollatorForSeq2Seq", rows, tokenizer(), Model())


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_flattening(kind):
    for keys in ((), ("labels",), ("attention_mask",)):
        for more in ({}, {"return_flash_attn_kwargs": True, "return_seq_idx": True}, {"return_position_ids": False, "separator_id": -5}, {"position_ids_start": 2}):
            both("DataCollatorWithFlattening", features(*keys), kind=kind, **more)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("more", [{}, {"pad_to_multiple_of": 8}])
def test_language_modelling(side, more):
    for rows in (features(), features("special_tokens_mask", "attention_mask")):
        both("DataCollatorForLanguageModeling", rows, tokenizer(side), mlm=False, **more)
        both("DataCollatorForLanguageModeling", rows, tokenizer(side), mlm=False, kind="np", **more)
        both("DataCollatorForLanguageModeling", rows, tokenizer(side), seed=7, mlm_probability=0.5, **more)
        both("DataCollatorForLanguageModeling", rows, tokenizer(side), seed=7, mask_replace_prob=0.3, random_replace_prob=0.6, **more)
        both("DataCollatorForLanguageModeling", rows, tokenizer(side), seed=7, mask_replace_prob=1, random_replace_prob=0, **more)


def test_language_modelling_of_lists_and_of_batch_after_batch():
    rows = [row["input_ids"] for row in features()]
    arguments = {"mlm_probability": 0.4, "seed": 3}
    ours = sequence.DataCollatorForLanguageModeling(tokenizer(), **arguments)
    theirs = transformers.DataCollatorForLanguageModeling(tokenizer(), **arguments)
    for _ in range(3):
        assert_same(ours(rows), theirs(rows))
    torch.manual_seed(5)
    free = sequence.DataCollatorForLanguageModeling(tokenizer())(rows)
    torch.manual_seed(5)
    assert_same(free, transformers.DataCollatorForLanguageModeling(tokenizer())(rows))


def words(rng, length):
    """A sequence with the places of its tokens in a text: words of one to three tokens, special ones at both ends and within."""
    ids, offsets, end = [2], [(0, 0)], 0
    while len(ids) < length - 1:
        if rng.random() < 0.1:
            ids.append(3)
            offsets.append((0, 0))
            continue
        begin = end + int(rng.random() < 0.6)
        end = begin + int(rng.integers(1, 4))
        ids.append(int(rng.integers(4, 60)))
        offsets.append((begin, end))
    return {"input_ids": [*ids, 3], "offset_mapping": [*offsets, (0, 0)]}


@pytest.mark.parametrize("side", ["right", "left"])
def test_whole_words(side):
    """transformers takes rows of one length; of several it is given what its tokenizer would pad them to."""
    rng = np.random.default_rng(4)
    arguments = {"whole_word_mask": True, "mask_replace_prob": 1, "random_replace_prob": 0, "seed": 11, "mlm_probability": 0.4}
    ours = sequence.DataCollatorForLanguageModeling(tokenizer(side), **arguments)
    theirs = transformers.DataCollatorForLanguageModeling(tokenizer(side), **arguments)
    for lengths in ((12, 12, 12), (9, 20, 2, 14)):
        rows = [words(rng, length) for length in lengths]
        padded = [dict(row) for row in rows]
        for row in padded:
            gap = max(lengths) - len(row["input_ids"])
            for key, value in (("input_ids", 0), ("offset_mapping", (0, 0)), ("attention_mask", 0)):
                own = row.get(key, [1] * (max(lengths) - gap))
                row[key] = own + [value] * gap if side == "right" else [value] * gap + own
        for extra in ({}, {"special_tokens_mask": True}):
            for row, full in zip(rows, padded):
                for each in (row, full):
                    each.update({key: [int(token < 4) for token in each["input_ids"]] for key in extra})
            assert_same(ours([dict(row) for row in rows]), dict(theirs([dict(row) for row in padded])))
    with pytest.warns(UserWarning, match="mask_replace_prob is set to 1"):
        plain = sequence.DataCollatorForLanguageModeling(tokenizer(side), whole_word_mask=True)
    assert (plain.mask_replace_prob, plain.random_replace_prob) == (1, 0)
    rows = [words(rng, 5), words(rng, 6)]
    refusal(lambda: plain([rows[0], {"input_ids": [2, 5]}]), KeyError, "sample 1: the key 'offset_mapping' is missing", "return_offsets_mapping")
    for mapping, error in (([(0, 1)], wr.ShapeError), ([(0, 1)] * 5 + [(1,)], wr.ShapeError), (None, wr.ShapeError), ([(0, 1.5)] * 6, wr.DTypeError)):
        refusal(lambda: plain([rows[0], {**rows[1], "offset_mapping": mapping}]), error, 'sample 1 at "offset_mapping"', index=1)
    assert plain([{"input_ids": [], "offset_mapping": []}] * 2)["labels"].shape == (2, 0)
    assert sequence.DataCollatorForLanguageModeling(tokenizer(), mlm=False)(rows)["input_ids"].shape == (2, 6)


def test_numbers_in_place_of_a_tokenizer():
    numbers = TokenizerNumbers(padding_side="left", mask_token_id=1, vocab_size=60, all_special_ids=(0, 1, 2, 3))
    for name, more in (("DataCollatorWithPadding", {}), ("DataCollatorForLanguageModeling", {"seed": 1})):
        collate = getattr(sequence, name)
        rows = features("attention_mask")
        assert_same(pickle.loads(pickle.dumps(collate(numbers, **more)))(rows), collate(tokenizer("left"), **more)(rows))
    refusal(lambda: len(TokenizerNumbers()), ValueError, "vocab_size=")


def test_numbers_without_special_ids_predict_no_padding():
    numbers = TokenizerNumbers(mask_token_id=4, vocab_size=100)
    batch = sequence.DataCollatorForLanguageModeling(numbers, mlm_probability=1.0, seed=1)([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 4]}])
    assert batch["labels"].tolist() == [[5, 6, 7], [8, -100, -100]]


def test_what_is_refused():
    rows = features("labels")
    refusal(lambda: sequence.DataCollatorWithPadding(tokenizer())(rows), wr.ShapeError, 'sample 1 at "labels"', "take the collator for it", index=1, path="labels")
    refusal(lambda: sequence.DataCollatorWithPadding(tokenizer())([]), ValueError, "an empty list")
    refusal(lambda: sequence.DataCollatorWithPadding(tokenizer())([{"ids": [1]}]), KeyError, "'input_ids' is missing")
    refusal(lambda: sequence.DataCollatorWithPadding(tokenizer(pad_token=None))(rows), ValueError, "no padding token")
    refusal(lambda: sequence.DataCollatorWithPadding(tokenizer(), padding=False)(features()), wr.ShapeError, "padding=True")
    refusal(lambda: sequence.DataCollatorForLanguageModeling(tokenizer(mask_token=None)), ValueError, "a mask token")
    bare = sequence.DataCollatorForLanguageModeling(tokenizer(pad_token=None))
    refusal(lambda: bare([[1, 2], [3]]), ValueError, "no padding token")
    refusal(lambda: sequence.DataCollatorForLanguageModeling(tokenizer(), mlm=False, whole_word_mask=True), ValueError, "mlm=True")
    for more in ({"mlm_probability": 1.5}, {"mlm_probability": None}, {"mask_replace_prob": -1}, {"random_replace_prob": 0.5}):
        refusal(lambda: sequence.DataCollatorForLanguageModeling(tokenizer(), **more), ValueError)


def test_keys_that_a_feature_would_make_up_are_missing():
    """The errors are those of plain dicts; the features are only read."""
    calls = {
        "labels": (sequence.DataCollatorForTokenClassification(tokenizer()), sequence.DataCollatorForSeq2Seq(tokenizer())),
        "x": (sequence.DataCollatorWithPadding(tokenizer()), sequence.pad_tokens),
    }
    calls["labels"] += (sequence.DataCollatorWithFlattening(), sequence.pack_tokens)
    for key, collators in calls.items():
        for collate in collators:
            features = [collections.defaultdict(list, {"input_ids": [5, 6], key: [1, 2]}), collections.defaultdict(list, input_ids=[7])]
            refusal(lambda: collate(features), KeyError, f"sample 1: the key '{key}' is missing", index=1, path=key)
            assert list(features[1]) == ["input_ids"]


def conversation(rng, turns, starts_with_response=False):
    """Turns of instructions and responses, marked by the ids 50, 51 and 52, 53."""
    row = [2]
    for turn in range(turns):
        if turn or not starts_with_response:
            row += [50, 51, *rng.integers(4, 50, rng.integers(0, 4)).tolist()]
        row += [52, 53, *rng.integers(4, 50, rng.integers(0, 5)).tolist()]
    return row


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("padding_free", [False, True])
@pytest.mark.parametrize("instruction", [None, [50, 51], "w50 w51"])
def test_completions_only(side, padding_free, instruction):
    trl = pytest.importorskip("trl.trainer.utils", reason="SKIP: trl with DataCollatorForCompletionOnlyLM (0.15) is not installed")
    if not hasattr(trl, "DataCollatorForCompletionOnlyLM"):
        pytest.skip("SKIP: this trl has no DataCollatorForCompletionOnlyLM, 0.15 has")
    rng = np.random.default_rng(1)
    rows = [conversation(rng, turns, first) for turns in (1, 2, 5) for first in (False, True) for _ in range(4)]
    rows += [row + [50, 51, 9] for row in rows[:4]] + [[52], [50, 51, 52, 53]]
    rows = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in rows]
    results = []
    for module in (sequence, trl):
        collate = module.DataCollatorForCompletionOnlyLM([52, 53], instruction, tokenizer=tokenizer(side), padding_free=padding_free)
        with pytest.warns(UserWarning):
            results.append(dict(collate([dict(row) for row in rows])))
    assert_same(*results)


def test_completions_only_by_hand():
    collate = sequence.DataCollatorForCompletionOnlyLM([7, 8], [5], TokenizerNumbers(), return_tensors="np")
    rows = [[5, 1, 7, 8, 2, 5, 3, 7, 8, 4], [5, 1, 7, 8], [7, 8, 2, 5, 9], [5, 1, 2], [1, 7, 8]]
    with pytest.warns(UserWarning) as warned:
        batch = collate([{"input_ids": row} for row in rows])
    assert {warning.filename for warning in warned} == {__file__}
    assert [str(warning.message).split(":")[0] for warning in warned] == [
        "sample 3 has no response template", "sample 4 has no instruction template"
    ]
    no = -100
    assert batch["labels"].tolist() == [
        [no, no, no, no, 2, no, no, no, no, 4], [no] * 10, [no, no, 2, *[no] * 7], [no] * 10, [no] * 10
    ]
    flat = sequence.DataCollatorForCompletionOnlyLM([7], tokenizer=TokenizerNumbers(), padding_free=True)([{"input_ids": [7, 1]}, {"input_ids": [2, 7, 3]}])
    assert flat["labels"].tolist() == [[no, 1, no, no, 3]] and flat["position_ids"].tolist() == [[0, 1, 0, 1, 2]]
    assert flat["cu_seq_lens_q"].tolist() == [0, 2, 5] and flat["max_length_q"] == 3 and "attention_mask" not in flat
    refusal(lambda: sequence.DataCollatorForCompletionOnlyLM([], tokenizer=TokenizerNumbers()), ValueError, "has no tokens")
    bare = TokenizerNumbers(model_input_names=("input_ids",))
    unmasked = sequence.DataCollatorForCompletionOnlyLM([7], tokenizer=bare, padding_free=True)
    refusal(lambda: unmasked([{"input_ids": [7, 1]}]), ValueError, "attention mask")


def test_completions_keep_the_dtypes_of_torch():
    e = torch.ones(2, dtype=torch.bfloat16)
    rows = [
        {"input_ids": [7, 1, 2], "score": 0.5, "e": e, "labels": [1]},
        {"input_ids": [7, 1], "score": 1.5, "e": e, "labels": [1, 2]},
    ]
    for padding_free in (False, True):
        batch = sequence.DataCollatorForCompletionOnlyLM([7], tokenizer=TokenizerNumbers(), padding_free=padding_free)(rows)
        assert batch["score"].dtype == torch.float32 and batch["e"].dtype == torch.bfloat16 and batch["labels"].dtype == torch.int64


def test_an_error_names_the_sample_of_the_callers_list():
    torch = pytest.importorskip("torch")
    features = [{"input_ids": []}, {"input_ids": [1]}, {"input_ids": torch.ones(2, requires_grad=True)}]
    refusal(lambda: sequence.DataCollatorWithFlattening()(features), wr.LayoutError, "sample 2", index=2)
