#!/usr/bin/env python3
"""windrow beside what a user of PyTorch writes on a GPU: same process, same stream, same samples.

Four clocks for each contender, medians with the 10th and 90th percentile:

  device  between two events around a call, all of which is enqueued when the device comes to the first
  graph   the same around the replay of a CUDA graph of the call; only of calls that copy nothing from the host
  host    until the call returns, the device idle before it
  wall    until the device is done, the device idle before it

Before a cold run the second cache is swept; before a warm one the same call ran. Every contender is verified before it is timed
and after, in its graph too, bit for bit where it does not round more often than is defined. Contenders take turns. A plain copy of as many bytes is one of them.

usage: bench_torch.py [--only W1,size] [--seconds 200] [--repeats 25] [--no-compile] [--json FILE]
       bench_torch.py --dry   on the host, few samples, nothing is timed: shows that all contenders are right

Needs torch and the wheel; libpeers.so ($WINDROW_BENCH_PEERS, or ../bench/), CuPy and Triton if they are there.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import json
import os
import subprocess
import sys
import time
from typing import Any, Callable

import torch

import windrow as wr

# The folder of a checkout is packed as it is.
sys.dont_write_bytecode = True
from torch_batches import detection, fields, graphs, images, padded, ragged
from torch_measure import CaptureEnded, measure
from torch_moves import COUNTS, SIZES, count, size, stacked, uploads
from torch_samples import Bench
from torch_workload import Workload
from windrow._measure import machine
from windrow.bench.clocks import DeviceClock, l2_bytes

Make = Callable[[Bench], Workload]


def catalogue() -> dict[str, Make]:
    """The workloads, the most telling first: what is left out for want of time is the tail."""
    sizes: dict[str, Make] = {}
    for number in sorted(SIZES, key=lambda n: (n not in (64, 4096), n)):
        for layout in ("scattered", "contiguous"):
            sizes[f"size {number}, {layout}"] = lambda bench, number=number, layout=layout: size(bench, number, layout)
    counts: dict[str, Make] = {f"count {number}": lambda bench, number=number: count(bench, number) for number in COUNTS}
    return {
        "W1": lambda bench: images(bench, "W1", 256, 224),
        **{name: sizes.pop(name) for name in list(sizes)[:4]},
        **{name: counts.pop(name) for name in ("count 64", "count 4096")},
        "W2": lambda bench: padded(bench, "W2", 4096, "int64"),
        "W3": lambda bench: stacked(bench, "W3", 100_000, 128, "float32", "scattered"),
        **sizes,
        "W6": lambda bench: stacked(bench, "W6", 4096, 32_768, "uint8", "scattered"),
        "W5": lambda bench: fields(bench, "W5", 4096),
        "W8": lambda bench: uploads(bench, "W8", 4096, 4096),
        **counts,
        "W4b": lambda bench: ragged(bench, "W4b", 512),
        "W7": lambda bench: detection(bench, "W7", 32),
        "W9": lambda bench: graphs(bench, "W9", 256),
        "W2b": lambda bench: padded(bench, "W2b", 4096, "int32"),
        "W8b": lambda bench: uploads(bench, "W8b", 1024, 32 << 10),
        "W10a": lambda bench: stacked(bench, "W10a", 100_000, 77, "uint8", "at any byte"),
        "W10b": lambda bench: images(bench, "W10b", 256, 225, "at any byte"),
    }


def chosen(only: str) -> list[str]:
    """The names that begin with one of those given; W1 is not meant by W10."""
    wanted, found = [name for name in only.split(",") if name], []
    for name in catalogue():
        if not wanted or any(name.startswith(begin) and not (begin[-1].isdigit() and name[len(begin) :][:1].isdigit()) for begin in wanted):
            found.append(name)
    if not found:
        raise SystemExit(f"no workload begins with {only}; there are {', '.join(catalogue())}")
    return found


def smi(query: str) -> str:
    """The answer of nvidia-smi, within 20 seconds."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "-i", "0"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "not told"


def about(bench: Bench) -> tuple[dict[str, Any], dict[str, str]]:
    """The machine, and the versions of what takes part."""
    known = machine("torch", "triton", "cupy", "torchvision")
    versions = {name: known[name] for name in ("python", "numpy", "torch", "triton", "cupy", "torchvision", "windrow") if known.get(name)}
    versions["cuda of torch"] = str(torch.version.cuda)
    found: dict[str, Any] = {"cpu": known["cpu"], "cores": known["cores"], "date": datetime.date.today().isoformat(),
                             "commit": os.environ.get("WINDROW_COMMIT", "not told")}  # fmt: skip
    if not bench.dry:
        properties = torch.cuda.get_device_properties(bench.device)
        found |= {"gpu": properties.name, "multiprocessors": properties.multi_processor_count, "L2 bytes": l2_bytes(bench.device)}
        found |= {"driver": smi("driver_version"), "power limit": smi("power.limit"), "clocks at the start (SM, memory)": smi("clocks.sm,clocks.mem")}
    return found, versions


def show(workload: Workload, rows: list[dict[str, Any]]) -> None:
    """The table of one workload."""
    print(f"\n{workload.name}, {workload.layout}: {workload.title}; {workload.num_bytes / 1e6:.1f} MB moved")
    columns = [("device", "cold"), ("device", "warm"), ("graph", "cold"), ("host", "cold"), ("wall", "cold")]
    print(f"{'median us':40}" + "".join(f"{clock + ' ' + cache:>13}" for clock, cache in columns) + "  GB/s  of copy  late")
    by_name: dict[str, dict[Any, Any]] = {}
    for row in rows:
        by_name.setdefault(row["contender"], {})[row["clock"], row["cache"]] = row
    for name, found in by_name.items():
        problem = next((row["problem"] for row in found.values() if not row["right"]), "")
        cells = "".join(f"{found[key]['median_us']:13.1f}" if key in found else f"{'-':>13}" for key in columns)
        device = found.get(("device", "cold"), {})
        speed = f"{device['gbps']:6.0f}{device['share_of_copy'] or 0:9.2f}{device['late']:6}" if device else ""
        print(f"{name:40}{cells}{speed}" + (f"  NOT RIGHT: {problem}" if problem else ""))
    for name, reason in workload.absent.items():
        print(f"{name:40}  left out: {reason}")
    sys.stdout.flush()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="A,B", help="workloads that begin with A or B")
    parser.add_argument("--seconds", type=float, default=600.0, metavar="N", help="for all; what is likely to end later is not begun")
    parser.add_argument("--repeats", type=int, default=25, metavar="N")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile, which takes 20 seconds")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--dry", action="store_true")
    return parser.parse_args()


def main() -> int:
    options, begin = parsed(), time.perf_counter()
    if not options.dry and not torch.cuda.is_available():
        print("SKIP: torch finds no GPU (--dry runs on the host)")
        return 1
    bench = Bench(options.dry, not (options.dry or options.no_compile))
    # Each collection would go through the million objects that torch brings.
    gc.freeze()
    with contextlib.ExitStack() as stack:
        clock = None
        if not bench.dry:
            # cuMemcpyBatchAsync takes no default stream.
            bench.stream = torch.cuda.Stream(bench.device)
            stack.enter_context(torch.cuda.stream(bench.stream))
            clock = DeviceClock(bench.device)
        return run(options, bench, clock, begin)


def run(options: argparse.Namespace, bench: Bench, clock: DeviceClock | None, begin: float) -> int:
    """All workloads; 1 if windrow gave a wrong batch or failed."""
    names = chosen(options.only)
    about_machine, versions = about(bench)
    report: dict[str, Any] = {"bench": "torch", "dry": bench.dry, "machine": about_machine, "versions": versions, "rows": [], "absent": [], "failed": [], "left": []}
    print(", ".join(f"{key} {value}" for key, value in (about_machine | versions).items()), flush=True)
    for number, name in enumerate(names):
        spent = time.perf_counter() - begin
        # Work that is likely to end too late is not begun.
        if spent + spent / max(number, 1) > options.seconds:
            report["left"] = names[number:]
            break
        share = (options.seconds - spent) / (len(names) - number)
        try:
            workload = catalogue()[name](bench)
            made = measure(bench, workload, clock, 1 if bench.dry else options.repeats, time.perf_counter() + max(share, 2.0))
            rows = made.rows()
            show(workload, rows)
            report["rows"] += rows
            report["absent"] += [{"workload": workload.name, "layout": workload.layout, "contender": key, "reason": text} for key, text in workload.absent.items()]
            report["failed"] += [f"{name}: {key}: {text}" for key, text in made.problems.items() if key.startswith("windrow")]
        except CaptureEnded as error:
            report["failed"].append(str(error))
            report["left"] = names[number + 1 :]
            break
        except Exception as error:  # a workload that cannot be made does not cost the others their time
            report["failed"].append(f"{name}: {type(error).__name__}: {error}")
        finally:
            workload = made = None
            report["seconds"] = round(time.perf_counter() - begin, 1)
            save(options.json, report)
        gc.collect()
        if not bench.dry:
            torch.cuda.empty_cache()
            wr.empty_cache()
    if not bench.dry:
        about_machine["clocks at the end (SM, memory)"] = smi("clocks.sm,clocks.mem")
    save(options.json, report)
    if report["left"]:
        print("\nNo time was left for:", ", ".join(report["left"]))
    for text in report["failed"]:
        print(f"FAILED {text}")
    wrong = sorted({row["contender"] for row in report["rows"] if not row["right"]})
    print(f"\n{len({row['workload'] for row in report['rows']})} workloads, wrong or failed: {', '.join(wrong) or 'none'}; {report['seconds']:.0f} s")
    return int(bool(report["failed"]))


def save(path: str | None, report: dict[str, Any]) -> None:
    """Writes what there is so far, whole or not at all."""
    if path:
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(report, file)
        os.replace(f"{path}.new", path)


if __name__ == "__main__":
    sys.exit(main())
