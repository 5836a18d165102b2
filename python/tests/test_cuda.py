"""Every form on a device: from the host, on the device, and back, by the simulated driver or a real one."""

import gc
import itertools
import logging
import os

import numpy as np
import pytest

import windrow as wr
import isolated
from cuda_harness import CUDA_HOST, Cai, Dlpack, Memory, fetch, plain, table_type
from helpers import assert_same, paint, paint_values, refusal

ROWS = [paint_values((4, 6), "float32", seed) for seed in range(5)]
UNEVEN = [paint_values((n, 3), "float32", n) for n in (4, 0, 2, 7)]
IMAGES = [paint_values((6, 5, 3), "uint8", seed) for seed in range(4)]
CHW = dict(scale=1 / 255, mean=[0.5, 0.4, 0.3], std=[0.2, 0.3, 0.4], channel_dim=2, permute=(2, 0, 1))

CALLS = {
    "stack": (wr.stack, ROWS, {}),
    "cast": (wr.stack, ROWS, {"dtype": "float16"}),
    "transform": (wr.stack, IMAGES, {"dtype": "float32", "transform": wr.Transform(**CHW)}),
    "concat": (wr.concat, UNEVEN, {}),
    "concat dim": (wr.concat, ROWS, {"dim": 1}),
    "pad": (wr.pad, UNEVEN, {"value": 7, "mask": "real", "multiple_of": 4, "dims": 0}),
    "pad center": (wr.pad, UNEVEN, {"side": "center", "size": (9, 3)}),
    "ragged": (wr.ragged, UNEVEN, {"batch_index": True, "offsets_dtype": "int32"}),
}
FIELDS = ("data", "lengths", "offsets", "mask", "batch_index")


def on(driver, place, arrays):
    """The arrays as samples that are in a place."""
    if place == "cpu":
        return arrays
    if place == "pinned":
        return [Dlpack(driver, array, kind="pinned") for array in arrays]
    return [Cai(driver, array) for array in arrays]


def check(driver, batch, want, target):
    """Every field of a batch in a place against those of the same batch on the host."""
    assert batch.device == {"cuda": "cuda:0"}.get(target, target)
    assert (batch.shape, batch.dtype, batch.max_length, len(batch)) == (want.shape, want.dtype, want.max_length, len(want))
    for name in FIELDS:
        got, expected = getattr(batch, name), getattr(want, name)
        assert (got is None) == (expected is None), name
        if got is not None:
            if target == "cuda":
                assert got.device == "cuda:0", name
            assert_same(plain(got), expected.numpy())
    for i, sample in enumerate(batch):
        if target != "cuda" or sample.shape and 0 in sample.shape:
            continue
        assert_same(plain(sample), want[i].numpy())
    if target == "cuda":
        assert_same(fetch(driver, batch), want.numpy())


def given_block(scale):
    return None if isinstance(scale, str) else scale


@pytest.mark.parametrize("scale", ["sample", "row", 2])
@pytest.mark.parametrize("form", ["stack", "pad", "ragged"])
def test_quantised_batches(driver, form, scale):
    call, samples = getattr(wr, form), ROWS if form == "stack" else UNEVEN
    quantize = wr.Quantize("int8", scale=scale)
    want = call(samples, transform=quantize)
    assert wr.explain(samples, form, transform=quantize, device="cuda").path in ("staged", "quantize")
    for place in ("cpu", "pinned", "cuda"):
        batch = call(on(driver, place, samples), transform=quantize, device="cuda")
        assert batch.device == batch.scales.device == "cuda:0"
        assert_same(plain(batch.data), want.numpy())
        assert_same(plain(batch.scales), want.scales.numpy())
        given = wr.Dequantize(want.scales, block=given_block(scale))
        back = call(batch, dtype="float32", transform=given)
        assert_same(plain(back.data), call(want, dtype="float32", transform=given).numpy())
        for host in ("cpu", "pinned"):
            there = call(on(driver, "cuda", samples), transform=quantize, device=host)
            assert there.device == there.scales.device == host
            assert_same(plain(there.data), want.numpy())
            assert_same(plain(there.scales), want.scales.numpy())
            assert_same(plain(call(batch, dtype="float32", transform=given, device=host).data), plain(back.data))
    # Page-locked scales are read by the host; those of a device are not waited for.
    given = wr.Dequantize(there.scales, block=given_block(scale))
    assert_same(plain(call(batch, dtype="float32", transform=given).data), plain(back.data))
    given = wr.Dequantize(batch.scales, block=given_block(scale))
    refusal(lambda: call(batch, dtype="float32", transform=given), wr.DeviceError, "scales in host memory, got cuda:0", ".cpu()", index=None)


def test_given_scales_are_read_at_each_call(driver):
    """The plan of a list on a device is cached, and its scales are not."""
    codes = np.arange(32, dtype="int8").reshape(4, 8)
    samples, scales = wr.SampleList(on(driver, "cuda", list(codes))), np.zeros(3, "float32")
    for call in range(1, 6):
        scales[:] = call
        batch = wr.stack(samples.take([0, 2, 3]), dtype="float32", transform=wr.Dequantize(scales))
        assert_same(plain(batch.data), codes[[0, 2, 3]] * np.float32(call))


@pytest.mark.parametrize("target", ["cpu", "pinned", "cuda"])
@pytest.mark.parametrize("source", ["cpu", "pinned", "cuda"])
@pytest.mark.parametrize("call", CALLS)
def test_every_form_from_and_to_every_place(driver, call, source, target):
    form, arrays, arguments = CALLS[call]
    want = form(arrays, **arguments)
    batch = form(on(driver, source, arrays), device=target, **arguments)
    check(driver, batch, want, target)


def test_the_default_is_where_the_samples_are(driver):
    assert wr.stack(on(driver, "cuda", ROWS)).device == "cuda:0"
    assert wr.stack(on(driver, "pinned", ROWS)).device == "pinned"
    assert wr.stack(ROWS).device == "cpu"


def test_collate_is_one_launch(driver):
    trees = [{"x": x, "n": i, "text": "t"} for i, x in enumerate(ROWS)]
    spec = {"x": wr.Pad(size=(5, 6), mask="real")}
    want = wr.collate(trees, spec)
    trees = [{**tree, "x": Cai(driver, tree["x"]), "n": Cai(driver, np.int64(tree["n"]))} for tree in trees]
    engine = wr.Engine()
    got = wr.collate(trees, spec, engine=engine, device="cuda")
    assert engine.stats()["launches"] == 1
    check(driver, got["x"], want["x"], "cuda")
    check(driver, got["n"], want["n"], "cuda")


def test_an_engine_with_a_device(driver):
    engine = wr.Engine(device="cuda:0")
    assert "cuda:0" in repr(engine)
    batch = wr.stack(ROWS, engine=engine)
    check(driver, batch, wr.stack(ROWS), "cuda")
    tree = wr.collate([{"x": row} for row in ROWS], engine=engine)
    assert tree["x"].device == "cuda:0"
    assert wr.stack(ROWS, engine=engine, device="cpu").device == "cpu"
    stats = engine.stats()
    assert stats["bytes_to_device"] == 2 * sum(row.nbytes for row in ROWS)
    assert stats["device_bytes"] == batch.nbytes + tree["x"].nbytes


def test_counters(driver):
    engine = wr.Engine()
    batch = wr.stack(on(driver, "cuda", ROWS), engine=engine)
    stats = engine.stats()
    assert (stats["launches"], stats["waits"], stats["bytes_to_host"]) == (1, 0, 0)
    wr.stack(batch, device="cpu", engine=engine)
    stats = engine.stats()
    assert (stats["waits"], stats["bytes_to_host"]) == (1, batch.nbytes)
    assert stats["device_bytes"] == batch.nbytes
    del batch
    assert wr.explain(ROWS, device="cuda").as_dict()["bytes_to_device"] == sum(row.nbytes for row in ROWS)


def test_sample_lists_of_device_memory(driver):
    listed = wr.SampleList(on(driver, "cuda", ROWS))
    want = np.stack([ROWS[3], ROWS[0]])
    assert_same(fetch(driver, wr.stack(listed.take([3, 0]))), want)
    index = Cai(driver, np.array([3, 0], np.int32))
    assert_same(fetch(driver, wr.stack(listed.take(index))), want)
    assert_same(plain(listed[3]), ROWS[3])
    table = wr.SampleList(Cai(driver, np.stack(ROWS)))
    assert_same(fetch(driver, wr.stack(table.take([3, 0]))), want)
    assert_same(fetch(driver, wr.stack(wr.stack(ROWS, device="cuda"))), np.stack(ROWS))


def test_a_batch_of_device_memory_in_place_of_a_list(driver):
    rows = [paint((n, 3), "float32", n) for n in (2, 4, 1)]
    batch = wr.ragged(on(driver, "cuda", rows))
    padded = wr.pad(batch, side="left", value=-1)
    assert_same(fetch(driver, padded), wr.pad(rows, side="left", value=-1).numpy())
    assert_same(fetch(driver, wr.ragged(padded)), np.concatenate(rows))
    assert_same(wr.ragged(padded, device="cpu").numpy(), np.concatenate(rows))


def test_views_stay_on_the_device(driver):
    table = Cai(driver, np.stack(ROWS))
    view = wr.stack(table, copy=False)
    assert view.device == "cuda:0" and view.data_ptr() == table.address
    assert_same(fetch(driver, view), np.stack(ROWS))
    # A view cannot move.
    refusal(lambda: wr.stack(table, copy=False, device="cpu"), ValueError)
    assert wr.stack(np.stack(ROWS), copy=None, device="cuda").device == "cuda:0"
    # Its lengths would have to be written.
    refusal(lambda: wr.ragged([table], copy=False), ValueError)


@pytest.mark.parametrize("offered", [Cai, Dlpack])
def test_out(driver, offered):
    want = np.stack(ROWS)
    out = offered(driver, np.zeros_like(want))
    batch = wr.stack(on(driver, "cuda", ROWS), out=out)
    assert batch.data_ptr() == out.address
    assert_same(fetch(driver, batch), want)
    batch = wr.stack(ROWS, out=out, device="cuda")
    assert_same(fetch(driver, batch), want)
    host = np.zeros_like(want)
    wr.stack(on(driver, "cuda", ROWS), out=host, device="cpu")
    assert_same(host, want)


def test_out_of_our_own(driver):
    out = wr.stack([np.zeros_like(row) for row in ROWS], device="cuda")
    batch = wr.stack(on(driver, "cuda", ROWS), out=out)
    assert batch.data_ptr() == out.data_ptr()
    assert_same(fetch(driver, batch), np.stack(ROWS))
    assert_same(fetch(driver, out), np.stack(ROWS))


def test_results_that_are_outputs_again(driver):
    """When released, a chain of owners would have used up the stack."""
    rows = on(driver, "cuda", ROWS[:1])
    for out in (wr.stack(ROWS[:1], device="cuda"), Cai(driver, np.zeros((1, 4, 6), "f4"))):
        batch = wr.stack(rows, out=out)
        for _ in range(12_000):
            batch = wr.stack(rows, out=batch)
        assert_same(fetch(driver, batch), np.stack(ROWS[:1]))
        del out, batch


def test_out_that_does_not_fit(driver):
    samples = on(driver, "cuda", ROWS)
    error = refusal(lambda: wr.stack(samples, out=np.zeros((5, 4, 6), "f4")), wr.DeviceError, "cuda:0", "cpu", index=None)
    assert (error.expected, error.got) == ("cuda:0", "cpu")
    out = Cai(driver, np.zeros((5, 4, 6), "f4"))
    refusal(lambda: wr.stack(ROWS, out=out), wr.DeviceError)
    out.interface["data"] = (out.address, True)
    refusal(lambda: wr.stack(samples, out=out), wr.LayoutError, "read-only")
    refusal(lambda: wr.stack(wr.stack(ROWS, device="cuda"), out=Cai(driver, np.zeros((5, 4, 5), "f4"))), wr.ShapeError)


def test_places_that_are_mixed(driver):
    samples = [*on(driver, "cuda", ROWS[:2]), ROWS[2], *on(driver, "cuda", ROWS[3:])]
    refusal(lambda: wr.stack(samples), wr.DeviceError, "sample 2", "cuda:0", "cpu", index=2)
    trees = [{"x": sample} for sample in samples]
    refusal(lambda: wr.collate(trees), wr.DeviceError, "sample 2", index=2, path="x")
    pinned = on(driver, "pinned", ROWS[:2])
    assert wr.stack([*pinned, ROWS[2]]).device == "cpu"


def test_a_device_that_is_not_there(driver):
    refusal(lambda: wr.stack(ROWS, device=f"cuda:{driver.num_devices}"), ValueError, "CUDA device")
    refusal(lambda: wr.Engine(device=f"cuda:{driver.num_devices}"), ValueError)


def test_devices_by_objects_that_print_as_one(driver):
    class Printed:
        def __str__(self):
            return "cuda:0"

    assert wr.stack(ROWS, device=Printed()).device == "cuda:0"


def test_devices_tells_what_there_is(driver):
    (device, *_) = [device for device in wr.devices() if device["device"] == "cuda:0"]
    assert device["index"] == 0 and device["name"]
    assert device["total_memory"] > 0 and device["multiprocessors"] > 0
    major, minor = device["compute_capability"]
    assert major >= 5 and minor >= 0
    assert {"cpu", "pinned"} <= {device["device"] for device in wr.devices()}


def test_what_only_the_host_can_do(driver):
    batch = wr.ragged(UNEVEN, device="cuda")
    for call in (batch.numpy, lambda: memoryview(batch), lambda: np.asarray(batch), batch.data.numpy, batch.__array__):
        refusal(call, wr.DeviceError, 'device="cpu"')
    assert not hasattr(batch, "__array_interface__")


def test_pinned_batches_are_host_memory_to_others(driver):
    batch = wr.stack(on(driver, "cuda", ROWS), device="pinned")
    assert batch.__dlpack_device__() == (CUDA_HOST, 0)
    assert not hasattr(batch, "__cuda_array_interface__")
    for array in (batch.numpy(), np.from_dlpack(batch), np.asarray(memoryview(batch))):
        assert_same(array, np.stack(ROWS))
    torch = pytest.importorskip("torch")
    assert_same(torch.from_dlpack(batch).numpy(), np.stack(ROWS))
    # Windrow itself takes the tensors as page-locked memory.
    assert wr.stack(batch).device == "pinned"
    assert wr.explain(batch, device="cuda").path == "direct pinned"


def test_managed_memory_is_that_of_its_device(driver):
    for samples in (
        [Cai(driver, row, kind="managed") for row in ROWS],
        [Dlpack(driver, row, kind="managed") for row in ROWS],
        [table_type([0])(driver, row, kind="managed") for row in ROWS[:1]] * len(ROWS),
    ):
        batch = wr.stack(samples)
        assert batch.device == "cuda:0"
        assert_same(fetch(driver, batch)[0], ROWS[0])


def test_claims_of_page_locked_memory_are_looked_up(driver):
    claimed = Dlpack(driver, ROWS[0], kind="pinned")
    assert wr.asarray(claimed).device == "pinned"
    # Said by the object, not by the capsule, as torch does.
    claimed.capsule_device = (1, 0)
    assert wr.asarray(claimed).device == "pinned"
    claimed.address_of_its_own, claimed.address = claimed.address, ROWS[0].ctypes.data
    assert wr.asarray(claimed).device == "cpu"
    claimed.address = claimed.address_of_its_own


def run(code, **environment):
    done = isolated.python("-c", code, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr


@pytest.mark.simulated("which has as many devices as a test asks for")
@pytest.mark.slow
def test_several_devices(sim):
    run(
        """
import windrow as wr

def refused(call, *texts, index=None):
    try:
        call()
    except wr.DeviceError as error:
        assert all(text in str(error) for text in texts), error
        assert index is None or error.index == index
    else:
        raise AssertionError(texts)

assert [device["device"] for device in wr.devices()] == ["cpu", "pinned", "cuda:0", "cuda:1"]
first, second = (wr.stack([b"abc", b"def"], device=name) for name in ("cuda:0", "cuda:1"))
assert (first.device, second.device) == ("cuda:0", "cuda:1")
assert second.__dlpack_device__() == (2, 1)
assert wr.stack(second, device="cpu").numpy().tobytes() == b"abcdef"
refused(lambda: wr.stack([first[0], first[1], second[0]]), "sample 2", "cuda:0", "cuda:1", index=2)
refused(lambda: wr.stack(second, device="cuda:0"), "cuda:0", "cuda:1")
refused(lambda: wr.collate([{"x": first[0], "y": second[0]}]), "cuda:0", "cuda:1")
refused(lambda: wr.stack([first[0]], out=wr.stack([b"xyz"], device="cuda:1")), "out")
listed = wr.SampleList([first[0], first[1]]).to_device("cuda:0")
refused(lambda: listed.take(wr.stack([0, 1], device="cuda:1")), "indices", "cuda:0", "cuda:1")

for sides in ((first, second), ([first[0], second[0]], [b"abc", b"def"])):
    try:
        wr.copy_many(*sides, stream=2)
    except ValueError as error:
        assert str(error) == "stream= is of one device, and the sides are on cuda:0 and cuda:1", error
        assert error.side == "destination" and not isinstance(error, wr.DeviceError)
    else:
        raise AssertionError

class Unplaced:
    __cuda_array_interface__ = second.__cuda_array_interface__
assert wr.asarray(Unplaced()).device == "cuda:1"
assert wr.stack([Unplaced()], device="cpu").numpy().tobytes() == b"abcdef"
try:
    first.__dlpack__(dl_device=(2, 1))
except BufferError:
    pass
else:
    raise AssertionError
""",
        CUDASIM_DEVICES="2",
    )


@pytest.mark.slow
def test_no_driver_at_all():
    run(
        """
import windrow as wr
assert wr.cuda_available() is False
assert [device["device"] for device in wr.devices()] == ["cpu"]
for call in (
    lambda: wr.stack([b"abc"], device="cuda"),
    lambda: wr.stack([b"abc"], device="cuda:1"),
    lambda: wr.stack([b"abc"], device="pinned"),
    lambda: wr.Engine(device="cuda"),
):
    try:
        call()
    except wr.CudaUnavailable as error:
        assert "/nonexistent/libcuda.so" in str(error), error
    else:
        raise AssertionError
assert bytes(memoryview(wr.stack([b"abc"]))) == b"abc"
wr.empty_cache(); wr.stats()
""",
        WINDROW_CUDA_DRIVER="/nonexistent/libcuda.so",
    )


@pytest.mark.slow
def test_a_child_forked_after_the_driver_began(driver):
    run(
        """
import os
import windrow as wr
batch = wr.stack([b"abc"], device="cuda")
pid = os.fork()
if pid == 0:
    ok = wr.cuda_available() is False
    for call in (
        lambda: wr.stack([b"abc"], device="cuda"),
        lambda: wr.stack(batch, device="cpu"),
        lambda: batch.__dlpack__(),
    ):
        try:
            call()
            ok = False
        except wr.CudaUnavailable as error:
            ok = ok and "fork" in str(error)
    ok = ok and bytes(memoryview(wr.stack([b"abc"]))) == b"abc"
    wr.empty_cache()
    del batch
    os._exit(0 if ok else 3)
assert os.waitpid(pid, 0)[1] == 0
assert wr.stack(batch, device="cpu").numpy().tobytes() == b"abc"
"""
    )


@pytest.mark.slow
def test_a_child_forked_before_may_use_it(driver):
    run(
        """
import os
import windrow as wr
wr.stack([b"abc"])
pid = os.fork()
if pid == 0:
    os._exit(0 if wr.stack([b"abc"], device="cuda").device == "cuda:0" else 3)
assert os.waitpid(pid, 0)[1] == 0
"""
    )


@pytest.mark.simulated("which fails when told to, and has 1 GiB of memory")
def test_failures_of_the_driver(sim):
    samples = on(sim, "cuda", ROWS)
    wr.stack(samples)
    sim.fail("cuLaunchKernel", 999)
    error = refusal(lambda: wr.stack(samples), wr.CudaError, "cuLaunchKernel", code=999)
    assert error.function == "cuLaunchKernel" and error.name == "CUDA_ERROR_UNKNOWN"
    refusal(lambda: wr.stack([np.zeros(1 << 20, "u1")] * 2048, device="cuda"), MemoryError)
    assert_same(fetch(sim, wr.stack(samples)), np.stack(ROWS))


@pytest.mark.simulated("which counts what lives")
def test_nothing_is_left(sim):
    def everything():
        engine = wr.Engine()
        for form, arrays, arguments in CALLS.values():
            for source in ("cpu", "cuda", "pinned"):
                for target in ("cpu", "cuda", "pinned"):
                    form(on(sim, source, arrays), device=target, engine=engine, **arguments)
        fetch(sim, wr.stack(on(sim, "cuda", ROWS), out=Dlpack(sim, np.zeros((5, 4, 6), "f4")), engine=engine))

    def live():
        gc.collect()  # Tracebacks of earlier tests hold samples.
        wr.empty_cache()
        sim.free()
        sim.library.cudasim_synchronize_all()
        return sim.live()

    everything()
    before, freed = live(), Memory.freed
    everything()
    assert live() == before
    assert Memory.freed > freed


def test_stats_and_records_of_devices(driver):
    engine = wr.Engine()
    engine.reset_stats()
    rows = [paint(3000, "float32", n) for n in range(4)]
    samples = {source: on(driver, source, rows) for source in ("cpu", "pinned", "cuda")}
    told = []
    handler = logging.Handler()
    handler.emit = told.append
    logger = logging.getLogger("windrow")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    wr.set_logging()
    try:
        paths = {}
        for source, target, dtype in itertools.product(samples, ("cpu", "pinned", "cuda"), (None, "float64")):
            before = engine.stats()
            plan = wr.explain(samples[source], device=target, dtype=dtype)
            wr.stack(samples[source], device=target, dtype=dtype, engine=engine)
            after = engine.stats()
            assert after["paths"].get(plan.path, 0) == before["paths"].get(plan.path, 0) + 1
            assert after["launches"] - before["launches"] == plan.launches
            paths[plan.path] = paths.get(plan.path, 0) + 1
    finally:
        wr.set_logging(False)
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    stats = engine.stats()
    assert stats["paths"] == paths and stats["batches"] == 18
    assert {"upload", "staged", "direct pinned", "download"} <= set(paths)
    assert stats["waits"] > 0 and 0 < stats["wait_seconds"] < stats["run_seconds"]
    names = [record.name for record in told]
    assert names.count("windrow.run") == 18
    # No launch makes an upload.
    assert names.count("windrow.launch") >= stats["launches"] and names.count("windrow.wait") == stats["waits"]
    engine.reset_stats()
    assert engine.stats()["wait_seconds"] == 0 and engine.stats()["paths"] == {}


def test_explain_says_how_kernels_write_a_batch(driver):
    engine = wr.Engine()
    rows = on(driver, "cuda", [paint(n, "int32", n) for n in (300, 200, 400)])
    arguments = {"dtype": "int64", "mask": "real"}
    plan = wr.explain(rows, "pad", **arguments)
    launch = plan.launch
    parts = [(part["output"], part["family"], part["samples"], part["sources"]) for part in launch["parts"]]
    assert parts == [("data", "contiguous_cast", 3, "addresses"), ("mask", "contiguous_cast", 3, None), ("lengths", "metadata", 0, None)]
    assert [part["leaf"] for part in launch["parts"]] == [0, 0, 0]
    assert launch["items"] == sum(part["items"] for part in launch["parts"]) and not launch["table_uploaded"]
    assert "part           data: contiguous_cast, 3 samples by addresses" in str(plan)
    wr.pad(rows, engine=engine, **arguments)
    assert (engine.stats()["launches"], engine.stats()["bytes_to_device"]) == (plan.launches, plan.bytes_to_device) == (1, 0)
    # A table of 36 KB is beyond what parameters hold.
    table = wr.SampleList(Cai(driver, np.zeros((20, 512), np.float32))).take([3, 1, 7] * 3000)
    plan = wr.explain(table)
    assert plan.launch["table_uploaded"] and plan.launch["parts"][0]["sources"] == "ids"
    wr.stack(table, engine=engine)
    assert engine.stats()["bytes_to_device"] == plan.bytes_to_device == plan.launch["table_bytes"] > 36000
    assert wr.explain(ROWS).launch is None and wr.explain(ROWS, device="cuda").launch is None


def test_a_view_on_a_device_launches_nothing(driver):
    rows = wr.stack(ROWS, device="cuda")
    plan = wr.explain(list(rows), copy=None)
    assert (plan.path, plan.launches, plan.tiles) == ("view", 0, 0)
    engine = wr.Engine()
    batch = wr.stack(list(rows), copy=None, engine=engine)
    assert batch.data_ptr() == rows.data_ptr()
    assert engine.stats()["paths"] == {"view": 1} and engine.stats()["launches"] == 0


@pytest.mark.simulated("gives kernels stale copies of page-locked memory")
def test_confidential_computing(sim):
    """The test has a process to itself: what an engine has found out holds for the whole process."""
    isolated.run(
        """
import ctypes, os
import numpy as np
import windrow as wr
from windrow import doctor

driver = ctypes.CDLL(os.environ["WINDROW_CUDA_DRIVER"])
driver.cudasim_set_confidential(1)
(line,) = doctor.cuda_devices()
assert "kernels have stale copies of page-locked memory" in line, line
rows = np.random.default_rng(0).integers(0, 200, (6, 5, 40), dtype=np.uint8)
for turn in range(3):
    pinned = wr.stack(rows + turn, device="pinned")
    for options in ({}, {"dtype": "float32"}, {"transform": wr.Transform(permute=(1, 0))}):
        there = np.from_dlpack(wr.stack(list(pinned), device="cuda", **options), device="cpu")
        assert np.array_equal(there, wr.stack(rows + turn, **options).numpy())
try:
    wr.SampleList(wr.stack(rows, device="cuda")).to_device("cuda")
except ValueError as error:
    assert "confidential computing" in str(error)
else:
    raise AssertionError("not refused")
"""
    )
