"""Pytrees of samples taken apart by leaf, as JAX sees them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

import jax

from windrow import SampleList, _windrow
from windrow._flattener import located
from windrow._nodes import name_of


class JaxBatch(NamedTuple):
    """A leaf that was padded, joined, packed or quantised; the fields of a `windrow.Batch`, and a pytree.

    Those that do not apply are None. ``max_length`` is an int of the host: under ``jit`` pass it as a
    static argument where it decides a shape.
    """

    data: Any
    lengths: Any = None
    offsets: Any = None
    mask: Any = None
    batch_index: Any = None
    max_length: Optional[int] = None
    scales: Any = None


def flatten(samples: Iterable[Any], sep: str) -> Tuple[List[Dict[str, Any]], Any]:
    """Each sample's leaves by path, and what puts them together again.

    JAX walks these trees itself: what a node is, None and the order of keys are what its registry and its compiled
    `tree_util` say. `windrow.collate` gets one flat dict for each sample.

    Raises:
        ValueError: for no samples, for one whose tree differs from the first one's, by position, and for two leaves of one path.
        TypeError: for a mapping or text in place of the list, and for a leaf that JAX does not look into though it is a container.
    """
    if _windrow._is_arrow(samples):
        # The list of its rows. Iterating over the object itself gives columns.
        samples = SampleList(samples)
    _windrow._check_list(samples)
    samples = list(samples)
    if not samples:
        raise ValueError("cannot assemble an empty list of samples")
    first, tree = jax.tree_util.tree_flatten_with_path(samples[0])
    paths = [sep.join(map(name_of, path)) for path, _ in first]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise ValueError(f"two leaves are at {twice!r}; give another sep=")
    for path, (_, leaf) in zip(paths, first):
        if dataclasses.is_dataclass(leaf) or isinstance(leaf, Mapping):
            raise no_pytree(leaf, path)
    columns = [dict(zip(paths, (leaf for _, leaf in first)))]
    for index, sample in enumerate(samples[1:], 1):
        try:
            leaves = tree.flatten_up_to(sample)
        except (ValueError, TypeError) as error:
            raise located(ValueError(f"sample {index}: its tree differs from sample 0's: {error}"), index, "") from error
        if not jax.tree_util.all_leaves(leaves):
            path, node = next((path, leaf) for path, leaf in zip(paths, leaves) if not jax.tree_util.all_leaves([leaf]))
            text = f"sample {index}: its tree differs from sample 0's: {type(node).__name__} at {path!r} in place of a leaf"
            raise located(ValueError(text), index, path)
        columns.append(dict(zip(paths, leaves)))
    return columns, tree


def no_pytree(leaf: Any, path: str) -> TypeError:
    """The error of a leaf of the first sample that is a container which JAX does not look into."""
    cure = "register it (jax.tree_util.register_dataclass, register_pytree_node)"
    error: TypeError = located(TypeError(f"sample 0 at {path!r}: {type(leaf).__name__} is not a pytree; {cure}"), 0, path)
    return error
