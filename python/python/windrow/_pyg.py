"""`Data` and `HeteroData` of PyTorch Geometric as containers: joined to a `Batch`, as ``Batch.from_data_list`` joins them."""

from __future__ import annotations

import itertools
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.storage import N_KEYS, NodeStorage

import windrow as wr
from windrow._nodes import Opened, Opener, _at, _name


def opener(cls: Any) -> Optional[Opener]:
    """That of graphs; those of other classes say None."""
    return _open if issubclass(cls, (Data, HeteroData)) and not issubclass(cls, Batch) else None


class _Joined(NamedTuple):
    """An attribute of a store: how its values are joined."""

    store: Any
    attr: str
    # Along this dim; None: stacked.
    dim: Optional[int]
    # What the values of each graph are raised by, if they are.
    steps: Optional[Any]


def _open(samples: List[Any], path: str, sep: str) -> Opened:
    first = samples[0]
    columns = {store._key: [_store(sample, store._key, index, path) for index, sample in enumerate(samples)] for store in first.stores}
    # Found once: PyTorch Geometric looks for them among the attributes each time.
    has_own_dims = type(first).__cat_dim__ is not Data.__cat_dim__
    counts = {
        key: [store.num_nodes if has_own_dims else _num_nodes(store) for store in stores]
        for key, stores in columns.items()
        if _has_nodes(stores[0])
    }
    children: List[Dict[str, Any]] = [{} for _ in samples]
    forms: Dict[str, Tuple[str, Dict[str, Any]]] = {}
    joined: Dict[str, _Joined] = {}
    passed: List[Tuple[Any, str, List[Any]]] = []
    for key, stores in columns.items():
        for attr in stores[0].keys():
            name = attr if key is None else sep.join([key if isinstance(key, str) else "__".join(key), attr])
            if attr in ("num_nodes", "ptr"):
                continue
            values = [_value(store, attr, index, path, name, sep) for index, store in enumerate(stores)]
            elem = values[0]
            if isinstance(elem, (list, tuple, str)) and not _holds_tensors(elem):
                passed.append((key, attr, values))
                continue
            if type(elem) not in (torch.Tensor, int, float, bool) or getattr(elem, "layout", torch.strided) is not torch.strided:
                where = sep.join(filter(None, (path, name)))
                text = f"expected a tensor, a number or a list without tensors in {_name(type(first))}, got {_name(type(elem))}"
                raise TypeError(f"sample 0{_at(where)}: {text}; Batch.from_data_list takes it")
            is_tensor = type(elem) is torch.Tensor
            dim = first.__cat_dim__(attr, elem, stores[0]) if is_tensor and elem.dim() else None
            steps = _steps(samples, stores, attr, values, counts.get(key))
            for child, value in zip(children, values):
                child[name] = value
            kwargs: Dict[str, Any] = {} if dim is None else {"dim": dim}
            if not is_tensor:
                kwargs["dtype"] = "float32" if any(type(value) is float for value in values) else None
            elif steps is not None and elem.dtype == torch.bool:
                kwargs["dtype"] = "int64"
            if steps is not None:
                kwargs["copy"] = True  # Raised in place.
            forms[name] = ("stack" if dim is None else "concat", kwargs)
            joined[name] = _Joined(key, attr, dim, steps)

    def close(made: Dict[str, Any]) -> Any:
        out = Batch(_base_cls=type(first)).stores_as(first)
        slices: Dict[Any, Any] = {}
        device = next((_values(child).device for child in made.values()), None)
        increments: Dict[Any, Any] = {}
        for store in out.stores:
            key, stores = store._key, columns[store._key]
            slices_of = slices if key is None else slices.setdefault(key, {})
            increments_of = increments if key is None else increments.setdefault(key, {})
            for attr in stores[0].keys():
                if attr == "num_nodes":
                    store._num_nodes = [other.num_nodes for other in stores]
                    store.num_nodes = sum(store._num_nodes)
            for name, how in joined.items():
                if how.store == key:
                    values, ends = _raised(made[name], how, len(samples))
                    store[how.attr] = values
                    slices_of[how.attr] = ends
                    increments_of[how.attr] = _increments(how, len(samples))
            for own, attr, column in passed:
                if own == key:
                    store[attr] = column
                    slices_of[attr], increments_of[attr] = torch.arange(len(samples) + 1), None
            if key in counts:
                nodes = np.array([count or 0 for count in counts[key]])
                store.batch = torch.from_numpy(np.repeat(np.arange(len(samples)), nodes)).to(device)
                store.ptr = torch.from_numpy(np.concatenate([[0], nodes.cumsum()])).to(device)
        out._num_graphs, out._slice_dict, out._inc_dict = len(samples), slices, increments
        return out

    return Opened(children, close, forms, _name(type(first)))


def _store(sample: Any, key: Any, index: int, path: str) -> Any:
    for store in sample.stores:
        if store._key == key:
            return store
    raise KeyError(f"sample {index}{_at(path)}: the store {key!r} is missing")


def _value(store: Any, attr: str, index: int, path: str, name: str, sep: str) -> Any:
    try:
        return store[attr]
    except (KeyError, AttributeError):
        where = sep.join(filter(None, (path, name)))
        raise KeyError(f"sample {index}{_at(where)}: the key is missing") from None


def _holds_tensors(values: Any) -> bool:
    return not isinstance(values, str) and any(isinstance(value, (torch.Tensor, dict, list, tuple)) for value in values)


def _has_nodes(store: Any) -> bool:
    return isinstance(store, NodeStorage) and bool(store.can_infer_num_nodes)


def _num_nodes(store: Any) -> Any:
    """As ``store.num_nodes``, which asks for the dim of the attribute that tells it: for tensors that is 0."""
    if "num_nodes" not in store._mapping:
        for key, value in store._mapping.items():
            if key in N_KEYS:
                if type(value) is torch.Tensor and value.dim():
                    return value.shape[0]
                break
    return store.num_nodes


def _steps(
    samples: List[Any], stores: List[Any], attr: str, values: List[Any], counts: Optional[List[Any]]
) -> Optional[Any]:
    """What each graph's values are raised by, by the graphs' own ``__inc__``; None if by nothing."""
    if type(samples[0]).__inc__ is Data.__inc__ and counts is not None and "batch" not in attr:
        # What that says of the number of nodes, which it would look for in each graph.
        each = counts if samples[0].__inc__(attr, values[0], stores[0]) or "index" in attr or attr == "face" else []
        if not each:
            return None
    else:
        each = [sample.__inc__(attr, value, store) for sample, value, store in zip(samples, values, stores)]
    if isinstance(each[0], torch.Tensor):
        own = torch.stack(each)
        return torch.cat([own.new_zeros((1, *own.shape[1:])), own.cumsum(0)[:-1]])
    starts = torch.tensor([0, *itertools.accumulate(each[:-1])])
    return starts if int(starts[-1]) != 0 else None


def _increments(how: _Joined, count: int) -> Any:
    return torch.zeros(count, dtype=torch.int64) if how.steps is None else how.steps


def _values(child: Any) -> Any:
    """Those of a child: a batch of windrow, one of `windrow.torch`, or a tensor."""
    if isinstance(child, wr.Batch):
        return child.torch()
    return child if isinstance(child, torch.Tensor) else child.data


def _raised(child: Any, how: _Joined, count: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """The values, raised, and where those of each graph end."""
    values = _values(child)
    if how.dim is None:
        ends = torch.arange(count + 1)
    else:
        offsets: Any = child.offsets
        ends = (offsets.torch() if isinstance(child, wr.Batch) else offsets).cpu()
    steps = how.steps
    if steps is None:
        return values, ends
    counts = ends.diff().tolist()
    if steps.dim() == 1:
        dim = (how.dim or 0) % values.dim()
        raised = np.repeat(steps.numpy(), counts).reshape(-1, *[1] * (values.dim() - 1 - dim))
        if values.device.type == "cpu" and not values.is_floating_point():
            # By NumPy: torch starts threads for it.
            array = values.numpy()
            array += raised.astype(array.dtype)
        else:
            values += torch.from_numpy(raised).to(values)
    else:
        for part, step in zip(values.split(counts, how.dim or 0), steps):
            part += step.to(values)
    return values, ends
