"""Containers that wr.collate takes and refuses, and trees deeper than a stack: beside test_collate.py."""

import collections
import dataclasses
import types
import typing
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import MutableMapping

import numpy as np
import pytest

import isolated
import windrow as wr
from helpers import Key, Text, assert_tensor, paint, refusal


def leaf(seed=0):
    return paint(3, "float32", seed)


# classes that hold more than a mapping or a dataclass does


class StandInTensorDict(MutableMapping):
    """The parts of tensordict.TensorDict that windrow sees."""

    batch_dims = 1

    def __init__(self, source, batch_size):
        self._source, self._batch_size = source, batch_size

    @property
    def batch_size(self):
        return self._batch_size

    def __getitem__(self, key):
        return self._source[key]

    def __setitem__(self, key, value):
        self._source[key] = value

    def __delitem__(self, key):
        del self._source[key]

    def __iter__(self):
        return iter(self._source)

    def __len__(self):
        return len(self._source)

    def to_dict(self):
        return dict(self._source)


@dataclasses.dataclass
class StandInTensorClass:
    x: object

    _is_tensorclass = True

    def to_dict(self):
        return {"x": self.x}


class StandInData:
    """The parts of torch_geometric.data.Data that windrow sees."""

    def __init__(self, **fields):
        self._store = fields

    def __iter__(self):
        return iter(self._store.items())

    def to_dict(self):
        return dict(self._store)


# A maker of samples, and the hint that the error names.
UNKNOWN = {
    "TensorDict's structure": (lambda: StandInTensorDict({"x": leaf()}, (3,)), "to_dict"),
    "tensorclass's structure": (lambda: StandInTensorClass(leaf()), "to_dict"),
    "Data's structure": (lambda: StandInData(x=leaf()), "to_dict"),
    "set": (lambda: {1, 2}, "list or tuple"),
    "deque": (lambda: deque([1, 2]), "list or tuple"),
    "UserList": (lambda: UserList([1, 2]), "list or tuple"),
}
HINTS = {
    "to_dict": lambda sample: sample.to_dict(),
    "list or tuple": list,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_containers_are_refused_with_the_cure(name):
    make, hint = UNKNOWN[name]
    sample = make()
    expected = ("container that wr.collate knows, got .*" + type(sample).__name__, f"give .*{hint}")
    refusal(lambda: wr.collate([sample] * 2), TypeError, "^sample 0: ", *expected)
    refusal(lambda: wr.collate([{"obs": sample}] * 2), TypeError, '^sample 0 at "obs": ', *expected)
    refusal(lambda: wr.explain([sample] * 2, "collate"), TypeError, *expected)
    assert wr.collate([HINTS[hint](sample)] * 2)


def test_an_unknown_container_beside_tensors():
    refusal(lambda: wr.collate([{"a": leaf()}, {"a": StandInData(x=leaf())}]), TypeError, '^sample 1 at "a": .*StandInData')


def test_a_mapping_that_is_a_dataclass():
    """The model outputs of transformers are such mappings, and have no `update`."""

    @dataclasses.dataclass
    class Output(collections.OrderedDict):
        x: object = None
        y: object = None

        def __post_init__(self):
            super().update({name: value for name, value in vars(self).items() if value is not None})

        def update(self, *_, **__):
            raise Exception("no update")

    made = wr.collate([Output(x=leaf(i)) for i in range(2)])
    assert type(made) is Output and made.y is None and list(made) == ["x"]
    assert_tensor(made.x, np.stack([leaf(0), leaf(1)]))


class Doubled(dict):
    """A dict that gives other values than it holds."""

    def __getitem__(self, key):
        value = super().__getitem__(key)
        return 2 * value if isinstance(value, float) else value


class Named(dict):
    """A dict with a method more."""

    def name(self):
        return "x"


def moved(entries):
    """An OrderedDict whose order is not that of its memory."""
    made = collections.OrderedDict(entries)
    made.move_to_end(next(iter(made)))
    return made


DICTS = {
    "dict": dict,
    "subclass": Named,
    "subclass that reads by itself": Doubled,
    "defaultdict": lambda entries: collections.defaultdict(int, entries),
    "OrderedDict": moved,
    "of another order": lambda entries: dict(reversed(entries)),
    # Equal keys that are other objects.
    "of other keys": lambda entries: {"".join(key): value for key, value in entries},
    "after a deletion": lambda entries: (made := {"gone": 1, **dict(entries)}).pop("gone") and made,
    "shared keys": lambda entries: vars(types.SimpleNamespace(**dict(entries))),
}


@pytest.mark.parametrize("kind", DICTS)
@pytest.mark.parametrize("num_keys", [1, 3, 40])
def test_values_go_to_their_keys_in_dicts_of_every_kind(kind, num_keys, torch):
    """Kinds may differ between samples: each dict is read in the key order of the first one."""
    import windrow.torch

    def entries(i):
        return [(f"k{n}", float(100 * i + n)) for n in range(num_keys)]

    makes = [dict, DICTS[kind], dict, DICTS[kind], DICTS[kind]] * 9
    for first in (0, 1):
        samples = [make(entries(i)) for i, make in enumerate(makes[first:])]
        want = {key: np.array([sample[key] for sample in samples]) for key in samples[0]}
        for got in (wr.collate(samples), windrow.torch.collate_fn()(samples)):
            assert list(got) == list(want)
            for key, column in want.items():
                assert (np.asarray(got[key]) == column).all(), key


@pytest.mark.parametrize("num_keys", [1, 3, 40])
def test_dicts_that_change_while_earlier_ones_are_read(num_keys, torch):
    import windrow.torch

    class Key(str):
        __hash__ = str.__hash__

        def __eq__(self, other):
            for i, sample in enumerate(samples[6:], 6):
                sample.update({key: np.full(3, i) for key in keys})
            return str(self) == str(other)

    for collate in (wr.collate, windrow.torch.collate_fn()):
        keys = [f"k{n}" for n in range(num_keys)]
        samples = [{key: np.full(3, -1) for key in keys} for _ in range(60)]
        samples[5] = {Key(key): np.full(3, -1) for key in keys}
        got = collate(samples)
        want = np.where(np.arange(60) < 6, -1, np.arange(60))[:, None].repeat(3, 1)
        for key in keys:
            assert (np.asarray(got[key]) == want).all(), key


def test_a_key_too_few_or_too_many_in_dicts_that_are_read_in_order():
    samples = [{"a": i, "b": i, "c": i} for i in range(40)]
    samples[30] = {"a": 0, "b": 0}
    refusal(lambda: wr.collate(samples), KeyError, 'sample 30 at "c": the key is missing; 39 of 40 samples have it')
    samples[30] = {"a": 0, "b": 0, "c": 0, "d": 0}
    refusal(lambda: wr.collate(samples), KeyError, 'sample 30 at "d": a key that sample 0 does not have; 1 of 40 samples have it')


# keys that a mapping would make up


class Filled(dict):
    def __missing__(self, key):
        return self.setdefault(key, leaf(9))


class FilledUser(UserDict):
    def __missing__(self, key):
        return self.data.setdefault(key, leaf(9))


class Looked(dict):
    """Has a lookup of its own, which asks `__missing__` too."""

    def __getitem__(self, key):
        return super().__getitem__(key)

    def __missing__(self, key):
        return self.setdefault(key, leaf(9))


class Inserting(dict):
    """Adds a key that it is asked for, without a `__missing__`."""

    def __getitem__(self, key):
        return self.setdefault(key, leaf(9))


class InsertingMapping(MutableMapping):
    """Like `Inserting`; its `__contains__` is that of `Mapping`, which asks for the value."""

    def __init__(self, entries):
        self.own = dict(entries)

    def __getitem__(self, key):
        return self.own.setdefault(key, leaf(9))

    def __setitem__(self, key, value):
        self.own[key] = value

    def __delitem__(self, key):
        del self.own[key]

    def __iter__(self):
        return iter(self.own)

    def __len__(self):
        return len(self.own)

    def __str__(self):
        return str(self.own)

    __repr__ = __str__


MAKES_UP = [lambda entries: collections.defaultdict(lambda: leaf(9), entries), Filled, FilledUser, Looked, collections.Counter]
MAKES_UP += [Inserting, InsertingMapping]


@pytest.mark.parametrize("make", MAKES_UP)
@pytest.mark.parametrize("other", [{}, {"b": 2}, {"a": 1, "c": 3}])
def test_a_key_that_a_mapping_would_make_up(make, other):
    """The error is that of a plain dict; the samples are only read."""
    for wrap, prefix in ((lambda own: own, ""), (lambda own: {"t": (own, 1)}, "t.0.")):
        samples = [wrap(make({"a": 1, "b": 2})), wrap(make(other))]
        before = [str(sample) for sample in samples]
        for collate in (wr.collate, wr.SampleList, lambda given: wr.SampleList(given[:1]).append(given[1])):
            error = refusal(lambda: collate(samples), KeyError, "sample 1 at", "the key is missing|a key that", index=1)
            assert error.path.startswith(prefix) and [str(sample) for sample in samples] == before
        given = {"a": np.empty(1, "i8"), "b": np.empty(1, "i8")}
        out = make({key: value for key, value in given.items() if key in other})
        if prefix == "":
            refusal(lambda: wr.collate(samples[:1], out=out), KeyError, "out at")
            assert set(out) == set(other) & set(given)


def test_mappings_with_all_keys_keep_their_factory():
    got = wr.collate([collections.defaultdict(list, a=leaf(i)) for i in range(3)])
    assert type(got) is collections.defaultdict and got.default_factory is list
    assert_tensor(got["a"], np.stack([leaf(i) for i in range(3)]))


# names in paths


@pytest.mark.parametrize("make", [Key, np.str_, Text])
def test_keys_that_equal_a_text_are_that_text(make):
    keys = [make("camera"), make("lidar")]
    samples = [{keys[0]: leaf(i), keys[1]: np.arange(i + 1)} for i in range(3)]
    for spec in ({"lidar": wr.Pad(), "camera": wr.Stack(dtype="float64")}, {keys[1]: wr.Pad(), keys[0]: wr.Stack(dtype="float64")}, {"li*": wr.Pad()}):
        got = wr.collate(samples, spec)
        assert got["lidar"].shape == (3, 3) and list(map(type, got)) == [type(keys[0])] * 2
        assert got["camera"].dtype == ("float32" if "li*" in spec else "float64")
    refusal(lambda: wr.collate(samples), wr.ShapeError, 'sample 1 at "lidar"', path="lidar")
    refusal(lambda: wr.collate([samples[0], {keys[0]: leaf()}]), KeyError, 'sample 1 at "lidar": the key is missing', path="lidar")
    mixed = wr.collate([{keys[0]: leaf()}, {"camera": leaf(1)}])
    assert_tensor(mixed[keys[0]], np.stack([leaf(), leaf(1)]))
    assert wr.explain([{"a": {keys[0]: leaf()}}], "collate").names == ["a.camera"]


# one sample, or text, in place of the list

CALLS = {
    **{form: getattr(wr, form) for form in ("stack", "concat", "pad", "ragged", "collate", "SampleList")},
    "extend": lambda samples: wr.SampleList().extend(samples),
    "explain": wr.explain,
    "explain collate": lambda samples: wr.explain(samples, "collate"),
}
NO_LISTS = {
    "dict": {"x": leaf(), "y": 1},
    "UserDict": UserDict(x=leaf()),
    "mappingproxy": types.MappingProxyType({"x": leaf()}),
    "str": "text",
    "bytes": b"text",
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", NO_LISTS)
def test_one_sample_in_place_of_the_list(call, kind):
    hint = "a list of them" if kind not in ("str", "bytes") else "."
    refusal(lambda: CALLS[call](NO_LISTS[kind]), TypeError, rf"expected a list of samples, got (\w+\.)?{kind}", hint)


@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_list_at_all(call):
    for given, kind in ((5, "int"), (2.5, "float"), (np.float32(1), "numpy.float32"), (len, "builtin_function_or_method")):
        refusal(lambda: CALLS[call](given), TypeError, f"^expected a list of samples, got {kind}$")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_table_of_columns_in_place_of_the_list(call, library):
    """Its iterator gives the columns, or their names; by the Arrow interface it is its rows."""
    table = pytest.importorskip(library).DataFrame({"x": [1, 2], "y": [3, 4]})
    if "collate" in call or call in ("SampleList", "extend"):
        CALLS[call](table)
    else:
        refusal(lambda: CALLS[call](table), TypeError, "expected a list of samples, got .*DataFrame, a table, whose rows are dicts; wr.collate takes it")


@pytest.mark.parametrize("kind", NO_LISTS)
def test_one_sample_in_place_of_the_list_of_the_integrations(kind, torch):
    import windrow.torch

    text = "expected a list of samples"
    for collate in (windrow.torch.collate_fn(), windrow.torch.collate_fn({"x": wr.Pad()})):
        refusal(lambda: collate(NO_LISTS[kind]), TypeError, text)
    pytest.importorskip("jax", reason="SKIP: JAX is not installed")
    import windrow.jax

    refusal(lambda: windrow.jax.collate(NO_LISTS[kind]), TypeError, text)


# None and text


def test_none_beside_text():
    refusal(lambda: wr.collate([{"a": "x"}, {"a": None}]), TypeError, '^sample 1 at "a": expected str, got NoneType$')
    refusal(lambda: wr.collate([{"a": b"x"}, {"a": b"y"}, {"a": None}]), TypeError, '^sample 2 at "a": .*NoneType$')
    refusal(lambda: wr.collate([{"a": None}, {"a": "x"}]), TypeError, '^sample 0 at "a": .*NoneType$')
    refusal(lambda: wr.collate([{"a": "x"}, {"a": 3}]), TypeError, '^sample 1 at "a": expected str, got int$')
    refusal(lambda: wr.collate([["x", "y"], ["x", None]]), TypeError, '^sample 1 at "1": .*NoneType$')
    assert wr.collate([{"a": "x"}, {"a": b"y"}]) == {"a": ["x", b"y"]}


def test_errors_of_the_root_have_no_path():
    for samples in ([{"a": 1}, 3], [[1], [1, 2]], ["x", None], [None], [(1,), {"a": 1}], [1, None]):
        error = refusal(lambda: wr.collate(samples), (TypeError, ValueError), r"^sample [01]: ")
        assert ' at "' not in str(error)


@pytest.mark.parametrize("spec", [{"id": wr.Pad()}, {"i*": wr.Stack()}, {"x": wr.Stack(), "id": wr.Ragged()}])
def test_a_spec_on_a_leaf_of_text_says_so(spec, torch):
    import windrow.torch

    samples = [{"id": "a", "x": leaf()}, {"id": "b", "x": leaf(1)}]
    text = "names the leaf .id. of str or bytes"
    refusal(lambda: wr.collate(samples, spec), ValueError, text)
    refusal(lambda: windrow.torch.collate_fn(spec)(samples), ValueError, text)
    pytest.importorskip("jax", reason="SKIP: JAX is not installed")
    import windrow.jax

    refusal(lambda: windrow.jax.collate(samples, spec), ValueError, text)


def test_a_glob_may_name_text_beside_tensors():
    assert wr.collate([{"id": "a", "x": leaf()}] * 2, {"*": wr.Stack()})["id"] == ["a", "a"]
    refusal(lambda: wr.collate(["a", "b"], wr.Pad()), ValueError, 'spec "[*]" names the leaf "" of str')


# containers made again


def test_dataclass_fields_that_the_constructor_does_not_take():
    @dataclasses.dataclass(frozen=True)
    class Sample:
        x: object
        y: object = dataclasses.field(init=False, default=None)

    def sample(seed):
        made = Sample(leaf(seed))
        object.__setattr__(made, "y", leaf(seed + 5))
        return made

    made = wr.collate([sample(0), sample(1)])
    assert type(made) is Sample
    assert_tensor(made.x, np.stack([leaf(0), leaf(1)]))
    assert_tensor(made.y, np.stack([leaf(5), leaf(6)]))
    refusal(lambda: wr.collate([sample(0), Sample(leaf())]), TypeError, '^sample 1 at "y": ')


def test_a_dataclass_field_that_is_not_set():
    @dataclasses.dataclass
    class Sample:
        x: object
        y: object = dataclasses.field(init=False)

    refusal(lambda: wr.collate([{"s": Sample(leaf())}]), AttributeError, '^sample 0 at "s.y": the field is not set$')


def test_a_dataclass_that_is_made_of_more_than_its_fields():
    @dataclasses.dataclass
    class Sample:
        x: object
        seed: dataclasses.InitVar[int]
        other: dataclasses.InitVar[int] = 3
        name: typing.ClassVar[str] = "sample"

        def __post_init__(self, seed, other):
            self.made_of = seed, other

    samples = [{"s": [Sample(leaf(i), 1, 2)]} for i in range(2)]
    out = {"s": [Sample(np.empty((2, *leaf().shape), leaf().dtype), 7, 7)]}
    for made in (wr.collate(samples), wr.collate(wr.SampleList(samples)), wr.collate(samples, out=out)):
        assert made["s"][0].made_of == (1, 2)
        assert_tensor(made["s"][0].x, np.stack([leaf(0), leaf(1)]))
    assert wr.SampleList(samples)[1]["s"][0].made_of == (1, 2)


# classes that do something to the values they are made of


@dataclasses.dataclass
class Scaled:
    x: object

    def __post_init__(self):
        self.x, self.source = self.x / 255, "camera"


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenScaled:
    x: object

    def __post_init__(self):
        object.__setattr__(self, "x", self.x / 255)


class NamedScaled(collections.namedtuple("NamedScaled", "x y")):
    def __new__(cls, x, y):
        return super().__new__(cls, x / 255, y / 255)


class TupleScaled(tuple):
    def __new__(cls, *entries):
        made = super().__new__(cls, (entry / 255 for entry in entries))
        made.source = "camera"
        return made


class ListScaled(list):
    def __init__(self, *entries):
        super().__init__(entry / 255 for entry in entries)
        self.source = "camera"


class DictScaled(dict):
    def __init__(self, **entries):
        super().__init__({name: value / 255 for name, value in entries.items()})
        self.source = "camera"


class DictSetScaled(dict):
    def __setitem__(self, key, value):
        super().__setitem__(key, value / 255)


class OrderedSetScaled(collections.OrderedDict):
    __slots__ = "__slot", "unset"

    def __init__(self, entries):
        super().__init__(entries)
        self.source, self.__slot = "camera", "slot"

    def __setitem__(self, key, value):
        super().__setitem__(key, value / 255)

    @property
    def slot(self):
        return self.__slot


class FactorySetScaled(collections.defaultdict):
    def __setitem__(self, key, value):
        super().__setitem__(key, value / 255)


class ListAppendScaled(list):
    def append(self, value):
        super().append(value / 255)

    def extend(self, values):
        super().extend(value / 255 for value in values)


def filled(made, x):
    """Entries by the methods of the class, keys in an order that is not sorted."""
    for key, value in (("y", x), ("x", x + 1)):
        made[key] = value
    return made


@dataclasses.dataclass
class OutputScaled(collections.OrderedDict):
    x: object = None

    def __post_init__(self):
        self.x = self.x / 255
        self["x"] = self.x
        self.source = "camera"


SCALED = {
    Scaled: lambda x: Scaled(x),
    FrozenScaled: lambda x: FrozenScaled(x),
    NamedScaled: lambda x: NamedScaled(x, x + 1),
    TupleScaled: lambda x: TupleScaled(x, x + 1),
    ListScaled: lambda x: ListScaled(x, x + 1),
    DictScaled: lambda x: DictScaled(x=x, y=x + 1),
    DictSetScaled: lambda x: filled(DictSetScaled(), x),
    OrderedSetScaled: lambda x: filled(OrderedSetScaled({}), x),
    FactorySetScaled: lambda x: filled(FactorySetScaled(list), x),
    ListAppendScaled: lambda x: ListAppendScaled([x, x + 1]),
    OutputScaled: lambda x: OutputScaled(x),
}


def leaves_of(tree):
    if isinstance(tree, dict):
        return list(tree.values())
    return list(tree) if isinstance(tree, (tuple, list)) else [tree.x]


@pytest.mark.parametrize("cls", SCALED)
def test_a_batch_is_not_made_by_the_class_again(cls):
    """The fields are stacked as NumPy stacks them, in a copy of the first sample."""
    samples = [SCALED[cls](leaf(i)) for i in range(3)]
    want = [np.stack(column) for column in zip(*map(leaves_of, samples))]
    for made in (wr.collate(samples), wr.collate([{"t": [sample]} for sample in samples])["t"][0], wr.collate(wr.SampleList(samples))):
        assert type(made) is cls and made is not samples[0]
        for got, expected in zip(leaves_of(made), want):
            assert_tensor(got, expected)
        for name in ("source", "slot", "default_factory"):
            assert getattr(made, name, None) == getattr(samples[0], name, None)
        assert not isinstance(made, dict) or list(made) == list(samples[0])
        assert cls is not OutputScaled or made.x is made["x"]
    item = wr.SampleList(samples)[1]
    assert type(item) is cls
    for got, expected in zip(leaves_of(item), leaves_of(samples[1])):
        assert_tensor(got, expected)


def test_a_counter_keeps_its_type():
    samples = [{"n": collections.Counter(text)} for text in ("aab", "abb")]
    for made in (wr.collate(samples), wr.collate(wr.SampleList(samples))):
        assert type(made["n"]) is collections.Counter
        assert_tensor(made["n"]["a"], np.array([2, 1]))
        assert_tensor(made["n"]["b"], np.array([1, 2]))
    assert samples[0]["n"] == {"a": 2, "b": 1}
    refusal(lambda: wr.collate([{"n": collections.Counter("ab")}, {"n": collections.Counter("a")}]), KeyError, 'sample 1 at "n.b"', path="n.b")


def test_subclasses_of_list_keep_their_type():
    class Own(list):
        pass

    made = wr.collate([Own([leaf(0), leaf(1)]), Own([leaf(2), leaf(3)])])
    assert type(made) is Own and len(made) == 2
    assert_tensor(made[1], np.stack([leaf(1), leaf(3)]))


# classes that keep or refuse their entries


class Kept(MutableMapping):
    """Entries in an attribute, which a shallow copy shares."""

    def __init__(self, entries):
        self.entries = entries

    def __getitem__(self, key):
        return self.entries[key]

    def __setitem__(self, key, value):
        self.entries[key] = value

    def __delitem__(self, key):
        del self.entries[key]

    def __iter__(self):
        return iter(self.entries)

    def __len__(self):
        return len(self.entries)


class KeptInSlot(Kept):
    __slots__ = "own"

    @property
    def entries(self):
        return self.own

    @entries.setter
    def entries(self, entries):
        self.own = entries


class KeptDeep(Kept):
    def __init__(self, entries):
        super().__init__(types.SimpleNamespace(**entries))

    def __getitem__(self, key):
        return vars(self.entries)[key]

    def __setitem__(self, key, value):
        setattr(self.entries, key, value)

    def __iter__(self):
        return iter(vars(self.entries))

    def __len__(self):
        return len(vars(self.entries))


class Folded(Kept):
    """As requests' CaseInsensitiveDict."""

    def __init__(self, entries):
        super().__init__({key.lower(): (key, value) for key, value in entries.items()})

    def __getitem__(self, key):
        return self.entries[key.lower()][1]

    def __setitem__(self, key, value):
        self.entries[key.lower()] = key, value

    def __iter__(self):
        return (key for key, _ in self.entries.values())


class Chained(ChainMap):
    """Entries in a dict of its own, or in one that copies share and that is not written to."""

    def __init__(self, *maps):
        super().__init__(*(maps if len(maps) > 1 else ({"a": maps[0]["a"]}, {"b": maps[0]["b"]})))


class KeptInUserDict(Kept):
    def __init__(self, entries):
        super().__init__(UserDict(entries))


class Record(Kept):
    """Entries that are attributes."""

    entries = property(vars)

    def __init__(self, entries):
        vars(self).update(entries)


class Cells(Kept):
    """A list for each entry, which a copy of the dict shares."""

    def __init__(self, entries):
        super().__init__({key: [value] for key, value in entries.items()})

    def __getitem__(self, key):
        return self.entries[key][0]

    def __setitem__(self, key, value):
        self.entries[key][0] = value


class Elsewhere(Kept):
    """Entries in a store, as a group of zarr has them."""

    store = {}
    entries = property(lambda self: self.store[self.name])

    def __init__(self, entries):
        self.name = f"group{len(self.store)}"
        self.store[self.name] = dict(entries)


class Itself(Kept):
    def __copy__(self):
        return self


SHARED = [KeptDeep, Cells, Elsewhere, Itself]


@pytest.mark.parametrize("cls", [Kept, KeptInSlot, KeptInUserDict, Folded, Chained, Record, *SHARED])
def test_mappings_that_keep_their_entries_are_only_read(cls, monkeypatch):
    samples, written, own_set = [cls({"a": leaf(i), "b": leaf(i + 1)}) for i in range(3)], [], cls.__setitem__
    monkeypatch.setattr(cls, "__setitem__", lambda self, *entry: (written.append(self), own_set(self, *entry)))
    entries = [dict(sample) for sample in samples]
    items = wr.SampleList(samples)
    for made in (wr.collate(samples), wr.collate(items), items[1]):
        assert type(made) is (dict if cls in SHARED else cls)
        assert not any(own is sample for own in written for sample in samples) and (not written or cls not in SHARED)
        for key in "ab":
            column = [own[key] for own in entries]
            assert_tensor(made[key], np.stack(column) if len(made[key].shape) == 2 else column[1])
    for sample, own in zip(samples, entries):
        assert sorted(sample) == ["a", "b"] and all(sample[key] is own[key] for key in own)


def refuses(*_):
    raise TypeError("immutable")


class FrozenDict(dict):
    __setitem__ = refuses


class FrozenOrderedDict(collections.OrderedDict):
    __setitem__ = refuses

    def __init__(self, entries):
        super().__init__()
        for key, value in entries.items():
            super().__setitem__(key, value)


class FrozenList(list):
    __setitem__ = append = extend = refuses


class Attributes(dict):
    def __init__(self, *entries):
        super().__init__(*entries)
        self.__dict__ = self


@pytest.mark.parametrize("cls", [FrozenDict, FrozenOrderedDict, FrozenList, Attributes])
def test_classes_that_refuse_entries_keep_their_type(cls):
    is_list = cls is FrozenList
    samples = [cls([leaf(i)] if is_list else {"a": leaf(i)}) for i in range(3)]
    key, items = 0 if is_list else "a", wr.SampleList(samples)
    for made, want in ((wr.collate(samples), np.stack([leaf(i) for i in range(3)])), (items[1], leaf(1))):
        assert type(made) is cls and len(made) == 1
        assert_tensor(made[key], want)
        assert cls is not Attributes or made.a is made["a"]


def test_a_class_that_cannot_be_copied_is_named():
    @dataclasses.dataclass
    class Held:
        x: object

        def __copy__(self):
            raise RuntimeError("one only")

    samples = [{"t": Held(leaf(i))} for i in range(2)]
    for call in (lambda: wr.collate(samples), lambda: wr.SampleList(samples)):
        refusal(call, TypeError, r'sample 0 at "t": .*Held cannot be copied.*one only.*register_node', path="t", index=0)


# deeper than the stack

SMALL_STACK = """
import collections, dataclasses
from collections import UserDict, namedtuple

@dataclasses.dataclass
class Item:
    x: object

Pair = namedtuple("Pair", "x")
NODES = [lambda x: {"x": x}, lambda x: [x], lambda x: (x,), lambda x: Pair(x), lambda x: UserDict(x=x), lambda x: Item(x)]

def deep(levels, kinds):
    tree = np.ones(3)
    for level in range(levels):
        tree = NODES[kinds[level % len(kinds)]](tree)
    return tree

def leaf_of(tree):
    while not hasattr(tree, "data_ptr") and not hasattr(tree, "shape"):
        tree = tree["x"] if isinstance(tree, (dict, UserDict)) else tree.x if isinstance(tree, Item) else tree[0]
    return tree

failed = []
def body():
    for kinds, collate in calls:
        tree = collate([deep(LEVELS, kinds)] * 2)
        if tree is not None and tuple(leaf_of(tree).shape) != (2, 3):
            failed.append(kinds)

# The libraries start on the whole stack.
LEVELS = 2
body()
LEVELS = 250
threading.stack_size(128 << 10)
thread = threading.Thread(target=body)
thread.start()
thread.join()
assert not failed, failed
print("done")
"""


@pytest.mark.slow
def test_deep_trees_on_a_small_stack():
    calls = """
calls = [((kind,), wr.collate) for kind in range(6)] + [(range(6), wr.collate)]
calls += [(range(6), lambda trees: (wr.explain(trees, "collate"), None)[1])]
"""
    assert isolated.run(calls + SMALL_STACK).split() == ["done"]


@pytest.mark.slow
def test_deep_trees_on_a_small_stack_by_torchs_rules(torch):
    calls = """
import torch, windrow.torch
one, other = windrow.torch.collate_fn(), windrow.torch.collate_fn(arena=True)
calls = [((kind,), one) for kind in range(4)] + [(range(5), one), (range(5), other)]
"""
    assert isolated.run(calls + SMALL_STACK).split() == ["done"]


@pytest.mark.slow
def test_deep_trees_on_a_small_stack_by_jaxs_rules():
    pytest.importorskip("jax", reason="SKIP: JAX is not installed")
    calls = """
import windrow.jax
calls = [((kind,), windrow.jax.collate) for kind in range(4)] + [(range(4), windrow.jax.collate)]
"""
    assert isolated.run(calls + SMALL_STACK).split() == ["done"]
