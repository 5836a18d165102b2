#!/usr/bin/env python3
"""Holds UNSAFE.md against the code: every file's number of unsafe sites, and that every test it names is there.

A site is an `unsafe` block or `unsafe impl`; an `unsafe fn` is a promise of its callers, whose blocks are counted. Without
`--check`, prints the sites of each file. `--write` lays out the items of UNSAFE.md in lines of 120 characters, each from
its own lines or from a row `| file | sites | what | invariant | tests |`. Items keep their order, so that two branches
merge once both sides and their base are written (`--write FILE`).
"""

import argparse
import re
import sys
import textwrap
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "UNSAFE.md"
TREES = ["src", "python/src", "crates/windrow-driver/src", "crates/capi/src"]
SITE = re.compile(r"\bunsafe\s*(?:\{|impl\b)")
ITEM = re.compile(r"- `([^`]+)`, (\d+) sites?: (.*?) - Invariant: (.*?) - Tests: (.*)")


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


def item(file, sites, what, invariant, tests):
    """An item in lines of 120 characters, code left whole."""
    parts = [("", f"- `{file}`, {sites} site{'s' * (sites != 1)}: {what}"), ("  ", f"- Invariant: {invariant}"), ("  ", f"- Tests: {tests}")]
    lines = []
    for indent, text in parts:
        whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), text)
        lines += textwrap.wrap(whole, 120, initial_indent=indent, subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def blocks(text):
    """Runs of lines of the page: an item's five parts, or a line as it is. Heads of tables are left out."""
    open_item = []
    for line in [*text.splitlines(), ""]:
        if open_item and line.startswith("  "):
            open_item.append(line.strip())
            continue
        if open_item:
            found = ITEM.fullmatch(" ".join(open_item))
            if not found:
                sys.exit(f"UNSAFE.md: not an item with an invariant and tests: {open_item[0]}")
            yield found[1], int(found[2]), *found.groups()[2:]
            open_item = []
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("- `"):
            open_item = [line]
        elif line.startswith("| `") and len(cells) == 5:
            yield cells[0].strip("`"), int(cells[1]), *cells[2:]
        elif not line.startswith("|"):
            yield line


def written(text):
    return "\n".join(block if isinstance(block, str) else item(*block) for block in blocks(text)).rstrip() + "\n"


def rows():
    """File, number of sites and the names of tests of each item."""
    for block in blocks(PAGE.read_text(encoding="utf-8")):
        if not isinstance(block, str):
            yield block[0], block[1], re.findall(r"`(\w+)`", block[4])


def tests():
    trees = ["src", "tests", "crates", "python/tests", "python/fuzz"]
    paths = [path for tree in trees for path in (ROOT / tree).rglob("*") if path.suffix in (".rs", ".py")]
    found = {name for path in paths for name in re.findall(r"\b(?:fn|def) (\w+)", path.read_text(encoding="utf-8"))}
    return found | {path.stem for path in (ROOT / "fuzz/fuzz_targets").glob("*.rs")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail where the page and the code differ")
    parser.add_argument("--write", nargs="?", type=Path, const=PAGE, metavar="FILE", help="lay out the items of UNSAFE.md, or of FILE")
    options = parser.parse_args()
    if options.write:
        options.write.write_text(written(options.write.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
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
        wrong += [] if named else [f"{name}: an item names no test"]
    for name in sorted(counts | told):
        if counts[name] != told[name]:
            wrong.append(f"{name}: {counts[name]} unsafe sites, UNSAFE.md tells of {told[name]}")
    page = PAGE.read_text(encoding="utf-8")
    wrong += [] if page == written(page) else ["UNSAFE.md: run scripts/ci/unsafe_table.py --write"]
    for text in wrong:
        print(text, file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
