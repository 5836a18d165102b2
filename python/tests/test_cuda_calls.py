"""Driver calls of a call in the steady state. Counted, never timed."""

import numpy as np
import pytest

import windrow as wr
from cuda_harness import table_type

pytestmark = pytest.mark.simulated("lists driver calls")


@pytest.fixture
def tensor(sim):
    """Makes tensors of a library with a current stream, as torch is."""
    made = table_type([sim.stream()])
    return lambda array: made(sim, np.asarray(array))


@pytest.mark.parametrize("count", [64, 4096])
def test_a_stack_of_device_samples(sim, tensor, count):
    samples = [tensor(np.full(100, n, np.float32)) for n in range(64)] * (count // 64)
    calls = sim.steady_calls(lambda: wr.stack(samples))
    assert calls["cuLaunchKernel"] == 1 and calls["cuEventQuery"] <= 2 and calls.total() <= 10, calls


@pytest.mark.parametrize("kind", ["list", "table"])
def test_samples_by_indices_of_the_device(sim, tensor, kind):
    rows = np.zeros((64, 100), np.float32)
    listed = wr.SampleList(tensor(rows) if kind == "table" else [tensor(row) for row in rows]).to_device("cuda")
    indices = tensor(np.array([5, 4, 3, 2, 1]))
    for work in (lambda: listed.stack(indices), lambda: wr.stack(listed.take(indices))):
        calls = sim.steady_calls(work)
        assert calls["cuLaunchKernel"] == 2 and calls.total() <= 10 and not any("Synchronize" in call for call in calls), calls


def test_page_locked_batches_that_are_dropped(sim):
    calls = sim.steady_calls(lambda: [wr.stack([np.ones(100)] * 3, device="pinned") for _ in range(10)])
    assert not any("Synchronize" in call or "HostAlloc" in call for call in calls), calls
