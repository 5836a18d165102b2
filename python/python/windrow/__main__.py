"""`python -m windrow demo | bench | doctor | calibrate`."""

from __future__ import annotations

import importlib
import sys
from typing import List

COMMANDS = {
    "demo": "assemble photographs, text and sound; check and time against NumPy and torch",
    "bench": "compare with torch, NumPy, DALI and others; --help lists the options",
    "doctor": "say what this build can do on this machine",
    "calibrate": "measure how this machine writes large batches, and keep it",
}

# Modules that commands import beside windrow itself.
NEEDS = {"numpy", "PIL", "sklearn"}


def main(argv: List[str]) -> int:
    """Runs one command; its exit status. 0 for help, 2 for an unknown command, 1 without a package of `NEEDS` (but for a plain `demo`)."""
    if not argv or argv[0] not in COMMANDS:
        is_help = argv in (["-h"], ["--help"])
        lines = ["usage: python -m windrow COMMAND [options]\n", *(f"  {name:10}{text}" for name, text in COMMANDS.items())]
        lines += [f"\nunknown command {argv[0]!r}"] if argv and not is_help else []
        print("\n".join(lines), file=sys.stdout if is_help else sys.stderr)
        return 0 if is_help else 2
    try:
        return int(importlib.import_module(f"windrow.{argv[0]}").main(argv[1:]))
    except ModuleNotFoundError as error:
        if error.name not in NEEDS:
            raise
        if argv == ["demo"]:
            return int(importlib.import_module("windrow._demo_plain").main(str(error.name)))
        print(f"python -m windrow {' '.join(argv)} needs {error.name}: pip install numpy pillow scikit-learn torch", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
