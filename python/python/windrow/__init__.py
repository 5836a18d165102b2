"""Batch assembly: scattered sample tensors to one batch, in one pass.

    >>> import windrow as wr
    >>> wr.stack([b"abc", b"def"]).shape
    (2, 3)
"""

from windrow._windrow import (
    Batch,
    CudaError,
    CudaUnavailable,
    DeviceError,
    DTypeError,
    Engine,
    Explain,
    LayoutError,
    SampleList,
    ShapeError,
    Tensor,
    Transform,
    __version__,
    asarray,
    collate,
    concat,
    cuda_available,
    devices,
    empty_cache,
    explain,
    pad,
    ragged,
    reset_stats,
    stack,
    stats,
)
from windrow.spec import Concat, Pad, Ragged, Stack

__all__ = [
    "Batch",
    "Concat",
    "CudaError",
    "CudaUnavailable",
    "DTypeError",
    "DeviceError",
    "Engine",
    "Explain",
    "LayoutError",
    "Pad",
    "Ragged",
    "SampleList",
    "ShapeError",
    "Stack",
    "Tensor",
    "Transform",
    "__version__",
    "asarray",
    "collate",
    "concat",
    "cuda_available",
    "devices",
    "empty_cache",
    "explain",
    "pad",
    "ragged",
    "reset_stats",
    "stack",
    "stats",
]
