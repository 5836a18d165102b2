"""A library, which mkdocs.yml names as an extension of the API page.

The packages that serve one library each are read from their sources, so that the site is built without torch, JAX and Ray. All
else is imported, for the docstrings of the compiled module.
"""

import re
from typing import Any

import griffe

STATIC = ("torch", "jax", "ray")


def name_sections(parent: "griffe.Module | griffe.Class") -> None:
    """The parser shows examples as code only below "Examples:", with an s."""
    for member in parent.members.values():
        if member.is_alias:
            continue
        if member.docstring:
            member.docstring.value = re.sub(r"^Example:$", "Examples:", member.docstring.value, flags=re.M)
        if isinstance(member, (griffe.Module, griffe.Class)):
            name_sections(member)


class StaticPackages(griffe.Extension):  # type: ignore[misc]
    """Puts what static analysis finds in place of what an import would."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        if pkg.path != "windrow" or not loader.force_inspection:
            return
        sources = griffe.GriffeLoader(search_paths=loader.finder.search_paths, allow_inspection=False)
        read = sources.load("windrow", submodules=True)
        for name in STATIC:
            pkg.set_member(name, read[name])
        name_sections(pkg)
