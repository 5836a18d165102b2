"""Lists whose table is on a device, and what is known of a batch only when the device has come so far."""

import numpy as np
import pytest

import windrow as wr
from cuda_harness import Cai, fetch
from helpers import assert_same, paint_values
from windrow import CudaError

ROWS = [paint_values((4, 6), "float32", seed) for seed in range(5)]


# Batch.check


def test_a_batch_on_the_host_is_complete():
    assert wr.stack(ROWS).check() is None
    assert wr.stack(np.stack(ROWS), copy=False).check() is None
    assert wr.ragged(ROWS).check() is None


@pytest.mark.parametrize("target", ["cpu", "pinned", "cuda"])
def test_a_batch_is_waited_for(sim, target):
    stream = sim.stream()
    samples = [Cai(sim, row, stream=stream) for row in ROWS]
    sim.pause(stream)
    with sim.paused_briefly(stream):
        batch = wr.stack(samples, device=target)
        before = wr.stats()["waits"]
        assert batch.check() is None
        assert wr.stats()["waits"] == before + (target == "cuda")
    assert_same(fetch(sim, batch) if target == "cuda" else batch.numpy(), np.stack(ROWS))
    sim.cuStreamDestroy_v2(stream)


def test_a_failure_of_the_device_is_raised(sim):
    batch = wr.stack([Cai(sim, row) for row in ROWS])
    sim.fail("cuEventSynchronize", 400)
    with pytest.raises(CudaError, match="cuEventSynchronize"):
        batch.check()
    assert batch.check() is None
