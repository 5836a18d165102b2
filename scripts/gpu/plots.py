#!/usr/bin/env python3
"""Writes docs/gpu-figures.md and its plots from the records of GPU runs, benches/results/gpu/done.jsonl.

usage: scripts/gpu/plots.py [--check] [--records FILE] [--to FOLDER]
       scripts/gpu/plots.py --figures SLOT=FILE ... [--simulated] [--to FOLDER]   of files that are in no record yet

Of each GPU the newest ok record of each slot; GPUs are never mixed. --check compares instead. --to writes the page and the
plots to a folder. --simulated takes figures of simulated drivers, whose times mean nothing. Needs no more than the standard library.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Bytecode that is compiled here would go into the next wheel.
sys.dont_write_bytecode = True
# The package without the compiled module that `import windrow` wants.
sys.path[:0] = [str(HERE), str(ROOT / "python/python/windrow")]
import gather_figures  # noqa: E402
import records  # noqa: E402
import torch_figures  # noqa: E402
from bench import results  # noqa: E402

PAGE = ROOT / "docs/gpu-figures.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
CAPTIONS = {
    "size": "windrow from Rust: share of a plain copy over the size of a sample",
    "count": "windrow from Rust: share of a plain copy over the number of samples",
    "contiguous": "windrow from Rust: scattered against contiguous samples",
    "peers": "windrow from Rust beside other gathers",
    "torch-sizes": "From Python: share of a plain copy over the size of a sample",
    "torch-counts-device": "From Python: device time over the number of samples",
    "torch-counts-host": "From Python: time until the call returns over the number of samples",
    "torch-counts-wall": "From Python: time until the device is done over the number of samples",
    "torch-images": "From Python: images to normalised planes",
}


def table(rows):
    """Rows as they are, with all of their keys as columns."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    cell = lambda value: f"{value:.4g}" if isinstance(value, float) else "" if value is None else " ".join(str(value).replace("|", "\\|").split())
    body = ["| " + " | ".join(cell(row.get(key)) for key in keys) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys), *body])


def package(report):
    """The measurements of `python -m windrow bench` on the device."""
    parts = [results.about(report["machine"]), results.summary(report)]
    for entry in report["workloads"]:
        parts += [f"**{results.heading(entry)}**", results.markdown(results.header(entry), results.rows(entry))]
    return "\n\n".join(parts)


def slots(gpu):
    """The runs, by the newest record of each slot."""
    keys = ("slot", "verdict", "seconds", "when", "commit", "driver", "note")
    return table([{key: record.get(key) for key in keys} for record in gpu.newest.values()])


def section(gpu):
    """Everything of one GPU, and its pictures by the names of their files."""
    parts, pictures = [f"## {gpu.name}", "### What was run", slots(gpu)], {}
    if gpu.simulated:
        parts.insert(1, "**Simulated: these times mean nothing.**")
    found = {}
    for module, run in ((gather_figures, gpu.gather()), (torch_figures, gpu.torch())):
        if run:
            found.update(module.sections(run))
            pictures.update(module.plots(run))
    names = {name: f"{gpu.slug}-{name}.svg" for name in pictures}
    # Pictures first, then what they are made of.
    parts += [f"![{CAPTIONS[name]}](plots/gpu/{file})\n\n{CAPTIONS[name]}." for name, file in names.items()]
    for heading, text in found.items():
        parts += [f"### {heading}", text]
    for run in gpu.figures("package").values():
        parts += ["### `python -m windrow bench`, times of the wall", package(run)]
    for slot, run in gpu.figures("trials").items():
        parts += [f"### Trials of tuning numbers: {slot}", gather_figures.trials(run)]
    for slot, rows in gpu.figures("rows").items():
        parts += [f"### {slot.capitalize()}", table(rows)]
    return "\n\n".join(parts), {names[name]: picture for name, picture in pictures.items()}


def made(gpus):
    """The text between the marks of the page, and the pictures by the names of their files."""
    if not gpus:
        return "There are no records yet: [Checking on a GPU](gpu-runner.md).", {}
    found = [section(gpu) for gpu in gpus]
    return "\n\n".join(text for text, _ in found), {name: picture for _, pictures in found for name, picture in pictures.items()}


def page(text):
    head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}"


def from_files(files, simulated):
    """One GPU of figures that are in no record: named as they name it."""
    gpu = records.Gpu("Simulated" if simulated else "In no record", simulated)
    for word in files:
        slot, _, path = word.partition("=")
        record = {"slot": slot, "verdict": "ok", "figures": json.loads(Path(path).read_text(encoding="utf-8"))}
        if records.kind_of(record["figures"], simulated) is None:
            sys.exit(f"{path}: no figures, or of a simulated driver, whose times mean nothing (--simulated takes them nevertheless)")
        gpu.newest[slot] = gpu.ok[slot] = record
    return gpu


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if the page or a plot is not that of the records")
    parser.add_argument("--records", type=Path, metavar="FILE", default=records.RECORDS)
    parser.add_argument("--figures", action="append", metavar="SLOT=FILE", default=[])
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="instead of docs/; out/gpu-plots for --figures")
    options = parser.parse_args()
    gpus = [from_files(options.figures, options.simulated)] if options.figures else records.load(options.records, options.simulated)
    text, pictures = made(gpus)
    folder = options.to or (ROOT / "out/gpu-plots" if options.figures or options.simulated else None)
    to = folder or ROOT / "docs"
    files = {to / PAGE.name: f"# Figures of GPUs\n\n{text}\n" if folder else page(text)}
    files.update({to / "plots/gpu" / name: picture for name, picture in pictures.items()})
    stale = [path for path in (to / "plots/gpu").glob("*.svg") if path not in files]
    if options.check:
        wrong = stale + [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
        sys.exit(f"{', '.join(map(str, wrong))}: run scripts/gpu/plots.py" if wrong else 0)
    for path in stale:
        path.unlink()
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
