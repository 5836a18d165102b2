"""TensorDict and tensorclass as containers: stacked along a new dim 0, as ``torch.stack`` of tensordict does."""

from __future__ import annotations

import operator
from typing import Any, Callable, Dict, Iterable, List, Optional

import tensordict
import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase

import windrow as wr
from windrow._flattener import Flattened, Flattener, at_path, class_name, located

_NON_TENSORS = (NonTensorData, tensordict.NonTensorStack)
# Entries that tensordict stacks by rules of its own: of an `UnbatchedTensor` it keeps the first.
_BY_TENSORDICT = (*_NON_TENSORS, *filter(None, (getattr(tensordict, "UnbatchedTensor", None),)))
_batch_size = operator.attrgetter("batch_size")
_batch_size_of, _dict_of = operator.attrgetter("_batch_size"), operator.attrgetter("_tensordict")


def flattener(cls: Any) -> Optional[Flattener]:
    """The flattener of a TensorDict or a tensorclass; None for other classes."""
    if issubclass(cls, TensorDictBase):
        return _open
    is_own = tensordict.is_tensorclass(cls) and hasattr(cls, "from_tensordict")
    if is_own and not issubclass(cls, _NON_TENSORS):
        return _open_class
    return None


def non_tensor_flattener(cls: Any) -> Optional[Flattener]:
    """The flattener of NonTensorData and its like, which have no leaves and are stacked by tensordict; None for other classes."""
    if not issubclass(cls, _NON_TENSORS):
        return None

    def open_stack(samples: List[Any], path: str, sep: str) -> Flattened:
        _check_sizes(list(map(_batch_size, samples)), path)
        stack = torch.stack(samples)
        return Flattened([{} for _ in samples], lambda children: stack)

    return open_stack


def is_dense(cls: Any) -> bool:
    """Whether a class is TensorDict itself or a tensorclass, whatever else a subclass defines."""
    return cls is TensorDict or flattener(cls) is _open_class


def _open_class(samples: List[Any], path: str, sep: str) -> Flattened:
    """A tensorclass taken apart; TypeError for one that holds anything outside of its TensorDict."""
    cls = type(samples[0])
    for index, sample in enumerate(samples):
        for name in sample._non_tensordict:
            text = f"{class_name(cls)} holds {name!r} outside of its TensorDict; make it NonTensorData"
            raise located(TypeError(f"sample {index}{at_path(path)}: {text}"), index, path)
    opened = _open([sample._tensordict for sample in samples], path, sep, class_name(cls))
    return opened._replace(unflatten=lambda children: cls.from_tensordict(opened.unflatten(children)))


def _open(samples: List[Any], path: str, sep: str, name: str = "") -> Flattened:
    """TensorDicts taken apart, ShapeError unless they have one batch_size; `name`: of the tensorclass that they are in."""
    first = samples[0]
    # A plain TensorDict is a dict within.
    are_plain = type(first) is TensorDict and (not name or set(map(type, samples)) == {TensorDict})
    _check_sizes(list(map(_batch_size_of if are_plain else _batch_size, samples)), path)
    children = list(map(_dict_of, samples)) if are_plain else [_items_of(sample, index, path) for index, sample in enumerate(samples)]
    kinds = set(map(type, children[0].values()))
    others = [key for key, value in children[0].items() if isinstance(value, _BY_TENSORDICT)] if kinds - {torch.Tensor} else []
    stacks: Dict[str, Any] = {}
    if others:
        stacks = {key: _stacked(samples, children, key, sep.join(filter(None, (path, key)))) for key in others}
        children = [{key: value for key, value in sample.items() if key not in stacks} for sample in children]
    order = list(_items(first))

    def unflatten(made: Dict[str, Any]) -> Any:
        source = {key: stacks[key] if key in stacks else made[key] for key in order} if stacks else made
        device = first.device
        if device is not None:
            device = next((value.device for value in made.values() if getattr(value, "device", None) is not None), device)
        # The names follow torch.stack: only names that all samples share are kept.
        of_first = first.names if first.batch_size else []
        names = [None, *of_first] if any(of_first) and all(sample.names == of_first for sample in samples) else None
        batch_size = torch.Size((len(samples), *first.batch_size))
        values = source.values()
        if set(map(type, values)) - {torch.Tensor} or not _fit(values, batch_size, device):
            try:
                source = _dict_of(TensorDict(source, batch_size=batch_size, device=device))
            except RuntimeError as error:
                text = f"the batch{at_path(path)} makes no {class_name(type(first))}: {error}"
                raise located(wr.ShapeError(text), None, path) from error
        # A TensorDict is made as tensordict's own torch.stack makes one: without the constructor's checks, which take
        # most of its time, without a constructor of a subclass, and without names for TensorDicts within.
        cls = type(first) if isinstance(first, TensorDict) else TensorDict
        if hasattr(cls, "_new_unsafe"):
            return cls._new_unsafe(source=source, batch_size=batch_size, device=device, names=names)
        return TensorDict(source, batch_size=batch_size, device=device, names=names)

    return Flattened(children, unflatten, None, name or class_name(type(first)))


def _items_of(sample: Any, index: int, path: str) -> Dict[str, Any]:
    """Entries by name of one sample; ShapeError for a lazy stack of unequal shapes, which has none."""
    try:
        return _items(sample)
    except RuntimeError as error:
        text = f"sample {index}{at_path(path)}: expected entries of one shape in a lazy stack, got others: {error}"
        raise located(wr.ShapeError(text), index, path) from error


def _stacked(samples: List[Any], children: List[Dict[str, Any]], key: str, path: str) -> Any:
    """An entry of all samples, as tensordict stacks it; KeyError for a sample without it, TypeError for one that has a tensor there."""
    for index, child in enumerate(children):
        if key not in child:
            raise located(KeyError(f"sample {index}{at_path(path)}: the key is missing"), index, path)
        if not isinstance(child[key], _BY_TENSORDICT):
            text = f"expected {class_name(type(children[0][key]))}, got {class_name(type(child[key]))}"
            raise located(TypeError(f"sample {index}{at_path(path)}: {text}"), index, path)
    if isinstance(children[0][key], _NON_TENSORS):
        return torch.stack([child[key] for child in children])
    alone = [TensorDict({key: child[key]}, batch_size=sample.batch_size) for sample, child in zip(samples, children)]
    return _dict_of(torch.stack(alone))[key]


def _check_sizes(sizes: List[torch.Size], path: str) -> None:
    """ShapeError for a batch_size that is not that of the first sample."""
    if sizes.count(sizes[0]) != len(sizes):
        index = next(index for index, size in enumerate(sizes) if size != sizes[0])
        expected, got = tuple(sizes[0]), tuple(sizes[index])
        error = wr.ShapeError(f"sample {index}{at_path(path)}: expected batch_size {expected}, got {got}; torch.stack needs equal ones too")
        error.index, error.path, error.expected, error.got = index, path, expected, got
        raise error


def _fit(values: Iterable[Any], batch_size: torch.Size, device: Any) -> bool:
    """Whether tensors have the batch_size and the device already, so that the constructor of a TensorDict keeps them as they are."""
    num_dims = len(batch_size)
    # All have the dim of the batch: a stack is of nothing else. Attributes of each take as long as to make the tensors.
    have_size = num_dims == 1 or all(value.shape[:num_dims] == batch_size for value in values)
    return have_size and (device is None or all(value.device == device for value in values))


def mapped(tree: Any, function: Callable[[Any], Any]) -> Any:
    """The same with `function` applied to every tensor, on their device if it names one."""
    devices = []

    def call(tensor: Any) -> Any:
        made = function(tensor)
        devices.append(made.device)
        return made

    made = tree.apply(call, device=None)
    return made.to(devices[0]) if tree.device is not None and devices else made


def _items(sample: Any) -> Dict[str, Any]:
    """Entries by name."""
    if type(sample) is TensorDict:
        entries: Dict[str, Any] = _dict_of(sample)
        return entries
    return dict(sample.items(is_leaf=lambda cls: True))
