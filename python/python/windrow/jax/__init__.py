"""windrow for JAX: pytrees in, pytrees of arrays out, on JAX's default device.

    >>> import numpy as np, windrow as wr, windrow.jax
    >>> samples = [{"ids": np.arange(n), "y": float(n)} for n in (3, 1)]
    >>> batch = windrow.jax.collate(samples, {"ids": wr.Pad(value=-1)})
    >>> batch["ids"].data.tolist(), batch["ids"].lengths.tolist(), batch["y"].tolist()
    ([[0, 1, 2], [0, -1, -1]], [3, 1], [3.0, 1.0])

:mod:`windrow.jax.grain` makes the batches of a grain pipeline.
"""

from windrow.jax._collate import collate, concat, pad, ragged, stack
from windrow.jax._trees import JaxBatch

__all__ = ["JaxBatch", "collate", "concat", "pad", "ragged", "stack"]
