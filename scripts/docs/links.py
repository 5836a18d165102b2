#!/usr/bin/env python3
"""Checks Markdown: prints relative links and anchors that lead nowhere and lines that are too long, and fails if there are any.

The site's build follows the links of docs/, this script those of other pages. A line has at most 120 characters, outside of
tables, blocks of code and what another script writes. Nothing is loaded from a server.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[2]
# Characters of a line of Markdown outside of tables.
LONGEST = 120
# The forms of links: Markdown, a reference, HTML.
LINKS = [r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)", r"^ {0,3}\[[^\]]+\]:\s*<?([^\s>]+)", r"\b(?:href|src)=\"([^\"]+)\""]


def without_blocks(text):
    """The text without blocks of code."""
    return re.sub(r"^ *(```+|~~~+).*?^ *\1", "", text, flags=re.M | re.S)


def prose(text):
    """The text without code, in which nothing is a link."""
    return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "x", without_blocks(text))


def anchors(text):
    """The anchors of its headings, as GitHub makes them, and those that it names itself."""
    found = set(re.findall(r"\b(?:id|name)=\"([^\"]+)\"", text))
    for heading in re.findall(r"^#{1,6}\s+(.*?)\s*#*$", without_blocks(text), re.M):
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        base = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        count = 0
        while (anchor := f"{base}-{count}" if count else base) in found:
            count += 1
        found.add(anchor)
    return found


def long_lines(text):
    """Numbers of lines beyond the limit that could be broken."""
    written = False
    for number, line in enumerate(re.sub(r"^ *(```+|~~~+).*?^ *\1", lambda block: "\n" * block[0].count("\n"), text, flags=re.M | re.S).splitlines(), 1):
        if re.fullmatch(r"<!-- (?:[\w-]+: (?:begin|end|written by .*)|end of [\w-]+) -->", line):
            written = "begin" in line or "written by" in line
        breakable = " " in re.sub(r"^\s*([-*+] |\d+\. |> )?", "", line)
        if len(line) > LONGEST and breakable and not written and not line.lstrip().startswith("|"):
            yield number


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = {file for file in (ROOT / name for name in listed.split("\0") if name) if file.exists()}
    folders = {folder for file in files for folder in file.parents}
    wrong = []
    for page in sorted(file for file in files if file.suffix == ".md"):
        text = page.read_text(encoding="utf-8")
        wrong += [f"{page.relative_to(ROOT)}:{number}: longer than {LONGEST} characters" for number in long_lines(text)]
        if ROOT / "docs" in page.parents:
            continue
        for link in (link for pattern in LINKS for link in re.findall(pattern, prose(text), re.M)):
            path, _, anchor = unquote(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            if re.match(r"[a-z][a-z0-9+.-]*:", link):
                continue
            if target not in files | folders:
                wrong.append(f"{page.relative_to(ROOT)}: {link}: there is no such file")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
                wrong.append(f"{page.relative_to(ROOT)}: {link}: there is no such heading")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
