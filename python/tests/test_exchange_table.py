"""Import through the C exchange table of another library's type, with tables built by ctypes."""

import ctypes

import numpy as np
import pytest

import windrow as wr
from dlpack_harness import DLPackExchangeAPI, DLPackVersion, DLTensor, Handle, Producer, exchange_capsule
from helpers import TYPED, assert_tensor, freed_once, paint, refusal, settle

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
        keep = table
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
@pytest.mark.parametrize(
    "build",
    [
        {"data": None},
        {"shape": (-1, 3)},
        {"shape": (2**62, 2**62)},
        {"dtype": (99, 8, 1)},
        {"dtype": (2, 32, 2)},
        {"device": (99, 0)},
    ],
)
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
        __dlpack_c_exchange_api__ = Handle(paint(3), deleter=False).capsule(b"something_else")

    for cls in (IntAttribute, WrongName):
        assert_tensor(wr.stack([cls(paint(6, "int32"))]), paint((1, 6), "int32"))
