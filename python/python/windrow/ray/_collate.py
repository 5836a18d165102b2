"""`GatherCollate`: batches of Ray Data to torch tensors."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List, Optional, Set, Tuple

import torch
from ray.data.collate_fn import ArrowBatchCollateFn, NumpyBatchCollateFn

import windrow as wr
from windrow import _leaves
from windrow._leaves import named_fields
from windrow.ray._columns import columns_of

class Gather:
    """Holds arguments only, so that it pickles and threads may share it."""

    def __init__(self, spec: Any = None, device: Any = None, *, columns: Optional[Iterable[str]] = None) -> None:
        if isinstance(columns, str):
            raise TypeError(f"columns must be a list of names, got {columns!r}; give [{columns!r}]")
        self.spec = spec
        self.device = device
        self.columns = None if columns is None else tuple(columns)
        _leaves.check(spec)

    def results(self, batch: Any, device: Any) -> Iterator[Tuple[str, List[Tuple[str, wr.Tensor]], Dict[str, Any]]]:
        """Name, named results and arguments of each column, one call of the engine each; ValueError for two results of one name."""
        taken: Set[str] = set()
        columns = columns_of(batch, self.columns)
        specs = _leaves.chosen(self.spec, list(columns), "column")
        for (name, samples), spec in zip(columns.items(), specs):
            kwargs = {"device": device, **spec.kwargs}
            with _leaves.named("column", name):
                if kwargs["device"] == "pinned":
                    kwargs["device"] = None
                    kwargs["out"] = _pinned(samples, spec, kwargs)
                fields = named_fields(name, getattr(wr, spec.form)(samples, **kwargs))
            for key, _ in fields:
                if key in taken:
                    raise ValueError(f"two results are named {key!r}; rename a column (Dataset.rename_columns)")
                taken.add(key)
            yield name, fields, kwargs

    def __call__(self, batch: Any) -> Dict[str, torch.Tensor]:
        """A ``pyarrow.Table`` or a dict of NumPy arrays to a dict of tensors."""
        device = self.device
        if device == "auto":
            from ray.train.torch import get_device

            device = get_device()
        tensors: Dict[str, torch.Tensor] = {}
        for name, fields, kwargs in self.results(batch, device):
            out = kwargs.get("out")
            for key, field in fields:
                if out is None:
                    tensors[key] = field.torch()
                else:
                    tensors[key] = out if key == name else field.torch().pin_memory()
        return tensors


def _pinned(samples: wr.SampleList, spec: Any, kwargs: Dict[str, Any]) -> torch.Tensor:
    """torch's page-locked memory for a result: torch does not lend it again while a copy from it
    is under way, which it cannot know of other memory. CudaUnavailable where torch finds no device."""
    if not torch.cuda.is_available():
        raise wr.CudaUnavailable('device="pinned": torch finds no CUDA device to lock pages for')
    (shape, dtype), *_ = wr.explain(samples, spec.form, **kwargs).outputs
    return torch.empty(shape, dtype=getattr(torch, dtype), pin_memory=True)


class GatherCollate(Gather, ArrowBatchCollateFn):
    """``collate_fn`` for ``Dataset.iter_torch_batches``, on Arrow batches.

    Each column becomes one tensor ``[N, ...]`` under its name. A padded column adds ``<name>_lengths`` and, if requested,
    ``<name>_mask``; a joined or ragged one ``<name>_lengths``, ``<name>_offsets`` and, if requested, ``<name>_batch_index``. The
    result is a flat dict of tensors, which Ray then moves to its own ``device=``.

    =========================================== ====================================================
    column                                      sample
    =========================================== ====================================================
    ints, floats                                a 0-d value
    bool                                        a 0-d value; unpacked from bits, which is a copy
    ``fixed_size_list<T>[k]``, nested too       ``[k]``
    ``arrow.fixed_shape_tensor``, Ray's tensors their shape
    ``list<T>``, ``list_view<T>``               ``[length, ...]``: name a ``wr.Pad`` or ``wr.Ragged``
    Arrow's and Ray's variable-shaped tensors   the shape of each: as lists
    struct                                      a column for each field, ``outer.inner``
    =========================================== ====================================================

    All but bools are read from Arrow's buffers as they are, chunk by chunk, read-only blocks of the
    object store included. Strings, dictionaries, nested lists, dates and nulls are errors.

    Args:
        spec: column name, with globs, to `windrow.Pad` and the like, or one of those for all
            columns. Unnamed columns are stacked.
        device: device to place the results on. None: in host memory; ``"pinned"``: in page-locked memory
            from torch, from which Ray's ``device="cuda"`` copies without waiting; ``"cuda"``: there, the
            padding done by a kernel; ``"auto"``: the device of this Ray Train worker.
        columns: names of the columns to take; None: all.

    Raises:
        DTypeError: when called, for a column that is not of the above, and for a null, with ``.path``
            the column and ``.index`` the row in the batch.
        ShapeError: when called, for rows of several shapes in a column that is stacked.
        ValueError: when called, for a spec that matches no column, and for two results of one name.
        KeyError: when called, for a name in ``columns`` that is not a column.
        TypeError: for a str as ``columns``.
        CudaUnavailable: when called, without the device that was asked for.

    Example:
        >>> import pyarrow as pa, windrow as wr, windrow.ray
        >>> collate = windrow.ray.GatherCollate({"ids": wr.Pad(value=-1)})
        >>> batch = collate(pa.table({"ids": [[1, 2, 3], [4]], "y": [0, 1]}))
        >>> batch["ids"].tolist(), batch["ids_lengths"].tolist(), batch["y"].tolist()
        ([[1, 2, 3], [4, -1, -1]], [3, 1], [0, 1])
    """


class NumpyGatherCollate(Gather, NumpyBatchCollateFn):
    """Collates like `GatherCollate`, but from Ray's NumPy batches: a dict of arrays.

    Columns of varying shape are there arrays of objects, one array for each row: prefer Arrow batches,
    which are read without them.

    Example:
        >>> import numpy as np, windrow as wr, windrow.ray
        >>> collate = windrow.ray.NumpyGatherCollate({"ids": wr.Ragged()})
        >>> ids = np.array([np.arange(2), np.arange(3)], dtype=object)
        >>> collate({"ids": ids})["ids_offsets"].tolist()
        [0, 2, 5]
    """
