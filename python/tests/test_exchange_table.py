"""Import through the C exchange table of another library's type, with tables built by ctypes; what others find in ours."""

import ctypes
import weakref

import numpy as np
import pytest

import isolated
import windrow as wr
from dlpack_harness import (
    CPU,
    ROCM,
    DLManagedTensorVersioned,
    DLPackExchangeAPI,
    DLPackVersion,
    DLTensor,
    Handle,
    Producer,
    call_deleter,
    exchange_capsule,
    exchange_table,
    shape_of,
    strides_of,
)
from helpers import TYPED, assert_same, assert_tensor, freed_once, held, paint, refusal, settle

OURS = exchange_table(wr.Tensor)

_FROM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)


@_FROM
def _borrow(thing, out):
    thing.borrowed += 1
    ctypes.memmove(out, ctypes.addressof(thing.view.struct.dl_tensor), ctypes.sizeof(DLTensor))
    return thing.code


@_FROM
def _own(thing, out):
    if thing.code == 0:
        handle = Handle(thing.array, **thing.build)
        thing.handles.append(handle)
        ctypes.c_void_p.from_address(out).value = handle.address
    return thing.code


@_STREAM
def _current(_kind, _index, out):
    ctypes.c_void_p.from_address(out).value = None
    return 0


def table_type(*, borrow):
    """A type with an exchange table of its own, and no other interface."""
    table = DLPackExchangeAPI(version=DLPackVersion(1, 3))
    address = {key: ctypes.cast(f, ctypes.c_void_p).value for key, f in (("b", _borrow), ("o", _own), ("c", _current))}
    table.managed_tensor_from_py_object_no_sync = address["o"]
    table.dltensor_from_py_object_no_sync = address["b"] if borrow else None
    table.current_work_stream = address["c"]

    class Tabled:
        __dlpack_c_exchange_api__ = exchange_capsule(table)

        def __init__(self, array, code=0, **build):
            self.array, self.code, self.build = array, code, build
            self.view, self.borrowed, self.handles = Handle(array, **build), 0, []

        def close(self):
            pass

        @property
        def deleted(self):
            return [handle.deleted for handle in self.handles]

    return Tabled


@pytest.mark.parametrize("borrow", [True, False])
def test_table_samples(borrow):
    cls = table_type(borrow=borrow)
    arrays = [paint((2, 3), "float32", i) for i in range(6)]
    samples = [cls(a) for a in arrays]
    assert_tensor(wr.stack(samples), np.stack(arrays))
    assert_tensor(wr.ragged(samples), np.concatenate(arrays))
    if borrow:
        assert all(s.borrowed > 0 for s in samples)
    else:
        freed_once(*samples)


@pytest.mark.parametrize("borrow", [True, False])
def test_a_view_by_a_table_frees_with_its_last_user(borrow):
    sample = table_type(borrow=borrow)(paint((2, 3), "float32"))
    array = wr.asarray(sample).numpy()
    settle()
    assert sample.deleted == [0]
    assert_same(array, sample.array)
    del array
    freed_once(sample)


@pytest.mark.parametrize("borrow", [True, False])
def test_table_samples_that_are_not_like_the_one_before(borrow):
    cls = table_type(borrow=borrow)
    arrays = [paint((2, 3), "float32", i) for i in range(6)]
    changes = {1: {"strides": None}, 3: {"byte_offset": 4, "data": arrays[3].ctypes.data - 4}, 4: {"strides": None}}
    assert_tensor(wr.stack([cls(a, **changes.get(i, {})) for i, a in enumerate(arrays)]), np.stack(arrays))


BAD = [
    {"data": None},
    {"shape": (-1, 3)},
    {"shape": (2**62, 2**62)},
    {"dtype": (99, 8, 1)},
    {"dtype": (2, 32, 2)},
    {"device": (99, 0)},
]


@pytest.mark.parametrize("borrow", [True, False])
@pytest.mark.parametrize("build", BAD)
def test_table_with_bad_tensors(borrow, build):
    cls = table_type(borrow=borrow)
    array = paint((2, 3), "float32")
    bad = cls(array, **build)
    refusal(lambda: wr.stack([cls(array), bad]), (TypeError, *TYPED))
    settle()
    assert all(n == 1 for n in bad.deleted)


@pytest.mark.parametrize("borrow", [True, False])
def test_table_that_fails_without_an_exception(borrow):
    cls = table_type(borrow=borrow)
    refusal(lambda: wr.stack([cls(paint(3)), cls(paint(3), code=-1)]), Exception)


def test_table_attribute_of_another_kind_is_ignored():
    class IntAttribute(Producer):
        __dlpack_c_exchange_api__ = 12345

    class WrongName(Producer):
        code, tabled = 0, table_type(borrow=False)
        __dlpack_c_exchange_api__ = exchange_capsule(exchange_table(tabled), name=b"something_else")

    for cls in (IntAttribute, WrongName):
        producer = cls(paint(6, "int32"))
        assert_tensor(wr.stack([producer]), paint((1, 6), "int32"))
        assert len(producer.calls) == 1
        freed_once(producer)


# Our own


def answer(entry, given, out):
    """Calls an entry of two pointers: whether it answers 0, and what it raises, behind which ctypes hides the answer.

    lsearch asks it whether the one element, `out`, is `given`, and appends 8 bytes where the answer is not 0.
    """
    address, size = ctypes.c_void_p, ctypes.c_size_t
    count, error = size(1), None
    try:
        ctypes.PyDLL(None).lsearch(address(given), address(out), ctypes.byref(count), size(8), address(entry))
    except Exception as raised:
        error = raised
    return count.value == 1, error


@pytest.mark.parametrize("entry", ["dltensor_from_py_object_no_sync", "managed_tensor_from_py_object_no_sync"])
def test_our_table_refuses_with_a_code_and_an_exception(entry):
    place = ctypes.create_string_buffer(64)
    for wrong in (3, "text", None, object(), np.zeros(3)):
        good, error = answer(getattr(OURS, entry), id(wrong), ctypes.addressof(place))
        assert not good and type(error) is TypeError and "not a windrow tensor" in str(error)


@pytest.mark.parametrize("cls", [wr.Tensor, wr.Batch])
def test_our_table_lends_what_the_object_holds(cls):
    batch = wr.stack([paint((3, 4), "float32", i) for i in range(2)])
    lent, thing = DLTensor(), batch if cls is wr.Batch else batch.data
    assert answer(exchange_table(cls).dltensor_from_py_object_no_sync, id(thing), ctypes.addressof(lent)) == (True, None)
    others = [wr.asarray(paint((i, 7))) for i in range(20)]
    assert (shape_of(lent), strides_of(lent)) == ((2, 3, 4), (12, 4, 1))
    assert (lent.data, lent.byte_offset, lent.device.device_type) == (batch.data_ptr(), 0, CPU)
    del others


def test_our_table_gives_a_tensor_that_holds_its_memory():
    array = paint((3, 4), "float32").copy()
    tensor, ref, out = wr.asarray(array), weakref.ref(array), ctypes.c_void_p()
    assert answer(OURS.managed_tensor_from_py_object_no_sync, id(tensor), ctypes.addressof(out)) == (True, None)
    del array, tensor
    settle()
    struct = DLManagedTensorVersioned.from_address(out.value)
    assert struct.dl_tensor.data == ref().ctypes.data and shape_of(struct.dl_tensor) == (3, 4)
    call_deleter(struct)
    settle()
    assert ref() is None


TAKEN = """
from dlpack_harness import exchange_table
from test_exchange_table import OURS, answer
handle, out = Handle(paint((2, 3), "float32")), ctypes.c_void_p()
assert answer(OURS.managed_tensor_to_py_object_no_sync, handle.address, ctypes.addressof(out)) == (True, None)
others = [wr.asarray(paint(i)) for i in range(20)]
tensor = ctypes.cast(out, ctypes.py_object).value
assert type(tensor) is wr.Tensor and sys.getrefcount(tensor) == sys.getrefcount(others[0]) + 1
ctypes.pythonapi.Py_DecRef(ctypes.py_object(tensor))
assert_tensor(tensor, paint((2, 3), "float32"))
settle()
assert handle.deleted == 0
del tensor
settle()
assert handle.deleted == 1
"""


@pytest.mark.slow
def test_our_table_takes_a_tensor():
    isolated.run(TAKEN)


@pytest.mark.parametrize("build", BAD)
def test_our_table_takes_nothing_that_it_refuses(build):
    handle, out = Handle(paint((2, 3), "float32"), **build), ctypes.c_void_p()
    good, error = answer(OURS.managed_tensor_to_py_object_no_sync, handle.address, ctypes.addressof(out))
    assert not good and isinstance(error, TYPED)
    assert handle.deleted == 0


_SET_ERROR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)


def allocated(prototype, set_error):
    """Code and tensor of our allocator, which is called without the lock."""
    allocate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    out = ctypes.c_void_p()
    arguments = ctypes.addressof(prototype), ctypes.addressof(out), 77, ctypes.cast(set_error, ctypes.c_void_p)
    return allocate(OURS.managed_tensor_allocator)(*arguments), out.value


def prototype_of(**build):
    """Members that an allocator must not read have wrong values."""
    handle = Handle(paint((2, 3), "float32"), data=None, byte_offset=2**64 - 1, **build)
    handle.struct.dl_tensor.strides = ctypes.cast(8, ctypes.POINTER(ctypes.c_int64))
    return handle


def test_our_table_allocates():
    before, handle = held(), prototype_of()
    code, address = allocated(handle.struct.dl_tensor, _SET_ERROR(0))
    assert code == 0
    struct = DLManagedTensorVersioned.from_address(address)
    tensor, array = struct.dl_tensor, paint((2, 3), "float32")
    assert (shape_of(tensor), strides_of(tensor), tensor.byte_offset) == ((2, 3), (3, 1), 0)
    assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (2, 32, 1) and tensor.device.device_type == CPU
    assert held() > before
    ctypes.memmove(tensor.data, array.ctypes.data, array.nbytes)
    assert ctypes.string_at(tensor.data, array.nbytes) == array.tobytes()
    call_deleter(struct)
    assert held() == before


@pytest.mark.parametrize("build", BAD[1:])
def test_our_table_says_why_it_allocates_nothing(build):
    said = []
    set_error = _SET_ERROR(lambda *told: said.append(told))
    handle = prototype_of(**build)
    assert allocated(handle.struct.dl_tensor, set_error) == (-1, None)
    ((context, kind, text),) = said
    assert (context, kind) == (77, b"RuntimeError") and text
    assert allocated(handle.struct.dl_tensor, _SET_ERROR(0)) == (-1, None)


def test_our_table_has_streams_of_its_own_devices_only():
    current = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)(OURS.current_work_stream)
    for kind in (0, ROCM, 99):
        out = ctypes.c_void_p(7)
        with pytest.raises(RuntimeError, match="host and on CUDA"):
            current(kind, 0, ctypes.addressof(out))
        assert out.value == 7


STAND_INS = """
import types, weakref
from dlpack_harness import DLPackExchangeAPI, DLPackVersion, exchange_capsule

def stand_in():
    table = DLPackExchangeAPI(version=DLPackVersion(1, 3), managed_tensor_from_py_object_no_sync=8)
    class Tensor:
        keep, __dlpack_c_exchange_api__ = table, exchange_capsule(table)
    # The table then looks as freed memory may.
    weakref.finalize(Tensor, ctypes.memset, ctypes.addressof(table), 5, ctypes.sizeof(table))
    return types.SimpleNamespace(Tensor=Tensor, from_dlpack=lambda tensor: ("torch's", tensor.shape), __version__="0")

for _ in range(2):
    sys.modules["torch"] = stand_in()
    assert wr.stack([1.0, 2.0]).torch() == ("torch's", (2,))
    del sys.modules["torch"]
    gc.collect()
"""


def test_the_table_that_torch_had_first_stays():
    isolated.run(STAND_INS)
