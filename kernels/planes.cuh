// Family planes: uint8 pixels of 2 to 4 interleaved channels become planes of float16, bfloat16, float32
// or uint8, floats through x * a[c] + b[c].
//
// A lane takes a group: the pixels of 16 bytes of a plane. Where the planes have the same phase, one
// window of the source serves all of them; where they have not, each plane takes its own turn over the
// windows, which the first cache holds by then.
#pragma once

#include "casts.cuh"

namespace windrow {

/// Pixels in a row, adjacent in the source and in each plane: [0, lead) are padding, [lead, lead + real)
/// are read, the rest of `width` is padding.
struct Pixels {
    const uint8_t* src;  ///< of the first pixel read
    uint8_t* dst;        ///< in the first plane
    int64_t plane;       ///< bytes from plane to plane
    uint32_t lead, real, width;
    uint32_t before;     ///< readable bytes of the sample in front of `src`, cut off at 16 or more
    uint32_t after;      ///< and behind the last pixel read
};

/// Coefficients in the table: a[channels], then b[channels]; one pair is for all planes.
struct PixelMap {
    const float* by;  ///< null: none
    uint32_t channels;

    WINDROW_DEVICE void read(uint32_t c, float& a, float& b) const {
        a = 1;
        b = 0;
        if (by != nullptr) {
            const float* p = by + (channels > 1 ? c : 0);
            a = p[0];
            b = p[channels];
        }
    }
};

/// A group of channel `c` of a window, as 16 bytes of its plane.
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

/// Groups [0, count) of `planes` planes: of all channels, or of the first alone. `src` and `dst` are those
/// of the first group; windows begin at `src`.
template <Alignment alignment, uint8_t dtype, uint32_t channels, uint32_t planes>
WINDROW_DEVICE void write_groups(const float (&a)[planes], const float (&b)[planes], const uint8_t* src, uint8_t* dst, int64_t plane,
                                 uint32_t count, const Team<kLanes>& team) {
    constexpr uint32_t kBytes = 16 / kSize<dtype> * channels, kWords = (kBytes + 3) / 4, kMany = kWords > 8 ? 1 : 2;
    const uint32_t first = team.first(kMany), step = team.step(kMany);
    src += uint64_t{first} * kBytes;
    dst += uint64_t{first} * 16;
    const uint32_t skew = skew_of<alignment, kBytes>(src);
    src -= skew;
#pragma unroll 1
    for (int32_t left = static_cast<int32_t>(count - first); left > 0; left -= step) {
        keep(src);
        keep(dst);
        uint32_t in[kMany][kWords];
#pragma unroll
        for (uint32_t i = 0; i < kMany; ++i) {
            read_window<alignment, kBytes>(left > static_cast<int32_t>(kLanes * i), src + kLanes * kBytes * i, skew, in[i]);
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
        src += uint64_t{step} * kBytes;
        dst += uint64_t{step} * 16;
    }
}

/// How the pixels read are cut: `head` single ones, then groups, then single ones.
struct PixelCut {
    uint32_t head, groups;
    bool is_aligned;
};

/// Cuts for planes [c, c + planes) of one phase, that of `dst`. No window reaches beyond `before` and
/// `after`. A plane whose elements are misaligned has no groups.
template <uint8_t dtype, uint32_t channels, uint32_t planes>
WINDROW_DEVICE PixelCut cut_pixels(const Pixels& run, const uint8_t* dst, uint32_t c) {
    constexpr uint32_t kPixels = 16 / kSize<dtype>, kBytes = kPixels * channels;
    constexpr uint32_t kTouched = (kBytes + kStep<kBytes> - 1) / kStep<kBytes> * kStep<kBytes> + kStep<kBytes>;
    PixelCut cut = {minimum(((16 - misalignment(dst, 16)) & 15) / kSize<dtype>, run.real), 0, false};
    if (misalignment(dst, kSize<dtype>) != 0) cut.head = run.real;
    cut.groups = (run.real - cut.head) / kPixels;
    const uint8_t* src = run.src + cut.head * channels + c;
    if (planes == channels) cut.is_aligned = misalignment(src, kWidest<kBytes>) == 0;
    if (!cut.is_aligned && cut.groups > 0) {
        // A window of a single channel begins c bytes later and ends as many bytes later.
        const uint32_t skew = misalignment(src, kStep<kBytes>), beyond = kTouched - skew - kBytes + c;
        const uint32_t rest = run.after + (run.real - cut.head - cut.groups * kPixels) * channels;
        if (beyond > rest) cut.groups -= 1;
        if (skew > run.before + cut.head * channels + c && cut.groups > 0) {
            cut.head += kPixels;
            cut.groups -= 1;
        }
    }
    return cut;
}

/// The pixels of planes [c, c + planes) that are in no group.
template <uint8_t dtype, uint32_t channels, uint32_t planes>
WINDROW_DEVICE void write_singles(const Pixels& run, const PixelMap& map, uint8_t* dst, const PixelCut& cut, uint32_t c, uint32_t lane) {
    constexpr uint32_t kPixels = 16 / kSize<dtype>;
    const uint32_t in_groups = cut.groups * kPixels, count = (run.real - in_groups) * planes;
#pragma unroll 1
    for (uint32_t i = lane; i < count; i += kLanes) {
        const uint32_t single = i / planes, channel = c + i % planes;
        const uint32_t at = single < cut.head ? single : single + in_groups;
        const uint8_t x = load<uint8_t>(run.src + uint64_t{at} * channels + channel);
        uint8_t* p = dst + (i % planes) * run.plane + uint64_t{at} * kSize<dtype>;
        if constexpr (dtype == kU8) {
            store(p, x);
        } else {
            float a, b;
            map.read(channel, a, b);
            write_element(p, Number<dtype>::from(fmaf(static_cast<float>(x), a, b)), kSize<dtype>);
        }
    }
}

template <uint8_t dtype, uint32_t channels>
WINDROW_DEVICE void write_planes(const Pixels& run, const PixelMap& map, const Team<kLanes>& team) {
    uint8_t* dst = run.dst + run.lead * kSize<dtype>;
    if ((run.plane & 15) == 0) {
        const PixelCut cut = cut_pixels<dtype, channels, channels>(run, dst, 0);
        if (team.warp == 0) write_singles<dtype, channels, channels>(run, map, dst, cut, 0, team.lane);
        float a[channels], b[channels];
#pragma unroll
        for (uint32_t c = 0; c < channels; ++c) map.read(c, a[c], b[c]);
        const uint8_t* src = run.src + cut.head * channels;
        dst += cut.head * kSize<dtype>;
        if (cut.is_aligned) {
            write_groups<kAligned, dtype, channels>(a, b, src, dst, run.plane, cut.groups, team);
        } else {
            write_groups<kMisaligned, dtype, channels>(a, b, src, dst, run.plane, cut.groups, team);
        }
    } else {
#pragma unroll 1
        for (uint32_t c = 0; c < channels; ++c, dst += run.plane) {
            const PixelCut cut = cut_pixels<dtype, channels, 1>(run, dst, c);
            if (team.warp == minimum(c, team.warps - 1)) write_singles<dtype, channels, 1>(run, map, dst, cut, c, team.lane);
            float a[1], b[1];
            map.read(c, a[0], b[0]);
            write_groups<kMisaligned, dtype, channels>(a, b, run.src + cut.head * channels + c, dst + cut.head * kSize<dtype>, 0, cut.groups,
                                                       team);
        }
    }
}

/// Writes the team's part of a run of pixels in 2 to 4 planes. `to`: kU8 without a map, kF16, kBF16 or kF32.
/// `by`: a[channels], then b[channels], for each plane or one for all; null: none. `fill`: the padding over
/// and over.
WINDROW_DEVICE void write_pixels(const Pixels& run, uint8_t to, uint32_t planes, const float* by, uint32_t channels, Vec16 fill,
                                 const Team<kLanes>& team) {
    const PixelMap map = {by, channels};
    if (run.real < run.width) {
        const uint32_t size = to == kU8 ? 1 : to == kF32 ? 4 : 2;
        const uint32_t done = run.lead + run.real;
        // Planes of different phases are filled one by one.
        const bool alike = (run.plane & 15) == 0;
        uint8_t* dst = run.dst;
#pragma unroll 1
        for (uint32_t c = 0; c < (alike ? 1 : planes); ++c, dst += run.plane) {
            if (run.lead > 0) fill_run(dst, run.lead, size, fill, team, alike ? planes : 1, run.plane);
            if (done < run.width) fill_run(dst + done * size, run.width - done, size, fill, team, alike ? planes : 1, run.plane);
        }
    }
    if (run.real == 0) return;
    switch (to << 4 | planes) {
#define WINDROW_CASE(dtype, channels) \
    case dtype << 4 | channels: return write_planes<dtype, channels>(run, map, team);
#define WINDROW_CASES(dtype) WINDROW_CASE(dtype, 2) WINDROW_CASE(dtype, 3) WINDROW_CASE(dtype, 4)
        WINDROW_CASES(kU8) WINDROW_CASES(kF16) WINDROW_CASES(kBF16) WINDROW_CASES(kF32)
#undef WINDROW_CASES
#undef WINDROW_CASE
        default: return;
    }
}

}  // namespace windrow
