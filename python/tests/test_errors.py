"""Refusals: class, attributes and text; nothing written; the engine usable afterwards."""


import numpy as np
import pytest

import windrow as wr
from helpers import assert_tensor, is_poisoned, paint, poisoned, refusal

TOO_LARGE = np.broadcast_to(np.uint8(1), (1 << 62,))
HUGE = np.broadcast_to(np.uint8(1), (1 << 50,))


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (wr.ShapeError, ValueError),
        (wr.DTypeError, TypeError),
        (wr.DeviceError, ValueError),
        (wr.LayoutError, BufferError),
        (wr.CudaError, RuntimeError),
        (wr.CudaUnavailable, RuntimeError),
    ],
)
def test_classes(error, base):
    assert issubclass(error, base)


# shapes


def test_text_of_a_shape_error():
    samples = [paint((224, 224, 3))] * 3 + [paint((224, 200, 3))]
    error = refusal(lambda: wr.stack(samples), wr.ShapeError, index=3, path="", expected=(224, 224, 3), got=(224, 200, 3))
    assert str(error) == "sample 3: expected shape (224, 224, 3), got (224, 200, 3); wr.pad takes samples of different shapes"


def test_three_offenders_are_listed_then_the_count():
    samples = [paint(3), paint(4), paint(3), paint(5), paint(6), paint(7), paint(8)]
    error = refusal(lambda: wr.stack(samples), wr.ShapeError, "sample 1", "sample 3", "sample 4", r"\b5\b", index=1)
    assert "sample 5" not in str(error) and "sample 6" not in str(error)


def test_different_ranks():
    mixed = [paint((3, 4)), paint((3,))]
    for call in (wr.stack, wr.concat, wr.pad, wr.ragged):
        refusal(lambda: call(mixed), wr.ShapeError, "sample 1", index=1, got=(3,))


def test_concat_and_ragged_shapes():
    refusal(lambda: wr.concat([paint((2, 3)), paint((4, 3)), paint((2, 5))]), wr.ShapeError, index=2, got=(2, 5))
    refusal(lambda: wr.concat([paint((2, 3)), paint((4, 3))], dim=1), wr.ShapeError, index=1, got=(4, 3))
    refusal(lambda: wr.ragged([paint((2, 3)), paint((4, 4))]), wr.ShapeError, index=1, got=(4, 4))


def test_pad_shapes():
    refusal(lambda: wr.pad([paint((2, 3)), paint((2, 4))], dims=(0,)), wr.ShapeError, index=1, got=(2, 4))
    refusal(lambda: wr.pad([paint(3), paint(9)], size=5), wr.ShapeError, index=1, got=(9,))
    refusal(lambda: wr.pad([paint((3, 3)), paint((3, 9))], size=(4, 5)), wr.ShapeError, index=1, got=(3, 9))


def test_scalars_have_no_dim_to_join():
    for call in (wr.concat, wr.ragged):
        refusal(lambda: call([np.float32(1), np.float32(2)]), ValueError)


# dtypes and devices


def test_different_dtypes():
    samples = [paint(3, "int32"), paint(3, "int32"), paint(3, "int64"), paint(3, "uint8")]
    for call in (wr.stack, wr.concat, wr.pad, wr.ragged):
        refusal(lambda: call(samples), wr.DTypeError, "sample 2", index=2, path="", expected="int32", got="int64")


def test_python_numbers_keep_their_dtype():
    refusal(lambda: wr.stack([1, 2.0]), wr.DTypeError, index=1, expected="int64", got="float64")
    refusal(lambda: wr.stack([1, True]), wr.DTypeError, index=1, got="bool")
    refusal(lambda: wr.stack([np.float32(1), 1.0]), wr.DTypeError, index=1, expected="float32", got="float64")


@pytest.mark.parametrize("dtype", ["float17", "", "<f4>", object(), 3, ["float32"]])
def test_unknown_dtype(dtype):
    refusal(lambda: wr.stack([paint(3)], dtype=dtype), (TypeError, ValueError))


@pytest.mark.parametrize("dtype", [np.dtype("U3"), np.dtype("datetime64[s]"), np.dtype(object), np.dtype([("a", "i4")]), "str"])
def test_dtype_that_has_no_counterpart(dtype):
    refusal(lambda: wr.stack([paint(3)], dtype=dtype), (TypeError, ValueError))


@pytest.mark.parametrize("name", ["U3", "S3", "datetime64[s]", "O", "longdouble", "V4"])
def test_samples_of_a_dtype_that_has_no_counterpart(name):
    refusal(lambda: wr.stack([np.zeros(3, name)]), (TypeError, ValueError, BufferError))


def test_big_endian_memory_is_no_output():
    for name in (">i4", ">f8", ">u2", ">c8"):
        refusal(lambda: wr.stack([np.zeros(3, name[1:])] * 2, out=np.zeros((2, 3), name)), wr.LayoutError, "byte order")


@pytest.mark.parametrize("device", ["gpu", "tpu:0", "", "cpu:x", "cuda:-1", 3.5])
def test_unknown_device(device):
    refusal(lambda: wr.stack([paint(3)], device=device), (ValueError, TypeError, wr.CudaUnavailable))


@pytest.mark.parametrize("stream", [0, 1, 7, object()])
def test_stream_for_host_samples(stream):
    refusal(lambda: wr.stack([paint(3)], stream=stream), (ValueError, TypeError))


# lists and samples


def test_empty_list():
    for call in (wr.stack, wr.concat, wr.pad, wr.ragged, wr.collate, wr.explain):
        for empty in ([], ()):
            refusal(lambda: call(empty), ValueError)


class Unnamed:
    pass


@pytest.mark.parametrize("thing", [object(), "text", None, Unnamed(), {1: 2}, print])
def test_sample_that_is_no_array(thing):
    for call in (wr.stack, wr.concat, wr.pad, wr.ragged):
        refusal(lambda: call([paint(3), paint(3), thing]), TypeError, r"\b2\b", type(thing).__name__)


def test_integers_that_do_not_fit():
    for number in (2**63, -(2**63) - 1, 10**30):
        refusal(lambda: wr.stack([number]), (OverflowError, ValueError, TypeError))


@pytest.mark.parametrize("samples", [None, 3, object()])
def test_samples_that_are_no_list(samples):
    refusal(lambda: wr.stack(samples), TypeError)


def test_unknown_keyword():
    for call in (wr.stack, wr.concat, wr.pad, wr.ragged, wr.collate):
        refusal(lambda: call([paint(3)], colour=1), TypeError)
    for build in (wr.Stack, wr.Concat, wr.Pad, wr.Ragged, wr.Transform):
        refusal(lambda: build(colour=1), TypeError)


# arguments of the forms


@pytest.mark.parametrize("dim", [2, -3, 100])
def test_concat_dim_out_of_range(dim):
    refusal(lambda: wr.concat([paint((2, 3))], dim=dim), ValueError)


@pytest.mark.parametrize(
    "arguments",
    [
        {"side": "middle"},
        {"side": ("right", "left", "left")},
        {"side": ("right", "up")},
        {"mask": "yes"},
        {"size": -1},
        {"size": (4,)},
        {"size": (4, 4, 4)},
        {"size": (-1, None)},
        {"multiple_of": 0},
        {"multiple_of": -8},
        {"multiple_of": (1, 0)},
        {"multiple_of": (1, 1, 1)},
        {"dims": (2,)},
        {"dims": (-3,)},
    ],
)
def test_pad_arguments(arguments):
    refusal(lambda: wr.pad([paint((2, 3)), paint((4, 5))], **arguments), ValueError)


@pytest.mark.parametrize(
    "arguments", [{"size": "x"}, {"side": 3}, {"multiple_of": 1.5}, {"value": "x"}, {"value": None}, {"dims": "x"}]
)
def test_pad_arguments_of_the_wrong_type(arguments):
    refusal(lambda: wr.pad([paint((2, 3)), paint((4, 5))], **arguments), (TypeError, ValueError))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("uint8", 256),
        ("uint8", -1),
        ("uint8", 1.5),
        ("int8", 128),
        ("int8", -129),
        ("int64", 2**63),
        ("int64", -(2**63) - 1),
        ("int64", float("nan")),
        ("int32", float("inf")),
        ("int32", 0.5),
        ("uint64", 2**64),
        ("uint64", -1),
        ("bool", 2),
        ("bool", 0.5),
        ("bool", -1),
        ("float16", 65520),
        ("float16", -1e6),
        ("float32", 1e39),
        ("float32", -1e300),
        ("float32", 10**60),
        ("float64", 10**400),
        ("float32", 1 + 2j),
        ("int32", 1 + 0.5j),
    ],
)
def test_pad_value_that_the_dtype_cannot_hold(name, value):
    refusal(lambda: wr.pad([paint(2, name), paint(3, name)], value=value), (ValueError, TypeError, OverflowError))


@pytest.mark.parametrize("offsets_dtype", ["int16", "float32", "uint64", "x"])
def test_ragged_offsets_dtype(offsets_dtype):
    refusal(lambda: wr.ragged([paint(3)], offsets_dtype=offsets_dtype), (ValueError, TypeError))


@pytest.mark.parametrize("form", ["heap", "", None, 3])
def test_explain_of_an_unknown_form(form):
    refusal(lambda: wr.explain([paint(3)], form), (ValueError, TypeError))


def test_explain_refuses_what_the_call_refuses():
    refusal(lambda: wr.explain([paint(3), paint(4)]), wr.ShapeError, index=1)
    refusal(lambda: wr.explain([paint(3), paint(3, "int32")]), wr.DTypeError, index=1)


@pytest.mark.parametrize("arguments", [{"threads": 0}, {"threads": 4097}, {"threads": 2**63}, {"threads": -1}, {"threads": "x"}, {"pool_bytes": -1}, {"device": "x"}])
def test_engine_arguments(arguments):
    refusal(lambda: wr.Engine(**arguments), (ValueError, TypeError, OverflowError))


@pytest.mark.parametrize("engine", [3, "fast", object()])
def test_engine_that_is_none(engine):
    refusal(lambda: wr.stack([paint(3)], engine=engine), TypeError)


# sizes


def test_sizes_over_64_bits():
    refusal(lambda: wr.stack([TOO_LARGE] * 8), ValueError)
    refusal(lambda: wr.concat([TOO_LARGE] * 8), ValueError)
    refusal(lambda: wr.ragged([TOO_LARGE] * 8), ValueError)
    refusal(lambda: wr.stack([TOO_LARGE], dtype="float64"), ValueError)
    refusal(lambda: wr.pad([paint((2, 2))], size=(1 << 40, 1 << 40)), ValueError)
    refusal(lambda: wr.pad([paint(2, "float64")], size=1 << 62), ValueError)
    refusal(lambda: wr.pad([paint(2)], size=1 << 62, multiple_of=(1 << 63) - 1), (ValueError, MemoryError))
    refusal(lambda: wr.pad([paint(2)], size=1 << 70), (ValueError, OverflowError))


def test_memory_that_cannot_be_had():
    refusal(lambda: wr.stack([HUGE] * 2), MemoryError)
    refusal(lambda: wr.pad([paint(2)], size=1 << 50), MemoryError)
    refusal(lambda: wr.ragged([HUGE] * 2), MemoryError)


# out


def out_refusal(call, kind, out, **attributes):
    base = out if out.base is None else out.base
    before = base.tobytes()
    error = refusal(lambda: call(out), kind, index=None, **attributes)
    assert base.tobytes() == before
    return error


@pytest.mark.parametrize("shape", [(3,), (2, 4), (3, 3), (2, 3, 1), (6,), (1, 2, 3), ()])
def test_out_of_another_shape(shape):
    error = out_refusal(
        lambda out: wr.stack([paint(3)] * 2, out=out), wr.ShapeError, poisoned(shape), expected=(2, 3), got=shape, path=""
    )
    assert "out" in str(error)


def test_out_of_another_shape_for_every_form():
    rows = [paint((2, 3)), paint((4, 3))]
    for call, want in ((wr.concat, (6, 3)), (wr.ragged, (6, 3)), (wr.pad, (2, 4, 3))):
        out_refusal(lambda out: call(rows, out=out), wr.ShapeError, poisoned((5, 3)), expected=want, got=(5, 3))


def test_out_of_another_dtype():
    rows = [paint(3)] * 2
    out_refusal(lambda out: wr.stack(rows, out=out), wr.DTypeError, poisoned((2, 3), "int8"), expected="uint8", got="int8")
    out_refusal(
        lambda out: wr.stack(rows, dtype="float32", out=out), wr.DTypeError, poisoned((2, 3)), expected="float32", got="uint8"
    )


def test_out_that_is_read_only():
    out = poisoned((2, 3))
    out.flags.writeable = False
    out_refusal(lambda out: wr.stack([paint(3)] * 2, out=out), wr.LayoutError, out)
    data = b"\xa5" * 6
    refusal(lambda: wr.concat([paint(3)] * 2, out=data), wr.LayoutError, index=None)
    refusal(lambda: wr.concat([paint(3)] * 2, out=memoryview(data)), wr.LayoutError, index=None)
    assert data == b"\xa5" * 6


def test_out_that_is_a_jax_array(jax):
    out = jax.numpy.full((2, 3), 0xA5, jax.numpy.uint8)
    refusal(lambda: wr.stack([paint(3)] * 2, out=out), wr.LayoutError)
    assert (np.asarray(out) == 0xA5).all()


def test_out_that_overlaps_a_source():
    base = paint((4, 6))
    before = base.copy()
    for samples, out in (
        ([base[0], base[1]], base[:2]),
        ([base[0], base[3]], base[2:]),
        ([base[0, ::2], base[2, ::2]], base[:2, :3]),
        ([paint(6), base[1]], base[:2]),
        ([base[1, ::-1], base[2]], base[2:]),
    ):
        refusal(lambda: wr.stack(samples, out=out), wr.LayoutError, "out")
        assert (base == before).all()


def test_out_whose_elements_share_memory():
    base = poisoned(3)
    out = np.lib.stride_tricks.as_strided(base, (2, 3), (0, 1), writeable=True)
    refusal(lambda: wr.stack([paint(3)] * 2, out=out), wr.LayoutError, index=None)
    assert is_poisoned(base)


@pytest.mark.parametrize("out", [object(), "text", 3])
def test_out_that_is_no_array(out):
    refusal(lambda: wr.stack([paint(())], out=out), (TypeError, ValueError, BufferError))


def test_out_is_untouched_by_every_error():
    out = poisoned((3, 64))
    good = [paint(64, seed=i) for i in range(3)]
    bad = {
        "shape": ([*good[:2], paint(63)], wr.ShapeError),
        "dtype": ([*good[:2], paint(64, "int8")], wr.DTypeError),
        "type": ([*good[:2], object()], TypeError),
        "count": (good[:2], wr.ShapeError),
        "endian": ([*good[:2], np.zeros(64, ">i2")], wr.DTypeError),
    }
    for samples, kind in bad.values():
        refusal(lambda: wr.stack(samples, out=out), kind)
        assert is_poisoned(out)
    refusal(lambda: wr.stack(good, out=out, transform=wr.Transform(mean=[1.0, 2.0])), ValueError)
    refusal(lambda: wr.stack(good, out=out, stream=3), ValueError)
    assert is_poisoned(out)
    assert_tensor(wr.stack(good, out=out), np.stack(good))


def test_own_engine_is_usable_after_errors():
    engine = wr.Engine(threads=2)
    good = [paint(1000, seed=i) for i in range(4)]
    for _ in range(20):
        for samples in ([*good, paint(3)], [*good, None], []):
            with pytest.raises((ValueError, TypeError)):
                wr.stack(samples, engine=engine)
        assert_tensor(wr.stack(good, engine=engine), np.stack(good))


def test_errors_are_ordinary_exceptions():
    """They can be raised by hand, caught by their base and pickled by worker processes."""
    import pickle

    error = refusal(lambda: wr.stack([paint(3), paint(4)]), ValueError)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is wr.ShapeError and str(again) == str(error)
    with pytest.raises(ValueError):
        raise wr.ShapeError("text")
