"""What the operators refuse, in the same words from real tensors and from traced ones, whose sizes may be symbols."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Optional, Sequence, Type

import torch

import windrow as wr


class OpShapeError(wr.ShapeError, RuntimeError):
    """A shape does not fit; a RuntimeError too, as those of torch's own operators are."""


class OpDTypeError(wr.DTypeError, RuntimeError):
    """A dtype does not fit."""


class OpDeviceError(wr.DeviceError, RuntimeError):
    """Tensors on several devices."""


def check(holds: Any, error: Type[Exception], text: Callable[[], str], index: Optional[int] = None) -> None:
    """Raises unless `holds`, a bool; of symbols it becomes a guard, or an assertion of the graph."""
    if holds is True:
        return
    if holds is False:
        raised = error(text())
        if isinstance(raised, (OpShapeError, OpDTypeError, OpDeviceError)):
            raised.index = index
        raise raised
    torch._check(holds, text)


def tensors(op: str, given: Sequence[torch.Tensor], free: Optional[int], hint: str = "") -> int:
    """Tensors of one device, dtype and rank, equal in every dim but `free`. Returns `free` counted from the front."""
    first = given[0]
    dim = -1
    if free is not None:
        rank = first.dim()
        check(rank > 0, OpShapeError, lambda: f"windrow::{op}: tensor 0: expected at least one dim, got a number", 0)
        check(-rank <= free < rank, IndexError, lambda: f"windrow::{op}: dim {free} is not a dim of tensors of {rank} dims")
        dim = free % rank
    for index, tensor in enumerate(given):
        _like(op, f"tensor {index}", tensor, first, index)
        is_same = tensor.dim() == first.dim()
        check(is_same, OpShapeError, lambda: _shapes(op, index, tensor, first, dim, hint), index)
        for d in range(first.dim()):
            if d != dim:
                check(tensor.shape[d] == first.shape[d], OpShapeError, lambda: _shapes(op, index, tensor, first, dim, hint), index)
    return dim


def _like(op: str, name: str, tensor: torch.Tensor, first: torch.Tensor, index: Optional[int] = None) -> None:
    check(
        tensor.device == first.device,
        OpDeviceError,
        lambda: f"windrow::{op}: Expected all tensors to be on the same device, but tensor 0 is on {first.device} and {name} on "
        f"{tensor.device}; move it by .to()",
        index,
    )
    check(
        tensor.dtype == first.dtype,
        OpDTypeError,
        lambda: f"windrow::{op}: {name}: expected {first.dtype}, as tensor 0 has, got {tensor.dtype}; cast it by .to()",
        index,
    )


def _shapes(op: str, index: int, tensor: torch.Tensor, first: torch.Tensor, dim: int, hint: str) -> str:
    want = _text("any" if d == dim else extent for d, extent in enumerate(first.shape))
    return f"windrow::{op}: tensor {index}: expected shape {want}, got {_text(tensor.shape)}{hint}"


def _text(shape: Iterable[Any]) -> str:
    extents = [str(extent) for extent in shape]
    return f"({extents[0]},)" if len(extents) == 1 else f"({', '.join(extents)})"


def integers(op: str, name: str, given: torch.Tensor, beside: torch.Tensor, dim: Optional[int] = None) -> None:
    """Integers on the device of `beside`, of so many dims."""
    is_whole = not (given.dtype.is_floating_point or given.dtype.is_complex or given.dtype == torch.bool)
    check(is_whole, OpDTypeError, lambda: f"windrow::{op}: {name}: expected integers, got {given.dtype}")
    check(
        given.device == beside.device,
        OpDeviceError,
        lambda: f"windrow::{op}: Expected all tensors to be on the same device, but {name} is on {given.device} and the tensor on "
        f"{beside.device}; move it by .to()",
    )
    if dim is not None:
        check(given.dim() == dim, OpShapeError, lambda: f"windrow::{op}: {name}: expected {dim} dim, got {given.dim()}")


def size(op: str, given: Any, lengths: Sequence[Any], name: str = "tensor") -> None:
    """A size that none exceeds."""
    check(given >= 0, ValueError, lambda: f"windrow::{op}: size must be at least 0, got {given}")
    for index, length in enumerate(lengths):
        too_long = f"windrow::{op}: {name} {index}: expected at most size={given} rows, got {length}"
        check(length <= given, OpShapeError, lambda: too_long, index)


def side(op: str, given: str) -> None:
    if given not in ("right", "left", "center"):
        raise ValueError(f'windrow::{op}: side must be "right", "left" or "center", got {given!r}')


def padded(op: str, given: torch.Tensor, lengths: torch.Tensor, total: Any) -> None:
    """A padded batch, the lengths of its rows, and the sum of these if it is said."""
    check(given.dim() >= 2, OpShapeError, lambda: f"windrow::{op}: padded: expected at least two dims, got {given.dim()}")
    integers(op, "lengths", lengths, given, 1)
    check(
        lengths.shape[0] == given.shape[0],
        OpShapeError,
        lambda: f"windrow::{op}: lengths: expected one for each of {given.shape[0]} rows, got {lengths.shape[0]}",
    )
    if total is not None:
        check(total >= 0, ValueError, lambda: f"windrow::{op}: size must be at least 0, got {total}")


def ragged(op: str, values: torch.Tensor, offsets: torch.Tensor, width: Any) -> None:
    """Values, the offsets of their rows, and the longest if it is said."""
    check(values.dim() >= 1, OpShapeError, lambda: f"windrow::{op}: values: expected at least one dim, got a number")
    integers(op, "offsets", offsets, values, 1)
    check(offsets.shape[0] >= 1, OpShapeError, lambda: f"windrow::{op}: offsets: expected N + 1 of them for N samples, got none")
    if width is not None:
        check(width >= 0, ValueError, lambda: f"windrow::{op}: size must be at least 0, got {width}")


def lengths(op: str, given: torch.Tensor, width: int) -> None:
    """Lengths on the host that lie in a padded batch."""
    if bool(((given < 0) | (given > width)).any()):
        index, length = next((i, n) for i, n in enumerate(given.tolist()) if not 0 <= n <= width)
        check(False, OpShapeError, lambda: f"windrow::{op}: lengths[{index}]: expected 0 to {width}, got {length}", index)


def offsets(op: str, given: torch.Tensor, num_values: int, width: Optional[int]) -> None:
    """Offsets on the host that cut all values, into pieces no longer than `width`."""
    bounds = given.tolist()
    for index, bound, want in ((0, bounds[0], 0), (len(bounds) - 1, bounds[-1], num_values)):
        check(bound == want, OpShapeError, lambda: f"windrow::{op}: offsets[{index}]: expected {want}, got {bound}", index)
    for index, (begin, end) in enumerate(zip(bounds, bounds[1:])):
        text = f"windrow::{op}: offsets[{index + 1}]: expected at least {begin}, as the one before, got {end}"
        check(begin <= end, OpShapeError, lambda: text, index)
    if width is not None:
        size(op, width, [end - begin for begin, end in zip(bounds, bounds[1:])], "sample")


def ids(op: str, given: torch.Tensor, count: int) -> None:
    """Positions on the host."""
    for index, position in enumerate(given.flatten().tolist()):
        if not -count <= position < count:
            raise IndexError(f"windrow::{op}: ids[{index}]: index {position} is out of range for {count} rows")
