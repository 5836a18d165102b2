"""wr.collate(arena=True): all leaves in one allocation, and the same tree again from a copy of its bytes."""

import copy
import pickle
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest

import oracle
import windrow as wr
from cuda_harness import Cai, Dlpack, later, plain
from helpers import assert_same, memory, paint, refusal, samples_of, settle, usable

FIELDS = ("data", "lengths", "offsets", "mask", "batch_index")
Pair = namedtuple("Pair", "left right")


@dataclass
class Item:
    image: object
    label: object


SPEC = {
    "ids": wr.Pad(value=7, mask="real", side="left"),
    "nested.*": wr.Ragged(batch_index=True, offsets_dtype="int32"),
    "pair.left": wr.Concat(),
    "boxes": wr.Pad(side="center", multiple_of=(4, 3), mask="pad"),
}


def trees(n=4):
    """Every container, form and kind of leaf, some without elements."""
    return [
        {
            "ids": paint(2 * i, "int32", i),
            "nested": [paint((3 - i % 3, 2), "float16", i), paint((0, 5), "complex128")],
            "pair": Pair(paint((i + 1, 3), "uint8", i), (paint((2, 2), "float64", i), i)),
            "boxes": paint((i, 2), "float32", i),
            "item": Item(paint((5, 4), "uint8", i), i % 2 == 0),
            "none": paint((0, 3), "int16"),
            "text": f"t{i}",
        }
        for i in range(n)
    ]


def leaves(tree):
    if isinstance(tree, wr.Batch):
        return [tree]
    if isinstance(tree, Item):
        tree = vars(tree)
    items = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return [leaf for item in items for leaf in leaves(item)]


def check(got, want, read=memory):
    """The same containers, and the same batches in them, with `read` to look at a tensor."""
    assert type(got) is type(want)
    if isinstance(want, wr.Batch):
        assert (len(got), got.max_length) == (len(want), want.max_length)
        for name in FIELDS:
            mine, other = getattr(got, name), getattr(want, name)
            assert (mine is None) == (other is None), name
            if other is not None:
                assert (mine.shape, mine.dtype) == (other.shape, other.dtype), name
                assert_same(read(mine), memory(other))
        for mine, other in zip(got, want):
            assert mine.shape == other.shape
            if 0 not in mine.shape:
                assert_same(read(mine), memory(other))
    elif isinstance(want, Item):
        check(vars(got), vars(want), read)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            check(got[key], want[key], read)
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for mine, other in zip(got, want):
            check(mine, other, read)
    else:
        assert got == want


def check_layout(tree, align=64):
    """Aligned, one after the other, inside; gives the bytes that no tensor covers."""
    arena = leaves(tree)[0].arena
    assert isinstance(arena, wr.Tensor) and arena.dtype == "uint8" and arena.ndim == 1
    assert arena.nbytes % align == 0
    gaps, end = [], 0
    for batch in leaves(tree):
        assert batch.arena is arena
        layout = batch.arena_layout
        assert list(layout) == [name for name in FIELDS if getattr(batch, name) is not None]
        for name, (dtype, shape, byte_offset) in layout.items():
            tensor = getattr(batch, name)
            assert (tensor.dtype, tensor.shape) == (dtype, shape)
            assert tensor.data_ptr() == arena.data_ptr() + byte_offset
            assert byte_offset % align == 0 and byte_offset >= end
            gaps += range(end, byte_offset)
            end = byte_offset + tensor.nbytes
    assert end <= arena.nbytes
    return gaps + list(range(end, arena.nbytes))


def dumped(tree):
    """A pickle without the bytes, and the one buffer that has them."""
    buffers = []
    head = pickle.dumps(tree, protocol=5, buffer_callback=buffers.append)
    (buffer,) = buffers
    return head, memoryview(buffer)


def test_the_same_tree_in_one_allocation():
    want = wr.collate(trees(), SPEC)
    engine = wr.Engine(threads=2)
    tree = wr.collate(trees(), SPEC, arena=True, engine=engine)
    check(tree, want)
    gaps = check_layout(tree)
    assert gaps and not memory(leaves(tree)[0].arena)[gaps].any()
    stats = engine.stats()
    assert stats["pool_misses"] == 1 and stats["pool_used_bytes"] >= leaves(tree)[0].arena.nbytes
    del tree
    settle()
    assert engine.stats()["pool_used_bytes"] == 0
    assert all(leaf.arena is None and leaf.arena_layout is None for leaf in leaves(want))


@pytest.mark.parametrize("name", oracle.ALL)
def test_every_dtype(name):
    arrays = [paint((n, 3), name, n) for n in (2, 0, 5)]
    samples = [{"a": a, "b": b} for a, b in zip(samples_of(arrays, name), samples_of(arrays[:1] * 3, name))]
    spec = {"a": wr.Pad(mask="real", value=0 if name != "float8_e8m0fnu" else 1)}
    tree = wr.collate(samples, spec, arena=True)
    check(tree, wr.collate(samples, spec))
    check_layout(tree)
    head, buffer = dumped(tree)
    check(pickle.loads(head, buffers=[bytearray(buffer)]), tree)


def test_one_leaf_and_none():
    batch = wr.collate([paint(3, "uint8", i) for i in range(2)], arena=True)
    assert_same(memory(batch), np.stack([paint(3, "uint8", i) for i in range(2)]))
    assert batch.arena.shape == (64,) and batch.arena_layout == {"data": ("uint8", (2, 3), 0)}
    empty = wr.collate([paint((0, 3))] * 2, arena=True)
    assert empty.arena.shape == (0,) and empty.shape == (2, 0, 3)
    assert wr.collate([{}, {}], arena=True) == {}
    assert wr.collate([{"name": "x"}] * 2, arena=True) == {"name": ["x", "x"]}
    assert wr.collate([paint(3)], arena=False).arena is None


def test_large_leaves_by_all_threads():
    samples = [{"x": paint(400_000, "float32", i), "y": paint(200_000 + i, "uint8", i)} for i in range(3)]
    spec = {"y": wr.Ragged()}
    tree = wr.collate(samples, spec, arena=True, engine=wr.Engine(threads=3))
    check(tree, wr.collate(samples, spec))
    check_layout(tree)


def test_the_arena_lives_as_long_as_any_view():
    view = wr.collate(trees(), SPEC, arena=True)["boxes"][3].numpy()
    other = wr.collate(trees(), SPEC, arena=True)["ids"].arena
    assert_same(view, paint((3, 2), "float32", 3))
    assert other.nbytes and usable()


def test_a_numpy_copy_is_the_same_tree():
    tree = wr.collate(trees(), SPEC, arena=True)
    head, buffer = dumped(tree)
    moved = np.array(tree["ids"].arena.numpy())
    assert buffer.nbytes == moved.nbytes and len(head) < 2500
    again = pickle.loads(head, buffers=[moved])
    check(again, tree)
    check_layout(again)
    assert moved.ctypes.data <= again["ids"].data_ptr() < moved.ctypes.data + moved.nbytes
    moved[:] = 0
    assert not memory(again["boxes"]).any()


def test_a_torch_copy_is_the_same_tree(torch):
    tree = wr.collate(trees(), SPEC, arena=True)
    moved = torch.from_dlpack(tree["ids"].arena).clone()
    again = pickle.loads(dumped(tree)[0], buffers=[moved])
    check(again, tree)
    assert again["ids"].arena.data_ptr() == moved.data_ptr()
    again["boxes"].torch()[0, 0, 0] = 5
    dtype, shape, byte_offset = tree["boxes"].arena_layout["data"]
    assert moved[byte_offset : byte_offset + 4].view(getattr(torch, dtype)).item() == 5


def test_arena_layout_alone_is_enough():
    """A receiver without windrow reads the batches by their `arena_layout`."""
    tree = wr.collate(trees(), SPEC, arena=True)
    moved = bytes(tree["ids"].arena)
    for batch in leaves(tree):
        for name, (dtype, shape, byte_offset) in batch.arena_layout.items():
            count = int(np.prod(shape))
            got = np.frombuffer(moved, oracle.STORAGE[dtype], count, byte_offset).reshape(shape)
            assert_same(got, memory(getattr(batch, name)))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("arena", [True, False])
def test_pickles_of_every_protocol(protocol, arena):
    tree = wr.collate(trees(), SPEC, arena=arena)
    again = pickle.loads(pickle.dumps(tree, protocol))
    check(again, tree)
    if arena:
        check_layout(again)
    again["ids"].numpy()[:] = 3
    check(copy.deepcopy(tree), wr.collate(trees(), SPEC))


def test_tensors_pickle_too():
    column = wr.asarray(paint((4, 6), "int16"))
    again = pickle.loads(pickle.dumps(column))
    assert_same(memory(again), memory(column))


def test_buffers_that_do_not_fit():
    head, buffer = dumped(wr.collate(trees(), SPEC, arena=True))

    def load(moved):
        return lambda: pickle.loads(head, buffers=[moved])

    refusal(load(bytes(buffer)[:-1]), wr.LayoutError, f"got {buffer.nbytes - 1} bytes")
    refusal(load(np.frombuffer(buffer, np.int16)), wr.DTypeError, "expected uint8, got int16")
    refusal(load(np.zeros(2 * buffer.nbytes, np.uint8)[::2]), wr.LayoutError, "without gaps")


def packed(*numbers):
    """Lengths and offsets in a pickle."""
    return np.array(numbers, "<i8").tobytes()


@pytest.mark.parametrize(
    "change, text",
    [
        ({"parts": ([0], b""), "num": 5}, "do not fit"),
        ({"parts": ([1, 0, 1], packed(1, 2))}, "do not fit"),
        ({"parts": ([1, 0, 1], packed(1, 2, 3, 9))}, "do not fit"),
        ({"parts": ([1, 0, 3], packed(1, 2, 3, 4))}, r"no parts of a batch: \[1, 0, 3\]"),
        ({"parts": ([1, 0], packed(1, 2, 3, 4))}, "no parts"),
        ({"parts": ([1, -1, 0], packed(1, 2, 3, 4))}, "no parts"),
        ({"parts": ([2, 0], packed(0, 3, 2, 4, 4))}, "never decrease"),
        ({"parts": ([2, 7], packed(0, 1, 2, 3, 4))}, "do not fit"),
        ({"parts": ([3], b"")}, "no parts"),
        ({"parts": ([], b"")}, "no parts"),
        ({"fields": {}}, "without data"),
        ({"fields": {"data": ("uint8", (1 << 40,), 0)}}, "bytes"),
        ({"fields": {"data": ("uint8", (4, 6), 1 << 62)}}, "bytes"),
        ({"fields": {"date": ("uint8", (4, 6), 0)}}, "date"),
    ],
)
def test_a_pickle_that_lies_is_an_error(change, text):
    batch = wr.collate([paint(n) for n in (1, 4, 6, 2)], wr.Pad(), arena=True)
    make, (arena, fields, parts, num, longest) = batch.__reduce_ex__(5)
    arguments = {"arena": arena, "fields": fields, "parts": parts, "num": num, **change}
    refusal(lambda: make(*arguments.values(), longest), (ValueError, BufferError), text)


def test_explain():
    plan = wr.explain(trees(), "collate", spec=SPEC, arena=True)
    tree = wr.collate(trees(), SPEC, arena=True)
    gaps = check_layout(tree)
    assert (plan.arena_bytes, plan.arena_gap_bytes) == (tree["ids"].arena.nbytes, len(gaps))
    assert (plan.leaves, plan.samples) == (len(leaves(tree)), 4)
    assert [shape for shape, _ in plan.outputs] == [leaf.shape for leaf in leaves(tree)]
    assert f"arena          {plan.arena_bytes} bytes, {len(gaps)} of them between tensors" in str(plan)
    plan = wr.explain(trees(), "collate", spec=SPEC)
    assert plan.arena_bytes == plan.arena_gap_bytes == 0 and "arena" not in str(plan)
    rows = np.arange(12).reshape(3, 4)
    assert wr.explain([{"a": row} for row in rows], "collate", copy=None).path == "view"
    assert wr.explain([{"a": row} for row in rows], "collate", copy=None, arena=True).path == "memcpy"
    refusal(lambda: wr.explain(trees(), "collate", spec={"nope": wr.Pad()}), ValueError, "matches no leaf")
    refusal(lambda: wr.explain(trees(), "collate", areena=True), TypeError, "areena")


def test_arguments_that_exclude_each_other():
    samples = [{"a": {"b": paint(3, "uint8", i)}} for i in range(2)]
    out = {"a": {"b": np.full((2, 3), 9, np.uint8)}}
    refusal(lambda: wr.collate(samples, arena=True, out=out), ValueError, r'"a\.b".*arena.*out=')
    spec = {"a.b": wr.Stack(out=out["a"]["b"])}
    refusal(lambda: wr.collate(samples, spec, arena=True), ValueError, r'"a\.b".*arena.*out=')
    assert (out["a"]["b"] == 9).all()
    refusal(lambda: wr.collate(samples, arena=True, copy=False), ValueError, r'"a\.b".*copy=False')
    refusal(lambda: wr.stack([1, 2], arena=True), TypeError, "arena")
    refusal(lambda: wr.Stack(arena=True), TypeError, "arena")
    # A view where there can be one: in an arena there is none.
    rows = np.arange(12).reshape(3, 4)
    tree = wr.collate([{"a": row} for row in rows], arena=True, copy=None)
    assert_same(memory(tree["a"]), rows)
    assert tree["a"].data_ptr() == tree["a"].arena.data_ptr() != rows.ctypes.data


def test_errors_leave_nothing_allocated():
    engine = wr.Engine()
    bad = trees()
    bad[2]["item"] = Item(paint((5, 3)), 0)
    error = refusal(lambda: wr.collate(bad, SPEC, arena=True, engine=engine), wr.ShapeError, index=2, path="item.image")
    assert "expected shape (5, 4), got (5, 3)" in str(error)
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (1 << 60,), (0,))
    refusal(lambda: wr.collate([{"a": 1, "b": huge}], arena=True, engine=engine), MemoryError)
    assert engine.stats()["pool_used_bytes"] == 0
    settle()
    before = sys.getrefcount(bad[0]["ids"])
    refusal(lambda: wr.collate(bad, SPEC, arena=True, engine=engine), wr.ShapeError)
    settle()
    after = sys.getrefcount(bad[0]["ids"])
    assert after == before


# Devices


@pytest.mark.parametrize("target", ["cpu", "pinned", "cuda"])
@pytest.mark.parametrize("source", ["cpu", "pinned", "cuda"])
def test_from_and_to_every_place(driver, source, target):
    def place(array):
        return {"cpu": lambda: array, "pinned": lambda: Dlpack(driver, array, kind="pinned"), "cuda": lambda: Cai(driver, array)}[source]()

    def placed(tree):
        if isinstance(tree, np.ndarray):
            return place(tree)
        if isinstance(tree, (int, bool)):
            return place(np.asarray(tree))
        if isinstance(tree, dict):
            return {key: placed(item) for key, item in tree.items()}
        if isinstance(tree, Item):
            return Item(placed(tree.image), placed(tree.label))
        if isinstance(tree, Pair):
            return Pair(*map(placed, tree))
        return type(tree)(map(placed, tree)) if isinstance(tree, (list, tuple)) else tree

    want = wr.collate(trees(), SPEC)
    engine = wr.Engine()
    arguments = dict(spec=SPEC, arena=True, engine=engine, device=target)
    plan = wr.explain(placed(trees()), "collate", **arguments)
    tree = wr.collate(placed(trees()), **arguments)
    check(tree, want, plain)
    gaps = check_layout(tree, 64 if target == "cpu" else 256)
    arena = leaves(tree)[0].arena
    assert arena.device == {"cuda": "cuda:0"}.get(target, target)
    assert (plan.arena_bytes, plan.arena_gap_bytes) == (arena.nbytes, len(gaps))
    assert not plain(arena)[gaps].any()
    stats = engine.stats()
    assert stats["launches"] == plan.launches
    if target == "cuda":
        assert stats["device_bytes"] == arena.nbytes
        check(pickle.loads(pickle.dumps(tree)), want, plain)
    elif target == "pinned":
        assert stats["pinned_used_bytes"] >= arena.nbytes
        check(pickle.loads(pickle.dumps(tree)), want)
    del tree, arena
    stats = engine.stats()
    assert stats["device_bytes"] == stats["pinned_used_bytes"] == stats["pool_used_bytes"] == 0


def test_one_copy_to_a_device_is_the_same_tree_there(driver):
    tree = wr.collate(trees(), SPEC, arena=True, device="pinned")
    head, _ = dumped(tree)
    on_device = pickle.loads(head, buffers=[Cai(driver, plain(tree["ids"].arena))])
    check(on_device, wr.collate(trees(), SPEC), plain)
    check_layout(on_device, 256)
    assert on_device["ids"].lengths.device == "cuda:0"


def test_leaves_in_several_places(driver):
    samples = [{"a": i, "b": i} for i in range(2)]
    spec = {"b": wr.Stack(device="cuda")}
    refusal(lambda: wr.collate(samples, spec, arena=True), wr.DeviceError, "one place", path="b", expected="cpu", got="cuda:0")


def test_every_view_waits_for_the_launch(streams):
    stream = streams.stream()
    spec = {"x": wr.Ragged(batch_index=True), "ids": wr.Pad(mask="real")}
    arrays = [{"x": paint((n, 2), "float32", n), "ids": paint(n, "int32", n)} for n in (2, 1, 3)]
    samples = [{name: Cai(streams, array) for name, array in sample.items()} for sample in arrays]
    want = wr.collate(arrays, spec)
    with streams.paused(stream):
        tree = wr.collate(samples, spec, arena=True, stream=stream)
        read = {(key, name): later(streams, getattr(tree[key], name)) for key in tree for name in tree[key].arena_layout}
        whole = later(streams, tree["x"].arena)
    for (key, name), array in read.items():
        assert_same(array(), memory(getattr(want[key], name)))
    dtype, shape, byte_offset = tree["ids"].arena_layout["data"]
    assert_same(whole()[byte_offset:][:36].view(dtype).reshape(shape), memory(want["ids"]))


@pytest.mark.simulated("which fails when told to")
@pytest.mark.parametrize("target", ["cpu", "pinned", "cuda"])
def test_a_launch_that_fails_leaves_nothing(sim, target):
    engine = wr.Engine(device="cuda:0")
    samples = [{"x": Cai(sim, paint((n, 2), "float32", n)), "y": Cai(sim, paint(3, "uint8", n))} for n in (2, 1, 3)]
    sim.fail("cuLaunchKernel", 701)
    refusal(lambda: wr.collate(samples, wr.Ragged(), arena=True, engine=engine, device=target), wr.CudaError)
    settle()
    stats = engine.stats()
    assert stats["device_bytes"] == stats["pinned_used_bytes"] == stats["pool_used_bytes"] == 0
    tree = wr.collate(samples, wr.Ragged(), arena=True, engine=engine, device=target)
    assert_same(plain(tree["y"]), np.concatenate([paint(3, "uint8", n) for n in (2, 1, 3)]))
