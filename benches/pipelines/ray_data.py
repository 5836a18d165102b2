"""Local iteration over rows of varying length, padded in the collate: windrow beside Ray's own way.

Ray's default collate refuses such rows and sends the user to `collate_fn`; what its guide pads with is
`pad_sequence` in a `NumpyBatchCollateFn`, which is the contender here, once with lengths and a mask and
once without. All results are compared before anything is timed. The contenders take turns.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict

import numpy as np
import pyarrow as pa
import ray
import ray.data
import torch
import windrow as wr
import windrow.ray
from loader import line
from ray.data.collate_fn import NumpyBatchCollateFn
from windrow._measure import interleave

ROWS, LONGEST, BATCH_SIZE, ROUNDS = 20_000, 512, 256, 21


class PadSequence(NumpyBatchCollateFn):
    """Padding as Ray's users do it: torch's own function on the NumPy batch."""

    def __init__(self, mask: bool) -> None:
        self.mask = mask

    def __call__(self, batch: Dict[str, Any]) -> Dict[str, torch.Tensor]:
        rows = [torch.as_tensor(row) for row in batch["ids"]]
        tensors = {"ids": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)}
        tensors["y"] = torch.as_tensor(batch["y"])
        if self.mask:
            tensors["ids_lengths"] = torch.tensor([len(row) for row in rows])
            tensors["ids_mask"] = torch.arange(tensors["ids"].shape[1]) < tensors["ids_lengths"][:, None]
        return tensors


def contenders(mask: bool) -> Dict[str, Any]:
    """Collate functions by name, the first one Ray's."""
    spec = {"ids": wr.Pad(mask="real" if mask else None)}
    return {
        "pad_sequence": PadSequence(mask),
        "windrow, Arrow": windrow.ray.GatherCollate(spec),
        "windrow, NumPy": windrow.ray.NumpyGatherCollate(spec),
    }


def dataset(rows: int, longest: int, blocks: int = 8) -> Any:
    """Token ids of 1 to `longest` for each row, and a label, in the object store."""
    rng = np.random.default_rng(0)
    tables = []
    for first in range(0, rows, -(-rows // blocks)):
        count = min(-(-rows // blocks), rows - first)
        offsets = np.concatenate([[0], np.cumsum(rng.integers(1, longest + 1, count))]).astype(np.int32)
        values = rng.integers(1, 50_000, int(offsets[-1]), np.int32)
        ids = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
        tables.append(pa.table({"ids": ids, "y": np.arange(first, first + count)}))
    return ray.data.from_arrow_refs([ray.put(table) for table in tables])


def measure(say: Callable[[Dict[str, Any]], None]) -> None:
    """Rows padded by iteration and by the collate alone, with lengths and mask and without."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    logging.getLogger("ray.data").setLevel("ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        for mask in (False, True):
            compare(mask, say)
    finally:
        ray.shutdown()


def compare(mask: bool, say: Callable[[Dict[str, Any]], None]) -> None:
    data = dataset(ROWS, LONGEST)
    functions = contenders(mask)
    formats = {name: "numpy" if "Arrow" not in name else "pyarrow" for name in functions}
    held = {kind: list(data.iter_batches(batch_size=BATCH_SIZE, batch_format=kind)) for kind in set(formats.values())}

    def iterate(collate: Any) -> int:
        batches = data.iter_torch_batches(batch_size=BATCH_SIZE, collate_fn=collate)
        return sum(len(batch["y"]) for batch in batches)

    def collate_all(name: str) -> int:
        return sum(len(functions[name](batch)["y"]) for batch in held[formats[name]])

    wanted = _by_label(functions["pad_sequence"](batch) for batch in held["numpy"])
    for name, collate in functions.items():
        _check(name, _by_label(collate(batch) for batch in held[formats[name]]), wanted)
        assert iterate(collate) == ROWS
    text = f"rows of 1 to {LONGEST} tokens padded{' with lengths and mask' if mask else ''}, {BATCH_SIZE} a batch"
    iterations = {name: lambda collate=collate: iterate(collate) for name, collate in functions.items()}
    say(line(f"Ray Data, iteration, {text}", ROWS, interleave(iterations, 0.0, (ROUNDS, ROUNDS))))
    alone = {name: lambda name=name: collate_all(name) for name in functions}
    say(line(f"Ray Data, the collate alone, {text}", ROWS, interleave(alone, 0.0, (ROUNDS, ROUNDS))))


def _by_label(batches: Any) -> Dict[int, Dict[str, torch.Tensor]]:
    return {int(batch["y"][0]): batch for batch in batches}


def _check(name: str, got: Any, wanted: Any) -> None:
    for label, want in wanted.items():
        for key, tensor in want.items():
            assert torch.equal(got[label][key], tensor), f"{name}: {key} of the batch from row {label} on differs"
