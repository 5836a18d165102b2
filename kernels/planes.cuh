// Family planes: uint8 pixels of 2 to 4 interleaved channels become planes of float16, bfloat16, float32
// or uint8, through x * a[c] + b[c].
//
// A lane takes 16 bytes of a plane: 8 pixels of float16, 24 bytes of the source for 3 channels. Where
// the planes of a row have the same phase, one window serves all of them; where they do not (225 x 225
// float16), each plane has its own turn over the windows, which the first cache then holds.
#pragma once

#include "lanes.cuh"

namespace windrow {

/// A run of pixels that are adjacent in the source and in each plane, with padding behind them.
struct Pixels {
    const uint8_t* src;
    uint8_t* dst;      ///< in the first plane
    int64_t plane;     ///< bytes from plane to plane
    uint32_t real;
    uint32_t width;
    uint32_t before;    ///< readable bytes of the sample in front of `src`
    uint32_t after;   ///< and behind the last real pixel
};

template <int channels>
struct Coefficients {
    float a[channels], b[channels];  // finite, so that no pixel becomes NaN
};

template <uint8_t dtype>
struct SizeOf {
    static constexpr uint32_t value = dtype == kU8 ? 1 : dtype == kF32 ? 4 : 2;
};

/// The pixels of channel `c` in a window, as 16 bytes of the output.
template <uint8_t dtype, int channels, uint32_t words>
WINDROW_DEVICE void plane_of(const uint32_t (&in)[words], uint32_t c, float a, float b,
                             uint32_t (&out)[4]) {
    constexpr uint32_t kPixels = 16 / SizeOf<dtype>::value;
    if constexpr (dtype == kU8) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            uint32_t word = 0;
#pragma unroll
            for (uint32_t k = 0; k < 4; ++k) {
                const uint32_t byte = (4 * i + k) * channels + c;
                word |= (in[byte / 4] >> (8 * (byte % 4)) & 0xFF) << (8 * k);
            }
            out[i] = word;
        }
    } else {
        float x[kPixels];
#pragma unroll
        for (uint32_t i = 0; i < kPixels; ++i) x[i] = fmaf(byte_as_float(in, i * channels + c), a, b);
        pack<dtype>(x, out);
    }
}

/// Groups of 16 bytes a plane, `count` of them from `src` on; all channels of a window at once.
template <Alignment alignment, uint8_t dtype, int channels, uint32_t kUnroll>
WINDROW_DEVICE void all_planes(const Coefficients<channels>& by, const uint8_t* src, uint8_t* dst,
                               int64_t plane, uint32_t count, uint32_t lane) {
    constexpr uint32_t kBytes = 16 / SizeOf<dtype>::value * channels, kWords = (kBytes + 3) / 4;
    src += uint64_t{lane} * kBytes;
    dst += 16 * lane;
    const uint32_t skew = skew_of<alignment, kBytes>(src);
    src -= skew;
    uint32_t left = count > lane ? (count - lane + kLanes - 1) / kLanes : 0;
#pragma unroll 1
    while (left > 0) {
        uint32_t in[kUnroll][kWords] = {};
#pragma unroll
        for (uint32_t i = 0; i < kUnroll; ++i) {
            if (i < left) read_window<alignment, kBytes>(src + kLanes * kBytes * i, skew, in[i]);
        }
#pragma unroll
        for (int c = 0; c < channels; ++c) {
            uint8_t* p = dst + c * plane;
#pragma unroll
            for (uint32_t i = 0; i < kUnroll; ++i) {
                uint32_t out[4];
                plane_of<dtype, channels>(in[i], c, by.a[c], by.b[c], out);
                if (i < left) store_words(p + kLanes * 16 * i, out);
            }
        }
        src += kLanes * kBytes * kUnroll;
        dst += kLanes * 16 * kUnroll;
        left -= minimum(left, kUnroll);
    }
}

/// The same for one channel: `src` is the first byte of its first pixel.
template <uint8_t dtype, int channels, uint32_t kUnroll>
WINDROW_DEVICE void one_plane(float a, float b, const uint8_t* src, uint8_t* dst, uint32_t count,
                              uint32_t lane) {
    constexpr uint32_t kBytes = 16 / SizeOf<dtype>::value * channels, kWords = (kBytes + 3) / 4;
    src += uint64_t{lane} * kBytes;
    dst += 16 * lane;
    const uint32_t skew = skew_of<kMisaligned, kBytes>(src);
    src -= skew;
    uint32_t left = count > lane ? (count - lane + kLanes - 1) / kLanes : 0;
#pragma unroll 1
    while (left > 0) {
        uint32_t in[kUnroll][kWords] = {};
#pragma unroll
        for (uint32_t i = 0; i < kUnroll; ++i) {
            if (i < left) read_window<kMisaligned, kBytes>(src + kLanes * kBytes * i, skew, in[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < kUnroll; ++i) {
            uint32_t out[4];
            plane_of<dtype, channels>(in[i], 0, a, b, out);
            if (i < left) store_words(dst + kLanes * 16 * i, out);
        }
        src += kLanes * kBytes * kUnroll;
        dst += kLanes * 16 * kUnroll;
        left -= minimum(left, kUnroll);
    }
}

/// The pixels of one channel that are not in groups, one to a lane: [0, head), [done, pad), [tail, width).
template <uint8_t dtype, int channels>
WINDROW_DEVICE void few_pixels(float a, float b, const Pixels& run, int c, uint64_t fill, uint32_t head,
                               uint32_t done, uint32_t pad, uint32_t tail, uint32_t lane) {
    constexpr uint32_t kSize = SizeOf<dtype>::value;
    const uint32_t count = head + (pad - done) + (run.width - tail);
#pragma unroll 1
    for (uint32_t i = lane; i < count; i += kLanes) {
        uint32_t p = i;
        if (p >= head) p += done - head;
        if (p >= pad) p += tail - pad;
        uint64_t bits = fill;
        if (p < run.real) {
            const uint8_t x = load<uint8_t>(run.src + uint64_t{p} * channels + c);
            bits = dtype == kU8 ? uint64_t{x} : Number<dtype>::from(fmaf(static_cast<float>(x), a, b));
        }
        uint8_t* q = run.dst + c * run.plane + uint64_t{p} * kSize;
        if (kSize == 1) store(q, static_cast<uint8_t>(bits));
        if (kSize == 2) store(q, static_cast<uint16_t>(bits));
        if (kSize == 4) store(q, static_cast<uint32_t>(bits));
    }
}

/// Where the groups of a plane are: body [body, body + groups * kPixels) real, then single pixels up to
/// `pad`, then fills, then single pixels.
struct Cut {
    uint32_t body, groups, done, pad, fills;
};

template <uint8_t dtype, int channels>
WINDROW_DEVICE Cut cut_of(const Pixels& run, uint32_t phase, bool odd) {
    constexpr uint32_t kSize = SizeOf<dtype>::value, kPixels = 16 / kSize;
    Cut cut;
    cut.body = minimum((16 - phase) % 16 / kSize, run.width);
    cut.groups = run.real > cut.body ? (run.real - cut.body) / kPixels : 0;
    if (odd && cut.groups > 0) {
        // A window of kMisaligned touches up to 7 bytes in front of it and 8 behind; that of a single channel
        // begins up to channels - 1 bytes later.
        constexpr uint32_t kBytes = kPixels * channels, kStep = windrow::kStep<kBytes>;
        constexpr uint32_t kBehind = (kBytes + kStep - 1) / kStep * kStep + kStep - kBytes + channels - 1;
        const uint32_t rest = (run.real - cut.body - cut.groups * kPixels) * channels;
        if (run.after + rest < kBehind) cut.groups -= 1;
        if (run.before + cut.body * channels < kStep - 1 && cut.groups > 0) {
            cut.body += kPixels;
            cut.groups -= 1;
        }
    }
    cut.done = cut.body + cut.groups * kPixels;
    cut.pad = cut.done;
    if (run.real > cut.done) cut.pad += (run.real - cut.done + kPixels - 1) / kPixels * kPixels;
    cut.pad = minimum(cut.pad, run.width);
    cut.fills = (run.width - cut.pad) / kPixels;
    return cut;
}

/// What of a plane is not in groups: padding, and single pixels.
template <uint8_t dtype, int channels>
WINDROW_DEVICE void rest_of_plane(float a, float b, const Pixels& run, int c, Vec16 fill, const Cut& cut,
                                  uint32_t lane) {
    constexpr uint32_t kSize = SizeOf<dtype>::value, kPixels = 16 / kSize;
    uint8_t* p = run.dst + c * run.plane + cut.pad * kSize + 16 * lane;
#pragma unroll 1
    for (uint32_t i = lane; i < cut.fills; i += kLanes, p += 16 * kLanes) store16(p, fill);
    few_pixels<dtype, channels>(a, b, run, c, fill.lo & ~(~0ull << (8 * kSize)), cut.body, cut.done, cut.pad,
                                cut.pad + cut.fills * kPixels, lane);
}

template <uint8_t dtype, int channels, uint32_t kUnroll>
WINDROW_DEVICE void write_pixels(const Coefficients<channels>& by, const Pixels& run, Vec16 fill,
                                 uint32_t lane) {
    constexpr uint32_t kSize = SizeOf<dtype>::value, kPixels = 16 / kSize;
    const uint32_t phase = misalignment(run.dst, 16);
    if (misalignment(reinterpret_cast<const void*>(run.plane), 16) == 0) {
        // All planes are cut alike.
        const uint32_t body = minimum((16 - phase) % 16 / kSize, run.width);
        const Alignment alignment = alignment_of<kPixels * channels>(run.src + uint64_t{body} * channels);
        const Cut cut = cut_of<dtype, channels>(run, phase, alignment == kMisaligned);
        const uint8_t* src = run.src + uint64_t{cut.body} * channels;
        uint8_t* dst = run.dst + cut.body * kSize;
        if (alignment == kMisaligned) {
            all_planes<kMisaligned, dtype, channels, kUnroll>(by, src, dst, run.plane, cut.groups, lane);
        } else {
            all_planes<kAligned, dtype, channels, kUnroll>(by, src, dst, run.plane, cut.groups, lane);
        }
        if (cut.groups * kPixels == run.width) return;
#pragma unroll 1
        for (int c = 0; c < channels; ++c) {
            rest_of_plane<dtype, channels>(by.a[c], by.b[c], run, c, fill, cut, lane);
        }
    } else {
#pragma unroll 1
        for (int c = 0; c < channels; ++c) {
            uint8_t* dst = run.dst + c * run.plane;
            const Cut cut = cut_of<dtype, channels>(run, misalignment(dst, 16), true);
            one_plane<dtype, channels, kUnroll>(by.a[c], by.b[c], run.src + uint64_t{cut.body} * channels + c,
                                              dst + cut.body * kSize, cut.groups, lane);
            rest_of_plane<dtype, channels>(by.a[c], by.b[c], run, c, fill, cut, lane);
        }
    }
}

}  // namespace windrow
