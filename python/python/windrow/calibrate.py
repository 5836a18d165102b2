"""Measures which large batches this machine writes faster around its caches, and keeps the answer for this user.

usage: python -m windrow calibrate [--seconds N] [--print]

Writes windrow/<processor>.json in the user's cache folder, or the file that WINDROW_CALIBRATION names, and every engine on this machine
goes by it from its next start on. --print only prints. A minute at most; the machine should do nothing else meanwhile.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

import windrow as wr
from windrow import _windrow
from windrow._system import cpu_name, num_cores

KINDS = ("copies", "padded", "computed")
# Far more than what caches of a few cores hold, as the batches are that this is for.
BATCH_BYTES = 96 << 20
# Outputs from which on stores go around the caches where that is faster.
LEAST_BYTES = 32 << 20
# The share of time that streaming has to save: two measurements of the same differ by as much.
GAIN = 0.03


def only(kind: str, bytes_: str) -> str:
    """A policy under which only outputs of one kind are written around the caches."""
    return ",".join(f"{name}={bytes_ if name == kind else 'never'}" for name in KINDS)


def batches() -> Dict[str, Callable[[Any], Any]]:
    """By kind, a call that makes a large batch of it with an engine."""
    rows, row = 512, BATCH_BYTES // 512
    source = memoryview(bytearray(os.urandom(1 << 20) * (BATCH_BYTES >> 20)))
    even = [source[i * row : (i + 1) * row] for i in range(rows)][::-2] * 2
    uneven = [sample[: len(sample) - 97 * (i % 64)] for i, sample in enumerate(even)]
    quarter = [sample[: row // 4] for sample in even]
    scale = wr.Transform(scale=1 / 255, mean=0.5, std=0.25)
    return {
        "copies": lambda engine: wr.stack(even, engine=engine),
        "padded": lambda engine: wr.pad(uneven, engine=engine),
        "computed": lambda engine: wr.stack(quarter, dtype="float32", transform=scale, engine=engine),
    }


def compare(kind: str, make: Callable[[Any], Any], seconds: float) -> Dict[str, Any]:
    """Milliseconds of a batch with and without streaming stores, one after the other."""
    engines = {"around": wr.Engine(streaming_stores=only(kind, "0")), "plain": wr.Engine(streaming_stores=only(kind, "never"))}
    times: Dict[str, List[float]] = {name: [] for name in engines}
    for engine in engines.values():
        make(engine)  # The first batch is in new memory.
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["plain"]) < 5:
        for name, engine in engines.items():
            begin = time.perf_counter()
            make(engine)
            times[name].append((time.perf_counter() - begin) * 1000)
    return {name: round(statistics.median(own), 3) for name, own in times.items()}


def measure(seconds: float) -> Dict[str, Any]:
    """The policy of this machine and what it is from."""
    each = {kind: compare(kind, make, seconds / len(KINDS)) for kind, make in batches().items()}
    wins = {kind: own["around"] < own["plain"] * (1 - GAIN) for kind, own in each.items()}
    stores = ",".join(f"{kind}={LEAST_BYTES if wins[kind] else 'never'}" for kind in KINDS)
    host = {"streaming_stores": stores, "batch_bytes": BATCH_BYTES, "milliseconds": each}
    return {"processor": cpu_name(), "cores": num_cores(), "windrow": wr.__version__, "host": host}


def main(argv: List[str]) -> int:
    """The command line."""
    arguments, seconds = list(argv), 12.0
    if "--seconds" in arguments[:-1]:
        at = arguments.index("--seconds")
        seconds = float(arguments.pop(at + 1))
        del arguments[at]
    if arguments not in ([], ["--print"]):
        print(__doc__)
        return 0 if arguments in (["-h"], ["--help"]) else 2
    found = measure(seconds)
    text = json.dumps(found, indent=1)
    print(text)
    path = _windrow._calibration_file()
    if arguments or path is None:
        return 0
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text + "\n", encoding="utf-8")
    print(f"written to {path}", file=sys.stderr)
    return 0
