"""Beside and within captures of graphs: no call ends one, and what a graph cannot hold is refused. With a torch in miniature."""

import gc
import sys
import threading
from ctypes import byref, c_void_p

import numpy as np
import pytest

import windrow as wr
from cuda_harness import Cai
from helpers import assert_same
from test_cuda_streams import ROWS, WANT
from test_cuda_torch import read, samples, torch  # noqa: F401
from windrow._windrow import _relax_captures


@pytest.fixture
def captured(torch):  # noqa: F811
    return torch.graph(torch.driver.stream())


@pytest.mark.parametrize("place", ["device", "host"])
def test_a_batch_made_before_is_used_within(torch, captured, place):  # noqa: F811
    samples = [torch.Tensor(row, place=place) for row in ROWS]  # noqa: F811
    batch, tree = wr.stack(samples, device="cuda"), wr.collate([{"x": row} for row in samples], device="cuda", arena=True)
    batch.check(), tree["x"].check()
    with captured as graph:
        tensors = [batch.torch(), batch.data.torch(), tree["x"].torch()]
        batch[1].torch()
        batch.__dlpack__(stream=torch.current[0])
    for tensor in tensors:
        assert_same(read(torch, tensor)(), WANT)
    graph["free"]()


def test_a_batch_of_host_samples_is_made_outside(torch, captured):  # noqa: F811
    """A replay does not copy them again."""
    wr.stack(ROWS, device="cuda")
    gc.collect()
    with captured as graph:
        batch = wr.stack(ROWS, device="cuda")
        for use in (
            batch.torch,
            batch.data.torch,
            batch[0].torch,
            lambda: batch.__dlpack__(stream=torch.current[0]),
            lambda: wr.stack(list(batch)),
        ):
            with pytest.raises(ValueError, match="has to be made outside of the capture"):
                use()
    graph["free"]()
    # After the capture it is a batch like others, in the next one too.
    assert_same(read(torch, batch.torch())(), WANT)
    with torch.graph(torch.current[0]) as graph:
        batch.torch()
    graph["free"]()


def test_samples_that_are_known_from_before(torch, captured, samples):  # noqa: F811
    """Their stream is that which was current then, and the memory of the batch that of the capture."""
    batch, listed = wr.stack(samples), wr.SampleList(samples)
    wr.stack(list(batch)), wr.stack(listed)
    gc.collect()
    with captured as graph:
        again, taken = wr.stack(list(batch)), wr.stack(listed)
    rows = [row + 1 for row in ROWS]
    for sample, row in zip(samples, rows):
        torch.driver.cuMemcpyHtoDAsync_v2(sample.address, row.ctypes.data, row.nbytes, torch.current[0])
    torch.driver.cuCtxSynchronize()
    graph["replay"]()
    torch.driver.cuCtxSynchronize()
    assert_same(read(torch, again.torch())(), WANT)
    assert_same(read(torch, taken.torch())(), WANT + 1)
    graph["free"]()


@pytest.mark.simulated("lists driver calls")
def test_torch_without_memory(sim, torch, captured, samples):  # noqa: F811
    """windrow gives back the memory that needs no idle device, though other memory waits for that."""
    wr.stack([Cai(torch.driver, row) for row in ROWS])
    wr.stack([Cai(torch.driver, row) for row in ROWS]).__dlpack__(stream=sim.stream())
    gc.collect()
    with captured as graph:
        torch.refusals = 1
        batch, calls = sim.traced(lambda: wr.stack(samples))
    assert not any("cuCtxSynchronize" in call for call in calls), calls
    graph["replay"]()
    assert_same(read(torch, batch.torch())(), WANT)
    graph["free"]()


@pytest.mark.simulated("calls the library itself")
def test_threads_that_are_relaxed(sim):
    """The thread of `windrow.torch.Prefetcher`, in which torch waits for events, is such a thread."""
    captured, other, event, graph, codes = sim.stream(), sim.stream(), c_void_p(), c_void_p(), []
    sim.cuEventCreate(byref(event), 2)
    sim.cuEventRecord(event, other)

    def work():
        _relax_captures()
        sim.cuCtxSetCurrent(sim.context)
        codes.append(sim.library.cuEventSynchronize(event))

    sim.cuStreamBeginCapture_v2(captured, 0)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    sim.cuStreamEndCapture(captured, byref(graph))
    sim.cuGraphDestroy(graph)
    sim.cuEventDestroy_v2(event)
    assert codes == [0]
