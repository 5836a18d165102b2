"""`Data` and `HeteroData` of PyTorch Geometric as containers: joined to a `Batch`, as ``Batch.from_data_list`` joins them."""

from __future__ import annotations

import itertools
import math
import operator
from itertools import compress, count, repeat
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.collate import get_incs
from torch_geometric.data.storage import N_KEYS, NodeStorage

import windrow as wr
from windrow._flattener import Flattened, Flattener, at_path, class_name, located
from windrow._windrow import _add_per_sample


def flattener(cls: Any) -> Optional[Flattener]:
    """The flattener of graphs; None for other classes."""
    return _open if issubclass(cls, (Data, HeteroData)) and not issubclass(cls, Batch) else None


class _Joined(NamedTuple):
    """An attribute of a store: how its values are joined."""

    store: Any
    attr: str
    # Along this dim; None: stacked.
    dim: Optional[int]
    # The increments of each graph's values; None: all are 0; `_BY_NODES`: the nodes of the graphs before.
    steps: Any
    # Whether the increments are added. PyTorch Geometric leaves out those of one dim whose last, as an integer, is 0.
    is_raised: bool


_BY_NODES = object()
_store_of, _mapping_of = operator.attrgetter("_store"), operator.attrgetter("_mapping")


class _Nodes:
    """The nodes of a store in each graph."""

    def __init__(self, stores: List[Any], mappings: List[Dict[str, Any]], has_own_dims: bool) -> None:
        self._stores, self._has_own_dims = stores, has_own_dims
        self._counts: Optional[List[Any]] = None
        # The attribute whose first dim tells their number, and so the offsets of its batch, if it is the same for all graphs.
        self.counted_by: Optional[str] = None
        first = mappings[0]
        counted_by = next((key for key in first if key in N_KEYS), None)
        counted = None if counted_by is None else first[counted_by]
        if not has_own_dims and "num_nodes" not in first and type(counted) is torch.Tensor and counted.dim():
            if len(set(map(tuple, mappings))) == 1:
                self.counted_by = counted_by

    def counts(self) -> List[Any]:
        """The number of nodes of each graph; None where it is unknown."""
        if self._counts is None:
            self._counts = [store.num_nodes if self._has_own_dims else _num_nodes(store) for store in self._stores]
        return self._counts

    def ends(self, joined: Dict[str, Any]) -> Any:
        """N + 1 numbers: the first node of each graph, and the end of the last; an unknown number counts as 0. `joined`: the same of each
        attribute of the store."""
        if self.counted_by is not None:
            return joined[self.counted_by].numpy()
        return np.cumsum([0, *(count or 0 for count in self.counts())])


def _open(samples: List[Any], path: str, sep: str) -> Flattened:
    if isinstance(samples[0], Batch):  # The `out=` of a call.
        children = {_name(store._key, attr, sep): [value] for store in samples[0].stores for attr, value in store.items()}
        return Flattened(children, dict)
    graphs = _Graphs(samples, path, sep)
    return Flattened(graphs.children, graphs.unflatten, graphs.forms, class_name(type(samples[0])))


class _Graphs:
    """The attributes of graphs by name (`children`, `forms`), and how they become a `Batch` (`unflatten`)."""

    def __init__(self, samples: List[Any], path: str, sep: str) -> None:
        self._samples, self._path, self._sep = samples, path, sep
        # The methods are looked up once: PyTorch Geometric looks for them among the attributes each time.
        self._has_own_dims = type(samples[0]).__cat_dim__ is not Data.__cat_dim__
        self.children: Dict[str, List[Any]] = {}
        self.forms: Dict[str, Tuple[str, Dict[str, Any]]] = {}
        self._joined: Dict[str, _Joined] = {}
        # The attributes of each store that are lists of the graphs' own values.
        self._passed: Dict[Any, List[Tuple[str, List[Any]]]] = {}
        self._nodes: Dict[Any, _Nodes] = {}
        self._columns = _stores(samples, path)
        for key, stores in self._columns.items():
            self._add_store(key, stores)

    def _add_store(self, key: Any, stores: List[Any]) -> None:
        """Adds the attributes that the first graph's store has: to the children, or to the lists that are passed on."""
        mappings = list(map(_mapping_of, stores))
        if _has_nodes(stores[0]):
            self._nodes[key] = _Nodes(stores, mappings, self._has_own_dims)
        for attr in stores[0].keys():
            name = _name(key, attr, self._sep)
            if attr in ("num_nodes", "ptr"):
                continue
            values = _values_of(mappings, attr, self._path, name, self._sep)
            if isinstance(values[0], (list, tuple, str)) and not _holds_tensors(values[0]):
                self._passed.setdefault(key, []).append((attr, values))
            else:
                self._add(key, stores, attr, name, values)

    def _add(self, key: Any, stores: List[Any], attr: str, name: str, values: List[Any]) -> None:
        """Adds an attribute to the children; TypeError for one that is no dense tensor and no number."""
        # A nested tensor of any graph, else the first.
        index = next(compress(count(), map(getattr, values, repeat("is_nested"), repeat(False))), 0)
        elem, first = values[index], self._samples[0]
        is_nested = getattr(elem, "is_nested", False)
        if type(elem) not in (torch.Tensor, int, float, bool) or is_nested or getattr(elem, "layout", torch.strided) is not torch.strided:
            layout = f"a tensor of layout {elem.layout}" if type(elem) is torch.Tensor else class_name(type(elem))
            got = "a nested tensor" if is_nested else layout
            text = f"expected a tensor, a number or a list without tensors in {class_name(type(first))}, got {got}"
            where = self._where(name)
            raise located(TypeError(f"sample {index}{at_path(where)}: {text}; Batch.from_data_list takes it"), index, where)
        is_tensor = type(elem) is torch.Tensor
        dim = first.__cat_dim__(attr, elem, stores[0]) if is_tensor and elem.dim() else None
        steps = _steps(self._samples, stores, attr, values, self._nodes.get(key))
        is_raised = steps is _BY_NODES or steps is not None and (is_tensor and steps.dim() > 1 or int(steps[-1]) != 0)
        kwargs: Dict[str, Any] = {} if dim is None else {"dim": dim}
        if not is_tensor:
            # Ints keep the dtype that the call or its spec gives.
            if any(type(value) is float for value in values):
                kwargs["dtype"] = str(torch.get_default_dtype()).rpartition(".")[2]
        elif is_raised and steps is not _BY_NODES:
            dtype = _dtype_of_sums(elem.new_empty(1), steps)
            # The engine has no casts to complex dtypes: `_raised` promotes to them.
            if dtype != elem.dtype and not dtype.is_complex:
                kwargs["dtype"] = str(dtype).rpartition(".")[2]
        if is_raised:
            kwargs["copy"] = True  # Raised in place.
        if name in self.children:
            where = self._where(name)
            raise located(ValueError(f"two attributes are at {where!r}; give another sep="), 0, where)
        self.children[name] = values
        self.forms[name] = ("stack" if dim is None else "concat", kwargs)
        self._joined[name] = _Joined(key, attr, dim, steps, is_raised)

    def _where(self, name: str) -> str:
        """The path of an attribute."""
        return self._sep.join(filter(None, (self._path, name)))

    def unflatten(self, made: Dict[str, Any]) -> Any:
        """The `Batch` of PyTorch Geometric of the assembled children, which are raised."""
        out = Batch(_base_cls=type(self._samples[0])).stores_as(self._samples[0])
        device = next((_values(child).device for child in made.values()), None)
        slices: Dict[Any, Any] = {}
        increments: Dict[Any, Any] = {}
        for store in out.stores:
            of_store: List[Dict[str, Any]] = [{}, {}]
            self._fill(store, made, of_store[0], of_store[1], device)
            for every, added in zip((slices, increments), of_store):
                if store._key is None:
                    every.update(added)
                elif added:
                    every[store._key] = added
        out._num_graphs, out._slice_dict, out._inc_dict = len(self._samples), slices, increments
        return out

    def _fill(self, store: Any, made: Dict[str, Any], slices: Dict[str, Any], increments: Dict[str, Any], device: Any) -> None:
        """Fills a store of the batch, in the order of the first graph's attributes. Adds to `slices` where the values of each graph are, to
        `increments` what they were raised by."""
        key, stores, count = store._key, self._columns[store._key], len(self._samples)
        joined = {how.attr: (name, how) for name, how in self._joined.items() if how.store == key}
        passed = dict(self._passed.get(key, ()))
        attrs = list(stores[0].keys())
        for attr in attrs:
            if attr in joined:
                name, how = joined[attr]
                slices[attr] = _ends(made[name], how, count)
            elif attr in passed:
                slices[attr] = torch.arange(count + 1)
        ends: Any = self._nodes[key].ends(slices) if key in self._nodes else None
        for attr in attrs:
            if attr in joined:
                name, how = joined[attr]
                if how.steps is _BY_NODES:
                    how = how._replace(steps=torch.from_numpy(ends[:-1].copy()))
                store[attr] = _raised(made[name], how, slices[attr], self._where(name)) if how.is_raised else _values(made[name])
                increments[attr] = torch.zeros(count, dtype=torch.int64) if how.steps is None else how.steps
            elif attr in passed:
                store[attr], increments[attr] = passed[attr], None
            elif attr == "num_nodes":
                store._num_nodes = [other.num_nodes for other in stores]
                store.num_nodes = sum(store._num_nodes)
        if ends is not None:
            store.batch = torch.from_numpy(np.repeat(np.arange(count), np.diff(ends))).to(device)
            store.ptr = torch.from_numpy(ends.copy()).to(device)


def _name(key: Any, attr: str, sep: str) -> str:
    """The name of an attribute of the store with this key."""
    return attr if key is None else sep.join([key if isinstance(key, str) else "__".join(key), attr])


def _stores(samples: List[Any], path: str) -> Dict[Any, List[Any]]:
    """The store of each graph, by its key; KeyError for a graph without one of the first graph's."""
    if isinstance(samples[0], Data):
        return {None: list(map(_store_of, samples))}
    by_key = [{store._key: store for store in sample.stores} for sample in samples]
    columns = {}
    for key in by_key[0]:
        try:
            columns[key] = [stores[key] for stores in by_key]
        except KeyError:
            index = next(index for index, stores in enumerate(by_key) if key not in stores)
            raise located(KeyError(f"sample {index}{at_path(path)}: the store {key!r} is missing"), index, path) from None
    return columns


def _values_of(mappings: List[Dict[str, Any]], attr: str, path: str, name: str, sep: str) -> List[Any]:
    """An attribute of each graph's store; KeyError for a graph without it."""
    try:
        return list(map(operator.itemgetter(attr), mappings))
    except KeyError:
        index = next(index for index, mapping in enumerate(mappings) if attr not in mapping)
        where = sep.join(filter(None, (path, name)))
        raise located(KeyError(f"sample {index}{at_path(where)}: the key is missing"), index, where) from None


def _holds_tensors(values: Any) -> bool:
    """Whether a list has tensors or containers in it."""
    return not isinstance(values, str) and any(isinstance(value, (torch.Tensor, dict, list, tuple)) for value in values)


def _has_nodes(store: Any) -> bool:
    """Whether a store is of nodes, whose number is known."""
    return isinstance(store, NodeStorage) and bool(store.can_infer_num_nodes)


def _num_nodes(store: Any) -> Any:
    """Returns ``store.num_nodes``; a tensor attribute gives its extent of dim 0, without asking for its cat dim."""
    if "num_nodes" not in store._mapping:
        for key, value in store._mapping.items():
            if key in N_KEYS:
                if type(value) is torch.Tensor and value.dim():
                    return value.shape[0]
                break
    return store.num_nodes


def _steps(samples: List[Any], stores: List[Any], attr: str, values: List[Any], nodes: Optional[_Nodes]) -> Any:
    """The number added to each graph's values: the sum of the ``__inc__`` of the graphs before it. None if the default ``__inc__`` has
    nothing to add, `_BY_NODES` if it is the first node of the graph."""
    if type(samples[0]).__inc__ is not Data.__inc__ or nodes is None or "batch" in attr:
        return get_incs(attr, values, samples, stores)
    # The default `__inc__` depends on the number of nodes, which it would look for in each graph.
    if not (samples[0].__inc__(attr, values[0], stores[0]) or "index" in attr or attr == "face"):
        return None
    # The dtype of bools depends on whether there is anything to add.
    if nodes.counted_by is not None and len(samples) > 1 and getattr(values[0], "dtype", torch.bool) != torch.bool:
        return _BY_NODES
    return torch.tensor([0, *itertools.accumulate(nodes.counts()[:-1])])


def _dtype_of_sums(values: torch.Tensor, steps: Any) -> torch.dtype:
    """The dtype of ``values + step``; that of the values where torch has no promotion, as for wide unsigned dtypes."""
    try:
        return torch.result_type(values, steps[0])
    except RuntimeError:
        return values.dtype


def _values(child: Any) -> Any:
    """The tensor of a child: a batch of windrow, one of `windrow.torch`, or a tensor."""
    if isinstance(child, wr.Batch):
        return child.torch()
    return child if isinstance(child, torch.Tensor) else child.data


def _ends(child: Any, how: _Joined, count: int) -> Any:
    """N + 1 numbers: the start of each graph's values, and the end of the last."""
    if how.dim is None:
        return torch.arange(count + 1)
    offsets: Any = child.offsets
    return (offsets.torch() if isinstance(child, wr.Batch) else offsets).cpu()


def _raised(child: Any, how: _Joined, ends: Any, path: str) -> Any:
    """The values of a child with their steps added, in place unless they keep gradients, become complex or are broadcast. DTypeError for
    sums that an integer dtype, or the dtype of a spec, does not hold."""
    values, steps = _values(child), how.steps
    dim = (how.dim or 0) % values.dim()
    dtype = _dtype_of_sums(values, steps)
    # One for each graph, or for each graph those before its dim: PyTorch Geometric's pairs of sources and targets.
    is_per_block = tuple(steps.shape[1:]) == (*values.shape[:dim], *[1] * (values.dim() - dim))
    is_plain = is_per_block or steps.dim() <= values.dim() + 1 and math.prod(steps.shape[1:]) == 1
    is_plain = is_plain and not (values.is_complex() or steps.is_floating_point() or steps.is_complex() or steps.dtype == torch.bool)
    is_apart = values.requires_grad or dtype.is_complex and dtype != values.dtype
    if values.device.type == "cpu" and is_plain and not is_apart and values.is_contiguous():
        _add_per_sample(values, ends, steps.reshape(-1).cpu(), dim, path)
        return values
    if not (is_apart or torch.can_cast(dtype, values.dtype)):
        raise _beyond(0, path, values.dtype, str(dtype).rpartition(".")[2])
    if steps.dim() == 1:
        counts = ends.diff().to(values.device)
        added = steps.to(values.device, dtype).repeat_interleave(counts).reshape(-1, *[1] * (values.dim() - 1 - dim))
        return values + added if is_apart else values.add_(added)
    parts, steps = values.split(ends.diff().tolist(), dim), steps.to(values.device)
    broadcast: Any = torch.broadcast_shapes
    if is_apart or any(broadcast(part.shape, steps.shape[1:]) != part.shape for part in parts):
        return torch.cat([part + step for part, step in zip(parts, steps)], how.dim or 0)
    if not dtype.is_floating_point and (dtype != values.dtype or values.device.type == "cpu"):
        for index, (part, step) in enumerate(zip(parts, steps)):
            sums = part.long() + step.long()
            beyond = sums[sums != sums.to(values.dtype)]
            if beyond.numel():
                raise _beyond(index, path, values.dtype, beyond[0].item())
    for part, step in zip(parts, steps):
        part += step
    return values


def _beyond(index: int, path: str, dtype: torch.dtype, got: Any) -> Exception:
    """The DTypeError for sums that are beyond a dtype."""
    expected, got = str(dtype).rpartition(".")[2], f"{got} after the addition"
    text = f"sample {index}{at_path(path)}: expected {expected}, got {got}; store it in a wider dtype"
    error: Any = located(wr.DTypeError(text), index, path)
    error.expected, error.got = expected, got
    return error  # type: ignore[no-any-return]
