"""Containers like one that there is, with other children: copies, for which no initialiser, converter or validator runs.

What a class does with the values of one sample is done already, and is not to be done to a batch of them. What is copied is a
template, a copy of the first sample with None for its children, so that the sample itself is not kept.
"""

from __future__ import annotations

import collections
import copy
import copyreg
import functools
from collections.abc import MutableMapping
from typing import Any, Callable, Container, Dict, Iterable, List

from windrow._flattener import at_path, class_name, located


# Values that nothing has to be copied of.
_IMMUTABLE = frozenset((type(None), bool, int, float, complex, str, bytes, type))


def template(make: Callable[[], Any], first: Any, path: str) -> Any:
    """The result of `make`; TypeError with the class and place of the first sample for any error of it."""
    try:
        return make()
    except Exception as error:
        text = f"{class_name(type(first))} cannot be copied for a batch ({type(error).__name__}: {error}); register the class (wr.register_node)"
        raise located(TypeError(f"sample 0{at_path(path)}: {text}"), 0, path) from error


def mapping_template(first: Any, keys: List[Any], path: str) -> Any:
    """The template that `mapping_like` copies: the class, if it cannot be written to; an empty dict, if a copy may share its entries."""
    cls: Any = type(first)
    if not hasattr(cls, "__setitem__"):
        return cls
    if isinstance(first, dict):
        return template(lambda: mapping_like(first, dict.fromkeys(keys)), first, path)
    children = {key: first[key] for key in keys}
    if not template(lambda: _has_own_entries(first, children), first, path):
        return {}
    made = template(lambda: _copy_apart(first), first, path)
    for key in keys:
        try:
            made[key] = None
        except Exception:
            # A class that takes some values only: the first sample's remain.
            break
    return made


def sequence_model(first: Any) -> Any:
    """The list or tuple itself; its class, if that is a tuple of C such as torch.Size, which is made by a call."""
    if isinstance(first, tuple):
        try:
            tuple.__new__(type(first))
        except TypeError:
            return type(first)
    return first


def sequence_template(first: Any, path: str) -> Any:
    """The template that `sequence_like` copies, or the class that it calls."""
    model = sequence_model(first)
    return model if isinstance(model, type) else template(lambda: sequence_like(first, [None] * len(first)), first, path)


def object_template(first: Any, names: Iterable[str], path: str) -> Any:
    """The template that `object_like` copies."""
    return template(lambda: object_like(first, dict.fromkeys(names)), first, path)


def mapping_like(first: Any, children: Dict[Any, Any], *, is_apart: bool = True) -> Any:
    """A mapping with these values for its keys: a copy of `first`, or that class called with them. TypeError if a copy refuses one.
    `is_apart`: a dict shares no attribute with `first`."""
    if isinstance(first, type):
        return first(children)
    if isinstance(first, dict):
        has_fields = hasattr(type(first), "__dataclass_fields__")
        # The class's own methods may convert or refuse a batch, and a Counter's `update` adds.
        base: Any = collections.OrderedDict if isinstance(first, collections.OrderedDict) else dict
        made = _bare_copy(first, is_apart)
        for key, child in children.items():
            base.__setitem__(made, key, child)
            if has_fields:
                object.__setattr__(made, key, child)
        return made
    made = _copy_apart(first)
    for key, child in children.items():
        try:
            made[key] = child
        except Exception as error:
            text = f"{class_name(type(first))} refuses a batch as its entry {key!r}: {error}"
            raise TypeError(f"{text}; register the class (wr.register_node)") from error
    return made


def sequence_like(first: Any, children: List[Any], *, is_apart: bool = True) -> Any:
    """A list or tuple of these entries, as many as `first` has, if it is no class: a copy of it, or that class called with them.
    `is_apart`: it shares no attribute with `first`."""
    if isinstance(first, type):
        try:
            return first(children)
        except TypeError:
            return tuple(children)  # torch.Size takes ints alone.
    if isinstance(first, list):
        made = _bare_copy(first, is_apart)
        list.extend(made, children)
        return made
    made = tuple.__new__(type(first), children)
    if hasattr(first, "__dict__"):
        vars(made).update(vars(first))
        if is_apart:
            _detach(made, first)
    return made


def object_like(first: Any, children: Dict[str, Any], *, is_apart: bool = True) -> Any:
    """An object with these values for its fields, frozen or not. `is_apart`: it shares no other attribute with `first`."""
    made = copy.copy(first)
    if is_apart:
        _detach(made, first, children)
    for name, child in children.items():
        object.__setattr__(made, name, child)
    return made


def model_like(first: Any, children: Dict[str, Any]) -> Any:
    """A model of pydantic with these values for its fields, extra ones too."""
    made = first.model_copy(update=children)
    _detach(made, first, {*children, "__pydantic_extra__"})
    return made


def _bare_copy(first: Any, is_apart: bool) -> Any:
    """A list or dict without entries and with the attributes of the first one, or copies of them. No method of its class runs,
    unless that is in C."""
    cls: Any = type(first)
    try:
        made = (dict if isinstance(first, dict) else list).__new__(cls)
    except TypeError:
        made = cls.__new__(cls)  # A class of C's.
    if isinstance(first, collections.defaultdict):
        object.__setattr__(made, "default_factory", first.default_factory)
    own = vars(first) if cls.__dictoffset__ else {}
    if own is first:
        # Entries that are attributes too.
        object.__setattr__(made, "__dict__", made)
    elif own:
        vars(made).update(own)
    for name in _slots(cls):
        try:
            object.__setattr__(made, name, object.__getattribute__(first, name))
        except AttributeError:
            pass  # It is not set.
    if is_apart and own is not first:
        _detach(made, first, dict.keys(first) if hasattr(cls, "__dataclass_fields__") else ())
    return made


def _copy_apart(first: Any) -> Any:
    """A copy of a mapping that keeps its entries in an attribute: containers that are attributes are copied too, cached properties
    are removed."""
    made = copy.copy(first)
    if made is first:
        return made
    for name in [name for name in getattr(made, "__dict__", ()) if _is_cached(type(first), name)]:
        del vars(made)[name]
    for name in (*getattr(made, "__dict__", ()), *_slots(type(first))):
        value = getattr(made, name, None)
        if isinstance(value, (dict, list, MutableMapping)):
            object.__setattr__(made, name, copy.copy(value))
    return made


def _has_own_entries(first: Any, children: Dict[Any, Any]) -> bool:
    """Whether the children of a mapping are its attributes, or in lists and dicts that `_copy_apart` copies. No method of the class
    writes to find out: a mark in place of the children there has to be what a copy has for their keys."""
    if isinstance(first, collections.ChainMap):
        return True  # A copy writes to a dict of its own.
    found, mark, made = set(map(id, children.values())), object(), _copy_apart(first)
    if made is first:
        return False

    def marked(value: Any) -> Any:
        if id(value) in found:
            return mark
        return tuple(map(marked, value)) if type(value) is tuple else value

    for name in (*getattr(made, "__dict__", ()), *_slots(type(first))):
        value, its = getattr(made, name, None), getattr(first, name, None)
        if marked(its) is mark:
            object.__setattr__(made, name, mark)
        if isinstance(value, collections.UserDict):
            value, its = value.data, getattr(its, "data", None)
        if isinstance(value, dict) and value is not its:
            dict.update(value, {key: marked(item) for key, item in dict.items(value)})
        elif isinstance(value, list) and value is not its:
            list.__setitem__(value, slice(None), list(map(marked, value)))
    try:
        return all(made[key] is mark for key in children)
    except Exception:
        return False


def _detach(made: Any, first: Any, fields: Container[Any] = ()) -> None:
    """Puts deep copies in place of attributes that `made` shares with `first`, but for these fields, as Lightning's
    `apply_to_collection` does; cached properties are removed. What cannot be copied, such as a lock, stays shared."""
    cls: Any = type(made)
    own, shared = vars(made) if cls.__dictoffset__ else {}, {}
    for name in [name for name in own if name not in fields]:
        if _is_cached(cls, name):
            del own[name]
        else:
            shared[name] = own[name]
    for name in _slots(cls):
        if name not in fields:
            try:
                shared[name] = object.__getattribute__(made, name)
            except AttributeError:
                pass  # It is not set.
    shared = {name: value for name, value in shared.items() if type(value) not in _IMMUTABLE}
    if not shared:
        return
    try:
        shared = copy.deepcopy(shared, {id(first): made})
    except MemoryError:
        raise
    except Exception:
        for name, value in shared.items():
            try:
                shared[name] = copy.deepcopy(value, {id(first): made})
            except MemoryError:
                raise
            except Exception:
                pass
    for name, value in shared.items():
        object.__setattr__(made, name, value)


def _is_cached(cls: Any, name: str) -> bool:
    """Whether an attribute is the value of a cached property, which is that of the first sample."""
    return isinstance(getattr(cls, name, None), functools.cached_property)


def _slots(cls: Any) -> List[str]:
    """The names of a class's slots, as pickle finds them."""
    names: List[str] = copyreg._slotnames(cls)  # type: ignore[attr-defined]
    return names
