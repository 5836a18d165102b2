#!/usr/bin/env python3
"""Writes what README.md and docs/ say of measurements, tables and plots, from the newest result under benches/results/.

What they say of GPUs is from the records of benches/results/gpu/, of which scripts/gpu/plots.py makes a page; counts of instructions are from benches/instructions.json. `--check` compares instead; `--publish FILE` first takes a result there, under its date and machine: one of
`python -m windrow bench --json FILE`, of the same with `--only source --only small-`, `--only move-` or `--only Q-`, or of `benches/pipelines/run.py --json FILE`, with `--only workers`, `--only operators` or without.
What these options select, the "groups", the "moves" and "quantise", have tables of their own, each made from the newest result that has such workloads.
Needs neither a build nor NumPy.
"""

import argparse
import functools
import json
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benches/results"
METHOD = ROOT / "docs/performance-method.md"
PLOTS = ROOT / "docs/plots"
# Workloads with tables of their own, and with a file of their own where nothing else was measured.
APART = {"groups": ("source-", "small-"), "moves": ("move-",), "quantise": ("Q-",)}
# Samples that docs/scale.md assumes one GPU to take in a second, by workload, and the bytes of one as it is read.
DEMAND = {"W1": ("images", 224 * 224 * 3, 3_000), "W2": ("tokens", 4, 20_000), "W5": ("dicts", 249, 1_000_000)}
# Bytecode that is compiled here would go into the next wheel.
sys.dont_write_bytecode = True
# The package without the compiled module that `import windrow` wants.
sys.path[:0] = [str(ROOT / "scripts/gpu"), str(ROOT / "python/python/windrow")]
import gather_figures  # noqa: E402
import records  # noqa: E402
import torch_figures  # noqa: E402
from bench import plots, results  # noqa: E402


def kind_of(entry):
    return next((kind for kind, names in APART.items() if entry["name"].startswith(names)), "host")


def kinds_of(report):
    return set(map(kind_of, report.get("workloads", [])))


def newest(kind):
    """The newest result of a kind; of one day that of the quietest machine, and of equally quiet ones that with the most workloads of the kind.
    Groups are in runs of everything too, of which that of the same day counts as the newer one."""
    reports = [(path, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(RESULTS.glob("*.json"), reverse=True)]

    def rank(entry):
        path, report = entry
        return path.name[:10], -float(report["machine"].get("load", 0)), sum(kind_of(workload) == kind for workload in report.get("workloads", []))

    for path, report in sorted(reports, key=rank, reverse=True):
        if f"-{kind}-" in path.name or kind in APART and kind in kinds_of(report):
            return path, report
    raise FileNotFoundError(f"{RESULTS}: no result of the kind {kind}")


def machines():
    """The newest result of everything from each machine, newest first."""
    found = {}
    for path in sorted(RESULTS.glob("*-host-*.json"), reverse=True):
        found.setdefault(path.stem.partition("-host-")[2], (path, json.loads(path.read_text(encoding="utf-8"))))
    return list(found.values())


def only(report, kind="host"):
    """The report with the workloads of a kind alone."""
    return {**report, "workloads": [entry for entry in report["workloads"] if kind_of(entry) == kind]}


def publish(path):
    """Adds a result. Earlier ones of its kinds and machine go, unless they have workloads of a kind that it lacks."""
    report = json.loads(path.read_text(encoding="utf-8"))
    machine = report["machine"]
    words = re.sub(r"\(\w+\)|@.*|\b(amd|intel|cpu|processor|\d+-core)\b", " ", machine["cpu"].lower())
    kinds = kinds_of(report)
    kind = report.get("group", "pipelines") if "lines" in report else next(kind for kind in ("host", *APART) if kind in kinds)
    machine_name = "-".join([*re.findall(r"[a-z0-9]+", words), f"{machine['cores']}core"])
    for other in {kind, *kinds}:
        for earlier in RESULTS.glob(f"*-{other}-{machine_name}.json"):
            if earlier.name[: len(machine["date"])] <= machine["date"] and kinds_of(json.loads(earlier.read_text(encoding="utf-8"))) <= kinds:
                earlier.unlink()
    name = f"{machine['date']}-{kind}-{machine_name}.json"
    (RESULTS / name).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def wrapped(text):
    """Text in lines of 120 characters, words and list items left whole."""
    return "\n".join(textwrap.fill(line, 120, break_long_words=False, break_on_hyphens=False, subsequent_indent="  " if line.startswith("- ") else "") for line in text.split("\n"))


def source(path, report, caches="Caches are cold"):
    """How, where and when a result was measured."""
    quick = " A quick run: no figures to go by." if report.get("options", {}).get("quick") else ""
    small = any(entry["name"].startswith("small-") for entry in report.get("workloads", []))
    small = ", except for batches of up to 256 small samples, which are timed in a loop" if small else ""
    cold = f" {caches}{small}." if caches else ""
    return wrapped(f"Medians.{cold} Machine: {results.about(report['machine'])}; from `{path.relative_to(ROOT)}`.{quick}")


def headline(path, report):
    """The first screen of the README: what the plot shows, in words."""
    reports, found = machines(), {}
    for _, result in reports:
        for entry, peer in results.beside_fastest(result, plots.headline_titles(result)):
            found.setdefault(entry["name"], []).append((results.ratio(entry, peer), peer["name"]))
    worst = {name: min(ratios) for name, ratios in found.items()}
    lines = [f"- **{worst[name][0]:.1f} times** as fast as `{worst[name][1]}`: {words}" for name, words in HEADLINE.items() if name in worst]
    names = " and ".join(f"{result['machine']['cores']} cores of an {result['machine']['cpu']}" for _, result in reversed(reports))
    which = f"The lowest of {len(reports)} machines ([each](docs/performance.md#machine-by-machine))" if len(reports) > 1 else "Measured on one machine"
    return "\n" + "\n".join(map(wrapped, lines)) + "\n\n" + wrapped(f"{which}: {names}; each against the fastest of the other libraries.") + "\n"


def side_by_side(path, report):
    """windrow's time on each machine, and how many times that of windrow the fastest of the others takes there."""
    reports = [only(result) for _, result in machines()]
    cells = []
    for result in reports:
        pairs = {pair.scattered["name"]: pair.scattered for pair in results.pairs(result)}
        cells.append({name: (entry, results.fastest_peer(entry)) for name, entry in pairs.items()})
    lines = []
    for name, (entry, _) in cells[0].items():
        line = [entry["title"]]
        for result in cells:
            here, peer = result.get(name, (None, None))
            line += [results.milliseconds(results.median(results.find(here, "windrow"))) if here else "-", results.versus(results.ratio(here, peer)) if peer else "-"]
        lines.append(line)
    names = [f"{result['machine']['cpu']}, {result['machine']['cores']} cores, {result['machine']['date']}" for result in reports]
    header = ["workload", *[cell for name in names for cell in (name, "others / windrow")]]
    files = ", ".join(f"`{found.relative_to(ROOT)}`" for found, _ in machines())
    return f"\n{results.markdown(header, lines)}\n\n{wrapped(f'Medians. Caches are cold. From {files}.')}\n"


def short_table(path, report):
    return f"\n{results.short_summary(report, plots.headline_titles(report))}\n\n{source(path, report)}\n"


def table(path, report, kind="host"):
    return f"\n{results.summary(only(report, kind))}\n\n{source(path, report)}\n"


def table_and_losses(path, report, kind, caches):
    """The workloads of a kind, and where others are faster or a target is missed; nothing was measured where there is no report."""
    if not report:
        return "\n**Not measured yet.**\n"
    text = source(path, {**report, "workloads": []}, caches)
    return f"\n{results.summary(only(report, kind))}\n\n{text}\n\n{losses(path, report, kind).partition(chr(10) * 2 + 'Medians')[0].strip()}\n"


# Moves are repeated, so that those of little memory stay in the caches.
moves = functools.partial(table_and_losses, kind="moves", caches="Calls are timed in a loop")
quantise = functools.partial(table_and_losses, kind="quantise", caches="Caches are cold")


def below(target):
    """A missed ratio, with a third decimal where two would show the target."""
    short = f"{target['ratio']:.2f}"
    return f"{target['ratio']:.3f}" if float(short) == target["at_least"] else short


def losses(path, report, kind="host"):
    """Every contender that was faster, or that windrow did not have to meet."""
    report = only(report, kind)
    lines = [
        f"- {entry['title']}, {results.layout(entry)}: {result['name']}, {results.number(results.ratio(entry, result))} of windrow's time."
        for entry in report["workloads"]
        for result in results.losses(entry)
    ]
    missed = [
        f"- {entry['title']}, {results.layout(entry)}: {target['peer']} / {target['ours']} is {below(target)}, wanted {target['at_least']}."
        for entry in report["workloads"]
        for target in entry.get("targets", [])
        if target["ratio"] is not None and target["ratio"] < target["at_least"]
    ]
    text = "Faster than windrow in that run:\n\n" + "\n".join(lines) if lines else "No other library was faster in that run."
    text += "\n\nTargets that were missed:\n\n" + "\n".join(missed) if missed else "\n\nNo target was missed."
    return f"\n{wrapped(text)}\n\n{source(path, report)}\n"


def scaling(path, report):
    """Tables and plots of the sweeps; nothing where none were measured."""
    parts = []
    for sweep in report.get("sweeps", []):
        parts.append(f"### {sweep['title']}\n\n![{sweep['title']}](plots/scaling-{sweep['name']}.svg)")
        parts.append(f"Nanoseconds per sample:\n\n{results.sweep_table(sweep)}")
    found = plots.plots(only(report))
    for name, (title, caption) in CAPTIONS.items():
        parts += [f"### {title}\n\n![{title}](plots/{name}.svg)\n\n{wrapped(caption)}"] if name in found else []
    return "\n" + "\n\n".join(["## How the cost grows", *parts, source(path, report)]) + "\n" if parts else ""


def pipelines(path, report):
    """Things a second in whole pipelines: medians, and the quartiles of their ratio to the first contender's median."""
    lines = []
    for line in report["lines"]:
        (first, (_, base, _)), *others = line["quartiles"].items()
        for name, (low, middle, high) in others:
            ratio, least, most = (base / seconds for seconds in (middle, high, low))
            rates = (f"{line['count'] / seconds:,.0f}" for seconds in (middle, base))
            lines.append([line["title"], name, *rates, first, f"{results.versus(ratio)} ({least:.2f} to {most:.2f})"])
    header = ["pipeline", "", "a second", "the other", "", "windrow / other"]
    clock = "Seconds are those that all cores spent, torch with one thread" if report["machine"].get("clock") == "processors" else ""
    return f"\n{results.markdown(header, lines)}\n\n{source(path, report, clock)}\n"


def counted(path, report):
    """The cases and the counts of f70b574 that the table has, with the recorded counts and their ratio."""
    recorded = json.loads((ROOT / "benches/instructions.json").read_text(encoding="utf-8"))
    known = {case: count for cases in recorded.values() for case, count in cases.items()}
    section = METHOD.read_text(encoding="utf-8").split("<!-- counts: begin -->")[1].split("<!-- counts: end -->")[0]
    rows = [(case, int(before.replace(",", ""))) for case, before in re.findall(r"^\| (.+?) \| ([\d,]+) \|", section, re.M)]
    lines = [[case, f"{before:,}", f"{known[case]:,}", f"{known[case] / before:.2f}"] for case, before in rows]
    return f"\n{results.markdown(['case', 'f70b574', 'now', 'ratio'], lines)}\n"


def bytes_a_second(number):
    return f"{number / 1e9:,.1f} GB" if number >= 1e9 else f"{number / 1e6:,.1f} MB"


def sizing(path, report):
    """Batches that hosts assemble for 8, 64 and 512 GPUs: bytes by shape and assumed demand, cores by the medians of a result."""
    cores, lines, limits = int(report["machine"]["cores"]), [], []
    entries = {pair.scattered["name"]: pair.scattered for pair in results.pairs(report) if pair.scattered.get("bytes_read")}
    for name, (unit, size, demand) in DEMAND.items():
        if name not in entries:
            continue
        entry = entries[name]
        count, seconds = entry["bytes_read"] // size, results.median(results.find(entry, "windrow"))
        written = entry["bytes_written"] / count
        for gpus in (8, 64, 512):
            rate = gpus * demand
            busy = rate * seconds * cores / count
            title = f"{entry['title']}: {results.milliseconds(seconds)}" if gpus == 8 else ""
            shown = "below 0.01" if busy < 0.01 else f"{busy:,.2f}" if busy < 10 else f"{busy:,.0f}"
            lines.append([title, str(gpus), f"{rate:,} {unit}", bytes_a_second(rate * size), bytes_a_second(rate * written), shown])
        if name == "W5":
            limits.append(f"- One process collates {count / seconds:,.0f} such dicts a second; one GPU takes {demand * seconds / count:.2f} of that.")
    path_of_report, other = newest("pipelines")
    for line in other["lines"]:
        if line["title"].startswith("Ray Data, iteration") and "mask" in line["title"] and "windrow, Arrow" in line["quartiles"]:
            rate = line["count"] / line["quartiles"]["windrow, Arrow"][1]
            limits.append(f"- One process that iterates over Ray Data takes {rate:,.0f} rows of 1 to 512 tokens a second, with lengths and mask ([figures](performance.md#in-a-pipeline), `{path_of_report.relative_to(ROOT)}`).")
    path_of_report, other = newest("groups")
    for entry in other["workloads"]:
        if entry["name"] == "source-plan-million":
            seconds = results.median(results.find(entry, "windrow"))
            page = "performance.md#samples-of-other-libraries-and-small-batches"
            limits.append(f"- `plan.pack` of 1,000,000 lengths takes {results.milliseconds(seconds)} ([figures]({page}), `{path_of_report.relative_to(ROOT)}`).")
    header = ["workload, and its median", "GPUs", "demand a second (assumed)", "bytes read a second", "bytes written a second", "cores"]
    text = "\n".join(map(wrapped, limits))
    return f"\n{results.markdown(header, lines)}\n\n{text}\n\n{source(path, {**report, 'workloads': []})}\n"


def gpu_line(path, gpus, page="docs/gpu-figures.md", simulated="docs/gpu-runner.md#without-a-gpu"):
    return f"\n{wrapped(records.line(gpus, page, simulated))}\n"


def gpu(path, gpus):
    """Each GPU has its own list of passed checks and its own tables: never two in one."""
    parts = [] if gpus else ["There are no records yet: [Checking on a GPU](gpu-runner.md)."]
    for found in gpus:
        parts.append(wrapped(f"**{records.verdicts(found)}**, medians with cold caches:"))
        parts += [module.short(run) for module, run in ((gather_figures, found.gather()), (torch_figures, found.torch())) if run]
    return "\n" + "\n\n".join(parts) + "\n"


CAPTIONS = {
    "layouts": (
        "Throughput from scattered samples and from one piece",
        "Bytes read and written a second. A full dot is a batch of samples that are scattered over memory, a hollow one the same samples one"
        " after another in one piece; the line between them is what being scattered costs.",
    ),
    "share": (
        "Share of the speed of a plain copy",
        "1 is the speed of the fastest plain copy of as many bytes, with one thread or with all. Above 1 are outputs that are written around the"
        " caches; what is far below is bound by reading the samples' objects, not by their bytes.",
    ),
}

HEADLINE = {
    "W1": "256 images, normalised to float16, HWC to CHW",
    "W2": "4096 token rows, padded to int64, with a mask",
    "W5": "4096 dicts of 8 fields, collated",
}

FILES = {
    "README.md": {"gpu-line": (gpu_line, "gpu"), "headline": (headline, "host")},
    "docs/gpu-runner.md": {"gpu-line": (functools.partial(gpu_line, page="gpu-figures.md", simulated="testing.md"), "gpu")},
    "python/README.md": {"gpu-line": (functools.partial(gpu_line, page="", simulated=""), "gpu")},
    "docs/performance-method.md": {"counts": (counted, "host")},
    "docs/scale.md": {"sizing": (sizing, "host")},
    "docs/performance.md": {"short": (short_table, "host"), "gpu": (gpu, "gpu"), "table": (table, "host"), "machines": (side_by_side, "host"), "losses": (losses, "host"), "scaling": (scaling, "host"), "groups": (functools.partial(table, kind="groups"), "groups"), "groups-losses": (functools.partial(losses, kind="groups"), "groups"), "moves": (moves, "moves"), "quantise": (quantise, "quantise"), "pipelines": (pipelines, "pipelines"), "workers": (pipelines, "workers"), "operators": (pipelines, "operators")},
}


def source_of(kind):
    if kind in ("moves", "quantise") and not any(kind in kinds_of(json.loads(path.read_text(encoding="utf-8"))) for path in RESULTS.glob("*.json")):
        return RESULTS, None
    return (records.RECORDS, records.load()) if kind == "gpu" else newest(kind)


def made():
    """Each file with its text."""
    found = {}
    for name, sections in FILES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        for section, (write, kind) in sections.items():
            begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
            head, rest = text.split(begin)
            # Markdown would take the underscores of names like torch._foreach_copy_ as emphasis.
            written = write(*source_of(kind)).replace("._", r".\_")
            text = f"{head}{begin}{written}{end}{rest.split(end)[1]}"
        found[ROOT / name] = text
    _, report = newest("host")
    pictures = plots.plots(only(report), standalone=True)
    pictures["headline"] = plots.headline(report, standalone=True)
    found.update({PLOTS / f"{name}.svg": picture for name, picture in pictures.items()})
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if any text is not that of the newest result")
    parser.add_argument("--publish", type=Path, metavar="FILE", help="the newest result")
    options = parser.parse_args()
    if options.publish:
        publish(options.publish)
    files = made()
    stale = [path for path in PLOTS.glob("*.svg") if path not in files]
    if options.check:
        wrong = stale + [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
        names = ", ".join(str(path.relative_to(ROOT)) for path in wrong)
        sys.exit(f"{names}: run scripts/docs/readme_table.py" if wrong else 0)
    for path in stale:
        path.unlink()
    PLOTS.mkdir(exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")


main()
