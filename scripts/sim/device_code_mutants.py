#!/usr/bin/env python3
"""Changes one instruction of the kernels' machine code at a time; a test on the emulator has to notice.

scripts/sim/device_code_mutants.py [--arch 90] [--seed 1] [--count 40] [--minutes 20] [--suite channels]... [--workload W2]... [--file strided.cuh]
scripts/sim/device_code_mutants.py --count 8 --workload "W3 address" --least 0.2        a few seconds: shows that it works

Each test of the suites that scripts/sim/test_device_code.py runs, and each workload of benches/gather/counted.rs at 1/16 of its size,
is run once on the code as it is: how long it takes, and which instructions it executes. A mutant is run by the tests that
execute its instruction, fastest first, up to the first that fails. Without --suite and --workload all take part; --file
leaves the instructions of one file of kernels/. What no test notices is printed: each is a missing test, or a change that
changes nothing, whose reason belongs in docs/test-log.md.
"""

import argparse
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

sys.dont_write_bytecode = True
import test_device_code  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The divisor of the workloads' numbers of samples.
SCALE = 16
# A mutant that takes so much longer than the code as it is does not end; in seconds, and in times.
PATIENCE = 20, 10

SWAPS = [
    ("ISETP.GE", "ISETP.GT"),
    ("ISETP.GT", "ISETP.GE"),
    ("ISETP.LT", "ISETP.LE"),
    ("ISETP.LE", "ISETP.LT"),
    ("ISETP.NE", "ISETP.EQ"),
    ("ISETP.EQ", "ISETP.NE"),
    ("0xc0,", "0xfc,"),
    ("0xfc,", "0xc0,"),
    ("SHF.R.U32", "SHF.R.S32"),
    ("SHF.L", "SHF.R"),
    ("IMAD.WIDE.U32", "IMAD.WIDE"),
    ("@!P", "@P"),
    ("@P", "@!P"),
    ("FSETP.NAN", "FSETP.NUM"),
    ("FADD", "FMUL"),
    (".128", ".64"),
    (".U16", ".U8"),
]


class Test(NamedTuple):
    """A command that compares outputs, how long it takes, and the instructions that it executes: (kernel, offset)."""

    name: str
    command: list
    environment: dict
    seconds: float = 0.0
    executed: frozenset = frozenset()


def changes(text):
    """Other instructions that this one might have been."""
    found = [text.replace(old, new, 1) for old, new in SWAPS if old in text]
    if match := re.search(r"(SEL R\d+\S*, )(\S+), (\S+), (!?P\d)", text):
        found.append(text.replace(match[0], f"{match[1]}{match[3]}, {match[2]}, {match[4]}"))
    if match := re.search(r"(?<=, )0x[0-9a-f]+(?= ;)", text):
        found.append(text[: match.start()] + hex(int(match[0], 16) + 1) + text[match.end() :])
    if match := re.search(r"\+0x[0-9a-f]+(?=\])", text):
        found.append(text[: match.start()] + f"+{hex(int(match[0][1:], 16) + 4)}" + text[match.end() :])
    return [change for change in found if change != text]


def candidates(listing, executed):
    """Number of a line -> (kernel, offset), of those that are executed and might be something else."""
    kernel, found = None, {}
    for number, line in enumerate(listing):
        if match := re.search(r"\.section\s+\.text\.(\w+)", line):
            kernel = match[1]
        elif match := re.search(r"/\*([0-9a-f]{4,5})\*/", line):
            place = kernel, int(match[1], 16)
            if place in executed and changes(line):
                found[number] = place
    return found


def listed(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def tests_of(run, bench, options):
    """The mutants that the options choose, not yet run."""
    every = not (options.suite or options.workload)
    suites = options.suite or (run.SUITES if every else [])
    for suite, (program, names) in run.programs(suites).items() if suites else []:
        for name in names:
            for where, policy in run.TABLES.items() if suite == run.EVERY_TABLE else [("", {})]:
                yield Test(f"{name}{where}", [program, "--quiet", "--exact", name], policy)
    for name in run.counts.BOUNDS:
        if every or name in (options.workload or []):
            yield Test(name, [bench, "--bench", "--count", "--scale", str(SCALE), "--only", name], {})


def passes(test, cubin, limit=None, **environment):
    environment = {**os.environ, **environment, **test.environment, "CUDASIM_DEVICE_CODE": str(cubin)}
    try:
        return subprocess.run(test.command, env=environment, cwd=ROOT, capture_output=True, timeout=limit).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def measured(run, test, cubin, environment):
    """A test with what it takes and executes."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        if not passes(test, cubin, CUDASIM_COVERAGE=folder + "/coverage", **environment):
            sys.exit(f"{test.name} fails on the code as it is")
        seconds = time.monotonic() - begin
        often, _ = run.executed(pathlib.Path(folder))
    return test._replace(seconds=seconds, executed=frozenset(place for place, count in often.items() if count))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no mutant after so many")
    parser.add_argument("--suite", action="append")
    parser.add_argument("--workload", action="append")
    parser.add_argument("--least", type=float, default=1.0, help="the share of mutants that has to be noticed")
    parser.add_argument("--file", help="only instructions that come from this file, inlined into others or not")
    options = parser.parse_args()
    run = test_device_code
    bench, driver = run.counts.built([options.arch])
    original = run.device_code.compiled(options.arch)
    environment = run.environment(driver, original)
    lines = original.with_suffix(".sass").read_text().split("\n")
    source = run.device_code.listed(original)
    with ThreadPoolExecutor(2) as pool:
        tests = list(pool.map(lambda test: measured(run, test, original, environment), tests_of(run, bench, options)))
    tests.sort(key=lambda test: test.seconds)
    print(f"{len(tests)} tests, {sum(test.seconds for test in tests):.0f} s", flush=True)
    places = candidates(lines, frozenset().union(*(test.executed for test in tests)))
    places = {number: place for number, place in places.items() if options.file is None or options.file in source[place][1]}
    chosen, end = random.Random(options.seed), time.monotonic() + 60 * options.minutes
    numbers = chosen.sample(sorted(places), min(options.count, len(places)))
    mutants = [(number, chosen.choice(changes(lines[number]))) for number in numbers]
    with tempfile.TemporaryDirectory() as folder:

        def noticed(mutant):
            if time.monotonic() > end:
                return None
            number, changed = mutant
            cubin = pathlib.Path(folder) / f"{number}.cubin"
            shutil.copy(original, cubin)
            cubin.with_suffix(".sass").write_text("\n".join([*lines[:number], changed, *lines[number + 1 :]]))
            covering = [test for test in tests if places[number] in test.executed]
            limit = lambda test: PATIENCE[0] + PATIENCE[1] * test.seconds
            by = next((test.name for test in covering if not passes(test, cubin, limit(test), **environment)), None)
            text = f"{lines[number].strip()} -> {changed.strip()}  {' < '.join(source[places[number]][1])}"
            print(f"noticed by {by}:" if by else f"UNNOTICED by {len(covering)} tests:", text, flush=True)
            cubin.with_suffix(".sass").unlink()
            cubin.unlink()
            return by is not None

        with ThreadPoolExecutor(2) as pool:
            found = [result for result in pool.map(noticed, mutants) if result is not None]
    print(f"{sum(found)} of {len(found)} noticed")
    sys.exit(sum(found) < options.least * len(found))


if __name__ == "__main__":
    main()
