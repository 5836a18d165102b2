#!/usr/bin/env python3
"""Prints what limits a kernel, from the files that `ncu --csv --page raw` wrote.

stalls.py [--json FILE] NAME CSV [NAME CSV]...    NAME is the workload; --json writes the rows too

A metric that a release of ncu does not have is left out of its row.
"""

import argparse
import csv
import json
import sys

# Metric -> its name in a row. Two names of one thing: releases differ.
METRICS = {
    "gpu__time_duration.sum": "ns",
    "dram__bytes_read.sum": "read B",
    "dram__bytes_write.sum": "written B",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "dram %",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram %",
    "l1tex__t_sector_hit_rate.pct": "L1 hit %",
    "lts__t_sector_hit_rate.pct": "L2 hit %",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "warps %",
    "launch__registers_per_thread": "registers",
    "launch__waves_per_multiprocessor": "waves",
    "smsp__inst_executed.sum": "instructions",
    "smsp__issue_active.avg.pct": "issue %",
    "smsp__issue_active.avg.per_cycle_active": "issued",
}
STALL, PER = "smsp__average_warps_issue_stalled_", "_per_issue_active"


def number(text):
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def rows_of(workload, path):
    """A row for each launch of one of windrow's kernels."""
    rows = []
    with open(path, errors="replace") as file:
        for cells in csv.DictReader(line for line in file if line.startswith('"')):
            kernel = cells.get("Kernel Name") or ""
            if "windrow" not in kernel:
                continue
            row = {"workload": workload, "kernel": kernel.split("(")[0]}
            for metric, name in METRICS.items():
                if (value := number(cells.get(metric))) is not None:
                    row[name] = value
            stalls = {
                metric[len(STALL) :].split("_per_")[0]: value
                for metric, text in cells.items()
                if metric and metric.startswith(STALL) and PER in metric and "not_issued" not in metric and (value := number(text)) is not None
            }
            row["stalls"] = dict(sorted(stalls.items(), key=lambda pair: -pair[1]))
            rows.append(row)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("files", nargs="+", metavar="NAME CSV")
    options = parser.parse_args()
    if len(options.files) % 2:
        parser.error("a CSV for each NAME")
    rows, status = [], 0
    for workload, path in zip(options.files[::2], options.files[1::2]):
        found = rows_of(workload, path)
        if not found:
            print(f"FAILED: {workload}: no launch of windrow's in {path}")
            status = 1
        rows += found
    for row in rows:
        figures = ", ".join(f"{name} {value:g}" for name, value in row.items() if name not in ("workload", "kernel", "stalls"))
        print(f"{row['workload']}: {row['kernel']}: {figures}")
        print("   warps stalled:", ", ".join(f"{name} {value:.2f}" for name, value in list(row["stalls"].items())[:6]))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file)
    return status


if __name__ == "__main__":
    sys.exit(main())
