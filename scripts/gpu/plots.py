#!/usr/bin/env python3
"""Makes plots and tables of a run of the bench gather on a GPU.

scripts/gpu/plots.py gather.json [--sweep FOLDER] [--to FOLDER | --publish] [--simulated]

Writes SVG files, results.md and readme.md to a folder (out/gpu-plots). --sweep adds the trials that scripts/gpu/runner/sweep.sh
left in a folder. --publish takes the run to benches/results/, its plots to docs/plots/gpu/ and its tables between the marks of
docs/gpu-performance.md and README.md. Runs on the simulated driver are refused, but with --simulated, which shows that this
works and publishes nothing. Needs no more than the standard library.
"""

import argparse
import json
import math
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What is compiled here would go into the next wheel.
sys.dont_write_bytecode = True
# The package without the compiled module that `import windrow` wants.
sys.path.insert(0, str(ROOT / "python/python/windrow"))
from bench import chart  # noqa: E402

WINDROW = "windrow"
COPY, COPY16, EMPTY = "one cuMemcpyDtoD of as many bytes", "copy kernel, 16 bytes a lane", "one empty launch"
BUS_COPY = "one cuMemcpyHtoD of as many bytes"
PEERS = {
    "cub::DeviceMemcpy::Batched": ("CUB", 1),
    "a block for each buffer": ("block per buffer", 2),
    "cuMemcpyBatchAsync": ("batched memcpy", 3),
    "cuMemcpyAsync for each sample": ("memcpy for each", 4),
}
ROOF = "share of the roof, the better of two plain copies"


def load(path, simulated):
    run = json.loads(path.read_text(encoding="utf-8"))
    if run["times_mean_nothing"] and not simulated:
        sys.exit(f"{path}: from the simulated driver or --quick; its times mean nothing (--simulated takes it nevertheless)")
    return run


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
    name = re.sub(r"(64|32) MiB of | of 512 B$", "", workload["title"])
    return f"{name}, odd" if workload["lie"] == "misaligned" else name


def gigabytes(workload, microseconds):
    return f"{workload['bytes'] / microseconds / 1e3:.0f}" if microseconds else "-"


def of_family(run, family, x):
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
    """The pictures by the names of their files."""
    found = {}
    for family, title, x, x_label in (
        ("size", "64 MiB of samples of one size", lambda w: w["source_bytes"] / w["samples"], "bytes of a sample"),
        ("count", "Samples of 512 bytes", lambda w: w["samples"], "samples"),
    ):
        lines = of_family(run, family, x)
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
    warning = "**Simulated or quick: these times mean nothing.** " if run["times_mean_nothing"] else ""
    return warning + "; ".join(f"{key}: {machine.get(key, 'not told')}" for key in keys)


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
        ratio = f"{middle / median(whole, WINDROW):.2f}" if whole and whole is not w else ""
        best = f"{PEERS[others[0]['name']][0]} | {others[0]['device_us'][1] / middle:.2f}" if others else " | "
        lines.append(
            f"| {w['title']}, {w['lie']} | {middle:.1f} | {low:.1f}..{high:.1f} | {gigabytes(w, middle)} | {ours['of_roof'] or 0:.2f} "
            f"| {median(w, WINDROW, False) or 0:.1f} | {ours['host_us'][1]:.1f} | {w['launches']} | {ratio} | {best} |"
        )
    return "\n".join(lines)


def missed(run):
    lines = [
        f"- {t['workload']}: {t['found']:.3g} {t['what']}, wanted at {'least' if t['at_least'] else 'most'} {t['bound']:g}"
        for t in run["targets"]
        if t["verdict"] == "MISSED"
    ]
    return "Targets that were missed:\n\n" + "\n".join(lines) if lines else "No target was missed, or none was judged."


def readme(run):
    lines = ["| workload | windrow | of the roof | best peer | its time / ours |", "|---|---:|---:|---|---:|"]
    for w in run["workloads"]:
        if not w["family"].startswith("W") or w["lie"] == "contiguous":
            continue
        us, others = median(w, WINDROW), peers(w)
        best = f"{PEERS[others[0]['name']][0]} | {others[0]['device_us'][1] / us:.2f}" if others else "- | -"
        lines.append(f"| {w['title']} | {us:.0f} us | {share(w) or 0:.2f} | {best} |")
    return "\n".join(lines) + f"\n\nMedians on the device, cold; {about(run)}."


def trials(folder, simulated):
    """Of each trial the geometric mean of its times over the policy's own, and the workloads it is best and worst for."""
    runs = {path.stem: load(path, simulated) for path in sorted(folder.glob("*.json"))}
    own = [runs.pop(name) for name in ("default-first", "default-last") if name in runs]
    if not own:
        sys.exit(f"{folder}: no default-first.json")
    times = lambda run: {f"{w['title']}, {w['lie']}": median(w, WINDROW) for w in run["workloads"]}
    base = {name: sum(times(run)[name] for run in own) / len(own) for name in times(own[0])}
    drift = [times(own[-1])[name] / times(own[0])[name] for name in base]
    lines = ["| trial | all | best for | | worst for | |", "|---|---:|---|---:|---|---:|"]
    ratios = {trial: {name: us / base[name] for name, us in times(run).items() if name in base} for trial, run in runs.items()}
    mean = lambda values: math.exp(sum(map(math.log, values)) / len(values))
    for trial, of in sorted(ratios.items(), key=lambda item: mean(item[1].values())):
        best, worst = min(of, key=of.get), max(of, key=of.get)
        lines.append(f"| {trial} | {mean(of.values()):.3f} | {best} | {of[best]:.3f} | {worst} | {of[worst]:.3f} |")
    text = f"Times over those of the policy's own numbers, whose second run took {min(drift):.3f} to {max(drift):.3f} times the first."
    return "\n".join([text, "", *lines])


def between(path, mark, text):
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    head, rest = path.read_text(encoding="utf-8").split(begin)
    path.write_text(f"{head}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--sweep", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--to", type=pathlib.Path, metavar="FOLDER", default=ROOT / "out/gpu-plots")
    parser.add_argument("--publish", action="store_true")
    parser.add_argument("--simulated", action="store_true")
    options = parser.parse_args()
    if options.publish and options.simulated:
        parser.error("what the simulated driver gives is not published")
    run = load(options.run, options.simulated)
    to = ROOT / "docs/plots/gpu" if options.publish else options.to
    to.mkdir(parents=True, exist_ok=True)
    pictures = plots(run)
    for name, picture in pictures.items():
        (to / f"{name}.svg").write_text(picture, encoding="utf-8")
    place = f"{to.relative_to(ROOT / 'docs')}/" if options.publish else ""
    images = "\n\n".join(f"![{name}]({place}{name}.svg)" for name in pictures)
    parts = [about(run), "### Ceilings", ceilings(run), "### Workloads", results(run), missed(run), images]
    if options.sweep:
        parts += ["### Trials of tuning numbers", trials(options.sweep, options.simulated)]
    text = "\n\n".join(parts)
    if not options.publish:
        (to / "results.md").write_text(text + "\n", encoding="utf-8")
        (to / "readme.md").write_text(readme(run) + "\n", encoding="utf-8")
        return
    gpu = "-".join(re.findall(r"[a-z0-9]+", run["machine"]["gpu"].lower().replace("nvidia", "")))
    kept = ROOT / "benches/results" / f"{run['machine']['date']}-gather-{gpu}.json"
    kept.write_text(options.run.read_text(encoding="utf-8"), encoding="utf-8")
    between(ROOT / "docs/gpu-performance.md", "results", text)
    between(ROOT / "README.md", "gpu", readme(run))


main()
