"""Painted inputs, poisoned outputs and whole-output comparison."""

from __future__ import annotations

import copy
import enum
import gc
import os
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import oracle
import windrow as wr
from dlpack_harness import Producer

POISON = 0xA5

# The errors that a tensor that cannot be read may raise.
TYPED = (wr.ShapeError, wr.DTypeError, wr.DeviceError, wr.LayoutError, BufferError, ValueError)


# Inputs


def reads_private_layouts(library):
    """Whether words of this library's objects are read: "CPython" or "torch", which is imported."""
    return any(name.startswith(library) and state == "on" for name, state in wr._windrow._private_layouts())


def release(module):
    """Major and minor version of a module, to compare."""
    return tuple(int(part) for part in module.__version__.split(".")[:2])


# NumPy 2.0, the newest for Python 3.9, takes legacy capsules only, and makes read-only arrays of them.
numpy_takes_versions = pytest.mark.skipif(
    release(np) < (2, 1),
    reason=f"NumPy {np.__version__} takes no versioned DLPack capsules; 2.1 does",
)


def paint(shape, name="uint8", seed=0):
    """Bytes 0, 1, ... 250, 0, ... in row-major order, starting at `seed`; for bool every third element is True."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    storage = oracle.STORAGE[name]
    count = int(np.prod(shape, dtype=np.int64)) * storage.itemsize
    pattern = ((np.arange(count, dtype=np.int64) + seed) % 251).astype(np.uint8)
    if name == "bool":
        return (pattern % 3 == 0).reshape(shape)
    return pattern.view(storage).reshape(shape)


def paint_values(shape, name="float32", seed=0):
    """Values -125 .. 125 (0 .. 250 for unsigned dtypes) with period 251; floats get a fraction."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    values = (np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64) * 7 + seed) % 251
    if name == "bool":
        return (values % 3 == 0).reshape(shape)
    if not name.startswith("uint"):
        values = values - 125
    if name in oracle.FLOATS or name in oracle.CAST8:
        return oracle.narrow(values * 0.8125, name).reshape(shape)
    return values.astype(oracle.STORAGE[name]).reshape(shape)


def sample(array, name=None):
    """`array` as windrow should see it: bfloat16 and float8 bit patterns travel in a capsule of their own dtype."""
    if name is None or name == array.dtype.name:
        return array
    return Producer(array, name=name)


def samples_of(arrays, name=None):
    return [sample(array, name) for array in arrays]


def poisoned(shape, name="uint8"):
    """An array whose every byte is 0xA5."""
    storage = oracle.STORAGE[name]
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    count = int(np.prod(shape, dtype=np.int64)) * storage.itemsize
    return np.full(count, POISON, np.uint8).view(storage).reshape(shape)


def is_poisoned(array):
    return bool((np.ascontiguousarray(array).view(np.uint8) == POISON).all())


# Outputs


def memory(tensor):
    """A NumPy array over the memory of a host Tensor or Batch, through `data_ptr()` alone."""
    tensor = tensor.data if isinstance(tensor, wr.Batch) else tensor
    storage = oracle.STORAGE[tensor.dtype]
    if 0 in tensor.shape:
        return np.empty(tensor.shape, storage)

    interface = {
        "version": 3,
        "shape": tuple(tensor.shape),
        "typestr": storage.str,
        "data": (tensor.data_ptr(), False),
        "strides": tuple(storage.itemsize * (s if n > 1 else 1) for n, s in zip(tensor.shape, tensor.strides)),
    }
    # No class is made here: free-threaded 3.13 never releases classes, nor what they hold.
    return np.asarray(SimpleNamespace(keep=tensor, __array_interface__=interface))


def pointer(array):
    """Address of the first element of a NumPy array or a windrow object."""
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr()


def assert_same(got, want, name=None):
    """Equal shape, storage type and bytes; a NaN equals a NaN of any payload."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    assert got.dtype == want.dtype, f"dtype {got.dtype}, expected {want.dtype}"
    if got.size == 0:
        return
    got, want = np.ascontiguousarray(got), np.ascontiguousarray(want)
    if got.tobytes() == want.tobytes():
        return
    width = (-1, got.itemsize)
    differ = (got.reshape(-1).view(np.uint8).reshape(width) != want.reshape(-1).view(np.uint8).reshape(width)).any(axis=1)
    name = name or got.dtype.name
    if name in oracle.FLOATS or name in oracle.CAST8:
        differ &= ~(np.isnan(oracle.widen(got, name)) & np.isnan(oracle.widen(want, name))).reshape(-1)
    if differ.any():
        first = int(differ.argmax())
        where = tuple(int(i) for i in np.unravel_index(first, got.shape))
        raise AssertionError(
            f"{int(differ.sum())} of {got.size} elements differ, first at {where}: "
            f"{got.reshape(-1)[first]!r}, expected {want.reshape(-1)[first]!r}"
        )


def is_compact(shape, strides):
    step = 1
    for extent, stride in reversed(list(zip(shape, strides))):
        if extent > 1 and stride != step:
            return False
        step *= extent
    return True


def assert_tensor(tensor, want, name=None, compact=True):
    """Attributes and every byte of a host Tensor or Batch against a NumPy array of storage type."""
    data = tensor.data if isinstance(tensor, wr.Batch) else tensor
    want = np.asarray(want)
    name = name or want.dtype.name
    assert isinstance(data, wr.Tensor)
    assert tuple(tensor.shape) == want.shape
    assert tensor.dtype == name
    assert tensor.device == "cpu"
    assert data.nbytes == want.nbytes
    if compact and want.size:
        assert is_compact(data.shape, data.strides)
    assert_same(memory(data), want, name)


def assert_values(tensor, want):
    """A `lengths`, `offsets` or `mask` field: shape and values."""
    assert tensor is not None
    got, want = tensor.numpy(), np.asarray(want)
    assert got.shape == want.shape
    assert (got == want).all(), f"{got.tolist()}, expected {want.tolist()}"


def relocate(array):
    """Moves the memory of an array, by NumPy's own call: where the allocator has room behind it, it only grows."""
    address, rows = array.ctypes.data, 1 << 16
    while array.ctypes.data == address:
        array.resize((rows, *array.shape[1:]), refcheck=False)
        rows *= 2


# Errors


def refusal(call, kind, *texts, **attributes):
    """`call` must raise `kind`; the text must hold every pattern and the attributes must be equal. Gives the exception."""
    with pytest.raises(kind) as caught:
        call()
    error = caught.value
    for text in texts:
        assert re.search(text, str(error)), f"{text!r} not in {str(error)!r}"
    for name, value in attributes.items():
        assert getattr(error, name) == value, f".{name} is {getattr(error, name)!r}, expected {value!r}"
    assert usable()
    return error


def freed_once(*producers):
    """Every capsule or tensor that the producers handed out was freed exactly once."""
    settle()
    for producer in producers:
        producer.close()
    for producer in producers:
        assert producer.handles, "nothing was ever asked for"
        assert producer.deleted == [1] * len(producer.handles)


def usable():
    """Whether the default engine still assembles a batch."""
    rows = [paint(5, "int16", seed) for seed in range(3)]
    return bool((memory(wr.stack(rows)) == np.stack(rows)).all())


def run_examples(file):
    """The Python blocks of a page, which go on from each other, print what the comments behind say. Programs that the page
    includes from examples/ stand alone: test_recipes runs them."""
    text = (Path(__file__).parents[2] / file).read_text(encoding="utf-8")
    names, wanted, printed = {}, [], []
    names["print"] = lambda *values: printed.append(" ".join(map(_shown, values)))
    for code in re.findall(r"```python\n(?!--8<--)(.*?)```", text, re.S):
        wanted += re.findall(r"print\(.*\)\s*# (.*)", code)
        exec(re.sub(r"print\((\w+)\)\n", r"str(\1)\n", code), names)
    assert wanted and printed == wanted


def _shown(value):
    return str(getattr(value, "tolist", lambda: value)())


def settle():
    """Lets releases that wait for the next use of the interpreter by windrow happen."""
    for _ in range(2):
        gc.collect()
        wr.asarray(b"settle")


def held():
    """Bytes of the default engine's pool in use."""
    settle()
    return wr.stats()["pool_used_bytes"]


def rss_bytes():
    """Resident memory where the system tells it, else the peak."""
    try:
        with open("/proc/self/statm") as f:
            pages = int(f.read().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def broadcast(shape, dtype="uint8"):
    """A sample that is one element in memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)


class Key(str, enum.Enum):
    """Members that are equal to a text."""

    X = "camera"
    Y = "lidar"


class Text(str):
    """A text that prints another one."""

    def __str__(self):
        return "another text"


class Lent:
    """An array that lends its memory by DLPack alone, which can be exchanged for another's, as CuPy's ``a.data`` can."""

    def __init__(self, data):
        self.data = data

    def __dlpack_device__(self):
        return self.data.__dlpack_device__()

    def __dlpack__(self, **kwargs):
        return self.data.__dlpack__(**kwargs)


def _out_of_band(x):
    buffers = []
    head = pickle.dumps(x, 5, buffer_callback=buffers.append)
    return pickle.loads(head, buffers=[bytearray(buffer) for buffer in buffers])


# The ways to copy by value.
PICKLED_BY = {
    **{f"protocol {number}": lambda x, number=number: pickle.loads(pickle.dumps(x, number)) for number in range(pickle.HIGHEST_PROTOCOL + 1)},
    "deepcopy": copy.deepcopy,
    "out of band": _out_of_band,
}
