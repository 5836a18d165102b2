"""Token sequences joined to rows without padding between them: `pack_tokens` and `pack_rows` of `windrow.sequence`."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Sequence, Tuple

from windrow import _windrow
from windrow._fields import check, give
from windrow._padding import features_of, is_mapping, rows_of
from windrow._worker_results import for_workers
from windrow.plan import int_of

if TYPE_CHECKING:
    from windrow._windrow import _Features, _Rows
else:  # for typing.get_type_hints()
    _Features = _Rows = Any


@for_workers
def pack_tokens(
    features: _Features,
    *,
    separator_id: int = -100,
    position_ids_start: int = 0,
    return_flash_attn_kwargs: bool = False,
    return_seq_idx: bool = False,
    return_tensors: str = "pt",
) -> Dict[str, Any]:
    """Joins sequences to one row, with what attention needs to keep them apart; nothing is padded.

    Args:
        features: a list of mappings with ``input_ids`` ``[L]`` or ``[1, L]``, and optionally ``labels`` of the same
            shape (else the ids are the labels), or an Arrow table of such rows; all on the host or all on one device. Labels are not
            shifted: models of transformers do that.
        separator_id: label of each sequence's first token, which no token before it predicts.
        position_ids_start: position of each sequence's first token.
        return_flash_attn_kwargs: names boundaries as models of transformers take them.
        return_seq_idx: adds ``seq_idx`` int32 ``[1, total]``, the sequence of each token.
        return_tensors: ``"pt"`` or ``"np"``.

    Returns:
        dict: ``input_ids``, ``labels``, ``position_ids`` int64 ``[1, total]``; ``cu_seqlens`` int32
        ``[N + 1]`` and ``max_seqlen``, a Python int. With ``return_flash_attn_kwargs`` the last two are named ``cu_seq_lens_q``,
        ``cu_seq_lens_k``, ``max_length_q`` and ``max_length_k``. For samples on a device all tensors are there, and the call does
        not wait.

    Raises:
        ShapeError: ids of another shape, or another number of labels than ids.
        DTypeError: ids or labels are not whole numbers, or are beyond int64.
        DeviceError: they are in several places.
        KeyError: an entry is missing, or the first sequence has no labels and a later one has.
        TypeError: as for `pad_tokens`.
        ValueError: there are no features, more than 2^31 - 1 tokens, or an argument is beyond int64.

    Example:
        >>> from windrow.sequence import pack_tokens
        >>> batch = pack_tokens([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}])
        >>> batch["input_ids"].tolist(), batch["position_ids"].tolist(), batch["cu_seqlens"].tolist()
        ([[5, 6, 7, 8, 9]], [[0, 1, 2, 0, 1]], [0, 3, 5])
    """
    check(return_tensors)
    features = features_of(features)
    separator, start = _int64("separator_id", separator_id), _int64("position_ids_start", position_ids_start)
    ids, labels, positions, index, boundaries, longest = _windrow._pack_columns(
        features, "input_ids", _labels_of(features), separator, start, return_seq_idx
    )
    result = {
        "input_ids": give(ids, return_tensors),
        "labels": give(labels, return_tensors),
        "position_ids": give(positions, return_tensors),
    }
    if index is not None:
        result["seq_idx"] = give(index, return_tensors)
    boundaries = give(boundaries, return_tensors)
    if return_flash_attn_kwargs:
        result.update(cu_seq_lens_q=boundaries, cu_seq_lens_k=boundaries, max_length_q=longest, max_length_k=longest)
    else:
        result.update(cu_seqlens=boundaries, max_seqlen=longest)
    return result


@for_workers
def pack_rows(
    samples: _Rows,
    plan: Sequence[Sequence[int]],
    *,
    max_tokens: Optional[int] = None,
    pad_token_id: int = 0,
    label_pad_token_id: int = -100,
    separator_id: int = -100,
    return_tensors: str = "pt",
) -> Dict[str, Any]:
    """Assembles the rows of `windrow.plan.pack`: several sequences in each row, padded to one length.

    Args:
        samples: token sequences ``[L]`` or ``[1, L]``, lists or array-likes; or mappings with ``input_ids`` and
            perhaps ``labels``, as `pack_tokens` takes them. Also a `windrow.SampleList` of these, such as the pieces of one file of tokens by
            `windrow.SampleList.split`; an Arrow column of lists, or a table; a dataset of Hugging Face, whose
            ``dataset.with_format("arrow")[:]`` takes a fraction of the time.
        plan: rows of indices into ``samples``; samples that no row names are left out.
        max_tokens: the length of a row; None: that of the plan. A part of a plan, such as a batch of its rows, has none.
        pad_token_id, label_pad_token_id: what ``input_ids`` and ``labels`` are padded with.
        separator_id: label of each sequence's first token, which no token before it predicts.
        return_tensors: ``"pt"`` or ``"np"``.

    Returns:
        dict: ``input_ids``, ``labels``, ``position_ids`` and ``segment_ids``, int64 ``[B, max_tokens]``. Segments are counted from 1 in
        each row, positions from 0 in each segment; both are 0 where padding is. ``cu_seqlens``, int32: where each sequence
        begins and ends in the flattened rows; the padding of a row counts as one more sequence, so that the last number is
        ``B * max_tokens`` and attention over ``input_ids.view(-1)`` can take it. No sequence is longer than ``max_tokens``, which
        serves as its ``max_seqlen``. For samples on a device all tensors are there, and the call does not wait.

    Raises:
        IndexError: the plan names a sample that does not exist.
        TypeError: an index is not an int, or a dict of columns in place of the list.
        KeyError: an entry is missing, or the first sequence of the plan has no labels and a later one has.
        ValueError: a row is longer than ``max_tokens``, no ``max_tokens`` is known, the plan is empty, there are more than 2^31 - 1
            tokens, or an argument is beyond int64.
        ShapeError, DTypeError, DeviceError: as for `pack_tokens`; ``index`` is the position in the order of the plan.

    Example:
        >>> from windrow import plan
        >>> from windrow.sequence import pack_rows
        >>> rows = [[5, 6, 7], [8], [9, 10]]
        >>> batch = pack_rows(rows, plan.pack([3, 1, 2], max_tokens=4))
        >>> batch["input_ids"].tolist(), batch["segment_ids"].tolist(), batch["cu_seqlens"].tolist()
        ([[5, 6, 7, 8], [9, 10, 0, 0]], [[1, 1, 1, 2], [1, 1, 0, 0]], [0, 3, 4, 6, 8])
    """
    check(return_tensors)
    limit = max_tokens if max_tokens is not None else getattr(plan, "max_tokens", None)
    if limit is None:
        raise ValueError("max_tokens= is needed: only the whole plan of windrow.plan.pack has one, and no part of it and no other list")
    limit = int_of("max_tokens", limit)
    pads = (
        _int64("pad_token_id", pad_token_id),
        _int64("label_pad_token_id", label_pad_token_id),
        _int64("separator_id", separator_id),
    )
    rows, picked = _picked(rows_of(samples), plan)
    features = features_of(picked)
    columns = _windrow._pack_rows_of(features, "input_ids", _labels_of(features), rows, limit, pads)
    names = ("input_ids", "labels", "position_ids", "segment_ids", "cu_seqlens")
    return {name: give(column, return_tensors) for name, column in zip(names, columns)}


def _int64(name: str, value: Any) -> int:
    """An argument as an int of 64 bits; TypeError or ValueError as `int_of`."""
    # `int_of` is 1200 of the 64 000 instructions of a batch of eight.
    return value if type(value) is int and -(2**63) <= value < 2**63 else int_of(name, value, -(2**63))


def _labels_of(features: Sequence[Any]) -> Optional[str]:
    """The key of the labels; None if the first of the features has none. A ``label`` is that of a whole sequence, and is not read."""
    return None if features[0].get("labels") is None else "labels"


def _picked(samples: Sequence[Any], plan: Iterable[Iterable[int]]) -> Tuple[List[int], List[Any]]:
    """The number of samples in each row of a plan, and these samples in its order, as mappings. TypeError for what is no index,
    IndexError for one out of range, ValueError for a plan without any."""
    rows: List[int] = []
    features: List[Any] = []
    for row, indices in enumerate(plan):
        if not hasattr(indices, "__iter__"):
            raise TypeError(f"row {row} of the plan is {indices!r} in place of a list of indices of samples")
        before = len(features)
        for index in indices:
            try:
                position = None if type(index) is bool else operator.index(index)
            except TypeError:
                position = None
            if position is None:
                raise TypeError(f"row {row} of the plan has {index!r} in place of the index of a sample")
            if not -len(samples) <= position < len(samples):
                raise IndexError(f"row {row} of the plan names sample {position} of {len(samples)}")
            features.append(samples[position])
        rows.append(len(features) - before)
    if not features:
        raise ValueError("the plan names no samples")
    if not is_mapping(features[0]):
        features = [{"input_ids": tokens} for tokens in features]
    return rows, features
