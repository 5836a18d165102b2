"""Casts between the 15 dtypes that are cast, bit for bit."""

import numpy as np
import pytest

import oracle
import windrow as wr
from helpers import assert_tensor, memory, paint, paint_values, refusal, samples_of
from oracle import CASTABLE, FLOATS, INTEGERS


def integer_edges(name):
    info = np.iinfo(name)
    powers = [1 << k for k in range(info.bits)]
    edges = {0, 1, 2, 3, 5, 100, info.min, info.min + 1, info.max, info.max - 1}
    for p in powers:
        edges |= {p - 1, p, p + 1, -p, -p - 1, -p + 1, 3 * p // 2, 5 * p // 4}
    return np.array(sorted(e for e in edges if info.min <= e <= info.max), name)


def float_edges(name):
    """Special values, and every integer limit and power of two with its neighbours."""
    values = [0.0, -0.0, np.nan, np.inf, -np.inf, 0.1, 0.5, 0.9999999, 1.5, 2.5, 255.5, 65519.9, 65520.0, 3.4e38, 1e300]
    values += [2.0**k for k in range(-1074, 1024, 13)] + [2.0**k for k in range(-30, 67)]
    values += [2.0**k * (1 + 2.0**-j) for k in (-140, -24, -14, 0, 7, 15, 120) for j in (7, 8, 9, 10, 11, 12, 23, 24, 40)]
    values += [2.0**k * (1 + 3 * 2.0**-j) for k in (-20, 0, 9) for j in (8, 9, 11, 12, 24, 25)]
    values += [float(np.iinfo(i).max) for i in INTEGERS] + [float(np.iinfo(i).min) for i in INTEGERS]
    wide = np.array(values + [-v for v in values], np.float64)
    with np.errstate(all="ignore"):
        if name == "bfloat16":
            bits = oracle.narrow(wide, name)
            return np.concatenate([bits, bits + np.uint16(1), bits - np.uint16(1)])
        x = wide.astype(name)
        return np.concatenate([x, np.nextafter(x, x.dtype.type(np.inf)), np.nextafter(x, x.dtype.type(-np.inf))])


def edges(name):
    if name == "bool":
        return np.array([False, True, True, False, True])
    if name in oracle.CAST8:
        return np.arange(256, dtype=np.uint8)
    return float_edges(name) if name in FLOATS else integer_edges(name)


def check(array, source, target):
    """Two samples of one length, so that the second starts misaligned."""
    arrays = [array, array[::-1].copy()]
    batch = wr.stack(samples_of(arrays, source), dtype=target)
    assert_tensor(batch, oracle.stack(arrays, source, target).data, target)


# Lengths, alignments and strides are the shared suite's: `every_length_in_every_form`, `strided_sources` of tests/executors.rs.


@pytest.mark.parametrize("source", CASTABLE)
def test_edge_values(source):
    for target in CASTABLE:
        check(edges(source), source, target)


@pytest.mark.parametrize("source", ["int8", "uint8", "int16", "uint16", "float16", "bfloat16"])
def test_every_value_of_narrow_sources(source):
    bits = np.dtype(oracle.STORAGE[source]).itemsize * 8
    every = np.arange(1 << bits, dtype=np.uint32).astype(f"uint{bits}").view(oracle.STORAGE[source])
    for target in CASTABLE:
        check(every, source, target)


@pytest.mark.parametrize("target", ["float16", "bfloat16", *oracle.CAST8])
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_every_midpoint_rounds_to_even(source, target):
    """Midpoints of neighbouring floats of 16 and 8 bits, and the values just beside them."""
    storage = oracle.STORAGE[target]
    words = np.uint16 if storage.itemsize == 2 else np.uint8
    bits = np.arange(np.iinfo(words).max // 2, dtype=words)
    low, high = (oracle.widen(b.view(storage), target) for b in (bits, bits + words(1)))
    finite = np.isfinite(low) & np.isfinite(high)
    with np.errstate(all="ignore"):
        middle = ((low[finite] + high[finite]) / 2).astype(source)
        inf = middle.dtype.type(np.inf)
        x = np.concatenate([middle, np.nextafter(middle, inf), np.nextafter(middle, -inf)])
    check(np.concatenate([x, -x]), source, target)


@pytest.mark.parametrize("source", ["int32", "uint32", "int64", "uint64"])
def test_wide_integers_round_once(source):
    """Ties of the target, one above and one below, at every magnitude: two roundings would differ."""
    info = np.iinfo(source)
    values = set()
    for mantissa in (8, 11, 24, 53):
        for k in range(mantissa, info.bits):
            step = 1 << (k - mantissa)
            for base in ((1 << k) + step, (1 << k) + 3 * step):
                values |= {base - 1, base, base + 1, -base, 1 - base}
    x = np.array(sorted(v for v in values if info.min <= v <= info.max), source)
    for target in (*FLOATS, *oracle.CAST8):
        check(x, source, target)


def test_cast_to_itself_keeps_the_bytes():
    for name in CASTABLE:
        arrays = [paint(100, name, i) for i in range(2)]
        batch = wr.stack(samples_of(arrays, name), dtype=name)
        assert memory(batch).tobytes() == np.stack(arrays).tobytes(), name


@pytest.mark.parametrize("name", [*oracle.COMPLEX, *oracle.MOVED8])
def test_moved_dtypes_may_be_named_and_are_not_cast(name):
    arrays = [paint(9, name, i) for i in range(2)]
    assert_tensor(wr.stack(samples_of(arrays, name), dtype=name), np.stack(arrays), name)
    source = samples_of([paint(4, name)], name)
    refusal(lambda: wr.stack(source, dtype="float32"), wr.DTypeError, name)
    refusal(lambda: wr.stack([paint(4, "float32")], dtype=name), wr.DTypeError, name)


def test_examples():
    """The sentences of the contract, without the oracle."""

    def cast(values, source, target):
        return memory(wr.stack([np.array(values, source)], dtype=target))[0].tolist()

    assert cast([300, -1, 128], "int32", "uint8") == [44, 255, 128]
    assert cast([300, -1, 128], "int32", "int8") == [44, -1, -128]
    assert cast([2**40 + 5], "int64", "int32") == [5]
    assert cast([1.9, -1.9, 300.0, -300.0, np.nan, np.inf, -np.inf], "float32", "int8") == [1, -1, 127, -128, 0, 127, -128]
    assert cast([-0.5, -1.0, 1e20, np.nan], "float64", "uint64") == [0, 0, 2**64 - 1, 0]
    assert cast([0.0, -0.0, 0.1, np.nan, 1e-45], "float32", "bool") == [False, False, True, True, True]
    assert cast([0, 256, -1], "int32", "bool") == [False, True, True]
    assert cast([True, False], "bool", "float16") == [1.0, 0.0]


def test_torch_agrees_where_it_defines_the_cast(torch):
    for source in ("uint8", "int16", "int32", "float16", "bfloat16", "float32"):
        for target in ("float16", "bfloat16", "float32", "float64"):
            x = paint_values(500, source)
            tensor = torch.from_numpy(x.view(np.int16) if source == "bfloat16" else x)
            tensor = tensor.view(torch.bfloat16) if source == "bfloat16" else tensor
            want = tensor.to(getattr(torch, target))
            got = wr.stack([tensor], dtype=getattr(torch, target)).torch()[0]
            assert torch.equal(got, want), (source, target)


LARGE = [("int32", "float16"), ("float32", "uint8"), ("float64", "bfloat16"), ("uint8", "int64")]


@pytest.mark.parametrize(("source", "target"), LARGE)
def test_large_casts(source, target):
    """Large enough for several threads."""
    arrays = [paint_values(700_001, source, i) for i in range(3)]
    assert_tensor(wr.stack(arrays, dtype=target), oracle.stack(arrays, source, target).data, target)
