"""A report as one HTML page that needs nothing else: no network, no scripts, and no template engine to make it."""

from __future__ import annotations

from html import escape
from typing import Iterable, List

from windrow.bench import chart, plots, results
from windrow.bench.results import Entry, Report

STYLE = """
:root{color-scheme:light dark;--ink:#1f2328;--faint:#59636e;--ground:#fff;--line:#d8dee4;--good:#1a7f37;--bad:#b3261e;--mark:#fff1ef;--ours:#f0f6ff}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--faint:#9da7b1;--ground:#0d1117;--line:#30363d;--good:#3fb950;--bad:#ff7b72;--mark:#2d1614;--ours:#10203a}}
body{margin:0 auto;padding:24px 20px 64px;max-width:1040px;color:var(--ink);background:var(--ground);font:15px/1.5 system-ui,sans-serif}
h1{font-size:26px;margin:0 0 4px}h2{font-size:20px;margin:40px 0 8px}h3{font-size:16px;margin:0;display:inline}
p{max-width:760px}.faint{color:var(--faint)}.good{color:var(--good)}.bad{color:var(--bad);font-weight:600}
dl{display:flex;flex-wrap:wrap;gap:4px 28px;margin:12px 0}dt{color:var(--faint);font-size:13px}dd{margin:0}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums;margin:8px 0}
th,td{padding:3px 9px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{font-weight:600;color:var(--faint)}
.wrap td:nth-child(2){text-align:left;white-space:normal;min-width:200px}.wrap td:nth-child(7){text-align:left;white-space:normal}.wrap th:nth-child(2){text-align:left}
tr.ours{background:var(--ours)}tr.loss{background:var(--mark)}figure{margin:16px 0;max-width:800px;overflow-x:auto}
svg.plot{width:100%;min-width:640px;height:auto;display:block}details{border-top:1px solid var(--line);padding:8px 0}summary{cursor:pointer}
ul{margin:4px 0 8px;padding-left:20px;font-size:14px;color:var(--faint)}
"""


def table(header: List[str], lines: List[List[str]], kinds: List[str]) -> str:
    """A table; `kinds` are the classes of its lines."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = [
        f'<tr class="{kind}">' + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line, kind in zip(lines, kinds)
    ]
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def bullets(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def kind_of(entry: Entry, result: Entry) -> str:
    """The class of a contender's line: faster than windrow, of windrow, or neither."""
    lost = result in results.losses(entry)
    return "loss" if lost else "ours" if result["name"].startswith("windrow") else ""


def workload_section(entry: Entry) -> str:
    """All contenders of one workload."""
    kinds = [kind_of(entry, result) for result in entry["results"]]
    lost = len(results.losses(entry))
    mark = f' <span class="bad">{lost} faster than windrow</span>' if lost else ""
    notes = results.notes(entry)
    return (
        f'<details open="open"><summary><h3>{escape(results.heading(entry))}</h3>{mark}</summary>'
        f"{table(results.header(entry), results.rows(entry), kinds)}{bullets(notes) if notes else ''}</details>"
    )


def overview(report: Report) -> str:
    """One line for each workload: both layouts, the fastest of the others, the ratio."""
    header = ["", "workload", "windrow", "GB/s", "one piece", "fastest other", "", "ratio", "of memcpy"]
    lines = [results.cells(pair) for pair in results.pairs(report)]
    kinds = ["loss" if "behind" in line["others / windrow"] else "" for line in lines]
    return f'<div class="wrap">{table(header, [list(line.values()) for line in lines], kinds)}</div>'


def verdict(report: Report) -> str:
    """How often windrow was the fastest, and every case in which it was not."""
    timed = [entry for entry in report["workloads"] if results.median(results.find(entry, "windrow"))]
    count, slower = 0, []
    for entry in timed:
        found = [f"{result['name']} {results.number(results.ratio(entry, result))}" for result in results.losses(entry)]
        count += len(found)
        slower += [f"{entry['name']}, {results.layout(entry)}: {'; '.join(found)}"] if found else []
    judged = [target for entry in timed for target in entry.get("targets", []) if target["ratio"] is not None]
    reached = sum(target["ratio"] >= target["at_least"] for target in judged)
    cases = sum(results.is_peer(result) and results.median(result) is not None for entry in timed for result in entry["results"])
    problems = ((entry["name"], r["name"], r.get("problem", "")) for entry in report["workloads"] for r in entry["results"])
    wrong = [f"{name}, {contender}: {text}" for name, contender, text in problems if text.startswith("WRONG")]
    text = (
        f"<p>windrow was faster in {cases - count} of {cases} comparisons with another library, and slower in "
        f'<span class="{"bad" if slower else "good"}">{count}</span>. '
        f"Of {len(judged)} targets that the project sets itself, windrow is ahead of {reached}.</p>"
    )
    text += f"<p>Slower than these, with their time over windrow's:</p>{bullets(slower)}" if slower else ""
    return text + "".join(f'<p class="bad">{escape(line)}</p>' for line in wrong)


def render(report: Report) -> str:
    """The page."""
    machine = report["machine"]
    facts = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(str(value))}</dd></div>" for key, value in machine.items())
    figures = "".join(f"<figure>{picture}</figure>" for picture in plots.plots(report).values())
    skipped = report.get("skipped")
    quick = '<p class="bad">A quick run: it shows that the benchmark works, not how fast anything is.</p>' if report["options"].get("quick") else ""
    title = f"windrow benchmark, {machine.get('cpu', '')}, {machine.get('date', '')}"
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}{chart.sheet()}</style></head><body>
<h1>windrow benchmark</h1>
{quick}
<dl>{facts}</dl>
{verdict(report)}
<h2>Overview</h2>
<p class="faint">Medians. The ratio is the others' time over windrow's: below 1 it is a loss. "Fastest other" is like with like: none that writes into memory
which is there already, or that was spared the import. "Of memcpy" is the share of the speed of a plain copy of as many bytes,
measured in the same run.</p>
{overview(report)}
{f"<p>Not run:</p>{bullets(skipped)}" if skipped else ""}
<h2>Plots</h2>
{figures or "<p>None: no sweep was run.</p>"}
<h2>All contenders</h2>
<p class="faint">Every output was compared with the expected values before it was timed. Contenders took turns. Their time over
windrow's is that of the same kind of call: with <code>out=</code> against with <code>out=</code>.</p>
{"".join(workload_section(entry) for entry in report["workloads"])}
</body></html>
"""
