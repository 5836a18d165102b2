"""Batch and Tensor: attributes, views, and zero-copy export."""

import ctypes
import operator
import re

import numpy as np
import pytest

import oracle
import windrow as wr
from helpers import assert_tensor, assert_values, is_compact, memory, numpy_takes_versions, paint, pointer, refusal, samples_of

NUMPY_DTYPES = [name for name in (*oracle.ARITHMETIC, *oracle.COMPLEX) if name != "bfloat16"]


def batch_of(name="float32", shape=(3, 4), count=5):
    return wr.stack(samples_of([paint(shape, name, 9 * i) for i in range(count)], name))


# attributes


def test_attributes_of_a_batch():
    batch = batch_of()
    assert isinstance(batch, wr.Batch) and isinstance(batch.data, wr.Tensor)
    assert batch.shape == (5, 3, 4) and isinstance(batch.shape, tuple)
    assert batch.ndim == 3
    assert batch.dtype == "float32" and isinstance(batch.dtype, str)
    assert batch.device == "cpu"
    assert batch.nbytes == 5 * 3 * 4 * 4
    assert len(batch) == 5


def test_attributes_of_a_tensor():
    tensor = batch_of().data
    assert tensor.shape == (5, 3, 4) and isinstance(tensor.shape, tuple)
    assert tensor.strides == (12, 4, 1) and isinstance(tensor.strides, tuple)
    assert (tensor.dtype, tensor.device, tensor.nbytes) == ("float32", "cpu", 240)
    assert isinstance(tensor.data_ptr(), int) and tensor.data_ptr() != 0


@pytest.mark.parametrize("name", oracle.ALL)
def test_dtype_names(name):
    assert batch_of(name).dtype == name
    assert batch_of(name).data.nbytes == 60 * oracle.STORAGE[name].itemsize


def test_output_is_aligned_for_vectors():
    assert all(batch_of(count=n).data.data_ptr() % 64 == 0 for n in range(1, 8))


def test_fields_are_tensors():
    batch = wr.pad([paint(3), paint(5)], mask="real")
    assert isinstance(batch.lengths, wr.Tensor) and isinstance(batch.mask, wr.Tensor)
    assert batch.lengths.device == batch.mask.device == "cpu"
    ragged = wr.ragged([paint(3), paint(5)], batch_index=True)
    assert isinstance(ragged.offsets, wr.Tensor) and isinstance(ragged.batch_index, wr.Tensor)
    assert ragged.mask is None


def test_fields_read_twice_are_the_same_memory():
    batch = wr.pad([paint(3), paint(5)], mask="real")
    assert batch.data.data_ptr() == batch.data.data_ptr()
    assert batch.mask.data_ptr() == batch.mask.data_ptr()


@pytest.mark.parametrize(
    "batch",
    [
        lambda: batch_of(),
        lambda: wr.pad([paint(3), paint(5)], mask="real"),
        lambda: wr.ragged([paint(1 + i % 7) for i in range(5000)], batch_index=True),
        lambda: wr.stack([paint(100_000)] * 20),
        lambda: wr.stack([np.float64(1)]),
        lambda: wr.stack([np.empty((0, 3))]),
        lambda: wr.stack(samples_of([paint(3, "bfloat16")], "bfloat16")),
    ],
)
def test_repr_fits_one_screen(batch):
    batch = batch()
    text = repr(batch)
    assert "Batch" in text and batch.dtype in text
    assert len(text.splitlines()) <= 24 and max(map(len, text.splitlines())) <= 160
    text = repr(batch.data)
    assert "Tensor" in text and len(text.splitlines()) <= 24


# samples of a batch


def test_items_are_zero_copy_views():
    batch = batch_of()
    base, step = batch.data.data_ptr(), 48
    for i in range(5):
        assert isinstance(batch[i], wr.Tensor)
        assert batch[i].data_ptr() == base + i * step
        assert batch[i].shape == (3, 4)
    batch[2].numpy()[:] = -1
    assert (batch.numpy()[2] == -1).all() and (batch.numpy()[1] != -1).any()


def test_negative_items_and_the_end():
    batch = batch_of()
    assert batch[-1].data_ptr() == batch[4].data_ptr()
    for i in (5, -6, 2**63 - 1, -(2**63), 2**63, -(2**70)):
        refusal(lambda: batch[i], IndexError, f"^sample {i} of 5$")
    for i in ("x", slice(2), 1.0, None):
        refusal(lambda: batch[i], TypeError, "^an index of a Batch is an int")


def test_a_dtype_that_torch_lacks(torch):
    batch = wr.stack(np.zeros((2, 3), pytest.importorskip("ml_dtypes").float8_e3m4))
    words = r"^tensor: expected a dtype that torch has, got float8_e3m4; \.numpy\(\) gives it by ml_dtypes$"
    for tensor in (batch, batch.data, batch[0]):
        refusal(tensor.torch, wr.DTypeError, words, expected="a dtype that torch has", got="float8_e3m4")


def test_items_by_ints_of_other_libraries(torch):
    batch = batch_of()
    for i in (np.int8(-2), np.uint64(3), torch.tensor(3), True + 2):
        assert batch[i].data_ptr() == batch[3].data_ptr()


def test_iteration():
    batch = batch_of()
    assert [part.data_ptr() for part in batch] == [batch[i].data_ptr() for i in range(5)]
    assert len(list(iter(batch))) == 5


def test_items_outlive_the_batch():
    part = batch_of()[3]
    assert_tensor(part, paint((3, 4), "float32", 27))


def test_items_of_every_form_are_views():
    arrays = [paint((n, 2), "int32", n) for n in (3, 1, 2)]
    for batch in (wr.concat(arrays), wr.pad(arrays, side="left"), wr.ragged(arrays)):
        low, high = batch.data.data_ptr(), batch.data.data_ptr() + batch.data.nbytes
        for part, array in zip(batch, arrays):
            assert low <= part.data_ptr() < high
            assert_tensor(part, array, compact=False)


# export to NumPy


@numpy_takes_versions
@pytest.mark.parametrize("name", NUMPY_DTYPES)
@pytest.mark.parametrize("way", ["numpy", "asarray", "from_dlpack", "frombuffer"])
def test_numpy_shares_the_memory(name, way):
    batch = batch_of(name)
    for thing in (batch, batch.data):
        array = {
            "numpy": lambda t: t.numpy(),
            "asarray": np.asarray,
            "from_dlpack": np.from_dlpack,
            "frombuffer": lambda t: np.asarray(memoryview(t)),
        }[way](thing)
        assert array.shape == (5, 3, 4) and array.dtype.name == name
        assert pointer(array) == batch.data.data_ptr()
        assert array.tobytes() == memory(batch).tobytes()
        array[1, 2, 3] = 1
        assert memory(batch)[1, 2, 3] == 1


def test_numpy_array_outlives_the_batch():
    arrays = [wr.stack([paint(4096, seed=i)]).numpy() for i in range(30)]
    for i, array in enumerate(arrays):
        assert (array[0] == paint(4096, seed=i)).all()


def test_array_protocol():
    batch = batch_of("int16")
    for thing in (batch, batch.data):
        assert pointer(thing.__array__()) == batch.data.data_ptr()
        copied = np.array(thing)
        assert pointer(copied) != batch.data.data_ptr() and (copied == batch.numpy()).all()
        assert np.asarray(thing, dtype=np.float64).dtype == np.float64
        assert (np.asarray(thing, dtype=np.float64) == batch.numpy()).all()
        assert (np.add(thing, 1) == batch.numpy() + 1).all()


@pytest.mark.skipif(int(np.__version__.split(".")[0]) < 2, reason="the copy argument came with NumPy 2")
def test_array_protocol_with_copy():
    batch = batch_of("int16")
    assert pointer(np.asarray(batch, copy=False)) == batch.data.data_ptr()
    assert pointer(np.asarray(batch, copy=True)) != batch.data.data_ptr()
    with pytest.raises(ValueError):
        np.asarray(batch, dtype=np.float64, copy=False)


def test_array_interface():
    batch = batch_of("int16")
    for thing in (batch, batch.data):
        interface = thing.__array_interface__
        assert interface["version"] == 3
        assert tuple(interface["shape"]) == (5, 3, 4)
        assert interface["typestr"] == np.dtype("int16").str
        assert tuple(interface["data"]) == (batch.data.data_ptr(), False)
        assert interface.get("strides") in (None, (24, 8, 2))


def test_array_interface_of_a_strided_view():
    tensor = wr.asarray(paint((4, 6), "float32").T)
    assert tuple(tensor.__array_interface__["strides"]) == (4, 24)


def test_interfaces_that_do_not_apply_are_absent():
    batch = batch_of()
    assert not hasattr(batch, "__cuda_array_interface__") and not hasattr(batch.data, "__cuda_array_interface__")
    for name in ("bfloat16", "float8_e4m3fn"):
        assert not hasattr(batch_of(name), "__array_interface__")


@pytest.mark.parametrize("name", NUMPY_DTYPES)
def test_buffer_protocol(name):
    batch = batch_of(name)
    for thing in (batch, batch.data):
        view = memoryview(thing)
        assert view.shape == (5, 3, 4) and view.itemsize == oracle.STORAGE[name].itemsize
        assert not view.readonly and view.c_contiguous
        assert bytes(view) == memory(batch).tobytes()
        assert np.asarray(view).dtype.name == name


def test_buffer_of_strided_and_read_only_views():
    view = memoryview(wr.asarray(paint((4, 6), "int32").T))
    assert view.shape == (6, 4) and view.strides == (4, 24)
    assert memoryview(wr.asarray(b"abc")).readonly
    assert ctypes.c_char.from_buffer(wr.stack([b"abc"])).value == b"a"


# export to torch and JAX


@pytest.mark.parametrize("name", [*oracle.ARITHMETIC, *oracle.COMPLEX, "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("way", ["torch", "from_dlpack"])
def test_torch_shares_the_memory(torch, name, way):
    batch = batch_of(name)
    for thing in (batch, batch.data):
        tensor = thing.torch() if way == "torch" else torch.from_dlpack(thing)
        assert tuple(tensor.shape) == (5, 3, 4)
        assert tensor.dtype == getattr(torch, name)
        assert tensor.is_contiguous() and tensor.device.type == "cpu"
        assert tensor.data_ptr() == batch.data.data_ptr()
        before = memory(batch).copy()
        tensor[1, 2, 3] = tensor[0, 0, 1]
        assert memory(batch)[1, 2, 3] == before[0, 0, 1]


def test_torch_fields(torch):
    batch = wr.pad([paint(3), paint(5)], mask="real")
    assert batch.mask.torch().dtype == torch.bool and batch.lengths.torch().tolist() == [3, 5]
    assert batch.mask.torch().data_ptr() == batch.mask.data_ptr()


def test_torch_tensor_outlives_the_batch(torch):
    tensors = [wr.stack([paint(4096, seed=i)]).torch() for i in range(30)]
    for i, tensor in enumerate(tensors):
        assert (tensor.numpy()[0] == paint(4096, seed=i)).all()


@pytest.mark.parametrize("name", ["bool", "int8", "uint8", "int32", "uint32", "float16", "bfloat16", "float32", "complex64"])
@pytest.mark.parametrize("way", ["jax", "from_dlpack"])
def test_jax_shares_the_memory(jax, name, way):
    batch = batch_of(name, (32, 32))
    for thing in (batch, batch.data):
        array = thing.jax() if way == "jax" else jax.dlpack.from_dlpack(thing)
        assert array.shape == (5, 32, 32) and array.dtype.name == name
        assert array.unsafe_buffer_pointer() == batch.data.data_ptr()
        assert np.asarray(array).tobytes() == memory(batch).tobytes()


def test_zero_size_and_scalars(torch, jax):
    for arrays in ([np.empty((0, 3), np.float32)] * 2, [np.float32(3)] * 2, [np.empty((2, 0), np.float32)]):
        batch = wr.stack(arrays)
        want = np.stack(arrays)
        assert batch.numpy().shape == batch.torch().numpy().shape == batch.jax().shape == want.shape
        assert (np.asarray(batch.jax()) == want).all()


# asarray


def test_asarray_is_a_view():
    array = paint((3, 4), "int32")
    tensor = wr.asarray(array)
    assert isinstance(tensor, wr.Tensor)
    assert tensor.data_ptr() == array.ctypes.data and tensor.shape == (3, 4) and tensor.strides == (4, 1)
    array[0, 0] = 99
    assert tensor.numpy()[0, 0] == 99


@pytest.mark.parametrize(
    "view", [lambda a: a.T, lambda a: a[::2, ::-1], lambda a: np.broadcast_to(a[0], (5, 6)), lambda a: a[1:1], lambda a: a[2, 3]]
)
def test_asarray_keeps_strides(view):
    array = view(paint((4, 6), "int64"))
    tensor = wr.asarray(array)
    assert_tensor(tensor, array, compact=False)
    if array.size > 1:
        assert tensor.strides == tuple(s // 8 for s in array.strides)
    assert (tensor.numpy() == array).all()


def test_asarray_of_a_tensor_and_of_a_batch():
    batch = batch_of()
    assert wr.asarray(batch.data).data_ptr() == batch.data.data_ptr()
    assert wr.asarray(batch).data_ptr() == batch.data.data_ptr()


def test_asarray_of_numbers():
    for number, name in ((3, "int64"), (2.5, "float64"), (True, "bool")):
        tensor = wr.asarray(number)
        assert (tensor.shape, tensor.dtype) == ((), name)
        assert tensor.numpy()[()] == number


def test_a_batch_is_a_sample():
    batch = batch_of()
    again = wr.stack([batch, batch.data])
    assert_tensor(again, np.stack([batch.numpy()] * 2))
    assert is_compact(again.data.shape, again.data.strides)
    assert_tensor(wr.stack(list(batch)), batch.numpy())
    lengths = wr.stack([wr.pad([paint(3), paint(4)]).lengths] * 2)
    assert_values(lengths.data, [[3, 4], [3, 4]])


@pytest.mark.parametrize("form", [wr.ragged, wr.concat, lambda rows: wr.pad(rows, side="left", value=9, dims=0, multiple_of=8)])
def test_a_batch_in_place_of_a_list_is_the_list_of_its_samples(form):
    rows = [paint((n, 3), "int16", n) for n in (2, 0, 4, 1)]
    batch, extended = form(rows), wr.SampleList()
    extended.extend(batch)
    for samples in (batch, list(batch), wr.SampleList(batch), extended):
        ragged = wr.ragged(samples)
        assert_tensor(ragged, np.concatenate(rows))
        assert_values(ragged.lengths, [2, 0, 4, 1])
        assert_tensor(wr.collate(samples, wr.Ragged()), np.concatenate(rows))
        assert wr.pad(samples).shape == (4, 4, 3)
        assert wr.explain(samples, "ragged").samples == 4
    refusal(lambda: wr.stack(batch), wr.ShapeError, r"^sample 1: expected shape \(2, 3\), got \(0, 3\)")


def test_a_ragged_batch_in_place_of_a_list_is_a_view_of_itself():
    batch = wr.ragged([paint((n, 3)) for n in (2, 4)])
    assert wr.ragged(batch, copy=False).data_ptr() == batch.data_ptr()
    along = wr.concat([paint((2, n)) for n in (2, 4)], dim=1)
    assert_tensor(wr.concat(along, dim=1), along.numpy())


# the module


def test_module_functions():
    assert re.match(r"\d+\.\d+", wr.__version__)
    assert isinstance(wr.cuda_available(), bool)
    assert any("cpu" in str(device) for device in wr.devices())


def test_names_of_the_contract():
    for name in (
        "stack concat pad ragged collate SampleList explain Transform Batch Tensor Stack Concat Pad Ragged asarray Engine "
        "stats reset_stats empty_cache cuda_available devices ShapeError DTypeError DeviceError LayoutError CudaError "
        "CudaUnavailable"
    ).split():
        assert hasattr(wr, name), name


# one element as a number


@pytest.mark.parametrize("name", (*oracle.CASTABLE, *oracle.COMPLEX))
def test_one_element_is_a_number(name):
    value = 1 if name == "bool" else 3
    is_float = name in oracle.FLOATS or name in oracle.CAST8
    array = oracle.narrow(np.array([[value]]), name) if is_float else np.array([[value]], oracle.STORAGE[name])
    tensor = wr.asarray(samples_of([array], name)[0])
    if name in oracle.COMPLEX:
        assert complex(tensor) == 3 and type(complex(tensor)) is complex
        for kind in (int, float):
            with pytest.raises(TypeError, match="complex"):
                kind(tensor)
    else:
        assert (int(tensor), float(tensor), complex(tensor)) == (value, float(value), complex(value))
        assert (type(int(tensor)), type(float(tensor))) == (int, float)
    assert bool(tensor) is True
    if is_float or name in oracle.COMPLEX:
        with pytest.raises(TypeError, match=name):
            operator.index(tensor)
    else:
        assert operator.index(tensor) == value and ["a", "b", "c", "d"][tensor] == "abcd"[value]


@pytest.mark.parametrize("value, name", [(2**64 - 1, "uint64"), (-(2**63), "int64"), (-0.1, "float64"), (2**53 + 1, "int64")])
def test_numbers_are_exact(value, name):
    tensor = wr.asarray(np.array(value, name))
    assert type(value)(tensor) == value
    assert float(tensor) == float(value) and int(tensor) == int(value)


def test_numbers_as_numpy_and_torch_make_them():
    assert int(wr.asarray(7)) == 7 and float(wr.asarray(2.5)) == 2.5 and bool(wr.asarray(False)) is False
    assert complex(wr.asarray(np.array(1 - 2j))) == 1 - 2j and complex(wr.asarray(np.array(1 - 2j, "complex64"))) == 1 - 2j
    assert bool(wr.asarray(np.array([0.0]))) is False and bool(wr.asarray(np.array(np.nan))) is True
    assert int(wr.asarray(np.array(-2.9))) == -2
    for value, kind in ((np.inf, OverflowError), (np.nan, ValueError)):
        with pytest.raises(kind):
            int(wr.asarray(np.array(value)))
    assert float(wr.asarray(np.arange(12.0).reshape(3, 4)[1:2, 2:3])) == 6.0


@pytest.mark.parametrize("shape", [(0,), (2,), (3, 4)])
def test_no_number_of_more_or_fewer_elements(shape):
    tensor = wr.asarray(paint(shape, "int32"))
    for kind in (int, float, complex, operator.index):
        with pytest.raises(TypeError, match="one element"):
            kind(tensor)
    with pytest.raises(ValueError, match="ambiguous"):
        bool(tensor)


def test_no_number_of_a_dtype_that_python_lacks():
    with pytest.raises(TypeError, match="float8_e4m3"):
        float(wr.asarray(samples_of([paint(1, "float8_e4m3")], "float8_e4m3")[0]))
