"""Batch assembly inside models: torch operators that keep gradients, and that ``torch.compile`` and ``torch.export`` take.

They are registered as ``torch.ops.windrow.*`` when this module is imported, which programs that load an exported model do first.
The first dim of a sample is the one that differs. Needs PyTorch 2.4 or newer.

    >>> import torch, windrow.torch.ops as ops
    >>> rows = [torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)]
    >>> data, lengths = ops.pad(rows)
    >>> (data * torch.tensor([[1.0, 2, 3], [4, 5, 6]])).sum().backward()
    >>> rows[0].grad, lengths
    (tensor([1., 2.]), tensor([2, 3]))
"""

from __future__ import annotations

from typing import Any, List, Literal, Optional, Sequence, Tuple, Union

import torch

import windrow

if not hasattr(torch.library, "custom_op"):
    raise ImportError(f"windrow.torch.ops needs PyTorch 2.4 or newer, whose operators have fake kernels; this is {torch.__version__}")

from windrow.torch import _op_checks as checks  # noqa: E402
from windrow.torch import _op_library as _ops  # noqa: E402

__all__ = ["concat", "pad", "ragged", "repad", "stack", "take", "unpad"]

Tensors = Union[Sequence[torch.Tensor], torch.Tensor]
Pair = Tuple[torch.Tensor, torch.Tensor]


def _list(op: str, tensors: Tensors) -> List[torch.Tensor]:
    """The tensors of a list, RuntimeError if there are none; of a tensor its rows, whose number then belongs to a compiled graph; of a nested
    one its components."""
    found = list(tensors.unbind(0)) if isinstance(tensors, torch.Tensor) else list(tensors)
    if not found:
        raise RuntimeError(f"windrow::{op} expects a non-empty list of tensors")
    return found


def _torch_tensor(op: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The argument itself. A windrow tensor, such as the lengths of a batch, raises TypeError, since torch's own error names neither type."""
    if isinstance(tensor, windrow.Tensor):
        raise TypeError(f"{op}: {name}: expected a torch.Tensor, got a windrow.Tensor; {name}.torch() has the same memory")
    return tensor


def _jagged(tensors: Tensors) -> Optional[Pair]:
    """The values and offsets of a nested tensor of the jagged layout whose values have no gaps; None for anything else, and for a dtype
    that the engine lacks."""
    if isinstance(tensors, torch.Tensor) and tensors.is_nested and tensors.layout == torch.jagged and tensors.dtype in checks.READABLE:
        nested: Any = tensors
        if nested.lengths() is None and nested._ragged_idx == 1:
            return nested.values(), nested.offsets()
    return None


def _table(op: str, tensors: Tensors) -> Optional[torch.Tensor]:
    """A tensor in place of the list, if it has rows and these have rows: all of one length, so that it need not be taken apart. Else None,
    and for a dtype that the engine lacks. OpLayoutError for one that is not dense."""
    if not isinstance(tensors, torch.Tensor) or tensors.is_nested:
        return None
    checks.dense(op, "tensor 0", tensors, 0)
    return tensors if tensors.dim() > 1 and tensors.shape[0] > 0 and tensors.dtype in checks.READABLE else None


def _copy(table: torch.Tensor) -> torch.Tensor:
    """A row-major copy, through which gradients flow."""
    return table.clone(memory_format=torch.contiguous_format)


def _number(value: Any) -> Any:
    """A number of NumPy's, or in a tensor of the host without dims, as one of Python's; anything else as it is."""
    # `torch.compile` does not look for attributes of its symbols, which are ints and floats to it.
    if isinstance(value, (int, float)):
        return value
    is_number = getattr(value, "ndim", None) == 0 and str(getattr(value, "device", "cpu")) == "cpu"
    return value.item() if is_number else value


def _scalar(op: str, value: Any, beside: torch.Tensor) -> Any:
    """A number as torch's schemas take it: an int of more than 64 bits as a float, OpValueError if the dtype does not have it."""
    if type(value) is not int or torch.compiler.is_compiling() or -(2**63) <= value < 2**64:
        return value
    checks.padding(op, beside, value, "right", None)
    return float(value)


def _even_offsets(table: torch.Tensor) -> torch.Tensor:
    """The offsets of a table's samples, which have one length."""
    return torch.arange(table.shape[0] + 1, device=table.device) * table.shape[1]


def stack(tensors: Tensors) -> torch.Tensor:
    """Stacks tensors of equal shape along a new dim 0, as `windrow.stack` does.

    Args:
        tensors: a list of tensors of one dtype and device; or one tensor, whose rows along dim 0 they are; or a nested tensor. Within
            ``torch.autocast`` those of several precisions become float32, as in ``torch.stack``.

    Returns:
        torch.Tensor: ``[N, *shape]``. Gradients of the tensors are views of its gradient.

    Raises:
        RuntimeError: the list is empty, or a tensor does not fit: a `windrow.ShapeError`, `windrow.DTypeError`, `windrow.DeviceError` or
            `windrow.LayoutError` that is a RuntimeError too, with ``.index``. While a graph is traced it is wrapped, with the same text.

    Example:
        >>> import torch, windrow.torch.ops as ops
        >>> ops.stack([torch.zeros(2), torch.ones(2)])
        tensor([[0., 0.],
                [1., 1.]])
    """
    table = _table("stack", tensors)
    return _ops.stack(_list("stack", tensors)) if table is None else _copy(table)


def concat(tensors: Tensors, dim: int = 0) -> Pair:
    """Joins tensors that are equal except along ``dim``, as `windrow.concat` does. Arguments and errors as for `stack`.

    Returns:
        tuple: the joined tensor, and ``lengths``, int64 ``[N]``, along ``dim``.

    Raises:
        IndexError: ``dim`` is not a dim of the tensors.

    Example:
        >>> import torch, windrow.torch.ops as ops
        >>> ops.concat([torch.zeros(2), torch.ones(1)])
        (tensor([0., 0., 1.]), tensor([2, 1]))
    """
    table = _table("concat", tensors)
    if table is None or not 1 - table.dim() <= dim < table.dim() - 1:
        return _ops.concat(_list("concat", tensors), dim)  # type: ignore[no-any-return]
    dim %= table.dim() - 1
    lengths = torch.full((table.shape[0],), table.shape[1 + dim], device=table.device)
    return _copy(table.movedim(0, dim)).flatten(dim, dim + 1), lengths


def pad(tensors: Tensors, value: float = 0, side: Literal["right", "left", "center"] = "right", size: Optional[int] = None) -> Pair:
    """Pads tensors that are equal but for dim 0 to the longest, as `windrow.pad` does. Arguments and errors as for `stack`.

    Args:
        value: number that padding holds, exact for integers; it has no gradient.
        side: ``"right"``, ``"left"`` or ``"center"``: where padding goes.
        size: rows of a sample in the result; None: those of the longest. A longer tensor is an error.

    Returns:
        tuple: ``data[N, size, *rest]`` and ``lengths``, int64 ``[N]``.

    Example:
        >>> import torch, windrow.torch.ops as ops
        >>> ops.pad([torch.tensor([1, 2]), torch.tensor([3])], value=-100)
        (tensor([[   1,    2],
                [   3, -100]]), tensor([2, 1]))
    """
    jagged, value, size = _jagged(tensors), _number(value), _number(size)
    table = _table("pad", tensors)
    one, is_traced = jagged[0] if jagged is not None else table, torch.compiler.is_compiling()
    if one is not None and not is_traced:
        checks.padding("pad", one, value, side, size)
    if jagged is not None:
        if size is None or is_traced:
            return repad(*jagged, value, size, side=side)
        try:
            return repad(*jagged, value, size, side=side)
        except ValueError:
            pass  # A tensor is longer: the operator of lists says which.
    if table is not None and (size is None or table.shape[1] <= size):
        return repad(table.flatten(0, 1), _even_offsets(table), value, table.shape[1] if size is None else size, side=side)
    rows = _list("pad", tensors)
    return _ops.pad(rows, _scalar("pad", value, rows[0]), side, size)  # type: ignore[no-any-return]


def ragged(tensors: Tensors) -> Pair:
    """Places tensors that are equal but for dim 0 one after the other, as `windrow.ragged` does. Arguments and errors as for `stack`.

    ``torch.nested.nested_tensor_from_jagged(*ragged(tensors))`` is a nested tensor of them, with their gradients. Of a nested tensor of
    the jagged layout its own values are returned, and its offsets, as int64.

    Returns:
        tuple: ``values[sum, *rest]`` and ``offsets``, int64 ``[N + 1]``.

    Example:
        >>> import torch, windrow.torch.ops as ops
        >>> ops.ragged([torch.zeros(2), torch.ones(1)])
        (tensor([0., 0., 1.]), tensor([0, 2, 3]))
    """
    jagged, table = _jagged(tensors), _table("ragged", tensors)
    if jagged is not None:
        return jagged[0], jagged[1].long()
    if table is None:
        return _ops.ragged(_list("ragged", tensors))  # type: ignore[no-any-return]
    return _copy(table).flatten(0, 1), _even_offsets(table)


def take(tensors: Tensors, ids: torch.Tensor) -> torch.Tensor:
    """Rows of a table, or tensors of a list of equal shapes, at these positions.

    Gradients of a row that was taken more than once are summed in the order of the positions, so that they have the same bits each
    time, on a GPU too.

    Args:
        tensors: a table ``[V, *rest]``, or a list of V tensors of the shape ``rest``, which on a GPU become a table first.
        ids: an integer tensor of any shape; negative ones count from the end.

    Returns:
        torch.Tensor: ``[*ids.shape, *rest]``.

    Raises:
        IndexError: a position is out of range. On a GPU nobody looks at it: such a row is 0.
        RuntimeError: as for `stack`; ``ids`` are no integers, or on another device.

    Example:
        >>> import torch, windrow.torch.ops as ops
        >>> ops.take(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([2, 0]))
        tensor([[3.],
                [1.]])
    """
    if isinstance(tensors, torch.Tensor) and not tensors.is_nested:
        return _ops.take(tensors, _torch_tensor("take", "ids", ids))  # type: ignore[no-any-return]
    return _ops.take_list(_list("take", tensors), _torch_tensor("take", "ids", ids))  # type: ignore[no-any-return]


def unpad(padded: torch.Tensor, lengths: torch.Tensor, *, size: Optional[int] = None, side: Literal["right", "left", "center"] = "right") -> Pair:
    """The samples of a padded batch without their padding, one after the other: the inverse of `pad`.

    Args:
        padded: ``[N, L, *rest]``.
        lengths: integers ``[N]`` from 0 to L.
        size: the sum of the lengths, if it is known: with it a compiled graph has no unbacked size, and nothing waits on a GPU.
        side: where the padding is: ``"right"``, ``"left"`` or ``"center"``.

    Returns:
        tuple: ``values[sum, *rest]`` and ``offsets``, int64 ``[N + 1]``.

    Raises:
        RuntimeError: lengths are no integers, of another number or device, negative or beyond L; or ``size`` is not their sum. As for
            `stack`. What depends on values is not looked at on a GPU if ``size`` is given: rows that are in no sample are 0.

    Example:
        >>> import torch, windrow.torch.ops as ops
        >>> ops.unpad(torch.tensor([[1, 2], [3, 0]]), torch.tensor([2, 1]))
        (tensor([1, 2, 3]), tensor([0, 2, 3]))
    """
    return _ops.unpad(_torch_tensor("unpad", "padded", padded), _torch_tensor("unpad", "lengths", lengths), size, side)  # type: ignore[no-any-return]


def repad(
    values: torch.Tensor, offsets: torch.Tensor, value: float = 0, size: Optional[int] = None, *, side: Literal["right", "left", "center"] = "right"
) -> Pair:
    """A ragged batch as a padded one: the inverse of `unpad`.

    Args:
        values: ``[sum, *rest]``.
        offsets: integers ``[N + 1]`` from 0 to ``sum``.
        value, side: as for `pad`.
        size: rows of a sample in the result; None: those of the longest. With it a compiled graph has no unbacked size, and nothing
            waits on a GPU.

    Returns:
        tuple: ``padded[N, size, *rest]`` and ``lengths``, int64 ``[N]``.

    Raises:
        RuntimeError: offsets are no integers, decrease, do not begin with 0 or end with ``sum``; or a sample is longer than ``size``. As
            for `stack`. What depends on values is not looked at on a GPU if ``size`` is given: rows beyond ``size`` are left out.
        ValueError: the dtype does not have ``value``.

    Example:
        >>> import torch, windrow.torch.ops as ops
        >>> ops.repad(torch.tensor([1, 2, 3]), torch.tensor([0, 2, 3]))
        (tensor([[1, 2],
                [3, 0]]), tensor([2, 1]))
    """
    values, offsets = _torch_tensor("repad", "values", values), _torch_tensor("repad", "offsets", offsets)
    return _ops.repad(values, offsets, _scalar("repad", _number(value), values), size, side)  # type: ignore[no-any-return]
