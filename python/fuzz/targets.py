"""Fuzz targets of the Python interface. Each takes `data` of hypothesis, makes one hostile call, and judges it:
an `Exception` or a right result, never a panic, never a `SystemError`, and nothing kept alive.

    python python/fuzz/targets.py --seconds 60 [TARGET ...]
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import gc
import itertools
import math
import resource
import sys
import time
import weakref

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import windrow as wr
from hostile import SCALARS, VALUES, Mine, evil

MAX_MEMORY = 4 << 30

TYPESTRS = ["|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"]


class Holder:
    """An object of any attributes, which can be watched."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def call(function, *args, **kwargs):
    """The result, or None after an `Exception`; a SystemError becomes an AssertionError."""
    try:
        return function(*args, **kwargs)
    except SystemError as error:
        raise AssertionError("broken use of the C API") from error
    except Exception as error:
        str(error), repr(error)
        return None


def described(array):
    """The array interface of an array, as a dict."""
    return {"shape": array.shape, "strides": array.strides, "typestr": array.dtype.str, "data": (array.ctypes.data, False), "version": 3}


@st.composite
def arrays(draw):
    dtype = np.dtype(draw(st.sampled_from(TYPESTRS)))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    array = np.arange(int(np.prod(shape)) * dtype.itemsize, dtype=np.uint8).view(dtype).reshape(shape)
    if dtype == bool:
        array = np.asarray(array.view(np.uint8) % 2).view(bool)
    for d, step in enumerate(draw(st.lists(st.sampled_from([1, 1, -1, 2]), max_size=len(shape)))):
        array = array[(slice(None),) * d + (slice(None, None, step),)]
    return np.asarray(array)


@st.composite
def interfaces(draw):
    """An array, its interface with some entries changed, lost or added, and whether entries that it had, or may have, were."""
    array = draw(arrays())
    interface = described(array)
    keys = draw(st.lists(st.sampled_from(["shape", "strides", "typestr", "data", "version", "mask", "offset", "descr", "stream"]), max_size=2, unique=True))
    for key in keys:
        if draw(st.integers(0, 4)) == 0:
            interface.pop(key, None)
        elif key == "data":
            interface[key] = draw(
                st.one_of(VALUES, st.tuples(SCALARS, SCALARS), st.just(array.base.tobytes() if array.base is not None else b""), st.just(bytearray(40)))
            )
        elif key in ("shape", "strides"):
            entry = st.one_of(st.integers(-3, 5), st.integers(-(2**63), 2**63 - 1), SCALARS)
            interface[key] = draw(st.one_of(VALUES, st.lists(entry, max_size=70).map(tuple)))
        else:
            interface[key] = draw(VALUES)
    if draw(st.integers(0, 9)) == 0:
        interface[draw(SCALARS.filter(lambda key: type(key) in (int, str, type(None))))] = draw(VALUES)
    return array, interface, bool(keys)


def may_read(tensor, array, interface):
    """Whether all that a tensor claims is memory of the array; True where `data` is no address."""
    if not isinstance(dict.get(interface, "data"), tuple):
        # It is a buffer, with whose length windrow has compared the claim.
        return True
    if tensor.nbytes == 0:
        return True
    low = high = tensor.data_ptr()
    size = tensor.nbytes // math.prod(tensor.shape)
    for extent, stride in zip(tensor.shape, tensor.strides):
        reach = (extent - 1) * stride * size
        low, high = low + min(reach, 0), high + max(reach, 0)
    begin, end = np.lib.array_utils.byte_bounds(array) if array.size else (0, 0)
    return begin <= low and high + size <= end


def array_interface(data):
    """`__array_interface__` with hostile entries."""
    array, interface, changed = data.draw(interfaces())
    whole = data.draw(st.sampled_from([None, None, None, "dict", "raise"]))
    if whole == "dict":
        interface = evil(dict, {data.draw(st.sampled_from(["__getitem__", "get", "keys", "__len__"]))}, Mine)(interface)
    holder = Holder(__array_interface__=interface, keep=array)
    if whole == "raise":
        holder.__class__ = evil(Holder, {"__getattr__"}, data.draw(st.sampled_from([Mine, AttributeError, RuntimeError])))
        del holder.__array_interface__
    tensor = call(wr.asarray, holder)
    if not changed and whole is None:
        assert tensor is not None, interface
    if tensor is not None:
        repr(tensor), tensor.shape, tensor.strides, tensor.dtype, tensor.nbytes
        if max(tensor.shape, default=0) < 10**6 and may_read(tensor, array, interface):
            batch = call(wr.stack, [holder, holder], dtype=data.draw(st.sampled_from([None, "float32", "uint8"])))
            if not changed and whole is None and batch is not None and batch.dtype == array.dtype.name:
                got = batch.numpy()
                assert got.tobytes() == np.stack([array, array]).tobytes()
    gone = weakref.ref(holder)
    del holder, tensor
    check_gone(gone)


def cuda_array_interface(data):
    """`__cuda_array_interface__` with hostile entries. No address is a device's, so none may be taken."""
    array, interface, _ = data.draw(interfaces())
    holder = Holder(__cuda_array_interface__=interface, keep=array)
    tensor = call(wr.asarray, holder)
    if tensor is not None:
        assert 0 in tensor.shape and tensor.device.startswith("cuda"), tensor
    call(wr.stack, [holder, holder])
    call(wr.pad, [np.zeros(3), holder], mask="real")
    gone = weakref.ref(holder)
    del holder, tensor
    check_gone(gone)


def check_gone(gone):
    """Nothing keeps an object whose variables are deleted; a device does until it is done, which the next batch on it finds."""
    until = time.monotonic() + 10
    while gone() is not None:
        gc.collect(0)
        assert time.monotonic() < until, f"{sys.getrefcount(gone()) - 1} references"
        time.sleep(0.005)
        array = np.zeros(0)
        call(wr.stack, [Holder(__cuda_array_interface__=described(array), keep=array)])


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Item:
    image: object
    label: object


def holding_itself(entry):
    """A list of an entry and of a dict that holds the list."""
    tree = [entry]
    tree.append({"x": tree})
    return tree


LEAVES = st.one_of(
    arrays(), st.integers(-5, 5), st.floats(), st.booleans(), st.text(max_size=3), st.binary(max_size=3), st.none(), SCALARS
)
KEYS = st.one_of(st.text(max_size=3), st.sampled_from(["a", "b", "a.b", "*", ""]), st.integers(0, 3))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
        st.builds(Point, inner, inner),
        st.builds(Item, inner, inner),
        inner.map(lambda entry: evil(dict, {"keys", "__len__"}, Mine)({"a": entry})),
        inner.map(lambda entry: evil(list, {"__len__"}, 2**45)([entry])),
        inner.map(lambda entry: evil(list, {"__getitem__"}, lambda self, *_: self)([entry])),
        inner.map(holding_itself),
    ),
    max_leaves=8,
)

OPTIONS = {
    "dtype": ["float32", "int64", np.float16, float, None],
    "device": ["cpu", None],
    "out": [None],
    "stream": [None],
    "transform": [None, wr.Transform(scale=2.0), wr.Transform(permute=(1, 0))],
    "copy": [True, None, False],
    "engine": [None],
    "dim": [0, -1, 1],
    "value": [0, 1, -1.5, 2**63],
    "side": ["left", "right", "center", ["left", "right"]],
    "dims": [None, 0, [0, 1]],
    "size": [None, 4, [4, None]],
    "multiple_of": [1, 8, [1, 4]],
    "truncate": [True, False],
    "mask": [None, "real", "pad"],
    "offsets_dtype": ["int32", "int64"],
    "batch_index": [True, False],
    "sep": [".", "/"],
}
# Never ending, which is for the caller to stop: Python's own list() does not end on them either.
FINITE = VALUES.filter(lambda value: "Endless" not in repr(type(value)))


@st.composite
def options(draw, names):
    """At most 4 of these arguments, each sound or hostile."""
    chosen = draw(st.lists(st.sampled_from(names), max_size=4, unique=True))
    return {name: draw(st.sampled_from(OPTIONS[name])) if draw(st.integers(0, 2)) else draw(FINITE) for name in chosen}


COMMON = ["dtype", "device", "out", "stream", "transform", "copy", "engine"]
PAD = ["value", "side", "dims", "size", "multiple_of", "truncate", "mask"]
FORMS = {"stack": [], "concat": ["dim"], "pad": PAD, "ragged": ["offsets_dtype", "batch_index"]}
SPECS = {"Stack": [], "Concat": ["dim"], "Pad": PAD, "Ragged": ["offsets_dtype", "batch_index"]}


def arguments(data):
    """Calls with hostile arguments of every name, of samples that are sound or not."""
    form, own = data.draw(st.sampled_from(sorted(FORMS.items())))
    array = data.draw(arrays())
    samples = data.draw(st.one_of(st.just([array, array]), st.lists(st.one_of(arrays(), SCALARS), max_size=4), FINITE))
    kwargs = data.draw(options(COMMON + own))
    out = None
    if data.draw(st.integers(0, 3)) == 0:
        out = kwargs["out"] = np.full((2, *array.shape), 0x5A, np.uint8).astype(array.dtype)
        before = out.copy()
    batch = call(getattr(wr, form), samples, **kwargs)
    if batch is None:
        if out is not None:
            assert out.tobytes() == before.tobytes(), "written to in a call that failed"
        call(wr.explain, samples, form, **kwargs)
        return
    repr(batch), len(batch), batch.shape
    for part in itertools.islice(iter(batch), 5):
        repr(part)
    # NumPy has its own mind on bytes and on numbers that lie.
    if form == "stack" and not kwargs and all(type(sample) is np.ndarray for sample in samples):
        assert batch.numpy().tobytes() == np.stack([np.asarray(sample) for sample in samples]).tobytes()


def trees(data):
    """`collate` of trees that agree or do not, with specs that fit or do not."""
    tree = data.draw(TREES)
    samples = [tree] * data.draw(st.integers(0, 3))
    if data.draw(st.integers(0, 3)) == 0:
        samples.append(data.draw(TREES))
    spec = None
    if data.draw(st.booleans()):
        spec = {}
        for pattern in data.draw(st.lists(st.sampled_from(["*", "a", "a.*", "b", "[", "x", "image", "0", "0.a", "**", ""]), max_size=2)):
            name, own = data.draw(st.sampled_from(sorted(SPECS.items())))
            made = call(getattr(wr, name), **data.draw(options([*COMMON, *own])))
            spec[pattern] = data.draw(VALUES) if made is None else made
        if data.draw(st.integers(0, 9)) == 0:
            spec = data.draw(VALUES)
    kwargs = data.draw(options(["dtype", "sep", "copy", "out", "engine"]))
    batch = call(wr.collate, samples, spec, **kwargs)
    if batch is not None and len(samples) > 1 and all(sample is tree for sample in samples):
        same_tree(tree, batch)


def same_tree(tree, batch):
    """Containers keep their type; a leaf becomes a batch, text a list."""
    if type(tree) is dict:
        assert type(batch) is dict and list(batch) == list(tree)
        for key, entry in tree.items():
            same_tree(entry, batch[key])
    elif type(tree) in (list, tuple, Point):
        assert type(batch) is type(tree) and len(batch) == len(tree)
        for entry, part in zip(tree, batch):
            same_tree(entry, part)
    elif type(tree) is Item:
        assert type(batch) is Item
        same_tree(tree.image, batch.image)
        same_tree(tree.label, batch.label)
    elif type(tree) in (str, bytes):
        assert type(batch) is list and batch[0] is tree


def sample_lists(data):
    """`SampleList`: appended, extended, taken from, indexed, all with hostile arguments."""
    samples = call(wr.SampleList, data.draw(st.one_of(st.lists(arrays(), max_size=4), arrays(), FINITE)))
    if samples is None:
        return
    for _ in range(data.draw(st.integers(0, 4))):
        before = len(samples)
        step = data.draw(st.sampled_from(["append", "extend", "take", "index", "split", "self", "own"]))
        value = data.draw(st.one_of(FINITE, arrays(), st.lists(st.integers(-5, 5), max_size=5)))
        if step == "append":
            done = call(lambda: (samples.append(value), True)[1])
            assert len(samples) == before + (done is not None)
        elif step == "extend":
            done = call(lambda: (samples.extend(value), True)[1])
            assert done or len(samples) == before
        elif step == "take":
            call(lambda: wr.stack(samples.take(value)))
        elif step == "index":
            call(lambda: samples[value])
        elif step == "split":
            call(wr.SampleList.split, np.arange(20), value)
        elif step == "own":
            if before:
                samples.append(samples[0])
                samples.extend(samples.take([-1]))
                assert len(samples) == before + 2
        elif before < 100:
            samples.extend(samples)
            assert len(samples) == 2 * before


TARGETS = [array_interface, cuda_array_interface, arguments, trees, sample_lists]


def run(target, examples, number=0):
    """Runs a target on `examples` examples, the same ones for the same `number`."""
    quiet = dict(deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink])
    seed(number)(settings(max_examples=examples, **quiet)(given(data=st.data())(target)))()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="for all targets together")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(target.__name__ for target in TARGETS))
    args = parser.parse_args()
    chosen = [target for target in TARGETS if not args.targets or target.__name__ in args.targets]
    counts = dict.fromkeys(chosen, 0)
    # Calls ask for any size: more than this is refused to them, before the system kills others for it.
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, resource.RLIM_INFINITY))
    end = time.monotonic() + args.seconds
    for number, target in enumerate(itertools.cycle(chosen), args.seed):
        if time.monotonic() > end:
            break
        run(target, 200, number)
        counts[target] += 200
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(f"{used.ru_utime + used.ru_stime:.0f} CPU seconds, {used.ru_maxrss >> 10} MiB, seed {args.seed}:", end=" ")
    print(", ".join(f"{target.__name__} {count}" for target, count in counts.items()))


if __name__ == "__main__":
    main()
