"""The operators as torch knows them: schemas, fake kernels, gradients, autocast and vmap. Imported once, by `windrow.torch.ops`. A fake
kernel raises what its check raises, and gives tensors of the shapes and dtypes of the result.

Gradients of lists are views of one tensor, as those of `torch.cat` and `torch.stack` are: of the incoming gradient, or of what an
operator of this file makes of it in one pass. 512 views of a padded gradient itself take longer than that pass.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from windrow.torch import _op_checks as checks
from windrow.torch import _op_kernels as kernels

Tensors = List[torch.Tensor]
Pair = Tuple[torch.Tensor, torch.Tensor]
Fake = Callable[..., Any]

# The backends of tensors that have no memory of one shape, or no numbers in it.
UNREADABLE = ("SparseCPU", "SparseCUDA", "SparseCsrCPU", "SparseCsrCUDA", "MkldnnCPU", "QuantizedCPU", "QuantizedCUDA")

_library: Any = torch.library.Library("windrow", "DEF")  # type: ignore[no-untyped-call]
_below_autograd: Any = torch._C._AutoDispatchBelowAutograd
_SingleLevelFunction: Any = torch.autograd.function._SingleLevelFunction
_is_traced: Callable[[], int] = torch._C._len_torch_dispatch_stack
_is_transformed: Callable[[], bool] = torch._C._are_functorch_transforms_active


def _define(schema: str, kernel: Callable[..., Any], fake: Fake) -> Any:
    """A new operator, without gradients; RuntimeError within vmap, and what its check says for sparse and quantised tensors."""
    name = schema[: schema.index("(")]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        _library.impl(name, kernel, key)
    torch.library.register_fake(f"windrow::{name}", fake, lib=_library)

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"windrow::{name} cannot be used within torch.vmap: it makes one batch of many tensors, and has no rule for batches of "
            "batches; call it outside of vmap"
        )

    def unreadable(*args: Any, **kwargs: Any) -> None:
        fake(*args, **kwargs)
        raise RuntimeError(f"windrow::{name} takes dense tensors alone")

    _library.impl(name, refused, "FuncTorchBatched")
    for key in UNREADABLE:
        _library.impl(name, unreadable, key)
    return getattr(getattr(torch.ops.windrow, name), "default")


def _differentiable(op: Any, apply: Callable[..., Any]) -> None:
    """Records `apply` where an argument requires grad; where one may have a tangent, `apply` looks and refuses it."""

    def recorded(*args: Any) -> Any:
        if torch.is_grad_enabled() and kernels.any_requires_grad(*args) or forward_ad._current_level >= 0:
            if not _is_transformed():
                return apply(*args)
            with enable_single_level_autograd_function():
                return apply(*args)
        with _below_autograd():
            return op(*args)

    _library.impl(op, recorded, "Autograd")


def _promoted(op: Any) -> None:
    """Autocast's rule of torch.cat and torch.stack: tensors of several precisions become float32."""
    for device in ("CPU", "CUDA"):
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device}"))

        def cast(tensors: Tensors, *args: Any, keys: Any = keys) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(keys):
                return op(_widest(tensors), *args)

        _library.impl(op, cast, f"Autocast{device}")


def _widest(tensors: Tensors) -> Tensors:
    """Casts tensors to float32 if they are of several dtypes out of float16, bfloat16 and float32; others stay."""
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) == 1 or not dtypes <= {torch.float16, torch.bfloat16, torch.float32}:
        return tensors
    return [tensor.to(torch.float32) for tensor in tensors]


def _sizes(tensors: Sequence[torch.Tensor], dim: int, lengths: Optional[torch.Tensor], offsets: Optional[torch.Tensor] = None) -> List[int]:
    """The extents along a dim, which an operator has found: on the host in a tenth of the time that asking takes. While a graph is
    traced they are symbols, which the tensors alone have."""
    found = offsets if lengths is None else lengths
    if type(found) is not torch.Tensor or found.device.type != "cpu" or _is_traced() or _is_transformed():
        return [tensor.shape[dim] for tensor in tensors]
    return (found if lengths is not None else found.diff()).tolist()


class _Function(_SingleLevelFunction):  # type: ignore[misc]
    """A Function of one level of torch.func: the dispatcher calls it for each level by itself. Undefined gradients stay None."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """RuntimeError: no operator has a rule for forward-mode AD."""
        raise RuntimeError(
            f"windrow::{ctx.name} has no rule for forward-mode AD (torch.func.jvp, jacfwd); use reverse mode, or give it "
            "unpack_dual(tensor).primal"
        )

    @staticmethod
    def below(ctx: Any, op: Any, *args: Any) -> Any:
        """Calls an operator below autograd, for `forward`; its name is noted for `jvp`."""
        ctx.name = op._opname
        ctx.set_materialize_grads(False)
        with _below_autograd():
            if not _is_transformed():
                return op(*args)
            # The dispatcher has turned both modes off, and the next level of torch.func records too.
            with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
                return op(*args)


# stack


def _fake_stack(tensors: Tensors) -> torch.Tensor:
    checks.stack(tensors)
    return tensors[0].new_empty((len(tensors), *tensors[0].shape))


class _Stack(_Function):
    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.count = len(tensors)
        return _Function.below(ctx, stack, list(tensors))  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Optional[torch.Tensor]) -> Any:
        return (None,) * ctx.count if grad is None else grad.unbind(0)


stack = _define("stack(Tensor[] tensors) -> Tensor", kernels.stack, _fake_stack)
_differentiable(stack, lambda tensors: _Stack.apply(*tensors))
_promoted(stack)


# concat


def _fake_concat(tensors: Tensors, dim: int = 0) -> Pair:
    dim = checks.concat(tensors, dim)
    shape = list(tensors[0].shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    return tensors[0].new_empty(shape), tensors[0].new_empty(len(tensors), dtype=torch.int64)


class _Concat(_Function):
    @staticmethod
    def forward(ctx: Any, dim: int, *tensors: torch.Tensor) -> Any:
        data, lengths = _Function.below(ctx, concat, list(tensors), dim)
        ctx.dim, ctx.sizes = dim, _sizes(tensors, dim, lengths)
        ctx.mark_non_differentiable(lengths)
        return data, lengths

    @staticmethod
    def backward(ctx: Any, grad: Optional[torch.Tensor], _: Any) -> Any:
        if grad is None:
            return (None,) * (1 + len(ctx.sizes))
        return (None, *grad.split_with_sizes(ctx.sizes, ctx.dim))


concat = _define("concat(Tensor[] tensors, int dim=0) -> (Tensor, Tensor)", kernels.concat, _fake_concat)
_differentiable(concat, lambda tensors, dim=0: _Concat.apply(dim, *tensors))
_promoted(concat)


# pad


def _fake_pad(tensors: Tensors, value: Any = 0.0, side: str = "right", size: Optional[int] = None) -> Pair:
    checks.pad(tensors, value, side, size)
    largest: Any = torch.sym_max
    width = functools.reduce(largest, [tensor.shape[0] for tensor in tensors]) if size is None else size
    shape = (len(tensors), width, *tensors[0].shape[1:])
    return tensors[0].new_empty(shape), tensors[0].new_empty(len(tensors), dtype=torch.int64)


class _Pad(_Function):
    @staticmethod
    def forward(ctx: Any, value: Any, side: str, size: Optional[int], *tensors: torch.Tensor) -> Any:
        data, lengths = _Function.below(ctx, pad, list(tensors), value, side, size)
        ctx.side, ctx.sizes = side, _sizes(tensors, 0, lengths)
        ctx.mark_non_differentiable(lengths)
        return data, lengths

    @staticmethod
    def backward(ctx: Any, grad: Optional[torch.Tensor], _: Any) -> Any:
        if grad is None:
            return (None,) * (3 + len(ctx.sizes))
        return (None, None, None, *unpad_list(grad, ctx.sizes, ctx.side).split_with_sizes(ctx.sizes))


pad = _define(
    'pad(Tensor[] tensors, Scalar value=0.0, str side="right", SymInt? size=None) -> (Tensor, Tensor)', kernels.pad, _fake_pad
)
_differentiable(pad, lambda tensors, value=0.0, side="right", size=None: _Pad.apply(value, side, size, *tensors))
_promoted(pad)


def _fake_unpad_list(padded: torch.Tensor, lengths: Sequence[int], side: str) -> torch.Tensor:
    checks.unpad_list(padded, lengths, side)
    return padded.new_empty((sum(lengths), *padded.shape[2:]))


class _UnpadList(_Function):
    @staticmethod
    def forward(ctx: Any, padded: torch.Tensor, lengths: Sequence[int], side: str) -> Any:
        ctx.width, ctx.sizes, ctx.side = padded.shape[1], lengths, side
        return _Function.below(ctx, unpad_list, padded, lengths, side)

    @staticmethod
    def backward(ctx: Any, grad: Optional[torch.Tensor]) -> Any:
        padded = None if grad is None else pad(list(grad.split_with_sizes(ctx.sizes)), 0.0, ctx.side, ctx.width)[0]
        return padded, None, None


unpad_list = _define("unpad_list(Tensor padded, SymInt[] lengths, str side) -> Tensor", kernels.unpad_list, _fake_unpad_list)
_differentiable(unpad_list, _UnpadList.apply)


# ragged


def _fake_ragged(tensors: Tensors) -> Pair:
    checks.ragged(tensors)
    values = tensors[0].new_empty((sum(tensor.shape[0] for tensor in tensors), *tensors[0].shape[1:]))
    return values, tensors[0].new_empty(len(tensors) + 1, dtype=torch.int64)


class _Ragged(_Function):
    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> Any:
        values, offsets = _Function.below(ctx, ragged, list(tensors))
        ctx.sizes = _sizes(tensors, 0, None, offsets)
        ctx.mark_non_differentiable(offsets)
        return values, offsets

    @staticmethod
    def backward(ctx: Any, grad: Optional[torch.Tensor], _: Any) -> Any:
        return (None,) * len(ctx.sizes) if grad is None else grad.split_with_sizes(ctx.sizes)


ragged = _define("ragged(Tensor[] tensors) -> (Tensor, Tensor)", kernels.ragged, _fake_ragged)
_differentiable(ragged, lambda tensors: _Ragged.apply(*tensors))
_promoted(ragged)


# take


def _fake_take(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    checks.take(table, ids)
    return table.new_empty((*ids.shape, *table.shape[1:]))


class _Take(_Function):
    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, ids: torch.Tensor) -> Any:
        ctx.rows = table.shape[0]
        ctx.save_for_backward(ids)
        return _Function.below(ctx, take, table, ids)

    @staticmethod
    def backward(ctx: Any, grad: Optional[torch.Tensor]) -> Any:
        return None if grad is None else take_sums(grad, ctx.saved_tensors[0], ctx.rows), None


take = _define("take(Tensor table, Tensor ids) -> Tensor", kernels.take, _fake_take)
_differentiable(take, _Take.apply)


def _fake_take_list(tensors: Tensors, ids: torch.Tensor) -> torch.Tensor:
    checks.take_list(tensors, ids)
    return tensors[0].new_empty((*ids.shape, *tensors[0].shape))


class _TakeList(_Function):
    @staticmethod
    def forward(ctx: Any, ids: torch.Tensor, *tensors: torch.Tensor) -> Any:
        ctx.count = len(tensors)
        ctx.save_for_backward(ids)
        return _Function.below(ctx, take_list, list(tensors), ids)

    @staticmethod
    def backward(ctx: Any, grad: Optional[torch.Tensor]) -> Any:
        if grad is None:
            return (None,) * (1 + ctx.count)
        return (None, *take_sums(grad, ctx.saved_tensors[0], ctx.count).unbind(0))


take_list = _define("take_list(Tensor[] tensors, Tensor ids) -> Tensor", kernels.take_list, _fake_take_list)
_differentiable(take_list, lambda tensors, ids: _TakeList.apply(ids, *tensors))
_promoted(take_list)


def _fake_take_sums(grad: torch.Tensor, ids: torch.Tensor, rows: int) -> torch.Tensor:
    return grad.new_empty((rows, *grad.shape[ids.dim() :]))


class _TakeSums(_Function):
    @staticmethod
    def forward(ctx: Any, grad: torch.Tensor, ids: torch.Tensor, rows: int) -> Any:
        ctx.save_for_backward(ids)
        return _Function.below(ctx, take_sums, grad, ids, rows)

    @staticmethod
    def backward(ctx: Any, grad: Optional[torch.Tensor]) -> Any:
        return None if grad is None else take(grad, ctx.saved_tensors[0]), None, None


take_sums = _define("take_sums(Tensor grad, Tensor ids, SymInt rows) -> Tensor", kernels.take_sums, _fake_take_sums)
_differentiable(take_sums, _TakeSums.apply)


# unpad and repad


def _unknown_size(size: Any) -> Any:
    """A size, or where it is in the data a symbol for it."""
    return torch.library.get_ctx().new_dynamic_size() if size is None else size


def _fake_unpad(padded: torch.Tensor, lengths: torch.Tensor, size: Optional[int] = None, side: str = "right") -> Pair:
    checks.unpad(padded, lengths, size, side)
    values = padded.new_empty((_unknown_size(size), *padded.shape[2:]))
    return values, padded.new_empty(padded.shape[0] + 1, dtype=torch.int64)


class _Unpad(_Function):
    @staticmethod
    def forward(ctx: Any, padded: torch.Tensor, lengths: torch.Tensor, size: Optional[int], side: str) -> Any:
        values, offsets = _Function.below(ctx, unpad, padded, lengths, size, side)
        ctx.width, ctx.side = padded.shape[1], side
        ctx.save_for_backward(offsets)
        ctx.mark_non_differentiable(offsets)
        return values, offsets

    @staticmethod
    def backward(ctx: Any, grad: Optional[torch.Tensor], _: Any) -> Any:
        padded = None if grad is None else repad(grad, ctx.saved_tensors[0], 0.0, ctx.width, ctx.side)[0]
        return padded, None, None, None


unpad = _define(
    'unpad(Tensor padded, Tensor lengths, SymInt? size=None, str side="right") -> (Tensor, Tensor)', kernels.unpad, _fake_unpad
)
_differentiable(unpad, lambda padded, lengths, size=None, side="right": _Unpad.apply(padded, lengths, size, side))


def _fake_repad(
    values: torch.Tensor, offsets: torch.Tensor, value: Any = 0.0, size: Optional[int] = None, side: str = "right"
) -> Pair:
    checks.repad(values, offsets, value, size, side)
    num = offsets.shape[0] - 1
    padded = values.new_empty((num, _unknown_size(size), *values.shape[1:]))
    return padded, values.new_empty(num, dtype=torch.int64)


class _Repad(_Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, offsets: torch.Tensor, value: Any, size: Optional[int], side: str) -> Any:
        padded, lengths = _Function.below(ctx, repad, values, offsets, value, size, side)
        ctx.total, ctx.side = values.shape[0], side
        ctx.save_for_backward(lengths)
        ctx.mark_non_differentiable(lengths)
        return padded, lengths

    @staticmethod
    def backward(ctx: Any, grad: Optional[torch.Tensor], _: Any) -> Any:
        values = None if grad is None else unpad(grad, ctx.saved_tensors[0], ctx.total, ctx.side)[0]
        return values, None, None, None, None


repad = _define(
    'repad(Tensor values, Tensor offsets, Scalar value=0.0, SymInt? size=None, str side="right") -> (Tensor, Tensor)',
    kernels.repad,
    _fake_repad,
)
_differentiable(
    repad,
    lambda values, offsets, value=0.0, size=None, side="right": _Repad.apply(values, offsets, value, size, side),
)
