"""wr.pad: equal rank to data[N, *max], with lengths and an optional mask."""

import itertools
import pickle

import numpy as np
import pytest

import oracle
import windrow as wr
from helpers import assert_same, assert_tensor, assert_values, memory, paint, paint_values, poisoned, refusal, samples_of
from oracle import T

SIDES = ["right", "left", "center"]


def check(arrays, name, transform=None, dtype=None, **arguments):
    want = oracle.pad(arrays, name, dst=dtype, t=transform, **arguments)
    if transform is not None:
        arguments["transform"] = wr.Transform(**transform.arguments())
    batch = wr.pad(samples_of(arrays, name), dtype=dtype, **arguments)
    assert_tensor(batch, want.data, dtype or name)
    assert batch.lengths.dtype == "int64"
    assert_values(batch.lengths, want.lengths)
    if want.mask is None:
        assert batch.mask is None
    else:
        assert batch.mask.dtype == want.mask.dtype
        assert_same(batch.mask.numpy(), want.mask)
    assert len(batch) == len(arrays)
    return batch


def rows(lengths, name="int32"):
    return [paint(n, name, 13 * i) for i, n in enumerate(lengths)]


@pytest.mark.parametrize("name", [name for name in oracle.ALL if name != "float8_e8m0fnu"])
@pytest.mark.parametrize("side", SIDES)
def test_every_dtype(name, side):
    check(rows([3, 0, 7, 1], name), name, side=side, mask="real")


def test_value_of_a_dtype_without_a_zero():
    """float8_e8m0fnu holds powers of two only: 1.0 is the byte 127."""
    name = "float8_e8m0fnu"
    arrays = [paint(2, name), paint(4, name, 8)]
    got = memory(wr.pad(samples_of(arrays, name), value=1.0))
    assert got.tolist() == [[0, 1, 127, 127], [8, 9, 10, 11]]


@pytest.mark.parametrize("value", [2**62 + 2**38 + 1, -(2**62) - 2**38 - 1, 2**63 + 2**39 + 1])
def test_integer_value_is_rounded_once(value):
    """Just beyond a tie of float32 that float64 cannot tell from the tie."""
    step = 1 << (value.bit_length() - 24)
    want = (abs(value) // step + 1) * step
    got = memory(wr.pad([np.empty(0, np.float32)], size=1, value=value))[0, 0]
    assert abs(int(got)) == want


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("mask", [None, "real", "pad"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_sides_and_masks(side, mask, rank):
    shapes = list(itertools.islice(itertools.product([2, 5, 3], repeat=rank), 0, 9, 2))
    check([paint(shape, "int16", i) for i, shape in enumerate(shapes)], "int16", side=side, mask=mask, value=-7)


@pytest.mark.parametrize("sides", list(itertools.product(SIDES, repeat=2)))
def test_one_side_for_each_dim(sides):
    arrays = [paint(shape, "uint8", 9 * i) for i, shape in enumerate([(2, 9), (7, 4), (4, 4)])]
    check(arrays, "uint8", side=sides, mask="real", value=255)


@pytest.mark.parametrize("differ", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_only_dims_that_differ_are_padded(differ):
    shapes = [[4, 4, 4] for _ in range(4)]
    for i, shape in enumerate(shapes):
        for d in differ:
            shape[d] = 1 + (i + d) % 4
    batch = check([paint(s, "float32", i) for i, s in enumerate(shapes)], "float32", mask="pad", value=-1.0)
    assert tuple(batch.mask.shape) == (4, *[4] * len(differ))


def test_one_dim_gives_lengths_of_rank_one_and_two_dims_rank_two():
    assert tuple(wr.pad([paint((2, 3)), paint((4, 3))]).lengths.shape) == (2,)
    assert tuple(wr.pad([paint((2, 3)), paint((4, 5))]).lengths.shape) == (2, 2)


@pytest.mark.parametrize("dims", [0, (0,), (1,), (0, 1), (-1,), (1, 2), (0, 1, 2)])
def test_named_dims_count_even_if_no_sample_differs(dims):
    check([paint((3, 2, 4), "int8", i) for i in range(3)], "int8", dims=dims, mask="real")


MASK_DTYPES = ["bool", "uint8", "int32", "int64", "float16", "float32"]


@pytest.mark.parametrize("mask", ["real", "pad"])
@pytest.mark.parametrize("mask_dtype", MASK_DTYPES)
def test_masks_of_a_dtype(mask_dtype, mask):
    for lengths in ([3, 0, 7, 1], [5], [70_000, 1, 65_537]):
        check([paint(n, "uint8", n) for n in lengths], "uint8", side="left", mask=mask, mask_dtype=mask_dtype)
    check([paint((n, 3, n + 1), "float32", n) for n in (2, 5)], "float32", mask=mask, mask_dtype=mask_dtype, side="center")


def test_dtypes_of_masks_have_the_names_of_dtypes(torch):
    for given in (torch.int64, np.int64, np.dtype("int64"), "<i8", int):
        assert wr.pad(rows([1, 2]), mask="real", mask_dtype=given).mask.dtype == "int64"
    tree = wr.collate([{"t": [1, 2]}, {"t": [3]}], {"t": wr.Pad(mask="real", mask_dtype="int64")})
    assert tree["t"].mask.torch().equal(torch.tensor([[1, 1], [1, 0]]))
    assert wr.pad(rows([1, 2]), mask=None, mask_dtype="bool").mask is None
    again = pickle.loads(pickle.dumps(wr.pad(rows([1, 2]), mask="pad", mask_dtype="float16")))
    assert again.mask.numpy().tolist() == [[0.0, 1.0], [0.0, 0.0]] and again.mask.dtype == "float16"


def test_no_dtypes_of_masks():
    choices = '"bool", "uint8", "int32", "int64", "float16" or "float32"'
    for given in ("int16", "float64", "flaot32", 5):
        for call in (lambda: wr.pad(rows([1, 2]), mask="real", mask_dtype=given), lambda: wr.Pad(mask="real", mask_dtype=given)):
            refusal(call, ValueError, rf"^mask_dtype must be {choices}, got {given!r}$")
    for call in (lambda: wr.pad(rows([1, 2]), mask_dtype="int64"), lambda: wr.Pad(mask_dtype="int64")):
        refusal(call, ValueError, "^mask_dtype=int64, but mask is not set$")
    refusal(lambda: wr.stack(rows([2, 2]), mask_dtype="int64"), TypeError, "wr.pad takes mask_dtype=")


def test_one_dimensional_samples_of_equal_length_have_lengths_and_a_mask():
    batch = check(rows([4, 4]), "int32", mask="real")
    assert tuple(batch.mask.shape) == (2, 4)


def test_lengths_of_images_and_the_mask_has_no_channel_dim():
    arrays = [paint((5, 7, 3), "uint8", 1), paint((6, 4, 3), "uint8", 2)]
    batch = check(arrays, "uint8", mask="real")
    assert tuple(batch.mask.shape) == (2, 6, 7)
    assert batch.lengths.numpy().tolist() == [[5, 7], [6, 4]]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    "arguments",
    [
        {"size": 9},
        {"size": 7},
        {"size": (9,)},
        {"multiple_of": 8},
        {"multiple_of": (4,)},
        {"multiple_of": 1},
        {"size": 10, "multiple_of": 4},
        {"size": 12, "multiple_of": 4},
    ],
)
def test_size_and_multiple(side, arguments):
    check(rows([3, 7, 0]), "int32", side=side, mask="pad", **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"size": (None, 9)},
        {"size": (6, 9)},
        {"multiple_of": (1, 8)},
        {"multiple_of": (4, 3)},
        {"size": (None, 9), "multiple_of": (4, 1)},
        {"size": 9, "dims": (1,)},
        {"multiple_of": 4, "dims": (0, 1)},
    ],
)
@pytest.mark.parametrize("shapes", [[(4, 5), (4, 3)], [(4, 5), (4, 5)]])
def test_size_and_multiple_for_each_dim(arguments, shapes):
    check([paint(s, "uint16", i) for i, s in enumerate(shapes)], "uint16", mask="real", value=500, **arguments)


@pytest.mark.parametrize(
    "arguments",
    [{"size": [None, 9]}, {"size": [6, 9], "multiple_of": [1, 4]}, {"multiple_of": [4, 3]}, {"side": ["left", "center"]}, {"dims": [0, 1], "side": ["left", "right"]}],
)  # fmt: skip
def test_lists_are_taken_like_tuples(arguments):
    samples = [paint(shape, "uint16", i) for i, shape in enumerate([(4, 5), (4, 3)])]
    want = wr.pad(samples, **{name: tuple(value) for name, value in arguments.items()})
    collate, trees = (lambda spec: wr.collate(trees, spec)["x"]), [{"x": sample} for sample in samples]
    for got in (check(samples, "uint16", **arguments), collate(wr.Pad(**arguments)), collate(pickle.loads(pickle.dumps({"x": wr.Pad(**arguments)})))):
        assert_same(got.numpy(), want.numpy())
        assert_same(got.lengths.numpy(), want.lengths.numpy())


@pytest.mark.parametrize("arguments", [{"size": 6}, {"multiple_of": 4}, {"size": 6, "multiple_of": 4}])
def test_one_number_needs_dims(arguments):
    name, number = next(iter(arguments.items()))
    for shapes in ([(2, 3), (4, 3)], [(4, 3), (4, 3)], [(4, 3)], [(2, 3, 1), (4, 3, 2)]):
        samples = [paint(shape) for shape in shapes]
        for call in (
            lambda **more: wr.pad(samples, **more),
            lambda **more: wr.explain(samples, "pad", **more),
            lambda **more: wr.collate([{"x": sample} for sample in samples], {"x": wr.Pad(**more)}),
        ):
            refusal(lambda: call(**arguments), ValueError, f"{name}={number}", "name those to pad in dims")
            call(dims=tuple(range(samples[0].ndim)), **arguments)
            call(**{name: (number,) * samples[0].ndim for name, number in arguments.items()})
    refusal(lambda: wr.pad([1, 2], **arguments), ValueError, "without dims")
    refusal(lambda: wr.pad([paint((2, 3))], dims=(), **arguments), ValueError, "empty")
    assert len(wr.pad([paint(2), paint(3)], **arguments).shape) == 2


@pytest.mark.parametrize("dims", [None, 0, (1,), (0, 1), (-1,)])
@pytest.mark.parametrize("size", [None, 4, 8, (None, 4), (4, None), (8, 8)])
@pytest.mark.parametrize("multiple_of", [1, 3, (1, 3), (3, 1), (2, 3)])
def test_one_number_is_for_the_dims_in_dims_alone(dims, size, multiple_of):
    options = dict(dims=dims, size=size, multiple_of=multiple_of, truncate=True)
    if dims is None and (isinstance(size, int) or multiple_of == 3):
        refusal(lambda: wr.pad([paint((6, 5))], **options), ValueError, "name those to pad in dims")
        return
    meant = {d % 2 for d in np.atleast_1d([] if dims is None else dims).astype(int).tolist()}

    def value_at(option, d, nothing):
        return option[d] if isinstance(option, tuple) else option if d in meant else nothing

    sample, shape = paint((6, 5)), []
    for d, have in enumerate(sample.shape):
        extent, multiple = value_at(size, d, None) or have, value_at(multiple_of, d, 1)
        shape.append(-(-extent // multiple) * multiple)
    want = np.zeros((1, *shape), sample.dtype)
    real = tuple(slice(0, min(extent, have)) for extent, have in zip(shape, sample.shape))
    want[(0, *real)] = sample[real]
    assert_same(wr.pad([sample], **options).numpy(), want)


NAMED = [
    {"dims": (1, 2), "multiple_of": 32},
    {"dims": (-1, -2), "size": 32},
    {"multiple_of": (1, 32, 32)},
    {"size": (None, 32, None), "dims": 2, "multiple_of": (1, 1, 16)},
]


@pytest.mark.parametrize("arguments", NAMED)
def test_named_dims_do_not_depend_on_the_samples(arguments):
    for shapes in ([(3, 30, 20)], [(3, 30, 20)] * 2, [(3, 30, 20), (3, 24, 20)], [(3, 30, 9), (3, 7, 20)]):
        batch = check([paint(shape) for shape in shapes], "uint8", mask="real", **arguments)
        assert batch.shape == (len(shapes), 3, 32, 32)
        assert batch.mask.shape == (len(shapes), 32, 32) and batch.lengths.shape == (len(shapes), 2)


@pytest.mark.parametrize("arguments", [*NAMED, {"dims": ()}, {"multiple_of": (1, 2, 1)}, {"size": (None, None, 40)}])
def test_a_difference_elsewhere_is_refused(arguments):
    samples = [paint((3, 30, 20)), paint((3, 30, 20)), paint((1, 30, 20))]
    error = refusal(lambda: wr.pad(samples, **arguments), wr.ShapeError, index=2, expected=(3, 30, 20), got=(1, 30, 20))
    assert str(error).endswith("name dim 0 in dims= to pad it too")
    # Nothing is named by what changes nothing.
    assert wr.pad(samples, size=(None, None, None), multiple_of=(1, 1, 1)).lengths.shape == (3,)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("size", [0, 1, 4, 5])
def test_truncate_cuts_where_padding_would_go(side, size):
    check(rows([8, 3, 5, 0, 9]), "int32", side=side, size=size, truncate=True, mask="real")


@pytest.mark.parametrize("side", SIDES)
def test_truncate_in_two_dims(side):
    arrays = [paint(s, "int16", i) for i, s in enumerate([(9, 2), (3, 8), (5, 5)])]
    check(arrays, "int16", side=side, size=(4, 6), truncate=True, mask="real", value=-1)


def test_truncated_elements_by_example():
    a = np.arange(8)
    cut = {side: memory(wr.pad([a], side=side, size=5, truncate=True))[0].tolist() for side in SIDES}
    assert cut == {"right": [0, 1, 2, 3, 4], "left": [3, 4, 5, 6, 7], "center": [1, 2, 3, 4, 5]}


def test_center_puts_the_smaller_half_on_the_left():
    assert memory(wr.pad([np.ones(2, np.int64)], side="center", size=5))[0].tolist() == [0, 1, 1, 0, 0]


VALUES = [
    ("bool", True),
    ("bool", 1),
    ("int8", -128),
    ("uint8", 255),
    ("uint8", 255.0),
    ("int16", -1),
    ("int64", 2**63 - 1),
    ("int64", -(2**63)),
    ("int64", 2**53 + 1),
    ("uint64", 2**64 - 1),
    ("uint64", 2**53 + 1),
    ("float16", 0.1),
    ("float16", 65504),
    ("float16", -0.0),
    ("float16", float("inf")),
    ("bfloat16", 0.1),
    ("bfloat16", 257),
    ("bfloat16", float("-inf")),
    ("float32", 2**24 + 1),
    ("float32", 2**24 + 3),
    ("float32", 2**63 + 2**39 + 1),
    ("float32", 0.1),
    ("float32", float("nan")),
    ("float32", 1e-45),
    ("float64", 0.1),
    ("float64", -0.0),
    ("float64", float("nan")),
    ("complex64", 1.5),
    ("complex64", 1.5 - 2j),
    ("complex128", 0.1 + 0.2j),
]


@pytest.mark.parametrize(("name", "value"), VALUES)
def test_value_is_exact(name, value):
    check(rows([3, 6], name), name, value=value)


@pytest.mark.parametrize(("name", "value"), VALUES[:-3])
def test_value_is_of_the_result_dtype(name, value):
    check([paint_values(n, "uint8", n) for n in (3, 6)], "uint8", dtype=name, value=value)


def test_value_may_be_a_numpy_scalar():
    check(rows([3, 6], "float32"), "float32", value=np.float32(1.5))
    check(rows([3, 6], "int64"), "int64", value=np.int64(-3))


def test_a_complex_value_of_another_library_keeps_its_imaginary_part(torch):
    value = 1.5 - 2j
    for given in (np.complex64(value), np.complex128(value), torch.tensor(value), np.complex64(value)[...]):
        check(rows([3, 6], "complex64"), "complex64", value=given)
        refusal(lambda: wr.pad(rows([3, 6], "float32"), value=given), ValueError, "^value=1.5-2j is not representable in float32$")
    assert wr.pad(rows([3, 6], "float32"), value=np.complex64(1.5)).numpy()[0, 5] == 1.5


def test_default_value_is_zero():
    assert (memory(wr.pad([paint(0, "float64"), paint(5, "float64")]))[0] == 0).all()


def test_all_samples_empty():
    check([paint((0, 3)), paint((0, 3))], "uint8", dims=(0,), mask="real")
    check([paint(0), paint(0)], "uint8", size=4, mask="pad", value=9)
    check([paint((2, 0)), paint((3, 0))], "uint8", mask="real")


def test_one_sample():
    check([paint((3, 5))], "uint8", size=(4, 8), mask="real")


def test_long_rows():
    check([paint(n, "int32", n) for n in (70_000, 1, 65_536, 12_345)], "int32", mask="real", value=-100, multiple_of=64)


def test_many_token_rows():
    lengths = [16 + (i * 37) % 500 for i in range(600)]
    check([paint_values(n, "int32", n) for n in lengths], "int32", dtype="int64", mask="real", value=-100)


def test_strided_sources():
    arrays = [paint((9, 8), "float32", i)[::-1, ::2].T[:n] for i, n in enumerate([4, 2, 3])]
    check(arrays, "float32", mask="real", side="left", value=3)


@pytest.mark.parametrize("target", oracle.CASTABLE)
def test_cast(target):
    check([paint_values((n, 3), "float32", n) for n in (2, 5)], "float32", dtype=target, value=1, mask="real")


@pytest.mark.parametrize("permute", [None, (2, 0, 1), (1, 0, 2), (2, 1, 0), (0, 2, 1), (-1, 0, 1)])
@pytest.mark.parametrize("side", ["right", "center", ("left", "right", "right")])
def test_images_with_transform(permute, side):
    t = T(scale=1 / 255, mean=[0.48, 0.45, 0.4], std=[0.22, 0.23, 0.22], channel_dim=2, permute=permute)
    arrays = [paint((5, 7, 3)), paint((6, 4, 3)), paint((1, 1, 3))]
    check(arrays, "uint8", t, "float16", mask="pad", side=side, size=(8, None, None), multiple_of=(1, 4, 1))


def test_padding_is_not_transformed():
    t = wr.Transform(scale=2.0, mean=1.0, std=0.5)
    batch = wr.pad([np.zeros(1, np.float32), np.zeros(3, np.float32)], value=5, transform=t)
    assert memory(batch).tolist() == [[-2.0, 5.0, 5.0], [-2.0, -2.0, -2.0]]


def test_mask_has_the_order_of_the_result():
    t = T(permute=(1, 0))
    batch = check([paint((2, 5)), paint((3, 4))], "uint8", t, mask="real")
    assert tuple(batch.mask.shape) == (2, 5, 3)


def test_dims_and_sizes_speak_of_the_dims_before_permute():
    t = T(permute=(2, 0, 1))
    batch = check([paint((4, 5, 3))], "uint8", t, size=(8, None, None), mask="real")
    assert tuple(batch.shape) == (1, 3, 8, 5)


@pytest.mark.parametrize("side", SIDES)
def test_out(side):
    arrays = rows([3, 0, 7], "int16")
    want = oracle.pad(arrays, "int16", value=-9, side=side)
    base = poisoned((3, 14), "int16")
    expected = base.copy()
    expected[:, ::2] = want.data
    batch = wr.pad(arrays, value=-9, side=side, out=base[:, ::2])
    assert base.tobytes() == expected.tobytes()
    assert_values(batch.lengths, want.lengths)


@pytest.mark.parametrize("side", SIDES)
def test_samples_of_the_batch_are_their_real_part(side):
    arrays = [paint(s, "int16", i) for i, s in enumerate([(2, 9), (7, 4), (0, 3)])]
    batch = wr.pad(arrays, side=side, value=-1)
    assert len(batch) == 3
    for i, array in enumerate(arrays):
        assert_tensor(batch[i], array, compact=False)


def test_real_part_of_permuted_and_truncated_samples():
    arrays = [paint(s, "int16", i) for i, s in enumerate([(2, 9), (7, 4)])]
    batch = wr.pad(arrays, side="left", size=(5, 6), truncate=True, transform=wr.Transform(permute=(1, 0)))
    assert_tensor(batch[0], arrays[0][:, -6:].T, compact=False)
    assert_tensor(batch[1], arrays[1][-5:].T, compact=False)


class OnlyIndex:
    def __index__(self):
        return 2**62 + 1


@pytest.mark.parametrize("value", [OnlyIndex(), np.uint64(2**62 + 1), wr.asarray(2**62 + 1), np.array(2**62 + 1)])
def test_ints_of_other_classes_are_exact(value):
    batch = wr.pad([np.ones(1, "i8"), np.ones(2, "i8")], value=value)
    assert memoryview(batch).tolist() == [[1, 2**62 + 1], [1, 1]]


@pytest.mark.parametrize("value", [3, 12, 0.75, 5, 2.0**-127 * 1.5])
def test_ties_of_powers_of_two(value):
    dtype = pytest.importorskip("ml_dtypes", reason="SKIP: ml_dtypes is not installed").float8_e8m0fnu
    batch = wr.pad([np.ones(1, dtype), np.ones(2, dtype)], value=value)
    assert batch.numpy()[0, 1] == np.array(value).astype(dtype)
