"""The records of GPU runs, and what README.md and the site say of them. Needs no more than the standard library.

benches/results/gpu/done.jsonl has one JSON object a line, for each slot of the queue that ran on a GPU: `slot`, `verdict` (ok, failed, stopped),
`seconds`, `commit`, `gpu`, `driver`, `versions`, `note`, `when`, and `figures`: what the slot's command measured.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "benches/results/gpu/done.jsonl"


@dataclass
class Gpu:
    """The records of one kind of GPU, by slot: the newest, and the newest that is ok."""

    name: str
    # Takes figures of simulated drivers too, which mean nothing.
    simulated: bool = False
    newest: dict = field(default_factory=dict)
    ok: dict = field(default_factory=dict)

    @property
    def slug(self):
        """The name for files and links."""
        return "-".join(re.findall(r"[a-z0-9]+", self.name.lower().replace("nvidia", "")))

    def figures(self, kind):
        """The figures of the newest ok records of a kind, by slot."""
        return {slot: record["figures"] for slot, record in self.ok.items() if kind_of(record.get("figures"), self.simulated) == kind}

    def gather(self):
        """The run of benches/gather with the most workloads: those of a first look are few."""
        return max(self.figures("gather").values(), key=lambda run: len(run["workloads"]), default=None)

    def torch(self):
        """The runs of bench_torch.py as one: each workload of the newest run that has it."""
        runs = list(self.figures("torch").values())
        place = lambda row: (row["workload"], row["layout"])
        newest = {place(row): run for run in runs for row in run["rows"]}
        used = [run for run in runs if any(run is of for of in newest.values())]
        if not used:
            return None
        both = {key: [row for run in used for row in run[key] if newest.get(place(row)) is run] for key in ("rows", "absent")}
        return {**both, "about": [{**run["machine"], **run["versions"]} for run in used]}


def kind_of(figures, simulated=False):
    """`gather`, `trials`, `torch` and `package` (of `python -m windrow bench`) by what they have in them; `rows` are tables as they are.
    Figures of simulated drivers are none, nor are those of quick runs."""
    if isinstance(figures, list):
        return "rows" if figures and all(isinstance(row, dict) for row in figures) else None
    if not isinstance(figures, dict) or not simulated and (figures.get("times_mean_nothing") or figures.get("dry")):
        return None
    if figures.get("bench") == "torch":
        return "torch" if figures["rows"] else None
    if "schema" in figures:
        return "package" if simulated or not figures["options"].get("quick") else None
    if "workloads" in figures:
        return "trials" if "trials" in figures else "gather"
    return None


def load(path=RECORDS, simulated=False):
    """The GPUs that there are records of, in the order of their first. A GPU is what its records call it: none is taken for another."""
    found = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            name, slot, verdict = record["gpu"], record["slot"], record["verdict"]
        except (ValueError, KeyError, TypeError) as error:
            sys.exit(f"{path}:{number}: not a record: {error!r}")
        if not simulated and (not name or re.search("cudasim|simulated", name, re.IGNORECASE)):
            continue
        gpu = found.setdefault(name, Gpu(name, simulated))
        # Lines are appended: the last is the newest, and its figures are behind the others.
        gpu.newest[slot] = record
        if verdict == "ok":
            gpu.ok.pop(slot, None)
            gpu.ok[slot] = record
    return list(found.values())


def listed(words):
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def verdicts(gpu):
    """How many slots passed, when and with what, and which did not."""
    passed = [record for record in gpu.newest.values() if record["verdict"] == "ok"]
    others = [slot for slot, record in gpu.newest.items() if record["verdict"] != "ok"]
    last = list(gpu.newest.values())[-1]
    facts = [f"{len(passed)} of {len(gpu.newest)} slots passed", *(f"not {slot}" for slot in others)]
    facts += [f"{name} {last[key]}" for name, key in (("driver", "driver"), ("commit", "commit")) if last.get(key)]
    return f"{gpu.name} ({', '.join([*facts, str(last.get('when', ''))[:10]]).rstrip(', ')})"


def line(gpus, page, simulated):
    """The first screen's words on GPUs, with links where there are any."""
    link = lambda words, to: f"[{words}]({to})" if to else words
    if not gpus:
        return f"**No GPU has run it yet**: the CUDA engine is tested on a {link('simulated driver', simulated)} only."
    return f"**On a GPU** it ran on {listed([verdicts(gpu) for gpu in gpus])}: {link('figures', page)}."
