#!/usr/bin/env python3
"""The public names of the Python package beside python/api.txt: scripts/ci/python_api.py --check | --write.

A line for each function, class, method, attribute and constant of the modules that have `__all__`, with arguments, defaults and
types, as stubs and sources have them; stubtest holds those of the compiled part against the module. `--check` prints the lines
that differ and fails. `--write` takes the names as they are: with a line of docs/migration.md for those that others may use.
"""

import ast
import difflib
import sys
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "python/python"
BASELINE = ROOT / "python/api.txt"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@lru_cache(maxsize=None)
def parsed(module):
    """A module's stub if it has one, else its source; None for others' modules."""
    path = SOURCES / module.replace(".", "/")
    for file in (path.with_suffix(".pyi"), path.with_suffix(".py"), path / "__init__.py"):
        if file.exists():
            return ast.parse(file.read_text(encoding="utf-8"))
    return None


def exported(tree):
    """The names of `__all__`, if there is one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return None


def name_of(node):
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return node.name
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else None


def definitions(module, name):
    """The module that defines a name, and what it has there: several nodes for overloads."""
    tree = parsed(module)
    found = [node for node in tree.body if name_of(node) == name] if tree else []
    if found:
        return module, found
    # Imports within functions count too: a module may import a name when it is first asked for.
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return definitions(node.module, alias.name)
    return module, []


def decorators(node):
    return [ast.unparse(each) for each in node.decorator_list]


def function_lines(path, nodes):
    """A function or method: its overloads, or what it is without any."""
    overloads = [node for node in nodes if any(each.endswith("overload") for each in decorators(node))]
    for node in overloads or nodes[-1:]:
        kind = {"property": "property ", "staticmethod": "static ", "classmethod": "classmethod "}
        prefix = "".join(kind.get(each, "") for each in decorators(node))
        result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        yield f"{prefix}{path}({ast.unparse(node.args)}){result}"


def member_lines(module, path, node):
    """The members of a class, and those that it has of private classes of this package."""
    for base in node.bases:
        name = ast.unparse(base)
        if name.startswith("_"):
            home, found = definitions(module, name)
            for each in found:
                if isinstance(each, ast.ClassDef):
                    yield from member_lines(home, path, each)
    members = {}
    typed = (inner for each in node.body if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING" for inner in each.body)
    for member in (*node.body, *typed):
        name = name_of(member)
        if name and (not name.startswith("_") or name.endswith("__")) and name not in ("__slots__", "__module__"):
            members.setdefault(name, []).append(member)
    for each in node.body:
        slots = each.value if isinstance(each, ast.Assign) and name_of(each) == "__slots__" else None
        attributes = ast.literal_eval(slots) if slots else ()
        if isinstance(each, FUNCTIONS) and each.name == "__init__":
            targets = [target for inner in ast.walk(each) if isinstance(inner, (ast.Assign, ast.AnnAssign)) for target in getattr(inner, "targets", [None])]
            attributes = [target.attr for target in targets if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"]
        yield from (f"{path}.{name}" for name in attributes if not name.startswith("_") and name not in members)
    for name, nodes in members.items():
        if isinstance(nodes[0], FUNCTIONS):
            yield from function_lines(f"{path}.{name}", nodes)
        elif isinstance(nodes[0], ast.AnnAssign):
            default = f" = {ast.unparse(nodes[0].value)}" if nodes[0].value else ""
            yield f"{path}.{name}: {ast.unparse(nodes[0].annotation)}{default}"
        elif isinstance(nodes[0], ast.Assign):
            yield f"{path}.{name} = {ast.unparse(nodes[0].value)}"


def name_lines(module, name):
    path = f"{module}.{name}"
    home, nodes = definitions(module, name)
    if not nodes:
        yield path
    elif isinstance(nodes[0], ast.ClassDef):
        yield f"class {path}({', '.join(map(ast.unparse, nodes[0].bases))})"
        # Overloads stay in their order, which has a meaning.
        yield from sorted(dict.fromkeys(member_lines(home, path, nodes[0])), key=lambda line: line.split("(")[0])
    elif isinstance(nodes[0], FUNCTIONS):
        yield from function_lines(path, nodes)
    else:
        value = nodes[0].value
        yield f"{path}: {ast.unparse(nodes[0].annotation)}" if isinstance(nodes[0], ast.AnnAssign) else f"{path} = {ast.unparse(value)}"


def lines():
    for file in sorted((SOURCES / "windrow").rglob("*.py")):
        parts = file.relative_to(SOURCES).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        names = None if any(part.startswith("_") for part in module.split(".")) else exported(parsed(module))
        for name in sorted(names or ()):
            yield from name_lines(module, name)
    # The type that each argument stands for.
    for node in parsed("windrow._windrow").body:
        if isinstance(node, ast.Assign):
            yield f"type {ast.unparse(node)}"


def main():
    if "--help" in sys.argv or sys.argv[1:] not in (["--check"], ["--write"]):
        print(__doc__)
        return "--help" not in sys.argv and 2
    text = "".join(f"{line}\n" for line in lines())
    if sys.argv[1] == "--write":
        return BASELINE.write_text(text, encoding="utf-8") and 0
    known = BASELINE.read_text(encoding="utf-8")
    changed = [line for line in difflib.unified_diff(known.splitlines(), text.splitlines(), lineterm="", n=0) if line[:2] not in ("--", "++", "@@")]
    print(*changed, sep="\n", end="\n" if changed else "")
    if changed:
        print("the public names differ from python/api.txt; scripts/ci/python_api.py --write takes them", file=sys.stderr)
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
