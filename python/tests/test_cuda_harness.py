"""The harness of device tests: streams that are stopped by a real driver's means, which the simulated driver tries out."""

import ctypes
import json
import re
from pathlib import Path

import numpy as np
import pytest

import isolated
from cuda_harness import JUNK, RESERVE, Memory, RealDriver, copy_out

ORDER = [isolated.TESTS / f"test_{name}.py" for name in ("cuda_streams", "cuda_keep_alive", "cuda_torch", "cuda_captures", "resident", "arena", "arrow_devices")]


@pytest.fixture
def real(streams):
    """A driver whose controls are left alone."""
    made = RealDriver(streams.library)
    yield made
    made.resume_all()
    for stream in made.streams:
        made.cuStreamSynchronize(stream)
        made.destroy(stream)
    made.free()


def test_a_stream_stands_still_and_goes_on(real):
    stopped, other = real.stream(), real.stream()
    memory = Memory(real, np.zeros(100, np.uint8))
    with real.paused(stopped, stopped):
        real.cuMemsetD8Async(memory.address, JUNK, 100, stopped)
        before = copy_out(real, memory.address, 100, other)
        real.cuStreamSynchronize(other)
        assert real.is_done(other) and not real.is_done(stopped)
    after = copy_out(real, memory.address, 100, stopped)
    real.cuStreamSynchronize(stopped)
    assert [bytes(read(place)) for place in (before, after)] == [bytes(100), bytes([JUNK]) * 100]
    assert real.is_done(stopped) and real.misuse() == []


def read(place):
    return np.ctypeslib.as_array((ctypes.c_uint8 * 100).from_address(place.address))


def test_a_stream_that_was_waited_for_is_told_of(real):
    stream, real.limit = real.stream(), 0.05
    with real.paused(stream):
        real.cuStreamSynchronize(stream)
    assert real.misuse() == [f"stream {stream:#x}, or one that shares its channel, was waited for while it stood still"]
    assert real.misuse() == []


def test_memory_is_there_before_a_stream_stands_still(real):
    stream = real.stream()
    with real.paused(stream):
        begin = real.reserves["device"][0]
        places = [Memory(real, np.zeros(1 << 20, np.uint8)) for _ in range(20)]
        assert all(begin <= place.address <= begin + RESERVE - (1 << 20) for place in places)
        # Its turn comes again.
        assert places[16].address == places[0].address and len({place.address for place in places[:16]}) == 16
    del places
    real.free()


def order_of_streams(*arguments, left_out=0):
    """The tests of order by the calls of a real driver: how many passed, failed and were skipped; the n-th wait of each is left out."""
    script = """
import ctypes
import json
import pytest
import cuda_harness

class Count:
    counts, reasons = {"passed": 0, "failed": 0, "skipped": 0}, []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item):
        if int(sys.argv[1]):
            library = item.funcargs["streams"].library
            library.cudasim_ignore_wait.argtypes = [ctypes.c_uint64]
            library.cudasim_ignore_wait(int(sys.argv[1]))

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1
        if report.outcome != "passed":
            self.reasons.append(f"{report.nodeid}: {report.longrepr}")

cuda_harness.RealDriver.limit = float(sys.argv[2])
count = Count()
pytest.main(["-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line", *sys.argv[3:]], plugins=[count])
print(f"{chr(10)}{json.dumps([count.counts, count.reasons])}")
"""
    limit = 1 if left_out else RealDriver.limit
    told = isolated.run(script, left_out, limit, *arguments, env={"WINDROW_TEST_DRIVER": "real"}, timeout=300)
    return json.loads(told.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.simulated("which is to stand for a real one")
def test_the_order_of_streams_by_a_real_drivers_calls(sim):
    counts, reasons = order_of_streams("-m", "not slow", *filter(Path.exists, ORDER))
    assert counts["failed"] == 0 and counts["passed"] > 150, reasons
    # Nothing but what says that it needs the simulated driver, or lacks a library.
    unknown = [reason for reason in reasons if not re.search("needs the simulated driver|not installed|no CUDA device|there is a driver", reason)]
    assert unknown == []


@pytest.mark.slow
@pytest.mark.simulated("which leaves out a wait when told to")
@pytest.mark.parametrize("left_out", [1, 2, 3])
def test_a_wait_that_is_left_out_is_noticed(sim, left_out):
    counts, _ = order_of_streams("-k", "every_distinct or consumers_stream", ORDER[0], left_out=left_out)
    assert counts["failed"] >= 2, counts
