"""Builds any DLPack capsule with ctypes, counts deleter calls, and reads the capsules of others."""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, py_object

import numpy as np

CPU, CUDA, CUDA_HOST, ROCM, ROCM_HOST = 1, 2, 3, 10, 11
READ_ONLY, IS_COPIED = 1, 2

CODES = {
    "bool": (6, 8),
    "bfloat16": (4, 16),
    "complex64": (5, 64),
    "complex128": (5, 128),
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
}
CODES.update((f"{kind}{bits}", (code, bits)) for kind, code in (("int", 0), ("uint", 1)) for bits in (8, 16, 32, 64))
CODES.update((f"float{bits}", (2, bits)) for bits in (16, 32, 64))


class DLDevice(Structure):
    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class DLDataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class DLTensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", DLDevice),
        ("ndim", c_int32),
        ("dtype", DLDataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class DLManagedTensor(Structure):
    _fields_ = [("dl_tensor", DLTensor), ("manager_ctx", c_void_p), ("deleter", c_void_p)]


class DLPackVersion(Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32)]


class DLManagedTensorVersioned(Structure):
    _fields_ = [
        ("version", DLPackVersion),
        ("manager_ctx", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("dl_tensor", DLTensor),
    ]


class DLPackExchangeAPI(Structure):
    _fields_ = [
        ("version", DLPackVersion),
        ("prev_api", c_void_p),
        ("managed_tensor_allocator", c_void_p),
        ("managed_tensor_from_py_object_no_sync", c_void_p),
        ("managed_tensor_to_py_object_no_sync", c_void_p),
        ("dltensor_from_py_object_no_sync", c_void_p),
        ("current_work_stream", c_void_p),
    ]


LEGACY, VERSIONED = b"dltensor", b"dltensor_versioned"
USED_LEGACY, USED_VERSIONED = b"used_dltensor", b"used_dltensor_versioned"
EXCHANGE = b"dlpack_exchange_api"

_api = ctypes.pythonapi
_deleter_type = ctypes.CFUNCTYPE(None, c_void_p)
_new = ctypes.PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", _api))
_is_valid = ctypes.PYFUNCTYPE(c_int, py_object, c_char_p)(("PyCapsule_IsValid", _api))
_get_pointer = ctypes.PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", _api))
_get_name = ctypes.PYFUNCTYPE(c_char_p, py_object)(("PyCapsule_GetName", _api))
_set_name = ctypes.PYFUNCTYPE(c_int, py_object, c_char_p)(("PyCapsule_SetName", _api))

_live: dict[int, "Handle"] = {}


@_deleter_type
def counting_deleter(address):
    handle = _live.pop(address, None)
    if handle is None:
        _double_frees.append(address)
    else:
        handle.deleted += 1


_double_frees: list[int] = []


def double_frees():
    """Deleter calls for tensors that were already freed, since the last call of this function."""
    found, _double_frees[:] = list(_double_frees), []
    return found


def _int64s(values):
    return None if values is None else (c_int64 * max(1, len(values)))(*values)


class Handle:
    """One managed tensor. `deleted` counts the calls of its deleter."""

    def __init__(
        self, array, *, name=None, versioned=True, version=(1, 3), flags=0, dtype=None, device=(CPU, 0), deleter=True, **fields
    ):
        name = name or array.dtype.name
        code, bits, lanes = dtype or (*CODES[name], 1)
        shape = fields.get("shape", array.shape)
        strides = fields.get("strides", tuple(s // array.itemsize for s in array.strides))
        self.array, self.deleted, self.has_deleter, self.kept = array, 0, deleter, None
        self.shape, self.strides = _int64s(shape), _int64s(strides)
        self.struct = DLManagedTensorVersioned() if versioned else DLManagedTensor()
        self.versioned = versioned
        if versioned:
            self.struct.version = DLPackVersion(*version)
            self.struct.flags = flags
        self.struct.deleter = ctypes.cast(counting_deleter, c_void_p).value if deleter else None
        tensor = self.struct.dl_tensor
        tensor.data = fields.get("data", array.ctypes.data)
        tensor.device = DLDevice(*device)
        tensor.ndim = fields.get("ndim", len(shape) if shape is not None else 0)
        tensor.dtype = DLDataType(code, bits, lanes)
        tensor.shape = ctypes.cast(self.shape, POINTER(c_int64)) if shape is not None else None
        tensor.strides = ctypes.cast(self.strides, POINTER(c_int64)) if strides is not None else None
        tensor.byte_offset = fields.get("byte_offset", 0)
        self.address = ctypes.addressof(self.struct)
        _live[self.address] = self

    def capsule(self, name=None):
        """A capsule without a destructor: a ctypes callback must not run while an exception is in flight."""
        return _new(self.address, name or (VERSIONED if self.versioned else LEGACY), None)

    def drop(self, capsule):
        """Does what the destructor of a capsule does: an unused one calls the deleter."""
        if self.has_deleter and name_of(capsule) in (VERSIONED, LEGACY):
            counting_deleter(self.address)


def bare_handle(array):
    """A tensor whose deleter is a function of the interpreter: without the lock it crashes, with it it leaves an exception."""
    handle = Handle(array)
    del _live[handle.address]
    handle.struct.deleter = ctypes.cast(_api.PyErr_NoMemory, c_void_p).value
    return handle


class _Alone:
    kept = object()


_ALONE = sys.getrefcount(_Alone.kept)


class Producer:
    """An object with `__dlpack__` that exports what it is given.

    Keyword arguments beyond those named go to `Handle`. The capsules are kept until `close`.
    """

    def __init__(self, array, *, dunder=None, **build):
        self.array, self.build = array, build
        self.dunder = dunder or build.get("device", (CPU, 0))
        self.handles, self.calls = [], []

    def __dlpack_device__(self):
        return self.dunder

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.calls.append({"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy})
        handle = Handle(self.array, **self.build)
        self.handles.append(handle)
        handle.kept = handle.capsule()
        return handle.kept

    def close(self):
        """Drops the capsules, which nothing else may hold any more."""
        for handle in self.handles:
            if handle.kept is not None:
                assert sys.getrefcount(handle.kept) == _ALONE, "a capsule is still held"
                handle.drop(handle.kept)
                handle.kept = None

    @property
    def deleted(self):
        """Deleter calls of each capsule handed out, in order."""
        return [handle.deleted for handle in self.handles]


class Given:
    """An object whose `__dlpack__` returns one given thing, whatever that is."""

    def __init__(self, thing, device=(CPU, 0)):
        self.thing, self.device = thing, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **_):
        return self.thing


# Reading


def name_of(capsule):
    return _get_name(capsule)


def rename(capsule, name):
    assert _set_name(capsule, name) == 0


def managed(capsule):
    """The struct behind an unused capsule of either kind; valid while the capsule is."""
    name = name_of(capsule)
    kind = {LEGACY: DLManagedTensor, VERSIONED: DLManagedTensorVersioned}[name]
    return kind.from_address(_get_pointer(capsule, name))


def shape_of(tensor):
    return tuple(tensor.shape[i] for i in range(tensor.ndim))


def strides_of(tensor):
    return tuple(tensor.strides[i] for i in range(tensor.ndim))


def call_deleter(struct):
    """Calls the deleter without the GIL."""
    ctypes.CFUNCTYPE(None, c_void_p)(struct.deleter)(ctypes.addressof(struct))


def exchange_table(cls):
    """The `DLPackExchangeAPI` on a type."""
    capsule = cls.__dlpack_c_exchange_api__
    assert _is_valid(capsule, EXCHANGE)
    return DLPackExchangeAPI.from_address(_get_pointer(capsule, EXCHANGE))


_tables = []


def exchange_capsule(table, *functions, name=EXCHANGE):
    """A capsule for a table of our own, which lives as long as the process, as DLPack has it, and so do its functions. A name must
    stay alive."""
    _tables.append((table, functions))
    return _new(ctypes.addressof(table), name, None)


def as_bf16(bits, **build):
    """A bfloat16 sample out of uint16 bit patterns."""
    return Producer(np.asarray(bits, np.uint16), name="bfloat16", **build)
