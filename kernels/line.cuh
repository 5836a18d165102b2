// Family line: runs of elements that are adjacent in the source and in the output, moved or cast, with
// padding on both sides (stack, pad, ragged, masks). Source and output may have any alignment.
//
// A line is cut into vectors of 16 bytes and single elements by the sizes of its elements alone. The
// single elements, which are few, go through the one conversion for all dtypes; only the loops over
// vectors are compiled for their pair of dtypes.
#pragma once

#include "casts.cuh"

namespace windrow {

/// Elements in a row: [0, lead) are padding, [lead, lead + real) are read, the rest of `width` is padding.
struct Line {
    const uint8_t* src;  ///< of the first element read
    uint8_t* dst;
    uint32_t lead, real, width;
    uint32_t before;     ///< readable bytes of the sample in front of `src`, cut off at 16 or more
    uint32_t after;      ///< and behind the last element read
};

/// What becomes of the elements that are read.
struct LineCast {
    uint32_t from, to;
    uint32_t loop;       ///< of the vectors: cast_number(), kMovedLoop, kRaised32 or kRaised64
    uint32_t from_size;  ///< bytes; 0: nothing is read, and the elements are `value`
    uint32_t to_size, log_to;
    Affine affine;       ///< of one channel; raised: where the number is
    uint64_t value;
};

/// Vectors of a lane whose loads are under way together: 64 bytes of the source, or 32 where a vector may be made
/// twice or the cast is rare, for the sake of the code's size.
template <class Cast, uint32_t words>
constexpr uint32_t kUnroll = words > 8 ? 1 : words > 4 || !Cast::kIsCommon || (words == 4 && Cast::kTo == 2) ? 2 : 4;

/// Moves 16 bytes.
struct Bytes {
    static constexpr uint32_t kFrom = 1, kTo = 1;
    static constexpr bool kIsCommon = true;
    WINDROW_DEVICE void vector(const uint32_t (&in)[4], uint32_t (&out)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[i] = in[i];
    }
};

/// Vectors [0, count) of a line, the first from `src` to `dst`, which is a multiple of 16. The turns begin with the
/// sector or, of long lines, the line of the cache that the first is in: stores touch as few as may be.
template <Alignment alignment, class Cast>
WINDROW_DEVICE void line_vectors(const Cast& cast, const uint8_t* src, uint8_t* dst, uint32_t count, const Team& team) {
    constexpr uint32_t kBytes = 16 / Cast::kTo * Cast::kFrom, kWords = (kBytes + 3) / 4, kMany = kUnroll<Cast, kWords>;
    const auto first = static_cast<int32_t>(team.first(kMany) - first_turn(dst, team)), step = static_cast<int32_t>(team.step(kMany));
    Windows<alignment, kBytes> windows(src + int64_t{first} * kBytes);
    dst += int64_t{first} * 16;
    int32_t before = -first;
#pragma unroll 1
    for (int32_t left = static_cast<int32_t>(count) - first; left > 0; left -= step) {
        keep(windows.src);
        keep(dst);
        uint32_t in[kMany][kWords];
#pragma unroll
        for (uint32_t i = 0; i < kMany; ++i) {
            if (i == 0) windows.read_if(0, before - 1, 0, in[i]);
            else windows.read_if(left, static_cast<int32_t>(kTeamLanes * i), kTeamLanes * kBytes * i, in[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < kMany; ++i) {
            uint32_t out[4];
            cast.vector(in[i], out);
            if (i == 0) {
                store_words(0, before - 1, dst, out);
            } else {
                store_words(left, static_cast<int32_t>(kTeamLanes * i), dst + kTeamLanes * 16 * i, out);
            }
        }
        before = 0;
        windows.advance(int64_t{step} * kBytes);
        dst += int64_t{step} * 16;
    }
}

template <class Cast>
WINDROW_DEVICE void line_vectors(const Cast& cast, bool is_aligned, const uint8_t* src, uint8_t* dst, uint32_t count, const Team& team) {
    if (Cast::kIsCommon && is_aligned) {
        line_vectors<kAligned>(cast, src, dst, count, team);
    } else {
        line_vectors<kMisaligned>(cast, src, dst, count, team);
    }
}

/// The elements of a line that are read.
WINDROW_DEVICE void cast_line(const LineCast& cast, const uint8_t* src, uint8_t* dst, uint32_t real, uint32_t before, uint32_t after,
                              const Team& team) {
    const uint32_t from_size = cast.from_size, log_to = cast.log_to;
    const Cut cut = cut_run(src, dst, real, from_size, log_to, before, after);
    const uint32_t in_vectors = cut.vectors << (4 - log_to);
#pragma unroll 1
    for (uint32_t i = team.thread; i < real - in_vectors; i += team.threads) {
        const uint32_t at = i < cut.head ? i : i + in_vectors;
        uint64_t bits = read_element(src + uint64_t{at} * from_size, from_size);
        if (cast.loop != kMovedLoop) {
            // A cast among integers extends a sign at most.
            if (!is_integral(cast.from) || !is_integral(cast.to)) {
                if (cast.loop >= kRaised32) bits += cast.affine.get<uint64_t>(0);
                else bits = convert_one(bits, static_cast<uint8_t>(cast.from), static_cast<uint8_t>(cast.to), cast.affine, 0);
            } else if (cast.from <= kI32) {
                const uint32_t unused = 32 - 8 * from_size;
                bits = static_cast<uint64_t>(int64_t{static_cast<int32_t>(static_cast<uint32_t>(bits) << unused) >> unused});
            }
        }
        write_element(dst + (uint64_t{at} << log_to), bits, cast.to_size);
    }
    if (cut.vectors == 0) return;
    src += cut.head * from_size;
    dst += cut.head << log_to;
    if (cast.loop == kMovedLoop) return line_vectors(Bytes{}, cut.is_aligned, src, dst, cut.vectors, team);
    switch (cast.loop) {
#define WINDROW_CASE(type, from, to, mapped) \
    case cast_number(from, to, mapped):      \
        return line_vectors(type<from, to, mapped>(cast.affine), cut.is_aligned, src, dst, cut.vectors, team);
        WINDROW_CASTS(WINDROW_CASE)
#undef WINDROW_CASE
        case kRaised32: return line_vectors(Raised<kI32>(cast.affine), cut.is_aligned, src, dst, cut.vectors, team);
        case kRaised64: return line_vectors(Raised<kI64>(cast.affine), cut.is_aligned, src, dst, cut.vectors, team);
        default: __builtin_unreachable();
    }
}

/// Writes the team's part of a line. `fill`: the padding over and over, its first byte at `line.dst`.
WINDROW_DEVICE void write_line(const Line& line, LineCast cast, Vec16 fill, const Team& team) {
    const uint32_t size = cast.to_size, padding = line.width - line.lead - line.real;
    uint8_t* dst = line.dst + line.lead * size;
    uint32_t real = line.real;
    if (line.lead > 0) fill_run(line.dst, line.lead, size, fill, team);
    if (padding > 0) fill_run(dst + real * size, padding, size, fill, team);
    if (real == 0) return;
    if (cast.from_size == 0) return fill_run(dst, real, size, repeated({cast.value, 0}, size), team);
    if (cast.loop == kMovedLoop) {
        as_branch();
        real *= size;
        cast.from_size = cast.to_size = 1;
        cast.log_to = 0;
    }
    cast_line(cast, line.src, dst, real, line.before, line.after, team);
}

}  // namespace windrow
