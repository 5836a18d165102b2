"""Batches of token sequences: padded, or packed for attention over sequences of unequal length.

They take what a tokenizer gives, dicts of lists or array-likes, and pickle as a ``collate_fn`` with
``functools.partial``. They need NumPy, and torch for ``return_tensors="pt"``. They work where the
samples are, on a device by one launch. The classes have the names and arguments of transformers'
collators, and their results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Union

from windrow._collators import (
    DataCollatorForCompletionOnlyLM,
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithFlattening,
    DataCollatorWithPadding,
    TokenizerNumbers,
)
from windrow._fields import check
from windrow._packing import pack_rows, pack_tokens
from windrow._padding import ADDED, features_of, options_of, padded, result_keys
from windrow._worker_results import for_workers

if TYPE_CHECKING:
    from windrow._windrow import _Features
else:  # for typing.get_type_hints()
    _Features = Any

__all__ = [
    "DataCollatorForCompletionOnlyLM",
    "DataCollatorForLanguageModeling",
    "DataCollatorForSeq2Seq",
    "DataCollatorForTokenClassification",
    "DataCollatorWithFlattening",
    "DataCollatorWithPadding",
    "TokenizerNumbers",
    "pack_rows",
    "pack_tokens",
    "pad_tokens",
]


@for_workers
def pad_tokens(
    features: _Features,
    *,
    padding: Union[bool, str] = True,
    max_length: Optional[int] = None,
    pad_to_multiple_of: Optional[int] = None,
    padding_side: str = "right",
    pad_token_id: int = 0,
    label_pad_token_id: int = -100,
    pad_values: Optional[Mapping[str, float]] = None,
    return_attention_mask: bool = True,
    return_tensors: str = "pt",
) -> Dict[str, Any]:
    """Pads every sequence of tokenized features, in Hugging Face's terms.

    Args:
        features: a list of mappings with ``input_ids``, or an Arrow table with that column. Entries that are numbers are stacked; ``label``
            becomes ``labels``.
        padding: True or ``"longest"``; ``"max_length"``; False or ``"do_not_pad"``: unequal lengths are
            then an error.
        max_length: of ``padding="max_length"``.
        pad_to_multiple_of: applied last, and to ``max_length`` too.
        padding_side: ``"right"`` or ``"left"``.
        pad_token_id, label_pad_token_id: what ``input_ids`` and ``labels`` are padded with.
        pad_values: by key, for other entries; 1 for ``special_tokens_mask``, False for bools, 0 for all else.
        return_attention_mask: adds ``attention_mask`` if the features have none.
        return_tensors: ``"pt"`` or ``"np"``.

    Returns:
        dict: by key, ``[N, length]``, and the dims of nested lists after these; whole numbers int64, Python floats float32, lists of bools
        bool, or int64 where a number is added to them, as to the masks and types of a tokenizer. A column of numbers and lists of several
        kinds has the dtype that torch gives all of them. ``attention_mask`` is 1 where a token is real. Each key is as long as its own
        longest entry.

    Raises:
        ShapeError: a sequence is longer than ``max_length``, or lengths differ and nothing is padded.
        KeyError: an entry is missing.
        TypeError: a dict of columns in place of the list, or a sample that is no mapping.
        DTypeError: a number is beyond int64.
        ValueError: there are no features, the first has both ``label`` and ``labels``, or an argument is wrong.

    Example:
        >>> from windrow.sequence import pad_tokens
        >>> batch = pad_tokens([{"input_ids": [5, 6, 7]}, {"input_ids": [8]}], padding_side="left")
        >>> batch["input_ids"].tolist(), batch["attention_mask"].tolist()
        ([[5, 6, 7], [0, 0, 8]], [[1, 1, 1], [0, 0, 1]])
    """
    check(return_tensors)
    options = options_of(padding, max_length, pad_to_multiple_of, padding_side)
    values = {**ADDED, "input_ids": pad_token_id, "labels": label_pad_token_id, **(pad_values or {})}
    features = features_of(features)
    names = result_keys(features)
    wants_mask = return_attention_mask and "attention_mask" not in names
    return padded(features, names, values, options, wants_mask, return_tensors)
