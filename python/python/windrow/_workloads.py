"""The workloads of the benchmark: samples, the batch they must give, who makes it and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

import windrow as wr
from windrow._measure import MEAN, STD, Array, normalised, transform
from windrow._system import cache_bytes, optional

torch = optional("torch")
ndd = optional("nvidia.dali.experimental.dynamic")

Contender = Callable[["Samples"], Any]


@dataclass
class Samples:
    """One list of samples, as arrays and, in the same memory, as torch tensors."""

    arrays: List[Array]
    tensors: List[Any]

    @property
    def best(self) -> Sequence[Any]:
        """What windrow is given: torch tensors, where torch is installed."""
        return self.tensors or self.arrays


@dataclass
class Target:
    """A ratio that the project asks of itself: the fastest of `peers` against `ours`."""

    ours: str
    peers: Tuple[str, ...]
    at_least: float


@dataclass
class Workload:
    """Samples, contenders, expected values. Contenders give one tensor or a tuple of them."""

    name: str
    title: str
    sets: List[Samples]
    expected: Callable[[Samples], Tuple[Array, ...]]
    contenders: Dict[str, Contender]
    bytes_moved: int
    targets: List[Target]
    tolerance: float = 0.0
    # Why a contender is not there.
    absent: Dict[str, str] = field(default_factory=dict)


MEMCPY = "memcpy"
"""The contender that copies as many bytes as were moved, in one block."""


# Samples


def scattered(shapes: Sequence[Tuple[int, ...]], dtype: str, rng: np.random.Generator) -> Samples:
    """Samples of random data, each in memory of its own, allocated in another order than they are listed."""
    slots: List[Tuple[Any, Any]] = [(None, None)] * len(shapes)
    sizes = np.array([int(np.prod(shape)) for shape in shapes])
    itemsize = np.dtype(dtype).itemsize
    noise = rng.integers(0, 256, int(sizes.sum()) * itemsize, np.uint8)
    if dtype.startswith("float"):
        noise = rng.random(int(sizes.sum()), np.float32).astype(dtype).view(np.uint8)
    ends = np.cumsum(sizes) * itemsize
    for i in rng.permutation(len(shapes)):
        tensor = torch.empty(shapes[i], dtype=getattr(torch, dtype)) if torch else None
        array = np.empty(shapes[i], dtype) if tensor is None else tensor.numpy()
        array.reshape(-1).view(np.uint8)[:] = noise[ends[i] - sizes[i] * itemsize : ends[i]]
        slots[i] = (array, tensor)
    arrays, tensors = [list(column) for column in zip(*slots)]
    return Samples(arrays, tensors if torch else [])


def sets_of(make: Callable[[], Samples], warm: bool) -> List[Samples]:
    """Lists that take turns: so many that the next one is in no cache; just one if `warm`."""
    sets = [make()]
    one = sum(array.nbytes for array in sets[0].arrays)
    return sets + [make() for _ in range(0 if warm else max(1, min(63, 2 * cache_bytes() // one)))]


def bytes_moved(sets: List[Samples], expected: Callable[[Samples], Tuple[Array, ...]]) -> int:
    """Bytes read plus bytes written for one batch."""
    arrays = [*sets[0].arrays, *expected(sets[0])]
    return sum(int(array.nbytes) for array in arrays)


# Equal shapes


def stacks(name: str, title: str, shape: Tuple[int, ...], count: int, dtype: str, targets: List[Target], warm: bool) -> Workload:
    """Samples of equal shape to one array, everyone's two ways."""
    rng = np.random.default_rng(1)
    sets = sets_of(lambda: scattered([shape] * count, dtype, rng), warm)
    out = np.empty((count, *shape), dtype)
    contenders: Dict[str, Contender] = {
        "windrow": lambda s: wr.stack(s.best),
        "windrow, out=": lambda s: (wr.stack(s.best, out=out), out)[1],
        "windrow, NumPy samples": lambda s: wr.stack(s.arrays),
        "np.stack": lambda s: np.stack(s.arrays),
        "np.stack(out=)": lambda s: np.stack(s.arrays, out=out),
    }
    absent = {}
    if torch:
        target = torch.from_numpy(out)
        contenders["torch.stack"] = lambda s: torch.stack(s.tensors)
        contenders["torch.stack(out=)"] = lambda s: torch.stack(s.tensors, out=target)
    else:
        absent["torch"] = "torch is not installed"
    if ndd:
        contenders["DALI as_batch"] = lambda s: ndd.as_tensor(ndd.as_batch(s.arrays, device="cpu")).evaluate()
    else:
        absent["DALI"] = "nvidia.dali with its dynamic API is not installed or does not load here"
    if name == "rows100k":
        # The import is paid for once, in a data set that stays: a batch is then an index array.
        lists = {id(s): wr.SampleList(s.best) for s in sets}
        every = np.arange(count)
        contenders["windrow, SampleList.take"] = lambda s: wr.stack(lists[id(s)].take(every))
    expected: Callable[[Samples], Tuple[Array, ...]] = lambda s: (np.stack(s.arrays),)
    moved = bytes_moved(sets, expected)
    return Workload(name, title, sets, expected, contenders, moved, targets, absent=absent)


def images(warm: bool) -> Workload:
    targets = [
        Target("windrow, out=", ("torch.stack(out=)", "np.stack(out=)", "DALI as_batch"), 1.0),
        Target("windrow", ("torch.stack", "np.stack", "DALI as_batch"), 1.0),
        Target("windrow, out=", (MEMCPY,), 0.85),
    ]
    return stacks("images", "stack 256 x (224, 224, 3) uint8", (224, 224, 3), 256, "uint8", targets, warm)


def rows100k(warm: bool) -> Workload:
    targets = [Target("windrow", ("torch.stack", "np.stack"), 3.0)]
    return stacks("rows100k", "stack 100 000 x 128 float32", (128,), 100_000, "float32", targets, warm)


def rows4k(warm: bool) -> Workload:
    targets = [Target("windrow", ("torch.stack", "np.stack"), 3.0)]
    return stacks("rows4k", "stack 4096 x 128 float32", (128,), 4096, "float32", targets, warm)


def large(kib: int) -> Callable[[bool], Workload]:
    def make(warm: bool) -> Workload:
        targets = [Target("windrow, out=", (MEMCPY,), 0.85), Target("windrow", (MEMCPY,), 0.85)]
        title = f"stack {65536 // kib} x {kib} KiB"
        return stacks(f"large{kib}", title, (kib << 10,), 65536 // kib, "uint8", targets, warm)

    return make


# Images to normalised CHW


def normalise(dtype: str) -> Callable[[bool], Workload]:
    def make(warm: bool) -> Workload:
        rng = np.random.default_rng(2)
        sets = sets_of(lambda: scattered([(224, 224, 3)] * 256, "uint8", rng), warm)
        contenders: Dict[str, Contender] = {
            "windrow": lambda s: wr.stack(s.best, dtype=dtype, transform=transform()),
            "NumPy eager": lambda s: numpy_normalised(s.arrays, dtype),
        }
        absent = {}
        if torch:
            contenders["torch eager"] = lambda s: torch_normalised(s.tensors, dtype)
            contenders["torch eager, contiguous"] = lambda s: torch_normalised(s.tensors, dtype).contiguous()
        else:
            absent["torch"] = "torch is not installed"
        if ndd:
            contenders["DALI crop_mirror_normalize"] = lambda s: dali_normalised(s.arrays, dtype)
        else:
            absent["DALI"] = "nvidia.dali with its dynamic API is not installed or does not load here"
        expected: Callable[[Samples], Tuple[Array, ...]] = lambda s: (np.stack(normalised(s.arrays, dtype)),)
        title = f"normalise 256 x (224, 224, 3) uint8 to {dtype} CHW"
        targets = [Target("windrow", ("torch eager",), 4.0)]
        moved = bytes_moved(sets, expected)
        return Workload(f"normalise-{dtype}", title, sets, expected, contenders, moved, targets, 3e-3, absent)

    return make


def numpy_normalised(arrays: List[Array], dtype: str) -> Array:
    batch = np.divide(np.stack(arrays).transpose(0, 3, 1, 2), np.float32(255), dtype=np.float32)
    mean, std = (np.array(values, np.float32).reshape(3, 1, 1) for values in (MEAN, STD))
    return ((batch - mean) / std).astype(dtype, copy=False)


def torch_normalised(tensors: List[Any], dtype: str) -> Any:
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    batch = torch.stack(tensors).permute(0, 3, 1, 2)
    return ((batch / 255 - mean) / std).to(getattr(torch, dtype))


def dali_normalised(arrays: List[Array], dtype: str) -> Any:
    batch = ndd.as_batch(arrays, layout="HWC", device="cpu")
    mean, std = ([value * 255 for value in values] for values in (MEAN, STD))
    batch = ndd.crop_mirror_normalize(batch, dtype=getattr(ndd, dtype), output_layout="CHW", mean=mean, std=std)
    return ndd.as_tensor(batch).evaluate()


# Unequal lengths


def tokens(warm: bool) -> Workload:
    rng = np.random.default_rng(3)
    lengths = [int(n) for n in rng.integers(16, 2049, 4096)]
    sets = sets_of(lambda: scattered([(n,) for n in lengths], "int32", rng), warm)

    def expected(s: Samples) -> Tuple[Array, ...]:
        data = np.zeros((len(s.arrays), max(map(len, s.arrays))), np.int64)
        mask = np.zeros(data.shape, bool)
        for i, row in enumerate(s.arrays):
            data[i, : len(row)], mask[i, : len(row)] = row, True
        return data, mask

    def by_torch(s: Samples) -> Tuple[Any, Any]:
        sizes = torch.tensor([len(row) for row in s.tensors])
        data = torch.nn.utils.rnn.pad_sequence(s.tensors, batch_first=True).to(torch.int64)
        return data, torch.arange(data.shape[1]) < sizes[:, None]

    def by_windrow(s: Samples) -> Tuple[Any, Any]:
        batch = wr.pad(s.best, dtype="int64", mask="real")
        return batch.data, batch.mask

    contenders: Dict[str, Contender] = {"windrow": by_windrow, "NumPy loop": expected}
    absent = {}
    if torch:
        contenders["pad_sequence, cast, mask"] = by_torch
    else:
        absent["torch"] = "torch is not installed"
    targets = [Target("windrow", ("pad_sequence, cast, mask",), 2.0)]
    title = "pad 4096 int32 rows of 16..2048 to int64, mask"
    return Workload("tokens", title, sets, expected, contenders, bytes_moved(sets, expected), targets, absent=absent)


def audio(warm: bool) -> Workload:
    rng = np.random.default_rng(4)
    lengths = [int(n) for n in rng.integers(8000, 64001, 512)]
    sets = sets_of(lambda: scattered([(n,) for n in lengths], "float32", rng), warm)

    def expected(s: Samples) -> Tuple[Array, ...]:
        offsets = np.zeros(len(s.arrays) + 1, np.int64)
        np.cumsum([len(clip) for clip in s.arrays], out=offsets[1:])
        return np.concatenate(s.arrays), offsets

    def by_torch(s: Samples) -> Tuple[Any, Any]:
        sizes = torch.tensor([0, *(len(clip) for clip in s.tensors)])
        return torch.cat(s.tensors), torch.cumsum(sizes, 0)

    def by_windrow(s: Samples) -> Tuple[Any, Any]:
        batch = wr.ragged(s.best)
        return batch.data, batch.offsets

    contenders: Dict[str, Contender] = {"windrow": by_windrow, "np.concatenate, offsets": expected}
    absent = {}
    if torch:
        contenders["torch.cat, offsets"] = by_torch
    else:
        absent["torch"] = "torch is not installed"
    targets = [Target("windrow", ("torch.cat, offsets",), 1.5)]
    title = "ragged 512 float32 clips of 8000..64000"
    return Workload("audio", title, sets, expected, contenders, bytes_moved(sets, expected), targets, absent=absent)


WORKLOADS: Dict[str, Callable[[bool], Workload]] = {
    "images": images,
    "rows100k": rows100k,
    "rows4k": rows4k,
    "normalise-float16": normalise("float16"),
    "normalise-float32": normalise("float32"),
    "tokens": tokens,
    "audio": audio,
    "large64": large(64),
    "large256": large(256),
    "large1024": large(1024),
}
