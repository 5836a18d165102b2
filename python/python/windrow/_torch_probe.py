"""Tensors of every kind that `private_layouts/torch_layout.rs` tells apart, each with what torch itself says of it."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Tuple

import torch
from torch.autograd import forward_ad

DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip


class Case(NamedTuple):
    """A tensor, kept alive with its storage."""

    tensor: torch.Tensor
    storage: Any
    # Addresses of the tensor, of its storage and of its memory.
    addresses: List[int]
    keys: int
    is_lazy: bool
    # The tensor's values are in memory as they are, and neither it nor its base requires grad or ever had a tangent.
    is_plain: bool
    # Dtype, shape, strides and address of one that is dense, on the host and of few dims.
    dense: Optional[Tuple[str, Tuple[int, ...], Tuple[int, ...], int]]


def cases() -> List[Case]:
    """Tensors of every kind, the first of which is a plain one."""
    plain, leaf, other = torch.zeros((3, 4), dtype=torch.float32), torch.zeros(4, dtype=torch.float32), torch.zeros(4, dtype=torch.float32)
    leaf.requires_grad_()
    result, kept = leaf * 2, leaf * 3
    kept.retain_grad()
    torch.autograd.backward(kept.sum(), inputs=[leaf, kept], retain_graph=True)
    late = other[1:]
    other.requires_grad_()
    off = torch.zeros(2, dtype=torch.float64).requires_grad_().requires_grad_(False)
    pair, deep = torch.zeros((2, 2), dtype=torch.complex64), torch.zeros((2, 3, 5, 7, 4), dtype=torch.float32)
    with torch.inference_mode():
        inferred = torch.zeros(3)
    without = [plain, leaf, result, kept, off, pair, deep, inferred, leaf.detach(), torch.nn.Parameter(torch.zeros(2)), torch.zeros((), dtype=torch.int64)]
    views = [
        plain[1], late, pair.conj(), pair.conj().imag, torch._neg_view(plain), plain.t()[1:], leaf[1:], result.view(2, 2)[0],
        leaf.detach()[2:], deep.permute(4, 0, 3, 1, 2)[1:], deep[None], deep.to(torch.complex64).conj(),
    ]  # fmt: skip
    for name in DTYPES:
        dtype = getattr(torch, name, None)
        if dtype is not None:
            table = torch.empty((37, 11), dtype=dtype)
            without.append(table)
            views += [table[3:, 1:5], table.t()[2], table[5, 6], table.new_empty(0, 2)[:, 1:]]
    return [_case(tensor, _keys(plain)) for tensor in (*without, *views)] + _duals(_keys(plain))


def _duals(plain_keys: int) -> List[Case]:
    """A tensor with a tangent and what torch made of it, all of which remember that they had one. By the functions behind
    `dual_level` and `make_dual`, and without arithmetic: those import 900 modules first, for a second."""
    core: Any = torch._C
    make_dual: Any = torch._VF._make_dual
    for is_last in (False, True):
        # A level is the process's: that of another thread is taken where there is one.
        known = forward_ad._current_level
        try:
            level = known if known >= 0 else core._enter_dual_level()
            try:
                dual = make_dual(torch.zeros(4), torch.ones(4), level=level)
                late = torch.zeros(4)
                view = late[1:]
                late.copy_(dual)
                cases = [_case(tensor, plain_keys) for tensor in (dual, dual.clone(), dual[1:], late, view)]
                return [case._replace(is_plain=False) for case in cases]
            finally:
                if known < 0:
                    core._exit_dual_level(level=level)
        except RuntimeError:  # Another thread entered or left a level in between.
            if is_last:
                raise
    return []


def unasked() -> torch.Tensor:
    """A tensor that nothing has asked for its storage."""
    return torch.zeros(2, dtype=torch.float32)


def lazy_clones() -> List[torch.Tensor]:
    """Tensors whose memory is shared copy-on-write, none with another one of them; none where torch has no such tensors."""
    lazy_clone = getattr(torch, "_lazy_clone", None)
    return [] if lazy_clone is None else [lazy_clone(torch.zeros(size)) for size in (1, 2, 300)]


def _keys(tensor: torch.Tensor) -> int:
    """The word of the tensor's dispatch keys."""
    return int(torch._C._dispatch_keys(tensor).raw_repr())


def _case(tensor: torch.Tensor, plain_keys: int) -> Case:
    """The case of a tensor without a tangent; `plain_keys`: the dispatch keys of a plain tensor."""
    storage, base, keys = tensor.untyped_storage(), tensor._base, _keys(tensor)
    memory, is_lazy = storage.data_ptr(), tensor.is_neg() or tensor.is_conj()
    requires_grad = tensor.requires_grad or (base is not None and base.requires_grad)
    dense = None
    if keys == plain_keys and tensor.dim() <= 5 and memory != 0:
        # The storage is asked, because `Tensor.data_ptr` is 0 for a tensor without elements.
        address = memory + int(tensor.storage_offset()) * tensor.element_size()
        dense = (str(tensor.dtype).replace("torch.", ""), tuple(tensor.shape), tensor.stride(), address)
    return Case(tensor, storage, [tensor._cdata, storage._cdata, memory], keys, is_lazy, not is_lazy and not requires_grad, dense)
