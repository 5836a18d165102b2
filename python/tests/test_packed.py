"""pack and unpack against NumPy's bytes and torch.cat; layouts that are not trusted."""

import collections
import copy
import dataclasses
import json
import pickle

import numpy as np
import pytest

import windrow as wr
from helpers import paint_values, refusal

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Pair:
    left: object
    right: object


def sample(make=paint_values):
    return {
        "a.b": {"w": make((3, 5), "float32", 2), "b": make(7, "float16", 0)},
        "list": [make((), "int64", 1), (make((2, 0), "uint8", 3),)],
        "p": Point(make(4, "bool", 4), make((2, 3, 4), "float64", 5)),
        "d": Pair(make(6, "int8", 6), {}),
        7: [],
    }


def leaves_of(tree):
    own = tree
    return [own["a.b"]["w"], own["a.b"]["b"], own["list"][0], own["list"][1][0], own["p"].x, own["p"].y, own["d"].left]


def equal(views, arrays):
    for view, array in zip(views, arrays):
        assert isinstance(view, wr.Tensor)
        np.testing.assert_array_equal(view.numpy(), array, strict=True)
    assert len(views) == len(arrays)


PATHS = ("a.b.w", "a.b.b", "list.0", "list.1.0", "p.x", "p.y", "d.left")


def test_a_tree_and_back():
    tree = sample()
    packed = wr.pack(tree)
    layout, arrays = packed.layout, leaves_of(tree)
    assert layout.paths == PATHS
    assert layout.dtypes == tuple(str(array.dtype) for array in arrays)
    assert layout.shapes == tuple(array.shape for array in arrays)
    assert (packed.buffer.dtype, packed.buffer.shape, packed.buffer.device) == ("uint8", (packed.nbytes,), "cpu")
    assert packed.nbytes == layout.nbytes == packed.buffer.nbytes
    expected = np.zeros(packed.nbytes, np.uint8)
    for array, offset in zip(arrays, layout.offsets):
        assert offset % 64 == 0
        expected[offset : offset + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    np.testing.assert_array_equal(packed.buffer.numpy(), expected)
    back = packed.unpack()
    equal(leaves_of(back), arrays)
    assert list(back) == list(tree) and type(back["p"]) is Point and type(back["d"]) is Pair and back[7] == []
    first = packed.buffer.data_ptr()
    assert [view.data_ptr() - first for view, array in zip(leaves_of(back), arrays) if array.nbytes] == [
        offset for offset, array in zip(layout.offsets, arrays) if array.nbytes
    ]
    back["a.b"]["w"].numpy()[...] = -3
    assert (packed.unpack()["a.b"]["w"].numpy() == -3).all()
    assert "7 leaves" in repr(packed) and "7 leaves" in repr(layout)


@pytest.mark.parametrize("align", [1, 2, np.int64(64), 4096])
def test_alignment(align):
    tree = [paint_values(n, "float32", n) for n in (3, 1, 0, 5)]
    packed = wr.pack(tree, align=align)
    ends = [offset + array.nbytes for offset, array in zip(packed.layout.offsets, tree)]
    assert all(offset % align == 0 for offset in packed.layout.offsets)
    assert all(0 <= offset - end < align for offset, end in zip(packed.layout.offsets[1:], ends))
    assert packed.nbytes == ends[-1]
    equal(packed.unpack(), tree)
    for bad, kind in [(0, ValueError), (3, ValueError), (-8, ValueError), (True, TypeError), (8.0, TypeError), ("8", TypeError)]:
        assert str(refusal(lambda bad=bad: wr.pack(tree, align=bad), kind)).startswith("align must be")


def test_any_leaf():
    big = np.arange(6, dtype=">i4").reshape(2, 3)
    tree = {"n": 3, "f": 2.5, "t": True, "bytes": b"abc", "swapped": big, "view": paint_values((4, 6))[::-1, ::2], "row": [1, 2]}
    back = wr.pack(tree).unpack()
    assert [back[key].dtype for key in "nft"] == ["int64", "float64", "bool"]
    assert [back[key].shape for key in "nft"] == [()] * 3
    assert (int(back["n"]), float(back["f"]), bool(back["t"])) == (3, 2.5, True)
    assert bytes(back["bytes"]) == b"abc" and [int(n) for n in back["row"]] == [1, 2]
    assert back["swapped"].dtype == "int32"
    np.testing.assert_array_equal(back["swapped"].numpy(), big)
    np.testing.assert_array_equal(back["view"].numpy(), tree["view"])
    alone = paint_values((3, 2))
    np.testing.assert_array_equal(wr.pack(alone).unpack().numpy(), alone)
    for empty in ({}, [], (), {"a": []}):
        packed = wr.pack(empty)
        assert (packed.nbytes, packed.unpack(), wr.unpack(b"", packed.layout)) == (0, empty, empty)


@pytest.mark.parametrize("bad", [None, "text", object(), np.array(["a"]), {1, 2}])
def test_leaves_that_are_no_arrays(bad):
    error = refusal(lambda: wr.pack({"a": [np.zeros(3), {"b": bad}]}), (TypeError, wr.LayoutError))
    if not isinstance(bad, np.ndarray):
        assert isinstance(error, TypeError)
    assert error.path == "a.1.b" and 'tree at "a.1.b": expected' in str(error)
    refusal(lambda: wr.pack(bad), (TypeError, wr.LayoutError))
    refusal(lambda: wr.pack_buckets({"a": bad}, 10), (TypeError, wr.LayoutError))


def test_out():
    tree = {"a": paint_values(5, "float32"), "b": paint_values(3, "uint8")}
    nbytes = wr.pack(tree).nbytes
    for device, out in [
        ("cpu", bytearray(b"\xff" * 200)),
        ("cpu:0", np.full(200, 255, np.uint8)),
        (None, wr.asarray(bytearray(b"\xff" * 200))),
    ]:
        packed = wr.pack(tree, out=out, device=device)
        assert packed.buffer.shape == (nbytes,)
        assert bytes(memoryview(out))[:nbytes] == bytes(wr.pack(tree).buffer)
        assert bytes(memoryview(out))[nbytes:] == b"\xff" * (200 - nbytes)
        equal(list(packed.unpack().values()), list(tree.values()))
    frozen = np.zeros(100, np.uint8)
    frozen.flags.writeable = False
    for bad, kind, text in [
        (bytearray(nbytes - 1), ValueError, f"out: expected {nbytes} bytes or more, got {nbytes - 1}"),
        (np.zeros(100, np.float32), wr.DTypeError, "out: expected uint8, got float32"),
        (np.zeros(200, np.uint8)[::2], wr.LayoutError, "out: expected bytes without gaps"),
        (frozen, wr.LayoutError, "out: expected writable memory, got read-only memory"),
        (wr.asarray(frozen), wr.LayoutError, "out: expected writable memory, got read-only memory"),
        (3, ValueError, "out: expected 67 bytes or more, got 8"),
        ("text", TypeError, "out: expected an array-like, got str"),
    ]:
        error = refusal(lambda bad=bad: wr.pack(tree, out=bad), kind)
        assert str(error).startswith(text)
        assert [getattr(error, name, None) or None for name in ("index", "path", "side")] == [None] * 3
    assert not frozen.any()
    memory = np.arange(100, dtype=np.uint8)
    shared = 'out: expected memory apart from the leaf{0}, got memory that overlaps the leaf{0}'
    assert str(refusal(lambda: wr.pack(memory[20:60], out=memory), ValueError)) == shared.format("")
    # The bytes between leaves are written too.
    error = refusal(lambda: wr.pack({"a: b": tree["b"], "c": memory[10:20]}, out=memory), ValueError, index=1, path="c", side=None)
    assert str(error) == shared.format(' at "c"') == f"out: expected {error.expected}, got {error.got}"
    np.testing.assert_array_equal(memory, np.arange(100))
    error = refusal(lambda: wr.pack(tree, out=bytearray(100), device="pinned"), wr.DeviceError)
    assert str(error) == "out: expected pinned, got cpu"
    refusal(lambda: wr.pack(tree, out=bytearray(100), device="nowhere"), ValueError, "nowhere")
    # The error of a leaf is that of the leaf.
    refusal(lambda: wr.pack({"a: b": "text"}, out=frozen), TypeError, 'tree at "a: b"', path="a: b")


def test_out_that_torch_does_not_let_write():
    torch = pytest.importorskip("torch")
    with torch.inference_mode():
        out = torch.zeros(100, dtype=torch.uint8)
    refusal(lambda: wr.pack({"a": np.ones(3)}, out=out), RuntimeError, "out: expected a tensor that may be written to here, got an inference tensor")


def test_arguments():
    refusal(lambda: wr.pack([1], engine=3), TypeError)
    refusal(lambda: wr.pack([1], device="nowhere"), ValueError)
    refusal(lambda: wr.unpack(b"", "{}"), TypeError)
    refusal(lambda: wr.unpack(3, wr.pack([1]).layout), (TypeError, ValueError))
    for bad, kind in [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)]:
        assert str(refusal(lambda bad=bad: wr.pack_buckets([1], bad), kind)).startswith("max_bytes must be")
    refusal(lambda: wr.pack_buckets([1], 8, align=3), ValueError)
    engine = wr.Engine()
    engine.reset_stats()
    wr.pack([np.zeros(4), np.zeros(2)], align=8, engine=engine)
    assert engine.stats()["bytes_out"] == 48


def test_tied_leaves_are_stored_once():
    w = paint_values((3, 4))
    tree = {"in": w, "out": w, "again": w[:], "turned": w.T, "other": w.reshape(4, 3), "bits": w.view(np.int32)}
    packed = wr.pack(tree)
    offsets = dict(zip(packed.layout.paths, packed.layout.offsets))
    assert offsets["in"] == offsets["out"] == offsets["again"] == 0
    assert len(set(offsets.values())) == 4
    back = packed.unpack()
    assert back["in"] is back["out"] is back["again"]
    for key, array in tree.items():
        np.testing.assert_array_equal(back[key].numpy(), array)
    layout = wr.Layout.from_json(packed.layout.to_json())
    into = np.zeros((3, 4), np.float32)
    dsts = {
        "in": into,
        "out": into[:],
        "again": into[:, :],
        "turned": np.zeros((4, 3), np.float32),
        "other": np.zeros((4, 3)),
        "bits": np.zeros((3, 4), np.int32),
    }
    assert wr.unpack(packed.buffer, layout, into=dsts) is dsts
    for key, array in tree.items():
        np.testing.assert_array_equal(dsts[key], array)
    # Apart on the other side, or shared by leaves that are not tied.
    dsts["again"] = np.zeros((3, 4), np.float32)
    wr.unpack(packed.buffer, layout, into=dsts)
    np.testing.assert_array_equal(dsts["again"], w)
    into[...] = 0
    dsts["bits"] = into.view(np.int32)
    error = refusal(lambda: wr.unpack(packed.buffer, layout, into=dsts), ValueError)
    assert error.path == "bits" and "overlaps" in str(error) and not into.any()


def test_unpack_into():
    tree = sample()
    packed = wr.pack(tree)
    for layout in (packed.layout, wr.Layout.from_json(packed.layout.to_json())):
        into = sample(lambda shape, dtype, seed: np.zeros(shape, dtype))
        if layout._structure is None:
            into["7"] = into.pop(7)
            assert "7" in str(refusal(lambda into=into, layout=layout: wr.unpack(packed.buffer, layout, into=into), KeyError))
            into[7] = into.pop("7")
        into = dict(reversed(into.items()))
        assert wr.unpack(bytes(packed.buffer), layout, into=into) is into
        for own, array in zip(leaves_of(into), leaves_of(tree)):
            np.testing.assert_array_equal(own, array, strict=True)
    # Casts, and a tensor alone.
    dst = np.zeros(4, np.float64)
    wr.unpack(wr.pack(np.arange(4)).buffer, wr.pack(np.arange(4)).layout, into=dst)
    assert dst.tolist() == [0, 1, 2, 3]


def test_unpack_into_what_does_not_fit():
    packed = wr.pack({"a": [np.ones(3), {"b": np.ones(4)}]})
    first = np.zeros(3)

    def failed(into, kind):
        error = refusal(lambda: wr.unpack(packed.buffer, packed.layout, into=into), kind)
        assert not first.any()
        return error

    error = failed({"a": [first, {"b": np.zeros(5)}]}, wr.ShapeError)
    assert error.path == "a.1.b" and (error.expected, error.got) == ((4,), (5,))
    error = failed({"a": [first, {"b": np.zeros(4, np.complex64).real[::2]}]}, wr.ShapeError)
    assert error.path == "a.1.b"
    assert failed({"a": [first, {"b": b"abcd"}]}, wr.LayoutError).path == "a.1.b"
    assert failed({"a": [first, {"b": None}]}, TypeError).path == "a.1.b"
    assert failed({"a": [first, np.zeros(4)]}, TypeError).path == "a.1"
    assert '"a.1.c"' in str(failed({"a": [first, {"c": np.zeros(4)}]}, KeyError))
    assert '"a.1.c"' in str(failed({"a": [first, {"b": np.zeros(4), "c": np.zeros(4)}]}, KeyError))
    failed({"a": [first]}, ValueError)
    failed({"a": [first, {"b": [np.zeros(4)]}]}, TypeError)
    failed([first], KeyError)
    assert failed({}, KeyError).path == "a"


def test_buffers():
    tree = {"a": paint_values(5, "float32"), "b": paint_values(3, "int16")}
    packed = wr.pack(tree)
    data = bytes(packed.buffer)
    for buffer in (data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8), packed.buffer, bytearray(data + b"more")):
        equal(list(wr.unpack(buffer, packed.layout).values()), list(tree.values()))
    assert memoryview(wr.unpack(data, packed.layout)["a"]).readonly
    moved = np.frombuffer(b"x" + data, np.uint8)[1:]
    equal(list(wr.unpack(moved, packed.layout).values()), list(tree.values()))
    for bad in (data[:-1], b"", bytearray(3)):
        error = refusal(lambda bad=bad: wr.unpack(bad, packed.layout), ValueError)
        assert str(error) == f"buffer: expected {len(data)} bytes or more, got {len(bad)}"
    refusal(lambda: wr.unpack(np.frombuffer(data + b"\0\0", np.float32), packed.layout), wr.DTypeError)
    refusal(lambda: wr.unpack(np.zeros(1000, np.uint8)[::2], packed.layout), wr.LayoutError)


# JSON and pickles


def test_json():
    tree = {"a.b": {"c": np.zeros(3)}, "a": {"b.c": np.ones(2)}, "l": [1, (2, [3])], 5: np.zeros(2), None: {True: 1, 2.5: 2}}
    layout = wr.pack(tree).layout
    again = wr.Layout.from_json(layout.to_json())
    assert again == layout and not again != layout and hash(again) == hash(layout)
    assert again == wr.Layout.from_json(layout.to_json().encode())
    assert again.to_json() == layout.to_json()
    back = wr.unpack(wr.pack(tree).buffer, again)
    assert list(back) == list(tree) and list(back[None]) == [True, 2.5]
    assert type(back["l"]) is list and type(back["l"][1]) is tuple and int(back["l"][1][1][0]) == 3
    assert back["a"]["b.c"].numpy().tolist() == [1, 1]
    for other in ({"a": tree}, {**tree, "l": (1, (2, [3]))}, {**tree, 5: np.zeros(3)}, {**tree, 5: np.zeros(2, np.int64)}):
        assert wr.pack(other).layout != layout
    assert wr.pack(tree, align=8).layout != layout
    assert layout != 3
    of_classes = wr.pack(sample())
    plain = wr.unpack(of_classes.buffer, wr.Layout.from_json(of_classes.layout.to_json()))
    assert type(plain["p"]) is tuple and type(plain["d"]) is dict
    np.testing.assert_array_equal(plain["d"]["left"].numpy(), sample()["d"].left)
    assert "no such keys" in str(refusal(wr.pack({(1, 2): 3}).layout.to_json, TypeError))


def hostile(change):
    """The text of a layout of two leaves, changed."""
    given = json.loads(wr.pack({"a": np.zeros(4, np.float32), "b": (np.zeros((2, 3), np.int64),)}).layout.to_json())
    change(given)
    return json.dumps(given)


LEAF = {"path": "c", "dtype": "uint8", "shape": [4], "offset": 0}


@pytest.mark.parametrize(
    "change",
    [
        lambda g: g.update(nbytes=-1),
        lambda g: g.update(nbytes=20),
        lambda g: g.update(nbytes=2**63),
        lambda g: g.update(nbytes=1e3),
        lambda g: g.update(nbytes=True),
        lambda g: g.pop("nbytes"),
        lambda g: g.pop("leaves"),
        lambda g: g.pop("tree"),
        lambda g: g.update(leaves={}),
        lambda g: g["leaves"].append(3),
        lambda g: g["leaves"].pop(),
        lambda g: g["leaves"].append({**LEAF, "offset": 16}),
        lambda g: g["leaves"][0].update(offset=-64),
        lambda g: g["leaves"][0].update(offset=60),
        lambda g: g["leaves"][0].update(offset=2**63 - 1),
        lambda g: g["leaves"][0].update(offset=2**64),
        lambda g: g["leaves"][0].update(offset="0"),
        lambda g: g["leaves"][0].update(shape=[-4]),
        lambda g: g["leaves"][0].update(shape=[20]),
        lambda g: g["leaves"][0].update(shape=[2**62, 2**62]),
        lambda g: g["leaves"][0].update(shape=[2**62, 0]),
        lambda g: g["leaves"][0].update(shape=[1] * 65),
        lambda g: g["leaves"][0].update(shape=4),
        lambda g: g["leaves"][0].update(shape=[[4]]),
        lambda g: g["leaves"][0].update(shape=[4.0]),
        lambda g: g["leaves"][0].update(dtype="float33"),
        lambda g: g["leaves"][0].update(dtype=["float32"]),
        lambda g: g["leaves"][0].update(dtype="x" * 10_000),
        lambda g: g["leaves"][0].update(path=3),
        lambda g: g["leaves"][0].pop("path"),
        lambda g: g["leaves"][0].update(piece=[0, "uint8"]),
        lambda g: g["leaves"][0].update(piece=[0, "uint8", [64]]),
        lambda g: g["leaves"][0].update(dtype="uint8", piece=[-1, "uint8", [64]]),
        lambda g: g["leaves"][0].update(dtype="uint8", piece=[61, "uint8", [64]]),
        lambda g: g["leaves"][0].update(dtype="uint8", piece=[0, "uint8", [3]]),
        lambda g: g.update(tree=[]),
        lambda g: g["tree"].pop(),
        lambda g: g["tree"].append("leaf"),
        lambda g: g["tree"].append(["list", 0]),
        lambda g: g["tree"].__setitem__(0, ["dict", ["a", "a"]]),
        lambda g: g["tree"].__setitem__(0, ["dict", ["a"]]),
        lambda g: g["tree"].__setitem__(0, ["dict", [[], []]]),
        lambda g: g["tree"].__setitem__(0, ["set", ["a", "b"]]),
        lambda g: g["tree"].__setitem__(0, "leaf"),
        lambda g: g["tree"].__setitem__(1, None),
        lambda g: g["tree"].__setitem__(2, ["tuple", -1]),
        lambda g: g["tree"].__setitem__(2, ["tuple", 2**70]),
        lambda g: g["tree"].__setitem__(2, ["list", 10**9]),
        lambda g: g["tree"].__setitem__(2, ["list", "1"]),
    ],
)
def test_hostile_json(change):
    text = hostile(change)
    refusal(lambda: wr.Layout.from_json(text), ValueError)


def test_text_that_is_no_layout():
    wr.Layout.from_json(hostile(lambda given: None))
    for text in (
        "",
        "{",
        "[]",
        "3",
        "null",
        "[" * 100_000,
        '{"nbytes":' + "9" * 5000 + "}",
        b"\xff\xfe\xff",
        '{"leaves":[],"tree":[],"nbytes":NaN}',
    ):
        refusal(lambda text=text: wr.Layout.from_json(text), ValueError)
    for text in (3, None, ["{}"]):
        refusal(lambda text=text: wr.Layout.from_json(text), TypeError)


def test_hostile_json_at_random():
    text = wr.pack(sample()).layout.to_json()
    random = np.random.default_rng(0)
    data, accepted = bytes(wr.pack(sample()).buffer), 0
    for _ in range(2000):
        changed = bytearray(text.encode())
        for place in random.integers(0, len(changed), random.integers(1, 4)):
            changed[place] = random.choice(np.frombuffer(b'0123456789-[]{},":aeltnu', np.uint8))
        try:
            layout = wr.Layout.from_json(bytes(changed))
        except ValueError:
            continue
        accepted += 1
        try:
            wr.unpack(data, layout)
        except ValueError as error:
            assert "buffer: expected" in str(error)
    assert accepted


def test_pickles():
    packed = wr.pack(sample())
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(packed, protocol))
        assert again.layout == packed.layout and bytes(again.buffer) == bytes(packed.buffer)
        np.testing.assert_array_equal(again.unpack()["d"]["left"].numpy(), sample()["d"].left)
    buffers = []
    text = pickle.dumps(packed, 5, buffer_callback=buffers.append)
    assert len(buffers) == 1 and buffers[0].raw().nbytes == packed.nbytes and len(text) < 2000
    again = pickle.loads(text, buffers=buffers)
    assert again.buffer.data_ptr() == packed.buffer.data_ptr()
    again = copy.deepcopy(packed)
    assert again.buffer.data_ptr() != packed.buffer.data_ptr() and again.layout == packed.layout


# torch


def test_torch_cat_of_views_is_the_same():
    torch = pytest.importorskip("torch")
    shapes = [(2, 3), (), (0,), (4, 1, 2), (17,)]
    kinds = [torch.float32, torch.bfloat16, torch.int64, torch.float16, torch.float8_e4m3fn]
    tree = {f"{i}.{kind}": torch.randn(shape).to(kind) for i, shape in enumerate(shapes) for kind in kinds}
    packed = wr.pack(tree, align=1)
    expected = torch.cat([tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in tree.values()])
    assert torch.equal(packed.buffer.torch(), expected)
    for buffer in (expected, packed.buffer):
        into = {key: torch.zeros_like(tensor) for key, tensor in tree.items()}
        wr.unpack(buffer, packed.layout, into=into)
        for key, tensor in tree.items():
            assert torch.equal(into[key].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))
    out = torch.full((len(expected) + 5,), 9, dtype=torch.uint8)
    before = out._version
    wr.pack(tree, align=1, out=out)
    assert torch.equal(out[:-5], expected) and out[-5:].tolist() == [9] * 5 and out._version > before


def test_a_model():
    torch = pytest.importorskip("torch")
    model, other = (torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10)) for _ in range(2))
    for own in (model, other):
        own[1].weight = own[0].weight
    error = refusal(lambda: wr.pack(dict(model.named_parameters())), wr.LayoutError)
    assert error.path == "0.weight" and "requires grad" in str(error)
    packed = wr.pack(model.state_dict())
    assert packed.nbytes == 192 + 40
    refusal(lambda: wr.unpack(packed.buffer, packed.layout, into=dict(other.named_parameters(remove_duplicate=False))), wr.LayoutError)
    before = other[0].weight._version
    with torch.no_grad():
        for state in (other.state_dict(), dict(other.named_parameters(remove_duplicate=False))):
            wr.unpack(packed.buffer, packed.layout, into=state)
    assert other[0].weight._version > before
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))
    with torch.no_grad():
        model[0].weight.mul_(2)
    for bucket in wr.pack_buckets(model.state_dict(), 50):
        wr.unpack(bytes(bucket.buffer), wr.Layout.from_json(bucket.layout.to_json()), into=other.state_dict())
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))


def test_classes_that_make_only_batches_are_dicts():
    torch = pytest.importorskip("torch")
    tensordict = pytest.importorskip("tensordict")
    own = tensordict.TensorDict({"a": torch.arange(6).reshape(2, 3), "b": {"c": torch.ones(2)}}, batch_size=[2])
    packed = wr.pack(Pair(own, 3))
    assert packed.layout.paths == ("left.a", "left.b.c", "right")
    back = packed.unpack()
    assert type(back) is Pair and type(back.left) is dict
    assert torch.equal(back.left["a"].torch(), own["a"]) and torch.equal(back.left["b"]["c"].torch(), own["b", "c"])
    into = Pair(own.clone().zero_(), np.zeros(()))
    wr.unpack(packed.buffer, packed.layout, into=into)
    assert torch.equal(into.left["a"], own["a"]) and into.right == 3


def test_many_leaves_large_and_small():
    random = np.random.default_rng(1)
    tree = {str(i): paint_values(int(n), "float32", i) for i, n in enumerate(random.integers(256, 200_000, 60))}
    tree.update({f"s{i}": paint_values(3, "float16", i) for i in range(3000)})
    packed = wr.pack(tree, engine=wr.Engine(threads=3))
    equal(list(packed.unpack().values()), list(tree.values()))
    into = {key: np.zeros_like(array) for key, array in tree.items()}
    wr.unpack(packed.buffer, packed.layout, into=into)
    for key, array in tree.items():
        np.testing.assert_array_equal(into[key], array)


def test_leaves_in_two_places(monkeypatch):
    class Elsewhere:
        device, nbytes = "pinned", 24

    tree = wr.packed._Tree({"a": np.zeros(3), "b": np.zeros(3)})
    tree.tensors[1] = Elsewhere()
    error = refusal(lambda: tree.device(None), wr.DeviceError)
    assert str(error).startswith('tree at "b": expected cpu, got pinned') and error.path == "b"
    assert tree.device("pinned") == "pinned"


def test_alignment_has_an_end():
    refusal(lambda: wr.pack([np.ones(3)], align=1 << 40), ValueError, "align must be a power of two")


def test_leaves_beyond_63_bits():
    one = np.broadcast_to(np.zeros((), np.uint8), (1 << 62,))
    error = refusal(lambda: wr.pack({"a": one, "b": one[:-1], "c": one[:-2]}), ValueError)
    assert "beyond 64 bits together" in str(error)


def test_errors_count_the_leaves_of_the_caller():
    """Tied leaves, which are stored once, are counted as the others are."""
    memory, w = np.zeros(400, np.uint8), np.ones(4, np.float32)
    error = refusal(lambda: wr.pack({"a": w, "tied": w, "b": memory[8:24]}, out=memory), ValueError)
    assert (error.index, error.path) == (2, "b")
    assert str(error) == 'out: expected memory apart from the leaf at "b", got memory that overlaps the leaf at "b"'
    error = refusal(lambda: wr.pack({"a": w, "tied": w, "b": w + 1, "c": memory[70:80]}, out=memory), ValueError)
    assert (error.index, error.path) == (3, "c") and 'memory that overlaps the leaf at "c"' in str(error)
    assert not memory.any()
    packed, into = wr.pack({"a": w, "tied": w, "b": w + 1}), np.zeros(4, np.float32)
    error = refusal(lambda: wr.unpack(packed.buffer, packed.layout, into={"a": into, "tied": into, "b": into[:2]}), wr.ShapeError)
    assert str(error).startswith('destination 2 at "b": expected') and error.index == 2
