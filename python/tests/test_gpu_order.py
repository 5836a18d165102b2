"""Order between streams, with torch's own tensors and streams on a GPU."""

import ctypes
import gc
import threading
import time

import numpy as np
import pytest

import windrow as wr
from gpu_harness import (  # noqa: F401
    HAS_GPU,
    HERE,
    Plain,
    assert_bits,
    assert_late,
    cuda,
    gpu,
    late,
    new_process,
    numbered,
    on_device,
    own_process,
    settled,
    sleep,
    torch,
    values,
    warm,
)

# The stream that torch begins with, and one that it waits for only where it is told to.
CURRENT = {"default": cuda.default_stream, "side": cuda.Stream}
READERS = {"torch": lambda batch: batch.torch(), "dlpack": torch.from_dlpack}


# Producers


@pytest.mark.parametrize("current", CURRENT)
def test_samples_are_waited_for(current):
    want = values()
    with cuda.stream(CURRENT[current]()):
        batch = wr.stack(late(want))
        assert_late()
        assert_bits(batch.torch(), torch.stack(want))


NAMED = {
    "side": lambda: cuda.Stream(),
    "high priority": lambda: cuda.Stream(priority=-1),
    "external": lambda: cuda.ExternalStream(cuda.Stream().cuda_stream),
    "legacy": lambda: 1,
    "per thread": lambda: 2,
}


@pytest.mark.parametrize("named", NAMED)
@pytest.mark.parametrize("current", CURRENT)
def test_a_named_stream_waits_for_the_samples(gpu, current, named):  # noqa: F811
    want, stream = values(), NAMED[named]()
    with cuda.stream(CURRENT[current]()):
        batch = wr.stack(late(want), stream=stream)
        assert_late()
        assert_bits(batch.torch().clone(), torch.stack(want))


def test_what_the_producer_writes_after_the_call_comes_after_it():
    want = values()
    samples = on_device(want)
    sleep()
    batch = wr.stack(samples)
    for sample in samples:
        sample.fill_(-1)
    assert_bits(batch.torch(), torch.stack(want))


def test_what_is_queued_on_an_output_comes_first():
    want, out = values(), torch.zeros(16, 64, 32, device=HERE)
    samples = on_device(want)
    sleep()
    before = out.clone()
    wr.stack(samples, out=out)
    assert_late()
    assert_bits(before, torch.zeros(16, 64, 32))
    assert_bits(out, torch.stack(want))


def test_indices_are_waited_for():
    table = torch.randn(100, 8, device=HERE)
    listed = wr.SampleList(table)
    if HAS_GPU:
        listed = listed.to_device("cuda")
        listed.stack(torch.zeros(5, dtype=torch.int64, device=HERE)).check()
    (indices,) = late([torch.tensor([5, 4, 3, 2, 1])])
    assert_bits(listed.stack(indices).torch(), table[[5, 4, 3, 2, 1]])


def test_indices_out_of_range_are_told_of(gpu):  # noqa: F811
    listed = wr.SampleList(torch.ones(10, 4, device=HERE)).to_device("cuda")
    batch = listed.stack(torch.tensor([1, 10, -11, 0], device=HERE))
    assert batch.torch().sum(1).tolist() == [4, 0, 0, 4]
    with pytest.raises(IndexError):
        batch.check()


# Consumers


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_on_another_stream_waits(reader):
    want, side = values(), cuda.Stream()
    batch = wr.stack(late(want))
    with cuda.stream(side):
        got = READERS[reader](batch) + 0
        assert_late()
    side.synchronize()
    assert_bits(got, torch.stack(want))


def test_there_and_back_through_dlpack():
    """A slow producer, windrow, torch on a stream, windrow on another, torch: each waits for the one before."""
    want, first, second = values(), cuda.Stream(), cuda.Stream()
    batch = wr.stack(late(want))
    with cuda.stream(first):
        doubled = [row * 2 for row in torch.from_dlpack(batch)]
        again = wr.stack(doubled[::-1])
    with cuda.stream(second):
        got = torch.from_dlpack(again) + 0
        assert_late()
    second.synchronize()
    assert_bits(got, torch.stack(want[::-1]) * 2)


# Samples on the host


@pytest.mark.parametrize("size", [100, 20_000, 1 << 20, 24 << 20])
def test_host_memory_may_be_overwritten_after_the_call(size):
    """Through the staging ring, once and several times around it."""
    samples = [np.full(size, n + 1, np.uint8) for n in range(4)]
    sleep()
    batch = wr.stack(samples, device=HERE)
    for sample in samples:
        sample[:] = 0
    got = batch.torch()
    assert got[:, [0, size // 2, size - 1]].tolist() == [[n + 1] * 3 for n in range(4)]


@pytest.mark.parametrize("size", [100, 1 << 20])
def test_page_locked_memory_of_torch_may_be_overwritten_after_the_call(gpu, size):  # noqa: F811
    samples = [torch.full((size,), n + 1, dtype=torch.uint8).pin_memory() for n in range(4)]
    stream = cuda.Stream()
    with cuda.stream(stream):
        sleep()
    batch = wr.stack(samples, device="cuda", stream=stream)
    for sample in samples:
        sample.zero_()
    got = batch.torch().cpu()
    assert got.min(1).values.tolist() == got.max(1).values.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("size", [256, 1 << 16])
def test_page_locked_batches_are_kept_until_they_were_read(gpu, size):  # noqa: F811
    """The batches are read by the kernel over the bus, or by a copy."""
    for turn in range(20):
        pinned = wr.stack([np.full(size, n + turn, np.uint8) for n in range(8)], device="pinned")
        sleep(2)
        batch = wr.stack(list(pinned), device="cuda", stream=cuda.current_stream())
        del pinned
        other = wr.stack([np.full(size, 255, np.uint8) for _ in range(8)], device="pinned")
        assert batch.torch()[:, -1].tolist() == [n + turn for n in range(8)]
        del other


def test_host_samples_go_up_beside_the_computation():
    """The copy does not wait for torch's stream, and torch's stream waits for the copy."""
    samples = [np.full(1 << 20, 3, np.uint8)] * 4
    sleep(100)
    batch = wr.stack(samples, device=HERE)
    batch.check()
    assert_late()
    assert int(batch.torch().sum()) == 3 * 4 << 20


# Nobody waits for more


@new_process
def test_the_first_use_of_a_kernel_waits_for_nobody():
    """A prefetcher's first batch of another form while a model computes: by default the driver loads each kernel at its first launch."""
    samples = numbered(4, 40)
    wr.stack(samples).check()
    sleep(300)
    wr.stack([sample.view(8, 5).mT for sample in samples], dtype="int8", stream=cuda.Stream())
    assert_late()


@pytest.mark.parametrize("reader", ["same stream", "new streams"])
def test_memory_behind_a_slow_reader_holds_up_nobody_else(gpu, reader):  # noqa: F811
    """Neither its own return nor that of what 200 later readers had, nor an allocation meanwhile."""
    samples = [Plain(tensor) for tensor in numbered(16, 1 << 16)]
    slow, quick = cuda.Stream(), cuda.Stream()
    wr.stack(samples, stream=quick).check()
    with cuda.stream(slow):
        kept = torch.from_dlpack(wr.stack(samples, stream=quick))
        sleep(500)
        total = kept.sum(1)
    del kept
    for turn in range(200):
        batch = wr.stack(samples[: 1 + turn % 15], stream=quick)  # of other sizes, from the pool
        with cuda.stream(quick if reader == "same stream" else cuda.Stream()):
            view = torch.from_dlpack(batch)
        del batch, view
    quick.synchronize()
    assert_late(slow)
    slow.synchronize()
    assert total.tolist() == [float(n << 16) for n in range(16)]


def test_dropped_page_locked_batches_wait_for_nobody(gpu):  # noqa: F811
    samples = [np.ones(1000, np.uint8)] * 8
    held = [wr.stack(samples, device="pinned") for _ in range(100)]  # pages are locked now
    sleep(300)
    held.clear()
    gc.collect()
    for _ in range(100):
        wr.stack(samples, device="pinned")
    assert_late()


# Threads, engines, streams that are gone


@pytest.mark.parametrize("num_threads", [2, 8])
def test_threads_with_streams_of_their_own(num_threads):
    failures = []

    def work(seed):
        try:
            draw = np.random.default_rng(seed)
            with cuda.stream(cuda.Stream()):
                for turn in range(40):
                    count, size = int(draw.integers(1, 40)), int(draw.integers(1, 5000))
                    numbers = [float(seed * 1000 + turn * 50 + n) for n in range(count)]
                    batch = wr.stack([torch.full((size,), number, device=HERE) for number in numbers])
                    got = batch.torch()[:, -1].clone()
                    del batch
                    assert got.tolist() == numbers
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(num_threads)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        wr.stats()
        gc.collect(0)
        time.sleep(0.01)
    assert failures == []


def test_another_engine_in_another_thread_reads_a_late_batch():
    want, engine, got = values(), wr.Engine(), []
    wr.stack(on_device(want), engine=engine)
    batch = wr.stack(late(want))

    def work():
        with cuda.stream(cuda.Stream()):
            got.append(wr.stack(list(batch), engine=engine).torch().clone())
            assert_late(cuda.default_stream())
            cuda.current_stream().synchronize()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert_bits(got[0], torch.stack(want))


def test_a_stream_that_is_gone(gpu):  # noqa: F811
    """Made and destroyed by the driver; another one may have its handle."""
    driver, want = ctypes.CDLL("libcuda.so.1"), values()
    samples = on_device(want)
    for _ in range(20):
        handle = ctypes.c_void_p()
        assert driver.cuStreamCreate(ctypes.byref(handle), 1) == 0
        batch = wr.stack(samples, stream=handle.value)
        assert driver.cuStreamDestroy_v2(handle) == 0
        assert_bits(batch.torch(), torch.stack(want))


@own_process
def test_a_stream_of_another_context_is_refused():
    driver, context, stream, popped = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    samples = numbered(4, 10)
    wr.stack(samples).check()
    assert driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
    assert driver.cuCtxPopCurrent_v2(ctypes.byref(popped)) == 0
    with pytest.raises(ValueError, match="primary context"):
        wr.stack(samples, stream=stream.value)
    wr.stack(samples).check()
    assert driver.cuCtxDestroy_v2(context) == 0


@own_process
def test_a_green_context_is_refused_or_right():
    contexts = pytest.importorskip("torch.cuda.green_contexts", reason="SKIP: this torch has no green contexts")
    if not contexts.SUPPORTED:
        pytest.skip("SKIP: this torch was built without green contexts")
    samples = numbered(4, 64)
    wr.stack(samples).check()
    green = contexts.GreenContext.create(16, 0)
    green.set_context()
    try:
        assert wr.stack(samples).torch().sum(1).tolist() == [0, 64, 128, 192]
    except (ValueError, wr.CudaError) as refused:
        print("refused:", refused)
    finally:
        green.pop_context()
    wr.stack(samples).check()
