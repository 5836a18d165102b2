"""windrow for torch's data loading: same results, assembled in one pass.

    >>> import torch, windrow.torch
    >>> loader = torch.utils.data.DataLoader([{"x": torch.ones(3)}] * 4, batch_size=2,
    ...                                      collate_fn=windrow.torch.collate_fn())
    >>> next(iter(loader))["x"].shape
    torch.Size([2, 3])
"""

from windrow.torch._collate import Batch, Collator, collate_fn
from windrow.torch._install import install, uninstall
from windrow.torch._prefetch import Prefetcher

__all__ = ["Batch", "Collator", "Prefetcher", "collate_fn", "install", "uninstall"]
