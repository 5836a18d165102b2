"""Flatteners: each takes objects of one class apart for `windrow.collate`. `_nodes` has those of all classes."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union


class Flattened(NamedTuple):
    """A column of objects taken apart."""

    # A dict of children by name for each sample; or a dict with a list of the children of all samples for each name.
    children: Union[List[Dict[str, Any]], Dict[str, List[Any]]]
    # Makes one object of the assembled children.
    unflatten: Callable[[Dict[str, Any]], Any]
    # Children that are not stacked: form and arguments by name.
    forms: Optional[Dict[str, Tuple[str, Dict[str, Any]]]] = None
    # The class whose leaves are torch tensors, all of them: `unflatten` gets those without a form as such.
    tensors: Optional[str] = None
    # Children of further samples, the first of which has this number: those of one do not depend on the others.
    flatten_more: Optional[Callable[[List[Any], int], List[Dict[str, Any]]]] = None


# A function that is called with a column of one class, its path and the separator of names; returns `Flattened`.
Flattener = Callable[[List[Any], str, str], Flattened]


def text_of(key: Any) -> str:
    """The name of a key in a path: the text that it equals, if it is one of whatever class, such as a member of an enum of str."""
    return str.__str__(key) if isinstance(key, str) else str(key)


def class_name(cls: type) -> str:
    """The full name of a class in an error."""
    return f"{cls.__module__}.{cls.__qualname__}"


def located(error: Any, index: Optional[int], path: str) -> Any:
    """The error, with the sample and the leaf that it is of as attributes."""
    error.index, error.path = index, path
    return error


def at_path(path: str) -> str:
    """The place in a tree, for an error text; nothing for the root."""
    return f' at "{path}"' if path else ""
