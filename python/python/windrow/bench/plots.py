"""The plots of a report, by name."""

from __future__ import annotations

from typing import Dict, List

from . import chart, results
from .results import Entry, Report

GRAY = len(chart.PALETTE) - 1
COLOURS = {
    "windrow": 0,
    "windrow, SampleList.take": 5,
    "torch.stack": 1,
    "default_collate": 1,
    "np.stack": 2,
    "torch.stack for each field": 4,
    "np.stack for each field": 2,
    "DALI as_batch": 3,
    results.MEMCPY: GRAY,
}
"""One colour for one contender in all plots."""

THROUGHPUT = "GB/s, read and written"


def plots(report: Report, standalone: bool = False) -> Dict[str, str]:
    """Every plot that the report has figures for: the name of its file without suffix, and the picture."""
    found = {f"scaling-{sweep['name']}": of_sweep(sweep, standalone) for sweep in report.get("sweeps", []) if sweep["points"]}
    pairs = results.pairs(report)
    if any(pair.contiguous for pair in pairs):
        found["layouts"] = layouts(pairs, standalone)
    if pairs and report.get("schema"):
        found["share"] = shares(pairs, standalone)
    return found


def of_sweep(sweep: Entry, standalone: bool) -> str:
    """Throughput over sizes, numbers and threads; over leaves the time of one sample."""
    per_sample, threads = sweep["name"] == "leaves", sweep["name"].startswith("threads")
    series = []
    for curve in results.curves(sweep):
        values = {x: y * 1e9 for x, y in curve.seconds.items()} if per_sample else curve.rate
        stroke = "dotted" if curve.name == results.MEMCPY else "dashed" if curve.layout == "contiguous" else ""
        series.append(chart.Series(results.label(curve), sorted(values.items()), COLOURS[curve.name], stroke))
    unit = f" ({sweep['unit']})" if sweep["unit"] else ""
    y_label = "ns per sample" if per_sample else THROUGHPUT
    return chart.lines(sweep["title"], series, f"{sweep['axis']}{unit}", y_label, True, not threads, standalone, powers=True)


def layouts(pairs: "List[results.Pair]", standalone: bool) -> str:
    """Throughput from scattered samples and from one piece."""
    rows = []
    for entry, whole in pairs:
        values = []
        for pick in (lambda e: results.find(e, "windrow"), results.fastest_peer):
            values += [results.throughput(e, pick(e)) if e else None for e in (entry, whole)]
        rows.append(chart.Row(entry["name"], values))
    names = [("windrow", 0), ("fastest other", 1)]
    return chart.dumbbells("Scattered against contiguous samples", names, rows, THROUGHPUT + ", logarithmic", standalone)


def shares(pairs: "List[results.Pair]", standalone: bool) -> str:
    """Speed over that of a plain copy of as many bytes: the roof at 1."""
    rows = []
    for entry, whole in pairs:
        found = [results.find(entry, "windrow"), results.find(whole, "windrow") if whole else None, results.fastest_peer(entry)]
        rows.append(chart.Row(entry["name"], [result.get("share") if result else None for result in found]))
    names = [("windrow, scattered", 0), ("windrow, in one piece", 5), ("fastest other, scattered", 1)]
    return chart.bars("Roofline: share of memory speed", names, rows, "speed / speed of the fastest plain copy of as many bytes", standalone)
