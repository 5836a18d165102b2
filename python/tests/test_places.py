"""Memory that an owner exchanges or moves while a list, a tensor or a view of ours still knows it.

Freed memory is painted by the C library (`MALLOC_PERTURB_`), so that a read of it shows.
"""

import operator

import numpy as np
import pytest

import isolated
import windrow as wr
from helpers import Lent, refusal

torch = pytest.importorskip("torch")

PRELUDE = """
import torch
from helpers import refusal, relocate
torch.set_num_threads(1)
# Collections do not traverse torch's objects each time.
gc.collect(), gc.freeze()
N = 1000

def rows():
    return [torch.full((N,), float(i)) for i in range(5)]

def churn():
    gc.collect()
    return [torch.full((N,), -1.0) for _ in range(64)]

class Mine(torch.Tensor):
    pass

exchange, move = {}, {}
exchange["data"] = lambda x: setattr(x, "data", torch.zeros(N))
exchange["set_"] = lambda x: x.set_(torch.zeros(3))
exchange["swap"] = lambda x: torch.utils.swap_tensors(x, torch.zeros(N))
move["share_memory_"] = lambda x: x.share_memory_()
move["resize_"] = lambda x: x.resize_(100 * N)
move["storage"] = lambda x: x.untyped_storage().resize_(0)
"""
# How torch's storages are read: their words, or torch's own functions.
LAYOUTS = {"words": {}, "functions": {"WINDROW_PRIVATE_LAYOUTS": "0"}}


def run(script, layout="words"):
    isolated.fork(PRELUDE + script, env={"MALLOC_PERTURB_": "165", **LAYOUTS[layout]})


LISTS = """
makers = {
    "rows": (lambda t: wr.SampleList(t), None),
    "subclass": (lambda t: wr.SampleList([x.as_subclass(Mine) for x in t]), None),
    "parameters": (lambda t: wr.SampleList([torch.nn.Parameter(x, requires_grad=False) for x in t]), None),
    "extended": (lambda t: (lambda l: (l.extend(t[2:]), l)[1])(wr.SampleList(t[:2])), None),
    "appended": (lambda t: (lambda l: ([l.append(x) for x in t], l)[1])(wr.SampleList()), None),
    "joined": (lambda t: (lambda l: (l.extend(wr.SampleList(t).take([2, 3, 4])), l)[1])(wr.SampleList(t).take([0, 1])), None),
    "taken": (lambda t: wr.SampleList(t).take([4, 3, 2, 1, 0]).take([-1, -2, -3, -4, -5]), None),
    "beside others": (lambda t: (lambda l: (l.extend(t[1:]), l)[1])(wr.SampleList([np.zeros(N, "f4")])), None),
    "of tensors of ours": (lambda t: wr.SampleList([wr.asarray(x) for x in t]), None),
    "of its own items": (lambda t: wr.SampleList(list(map(wr.SampleList(t).__getitem__, range(5)))), None),
}
for name, (make, _) in makers.items():
    for how, act in [*exchange.items(), *move.items()]:
        tensors = rows()
        samples = make(tensors)
        own = tensors[3] if name not in ("subclass", "parameters") else None
        if own is None:
            # The list has its own objects over the same storage.
            if how not in move:
                continue
            own = tensors[3]
        act(own)
        junk = churn()
        want = np.repeat(np.arange(5, dtype="f4"), N).reshape(5, N)
        if how in exchange:
            assert_tensor(wr.stack(samples), want)
            assert_tensor(wr.stack(samples.take([3, -1])), want[[3, 4]])
            assert (samples[3].numpy() == 3).all()
            continue
        error = refusal(lambda: wr.stack(samples), wr.LayoutError, "moved or freed since.*import it again")
        assert error.index == 3, (name, how, error)
        for form in (wr.pad, wr.concat, wr.ragged):
            assert refusal(lambda: form(samples.take([0, 3, -2])), wr.LayoutError).index == 1
        assert refusal(lambda: samples[3], wr.LayoutError).index == 3
        assert_tensor(wr.stack(samples.take([0, 4, 2])), want[[0, 4, 2]])
        assert (samples[2].numpy() == 2).all()
"""


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_lists_whose_storage_was_exchanged_or_moved(layout):
    run(LISTS, layout)


SINGLE = """
del exchange["swap"]  # A tensor that has views cannot be swapped.
for how, act in [*exchange.items(), *move.items()]:
    tensor, table, flat = torch.full((N,), 3.0), torch.full((5, N), 3.0), torch.full((N,), 3.0)
    view, rows_of, item = wr.asarray(tensor), wr.SampleList(table), wr.SampleList(table)[1]
    split = wr.SampleList.split(flat, [0, 3, N])
    batch = wr.stack(list(table.view(5, N)), copy=None)
    assert batch.data_ptr() == table.data_ptr()
    for x in (tensor, table, flat):
        act(x)
    junk = churn()
    reads = [view.numpy, view.torch, lambda: np.asarray(view), lambda: memoryview(view), lambda: view.__dlpack__(), lambda: torch.from_dlpack(view),
             lambda: view.__array_interface__, lambda: pickle.dumps(view), lambda: wr.asarray(view), lambda: wr.stack([view]),
             lambda: wr.stack([view], copy=None), lambda: wr.concat([np.ones(N, "f4")], out=view), item.numpy, batch.numpy, lambda: batch[2].numpy(),
             lambda: wr.stack([batch]), lambda: wr.stack(rows_of), lambda: wr.pad(split), lambda: wr.stack(rows_of.take([1, 1])), lambda: rows_of[0]]
    for number, read in enumerate(reads):
        if how in exchange:
            read()
        else:
            refusal(read, wr.LayoutError, "import it again")
    if how in exchange:
        assert (np.asarray(item) == 3).all() and (wr.stack(rows_of).numpy() == 3).all() and (batch.numpy() == 3).all()
"""


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_views_tables_and_pieces_of_moved_storage(layout):
    run("import pickle\n" + SINGLE, layout)


@pytest.mark.slow
def test_a_module_that_changes_its_dtype():
    run("""
module = torch.nn.Linear(N, 4).requires_grad_(False)
want = module.weight.numpy().copy()
samples, view = wr.SampleList(list(module.parameters())), wr.asarray(module.weight)
module.half()
junk = churn()
assert_tensor(wr.stack(samples.take([0])), want[None])
assert (view.numpy() == want).all() and module.weight.dtype == torch.float16
""")


@pytest.mark.slow
def test_shared_by_a_loader_of_another_process():
    run("""
tensors = rows()
samples = wr.SampleList(tensors)
from multiprocessing.reduction import ForkingPickler
import torch.multiprocessing
ForkingPickler.dumps(tensors[1])
junk = churn()
assert refusal(lambda: wr.stack(samples), wr.LayoutError).index == 1
assert (wr.stack(wr.SampleList(tensors)).numpy()[:, 0] == range(5)).all()
""")


@pytest.mark.slow
def test_numpy_arrays_that_are_resized():
    run("""
arrays = [np.full(N, i, "f4") for i in range(5)]
samples, view = wr.SampleList(arrays), wr.asarray(arrays[2])
wr.stack(samples)
relocate(arrays[2])
junk = churn()
assert refusal(lambda: wr.stack(samples), wr.LayoutError).index == 2
assert refusal(lambda: wr.stack(samples.take([4, 2])), wr.LayoutError).index == 1
refusal(view.numpy, wr.LayoutError)
assert_tensor(wr.stack(samples.take([4])), arrays[4][None])
""")


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_without_numbers_before_a_tensor_that_is_moved(layout):
    run("""
for tensors in (rows(), [x.as_subclass(Mine) for x in rows()]):
    for moved in range(5):
        samples = wr.SampleList([[], [], *tensors])
        wr.ragged(samples)
        tensors[moved].untyped_storage().resize_(0)
        junk = churn()
        assert refusal(lambda: wr.ragged(samples), wr.LayoutError).index == 2 + moved
        assert refusal(lambda: samples[2 + moved], wr.LayoutError).index == 2 + moved
        tensors[moved] = torch.zeros(N)
""", layout)


@pytest.mark.slow
def test_jax_arrays_that_are_deleted_stay():
    pytest.importorskip("jax")
    run("""
import jax
arrays = [jax.numpy.full(N, float(i)) for i in range(5)]
samples, view = wr.SampleList(arrays), wr.asarray(arrays[3])
for array in arrays:
    array.delete()
junk = churn()
assert (wr.stack(samples).numpy()[:, 0] == range(5)).all() and (view.numpy() == 3).all()
""")


def test_what_is_handed_on_is_not_watched():
    """The docstring of SampleList says so: an array over a view of ours is the caller's."""
    tensor = torch.zeros(4)
    array = wr.asarray(tensor).numpy()
    tensor.untyped_storage().resize_(0)
    assert array.shape == (4,)  # The elements are not read.


@pytest.mark.parametrize("read", [float, int, complex, bool, operator.index, bytes])
def test_numbers_and_bytes_of_memory_that_moved_are_refused(read):
    tensor = torch.ones(1 << 20, dtype=torch.int64)
    element = wr.asarray(tensor[5:6])
    assert read(element)
    tensor.untyped_storage().resize_(0)
    refusal(lambda: read(element), wr.LayoutError, "moved")


def test_nested_tensors_of_memory_that_moved_are_refused():
    tensor = torch.ones(1 << 20, 4)
    batch = wr.ragged([tensor], copy=False)
    tensor.untyped_storage().resize_(0)
    refusal(batch.nested, wr.LayoutError, "moved")


@pytest.mark.parametrize("protocol", ["__dlpack__", "__array_interface__"])
def test_objects_of_other_libraries_that_exchange_their_memory(protocol):
    """The docstring of SampleList says that this is not noticed. A list has what was lent; a call has what is there."""
    if protocol == "__array_interface__":
        array = type("Array", (), {"__array_interface__": property(lambda self: self.data.__array_interface__)})()
        array.data = np.ones(4, np.float32)
    else:
        array = Lent(np.ones(4, np.float32))
    before, samples = array.data, wr.SampleList([array])
    array.data = np.zeros(4, np.float32)
    assert (wr.stack(samples).numpy() == 1).all() and (wr.stack([array]).numpy() == 0).all()
    assert before is not array.data  # Kept here: nothing else has to.


@pytest.mark.slow
def test_a_call_on_samples_that_move_later():
    run("""
tensors = rows()
batch = wr.stack(tensors)
for x in tensors:
    x.resize_(100 * N)
junk = churn()
assert (batch.numpy()[:, 0] == range(5)).all()
""")
