"""Triton kernels of bench_torch.py: what an expert writes for one workload. Samples come as a table of their addresses."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _rows(table, out, words, BLOCK: tl.constexpr):
    sample, block = tl.program_id(1), tl.program_id(0)
    source = tl.load(table + sample).to(tl.pointer_type(tl.int32))
    at = block * BLOCK + tl.arange(0, BLOCK)
    source, at = tl.multiple_of(source, 16), tl.max_contiguous(tl.multiple_of(at, BLOCK), BLOCK)
    tl.store(out + sample.to(tl.int64) * words + at, tl.load(source + at, mask=at < words), mask=at < words)


@triton.jit
def _short_rows(table, out, words, total, BLOCK: tl.constexpr):
    # Rows shorter than a block: several in one program.
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    sample, own = at // words, at % words
    source = tl.load(table + sample, mask=at < total, other=0).to(tl.pointer_type(tl.int32))
    tl.store(out + at, tl.load(source + own, mask=at < total), mask=at < total)


def stack(table: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Rows of a multiple of 16 bytes, at multiples of 16, into `out`."""
    count, words = len(out), out[0].nbytes // 4
    flat = out.view(-1).view(torch.int32)
    if words >= 1024:
        # The samples are on the second axis of the grid, which takes 65,535.
        _rows[(triton.cdiv(words, 2048), count)](table, flat, words, BLOCK=2048)
    else:
        _short_rows[(triton.cdiv(words * count, 1024),)](table, flat, words, words * count, BLOCK=1024)
    return out


@triton.jit
def _images(table, out, scale, shift, pixels, BLOCK: tl.constexpr):
    image, block = tl.program_id(1), tl.program_id(0)
    source = tl.load(table + image).to(tl.pointer_type(tl.uint8))
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < pixels
    for c in tl.static_range(3):
        x = tl.load(source + 3 * at + c, mask=inside, other=0).to(tl.float32)
        y = tl.fma(x, tl.load(scale + c), tl.load(shift + c))
        tl.store(out + (image.to(tl.int64) * 3 + c) * pixels + at, y.to(tl.float16), mask=inside)


def images(table: torch.Tensor, side: int, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """8-bit images of three channels to scaled planes of float16."""
    out = torch.empty((len(table), 3, side, side), dtype=torch.float16, device=table.device)
    _images[(triton.cdiv(side * side, 1024), len(table))](table, out, scale, shift, side * side, BLOCK=1024)
    return out


@triton.jit
def _pad(table, lengths, out, mask, width, BLOCK: tl.constexpr):
    row, block = tl.program_id(1), tl.program_id(0)
    source = tl.load(table + row).to(tl.pointer_type(tl.int32))
    length = tl.load(lengths + row)
    at = block * BLOCK + tl.arange(0, BLOCK)
    real = at < length
    x = tl.load(source + at, mask=real, other=0)
    place = row.to(tl.int64) * width + at
    tl.store(out + place, x.to(out.dtype.element_ty), mask=at < width)
    tl.store(mask + place, real, mask=at < width)


def pad(table: torch.Tensor, lengths: torch.Tensor, width: int, kind: torch.dtype) -> tuple[Any, Any]:
    """Rows of int32 in a rectangle, and where they are."""
    out = torch.empty((len(table), width), dtype=kind, device=table.device)
    mask = torch.empty((len(table), width), dtype=torch.bool, device=table.device)
    _pad[(triton.cdiv(width, 1024), len(table))](table, lengths, out, mask, width, BLOCK=1024)
    return out, mask
