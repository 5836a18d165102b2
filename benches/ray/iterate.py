"""Local iteration over rows of varying length, padded in the collate: windrow beside Ray's own way.

    python benches/ray/iterate.py [--rows N] [--json FILE]

Ray's default collate refuses such rows and sends the user to `collate_fn`; what its guide pads with is
`pad_sequence` in a `NumpyBatchCollateFn`, which is the contender here, once with lengths and a mask and
once without. All results are compared before anything is timed. The contenders take turns.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any, Callable, Dict, List

import numpy as np
import pyarrow as pa
import ray
import ray.data
import torch
import windrow as wr
import windrow.ray
from ray.data.collate_fn import NumpyBatchCollateFn


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
        "ray": PadSequence(mask),
        "windrow arrow": windrow.ray.GatherCollate(spec),
        "windrow numpy": windrow.ray.NumpyGatherCollate(spec),
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


def best_of(runs: Dict[str, Callable[[], None]], repeats: int) -> Dict[str, float]:
    """Seconds of the best run of each; they take turns, so that a busy machine is unfair to nobody."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def measure(rows: int = 20_000, longest: int = 512, batch_size: int = 256, repeats: int = 5) -> List[Dict[str, Any]]:
    """Rows per second of each contender, by iteration and by the collate alone.

    Needs a running Ray, as after ``ray.init()``.

    Returns:
        list of dict: ``mask``, ``part`` ("iteration" or "collate"), ``contender``, ``rows_per_second``,
        ``speedup`` over Ray's way.
    """
    data = dataset(rows, longest)
    formats = {name: "numpy" if "arrow" not in name else "pyarrow" for name in contenders(False)}
    held = {
        kind: list(data.iter_batches(batch_size=batch_size, batch_format=kind)) for kind in set(formats.values())
    }
    results = []
    for mask in (False, True):
        functions = contenders(mask)

        def iterate(collate: Any) -> int:
            batches = data.iter_torch_batches(batch_size=batch_size, collate_fn=collate)
            return sum(len(batch["y"]) for batch in batches)

        def collate_all(name: str) -> int:
            return sum(len(functions[name](batch)["y"]) for batch in held[formats[name]])

        wanted = _by_label(functions["ray"](batch) for batch in held["numpy"])
        for name, collate in functions.items():
            _check(name, _by_label(collate(batch) for batch in held[formats[name]]), wanted)
            assert iterate(collate) == rows
        for part, runs in {
            "iteration": {name: lambda collate=collate: iterate(collate) for name, collate in functions.items()},
            "collate": {name: lambda name=name: collate_all(name) for name in functions},
        }.items():
            best = best_of(runs, repeats)
            results += [
                {
                    "mask": mask,
                    "part": part,
                    "contender": name,
                    "rows_per_second": rows / seconds,
                    "speedup": best["ray"] / seconds,
                }
                for name, seconds in best.items()
            ]
    return results


def _by_label(batches: Any) -> Dict[int, Dict[str, torch.Tensor]]:
    return {int(batch["y"][0]): batch for batch in batches}


def _check(name: str, got: Any, wanted: Any) -> None:
    for label, want in wanted.items():
        for key, tensor in want.items():
            assert torch.equal(got[label][key], tensor), f"{name}: {key} of the batch from row {label} on differs"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--json", help="write the results to this file too")
    arguments = parser.parse_args()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    results = measure(arguments.rows, arguments.longest, arguments.batch_size)
    ray.shutdown()
    for result in results:
        print(
            f"{result['part']:<10} {'mask' if result['mask'] else 'no mask':<8} {result['contender']:<14} "
            f"{result['rows_per_second']:>12,.0f} rows/s  {result['speedup']:5.2f}x"
        )
    if arguments.json:
        versions = {"python": sys.version.split()[0], "ray": ray.__version__, "torch": torch.__version__}
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"versions": versions, "arguments": vars(arguments), "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
