"""The operators on real tensors, by the engine. The checks of `_op_checks` run once the engine has refused something."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Tuple

import torch

import windrow as wr
from windrow.torch import _op_checks as checks

Tensors = List[torch.Tensor]
Pair = Tuple[torch.Tensor, torch.Tensor]

any_requires_grad: Callable[..., bool] = getattr(torch._C, "_any_requires_grad", None) or (
    lambda *given: any(t.requires_grad for arg in given for t in (arg if isinstance(arg, list) else [arg]) if isinstance(t, torch.Tensor))
)


def _plain(tensors: Tensors) -> Tensors:
    """Tensors without gradients, which are read from their words: in half the time of asking each, even with this copy."""
    if torch.is_grad_enabled() or not any_requires_grad(tensors):
        return tensors
    return list(map(torch.Tensor.detach, tensors))


STACK_CURE = "; windrow.torch.ops.pad takes tensors of different lengths"


def stack(tensors: Tensors) -> torch.Tensor:
    try:
        return wr.stack(_plain(tensors)).torch()  # type: ignore[no-any-return]
    except Exception:
        checks.tensors("stack", tensors, None, STACK_CURE)
        raise


def concat(tensors: Tensors, dim: int = 0) -> Pair:
    try:
        batch = wr.concat(_plain(tensors), dim=dim)
    except Exception:
        checks.tensors("concat", tensors, dim)
        raise
    assert batch.lengths is not None
    return batch.torch(), batch.lengths.torch()


def pad(tensors: Tensors, value: Any = 0.0, side: str = "right", size: Optional[int] = None) -> Pair:
    try:
        batch = wr.pad(_plain(tensors), value=value, side=side, dims=0, size=size)
    except Exception:
        check_pad(tensors, side, size)
        raise
    assert batch.lengths is not None
    return batch.torch(), batch.lengths.torch()


def check_pad(tensors: Tensors, side: str, size: Any) -> None:
    checks.tensors("pad", tensors, 0)
    checks.side("pad", side)
    if size is not None:
        checks.size("pad", size, [tensor.shape[0] for tensor in tensors])


def ragged(tensors: Tensors) -> Pair:
    try:
        batch = wr.ragged(_plain(tensors))
    except Exception:
        checks.tensors("ragged", tensors, 0)
        raise
    assert batch.offsets is not None
    return batch.torch(), batch.offsets.torch()


def take(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    check_take(table, ids)
    if ids.numel() == 0:
        return table.new_empty((*ids.shape, *table.shape[1:]))
    return _gathered(wr.SampleList(table.detach()), table, ids, table.shape[0])


def check_take(table: torch.Tensor, ids: torch.Tensor) -> None:
    checks.check(table.dim() > 0, checks.OpShapeError, lambda: "windrow::take: table: expected at least one dim, got a number")
    checks.integers("take", "ids", ids, table)


def take_list(tensors: Tensors, ids: torch.Tensor) -> torch.Tensor:
    first = tensors[0]
    checks.integers("take", "ids", ids, first)
    # A list may hold samples of any kind, as long as those that are taken are alike.
    if any(t.shape != first.shape or t.dtype != first.dtype or t.device != first.device for t in tensors):
        checks.tensors("take", tensors, None)
    if ids.numel() == 0:
        return first.new_empty((*ids.shape, *first.shape))
    return _gathered(wr.SampleList(_plain(tensors)), first, ids, len(tensors))


def _gathered(samples: wr.SampleList, first: torch.Tensor, ids: torch.Tensor, count: int) -> torch.Tensor:
    """Samples at these positions. On a device, positions are read there, behind what has written them, and nothing waits."""
    flat = ids.reshape(-1)
    if first.device.type != "cpu":
        samples = samples.to_device(first.device)
        flat = flat if flat.dtype in (torch.int32, torch.int64) else flat.long()
    try:
        data = samples.stack(flat).torch()
    except IndexError:
        if first.device.type == "cpu":
            checks.ids("take", ids, count)
        raise
    return data.view((*ids.shape, *data.shape[1:]))  # type: ignore[no-any-return]


def take_sums(grad: torch.Tensor, ids: torch.Tensor, rows: int) -> torch.Tensor:
    """For each row of a table the sum of the gradients of its copies, in the order of their positions: the same bits each time."""
    rest = grad.shape[ids.dim() :]
    flat, ids = grad.reshape(ids.numel(), *rest), ids.reshape(-1).long()
    ids = torch.where(ids < 0, ids + rows, ids)
    if grad.device.type != "cpu":
        return take_sums_on_device(flat, ids, rows)
    # On the host each row gets its gradients one position after the other.
    return grad.new_zeros((rows, *rest)).index_add_(0, ids, flat)


def take_sums_on_device(flat: torch.Tensor, ids: torch.Tensor, rows: int) -> torch.Tensor:
    """By sorted positions: `index_add_` adds in any order there. Those out of range are summed in a row of their own, which is dropped."""
    if flat.numel() == 0:
        return flat.new_zeros((rows, *flat.shape[1:]))
    ids, numbers = torch.where((ids >= 0) & (ids < rows), ids, rows), flat.reshape(len(flat), -1)
    if flat.is_complex():
        numbers = torch.view_as_real(numbers.resolve_conj()).flatten(1)
    sums: torch.Tensor = torch.ops.aten.embedding_dense_backward(numbers, ids, rows + 1, -1, False)[:rows]
    if flat.is_complex():
        sums = torch.view_as_complex(sums.view(rows, -1, 2))
    return sums.reshape(rows, *flat.shape[1:])


def _starts(lengths: torch.Tensor, width: int, side: str) -> torch.Tensor:
    """Where each sample begins among all rows of a padded batch."""
    starts = torch.arange(lengths.shape[0], device=lengths.device) * width
    if side == "left":
        return starts + (width - lengths)
    if side == "center":
        return starts + (width - lengths).div(2, rounding_mode="floor")
    return starts


def _offsets(lengths: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def unpad(padded: torch.Tensor, lengths: torch.Tensor, size: Optional[int] = None, side: str = "right") -> Pair:
    check_unpad(padded, lengths, size, side)
    num, width = padded.shape[:2]
    rows, lengths = padded.reshape(num * width, *padded.shape[2:]), lengths.long()
    if padded.device.type != "cpu":
        return unpad_on_device(rows, lengths, width, size, side)
    if num == 0 or width == 0:
        checks.lengths("unpad", lengths, width)
        values, offsets = padded.new_empty((0, *padded.shape[2:])), lengths.new_zeros(num + 1)
    else:
        starts = _starts(lengths, width, side)
        try:
            # Every other piece is a sample, those between are padding.
            pieces = wr.SampleList.split(rows, torch.stack((starts, starts + lengths), 1).flatten())
            batch = wr.ragged(pieces.take(torch.arange(0, 2 * num, 2)))
        except Exception:
            checks.lengths("unpad", lengths, width)
            raise
        assert batch.offsets is not None
        values, offsets = batch.torch(), batch.offsets.torch()
    _check_total(values.shape[0], size)
    return values, offsets


def check_unpad(padded: torch.Tensor, lengths: torch.Tensor, size: Any, side: str) -> None:
    checks.padded("unpad", padded, lengths, size)
    checks.side("unpad", side)


def _check_total(total: int, size: Optional[int]) -> None:
    is_sum = size is None or total == size
    checks.check(is_sum, checks.OpShapeError, lambda: f"windrow::unpad: size: expected {total}, the sum of lengths, got {size}")


def _places(lengths: torch.Tensor, width: int, side: str, total: int) -> Pair:
    """The row of a padded batch that each value is in, and the offsets.

    Nobody has looked at lengths that are on a device: a value that would be in the padding or the row of another sample, or in none, is
    in the row behind the last.
    """
    count, offsets, numbers = len(lengths), _offsets(lengths), torch.arange(total, device=lengths.device)
    sample = torch.searchsorted(offsets[1:], numbers, right=True)
    own = sample.clamp(max=max(count - 1, 0))
    rows = numbers - offsets[own] + torch.cat((_starts(lengths, width, side), lengths.new_zeros(1)))[own]
    column = rows - own * width
    return torch.where((sample < count) & (column >= 0) & (column < width), rows, count * width), offsets


def unpad_on_device(rows: torch.Tensor, lengths: torch.Tensor, width: int, size: Optional[int], side: str) -> Pair:
    """Lengths are read on the device, so that nothing waits if their sum is said."""
    if size is None:
        checks.lengths("unpad", lengths, width)
        size = int(lengths.sum())
    places, offsets = _places(lengths, width, side, size)
    return (take(rows, places) if len(rows) else rows.new_zeros((size, *rows.shape[1:]))), offsets


def repad(
    values: torch.Tensor, offsets: torch.Tensor, value: Any = 0.0, size: Optional[int] = None, side: str = "right"
) -> Pair:
    check_repad(values, offsets, size, side)
    if values.device.type != "cpu":
        return repad_on_device(values, offsets.long(), value, size, side)
    num = offsets.shape[0] - 1
    try:
        is_whole = int(offsets[0]) == 0 and int(offsets[-1]) == values.shape[0]
        if num == 0 or not is_whole:
            checks.offsets("repad", offsets, values.shape[0], size)
            return values.new_full((0, size or 0, *values.shape[1:]), _exact(value, values.dtype)), offsets.new_zeros(0, dtype=torch.int64)
        batch = wr.pad(wr.SampleList.split(values, offsets), value=value, side=side, dims=0, size=size)
    except wr.ShapeError:
        checks.offsets("repad", offsets, values.shape[0], size)
        raise
    assert batch.lengths is not None
    return batch.torch(), batch.lengths.torch()


def check_repad(values: torch.Tensor, offsets: torch.Tensor, size: Any, side: str) -> None:
    checks.ragged("repad", values, offsets, size)
    checks.side("repad", side)


def repad_on_device(values: torch.Tensor, offsets: torch.Tensor, value: Any, size: Optional[int], side: str) -> Pair:
    """Offsets are read on the device, so that nothing waits if the longest is said."""
    lengths = offsets.diff()
    if size is None:
        checks.offsets("repad", offsets, values.shape[0], None)
        size = int(lengths.max()) if len(lengths) else 0
    places, _ = _places(lengths, size, side, values.shape[0])
    rows = len(lengths) * size
    padded = values.new_full((rows + 1, *values.shape[1:]), _exact(value, values.dtype)).index_copy_(0, places, values)[:rows]
    return padded.view(len(lengths), size, *values.shape[1:]), lengths


def _exact(value: Any, dtype: torch.dtype) -> Any:
    """The value as the dtype has it; the engine refuses one that it has not."""
    return wr.pad([torch.empty(0, dtype=dtype)], value=value, size=1).torch().item()
