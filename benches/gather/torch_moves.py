"""Workloads of bench_torch.py that only move samples of one size: over sizes, over counts, and from the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import native_peers as peers
import windrow as wr
from torch_samples import Bench, Set, samples, sets_of, shuffled
from torch_workload import Workload, ours, triton_kernels

WHOLE = 64 << 20
"""Bytes of all samples of one size, but for the small ones, of which there are at most `MOST`."""
MOST = 65_536
SIZES = [64 << 2 * i for i in range(9)]
"""Bytes of a sample: 64 B to 4 MiB."""
COUNTS = [4**i for i in range(9)]
"""Samples of 512 bytes: 1 to 65,536."""


def readable(num_bytes: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes % size == 0:
            return f"{num_bytes // size} {unit}"
    return f"{num_bytes} B"


def size(bench: Bench, num_bytes: int, layout: str) -> Workload:
    """Samples of `num_bytes` bytes each that are 64 MiB together."""
    return stacked(bench, f"size {num_bytes}", min(WHOLE // num_bytes, MOST), num_bytes // 4, "float32", layout)


def count(bench: Bench, num_samples: int) -> Workload:
    """`num_samples` samples of 512 bytes each."""
    return stacked(bench, f"count {num_samples}", num_samples, 128, "float32", "scattered")


def stacked(bench: Bench, name: str, num_samples: int, row: int, dtype: str, layout: str) -> Workload:
    """Rows of so many elements, stacked."""
    num, row = bench.some(num_samples), min(row, 1024) if bench.dry else row
    sets = sets_of(bench, lambda seed: samples(bench, [(row,)] * num, dtype, seed, layout), num)
    num_bytes = sum(array.nbytes for array in sets[0].arrays)
    title = f"stack {num} x {readable(num_bytes // num)} {dtype}"
    made = Workload(name, title, layout, num, 2 * num_bytes, sets, lambda s: np.stack(s.arrays))

    def out(s: Set) -> torch.Tensor:
        """Memory of a batch that is there already."""
        return s.keep("out", lambda: torch.empty((num, row), dtype=s.tensors[0].dtype, device=bench.device))

    def into(s: Set) -> torch.Tensor:
        wr.stack(s.tensors, out=out(s))
        return out(s)

    def foreach(s: Set) -> torch.Tensor:
        torch._foreach_copy_(list(out(s).unbind(0)), s.tensors)
        return out(s)

    made.add("windrow", lambda s: ours(wr.stack(s.tensors)), True)
    made.add("windrow, out=", into, True)
    made.add("windrow, SampleList", lambda s: ours(wr.stack(s.keep("list", lambda: wr.SampleList(s.tensors)))), True)
    made.add("torch.stack", lambda s: torch.stack(s.tensors), True)
    made.add("torch.stack(out=)", lambda s: torch.stack(s.tensors, out=out(s)), True)
    made.add("torch.cat, view", lambda s: torch.cat(s.tensors).view(num, row), True)
    made.add("torch._foreach_copy_(out)", foreach, True)
    made.add("pad_sequence", lambda s: torch.nn.utils.rnn.pad_sequence(s.tensors, batch_first=True))
    made.add("torch.nested, to_padded_tensor", lambda s: torch.nested.as_nested_tensor(s.tensors, layout=torch.strided).to_padded_tensor(0.0))
    by_index(bench, made)
    made.try_add("cupy.stack", lambda: peers.cupy_stack(bench))
    made.try_add("CUB batched memcpy, tables kept", lambda: peers.cub(bench, out), True)
    made.try_add("a block for each buffer, tables kept", lambda: peers.block_per_buffer(bench, out), True)
    made.try_add("cuMemcpyBatchAsync, addresses kept", lambda: peers.memcpy_batch(bench, out))

    def triton_gather(is_kept: bool) -> Any:
        kernels = triton_kernels(bench)
        if layout == "at any byte" or num_bytes // num % 16:
            raise peers.Absent("its kernel is for rows at multiples of 16 bytes")
        if is_kept:
            return lambda s: kernels.stack(s.keep("addresses", lambda: bench.addresses(s.tensors)), out(s))
        return lambda s: kernels.stack(bench.addresses(s.tensors), out(s))

    made.try_add("Triton gather, addresses each call", lambda: triton_gather(False))
    made.try_add("Triton gather, addresses kept", lambda: triton_gather(True), True)
    return made


def by_index(bench: Bench, made: Workload) -> None:
    """The same batch by indices: out of one table whose rows are in another order, and out of a list of such samples."""

    def mixed(s: Set) -> Any:
        return s.keep("shuffled", lambda: shuffled(bench, s))

    def picked(s: Set) -> torch.Tensor:
        table, rows, _ = mixed(s)
        return torch.index_select(table, 0, rows)

    def listed(s: Set) -> Any:
        return s.keep("shuffled list", lambda: wr.SampleList(mixed(s)[2]).to_device(bench.target))

    def take(s: Set) -> Any:
        return ours(wr.stack(listed(s).take(mixed(s)[1])))

    made.add("torch.index_select of one table", picked, True)
    if bench.dry:
        made.absent["windrow, take(device ids)"] = "needs a GPU"
    else:
        made.add("windrow, take(device ids)", take, True)


def uploads(bench: Bench, name: str, num_samples: int, num_bytes: int) -> Workload:
    """Samples in memory of the host to one batch on the device."""
    num, target = bench.some(num_samples), bench.target

    def make(seed: int) -> Set:
        on_host = samples(Bench(dry=True), [(num_bytes,)] * num, "uint8", seed)
        if not bench.dry:
            # Before the clock starts: in page-locked memory of torch, and of windrow.
            on_host.kept["torch's"] = [tensor.pin_memory() for tensor in on_host.tensors]
            on_host.kept["own"] = list(wr.stack(on_host.tensors, device="pinned"))
        return on_host

    sets = sets_of(bench, make, num)
    title = f"{num} x {readable(num_bytes)} from the host"
    made = Workload(name, title, "page-locked", num, num * num_bytes, sets, lambda s: np.stack(s.arrays), crosses=True)
    stage = torch.empty((num, num_bytes), dtype=torch.uint8, pin_memory=not bench.dry)

    def locked(s: Set) -> Any:
        return s.kept.get("torch's", s.tensors)

    def staged(s: Set) -> torch.Tensor:
        torch.stack(s.tensors, out=stage)
        return stage.to(bench.device, non_blocking=True).clone() if bench.dry else stage.to(bench.device, non_blocking=True)

    def foreach(s: Set) -> torch.Tensor:
        out = torch.empty((num, num_bytes), dtype=torch.uint8, device=bench.device)
        torch._foreach_copy_(list(out.unbind(0)), locked(s), non_blocking=True)
        return out

    made.add("windrow", lambda s: ours(wr.stack(locked(s), device=target)))
    made.add("windrow, pageable samples", lambda s: ours(wr.stack(s.tensors, device=target)))
    made.add("windrow, its own page-locked samples", lambda s: ours(wr.stack(s.kept.get("own", s.tensors), device=target)))
    made.add("stack(out=page-locked), to", staged)
    made.add("stack of pageable samples, to", lambda s: torch.stack(s.tensors).to(bench.device))
    made.add("to for each, stack there", lambda s: torch.stack([tensor.to(bench.device, non_blocking=True) for tensor in locked(s)]))
    made.add("_foreach_copy_", foreach)
    return made
