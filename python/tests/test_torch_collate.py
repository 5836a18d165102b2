"""windrow.torch.collate_fn beside torch's own default_collate, type by type and container by container."""

import collections
import enum
import pickle
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pytest

import windrow as wr
from helpers import Key, Text, refusal

torch = pytest.importorskip("torch")

import windrow.torch as wt  # noqa: E402
from torch.utils.data import default_collate  # noqa: E402
from torch.utils.data._utils.collate import default_collate_fn_map  # noqa: E402

Pair = namedtuple("Pair", "left right")
Color = enum.IntEnum("Color", "RED GREEN")


class Dict(dict):
    """Carries what is not among its items."""

    note = "none"


class MadeUp(UserDict):
    def __missing__(self, key):
        return self.data.setdefault(key, 7)


class NoUpdate(dict):
    def update(self, *args, **kwargs):
        raise TypeError("no")


class FixedList(UserList):
    def __setitem__(self, index, item):
        raise TypeError("no")


class Frozen(collections.abc.Mapping):
    def __init__(self, items):
        self._items = dict(items)

    def __getitem__(self, key):
        return self._items[key]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


class Tagged(torch.Tensor):
    pass


def tagged_dict(i):
    sample = Dict(x=torch.full((2,), i))
    sample.note = f"sample {i}"
    return sample


def f32(i, *shape):
    return torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape) + i


def same(ours, theirs, path="batch"):
    assert type(ours) is type(theirs), f"{path}: {type(ours)} for {type(theirs)}"
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, path
        assert ours.stride() == theirs.stride() and ours.device == theirs.device, path
        assert ours.requires_grad == theirs.requires_grad, path
        assert ours.is_meta or torch.equal(ours.detach(), theirs.detach()), path
    elif isinstance(theirs, collections.abc.Mapping):
        assert list(ours) == list(theirs), path
        assert getattr(ours, "__dict__", None) is None or ours.__dict__.keys() == theirs.__dict__.keys()
        for key in theirs:
            same(ours[key], theirs[key], f"{path}[{key!r}]")
    elif isinstance(theirs, collections.abc.Sequence) and not isinstance(theirs, (str, bytes)):
        assert len(ours) == len(theirs), path
        for index, (our, their) in enumerate(zip(ours, theirs)):
            same(our, their, f"{path}[{index}]")
    else:
        assert ours == theirs, path


def each(make, n=3):
    return [make(i) for i in range(n)]


ACCEPTED = {
    # Tensors.
    "float tensors": each(lambda i: f32(i, 2, 3)),
    "one sample": each(lambda i: f32(i, 2, 3), 1),
    "many": each(lambda i: f32(i, 5), 300),
    "no dims": each(lambda i: torch.tensor(i)),
    "no elements": each(lambda i: torch.empty(0, 4)),
    "bool tensors": each(lambda i: torch.tensor([True, i == 1])),
    "bfloat16 tensors": each(lambda i: f32(i, 7).bfloat16()),
    "float8 tensors": each(lambda i: f32(i, 7).to(torch.float8_e4m3fn).view(torch.uint8)),
    "complex tensors": each(lambda i: torch.complex(f32(i, 3), f32(1, 3))),
    "conjugated": each(lambda i: torch.complex(f32(i, 3), f32(1, 3)).conj()),
    "negated": each(lambda i: torch.complex(f32(i, 3), f32(1, 3)).conj().imag),
    "strided": each(lambda i: f32(i, 4, 6).t()[::2]),
    "expanded": each(lambda i: f32(i, 1).expand(3, 4)),
    "channels last": each(lambda i: f32(i, 2, 3, 4, 5).to(memory_format=torch.channels_last)[0]),
    "different layouts": [f32(0, 2, 2), f32(1, 2, 2).t()],
    "promoted": [torch.tensor([1, 2]), torch.tensor([0.5, 1.5])],
    "gradients": [torch.ones(2), torch.ones(2, requires_grad=True)],
    "graph": each(lambda i: torch.ones(2, requires_grad=True) * i),
    "no gradient": each(lambda i: torch.ones(2, requires_grad=True).requires_grad_(False)),
    "views": each(lambda i: f32(0, 3, 4)[i]),
    "parameters": each(lambda i: torch.nn.Parameter(torch.ones(2), requires_grad=False)),
    "subclass": each(lambda i: f32(i, 2).as_subclass(Tagged)),
    "subclass second": [f32(0, 2), f32(1, 2).as_subclass(Tagged)],
    "meta": each(lambda i: torch.empty(2, 3, device="meta")),
    # NumPy.
    "arrays": each(lambda i: np.full((2, 3), i, np.float32)),
    "uint16 arrays": each(lambda i: np.full(3, i, np.uint16)),
    "float16 arrays": each(lambda i: np.full(3, i, np.float16)),
    "bool arrays": each(lambda i: np.array([True, False])),
    "complex arrays": each(lambda i: np.full(3, 1j * i)),
    "array without dims": each(lambda i: np.array(i)),
    "strided arrays": each(lambda i: np.arange(12.0).reshape(3, 4).T[::2]),
    "array and tensor": [np.ones(2, np.float32), torch.ones(2)],
    "array and list": [np.ones(2), [1.0, 2.0]],
    "matrix": each(lambda i: np.asmatrix(np.full((2, 2), i))),
    "float32 scalars": each(lambda i: np.float32(i)),
    "float64 scalars": each(lambda i: np.float64(i)),
    "float16 scalars": each(lambda i: np.float16(i)),
    "int8 scalars": each(lambda i: np.int8(i)),
    "uint32 scalars": each(lambda i: np.uint32(i)),
    "bool scalars": each(lambda i: np.bool_(i)),
    "complex scalars": each(lambda i: np.complex64(i)),
    "mixed scalars": [np.float32(1), np.float64(2)],
    "scalar and number": [np.float32(1), 2],
    # Python.
    "floats": [0.5, -1.5, float("inf")],
    "ints": [1, -2, 2**62],
    "bools": [True, False],
    "float then int": [0.5, 1],
    "int then float": [1, 0.5],
    "bool then int": [True, 2],
    "int then bool": [2, True],
    "enums": [Color.RED, Color.GREEN],
    "strings": ["a", "bc"],
    "bytes": [b"a", b"bc"],
    "NumPy strings": [np.str_("a"), np.str_("bc")],
    "string and number": ["a", 1],
    # Containers.
    "dict": each(lambda i: {"x": f32(i, 2), "y": i, "z": f"s{i}", 4: np.ones(i * 0)}),
    "empty dict": [{}, {}],
    "extra key": [{"x": 1}, {"x": 2, "y": 3}],
    "other order": [{"x": 1, "y": 2.5}, {"y": 3.5, "x": 4}],
    "ordered": each(lambda i: OrderedDict(b=i, a=f32(i, 2))),
    "defaultdict": each(lambda i: defaultdict(list, x=i)),
    "mapping with attributes": each(tagged_dict),
    "UserDict": each(lambda i: UserDict(x=i)),
    "no update": each(lambda i: NoUpdate(x=i)),
    "immutable mapping": each(lambda i: Frozen({"x": i})),
    "proxy": each(lambda i: MappingProxyType({"x": i})),
    "dict and other mapping": [{"x": 1}, Frozen({"x": 2})],
    "tuple": each(lambda i: (f32(i, 2), i, "s")),
    "empty tuple": [(), ()],
    "list": each(lambda i: [f32(i, 2), i, "s"]),
    "list and tuple": [[1, 2], (3, 4)],
    "namedtuple": each(lambda i: Pair(f32(i, 2), "s")),
    "namedtuple and longer": [Pair(1, 2), (3, 4, 5)],
    "torch.Size": each(lambda i: torch.Size([1, 2])),
    "UserList": each(lambda i: UserList([i, f32(i, 1)])),
    "list that cannot be set": each(lambda i: FixedList([i, i])),
    "range": [range(3), range(3, 6)],
    "deque": each(lambda i: collections.deque([i, f32(i, 1)])),
    "deep sequences": each(lambda i: (i, [i, {"x": i}])),
    "nested": each(lambda i: {"a": [(f32(i, 2), {"b": Pair(i, [0.5])})], "c": {"d": {"e": np.int64(i)}}}),
    "tuple batch": tuple(each(lambda i: {"x": (i, "s")})),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_as_default_collate(name):
    batch = ACCEPTED[name]
    same(wt.collate_fn()(batch), default_collate(batch))


@pytest.mark.parametrize("name", ACCEPTED)
def test_as_default_collate_inside_containers(name):
    batch = [{"k": ({"j": sample}, 1)} for sample in ACCEPTED[name]]
    same(wt.collate_fn()(batch), default_collate(batch))


def test_a_mapping_that_has_a_key_says_itself_why_it_fails():
    class Shards(collections.abc.Mapping):
        def __getitem__(self, key):
            raise KeyError("shard 7 is gone")

        def __iter__(self):
            return iter(["a"])

        def __len__(self):
            return 1

        def __contains__(self, key):
            return key == "a"

    with pytest.raises(KeyError, match="shard 7 is gone") as error:
        wt.collate_fn()([{"a": 1}, Shards()])
    assert error.value.__cause__ is None


@pytest.mark.parametrize("spec", [None, {}])
@pytest.mark.parametrize("wrap", [lambda sample: sample, lambda sample: {"t": (sample, 1)}])
@pytest.mark.parametrize("make", [lambda **own: defaultdict(lambda: 7, own), MadeUp, lambda **own: Counter(own)])
def test_a_key_that_a_mapping_makes_up_is_that_of_default_collate(make, wrap, spec):
    """The value goes into the batch, and into the sample if the mapping puts it there; other keys are left out."""
    batches = [[make(a=1, b=2), make(b=3, c=4), make(a=5)] for _ in range(2)]
    got, want = wt.collate_fn(spec)(list(map(wrap, batches[0]))), default_collate(list(map(wrap, batches[1])))
    same(got, want)
    assert [list(sample.items()) for sample in batches[0]] == [list(sample.items()) for sample in batches[1]]
    refusal(lambda: wr.collate([make(a=1, b=2), make(a=5)]), KeyError, 'sample 1 at "b"')


def test_nothing_is_shared_with_the_samples():
    row = torch.ones(3)
    batch = wt.collate_fn()([row])
    row[:] = 2
    assert batch.tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("leaf", [lambda i: f"s{i}", lambda i: b"b%d" % i, lambda i: torch.ones(2, requires_grad=True) * i, lambda i: Tagged(torch.ones(2))])
def test_dicts_of_one_leaf_that_is_not_for_the_engine(leaf, monkeypatch):
    """Text, gradients and subclasses: torch's function makes the batch at once, and says first what is wrong."""
    samples, calls = [{"x": leaf(i)} for i in range(3)], []
    own = wt._collate._windrow._collate_torch
    monkeypatch.setattr(wt._collate._windrow, "_collate_torch", lambda *args, **kwargs: calls.append(1) or own(*args, **kwargs))
    got, want = wt.collate_fn()(samples), default_collate(samples)
    assert type(got["x"]) is type(want["x"]) and not calls
    assert torch.equal(got["x"], want["x"]) and got["x"].requires_grad == want["x"].requires_grad if isinstance(leaf(0), torch.Tensor) else got == want
    with pytest.raises(KeyError) as caught:
        wt.collate_fn()([*samples, {}])
    assert caught.value.__cause__.index == 3 and caught.value.__cause__.path == "x" and len(calls) == 1


def test_gradients_flow():
    leaf = torch.ones(2, requires_grad=True)
    wt.collate_fn()([leaf, torch.ones(2)]).sum().backward()
    assert leaf.grad.tolist() == [1, 1]


@dataclass
class Item:
    x: int


REFUSED = {
    "empty batch": [],
    "None": [None, None],
    "None second": [torch.ones(2), None],
    "complex": [1j, 2j],
    "set": [{1}, {2}],
    "object": [object()],
    "dataclass": [Item(1), Item(2)],
    "different shapes": [torch.ones(2), torch.ones(3)],
    "different ranks": [torch.ones(2), torch.ones(2, 1)],
    "different array shapes": [np.ones(2), np.ones(3)],
    "sparse": [torch.eye(2).to_sparse()] * 2,
    "sparse csr": [torch.eye(2).to_sparse_csr()] * 2,
    "nested tensor": [torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])] * 2,
    "string array": [np.array(["a"])],
    "object array": [np.array([None])],
    "dates": [np.array(["2020-01-01"], "datetime64[D]")],
    "structured": [np.zeros(2, [("a", "i4")])],
    "long double": [np.zeros(2, np.longdouble)],
    "byte order": [np.ones(2, ">f4")],
    "backwards": [np.ones(3)[::-1]],
    "too large": [2**63, 1],
    "missing key": [{"x": 1, "y": 2}, {"x": 1}],
    "no mapping": [{"x": 1}, 3],
    "unequal lengths": [[1, 2], [1]],
    "unequal tuples": [(1, 2), (1, 2, 3)],
    "no sequence": [[1, 2], 3],
    "namedtuple and shorter": [Pair(1, 2), (3,)],
    "number then string": [1, "a"],
    "tensor and number": [torch.ones(2), 1],
    "generator": (i for i in range(2)),
    "batch is a number": 3,
    "batch is a tensor": torch.ones(2, 3),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("wrap", [lambda batch: batch, lambda batch: [{"a": (s,)} for s in batch]], ids=["bare", "nested"])
def test_errors_of_default_collate(name, wrap):
    batch = REFUSED[name]
    if wrap(()) == [] and not isinstance(batch, list):
        pytest.skip("not a list to begin with")
    batch = wrap(batch)
    with pytest.raises(Exception) as theirs:
        default_collate(batch)
    with pytest.raises(Exception) as ours:
        wt.collate_fn()(batch)
    assert type(ours.value) is type(theirs.value)
    assert str(ours.value).split(" 0x")[0] == str(theirs.value).split(" 0x")[0]


def test_the_cause_names_sample_and_leaf():
    with pytest.raises(RuntimeError) as error:
        wt.collate_fn()([{"a": {"b": torch.ones(2)}}, {"a": {"b": torch.ones(3)}}])
    cause = error.value.__cause__
    assert isinstance(cause, wr.ShapeError)
    assert (cause.index, cause.path, cause.expected, cause.got) == (1, "a.b", (2,), (3,))


def test_the_cause_names_the_sample_without_a_key_and_the_leaf_of_an_unknown_type():
    for collate in (wt.collate_fn(), wt.collate_fn({"a.y": wr.Stack(dtype="float32")})):
        with pytest.raises(KeyError) as error:
            collate([{"a": {"b": 1, "y": 2}}, {"a": {"b": 1, "y": 2}}, {"a": {"y": 2}}])
        cause = error.value.__cause__
        assert error.value.args == ("b",) and isinstance(cause, KeyError) and (cause.index, cause.path) == (2, "a.b")
        assert 'sample 2 at "a.b": the key is missing; 2 of 3 samples have it' in str(cause)
    with pytest.raises(TypeError, match="default_collate: batch must contain") as error:
        wt.collate_fn()([{"a": {"b": None}}] * 2)
    cause = error.value.__cause__
    assert (cause.index, cause.path) == (0, "a.b") and "expected an array-like, got NoneType" in str(cause)


def test_first_error_is_the_one_of_torch():
    """A bad leaf before a missing key."""
    batch = [{"x": torch.ones(2), "y": 1}, {"x": torch.ones(3)}]
    with pytest.raises(RuntimeError, match="stack expects"):
        wt.collate_fn()(batch)


# Samples that were imported before


def transition(i):
    return {"obs": np.full((2, 3), i, np.float32), "n": {"reward": i / 2, "done": i % 2 == 0, "t": i}, "id": str(i), "goal": [i, 2 * i]}


@pytest.mark.parametrize("arena", [False, True])
def test_a_sample_list_of_trees_gives_what_its_samples_give(arena):
    buffer, picked = wr.SampleList(transition(i) for i in range(10)), [7, 0, 7, -1]
    buffer[0] = transition(20)
    samples = [transition(i) for i in (7, 20, 7, 9)]
    same(wt.collate_fn(arena=arena)(buffer.take(np.array(picked))), default_collate(samples))
    spec = {"*.done": wr.Stack(dtype="float32"), "goal": wr.Pad(size=3, value=-1)}
    batch = wt.collate_fn(spec, arena=arena)(buffer.take(picked))
    assert batch["n"]["done"].tolist() == [0, 1, 0, 0] and batch["n"]["done"].dtype == torch.float32
    assert batch["goal"].data.tolist() == [[7, 14, -1], [20, 40, -1], [7, 14, -1], [9, 18, -1]]
    with torch.inference_mode():
        assert wt.collate_fn()(buffer[1:3])["n"]["t"].tolist() == [1, 2]


def test_a_sample_list_of_tensors_and_crops():
    images = [np.arange(3 * n * n, dtype=np.uint8).reshape(n, n, 3) for n in (5, 6)]
    crops = wr.crops(images, [[0, 1, 4, 5], [2, 2, 6, 6]], flip=[False, True])
    want = torch.stack([torch.from_numpy(images[0][1:5, 0:4]), torch.from_numpy(images[1][2:6, 2:6][:, ::-1].copy())])
    same(wt.collate_fn()(crops), want)
    planes = wt.collate_fn(wr.Stack(dtype="float32", transform=wr.Transform(permute=(2, 0, 1))))(crops)
    same(planes, want.permute(0, 3, 1, 2).float().contiguous())


def test_errors_of_sample_lists_name_sample_and_leaf():
    buffer = wr.SampleList([{"x": torch.ones(2)}, {"x": torch.ones(3)}])
    with pytest.raises(wr.ShapeError) as error:
        wt.collate_fn()(buffer)
    assert (error.value.index, error.value.path) == (1, "x")
    with pytest.raises(ValueError, match='spec "y" matches no leaf'):
        wt.collate_fn({"y": wr.Stack()})(buffer)
    with pytest.raises(ValueError, match="cannot assemble an empty list of samples"):
        wt.collate_fn()(buffer[:0])


# Modes and extensions of torch.


def test_under_a_default_device():
    with torch.device("meta"):
        same(wt.collate_fn()([{"x": 1.5}] * 2), default_collate([{"x": 1.5}] * 2))


def test_in_inference_mode():
    batch = [torch.ones(2)] * 2
    with torch.inference_mode():
        assert wt.collate_fn()(batch).is_inference() == default_collate(batch).is_inference()


def test_types_that_torch_was_taught():
    collate = wt.collate_fn()
    collate([{"x": 1}])
    default_collate_fn_map[Item] = lambda batch, *, collate_fn_map=None: [item.x for item in batch]
    try:
        assert collate([{"i": Item(1), "y": 2.0}, {"i": Item(3), "y": 4.0}])["i"] == [1, 3]
        default_collate_fn_map[dict] = lambda batch, *, collate_fn_map=None: len(batch)
        assert collate([{"i": 1}, {"i": 2}]) == 2
    finally:
        default_collate_fn_map.pop(Item, None)
        default_collate_fn_map.pop(dict, None)
    same(collate([{"x": 1}]), default_collate([{"x": 1}]))


# Specs.


def rows(i):
    return torch.arange(i + 1)


def test_spec():
    batch = [{"ids": rows(i), "n": {"v": rows(i)}, "y": f32(i, 2)} for i in range(3)]
    spec = {"ids": wr.Pad(value=-1, mask="pad"), "n.*": wr.Ragged(), "y": wr.Stack(dtype="float64")}
    out = wt.collate_fn(spec)(batch)
    assert type(out["ids"]) is wt.TorchBatch and type(out["y"]) is torch.Tensor
    assert out["ids"].data.tolist() == [[0, -1, -1], [0, 1, -1], [0, 1, 2]]
    assert out["ids"].lengths.tolist() == [1, 2, 3]
    assert out["ids"].mask.tolist() == [[False, True, True], [False, False, True], [False, False, False]]
    assert out["ids"].offsets is None and out["ids"].max_length is None
    values = out["n"]["v"]
    assert values.data.tolist() == [0, 0, 1, 0, 1, 2] and values.offsets.tolist() == [0, 1, 3, 6]
    assert values.max_length == 3
    assert out["y"].dtype == torch.float64


@pytest.mark.parametrize("arena", [False, True])
@pytest.mark.parametrize("make", [Key, np.str_, Text])
def test_keys_that_equal_a_text_are_that_text(make, arena):
    x, y = make("camera"), make("lidar")
    batch = [{x: f32(i, 2), "t": {y: rows(i)}} for i in range(3)]
    for spec in ({"t.lidar": wr.Pad(), x: wr.Stack(dtype="float64")}, {"t.*": wr.Pad(), "camera": wr.Stack(dtype="float64")}):
        for given in (batch, wr.SampleList(batch)):
            out = wt.collate_fn(spec, arena=arena)(given)
            assert out["camera"].dtype == torch.float64 and out["t"]["lidar"].lengths.tolist() == [1, 2, 3]
            assert [type(key) for key in (list(out)[0], *out["t"])] == [type(x)] * 2
    out = wt.collate_fn({y: wr.Pad()}, arena=arena)([{y: rows(i)} for i in range(3)])
    assert out["lidar"].data.shape == (3, 3)
    refusal(lambda: wt.collate_fn({y: wr.Stack()}, arena=arena)([{y: rows(i)} for i in range(3)]), wr.ShapeError, 'sample 1 at "lidar"', path="lidar")


def test_one_spec_for_all_leaves():
    out = wt.collate_fn(wr.Pad())([rows(0), rows(1)])
    assert out.data.tolist() == [[0, 0], [0, 1]]


def test_errors_of_specs():
    batch = [{"ids": torch.ones(2, 2), "y": 1}, {"ids": torch.ones(2), "y": 2}]
    with pytest.raises(ValueError, match='spec "idz" matches no leaf; the leaves are "ids", "y"'):
        wt.collate_fn({"idz": wr.Pad()})([{"ids": rows(i), "y": i} for i in range(2)])
    with pytest.raises(wr.ShapeError) as error:
        wt.collate_fn({"ids": wr.Pad()})(batch)
    assert error.value.path == "ids" and error.value.index == 1
    with pytest.raises(TypeError, match="wr.Pad"):
        wt.collate_fn({"x": "pad"})([{"x": 1}])


def test_specs_for_samples_of_several_libraries():
    spec = {"x": wr.Stack(dtype="float32")}
    ones, grad = torch.ones(2), torch.ones(2, requires_grad=True)
    for column in ([ones, np.full(2, 3.0)], [np.full(2, 3.0), ones], [torch.tensor(1.0), 3.0], [2, torch.tensor(1.0)]):
        out = wt.collate_fn(spec)([{"x": x} for x in column])
        assert out["x"].tolist() == [torch.as_tensor(x).tolist() for x in column]
    for column in ([ones, np.ones(2), grad], [np.ones(2), grad], [1.0, grad[0].detach().requires_grad_()]):
        with pytest.raises(wr.LayoutError, match='at "x".*requires grad'):
            wt.collate_fn(spec)([{"x": x} for x in column])
    with pytest.raises(TypeError, match="expected an array-like"):
        wt.collate_fn(spec)([{"x": ones}, {"x": "text"}])


def test_arguments():
    assert wt.collate_fn(sep="/", spec={"a/b": wr.Pad()})([{"a": {"b": rows(i)}} for i in range(2)])
    with pytest.raises(ValueError, match="threads must be an int from 1 to 4096, got 0"):
        wt.collate_fn(threads=0)
    text = repr(wt.collate_fn({"x": wr.Pad(value=1)}, "cpu"))
    assert text == "collate_fn(spec={'x': Pad(value=1)}, device='cpu', sep='.')"


def test_device(any_driver):
    batch = [{"x": f32(i, 3), "y": i} for i in range(2)]
    if any_driver.is_simulated:
        with pytest.raises(Exception):  # noqa: B017  torch sees no device
            wt.collate_fn(device="cuda")(batch)
    else:
        out = wt.collate_fn(device="cuda")(batch)
        assert out["x"].device.type == out["y"].device.type == "cuda"


# Pickling and workers.


def test_pickling():
    spec = {"x": wr.Pad(value=2, dtype="int64", transform=wr.Transform(scale=2.0)), "y": wr.Stack(dtype="float32")}
    collate = wt.collate_fn(spec, sep=".", threads=2)
    collate([{"x": rows(1), "y": 1}])
    copy = pickle.loads(pickle.dumps(collate))
    assert repr(copy) == repr(collate)
    batch = [{"x": rows(i).float(), "y": i} for i in range(2)]
    same(copy(batch)["x"].data, collate(batch)["x"].data)


def test_specs_that_do_not_pickle():
    collate = wt.collate_fn({"x": wr.Pad(engine=wr.Engine(threads=1))})
    with pytest.raises(pickle.PicklingError, match="spec of 'x': engine=.*leave it out"):
        pickle.dumps(collate)


def test_a_tensordict_that_torch_stacks_goes_to_the_device(monkeypatch):
    tensordict = pytest.importorskip("tensordict", reason="SKIP: tensordict is not installed")
    moved = []
    monkeypatch.setattr("windrow.torch._collate.to_device", lambda tensor, device: moved.append(device) or tensor)
    samples = [tensordict.TensorDict({"a": torch.ones(2, requires_grad=True)}, [])] * 2
    assert wt.collate_fn(device="cpu")(samples)["a"].requires_grad and moved == ["cpu"]
