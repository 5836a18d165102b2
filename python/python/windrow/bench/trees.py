"""Workloads of samples that are dicts: fields of environments, graphs."""

from __future__ import annotations

from operator import attrgetter, itemgetter
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

import windrow as wr
from windrow._measure import Array
from windrow.bench.samples import Samples, Setting, Shape, sets_of, torch, trees_of
from windrow.bench.workload import HOST_ONLY, Workload, module, require, too_many_for_jax
from windrow.structure import concat_graphs

ENVIRONMENT: Dict[str, Tuple[Shape, str]] = {
    "observation": ((48,), "float32"),
    "action": ((8,), "float32"),
    "step": ((), "int64"),
    "reward": ((), "float32"),
    "value": ((), "float32"),
    "log_prob": ((), "float32"),
    "discount": ((), "float32"),
    "done": ((), "bool"),
}
"""Eight fields, 249 bytes."""

JAX_PEER = "np.stack, jnp.asarray for each field"


def leaves(num_leaves: int, shape: Shape = (32,)) -> Dict[str, Tuple[Shape, str]]:
    """`num_leaves` fields of one shape."""
    return {f"leaf{i}": (shape, "float32") for i in range(num_leaves)}


def started(seed: int, setting: Setting, kinds: Dict[str, Tuple[Shape, str]], num_samples: int) -> Workload:
    """A workload of dicts of equal shapes to one dict of batches, without contenders."""
    rng, count = np.random.default_rng(seed), setting.count(num_samples)
    columns = {key: ([shape] * count, dtype) for key, (shape, dtype) in kinds.items()}
    return Workload(setting, sets_of(lambda: trees_of(columns, setting, rng), setting), by_numpy)


def fields(setting: Setting, kinds: Dict[str, Tuple[Shape, str]], num_samples: int) -> Workload:
    """Dicts of equal shapes to one dict of batches."""
    made, count, engine = started(9, setting, kinds, num_samples), setting.count(num_samples), setting.engine

    def by_windrow_jax(s: Samples) -> Tuple[Any, ...]:
        from windrow.jax import collate

        batch = collate(s.arrays)
        return tuple(batch[key] for key in kinds)

    made.add("windrow", "windrow", lambda s: tuple(wr.collate(s.best, engine=engine).values()))
    made.add("torch", "default_collate", lambda s: tuple(torch.utils.data.default_collate(s.tensors).values()))
    made.add("torch", "torch.stack for each field", lambda s: tuple(torch.stack([tree[key] for tree in s.tensors]) for key in kinds))
    made.add("NumPy", "np.stack for each field", by_numpy)
    made.add("TensorDict", "TensorDict", by_tensordict)
    made.add("JAX", "jnp.stack for each field", by_jax, cannot=too_many_for_jax(count))
    made.add("JAX", "windrow.jax.collate", by_windrow_jax)
    made.add("JAX", JAX_PEER, lambda s: tuple(map(module("JAX").asarray, by_numpy(s))), "windrow.jax.collate")
    made.add("DALI", "DALI", by_numpy, cannot="takes no dicts")
    return made


def by_numpy(s: Samples) -> Tuple[Array, ...]:
    return tuple(np.stack([tree[key] for tree in s.arrays]) for key in s.arrays[0])


def by_jax(s: Samples) -> Tuple[Any, ...]:
    jnp = module("JAX")
    trees = s.converted("JAX", lambda tree: {key: jnp.asarray(np.asarray(leaf)) for key, leaf in tree.items()})
    return tuple(jnp.stack([tree[key] for tree in trees]).block_until_ready() for key in trees[0])


def tensordicts(s: Samples) -> List[Any]:
    tensordict = module("TensorDict")
    return s.converted("TensorDict", lambda tree: tensordict.TensorDict(tree, batch_size=[]))


def by_tensordict(s: Samples) -> Tuple[Any, ...]:
    return tuple(torch.stack(tensordicts(s)).values())


def tensordict_batch(setting: Setting, num_leaves: int, num_samples: int) -> Workload:
    """TensorDicts of many small leaves, stacked."""
    require(setting, "TensorDict", host_only=HOST_ONLY)
    made = started(23, setting, leaves(num_leaves, (8,)), num_samples)
    made.add("windrow", "windrow", lambda s: tuple(wr.collate(tensordicts(s), engine=setting.engine).values()))
    made.add("TensorDict", "torch.stack", by_tensordict)
    return made


# Graphs: the nodes, the edges and the number of each node's graph. The ends of an edge count on from the nodes before


PARTS = ("x", "edge_index", "batch")
Graph = Tuple[Any, Any, Any]


def joined_by_numpy(s: Samples) -> Graph:
    nodes = np.array([len(graph["x"]) for graph in s.arrays])
    before = np.cumsum(nodes) - nodes
    edge_index = np.concatenate([graph["edge_index"] + n for graph, n in zip(s.arrays, before)], 1)
    return np.concatenate([graph["x"] for graph in s.arrays]), edge_index, np.repeat(np.arange(len(nodes)), nodes)


def joined(s: Samples, join: Callable[[List[Any]], Any]) -> Graph:
    """One graph, made by a function of PyTorch Geometric's graphs."""
    return attrgetter(*PARTS)(join(s.converted("PyG", lambda graph: module("PyG").Data(**graph))))


def joined_by_pyg(s: Samples) -> Graph:
    return joined(s, module("PyG").Batch.from_data_list)


def of_graphs(setting: Setting, rng: np.random.Generator, nodes: Array, edges: Array, width: int) -> Workload:
    """A workload of graphs of so many nodes and edges each, without contenders."""
    columns = {"x": ([(int(n), width) for n in nodes], "float32"), "edge_index": ([(2, int(n)) for n in edges], "int64")}
    return Workload(setting, sets_of(lambda: trees_of(columns, setting, rng), setting), joined_by_numpy)


def data_objects(setting: Setting, num_samples: int) -> Workload:
    """Graphs as PyTorch Geometric has them, joined to a Batch."""
    require(setting, "PyG", host_only=HOST_ONLY)
    rng, engine = np.random.default_rng(24), setting.engine
    nodes = rng.integers(10, 31, setting.count(num_samples))
    made = of_graphs(setting, rng, nodes, 4 * nodes, 16)
    made.add("windrow", "windrow", lambda s: joined(s, lambda graphs: wr.collate(graphs, engine=engine)))
    made.add("PyG", "Batch.from_data_list", joined_by_pyg)
    return made


def graphs(setting: Setting, num_samples: int) -> Workload:
    """Graphs as dicts of nodes and edges."""
    rng, count = np.random.default_rng(10), setting.count(num_samples)
    nodes, edges = rng.integers(200, 401, count), rng.integers(400, 801, count)

    def by_torch(s: Samples) -> Graph:
        sizes = torch.tensor([len(graph["x"]) for graph in s.tensors])
        num_edges = torch.tensor([graph["edge_index"].shape[1] for graph in s.tensors])
        first = torch.cumsum(sizes, 0) - sizes
        num_rows, num_ends = int(sizes.sum()), int(num_edges.sum())
        if not setting.on_host:
            # The indices are in page-locked memory, and the sizes of the result are given: the host does not wait.
            sizes, num_edges, first = (v.pin_memory().to(setting.device, non_blocking=True) for v in (sizes, num_edges, first))
        x = torch.cat([graph["x"] for graph in s.tensors])
        edge_index = torch.cat([graph["edge_index"] for graph in s.tensors], 1)
        edge_index += torch.repeat_interleave(first, num_edges, output_size=num_ends)
        every = torch.arange(count, device=setting.device)
        return x, edge_index, torch.repeat_interleave(every, sizes, output_size=num_rows)

    made = of_graphs(setting, rng, nodes, edges, 64)
    kind, parts = "pt" if torch else "np", itemgetter(*PARTS)
    made.add("windrow", "windrow", lambda s: parts(concat_graphs(s.best, return_tensors=kind)))
    made.add("torch", "torch.cat, increments added", by_torch)
    made.add("NumPy", "np.concatenate, increments added", joined_by_numpy)
    made.add("PyG", "PyG Batch", joined_by_pyg)
    return made
