"""The operators on real tensors, by the engine. Each refuses what its check in `_op_checks` refuses."""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Optional, Sequence, Tuple, TypeVar, cast

import torch

import windrow as wr
from windrow.torch import _op_checks as checks

Tensors = List[torch.Tensor]
Pair = Tuple[torch.Tensor, torch.Tensor]
Result = TypeVar("Result")

any_requires_grad: Callable[..., bool] = getattr(torch._C, "_any_requires_grad", None) or (
    lambda *given: any(t.requires_grad for arg in given for t in (arg if isinstance(arg, list) else [arg]) if isinstance(t, torch.Tensor))
)
# The reader of private layouts is on. Without it windrow asks each tensor whether it requires grad; to detach all takes
# less time.
_READS_WORDS = ("torch", "on") in [(name.split()[0], state) for name, state in wr._windrow._private_layouts()]

# Dtypes that torch gathers, and integers of as many bytes as others have.
_GATHERED = {torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64}
_GATHERED |= {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _plain(tensors: Tensors) -> Tensors:
    """The tensors; detached, if grad mode is off, some require grad, and the engine would detach each of those by a call."""
    if _READS_WORDS or torch.is_grad_enabled() or not any_requires_grad(tensors):
        return tensors
    return list(map(torch.Tensor.detach, tensors))


def _checked(check: Callable[..., Any]) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """If a kernel raises, the check of its arguments raises in its place, if it refuses them. The engine looks at a list in less time
    than Python does."""

    def decorate(kernel: Callable[..., Result]) -> Callable[..., Result]:
        @functools.wraps(kernel)
        def run(*args: Any) -> Result:
            try:
                return kernel(*args)
            except Exception:
                check(*args)
                raise

        return run

    return decorate


# lists of tensors


@_checked(checks.stack)
def stack(tensors: Tensors) -> torch.Tensor:
    return wr.stack(_plain(tensors)).torch()


@_checked(checks.concat)
def concat(tensors: Tensors, dim: int = 0) -> Pair:
    batch = wr.concat(_plain(tensors), dim=dim)
    return batch.torch(), _torch(batch.lengths)


@_checked(checks.pad)
def pad(tensors: Tensors, value: Any = 0.0, side: str = "right", size: Optional[int] = None) -> Pair:
    batch = wr.pad(_plain(tensors), value=value, side=cast(Any, side), dims=0, size=size)
    return batch.torch(), _torch(batch.lengths)


@_checked(checks.ragged)
def ragged(tensors: Tensors) -> Pair:
    batch = wr.ragged(_plain(tensors))
    return batch.torch(), _torch(batch.offsets)


def _torch(part: Optional[wr.Tensor]) -> torch.Tensor:
    """A part that every batch of its form has."""
    assert part is not None
    return part.torch()


# take


def take(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    checks.take(table, ids)
    if ids.numel() == 0:
        return table.new_empty((*ids.shape, *table.shape[1:]))
    if ids.device.type != "cpu":
        return take_unseen(table, ids)
    return _taken(wr.SampleList(table.detach()), ids, table.shape)


@_checked(checks.take_list)
def take_list(tensors: Tensors, ids: torch.Tensor) -> torch.Tensor:
    first = tensors[0]
    checks.integers("take", "ids", ids, first)
    if ids.device.type != "cpu":
        return take_unseen(wr.stack(_plain(tensors)).torch(), ids)
    samples = wr.SampleList(_plain(tensors))
    # A list may hold samples of any kind, as long as those that are taken are alike.
    wr.explain(samples)
    if ids.numel() == 0:
        return first.new_empty((*ids.shape, *first.shape))
    return _taken(samples, ids, (len(tensors), *first.shape))


def _taken(samples: wr.SampleList, ids: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Samples at these positions, IndexError out of range; `shape`: that of a table of all of them."""
    try:
        return samples.stack(ids.reshape(-1)).torch().view((*ids.shape, *shape[1:]))
    except IndexError:
        checks.ids(ids.flatten().tolist(), shape[0])
        raise


def take_unseen(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Positions are read on the device, and nothing waits for them: a row out of range is 0. By torch's own functions, since a list of the
    engine has a table on the device, which a captured graph would outlive."""
    table, dtype = _movable(table), table.dtype
    count, rest, flat = table.shape[0], table.shape[1:], ids.reshape(-1).long()
    if count == 0:
        return table.new_zeros((*ids.shape, *rest)).view(dtype)
    flat = torch.where(flat < 0, flat + count, flat)
    rows = table.index_select(0, flat.clamp(0, count - 1))
    is_outside = ((flat < 0) | (flat >= count)).view(-1, *[1] * len(rest))
    return rows.masked_fill_(is_outside, 0).view((*ids.shape, *rest)).view(dtype)


def _movable(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, as integers where torch has no gather for the dtype: float8 and wide unsigned integers."""
    is_rare = tensor.dtype not in _GATHERED and not tensor.dtype.is_complex
    return tensor.view(_INTEGERS[tensor.element_size()]) if is_rare else tensor


def take_sums(grad: torch.Tensor, ids: torch.Tensor, rows: int) -> torch.Tensor:
    """The sum of the gradients of the copies of each row of a table, in the order of their positions: the same bits each time."""
    rest = grad.shape[ids.dim() :]
    flat, ids = grad.reshape(ids.numel(), *rest), ids.reshape(-1).long()
    ids = torch.where(ids < 0, ids + rows, ids)
    if grad.device.type != "cpu":
        return sorted_sums(flat, ids, rows)
    # The host adds the gradients of a row one position after the other.
    return grad.new_zeros((rows, *rest)).index_add_(0, ids, flat)


def sorted_sums(flat: torch.Tensor, ids: torch.Tensor, rows: int) -> torch.Tensor:
    """Positions are sorted, because `index_add_` adds in any order on a device. Those out of range are summed in a row that is dropped."""
    if flat.numel() == 0:
        return flat.new_zeros((rows, *flat.shape[1:]))
    ids, numbers = torch.where((ids >= 0) & (ids < rows), ids, rows), flat.reshape(len(flat), -1)
    if flat.is_complex():
        numbers = torch.view_as_real(numbers.resolve_conj()).flatten(1)
    sums: torch.Tensor = torch.ops.aten.embedding_dense_backward(numbers, ids, rows + 1, -1, False)[:rows]
    if flat.is_complex():
        sums = torch.view_as_complex(sums.view(rows, -1, 2))
    return sums.reshape(rows, *flat.shape[1:])


# unpad and repad: the host knows where each sample is, or is not to wait for a device that does


def unpad(padded: torch.Tensor, lengths: torch.Tensor, size: Optional[int] = None, side: str = "right") -> Pair:
    checks.unpad(padded, lengths, size, side)
    if lengths.device.type != "cpu" and size is not None:
        return unpad_unseen(_rows(padded), lengths.long(), padded.shape[1], size, side)
    lengths = lengths.cpu()
    if lengths.dtype == torch.uint64:
        # int64 does not hold all of them.
        checks.lengths(lengths.tolist(), padded.shape[1])
    values, offsets = _unpad_known(padded, lengths.long(), side)
    checks.total(size, values.shape[0])
    return values, offsets


def unpad_list(padded: torch.Tensor, lengths: List[int], side: str) -> torch.Tensor:
    """The gradient of `pad`, in one piece: the host knows these lengths, wherever the batch is."""
    checks.unpad_list(padded, lengths, side)
    return _unpad_known(padded, torch.tensor(lengths, dtype=torch.int64, device="cpu"), side)[0]


def _rows(padded: torch.Tensor) -> torch.Tensor:
    """The rows of all samples of a padded batch as one table."""
    return padded.reshape(padded.shape[0] * padded.shape[1], *padded.shape[2:])


def _unpad_known(padded: torch.Tensor, lengths: torch.Tensor, side: str) -> Pair:
    """Values and offsets by lengths that are on the host, which are checked."""
    if len(lengths) and padded.shape[1]:
        return joined(_rows(padded), lengths, padded.shape[1], side)
    checks.lengths(lengths.tolist(), padded.shape[1])
    return padded.new_empty((0, *padded.shape[2:])), padded.new_zeros(len(lengths) + 1, dtype=torch.int64)


def joined(rows: torch.Tensor, lengths: torch.Tensor, width: int, side: str) -> Pair:
    """The samples among the rows of a padded batch, one after the other, and their offsets. The lengths are on the host, and
    checked. On a device by one launch."""
    # A row that is too long would begin before its own place, within the neighbours.
    if side == "center" and int(lengths.max()) > width:
        checks.lengths(lengths.tolist(), width)
    starts = _starts(lengths, width, side)
    try:
        # Every other piece is a sample, those between are padding.
        pieces = wr.SampleList.split(rows, torch.stack((starts, starts + lengths), 1).flatten())
        batch = wr.ragged(pieces.take(torch.arange(0, 2 * len(lengths), 2, device="cpu")))
    except Exception:
        checks.lengths(lengths.tolist(), width)
        raise
    return batch.torch(), _torch(batch.offsets)


def _starts(lengths: torch.Tensor, width: int, side: str) -> torch.Tensor:
    """The first row of each sample among all rows of a padded batch."""
    starts = torch.arange(lengths.shape[0], device=lengths.device) * width
    if side == "left":
        return starts + (width - lengths)
    if side == "center":
        return starts + (width - lengths).div(2, rounding_mode="floor")
    return starts


def unpad_unseen(rows: torch.Tensor, lengths: torch.Tensor, width: int, size: int, side: str) -> Pair:
    """Lengths are read on the device, and nothing waits for them."""
    places, offsets = _places(lengths, width, side, size)
    return take_unseen(rows, places), offsets


def _places(lengths: torch.Tensor, width: int, side: str, total: int) -> Pair:
    """The row of a padded batch that each value is in, and the offsets.

    Nobody has looked at the lengths: a value that would be in the padding or the row of another sample, or in none, is in the row behind
    the last.
    """
    count, offsets, numbers = len(lengths), _offsets(lengths), torch.arange(total, device=lengths.device)
    sample = torch.searchsorted(offsets[1:], numbers, right=True)
    own = sample.clamp(max=max(count - 1, 0))
    rows = numbers - offsets[own] + torch.cat((_starts(lengths, width, side), lengths.new_zeros(1)))[own]
    column = rows - own * width
    return torch.where((sample < count) & (column >= 0) & (column < width), rows, count * width), offsets


def _offsets(lengths: torch.Tensor) -> torch.Tensor:
    """N + 1 offsets, on the device of the lengths."""
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def repad(
    values: torch.Tensor, offsets: torch.Tensor, value: Any = 0.0, size: Optional[int] = None, side: str = "right"
) -> Pair:
    checks.repad(values, offsets, value, size, side)
    if offsets.device.type != "cpu" and size is not None:
        return repad_unseen(values, offsets.long(), value, size, side)
    offsets = offsets.cpu()
    if len(offsets) == 1 or int(offsets[0]) != 0 or int(offsets[-1]) != values.shape[0]:
        checks.offsets(offsets.tolist(), values.shape[0], size)
        # No samples, and no values.
        return values.new_empty((0, size or 0, *values.shape[1:])), values.new_zeros(0, dtype=torch.int64)
    return spread(values, offsets, value, size, side)


def spread(values: torch.Tensor, offsets: torch.Tensor, value: Any, size: Optional[int], side: str) -> Pair:
    """A padded batch of the samples that offsets on the host cut, and their lengths. On a device by one launch."""
    try:
        batch = wr.pad(wr.SampleList.split(values, offsets), value=value, side=cast(Any, side), dims=0, size=size)
    except Exception:
        checks.offsets(offsets.tolist(), values.shape[0], size)
        raise
    return batch.torch(), _torch(batch.lengths)


def repad_unseen(values: torch.Tensor, offsets: torch.Tensor, value: Any, size: int, side: str) -> Pair:
    """Offsets are read on the device, and nothing waits for them."""
    lengths = offsets.diff()
    places, _ = _places(lengths, size, side, values.shape[0])
    rows = len(lengths) * size
    padded = values.new_full((rows + 1, *values.shape[1:]), _exact(value, values.dtype))
    _movable(padded).index_copy_(0, places, _movable(values))
    return padded[:rows].view(len(lengths), size, *values.shape[1:]), lengths


def _exact(value: Any, dtype: torch.dtype) -> Any:
    """The value as the dtype has it, as a number of Python."""
    return wr.pad([torch.empty(0, dtype=dtype, device="cpu")], value=value, size=1).torch().item()
