#!/usr/bin/env python3
"""Prints the crates that the Python module contains, with their licences, and the texts that LICENSE-APACHE does not have.

Fails if a crate that does not offer Apache-2.0 has no text of its licence in $CARGO_HOME/registry, or has an expression with AND, WITH
or parentheses: a person has to read it.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CARGO = os.environ.get("CARGO", "cargo")
CRATES = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"), "registry/src")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    # Crates that run in the compiler alone are left out. A path behind the version marks what is windrow's own.
    tree = subprocess.run(
        [CARGO, "tree", "--locked", "-p", "windrow-python", "-e", "normal,no-proc-macro", "--prefix", "none", "--no-dedupe"]
        + ["--format", "{p}|{l}"],
        check=True,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    crates = sorted({tuple(line.replace(" v", "|", 1).split("|")) for line in tree.splitlines() if " (" not in line.split("|")[0]})
    print("The compiled module contains the Rust standard library and these crates. What offers Apache-2.0 is used under")
    print("it: LICENSE-APACHE has its text. COPYRIGHT-library.html of a Rust toolchain has the notices of the library.\n")
    for name, version, licence in crates:
        print(f"{name} {version}: {licence}")
    for name, version, licence in crates:
        if "(" not in licence and "Apache-2.0" in re.split(" OR |/", licence):
            continue
        assert not re.search(r"[(]|\b(AND|WITH)\b", licence), f"{name} {version} is {licence}: which texts does it need?"
        texts = sorted(CRATES.glob(f"*/{name}-{version}/LICENSE*"))
        assert texts, f"{name} {version} is {licence} and has no text of it"
        for text in texts:
            print(f"\n{'-' * 80}\n{name} {version}\n\n{text.read_text(encoding='utf-8').strip()}")


if __name__ == "__main__":
    main()
