#!/usr/bin/env python3
"""Counts the instructions of the benchmark's small batches (`windrow.bench.small`) under callgrind, in all and by stage.

scripts/ci/bench_check.py compares the sums. `scripts/ci/run.sh scripts/docs/small_counts.py` prints the stages, `--write` puts them into
docs/performance.md, with the machine, date and commit: a few minutes. One process runs every case, and counts only within it: what a function of the C library that
nothing else calls is entered for marks the begin and the end of each.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/performance.md"

PROGRAM = """
import gc, os, subprocess, sys
import numpy
import windrow
from windrow.bench.samples import Setting
from windrow.bench.small import cases
from windrow.bench.workload import Skip

setting = Setting(threads=1, engine=windrow.Engine(threads=1))
calls = []
for case in cases().values():
    if sys.argv[1:] and case.title not in sys.argv[1:]:
        continue
    try:
        workload = case.make(setting)
    except Skip:
        continue
    # A batch that is not repeated where it is timed has millions of instructions.
    times = 2 if workload.repeat == 1 else min(workload.repeat, 16) + 4
    calls.append((case.title, workload.calls["windrow"], times))
title, arrays = "SampleList of 4096 arrays", [numpy.full(16, i, numpy.float32) for i in range(4096)]
if title in (sys.argv[1:] or [title]):
    calls.append((title, lambda out: windrow.SampleList(arrays), 2))
gc.disable()
counting = subprocess.Popen(["vgdb", f"--pid={os.getpid()}", "instrumentation", "on"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while counting.poll() is None:
    pass
for title, call, times in calls:
    for _ in range(3):
        call(None)
    os.getpriority(os.PRIO_PROCESS, 0)
    for _ in range(times):
        call(None)
    os.getpriority(os.PRIO_PROCESS, 0)
    print(times, title, sep="\\t")
"""

# Patterns in this order: a function's stage is that of the first one found in its name. A function without any has its
# caller's.
STAGES = {
    "interpreter": r"^_PyEval_EvalFrameDefault",
    "release": r"drop_in_place<_?windrow|_windrow::ownership::release|tp_dealloc",
    "arguments": r"_windrow::(collate::options|ground::arguments)|extract_argument",
    "import": r"_windrow::(import|samples|trees|ground::iterables)|\bwindrow::(samples|dlpack::import)|_windrow::collate::job",
    ".numpy(), .torch()": r"_windrow::(export|classes::(batch|tensor))|\bwindrow::dlpack::export",
    "allocation": r"\bwindrow::host::pool|\bwindrow::tensor::tensor",
    "copy": r"\bwindrow::host",
    "spec and plan": r"\bwindrow::(plan|collate|engine::small::Small::new|tensor)",
    "counters, clock": r"\bwindrow::observe",
    "result": r"\bwindrow::batch|_windrow::ground::(batch|tensor)",
    "the call": r"__py(function|method)|_windrow::collate|\bwindrow::engine|_windrow::engine",
}


def stage_of(name):
    return next((stage for stage, pattern in STAGES.items() if re.search(pattern, name)), None)


def profile(path):
    """Instructions within each function, and with all that it called for each caller."""
    costs, calls, function, callee = defaultdict(int), defaultdict(int), "", ""
    lines = iter(path.read_text(errors="replace").splitlines())
    objects = {"ob": "", "cob": ""}
    for line in lines:
        key, equals, value = line.partition("=")
        if equals and key in ("ob", "cob"):
            objects[key] = value
        elif equals and key == "fn":
            function, objects["cob"] = (objects["ob"], value), ""
        elif equals and key == "cfn":
            callee, objects["cob"] = (objects["cob"] or objects["ob"], value), ""
        elif equals and key == "calls":
            calls[function, callee] += int(next(lines).split()[-1])
        elif re.match(r"[0-9+*-]\S* \d+$", line):
            costs[function] += int(line.split()[1])
    return costs, calls


def by_stage(path):
    """Instructions by stage: those of a function without one are its callers', each by what its calls cost."""
    costs, calls = profile(path)
    callers = defaultdict(list)
    for (caller, callee), cost in calls.items():
        if caller != callee and cost:
            callers[callee].append((caller, cost))
    shares = {function: {stage: 1.0} for function in {*costs, *callers} if (stage := stage_of(function[1]))}
    fixed = set(shares)
    for _ in range(40):
        for function in {*costs, *callers} - fixed:
            found, total = defaultdict(float), sum(cost for _, cost in callers[function])
            for caller, cost in callers[function]:
                for stage, share in shares.get(caller, {}).items():
                    found[stage] += share * cost / total
            shares[function] = found
    stages = defaultdict(float)
    for function, cost in costs.items():
        stage_shares = shares.get(function) or {}
        known = sum(stage_shares.values())
        for stage, share in stage_shares.items():
            stages[stage] += cost * share / known
        if not known:
            stages["interpreter"] += cost
    return {stage: stages[stage] for stage in STAGES}


def counts(python, environment, titles=(), read=None):
    """The result of `read` for the profile of each case, and its number of calls; `None` where nothing can be counted."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--dump-before=getpriority", "--compress-strings=no", "--compress-pos=no",
                   f"--callgrind-out-file={folder}/out", str(python), "-c", PROGRAM, *titles]  # fmt: skip
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
        if run.returncode:
            sys.exit(f"the small batches failed under valgrind:\n{run.stderr}")
        cases = [line.split("\t") for line in run.stdout.splitlines()]
        # Each part ends with a dump: what was before the first case, the case, what was before the next one.
        return {title: read(Path(folder) / f"out.{2 * number + 2}", int(times)) for number, (times, title) in enumerate(cases)}


def total(path, times):
    return int(re.search(r"^totals: (\d+)", path.read_text(errors="replace"), re.M)[1]) // times


def stages(path, times):
    return {stage: cost / times for stage, cost in by_stage(path).items()}


def environment(attempt=0):
    """Hashes and addresses decide how long look-ups take. Each attempt has an environment of its own size."""
    return {**os.environ, "PYTHONHASHSEED": "0", "PYTHONMALLOC": "malloc", "OPENBLAS_NUM_THREADS": "1", "CUDASIM_DELAY_US": "0", "ROOM": "x" * 40 * attempt}


def table(found):
    lines = [["case", *STAGES, "all"], ["---", *["---:"] * (len(STAGES) + 1)]]
    for title, stages in found.items():
        lines.append([title, *(f"{round(value, -1):,.0f}" if value >= 5 else "-" for value in stages.values()), f"{round(sum(stages.values()), -1):,.0f}"])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def source(python):
    """The machine, versions, date and commit of the counts."""
    about = "from windrow._measure import machine; print('cpu {cpu}, python {python}, numpy {numpy}, date {date}'.format(**machine()))"
    commands = [python, "-c", about], ["rustc", "--version"], ["git", "describe", "--always", "--dirty"]
    machine, rustc, commit = (subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout for command in commands)
    return textwrap.fill(f"Machine: {machine.strip()}, rustc {rustc.split()[1]}, commit {commit.strip()}.", 120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table and its source into docs/performance.md")
    parser.add_argument("titles", nargs="*", metavar="TITLE", help="only these cases")
    options = parser.parse_args()
    python = os.environ.get("PYTHON", ROOT / ".venv/bin/python")
    text = f"{table(counts(python, environment(), options.titles, stages))}\n\n{source(python)}"
    print(text)
    if options.write:
        head, rest = PAGE.read_text(encoding="utf-8").split("<!-- stages: begin -->")
        tail = rest.split("<!-- stages: end -->")[1]
        PAGE.write_text(f"{head}<!-- stages: begin -->\n{text}\n<!-- stages: end -->{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
