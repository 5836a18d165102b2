"""Graphs of PyTorch Geometric in `wr.collate`, field by field beside ``Batch.from_data_list``."""

import numpy as np
import pytest

import windrow as wr
from helpers import refusal

torch = pytest.importorskip("torch", reason="SKIP: torch is not installed")
pytest.importorskip("torch_geometric", reason="SKIP: torch_geometric is not installed")
from torch_geometric.data import Batch, Data, HeteroData  # noqa: E402

import windrow.torch  # noqa: E402

RNG = np.random.default_rng(0)


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
