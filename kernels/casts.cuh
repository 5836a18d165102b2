// Casts of adjacent elements, 16 bytes of output at once: the bits of convert.cuh, for the pairs of dtypes
// that have a loop of their own. The vector() of a cast makes a vector of output from the words that its elements are in.
#pragma once

#include "packing.cuh"

namespace windrow {

/// Bytes of an element.
template <uint8_t dtype>
constexpr uint32_t kSize = dtype == kBool || dtype == kI8 || dtype == kU8 || dtype == kF8E4M3FN || dtype == kF8E5M2 ? 1
                           : dtype == kI16 || dtype == kU16 || dtype == kF16 || dtype == kBF16 ? 2
                           : dtype == kI32 || dtype == kU32 || dtype == kF32                   ? 4
                                                                                               : 8;
template <uint8_t dtype>
constexpr bool kSigned = dtype == kI8 || dtype == kI16 || dtype == kI32 || dtype == kI64;

template <uint8_t dtype>
constexpr bool kFloat8 = dtype == kF8E4M3FN || dtype == kF8E5M2;

/// Casts that also have a loop for aligned sources alone.
template <uint8_t from, uint8_t to, bool affine>
constexpr bool kCommon = (from == kI32 && to == kI64) || (from == kI64 && to == kI32) || (from == kU8 && (to == kF16 || to == kF32)) ||
                         (!affine && ((from == kI16 && to == kF32) || (from == kF32 && (to == kF16 || to == kBF16)) ||
                                      (to == kF32 && (from == kF16 || from == kBF16)) ||
                                      (from == kF64 && (to == kF16 || to == kBF16)))) ||
                         (kFloat8<to> && (from == kF32 || from == kBF16)) || (kFloat8<from> && to == kBF16);

/// The bits of element `i` of a window, `size` bytes each.
template <uint32_t size>
WINDROW_DEVICE uint64_t element_of(const uint32_t* in, uint32_t i) {
    if constexpr (size == 8) {
        return in[2 * i] | static_cast<uint64_t>(in[2 * i + 1]) << 32;
    } else {
        const uint32_t byte = i * size;
        return in[byte / 4] >> (8 * (byte % 4)) & (size == 4 ? ~0u : (1u << (8 * (size % 4))) - 1);
    }
}

/// The sizes of a cast: kElems elements, read from kWords words, are a vector of output.
template <uint8_t from, uint8_t to, bool affine>
struct Pair {
    static constexpr uint32_t kFrom = kSize<from>, kTo = kSize<to>, kElems = 16 / kTo;
    static constexpr uint32_t kWords = (kElems * kFrom + 3) / 4;
    static constexpr bool kIsCommon = kCommon<from, to, affine>;

    static WINDROW_DEVICE uint64_t bits_at(const uint32_t (&in)[kWords], uint32_t i) { return element_of<kFrom>(in, i); }

    /// Puts the bits of element `i`, with zeros above them if it has fewer than 4 bytes, into a vector of zeros.
    static WINDROW_DEVICE void put(uint64_t bits, uint32_t i, uint32_t (&out)[4]) {
        if constexpr (kTo == 8) {
            out[2 * i] = static_cast<uint32_t>(bits);
            out[2 * i + 1] = static_cast<uint32_t>(bits >> 32);
        } else {
            const uint32_t byte = i * kTo;
            out[byte / 4] |= static_cast<uint32_t>(bits) << (8 * (byte % 4));
        }
    }
};

/// Whether one of the numbers, `n` even, is NaN; two opposite infinities may pass for one.
template <uint32_t n>
WINDROW_DEVICE bool any_nan(const float (&x)[n]) {
    bool found = false;
#pragma unroll
    for (uint32_t i = 0; i < n; i += 2) {
        const float sum = x[i] + x[i + 1];
        found = found || sum != sum;
    }
    return found;
}

/// Integers to integers of 32 or 64 bits, by the low bits of the source extended by its sign.
template <uint8_t from, uint8_t to, bool affine>
struct Integers : Pair<from, to, affine> {
    using Base = Pair<from, to, affine>;
    WINDROW_DEVICE Integers(const Affine&, uint32_t) {}
    WINDROW_DEVICE void vector(const uint32_t (&in)[Base::kWords], uint32_t (&out)[4]) const {
#pragma unroll
        for (uint32_t i = 0; i < Base::kElems; ++i) {
            uint32_t low;
            if constexpr (Base::kFrom >= 4) {
                low = in[i * Base::kFrom / 4];
            } else {
                low = static_cast<uint32_t>(Number<from>::wrapped(Base::bits_at(in, i)));
            }
            if constexpr (Base::kTo == 4) {
                out[i] = low;
            } else {
                out[2 * i] = low;
                out[2 * i + 1] = kSigned<from> ? static_cast<uint32_t>(static_cast<int32_t>(low) >> 31) : 0;
            }
        }
    }
};

/// Integers of 8 and 16 bits to floats of 16 and 32 bits. Coefficients are finite, so x * a + b is never
/// NaN; without a map they are 1 and 0, which changes no bit.
template <uint8_t from, uint8_t to, bool affine>
struct SmallIntegers : Pair<from, to, affine> {
    using Base = Pair<from, to, affine>;
    float a = 1, b = 0;
    WINDROW_DEVICE SmallIntegers(const Affine& map, uint32_t) {
        if (affine && map.a != nullptr) a = map.get<float>(0), b = map.get<float>(map.channels);
    }
    WINDROW_DEVICE void vector(const uint32_t (&in)[Base::kWords], uint32_t (&out)[4]) const {
        if constexpr (Base::kFrom == 1 && to == kF16 && !affine) {
#pragma unroll
            for (uint32_t i = 0; i < 4; ++i) out[i] = bytes_as_f16<kSigned<from>>(in[i / 2], i % 2);
        } else {
            float x[Base::kElems];
#pragma unroll
            for (uint32_t i = 0; i < Base::kElems; ++i) {
                x[i] = Base::kFrom == 1 ? byte_as_float<kSigned<from>>(in, i) : half_as_float<kSigned<from>>(in, i);
                if (affine) x[i] = fmaf(x[i], a, b);
            }
            pack<to>(x, out);
        }
    }
};

/// Number `i` of some words, a float16, bfloat16, float32 or uint8, as a float32. A NaN may become another one.
template <uint8_t from>
WINDROW_DEVICE float number_at(const uint32_t* in, uint32_t i) {
    if constexpr (from == kU8) return byte_as_float<false>(in, i);
    if constexpr (from == kF32) return float_of(in[i]);
    if constexpr (from == kBF16) return float_of(i % 2 ? in[i / 2] & 0xFFFF0000 : in[i / 2] << 16);
    return float_of_f16(static_cast<uint16_t>(in[i / 2] >> (16 * (i % 2))));
}

/// Floats to floats of 16 and 32 bits. A vector with a NaN is made again element by element, since only
/// the rules of convert.cuh keep its payload.
template <uint8_t from, uint8_t to, bool affine>
struct Floats : Pair<from, to, affine> {
    using Base = Pair<from, to, affine>;
    float a = 1, b = 0;
    WINDROW_DEVICE Floats(const Affine& map, uint32_t) {
        if (affine && map.a != nullptr) a = map.get<float>(0), b = map.get<float>(map.channels);
    }
    WINDROW_DEVICE void vector(const uint32_t (&in)[Base::kWords], uint32_t (&out)[4]) const {
        float x[Base::kElems];
#pragma unroll
        for (uint32_t i = 0; i < Base::kElems; ++i) {
            x[i] = number_at<from>(in, i);
            if (affine) x[i] = fmaf(x[i], a, b);
        }
        bool has_nan = false;
        if constexpr (!affine && from != kF32) {
            // Two at a time: the exponent's carry reaches the sign.
            constexpr uint32_t kCarry = from == kBF16 ? 0x007F007F : 0x03FF03FF;
            uint32_t carried = 0;
#pragma unroll
            for (uint32_t i = 0; i < Base::kWords; ++i) carried |= (in[i] & 0x7FFF7FFF) + kCarry;
            has_nan = (carried & 0x80008000) != 0;
        } else {
            has_nan = any_nan(x);
        }
        pack<to>(x, out);
        if (has_nan) {
            out[0] = out[1] = out[2] = out[3] = 0;
#pragma unroll
            for (uint32_t i = 0; i < Base::kElems; ++i) {
                float one = Number<from>::single(Base::bits_at(in, i));
                if (affine) one = multiply_add(one, a, b);
                Base::put(Number<to>::from(one), i, out);
            }
        }
    }
};

/// Floats, and bytes, to float8. Numbers that pack_float8() has no codes of get theirs one by one.
template <uint8_t from, uint8_t to, bool affine>
struct ToFloat8 : Pair<from, to, affine> {
    using Base = Pair<from, to, affine>;
    float a = 1, b = 0, limit;
    bool saturates;
    WINDROW_DEVICE ToFloat8(const Affine& map, uint32_t result) : saturates((result & kSaturate) != 0) {
        if (affine && map.a != nullptr) a = map.get<float>(0), b = map.get<float>(map.channels);
        limit = packed_limit(to, saturates);
    }
    WINDROW_DEVICE void vector(const uint32_t (&in)[Base::kWords], uint32_t (&out)[4]) const {
        float x[Base::kElems];
#pragma unroll
        for (uint32_t i = 0; i < Base::kElems; ++i) {
            x[i] = number_at<from>(in, i);
            if (affine) x[i] = fmaf(x[i], a, b);
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            uint32_t signs;
            if constexpr (Base::kFrom == 2) signs = high_bytes_of(in[2 * i], in[2 * i + 1]);
            else signs = signs_of(x + 4 * i);
            out[i] = pack_float8<!affine && from != kF32>(to, x + 4 * i, signs);
        }
        if constexpr (Base::kFrom == 2) {
            if (pairs_within(in, packed_limit_16(from, to, saturates))) return;
        } else {
            if (all_within(x, limit)) return;
        }
#pragma unroll
        for (uint32_t i = 0; i < Base::kElems; ++i) {
            // The widening of a float16 loses a NaN's sign.
            const float one = from == kF16 ? from_f16(static_cast<uint32_t>(Base::bits_at(in, i))) : x[i];
            const uint32_t shift = 8 * (i % 4), code = Float8(to).special(one, saturates);
            if (!(fabsf(x[i]) <= limit)) out[i / 4] = (out[i / 4] & ~(0xFFu << shift)) | code << shift;
        }
    }
};

/// Float8 to floats of 16 and 32 bits: any number by float16, which has all of them. NaN are put in one by one.
template <uint8_t from, uint8_t to, bool affine>
struct FromFloat8 : Pair<from, to, affine> {
    using Base = Pair<from, to, affine>;
    WINDROW_DEVICE FromFloat8(const Affine&, uint32_t) {}
    WINDROW_DEVICE void vector(const uint32_t (&in)[Base::kWords], uint32_t (&out)[4]) const {
        float x[Base::kElems];
        uint32_t carried = 0;
#pragma unroll
        for (uint32_t i = 0; i < Base::kElems; i += 2) {
            const uint32_t pair = unpack_float8(from, in[i / 4], i % 4 != 0);
            if (to == kF16) out[i / 2] = pair;
            else unpack_f16(pair, x[i], x[i + 1]);
        }
        if (to != kF16) pack<to>(x, out);
        // Four at a time: what is behind the last number carries into the sign.
#pragma unroll
        for (uint32_t i = 0; i < Base::kWords; ++i) carried |= (in[i] & 0x7F7F7F7F) + (from == kF8E4M3FN ? 0x01010101 : 0x03030303);
        if ((carried & 0x80808080) == 0) return;
#pragma unroll
        for (uint32_t i = 0; i < Base::kElems; ++i) {
            const auto code = static_cast<uint32_t>(Base::bits_at(in, i));
            if ((code & 0x7F) <= (from == kF8E4M3FN ? 0x7E : 0x7C)) continue;
            const uint32_t nan = (code & 0x80) << 24 | (to == kF16 ? 0x7E000000 : 0x7FC00000);
            if (Base::kTo == 4) out[i] = nan;
            else out[i / 2] = i % 2 ? (out[i / 2] & 0xFFFF) | nan : (out[i / 2] & 0xFFFF0000) | nan >> 16;
        }
    }
};

/// to_odd() but for NaN, which stays some NaN: one rounding toward zero instead of a correction.
WINDROW_DEVICE float toward_odd(double x) {
#ifdef __CUDA_ARCH__
    const float down = __double2float_rz(x);
    return float_of(bits_of(down) | (static_cast<double>(down) != x));
#else
    return to_odd(x);
#endif
}

/// Pairs with a float64 on one side, with float64 arithmetic.
template <uint8_t from, uint8_t to, bool affine>
struct Doubles : Pair<from, to, affine> {
    using Base = Pair<from, to, affine>;
    double a = 1, b = 0;
    WINDROW_DEVICE Doubles(const Affine& map, uint32_t) {
        if (affine) a = map.get<double>(0), b = map.get<double>(map.channels);
    }
    WINDROW_DEVICE void vector(const uint32_t (&in)[Base::kWords], uint32_t (&out)[4]) const {
        bool has_nan = false;
        if constexpr (to == kF16 || to == kBF16) {
            float x[Base::kElems];
#pragma unroll
            for (uint32_t i = 0; i < Base::kElems; ++i) {
                const double wide = double_of(Base::bits_at(in, i));
                x[i] = toward_odd(affine ? fma(wide, a, b) : wide);
            }
            has_nan = any_nan(x);
            pack<to>(x, out);
        }
        if ((to != kF16 && to != kBF16) || has_nan) {
            out[0] = out[1] = out[2] = out[3] = 0;
#pragma unroll
            for (uint32_t i = 0; i < Base::kElems; ++i) {
                double x = Number<from>::wide(Base::bits_at(in, i));
                if (affine) x = multiply_add(x, a, b);
                Base::put(Number<to>::from(x), i, out);
            }
        }
    }
};

/// Adds the same number to whole numbers of 32 or 64 bits.
template <uint8_t dtype>
struct Add : Pair<dtype, dtype, false> {
    using Base = Pair<dtype, dtype, false>;
    uint64_t by;
    WINDROW_DEVICE explicit Add(const Affine& map) : by(map.get<uint64_t>(0)) {}
    WINDROW_DEVICE void vector(const uint32_t (&in)[4], uint32_t (&out)[4]) const {
        out[0] = out[1] = out[2] = out[3] = 0;
#pragma unroll
        for (uint32_t i = 0; i < Base::kElems; ++i) Base::put(Base::bits_at(in, i) + by, i, out);
    }
};

/// Bytes are moved: equal dtypes without a map, or integers of one size.
constexpr uint8_t kMovedLoop = 0;

/// The number of a loop: of a pair of dtypes, with or without x * a + b; kMovedLoop if the pair is not in the list.
/// Numbers have no gaps, so that the compiler makes a table of jumps.
WINDROW_DEVICE constexpr uint8_t cast_number(uint32_t from, uint32_t to, bool affine) {
    uint8_t number = kMovedLoop;
#define WINDROW_CAST(cast, pair_from, pair_to, pair_affine) \
    ++number;                                               \
    if (from == pair_from && to == pair_to && affine == pair_affine) return number;
#include "cast_table.h"
#undef WINDROW_CAST
    return kMovedLoop;
}

/// The loops that add a number to whole ones, behind those of all casts.
#define WINDROW_CAST(cast, from, to, affine) +1
constexpr uint8_t kAddLoop32 = 1
#include "cast_table.h"
    ;
#undef WINDROW_CAST
constexpr uint8_t kAddLoop64 = kAddLoop32 + 1;

}  // namespace windrow
