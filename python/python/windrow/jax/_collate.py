"""`collate` and the forms: lists of pytrees to one pytree of JAX arrays."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping

import jax

import windrow as wr
from windrow import _leaves
from windrow.jax._trees import JaxBatch, flatten, no_pytree

# The limit of JAX's integers unless jax_enable_x64 is set.
_INT32_MAX = 2**31 - 1


def collate(samples: Iterable[Any], spec: Any = None, *, sep: str = ".", device: Any = None, **common: Any) -> Any:
    """A list of pytrees to one pytree of the same structure, assembled in one call, on JAX's device.

    Pytrees are what JAX takes for one, nodes of your own included (``jax.tree_util.register_*``). A
    stacked leaf becomes a ``jax.Array``, one of `windrow.List` a list of them, any other a `JaxBatch` of arrays; strings become lists.

    Placement: host leaves are assembled on the host and handed to ``jax.device_put``, all at once: on an
    accelerator that is one explicit copy, on the CPU none. The arrays are not committed to a device
    unless you name one, so that ``jit`` runs where your other arguments are: nothing stays behind on
    the CPU. Leaves that are on a CUDA device are assembled there, and stay there if ``device`` is None.

    dtypes are JAX's: without ``jax_enable_x64`` it holds 64-bit numbers in 32 bits, as ``jnp.asarray``
    does. Offsets that this would change are an error.

    Args:
        samples: a list of pytrees of one structure.
        spec: leaf path, with globs, to `windrow.Pad` and the like, or one of those for all
            leaves; unnamed leaves are stacked. A path is the keys, positions and attributes
            that JAX names, joined by ``sep``.
        sep (str): joins the parts of a path.
        device: a ``jax.Device`` or ``Sharding`` to commit the arrays to; None: JAX's default device.
        common: ``dtype``, ``transform``, ``engine`` as for `windrow.collate`.

    Raises:
        ValueError: for a sample whose tree differs from the first one's, with its position; for a spec
            that names no leaf; for offsets beyond 32 bits without ``jax_enable_x64``.
        TypeError: for a container that is not a pytree, with the cure; for ``out``, ``stream`` or ``copy``, in a spec too.
        ShapeError, DTypeError, LayoutError: as for `windrow.collate`, with ``.path``.

    Example:
        >>> import numpy as np, windrow as wr, windrow.jax
        >>> batch = windrow.jax.collate([(np.arange(2), {"x": 1}), (np.arange(3), {"x": 2})], {"0": wr.Ragged()})
        >>> batch[0].data.tolist(), batch[0].offsets.tolist(), batch[1]["x"].tolist()
        ([0, 1, 0, 1, 2], [0, 2, 5], [1, 2])
    """
    _refuse(common)
    _leaves.check(spec, takes_lists=True)
    columns, tree = flatten(samples, sep)
    paths, texts = _leaves.told_apart(columns[0])
    specs = dict(zip(paths, _leaves.chosen(spec, paths, "leaf", texts)))
    for leaf in specs.values():
        _refuse(leaf.kwargs)
    batches = wr.collate(columns, specs if spec is not None else None, sep=sep, **common)
    for path, batch in batches.items():
        if not isinstance(batch, wr.Batch) and path not in texts and not isinstance(specs[path], wr.List):
            raise no_pytree(columns[0][path], path)
    arrays: Dict[str, Any] = {path: _arrays(batch, path) for path, batch in batches.items() if isinstance(batch, wr.Batch)}
    arrays.update((path, list(map(_array, batches[path]))) for path in paths if isinstance(specs[path], wr.List))
    leaves = dict(batches)
    for path, placed in jax.device_put(arrays, device).items():
        if isinstance(placed, list):
            leaves[path] = placed
            continue
        longest = batches[path].max_length
        leaves[path] = placed["data"] if placed.keys() == {"data"} else JaxBatch(**placed, max_length=longest)
    return jax.tree_util.tree_unflatten(tree, [leaves[path] for path in columns[0]])


def _refuse(arguments: Mapping[str, Any]) -> None:
    """TypeError for an argument by which later writes would reach an array, or that names a stream."""
    for name in ("out", "stream", "copy"):
        if name in arguments:
            raise TypeError(f"{name}= is not for JAX: its arrays do not change, and it orders its own streams")


def stack(samples: Iterable[Any], *, sep: str = ".", device: Any = None, **options: Any) -> Any:
    """Every leaf of a list of pytrees stacked: ``jax.Array`` leaves ``[N, *shape]``.

    Takes the arguments of `collate` and, but for ``out``, ``stream`` and ``copy``, of
    `windrow.stack`.

    Example:
        >>> import numpy as np, windrow.jax
        >>> windrow.jax.stack([{"x": np.ones(3)}] * 4)["x"].shape
        (4, 3)
    """
    return collate(samples, wr.Stack(**options), sep=sep, device=device)


def concat(samples: Iterable[Any], *, sep: str = ".", device: Any = None, **options: Any) -> Any:
    """Every leaf of a list of pytrees joined along ``dim``: `JaxBatch` leaves with ``lengths`` and
    ``offsets``. Takes the arguments of `windrow.concat` as `stack` does."""
    return collate(samples, wr.Concat(**options), sep=sep, device=device)


def pad(samples: Iterable[Any], *, sep: str = ".", device: Any = None, **options: Any) -> Any:
    """Every leaf of a list of pytrees padded: `JaxBatch` leaves with ``lengths`` and, if asked for,
    ``mask``. Takes the arguments of `windrow.pad` as `stack` does.

    Example:
        >>> import numpy as np, windrow.jax
        >>> batch = windrow.jax.pad([np.arange(3), np.arange(1)], multiple_of=4, mask="real")
        >>> batch.data.tolist(), batch.mask.tolist()[1]
        ([[0, 1, 2, 0], [0, 0, 0, 0]], [True, False, False, False])
    """
    return collate(samples, wr.Pad(**options), sep=sep, device=device)


def ragged(samples: Iterable[Any], *, sep: str = ".", device: Any = None, **options: Any) -> Any:
    """Every leaf of a list of pytrees as values and offsets: `JaxBatch` leaves. Takes the arguments
    of `windrow.ragged` as `stack` does."""
    return collate(samples, wr.Ragged(**options), sep=sep, device=device)


def _arrays(batch: wr.Batch, path: str) -> Dict[str, Any]:
    """The arrays of one leaf for JAX, by field: host memory, or arrays on the device where they are. ValueError for offsets that may be beyond
    32 bits, without `jax_enable_x64`."""
    tensors = {"data": batch.data, **_leaves.fields_of(batch)}
    if "offsets" in tensors and not jax.config.jax_enable_x64 and max(batch.shape) > _INT32_MAX:
        raise ValueError(f"leaf {path!r}: offsets up to {max(batch.shape)} are beyond 32 bits; set jax_enable_x64")
    return {name: _array(tensor) for name, tensor in tensors.items()}


def _array(tensor: wr.Tensor) -> Any:
    """An array of JAX if it is on a device, else one of NumPy; of the same memory."""
    return tensor.jax() if tensor.device.startswith("cuda") else tensor.numpy()
