"""Samples from every library, and from objects that offer one interface only."""

import array
import ctypes
import itertools
import mmap
import multiprocessing

import numpy as np
import pytest

import isolated
import oracle
import windrow as wr
from dlpack_harness import Producer
from helpers import assert_tensor, memory, paint, paint_values, reads_private_layouts, refusal


class ArrayInterface:
    """An object with `__array_interface__` and nothing else."""

    def __init__(self, base, **changes):
        self.base = base
        self.interface = {**base.__array_interface__, **changes}

    @property
    def __array_interface__(self):
        return self.interface


def to_torch(a):
    return pytest.importorskip("torch").from_numpy(a.copy())


def to_jax(a):
    return pytest.importorskip("jax").numpy.asarray(a.copy())


def to_paddle(a):
    return pytest.importorskip("paddle").to_tensor(a.copy(), place="cpu")


def to_tvm(a):
    return pytest.importorskip("tvm_ffi").from_dlpack(a.copy())


def read_only(a):
    a = a.copy()
    a.flags.writeable = False
    return a


KINDS = {
    "numpy": lambda a: a,
    "read-only": read_only,
    "torch": to_torch,
    "jax": to_jax,
    "paddle": to_paddle,
    "tvm_ffi": to_tvm,
    "windrow tensor": wr.asarray,
    "windrow batch": lambda a: wr.concat([a[:1], a[1:]]),
    "memoryview": lambda a: memoryview(a),
    "dlpack": lambda a: Producer(a),
    "legacy dlpack": lambda a: Producer(a, versioned=False),
    "array interface": ArrayInterface,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["uint8", "int32", "float32"])
@pytest.mark.parametrize("shape", [(6,), (3, 4), (2, 3, 4)])
def test_every_kind(kind, name, shape):
    arrays = [paint(shape, name, 11 * i) for i in range(3)]
    assert_tensor(wr.stack([KINDS[kind](a) for a in arrays]), np.stack(arrays))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_as_a_view(kind):
    a = paint((3, 4), "float32")
    tensor = wr.asarray(KINDS[kind](a))
    assert_tensor(tensor, a)
    assert (tensor.numpy() == a).all()


def test_all_kinds_in_one_list():
    arrays = [paint((2, 3), "float32", 7 * i) for i in range(len(KINDS))]
    samples = [make(a) for make, a in zip(KINDS.values(), arrays)]
    assert_tensor(wr.stack(samples), np.stack(arrays))
    assert_tensor(wr.stack(samples[::-1]), np.stack(arrays[::-1]))
    assert_tensor(wr.concat(samples), np.concatenate(arrays))


@pytest.mark.parametrize("other", ["torch", "windrow tensor", "memoryview", "dlpack"])
def test_rows_of_two_kinds_and_several_lengths(other):
    """Runs of arrays, read together, end at any place and begin again behind it."""
    make = KINDS[other]
    for kinds in itertools.product([False, True], repeat=6):
        arrays = [paint((length, 2), "int16", 31 * length) for length in (0, 2, 6, 5, 5, 7)]
        for lengths in (arrays, arrays[::-1]):
            samples = [make(a) if is_other else a for is_other, a in zip(kinds, lengths)]
            assert_tensor(wr.concat(samples), np.concatenate(lengths))
            assert memory(wr.ragged(samples).lengths).tolist() == [len(a) for a in lengths]
            place = sum(kinds)
            with pytest.raises(TypeError, match=f"sample {place}: expected an array-like"):
                wr.concat([*samples[:place], object(), *samples[place:]])


# NumPy


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[::-1],
        lambda a: a[:, ::-2],
        lambda a: a.T,
        np.asfortranarray,
        lambda a: np.broadcast_to(a[:, :1], a.shape),
        lambda a: np.broadcast_to(a[3], a.shape),
        lambda a: a[2:2],
        lambda a: a[1, 2],
        lambda a: a[1:2, ::5],
        lambda a: read_only(a)[::-1, ::2],
    ],
)
@pytest.mark.parametrize("name", ["bool", "uint8", "float16", "int32", "float64", "complex128"])
def test_numpy_layouts(view, name):
    arrays = [view(paint((6, 8), name, 5 * i)) for i in range(2)]
    assert_tensor(wr.stack(arrays), np.stack(arrays))


@pytest.mark.parametrize("name", [n for n in (*oracle.ARITHMETIC, *oracle.COMPLEX) if n != "bfloat16"])
def test_numpy_scalars_and_zero_dimensional_arrays(name):
    value = paint(4, name)
    assert_tensor(wr.stack([value[0], value[1]]), value[:2])
    assert_tensor(wr.stack([np.array(value[2]), value[3]]), value[2:])


def test_numpy_byte_steps_that_are_no_multiple_of_the_item():
    packed = np.zeros(5, [("a", "u1"), ("b", "<f4")])
    packed["b"] = np.arange(5)
    field = packed["b"]
    try:
        batch = wr.stack([field])
    except (BufferError, ValueError, TypeError) as error:
        assert str(error)
    else:
        assert_tensor(batch, np.stack([field]))


def test_numpy_misaligned():
    raw = paint(41)
    for name in ("int16", "float32", "float64", "complex128"):
        size = oracle.STORAGE[name].itemsize
        arrays = [raw[i : i + 2 * size].view(name) for i in range(1, 8)]
        assert_tensor(wr.stack(arrays), np.stack(arrays))
        if name != "complex128":
            want = oracle.stack(arrays, name, "uint8").data
            assert_tensor(wr.stack(arrays, dtype="uint8"), want)


def test_numpy_subclasses():
    class Named(np.ndarray):
        pass

    a = paint((3, 4))
    assert_tensor(wr.stack([a.view(Named), a]), np.stack([a, a]))


# torch


def test_torch_dtypes(torch):
    for name in (*oracle.ARITHMETIC, *oracle.COMPLEX, "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
        arrays = [paint((3, 4), name, i) for i in range(2)]
        samples = [torch.from_numpy(a.view(np.uint8)).view(getattr(torch, name)) for a in arrays]
        assert_tensor(wr.stack(samples), np.stack(arrays), name)


def test_torch_layouts(torch):
    t = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    for view in (
        t.permute(3, 1, 0, 2),
        t[:, ::2, 1:],
        t.contiguous(memory_format=torch.channels_last),
        t[:, :1].expand(2, 3, 4, 5),
        t[0, 0, 0, 0],
        t[:, :, :0],
        t.unfold(3, 3, 1),
    ):
        assert_tensor(wr.stack([view, view]), np.stack([view.numpy()] * 2))


def test_masked_arrays():
    """No protocol says what is masked."""

    class Mine(np.ma.MaskedArray):
        pass

    row = paint_values(4, "float32")
    whole = [np.ma.array(row), np.ma.array(row, mask=[0, 0, 0, 0]), np.ma.array(row).view(Mine)]
    assert_tensor(wr.stack(whole), np.stack([row] * 3))
    table = np.ma.array(np.stack([row] * 2), mask=False)
    assert_tensor(wr.stack(wr.SampleList(table)), np.stack([row] * 2))
    table[1, 2] = np.ma.masked
    for masked in (np.ma.array(row, mask=[0, 1, 0, 0]), np.ma.array(row, mask=True).view(Mine)):
        refusal(lambda: wr.stack([row, masked]), wr.LayoutError, "masked", index=1)
        refusal(lambda: wr.collate([{"x": row}, {"x": masked}]), wr.LayoutError, "masked", path="x", index=1)
        refusal(lambda: wr.stack([row], out=masked[None]), wr.LayoutError, "masked")
    refusal(lambda: wr.SampleList(table), wr.LayoutError, "masked")


def test_torch_bfloat16_bits(torch):
    bits = paint(2000, "uint16")
    t = torch.from_numpy(bits).view(torch.bfloat16)
    assert_tensor(wr.stack([t, t[::2].repeat(2)]), np.stack([bits, np.tile(bits[::2], 2)]), "bfloat16")


def test_torch_subclass(torch):
    class Mine(torch.Tensor):
        pass

    t = torch.arange(6).as_subclass(Mine)
    assert_tensor(wr.stack([t]), np.arange(6)[None])


def refused(sample, good):
    errors = (TypeError, ValueError, BufferError, RuntimeError, NotImplementedError)
    error = refusal(lambda: wr.stack([good, sample]), errors)
    assert str(error)
    refusal(lambda: wr.asarray(sample), errors)


def test_torch_tensor_that_is_moved_while_it_is_asked(torch):
    """A question is answered by whatever mode is active, and what was lent before it would be gone."""
    from torch.overrides import TorchFunctionMode

    sample, moved = torch.ones(1000, requires_grad=True), []

    class Move(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if not moved:
                moved.append(function)
                sample.untyped_storage().resize_(0)
                sample.untyped_storage().resize_(1 << 20)
                sample.fill_(7)
            return function(*args, **(kwargs or {}))

    with torch.no_grad(), Move():
        batch = wr.stack([sample])
    # Its words are read without a question, where they are known.
    assert bool(moved) != reads_private_layouts("torch")
    assert_tensor(batch, np.full((1, 1000), 7 if moved else 1, np.float32))


def test_torch_tensors_without_dense_host_memory_are_refused(torch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    good = torch.zeros(2, 3)
    with FakeTensorMode():
        fake = torch.empty(2, 3)
    refused(fake, good)
    refused(torch.empty(2, 3, device="meta"), good)
    refused(torch.ones(2, 3).to_sparse(), good)
    refused(torch.ones(2, 3).to_sparse_csr(), good)
    refused(torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.quint8), good)


def test_many_torch_tensors(torch):
    rows = torch.arange(20_000 * 8, dtype=torch.float32).reshape(20_000, 8)
    assert_tensor(wr.stack(list(rows)), rows.numpy())
    assert_tensor(wr.stack([row.clone() for row in rows]), rows.numpy())


def test_numbers_after_many_torch_tensors(torch):
    """An object that is prefetched may be of another type."""
    for other in (3, 2.5, np.float32(7), np.array(8.5)):
        samples = [torch.tensor(float(i)) for i in range(40)] + [other] * 40
        want = np.concatenate([np.arange(40.0), np.full(40, other)]).astype("f4")
        assert_tensor(wr.stack(samples, dtype="float32"), want)


# JAX, Paddle, tvm-ffi


def test_jax_dtypes(jax):
    for name in ("bool", "int8", "uint8", "int16", "int32", "uint32", "float16", "float32", "complex64", "bfloat16"):
        bits = paint((3, 4), name)
        x = jax.lax.bitcast_convert_type(jax.numpy.asarray(bits), name) if name == "bfloat16" else jax.numpy.asarray(bits)
        assert x.dtype.name == name
        assert_tensor(wr.stack([x, x]), np.stack([bits, bits]), name)


def test_jax_layouts(jax):
    x = jax.numpy.arange(24.0).reshape(2, 3, 4)
    for view in (x, x.transpose(2, 0, 1), x[0, 0, 0], x[:, :0]):
        assert_tensor(wr.stack([view, view]), np.stack([np.asarray(view)] * 2))


def test_paddle_dtypes():
    paddle = pytest.importorskip("paddle")
    for name in ("bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64"):
        a = paint((3, 4), name)
        assert_tensor(wr.stack([paddle.to_tensor(a, place="cpu")] * 2), np.stack([a, a]))


def test_gradients_of_paddle_are_not_lost():
    paddle = pytest.importorskip("paddle")
    weight = paddle.to_tensor([1.0, 2.0], stop_gradient=False, place="cpu")
    for call in (wr.stack, wr.SampleList, lambda samples: wr.copy_many(samples, [np.zeros(2, "f4")])):
        refusal(lambda: call([weight * 2]), wr.LayoutError, "gradient")
    assert_tensor(wr.stack([weight.detach()] * 2), np.array([[1, 2]] * 2, "f4"))


def test_paddle_views():
    paddle = pytest.importorskip("paddle")
    t = paddle.arange(12, dtype="float32").reshape([3, 4]).cpu()
    assert_tensor(wr.stack([t.transpose([1, 0])]), t.numpy().T[None])


def test_tvm_ffi_dtypes():
    pytest.importorskip("tvm_ffi")
    for name in ("bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"):
        a = paint((3, 4), name)
        assert_tensor(wr.stack([to_tvm(a), to_tvm(a)]), np.stack([a, a]))


def test_tvm_ffi_containers():
    """Its lists are lists of samples, its maps containers, its shapes rows of numbers; its dtypes and devices are those of a call."""
    tvm_ffi = pytest.importorskip("tvm_ffi")
    arrays = [paint((3, 4), "float32", seed) for seed in range(2)]
    tensors = [to_tvm(a) for a in arrays]
    for samples in (tvm_ffi.Array(tensors), tvm_ffi.List(tensors), tvm_ffi.convert(tensors)):
        assert_tensor(wr.stack(samples), np.stack(arrays))
        assert_tensor(wr.SampleList(samples).stack([1, 0]), np.stack(arrays[::-1]))
    batch = wr.collate(tvm_ffi.Array([tvm_ffi.Map({"x": tensor, "y": i}) for i, tensor in enumerate(tensors)]))
    assert type(batch) is tvm_ffi.Map
    assert_tensor(wr.asarray(batch["x"]), np.stack(arrays))
    assert_tensor(wr.asarray(batch["y"]), np.arange(2))
    assert_tensor(wr.stack([tvm_ffi.Shape((1, 2)), tvm_ffi.Shape((3, 4))]), np.array([[1, 2], [3, 4]]))
    out = to_tvm(np.zeros((2, 3, 4), "float16"))
    wr.stack(tensors, out=out, dtype=tvm_ffi.dtype("float16"), device=tvm_ffi.device("cpu"))
    assert_tensor(wr.asarray(out), np.stack(arrays).astype("float16"))


def series_of_objects(series):
    """A pandas Series of arrays is the list of them: no type is inferred, nothing is cast."""
    nan = [np.array([1, np.nan]), np.ones(2)]
    assert_tensor(wr.stack(series(nan)), np.stack(nan))
    matrices = [paint((2, 3), "float32", seed) for seed in range(2)]
    assert_tensor(wr.stack(series(matrices)), np.stack(matrices))
    refusal(lambda: wr.stack(series([np.ones(2, "f4"), np.ones(2)])), wr.DTypeError, "float32", "float64", index=1)
    pytest.importorskip("torch")
    from windrow import plan, sequence
    from windrow.torch import collate_fn

    # By position, whatever the labels.
    rows = series([[3], [2, 2, 2], [1, 1]], index=[2, 1, 0])
    packed = sequence.pack_rows(rows, [[0], [2]], max_tokens=4)["input_ids"]
    assert packed.tolist() == sequence.pack_rows(list(rows), [[0], [2]], max_tokens=4)["input_ids"].tolist()
    assert collate_fn()(series([1, 2], index=[4, 5], dtype=object)).tolist() == [1, 2]
    assert plan.pack(series([3, 4, 1], index=[4, 5, 6], dtype=object), 4) == plan.pack([3, 4, 1], 4)


def test_what_nobody_would_guess():
    """The table in docs/compatibility.md."""
    pa, image = pytest.importorskip("pyarrow"), pytest.importorskip("PIL.Image")
    pixels = paint((3, 4, 3))
    rows = [paint(3, "float64", seed) for seed in range(2)]
    assert_tensor(wr.stack([image.fromarray(pixels)] * 2), np.stack([pixels] * 2))
    assert_tensor(wr.stack([pa.Tensor.from_numpy(row) for row in rows]), np.stack(rows))
    assert_tensor(wr.stack([pa.py_buffer(row) for row in rows]), np.stack(rows).view("int8"))
    assert_tensor(wr.stack([(ctypes.c_double * 3)(*row) for row in rows]), np.stack(rows))
    assert_tensor(wr.stack([multiprocessing.RawArray("d", row) for row in rows]), np.stack(rows))
    assert_tensor(wr.stack(pytest.importorskip("pandas").Series(rows)), np.stack(rows))
    series_of_objects(pytest.importorskip("pandas").Series)
    relation = pytest.importorskip("duckdb").sql("select * from (values (1, [2, 3]), (4, [5, 6])) as t(a, b)")
    batch = wr.collate(relation)
    assert_tensor(batch["a"], np.array([1, 4], "int32"))
    assert_tensor(batch["b"], np.array([[2, 3], [5, 6]], "int32"))
    assert_tensor(wr.stack(rows, dtype=pytest.importorskip("paddle").float32), np.stack(rows).astype("float32"))


# Buffers


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, lambda b: memoryview(bytearray(b))])
def test_bytes(make):
    rows = [bytes(range(i, i + 10)) for i in range(3)]
    assert_tensor(wr.stack([make(row) for row in rows]), np.array([list(row) for row in rows], np.uint8))


def test_bytes_of_several_lengths():
    batch = wr.ragged([b"one", b"", bytearray(b"three")])
    assert bytes(memoryview(batch)) == b"onethree"
    assert batch.offsets.numpy().tolist() == [0, 3, 3, 8]


@pytest.mark.parametrize("code", "bBhHiIlLqQfd")
def test_array_array(code):
    a = array.array(code, range(5))
    want = np.array(a)
    assert_tensor(wr.stack([a, a]), np.stack([want, want]))
    # In place of a list it is the list of its numbers, which have a dtype.
    assert_tensor(wr.stack(a), want)
    assert_tensor(wr.stack(wr.SampleList(a)[:2]), want[:2])
    assert_tensor(wr.collate(a), want)
    wr.copy_many(a, want[::-1])
    assert a.tolist() == want[::-1].tolist()


def test_what_lends_memory_in_place_of_a_list():
    assert_tensor(wr.stack(bytearray(b"abc")), np.frombuffer(b"abc", np.uint8))
    grid = (ctypes.c_float * 3 * 2)((1, 2, 3), (4, 5, 6))
    assert_tensor(wr.stack(grid), np.array(grid))
    array = paint((4, 6), "int16")
    lender = ArrayInterface(array)
    assert_tensor(wr.stack(lender), array)
    assert_tensor(wr.collate(lender), array)
    wr.copy_many(lender, np.zeros_like(array))
    assert not array.any()


@pytest.mark.parametrize("cast", ["?", "b", "B", "h", "H", "i", "I", "l", "L", "q", "Q", "f", "d"])
def test_memoryview_formats(cast):
    view = memoryview(bytes(16)).cast(cast)
    assert_tensor(wr.stack([view]), np.asarray(view)[None])


def test_memoryview_strides_and_shape():
    view = memoryview(bytes(range(24))).cast("B", (4, 6))
    assert_tensor(wr.stack([view]), np.asarray(view)[None])
    assert_tensor(wr.stack([memoryview(bytes(range(24)))[::-3]]), np.arange(24, dtype=np.uint8)[::-3][None])


@pytest.mark.parametrize("array", [paint((4, 6), "int16"), paint((3, 2, 2), "float32")[::-1], paint(5)], ids=["rows", "reversed", "one dim"])
def test_a_memoryview_in_place_of_a_list_is_the_list_of_its_rows(array):
    for samples in (memoryview(array), wr.SampleList(memoryview(array))):
        assert_tensor(wr.stack(samples), array)


@pytest.mark.parametrize("format_", ["c", "P", "n"])
def test_memoryview_formats_that_are_no_number(format_):
    view = memoryview(bytes(16)).cast(format_)
    try:
        batch = wr.stack([view])
    except (TypeError, ValueError, BufferError) as error:
        assert str(error)
    else:
        assert batch.nbytes == 16


def test_ctypes_arrays_and_mmap():
    numbers = (ctypes.c_float * 4)(1, 2, 3, 4)
    assert_tensor(wr.stack([numbers]), np.array([[1, 2, 3, 4]], "f4"))
    with mmap.mmap(-1, 64) as mapped:
        mapped[:4] = b"\1\2\3\4"
        got = wr.stack([mapped])
        assert memory(got)[0, :5].tolist() == [1, 2, 3, 4, 0]
        del got


def test_a_buffer_is_released_after_the_call():
    data = bytearray(b"abcdef")
    wr.stack([data, data])
    data.append(1)
    assert len(data) == 7


# __array_interface__ alone


def test_array_interface_layouts():
    a = paint((4, 6), "int32")
    for view in (a, a.T, a[::2, ::-1], a[1:1], a[1, 2:3]):
        assert_tensor(wr.stack([ArrayInterface(view)]), np.stack([view]))


def test_array_interface_with_a_buffer_and_an_offset():
    data = bytes(range(40))
    base = np.frombuffer(data, np.uint8)
    holder = ArrayInterface(base, data=memoryview(data), offset=4, shape=(3, 3), typestr="<i4", strides=None)
    assert_tensor(wr.stack([holder]), np.frombuffer(data, "<i4", 9, 4).reshape(1, 3, 3))


def test_array_interface_without_elements():
    a = np.empty((0, 3), np.float32)
    assert_tensor(wr.stack([ArrayInterface(a, data=(0, False))]), a[None])


@pytest.mark.parametrize(
    "changes",
    [
        {"typestr": ">O4"},
        {"typestr": "!i4"},
        {"typestr": "|O4"},
        {"typestr": "<U1"},
        {"typestr": "<M8"},
        {"typestr": "nonsense"},
        {"typestr": "<i3"},
        {"shape": (-1, 3)},
        {"shape": "x"},
        {"strides": (4,)},
        {"data": (0, False)},
        {"data": "x"},
        {"data": (2**70, False)},
        {"mask": np.ones((2, 3), bool)},
    ],
)
def test_array_interface_that_is_wrong(changes):
    holder = ArrayInterface(paint((2, 3), "int32"), **changes)
    errors = (TypeError, ValueError, BufferError, OverflowError)
    refusal(lambda: wr.stack([paint((2, 3), "int32"), holder]), errors)


def test_array_interface_of_raising_property():
    class Boom(Exception):
        pass

    class Raises:
        @property
        def __array_interface__(self):
            raise Boom("no")

    with pytest.raises((Boom, TypeError)):
        wr.stack([Raises()])


# Python numbers


def test_numbers():
    assert_tensor(wr.stack([1, 2, -3]), np.array([1, 2, -3]))
    assert_tensor(wr.stack([1.5, float("inf")]), np.array([1.5, np.inf]))
    assert_tensor(wr.stack([True, False]), np.array([True, False]))
    assert_tensor(wr.stack([2**63 - 1, -(2**63)]), np.array([2**63 - 1, -(2**63)]))


def test_numbers_of_several_types_with_a_dtype():
    assert_tensor(wr.stack([1, 2.5, True, np.int8(-4)], dtype="float32"), np.array([1, 2.5, 1, -4], "f4"))


def test_number_subclasses():
    import enum

    class Color(enum.IntEnum):
        RED = 7

    class Metres(float):
        pass

    assert_tensor(wr.stack([Color.RED, 1]), np.array([7, 1]))
    assert_tensor(wr.stack([Metres(1.5)]), np.array([1.5]))


# ml_dtypes


@pytest.mark.parametrize("name", ["bfloat16", *oracle.FLOAT8])
def test_arrays_of_ml_dtypes(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(getattr(ml_dtypes, name))
    bits = [paint((n, 4), name, n) for n in (3, 0, 2)]
    arrays = [array.view(dtype) for array in bits]
    batch = wr.pad(arrays, mask="real", value=1, dims=0)
    want = np.full((3, 3, 4), np.ones((), dtype).view(oracle.STORAGE[name]))
    for row, array in zip(want, bits):
        row[: len(array)] = array
    assert_tensor(batch, want, name)
    assert batch.numpy().dtype == dtype
    # The arrays have strides or no dims, are views, read-only, read one at a time, and outputs.
    assert_tensor(wr.stack([array[:, ::-2] for array in arrays[:1]]), bits[0][None, :, ::-2], name)
    assert_tensor(wr.stack([array.T for array in arrays[:1]], dtype=dtype), bits[0].T[None], name)
    assert_tensor(wr.stack([arrays[0][0, 1], arrays[0][2, 3]]), np.array([bits[0][0, 1], bits[0][2, 3]]), name)
    assert wr.asarray(arrays[0]).data_ptr() == arrays[0].ctypes.data
    out = np.zeros((1, 3, 4), dtype)
    wr.stack([read_only(arrays[0])], out=out)
    assert (out.view(bits[0].dtype)[0] == bits[0]).all()
    refusal(lambda: wr.stack([arrays[0]], out=read_only(out)), wr.LayoutError, "read-only")
    assert wr.collate([{"x": arrays[0]}] * 2)["x"].dtype == name
    assert list(wr.SampleList(arrays).take([2])[0].shape) == [2, 4]


def test_casts_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = paint_values((5, 3), "bfloat16")
    half = bits.view(ml_dtypes.bfloat16)
    assert_tensor(wr.stack([half], dtype="float32"), oracle.cast(bits, "bfloat16", "float32")[None])
    for dtype in (ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)):
        assert_tensor(wr.stack([half.astype("float32")], dtype=dtype), bits[None], "bfloat16")
    refusal(lambda: wr.stack([half, half.astype("float32")]), wr.DTypeError, "expected bfloat16, got float32", index=1)
    narrow = half.astype(ml_dtypes.float8_e5m2fnuz)
    refusal(lambda: wr.stack([narrow], dtype="float32"), wr.DTypeError, "float8", "moved")


def test_dtypes_of_no_other_library():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    unknown = [np.zeros(3, name) for name in (ml_dtypes.int4, ml_dtypes.float4_e2m1fn, "M8[s]", "U3", "V2", "O")]
    unknown.append(np.zeros(3, [("bfloat16", "u2")]))
    for array in unknown:
        refusal(lambda: wr.stack([np.zeros(3), array], dtype="float32"), (wr.LayoutError, TypeError, ValueError))
    swapped = np.zeros(3, ml_dtypes.bfloat16)
    swapped = ArrayInterface(swapped.view("u2"), typestr=">V2")
    swapped.dtype = np.dtype(ml_dtypes.bfloat16)
    refusal(lambda: wr.stack([swapped]), wr.LayoutError, "native")


# no hard dependency


@pytest.mark.slow
def test_works_without_numpy_and_torch():
    code = """
import sys
for name in ("numpy", "torch", "jax", "cupy", "paddle", "tvm_ffi", "ml_dtypes"):
    sys.modules[name] = None
import array
import windrow as wr
batch = wr.stack([b"ab", bytearray(b"cd"), memoryview(b"ef")])
assert memoryview(batch).tolist() == [[97, 98], [99, 100], [101, 102]], memoryview(batch).tolist()
batch = wr.pad([array.array("f", [1, 2, 3]), array.array("f", [4])], value=-1, mask="real", dtype="float64")
assert memoryview(batch).tolist() == [[1, 2, 3], [4, -1, -1]]
assert memoryview(batch.lengths).tolist() == [3, 1]
assert memoryview(batch.mask).tolist() == [[True, True, True], [True, False, False]]
assert wr.stack([1, 2, 3]).dtype == "int64"
tree = wr.collate([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])
assert memoryview(tree["a"]).tolist() == [1, 2] and tree["b"] == ["x", "y"]
try:
    wr.stack([b"ab", b"abc"])
except wr.ShapeError as error:
    assert (error.index, error.expected, error.got) == (1, (2,), (3,))
try:
    batch.numpy()
except ImportError:
    pass
else:
    raise AssertionError("numpy() without NumPy")
repr(batch), wr.stats()
"""
    done = isolated.python("-c", code)
    assert done.returncode == 0, done.stderr
