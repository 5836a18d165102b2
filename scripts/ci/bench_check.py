#!/usr/bin/env python3
"""Counts the instructions of fixed inputs under callgrind and fails where they rose by more than 5 %.

Seconds are different in every run; instructions are the same, also on a busy machine. They depend on the compiler
and the libraries, so counts are kept for each of those in benches/instructions.json: on a machine that has others
they are printed and not compared. `--update` takes what is counted here as the new baseline, which is to be done
where counts may change: with a new compiler (from a commit whose counts are known to be good), or with a commit
that says why they rise. Batches just below and above the sizes at which the engine changes its ways cost the same a byte
(SWEEP); `--sweep` counts those of all sizes from 1 KiB to 64 MiB, each 1.1 times the one before: half an hour. What a case may take at most, and
what may not depend on the number of samples, is in CAPS and ALIKE, for every machine.

Where WINDROW_CUDA_DRIVER names the simulated driver, calls for a device are counted too: what the calling thread does
outside of the driver. What the device does for them is not of interest here.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts/docs"))
import small_counts  # noqa: E402

BASELINE = ROOT / "benches/instructions.json"
LIMIT = 0.05
# How often a case is done while it is counted; a driver's work differs from call to call.
TIMES, TIMES_ON_DEVICE = 2, 16

# Instructions outside of the driver that a case may take, and cases that take the same.
CAPS = {"device: stack 256 views of one tensor": 20_000}
ALIKE = [("device: take and stack 256 samples by its indices", "device: take and stack 65 536 samples by its indices")]

# Bytes of a batch from which on it is made in another way: planned, which goes by what is read and written, about twice as much, and
# around the caches.
SWEEP = [512 << 10, 1 << 20, 16 << 20, 32 << 20]
NEIGHBOUR = 1.1
# How much more instructions a byte than its smaller neighbour a batch may take.
STEP = 1.25
# Steps beyond it: form and size, and the most instructions a byte beside the smaller neighbour.
STEPS = {
    # The output is written around the caches, which saves reading the lines first: 2.21 and 1.41 counted, for 5.4 ms in
    # place of 7.6 (51 MB, Zen 4).
    ("sweep: cast a column of numbers", 32 << 20): 2.4,
    ("sweep: stack 8 samples", 32 << 20): 1.5,
}

def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


def valgrind(command, attempt, *options, **variables):
    """Runs a program under callgrind, which counts what benches/instructions/rounds.rs says; what that prints. Each attempt has an
    environment of its own size."""
    callgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", *options]
    environment = {**small_counts.environment(attempt), **variables}
    run = subprocess.run(callgrind + command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment, cwd=ROOT)
    if run.returncode:
        sys.exit(f"{' '.join(command)} failed under valgrind:\n{run.stderr}")
    return run.stderr


def count(command, attempt, **variables):
    """Instructions of all threads of a program."""
    return int(re.search(r"Collected : (\d+)", valgrind(command, attempt, "--callgrind-out-file=/dev/null", **variables))[1])


def count_outside(command, attempt, library):
    """Instructions of the first thread of a program, less those of its calls into a library."""
    with tempfile.TemporaryDirectory() as folder:
        valgrind(command, attempt, f"--callgrind-out-file={folder}/out", "--separate-threads=yes", "--compress-strings=no")
        lines = iter((Path(folder) / "out-01").read_text().splitlines())
    program, library = os.path.realpath(command[0]), os.path.realpath(library)
    total, caller, callee = 0, "", None
    for line in lines:
        if line.startswith("ob="):
            caller = line[3:]
        elif line.startswith("cob="):
            callee = line[4:]
        elif line.startswith("calls="):
            # The next line has what the calls cost, all told.
            inside = int(next(lines).split()[1])
            total -= inside if callee == library and caller == program else 0
            callee = None
        elif re.match(r"[0-9+*-]\S* \d+$", line):
            total += int(line.split()[1])
    return total


def once(command, times, limit, count=count):
    """Instructions of doing a thing once; the command takes how often as its last argument, and has valgrind count these times.

    What the C library does now and then, such as to merge what was freed, depends on where things are in memory, and may be a
    million instructions of one run and not of the other. So a count above the limit is made again with an environment of another
    size, which moves addresses, and the fewest are taken.
    """
    fewest = None
    for attempt in range(8):
        found = count([*command, str(times)], attempt) // times
        if found <= 0:
            sys.exit(f"{' '.join(command)}: nothing was counted, see benches/instructions/rounds.rs")
        fewest = found if fewest is None else min(found, fewest)
        if limit is None or fewest <= limit:
            break
    return fewest


def small_batch_counts(python, known):
    """Instructions of a call of each small batch of the benchmark; those above their limit are counted again, as by `once`."""
    found, titles = {}, []
    for attempt in range(8):
        counted = small_counts.counts(python, small_counts.environment(attempt), titles, small_counts.total)
        found.update({title: min(count, found.get(title, count)) for title, count in counted.items()})
        titles = [title for title, count in found.items() if count > known.get(f"small: {title}", count) * (1 + LIMIT)]
        if not titles:
            break
    return {f"small: {title}": count for title, count in found.items()}


def built(*options):
    """The program with the cases, built like a release."""
    cargo = os.environ.get("CARGO", "cargo")
    command = [cargo, "bench", "--locked", *options, "--bench", "instructions", "--no-run", "--message-format=json-render-diagnostics"]
    lines = output(*command)
    made = (json.loads(line) for line in lines.splitlines())
    return next(x["executable"] for x in made if x.get("executable") and x["target"]["name"] == "instructions")


def compiler():
    """What counts of Rust depend on."""
    about = dict(line.split(": ", 1) for line in output("rustc", "-vV").splitlines() if ": " in line)
    return f"{about['host']}, rustc {about['release']}, {' '.join(platform.libc_ver())}"


def started_small_batches(known, pool):
    """What counts of small batches from Python depend on, and those counts, in the future; None without Python's packages."""
    python = os.environ.get("PYTHON", ROOT / ".venv/bin/python")
    versions = "import sys, numpy, windrow; print(sys.version.split()[0], 'numpy', numpy.__version__)"
    try:
        key = f"{compiler()}, python {output(python, '-c', versions).strip()}"
    except (OSError, subprocess.CalledProcessError):
        print(f"SKIP small batches from Python: {python} has no NumPy or no windrow")
        return None
    return key, pool.submit(small_batch_counts, python, known.get(key, {}))


def counts(known, pool):
    """The count of each case of the program."""
    driver = os.environ.get("WINDROW_CUDA_DRIVER")
    program = built(*(["--features", "cuda"] if driver else []))

    def count_of(case):
        limit = known[case] * (1 + LIMIT) if case in known else None
        if case.startswith("device: "):
            return once([program, case], TIMES_ON_DEVICE, limit, lambda command, attempt: count_outside(command, attempt, driver))
        return once([program, case], TIMES, limit)

    if not driver:
        print("SKIP calls for a device: WINDROW_CUDA_DRIVER names no driver")
    cases = output(program, "--list").splitlines()
    return dict(zip(cases, pool.map(count_of, cases)))


def sweep(pool, sizes):
    """Batches that take too many instructions a byte beside their smaller neighbour; prints all counts a byte."""
    program = built(*(["--features", "cuda"] if os.environ.get("WINDROW_CUDA_DRIVER") else []))
    forms = output(program, "--sweep").splitlines()
    points = [(form, size) for form in forms for size in sorted({size for pair in sizes for size in pair})]
    # The C library copies longer rows by one instruction that is counted once for each byte.
    tunables = f"glibc.cpu.x86_rep_movsb_threshold={1 << 40}:glibc.cpu.x86_rep_stosb_threshold={1 << 40}"

    def count_of(point):
        return once([program, point[0], str(point[1])], 1, None, lambda command, attempt: count(command, attempt, GLIBC_TUNABLES=tunables))

    counted = list(pool.map(count_of, points))
    of_a_byte = {point: count / point[1] for point, count in zip(points, counted)}
    wrong = []
    print(f"\nInstructions a byte, and beside the smaller neighbour, of batches around {len(sizes)} sizes")
    for form in forms:
        for few, many in sizes:
            step = of_a_byte[form, many] / of_a_byte[form, few]
            size = next((size for size in SWEEP if few < size <= many), None)
            most = STEPS.get((form, size), STEP)
            print(f"  {form:40}{many:12,}{of_a_byte[form, many]:10.3f}{step:8.2f}{'  ROSE' if step > most else ''}")
            if step > most:
                wrong.append(f"{form}: {step:.2f} times the instructions a byte from {few:,} to {many:,} bytes, at most {most}")
    return wrong


def neighbours(is_all):
    """Pairs of sizes: on both sides of each of SWEEP, or all from 1 KiB to 64 MiB."""
    if not is_all:
        return [(round(size / NEIGHBOUR**0.5), round(size * NEIGHBOUR**0.5)) for size in SWEEP]
    sizes = [1024]
    while sizes[-1] < 64 << 20:
        sizes.append(round(sizes[-1] * NEIGHBOUR))
    return list(zip(sizes, sizes[1:]))


def compare(found, known):
    """Prints all counts; the number of those that rose too far."""
    risen = 0
    for key, cases in found.items():
        print(f"\n{key}")
        if key not in known:
            print(f"  NOT COMPARED: benches/instructions.json has counts for {'; '.join(known) or 'nothing'}")
        for case, value in cases.items():
            before = known.get(key, {}).get(case)
            change = "" if before is None else f"{value / before - 1:+8.2%}"
            bad = before is not None and value > before * (1 + LIMIT)
            risen += bad
            word = "  ROSE" if bad else "  fell: --update keeps it there" if before and value < before * (1 - LIMIT) else ""
            print(f"  {case:50}{value:12,}  {change}{word}")
    return risen


def beyond(found):
    """Faults of the counts, whatever they were before."""
    counted = {case: value for cases in found.values() for case, value in cases.items()}
    for case, cap in CAPS.items():
        if counted.get(case, 0) > cap:
            yield f"{case}: {counted[case]:,} instructions, at most {cap:,}"
    for pair in ALIKE:
        values = [counted[case] for case in pair if case in counted]
        if values and max(values) > min(values) * (1 + LIMIT):
            yield f"{' and '.join(pair)}: {values}, within {LIMIT:.0%} of each other"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="take what is counted here as the new baseline")
    parser.add_argument("--sweep", action="store_true", help="only instructions a byte, of batches of all sizes")
    options = parser.parse_args()
    if not shutil.which("valgrind") or platform.machine() != "x86_64":
        print("SKIP instruction counts: valgrind is not installed (apt-get install valgrind), or this is no x86-64")
        return
    known = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    # Counts do not depend on what else runs.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # First, as it takes the longest.
        small = None if options.sweep else started_small_batches(known, pool)
        found = {} if options.sweep else {compiler(): counts(known.get(compiler(), {}), pool)}
        steps = sweep(pool, neighbours(options.sweep))
        if small:
            found[small[0]] = small[1].result()
    risen = compare(found, known)
    if wrong := [*beyond(found), *steps]:
        sys.exit("\n".join(wrong))
    if options.update:
        BASELINE.write_text(json.dumps({**known, **found}, indent=1) + "\n")
    elif risen:
        sys.exit(f"{risen} counts rose by more than {LIMIT:.0%}. If that is meant: scripts/ci/bench_check.py --update, and say why.")


main()
