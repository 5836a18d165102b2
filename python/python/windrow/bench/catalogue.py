"""The workloads by name. W1 to W10 have the numbers of the project's plan; H and L are what only a host is asked."""

from __future__ import annotations

from typing import Dict, Optional

from windrow.bench import casts
from windrow.bench.lengths import padded, ragged
from windrow.bench.moves import random_batch, stack, upload
from windrow.bench.pairs import cases as move_cases
from windrow.bench.pixels import frames, normalise, padded_images
from windrow.bench.results import MEMCPY
from windrow.bench.samples import LAYOUTS
from windrow.bench.small import cases as small_cases
from windrow.bench.sources import list_column, plans, token_lists
from windrow.bench.trees import ENVIRONMENT, JAX_PEER, data_objects, fields, graphs, leaves, tensordict_batch
from windrow.bench.workload import Case, over

STACKS = ("torch.stack", "np.stack", "DALI as_batch")
OUTS = ("torch.stack(out=)", "np.stack(out=)", "DALI as_batch")
PCM = 1 / 32768
FLOOR = over(0.7, MEMCPY)
ROOF = over(0.95, MEMCPY, ours="windrow, out=")


def images(dtype: str) -> Case:
    title = f"normalise 256 x (224, 224, 3) uint8 to {dtype} CHW"
    return Case(title, normalise, (224, 224, 3), 256, dtype, targets=[over(4.0, "torch eager"), FLOOR])


def large(kib: int) -> Case:
    count = 65536 // kib
    return Case(f"stack {count} x {kib} KiB", stack, (kib << 10,), count, "uint8", targets=[ROOF, over(0.95, MEMCPY)])


def to_float8(rows: str, length: int, count: int, source: str, dtype: str, goal: float) -> Case:
    targets = [over(goal, "copy_ of each row", ours="windrow, out=")]
    return Case(f"{rows} {source} to {dtype}", casts.float8_rows, length, count, source, dtype, targets=targets)


def quantised(rows: str, scales: str, length: int, count: int, source: str, block: Optional[int]) -> Case:
    title = f"{rows} to float8_e4m3fn, a scale for {scales}"
    return Case(title, casts.quantised_rows, length, count, source, block, targets=[over(4.0, "torch.stack, amax, divide, to")])


WORKLOADS: Dict[str, Case] = {
    "W1": images("float16"),
    "W1-f32": images("float32"),
    "W2": Case(
        "pad 4096 int32 rows of 16..2048 to int64, mask", padded, 16, 2048, 4096, "int32", "int64",
        targets=[over(2.0, "pad_sequence, cast, mask"), FLOOR],
    ),
    "W2b": Case("pad 4096 int32 rows of 16..2048, mask", padded, 16, 2048, 4096, "int32", "int32", targets=[FLOOR]),
    "W3": Case("stack 100 000 x 128 float32", stack, (128,), 100_000, "float32", targets=[over(3.0, "torch.stack", "np.stack")]),
    "W4a": Case(
        "ragged 512 float32 clips of 1..15 s", ragged, 16_000, 240_000, 512, "float32", "float32",
        targets=[over(1.5, "torch.cat, offsets")],
    ),
    "W4b": Case("ragged 512 int16 clips of 1..15 s to float32", ragged, 16_000, 240_000, 512, "int16", "float32", PCM),
    "W4c": Case("pad 512 int16 clips of 1..15 s to float32, mask", padded, 16_000, 240_000, 512, "int16", "float32", PCM),
    "W5": Case(
        "collate 4096 dicts of 8 fields, 249 bytes", fields, ENVIRONMENT, 4096,
        targets=[over(6.0, "default_collate"), over(1.0, JAX_PEER, ours="windrow.jax.collate")],
    ),
    "W5b": Case("stack 256 x (4, 84, 84) uint8 to float16", frames, (4, 84, 84), 256, "float16"),
    "W6": Case("stack 4096 pages of 32 KiB", stack, (32768,), 4096, "uint8", targets=[ROOF]),
    "W7": Case("pad 32 images up to (800, 1333, 3) uint8 to float16 CHW, mask", padded_images, 32, 800, 1333),
    "W8": Case("upload 4096 x 4 KiB from page-locked memory", upload, (4096,), 4096, "uint8"),
    "W9": Case("collate 256 graphs of 200..400 nodes x 64, edges counted on", graphs, 256),
    "W10a": Case("stack 100 000 x 77 uint8, at any byte", stack, (77,), 100_000, "uint8", odd=True),
    "W10b": Case("normalise 256 x (225, 225, 3) uint8 to float16 CHW, at any byte", normalise, (225, 225, 3), 256, "float16", odd=True),
    "H1": Case(
        "stack 256 x (224, 224, 3) uint8", stack, (224, 224, 3), 256, "uint8",
        targets=[over(1.0, *OUTS, ours="windrow, out="), over(1.0, *STACKS), ROOF],
    ),
    "H3": Case("stack 4096 x 128 float32", stack, (128,), 4096, "float32", targets=[over(3.0, "torch.stack", "np.stack")]),
    "tree8": Case("collate 4096 dicts of 8 x 32 float32", fields, leaves(8), 4096, targets=[over(6.0, "default_collate")]),
    "small": Case("stack 8 x 64 float32", stack, (64,), 8, "float32", repeat=100, targets=[over(1.0, "torch.stack")]),
    "index": Case(
        "4096 of 1 000 000 x 128 float32 by indices", random_batch, 1_000_000, 4096,
        targets=[over(8.0, "torch.stack of the same items"), over(1.0, "torch.index_select of one table")],
    ),
    "audio": Case(
        "ragged 512 float32 clips of 0.5..4 s", ragged, 8_000, 64_000, 512, "float32", "float32",
        targets=[over(1.5, "torch.cat, offsets")],
    ),
    "Q-f32": to_float8("gather 4096 rows of 512", 512, 4096, "float32", "float8_e4m3fn", 5.0),
    "Q-bf16": to_float8("gather 4096 rows of 512", 512, 4096, "bfloat16", "float8_e4m3fn", 5.0),
    "Q-back": Case(
        "gather 4096 rows of 512 float8_e4m3fn to bfloat16", casts.float8_rows, 512, 4096, "float8_e4m3fn", "bfloat16", targets=[FLOOR]
    ),
    "Q-large": to_float8("stack 16 x 4 MiB", 1 << 20, 16, "float32", "float8_e5m2", 1.4),
    "Q-large-e4m3fn": to_float8("stack 16 x 4 MiB", 1 << 20, 16, "float32", "float8_e4m3fn", 1.4),
    "Q-large-bf16": to_float8("stack 16 x 2 MiB", 1 << 20, 16, "bfloat16", "float8_e4m3fn", 3.0),
    "Q-large-bf16-e5m2": to_float8("stack 16 x 2 MiB", 1 << 20, 16, "bfloat16", "float8_e5m2", 3.0),
    "Q-row": quantised("quantise 4096 tokens of 4096 bfloat16", "each", 4096, 4096, "bfloat16", None),
    "Q-128": quantised("quantise 4096 tokens of 4096 bfloat16", "each 128", 4096, 4096, "bfloat16", 128),
    "Q-pages": quantised("gather 1024 pages of 128 x 64 float32", "each row", 8192, 1024, "float32", 64),
    "Q-images": Case(
        "stack 256 x (224, 224, 3) uint8 to float8_e4m3fn in 0 to 1", casts.images, 256, targets=[over(4.0, "torch.stack, float, mul, to")]
    ),
    **{f"L{kib}": large(kib) for kib in (64, 256, 1024)},
    "source-arrow": Case(
        "pad an Arrow list column of 4096 int32 rows of 16..2048 to int64, mask",
        list_column, "pyarrow", 21, 16, 2048, 4096, targets=[over(0.6, MEMCPY)],
    ),
    "source-polars": Case(
        "pad a polars list column of 4096 int32 rows of 16..2048 to int64, mask",
        list_column, "polars", 21, 16, 2048, 4096, targets=[over(0.6, MEMCPY)],
    ),
    "source-datasets": Case(
        "pad 256 rows of 16..512 tokens of a Hugging Face dataset, mask",
        list_column, "datasets", 22, 16, 512, 256, targets=[over(15.0, 'with_format("torch"), pad_sequence, mask')],
    ),
    "source-tensordict": Case("stack 256 TensorDicts of 30 x 8 float32", tensordict_batch, 30, 256, targets=[over(10.0, "torch.stack")]),
    "source-pyg": Case(
        "join 512 graphs of 10..30 nodes x 16 of PyTorch Geometric", data_objects, 512, targets=[over(5.0, "Batch.from_data_list")]
    ),
    "source-tokens": Case(
        "pad 64 lists of 16..512 tokens, attention mask", token_lists, 16, 512, 64, targets=[over(30.0, "DataCollatorWithPadding")]
    ),
    "source-plan": Case(
        "pack 10 000 lengths into rows of 4096 tokens", plans, 10_000, 4096,
        targets=[over(5.0, "NumPy, first fit decreasing")], layouts=LAYOUTS[:1],
    ),
    "source-plan-million": Case(
        "pack 1 000 000 lengths into rows of 4096 tokens", plans, 1_000_000, 4096, compared=False, layouts=LAYOUTS[:1]
    ),
    **small_cases(),
    **move_cases(),
}  # fmt: skip
