// Family planar: uint8 pixels of 3 or 4 interleaved channels become planes of float16, bfloat16, float32 or uint8, floats through
// x * a[c] + b[c].
//
// The problem: a vector of a plane takes bytes that are 3 or 4 apart, and the planes of an image of odd size begin at different
// distances from a multiple of 16, so that their vectors are of different pixels.
//
// A lane takes a group: the pixels of 16 bytes of a plane. If the planes have the same phase, one window of the source serves all
// of them; if not, each plane takes its own turn over the windows, which the first cache holds by then.
//
//     pixels        |rgb|rgb|rgb|rgb|rgb|rgb|rgb|rgb|rgb|rgb|...
//     one phase     |s  |<- window of 8 pixels, 24 bytes ->|...      float16: a vector of R, of G and of B out of one window
//     other phases  R |s  |<- window ->|<- window ->|...             each plane is cut by itself, and its windows begin at its
//                   G |s|<- window ->|<- window ->|...               own channel
//
//     write_pixels:  padding, and singles in front of the groups and behind them: of all planes together, or plane by plane
//                    one phase:  write_planes, by dtype and channels: a window, then 16 bytes of each plane
//                    else:       write_plane for each plane
//
// To write plane by plane always would be simpler, but all pixels are then read once for each: images of 225 x 225 (W10b), which
// have to be, touch 12 times the least sectors of loads and take 75 thread instructions for 16 bytes on sm_90; those of W1, whose
// planes have one phase, touch 3 times as many and take 41 to float16.
#pragma once

#include "casts.cuh"
#include "vector_io.cuh"
#include "windows.cuh"

namespace windrow {

/// Pixels in a row, adjacent in the source and in each plane: [0, lead) are padding, [lead, lead + real)
/// are read, the rest of `width` is padding.
struct Pixels {
    const uint8_t* src;  ///< address of the first pixel read
    uint8_t* dst;        ///< in the first plane
    int64_t plane;       ///< bytes from plane to plane
    uint32_t lead, real, width;
    uint32_t before;     ///< readable bytes of the sample in front of `src`, cut off at 16 or more
    uint32_t after;      ///< the same behind the last pixel read
};

/// Coefficients in the table: a[channels], then b[channels]; one pair is for all planes.
struct PixelMap {
    const float* by;  ///< null: none
    uint32_t channels;

    /// The pair of plane `c`: 1 and 0 without a map.
    WINDROW_DEVICE void read(uint32_t c, float& a, float& b) const {
        a = 1;
        b = 0;
        if (by != nullptr) {
            const float* p = by + (channels > 1 ? c : 0);
            a = p[0];
            b = p[channels];
        }
    }
    /// The pairs of all planes.
    template <uint32_t planes>
    WINDROW_DEVICE void read_all(float (&a)[planes], float (&b)[planes]) const {
#pragma unroll
        for (uint32_t c = 0; c < planes; ++c) {
            a[c] = 1;
            b[c] = 0;
        }
        if (by == nullptr) return;
        const float* plus = by + channels;
        if (channels > 1) {
#pragma unroll
            for (uint32_t c = 0; c < planes; ++c) {
                a[c] = by[c];
                b[c] = plus[c];
            }
        } else {
            force_branch();
#pragma unroll
            for (uint32_t c = 0; c < planes; ++c) {
                a[c] = *by;
                b[c] = *plus;
            }
        }
    }
};

/// Makes a group of channel `c` of a window: 16 bytes of its plane.
template <uint8_t dtype, uint32_t channels, uint32_t words>
WINDROW_DEVICE void plane_of(const uint32_t (&in)[words], uint32_t c, float a, float b, uint32_t (&out)[4]) {
    constexpr uint32_t kPixels = 16 / kSize<dtype>;
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
        for (uint32_t i = 0; i < kPixels; ++i) x[i] = fmaf(byte_as_float<false>(in, i * channels + c), a, b);
        pack<dtype>(x, out);
    }
}

/// Writes groups [0, count) of `planes` planes: of all channels, or of the first alone. `src` and `dst` are those of
/// the first group; windows begin at `src`.
template <Alignment alignment, uint8_t dtype, uint32_t channels, uint32_t planes>
WINDROW_DEVICE void write_groups(const float (&a)[planes], const float (&b)[planes], const uint8_t* src, uint8_t* dst, int64_t plane,
                                 uint32_t count, const ThreadGroup& threads) {
    constexpr uint32_t kBytes = 16 / kSize<dtype> * channels, kWords = (kBytes + 3) / 4, kMany = kWords > 8 ? 1 : 2;
    const uint32_t first = threads.first<kLanes>(kMany), step = threads.step(kMany);
    Windows<alignment, kBytes> windows(src + uint64_t{first} * kBytes);
    dst += uint64_t{first} * 16;
#pragma unroll 1
    for (int32_t left = static_cast<int32_t>(count - first); left > 0; left -= step) {
        uint32_t in[kMany][kWords];
#pragma unroll
        for (uint32_t i = 0; i < kMany; ++i) {
            windows.read(left > static_cast<int32_t>(kLanes * i), kLanes * kBytes * i, in[i]);
        }
#pragma unroll
        for (uint32_t c = 0; c < planes; ++c) {
            uint8_t* p = dst + c * plane;
#pragma unroll
            for (uint32_t i = 0; i < kMany; ++i) {
                uint32_t out[4];
                plane_of<dtype, channels>(in[i], c, a[c], b[c], out);
                store_words(left, static_cast<int32_t>(kLanes * i), p + kLanes * 16 * i, out);
            }
        }
        windows.advance(uint64_t{step} * kBytes);
        dst += uint64_t{step} * 16;
    }
}

/// Writes the pixels read of planes [c, c + planes) that are in no group; a pixel has `channels`, 3
/// or 4. `dst`: of the first pixel read, in plane c.
WINDROW_DEVICE void write_singles(const Pixels& run, const PixelMap& map, uint8_t to, uint32_t log_size, uint32_t channels, uint8_t* dst,
                                  const Cut& cut, uint32_t c, uint32_t planes, const ThreadGroup& threads) {
    const uint32_t in_groups = cut.vectors << (4 - log_size), count = (run.real - in_groups) * planes;
#pragma unroll 1
    for (uint32_t i = threads.rank; i < count; i += threads.size) {
        const uint32_t single = planes == 1 ? i : planes == 3 ? i / 3 : i / 4, plane = i - single * planes;
        const uint32_t at = single < cut.head ? single : single + in_groups;
        const uint8_t x = load<uint8_t>(run.src + uint64_t{at} * channels + c + plane);
        uint8_t* p = dst + plane * run.plane + (uint64_t{at} << log_size);
        float a, b;
        map.read(c + plane, a, b);
        const float y = fmaf(static_cast<float>(x), a, b);
        // The address is always a multiple of the size.
        switch (to) {
            case kU8: store(p, x); break;
            case kF16: store(p, static_cast<uint16_t>(to_f16(y))); break;
            case kBF16: store(p, static_cast<uint16_t>(to_bf16(y))); break;
            default: store(p, bits_of(y));
        }
    }
}

/// Writes groups [0, count) of all planes, which are of one phase.
template <uint8_t dtype, uint32_t channels>
WINDROW_DEVICE void write_planes(const PixelMap& map, bool is_aligned, const uint8_t* src, uint8_t* dst, int64_t plane, uint32_t count,
                                 const ThreadGroup& threads) {
    float a[channels], b[channels];
    map.read_all(a, b);
    if (channels == 3 && is_aligned) {
        write_groups<kAligned, dtype, channels>(a, b, src, dst, plane, count, threads);
    } else {
        write_groups<kMisaligned, dtype, channels>(a, b, src, dst, plane, count, threads);
    }
}

/// Writes groups [0, count) of plane `c` alone; windows begin at its channel.
template <uint8_t dtype, uint32_t channels>
WINDROW_DEVICE void write_plane(const PixelMap& map, uint32_t c, const uint8_t* src, uint8_t* dst, uint32_t count, const ThreadGroup& threads) {
    float a[1], b[1];
    map.read(c, a[0], b[0]);
    write_groups<kMisaligned, dtype, channels>(a, b, src, dst, 0, count, threads);
}

/// Writes the thread group's part of a run of pixels in 3 or 4 planes. `to`: kU8 without a map, kF16, kBF16 or kF32, of 2^log_size bytes.
/// `by`: a[channels], then b[channels], for each plane or one for all; null: none. `fill`: the padding over
/// and over.
WINDROW_DEVICE void write_pixels(const Pixels& run, uint8_t to, uint32_t log_size, uint32_t planes, const float* by, uint32_t channels, Vec16 fill,
                                 const ThreadGroup& threads) {
    const PixelMap map = {by, channels};
    const uint32_t lead = run.lead << log_size, done = run.lead + run.real;
    // Planes of different phases are cut and written one by one.
    const uint32_t planes_per_pass = (run.plane & 15) == 0 ? planes : 1;
    auto cut = [&](uint32_t c) {
        return cut_run(run.src, run.dst + lead + c * run.plane, run.real, planes, log_size, run.before, run.after, c);
    };
    const Cut all = cut(0);
    uint32_t c = 0;
    Cut plane_cut = all;
    ThreadGroup each = threads;
#pragma unroll 1
    do {
        // Registers for padding are not set up before some padding is found.
        opaque(each.rank);
        opaque(each.size);
        uint8_t* dst = run.dst + c * run.plane;
        if (run.lead > 0) fill_run(dst, run.lead, 1 << log_size, fill, each, planes_per_pass, run.plane);
        if (done < run.width) fill_run(dst + (done << log_size), run.width - done, 1 << log_size, fill, each, planes_per_pass, run.plane);
        write_singles(run, map, to, log_size, planes, dst + lead, plane_cut, c, planes_per_pass, each);
        c += planes_per_pass;
        if (c < planes) plane_cut = cut(c);
    } while (c < planes);
    // The cases have no gaps, so that the compiler makes a table of jumps.
    constexpr auto kind_of = [](uint32_t to, uint32_t planes) { return minimum(to - kF16, 3) << 1 | (planes & 1); };
#define WINDROW_CASES(dtype) WINDROW_CASE(dtype, 3) WINDROW_CASE(dtype, 4)
#define WINDROW_ALL_CASES WINDROW_CASES(kU8) WINDROW_CASES(kF16) WINDROW_CASES(kBF16) WINDROW_CASES(kF32)
    if (planes_per_pass == planes) {
        const uint8_t* src = run.src + all.head * planes;
        uint8_t* dst = run.dst + lead + (all.head << log_size);
        switch (kind_of(to, planes)) {
#define WINDROW_CASE(dtype, channels) \
    case kind_of(dtype, channels): return write_planes<dtype, channels>(map, all.is_aligned, src, dst, run.plane, all.vectors, threads);
            WINDROW_ALL_CASES
#undef WINDROW_CASE
            default: __builtin_unreachable();
        }
    }
#pragma unroll 1
    for (uint32_t c = 0; c < planes; ++c) {
        const Cut plane_cut = cut(c);
        const uint8_t* src = run.src + plane_cut.head * planes + c;
        uint8_t* dst = run.dst + lead + c * run.plane + (plane_cut.head << log_size);
        switch (kind_of(to, planes)) {
#define WINDROW_CASE(dtype, channels) \
    case kind_of(dtype, channels): write_plane<dtype, channels>(map, c, src, dst, plane_cut.vectors, threads); break;
            WINDROW_ALL_CASES
#undef WINDROW_CASE
            default: __builtin_unreachable();
        }
    }
#undef WINDROW_ALL_CASES
#undef WINDROW_CASES
}

}  // namespace windrow
