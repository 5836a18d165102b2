#!/usr/bin/env python3
"""The public items of the crate against the committed list: scripts/ci/public_items.py [--write] [FOLDER]

Reads the pages that `cargo doc --no-deps --features ndarray,testing` wrote to FOLDER (target/doc/windrow), so that no
compiler but the stable one is needed; pages of items that are gone are left out.
Each line of scripts/ci/public-items.txt is an item, a member or an implementation as its page declares it. Fails on a
line that is new or gone, and on a constructor, a function of a module or a method of Engine without an example; `--write`
writes the list.
"""

import html
import re
import sys
from pathlib import Path

LIST = Path(__file__).with_name("public-items.txt")
AUTOMATIC = re.compile(r"^impl(<[^>]*>)? !?(Freeze|RefUnwindSafe|UnwindSafe|Unpin|UnsafeUnpin|StructuralPartialEq)\b")


def plain(page):
    """The text of a piece of a page, in one line."""
    page = re.sub(r"<summary.*?</summary>|<span class=\"comment\">.*?</span>|<a [^>]*class=\"anchor\".*?</a>", "", page, flags=re.S)
    text = html.unescape(re.sub(r"<[^>]*>", "", page)).replace("\u200b", "").replace("ⓘ", "")
    return re.sub(r"\s+", " ", text).replace("( ", "(").replace(", )", ")").strip()


def headers(page, tag):
    return [plain(header) for header in re.findall(rf'<{tag} class="code-header">(.*?)</{tag}>', page, re.S)]


def between(page, begin, ends):
    """The items under a heading."""
    found = page.find(f'<h2 id="{begin}"')
    if found < 0:
        return ""
    return page[found : min((at for end in ends if (at := page.find(f'<h2 id="{end}"', found)) > 0), default=len(page))]


def pages_of(root):
    overview = root / "all.html"
    links = re.findall(r'href="([^"#:]+\.html)"', overview.read_text(encoding="utf-8")) if overview.exists() else []
    return {file: file.read_text(encoding="utf-8") for link in links if (file := root / link).exists()}


def items(root, pages):
    for file, page in pages.items():
        kind, _, rest = file.name.partition(".")
        declared = re.search(r'<pre class="rust item-decl"><code>(.*?)</code></pre>', page, re.S)
        if not rest.removesuffix("html") or not declared:
            continue
        name = "::".join(("windrow", *file.relative_to(root).parent.parts, rest.removesuffix(".html")))
        if file.parent == root and any(other.name == file.name for other in pages if other.parent != root and 'item-decl' in pages[other]):
            yield f"{name}: also in its module"
            continue
        yield f"{name}: {plain(declared[1])}"
        ends = ("trait-implementations", "synthetic-implementations", "blanket-implementations")
        yield from (f"{name}: {method}" for method in headers(between(page, "implementations", ends), "h4"))
        if kind == "trait":
            yield from (f"{name}: {found}" for found in headers(between(page, "foreign-impls", ("implementors",)), "h3"))
        implemented = between(page, "trait-implementations", ends[2:]) or between(page, "synthetic-implementations", ends[2:])
        yield from (f"{name}: {found}" for found in headers(implemented, "h3") if not AUTOMATIC.match(found))


def without_example(pages):
    """Constructors, functions of modules and methods of Engine whose documentation has no example."""
    for file, page in pages.items():
        kind, _, name = file.stem.partition(".")
        # A method begins with its header; what is before the next one is its documentation.
        inherent = between(page, "implementations", ("trait-implementations", "synthetic-implementations", "blanket-implementations"))
        parts = re.split(r'(?=<h4 class="code-header">)', inherent)[1:] if kind in ("struct", "enum") else [page] if kind == "fn" else []
        for part in parts:
            signature = plain(re.search(r'<(h4|pre)[^>]*>(.*?)</\1>', part, re.S)[2])
            makes = kind == "fn" or name == "Engine" or re.search(r"\(&?('\w+ )?(mut )?self\b", signature) is None
            if " fn " in signature and makes and "example-wrap" not in part:
                yield f"{name}: {signature}"


def main():
    arguments = sys.argv[1:]
    if "--help" in arguments:
        return print(__doc__)
    folder = Path(*[argument for argument in arguments if argument != "--write"] or ["target/doc/windrow"])
    pages = pages_of(folder)
    found = sorted(set(items(folder, pages)))
    if not found:
        sys.exit(f"{folder} has no pages: cargo doc --no-deps --features ndarray,testing writes them")
    if bare := list(without_example(pages)):
        sys.exit("\n".join([*bare, "no example: these are what a program begins with, so each has one that is run"]))
    if "--write" in arguments:
        return LIST.write_text("\n".join(found) + "\n", encoding="utf-8")
    listed = LIST.read_text(encoding="utf-8").splitlines()
    changed = [f"- {line}" for line in listed if line not in set(found)] + [f"+ {line}" for line in found if line not in set(listed)]
    if changed:
        sys.exit("\n".join([*changed, f"public items changed: see docs/migration.md, then {sys.argv[0]} --write"]))


if __name__ == "__main__":
    main()
