"""Memory that other processes map, for the batches of workers."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

import torch
import torch.utils.data

from windrow._shared_memory import torch_storage

# Tensors below this share one segment: each segment costs more than so few bytes. Larger ones have
# one of their own, so that keeping a batch's labels does not keep its images.
SMALL_BYTES = 64 << 10
_ALIGN = 64


def in_worker_process() -> bool:
    """Whether this is a worker process of a ``DataLoader``. Later torch has workers that are threads, which share
    the main process's memory and devices."""
    worker: Any = torch.utils.data.get_worker_info()
    return worker is not None and getattr(worker, "worker_method", None) != "thread"


def share(outputs: Sequence[Tuple[str, Tuple[int, ...]]]) -> List[torch.Tensor]:
    """Uninitialised tensors of these dtypes and shapes, in torch's shared memory if they have elements."""
    wanted: List[Tuple[torch.dtype, Tuple[int, ...], int]] = []
    small_bytes = 0
    for name, shape in outputs:
        dtype = getattr(torch, name)
        nbytes = dtype.itemsize
        for extent in shape:
            nbytes *= extent
        wanted.append((dtype, shape, nbytes))
        if nbytes < SMALL_BYTES:
            small_bytes += -(-nbytes // _ALIGN) * _ALIGN
    segment = torch_storage(small_bytes) if small_bytes else None
    tensors = []
    start = 0
    for dtype, shape, nbytes in wanted:
        if nbytes == 0:
            tensors.append(torch.empty(shape, dtype=dtype, device="cpu"))
        elif nbytes < SMALL_BYTES:
            tensors.append(_view(segment, start // dtype.itemsize, dtype, shape))
            start += -(-nbytes // _ALIGN) * _ALIGN
        else:
            tensors.append(_view(torch_storage(nbytes), 0, dtype, shape))
    return tensors


def share_bytes(nbytes: int) -> torch.Tensor:
    """One uninitialised segment in torch's shared memory."""
    return _view(torch_storage(nbytes), 0, torch.uint8, (nbytes,)) if nbytes else torch.empty(0, dtype=torch.uint8, device="cpu")


def view(memory: torch.Tensor, dtype: str, shape: Tuple[int, ...], byte_offset: int) -> torch.Tensor:
    """A tensor in the storage of `memory`, from the beginning of which `byte_offset` counts; it is a multiple of an element's
    bytes."""
    kind = getattr(torch, dtype)
    return _view(memory.untyped_storage(), byte_offset // kind.itemsize, kind, shape)


def _view(segment: Any, start: int, dtype: torch.dtype, shape: Tuple[int, ...]) -> torch.Tensor:
    """A row-major tensor in a storage; `start` counts elements."""
    # Not on torch's default device.
    tensor: Any = torch.empty(0, dtype=dtype, device="cpu")
    view: torch.Tensor = tensor.set_(segment, start, shape)
    return view
