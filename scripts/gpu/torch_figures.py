"""Tables and plots of a run of bench_torch.py, for plots.py: windrow from Python, beside what users of PyTorch write."""

from __future__ import annotations

from bench import chart

COPIES = ("plain copy", "copy kernel, 16 bytes a lane")
# Begin with the batch's memory, its addresses or one table there already: none is what a user calls with a list of samples.
SPARED = ("kept", "(out=)", "(out)", "of one table", "addresses each call")
LINES = {
    "windrow": ("windrow", 0),
    "torch.stack": ("torch.stack", 1),
    "torch._foreach_copy_(out)": ("_foreach_copy_", 2),
    "torch.index_select of one table": ("index_select of one table", 3),
    "CUB batched memcpy, tables kept": ("CUB, tables kept", 4),
    "Triton gather, addresses kept": ("Triton, addresses kept", 5),
    "cuMemcpyBatchAsync, addresses kept": ("cuMemcpyBatchAsync", 6),
}
"""The contenders of the plots over sizes and counts, each with a short name and a colour."""


def is_ours(name):
    return name.startswith("windrow")


class Workload:
    """The rows of one workload."""

    def __init__(self, rows):
        head = rows[0]
        self.name, self.layout, self.title = head["workload"], head["layout"], head["title"]
        self.samples, self.bytes = head["samples"], head["bytes"]
        self.rows = {(row["contender"], row["clock"], row["cache"]): row for row in rows}
        self.contenders = list(dict.fromkeys(row["contender"] for row in rows))
        self.ours = next((name for name in self.contenders if is_ours(name)), "windrow")

    def row(self, contender, clock="device", cache="cold"):
        """The row of a contender that was right."""
        found = self.rows.get((contender, clock, cache))
        return found if found and found["right"] else None

    def us(self, contender, clock="device", cache="cold"):
        found = self.row(contender, clock, cache)
        return found["median_us"] if found else None

    def others(self, clock="device"):
        """Contenders of other libraries and their ratio to windrow's time, the fastest first."""
        mine = self.us(self.ours, clock)
        names = (name for name in self.contenders if not is_ours(name) and name not in COPIES)
        found = [(name, self.us(name, clock) / mine) for name in names if mine and self.us(name, clock)]
        return sorted(found, key=lambda pair: pair[1])

    def idioms(self, clock="device"):
        """The peers that get a list of samples and make a batch, as a user calls them."""
        return [pair for pair in self.others(clock) if not any(part in pair[0] for part in SPARED)]

    def sample_bytes(self):
        return self.bytes / 2 / self.samples


def workloads(run):
    found = {}
    for row in run["rows"]:
        found.setdefault((row["workload"], row["layout"]), []).append(row)
    return [Workload(rows) for rows in found.values()]


def number(value, digits=1):
    return "-" if value is None else f"{value:.{digits}f}"


def ratio(value):
    return f"{value:.2f}{' **behind**' if value < 1 else ''}"


def first(pairs):
    return f"{pairs[0][0]} | {ratio(pairs[0][1])}" if pairs else "- | -"


def late(row):
    """A mark where the device waited for the host in most runs."""
    return "*" if row and row["late"] * 2 > row["runs"] else ""


def summary(run):
    lines = ["| workload | us, device | GB/s | of a copy | us, host | us, wall | fastest idiom, device | its time / ours | fastest idiom, wall | its time / ours | fastest of all, device | its time / ours |",
             "|---|---:|---:|---:|---:|---:|---|---:|---|---:|---|---:|"]
    for w in workloads(run):
        mine = w.row(w.ours)
        if not mine:
            lines.append(f"| {w.title}, {w.layout} | not measured | | | | | | | | | | |")
            continue
        cells = [f"{mine['median_us']:.1f}{late(mine)}", number(mine["gbps"], 0), number(mine["share_of_copy"], 2)]
        cells += [number(w.us(w.ours, "host")), number(w.us(w.ours, "wall"))]
        cells += [first(w.idioms()), first(w.idioms("wall")), first(w.others())]
        lines.append(f"| {w.title}, {w.layout} | {' | '.join(cells)} |")
    return "\n".join(lines)


def losses(run):
    """Every contender that was faster than windrow, by the device's clock or by the wall's."""
    found = []
    for w in workloads(run):
        for clock in ("device", "wall"):
            faster = [f"{name} {value:.2f}" for name, value in w.others(clock) if value < 1]
            if faster:
                found.append(f"- {w.title}, {w.layout}, {clock}: {', '.join(faster)}")
    text = "\n".join(found) if found else "None."
    wrong = sorted({f"- {row['title']}, {row['layout']}: {row['contender']}: {row['problem']}" for row in run["rows"] if not row["right"]})
    if wrong:
        text += "\n\nFailed or not right, and in no other table or plot:\n\n" + "\n".join(wrong)
    return "Their time over windrow's, which takes a list of samples and makes the batch's memory:\n\n" + text


def everything(run):
    """All contenders of all workloads by all clocks."""
    parts = []
    for w in workloads(run):
        lines = ["| contender | us, device | p10..p90 | GB/s | of a copy | us, warm | us, graph | us, graph, warm | us, host | us, wall |",
                 "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
        for name in w.contenders:
            device = w.row(name)
            if not (device or w.row(name, "wall")):
                continue
            cells = [f"{device['median_us']:.1f}{late(device)}", f"{device['p10']:.1f}..{device['p90']:.1f}", number(device["gbps"], 0),
                     number(device["share_of_copy"], 2)] if device else ["-"] * 4  # fmt: skip
            cells += [number(w.us(name, *key)) for key in (("device", "warm"), ("graph", "cold"), ("graph", "warm"), ("host", "cold"), ("wall", "cold"))]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        absent = [f"- {entry['contender']}: {entry['reason']}" for entry in run["absent"] if (entry["workload"], entry["layout"]) == (w.name, w.layout)]
        parts.append("\n".join([f"**{w.title}, {w.layout}**, {w.bytes / 1e6:.1f} MB moved", "", *lines, *(["", "Left out:", "", *absent] if absent else [])]))
    return "\n\n".join(parts)


def over(run, family, x, y, layouts=("scattered",)):
    """Lines over the workloads of a family. Contiguous samples are dotted."""
    mine = [w for w in workloads(run) if w.name.split()[0] == family]
    lines = []
    for name, (short, colour) in LINES.items():
        for layout in layouts:
            points = sorted((x(w), y(w, name)) for w in mine if w.layout == layout and y(w, name))
            # The chart has only windrow and torch.stack, twice: the others would hide them.
            if points and (layout == "scattered" or colour < 2):
                lines.append(chart.Series(short if layout == "scattered" else f"{short}, contiguous", points, colour, "" if layout == "scattered" else "dotted"))
    return lines


def plots(run):
    """The pictures by name."""
    found = {}
    share = lambda w, name: (w.row(name) or {}).get("share_of_copy")
    lines = over(run, "size", Workload.sample_bytes, share, ("scattered", "contiguous"))
    if lines:
        title = "Samples of one size, 64 MiB or 65,536 of them, stacked: device time, cold"
        found["torch-sizes"] = chart.lines(title, lines, "bytes of a sample", "share of the speed of a plain copy", True, False, True, powers=True)
    for clock, title in (("device", "device time, cold"), ("host", "time until the call returns"), ("wall", "time until the device is done, cold")):
        lines = over(run, "count", lambda w: w.samples, lambda w, name, clock=clock: w.us(name, clock))
        if lines:
            found[f"torch-counts-{clock}"] = chart.lines(f"Samples of 512 bytes, stacked: {title}", lines, "samples", "microseconds", True, True, True)
    image = next((w for w in workloads(run) if w.name == "W1"), None)
    if image:
        rows = [chart.Row(name, [(image.row(name, "device", cache) or {}).get("share_of_copy") for cache in ("cold", "warm")])
                for name in image.contenders if image.row(name) and name not in COPIES]  # fmt: skip
        names = [("L2 cold", 0), ("L2 warm", 1)]
        found["torch-images"] = chart.bars(image.title, names, rows, "share of the speed of a plain copy of as many bytes", True) if rows else ""
    return {name: picture for name, picture in found.items() if picture}


def about(run):
    return "\n\n".join("; ".join(f"{key}: {value}" for key, value in facts.items()) for facts in run["about"])


def sections(run):
    """Headings with what is below them."""
    note = "Medians in microseconds. `*`: the device waited for the host in most runs, so that its time is the host's."
    return {
        "Batches from Python": f"{about(run)}\n\n{note}\n\n{summary(run)}",
        "Faster than windrow": losses(run),
        "All contenders": everything(run),
    }


def short(run):
    """One line for each workload with a name of its own."""
    lines = ["| batch | windrow, device | of a copy | until the call returns | fastest idiom | its time / ours |", "|---|---:|---:|---:|---|---:|"]
    for w in workloads(run):
        mine = w.row(w.ours)
        if mine and w.name.startswith("W"):
            cells = f"{mine['median_us']:.0f} us{late(mine)} | {number(mine['share_of_copy'], 2)} | {number(w.us(w.ours, 'host'), 0)} us | {first(w.idioms())}"
            lines.append(f"| {w.title} | {cells} |")
    return "\n".join(lines)
