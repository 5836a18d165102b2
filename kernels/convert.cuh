// One element from one dtype to another: the bits of src/host/convert.rs, NaN payloads included. Elements travel as their bits in
// the low bytes of a uint64_t.
//
// The problem: a device's own conversions make all NaN alike, and a number that is rounded to float32 and then to 16 or 8 bits
// may be another than the one that is rounded once.
//
//     from                                   on the way                                   to
//     bool, integers                         uint64, modulo 2^64                          bool, integers
//     float64 on either side                 float64; to odd in float32                   16 and 8 bits
//                                            float64                                      the others
//     32- and 64-bit integers, without map   float32, rounded to odd                      bfloat16
//     the others                             float32                                      the others
//     float8                                 the float32 that it is, then as float32
//
// A function for each pair would be simpler to follow, but 15 dtypes on either side are 225. One element after another is for
// what no vector has: float32 to int8 takes 654 thread instructions for 16 bytes by it on sm_90, and 347 by groups (group.cuh).
#pragma once

#include "memory.cuh"
#include "params.h"

namespace windrow {

WINDROW_DEVICE uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

WINDROW_DEVICE uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

WINDROW_DEVICE float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

WINDROW_DEVICE double double_of(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

constexpr uint32_t kQuiet32 = 0x00400000;
constexpr uint64_t kQuiet64 = 0x0008000000000000;

/// Rounds a float64 to float32, to nearest even. A NaN is quieted and keeps the top of its payload, where the device's
/// own conversion makes all NaN alike.
WINDROW_DEVICE float narrow(double x) {
    if (x != x) {
        uint64_t bits = bits_of(x);
        return float_of(static_cast<uint32_t>(bits >> 32) & 0x80000000 | 0x7F800000 | kQuiet32 |
                        static_cast<uint32_t>(bits >> 29) & 0x007FFFFF);
    }
    return static_cast<float>(x);
}

/// Converts a float32 to float64, exactly. A NaN is quieted.
WINDROW_DEVICE double widen(float x) {
    if (x != x) {
        uint64_t bits = bits_of(x);
        return double_of((bits & 0x80000000) << 32 | 0x7FF0000000000000 | kQuiet64 |
                         (bits & 0x007FFFFF) << 29);
    }
    return static_cast<double>(x);
}

/// Rounds to odd: toward zero, with the last bit set when anything was lost: rounding this once more, to 16 bits, is
/// rounding once.
WINDROW_DEVICE float to_odd(double x) {
    float near = narrow(x);
    double size = fabs(x), back = fabs(static_cast<double>(near));
    // Both comparisons are false for a NaN.
    bool up = back > size, down = back < size;
    return float_of(bits_of(near) - up | (up || down));
}

/// Rounds to odd: a float32 holds the upper 24 bits, of which the last is set if those below were not 0.
WINDROW_DEVICE float to_odd(uint32_t x) {
    const uint32_t below = x >> 24 == 0 ? 0 : x & 0xFF;
    return static_cast<float>(x - below | (below != 0) << 8);
}

/// Rounds an integer of 64 bits to odd.
WINDROW_DEVICE float to_odd(uint64_t x) {
    const uint32_t high = static_cast<uint32_t>(x >> 32);
#ifdef __CUDA_ARCH__
    const uint32_t zeros = __clz(high);
#else
    const uint32_t zeros = high == 0 ? 32 : __builtin_clz(high);
#endif
    x <<= zeros;
    return to_odd(static_cast<uint32_t>(x >> 32) | (static_cast<uint32_t>(x) != 0)) * float_of((127 + 32 - zeros) << 23);
}

/// The bits of a number as a float16, rounded to nearest even; a NaN is quieted and keeps its sign and the top of its
/// payload.
WINDROW_DEVICE uint16_t to_f16(float x) {
    const uint32_t bits = bits_of(x), size = bits & 0x7FFFFFFF;
    const auto nan = static_cast<uint16_t>(bits >> 16 & 0x8000 | 0x7E00 | size >> 13 & 0x3FF);
#ifdef __CUDA_ARCH__
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return x != x ? nan : half;
#else
    if (x != x) return nan;
    uint32_t half;
    if (size >= 0x47800000) {
        half = 0x7C00;  // 65536 and above
    } else if (size < 0x38800000) {
        // The spacing below 2^-14 is that of a float32 in [0.5, 1): adding 0.5 rounds.
        half = bits_of(float_of(size) + 0.5f) - 0x3F000000;
    } else {
        half = (size - 0x38000000 + 0xFFF + (size >> 13 & 1)) >> 13;
    }
    return static_cast<uint16_t>(bits >> 16 & 0x8000 | half);
#endif
}

/// The float16 of these bits as a float32, exact; a NaN becomes some NaN.
WINDROW_DEVICE float float_of_f16(uint16_t half) {
#ifdef __CUDA_ARCH__
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
    return x;
#else
    const uint32_t sign = (half & 0x8000u) << 16, fraction = half & 0x3FF, exponent = half >> 10 & 0x1F;
    if (exponent == 0x1F) return float_of(sign | 0x7F800000 | fraction << 13);
    if (exponent == 0) return float_of(sign | bits_of(static_cast<float>(fraction) * (1.0f / (1 << 24))));
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
#endif
}

/// The float16 of the low 16 bits as a float32, exact; a NaN is quieted.
WINDROW_DEVICE float from_f16(uint32_t half) {
    const float x = float_of_f16(static_cast<uint16_t>(half));
    return x != x ? float_of((half & 0x8000) << 16 | 0x7F800000 | kQuiet32 | (half & 0x3FF) << 13) : x;
}

/// The bits of a number as a bfloat16, rounded to nearest even; a NaN is quieted and keeps its sign and the top of its
/// payload.
WINDROW_DEVICE uint16_t to_bf16(float x) {
    uint32_t bits = bits_of(x);
    bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
    uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return static_cast<uint16_t>(is_nan ? bits >> 16 | 0x40 : rounded);
}

/// The bfloat16 of the low 16 bits as a float32, exact; a NaN is quieted.
WINDROW_DEVICE float from_bf16(uint32_t bits) {
    bits <<= 16;
    return float_of(bits | ((bits & 0x7FFFFFFF) > 0x7F800000 ? kQuiet32 : 0));
}

WINDROW_DEVICE bool is_float8(uint8_t dtype) { return dtype == kF8E4M3FN || dtype == kF8E5M2; }

/// The rule of float8_e4m3fn and float8_e5m2, of one of them as the program runs: casts have one loop for both. A float8 without
/// its sign is the upper bits of a float32 that is 2^120 or 2^112 times smaller, subnormal numbers included.
struct Float8 {
    uint32_t lost;      ///< bits of a float32 that are beyond the fraction
    uint32_t down;      ///< from a number to the float32 whose upper bits are its code, as a factor: bits of a float32
    uint32_t infinity;  ///< the code behind the largest number: of e4m3fn, which has no infinities, its NaN
    uint32_t limit;     ///< bits of the largest float32 that is rounded to a finite number

    WINDROW_DEVICE explicit Float8(uint8_t dtype)
        : lost(dtype == kF8E4M3FN ? 20 : 21), down((127u - (dtype == kF8E4M3FN ? 120 : 112)) << 23), infinity(dtype == kF8E4M3FN ? 0x7F : 0x7C),
          limit(dtype == kF8E4M3FN ? 0x43E80000 : 0x476FFFFF) {}

    /// The code of a magnitude within `limit`, to nearest even, in the bits from `lost` on; other magnitudes give a larger one.
    /// The bits below `lost` have any value. `is_short`: numbers have 12 bits of fraction at most.
    template <bool is_short = false>
    WINDROW_DEVICE uint32_t rounded(float x) const {
        uint32_t size = bits_of(x) & 0x7FFFFFFF;
        // Rounded to odd, as the product loses bits of what becomes subnormal.
        if (!is_short) size = (size | ((size & 0xFFF) + 0xFFF)) & ~0xFFFu;
        const uint32_t small = bits_of(float_of(size) * float_of(down));
        return small + ((1u << (lost - 1)) - 1 + (small >> lost & 1));
    }

    /// The code in place of a number beyond `limit`, or of a NaN, which keeps its sign alone.
    WINDROW_DEVICE uint32_t special(float x, bool saturates) const {
        return bits_of(x) >> 24 & 0x80 | (x != x ? infinity | 2 : infinity - saturates);
    }

    /// The code of any number, sign included, to nearest even.
    WINDROW_DEVICE uint32_t code_of(float x, bool saturates) const {
        const bool is_within = fabsf(x) <= float_of(limit);
        return is_within ? bits_of(x) >> 24 & 0x80 | rounded(x) >> lost : special(x, saturates);
    }

    /// Exact; a NaN has no payload.
    WINDROW_DEVICE float value(uint32_t bits) const {
        const uint32_t code = bits & 0x7F, up = (254u << 23) - down;
        const uint32_t finite = bits_of(float_of(code << lost) * float_of(up)), special = code == 0x7C ? 0x7F800000 : 0x7FC00000;
        return float_of((bits & 0x80) << 24 | (code < infinity ? finite : special));
    }
};

/// The code of a number in the float8 that `result` names, with kSaturate.
WINDROW_DEVICE uint32_t to_float8(float x, uint8_t result) {
    return Float8(result & ~kSaturate).code_of(x, (result & kSaturate) != 0);
}

/// x * a + b, rounded once. A NaN is x quieted, or that of x86 if the operation made it; a and b
/// are none.
WINDROW_DEVICE float multiply_add(float x, float a, float b) {
    const float y = fmaf(x, a, b);
    const uint32_t nan = x != x ? bits_of(x) | kQuiet32 : 0xFFC00000;
    return y != y ? float_of(nan) : y;
}

WINDROW_DEVICE double multiply_add(double x, double a, double b) {
    const double y = fma(x, a, b);
    const uint64_t nan = x != x ? bits_of(x) | kQuiet64 : 0xFFF8000000000000;
    return y != y ? double_of(nan) : y;
}

/// Rounds to an integer of type T toward zero; numbers beyond its range become its limits, NaN becomes 0. `Wide` holds
/// every value of T.
template <class T, class Wide, class Float>
WINDROW_DEVICE uint64_t truncated(Float x) {
    constexpr bool is_signed = static_cast<T>(-1) < static_cast<T>(0);
    constexpr int bits = 8 * sizeof(T) - is_signed;
    constexpr uint64_t most = ~0ull >> (64 - bits);
#ifdef __CUDA_ARCH__
    // The device's conversions stop at the limits of 32 and 64 bits. NaN becomes 0 in some of them.
    constexpr bool is_float = sizeof(Float) == 4;
    if (!(is_float && sizeof(T) <= 4) && x != x) return 0;
    if constexpr (sizeof(T) == 8) {
        if (is_signed) return static_cast<uint64_t>(is_float ? __float2ll_rz(x) : __double2ll_rz(x));
        return is_float ? __float2ull_rz(x) : __double2ull_rz(x);
    } else if constexpr (is_signed) {
        const int32_t whole = is_float ? __float2int_rz(x) : __double2int_rz(x);
        constexpr int32_t high = static_cast<int32_t>(most), low = -high - 1;
        return static_cast<uint64_t>(static_cast<int64_t>(whole < low ? low : whole > high ? high : whole));
    } else {
        const uint32_t whole = is_float ? __float2uint_rz(x) : __double2uint_rz(x);
        return whole < most ? whole : static_cast<uint32_t>(most);
    }
#else
    const Float limit = static_cast<Float>(1ull << (bits - 1)) * 2;  // 2^bits
    if (!(x > (is_signed ? -limit : static_cast<Float>(0)))) {
        return x == x && is_signed ? ~most : 0;
    }
    return x >= limit ? most : static_cast<uint64_t>(static_cast<Wide>(x));
#endif
}

/// The value of a dtype's bits (kIsWhole: bool and integers; kIsPlain: those whose bits are their value): `wrapped` modulo 2^64
/// (bool and integers), `single` rounded to float32, `loose` the same but for which NaN a NaN becomes, `odd` rounded to odd,
/// `wide` rounded to float64; and `from`, the way back: rounded once to nearest even, to an integer toward zero and saturated.
template <uint8_t dtype>
struct Number;

/// An unsigned integer of this many bytes.
template <int bytes>
struct WordOf;
template <> struct WordOf<1> { using Type = uint8_t; };
template <> struct WordOf<2> { using Type = uint16_t; };
template <> struct WordOf<4> { using Type = uint32_t; };
template <> struct WordOf<8> { using Type = uint64_t; };
template <> struct WordOf<16> { using Type = Vec16; };

template <class T, class Wide>
struct Integer {
    using Bits = typename WordOf<sizeof(T)>::Type;
    static constexpr bool kIsWhole = true, kIsPlain = static_cast<T>(-1) > static_cast<T>(0);
    static WINDROW_DEVICE uint64_t wrapped(uint64_t bits) {
        return static_cast<uint64_t>(static_cast<Wide>(static_cast<T>(bits)));
    }
    static WINDROW_DEVICE float single(uint64_t bits) {
        return static_cast<float>(static_cast<T>(bits));
    }
    static WINDROW_DEVICE float loose(uint64_t bits) { return single(bits); }
    static WINDROW_DEVICE float odd(uint64_t bits) {
        if (sizeof(T) < 4) {
            return single(bits);
        }
        const uint64_t x = wrapped(bits), sign = kIsPlain ? 0 : 0 - (x >> 63);
        const auto size = static_cast<typename WordOf<sizeof(T) < 4 ? 4 : sizeof(T)>::Type>((x ^ sign) - sign);
        return float_of(bits_of(to_odd(size)) | static_cast<uint32_t>(sign) & 0x80000000);
    }
    static WINDROW_DEVICE double wide(uint64_t bits) {
        return static_cast<double>(static_cast<T>(bits));
    }
    using Cast = decltype(T() + 0);  // int for the narrow ones
    static WINDROW_DEVICE uint64_t from(float x) { return truncated<T, Cast>(x); }
    static WINDROW_DEVICE uint64_t from(double x) { return truncated<T, Cast>(x); }
};

template <> struct Number<kI8> : Integer<int8_t, int64_t> {};
template <> struct Number<kI16> : Integer<int16_t, int64_t> {};
template <> struct Number<kI32> : Integer<int32_t, int64_t> {};
template <> struct Number<kI64> : Integer<int64_t, int64_t> {};
template <> struct Number<kU8> : Integer<uint8_t, uint64_t> {};
template <> struct Number<kU16> : Integer<uint16_t, uint64_t> {};
template <> struct Number<kU32> : Integer<uint32_t, uint64_t> {};
template <> struct Number<kU64> : Integer<uint64_t, uint64_t> {};

/// Any byte but zero is true, and any number but zero, NaN too.
template <>
struct Number<kBool> {
    using Bits = uint8_t;
    static constexpr bool kIsWhole = true, kIsPlain = false;
    static WINDROW_DEVICE uint64_t wrapped(uint64_t bits) { return (bits & 0xFF) != 0; }
    static WINDROW_DEVICE float single(uint64_t bits) { return wrapped(bits) ? 1.0f : 0.0f; }
    static WINDROW_DEVICE float loose(uint64_t bits) { return single(bits); }
    static WINDROW_DEVICE float odd(uint64_t bits) { return single(bits); }
    static WINDROW_DEVICE double wide(uint64_t bits) { return wrapped(bits) ? 1.0 : 0.0; }
    static WINDROW_DEVICE uint64_t from(float x) { return x != 0; }
    static WINDROW_DEVICE uint64_t from(double x) { return x != 0; }
};

template <int bytes>
struct Floating {
    using Bits = typename WordOf<bytes>::Type;
    static constexpr bool kIsWhole = false;
    /// The functions are never called: branches that are compiled for all dtypes need them.
    static WINDROW_DEVICE uint64_t wrapped(uint64_t) { return 0; }
};

template <>
struct Number<kF16> : Floating<2> {
    static WINDROW_DEVICE float single(uint64_t bits) { return from_f16(bits & 0xFFFF); }
    static WINDROW_DEVICE float loose(uint64_t bits) { return float_of_f16(static_cast<uint16_t>(bits)); }
    static WINDROW_DEVICE float odd(uint64_t bits) { return single(bits); }
    static WINDROW_DEVICE double wide(uint64_t bits) { return widen(single(bits)); }
    static WINDROW_DEVICE uint64_t from(float x) { return to_f16(x); }
    static WINDROW_DEVICE uint64_t from(double x) { return to_f16(to_odd(x)); }
};

template <>
struct Number<kBF16> : Floating<2> {
    static WINDROW_DEVICE float single(uint64_t bits) { return from_bf16(bits & 0xFFFF); }
    static WINDROW_DEVICE float loose(uint64_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }
    static WINDROW_DEVICE float odd(uint64_t bits) { return single(bits); }
    static WINDROW_DEVICE double wide(uint64_t bits) { return widen(single(bits)); }
    static WINDROW_DEVICE uint64_t from(float x) { return to_bf16(x); }
    static WINDROW_DEVICE uint64_t from(double x) { return to_bf16(to_odd(x)); }
};

template <>
struct Number<kF32> : Floating<4> {
    static WINDROW_DEVICE float single(uint64_t bits) {
        return float_of(static_cast<uint32_t>(bits));
    }
    static WINDROW_DEVICE float loose(uint64_t bits) { return single(bits); }
    static WINDROW_DEVICE float odd(uint64_t bits) { return single(bits); }
    static WINDROW_DEVICE double wide(uint64_t bits) { return widen(single(bits)); }
    static WINDROW_DEVICE uint64_t from(float x) { return bits_of(x); }
    static WINDROW_DEVICE uint64_t from(double x) { return bits_of(narrow(x)); }
};

template <>
struct Number<kF64> : Floating<8> {
    static WINDROW_DEVICE float single(uint64_t bits) { return narrow(double_of(bits)); }
    static WINDROW_DEVICE float odd(uint64_t bits) { return to_odd(double_of(bits)); }
    static WINDROW_DEVICE double wide(uint64_t bits) { return double_of(bits); }
    static WINDROW_DEVICE uint64_t from(float x) { return bits_of(widen(x)); }
    static WINDROW_DEVICE uint64_t from(double x) { return bits_of(x); }
};

/// Calls `f` with the Number of an arithmetic dtype but float8; any other dtype is undefined behaviour.
template <class F>
WINDROW_DEVICE void with_number(uint8_t dtype, const F& f) {
    switch (dtype) {
        case kBool: return f(Number<kBool>());
        case kI8: return f(Number<kI8>());
        case kI16: return f(Number<kI16>());
        case kI32: return f(Number<kI32>());
        case kI64: return f(Number<kI64>());
        case kU8: return f(Number<kU8>());
        case kU16: return f(Number<kU16>());
        case kU32: return f(Number<kU32>());
        case kU64: return f(Number<kU64>());
        case kF16: return f(Number<kF16>());
        case kBF16: return f(Number<kBF16>());
        case kF32: return f(Number<kF32>());
        case kF64: return f(Number<kF64>());
        default: __builtin_unreachable();
    }
}

/// Whether a dtype is bool or an integer.
WINDROW_DEVICE bool is_integral(uint8_t dtype) { return dtype <= kU64; }
/// Whether a dtype is float16 or bfloat16.
WINDROW_DEVICE bool is_half(uint8_t dtype) { return dtype == kF16 || dtype == kBF16; }

/// Whether a conversion without float64 needs rounding to odd. To float16 it does not: integers that float32 rounds are beyond
/// its range.
WINDROW_DEVICE bool is_rare(uint8_t from, uint8_t to, bool mapped) {
    const bool is_long = from == kI32 || from == kI64 || from == kU32 || from == kU64;
    return is_long && to == kBF16 && !mapped;
}

/// The affine map of a field: a[channels], then b[channels], float64 if either dtype is.
struct Affine {
    const uint8_t* a;  ///< null: none
    uint32_t channels;

    /// Coefficient `index` of those from `a` on.
    template <class T>
    WINDROW_DEVICE T get(uint32_t index) const {
        return reinterpret_cast<const T*>(a)[index];
    }

    /// A number through the pair of a channel, which is below `channels`; without a map as it is.
    template <class T>
    WINDROW_DEVICE T apply(T x, uint32_t channel) const {
        return a == nullptr ? x : multiply_add(x, get<T>(channel), get<T>(channel + channels));
    }
};

/// Converts one element. `result`: its dtype, with kSaturate. Bits above the element are ignored, and have any value in the
/// result.
WINDROW_OUT_OF_LINE uint64_t convert_one(uint64_t bits, uint8_t from, uint8_t result, Affine affine, uint32_t channel) {
    const uint8_t to = result & ~kSaturate;
    const bool mapped = affine.a != nullptr;
    if (!mapped && from == to) return bits;
    if (is_float8(from)) {
        bits = bits_of(Float8(from).value(static_cast<uint32_t>(bits)));
        from = kF32;
    }
    if (!mapped && is_integral(from) && is_integral(to)) {
        with_number(from, [&](auto number) { bits = number.wrapped(bits); });
        return to == kBool ? bits != 0 : bits;
    }
    if (from == kF64 || to == kF64) {
        double x = 0;
        with_number(from, [&](auto number) { x = number.wide(bits); });
        x = affine.apply(x, channel);
        if (is_float8(to)) return to_float8(to_odd(x), result);
        with_number(to, [&](auto number) { bits = number.from(x); });
        return bits;
    }
    float x = 0;
    if (is_rare(from, to, mapped)) {
        with_number(from, [&](auto number) { x = number.odd(bits); });
    } else {
        with_number(from, [&](auto number) { x = number.single(bits); });
    }
    x = affine.apply(x, channel);
    if (is_float8(to)) return to_float8(x, result);
    with_number(to, [&](auto number) { bits = number.from(x); });
    return bits;
}

}  // namespace windrow
