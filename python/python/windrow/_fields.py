"""Arguments and results of the helpers in :mod:`windrow.sequence` and :mod:`windrow.structure`."""

from __future__ import annotations

import array
import numbers
import operator
from typing import Any, List, Mapping, Sequence

import windrow as wr
from windrow._flattener import located


# The dtype of a list of Python numbers, and the name of one of them.
NUMBERS = {bool: ("bool", "a bool"), int: ("int64", "an int"), float: ("float32", "a float")}
# The largest int that `float()` takes.
_MOST_FLOAT = 2**1024 - 2**970 - 1


def row(values: Any, index: int, path: str = "", what: str = "sample") -> Any:
    """A list of Python numbers as one array-like: int64, also if it is empty, float32 if it has floats, bool if it has bools alone; of
    NumPy's scalars too in their dtype. An array-like as it is.

    Raises:
        TypeError, DTypeError: None, a str, a mapping, or a list of anything else; `what` and `index` name the sample.
    """

    def refused(kind: Any, expected: str, got: str) -> Any:
        return refusal(kind, index, path, expected, got, what=what)

    if values is None or isinstance(values, (str, Mapping)):
        raise refused(TypeError, "a list of numbers, or an array-like", type(values).__name__)
    if not isinstance(values, (list, tuple)):
        return values
    kinds = set(map(type, values))
    if bool in kinds and len(kinds) > 1 and kinds <= NUMBERS.keys():
        first = type(values[0])
        position = next(i for i, value in enumerate(values) if (type(value) is bool) != (first is bool))
        raise refused(wr.DTypeError, NUMBERS[first][0], f"{NUMBERS[type(values[position])][1]} at position {position}")
    if kinds == {bool}:
        return memoryview(bytes(values)).cast("?")
    if kinds <= NUMBERS.keys():
        code, dtype, least, most = ("f", "float32", -_MOST_FLOAT, _MOST_FLOAT) if float in kinds else ("q", "int64", -(2**63), 2**63 - 1)
        try:
            return array.array(code, values)
        except OverflowError:
            position = next(i for i, value in enumerate(values) if type(value) is int and not least <= value <= most)
            beyond = "beyond 64 bits" if code == "q" else "that no float has"
            raise refused(wr.DTypeError, dtype, f"an int {beyond} at position {position}") from None
    first = type(values[0])
    if len(kinds) == 1 and issubclass(first, numbers.Number):
        import numpy

        # No float() or int() of an object: those of a tensor lose its gradient.
        scalars = numpy.array(values)
        if scalars.dtype.kind in "iuf":
            return scalars
    position, value = next(((i, value) for i, value in enumerate(values) if type(value) not in (first, *NUMBERS)), (0, values[0]))
    if issubclass(type(value), numbers.Number) and len(kinds) > 1:
        position, value = next((i, value) for i, value in enumerate(values) if type(value) is not first)
        raise refused(TypeError, f"{first.__name__} numbers alone", f"{type(value).__name__} at position {position}")
    raise refused(TypeError, "a list of numbers, or an array-like", f"{type(value).__name__} at position {position}")


def entries_of(samples: Sequence[Any], key: str) -> List[Any]:
    """One entry of each sample; KeyError for a sample without it, also where ``__missing__`` would make one."""
    samples = list(samples)
    if not any(hasattr(cls, "__missing__") for cls in set(map(type, samples))):
        try:
            return list(map(operator.itemgetter(key), samples))
        except KeyError:
            pass
    for index, sample in enumerate(samples):
        if key not in sample:
            raise located(KeyError(f"sample {index}: the key {key!r} is missing"), index, key)
    return [sample[key] for sample in samples]


def column_of(samples: Sequence[Any], key: str) -> List[Any]:
    """One entry of each sample, as array-likes: as `entries_of` and `row`."""
    values = entries_of(samples, key)
    if any(issubclass(cls, (list, tuple, str, Mapping, type(None))) for cls in set(map(type, values))):
        return [row(value, index, key) for index, value in enumerate(values)]
    return values


def refusal(kind: Any, index: int, path: str, expected: Any, got: Any, hint: str = "", what: str = "sample") -> Any:
    """An error of one sample, with its attributes."""
    place = f'{what} {index} at "{path}"' if path else f"{what} {index}"
    error = kind(f"{place}: expected {expected}, got {got}{hint and '; ' + hint}")
    error.index, error.path, error.expected, error.got = index, path, expected, got
    return error


def with_hint(error: Any, hints: Mapping[str, str]) -> Any:
    """A copy of the error, with the hint of `hints` in place of one that has its word: an argument that the caller does not have."""
    text, _, hint = str(error).rpartition("; ")
    known = next((known for word, known in hints.items() if word in hint), hint)
    return _as(error, f"{text}; {known}" if text else hint)


def at_sample(error: Any, index: int) -> Any:
    """A copy of the error, with the place `index` that the caller's list has the sample at."""
    other = _as(error, error.args[0].replace(f"sample {error.index}", f"sample {index}", 1))
    other.index = index
    return other


def _as(error: Any, text: str) -> Any:
    """The same error in other words."""
    other = type(error)(text)
    vars(other).update(vars(error))
    return other


def numpy(field: Any) -> Any:
    """A NumPy array of a batch or tensor."""
    import numpy

    return numpy.asarray(field.numpy() if hasattr(field, "numpy") else field)


def give(field: Any, return_tensors: str) -> Any:
    """A result as the caller wants it, of the same memory."""
    if isinstance(field, (wr.Batch, wr.Tensor)):
        return field.numpy() if return_tensors == "np" else field.torch()
    if return_tensors == "np":
        return numpy(field)
    import torch

    return torch.from_numpy(field)


def check(return_tensors: str) -> None:
    """ValueError for what `give` does not know."""
    if return_tensors not in ("pt", "np"):
        raise ValueError(f"return_tensors must be 'pt' or 'np', got {return_tensors!r}")
