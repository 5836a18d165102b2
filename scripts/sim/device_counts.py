#!/usr/bin/env python3
"""Counts what the kernels' machine code executes for each workload, on the simulated driver's emulator.

scripts/sim/device_counts.py [--arch 90]... [--only TEXT]        counts and prints
scripts/sim/device_counts.py --write                             all of ARCHES: benches/device-instructions.json, and the times of
                                                                 scripts/sim/gpu_model.py; tables of docs/gpu-performance.md
scripts/sim/device_counts.py --check [--arch 90]                 fails where a count rose by more than 5 %, or is above what it
                                                                 must reach and no known miss
scripts/sim/device_counts.py --pairs [--write]                   pairs of dtypes that no workload has, on sm_90: prints the table, or
                                                                 writes it to docs/gpu-performance.md

The workloads are those of benches/gather/counted.rs; each is assembled once and compared with the host's engine.
Instructions depend on nothing but the kernels, the compiler and the workloads: not on the machine.
"""

import argparse
import collections
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
COUNTS = ROOT / "benches/device-instructions.json"
DOCS = ROOT / "docs/gpu-performance.md"
MARKS = "<!-- counts: written by scripts/sim/device_counts.py -->", "<!-- end of counts -->"
PAIR_MARKS = "<!-- pairs: written by scripts/sim/device_counts.py --pairs -->", "<!-- end of pairs -->"
ARCHES = 80, 90, 100, 120
LIMIT = 0.05

# The multiprocessors for which work is cut: an H200's.
MULTIPROCESSORS = 132

# The workloads, and what each must reach on sm_90, in thread instructions for 16 bytes of output; on others 5 % more.
BOUNDS = {
    "W1 f16": 46, "W1 f32": 34, "W2": 32, "W2b": 36, "W3 address": 26, "W3 id": 29, "W4a": 34, "W4b": 40, "W4c": 31, "W5": 350,
    "W5b": 31, "W5b affine": 52, "images and labels": 31, "W6": 27, "W7": 70, "W9": 350, "W10a": 160, "W10a address": 160, "W10b": 84, "one tensor": 27, "512 B misaligned": 60,
    "512 B misaligned address": 60, "32 KiB misaligned": 31, "short ragged i32 to i64": 80, "i64 to i32": 62, "f32 to f16": 62, "f16 to f32": 62, "f64": 130,
    "bf16 to f8": 98, "bf16 to f8 saturated": 70, "f32 to f8": 126, "f32 to f8 saturated": 90, "f8 to bf16": 62, "f8 to f32": 62,
    "Q1": 180, "Q2": 350, "Q3": 350, "scalars": 350, "strided worst": 350, "M1": 60, "M2": 62, "M3 4 KiB": 30, "M3 32 KiB": 30, "M4": 32,
}  # fmt: skip
OTHER_ARCHES = 1.05
# No instructions for casts of float8 are on sm_80.
WITHOUT_FLOAT8 = 2.5
QUANTISED = "Q1", "Q2", "Q3"
LANES = {"W10a": 20, "W10a address": 20, "M1": 24}
STORE_SECTORS = {"W10a": 1.45, "W10a address": 1.45}
LOAD_SECTORS = {"W10a": 8.0, "W10a address": 8.0, "W10b": 12.5, "scalars": 8.0}
SPILLS = 2.5
# The least number of pieces: a warp for each slot of the multiprocessors.
WARPS = {"W10a": 32 * MULTIPROCESSORS, "W10a address": 32 * MULTIPROCESSORS}

# The bounds of pairs of dtypes in adjacent elements, and of everything else.
FLOATS_OF_16_BITS, FLOAT64, ANY = 62, 130, 350

# The names of the bounded figures.
INSTRUCTIONS, LOST_LANES, STORES, LOADS = "instructions for 16 bytes", "lanes that are not there", "times the stored sectors", "times the loaded sectors"
SPILLED, LAUNCHES, EMPTY_SLOTS = "spills for 512 bytes", "launches", "warp slots without a piece"

# The bounds that are missed: by workload, case and what is bounded, architecture -> the figure that it must not exceed.
# docs/gpu-performance.md says why. A bound that is met has to leave the table.
MISSED = {
    ("M4", "", INSTRUCTIONS): {80: 35.25, 90: 35.25, 100: 35.25},
    ("W7", "", INSTRUCTIONS): {90: 70.36},
    ("strided worst", "u8 planes to pixels", INSTRUCTIONS): {100: 384.38},
    ("strided worst", "u8 transposed", SPILLED): {120: 2.69},
    ("Q1", "by row", INSTRUCTIONS): {90: 184.69, 100: 196.68, 120: 202.55},
    ("Q1", "by row", SPILLED): {80: 5.62, 90: 6.24, 100: 11.36, 120: 10.49},
    ("Q2", "by 128", INSTRUCTIONS): {90: 364.24, 100: 407.27, 120: 403.76},
    ("Q2", "by 128", STORES): dict.fromkeys(ARCHES, 1.212),
    ("Q2", "by 128", SPILLED): {80: 20.73, 90: 21.33, 100: 45.45, 120: 41.21},
    ("Q3", "pages", INSTRUCTIONS): {90: 372.94, 100: 399.06, 120: 400.71},
    ("Q3", "pages", STORES): dict.fromkeys(ARCHES, 1.176),
    ("Q3", "pages", SPILLED): {80: 23.29, 90: 24.47, 100: 45.88, 120: 41.41},
}


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def cargo(*arguments):
    command = [os.environ.get("CARGO", "cargo"), *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def built(arches):
    """The bench, whose engine has kernels for these architectures, and the simulated driver."""
    if not set(arches) <= set(ARCHES):
        # Others need not be among those of a wheel.
        os.environ.setdefault("WINDROW_CUDA_ARCHS", ",".join(map(str, arches)))
    driver = os.environ.get("WINDROW_CUDA_DRIVER")
    driver = driver or subprocess.run([ROOT / "scripts/sim/simulated_driver.sh"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    messages = json_lines(cargo("test-all", "--bench", "gather", "--no-run", "--message-format=json-render-diagnostics"))
    bench = next(m["executable"] for m in messages if m.get("executable") and m["target"]["name"] == "gather")
    return bench, driver


def run(bench, driver, cubin, only=None, scale=1, pairs=False, **environment):
    """The bench's line for each workload, with the counts of its launches; `scale` divides the numbers of samples."""
    with tempfile.TemporaryDirectory() as folder:
        counts = pathlib.Path(folder) / "counts"
        counts.touch()
        environment = {
            **os.environ,
            "WINDROW_CUDA_DRIVER": str(driver),
            "CUDASIM_DEVICE_CODE": str(cubin.resolve()),
            "CUDASIM_COUNTS": str(counts),
            "CUDASIM_DELAY_US": "0",
            "CUDASIM_MEMORY": str(8 << 30),
            "CUDASIM_MULTIPROCESSORS": str(MULTIPROCESSORS),
            "WINDROW_REQUIRE_GPU": "1",
            **environment,
        }
        command = [bench, "--bench", "--count", "--scale", str(scale), *(["--only", only] if only else []), *(["--pairs"] if pairs else [])]
        said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
        if said.returncode:
            sys.exit(f"{said.stdout}\nthe workloads failed on {cubin}")
        launches = json_lines(counts.read_text())
    found = []
    for workload in json_lines(said.stdout):
        workload_launches, launches = launches[: workload["launches"]], launches[workload["launches"] :]
        found.append((workload, workload_launches))
    if launches:
        sys.exit("launches that belong to no workload")
    if not found:
        sys.exit(f"no workload has {only} in its name")
    return found


def row(workload, launches):
    """A row of the file, and what else is known of it."""
    total = lambda *path: sum(value_at(launch, path) for launch in launches)
    written, read = workload["written"], workload["read"]
    instructions = total("instructions")
    line = {
        "workload": workload["workload"],
        "arch": launches[0]["arch"],
        "scale": 1,
        "instructions_per_16_bytes": round(instructions * 32 * 16 / written, 2),
        "active_lanes": round(total("lanes") / instructions, 2),
        "few_lanes_share": round(total("few") / instructions, 4),
        "load_sectors_ratio": round(total("sample", "sectors") / (read / 32), 3),
        "store_sectors_ratio": round(total("store", "sectors") / (written / 32), 3),
        "table_loads": round(total("table", "requests") / (written / 512), 3),
        "registers": max(launch["registers"] for launch in launches),
        "code_bytes": sum({launch["kernel"]: launch["code_bytes"] for launch in launches}.values()),
    }
    more = {
        "spills": round(total("local", "requests") / (written / 512), 2),
        "case": workload["case"],
        "launches": len(launches),
        "kernels": sorted({launch["kernel"] for launch in launches}),
        "warps": sum(launch["grid"] * launch["block"] // 32 for launch in launches),
    }
    return line, more


def value_at(value, path):
    for key in path:
        value = value[key]
    return value


def rows(found):
    """All cases, several of which may have one name."""
    if silent := [workload["workload"] for workload, launches in found if not launches]:
        sys.exit(f"{', '.join(silent)}: nothing was launched")
    return [row(workload, launches) for workload, launches in found]


def dearest(counted):
    """One for each name and architecture, as in the file."""
    best = {}
    for line, more in sorted(counted, key=lambda case: case[0]["instructions_per_16_bytes"]):
        best[key(line)] = line, more
    return list(best.values())


def show(counted):
    print(f"{'workload':26}{'sm':>4}{'/16 B':>8}{'bound':>7}{'lanes':>7}{'few':>6}{'load x':>8}{'store x':>8}{'table':>7}{'spills':>7}{'regs':>5}{'warps':>7}  kernels")
    for line, more in counted:
        print(
            f"{line['workload']:26}{line['arch']:4}{line['instructions_per_16_bytes']:8.1f}{bound_of(line):7.1f}{line['active_lanes']:7.1f}"
            f"{line['few_lanes_share']:6.2f}{line['load_sectors_ratio']:8.2f}{line['store_sectors_ratio']:8.2f}{line['table_loads']:7.1f}"
            f"{more['spills']:7.2f}{line['registers']:5}{more['warps']:7}  {', '.join(more['kernels'])}  {more['case']}"
        )


def bound_of(line):
    name, arch = line["workload"], line["arch"]
    has_float8 = "f8" in name or name in QUANTISED
    return BOUNDS.get(name, ANY) * (1 if arch == 90 else WITHOUT_FLOAT8 if arch == 80 and has_float8 else OTHER_ARCHES)


def missed(line, more=None):
    """The figures of a row that are above their bounds: name -> figure, bound. A row of the file has fewer figures."""
    name = line["workload"]
    checks = [
        (INSTRUCTIONS, line["instructions_per_16_bytes"], bound_of(line)),
        (LOST_LANES, 32 - line["active_lanes"], 32 - LANES.get(name, 26)),
        (STORES, line["store_sectors_ratio"], STORE_SECTORS.get(name, 1.13)),
        (LOADS, line["load_sectors_ratio"], LOAD_SECTORS.get(name, 5.5)),
    ]
    if more:
        checks += [
            (SPILLED, more["spills"], SPILLS),
            (LAUNCHES, more["launches"], 1),
            (EMPTY_SLOTS, WARPS.get(name, 0) - more["warps"], 0),
        ]
    return {what: (round(found, 3), bound) for what, found, bound in checks if found > bound}


def known_miss(line, more, what):
    """The figure that MISSED has. A row of the file is of any case."""
    key = (line["workload"], more and more["case"], what)
    figures = (by.get(line["arch"], 0) for (name, case, miss), by in MISSED.items() if (name, more and case, miss) == key)
    return max(figures, default=0)


def above_bounds(line, more=None):
    """Bounds that are missed by more than MISSED has."""
    faults = []
    for what, (found, bound) in missed(line, more).items():
        text = f"{line['workload']}, sm_{line['arch']}: {found:g} {what}, at most {bound:g}"
        if more and more["case"]:
            text += f" ({more['case']})"
        known = known_miss(line, more, what)
        if found > known:
            faults.append(f"{text}, and {known:g} as a known miss" if known else text)
        elif more:
            print(f"known miss: {text}")
    return faults


def met(counted):
    """The entries of MISSED that are no longer missed."""
    found = {(*key(line), more["case"]): missed(line, more) for line, more in counted}
    return [
        f"{name}, sm_{arch}{', ' * bool(case)}{case}: the bound of {what} is met: take it out of MISSED"
        for (name, case, what), figures in MISSED.items()
        for arch in figures
        if what not in found.get((name, arch, case), {what: None})
    ]


def risen(line, known):
    before = known.get(key(line))
    if before is None:
        return [f"{line['workload']}, sm_{line['arch']}: no count in {COUNTS.name} to compare with"]
    name = "instructions_per_16_bytes"
    if line[name] <= before[name] * (1 + LIMIT):
        return []
    return [f"{line['workload']}, sm_{line['arch']}: {name} rose from {before[name]} to {line[name]}"]


def gate(counted, is_whole):
    """Faults of the counts of one architecture: of all workloads, or of some."""
    arch = counted[0][0]["arch"]
    if arch not in ARCHES:
        print(f"sm_{arch}: no counts are kept, so there is nothing to compare with")
        return []
    known = {key(line): line for line in written()}
    absent = set(BOUNDS) - {line["workload"] for line, _ in counted} if is_whole else set()
    faults = [f"{name}, sm_{arch}: is no longer counted" for name in sorted(absent)]
    for line, _ in dearest(counted):
        faults += risen(line, known)
    for line, more in counted:
        faults += above_bounds(line, more)
    return faults + met(counted)


def faults_of_files():
    """Faults of the file, and of the table that is written from it."""
    lines = written()
    found, wanted = collections.Counter(key(line) for line in lines), itertools.product(BOUNDS, ARCHES)
    wanted = collections.Counter(wanted)
    faults = [f"{name}, sm_{arch}: {found[name, arch]} rows, {wanted[name, arch]} wanted" for name, arch in (found - wanted) + (wanted - found)]
    faults += [f"{line['workload']}, sm_{line['arch']}: counted at 1/{line['scale']}, at least 1/4 is wanted" for line in lines if line["scale"] > 4]
    faults += [fault for line in lines for fault in above_bounds(line)]
    if not faults and DOCS.read_text() != documented(lines):
        faults.append(f"the counts of {DOCS.relative_to(ROOT)} are not those of {COUNTS.name}: scripts/ci/run.sh scripts/sim/device_counts.py --write")
    return faults


def key(line):
    return line["workload"], line["arch"]


def written():
    """The rows of the file."""
    return json.loads(COUNTS.read_text()) if COUNTS.exists() else []


def write(counted):
    """Puts rows into the file in place of those of the same workload and architecture."""
    rows = {**{key(line): line for line in written()}, **{key(line): line for line, _ in counted}}
    lines = sorted(rows.values(), key=lambda line: (list(BOUNDS).index(line["workload"]), line["arch"]))
    COUNTS.write_text("[\n" + ",\n".join(" " + json.dumps(line) for line in lines) + "\n]\n")
    DOCS.write_text(documented(lines))


def between(text, marks, inside):
    before, rest = text.split(marks[0])
    return f"{before}{marks[0]}\n\n{inside}\n\n{marks[1]}{rest.split(marks[1])[1]}"


def documented(lines):
    return between(DOCS.read_text(), MARKS, f"{table(lines)}\n\n{grown(lines)}")


def instructions_of(line):
    """Cells of the table: bold where the bound is missed."""
    if line is None:
        return "-"
    text, bound = f"{line['instructions_per_16_bytes']:.1f}", bound_of(line)
    return f"**{text}**" if line["instructions_per_16_bytes"] > bound else text


def table(lines):
    """Rows of sm_90; of the other architectures the instructions."""
    by = {key(line): line for line in lines}
    heads = "| workload | at most | " + " | ".join(f"sm_{arch}" for arch in ARCHES)
    out = [f"{heads} | lanes | few | loads | stores | table | registers |", "|---|" + "---:|" * (len(ARCHES) + 7)]
    for name, bound in BOUNDS.items():
        if (name, 90) not in by:
            continue
        line = by[name, 90]
        counts = " | ".join(instructions_of(by.get((name, arch))) for arch in ARCHES)
        out.append(
            f"| {name} | {bound} | {counts} | {line['active_lanes']:.1f} | "
            f"{line['few_lanes_share']:.2f} | {line['load_sectors_ratio']:.2f} | {line['store_sectors_ratio']:.2f} | {line['table_loads']:.1f} | {line['registers']} |"
        )
    return "\n".join(out)


def grown(lines):
    """The rows in which another architecture takes over 5 % more than sm_90."""
    by = {key(line): line["instructions_per_16_bytes"] for line in lines}
    more = {(name, arch): count / by[name, 90] - 1 for (name, arch), count in by.items() if (name, 90) in by}
    texts = [f"{name} on sm_{arch} by {share:.1%}" for (name, arch), share in more.items() if share > OTHER_ARCHES - 1]
    return textwrap.fill(f"More than 5 % above the count of sm_90: {', '.join(texts)}.", 120)


def pair_bound(name, pair):
    if name != "adjacent":
        return ANY
    if "float64" in pair:
        return FLOAT64
    return FLOATS_OF_16_BITS if "float32" in pair and {"float16", "bfloat16"} & set(pair) else ANY


def pair_table(counted):
    """Instructions of pairs of dtypes, by layout; and how often each layout spills, and how many sectors it stores."""
    names = list(dict.fromkeys(line["workload"] for line, _ in counted))
    casts, spills, stores = {}, {name: [] for name in names}, {name: [] for name in names}
    for line, more in counted:
        name, case, count = line["workload"], more["case"], line["instructions_per_16_bytes"]
        text = f"{count:.0f}"
        casts.setdefault(case, {})[name] = f"**{text}**" if count > pair_bound(name, case.split(" to ")) else text
        spills[name].append(more["spills"])
        stores[name].append(line["store_sectors_ratio"])
    out = ["| cast | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    out += ["| " + " | ".join([case, *(counts.get(name, "-") for name in names)]) + " |" for case, counts in casts.items()]
    ranges = [f"{name} {min(of):.1f} to {max(of):.1f}" for name, of in spills.items()]
    most = [f"{name} {max(of):.2f}" for name, of in stores.items()]
    text = f"Spill requests for 512 bytes: {', '.join(ranges)}. Stored sectors, at most: {', '.join(most)} of the ideal."
    return "\n".join([*out, "", textwrap.fill(text, 120)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=int, action="append")
    parser.add_argument("--only", help="workloads whose name and case have this in them, such as 'strided worst, u8'")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--pairs", action="store_true", help="pairs of dtypes in place of workloads")
    parser.add_argument("--lines", type=pathlib.Path, help="where to put instructions by line of source: kernels compiled with -lineinfo")
    options = parser.parse_args()
    arches = options.arch or (ARCHES if options.write and not options.pairs else (90,))
    bench, driver = built(arches)
    # The model reads the counts, so it imports this module.
    import device_code
    import gpu_model as model

    def launches_of(arch):
        more = {"CUDASIM_LINES": str(options.lines)} if options.lines else {}
        if options.write and not options.pairs and arch == model.ARCH:
            more["CUDASIM_TIMING"] = model.timing()
        return run(bench, driver, device_code.compiled(arch), options.only, pairs=options.pairs, **more)

    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(arches, pool.map(launches_of, arches)))
    counted = {arch: rows(found[arch]) for arch in arches}
    show([case for arch in arches for case in counted[arch]])
    if options.pairs:
        text = pair_table(counted[arches[0]])
        if options.write:
            DOCS.write_text(between(DOCS.read_text(), PAIR_MARKS, text))
        return print(text)
    if options.write:
        write(dearest(case for arch in arches for case in counted[arch]))
        if model.ARCH in found:
            model.record(found[model.ARCH])
        model.write()
    faults = [fault for arch in arches for fault in gate(counted[arch], options.only is None)] if options.check else []
    if faults:
        sys.exit("\n".join([*faults, "If a rise is meant: scripts/ci/run.sh scripts/sim/device_counts.py --write, and say why in the commit."]))


if __name__ == "__main__":
    main()
