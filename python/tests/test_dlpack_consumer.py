"""DLPack import: the consumer checks C1 to C15 for host memory, with capsules built by ctypes."""

import threading

import numpy as np
import pytest

import oracle
import windrow as wr
from dlpack_harness import (
    CODES,
    CPU,
    CUDA_HOST,
    READ_ONLY,
    ROCM_HOST,
    USED_LEGACY,
    USED_VERSIONED,
    Given,
    Handle,
    Producer,
    managed,
    name_of,
)
from helpers import TYPED, assert_tensor, freed_once, is_poisoned, paint, poisoned, refusal, settle

CANNOT_EXPRESS = (BufferError, wr.DTypeError, wr.DeviceError)


def all_freed(*producers):
    """Checks as `freed_once` does, for producers that may never have been asked."""
    settle()
    for producer in producers:
        producer.close()
        assert producer.deleted == [1] * len(producer.handles)


def check_refused(build, errors=TYPED, **arguments):
    """A bad tensor between two good ones: a typed error, everything freed once, `out` untouched."""
    array = paint((2, 3), "float32")
    bad, first, last = build(array) if callable(build) else Producer(array, **build), Producer(array), Producer(array)
    out = poisoned((3, 2, 3), "float32")
    refusal(lambda: wr.stack([first, bad, last], out=out, **arguments), errors)
    assert is_poisoned(out)
    all_freed(first, bad, last)
    return bad


# C1, C2, C3


@pytest.mark.parametrize("versioned", [True, False])
def test_c1_both_kinds(versioned):
    arrays = [paint((2, 3), "float32", i) for i in range(4)]
    producers = [Producer(a, versioned=versioned) for a in arrays]
    assert_tensor(wr.stack(producers), np.stack(arrays))
    used = USED_VERSIONED if versioned else USED_LEGACY
    assert [name_of(p.handles[0].kept) for p in producers] == [used] * 4
    freed_once(*producers)


@pytest.mark.parametrize("name", [*CODES])
@pytest.mark.parametrize("versioned", [True, False])
def test_c1_every_dtype(name, versioned):
    arrays = [paint((2, 3), name, i) for i in range(2)]
    producers = [Producer(a, name=name, versioned=versioned) for a in arrays]
    assert_tensor(wr.stack(producers), np.stack(arrays), name)
    freed_once(*producers)


@pytest.mark.parametrize("versioned", [True, False])
def test_c2_a_capsule_serves_once(versioned):
    array = paint(6, "int32")
    handle = Handle(array, versioned=versioned)
    capsule = handle.capsule()
    assert_tensor(wr.stack([Given(capsule)]), array[None])
    refusal(lambda: wr.stack([Given(capsule)]), ValueError)
    refusal(lambda: wr.asarray(Given(capsule)), ValueError)
    del capsule
    settle()
    assert handle.deleted == 1


def test_c2_the_same_capsule_twice_in_one_list():
    handle = Handle(paint(6, "int32"))
    capsule = handle.capsule()
    refusal(lambda: wr.stack([Given(capsule), Given(capsule)]), ValueError)
    del capsule
    settle()
    assert handle.deleted == 1


WRONG_NAMES = [b"dltensor_wrong", b"used_dltensor", b"used_dltensor_versioned", b"DLTENSOR", b"dltensor_versioned2"]


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_c2_wrong_name(name):
    handle = Handle(paint(6, "int32"))
    capsule = handle.capsule(name)
    refusal(lambda: wr.stack([Given(capsule)]), ValueError)
    assert handle.deleted == 0 and name_of(capsule) == name


@pytest.mark.parametrize("thing", [None, 3, "dltensor", object(), [1, 2]])
def test_c2_no_capsule(thing):
    refusal(lambda: wr.stack([Given(thing)]), TypeError)


class OnlyStream:
    """A producer from before max_version."""

    def __init__(self, array):
        self.handle = Handle(array, versioned=False)

    def __dlpack_device__(self):
        return (CPU, 0)

    def __dlpack__(self, stream=None):
        assert stream is None
        return self.handle.capsule()


class NoArguments(OnlyStream):
    def __dlpack__(self):
        return self.handle.capsule()


class NoMax(OnlyStream):
    def __dlpack__(self, *, stream=None, **others):
        if "max_version" in others:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.handle.capsule()


@pytest.mark.parametrize("cls", [OnlyStream, NoArguments, NoMax])
def test_c3_producers_with_fewer_arguments(cls):
    producer = cls(paint((2, 3), "float32"))
    assert_tensor(wr.stack([producer]), paint((1, 2, 3), "float32"))
    settle()
    assert producer.handle.deleted == 1


def test_c3_producer_without_a_device():
    class NoDevice:
        def __dlpack__(self, **_):
            return Handle(paint(3)).capsule()

    try:
        batch = wr.stack([NoDevice()])
    except (TypeError, ValueError, BufferError, AttributeError) as error:
        assert str(error)
    else:
        assert_tensor(batch, paint((1, 3)))


# C4, C5, C6


def test_c4_another_major_version():
    array = paint(6, "int32")
    producer = Producer(array, version=(2, 0), shape=None, strides=None, ndim=2**30, data=0x1, dtype=(99, 1, 0))
    refusal(lambda: wr.stack([producer]), BufferError)
    freed_once(producer)


@pytest.mark.parametrize("version", [(1, 0), (1, 1), (1, 3), (1, 99)])
def test_c4_any_minor_version(version):
    producer = Producer(paint(6, "int32"), version=version)
    assert_tensor(wr.stack([producer]), paint((1, 6), "int32"))


@pytest.mark.parametrize("versioned", [True, False])
def test_c5_layouts(versioned):
    base = paint((6, 8), "float32")
    address = base.ctypes.data
    cases = [
        (base, {"strides": None}),
        (base[2, 3], {"shape": None, "strides": None, "ndim": 0}),
        (base[2, 3], {"shape": (), "strides": ()}),
        (base[1:], {"data": address, "byte_offset": 32}),
        (base[:, ::-1], {}),
        (base[::-2, ::3], {}),
        (np.broadcast_to(base[0], (3, 8)), {}),
        (base[2:3], {"strides": (999, 1)}),
        (base[2:3], {"strides": (-(2**62), 1)}),
        (base[2:3, :1], {"strides": (0, 2**63 - 1)}),
        (base[:0], {"data": None}),
        (base[:0], {"data": 0xDEAD0000, "strides": (-7, 2**62)}),
        (base[:, :0], {"data": None, "strides": (0, 0)}),
        (base[:0], {"data": None, "strides": None, "byte_offset": 12345}),
    ]
    for array, fields in cases:
        producer = Producer(np.asarray(array), versioned=versioned, **fields)
        assert_tensor(wr.stack([producer]), np.asarray(array)[None])
        view = wr.asarray(producer)
        assert_tensor(view, np.asarray(array), compact=False)
        del view
        freed_once(producer)


def test_c5_byte_offset_that_is_no_multiple_of_the_item():
    raw = paint(41)
    for offset in range(9):
        producer = Producer(raw[:32].view("float64"), data=raw.ctypes.data, byte_offset=offset)
        want = raw[offset : offset + 32].view("float64")
        assert_tensor(wr.stack([producer], dtype="float32"), oracle.stack([want], "float64", "float32").data)


@pytest.mark.parametrize("align", [2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("shape", [(), (4,), (3, 4), (2, 3, 4), (0,), (0, 4), (3, 0), (3, 1), (1, 4), (2, 1, 4)])
def test_alignments_and_shapes(align, shape):
    raw = np.zeros(512, np.uint8)
    start = -raw.ctypes.data % 128 + align
    array = raw[start : start + 4 * int(np.prod(shape))].view("int32").reshape(shape)
    array[...] = paint(shape, "int32")
    assert_tensor(wr.stack([Producer(array), Producer(array)]), np.stack([array, array]))


def test_c5_rank_64():
    # NumPy before 2.0 has arrays of 32 dims at most.
    rank = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
    array = paint((1,) * (rank - 1) + (3,), "int16")
    assert_tensor(wr.asarray(Producer(array, shape=array.shape)), array, compact=False)


@pytest.mark.parametrize("versioned", [True, False])
def test_c6_no_deleter(versioned):
    producer = Producer(paint(6, "int32"), versioned=versioned, deleter=False)
    assert_tensor(wr.stack([producer]), paint((1, 6), "int32"))
    view = wr.asarray(producer)
    del view
    settle()
    assert producer.deleted == [0, 0]


# C7 and the rest of the bad input


UNKNOWN = [(99, 32), (3, 64), (2, 80), (2, 8), (0, 24), (0, 0), (6, 1), (5, 32), (4, 32), (15, 6), (17, 4)]


@pytest.mark.parametrize("dtype", UNKNOWN)
def test_c7_unknown_dtype(dtype):
    check_refused({"dtype": (*dtype, 1)}, CANNOT_EXPRESS)


@pytest.mark.parametrize("lanes", [0, 2, 4, 65535])
def test_c7_lanes(lanes):
    check_refused({"dtype": (2, 32, lanes)}, CANNOT_EXPRESS)


@pytest.mark.parametrize("device", [(4, 0), (7, 0), (8, 0), (99, 0), (0, 0), (-1, 0), (2**31 - 1, 0)])
def test_c7_unknown_device(device):
    check_refused({"device": device}, CANNOT_EXPRESS)
    check_refused({"device": device, "dunder": (CPU, 0)}, CANNOT_EXPRESS)


def test_c7_the_capsule_stays_usable():
    producer = Producer(paint(6, "int32"), dtype=(99, 32, 1))
    refusal(lambda: wr.stack([producer]), CANNOT_EXPRESS)
    assert producer.deleted == [0] * len(producer.handles)
    assert name_of(producer.handles[0].kept) == b"dltensor_versioned"
    assert managed(producer.handles[0].kept).dl_tensor.dtype.code == 99
    freed_once(producer)


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize(
    "fields",
    [
        {"shape": (-1, 3)},
        {"shape": (2, -(2**63))},
        {"shape": (2**62, 2**62)},
        {"shape": (2**63 - 1, 3)},
        {"shape": (2**61, 1)},
        {"strides": (2**62, 1)},
        {"strides": (-(2**63), 1)},
        {"strides": (2**63 - 1, 2**63 - 1)},
        {"ndim": -1},
        {"ndim": 65, "shape": (1,) * 65, "strides": (1,) * 65},
        {"ndim": 2**31 - 1, "shape": (1,) * 65, "strides": (1,) * 65},
        {"data": None},
        {"shape": None, "ndim": 2},
        {"byte_offset": 2**64 - 1},
    ],
)
def test_bad_layouts(fields, versioned):
    check_refused({"versioned": versioned, **fields})


@pytest.mark.parametrize("fields", [{"shape": (0, -1)}, {"shape": (0, 2**62, 2**62)}, {"ndim": 65, "shape": (0,) * 65}])
def test_bad_layouts_without_elements(fields):
    """Checked or accepted, but never misread: an extent of 0 does not excuse a negative one."""
    producer = Producer(paint((2, 3), "float32"), **{"strides": None, **fields})
    try:
        tensor = wr.asarray(producer)
    except TYPED as error:
        assert str(error)
    else:
        assert tensor.nbytes == 0 and min(tensor.shape) >= 0
        del tensor
    freed_once(producer)


# C8, C9, C10, C11


def test_c8_read_only_is_refused_as_output_only():
    array = paint((2, 3), "float32")
    assert_tensor(wr.stack([Producer(array, flags=READ_ONLY)]), array[None])
    out = poisoned((1, 2, 3), "float32")
    refusal(lambda: wr.stack([array], out=Producer(out, flags=READ_ONLY)), wr.LayoutError, index=None)
    assert is_poisoned(out)
    target = Producer(out)
    batch = wr.stack([array], out=target)
    assert (out[0] == array).all()
    del batch
    freed_once(target)


def test_c8_output_is_freed_once_after_an_error():
    out = poisoned((1, 2, 4), "float32")
    target = Producer(out)
    refusal(lambda: wr.stack([paint((2, 3), "float32")], out=target), wr.ShapeError)
    assert is_poisoned(out)
    freed_once(target)


@pytest.mark.parametrize("dunder", [CPU, CUDA_HOST, ROCM_HOST])
@pytest.mark.parametrize("capsule", [CPU, CUDA_HOST, ROCM_HOST])
def test_c9_host_device_types_may_differ(dunder, capsule):
    producer = Producer(paint(6, "int32"), device=(capsule, 0), dunder=(dunder, 0))
    assert_tensor(wr.stack([producer], device="cpu"), paint((1, 6), "int32"))
    freed_once(producer)


@pytest.mark.parametrize("dunder", [None, 3, (1,), ("cpu", 0), (1, 0, 0), (1.5, 0), (2**40, 0)])
def test_device_answer_that_is_no_pair(dunder):
    class Bad(Producer):
        def __dlpack_device__(self):
            return dunder

    refusal(lambda: wr.stack([Bad(paint(3))]), (TypeError, ValueError, BufferError, OverflowError))


class Boom(Exception):
    pass


@pytest.mark.parametrize("where", ["__dlpack__", "__dlpack_device__"])
@pytest.mark.parametrize("error", [Boom("no"), KeyError("k"), RuntimeError("r"), MemoryError(), KeyboardInterrupt()])
def test_c10_an_exception_arrives_unchanged(where, error):
    def fail(*_, **__):
        raise error

    cls = type("Raises", (Producer,), {where: fail})
    good = Producer(paint(3))
    with pytest.raises(type(error)) as caught:
        wr.stack([good, cls(paint(3))])
    assert caught.value is error
    del caught
    error.__traceback__ = None
    freed_once(good)
    assert_tensor(wr.stack([good]), paint((1, 3)))


def test_c10_a_buffer_error_falls_through_to_the_next_interface():
    class Refuses(Producer):
        def __dlpack__(self, **_):
            raise BufferError("first")

    class WithInterface(Refuses):
        @property
        def __array_interface__(self):
            return self.array.__array_interface__

    assert_tensor(wr.stack([WithInterface(paint(6, "int32"))]), paint((1, 6), "int32"))
    with pytest.raises(BufferError, match="first"):
        wr.stack([Refuses(paint(6, "int32"))])


def test_c11_stream_and_version_asked_for():
    producer = Producer(paint(6, "int32"))
    wr.stack([producer])
    (call,) = producer.calls
    assert call["stream"] is None and call["max_version"][0] == 1 and call["copy"] in (None, False)


# C13, C15


@pytest.mark.parametrize("versioned", [True, False])
def test_c13_counts(versioned):
    arrays = [paint((2, 3), "float32", i) for i in range(100)]
    producers = [Producer(a, versioned=versioned) for a in arrays]
    for call in (wr.stack, wr.concat, wr.pad, wr.ragged):
        call(producers)
    wr.stack(producers, dtype="float16")
    freed_once(*producers)
    assert all(len(p.handles) == 5 for p in producers)


@pytest.mark.parametrize("bad", [lambda: paint((2, 4), "float32"), lambda: paint((2, 3), "int8"), lambda: object(), lambda: None])
def test_c13_counts_after_an_error(bad):
    producers = [Producer(paint((2, 3), "float32", i)) for i in range(20)]
    for position in (0, 7, 20):
        refusal(lambda: wr.stack([*producers[:position], bad(), *producers[position:]]), (TypeError, ValueError))
    all_freed(*producers)


def test_c13_a_view_frees_with_its_last_user():
    producer = Producer(paint((2, 3), "float32"))
    tensor = wr.asarray(producer)
    array = tensor.numpy()
    del tensor
    settle()
    assert producer.deleted == [0]
    assert (array == paint((2, 3), "float32")).all()
    del array
    freed_once(producer)


def test_c13_a_sample_list_holds_its_tensors():
    producers = [Producer(paint(4, "int32", i)) for i in range(5)]
    samples = wr.SampleList(producers)
    wr.stack(samples)
    wr.stack(samples.take([1, 1, 3]))
    settle()
    assert [p.deleted for p in producers] == [[0]] * 5
    del samples
    freed_once(*producers)


def test_c15_threads_import_one_object():
    producer = Producer(paint(64, "int32"))
    tensor = wr.asarray(paint(64, "int32"))
    results = []

    def work():
        for _ in range(50):
            results.append(wr.stack([producer, tensor]).numpy()[0].tobytes())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [paint(64, "int32").tobytes()] * 400
    freed_once(producer)
