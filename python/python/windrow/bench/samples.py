"""Samples of random data: each somewhere in memory, or all in one piece, on the host or on a device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import numpy as np

import windrow as wr
from windrow._measure import Array
from windrow._system import cache_bytes, optional
from windrow.bench.clocks import l2_bytes

torch = optional("torch")

LAYOUTS = ("scattered", "contiguous")
"""Each sample in memory of its own, allocated in another order than listed; or one after another in one piece."""

Shape = Tuple[int, ...]


@dataclass(frozen=True)
class Setting:
    """How a workload is run."""

    layout: str = LAYOUTS[0]
    device: str = "cpu"
    # The same samples again and again, so that they are in the caches as far as they fit.
    warm: bool = False
    # Times the number of samples.
    scale: float = 1.0
    # Shows that it works, not how fast: leaves out what takes long to prepare.
    quick: bool = False
    # Whether contenders that are compiled take part.
    compiles: bool = True
    # Threads of windrow, torch and the plain copy; None leaves each its default.
    threads: Optional[int] = None
    engine: Optional[wr.Engine] = None

    @property
    def on_host(self) -> bool:
        return self.device == "cpu"

    def count(self, num_samples: int) -> int:
        """The number of samples, scaled; at least 2."""
        return max(int(num_samples * self.scale), 2)


@dataclass
class Samples:
    """One list of samples: arrays or dicts of arrays on the host, and the same as torch tensors.

    On the host both are the same memory; on a device the arrays are what the tensors are copies of.
    """

    arrays: List[Any]
    tensors: List[Any]
    # The one piece of memory that samples of equal shape are rows of.
    table: Any = None
    # The rows of a larger list that they are.
    indices: Array = None
    # The samples imported, as in a data set that stays: a batch is then an index array.
    listed: Any = None
    # The samples as objects of other libraries, by name, and the functions that make them.
    others: Dict[str, Any] = field(default_factory=dict)
    makers: Dict[str, Callable[["Samples"], Any]] = field(default_factory=dict)

    @property
    def best(self) -> Sequence[Any]:
        """The samples that windrow receives: torch tensors, where torch is installed."""
        return self.tensors or self.arrays

    def converted(self, library: str, convert: Callable[[Any], Any]) -> List[Any]:
        """The samples as those of another library, converted once."""
        found: List[Any] = self.whole(library, lambda samples: [convert(sample) for sample in samples.best])
        return found

    def whole(self, library: str, make: Callable[["Samples"], Any]) -> Any:
        """All samples as one object of another library, made once."""
        if library not in self.others:
            self.makers[library] = make
            self.others[library] = make(self)
        return self.others[library]

    def convert_like(self, other: "Samples") -> None:
        """Has the samples in every form that those of another list were asked for in: that is not for the clock."""
        for library, make in list(other.makers.items()):
            self.whole(library, make)

    @property
    def array_table(self) -> Array:
        """The table as NumPy knows it."""
        return self.table if torch is None else self.table.numpy()

    @property
    def num_bytes(self) -> int:
        return num_bytes(self.arrays)


def num_bytes(trees: Iterable[Any]) -> int:
    """Bytes of the arrays in a list of arrays or of dicts of them."""
    return sum(num_bytes(tree.values()) if isinstance(tree, dict) else int(tree.nbytes) for tree in trees)


def opaque(size: int) -> Samples:
    """Samples of so many bytes that only the contenders know."""
    return Samples([np.broadcast_to(np.uint8(0), size)], [])


def footprint(trees: List[Any]) -> int:
    """Bytes that a call touches: the samples, and some 500 for the objects that each of them is."""
    objects = sum(len(tree) if isinstance(tree, dict) else 1 for tree in trees)
    return num_bytes(trees) + 500 * objects


def noise(count: int, dtype: str, rng: np.random.Generator) -> Array:
    """Random elements; floats in [0, 1). Zeros and constants would flatter caches and clocks."""
    if dtype.startswith("float"):
        return rng.random(count, np.float32).astype(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, count, np.uint8).view(bool)
    return rng.integers(0, 256, count * np.dtype(dtype).itemsize, np.uint8).view(dtype)


def empty(shape: Shape, dtype: str) -> Tuple[Array, Any]:
    """New memory on the host as an array and, with torch, as a tensor."""
    if torch is None:
        return np.empty(shape, dtype), None
    tensor = torch.empty(shape, dtype=getattr(torch, dtype))
    return tensor.numpy(), tensor


def samples_of(shapes: Sequence[Shape], dtype: str, setting: Setting, rng: np.random.Generator, odd: bool = False) -> Samples:
    """Samples of random data. `odd`: scattered ones begin anywhere, not at a multiple of 16 bytes."""
    sizes = np.array([int(np.prod(shape)) for shape in shapes])
    ends = np.cumsum(sizes)
    data = noise(int(sizes.sum()), dtype, rng)
    slots: List[Tuple[Any, Any]] = [(None, None)] * len(shapes)
    table = None

    def filled(array: Array, tensor: Any, begin: int, values: Array) -> Tuple[Array, Any]:
        """Writes the values, then has the whole tensor on the device, which has odd addresses too."""
        array.reshape(-1)[begin : begin + len(values)] = values
        return array, tensor if tensor is None or setting.on_host else tensor.to(setting.device)

    def view(array: Array, tensor: Any, begin: int, i: int) -> Tuple[Array, Any]:
        piece = slice(begin, begin + int(sizes[i]))
        return array[piece].reshape(shapes[i]), None if tensor is None else tensor[piece].view(shapes[i])

    if setting.layout == "contiguous":
        array, tensor = filled(*empty(data.shape, dtype), 0, data)
        slots = [view(array, tensor, int(ends[i] - sizes[i]), i) for i in range(len(shapes))]
        if len(set(shapes)) == 1:
            table = (array if tensor is None else tensor).reshape(len(shapes), *shapes[0])
    else:
        shifts = rng.integers(1, 16, len(shapes)) if odd else np.zeros(len(shapes), np.int64)
        for i in rng.permutation(len(shapes)):
            # Samples are tensors of their own unless they are odd: a view takes twice as many objects to read.
            made = empty((int(sizes[i]) + 16,) if odd else shapes[i], dtype)
            made = filled(*made, int(shifts[i]), data[ends[i] - sizes[i] : ends[i]])
            slots[i] = view(*made, int(shifts[i]), i) if odd else made
    arrays, tensors = [list(column) for column in zip(*slots)]
    return Samples(arrays, tensors if torch else [], table)


def trees_of(fields: Mapping[str, Tuple[Sequence[Shape], str]], setting: Setting, rng: np.random.Generator) -> Samples:
    """Samples that are dicts, of a list of shapes and a dtype for each key."""
    columns = {key: samples_of(shapes, dtype, setting, rng) for key, (shapes, dtype) in fields.items()}
    arrays = [dict(zip(columns, row)) for row in zip(*(column.arrays for column in columns.values()))]
    tensors = [dict(zip(columns, row)) for row in zip(*(column.tensors for column in columns.values()))]
    return Samples(arrays, tensors)


def sets_of(make: Callable[[], Samples], setting: Setting) -> List[Samples]:
    """Lists that take turns: as many that the next one is in no cache, 64 at most; two for `--quick`, just one if warm."""
    sets = [make()]
    if setting.on_host:
        more = 2 * cache_bytes() // footprint(sets[0].arrays)
    else:
        more = 2 * l2_bytes(setting.device) // max(sets[0].num_bytes, 1)
    more = max(1, min(63, more))
    return sets + [make() for _ in range(0 if setting.warm else 1 if setting.quick else more)]


def equal_samples(seed: int, shape: Shape, num_samples: int, dtype: str, setting: Setting, odd: bool = False) -> List[Samples]:
    """Lists of samples of one shape."""
    rng, shapes = np.random.default_rng(seed), [shape] * setting.count(num_samples)
    return sets_of(lambda: samples_of(shapes, dtype, setting, rng, odd), setting)


def unequal_rows(seed: int, shortest: int, longest: int, num_samples: int, dtype: str, setting: Setting) -> List[Samples]:
    """Lists of rows of random lengths, both ends included."""
    rng = np.random.default_rng(seed)
    shapes = [(int(n),) for n in rng.integers(shortest, longest + 1, setting.count(num_samples))]
    return sets_of(lambda: samples_of(shapes, dtype, setting, rng), setting)
