"""Whole pipelines with windrow and without: torch's DataLoader, default_collate on dicts, Ray Data.

    python benches/pipelines/run.py [--only workers|operators [--quick] [--cpu]] [--json FILE] [--commit ID]

Worker processes, and the operators of windrow.torch.ops, have results of their own, by `--only`.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any, Dict, List

import loader
import operators
import workers
from windrow._measure import machine


def show(found: Dict[str, Any]) -> None:
    """One comparison as text; the first contender is whom windrow is held against."""
    first = next(iter(found["quartiles"].values()))[1]
    print(found["title"])
    for name, (low, middle, high) in found["quartiles"].items():
        rates = " ".join(f"{found['count'] / seconds:12,.0f}" for seconds in (high, middle, low))
        print(f"  {name:<20} {rates} /s  {first / middle:5.2f}x", flush=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["workers", "operators"], help="DataLoaders with worker processes, or torch operators, and nothing else")
    parser.add_argument("--quick", action="store_true", help="operators of a few short rows, a few times: whether their results are right")
    parser.add_argument("--cpu", action="store_true", help="operators by the time that the processors spend, for a machine that others use")
    parser.add_argument("--json", type=Path, help="write the results to this file too")
    parser.add_argument("--commit", default="", help="which windrow this is, for the file")
    options = parser.parse_args()
    lines: List[Dict[str, Any]] = []

    def say(found: Dict[str, Any]) -> None:
        lines.append(found)
        show(found)

    if options.only == "operators":
        operators.measure(say, options.quick, options.cpu)
    elif options.only:
        workers.measure(say)
    else:
        loader.measure(say)
        try:
            import ray_data
        except ImportError as error:
            print(f"SKIP Ray Data: {error}")
        else:
            ray_data.measure(say)
    if options.json:
        report = {"machine": {**machine("torch", "ray"), "commit": options.commit, "load": f"{os.getloadavg()[0]:.0f}", **({"clock": "processors"} if options.cpu else {})}, "group": options.only or "pipelines", "lines": lines}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
