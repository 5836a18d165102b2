"""Objects of other libraries that are no arrays, or have no memory to show: refused by sample and leaf, with a hint."""

import re

import numpy as np
import pytest

import windrow as wr
from helpers import assert_tensor, paint, refusal


def refused(make, error, text, good=None):
    """Checks that `make`'s object is refused in a list, at a leaf and alone."""
    good = np.zeros(2) if good is None else good
    refusal(lambda: wr.stack([good, make()]), error, "^sample 1: ", text, index=1)
    refusal(lambda: wr.collate([{"a": good}, {"a": make()}]), error, '^sample 1 at "a": ', text, index=1, path="a")
    refusal(lambda: wr.SampleList([good]).append(make()), error, text)
    refusal(lambda: wr.asarray(make()), error, text)


# NumPy's scalars


@pytest.mark.parametrize(
    "scalar",
    [
        np.datetime64("2026-11-22"),
        np.datetime64("NaT"),
        np.timedelta64(3, "s"),
        np.timedelta64(3),
        np.str_("ab"),
        np.bytes_(b"ab"),
        np.void(b"abc"),
        np.zeros(1, [("a", "i4")])[0],
        np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])[0],
        np.longdouble(1),
        np.clongdouble(1),
    ],
    ids=repr,
)
def test_numpy_scalars_that_are_refused_as_their_arrays_are(scalar):
    refused(lambda: np.array([scalar]), wr.LayoutError, "expected a native number format")
    if not isinstance(scalar, (str, bytes)):
        refused(lambda: scalar, wr.LayoutError, "expected a native number format")
    refusal(lambda: wr.stack([scalar]), wr.LayoutError, "sample 0: expected a native number format", index=0)


@pytest.mark.parametrize(
    "array, cure",
    [
        (np.array([1, None], dtype=object), "an object array holds Python objects: .astype() makes numbers of them, and list(array) is a list"),
        (np.array(["a"]), "encode text"),
        (np.zeros(2, "M8[D]"), 'array.view("int64")'),
        (np.zeros(2, [("a", "i4")]), 'array["name"]'),
        (np.zeros(2, np.longdouble), '.astype("float64")'),
    ],
    ids=lambda value: str(getattr(value, "dtype", "")),
)
def test_dtypes_that_no_batch_has_are_refused_with_the_cure(array, cure):
    error = refusal(lambda: wr.stack([array]), wr.LayoutError, index=0)
    assert cure in str(error), error
    assert cure in str(refusal(lambda: wr.asarray(array), wr.LayoutError))


def test_numpy_dates_are_named():
    refusal(lambda: wr.stack([np.datetime64(1, "s")]), wr.LayoutError, r"got dtype datetime64\[s\]; ")


def test_subclasses_of_numpy_scalars():
    class Day(np.datetime64):
        pass

    refusal(lambda: wr.stack([Day("2026-11-22")]), wr.LayoutError, index=0)
    assert_tensor(wr.stack([type("Half", (np.float16,), {})(1.5)]), np.array([1.5], "f2"))


def test_scalars_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="SKIP: ml_dtypes is not installed")
    half = ml_dtypes.bfloat16(1.5)
    assert_tensor(wr.stack([half, half]), np.array([half, half]).view("u2"), "bfloat16")
    four = ml_dtypes.int4(-3)
    assert wr.stack([four, four]).numpy().tolist() == [four, four]
    for two in (ml_dtypes.int2(1), np.zeros(2, ml_dtypes.int2), np.zeros(2, ml_dtypes.uint2)):
        refused(lambda: two, wr.DTypeError, r"got dtype u?int2; ")


# pandas and polars


@pytest.mark.parametrize(
    "make",
    [
        lambda pd: pd.Series([1, 2]),
        lambda pd: pd.Series([1, None], dtype="Int64"),
        lambda pd: pd.DataFrame({"a": [1, 2]}),
        lambda pd: pd.Index([1, 2]),
        lambda pd: pd.array([1, None]),
        lambda pd: pd.Categorical(["a"]),
        lambda pd: pd.Timestamp("2026-11-22"),
    ],
)
def test_pandas(make):
    pd = pytest.importorskip("pandas", reason="SKIP: pandas is not installed")
    refused(lambda: make(pd), TypeError, r"got pandas.*use \.to_numpy\(\)$")
    series = pd.Series([1.0, 2.0])
    assert_tensor(wr.stack([series.to_numpy(), np.zeros(2)]), np.array([[1.0, 2.0], [0, 0]]))


@pytest.mark.parametrize("make", [lambda pl: pl.Series([1, 2]), lambda pl: pl.DataFrame({"a": [1, 2]})])
def test_polars(make):
    pl = pytest.importorskip("polars", reason="SKIP: polars is not installed")
    refused(lambda: make(pl), TypeError, r"got polars.*use \.to_numpy\(\)$")


# pyarrow


@pytest.fixture
def pa():
    pa = pytest.importorskip("pyarrow", reason="SKIP: pyarrow is not installed")
    if not hasattr(pa.Array, "__dlpack__"):
        pytest.skip(f"SKIP: arrays of pyarrow {pa.__version__} have no __dlpack__; 15 has")
    return pa


@pytest.mark.parametrize("name", ["int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64"])
def test_pyarrow_arrays_of_numbers(pa, name):
    values = paint(24 // np.dtype(name).itemsize * 8, name)
    array = pa.array(values)
    assert_tensor(wr.stack([array, array]), np.stack([values, values]))
    assert_tensor(wr.ragged([array[3:7], values[:2], array[:0]]), np.concatenate([values[3:7], values[:2]]))
    assert_tensor(wr.asarray(array[1:]), values[1:])


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda pa: pa.array([1, None]), "nulls"),
        (lambda pa: pa.array([None]), "nulls"),
        (lambda pa: pa.array([True, False]), "[Bb]it-packed|bool"),
        (lambda pa: pa.array(["a"]), "string"),
        (lambda pa: pa.array([[1], [2, 3]]), "list"),
        (lambda pa: pa.array([1], pa.timestamp("s")), "timestamp"),
    ],
)
def test_pyarrow_arrays_that_have_no_numbers_to_show(pa, make, text):
    refused(lambda: make(pa), wr.LayoutError, text, good=np.zeros(2, "i8"))
    assert isinstance(refusal(lambda: wr.stack([make(pa)]), wr.LayoutError).__cause__, TypeError)
    refused(lambda: pa.chunked_array([[1, 2]]), TypeError, r"use \.to_numpy\(\)$")


# JAX


@pytest.mark.parametrize("transform", ["jit", "vmap", "grad", "make_jaxpr"])
def test_jax_tracers(jax, transform):
    def within(call):
        def function(x):
            call(x)
            return x.sum()

        x = jax.numpy.zeros((2, 2))
        getattr(jax, transform)(function)(x)

    text = "inside jit.* make the batch outside$"
    refusal(lambda: within(lambda x: wr.stack([np.zeros(2), x])), TypeError, "^sample 1: expected an array-like, got .*Tracer", text, index=1)
    refusal(lambda: within(lambda x: wr.collate([{"a": x}])), TypeError, '^sample 0 at "a": ', text, path="a")
    refusal(lambda: within(lambda x: wr.stack(x)), TypeError, text)
    refusal(lambda: within(wr.asarray), TypeError, text)


def test_jax_arrays_that_were_deleted_or_donated(jax):
    deleted = jax.numpy.zeros(2)
    deleted.delete()
    refused(lambda: deleted, wr.LayoutError, "deleted or donated$", good=np.zeros(2, "f4"))
    donated = jax.numpy.ones(2)
    jax.jit(lambda x: x + 1, donate_argnums=0)(donated)
    if donated.is_deleted():
        refused(lambda: donated, wr.LayoutError, "deleted or donated$", good=np.zeros(2, "f4"))


def test_jax_dtypes_that_dlpack_lacks(jax):
    refused(lambda: jax.numpy.zeros(2, "int4"), wr.DTypeError, "got dtype int4; ", good=np.zeros(2, "i1"))
    refused(lambda: jax.random.key(0), TypeError, "expected an array-like")


# Others


def test_what_is_no_array_is_named_by_its_type():
    for thing in (None, "a", {1}, {"a": 1}, object(), (i for i in []), 1j, range(3), np.ndarray, type("Mine", (), {})()):
        name = type(thing).__qualname__
        refusal(lambda: wr.stack([1, thing]), TypeError, f"^sample 1: expected an array-like, got .*{re.escape(name)}$", index=1)
    refusal(lambda: wr.collate([{"t": [1, None]}, {"t": [2, 3]}]), TypeError, '^sample 0 at "t.1": .*NoneType', index=0, path="t.1")


def test_what_a_producer_raises_names_its_sample():
    class Refuses:
        def __init__(self, error):
            self.error = error

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **_):
            raise self.error

    class OfArrow(TypeError):
        pass

    for error in (TypeError("no"), BufferError("no"), OfArrow("no")):
        caught = refusal(lambda: wr.stack([1.5, Refuses(error)]), wr.LayoutError, "^sample 1: .*no$", index=1)
        assert caught.__cause__ is error
    for error in (MemoryError("none left"), RuntimeError("no"), ValueError("no")):
        with pytest.raises(type(error)) as unchanged:
            wr.stack([Refuses(error)])
        assert unchanged.value is error
