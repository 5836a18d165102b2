// Family short: samples of one size at any alignment, moved to a dense output, where a row is too short
// for a warp of its own: 24 bytes to a few KiB.
//
// Two passes over a warp's stretch of the output. First every vector that lies inside one sample,
// words beside it included: five words and four shifts. Then those at the boundaries, which are known
// from the boundary alone, two for each, packed to neighbouring lanes.
#pragma once

#include "lanes.cuh"

namespace windrow {

struct Short {
    Sources sources;
    uint8_t* out;             ///< a multiple of 16
    uint64_t bytes;           ///< of the output
    uint32_t size;            ///< of a sample, at least 24: no window has both ends of one
    Divisor by_size;
    uint32_t piece;           ///< bytes of output of a warp, a multiple of 512
};

template <bool by_id>
WINDROW_DEVICE const uint8_t* sample_at(const Short& p, uint32_t sample) {
    return source_at<by_id>(p.sources, sample);
}

WINDROW_DEVICE const uint8_t* aligned_down(const uint8_t* p) {
    return reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(p) & ~uintptr_t{3});
}

/// 16 bytes from byte `from` of a sample on; `from` may be negative, and what is not of the sample is
/// left open. Reads bytes of the sample alone: the word that sticks out is read in pieces. Only one does,
/// as no window has both ends of a sample; `whole`: it is not the end.
template <bool whole>
WINDROW_DEVICE void edge_window(const uint8_t* sample, uint32_t size, int32_t from, uint32_t (&w)[4]) {
    const uint8_t* src = sample + from;
    const uint32_t skew = misalignment(src, 4);
    src -= skew;
    const uint32_t at = static_cast<uint32_t>(from) - skew;  // of the first word; below 0 it is large
    // The bytes [n, 4) of the word in front, or [0, n) of that behind.
    const bool front = whole || from < 4;
    const uint8_t* edge = front ? sample : sample + size;
    const uint32_t n = misalignment(edge, 4);
    uint32_t part = 0;
    if (n & 1) part = static_cast<uint32_t>(load<uint8_t>(front ? edge : edge - 1)) << (8 * (front ? n : n - 1));
    if (front ? n - 1 < 2 : n >= 2) {
        part |= static_cast<uint32_t>(load<uint16_t>(edge - n + (front ? 2 : 0))) << (front ? 16 : 0);
    }
    uint32_t raw[5];
#pragma unroll
    for (uint32_t k = 0; k < 5; ++k) {
        raw[k] = part;
        if (at + 4 * k <= size - 4) raw[k] = load<uint32_t>(src + 4 * k);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = funnel(raw[i], raw[i + 1], 8 * skew);
}

/// Whether a vector at byte `column` of a sample can be read by whole words.
WINDROW_DEVICE bool is_inside(uint32_t column, uint32_t size, uint32_t skew) {
    return column >= skew && column + 20 - skew <= size;
}

template <bool by_id>
WINDROW_DEVICE void short_piece(const Short& p, uint64_t piece, uint32_t lane) {
    constexpr uint32_t kUnroll = 4;
    const uint64_t begin = piece * p.piece;
    if (begin >= p.bytes) return;
    const uint32_t bytes = p.bytes - begin < p.piece ? static_cast<uint32_t>(p.bytes - begin) : p.piece;
    uint8_t* out = p.out + begin;
    // The first sample; the rest relative to it.
    const uint32_t sample0 = begin < 1u << 31 ? divide(static_cast<uint32_t>(begin), p.by_size)
                                              : static_cast<uint32_t>(begin / p.size);
    const uint32_t skip0 = static_cast<uint32_t>(begin - uint64_t{sample0} * p.size);
#pragma unroll 1
    for (uint32_t first = 16 * lane; first < bytes; first += 16 * kLanes * kUnroll) {
        const uint8_t* src[kUnroll];
        uint32_t raw[kUnroll][5], skew[kUnroll], column[kUnroll];
#pragma unroll
        for (uint32_t i = 0; i < kUnroll; ++i) {
            // A vector that is not there is taken for the first: its sample is, and nothing is stored.
            const uint32_t pos = first + 16 * kLanes * i, at = skip0 + (pos < bytes ? pos : 0);
            const uint32_t row = divide(at, p.by_size);
            column[i] = at - row * p.size;
            src[i] = sample_at<by_id>(p, sample0 + row);
        }
        bool inside[kUnroll];
#pragma unroll
        for (uint32_t i = 0; i < kUnroll; ++i) {
            src[i] += column[i];
            skew[i] = misalignment(src[i], 4);
            inside[i] = is_inside(column[i], p.size, skew[i]) && first + 16 * kLanes * i + 16 <= bytes;
            if (inside[i]) {
#pragma unroll
                for (int k = 0; k < 5; ++k) raw[i][k] = load<uint32_t>(aligned_down(src[i]) + 4 * k);
            }
        }
        uint8_t* dst = out + first;
#pragma unroll
        for (uint32_t i = 0; i < kUnroll; ++i) {
            if (inside[i]) {
                uint32_t w[4];
#pragma unroll
                for (int k = 0; k < 4; ++k) w[k] = funnel(raw[i][k], raw[i][k + 1], 8 * skew[i]);
                store_words(dst + 16 * kLanes * i, w);
            }
        }
    }
    // Boundaries: the beginning of each sample from the first one on, and the end of the last. The
    // vectors that begin up to 19 bytes in front of one, or up to 2 behind it.
    const uint32_t samples = divide(skip0 + bytes - 1, p.by_size) + 2;
#pragma unroll 1
    for (uint32_t i = lane; i < 2 * samples; i += kLanes) {
        const int32_t boundary = static_cast<int32_t>(i / 2 * p.size) - static_cast<int32_t>(skip0);
        const int32_t pos = (boundary - 19 + 15 & ~15) + 16 * static_cast<int32_t>(i % 2);
        if (pos < 0 || pos + 16 > static_cast<int32_t>(bytes) || pos > boundary + 2) continue;
        // The sample that ends at the boundary, or the one that begins there.
        const uint32_t row = i / 2 - (pos < boundary ? 1 : 0), col = skip0 + pos - row * p.size;
        const uint8_t* own = sample_at<by_id>(p, sample0 + row);
        if (is_inside(col, p.size, misalignment(own + col, 4))) continue;
        uint32_t w[4];
        edge_window<false>(own, p.size, col, w);
        if (col + 16 > p.size) {
            const uint32_t left = p.size - col, last = left / 4, mask = (1u << (8 * (left % 4))) - 1;
            uint32_t next[4];
            edge_window<true>(sample_at<by_id>(p, sample0 + row + 1), p.size, -static_cast<int32_t>(left), next);
#pragma unroll
            for (uint32_t k = 0; k < 4; ++k) {
                const uint32_t both = (w[k] & mask) | (next[k] & ~mask);
                w[k] = k < last ? w[k] : k == last ? both : next[k];
            }
        }
        store_words(out + pos, w);
    }
    // The last bytes of the output.
    if ((bytes & 15) != 0 && lane < (bytes & 15)) {
        const uint32_t pos = (bytes & ~15u) + lane, at = skip0 + pos, row = divide(at, p.by_size);
        store(out + pos, load<uint8_t>(sample_at<by_id>(p, sample0 + row) + (at - row * p.size)));
    }
}

}  // namespace windrow
