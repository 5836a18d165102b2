"""Casts to and from float8_e4m3fn and float8_e5m2, beside ml_dtypes, whose rounding they have."""

import numpy as np
import pytest

import oracle
import windrow as wr
from helpers import assert_tensor, memory, refusal, samples_of
from oracle import CAST8

ml_dtypes = pytest.importorskip("ml_dtypes", reason="SKIP: ml_dtypes is not installed")

LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


def codes(x, target):
    """The codes that ml_dtypes makes of floats, as uint8."""
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(getattr(ml_dtypes, target)).view(np.uint8)


def saturated(x, target):
    """The same of floats that are brought within the range before; NaN stays NaN."""
    with np.errstate(all="ignore"):
        wide = np.asarray(x).astype(np.float64)
    return codes(np.clip(wide, -LARGEST[target], LARGEST[target]), target)


def every(name):
    """All values of a dtype of 16 bits, as ml_dtypes has it."""
    words = np.arange(1 << 16, dtype=np.uint16)
    return words.view(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def around(target, name):
    """Each value of a float8, the middle to its neighbour, and what is next to these."""
    values = oracle.float8_values(target)[:128]
    values = values[np.isfinite(values)]
    values = np.append(values, 2 * values[-1] - values[-2])
    with np.errstate(all="ignore"):
        x = np.concatenate([values, (values[:-1] + values[1:]) / 2, [65536.0, 1e30]]).astype(name)
        inf = x.dtype.type(np.inf)
        x = np.concatenate([x, np.nextafter(x, inf), np.nextafter(x, -inf), [inf, np.nan]]).astype(name)
        return np.concatenate([x, -x])


@pytest.mark.parametrize("target", CAST8)
def test_the_oracle_agrees_with_ml_dtypes(target):
    dtype = getattr(ml_dtypes, target)
    np.testing.assert_array_equal(oracle.float8_values(target), np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64))
    for name in ("float32", "float16"):
        x = around(target, name)
        assert oracle.f64_to_float8(x, target).tolist() == codes(x, target).tolist()
        assert oracle.f64_to_float8(x, target, True).tolist() == saturated(x, target).tolist()


@pytest.mark.parametrize("target", CAST8)
@pytest.mark.parametrize("source", ["float16", "bfloat16"])
def test_every_value_of_sixteen_bits(source, target):
    x = every(source)
    assert_tensor(wr.stack([x], dtype=target), codes(x, target)[None], target)
    assert_tensor(wr.stack([x], dtype=target, saturate=True), saturated(x, target)[None], target)


@pytest.mark.parametrize("target", CAST8)
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_around_every_boundary(source, target):
    """Rounded once: NumPy's casts of ml_dtypes take float64 by way of float32."""
    x = around(target, source)
    for saturate in (False, True):
        want = oracle.f64_to_float8(x, target, saturate)
        assert memory(wr.stack([x], dtype=target, saturate=saturate)).tolist() == [want.tolist()]


@pytest.mark.parametrize("target", CAST8)
def test_floats_drawn_at_random(target):
    x = np.random.default_rng(8).integers(0, 1 << 32, 1 << 20, dtype=np.uint32).view(np.float32)
    assert memory(wr.stack([x], dtype=target)).tobytes() == codes(x, target).tobytes()


@pytest.mark.parametrize("source", CAST8)
def test_every_code_back(source):
    x = np.arange(256, dtype=np.uint8)
    own = x.view(getattr(ml_dtypes, source))
    for target in ("float16", "bfloat16", "float32", "float64", *CAST8):
        with np.errstate(all="ignore"):
            want = own.astype(getattr(ml_dtypes, target, target)).view(oracle.STORAGE[target])
        got = memory(wr.stack([own], dtype=target))[0]
        assert got.tobytes() == want.tobytes(), target
    for target in (*oracle.INTEGERS, "bool"):
        assert_tensor(wr.stack([own], dtype=target), oracle.cast(x, source, target)[None], target)


@pytest.mark.parametrize("target", CAST8)
def test_integers(target):
    for source in ("int16", "uint16", "int32", "int64", "uint64"):
        info = np.iinfo(source)
        numbers = np.arange(max(info.min, -70_000), min(info.max, 70_000) + 1)
        x = np.concatenate([numbers.astype(source), np.array([info.max, info.min], source)])
        # All that are in the range are exact in float64.
        assert memory(wr.stack([x], dtype=target)).tobytes() == codes(x.astype(np.float64), target).tobytes()
        got = memory(wr.stack([x], dtype=target, saturate=True))
        assert got.tobytes() == saturated(x, target).tobytes()


@pytest.mark.parametrize("target", CAST8)
def test_saturate_in_every_form(target):
    values = np.array([[0.3, 1e9, -np.inf, np.nan, 460.0, 470.0, -7e4, 2.0**-9]] * 3, "float32") * [[1], [-1], [0.5]]
    rows = [values[:n].astype("float32") for n in (1, 3, 2)]
    joined = np.concatenate([saturated(row, target) for row in rows])
    common = {"dtype": target, "saturate": True}
    for call in (wr.concat, wr.ragged):
        assert memory(call(rows, **common)).tolist() == joined.tolist()
        assert memory(call(wr.SampleList(rows), **common)).tolist() == joined.tolist()
    padded = memory(wr.pad(rows, dims=0, value=2, **common))
    for row, got in zip(rows, padded):
        assert got[: len(row)].tolist() == saturated(row, target).tolist()
        assert set(got[len(row) :].flat) <= {codes([2.0], target)[0]}
    listed = wr.SampleList(list(values.astype("float32")))
    assert memory(listed.stack([2, 0], **common)).tolist() == saturated(values[[2, 0]].astype("float32"), target).tolist()
    trees = [{"x": row, "n": 1} for row in values.astype("float32")]
    batch = wr.collate(trees, {"x": wr.Stack(**common)})
    assert memory(batch["x"]).tolist() == saturated(values.astype("float32"), target).tolist() and batch["n"].dtype == "int64"
    out = np.zeros((3, 8), getattr(ml_dtypes, target))
    wr.stack(list(values.astype("float32")), out=out, **common)
    assert out.view(np.uint8).tolist() == saturated(values.astype("float32"), target).tolist()
    turned = wr.stack([values.astype("float32")], transform=wr.Transform(scale=2.0, permute=(1, 0)), **common)
    assert memory(turned)[0].T.tolist() == saturated(values.astype("float32") * 2, target).tolist()
    assert wr.explain(rows, "ragged", **common).path == "cast"


def test_saturate_moves_what_is_float8_already():
    own = np.array([np.inf, np.nan, 1.0, -np.inf], ml_dtypes.float8_e5m2)
    assert memory(wr.stack([own], saturate=True)).tolist() == [own.view(np.uint8).tolist()]
    doubled = wr.stack([own], saturate=True, transform=wr.Transform(scale=2.0))
    assert memory(doubled).tolist() == [[0x7B, 0x7E, 0x40, 0xFB]]


def test_saturate_is_of_float8_alone():
    rows = [np.ones(3, "float32")] * 2
    words = "saturate is for batches of float8_e4m3fn or float8_e5m2, not of float"
    for call in (
        lambda **more: wr.stack(rows, saturate=True, **more),
        lambda **more: wr.concat(rows, saturate=True, **more),
        lambda **more: wr.pad(rows, saturate=True, **more),
        lambda **more: wr.ragged(rows, saturate=True, **more),
        lambda **more: wr.explain(rows, "pad", saturate=True, **more),
        lambda **more: wr.collate([{"x": row} for row in rows], saturate=True, **more),
        lambda **more: wr.collate([{"x": row} for row in rows], {"x": wr.Pad(saturate=True, **more)}),
        lambda **more: wr.SampleList(rows).stack([0], saturate=True, **more),
    ):
        refusal(call, ValueError, words)
        refusal(lambda: call(dtype="float16"), ValueError, words)  # noqa: B023
    refusal(lambda: wr.Stack(dtype="float16", saturate=True), ValueError, words)
    refusal(lambda: wr.stack(rows, dtype="float8_e5m2", saturate=1), TypeError, "saturate must be a bool")
    assert wr.stack(rows, saturate=False).dtype == "float32"


@pytest.mark.parametrize("target", CAST8)
def test_padding_value(target):
    padded = wr.pad([np.ones(2, "float32"), np.ones(1, "float32")], dtype=target, value=-0.3)
    assert memory(padded)[1].tolist() == [*codes([1.0], target), *codes([-0.3], target)]
    refusal(lambda: wr.pad([np.ones(2, "f4")], size=3, dtype=target, value=1e6), ValueError, f"value=.* {target}")
    # A value that a cast rounds to the largest number is that number; a larger value is refused.
    largest = LARGEST[target]
    tie = np.float32({"float8_e4m3fn": 464, "float8_e5m2": 61440}[target])
    for value in (largest, np.nextafter(tie, np.float32(0)), tie, np.nextafter(tie, 2 * tie), -largest, -tie, np.nan):
        pad = lambda value=float(value): wr.pad([np.ones(2), np.ones(1)], dtype=target, value=value)
        if np.isnan(value) or np.isfinite(codes([value], target).view(getattr(ml_dtypes, target)).astype(float))[0]:
            assert memory(pad())[1, 1] == codes([value], target)[0], value
        else:
            refusal(pad, ValueError, f"is not representable in {target}")


def test_moves():
    table = np.random.default_rng(1).normal(size=(40, 24)).astype("float32") * 300
    pages = np.zeros((50, 24), ml_dtypes.float8_e4m3fn)
    places = np.arange(40) + 7
    wr.copy_many(wr.SampleList(pages).take(places), wr.SampleList(table))
    assert pages[7:47].view(np.uint8).tolist() == codes(table, "float8_e4m3fn").tolist()
    back = np.zeros((40, 24), "float32")
    wr.copy_many(wr.SampleList(back), wr.SampleList(pages).take(places))
    assert back.tobytes() == pages[7:47].astype("float32").tobytes()


@pytest.mark.parametrize("target", CAST8)
def test_on_a_device(driver, target):
    x = np.concatenate([around(target, "float32"), every("float16").astype("float32")])
    for saturate, codes_of in ((False, codes), (True, saturated)):
        there = wr.ragged([x, x[:77]], dtype=target, saturate=saturate, device="cuda")
        assert there.device == "cuda:0" and there.dtype == target
        back = wr.concat(there, dtype="float32", device="cpu")
        with np.errstate(all="ignore"):
            want = np.concatenate([codes_of(part, target) for part in (x, x[:77])]).view(getattr(ml_dtypes, target)).astype("float32")
        assert memory(back).tobytes() == want.tobytes()
    refusal(lambda: wr.stack([x], dtype="float16", saturate=True, device="cuda"), ValueError, "saturate is for")


def test_torch_tensors(torch):
    x = torch.linspace(-400, 400, 999, dtype=torch.bfloat16)
    for name in CAST8:
        dtype = getattr(torch, name)
        got = wr.stack([x], dtype=dtype).torch()[0]
        assert got.dtype == dtype and torch.equal(got.view(torch.uint8), x.to(dtype).view(torch.uint8))
        assert torch.equal(wr.stack([got], dtype=torch.bfloat16).torch()[0], got.to(torch.bfloat16))


@pytest.mark.parametrize("name", CAST8)
def test_one_element_is_a_number(name):
    array = codes([-0.75], name)
    assert float(wr.asarray(samples_of([array], name)[0])) == -0.75
