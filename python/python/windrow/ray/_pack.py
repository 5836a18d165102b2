"""`pack` and `unpack`: batches made in `map_batches`, sent as one contiguous buffer each."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping, Optional

import numpy as np
import pyarrow as pa
import torch
from ray.data.collate_fn import ArrowBatchCollateFn
from torch.utils.dlpack import from_dlpack

import windrow as wr
from windrow._layout import plain_tree
from windrow.packed import PlannedPack
from windrow.ray._collate import Gather

HEADER = "windrow_header"
ARENA = "windrow_arena"
# The alignment of tensors in the arena; its size is a multiple too, so that arenas one after the other in a
# block keep it.
_ALIGN = 64


def pack(batch: Any, spec: Any = None, *, columns: Optional[Iterable[str]] = None) -> pa.Table:
    """A batch to one row: all its tensors, assembled, in one contiguous buffer.

    For ``Dataset.map_batches(windrow.ray.pack, batch_format="pyarrow", batch_size=N,
    zero_copy_batch=True, fn_kwargs={"spec": ...})``, which pads on Ray's workers rather than beside the
    model. Read with `UnpackCollate` or `unpack`.

    Args:
        batch: a ``pyarrow.Table`` or a dict of NumPy arrays.
        spec, columns: as for `GatherCollate`.

    Returns:
        pyarrow.Table: one row: ``windrow_header``, the `windrow.Layout` of a dict of the tensors as JSON,
        and ``windrow_arena``, their bytes.

    Raises:
        ValueError, KeyError, TypeError, DTypeError, ShapeError: as `GatherCollate` does, two results of one name included.
    """
    tensors: Dict[str, wr.Tensor] = {}
    for _, fields, _ in Gather(spec, columns=columns).results(batch, None):
        tensors.update(fields)
    plan = PlannedPack(tensors, _ALIGN)
    used = plan.layout.nbytes
    size = -(-used // _ALIGN) * _ALIGN
    arena = np.empty(size, np.uint8)
    arena[used:] = 0
    plan.write(wr.asarray(arena[:used]))
    offsets = pa.py_buffer(np.array([0, size], np.int64))
    column = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(arena)])
    return pa.table({HEADER: pa.array([plan.layout.to_json()]), ARENA: column})


def unpack(batch: Any, device: Any = None) -> Dict[str, torch.Tensor]:
    """The tensors of a packed batch, as views of one buffer.

    Args:
        batch: a ``pyarrow.Table`` of one row that `pack` made, or such a row as a dict.
        device: None: the tensors are views of the row's memory, that of the object store as a rule,
            and must not be written to; else the buffer is copied there once: ``"cpu"``, ``"pinned"``,
            ``"cuda"``.

    Raises:
        ValueError: for another number of rows: use ``batch_size=1``, a row is a whole batch; a header that is none, or of more bytes
            than there are.
        KeyError: for rows that are not packed.

    Example:
        >>> import pyarrow as pa, windrow as wr, windrow.ray
        >>> packed = windrow.ray.pack(pa.table({"ids": [[1, 2, 3], [4]]}), {"ids": wr.Pad()})
        >>> packed.num_rows, windrow.ray.unpack(packed)["ids"].tolist()
        (1, [[1, 2, 3], [4, 0, 0]])
    """
    # Unlike `.torch()` without a warning of memory that is not to be written to, which the docstring has.
    arena = from_dlpack(wr.asarray(_arena(batch)))
    if device == "pinned":
        arena = arena.pin_memory()
    elif device is not None:
        arena = arena.to(device, copy=True)
    layout = wr.Layout.from_json(_header(batch))
    if layout.nbytes > len(arena):
        raise ValueError(f"{ARENA} has {len(arena)} bytes, and {HEADER} is of {layout.nbytes}")
    views = []
    for dtype, shape, start in zip(layout.dtypes, layout.shapes, layout.offsets):
        kind = getattr(torch, dtype)
        end = start + kind.itemsize * int(np.prod(shape, dtype=np.int64))
        views.append(arena[start:end].view(kind).view(shape))
    tensors: Dict[str, torch.Tensor] = plain_tree(layout._nodes, views)
    return tensors


def _header(batch: Any) -> str:
    """The JSON of the layout; KeyError for a batch that is not packed."""
    return str(batch[HEADER][0] if isinstance(batch, pa.Table) else batch[HEADER])


def _arena(batch: Any) -> Any:
    """The packed bytes, where they are; a scalar of Arrow's would be a copy. ValueError for a table of another number of rows than one,
    TypeError for what is neither a table nor a row."""
    if isinstance(batch, Mapping):
        return np.frombuffer(batch[ARENA], np.uint8)
    if not isinstance(batch, pa.Table):
        raise TypeError(f"expected a pyarrow.Table or a row, got {type(batch).__name__}")
    if batch.num_rows != 1:
        raise ValueError(f"{batch.num_rows} packed batches at once; a row is a whole batch: use batch_size=1")
    (chunk,) = (chunk for chunk in batch[ARENA].chunks if len(chunk))
    _, offsets, data = chunk.buffers()
    start, end = np.frombuffer(offsets, np.int64)[chunk.offset : chunk.offset + 2]
    return np.frombuffer(data, np.uint8)[start:end]


class UnpackCollate(ArrowBatchCollateFn):
    """``collate_fn`` for ``iter_torch_batches(batch_size=1)`` of a dataset that `pack` made.

    Args:
        device: as for `unpack`.
    """

    def __init__(self, device: Any = None) -> None:
        self.device = device

    def __call__(self, batch: pa.Table) -> Dict[str, torch.Tensor]:
        """The tensors of one packed batch, by name."""
        return unpack(batch, self.device)
