// Family quantised: elements are divided by scales that are found on the way, or multiplied by scales that are given. A group is the
// elements that share a scale: a sample, a row, or a block of one. It has a lane for each 16 elements, up to a warp; an item is as
// many groups as a warp has lanes for, and neighbouring ones after them.
//
// Finding and dividing, of a group that is part of one row, of float16, bfloat16 or float32:
//
//     each lane:   load chunks of 16 elements, keep the last ones in registers; the largest magnitude of all its chunks
//     the group:   exchange the largest magnitude; scale = magnitude / largest number of the results' dtype
//     each lane:   divide its chunks, from registers if all of them fit there (2 KiB a warp), else loaded once more
//
// The lanes of a group exchange the largest magnitude, which no other family needs; on the host, where lanes run one after the
// other, the first lane of a group finds and divides all of it. Other groups, of several rows or of other dtypes, go element by
// element: loops over vectors for them have no case that is measured, and each is thousands of instructions.
//
// A quotient is that of float32, rounded once more. The product with the inverse and one correction give these bits for scales of
// usual size; other scales, and lanes that have read a NaN, divide one by one.
#pragma once

#include "casts.cuh"
#include "group_rows.cuh"

namespace windrow {

/// The larger of two magnitudes, of which the second may be NaN, which does not count: fmaxf() of the host counts signaling ones.
WINDROW_DEVICE float larger_of(float most, float x) {
#ifdef __CUDA_ARCH__
    return fmaxf(most, x);
#else
    return most < x ? x : most;
#endif
}

/// The larger of two magnitudes, or NaN if one is.
WINDROW_DEVICE float larger_or_nan(float a, float b) {
#ifdef __CUDA_ARCH__
    float most;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
    return most;
#else
    return a != a ? a : b != b ? b : a < b ? b : a;
#endif
}

/// The larger magnitudes of two pairs of floats of 16 bits, of which the first has no signs, by the
/// order of float16, in which the largest bfloat16 are NaN, too: NaN then.
WINDROW_DEVICE uint32_t larger_pair(uint32_t most, uint32_t pair) {
#ifdef __CUDA_ARCH__
    asm("{ .reg .b32 size; abs.f16x2 size, %1; max.NaN.f16x2 %0, %0, size; }" : "+r"(most) : "r"(pair));
    return most;
#else
    auto larger = [](uint32_t a, uint32_t b) { return a > 0x7C00 || b > 0x7C00 ? 0x7FFF : a < b ? b : a; };
    return larger(most & 0xFFFF, pair & 0x7FFF) | larger(most >> 16, pair >> 16 & 0x7FFF) << 16;
#endif
}

/// The largest of the magnitudes that `lanes` lanes beside each other, a power of two, have found:
/// all of them get it. All lanes of the warp call it. On the host, which has no exchange, the
/// lane's own.
WINDROW_DEVICE float largest_of(float most, uint32_t lanes) {
#ifdef __CUDA_ARCH__
#pragma unroll 1
    for (uint32_t step = lanes / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
#endif
    return most;
}

/// The scale of a group whose largest element has this magnitude, and `rule.least` at least. With
/// kPowers it is a power of two, the exponent of the magnitude less that of the largest number:
/// quotients may be beyond that; NaN for infinity.
WINDROW_DEVICE float scale_for(const ScaleRule& rule, float most) {
    most = fmaxf(most, rule.least);
    if (!(rule.flags & kPowers)) return most / rule.largest;
    const uint32_t bits = bits_of(most);
    if (bits == 0x7F800000) return float_of(0x7FC00000);  // there is no infinity among powers of two
    const int32_t power = static_cast<int32_t>(bits >> 23) - 127 - rule.exponent;
    const int32_t code = power < -127 ? 0 : power > 127 ? 254 : power + 127;
    return float_of(code == 0 ? 1u << 22 : static_cast<uint32_t>(code) << 23);
}

/// How elements of a group are divided by its scale.
struct Divider {
    float scale, inverse;
    uint8_t to;

    WINDROW_DEVICE Divider(float by, uint8_t dtype) : scale(by), inverse(1 / by), to(dtype) {}

    /// Whether quotient() has the bits of the division where they matter: the remainder of what is not rounded to zero is exact.
    WINDROW_DEVICE bool is_usual() const { return scale >= float_of(47u << 23) && scale <= float_of(227u << 23); }

    /// A finite number divided by a usual scale, but for the sign of zero. Below 2^-18 the last bit may be another.
    WINDROW_DEVICE float quotient(float x) const {
        const float near = x * inverse;
        return fmaf(fmaf(-near, scale, x), inverse, near);
    }

    /// A number of int8 in the low byte, rounded: in floats from 1.5 * 2^23 on the last bit is a whole number, so that adding rounds.
    static WINDROW_DEVICE uint32_t whole(float x) { return bits_of(x + 12582912.0f); }

    /// The result of any element, saturated; NaN stays one, and becomes 0 of int8.
    WINDROW_DEVICE uint32_t one(float x) const {
        const float quotient = copysignf(x / scale, x);
        if (to != kI8) return to_float8(quotient, to | kSaturate);
        if (quotient != quotient) return 0;
        return whole(fminf(fmaxf(quotient, -128.0f), 127.0f)) & 0xFF;
    }

    /// Four results of finite numbers, whose signs are in the highest bits of bytes. `dtype` is `to`.
    template <uint8_t dtype>
    WINDROW_DEVICE uint32_t four(const float (&x)[4], uint32_t signs) const {
        float q[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) q[i] = quotient(x[i]);
        if constexpr (dtype == kI8) {
            return pair_of<2>(pair_of<1>(whole(q[0]), whole(q[1])), pair_of<1>(whole(q[2]), whole(q[3])));
        }
#if !WINDROW_CASTS_FLOAT8
        // A power of two as the scale leaves quotients beyond the largest number.
        const float most = float_of(dtype == kF8E4M3FN ? 0x43E00000 : 0x47600000);
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) q[i] = fminf(fmaxf(q[i], -most), most);
#endif
        return (pack_float8<false>(dtype, q, signs) & 0x7F7F7F7F) | (signs & 0x80808080);
    }
};

/// The lanes of a group of float16, bfloat16 or float32, and what each of them keeps of it.
template <class N>
struct Quantiser {
    using Bits = typename N::Bits;
    static constexpr uint32_t kBytes = sizeof(Bits), kWords = kChunk * kBytes / 4;
    /// Chunks of a lane that are under way together, 64 bytes or one.
    static constexpr uint32_t kMany = 4 / kBytes;

    ThreadGroup team;
    float most = 0;
    bool has_nan = false;
    uint32_t kept[kMany][kWords];

    WINDROW_DEVICE explicit Quantiser(const ThreadGroup& threads) : team(threads) {}

    /// Whether elements are adjacent in the source, at multiples of their size, and in the output.
    static WINDROW_DEVICE bool is_adjacent(const GroupRow& row) {
        return row.src_stride == kBytes && row.dst_stride == 1 && misalignment(row.src, kBytes) == 0;
    }
    /// The whole chunks of a row whose elements are adjacent, else 0; the elements behind them go
    /// one by one.
    static WINDROW_DEVICE uint32_t chunks_of(const GroupRow& row) { return is_adjacent(row) ? row.real / kChunk : 0; }

    /// Whether a row's chunks all stay where load() puts them.
    WINDROW_DEVICE bool keeps(const GroupRow& row) const { return chunks_of(row) <= kMany * team.size; }

    static WINDROW_DEVICE float element(const GroupRow& row, uint32_t i) {
        return N::single(read_element_at<Bits>(row.src + int64_t{i} * row.src_stride));
    }

    /// Numbers 4 * i on of a chunk; a NaN remains one.
    static WINDROW_DEVICE void numbers(const uint32_t (&words)[kWords], uint32_t i, float (&x)[4]) {
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k) {
            x[k] = N::loose(element_of<kBytes>(words, 4 * i + k));
        }
    }

    /// Whether lanes have a chunk number `k` in a turn. Where a lane has none, but others have, it takes the last one of all again,
    /// which is read twice and written once: all lanes then go one way.
    WINDROW_DEVICE bool has_chunk(uint32_t k, uint32_t chunks) const { return k == 0 || k * team.size < chunks; }

    /// Reads the chunks of a turn, of which the first of this lane is `first`, below `chunks`.
    WINDROW_DEVICE void load(const GroupRow& row, uint32_t first, uint32_t chunks) {
#pragma unroll
        for (uint32_t k = 0; k < kMany; ++k) {
            if (!has_chunk(k, chunks)) continue;
            const uint32_t chunk = minimum(first + k * team.size, chunks - 1);
            load_chunk<Bits>(row.src + uint64_t{chunk} * (kChunk * kBytes), kept[k]);
        }
    }

    /// Finds the largest magnitude of this lane's elements.
    WINDROW_DEVICE void find(const GroupRow& row) {
        const uint32_t chunks = chunks_of(row);
        float all = 0;
        uint32_t pairs = 0;
#pragma unroll 1
        for (uint32_t first = team.rank; first < chunks; first += kMany * team.size) {
            load(row, first, chunks);
#pragma unroll
            for (uint32_t k = 0; k < kMany; ++k) {
                if (!has_chunk(k, chunks)) continue;
                if constexpr (kBytes == 2) {
#pragma unroll
                    for (uint32_t i = 0; i < kWords; ++i) pairs = larger_pair(pairs, kept[k][i]);
                } else {
#pragma unroll
                    for (uint32_t i = 0; i < kChunk / 4; ++i) {
                        float x[4];
                        numbers(kept[k], i, x);
#pragma unroll
                        for (uint32_t j = 0; j < 4; ++j) all = larger_or_nan(all, fabsf(x[j]));
                    }
                }
            }
        }
        if constexpr (kBytes == 2) {
            const uint32_t low = pairs & 0xFFFF, high = pairs >> 16;
            all = low > 0x7C00 || high > 0x7C00 ? float_of(0x7FC00000) : larger_of(N::loose(low), N::loose(high));
        }
        if (all != all) {
            has_nan = true;
#pragma unroll 1
            for (uint32_t chunk = team.rank; chunk < chunks; chunk += team.size) {
#pragma unroll 1
                for (uint32_t i = 0; i < kChunk; ++i) most = larger_of(most, fabsf(element(row, chunk * kChunk + i)));
            }
        } else {
            most = larger_of(most, all);
        }
#pragma unroll 1
        for (uint32_t i = chunks * kChunk + team.rank; i < row.real; i += team.size) most = larger_of(most, fabsf(element(row, i)));
    }

    /// The results of a turn's chunks of finite numbers. `dtype` is that of the results.
    template <uint8_t dtype>
    WINDROW_DEVICE void divide_kept(const Divider& by, uint32_t chunks, uint32_t (&out)[kMany][4]) const {
#pragma unroll
        for (uint32_t k = 0; k < kMany; ++k) {
            if (!has_chunk(k, chunks)) continue;
#pragma unroll
            for (uint32_t i = 0; i < 4; ++i) {
                float x[4];
                numbers(kept[k], i, x);
                uint32_t signs;
                if constexpr (kBytes == 2) signs = high_bytes_of(kept[k][2 * i], kept[k][2 * i + 1]);
                else signs = signs_of(x);
                out[k][i] = by.four<dtype>(x, signs);
            }
        }
    }

    /// Writes this lane's elements. `is_kept`: they are where load() has put them.
    WINDROW_DEVICE void divide_by(const GroupRow& row, const Divider& by, bool is_kept) {
        const uint32_t chunks = chunks_of(row);
        uint8_t* dst = row.dst + int64_t{row.lead} * row.dst_stride;
        auto write = [&](uint32_t i) { store(dst + int64_t{i} * row.dst_stride, static_cast<uint8_t>(by.one(element(row, i)))); };
        const bool is_usual = by.is_usual() && !has_nan;
#pragma unroll 1
        for (uint32_t first = team.rank; first < chunks; first += kMany * team.size) {
            if (!is_usual) {
#pragma unroll 1
                for (uint32_t at = 0; at < kMany * kChunk; ++at) {
                    const uint32_t chunk = first + at / kChunk * team.size;
                    if (chunk < chunks) write(chunk * kChunk + at % kChunk);
                }
                continue;
            }
            if (!is_kept) load(row, first, chunks);
            uint32_t out[kMany][4];
            if (by.to == kF8E4M3FN) divide_kept<kF8E4M3FN>(by, chunks, out);
            else if (by.to == kF8E5M2) divide_kept<kF8E5M2>(by, chunks, out);
            else divide_kept<kI8>(by, chunks, out);
#pragma unroll
            for (uint32_t k = 0; k < kMany; ++k) {
                const uint32_t chunk = first + k * team.size;
                if (k == 0 || chunk < chunks) store_vector(dst + chunk * kChunk, out[k], 1);
            }
        }
#pragma unroll 1
        for (uint32_t i = chunks * kChunk + team.rank; i < row.real; i += team.size) write(i);
    }
};

WINDROW_DEVICE void store_scale(const OutputDesc& desc, const ScaleRule& rule, int64_t place, float scale) {
    uint8_t* dst = desc.quantised.scales + place;
    const uint32_t bits = bits_of(scale);
    if (rule.flags & kPowers) return store(dst, static_cast<uint8_t>(bits >> 23));
    store_elements(dst, {bits, 0}, 4, 0, 1, misalignment(dst, 4) == 0);
}

/// Whether a group has no element but padding; a sample never has.
WINDROW_DEVICE bool is_padding(const ScaleRule& rule, const GroupRow& row) { return !(rule.flags & kOfSample) && row.real == 0; }

/// Finds the scale of a group that is one row, 1 if all of it is padding, writes it, and divides by
/// it. All lanes of the warp call it; those without a group, `is_there` false, write nothing.
template <class N>
WINDROW_DEVICE void quantise_row(const OutputDesc& desc, const ScaleRule& rule, const GroupRow& row, bool is_there, const ThreadGroup& threads) {
#ifdef __CUDA_ARCH__
    const ThreadGroup team = threads;
    const bool divides = is_there;
#else
    const ThreadGroup team = {0, 1};
    const bool divides = is_there && threads.rank == 0;
#endif
    Quantiser<N> quantiser(team);
    if (divides) quantiser.find(row);
    const float most = largest_of(quantiser.most, threads.size);
    if (!is_there) return;
    const float scale = is_padding(rule, row) ? 1.0f : scale_for(rule, most);
    if (threads.rank == 0) store_scale(desc, rule, row.scale, scale);
    fill_around(desc, row, threads);
    if (divides) quantiser.divide_by(row, Divider(scale, desc.to), quantiser.keeps(row));
}

/// An element of any dtype that is quantised.
WINDROW_DEVICE float float_at(uint8_t dtype, const uint8_t* p) {
    switch (dtype) {
        case kF16: return Number<kF16>::single(read_element_at<uint16_t>(p));
        case kBF16: return Number<kBF16>::single(read_element_at<uint16_t>(p));
        case kF32: return Number<kF32>::single(read_element_at<uint32_t>(p));
        case kF64: return Number<kF64>::single(read_element_at<uint64_t>(p));
        default: return Float8(dtype).value(load<uint8_t>(p));
    }
}

/// The same of a group of any rows and any dtype, element by element: of `rows` rows, of which `row` is the first. Compiled once:
/// nothing that is kept in registers for a row lives across its calls.
WINDROW_OUT_OF_LINE void quantise_rows(const uint64_t* table, const OutputDesc& desc, uint32_t index, GroupRow row, uint32_t rows, bool is_there,
                                       const ThreadGroup& threads) {
    const ScaleRule& rule = *at<ScaleRule>(table, desc.quantised.rule);
#ifdef __CUDA_ARCH__
    const uint32_t rank = threads.rank, size = threads.size;
#else
    const uint32_t rank = threads.rank == 0 ? 0 : ~0u, size = 1;
#endif
    auto element = [&](uint32_t i) { return float_at(desc.from, row.src + int64_t{i} * row.src_stride); };
    float most = 0;
#pragma unroll 1
    for (uint32_t r = 0; r < rows; ++r) {
        if (r > 0) row = find_next(table, desc, index, r);
#pragma unroll 1
        for (uint32_t i = rank; i < row.real; i += size) most = larger_of(most, fabsf(element(i)));
    }
    most = largest_of(most, threads.size);
    if (!is_there) return;
    const float scale = is_padding(rule, row) ? 1.0f : scale_for(rule, most);
    if (threads.rank == 0) store_scale(desc, rule, row.scale, scale);
    const Divider divider(scale, desc.to);
#pragma unroll 1
    for (uint32_t r = 0; r < rows; ++r) {
        if (rows > 1) row = find_next(table, desc, index, r);
        fill_around(desc, row, threads);
        uint8_t* dst = row.dst + int64_t{row.lead} * row.dst_stride;
#pragma unroll 1
        for (uint32_t i = rank; i < row.real; i += size) store(dst + int64_t{i} * row.dst_stride, static_cast<uint8_t>(divider.one(element(i))));
    }
}

/// A number times its scale. A NaN is the number's quieted, or the scale's, or that of x86.
WINDROW_DEVICE float scaled(float x, float scale) {
    const float y = x * scale;
    const uint32_t nan = x != x ? bits_of(x) | kQuiet32 : scale != scale ? bits_of(scale) | kQuiet32 : 0xFFC00000;
    return y != y ? float_of(nan) : y;
}

/// Multiplies a row of a group by its scale. A lane writes two vectors at a time, whose elements it reads by one load each.
template <class To>
WINDROW_DEVICE void multiply_row(uint8_t from, const GroupRow& row, float scale, const ThreadGroup& threads) {
    constexpr uint32_t kSize = sizeof(typename To::Bits), kElems = 16 / kSize;
    using Packed = typename WordOf<kElems>::Type;
    auto result = [&](uint64_t bits) {
        const float x = from == kI8 ? Number<kI8>::single(bits) : Float8(from).value(static_cast<uint32_t>(bits));
        return To::from(scaled(x, scale));
    };
    uint8_t* dst = row.dst + int64_t{row.lead} * row.dst_stride;
    const uint32_t vectors = row.src_stride == 1 && row.dst_stride == kSize ? row.real / kElems : 0;
#pragma unroll 1
    for (uint32_t first = threads.rank; first < vectors; first += 2 * threads.size) {
        uint64_t packed[2] = {0, 0};
#pragma unroll
        for (uint32_t k = 0; k < 2; ++k) {
            const uint32_t vector = first + k * threads.size;
            if (vector < vectors) packed[k] = read_element_at<Packed>(row.src + uint64_t{vector} * kElems);
        }
#pragma unroll 1
        for (uint32_t vector = first; vector < vectors && vector <= first + threads.size; vector += threads.size) {
            uint32_t out[4] = {0, 0, 0, 0};
#pragma unroll
            for (uint32_t i = 0; i < kElems; ++i) {
                const uint64_t bits = result(packed[0] >> (8 * i) & 0xFF);
                out[kSize * i / 4] |= static_cast<uint32_t>(bits) << (8 * (kSize * i % 4));
                if constexpr (kSize == 8) out[2 * i + 1] = static_cast<uint32_t>(bits >> 32);
            }
            store_vector(dst + uint64_t{vector} * 16, out, kSize);
            packed[0] = packed[1];
        }
    }
#pragma unroll 1
    for (uint32_t i = vectors * kElems + threads.rank; i < row.real; i += threads.size) {
        uint8_t* to = dst + int64_t{i} * row.dst_stride;
        const uint64_t bits = result(load<uint8_t>(row.src + int64_t{i} * row.src_stride));
        store_elements(to, {bits, 0}, kSize, 0, 1, misalignment(to, kSize) == 0);
    }
}

/// Multiplies a group by the scale that it is given.
WINDROW_OUT_OF_LINE void multiply_group(const uint64_t* table, const OutputDesc& desc, uint32_t index, GroupRow row, uint32_t rows,
                                        const ThreadGroup& threads) {
    const ScaleRule& rule = *at<ScaleRule>(table, desc.quantised.rule);
    const float scale = at<float>(table, rule.given)[row.scale];
#pragma unroll 1
    for (uint32_t i = 0; i < rows; ++i) {
        if (i > 0) row = find_next(table, desc, index, i);
        fill_around(desc, row, threads);
        switch (desc.to) {
            case kF16: multiply_row<Number<kF16>>(desc.from, row, scale, threads); break;
            case kBF16: multiply_row<Number<kBF16>>(desc.from, row, scale, threads); break;
            case kF32: multiply_row<Number<kF32>>(desc.from, row, scale, threads); break;
            default: multiply_row<Number<kF64>>(desc.from, row, scale, threads);
        }
    }
}

WINDROW_DEVICE void write_groups(const uint64_t* table, const OutputDesc& desc, uint32_t item, uint32_t lane) {
    const ScaleRule& rule = *at<ScaleRule>(table, desc.quantised.rule);
    const uint32_t log_lanes = desc.nest.rows;
    const ThreadGroup threads = {lane & ((1u << log_lanes) - 1), 1u << log_lanes};
    item = ((item << (5 - log_lanes)) + (lane >> log_lanes)) * rule.run;
    const bool is_there = item < desc.quantised.groups;
    // Lanes beyond the last group take part in what the others exchange.
    if (!is_there) item = desc.quantised.groups - 1;
    const uint32_t index = find_sample(table, desc.nest, item);
    GroupRow row = find_first(table, desc, index, item);
    uint32_t rows = 1;
    if (rule.flags & kOfSample) rows = rows_of_group(table, desc, rule, index);
    if (!is_there) rows = 0;
    const bool has_rows = rule.rows != 1 || rule.flags & kJoinedRows;
    const int64_t src_step = row.src_stride * desc.nest.piece, dst_step = row.dst_stride * desc.nest.piece;
    const int64_t scale_step = rule.flags & kGiven ? 1 : rule.block_step;
#pragma unroll 1
    for (uint32_t left = rule.run; left > 0; --left) {
        if (rule.flags & kGiven) multiply_group(table, desc, index, row, rows, threads);
        else if (!has_rows && desc.from == kF16) quantise_row<Number<kF16>>(desc, rule, row, is_there, threads);
        else if (!has_rows && desc.from == kBF16) quantise_row<Number<kBF16>>(desc, rule, row, is_there, threads);
        else if (!has_rows && desc.from == kF32) quantise_row<Number<kF32>>(desc, rule, row, is_there, threads);
        else quantise_rows(table, desc, index, row, rows, is_there, threads);
        row.scale += scale_step;
        row.src += src_step;
        row.dst += dst_step;
    }
}

}  // namespace windrow
