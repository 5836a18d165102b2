"""`ToDevice`: a node of a torchdata pipeline. Imported when it is asked for, torchdata with it."""

from __future__ import annotations

import collections
import importlib
from typing import Any, Deque, Dict, Optional, Tuple

from windrow.torch._transfer import Started, transfer_to

_nodes: Any = importlib.import_module("torchdata.nodes")


class ToDevice(_nodes.BaseNode):  # type: ignore[misc]
    """Moves batches to a device, the next ones while the current one is used.

    The last node of a pipeline: the stream that is current where its batches are taken waits for their
    copies. It takes ``depth`` batches ahead of those returned, on the calling thread; its state is
    that of the batch returned last, so that none is lost or repeated when a run is taken up again.

    Args:
        source: a node that gives batches, such as ``Mapper(Batcher(...), windrow.torch.collate_fn())``,
            behind a ``Prefetcher`` of torchdata to fetch them on another thread.
        device: as for `windrow.torch.Prefetcher`.
        depth (int): batches whose copies are under way; 0: each is moved when it is asked for.

    Raises:
        CudaUnavailable, ValueError: as for `windrow.torch.Prefetcher`, when first read from.
    """

    SOURCE_KEY = "source"

    def __init__(self, source: Any, device: Any = None, depth: int = 1) -> None:
        if depth < 0:
            raise ValueError(f"depth must be at least 0, got {depth}")
        super().__init__()
        self.source = source
        self.device = device
        self.depth = depth
        self._transfer: Any = None
        self._line: Deque[Tuple[Started, Dict[str, Any]]] = collections.deque()
        self._state: Optional[Dict[str, Any]] = None
        # Met while fetching ahead; due after the batches before it.
        self._end: Optional[Exception] = None

    def reset(self, initial_state: Optional[Dict[str, Any]] = None) -> None:
        """Starts again, or from a state, like every node's `reset`."""
        super().reset(initial_state)
        self._line.clear()
        self._end = None
        self.source.reset(None if initial_state is None else initial_state[self.SOURCE_KEY])
        self._state = self.source.state_dict()
        if self._transfer is None:
            self._transfer = transfer_to(self.device, self.depth + 1)

    def next(self) -> Any:
        """The next batch, on the device; then, behind all batches before it, the error or the end of the source."""
        while self._end is None and len(self._line) <= self.depth:
            try:
                batch = next(self.source)
                self._line.append((self._transfer.start(batch), self.source.state_dict()))
            except Exception as error:
                self._end = error
        if not self._line:
            end, self._end = self._end, None
            raise end or StopIteration
        started, self._state = self._line.popleft()
        return self._transfer.finish(started)

    def get_state(self) -> Dict[str, Any]:
        """The source's state at the batch that was returned last."""
        return {self.SOURCE_KEY: self._state}
