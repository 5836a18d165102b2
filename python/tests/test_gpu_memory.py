"""Batches in the memory of torch's allocator and in windrow's own on a GPU: how long it is kept, and when it comes back."""

import ctypes
import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import windrow as wr
from gpu_harness import (  # noqa: F401
    HAS_GPU,
    HERE,
    LIMIT,
    Plain,
    assert_bits,
    assert_late,
    cuda,
    gpu,
    late,
    need_gpu,
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
from isolated import environment
from windrow import _windrow
from windrow.torch import Prefetcher, collate_fn

# Memory of torch's allocator


def test_batches_are_in_torchs_memory(gpu):  # noqa: F811
    samples = on_device(values(64, (4096,)))
    wr.stack(samples)
    gc.collect()
    before, lent = torch.cuda.memory_allocated(), wr.stats()["lent_bytes"]
    batch = wr.stack(samples)
    assert torch.cuda.memory_allocated() - before == batch.nbytes
    assert batch.torch() is batch.torch() and wr.explain(samples).device_memory == "torch"
    del batch
    assert (torch.cuda.memory_allocated(), wr.stats()["lent_bytes"]) == (before, lent)
    batch = wr.stack([np.ones(1000, "f4")] * 8, device="cuda")
    assert wr.stats()["lent_bytes"] - lent == batch.nbytes <= torch.cuda.memory_allocated() - before


def readers(read, record=False):
    """Batches that are read late on a side stream and dropped at once, as a loop with a prefetcher has them."""
    side, sums = cuda.Stream(), []
    samples = numbered(32, 1 << 14)
    wr.stack(samples).torch().sum(1)  # kernels are loaded
    sleep(0)
    cuda.synchronize()
    for turn in range(12):
        batch = wr.stack(samples[turn % 5 : turn % 5 + 24])
        if record:
            tensor = batch.torch()
            side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            tensor = tensor if record else read(batch)
            sleep(4)
            sums.append((turn % 5, tensor.sum(1)))
        if record and HAS_GPU:
            tensor.record_stream(side)
        del batch, tensor
    assert_late(side)
    side.synchronize()
    for first, got in sums:
        assert_bits(got, torch.arange(first, first + 24, dtype=torch.float32) * (1 << 14))


def test_memory_of_a_dropped_batch_is_not_given_out_while_it_is_read():
    """windrow tells torch's allocator of the stream that `torch()` is called on."""
    readers(lambda batch: batch.torch())


def test_the_same_through_dlpack():
    readers(torch.from_dlpack)


def test_the_same_by_record_stream():
    readers(None, record=True)


def test_samples_may_go_before_the_device_has_read_them():
    want = values(32, (1 << 14,))
    samples = late(want)
    batch = wr.stack(samples, stream=cuda.Stream() if HAS_GPU else None)
    del samples
    gc.collect()
    junk = [torch.full((1 << 14,), -7.0, device=HERE) for _ in range(64)]  # torch would give out the samples' memory here
    assert_late()
    assert_bits(batch.torch(), torch.stack(want))
    del junk


def test_memory_that_runs_out_comes_back(gpu):  # noqa: F811
    samples = on_device(values(8, (1 << 20,)))
    torch.cuda.empty_cache()  # what earlier tests left would be enough
    hog = torch.empty(max(torch.cuda.mem_get_info()[0] - (256 << 20), 1), dtype=torch.uint8, device=HERE)
    try:
        with pytest.raises(MemoryError):
            wr.concat([samples[0]] * 4000)
        assert_bits(wr.stack(samples[:2]).torch(), torch.stack(samples[:2]))
    finally:
        del hog
        torch.cuda.empty_cache()
    assert_bits(wr.stack(samples).torch(), torch.stack(samples))


def test_memory_stays_flat(gpu):  # noqa: F811
    samples, arrays, engine = on_device(values(32, (1000,))), [np.ones(1000, "f4")] * 32, wr.Engine()

    def turn():
        for n in range(300):
            wr.stack(samples[: 1 + n % 32])
            wr.stack(arrays[: 1 + n % 32], device="cuda", engine=engine)
            wr.stack([Plain(sample) for sample in samples[: 1 + n % 32]], engine=engine)
            wr.pad(samples[: 1 + n % 32], size=1024, mask="real")
        cuda.synchronize()
        gc.collect()
        return torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()

    turn()
    first = turn()
    last = [turn() for _ in range(3)][-1]
    assert abs(first[0] - last[0]) <= 4 << 20 and first[1] == last[1]


def allocator_settings(settings):
    return {"PYTORCH_CUDA_ALLOC_CONF": settings, "PYTORCH_ALLOC_CONF": settings}


@pytest.mark.parametrize("settings", ["expandable_segments:True", "backend:cudaMallocAsync"])
@new_process(env=allocator_settings)
def test_other_allocators_of_torch(settings):
    readers(lambda batch: batch.torch())
    up = [wr.stack([np.full(4096, n, np.uint8)] * 8, device="cuda").torch() for n in range(50)]
    assert [int(tensor[7, 4095]) for tensor in up] == list(range(50))
    samples, graph = numbered(64, 1 << 16), torch.cuda.CUDAGraph()
    wr.pad(samples, mask="real", size=1 << 16)
    with torch.cuda.graph(graph):
        batch = wr.pad(samples, mask="real", size=1 << 16)
    graph.replay()
    assert batch.torch()[:, 0].tolist() == list(range(64))


def test_a_pool_of_torchs_is_used(gpu):  # noqa: F811
    samples, pool = on_device(values(8, (1 << 20,))), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        batch = wr.stack(samples)
    segments = [(segment["address"], segment["total_size"]) for segment in pool.snapshot()]
    assert any(begin <= batch.data_ptr() < begin + size for begin, size in segments)
    assert_bits(batch.torch(), torch.stack(samples))


# Memory of windrow's own


def test_an_empty_cache_gives_memory_back(gpu):  # noqa: F811
    engine, (sample,) = wr.Engine(), values(1, (64 << 20,), "uint8")
    batch = wr.stack([Plain(sample.to(HERE))] * 8, engine=engine)
    batch.check()
    del batch
    cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    engine.empty_cache()
    assert torch.cuda.mem_get_info()[0] - before >= 400 << 20


@own_process
def test_an_engine_ends_while_its_work_is_queued():
    """Its samples are in windrow's own memory: nothing is held that its end would wait for."""
    first = wr.stack([Plain(tensor) for tensor in numbered(16, 1 << 16)])
    stream, engine = torch.cuda.Stream(), wr.Engine()
    wr.stack(list(first), engine=engine, stream=stream).check()
    with torch.cuda.stream(stream):
        sleep(100)
    batch = wr.stack(list(first), engine=engine, stream=stream)
    del engine
    gc.collect()
    others = [wr.Engine() for _ in range(3)]
    for engine in others:  # where its code was is other code
        wr.stack(list(first), engine=engine)
    assert batch.torch().sum(1).tolist() == [float(n << 16) for n in range(16)]


@own_process
def test_engines_come_and_go_with_their_streams():
    """A new stream may have the handle of one that is gone, by which torch's allocator knows memory."""
    batches, size = [], 1 << 20
    for turn in range(40):
        engine = wr.Engine()
        batch = wr.stack([np.full(size, turn, np.uint8)] * 4, device="cuda", engine=engine)
        if turn % 2:
            batches.append((turn, batch.torch()))
        del batch, engine
    for turn, tensor in batches:
        assert_bits(tensor, torch.full((4, size), turn, dtype=torch.uint8))


def test_memory_that_torch_has_registered(gpu):  # noqa: F811
    page = np.zeros(1 << 16, np.uint8)
    begin = -page.ctypes.data % 4096
    memory = page[begin : begin + 8192]
    memory[:] = 7
    assert int(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)) == 0
    try:
        for _ in range(3):
            assert int(wr.stack([memory[:100], memory[200:300]], device="cuda").torch().sum()) == 1400
    finally:
        torch.cuda.cudart().cudaHostUnregister(memory.ctypes.data)


# Loaders and processes


def loaded(workers=0, pin=False):
    data = [{"x": torch.full((100 + n,), n, dtype=torch.float32), "y": n} for n in range(64)]
    collate = collate_fn({"x": wr.Pad(value=-1, mask="real")})
    context = "spawn" if workers else None
    return torch.utils.data.DataLoader(
        data, batch_size=8, num_workers=workers, pin_memory=pin, multiprocessing_context=context, collate_fn=collate
    )


@pytest.mark.parametrize("workers, pin", [(0, False), pytest.param(2, True, marks=pytest.mark.slow)])
def test_a_loader_feeds_the_device(workers, pin):
    if workers:
        need_gpu()  # on the host: test_torch_workers.py
    seen, batches = [], loaded(workers, pin)
    for batch in Prefetcher(batches, device="cuda", min_bytes=0) if HAS_GPU else batches:
        assert batch["x"].data.device.type == batch["y"].device.type == HERE
        sleep(1)
        seen += (batch["x"].data.max(1).values.long() - batch["y"]).tolist()
        assert int(batch["x"].mask.sum()) == int(batch["x"].lengths.sum())
    assert seen == [0] * 64


@pytest.mark.slow
def test_batches_of_workers_go_from_their_blocks(gpu):  # noqa: F811
    """Each block is page-locked once, and not written again while the device is late with its copies."""
    data = [{"x": torch.full((1 << 15,), float(n)), "y": n} for n in range(256)]
    loader = torch.utils.data.DataLoader(
        data, batch_size=8, num_workers=2, persistent_workers=True, multiprocessing_context="spawn", collate_fn=collate_fn()
    )
    before, want = wr.stats()["workers"], torch.arange(256.0, device="cuda")
    for epoch in range(4):
        lows, highs = [], []
        for batch in Prefetcher(loader, device="cuda"):
            sleep(1)
            lows.append(batch["x"].amin(1))
            highs.append(batch["x"].amax(1))
        assert torch.equal(torch.cat(lows), want) and torch.equal(torch.cat(highs), want)
    if _windrow._page_lock_refusal() is not None:
        pytest.skip(f"SKIP: memory is not page-locked here: {_windrow._page_lock_refusal()}")
    now = wr.stats()["workers"]
    assert 0 < now["locked"] - before["locked"] <= now["blocks"] - before["blocks"]
    images = next(iter(loader))["x"]
    locked = _windrow._page_locked(images, cuda.current_device())
    assert locked.torch().is_pinned() and not images.is_pinned() and torch.equal(locked.torch(), images)


@pytest.mark.slow
def test_tensors_go_to_another_process(gpu, tmp_path):  # noqa: F811
    """Tensors go by CUDA's handles for memory of other processes, as torch.multiprocessing sends torch's."""
    path = tmp_path / "sends.py"  # a file: spawned children import it
    path.write_text("""
import torch
import torch.multiprocessing as mp
import windrow as wr

def child(queue, back):
    tensor = queue.get()
    back.put(float(tensor.sum()))
    del tensor

if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    process = context.Process(target=child, args=(queue, back))
    process.start()
    batch = wr.stack([torch.ones(1000, device="cuda")] * 4).torch()
    queue.put(batch)
    assert back.get(timeout=90) == 4000
    process.join()
    assert process.exitcode == 0
""")
    subprocess.run([sys.executable, str(path)], check=True, timeout=LIMIT, env=environment({}))


@new_process
def test_a_child_that_is_forked_after_torch_began():
    batch = wr.stack(numbered(3, 4))
    child = os.fork()
    if child == 0:
        refused = False
        try:
            wr.stack([np.ones(4)], device="cuda")
        except wr.CudaUnavailable as error:
            refused = "fork" in str(error)
        is_right = float(wr.stack([np.ones(4)]).numpy().sum()) == 4
        del batch
        os._exit(0 if refused and is_right else 3)
    assert os.waitpid(child, 0)[1] == 0
    assert batch.torch().sum(1).tolist() == [0, 4, 8]


@new_process
def test_a_program_ends_with_work_under_way():
    samples, arrays = numbered(8, 1 << 20), [np.ones(1 << 20)] * 8
    kept = [wr.stack(samples), wr.stack(arrays, device="cuda"), wr.Engine(device="cuda")]
    sleep(300)
    kept.append(wr.stack(samples))
    thread = threading.Thread(target=lambda: wr.stack(arrays * 8, device="cuda"), daemon=True)
    thread.start()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))  # they live to the very end


@new_process
def test_after_a_failure_of_the_device_every_call_says_so():
    samples = numbered(3, 4)
    batch = wr.stack(samples)
    torch.nn.functional.embedding(torch.full((1,), 1 << 40, device="cuda"), torch.ones(4, 4, device="cuda"))
    seen = []
    for call in (torch.cuda.synchronize, batch.check, lambda: wr.stack(samples), lambda: wr.stack(samples, device="cpu")):
        try:
            call()
        except Exception as error:
            seen.append(type(error).__name__)
    assert len(seen) >= 3, seen
    assert float(wr.stack([[1.0, 2.0]]).numpy().sum()) == 3
    os._exit(0)  # how torch itself ends after that is not windrow's
