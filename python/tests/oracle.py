"""A naive oracle: every form of windrow, one sample at a time, in plain NumPy.

Arrays of bfloat16 are uint16 bit patterns and float8 arrays are uint8, so every function takes the dtype's name next to the array.
Casts and the fused multiply-add are computed exactly and rounded once; nothing here calls windrow.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace

import numpy as np

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
ARITHMETIC = ("bool", *INTEGERS, *FLOATS)
COMPLEX = ("complex64", "complex128")
FLOAT8 = (
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
CAST8 = ("float8_e4m3fn", "float8_e5m2")
MOVED8 = tuple(name for name in FLOAT8 if name not in CAST8)
CASTABLE = (*ARITHMETIC, *CAST8)
ALL = (*ARITHMETIC, *COMPLEX, *FLOAT8)

STORAGE = {name: np.dtype(name) for name in (*ARITHMETIC, *COMPLEX) if name != "bfloat16"}
STORAGE["bfloat16"] = np.dtype("uint16")
STORAGE.update((name, np.dtype("uint8")) for name in FLOAT8)


# Casts


def bf16_to_f32(bits):
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(x):
    """Round to nearest even; every NaN becomes 0x7fc0 with its sign."""
    u = np.atleast_1d(np.asarray(x, np.float32)).view(np.uint32).astype(np.uint64)
    rounded = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    nan = (u & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, ((u >> 16) & 0x8000 | 0x7FC0).astype(np.uint16), rounded).reshape(np.shape(x))


def f64_to_f32_odd(x):
    """Round to odd: a later rounding to a narrower type is then as good as one rounding."""
    x = np.atleast_1d(np.asarray(x, np.float64))
    with np.errstate(all="ignore"):
        r = x.astype(np.float32)
    overflow = np.isinf(r) & np.isfinite(x)
    r = np.where(overflow, np.copysign(np.finfo(np.float32).max, x).astype(np.float32), r)
    back = r.astype(np.float64)
    move = np.isfinite(x) & (back != x) & (r.view(np.uint32) & 1 == 0)
    toward = np.where(x > back, np.float32(np.inf), np.float32(-np.inf))
    return np.where(move, np.nextafter(r, toward), r)


def float8_values(name):
    """The values of all 256 codes, counted up: the codes of a sign are in the order of their values."""
    bits, end = (3, 0x7F) if name == "float8_e4m3fn" else (2, 0x7C)
    code = np.arange(128)
    exponent, fraction = code >> bits, (code & ((1 << bits) - 1)) / (1 << bits)
    bias = (1 << (6 - bits)) - 1
    values = np.where(exponent == 0, np.ldexp(fraction, 1 - bias), np.ldexp(1 + fraction, exponent - bias))
    values[end:] = np.nan
    if name == "float8_e5m2":
        values[end] = np.inf
    return np.concatenate([values, -values])


def f64_to_float8(x, name, saturate=False):
    """Rounds float64 to the nearest code, ties to even; a value that is too large becomes an infinity, NaN where there is none,
    or the largest number."""
    x = np.atleast_1d(np.asarray(x, np.float64))
    end = 0x7F if name == "float8_e4m3fn" else 0x7C
    values = float8_values(name)[: end + 1]
    values[end] = 2 * values[end - 1] - values[end - 2]  # the next one, if there were one
    with np.errstate(all="ignore"):
        middles = (values[:-1] + values[1:]) / 2
        low, high = (np.searchsorted(middles, np.abs(x), side) for side in ("left", "right"))
        code = np.where(low == high, low, low + low % 2)  # of a middle both neighbours
    code = np.where(code == end, end - saturate, code)
    code = np.where(np.isnan(x), end | 2, code)
    return (code | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)


def widen(x, src):
    """The values in float64; integers above 2**53 are rounded to odd."""
    x = np.asarray(x)
    if src in CAST8:
        return float8_values(src)[x]
    if src in FLOATS:
        with np.errstate(invalid="ignore"):  # signalling NaN
            return (bf16_to_f32(x) if src == "bfloat16" else x).astype(np.float64)
    if src not in ("int64", "uint64"):
        return x.astype(np.float64)
    negative = x < 0
    magnitude = np.where(negative, np.uint64(0) - x.astype(np.uint64), x.astype(np.uint64))
    jammed = (magnitude >> np.uint64(11)) | ((magnitude & np.uint64(0x7FF)) != 0)
    large = jammed.astype(np.float64) * 2048.0
    value = np.where(magnitude < np.uint64(1 << 53), magnitude.astype(np.float64), large)
    return np.where(negative, -value, value)


def narrow(x, dst):
    """Float64 (exact, or rounded to odd) to a float dtype, to nearest even."""
    if dst in CAST8:
        return f64_to_float8(x, dst).reshape(np.shape(x))
    if dst == "bfloat16":
        return f32_to_bf16(f64_to_f32_odd(x)).reshape(np.shape(x))
    with np.errstate(all="ignore"):
        return np.asarray(x, np.float64).astype(STORAGE[dst])


def float_to_integer(x, dst):
    """Truncate toward zero, saturate, NaN becomes 0."""
    info = np.iinfo(dst)
    x = np.trunc(np.where(np.isnan(x), 0.0, x))
    above = x >= float(info.max) + (0.0 if info.bits == 64 else 1.0)
    below = x <= float(info.min)
    inside = np.where(above | below, 0.0, x).astype(STORAGE[dst])
    return np.where(above, STORAGE[dst].type(info.max), np.where(below, STORAGE[dst].type(info.min), inside))


def cast(x, src, dst):
    """`x` of dtype `src` as dtype `dst`, each in its storage type."""
    x = np.asarray(x)
    with np.errstate(all="ignore"):
        if src == dst:
            return x.copy()
        if dst == "bool":
            return (widen(x, src) if src == "bfloat16" or src in CAST8 else x) != 0
        if dst in INTEGERS:
            is_float = src in FLOATS or src in CAST8
            return float_to_integer(widen(x, src), dst) if is_float else x.astype(STORAGE[dst])
        if dst == "float64" and src in ("int64", "uint64"):
            return x.astype(np.float64)
        return narrow(widen(x, src), dst)


# The fused multiply-add


def fma_f32(x, a, b):
    """`x * a + b` for float32, rounded once.

    The product of two float32 is exact in float64; the sum is rounded to odd in float64 and then to float32.
    """
    with np.errstate(all="ignore"):
        x, a, b = (np.asarray(v, np.float32).astype(np.float64) for v in (x, a, b))
        p = x * a
        b = np.broadcast_to(b, p.shape)
        s = np.atleast_1d(p + b)
        t = s - p
        error = (p - (s - t)) + (b - t)
        even = s.view(np.int64) & 1 == 0
        move = np.isfinite(s) & np.isfinite(error) & (error != 0) & even
        s = np.where(move, np.nextafter(s, np.where(error > 0, np.inf, -np.inf)), s)
        return s.astype(np.float32).reshape(p.shape)


def _fma_one(x, a, b):
    x, a, b = float(x), float(a), float(b)
    if not all(np.isfinite(v) for v in (x, a, b)) or x == 0 or a == 0:
        return np.float64(x) * np.float64(a) + np.float64(b)
    exact = Fraction(x) * Fraction(a) + Fraction(b)
    if exact == 0:
        return 0.0
    try:
        return exact.numerator / exact.denominator or (0.0 if exact > 0 else -0.0)
    except OverflowError:
        return np.inf if exact > 0 else -np.inf


def fma_f64(x, a, b):
    """`x * a + b` for float64, rounded once, by rational arithmetic."""
    x = np.asarray(x, np.float64)
    a, b = np.broadcast_to(a, x.shape), np.broadcast_to(b, x.shape)
    out = np.empty(x.shape, np.float64)
    with np.errstate(all="ignore"):
        for i in np.ndindex(*x.shape):
            out[i] = _fma_one(x[i], a[i], b[i])
    return out


# Transform


@dataclass(frozen=True)
class T:
    """The arguments of `wr.Transform`."""

    scale: float = 1.0
    mean: object = None
    std: object = None
    channel_dim: int | None = None
    permute: tuple | None = None

    def arguments(self):
        """The options that differ from the defaults, as keyword arguments."""
        default = T()
        return {k: v for k, v in vars(self).items() if v is not getattr(default, k)}

    def has_arithmetic(self):
        return self.scale != 1.0 or self.mean is not None or self.std is not None

    def coefficients(self, shape):
        """`a` and `b` in float64, of shapes that broadcast against a sample."""
        mean = np.asarray(0.0 if self.mean is None else self.mean, np.float64)
        std = np.asarray(1.0 if self.std is None else self.std, np.float64)
        mean, std = np.broadcast_arrays(mean, std)
        a, b = np.float64(self.scale) / std, -mean / std
        if a.ndim == 0:
            return a, b
        dim = self.channel_dim
        if dim is None:
            (dim,) = (d for d, extent in enumerate(shape) if extent == len(a))
        index = [None] * len(shape)
        index[dim] = slice(None)
        return a[tuple(index)], b[tuple(index)]


def apply(x, src, dst, t=None):
    """Arithmetic and cast of one sample; the permutation comes later."""
    if t is None or not t.has_arithmetic():
        return cast(x, src, dst)
    work = "float64" if "float64" in (src, dst) else "float32"
    a, b = t.coefficients(x.shape)
    with np.errstate(all="ignore"):
        a, b = a.astype(work), b.astype(work)
    fma = fma_f64 if work == "float64" else fma_f32
    return cast(fma(cast(x, src, work), a, b), work, dst)


def _permuted(data, t):
    if t is None or t.permute is None:
        return np.ascontiguousarray(data).reshape(data.shape)
    rank = len(t.permute)
    order = [0, *(1 + p % rank for p in t.permute)]
    return np.ascontiguousarray(data.transpose(order))


# Forms


def stack(samples, src, dst=None, t=None):
    dst = dst or src
    data = np.empty((len(samples), *samples[0].shape), STORAGE[dst])
    for i, sample in enumerate(samples):
        data[i] = apply(sample, src, dst, t)
    return SimpleNamespace(data=_permuted(data, t))


def running_sum(lengths):
    return np.array([0, *itertools.accumulate(lengths)], np.int64)


def concat(samples, src, dim=0, dst=None, t=None):
    dst = dst or src
    dim %= samples[0].ndim
    lengths = [sample.shape[dim] for sample in samples]
    shape = list(samples[0].shape)
    shape[dim] = sum(lengths)
    data = np.empty(shape, STORAGE[dst])
    begin = 0
    for sample, length in zip(samples, lengths):
        where = (slice(None),) * dim + (slice(begin, begin + length),)
        data[where] = apply(sample, src, dst, t)
        begin += length
    return SimpleNamespace(data=data, lengths=np.array(lengths, np.int64), offsets=running_sum(lengths))


def ragged(samples, src, dst=None, t=None):
    dst = dst or src
    lengths = [sample.shape[0] for sample in samples]
    data = np.empty((sum(lengths), *samples[0].shape[1:]), STORAGE[dst])
    batch_index = np.empty(sum(lengths), np.int64)
    row = 0
    for i, sample in enumerate(samples):
        for element in apply(sample, src, dst, t):
            data[row] = element
            batch_index[row] = i
            row += 1
    if t is not None and t.permute is not None:
        data = np.ascontiguousarray(data.transpose(t.permute))
    return SimpleNamespace(
        data=data,
        lengths=np.array(lengths, np.int64),
        offsets=running_sum(lengths),
        batch_index=batch_index,
        max_length=max(lengths),
    )


def encode(value, dst):
    """A pad value as one element of `dst`."""
    if dst in FLOATS or dst in CAST8:
        if isinstance(value, (int, np.integer)) and abs(int(value)) > 1 << 53:
            wide = np.asarray([value], np.uint64 if value > 0 else np.int64)
            return cast(wide, wide.dtype.name, dst)[0]
        return narrow(np.array([value], np.float64), dst)[0]
    return np.array([value]).astype(STORAGE[dst])[0]


def plan_padding(shapes, dims=None, size=None, multiple_of=1):
    """The dims that count as padded, and the extent of each dim of the result.

    `dims` names dims, and an entry of `size` or `multiple_of` its own; if nothing does, all that differ are padded.
    """
    rank = len(shapes[0])
    differ = {d for d in range(rank) if len({s[d] for s in shapes}) > 1}
    given = () if dims is None else (dims,) if isinstance(dims, int) else dims
    which = {d % rank for d in given}

    def spread(value, neutral):
        if isinstance(value, (tuple, list)):
            return list(value)
        assert value == neutral or rank == 1 or dims is not None, "one number applies to `dims`"
        return [value if rank == 1 or d in which else neutral for d in range(rank)]

    sizes, multiples = spread(size, None), spread(multiple_of, 1)
    which |= {d for d in range(rank) if sizes[d] is not None or multiples[d] > 1}
    which = {0} if rank == 1 else which if which or dims is not None else differ
    assert differ <= which, "the oracle was given samples that differ elsewhere"
    extents = []
    for d in range(rank):
        extent = max(s[d] for s in shapes) if sizes[d] is None else sizes[d]
        extents.append(-(-extent // multiples[d]) * multiples[d])
    return sorted(which), extents


def _before(side, spare):
    """How many of `spare` places are before the data."""
    return {"right": 0, "left": spare, "center": spare // 2}[side]


def pad(
    samples, src, value=0, side="right", dims=None, size=None, multiple_of=1, truncate=False, mask=None, mask_dtype="bool", dst=None, t=None
):
    dst = dst or src
    shapes = [sample.shape for sample in samples]
    rank = len(shapes[0])
    which, shape = plan_padding(shapes, dims, size, multiple_of)
    sides = list(side) if isinstance(side, (tuple, list)) else [side] * rank
    data = np.full((len(samples), *shape), encode(value, dst), STORAGE[dst])
    real = np.zeros((len(samples), *(shape[d] for d in which)), bool)
    lengths = np.empty((len(samples), rank), np.int64)
    for i, sample in enumerate(samples):
        source, target = [slice(None)] * rank, [slice(None)] * rank
        lengths[i] = sample.shape
        for d in which:
            extent = sample.shape[d]
            if extent > shape[d]:
                assert truncate, "the oracle was given a sample that does not fit"
                cut = _before(sides[d], extent - shape[d])
                source[d] = slice(cut, cut + shape[d])
            kept = lengths[i, d] = min(extent, shape[d])
            begin = _before(sides[d], shape[d] - kept)
            target[d] = slice(begin, begin + kept)
        data[(i, *target)] = apply(sample, src, dst, t)[tuple(source)]
        real[(i, *(target[d] for d in which))] = True
    marks = None
    if mask is not None:
        marks = _mask(real if mask == "real" else ~real, which, rank, t).astype(mask_dtype)
    kept = lengths[:, which[0]] if len(which) == 1 else lengths[:, which]
    return SimpleNamespace(data=_permuted(data, t), lengths=kept, mask=marks, dims=which, sizes=shape)


def _mask(marks, which, rank, t):
    """`marks` over the padded dims, in the order of the result's dims."""
    order = range(rank) if t is None or t.permute is None else [p % rank for p in t.permute]
    return np.ascontiguousarray(marks.transpose([0, *(1 + which.index(d) for d in order if d in which)]))
