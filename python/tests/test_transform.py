"""wr.Transform: one fused multiply-add, rounded once, then the permutation."""

import itertools

import numpy as np
import pytest

import oracle
import windrow as wr
from helpers import assert_tensor, memory, paint, paint_values, refusal, samples_of
from oracle import T

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def check(arrays, name, t, dtype=None):
    batch = wr.stack(samples_of(arrays, name), dtype=dtype, transform=wr.Transform(**t.arguments()))
    assert_tensor(batch, oracle.stack(arrays, name, dtype, t).data, dtype or name)
    return batch


@pytest.mark.parametrize("target", ["float16", "bfloat16", "float32", "float64", "uint8", "int32"])
@pytest.mark.parametrize("shape", [(4, 5, 3), (17, 31, 3), (224, 224, 3)])
def test_image_normalisation_to_channels_first(target, shape):
    if target == "float64" and shape[0] > 100:
        shape = (40, 40, 3)
    t = T(scale=1 / 255, **IMAGENET, channel_dim=2, permute=(2, 0, 1))
    check([paint(shape, seed=5 * i) for i in range(3)], "uint8", t, target)


@pytest.mark.parametrize("source", oracle.CASTABLE)
def test_every_dtype_pair(source):
    t = T(scale=0.37, mean=[3.0, -5.0, 0.1], std=[1.7, 0.3, 11.0], channel_dim=1)
    for target in oracle.CASTABLE:
        check([paint_values((5, 3, 7), source, i) for i in range(2)], source, t, target)


@pytest.mark.parametrize("source", [*oracle.FLOATS, *oracle.CAST8])
def test_without_a_dtype_floats_keep_theirs(source):
    check([paint_values((6, 5), source, i) for i in range(2)], source, T(scale=0.75, mean=2.0, std=0.5))


INTEGERS = [name for name in oracle.ARITHMETIC if name not in oracle.FLOATS]


@pytest.mark.parametrize("arguments", [{"scale": 1 / 255}, {"mean": 0.0}, {"std": [1.0, 1.0, 1.0], "channel_dim": 1}])
@pytest.mark.parametrize("source", INTEGERS)
def test_integers_need_a_dtype(source, arguments):
    samples, t = samples_of([paint_values((4, 3), source, i) for i in range(2)], source), wr.Transform(**arguments)
    trees = [{"image": {"left": sample}} for sample in samples]
    specs = {"image.*": wr.Pad(transform=t)}
    for call in (
        lambda **more: wr.stack(samples, transform=t, **more),
        lambda **more: wr.pad(samples, transform=t, **more),
        lambda **more: wr.concat(samples, transform=t, **more),
        lambda **more: wr.ragged(samples, transform=t, **more),
        lambda **more: wr.explain(samples, transform=t, **more),
        lambda **more: wr.collate(trees, transform=t, **more),
        lambda **more: wr.collate(trees, specs, **more),
        lambda **more: wr.explain(trees, "collate", spec=specs, **more),
    ):
        error = refusal(call, wr.DTypeError, "scale, mean and std", 'dtype="float32"', "truncates and saturates", index=0, got=source)
        assert error.path in ("", "image.left")
        for dtype in ("float32", source):
            call(dtype=dtype)


def test_integers_that_are_only_permuted_need_no_dtype():
    for name in INTEGERS:
        x = paint_values((4, 3), name)
        assert_tensor(wr.stack([x], transform=wr.Transform(permute=(1, 0))), x.T[None], name)


@pytest.mark.parametrize("source", INTEGERS)
def test_integers_that_are_asked_for(source):
    check([paint_values((6, 5), source, i) for i in range(2)], source, T(scale=0.75, mean=2.0, std=0.5), source)


@pytest.mark.parametrize("source", ["int32", "int64", "uint32", "uint64"])
def test_wide_integers_enter_in_the_width_of_the_arithmetic(source):
    info = np.iinfo(source)
    rng = np.random.default_rng(7)
    x = rng.integers(info.min, info.max, 501, dtype=source, endpoint=True)
    x[:4] = [info.min, info.max, 2**24 + 1, 2**24 + 3]
    for target in ["float32", "float64", "int64", "float16"]:
        check([x, x[::-1]], source, T(scale=0.001, mean=17.0, std=3.0), target)


@pytest.mark.parametrize("width", ["float32", "float64"])
def test_one_rounding_where_two_would_differ(width):
    """Sums that cancel: the product's low bits are all that is left."""
    rng = np.random.default_rng(11)
    x = rng.standard_normal(997).astype(width)
    scale, mean = 1.0 + 2.0**-12 + 2.0**-21, float(x[13]) * (1.0 + 2.0**-12)
    for t in (T(scale=scale, mean=mean), T(scale=scale, mean=mean, std=1.1)):
        check([x, x[::-1], -x], width, t)


def test_the_example_values_are_those_of_a_fused_multiply_add():
    x = np.array([1.0 + 2.0**-12], np.float32)
    got = memory(wr.stack([x], transform=wr.Transform(scale=1.0 + 2.0**-12, mean=1.0)))[0, 0]
    assert got == np.float32(2.0**-11 + 2.0**-24)


def test_coefficients_are_formed_in_float64_then_rounded():
    check([paint_values(300, "float32")], "float32", T(scale=1 / 255, mean=0.1, std=0.3), "float32")
    check([paint_values(300, "float32")], "float32", T(scale=1 / 255, mean=0.1, std=0.3), "float64")


@pytest.mark.parametrize(
    "t",
    [
        T(scale=2.0),
        T(scale=-0.5),
        T(mean=3.0),
        T(std=4.0),
        T(scale=0.1, mean=1),
        T(mean=[1.0, 2.0, 3.0], std=0.5, channel_dim=1),
        T(mean=0.5, std=[1.0, 2.0, 3.0], channel_dim=1),
        T(mean=(1.0, 2.0, 3.0), channel_dim=1),
        T(std=np.array([1.0, 2.0, 3.0]), channel_dim=-2),
        T(mean=np.array([1, 2, 3], np.float32), std=[3, 2, 1], channel_dim=1),
        T(permute=[2, 0, 1]),
        T(mean=[1.0, 2.0, 3.0], std=[3, 2, 1], channel_dim=1, permute=[1, 2, 0]),
    ],
)
def test_forms_of_the_arguments(t):
    x = paint_values((2, 3, 4), "float32")
    x[x == 0] = 1
    check([x], "float32", t)


@pytest.mark.parametrize("permute", [None, (2, 1, 0), (1, 2, 0)])
def test_channel_dim_speaks_of_the_dims_before_permute(permute):
    for dim in range(-3, 3):
        t = T(scale=0.5, mean=[1.0, 2.0, 3.0, 4.0], std=[0.3, 0.6, 0.9, 1.3], channel_dim=dim, permute=permute)
        check([paint((4, 4, 4), seed=i) for i in range(2)], "uint8", t, "float32")


@pytest.mark.parametrize("shape", [(3, 5, 7), (5, 3, 7), (5, 7, 3), (3,)])
def test_channel_dim_is_found_by_its_extent(shape):
    check([paint(shape)], "uint8", T(scale=1 / 255, **IMAGENET), "float32")


@pytest.mark.parametrize("shape", [(3, 5, 3), (4, 5, 6), ()])
def test_channel_dim_that_cannot_be_found(shape):
    refusal(lambda: wr.stack([paint(shape)], dtype="float32", transform=wr.Transform(**IMAGENET)), ValueError)


@pytest.mark.parametrize("coefficients", [{"std": 0.0}, {"mean": [1.0, 2.0], "std": [1.0, 0.0]}, {"scale": np.nan}, {"mean": -np.inf}, {"std": 5e-324}])
def test_coefficients_that_are_not_finite(coefficients):
    refusal(lambda: wr.stack([paint((3, 2))], dtype="float32", transform=wr.Transform(**coefficients)), ValueError)


@pytest.mark.parametrize("coefficients", [{"scale": 1e39}, {"mean": 1e39}, {"std": 1e-39}, {"mean": [0.0, 1e300], "std": [1.0, 1e300]}, {"scale": 1e-46}])
def test_coefficients_beyond_float32_are_refused_or_applied_in_float64(coefficients):
    transform = wr.Transform(channel_dim=0, **coefficients)
    values = np.array([[0, 1], [2, 3]])
    for name, dtype in (("uint8", "float32"), ("float32", None), ("float16", "float32"), ("int64", "int32")):
        text = f"of channel {int(isinstance(coefficients.get('mean'), list))} are beyond float32"
        refusal(lambda: wr.stack([values.astype(name)], dtype=dtype, transform=transform), ValueError, text, "float64")
    scale, mean, std = (np.array(coefficients.get(name, float(name != "mean"))).reshape(-1, 1) for name in ("scale", "mean", "std"))
    for name, dtype in (("uint8", "float64"), ("float64", None)):
        got = wr.stack([values.astype(name)], dtype=dtype, transform=transform).numpy()[0]
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got, (values * scale - mean) / std, rtol=1e-15)
    refusal(lambda: wr.stack([values.astype("float64"), values.astype("float32")], dtype="float32", transform=transform), ValueError, "beyond float32")


def test_coefficients_at_the_ends_of_float32():
    most, least = float(np.finfo("float32").max), 1e-45
    for scale in (most, least):
        got = wr.stack([np.array([0, 1], "float32")], transform=wr.Transform(scale=scale)).numpy()
        assert got.tolist() == [[0, float(np.float32(scale))]]


@pytest.mark.parametrize("permute", list(itertools.permutations(range(3))) + [(-1, 0, 1), (0, -1, -2)])
def test_permute_alone(permute):
    for name in ["uint8", "int16", "float32", "float64", "complex128"]:
        check([paint((3, 4, 5), name, i) for i in range(3)], name, T(permute=permute))


@pytest.mark.parametrize("name", [*oracle.COMPLEX, *oracle.FLOAT8])
def test_permute_alone_moves_any_dtype(name):
    check([paint((3, 4), name, i) for i in range(3)], name, T(permute=(1, 0)))


@pytest.mark.parametrize("target", ["float32", "uint8", "float64"])
@pytest.mark.parametrize("permute", [(1, 0), (0, 1)])
def test_permute_and_cast(target, permute):
    check([paint_values((33, 65), "int16", i) for i in range(3)], "int16", T(permute=permute), target)


def test_permute_of_high_rank():
    check([paint((2, 3, 2, 3, 2, 2), "int32", i) for i in range(2)], "int32", T(permute=(3, 5, 0, 2, 4, 1)))


def test_permute_of_strided_sources():
    arrays = [paint((8, 9, 10), "float32", i)[::-2, 1::2].transpose(2, 0, 1) for i in range(2)]
    check(arrays, "float32", T(scale=0.5, mean=1.0, permute=(1, 2, 0)))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
def test_no_elements(shape):
    check([np.empty(shape, np.uint8)] * 2, "uint8", T(scale=2.0, mean=1.0), "float32")


def test_scalars():
    check([np.float32(3.5), np.float32(-1.25)], "float32", T(scale=2.0, mean=1.0))


def test_nan_and_infinity_pass_through():
    x = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45], np.float32)
    for target in ("float32", "float16", "bfloat16", "float64", "int16", "uint8", "bool"):
        check([x, x[::-1]], "float32", T(scale=2.0, mean=1.0), target)


def test_zero_keeps_the_sign_of_the_product():
    """Nothing is added without a mean: a negative zero stays one."""
    got = memory(wr.stack([np.array([0.0, -0.0], np.float32)], transform=wr.Transform(scale=2.0)))[0]
    assert np.signbit(got).tolist() == [False, True]


def test_one_transform_for_many_calls():
    t = T(scale=1 / 255, **IMAGENET, channel_dim=2, permute=(2, 0, 1))
    transform = wr.Transform(**t.arguments())
    for seed in range(5):
        arrays = [paint((4 + seed, 5, 3), seed=seed)]
        assert_tensor(
            wr.stack(arrays, dtype="float32", transform=transform), oracle.stack(arrays, "uint8", "float32", t).data
        )


def test_same_bits_on_one_thread_and_on_many():
    t = wr.Transform(scale=1 / 255, **IMAGENET, channel_dim=2, permute=(2, 0, 1))
    arrays = [paint((123, 77, 3), seed=i) for i in range(20)]
    one, many = (
        memory(wr.stack(arrays, dtype="float16", transform=t, engine=wr.Engine(threads=n))).tobytes() for n in (1, 4)
    )
    assert one == many


# refusals


@pytest.mark.parametrize("permute", [(0, 1), (0, 1, 1), (0, 1, 3), (0, 1, 2, 3), (1, 0, -2)])
def test_permute_that_is_no_permutation_of_the_dims(permute):
    refusal(lambda: wr.stack([paint((2, 3, 4))], transform=wr.Transform(permute=permute)), ValueError)


@pytest.mark.parametrize(
    "arguments",
    [
        {"mean": [1.0, 2.0], "channel_dim": 0},
        {"mean": [1.0, 2.0, 3.0], "std": [1.0, 2.0], "channel_dim": 0},
        {"mean": [1.0, 2.0, 3.0], "channel_dim": 5},
        {"mean": [1.0, 2.0, 3.0], "channel_dim": -3},
    ],
)
def test_channels_that_do_not_match(arguments):
    refusal(lambda: wr.stack([paint((3, 4))], dtype="float32", transform=wr.Transform(**arguments)), ValueError)


@pytest.mark.parametrize("name", [*oracle.COMPLEX, *oracle.MOVED8])
def test_arithmetic_needs_an_arithmetic_dtype(name):
    def call():
        wr.stack(samples_of([paint((2, 2), name)], name), transform=wr.Transform(scale=2.0))

    refusal(call, wr.DTypeError)


def test_ragged_must_keep_dim_0_first():
    refusal(lambda: wr.ragged([paint((2, 3))], transform=wr.Transform(permute=(1, 0))), ValueError)


@pytest.mark.parametrize("arguments", [{"mean": "x"}, {"scale": "x"}, {"permute": "ab"}, {"std": [None]}, {"colour": 1}])
def test_arguments_of_the_wrong_type(arguments):
    refusal(
        lambda: wr.stack([paint((2, 3))], dtype="float32", transform=wr.Transform(**arguments)), (TypeError, ValueError)
    )


@pytest.mark.parametrize("transform", [3, "normalise", {"scale": 2.0}, object()])
def test_transform_that_is_none(transform):
    refusal(lambda: wr.stack([paint((2, 3))], transform=transform), TypeError)
