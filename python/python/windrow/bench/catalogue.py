"""The workloads by name. W1 to W10 have the numbers of the project's plan; H and L are what only a host is asked."""

from __future__ import annotations

from typing import Dict, List

from windrow.bench.casts import float8_rows, quantised_rows
from windrow.bench.casts import images as float8_images
from windrow.bench.lengths import padded, ragged
from windrow.bench.moves import random_batch, stack, upload
from windrow.bench.pairs import cases as move_cases
from windrow.bench.pixels import frames, normalise, padded_images
from windrow.bench.results import MEMCPY
from windrow.bench.samples import LAYOUTS
from windrow.bench.small import cases as small_cases
from windrow.bench.sources import data_objects, dataset_rows, list_column, plans, tensordict_batch, token_lists
from windrow.bench.trees import ENVIRONMENT, JAX_PEER, fields, graphs, leaves
from windrow.bench.workload import Definition, Target

STACKS = ("torch.stack", "np.stack", "DALI as_batch")
OUTS = ("torch.stack(out=)", "np.stack(out=)", "DALI as_batch")
PCM = 1 / 32768
FLOOR = Target("windrow", (MEMCPY,), 0.7)
EAGER = "torch.stack, amax, divide, to"


def images(targets: List[Target], dtype: str) -> Definition:
    return Definition(f"normalise 256 x (224, 224, 3) uint8 to {dtype} CHW", normalise((224, 224, 3), 256, dtype, targets))


def large(kib: int) -> Definition:
    targets = [Target("windrow, out=", (MEMCPY,), 0.95), Target("windrow", (MEMCPY,), 0.95)]
    return Definition(f"stack {65536 // kib} x {kib} KiB", stack((kib << 10,), 65536 // kib, "uint8", targets))


def to_float8(rows: str, length: int, count: int, source: str, dtype: str, goal: float) -> Definition:
    targets = [Target("windrow, out=", ("copy_ of each row",), goal)]
    return Definition(f"{rows} {source} to {dtype}", float8_rows(length, count, source, dtype, targets))


WORKLOADS: Dict[str, Definition] = {
    "W1": images([Target("windrow", ("torch eager",), 4.0), FLOOR], "float16"),
    "W1-f32": images([Target("windrow", ("torch eager",), 4.0), FLOOR], "float32"),
    "W2": Definition(
        "pad 4096 int32 rows of 16..2048 to int64, mask",
        padded(16, 2048, 4096, "int32", "int64", [Target("windrow", ("pad_sequence, cast, mask",), 2.0), FLOOR]),
    ),
    "W2b": Definition(
        "pad 4096 int32 rows of 16..2048, mask", padded(16, 2048, 4096, "int32", "int32", [FLOOR])
    ),
    "W3": Definition(
        "stack 100 000 x 128 float32", stack((128,), 100_000, "float32", [Target("windrow", ("torch.stack", "np.stack"), 3.0)])
    ),
    "W4a": Definition(
        "ragged 512 float32 clips of 1..15 s",
        ragged(16_000, 240_000, 512, "float32", "float32", [Target("windrow", ("torch.cat, offsets",), 1.5)]),
    ),
    "W4b": Definition(
        "ragged 512 int16 clips of 1..15 s to float32", ragged(16_000, 240_000, 512, "int16", "float32", [], PCM)
    ),
    "W4c": Definition(
        "pad 512 int16 clips of 1..15 s to float32, mask", padded(16_000, 240_000, 512, "int16", "float32", [], PCM)
    ),
    "W5": Definition(
        "collate 4096 dicts of 8 fields, 249 bytes",
        fields(ENVIRONMENT, 4096, [Target("windrow", ("default_collate",), 6.0), Target("windrow.jax.collate", (JAX_PEER,), 1.0)]),
    ),
    "W5b": Definition("stack 256 x (4, 84, 84) uint8 to float16", frames((4, 84, 84), 256, "float16")),
    "W6": Definition(
        "stack 4096 pages of 32 KiB", stack((32768,), 4096, "uint8", [Target("windrow, out=", (MEMCPY,), 0.95)])
    ),
    "W7": Definition("pad 32 images up to (800, 1333, 3) uint8 to float16 CHW, mask", padded_images(32, (800, 1333))),
    "W8": Definition(
        "upload 4096 x 4 KiB from page-locked memory",
        upload((4096,), 4096, "uint8"),
        no_host="page-locked memory to a device: needs a GPU",
    ),
    "W9": Definition("collate 256 graphs of 200..400 nodes x 64, edges counted on", graphs(256)),
    "W10a": Definition("stack 100 000 x 77 uint8, at any byte", stack((77,), 100_000, "uint8", [], odd=True)),
    "W10b": Definition(
        "normalise 256 x (225, 225, 3) uint8 to float16 CHW, at any byte", normalise((225, 225, 3), 256, "float16", [], odd=True)
    ),
    "H1": Definition(
        "stack 256 x (224, 224, 3) uint8",
        stack(
            (224, 224, 3),
            256,
            "uint8",
            [Target("windrow, out=", OUTS, 1.0), Target("windrow", STACKS, 1.0), Target("windrow, out=", (MEMCPY,), 0.95)],
        ),
    ),
    "H3": Definition("stack 4096 x 128 float32", stack((128,), 4096, "float32", [Target("windrow", STACKS[:2], 3.0)])),
    "tree8": Definition(
        "collate 4096 dicts of 8 x 32 float32", fields(leaves(8), 4096, [Target("windrow", ("default_collate",), 6.0)])
    ),
    "small": Definition(
        "stack 8 x 64 float32", stack((64,), 8, "float32", [Target("windrow", ("torch.stack",), 1.0)], repeat=100)
    ),
    "index": Definition("4096 of 1 000 000 x 128 float32 by indices", random_batch(1_000_000, 4096)),
    "audio": Definition(
        "ragged 512 float32 clips of 0.5..4 s",
        ragged(8_000, 64_000, 512, "float32", "float32", [Target("windrow", ("torch.cat, offsets",), 1.5)]),
    ),
    "Q-f32": to_float8("gather 4096 rows of 512", 512, 4096, "float32", "float8_e4m3fn", 5.0),
    "Q-bf16": to_float8("gather 4096 rows of 512", 512, 4096, "bfloat16", "float8_e4m3fn", 5.0),
    "Q-back": Definition(
        "gather 4096 rows of 512 float8_e4m3fn to bfloat16", float8_rows(512, 4096, "float8_e4m3fn", "bfloat16", [FLOOR])
    ),
    "Q-large": to_float8("stack 16 x 4 MiB", 1 << 20, 16, "float32", "float8_e5m2", 1.4),
    "Q-large-e4m3fn": to_float8("stack 16 x 4 MiB", 1 << 20, 16, "float32", "float8_e4m3fn", 1.4),
    "Q-large-bf16": to_float8("stack 16 x 2 MiB", 1 << 20, 16, "bfloat16", "float8_e4m3fn", 3.0),
    "Q-large-bf16-e5m2": to_float8("stack 16 x 2 MiB", 1 << 20, 16, "bfloat16", "float8_e5m2", 3.0),
    "Q-row": Definition(
        "quantise 4096 tokens of 4096 bfloat16 to float8_e4m3fn, a scale for each",
        quantised_rows(4096, 4096, "bfloat16", None, [Target("windrow", (EAGER,), 4.0)]),
    ),
    "Q-128": Definition(
        "quantise 4096 tokens of 4096 bfloat16 to float8_e4m3fn, a scale for each 128",
        quantised_rows(4096, 4096, "bfloat16", 128, [Target("windrow", (EAGER,), 4.0)]),
    ),
    "Q-pages": Definition(
        "gather 1024 pages of 128 x 64 float32 to float8_e4m3fn, a scale for each row",
        quantised_rows(8192, 1024, "float32", 64, [Target("windrow", (EAGER,), 4.0)]),
    ),
    "Q-images": Definition(
        "stack 256 x (224, 224, 3) uint8 to float8_e4m3fn in 0 to 1",
        float8_images(256, [Target("windrow", ("torch.stack, float, mul, to",), 4.0)]),
    ),
    **{f"L{kib}": large(kib) for kib in (64, 256, 1024)},
    "source-arrow": Definition(
        "pad an Arrow list column of 4096 int32 rows of 16..2048 to int64, mask",
        list_column("pyarrow", 16, 2048, 4096, [Target("windrow", (MEMCPY,), 0.6)]),
    ),
    "source-polars": Definition(
        "pad a polars list column of 4096 int32 rows of 16..2048 to int64, mask",
        list_column("polars", 16, 2048, 4096, [Target("windrow", (MEMCPY,), 0.6)]),
    ),
    "source-datasets": Definition(
        "pad 256 rows of 16..512 tokens of a Hugging Face dataset, mask",
        dataset_rows(16, 512, 256, [Target("windrow", ('with_format("torch"), pad_sequence, mask',), 15.0)]),
    ),
    "source-tensordict": Definition(
        "stack 256 TensorDicts of 30 x 8 float32", tensordict_batch(30, 256, [Target("windrow", ("torch.stack",), 10.0)])
    ),
    "source-pyg": Definition(
        "join 512 graphs of 10..30 nodes x 16 of PyTorch Geometric", data_objects(512, [Target("windrow", ("Batch.from_data_list",), 5.0)])
    ),
    "source-tokens": Definition(
        "pad 64 lists of 16..512 tokens, attention mask",
        token_lists(16, 512, 64, [Target("windrow", ("DataCollatorWithPadding",), 30.0)]),
    ),
    "source-plan": Definition(
        "pack 10 000 lengths into rows of 4096 tokens",
        plans(10_000, 4096, [Target("windrow", ("NumPy, first fit decreasing",), 5.0)]),
        layouts=LAYOUTS[:1],
    ),
    "source-plan-million": Definition(
        "pack 1 000 000 lengths into rows of 4096 tokens", plans(1_000_000, 4096, [], compared=False), layouts=LAYOUTS[:1]
    ),
    **small_cases(),
    **move_cases(),
}
