"""pack, unpack and pack_buckets with leaves and buffers on a device, by the simulated driver or a real one."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import windrow as wr
from cuda_harness import Cai, copy_out, later, plain, table_type
from helpers import PICKLED_BY, assert_same, paint_values, refusal
from test_cuda_moves import on, read

SHAPES = {"w": ((4, 6), "float32"), "b": ((7,), "float16"), "step": ((), "int64"), "none": ((2, 0), "uint8"), "t": ((5, 3), "uint8")}
ARRAYS = {key: paint_values(shape, dtype, seed) for seed, (key, (shape, dtype)) in enumerate(SHAPES.items())}
BYTES = bytes(wr.pack(ARRAYS).buffer)
PLACES = ["cpu", "pinned", "cuda"]


def tree_on(driver, place, arrays=ARRAYS):
    return dict(zip(arrays, on(driver, place, list(arrays.values()))))


def zeros_on(driver, place):
    return tree_on(driver, place, {key: np.zeros_like(array) for key, array in ARRAYS.items()})


def bytes_of(tensor):
    return plain(tensor).tobytes()


@pytest.mark.parametrize("target", [None, *PLACES])
@pytest.mark.parametrize("source", PLACES)
def test_every_place(driver, source, target):
    packed = wr.pack(tree_on(driver, source), device=target)
    assert packed.buffer.device.split(":")[0] == (target or source)
    assert packed.layout == wr.pack(ARRAYS).layout
    assert bytes_of(packed.buffer) == BYTES
    for key, view in packed.unpack().items():
        assert view.device == packed.buffer.device
        assert_same(plain(view), ARRAYS[key])


@pytest.mark.parametrize("target", PLACES)
@pytest.mark.parametrize("source", PLACES)
def test_into_every_place(driver, source, target):
    packed = wr.pack(ARRAYS, device=source)
    into = zeros_on(driver, target)
    assert wr.unpack(packed.buffer, packed.layout, into=into) is into
    for key, array in ARRAYS.items():
        assert_same(read(driver, into[key]), array)


def test_places_are_mixed(driver):
    tree = {**ARRAYS, "on": Cai(driver, ARRAYS["w"]), "pinned": on(driver, "pinned", [ARRAYS["t"]])[0]}
    want = bytes(wr.pack({**ARRAYS, "on": ARRAYS["w"].copy(), "pinned": ARRAYS["t"].copy()}).buffer)
    error = refusal(lambda: wr.pack(tree), wr.DeviceError)
    assert error.path == "on" and "device= says where the buffer is" in str(error)
    for device in PLACES:
        packed = wr.pack(tree, device=device)
        assert bytes_of(packed.buffer) == want
        into = {**{key: np.zeros_like(array) for key, array in ARRAYS.items()}, "on": Cai(driver, np.zeros((4, 6), "f8"))}
        into["pinned"] = on(driver, "pinned", [np.zeros((5, 3), "u1")])[0]
        wr.unpack(packed.buffer, packed.layout, into=into)
        for key in into:
            array = {"on": ARRAYS["w"].astype("f8"), "pinned": ARRAYS["t"]}.get(key, ARRAYS.get(key))
            assert_same(read(driver, into[key]), array)


def test_into_buffers_of_the_callers(driver):
    for place in PLACES:
        for size in (len(BYTES), len(BYTES) + 40):
            out = on(driver, place, [np.full(size, 255, np.uint8)])[0]
            packed = wr.pack(tree_on(driver, "cuda"), out=out)
            assert packed.nbytes == len(BYTES)
            assert read(driver, out).tobytes() == BYTES + b"\xff" * (size - len(BYTES))
        short = on(driver, place, [np.full(len(BYTES) - 1, 255, np.uint8)])[0]
        refusal(lambda: wr.pack(tree_on(driver, "cuda"), out=short), ValueError)
        assert (read(driver, short) == 255).all()
    error = refusal(lambda: wr.pack(ARRAYS, out=bytearray(1000), device="cuda"), wr.DeviceError)
    assert str(error) == "out: expected cuda, got cpu"


def test_leaves_on_the_host_that_are_where_the_buffer_is(driver):
    memory, on_device = np.arange(200, dtype=np.uint8), Cai(driver, ARRAYS["w"])
    for leaf in (memory[20:60], memory[127:128], memory[71::-1], memory[150::-50], memory.view(np.uint16)[60:70].reshape(5, 2).T):
        tree = {"a": on_device, "b": [leaf]}
        error = refusal(lambda tree=tree: wr.pack(tree, out=memory), ValueError)
        on_host = refusal(lambda leaf=leaf: wr.pack({"a": ARRAYS["w"], "b": [leaf]}, out=memory), ValueError)
        assert str(error) == str(on_host)
        assert str(error) == 'out: expected memory apart from the leaf at "b.0", got memory that overlaps the leaf at "b.0"'
        np.testing.assert_array_equal(memory, np.arange(200))
    wr.pack({"a": on_device, "b": memory[180:]}, out=memory[:148])
    np.testing.assert_array_equal(memory[180:], np.arange(180, 200))
    assert memory[:96].tobytes() == ARRAYS["w"].tobytes() and memory[128:148].tolist() == list(range(180, 200))


def test_tied_leaves_on_a_device(driver):
    table = wr.stack(paint_values((4, 5)), device="cuda")
    tree = {"in": table.data, "out": wr.asarray(table), "row": table[2]}
    packed = wr.pack(tree)
    assert packed.layout.offsets == (0, 0, 128)
    back = packed.unpack()
    assert back["in"] is back["out"]
    assert_same(plain(back["row"]), paint_values((4, 5))[2])
    near, far = np.zeros((4, 5), "f4"), wr.stack(np.zeros((4, 5), "f4"), device="cuda")
    for into in ({"in": near, "out": near[:], "row": np.zeros(5, "f4")}, {"in": far.data, "out": wr.asarray(far), "row": np.zeros(5, "f4")}):
        wr.unpack(packed.buffer, packed.layout, into=into)
        assert_same(plain(wr.asarray(into["out"])), paint_values((4, 5)))
        assert_same(into["row"], paint_values((4, 5))[2])


def test_what_does_not_fit_is_found_first(driver):
    packed = wr.pack(ARRAYS, device="cuda")
    for place in PLACES:
        into = zeros_on(driver, place)
        into["t"] = on(driver, place, [np.zeros((5, 4), "u1")])[0]
        error = refusal(lambda into=into: wr.unpack(packed.buffer, packed.layout, into=into), wr.ShapeError)
        assert error.path == "t"
        into["t"] = None
        error = refusal(lambda into=into: wr.unpack(packed.buffer, packed.layout, into=into), TypeError)
        assert error.path == "t"
        assert not any(read(driver, into[key]).any() for key in "wb")
    error = refusal(lambda: wr.pack({"a": [Cai(driver, np.ones(3), says={"typestr": ">f8"})]}), (wr.LayoutError, wr.DTypeError, ValueError))
    assert '"a.0"' in str(error)


@pytest.mark.parametrize("max_bytes", [7, 64, 100, 10**6])
@pytest.mark.parametrize("target", PLACES)
@pytest.mark.parametrize("source", PLACES)
def test_buckets(driver, source, target, max_bytes):
    tree = tree_on(driver, source)
    # The array has gaps: its pieces are cut from a row-major copy.
    turned = paint_values((6, 9))
    tree["turned"] = Cai(driver, turned, says={"shape": (9, 6), "strides": (4, 36)}) if source == "cuda" else turned.T
    into = {**zeros_on(driver, target), "turned": np.zeros((9, 6), "f4")}
    for bucket in wr.pack_buckets(tree, max_bytes, device=target, align=8):
        assert bucket.nbytes <= max_bytes and bucket.buffer.device.split(":")[0] == target
        wr.unpack(bucket.buffer, wr.Layout.from_json(bucket.layout.to_json()), into=into)
    for key, array in ARRAYS.items():
        assert_same(read(driver, into[key]), array)
    assert_same(into["turned"], turned.T)


@pytest.mark.parametrize("how", PICKLED_BY)
@pytest.mark.parametrize("place", PLACES)
def test_pickles_return_to_their_device(driver, place, how):
    """Page-locked memory comes back as memory of the host, which it is."""
    device = "cuda:0" if place == "cuda" else "cpu"
    packed = PICKLED_BY[how](wr.pack(tree_on(driver, place)))
    assert bytes_of(packed.buffer) == BYTES and packed.buffer.device == device
    rows = [paint_values((n, 3), "float32", n) for n in (2, 4, 1)]
    for form in (wr.Pad(mask="pad"), wr.Ragged(batch_index=True)):
        for arena in (False, True):
            batch = wr.collate(rows, form, arena=arena, device=place)
            copied = PICKLED_BY[how](batch)
            assert copied.device == device and len(copied) == 3 and copied.max_length == batch.max_length
            for name in ("data", "lengths", "offsets", "mask", "batch_index"):
                if getattr(batch, name) is not None:
                    assert_same(plain(getattr(copied, name)), plain(getattr(batch, name)))
    samples = on(driver, place, [*rows, np.arange(5), *rows[:1]])
    for listed in (wr.SampleList(samples), wr.SampleList([{"x": sample} for sample in samples])):
        copied = [sample["x"] if isinstance(sample, dict) else sample for sample in PICKLED_BY[how](listed)]
        assert [sample.device for sample in copied] == [device] * 5
        for sample, row in zip(copied, [*rows, np.arange(5), *rows[:1]]):
            assert_same(plain(sample), row)


def test_a_pickle_waits_for_its_memory_and_needs_its_device(streams):
    stream = streams.stream()
    tensor = table_type([stream])
    with streams.paused(stream):
        samples = [tensor(streams, array, stream=stream) for array in (ARRAYS["w"], ARRAYS["t"])]
        kept, listed = wr.asarray(samples[0]), wr.SampleList(samples)
    head = pickle.dumps([kept, listed])
    copied, others = pickle.loads(head)
    assert_same(plain(copied), ARRAYS["w"])
    assert_same(plain(others[1]), ARRAYS["t"])
    code = f"import pickle, windrow\ntry: pickle.loads({head!r})\nexcept windrow.DeviceError as error: print(error)"
    said = subprocess.run([sys.executable, "-c", code], env={**os.environ, "WINDROW_CUDA_DRIVER": "none"}, capture_output=True, text=True, check=True)
    assert "cuda:0, which is not there" in said.stdout and "to the host before" in said.stdout


# Order


def test_leaves_are_waited_for_and_so_is_the_buffer(streams):
    stream = streams.stream()
    tensor = table_type([stream])
    with streams.paused(stream):
        leaves = {key: tensor(streams, array, stream=stream) for key, array in ARRAYS.items()}
        packed = wr.pack(leaves)
        whole = later(streams, packed.buffer)
        again = wr.pack(packed.unpack())
        copies = later(streams, again.buffer)
    assert whole().tobytes() == BYTES and copies().tobytes() == BYTES


def test_destinations_are_written_on_the_stream_of_their_library(streams):
    stream = streams.stream()
    tensor = table_type([stream])
    packed = wr.pack(ARRAYS, device="cuda")
    into = {key: tensor(streams, np.zeros_like(array), stream=stream) for key, array in ARRAYS.items()}
    with streams.paused(stream):
        wr.unpack(packed.buffer, packed.layout, into=into)
        copies = {key: copy_out(streams, dst.address, dst.array.nbytes, stream) for key, dst in into.items()}
    streams.cuStreamSynchronize(stream)
    for key, array in ARRAYS.items():
        assert read(streams, copies[key]).tobytes()[: array.nbytes] == array.tobytes()


def test_a_bucket_is_written_behind_who_reads_the_one_before(streams):
    stream = streams.stream()
    array = paint_values(4096, "uint8")
    buckets = wr.pack_buckets([array], 1024, device="cuda")
    bucket, copies = next(buckets), []
    while bucket is not None:
        with streams.paused_briefly(stream):
            bucket.buffer.__dlpack__(stream=stream)
            copies.append(copy_out(streams, bucket.buffer.data_ptr(), 1024, stream))
            bucket = next(buckets, None)
    streams.cuStreamSynchronize(stream)
    assert b"".join(read(streams, copy).tobytes() for copy in copies) == array.tobytes()


@pytest.mark.simulated("lists driver calls")
def test_calls(sim):
    tensor = table_type([sim.stream()])
    rows = {str(i): paint_values(256, "float32", i) for i in range(300)}
    leaves = {key: tensor(sim, row) for key, row in rows.items()}
    out, near = tensor(sim, np.zeros(300 * 1024, np.uint8)), bytearray(300 * 1024)
    calls = sim.steady_calls(lambda: wr.pack(leaves, out=out))
    assert calls["cuLaunchKernel"] == 1 and calls.total() <= 14, calls
    assert not any("Synchronize" in call or "Alloc" in call or "Memset" in call for call in calls), calls
    # The bytes go to the host by one copy, which is waited for.
    calls = sim.steady_calls(lambda: wr.pack(leaves, out=near))
    assert calls["cuLaunchKernel"] <= 2 and calls["cuMemcpyDtoHAsync_v2"] == 1 and calls.total() <= 50, calls
    assert sum(count for call, count in calls.items() if "Synchronize" in call) == 1, calls
    packed = wr.pack(leaves)
    into = {key: np.zeros_like(row) for key, row in rows.items()}
    calls = sim.steady_calls(lambda: wr.unpack(packed.buffer, packed.layout, into=into))
    assert calls["cuMemcpyDtoHAsync_v2"] == 1 and calls["cuLaunchKernel"] <= 1 and calls.total() <= 50, calls
    for key, row in rows.items():
        assert_same(into[key], row)
