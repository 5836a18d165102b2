// Integers as floats, and floats in 16 bits, several at once. A NaN loses its payload here: callers see to it.
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

/// The low `bytes` bytes of a word, and behind them those of another: 1 or 2.
template <uint32_t bytes>
WINDROW_DEVICE uint32_t pair_of(uint32_t low, uint32_t high) {
#ifdef __CUDA_ARCH__
    return __byte_perm(low, high, bytes == 1 ? 0x7740 : 0x5410);
#else
    constexpr uint32_t kMask = (1u << 8 * bytes) - 1;
    return (low & kMask) | (high & kMask) << (8 * bytes);
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

/// The same for the 16-bit integer `i` of some words.
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
