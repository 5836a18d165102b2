"""One engine and the same objects in many threads. The last word is the free-threaded interpreter's:
with a lock around the interpreter a short switch interval has to do."""

import gc
import random
import sys
import sysconfig
import threading
import time
from collections import Counter

import numpy as np
import pytest

import windrow as wr
import isolated
from helpers import assert_tensor, memory, paint

THREADS = 16
SECONDS = 1.0
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


@pytest.fixture(autouse=True)
def short_switches():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def together(*works, threads=THREADS, seconds=SECONDS):
    """Calls `works`, dealt out to the threads, again and again; raises what any of them raised. A work is called
    with a source of random numbers, at least once and from all threads at the same time."""
    errors, barrier = [], threading.Barrier(threads)
    end = time.monotonic() + seconds

    def run(number):
        rng = random.Random(number)
        work = works[number % len(works)]
        try:
            barrier.wait(60)
            while True:
                work(rng)
                if errors or time.monotonic() > end:
                    return
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def numpy_of(batch):
    return np.asarray(memoryview(batch))


# One engine


@pytest.mark.parametrize("engine", [None, wr.Engine(threads=2), wr.Engine(threads=1, pool_bytes=0)], ids=["default", "two", "no pool"])
def test_every_form_on_one_engine(engine):
    images = [paint((64, 33), "uint8", i) for i in range(12)]
    rows = [paint(5 + 37 * i, "int32", i) for i in range(12)]
    stacked, joined = np.stack(images), np.concatenate(rows)
    padded = np.full((12, len(rows[-1])), -7, np.int32)
    for row, out in zip(rows, padded):
        out[: len(row)] = row
    lengths = np.array([len(row) for row in rows])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    kept = wr.SampleList(images)
    trees = [{"image": image, "more": (row, i)} for i, (image, row) in enumerate(zip(images, rows))]
    spec = {"more.0": wr.Ragged()}

    def stack(rng):
        order = [rng.randrange(12) for _ in range(rng.randrange(1, 40))]
        assert_tensor(wr.stack(kept.take(order), engine=engine), stacked[order])
        assert_tensor(wr.stack([images[i] for i in order], dtype="float32", engine=engine), stacked[order].astype(np.float32))

    def pad(rng):
        batch = wr.pad(rows, value=-7, mask="real", engine=engine)
        assert_tensor(batch, padded)
        assert_tensor(batch.lengths, lengths)
        assert_tensor(batch.mask, np.arange(padded.shape[1]) < lengths[:, None])

    def ragged(rng):
        batch = wr.ragged(rows, engine=engine)
        assert_tensor(batch, joined)
        assert_tensor(batch.offsets, offsets)
        for row, view in zip(rows, batch):
            assert_tensor(view, row)
        out = np.full_like(joined, -1)
        wr.concat(rows, out=out, engine=engine)
        assert (out == joined).all()

    def collate(rng):
        tree = wr.collate(trees, spec, engine=engine)
        assert_tensor(tree["image"], stacked)
        assert_tensor(tree["more"][0], joined)
        assert_tensor(tree["more"][1], np.arange(12))

    def refuse(rng):
        bad = rng.randrange(1, 12)
        with pytest.raises(wr.ShapeError) as info:
            wr.stack([*images[:bad], rows[0], *images[bad:]], engine=engine)
        assert info.value.index == bad

    def housekeeping(rng):
        for owner in (wr, *([engine] if engine else [])):
            owner.empty_cache()
            stats = owner.stats()
            assert stats["batches"] >= 0 and stats["pool_used_bytes"] < 1 << 30
            owner.reset_stats()

    together(stack, pad, ragged, collate, refuse, housekeeping)
    (engine or wr).empty_cache()
    assert (engine or wr).stats()["pool_bytes"] == 0


# Objects that other threads change

LENGTH = 200


def version(number):
    """A list of fresh samples that all hold one number."""
    return list(np.full((LENGTH, 4, 3), number, np.int64))


def test_a_list_is_read_at_one_moment():
    samples = version(0)
    trees = [{"x": sample} for sample in version(0)]

    def replace(rng):
        samples[:] = version(rng.randrange(1000))
        number = rng.randrange(1000)
        trees[:] = [{"x": sample} for sample in version(number)]

    def whole(batch):
        values = numpy_of(batch)
        assert values.shape == (LENGTH, 4, 3) and (values == values.flat[0]).all(), values[:, 0, 0]

    together(
        replace,
        lambda rng: whole(wr.stack(samples)),
        lambda rng: whole(wr.stack(wr.SampleList(samples))),
        lambda rng: whole(wr.collate(samples)),
        lambda rng: whole(wr.collate(trees)["x"]),
    )


def test_lists_that_grow_and_shrink():
    samples, columns = version(1), [[sample] * 3 for sample in version(1)]

    def change(rng):
        samples.append(np.full((4, 3), 1, np.int64))
        samples.insert(0, np.full((4, 3), 1, np.int64))
        columns[rng.randrange(LENGTH)][:] = [np.full((4, 3), 1, np.int64) for _ in range(3)]
        samples.pop(0), samples.pop()

    def ones(batch):
        assert (numpy_of(batch) == 1).all()

    together(
        change,
        lambda rng: ones(wr.stack(samples)),
        lambda rng: ones(wr.pad(samples, size=6, dims=0, value=1)),
        lambda rng: ones(wr.collate(columns)[2]),
        threads=8,
    )


def test_dicts_that_grow_and_shrink():
    """A leaf is there or it is not: its batch, or an error that names it."""
    trees = [{"x": sample} for sample in version(3)]
    spec = {"x": wr.Pad(size=8, dims=0, value=3)}

    def change(rng):
        tree = rng.choice(trees)
        tree["y"] = tree["x"]
        spec[f"*{rng.randrange(9)}"] = wr.Stack()
        tree.pop("y", None)
        for name in list(spec):
            if name != "x":
                spec.pop(name, None)

    def read(rng):
        try:
            batch = wr.collate(trees, spec)["x"]
        except KeyError as error:
            assert "'y'" in str(error) or '"y"' in str(error)
        except ValueError as error:
            assert "matches no leaf" in str(error)
        else:
            assert batch.shape == (LENGTH, 8, 3) and (numpy_of(batch) == 3).all()

    together(change, read)


def test_bytes_that_others_resize():
    if FREE_THREADED and sys.version_info < (3, 14):
        pytest.skip("SKIP: bytearray itself is not safe to resize there before CPython 3.14")
    samples = [bytearray(b"w" * 40) for _ in range(8)]

    def resize(rng):
        sample = rng.choice(samples)
        try:
            sample.append(ord("w"))
            del sample[40:]
        except BufferError:
            pass  # It is being read.

    def read(rng):
        batch = wr.pad(samples, value=ord("w"))
        assert set(bytes(batch)) == {ord("w")} and min(numpy_of(batch.lengths)) >= 40

    together(resize, read)


class Described:
    """Read by `__array_interface__`, made again for each object."""

    def __init__(self, array):
        self.array = array

    @property
    def __array_interface__(self):
        return dict(self.array.__array_interface__)


def test_types_that_many_threads_meet_first():
    array = paint((3, 5), "float32")

    def read(rng):
        made = type("Made", (Described,), {})
        shared = [made(array.copy()) for _ in range(3)]
        assert_tensor(wr.stack([*shared, array, *shared]), np.stack([array] * 7))

    together(read, seconds=0.5)


# SampleList


def test_a_sample_list_loses_and_doubles_nothing():
    shared = wr.SampleList()
    added = [0] * THREADS
    numbers = iter(range(THREADS))

    def own_number(local=threading.local()):
        if not hasattr(local, "number"):
            local.number = next(numbers)
        return local.number

    def row(number, position):
        return np.array([number, position, number ^ position], np.int64)

    def check(values):
        assert (values[:, 0] ^ values[:, 1] == values[:, 2]).all()
        return values

    def add(rng):
        number = own_number()
        if added[number] >= 400:
            return
        shared.append(row(number, added[number]))
        shared.extend([row(number, added[number] + 1), row(number, added[number] + 2)])
        shared.extend(wr.SampleList(np.stack([row(number, added[number] + 3)])))
        added[number] += 4

    def read(rng):
        count = len(shared)
        if count:
            values = check(numpy_of(wr.stack(shared.take(np.arange(count)))))
            # A list only grows at its end: what was there before is there still.
            assert (numpy_of(wr.stack(shared))[:count] == values).all()
            check(numpy_of(shared[rng.randrange(-count, count)])[None])
            check(np.stack([numpy_of(sample) for sample in shared]))

    lock = threading.Lock()

    def add_locked_number(rng):
        with lock:
            own_number()
        add(rng)

    together(add_locked_number, read)
    values = check(numpy_of(wr.stack(shared)))
    assert Counter(values[:, 0].tolist()) == Counter({n: count for n, count in enumerate(added) if count})
    for number, count in enumerate(added):
        assert values[values[:, 0] == number][:, 1].tolist() == list(range(count))


def test_a_sample_list_joined_with_itself():
    shared = wr.SampleList([np.arange(3)])

    def double(rng):
        if len(shared) < 5000:
            shared.extend(shared)

    together(double, lambda rng: assert_tensor(shared[-1], np.arange(3)), seconds=0.3)
    assert_tensor(wr.stack(shared), np.tile(np.arange(3), (len(shared), 1)))


def test_trees_of_a_sample_list_are_whole():
    def tree(number):
        return {"a": np.full(3, number), "b": {"c": np.full(2, number)}, "s": str(number), "n": number}

    shared = wr.SampleList()
    shared.extend([tree(i) for i in range(50)])

    def put(rng):
        if len(shared) < 500:
            shared.append(tree(rng.randrange(1000)))
        shared[rng.randrange(-50, 50)] = tree(rng.randrange(1000))
        shared[0] = shared[-1]

    def whole(batch):
        numbers = numpy_of(batch["n"])
        assert (numpy_of(batch["a"]) == numbers[:, None]).all() and (numpy_of(batch["b"]["c"]) == numbers[:, None]).all()
        assert batch["s"] == [str(number) for number in numbers]

    def read(rng):
        whole(wr.collate(shared))
        whole(wr.collate(shared.take([rng.randrange(50) for _ in range(5)])))
        one = shared[rng.randrange(-50, 50)]
        assert int(one["n"]) == int(one["s"]) == numpy_of(one["a"])[2]

    together(put, read)


# Results


def test_fields_are_made_once():
    for _ in range(50):
        batch = wr.pad([paint(3), paint(5)], mask="real")
        seen = []
        together(lambda rng: seen.append((batch.data, batch.lengths, batch.mask, batch.offsets)), threads=8, seconds=0)
        assert len(seen) == 8 and all(one[i] is seen[0][i] for one in seen for i in range(4))


def test_batches_handed_to_other_threads():
    """The memory of a batch is given back by whichever thread releases the last view."""
    samples = [paint((50, 50), "uint8", i) for i in range(8)]
    expected, slots = np.stack(samples), [None] * 4

    def make(rng):
        slots[rng.randrange(4)] = wr.stack(samples)

    def use(rng):
        batch = slots[rng.randrange(4)]
        if batch is not None:
            view = np.from_dlpack(batch) if rng.randrange(2) else numpy_of(batch[rng.randrange(8)])
            del batch
            assert (view == expected).all() or any((view == sample).all() for sample in samples if view.ndim == 2)

    together(make, use)


# torch


def test_torch_rules_in_many_threads(torch):
    import windrow.torch

    default_collate = torch.utils.data.default_collate
    trees = [{"x": torch.full((3, 4), float(i)), "y": i, "z": (np.full(2, i), "s")} for i in range(6)]
    collate, expected = windrow.torch.collate_fn(), default_collate(trees)

    def same(tree):
        assert torch.equal(tree["x"], expected["x"]) and torch.equal(tree["y"], expected["y"])
        assert torch.equal(tree["z"][0], expected["z"][0]) and tree["z"][1] == expected["z"][1]

    def install(rng):
        windrow.torch.install()
        same(default_collate(trees))
        windrow.torch.uninstall()

    table = dict(torch.utils.data._utils.collate.default_collate_fn_map)
    try:
        together(install, lambda rng: same(collate(trees)), lambda rng: same(default_collate(trees)))
    finally:
        windrow.torch.uninstall()
    assert torch.utils.data._utils.collate.default_collate_fn_map == table


def test_torch_samples_that_others_replace(torch):
    samples = list(torch.full((LENGTH, 4, 3), 0))

    def replace(rng):
        number = rng.randrange(1000)
        samples[:] = list(torch.full((LENGTH, 4, 3), number))

    def whole(values):
        assert values.shape == (LENGTH, 4, 3) and bool((values == values[0, 0, 0]).all())

    import windrow.torch

    collate = windrow.torch.collate_fn()
    together(replace, lambda rng: whole(wr.stack(samples).torch()), lambda rng: whole(collate(samples)))


# Long lists, which several threads read where the interpreter has no lock


class Foreign:
    """Is asked by Python code."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("count", [8191, 8192, 20_001])
def test_long_lists(count):
    arrays = [np.full(3, i, np.int32) for i in range(count)]
    want = np.repeat(np.arange(count), 3).reshape(-1, 3)
    assert (wr.stack(arrays).numpy() == want).all()
    listed = wr.SampleList(arrays)
    assert (wr.stack(listed.take(np.arange(count)[::-1])).numpy() == want[::-1]).all()
    uneven = [np.arange(i % 7, dtype=np.int64) for i in range(count)]
    assert (wr.ragged(uneven).numpy() == np.concatenate(uneven)).all()
    # Around the ends of each part.
    for odd in {0, 1, count // 2 - 1, count // 2, count - 1}:
        mixed = list(arrays)
        mixed[odd] = Foreign(arrays[odd])
        assert (wr.stack(mixed).numpy() == want).all()
        mixed[odd] = arrays[odd].astype(np.float64)
        with pytest.raises(wr.DTypeError) as raised:
            wr.stack(mixed)
        assert raised.value.index == (odd or 1)
        mixed[odd] = None
        with pytest.raises(TypeError, match=f"^sample {odd}: "):
            wr.SampleList(mixed)


def test_one_long_list_in_many_threads():
    arrays = [np.full(2, i, np.float32) for i in range(9000)]
    want = np.repeat(np.arange(9000, dtype=np.float32), 2).reshape(-1, 2)

    def read(rng):
        listed = wr.SampleList(arrays)
        assert len(listed) == 9000 and memory(listed[rng.randrange(9000)]).shape == (2,)
        assert (wr.stack(arrays).numpy() == want).all()

    together(read, lambda rng: gc.collect())


# The interpreter


@pytest.mark.slow
def test_the_lock_stays_off():
    if not FREE_THREADED:
        pytest.skip("SKIP: not a free-threaded interpreter")
    code = "import sys, windrow; sys.exit(sys._is_gil_enabled())"
    # The warning says that a module asked for the lock.
    for options, environment in ((("-X", "gil=0"), None), ((), {})):
        done = isolated.python(*options, "-W", "error", "-c", code, env=environment)
        assert done.returncode == 0, done.stderr
