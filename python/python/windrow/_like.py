"""Containers like one that there is, with other children: copies, for which no initialiser, converter or validator runs.

What a class does with the values of one sample is done already, and is not to be done to a batch of them.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, List


def mapping_like(first: Any, children: Dict[Any, Any]) -> Any:
    """A mapping with these values for its keys. A class whose entries cannot be set is made of a dict."""
    cls: Any = type(first)
    if hasattr(cls, "__dataclass_fields__"):
        # Such as outputs of transformers' models, whose copies are made by their constructor.
        made: Any = cls.__new__(cls)
        vars(made).update(vars(first))
        for key, child in children.items():
            made[key] = child
            object.__setattr__(made, key, child)
        return made
    if not hasattr(cls, "__setitem__"):
        return cls(children)
    made = copy.copy(first)
    # Not by `update`, which a Counter adds by.
    for key, child in children.items():
        made[key] = child
    return made


def sequence_like(first: Any, children: List[Any]) -> Any:
    """A list or tuple of these entries, as many as there are in the first one."""
    cls: Any = type(first)
    if isinstance(first, list):
        made = copy.copy(first)
        made[:] = children
        return made
    try:
        made = tuple.__new__(cls, children)
    except TypeError:
        return cls(children)  # A class of C's, such as torch.Size.
    if hasattr(first, "__dict__"):
        vars(made).update(vars(first))
    return made


def object_like(first: Any, children: Dict[str, Any]) -> Any:
    """An object with these values for its fields, frozen or not."""
    made = copy.copy(first)
    for name, child in children.items():
        object.__setattr__(made, name, child)
    return made
