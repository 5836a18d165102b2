"""DLPack export: the producer checks P1 to P16 for host memory."""

import ctypes
import gc
import os
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import isolated
import oracle
import windrow as wr
from dlpack_harness import (
    CODES,
    CPU,
    IS_COPIED,
    LEGACY,
    READ_ONLY,
    USED_LEGACY,
    USED_VERSIONED,
    VERSIONED,
    Given,
    call_deleter,
    exchange_table,
    managed,
    name_of,
    rename,
    shape_of,
    strides_of,
)
from helpers import assert_same, memory, numpy_takes_versions, paint, pointer, samples_of, settle

BOTH = [{}, {"max_version": (1, 0)}]


def batch_of(name="float32", shape=(3, 4)):
    return wr.stack(samples_of([paint(shape, name, 9 * i) for i in range(5)], name))


def owned():
    """A windrow view of an array, and a weak reference that tells when the array has gone."""
    array = paint((3, 4), "float32").copy()
    return wr.asarray(array), weakref.ref(array)


def gone(ref):
    settle()
    return ref() is None


# P1, P2


def test_p1_device():
    for thing in (batch_of(), batch_of().data, wr.asarray(paint((4, 6)).T), wr.asarray(paint((4, 6))[::2, ::-1])):
        device = thing.__dlpack_device__()
        assert type(device) is tuple and len(device) == 2
        assert [int(v) for v in device] == [CPU, 0] and all(isinstance(v, int) for v in device)


@pytest.mark.parametrize("thing", [batch_of, lambda: batch_of().data])
def test_p2_versions(thing):
    thing = thing()
    for arguments in ({}, {"max_version": None}, {"max_version": (0, 0)}, {"max_version": (0, 8)}):
        assert name_of(thing.__dlpack__(**arguments)) == LEGACY
    for version in ((1, 0), (1, 3), (2, 0), (10, 10), (100, 3)):
        capsule = thing.__dlpack__(max_version=version)
        assert name_of(capsule) == VERSIONED
        assert managed(capsule).version.major == 1


@pytest.mark.parametrize("version", [1, "1.0", (1,), (1, 0, 0), ("1", "0"), 1.0, object()])
def test_p2_version_that_is_no_pair(version):
    with pytest.raises(TypeError):
        batch_of().__dlpack__(max_version=version)


def test_arguments_are_keywords_and_known():
    with pytest.raises(TypeError):
        batch_of().__dlpack__(None)
    with pytest.raises(TypeError):
        batch_of().__dlpack__(colour=1)


# P3, P4, P5


@pytest.mark.parametrize("arguments", BOTH)
def test_p3_a_capsule_holds_its_owner(arguments):
    tensor, ref = owned()
    capsule = tensor.__dlpack__(**arguments)
    del tensor
    assert not gone(ref)
    struct = managed(capsule)
    assert ctypes.cast(struct.dl_tensor.data, ctypes.POINTER(ctypes.c_float))[11] == ref()[2, 3]
    del struct, capsule
    assert gone(ref)


@pytest.mark.parametrize("arguments", BOTH)
def test_p3_the_owner_may_outlive_its_capsules(arguments):
    tensor, ref = owned()
    capsules = [tensor.__dlpack__(**arguments) for _ in range(10)]
    del capsules
    assert not gone(ref) and tensor.numpy()[2, 3] == paint((3, 4), "float32")[2, 3]
    del tensor
    assert gone(ref)


@numpy_takes_versions
@pytest.mark.parametrize(("arguments", "used"), list(zip(BOTH, [USED_LEGACY, USED_VERSIONED])))
def test_p4_consumed(arguments, used):
    tensor, ref = owned()
    capsule = tensor.__dlpack__(**arguments)
    array = np.from_dlpack(Given(capsule))
    assert name_of(capsule) == used
    del tensor
    assert not gone(ref)
    assert_same(array, paint((3, 4), "float32"))
    del array
    assert gone(ref)
    del capsule
    gc.collect()


@pytest.mark.parametrize("arguments", BOTH)
def test_p5_an_exception_survives_an_unused_capsule(arguments):
    def fail():
        capsule = batch_of().__dlpack__(**arguments)
        raise KeyError(name_of(capsule))

    with pytest.raises(KeyError):
        fail()


# P6, P8, P9


@pytest.mark.parametrize("arguments", BOTH)
def test_p6_stream(arguments):
    tensor = batch_of().data
    tensor.__dlpack__(stream=None, **arguments)
    with pytest.raises(ValueError):
        tensor.__dlpack__(stream=1, **arguments)
    with pytest.raises(TypeError):
        tensor.__dlpack__(stream=object(), **arguments)


@numpy_takes_versions
def test_p8_copy():
    tensor = batch_of().data
    for copy in (None, False):
        capsule = tensor.__dlpack__(max_version=(1, 0), copy=copy)
        assert managed(capsule).dl_tensor.data == tensor.data_ptr()
        assert managed(capsule).flags & IS_COPIED == 0
    capsule = tensor.__dlpack__(max_version=(1, 0), copy=True)
    assert managed(capsule).dl_tensor.data != tensor.data_ptr()
    assert managed(capsule).flags & IS_COPIED
    copied = np.from_dlpack(Given(capsule))
    assert_same(copied, memory(tensor))
    copied[:] = 0
    assert (memory(tensor) != 0).any()
    for copy in ("x", 3.5):
        with pytest.raises((TypeError, ValueError)):
            tensor.__dlpack__(copy=copy)


@numpy_takes_versions
def test_p8_copy_of_a_strided_and_of_a_read_only_view():
    for array in (paint((6, 8), "int32").T[::-1, ::2], np.broadcast_to(paint(4, "int32"), (3, 4))):
        copied = np.from_dlpack(Given(wr.asarray(array).__dlpack__(max_version=(1, 0), copy=True)))
        assert_same(copied, array)
        assert copied.flags.writeable and not np.shares_memory(copied, array)


def test_p9_dl_device():
    tensor = batch_of().data
    for device in (None, (1, 0), tensor.__dlpack_device__()):
        assert managed(tensor.__dlpack__(dl_device=device)).dl_tensor.device.device_type == CPU
    for device in ((10, 0), (9, 0), (2, 2**30), (999, 0)):
        with pytest.raises(BufferError):
            tensor.__dlpack__(dl_device=device)
    for device in ("cpu", 1, (1,), (1, 0, 0)):
        with pytest.raises((TypeError, ValueError)):
            tensor.__dlpack__(dl_device=device)


# P10, P11


@pytest.mark.parametrize("name", oracle.ALL)
@pytest.mark.parametrize("arguments", BOTH)
def test_p10_dtypes(name, arguments):
    batch = batch_of(name)
    capsule = batch.__dlpack__(**arguments)
    tensor = managed(capsule).dl_tensor
    assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (*CODES[name], 1)
    assert tensor.data == batch.data.data_ptr() and tensor.byte_offset == 0
    assert shape_of(tensor) == (5, 3, 4) and strides_of(tensor) == (12, 4, 1)


VIEWS = {
    "row": lambda a: a[1],
    "column": lambda a: a[:, 1],
    "transpose": lambda a: a.T,
    "every second": lambda a: a[:, ::2],
    "reversed": lambda a: a[::-1],
    "reversed twice": lambda a: a[::-1, ::-2],
    "diagonal": np.diagonal,
    "broadcast": lambda a: np.broadcast_to(a[0], (3, *a.shape)),
    "scalar": lambda a: a[2, 3],
    "extent 1": lambda a: a[2:3, 3:4],
    "(0,)": lambda a: a[0, :0],
    "(0, 4)": lambda a: a[:0, :4],
    "(3, 0)": lambda a: a[:3, :0],
}


@numpy_takes_versions
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("arguments", BOTH)
def test_p11_layouts(view, arguments):
    array = VIEWS[view](paint((6, 8), "float32"))
    writable = isinstance(array, np.ndarray) and array.flags.writeable
    arguments = arguments if writable else {"max_version": (1, 0)}
    thing = wr.asarray(array)
    tensor = managed(capsule := thing.__dlpack__(**arguments)).dl_tensor
    assert shape_of(tensor) == array.shape
    if array.ndim:
        assert bool(tensor.strides)
    if array.size == 0:
        assert not tensor.data
    elif array.size > 1:
        assert strides_of(tensor) == tuple(s // 4 for s in array.strides)
    got = np.from_dlpack(Given(capsule))
    assert_same(got, array)


@numpy_takes_versions
@pytest.mark.parametrize("rank", range(0, 33))
def test_p11_ranks(rank):
    array = paint((1,) * max(0, rank - 2) + (2,) * min(rank, 2), "int16")
    tensor = managed(capsule := wr.asarray(array).__dlpack__(max_version=(1, 0))).dl_tensor
    assert tensor.ndim == rank and shape_of(tensor) == array.shape
    assert_same(np.from_dlpack(Given(capsule)), array)


def test_p11_odd_strides_of_extent_1():
    array = np.lib.stride_tricks.as_strided(paint(40, "int32"), (1, 3, 1), (4000, 4, 12))
    assert_same(np.from_dlpack(wr.asarray(array)), array)
    assert_same(np.from_dlpack(wr.stack([array])), array[None])


# P12, P13, P14


@numpy_takes_versions
def test_p12_read_only():
    array = paint((3, 4), "float32")
    array.flags.writeable = False
    for sample in (array, b"abc", np.broadcast_to(paint(4), (3, 4))):
        tensor = wr.asarray(sample)
        with pytest.raises(BufferError):
            tensor.__dlpack__()
        assert managed(tensor.__dlpack__(max_version=(1, 0))).flags & READ_ONLY
        assert not np.from_dlpack(tensor).flags.writeable
        assert not np.asarray(tensor).flags.writeable and memoryview(tensor).readonly
        assert tensor.__array_interface__["data"][1] is True


@numpy_takes_versions
def test_p12_writable_stays_writable():
    tensor = wr.asarray(paint((3, 4), "float32"))
    assert managed(tensor.__dlpack__(max_version=(1, 0))).flags & READ_ONLY == 0
    array = np.from_dlpack(tensor)
    array[0, 0] = 42
    assert memory(tensor)[0, 0] == 42


@pytest.mark.parametrize("arguments", BOTH)
def test_p13_shape_and_strides_live_as_long_as_the_capsule(arguments):
    capsules = [wr.stack([paint((i + 1, 3), "int16")]).__dlpack__(**arguments) for i in range(50)]
    gc.collect()
    for i, capsule in enumerate(capsules):
        assert shape_of(managed(capsule).dl_tensor) == (1, i + 1, 3)
        assert strides_of(managed(capsule).dl_tensor)[1:] == (3, 1)


@numpy_takes_versions
def test_p13_two_capsules_are_independent():
    tensor, ref = owned()
    first, second = tensor.__dlpack__(), tensor.__dlpack__(max_version=(1, 0))
    a, b = np.from_dlpack(Given(first)), np.from_dlpack(Given(second))
    assert pointer(a) == pointer(b) == tensor.data_ptr()
    del tensor, a, first
    assert not gone(ref)
    assert_same(b, paint((3, 4), "float32"))
    del b, second
    assert gone(ref)


@pytest.mark.parametrize("arguments", BOTH)
@pytest.mark.parametrize("kind", ["batch", "view"])
def test_p14_deleter_on_another_thread_without_the_gil(arguments, kind):
    array = paint((3, 4), "float32").copy()
    ref = weakref.ref(array)
    tensor = wr.stack([array]).data if kind == "batch" else wr.asarray(array)
    capsules = [tensor.__dlpack__(**arguments) for _ in range(20)]
    structs = [managed(capsule) for capsule in capsules]
    for capsule in capsules:
        rename(capsule, USED_VERSIONED if arguments else USED_LEGACY)
    threads = [threading.Thread(target=call_deleter, args=(struct,)) for struct in structs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del tensor, array
    assert gone(ref)


AT_EXIT = ["wr.stack([b'abc' * 5000])", "wr.asarray(bytearray(b'abc' * 5000))", "wr.asarray(Given(handle.capsule()))"]


@pytest.mark.slow
@pytest.mark.parametrize("source", AT_EXIT)
@pytest.mark.parametrize("arguments", ["", "max_version=(1, 0)"])
def test_p14_deleter_after_the_interpreter_has_gone(source, arguments):
    code = f"""
import ctypes, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
import numpy as np, windrow as wr
from dlpack_harness import Given, bare_handle, managed, name_of, rename
handle = bare_handle(np.zeros(8))
ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
capsule = ({source}).__dlpack__({arguments})
struct = managed(capsule)
address, deleter = ctypes.addressof(struct), struct.deleter
used = dict(dltensor=b"used_dltensor", dltensor_versioned=b"used_dltensor_versioned")[name_of(capsule).decode()]
rename(capsule, used)
del capsule
at_exit = ctypes.CDLL(None).__cxa_atexit
at_exit.argtypes = [ctypes.c_void_p] * 3
assert at_exit(deleter, address, None) == 0
"""
    done = isolated.python("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["capsule", "array", "batch"])
def test_p14_things_alive_at_exit(keep):
    code = f"""
import builtins
import numpy as np, windrow as wr
batch = wr.stack([b"abc" * 5000] * 3)
builtins.kept = {{"capsule": batch.__dlpack__(), "array": np.from_dlpack(batch), "batch": batch}}[{keep!r}]
builtins.view = wr.asarray(np.arange(10))
"""
    done = isolated.python("-c", code)
    assert done.returncode == 0 and done.stderr == ""


# P15, P16


def test_p15_exchange_table():
    table = exchange_table(wr.Tensor)
    assert (table.version.major, table.version.minor) == (1, 3)
    assert table.managed_tensor_allocator
    assert table.managed_tensor_from_py_object_no_sync
    assert table.managed_tensor_to_py_object_no_sync
    assert table.dltensor_from_py_object_no_sync
    assert table.current_work_stream


def test_p15_table_refuses_other_objects():
    table = exchange_table(wr.Tensor)
    call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
    place = ctypes.create_string_buffer(64)
    for entry in (table.dltensor_from_py_object_no_sync, table.managed_tensor_from_py_object_no_sync):
        for wrong in (3, "text", None, object(), np.zeros(3)):
            with pytest.raises((TypeError, BufferError, ValueError)):
                call(entry)(wrong, ctypes.addressof(place))


def test_p15_current_work_stream_of_the_host():
    table = exchange_table(wr.Tensor)
    out = ctypes.c_void_p(7)
    current = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)(table.current_work_stream)
    assert current(CPU, 0, ctypes.addressof(out)) == 0
    assert out.value is None


@numpy_takes_versions
@given(
    copy=st.sampled_from([None, True, False]),
    max_version=st.sampled_from([None, (0, 0), (1, 0), (1, 3), (2, 0)]),
    dl_device=st.sampled_from([None, (1, 0)]),
    shape=st.lists(st.integers(0, 4), max_size=4).map(tuple),
)
@settings(deadline=None)
def test_p16_every_combination(copy, max_version, dl_device, shape):
    tensor = wr.stack([paint(shape, "float32")]).data
    capsule = tensor.__dlpack__(copy=copy, max_version=max_version, dl_device=dl_device)
    assert_same(np.from_dlpack(Given(capsule)), memory(tensor))
