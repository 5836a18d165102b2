"""The buffer protocol from both sides, where a view says more or less than usual."""

import ctypes
import io
from types import SimpleNamespace

import numpy as np
import pytest

import windrow as wr
from helpers import paint, refusal, rss_bytes, settle

# In


def test_buffers_of_pointers_to_rows_are_refused():
    testbuffer = pytest.importorskip("_testbuffer")
    rows = testbuffer.ndarray(list(range(12)), shape=[3, 4], format="B", flags=testbuffer.ND_PIL)
    assert memoryview(rows).suboffsets == (0, -1)
    refusal(lambda: wr.stack([paint((3, 4)), rows]), wr.LayoutError, "suboffsets", index=1)
    refusal(lambda: wr.asarray(rows), wr.LayoutError, "suboffsets")


@pytest.mark.parametrize(
    "changes", [{"offset": 5}, {"offset": -4}, {"offset": 2**63 - 1}, {"shape": (10, 1)}, {"strides": (-12, 4)}]
)
def test_array_interface_beyond_its_buffer(changes):
    """Nothing outside the buffer is read: it is amid other bytes."""
    around = bytearray(1000)
    fields = {"data": memoryview(around)[400:436], "offset": 0, "shape": (3, 3), "typestr": "<i4", "strides": None, **changes}
    refusal(lambda: wr.stack([SimpleNamespace(__array_interface__=fields)]), wr.LayoutError, "36 bytes", index=0)


def test_array_interface_of_a_buffer_holds_it():
    data = bytearray(range(36))
    interface = {"data": data, "shape": (3, 3), "typestr": "<i4", "version": 3}
    held = wr.asarray(SimpleNamespace(__array_interface__=interface))
    with pytest.raises(BufferError):
        data.clear()
    assert bytes(memoryview(held)) == bytes(range(36))
    del held
    settle()
    data.clear()


# Out


class View(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("buf", "obj")]
    _fields_ += [(name, ctypes.c_ssize_t) for name in ("len", "itemsize")]
    _fields_ += [(name, ctypes.c_int) for name in ("readonly", "ndim")]
    _fields_ += [(name, ctypes.c_void_p) for name in ("format", "shape", "strides", "suboffsets", "internal")]


def requested(thing, flags):
    """A view, released at once, or None where the request is refused; then it has no owner."""
    view = View(*[7] * 11)
    try:
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(thing), ctypes.byref(view), flags)
    except BufferError:
        assert view.obj is None
        return None
    seen = View.from_buffer_copy(view)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
    return seen


WRITABLE, FORMAT, ND, STRIDES, C_ORDER, F_ORDER, ANY_ORDER = 0x1, 0x4, 0x8, 0x18, 0x38, 0x58, 0x98


def test_buffer_requests():
    compact, strided = wr.asarray(paint((4, 6), "int32")), wr.asarray(paint((4, 6), "int32").T)
    for flags in (0, WRITABLE, FORMAT, ND, STRIDES, C_ORDER, ANY_ORDER, C_ORDER | FORMAT | WRITABLE):
        view = requested(compact, flags)
        assert (view.buf, view.len, view.itemsize, view.readonly, view.ndim) == (compact.data_ptr(), 96, 4, 0, 2)
        given = [field is not None for field in (view.format, view.shape, view.strides, view.suboffsets)]
        assert given == [bool(flags & FORMAT), flags & ND == ND, flags & STRIDES == STRIDES, False]
    assert requested(compact, F_ORDER) is None
    for flags in (0, FORMAT, ND, C_ORDER):
        assert requested(strided, flags) is None
    for flags in (STRIDES, F_ORDER, ANY_ORDER):
        assert requested(strided, flags).buf == strided.data_ptr()
    # The array has two dims and neither order: a consumer that asks for one reads `len` bytes from `buf` on.
    padded = wr.pad([paint((2, 3), "int32"), paint((3, 4), "int32")])[0]
    for tensor in (padded, wr.asarray(paint((4, 6), "int32")[::-1]), wr.asarray(paint(6)[::2])):
        for flags in (0, ND, C_ORDER, F_ORDER, ANY_ORDER):
            assert requested(tensor, flags) is None, flags
        assert requested(tensor, STRIDES).buf == tensor.data_ptr()
    line = wr.asarray(paint(6))
    assert requested(line, F_ORDER).len == requested(line, ANY_ORDER).len == 6
    assert requested(wr.stack([paint(3)], dtype="bfloat16"), STRIDES) is None


def test_read_only_memory_is_not_lent_to_writers():
    data = b"abcdef" * 2
    tensor = wr.asarray(data)
    assert requested(tensor, 0).readonly == 1 and requested(tensor, WRITABLE) is None
    with pytest.raises((BufferError, TypeError)):
        io.BytesIO(b"x" * 12).readinto(tensor)
    assert data == b"abcdef" * 2


def test_no_leak_of_buffer_views():
    tensor = wr.asarray(np.zeros((1,) * 32, np.uint8))

    def views():
        for _ in range(50_000):
            memoryview(tensor).release()

    views()
    settle()
    before = rss_bytes()
    views()
    settle()
    assert rss_bytes() - before < 8 << 20, "a view has 512 bytes of shape and strides"


@pytest.mark.parametrize("dtype", ["uint8", "int64", "bool", "float32"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (0,), (3, 2)])
def test_bytes_of_a_tensor_are_those_of_its_elements(dtype, shape):
    array = np.full(shape, 5).astype(dtype)
    assert bytes(wr.asarray(array)) == array.tobytes()
    assert bytes(wr.asarray(array.T)) == array.T.tobytes()


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_arrays_of_a_view_have_the_scalars_of_numpy(dtype):
    batch = wr.stack([np.ones(2, dtype)])
    assert np.asarray(batch).dtype.char == np.dtype(dtype).char and type(np.asarray(batch)[0, 0]) is np.dtype(dtype).type
