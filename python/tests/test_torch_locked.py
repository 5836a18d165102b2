"""Batches of worker processes on their way to a device: copied once from page-locked blocks, which are not written to meanwhile."""

import gc
import os
import pickle
import threading
import types
from ctypes import byref, c_void_p

import numpy as np
import pytest

import windrow as wr

torch = pytest.importorskip("torch")

import windrow.torch as wt  # noqa: E402
from test_torch_pools import SIDE, as_worker, counted, kill_worker, loader_of, no_pools, sent  # noqa: E402, F401
from windrow import _windrow, doctor  # noqa: E402
from windrow.torch import _transfer, _workers  # noqa: E402

import isolated

pytestmark = pytest.mark.skipif(not _workers.is_available(), reason="SKIP: only Linux has such memory")


class Copied:
    """A tensor on the device."""

    def __init__(self, driver, source, stream):
        self.driver, self.stream, self.like = driver, stream, torch.empty_like(source)
        self.nbytes = _transfer.bytes_of(source)
        self.address = driver.allocate("device", self.nbytes)
        driver.cuMemcpyHtoDAsync_v2(self.address, source.data_ptr(), self.nbytes, stream)

    def read(self):
        self.driver.cuMemcpyDtoHAsync_v2(self.like.data_ptr(), self.address, self.nbytes, self.stream)
        self.driver.cuStreamSynchronize(self.stream)
        return self.like.numpy()

    def __del__(self):
        self.driver.unused.append(("device", self.address))


class Cuda:
    """The part of torch.cuda that is used, by the driver."""

    def __init__(self, driver):
        self.driver = driver

    def Stream(self, device):
        return types.SimpleNamespace(cuda_stream=self.driver.stream())

    def Event(self):
        return types.SimpleNamespace(record=self._record, synchronize=lambda: None)

    def _record(self, stream):
        pass

    def stream(self, stream):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


class Transfer(_transfer.CudaTransfer):
    """Transfers as the real one does, to memory of the driver's."""

    def __init__(self, driver, depth=3):
        super().__init__(torch.device("cuda", 0), depth, Cuda(driver))
        self.driver, self.handle, self.staged = driver, self._stream.cuda_stream, 0

    def finish(self, started):
        return started.tree

    def _pinned(self, nbytes):
        self.staged += 1
        return torch.empty(nbytes, dtype=torch.uint8)

    def _is_pinned(self, tensor):
        return False

    def _upload(self, source):
        return Copied(self.driver, source, self.handle)


def batch_of(collate, value):
    """A batch full of a value, as a loop gets it from a worker."""
    samples = [{"x": torch.full((3, SIDE, SIDE), float(value)), "y": value}] * 8
    return pickle.loads(sent(collate, samples))


def is_full_of(moved, value):
    return bool((moved["x"].read() == value).all() and (moved["y"].read() == value).all())


def settle():
    """Gives back what was copied."""
    gc.collect()
    _windrow._empty_pools()


@pytest.fixture(autouse=True)
def nothing_stays_locked(no_pools):  # noqa: F811
    yield
    _windrow._close_pool(False)
    settle()
    assert counted()["locked_bytes"] == 0


@pytest.mark.simulated("which counts calls and what lives")
def test_a_batch_is_one_copy_from_where_it_is(sim, as_worker):  # noqa: F811
    transfer, collate, before, registered = Transfer(sim), wt.collate_fn(), counted(), sim.live()["registered"]
    for value in range(20):
        batch, locked = batch_of(collate, value), counted()["locked"]
        started, calls = sim.traced(lambda: transfer.start(batch))
        del batch
        names = [call.split()[0] for call in calls]
        # Images and labels, and nothing that waits.
        assert names.count("cuMemcpyHtoDAsync_v2") == 2 and not any("Synchronize" in name for name in names), names
        assert names.count("cuMemHostRegister_v2") == counted()["locked"] - locked, value
        assert is_full_of(transfer.finish(started), value)
    locked = counted(before)["locked"]
    assert transfer.staged == 0 and 1 <= locked <= 2, "one for each block"
    assert sim.live()["registered"] - registered == locked and counted()["locked_bytes"] > before["locked_bytes"]


@pytest.mark.parametrize("is_held", [True, False])
def test_a_block_is_not_written_while_it_is_copied(streams, as_worker, is_held):  # noqa: F811
    """The block stays too when the transfer has gone, as it has with the last batch of an epoch. Without the wait this test sees
    other batches."""
    collate = wt.collate_fn()
    for turn in range(3):
        transfer = Transfer(streams)
        # More blocks than are used below: to lock one may wait for the device.
        batches = [batch_of(collate, 7) for _ in range(6)]
        assert all(is_full_of(transfer.start(batch).tree, 7) for batch in batches)
        del batches
        if not is_held:
            transfer._hold = lambda sources: None
        settle()
        with streams.paused(transfer.handle):
            moved = transfer.start(batch_of(collate, 1)).tree
            del transfer
            # The blocks that are free, and then those that would be.
            for _ in range(2):
                others = [batch_of(collate, value) for value in (2, 3, 4, 5)]
                del others
        assert bool((moved["x"].read() == 1).all()) == is_held


@pytest.mark.simulated("on which such a copy never waits")
def test_what_the_caller_copies_has_been_read(sim, as_worker):  # noqa: F811
    """The caller copies from pageable memory, which the batch is for everybody but the transfer."""
    collate, stream = wt.collate_fn(), sim.stream()
    Transfer(sim).start(batch_of(collate, 0))
    settle()
    assert counted()["locked_bytes"]
    with sim.paused(stream):
        batch = batch_of(collate, 1)
        copied = Copied(sim, batch["x"], stream)
        del batch
        others = [batch_of(collate, value) for value in (2, 3, 4)]
        del others
    assert (copied.read() == 1).all()


@pytest.mark.simulated("which says that a capture was ended")
def test_a_capture_of_another_thread_goes_on(sim, as_worker):  # noqa: F811
    transfer, captured, collate, graph = Transfer(sim), sim.stream(), wt.collate_fn(), c_void_p()
    moved = []

    def work():
        transfer.begin()
        moved.append(transfer.start(batch_of(collate, 1)).tree)

    sim.cuStreamBeginCapture_v2(captured, 0)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    # Asks what is copied.
    batch_of(collate, 2)
    settle()
    sim.cuStreamEndCapture(captured, byref(graph))
    sim.cuGraphDestroy(graph)
    assert is_full_of(moved[0], 1)


def test_views_and_tensors_of_others(streams, as_worker):  # noqa: F811
    collate = wt.collate_fn()
    batch = batch_of(collate, 3)
    view = batch["x"][1:5]
    view[0, 0, 0, 0] = 4
    lock = lambda tensor: _windrow._page_locked(tensor, 0)  # noqa: E731
    locked = lock(view).torch()
    assert torch.equal(locked, view) and locked.data_ptr() != view.data_ptr()
    assert lock(torch.ones(100_000)) is None and lock(batch["x"].clone()) is None
    # An array does not know of the block what its tensor knows.
    assert lock(torch.from_numpy(batch["x"].numpy())) is None
    # The tensor is in another memory from now on; the copy that is under way has the old one.
    batch["x"].share_memory_()
    assert lock(batch["x"]) is None and torch.equal(locked, batch["x"][1:5])


@pytest.mark.slow
def test_an_epoch_through_a_prefetcher(streams, monkeypatch):
    """Every value of every batch, of worker processes and under delays of the device."""
    made = []
    monkeypatch.setattr(wt.Prefetcher, "_transfer", lambda self: made.append(Transfer(streams)) or made[-1])
    loader = loader_of(512, workers=2, persistent_workers=True)
    before = counted()
    for epoch in range(3):
        first = 0
        for moved in wt.Prefetcher(loader, min_bytes=0):
            want = np.arange(first, first + 8)
            values = moved["x"].read().reshape(8, -1)
            assert (moved["y"].read() == want).all() and (values.min(1) == want).all() and (values.max(1) == want).all()
            first += 8
        assert first == 512
    now = counted(before)
    assert all(transfer.staged == 0 for transfer in made) and 0 < now["locked"] <= now["blocks"], now
    del loader, moved


@pytest.mark.slow
def test_a_worker_that_is_killed(streams):
    transfer = Transfer(streams)
    iterator = iter(loader_of(512, workers=1))
    assert is_full_of_index(transfer.start(next(iterator)).tree, 0)
    batch = next(iterator)
    assert _windrow._page_locked(batch["x"], 0) is not None
    with streams.paused(transfer.handle):
        moved = transfer.start(batch).tree
        del batch
        with pytest.raises(RuntimeError, match="exited unexpectedly|killed by signal"):
            kill_worker(iterator)
            for _ in iterator:
                pass
    assert is_full_of_index(moved, 8)


def is_full_of_index(moved, first):
    values = moved["x"].read().reshape(8, -1)
    return bool((values.min(1) == np.arange(first, first + 8)).all() and (values.max(1) == values.min(1)).all())


@pytest.mark.slow
@pytest.mark.simulated("which refuses")
def test_a_refusal_is_said_once(sim):
    script = """
import logging, types
import torch
import cuda_harness, test_torch_locked as test
from windrow.torch import _workers
import windrow.torch as wt

said = []
logging.getLogger("windrow").addHandler(logging.Handler())
logging.getLogger("windrow").handlers[-1].emit = lambda record: said.append(record.getMessage())
driver = cuda_harness.load()
driver.fail("cuMemHostRegister_v2", 801)
torch.utils.data.get_worker_info = lambda: types.SimpleNamespace(id=0, num_workers=1, seed=0, dataset=None)
fetchers, _ = _workers._senders()
from test_torch_pools import fetched
_workers._senders = lambda: (fetchers, (fetched.__code__,))
transfer, collate = test.Transfer(driver), wt.collate_fn()
for value in range(5):
    assert test.is_full_of(transfer.finish(transfer.start(test.batch_of(collate, value))), value)
assert transfer.staged == 3 and test.counted()["locked"] == 0
assert len(said) == 1 and "CUDA_ERROR_NOT_SUPPORTED" in said[0] and "page-locked" in said[0], said
"""
    isolated.run(script)


@pytest.mark.simulated("which refuses")
def test_doctor_says_what_is_refused(sim):
    text = "memory of worker processes cannot be page-locked"
    assert not any(text in line for line in doctor.cuda_devices())
    sim.fail("cuMemHostRegister_v2", 801)
    (line,) = [line for line in doctor.cuda_devices() if line.startswith("cuda:0")]
    assert text in line and "CUDA_ERROR_NOT_SUPPORTED" in line


def test_a_worker_locks_nothing(streams, as_worker):  # noqa: F811
    """A child of a process that has used the device."""
    batch = batch_of(wt.collate_fn(), 1)
    child = os.fork()
    if child == 0:
        try:
            is_right = _windrow._page_locked(batch["x"], 0) is None and _windrow._page_lock_refusal() is None
            os._exit(0 if is_right else 3)
        finally:
            os._exit(4)
    assert os.waitpid(child, 0)[1] == 0
    assert _windrow._page_locked(batch["x"], 0) is not None


def test_stats_name_what_is_locked():
    assert {"locked", "locked_bytes"} <= set(wr.stats()["workers"])
