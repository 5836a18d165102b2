// Integers as floats, and floats in 16 and 8 bits, several at once. A NaN loses its payload or sign here: callers see to it.
#pragma once

#include "convert.cuh"

namespace windrow {

/// Two float32 as two float16, each rounded to nearest even.
WINDROW_DEVICE uint32_t pack_f16(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return to_f16(low) | static_cast<uint32_t>(to_f16(high)) << 16;
#endif
}

/// Two float32 as two bfloat16, each rounded to nearest even.
WINDROW_DEVICE uint32_t pack_bf16(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return to_bf16(low) | static_cast<uint32_t>(to_bf16(high)) << 16;
#endif
}

/// 16 bytes of float16, bfloat16 or float32 from 8, 8 or 4 numbers.
template <uint8_t dtype>
WINDROW_DEVICE void pack(const float* x, uint32_t (&out)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out[i] = dtype == kF16    ? pack_f16(x[2 * i], x[2 * i + 1])
                 : dtype == kBF16 ? pack_bf16(x[2 * i], x[2 * i + 1])
                                  : bits_of(x[i]);
    }
}

/// The high bytes of both halves of a word, and of another.
WINDROW_DEVICE uint32_t high_bytes_of(uint32_t low, uint32_t high) {
#ifdef __CUDA_ARCH__
    return __byte_perm(low, high, 0x7531);
#else
    return (low >> 8 & 0xFF) | (low >> 24) << 8 | (high >> 8 & 0xFF) << 16 | (high >> 24) << 24;
#endif
}

/// The low `bytes` bytes of a word, 1 or 2, and behind them those of another; of 1, the upper half of the result has any value.
template <uint32_t bytes>
WINDROW_DEVICE uint32_t pair_of(uint32_t low, uint32_t high) {
#ifdef __CUDA_ARCH__
    return __byte_perm(low, high, bytes == 1 ? 0x7740 : 0x5410);
#else
    constexpr uint32_t kMask = (1u << 8 * bytes) - 1;
    return (low & kMask) | (high & kMask) << (8 * bytes);
#endif
}

/// The highest bytes of two words and of two more, in a word.
WINDROW_DEVICE uint32_t tops_of(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
#ifdef __CUDA_ARCH__
    return __byte_perm(__byte_perm(a, b, 0x0073), __byte_perm(c, d, 0x0073), 0x5410);
#else
    return a >> 24 | b >> 24 << 8 | c >> 24 << 16 | d >> 24 << 24;
#endif
}

/// Two halves of a word, of which each has a float16, as float32.
WINDROW_DEVICE void unpack_f16(uint32_t pair, float& low, float& high) {
#ifdef __CUDA_ARCH__
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }" : "=f"(low), "=f"(high) : "r"(pair));
#else
    low = float_of_f16(static_cast<uint16_t>(pair));
    high = float_of_f16(static_cast<uint16_t>(pair >> 16));
#endif
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define WINDROW_CASTS_FLOAT8 1
#else
#define WINDROW_CASTS_FLOAT8 0
#endif

/// The largest magnitude that pack_float8() has the code of: all of them where its instructions saturate and that is asked for.
WINDROW_DEVICE float packed_limit(uint8_t dtype, bool saturates) {
    return float_of(WINDROW_CASTS_FLOAT8 && saturates ? 0x7F800000 : Float8(dtype).limit);
}

/// The limit of packed_limit() as the bits of a float of 16 bits, `from`. The largest bfloat16 do not count as within:
/// see pairs_within().
WINDROW_DEVICE uint32_t packed_limit_16(uint8_t from, uint8_t dtype, bool saturates) {
    const uint32_t limit = Float8(dtype).limit;
    if (WINDROW_CASTS_FLOAT8 && saturates) return from == kBF16 ? 0x7BFF : 0x7C00;
    return from == kBF16 ? limit >> 16 : (limit - (112u << 23)) >> 13;
}

/// The signs of four numbers, in the highest bits of bytes, whose other bits have any value.
WINDROW_DEVICE uint32_t signs_of(const float* x) { return tops_of(bits_of(x[0]), bits_of(x[1]), bits_of(x[2]), bits_of(x[3])); }

/// Four float8, each rounded to nearest even: by instructions on sm_89 and later. `is_short`: as in Float8::rounded(); `signs`: as of
/// signs_of(), which the instructions do not need.
template <bool is_short>
WINDROW_DEVICE uint32_t pack_float8(uint8_t dtype, const float* x, uint32_t signs) {
#if WINDROW_CASTS_FLOAT8
    uint32_t word;
    if (dtype == kF8E4M3FN) {
        asm("{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; cvt.rn.satfinite.e4m3x2.f32 high, %4, %3; mov.b32 %0, {low, high}; }"
            : "=r"(word) : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]));
    } else {
        asm("{ .reg .b16 low, high; cvt.rn.satfinite.e5m2x2.f32 low, %2, %1; cvt.rn.satfinite.e5m2x2.f32 high, %4, %3; mov.b32 %0, {low, high}; }"
            : "=r"(word) : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]));
    }
    return word;
#else
    const Float8 format(dtype);
    auto code = [&](int i) { return format.rounded<is_short>(x[i]) << (24 - format.lost); };
    const uint32_t codes = tops_of(code(0), code(1), code(2), code(3));
    return (codes & 0x7F7F7F7F) | (signs & 0x80808080);
#endif
}

/// Two float8 of a word, the low or the high ones, as two float16, which have all of them but for NaN of e4m3fn.
WINDROW_DEVICE uint32_t unpack_float8(uint8_t dtype, uint32_t word, bool high) {
#ifdef __CUDA_ARCH__
    if (dtype == kF8E4M3FN && WINDROW_CASTS_FLOAT8) {
        uint32_t pair;
        asm("{ .reg .b16 two; cvt.u16.u32 two, %1; cvt.rn.f16x2.e4m3x2 %0, two; }" : "=r"(pair) : "r"(high ? word >> 16 : word));
        return pair;
    }
    // A float8_e5m2 is the upper byte of its float16, a float8_e4m3fn that of one 2^8 times smaller, but for a bit between sign and exponent.
    uint32_t pair = __byte_perm(word, 0, high ? 0x3424 : 0x1404);
    if (dtype == kF8E5M2) return pair;
    pair = (pair >> 1 & 0x3F803F80) | (pair & 0x80008000);
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(pair), "r"(0x5C005C00));
    return pair;
#else
    const Float8 format(dtype);
    const uint32_t two = high ? word >> 16 : word;
    return to_f16(format.value(two & 0xFF)) | static_cast<uint32_t>(to_f16(format.value(two >> 8 & 0xFF))) << 16;
#endif
}

/// Whether none of the numbers is beyond a limit or NaN.
template <uint32_t n>
WINDROW_DEVICE bool all_within(const float (&x)[n], float limit) {
#ifdef __CUDA_ARCH__
    float most = fabsf(x[0]);
#pragma unroll
    for (uint32_t i = 1; i < n; ++i) asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(most), "f"(fabsf(x[i])));
    return most <= limit;
#else
    bool within = true;
    for (uint32_t i = 0; i < n; ++i) within = within && fabsf(x[i]) <= limit;
    return within;
#endif
}

/// Whether none of the floats of 16 bits, two in each word, is beyond a limit or NaN; `limit` are the bits of one. The
/// sizes of bfloat16 are in the order of the float16 of these bits, of which the largest, above all limits, are NaN.
template <uint32_t n>
WINDROW_DEVICE bool pairs_within(const uint32_t (&words)[n], uint32_t limit) {
#ifdef __CUDA_ARCH__
    uint32_t most;
    asm("abs.f16x2 %0, %1;" : "=r"(most) : "r"(words[0]));
#pragma unroll
    for (uint32_t i = 1; i < n; ++i) asm("{ .reg .b32 size; abs.f16x2 size, %1; max.NaN.f16x2 %0, %0, size; }" : "+r"(most) : "r"(words[i]));
    return (most + (0x7FFF - limit) * 0x10001 & 0x80008000) == 0;
#else
    bool within = true;
    for (uint32_t i = 0; i < 2 * n; ++i) within = within && (words[i / 2] >> (16 * (i % 2)) & 0x7FFF) <= limit;
    return within;
#endif
}

/// Byte `i` of some words as a float32. nvcc makes three instructions of such a cast, one of them at an
/// eighth of the rate; this is two at full rate: the byte becomes the end of 2^23, which is subtracted.
/// A signed one is counted from -128.
template <bool is_signed>
WINDROW_DEVICE float byte_as_float(const uint32_t* words, uint32_t i) {
#ifdef __CUDA_ARCH__
    const uint32_t word = words[i / 4] ^ (is_signed ? 0x80808080u : 0);
    return __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7650 + i % 4)) - (is_signed ? 8388736.0f : 8388608.0f);
#else
    const uint32_t byte = words[i / 4] >> (8 * (i % 4)) & 0xFF;
    return is_signed ? static_cast<float>(static_cast<int8_t>(byte)) : static_cast<float>(byte);
#endif
}

/// The 16-bit integer `i` of some words as a float32, by the means of byte_as_float().
template <bool is_signed>
WINDROW_DEVICE float half_as_float(const uint32_t* words, uint32_t i) {
#ifdef __CUDA_ARCH__
    const uint32_t word = words[i / 2] ^ (is_signed ? 0x80008000u : 0);
    return __uint_as_float(__byte_perm(word, 0x4B000000u, i % 2 ? 0x7632 : 0x7610)) - (is_signed ? 8421376.0f : 8388608.0f);
#else
    const uint32_t half = words[i / 2] >> (16 * (i % 2)) & 0xFFFF;
    return is_signed ? static_cast<float>(static_cast<int16_t>(half)) : static_cast<float>(half);
#endif
}

/// Two bytes of a word, the low or the high ones, as two float16: at the end of 1024 they are 1024 + x,
/// exactly, and 1024 is subtracted; a signed one is counted from -128.
template <bool is_signed>
WINDROW_DEVICE uint32_t bytes_as_f16(uint32_t word, bool high) {
#ifdef __CUDA_ARCH__
    uint32_t pair, done;
    word ^= is_signed ? 0x80808080u : 0;
    asm("prmt.b32 %0, %1, 0x64646464, %2;" : "=r"(pair) : "r"(word), "r"(high ? 0x4342u : 0x4140u));
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(done) : "r"(pair), "r"(is_signed ? 0x64806480u : 0x64006400u));
    return done;
#else
    const uint32_t first = high ? 2 : 0;
    return pack_f16(byte_as_float<is_signed>(&word, first), byte_as_float<is_signed>(&word, first + 1));
#endif
}

}  // namespace windrow
