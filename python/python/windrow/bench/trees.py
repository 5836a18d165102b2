"""Workloads of samples that are dicts: fields of environments, graphs."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import numpy as np

import windrow as wr
from windrow._measure import Array
from windrow.bench.samples import Samples, Setting, Shape, sets_of, torch, trees_of
from windrow.bench.workload import TOO_MANY_FOR_JAX, Contenders, Target, Workload, in_any_setting, module
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


def equal_trees(seed: int, kinds: Dict[str, Tuple[Shape, str]], count: int, setting: Setting) -> List[Samples]:
    """Lists of `count` dicts of equal shapes."""
    rng = np.random.default_rng(seed)
    columns = {key: ([shape] * count, dtype) for key, (shape, dtype) in kinds.items()}
    return sets_of(lambda: trees_of(columns, setting, rng), setting)


@in_any_setting
def fields(setting: Setting, kinds: Dict[str, Tuple[Shape, str]], num_samples: int, targets: List[Target]) -> Workload:
    """Dicts of equal shapes to one dict of batches."""
    count, engine = setting.count(num_samples), setting.engine
    found = Contenders(setting)
    found.add("windrow", "windrow", lambda s: tuple(wr.collate(s.best, engine=engine).values()))
    found.add("torch", "default_collate", lambda s: tuple(torch.utils.data.default_collate(s.tensors).values()))
    found.add(
        "torch", "torch.stack for each field", lambda s: tuple(torch.stack([tree[key] for tree in s.tensors]) for key in kinds)
    )
    found.add("NumPy", "np.stack for each field", lambda s: by_numpy(s, kinds))
    found.add("TensorDict", "TensorDict", tensordict_stack)
    reason = "" if count <= TOO_MANY_FOR_JAX else f"more than {TOO_MANY_FOR_JAX} operands"
    found.add("JAX", "jnp.stack for each field", lambda s: jax_fields(s, kinds), cannot=reason)
    found.add("JAX", "windrow.jax.collate", lambda s: windrow_jax(s, kinds))
    found.add("JAX", JAX_PEER, lambda s: tuple(map(module("JAX").asarray, by_numpy(s, kinds))), "windrow.jax.collate")
    found.add("DALI", "DALI", lambda s: None, cannot="takes no dicts")
    return Workload(equal_trees(9, kinds, count, setting), lambda s: by_numpy(s, kinds), found, targets)


def by_numpy(s: Samples, kinds: Dict[str, Any]) -> Tuple[Array, ...]:
    return tuple(np.stack([tree[key] for tree in s.arrays]) for key in kinds)


def jax_fields(s: Samples, kinds: Dict[str, Any]) -> Tuple[Any, ...]:
    jnp = module("JAX")
    trees = s.converted("JAX", lambda tree: {key: jnp.asarray(np.asarray(leaf)) for key, leaf in tree.items()})
    return tuple(jnp.stack([tree[key] for tree in trees]).block_until_ready() for key in kinds)


def windrow_jax(s: Samples, kinds: Dict[str, Any]) -> Tuple[Any, ...]:
    from windrow.jax import collate

    made = collate(s.arrays)
    return tuple(made[key] for key in kinds)


def tensordicts(s: Samples) -> List[Any]:
    tensordict = module("TensorDict")
    return s.converted("TensorDict", lambda tree: tensordict.TensorDict(tree, batch_size=[]))


def tensordict_stack(s: Samples) -> Tuple[Any, ...]:
    return tuple(torch.stack(tensordicts(s)).values())


# Graphs


def joined_by_numpy(s: Samples) -> Tuple[Array, ...]:
    """The nodes, the edges and the number of each node's graph."""
    nodes = np.array([len(graph["x"]) for graph in s.arrays])
    before = np.cumsum(nodes) - nodes
    edge_index = np.concatenate([graph["edge_index"] + n for graph, n in zip(s.arrays, before)], 1)
    return np.concatenate([graph["x"] for graph in s.arrays]), edge_index, np.repeat(np.arange(len(nodes)), nodes)


def joined(s: Samples, join: Callable[[List[Any]], Any]) -> Tuple[Any, ...]:
    """Returns what `joined_by_numpy` returns, made by a function of PyTorch Geometric's graphs."""
    made = join(s.converted("PyG", lambda graph: module("PyG").Data(**graph)))
    return made.x, made.edge_index, made.batch


def joined_by_pyg(s: Samples) -> Tuple[Any, ...]:
    return joined(s, module("PyG").Batch.from_data_list)


@in_any_setting
def graphs(setting: Setting, num_samples: int) -> Workload:
    """Nodes and edges of graphs as one graph: the ends of an edge count on from the nodes before."""
    rng, count = np.random.default_rng(10), setting.count(num_samples)
    nodes, edges = rng.integers(200, 401, count), rng.integers(400, 801, count)
    columns = {
        "x": ([(int(n), 64) for n in nodes], "float32"),
        "edge_index": ([(2, int(n)) for n in edges], "int64"),
    }
    sets = sets_of(lambda: trees_of(columns, setting, rng), setting)

    def by_torch(s: Samples) -> Tuple[Any, ...]:
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

    def by_windrow(s: Samples) -> Tuple[Any, ...]:
        made = concat_graphs(s.best, return_tensors="pt" if torch else "np")
        return made["x"], made["edge_index"], made["batch"]

    found = Contenders(setting)
    found.add("windrow", "windrow", by_windrow)
    found.add("torch", "torch.cat, increments added", by_torch)
    found.add("NumPy", "np.concatenate, increments added", joined_by_numpy)
    found.add("PyG", "PyG Batch", joined_by_pyg)
    return Workload(sets, joined_by_numpy, found)
