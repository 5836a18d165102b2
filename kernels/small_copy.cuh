// Family small_copy: samples of one size at any alignment, moved to a dense output, where a row is too short
// for a warp of its own: 24 bytes to a few KiB.
//
// Two passes over a warp's stretch of the output. First every vector whose aligned words are all of one sample: five
// of them and four shifts. Then a boundary for each lane: up to two vectors, out of the last 20 bytes of one sample
// and the first 20 of the next.
#pragma once

#include "vector_io.cuh"

namespace windrow {

struct SmallSamples {
    Sources sources;
    uint8_t* out;             ///< a multiple of 16
    uint32_t bytes;           ///< bytes of the output, below 2^31
    uint32_t size;            ///< bytes of a sample, at least 24: the words of its first or last 20 bytes are in it
    Divisor by_size;
    uint32_t piece;           ///< bytes of output of a warp, a multiple of 512
};

/// The last multiple of 4 up to an address.
WINDROW_DEVICE const uint8_t* aligned_down(const uint8_t* p) {
    return reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(p) & ~uintptr_t{3});
}

/// Reads the last 20 bytes of a sample into five words; bytes before byte `from` have any value.
WINDROW_DEVICE void read_tail(const uint8_t* end, uint32_t from, uint32_t* w) {
    const uint32_t skew = misalignment(end, 4);
    const uint8_t* last = end - skew;
    from += skew;
    uint32_t raw[6];
#pragma unroll
    for (uint32_t k = 0; k < 5; ++k) {
        raw[k] = undef_u32();
        if (from < 4 * k + 4) raw[k] = load<uint32_t>(last - 20 + 4 * k);
    }
    raw[5] = 0;
    if (skew & 2) raw[5] = load_word<uint16_t>(last);
    if (skew & 1) raw[5] |= load_word<uint8_t>(end - 1) << (8 * (skew - 1));
#pragma unroll
    for (uint32_t k = 0; k < 5; ++k) w[k] = funnel(raw[k], raw[k + 1], 8 * skew);
}

/// Reads the first 20 bytes of a sample into five words; bytes from byte `to` on have any value.
WINDROW_DEVICE void read_head(const uint8_t* begin, uint32_t to, uint32_t* w) {
    const uint32_t skew = misalignment(begin, 4);
    const uint8_t* first = begin - skew;
    to += skew;
    uint32_t raw[6];
    raw[0] = 0;
    if (skew == 0) raw[0] = load<uint32_t>(first);
    if (skew & 1) raw[0] = load_word<uint8_t>(begin) << (8 * skew);
    if (skew - 1 < 2) raw[0] |= load_word<uint16_t>(first + 2) << 16;
#pragma unroll
    for (uint32_t k = 1; k < 6; ++k) {
        raw[k] = undef_u32();
        if (to > 4 * k) raw[k] = load<uint32_t>(first + 4 * k);
    }
#pragma unroll
    for (uint32_t k = 0; k < 5; ++k) w[k] = funnel(raw[k], raw[k + 1], 8 * skew);
}

/// Whether the words that a vector at byte `column` is in are all of its sample. `skew`: its misalignment to words.
WINDROW_DEVICE bool is_inside(uint32_t column, uint32_t size, uint32_t skew) {
    return column >= skew && column + 16 + (0 - skew & 3) <= size;
}

/// Writes one piece of the output, with all lanes of a warp. A turn is one vector for each lane.
template <bool by_id>
WINDROW_DEVICE void small_copy_piece(const SmallSamples& p, uint32_t piece, uint32_t lane) {
    constexpr uint32_t kUnroll = 4, kTurn = 16 * kLanes;
    const uint32_t begin = piece * p.piece;
    const uint32_t bytes = minimum(p.bytes - begin, p.piece);
    const uint32_t size = p.size;
    uint8_t* out = p.out + begin;
    // The first sample; the rest relative to it.
    const uint32_t sample0 = divide(begin, p.by_size), skip0 = begin - sample0 * size;
    const uint32_t last = divide(skip0 + bytes - 1, p.by_size);
    // A piece ends with a turn of all lanes or with the output, where a column beyond the last sample is inside none.
    const Divisor by_size = p.by_size;
    uint8_t* dst = out + 16 * lane;
    uint32_t raw[kUnroll][5];  // a word that a turn has no use for is that of the turn before
#pragma unroll
    for (uint32_t i = 0; i < kUnroll; ++i) {
#pragma unroll
        for (uint32_t k = 0; k < 5; ++k) raw[i][k] = undef_u32();
    }
#pragma unroll 1
    for (uint32_t turn = 0; turn < bytes; turn += kTurn * kUnroll, dst += kTurn * kUnroll) {
        const uint8_t* src[kUnroll];
        uint32_t skew[kUnroll], column[kUnroll];
#pragma unroll
        for (uint32_t i = 0; i < kUnroll; ++i) {
            const uint32_t at = skip0 + 16 * lane + turn + kTurn * i;
            const uint32_t row = minimum(divide(at, by_size), last);
            column[i] = at - row * size;
            src[i] = source_at<by_id>(p.sources, sample0 + row);
        }
        bool inside[kUnroll];
#pragma unroll
        for (uint32_t i = 0; i < kUnroll; ++i) {
            src[i] += column[i];
            skew[i] = misalignment(src[i], 4);
            inside[i] = is_inside(column[i], size, skew[i]) && turn + kTurn * i < bytes;
            if (inside[i]) {
                const uint8_t* word = aligned_down(src[i]);
#pragma unroll
                for (int k = 0; k < 4; ++k) raw[i][k] = load<uint32_t>(word + 4 * k);
                raw[i][4] = load<uint32_t>(aligned_down(src[i] + 15));
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < kUnroll; ++i) {
            uint32_t w[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) w[k] = funnel(raw[i][k], raw[i][k + 1], 8 * skew[i]);
            if (inside[i]) store_words(dst + kTurn * i, w);
        }
    }
    // Boundaries: the beginning of each sample from the first one on, and the end of the last. The vectors left begin up
    // to 19 bytes in front of one, or up to 2 behind it; byte `from` of the 40 around it is the first one's first.
#pragma unroll 1
    for (uint32_t i = lane; i < last + 2; i += kLanes) {
        const int32_t boundary = static_cast<int32_t>(i * size) - static_cast<int32_t>(skip0);
        const int32_t pos = boundary - 4 & ~15;
        const uint32_t from = pos + 20 - boundary;  // 1 to 16
        const bool has[2] = {pos >= 0 && pos + 16 <= static_cast<int32_t>(bytes),
                             from <= 6 && pos >= -16 && pos + 32 <= static_cast<int32_t>(bytes)};
        const uint8_t *end = nullptr, *begin = nullptr;
        if (has[0] || (has[1] && from < 4)) end = source_at<by_id>(p.sources, sample0 + i - 1) + size;
        if (has[1] || (has[0] && from > 4)) begin = source_at<by_id>(p.sources, sample0 + i);
        // Vectors that the first pass has written are left out.
        const bool first = has[0] && (from > 4 || misalignment(end + from, 4) - 1 < from - 1);
        const bool second = has[1] && (from < 4 || misalignment(begin + (from - 4), 4) > from - 4);
        uint32_t w[10], out_words[4];
#pragma unroll
        for (uint32_t k = 0; k < 10; ++k) w[k] = undef_u32();
        if (first || (second && from < 4)) read_tail(end, first ? from : from + 16, w);
        if (second || (first && from > 4)) read_head(begin, second ? from + 12 : from - 4, w + 5);
        if (first) {
            uint32_t x[8];
#pragma unroll
            for (uint32_t k = 0; k < 8; ++k) x[k] = k < 5 && from & 16 ? w[k + 4] : w[k];
#pragma unroll
            for (uint32_t k = 0; k < 6; ++k) x[k] = from & 8 ? x[k + 2] : x[k];
#pragma unroll
            for (uint32_t k = 0; k < 5; ++k) x[k] = from & 4 ? x[k + 1] : x[k];
#pragma unroll
            for (uint32_t k = 0; k < 4; ++k) out_words[k] = funnel(x[k], x[k + 1], 8 * (from & 3));
            store_words(out + pos, out_words);
        }
        if (second) {
            uint32_t x[5];
#pragma unroll
            for (uint32_t k = 0; k < 5; ++k) x[k] = from & 4 ? w[k + 5] : w[k + 4];
#pragma unroll
            for (uint32_t k = 0; k < 4; ++k) out_words[k] = funnel(x[k], x[k + 1], 8 * (from & 3));
            store_words(out + pos + 16, out_words);
        }
    }
    // The last bytes of the output.
    if ((bytes & 15) != 0 && lane < (bytes & 15)) {
        const uint32_t pos = (bytes & ~15u) + lane, at = skip0 + pos, row = divide(at, p.by_size);
        store(out + pos, load<uint8_t>(source_at<by_id>(p.sources, sample0 + row) + (at - row * size)));
    }
}

}  // namespace windrow
