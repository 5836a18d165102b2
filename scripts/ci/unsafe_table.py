#!/usr/bin/env python3
"""Holds UNSAFE.md against the code: every file's number of unsafe sites, and that every test it names is there.

A site is an `unsafe` block or `unsafe impl`; an `unsafe fn` is a promise of its callers, whose blocks are counted. Without
`--check`, prints the sites of each file.
"""

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TREES = ["src", "python/src", "crates/windrow-driver/src", "crates/capi/src"]
SITE = re.compile(r"\bunsafe\s*(?:\{|impl\b)")


def sites():
    counts = Counter()
    for path in sorted(path for tree in TREES for path in (ROOT / tree).rglob("*.rs")):
        name = path.relative_to(ROOT).as_posix()
        if "tests" in path.stem or "tests" in path.parts:
            continue
        code = re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8"))
        # Tests within a file stand at its end.
        code = code.split("#[cfg(test)]\nmod tests {")[0]
        counts[name] += len(SITE.findall(code))
    return +counts


def rows():
    """File, number of sites and the names of tests of each row."""
    for line in (ROOT / "UNSAFE.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 5:
            yield cells[0].strip("`"), int(cells[1]), re.findall(r"`(\w+)`", cells[4])


def tests():
    trees = ["src", "tests", "crates", "python/tests", "python/fuzz"]
    paths = [path for tree in trees for path in (ROOT / tree).rglob("*") if path.suffix in (".rs", ".py")]
    found = {name for path in paths for name in re.findall(r"\b(?:fn|def) (\w+)", path.read_text(encoding="utf-8"))}
    return found | {path.stem for path in (ROOT / "fuzz/fuzz_targets").glob("*.rs")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail where the table and the code differ")
    options = parser.parse_args()
    counts = sites()
    if not options.check:
        for name, count in counts.items():
            print(f"{count:4} {name}")
        print(f"{sum(counts.values()):4} in all")
        return 0
    told, wrong = Counter(), []
    known = tests()
    for name, count, named in rows():
        told[name] += count
        wrong += [f"{name}: there is no test {test}" for test in named if test not in known]
        wrong += [] if named else [f"{name}: a row names no test"]
    for name in sorted(counts | told):
        if counts[name] != told[name]:
            wrong.append(f"{name}: {counts[name]} unsafe sites, UNSAFE.md tells of {told[name]}")
    for text in wrong:
        print(text, file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
