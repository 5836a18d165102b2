"""Checks of the operators' arguments, with the same texts for real tensors and for traced ones, whose sizes may be symbols.

Each operator has one function here, of the operator's own arguments. Its fake kernel calls it, and so does its kernel: before it
begins, or for a list of tensors once the engine has refused one. What values alone show is at the end, for kernels.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterable, List, Optional, Sequence, Type

import torch
from torch.utils._python_dispatch import _disable_current_modes

import windrow as wr

Tensors = Sequence[torch.Tensor]


class OpShapeError(wr.ShapeError, RuntimeError):
    """A shape does not fit; a RuntimeError too, as those of torch's own operators are."""


class OpDTypeError(wr.DTypeError, RuntimeError):
    """A dtype does not fit."""


class OpDeviceError(wr.DeviceError, RuntimeError):
    """Tensors on several devices."""


class OpLayoutError(wr.LayoutError, RuntimeError):
    """A tensor without memory of one shape."""


class OpValueError(ValueError, RuntimeError):
    """A number or an option that there is not."""


# one function for each operator


def stack(tensors: Tensors) -> None:
    _alike("stack", tensors, None, "; windrow.torch.ops.pad takes tensors of different lengths")


def concat(tensors: Tensors, dim: int = 0) -> int:
    """Returns `dim` counted from the front."""
    return _alike("concat", tensors, dim)


def pad(tensors: Tensors, value: Any = 0.0, side: str = "right", size: Any = None) -> None:
    _alike("pad", tensors, 0)
    _side("pad", side)
    if size is not None:
        _size("pad", size)
        _at_most("pad", "tensor", [tensor.shape[0] for tensor in tensors], size)
    _value("pad", value, tensors[0])


def ragged(tensors: Tensors) -> None:
    _alike("ragged", tensors, 0)


def take(table: torch.Tensor, ids: torch.Tensor) -> None:
    _readable("take", "table", table)
    _check(table.dim() > 0, OpShapeError, lambda: "windrow::take: table: expected at least one dim, got a number")
    integers("take", "ids", ids, table)


def take_list(tensors: Tensors, ids: torch.Tensor) -> None:
    _alike("take", tensors, None)
    integers("take", "ids", ids, tensors[0])


def unpad(padded: torch.Tensor, lengths: torch.Tensor, size: Any = None, side: str = "right") -> None:
    _readable("unpad", "padded", padded)
    _check(padded.dim() >= 2, OpShapeError, lambda: f"windrow::unpad: padded: expected at least two dims, got {padded.dim()}")
    integers("unpad", "lengths", lengths, padded, 1)
    _check(
        lengths.shape[0] == padded.shape[0],
        OpShapeError,
        lambda: f"windrow::unpad: lengths: expected one for each of {padded.shape[0]} rows, got {lengths.shape[0]}",
    )
    _size("unpad", size)
    _side("unpad", side)


def unpad_list(padded: torch.Tensor, lengths: Sequence[Any], side: str) -> None:
    is_fit = padded.dim() >= 2 and len(lengths) == padded.shape[0]
    _check(is_fit, OpShapeError, lambda: f"windrow::unpad_list: expected one length for each row, got {len(lengths)}")
    _side("unpad_list", side)


def repad(values: torch.Tensor, offsets: torch.Tensor, value: Any = 0.0, size: Any = None, side: str = "right") -> None:
    _readable("repad", "values", values)
    _check(values.dim() >= 1, OpShapeError, lambda: "windrow::repad: values: expected at least one dim, got a number")
    integers("repad", "offsets", offsets, values, 1)
    _check(offsets.shape[0] >= 1, OpShapeError, lambda: "windrow::repad: offsets: expected N + 1 of them for N samples, got none")
    padding("repad", values, value, side, size)


def padding(op: str, values: torch.Tensor, value: Any, side: str, size: Any) -> None:
    _size(op, size)
    _side(op, side)
    _value(op, value, values)


# dtypes, devices and ranks of arguments


def _check(holds: Any, error: Type[Exception], text: Callable[[], str], index: Optional[int] = None) -> None:
    """Raises an error of this type and text, with `index`, unless `holds`, a bool; of symbols it becomes a guard, or an assertion of the
    graph."""
    if holds is True:
        return
    if holds is False:
        raised = error(text())
        if isinstance(raised, (OpShapeError, OpDTypeError, OpDeviceError, OpLayoutError)):
            raised.index = index
        raise raised
    torch._check(holds, text)


def _alike(op: str, given: Tensors, free: Optional[int], hint: str = "") -> int:
    """Refuses tensors that are not of one device, dtype and rank, or differ in another dim than `free`. RuntimeError for no tensors,
    IndexError for a `free` that they lack. Returns `free` counted from the front, -1 for None."""
    _check(len(given) > 0, RuntimeError, lambda: f"windrow::{op} expects a non-empty list of tensors")
    first = given[0]
    _readable(op, "tensor 0", first, 0)
    dim = -1
    if free is not None:
        rank = first.dim()
        _check(rank > 0, OpShapeError, lambda: f"windrow::{op}: tensor 0: expected at least one dim, got a number", 0)
        _check(-rank <= free < rank, IndexError, lambda: f"windrow::{op}: dim {free} is not a dim of tensors of {rank} dims")
        dim = free % rank
    for index, tensor in enumerate(given):
        _like(op, index, tensor, first)
        shapes = functools.partial(_shapes, op, index, tensor, first, dim, hint)
        _check(tensor.dim() == first.dim(), OpShapeError, shapes, index)
        for d in range(first.dim()):
            if d != dim:
                _check(tensor.shape[d] == first.shape[d], OpShapeError, shapes, index)
    return dim


def _like(op: str, index: int, tensor: torch.Tensor, first: torch.Tensor) -> None:
    """OpDeviceError, OpDTypeError for a tensor of another device or dtype than the first, OpLayoutError for one that is not dense."""
    _check(
        tensor.device == first.device,
        OpDeviceError,
        lambda: f"windrow::{op}: Expected all tensors to be on the same device, but tensor 0 is on {first.device} and tensor {index} on "
        f"{tensor.device}; move it by .to()",
        index,
    )
    _check(
        tensor.dtype == first.dtype,
        OpDTypeError,
        lambda: f"windrow::{op}: tensor {index}: expected {first.dtype}, as tensor 0 has, got {tensor.dtype}; cast it by .to()",
        index,
    )
    dense(op, f"tensor {index}", tensor, index)


def dense(op: str, name: str, tensor: torch.Tensor, index: Optional[int] = None) -> None:
    """OpLayoutError for a tensor that is not dense."""
    _check(
        tensor.layout == torch.strided,
        OpLayoutError,
        lambda: f"windrow::{op}: {name}: expected a dense tensor, got one of layout {tensor.layout}; use .to_dense()",
        index,
    )


def _readable(op: str, name: str, tensor: torch.Tensor, index: Optional[int] = None) -> None:
    """OpLayoutError for a tensor that is not dense, OpDTypeError for a dtype that the engine has not."""
    dense(op, name, tensor, index)
    said = _refusal(tensor.dtype)
    _check(said is None, OpDTypeError, lambda: f"windrow::{op}: {name}: {said}", index)


@functools.lru_cache(maxsize=None)
def _refusal(dtype: torch.dtype) -> Optional[str]:
    """The engine's error text for a dtype that it or DLPack lacks; None for one that it has."""
    try:
        _explain(dtype)
    except (wr.DTypeError, wr.LayoutError) as error:
        return str(error).replace("sample 0: ", "", 1)
    return None


def _explain(dtype: torch.dtype, value: Any = 0) -> None:
    """Raises what the engine says of a dtype and a padding value. It is asked with a real tensor, while a graph is traced too."""
    with _disable_current_modes():
        wr.explain([torch.empty(0, dtype=dtype, device="cpu")], "pad", value=value, size=1)


# The dtypes that `_refusal` passes. They are listed because torch warns of tensors of some others, in a tuple because `torch.compile`
# does not trace the cache of `_refusal`.
_WHOLE = (torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64)
_FLOATS = {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype) and dtype.is_floating_point}
READABLE = (*_WHOLE, torch.complex64, torch.complex128, *_FLOATS)


def _shapes(op: str, index: int, tensor: torch.Tensor, first: torch.Tensor, dim: int, hint: str) -> str:
    """The text of the error for a shape; `dim` may have any extent, -1: none may."""
    want = _text("any" if d == dim else extent for d, extent in enumerate(first.shape))
    return f"windrow::{op}: tensor {index}: expected shape {want}, got {_text(tensor.shape)}{hint}"


def _text(shape: Iterable[Any]) -> str:
    extents = [str(extent) for extent in shape]
    return f"({extents[0]},)" if len(extents) == 1 else f"({', '.join(extents)})"


def integers(op: str, name: str, given: torch.Tensor, beside: torch.Tensor, dim: Optional[int] = None) -> None:
    """OpDTypeError for what are no integers, OpLayoutError unless they are dense, OpDeviceError unless they are where `beside` is,
    OpShapeError for another number of dims than `dim`."""
    dense(op, name, given)
    is_whole = not (given.dtype.is_floating_point or given.dtype.is_complex or given.dtype == torch.bool or given.is_quantized)
    _check(is_whole, OpDTypeError, lambda: f"windrow::{op}: {name}: expected integers, got {given.dtype}")
    _check(
        given.device == beside.device,
        OpDeviceError,
        lambda: f"windrow::{op}: Expected all tensors to be on the same device, but {name} is on {given.device} and the tensor on "
        f"{beside.device}; move it by .to()",
    )
    if dim is not None:
        _check(given.dim() == dim, OpShapeError, lambda: f"windrow::{op}: {name}: expected {dim} dim, got {given.dim()}")


def _size(op: str, given: Any) -> None:
    """OpValueError for a size below 0."""
    if given is not None:
        _check(given >= 0, OpValueError, lambda: f"windrow::{op}: size must be at least 0, got {given}")


def _at_most(op: str, name: str, lengths: Iterable[Any], size: Any) -> None:
    """OpShapeError for the first length beyond `size`."""
    for index, length in enumerate(lengths):
        text = f"windrow::{op}: {name} {index}: expected at most size={size} rows, got {length}"
        _check(length <= size, OpShapeError, lambda: text, index)


def _side(op: str, given: str) -> None:
    """OpValueError for an unknown side."""
    if given not in ("right", "left", "center"):
        raise OpValueError(f'windrow::{op}: side must be "right", "left" or "center", got {given!r}')


def _value(op: str, given: Any, beside: torch.Tensor) -> None:
    """OpValueError for a number that the dtype has not, by the engine's rules. Every dtype has 0, but real ones lack 0j; a symbol is
    looked at where the graph runs."""
    if isinstance(given, complex) or isinstance(given, (int, float)) and given != 0:
        try:
            _explain(beside.dtype, given)
        except ValueError as error:
            raise OpValueError(f"windrow::{op}: {error}") from None


# checks of values


def total(given: Optional[int], found: int) -> None:
    """OpShapeError for a size of `unpad` that is not `found`, the sum of the lengths."""
    _check(given in (None, found), OpShapeError, lambda: f"windrow::unpad: size: expected {found}, the sum of lengths, got {given}")


def lengths(given: List[int], width: int) -> None:
    """OpShapeError for lengths that are not from 0 to `width`."""
    for index, length in enumerate(given):
        text = f"windrow::unpad: lengths[{index}]: expected 0 to {width}, got {length}"
        _check(0 <= length <= width, OpShapeError, lambda: text, index)


def offsets(given: List[int], num_values: int, width: Optional[int]) -> None:
    """OpShapeError for offsets, at least one, that do not cut all values in order, into pieces no longer than `width`."""
    for index, want in ((0, 0), (len(given) - 1, num_values)):
        text = f"windrow::repad: offsets[{index}]: expected {want}, got {given[index]}"
        _check(given[index] == want, OpShapeError, lambda: text, index)
    for index, (begin, end) in enumerate(zip(given, given[1:])):
        text = f"windrow::repad: offsets[{index + 1}]: expected at least {begin}, as the one before, got {end}"
        _check(begin <= end, OpShapeError, lambda: text, index)
    if width is not None:
        _at_most("repad", "sample", (end - begin for begin, end in zip(given, given[1:])), width)


def ids(given: List[int], count: int) -> None:
    """IndexError for positions out of range for `count` rows; negative ones count from the end."""
    for index, position in enumerate(given):
        if not -count <= position < count:
            raise IndexError(f"windrow::take: ids[{index}]: index {position} is out of range for {count} rows")
