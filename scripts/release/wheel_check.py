#!/usr/bin/env python3
"""Installs one wheel, and nothing else, into a fresh environment and looks at it as its user would.

Contents, size and licences; the platform tag by auditwheel, where that is installed; time and side effects of the
import; an end with daemon threads; `python -m windrow doctor` and `demo`. Exits with the first thing that is wrong.
"""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path
from typing import Iterable, List

MAX_IMPORT_MS = 50.0
# The kernels of four architectures have 2.8 MiB of them.
MAX_MIB = 6
NEEDED = ("windrow/py.typed", "windrow/_windrow.pyi", "/licenses/LICENSE-MIT", "/licenses/LICENSE-APACHE")
# A release has the licences of others too (wheel_origin.py); the wheel of a source distribution has not.
RELEASE = ("/licenses/THIRD-PARTY.txt", "/licenses/COPYRIGHT-library.html")
JUNK = re.compile(r"__pycache__|\.pyc$|(^|/)(tests?|target|out|benches|kernels)/|\.(rs|cu|cuh|toml)$")

IMPORT = """
import sys
import windrow
loaded = {"numpy", "torch", "jax", "ray", "pyarrow"} & set(sys.modules)
assert not loaded, loaded
assert windrow.__file__.startswith(sys.prefix), windrow.__file__
assert getattr(sys, "_is_gil_enabled", bool)() == (len(sys.argv) > 1), "the import turned the interpreter lock on"
assert memoryview(windrow.stack([b"ab", b"cd"])).tolist() == [[97, 98], [99, 100]]
"""

# CPython before 3.14 unwinds the stacks of such threads when it ends.
DAEMONS = """
import threading, time
import windrow

def work():
    while True:
        windrow.stack([bytes(1 << 20)] * 8)

for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""


def contents(wheel: Path, wanted: Iterable[str]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for needed in wanted:
        assert any(name.endswith(needed) for name in names), f"{needed} is missing"
    junk = [name for name in names if JUNK.search(name)]
    assert not junk, junk
    mib = wheel.stat().st_size / 2**20
    print(f"{wheel.name}: {mib:.2f} MiB, {len(names)} files")
    assert mib < MAX_MIB, f"less than {MAX_MIB} MiB are wanted"


def platform_tag(wheel: Path) -> None:
    if "linux" not in wheel.name:
        print("SKIP: auditwheel reads wheels for Linux only, the platform tag was not checked")
        return
    if importlib.util.find_spec("auditwheel") is None:
        print("SKIP: auditwheel is not installed, the platform tag was not checked")
        return
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(wheel)], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    found = re.search(r'platform\s+tag:\s+"(\w+)"', " ".join(shown.split()))
    assert found, shown
    claimed = re.findall(r"manylinux_(\d+)_(\d+)", wheel.name)
    fits = re.search(r"manylinux_(\d+)_(\d+)", found.group(1))
    print(f"auditwheel: {found.group(1)}")
    for version in claimed:
        assert fits and tuple(map(int, fits.groups())) <= tuple(map(int, version)), shown


def import_ms(python: List[str], module: str, folder: str) -> float:
    """Milliseconds of CPU that an import takes, the least of some runs; waiting for a core is not among them."""
    program = f"import time; begin = time.process_time(); import {module}; print(time.process_time() - begin)"
    runs = [subprocess.run([*python, "-c", program], check=True, cwd=folder, stdout=subprocess.PIPE, text=True) for _ in range(9)]
    return min(float(run.stdout) for run in runs) * 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", metavar="WHEEL", type=Path)
    parser.add_argument("python", metavar="PYTHON", nargs="?", default=sys.executable, help="makes the environment; default: the one that runs this")
    parser.add_argument("--release", action="store_true", help="the licences of others must be in it, too")
    options = parser.parse_args()
    wheel, base = options.wheel.resolve(), options.python
    contents(wheel, NEEDED + RELEASE if options.release else NEEDED)
    platform_tag(wheel)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([base, "-m", "venv", f"{folder}/env"], check=True)
        # Isolated: neither PYTHONPATH nor the packages of the user are seen.
        python = [f"{folder}/env/{'Scripts' if os.name == 'nt' else 'bin'}/python", "-I"]
        pip = [*python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "install", "--no-index", "--no-deps", wheel], check=True)
        # A build with the lock has it on before the import too.
        gil = subprocess.run([*python, "-c", "import sys; sys.exit(getattr(sys, '_is_gil_enabled', lambda: 0)())"])
        subprocess.run([*python, "-W", "error", "-c", IMPORT, *["gil"] * gil.returncode], check=True, cwd=folder)
        if "-cp313t-" in wheel.name:
            print("SKIP: PyO3 0.28, the last for 3.13t, cannot stand that CPython unwinds daemon threads")
        else:
            for _ in range(5):
                subprocess.run([*python, "-c", DAEMONS], check=True, cwd=folder)
        # On a slower or busier machine than the limit is for, both imports take longer.
        spent, other = (import_ms(python, module, folder) for module in ("windrow", "asyncio"))
        limit = max(MAX_IMPORT_MS, 1.15 * other)
        print(f"import windrow: {spent:.1f} ms of CPU, at most {limit:.1f}; asyncio {other:.1f}")
        assert spent < limit
        for command in ("doctor", "demo"):
            subprocess.run([*python, "-m", "windrow", command], check=True, cwd=folder)
    print(f"{wheel.name}: checked with {base}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
