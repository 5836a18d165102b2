"""windrow.torch.Prefetcher: order, errors, ends; and its CUDA part on streams that lag behind."""

import contextlib
import contextvars
import gc
import os
import signal
import textwrap
import threading
import time
from collections import OrderedDict, UserList, deque, namedtuple

import pytest

import windrow as wr

torch = pytest.importorskip("torch")

import windrow.torch as wt  # noqa: E402
from test_torch_workers import Samples  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from windrow.torch import _transfer  # noqa: E402

import isolated

Pair = namedtuple("Pair", "left right")


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "windrow-prefetch"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    gc.collect()
    assert threads() == []


def prefetch(loader, **kwargs):
    return wt.Prefetcher(loader, min_bytes=0, **kwargs)


class Counted:
    """Batches 0, 1, ...; how many were taken; an error at the end."""

    def __init__(self, n, error=None):
        self.n, self.error, self.taken = n, error, 0

    def __len__(self):
        return self.n

    def __iter__(self):
        self.taken = 0
        for i in range(self.n):
            self.taken += 1
            yield torch.full((4,), i)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("depth", [1, 2, 7])
@pytest.mark.parametrize("n", [0, 1, 2, 20])
def test_all_batches_in_order_each_time(n, depth):
    loader = prefetch(Counted(n), depth=depth)
    assert len(loader) == n
    for _ in range(2):
        assert [batch[0].item() for batch in loader] == list(range(n))


def test_with_a_data_loader():
    samples = [{"x": torch.full((1 << 14,), i), "s": f"s{i}"} for i in range(12)]
    for workers in (0, 2):
        loader = DataLoader(Samples(samples), batch_size=3, num_workers=workers, collate_fn=wt.collate_fn())
        batches = list(prefetch(loader, device="cpu"))
        assert [batch["x"][:, 0].tolist() for batch in batches] == [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(4)]
        assert batches[3]["s"] == ["s9", "s10", "s11"]


def test_no_more_than_depth_batches_ahead():
    source = Counted(50)
    batches = iter(prefetch(source, depth=3))
    for used in range(1, 6):
        next(batches)
        deadline = time.monotonic() + 10
        while source.taken < used + 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
        assert source.taken == used + 3
    batches.close()


def test_no_batch_is_held_longer_than_it_is_used():
    import weakref

    class Item:
        pass

    alive = []

    def items():
        for _ in range(20):
            item = Item()
            alive.append(weakref.ref(item))
            yield item
            del item

    for item in prefetch(items(), depth=2):
        del item
        # Two ahead, and the one that the generator above is making.
        assert sum(ref() is not None for ref in alive) <= 3


def test_small_batches_go_without_a_thread():
    loader = wt.Prefetcher(Counted(5))
    for index, batch in enumerate(loader):
        assert batch[0].item() == index and threads() == []


def test_large_batches_go_with_one():
    seen = 0
    for _ in wt.Prefetcher([torch.zeros(1 << 20)] * 3):
        seen += len(threads())
    assert seen >= 1


def test_an_error_comes_in_its_place_with_its_traceback():
    seen = []
    with pytest.raises(KeyError, match="beyond") as error:
        for batch in prefetch(Counted(5, KeyError("beyond")), depth=4):
            seen.append(batch[0].item())
    assert seen == [0, 1, 2, 3, 4]
    assert any(entry.name == "__iter__" and "prefetch" in str(entry.path) for entry in error.traceback)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_worker_has_its_traceback(workers):
    samples = [torch.ones(2)] * 4 + [torch.ones(3)] * 2 + [torch.ones(2), torch.ones(3)]
    loader = DataLoader(Samples(samples), batch_size=2, num_workers=workers, collate_fn=wt.collate_fn())
    seen = []
    with pytest.raises(RuntimeError, match="stack expects each tensor") as error:
        for batch in prefetch(loader):
            seen.append(batch.shape)
    assert len(seen) == 3
    if workers:
        assert "worker process 0" in str(error.value) and "sample 1" in str(error.value)


def test_an_error_of_the_first_batch():
    with pytest.raises(KeyError):
        list(prefetch(Counted(0, KeyError("first"))))


def test_leaving_the_loop_ends_the_thread():
    for _ in prefetch(Counted(100)):
        break
    assert threads() == []


def test_an_error_in_the_loop_ends_the_thread():
    for kind in (ValueError, KeyboardInterrupt):
        with pytest.raises(kind):
            for _ in prefetch(Counted(100)):
                raise kind
        assert threads() == []


def test_collecting_the_iterator_ends_the_thread():
    batches = iter(prefetch(Counted(100)))
    next(batches)
    loop = [batches]
    loop.append(loop)
    del batches, loop
    gc.collect()
    assert threads() == []


def test_a_worker_that_dies():
    class Dying(Samples):
        def __getitem__(self, index):
            if index == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(index)

    loader = DataLoader(Dying([torch.ones(2)] * 8), batch_size=2, num_workers=1)
    with pytest.raises(RuntimeError, match="exited unexpectedly|killed by signal"):
        list(prefetch(loader))


SCRIPT = """
    import os, signal, threading, time
    import torch, windrow.torch
    def batches():
        for i in range(10**9):
            yield torch.zeros(4)
    {body}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "body, code",
    [
        ("it = iter(windrow.torch.Prefetcher(batches(), min_bytes=0)); next(it); next(it)", 0),
        (
            "threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
            "    for _ in windrow.torch.Prefetcher(batches(), min_bytes=0): time.sleep(0.001)",
            -signal.SIGINT,
        ),
        (
            # The thread waits for a batch.
            "def slow():\n"
            "        yield torch.zeros(4)\n"
            "        time.sleep(1.0)\n"
            "        yield torch.zeros(4)\n"
            "    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
            "    for _ in windrow.torch.Prefetcher(slow(), min_bytes=0): pass",
            -signal.SIGINT,
        ),
    ],
    ids=["exit", "interrupt", "interrupt while waiting"],
)
def test_the_interpreter_ends(body, code):
    script = textwrap.dedent(SCRIPT).replace("{body}", textwrap.dedent("    " + body))
    done = isolated.python("-c", script)
    assert done.returncode == code, done.stderr
    assert "Fatal" not in done.stderr
    assert code == 0 or "KeyboardInterrupt" in done.stderr


def test_arguments():
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        wt.Prefetcher([], depth=0)
    with pytest.raises(ValueError, match="'meta'"):
        list(wt.Prefetcher([], device="meta"))
    with pytest.raises(ValueError, match="device must be None, 'cpu' or a CUDA device, got 'pinned'"):
        list(wt.Prefetcher([], device="pinned"))
    if not torch.cuda.is_available():
        with pytest.raises(wr.CudaUnavailable, match="torch sees no CUDA device"):
            list(wt.Prefetcher([], device="cuda"))


# The CUDA part, on a stand-in whose copies are done when they are waited for.


class Stream:
    def __init__(self, device=None):
        self.work, self.waited = [], []

    def wait_event(self, event):
        self.waited.append(event)
        event.synchronize()


class Event:
    def record(self, stream):
        self.stream, self.position = stream, len(stream.work)

    def synchronize(self):
        for position in range(self.position):
            work, self.stream.work[position] = self.stream.work[position], None
            if work is not None:
                work()


class Cuda:
    """The part of torch.cuda that is used."""

    Stream, Event = Stream, Event

    def __init__(self):
        self.consumer = Stream()
        self.inside = None

    def stream(self, stream):
        self.inside = stream
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.inside = None

    def current_stream(self, device):
        return self.consumer


class Lagging(_transfer.CudaTransfer):
    def __init__(self, depth, pinned=()):
        super().__init__(torch.device("cuda", 0), depth, Cuda())
        self.pinned, self.recorded, self.staged = [id(tensor) for tensor in pinned], [], 0

    def _pinned(self, nbytes):
        self.staged += 1
        return torch.full((nbytes,), 0xA5, dtype=torch.uint8)

    def _is_pinned(self, tensor):
        return id(tensor) in self.pinned

    def _upload(self, source):
        assert self._cuda.inside is self._stream
        copy = torch.full_like(source, 77)
        self._stream.work.append(lambda: copy.copy_(source))
        return copy

    def _record(self, tensor, stream):
        self.recorded.append((tensor, stream))


def large(i, dtype=torch.float32):
    return torch.arange(40_000).add(i).to(dtype)


def test_batches_are_whole_whenever_the_copies_are_done(monkeypatch):
    transfer = Lagging(3)
    monkeypatch.setattr(wt.Prefetcher, "_transfer", lambda self: transfer)
    source = [{"x": large(i), "y": (torch.tensor([i]), large(i, torch.float16)), "s": "s"} for i in range(12)]
    for i, batch in enumerate(prefetch(source, depth=2)):
        assert torch.equal(batch["x"], large(i)) and torch.equal(batch["y"][1], large(i, torch.float16))
        assert batch["y"][0].item() == i and batch["s"] == "s" and type(batch["y"]) is tuple
    assert i == 11


def test_a_slot_is_not_written_to_before_its_copies_are_done():
    transfer = Lagging(2)
    started = [transfer.start(large(i)) for i in range(5)]
    # The transfer alone has waited; the last two may be under way.
    assert [torch.equal(one.tree, large(i)) for i, one in enumerate(started)] == [True, True, True, False, False]
    for i, one in enumerate(started):
        assert torch.equal(transfer.finish(one), large(i))


def test_a_slot_is_kept_for_copies_before_an_error():
    transfer, upload = Lagging(1), Lagging._upload
    copies = []

    def fail(source):
        if copies:
            raise torch.cuda.OutOfMemoryError("no room")
        copies.append(upload(transfer, source))
        return copies[0]

    transfer._upload = fail
    with pytest.raises(torch.cuda.OutOfMemoryError):
        transfer.start([large(1), large(2)])
    transfer._upload = lambda source: upload(transfer, source)
    transfer.start([large(3), large(4)])
    assert torch.equal(copies[0], large(1))


def test_slots_are_used_again():
    transfer = Lagging(2)
    for i in range(20):
        transfer.finish(transfer.start({"x": large(i), "y": large(i)}))
    assert transfer.staged == 2


def test_the_consumers_stream_waits_and_is_made_known():
    transfer = Lagging(2)
    started = transfer.start({"x": large(0), "y": torch.ones(2)})
    assert transfer._cuda.consumer.waited == []
    tree = transfer.finish(started)
    assert transfer._cuda.consumer.waited == [started.event]
    assert {id(tensor) for tensor, _ in transfer.recorded} == {id(tree["x"]), id(tree["y"])}
    assert all(stream is transfer._cuda.consumer for _, stream in transfer.recorded)


def test_pinned_and_small_tensors_are_not_staged():
    pinned = large(3)
    transfer = Lagging(2, [pinned])
    tree = transfer.finish(transfer.start([pinned, torch.ones(3)]))
    assert transfer.staged == 0
    assert torch.equal(tree[0], pinned) and torch.equal(tree[1], torch.ones(3))


@pytest.mark.parametrize(
    "make, num_parts",
    [
        (lambda: large(0).reshape(200, 200).t(), 1),
        (lambda: large(0).expand(2, -1), 1),
        (lambda: large(0, torch.complex64).conj(), 1),
        (lambda: torch.eye(200).to_sparse(), 2),
        (lambda: torch.eye(200).to_sparse_csr(), 3),
        (lambda: torch.eye(200).to_sparse_bsc((2, 2)), 3),
        (lambda: torch.nested.nested_tensor([large(0), torch.ones(2)]), 1),
        (lambda: torch.nested.nested_tensor([large(0), torch.ones(2)], layout=torch.jagged), 2),
    ],
    ids=["transposed", "expanded", "conjugated", "sparse", "csr", "bsc", "nested", "jagged"],
)
def test_other_layouts_are_left_to_torch(make, num_parts):
    tensor, transfer = make(), Lagging(1)
    transfer._upload = lambda source: source
    started = transfer.start(tensor)
    assert started.tree is tensor and transfer.staged == 0
    # The allocator knows dense tensors alone.
    assert transfer.finish(started) is tensor and len(transfer.recorded) == num_parts
    assert all(part.layout == torch.strided and not part.is_nested for part, _ in transfer.recorded)


def small_tree(seed, num_leaves=40):
    return {f"leaf{i}": (torch.arange(4, dtype=torch.int32).add(100 * seed + i), {"s": i}) for i in range(num_leaves)}


def counting(transfer):
    """The bytes of each copy that is made from now on."""
    copies, upload = [], transfer._upload
    transfer._upload = lambda source: (copies.append(source.numel() * source.element_size()), upload(source))[1]
    return copies


@pytest.mark.parametrize("pinned", [False, True])
def test_a_tree_of_small_tensors_is_one_copy(pinned):
    trees = [small_tree(seed) for seed in range(6)]
    transfer = Lagging(2, _transfer.tensors_of(trees) if pinned else ())
    copies = counting(transfer)
    for tree in trees:
        tree["large"], tree["scalar"] = large(1), torch.tensor(7.5, dtype=torch.float64)
        started = transfer.start(tree)
        assert len(started.tensors) == 2
        moved = transfer.finish(started)
        for name, (tensor, rest) in (item for item in tree.items() if item[0].startswith("leaf")):
            assert torch.equal(moved[name][0], tensor) and moved[name][1] == rest
        assert torch.equal(moved["large"], large(1)) and moved["scalar"].item() == 7.5
    assert copies == 6 * [41 * 256, 160_000] and transfer.staged == 2


def test_a_prefetcher_copies_a_tree_of_small_tensors_once(monkeypatch):
    transfer = Lagging(3)
    copies = counting(transfer)
    monkeypatch.setattr(wt.Prefetcher, "_transfer", lambda self: transfer)
    for seed, batch in enumerate(prefetch([small_tree(seed) for seed in range(5)], depth=2)):
        assert all(torch.equal(batch[name][0], leaf[0]) for name, leaf in small_tree(seed).items())
    assert copies == 5 * [40 * 256] and transfer.staged == 3


def test_one_tensor_in_two_places():
    tensor = large(1)
    transfer = Lagging(1)
    tree = transfer.finish(transfer.start([tensor, tensor]))
    assert torch.equal(tree[0], tensor) and torch.equal(tree[1], tensor)


def test_containers_keep_their_type():
    batch = Pair(OrderedDict(a=[large(0)]), (1, None, wt.TorchBatch(large(1), max_length=3)))
    transfer = Lagging(1)
    moved = transfer.finish(transfer.start(batch))
    assert type(moved) is Pair and type(moved.left) is OrderedDict and type(moved.right[2]) is wt.TorchBatch
    assert moved.right[2].max_length == 3 and torch.equal(moved.right[2].data, large(1))


def test_on_a_gpu():
    if not torch.cuda.is_available():
        if os.environ.get("WINDROW_REQUIRE_GPU") == "1" and "WINDROW_CUDA_DRIVER" not in os.environ:
            pytest.fail("WINDROW_REQUIRE_GPU=1, and torch sees no device")
        pytest.skip("SKIP: torch sees no CUDA device")
    source = [{"x": large(i)} for i in range(20)]
    for i, batch in enumerate(prefetch(source, device="cuda")):
        # Releases the memory while work on it is enqueued.
        total = batch["x"].clone()
        for _ in range(50):
            total = total + batch["x"] - batch["x"]
        del batch
        assert torch.equal(total.cpu(), large(i))


def test_containers_of_libraries():
    rows = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    moved = _transfer.map_tensors(rows, lambda tensor: tensor + 1)
    assert type(moved) is type(rows) and moved.batch_sizes is rows.batch_sizes and moved.data.tolist() == [2] * 5
    for cls in (deque, UserList):
        tree = cls([torch.ones(1), "a"])
        moved = _transfer.map_tensors(tree, lambda tensor: tensor + 1)
        assert type(moved) is cls and moved[0].item() == 2 and moved[1] == "a" and tree[0].item() == 1


class Threads(torch.utils.data.Dataset):
    """Notes the thread that makes each of three samples."""

    def __init__(self):
        self.made = []

    def __len__(self):
        return 3

    def __getitem__(self, index):
        self.made.append(threading.get_ident())
        return torch.ones(4)


@pytest.mark.parametrize("min_bytes", [0, 1])
def test_the_threads_that_run_a_data_set(min_bytes):
    data = Threads()
    list(wt.Prefetcher(DataLoader(data), min_bytes=min_bytes))
    here = [thread == threading.get_ident() for thread in data.made]
    assert here == [min_bytes > 0, False, False] and len(set(data.made[1:])) == 1


def test_the_thread_has_the_devices_of_the_loop(monkeypatch):
    entered = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext(entered.append((index, threading.current_thread().name))))
    with torch.device("meta"):
        batches = wt.Prefetcher((torch.ones(4) for _ in range(3)), min_bytes=0)
        assert [str(batch.device) for batch in batches] == ["meta"] * 3
    assert entered == [(3, "windrow-prefetch")]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16)])
def test_the_thread_has_the_modes_of_the_loop(mode):
    class Rows(torch.utils.data.Dataset):
        layer, seen = torch.nn.Linear(4, 4), contextvars.ContextVar("seen", default=0)

        def __len__(self):
            return 6

        def __getitem__(self, index):
            return self.layer(torch.ones(4)) * self.seen.get()

    Rows.seen.set(1)
    with mode():
        loader = DataLoader(Rows(), 2, collate_fn=torch.stack)
        states = [(batch.requires_grad, batch.is_inference(), batch.dtype) for batch in wt.Prefetcher(loader, min_bytes=0)]
        want = [(batch.requires_grad, batch.is_inference(), batch.dtype) for batch in loader]
    assert states == want and len(set(states)) == 1
    assert all(batch.any() for batch in wt.Prefetcher(loader, min_bytes=0))
