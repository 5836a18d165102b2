"""`collate_fn`: default_collate's results, assembled by windrow."""

from __future__ import annotations

import collections.abc
import copy
import pickle
import sys
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Tuple

import torch
import torch.utils.data

import windrow as wr
from windrow import _windrow
from windrow.plan import by_position, int_of
from windrow.torch import _registry, _workers
from windrow.torch._shared import in_worker_process, share, share_bytes, view
from windrow.torch._transfer import map_tensors

if TYPE_CHECKING:
    from windrow._windrow import _Device, _Specs

# Samples that stay separate begin at multiples of this.
_PART_ALIGN = 64
# torch's functions behave otherwise under these, so that they are left to work.
_function_modes = getattr(torch._C, "_len_torch_function_stack", lambda: 0)
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


class TorchBatch(NamedTuple):
    """A leaf that was padded, joined, packed or quantised: the fields of a `windrow.Batch` as torch tensors.

    Those that do not apply are None. It is pickled, pinned and moved as any namedtuple is. ``torch.load`` refuses its class by
    default: save ``batch._asdict()``, of which ``TorchBatch(**saved)`` makes it again.
    """

    data: torch.Tensor
    lengths: Optional[torch.Tensor] = None
    offsets: Optional[torch.Tensor] = None
    mask: Optional[torch.Tensor] = None
    batch_index: Optional[torch.Tensor] = None
    max_length: Optional[int] = None
    scales: Optional[torch.Tensor] = None


def collate_fn(
    spec: Optional[_Specs] = None,
    device: Optional[_Device] = None,
    *,
    sep: str = ".",
    threads: Optional[int] = None,
    arena: bool = False,
    workers_memory: Optional[int] = None,
) -> "Collator":
    """A ``collate_fn`` for ``DataLoader`` that returns what ``default_collate`` returns, sooner.

    Leaves that ``spec`` names are assembled as it says. In a worker process batches are
    written straight into shared memory, on Linux of a pool that is used again: docs/recipes/torch.md says how, and what
    ``is_shared()`` is then. Tensors below 64 KiB of one batch are in one segment.

    Classes: TensorDict and tensorclass are stacked as ``torch.stack`` stacks them. Graphs of PyTorch Geometric are joined to a
    ``Batch`` and classes of `windrow.register_node` keep their class, though ``default_collate`` refuses both. Dataclasses, attrs
    and pydantic classes and PyTrees are refused as there without a spec; with one, even ``{}``, they are containers, as in
    `windrow.collate`. An Arrow table in place of the list is the list of its rows, a dict of its columns. A `windrow.SampleList` of trees,
    or `take` of one, gives torch tensors in the containers that `windrow.collate` gives, without an object for each sample; `windrow.Tensor`,
    which its items hold, is stacked as a torch tensor. A mapping gets its entries by `update` of the first sample's copy, as in
    ``default_collate``, which in a Counter adds the first sample's counts to all; `windrow.collate` gives the counts themselves.
    A key of the first sample that another mapping makes up, as a defaultdict does, goes into the batch and stays in that sample, as by
    ``default_collate``; `windrow.collate` raises a KeyError and leaves the samples as they are.

    Args:
        spec: as for `windrow.collate`: leaf path, with globs, to `windrow.Pad` and the
            like, or one of them for all leaves. A leaf so named becomes a `TorchBatch` of tensors, or a tensor if it is stacked.
        device: device to place tensors on; None: where the samples are. ``"cuda"`` and ``"pinned"`` are
            for the main process and workers that are threads: in a worker process, leave it to
            `Prefetcher`.
        sep: joins the keys of a path.
        threads: for large batches; None: one in a worker process, else as many as there are cores.
        workers_memory: bytes of shared memory that a worker process may keep and use again for its batches; None: half of the memory
            of the machine or of its control group, or an eighth of the addresses that ``ulimit -v`` allows, if that is less, divided
            among the workers; 0: none, and new memory for each batch. Behind the limit batches are in new memory too.
        arena: all tensors that windrow assembles, with their lengths, offsets and masks, in one
            allocation, as in `windrow.collate`; in a worker process in one shared segment. A reference to any of them keeps the whole allocation alive.

    Returns:
        Collator: a callable that pickles.

    Raises:
        CudaUnavailable: when called in a worker process with a ``device`` other than the CPU.
        TypeError: for a mapping or text in place of the list of samples; a TensorDict there is the batch if there is no spec.
        RuntimeError, TypeError, KeyError, ...: those of ``default_collate``; their ``__cause__`` names sample and
            leaf. Leaves with a spec, a `SampleList` and an Arrow table raise the errors of windrow, LayoutError among them for samples that
            require grad while torch's grad mode is on, or have a tangent of forward-mode AD: without a spec
            these keep their gradients. A `SampleList` looks at its samples when it is made.

    Example:
        >>> import torch, windrow as wr, windrow.torch
        >>> collate = windrow.torch.collate_fn({"ids": wr.Pad(value=-1, mask="real")})
        >>> batch = collate([{"ids": torch.tensor([1, 2]), "y": 0.5}, {"ids": torch.tensor([3]), "y": 1.5}])
        >>> batch["ids"].data.tolist(), batch["ids"].lengths.tolist(), batch["y"].tolist()
        ([[1, 2], [3, -1]], [2, 1], [0.5, 1.5])
    """
    return Collator(spec, device, sep, threads, arena, workers_memory)


class Collator:
    """The function that `collate_fn` returns. Holds arguments only; all else is made where it is used."""

    def __init__(
        self,
        spec: Any,
        device: Any,
        sep: str,
        threads: Optional[int] = None,
        arena: bool = False,
        workers_memory: Optional[int] = None,
    ) -> None:
        if threads is not None:
            wr.Engine(threads=threads)  # Validates `threads` now.
        self.spec = spec
        self.device = None if device is None else str(device)
        self.sep = sep
        self.threads = threads
        self.arena = arena
        self.workers_memory = None if workers_memory is None else int_of("workers_memory", workers_memory, 0)
        self._torch_collate = _registry.find()
        self._rules: Dict[bool, Rules] = {}
        _workers.empty_with(self)

    def __call__(self, batch: Any) -> Any:
        """Collates a list of samples, a `windrow.SampleList` or an Arrow table."""
        in_worker = in_worker_process()
        if not in_worker and self.spec is None and type(batch) is list and batch:
            first, known = batch[0], self._torch_collate.default_collate_fn_map
            if known.get(type(first)) is self._torch_collate.collate_str_fn:
                return batch
            # With more leaves the compiled walk takes no longer than torch's.
            leaf = next(iter(first.values())) if type(first) is dict and len(first) == 1 else first
            is_text = known.get(type(leaf)) is self._torch_collate.collate_str_fn
            if is_text or (isinstance(leaf, torch.Tensor) and self._is_for_torch(leaf)):
                try:
                    return self._torch_collate.collate(batch, collate_fn_map=known)
                except Exception:
                    pass  # The compiled walk says what is wrong, and with which sample.
        batch = self._collate(batch, in_worker)
        pool = self._rules[in_worker].pool if in_worker else None
        if pool is not None and _workers.is_fetcher(sys._getframe(1)):
            return pool.message(batch)
        return batch

    def _collate(self, batch: Any, in_worker: bool) -> Any:
        """The batch, by the rules of this kind of process."""
        rules = self._rules.get(in_worker)
        if rules is None or not rules.is_current():
            rules = self._rules[in_worker] = Rules(self, in_worker)
        by_torch = self.spec is None and is_watched()
        if type(batch) not in (list, tuple, wr.SampleList) and not _windrow._is_arrow(batch):
            listed = by_position(batch)
            if listed is not batch:
                return self._collate(listed, in_worker)
            if self.spec is None and rules.classify(batch) == _registry.STACKED:
                # A dataset that reads a batch at once returns the batch itself, as tensordict does.
                return rules.other(batch)
            _windrow._check_list(batch)
            if self.spec is None and not isinstance(batch, (list, tuple)):
                return rules.other(batch)
        return _windrow._collate_torch(batch, rules, self.spec, sep=self.sep, by_torch=by_torch, **rules.common)

    def _is_for_torch(self, sample: torch.Tensor) -> bool:
        """Whether torch's function makes a batch of such samples: of those that keep gradients, and of subclasses; never with a device."""
        cls, function = type(sample), self._torch_collate.collate_tensor_fn
        if self.device is not None or self._torch_collate.default_collate_fn_map.get(torch.Tensor) is not function:
            return False
        is_plain = cls is torch.Tensor or _registry.is_memmap(cls)
        return not is_plain or (sample.requires_grad and torch.is_grad_enabled())

    def __repr__(self) -> str:
        arguments = [f"{name}={value!r}" for name, value in self.__getstate__().items() if value is not None and value is not False]
        return f"collate_fn({', '.join(arguments)})"

    def __getstate__(self) -> Dict[str, Any]:
        return {name: getattr(self, name) for name in ("spec", "device", "sep", "threads", "arena", "workers_memory")}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        specs = self.spec if isinstance(self.spec, dict) else {"*": self.spec}
        for pattern, spec in specs.items():
            for name, value in getattr(spec, "kwargs", {}).items():
                try:
                    pickle.dumps(value)
                except MemoryError:
                    raise
                except Exception as error:
                    raise pickle.PicklingError(
                        f"spec of {pattern!r}: {name}={value!r} does not pickle ({error}), and workers that "
                        "are spawned get the spec that way; leave it out of the spec"
                    ) from error
        return super().__reduce_ex__(protocol)


class Rules:
    """The parts of torch that the compiled walk needs, for one collator in one kind of process. CudaUnavailable for another device than the
    CPU in a worker process."""

    def __init__(self, collator: Collator, in_worker: bool) -> None:
        device = collator.device
        if in_worker and device is not None and torch.device(_torch_device(device)).type != "cpu":
            raise wr.CudaUnavailable(
                f"device={device!r} in a worker process, which must not touch CUDA; leave device out of "
                "collate_fn() and give it to windrow.torch.Prefetcher(loader, device=...)"
            )
        self._module = _registry.find()
        self._types = types()
        self.codes = self._types.codes
        self.classify = self._types.classify
        self.arena = collator.arena
        self.pool = _workers.pool(collator.workers_memory) if in_worker else None
        self.allocate = self._allocator() if in_worker else None
        self._device = device
        self.common: Dict[str, Any] = {}
        if device is not None:
            self.common["device"] = device
        threads = collator.threads or (1 if in_worker else None)
        if threads is not None:
            self.common["engine"] = wr.Engine(threads=threads)

    def _allocator(self) -> Any:
        """The function that gives a worker process memory for batches, of its pool or of torch."""
        if self.pool is not None:
            return self.pool.allocate_bytes if self.arena else self.pool.allocate
        return share_bytes if self.arena else share

    def is_current(self) -> bool:
        """Whether the tables of classes are still those this was made for."""
        return self._types.is_current()

    def other(self, column: Any) -> Any:
        """A column that is not for the engine, by torch's functions."""
        if isinstance(column[0], wr.Tensor):
            column = [item.torch() if isinstance(item, wr.Tensor) else item for item in column]
        result = _scalars(column)
        if result is None:
            result = self._module.collate(column, collate_fn_map=self._types.table)
        device = self._device
        if device is None:
            return result
        return map_tensors(result, lambda tensor: to_device(tensor, device))

    def joined(self, column: List[Any], form: str, options: Dict[str, Any]) -> Any:
        """A leaf of a graph, by torch's functions if one of its tensors keeps gradients; else None."""
        tensors = [tensor for tensor in column if isinstance(tensor, torch.Tensor)]
        if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors) or any(map(_windrow._has_tangent, tensors))):
            return None
        dim = options.get("dim")
        data = torch.stack(column) if dim is None else torch.cat(column, dim)
        if self._device is not None:
            data = to_device(data, self._device)
        if dim is None:
            return data
        lengths = torch.tensor([tensor.shape[dim] for tensor in column])
        return TorchBatch(data, lengths, torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))

    def mapping(self, first: Any, children: Dict[Any, Any]) -> Any:
        """A mapping like the first sample's, by torch's rules; the children themselves, if its class does not take them."""
        try:
            if isinstance(first, collections.abc.MutableMapping):
                clone = copy.copy(first)
                clone.update(children)
                return clone
            return type(first)(children)
        except TypeError:
            return children

    def named(self, cls: Any, children: List[Any]) -> Any:
        """A namedtuple."""
        return cls(*children)

    def sequence(self, first: Any, children: List[Any]) -> Any:
        """A sequence like the first sample's, by torch's rules; the children themselves, if its class does not take them."""
        try:
            if isinstance(first, collections.abc.MutableSequence):
                clone = copy.copy(first)
                for index, child in enumerate(children):
                    clone[index] = child
                return clone
            return type(first)(children)
        except TypeError:
            return children

    def allocate_parts(self, outputs: List[Tuple[str, Tuple[int, ...]]], part_bytes: List[Optional[int]]) -> List[Any]:
        """Memory for these dtypes and shapes; outputs with a number of bytes, of samples that stay separate, are in one segment."""
        assert self.allocate is not None
        parts, end = [], 0
        for (dtype, shape), nbytes in zip(outputs, part_bytes):
            if nbytes is not None:
                parts.append((dtype, shape, end))
                end += -(-nbytes // _PART_ALIGN) * _PART_ALIGN
        whole = [output for output, nbytes in zip(outputs, part_bytes) if nbytes is None]
        *tensors, segment = self.allocate([*whole, ("uint8", (end,))])
        places: List[Any]
        if isinstance(segment, wr.Tensor):
            places = list(_windrow._parts(segment, parts, end, "buffer"))
        else:
            start = int(segment.storage_offset())
            places = [view(segment, dtype, shape, start + offset) for dtype, shape, offset in parts]
        of_kind = iter(tensors), iter(places)
        return [next(of_kind[nbytes is not None]) for nbytes in part_bytes]

    def fields(self, data: torch.Tensor, batch: wr.Batch) -> TorchBatch:
        """A leaf that has more than its data."""
        def torch_of(field: Optional[wr.Tensor]) -> Optional[torch.Tensor]:
            return None if field is None else field.torch()

        return TorchBatch(
            data,
            torch_of(batch.lengths),
            torch_of(batch.offsets),
            torch_of(batch.mask),
            torch_of(batch.batch_index),
            batch.max_length,
            torch_of(batch.scales),
        )

    def views(self, batch: wr.Batch, segment: Optional[torch.Tensor]) -> Any:
        """A leaf in an arena: in this segment, or in memory of windrow's."""
        layout = batch.arena_layout
        assert layout is not None
        if segment is None:
            return self.fields(batch.torch(), batch) if len(layout) > 1 else batch.torch()
        tensors = {name: view(segment, *place) for name, place in layout.items()}
        return TorchBatch(**tensors, max_length=batch.max_length) if len(tensors) > 1 else tensors["data"]


_types: Optional[_registry.Types] = None
# Functions of ours in torch's table, to those that they stand for.
replaced: Dict[_registry.CollateFn, _registry.CollateFn] = {}


def types() -> _registry.Types:
    """The codes of types by torch's table as it is."""
    global _types
    known = _types
    if known is None or not known.is_current():
        _types = known = _registry.Types(_registry.find().default_collate_fn_map, replaced)
    return known


def is_watched() -> bool:
    """Whether torch's functions do something of their own now, or more than they say."""
    return bool(_function_modes() or _dispatch_modes() or torch.is_inference_mode_enabled())


def _scalars(column: Any) -> Optional[torch.Tensor]:
    """NumPy scalars of one type as a tensor, since torch reads them one by one; None for any other column."""
    np = _registry.numpy()
    if np is None or not isinstance(column[0], (np.number, np.bool_)):
        return None
    if len(set(map(type, column))) > 1 or column[0].dtype.kind not in "biuf" or column[0].dtype.itemsize > 8:
        return None
    if is_watched():
        return None
    return torch.from_numpy(np.array(column))


def _torch_device(device: str) -> str:
    """The device that torch has to have: page-locked memory is CUDA's."""
    return "cuda" if device == "pinned" else device


def to_device(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A tensor that torch made, moved to the device of the others."""
    if device == "pinned":
        return tensor.pin_memory()
    return tensor.to(device)
