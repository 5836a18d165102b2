"""Deleters that do what they should not, and the memory that they hold meanwhile."""

import ctypes
import gc
import threading
import weakref

import numpy as np
import pytest

import isolated
import windrow as wr
from dlpack_harness import Given, Producer, bare_handle, call_deleter, counting_deleter, managed, rename
from helpers import assert_tensor, freed_once, held, paint, settle, usable

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
    """Ways to use samples and release them again."""

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
    """No caller could be told: Python reports it as unraisable, and what was being done goes on."""

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


def test_deleters_that_leave_an_exception_behind():
    handles = [bare_handle(paint(4, seed=i)) for i in range(3)]
    batch = wr.stack([Given(handle.capsule()) for handle in handles])
    assert_tensor(batch, np.stack([paint(4, seed=i) for i in range(3)]))
    with pytest.raises(wr.ShapeError):
        wr.stack([Given(handle.capsule()) for handle in handles] + [paint(5)])
    with pytest.raises(TypeError, match="PyCapsule"):
        int(wr.asarray(Given(handles[0].capsule())).__dlpack__())
    assert usable()


WITHOUT_THE_LOCK = """
from dlpack_harness import Given, bare_handle, call_deleter, managed, rename
handle = bare_handle(paint(4))
capsule = wr.asarray(Given(handle.capsule())).__dlpack__(max_version=(1, 0))
struct = managed(capsule)
rename(capsule, b"used_dltensor_versioned")
thread = threading.Thread(target=call_deleter, args=(struct,))
thread.start()
thread.join()
assert_tensor(wr.stack([paint(3)]), paint((1, 3)))
"""


@pytest.mark.slow
def test_deleters_are_called_with_the_lock():
    isolated.run(WITHOUT_THE_LOCK)


FREED_BY_TORCH = {
    "generator": "wr.stack(ours(i) for i in range(3))",
    "of another shape": "pytest.raises(wr.ShapeError, wr.stack, (ours(i + 1, 2) for i in range(3)))",
    "trees": "wr.collate({'x': ours(i)} for i in range(3))",
    "list": "wr.SampleList([ours(1)])",
    "appended": "wr.SampleList().append(ours(1))",
    "view": "wr.stack([ours(1)], copy=None)",
    "output": "wr.stack([np.zeros(4)], out=wr.asarray(np.zeros((1, 4))).torch())",
    "collate_fn": "windrow.torch.collate_fn()([{'x': ours(i)} for i in range(3)])",
    "unfit": "pytest.raises(RuntimeError, windrow.torch.collate_fn(), iter_of([ours(i + 1, 2) for i in range(3)]))",
    "export": "wr.asarray(ours(1)).torch()",
    "in a thread": "threading.Thread(target=lambda: wr.stack(ours(i) for i in range(3))).start()",
}


@pytest.mark.slow
@pytest.mark.parametrize("use", FREED_BY_TORCH)
def test_tensors_that_torch_frees_without_the_lock(use, torch):
    """torch releases the lock while it frees a tensor: the memory may be ours, and what we hold for it Python's."""
    isolated.fork(
        f"""
import pytest, weakref, torch, windrow.torch
# Collections do not traverse torch's objects each time.
gc.collect(), gc.freeze()

kept = []

def ours(i, n=None):
    array = np.full(4 if n is None else n + i, float(i))
    kept.append(weakref.ref(array))
    return wr.asarray(array).torch()

def iter_of(samples):
    return list(samples)

for _ in range(20):
    {FREED_BY_TORCH[use]}
    settle()
# The last thread may not be done yet.
for thread in threading.enumerate():
    thread is threading.main_thread() or thread.join()
settle()
assert not [ref for ref in kept if ref() is not None]
assert wr.stack([np.ones(2)]).shape == (1, 2)
"""
    )


def test_an_exception_in_flight_is_given_back():
    """An export that is let go while one is on its way neither loses nor keeps it."""

    class Mine(Exception):
        pass

    class File:
        def write(self, _):
            raised.append(weakref.ref(error := Mine()))
            try:
                raise error
            finally:
                del error

    raised, producers = [], [Producer(paint(4, seed=i)) for i in range(3)]
    for producer in producers:
        try:
            print(wr.stack([producer], copy=False).__dlpack__(), file=File())
        except Mine as error:
            assert error is raised[-1]()
    freed_once(*producers)
    assert [ref() for ref in raised] == [None] * 3


def test_a_tensor_resized_by_a_deleter(torch):
    """The deleter runs when the bytes have been moved."""
    tensor = torch.arange(4, dtype=torch.uint8)
    producer = Deleting(paint(4, seed=5), lambda: tensor.resize_(1 << 20).fill_(9))
    batch = wr.stack([tensor, producer])
    settle()
    producer.close()
    assert producer.acted == 1 and tensor.shape == (1 << 20,)
    assert_tensor(batch, np.stack([np.arange(4, dtype=np.uint8), paint(4, seed=5)]))
