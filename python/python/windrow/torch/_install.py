"""windrow behind every caller of torch's default_collate."""

from __future__ import annotations

import functools
import logging
import os
import threading
from types import TracebackType
from typing import Any, Dict, Optional, Type

import torch

import windrow as wr
from windrow import _windrow
from windrow.torch import _collate, _registry, _workers
from windrow.torch._shared import in_worker_process, share

# A batch of tensors below both is left to torch.stack, which begins sooner: measured with tensors that
# are in the cache. Arrays and numbers torch reads one by one, and slowly.
MIN_TENSOR_BYTES = 1 << 20
MIN_TENSORS = 128

_REFUSED = object()
_logger = logging.getLogger("windrow.torch")
# The lock is held while the table is changed.
_changing = threading.Lock()


class _Columns:
    """Rules for a column of tensors, arrays or, but in a worker process, numbers; of any other the result is `_REFUSED`."""

    def __init__(self, in_worker: bool) -> None:
        self.codes: Dict[type, int] = {torch.Tensor: _registry.TENSOR}
        if not in_worker:
            # Numbers in a worker would be written to shared memory now, and by torch when they are sent.
            self.codes.update({number: _registry.NUMBER for number in (float, int, bool)})
        np = _registry.numpy()
        if np is not None:
            self.codes.update({np.ndarray: _registry.ARRAY, np.memmap: _registry.ARRAY})
        pool = _workers.pool(None) if in_worker else None
        self.allocate = None if not in_worker else share if pool is None else pool.allocate
        self.arena = False
        self.engine = wr.Engine(threads=1) if in_worker else None

    def classify(self, elem: Any) -> int:
        return _registry.OTHER

    def other(self, column: Any) -> Any:
        return _REFUSED


@functools.lru_cache(maxsize=None)
def _columns(worker: int) -> _Columns:
    """The rules of a worker process of this number, which its pool belongs to; 0: of any other."""
    return _Columns(worker != 0)


def _column_fn(original: _registry.CollateFn) -> _registry.CollateFn:
    """torch's function for one kind of column, with the engine tried first."""

    @functools.wraps(original)
    def collate_column(batch: Any, *, collate_fn_map: Optional[_registry.CollateMap] = None) -> Any:
        if _is_for_engine(batch, collate_fn_map):
            columns = _columns(os.getpid() if in_worker_process() else 0)
            result = _windrow._collate_torch(batch, columns, engine=columns.engine)
            if result is not _REFUSED:
                return result
        return original(batch, collate_fn_map=collate_fn_map)

    return collate_column


def _is_for_engine(batch: Any, table: Optional[_registry.CollateMap]) -> bool:
    """Whether the engine is to try a column: it gives torch's results, and sooner."""
    if type(batch) not in (list, tuple) or _collate.is_watched():
        return False
    if table is not None and table.get(torch.Tensor) not in _collate.replaced:
        # The caller's own idea of tensors, which arrays become first.
        return False
    elem = batch[0] if batch else None
    if type(elem) is not torch.Tensor or len(batch) >= MIN_TENSORS:
        return True
    return elem.numel() * elem.itemsize * len(batch) >= MIN_TENSOR_BYTES


# Calls of `install` since the last `uninstall` that no block has ended, and how often it was called.
_holds, _uninstalls = 0, 0


class Installed:
    """The context manager that `install` returns. At the end of its ``with`` block torch has its own functions again, unless another call of `install` or
    another block, as of another thread, still has them replaced."""

    __slots__ = ("_is_free", "_since")

    def __init__(self, since: int) -> None:
        self._is_free = True
        self._since = since

    def __enter__(self) -> "Installed":
        if not (self._is_free and self._since == _uninstalls):
            self._since = install()._since
        self._is_free = False
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        global _holds
        with _changing:
            if self._since == _uninstalls:
                _holds -= 1
                if _holds == 0:
                    _restore()


def install(worker_id: Optional[int] = None) -> Installed:
    """Makes windrow assemble the tensors, arrays and numbers of every caller of ``default_collate``: it replaces torch's functions for
    the whole process, until `uninstall` or the end of a ``with`` block, and says so to the logger ``windrow.torch`` (INFO).

    Replaces entries in torch's table of collate functions, each with a function that gives the same
    results and errors. Batches of fewer than 128 tensors with less than 1 MiB together stay with ``torch.stack``, which starts
    sooner; in worker processes Python numbers stay with torch too. Doing it again changes nothing. Workers that are forked inherit it; those that
    are spawned need ``DataLoader(..., worker_init_fn=windrow.torch.install)``.

    Args:
        worker_id: ignored; a ``worker_init_fn`` is called with one.

    Returns:
        Installed: a context manager, for the time of a block. Nothing needs to be done with it otherwise.

    Raises:
        RuntimeError: this torch has no such table.

    Example:
        >>> import torch, windrow.torch
        >>> with windrow.torch.install():
        ...     torch.utils.data.default_collate([{"x": 1.5}, {"x": 2.5}])
        {'x': tensor([1.5000, 2.5000], dtype=torch.float64)}
    """
    global _holds
    module = _registry.find()
    table = module.default_collate_fn_map
    names = ("collate_tensor_fn", "collate_numpy_array_fn", "collate_float_fn", "collate_int_fn")
    known = [getattr(module, name, None) for name in names]
    replaced = []
    with _changing:
        _holds += 1
        installed = Installed(_uninstalls)
        for key, function in list(table.items()):
            # Replaced in place: torch looks subclasses up in the order of the entries.
            if function in known:
                ours = _column_fn(function)
                _collate.replaced[ours] = function
                table[key] = ours
                replaced.append(function.__name__)
    if replaced:
        _logger.info("torch's %s are replaced in process %d, for every caller of default_collate", ", ".join(sorted(set(replaced))), os.getpid())
    return installed


def uninstall() -> None:
    """Puts torch's own functions back where `install` replaced them.

    An entry replaced since then is left as it is.
    """
    with _changing:
        _restore()


def _restore() -> None:
    """`uninstall`, under the lock."""
    global _holds, _uninstalls
    _holds, _uninstalls = 0, _uninstalls + 1
    table = _registry.find().default_collate_fn_map
    for key, function in list(table.items()):
        if function in _collate.replaced:
            table[key] = _collate.replaced.pop(function)
