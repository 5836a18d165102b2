"""Memory, threads, descriptors and shared memory that run out. A typed error, nothing leaked, and the next call right.

WINDROW_HUGE=1 adds what takes minutes and gigabytes."""

import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import isolated
import windrow as wr
from helpers import assert_tensor, broadcast, paint, refusal, settle

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="SKIP: limits are set as Linux has them")]

huge = pytest.mark.skipif(os.environ.get("WINDROW_HUGE") != "1", reason="SKIP: minutes and gigabytes; WINDROW_HUGE=1 runs it")

LIMITS = """
import resource
def mapped():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[0]) * resource.getpagesize()
def leave(nbytes):
    "Leaves so much of the address space."
    resource.setrlimit(resource.RLIMIT_AS, (mapped() + nbytes, resource.RLIM_INFINITY))
def free():
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
def descriptors():
    return len(os.listdir("/proc/self/fd"))
"""


# address space

ADDRESS_SPACE = """
rows = [paint(1 << 20, seed=i) for i in range(8)] * 12
trees = [{"x": row, "y": i} for i, row in enumerate(rows)]
wr.stack(rows[:2])  # starts the threads
calls = {
    "stack": lambda: wr.stack(rows),
    "cast": lambda: wr.stack(rows, dtype="float32"),
    "concat": lambda: wr.concat(rows),
    "pad": lambda: wr.pad([*rows, rows[0][:5]], mask="real"),
    "ragged": lambda: wr.ragged(rows, batch_index=True),
    "collate": lambda: wr.collate(trees),
    "producers": lambda: wr.stack([Producer(row) for row in rows]),
    "copy": lambda: whole.__dlpack__(copy=True),
}
whole = wr.stack(rows)
wr.empty_cache()
used = wr.stats()["pool_used_bytes"]
for name, call in calls.items():
    wr.empty_cache()  # a free block needs no address space
    leave(24 << 20)
    try:
        call()
    except MemoryError as error:
        assert "could not allocate" in str(error), error
        small = wr.stack(rows[:4])
    else:
        raise AssertionError(name)
    finally:
        free()
    assert (small.numpy() == np.stack(rows[:4])).all(), name
    del small
    settle()
    wr.empty_cache()
    stats = wr.stats()
    assert stats["pool_used_bytes"] == used and stats["pool_bytes"] == 0, (name, stats)
    again = call()
    del again
assert_tensor(wr.stack(rows), np.stack(rows))
"""


def test_no_address_space_left():
    isolated.run(LIMITS + ADDRESS_SPACE)


MANY = """
row = np.zeros(1, np.uint32)
samples = [row] * 1_000_000
lengths = [row[:0], row] * 500_000
wr.stack(samples[:300_000])
before = wr.stats()["pool_used_bytes"]
refused = 0
for call in (
    lambda: wr.stack(samples),
    lambda: wr.concat(samples),
    lambda: wr.ragged(lengths, batch_index=True),
    lambda: wr.pad(lengths, mask="real"),
    lambda: wr.SampleList(samples),
    lambda: wr.stack(samples, dtype="float64"),
):
    for room in range(4, 160, 26):
        wr.empty_cache()
        leave(room << 20)
        try:
            call()
        except MemoryError:
            refused += 1
        finally:
            free()
    assert wr.stats()["pool_used_bytes"] == before
assert refused > 6, refused
assert (wr.stack(samples).numpy() == 0).all()
"""


def test_no_address_space_for_the_tables_of_long_lists():
    """The tables are as large as the batch, where samples are a few bytes. Rust's own lists would end the process."""
    isolated.run(LIMITS + MANY, timeout=300)


LONG_LISTS = """
import copy, pickle
from windrow import plan, sequence
name = sys.argv[1]
N = 200_000
x = np.ones(1, np.float32)
rows, trees = [x] * N, [{"a": x, "b": 1.5, "s": "t"}] * N  # each one object
if "distinct" in name:
    rows = [np.ones(1, np.float32) for _ in rows]
if "torch" in name:
    import torch
    rows = [torch.ones(1) for _ in rows]
offsets, values = np.arange(N + 1), np.ones(N, np.float32)
lengths = [np.broadcast_to(x, (2 + i,)) for i in range(N)] if "of all lengths" in name else rows
samples, ragged = wr.SampleList(lengths), wr.ragged(rows, batch_index=True)
mixed = wr.SampleList([x, x[:0]] * (N // 2))
if "producers" in name:
    made = [Producer(x) for x in rows]
few = lambda: wr.SampleList(rows[:3])
same = lambda: samples
pairs = [[1, 2], [3]] * (N // 2)
tokens, arrays = [{"input_ids": pair} for pair in pairs], [{"input_ids": np.array(pair)} for pair in pairs[:2]] * (N // 2)
images, boxes = [np.ones((2, 2), np.float32)] * N, np.tile([0, 0, 1, 2], (N, 1))
three = np.arange(N) % 3
packed = plan.pack(np.tile([2, 1], N // 2), 8)
calls = {
    "collate": (same, lambda own: wr.collate(trees)),
    "pickle": (same, lambda own: pickle.dumps(ragged, 5)),
    "pickle 4": (same, lambda own: pickle.dumps(ragged, 4)),
    "deepcopy": (same, lambda own: copy.deepcopy(ragged)),
    "take": (same, lambda own: own.take(offsets[:-1])),
    "take of two shapes": (same, lambda own: mixed.take(offsets[:-1])),
    "take of distinct arrays": (same, lambda own: own.take(offsets[:-1])),
    "split": (same, lambda own: wr.SampleList.split(values, offsets)),
    "split into pieces of all lengths": (same, lambda own: wr.SampleList.split(np.broadcast_to(x, (N * N,)), offsets * (offsets - 1) // 2)),
    "iter": (same, lambda own: iter(ragged)),
    "list": (same, lambda own: wr.SampleList(rows)),
    "list of torch tensors": (same, lambda own: wr.SampleList(rows)),
    "list of all lengths": (same, lambda own: wr.SampleList(lengths)),
    "list of numbers": (same, lambda own: wr.SampleList([1.5] * N)),
    "list of lists": (same, lambda own: wr.SampleList([[1.5, 2]] * N)),
    "list of producers": (same, lambda own: wr.SampleList(made)),
    "list of its own samples": (same, lambda own: wr.SampleList([own[0]] * N)),
    "extend by a list": (few, lambda own: own.extend(rows)),
    "extend by another list": (few, lambda own: own.extend(samples)),
    "extend by itself": (lambda: wr.SampleList(rows), lambda own: own.extend(own)),
    "extend by its own samples": (few, lambda own: own.extend([own[0], own[1]] * (N // 2))),
    "extend by what was taken": (few, lambda own: own.extend(samples.take(offsets[:-1:2]))),
    "extend by all lengths": (few, lambda own: own.extend(samples)),
    "extend two shapes": (lambda: wr.SampleList([x, x[:0]]), lambda own: own.extend(mixed)),
    "extend what is shared": (lambda: wr.SampleList(samples), lambda own: own.extend(rows[:5])),
    "extend what is shared, of all lengths": (lambda: wr.SampleList(samples), lambda own: own.extend([x[:0], x, x[None]])),
    "extend rows of a table": (lambda: wr.SampleList(values[:, None]), lambda own: own.append(x)),
    "extend what was taken": (lambda: samples.take(offsets[:-1]), lambda own: own.extend(rows)),
    "extend by distinct arrays": (few, lambda own: own.extend(rows)),
    "extend distinct arrays by themselves": (lambda: wr.SampleList(rows), lambda own: own.extend(own)),
    "extend by distinct arrays that were taken": (few, lambda own: own.extend(samples.take(offsets[:-1:2]))),
    "extend distinct arrays that are shared": (lambda: wr.SampleList(samples), lambda own: own.append(x)),
    "replace in what is shared": (lambda: wr.SampleList(samples), lambda own: own.__setitem__(5, x)),
    "replace a row of a table": (lambda: wr.SampleList(values[:, None]), lambda own: own.__setitem__(5, x)),
    "replace by another shape": (lambda: wr.SampleList(samples), lambda own: own.__setitem__(5, x[:0])),
    "slice": (same, lambda own: own[::-1]),
    "copy of distinct arrays": (same, copy.copy),
    "stack by indices": (same, lambda own: own.stack(offsets[:-1])),
    "pad of lists": (same, lambda own: wr.pad(pairs, mask="real")),
    "ragged of lists": (same, lambda own: wr.ragged(pairs, batch_index=True)),
    "pad_tokens": (same, lambda own: sequence.pad_tokens(tokens, pad_token_id=0, return_tensors="np")),
    "pad_tokens of arrays": (same, lambda own: sequence.pad_tokens(arrays, pad_token_id=0, return_tensors="np")),
    "pack_tokens": (same, lambda own: sequence.pack_tokens(tokens, return_seq_idx=True, return_tensors="np")),
    "pack_tokens of arrays": (same, lambda own: sequence.pack_tokens(arrays, return_tensors="np")),
    "pack_rows": (same, lambda own: sequence.pack_rows(pairs, packed, return_tensors="np")),
    "windows": (same, lambda own: wr.windows(values, offsets[:-1], 1)),
    "crops": (same, lambda own: wr.crops(images, boxes, flip=boxes[:, 0] == 0)),
    "plan.pack": (same, lambda own: plan.pack(three, 8)),
    "plan.pack, best fit": (same, lambda own: plan.pack(three, 8, "best_fit_decreasing")),
    "plan.pack, in order": (same, lambda own: plan.pack(three, 8, "in_order", 2)),
    "plan.token_budget": (same, lambda own: plan.token_budget(three, 8)),
    "plan.buckets": (same, lambda own: plan.buckets(three, 2, boundaries=[1, 2], seed=1)),
    "plan.balance": (same, lambda own: plan.balance(three, N // 2, seed=1)),
}
make, call = calls[name]
wr.stack(rows[:10])
refused = 0
for kib in (100, 400, 1000, 2000, 4000, 8000, 16000, 64000):
    gc.collect()
    wr.empty_cache()
    own = make()
    before = len(own)
    leave(kib << 10)
    try:
        call(own)
        error = None
    except MemoryError as caught:
        error = caught
        del caught
    finally:
        free()
    if error:
        refused += 1
        assert len(own) == before and (wr.stack(own.take([0] * 3)).numpy() == 1).all()
    del error
assert refused
call(make())
assert (wr.stack(rows[:3]).numpy() == 1).all()
"""


@pytest.mark.parametrize("call", re.findall(r'^    "(.*?)": \(', LONG_LISTS, re.M))
def test_no_address_space_is_a_memory_error(call):
    if "torch" in call:
        pytest.importorskip("torch")
    # Each long list in a mapping of its own, and none in memory that was freed before.
    isolated.run(LIMITS + LONG_LISTS, call, env={"MALLOC_MMAP_THRESHOLD_": "131072"})


# threads

THREADS = """
import ctypes
rows = [paint(1 << 20, seed=i) for i in range(8)]
small = rows[0][:100]
resource.setrlimit(resource.RLIMIT_NPROC, (0, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
os.setresuid(65534, 65534, 0)
engine = wr.Engine(threads=4)
for _ in range(3):
    try:
        wr.stack(rows, engine=engine)
    except ValueError as error:
        assert "cannot start 3 threads" in str(error) and "one thread" in str(error), error
    else:
        raise AssertionError("threads were started")
    assert_tensor(wr.stack([small], engine=engine), small[None])
    one = wr.Engine(threads=1)
    assert_tensor(wr.stack(rows, engine=one), np.stack(rows))
    settle()
    assert engine.stats()["pool_used_bytes"] == 0
os.setresuid(0, 0, 0)
assert_tensor(wr.stack(rows, engine=engine), np.stack(rows))
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="SKIP: only root can become a user with a limit of threads")
def test_no_threads_left():
    isolated.run(LIMITS + THREADS)


# descriptors and shared memory

DESCRIPTORS = """
import torch, windrow.torch
from windrow.torch import _shared
torch.multiprocessing.set_sharing_strategy("file_descriptor")
leaves = [("uint8", (1 << 17,)) for _ in range(8)]
_shared.share(leaves)
settle()
before = descriptors()
resource.setrlimit(resource.RLIMIT_NOFILE, (before + 20, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
kept = []
try:
    while True:
        kept.append(_shared.share(leaves))
except RuntimeError as error:
    assert "Too many open files" in str(error) or "unable to" in str(error), error
assert 1 <= len(kept) < 20, len(kept)
del kept
gc.collect()
assert descriptors() == before, (descriptors(), before)
assert [t.shape for t in _shared.share(leaves)] == [(1 << 17,)] * 8
rows = [paint(1 << 18, seed=i) for i in range(8)]
assert_tensor(wr.stack(rows), np.stack(rows))
"""


def test_no_descriptors_left(torch):
    isolated.run(LIMITS + DESCRIPTORS)


LOADER = """
import torch, windrow.torch
class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 512
    def __getitem__(self, i):
        return {"x": torch.full((1 << 15,), i % 251, dtype=torch.uint8), "y": i}
if __name__ == "__main__":
    torch.multiprocessing.set_sharing_strategy("file_descriptor")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    loader = torch.utils.data.DataLoader(Images(), 4, num_workers=2, collate_fn=windrow.torch.collate_fn())
    before, segments = descriptors(), len(os.listdir("/dev/shm"))
    seen = 0
    for batch in loader:
        assert (batch["x"] == (batch["y"] % 251)[:, None]).all()
        seen += len(batch["y"])
    assert seen == 512
    del batch
    gc.collect()
    assert descriptors() <= before + 8, (descriptors(), before)
    assert len(os.listdir("/dev/shm")) <= segments
"""


@pytest.mark.alone
def test_a_loader_with_1024_descriptors(torch):
    isolated.run(LIMITS + LOADER, timeout=300)


def in_small_shm(script, tmp_path):
    """Runs a script where /dev/shm holds 2 MiB."""
    mount = "mount -t tmpfs -o size=2m tmpfs /dev/shm"
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--mount", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("SKIP: this needs a mount namespace of its own (unshare --mount, as root)")
    path = tmp_path / "small_shm.py"
    path.write_text(isolated.PRELUDE + LIMITS + script)
    isolated.run(
        "import subprocess\n"
        "done = subprocess.run(['unshare', '--mount', 'sh', '-c', sys.argv[1] + ' && exec \"$0\" \"$1\"', sys.executable, sys.argv[2]])\n"
        "sys.exit(done.returncode)",
        mount,
        path,
        timeout=300,
    )


def test_no_shared_memory_for_torch(torch, tmp_path):
    script = """
import torch, windrow.torch
from windrow.torch import _shared
class Rows(torch.utils.data.Dataset):
    size = 1 << 20
    def __len__(self):
        return 12
    def __getitem__(self, i):
        return np.full(self.size, i, np.uint8)
if __name__ == "__main__":
    # torch leaves the empty file of an allocation that failed; what counts is that no memory stays.
    room = lambda: os.statvfs("/dev/shm").f_bavail
    whole = room()
    try:
        _shared.share([("uint8", (1 << 20,)), ("uint8", (4 << 20,))])
    except RuntimeError as error:
        assert "No space left" in str(error), error
    gc.collect()
    assert room() == whole
    def loader_of(**options):
        return torch.utils.data.DataLoader(Rows(), 4, num_workers=1, collate_fn=windrow.torch.collate_fn(**options))
    # Pools are elsewhere.
    for index, batch in enumerate(loader_of()):
        assert (batch == torch.arange(4 * index, 4 * index + 4, dtype=torch.uint8)[:, None]).all()
    del batch
    loader = loader_of(workers_memory=0)
    try:
        list(loader)
    except RuntimeError as error:
        assert "No space left" in str(error), error
    else:
        raise AssertionError("4 MiB in 2 MiB")
    del loader
    gc.collect()
    # A page for each semaphore of a queue may be left, where nothing counts references at once.
    assert room() > whole - 64
    Rows.size = 1000
    for batch in loader_of(workers_memory=0):
        assert (batch == batch[:, :1]).all()
"""
    in_small_shm(script, tmp_path)


def test_no_shared_memory_for_grain(tmp_path):
    pytest.importorskip("jax", reason="SKIP: jax is not installed")
    pytest.importorskip("grain", reason="SKIP: grain is not installed")
    script = """
import windrow.jax.grain
make = windrow.jax.grain.BatchFn()
make.enable_shared_memory_output()
segments = lambda: sorted(os.listdir("/dev/shm"))
before, open_before = segments(), None
for _ in range(3):
    try:
        make([{"a": np.zeros(1000, np.uint8), "b": np.full(1 << 20, i, np.uint8)} for i in range(4)])
    except OSError as error:
        assert error.errno == 28, error
    else:
        raise AssertionError("4 MiB in 2 MiB")
    gc.collect()
    assert segments() == before, segments()
    open_before = open_before or descriptors()
    assert descriptors() == open_before
batch = make([{"a": np.full(1000, i, np.uint8)} for i in range(4)])
assert (np.asarray(batch["a"]) == np.arange(4)[:, None]).all()
batch["a"].unlink_on_del()
"""
    in_small_shm(script, tmp_path)


# devices


@pytest.mark.simulated("which fails when told to")
def test_no_pinned_or_device_memory(sim):
    """The driver says that there is none, at each call in turn that allocates."""
    rows = [paint(1 << 16, seed=i) for i in range(4)]
    for device in ("cuda", "pinned"):
        assert_tensor_on(device, wr.stack(rows, device=device), rows)
        settle()
        wr.empty_cache()
        before = wr.stats()
        for nth in (1, 2):  # the second after what lay unused was given back
            sim.fail({"cuda": "cuMemAllocFromPoolAsync", "pinned": "cuMemHostAlloc"}[device], 2, nth)
        refusal(lambda: wr.stack(rows, device=device), MemoryError, "could not allocate")
        settle()
        after = wr.stats()
        for key in ("pool_used_bytes", "device_bytes", "pinned_used_bytes", "batches"):
            assert after[key] == before[key] + (key == "batches" and 1), key
        assert_tensor_on(device, wr.stack(rows, device=device), rows)


def assert_tensor_on(device, batch, rows):
    assert batch.device.startswith(device)
    assert_tensor(wr.stack([batch], device="cpu"), np.stack(rows)[None])


# the largest


@huge
def test_ten_million_samples_of_four_bytes():
    """Prints the memory beside the output."""
    script = """
def peak():
    with open("/proc/self/status") as f:
        return int(next(line for line in f if line.startswith("VmHWM")).split()[1]) << 10
def reset_peak():
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")
import helpers
N = 10_000_000
values = np.arange(N, dtype=np.uint32)
rows = list(values.reshape(N, 1))
table = wr.SampleList(rows)
order = np.random.default_rng(0).permutation(N)
for name, call, want in (
    ("stack", lambda: wr.stack(rows), values[:, None]),
    ("stack of a SampleList", lambda: wr.stack(table), values[:, None]),
    ("stack of take", lambda: wr.stack(table.take(order)), values[order][:, None]),
    ("stack of rows", lambda: wr.stack(values.reshape(N, 1)), values[:, None]),
    ("concat", lambda: wr.concat(rows), values),
    ("ragged", lambda: wr.ragged(rows, batch_index=True), values),
    ("pad", lambda: wr.pad(rows, mask="real", dims=0), values[:, None]),
    ("cast", lambda: wr.stack(rows, dtype="float32"), values[:, None].astype(np.float32)),
):
    wr.empty_cache()
    gc.collect()
    reset_peak()
    before, begun = helpers.rss_bytes(), time.perf_counter()
    batch = call()
    took = time.perf_counter() - begun
    outputs = sum(t.nbytes for t in (batch.data, batch.lengths, batch.offsets, batch.mask, batch.batch_index) if t is not None)
    beside = (peak() - before - outputs) / N
    print(f"{name}: {took:.2f} s, outputs {outputs / N:.1f} bytes a sample, beside them {beside:.1f}")
    assert (batch.numpy() == want).all(), name
    assert beside < 120, (name, beside)
    del batch
"""
    print(isolated.run(script, timeout=1200))


@huge
def test_two_batches_of_more_than_four_gigabytes():
    row = np.arange(1 << 20, dtype=np.uint32)
    batch = wr.stack([row] * 1100)
    array = batch.numpy()
    assert array.nbytes > 1 << 32 and (array[::137] == row).all() and (array[-1] == row).all()
    del batch, array
    wide = wr.stack([broadcast(1 << 30)] * 5, out=None)
    assert wide.shape == (5, 1 << 30) and not wide.numpy()[:, :: 1 << 20].any()
