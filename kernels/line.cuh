// Family line: runs of elements that are adjacent in the source and in the output, moved or cast, with
// padding behind them (stack, pad, ragged, masks). Both sides may have any alignment.
#pragma once

#include "lanes.cuh"

namespace windrow {

/// A warp's piece of one row.
struct Line {
    const uint8_t* src;  ///< of the piece's first element
    uint8_t* dst;
    uint32_t real;       ///< elements read; those behind, up to `width`, are padding
    uint32_t width;
    uint32_t before;      ///< bytes of the sample in front of `src`, cut off at 16 or more
    uint32_t after;     ///< and behind the last real element
};

// ---- Casts: `vector` makes 16 bytes of output, `one` an element, from exact bits to exact bits.

/// Moved, by elements of `size` bytes.
template <uint32_t size>
struct Move {
    static constexpr uint32_t kFrom = size, kTo = size;
    static constexpr bool kReads = true;
    WINDROW_DEVICE void vector(const uint32_t (&in)[4], uint32_t (&out)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[i] = in[i];
    }
    WINDROW_DEVICE uint64_t one(uint64_t bits) const { return bits; }
};

/// One value for all elements: masks.
template <uint32_t size>
struct Constant {
    static constexpr uint32_t kFrom = size, kTo = size;
    static constexpr bool kReads = false;
    uint64_t value;
    WINDROW_DEVICE void vector(const uint32_t (&)[4], uint32_t (&out)[4]) const {
        const Vec16 v = repeated({value, 0}, size);
        out[0] = out[2] = static_cast<uint32_t>(v.lo);
        out[1] = out[3] = static_cast<uint32_t>(v.lo >> 32);
    }
    WINDROW_DEVICE uint64_t one(uint64_t) const { return value; }
};

/// int32 to int64.
struct I32ToI64 {
    static constexpr uint32_t kFrom = 4, kTo = 8;
    static constexpr bool kReads = true;
    WINDROW_DEVICE void vector(const uint32_t (&in)[2], uint32_t (&out)[4]) const {
        out[0] = in[0];
        out[1] = static_cast<uint32_t>(static_cast<int32_t>(in[0]) >> 31);
        out[2] = in[1];
        out[3] = static_cast<uint32_t>(static_cast<int32_t>(in[1]) >> 31);
    }
    WINDROW_DEVICE uint64_t one(uint64_t bits) const { return Number<kI32>::wrapped(bits); }
};

/// Bytes and 16-bit integers to floats, through x * a + b where `affine` (a and b are finite, so that
/// nothing can be NaN).
template <uint8_t from, uint8_t to, bool affine>
struct SmallInt {
    static constexpr uint32_t kFrom = from == kU8 || from == kI8 ? 1 : 2;
    static constexpr uint32_t kTo = to == kF32 ? 4 : 2;
    static constexpr bool kReads = true;
    static constexpr uint32_t kElems = 16 / kTo, kWords = (kElems * kFrom + 3) / 4;
    float a, b;
    WINDROW_DEVICE void vector(const uint32_t (&in)[kWords], uint32_t (&out)[4]) const {
        if constexpr (from == kU8 && to == kF16 && !affine) {
            // A byte in the low half of 1024 (0x6400) is 1024 + x, exactly; 1024 off again.
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                out[i] = less_1024(in[i / 2], i % 2);
            }
        } else {
            float x[kElems];
#pragma unroll
            for (uint32_t i = 0; i < kElems; ++i) {
                const uint32_t bits = in[i * kFrom / 4] >> (8 * (i * kFrom % 4));
                x[i] = from == kU8 ? byte_as_float(in, i) : Number<from>::single(bits);
                if (affine) x[i] = fmaf(x[i], a, b);
            }
            pack<to>(x, out);
        }
    }
    static WINDROW_DEVICE uint32_t less_1024(uint32_t word, uint32_t half) {
#ifdef __CUDA_ARCH__
        uint32_t pair, done;
        asm("prmt.b32 %0, %1, 0x64646464, %2;" : "=r"(pair) : "r"(word), "r"(half ? 0x4342u : 0x4140u));
        asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(done) : "r"(pair), "r"(0x64006400u));
        return done;
#else
        const uint32_t two = word >> (16 * half);
        return to_f16(static_cast<float>(two & 0xFF)) |
               static_cast<uint32_t>(to_f16(static_cast<float>(two >> 8 & 0xFF))) << 16;
#endif
    }
    WINDROW_DEVICE uint64_t one(uint64_t bits) const {
        float x = Number<from>::single(bits);
        if (affine) x = multiply_add(x, a, b);
        return Number<to>::from(x);
    }
};

/// Floats to 16-bit floats and bfloat16 to float32, with or without x * a + b. A vector with a NaN in
/// it is made again one by one, as the rules want its payload.
template <uint8_t from, uint8_t to, bool affine>
struct Float {
    static constexpr uint32_t kFrom = from == kF32 ? 4 : 2, kTo = to == kF32 ? 4 : 2;
    static constexpr bool kReads = true;
    static constexpr uint32_t kElems = 16 / kTo, kWords = kElems * kFrom / 4;
    float a, b;
    WINDROW_DEVICE static float at(const uint32_t (&in)[kWords], uint32_t i) {
        if (from == kF32) return float_of(in[i % kWords]);
        const uint32_t bits = in[i / 2 % kWords] >> (16 * (i % 2)) & 0xFFFF;
        if (from == kBF16) return float_of(i % 2 ? in[i / 2 % kWords] & 0xFFFF0000 : in[i / 2 % kWords] << 16);
#ifdef __CUDA_ARCH__
        float x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<uint16_t>(bits)));
        return x;
#else
        return from_f16(bits);
#endif
    }
    WINDROW_DEVICE void vector(const uint32_t (&in)[kWords], uint32_t (&out)[4]) const {
        if constexpr (!affine && to == kF32) {
            // Exact, but for a NaN that is not quiet; the words of the source tell, two at a time.
            constexpr uint32_t kUp = from == kBF16 ? 0x007F007F : 0x03FF03FF;
            uint32_t nan = 0;
#pragma unroll
            for (uint32_t i = 0; i < kWords; ++i) nan |= (in[i] & 0x7FFF7FFF) + kUp;
#pragma unroll
            for (uint32_t i = 0; i < kElems; ++i) out[i % 4] = bits_of(at(in, i));
            if (nan & 0x80008000) slowly(in, out);
            return;
        } else {
            float x[kElems];
            bool is_nan = false;
#pragma unroll
            for (uint32_t i = 0; i < kElems; ++i) {
                x[i] = at(in, i);
                if (affine) x[i] = fmaf(x[i], a, b);
            }
            // One test for two: a sum is NaN where either is. Sums of infinities are too, and go the
            // long way.
#pragma unroll
            for (uint32_t i = 0; i < kElems; i += 2) {
                const float sum = x[i] + x[i + 1];
                is_nan = is_nan || sum != sum;
            }
            pack<to>(x, out);
            if (is_nan) slowly(in, out);
        }
    }
    /// One after the other, the next always being the lowest: short code, as it is rarely run.
    WINDROW_DEVICE void slowly(const uint32_t (&in)[kWords], uint32_t (&out)[4]) const {
        uint32_t rest[kWords + 1] = {};
#pragma unroll
        for (uint32_t i = 0; i < kWords; ++i) rest[i] = in[i];
#pragma unroll 1
        for (uint32_t i = 0; i < kElems; ++i) {
            const uint32_t done = static_cast<uint32_t>(one(kFrom == 4 ? rest[0] : rest[0] & 0xFFFF));
#pragma unroll
            for (uint32_t k = 0; k < kWords; ++k) {
                rest[k] = kFrom == 4 ? rest[k + 1] : funnel(rest[k], rest[k + 1], 16);
            }
#pragma unroll
            for (uint32_t k = 0; k < 4; ++k) {
                const uint32_t next = k < 3 ? out[(k + 1) % 4] : done;
                out[k] = kTo == 4 ? next : funnel(out[k], next, 16);
            }
        }
    }
    WINDROW_DEVICE uint64_t one(uint64_t bits) const {
        float x = Number<from>::single(bits);
        if (affine) x = multiply_add(x, a, b);
        return Number<to>::from(x);
    }
};

// ---- The body.

/// One element of `size` bytes at any address.
template <uint32_t size>
WINDROW_DEVICE uint64_t read_one(const uint8_t* p) {
    if (size == 1) return load<uint8_t>(p);
    if (misalignment(p, size) == 0) {
        return size == 2 ? load<uint16_t>(p) : size == 4 ? load<uint32_t>(p) : load<uint64_t>(p);
    }
    uint64_t bits = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < size; ++i) bits |= static_cast<uint64_t>(load<uint8_t>(p + i)) << (8 * i);
    return bits;
}

template <uint32_t size>
WINDROW_DEVICE void write_one(uint8_t* p, uint64_t bits) {
    if (size == 1) return store(p, static_cast<uint8_t>(bits));
    if (misalignment(p, size) == 0) {
        if (size == 2) return store(p, static_cast<uint16_t>(bits));
        if (size == 4) return store(p, static_cast<uint32_t>(bits));
        return store(p, bits);
    }
#pragma unroll 1
    for (uint32_t i = 0; i < size; ++i) store(p + i, static_cast<uint8_t>(bits >> (8 * i)));
}

/// The elements of a line that are not in vectors, one to a lane: [0, head), [done, pad), [tail, width).
template <uint32_t kTeam, class Cast>
WINDROW_DEVICE void line_elements(const Cast& cast, const Line& line, uint64_t fill, uint32_t head,
                                  uint32_t done, uint32_t pad, uint32_t tail, uint32_t lane) {
    const uint32_t count = head + (pad - done) + (line.width - tail);
#pragma unroll 1
    for (uint32_t i = lane; i < count; i += kTeam) {
        uint32_t e = i;
        if (e >= head) e += done - head;
        if (e >= pad) e += tail - pad;
        uint64_t bits = fill;
        if (e < line.real) {
            bits = cast.one(Cast::kReads ? read_one<Cast::kFrom>(line.src + uint64_t{e} * Cast::kFrom) : 0);
        }
        write_one<Cast::kTo>(line.dst + uint64_t{e} * Cast::kTo, bits);
    }
}

/// Vectors [0, count) of real elements, the first from `src` to `dst`. kUnroll windows of a lane are
/// under way together.
template <Alignment alignment, uint32_t kTeam, uint32_t kUnroll, class Cast>
WINDROW_DEVICE void line_vectors(const Cast& cast, const uint8_t* src, uint8_t* dst, uint32_t count,
                                 uint32_t lane) {
    constexpr uint32_t kBytes = 16 / Cast::kTo * Cast::kFrom, kWords = (kBytes + 3) / 4;
    src += uint64_t{lane} * kBytes;
    dst += 16 * lane;
    const uint32_t skew = Cast::kReads ? skew_of<alignment, kBytes>(src) : 0;
    src -= skew;
    uint32_t left = count > lane ? (count - lane + kTeam - 1) / kTeam : 0;
#pragma unroll 1
    while (left > 0) {
        uint32_t in[kUnroll][kWords] = {};
#pragma unroll
        for (uint32_t i = 0; i < kUnroll; ++i) {
            if (Cast::kReads && i < left) read_window<alignment, kBytes>(src + kTeam * kBytes * i, skew, in[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < kUnroll; ++i) {
            uint32_t out[4];
            cast.vector(in[i], out);
            if (i < left) store_words(dst + kTeam * 16 * i, out);
        }
        src += kTeam * kBytes * kUnroll;
        dst += kTeam * 16 * kUnroll;
        left -= minimum(left, kUnroll);
    }
}

/// Writes a line by a team of `kTeam` lanes, of which this is `lane`: a warp, or 8 lanes where lines are
/// short. `fill`: the padding's bits; the caller passes it `repeated` as well.
template <uint32_t kTeam, uint32_t kUnroll, class Cast>
WINDROW_DEVICE void write_line(const Cast& cast, const Line& line, Vec16 fill, uint32_t lane) {
    constexpr uint32_t kElems = 16 / Cast::kTo, kBytes = kElems * Cast::kFrom;
    const uint64_t fill_bits = Cast::kTo == 8 ? fill.lo : fill.lo & ~(~0ull << (8 * Cast::kTo % 64));
    // Elements in front of the first aligned address. An output that no element is aligned in, which a
    // caller may hand us, is written element by element.
    const uint32_t phase = misalignment(line.dst, 16);
    uint32_t body = phase % Cast::kTo != 0 ? line.width : (16 - phase) % 16 / Cast::kTo;
    body = minimum(body, line.width);
    uint32_t vectors = line.real > body ? (line.real - body) / kElems : 0;
    const uint8_t* src = line.src + uint64_t{body} * Cast::kFrom;
    const Alignment alignment = Cast::kReads ? alignment_of<kBytes>(src) : kAligned;
    if (Cast::kReads && vectors > 0) {
        // Windows may touch words beside theirs, though none of another's memory.
        const Reach reach = reach_of<kBytes>(alignment, src);
        const uint32_t behind = line.after + (line.real - body - vectors * kElems) * Cast::kFrom;
        if (reach.after > behind) vectors -= minimum(vectors, (reach.after - behind + kBytes - 1) / kBytes);
        if (reach.before > line.before + body * Cast::kFrom && vectors > 0) {
            body += kElems;
            src += kBytes;
            --vectors;
        }
    }
    uint8_t* dst = line.dst + uint64_t{body} * Cast::kTo;
    if (alignment == kAligned) {
        line_vectors<kAligned, kTeam, kUnroll>(cast, src, dst, vectors, lane);
    } else {
        line_vectors<kMisaligned, kTeam, kUnroll>(cast, src, dst, vectors, lane);
    }
    // Between the vectors and the padding, and the padding's vectors.
    const uint32_t done = body + vectors * kElems;
    uint32_t pad = done;
    if (line.real > done) pad += (line.real - done + kElems - 1) / kElems * kElems;
    pad = minimum(pad, line.width);
    const uint32_t fills = (line.width - pad) / kElems;
    uint8_t* p = line.dst + uint64_t{pad} * Cast::kTo + 16 * lane;
#pragma unroll 4
    for (uint32_t i = lane; i < fills; i += kTeam, p += 16 * kTeam) store16(p, fill);
    line_elements<kTeam>(cast, line, fill_bits, body, done, pad, pad + fills * kElems, lane);
}

}  // namespace windrow
