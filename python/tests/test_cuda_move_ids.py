"""copy_many with ids in the memory of a device, bounds for the blocks of a move, and moves between devices."""

import numpy as np
import pytest

import windrow as wr
from cuda_harness import Cai, Dlpack, table_type
from helpers import assert_same, paint_values, refusal
from test_cuda import run
from test_cuda_moves import on, read

ROWS = paint_values((9, 40), "float32")
IDS = np.array([7, -1, 3, 0, 5])
OTHERS = np.array([4, 8, 0, -7, 1])


def listed(driver, array, kind="table"):
    """A list on the device that knows its samples there, and what is read of it later."""
    if kind == "table":
        memory = Cai(driver, array)
        return wr.SampleList(memory).to_device("cuda"), lambda: read(driver, memory)
    parts = [Cai(driver, row) for row in array]
    return wr.SampleList(parts[::-1]).to_device("cuda"), lambda: np.stack([read(driver, part) for part in parts])


def ids_on(driver, ids, dtype="int64"):
    return Cai(driver, np.asarray(ids, dtype))


@pytest.mark.parametrize("kind", ["table", "parts"])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_ids_on_both_sides(driver, kind, dtype):
    source, _ = listed(driver, ROWS, kind)
    target, written = listed(driver, np.zeros_like(ROWS), kind)
    wr.copy_many(target.take(ids_on(driver, IDS, dtype)), source.take(ids_on(driver, OTHERS, dtype)))
    want, flip = np.zeros_like(ROWS), slice(None, None, -1 if kind == "parts" else 1)
    want[flip][IDS] = ROWS[flip][OTHERS]
    assert_same(written(), want)


@pytest.mark.parametrize("place", ["cpu", "pinned", "cuda"])
@pytest.mark.parametrize("to", ["float32", "float64", "uint8"])
def test_a_side_whose_ids_the_host_knows(driver, place, to):
    table, _ = listed(driver, ROWS)
    got = on(driver, place, [np.zeros(40, to) for _ in IDS])
    wr.copy_many(got, table.take(ids_on(driver, IDS)))
    for own, row in zip(got, ROWS[IDS]):
        assert_same(read(driver, own), row.astype(to) if to != "uint8" else cast(row, to))
    target, written = listed(driver, np.zeros((9, 40), to))
    wr.copy_many(target.take(ids_on(driver, IDS)), on(driver, place, list(ROWS[OTHERS])))
    want = np.zeros((9, 40), to)
    want[IDS] = cast(ROWS[OTHERS], to)
    assert_same(written(), want)
    # Rows of one table, of which nothing goes with the launch.
    memory = on(driver, place, [np.array(ROWS)])[0]
    wr.copy_many(target.take(ids_on(driver, IDS)), wr.SampleList(memory).take(list(OTHERS)))
    assert_same(written(), want)


def cast(array, to):
    """Casts an array by `copy_many`, as windrow casts."""
    result = np.zeros(array.shape, to)
    wr.copy_many([result], [np.ascontiguousarray(array)])
    return result


@pytest.mark.parametrize("place", ["cpu", "pinned", "cuda"])
@pytest.mark.parametrize("scale", ["sample", "row", 32])
def test_tokens_are_quantised_into_slots_of_the_device(driver, place, scale):
    """A step of a server has such ids: of slots on the device, for a store of codes and one of scales."""
    tokens, quantize = paint_values((5, 3, 40), "float32"), wr.Quantize("int8", scale=scale)
    batch = wr.stack(tokens, transform=quantize)
    store, codes = listed(driver, np.zeros((9, 3, 40), "i1"))
    kept, scales = listed(driver, np.zeros((9, *batch.scales.shape[1:]), "f4"))
    slots = ids_on(driver, [7, 9, 3, 0, 5])
    wr.copy_many(store.take(slots), on(driver, place, list(tokens)), transform=quantize, scales_out=kept.take(slots))
    want, found = np.zeros((9, 3, 40), "i1"), np.zeros((9, *batch.scales.shape[1:]), "f4")
    want[[7, 3, 0, 5]] = batch.numpy()[[0, 2, 3, 4]]
    found[[7, 3, 0, 5]] = batch.scales.numpy()[[0, 2, 3, 4]]
    assert_same(codes(), want)
    assert_same(scales(), found)
    for one in (store, kept):
        refusal(lambda one=one: one.take([0]), IndexError, "position 1")
    error = refusal(lambda: wr.copy_many(store.take(slots), list(tokens), transform=quantize), ValueError)
    assert "needs scales_out" in str(error)
    host = [np.zeros(batch.scales.shape[1:], "f4") for _ in tokens]
    error = refusal(lambda: wr.copy_many(store.take(slots), list(tokens), transform=quantize, scales_out=host), wr.DeviceError)
    assert (error.index, error.side) == (0, "scales_out")


@pytest.mark.parametrize("bytes_", [1, 2, 3, 6, 8, 48, 512, 4096, 32 << 10, 70_001])
def test_pages_of_every_size(driver, bytes_):
    pages = paint_values((12, bytes_), "uint8")
    source, _ = listed(driver, pages)
    target, written = listed(driver, np.zeros((12, bytes_), "u1"))
    ids = np.random.default_rng(0).permutation(12)[:7]
    wr.copy_many(target.take(ids_on(driver, ids)), source.take(ids_on(driver, ids[::-1].copy())), max_blocks=2)
    want = np.zeros((12, bytes_), "u1")
    want[ids] = pages[ids[::-1]]
    assert_same(written(), want)
    host = np.zeros((7, bytes_), "u1")
    wr.copy_many(host, source.take(ids_on(driver, ids)))
    assert_same(host, pages[ids])


def test_rows_with_gaps(driver):
    """Columns on one side, and rows of many dims on the other."""
    wide = paint_values((6, 4, 10), "int32")
    memory = Cai(driver, np.zeros((6, 10, 4), "i4"))
    turned = Cai(driver, np.zeros(1, "i4"), says={"data": (memory.address, False), "shape": (6, 4, 10), "strides": (160, 4, 16)})
    source, _ = listed(driver, wide)
    target = wr.SampleList(turned).to_device("cuda")
    wr.copy_many(target.take(ids_on(driver, [4, 1])), source.take(ids_on(driver, [0, 5])))
    want = np.zeros((6, 10, 4), "i4")
    want[[4, 1]] = wide[[0, 5]].transpose(0, 2, 1)
    assert_same(read(driver, memory), want)


@pytest.mark.parametrize("place", ["cpu", "pinned", "cuda"])
def test_ids_out_of_range_leave_their_pairs_out(driver, place):
    ids = np.array([3, 9, 1, -10])
    want = np.ones((4, 40), "f4")
    want[[0, 2]] = ROWS[[3, 1]]
    table, _ = listed(driver, ROWS)
    got = on(driver, place, list(np.ones((4, 40), "f4")))
    wr.copy_many(got, table.take(ids_on(driver, ids)))
    for own, row in zip(got, want):
        assert_same(read(driver, own), row)
    error = refusal(lambda: table.take([0]), IndexError)
    assert "an earlier move of this list: the index at position" in str(error) and "its pair was left out" in str(error)
    table.take([0])
    target, written = listed(driver, np.ones((9, 40), "f8"))
    wr.copy_many(target.take(ids_on(driver, ids)), on(driver, place, list(ROWS[:4])))
    want = np.ones((9, 40))
    want[[3, 1]] = ROWS[[0, 2]]
    assert_same(written(), want)
    refusal(lambda: wr.stack(target), IndexError)
    # Both sides have ids: a pair with one end is none.
    source, _ = listed(driver, ROWS * 2)
    target, written = listed(driver, np.ones((9, 40), "f4"))
    wr.copy_many(target.take(ids_on(driver, [0, 9, 2])), source.take(ids_on(driver, [1, 2, 99])))
    want = np.ones((9, 40), "f4")
    want[0] = ROWS[1] * 2
    assert_same(written(), want)
    refusal(lambda: source.take([0]), IndexError)
    refusal(lambda: target.take([0]), IndexError)


def test_ids_are_read_in_a_graph_at_each_launch(driver):
    stream = driver.stream()
    source, _ = listed(driver, ROWS)
    target, written = listed(driver, np.zeros_like(ROWS))
    host = Dlpack(driver, np.zeros((2, 40), "f4"), kind="pinned")
    ids, others = ids_on(driver, [1, 2]), ids_on(driver, [3, 4])
    rows = wr.SampleList(host)
    wr.copy_many(target.take(ids), source.take(others), stream=stream)
    driver.cuStreamSynchronize(stream)
    with driver.captured(stream) as graph:
        wr.copy_many(target.take(ids), source.take(others), stream=stream)
        wr.copy_many(rows, source.take(others), stream=stream)
        error = refusal(lambda: wr.copy_many(target.take(ids), [np.zeros(40, "f4")] * 2, stream=stream), ValueError)
        assert "captured in a graph" in str(error)
    want = np.zeros_like(ROWS)
    want[[1, 2]] = ROWS[[3, 4]]
    for own, other in [([8, 0], [5, 6]), ([5, -2], [7, 1]), ([4, 11], [2, 3])]:
        for memory, new in [(ids, own), (others, other)]:
            values = np.array(new)
            driver.cuMemcpyHtoD_v2(memory.address, values.ctypes.data, values.nbytes)
        graph["replay"]()
        driver.cuStreamSynchronize(stream)
        there = [at for at, number in enumerate(own) if number < 9]
        want[np.array(own)[there]] = ROWS[np.array(other)[there]]
        assert_same(written(), want)
        assert_same(read(driver, host), ROWS[other])
    refusal(lambda: target.take([0]), IndexError)
    graph["free"]()


@pytest.mark.simulated("lists driver calls")
def test_calls(sim):
    tensor = table_type([sim.stream()])
    tables = [wr.SampleList(tensor(sim, ROWS)).to_device("cuda") for _ in range(2)]
    sides = [table.take(tensor(sim, ids)) for table, ids in zip(tables, (IDS, OTHERS))]
    calls = sim.steady_calls(lambda: wr.copy_many(*sides))
    assert calls["cuLaunchKernel"] == 1 and calls.total() <= 12, calls
    assert not any("Synchronize" in call or "Alloc" in call or "Memcpy" in call for call in calls), calls


def test_refusals(driver):
    table, written = listed(driver, np.zeros((4, 6), "f4"))
    chosen = table.take(ids_on(driver, [0, 1]))
    error = refusal(lambda: wr.copy_many(chosen, [np.zeros(6, "f4")]), ValueError)
    assert "2 destinations for 1 sources" in str(error)
    error = refusal(lambda: wr.copy_many(chosen, [np.zeros(6, "f4"), np.zeros(5, "f4")]), wr.ShapeError)
    assert (error.index, error.side) == (1, "destination")
    assert str(error) == "destination 1: expected shape (5,), got (6,)"
    error = refusal(lambda: wr.copy_many(chosen, np.zeros((2, 6), "c8")), wr.DTypeError)
    assert error.side == "destination"
    out = np.zeros((3, 6), "f4")
    error = refusal(lambda: wr.copy_many([out[1], out[1]], chosen), ValueError)
    assert "memory apart from destination 0" in str(error)
    refusal(lambda: wr.copy_many(out[:2], chosen, scales_out=[np.zeros(2, "f4")] * 2), ValueError, "scales_out is for the scales of a Quantize")
    error = refusal(lambda: wr.copy_many(out[:2], chosen, transform=wr.Dequantize([1.0, 1.0, 1.0])), wr.DeviceError, "ids on the host, got ids on cuda:0", "take by ids on the host")
    mixed = wr.SampleList([Cai(driver, np.zeros(6, "f4")), Cai(driver, np.zeros(5, "f4"))]).to_device("cuda")
    error = refusal(lambda: wr.copy_many(mixed.take(ids_on(driver, [0])), [np.zeros(6, "f4")]), ValueError)
    assert "destinations have to be of one shape" in str(error)
    read_only = Cai(driver, np.zeros((4, 6), "f4"))
    frozen = Cai(driver, np.zeros(1), says={"data": (read_only.address, True), "shape": (4, 6), "typestr": "<f4"})
    frozen = wr.SampleList(frozen).to_device("cuda")
    refusal(lambda: wr.copy_many(frozen.take(ids_on(driver, [0])), [np.ones(6, "f4")]), wr.LayoutError)
    assert not written().any() and not read(driver, read_only).any()
    wr.copy_many(table.take(ids_on(driver, [])), [])
    error = refusal(lambda: wr.explain([np.zeros(6, "f4")] * 2, "copy_many", dsts=chosen), ValueError)
    assert "indices on a device" in str(error)


# Bounds for blocks


@pytest.mark.simulated("which says how many blocks a launch has")
@pytest.mark.parametrize("source", ["cpu", "pinned", "cuda"])
def test_no_launch_has_more_blocks_than_it_may(sim, source):
    rows = [paint_values(20_000 - 64 * (i % 3), "float32", i) for i in range(40)]
    srcs = on(sim, source, rows)

    def most(dsts, **bound):
        return sim.most_blocks(lambda: wr.copy_many(dsts, srcs, **bound))

    for kind in ("float32", "float16"):
        free, bounded = ([Cai(sim, np.zeros(row.shape, kind)) for row in rows] for _ in range(2))
        if source == "cpu" or kind == "float16":
            assert most(free) > 8
        else:
            most(free)
        assert most(bounded, max_blocks=3) <= 3
        for own, other in zip(free, bounded):
            assert_same(read(sim, other), read(sim, own))


@pytest.mark.simulated("which says how many blocks a launch has")
def test_a_bound_of_ids_on_the_device(sim):
    source, _ = listed(sim, paint_values((64, 8192), "float32"))
    target, written = listed(sim, np.zeros((64, 8192), "f4"))
    ids = ids_on(sim, np.arange(64)[::-1])
    for bound, least, most in [(None, 100, 1024), (3, 3, 3)]:
        blocks = sim.most_blocks(lambda bound=bound: wr.copy_many(target.take(ids), source.take(ids), max_blocks=bound))
        assert least <= blocks <= most
    assert_same(written(), paint_values((64, 8192), "float32"))
    # Rows that are cast are gathered first, by a launch that is bounded as well.
    target, written = listed(sim, np.zeros((64, 8192), "f2"))
    assert sim.most_blocks(lambda: wr.copy_many(target.take(ids), source.take(ids), max_blocks=3)) == 3
    assert_same(written(), paint_values((64, 8192), "float32").astype("f2"))


# Room for pairs


@pytest.mark.simulated("which has as much memory as the host")
def test_room_beside_the_pairs_is_bounded(sim):
    engine, row = wr.Engine(), paint_values((1 << 18) - 1, "float32")
    target = Cai(sim, np.zeros((300, (1 << 18) - 1), "f4"))
    engine.reset_stats()
    wr.copy_many(target, [row] * 300, engine=engine)
    assert engine.stats()["launches"] == 2
    copied = read(sim, target)
    assert (copied == row).all()


# Several devices

ACROSS = """
import numpy as np, windrow as wr

rows = np.random.default_rng(0).standard_normal((6, 50)).astype("f4")
first, second = (wr.stack(rows * by, device=name) for by, name in ((1, "cuda:0"), (2, "cuda:1")))

def read(batch):
    return wr.stack(batch, device="cpu").numpy()

# The pairs go from the host to the devices, and back.
wr.copy_many([first[0], second[0], first[1]], [rows[5], rows[4], rows[3]])
got = np.zeros((3, 50), "f4")
wr.copy_many(list(got), [first[0], second[0], first[1]])
assert (got == rows[[5, 4, 3]]).all()
# Pairs go from one device to another, in both directions at once, with a cast and pairs of one device and of none.
first, second = (wr.stack(rows * by, device=name) for by, name in ((1, "cuda:0"), (2, "cuda:1")))
wide = wr.stack(np.zeros((6, 50)), device="cuda:1")
host = np.zeros(50, "f4")
dsts, srcs = [second[0], wide[1], first[2], first[3], host, wide[2]], [first[0], first[1], second[2], first[4], rows[1], rows[3]]
plan, before = wr.explain(srcs, "copy_many", dsts=dsts), wr.stats()
wr.copy_many(dsts, srcs)
launches, down = (wr.stats()[name] - before[name] for name in ("launches", "bytes_to_host"))
assert (plan.samples, plan.path, plan.bytes_read, plan.bytes_written) == (6, "mixed", 6 * 200, 4 * 200 + 2 * 400)
assert plan.launches == launches == 6 and 800 == plan.bytes_to_host <= down, (plan, launches, down)
assert (read(second)[0] == rows[0]).all() and (read(second)[1:] == 2 * rows[1:]).all()
assert (read(first)[2] == 2 * rows[2]).all() and (read(first)[3] == rows[4]).all() and (host == rows[1]).all()
assert (read(wide)[1] == rows[1]).all() and (read(wide)[2] == rows[3]).all() and not read(wide)[3:].any()
wr.copy_many(first, second, transform=wr.Transform(scale=0.5))
assert (read(first) == read(second) * np.float32(0.5)).all()
# Pairs with scales go to one device at a time.
codes, scales = ([wr.stack(np.zeros(shape, dtype), device=name) for name in ("cuda:0", "cuda:1")] for shape, dtype in (((6, 50), "i1"), ((6,), "f4")))
quantize, want = wr.Quantize("int8"), wr.stack(rows, transform=wr.Quantize("int8"))
try:
    wr.copy_many([codes[0][0], codes[1][0]], [rows[0], rows[1]], transform=quantize, scales_out=[wr.SampleList(own)[0] for own in scales])
except ValueError as error:
    assert "copy once for each device" in str(error), error
else:
    raise AssertionError("written")
for own, its in zip(codes, scales):
    wr.copy_many(own, rows, transform=quantize, scales_out=its)
    assert (read(own) == want.numpy()).all() and (read(its) == want.scales.numpy()).all()
# The number of pairs is any.
many = [wr.stack(np.zeros((200, 3), "i4"), device=name) for name in ("cuda:0", "cuda:1")]
numbers = np.arange(600).reshape(200, 3)
wr.copy_many([many[i % 2][i] for i in range(200)], list(numbers.astype("i8")))
wr.copy_many([many[i % 2][i] for i in range(200)], [many[(i + 1) % 2][i] for i in range(200)])
wr.copy_many([many[i % 2][i] for i in range(200)], list(numbers))
assert all((read(many[i % 2])[i] == numbers[i]).all() for i in (0, 1, 150, 199))
# Nothing is written where one pair does not fit.
before = read(first)
try:
    wr.copy_many([first[0], second[0]], [second[1], rows[0][:-1]])
except wr.ShapeError as error:
    assert error.index == 1
else:
    raise AssertionError
assert (read(first) == before).all()
listed = wr.SampleList(first).to_device("cuda:0")
try:
    wr.copy_many(listed.take(wr.stack([0, 1], device="cuda:0")), [second[0], second[1]])
except wr.DeviceError as error:
    assert "copy the sources to that one first" in str(error)
else:
    raise AssertionError
# The host's reads and writes beside them wait for the devices.
locked = wr.stack(np.zeros((2, 50), "f4"), device="pinned")
for turn in range(5):
    wr.copy_many([locked[0], locked[1]], [second[turn], first[turn]])
    wr.copy_many([host, first[5], second[5]], [locked[0], rows[0], rows[1]])
    assert (host == read(second)[turn]).all(), turn
    wr.copy_many([second[4]], [locked[1]])
    wr.copy_many([locked[1], first[5], second[5]], [rows[turn], rows[0], rows[1]])
    assert (read(second)[4] == read(first)[turn]).all() and (locked.numpy()[1] == rows[turn]).all(), turn
# A list of which one device's samples are taken, and leaves without elements elsewhere.
both = wr.SampleList([first[0], second[0]])
wr.copy_many(both.take([1]), [rows[2]], stream=2)
assert (read(second)[0] == rows[2]).all()
empty = wr.stack([np.zeros((0, 4), "f4")], device="cuda:0")
packed = wr.pack({"a": second[0], "none": empty, "b": second[1]})
assert packed.buffer.device == "cuda:1"
"""


@pytest.mark.simulated("which has as many devices as a test asks for")
@pytest.mark.slow
def test_several_devices(sim):
    run(ACROSS, CUDASIM_DEVICES="2")
