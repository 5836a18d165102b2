"""Batches of a grain pipeline, written straight into the memory that its workers share.

    dataset = (
        grain.MapDataset.source(source)
        .to_iter_dataset()
        .batch(32, batch_fn=windrow.jax.grain.BatchFn({"ids": wr.Pad(multiple_of=128)}))
        .mp_prefetch(grain.MultiprocessingOptions(num_workers=4))
    )
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

import jax
import numpy as np
from grain.multiprocessing import SharedMemoryArray

import windrow as wr
from windrow import _leaves, _shared_memory
from windrow._flattener import at_path, located
from windrow.jax._trees import JaxBatch, flatten


__all__ = ["BatchFn"]


class BatchFn:
    """A ``batch_fn`` for grain's ``batch`` and ``Batch``: pytrees to a pytree of NumPy arrays.

    In a worker process of ``mp_prefetch`` or ``DataLoader`` each leaf is assembled directly in the shared memory in which grain hands
    it on, without another copy, and on one thread, since there are several workers. grain requests this when two or more workers hand
    on the result of ``batch``. With one worker, or after a later step, it copies the batch once, as it does its own; it also copies
    leaves of dtypes that NumPy lacks, bfloat16 and float8, and quantised ones.

    A stacked leaf without scales becomes an array, any other a `windrow.jax.JaxBatch` of arrays; strings become
    lists. The arrays stay on the host: ``jax.device_put`` moves a whole batch.

    Args:
        spec: as for `windrow.jax.collate`.
        sep (str): joins the parts of a path.
        threads: for large batches; None: one where the memory is shared, else as many as there are
            cores.

    Raises:
        TypeError, ValueError, ...: when called, those of `windrow.jax.collate`.

    Example:
        >>> import numpy as np, windrow as wr, windrow.jax.grain
        >>> make = windrow.jax.grain.BatchFn({"ids": wr.Pad()})
        >>> batch = make([{"ids": np.arange(2), "y": 0}, {"ids": np.arange(3), "y": 1}])
        >>> batch["ids"].data.tolist(), batch["y"].tolist()
        ([[0, 1, 0], [0, 1, 2]], [0, 1])
    """

    def __init__(self, spec: Any = None, *, sep: str = ".", threads: Optional[int] = None) -> None:
        _leaves.check(spec)
        self.spec = spec
        self.sep = sep
        self.threads = threads
        self._shared = False
        self._engine: Optional[Tuple[int, wr.Engine]] = None

    def enable_shared_memory_output(self) -> None:
        """Called by grain for batches that another process receives."""
        self._shared = True

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_engine": None}

    def __call__(self, values: Sequence[Any]) -> Any:
        """The batch of a list of pytrees."""
        columns, tree = flatten(values, self.sep)
        leaves: Dict[str, Any] = {path: [column[path] for column in columns] for path in columns[0]}
        paths, texts = _leaves.told_apart(columns[0])
        for path in texts:
            _check_texts(leaves[path], path)
        made: List[SharedMemoryArray] = []
        try:
            for path, spec in zip(paths, _leaves.chosen(self.spec, paths, "leaf", texts)):
                with _leaves.named("leaf", path):
                    leaves[path] = self._leaf(leaves[path], spec, made)
        except BaseException:
            # Nothing else refers to these segments.
            for array in made:
                array.metadata.close_and_unlink_shm()
            raise
        return jax.tree_util.tree_unflatten(tree, list(leaves.values()))

    def _leaf(self, column: List[Any], spec: Any, made: List[SharedMemoryArray]) -> Any:
        """The batch of a leaf. In shared memory, if it can be: the segment is then added to `made`, also if the call fails
        later."""
        samples = wr.SampleList(column)
        kwargs = {"engine": self._own_engine(), **spec.kwargs}
        data = None
        # `out=` takes data alone, and no scales: grain copies such leaves.
        if self._shared and not isinstance(spec.kwargs.get("transform"), wr.Quantize):
            (shape, dtype), *_ = wr.explain(samples, spec.form, **kwargs).outputs
            if 0 not in shape and _is_numpys(dtype):
                data = SharedMemoryArray(shape, np.dtype(dtype))
                made.append(data)
                _shared_memory.reserve(data.metadata.name, data.nbytes)
                kwargs["out"] = data
        batch = getattr(wr, spec.form)(samples, **kwargs)
        if data is None:
            data = batch.numpy()
        fields = {name: tensor.numpy() for name, tensor in _leaves.fields_of(batch).items()}
        if spec.form == "stack" and not fields:
            return data
        return JaxBatch(data, **fields, max_length=batch.max_length)

    def _own_engine(self) -> Optional[wr.Engine]:
        """An engine of this process, since threads do not outlive a fork; None, the default one, without `threads` and shared memory."""
        threads = self.threads or (1 if self._shared else None)
        if threads is None:
            return None
        if self._engine is None or self._engine[0] != os.getpid():
            self._engine = os.getpid(), wr.Engine(threads=threads)
        return self._engine[1]


def _check_texts(column: List[Any], path: str) -> None:
    """TypeError for what is no text, as the first one is."""
    index = next((index for index, text in enumerate(column) if not isinstance(text, (str, bytes))), None)
    if index is not None:
        text = f"sample {index}{at_path(path)}: expected {type(column[0]).__name__}, got {type(column[index]).__name__}"
        raise located(TypeError(text), index, path)


def _is_numpys(name: str) -> bool:
    """Whether NumPy itself has the dtype."""
    try:
        return np.dtype(name).isbuiltin == 1
    except TypeError:
        return False
