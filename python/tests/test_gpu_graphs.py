"""Captures of torch: what is captured and replayed with other samples and indices, and what beside a capture does not end it."""

import gc
import itertools
import threading
import time

import numpy as np
import pytest

import windrow as wr
from gpu_harness import LIMIT, Plain, assert_bits, new_process, numbered, on_device, own_process, torch, values
from windrow.torch import Prefetcher

MODES = ["global", "thread_local", "relaxed"]


def captured(work, mode="global"):
    """A graph of what `work` does, and what it gives."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        made = work()
    return graph, made


# Captured and replayed


@pytest.mark.parametrize("mode", MODES)
@own_process
def test_a_graph_holds_a_whole_batch(mode):
    """The call has no `out`: torch's allocator keeps the memory for the graph."""
    samples = numbered(33, 257)
    wr.pad(samples, mask="real", size=300)

    def work():
        batch = wr.pad(samples, mask="real", size=300)
        return batch, batch.torch().sum(1)

    graph, (batch, total) = captured(work, mode)
    for turn in range(5):
        for n, sample in enumerate(samples):
            sample.fill_(n + turn)
        graph.replay()
        assert_bits(total, torch.arange(turn, turn + 33, dtype=torch.float32) * 257)
    assert int(batch.mask.torch().sum()) == 33 * 257 and batch.lengths.torch().tolist() == [257] * 33


@own_process
def test_a_graph_writes_an_output():
    samples, out = numbered(8, 64), torch.zeros(8, 64, device="cuda")
    wr.stack(samples, out=out)
    graph, _ = captured(lambda: wr.stack(samples, out=out))
    for sample in samples:
        sample.fill_(5)
    graph.replay()
    assert_bits(out, torch.full((8, 64), 5.0))


@own_process
def test_indices_are_read_at_each_replay():
    table = torch.randn(1000, 32, device="cuda")
    lists = [wr.SampleList(samples).to_device("cuda") for samples in (table, [row.clone() for row in table])]
    indices = torch.zeros(64, dtype=torch.int64, device="cuda")
    for listed in lists:
        listed.stack(indices).check()
    graph, batches = captured(lambda: [listed.stack(indices) for listed in lists])
    for _ in range(10):
        indices.copy_(torch.randint(-1000, 1000, (64,)))
        graph.replay()
        for batch in batches:
            assert_bits(batch.torch(), table[indices])


@pytest.mark.parametrize("loading", ["LAZY", "EAGER"])
@new_process(env=lambda loading: {"CUDA_MODULE_LOADING": loading})
def test_a_kernel_is_first_used_in_a_capture(loading):
    """One batch before the capture has launched one kernel of six; by default the driver loads each at its first launch."""
    samples = on_device(values(4, (8, 5)))
    wr.stack(samples).check()
    graph, batch = captured(lambda: wr.stack([sample.mT for sample in samples], dtype="int8"))
    graph.replay()
    assert_bits(batch.torch(), torch.stack([sample.mT for sample in samples]).to(torch.int8))


@pytest.mark.slow
@new_process(limit=LIMIT)
def test_a_model_is_compiled_into_graphs():
    samples = on_device(values(8, (16, 16)))
    model = torch.compile(lambda x: torch.nn.functional.gelu(x) @ x.mT, mode="reduce-overhead")
    for _ in range(6):
        with torch.no_grad():
            for sample in samples:
                sample.add_(1)
            batch = wr.stack(samples).torch()
            torch.testing.assert_close(model(batch), torch.nn.functional.gelu(batch) @ batch.mT)


@own_process
def test_a_graph_outlives_its_engine():
    samples, engine = numbered(33, 257), wr.Engine()
    wr.pad(samples, mask="real", size=300, engine=engine).check()
    graph, batch = captured(lambda: wr.pad(samples, mask="real", size=300, engine=engine))
    data = batch.torch()
    del batch, engine
    gc.collect()
    others = [wr.Engine() for _ in range(3)]
    for engine in others:  # where its code was is other code
        wr.stack(samples, engine=engine)
    for n, sample in enumerate(samples):
        sample.fill_(n + 1)
    graph.replay()
    torch.cuda.synchronize()
    assert data.sum(1).tolist() == [257.0 * (n + 1) for n in range(33)]


# Batches of before, in a capture

BEFORE = {
    "torch's memory": lambda samples: wr.stack(samples),
    "from the host": lambda samples: wr.stack([sample.cpu().numpy() for sample in samples], device="cuda"),
    "windrow's memory": lambda samples: wr.stack([Plain(sample) for sample in samples]),
}
USED = {
    "torch": lambda batch: batch.torch() * 2,
    "part": lambda batch: torch.stack([batch[n].torch() for n in range(8)]) * 2,
    "dlpack": lambda batch: torch.from_dlpack(batch) * 2,
    "sample": lambda batch: wr.stack(batch).torch() * 2,
}


@pytest.mark.parametrize("used", USED)
@pytest.mark.parametrize("before", BEFORE)
@own_process
def test_a_batch_of_before_is_used_in_a_capture(before, used):
    """The batch is a static input, which torch does not wait for within a capture. In windrow's own memory it may be refused."""
    samples = numbered(8, 64)
    batch, other = BEFORE[before](samples), BEFORE[before](samples)
    USED[used](other)  # what this allocates is there
    x, refused = torch.zeros(8, 64, device="cuda"), []

    def work():
        try:
            return USED[used](batch)
        except ValueError as error:
            refused.append(str(error))
            return x + 0

    graph, got = captured(work)
    if before == "windrow's memory" and refused:
        assert "captur" in refused[0], refused
        return
    assert not refused, refused
    got.zero_()
    graph.replay()
    assert_bits(got, torch.stack(samples) * 2)


@own_process
def test_host_samples_within_a_capture_are_refused():
    """Their batch is made once, beside the capture, on a stream that the capture does not wait for. It goes on without it."""
    x = torch.zeros(4, device="cuda")
    wr.stack([np.ones(4, "f4")], device="cuda").torch()

    def work():
        y = x + 1
        with pytest.raises(ValueError, match="outside of the capture"):
            wr.stack([np.ones(4, "f4")], device="cuda").torch()
        return y

    graph, y = captured(work)
    graph.replay()
    assert float(y.sum()) == 4


@own_process
def test_what_a_capture_refuses_does_not_end_it():
    samples, x = numbered(8, 64), torch.zeros(4, device="cuda")
    wr.stack(samples)

    def work():
        y = x + 1
        for call in (
            lambda: wr.stack([np.ones(4)], device="cuda", stream=torch.cuda.current_stream()),
            lambda: wr.stack(samples, device="cpu"),
            lambda: wr.stack(samples * 2500 + samples),  # a table beyond the parameters of a launch
        ):
            with pytest.raises(ValueError, match="captur"):
                call()
        return y, wr.stack(samples).torch() + 0

    graph, (y, z) = captured(work)
    graph.replay()
    assert float(y.sum()) == 4
    assert_bits(z, torch.stack(samples))


@own_process
def test_batches_are_dropped_within_a_capture():
    samples, x = numbered(8, 64), torch.zeros(4, device="cuda")
    kept = [wr.stack([Plain(sample) for sample in samples]), wr.stack(samples), wr.stack([np.ones(9)], device="cuda")]
    kept += [torch.from_dlpack(kept[0]), *(wr.stack([np.ones(9)], device="pinned") for _ in range(40)), wr.Engine(device="cuda")]

    def work():
        y = x + 1
        kept.clear()
        gc.collect()
        return y

    graph, y = captured(work)
    graph.replay()
    assert float(y.sum()) == 4


# Other threads beside a capture

ROWS = [np.ones(1000, "f4")] * 8


def endless():
    while True:
        yield {"x": torch.ones(1 << 16), "y": torch.ones(9)}


def turns_of(call):
    return lambda samples: (call(samples) for _ in itertools.count())


BESIDE = {
    "device samples": turns_of(wr.stack),
    "memory of its own": turns_of(lambda samples: wr.stack([Plain(sample) for sample in samples])),
    "host samples": turns_of(lambda samples: wr.stack(ROWS, device="cuda").check()),
    "page-locked batches": turns_of(lambda samples: wr.stack(ROWS, device="pinned")),
    "engines": turns_of(lambda samples: wr.stack(samples, engine=wr.Engine())),
    "prefetcher": lambda samples: Prefetcher(endless(), device="cuda", min_bytes=0),
}


@pytest.mark.parametrize("mode", MODES[:2])
@pytest.mark.parametrize("beside", BESIDE)
@own_process
def test_another_thread_works_beside_a_capture(beside, mode):
    """Neither side fails. What torch's allocator needs in the other thread is there before, since torch would ask the driver for it in its
    strict mode; so the captures are no `torch.cuda.graph`, which empties torch's cache."""
    samples, static = numbered(8, 64), torch.zeros(16, device="cuda")
    stop, failures, turns = threading.Event(), [], []

    def work():
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
                torch.empty(1 << 19, dtype=torch.uint8, device="cuda")
                for _ in BESIDE[beside](samples):
                    turns.append(1)
                    if stop.is_set():
                        return
        except BaseException as error:
            failures.append(error)

    def some_turns(count):
        before = len(turns)
        while len(turns) < before + count and not failures:
            time.sleep(0.001)

    thread, stream = threading.Thread(target=work), torch.cuda.Stream()
    thread.start()
    try:
        some_turns(50)
        for _ in range(10):
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode=mode)
                got = static + 1
                some_turns(3)
                graph.capture_end()
            graph.replay()
            torch.cuda.synchronize()
            assert float(got.sum()) == 16
    finally:
        stop.set()
        thread.join()
    assert not failures, failures[0]
