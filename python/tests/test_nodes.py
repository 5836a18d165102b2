"""Classes that `wr.collate` takes apart and makes again: registered ones, attrs, pydantic, PyTrees, TensorDict."""

import collections
import dataclasses
import functools
import threading

import numpy as np
import pytest

import windrow as wr
from helpers import assert_tensor, paint, refusal
from windrow import _nodes


@pytest.fixture
def registered():
    """Registers a class for one test."""
    seen = []

    def register(cls, *functions):
        wr.register_node(cls, *functions)
        seen.append(cls)
        return cls

    yield register
    for cls in seen:
        del _nodes._registered[cls]


class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b


def leaf(seed=0, n=3):
    return paint(n, "float32", seed)


def assert_stacked(got, leaves):
    assert_tensor(got, np.stack(leaves))


# wr.register_node


def test_a_registered_class(registered):
    registered(Pair, vars, lambda children: Pair(**children))
    samples = [{"p": Pair(leaf(i), {"x": [leaf(i + 9), "t"]}), "q": (Pair(i, leaf(n=2 + i)),)} for i in range(3)]
    batch = wr.collate(samples, {"q.0.b": wr.Pad(mask="real")})
    assert type(batch["p"]) is Pair and type(batch["q"][0]) is Pair
    assert_stacked(batch["p"].a, [leaf(i) for i in range(3)])
    assert_stacked(batch["p"].b["x"][0], [leaf(i + 9) for i in range(3)])
    assert batch["p"].b["x"][1] == ["t"] * 3
    assert batch["q"][0].b.mask.shape == (3, 4)
    only = [{"p": sample["p"]} for sample in samples]
    out = {"p": Pair(np.empty((3, 3), "f4"), {"x": [np.empty((3, 3), "f4")]})}
    wr.collate([{"p": Pair(leaf(i), {"x": [leaf(i)]})} for i in range(3)], out=out)
    assert_stacked(wr.asarray(out["p"].a), [leaf(i) for i in range(3)])
    assert wr.explain(only, "collate").names == ["p.a", "p.b.x.0"]


def test_a_class_of_another_kind_can_be_registered(registered):
    class Record(dict):
        pass

    class Row(list):
        pass

    registered(Record, dict, Record)
    registered(Row, lambda row: {"sum": np.float64(sum(row))}, lambda children: children["sum"])
    batch = wr.collate([Record(r=Row([1.0, 2.0])), Record(r=Row([3.0]))])
    assert type(batch) is Record
    assert_tensor(batch["r"], np.array([3.0, 3.0]))


def test_what_register_node_refuses(registered):
    for cls in (dict, list, tuple, str, int, object, np.ndarray):
        refusal(lambda: wr.register_node(cls, vars, cls), TypeError, "wr.collate has rules for")
    refusal(lambda: wr.register_node(Pair(1, 2), vars, Pair), TypeError, "takes a class, got Pair")
    refusal(lambda: wr.register_node(Pair, 3, Pair), TypeError, "flatten must be a function, got 3")
    refusal(lambda: wr.register_node(Pair, vars, None), TypeError, "unflatten must be a function, got None")
    registered(Pair, vars, lambda children: Pair(**children))
    refusal(lambda: wr.register_node(Pair, vars, Pair), ValueError, "Pair is registered already")


def test_errors_within_a_registered_class(registered):
    registered(Pair, lambda pair: vars(pair) if pair.b is not None else [1], lambda children: Pair(**children))
    good = Pair(leaf(), leaf())
    refusal(lambda: wr.collate([{"p": good}, {"p": Pair(leaf(), None)}]), TypeError, 'sample 1 at "p": expected a mapping', "got list")
    refusal(lambda: wr.collate([{"p": good}, {"p": {}}]), TypeError, 'sample 1 at "p": expected .*Pair, got dict')
    refusal(lambda: wr.collate([{"p": good}, {"p": Pair(leaf(n=4), leaf())}]), wr.ShapeError, 'sample 1 at "p.a"', index=1, path="p.a")
    more = Pair(leaf(), leaf())
    more.c = 1
    refusal(lambda: wr.collate([good, more]), KeyError, "sample 1", "sample 0 does not have")

    class Sub(Pair):
        pass

    refusal(lambda: wr.collate([Sub(leaf(), leaf())]), TypeError, "sample 0: expected an array-like or .*, got .*Sub; .*wr.register_node")
    raising = registered(type("Raising", (), {}), lambda _: 1 / 0, dict)
    with pytest.raises(ZeroDivisionError):
        wr.collate([raising()])


# attrs and pydantic


def test_attrs():
    attrs = pytest.importorskip("attrs", reason="SKIP: attrs is not installed")

    @attrs.define
    class Inner:
        x: object
        _hidden: object = 0
        made: object = attrs.field(init=False, default=1)

    @attrs.frozen
    class Outer:
        inner: object
        name: str

    samples = [Outer(Inner(leaf(i), i), f"n{i}") for i in range(3)]
    batch = wr.collate(samples)
    assert type(batch) is Outer and type(batch.inner) is Inner and batch.name == ["n0", "n1", "n2"]
    assert_stacked(batch.inner.x, [leaf(i) for i in range(3)])
    assert_tensor(batch.inner._hidden, np.arange(3))
    assert_tensor(batch.inner.made, np.ones(3, "int64"))
    unset = Inner(leaf())
    del unset.x
    refusal(lambda: wr.collate([{"i": Inner(leaf())}, {"i": unset}]), AttributeError, 'sample 1 at "i.x": the field is not set')


def test_pydantic():
    pydantic = pytest.importorskip("pydantic", minversion="2", reason="SKIP: pydantic 2 is not installed")

    class Inner(pydantic.BaseModel):
        label: int = pydantic.Field(alias="y")

    class Outer(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow", frozen=True)
        inner: Inner
        values: list
        name: str

    samples = [Outer(inner=Inner(y=i), values=[i, 2.5 * i], name=f"n{i}", weight=float(i)) for i in range(3)]
    batch = wr.collate(samples, {"values": wr.Stack()})
    assert type(batch) is Outer and type(batch.inner) is Inner and batch.name == ["n0", "n1", "n2"]
    assert_tensor(batch.inner.label, np.arange(3))
    assert_tensor(batch.values, np.array([[0.0, 0], [1, 2.5], [2, 5]]))
    assert_tensor(batch.weight, np.arange(3.0))
    assert samples[0].inner.label == 0 and samples[0].weight == 0.0

    @pydantic.dataclasses.dataclass
    class Point:
        x: int
        y: float = 1.0

    batch = wr.collate([Point(1), Point(2)])
    assert type(batch) is Point
    assert_tensor(batch.x, np.array([1, 2]))
    assert_tensor(batch.y, np.array([1.0, 1.0]))


def test_batches_are_not_converted_or_validated():
    attrs = pytest.importorskip("attrs", reason="SKIP: attrs is not installed")
    pydantic = pytest.importorskip("pydantic", minversion="2", reason="SKIP: pydantic 2 is not installed")

    def scaled(x):
        return x / 255

    def __attrs_post_init__(self):
        object.__setattr__(self, "z", self.x * 2)

    fields = {"x": attrs.field(converter=scaled), "z": attrs.field(init=False)}
    classes = [
        attrs.make_class("Open", dict(fields), class_body={"__attrs_post_init__": __attrs_post_init__}),
        attrs.make_class("Frozen", dict(fields), frozen=True, slots=True, class_body={"__attrs_post_init__": __attrs_post_init__}),
    ]
    for cls in classes:
        samples = [cls(leaf(i)) for i in range(3)]
        for batch in (wr.collate(samples), wr.collate(wr.SampleList(samples))):
            assert type(batch) is cls
            assert_stacked(batch.x, [leaf(i) / 255 for i in range(3)])
            assert_stacked(batch.z, [leaf(i) / 255 * 2 for i in range(3)])

    class Model(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(arbitrary_types_allowed=True, validate_assignment=True)
        x: np.ndarray
        _seen: int = pydantic.PrivateAttr(default=0)

        @pydantic.field_validator("x")
        @classmethod
        def scale(cls, x):
            return x / 255

        def model_post_init(self, context):
            self._seen += 1

    made_of = pydantic.dataclasses.dataclass(config=pydantic.ConfigDict(arbitrary_types_allowed=True, validate_assignment=True))
    Point = made_of(type("Point", (), {"__annotations__": {"x": np.ndarray}, "__post_init__": lambda self: vars(self).update(x=self.x / 255)}))
    for cls in (Model, Point):
        samples = [cls(x=leaf(i)) for i in range(3)]
        for batch in (wr.collate(samples), wr.collate(wr.SampleList(samples))):
            assert type(batch) is cls and getattr(batch, "_seen", 1) == 1
            assert_stacked(batch.x, [sample.x for sample in samples])
            assert_stacked(batch.x, [leaf(i) / 255 for i in range(3)])


def with_state(sample):
    """The sample, with attributes that are no fields: mutable, not to be copied, the value of a field, the sample, a cached property."""
    for name, value in {"log": [1], "names": {"a": [1]}, "lock": threading.Lock(), "input": sample.x, "own": sample}.items():
        object.__setattr__(sample, "_" + name, value)
    assert sample.total == sample.x.sum()
    return sample


def by_lightning(sample):
    """The sample's copy by Lightning, which refuses locks."""
    utilities = pytest.importorskip("lightning_utilities", reason="SKIP: lightning is not installed")
    lock, sample._lock = sample._lock, None
    made = utilities.apply_to_collection(sample, np.ndarray, lambda x: np.stack([x, x + 1]))
    made._lock = sample._lock = lock
    return made


@pytest.mark.parametrize("kind", ["dataclass", "attrs", "pydantic", "pydantic dataclass"])
def test_a_batch_shares_no_state_with_its_first_sample(kind):
    """Attributes that are no fields are copied by `deepcopy`, as in Lightning's `apply_to_collection`."""
    annotations = {"x": object}
    body = {"__annotations__": annotations, "total": functools.cached_property(lambda self: int(np.asarray(self.x).sum()))}
    if kind == "dataclass":
        cls = dataclasses.dataclass(type("Sample", (), body))
    elif kind == "attrs":
        attrs = pytest.importorskip("attrs", reason="SKIP: attrs is not installed")
        cls = attrs.make_class("Sample", {"x": attrs.field()}, slots=False, class_body={"total": body["total"]})
        cls.total.__set_name__(cls, "total")
    else:
        pydantic = pytest.importorskip("pydantic", minversion="2", reason="SKIP: pydantic 2 is not installed")
        if kind == "pydantic":
            private = {f"_{name}": pydantic.PrivateAttr() for name in ("log", "names", "lock", "input", "own")}
            annotations.update({name: object for name in private})
            cls = type("Sample", (pydantic.BaseModel,), {**body, **private, "__module__": __name__})
        else:
            cls = pydantic.dataclasses.dataclass(type("Sample", (), body))
    samples = [with_state(cls(x=np.full(3, i + 1.0))) for i in range(2)]
    items = wr.SampleList(samples)
    batches = [wr.collate(samples), wr.collate([{"t": [sample]} for sample in samples])["t"][0], wr.collate(items), wr.collate(items)]
    for batch in (*batches, items[0], *([by_lightning(samples[0])] if kind == "dataclass" else [])):
        assert type(batch) is cls and batch._log == [1] and batch._names == {"a": [1]}
        assert batch._lock is samples[0]._lock and np.array_equal(batch._input, samples[0].x) and batch._own is batch
        assert batch.total == (3 if batch.x.shape == (3,) else 9)
        batch._log.append(9)
        batch._names["a"].append(9)
    assert samples[0]._log == [1] and samples[0]._names == {"a": [1]} and samples[0].total == 3


def test_fields_that_only_another_sample_has():
    pydantic = pytest.importorskip("pydantic", minversion="2", reason="SKIP: pydantic 2 is not installed")
    config = pydantic.ConfigDict(extra="allow")
    Model = pydantic.create_model("Model", __config__=config, x=(int, ...))
    Point = pydantic.dataclasses.dataclass(config=config)(type("Point", (), {"__annotations__": {"x": int}}))
    for cls in (Model, Point):
        assert_tensor(wr.collate([cls(x=1, y=2), cls(x=3, y=4)]).y, np.array([2, 4]))
        more, fewer = [{"m": cls(x=1)}, {"m": cls(x=2, y=3)}], [{"m": cls(x=1, y=2)}, {"m": cls(x=2)}]
        for samples, text in ((more, "a key that"), (fewer, "the key is missing")):
            for call in (wr.collate, wr.SampleList, lambda given: wr.SampleList(given[:1]).append(given[1])):
                refusal(lambda: call(samples), KeyError, f'sample 1 at "m.y": {text}', index=1, path="m.y")


# PyTrees


@pytest.mark.parametrize("with_keys", [True, False])
def test_classes_registered_with_torchs_pytrees(with_keys):
    pytree = pytest.importorskip("torch.utils._pytree", reason="SKIP: torch is not installed")
    cls = type("Node", (Pair,), {"mode": "a"})

    def flatten(node):
        return [node.a, node.b], node.mode

    def flatten_with_keys(node):
        return [(pytree.GetAttrKey("a"), node.a), (pytree.GetAttrKey("b"), node.b)], node.mode

    def unflatten(leaves, mode):
        made = cls(*leaves)
        made.mode = mode
        return made

    keys = {"flatten_with_keys_fn": flatten_with_keys} if with_keys else {}
    pytree.register_pytree_node(cls, flatten, unflatten, serialized_type_name=f"windrow.test.{with_keys}", **keys)
    try:
        samples = [cls(leaf(i), leaf(n=2 + i)) for i in range(2)]
        batch = wr.collate(samples, {"b" if with_keys else "1": wr.Pad()})
        assert type(batch) is cls and batch.mode == "a" and batch.b.shape == (2, 3)
        assert_stacked(batch.a, [leaf(i) for i in range(2)])
        samples[1].mode = "b"
        refusal(lambda: wr.collate(samples), ValueError, "sample 1: expected .*Node with 'a' beside its leaves, got 'b'")
    finally:
        pytree.SUPPORTED_NODES.pop(cls)
        _nodes._known_pytrees.pop(cls, None)


def test_tuples_that_pytrees_know():
    """They are leaves by name, and tuples before and after that."""
    pytree = pytest.importorskip("torch.utils._pytree", reason="SKIP: torch is not installed")
    cls = collections.namedtuple("cls", "a b")
    pytree.register_pytree_node(cls, lambda node: (list(node), None), lambda leaves, _: ("rebuilt", *leaves))
    samples = [{"p": cls(1, 2)}, {"p": cls(3, 4)}]
    try:
        for _ in range(2):
            assert type(wr.collate(samples)["p"]) is cls
            assert_tensor(wr.collate(samples, {"p": wr.Stack()})["p"], np.array([[1, 2], [3, 4]]))
    finally:
        pytree.SUPPORTED_NODES.pop(cls)
    size = torch.Size([2, 3])
    assert type(wr.collate([size, size])) is tuple
    assert_tensor(wr.collate([{"s": size}] * 2, {"s": wr.Stack()})["s"], np.array([[2, 3]] * 2))


def test_leaves_of_one_name():
    pytree = pytest.importorskip("torch.utils._pytree", reason="SKIP: torch is not installed")
    cls = type("Node", (), {})
    keys = [pytree.MappingKey(1), pytree.MappingKey("1")]
    pytree.register_pytree_node(
        cls, lambda _: ([1, 2], None), lambda leaves, _: leaves, serialized_type_name="windrow.test.names",
        flatten_with_keys_fn=lambda _: (list(zip(keys, [1, 2])), None),
    )  # fmt: skip
    try:
        refusal(lambda: wr.collate([cls(), cls()]), ValueError, "two leaves of a .*Node are named '1'")
    finally:
        pytree.SUPPORTED_NODES.pop(cls)


@pytest.mark.parametrize("base", [str, int, np.ndarray])
def test_subclasses_that_have_rules_are_not_registered(base):
    refusal(lambda: wr.register_node(type("Own", (base,), {}), vars, dict), TypeError, "wr.collate has rules for Own")


@pytest.mark.parametrize("is_global", [True, False])
def test_classes_registered_with_optree(is_global):
    optree = pytest.importorskip("optree", reason="SKIP: optree is not installed")
    cls = type("Node", (Pair,), {})
    namespace = optree.registry.__GLOBAL_NAMESPACE if is_global else "windrow"
    optree.register_pytree_node(cls, lambda node: ((node.a, node.b), None, ("a", "b")), lambda _, leaves: cls(*leaves), namespace=namespace)
    try:
        batch = wr.collate([cls(leaf(i), i) for i in range(2)], {"a": wr.Stack(dtype="float64")})
        assert type(batch) is cls and batch.a.dtype == "float64"
        assert_tensor(batch.b, np.arange(2))
    finally:
        optree.unregister_pytree_node(cls, namespace=namespace)
        _nodes._known_pytrees.pop(cls, None)


# Field by field beside what the library or torch makes of the same objects.

torch = pytest.importorskip("torch", reason="SKIP: torch is not installed")

def values_of(library):
    """Objects of a class of a library, and the stacked fields that its own functions give for a list of them."""
    module = pytest.importorskip(library, reason=f"SKIP: {library} is not installed")
    numbers = [(torch.from_numpy(paint((2, 3), "float32", i)), torch.tensor(i), {"y": torch.arange(3) + i}) for i in range(4)]
    default_collate = torch.utils.data.default_collate
    if library == "attrs":
        cls = module.make_class("Item", ["x", "label", "more"], frozen=True)
        objects = [cls(*fields) for fields in numbers]
        return objects, default_collate([module.asdict(item) for item in objects]), module.asdict
    if library == "pydantic":
        cls = module.create_model("Item", x=(object, ...), label=(object, ...), more=(dict, ...))
        objects = [cls(x=x, label=label, more=more) for x, label, more in numbers]
        return objects, default_collate([item.model_dump() for item in objects]), dict
    cls = type("Item", (), {"__init__": lambda self, x, label, more: vars(self).update(x=x, label=label, more=more)})
    objects, names = [cls(*fields) for fields in numbers], ["x", "label", "more"]
    if library == "optree":
        module.register_pytree_node(
            cls, lambda item: (tuple(vars(item).values()), None, names), lambda _, fields: cls(*fields), namespace=module.registry.__GLOBAL_NAMESPACE
        )
        stacked = module.tree_map(lambda *leaves: torch.stack(leaves), *objects)
    else:
        module.register_pytree_node(cls, lambda item: (list(vars(item).values()), None), lambda fields, _: cls(*fields))
        stacked = module.tree_map(lambda *leaves: torch.stack(leaves), *objects)
    return objects, vars(stacked), vars


@pytest.mark.parametrize("library", ["attrs", "pydantic", "torch.utils._pytree", "optree"])
def test_field_by_field_as_the_library_and_torch_have_it(library):
    objects, want, fields_of = values_of(library)
    batch = wr.collate(objects)
    assert type(batch) is type(objects[0])
    got = fields_of(batch)
    assert list(got) == list(want) == ["x", "label", "more"] and list(got["more"]) == ["y"]
    for a, b in ((got["x"], want["x"]), (got["label"], want["label"]), (got["more"]["y"], want["more"]["y"])):
        assert a.torch().dtype == b.dtype and torch.equal(a.torch(), b)


# TensorDict


@pytest.fixture(scope="module")
def td():
    return pytest.importorskip("tensordict", reason="SKIP: tensordict is not installed")


def make(td, i, **more):
    values = {
        "image": torch.from_numpy(paint((2, 3, 4), "uint8", i)),
        "nested": td.TensorDict({"x": torch.full((2, 3), float(i)), "deep": {"y": torch.arange(2) + i}}, batch_size=[2]),
        **more,
    }
    return td.TensorDict(values, batch_size=[2], names=["time"])


def assert_same_tensordict(got, want):
    assert type(got) is type(want) and got.batch_size == want.batch_size and got.device == want.device
    assert got.names == want.names and list(got.keys()) == list(want.keys())
    for key in want.keys():
        a, b = got.get(key), want.get(key)
        if isinstance(b, torch.Tensor):
            assert type(a) is torch.Tensor and a.dtype == b.dtype and torch.equal(a, b), key
        elif type(b).__name__.startswith("NonTensor"):
            assert a.tolist() == b.tolist()
        else:
            assert_same_tensordict(a, b)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_tensordicts_are_stacked_as_torch_stacks_them(td, device):
    samples = [make(td, i) for i in range(4)]
    samples = [sample.to(device) for sample in samples] if device else samples
    assert_same_tensordict(wr.collate(samples), torch.stack(samples))
    tree = wr.collate([{"td": sample, "i": i} for i, sample in enumerate(samples)])
    assert_same_tensordict(tree["td"], torch.stack(samples))
    empty = [td.TensorDict({"a": torch.tensor(i)}, batch_size=[]) for i in range(3)]
    assert_same_tensordict(wr.collate(empty), torch.stack(empty))
    cast = wr.collate(samples, {"nested.x": wr.Stack(dtype="float64")})
    assert cast["nested", "x"].dtype == torch.float64 and cast["nested", "deep", "y"].shape == (4, 2)


def test_non_tensor_data(td):
    samples = [make(td, i, text="a" if i else "b", same="c") for i in range(3)]
    assert_same_tensordict(wr.collate(samples), torch.stack(samples))
    refusal(lambda: wr.collate([samples[0], make(td, 1, text="a")]), KeyError, "same")
    data = [{"text": td.NonTensorData(f"n{i}"), "i": i} for i in range(3)]
    batch = wr.collate(data)
    assert batch["text"].tolist() == torch.stack([sample["text"] for sample in data]).tolist() == ["n0", "n1", "n2"]
    assert_tensor(batch["i"], np.arange(3))
    uneven = [{"text": td.NonTensorData("a", batch_size=[size])} for size in (1, 2)]
    refusal(lambda: wr.collate(uneven), wr.ShapeError, r'sample 1 at "text": expected batch_size \(1,\), got \(2,\)', index=1, path="text")


def test_names_that_not_all_have_are_left_out_and_a_subclass_is_kept(td):
    def named(name):
        return td.TensorDict({"a": torch.ones(3)}, batch_size=[3], names=name and [name])

    for names in (("t", "u"), (None, "u"), ("t", None), ("t", "t"), (None, None)):
        samples = [named(name) for name in names]
        assert wr.collate(samples).names == torch.stack(samples).names
    nested = [td.TensorDict({"a": torch.ones(3), "n": {"b": torch.ones(3, 2)}}, batch_size=[3], names=["t"]) for _ in range(2)]
    got, want = wr.collate(nested), torch.stack(nested)
    assert got.names == want.names == [None, "t"] and got["n"].names == want["n"].names

    class Own(td.TensorDict):
        def __init__(self, extra):
            super().__init__({"a": torch.full((3,), extra), "n": {"b": torch.ones(3)}}, batch_size=[3])

    got, want = wr.collate([Own(i) for i in range(2)]), torch.stack([Own(i) for i in range(2)])
    assert type(got) is type(want) is Own and torch.equal(got["n", "b"], want["n", "b"])


def test_tensorclasses(td):
    @td.tensorclass
    class Item:
        x: torch.Tensor
        inner: td.TensorDict
        name: str

    samples = [Item(x=torch.full((2, 3), i), inner=make(td, i), name=f"n{i}", batch_size=[2]) for i in range(3)]
    got, want = wr.collate(samples), torch.stack(samples)
    assert type(got) is Item and got.batch_size == want.batch_size
    assert_same_tensordict(got._tensordict, want._tensordict)


def test_memory_mapped_tensordicts(td, tmp_path):
    whole = torch.stack([make(td, i) for i in range(4)]).contiguous()
    whole.memmap_(str(tmp_path))
    loaded = td.TensorDict.load_memmap(str(tmp_path))
    samples = [loaded[i] for i in (2, 0)]
    got, want = wr.collate(samples), torch.stack(samples)
    for key in (("image",), ("nested", "x"), ("nested", "deep", "y")):
        assert torch.equal(got[key], want[key])
    out = torch.stack(samples).contiguous().memmap_(str(tmp_path / "out"))
    wr.collate(samples, out=out)
    assert torch.equal(td.TensorDict.load_memmap(str(tmp_path / "out"))["image"], want["image"])


def test_lazy_stacks_as_samples(td):
    samples = [td.LazyStackedTensorDict.lazy_stack([make(td, i), make(td, i + 1)]) for i in range(3)]
    got = wr.collate(samples)
    assert got.batch_size == torch.Size([3, 2, 2])
    assert torch.equal(got["nested", "x"], torch.stack(samples)["nested", "x"])


def test_what_a_tensordict_refuses(td):
    samples = [make(td, i) for i in range(2)]
    for spec in (wr.Pad(), wr.Ragged(), wr.Concat()):
        text = f"the spec at \"nested.x\" is that of wr.{spec.form}: leaves within tensordict._td.TensorDict are torch tensors"
        refusal(lambda: wr.collate(samples, {"nested.x": spec}), ValueError, text)
    refusal(lambda: wr.collate([samples[0], samples[0][:1]]), wr.ShapeError, r"sample 1: expected batch_size \(2,\), got \(1,\)", index=1)
    uneven = [td.TensorDict({"a": torch.ones(i + 1)}, batch_size=[]) for i in range(2)]
    refusal(lambda: wr.collate(uneven), wr.ShapeError, 'sample 1 at "a": .*; within this class tensors of one shape are stacked', index=1)
    other = make(td, 1)
    other["image"] = torch.zeros(2, 5)
    refusal(lambda: wr.collate([{"t": samples[0]}, {"t": other}]), (wr.ShapeError, wr.DTypeError), 'sample 1 at "t.image"', index=1)
    refusal(lambda: wr.collate([samples[0], {"image": 1}]), TypeError, "sample 1: expected tensordict")


def test_classes_nobody_knows_are_still_refused():
    refusal(lambda: wr.collate([Pair(1, 2)]), TypeError, "sample 0: expected an array-like or .*, got .*Pair; .*wr.register_node")


def test_graphs_whose_attributes_have_one_name():
    data = pytest.importorskip("torch_geometric.data", reason="SKIP: torch_geometric is not installed")
    graph = data.HeteroData({"user": {"id_x": torch.ones(2, 1)}, "user_id": {"x": torch.ones(2, 1)}})
    refusal(lambda: wr.collate([graph, graph], sep="_"), ValueError, "two attributes are at 'user_id_x'", path="user_id_x")
    torch.set_default_dtype(torch.float64)
    try:
        graphs = [data.Data(x=torch.ones(2, 1), y=0.1)] * 2
        want = data.Batch.from_data_list(graphs).y
        assert torch.equal(wr.collate(graphs).y, want) and want.dtype is torch.float64
        ints = [data.Data(x=torch.ones(2, 1), y=3)] * 2
        assert wr.collate(ints).y.dtype is torch.int64 and wr.collate(ints, {"y": wr.Stack(dtype="float32")}).y.dtype is torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
