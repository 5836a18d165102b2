"""Neighbours that misbehave. What is asked of windrow: a typed error or the right batch, every deleter called once, nothing
locked, nothing swallowed, and the next call as if nothing had been. docs/testing.md says what cannot be promised."""

import ctypes
import dataclasses
import warnings
from collections import UserDict

import numpy as np
import pytest

import windrow as wr
from dlpack_harness import (
    CPU,
    CUDA,
    READ_ONLY,
    Given,
    Handle,
    Producer,
    call_deleter,
    managed,
    rename,
)
from helpers import TYPED, assert_tensor, freed_once, held, memory, paint, refusal, settle, usable


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


def class_of(error):
    """`isinstance` asks for its class, and does not get it."""

    def asked(self):
        raise error

    return type("Class", (), {"__class__": property(asked)})()


def class_without_words(error):
    return raising(error, type, __repr__=0)("Class", (), {})


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
    # The object that an error would have quoted.
    "int beyond 64 bits": lambda e: wr.stack([raising(e, int, __str__=0)(2**70)]),
    "value beyond every dtype": lambda e: wr.pad(ROWS, value=raising(e, int, __str__=0)(2**200)),
    "size beyond 64 bits": lambda e: wr.pad(ROWS, size=raising(e, int, __repr__=0)(2**70)),
    "size of no kind": lambda e: wr.pad(ROWS, size=raising(e, __repr__=0)()),
    "dtype of no name": lambda e: wr.stack(ROWS, dtype=type("D", (raising(e, __str__=0),), {"name": "nope"})()),
    "refusal": lambda e: wr.stack([*ROWS, LateProducer(BufferError(raising(e, __str__=0)()), 0)]),
    "class of a leaf": lambda e: wr.collate([class_of(e)]),
    "class of a later sample": lambda e: wr.collate([{"x": 1}, class_of(e)]),
    "class of the samples": lambda e: wr.stack(class_of(e)),
    "class of a stream": lambda e: wr.stack(ROWS, stream=class_without_words(e)()),
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


def test_host_memory_claimed_to_be_a_devices(driver):
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


def test_raising_in_the_middle_frees_what_came_before():
    for kind in (ValueError, BufferError, TypeError, KeyboardInterrupt):
        producers = [Producer(paint(4, seed=i)) for i in range(5)]
        with pytest.raises((kind, wr.LayoutError)):
            wr.stack([*producers, LateProducer(kind("no"), 0)])
        freed_once(*producers)
    assert usable()


# consumers


def test_a_consumer_that_never_lets_go():
    """The memory stays, has no other user, and is seen in the figures."""
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


def test_torch_tensors_of_read_only_memory_come_with_its_warning(torch):
    base = paint((4, 5))
    base.flags.writeable = False
    with pytest.warns(UserWarning, match="not writ") as of_torch:
        torch.from_numpy(base)
    views = [wr.asarray(base), wr.stack(list(base), copy=False), wr.SampleList(base)[0], wr.SampleList([base, base])[1], wr.asarray(b"abc")]
    for view in views:
        with pytest.warns(UserWarning, match="read-only") as ours:
            view.torch()
        # The warning names the caller's line.
        assert len(ours) == 1 and ours[0].filename == of_torch[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="read-only"):
                view.torch()
            # Torch itself reads the view: it is told in another way.
            torch.from_dlpack(view)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in (wr.stack(list(base)), wr.asarray(paint(3)), wr.asarray(torch.ones(3)), wr.ragged(list(base))):
            batch.torch()


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

    array = paint(4)

    class ndarray:  # noqa: F811
        def __array_interface__(self):
            return array.__array_interface__

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
    """Resizes of memory that windrow holds by such a protocol are refused by the owner, not by windrow."""

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
