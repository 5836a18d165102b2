"""Tensors of every kind that torch_words.rs tells apart, each with what torch itself says of it."""

from __future__ import annotations

from typing import List, Tuple

import torch

# Tensor and storage, kept alive; addresses of tensor, storage, memory and base; dispatch keys; lazy, requires grad,
# has a grad_fn, requires grad by itself.
Case = Tuple[object, object, int, int, int, int, int, bool, bool, bool, bool]


def cases() -> List[Case]:
    """The first is a plain tensor, the second a leaf, the third a view of the first."""
    plain, leaf, other = torch.zeros((3, 4), dtype=torch.float32), torch.zeros(4, dtype=torch.float32), torch.zeros(4, dtype=torch.float32)
    leaf.requires_grad_()
    result, kept = leaf * 2, leaf * 3
    kept.retain_grad()
    torch.autograd.backward(kept.sum(), inputs=[leaf, kept], retain_graph=True)
    late = other[1:]
    other.requires_grad_()
    off = torch.zeros(2, dtype=torch.float64).requires_grad_().requires_grad_(False)
    pair = torch.zeros((2, 2), dtype=torch.complex64)
    tensors = [
        plain, leaf, plain[1], result, kept, late, off, pair,
        pair.conj(), pair.conj().imag, torch._neg_view(plain), plain.t()[1:], leaf[1:], result.view(2, 2)[0],
        leaf.detach(), leaf.detach()[2:], torch.nn.Parameter(torch.zeros(2)), torch.zeros(0), torch.zeros((), dtype=torch.int64),
    ]  # fmt: skip
    with torch.inference_mode():
        tensors.append(torch.zeros(3))
    return [_case(tensor) for tensor in tensors]


def unasked() -> torch.Tensor:
    """A tensor that nothing has asked for its storage."""
    return torch.zeros(2, dtype=torch.float32)


def lazy_clones() -> List[torch.Tensor]:
    """Tensors whose memory is shared copy-on-write, none with another one of them; none where torch has no such tensors."""
    lazy_clone = getattr(torch, "_lazy_clone", None)
    return [] if lazy_clone is None else [lazy_clone(torch.zeros(size)) for size in (1, 2, 300)]


def _case(tensor: torch.Tensor) -> Case:
    storage, base = tensor.untyped_storage(), tensor._base
    keys = torch._C._dispatch_keys(tensor).raw_repr()
    has_fn = tensor.grad_fn is not None
    by_itself = tensor.requires_grad and not has_fn and base is None
    addresses = (tensor._cdata, storage._cdata, storage.data_ptr(), 0 if base is None else base._cdata)
    is_lazy = tensor.is_neg() or tensor.is_conj()
    return (tensor, storage, *addresses, keys, is_lazy, tensor.requires_grad, has_fn, by_itself)


# Tensor, dtype, shape, strides, offset in elements, address, whether it is dense, on the host and of few dims.
Dense = Tuple[object, str, Tuple[int, ...], Tuple[int, ...], int, int, bool]

DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip


def dense() -> List[Dense]:
    """Tensors of every dtype that torch_dense.rs reads, and some that it has to leave alone; the first is dense."""
    found = []
    for name in DTYPES:
        dtype = getattr(torch, name, None)
        if dtype is not None:
            table = torch.empty((37, 11), dtype=dtype)
            found += [(tensor, True) for tensor in (table, table[3:, 1:5], table.t()[2], table[5, 6], table.new_empty(0, 2)[:, 1:])]
    table = torch.zeros((2, 3, 5, 7, 4), dtype=torch.float32)
    found += [(table, True), (table.permute(4, 0, 3, 1, 2)[1:], True), (table[None], False), (torch.nn.Parameter(table), True)]
    found += [(table.to(torch.complex64).conj(), False), (torch._neg_view(table), False)]
    return [_dense(tensor, is_plain and tensor.untyped_storage().data_ptr() != 0) for tensor, is_plain in found]


def _dense(tensor: torch.Tensor, is_plain: bool) -> Dense:
    name = str(tensor.dtype).replace("torch.", "")
    # Not `Tensor.data_ptr`, which is 0 for a tensor without elements.
    offset = int(tensor.storage_offset())
    address = tensor.untyped_storage().data_ptr() + offset * tensor.element_size()
    return (tensor, name, tuple(tensor.shape), tensor.stride(), offset, address, is_plain)
