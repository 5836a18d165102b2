#!/usr/bin/env python3
"""Holds scripts/README.md against the scripts, and every text against the paths of scripts.

Fails, naming the file, where
- a tracked file below scripts/ is not in the list, or a file in the list does not exist;
- a script ends in neither .sh nor .py, does not begin with #!, or has no executable bit;
- the --help of a script fails, prints nothing, takes over 10 s, needs a package, or changes a file;
- a tracked text names a path below scripts/ that does not exist.

A row of the list that begins with "Library" or "Data" is no script.
"""

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = "scripts/README.md"
# Names in braces stand for one path each, as in a shell.
MENTION = r"scripts/[A-Za-z0-9_./-]*(\{[A-Za-z0-9_.,-]*\})?"
# The environment without the settings of the caller's Python, such as its package paths.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def listed():
    """Path -> whether it is a script."""
    found, folder = {}, None
    for line in (ROOT / LIST).read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"## (scripts/\S+)$", line):
            folder = heading[1]
        elif row := re.match(r"\| `([^\s`]+)[^`]*` \| (\w+)", line):
            found[f"{folder}/{row[1]}"] = row[2] not in ("Library", "Data")
    return found


def state():
    """Each tracked file with its time, and what is there beside; a folder that git ignores counts as one."""
    known = {(file, (ROOT / file).stat().st_mtime_ns) for file in git("ls-files") if (ROOT / file).exists()}
    return known | {(line[3:], 0) for line in git("--no-optional-locks", "status", "--porcelain", "--ignored")}


def fault_of(script):
    path = ROOT / script
    if path.suffix not in (".sh", ".py") or not path.read_bytes().startswith(b"#!") or not os.access(path, os.X_OK):
        return f"{script}: ends in neither .sh nor .py, does not begin with #!, or has no executable bit"
    command = [*([sys.executable, "-S"] if path.suffix == ".py" else []), path, "--help"]
    try:
        run = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, timeout=10, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{script}: --help: {error}"
    if run.returncode or not run.stdout.strip():
        return f"{script}: --help ends with {run.returncode} and prints {run.stdout.strip()[:80]!r} {run.stderr.strip()[-200:]}"


def wrong_mentions():
    for file, number, text in (line.split(":", 2) for line in git("grep", "-InoE", MENTION)):
        head, _, names = text.partition("{")
        for path in (head + name for name in names.rstrip("}").split(",")):
            if not (ROOT / path.rstrip(".")).exists():
                yield f"{file}:{number}: there is no {path}"


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    known, tracked, before = listed(), {file for file in git("ls-files", "scripts") if file != LIST}, state()
    wrong = [f"{file}: is not in {LIST}" for file in sorted(tracked - set(known))]
    wrong += [f"{file}: is in {LIST} and does not exist" for file in known if not (ROOT / file).is_file()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        wrong += filter(None, pool.map(fault_of, (file for file, is_script in known.items() if is_script and (ROOT / file).is_file())))
    wrong += [f"{file}: the --help of a script changed it" for file in sorted({file for file, _ in before ^ state()})]
    wrong += wrong_mentions()
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
