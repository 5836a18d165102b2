"""Workloads of bench_torch.py that change samples on the way: images, rows of many lengths, fields, graphs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

import native_peers as peers
import windrow as wr
from torch_samples import Bench, Set, samples, sets_of
from torch_workload import Workload, ours, triton_kernels
from windrow._measure import MEAN, STD, normalised, transform

ROUNDINGS = 4e-3
"""The tolerance for float16 near the largest value, for chains of operations that round more often than is defined."""
SCALE, SHIFT = tuple(1 / 255 / s for s in STD), tuple(-m / s for m, s in zip(MEAN, STD))


def images(bench: Bench, name: str, num_samples: int, side: int, layout: str = "scattered") -> Workload:
    """8-bit HWC images to normalised planes of float16."""
    num, side = bench.some(num_samples), side // 8 if bench.dry else side
    sets = sets_of(bench, lambda seed: samples(bench, [(side, side, 3)] * num, "uint8", seed, layout), num)
    title = f"{num} x {side} x {side} x 3 uint8 HWC to float16 CHW, normalised"
    made = Workload(name, title, layout, num, num * side * side * 9, sets, lambda s: np.stack(normalised(s.arrays, "float16")))
    mean, std, scale, shift = (torch.tensor(values, device=bench.device) for values in (MEAN, STD, SCALE, SHIFT))
    planes = [value.view(3, 1, 1) for value in (mean, std, scale, shift)]

    def chain(s: Set) -> torch.Tensor:
        x = torch.stack(s.tensors).permute(0, 3, 1, 2).float()
        return ((x / 255 - planes[0]) / planes[1]).half().contiguous()

    def tail(x: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(planes[3], x.permute(0, 3, 1, 2).float(), planes[2]).half().contiguous()

    def torchvision() -> Any:
        try:
            from torchvision.transforms.v2 import functional as tv
        except ImportError as error:
            raise peers.Absent(f"{error.name or 'torchvision'} is not installed") from None

        def run(s: Set) -> torch.Tensor:
            x = tv.to_dtype(torch.stack(s.tensors).permute(0, 3, 1, 2), torch.float32, scale=True)
            return tv.normalize(x, list(MEAN), list(STD)).half().contiguous()

        return run

    def compiled() -> Any:
        if not bench.compiles or name != "W1":
            raise peers.Absent("torch.compile takes 20 s: of W1 alone, not with --no-compile or --dry")
        call = torch.compile(tail, dynamic=False)
        return lambda s: call(torch.stack(s.tensors))

    def triton_gather() -> Any:
        kernels = triton_kernels(bench)
        return lambda s: kernels.images(s.keep("addresses", lambda: bench.addresses(s.tensors)), side, scale, shift)

    made.add("windrow", lambda s: ours(wr.stack(s.tensors, dtype="float16", transform=transform())), True)
    made.add("torch.stack, eager chain", chain, True, ROUNDINGS)
    made.add("torch.stack, addcmul", lambda s: tail(torch.stack(s.tensors)), True, ROUNDINGS)
    made.try_add("torch.stack, torch.compile", compiled, False, ROUNDINGS)
    made.try_add("torch.stack, torchvision v2", torchvision, False, ROUNDINGS)
    made.try_add("Triton, addresses kept", triton_gather, True, ROUNDINGS)
    return made


def padded(bench: Bench, name: str, num_samples: int, to: str) -> Workload:
    """Rows of 16 to 2048 int32 in a rectangle of 2048, the mask and the lengths."""
    num, width, kind = bench.some(num_samples), 2048, getattr(torch, to)

    def make(seed: int) -> Set:
        draw = random.Random(1000 + seed)
        return samples(bench, [(draw.randrange(16, width + 1),) for _ in range(num)], "int32", seed)

    def want(s: Set) -> Any:
        data, mask = np.zeros((num, width), to), np.zeros((num, width), bool)
        for i, row in enumerate(s.arrays):
            data[i, : len(row)], mask[i, : len(row)] = row, True
        return data, mask, np.array([len(row) for row in s.arrays])

    sets = sets_of(bench, make, num)
    moved = sum(array.nbytes for array in sets[0].arrays) + num * width * (torch.empty(0, dtype=kind).element_size() + 1)
    made = Workload(name, f"pad {num} rows of 16..2048 int32 to {to}, mask, lengths", "scattered", num, moved, sets, want)
    column = torch.arange(width, device=bench.device)

    def lengths(s: Set) -> torch.Tensor:
        return bench.uploaded(torch.tensor([len(row) for row in s.tensors]))

    def with_mask(data: torch.Tensor, n: torch.Tensor) -> Any:
        return data.to(kind), column < n[:, None], n

    def sequence(s: Set) -> Any:
        n, data = lengths(s), torch.nn.utils.rnn.pad_sequence(s.tensors, batch_first=True)
        return with_mask(torch.nn.functional.pad(data, (0, width - data.shape[1])), n)

    def foreach(s: Set) -> Any:
        n, data = lengths(s), torch.zeros((num, width), dtype=kind, device=bench.device)
        torch._foreach_copy_([data[i, : len(row)] for i, row in enumerate(s.tensors)], s.tensors)
        return with_mask(data, n)

    def gathered(s: Set) -> Any:
        n, flat = lengths(s), torch.cat(s.tensors)
        at = (torch.cumsum(n, 0) - n)[:, None] + column
        return with_mask(torch.where(column < n[:, None], flat[at.clamp_max(flat.numel() - 1)], 0), n)

    def nested(s: Set) -> Any:
        data = torch.nested.as_nested_tensor(s.tensors, layout=torch.strided)
        return with_mask(data.to_padded_tensor(0, (num, width)), lengths(s))

    def by_windrow(s: Set) -> Any:
        batch = wr.pad(s.tensors, size=width, mask="real", dtype=to)
        return ours((batch.data, batch.mask, batch.lengths))

    def triton_gather() -> Any:
        kernels = triton_kernels(bench)

        def run(s: Set) -> Any:
            n = lengths(s)
            return *kernels.pad(bench.addresses(s.tensors), n, width, kind), n

        return run

    made.add("windrow", by_windrow)
    made.add("pad_sequence, to, mask", sequence)
    made.add("_foreach_copy_ into zeros, mask", foreach)
    made.add("torch.cat, gather", gathered)
    made.add("torch.nested, to_padded_tensor", nested)
    made.try_add("Triton, addresses each call", triton_gather)
    return made


def ragged(bench: Bench, name: str, num_samples: int) -> Workload:
    """Clips of 1 to 15 s of int16 to one row of float32, and where each begins."""
    num, most = bench.some(num_samples), 2400 if bench.dry else 240_000

    def make(seed: int) -> Set:
        draw = random.Random(3000 + seed)
        return samples(bench, [(draw.randrange(most // 15, most + 1),) for _ in range(num)], "int16", seed)

    def offsets(rows: list[Any]) -> Any:
        return np.cumsum([0, *map(len, rows)])

    sets, scale = sets_of(bench, make, num), wr.Transform(scale=1 / 32768)
    moved = 6 * sum(map(len, sets[0].arrays))
    made = Workload(name, f"join {num} clips of 1..15 s of int16 to float32, offsets", "scattered", num, moved, sets,
                    lambda s: (np.concatenate(s.arrays).astype(np.float32) / 32768, offsets(s.arrays)))  # fmt: skip

    def cat(s: Set) -> Any:
        return torch.cat(s.tensors).float().mul_(1 / 32768), bench.uploaded(torch.from_numpy(offsets(s.tensors)))

    def nested(s: Set) -> Any:
        whole = torch.nested.nested_tensor(s.tensors, layout=torch.jagged)
        return whole.values().float().mul_(1 / 32768), whole.offsets()

    def by_windrow(s: Set) -> Any:
        batch = wr.ragged(s.tensors, dtype="float32", transform=scale)
        return ours((batch.data, batch.offsets))

    made.add("windrow", by_windrow)
    made.add("torch.cat, float, offsets", cat)
    made.add("torch.nested, jagged", nested)
    return made


FIELDS = {"observation": ((48,), "float32"), "action": ((8,), "float32"), "step": ((), "int64"), "reward": ((), "float32"),
          "value": ((), "float32"), "log_prob": ((), "float32"), "discount": ((), "float32"), "done": ((), "bool")}  # fmt: skip
"""Eight fields, 249 bytes."""


def fields(bench: Bench, name: str, num_samples: int) -> Workload:
    """Dicts of eight fields to one dict of batches."""
    num = bench.some(num_samples)

    def make(seed: int) -> Set:
        columns = [samples(bench, [shape] * num, dtype, 16 * seed + n) for n, (shape, dtype) in enumerate(FIELDS.values())]
        return Set([dict(zip(FIELDS, row)) for row in zip(*(column.tensors for column in columns))], [column.arrays for column in columns])

    made = Workload(name, f"collate {num} dicts of 8 fields, 249 B", "scattered", num, 2 * 249 * num, sets_of(bench, make, num),
                    lambda s: tuple(map(np.stack, s.arrays)))  # fmt: skip
    made.add("windrow", lambda s: ours(tuple(wr.collate(s.tensors).values())))
    made.add("windrow, SampleList", lambda s: ours(tuple(wr.collate(s.keep("list", lambda: wr.SampleList(s.tensors))).values())))
    made.add("default_collate", lambda s: tuple(torch.utils.data.default_collate(s.tensors).values()))
    made.add("torch.stack for each field", lambda s: tuple(torch.stack([tree[key] for tree in s.tensors]) for key in FIELDS))
    return made


def detection(bench: Bench, name: str, num_samples: int) -> Workload:
    """8-bit images of many sizes to normalised planes in one rectangle, and where there is none."""
    num, (height, width) = (2, (40, 64)) if bench.dry else (num_samples, (800, 1344))

    def make(seed: int) -> Set:
        draw = random.Random(11 + seed)
        shapes = [(height - draw.randrange(height // 12), width - draw.randrange(width * 2 // 5), 3) for _ in range(num)]
        return samples(bench, shapes, "uint8", seed)

    def want(s: Set) -> Any:
        data, mask = np.zeros((num, 3, height, width), np.float16), np.ones((num, height, width), bool)
        for i, planes in enumerate(normalised(s.arrays, "float16")):
            data[i, :, : planes.shape[1], : planes.shape[2]] = planes
            mask[i, : planes.shape[1], : planes.shape[2]] = False
        return data, mask

    sets = sets_of(bench, make, num)
    moved = sum(array.nbytes for array in sets[0].arrays) + num * height * width * 7
    made = Workload(name, f"pad {num} images of many sizes to float16 [3, {height}, {width}], mask", "scattered", num, moved, sets, want)
    scale, shift = (torch.tensor(values, device=bench.device).view(3, 1, 1) for values in (SCALE, SHIFT))

    def loop(s: Set) -> Any:
        data = torch.zeros((num, 3, height, width), dtype=torch.float16, device=bench.device)
        mask = torch.ones((num, height, width), dtype=torch.bool, device=bench.device)
        for i, image in enumerate(s.tensors):
            h, w = image.shape[:2]
            data[i, :, :h, :w] = torch.addcmul(shift, image.permute(2, 0, 1).float(), scale)
            mask[i, :h, :w] = False
        return data, mask

    def by_windrow(s: Set) -> Any:
        batch = wr.pad(s.tensors, size=(height, width, None), mask="pad", dtype="float16", transform=transform())
        return ours((batch.data, batch.mask))

    made.add("windrow", by_windrow)
    made.add("torch, loop of copies", loop, False, ROUNDINGS)
    return made


def graphs(bench: Bench, name: str, num_samples: int) -> Workload:
    """Nodes and edges of graphs as one graph."""
    num = bench.some(num_samples)

    def make(seed: int) -> Set:
        draw, generator = random.Random(13 + seed), torch.Generator().manual_seed(seed)
        nodes = [draw.randrange(200, 401) for _ in range(num)]
        x = samples(bench, [(n, 64) for n in nodes], "float32", seed)
        ends = [torch.randint(0, n, (2, draw.randrange(400, 801)), generator=generator) for n in nodes]
        return Set([{"x": a, "edge_index": b.to(bench.device)} for a, b in zip(x.tensors, ends)], [x.arrays, [end.numpy() for end in ends]])

    def want(s: Set) -> Any:
        nodes = np.array([len(x) for x in s.arrays[0]])
        ends = np.concatenate([end + first for end, first in zip(s.arrays[1], np.cumsum(nodes) - nodes)], 1)
        return np.concatenate(s.arrays[0]), ends, np.repeat(np.arange(num), nodes)

    sets = sets_of(bench, make, num)
    moved = 2 * sum(array.nbytes for column in sets[0].arrays for array in column)
    made = Workload(name, f"join {num} graphs of 200..400 nodes x 64", "scattered", num, moved, sets, want)

    def by_torch(s: Set) -> Any:
        n, e = (torch.tensor(sizes) for sizes in ([len(g["x"]) for g in s.tensors], [g["edge_index"].shape[1] for g in s.tensors]))
        num_nodes, num_edges = int(n.sum()), int(e.sum())
        first, n, e = (bench.uploaded(v) for v in (n.cumsum(0) - n, n, e))
        x, index = torch.cat([g["x"] for g in s.tensors]), torch.cat([g["edge_index"] for g in s.tensors], 1)
        index += torch.repeat_interleave(first, e, output_size=num_edges)
        return x, index, torch.repeat_interleave(torch.arange(num, device=bench.device), n, output_size=num_nodes)

    def by_windrow(s: Set) -> Any:
        from windrow.structure import concat_graphs

        joined = concat_graphs(s.tensors)
        return joined["x"], joined["edge_index"], joined["batch"]

    def pyg() -> Any:
        try:
            from torch_geometric.data import Batch, Data
        except ImportError as error:
            raise peers.Absent(f"{error.name or 'torch_geometric'} is not installed") from None

        def run(s: Set) -> Any:
            batch = Batch.from_data_list(s.keep("PyG", lambda: [Data(**g) for g in s.tensors]))
            return batch.x, batch.edge_index, batch.batch

        return run

    made.add("windrow, concat_graphs", by_windrow)
    made.add("torch.cat, repeat_interleave", by_torch)
    made.try_add("Batch.from_data_list of PyG", pyg)
    return made
