"""Batches of worker processes in memory that is used again: results, lifetimes, and what may go wrong."""

import collections
import gc
import io
import logging
import multiprocessing
import os
import pickle
import queue
import resource
import signal
import sys
import threading
import time
import types
from multiprocessing import reduction

import numpy as np
import pytest

import windrow as wr
from test_torch_collate import f32, rows, same

torch = pytest.importorskip("torch")

import windrow.torch as wt  # noqa: E402
from torch.utils.data import DataLoader, default_collate  # noqa: E402
from windrow import _shared_memory, _windrow  # noqa: E402
from windrow.torch import _workers  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not _workers.is_available(), reason="SKIP: only Linux has such memory"),
]
START = ("fork", "spawn", "forkserver")
SIDE = 64


class Painted(torch.utils.data.Dataset):
    """Images that are full of their index, and labels."""

    def __init__(self, count, side=SIDE, seconds=0.0):
        self.count, self.side, self.seconds = count, side, seconds

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.seconds:
            time.sleep(self.seconds)
        return {"x": torch.full((3, self.side, self.side), float(index)), "y": index}


class Stream(torch.utils.data.IterableDataset):
    """Samples as those of `Painted`; the workers have different numbers of them."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        for index in range(60 * (worker.id + 1)):
            yield {"x": torch.full((3, SIDE, SIDE), float(index)), "y": index}


def first_of(batch):
    """Its first index, after a look at every value."""
    first, count = int(batch["y"][0]), len(batch["y"])
    want = np.arange(first, first + count)
    # NumPy compares, not torch's threads, which a forked child does not have.
    values = batch["x"].numpy().reshape(count, -1)
    assert (batch["y"].numpy() == want).all() and (values.min(1) == want).all() and (values.max(1) == want).all()
    return first


def loader_of(count=256, size=8, workers=2, collate=None, **kwargs):
    kwargs.setdefault("multiprocessing_context", "fork")
    collate = wt.collate_fn() if collate is None else collate
    return DataLoader(Painted(count), size, num_workers=workers, collate_fn=collate, **kwargs)


def in_pools(batch):
    return hasattr(batch["x"].untyped_storage(), "_windrow_block") and not batch["x"].is_shared()


def counted(since=None):
    """The counts of workers, from those of `since` on if given."""
    stats = wr.stats()["workers"]
    return stats if since is None else {name: value - since[name] for name, value in stats.items()}


@pytest.fixture(autouse=True)
def no_pools():
    yield
    gc.collect()
    _windrow._close_pool(False)
    _windrow._empty_pools()


@pytest.fixture
def as_worker(monkeypatch):
    """This process is a worker, and its own reader."""
    info = types.SimpleNamespace(id=0, num_workers=1, seed=0, dataset=None)
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: info)
    fetchers, _ = _workers._senders()
    monkeypatch.setattr(_workers, "_senders", lambda: (fetchers, (fetched.__code__,)))


def fetched(collate, samples):
    """The message for torch's queue."""
    fetcher = torch.utils.data._utils.fetch._MapDatasetFetcher(samples, True, collate, False)
    return fetcher.fetch(range(len(samples)))


def sent(collate, samples):
    """The same as the queue pickles it."""
    return bytes(reduction.ForkingPickler.dumps(fetched(collate, samples)))


# Results.


@pytest.mark.parametrize("start", START)
@pytest.mark.parametrize("persistent", [False, True])
def test_epochs(start, persistent):
    loader = loader_of(96, multiprocessing_context=start, persistent_workers=persistent, workers=1 + (start == "fork"))
    for _ in range(3):
        batches = list(loader)
        assert [first_of(batch) for batch in batches] == list(range(0, 96, 8)) and all(map(in_pools, batches))


class Odd(dict):
    """A class of the caller's."""


Point = collections.namedtuple("Point", "x y")


def trees():
    """Samples that `default_collate` takes, and some that it keeps as they are."""
    return [
        {"x": f32(i, 3), "big": torch.full((20, 1000), i), "y": i, "f": i / 2, "a": np.full(4, i, np.int16), "s": f"s{i}",
         "e": torch.empty(0), "none": torch.empty(0, 3), "p": Point(i, f32(i, 2).bfloat16()), "c": torch.full((2,), 1j * i),
         "o": Odd(k=[np.float32(i)]), "t": (torch.full((40, 1000), i % 2 == 1), [i])}
        for i in range(8)
    ]  # fmt: skip


@pytest.mark.parametrize("start", START)
@pytest.mark.parametrize("options", [{}, {"arena": True}, {"workers_memory": 0}, {"workers_memory": 1 << 14}], ids=str)
def test_trees(start, options):
    samples = trees()
    loader = DataLoader(samples, 4, num_workers=1, collate_fn=wt.collate_fn(**options), multiprocessing_context=start)
    for index, batch in enumerate(loader):
        same(batch, default_collate(samples[4 * index : 4 * index + 4]))


def test_specs(as_worker):
    samples = [{"ids": rows(i), "v": rows(i).float(), "y": i, "w": rows(0)} for i in range(4)]
    spec = {"ids": wr.Pad(mask="real"), "v": wr.Ragged(batch_index=True), "w": wr.Stack(dtype="int32")}
    plain = wt.collate_fn(spec, workers_memory=0)(samples)
    for arena in (False, True):
        batch = pickle.loads(sent(wt.collate_fn(spec, arena=arena), samples))
        same(batch, plain)
        tensors = [*batch["ids"][:2], batch["ids"].mask, batch["v"].offsets, batch["v"].batch_index, batch["w"]]
        assert all(in_pools({"x": tensor}) for tensor in tensors)


def test_tensors_of_torchs_own_functions_travel_too(as_worker):
    """A column that windrow does not take is copied to the pool, with what its tensors share."""
    whole = torch.arange(12.0).reshape(3, 4)

    def collate(samples):
        return {"whole": whole, "row": whole[1], "turned": whole.t(), "wide": torch.ones(1).expand(1000), "again": whole}

    pool = _workers.pool(None)
    batch = pickle.loads(reduction.ForkingPickler.dumps(pool.message(collate(None))))
    same(batch, collate(None))
    assert batch["again"] is batch["whole"] and batch["wide"].stride() == (0,)
    assert batch["row"].data_ptr() == batch["whole"][1].data_ptr()
    batch["whole"][1] = 7.0
    assert batch["row"].tolist() == [7.0] * 4 and batch["turned"][:, 1].tolist() == [7.0] * 4 and whole[1, 0] == 4.0


@pytest.mark.parametrize("start", START)
def test_data_sets_that_are_iterated(start):
    batches = list(DataLoader(Stream(), 8, num_workers=2, collate_fn=wt.collate_fn(), multiprocessing_context=start))
    assert sorted(map(first_of, batches)) == sorted([*range(0, 60, 8), *range(0, 120, 8)])


def test_batches_out_of_order():
    loader = loader_of(workers=3, in_order=False)
    assert sorted(map(first_of, loader)) == list(range(0, 256, 8))


def test_loaders_that_are_left_and_loaders_side_by_side():
    collate = wt.collate_fn()
    one, two = loader_of(collate=collate), loader_of(collate=collate, persistent_workers=True)
    for _ in range(3):
        for index, (left, right) in enumerate(zip(one, two)):
            assert first_of(left) == first_of(right) == 8 * index
            if index == 5:
                break


class Nested(torch.utils.data.Dataset):
    """Each sample is a batch of a loader within the worker process."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        inner = torch.utils.data.Subset(Painted(128), range(8 * index, 8 * index + 8))
        (batch,) = DataLoader(inner, 8, collate_fn=wt.collate_fn())
        assert first_of(batch) == 8 * index
        return {"x": batch["x"].mean(0), "y": batch["y"][0]}


@pytest.mark.parametrize("start", START[:2])
def test_loaders_within_a_worker(start):
    loader = DataLoader(Nested(), 4, num_workers=2, collate_fn=wt.collate_fn(), multiprocessing_context=start)
    for index, batch in enumerate(loader):
        assert in_pools(batch) and batch["y"].tolist() == list(range(32 * index, 32 * index + 32, 8))
        assert (batch["x"] == batch["y"].view(-1, 1, 1, 1) + 3.5).all()


class Plain:
    """A wrapper that does nothing."""

    def __init__(self, collate):
        self.collate = collate

    def __call__(self, samples):
        return dict(self.collate(samples))


class Around:
    """A wrapper, which is to get tensors."""

    def __init__(self, collate):
        self.collate = collate

    def __call__(self, samples):
        batch = self.collate(samples)
        return {"x": batch["x"], "half": batch["x"][::2, 1:], "y": batch["y"] + 0, "again": batch["x"]}


@pytest.mark.parametrize("start", START)
def test_wrappers(start):
    kept = list(loader_of(96, collate=Around(wt.collate_fn()), multiprocessing_context=start, workers=1))
    for index, batch in enumerate(kept):
        assert first_of(batch) == 8 * index and in_pools(batch)
        # Views of one block.
        assert batch["again"] is batch["x"] and torch.equal(batch["half"], batch["x"][::2, 1:])
        batch["x"].zero_()
        assert not batch["half"].any()


@pytest.mark.parametrize("start", START)
def test_tensors_of_one_block_when_its_worker_has_ended(start):
    """Each has a claim of its own where a wrapper sends them one by one: the block is there until the last one ends."""
    samples = [{name: torch.full((50,), 3.0) for name in "abc"} for _ in range(8)]
    loader = DataLoader(samples, 8, num_workers=1, collate_fn=Plain(wt.collate_fn()), multiprocessing_context=start)
    (batch,) = loader
    _windrow._empty_pools()
    kept = batch.pop("b")
    del batch
    assert (kept == 3.0).all()


# Lifetimes.


def test_steady_state():
    """No new blocks, bytes, pages or descriptors once all batches in flight have theirs."""
    loader = loader_of(2048, persistent_workers=True)

    def epoch():
        for index, batch in enumerate(loader):
            assert first_of(batch) == 8 * index

    epoch()
    before, descriptors = counted(), len(os.listdir("/proc/self/fd"))
    epoch()
    after = counted(before)
    nbytes = 2048 * (3 * SIDE * SIDE * 4 + 8)
    assert after == {"batches": 256, "bytes": nbytes, "refused": 0, "blocks": 0, "pool_bytes": 0, "locked": 0, "locked_bytes": 0}
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_a_consumer_that_keeps_batches():
    kept = list(loader_of(512))
    assert [first_of(batch) for batch in kept] == list(range(0, 512, 8)) and all(map(in_pools, kept))


def test_kept_labels_do_not_keep_images():
    loader = loader_of(512, persistent_workers=True)
    labels = [batch["y"] for batch in loader]
    held = counted()["pool_bytes"]
    # Images of five batches of each worker, and 64 small blocks.
    assert held < 2 * 6 * (8 * 3 * SIDE * SIDE * 4) + 64 * 4096 * 2
    assert [int(label[0]) for label in labels] == list(range(0, 512, 8))


def test_every_kind_of_user_keeps_a_block():
    users = {
        "view": lambda x: x[1:, 0],
        "numpy": lambda x: x.numpy(),
        "memoryview": lambda x: memoryview(x.numpy()),
        "dlpack": lambda x: np.from_dlpack(x),
        "storage": lambda x: x.untyped_storage(),
        "detached": lambda x: x.detach(),
        "windrow": lambda x: wr.asarray(x),
        "graph": lambda x: (x * torch.ones(1, requires_grad=True)).sum(),
    }
    iterator = iter(loader_of(2048, workers=1))
    kept = {}
    for name, use in users.items():
        batch = next(iterator)
        kept[name] = (use(batch["x"]), float(batch["y"][0]))
        del batch
    for _ in range(100):
        next(iterator)
    for name, (user, first) in kept.items():
        if name == "graph":
            user.backward()
            continue
        values = np.frombuffer(bytes(user), np.float32) if name == "storage" else np.asarray(user)
        assert first <= values.min() <= values.max() <= first + 7, name


def test_tensors_die_in_any_thread_and_order():
    kept, lock = [], threading.Lock()

    def drop():
        for _ in range(200):
            with lock:
                if kept:
                    kept.pop(len(kept) // 2)
            time.sleep(0.0005)

    threads = [threading.Thread(target=drop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for index, batch in enumerate(loader_of(1024)):
        assert first_of(batch) == 8 * index
        with lock:
            kept.append(batch)
    for thread in threads:
        thread.join()


def test_arrays_of_a_tensor_that_is_moved_to_shared_memory():
    iterator = iter(loader_of(1024, workers=1))
    batch = next(iterator)
    array, address = batch["x"].numpy(), batch["x"].data_ptr()
    assert not batch["x"].is_shared()
    batch["x"].share_memory_()
    assert batch["x"].is_shared() and batch["x"].data_ptr() != address
    del batch
    for _ in range(60):
        next(iterator)
    assert (array == np.arange(8, dtype=np.float32)[:, None, None, None]).all()


def third(inbox, outbox):
    batch = inbox.get()
    outbox.put(first_of(batch))
    batch["x"].zero_()
    outbox.put(batch["x"].is_shared())


def test_a_third_process():
    iterator = iter(loader_of(1024, workers=1))
    batch = next(iterator)
    array = batch["x"].numpy()
    context = torch.multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=third, args=(inbox, outbox))
    process.start()
    inbox.put(batch)
    assert outbox.get(timeout=60) == 0 and outbox.get(timeout=60)
    process.join()
    # Torch has it so: the tensor has moved to memory that both have, and arrays of it have not.
    assert not batch["x"].any() and batch["x"].is_shared()
    del batch
    for _ in range(40):
        next(iterator)
    assert (array == np.arange(8, dtype=np.float32)[:, None, None, None]).all()


def test_saved_tensors_are_their_own_bytes():
    batch = next(iter(loader_of()))
    data = io.BytesIO()
    torch.save(batch["y"], data)
    assert len(data.getvalue()) < 4096 and pickle.loads(pickle.dumps(batch["y"])).tolist() == list(range(8))


# Forks.


def test_a_fork_of_the_reader_with_a_batch_alive():
    iterator = iter(loader_of(4096, workers=1, persistent_workers=True))
    batch = next(iterator)
    (go, said_go), (answer, answered) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.read(go, 1)
            is_right = first_of(batch) == 0
            batch = None
            gc.collect()
            os.write(answered, b"1" if is_right else b"0")
            os.read(go, 1)
        finally:
            os._exit(0)
    del batch
    for _ in range(60):
        next(iterator)
    before = counted()
    os.write(said_go, b"1")
    assert os.read(answer, 1) == b"1"
    os.write(said_go, b"1")
    os.waitpid(child, 0)
    # The block goes back when the child has ended.
    for _ in range(60):
        next(iterator)
    assert counted(before)["blocks"] == 0
    for descriptor in (go, said_go, answer, answered):
        os.close(descriptor)


def test_many_children_of_several_times():
    iterator = iter(loader_of(4096, workers=1, persistent_workers=True))
    descriptors = len(os.listdir("/proc/self/fd"))
    (go, said_go), (answer, answered) = os.pipe(), os.pipe()
    children, most = [], 0
    for _ in range(10):
        batch = next(iterator)
        first = first_of(batch)
        for _ in range(3):
            child = os.fork()
            if child == 0:
                try:
                    os.read(go, 1)
                    os.write(answered, b"1" if first_of(batch) == first else b"0")
                finally:
                    os._exit(0)
            children.append(child)
        most = max(most, len(os.listdir("/proc/self/fd")) - descriptors - 4)
    del batch
    for _ in range(60):
        next(iterator)
    os.write(said_go, b"1" * len(children))
    answers = b""
    while len(answers) < len(children):
        answers += os.read(answer, 100)
    assert answers == b"1" * len(children) and most <= 12, "a pipe for each time, not for each child"
    for child in children:
        os.waitpid(child, 0)
    for _ in range(3):
        next(iterator)
    for descriptor in (go, said_go, answer, answered):
        os.close(descriptor)
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_the_death_of_a_child_frees_nothing():
    iterator = iter(loader_of(4096, workers=1))
    batch = next(iterator)
    child = os.fork()
    if child == 0:
        batch = None
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    for _ in range(50):
        next(iterator)
    assert first_of(batch) == 0


def test_epochs_of_fresh_workers_use_the_same_memory():
    """Workers that are forked take over the pools of the last ones."""
    loader, before = loader_of(128), counted()
    for _ in range(10):
        for index, batch in enumerate(loader):  # The last one is alive while the next workers are forked.
            assert first_of(batch) == 8 * index
    assert counted(before)["batches"] == 160 and counted(before)["blocks"] < 64
    del batch, loader
    gc.collect()
    assert counted()["pool_bytes"] == 0


# Failures.


def test_a_message_that_is_read_twice(as_worker):
    samples = [Painted(8)[index] for index in range(8)]
    message = sent(wt.collate_fn(), samples)
    batch = pickle.loads(message)
    assert first_of(batch) == 0
    with pytest.raises(RuntimeError, match="read twice"):
        pickle.loads(message)
    del batch
    with pytest.raises(RuntimeError, match="read twice"):
        pickle.loads(message)
    again = fetched(wt.collate_fn(), samples)
    reduction.ForkingPickler.dumps(again)
    with pytest.raises(RuntimeError, match="sent once"):
        reduction.ForkingPickler.dumps(again)
    with pytest.raises(RuntimeError, match="no worker of this windrow"):
        _windrow._receive(b"x" * 100, None)


def test_explain_says_that_there_is_a_pool(as_worker):
    rows = [np.ones(4)]
    before = wr.explain(rows)
    assert not before.worker_pool and "worker pool" not in str(before)
    fetched(wt.collate_fn(), [{"x": torch.ones(4)}])
    assert wr.explain(rows).worker_pool and "worker pool" in str(before)


def test_a_message_that_is_never_sent(as_worker):
    samples, before = [Painted(8)[index] for index in range(8)], counted()
    for _ in range(20):
        fetched(wt.collate_fn(), samples)
    assert counted(before)["blocks"] == 2


class Unpicklable:
    def __reduce__(self):
        raise ValueError("this does not pickle")


class WithUnpicklable:
    def __init__(self, collate):
        self.collate = collate

    def __call__(self, samples):
        return _workers.pool(None).message({**self.collate(samples), "odd": Unpicklable()})


def test_what_does_not_pickle_is_an_error_and_no_endless_wait():
    with pytest.raises(ValueError, match="this does not pickle"):
        list(loader_of(16, workers=1, collate=WithUnpicklable(wt.collate_fn()), timeout=30))


def test_gradients():
    samples = [torch.ones(2, requires_grad=True)] * 2
    with pytest.raises(RuntimeError, match="automatic differentiation"):
        list(DataLoader(samples, 2, num_workers=1, collate_fn=wt.collate_fn()))


@pytest.mark.parametrize("limit", [1 << 20, 1 << 12])
def test_the_limit(limit):
    """Batches go torch's way behind it, right and without an end."""
    before = counted()
    kept = list(loader_of(collate=wt.collate_fn(workers_memory=limit)))
    assert [first_of(batch) for batch in kept] == list(range(0, 256, 8))
    assert sum(batch["x"].is_shared() for batch in kept) >= 28
    assert counted(before)["refused"] > 0


def test_the_limit_is_said_once(as_worker, caplog):
    collate = wt.collate_fn(workers_memory=1 << 12)
    with caplog.at_level(logging.WARNING, "windrow"):
        _workers._has_warned = False
        for _ in range(3):
            collate([torch.ones(1 << 16)] * 2)
    assert len(caplog.records) == 1 and "more than 4096 bytes are in use" in caplog.text
    with pytest.raises(ValueError, match="workers_memory"):
        wt.collate_fn(workers_memory=-1)
    for wrong in (1e9, True):
        with pytest.raises(TypeError, match="workers_memory must be an int"):
            wt.collate_fn(workers_memory=wrong)
    assert "workers_memory=0" in repr(wt.collate_fn(workers_memory=0)) and "workers" not in repr(wt.collate_fn())


def test_no_memory(as_worker, monkeypatch):
    def refuse(outputs, limit):
        raise MemoryError("no memory for a batch")

    monkeypatch.setattr(_windrow, "_allocate_in_pool", refuse)
    with pytest.raises(MemoryError):
        wt.collate_fn()([torch.ones(4)] * 2)


def test_no_pool(as_worker, monkeypatch, caplog):
    def refuse(limit):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(_windrow, "_start_pool", refuse)
    _workers._has_warned = False
    with caplog.at_level(logging.WARNING, "windrow"):
        batch = pickle.loads(sent(wt.collate_fn(), [torch.ones(1 << 16)] * 2))
    assert batch.is_shared() and "Too many open files" in caplog.text


def test_the_default_limit(tmp_path, monkeypatch):
    """The memory of the machine, or the least that a control group and its parents allow."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    root, listing = tmp_path / "cgroup", tmp_path / "listing"

    def limit(text, **files):
        for name, value in files.items():
            path = root / name.replace("__", "/").replace("max", "memory.max")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(value)
        listing.write_text(text)
        return _shared_memory.memory.__wrapped__(str(root), str(listing))

    assert limit("0::/\n") == machine
    assert limit("0::/a/b\n", a__b__max="max\n") == machine
    assert limit("0::/a/b\n", a__max="8388608\n") == 8 << 20
    assert limit("0::/a/b\n", a__b__max="4194304\n") == 4 << 20
    assert limit("0::/a/b\n", max="2097152\n") == 2 << 20
    (root / "memory/job").mkdir(parents=True)
    (root / "memory/job/memory.limit_in_bytes").write_text("1048576\n")
    assert limit("3:cpu,memory:/job\n2:pids:/x\n0::/\n") == 1 << 20
    monkeypatch.setattr(_shared_memory, "memory", lambda: 96 << 20)
    for workers in (None, types.SimpleNamespace(num_workers=3)):
        monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: workers)
        assert _workers.default_limit() == (48 if workers is None else 16) << 20
    # `ulimit -v`: the loop maps four addresses for each byte, of the pools of all workers.
    monkeypatch.setattr(resource, "getrlimit", lambda which: (192 << 20, 192 << 20))
    assert _workers.default_limit() == 8 << 20


def kill_worker(iterator, index=0):
    """Kills a worker, but not while it has the lock of torch's event of the end: the loop would wait for that lock without end. Torch
    raises some time later, wherever this process is."""
    with iterator._workers_done_event._cond:
        os.kill(iterator._workers[index].pid, signal.SIGKILL)


def test_a_worker_that_is_killed():
    iterator = iter(DataLoader(Painted(4096, seconds=0.001), 8, num_workers=2, collate_fn=wt.collate_fn()))
    kept = [next(iterator) for _ in range(6)]
    with pytest.raises(RuntimeError, match="exited unexpectedly|killed"):
        kill_worker(iterator)
        while True:
            kept.append(next(iterator))
    del iterator
    gc.collect()
    list(loader_of(64))
    assert [first_of(batch) for batch in kept] == list(range(0, 8 * len(kept), 8))


def test_workers_that_are_killed_at_any_moment():
    import random

    rng, collate, kept = random.Random(3), wt.collate_fn(), []
    for _ in range(8):
        iterator = iter(loader_of(4096, collate=collate))
        victim = rng.randrange(2)
        killer = threading.Timer(0.02 + rng.random() * 0.1, kill_worker, (iterator, victim))
        killer.start()
        try:
            for index in range(300):
                batch = next(iterator)
                assert first_of(batch) == 8 * index
                kept.append((batch, 8 * index))
                while len(kept) > 6:
                    kept.pop(rng.randrange(len(kept)))
            killer.join()
            os.waitid(os.P_PID, iterator._workers[victim].pid, os.WEXITED | os.WNOWAIT)
        except RuntimeError as error:
            assert "exited unexpectedly" in str(error) or "killed" in str(error)
        killer.join()
        del iterator, killer
        for batch, first in kept:
            assert first_of(batch) == first


READER = """
import sys, time, windrow.torch, torch
from torch.utils.data import DataLoader
from test_torch_pools import Painted
iterator = iter(DataLoader(Painted(40000), 16, num_workers=2, collate_fn=windrow.torch.collate_fn()))
kept = [next(iterator) for _ in range(20)]
print(*[worker.pid for worker in iterator._workers], flush=True)
time.sleep(60)
"""


def test_a_child_has_workers_of_its_own():
    """They do not take over pools that only the first process reads."""
    collate = wt.collate_fn()
    read = lambda: os._exit(0 if len(list(loader_of(64, collate=collate))) == 8 else 1)
    assert len(list(loader_of(64, collate=collate))) == 8
    child = os.fork()
    if child == 0:
        try:
            read()
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_a_reader_that_is_killed():
    import subprocess

    folder = os.path.dirname(__file__)
    paths = os.pathsep.join([folder, os.path.dirname(os.path.dirname(wr.__file__))])
    reader = subprocess.Popen(
        [sys.executable, "-c", READER], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    workers = [int(pid) for pid in reader.stdout.readline().split()]
    reader.kill()
    reader.wait()
    reader.stdout.close()
    limit = time.monotonic() + 60

    def lives(pid):
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    while any(map(lives, workers)) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not any(map(lives, workers)), "torch's workers end when their loop is gone"


def late(pipe, is_killed):
    """A worker whose process ends before its batch is read."""
    worker = torch.utils.data._utils.worker
    worker._worker_info = types.SimpleNamespace(id=0, num_workers=1, seed=0, dataset=None)
    pipe.send_bytes(sent(wt.collate_fn(), [Painted(8)[index] for index in range(8)]))
    if is_killed:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_worker_that_has_ended_before_its_first_batch_is_read(is_killed):
    context = multiprocessing.get_context("spawn")
    mine, other = context.Pipe()
    process = context.Process(target=late, args=(other, is_killed))
    process.start()
    message = mine.recv_bytes()
    process.join()
    with pytest.raises(RuntimeError, match="cannot be read: its memory is gone|had ended before it was read"):
        pickle.loads(message)


def by_descriptor(pipe):
    """A reader that the system does not let into the worker."""
    message, file = pipe.recv()
    # Another process's number.
    try:
        tensors = _windrow._receive(message[:24] + (1 << 30).to_bytes(8, "little") + message[32:], file)
        pipe.send([float(tensor.sum()) for tensor in tensors])
    except RuntimeError as error:
        pipe.send(str(error))


@pytest.mark.parametrize("has_file", [True, False])
def test_a_reader_that_is_given_the_descriptor(as_worker, has_file):
    context = multiprocessing.get_context("spawn")
    mine, other = context.Pipe()
    process = context.Process(target=by_descriptor, args=(other,))
    process.start()
    pool = _workers.pool(None)
    tensor = pool.allocate([("float32", (100, 1000))])[0].torch().fill_(0.5)
    message = pool.message(tensor)
    mine.send((message.sent.take(), message.file if has_file else None))
    answer = mine.recv()
    process.join()
    if has_file:
        assert answer == [50_000.0] and _windrow._pool_file() is None
    else:
        assert "cannot be read: its memory is gone" in answer


def test_core_dumps_leave_pools_out(as_worker):
    _workers.pool(1 << 20)
    with open("/proc/self/smaps") as file:
        text = file.read()
    (flags,) = [part.partition("VmFlags:")[2].splitlines()[0] for part in text.split("/memfd:windrow-worker")[1:]]
    assert "dd" in flags.split()


# torch's thread that page-locks.


def test_the_thread_that_page_locks(monkeypatch):
    """The thread runs as torch runs it, but copies where there is no device to lock pages for."""
    from torch.utils.data._utils import pin_memory

    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, *device: self.clone())
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    source, target, done = queue.Queue(), queue.Queue(), threading.Event()
    thread = threading.Thread(target=pin_memory._pin_memory_loop, args=(source, target, 0, done, None), daemon=True)
    thread.start()
    for index, batch in enumerate(loader_of(512)):
        source.put((index, batch))
        del batch
    for index in range(64):
        number, batch = target.get(timeout=60)
        assert first_of(batch) == 8 * number and not in_pools(batch)
    done.set()
    thread.join()
