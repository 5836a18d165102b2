"""Results of collators in worker processes of torch's loader, on their way to the loop; see `windrow.torch._workers`."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, TypeVar

_Collate = TypeVar("_Collate", bound=Callable[..., Any])


def for_workers(collate: _Collate) -> _Collate:
    """A function whose results need no new shared memory, where it is called in a worker process."""

    @functools.wraps(collate)
    def call(*args: Any, **kwargs: Any) -> Any:
        batch = collate(*args, **kwargs)
        data = sys.modules.get("torch.utils.data")
        if data is None or data.get_worker_info() is None:
            return batch
        from windrow.torch import _workers

        return _workers.deliver(batch, sys._getframe(1))

    return call  # type: ignore[return-value]
