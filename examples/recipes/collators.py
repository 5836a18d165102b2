"""transformers' data collators under their own names: the same results, also from the numbers of a tokenizer alone."""

import functools
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.utils.data import DataLoader

from windrow import sequence

words = {"[PAD]": 0, "[MASK]": 1, "[CLS]": 2, "[SEP]": 3, **{f"w{i}": i for i in range(4, 100)}}
tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(WordLevel(words, unk_token="[PAD]")),
    pad_token="[PAD]", mask_token="[MASK]", cls_token="[CLS]", sep_token="[SEP]",
)  # fmt: skip


def features(num: int, *keys: str) -> list[dict[str, Any]]:
    rows = []
    for n in range(num):
        ids = [2, *range(4, 6 + 3 * n), 3]
        own = {"labels": [i % 5 for i in ids], "label": n % 2, "attention_mask": [1] * len(ids)}
        rows.append({"input_ids": ids, **{key: own[key] for key in keys}})
    return rows


CASES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "DataCollatorWithPadding": ({"pad_to_multiple_of": 8}, features(6, "label")),
    "DataCollatorForTokenClassification": ({}, features(6, "labels")),
    "DataCollatorForSeq2Seq": ({"label_pad_token_id": -1}, features(6, "labels", "attention_mask")),
    "DataCollatorForLanguageModeling": ({"seed": 7, "mlm_probability": 0.3}, features(6)),
}

if __name__ == "__main__":
    for name, (arguments, rows) in CASES.items():
        ours, own = (getattr(module, name)(tokenizer, **arguments)([dict(row) for row in rows]) for module in (sequence, transformers))
        assert set(ours) == set(own) and all(torch.equal(ours[key], own[key]) for key in own)
        print(name, {key: tuple(values.shape) for key, values in ours.items()})

    # Workers need no tokenizer, only the numbers that the collator reads of one.
    numbers = sequence.TokenizerNumbers(pad_token_id=0, padding_side="left")
    collate = sequence.DataCollatorForSeq2Seq(numbers, pad_to_multiple_of=8)
    for batch in DataLoader(features(8, "labels"), batch_size=4, collate_fn=collate):
        print(batch["input_ids"].shape, batch["attention_mask"].sum().item(), batch["labels"][0, :3].tolist())
    flat = DataLoader(features(4), 4, collate_fn=functools.partial(sequence.DataCollatorWithFlattening()))
    print({key: tuple(values.shape) for key, values in next(iter(flat)).items()})
