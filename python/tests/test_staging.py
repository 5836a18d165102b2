"""Staging: named tensors that go to a device by one copy, again and again."""

import collections
import gc
import sys
import threading

import numpy as np
import pytest

import windrow as wr
from cuda_harness import copy_out, later
from helpers import assert_same, paint_values, refusal
from test_cuda_moves import read
from torch_standin import Torch

SPEC = {"ids": ((512,), "int32"), "scale": ((), np.float64), "odd": ([3, 5], "bfloat16"), "none": ((0, 4), "bool"), "mask": ((7,), "bool")}
ARRAYS = {name: (tuple(shape), dtype if isinstance(dtype, str) else np.dtype(dtype).name) for name, (shape, dtype) in SPEC.items()}


def painted(step):
    return {name: paint_values(shape, dtype, step * 17 + i) for i, (name, (shape, dtype)) in enumerate(ARRAYS.items())}


def view(tensor):
    """The memory of a host tensor as an array, of bits where NumPy has no such dtype."""
    return np.asarray(memoryview(tensor)) if tensor.dtype != "bfloat16" else tensor.numpy().view(np.uint16)


def fill(staging, step):
    for name, array in painted(step).items():
        view(staging.host[name])[...] = array.view(np.uint16) if array.dtype.itemsize == 2 else array


def check(arrays, step):
    for name, array in painted(step).items():
        assert np.asarray(arrays[name]).tobytes() == array.tobytes(), name


def on_device(driver, staging, stream=1):
    """Reads the tensors of the device when `stream` has come so far; the stream waits for the work it was told of."""
    return {name: later(driver, tensor, stream) for name, tensor in staging.device.items()}


# The host


def test_on_the_host():
    staging = wr.Staging(SPEC, device="cpu")
    assert list(staging.host) == list(staging.device) == list(SPEC) and len(staging.host) == 5
    assert staging.nbytes == 2048 + 256 + 256 + 7
    for name, (shape, dtype) in ARRAYS.items():
        for side in (staging.host, staging.device):
            assert (side[name].shape, side[name].dtype, side[name].device) == (shape, dtype, "cpu")
            assert not any(side[name].numpy().tobytes()) and side[name].data_ptr() % 64 == 0
    device = dict(staging.device)
    for step in range(5):
        fill(staging, step)
        staging.upload()
        check({name: tensor.numpy() for name, tensor in device.items()}, step)
        assert staging.device["ids"].data_ptr() == device["ids"].data_ptr()
    assert "ids, scale" in repr(staging) and "device=cpu" in repr(staging)


def test_two_blocks_in_turn():
    staging = wr.Staging({"a": ((4,), "int64")}, device="cpu")
    places = []
    for step in range(4):
        places.append(staging.host["a"].data_ptr())
        staging.host["a"].numpy()[:] = step
        staging.upload()
    assert places[0] == places[2] != places[1] == places[3]
    # Values that are not filled anew are those of the step before last.
    staging.upload()
    assert staging.device["a"].numpy().tolist() == [2] * 4
    with pytest.raises(KeyError):
        staging.host["b"]
    with pytest.raises(TypeError):
        staging.host["a"] = 3
    with pytest.raises(TypeError):
        staging.device["a"] = 3


def test_tensors_outlive_the_staging():
    staging = wr.Staging({"a": ((4,), "int64")}, device="cpu")
    staging.host["a"].numpy()[:] = 5
    staging.upload()
    host, device = staging.host["a"], staging.device["a"]
    del staging
    gc.collect()
    assert host.numpy().tolist() == [0] * 4 and device.numpy().tolist() == [5] * 4


def test_large_blocks_by_several_threads():
    staging = wr.Staging({"a": ((3 << 20,), "float32")}, device="cpu", engine=wr.Engine(threads=3))
    staging.host["a"].numpy()[:] = want = paint_values(3 << 20)
    staging.upload()
    np.testing.assert_array_equal(staging.device["a"].numpy(), want)


@pytest.mark.parametrize(
    ("spec", "kind", "text"),
    [
        (None, TypeError, "spec must be a mapping"),
        ([("a", ((3,), "int32"))], TypeError, "spec must be a mapping"),
        ({3: ((3,), "int32")}, TypeError, "a name in spec must be a str, got 3"),
        ({"a": (3,)}, TypeError, 'spec of "a": expected (shape, dtype)'),
        ({"a": (3, "int32")}, TypeError, 'spec of "a": expected (shape, dtype)'),
        ({"a": ((3.5,), "int32")}, TypeError, 'spec of "a": expected (shape, dtype)'),
        ({"a": ((True,), "int32")}, TypeError, 'spec of "a": expected (shape, dtype)'),
        ({"a": ((3,), None)}, TypeError, 'spec of "a": expected (shape, dtype)'),
        ({"a": ("ab", "int32")}, TypeError, 'spec of "a": expected (shape, dtype)'),
        ({"a": np.zeros(3)}, TypeError, 'spec of "a": expected (shape, dtype)'),
        ({"b": ((3,), "int32"), "a": ((3,), "int33")}, TypeError, 'spec of "a": '),
        ({"a": ((3,), object())}, TypeError, 'spec of "a": '),
        ({"a": ((-1,), "int32")}, ValueError, 'spec of "a": '),
        ({"a": ((2**62, 2), "int32")}, ValueError, 'spec of "a": '),
        ({"a": ((2**70,), "int32")}, ValueError, 'spec of "a": '),
        ({"a": ((1,) * 65, "int32")}, ValueError, 'spec of "a": '),
        ({"a": ((2**62,), "uint8"), "b": ((2**62,), "uint8")}, ValueError, "beyond 64 bits together"),
    ],
)
def test_specs_that_are_none(spec, kind, text):
    assert text in str(refusal(lambda: wr.Staging(spec, device="cpu"), kind))


def test_arguments():
    spec = {"a": ((3,), "int32")}
    for bad, kind in [("nowhere", ValueError), (3, ValueError), ("pinned", wr.DeviceError)]:
        refusal(lambda bad=bad: wr.Staging(spec, device=bad), kind)
    refusal(lambda: wr.Staging(spec, device="cpu", engine=3), TypeError)
    refusal(lambda: wr.Staging(spec, "cpu"), TypeError)
    staging = wr.Staging(spec, device="cpu")
    assert "host memory has no streams" in str(refusal(lambda: staging.upload(1), ValueError))
    refusal(lambda: staging.upload("a stream"), TypeError)
    for empty in ({}, {"a": ((0,), "int32")}):
        staging = wr.Staging(empty, device="cpu")
        staging.upload()
        assert staging.nbytes == 0 and len(staging.host) == len(empty)


# Devices


def test_on_a_device(driver):
    staging = wr.Staging(SPEC)
    assert {tensor.device for tensor in staging.host.values()} == {"pinned"}
    assert {tensor.device for tensor in staging.device.values()} == {"cuda:0"}
    for step in range(5):
        fill(staging, step)
        staging.upload()
        check({name: array() for name, array in on_device(driver, staging).items()}, step)
    engine = wr.Engine(device="cuda:0")
    own = wr.Staging({"a": ((3,), "int32")}, engine=engine)
    engine.reset_stats()
    own.upload()
    assert engine.stats()["bytes_to_device"] == 12
    assert wr.Staging({"a": ((3,), "int32")}, engine=wr.Engine(device="cpu")).device["a"].device == "cpu"


def test_uploads_are_in_the_order_of_their_stream(streams):
    stream = streams.stream()
    staging = wr.Staging(SPEC, device="cuda")
    address, nbytes = staging.device["ids"].data_ptr(), staging.device["ids"].nbytes
    for step in range(4):
        with streams.paused(stream):
            fill(staging, step)
            staging.upload(stream)
            copy = copy_out(streams, address, nbytes, stream)
            # The other block is filled while the copy has not begun.
            fill(staging, 100)
            assert not streams.is_done(stream)
        streams.cuStreamSynchronize(stream)
        assert read(streams, copy).tobytes() == painted(step)["ids"].tobytes()


def test_a_block_that_is_read_is_waited_for(streams):
    stream = streams.stream()
    staging = wr.Staging(SPEC, device="cuda")
    address, nbytes = staging.device["ids"].data_ptr(), staging.device["ids"].nbytes
    copies, waits = [], []
    for step in range(8):
        with streams.paused_briefly(stream, seconds=0.02):
            for half in range(2):
                fill(staging, 2 * step + half)
                before = wr.stats()["waits"]
                staging.upload(stream)
                waits.append(wr.stats()["waits"] - before)
                copies.append(copy_out(streams, address, nbytes, stream))
        streams.cuStreamSynchronize(stream)
    streams.cuStreamSynchronize(stream)
    for step, copy in enumerate(copies):
        assert read(streams, copy).tobytes() == painted(step)["ids"].tobytes()
    # The second of two waits for the copy of the first, whose block comes next.
    assert waits == [0, 1] * 8


def test_readers_on_other_streams(streams):
    uploads, reads = streams.stream(), streams.stream()
    staging = wr.Staging(SPEC, device="cuda")
    late = []
    for step in range(4):
        fill(staging, step)
        staging.upload(uploads)
        with streams.paused_briefly(reads, seconds=0.01):
            late.append(on_device(streams, staging, reads))
            fill(staging, step + 100)
            # The upload comes behind those who read the values of this step.
            staging.upload(uploads)
    for step, arrays in enumerate(late):
        check({name: array() for name, array in arrays.items()}, step)


@pytest.mark.parametrize("named", [True, False])
def test_refilled_at_once_a_thousand_times(streams, named):
    stream = streams.stream() if named else None
    staging = wr.Staging({"ids": ((4096,), "int32")}, device="cuda")
    tensor, copies = staging.device["ids"], []
    for step in range(1000):
        staging.host["ids"].numpy()[:] = step
        staging.upload(stream)
        staging.host["ids"].numpy()[:] = -1
        if step % 50 == 0:
            copies.append((step, later(streams, tensor, stream or 1)))
    for step, array in copies:
        assert (array() == step).all()


def test_two_threads(streams):
    engine, wrong = wr.Engine(), []

    def work(number):
        stream = streams.stream()
        staging = wr.Staging({"ids": ((2000,), "int32")}, device="cuda", engine=engine)
        for step in range(200):
            value = number * 1000 + step
            staging.host["ids"].numpy()[:] = value
            staging.upload(stream)
            staging.host["ids"].numpy()[:] = -1
            if step % 20 == 0 and not (later(streams, staging.device["ids"], stream)() == value).all():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_two_threads_share_one(streams, device):
    staging, lock, steps = wr.Staging({"ids": ((2000,), "int32")}, device=device), threading.Lock(), []
    stream = streams.stream() if device == "cuda" else None

    def work(number):
        for step in range(100):
            with lock:
                staging.host["ids"].numpy()[:] = number * 1000 + step
                staging.upload(stream)
                steps.append(number * 1000 + step)

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = staging.device["ids"]
    found = ids.numpy() if device == "cpu" else later(streams, ids, stream)()
    assert len(steps) == 200 and (found == steps[-1]).all()


def test_an_exception_between_fill_and_upload(driver):
    for device in ("cpu", "cuda"):
        staging = wr.Staging(SPEC, device=device)
        for step in range(4):
            with pytest.raises(ZeroDivisionError):
                fill(staging, 100 + step)
                1 / 0
            fill(staging, step)
            staging.upload()
            arrays = {name: tensor.numpy() for name, tensor in staging.device.items()} if device == "cpu" else None
            check(arrays or {name: array() for name, array in on_device(driver, staging).items()}, step)


@pytest.mark.simulated("has driver calls fail")
@pytest.mark.parametrize("call", ["cuMemcpyHtoDAsync_v2", "cuEventRecord", "cuStreamWaitEvent"])
def test_a_call_that_fails(sim, call):
    stream = sim.stream()
    staging = wr.Staging(SPEC, device="cuda")
    for step in range(3):
        fill(staging, step)
        staging.upload(stream)
    sim.cuStreamSynchronize(stream)
    place = staging.host["ids"].data_ptr()
    fill(staging, 7)
    sim.fail(call, 1)
    error = refusal(lambda: staging.upload(stream), wr.CudaError)
    assert call in str(error)
    # The block is as it was, and goes up by the next call.
    assert staging.host["ids"].data_ptr() == place
    staging.upload(stream)
    check({name: array() for name, array in on_device(sim, staging, stream).items()}, 7)


def test_streams_that_do_not_fit(streams):
    staging = wr.Staging(SPEC, device="cuda")
    stream = streams.stream()
    fill(staging, 1)
    with streams.captured(stream) as graph:
        error = refusal(lambda: staging.upload(stream), ValueError)
    graph["free"]()
    assert "upload before each launch" in str(error)
    staging.upload(stream)
    check({name: array() for name, array in on_device(streams, staging, stream).items()}, 1)


def test_a_staging_that_is_dropped(streams):
    stream = streams.stream()
    copies = []
    with streams.paused(stream):
        for step in range(3):
            staging = wr.Staging({"ids": ((512,), "int32")}, device="cuda")
            staging.host["ids"].numpy()[:] = step
            staging.upload(stream)
            copies.append(later(streams, staging.device["ids"], stream))
            del staging
    for step, copy in enumerate(copies):
        assert (copy() == step).all()


def test_torchs_current_stream_is_the_default(streams, monkeypatch):
    stream = streams.stream()
    torch = Torch(streams, stream)
    monkeypatch.setitem(sys.modules, "torch", torch)
    staging = wr.Staging(SPEC, device="cuda")
    address = staging.device["ids"].data_ptr()
    with streams.paused(stream):
        fill(staging, 3)
        staging.upload()
        copy = copy_out(streams, address, 2048, stream)
        assert not streams.is_done(stream)
    streams.cuStreamSynchronize(stream)
    assert read(streams, copy).tobytes() == painted(3)["ids"].tobytes()


@pytest.mark.simulated("lists driver calls")
def test_calls(sim):
    stream = sim.stream()
    staging = wr.Staging({f"t{i}": ((250,), "float32") for i in range(300)}, device="cuda")
    # The capsules are taken once, as a library takes them.
    capsules = [tensor.__dlpack__(stream=stream) for tensor in staging.device.values()]
    for _ in range(6):
        staging.upload(stream)
    sim.cuStreamSynchronize(stream)
    _, calls = sim.traced(lambda: staging.upload(stream))
    counted = collections.Counter(call.split(" ")[0] for call in calls)
    assert counted["cuMemcpyHtoDAsync_v2"] == 1 and counted.total() <= 14, counted
    assert not any("Synchronize" in call or "Alloc" in call for call in counted), counted
    del capsules
