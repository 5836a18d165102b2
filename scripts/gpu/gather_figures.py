"""Tables and plots of a run of the bench gather, for plots.py: windrow from Rust, beside copies and other gathers."""

from __future__ import annotations

import math
import re

from bench import chart

WINDROW, AGAIN = "windrow", "windrow, again"
COPY, COPY16, EMPTY = "one cuMemcpyDtoD of as many bytes", "copy kernel, 16 bytes a lane", "one empty launch"
BUS_COPY = "one cuMemcpyHtoD of as many bytes"
PEERS = {
    "cub::DeviceMemcpy::Batched": ("CUB", 1),
    "a block for each buffer": ("block per buffer", 2),
    "cuMemcpyBatchAsync": ("batched memcpy", 3),
    "cuMemcpyAsync for each sample": ("memcpy for each", 4),
}
ROOF = "share of the roof, the better of two plain copies"


def series(workload, name, cold=True):
    return next((s for s in workload["series"] if s["name"] == name and s["cold"] == cold), None)


def median(workload, name, cold=True):
    found = series(workload, name, cold)
    return found["device_us"][1] if found else None


def share(workload, name=WINDROW):
    found = series(workload, name)
    return found["of_roof"] if found else None


def peers(workload):
    """Other ways to the same batch, the fastest first."""
    found = [s for s in workload["series"] if s["cold"] and s["name"] in PEERS]
    return sorted(found, key=lambda s: s["device_us"][1])


def control(run, workload):
    return next((w for w in run["workloads"] if w["title"] == workload["title"] and w["lie"] == "contiguous"), None)


def label(workload):
    """Short enough for the side of a plot: bytes, the number of 512 bytes, or the name of the workload."""
    if workload["family"] not in ("size", "count", "W8"):
        return workload["family"]
    name = re.sub(r"(64|32) MiB of ", "", workload["title"]).replace(" of 512 B", " x 512 B")
    return f"{name}, odd" if workload["lie"] == "misaligned" else name


def versus(ratio):
    return f"{ratio:.2f}{' **behind**' if ratio < 1 else ''}"


def gigabytes(workload, microseconds):
    return f"{workload['bytes'] / microseconds / 1e3:.0f}" if microseconds else "-"


def family_series(run, family, x):
    """The share of the roof over x, for windrow's three layouts and each peer."""
    mine = [w for w in run["workloads"] if w["family"] == family]
    lines = []
    for lie, stroke in (("scattered", ""), ("misaligned", "dashed"), ("contiguous", "dotted")):
        points = [(x(w), share(w)) for w in mine if w["lie"] == lie and share(w)]
        if points:
            lines.append(chart.Series(f"windrow, {lie}", sorted(points), 0, stroke))
    for name, (short, colour) in PEERS.items():
        points = [(x(w), share(w, name)) for w in mine if w["lie"] == "scattered" and share(w, name)]
        if points:
            lines.append(chart.Series(short, sorted(points), colour))
    return lines


def plots(run):
    """The pictures by name."""
    found = {}
    for family, title, x, x_label in (
        ("size", "64 MiB of samples of one size", lambda w: w["source_bytes"] / w["samples"], "bytes of a sample"),
        ("count", "Samples of 512 bytes", lambda w: w["samples"], "samples"),
    ):
        lines = family_series(run, family, x)
        if lines:
            found[family] = chart.lines(title, lines, x_label, ROOF, True, False, True, powers=family == "size")
    pairs = [(w, control(run, w)) for w in run["workloads"] if w["lie"] in ("scattered", "misaligned")]
    rows = [chart.Row(label(w), [share(w), share(c)]) for w, c in pairs if c and w["family"] != "count"]
    if rows:
        names = [("scattered, or misaligned", 0), ("contiguous", 5)]
        found["contiguous"] = chart.bars("Scattered against contiguous samples", names, rows, ROOF, True)
    names = [(WINDROW, 0), *PEERS.values()]
    rows = [chart.Row(label(w), [share(w), *(share(w, name) for name in PEERS)]) for w in run["workloads"] if peers(w)]
    if rows:
        found["peers"] = chart.bars("windrow and other ways to the same bytes", names, rows, ROOF, True)
    return found


def about(run):
    machine = run["machine"]
    keys = ("gpu", "driver", "clocks at the start (SM, memory)", "clocks at the end (SM, memory)", "power limit", "date", "commit")
    return "; ".join(f"{key}: {machine.get(key, 'not told')}" for key in keys)


def ceilings(run):
    lines = ["| what | bytes | us | GB/s |", "|---|---:|---:|---:|"]
    for w in run["workloads"]:
        pinned = w["lie"] == "page-locked"
        if w["family"] != "one" and not (pinned and w["family"] == "W8"):
            continue
        names = (BUS_COPY, COPY16) if pinned else (COPY, COPY16, EMPTY)
        for name in names:
            us = median(w, name)
            if us:
                said = f"{name}, from page-locked memory" if pinned and name == COPY16 else name
                speed = "" if name == EMPTY else gigabytes(w, us)
                lines.append(f"| {said} | {w['bytes']} | {us:.1f} | {speed} |")
    return "\n".join(lines)


def results(run):
    lines = [
        "| workload | us, cold | p10..p90 | GB/s | of the roof | us, warm | host us | launches | scattered / contiguous | best peer | its time / ours |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|---:|",
    ]
    for w in run["workloads"]:
        ours, whole, others = series(w, WINDROW), control(run, w), peers(w)
        low, middle, high = ours["device_us"]
        warm = f"{us:.1f}" if (us := median(w, WINDROW, False)) else "-"
        ratio = f"{middle / median(whole, WINDROW):.2f}" if whole and whole is not w else ""
        best = f"{PEERS[others[0]['name']][0]} | {versus(others[0]['device_us'][1] / middle)}" if others else " | "
        lines.append(
            f"| {w['title']}, {w['lie']} | {middle:.1f} | {low:.1f}..{high:.1f} | {gigabytes(w, middle)} | {ours['of_roof'] or 0:.2f} "
            f"| {warm} | {ours['host_us'][1]:.1f} | {w['launches']} | {ratio} | {best} |"
        )
    return "\n".join(lines)


def missed(run):
    lines = [
        f"- {t['workload']}: {t['found']:.3g} {t['what']}, wanted at {'least' if t['at_least'] else 'most'} {t['bound']:g}"
        for t in run["targets"]
        if t["verdict"] == "MISSED"
    ]
    return "Targets that were missed:\n\n" + "\n".join(lines) if lines else "No target was missed, or none was judged."


def short(run):
    lines = ["| workload | windrow | of the roof | best peer | its time / ours |", "|---|---:|---:|---|---:|"]
    for w in run["workloads"]:
        if not w["family"].startswith("W") or w["lie"] == "contiguous":
            continue
        us, others = median(w, WINDROW), peers(w)
        best = f"{PEERS[others[0]['name']][0]} | {versus(others[0]['device_us'][1] / us)}" if others else "- | -"
        lines.append(f"| {w['title']} | {us:.0f} us | {share(w) or 0:.2f} | {best} |")
    return "\n".join(lines)


def trials(run):
    """The geometric mean of each trial's times over the policy's own, and the workloads it is best and worst for."""
    policy_us, ratios, drift = {}, {trial["name"]: {} for trial in run["trials"]}, []
    for w in run["workloads"]:
        name, first, last = f"{w['title']}, {w['lie']}", median(w, WINDROW), median(w, AGAIN)
        if not first or not last:
            continue
        policy_us[name] = (first + last) / 2
        drift.append(last / first)
        for trial, of in ratios.items():
            if us := median(w, trial):
                of[name] = us / policy_us[name]
    lines = ["| trial | all | best for | | worst for | |", "|---|---:|---|---:|---|---:|"]
    mean = lambda values: math.exp(sum(map(math.log, values)) / len(values))
    for trial, of in sorted(((trial, of) for trial, of in ratios.items() if of), key=lambda item: mean(item[1].values())):
        best, worst = min(of, key=of.get), max(of, key=of.get)
        lines.append(f"| {trial} | {mean(of.values()):.3f} | {best} | {of[best]:.3f} | {worst} | {of[worst]:.3f} |")
    if not drift:
        return "No trial was measured."
    text = f"Times over those of the policy's own numbers, whose second engine took {min(drift):.3f} to {max(drift):.3f} times the first."
    return "\n".join([text, "", *lines])


def sections(run):
    """Headings with what is below them."""
    return {"Ceilings": ceilings(run), "Batches from Rust": f"{about(run)}\n\n{results(run)}\n\n{missed(run)}"}
