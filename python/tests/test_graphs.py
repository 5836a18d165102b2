"""Graphs of PyTorch Geometric in `wr.collate`, field by field beside ``Batch.from_data_list``."""

import itertools

import numpy as np
import pytest

import windrow as wr
from helpers import refusal

torch = pytest.importorskip("torch", reason="SKIP: torch is not installed")
pytest.importorskip("torch_geometric", reason="SKIP: torch_geometric is not installed")
from torch_geometric.data import Batch, Data, HeteroData  # noqa: E402

import windrow.torch  # noqa: E402

RNG = np.random.default_rng(0)
NUMBERS = itertools.count()


def graph(n, **more):
    edges = torch.from_numpy(RNG.integers(0, max(n, 1), (2, 3 * n if n else 0)))
    return Data(x=torch.rand(n, 4), edge_index=edges, edge_attr=torch.rand(edges.shape[1], 2), y=torch.tensor([n]), **more)


class Paired(Data):
    """Two graphs in one, as PyTorch Geometric's documentation has them."""

    def __inc__(self, key, value, *args, **kwargs):
        if key == "edge_index_s":
            return self.x_s.size(0)
        if key == "edge_index_t":
            return torch.tensor([[self.x_s.size(0)], [self.x_t.size(0)]])
        return super().__inc__(key, value, *args, **kwargs)

    def __cat_dim__(self, key, value, *args, **kwargs):
        return None if key == "target" else super().__cat_dim__(key, value, *args, **kwargs)


def paired(n):
    return Paired(
        x_s=torch.rand(n, 2), x_t=torch.rand(n + 1, 2), target=torch.rand(3), num_nodes=n,
        edge_index_s=torch.randint(0, n, (2, 4)), edge_index_t=torch.randint(0, n, (2, n)),
    )  # fmt: skip


def hetero(n):
    data = HeteroData()
    data["paper"].x = torch.rand(n, 3)
    data["author"].x = torch.rand(n + 2, 2)
    data["author"].name = [f"a{i}" for i in range(n)]
    data["author", "writes", "paper"].edge_index = torch.randint(0, n, (2, 2 * n))
    data["paper", "cites", "paper"].edge_index = torch.randint(0, n, (2, n))
    data.year = torch.tensor(2000 + n)
    return data


def raised(*values, by, dim=0):
    """Graphs with an attribute `q` that is raised by `by` for each."""

    class Raised(Data):
        def __inc__(self, key, value, *args, **kwargs):
            return by if key == "q" else super().__inc__(key, value, *args, **kwargs)

        def __cat_dim__(self, key, value, *args, **kwargs):
            return dim if key == "q" else super().__cat_dim__(key, value, *args, **kwargs)

    # PyTorch Geometric keeps one class of batches for each name.
    Raised.__name__ = f"Raised{next(NUMBERS)}"
    return [Raised(q=value, x=torch.ones(2, 1)) for value in values]


def ones(*lengths, shape=(2,), **options):
    return [torch.ones(length, *shape, **options) for length in lengths]


RAISED = {
    "float by int": lambda: raised(*ones(2, 3, 1), by=2),
    "float by float": lambda: raised(*ones(2, 3, 1), by=2.7),
    "float by less than 1": lambda: raised(*ones(2, 3), by=0.5),
    "float by a float tensor": lambda: raised(*ones(2, 3, 1), by=torch.tensor(2.7)),
    "float by float64 without dims": lambda: raised(*ones(2, 3, 1), by=torch.tensor(0.7, dtype=torch.float64)),
    "float16 by float32 without dims": lambda: raised(*ones(2, 3, 1, dtype=torch.float16), by=torch.tensor(2049.7)),
    "float16 by a vector of float32": lambda: raised(*ones(2, 3, dtype=torch.float16), by=torch.tensor([2049.7, 1 / 3])),
    "int by float": lambda: raised(*ones(2, 3, 1, dtype=torch.int64), by=2.7),
    "int by a vector of floats": lambda: raised(*ones(2, 2, dtype=torch.int64), by=torch.tensor([1.5, 10.5])),
    "uint8 by a vector of ints": lambda: raised(*ones(2, 2, dtype=torch.uint8), by=torch.tensor([300, 10])),
    "uint8 by a vector of int16": lambda: raised(*ones(2, 2, dtype=torch.uint8), by=torch.tensor([300, 10], dtype=torch.int16)),
    "int32 by int32 without dims": lambda: raised(*ones(2, 3, dtype=torch.int32), by=torch.tensor(5, dtype=torch.int32)),
    "int32 by a column": lambda: raised(*[part.int().T for part in ones(2, 3)], by=torch.tensor([[3], [4]]), dim=1),
    "int64 by a column": lambda: raised(*[part.long().T for part in ones(2, 3)], by=torch.tensor([[3], [4]]), dim=-1),
    "floats by a column": lambda: raised(*[part.T for part in ones(2, 3)], by=torch.tensor([[1.0], [10.0]]), dim=1),
    "a vector beside the dim": lambda: raised(*[part.T for part in ones(2, 2)], by=torch.tensor([3, 40]), dim=1),
    "more rows than the values have": lambda: raised(*ones(2, 2, shape=()), by=torch.tensor([[3], [4]])),
    "float by complex": lambda: raised(*ones(2, 2), by=torch.tensor([1 + 1j, 2])),
    "complex by float64": lambda: raised(*ones(2, 2, dtype=torch.complex64), by=torch.tensor([0.1, 2], dtype=torch.float64)),
    "complex by int": lambda: raised(*ones(2, 2, dtype=torch.complex64), by=3),
    "bool by int": lambda: raised(*ones(2, 3, dtype=torch.bool), by=3),
    "bool by float": lambda: raised(*ones(2, 3, dtype=torch.bool), by=1.5),
    "bool by a vector of uint8": lambda: raised(*ones(2, 3, dtype=torch.bool), by=torch.tensor([1, 2], dtype=torch.uint8)),
    "bool by 0": lambda: raised(*ones(2, 3, dtype=torch.bool), by=torch.tensor(0)),
    "values without dims": lambda: raised(*map(torch.tensor, (1, 2, 3)), by=1.5),
    "stacked": lambda: raised(*ones(2, 2), by=torch.tensor([1.5, 2]), dim=None),
    "numbers": lambda: raised(1.5, 2.5, 3.5, by=1.7),
    "one graph": lambda: raised(*ones(2), by=torch.tensor([1.5, 10])),
}
LISTS = {
    "graphs": lambda: [graph(n) for n in (3, 1, 5, 2)],
    "one": lambda: [graph(4)],
    "empty graphs": lambda: [graph(n) for n in (0, 2, 0)],
    "numbers and texts": lambda: [graph(n, weight=n / 2, count=n, even=n % 2 == 0, id=f"g{n}", tags=["a", n]) for n in (3, 1, 5)],
    "values without dims": lambda: [graph(n, z=torch.tensor(n / 3), mask=torch.arange(n) > 1) for n in (3, 2)],
    "faces": lambda: [Data(pos=torch.rand(n, 3), face=torch.randint(0, n, (3, n))) for n in (3, 5)],
    "no nodes known": lambda: [Data(y=torch.rand(1, 2)) for _ in range(3)],
    "num_nodes": lambda: [Data(edge_index=torch.randint(0, n, (2, n)), num_nodes=n + 1) for n in (3, 2)],
    "rules of their own": lambda: [paired(n) for n in (2, 4, 3)],
    "hetero": lambda: [hetero(n) for n in (2, 4, 1)],
    "int32 indices": lambda: [Data(x=torch.rand(n, 1), edge_index=torch.randint(0, n, (2, 4), dtype=torch.int32)) for n in (2, 3)],
    **RAISED,
}


def assert_value(a, b, where):
    if isinstance(b, torch.Tensor):
        assert type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b), where
    elif isinstance(b, dict):
        assert list(a) == list(b), where
        for key in b:
            assert_value(a[key], b[key], f"{where}.{key}")
    else:
        assert a == b, where


@pytest.mark.parametrize("case", LISTS)
def test_as_from_data_list(case):
    graphs = LISTS[case]()
    got, want = wr.collate(graphs), Batch.from_data_list(graphs)
    assert type(got) is type(want) and got.num_graphs == want.num_graphs
    assert [store._key for store in got.stores] == [store._key for store in want.stores]
    for a, b in zip(got.stores, want.stores):
        assert set(a.keys()) == set(b.keys())
        for key in b.keys():
            assert_value(a[key], b[key], f"{b._key}.{key}")
    assert_value(got._slice_dict, want._slice_dict, "slices")
    assert_value(got._inc_dict, want._inc_dict, "increments")
    # They come apart again as PyTorch Geometric's own do.
    for back, other in zip(got.to_data_list(), want.to_data_list()):
        for a, b in zip(back.stores, other.stores):
            for key in b.keys():
                assert_value(a[key], b[key], key)


def has_gradients(value):
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


@pytest.mark.parametrize("case", [case for case in RAISED if has_gradients(RAISED[case]()[0].q)])
def test_gradients_of_values_that_are_raised(case):
    def gradients(function):
        graphs = RAISED[case]()
        leaves = [graph.q.requires_grad_() for graph in graphs]
        out = function(graphs).q
        (out * torch.arange(out.numel()).view(out.shape)).sum().abs().backward()
        return out.detach(), [leaf.grad for leaf in leaves]

    (got, of_got), (want, of_want) = map(gradients, (windrow.torch.collate_fn(), Batch.from_data_list))
    assert_value(got, want, case)
    for a, b in zip(of_got, of_want):
        assert_value(a, b, case)


def test_raised_values_of_a_spec_keep_its_dtype():
    graphs = raised(*ones(2, 2, dtype=torch.int64), by=torch.tensor([300, 10]))
    assert torch.equal(wr.collate(graphs, {"q": wr.Concat(dtype="int16")}).q, Batch.from_data_list(graphs).q.short())
    refusal(
        lambda: wr.collate(graphs, {"q": wr.Concat(dtype="uint8")}), wr.DTypeError,
        'sample 1 at "q": expected uint8, got 301 after the addition; store it in a wider dtype', index=1, path="q", expected="uint8", got="301 after the addition",
    )  # fmt: skip
    floats = raised(*ones(2, 2, dtype=torch.int64), by=torch.tensor([1.5, 10]))
    got = wr.collate(floats, {"q": wr.Concat(dtype="float64")}).q
    assert got.dtype == torch.float64 and torch.equal(got, Batch.from_data_list(floats).q.double())
    for by in (2.5, torch.tensor([1.5, 10]), torch.tensor([[2.5]])):
        refusal(
            lambda: wr.collate([{"g": graph} for graph in raised(*ones(2, 2), by=by)], {"g.q": wr.Concat(dtype="int32")}), wr.DTypeError,
            r'sample 0 at "g\.q": expected int32, got float32 after the addition; store it in a wider dtype', index=0, path="g.q",
        )  # fmt: skip
    refusal(lambda: wr.collate(raised(1, 2, by=2.5)), wr.DTypeError, 'sample 0 at "q": expected int64, got float32 after the addition', path="q")


def test_increments_of_more_dims_than_the_values():
    graphs = raised(*ones(2, 2, shape=()), by=torch.tensor([[3]]))
    assert_value(wr.collate(graphs).q, Batch.from_data_list(graphs).q, "q")


def test_promoted_values_into_the_batch_of_an_earlier_call():
    graphs = RAISED["int by a vector of floats"]()
    out = wr.collate(graphs)
    got = wr.collate(graphs, out=out)
    assert got.q.data_ptr() == out.q.data_ptr() and torch.equal(got.q, Batch.from_data_list(graphs).q)


def test_graphs_are_not_changed():
    graphs = [Data(edge_index=part, num_nodes=2) for part in torch.randint(0, 2, (3, 2, 1))]
    before = [graph.edge_index.clone() for graph in graphs]
    for copy in (True, None):
        batch = wr.collate(graphs, copy=copy)
        assert torch.equal(batch.edge_index, Batch.from_data_list(graphs).edge_index)
        assert all(torch.equal(graph.edge_index, own) for graph, own in zip(graphs, before))
    refusal(lambda: wr.collate(graphs, copy=False), ValueError, 'leaf at "edge_index": copy=False asks for a view', path="edge_index")


@pytest.mark.parametrize("case", ["graphs", "hetero"])
def test_into_the_batch_of_an_earlier_call(case):
    graphs, out = LISTS[case](), wr.collate(LISTS[case]())
    stores = [(store._key, list(store.keys())) for store in out.stores]
    got = wr.collate(graphs, out=out)
    assert [(store._key, list(store.keys())) for store in out.stores] == stores
    for own, a, b in zip(out.stores, got.stores, Batch.from_data_list(graphs).stores):
        for key in set(b.keys()) - {"ptr", "batch", "name"}:
            assert_value(a[key], b[key], key)
            assert a[key].data_ptr() == own[key].data_ptr()
    del out.stores[-1][stores[-1][1][0]]
    refusal(lambda: wr.collate(graphs, out=out), KeyError, "there is no such entry")


def test_graphs_in_a_tree_with_specs():
    graphs = LISTS["graphs"]()
    batch = wr.collate([{"g": graph, "i": i} for i, graph in enumerate(graphs)], {"g.x": wr.Concat(dtype="float64")})
    assert batch["g"].x.dtype == torch.float64
    numbers = [Data(x=torch.ones(1, 1), y=y) for y in (1.1, 2.2)]
    assert wr.collate(numbers, {"y": wr.Stack(dtype="float64")}).y.tolist() == [1.1, 2.2]
    assert torch.equal(batch["g"].edge_index, Batch.from_data_list(graphs).edge_index)
    names = wr.explain(LISTS["hetero"](), "collate").names
    assert "author__writes__paper.edge_index" in names and "paper.x" in names and "year" in names


def test_number_of_nodes_of_unlike_graphs():
    """One graph gives its number of nodes itself, or has its attributes in another order."""
    ones = [Data(x=torch.rand(n, 1), edge_index=torch.randint(0, n, (2, 3))) for n in (2, 3)]
    for last in (
        Data(x=torch.rand(2, 1), edge_index=torch.tensor([[4], [0]]), num_nodes=5),
        Data(edge_index=torch.tensor([[1], [0]]), x=torch.rand(2, 1)),
    ):
        for graphs in ([*ones, last], [ones[0], last, ones[1]]):
            got, want = wr.collate(graphs), Batch.from_data_list(graphs)
            for key in ("x", "edge_index", "batch", "ptr"):
                assert_value(got[key], want[key], key)


def test_indices_beyond_their_dtype_are_refused():
    def graphs(index):
        rows = [Data(x=torch.rand(100, 1), edge_index=torch.tensor([[3], [5]], dtype=torch.int8)) for _ in range(2)]
        rows[1].edge_index[1] = index
        return rows

    assert wr.collate(graphs(27)).edge_index.tolist() == [[3, 103], [5, 127]]
    refusal(
        lambda: wr.collate([{"g": graph} for graph in graphs(28)]), wr.DTypeError,
        r'sample 1 at "g\.edge_index": expected int8, got 128 after the addition; store it in a wider dtype', index=1, path="g.edge_index",
    )  # fmt: skip


def test_what_is_refused():
    graphs = LISTS["graphs"]()
    for spec in (wr.Pad(), wr.Ragged(), wr.Stack()):
        refusal(lambda: wr.collate(graphs, {"x": spec}), ValueError, f'the spec at "x" is that of wr.{spec.form}: leaves within .*Data are torch tensors, which wr.concat makes')
    refusal(lambda: wr.collate([graphs[0], Data(x=torch.rand(2, 4))]), KeyError, 'sample 1 at "edge_index": the key is missing')
    wide = graph(2)
    wide.x = torch.rand(2, 5)
    refusal(lambda: wr.collate([{"g": graphs[0]}, {"g": wide}]), wr.ShapeError, 'sample 1 at "g.x"', index=1, path="g.x")
    sparse = graph(2, adj=torch.eye(2).to_sparse())
    refusal(lambda: wr.collate([sparse, sparse]), TypeError, 'sample 0 at "adj": expected a tensor', "got a tensor of layout torch.sparse_coo; Batch.from_data_list takes it")
    for layout in (torch.strided, torch.jagged):
        graphs_of = graph(2, parts=torch.nested.nested_tensor([torch.rand(2), torch.rand(3)], layout=layout))
        for call in (wr.collate, windrow.torch.collate_fn()):
            refusal(lambda: call([graphs_of, graphs_of]), TypeError, 'sample 0 at "parts": expected a tensor', "nested tensor; Batch.from_data_list takes it")
            for plain in (torch.rand(2), 1.0):
                refusal(lambda: call([graph(2, parts=plain), graphs_of]), TypeError, 'sample 1 at "parts": expected a tensor', "nested tensor; Batch.from_data_list takes it", index=1, path="parts")
        assert Batch.from_data_list([graphs_of, graphs_of]).parts is not None
    nested = graph(2, parts=[torch.rand(2)])
    refusal(lambda: wr.collate([nested]), TypeError, 'sample 0 at "parts"', "list")
    refusal(lambda: wr.collate([graphs[0], hetero(2)]), TypeError, "sample 1: expected .*Data, got .*HeteroData")
    refusal(lambda: wr.collate([hetero(2), HeteroData()]), KeyError, "sample 1: the store 'paper' is missing")
