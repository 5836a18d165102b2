"""`python -m windrow bench`: windrow beside every other library here that makes batches.

Outputs are compared with the expected values first; a contender that gives others is reported as wrong and not timed. Samples
hold random data, are scattered, then all in one piece, and rotate so that none is in a cache; contenders take turns;
medians and quartiles are reported, and what share they reach of a plain copy of as many bytes.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import math
import os
import re
import sys
from dataclasses import replace
from typing import Any, Dict, List, Tuple

import windrow as wr
from windrow._measure import format_table, machine, try_to_write
from windrow._system import load, num_cores
from windrow.bench import page, results
from windrow.bench.catalogue import WORKLOADS
from windrow.bench.measure import Budget, Pace, judge, measure
from windrow.bench.moves import sized
from windrow.bench.progress import Progress
from windrow.bench.samples import LAYOUTS, Setting, torch
from windrow.bench.sweeps import SWEEPS, Point, Sweep
from windrow.bench.workload import LIBRARIES, Case, Skip, Workload

Step = Tuple[str, Case, Setting]


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(prog="python -m windrow bench", description=__doc__)
    made.add_argument("--list", action="store_true", help="say which workloads, sweeps and libraries there are")
    made.add_argument("--only", action="append", metavar="NAME", default=[], help="workloads that begin with NAME: W4, H1; again for more")
    made.add_argument("--size", action="append", metavar="COUNTxBYTES", type=size, default=[], help="stack of samples of that size instead; again for more")
    made.add_argument("--scale", type=factor, default=1.0, metavar="F", help="times the number of samples")
    made.add_argument("--layout", choices=LAYOUTS, help="one layout of samples only")
    made.add_argument("--sweep", nargs="?", const="all", choices=["all", "none", *(sweep.name for sweep in SWEEPS)], help="sweeps to run: all where nothing is selected")
    made.add_argument("--threads", type=thread_count, metavar="N", help="threads of windrow, torch and the plain copy")
    made.add_argument("--device", type=device, default="cpu", help="device of samples and batches: cpu or cuda")
    made.add_argument("--warm", action="store_true", help="one list of samples again and again: in the caches, as far as it fits")
    made.add_argument("--seconds", type=float, metavar="N", help="limit for the whole run, shared by all workloads; compiled contenders are left out, and what has no time left is named. Without it each workload is timed for 3 seconds, and all take about half an hour")
    made.add_argument("--quick", action="store_true", help="few samples, few rounds: shows that it works, not how fast")
    made.add_argument("--markdown", action="store_true", help="tables in Markdown")
    made.add_argument("--json", metavar="FILE", help="also write everything as JSON")
    made.add_argument("--html", metavar="FILE", help="also write a page with tables and plots")
    made.add_argument("--commit", help="what is measured, as the report names it")
    made.add_argument("--read", metavar="FILE", help="measure nothing: take the JSON of an earlier run")
    return made


def size(value: str) -> Tuple[int, int]:
    """The count and the bytes of a sample, of COUNTxBYTES; ArgumentTypeError unless both are above 0."""
    count, _, sample_bytes = value.partition("x")
    if not (count.isdigit() and sample_bytes.isdigit() and int(count) and int(sample_bytes)):
        raise argparse.ArgumentTypeError("two numbers above 0, such as 4096x512")
    return int(count), int(sample_bytes)


def factor(value: str) -> float:
    """A factor; ArgumentTypeError unless it is a number above 0."""
    if not 0 < float(value) < math.inf:
        raise argparse.ArgumentTypeError("a number above 0")
    return float(value)


def thread_count(value: str) -> int:
    """A number of threads; ArgumentTypeError unless it is from 1 to 1024."""
    if not 1 <= int(value) <= 1024:
        raise argparse.ArgumentTypeError("a number from 1 to 1024")
    return int(value)


def device(value: str) -> str:
    """A device; ArgumentTypeError for what is none."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", value):
        raise argparse.ArgumentTypeError(f"cpu, cuda or cuda:N, got {value!r}")
    return value


def listing() -> str:
    """Workloads, sweeps, and which libraries are there."""
    lines = [f"{name:18}{case.title}" for name, case in WORKLOADS.items()]
    lines += ["", *(f"--sweep {sweep.name:16}{sweep.title}" for sweep in SWEEPS), ""]
    return "\n".join(lines + [f"{library:12}{load(module)[1] or 'is here'}" for library, module in LIBRARIES.items()])


def begins(name: str, only: str) -> bool:
    """Whether `only` means a workload: W4 means W4a, and W1 does not mean W10a."""
    rest = name[len(only) :]
    return name.startswith(only) and not (only[-1:].isdigit() and rest[:1].isdigit())


def selected(options: argparse.Namespace) -> Dict[str, Case]:
    """The workloads that are asked for, by name; SystemExit if `--only` means none."""
    if options.size:
        return {f"{count}x{sample_bytes}": sized(count, sample_bytes) for count, sample_bytes in options.size}
    if not options.only:
        return WORKLOADS
    found = {name: made for name, made in WORKLOADS.items() if any(begins(name, only) for only in options.only)}
    unknown = [only for only in options.only if not any(begins(name, only) for name in WORKLOADS)]
    if unknown:
        raise SystemExit(f"no workload begins with {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    return found


def counted(names: List[str], points: List[str]) -> str:
    """How many cases and points of sweeps were left out, the cases by the letters that their workloads begin with."""
    groups = collections.Counter("".join(itertools.takewhile(str.isalpha, name)) or "sizes" for name in names)
    parts = [f"{len(names)} cases ({', '.join(f'{count} of {group}' for group, count in groups.items())})"] if names else []
    return "; ".join(parts + points)


def setting(options: argparse.Namespace) -> Setting:
    """How all workloads are run; raises Skip where the device is not there. Sets torch's number of threads, if there is one."""
    if options.device != "cpu" and not (torch and torch.cuda.is_available() and wr.cuda_available()):
        found = "no driver" if torch and torch.cuda.is_available() else "torch finds no CUDA device"
        reason = found if torch else "torch is not installed"
        raise Skip(f"device {options.device}: {reason}")
    if options.threads and torch:
        torch.set_num_threads(options.threads)
    engine = wr.Engine(threads=options.threads) if options.threads else None
    scale = options.scale / 16 if options.quick else options.scale
    compiles = not options.quick and options.seconds is None
    return Setting(LAYOUTS[0], options.device, options.warm, scale, options.quick, compiles, options.threads, engine)


def entry(workload: Workload, pace: Pace, progress: Progress) -> Dict[str, Any]:
    """Measures a workload: what a report says of it."""
    found, (bytes_read, bytes_written) = measure(workload, pace, progress.tick)
    # In a comparison with other libraries the targets are those of scattered samples; the other layout is the control.
    is_control = workload.setting.layout != LAYOUTS[0]
    targets = [target for target in workload.targets if target.peers == (results.MEMCPY,) or not is_control]
    return {
        "name": workload.name,
        "title": workload.title,
        "layout": workload.setting.layout,
        "device": workload.setting.device,
        "bytes_read": bytes_read,
        "bytes_written": bytes_written,
        "bytes": bytes_read + bytes_written,
        "results": [vars(result) for result in found],
        "targets": [judge(target, found) for target in targets],
    }


def show(found: Dict[str, Any], as_markdown: bool) -> None:
    """Prints the table of one workload, its targets, and the contenders that were not timed."""
    print(f"\n{'### ' if as_markdown else ''}{results.heading(found)}\n")
    print(format_table(results.header(found), results.rows(found), as_markdown))
    print("\n" + "\n".join(f"- {note}" if as_markdown else note for note in results.notes(found)), flush=True)


def run_sweep(sweep: Sweep, points: List[Point], budget: Budget, progress: Progress) -> Dict[str, Any]:
    """Measures the points of a sweep, as many as the budget has time for. Sets torch's number of threads, and sets it back."""
    found = []
    threads = torch.get_num_threads() if torch else 0
    for point in points:
        pace = budget.point_pace()
        if pace is None:
            break
        progress.begin(f"{sweep.title}: {point.x}, {point.setting.layout}")
        if torch:
            torch.set_num_threads(point.setting.threads or threads)
        found.append({"x": point.x, "samples": point.num_samples, **entry(point(), pace, progress)})
        progress.end()
    if torch:
        torch.set_num_threads(threads)
    return {"name": sweep.name, "title": sweep.title, "axis": sweep.axis, "unit": sweep.unit, "points": found}


def run(options: argparse.Namespace) -> results.Report:
    """Measures what is asked for, and prints each table as it is found."""
    base = setting(options)
    info = machine("torch", "nvidia.dali", "jax", "cupy")
    if torch and not base.on_host:
        info["device"] = torch.cuda.get_device_name(base.device)
    info.update({"commit": options.commit} if options.commit else {})
    print(", ".join(f"{key} {value}" for key, value in info.items()))
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if busy > num_cores() / 2:
        print(f"WARNING: the machine is busy (load {busy:.1f} on {num_cores()} cores): figures are worse than they should be, and vary")
    asked = options.sweep or ("none" if options.only or options.size else "all")
    sweeps = [(sweep, sweep.points(base)) for sweep in SWEEPS if asked in ("all", sweep.name)] if base.on_host else []
    places = [options.layout] if options.layout else list(LAYOUTS)
    steps: List[Step] = [(name, made, replace(base, layout=place)) for name, made in selected(options).items() for place in places if place in made.layouts]
    if options.seconds is not None:
        # First the comparison of each workload, then the control.
        steps.sort(key=lambda step: LAYOUTS.index(step[2].layout))
    num_steps = len(steps) + sum(len(points) for _, points in sweeps)
    progress, budget = Progress(num_steps), Budget(options.seconds, num_steps, options.quick)
    workloads, skipped, cases_left, points_left = [], [], [], []
    for name, made, how in steps:
        pace = budget.workload_pace()
        if pace is None:
            cases_left.append(f"{name}, {how.layout}")
            continue
        progress.begin(f"{name}, {how.layout}: {made.title}")
        try:
            workloads.append(entry(made(name, how), pace, progress))
            progress.end()
            show(workloads[-1], options.markdown)
        except Skip as reason:
            progress.end()
            skipped.append(f"{name}, {how.layout}: {made.title}: {reason}")
            print(f"\nSKIP {skipped[-1]}", flush=True)
    swept = []
    for sweep, points in sweeps:
        found = run_sweep(sweep, points, budget, progress)
        if len(found["points"]) < len(points):
            points_left.append(f"{len(points) - len(found['points'])} points of the sweep {sweep.name}")
        if found["points"]:
            swept.append(found)
            print(f"\n{sweep.title}, ns per sample\n\n{results.sweep_table(found)}", flush=True)
    if cases_left or points_left:
        spent = f"the {options.seconds:g} s of --seconds are spent"
        skipped.append(f"{spent}: {'; '.join(cases_left + points_left)}")
        print(f"\nSKIP {spent}: {counted(cases_left, points_left)} not measured; --json or --html names each", flush=True)
    chosen = {key: value for key, value in vars(options).items() if value not in (None, False, []) and key not in ("json", "html", "commit")}
    return {"schema": results.SCHEMA, "machine": info, "options": chosen, "workloads": workloads, "skipped": skipped, "sweeps": swept}


def main(argv: List[str]) -> int:
    """The command line; 1 if a batch of windrow's is wrong or failed."""
    options = parser().parse_args(argv)
    if options.list:
        print(listing())
        return 0
    for path in filter(None, (options.json, options.html)):
        try:
            try_to_write(path)
        except OSError as error:
            parser().error(f"nothing is measured: {error}")
    if options.read:
        try:
            with open(options.read, encoding="utf-8") as file:
                report = json.load(file)
            about, workloads = results.about(report["machine"]), report["workloads"]
        except (OSError, ValueError) as error:
            parser().error(f"argument --read: {error}")
        except (LookupError, TypeError) as error:
            parser().error(f"argument --read: {options.read} is no report of this command: {error!r}")
        print(about)
        for found in workloads:
            show(found, options.markdown)
    else:
        try:
            report = run(options)
        except Skip as reason:
            print(f"SKIP {reason}")
            return 0
    for path, text in ((options.json, json.dumps(report, indent=1)), (options.html, page.render(report) if options.html else "")):
        if path:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
    ours = (result for found in report["workloads"] for result in found["results"] if result["name"].startswith("windrow"))
    return int(any(result["problem"].startswith(("WRONG", "FAILED")) for result in ours))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
