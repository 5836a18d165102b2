"""Fixtures of the Python tests. `oracle.py` holds the expected values, `helpers.py` the comparisons."""

import gc
import os
import signal

import numpy as np
import pytest

import cuda_harness
import dlpack_harness
import windrow as wr


# A process that a shell starts in the background ignores interrupts, and so do its children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Tests with torch on a GPU come last: once it is used, batches of host samples are in its memory, for all that follow."""
    items.sort(key=lambda item: item.path.name.startswith("test_gpu_"))


@pytest.fixture(autouse=True, scope="module")
def little_to_collect():
    """Sets aside the million objects that torch, JAX and Ray bring, or each `gc.collect` goes through them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_double_free():
    """Fails a test in which a foreign tensor was freed more than once."""
    dlpack_harness.double_frees()
    yield
    assert dlpack_harness.double_frees() == []


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def jax():
    return pytest.importorskip("jax")


def warm_up():
    """Makes the first calls. What they load, lock and allocate may wait for the device, on which tests stop streams: pages of
    what host samples go through, up to its full size, and what page-locked samples are read with."""
    for target in ("cuda", "pinned"):
        wr.stack([1], device=target)
    wr.stack([np.zeros(20 << 20, np.uint8)], device="cuda").check()
    wr.stack(list(wr.stack([1], device="pinned")), device="cuda").check()


@pytest.fixture(scope="session")
def any_driver():
    """The driver that windrow uses, simulated or real; skips where there is none."""
    if not wr.cuda_available():
        try:
            wr.stack([1], device="cuda")
            reason = "no device"
        except wr.CudaUnavailable as error:
            reason = str(error)
        if os.environ.get("WINDROW_REQUIRE_GPU") == "1":
            pytest.fail(f"WINDROW_REQUIRE_GPU=1: {reason}")
        pytest.skip(f"SKIP: {reason}")
    driver = cuda_harness.load()
    warm_up()
    return driver


@pytest.fixture
def driver(any_driver):
    """The driver. At the end of a test nothing may have been misused."""
    yield any_driver
    any_driver.resume_all()
    misused = any_driver.misuse()
    any_driver.reset()
    any_driver.free()
    assert misused + any_driver.misuse() == []


@pytest.fixture
def streams(driver):
    """The driver, whose streams can be stopped: the simulated one by its controls, a real one by a wait for a word of memory.

    Streams that a test has made are gone after it. A stream that was waited for while it stood still fails the test.
    """
    driver.reset()
    if not driver.is_simulated:
        warm_up()  # the last test has emptied the cache
    yield driver
    gc.collect()
    driver.resume_all()
    wr.empty_cache()
    for stream in list(driver.streams):
        driver.cuStreamSynchronize(stream)
        driver.destroy(stream)


@pytest.fixture
def sim(request, streams):
    """The simulated driver, for what a real one has no means of. The mark `simulated` says what that is."""
    (reason,) = request.node.get_closest_marker("simulated").args
    if not streams.is_simulated:
        pytest.skip(f"SKIP: this needs the simulated driver, {reason}")
    return streams
