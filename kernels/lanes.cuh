// What the families share. A warp writes one piece: a run of output elements that are adjacent in memory.
//
// The first address of a piece that is a multiple of 16 begins its vectors; lane l writes vectors l, l + 32
// and so on. Lanes exchange nothing, so the host runs the same functions lane by lane.
#pragma once

#include "convert.cuh"
#include "memory.cuh"

namespace windrow {

constexpr uint32_t kLanes = 32;

WINDROW_DEVICE uint32_t minimum(uint32_t a, uint32_t b) { return a < b ? a : b; }

/// n / d for n and d below 2^31.
WINDROW_DEVICE uint32_t divide(uint32_t n, Divisor by) {
#ifdef __CUDA_ARCH__
    return (__umulhi(n, by.mul) + n) >> by.shift;
#else
    return (static_cast<uint32_t>(static_cast<uint64_t>(n) * by.mul >> 32) + n) >> by.shift;
#endif
}

/// Writes four words to a multiple of 16.
WINDROW_DEVICE void store_words(uint8_t* p, const uint32_t (&w)[4]) {
    store16(p, {w[0] | static_cast<uint64_t>(w[1]) << 32, w[2] | static_cast<uint64_t>(w[3]) << 32});
}

// ---- Windows: `bytes` adjacent bytes of a source in registers, from any address.

/// The alignment of the windows of a piece, the same for all its lanes.
enum Alignment : uint32_t {
    kAligned = 0,     ///< each begins at a multiple of the widest load that divides its size
    kMisaligned = 1,  ///< any other
};

/// The widest load of an aligned window.
template <uint32_t bytes>
constexpr uint32_t kWidest = bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : bytes;

/// The loads of a misaligned window: long windows by 8 bytes, since each load touches all sectors of the
/// warp's windows.
template <uint32_t bytes>
constexpr uint32_t kStep = bytes >= 24 && bytes % 8 == 0 ? 8 : 4;

/// Reads the window `skew` bytes behind `src`, which is aligned to kStep; 0 if kAligned. A misaligned
/// window is read in aligned words, one more than it fills: see reach_of().
template <Alignment alignment, uint32_t bytes>
WINDROW_DEVICE void read_window(const uint8_t* src, uint32_t skew, uint32_t (&w)[(bytes + 3) / 4]) {
    constexpr uint32_t kWords = (bytes + 3) / 4;
    if constexpr (alignment == kMisaligned) {
        constexpr uint32_t kRaw = kWords + kStep<bytes> / 4;
        uint32_t raw[kRaw + 1];
        if constexpr (kStep<bytes> == 8) {
#pragma unroll
            for (uint32_t i = 0; i < kRaw / 2; ++i) {
                const uint64_t v = load<uint64_t>(src + 8 * i);
                raw[2 * i] = static_cast<uint32_t>(v);
                raw[2 * i + 1] = static_cast<uint32_t>(v >> 32);
            }
#pragma unroll
            for (uint32_t i = 0; i <= kWords; ++i) raw[i] = skew & 4 ? raw[i + 1] : raw[i];
        } else {
#pragma unroll
            for (uint32_t i = 0; i < kRaw; ++i) raw[i] = load<uint32_t>(src + 4 * i);
        }
#pragma unroll
        for (uint32_t i = 0; i < kWords; ++i) w[i] = funnel(raw[i], raw[i + 1], 8 * (skew & 3));
    } else if constexpr (kWidest<bytes> == 16) {
#pragma unroll
        for (uint32_t i = 0; i < bytes / 16; ++i) {
            const Vec16 v = load16(src + 16 * i);
            w[4 * i] = static_cast<uint32_t>(v.lo);
            w[4 * i + 1] = static_cast<uint32_t>(v.lo >> 32);
            w[4 * i + 2] = static_cast<uint32_t>(v.hi);
            w[4 * i + 3] = static_cast<uint32_t>(v.hi >> 32);
        }
    } else if constexpr (kWidest<bytes> == 8) {
#pragma unroll
        for (uint32_t i = 0; i < bytes / 8; ++i) {
            const uint64_t v = load<uint64_t>(src + 8 * i);
            w[2 * i] = static_cast<uint32_t>(v);
            w[2 * i + 1] = static_cast<uint32_t>(v >> 32);
        }
    } else if constexpr (kWidest<bytes> == 4) {
#pragma unroll
        for (uint32_t i = 0; i < bytes / 4; ++i) w[i] = load<uint32_t>(src + 4 * i);
    } else {
        w[0] = load<uint16_t>(src);
    }
}

/// Bytes between the aligned address that read_window() starts from and `src`. Windows of a lane that are
/// a multiple of 32 bytes apart have the same.
template <Alignment alignment, uint32_t bytes>
WINDROW_DEVICE uint32_t skew_of(const uint8_t* src) {
    return alignment == kAligned ? 0 : misalignment(src, kStep<bytes>);
}

/// Bytes that read_window() touches in front of a window and behind it.
struct Reach {
    uint32_t before, after;
};

template <uint32_t bytes>
WINDROW_DEVICE Reach reach_of(Alignment alignment, const uint8_t* src) {
    if (alignment == kAligned) return {0, 0};
    constexpr uint32_t kTouched = (bytes + kStep<bytes> - 1) / kStep<bytes> * kStep<bytes> + kStep<bytes>;
    const uint32_t skew = misalignment(src, kStep<bytes>);
    return {skew, kTouched - skew - bytes};
}

/// The alignment of windows that follow each other from `src` on.
template <uint32_t bytes>
WINDROW_DEVICE Alignment alignment_of(const uint8_t* src) {
    return misalignment(src, kWidest<bytes>) == 0 ? kAligned : kMisaligned;
}

// ---- Packing. A NaN loses its payload here: callers see to it.

/// Two float32 as two float16, each rounded to nearest even.
WINDROW_DEVICE uint32_t pack_f16(float low, float high) {
#ifdef __CUDA_ARCH__
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return to_f16(low) | static_cast<uint32_t>(to_f16(high)) << 16;
#endif
}

/// Two float32 as two bfloat16, each rounded to nearest even.
WINDROW_DEVICE uint32_t pack_bf16(float low, float high) {
#ifdef __CUDA_ARCH__
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

/// Byte `i` of some words as a float32. nvcc makes three instructions of such a cast, one of them at an
/// eighth of the rate; this is two at full rate: the byte becomes the end of 2^23, which is subtracted.
WINDROW_DEVICE float byte_as_float(const uint32_t* words, uint32_t i) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(__byte_perm(words[i / 4], 0x4B000000u, 0x7440 + i % 4)) - 8388608.0f;
#else
    return static_cast<float>(static_cast<uint8_t>(words[i / 4] >> (8 * (i % 4))));
#endif
}

}  // namespace windrow
