#!/usr/bin/env python3
"""Holds the binary interface of the C library against the table in crates/capi/abi.txt.

The table has each function that the shared library exports with its prototype, the value of each constant of windrow.h, and the
size of each struct with the offset and size of its members, as the compiler (`$CC`, cc) lays them out. `--check` fails and
prints what differs; `--write` writes the table anew. A line that is gone or other than before breaks programs that were
compiled with an earlier windrow.h: it needs a new minor version before 1.0, a new major one after, and a line in CHANGELOG.md.
"""

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "crates/capi/include/windrow.h"
TABLE = ROOT / "crates/capi/abi.txt"


def source():
    """The header without comments and directives."""
    text = re.sub(r"//[^\n]*", "", HEADER.read_text(encoding="utf-8"))
    return re.sub(r"^#[^\n]*", "", text, flags=re.M)


def prototypes(text):
    """Function -> its prototype on one line."""
    found = re.findall(r"^([a-z][\w ]*?[ *]+)(windrow_\w+)(\([^;{}]*\));", text, flags=re.M)
    return {name: " ".join(f"{result}{name}{arguments}".split()) for result, name, arguments in found}


def exported(library):
    """The functions and data that programs can link, Rust's own left out."""
    lines = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.split()[-1].split("@")[0] for line in lines} - {"rust_eh_personality"}


def members(body):
    """The names of a struct's members."""
    names = []
    for declaration in filter(str.strip, body.split(";")):
        pointer = re.search(r"\(\*(\w+)\)", declaration)
        names.append(pointer[1] if pointer else re.search(r"(\w+)\s*(?:\[\w*\])?\s*$", declaration)[1])
    return names


def layouts(text):
    """Constants, sizes and offsets as a compiled program prints them."""
    prints = []
    for body, name in re.findall(r"typedef enum \{(.*?)\} (\w+);", text, flags=re.S):
        prints.append(f'printf("enum {name} %zu bytes\\n", sizeof({name}));')
        for constant in re.findall(r"(\w+)\s*=", body):
            prints.append(f'printf("  {constant} = %d\\n", (int){constant});')
    for kind, body, name in re.findall(r"typedef (struct|union)(?: \w+)? \{(.*?)\n?\} (\w+);", text, flags=re.S):
        prints.append(f'printf("{kind} {name} %zu bytes, aligned to %zu\\n", sizeof({name}), _Alignof({name}));')
        for member in members(body):
            at = f"offsetof({name}, {member}), sizeof((({name} *)0)->{member})"
            prints.append(f'printf("  {member} at %zu, %zu bytes\\n", {at});')
    program = "\n".join(["#include <stdio.h>", '#include "windrow.h"', "int main(void) {", *prints, "return 0; }"])
    with tempfile.TemporaryDirectory() as folder:
        binary = f"{folder}/layouts"
        compiler = os.environ.get("CC", "cc")
        command = [compiler, "-std=c11", "-Wall", "-Werror", f"-I{HEADER.parent}", "-x", "c", "-", "-o", binary]
        subprocess.run(command, input=program, text=True, check=True)
        return subprocess.run([binary], check=True, capture_output=True, text=True).stdout.splitlines()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="fail where the table differs")
    action.add_argument("--write", action="store_true", help="write the table anew")
    parser.add_argument("library", type=Path, help="libwindrow_capi.so or libwindrow.so")
    arguments = parser.parse_args()

    text = source()
    declared, symbols = prototypes(text), exported(arguments.library)
    if declared.keys() != symbols:
        missing, hidden = sorted(declared.keys() - symbols), sorted(symbols - declared.keys())
        sys.exit(f"{arguments.library}: windrow.h declares and the library lacks {missing}; the library has and windrow.h lacks {hidden}")
    lines = ["# Written by scripts/ci/c_abi.py --write, for 64-bit Linux. A line that changes breaks programs that were compiled before."]
    lines += [declared[name] for name in sorted(declared)]
    lines += [" ".join(callback.split()) for callback in re.findall(r"^typedef [\w *]*\(\*\w+\)\([^;]*\);", text, flags=re.M)]
    lines += layouts(text)
    if arguments.write:
        TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return
    kept = TABLE.read_text(encoding="utf-8").splitlines()
    if kept != lines:
        print(*difflib.unified_diff(kept, lines, "crates/capi/abi.txt", str(arguments.library), lineterm="", n=1), sep="\n")
        sys.exit(f"the binary interface has changed: scripts/ci/c_abi.py --write {arguments.library}, and see scripts/ci/c_abi.py --help")


if __name__ == "__main__":
    main()
