"""copy_many: pairs of every kind of side against loops of NumPy's and torch's own assignments, and refusals that write nothing."""

import collections
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow as wr
from helpers import paint, paint_values, refusal, relocate

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]


def failed(dsts, srcs, kind, **arguments):
    """The error of a call, which wrote nothing to the arrays among the destinations."""
    arrays = [dst for dst in dsts if isinstance(dst, np.ndarray)] if isinstance(dsts, (list, tuple)) else []
    before = [array.tobytes() for array in arrays]
    error = refusal(lambda: wr.copy_many(dsts, srcs, **arguments), kind)
    assert [array.tobytes() for array in arrays] == before
    return error


# values


def random_view(random, memory, dtype, shape):
    """An array of this dtype and shape somewhere in the memory, of random strides and alignment."""
    dtype = np.dtype(dtype)
    order = random.permutation(len(shape))
    strides, step = [0] * len(shape), dtype.itemsize
    for dim in order:
        step *= int(random.choice([1, 1, 1, 2]))
        strides[dim] = step * int(random.choice([1, 1, -1]))
        step *= max(shape[dim], 1)
    if 0 in shape:
        return np.ndarray(shape, dtype, memory.data, int(random.integers(0, 16)))
    reach = [(extent - 1) * stride for extent, stride in zip(shape, strides)]
    below, above = -sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    offset = below + int(random.integers(0, memory.nbytes - below - above - dtype.itemsize))
    return np.ndarray(shape, dtype, memory.data, offset, strides)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("seed", range(40))
def test_random_pairs_are_as_numpy_assigns_them(seed):
    random = np.random.default_rng(seed)
    for _ in range(25):
        written = np.zeros(30_000, np.uint8)
        read = random.integers(0, 2, 20_000).astype(np.uint8)
        count = int(random.integers(0, 6))
        shapes = [tuple(random.integers(0, 5, random.integers(0, 4))) for _ in range(count)]
        # Few bits are set, so that every cast is defined alike.
        pairs = []
        for shape in shapes:
            to, of = random.choice(DTYPES, 2) if random.integers(2) else [random.choice(DTYPES)] * 2
            src = random_view(random, read, of, shape)
            if of != to and np.dtype(of).kind == "f":
                src = (random.integers(-100, 100, shape) / 4).astype(of)
                src = src if np.dtype(to).kind != "u" else abs(src)
            pairs.append((random_view(random, written, to, shape), src))
        spans = [bytes_of(dst, written) for dst, _ in pairs]
        shared = any(spans[i] & spans[j] for i in range(count) for j in range(i))
        expected = written.copy()
        for dst, src in pairs:
            at = dst.__array_interface__["data"][0] - written.__array_interface__["data"][0]
            np.ndarray(dst.shape, dst.dtype, expected.data, at if dst.size else 0, dst.strides)[...] = src
        dsts, srcs = [dst for dst, _ in pairs], [src for _, src in pairs]
        try:
            wr.copy_many(dsts, srcs)
        except ValueError as error:
            assert "memory apart from" in str(error)
            assert not written.any()
            spans = [np.lib.array_utils.byte_bounds(dst) for dst in dsts]
            assert shared or any(a[0] < b[1] and b[0] < a[1] for i, a in enumerate(spans) for b in spans[:i])
        else:
            assert not shared
            assert written.tobytes() == expected.tobytes()


def bytes_of(array, memory):
    """The bytes of the memory that an array has."""
    if not array.size:
        return set()
    first = array.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    steps = np.zeros(array.shape, np.int64)
    for dim, stride in enumerate(array.strides):
        shape = [-1 if d == dim else 1 for d in range(array.ndim)]
        steps = steps + (np.arange(array.shape[dim]) * stride).reshape(shape)
    return {int(first + step + byte) for step in steps.ravel() for byte in range(array.itemsize)}


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.integers(0, 40))
def test_casts_are_those_of_a_batch(of, to, length):
    src = paint_values(length, of)
    dst = np.zeros(length, to)
    wr.copy_many([dst], [src])
    if length:
        np.testing.assert_array_equal(dst, wr.stack([src], dtype=to).numpy()[0])


def test_many_short_pairs():
    for count in (1, 64, 1024, 4096):
        table = paint_values((count, 16), "float32")
        dsts, srcs = [np.zeros(16, np.float32) for _ in table], list(table)
        wr.copy_many(dsts, srcs)
        np.testing.assert_array_equal(dsts, table)
        halves = [np.zeros(16, np.float16) for _ in table]
        wr.copy_many(wr.SampleList(halves), wr.SampleList(srcs))
        np.testing.assert_array_equal(halves, table.astype(np.float16))


def test_large_pairs_release_the_lock_and_are_shared_by_threads():
    srcs = [paint_values((700, 1001), "float32"), paint_values(3), paint_values((1001, 700)).T]
    dsts = [np.zeros((700, 1001)), np.zeros(3, np.float32), np.zeros((700, 1001), np.float32)]
    wr.copy_many(dsts, srcs, engine=wr.Engine(threads=3))
    for dst, src in zip(dsts, srcs):
        np.testing.assert_array_equal(dst, src)


def test_a_transform_on_the_way():
    image = paint((4, 5, 3), "uint8")
    transform = wr.Transform(scale=1 / 255, mean=(0.1, 0.2, 0.3), channel_dim=-1, permute=(2, 0, 1))
    dst = np.zeros((3, 4, 5), np.float32)
    wr.copy_many([dst], [image], transform=transform)
    np.testing.assert_array_equal(dst, wr.stack([image], transform=transform, dtype="float32").numpy()[0])
    error = failed([np.zeros((4, 5, 3), np.float32)], [image], wr.ShapeError, transform=transform)
    assert (error.index, error.side, error.expected) == (0, "destination", (3, 4, 5))
    error = failed([dst], [image], wr.ShapeError, transform=wr.Transform(mean=(1, 2), channel_dim=-1))
    assert (error.index, error.side) == (0, "source")


# sides


def rows_of(count=5):
    return [paint_values(3, "float32", seed) for seed in range(count)]


@pytest.mark.parametrize("kind", ["list", "tuple", "iterable", "SampleList", "taken", "tensor", "batch", "windrow"])
@pytest.mark.parametrize("of", ["list", "SampleList", "tensor", "batch", "numbers"])
def test_every_side(kind, of):
    table = np.zeros((5, 3), np.float64)
    sides = {
        "list": lambda: list(table),
        "tuple": lambda: tuple(table),
        "iterable": lambda: iter(table),
        "SampleList": lambda: wr.SampleList(table),
        "taken": lambda: wr.SampleList(table).take([4, 3, 2, 1, 0]),
        "tensor": lambda: table,
        "batch": lambda: wr.stack(rows_of(), out=table.view(np.float64), dtype="float64"),
        "windrow": lambda: [wr.asarray(row) for row in table],
    }
    rows = rows_of()
    sources = {
        "list": lambda: rows,
        "SampleList": lambda: wr.SampleList(rows),
        "tensor": lambda: np.stack(rows),
        "batch": lambda: wr.stack(rows),
        "numbers": lambda: [row.tolist() for row in rows],
    }
    dsts = sides[kind]()
    table[...] = -1
    wr.copy_many(dsts, sources[of]())
    expected = np.stack(rows)[:: -1 if kind == "taken" else 1]
    np.testing.assert_array_equal(table, expected)


@pytest.mark.parametrize("form", ["pad", "ragged", "concat"])
def test_samples_of_a_batch_are_their_real_parts(form):
    rows = [paint_values(n, "float32", n) for n in (3, 0, 5, 1)]
    batch = getattr(wr, form)(rows)
    dsts = [np.zeros(len(row), np.float32) for row in rows]
    wr.copy_many(dsts, batch)
    for dst, row in zip(dsts, rows):
        np.testing.assert_array_equal(dst, row)
    wr.copy_many(batch, [row * 2 for row in rows])
    for sample, row in zip(batch, rows):
        np.testing.assert_array_equal(sample.numpy(), row * 2)
    if form == "pad":
        assert not batch.numpy()[1].any(), "padding stays"


def test_scatter_by_ids():
    table, rows = np.zeros((6, 3), np.float32), rows_of(3)
    places = wr.SampleList(table)
    wr.copy_many(places.take([4, 0, -1]), rows)
    np.testing.assert_array_equal(table[[4, 0, 5]], rows)
    error = refusal(lambda: wr.copy_many(places.take([2, 4, 1, 4]), rows_of(4)), ValueError)
    assert str(error) == "destination 3: expected memory apart from destination 1, got memory that overlaps destination 1"
    assert (error.index, error.side, error.path) == (3, "destination", "")
    assert not table[[1, 2]].any()
    # Columns of one table lie between each other.
    wr.copy_many(table.T, [np.arange(6)] * 3)
    np.testing.assert_array_equal(table, np.arange(6)[:, None].repeat(3, 1))


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Pair:
    left: object
    right: object


def test_trees():
    def tree(make):
        return {"a": {"w": make(2), "b": make(0)}, "list": [make(1), (make(3),)], "p": Point(make(4), make(5)), "d": Pair(make(6), make(7))}

    arrays = []

    def zeros(seed):
        arrays.append(np.zeros(3, np.float32))
        return arrays[-1]

    dsts, srcs = tree(zeros), tree(lambda seed: paint_values(3, "float32", seed))
    wr.copy_many(dsts, dict(reversed(srcs.items())))
    for array, seed in zip(arrays, (2, 0, 1, 3, 4, 5, 6, 7)):
        np.testing.assert_array_equal(array, paint_values(3, "float32", seed))
    wr.copy_many([{"x": arrays[0]}, {"x": arrays[1]}], ({"x": [1, 2, 3]}, {"x": arrays[2]}))
    np.testing.assert_array_equal(arrays[0], [1, 2, 3])
    np.testing.assert_array_equal(arrays[1], paint_values(3, "float32", 1))


def test_errors_of_trees_name_the_path():
    good, bad = np.zeros(3), np.zeros(4)
    error = refusal(lambda: wr.copy_many({"a": [good, {"b": bad}]}, {"a": [good + 1, {"b": good}]}), wr.ShapeError)
    assert str(error) == 'destination 1 at "a.1.b": expected shape (3,), got (4,)'
    assert (error.index, error.side, error.path, error.expected, error.got) == (1, "destination", "a.1.b", (3,), (4,))
    error = refusal(lambda: wr.copy_many({"a": good, "b": good.copy()}, {"a": good, "b": None}), TypeError)
    assert str(error) == 'source 1 at "b": expected an array-like, got NoneType'
    assert (error.index, error.side, error.path) == (1, "source", "b")
    error = refusal(lambda: wr.copy_many({"a": "text"}, {"a": good}), TypeError)
    assert (error.index, error.side, error.path) == (0, "destination", "a")
    for dsts, srcs, kind, path, text in [
        ({"a": good}, {"b": good}, KeyError, "a", 'srcs at "a": there is no such entry in dict'),
        ({"a": good}, {"a": good, "b": good}, KeyError, "b", 'srcs at "b": the destinations have no such key'),
        ({"a": [good]}, {"a": [good, good]}, ValueError, "a", 'srcs at "a": expected 1 entries, got 2'),
    ]:
        error = refusal(lambda dsts=dsts, srcs=srcs: wr.copy_many(dsts, srcs), kind)
        assert (error.args[0], error.index, error.side, error.path) == (text, None, "destination", path)
    error = refusal(lambda: wr.copy_many({"a": good}, [good]), TypeError)
    assert str(error).startswith("the destinations are a tree and the sources are none")
    error = refusal(lambda: wr.copy_many([good], {"a": good}), TypeError)
    assert str(error).startswith("the sources are a tree and the destinations are none")
    error = refusal(lambda: wr.copy_many(wr.SampleList([{"a": good}]), [good]), TypeError)
    assert "are trees (dict)" in str(error) and error.side == "destination"
    assert not good.any() and not bad.any()


# refusals


def test_pairs_that_do_not_fit():
    zeros = [np.zeros(4, np.float32) for _ in range(4)]
    ones = [np.ones(4, np.float32) for _ in range(4)]
    error = failed(zeros, ones[:3], ValueError)
    assert str(error) == "4 destinations for 3 sources"
    assert (error.index, error.side) == (None, "destination")
    error = failed(zeros, [*ones[:3], np.ones(5)], wr.ShapeError)
    assert str(error) == "destination 3: expected shape (5,), got (4,)"
    assert (error.index, error.side, error.path, error.expected, error.got) == (3, "destination", "", (5,), (4,))
    error = failed(zeros, [*ones[:3], np.ones(4, np.complex64)], wr.DTypeError)
    assert str(error) == "destination 3: expected complex64, got float32; complex and smaller dtypes, and float8 but for e4m3fn and e5m2, are moved, never cast or transformed"
    assert (error.index, error.side) == (3, "destination")
    error = failed([*zeros, np.zeros(4, ">f4")], [*ones, ones[0]], wr.LayoutError)
    assert (error.index, error.side) == (4, "destination")
    wr.copy_many(zeros[:1], [np.arange(4, dtype=">f4")])
    assert zeros[0].tolist() == [0, 1, 2, 3]


def test_destinations_that_must_not_be_written_to():
    ones, frozen = np.ones(2, np.uint8), np.zeros(2, np.uint8)
    frozen.flags.writeable = False
    for bad, got in [(frozen, "read-only memory"), (b"ab", "read-only memory"), (3, "a Python number"), (np.float32(3), "a Python number")]:
        error = failed([np.zeros(2, np.uint8), bad], [ones, ones], wr.LayoutError)
        assert str(error) == f"destination 1: expected writable memory, got {got}"
        assert (error.index, error.side) == (1, "destination")
    error = failed([np.zeros(2), [1.0, 2.0]], [ones, ones], TypeError)
    assert str(error) == "destination 1: expected an array-like, got list"
    for side in (frozen[None], wr.SampleList([frozen]), wr.SampleList(frozen[None])):
        error = failed(side, [ones], wr.LayoutError)
        assert (error.index, error.side) == (None, "destination")
        assert not frozen.any()
    # Each sample for itself.
    rows = wr.SampleList([np.zeros(2, np.uint8), frozen, np.zeros(2, np.uint8), frozen[:1].repeat(2)])
    error = failed(rows, [ones] * 4, wr.LayoutError)
    assert str(error) == "destination 1: expected writable memory, got read-only memory"
    assert (error.index, error.side) == (1, "destination")
    error = failed(rows.take([3, 0, 1]), [ones] * 3, wr.LayoutError)
    assert error.index == 2 and not rows[3].numpy().any()
    wr.copy_many(rows.take([2, 0, -1]), [ones] * 3)
    assert [row.numpy().tolist() for row in rows] == [[1, 1], [0, 0], [1, 1], [1, 1]]
    assert rows[0].numpy().flags.writeable and not rows[1].numpy().flags.writeable
    rows[1] = np.zeros(2, np.uint8)
    rows.append(frozen)
    rows.extend([ones * 0])
    assert failed(rows, [ones] * 6, wr.LayoutError).index == 4
    wr.copy_many(rows.take([1, 5]), [ones] * 2)
    assert rows[5].numpy().all() and not frozen.any()
    expanded = np.lib.stride_tricks.as_strided(np.zeros(1), (3,), (0,))
    error = failed([expanded], [np.ones(3)], wr.LayoutError)
    assert "memory whose elements do not overlap" in str(error)
    pa = pytest.importorskip("pyarrow")
    for side in (pa.array([1, 2]), wr.SampleList(pa.array([1, 2]))):
        error = failed(side, [1, 2], wr.LayoutError)
        assert str(error).startswith("dsts: expected writable memory, got ") and error.side == "destination"


def test_memory_that_pairs_share():
    memory = np.arange(20, dtype=np.int32)
    error = failed([memory[:4], memory[3:7]], [memory[10:14], memory[14:18]], ValueError)
    assert str(error) == "destination 1: expected memory apart from destination 0, got memory that overlaps destination 0"
    error = failed([memory[:4], memory[4:8]], [memory[10:14], memory[2:6]], ValueError)
    assert str(error) == "destination 0: expected memory apart from source 1, got memory that overlaps source 1"
    assert (error.index, error.side) == (0, "destination")
    assert not isinstance(error, (wr.ShapeError, wr.DeviceError))
    error = failed([memory[:4]], [memory[3::-1]], ValueError)
    error = failed([memory[:4]], [memory[:4].view(np.float32)], ValueError)
    # The same memory and dtype is left as it is.
    wr.copy_many([memory[:4], memory[4:8]], [memory[:4], memory[10:14]])
    assert memory[:8].tolist() == [0, 1, 2, 3, 10, 11, 12, 13]
    # Rows that take turns in memory share nothing.
    pairs = memory.reshape(10, 2)
    wr.copy_many([pairs[:, 0]], [pairs[:, 1]])
    assert (pairs[:, 0] == pairs[:, 1]).all()


def test_arguments():
    wr.copy_many([], [])
    wr.copy_many((), [], max_blocks=4)
    for arguments, kind in [
        ({"transform": 3}, TypeError),
        ({"engine": 3}, TypeError),
        ({"max_blocks": 0}, ValueError),
        ({"max_blocks": "a"}, TypeError),
        ({"stream": 0}, ValueError),
        ({"stream": "a"}, TypeError),
    ]:
        failed([np.zeros(1)], [np.ones(1)], kind, **arguments)
    for side in ("text", 3, None):
        refusal(lambda side=side: wr.copy_many(side, [1]), TypeError)
        refusal(lambda side=side: wr.copy_many([np.zeros(1)], side), TypeError)
    engine = wr.Engine()
    engine.reset_stats()
    wr.copy_many([np.zeros(4)], [np.ones(4, np.float32)], engine=engine)
    stats = engine.stats()
    assert (stats["samples"], stats["moves"], stats["bytes_in"], stats["bytes_out"], stats["batches"]) == (1, 1, 16, 32, 0)
    engine.reset_stats()
    scaled = {"dsts": [np.zeros((2, 3), "i1")], "transform": wr.Quantize("int8"), "scales_out": [np.zeros(2, "f4")]}
    wr.copy_many(srcs=[np.ones((2, 3), "f4")], **scaled, engine=engine)
    assert engine.stats().bytes_out == wr.explain([np.ones((2, 3), "f4")], "copy_many", **scaled).bytes_written == 14


def test_explain():
    srcs = [np.ones(4, np.float32), np.ones((2, 3), np.int64), np.ones(5)]
    dsts = [np.zeros(4), np.zeros((2, 3), np.int64), np.zeros(5)]
    plan = wr.explain(srcs, "copy_many", dsts=dsts)
    assert (plan.samples, plan.paths, plan.bytes_read, plan.bytes_written, plan.launches) == (3, ["cast", "memcpy"], 104, 120, 0)
    assert plan.outputs == [((9,), "float64"), ((6,), "int64")] and not any(dst.any() for dst in dsts)
    # A row that is there already is not written.
    assert wr.explain({"a": dsts[0], "b": srcs[2]}, "copy_many", dsts={"a": dsts[0], "b": dsts[2]}).bytes_written == 40
    half = wr.explain(srcs[:1], "copy_many", dsts=dsts[:1], transform=wr.Transform(scale=0.5), engine=wr.Engine(), max_blocks=3)
    assert half.paths == ["transform"] and "moves" not in half.as_dict()
    error = refusal(lambda: wr.explain([b"a", b"b"], "copy_many", dsts=[bytearray(1), b"x"]), wr.LayoutError, "destination 1: expected writable")
    assert error.index == 1
    error = refusal(lambda: wr.explain(srcs, "copy_many", dsts=[*dsts[:2], np.zeros(6)]), wr.ShapeError)
    assert (error.index, error.side) == (2, "destination")
    assert "needs dsts=" in str(refusal(lambda: wr.explain(srcs, "copy_many"), TypeError))
    error = refusal(lambda: wr.explain(srcs, "copy_many", dsts=dsts, dtype="f4"), TypeError)
    assert str(error) == 'copy_many has no argument "dtype"; it has dsts, transform, scales_out, stream, engine, max_blocks'
    refusal(lambda: wr.explain(srcs, "copy_many", dsts=dsts[:2]), ValueError)
    assert wr.explain([], "copy_many", dsts=[]).samples == 0


def test_memory_that_moved_is_refused():
    array = np.zeros(4)
    rows = wr.SampleList([np.zeros(4), array])
    relocate(array)
    for dsts, srcs, side in [(rows, [np.ones(4)] * 2, "destination"), ([np.zeros(4), np.zeros(4)], rows, "source")]:
        error = refusal(lambda dsts=dsts, srcs=srcs: wr.copy_many(dsts, srcs), wr.LayoutError)
        assert str(error).startswith(f"{side} 1: expected memory that is where it was imported")
        assert (error.index, error.side) == (1, side)


# torch


def torch_tensors(torch, count=8):
    return [torch.arange(5.0) + i for i in range(count)]


@pytest.mark.parametrize("count", [1, 8, 3000])
def test_torch_copies_the_same(count):
    torch = pytest.importorskip("torch")
    srcs = torch_tensors(torch, count)
    dsts, expected = ([torch.zeros(5) for _ in srcs] for _ in range(2))
    wr.copy_many(dsts, srcs)
    torch._foreach_copy_(expected, srcs)
    assert all(map(torch.equal, dsts, expected))
    # Mixed dtypes and layouts, by copy_.
    shapes = [(2, 3), (), (0,), (4, 1, 2)]
    kinds = [torch.float32, torch.bfloat16, torch.int64, torch.float16]
    srcs = [torch.randn(shape).to(kind) for shape in shapes for kind in kinds]
    dsts = [torch.zeros(src.shape[::-1], dtype=kind).permute(tuple(reversed(range(src.ndim)))) for src, kind in zip(srcs, kinds[::-1] * 4)]
    expected = [dst.clone() for dst in dsts]
    wr.copy_many(dsts, srcs)
    for dst, want, src in zip(dsts, expected, srcs):
        assert torch.equal(dst, want.copy_(src))


def changed(rows):
    """A list of these tensors, which were put into it one by one."""
    samples = wr.SampleList([np.zeros(5, "f4"), *rows[:1]])
    samples[0] = rows[0]
    samples[1] = rows[1]
    samples.append(rows[2])
    return samples


@pytest.mark.parametrize("side", [list, tuple, iter, dict, "rows", "list of rows", "list of tensors", "taken", "changed", "windrow"])
def test_version_counters_move(side):
    torch = pytest.importorskip("torch")
    table = torch.zeros(3, 5)
    rows = list(table) if side != "rows" else [table]
    views = {
        "rows": lambda: table,
        "list of rows": lambda: wr.SampleList(table),
        "list of tensors": lambda: wr.SampleList(list(table)),
        "taken": lambda: wr.SampleList([table[2], table[0], table[1]]).take([1, 2, 0]),
        "changed": lambda: changed(list(table)),
        "windrow": lambda: [wr.asarray(row) for row in rows],
        dict: lambda: dict(enumerate(rows)),
    }
    leaf = torch.ones(3, 5, requires_grad=True)
    product = leaf * table
    srcs = torch_tensors(torch, 3)
    dsts = views[side]() if side in views else side(rows)
    before = table._version
    wr.copy_many(dsts, dict(enumerate(srcs)) if side is dict else srcs)
    assert table._version > before
    assert torch.equal(table, torch.stack(srcs))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    before = table._version
    refusal(lambda: wr.copy_many(list(table), srcs[:2]), ValueError)
    assert table._version == before


def test_tensors_that_require_grad_by_what_was_made_of_them():
    torch = pytest.importorskip("torch")
    leaf, later = torch.zeros(4, requires_grad=True), [torch.zeros(4), torch.zeros(4)]
    with torch.no_grad():
        sides = [wr.SampleList([leaf, leaf * 1]), [wr.asarray(leaf), bytearray(4)], wr.asarray(leaf.view(2, 2)), wr.SampleList(later)]
    later[1].requires_grad_()
    for side, width in zip(sides, (4, 4, 2, 4)):
        srcs = [np.ones(width, "f4")] * 2
        error = refusal(lambda side=side, srcs=srcs: wr.copy_many(side, srcs), wr.LayoutError)
        assert "does not require grad" in str(error) and error.side == "destination"
    assert not leaf.any() and not later[0].any()
    with torch.no_grad():
        wr.copy_many(sides[3], [np.ones(4, "f4")] * 2)
    assert later[1].all()


def test_tensors_that_require_grad():
    torch = pytest.importorskip("torch")
    model = {"w": torch.nn.Parameter(torch.zeros(4)), "b": torch.zeros(2)}
    state = {"w": torch.ones(4), "b": torch.ones(2)}
    for call in (lambda: wr.copy_many(model, state), lambda: wr.copy_many(list(model.values()), list(state.values()))):
        error = refusal(call, wr.LayoutError)
        assert (error.index, error.side) == (0, "destination")
        assert "requires grad" in str(error)
    kept = torch.zeros(4)
    known = wr.asarray(kept)
    kept.requires_grad_()
    error = refusal(lambda: wr.copy_many([state["b"], known], [torch.ones(2), torch.ones(4)]), wr.LayoutError)
    assert str(error).startswith("destination 1: expected a tensor that does not require grad")
    error = refusal(lambda: wr.copy_many(list(state.values()), list(model.values())), wr.LayoutError)
    assert (error.index, error.side) == (0, "source")
    assert not model["w"].any() and not model["b"].any()
    before = model["w"]._version
    with torch.no_grad():
        wr.copy_many(model, state)
    assert model["w"].detach().tolist() == [1] * 4 and model["w"]._version > before
    with torch.inference_mode():
        frozen = torch.zeros(4)
        wr.copy_many([frozen], [torch.ones(4)])
    assert frozen.tolist() == [1] * 4
    error = refusal(lambda: wr.copy_many([torch.zeros(4), frozen], [torch.zeros(4)] * 2), RuntimeError)
    assert str(error).startswith("destination 1: expected a tensor that may be written to here")
    assert (error.index, error.side) == (1, "destination")
    refusal(lambda: wr.copy_many(frozen[None], [torch.zeros(4)]), RuntimeError)
    assert frozen.tolist() == [1] * 4


def test_lazy_clones_get_memory_of_their_own():
    torch = pytest.importorskip("torch")
    if not hasattr(torch, "_lazy_clone"):
        pytest.skip("this torch has no lazy clones")
    ones = torch.ones(4)
    for dsts, srcs in [(lambda t: [t], [ones]), (lambda t: {"a": t}, {"a": ones}), (lambda t: t[None], [ones])]:
        tensor = torch.zeros(4)
        clone = torch._lazy_clone(tensor)
        wr.copy_many(dsts(clone), srcs)
        assert clone.tolist() == [1] * 4 and tensor.tolist() == [0] * 4
    for made in (lambda t: wr.SampleList([t]), lambda t: wr.SampleList(t[None]), lambda t: [wr.asarray(t)]):
        tensor = torch.zeros(4)
        dsts = made(tensor)
        clone = torch._lazy_clone(tensor)
        try:
            wr.copy_many(dsts, [torch.ones(4)])
        except (wr.LayoutError, BufferError):
            # torch gave the tensor that the list was made of the new memory.
            assert clone.tolist() == [0] * 4 and tensor.tolist() == [0] * 4
        else:
            assert tensor.tolist() == [1] * 4 and clone.tolist() == [0] * 4


def test_a_destination_that_reading_the_sources_moves():
    torch = pytest.importorskip("torch")
    moved = torch.zeros(4)

    class Moving:
        def __init__(self):
            self.values = np.ones(4, "f4")

        @property
        def __array_interface__(self):
            moved.resize_(1 << 20)
            return self.values.__array_interface__

    error = refusal(lambda: wr.copy_many([moved], [Moving()]), wr.LayoutError, "destination 0: .* memory that was moved or freed")
    assert error.side == "destination" and error.index == 0


def test_torch_that_counts_versions_one_by_one(monkeypatch):
    torch = pytest.importorskip("torch")
    real, counted = torch.autograd.graph.increment_version, []

    def one(tensor):
        if not isinstance(tensor, torch.Tensor):
            raise RuntimeError("expected a tensor")
        counted.append(tensor)
        real(tensor)

    monkeypatch.setattr(torch.autograd.graph, "increment_version", one)
    tensors = [torch.zeros(n) for n in (2, 3)]
    wr.copy_many(tensors, [np.ones(2, "f4"), np.ones(3, "f4")])
    assert [tensor._version for tensor in tensors] == [1, 1] and len(counted) == 2


def test_a_copy_is_no_destination():
    """A write to the copy would be lost."""
    array = np.zeros(4, "f4")

    class Copied:
        def __dlpack__(self, **_):
            return array.__dlpack__(max_version=(1, 3), copy=True)

        def __dlpack_device__(self):
            return array.__dlpack_device__()

    source = np.ones(4, "f4")
    for call in (lambda: wr.copy_many([Copied()], [source]), lambda: wr.copy_many(Copied(), [source[:1].reshape(())] * 4), lambda: wr.concat([source], out=Copied())):
        refusal(call, wr.LayoutError, "expected memory that may be written to, got a copy")
    wr.copy_many([array], [Copied()])
    assert wr.stack([Copied()]).shape == (1, 4)


def test_lists_that_are_written_to():
    torch = pytest.importorskip("torch")
    tensors, base = [torch.zeros(4) for _ in range(5)], torch.zeros(5, 4)
    rows = np.arange(20, dtype="f4").reshape(5, 4)
    for target in (tensors, list(base)):
        listed = wr.SampleList(target)
        for version in (1, 2):
            wr.copy_many(listed, wr.SampleList([torch.from_numpy(row * version) for row in rows]))
            np.testing.assert_array_equal(np.stack([own.numpy() for own in target]), rows * version)
            assert all(own._version >= version for own in target)
    listed = wr.SampleList(tensors)
    tensors[2].requires_grad_()
    refusal(lambda: wr.copy_many(listed, rows * 3), wr.LayoutError)
    assert (tensors[0].numpy() == rows[0] * 2).all()
    with torch.no_grad():
        wr.copy_many(listed, rows * 3)
    np.testing.assert_array_equal(tensors[2].detach().numpy(), rows[2] * 3)
    with torch.inference_mode():
        frozen = torch.zeros(4)
        inside = wr.SampleList([frozen, torch.zeros(4)])
        wr.copy_many(inside, rows[:2])
    refusal(lambda: wr.copy_many(inside, rows[2:4]), RuntimeError)
    assert (frozen.numpy() == rows[0]).all()
    # Beside arrays of NumPy, views of ours and storages that they share.
    mixed = [torch.zeros(4), np.zeros(4, "f4"), wr.asarray(torch.zeros(4)), torch.zeros(4)]
    wr.copy_many(wr.SampleList(mixed), rows[:4])
    assert [own._version for own in (mixed[0], mixed[3])] == [1, 1]
    np.testing.assert_array_equal(np.stack([np.asarray(own) for own in mixed]), rows[:4])
