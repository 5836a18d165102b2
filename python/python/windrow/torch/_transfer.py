"""Batches to a device: staged in page-locked memory, copied on a stream of their own, handed over by an event."""

from __future__ import annotations

import collections
import collections.abc
import copy
import logging
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch.nn.utils.rnn import PackedSequence

import windrow as wr
from windrow import _nodes, _windrow
from windrow._like import mapping_like, mapping_template, sequence_like, sequence_model
from windrow._windrow import _has_tangent, _relax_captures
from windrow.torch._shared import in_worker_process

# Tensors below this go up in one copy, into memory that they share on the device. One alone is not staged: the driver
# takes pageable copies of this size into its command buffer and returns at once.
MIN_STAGED_BYTES = 64 << 10
_ALIGN = 256
# The methods that give the dense tensors of those that are made of several.
_COMPONENTS: Dict[Any, Tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    **dict.fromkeys((torch.sparse_csr, torch.sparse_bsr), ("crow_indices", "col_indices", "values")),
    **dict.fromkeys((torch.sparse_csc, torch.sparse_bsc), ("ccol_indices", "row_indices", "values")),
    getattr(torch, "jagged", None): ("values", "offsets", "lengths"),
}

_log = logging.getLogger("windrow")
_has_warned = False


def map_tensors(tree: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The tree with `function` applied to every tensor. Containers are copies as `windrow.collate` makes them, which share their other
    attributes with the tree's; mappings that cannot change, or whose copies may share their entries, become dicts. The rest is passed on."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    mapped = _nodes.map_object(tree, lambda child: map_tensors(child, function))
    if mapped is not None:
        return mapped
    if isinstance(tree, PackedSequence):
        # Its batch sizes are on the host wherever its data is.
        data, orders = map_tensors(tree.data, function), (tree.sorted_indices, tree.unsorted_indices)
        return type(tree)(data, tree.batch_sizes, *(map_tensors(order, function) for order in orders))
    if type(tree) in (collections.deque, collections.UserList):  # A copy of a subclass may need arguments.
        moved = copy.copy(tree)
        for index, item in enumerate(tree):
            moved[index] = map_tensors(item, function)
        return moved
    if isinstance(tree, (list, tuple)):
        entries = [map_tensors(item, function) for item in tree]
        if type(tree) is list:
            return entries
        return tuple(entries) if type(tree) is tuple else sequence_like(sequence_model(tree), entries, is_apart=False)
    if isinstance(tree, collections.abc.Mapping):
        items = {key: map_tensors(item, function) for key, item in tree.items()}
        if isinstance(tree, dict):
            return items if type(tree) is dict else mapping_like(tree, items, is_apart=False)
        model = mapping_template(tree, list(items), "")
        return items if isinstance(model, type) or type(model) is dict else mapping_like(model, items)
    return tree


def tensors_of(tree: Any) -> List[torch.Tensor]:
    """All tensors of a tree."""
    found: List[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(tree, keep)
    return found


def bytes_of(tensor: torch.Tensor) -> int:
    """Bytes of the elements; 0 for a tensor that has no such memory."""
    return tensor.numel() * tensor.element_size() if tensor.layout == torch.strided else 0


def components(tensor: torch.Tensor) -> List[torch.Tensor]:
    """The dense tensors whose memory a tensor has: several for a sparse or nested one, else itself."""
    names = ("values",) if tensor.is_nested and tensor.layout == torch.strided else _COMPONENTS.get(tensor.layout, ())
    found = (getattr(tensor, name)() for name in names)
    return [part for part in found if part is not None] if names else [tensor]


class Started(NamedTuple):
    """A batch on its way: the tree on the device, the tensors there that copies fill, and the event behind the copies, None on
    the host."""

    tree: Any
    tensors: Tuple[torch.Tensor, ...]
    event: Any


class HostTransfer:
    """Nowhere: for batches that stay on the host."""

    def begin(self) -> None:
        """Does nothing; a transfer is called here once on the thread that makes batches."""

    def start(self, tree: Any) -> Started:
        """Returns the tree itself; called on the thread that makes batches."""
        return Started(tree, (), None)

    def finish(self, started: Started) -> Any:
        """Returns the tree itself; called on the thread that uses batches."""
        return started.tree


class _Slot:
    """One piece of page-locked memory, and the event behind which it is free."""

    def __init__(self) -> None:
        self.memory: Optional[torch.Tensor] = None
        self.event: Any = None
        # Sources of copies under way.
        self.sources: List[torch.Tensor] = []


class CudaTransfer:
    """Transfer to a CUDA device: one page-locked block and one copy for all small tensors of a batch, and a copy for each large one. Large ones of
    worker processes are copied from the blocks that they are in, which are kept until that is done.

    Device memory is allocated on the transfer's stream, and a tensor handed over is recorded on the
    consumer's current one: torch gives its memory to later batches only when what the consumer had
    enqueued there, up to releasing it, is done.

    Args:
        device: with its index.
        depth: batches that may be under way.
        cuda: ``torch.cuda``, or a stand-in.
    """

    def __init__(self, device: torch.device, depth: int, cuda: Any = torch.cuda) -> None:
        self._device = device
        self._cuda = cuda
        self._stream = cuda.Stream(device=device)
        self._slots = [_Slot() for _ in range(depth)]
        self._turn = 0

    def begin(self) -> None:
        """Lets the thread make CUDA calls while another one captures a graph: those of torch too, such as waits for events."""
        _relax_captures()

    def start(self, tree: Any) -> Started:
        """Enqueues the copies of a batch; waits until the slot it takes is free."""
        slot = self._slots[self._turn]
        self._turn = (self._turn + 1) % len(self._slots)
        if slot.event is not None:
            slot.event.synchronize()
        slot.sources.clear()
        # Each once, though it may be in several places.
        tensors = {id(tensor): tensor for tensor in tensors_of(tree) if tensor.device != self._device}
        small = [tensor for tensor in tensors.values() if self._is_small(tensor)]
        if len(small) < 2:
            small = []
        large = [tensor for tensor in tensors.values() if self._is_staged(tensor)]
        locked = self._lock(large)
        staged = self._stage(slot, small + [tensor for tensor in large if id(tensor) not in locked])
        moved: List[torch.Tensor] = []
        there: Dict[int, torch.Tensor] = {}

        def upload(source: torch.Tensor) -> torch.Tensor:
            moved.append(self._upload(source))
            return moved[-1]

        def upload_kept(source: torch.Tensor) -> torch.Tensor:
            slot.sources.append(source)
            return upload(source)

        def move(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device == self._device:
                return tensor
            if id(tensor) not in there:
                source = locked.get(id(tensor))
                there[id(tensor)] = upload_kept(staged.get(id(tensor), tensor)) if source is None else upload(source.torch())
            return there[id(tensor)]

        try:
            with self._cuda.stream(self._stream):
                if small and slot.memory is not None:
                    shared = upload_kept(slot.memory[: sum(_rounded(bytes_of(tensor)) for tensor in small)])
                    there.update(zip(map(id, small), _parts(shared, small)))
                tree = map_tensors(tree, move)
        finally:
            # Copies that were enqueued before an error may be under way.
            if locked:
                self._hold(list(locked.values()))
            slot.event = self._cuda.Event()
            slot.event.record(self._stream)
        return Started(tree, tuple(moved), slot.event)

    def finish(self, started: Started) -> Any:
        """Makes the current stream wait for the copies, and records its use of them with the allocator."""
        current = self._cuda.current_stream(self._device)
        current.wait_event(started.event)
        for tensor in started.tensors:
            for part in components(tensor):
                self._record(part, current)
        return started.tree

    def _is_small(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor may be copied together with others."""
        return 0 < bytes_of(tensor) < MIN_STAGED_BYTES and is_plain(tensor)

    def _is_staged(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is large and not page-locked, so that it is copied to page-locked memory first."""
        return bytes_of(tensor) >= MIN_STAGED_BYTES and is_plain(tensor) and not self._is_pinned(tensor)

    def _lock(self, tensors: List[torch.Tensor]) -> Dict[int, wr.Tensor]:
        """Page-locked tensors in place of those that are in blocks of worker processes, by id of these. Warns once if others are left."""
        found = ((id(tensor), self._page_locked(tensor)) for tensor in tensors)
        locked = {key: source for key, source in found if source is not None}
        if len(locked) < len(tensors):
            _warn_once()
        return locked

    def _stage(self, slot: _Slot, sources: List[torch.Tensor]) -> Dict[int, torch.Tensor]:
        """Copies tensors to the slot's page-locked memory, which may be made anew, one behind the other; by id, where each is
        there."""
        nbytes = sum(_rounded(bytes_of(tensor)) for tensor in sources)
        if not nbytes:
            return {}
        if slot.memory is None or slot.memory.numel() < nbytes:
            # A quarter more than asked, so that batches of slightly different sizes fit from then on.
            slot.memory = self._pinned(nbytes + nbytes // 4)
        staged = dict(zip(map(id, sources), _parts(slot.memory, sources)))
        for tensor in sources:
            staged[id(tensor)].copy_(tensor)
        return staged

    # Methods that the tests' stand-in overrides.

    def _page_locked(self, tensor: torch.Tensor) -> Optional[wr.Tensor]:
        """The tensor in page-locked memory, if it is in a block of a worker process that can be page-locked."""
        return _windrow._page_locked(tensor, self._device.index) if hasattr(_windrow, "_page_locked") else None

    def _hold(self, sources: List[wr.Tensor]) -> None:
        """Keeps blocks of worker processes until the copies on the stream are done."""
        _windrow._hold_copies(sources, self._device.index, self._stream.cuda_stream)

    def _pinned(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def _is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def _upload(self, source: torch.Tensor) -> torch.Tensor:
        return source.to(self._device, non_blocking=True)

    def _record(self, tensor: torch.Tensor, stream: Any) -> None:
        tensor.record_stream(stream)


def _warn_once() -> None:
    """Says why memory of worker processes was not page-locked, if it was to be."""
    global _has_warned
    if _has_warned or not hasattr(_windrow, "_page_lock_refusal"):
        return
    reason = _windrow._page_lock_refusal()
    if reason is not None:
        _has_warned = True
        _log.warning("batches of worker processes are copied to page-locked memory before they go to a device: %s", reason)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is the bytes of its elements, row-major on the host, and no more."""
    return (
        tensor.device.type == "cpu"
        and type(tensor) is torch.Tensor
        and not tensor.is_nested
        and not tensor.requires_grad
        and not _has_tangent(tensor)
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg())
    )


def _parts(memory: torch.Tensor, tensors: List[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Tensors like these in bytes of memory, one behind the other, each at a multiple of `_ALIGN`."""
    begin = 0
    for tensor in tensors:
        nbytes = bytes_of(tensor)
        yield memory[begin : begin + nbytes].view(tensor.dtype).view(tensor.shape)
        begin += _rounded(nbytes)


def _rounded(nbytes: int) -> int:
    """Bytes rounded up to a multiple of `_ALIGN`."""
    return -(-nbytes // _ALIGN) * _ALIGN


def transfer_to(device: Any, depth: int) -> Any:
    """The transfer to a device.

    Raises:
        CudaUnavailable: there is no CUDA device, or this is a worker process.
        ValueError: for a device of another kind.
    """
    try:
        device = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must be None, 'cpu' or a CUDA device, got {device!r}") from error
    if device.type == "cpu":
        return HostTransfer()
    if device.type != "cuda":
        raise ValueError(f"device must be None, 'cpu' or a CUDA device, got {str(device)!r}")
    if in_worker_process():
        raise wr.CudaUnavailable(
            f"device={str(device)!r} in a worker process, which must not touch CUDA; move batches in the main process"
        )
    if not torch.cuda.is_available():
        raise wr.CudaUnavailable(f"device={str(device)!r}, but torch sees no CUDA device")
    # The thread that copies has a current device of its own.
    index = torch.cuda.current_device() if device.index is None else device.index
    return CudaTransfer(torch.device("cuda", index), depth)
