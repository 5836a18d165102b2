#!/usr/bin/env python3
"""Imports against the data flow: scripts/ci/module_cycles.py FOLDER... prints each, and fails if there is one.

A module of Rust imports those that its `crate::`, `super::` and `self::` paths name; a folder's `mod.rs` is a module of its own. A
module of Python, where FOLDER is a package, imports what its statements name, those in functions too, but for `if TYPE_CHECKING:`;
a folder's `__init__.py` is a module of its own. FOLDER's own `lib.rs` or `__init__.py` is the public surface, which all may import.
Modules must not import each other in a cycle, and in Rust a module directly under FOLDER, or under another folder
that is listed, imports only modules listed before it. Tests are left out.
"""

import ast
import re
import sys
from pathlib import Path

# Modules in the order of the data flow, ground types first.
LAYERS = {
    "src/cuda": "driver probe memory launch run",
    "src": "tensor sync workers dlpack packing samples arrays collate plan observe host run_options cuda batch device explain engine arrow",
    "python/src": "ground private_layouts engine ownership import export workers trees samples collate sequences moves explain classes",
}


def modules(root):
    names = {}
    for file in sorted([*root.rglob("*.rs"), *root.rglob("*.py")]):
        parts = file.relative_to(root).with_suffix("").parts
        if not any("tests" in part for part in parts):
            names[parts[:-1] if parts[-1] in ("mod", "lib", "__init__") else parts] = file
    return names


def paths(tree):
    """`a::{b, c::{d, self}}` as `a::b`, `a::c::d`, `a::c`."""
    head, brace, rest = tree.partition("{")
    if not brace:
        return [re.split(r"\s+as\s+", head.strip())[0]]
    depth, part, parts = 0, "", []
    for char in rest.rstrip().removesuffix("}"):
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            parts, part = parts + [part], ""
        else:
            part += char
    return [head.strip() + path for part in [*parts, part] if part.strip() for path in paths(part.strip())]


def rust_imports(name, file, names):
    text = re.sub(r"//[^\n]*", "", re.split(r"#\[cfg\(.*\btest\b.*\)\]\nmod ", file.read_text())[0])
    children = "|".join(re.findall(r"^(?:pub(?:\([^)]*\))? )?mod (\w+);", text, re.M)) or "self"
    # Paths from `super` inside a function or an inline module start at the file itself.
    found = re.findall(rf"^(?:pub(?:\([^)]*\))? )?use ((?:crate|super|self|{children})::[^;]+);|\b(crate(?:::\w+)+)", text, re.M)
    for path in (path for tree, plain in found for path in paths(tree or plain)):
        at, is_folder = list(name), file.name in ("mod.rs", "lib.rs")
        for count, part in enumerate(path.split("::")):
            if part == "crate":
                at = []
            elif part == "super" and (count or at):
                at = at[:-1]
            elif part != "self":
                at = (at if count or is_folder else at[:-1]) + [part]
        while at and tuple(at) not in names:
            at.pop()
        if at and tuple(at) != name:
            yield tuple(at)


def statements(node):
    """All statements of a module, but those for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from (statement for other in child.orelse for statement in (other, *statements(other)))
        else:
            yield child
            yield from statements(child)


def python_imports(name, file, names, package):
    folder = name if file.name == "__init__.py" else name[:-1]
    found = []
    for node in statements(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = [package, *folder[: len(folder) + 1 - node.level]] if node.level else []
            base = start + (node.module.split(".") if node.module else [])
            found += [[*base, alias.name] for alias in node.names]
    for first, *path in found:
        while path and tuple(path) not in names:
            path.pop()
        if first == package and path and tuple(path) != name:
            yield tuple(path)


def cycles(edges):
    """The strongly connected components of more than one module: those that reach each other."""
    reach = {}
    for start in edges:
        seen, todo = set(), [start]
        while todo:
            for to in edges.get(todo.pop(), ()):
                if to not in seen:
                    seen.add(to)
                    todo.append(to)
        reach[start] = seen
    groups = {frozenset(to for to in reach[at] if at in reach.get(to, ())) for at in edges if at in reach[at]}
    return sorted((sorted(group) for group in groups), key=len)


def upward(root, edges):
    """Imports of a module that is listed later, or not at all."""
    for folder, listed in LAYERS.items():
        inside = Path(folder).relative_to(root).parts if Path(folder).is_relative_to(root) else None
        order, depth = listed.split(), len(inside or ())
        place = {module: index for index, module in enumerate(order)}
        for name, to in ((name, to) for name, others in edges.items() for to in others if inside is not None):
            if name[:depth] == to[:depth] == inside and len(name) > depth and len(to) > depth and name[depth] != to[depth]:
                if not place.get(to[depth], len(order)) < place.get(name[depth], -1):
                    yield f"{root}: {'/'.join(name)} imports {'/'.join(to)}, but {to[depth]} is not listed before {name[depth]}"


def main():
    if "--help" in sys.argv:
        return print(__doc__)
    found = []
    for root in map(Path, sys.argv[1:]):
        names = modules(root)
        edges = {name: set(rust_imports(name, file, names) if file.suffix == ".rs" else python_imports(name, file, names, root.name)) for name, file in names.items()}
        found += upward(root, edges)
        for group in cycles(edges):
            found.append(f"{root}: {len(group)} modules import each other:")
            for name in group:
                found.append(f"  {'/'.join(name)} -> {', '.join('/'.join(to) for to in sorted(edges[name] & set(group)))}")
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
