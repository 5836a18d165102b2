"""How token sequences are padded, for `windrow.sequence` and its collators."""

from __future__ import annotations

import collections.abc
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

import windrow as wr
from windrow import _windrow
from windrow._fields import entries_of, give, numpy, refusal, with_hint
from windrow._flattener import located
from windrow.plan import by_position

# The values that a tokenizer adds to masks and types.
ADDED = {"attention_mask": 0, "token_type_ids": 0, "special_tokens_mask": 1}

HINTS = {
    "dims=": "the entries of a key differ in length alone",
    "dtype=": "the arrays of a key have one dtype",
    "truncate=": "max_length= is at least the longest length",
    "spec=": "padding=True pads to the longest",
    "wr.pad": "padding=True pads to the longest",
}


def options_of(
    padding: Union[bool, str], max_length: Optional[int], pad_to_multiple_of: Optional[int], padding_side: str
) -> Optional[Dict[str, Any]]:
    """Arguments of `windrow.pad`; None: nothing is padded. ValueError for a wrong argument, or ``"max_length"`` without `max_length`."""
    padding = getattr(padding, "value", padding)  # transformers' PaddingStrategy.
    how = {True: "longest", False: "do_not_pad"}.get(padding, padding) if isinstance(padding, bool) else padding
    if how not in ("longest", "max_length", "do_not_pad"):
        raise ValueError(f"padding must be True, 'longest', 'max_length', False or 'do_not_pad', got {padding!r}")
    if how == "max_length" and max_length is None:
        raise ValueError("padding='max_length' needs max_length=")
    if padding_side not in ("right", "left"):
        raise ValueError(f"padding_side must be 'right' or 'left', got {padding_side!r}")
    if how == "do_not_pad":
        return None
    size = max_length if how == "max_length" else None
    return {"side": padding_side, "dims": 0, "size": size, "multiple_of": pad_to_multiple_of or 1}


def features_of(features: Any) -> Sequence[Mapping[str, Any]]:
    """Features as a sequence, not empty, whose first is a mapping with ``input_ids``; those of an Arrow table are its rows. Otherwise
    ValueError, TypeError or KeyError."""
    samples = features if type(features) is list else rows_of(features)
    if not len(samples):
        raise ValueError("cannot assemble an empty list of features")
    first = samples[0]
    if not is_mapping(first):
        hint = '{"input_ids": row} makes one of a row of tokens'
        raise TypeError(f'sample 0: expected a mapping with "input_ids", got {type(first).__name__}; {hint}')
    if "input_ids" not in first:
        raise located(KeyError("sample 0: the key 'input_ids' is missing"), 0, "input_ids")
    if first["input_ids"] is None:
        raise refusal(TypeError, 0, "input_ids", "a list of tokens, or an array-like", "NoneType")
    return samples


def result_keys(features: Sequence[Mapping[str, Any]]) -> Dict[str, str]:
    """Keys of the result to keys of the features, but for entries that are None in the first: ``label`` becomes ``labels``. ValueError for
    features of both."""
    keys: List[str] = [key for key in features[0] if features[0][key] is not None]
    if "label" in keys and "labels" in keys:
        raise located(ValueError("sample 0: 'label' and 'labels' both become 'labels'; rename or drop one"), 0, "labels")
    return {("labels" if key == "label" else key): key for key in keys}


def rows_of(samples: Any) -> Any:
    """A list of samples, or any other sequence, as it is; the rows of an Arrow object. TypeError for a mapping, and for what has no
    length."""
    if isinstance(samples, (list, tuple)):
        return samples
    if _windrow._is_arrow(samples):
        return wr.SampleList(samples)
    if is_mapping(samples) or not hasattr(samples, "__len__"):
        hint = "; [dict(zip(columns, row)) for row in zip(*columns.values())] makes one of a dict of columns"
        is_columns = is_mapping(samples) and "input_ids" in samples
        raise TypeError(f"expected a list of samples, got {type(samples).__name__}{hint if is_columns else ''}")
    return by_position(samples)


def is_mapping(sample: Any) -> bool:
    """Whether a sample is a mapping, most of which are dicts: to ask the abstract class takes longer."""
    return type(sample) is dict or isinstance(sample, collections.abc.Mapping)


def padded(
    features: Sequence[Mapping[str, Any]],
    names: Dict[str, str],
    values: Dict[str, float],
    options: Optional[Dict[str, Any]],
    wants_mask: bool,
    return_tensors: str,
    hints: Mapping[str, str] = HINTS,
    int64: bool = False,
) -> Dict[str, Any]:
    """Columns of the features, and the attention mask of ``input_ids`` if it is wanted; ``int64``: of that dtype. `names`: the key of a
    feature by that of the result; `options` None: columns are stacked. A ShapeError or DTypeError has a hint of `hints`."""
    arguments = (names, values, options, "input_ids" if wants_mask else None, int64)
    try:
        try:
            batch = _windrow._pad_columns(features, *arguments)
        except (TypeError, wr.DTypeError):
            if not all(map(is_mapping, features)):
                raise
            columns = [_without_lists(entries_of(features, key), key) for key in names.values()]
            batch = _windrow._pad_columns([dict(zip(names.values(), row)) for row in zip(*columns)], *arguments)
    except (wr.ShapeError, wr.DTypeError) as error:
        raise with_hint(error, hints) from None
    result = {name: give(field, return_tensors) for name, field in batch.items()}
    if wants_mask:
        result["attention_mask"] = _attention(batch["input_ids"], return_tensors)
    return result


def _without_lists(rows: List[Any], path: str) -> List[Any]:
    """Arrays in place of nested lists, in the dtype that torch gives all of them: bool, int64 or float32. Other rows as they are.
    ShapeError for a row without one shape, DTypeError for an int beyond 64 bits."""
    import numpy as np

    if not all(isinstance(row, (list, tuple)) for row in rows):
        return rows
    arrays = []
    for index, row in enumerate(rows):
        try:
            arrays.append(np.array(row, dtype=object))
        except ValueError as error:
            raise refusal(wr.ShapeError, index, path, "arrays of one shape", error) from None
        # Rows without one shape become an array of lists.
        lists = [item for item in arrays[-1].flat if isinstance(item, (list, tuple))]
        if lists and len(lists) == arrays[-1].size:
            got = " and ".join(map(str, sorted(set(map(len, lists)))))
            raise refusal(wr.ShapeError, index, path, "nested lists of one length", f"{got} items")
    kinds = {type(item) for array in arrays for item in array.flat}
    real = (int, float, np.bool_, np.integer, np.floating)
    if all(array.ndim == 1 for array in arrays) or not all(issubclass(kind, real) for kind in kinds):
        return rows
    are_floats = any(issubclass(kind, (float, np.floating)) for kind in kinds)
    dtype = "float32" if are_floats else "bool" if kinds and kinds <= {bool, np.bool_} else "int64"
    for index, array in enumerate(arrays):
        try:
            arrays[index] = array.astype(dtype)
        except OverflowError:
            raise refusal(wr.DTypeError, index, path, dtype, "an int beyond 64 bits") from None
    return arrays


def _attention(ids: wr.Batch, return_tensors: str) -> Any:
    """int64 like the ids: 1 where a token is real."""
    if ids.mask is not None:
        return give(ids.mask, return_tensors)
    return ids.torch().new_ones(ids.shape) if return_tensors == "pt" else numpy(ids) * 0 + 1
