"""windrow.torch.collate_fn on classes: beside default_collate, the libraries' own functions and wr.collate."""

import collections
import dataclasses
import types

import numpy as np
import pytest

import windrow as wr
from helpers import refusal
from windrow import _nodes

torch = pytest.importorskip("torch", reason="SKIP: torch is not installed")

import windrow.torch as wt  # noqa: E402
from torch.utils.data import DataLoader, default_collate  # noqa: E402
from torch.utils.data._utils.collate import default_collate_fn_map  # noqa: E402
from test_containers import SCALED, Kept, KeptDeep  # noqa: E402
from test_torch_workers import is_shared  # noqa: E402
from windrow.torch._transfer import map_tensors, tensors_of  # noqa: E402


@dataclasses.dataclass
class Item:
    x: object
    name: str = "item"
    made: object = dataclasses.field(default=1.5, init=False)


class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b


@pytest.fixture
def pairs():
    wr.register_node(Pair, vars, lambda children: Pair(**children))
    yield
    del _nodes._registered[Pair]


def rows(i):
    return torch.arange(i + 1)


def in_trees(samples):
    return [{"k": (sample, i)} for i, sample in enumerate(samples)]


# TensorDict and tensorclass: default_collate's results where tensordict teaches it, torch.stack's before.


@pytest.fixture(scope="module")
def td():
    return pytest.importorskip("tensordict", reason="SKIP: tensordict is not installed")


def make(td, i, **more):
    nested = td.TensorDict({"x": torch.full((2, 3), float(i)), "deep": {"y": torch.arange(2) + i}}, batch_size=[2])
    return td.TensorDict({"image": torch.full((2, 3, 4), i, dtype=torch.uint8), "nested": nested, **more}, batch_size=[2], names=["time"])


def assert_same(got, want):
    assert type(got) is type(want)
    assert got.batch_size == want.batch_size and got.device == want.device and got.names == want.names
    keys = list(want.keys(True, True))
    assert list(got.keys(True, True)) == keys
    for key in keys:
        a, b = got.get(key), want.get(key)
        if isinstance(b, torch.Tensor):
            assert type(a) is torch.Tensor and a.dtype == b.dtype and a.requires_grad == b.requires_grad and torch.equal(a, b), key
        else:
            assert a.tolist() == b.tolist(), key


@pytest.mark.parametrize("arena", [False, True])
def test_tensordicts(td, arena):
    collate = wt.collate_fn(arena=arena)
    samples = [make(td, i, text=f"t{i}") for i in range(3)]
    assert_same(collate(samples), torch.stack(samples))
    assert_same(collate(in_trees(samples))["k"][0], torch.stack(samples))
    grads = [make(td, i, w=torch.ones(2, requires_grad=True)) for i in range(2)]
    assert_same(collate(grads), torch.stack(grads))
    wr.reset_stats()
    collate([make(td, i) for i in range(2)])
    assert wr.stats()["batches"] == 3


def test_tensorclasses(td):
    @td.tensorclass
    class Cell:
        x: torch.Tensor
        inner: td.TensorDict
        name: str

    samples = [Cell(x=torch.full((2, 3), i), inner=make(td, i), name=f"n{i}", batch_size=[2]) for i in range(3)]
    got, want = wt.collate_fn()(samples), torch.stack(samples)
    assert type(got) is Cell
    assert_same(got._tensordict, want._tensordict)


def test_tensors_without_a_batch_are_kept(td):
    """An UnbatchedTensor is that of the first sample, as torch.stack has it."""
    Unbatched = getattr(td, "UnbatchedTensor", None) or pytest.skip("SKIP: this tensordict has no UnbatchedTensor")

    def sample(i):
        inner = td.TensorDict({"v": Unbatched(torch.arange(4.0))}, batch_size=[2])
        return td.TensorDict({"x": torch.full((2, 3), i), "u": Unbatched(torch.arange(5.0)), "n": inner}, batch_size=[2])

    samples = [sample(i) for i in range(3)]
    want = torch.stack(samples)
    for collate in (wr.collate, wt.collate_fn(), wt.collate_fn({}), lambda given: wr.collate(wr.SampleList(given))):
        got = collate(samples)
        assert got.batch_size == want.batch_size == torch.Size([3, 2]) and list(got.keys()) == list(want.keys())
        assert torch.equal(got["x"], want["x"])
        for key in ("u", ("n", "v")):
            assert type(got.get(key)) is type(want.get(key)) is Unbatched and torch.equal(got[key], want[key])
    other = td.TensorDict({"x": torch.ones(2, 3), "u": torch.ones(2, 5), "n": sample(0)["n"]}, batch_size=[2])
    refusal(lambda: wr.collate([{"t": samples[0]}, {"t": other}]), TypeError, 'sample 1 at "t.u": expected .*UnbatchedTensor, got torch.Tensor', index=1, path="t.u")


def test_errors_within_tensordicts_name_sample_and_path(td):
    first, other = td.TensorDict({"a": torch.ones(3)}), td.TensorDict({"a": torch.ones(4)})
    text = td.TensorDict({"a": torch.ones(3), "x": td.NonTensorData("t")})
    lazy = [td.lazy_stack([first, first]), td.lazy_stack([first, other])]
    for samples, kind, path in (([text, first], KeyError, "k.0.x"), ([first, text], KeyError, "k.0.x"), (lazy, wr.ShapeError, "k.0"), ([first, other], wr.ShapeError, "k.0.a")):
        refusal(lambda: wr.collate(in_trees(samples)), kind, f'sample 1 at "{path}"', index=1, path=path)
    turned = [td.TensorDict({"a": torch.ones(3, 2)}, batch_size=[3]) for _ in range(2)]
    spec = {"k.0.a": wr.Stack(transform=wr.Transform(permute=(1, 0)))}
    refusal(lambda: wr.collate(in_trees(turned), spec), wr.ShapeError, 'the batch at "k.0" makes no', path="k.0")


def test_tensordicts_that_torch_stacks_otherwise(td):
    """The result of default_collate: a lazy stack for unequal shapes and keys, or an error."""
    uneven = [make(td, 0), make(td, 1, image=torch.zeros(2, 5))]
    lacking = [make(td, 0, extra=torch.ones(2)), make(td, 1)]
    lazy = [td.LazyStackedTensorDict.lazy_stack([make(td, i), make(td, i + 1)]) for i in range(2)]
    for samples in (uneven, lacking, lazy, [make(td, 0), make(td, 1)[0]], [make(td, 0), {"x": 1}]):
        for wrap in (list, in_trees):
            try:
                want = default_collate(wrap(samples))
            except Exception as error:
                with pytest.raises(type(error)):
                    wt.collate_fn()(wrap(samples))
                continue
            got = wt.collate_fn()(wrap(samples))
            got, want = (got, want) if wrap is list else (got["k"][0], want["k"][0])
            assert type(got) is type(want) and got.batch_size == want.batch_size
            for ours, theirs in zip(got.unbind(0), want.unbind(0)):
                assert list(ours.keys(True, True)) == list(theirs.keys(True, True))
                assert all(torch.equal(ours[key], theirs[key]) for key in theirs.keys(True, True))


def test_memory_mapped_tensordicts(td, tmp_path):
    whole = torch.stack([make(td, i) for i in range(4)]).contiguous()
    whole.memmap_(str(tmp_path))
    loaded = td.TensorDict.load_memmap(str(tmp_path))
    samples = [loaded[i] for i in (2, 0, 3)]
    wr.reset_stats()
    got = wt.collate_fn()(samples)
    assert wr.stats()["batches"] == 3
    assert_same(got, torch.stack(samples))


def test_a_tensordict_that_is_the_batch(td):
    """The batch of a data set that reads a batch at once."""
    whole = torch.stack([make(td, i) for i in range(3)])
    if any(fn.__module__.startswith("tensordict") for fn in default_collate_fn_map.values()):
        assert wt.collate_fn()(whole) is default_collate(whole) is whole
    refusal(lambda: wt.collate_fn({"image": wr.Stack()})(whole), TypeError, "a list of samples, got tensordict")


def test_specs_within_a_tensordict(td):
    samples = [make(td, i) for i in range(2)]
    got = wt.collate_fn({"nested.x": wr.Stack(dtype="float64")})(samples)
    assert got["nested", "x"].dtype == torch.float64 and got.batch_size == (2, 2)
    refusal(lambda: wt.collate_fn({"nested.x": wr.Pad()})(samples), ValueError, 'spec at "nested.x" is that of wr.pad')
    uneven = [make(td, 0), make(td, 1, image=torch.zeros(2, 5, dtype=torch.uint8))]
    refusal(lambda: wt.collate_fn({"image": wr.Stack()})(uneven), wr.ShapeError, 'sample 1 at "image"', index=1)


# Graphs: default_collate refuses them, PyTorch Geometric joins them.


@pytest.fixture(scope="module")
def pyg():
    return pytest.importorskip("torch_geometric.data", reason="SKIP: PyTorch Geometric is not installed")


def graph(pyg, n):
    edges = torch.randint(0, n, (2, 2 * n), generator=torch.Generator().manual_seed(n))
    return pyg.Data(x=torch.full((n, 2), float(n)), edge_index=edges, y=float(n), z=n, name=f"g{n}")


def hetero(pyg, n):
    data = pyg.HeteroData()
    data["user"].x, data["item"].x = torch.full((n, 2), 1.0 * n), torch.full((n + 1, 1), 2.0 * n)
    data["user", "likes", "item"].edge_index = torch.arange(2 * n).reshape(2, n) % n
    return data


def assert_same_graphs(got, want):
    assert type(got) is type(want) and len(got) == len(want)
    for ours, theirs in zip(got.stores, want.stores):
        assert list(ours.keys()) == list(theirs.keys())
        for key, value in theirs.items():
            same = torch.equal(ours[key], value) and ours[key].dtype == value.dtype if isinstance(value, torch.Tensor) else ours[key] == value
            assert same, key
    for ours, theirs in zip(got.to_data_list(), want.to_data_list()):
        assert ours.to_dict().keys() == theirs.to_dict().keys()


@pytest.mark.parametrize("arena", [False, True])
@pytest.mark.parametrize("make_graph", [graph, hetero])
def test_graphs(pyg, make_graph, arena):
    samples = [make_graph(pyg, n) for n in (3, 1, 5)]
    want = pyg.Batch.from_data_list(samples)
    collate = wt.collate_fn(arena=arena)
    assert_same_graphs(collate(samples), want)
    assert_same_graphs(collate(in_trees(samples))["k"][0], want)
    with torch.inference_mode():
        assert_same_graphs(collate(samples), want)
    with pytest.raises(TypeError, match="default_collate"):
        default_collate(samples)


ATTRIBUTES = {
    "x": lambda rng, n: torch.rand(n, 3),
    "edge_index": lambda rng, n: torch.randint(0, max(n, 1), (2, 4 if n else 0)),
    "face": lambda rng, n: torch.randint(0, max(n, 1), (3, 2)),
    "node_index": lambda rng, n: torch.randint(0, max(n, 1), (3,), dtype=torch.int32),
    "adj_index": lambda rng, n: torch.randint(0, 5, (2, 3), dtype=torch.int16),
    "bool_index": lambda rng, n: torch.rand(3) > 0.5,
    "batch_foo": lambda rng, n: torch.randint(0, 3, (n,)),
    "c": lambda rng, n: torch.rand(n, dtype=torch.complex64),
    "z": lambda rng, n: torch.randint(0, 5, (n,), dtype=torch.uint8),
    "scalar": lambda rng, n: torch.tensor(rng.random()),
    "yi": lambda rng, n: int(rng.integers(9)),
    "yf": lambda rng, n: rng.random(),
    "yb": lambda rng, n: bool(n % 2),
    "name": lambda rng, n: f"g{n}",
    "names": lambda rng, n: ["a", "b"],
    "num_nodes": lambda rng, n: n,
}


@pytest.mark.parametrize("seed", range(20))
def test_graphs_of_any_attributes(pyg, seed):
    rng = np.random.default_rng(seed)
    names = rng.permutation(list(ATTRIBUTES))[: rng.integers(1, 9)].tolist()
    if not {"x", "num_nodes"} & set(names):
        names.append("x")  # PyTorch Geometric takes no graphs whose nodes it cannot count.
    nodes = rng.choice([1, 2, 5], rng.integers(1, 5)).tolist()
    samples = [pyg.Data(**{name: ATTRIBUTES[name](rng, n) for name in names}) for n in nodes]
    got, want = wr.collate(samples), pyg.Batch.from_data_list(samples)
    assert_same_graphs(got, want)
    for ours, theirs in ((got._slice_dict, want._slice_dict), (got._inc_dict, want._inc_dict)):
        assert list(ours) == list(theirs)
        assert all(value is ours[key] is None or torch.equal(ours[key], value) for key, value in theirs.items())


@pytest.mark.parametrize("arena", [False, True])
def test_gradients_of_graphs_are_kept(pyg, arena):
    """Gradients are kept as Batch.from_data_list keeps them, whatever attribute has them, in one of the graphs or in all."""
    cases = [{"x"}, {"w"}, {"s"}, {"x", "w", "s"}, {"score_index"}]
    for names in cases:
        for which in ({1}, {0, 1, 2}):
            samples = []
            for i, n in enumerate((3, 1, 5)):
                own = graph(pyg, n)
                own.w, own.s, own.score_index = torch.rand(n, 2), torch.tensor(float(n)), torch.rand(n)
                for name in names if i in which else ():
                    own[name] = own[name].requires_grad_()
                samples.append(own)
            got, want = wt.collate_fn(arena=arena)(in_trees(samples))["k"][0], pyg.Batch.from_data_list(samples)
            assert_same_graphs(got, want)
            for name in ("x", "w", "s", "score_index"):
                assert got[name].requires_grad == want[name].requires_grad == (name in names)
                if name in names:
                    sources = [sample[name] for sample in samples if sample[name].requires_grad]
                    ours = torch.autograd.grad((got[name] * got[name]).sum(), sources)
                    theirs = torch.autograd.grad((want[name] * want[name]).sum(), sources)
                    assert all(map(torch.equal, ours, theirs))
            with torch.no_grad():
                assert_same_graphs(wt.collate_fn(arena=arena)(samples), pyg.Batch.from_data_list(samples))
            refusal(lambda: wr.collate(samples), wr.LayoutError, "requires grad")
            refusal(lambda: wt.collate_fn({}, arena=arena)(samples), wr.LayoutError, "requires grad")


def test_errors_of_graphs_are_ours(pyg):
    refusal(lambda: wt.collate_fn()([graph(pyg, 2), pyg.Data(x=torch.ones(1, 2))]), KeyError, 'sample 1 at "edge_index"')
    other = graph(pyg, 2)
    other.x = torch.ones(2, 3)
    refusal(lambda: wt.collate_fn()(in_trees([graph(pyg, 2), other])), wr.ShapeError, 'sample 1 at "k.0.x"', index=1)


# Classes of fields: default_collate refuses them, and with a spec they are what they are in wr.collate.


def field_classes():
    attrs = pytest.importorskip("attrs", reason="SKIP: attrs is not installed")
    pydantic = pytest.importorskip("pydantic", minversion="2", reason="SKIP: pydantic 2 is not installed")

    @attrs.define
    class Attrs:
        x: object
        name: str

    class Model(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
        x: object
        name: str

    return Item, Attrs, Model


def test_classes_of_fields():
    for cls in field_classes():
        samples = [cls(x={"ids": rows(i), "y": i}, name=f"n{i}") for i in range(3)]
        for wrap in (list, in_trees):
            with pytest.raises(TypeError) as theirs:
                default_collate(wrap(samples))
            with pytest.raises(TypeError) as ours:
                wt.collate_fn()(wrap(samples))
            assert str(ours.value) == str(theirs.value)
        batch = wt.collate_fn({"x.ids": wr.Pad(value=-1)})(samples)
        assert type(batch) is cls and batch.name == ["n0", "n1", "n2"] and batch.x["y"].tolist() == [0, 1, 2]
        assert type(batch.x["ids"]) is wt.TorchBatch and batch.x["ids"].data.tolist() == [[0, -1, -1], [0, 1, -1], [0, 1, 2]]
        assert type(wt.collate_fn({})([samples[0]] * 2)) is cls
    assert batch is not samples[0] and samples[0].name == "n0"


def test_classes_that_are_registered(pairs):
    samples = [Pair(np.full(2, i), (i, {"s": "t"})) for i in range(3)]
    batch = wt.collate_fn()(samples)
    assert type(batch) is Pair and type(batch.b) is list  # Within it by the rules of default_collate.
    assert batch.a.tolist() == [[0, 0], [1, 1], [2, 2]] and batch.b[0].tolist() == [0, 1, 2] and batch.b[1] == {"s": ["t"] * 3}
    default_collate_fn_map[Pair] = lambda batch, *, collate_fn_map=None: len(batch)
    try:
        assert wt.collate_fn()(samples) == 3
    finally:
        del default_collate_fn_map[Pair]


def test_a_class_that_is_registered_later():
    collate, cls = wt.collate_fn(), type("Later", (dict,), {})
    samples = [cls(x=i) for i in range(2)]
    assert type(collate(samples)) is cls and not hasattr(collate(samples), "note")

    def unflatten(children):
        made = cls(children)
        made.note = "own"
        return made

    wr.register_node(cls, dict, unflatten)
    try:
        assert collate(samples).note == "own"
    finally:
        del _nodes._registered[cls]


# Tables of Arrow.


@pytest.mark.parametrize("library", ["pyarrow", "polars"])
def test_tables(library):
    pytest.importorskip(library, reason=f"SKIP: {library} is not installed")
    columns = {"ids": [[1, 2], [3], []], "y": [0.5, 1.5, 2.5], "name": ["a", "b", "c"], "n": [{"k": 1}, {"k": 2}, {"k": 3}]}
    if library == "pyarrow":
        import pyarrow

        table = pyarrow.table(columns)
    else:
        import polars

        table = polars.DataFrame(columns)
    spec = {"ids": wr.Pad(mask="real"), "n.k": wr.Stack(dtype="float32")}
    for batch in (wt.collate_fn(spec)(table), wt.collate_fn(spec, arena=True)(table)):
        assert list(batch) == list(columns) and batch["name"] == ["a", "b", "c"]
        assert batch["ids"].data.tolist() == [[1, 2], [3, 0], [0, 0]] and batch["ids"].lengths.tolist() == [2, 1, 0]
        assert batch["y"].tolist() == [0.5, 1.5, 2.5] and batch["n"]["k"].dtype == torch.float32
    refusal(lambda: wt.collate_fn()(table), wr.ShapeError, 'sample 1 at "ids"')
    refusal(lambda: wt.collate_fn()(table[:0]), ValueError, "a table without rows")
    refusal(lambda: wt.collate_fn({"idz": wr.Pad()})(table), ValueError, 'spec "idz" matches no leaf')


# Workers, and what comes after.


class Shared:
    """The tensors that are in shared memory before torch sends them."""

    def __init__(self, collate):
        self.collate = collate

    def __call__(self, batch):
        made = self.collate(batch)
        return made, [is_shared(tensor) for tensor in tensors_of(made)]


def through_workers(samples, collate):
    return next(iter(DataLoader(samples, batch_size=len(samples), num_workers=1, collate_fn=Shared(collate))))


def test_tensordicts_of_workers(td):
    samples = [make(td, i) for i in range(3)]
    batch, shared = through_workers(samples, wt.collate_fn())
    assert_same(batch, torch.stack(samples))
    assert len(shared) == 3 and all(shared)


def test_attributes_keep_their_order(pyg):
    samples = [pyg.Data(name=f"g{n}", num_nodes=n, x=torch.ones(n, 2), tag=["a"], y=n) for n in (2, 3)]
    assert_same_graphs(wr.collate(samples), pyg.Batch.from_data_list(samples))

    def with_two_stores(n):
        sample = pyg.HeteroData()
        sample["p"].num_nodes = n
        sample["p", "to", "p"].edge_index = torch.zeros(2, n, dtype=torch.int64)
        return sample

    samples = [with_two_stores(n) for n in (2, 3)]
    got, want = wr.collate(samples), pyg.Batch.from_data_list(samples)
    assert repr(got) == repr(want) and got._slice_dict.keys() == want._slice_dict.keys() == got._inc_dict.keys()


def test_graphs_of_workers(pyg):
    samples = [graph(pyg, n) for n in (3, 1, 5)]
    batch, shared = through_workers(samples, wt.collate_fn())
    assert_same_graphs(batch, pyg.Batch.from_data_list(samples))
    assert sum(shared) == 4  # x, edge_index, y, z; batch and ptr are made by the class.


def test_tables_of_workers():
    pyarrow = pytest.importorskip("pyarrow", reason="SKIP: pyarrow is not installed")
    table = pyarrow.table({"ids": [[1, 2], [3]]})

    class Tables(torch.utils.data.Dataset):
        def __getitem__(self, indices):
            return table.take(indices)

    loader = DataLoader(Tables(), batch_size=None, sampler=[[1, 0]], num_workers=1, collate_fn=Shared(wt.collate_fn({"ids": wr.Pad()})))
    batch, shared = next(iter(loader))
    assert batch["ids"].data.tolist() == [[3, 0], [1, 2]] and shared == [True, False]  # The lengths are small


def test_what_moves_batches_knows_their_classes(td, pyg, pairs):
    """`Prefetcher` and `ToDevice` move what these hold."""

    def doubled(tree):
        return map_tensors(tree, lambda tensor: (tensor * 2).to("meta"))

    held = make(td, 1).to("cpu")
    moved = doubled({"t": held})["t"]
    assert moved.device.type == "meta" and moved.batch_size == held.batch_size and moved["nested", "x"].device.type == "meta"
    joined = pyg.Batch.from_data_list([graph(pyg, 2)])
    moved = doubled([joined])[0]
    assert type(moved) is type(joined) and moved.x.device.type == moved.batch.device.type == "meta" and moved.num_graphs == 1
    for cls in field_classes():
        moved = doubled(cls(x={"y": torch.ones(2)}, name="n"))
        assert type(moved) is cls and moved.x["y"].device.type == "meta" and moved.name == "n"
    moved = doubled(Pair(torch.ones(2), "b"))
    assert type(moved) is Pair and moved.a.device.type == "meta" and moved.b == "b"
    assert joined.x.device.type == held["image"].device.type == "cpu"
    assert len(tensors_of({"t": held, "g": joined})) == 9


MOVED = {
    **SCALED,
    collections.Counter: lambda x: (made := collections.Counter(), dict.__setitem__(made, "x", x))[0],
    collections.UserDict: lambda x: collections.UserDict(y=x, x=x + 1),
    types.MappingProxyType: lambda x: types.MappingProxyType({"x": x}),
    Kept: lambda x: Kept({"y": x, "x": x + 1}),
    KeptDeep: lambda x: KeptDeep({"y": x, "x": x + 1}),
    torch.Size: lambda x: torch.Size([2, 3]),
    torch.return_types.max: lambda x: torch.max(torch.stack([x, x + 1]), 0),
}


@pytest.mark.parametrize("cls", MOVED)
def test_what_moves_batches_makes_no_container_by_its_class(cls):
    """Each tensor is what the function makes of it: no initialiser, converter or method of the class runs again."""

    def children_of(tree):
        if isinstance(tree, collections.abc.Mapping):
            return dict(tree)
        return dict(enumerate(tree)) if isinstance(tree, (tuple, list)) else dict(vars(tree)) if hasattr(tree, "__dict__") else {"x": tree.x}

    batch = MOVED[cls](torch.arange(3.0))
    made, want = map_tensors(batch, lambda tensor: tensor + 1), children_of(batch)
    assert type(made) is (dict if cls in (KeptDeep, types.MappingProxyType) else cls)
    got = children_of(made)
    assert list(got) == list(want)
    for key, value in want.items():
        assert torch.equal(got[key], value + 1) if isinstance(value, torch.Tensor) else got[key] == value
    assert all(own is value for own, value in zip(children_of(batch).values(), want.values()))
    assert len(tensors_of(batch)) == sum(isinstance(value, torch.Tensor) for value in want.values())


# The samples of a SampleList of trees: trees of wr.Tensor.


@pytest.mark.parametrize("spec", [None, {}, {"x": wr.Pad()}])
def test_samples_of_a_list_of_trees(spec):
    """The items of a `SampleList` are as the samples that it is made of."""
    samples = [{"x": torch.full((2,), float(i)), "y": (torch.tensor(i, dtype=torch.bfloat16), i), "name": f"s{i}"} for i in range(3)]
    items = wr.SampleList(samples)
    collate = wt.collate_fn(spec)
    got, want = collate([items[i] for i in range(3)]), collate(samples)
    pairs = zip(*(torch.utils._pytree.tree_flatten(tree)[0] for tree in (got, want)))
    assert torch.utils._pytree.tree_structure(got) == torch.utils._pytree.tree_structure(want)
    for own, value in pairs:
        assert type(own) is type(value) and (torch.equal(own, value) and own.dtype == value.dtype if isinstance(value, torch.Tensor) else own == value)
    batch = next(iter(DataLoader(items, batch_size=3, collate_fn=wt.collate_fn())))
    assert torch.equal(batch["x"], torch.stack([sample["x"] for sample in samples]))
    mixed = [items[0]["x"], samples[1]["x"]]
    assert torch.equal(wt.collate_fn()(mixed), default_collate([sample["x"] for sample in samples[:2]]))
    uneven = [wr.asarray(torch.ones(2)), wr.asarray(torch.ones(3))]
    error = refusal(lambda: wt.collate_fn()(uneven), RuntimeError, "stack expects each tensor to be equal size")
    assert isinstance(error.__cause__, wr.ShapeError) and error.__cause__.index == 1


def test_counters_are_added_to_as_default_collate_does():
    samples = [collections.Counter(a=1, b=5), collections.Counter(a=3, b=6)]
    got, want, own = wt.collate_fn()(samples), default_collate(samples), wr.collate(samples)
    assert type(got) is type(want) is type(own) is collections.Counter
    assert got["a"].tolist() == want["a"].tolist() == [2, 4] and got["b"].tolist() == want["b"].tolist()
    assert list(memoryview(own["a"])) == [1, 3]
