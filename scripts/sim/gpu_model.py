#!/usr/bin/env python3
"""Predicts how long each workload takes on an H200: what is counted, what is modelled, what is assumed.

scripts/sim/gpu_model.py            prints the table, from benches/device-instructions.json and benches/device-times.json
scripts/sim/gpu_model.py --write    writes the tables of docs/gpu-performance.md
scripts/sim/gpu_model.py --check    fails where the tables there and the files do not belong together, a row is not there once, or a
                                    count is above its bound and no known miss

Nothing here was measured on a GPU. Instructions, sectors and bytes are counted: the kernels' machine code was executed by
scripts/sim/device_counts.py. The rest follows from CONSTANTS by arithmetic, or by the timing model of one multiprocessor
(crates/cudasim/device_code/timing.cpp), which takes the same numbers and ran with the counts.
"""

import argparse
import json
import pathlib
import sys

sys.dont_write_bytecode = True
import device_counts as counts  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIMES = ROOT / "benches/device-times.json"
MARKS = "<!-- model: written by scripts/sim/gpu_model.py -->", "<!-- end of model -->"
CONSTANT_MARKS = "<!-- constants: written by scripts/sim/gpu_model.py -->", "<!-- end of constants -->"
ARCH = 90


DATASHEET, ASSUMED, OTHERS = "data sheet", "assumed", "measured by others"

# Name -> number, unit, how it is known, where from. All that the model is told; the names that the simulator's timing
# model knows are in TIMING.
CONSTANTS = {
    "multiprocessors": (counts.MULTIPROCESSORS, "", DATASHEET, "NVIDIA H200 (SXM)"),
    "gigahertz": (1.755, "GHz", DATASHEET, "H100 SXM's boost clock for both; under load it may be lower"),
    "bytes_per_second": (4.3e12, "B/s", ASSUMED, "of the 4.8e12 of the data sheet, by a copy that reads and writes; 4.0 to 4.3 expected"),
    "issued": (2.0, "a clock", ASSUMED, "instructions of warps that a multiprocessor issues; its four schedulers can issue 4"),
    "latency": (800.0, "clocks", ASSUMED, "of a load from memory that is busy"),
    "l1_latency": (38.0, "clocks", ASSUMED, "of a load that the first cache has; published microbenchmarks have 30 to 40"),
    "l1_bytes": (192 << 10, "B", DATASHEET, "of 256 KiB, the rest of which is shared memory and unused"),
    "launch_us": (2.5, "us", OTHERS, "a kernel from launch to end: 2 to 3 (tritonbench #1017)"),
    "upload_us": (2.0, "us", OTHERS, "a copy from page-locked memory, whatever its size: 2.3 on an H20 (FlexKV #193)"),
    "bus_bytes_per_second": (52e9, "B/s", OTHERS, "host to device by the copy engine, PCIe 5 x16 (nvbandwidth #24, H100)"),
    "bus_reads_per_second": (35e9, "B/s", OTHERS, "page-locked memory read by kernels (the same)"),
}
TIMING = "multiprocessors", "gigahertz", "bytes_per_second", "latency", "l1_latency", "l1_bytes"


def constant(name):
    return CONSTANTS[name][0]


def timing():
    """The value of CUDASIM_TIMING for a run that is to be recorded."""
    return ",".join(f"{name}={constant(name)}" for name in TIMING)


def record(found):
    """Writes the file of a run of all workloads."""
    rows = []
    for workload, launches in found:
        rows.append({
            "workload": workload["workload"],
            "samples": workload["samples"],
            "bytes_read": workload["read"],
            "bytes_written": workload["written"],
            "table_bytes_uploaded": workload["uploaded"],
            "launches": len(launches),
            "warps": sum(launch["grid"] * launch["block"] // 32 for launch in launches),
            "instructions": sum(launch["instructions"] for launch in launches),
            "timing_model_us": round(sum(launch["model_us"] for launch in launches), 2),
        })  # fmt: skip
    # The dearest of several with one name, as in the other file.
    best = {}
    for row in sorted(rows, key=lambda row: row["instructions"] / row["bytes_written"]):
        best[row["workload"]] = row
    known = json.loads(TIMES.read_text()) if TIMES.exists() else []
    best = {**{row["workload"]: row for row in known}, **best}
    lines = sorted(best.values(), key=lambda row: list(counts.BOUNDS).index(row["workload"]))
    TIMES.write_text("[\n" + ",\n".join(" " + json.dumps(line) for line in lines) + "\n]\n")


def predicted(time, count):
    """The line of a workload: microseconds of each part, and of all."""
    written = time["bytes_written"]
    memory = (time["bytes_read"] + written) / constant("bytes_per_second") * 1e6
    warp_instructions = count["instructions_per_16_bytes"] * written / 16 / 32
    issue = warp_instructions / (constant("multiprocessors") * constant("gigahertz") * 1e3 * constant("issued"))
    table = time["table_bytes_uploaded"]
    upload = constant("upload_us") + table / constant("bus_bytes_per_second") * 1e6 if table else 0.0
    model = time["timing_model_us"]
    launch = constant("launch_us") * time["launches"]
    parts = {"memory": memory, "issue": issue, "table": upload, "launch": launch}
    limits = [name for name, us in parts.items() if us >= 0.75 * max(parts.values())]
    us = launch + upload + max(memory, issue, model)
    # A copy has to be launched too.
    return {**parts, "model": model, "us": us, "of_roof": (memory + constant("launch_us")) / us, "limits": limits}


def read():
    """Name -> times, count; both files have the same names."""
    counted = {line["workload"]: line for line in counts.written() if line["arch"] == ARCH}
    times = {line["workload"]: line for line in json.loads(TIMES.read_text())}
    if odd := set(counted) ^ set(times):
        sys.exit(f"{', '.join(sorted(odd))}: in one of {counts.COUNTS.name} and {TIMES.name} only: scripts/ci/run.sh scripts/sim/device_counts.py --write")
    return {name: (times[name], counted[name]) for name in counted}


def table():
    heads = [
        "workload", "MB read + written (counted)", "instructions for 16 B (counted)", "sectors of loads, stores (counted)", "table, KB uploaded (counted)",
        "memory us (assumed)", "issue us (counted, 2 a clock assumed)", "timing model us (assumed)", "us in all (predicted)", "of roof", "limit",
    ]  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 2) + "---|"]
    for name, (time, count) in read().items():
        of = predicted(time, count)
        cells = [
            name,
            f"{time['bytes_read'] / 1e6:.1f} + {time['bytes_written'] / 1e6:.1f}",
            f"{count['instructions_per_16_bytes']:.1f}",
            f"{count['load_sectors_ratio']:.2f}, {count['store_sectors_ratio']:.2f}",
            f"{time['table_bytes_uploaded'] / 1e3:.1f}",
            f"{of['memory']:.1f}",
            f"{of['issue']:.1f}",
            f"{of['model']:.1f}",
            f"{of['us']:.1f}",
            f"{of['of_roof']:.2f}",
            ", ".join(of["limits"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def constants():
    lines = ["| constant | value | known how | source |", "|---|---:|---|---|"]
    for name, (number, unit, how, source) in CONSTANTS.items():
        lines.append(f"| `{name}` | {number:g} {unit} | {how} | {source} |".replace("  |", " |"))
    return "\n".join(lines)


def documented():
    return counts.between(counts.between(counts.DOCS.read_text(), MARKS, table()), CONSTANT_MARKS, constants())


def write():
    counts.DOCS.write_text(documented())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    print(table(), constants(), "Counted: the machine code was executed. Assumed: see the constants. Measured on a GPU: nothing.", sep="\n\n")
    if options.write:
        write()
    if options.check and (faults := counts.faults_of_files()):
        sys.exit("\n".join(faults))
    if options.check and counts.DOCS.read_text() != documented():
        sys.exit(f"{counts.DOCS.relative_to(ROOT)} is not what this prints: scripts/sim/gpu_model.py --write")


if __name__ == "__main__":
    main()
