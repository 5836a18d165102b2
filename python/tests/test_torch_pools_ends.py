"""Batches of worker processes where something ends: a worker with threads, the room of a pool."""

import os
import pickle
import threading
import time
from multiprocessing import reduction

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import windrow.torch as wt  # noqa: E402
from test_torch_pools import START, as_worker, fetched, in_pools, no_pools  # noqa: E402, F401
from torch.utils.data import DataLoader  # noqa: E402
from windrow.torch import _workers  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not _workers.is_available(), reason="SKIP: only Linux has such memory"),
]


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return np.full(50_000, index + 1, np.float32)


class Later:
    """A collate function whose thread looks at the batch once more when its worker has been told to end."""

    def __init__(self, folder):
        self.collate, self.folder = wt.collate_fn(), folder

    def __call__(self, samples):
        batch = self.collate(samples)
        want = float(samples[0][0])

        def look():
            time.sleep(0.7)
            (self.folder / str(want)).write_text(str((float(batch[0].min()), float(batch[0].max()))))

        threading.Thread(target=look).start()
        return batch


@pytest.mark.parametrize("start", START[:2])
def test_threads_of_a_worker_keep_their_batches(start, tmp_path):
    for _ in DataLoader(Rows(), batch_size=2, num_workers=1, collate_fn=Later(tmp_path), multiprocessing_context=start):
        pass
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"1.0": "(1.0, 1.0)", "3.0": "(3.0, 3.0)"}


def test_beyond_the_limit_no_descriptor_is_kept(as_worker):  # noqa: F811
    samples = [{"x": np.full(40_000, i, np.float32), "y": np.int64(i)} for i in range(4)]
    collate = wt.collate_fn(workers_memory=1)

    def descriptors():
        batch = fetched(collate, samples)
        assert batch["x"].is_shared() and batch["y"].tolist() == [0, 1, 2, 3]
        del batch
        return len(os.listdir("/proc/self/fd"))

    first = descriptors()
    assert [descriptors() for _ in range(5)] == [first] * 5


class Own(torch.Tensor):
    pass


def test_tensors_that_go_torchs_way_wait_for_the_pools_answer(as_worker):  # noqa: F811
    batch = {"own": torch.ones(9).as_subclass(Own), "leaf": torch.ones(3, requires_grad=True), "plain": torch.full((50_000,), 7.0)}
    refusing = _workers.pool(1)

    def descriptors():
        assert refusing.message(batch) is batch
        return len(os.listdir("/proc/self/fd"))

    first = descriptors()
    assert [descriptors() for _ in range(3)] == [first] * 3
    arrived = pickle.loads(reduction.ForkingPickler.dumps(_workers.pool(8 << 20).message(batch)))
    assert type(arrived["own"]) is Own and arrived["leaf"].requires_grad and in_pools({"x": arrived["plain"]})
    assert all(torch.equal(arrived[name], batch[name]) for name in batch)
