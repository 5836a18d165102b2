"""Collators with the names and arguments of transformers' own; see `windrow.sequence`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from numbers import Number
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import windrow as wr
from windrow._fields import at_sample, check, entries_of, give, numpy, refusal
from windrow._masking import draws, mask, offsets_of, worker_number
from windrow._packing import pack_tokens
from windrow._padding import ADDED, HINTS, features_of, is_mapping, options_of, padded, rows_of
from windrow._worker_results import for_workers

if TYPE_CHECKING:
    from windrow._windrow import _Features
else:  # for typing.get_type_hints()
    _Features = Any

# Keys that a tokenizer pads, those of one sequence each.
_SEQUENCES = ("input_ids", "attention_mask", "token_type_ids", "special_tokens_mask")


@dataclass(frozen=True)
class TokenizerNumbers:
    """A stand-in for a tokenizer, with the attributes that the collators read.

    Attributes:
        pad_token_id, pad_token_type_id: what ``input_ids`` and ``token_type_ids`` are padded with.
        padding_side: ``"right"`` or ``"left"``.
        model_input_names: names of a model's inputs; if they include ``attention_mask``, the batch has one.
        mask_token_id, vocab_size, all_special_ids: for masked language modelling. The special ids are those given, and those of the padding
            and mask tokens.
    """

    pad_token_id: Optional[int] = 0
    padding_side: str = "right"
    pad_token_type_id: int = 0
    model_input_names: Tuple[str, ...] = ("input_ids", "attention_mask")
    mask_token_id: Optional[int] = None
    vocab_size: Optional[int] = None
    all_special_ids: Tuple[int, ...] = ()

    def __post_init__(self) -> None:
        own = [token for token in (self.pad_token_id, self.mask_token_id) if token is not None and token not in self.all_special_ids]
        object.__setattr__(self, "all_special_ids", (*self.all_special_ids, *own))

    def __len__(self) -> int:
        if self.vocab_size is None:
            raise ValueError("vocab_size= is needed to replace tokens with others")
        return self.vocab_size


class TokenBatch(Dict[str, Any]):
    """A batch of a collator: a dict whose entries are attributes too, and which `to` moves, as transformers' BatchEncoding."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the batch has no {name!r}; it has {', '.join(self) or 'no entries'}") from None

    def to(self, device: Any, *, non_blocking: bool = False) -> "TokenBatch":
        """Moves the tensors to a device, in this dict, and returns it."""
        for key, value in self.items():
            if hasattr(value, "to"):
                self[key] = value.to(device, non_blocking=non_blocking)
        return self


# The length of a model without one is above it in transformers.
_LONGEST = 10**20


def _padding_of(tokenizer: Any, padding: Any, max_length: Optional[int]) -> Tuple[Any, Optional[int]]:
    """Padding and length as ``tokenizer.pad`` reads them: ``"max_length"`` without one is the length of the model, or no padding."""
    longest = getattr(tokenizer, "model_max_length", None)
    if max_length is None and longest is not None and getattr(padding, "value", padding) == "max_length":
        return ("max_length", longest) if longest <= _LONGEST else (False, None)
    return padding, max_length


def _pad(
    tokenizer: Any,
    features: Sequence[Mapping[str, Any]],
    padding: Any,
    max_length: Optional[int],
    pad_to_multiple_of: Optional[int],
    return_tensors: str,
    without: Tuple[str, ...] = (),
) -> TokenBatch:
    """Returns what ``tokenizer.pad`` returns: sequences of known names are padded, other entries but `without` are stacked.
    ValueError without a padding token where it is needed."""
    check(return_tensors)
    options = options_of(*_padding_of(tokenizer, padding, max_length), pad_to_multiple_of, tokenizer.padding_side)
    keys = [key for key in features[0] if key not in without]
    values = {**ADDED, "token_type_ids": tokenizer.pad_token_type_id}
    if tokenizer.pad_token_id is not None:
        values["input_ids"] = tokenizer.pad_token_id
    elif options is not None:
        raise ValueError("the tokenizer has no padding token: set pad_token, or padding=False")
    wants_mask = "attention_mask" in tokenizer.model_input_names and "attention_mask" not in keys
    sequences = {key: key for key in keys if key in _SEQUENCES}
    batch = TokenBatch(padded(features, sequences, values, options, wants_mask, return_tensors))
    others = {key: key for key in keys if key not in _SEQUENCES}
    hints = {
        "dtype=": "the arrays of a key have one dtype",
        "spec=": "a tokenizer pads ids, masks and token types: pad it before, or take the collator for it",
    }
    if others:
        batch.update(padded(features, others, {}, None, False, return_tensors, hints))
    are_lists = isinstance(features[0]["input_ids"], (list, tuple))
    for key in others:
        batch[key] = _as_python_floats(batch[key], [feature[key] for feature in features], are_lists, return_tensors)
    return batch


def _as_python_floats(values: Any, rows: List[Any], are_lists: bool, return_tensors: str) -> Any:
    """Floats in the dtype that transformers gives them. Python floats become float32, or float64 of NumPy; so do arrays where the
    ids are arrays, since it makes Python numbers of all arrays then. NumPy's numbers keep their dtype, or have one in common."""
    import numpy as np

    is_pt, kinds = return_tensors == "pt", set(map(type, rows))
    if not (values.is_floating_point() if is_pt else values.dtype.kind == "f"):
        return values
    if not any(hasattr(kind, "dtype") for kind in kinds):
        return values if is_pt else np.array(rows)
    if all(issubclass(kind, (Number, np.generic)) for kind in kinds):
        if not is_pt:
            return np.array(rows)
        import torch

        return torch.tensor(rows)
    if are_lists:
        return values
    return values.float() if is_pt else values.astype("float64")


def _labels(
    features: Sequence[Any], name: str, value: int, options: Optional[Dict[str, Any]], return_tensors: str, hints: Mapping[str, str]
) -> Any:
    """Labels, int64, padded by these options of `windrow.pad`; None: they have one length. ShapeError if each is one number."""
    labels = padded(features, {name: name}, {name: value}, options, False, return_tensors, hints, int64=True)[name]
    if labels.ndim == 1:
        raise refusal(wr.ShapeError, 0, name, "a list of labels", "one number")
    return labels


@dataclass
class DataCollatorWithPadding:
    """Pads what a tokenizer gives, as transformers' collator of this name.

    Args:
        tokenizer: of transformers, or `TokenizerNumbers`.
        padding: True or ``"longest"``; ``"max_length"``; False or ``"do_not_pad"``.
        max_length: of ``padding="max_length"``; the tokenizer's ``model_max_length`` if it is None.
        pad_to_multiple_of: applied last, and to ``max_length`` too.
        return_tensors: ``"pt"`` or ``"np"``.

    Returns:
        dict: by key. Whole numbers are int64. Python floats are float32 (float64 for ``"np"``), and so are arrays of floats where the ids
        are arrays. ``label`` and ``label_ids`` become ``labels``. As in transformers' BatchEncoding, entries are attributes too, and
        ``.to(device)`` moves the batch.

    Raises:
        ShapeError: entries that the tokenizer does not pad, such as labels, differ in shape.
        KeyError: an entry is missing.
        TypeError: a dict of columns in place of the list of features, which an Arrow table can be, or a feature that is no mapping.
        ValueError: there are no features, the tokenizer has no padding token, or an argument is wrong.

    Example:
        >>> from windrow.sequence import DataCollatorWithPadding, TokenizerNumbers
        >>> collate = DataCollatorWithPadding(TokenizerNumbers(pad_token_id=9))
        >>> batch = collate([{"input_ids": [1, 2], "label": 0}, {"input_ids": [3], "label": 1}])
        >>> batch["input_ids"].tolist(), batch["attention_mask"].tolist(), batch["labels"].tolist()
        ([[1, 2], [3, 9]], [[1, 1], [1, 0]], [0, 1])
    """

    tokenizer: Any
    padding: Union[bool, str] = True
    max_length: Optional[int] = None
    pad_to_multiple_of: Optional[int] = None
    return_tensors: str = "pt"

    @for_workers
    def __call__(self, features: _Features) -> Dict[str, Any]:
        features = features_of(features)
        batch = _pad(self.tokenizer, features, self.padding, self.max_length, self.pad_to_multiple_of, self.return_tensors)
        for name in ("label", "label_ids"):
            if name in batch:
                batch["labels"] = batch.pop(name)
        return batch


def _pad_but_labels(collator: Any, features: Sequence[Mapping[str, Any]], return_tensors: Optional[str]) -> Tuple[Dict[str, Any], str, str]:
    """The batch without its labels, the key of those, and which library's tensors it has."""
    kind = return_tensors or collator.return_tensors
    name = "label" if "label" in features[0] else "labels"
    batch = _pad(collator.tokenizer, features, collator.padding, collator.max_length, collator.pad_to_multiple_of, kind, (name,))
    return batch, name, kind


@dataclass
class DataCollatorForTokenClassification:
    """Pads inputs, and labels to the same length, as transformers' collator of this name.

    Args:
        label_pad_token_id: what ``label`` or ``labels`` are padded with. The others as for `DataCollatorWithPadding`.

    Example:
        >>> from windrow.sequence import DataCollatorForTokenClassification, TokenizerNumbers
        >>> collate = DataCollatorForTokenClassification(TokenizerNumbers(), pad_to_multiple_of=4)
        >>> collate([{"input_ids": [1, 2, 3], "labels": [0, 1, 0]}, {"input_ids": [3], "labels": [1]}])["labels"].tolist()
        [[0, 1, 0, -100], [1, -100, -100, -100]]
    """

    tokenizer: Any
    padding: Union[bool, str] = True
    max_length: Optional[int] = None
    pad_to_multiple_of: Optional[int] = None
    label_pad_token_id: int = -100
    return_tensors: str = "pt"

    @for_workers
    def __call__(self, features: _Features, return_tensors: Optional[str] = None) -> Dict[str, Any]:
        features = features_of(features)
        batch, name, kind = _pad_but_labels(self, features, return_tensors)
        if name in features[0]:
            options = {"side": self.tokenizer.padding_side, "dims": 0, "size": batch["input_ids"].shape[1], "multiple_of": 1}
            hints = {**HINTS, "truncate=": "a sample has no more labels than the longest has tokens"}
            batch[name] = _labels(features, name, self.label_pad_token_id, options, kind, hints)
        return batch


@dataclass
class DataCollatorForSeq2Seq:
    """Pads inputs, and labels to a length of their own, as transformers' collator of this name.

    Args:
        model: if it has ``prepare_decoder_input_ids_from_labels``, the batch has ``decoder_input_ids``.
        label_pad_token_id: what ``labels`` are padded with. The others as for `DataCollatorWithPadding`.

    Returns:
        dict: ``labels`` is None if the features have none.

    Example:
        >>> from windrow.sequence import DataCollatorForSeq2Seq, TokenizerNumbers
        >>> collate = DataCollatorForSeq2Seq(TokenizerNumbers(padding_side="left"))
        >>> collate([{"input_ids": [1, 2], "labels": [5]}, {"input_ids": [3], "labels": [6, 7]}])["labels"].tolist()
        [[-100, 5], [6, 7]]
    """

    tokenizer: Any
    model: Any = None
    padding: Union[bool, str] = True
    max_length: Optional[int] = None
    pad_to_multiple_of: Optional[int] = None
    label_pad_token_id: int = -100
    return_tensors: str = "pt"

    @for_workers
    def __call__(self, features: _Features, return_tensors: Optional[str] = None) -> Dict[str, Any]:
        features = features_of(features)
        batch, name, kind = _pad_but_labels(self, features, return_tensors)
        rows = entries_of(features, name) if name in features[0] else []
        if all(row is None for row in rows):
            batch["labels"] = None
            return batch
        # The length of the model is one of the inputs.
        padding = True if self.max_length is None and self.padding not in (False, "do_not_pad") else self.padding
        options = options_of(padding, self.max_length, self.pad_to_multiple_of, self.tokenizer.padding_side)
        hints = {**HINTS, "truncate=": "max_length= is at least the number of labels"}
        batch["labels"] = _labels(features, name, self.label_pad_token_id, options, kind, hints)
        if self.model is not None and hasattr(self.model, "prepare_decoder_input_ids_from_labels"):
            batch["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
        return batch


def _on_host(values: Any) -> Any:
    """A NumPy array of a tensor or an array, of the same memory if that is on the host."""
    return numpy(values.cpu() if hasattr(values, "cpu") else values)


def _is_empty(ids: Any) -> bool:
    """Whether a sequence has no tokens, ``[L]`` or ``[1, L]``."""
    return hasattr(ids, "__len__") and len(ids) == 0 or 0 in getattr(ids, "shape", ())


@dataclass
class DataCollatorWithFlattening:
    """Joins sequences into one row without padding, as transformers' collator of this name does; built on `pack_tokens`. Empty
    sequences are left out: they have no place in ``seq_idx`` and no boundary.

    Args:
        return_tensors: ``"pt"`` or ``"np"``.
        return_position_ids: adds ``position_ids``, which begin at ``position_ids_start`` in each sequence.
        separator_id: label of each sequence's first token.
        return_flash_attn_kwargs: adds ``cu_seq_lens_q``, ``cu_seq_lens_k``, ``max_length_q`` and ``max_length_k``; without it the result
            has no boundaries of sequences.
        return_seq_idx: as for `pack_tokens`.

    Raises:
        ValueError: there are no features, or all sequences are empty.
        The others as `pack_tokens`; ``index`` is that of the feature.

    Example:
        >>> from windrow.sequence import DataCollatorWithFlattening
        >>> DataCollatorWithFlattening()([{"input_ids": [5, 6]}, {"input_ids": [7]}])["labels"].tolist()
        [[-100, 6, -100]]
    """

    return_tensors: str = "pt"
    return_position_ids: bool = True
    separator_id: int = -100
    return_flash_attn_kwargs: bool = False
    return_seq_idx: bool = False
    position_ids_start: int = 0

    @for_workers
    def __call__(
        self,
        features: _Features,
        return_tensors: Optional[str] = None,
        separator_id: Optional[int] = None,
    ) -> Dict[str, Any]:
        features = features_of(features)
        kept = [index for index, ids in enumerate(entries_of(features, "input_ids")) if not _is_empty(ids)]
        if not kept:
            raise ValueError("every sequence is empty: there is nothing to join")
        names = ("input_ids", "labels") if "labels" in features[kept[0]] else ("input_ids",)
        try:
            samples = [features[index] for index in kept]
            batch = pack_tokens(
                [dict(zip(names, entries)) for entries in zip(*(entries_of(samples, name) for name in names))],
                separator_id=self.separator_id if separator_id is None else separator_id,
                position_ids_start=self.position_ids_start,
                return_flash_attn_kwargs=self.return_flash_attn_kwargs,
                return_seq_idx=self.return_seq_idx,
                return_tensors=return_tensors or self.return_tensors,
            )
        except (wr.ShapeError, wr.DTypeError, wr.LayoutError, wr.DeviceError, TypeError, KeyError) as error:
            index = getattr(error, "index", None)
            if index is None or kept[index] == index:
                raise
            raise at_sample(error, kept[index]) from None
        left_out = [] if self.return_flash_attn_kwargs else ["cu_seqlens", "max_seqlen"]
        left_out += [] if self.return_position_ids else ["position_ids"]
        return {name: value for name, value in batch.items() if name not in left_out}


@dataclass
class DataCollatorForLanguageModeling:
    """Pads sequences for language modelling, causal or masked, as transformers' collator of this name.

    With a ``seed``, masks are drawn as in transformers, from a generator of torch or NumPy according to ``return_tensors``; in a worker
    process of torch's loader the worker's number is added to the seed. Without one, the library's global generator is used.

    Args:
        tokenizer: of transformers, or `TokenizerNumbers`.
        mlm: True: masked language modelling. False: the labels are the ids, with -100 in place of the padding token.
        whole_word_mask: draws words and masks all tokens of each. The features need ``offset_mapping``, one pair for each token. Every
            drawn token becomes the mask token: other shares are changed to that with a UserWarning, as in transformers.
        mlm_probability: share of the tokens that are to be predicted.
        mask_replace_prob, random_replace_prob: shares of those that become the mask token, and another token.
        pad_to_multiple_of, return_tensors: as for `DataCollatorWithPadding`.
        seed: of the masks.

    Returns:
        dict: as `DataCollatorWithPadding`, with ``labels`` int64 ``[N, length]``, -100 where nothing is predicted.

    Raises:
        ValueError: ``mlm`` without a mask token, ``whole_word_mask`` without ``mlm``, a share that is not from 0 to 1, or two shares that
            add up to more than 1.
        ShapeError: ``offset_mapping`` is not one pair for each token.
        DTypeError: ``offset_mapping`` is not of whole numbers.
        KeyError: ``whole_word_mask`` without ``offset_mapping``.

    Example:
        >>> from windrow.sequence import DataCollatorForLanguageModeling, TokenizerNumbers
        >>> collate = DataCollatorForLanguageModeling(TokenizerNumbers(pad_token_id=0), mlm=False)
        >>> collate([{"input_ids": [5, 6]}, {"input_ids": [7]}])["labels"].tolist()
        [[5, 6], [7, -100]]
    """

    tokenizer: Any
    mlm: bool = True
    whole_word_mask: bool = False
    mlm_probability: Optional[float] = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    pad_to_multiple_of: Optional[int] = None
    return_tensors: str = "pt"
    seed: Optional[int] = None
    # Sources by kind of tensors and worker: a worker inherits those that the main process has drawn from.
    _draws: Dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shares = {"mask_replace_prob": self.mask_replace_prob, "random_replace_prob": self.random_replace_prob}
        if self.mlm:
            shares["mlm_probability"] = -1.0 if self.mlm_probability is None else self.mlm_probability
            if self.tokenizer.mask_token_id is None:
                raise ValueError("mlm=True needs a tokenizer with a mask token; mlm=False is for causal models")
        for name, share in shares.items():
            if not 0 <= share <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {share}")
        if self.mask_replace_prob + self.random_replace_prob > 1:
            raise ValueError("mask_replace_prob and random_replace_prob are at most 1 together")
        if self.whole_word_mask and not self.mlm:
            raise ValueError("whole_word_mask=True needs mlm=True")
        if self.whole_word_mask and self.mask_replace_prob < 1:
            warnings.warn("whole_word_mask=True masks every token of a word: mask_replace_prob is set to 1", UserWarning, stacklevel=3)
            self.mask_replace_prob, self.random_replace_prob = 1.0, 0.0

    @for_workers
    def __call__(self, examples: Sequence[Any], return_tensors: Optional[str] = None) -> Dict[str, Any]:
        kind = return_tensors or self.return_tensors
        # Transformers pads the features' own labels, which are replaced, for NumPy, as arrays of lists, and not for torch.
        return self._batch(examples, kind, ("labels",) if kind == "np" else ())

    def _batch(self, examples: Sequence[Any], kind: str, without: Tuple[str, ...]) -> TokenBatch:
        """The batch of the features without these keys, with labels of its own."""
        examples = rows_of(examples)
        if not len(examples) or is_mapping(examples[0]):
            without = ("offset_mapping", *without)
            batch = _pad(self.tokenizer, features_of(examples), True, None, self.pad_to_multiple_of, kind, without)
        else:
            rows = [{"input_ids": example} for example in examples]
            fits = {len(example) % (self.pad_to_multiple_of or 1) for example in examples} == {0}
            is_even = fits and len({len(example) for example in examples}) == 1
            batch = _pad(self.tokenizer, rows, not is_even, None, self.pad_to_multiple_of, kind)
            batch.pop("attention_mask", None)
        special = batch.pop("special_tokens_mask", None)
        ids = batch["input_ids"]
        if self.mlm:
            offsets = offsets_of(examples, ids.shape[1], self.tokenizer.padding_side) if self.whole_word_mask else None
            batch["labels"] = self._mask(ids, special, offsets, kind)
            return batch
        labels = ids.clone() if kind == "pt" else ids.copy()
        if self.tokenizer.pad_token_id is not None:
            labels[labels == self.tokenizer.pad_token_id] = -100
        batch["labels"] = labels
        return batch

    def _mask(self, ids: Any, special: Any, offsets: Any, kind: str) -> Any:
        """Masks ids in place and gives the labels."""
        import numpy as np

        source = kind, worker_number()
        if source not in self._draws:
            self._draws[source] = draws(kind, self.seed, source[1])
        as_kind: Any = np.asarray
        if kind == "pt":
            import torch

            as_kind = torch.from_numpy
        on_host = _on_host(ids)
        if special is None:
            special = np.isin(on_host, list(self.tokenizer.all_special_ids))
        else:
            special = _on_host(special)
        chosen, replaced, others, words = mask(self, on_host, special, offsets, self._draws[source])
        labels = ids.clone() if kind == "pt" else ids.copy()
        labels[as_kind(~chosen)] = -100
        ids[as_kind(replaced)] = self.tokenizer.mask_token_id
        if others is not None:
            ids[as_kind(others)] = as_kind(words).to(ids.device) if kind == "pt" else words
        return labels


class DataCollatorForCompletionOnlyLM(DataCollatorForLanguageModeling):
    """Pads sequences for causal language modelling whose loss is of the responses alone, as trl's collator of this name (0.15).

    Args:
        response_template: the text or the ids that a response follows. All labels up to its last occurrence are ignored.
        instruction_template: the text or the ids that an instruction begins with; each response then ends there, and every
            turn of a conversation counts.
        tokenizer: of transformers, or `TokenizerNumbers` if the templates are ids.
        ignore_index: the label of what is ignored.
        padding_free: joins the sequences to one row without padding, with ``position_ids`` and the boundaries that attention
            needs, in place of ``attention_mask``.
        pad_to_multiple_of, return_tensors: as for `DataCollatorWithPadding`.

    Raises:
        ValueError: an empty template, or ``padding_free=True`` without an attention mask.

    Warns:
        UserWarning: a sample without a template, all of whose labels are ignored; it is named.

    Example:
        >>> from windrow.sequence import DataCollatorForCompletionOnlyLM, TokenizerNumbers
        >>> collate = DataCollatorForCompletionOnlyLM([7, 8], tokenizer=TokenizerNumbers())
        >>> collate([{"input_ids": [5, 7, 8, 1, 2]}, {"input_ids": [7, 8, 3]}])["labels"].tolist()
        [[-100, -100, -100, 1, 2], [-100, -100, 3, -100, -100]]
    """

    def __init__(
        self,
        response_template: Union[str, Sequence[int]],
        instruction_template: Union[str, Sequence[int], None] = None,
        tokenizer: Any = None,
        *,
        ignore_index: int = -100,
        padding_free: bool = False,
        pad_to_multiple_of: Optional[int] = None,
        return_tensors: str = "pt",
    ) -> None:
        super().__init__(tokenizer, mlm=False, pad_to_multiple_of=pad_to_multiple_of, return_tensors=return_tensors)
        self.response_template, self.instruction_template = response_template, instruction_template
        self.ignore_index, self.padding_free = ignore_index, padding_free
        self._response = self._ids("response_template", response_template)
        self._instruction = None if instruction_template is None else self._ids("instruction_template", instruction_template)

    def _ids(self, name: str, template: Union[str, Sequence[int]]) -> List[int]:
        """The ids of a template, ValueError if it has none; a text is encoded by the tokenizer."""
        ids = self.tokenizer.encode(template, add_special_tokens=False) if isinstance(template, str) else list(template)
        if not ids:
            raise ValueError(f"{name}={template!r} has no tokens")
        return ids

    @for_workers
    def __call__(self, examples: Sequence[Any], return_tensors: Optional[str] = None) -> Dict[str, Any]:
        import numpy as np

        kind = return_tensors or self.return_tensors
        batch: Dict[str, Any] = self._batch(examples, kind, ("labels",))
        if self.padding_free and "attention_mask" not in batch:
            raise ValueError("padding_free=True needs an attention mask, which the tokenizer does not give")
        device = getattr(batch["input_ids"], "device", None)
        labels = batch["labels"] = _on_host(batch["labels"])
        responses, instructions = _found(labels, self._response), None
        if self._instruction is not None:
            instructions = _found(labels, self._instruction)
        for index, row in enumerate(labels):
            ends = responses[index] + len(self._response)
            lacks = "response" if not len(ends) else None
            if instructions is not None and not len(instructions[index]):
                lacks = lacks or "instruction"
            if lacks:
                text = f"sample {index} has no {lacks} template: all of its labels are ignored"
                warnings.warn(text, UserWarning, stacklevel=3)  # The wrapper of `for_workers` is a level.
                row[:] = self.ignore_index
            elif instructions is None:
                row[: ends[-1]] = self.ignore_index
            else:
                self._ignore_instructions(row, instructions[index], ends)
        if self.padding_free:
            batch = self._without_padding(batch)
        if kind == "pt":
            batch = {name: give(value, kind).to(device) if isinstance(value, np.ndarray) else value for name, value in batch.items()}
        return TokenBatch(batch)

    def _ignore_instructions(self, row: Any, starts: Any, ends: Any) -> None:
        """Ignores from the start of each instruction to the start of its response, and what is before the first."""
        begins = [0, *starts[1:]] if starts[0] <= ends[0] else [0, *starts]
        for begin, end in zip(begins, ends):
            row[begin:end] = self.ignore_index
        if len(ends) < len(begins):
            row[begins[-1] :] = self.ignore_index

    def _without_padding(self, batch: Dict[str, Any]) -> Dict[str, Any]:
        """The tokens that the attention mask has, as one row, with positions and boundaries; each first label is ignored. Takes the mask
        out of `batch`."""
        import numpy as np

        is_real = _on_host(batch.pop("attention_mask")).astype(bool)
        lengths = is_real.sum(1)
        positions = np.concatenate([np.arange(length) for length in lengths])
        result = {**batch, "input_ids": _on_host(batch["input_ids"])[is_real][None], "labels": batch["labels"][is_real][None]}
        result["labels"][0, positions == 0] = self.ignore_index
        result["position_ids"] = positions[None]
        boundaries = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        longest = int(lengths.max())
        return {**result, "cu_seq_lens_q": boundaries, "cu_seq_lens_k": boundaries, "max_length_q": longest, "max_length_k": longest}


def _found(rows: Any, template: List[int]) -> List[Any]:
    """Every position in each row where the ids of the template begin."""
    import numpy as np

    if rows.shape[1] < len(template):
        return [np.arange(0) for _ in rows]
    windows = np.lib.stride_tricks.sliding_window_view(rows, len(template), axis=1)
    return [np.flatnonzero(same) for same in (windows == template).all(2)]
