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

HEADLINE = {
    "W1": "256 images, normalised to float16 CHW",
    "W2": "4096 token rows, padded to int64, mask",
    "W4b": "512 int16 audio clips, ragged float32",
    "W5": "4096 dicts of 8 fields, collated",
    "W3": "100 000 rows of 512 bytes, stacked",
    "small": "8 rows of 256 bytes, stacked",
}
"""The workloads that stand for all, in the words of a reader who does not know their names."""

SOURCES = {
    "W4b": ("source-tokens", "64 token lists of a tokenizer, padded, mask"),
    "W3": ("source-tensordict", "256 TensorDicts of 30 tensors, stacked"),
}
"""Names that replace others where a report has them."""

THROUGHPUT = "GB/s, read and written"


def plots(report: Report, standalone: bool = False) -> Dict[str, str]:
    """Every plot that the report has figures for: the name of its file without suffix, and the picture."""
    found = {f"scaling-{sweep['name']}": sweep_chart(sweep, standalone) for sweep in report.get("sweeps", []) if sweep["points"]}
    pairs = results.pairs(report)
    if any(pair.contiguous for pair in pairs):
        found["layouts"] = layouts(pairs, standalone)
    if pairs and report.get("schema"):
        found["share"] = shares(pairs, standalone)
    if results.beside_fastest(report, headline_titles(report)):
        found["headline"] = headline(report, standalone)
    return found


def headline_titles(report: Report) -> Dict[str, str]:
    """The names and titles of the workloads that stand for all in this report, as many as there are of `HEADLINE`."""
    names = {pair.scattered["name"] for pair in results.pairs(report) if results.fastest_peer(pair.scattered)}
    found = {}
    for name, title in HEADLINE.items():
        other, its_title = SOURCES.get(name, ("", ""))
        found.update({other: its_title} if other in names else {name: title})
    return found


def headline(report: Report, standalone: bool) -> str:
    """windrow's speed over that of the fastest of the others, by name."""
    titles, rows = headline_titles(report), []
    for entry, peer in results.beside_fastest(report, titles):
        ratio = results.ratio(entry, peer)
        rows.append(chart.Row(titles[entry["name"]], [ratio], f"{ratio:.1f} x {peer['name']}" if ratio else ""))
    return chart.ratios("Speed of windrow, as a multiple of the fastest other library's", rows, "1 x: equally fast; logarithmic", standalone)


def sweep_chart(sweep: Entry, standalone: bool) -> str:
    """Throughput over sizes, numbers and threads; over leaves the time of one sample."""
    per_sample, threads = sweep["name"] == "leaves", sweep["name"].startswith("threads")
    series = []
    for curve in results.curves(sweep):
        values = {x: y * 1e9 for x, y in curve.seconds.items()} if per_sample else curve.rate
        stroke = "dotted" if curve.name == results.MEMCPY else "dashed" if curve.layout == "contiguous" else ""
        series.append(chart.Series(curve.label, sorted(values.items()), COLOURS[curve.name], stroke))
    unit = f" ({sweep['unit']})" if sweep["unit"] else ""
    y_label = "ns per sample" if per_sample else THROUGHPUT
    return chart.lines(sweep["title"], series, f"{sweep['axis']}{unit}", y_label, True, not threads, standalone, powers=True)


def layouts(pairs: List[results.Pair], standalone: bool) -> str:
    """Throughput from scattered samples and from one piece."""
    rows = []
    for entry, whole in pairs:
        values = []
        for pick in (lambda e: results.find(e, "windrow"), results.fastest_peer):
            values += [results.throughput(e, pick(e)) if e else None for e in (entry, whole)]
        rows.append(chart.Row(entry["title"], values))
    names = [("windrow", 0), ("fastest other", 1)]
    return chart.dumbbells("Throughput from scattered samples and from one piece", names, rows, THROUGHPUT + ", logarithmic", standalone)


def shares(pairs: List[results.Pair], standalone: bool) -> str:
    """Speed over that of a plain copy of as many bytes: the roof at 1."""
    rows = []
    for entry, whole in pairs:
        found = [results.find(entry, "windrow"), results.find(whole, "windrow") if whole else None, results.fastest_peer(entry)]
        rows.append(chart.Row(entry["title"], [result.get("share") if result else None for result in found]))
    names = [("windrow, scattered", 0), ("windrow, in one piece", 5), ("fastest other, scattered", 1)]
    return chart.bars("Share of the speed of a plain copy", names, rows, "speed, as a share of the fastest plain copy of as many bytes", standalone)
