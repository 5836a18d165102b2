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
    uint8_t from, to;
    uint8_t from_size;  ///< bytes; 0: nothing is read, and the elements are `value`
    uint8_t to_size;
    Affine affine;      ///< of one channel
    uint64_t value;
};

/// Vectors of a lane whose loads are under way together: 64 bytes of the source, or 32 where a vector may
/// be made twice, for the sake of the code's size.
template <class Cast, uint32_t words>
constexpr uint32_t kUnroll = words > 8 ? 1 : words > 4 || (words == 4 && Cast::kTo == 2) ? 2 : 4;

/// Moves 16 bytes.
struct Bytes {
    static constexpr uint32_t kFrom = 1, kTo = 1;
    WINDROW_DEVICE void vector(const uint32_t (&in)[4], uint32_t (&out)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[i] = in[i];
    }
};

/// Vectors [0, count) of a line, the first from `src` to `dst`, which is a multiple of 16.
template <Alignment alignment, uint32_t kThreads, class Cast>
WINDROW_DEVICE void line_vectors(const Cast& cast, const uint8_t* src, uint8_t* dst, uint32_t count, const Team<kThreads>& team) {
    constexpr uint32_t kBytes = 16 / Cast::kTo * Cast::kFrom, kWords = (kBytes + 3) / 4, kMany = kUnroll<Cast, kWords>;
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
            read_window<alignment, kBytes>(left > static_cast<int32_t>(kThreads * i), src + kThreads * kBytes * i, skew, in[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < kMany; ++i) {
            uint32_t out[4];
            cast.vector(in[i], out);
            store_words(left, static_cast<int32_t>(kThreads * i), dst + kThreads * 16 * i, out);
        }
        src += uint64_t{step} * kBytes;
        dst += uint64_t{step} * 16;
    }
}

template <uint32_t kThreads, class Cast>
WINDROW_DEVICE void line_vectors(const Cast& cast, bool is_aligned, const uint8_t* src, uint8_t* dst, uint32_t count,
                                 const Team<kThreads>& team) {
    if (is_aligned) {
        line_vectors<kAligned>(cast, src, dst, count, team);
    } else {
        line_vectors<kMisaligned>(cast, src, dst, count, team);
    }
}

/// How the elements read are cut: `head` single ones, then vectors, then single ones.
struct Cut {
    uint32_t head, vectors;
    bool is_aligned;
};

/// Cuts `real` elements of 1 << log_from bytes at `src`, which become 1 << log_to bytes each at `dst`. No
/// window of the vectors reaches beyond `before` and `after`. An output that is not a multiple of the
/// size of its elements has no vectors.
WINDROW_DEVICE Cut cut_line(const uint8_t* src, const uint8_t* dst, uint32_t real, uint32_t log_from, uint32_t log_to, uint32_t before,
                            uint32_t after) {
    const uint32_t log_elems = 4 - log_to, elems = 1 << log_elems, bytes = 16 >> log_to << log_from;
    const uint32_t space = (16 - misalignment(dst, 16)) & 15;
    Cut cut = {minimum(space >> log_to, real), 0, true};
    if (misalignment(dst, 1 << log_to) != 0) cut.head = real;
    cut.vectors = (real - cut.head) >> log_elems;
    src += cut.head << log_from;
    cut.is_aligned = misalignment(src, minimum(bytes, 16)) == 0;
    if (!cut.is_aligned && bytes >= 4 && cut.vectors > 0) {
        const uint32_t load = bytes > 16 ? 8 : 4, skew = misalignment(src, load), beyond = load - skew;
        const uint32_t rest = after + ((real - cut.head - (cut.vectors << log_elems)) << log_from);
        if (beyond > rest) cut.vectors -= minimum(cut.vectors, (beyond - rest + bytes - 1) / bytes);
        if (skew > before + (cut.head << log_from) && cut.vectors > 0) {
            cut.head += elems;
            cut.vectors -= 1;
        }
    }
    return cut;
}

/// Lines of bytes that are moved.
template <uint32_t kThreads>
WINDROW_DEVICE void move_line(const uint8_t* src, uint8_t* dst, uint32_t bytes, uint32_t before, uint32_t after, const Team<kThreads>& team) {
    const Cut cut = cut_line(src, dst, bytes, 0, 0, before, after);
    if (team.warp == 0) {
        const uint32_t singles = bytes - 16 * cut.vectors;
#pragma unroll 1
        for (uint32_t i = team.lane; i < singles; i += kThreads) {
            const uint32_t at = i < cut.head ? i : i + 16 * cut.vectors;
            store(dst + at, load<uint8_t>(src + at));
        }
    }
    line_vectors(Bytes{}, cut.is_aligned, src + cut.head, dst + cut.head, cut.vectors, team);
}

/// Lines that are cast; has_loop() is true of the cast.
template <uint32_t kThreads>
WINDROW_DEVICE void cast_line(const LineCast& cast, const uint8_t* src, uint8_t* dst, uint32_t real, uint32_t before, uint32_t after,
                              const Team<kThreads>& team) {
    const uint32_t log_from = log_of(cast.from_size), log_to = log_of(cast.to_size);
    const Cut cut = cut_line(src, dst, real, log_from, log_to, before, after);
    if (team.warp == 0) {
        const uint32_t in_vectors = cut.vectors << (4 - log_to);
#pragma unroll 1
        for (uint32_t i = team.lane; i < real - in_vectors; i += kThreads) {
            const uint32_t at = i < cut.head ? i : i + in_vectors;
            uint64_t bits[1] = {read_element(src + (uint64_t{at} << log_from), cast.from_size)};
            convert(bits, cast.from, cast.to, cast.affine, 0, 0);
            write_element(dst + (uint64_t{at} << log_to), bits[0], cast.to_size);
        }
    }
    if (cut.vectors == 0) return;
    src += cut.head << log_from;
    dst += cut.head << log_to;
    switch (cast_number(cast.from, cast.to, cast.affine.a != nullptr)) {
#define WINDROW_CASE(type, from, to, mapped) \
    case cast_number(from, to, mapped):      \
        return line_vectors(type<from, to, mapped>(cast.affine), cut.is_aligned, src, dst, cut.vectors, team);
        WINDROW_CASTS(WINDROW_CASE)
#undef WINDROW_CASE
        default: return;
    }
}

/// Writes the team's part of a line. `fill`: the padding over and over, its first byte at `line.dst`.
///
/// Moved are elements of equal dtypes without a map; of any size.
template <uint32_t kThreads>
WINDROW_DEVICE void write_line(const Line& line, const LineCast& cast, Vec16 fill, const Team<kThreads>& team) {
    const uint32_t size = cast.to_size, padding = line.width - line.lead - line.real;
    uint8_t* dst = line.dst + line.lead * size;
    if (line.lead > 0) fill_run(line.dst, line.lead, size, fill, team);
    if (padding > 0) fill_run(dst + line.real * size, padding, size, fill, team);
    if (line.real == 0) return;
    if (cast.from_size == 0) {
        fill_run(dst, line.real, size, repeated({cast.value, 0}, size), team);
    } else if (cast.from == cast.to && cast.affine.a == nullptr) {
        move_line(line.src, dst, line.real * size, line.before, line.after, team);
    } else {
        cast_line(cast, line.src, dst, line.real, line.before, line.after, team);
    }
}

}  // namespace windrow
