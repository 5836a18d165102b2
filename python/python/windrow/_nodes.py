"""Classes that `windrow.collate` flattens and unflattens: those registered, and those of libraries that it knows.

The compiled walker asks `find` for a class that is no plain container, and the flattener that it gets for the children of a
column of samples.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
import weakref
from functools import partial
from typing import Any, Callable, Dict, Iterable, List, Mapping, MutableMapping, Optional, Tuple

from windrow._like import model_like, object_like, object_template, template
from windrow._flattener import Flattened, Flattener, at_path, class_name, located, text_of

__all__ = ["register_node"]


_registered: Dict[type, Flattener] = {}
# Those of libraries, and of pytrees. Weak, so that a class goes with its objects; the flatteners of libraries do not refer to it.
_known_libraries: MutableMapping[type, Flattener] = weakref.WeakKeyDictionary()
_known_pytrees: MutableMapping[type, Flattener] = weakref.WeakKeyDictionary()
# Classes made without end must not make a table grow with them.
_MAX_KNOWN = 1024


def register_node(
    cls: type, flatten: Callable[[Any], Mapping[str, Any]], unflatten: Callable[[Dict[str, Any]], Any]
) -> None:
    """Makes a class a container of `windrow.collate`.

    Args:
        cls: the class; subclasses are registered by themselves.
        flatten: takes an object and returns a mapping of names to children, with the same names for every sample. The names form
            the path.
        unflatten: takes a dict of the assembled children by name and returns the result. A child is a `Batch`, a list of str or
            bytes, or the result of a nested container.

    Raises:
        TypeError: ``cls`` is not a class, or is one that `windrow.collate` has rules for: dict, list, tuple, str, bytes, numbers, arrays
            and tensors; or ``flatten`` or ``unflatten`` is not a function.
        ValueError: the class is registered already.

    Example:
        >>> import windrow as wr
        >>> class Point:
        ...     def __init__(self, x, y):
        ...         self.x, self.y = x, y
        >>> wr.register_node(Point, vars, lambda children: Point(**children))
        >>> batch = wr.collate([Point(1, 2.5), Point(3, 4.5)])
        >>> memoryview(batch.x).tolist(), memoryview(batch.y).tolist()
        ([1, 3], [2.5, 4.5])
    """
    if not isinstance(cls, type):
        raise TypeError(f"register_node takes a class, got {type(cls).__name__}")
    numbers = (str, bytes, int, float, complex)
    leaf = next((base for base in cls.__mro__ if base in numbers or class_name(base) in ("numpy.ndarray", "torch.Tensor")), None)
    if leaf is not None or cls in (dict, list, tuple, type(None), object):
        cure = "register a class of your own" if leaf in (None, cls) else f"register a class that holds a {leaf.__name__} and is none"
        raise TypeError(f"wr.collate has rules for {cls.__name__}; {cure}")
    for name, function in (("flatten", flatten), ("unflatten", unflatten)):
        if not callable(function):
            raise TypeError(f"{name} must be a function, got {function!r}")
    if cls in _registered:
        raise ValueError(f"{class_name(cls)} is registered already")

    def flattener(samples: List[Any], path: str, sep: str) -> Flattened:
        def flatten_more(samples: List[Any], start: int) -> List[Dict[str, Any]]:
            children = []
            for index, sample in enumerate(samples, start):
                mapping = flatten(sample)
                if not isinstance(mapping, Mapping):
                    text = f"expected a mapping of names to children from flatten of {class_name(cls)}"
                    raise TypeError(f"sample {index}{at_path(path)}: {text}, got {type(mapping).__name__}")
                children.append(dict(mapping))
            return children

        return Flattened(flatten_more(samples, 0), unflatten, flatten_more=flatten_more)

    _registered[cls] = flattener


def find(cls: type, is_last: bool) -> Optional[Flattener]:
    """The flattener of a class that is registered or, with `is_last`, a node of pytrees, else of a library; None for other classes.
    `is_last`: it is no container by any other rule."""
    known = _known_pytrees if is_last else _known_libraries
    found = _registered.get(cls) or known.get(cls)
    if found is None:
        found = _pytree(cls) if is_last else _library(cls)
        if found is not None and len(known) < _MAX_KNOWN:
            known[cls] = found
    return found


def num_registered() -> int:
    """The number of classes registered so far."""
    return len(_registered)


def is_registered(cls: type) -> bool:
    """Whether a class is one of `register_node`."""
    return cls in _registered


def tensordict_flattener(cls: type) -> Optional[Flattener]:
    """The flattener of TensorDict and tensorclass; None for other classes."""
    return _call_tensordict(cls, "flattener")


def _non_tensor_flattener(cls: type) -> Optional[Flattener]:
    """The flattener of NonTensorData of tensordict; None for other classes."""
    return _call_tensordict(cls, "non_tensor_flattener")


def _call_tensordict(cls: type, name: str) -> Optional[Flattener]:
    """The result of the function `name` of `_tensordict` for a class; None if tensordict is not imported."""
    if "tensordict" not in sys.modules:
        return None
    from windrow import _tensordict

    found: Optional[Flattener] = getattr(_tensordict, name)(cls)
    return found


def graph_flattener(cls: type) -> Optional[Flattener]:
    """The flattener of graphs of PyTorch Geometric; None for other classes."""
    if "torch_geometric.data" not in sys.modules:
        return None
    from windrow import _pyg

    return _pyg.flattener(cls)


def map_object(tree: Any, function: Callable[[Any], Any]) -> Any:
    """An object like this one with `function` applied to its children; None for leaves, plain dicts, lists and tuples."""
    cls: Any = type(tree)
    if cls.__module__ in ("builtins", "torch", "numpy") or _non_tensor_flattener(cls) is not None:
        return None
    if tensordict_flattener(cls) is not None:
        from windrow import _tensordict

        return _tensordict.mapped(tree, function)
    if "torch_geometric.data" in sys.modules and isinstance(tree, sys.modules["torch_geometric.data"].data.BaseData):
        return copy.copy(tree).apply(function)
    flattener = find(cls, False)
    if flattener is None and not isinstance(tree, (Mapping, tuple, list)):
        fields: Any = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else getattr(cls, "__attrs_attrs__", None)
        if fields is not None:
            return object_like(tree, {field.name: function(getattr(tree, field.name)) for field in fields}, is_apart=False)
        flattener = find(cls, True)
    if flattener is None:
        return None
    children, unflatten = flattener([tree], "", ".")[:2]
    fields = children[0] if isinstance(children, list) else {name: column[0] for name, column in children.items()}
    return unflatten({name: function(child) for name, child in fields.items()})


def _library(cls: type) -> Optional[Flattener]:
    """The flattener of a class of tensordict, PyTorch Geometric, attrs or pydantic; None for other classes."""
    found = tensordict_flattener(cls) or _non_tensor_flattener(cls) or graph_flattener(cls)
    if found is not None:
        return found
    if hasattr(cls, "__attrs_attrs__"):
        return _attrs(cls)
    if hasattr(cls, "__pydantic_validator__"):
        return _pydantic(cls)
    return None


def _flattened(
    samples: List[Any],
    names_of: Callable[[Any], Iterable[str]],
    path: str,
    sep: str,
    like: Callable[[Any], Callable[[Dict[str, Any]], Any]],
) -> Flattened:
    """Attributes of each sample, by name; AttributeError for one that is not set. `like`: gives what makes objects like this one."""

    def flatten_more(samples: List[Any], start: int) -> List[Dict[str, Any]]:
        children = []
        for index, sample in enumerate(samples, start):
            try:
                children.append({name: getattr(sample, name) for name in names_of(sample)})
            except AttributeError as error:
                where = sep.join(filter(None, (path, getattr(error, "name", None) or "")))
                raise located(AttributeError(f"sample {index}{at_path(where)}: the field is not set"), index, where) from error
        return children

    return Flattened(flatten_more(samples, 0), like(samples[0]), flatten_more=flatten_more)


def _attrs(cls: Any) -> Flattener:
    """The flattener of a class of attrs, all of whose fields are children."""
    names = [field.name for field in cls.__attrs_attrs__]

    def flattener(samples: List[Any], path: str, sep: str) -> Flattened:
        return _flattened(samples, lambda _: names, path, sep, lambda first: partial(object_like, object_template(first, names, path)))

    return flattener


def _pydantic(cls: Any) -> Flattener:
    """The flattener of a model or dataclass of pydantic; the extra fields of a sample are children too."""
    fields = list(getattr(cls, "__pydantic_fields__", None) or cls.model_fields)
    is_model = hasattr(cls, "model_copy")
    # A dataclass has them among its attributes.
    has_extra = not is_model and getattr(cls, "__pydantic_config__", {}).get("extra") == "allow"

    def names_of(sample: Any) -> Iterable[str]:
        extra = sample.__pydantic_extra__ if is_model else vars(sample) if has_extra else None
        return dict.fromkeys((*fields, *extra)) if extra else fields

    def flattener(samples: List[Any], path: str, sep: str) -> Flattened:
        def like(first: Any) -> Callable[[Dict[str, Any]], Any]:
            names = names_of(first)
            if not is_model:
                return partial(object_like, object_template(first, names, path))
            return partial(model_like, template(lambda: model_like(first, dict.fromkeys(names)), first, path))

        return _flattened(samples, names_of, path, sep, like)

    return flattener


def _pytree(cls: Any) -> Optional[Flattener]:
    """The flattener of a class registered with torch's pytrees or optree's; None for others, and for
    those of `builtins` and `collections`."""
    if cls.__module__ in ("builtins", "collections"):
        return None
    torch_pytree = sys.modules.get("torch.utils._pytree")
    node = getattr(torch_pytree, "SUPPORTED_NODES", {}).get(cls)
    if node is not None:
        with_keys = getattr(node, "flatten_with_keys_fn", None)

        def flatten(sample: Any) -> Tuple[Dict[str, Any], Any]:
            if with_keys is None:
                leaves, context = node.flatten_fn(sample)
                return {str(position): leaf for position, leaf in enumerate(leaves)}, context
            pairs, context = with_keys(sample)
            return _by_name(((name_of(key), leaf) for key, leaf in pairs), cls), context

        return _unlike(cls, flatten, node.unflatten_fn)
    entry = _optree_entry(cls)
    if entry is not None:

        def flatten_by_optree(sample: Any) -> Tuple[Dict[str, Any], Any]:
            leaves, context, *entries = entry.flatten_func(sample)
            leaves = list(leaves)
            names = entries[0] if entries and entries[0] is not None else range(len(leaves))
            return _by_name(((text_of(name), leaf) for name, leaf in zip(names, leaves)), cls), context

        return _unlike(cls, flatten_by_optree, lambda leaves, context: entry.unflatten_func(context, leaves))
    return None


def _by_name(pairs: Iterable[Tuple[str, Any]], cls: type) -> Dict[str, Any]:
    """Leaves by name; ValueError for two of one name."""
    leaves: Dict[str, Any] = {}
    for name, leaf in pairs:
        if name in leaves:
            raise ValueError(f"two leaves of a {class_name(cls)} are named {name!r}; rename one of them")
        leaves[name] = leaf
    return leaves


def _optree_entry(cls: type) -> Any:
    """How optree takes a class apart: by its global namespace, else by the only one that has the class; None otherwise."""
    optree = sys.modules.get("optree")
    if optree is None:
        return None
    entry = optree.register_pytree_node.get(cls)
    if entry is not None:
        return entry
    # Nothing public lists namespaces: without this table a class of one is unknown.
    table = getattr(optree.registry, "_NODETYPE_REGISTRY", {})
    named = [entry for key, entry in list(table.items()) if isinstance(key, tuple) and key[-1] is cls]
    return named[0] if len(named) == 1 else None


def name_of(key: Any) -> str:
    """The name of a child in a path of PyTorch's or JAX's pytrees."""
    name = next((getattr(key, name) for name in ("key", "name", "idx") if hasattr(key, name)), key)
    return text_of(name)


def _unlike(
    cls: type, flatten: Callable[[Any], Tuple[Dict[str, Any], Any]], unflatten: Callable[[List[Any], Any], Any]
) -> Flattener:
    """A flattener; ValueError for samples whose context, all that is not a leaf, is not that of the first."""

    def flattener(samples: List[Any], path: str, sep: str) -> Flattened:
        context = flatten(samples[0])[1]

        def flatten_more(samples: List[Any], start: int) -> List[Dict[str, Any]]:
            children = []
            for index, sample in enumerate(samples, start):
                leaves, found = flatten(sample)
                if found != context:
                    text = f"expected {class_name(cls)} with {context!r} beside its leaves, got {found!r}"
                    raise ValueError(f"sample {index}{at_path(path)}: {text}")
                children.append(leaves)
            return children

        return Flattened(flatten_more(samples, 0), lambda made: unflatten(list(made.values()), context), flatten_more=flatten_more)

    return flattener
