"""`Prefetcher`: the next batches are fetched and moved while the current one is used."""

from __future__ import annotations

import atexit
import collections
import contextlib
import contextvars
import threading
import time
import weakref
from typing import Any, Callable, Deque, Iterable, Iterator, List, Optional, Tuple

import torch

from windrow.torch._transfer import Started, bytes_of, tensors_of, transfer_to

# Measured on two cores with one product of 512 x 512 matrices a step: without workers nothing is gained
# below this, and what the hand-over between threads takes, some 0.1 ms a batch, can be lost. Batches of
# 1 MiB gain 7 %, of 8 MiB 17 %; with two workers 27 % and 8 %.
MIN_BYTES = 1 << 20
# How long a loop that is left waits for the batch that is being fetched.
JOIN_SECONDS = 10.0
# How long after a broken connection the signal of a worker's death may come.
SIGNAL_SECONDS = 1.0


class Prefetcher:
    """Iterates over a loader with up to ``depth`` batches fetched, and copied to a device, ahead of use.

    A thread takes batches from the loader. For a CUDA device it stages their tensors in page-locked
    memory, unless they are there already or in blocks of windrow's worker processes, and copies them on a stream of its own; the stream that is
    current where the batch is used waits for them, the host does not. Two or more tensors below 64 KiB
    are copied together; they share one allocation on the device, which exists as long as one of them does. Containers keep their
    type, and anything but a tensor is passed on. Batches come in the order of the loader, and its errors at their place, with their
    traceback. Leaving the loop ends the thread.

    A loader whose first batch is below ``min_bytes`` is read, and its batches moved, without a thread.
    With ``num_workers=0`` the data set runs in the thread, beside the loop, in the loop's modes of gradients, inference and autocast, its
    default device, its current CUDA device and its context variables: random numbers that both draw from one generator come in no fixed
    order. The first batch, whose size decides, is made on the calling thread; with ``min_bytes=0`` it is made in the thread as all others
    are, which objects bound to one thread need, such as connections of ``sqlite3``.

    Args:
        loader: an iterable of batches, such as a ``DataLoader``; iterated anew each time.
        depth (int): batches ahead.
        device: ``None`` or ``"cpu"``: they stay where they are; else a CUDA device.
        min_bytes (int): total size of the tensors of the first batch, in bytes, below which no thread is used; 1 MiB by default.

    Raises:
        CudaUnavailable: when iterated without that device, or in a worker process.
        ValueError: for a ``depth`` below 1 or another kind of device.

    Example:
        >>> import torch, windrow.torch
        >>> [batch.tolist() for batch in windrow.torch.Prefetcher([torch.ones(2), torch.zeros(1)])]
        [[1.0, 1.0], [0.0]]
    """

    def __init__(self, loader: Iterable[Any], depth: int = 2, device: Any = None, *, min_bytes: int = MIN_BYTES) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        self.loader = loader
        self.depth = depth
        self.device = device
        self.min_bytes = min_bytes

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def _transfer(self) -> Any:
        return transfer_to(self.device, self.depth + 1)

    def __iter__(self) -> Iterator[Any]:
        transfer = self._transfer()
        iterator: Optional[Iterator[Any]] = None
        started: Optional[Started] = None
        if self.min_bytes > 0 or getattr(self.loader, "num_workers", 0) != 0:
            # Here, not in the thread: torch watches its workers only for the main thread.
            iterator = iter(self.loader)
            try:
                first = next(iterator)
            except StopIteration:
                return
            if sum(map(bytes_of, tensors_of(first))) < self.min_bytes:
                yield transfer.finish(transfer.start(first))
                del first
                for batch in iterator:
                    yield transfer.finish(transfer.start(batch))
                return
            started = transfer.start(first)
            del first
        fetching = _Fetching(self.loader, iterator, transfer, self.depth)
        del iterator
        try:
            started = started or fetching.take()
            while started is not None:
                # No name of ours holds a batch while it is used elsewhere.
                tree = [transfer.finish(started)]
                started = None
                yield tree.pop()
                started = fetching.take()
        finally:
            fetching.close()


def _modes_here() -> Callable[[Callable[[], None]], None]:
    """A function that runs another one on any thread as if on this one: in its context variables, its modes of gradients and inference,
    its autocast, its default device and its current CUDA device."""
    context, gradients, inference = contextvars.copy_context(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    casts, cached = _autocasts(), torch.is_autocast_cache_enabled()
    default = torch.empty(0).device
    current = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def call(run: Callable[[], None]) -> None:
        with contextlib.ExitStack() as modes:
            modes.enter_context(torch.inference_mode(inference))
            modes.enter_context(torch.set_grad_enabled(gradients))
            for kind, dtype in casts:
                modes.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=cached))
            if current is not None:
                modes.enter_context(torch.cuda.device(current))
            # A mode makes each call of torch slower, and threads begin with this device.
            if default.type != "cpu":
                modes.enter_context(default)
            context.run(run)

    return call


def _autocasts() -> List[Tuple[str, torch.dtype]]:
    """The kinds of devices that autocast is on for on this thread, and its dtypes."""
    if hasattr(torch, "get_autocast_dtype"):
        return [(kind, torch.get_autocast_dtype(kind)) for kind in ("cuda", "cpu", "xpu", "mps") if torch.is_autocast_enabled(kind)]
    # torch before 2.4.
    of_cpu = [("cpu", torch.get_autocast_cpu_dtype())] if torch.is_autocast_cpu_enabled() else []
    return of_cpu + ([("cuda", torch.get_autocast_gpu_dtype())] if torch.is_autocast_enabled() else [])


class _Fetching:
    """A thread that fetches, and a line of at most `depth` batches. It begins the loader itself if `iterator` is None."""

    def __init__(self, loader: Iterable[Any], iterator: Optional[Iterator[Any]], transfer: Any, depth: int) -> None:
        self._loader = loader
        self._iterator = iterator
        self._transfer = transfer
        self._depth = depth
        self._line: Deque[Started] = collections.deque()
        self._error: Optional[BaseException] = None
        self._is_done = False
        self._is_closed = False
        self._changed = threading.Condition()
        self._modes = _modes_here()
        # A daemon, so that a loader that never answers does not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._run, name="windrow-prefetch", daemon=True)
        _alive.add(self)
        self._thread.start()

    def _run(self) -> None:
        """The thread: fetches until the loader ends or fails, or the line is closed; then lets go of the loader."""
        try:
            self._modes(self._fetch)
        except BaseException as error:
            self._error = error
        finally:
            self._iterator = None
            with self._changed:
                self._is_done = True
                self._changed.notify_all()

    def _fetch(self) -> None:
        self._transfer.begin()
        if self._iterator is None:
            self._iterator = iter(self._loader)
        while self._has_room():
            try:
                started = self._transfer.start(next(self._iterator))
            except StopIteration:
                return
            with self._changed:
                self._line.append(started)
                self._changed.notify_all()
            del started

    def _has_room(self) -> bool:
        """Waits until the line has room, or is closed: False."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._line) < self._depth)
            return not self._is_closed

    def take(self) -> Optional[Started]:
        """Waits for the next batch; None after the last. An error comes after the batches before it."""
        with self._changed:
            self._changed.wait_for(lambda: self._line or self._is_done)
            if self._line:
                started = self._line.popleft()
                self._changed.notify_all()
                return started
        error, self._error = self._error, None
        if error is not None:
            if isinstance(error, (ConnectionError, EOFError)):
                # A worker may have died, which torch says in a signal handler of the main thread, a
                # little later, and which would be raised somewhere else.
                time.sleep(SIGNAL_SECONDS)
            try:
                raise error
            finally:
                # The traceback would otherwise hold this frame, and this frame the error.
                del error
        return None

    def close(self) -> None:
        """Drops the line and ends the thread once it has the batch that it is fetching; waits `JOIN_SECONDS` for that at most."""
        with self._changed:
            self._is_closed = True
            self._line.clear()
            self._changed.notify_all()
        # The garbage collector may have brought the thread itself here.
        if self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)
        _alive.discard(self)


_alive: "weakref.WeakSet[_Fetching]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends the threads of loops that were left open."""
    for fetching in list(_alive):
        fetching.close()
