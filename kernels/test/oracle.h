// What a conversion means, by exact arithmetic in long double (64 bits of precision).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "../params.h"

namespace oracle {

using namespace windrow;
using Wide = long double;

inline const int kSizes[] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8};

template <class To, class From>
To as(From x) {
    To to{};
    memcpy(&to, &x, sizeof to < sizeof x ? sizeof to : sizeof x);
    return to;
}

/// Fraction and exponent bits of a binary format.
struct Format {
    int fraction, exponent;
    int bias() const { return (1 << (exponent - 1)) - 1; }
    int width() const { return 1 + exponent + fraction; }
};

inline Format format(int dtype) {
    switch (dtype) {
        case kF16: return {10, 5};
        case kBF16: return {7, 8};
        case kF32: return {23, 8};
        default: return {52, 11};
    }
}

/// A number: `nan` holds the bits of a float64 NaN, or 0.
struct Value {
    Wide x;
    uint64_t nan;
};

inline Value read(int dtype, uint64_t bits) {
    switch (dtype) {
        case kBool: return {Wide((bits & 0xFF) != 0), 0};
        case kI8: return {Wide(int8_t(bits)), 0};
        case kI16: return {Wide(int16_t(bits)), 0};
        case kI32: return {Wide(int32_t(bits)), 0};
        case kI64: return {Wide(int64_t(bits)), 0};
        case kU8: return {Wide(uint8_t(bits)), 0};
        case kU16: return {Wide(uint16_t(bits)), 0};
        case kU32: return {Wide(uint32_t(bits)), 0};
        case kU64: return {Wide(bits), 0};
        default: break;
    }
    Format f = format(dtype);
    uint64_t fraction = bits & ((1ull << f.fraction) - 1);
    int exponent = bits >> f.fraction & ((1 << f.exponent) - 1);
    uint64_t sign = bits >> (f.width() - 1) & 1;
    if (exponent == (1 << f.exponent) - 1) {
        if (fraction != 0) {
            return {0, sign << 63 | 0x7FF8ull << 48 | fraction << (52 - f.fraction)};
        }
        return {sign ? -INFINITY : INFINITY, 0};
    }
    Wide x = exponent == 0 ? ldexpl(fraction, 1 - f.bias() - f.fraction)
                           : ldexpl(fraction | 1ull << f.fraction,
                                    exponent - f.bias() - f.fraction);
    return {sign ? -x : x, 0};
}

template <class T>
uint64_t integer(Value v) {
    Wide low = sizeof(T) == 8 && T(-1) > 0 ? 0 : Wide(std::numeric_limits<T>::min());
    Wide high = Wide(std::numeric_limits<T>::max());
    if (v.nan) return 0;
    if (v.x <= low) return uint64_t(std::numeric_limits<T>::min());
    if (v.x >= high) return uint64_t(std::numeric_limits<T>::max());
    return uint64_t(T(truncl(v.x)));
}

/// The bits in `dtype`, rounded once.
inline uint64_t write(int dtype, Value v) {
    switch (dtype) {
        case kBool: return v.nan || v.x != 0;
        case kI8: return integer<int8_t>(v);
        case kI16: return integer<int16_t>(v);
        case kI32: return integer<int32_t>(v);
        case kI64: return integer<int64_t>(v);
        case kU8: return integer<uint8_t>(v);
        case kU16: return integer<uint16_t>(v);
        case kU32: return integer<uint32_t>(v);
        case kU64: return integer<uint64_t>(v);
        default: break;
    }
    Format f = format(dtype);
    uint64_t sign = uint64_t(v.nan ? v.nan >> 63 : std::signbit(v.x)) << (f.width() - 1);
    uint64_t infinity = ((1ull << f.exponent) - 1) << f.fraction;
    if (v.nan) {
        return sign | infinity | 1ull << (f.fraction - 1) |
               (v.nan & ((1ull << 52) - 1)) >> (52 - f.fraction);
    }
    Wide size = fabsl(v.x);
    if (size == 0) return sign;
    if (std::isinf(size)) return sign | infinity;
    int exponent = std::max(ilogbl(size), 1 - f.bias());
    // In units of the spacing; nearbyint rounds to nearest even, and a carry goes one up.
    uint64_t units = uint64_t(nearbyintl(ldexpl(size, f.fraction - exponent)));
    uint64_t bits = units + (uint64_t(exponent + f.bias() - 1) << f.fraction);
    return sign | (bits > infinity ? infinity : bits);
}

/// `a` and `b` null: a mere cast.
inline uint64_t convert(int from, int to, uint64_t bits, const double* a, const double* b) {
    if (a == nullptr) {
        if (from == to) return bits;
        if (from <= kU64 && to <= kU64 && to != kBool) {
            return from == kBool   ? (bits & 0xFF) != 0
                   : from == kI8   ? uint64_t(int8_t(bits))
                   : from == kI16  ? uint64_t(int16_t(bits))
                   : from == kI32  ? uint64_t(int32_t(bits))
                                   : bits;
        }
        return write(to, read(from, bits));
    }
    Value v = read(from, bits);
    if (from == kF64 || to == kF64) {
        double x = v.nan ? as<double>(v.nan) : double(v.x);
        double y = std::fma(x, *a, *b);
        if (y != y) return write(to, {0, v.nan ? v.nan : 0xFFF8ull << 48});
        return write(to, {y, 0});
    }
    // Integers of 64 bits are rounded to float32 once.
    float x = v.nan ? 0 : float(v.x);
    float y = v.nan ? NAN : std::fmaf(x, float(*a), float(*b));
    if (y != y) return write(to, {0, v.nan ? v.nan : 0xFFF8ull << 48});
    return write(to, {y, 0});
}

}  // namespace oracle
