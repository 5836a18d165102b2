// Elements that casts have to get right, and divisors as the host computes them.
#pragma once

#include "memory.h"
#include "oracle.h"

using namespace windrow;

/// An element of `dtype`: floats are often NaN with a payload, infinite, denormal, -0 or halfway between
/// two floats of 16 bits; integers often at their limits.
inline uint64_t any_element(int dtype) {
    const uint64_t bits = rng();
    if (dtype < kF16 || dtype > kF64) {
        const uint64_t limits[] = {0, 1, ~0ull, 0x7F, 0x80, 0x7FFF, 0x8000, 0x7FFFFFFF, 0x80000000};
        return pick(4) == 0 ? limits[pick(9)] : bits;
    }
    const oracle::Format f = oracle::format(dtype);
    const uint64_t fraction = bits & ((1ull << f.fraction) - 1);
    const uint64_t infinity = ((1ull << f.exponent) - 1) << f.fraction;
    const uint64_t sign = (bits >> 62 & 1) << (f.width() - 1);
    switch (pick(24)) {
        case 0: return sign | infinity;
        case 1: return sign | infinity | fraction;
        case 2: return sign;
        case 3: return sign | fraction;
        case 4: return sign | (infinity >> 1 & infinity) | fraction;
        case 5: if (dtype == kF32) return bits >> 32 << 16 | 0x8000; break;
        case 6: if (dtype == kF32) return sign | ((bits >> 32 & 0x7FFF) << 13) + (112 << 23) | 0x1000; break;
        default: break;
    }
    return bits;
}

inline Divisor divisor(uint64_t d) {
    if (d == 0 || d >= 1ull << 31) return {0, 0};
    uint32_t shift = 0;
    while (1ull << shift < d) ++shift;
    const uint64_t mul = ((1ull << 32) * ((1ull << shift) - d)) / d + 1;
    return {uint32_t(mul), shift};
}

inline Vec16 fill_of(uint64_t bits, uint32_t size) { return repeated({bits, 0}, size); }
