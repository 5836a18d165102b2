"""Peers of bench_torch.py that are no torch: CUB and copy kernels of libpeers.so, cuMemcpyBatchAsync of the driver, CuPy.

Each function of this module gives a contender's call, or raises `Absent` with the reason why there is none.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable

import numpy as np
import torch

from torch_samples import Bench, Set

HERE = Path(__file__).resolve().parent
Call = Callable[[Set], Any]


class Absent(Exception):
    """Why a contender does not take part."""


def check(what: str, code: int) -> None:
    if code:
        raise RuntimeError(f"{what}: error {code}")


@lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """`$WINDROW_BENCH_PEERS`, or that of the bundle, whose `bench/` is beside the folder of this file."""
    path = Path(os.environ.get("WINDROW_BENCH_PEERS") or HERE.parent / "bench/libpeers.so")
    if not path.is_file():
        raise Absent("no libpeers.so, see scripts/gpu/bundle.sh")
    found, pointer = ctypes.CDLL(str(path)), ctypes.c_void_p
    found.peer_copy16.argtypes = [pointer, pointer, ctypes.c_uint64, pointer]
    found.peer_block_per_buffer.argtypes = [pointer, pointer, pointer, ctypes.c_uint32, pointer]
    found.peer_cub.argtypes = [pointer, ctypes.POINTER(ctypes.c_size_t), pointer, pointer, pointer, ctypes.c_uint32, pointer]
    return found


def stream() -> int:
    """torch's current stream, which is another one while a graph is captured."""
    return torch.cuda.current_stream().cuda_stream


def tables(bench: Bench, s: Set, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sources, destinations and sizes, on the device."""
    sizes = torch.tensor([tensor.nbytes for tensor in s.tensors], dtype=torch.int64)
    made = bench.addresses(s.tensors), bench.addresses(list(out.unbind(0))), bench.uploaded(sizes)
    torch.cuda.current_stream().synchronize()
    return made


def require_gpu(bench: Bench) -> None:
    if bench.dry:
        raise Absent("needs a GPU")


def cub(bench: Bench, outs: Callable[[Set], torch.Tensor]) -> Call:
    """CUB's batched memcpy, its tables on the device already."""
    require_gpu(bench)
    call = library().peer_cub

    def prepared(s: Set) -> Any:
        source, target, sizes = tables(bench, s, outs(s))
        needed = ctypes.c_size_t(0)
        arguments = (source.data_ptr(), target.data_ptr(), sizes.data_ptr(), len(s.tensors))
        check("cub::DeviceMemcpy::Batched", call(None, ctypes.byref(needed), *arguments, stream()))
        scratch = torch.empty(max(needed.value, 1), dtype=torch.uint8, device=bench.device)
        return (scratch.data_ptr(), needed, *arguments), (source, target, sizes, scratch)

    def run(s: Set) -> Any:
        (scratch, needed, *arguments), _ = s.keep("CUB", lambda: prepared(s))
        check("cub::DeviceMemcpy::Batched", call(scratch, ctypes.byref(needed), *arguments, stream()))
        return outs(s)

    return run


def block_per_buffer(bench: Bench, outs: Callable[[Set], torch.Tensor]) -> Call:
    """The work split that inference servers use, its tables on the device already."""
    require_gpu(bench)
    call = library().peer_block_per_buffer

    def run(s: Set) -> Any:
        source, target, sizes = s.keep("block per buffer", lambda: tables(bench, s, outs(s)))
        check("block_per_buffer", call(target.data_ptr(), source.data_ptr(), sizes.data_ptr(), len(s.tensors), stream()))
        return outs(s)

    return run


def copy_kernel(bench: Bench) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """A kernel that copies 16 bytes a lane: target, source."""
    require_gpu(bench)
    call = library().peer_copy16
    return lambda target, source: check("copy16", call(target.data_ptr(), source.data_ptr(), source.nbytes & -16, stream()))


class Attributes(ctypes.Structure):
    """`CUmemcpyAttributes`: sources are read in stream order, no hints of place."""

    _fields_ = [("source_order", ctypes.c_int), ("source", ctypes.c_int * 2), ("destination", ctypes.c_int * 2), ("flags", ctypes.c_uint)]


def memcpy_batch(bench: Bench, outs: Callable[[Set], torch.Tensor]) -> Call:
    """cuMemcpyBatchAsync, its lists of addresses made already. It takes no default stream, and no capture."""
    require_gpu(bench)
    try:
        call = ctypes.CDLL(os.environ.get("WINDROW_CUDA_DRIVER", "libcuda.so.1")).cuMemcpyBatchAsync_v2
    except (OSError, AttributeError):
        raise Absent("this driver has no cuMemcpyBatchAsync_v2") from None
    attributes, first = Attributes(source_order=1), ctypes.c_size_t(0)

    def prepared(s: Set) -> list[np.ndarray]:
        columns = [t.data_ptr() for t in outs(s).unbind(0)], [t.data_ptr() for t in s.tensors], [t.nbytes for t in s.tensors]
        return [np.array(column, np.uint64) for column in columns]

    def run(s: Set) -> Any:
        lists = s.keep("cuMemcpyBatchAsync", lambda: prepared(s))
        pointers = [ctypes.c_void_p(column.ctypes.data) for column in lists]
        code = call(
            *pointers, ctypes.c_size_t(len(s.tensors)), ctypes.byref(attributes), ctypes.byref(first), ctypes.c_size_t(1),
            ctypes.c_void_p(stream()),
        )  # fmt: skip
        check("cuMemcpyBatchAsync", code)
        return outs(s)

    return run


def cupy_stack(bench: Bench) -> Call:
    """cupy.stack, of arrays that CuPy has imported already."""
    require_gpu(bench)
    try:
        import cupy
    except ImportError as error:
        raise Absent(f"{error.name or 'cupy'} is not installed") from None
    cupy.cuda.ExternalStream(bench.stream.cuda_stream).use()
    return lambda s: cupy.stack(s.keep("CuPy", lambda: [cupy.from_dlpack(tensor) for tensor in s.tensors]))
