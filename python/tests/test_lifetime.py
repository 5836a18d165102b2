"""Lifetimes, threads, views, plans, counters and forks."""

import sys
import threading
import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import isolated
import oracle
import windrow as wr
from dlpack_harness import Handle
from helpers import Lent, assert_tensor, assert_values, memory, paint, paint_values, pointer, poisoned, refusal, rss_bytes, settle

FORMS = {"stack": wr.stack, "concat": wr.concat, "pad": wr.pad, "ragged": wr.ragged}


# references


@pytest.mark.parametrize("form", FORMS)
def test_samples_are_released_after_the_call(form):
    arrays = [paint((3, 4), "float32", i) for i in range(5)]
    refs = [weakref.ref(a) for a in arrays]
    counts = [sys.getrefcount(a) for a in arrays]
    batch = FORMS[form](arrays)
    settle()
    assert [sys.getrefcount(a) for a in arrays] == counts
    del arrays
    settle()
    assert all(ref() is None for ref in refs)
    assert batch.nbytes == 5 * 48


def test_samples_are_released_after_an_error():
    arrays = [paint((3, 4), "float32", i) for i in range(5)]
    counts = [sys.getrefcount(a) for a in arrays]
    for bad in (paint(3), paint((3, 4)), None, object()):
        refusal(lambda: wr.stack([*arrays, bad]), (ValueError, TypeError))
    settle()
    assert [sys.getrefcount(a) for a in arrays] == counts


def test_torch_samples_are_released(torch):
    tensors = [torch.full((3, 4), float(i)) for i in range(5)]
    refs = [weakref.ref(t) for t in tensors]
    wr.stack(tensors)
    wr.stack(tensors, dtype="float16")
    del tensors
    settle()
    assert all(ref() is None for ref in refs)


@pytest.mark.parametrize("how", ["asarray", "list", "rows", "append"])
def test_what_a_torch_subclass_lends_of_other_memory_is_kept(torch, how):
    """The storage of the tensor is not what keeps it."""
    lent = Handle(paint((2, 3), "float32"))

    class Elsewhere(torch.Tensor):
        __dlpack_c_exchange_api__ = None

        def __dlpack__(self, **kwargs):
            return lent.capsule()

    x, samples = torch.zeros(2, 3).as_subclass(Elsewhere), wr.SampleList()
    if how == "append":
        samples.append(x)
    held = {"asarray": wr.asarray, "list": lambda x: wr.SampleList([x]), "rows": wr.SampleList, "append": lambda _: samples}[how](x)
    settle()
    assert lent.deleted == 0
    assert_values(wr.stack(held) if how != "asarray" else held, lent.array.reshape((1, 2, 3) if how in ("list", "append") else (2, 3)))
    del x, held, samples
    settle()
    assert lent.deleted == 1


@pytest.mark.parametrize("override", ["method", "function"])
@pytest.mark.parametrize("how", ["asarray", "list", "rows", "view"])
def test_a_torch_subclass_that_gives_another_storage_for_its_own(torch, how, override):
    """What keeps the memory is the storage that torch has; the tensor exchanges it."""
    other = torch.zeros(2).untyped_storage()

    class Method(torch.Tensor):
        def untyped_storage(self):
            return other

    class Function(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            is_storage = getattr(function, "__name__", "") == "untyped_storage"
            return other if is_storage else super().__torch_function__(function, types, args, kwargs or {})

    array = paint((2, 3), "float32")
    want, ref = array.copy(), weakref.ref(array)
    x = torch.Tensor._make_subclass(Method if override == "method" else Function, torch.from_numpy(array))
    makers = {"asarray": wr.asarray, "list": lambda x: wr.SampleList([x]), "rows": wr.SampleList, "view": lambda x: wr.concat([x], copy=None)}
    held = makers[how](x)
    with torch._C.DisableTorchFunction():
        x.data = torch.zeros(2, 3)
    del array
    settle()
    assert ref() is not None
    assert_values(held if how in ("asarray", "view") else wr.concat([wr.stack(held).numpy().reshape(2, 3)]), want)
    del held
    settle()
    assert ref() is None


@pytest.mark.parametrize("make", [wr.asarray, lambda array: wr.concat(wr.SampleList([array]), copy=None)])
def test_an_array_subclass_that_gives_memory_of_another(make):
    others = []

    class Giving(np.ndarray):
        def __getattribute__(self, name):
            if name not in ("__array_struct__", "__array_interface__"):
                return super().__getattribute__(name)
            other = np.ones(4, np.float32)
            others.append(weakref.ref(other))
            return getattr(other, name)

    held = make(np.zeros(4, np.float32).view(Giving))
    settle()
    assert all(ref() is not None for ref in others)
    assert_values(held, np.zeros(4, np.float32))


def test_out_is_kept_by_the_batch_and_released_with_it():
    out = poisoned((2, 3))
    ref = weakref.ref(out)
    batch = wr.stack([paint(3)] * 2, out=out)
    del out
    settle()
    assert ref() is not None
    assert_tensor(batch, np.stack([paint(3)] * 2))
    del batch
    settle()
    assert ref() is None


def test_results_that_are_outputs_again_do_not_keep_each_other():
    rows = [paint(3), paint(3, seed=1)]
    for form in (wr.stack, wr.pad, wr.concat):
        batch = form(rows)
        address, refs = batch.data_ptr(), []
        for _ in range(3):
            refs.append(weakref.ref(batch))
            batch = form(rows, out=batch)
        refs.append(weakref.ref(batch))
        batch = form(rows, out=batch.data)
        settle()
        assert all(ref() is None for ref in refs) and batch.data_ptr() == address
        assert_tensor(batch, form(rows).numpy())


HANDED = {
    "numpy": "lambda batch: batch.numpy()",
    "np.asarray": "np.asarray",
    "np.from_dlpack": "np.from_dlpack",
    "memoryview": "memoryview",
    "torch": "lambda batch: batch.torch()",
    "asarray": "lambda batch: np.asarray(wr.asarray(batch.numpy()))",
}


@pytest.mark.slow
@pytest.mark.parametrize("way", HANDED)
def test_outputs_that_went_through_another_library(way):
    """Each holds the one before, as the libraries' own do; when released, such a chain would have used up the stack."""
    if way == "torch":
        pytest.importorskip("torch")
    isolated.run(
        f"""
handed, rows = {HANDED[way]}, [paint(3), paint(3, seed=1)]
used = wr.stats()["pool_used_bytes"]
out = handed(wr.stack(rows))
for _ in range(40_000):
    out = handed(wr.stack(rows, out=out))
assert bytes(np.asarray(out)) == bytes(np.stack(rows))
thread = threading.Thread(target=lambda kept: kept.clear(), args=([out],))
del out
thread.start()
thread.join()
settle()
assert wr.stats()["pool_used_bytes"] == used
"""
    )


def test_engines_and_batches_in_any_order():
    for _ in range(20):
        engine = wr.Engine(threads=2)
        batch = wr.stack([paint(10_000, seed=i) for i in range(4)], engine=engine)
        array = batch.numpy()
        del engine, batch
        settle()
        assert (array[3] == paint(10_000, seed=3)).all()


def churn(torch):
    """About 8 MB of results in every form, with views, exports and errors."""
    rows = [paint(200_000, seed=i) for i in range(5)]
    tensors = [torch.from_numpy(row) for row in rows]
    batch = wr.stack(rows)
    batch.numpy(), batch.torch(), batch.__dlpack__(), batch.__dlpack__(max_version=(1, 0)), memoryview(batch)
    np.from_dlpack(batch), torch.from_dlpack(batch), list(batch), np.asarray(batch), batch.__dlpack__(copy=True)
    wr.pad([row[: 1000 * (i + 1)] for i, row in enumerate(rows)], mask="real")
    wr.ragged(tensors, batch_index=True)
    wr.collate([{"a": row, "b": [t]} for row, t in zip(rows, tensors)])
    samples = wr.SampleList(tensors)
    wr.stack(samples.take([0, 1, 1]), dtype="float32")
    wr.asarray(rows[0]), wr.explain(rows)
    for bad in (None, paint(3), np.zeros(3, ">i4")):
        with pytest.raises((TypeError, ValueError, BufferError)):
            wr.stack([*rows, bad])


def test_no_leak(torch):
    for _ in range(30):
        churn(torch)
    settle()
    before = rss_bytes()
    for _ in range(150):
        churn(torch)
    settle()
    assert rss_bytes() - before < 64 << 20, "more than half a percent of what went through is still held"


def test_no_leak_of_small_objects():
    rows = [paint(4, seed=i) for i in range(8)]

    def small():
        batch = wr.stack(rows)
        batch.__dlpack__(), batch.data, batch[0], repr(batch), np.from_dlpack(batch)
        with pytest.raises(wr.ShapeError):
            wr.stack([*rows, paint(3)])

    for _ in range(500):
        small()
    settle()
    before = rss_bytes()
    for _ in range(5000):
        small()
    settle()
    assert rss_bytes() - before < 16 << 20


TYPES = """
interface, num_again = paint(4).__array_interface__, 0
for _ in range(300):
    number = type("Number", (int,), {})
    address = id(number)
    assert_tensor(wr.stack([number(3)]), np.array([3]))
    del number
    gc.collect()
    holder = type("Holder", (), {"__array_interface__": interface})
    num_again += id(holder) == address
    assert_tensor(wr.stack([holder()]), paint((1, 4)))
print(num_again)
"""


@pytest.mark.slow
def test_types_are_not_taken_for_others_that_are_gone():
    """A class at the address of one that is gone is looked up by itself."""
    assert int(isolated.run(TYPES)) > 0


# threads


@pytest.mark.parametrize("own", [True, False])
def test_eight_threads_on_one_engine(own):
    engine = {"engine": wr.Engine(threads=2)} if own else {}
    failures = []

    def work(k):
        try:
            for n in range(30):
                arrays = [paint(10_000 + k, seed=31 * k + i + n) for i in range(4)]
                got = memory(wr.stack(arrays, **engine))
                assert (got == np.stack(arrays)).all()
                values = [paint_values(100 + n, "int32", k + i) for i in range(3)]
                got = memory(wr.pad(values, dtype="float16", value=1, size=200, **engine))
                assert got.tobytes() == oracle.pad(values, "int32", 1, size=200, dst="float16").data.tobytes()
                with pytest.raises(wr.ShapeError):
                    wr.stack([*arrays, paint(3)], **engine)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_gil_is_released_while_bytes_move():
    """The switch interval is so long that another thread runs only when the call itself lets it."""
    rows = [np.zeros(16 << 20, np.uint8) for _ in range(8)]
    out = np.empty((8, 16 << 20), np.uint8)
    wr.stack(rows, out=out)
    ticks, stop = [0], threading.Event()

    def tick():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0)

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=tick)
    thread.start()
    try:
        sys.setswitchinterval(1000)
        for _ in range(50):
            before = ticks[0]
            wr.stack(rows, out=out)
            if ticks[0] > before:
                break
        else:
            raise AssertionError("no other thread ran during any of 50 calls")
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join()


def test_threads_share_one_batch_and_one_sample_list():
    samples = wr.SampleList([paint(1000, seed=i) for i in range(20)])
    batch = wr.stack(samples)
    want = memory(batch).copy()
    results = []

    def work():
        for i in range(100):
            row = wr.stack(samples.take([i % 20])).numpy()[0]
            results.append((row == want[i % 20]).all() and (batch[i % 20].numpy() == row).all())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 800 and all(results)


# views


def adjacent(form):
    base = paint((6, 5), "float32")
    return base, {"stack": list(base), "concat": [base[:2], base[2:3], base[3:]], "ragged": [base[:1], base[1:4], base[4:]]}[form]


@pytest.mark.parametrize("form", ["stack", "concat", "ragged"])
def test_copy_true_copies(form):
    base, samples = adjacent(form)
    for arguments in ({}, {"copy": True}):
        batch = FORMS[form](samples, **arguments)
        assert pointer(batch.data) != pointer(base)
        assert_tensor(batch, base)


@pytest.mark.parametrize("form", ["stack", "concat", "ragged"])
def test_copy_false_gives_a_view_of_adjacent_samples(form):
    base, samples = adjacent(form)
    batch = FORMS[form](samples, copy=False)
    assert pointer(batch.data) == pointer(base)
    assert_tensor(batch, base)
    base[3, 3] = 77
    assert batch.numpy()[3, 3] == 77
    if form != "stack":
        assert_values(batch.offsets, np.cumsum([0] + [len(s) for s in samples]))


@pytest.mark.parametrize("form", ["stack", "concat", "ragged"])
def test_copy_none_may_give_a_view(form):
    base, samples = adjacent(form)
    assert_tensor(FORMS[form](samples, copy=None), base)
    assert_tensor(FORMS[form](samples[::-1], copy=None), memory(FORMS[form](samples[::-1])))


@pytest.mark.parametrize(
    "part",
    [
        lambda table: table,
        lambda table: table[:, 1],
        lambda table: table[::2],
        lambda table: table[:, 1:3],
        lambda table: table[1:2, ::2],
        lambda table: table.T,
        lambda table: table.reshape(300, 2, 2).transpose(0, 2, 1),
    ],
)
def test_rows_of_an_array_are_a_view_of_it(part):
    base = paint((300, 4), "float32").copy()
    rows = part(base)
    for mode in (None, False):
        batch = wr.stack(rows, copy=mode)
        assert pointer(batch.data) == pointer(rows)
        assert_tensor(batch, rows, compact=False)
        assert batch.numpy().strides == rows.strides
        assert wr.explain(rows, "stack", copy=mode).path == "view"
    assert_tensor(batch[0], rows[0], compact=False)
    turned = wr.stack(rows, copy=False, transform=wr.Transform(permute=list(range(rows.ndim - 1))[::-1]))
    assert_tensor(turned, rows.transpose(0, *range(rows.ndim - 1, 0, -1)), compact=False)
    rows[...] = 1
    assert (batch.numpy() == 1).all()
    assert_tensor(wr.stack(rows), rows)


def test_a_view_of_a_column_keeps_its_source_alive():
    base = paint((300, 4), "float32").copy()
    base.flags.writeable = False
    batch, want, ref = wr.stack(base[:, 1], copy=False), base[:, 1].copy(), weakref.ref(base)
    del base
    settle()
    assert ref() is not None
    assert not batch.numpy().flags.writeable
    assert_tensor(batch, want, compact=False)
    del batch
    settle()
    assert ref() is None


def test_rows_that_repeat_or_go_down_are_no_view():
    base = paint((300, 4), "float32")
    for rows in (base[::-1], base[:, ::-1], np.broadcast_to(base[0], (300, 4)), np.broadcast_to(base[0, 0], 300)):
        refusal(lambda rows=rows: wr.stack(rows, copy=False), ValueError)
        assert_tensor(wr.stack(rows, copy=None), rows)
    refusal(lambda: wr.stack(base[:, 1], copy=False, dtype="float64"), ValueError)
    refusal(lambda: wr.stack(base[:, 1], copy=False, out=np.empty(300, "f4")), ValueError)


def test_copy_false_of_a_single_sample():
    base = paint((3, 4))
    assert pointer(wr.stack([base], copy=False).data) == pointer(base)


@pytest.mark.parametrize("kind", ["numpy", "torch", "windrow"])
def test_views_keep_their_sources_alive(kind, torch):
    base = paint((6, 5), "float32").copy()
    want = base.copy()
    ref = weakref.ref(base)
    samples = {"numpy": list, "torch": lambda b: list(torch.from_numpy(b)), "windrow": lambda b: list(wr.asarray(b).numpy())}
    samples = samples[kind](base)
    batch = wr.stack(samples, copy=False)
    del base, samples
    settle()
    assert ref() is not None
    assert_tensor(batch, want)
    del batch
    settle()
    assert ref() is None


class Bytes(bytearray):
    """A buffer that a weak reference can watch."""


def view(samples):
    return wr.stack(samples, copy=False)


JOINED = {
    "append": lambda samples: samples.append(view(samples)[0]),
    "extend": lambda samples: samples.extend([view(samples)[0]]),
    "assign": lambda samples: [samples.append(b"b" * 64), samples.__setitem__(1, view(samples.take([0]))[0])],
    "assign a slice's": lambda samples: [samples.append(b"b" * 64), samples.__setitem__(1, view(samples[:1])[0])],
    "data": lambda samples: samples.append(wr.concat(samples, copy=False).data),
    "batch": lambda samples: samples.append(wr.concat(samples, copy=False)),
    "asarray": lambda samples: samples.append(wr.asarray(wr.concat(samples, copy=False))),
    "view of a view": lambda samples: samples.append(view(view(samples))[0]),
    "sample": lambda samples: samples.append(samples[0]),
}


@pytest.mark.parametrize("source", ["buffer", "array", "rows"])
@pytest.mark.parametrize("how", JOINED)
def test_a_view_that_joins_its_list_keeps_the_memory(how, source):
    """When the sample that it is over is replaced, the one that came later is all that is left of it."""
    source_bytes = Bytes(b"a" * 64)
    array, ref = np.frombuffer(source_bytes, np.uint8), weakref.ref(source_bytes)
    samples = wr.SampleList({"buffer": [source_bytes], "array": [array], "rows": array[None]}[source])
    JOINED[how](samples)
    del source_bytes, array
    samples[0] = b"x" * 64
    settle()
    assert ref() is not None, "freed with a sample over it"
    assert bytes(samples[1]) == b"a" * 64
    assert bytes(wr.stack(samples)) == b"x" * 64 + b"a" * 64
    del samples
    settle()
    assert ref() is None


def test_a_list_of_no_rows_releases_its_table_without_a_lock():
    """The owner of the table may ask for the list when it is released."""
    lengths = []

    class Table(np.ndarray):
        def __del__(self):
            lengths.append(len(samples))

    samples = wr.SampleList(paint((5, 3)).view(Table)[:0])
    samples.append(paint(3))
    samples.extend([paint(3)])
    settle()
    assert len(samples) == 2 and lengths and set(lengths) <= {1, 2}


MEMORYVIEWS = [lambda x: wr.SampleList([x]), wr.asarray, lambda x: wr.stack([x], copy=False), lambda x: {"x": wr.SampleList([{"x": x}])}]


@pytest.mark.parametrize("hold", MEMORYVIEWS)
def test_a_memoryview_in_a_cycle_is_not_cleared_while_it_is_read(hold, monkeypatch):
    """The collector of CPython 3.11.7 raises a BufferError for it, and crashes later."""
    errors = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    source = Bytes(b"a" * 64)
    ref, cycle = weakref.ref(source), [memoryview(source)]
    cycle += [hold(cycle[0]), cycle]
    del source, cycle
    settle()
    assert ref() is None and not errors


def test_what_a_subclass_of_torch_lends_is_not_kept_by_its_neighbour():
    torch = pytest.importorskip("torch", reason="SKIP: torch is not installed")
    sample = torch.ones(3).as_subclass(type("Mine", (torch.Tensor,), {}))
    ref, lent = weakref.ref(sample), Lent(paint(3))
    samples = wr.SampleList([sample, lent])
    del sample
    samples[0] = paint(3)
    settle()
    assert ref() is None
    assert_tensor(samples[1], lent.data)


ITEMS = {
    "samples": list,
    "by index": lambda batch: [batch[i] for i in range(len(batch))],
    "asarray": lambda batch: [wr.asarray(batch) for _ in range(len(batch))],
    "data": lambda batch: [batch.data for _ in range(len(batch))],
    "lists": lambda batch: [wr.SampleList([sample]) for sample in batch],
}


@pytest.mark.parametrize("how", ITEMS)
def test_items_of_a_view_have_one_reference_each(how):
    """Lists and items over the same samples keep them through one object, which the collector sees."""
    rows = list(paint((50, 4)))
    batch = view(wr.SampleList(rows))
    before = [sys.getrefcount(row) for row in rows]
    items = ITEMS[how](batch)
    assert len(items) == 50 and [sys.getrefcount(row) for row in rows] == before


@pytest.mark.parametrize("join", [wr.SampleList.append, lambda samples, tree: samples.extend([tree])])
def test_a_view_that_joins_a_list_of_trees_keeps_the_memory(join):
    source_bytes = Bytes(b"a" * 64)
    ref, samples = weakref.ref(source_bytes), wr.SampleList([{"k": np.frombuffer(source_bytes, np.uint8)}])
    join(samples, {"k": wr.collate(samples, copy=False)["k"][0]})
    del source_bytes
    samples[0] = {"k": np.full(64, 120, np.uint8)}
    settle()
    assert ref() is not None, "freed with a sample over it"
    assert bytes(samples[1]["k"]) == b"a" * 64


def test_a_view_of_read_only_samples_is_read_only():
    base = paint((4, 5))
    base.flags.writeable = False
    batch = wr.stack(list(base), copy=False)
    assert not batch.numpy().flags.writeable
    assert wr.stack(list(base)).numpy().flags.writeable


def locked(array):
    array.flags.writeable = False
    return array


class Legacy(bytes):
    """An immutable array whose buffer alone says so, as TensorFlow's and those of JAX."""

    def __dlpack__(self, stream=None):
        self.array = paint((6, 4), "float32")
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return 1, 0


FROZEN = locked(paint((6, 4), "float32"))
IMMUTABLE = {
    "numpy": lambda: locked(paint((6, 4), "float32")),
    "bytes": lambda: bytes(24),
    "memoryview": lambda: memoryview(bytes(24)),
    "array interface": lambda: SimpleNamespace(array=FROZEN, __array_interface__=FROZEN.__array_interface__),
    "legacy capsule": lambda: Legacy(24),
    "tensor": lambda: wr.asarray(locked(paint((6, 4), "float32"))),
    "arrow": lambda: pytest.importorskip("pyarrow").Tensor.from_numpy(locked(paint((6, 4), "float32"))),
    "arrow array": lambda: pytest.importorskip("pyarrow").array(np.arange(12, dtype=np.float32)),
    "jax": lambda: pytest.importorskip("jax").numpy.ones((6, 4)),
    "jax bfloat16": lambda: pytest.importorskip("jax").numpy.ones((6, 4), "bfloat16"),
}


def changed(samples, change):
    change(samples)
    return samples[len(samples) - 1]


VIEWS = {
    "asarray": wr.asarray,
    "list": lambda x: wr.SampleList([x])[0],
    "row": lambda x: wr.SampleList(x)[1],
    "append": lambda x: changed(wr.SampleList(), lambda samples: samples.append(x)),
    "extend": lambda x: changed(wr.SampleList([b"ab"]), lambda samples: samples.extend([x])),
    "replace": lambda x: changed(wr.SampleList([b"ab"]), lambda samples: samples.__setitem__(0, x)),
    "take": lambda x: wr.SampleList([b"ab", x]).take([1])[0],
    "slice": lambda x: wr.SampleList([b"ab", x])[1:][0],
    "tree": lambda x: wr.SampleList([{"x": x, "n": 1}])[0]["x"],
    "tree replaced": lambda x: changed(wr.SampleList([{"x": paint(2)}]), lambda samples: samples.__setitem__(0, {"x": x}))["x"],
    "windows": lambda x: wr.windows(x, [0, 1], 2)[1],
    "split": lambda x: wr.SampleList.split(x, [0, 2])[0],
    "crops": lambda x: wr.crops([x], [[0, 0, 2, 2]])[0],
    "crops of a list": lambda x: wr.crops(wr.SampleList([x]), [[0, 0, 2, 2]])[0],
    "stack": lambda x: wr.stack([x], copy=None),
    "stack of rows": lambda x: wr.stack(x, copy=False),
    "pad": lambda x: wr.pad([x], copy=False),
    "concat": lambda x: wr.concat([x], copy=False),
    "ragged": lambda x: wr.ragged([x], copy=False),
    "stack of a list": lambda x: wr.SampleList([x]).stack([0], copy=False),
    "collate": lambda x: wr.collate([{"x": x}], copy=False)["x"],
    "sample of a batch": lambda x: wr.stack([x], copy=False)[0],
    "sample of pad": lambda x: wr.pad([x], copy=False)[0],
    "sample of ragged": lambda x: wr.ragged([x], copy=False)[0],
    "sample of concat": lambda x: wr.concat([x], copy=False)[0],
}
NO_LISTS = {"bytes", "array interface", "legacy capsule"}
FLAT = {"bytes", "memoryview", "arrow array"}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", IMMUTABLE)
def test_views_of_immutable_memory_are_read_only(kind, view):
    if kind in NO_LISTS and view in {"row", "stack of rows"} or kind in FLAT and view.startswith("crops"):
        return
    made = VIEWS[view](IMMUTABLE[kind]())
    if not isinstance(made, (wr.Tensor, wr.Batch)):
        assert (kind, view) == ("bytes", "collate") or view.startswith("tree") or isinstance(made, list)
        return
    assert not made.numpy().flags.writeable
    refusal(lambda: made.__dlpack__(), BufferError, "read-only")
    refusal(lambda: wr.stack([made], out=made), wr.LayoutError, "read-only")
    if kind != "jax bfloat16":
        assert memoryview(made).readonly and made.__array_interface__["data"][1]


@pytest.mark.parametrize("make", [bytes, lambda data: memoryview(data), wr.asarray, lambda data: np.frombuffer(data, np.uint8)])
def test_leaves_that_are_unpacked_from_immutable_memory_are_read_only(make):
    packed = wr.pack({"a": paint((6, 4), "float32"), "b": [3]})
    tree = wr.unpack(make(bytes(packed.buffer)), packed.layout)
    for leaf in (tree["a"], tree["b"][0]):
        assert not leaf.numpy().flags.writeable and memoryview(leaf).readonly
        refusal(lambda leaf=leaf: wr.stack([leaf], out=leaf), wr.LayoutError, "read-only")
        refusal(lambda leaf=leaf: leaf.__dlpack__(), BufferError, "read-only")
    assert packed.unpack()["a"].numpy().flags.writeable


@pytest.mark.parametrize("kind", IMMUTABLE)
def test_immutable_memory_is_no_output(kind):
    refusal(lambda: wr.stack([IMMUTABLE["numpy"]()], out=IMMUTABLE[kind]()), wr.LayoutError, "read-only")


@pytest.mark.parametrize(
    "samples",
    [
        lambda b: [b[1], b[0]],
        lambda b: [b[0], b[0]],
        lambda b: [b[0], b[1].copy()],
        lambda b: [b[0], b[1], b[3]],
        lambda b: [b[0, :-1], b[1, 1:]],
    ],
)
def test_samples_that_do_not_form_the_batch(samples):
    samples = samples(paint((6, 5), "float32"))
    refusal(lambda: wr.stack(samples, copy=False), ValueError)
    assert_tensor(wr.stack(samples, copy=None), np.stack(samples))


def test_work_on_the_way_is_no_view():
    samples = list(paint((6, 5), "float32"))
    refusal(lambda: wr.stack(samples, copy=False, dtype="float16"), ValueError)
    refusal(lambda: wr.stack(samples, copy=False, transform=wr.Transform(scale=2.0)), ValueError)
    refusal(lambda: wr.pad([samples[0], samples[1][:3]], copy=False), ValueError)
    assert_tensor(wr.stack(samples, copy=None, dtype="float64"), paint((6, 5), "float32").astype("f8"))


# explain, stats, the pool


def test_explain():
    rows = [paint((100, 3), "float32", i) for i in range(8)]
    plan = wr.explain(rows)
    facts = plan.as_dict()
    assert {"path", "bytes_read", "bytes_written", "tiles", "launches", "padding_waste"} <= set(facts)
    assert facts["bytes_read"] == facts["bytes_written"] == 8 * 1200
    assert facts["padding_waste"] == 0 and facts["tiles"] >= 1
    assert len(str(plan)) > 20 and len(str(plan).splitlines()) <= 40


@pytest.mark.parametrize("form", FORMS)
def test_explain_takes_the_arguments_of_every_form(form):
    rows = [paint((n + 1 if form != "stack" else 4, 3), "uint8", n) for n in range(4)]
    facts = wr.explain(rows, form, dtype="float32").as_dict()
    assert facts["bytes_written"] >= FORMS[form](rows, dtype="float32").nbytes
    assert facts["bytes_read"] == sum(row.nbytes for row in rows)


def test_explain_of_padding():
    even = wr.explain([paint(8), paint(8)], "pad").as_dict()
    uneven = wr.explain([paint(8), paint(2)], form="pad", multiple_of=8, mask="real").as_dict()
    assert even["padding_waste"] == 0 < uneven["padding_waste"]


def test_explain_runs_nothing():
    out = poisoned((2, 3))
    before = out.copy()
    wr.reset_stats()
    wr.explain([paint(3)] * 2, out=out)
    assert (out == before).all() and wr.stats()["batches"] == 0


def test_stats():
    wr.reset_stats()
    facts = wr.stats()
    assert isinstance(facts, dict)
    assert {"batches", "samples", "bytes_in", "bytes_out", "padding_bytes", "pool_bytes"} <= set(facts)
    assert all(facts[key] == 0 for key in ("batches", "samples", "bytes_in", "bytes_out", "padding_bytes"))
    wr.stack([paint(100), paint(100)], dtype="float32")
    facts = wr.stats()
    assert (facts["batches"], facts["samples"], facts["bytes_in"], facts["bytes_out"]) == (1, 2, 200, 800)
    wr.pad([paint(10, "int16"), paint(4, "int16")])
    facts = wr.stats()
    assert (facts["batches"], facts["samples"], facts["padding_bytes"]) == (2, 4, 12)
    with pytest.raises(wr.ShapeError):
        wr.stack([paint(3), paint(4)])
    assert wr.stats()["batches"] == 2
    wr.reset_stats()
    assert wr.stats()["batches"] == 0


def test_pool_and_empty_cache():
    for _ in range(5):
        wr.stack([paint(4 << 20)] * 2)
    held = wr.stats()["pool_bytes"]
    assert held >= 0
    live = wr.stack([paint(1 << 20, seed=1)] * 2)
    want = memory(live).copy()
    wr.empty_cache()
    assert wr.stats()["pool_bytes"] <= held
    assert (memory(live) == want).all()
    assert_tensor(wr.stack([paint(1000)]), paint((1, 1000)))


def test_pooled_memory_of_a_live_batch_is_not_given_out_again():
    batches = [wr.stack([paint(300_000, seed=i)] * 2) for i in range(8)]
    arrays = [b.numpy() for b in batches]
    del batches
    more = [wr.stack([paint(300_000, seed=100 + i)] * 2) for i in range(8)]
    for i, array in enumerate(arrays):
        assert (array == paint(300_000, seed=i)).all()
    assert len({pointer(b.data) for b in more} | {pointer(a) for a in arrays}) == 16


# forks


FORK = """
import os, signal, sys
import numpy as np
import windrow as wr

rows = [np.full((512, 1024), i, np.float32) for i in range(16)]
want = np.stack(rows)
engine = wr.Engine(threads=2)
samples = wr.SampleList(rows)
for e in (None, engine):
    assert (wr.stack(rows, engine=e).numpy() == want).all()
kept = wr.stack(rows)

pid = os.fork()
if pid == 0:
    code = 1
    try:
        for e in (None, engine, wr.Engine(threads=2)):
            assert (wr.stack(rows, engine=e).numpy() == want).all()
            assert (wr.stack(rows, engine=e, dtype="float16").numpy() == want).all()
        assert (wr.stack(samples.take([3, 4])).numpy() == want[3:5]).all()
        assert (kept.numpy() == want).all()
        wr.stats(); wr.empty_cache()
        code = 0
    finally:
        os._exit(code)
_, status = os.waitpid(pid, 0)
assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0, status
assert (wr.stack(rows).numpy() == want).all() and (kept.numpy() == want).all()
"""


@pytest.mark.slow
def test_a_child_after_fork_can_assemble():
    done = isolated.python("-c", FORK)
    assert done.returncode == 0, done.stderr


WORKERS = """
import multiprocessing, sys
import numpy as np
import windrow as wr

def work(k):
    return wr.stack([np.full((64, 1024), k + i, np.float32) for i in range(8)]).numpy().sum()

if __name__ == "__main__":
    first = work(0)
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        assert pool.map(work, range(6))[0] == first
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes(method, tmp_path):
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    done = isolated.python(script, method)
    assert done.returncode == 0, done.stderr
