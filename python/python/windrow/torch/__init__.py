"""windrow for torch's data loading: same results, assembled in one pass.

    >>> import torch, windrow.torch
    >>> loader = torch.utils.data.DataLoader([{"x": torch.ones(3)}] * 4, batch_size=2,
    ...                                      collate_fn=windrow.torch.collate_fn())
    >>> next(iter(loader))["x"].shape
    torch.Size([2, 3])
"""

import importlib
from typing import Any

from windrow.torch._collate import Collator, TorchBatch, collate_fn
from windrow.torch._install import Installed, install, uninstall
from windrow.torch._prefetch import Prefetcher
from windrow.torch._sampler import BatchSampler

__all__ = ["BatchSampler", "Collator", "Installed", "Prefetcher", "ToDevice", "TorchBatch", "collate_fn", "install", "uninstall"]


def __getattr__(name: str) -> Any:
    # Registers operators, which need a newer torch than the rest.
    if name == "ops":
        return importlib.import_module("windrow.torch.ops")
    # Needs torchdata, which the rest does not.
    if name == "ToDevice":
        from windrow.torch._nodes import ToDevice

        return ToDevice
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

