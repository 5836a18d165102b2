// Families rows, aligned_copy and the same of placed samples: of one size, moved, where size, sources and output are multiples of 16
// bytes. The vectors of the output are numbered, and a warp writes 128 neighbouring ones: what is under way
// at one time is adjacent, whatever the size of a sample.
#pragma once

#include "lanes.cuh"

namespace windrow {

/// Vectors of a lane, whose loads are under way together.
constexpr uint32_t kRowVectors = 4;

/// Writes this lane's vectors from vector `first` on, 32 apart, of `count` in all. A sample has `vectors`, and less than
/// 2^32 bytes; by id, all samples are within 2^36, whose vectors are counted in 32 bits.
template <bool by_id>
WINDROW_DEVICE void rows_piece(const Sources& sources, uint8_t* out, uint32_t vectors, Divisor by_vectors, uint32_t first,
                               uint32_t count) {
    auto source = [&](uint32_t at) {
        const uint32_t sample = divide(at, by_vectors), within = at - sample * vectors;
        if (by_id) return sources.base + 16 * uint64_t{sources.ids[sample] * (sources.stride / 16) + within};
        return source_at<false>(sources, sample) + 16 * within;
    };
    out += 16 * uint64_t{first};
    if (first + kLanes * (kRowVectors - 1) < count) {
        const uint8_t* src[kRowVectors];
        Vec16 v[kRowVectors];
#pragma unroll
        for (uint32_t i = 0; i < kRowVectors; ++i) src[i] = source(first + kLanes * i);
#pragma unroll
        for (uint32_t i = 0; i < kRowVectors; ++i) v[i] = load16(src[i]);
#pragma unroll
        for (uint32_t i = 0; i < kRowVectors; ++i) store16(out + 16 * kLanes * i, v[i]);
        return;
    }
#pragma unroll 1
    for (; first < count; first += kLanes, out += 16 * kLanes) store16(out, load16(source(first)));
}

/// Writes piece `local_item` of the output, 2 KiB, which is piece `piece` of a sample.
WINDROW_DEVICE void aligned_copy_piece(const uint8_t* src, uint8_t* out, uint32_t local_item, uint32_t piece, uint32_t lane) {
    src += 16 * (kLanes * kRowVectors * uint64_t{piece} + lane);
    Vec16 v[kRowVectors];
#pragma unroll
    for (uint32_t i = 0; i < kRowVectors; ++i) v[i] = load16(src + 16 * kLanes * i);
    out += 16 * (kLanes * kRowVectors * uint64_t{local_item} + lane);
#pragma unroll
    for (uint32_t i = 0; i < kRowVectors; ++i) store16(out + 16 * kLanes * i, v[i]);
}

/// Writes what rows_piece() writes, where sample i begins at `out` + places[i] * step.
template <bool by_id>
WINDROW_DEVICE void placed_rows_piece(const Sources& sources, uint8_t* out, const uint32_t* places, uint32_t step, uint32_t vectors,
                                      Divisor by_vectors, uint32_t first, uint32_t count) {
    if (first + kLanes * (kRowVectors - 1) < count) {
        const uint8_t* src[kRowVectors];
        uint8_t* dst[kRowVectors];
        Vec16 v[kRowVectors];
#pragma unroll
        for (uint32_t i = 0; i < kRowVectors; ++i) {
            const uint32_t at = first + kLanes * i, sample = divide(at, by_vectors), within = at - sample * vectors;
            src[i] = stepped(source_at<by_id>(sources, sample), 16u, within);
            dst[i] = const_cast<uint8_t*>(stepped<uint8_t>(stepped<uint8_t>(out, step, places[sample]), 16u, within));
        }
#pragma unroll
        for (uint32_t i = 0; i < kRowVectors; ++i) v[i] = load16(src[i]);
#pragma unroll
        for (uint32_t i = 0; i < kRowVectors; ++i) store16(dst[i], v[i]);
        return;
    }
#pragma unroll 1
    for (; first < count; first += kLanes) {
        const uint32_t sample = divide(first, by_vectors), within = first - sample * vectors;
        uint8_t* dst = const_cast<uint8_t*>(stepped<uint8_t>(stepped<uint8_t>(out, step, places[sample]), 16u, within));
        store16(dst, load16(stepped(source_at<by_id>(sources, sample), 16u, within)));
    }
}

}  // namespace windrow
