"""`python -m windrow bench`: windrow beside torch, NumPy and DALI, outputs compared first.

Samples hold random data, lie scattered and rotate so that none is in a cache; contenders take turns;
medians and quartiles are reported, and what share they reach of a plain copy of as many bytes.
With --warm one list of samples is used again and again, as if it had just been made.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional

from windrow._measure import (
    Memcpy,
    difference,
    format_seconds,
    format_table,
    interleave,
    machine,
    quartiles,
)
from windrow._system import cache_bytes, num_cores
from windrow._workloads import MEMCPY, WORKLOADS, Samples, Target, Workload


@dataclass
class Result:
    """One contender: its quartiles in seconds, or why it has none."""

    name: str
    quartiles: Optional[List[float]]
    share: Optional[float]
    problem: str = ""


def verify(workload: Workload, name: str) -> str:
    """What is wrong with a contender's output, or nothing."""
    samples = workload.sets[-1]
    try:
        got = workload.contenders[name](samples)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    values = got if isinstance(got, tuple) else (got,)
    # The definition's own roundings are asked of windrow only.
    tolerance = 0.0 if name.startswith("windrow") else workload.tolerance
    for value, want in zip(values, workload.expected(samples)):
        text = difference(getattr(value, "data", value) if name.startswith("windrow") else value, want, tolerance)
        if text:
            return f"WRONG: {text}"
    return ""


def measure(workload: Workload, seconds: float, rounds: int) -> List[Result]:
    """Verifies and times the contenders of a workload and the copy they are held against."""
    problems = {name: verify(workload, name) for name in workload.contenders}
    turn = itertools.count()

    def next_samples() -> Samples:
        return workload.sets[next(turn) % len(workload.sets)]

    def bind(contender: Callable[[Samples], Any]) -> Callable[[], object]:
        return lambda: contender(next_samples())

    # A copy reads and writes each byte once, so half of what is moved.
    copies = [Memcpy(workload.bytes_moved // 2, threads, 2 * cache_bytes()) for threads in sorted({1, num_cores()})]
    calls: Dict[str, Callable[[], object]] = {f"{MEMCPY}, threads: {copy.threads}": copy for copy in copies}
    calls.update({name: bind(workload.contenders[name]) for name, text in problems.items() if not text})
    times = {name: list(quartiles(values)) for name, values in interleave(calls, seconds, (rounds, 200)).items()}
    floor = min(times[name][1] for name in times if name.startswith(MEMCPY))
    results = [Result(name, values, floor / values[1]) for name, values in times.items()]
    results += [Result(name, None, None, text) for name, text in problems.items() if text]
    return results + [Result(name, None, None, text) for name, text in workload.absent.items()]


def judge(target: Target, results: List[Result]) -> Dict[str, Any]:
    """A target with the ratio that was measured; None where one side is missing."""
    medians = {result.name: result.quartiles[1] for result in results if result.quartiles}
    peers = {name: median for name, median in medians.items() if name.startswith(MEMCPY)}
    if target.peers != (MEMCPY,):
        peers = {name: medians[name] for name in target.peers if name in medians}
    fastest = min(peers, key=lambda name: peers[name], default="")
    ratio = peers[fastest] / medians[target.ours] if fastest and target.ours in medians else None
    return {"ours": target.ours, "peer": fastest or ", ".join(target.peers), "at_least": target.at_least, "ratio": ratio}


def report(workload: Workload, results: List[Result], targets: List[Dict[str, Any]], markdown: bool) -> None:
    """Prints the table of one workload and its targets."""
    print(f"\n{'### ' if markdown else ''}{workload.name}: {workload.title}, {workload.bytes_moved / 1e6:.1f} MB read and written\n")
    rows = []
    for result in results:
        cells = [format_seconds(value) for value in result.quartiles or ()]
        share = f"{result.share:.2f}" if result.share else "-"
        rows.append([result.name, *(cells or ["-", "-", "-"]), share])
    print(format_table(["contender", "lower quartile", "median", "upper quartile", "of memcpy"], rows, markdown))
    notes = [f"{result.name}: {result.problem}" for result in results if result.problem]
    for target in targets:
        ratio = target["ratio"]
        found = "not measured" if ratio is None else f"{ratio:.2f}, {'reached' if ratio >= target['at_least'] else 'MISSED'}"
        notes.append(f"{target['peer']} / {target['ours']}: wanted {target['at_least']}, {found}")
    print("\n" + "\n".join(f"- {note}" if markdown else note for note in notes))


def main(argv: List[str]) -> int:
    """The command line; 1 if windrow gave a wrong batch."""
    parser = argparse.ArgumentParser(prog="python -m windrow bench", description=__doc__)
    parser.add_argument("--only", action="append", metavar="W", choices=sorted(WORKLOADS), help=", ".join(WORKLOADS))
    parser.add_argument("--warm", action="store_true", help="samples that are in the caches, as far as they fit")
    parser.add_argument("--quick", action="store_true", help="few rounds: shows that it works, not how fast")
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")
    parser.add_argument("--json", metavar="FILE", help="also write everything as JSON")
    options = parser.parse_args(argv)
    info = machine("torch", "nvidia.dali")
    print(", ".join(f"{key} {value}" for key, value in info.items()))
    seconds, rounds = (0.3, 3) if options.quick else (5.0, 9)
    found, wrong = [], False
    for name in options.only or WORKLOADS:
        workload = WORKLOADS[name](options.warm)
        results = measure(workload, seconds, rounds)
        targets = [judge(target, results) for target in workload.targets]
        report(workload, results, targets, options.markdown)
        wrong = wrong or any(result.problem for result in results if result.name.startswith("windrow"))
        found.append(
            {
                "name": name,
                "title": workload.title,
                "bytes": workload.bytes_moved,
                "results": [vars(result) for result in results],
                "targets": targets,
            }
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": info, "workloads": found}, file, indent=1)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
