"""Plots as SVG: lines over axes that may be logarithmic, bars and pairs of dots. Colours come from style sheets.

Not by a plotting library: `python -m windrow bench --html` has to work where only windrow and NumPy are installed, on machines
with a GPU above all, and one SVG has to serve a light and a dark page, which takes colours by class instead of by element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import List, Sequence, Tuple
from xml.sax.saxutils import escape, quoteattr

WIDTH = 760
PALETTE = (
    ("#1f6feb", "#58a6ff"),
    ("#d1590a", "#f0883e"),
    ("#1a7f37", "#3fb950"),
    ("#8250df", "#bc8cff"),
    ("#bf3989", "#f778ba"),
    ("#0e7490", "#22d3ee"),
    ("#6e7781", "#8b949e"),
)
"""Each series' colour on a light and on a dark ground; the last is for what all are held against."""


def style(dark: bool) -> str:
    """The style sheet of the plots on one ground."""
    ink, faint, line, ground = ("#e6edf3", "#9da7b1", "#30363d", "#0d1117") if dark else ("#1f2328", "#59636e", "#d8dee4", "#ffffff")
    rules = [
        f"text{{fill:{ink};font:13px system-ui,sans-serif}}",
        f"text.faint{{fill:{faint};font-size:12px}}",
        "text.title{font-size:15px;font-weight:600}",
        f".grid{{stroke:{line}}}",
        f".axis{{stroke:{faint}}}",
        ".line{fill:none;stroke-width:2}",
        ".dashed{stroke-dasharray:6 4}",
        ".dotted{stroke-dasharray:2 3}",
        f".hollow{{fill:{ground};stroke-width:2}}",
        f".ground{{fill:{ground}}}",
        *(f".s{i}{{stroke:{colours[dark]}}}" for i, colours in enumerate(PALETTE)),
        *(f".f{i}{{fill:{colours[dark]}}}" for i, colours in enumerate(PALETTE)),
    ]
    return "".join(f"svg.plot {rule}" for rule in rules)


def sheet() -> str:
    """Style for light and for dark."""
    return f"{style(False)}@media(prefers-color-scheme:dark){{{style(True)}}}"


@dataclass
class Series:
    """A name and its points."""

    name: str
    points: List[Tuple[float, float]]
    colour: int
    stroke: str = ""


@dataclass
class Axis:
    """The position of a value between two pixels, and the values that are marked."""

    low: float
    high: float
    begin: float
    end: float
    log: bool

    @staticmethod
    def around(values: Sequence[float], begin: float, end: float, log: bool) -> Axis:
        """The axis reaches from the smallest to the largest value, or from 0 if it is linear, and a little beyond."""
        high = max(values) * (1.25 if log else 1.08)
        low = min(values) * 0.8 if log else 0.0
        return Axis(low, high if high > low else low + 1, begin, end, log)

    def at(self, value: float) -> float:
        """The pixel of a value, above 0 where the axis is logarithmic."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        part = ((math.log(value) if self.log else value) - low) / (high - low)
        return round(self.begin + part * (self.end - self.begin), 1)

    def ticks(self) -> List[float]:
        """The values that are marked, from low to high."""
        if not self.log:
            step = 10 ** math.floor(math.log10(self.high))
            step = next(step * part for part in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0) if self.high / (step * part) <= 8)
            return [i * step for i in range(int(self.high / step) + 1)]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        parts = (1, 2, 5) if self.high / self.low < 300 else (1,)
        return [part * 10.0**n for n in decades for part in parts if self.low <= part * 10.0**n <= self.high]


def short(value: float, powers: bool = False) -> str:
    """A number for an axis; `powers`: it is one of two."""
    for unit, size in ((" Mi", 1 << 20), (" Ki", 1 << 10)) if powers else (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def text(x: float, y: float, value: str, anchor: str = "start", kind: str = "", turn: str = "") -> str:
    extra = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{extra}{turn}>{escape(value)}</text>'


def rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"/>'


def bar(x: float, y: float, width: float, height: float, colour: int, hint: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:.1f}" height="{height:g}" class="f{colour}"><title>{escape(hint)}</title></rect>'


def dot(x: float, y: float, colour: int, hint: str, hollow: bool = False) -> str:
    kind = f"hollow s{colour}" if hollow else f"f{colour}"
    return f'<circle cx="{x:g}" cy="{y:g}" r="{4.5 if hollow else 4}" class="{kind}"><title>{escape(hint)}</title></circle>'


def grid(across: Axis, top: float, bottom: float, marks: Sequence[Tuple[float, str]], drop: int = 16) -> List[str]:
    """Rules at values from left to right, and the texts of them `drop` pixels below."""
    places = [(across.at(value), label) for value, label in marks]
    return [part for x, label in places for part in (rule(x, top, x, bottom, "grid"), text(x, bottom + drop, label, "middle", "faint"))]


def frame(title: str, height: float, body: List[str], standalone: bool) -> str:
    """The picture around its parts; `standalone` ones bring their size, their style and their ground: the page behind them may be dark
    where the reader's system is light."""
    size, inner = "", ""
    if standalone:
        size = f' width="{WIDTH}" height="{height:g}"'
        inner = f'<style>{sheet()}</style><rect width="{WIDTH}" height="{height:g}" class="ground"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="plot"{size} viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label={quoteattr(title)}>'
    return "\n".join([head + inner, text(16, 22, title, kind="title"), *body, "</svg>\n"])


def legend(entries: Sequence[Tuple[str, int, str]], top: float) -> Tuple[List[str], float]:
    """Names with their strokes or dots, in lines as wide as the picture; and where they end."""
    body, x, y = [], 16.0, top
    for name, colour, stroke in entries:
        width = 44 + 7.5 * len(name)
        if x + width > WIDTH:
            x, y = 16.0, y + 20
        if stroke in ("bar", "dot", "hollow"):
            mark = f'<rect x="{x:g}" y="{y - 9:g}" width="14" height="10" class="f{colour}"/>'
            body.append(mark if stroke == "bar" else dot(x + 8, y - 4, colour, name, stroke == "hollow"))
        else:
            body.append(rule(x, y - 4, x + 20, y - 4, f"line s{colour} {stroke}".rstrip()))
        body.append(text(x + 26, y, name))
        x += width
    return body, y + 14


def lines(
    title: str, series: Sequence[Series], x_label: str, y_label: str, log_x: bool, log_y: bool, standalone: bool = False, powers: bool = False
) -> str:
    """One line for each series, of at least one point in all. `powers`: x is marked at its own values, in powers of two."""
    body, top = legend([(s.name, s.colour, s.stroke) for s in series], 48)
    left, right, bottom = 64.0, WIDTH - 20.0, top + 300
    every = [point for s in series for point in s.points]
    across = Axis.around([x for x, _ in every], left, right, log_x)
    up = Axis.around([y for _, y in every], bottom, top, log_y)
    for value in up.ticks():
        body += [rule(left, up.at(value), right, up.at(value), "grid"), text(left - 8, up.at(value) + 4, short(value), "end", "faint")]
    marked = sorted({x for x, _ in every}) if powers else across.ticks()
    body += grid(across, top, bottom, [(x, short(x, powers)) for x in marked], 18)
    body += [rule(left, bottom, right, bottom, "axis"), rule(left, top, left, bottom, "axis")]
    for s in series:
        places = [(across.at(x), up.at(y)) for x, y in s.points]
        path = " ".join(f"{x:g},{y:g}" for x, y in places)
        body.append(f'<polyline points="{path}" class="{f"line s{s.colour} {s.stroke}".rstrip()}"/>')
        hints = [f"{s.name}: {y:.3g} at {short(x, powers)}" for x, y in s.points]
        body += [dot(x, y, s.colour, hint, s.stroke == "dashed") for (x, y), hint in zip(places, hints)]
    middle = (top + bottom) / 2
    body.append(text((left + right) / 2, bottom + 40, x_label, "middle"))
    body.append(text(18, middle, y_label, "middle", turn=f' transform="rotate(-90 18 {middle:g})"'))
    return frame(title, bottom + 52, body, standalone)


@dataclass
class Row:
    """A label and a value for each series; None where there is none."""

    label: str
    values: List["float | None"]
    note: str = ""


def text_width(value: str) -> float:
    """Pixels that a text needs, about."""
    return 6.8 * len(value)


def label_width(rows: Sequence[Row]) -> float:
    """Pixels that the labels of rows need, about, and at least 104."""
    return max(104.0, 24 + max(text_width(row.label) for row in rows))


def under(left: float, right: float, y: float, value: str) -> str:
    """The title of an axis in its middle, or as far to the right as the picture reaches."""
    half = text_width(value) / 2
    return text(max(min((left + right) / 2, WIDTH - 8 - half), 8 + half), y, value, "middle")


def ratios(title: str, rows: Sequence[Row], x_label: str, standalone: bool = False) -> str:
    """Draws a bar from 1 to the ratio of each row that has one, its first value, to the right if it is above and to the
    left if it is below, with its note. There is at least one row."""
    found = [(row, row.values[0]) for row in rows if row.values[0]]
    left, top, step = 24.0, 44.0, 42.0
    right, bottom = WIDTH - 24.0 - max(text_width(row.note) for row in rows), top + step * len(found)
    across = Axis.around([1.0, *(value for _, value in found)], left, right, True)
    body = [text(across.at(value), bottom + 16, f"{value:g} x", "middle", "faint") for value in across.ticks()]
    for i, (row, ratio) in enumerate(found):
        y, ends = top + i * step, sorted((across.at(1), across.at(ratio)))
        # The line is drawn beside the bar only, not through its label.
        body += [rule(across.at(value), y + 19, across.at(value), y + 38, "axis" if value == 1 else "grid") for value in across.ticks()]
        body.append(text(left, y + 14, row.label))
        body.append(bar(ends[0], y + 20, max(ends[1] - ends[0], 1), 14, 0 if ratio >= 1 else 1, f"{row.label}: {row.note}"))
        body.append(text(ends[1] + 8, y + 32, row.note))
    body.append(under(left, right, bottom + 38, x_label))
    return frame(title, bottom + 50, body, standalone)


def bars(title: str, names: Sequence[Tuple[str, int]], rows: Sequence[Row], x_label: str, standalone: bool = False) -> str:
    """Horizontal bars, a group for each row, and a rule at 1."""
    body, top = legend([(name, colour, "bar") for name, colour in names], 48)
    left, right = label_width(rows), WIDTH - 48.0
    thick = 18.0 / len(names) if len(names) < 3 else 9.0
    group = thick * len(names) + 9
    bottom = top + group * len(rows)
    across = Axis.around([1.0, *(v for row in rows for v in row.values if v)], left, right, False)
    body += grid(across, top, bottom, [(value, f"{value:g}") for value in across.ticks()])
    for i, row in enumerate(rows):
        y = top + i * group + 5
        body.append(text(left - 8, y + group / 2, row.label, "end"))
        for j, (share, (name, colour)) in enumerate(zip(row.values, names)):
            if share is not None:
                body.append(bar(left, y + j * thick, max(across.at(share) - left, 0.5), thick - 1, colour, f"{row.label}, {name}: {share:.2f}"))
    body += [rule(across.at(1), top, across.at(1), bottom, "axis"), rule(left, top, left, bottom, "axis")]
    body.append(under(left, right, bottom + 38, x_label))
    return frame(title, bottom + 50, body, standalone)


def dumbbells(title: str, names: Sequence[Tuple[str, int]], rows: Sequence[Row], x_label: str, standalone: bool = False) -> str:
    """Draws a full and a hollow dot, joined, for each row and name: the values come in pairs, of each name one after another."""
    marks = [(f"{name}, {place}", colour, kind) for name, colour in names for place, kind in (("scattered", "dot"), ("in one piece", "hollow"))]
    body, top = legend(marks, 48)
    left, right, step = label_width(rows), WIDTH - 32.0, 15.0
    group = step * len(names) + 8
    bottom = top + group * len(rows)
    across = Axis.around([v for row in rows for v in row.values if v], left, right, True)
    body += grid(across, top, bottom, [(value, f"{value:g}") for value in across.ticks()])
    for i, row in enumerate(rows):
        y = top + i * group + 12
        body.append(text(left - 8, y + step * (len(names) - 1) / 2 + 4, row.label, "end"))
        for j, (name, colour) in enumerate(names):
            pair = [(v, kind) for v, kind in zip(row.values[2 * j : 2 * j + 2], ("scattered", "in one piece")) if v]
            if len(pair) == 2:
                body.append(rule(across.at(pair[0][0]), y + j * step, across.at(pair[1][0]), y + j * step, f"line s{colour}"))
            for speed, kind in pair:
                hint = f"{row.label}, {name}, {kind}: {speed:.3g}"
                body.append(dot(across.at(speed), y + j * step, colour, hint, kind != "scattered"))
    body.append(under(left, right, bottom + 38, x_label))
    return frame(title, bottom + 50, body, standalone)
