"""Neighbours that misbehave. What is asked of windrow: a typed error or the right batch, every deleter called once, nothing
locked, nothing swallowed, and the next call as if nothing had been. docs/testing.md says what nobody can promise."""

import ctypes
import dataclasses
import gc
import os
import sys
import threading
from collections import UserDict

import numpy as np
import pytest

import isolated
import windrow as wr
from dlpack_harness import (
    CPU,
    CUDA,
    READ_ONLY,
    Given,
    Handle,
    Producer,
    call_deleter,
    counting_deleter,
    managed,
    rename,
)
from helpers import TYPED, assert_tensor, freed_once, memory, paint, refusal, settle, usable

FORMS = {"stack": wr.stack, "concat": wr.concat, "pad": wr.pad, "ragged": wr.ragged}


def held():
    """Bytes of the default engine's pool that belong to somebody."""
    settle()
    return wr.stats()["pool_used_bytes"]


# exceptions that are no answers


class Raises:
    """Raises one exception wherever it is asked for anything named, and is a plain object else."""

    def __init__(self, error, *names):
        self.__dict__.update(error=error, names=names)

    def __getattr__(self, name):
        if name in self.names:
            raise self.error
        raise AttributeError(name)


class LateProducer:
    """`__dlpack__` refuses its arguments so often, and then raises."""

    def __init__(self, error, refusals):
        self.error, self.refusals = error, refusals

    def __dlpack_device__(self):
        return (CPU, 0)

    def __dlpack__(self, **_):
        if not self.refusals:
            raise self.error
        self.refusals -= 1
        raise TypeError("unexpected argument")


def raising(error, base=object, **methods):
    """A class whose named methods raise."""

    def method(*_, **__):
        raise error

    return type("Raising", (base,), dict.fromkeys(methods, method))


def class_that_raises(error):
    def look_up(cls, name):
        raise error

    return type("Meta", (type,), {"__getattr__": look_up})("Class", (), {})


def iterator(error):
    yield paint(3)
    raise error


def table_of(error):
    class Table(UserDict):
        def __getitem__(self, key):
            raise error

    return Table({"x": paint(3)})


def fields_of(error):
    @dataclasses.dataclass
    class Sample:
        x: int = 0

        def __getattribute__(self, name):
            if name == "x":
                raise error
            return super().__getattribute__(name)

    return Sample()


ROWS = [paint(3), paint(3, seed=1)]

HOOKS = {
    "__dlpack_device__": lambda e: wr.stack([*ROWS, raising(e, __dlpack_device__=0, __dlpack__=0)()]),
    **{f"__dlpack__ {n}": lambda e, n=n: wr.stack([*ROWS, LateProducer(e, n)]) for n in range(3)},
    **{
        name: lambda e, name=name: wr.stack([*ROWS, Raises(e, name)])
        for name in ("__dlpack__", "__cuda_array_interface__", "__array_interface__")
    },
    "asarray": lambda e: wr.asarray(Raises(e, "__array_interface__")),
    "out": lambda e: wr.stack(ROWS, out=Raises(e, "__dlpack__")),
    "SampleList": lambda e: wr.SampleList([Raises(e, "__dlpack__")]),
    "extend": lambda e: wr.SampleList(ROWS).extend([paint(3), Raises(e, "__dlpack__")]),
    "explain": lambda e: wr.explain([Raises(e, "__dlpack__")]),
    "class": lambda e: wr.stack([*ROWS, class_that_raises(e)()]),
    "iterator": lambda e: wr.stack(iterator(e)),
    "iterator of trees": lambda e: wr.collate(iterator(e)),
    "tree leaf": lambda e: wr.collate([{"x": Raises(e, "__dlpack__")}]),
    "tree __getitem__": lambda e: wr.collate([{"x": paint(3)}, table_of(e)]),
    "tree __len__": lambda e: wr.collate([raising(e, list, __len__=0)([1])]),
    "tree field": lambda e: wr.collate([fields_of(e)]),
    "tree key": lambda e: wr.collate([{raising(e, __str__=0)(): 1}]),
    "spec": lambda e: wr.collate([1], Raises(e, "form")),
    "index array": lambda e: wr.SampleList(ROWS).take(Raises(e, "__dlpack__")),
    "index": lambda e: wr.SampleList(ROWS).take([raising(e, __index__=0)()]),
    "dim": lambda e: wr.concat(ROWS, dim=raising(e, __index__=0)()),
    "dims": lambda e: wr.pad(ROWS, dims=raising(e, __iter__=0)()),
    "size": lambda e: wr.pad(ROWS, size=[raising(e, __index__=0)()]),
    "value": lambda e: wr.pad(ROWS, value=raising(e, __index__=0)()),
    "value float": lambda e: wr.pad(ROWS, value=raising(e, __float__=0)()),
    "dtype": lambda e: wr.stack(ROWS, dtype=Raises(e, "name")),
    "device": lambda e: wr.stack(ROWS, device=raising(e, __str__=0)()),
    "stream": lambda e: wr.stack(ROWS, stream=Raises(e, "__cuda_stream__")),
    "stream handle": lambda e: wr.stack(ROWS, stream=raising(e, __index__=0)()),
    "export stream": lambda e: wr.stack(ROWS).__dlpack__(stream=raising(e, __index__=0)()),
    "export device": lambda e: wr.stack(ROWS).__dlpack__(dl_device=(1, raising(e, __index__=0)())),
}


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, type("Own", (BaseException,), {})])
@pytest.mark.parametrize("hook", HOOKS)
def test_what_is_no_answer_passes_unchanged(hook, kind):
    error, before = kind("stop"), held()
    with pytest.raises(BaseException) as caught:
        HOOKS[hook](error)
    assert caught.value is error and error.__cause__ is None
    del caught
    error.__traceback__ = None
    assert held() == before and usable()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_torch_rules_pass_it_on_too(kind, torch):
    """There a refusal is a reason to ask torch's own function, which may well succeed."""
    import windrow.torch

    error = kind("stop")
    raised = []

    class Once(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            if not raised:
                raised.append(function)
                raise error
            return super().__torch_function__(function, types, args, kwargs or {})

    rows = [torch.ones(4).as_subclass(Once) for _ in range(2)]
    raised.clear()
    for batch in (rows, [table_of(error)] * 2):
        with pytest.raises(kind) as caught:
            windrow.torch.collate_fn()(batch)
        assert caught.value is error


def test_other_errors_of_attributes_pass_too():
    for kind in (ZeroDivisionError, RuntimeError, MemoryError):
        error = kind("x")
        for name in ("__dlpack__", "__cuda_array_interface__", "__array_interface__"):
            with pytest.raises(kind) as caught:
                wr.stack([*ROWS, Raises(error, name)])
            assert caught.value is error
    assert usable()


def test_what_an_iterator_raised_is_the_cause():
    own = TypeError("the caller's own mistake")
    caught = refusal(lambda: wr.stack(iterator(own)), TypeError, "expected a list of samples")
    assert caught.__cause__ is own


# producers and their capsules


def test_another_capsule_each_time():
    producer = Producer(paint(5))
    for _ in range(3):
        assert_tensor(wr.stack([producer, producer]), np.stack([paint(5)] * 2))
    assert len(producer.handles) == 6
    freed_once(producer)


def test_another_shape_each_time():
    class Growing(Producer):
        def __dlpack__(self, **kwargs):
            self.array = paint(len(self.handles) + 1, "int32")
            return super().__dlpack__(**kwargs)

    producer = Growing(None)
    batch = wr.pad([producer, producer, producer], mask="real")
    assert memory(batch.lengths).tolist() == [1, 2, 3]
    for i, row in enumerate(batch):
        assert_tensor(row, paint(i + 1, "int32"))
    refusal(lambda: wr.stack([producer, producer]), wr.ShapeError, index=1, expected=(4,), got=(5,))
    freed_once(producer)


def test_the_same_capsule_twice():
    handle = Handle(paint(4))
    capsule = handle.capsule()
    giver = Given(capsule)
    refusal(lambda: wr.stack([giver, giver]), ValueError, "sample 1.*already consumed")
    settle()
    assert handle.deleted == 1
    refusal(lambda: wr.stack([giver]), ValueError, "sample 0.*already consumed")
    assert handle.deleted == 1


@pytest.mark.parametrize("thing", [None, 5, "dltensor", b"", object(), (), wr.asarray(b"x"), np.zeros(3)], ids=lambda thing: type(thing).__name__)
def test_something_else_than_a_capsule(thing):
    refusal(lambda: wr.stack([paint(3), Given(thing)]), TypeError)


@pytest.mark.parametrize("announced", [(CUDA, 0), (CPU, 0), (13, 0), (7, 0), (-5, 1), (2**40, 0), (1,), "cpu", None])
@pytest.mark.parametrize("told", [(CUDA, 0), (CPU, 0), (13, 0), (99, 3)])
def test_liars_about_their_device(announced, told):
    """The memory is the host's. Whatever is said of it, it is either read right or refused."""
    producer = Producer(paint(6), dunder=announced, device=told)
    before = held()
    try:
        batch = wr.stack([producer, producer], device="cpu")
    except (*TYPED, TypeError, OverflowError, wr.CudaUnavailable):
        pass
    else:
        assert told == (CPU, 0)
        assert_tensor(batch, np.stack([paint(6)] * 2))
        del batch
    assert held() == before and usable()
    if producer.handles:
        freed_once(producer)


def test_host_memory_claimed_to_be_a_devices(sim):
    """Read by a kernel, it would end all work of the process on that device."""
    for named in ((CUDA, 0), (13, 0)):
        producer = Producer(paint(6), device=named)
        refusal(lambda: wr.stack([producer]), (wr.DeviceError, wr.LayoutError), "sample 0", index=0)
        freed_once(producer)

    class Claims:
        array = paint(6)
        __cuda_array_interface__ = {"version": 3, "shape": (6,), "typestr": "|u1", "data": (array.ctypes.data, False)}

    refusal(lambda: wr.stack([Claims()]), wr.DeviceError, "sample 0", index=0)
    refusal(lambda: wr.stack([paint(6)], out=Claims()), wr.DeviceError)
    assert sim.misuse() == []


def test_raising_in_the_middle_frees_what_came_before():
    for kind in (ValueError, BufferError, TypeError, KeyboardInterrupt):
        producers = [Producer(paint(4, seed=i)) for i in range(5)]
        with pytest.raises((kind, wr.LayoutError)):
            wr.stack([*producers, LateProducer(kind("no"), 0)])
        freed_once(*producers)
    assert usable()


# deleters


_call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Deleting(Producer):
    """Its deleters run Python code, `act`, which has the whole interpreter to itself."""

    def __init__(self, array, act, **build):
        super().__init__(array, **build)
        self.act, self.acted, self.failures = act, 0, []
        self.deleter = _call(self.delete)

    def delete(self, address):
        counting_deleter(address)
        self.acted += 1
        try:
            self.act()
        except BaseException as error:
            self.failures.append(error)

    def __dlpack__(self, **kwargs):
        capsule = super().__dlpack__(**kwargs)
        self.handles[-1].struct.deleter = ctypes.cast(self.deleter, ctypes.c_void_p).value
        return capsule


def everything():
    """Enters windrow by every door."""
    rows = [paint(300_000, seed=i) for i in range(4)]
    assert_tensor(wr.stack(rows), np.stack(rows))
    samples = wr.SampleList(rows[:2])
    samples.append(rows[2])
    wr.pad(samples, mask="real"), wr.ragged(rows), wr.collate([{"x": row} for row in rows])
    wr.stats(), wr.empty_cache(), wr.explain(rows), wr.Engine(threads=2), wr.asarray(rows[0])
    with pytest.raises(wr.ShapeError):
        wr.stack([paint(1), paint(2)])
    gc.collect()


def uses():
    """Ways to use samples and let go of them again."""

    def after_a_call(samples):
        wr.stack(samples)

    def after_an_error(samples):
        with pytest.raises(wr.ShapeError):
            wr.stack([*samples, paint(1)])

    def after_an_error_of_import(samples):
        with pytest.raises(TypeError):
            wr.stack([*samples, object()])

    def with_a_view(samples):
        wr.stack(samples[:1], copy=False).numpy()

    def with_a_list(samples):
        kept = wr.SampleList(samples)
        kept.extend(samples)
        kept.take([0, 0, 1])

    def with_a_tree(samples):
        wr.collate([{"x": sample} for sample in samples])

    def as_output(samples):
        wr.stack([paint(64)], out=samples[0])

    def by_another_thread(samples):
        kept = [wr.stack(samples[:1], copy=False)]
        thread = threading.Thread(target=kept.clear)
        thread.start()
        thread.join()

    def by_a_consumer_without_the_lock(samples):
        capsule = wr.stack(samples[:1], copy=False).__dlpack__(max_version=(1, 0))
        struct = managed(capsule)
        rename(capsule, b"used_dltensor_versioned")
        thread = threading.Thread(target=call_deleter, args=(struct,))
        thread.start()
        thread.join()

    def while_an_exception_is_in_flight(samples):
        with pytest.raises(TypeError, match="PyCapsule"):
            int(wr.stack(samples[:1], copy=False).__dlpack__())

    return {name: use for name, use in locals().items()}


@pytest.mark.parametrize("use", uses().values(), ids=uses())
def test_deleters_that_enter_windrow(use):
    before = held()
    shape = (1, 64) if use.__name__ == "as_output" else (64,)
    producers = [Deleting(paint(64, seed=i).reshape(shape), everything) for i in range(3)]
    use(producers)
    settle()
    for producer in producers:
        producer.close()
        assert producer.failures == []
        assert producer.acted == len(producer.handles) and producer.deleted == [1] * len(producer.handles)
    assert held() == before and usable()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_deleters_that_raise():
    """Nobody could be told: Python reports it as unraisable, and what was being done goes on."""

    class Complaining(Deleting):
        def delete(self, address):
            super().delete(address)
            raise KeyboardInterrupt("from a deleter")

    producers = [Complaining(paint(4, seed=i), lambda: None) for i in range(3)]
    assert_tensor(wr.stack(producers), np.stack([paint(4, seed=i) for i in range(3)]))
    freed_once(*producers)
    with pytest.raises(wr.ShapeError) as caught:
        wr.stack([*producers, paint(5)])
    assert caught.value.index == 3 and caught.value.__cause__ is None
    freed_once(*producers)


# consumers


def test_a_consumer_that_never_lets_go():
    """The memory stays, is nobody else's, and is seen in the figures."""
    wr.empty_cache()
    before = held()
    capsule = wr.stack([paint(1 << 20)]).__dlpack__(max_version=(1, 0))
    struct = managed(capsule)
    rename(capsule, b"used_dltensor_versioned")
    del capsule
    assert held() >= before + (1 << 20)
    others = [wr.stack([paint(1 << 20, seed=9)]) for _ in range(4)]
    assert struct.dl_tensor.data not in [batch.data_ptr() for batch in others]
    assert ctypes.string_at(struct.dl_tensor.data, 1 << 20) == paint(1 << 20).tobytes()
    del others
    call_deleter(struct)
    assert held() == before


def test_exports_of_read_only_memory_say_so_everywhere(torch):
    base = paint((4, 5))
    base.flags.writeable = False
    batch = wr.stack(list(base), copy=False)
    assert memoryview(batch).readonly and not batch.numpy().flags.writeable
    assert batch.__array_interface__["data"][1]
    assert managed(batch.__dlpack__(max_version=(1, 0))).flags & READ_ONLY
    refusal(lambda: batch.__dlpack__(), BufferError, "read-only")
    refusal(lambda: np.asarray(batch).__setitem__(0, 1), ValueError, "read-only")
    refusal(lambda: memoryview(batch).__setitem__((0, 0), 1), TypeError, "read-only")
    refusal(lambda: wr.stack([paint(5)] * 4, out=batch), wr.LayoutError, "read-only")


# objects that are not what they say


class Long(list):
    """Says that it is longer than memory."""

    def __len__(self):
        return 2**62


class LongTuple(tuple):
    def __len__(self):
        return 2**62


class Short(list):
    def __len__(self):
        return 0


def described(**changes):
    class Described:
        array = paint(4, "int32")
        __array_interface__ = {
            "version": 3,
            "shape": (4,),
            "typestr": "<i4",
            "data": (array.ctypes.data, False),
            **changes,
        }

    return Described()


LIES = {
    "tree": lambda make: wr.collate([make([1, 2]), make([3, 4])]),
    "tree in a tree": lambda make: wr.collate([{"x": make([1, 2])}]),
    "samples": lambda make: wr.stack(make([1, 2])),
    "trees": lambda make: wr.collate(make([1, 2])),
    "indices": lambda make: wr.SampleList([1, 2]).take(make([1, 0])),
    "shape": lambda make: wr.stack([described(shape=make([4]))]),
    "strides": lambda make: wr.stack([described(strides=make([4]))]),
    "offsets": lambda make: wr.SampleList.split(b"abc", make([0, 3])),
    "dims": lambda make: wr.pad([paint(3)], dims=make([0])),
    "permute": lambda make: wr.Transform(permute=make([0])),
    "mean": lambda make: wr.Transform(mean=make([0.0])),
    "extend": lambda make: wr.SampleList([1]).extend(make([2])),
}


@pytest.mark.parametrize("make", [Long, LongTuple, Short])
@pytest.mark.parametrize("lie", LIES)
def test_lengths_that_lie(lie, make):
    try:
        LIES[lie](make)
    except (TypeError, ValueError, IndexError, MemoryError) as error:
        assert type(error).__module__ in ("builtins", "windrow")
    assert usable()


def test_lists_that_change_while_they_are_read():
    for change in (list.clear, lambda samples: samples.extend([paint(9)] * 1000), lambda samples: samples.sort(key=id)):
        samples = []

        class Changing(Producer):
            def __dlpack__(self, **kwargs):
                change(samples)
                return super().__dlpack__(**kwargs)

        samples += [Changing(paint(4, seed=i)) for i in range(6)]
        producers = list(samples)
        assert_tensor(wr.stack(samples), np.stack([paint(4, seed=i) for i in range(6)]))
        freed_once(*producers)


def test_trees_that_change_while_they_are_read():
    trees = []

    class Changing(Producer):
        def __dlpack__(self, **kwargs):
            for tree in trees:
                tree.clear()
            return super().__dlpack__(**kwargs)

    trees += [{"a": Changing(paint(4, seed=i)), "b": [i, float(i)]} for i in range(3)]
    batch = wr.collate(trees)
    assert_tensor(batch["a"], np.stack([paint(4, seed=i) for i in range(3)]))
    assert memory(batch["b"][1]).tolist() == [0.0, 1.0, 2.0]


def test_an_interface_that_changes_is_asked_once():
    class Changing:
        arrays = [paint(4, "int32", seed) for seed in range(10)]

        def __init__(self):
            self.asked = 0

        @property
        def __array_interface__(self):
            array = self.arrays[self.asked]
            self.asked += 1
            return array.__array_interface__

    samples = [Changing() for _ in range(3)]
    assert_tensor(wr.stack(samples), np.stack([paint(4, "int32", 0)] * 3))
    assert [sample.asked for sample in samples] == [1] * 3


def test_a_class_by_the_name_of_numpys():
    """Its `__array_struct__` is nothing that may be believed."""

    class ndarray:
        __array_struct__ = Handle(paint(4)).capsule()

    ndarray.__module__, ndarray.__qualname__ = "numpy", "ndarray"
    refusal(lambda: wr.stack([ndarray()]), TypeError, "expected an array-like")

    class ndarray:  # noqa: F811
        def __array_interface__(self):
            return paint(4).__array_interface__

    ndarray.__module__, ndarray.__qualname__ = "numpy", "ndarray"
    ndarray.__array_interface__ = property(ndarray.__array_interface__)
    assert_tensor(wr.stack([ndarray()]), paint((1, 4)))


def test_subclasses_of_torchs_tensor(torch):
    calls = []

    class Sub(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            calls.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    rows = [torch.full((4,), float(i)).as_subclass(Sub) for i in range(3)]
    assert_tensor(wr.stack(rows), np.stack([np.full(4, i, np.float32) for i in range(3)]))

    class Refusing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            raise KeyboardInterrupt("from torch")

    bad = torch.ones(4).as_subclass(Refusing)
    try:
        assert_tensor(wr.stack([*rows, bad]), np.stack([np.full(4, v, np.float32) for v in (0, 1, 2, 1)]))
    except KeyboardInterrupt as error:
        assert str(error) == "from torch"
    assert usable()


# memory that moves


def test_memory_that_is_held_cannot_be_resized():
    """What windrow holds by a protocol that can say so is refused by its owner, not by us."""

    class Resizing(Producer):
        def __dlpack__(self, **kwargs):
            with pytest.raises(BufferError):
                grown.extend(b"more")
            with pytest.raises(ValueError):
                array.resize(1000)
            return super().__dlpack__(**kwargs)

    grown, array = bytearray(b"abcd"), paint(4).copy()
    batch = wr.stack([grown, array, Resizing(paint(4, seed=7))])
    assert_tensor(batch, np.stack([np.frombuffer(b"abcd", np.uint8), paint(4), paint(4, seed=7)]))
    grown.extend(b"after")
    samples = wr.SampleList([grown])
    with pytest.raises(BufferError):
        grown.clear()
    del samples
    settle()
    grown.clear()


def test_a_tensor_resized_by_a_deleter(torch):
    """The deleter runs when the bytes have been moved."""
    tensor = torch.arange(4, dtype=torch.uint8)
    producer = Deleting(paint(4, seed=5), lambda: tensor.resize_(1 << 20).fill_(9))
    batch = wr.stack([tensor, producer])
    settle()
    producer.close()
    assert producer.acted == 1 and tensor.shape == (1 << 20,)
    assert_tensor(batch, np.stack([np.arange(4, dtype=np.uint8), paint(4, seed=5)]))


# signals


INTERRUPT = """
rows = [paint(1 << 20, seed=i) for i in range(8)] * 8
want = np.stack(rows)
out = np.empty_like(want)
wr.stack(rows)
interrupted = 0
for n in range(12):
    wr.empty_cache()
    begun = threading.Event()
    def interrupt():
        begun.wait()
        time.sleep(0.001 * (n % 4))
        os.kill(os.getpid(), signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        begun.set()
        if n % 2:
            kept = wr.stack(rows)
        else:
            kept = wr.collate([{"x": row, "y": i} for i, row in enumerate(rows)])
        while True:
            pass
    except KeyboardInterrupt:
        interrupted += 1
    thread.join()
    kept = None
    settle()
    assert wr.stats()["pool_used_bytes"] == 0, wr.stats()
assert interrupted == 12
assert (wr.stack(rows, out=out).numpy() == want).all() and (out == want).all()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SKIP: no SIGINT by os.kill")
def test_interrupted_in_the_middle():
    """A signal is looked at by Python code, of which none runs while windrow moves bytes: the call ends, then
    KeyboardInterrupt is raised and the batch is let go of."""
    isolated.run(INTERRUPT)


# forks


FORK = """
big = [paint(1 << 20, seed=i) for i in range(2)]
rows = [paint(1 << 15, seed=i) for i in range(3)]
if sys.argv[1] == "threads":
    # Starts the threads of engines, one after the other.
    engine = wr.Engine(threads=6)
    def work():
        global engine
        engine = wr.Engine(threads=6)
        wr.stack(big, engine=engine)
else:
    # Takes blocks of the pool and gives them back; with so many free ones that takes its time.
    engine = None
    many = [wr.stack(rows) for _ in range(2000)]
    del many
    def work():
        wr.stack(rows)
want = np.stack(rows)
stop = False
def busy():
    while not stop:
        work()
threads = [threading.Thread(target=busy) for _ in range(3)]
for thread in threads:
    thread.start()
kept = wr.stack(rows, engine=wr.Engine(threads=2))
view = wr.stack(rows[:1], copy=False)
try:
    for n in range(int(sys.argv[2])):
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            code = 1
            try:
                assert (wr.stack(big, engine=engine).numpy() == np.stack(big)).all()
                assert (wr.stack(rows).numpy() == want).all()
                assert (wr.stack(big).numpy() == np.stack(big)).all()
                assert (wr.stack(big, engine=wr.Engine(threads=2)).numpy() == np.stack(big)).all()
                assert wr.stats()["pool_used_bytes"] >= 0
                wr.empty_cache()
                del kept, view
                gc.collect()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"child {n}: status {status:#x}"
finally:
    stop = True
for thread in threads:
    thread.join()
assert (wr.stack(rows).numpy() == want).all() and (kept.numpy() == want).all()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="SKIP: no fork on this system")
@pytest.mark.parametrize("busy", ["pool", "threads"])
def test_a_fork_while_other_threads_assemble(busy):
    isolated.run(FORK, busy, 60, timeout=300)


# interpreters


SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
script = f'''
import sys
sys.path[:] = {sys.path!r}
try:
    import windrow
except ImportError as error:
    assert "subinterpreter" in str(error), error
else:
    raise SystemExit("windrow was imported")
'''
for _ in range(2):
    one = interpreters.create()
    failed = interpreters.run_string(one, script)
    assert failed is None, failed
    interpreters.destroy(one)
assert_tensor(wr.stack([paint(3)]), paint((1, 3)))
"""


def test_subinterpreters_are_refused():
    try:
        __import__("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    except ImportError:
        pytest.skip("SKIP: this Python has no subinterpreters")
    isolated.run(SUBINTERPRETER)
