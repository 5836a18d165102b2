#!/usr/bin/env python3
"""The stubs' signatures and docstrings from their one source: scripts/docs/stubs.py --check | --write.

Types of the compiled part are written by hand, in `_windrow.pyi`. Its docstrings are those of `python/src`, which Python shows at run
time. The specs of `spec.pyi` take the keyword arguments of the call of their form, as `_windrow.pyi` has it, but ``stream``.
`--write` writes both files anew; `--check` fails where they differ. Names and defaults of the compiled part are checked by stubtest.
"""

import ast
import inspect
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUST = ROOT / "python/src"
PACKAGE = ROOT / "python/python/windrow"
# The class of the stub that has what the macro of this name gives to `Tensor` and `Batch`.
COMMON = "_TensorLike"


def docs_of_rust():
    """(class or "", name) -> docstring, and (name, "") for classes, of all that Python sees of `python/src`."""
    found, classes = {}, {"$class": COMMON}
    for file in sorted(RUST.rglob("*.rs")):
        text = file.read_text(encoding="utf-8")
        for name, doc in re.findall(r'create_exception!\(\s*\w+,\s*(\w+),\s*\w+,\s*"((?:[^"\\]|\\.|\\\n)*)"', text):
            found[name, ""] = re.sub(r"\\\n\s*", "", doc).replace('\\"', '"')
        doc, attributes, owner, depth = [], "", "", 0
        for line in text.splitlines():
            stripped = line.strip()
            if depth or stripped.startswith("#["):
                attributes += stripped
                depth += stripped.count("[") - stripped.count("]")
                continue
            if stripped.startswith("///"):
                doc.append(stripped[3:].removeprefix(" "))
                continue
            start = re.match(r"(?:impl|tensor_methods!\()\s*(\$?\w+)(?: \{|, \{)", stripped)
            item = re.match(r"(?:pub(?:\([^)]*\))? )?(?:unsafe )?(fn|struct) (\w+)", stripped)
            if start and ("pymethods" in attributes or "tensor_methods" in stripped):
                owner = start[1]
            elif line == "} fields {":
                pass  # the getters of the fields of `tensor_methods!`
            elif line.startswith("}"):
                owner = ""
            elif field := re.match(r"(\w+) = \d+;$", stripped):
                found[owner, field[1]] = "\n".join(doc)
            elif item:
                name = re.search(r'name = "(\w+)"', attributes)
                name = name[1] if name else item[2]
                if item[1] == "struct" and "pyclass" in attributes:
                    classes[item[2]] = name
                    found[name, ""] = "\n".join(doc)
                elif item[1] == "fn" and (owner or "pyfunction" in attributes):
                    found[owner, name] = "\n".join(doc)
            doc, attributes = [], ""
    return {(classes.get(owner, owner), name): inspect.cleandoc(doc) for (owner, name), doc in found.items() if doc}


def quoted(doc, indent):
    """A docstring as source."""
    lines = doc.splitlines()
    prefix = "r" if "\\" in doc else ""
    end = "" if len(lines) == 1 else f"\n{indent}"
    body = "\n".join((indent + line).rstrip() if number else line for number, line in enumerate(lines))
    return f'{indent}{prefix}"""{body}{end}"""'


def with_docstrings(text, docs):
    """The source of a stub with these docstrings alone."""
    edits, seen, tree = [], set(), ast.parse(text)

    def visit(node, owner):
        for child in node.body:
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                is_class = isinstance(child, ast.ClassDef)
                key = (child.name, "") if is_class else (owner, child.name)
                # The first of several overloads has it.
                doc = None if key in seen else docs.get(key)
                seen.add(key)
                edits.append((child, doc))
                if is_class:
                    visit(child, child.name)

    visit(tree, "")
    lines = text.splitlines()
    for node, doc in sorted(edits, key=lambda edit: edit[0].lineno, reverse=True):
        first, indent = node.body[0], " " * (node.col_offset + 4)
        is_doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
        is_empty = isinstance(first, ast.Expr) and len(node.body) == 1
        start = min([first.lineno, *(each.lineno for each in getattr(first, "decorator_list", []))]) - 1
        end = first.end_lineno
        head = lines[start][: first.col_offset].rstrip()
        if not head:
            start -= 1
            head = lines[start]
            end = end if is_doc or is_empty else start + 1
        while not is_empty and not lines[end].strip():
            end += 1
        new = [head if doc or not is_empty else f"{head} ..."]
        new += quoted(doc, indent).splitlines() if doc else []
        new += [""] if doc and not is_empty else []
        lines[start:end] = new
    return "\n".join(lines) + "\n"


def stub_of_specs(stub):
    """`spec.pyi`: classes and docstrings of `spec.py`, arguments of the calls in the stub."""
    calls = {node.name: node for node in stub.body if isinstance(node, ast.FunctionDef)}
    source = ast.parse((PACKAGE / "spec.py").read_text(encoding="utf-8"))
    out, used = [], set()
    for cls in (node for node in source.body if isinstance(node, ast.ClassDef)):
        bases = f"({', '.join(map(ast.unparse, cls.bases))})" if cls.bases else ""
        out += [f"class {cls.name}{bases}:", *quoted(ast.get_docstring(cls), "    ").splitlines(), ""]
        for node in cls.body:
            if isinstance(node, ast.AnnAssign):
                out.append(f"    {ast.unparse(node)}")
            elif isinstance(node, ast.Assign) and node.targets[0].id == "__slots__":
                out.append(f"    {ast.unparse(node)}")
            elif isinstance(node, ast.Assign) and node.targets[0].id == "__init__":
                takes = calls[node.value.args[0].value].args
                each = [(arg, default) for arg, default in zip(takes.kwonlyargs, takes.kw_defaults) if arg.arg != "stream"]
                used |= {name.id for arg, _ in each for name in ast.walk(arg.annotation) if isinstance(name, ast.Name)}
                out += ["    def __init__(", "        self,", "        *,"]
                out += [f"        {ast.unparse(arg)} = {literal(default)}," for arg, default in each]
                out += ["    ) -> None: ..."]
            elif isinstance(node, ast.FunctionDef):
                used |= {name.id for arg in node.args.args if arg.annotation for name in ast.walk(arg.annotation) if isinstance(name, ast.Name)}
                used |= {name.id for name in ast.walk(node.returns) if isinstance(name, ast.Name)}
                arguments = types_in_calls(ast.unparse(node.args), used)
                doc = ast.get_docstring(node)
                head = f"    def {node.name}({arguments}) -> {ast.unparse(node.returns)}:"
                out += [head, *quoted(doc, "        ").splitlines()] if doc else [f"{head} ..."]
        out.append("")
    defined = {node.name for node in stub.body if isinstance(node, ast.ClassDef)}
    defined |= {node.targets[0].id for node in stub.body if isinstance(node, ast.Assign)}
    typing = sorted((used | {"Any", "ClassVar", "Dict"}) & TYPING)
    local = sorted(used & defined)
    return "\n".join([
        "# Written by scripts/docs/stubs.py, from _windrow.pyi and spec.py.",
        *quoted(ast.get_docstring(source), "").splitlines(),
        "",
        f"from typing import {', '.join(typing)}",
        "",
        "from windrow._windrow import (",
        *(f"    {name}," for name in local),
        ")",
        "",
        *out[:-1],
        "",
    ])


TYPING = {"Any", "ClassVar", "Dict", "Iterable", "Literal", "Mapping", "Optional", "Sequence", "SupportsComplex", "SupportsFloat", "SupportsIndex", "Tuple", "Union"}


def types_in_calls(arguments, used):
    """Arguments of a spec's method with the types that calls have for them."""
    for loose, exact in (("samples: Any", "samples: Union[_Samples, Iterable[Any]]"), ("dtype: Any=None", "dtype: Optional[_DType] = None")):
        if loose in arguments:
            arguments = arguments.replace(loose, exact)
            used |= set(re.findall(r"\w+", exact)) - {"samples", "dtype", "None"}
    return re.sub(r"(\]|\w)=(\w)", r"\1 = \2", arguments)


def literal(node):
    """A default, its strings in double quotes."""
    return f'"{node.value}"' if isinstance(node.value, str) else ast.unparse(node)


def main():
    if "--help" in sys.argv or sys.argv[1:] not in (["--check"], ["--write"]):
        print(__doc__)
        return "--help" not in sys.argv and 2
    compiled, specs = PACKAGE / "_windrow.pyi", PACKAGE / "spec.pyi"
    old = compiled.read_text(encoding="utf-8")
    new = {compiled: with_docstrings(old, docs_of_rust())}
    new[specs] = stub_of_specs(ast.parse(new[compiled]))
    stale = [path for path, text in new.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if sys.argv[1] == "--write":
            path.write_text(new[path], encoding="utf-8")
        else:
            print(f"{path.relative_to(ROOT)} differs from its sources; scripts/docs/stubs.py --write writes it anew", file=sys.stderr)
    return bool(stale) and sys.argv[1] == "--check"


if __name__ == "__main__":
    sys.exit(main())
