// Family rows: samples of one size that are moved, where size, sources and output are multiples of 16
// bytes. The vectors of the batch are numbered; a lane finds the sample of a vector by one multiplication,
// and its address in the list.
#pragma once

#include "lanes.cuh"

namespace windrow {

/// Where the samples are.
struct RowsOf {
    const uint8_t* base;       ///< ids: row 0 of the table
    const uint64_t* addresses; ///< or one address each, if `ids` is null
    const uint32_t* ids;       ///< rows of the table, 4 bytes each; written by the host or on the device
    uint64_t stride;           ///< ids: bytes from row to row of the table
};

/// A lane's `kUnroll` vectors from vector `first` on, 32 apart, of `count` in all. Loads of one kind are
/// under way together: numbers of samples, then their bytes.
template <bool by_id, uint32_t kUnroll>
WINDROW_DEVICE void rows_piece(const RowsOf& rows, uint8_t* out, uint32_t vectors, Divisor by_vectors,
                               uint64_t first, uint64_t count) {
    // 32-bit numbers within the piece; the first sample of the piece by one division for all.
    uint32_t sample[kUnroll], column[kUnroll];
    const uint8_t* src[kUnroll];
    Vec16 v[kUnroll];
#pragma unroll
    for (uint32_t i = 0; i < kUnroll; ++i) {
        const uint32_t at = static_cast<uint32_t>(first) + kLanes * i;
        sample[i] = divide(at, by_vectors);
        column[i] = at - sample[i] * vectors;
    }
#pragma unroll
    for (uint32_t i = 0; i < kUnroll; ++i) {
        if (first + kLanes * i < count) {
            src[i] = by_id ? rows.base + rows.ids[sample[i]] * rows.stride
                           : reinterpret_cast<const uint8_t*>(rows.addresses[sample[i]]);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < kUnroll; ++i) {
        if (first + kLanes * i < count) v[i] = load16(src[i] + 16 * column[i]);
    }
#pragma unroll
    for (uint32_t i = 0; i < kUnroll; ++i) {
        if (first + kLanes * i < count) store16(out + 16 * (first + kLanes * i), v[i]);
    }
}

/// The same for samples of 512 bytes, one for the whole warp: ids are read four at once, and nothing is
/// divided. kUnroll samples, a multiple of 4, from a multiple of 4 on.
template <uint32_t kUnroll>
WINDROW_DEVICE void rows_of_512(const RowsOf& rows, uint8_t* out, uint32_t sample, uint32_t lane) {
    uint32_t id[kUnroll];
    Vec16 v[kUnroll];
#pragma unroll
    for (uint32_t i = 0; i < kUnroll; i += 4) {
        const Vec16 four = load16(reinterpret_cast<const uint8_t*>(rows.ids + sample + i));
        id[i] = static_cast<uint32_t>(four.lo);
        id[i + 1] = static_cast<uint32_t>(four.lo >> 32);
        id[i + 2] = static_cast<uint32_t>(four.hi);
        id[i + 3] = static_cast<uint32_t>(four.hi >> 32);
    }
    const uint8_t* base = rows.base + 16 * lane;
#pragma unroll
    for (uint32_t i = 0; i < kUnroll; ++i) v[i] = load16(base + id[i] * rows.stride);
    uint8_t* dst = out + 512ull * sample + 16 * lane;
#pragma unroll
    for (uint32_t i = 0; i < kUnroll; ++i) store16(dst + 512 * i, v[i]);
}

}  // namespace windrow
