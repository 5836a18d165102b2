"""Results as they are in a JSON file, and what the tables and plots take from them.

A report is `{"schema", "machine", "options", "workloads", "sweeps"}`. A workload has a name, title, layout, device,
bytes read and written, results (seconds as quartiles, or a problem) and targets; a point of a sweep is a
workload with `x` and `samples`. Nothing but the standard library: scripts read committed results with it.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

SCHEMA = 2
MEMCPY = "memcpy"
"""The contender that copies as many bytes as were moved, in one block."""

Entry = Dict[str, Any]
Report = Dict[str, Any]


def median(result: Optional[Entry]) -> Optional[float]:
    """Seconds, or None for a contender that was not timed."""
    return result["quartiles"][1] if result and result.get("quartiles") else None


def find(entry: Entry, name: str) -> Optional[Entry]:
    """The result of a contender, or None."""
    return next((result for result in entry["results"] if result["name"] == name), None)


def layout(entry: Entry) -> str:
    return str(entry.get("layout", "scattered"))


def is_peer(result: Entry) -> bool:
    """Whether a contender is of another library: neither windrow's nor a plain copy."""
    return not result["name"].startswith(("windrow", MEMCPY))


def ratio(entry: Entry, result: Entry) -> Optional[float]:
    """How many times windrow's time a contender takes, each with `out=`, by index or neither; below 1 windrow loses. None if
    one of them was not timed, or the contender is none of another library."""
    against = result.get("against") or ("windrow, out=" if "out=" in result["name"] else "windrow")
    ours = median(find(entry, against)) or median(find(entry, "windrow"))
    theirs = median(result)
    return theirs / ours if ours and theirs and is_peer(result) else None


def throughput(entry: Entry, result: Optional[Entry]) -> Optional[float]:
    """GB/s, bytes read plus bytes written; None for a contender that was not timed."""
    seconds = median(result)
    return entry["bytes"] / seconds / 1e9 if seconds else None


def fastest_peer(entry: Entry) -> Optional[Entry]:
    """The fastest of the others; like with like, so none that is spared its allocation or its import. None if none was timed."""
    # Results of the first schema do not say what a contender is held against.
    timed = [result for result in entry["results"] if is_peer(result) and median(result)]
    alike = [r for r in timed if r.get("against", "windrow") == "windrow" and "out=" not in r["name"]]
    return min(alike, key=lambda result: median(result) or 0.0, default=None)


def losses(entry: Entry) -> List[Entry]:
    """Contenders that are faster than windrow."""
    return [result for result in entry["results"] if (ratio(entry, result) or 1.0) < 1.0]


class Pair(NamedTuple):
    """A workload from scattered samples, and from the same in one piece."""

    scattered: Entry
    contiguous: Optional[Entry]


def pairs(report: Report) -> List[Pair]:
    """The workloads of a report in which windrow was timed from scattered samples, in their order."""
    timed = [entry for entry in report["workloads"] if median(find(entry, "windrow"))]
    whole = {entry["name"]: entry for entry in timed if layout(entry) == "contiguous"}
    return [Pair(entry, whole.get(entry["name"])) for entry in timed if layout(entry) == "scattered"]


def about(machine: Dict[str, str]) -> str:
    """The machine in one line."""
    keys = ("cpu", "device", "cores", "caches", "python", "numpy", "torch", "nvidia.dali", "jax", "date", "commit", "load")
    return ", ".join(f"{key} {machine[key]}" for key in keys if machine.get(key))


# Text


def milliseconds(seconds: Optional[float]) -> str:
    """Milliseconds, or microseconds below one of them, with three digits that count; `-` for nothing."""
    if seconds is None:
        return "-"
    ms = seconds * 1e3
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms" if ms >= 10 else f"{ms:.2f} ms" if ms >= 1 else f"{ms * 1e3:.3g} us"


def number(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.2f}"


def versus(value: Optional[float]) -> str:
    """A ratio, with the word for one below 1."""
    return f"{number(value)} behind" if value is not None and value < 1 else number(value)


def has_apart(entry: Entry) -> bool:
    """Whether the time of the host and that of the device are known apart."""
    return any(result.get("device") for result in entry["results"])


def header(entry: Entry) -> List[str]:
    """The columns of `rows`."""
    found = ["contender", "lower quartile", "median", "upper quartile", "GB/s", "of memcpy", "its time / windrow's"]
    return found + (["until it returns", "on the device"] if has_apart(entry) else [])


def rows(entry: Entry) -> List[List[str]]:
    """The table of one workload, below `header`."""
    found, clocks = [], ("host", "device") if has_apart(entry) else ()
    for result in entry["results"]:
        times = [milliseconds(value) for value in result.get("quartiles") or (None, None, None)]
        apart = [milliseconds(result[clock][1] if result.get(clock) else None) for clock in clocks]
        found.append([result["name"], *times, speed(entry, result), number(result.get("share")), versus(ratio(entry, result)), *apart])
    return found


def notes(entry: Entry) -> List[str]:
    """The contenders that were not timed and why, and the results of the targets."""
    found = [f"{result['name']}: {result['problem']}" for result in entry["results"] if result.get("problem")]
    for target in entry.get("targets", []):
        value = target["ratio"]
        text = "not measured" if value is None else f"{value:.2f}, {'ahead' if value >= target['at_least'] else 'behind'}"
        found.append(f"{target['peer']} / {target['ours']}: wanted {target['at_least']}, {text}")
    return found


def heading(entry: Entry) -> str:
    moved = f"{entry['bytes_read'] / 1e6:.1f} MB read, {entry['bytes_written'] / 1e6:.1f} MB written"
    return f"{entry['name']}, {layout(entry)}: {entry['title']}, {moved}"


def markdown(header: List[str], lines: List[List[str]]) -> str:
    """A table, the first column to the left."""
    body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join(["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1), *body])


def speed(entry: Entry, result: Optional[Entry]) -> str:
    """GB/s as text."""
    rate = throughput(entry, result)
    return "-" if rate is None else f"{rate:.1f}"


def cells(pair: Pair) -> Dict[str, str]:
    """The line of an overview about a workload: windrow from both layouts, and the fastest of the others."""
    entry, whole = pair
    ours, best = find(entry, "windrow"), fastest_peer(entry)
    return {
        "name": entry["name"],
        "workload": entry["title"],
        "windrow": milliseconds(median(ours)),
        "GB/s": speed(entry, ours),
        "from one piece": milliseconds(median(find(whole, "windrow"))) if whole else "-",
        "fastest other": milliseconds(median(best)),
        "": best["name"] if best else "-",
        "others / windrow": versus(ratio(entry, best)) if best else "-",
        "of memcpy": number(ours.get("share") if ours else None),
    }


def summary(report: Report) -> str:
    """One line for each workload, in Markdown."""
    found = pairs(report)
    both = any(pair.contiguous for pair in found)
    shown = ["workload", "windrow", "from one piece", "fastest other", "", "others / windrow", "of memcpy"]
    header = [name for name in shown if both or name != "from one piece"]
    lines = [[of_pair[name].replace("behind", "**behind**") for name in header] for of_pair in map(cells, found)]
    return markdown(header, lines)


def beside_fastest(report: Report, names: Iterable[str]) -> List[Tuple[Entry, Entry]]:
    """The scattered workloads of these names, in their order, each with the fastest of the other contenders; those that have one."""
    entries = {pair.scattered["name"]: pair.scattered for pair in pairs(report)}
    found = [(entries[name], fastest_peer(entries[name])) for name in names if name in entries]
    return [(entry, peer) for entry, peer in found if peer]


def short_summary(report: Report, titles: Dict[str, str]) -> str:
    """One line for each of the named workloads that has another contender, in Markdown: windrow and the fastest of the others, from scattered
    samples."""
    lines = []
    for entry, peer in beside_fastest(report, titles):
        times = [milliseconds(median(result)) for result in (find(entry, "windrow"), peer)]
        lines.append([titles[entry["name"]], *times, peer["name"], number(ratio(entry, peer))])
    return markdown(["batch", "windrow", "fastest other", "which", "times as fast"], lines)


class Curve(NamedTuple):
    """A contender of a sweep: seconds for one sample and GB/s, by x."""

    name: str
    layout: str
    seconds: Dict[int, float]
    rate: Dict[int, float]

    @property
    def label(self) -> str:
        return f"{self.name}, one piece" if self.layout == "contiguous" else self.name


def curves(sweep: Entry) -> List[Curve]:
    """The contenders of a sweep that were timed anywhere; of the plain copies the fastest at each x."""
    found: Dict[Any, Curve] = {}
    for place in ("scattered", "contiguous"):
        for point in (point for point in sweep["points"] if layout(point) == place):
            for result in point["results"]:
                seconds, rate = median(result), throughput(point, result)
                copy = result["name"].startswith(MEMCPY)
                if seconds is None or rate is None or (copy and place == "contiguous"):
                    continue
                name = MEMCPY if copy else result["name"]
                curve = found.setdefault((name, place), Curve(name, place, {}, {}))
                if rate > curve.rate.get(point["x"], 0.0):
                    curve.rate[point["x"]] = rate
                    curve.seconds[point["x"]] = seconds / point["samples"]
    return sorted(found.values(), key=lambda curve: curve.name == MEMCPY)


def sweep_table(sweep: Entry) -> str:
    """One line for each x, in Markdown: nanoseconds per sample of each contender."""
    found = curves(sweep)
    lines = [
        [f"{x}", *(f"{curve.seconds[x] * 1e9:.0f}" if x in curve.seconds else "-" for curve in found)]
        for x in sorted({point["x"] for point in sweep["points"]})
    ]
    return markdown([sweep["axis"], *(curve.label for curve in found)], lines)
