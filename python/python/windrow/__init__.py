"""Batch assembly: scattered sample tensors to one batch, in one pass.

    >>> import windrow as wr
    >>> wr.stack([[1, 2, 3], [4, 5, 6]])
    Batch(2 samples, shape=(2, 3), dtype=int64, device=cpu)
"""

import os as _os
import typing as _typing

try:
    import windrow._windrow as _compiled
except ModuleNotFoundError as error:
    if error.name != "windrow._windrow":
        raise
    text = "windrow is not built here: run `pip install ./python` in a checkout, and start Python outside of its folder python/python"
    raise ModuleNotFoundError(text, name=error.name) from None

from windrow._windrow import (
    Batch,
    CudaError,
    CudaUnavailable,
    DeviceError,
    Dequantize,
    DTypeError,
    Engine,
    Explain,
    LayoutError,
    Quantize,
    SampleList,
    ShapeError,
    Tensor,
    Transform,
    __version__,
    asarray,
    collate,
    concat,
    copy_many,
    crops,
    cuda_available,
    devices,
    empty_cache,
    explain,
    pad,
    ragged,
    reset_stats,
    set_logging,
    stack,
    stats,
    windows,
)
from windrow._nodes import register_node
from windrow._stats import Stats
from windrow.packed import Layout, Packed, pack, pack_buckets, unpack
from windrow.spec import Concat, List, Pad, Ragged, Stack
from windrow.staging import Staging

__all__ = [
    "Batch",
    "Concat",
    "CudaError",
    "CudaUnavailable",
    "DTypeError",
    "Dequantize",
    "DeviceError",
    "Engine",
    "Explain",
    "Layout",
    "LayoutError",
    "List",
    "Packed",
    "Pad",
    "Quantize",
    "Ragged",
    "SampleList",
    "ShapeError",
    "Stack",
    "Staging",
    "Stats",
    "Tensor",
    "Transform",
    "__version__",
    "asarray",
    "collate",
    "concat",
    "copy_many",
    "crops",
    "cuda_available",
    "devices",
    "empty_cache",
    "explain",
    "pack",
    "pack_buckets",
    "pad",
    "ragged",
    "register_node",
    "reset_stats",
    "set_logging",
    "stack",
    "stats",
    "unpack",
    "windows",
]

if not _typing.TYPE_CHECKING:  # A checker would take every name for one of the package.

    def __getattr__(name):
        text = f"module 'windrow' has no attribute '{name}'"
        if name in ("hf", "jax", "plan", "ray", "sequence", "structure", "torch"):
            text += f": it is a module of its own, for which write `import windrow.{name}`"
        raise AttributeError(text)


if _os.environ.get("WINDROW_LOG", "0") not in ("", "0"):
    from windrow import _log

    _log.to_stderr()
    set_logging(True)
