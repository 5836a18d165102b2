"""copy_many with sides on a device, by the simulated driver or a real one."""

import ctypes

import numpy as np
import pytest

import windrow as wr
from cuda_harness import LEGACY, Cai, Dlpack, copy_out, fetch, plain, table_type
from helpers import assert_same, paint_values, refusal

SHAPES = [(4, 6), (3,), (), (0, 2), (5, 1, 7), (300,)]
ROWS = [paint_values(shape, "float32", seed) for seed, shape in enumerate(SHAPES)]


def on(driver, place, arrays):
    """The arrays in a place."""
    if place == "cpu":
        return [array.copy() for array in arrays]
    if place == "pinned":
        return [Dlpack(driver, array, kind="pinned") for array in arrays]
    return [Cai(driver, array) for array in arrays]


def read(driver, thing):
    """The array that a destination is now."""
    if isinstance(thing, np.ndarray):
        return thing
    driver.cuCtxSynchronize()
    place = thing if thing.kind == "pinned" else copy_out(driver, thing.address, thing.array.nbytes, LEGACY)
    driver.cuCtxSynchronize()
    raw = ctypes.string_at(place.address, thing.array.nbytes)
    return np.frombuffer(raw, thing.array.dtype).reshape(thing.array.shape)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("target", ["cpu", "pinned", "cuda"])
@pytest.mark.parametrize("source", ["cpu", "pinned", "cuda"])
def test_every_place(driver, source, target, dtype):
    dsts = on(driver, target, [np.zeros(row.shape, dtype) for row in ROWS])
    wr.copy_many(dsts, on(driver, source, ROWS))
    for dst, row in zip(dsts, ROWS):
        assert_same(read(driver, dst), row.astype(dtype))


@pytest.mark.parametrize("scale", ["sample", "row", 2])
@pytest.mark.parametrize("target", ["cpu", "pinned", "cuda"])
@pytest.mark.parametrize("source", ["cpu", "pinned", "cuda"])
def test_scales_are_found_and_given_in_every_place(driver, source, target, scale):
    rows = [row for row in ROWS if row.size and row.ndim > 0]
    quantize, block = wr.Quantize("int8", scale=scale), None if isinstance(scale, str) else scale
    want = [wr.stack([row], transform=quantize) for row in rows]
    codes = [own.numpy()[0] for own in want]
    found = [own.scales.numpy()[0] for own in want]
    dsts, scales = (on(driver, target, [np.zeros_like(own) for own in all]) for all in (codes, found))
    sources = on(driver, source, rows)
    asked = {"transform": quantize, "scales_out": scales}
    plan = wr.explain(sources, "copy_many", dsts=dsts, **asked)
    assert plan.bytes_written == sum(own.nbytes for own in codes + found)
    wr.copy_many(dsts, sources, **asked)
    for dst, own in zip(dsts + scales, codes + found):
        assert_same(read(driver, dst), own)
    back = on(driver, target, [np.zeros_like(row) for row in rows])
    wr.copy_many(back, on(driver, source, codes), transform=wr.Dequantize(found, block=block))
    for dst, own, its in zip(back, codes, found):
        alone = wr.stack([own], dtype="float32", transform=wr.Dequantize([its], block=block))
        assert_same(read(driver, dst), alone.numpy()[0])


def test_scales_of_pages_of_ours_are_written_in_order(driver):
    """Places of a store on the device, by ids on the host, in memory of windrow's that the engine orders itself."""
    store = wr.stack(np.zeros((9, 2, 32), "int8"), device="cuda")
    kept = wr.stack(np.zeros((9, 2), "f4"), device="cuda")
    tokens = paint_values((4, 2, 32), "float32", 3)
    ids, quantize = [7, 2, 3, 0], wr.Quantize("int8")
    want = wr.stack(tokens, transform=quantize)
    launches = wr.stats()["launches"]
    wr.copy_many(wr.SampleList(store).take(ids), tokens, transform=quantize, scales_out=wr.SampleList(kept).take(ids))
    assert wr.stats()["launches"] == launches + 1
    assert_same(fetch(driver, store)[ids], want.numpy())
    assert_same(fetch(driver, kept)[ids], want.scales.numpy())
    assert not fetch(driver, store)[[1, 4, 5, 6, 8]].any() and not fetch(driver, kept)[[1, 4, 5, 6, 8]].any()


def test_scales_that_no_one_can_write_are_refused(driver):
    rows, quantize = [np.ones((2, 4), "f4")], wr.Quantize("int8")
    [there], [scales] = on(driver, "cuda", [np.zeros((2, 4), "i1")]), on(driver, "cuda", [np.zeros(2, "f4")])
    call = lambda dst, own: lambda: wr.copy_many([dst], rows, transform=quantize, scales_out=[own])  # noqa: E731
    error = refusal(call(there, np.zeros(2, "f4")), wr.DeviceError, "expected cuda:0, where the destination is, got cpu")
    assert (error.index, error.side) == (0, "scales_out")
    error = refusal(call(np.zeros((2, 4), "i1"), scales), wr.DeviceError, "host memory, where the destination is, got cuda:0")
    assert (error.index, error.side) == (0, "scales_out")
    error = refusal(lambda: wr.copy_many(rows, [there], transform=wr.Dequantize([scales])), wr.DeviceError, ".cpu()")
    assert (error.index, error.side) == (0, "source")


def test_places_are_mixed(driver):
    places = ["cpu", "cuda", "pinned"]
    dsts = [on(driver, places[i % 3], [np.zeros(row.shape, "f8")])[0] for i, row in enumerate(ROWS * 3)]
    srcs = [on(driver, places[i // 3 % 3], [row])[0] for i, row in enumerate(ROWS * 3)]
    wr.copy_many(dict(enumerate(dsts)), dict(enumerate(srcs)))
    for dst, row in zip(dsts, ROWS * 3):
        assert_same(read(driver, dst), row.astype("f8"))


def test_rows_and_ids_of_tables(driver):
    table, rows = wr.stack(np.zeros((9, 5), "f4"), device="cuda"), paint_values((4, 5), "float32")
    wr.copy_many(wr.SampleList(table).take([7, 2, 3, 0]), rows)
    want = np.zeros((9, 5), "f4")
    want[[7, 2, 3, 0]] = rows
    assert_same(fetch(driver, table), want)
    back = np.zeros((9, 5), "f4")
    wr.copy_many(back, table)
    assert_same(back, want)
    wr.copy_many(table, back[::-1].copy())
    assert_same(plain(table), want[::-1])
    error = refusal(lambda: wr.copy_many(wr.SampleList(table).take([1, 3, 1]), rows[:3]), ValueError)
    assert (error.index, error.side) == (2, "destination")
    assert_same(plain(table), want[::-1])


def test_a_batch_that_is_written_knows_it(driver):
    batch = wr.stack(np.zeros((64, 100), "f4"), device="cuda")
    rows = paint_values((64, 100), "float32")
    stream = driver.stream()
    with driver.paused(stream):
        wr.copy_many(batch, rows, stream=stream)
        later = wr.stack(batch)
    assert_same(fetch(driver, later), rows)
    assert_same(fetch(driver, batch), rows)


def test_destinations_are_written_on_the_stream_of_their_library(driver):
    stream = driver.stream()
    tensor = table_type([stream])
    dsts = [tensor(driver, np.zeros(100, "f4"), stream=stream) for _ in range(3)]
    rows = paint_values((3, 100), "float32")
    with driver.paused(stream):
        wr.copy_many(dsts, rows)
        rows[...] = 0
        copies = [copy_out(driver, dst.address, 400, stream) for dst in dsts]
    driver.cuStreamSynchronize(stream)
    for copy, want in zip(copies, paint_values((3, 100), "float32")):
        assert_same(np.frombuffer(ctypes.string_at(copy.address, 400), "f4"), want)


def test_refusals(driver):
    zeros = Cai(driver, np.zeros(4, "f4"))
    error = refusal(lambda: wr.copy_many([zeros, zeros], [np.ones(4, "f4")] * 2), ValueError)
    assert str(error) == "destination 1: expected memory apart from destination 0, got memory that overlaps destination 0"
    error = refusal(lambda: wr.copy_many([np.zeros(4, ">f4"), zeros], [zeros, zeros]), wr.LayoutError)
    assert (error.index, error.side) == (0, "destination")
    error = refusal(lambda: wr.copy_many([zeros], [Cai(driver, np.ones(5, "f4"))]), wr.ShapeError)
    assert (error.index, error.side) == (0, "destination")
    error = refusal(lambda: wr.copy_many([Cai(driver, np.zeros(4), says={"data": (zeros.address, True)})], [zeros]), wr.LayoutError)
    assert str(error) == "destination 0: expected writable memory, got read-only memory"
    assert not read(driver, zeros).any()
    wr.copy_many([zeros], [zeros])


@pytest.mark.simulated("lists driver calls")
def test_calls(sim):
    tensor = table_type([sim.stream()])
    rows = [paint_values(250, "float32", seed) for seed in range(300)]
    dsts = [tensor(sim, np.zeros(250, "f4")) for _ in rows]
    def is_quick(calls):
        return not any("Synchronize" in call or "Alloc" in call for call in calls)

    calls = sim.steady_calls(lambda: wr.copy_many(dsts, rows))
    assert calls["cuMemcpyHtoDAsync_v2"] == 1 and calls["cuLaunchKernel"] == 1 and calls.total() <= 12 and is_quick(calls), calls
    srcs = [tensor(sim, row) for row in rows]
    calls = sim.steady_calls(lambda: wr.copy_many(dsts, srcs))
    assert calls["cuMemcpyHtoDAsync_v2"] == 0 and calls["cuLaunchKernel"] == 1 and calls.total() <= 8 and is_quick(calls), calls
    # Back to the host by one copy, which is waited for.
    back = [np.zeros(250, "f4") for _ in rows]
    calls = sim.steady_calls(lambda: wr.copy_many(back, srcs))
    waits = sum(count for call, count in calls.items() if "Synchronize" in call)
    assert calls["cuMemcpyDtoHAsync_v2"] == 1 and calls["cuLaunchKernel"] == 1 and waits == 1 and calls.total() <= 16, calls
    assert not any("Alloc" in call for call in calls), calls
    for array, row in zip(back, rows):
        assert_same(array, row)


@pytest.mark.parametrize("source", ["cpu", "pinned", "cuda"])
def test_many_layouts_and_dtypes_at_once(driver, source):
    random = np.random.default_rng(1)
    kinds = ["uint8", "int16", "float16", "float32", "float64", "complex64"]
    shapes = [tuple(random.integers(1, 6, random.integers(0, 4))) for _ in range(200)]
    srcs = [paint_values(shape, kinds[i % 6], i) for i, shape in enumerate(shapes)]
    srcs = [src.T if i % 3 == 0 else src for i, src in enumerate(srcs)]
    to = [kinds[i % 6] if i % 6 == 5 else kinds[(i // 6) % 5] for i in range(200)]
    # Sources have any strides where the host reads them.
    places = [Cai(driver, np.zeros(src.shape, kind)) for src, kind in zip(srcs, to)]
    wr.copy_many(places, srcs if source == "cpu" else on(driver, source, [np.array(src, order="C") for src in srcs]))
    wanted = [np.zeros(src.shape, kind) for src, kind in zip(srcs, to)]
    wr.copy_many(wanted, srcs)
    for place, want in zip(places, wanted):
        assert_same(read(driver, place), want)
    # At any alignment, in one block.
    rows, order = paint_values((200, 1000), "uint8"), random.permutation(200)
    block = Cai(driver, np.zeros((200, 1024), "u1"))
    parts = [Cai(driver, rows[0], says={"data": (block.address + 1024 * int(i) + 3, False)}) for i in order]
    wr.copy_many(parts, on(driver, source, list(rows)))
    want = np.zeros((200, 1024), "u1")
    want[order, 3:1003] = rows
    assert_same(read(driver, block), want)


@pytest.mark.parametrize("elements", [100, 20_000, 600_000])
def test_page_locked_sources_of_every_size(driver, elements):
    rows = [paint_values(elements, "float32", seed) for seed in range(3)]
    for kind in ("float32", "float16"):
        dsts = [Cai(driver, np.zeros(elements, kind)) for _ in rows]
        wr.copy_many(dsts, on(driver, "pinned", rows))
        back = [np.zeros(elements, kind) for _ in rows]
        wr.copy_many(back, dsts)
        for dst, copy, row in zip(dsts, back, rows):
            assert_same(read(driver, dst), row.astype(kind))
            assert_same(copy, row.astype(kind))


def test_page_locked_pairs_are_in_the_order_of_the_stream(driver):
    """Work already on the stream writes the source, and reads the destination, of a pair without a side on the device."""
    stream, zeros, ones = driver.stream(), np.zeros(64, "f4"), np.ones(64, "f4")
    tensor = table_type([stream])
    on_device = tensor(driver, ones, stream=stream)
    source, target = (Dlpack(driver, zeros, kind="pinned") for _ in range(2))
    other = tensor(driver, zeros, stream=stream)
    with driver.paused_briefly(stream):
        driver.cuMemcpyDtoHAsync_v2(source.address, on_device.address, 256, stream)
        wr.copy_many([target, other], [source, on_device], stream=stream)
    assert_same(read(driver, target), ones)
    with driver.paused_briefly(stream):
        driver.cuMemcpyDtoHAsync_v2(source.address, other.address, 256, stream)
        wr.copy_many([target], [source], stream=stream)
    assert_same(read(driver, target), ones)
    error = refusal(lambda: wr.copy_many([zeros], [ones], stream=stream), ValueError)
    assert "host memory has no streams" in str(error)


def test_page_locked_scales_have_a_stream(driver):
    stream, rows = driver.stream(), [np.ones((2, 4), "f4")]
    scales = Dlpack(driver, np.zeros(2, "f4"), kind="pinned")
    asked = {"dsts": [np.zeros((2, 4), "i1")], "transform": wr.Quantize("int8"), "scales_out": [scales], "stream": stream}
    assert wr.explain(rows, "copy_many", **asked).bytes_written == 16
    wr.copy_many(srcs=rows, **asked)
    assert read(driver, scales).all()
    asked["scales_out"] = [np.zeros(2, "f4")]
    for call in (lambda: wr.explain(rows, "copy_many", **asked), lambda: wr.copy_many(srcs=rows, **asked)):
        assert "host memory has no streams" in str(refusal(call, ValueError))


def test_explain_and_stats(driver):
    engine = wr.Engine()
    rows = [paint_values(250, "float32", seed) for seed in range(300)]
    dsts = [Cai(driver, np.zeros(250, "f4")) for _ in rows]
    plan = wr.explain(rows, "copy_many", dsts=dsts)
    assert (plan.samples, plan.paths, plan.bytes_to_device, plan.launches) == (300, ["staged"], 300_000, 1)
    assert plan.launch["table_uploaded"] is False
    # 1000 bytes are no multiple of 16; whole vectors and pages have families of their own, and so have runs of many lengths.
    assert [part["family"] for part in plan.launch["parts"]] == ["contiguous_cast"]
    for length, family in [(512, "placed_rows"), (4096, "placed_copy")]:
        pages = [Cai(driver, np.zeros(length, "u1")) for _ in range(6)]
        plan = wr.explain(pages[:3], "copy_many", dsts=pages[3:])
        assert [part["family"] for part in plan.launch["parts"]] == [family]
    runs = [Cai(driver, np.zeros(length, "f4")) for length in (100, 3, 2000)]
    plan = wr.explain(runs, "copy_many", dsts=[Cai(driver, run.array) for run in runs])
    assert len(plan.launch["parts"]) == 1 and plan.bytes_written == 8412
    plan = wr.explain(dsts, "copy_many", dsts=[np.zeros(250, "f2") for _ in rows])
    assert (plan.paths, plan.bytes_to_host, plan.bytes_written) == (["download"], 150_000, 150_000)
    few, engine = ([Cai(driver, np.ones(3, "f4"))], [np.zeros(3, "f4")]), wr.Engine()
    wr.copy_many(few[1], few[0], engine=engine)
    assert engine.stats().bytes_to_host == wr.explain(few[0], "copy_many", dsts=few[1]).bytes_to_host == 12
    mixed = wr.explain([*dsts, *rows], "copy_many", dsts=[*[Cai(driver, np.zeros(250, "f4")) for _ in rows], *[np.zeros(250, "f4") for _ in rows]])
    assert mixed.samples == 600 and sorted(mixed.paths) == ["gather", "gather"]
    engine.reset_stats()
    wr.copy_many(dsts, rows, engine=engine)
    stats = engine.stats()
    want = {"moves": 300, "samples": 300, "batches": 0, "paths": {}, "launches": 1, "bytes_to_device": 300_000, "bytes_in": 300_000}
    assert {name: stats[name] for name in want} == want
    driver.cuCtxSynchronize()
