"""windrow.sequence beside the collators of transformers that it follows."""

import decimal
import functools
import pickle
import typing

import numpy as np
import pytest

import windrow as wr
from windrow import sequence
from windrow.sequence import pack_rows, pack_tokens, pad_tokens

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="SKIP: transformers is not installed")


@pytest.fixture(scope="module")
def tokenizer(transformers):
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]")
    return lambda side, pad_id=0: transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(model), pad_token="[PAD]", unk_token="[UNK]", padding_side=side
    )


def features(*extra, lengths=(3, 1, 5, 2)):
    made = []
    for i, n in enumerate(lengths):
        ids = [10 * i + j + 5 for j in range(n)]
        feature = {"input_ids": ids}
        if "labels" in extra:
            feature["labels"] = [-x for x in ids][: n - i % 2]
        if "token labels" in extra:
            feature["labels"] = [-x for x in ids]
        if "types" in extra:
            feature["token_type_ids"] = [i % 2] * n
        if "mask" in extra:
            feature["attention_mask"] = [1] * (n - 1) + [0]
        if "special" in extra:
            feature["special_tokens_mask"] = [0] * n
        if "label" in extra:
            feature["label"] = i
        if "score" in extra:
            feature["labels"] = i / 2
        made.append(feature)
    return made


def assert_as(ours, theirs):
    assert set(ours) == set(theirs)
    for key, tensor in theirs.items():
        if isinstance(tensor, int):
            assert ours[key] == tensor and type(ours[key]) is int
            continue
        assert ours[key].dtype == tensor.dtype, key
        assert ours[key].tolist() == tensor.tolist(), key


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("multiple", [None, 4])
@pytest.mark.parametrize("padding, max_length", [(True, None), ("longest", None), ("max_length", 6), ("max_length", 8)])
@pytest.mark.parametrize("extra", [(), ("types", "special"), ("mask",), ("label",), ("score",)])
def test_as_data_collator_with_padding(transformers, tokenizer, side, multiple, padding, max_length, extra):
    theirs = transformers.DataCollatorWithPadding(
        tokenizer(side), padding=padding, max_length=max_length, pad_to_multiple_of=multiple
    )(features(*extra))
    ours = pad_tokens(
        features(*extra), padding=padding, max_length=max_length, pad_to_multiple_of=multiple, padding_side=side
    )
    assert_as(ours, theirs)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("multiple", [None, 4])
@pytest.mark.parametrize("padding, max_length", [(True, None), ("max_length", 7)])
def test_as_data_collator_for_seq2seq(transformers, tokenizer, side, multiple, padding, max_length):
    theirs = transformers.DataCollatorForSeq2Seq(
        tokenizer(side), padding=padding, max_length=max_length, pad_to_multiple_of=multiple
    )(features("labels"))
    ours = pad_tokens(
        features("labels"), padding=padding, max_length=max_length, pad_to_multiple_of=multiple, padding_side=side
    )
    assert_as(ours, theirs)


@pytest.mark.parametrize("side", ["right", "left"])
def test_as_data_collator_for_token_classification(transformers, tokenizer, side):
    theirs = transformers.DataCollatorForTokenClassification(tokenizer(side))(features("token labels"))
    assert_as(pad_tokens(features("token labels"), padding_side=side), theirs)


def test_without_padding(transformers, tokenizer):
    same = features(lengths=(3, 3))
    theirs = transformers.DataCollatorWithPadding(tokenizer("right"), padding=False)(same)
    assert_as(pad_tokens(same, padding=False), theirs)
    with pytest.raises(wr.ShapeError) as error:
        pad_tokens(features(), padding=False)
    assert error.value.path == "input_ids" and error.value.index == 1


@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor, lambda ids: np.array(ids, np.int32)])
@pytest.mark.parametrize("return_tensors", ["pt", "np"])
def test_kinds_of_input_and_output(make, return_tensors):
    batch = pad_tokens(
        [{"input_ids": make([1, 2])}, {"input_ids": make([3])}],
        pad_token_id=9,
        return_tensors=return_tensors,
        return_attention_mask=False,
    )
    assert list(batch) == ["input_ids"]
    assert type(batch["input_ids"]) is (torch.Tensor if return_tensors == "pt" else np.ndarray)
    assert batch["input_ids"].tolist() == [[1, 2], [3, 9]] and "int64" in str(batch["input_ids"].dtype)


def test_empty_sequences_and_other_entries():
    batch = pad_tokens(
        [{"input_ids": [], "bbox": []}, {"input_ids": [4], "bbox": [0.5]}], pad_values={"bbox": -1}
    )  # fmt: skip
    assert batch["input_ids"].tolist() == [[0], [4]] and batch["attention_mask"].tolist() == [[0], [1]]
    assert batch["bbox"].tolist() == [[-1.0], [0.5]] and batch["bbox"].dtype == torch.float32


def test_nothing_is_rounded():
    """Whole numbers first, others later."""
    batch = pad_tokens([{"input_ids": [1], "w": [1]}, {"input_ids": [2], "w": [0.5]}])
    assert batch["w"].tolist() == [[1.0], [0.5]]
    with pytest.raises(wr.DTypeError):
        pad_tokens([{"input_ids": [1], "w": np.ones(1)}, {"input_ids": [2], "w": np.ones(1, np.int32)}])


@pytest.mark.parametrize("labels", [(), ("token labels",)])
@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("seq_idx", [False, True])
def test_as_data_collator_with_flattening(transformers, labels, flash, seq_idx):
    if not hasattr(transformers, "DataCollatorWithFlattening"):
        pytest.skip("SKIP: this transformers has no DataCollatorWithFlattening")
    arguments = {"return_flash_attn_kwargs": flash, "return_seq_idx": seq_idx}
    theirs = transformers.DataCollatorWithFlattening(**arguments)(features(*labels))
    ours = pack_tokens(features(*labels), **arguments)
    if not flash:
        assert ours.pop("cu_seqlens").tolist() == [0, 3, 4, 9, 11] and ours.pop("max_seqlen") == 5
    assert_as(ours, theirs)


def test_packing_by_torchs_own_functions():
    rows = [torch.arange(n) for n in (4, 0, 2)]
    batch = pack_tokens([{"input_ids": row} for row in rows], separator_id=-1, position_ids_start=2)
    assert batch["input_ids"].equal(torch.cat(rows)[None])
    assert batch["cu_seqlens"].equal(torch.tensor([0, 4, 4, 6], dtype=torch.int32))
    assert batch["position_ids"].tolist() == [[2, 3, 4, 5, 2, 3]]
    assert batch["labels"].tolist() == [[-1, 1, 2, 3, -1, 1]]
    assert batch["max_seqlen"] == 4


@pytest.mark.parametrize("make", [torch.tensor, np.array, lambda ids: wr.asarray(np.array(ids))])
def test_packing_what_a_tokenizer_gives_as_tensors(make):
    """``return_tensors="pt"`` of one text gives ``[1, L]``."""
    flat = features("token labels", lengths=(3, 1, 5))
    tables = [{key: make([ids]) for key, ids in feature.items()} for feature in flat]
    assert tables[0]["input_ids"].shape == (1, 3)
    empty = {key: np.zeros((1, 0), int) for key in flat[0]}
    ours = pack_tokens([*tables, flat[0], empty])
    want = pack_tokens([*flat, flat[0], {key: [] for key in flat[0]}])
    for key, value in want.items():
        assert ours[key] == value if isinstance(value, int) else ours[key].equal(value), key


@pytest.mark.parametrize("call", [pad_tokens, pack_tokens])
@pytest.mark.parametrize("key", ["input_ids", "labels"])
def test_tokens_beyond_int64_are_refused(call, key):
    """A cast of uint64 to int64 would make them negative."""

    def batch(most):
        return [{"input_ids": np.ones(2, "u8"), key: np.array([0, n], "u8")} for n in (7, most)]

    assert call(batch(2**63 - 1))[key].max() == 2**63 - 1
    with pytest.raises(wr.DTypeError, match=f'sample 1 at "{key}": expected int64, got the number {2**63}') as caught:
        call(batch(2**63))
    assert caught.value.index == 1 and caught.value.path == key
    call([{"input_ids": np.zeros(0, "u8")}, {"input_ids": [1]}])


def test_samples_are_not_written_to():
    ids = np.arange(1, 4)
    pack_tokens([{"input_ids": ids, "labels": ids}])
    assert ids.tolist() == [1, 2, 3]


def test_they_pickle_as_a_collate_fn():
    collate = pickle.loads(pickle.dumps(functools.partial(pad_tokens, pad_to_multiple_of=4)))
    loader = torch.utils.data.DataLoader(features(), batch_size=2, num_workers=1, collate_fn=collate)
    assert [tuple(batch["input_ids"].shape) for batch in loader] == [(2, 4), (2, 8)]


seq2seq = sequence.DataCollatorForSeq2Seq(sequence.TokenizerNumbers(), padding="max_length", max_length=2)
classes = sequence.DataCollatorForTokenClassification(sequence.TokenizerNumbers())


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: pad_tokens([]), ValueError, "empty list"),
        (lambda: pack_tokens([{"ids": [1]}]), KeyError, "input_ids"),
        (lambda: pad_tokens([{"input_ids": [1], "x": [1]}, {"input_ids": [1]}]), KeyError, "sample 1: the key 'x'"),
        (lambda: pad_tokens(features(), padding="most"), ValueError, "padding must be True, .*, got 'most'"),
        (lambda: pad_tokens(features(), padding="max_length"), ValueError, "max_length="),
        (lambda: pad_tokens(features(), padding="max_length", max_length=4), wr.ShapeError, "input_ids.*; max_length= is at least"),
        (lambda: pad_tokens(features(), padding=False), wr.ShapeError, "input_ids.*; padding=True pads to the longest"),
        (lambda: pad_tokens([{"input_ids": np.ones((1, n), int)} for n in (2, 3)]), wr.ShapeError, "; the entries of a key differ in length"),
        (lambda: pad_tokens([{"input_ids": [1]}, {"input_ids": None}]), TypeError, 'sample 1 at "input_ids": .* got NoneType$'),
        (lambda: pad_tokens([{"input_ids": None}]), TypeError, 'sample 0 at "input_ids": .* got NoneType$'),
        (lambda: pad_tokens([{"input_ids": [1], "labels": [1], "label": 7}]), ValueError, "sample 0: 'label' and 'labels' both become 'labels'"),
        (lambda: pad_tokens([{"input_ids": [1], "x": [[decimal.Decimal("1.5")]]}]), TypeError, 'sample 0 at "x": .* got list at position 0'),
        (lambda: pad_tokens([{"input_ids": [1], "x": [[1j]]}]), TypeError, 'sample 0 at "x": .* got list at position 0'),
        (lambda: pack_tokens([{"input_ids": [1]}], separator_id=2**63), ValueError, "separator_id=9223372036854775808 is beyond 63 bits"),
        (lambda: pack_tokens([{"input_ids": [1]}], position_ids_start=1.5), TypeError, "position_ids_start must be an int, got 1.5"),
        (lambda: pack_rows([[1]], [[0]], max_tokens=4, label_pad_token_id=-(2**63) - 1), ValueError, "label_pad_token_id must be at least -"),
        (lambda: pad_tokens([{"input_ids": "ids"}]), TypeError, 'sample 0 at "input_ids": .* got str$'),
        (lambda: pad_tokens(features(), padding_side="middle"), ValueError, "padding_side"),
        (lambda: pad_tokens(features(), return_tensors="tf"), ValueError, "return_tensors"),
        (lambda: pad_tokens([{"input_ids": ["a"]}]), TypeError, 'sample 0 at "input_ids": .* got str at position 0'),
        (lambda: pack_tokens([{"input_ids": [1, 2], "labels": [1]}]), wr.ShapeError, "sample 0 at \"labels\""),
        (lambda: pad_tokens([{"input_ids": [1, None]}]), TypeError, 'sample 0 at "input_ids": .* got NoneType at position 1'),
        (lambda: pack_tokens([{"input_ids": np.ones((2, 3), int)}]), wr.ShapeError, r"expected shape \(L,\) or \(1, L\), got shape \(2, 3\)"),
        (lambda: pack_tokens([{"input_ids": np.int64(3)}]), wr.ShapeError, r'sample 0 at "input_ids": .* got shape \(\)'),
        (lambda: pack_tokens([{"input_ids": [1.5]}]), wr.DTypeError, "not whole"),
        (lambda: pack_tokens([{"input_ids": [1]}, {"input_ids": [2**63]}]), wr.DTypeError, 'sample 1 at "input_ids"'),
        (lambda: pack_tokens([{"input_ids": [1]}, {"input_ids": np.ones(2)}]), wr.DTypeError, "not whole"),
        (lambda: pad_tokens({"input_ids": [[1], [2]]}), TypeError, "expected a list of samples, got dict; .*makes one of a dict of columns"),
        (lambda: pack_tokens([[1], [2]]), TypeError, 'sample 0: expected a mapping with "input_ids", got list; {"input_ids": row}'),
        (lambda: pad_tokens([{"input_ids": [1]}, [2]]), TypeError, "sample 1: expected a mapping, as sample 0 is, got list"),
        (lambda: pack_rows([{"input_ids": [1]}, [2]], [[0, 1]], max_tokens=4), TypeError, "sample 1: expected a mapping, as sample 0 is"),
        (lambda: pad_tokens(None), TypeError, "expected a list of samples, got NoneType$"),
        (lambda: pack_rows({0: [1]}, [[0]], max_tokens=4), TypeError, "expected a list of samples, got dict$"),
        (lambda: seq2seq([{"input_ids": [1], "labels": [1, 2, 3]}]), wr.ShapeError, "; max_length= is at least the number of labels$"),
        (lambda: classes([{"input_ids": [1], "labels": [1, 2]}]), wr.ShapeError, "; a sample has no more labels than"),
        (lambda: pad_tokens(torch.ones(2, 2)), TypeError, 'sample 0: expected a mapping with "input_ids", got Tensor'),
    ],
)  # fmt: skip
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("call", [pad_tokens, pack_tokens])
@pytest.mark.parametrize("other, text", [(True, "a bool"), (None, "NoneType"), ([2], "list"), (2**64, "the int 18446744073709551616")])
def test_what_is_no_token_is_named_by_sample_key_and_position(call, other, text):
    rows = [{"input_ids": [1, 2, 3], "labels": [4, 5, 6]}, {"input_ids": [1, 2], "labels": [7, other]}]
    with pytest.raises(TypeError, match=f'sample 1 at "labels": .*{text} at position 1'):
        call(rows)


@pytest.mark.parametrize("library", ["pyarrow", "polars"])
def test_arrow_tables_are_their_rows(library):
    module = pytest.importorskip(library, reason=f"SKIP: {library} is not installed")
    columns = {"input_ids": [[1, 2, 3], [4]], "labels": [[1, 2, 3], [4]]}
    table = {"pyarrow": lambda: module.table(columns), "polars": lambda: module.DataFrame(columns)}[library]()
    rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
    calls = [pad_tokens, pack_tokens, lambda samples: pack_rows(samples, [[1, 0]], max_tokens=5)]
    numbers = sequence.TokenizerNumbers()
    calls += [sequence.DataCollatorForSeq2Seq(numbers), sequence.DataCollatorForTokenClassification(numbers)]
    for call in (*calls, sequence.DataCollatorWithFlattening()):
        assert_as(call(table), call(rows))
    ids, causal = table.select(["input_ids"]), sequence.DataCollatorForLanguageModeling(numbers, mlm=False)
    for call in (causal, sequence.DataCollatorWithPadding(numbers)):
        assert_as(call(ids), call([{"input_ids": row} for row in columns["input_ids"]]))
    column = table["input_ids"]
    assert_as(pack_rows(column, [[1, 0]], max_tokens=5), pack_rows(columns["input_ids"], [[1, 0]], max_tokens=5))
    refused = pytest.raises(TypeError, match='sample 0: expected a mapping with "input_ids", got Tensor')
    with refused:
        pad_tokens(column)


def test_lists_of_bools_are_bools_until_a_number_is_added():
    rows = [{"input_ids": [1, 2], "w": [True, False], "special_tokens_mask": [True, False]}, {"input_ids": [3], "w": [True], "special_tokens_mask": [True]}]
    batch = pad_tokens(rows)
    assert batch["w"].dtype == torch.bool and batch["w"].tolist() == [[True, False], [True, False]]
    assert batch["special_tokens_mask"].dtype == torch.int64 and batch["special_tokens_mask"].tolist() == [[1, 0], [1, 1]]
    assert pad_tokens(rows[:1])["special_tokens_mask"].dtype == torch.bool
    for value, dtype in ((True, torch.bool), (7, torch.int64)):
        padded = pad_tokens(rows, pad_values={"w": value})["w"]
        assert padded.dtype == dtype and padded[1].tolist() == [True, value]
    assert pack_tokens([{"input_ids": [True, False]}])["input_ids"].tolist() == [[1, 0]]


def test_numbers_and_nested_lists_of_several_kinds():
    rows = [{"input_ids": [1, 2], "label": 0, "bbox": [[1, 2], [3, 4]]}, {"input_ids": [3], "label": 1.5, "bbox": [[5, 6.5]]}]
    batch = pad_tokens(rows, padding_side="left")
    assert batch["labels"].dtype == torch.float32 and batch["labels"].tolist() == [0, 1.5]
    assert batch["bbox"].dtype == torch.float32 and batch["bbox"].tolist() == [[[1, 2], [3, 4]], [[0, 0], [5, 6.5]]]
    assert pad_tokens([{"input_ids": [1], "label": value} for value in (True, 0)])["labels"].tolist() == [1, 0]


def test_columns_of_other_mappings_and_kinds():
    import collections

    class Lazy(collections.abc.Mapping):
        def __init__(self, made):
            self.made = made

        def __getitem__(self, key):
            return self.made[key]

        def __iter__(self):
            return iter(self.made)

        def __len__(self):
            return len(self.made)

    made = [{"input_ids": [1, 2], "w": [True, False], "x": np.ones(2, "f8"), "n": 3}, {"input_ids": np.array([3]), "w": [True], "x": np.zeros(1), "n": 4}]
    batch = pad_tokens([Lazy(row) for row in made], return_tensors="np")
    assert {key: value.dtype.name for key, value in batch.items()} == {
        "input_ids": "int64", "w": "bool", "x": "float64", "n": "int64", "attention_mask": "int64"
    }  # fmt: skip
    assert batch["w"].tolist() == [[1, 0], [1, 0]] and batch["n"].tolist() == [3, 4]
    with pytest.raises(KeyError, match="sample 1: the key 'input_ids' is missing"):
        pack_tokens([Lazy(made[0]), Lazy({"labels": [1]})])


def test_annotations_are_known_when_a_program_runs():
    for call in (pad_tokens, pack_tokens, sequence.pack_rows, sequence.DataCollatorWithPadding.__call__):
        assert "return" in typing.get_type_hints(call)


@pytest.mark.parametrize("count", [1, 7, 300])
def test_packing_beside_numpy(count):
    rng = np.random.default_rng(count)
    rows = [rng.integers(0, 1000, n).astype("i4") for n in rng.integers(0, 9, count)]
    batch = pack_tokens([{"input_ids": row} for row in rows], return_seq_idx=True, return_tensors="np")
    lengths = [len(row) for row in rows]
    assert batch["input_ids"].tolist() == [np.concatenate(rows).tolist()]
    assert batch["position_ids"].tolist() == [[i for n in lengths for i in range(n)]]
    assert batch["labels"].tolist() == [[-100 if i == 0 else int(row[i]) for row in rows for i in range(len(row))]]
    assert batch["seq_idx"].tolist() == [np.repeat(np.arange(count), lengths).tolist()]
    assert batch["cu_seqlens"].tolist() == [0, *np.cumsum(lengths).tolist()] and batch["max_seqlen"] == max(lengths)
    assert {key: value.dtype.name for key, value in batch.items() if key != "max_seqlen"} == {
        "input_ids": "int64", "labels": "int64", "position_ids": "int64", "seq_idx": "int32", "cu_seqlens": "int32"
    }  # fmt: skip
