"""Measures which large batches this machine writes faster around its caches, and from which size on page-locked pages go to each of its
GPUs by copies rather than by a kernel, and keeps the answers for this user.

Writes windrow/<processor>.json and windrow/<GPU and driver>.json in the user's cache folder, or all of it into the file that
WINDROW_CALIBRATION names, and every engine on this machine goes by it from its next start on. A minute at most, and less than one for
each GPU; the machine should do nothing else meanwhile. Exit status 1: a file cannot be written.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import windrow as wr
from windrow import _windrow
from windrow._measure import try_to_write
from windrow._system import cpu_name, num_cores

KINDS = ("copies", "padded", "computed")
# Far more than what caches of a few cores hold, as the batches are that this is for.
BATCH_BYTES = 96 << 20
# Outputs from which on stores go around the caches where that is faster.
LEAST_BYTES = 32 << 20
# The share of time that streaming has to save: two measurements of the same differ by as much.
GAIN = 0.03
# Page-locked pages: the bytes of one, how many there are, and the most bytes of them together.
PAGES = (512, 2048, 8 << 10, 32 << 10, 128 << 10)
COUNTS = (16, 128, 1024)
MOST_PAGE_BYTES = 48 << 20


def only(kind: str, bytes_: str) -> str:
    """A policy under which only outputs of one kind are written around the caches."""
    return ",".join(f"{name}={bytes_ if name == kind else 'never'}" for name in KINDS)


def batches() -> Dict[str, Callable[[Any], Any]]:
    """The call of each kind that makes a large batch of it with an engine."""
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
    """Median milliseconds of a batch with streaming stores (`around`) and without (`plain`), made in turn."""
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
    return {name: round(statistics.median(measured), 3) for name, measured in times.items()}


def measure(seconds: float) -> Dict[str, Any]:
    """The policy of this machine and what it is from."""
    each = {kind: compare(kind, make, seconds / len(KINDS)) for kind, make in batches().items()}
    wins = {kind: median_ms["around"] < median_ms["plain"] * (1 - GAIN) for kind, median_ms in each.items()}
    stores = ",".join(f"{kind}={LEAST_BYTES if wins[kind] else 'never'}" for kind in KINDS)
    host = {"streaming_stores": stores, "batch_bytes": BATCH_BYTES, "milliseconds": each}
    return {"processor": cpu_name(), "cores": num_cores(), "windrow": wr.__version__, "host": host}


def pages(ordinal: int, seconds: float) -> Dict[str, Any]:
    """Measures from which size in bytes on page-locked pages go to a device by its copy engine, by their number; with the times."""
    sizes = [(count, size) for count, size in itertools.product(COUNTS, PAGES) if count * size <= MOST_PAGE_BYTES]
    times: Dict[str, Dict[str, float]] = {}
    faster: Dict[int, List[int]] = {count: [] for count in COUNTS}
    known = _windrow._page_copies(ordinal)
    try:
        for count, size in sizes:
            median_us = _both_ways(ordinal, count, size, seconds / len(sizes))
            times[f"{count} x {size}"] = median_us
            if median_us["copies"] < median_us["kernel"] * (1 - GAIN):
                faster[count].append(size)
    finally:
        _windrow._set_page_copies(ordinal, known)
    least: Dict[int, Optional[int]] = {}
    for count in COUNTS:
        own_sizes = [size for of, size in sizes if of == count]
        # The sizes from which on all are faster.
        tail = list(itertools.takewhile(lambda size: size in faster[count], reversed(own_sizes)))
        least[count] = tail[-1] if tail else None
    text = ",".join(f"{count}={size or 'never'}" for count, size in least.items())
    return {"page_copies": text, "microseconds": times}


def _both_ways(ordinal: int, count: int, size: int, seconds: float) -> Dict[str, float]:
    """Median microseconds of `count` pages by a kernel and by copies, in turn. The device keeps the last way: the caller sets
    it back."""
    zeros = [bytes(size)] * (2 * count)
    order = random.Random(0).sample(range(2 * count), count)
    host = wr.SampleList(wr.stack(zeros, device="pinned"))
    device = wr.stack(zeros, device=f"cuda:{ordinal}")
    sources, places, done = host.take(order), wr.SampleList(device).take(order[::-1]), bytearray(size)
    ways = {"kernel": "1=never", "copies": "1=0"}
    times: Dict[str, List[float]] = {way: [] for way in ways}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["kernel"]) < 4:
        for way, text in ways.items():
            _windrow._set_page_copies(ordinal, text)
            begin = time.perf_counter()
            wr.copy_many(places, sources)
            wr.copy_many([done], [device[0]])  # Waits for what is on the stream.
            times[way].append((time.perf_counter() - begin) * 1e6)
    # The first call of each way has its memory to find.
    return {way: round(statistics.median(measured[1:]), 2) for way, measured in times.items()}


def gpus(seconds: float) -> Dict[str, Dict[str, Any]]:
    """The measured limits of each kind of GPU, by the name of its file; empty without CUDA."""
    if not wr.cuda_available():
        return {}
    major, minor = _windrow._cuda_build()["driver"]
    found: Dict[str, Dict[str, Any]] = {}
    for device in wr.devices():
        if device["device"].startswith("cuda:"):
            name = f"{device['name']} driver {major}.{minor}"
            if name not in found:
                found[name] = {"gpu": name, "windrow": wr.__version__, **pages(int(device["device"][5:]), seconds)}
    return found


def duration(text: str) -> float:
    """Seconds; ArgumentTypeError unless they are a number above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return seconds


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(prog="python -m windrow calibrate", description=__doc__)
    made.add_argument("--seconds", type=duration, default=12.0, metavar="N", help="for the host, and as many for each GPU (default: %(default)s)")
    made.add_argument("--print", action="store_true", help="write no file")
    return made


def problem_of(path: Optional[str]) -> Optional[str]:
    """Why a file cannot be written; None if it can. Makes its folder."""
    if path is None:
        return "there is no cache folder; let WINDROW_CALIBRATION name a file"
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        try_to_write(path)
    except OSError as error:
        return str(error)
    return None


def main(argv: List[str]) -> int:
    """The command line. 1: a file cannot be written; that of the host is tried before anything is measured."""
    options = parser().parse_args(argv)
    first = _windrow._calibration_file()
    if not options.print and (problem := problem_of(first)):
        print(f"cannot write: {problem}; --print measures and writes nothing", file=sys.stderr)
        return 1
    host, of_gpus = measure(options.seconds), gpus(options.seconds)
    files = {first: host}
    for name, found in of_gpus.items():
        path = _windrow._calibration_file(name)
        if path in files:
            # One file for all, of which an engine takes the first GPU's.
            host.setdefault("gpus", []).append(found)
        else:
            files[path] = found
    status = 0
    for path, found in files.items():
        text = json.dumps(found, indent=1)
        print(text)
        if options.print or path is None:
            continue
        try:
            Path(path).write_text(text + "\n", encoding="utf-8")
            print(f"written to {path}", file=sys.stderr)
        except OSError as error:
            print(f"cannot write: {error}", file=sys.stderr)
            status = 1
    return status
