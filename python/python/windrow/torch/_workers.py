"""Batches of worker processes in memory that is used again.

A worker has a pool of shared memory. A batch is written into its blocks, and what travels is a message of some bytes that says where
the tensors are. They are free again when the last of them has died. `windrow::workers` has the rest.
"""

from __future__ import annotations

import functools
import io
import logging
import multiprocessing
import os
import pickle
import sys
import threading
import weakref
from multiprocessing import reduction, util
from typing import Any, List, Optional, Sequence, Tuple

import torch
import torch.utils.data
from torch.multiprocessing import reductions

from windrow import _windrow
from windrow._shared_memory import pool_bytes
from windrow.torch._shared import in_worker_process, share, share_bytes
from windrow.torch._transfer import is_plain, map_tensors, tensors_of

Outputs = Sequence[Tuple[str, Tuple[int, ...]]]

_reduce_by_torch: Any = reductions.reduce_tensor
_log = logging.getLogger("windrow")
# The pool is released after the threads of queues have ended.
_EXIT_PRIORITY = -50
_has_warned = False


def is_available() -> bool:
    """Whether this system has such memory."""
    return hasattr(_windrow, "_start_pool")


# ------------------------------------------------------------------------------------------------------ the worker


class Pool:
    """The pool of this worker process, as a collator with this limit uses it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def allocate(self, outputs: Outputs) -> Sequence[Any]:
        """Uninitialised tensors of these dtypes and shapes: of windrow's in the pool, or of torch's in its shared memory."""
        tensors = self._allocate(outputs)
        return share(outputs) if tensors is None else tensors

    def allocate_bytes(self, nbytes: int) -> Any:
        """One uninitialised segment, as `allocate`."""
        tensors = self._allocate([("uint8", (nbytes,))])
        return share_bytes(nbytes) if tensors is None else tensors[0]

    def message(self, batch: Any) -> Any:
        """The object that torch's queue sends in place of a batch: the batch itself, if the pool has no room. All that can fail is
        done here: where the queue pickles, in a thread of its own, an error is printed, the batch is lost, and the loop waits
        for it without end."""
        parcel = _windrow._Parcel()
        # Torch's own way takes a descriptor, which nobody gives back if the pickle is not sent: these wait for the pool's answer.
        others: List[torch.Tensor] = []

        def place(tensor: torch.Tensor) -> Any:
            position = parcel.add(tensor, True) if type(tensor) is torch.Tensor else None
            if position is not None:
                return _tensor, (position,)
            others.append(tensor)
            return _other, (len(others) - 1,)

        tree = _pickled(batch, place)
        sent = parcel.send(self.limit)
        if sent is None:
            self._warn()
            return batch
        return _Message(sent, tree, _pickled(others, _by_torch) if others else b"")

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in the pool of a tensor that is plain memory; any other tensor, and one that the pool has no room for, as it
        is."""
        storage: Any = tensor.untyped_storage() if is_plain(tensor) else None
        if storage is None or not tensor.numel() or storage.is_shared():
            return tensor
        made = self._allocate([(str(tensor.dtype).partition(".")[2], tensor.shape)])
        return tensor if made is None else made[0].torch().copy_(tensor)

    def _allocate(self, outputs: Outputs) -> Optional[Sequence[Any]]:
        """Uninitialised tensors of windrow's in the pool; None, and a warning the first time, if it has no room."""
        tensors = _windrow._allocate_in_pool(outputs, self.limit)
        if tensors is None:
            self._warn()
        return tensors

    def _warn(self) -> None:
        _warn(f"more than {self.limit} bytes are in use")


class _Pickler(reduction.ForkingPickler):
    """Pickles as torch's queue does, but for tensors, of subclasses too: what stands for each is what `reduce` returns."""

    reduce: Any

    def reducer_override(self, value: Any) -> Any:
        return self.reduce(value) if isinstance(value, torch.Tensor) else NotImplemented


def _pickled(value: Any, reduce: Any) -> bytes:
    """The pickle of a value by `_Pickler`."""
    data = io.BytesIO()
    pickler = _Pickler(data)
    pickler.reduce = reduce
    pickler.dump(value)
    return data.getvalue()


def _by_torch(tensor: torch.Tensor) -> Any:
    """As torch sends it: a plain tensor without `_reduce`, which would look for the pool again; a subclass by its own rule."""
    return _reduce_by_torch(tensor) if type(tensor) is torch.Tensor else NotImplemented


class _Message:
    """A batch on its way, which is sent once."""

    __slots__ = ("file", "others", "sent", "tree")

    def __init__(self, sent: Any, tree: bytes, others: bytes) -> None:
        self.file, self.sent, self.tree, self.others = _file(), sent, tree, others

    def __reduce__(self) -> Any:
        return receive, (self.sent.take(), self.file, self.tree, self.others)


@functools.lru_cache(maxsize=None)
def _senders() -> Tuple[Tuple[Any, ...], Tuple[Any, ...]]:
    """The code of torch's functions that call a collate function and only send what it returns, and of the loops of worker processes,
    which call these: torch's and torchdata's. In a torch without them all others get tensors."""

    def codes(*functions: Any) -> Tuple[Any, ...]:
        return tuple([function.__code__ for function in functions if hasattr(function, "__code__")])

    fetch = getattr(torch.utils.data._utils, "fetch", None)
    fetchers = [getattr(fetch, name, None) for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher")]
    modules = map(sys.modules.get, ("torch.utils.data._utils.worker", "torchdata.stateful_dataloader.worker"))
    return (
        codes(*[getattr(fetcher, "fetch", None) for fetcher in fetchers]),
        codes(*[getattr(module, "_worker_loop", None) for module in modules]),
    )


def is_fetcher(frame: Any) -> bool:
    """Whether a result goes to the queue as it is: any other caller is to get tensors, a loader within a worker process too."""
    fetchers, loops = _senders()
    return frame.f_code in fetchers and frame.f_back is not None and frame.f_back.f_code in loops


def pool(limit: Optional[int]) -> Optional[Pool]:
    """The pool of this worker process, for at most this many bytes; None: where it is not to have one, or cannot."""
    if limit == 0 or not is_available():
        return None
    if limit is None:
        limit = default_limit()
    # The first call starts the pool and changes how this process pickles tensors.
    if not _windrow._has_pool():
        try:
            _windrow._start_pool(max(limit, default_limit()))
        except OSError as error:
            _warn(str(error))
            return None
        reduction.ForkingPickler.register(torch.Tensor, _reduce)
        util.Finalize(None, _windrow._close_pool, (_is_forked(),), exitpriority=_EXIT_PRIORITY)
    return Pool(limit)


def deliver(batch: Any, caller: Any) -> Any:
    """The result of a collator as its caller gets it: in a worker process a message, if the caller only sends it, else with its
    tensors in the pool; elsewhere, for callers within windrow, without tensors and without a pool, as it is."""
    if not in_worker_process() or str(caller.f_globals.get("__name__")).startswith("windrow."):
        return batch
    own = pool(None)
    if own is None or not tensors_of(batch):
        return batch
    return own.message(batch) if is_fetcher(caller) else map_tensors(batch, own.moved)


def _is_forked() -> bool:
    """Whether this process was forked by the one that reads, which will find the pool again where it forks the next worker."""
    own = getattr(multiprocessing.current_process(), "_start_method", None)
    return (own or multiprocessing.get_start_method()) == "fork"


def _warn(reason: str) -> None:
    """Logs why batches go torch's way: the first reason in this process alone."""
    global _has_warned
    if not _has_warned:
        _log.warning("batches of this worker process go torch's way, in new shared memory: %s", reason)
        _has_warned = True


def _reduce(tensor: torch.Tensor) -> Any:
    """A tensor that is sent by itself: one of this worker's pool as a message, any other as torch does."""
    parcel = _windrow._Parcel()
    sent = None if parcel.add(tensor, False) is None else parcel.send(0)
    return _reduce_by_torch(tensor) if sent is None else (receive_one, (sent.take(), _file()))


def _file() -> Any:
    """An object that gives a reader the pool's descriptor once; None if the reader opens it by itself, or it cannot be given."""
    file = _windrow._pool_file()
    return None if file is None else _offer(file, os.getpid())


@functools.lru_cache(maxsize=1)
def _offer(file: int, process: int) -> Any:
    """A descriptor as multiprocessing hands it to another process, made once for each; None if it cannot."""
    try:
        return reduction.DupFd(file)
    except OSError:
        return None


def default_limit() -> int:
    """The bytes for pools that this process may use, divided among the workers of its loader."""
    worker = torch.utils.data.get_worker_info()
    return pool_bytes() // max(1, worker.num_workers if worker else 1)


# --------------------------------------------------------------------------------------------------- the other side

_arriving = threading.local()


def receive(message: bytes, file: Any, tree: bytes, others: bytes) -> Any:
    """A batch from its message, with tensors that came torch's way among `others`."""
    before = getattr(_arriving, "found", None)
    tensors = _windrow._receive(message, file)
    _arriving.found = tensors, pickle.loads(others) if others else []
    try:
        return pickle.loads(tree)
    finally:
        _arriving.found = before


def receive_one(message: bytes, file: Any) -> torch.Tensor:
    """A tensor from its message."""
    tensor: torch.Tensor = _windrow._receive(message, file)[0]
    return tensor


def empty_with(collator: Any) -> None:
    """Gives back the memory of workers that have ended when a collator dies: until then the next ones may take it over."""
    if is_available():
        weakref.finalize(collator, _windrow._empty_pools).atexit = False


def _tensor(position: int) -> torch.Tensor:
    """One of the tensors of the batch that is being read."""
    tensor: torch.Tensor = _arriving.found[0][position]
    return tensor


def _other(position: int) -> torch.Tensor:
    """One of those that came torch's way."""
    tensor: torch.Tensor = _arriving.found[1][position]
    return tensor
