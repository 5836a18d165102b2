"""Cycles of references through lists, tensors, batches and views: collected when nothing else refers to them, and not before."""

import collections
import copy
import dataclasses
import functools
import gc
import importlib.util
import random
import sys
import threading
import weakref

import numpy as np
import pytest

import windrow as wr


class Node(np.ndarray):
    """An array that refers to whatever it is given, and that a weak reference can watch."""


class Buffer(bytearray):
    pass


class Interface:
    def __init__(self, array):
        self.array = array

    @property
    def __array_interface__(self):
        return self.array.__array_interface__


class Capsule:
    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def node(value=0.0, shape=(4, 3)):
    return np.full(shape, value, np.float32).view(Node)


SOURCES = {
    "array": node,
    "buffer": lambda: Buffer(48),
    "array interface": lambda: Interface(np.zeros((4, 3), np.float32)),
    "torch": lambda: __import__("torch").zeros(4, 3),
    "torch subclass": lambda: __import__("torch").zeros(4, 3).as_subclass(subclass_of_torch()),
}


@functools.lru_cache(maxsize=1)
def subclass_of_torch():
    class Mine(__import__("torch").Tensor):
        pass

    return Mine


def rows(x):
    return wr.asarray(x) if isinstance(x, (Buffer, Interface)) else x


@dataclasses.dataclass
class Record:
    x: object


class Entries(dict):
    pass


class Row(list):
    pass


Pair = collections.namedtuple("Pair", "x y")
CLASSES = {
    "dict": lambda x: Entries(x=x),
    "UserDict": lambda x: collections.UserDict(x=x),
    "list": lambda x: Row([x]),
    "namedtuple": lambda x: Pair(x, x),
    "dataclass": Record,
}
if importlib.util.find_spec("attrs"):
    attrs = importlib.import_module("attrs")
    CLASSES["attrs"] = attrs.make_class("AttrsRecord", ["x"])
if importlib.util.find_spec("pydantic"):
    pydantic = importlib.import_module("pydantic")
    Model = pydantic.create_model("Model", __config__=pydantic.ConfigDict(arbitrary_types_allowed=True), x=(object, ...))
    CLASSES["pydantic"] = lambda x: Model(x=x)
HOLDERS = {
    "list": lambda x: wr.SampleList([x]),
    "list of two": lambda x: wr.SampleList([np.zeros(3), x]),
    "append": lambda x: changed(lambda samples: samples.append(x)),
    "replace": lambda x: changed(lambda samples: [samples.append(b"a"), samples.__setitem__(0, x)]),
    "rows": lambda x: wr.SampleList(rows(x)),
    "rows, joined": lambda x: changed(lambda samples: [samples.append(b"a"), samples.extend(wr.SampleList(rows(x)))]),
    "take": lambda x: wr.SampleList([x, x]).take([1]),
    "take of a list that lives": lambda x: (samples := wr.SampleList([x, x]), samples.take([1]), samples[:1]),
    "take of rows": lambda x: (samples := wr.SampleList(rows(x)), samples.take([0]), samples[:1]),
    "slice": lambda x: wr.SampleList([x, x])[1:],
    "sample": lambda x: wr.SampleList([x])[0],
    "samples": lambda x: (samples := wr.SampleList([x]), samples[0], samples[0]),
    "row": lambda x: (samples := wr.SampleList(rows(x)), samples[0], samples[-1]),
    "tree": lambda x: wr.SampleList([{"a": [x, 1]}]),
    "leaf of a tree": lambda x: wr.SampleList([{"a": [x, 1]}])[0],
    "tree, taken": lambda x: (samples := wr.SampleList([{"a": [x, 1]}] * 2), samples.take([1])),
    "text of a tree": lambda x: wr.SampleList([{"a": 1, "b": Text("t", x)}]),
    **{f"tree of {name}": (lambda make: lambda x: wr.SampleList([make(x), make(x)]))(make) for name, make in CLASSES.items()},
    "asarray": wr.asarray,
    "asarray of asarray": lambda x: (first := wr.asarray(x), wr.asarray(first)),
    "list of asarray": lambda x: (first := wr.asarray(x), wr.SampleList([first]), wr.SampleList(first)),
    "list of samples": lambda x: (samples := wr.SampleList([x]), wr.SampleList([samples[0]]), wr.SampleList([samples[0]])[0]),
    "windows": lambda x: wr.windows(rows(x), [0, 1], 1),
    "split": lambda x: wr.SampleList.split(rows(x), [0, 2]),
    "packed tree": lambda x: wr.pack(with_attribute(Record(np.zeros(2)), x)),
    "scales": lambda x: wr.Dequantize(rows(x)),
    "list of scales": lambda x: wr.Dequantize([rows(x), 1.0]),
    "crops": lambda x: wr.crops([x], [[0, 0, 1, 1]]),
    "view": lambda x: wr.stack([x], copy=False),
    "view of rows": lambda x: wr.stack(rows(x), copy=False),
    "view of a list": lambda x: (samples := wr.SampleList([x]), wr.stack(samples, copy=False)),
    "view, its data and samples": lambda x: (batch := wr.stack([x], copy=False), batch.data, batch[0], list(batch), batch.data),
    "attribute of a first sample": lambda x: wr.SampleList([with_attribute(Record(np.zeros(2)), x)]),
    "factory of a first sample": lambda x: wr.SampleList([collections.defaultdict(functools.partial(zero_of, x), a=np.zeros(2))]),
    "key of a first sample": lambda x: wr.SampleList([{Text("t", x): np.zeros(2)}]),
    "structure that lists share": lambda x: (
        samples := wr.SampleList([with_attribute(Record(np.zeros(2)), x)] * 2),
        samples.take([1]),
        samples[1:],
        wr.SampleList(samples[1:]),
    ),
    "changed copy": lambda x: changed_in(wr.SampleList(wr.SampleList([x]))),
    "copy": lambda x: (samples := wr.SampleList([x]), copy.copy(samples)),
    "list of a list": lambda x: (samples := wr.SampleList(rows(x)), wr.SampleList(samples)),
    "trees in an empty list": lambda x: (trees := wr.SampleList([{"a": [x, 1], "b": Text("t", x)}]), changed(lambda samples: samples.extend(trees))),
    "crops of a list": lambda x: (samples := wr.SampleList([np.zeros((4, 3)), x]), wr.crops(samples, [[0, 0, 1, 1]] * 2)),
}
OUTPUTS = {
    "out": lambda x: wr.stack([np.ones(3, np.float32)] * 4, out=x),
    "out, its data": lambda x: (batch := wr.stack([np.ones(3, np.float32)] * 4, out=x), batch.data, batch[1]),
    "out again": lambda x: wr.stack([np.ones(3, np.float32)] * 4, out=wr.stack([np.ones(3, np.float32)] * 4, out=x)),
    "out of asarray": lambda x: (out := wr.asarray(x), wr.stack([np.ones(3, np.float32)] * 4, out=out)),
    "collate out": lambda x: wr.collate([{"x": np.ones(3, np.float32)}] * 4, out={"x": x}),
}
FLAT = {"crops", "crops of a list"}


class Text(str):
    def __new__(cls, text, x):
        made = super().__new__(cls, text)
        made.x = x
        return made


class Shared:
    """An attribute that a copy of its object has too."""

    def __init__(self, x):
        self.x = x

    def __deepcopy__(self, _):
        return self


def with_attribute(sample, x):
    sample.x_of_it = Shared(x)
    return sample


def zero_of(_):
    return 0


def changed(change):
    samples = wr.SampleList()
    change(samples)
    return samples


def changed_in(samples):
    samples.append(b"a")
    return samples


def cycle(source, hold):
    """A weak reference to a source that refers to what holds it."""
    x = SOURCES[source]()
    x.held = hold(x)
    return weakref.ref(x)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("holder", [*HOLDERS, *OUTPUTS])
def test_cycles_are_collected(holder, source, torch):
    if source == "buffer" and (holder in FLAT or holder in OUTPUTS):
        return
    gc.collect()
    refs = [cycle(source, {**HOLDERS, **OUTPUTS}[holder]) for _ in range(3)]
    gc.collect()
    assert not any(ref() is not None for ref in refs)


def classes_of_their_own():
    """Classes made here, to which nothing else refers."""

    @dataclasses.dataclass
    class Fields:
        x: object

    class Dict(dict):
        pass

    class Key(str):
        pass

    yield Fields, lambda: Fields(np.zeros(2))
    yield Dict, lambda: Dict(x=np.zeros(2))
    yield Key, lambda: {Key("x"): np.zeros(2)}
    if "attrs" in CLASSES:
        own = attrs.make_class("Own", ["x"])
        yield own, lambda: own(np.zeros(2))


@pytest.mark.parametrize("number", range(3 + ("attrs" in CLASSES)))
def test_classes_that_refer_to_lists_of_their_objects(number):
    def made():
        cls, make = list(classes_of_their_own())[number]
        cls.buffer = wr.SampleList([make(), make()])
        wr.collate(cls.buffer)
        wr.collate([make()])
        return weakref.ref(cls)

    gc.collect()
    ref = made()
    gc.collect()
    assert ref() is None


def test_a_class_in_the_place_of_one_that_is_gone():
    """How objects of a class are read is not remembered for one that has its address later."""
    for number in range(200):
        base = (dict, list, np.ndarray, bytearray)[number % 4]
        cls = type("Made", (base,), {})
        sample = np.zeros(3, np.float32).view(cls) if base is np.ndarray else cls(x=1.0) if base is dict else cls([1, 2, 3])
        assert len(wr.SampleList([sample])) == 1
        if base is dict:
            assert wr.collate([sample])["x"].shape == (1,)
        else:
            assert wr.stack([sample]).shape == (1, 3)
        del cls, sample
        gc.collect() if number % 10 == 0 else None


@pytest.mark.parametrize("name", CLASSES)
def test_a_first_sample_that_is_replaced_is_released(name):
    make, x = CLASSES[name], node()
    samples, ref = wr.SampleList([make(x), make(node(1))]), weakref.ref(x)
    del x
    gc.collect()
    assert ref() is not None
    samples[0] = make(node(2))
    gc.collect()
    assert ref() is None
    assert type(samples[0]) is type(wr.collate(samples)) is type(make(0))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("holder", HOLDERS)
def test_cycles_that_are_referred_to_stay(holder, source, torch):
    if source == "buffer" and holder in FLAT:
        return
    x = SOURCES[source]()
    held = HOLDERS[holder](x)
    # A list keeps the storage of a tensor.
    ref = weakref.ref(x.untyped_storage() if source.startswith("torch") else x)
    before = as_bytes(held)
    x.held = held
    del x
    for _ in range(3):
        gc.collect()
    assert ref() is not None and as_bytes(held) == before
    del held
    gc.collect()
    assert ref() is None


def test_views_over_several_objects_are_collected():
    """A view of several rows keeps them through one object."""
    rows = list(node(7.0))
    batch = wr.stack(rows, copy=False)
    rows[1].held = [batch, *batch, wr.asarray(batch), wr.SampleList([batch[2]])]
    ref = weakref.ref(rows[1])
    del rows
    gc.collect()
    assert ref() is not None
    del batch
    gc.collect()
    assert ref() is None


def as_bytes(held):
    if isinstance(held, wr.Packed):
        return bytes(memoryview(held.buffer))
    if dataclasses.is_dataclass(held):
        return as_bytes(vars(held))
    if isinstance(held, (tuple, list)):
        return [as_bytes(one) for one in held]
    if isinstance(held, dict):
        return {str(name): as_bytes(one) for name, one in held.items()}
    if isinstance(held, wr.SampleList):
        return [as_bytes(held[i]) for i in range(len(held))]
    return bytes(memoryview(held)) if isinstance(held, (wr.Tensor, wr.Batch)) else str(held)


def test_exports_hold_a_cycle():
    """An export to another library is not seen by the collector, and keeps all of it until it is released."""
    exports = [lambda t: t.numpy(), memoryview, lambda t: np.asarray(t), lambda t: t.__dlpack__(max_version=(1, 0))]
    for export in exports:
        x = node(7.0)
        x.held = wr.asarray(x)
        ref, exported = weakref.ref(x), export(x.held)
        del x
        gc.collect()
        assert ref() is not None
        if isinstance(exported, np.ndarray):
            assert (exported == 7).all()
        del exported
        gc.collect()
        assert ref() is None


def hold(chance, nodes, x):
    """Something of windrow's that refers to a node, and perhaps to others."""
    other = chance.choice(nodes)
    kind = chance.randrange(14)
    if kind == 0:
        return wr.SampleList([x, other])
    if kind == 1:
        return wr.SampleList(x)
    if kind == 2:
        return wr.SampleList([x, other, x]).take([chance.randrange(3), 0])
    if kind == 3:
        return wr.SampleList([x, other])[1:]
    if kind == 4:
        return wr.SampleList([{"x": x, "y": [other]}] * 2).take([1])
    if kind == 5:
        return wr.SampleList([x, other])[chance.randrange(2)]
    if kind == 6:
        return wr.asarray(x)
    if kind == 7:
        return wr.stack([x], copy=False)
    if kind == 8 and other is not x:
        return wr.stack(list(np.asarray(x)), out=other)
    if kind == 9:
        return wr.windows(x, [0, 1], 2)
    held = getattr(other, "held", [])
    known = [one for one in held if isinstance(one, (wr.SampleList if kind > 11 else wr.Tensor, wr.Batch))]
    if not known:
        return other
    one = chance.choice(known)
    if isinstance(one, wr.Batch):
        return chance.choice([one.data, one[0], wr.SampleList(one.data), wr.asarray(one)])
    if isinstance(one, wr.Tensor):
        return chance.choice([wr.asarray(one), wr.SampleList([one]), wr.SampleList([one])[0]])
    if kind == 12 and isinstance(one[0], wr.Tensor):
        one.append(x)
        one[0] = other
        return one[0]
    return chance.choice([wr.SampleList([*one]), wr.SampleList(one), one[:1], one.take([0]), one[-1]])


@pytest.mark.parametrize("seed", range(40))
def test_graphs_of_objects(seed):
    """A collection ends with what a root refers to, as by `referents`, and nothing else."""
    chance = random.Random(seed)
    nodes = [node(value) for value in range(12)]
    for x in nodes:
        x.held = []
    for _ in range(60):
        x = chance.choice(nodes)
        x.held.append(hold(chance, nodes, x))
    values = [float(np.asarray(x)[0, 0]) for x in nodes]
    refs = [weakref.ref(x) for x in nodes]
    roots = chance.sample(range(len(nodes)), chance.randrange(4))
    kept = [nodes[number] for number in roots]
    samples = [one for x in kept for one in x.held]
    del x, nodes
    gc.collect()
    alive = reached(kept)
    assert {number for number, ref in enumerate(refs) if ref() is not None} == {n for n, ref in enumerate(refs) if id(ref()) in alive}
    assert [float(np.asarray(x)[0, 0]) for x in kept] == [values[number] for number in roots]
    for one in samples:
        as_bytes(one)
    del kept, samples
    one = None
    gc.collect()
    assert not any(ref() is not None for ref in refs)


def reached(roots):
    """The ids of all that can be reached by what types say of their references."""
    found, open_ = {}, list(roots)
    while open_:
        one = open_.pop()
        if id(one) not in found and not isinstance(one, (type, type(sys))):
            found[id(one)] = one
            open_ += gc.get_referents(one)
    return set(found)


def test_collections_while_lists_are_used():
    """Each thread makes cycles and reads lists that others hold, while one collects."""
    shared = [wr.SampleList([node(i), node(i + 1)]) for i in range(4)]
    stop, errors = threading.Event(), []

    def use(seed):
        chance = random.Random(seed)
        try:
            while not stop.is_set():
                x = node(seed)
                x.held = [wr.SampleList([x, x]), wr.asarray(x), chance.choice(shared).take([0])]
                samples = chance.choice(shared)
                samples[chance.randrange(2)] = x if chance.random() < 0.5 else node(seed)
                assert wr.stack(samples).shape == (2, 4, 3) and samples[0].numpy().shape == (4, 3)
                assert (x.held[0][1].numpy() == seed).all()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(150):
        gc.collect()
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
