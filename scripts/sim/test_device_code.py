#!/usr/bin/env python3
"""Runs the machine code of the kernels on the simulated driver's emulator: shared suites, catalogue, workloads, coverage.

scripts/sim/test_device_code.py [--arch 90]... [--suite NAME]... [--processes 2]

For each architecture, sm_90 if none is named, the kernels are compiled for it and in place of their bodies as g++ compiled
them run: the suites of tests/, with tables in the parameters of launches and in memory; samples beyond 2^32 bytes; samples by
indices on the device; every entry of the bench's catalogue at 1/64 of its size; every workload of benches/gather/counted.rs,
whole. Outputs are compared with the host's engine; counts with their bounds and with benches/device-instructions.json, if
it has rows of the architecture. Fails, too, where a family's instructions were executed to less than LEAST and no reason is known.
"""

import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

sys.dont_write_bytecode = True
import device_code  # noqa: E402
import device_counts as counts  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUITES = "executors", "casts", "increments", "channels", "properties"
MORE_SUITES = "outputs", "batch", "arena"
# Suites that are programs, not modules of tests/suite.rs.
PROGRAMS = "windrow", "engine"
# Tests of other suites: samples of more than 2^32 bytes, those that the device selects, lengths at the bounds of a table, and
# rows that go to places of their own.
PARTS = {"windrow": "far_tests", "engine": "resident", "sizes": "lengths", "device_moves": "on_a_device", "device_quantize": None,
         "device_scaled_moves": None}
# Random cases of a property, the same in every run, so that coverage is: the emulator takes some hundred times as long as
# a host, where the cases differ from run to run.
CASES, SEED = 144, 1
# The place of tables, by the sizes that may go with the parameters of a launch; of the smaller and of the larger kernel.
# Those in memory have columns of 64 bits, as fields of 2^31 elements have them; those of large parameters no narrow ones. With
# each, which kernels: those that a batch takes, or for all batches those of all families, whose instructions for common ones are others.
INLINE, MEMORY, LARGE = "", ", tables in memory, wide", ", large parameters, not narrow"
TABLES = {
    INLINE: {},
    MEMORY: {"WINDROW_CUDA_POLICY": "inline_bytes=0,wide_from=0"},
    LARGE: {"WINDROW_CUDA_POLICY": "small_bytes=0,narrow_below=0"},
}
ANY = ", always any"
TABLES |= {
    where + ANY: {"WINDROW_CUDA_POLICY": ",".join([*policy.values(), "always_any=1"])}
    for where, policy in TABLES.items()
    if where != LARGE
}
# The suite that runs with all of them, that of all pairs of dtypes, which the kernels of all families execute too, and
# tests of others that run with wide ones.
EVERY_TABLE, PAIRS = "properties", "casts"
WIDE = {
    "executors": "rows_with_gaps_joined_along_an_outer_dim",
    "channels": "one_mean_or_one_deviation_for_many_channels",
    "device_moves": "on_a_device",
    "device_quantize": "random",
}

# The share of a family's instructions that has to be executed; and where less is, how much, and why.
LEAST = 0.95
REASONS = {
    "one element": (0.88, "NaNs, infinities and denormals of dtype pairs that the suites have no such values for"),
    "move": (0.88, "quotients in 64 bits: samples of more than 2^32 units"),
    "quantised": (0.78, "paddings and elements at any address, compiled for each of six dtypes, of which the suite meets some"),
    "dispatch": (0.88, "quotients by numbers that only the device knows: rows of samples joined along an outer dim, in 64 bits"),
}
# The kernel of elements that share scales has one family. Its copies of what all kernels have, of the same source, are held in those
# that most batches take.
QUANTISE, QUANTISED = "windrow_quantise", "quantised"
# Code that the kernels of common families have a copy of for a few of the pairs of dtypes alone: that of the others is
# held.
OF_ANY = {"one element"}
# The divisor of numbers of samples where workloads run with other tables than their own.
SCALE = 16
# The first whose file an instruction comes from, through all functions that it was inlined into.
FAMILIES = {
    "select": ["select.cuh"],
    "move": ["move.cuh"],
    "rows": ["rows.cuh"],
    "small_copy": ["small_copy.cuh"],
    "scalar_fallback": ["scalar_fallback.cuh"],
    "contiguous_cast": ["contiguous.cuh", "casts.cuh"],
    "group": ["group.cuh"],
    "planar": ["planes.cuh"],
    "strided": ["strided.cuh", "box.cuh", "tile.cuh"],
    QUANTISED: ["quantise.cuh", "group_rows.cuh"],
    "one element": ["convert.cuh"],
    "dispatch": ["windrow.cu", "segments.cuh"],
}


def programs(suites):
    """Suite -> its program and the names of its tests: a module of tests/suite.rs, the unit tests, or a program of its own."""
    of = {suite: suite if suite in PROGRAMS else "suite" for suite in suites}
    chosen = [word for program in sorted(set(of.values())) for word in (["--lib"] if program == "windrow" else ["--test", program])]
    messages = counts.json_lines(counts.cargo("test-all", *chosen, "--no-run", "--message-format=json-render-diagnostics"))
    found = {m["target"]["name"]: m["executable"] for m in messages if m.get("executable")}
    listed = {program: subprocess.run([found[program], "--list"], check=True, stdout=subprocess.PIPE, text=True).stdout for program in of.values()}
    names = {program: [line.removesuffix(": test") for line in text.splitlines() if line.endswith(": test")] for program, text in listed.items()}
    return {
        suite: (found[program], [name for name in names[program] if program == suite or name.startswith(f"{suite}::")])
        for suite, program in of.items()
    }


def run(name, command, environment):
    """Runs something to its end; says how long it took."""
    begin = time.monotonic()
    ran = subprocess.run(command, env={**os.environ, **environment}, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(f"{name}: {time.monotonic() - begin:.0f} s{'' if ran.returncode == 0 else ', FAILED'}", flush=True)
    return [] if ran.returncode == 0 else [f"{ran.stdout}\n{name}: failed"]


def environment(driver, cubin):
    """Environment in which kernels are run by machine code."""
    return {
        "WINDROW_CUDA_DRIVER": str(driver),
        "CUDASIM_DEVICE_CODE": str(cubin.resolve()),
        "CUDASIM_DELAY_US": "0",
        "CUDASIM_MEMORY": str(2 << 30),
        "WINDROW_REQUIRE_GPU": "1",
        # The host's engines are in `make test-host`, copies from and to the host in `make test-simulated`.
        "WINDROW_TEST_ENGINES": "kernels",
        "PROPTEST_CASES": os.environ.get("PROPTEST_CASES", str(CASES)),
        "PROPTEST_RNG_SEED": os.environ.get("PROPTEST_RNG_SEED", str(SEED)),
    }


def executed(folder):
    """(kernel, offset) -> how often, over all runs; and those that the emulator does not know."""
    often, unknown = collections.Counter(), set()
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            _, kernel, at, count, known = line.split("\t")[0].split()
            often[kernel, int(at, 16)] += int(count)
            if known != "known":
                unknown.add((kernel, int(at, 16)))
    return often, unknown


def family_of(files):
    found = (name for name, sources in FAMILIES.items() if any(file in sources for file in files))
    return next(found, "dispatch")


def labels(listed):
    """(kernel, offset) -> what names an instruction in all kernels that differ in the size of their parameters alone: their
    code is the same but for a few instructions, so their name without that size, its source files, its opcode, and which of these it is."""
    found, seen = {}, collections.Counter()
    for (kernel, at), (text, files) in sorted(listed.items()):
        words = text.split()
        key = (re.sub("_(small|large)$", "", kernel), tuple(files), words[1] if words[0].startswith("@") else words[0])
        seen[kernel, key] += 1
        found[kernel, at] = (*key, seen[kernel, key])
    return found


def coverage(cubin, often):
    """Family -> instructions executed, all of them, and those never executed. Of kernels that differ in the size of their
    parameters alone the first is counted; an instruction counts as executed if one of them did."""
    listed = device_code.listed(cubin)
    names = labels(listed)
    executed = {names[place] for place, count in often.items() if count}
    found = {name: [0, 0, []] for name in FAMILIES}
    counted = {}
    # The smaller ones first, which most suites run.
    for kernel, at in sorted(often, key=lambda place: (place[0].endswith("_large"), place)):
        text, files = listed[kernel, at]
        family, name = family_of(files), names[kernel, at]
        if counted.setdefault(name[0], kernel) != kernel or family in OF_ANY and "_any_" not in kernel:
            continue
        if kernel == QUANTISE and family != QUANTISED:
            continue
        row = found[family]
        row[0] += name in executed
        row[1] += 1
        if name not in executed:
            row[2].append(f"{kernel} {at:05x} {text}  {' < '.join(files)}")
    return found


def same_code(arch, cubin):
    """Whether the engine's image has the very instructions that are tested, if it has any of this architecture."""
    with tempfile.TemporaryDirectory() as folder:
        image = device_code.extract(device_code.kernel_report.embedded(), pathlib.Path(folder), [arch]).get(arch)
        # Names of what a file keeps to itself have the name of the file in them.
        plain = lambda text: re.sub(r"_ZN\d+_INTERNAL_[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}", "", " ".join(text.split()))
        texts = lambda cubin: {place: plain(text) for place, (text, _) in device_code.listed(cubin).items()}
        return [] if image is None or texts(image) == texts(cubin) else [f"sm_{arch}: the engine embeds other machine code"]


def test(arch, bench, driver, suites, options):
    """Faults of one architecture."""
    cubin = device_code.compiled(arch)
    faults = same_code(arch, cubin)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)

        def with_coverage():
            return {**environment(driver, cubin), "CUDASIM_COVERAGE": str(folder / str(len(jobs)))}

        jobs = []
        counted = []
        if not options.suite:
            covered = with_coverage()["CUDASIM_COVERAGE"]
            jobs.append(lambda: counted.extend(counts.rows(counts.run(bench, driver, cubin, CUDASIM_COVERAGE=covered))))
            # Ids and addresses of many samples, which no suite has.
            always = {"CUDASIM_COVERAGE": with_coverage()["CUDASIM_COVERAGE"], **TABLES[ANY]}
            jobs.append(lambda: counts.rows(counts.run(bench, driver, cubin, scale=SCALE, **always)) and None)
            variables = with_coverage()
            jobs.append(lambda variables=variables: run(f"sm_{arch} catalogue", [bench, "--bench", "--quick"], variables))
        for name, (program, tests) in suites.items():
            tables = TABLES if name == EVERY_TABLE else [INLINE, ANY] if name == PAIRS else [INLINE]
            runs = [(where, PARTS.get(name)) for where in tables]
            runs += [(where, WIDE[name]) for where in (MEMORY, MEMORY + ANY) if name in WIDE]
            for where, part in runs:
                variables = with_coverage() | TABLES[where]
                title = " ".join(filter(None, (f"sm_{arch}", name, part))) + where
                chosen = [test for test in tests if (part or "") in test]
                if not chosen:
                    sys.exit(f"{name}: no test has {part or 'its name'}")
                command = [program, "--quiet", "--exact", *chosen]
                jobs.append(lambda variables=variables, title=title, command=command: run(title, command, variables))
        with ThreadPoolExecutor(options.processes) as pool:
            faults += [fault for found in pool.map(lambda job: job(), jobs) for fault in found or []]
        often, unknown = executed(folder)
    counts.show(counted)
    faults += counts.gate(counted, is_whole=True) if counted else []
    faults += [f"sm_{arch} {kernel} {at:05x}: an instruction that the emulator does not know" for kernel, at in sorted(unknown)]
    for family, (done, total, never) in coverage(cubin, often).items():
        print(f"sm_{arch} {family}: {done} of {total} instructions executed, {done / max(total, 1):.1%}")
        least, reason = REASONS.get(family, (LEAST, None))
        if done < least * total and not options.suite:
            faults.append(f"sm_{arch} {family}: only {done / total:.1%} of its instructions were executed, at least {least:.0%}")
        elif reason:
            print(f"    less than {LEAST:.0%} is enough: {reason}")
        if options.never:
            with options.never.open("a") as file:
                file.writelines(f"sm_{arch} {family} {line}\n" for line in never)
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=int, action="append")
    parser.add_argument("--suite", action="append", choices=[*SUITES, *MORE_SUITES, *PARTS], help="only these, and neither workloads nor catalogue")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--never", type=pathlib.Path, help="where to put the instructions that were never executed")
    options = parser.parse_args()
    arches = options.arch or [90]
    bench, driver = counts.built(arches)
    suites = programs(options.suite or [*SUITES, *PARTS])
    faults = [fault for arch in arches for fault in test(arch, bench, driver, suites, options)]
    if faults:
        sys.exit("\n".join(faults) + "\nIf a rise is meant: scripts/ci/run.sh scripts/sim/device_counts.py --write, and say why in the commit.")


if __name__ == "__main__":
    main()
