"""Small batches: the list keeps their samples, constants are parsed once, no plan is made."""

import gc
import sys
import threading
import weakref

import numpy as np
import pytest

import oracle
import windrow as wr
from helpers import assert_same, assert_tensor, paint, refusal

HAS_LOCK = getattr(sys, "_is_gil_enabled", lambda: True)()


@pytest.mark.parametrize("container", [list, tuple])
@pytest.mark.parametrize("count", [1, 2, 1023, 1024, 1025])
def test_numbers_of_samples_at_the_limit(container, count):
    rows = container(paint((1 + number % 3, 2), "int16", number) for number in range(count))
    engine, want = wr.Engine(threads=1), oracle.pad(rows, "int16", dims=[0], mask="real")
    engine.reset_stats()
    batch = wr.pad(rows, dims=0, mask="real", engine=engine)
    for name in ("data", "lengths", "mask"):
        assert_tensor(getattr(batch, name), getattr(want, name))
    assert engine.stats()["plan_seconds"] == 0, "a small batch has no plan"
    assert_tensor(wr.ragged(rows).data, np.concatenate(rows))


# 160 KiB read and written, 1 MiB, and one row more or less.
@pytest.mark.parametrize("num_bytes", [(80 << 10) - 16, 80 << 10, (80 << 10) + 16, (512 << 10) - 16, 512 << 10])
def test_bytes_at_the_limit(num_bytes):
    rows = [paint(16, "uint8", number) for number in range(num_bytes // 16)][:1024]
    rows += [paint(max(num_bytes - 16 * len(rows), 16), "uint8", 7)]
    assert_tensor(wr.ragged(rows).data, np.concatenate(rows))
    equal = [paint(num_bytes // 4, "uint8", number) for number in range(4)]
    assert_tensor(wr.stack(equal).data, np.stack(equal))


def test_samples_that_are_read_differently():
    plain = [paint((3, 4), "float32", seed) for seed in range(4)]
    turned = [np.asfortranarray(plain[0]), plain[1][::-1], plain[2], plain[3].copy()]
    locked = plain[3].copy()
    locked.flags.writeable = False
    masked = np.ma.MaskedArray(plain[1])
    for samples in (turned, [*plain, locked], [plain[0], memoryview(plain[1])], [plain[0], masked]):
        assert_tensor(wr.stack(samples).data, np.stack([np.asarray(sample) for sample in samples]))
    empty = [np.zeros((0, 2**40), "uint8")] * 3
    assert wr.stack(empty).shape == (3, 0, 2**40)


def test_rows_of_other_lengths_and_strides_in_turn():
    def rows_of(library):
        wide = [library(paint((count, 3), "float32", count)) for count in range(2, 8)]
        plain = [library(paint((count, 2), "float32", count)) for count in (3, 5, 5, 0, 1, 4)]
        return [*plain[:3], wide[0][:, :2], wide[1][:, :2], plain[3], *plain[3:], wide[2][:, 1:], wide[2][:1, 1:], plain[0]]

    torch = pytest.importorskip("torch")
    for library in (np.asarray, torch.from_numpy):
        rows = rows_of(library)
        for first in range(len(rows)):
            some = rows[first:]
            assert_tensor(wr.ragged(some).data, np.concatenate([np.asarray(row) for row in some]))
    others = [paint(3, "int32"), paint(4, "int32"), paint(4, "int64")]
    assert refusal(lambda: wr.ragged(others), wr.DTypeError).index == 2


def test_errors_name_the_sample_as_before():
    rows = [paint((2, 2), "int32") for _ in range(5)]
    error = refusal(lambda: wr.stack([*rows, paint((2, 3), "int32")]), wr.ShapeError)
    assert error.index == 5
    assert refusal(lambda: wr.stack([*rows[:3], paint((2, 2), "int64")]), wr.DTypeError).index == 3
    assert refusal(lambda: wr.pad([*rows, paint(2, "int32")], dims=0), wr.ShapeError).index == 5
    swapped = [*rows[:3], np.zeros((2, 2), ">i8")]
    assert refusal(lambda: wr.stack(swapped), wr.DTypeError, "got int64 of other byte order").index == 3
    refusal(lambda: wr.stack([rows[0], None]), TypeError)
    refusal(lambda: wr.stack([]), ValueError)


@pytest.mark.skipif(not HAS_LOCK, reason="samples are kept where other threads can change a list")
def test_samples_are_neither_kept_nor_counted():
    rows = [paint(8, "float32", number) for number in range(3)]
    before = [sys.getrefcount(row) for row in rows]
    batch = wr.pad(rows, mask="real")
    assert [sys.getrefcount(row) for row in rows] == before
    expected = np.stack(rows)
    reference = weakref.ref(rows[0])
    rows.clear()
    gc.collect()
    assert reference() is None
    assert_tensor(batch.data, expected)


def test_a_list_that_changes_while_the_class_is_looked_up():
    class Array(np.ndarray):
        pass

    rows = [paint(4, "float32", number).view(Array) for number in range(3)]
    assert_tensor(wr.stack(rows).data, np.stack(rows))
    assert_tensor(wr.stack([rows[0], paint(4, "float32", 9)]).data, np.stack([rows[0], paint(4, "float32", 9)]))


def test_constants_are_parsed_once_and_others_each_time():
    rows = [paint((2, 3), "int16"), paint((2, 5), "int16", 3), paint((4, 5), "int16", 5)]

    def check(**options):
        wanted = oracle.pad(rows, "int16", **options).data
        assert_tensor(wr.pad(rows, **options).data, wanted)

    dims, size = [0, 1], [4, 6]
    for _ in range(3):
        check(dims=(0, 1), value=3)
        check(value=3, dims=(0, 1))
        check(dims=dims, value=3)
    for _ in range(2):
        check(size=size)
        size[1] = 7
    for _ in range(2):
        for multiple_of in (1, 2, 4):
            check(dims=(0, 1), multiple_of=multiple_of)
    for _ in range(2):
        assert wr.stack(rows[:1], dtype="float32").dtype == "float32"
        assert wr.concat(rows[:1], dtype="float32").shape == (2, 3)
        assert wr.stack(rows[:1], dtype="float64").dtype == "float64"
        assert wr.stack(rows[:1]).dtype == "int16"
        refusal(lambda: wr.stack(rows[:1], dims=(0, 1)), TypeError)
        refusal(lambda: wr.pad(rows, dims=(0, 1), side="up"), ValueError)


def test_arguments_of_one_call_are_not_those_of_the_next():
    rows = [paint(3, "float32"), paint(3, "float32", 5)]
    out = np.zeros((2, 3), "float64")
    normal = wr.Transform(scale=2.0)
    for _ in range(2):
        first, second = wr.Engine(threads=1), wr.Engine(threads=1)
        for engine in (first, second):
            assert_tensor(wr.stack(rows, dtype="float64", engine=engine).data, np.stack(rows).astype("float64"))
        assert [engine.stats()["batches"] for engine in (first, second)] == [1, 1]
        wr.stack(rows, dtype="float64", transform=normal, out=out)
        assert_same(out, np.stack(rows).astype("float64") * 2)
        assert_tensor(wr.stack(rows, dtype="float64").data, np.stack(rows).astype("float64"))
    reference = weakref.ref(wr.stack(rows, dtype="float64"))
    assert reference() is None
    # A name that is made while the program runs is another object than the one in its text.
    name = "".join("engine")
    engine = wr.Engine(threads=1)
    wr.stack(rows, **{name: engine, "".join("dtype"): "float64"})
    assert engine.stats()["batches"] == 1


def test_outputs_need_no_plan():
    engine = wr.Engine(threads=1)
    engine.reset_stats()
    rows = [paint((count, 2), "int16", count) for count in (3, 0, 2)]
    want = oracle.pad(rows, "int32", dims=[0], mask="real")
    out = np.full((3, 3, 2), 9, "int32")
    for _ in range(2):
        batch = wr.pad(rows, dims=0, mask="real", dtype="int32", out=out, engine=engine)
        assert_same(out, want.data)
        assert np.shares_memory(batch.numpy(), out)
        assert_tensor(batch.mask, want.mask)
        assert_tensor(batch.lengths, want.lengths)
        out[:] = 9
    tree = [{"a": paint(4, "float32", seed), "b": paint((2, 3), "uint8", seed)} for seed in range(5)]
    outs = {name: np.zeros((5, *tree[0][name].shape), tree[0][name].dtype) for name in "ab"}
    wr.collate(tree, out=outs, engine=engine)
    for name in "ab":
        assert_same(outs[name], np.stack([sample[name] for sample in tree]))
    assert engine.stats()["plan_seconds"] == 0
    assert engine.stats()["batches"] == 4
    # Columns of a table go by a plan, which knows strides.
    table = np.zeros((3, 8), "int16")
    samples = [paint(3, "int16", seed) for seed in range(3)]
    wr.stack(samples, out=table[:, 2:5], engine=engine)
    assert_same(table, np.pad(np.stack(samples), ((0, 0), (2, 3))))
    assert engine.stats()["plan_seconds"] > 0


def test_outputs_that_a_small_batch_refuses():
    rows = [paint(3, "int16", seed) for seed in range(4)]
    locked = np.zeros((4, 3), "int16")
    locked.flags.writeable = False
    memory = np.zeros(24, "int16")
    inside = memory[9:21].reshape(4, 3)
    samples = wr.SampleList(np.stack(rows))
    calls = [lambda out: wr.stack(rows, out=out), lambda out: samples.stack([0, 1, 2, 3], out=out)]
    for call in calls:
        refusal(lambda: call(np.zeros((3, 4), "int16")), wr.ShapeError, r"expected shape \(4, 3\), got \(3, 4\)")
        refusal(lambda: call(np.zeros((4, 3), "int32")), wr.DTypeError, "expected int16, got int32")
        refusal(lambda: call(locked), wr.LayoutError, "read-only memory")
    overlapping = [*rows[:3], memory[20:23]]
    refusal(lambda: wr.stack(overlapping, out=inside), wr.LayoutError, "sample 3: expected memory apart from out")
    table = wr.SampleList(memory.reshape(8, 3))
    refusal(lambda: table.stack([0, 1, 2, -2], out=inside), wr.LayoutError, "sample 3: expected memory apart from out")
    refusal(lambda: samples.stack([0, 4], out=locked), IndexError, "4")
    assert not memory.any() and not locked.any()


def test_outputs_of_rows_by_indices():
    table = paint((50, 17), "float32")
    samples, engine = wr.SampleList(table), wr.Engine(threads=1)
    engine.reset_stats()
    ids = np.array([4, -1, 0, 4], "int32")
    out = np.zeros((4, 17), "float32")
    batch = samples.stack(ids, out=out, engine=engine)
    assert_same(out, table[ids])
    assert np.shares_memory(batch.numpy(), out)
    assert engine.stats()["plan_seconds"] == 0


def test_torch_is_told_of_outputs_of_small_batches():
    torch = pytest.importorskip("torch")
    table = torch.arange(30.0).reshape(10, 3)
    out = torch.zeros(2, 3)
    calls = [
        lambda: wr.stack([table[0], table[4]], out=out),
        lambda: wr.SampleList(table).stack([0, 4], out=out),
        lambda: wr.collate([{"x": table[0]}, {"x": table[4]}], out={"x": out}),
    ]
    for call in calls:
        version = out.zero_()._version
        call()
        assert out.equal(table[[0, 4]])
        assert out._version == version + 1


@pytest.mark.parametrize("name", ["stream", "out", "engine", "transform"])
def test_names_that_are_not_interned(name):
    """Keyword arguments that were read from a file have such names."""
    given, rows = {"".join(list(name)): "none", "dtype": "float32"}, [paint(3, "int16")]
    texts = set()
    for _ in range(3):
        with pytest.raises((TypeError, ValueError, BufferError)) as caught:
            wr.stack(rows, **given)
        texts.add(str(caught.value))
    assert len(texts) == 1


def test_each_thread_has_constants_of_its_own():
    rows = [paint(3, "int32"), paint(2, "int32")]
    wrong = []

    def work(value):
        for _ in range(200):
            if wr.pad(rows, value=value).numpy()[1, 2] != value:
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_arrays_of_a_tensor_keep_it():
    batch = wr.pad([paint(3, "int32"), paint(2, "int32")], mask="real")
    mask = batch.mask
    array, again = mask.numpy(), mask.numpy()
    assert array.base is mask and again.base is mask
    del batch, mask
    gc.collect()
    assert_same(array, np.array([[True, True, True], [True, True, False]]))


def test_arrays_of_a_batch_keep_it_where_that_is_all_memory():
    rows = [paint(3, "int32"), paint(2, "int32")]
    batch = wr.pad(rows, mask="real")
    array = batch.numpy()
    assert array.base is batch
    del batch
    gc.collect()
    assert_same(array, np.stack([rows[0], np.append(rows[1], np.int32(0))]))
    # Data and mask of a large batch are two allocations, and its array keeps one of them.
    large = wr.pad([paint((600, 1000), "int32"), paint((500, 1000), "int32")], dims=0, mask="real")
    array = large.numpy()
    assert array.base is not large and array.base.shape == large.shape
    kept = wr.collate([{"a": row, "b": row} for row in rows], {"a": wr.Pad(), "b": wr.Pad()}, arena=True)
    assert kept["a"].numpy().base is kept["a"]
