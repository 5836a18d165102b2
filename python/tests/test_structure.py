"""windrow.structure beside loops written out."""

import collections
import decimal
import sys

import numpy as np
import pytest

import windrow as wr
from cuda_harness import fetch
from helpers import paint, refusal
from windrow import structure
from windrow.structure import batch_input, concat_graphs, keyed_jagged, pad_images

torch = pytest.importorskip("torch")


def as_array(field):
    return field.numpy() if isinstance(field, torch.Tensor) else field


@pytest.mark.parametrize("multiple", [1, 4, 32])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("return_tensors", ["pt", "np"])
def test_images(multiple, channels_last, return_tensors):
    sizes = [(5, 9), (7, 3), (1, 1), (7, 9)]
    images = [paint((3, *size), "uint8", i) for i, size in enumerate(sizes)]
    height, width = (-(-max(size[k] for size in sizes) // multiple) * multiple for k in (0, 1))
    tensors = np.full((4, 3, height, width), 114, np.uint8)
    mask = np.ones((4, height, width), bool)
    for i, (h, w) in enumerate(sizes):
        tensors[i, :, :h, :w] = images[i]
        mask[i, :h, :w] = False
    if channels_last:
        images, tensors = [image.transpose(1, 2, 0) for image in images], tensors.transpose(0, 2, 3, 1)
    batch = pad_images(
        images, multiple_of=multiple, value=114, channels_last=channels_last, return_tensors=return_tensors
    )
    assert type(batch.tensors) is (torch.Tensor if return_tensors == "pt" else np.ndarray)
    assert np.array_equal(as_array(batch.tensors), tensors) and np.array_equal(as_array(batch.mask), mask)
    assert batch.sizes == sizes


def test_images_of_one_size_have_a_mask_too():
    batch = pad_images([np.ones((3, 4, 4), "f4")] * 2)
    assert batch.mask.shape == (2, 4, 4) and not batch.mask.any() and batch.sizes == [(4, 4)] * 2


def test_images_are_normalised_on_the_way():
    images = [paint((n, 5, 3), "uint8", n) for n in (2, 4)]
    chw = wr.Transform(scale=1 / 255, mean=[0.5] * 3, std=[0.25] * 3, channel_dim=2, permute=(2, 0, 1))
    batch = pad_images(images, channels_last=True, transform=chw, dtype="float32", return_tensors="np")
    assert batch.tensors.shape == (2, 3, 4, 5) and batch.mask.shape == (2, 4, 5)
    expected = (images[1].transpose(2, 0, 1) / 255 - 0.5) / 0.25
    assert np.allclose(batch.tensors[1], expected, atol=1e-6) and (batch.tensors[0, :, 2:] == 0).all()


def test_images_that_do_not_fit():
    for last, images in ((False, [np.ones((3, 4, 4)), np.ones((1, 4, 4))]), (True, [np.ones((4, 4, 3)), np.ones((4, 4, 1))])):
        text = "images of one batch have equally many channels"
        error = refusal(lambda: pad_images(images, channels_last=last), wr.ShapeError, text, index=1, got=images[1].shape)
        assert "dims=" not in str(error)
    refusal(lambda: pad_images([np.ones((3, 4, 4)), np.ones((4, 4))]), wr.ShapeError, "sample 1: .*equal rank", index=1)
    refusal(lambda: pad_images([np.ones((4, 4)), np.ones((3, 4))]), ValueError, r"three dims, got shape \(4, 4\)")
    refusal(lambda: pad_images([None, np.ones((3, 4, 4))]), TypeError, "sample 0: expected an array-like, got NoneType", index=0)


def graph(i, n):
    rng = np.random.default_rng(i)
    edges = rng.integers(0, n, (2, 2 * n))
    return {
        "x": paint((n, 3), "float32", i),
        "edge_index": edges,
        "edge_attr": paint((2 * n,), "float64", i),
        "y": i,
        "face": rng.integers(0, n, (3, n)),
        "adj": paint((2, n), "uint8", i),
        "pairs": rng.integers(0, 2, (4,)),
    }


@pytest.mark.parametrize("return_tensors", ["pt", "np"])
def test_graphs(return_tensors):
    graphs = [graph(i, n) for i, n in enumerate((3, 1, 4))]
    batch = concat_graphs(
        graphs,
        cat_dims={"adj": 1},
        increments={"pairs": lambda graph: 10, "y": 0, "face": "num_nodes", "edge_attr": 0},
        follow_batch=["pairs", "adj"],
        return_tensors=return_tensors,
    )
    starts = [0, 3, 4]
    expected = {
        "x": np.concatenate([g["x"] for g in graphs]),
        "edge_index": np.concatenate([g["edge_index"] + s for g, s in zip(graphs, starts)], axis=1),
        "edge_attr": np.concatenate([g["edge_attr"] for g in graphs]),
        "y": np.array([0, 1, 2]),
        "face": np.concatenate([g["face"] + s for g, s in zip(graphs, starts)], axis=1),
        "adj": np.concatenate([g["adj"] for g in graphs], axis=1),
        "pairs": np.concatenate([g["pairs"] + 10 * i for i, g in enumerate(graphs)]),
        "pairs_batch": np.repeat([0, 1, 2], 4),
        "pairs_ptr": np.array([0, 4, 8, 12]),
        "adj_batch": np.array([0, 0, 0, 1, 2, 2, 2, 2]),
        "adj_ptr": np.array([0, 3, 4, 8]),
        "batch": np.array([0, 0, 0, 1, 2, 2, 2, 2]),
        "ptr": np.array([0, 3, 4, 8]),
    }
    assert set(batch) == set(expected)
    for key, value in expected.items():
        assert as_array(batch[key]).dtype == value.dtype and np.array_equal(as_array(batch[key]), value), key


def test_graphs_without_nodes_or_edges():
    empty = {"x": np.zeros((0, 2)), "edge_index": np.zeros((2, 0), np.int64)}
    full = {"x": np.zeros((2, 2)), "edge_index": np.array([[0], [1]])}
    batch = concat_graphs([full, empty, full], num_nodes=lambda graph: len(graph["x"]))
    assert batch["edge_index"].tolist() == [[0, 2], [1, 3]] and batch["ptr"].tolist() == [0, 2, 2, 4]


def test_graphs_that_do_not_fit():
    with pytest.raises(KeyError, match="sample 1: the key 'y'"):
        concat_graphs([{"x": np.ones((2, 1)), "y": 1}, {"x": np.ones((2, 1))}])
    with pytest.raises(ValueError, match="empty list"):
        concat_graphs([])


BAD_LISTS = [
    ([3, True], wr.DTypeError, "expected int64, got a bool at position 1"),
    ([True, 3], wr.DTypeError, "expected bool, got an int at position 1"),
    ([1, 2**63], wr.DTypeError, "got .* at position 1"),
    ([1, -(2**63) - 1], wr.DTypeError, "got .* at position 1"),
    ([1, None], TypeError, "got NoneType at position 1"),
    (None, TypeError, "expected .*an array-like, got NoneType"),
]


@pytest.mark.parametrize("values, kind, text", BAD_LISTS)
@pytest.mark.parametrize("index", [0, 1])
def test_lists_that_hold_no_row_of_numbers(index, values, kind, text):
    """They name sample, key and position."""
    samples = [{"x": [1, 2]}, {"x": [1, 2]}]
    samples[index] = {"x": values}
    for call in (lambda: concat_graphs(samples), lambda: keyed_jagged(samples)):
        refusal(call, kind, f'sample {index} at "x": .*{text}', index=index, path="x")


def test_lists_at_the_edge_of_64_bits():
    edges = [-(2**63), 2**63 - 1]
    assert concat_graphs([{"x": edges}, {"x": [True, False]}])["x"].tolist() == [*edges, 1, 0]
    assert keyed_jagged([{"x": edges}, {"x": [True, False]}]).values.tolist() == [*edges, 1, 0]


def test_numbers_keep_their_dtype():
    """As those of `wr.ragged`, but Python's own floats are float32."""
    kinds = [([True, False], "bool"), ([np.float64(0.1)], "float64"), ([np.int32(1), np.int32(2)], "int32"), ([5.0, 2**64], "float32")]
    for values, dtype in kinds:
        batch = keyed_jagged([{"x": values}, {"x": []}], return_tensors="np")
        assert batch.values.dtype == dtype and batch.values.tolist() == np.array(values, dtype).tolist()
    assert keyed_jagged([{"x": [2**64, 5.0]}], return_tensors="np").values.dtype == np.float32
    for value in (torch.tensor(1.5, requires_grad=True), np.True_, decimal.Decimal(1), 1j, "a"):
        refusal(lambda: keyed_jagged([{"x": [1]}, {"x": [value]}]), TypeError, 'sample 1 at "x": .*at position 0', index=1, path="x")
    mixed = ([np.uint64(2**63 + 1), np.int64(1)], [np.int64(1), 0.5], [True, np.int64(2)], [2**64, np.int64(1)])
    for values in mixed:
        refusal(lambda: keyed_jagged([{"x": values}]), TypeError, 'sample 0 at "x": expected .* numbers alone, got .* at position 1')
    assert keyed_jagged([{"x": [True]}, {"x": np.array([False])}], return_tensors="np").values.dtype == np.bool_
    least = -(2**1024 - 2**970)
    refusal(lambda: keyed_jagged([{"x": [0.5, least]}]), wr.DTypeError, "got an int that no float has at position 1")
    refusal(lambda: keyed_jagged([{"x": [1e20, 10**400]}]), wr.DTypeError, "got an int that no float has at position 1")


def test_errors_of_keyed_lists_name_sample_and_key():
    plain, grad = torch.ones(2), torch.ones(2, requires_grad=True)
    samples = [{"a": plain, "b": plain}, {"a": plain, "b": plain}, {"a": plain, "b": grad}]
    refusal(lambda: keyed_jagged(samples), wr.LayoutError, 'sample 2 at "b": expected a tensor that does not require grad', index=2, path="b")
    samples[2]["b"] = object()
    refusal(lambda: keyed_jagged(samples), TypeError, 'sample 2 at "b": expected an array-like', index=2, path="b")
    for wrong in ({"a": [1]}, "a"):
        refusal(lambda: keyed_jagged(wrong), TypeError, "expected a list of samples" if wrong != "a" else "expected a mapping")
    refusal(lambda: keyed_jagged([[1]]), TypeError, "sample 0: expected a mapping of array-likes, got list", index=0)
    refusal(lambda: keyed_jagged([{"a\\d": object()}]), TypeError, r'sample 0 at "a\\d"')
    refusal(lambda: keyed_jagged([{"a": [1]}], keys=[]), ValueError, "no keys")
    refusal(lambda: pad_images({"a": np.ones((1, 2, 2))}), TypeError, "expected a list of samples, got dict")


def test_what_graphs_are_joined_by():
    graph = {"x": np.ones((3, 1)), "edge_index": np.array([[0, 1], [1, 2]]), "e": np.array([1])}
    for name, how in (("num_nodes", {"num_nodes": lambda graph: 2.9}), ("increments", {"increments": {"e": lambda graph: 2.7}})):
        refusal(lambda: concat_graphs([graph, graph], **how), TypeError, f"sample 0: {name} gives 2.. in place of an int", index=0)
    refusal(lambda: concat_graphs([graph], num_nodes=lambda graph: torch.tensor(3.0)), TypeError, "sample 0: num_nodes gives tensor")
    refusal(lambda: concat_graphs([graph, graph], num_nodes=[3]), TypeError, r"num_nodes must be a key or a function of a graph, got \[3\]")
    whole = concat_graphs([graph] * 2, num_nodes=lambda graph: torch.tensor(3), increments={"e": lambda graph: np.int64(4)})
    assert whole["e"].tolist() == [1, 5]
    for raised, error in (("foo", ValueError), (2**63, ValueError), (1.5, TypeError)):
        refusal(lambda: concat_graphs([graph], increments={"e": raised}), error, rf"increments\['e'\].*{raised}")
    for name in ("increments", "cat_dims"):
        refusal(lambda: concat_graphs([graph] * 2, **{name: {"edge": 1}}), ValueError, f"{name} has 'edge', which sample 0 has not")
    refusal(lambda: concat_graphs([{**graph, "x_ptr": 1}] * 2, follow_batch=["x"]), ValueError, "follow_batch gives 'x_ptr'")


@pytest.mark.parametrize("values, dtype", [((0.5, 1), "float32"), ((1, 0.5), "float32"), ((np.float64(0.1),) * 2, "float64")])
def test_numbers_of_graphs(values, dtype):
    graphs = [{"x": np.ones((1, 1)), "y": value} for value in values]
    batch = concat_graphs(graphs, return_tensors="np")
    assert batch["y"].dtype == dtype and batch["y"].tolist() == np.array(values, dtype).tolist()


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_bools_with_increments_become_int64(make):
    graphs = [{"x": np.ones((3, 1)), "k": make([True, False])}] * 2
    batch = concat_graphs(graphs, increments={"k": 1}, return_tensors="np")
    assert batch["k"].dtype == np.int64 and batch["k"].tolist() == [1, 0, 2, 1]
    plain = concat_graphs(graphs, increments={"k": 0}, return_tensors="np")
    assert plain["k"].dtype == np.bool_ and plain["k"].tolist() == [True, False] * 2


def test_graphs_of_a_table():
    pa = pytest.importorskip("pyarrow", reason="SKIP: pyarrow is not installed")
    pairs = pa.list_(pa.list_(pa.float64(), 2))
    table = pa.table({"x": pa.array([[[0.0, 1.0]], [[2.0, 3.0], [4.0, 5.0]]], pairs), "y": [1, 2]})
    batch = concat_graphs(table, return_tensors="np")
    assert batch["x"].tolist() == [[0, 1], [2, 3], [4, 5]] and batch["y"].tolist() == [1, 2] and batch["ptr"].tolist() == [0, 1, 3]
    refusal(lambda: concat_graphs({"x": [1]}), TypeError, "expected a list of samples, got dict")


def test_graphs_of_lists():
    graphs = [{"x": [0.5, 1], "edge_index": [0, 1], "t": []}, {"x": [2], "edge_index": [], "t": [1.5]}, {"x": [4], "edge_index": [0], "t": []}]
    batch = concat_graphs(graphs, return_tensors="np")
    assert batch["x"].dtype == np.float32 and batch["x"].tolist() == [0.5, 1, 2, 4]
    assert batch["edge_index"].dtype == np.int64 and batch["edge_index"].tolist() == [0, 1, 3]
    assert batch["t"].dtype == np.float32 and batch["t"].tolist() == [1.5]


def test_numbers_of_nodes_and_keys_that_there_are_not():
    graphs = [{"x": np.ones((2, 1))}, {"x": np.ones((1, 1))}]
    refusal(lambda: concat_graphs([{"x": 1}, {"x": 2}]), wr.ShapeError, 'sample 0 at "x": expected at least one dim', index=0, path="x")
    with pytest.raises(ValueError, match="sample 1: num_nodes gives -1 nodes"):
        concat_graphs(graphs, num_nodes=lambda graph: 2 if graph is graphs[0] else -1)
    with pytest.raises(KeyError, match="sample 0: the key 'z'"):
        concat_graphs(graphs, num_nodes="z")
    with pytest.raises(KeyError, match="follow_batch: no graph has the key 'z'"):
        concat_graphs(graphs, follow_batch=["z"])
    with pytest.raises(ValueError, match="beyond int64"):
        concat_graphs([*graphs, graphs[0]], increments={"x": 2**62})
    for options in ({"num_nodes": lambda graph: 2**64}, {"increments": {"x": lambda graph: 2**63}}):
        with pytest.raises(ValueError, match="beyond 63 bits"):
            concat_graphs(graphs, **options)


@pytest.mark.parametrize("name", ["uint8", "int8", "int16"])
def test_indices_beyond_their_dtype_are_refused(name):
    most = np.iinfo(name).max
    sizes = (most - 4, 3, 2)

    def graphs(last):
        edges = [np.array([[0], [1]]), np.array([[2], [0]]), np.array([[0], [last]])]
        return [{"x": np.zeros((n, 1)), "edge_index": e.astype(name)} for n, e in zip(sizes, edges)]

    batch = concat_graphs(graphs(1), return_tensors="np")
    assert batch["edge_index"].tolist() == [[0, most - 2, most - 1], [1, most - 4, most]]
    with pytest.raises(wr.DTypeError, match=f'sample 2 at "edge_index": expected {name}, got {most + 1} after the addition; store it in a wider dtype'):
        concat_graphs(graphs(2))


@pytest.mark.parametrize("raised, text", [(-3, "got -2 after the addition"), (lambda graph: -2, "got -1 after the addition")])
def test_indices_below_their_dtype_are_refused(raised, text):
    def graphs(first):
        return [{"x": np.zeros((1, 1)), "edge_index": np.array([[low], [9]], "uint8")} for low in (0, first)]

    for increment in (raised, -1):
        batch = concat_graphs(graphs(5), increments={"edge_index": increment}, return_tensors="np")
        by = increment if isinstance(increment, int) else increment(None)
        assert batch["edge_index"].tolist() == [[0, 5 + by], [9, 9 + by]]
    with pytest.raises(wr.DTypeError, match=text) as caught:
        concat_graphs(graphs(1), increments={"edge_index": raised})
    assert caught.value.index == 1 and caught.value.path == "edge_index" and caught.value.expected == "uint8"


@pytest.mark.parametrize("name", ["int64", "uint64"])
def test_indices_at_the_edge_of_64_bits(name):
    most = np.iinfo(name).max
    graphs = [{"x": np.zeros((2, 1)), "edge_index": np.array([[n]], name)} for n in (most, most - 2)]
    batch = concat_graphs(graphs, return_tensors="np")
    assert batch["edge_index"].tolist() == [[most, most]]
    graphs[1]["edge_index"] += 1
    with pytest.raises(wr.DTypeError, match=f"got {most + 1} after the addition"):
        concat_graphs(graphs, return_tensors="np")


KEYS = (
    "x edge_index edge_attr face faces surface surface_mask face_attr index indexed edge_label_index node_index_mask "
    "x_batch batched batch_index n_index_batch interface y pos"
).split()


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "float32", "float64", "bfloat16", "float16", "bool"])
def test_as_pytorch_geometric_batches(dtype):
    pytest.importorskip("torch_geometric", reason="SKIP: torch_geometric is not installed")
    from torch_geometric.data import Batch, Data

    def value(key, i, nodes):
        shape = (2, nodes + i) if "index" in key or key == "face" else (nodes, 2)
        return torch.arange(nodes * shape[-1] * 4)[: shape[0] * shape[1]].reshape(shape).remainder(3 + i).to(getattr(torch, dtype))

    graphs = [{key: value(key, i, nodes) for key in KEYS} for i, nodes in enumerate((3, 1, 4))]
    for i, graph in enumerate(graphs):
        graph.update(label=i, score=i / 2, total_index=torch.tensor(i), size_batch=torch.tensor(2 + i), depth_index=i, num_batch=i)
    theirs = Batch.from_data_list([Data(**graph) for graph in graphs], follow_batch=["face"])
    ours = concat_graphs(graphs, follow_batch=["face"])
    assert set(ours) == set(theirs.keys())
    for key, tensor in ours.items():
        expected = theirs[key]
        assert tensor.equal(expected) and tensor.dtype == expected.dtype, key
    refusal(lambda: concat_graphs([Data(**graph) for graph in graphs]), TypeError, r"^sample 0: expected a mapping of array-likes, got Data; give its to_dict\(\)$")


def test_batch_vectors_without_entries():
    graphs = [{"x": np.zeros((1, 1)), "x_batch": np.array(values, int)} for values in ([0, 1], [], [0])]
    assert concat_graphs(graphs)["x_batch"].tolist() == [0, 1, 2]


def test_features_of_bfloat16_without_ml_dtypes(monkeypatch):
    """They never pass through NumPy, which has no such dtype."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    half = torch.arange(6, dtype=torch.bfloat16).reshape(3, 2)
    batch = concat_graphs([{"x": half, "y": half[0, 1]}, {"x": half[:1], "y": half[1, 1]}])
    assert batch["x"].equal(torch.cat([half, half[:1]])) and batch["y"].equal(half[:2, 1])
    assert pad_images([half[None]]).tensors.equal(half[None, None])
    assert keyed_jagged([{"a": half[0]}, {"a": half[1]}]).values.equal(half[:2].reshape(-1))


def there(array):
    """A copy on the device."""
    return wr.SampleList(wr.stack([array], device="cuda").data)[0]


def on_device(graphs, keys=None):
    """Graphs whose arrays, or those of some keys, are on the device."""
    is_moved = lambda key, value: hasattr(value, "shape") and (keys is None or key in keys)
    return [{key: there(value) if is_moved(key, value) else value for key, value in graph.items()} for graph in graphs]


@pytest.fixture
def join(driver, monkeypatch):
    """`concat_graphs` with what it writes on the device as arrays."""

    def call(graphs, **options):
        with monkeypatch.context() as patched:
            fields = lambda field, _: fetch(driver, field) if field.device.startswith("cuda") else field.numpy()
            patched.setattr(structure, "give", fields)
            return concat_graphs(graphs, **options)

    return call


def assert_graphs(got, want):
    assert list(got) == list(want)
    for key, expected in want.items():
        expected = as_array(expected)
        assert got[key].dtype == expected.dtype and got[key].shape == expected.shape and (got[key] == expected).all(), key


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("sizes", [[(3, 4), (0, 0), (1, 0), (70, 900), (2, 7)], [(5, 6)], [(0, 0)], [(2, 0), (3, 0)], [(1, 1)] * 40])
def test_graphs_are_joined_where_they_are(join, dtype, sizes):
    """The result is PyTorch Geometric's and the host's: `sizes` are nodes and edges."""
    pytest.importorskip("torch_geometric", reason="SKIP: torch_geometric is not installed")
    from torch_geometric.data import Batch, Data

    rng = np.random.default_rng(len(sizes))
    graphs = []
    for number, (nodes, edges) in enumerate(sizes):
        pairs = rng.integers(0, max(nodes, 1), (2, edges)).astype(dtype)
        x, weight = rng.random((nodes, 3), "f4"), rng.random(edges)
        graphs.append({"x": x, "edge_index": pairs, "edge_attr": weight, "face": pairs[:, ::-1], "root_index": np.asarray(number, dtype)})
    follow = ["edge_attr"]
    theirs = Batch.from_data_list([Data(**{key: torch.from_numpy(value.copy()) for key, value in graph.items()}) for graph in graphs], follow_batch=follow)
    here = concat_graphs(graphs, follow_batch=follow, return_tensors="np")
    graphs = on_device(graphs)
    got = join(graphs, follow_batch=follow)
    assert_graphs(got, here)
    assert_graphs(got, {key: theirs[key] for key in got})
    assert set(got) == set(theirs.keys())


def test_graphs_on_a_device_by_rules_of_their_own(join):
    def graph(n, start):
        index = np.arange(start, start + 3 * n)
        return {
            "x": np.ones((n, 1)), "edge_index": index.reshape(n, 3).T % 4, "ring": index.astype("int16"), "flag": index % 2 == 0, "y": n,
            "x_batch": np.repeat(np.arange(n), 2), "pair_batch": np.asarray(n), "place": index.astype("uint8").reshape(3, n),
        }  # fmt: skip

    graphs = [graph(n, n) for n in (3, 1, 0, 4)]
    options = {"increments": {"ring": lambda graph: 2 - len(graph["x"]), "flag": 1, "place": "num_nodes"}, "cat_dims": {"place": 1}}
    here = concat_graphs(graphs, return_tensors="np", **options)
    assert here["flag"].dtype == np.int64 and here["ring"].dtype == np.int16
    options["increments"]["ring"] = lambda graph: 2 - graph["x"].shape[0]
    assert_graphs(join(on_device(graphs), **options), here)
    # Some entries on the host, and the number of nodes from elsewhere.
    assert_graphs(join(on_device(graphs, ["edge_index", "place"]), **options), here)
    counted = {**options, "num_nodes": lambda graph: graph["x"].shape[0]}
    assert_graphs(join(on_device(graphs), **counted), here)


def test_sums_on_a_device_wrap_around(join):
    graphs = [{"x": np.ones((100, 1)), "edge_index": np.array([[n], [27]], "int8")} for n in (3, 28)]
    got = join(on_device(graphs))
    assert got["edge_index"].dtype == np.int8 and got["edge_index"].tolist() == [[3, -128], [27, 127]]


def test_graphs_on_a_device_that_are_refused(join):
    graphs = [{"x": np.ones((2, 1)), "pos_index": np.ones((1, 2), "f4")} for _ in range(2)]
    there, before = on_device(graphs), wr.stats()["launches"]
    why = "expected an integer dtype, because increments are added to the elements, got float32"
    refusal(lambda: join(there), wr.DTypeError, why, path="pos_index")
    refusal(lambda: concat_graphs([graphs[0], there[0]]), wr.DeviceError, "", index=1, path="x")
    with pytest.raises(KeyError, match="follow_batch: no graph has the key 'z'"):
        concat_graphs(there, follow_batch=["z"])
    assert wr.stats()["launches"] == before
    assert join(there, increments={"pos_index": 0})["pos_index"].tolist() == [[1, 1, 1, 1]]


@pytest.mark.parametrize("return_tensors", ["pt", "np"])
def test_keyed_jagged(return_tensors):
    samples = [{"a": [1, 2], "b": [], "c": [5]}, {"a": [], "b": [3], "c": [6, 7, 8]}]
    weights = [{"a": [0.1, 0.2], "b": [], "c": [0.5]}, {"a": [], "b": [0.3], "c": [0.6, 0.7, 0.8]}]
    batch = keyed_jagged(samples, ["c", "a", "b"], weights=weights, return_tensors=return_tensors)
    assert batch.keys == ["c", "a", "b"] and batch.stride == 2
    assert batch.values.tolist() == [5, 6, 7, 8, 1, 2, 3]
    assert batch.lengths.tolist() == [1, 3, 2, 0, 0, 1] and batch.offsets.tolist() == [0, 1, 4, 6, 6, 6, 7]
    assert np.allclose(as_array(batch.weights), [0.5, 0.6, 0.7, 0.8, 0.1, 0.2, 0.3])
    assert "int64" in str(batch.values.dtype) and "float32" in str(batch.weights.dtype)


def test_keyed_jagged_of_tensors_and_in_order():
    samples = [{"b": torch.tensor([1.5])}, {"b": torch.tensor([])}]
    batch = keyed_jagged(samples, dtype="float16")
    assert batch.keys == ["b"] and batch.values.dtype == torch.float16 and batch.weights is None


def test_keyed_jagged_that_does_not_fit():
    samples = [{"a": [1, 2]}, {"a": [3]}]
    with pytest.raises(wr.ShapeError, match='sample 1 at "a": expected 1 weights, got 2'):
        keyed_jagged(samples, weights=[{"a": [1, 2]}, {"a": [3, 4]}])
    with pytest.raises(wr.ShapeError, match='sample 1 at "a": expected 1 weights, got float'):
        keyed_jagged(samples, weights=[{"a": [1, 2]}, {"a": 0.5}])
    with pytest.raises(KeyError, match="sample 1: the key 'b'"):
        keyed_jagged([{"b": [1]}, {"a": [3]}])
    for kind in ("BATCH_ELEMENT_COUNT", "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"):
        with pytest.raises(ValueError, match="2147483648 is beyond"):
            batch_input(kind, [np.broadcast_to(np.zeros(1, "u1"), (1, 2**31))])


def test_an_empty_list_decides_no_dtype():
    """The option is for all keys together: the others must agree, as without it."""
    floats = [{"price": [19.99], "stock": [0.5]}, {"price": [4.5], "stock": []}]
    assert keyed_jagged(floats).values.tolist() == [pytest.approx(19.99), 4.5, 0.5]
    of_shorts = [{"a": [], "b": np.array([300], "i2")}, {"a": [], "b": np.array([5], "i2")}]
    assert keyed_jagged(of_shorts, weights=of_shorts, return_tensors="np").weights.dtype == "int16"
    for first, other, expected, got in [
        ([3], [19.99], "int64", "float32"),
        (np.array([3], "i1"), np.array([300]), "int8", "int64"),
        (np.array([3], "f2"), np.array([1e6]), "float16", "float64"),
    ]:
        for empty in ([], ()):
            samples = [{"a": first, "b": other}, {"a": empty, "b": other}]
            with pytest.raises(wr.DTypeError, match=f'sample 0 at "b": expected {expected}, got {got}; values of all keys') as caught:
                keyed_jagged(samples)
            assert (caught.value.index, caught.value.path) == (0, "b")
            with pytest.raises(wr.DTypeError, match=f'sample 0 at "b": expected {expected}, got {got}'):
                keyed_jagged([{"a": first, "b": first}] * 2, weights=[{"a": first, "b": other}] * 2)
            assert keyed_jagged(samples, dtype="float64").values.dtype == torch.float64


def test_keys_that_a_sample_would_make_up_are_missing():
    """The errors are those of plain dicts; the samples are only read."""
    calls = (keyed_jagged, concat_graphs, lambda samples: keyed_jagged([{"b": [1]}, {"b": [3]}], weights=samples))
    for call in calls:
        samples = [collections.defaultdict(lambda: [7], b=[1]), collections.defaultdict(lambda: [7], x=[3])]
        with pytest.raises(KeyError, match="sample 1: the key 'b' is missing") as caught:
            call(samples)
        assert caught.value.index == 1 and caught.value.path == "b" and list(samples[1]) == ["x"]


REQUESTS = [np.ones((1, 3), "f4"), np.ones((1, 1), "f4"), np.ones((1, 2), "f4")]


@pytest.mark.parametrize(
    "kind, expected",
    [
        ("BATCH_ELEMENT_COUNT", [3, 1, 2]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [3, 4, 6]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 3, 4, 6]),
        ("BATCH_ITEM_SHAPE", [[3], [1], [2]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [3, 1, 2]),
    ],
)
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_batch_inputs(kind, expected, dtype):
    value = batch_input(kind, REQUESTS, dtype=dtype)
    assert value.dtype == dtype and value.tolist() == expected


def test_batch_inputs_of_shape_and_of_larger_requests():
    assert batch_input("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", REQUESTS).shape == (3,)
    requests = [np.ones((2, 3, 4)), np.ones((1, 5, 2))]
    assert batch_input("BATCH_ELEMENT_COUNT", requests).tolist() == [24, 10]
    assert batch_input("BATCH_ITEM_SHAPE", requests).tolist() == [[3, 4], [3, 4], [5, 2]]
    assert batch_input("BATCH_ITEM_SHAPE_FLATTEN", requests).tolist() == [3, 4, 3, 4, 5, 2]
    assert len(structure.BATCH_INPUT_KINDS) == 6


def test_batch_inputs_that_do_not_fit():
    huge = np.broadcast_to(np.uint8(0), (1, 1 << 30))
    with pytest.raises(ValueError, match="2\\^31"):
        batch_input("BATCH_ACCUMULATED_ELEMENT_COUNT", [huge, huge])
    with pytest.raises(ValueError, match="BATCH_SIZE"):
        batch_input("BATCH_SIZE", REQUESTS)
    with pytest.raises(ValueError, match="at least one"):
        batch_input("BATCH_ELEMENT_COUNT", [])
    with pytest.raises(wr.ShapeError, match="rank"):
        batch_input("BATCH_ITEM_SHAPE", [np.ones((1, 2)), np.ones((1, 2, 2))])
