// Family quantised: elements are divided by scales that are found on the way, or multiplied by scales that are given. An item is a
// group, the elements that share a scale: a sample, a row, or a block of one. Groups of up to 128 elements have 8 lanes each, longer
// ones a warp.
//
// A group of up to 2 KiB is read once: a lane keeps its elements in registers until the scale is known. A longer group is read
// twice, the second time out of the second cache. The lanes of a group exchange the largest magnitude that each has found, which no
// other family needs; on the host, where lanes run one after the other, the first lane of a group finds and divides all of it.
//
// A quotient is that of float32, rounded once more. The product with the inverse and one correction give these bits for scales of
// usual size; other scales, and lanes that have read a NaN, divide one by one.
#pragma once

#include "casts.cuh"
#include "segments.cuh"
#include "vector_io.cuh"

namespace windrow {

/// Elements of a lane that are written together.
constexpr uint32_t kChunk = 16;

/// A float8 that is read, as Number is of the other dtypes.
template <uint8_t dtype>
struct Float8Number {
    using Bits = uint8_t;
    static WINDROW_DEVICE float single(uint64_t bits) { return Float8(dtype).value(static_cast<uint32_t>(bits & 0xFF)); }
};

/// Calls `f` with what reads elements that are quantised.
template <class F>
WINDROW_DEVICE void with_float(uint8_t dtype, const F& f) {
    switch (dtype) {
        case kF16: return f(Number<kF16>());
        case kBF16: return f(Number<kBF16>());
        case kF32: return f(Number<kF32>());
        case kF64: return f(Number<kF64>());
        case kF8E4M3FN: return f(Float8Number<kF8E4M3FN>());
        case kF8E5M2: return f(Float8Number<kF8E5M2>());
        default: __builtin_unreachable();
    }
}

/// The elements of a group that are in one row of its sample, and the padding around them.
struct GroupRow {
    const uint8_t* src;  ///< of the first real element
    uint8_t* dst;        ///< of the first element
    int64_t src_stride, dst_stride;
    uint64_t lead, real, width;
    int64_t scale;       ///< bytes from the first scale of all to that of the group; given scales: their number
};

/// Row `item` of the group that is sample `index` of a descriptor; or group `item` of the sample, which is a part of a row.
template <class Index>
WINDROW_DEVICE GroupRow find_group(const uint64_t* table, const OutputDesc& desc, uint32_t index, uint32_t item) {
    const Nest& nest = desc.nest;
    const ScaleRule& rule = *at<ScaleRule>(table, desc.quantised.rule);
    const int64_t* strides = reinterpret_cast<const int64_t*>(&rule + 1);
    int64_t scale = 0;
    auto add = [&](uint32_t loop, uint32_t coord) { scale += strides[loop] * coord; };
    const RowPlace<Index> row = find_row<Index>(table, desc, index, item, desc.from_size, add);
    SamplePlace<Index> place = {index, index, 1};
    if (desc.flags & kVaried) place = place_of<Index>(table, desc, index);
    GroupRow group;
    group.src_stride = nest.cols.src_stride;
    if (nest.cols.varies & kSrcStride) group.src_stride = static_cast<int64_t>(table[static_cast<uint32_t>(group.src_stride) + index]);
    group.dst_stride = nest.cols.dst_stride;
    Index begin = 0, end = row.extent;
    if (rule.flags & kOfSample) {
        group.scale = static_cast<int64_t>(uint64_t{place.number}) * rule.step;
    } else {
        begin = static_cast<Index>(row.piece) * nest.piece;
        if (end - begin > nest.piece) end = begin + nest.piece;
        group.scale = static_cast<int64_t>(uint64_t{place.offset}) * rule.step;
        group.scale += rule.flags & kGiven ? int64_t{item} : scale + int64_t{row.piece} * rule.block_step;
    }
    auto within = [&](Index bound) { return bound < begin ? begin : bound > end ? end : bound; };
    const Index lo = within(row.lo), hi = row.hi > row.lo ? within(row.hi) : lo;
    group.lead = lo - begin;
    group.real = hi - lo;
    group.width = end - begin;
    group.src = row.src + static_cast<int64_t>(uint64_t{lo} - uint64_t{row.lo}) * group.src_stride;
    group.dst = row.dst + static_cast<int64_t>(uint64_t{begin}) * group.dst_stride;
    return group;
}

/// The same for the few descriptors that are kWide, compiled once.
WINDROW_OUT_OF_LINE GroupRow find_wide_group(const uint64_t* table, const OutputDesc& desc, uint32_t index, uint32_t item) {
    return find_group<uint64_t>(table, desc, index, item);
}

WINDROW_DEVICE GroupRow find_group(const uint64_t* table, const OutputDesc& desc, uint32_t index, uint32_t item) {
    if (__builtin_expect(!(desc.flags & kWide), true)) return find_group<uint32_t>(table, desc, index, item);
    return find_wide_group(table, desc, index, item);
}

/// How many rows the group has that is a sample.
WINDROW_DEVICE uint32_t rows_of_group(const uint64_t* table, const OutputDesc& desc, const ScaleRule& rule, uint32_t index) {
    if (!(rule.flags & kJoinedRows)) return rule.rows;
    const auto steps = desc.flags & kWide ? place_of<uint64_t>(table, desc, index).steps : place_of<uint32_t>(table, desc, index).steps;
    return rule.rows * static_cast<uint32_t>(steps);
}

/// The bits of an element at any address.
template <class Bits>
WINDROW_DEVICE uint64_t read_element_at(const uint8_t* p) {
    return misalignment(p, sizeof(Bits)) == 0 ? uint64_t{load<Bits>(p)} : read_bytes(p, sizeof(Bits)).lo;
}

/// Reads a chunk of adjacent elements, at multiples of their size.
template <class Bits>
WINDROW_DEVICE void load_chunk(const uint8_t* src, uint32_t (&words)[kChunk * sizeof(Bits) / 4]) {
    constexpr uint32_t kBytes = sizeof(Bits);
    if (misalignment(src, 16) == 0) {
#pragma unroll
        for (uint32_t i = 0; i < kBytes; ++i) load_words<Vec16>(src + 16 * i, words + 4 * i);
    } else if constexpr (kBytes >= 4) {
#pragma unroll
        for (uint32_t i = 0; i < kChunk; ++i) load_words<Bits>(src + kBytes * i, words + kBytes / 4 * i);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < kChunk * kBytes / 4; ++i) words[i] = 0;
#pragma unroll
        for (uint32_t i = 0; i < kChunk; ++i) {
            words[kBytes * i / 4] |= uint32_t{load_word<Bits>(src + kBytes * i)} << (8 * (kBytes * i % 4));
        }
    }
}

/// Writes a vector of elements of `size` bytes.
WINDROW_DEVICE void store_vector(uint8_t* dst, const uint32_t (&out)[4], uint32_t size) {
    const Vec16 v = {out[0] | static_cast<uint64_t>(out[1]) << 32, out[2] | static_cast<uint64_t>(out[3]) << 32};
    if (misalignment(dst, 16) == 0) return store16(dst, v);
    if (misalignment(dst, 4) == 0) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) store_word<uint32_t>(dst + 4 * i, out[i]);
        return;
    }
    store_elements(dst, v, size, 0, 16 / size, misalignment(dst, size) == 0);
}

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

/// The largest of the magnitudes that lanes beside each other have found. All lanes of the warp call it.
WINDROW_DEVICE float largest_of(float most, uint32_t lanes) {
#ifdef __CUDA_ARCH__
#pragma unroll 1
    for (uint32_t step = lanes / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
#endif
    return most;
}

/// The scale of a group whose elements have at most this magnitude.
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

    /// The result of any element.
    WINDROW_DEVICE uint32_t one(float x) const {
        const float quotient = copysignf(x / scale, x);
        if (to != kI8) return to_float8(quotient, to | kSaturate);
        if (quotient != quotient) return 0;
        return static_cast<uint32_t>(static_cast<int32_t>(rintf(fminf(fmaxf(quotient, -128.0f), 127.0f)))) & 0xFF;
    }

    /// Four results of finite numbers, whose signs are in the highest bits of bytes.
    WINDROW_DEVICE uint32_t four(const float (&x)[4], uint32_t signs) const {
        float q[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) q[i] = quotient(x[i]);
        if (to == kI8) {
            // In floats from here on, the last bit is a whole number: adding it rounds.
            uint32_t bits[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; ++i) bits[i] = bits_of(q[i] + 12582912.0f);
            return pair_of<2>(pair_of<1>(bits[0], bits[1]), pair_of<1>(bits[2], bits[3]));
        }
#if !WINDROW_CASTS_FLOAT8
        // A power of two as the scale leaves quotients beyond the largest number.
        const float most = float_of(to == kF8E4M3FN ? 0x43E00000 : 0x47600000);
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) q[i] = fminf(fmaxf(q[i], -most), most);
#endif
        return (pack_float8<false>(to, q, signs) & 0x7F7F7F7F) | (signs & 0x80808080);
    }
};

/// The lanes of a group, and what each of them keeps of it.
template <class N>
struct Quantiser {
    using Bits = typename N::Bits;
    static constexpr uint32_t kBytes = sizeof(Bits), kWords = kChunk * kBytes / 4;
    /// Chunks of a lane that are under way together, 64 bytes or one.
    static constexpr uint32_t kMany = kBytes >= 4 ? 1 : 4 / kBytes;

    ThreadGroup team;
    float most = 0;
    bool has_nan = false;
    uint32_t kept[kMany][kWords];

    WINDROW_DEVICE explicit Quantiser(const ThreadGroup& threads) : team(threads) {}

    static WINDROW_DEVICE bool is_adjacent(const GroupRow& row) {
        return row.src_stride == kBytes && row.dst_stride == 1 && misalignment(row.src, kBytes) == 0;
    }
    static WINDROW_DEVICE uint32_t chunks_of(const GroupRow& row) { return is_adjacent(row) ? static_cast<uint32_t>(row.real / kChunk) : 0; }

    /// Whether a row's chunks all stay where load() puts them.
    WINDROW_DEVICE bool keeps(const GroupRow& row) const { return chunks_of(row) <= kMany * team.size; }

    static WINDROW_DEVICE float element(const GroupRow& row, uint64_t i) {
        return N::single(read_element_at<Bits>(row.src + static_cast<int64_t>(i) * row.src_stride));
    }

    /// Numbers 4 * i on of a chunk; a NaN remains one.
    static WINDROW_DEVICE void numbers(const uint32_t (&words)[kWords], uint32_t i, float (&x)[4]) {
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k) {
            const uint64_t bits = element_of<kBytes>(words, 4 * i + k);
            if constexpr (kBytes == 2 || kBytes == 4) x[k] = N::loose(bits);
            else x[k] = N::single(bits);
        }
    }

    /// Reads the chunks of a turn, of which the first of this lane is `first`.
    WINDROW_DEVICE void load(const GroupRow& row, uint32_t first, uint32_t chunks) {
#pragma unroll
        for (uint32_t k = 0; k < kMany; ++k) {
            const uint32_t chunk = first + k * team.size;
            if (chunk < chunks) load_chunk<Bits>(row.src + uint64_t{chunk} * (kChunk * kBytes), kept[k]);
        }
    }

    /// Finds the largest magnitude of this lane's elements.
    WINDROW_DEVICE void find(const GroupRow& row) {
        const uint32_t chunks = chunks_of(row);
        float all = 0;
#pragma unroll 1
        for (uint32_t first = team.rank; first < chunks; first += kMany * team.size) {
            load(row, first, chunks);
#pragma unroll
            for (uint32_t k = 0; k < kMany; ++k) {
                if (first + k * team.size >= chunks) continue;
#pragma unroll
                for (uint32_t i = 0; i < kChunk / 4; ++i) {
                    float x[4];
                    numbers(kept[k], i, x);
#pragma unroll
                    for (uint32_t j = 0; j < 4; ++j) all = larger_or_nan(all, fabsf(x[j]));
                }
            }
        }
        if (all != all) {
            has_nan = true;
#pragma unroll 1
            for (uint32_t chunk = team.rank; chunk < chunks; chunk += team.size) {
#pragma unroll 1
                for (uint32_t i = 0; i < kChunk; ++i) most = larger_of(most, fabsf(element(row, uint64_t{chunk} * kChunk + i)));
            }
        } else {
            most = larger_of(most, all);
        }
#pragma unroll 1
        for (uint64_t i = uint64_t{chunks} * kChunk + team.rank; i < row.real; i += team.size) most = larger_of(most, fabsf(element(row, i)));
    }

    /// Writes this lane's elements. `is_kept`: they are where load() has put them.
    WINDROW_DEVICE void divide_by(const GroupRow& row, const Divider& by, bool is_kept) {
        const uint32_t chunks = chunks_of(row);
        uint8_t* dst = row.dst + static_cast<int64_t>(row.lead) * row.dst_stride;
        auto write = [&](uint64_t i) {
            store(dst + static_cast<int64_t>(i) * row.dst_stride, static_cast<uint8_t>(by.one(element(row, i))));
        };
        const bool is_usual = by.is_usual() && !has_nan;
#pragma unroll 1
        for (uint32_t first = team.rank; first < chunks; first += kMany * team.size) {
            if (!is_usual) {
#pragma unroll 1
                for (uint32_t at = 0; at < kMany * kChunk; ++at) {
                    const uint32_t chunk = first + at / kChunk * team.size;
                    if (chunk < chunks) write(uint64_t{chunk} * kChunk + at % kChunk);
                }
                continue;
            }
            if (!is_kept) load(row, first, chunks);
#pragma unroll
            for (uint32_t k = 0; k < kMany; ++k) {
                const uint32_t chunk = first + k * team.size;
                if (chunk >= chunks) continue;
                uint32_t out[4];
#pragma unroll
                for (uint32_t i = 0; i < 4; ++i) {
                    float x[4];
                    numbers(kept[k], i, x);
                    uint32_t signs;
                    if constexpr (kBytes == 2) signs = high_bytes_of(kept[k][2 * i], kept[k][2 * i + 1]);
                    else signs = signs_of(x);
                    out[i] = by.four(x, signs);
                }
                store_vector(dst + uint64_t{chunk} * kChunk, out, 1);
            }
        }
#pragma unroll 1
        for (uint64_t i = uint64_t{chunks} * kChunk + team.rank; i < row.real; i += team.size) write(i);
    }
};

/// Writes `count` elements of padding.
WINDROW_DEVICE void fill_group(const OutputDesc& desc, const GroupRow& row, uint64_t first, uint64_t count, const ThreadGroup& threads) {
    if (count == 0) return;
    uint8_t* dst = row.dst + static_cast<int64_t>(first) * row.dst_stride;
    const uint32_t size = desc.to_size;
    const Vec16 fill = fill_of(desc);
    const bool is_adjacent = row.dst_stride == size, is_aligned = misalignment(dst, size) == 0 && row.dst_stride % size == 0;
    constexpr uint64_t kMost = 1 << 24;
    if (is_adjacent) {
#pragma unroll 1
        for (uint64_t done = 0; done < count; done += kMost) {
            const uint64_t left = count - done;
            fill_run(dst + done * size, static_cast<uint32_t>(left < kMost ? left : kMost), size, fill, threads);
        }
        return;
    }
#pragma unroll 1
    for (uint64_t i = threads.rank; i < count; i += threads.size) {
        store_elements(dst + static_cast<int64_t>(i) * row.dst_stride, fill, size, 0, 1, is_aligned);
    }
}

/// The padding of a row of a group.
WINDROW_DEVICE void fill_around(const OutputDesc& desc, const GroupRow& row, const ThreadGroup& threads) {
    fill_group(desc, row, 0, row.lead, threads);
    fill_group(desc, row, row.lead + row.real, row.width - row.lead - row.real, threads);
}

WINDROW_DEVICE void store_scale(const OutputDesc& desc, const ScaleRule& rule, int64_t place, float scale) {
    uint8_t* dst = desc.quantised.scales + place;
    const uint32_t bits = bits_of(scale);
    if (rule.flags & kPowers) return store(dst, static_cast<uint8_t>(bits >> 23));
    store_elements(dst, {bits, 0}, 4, 0, 1, misalignment(dst, 4) == 0);
}

/// Finds the scale of a group, writes it, and divides by it. All lanes of the warp call it, those without a group with `rows` 0.
template <class N>
WINDROW_DEVICE void quantise_group(const uint64_t* table, const OutputDesc& desc, uint32_t index, uint32_t item, uint32_t rows, bool is_there,
                                   const ThreadGroup& threads) {
    const ScaleRule& rule = *at<ScaleRule>(table, desc.quantised.rule);
    GroupRow row = find_group(table, desc, index, item);
#ifdef __CUDA_ARCH__
    const ThreadGroup team = threads;
    const bool divides = true;
#else
    const ThreadGroup team = {0, 1};
    const bool divides = threads.rank == 0;
#endif
    Quantiser<N> quantiser(team);
    if (divides) {
#pragma unroll 1
        for (uint32_t i = 0; i < rows; ++i) {
            if (i > 0) row = find_group(table, desc, index, i);
            quantiser.find(row);
        }
    }
    const float most = largest_of(quantiser.most, threads.size);
    if (!is_there) return;
    const bool is_padding = !(rule.flags & kOfSample) && row.real == 0;
    const float scale = is_padding ? 1.0f : scale_for(rule, most);
    if (threads.rank == 0) store_scale(desc, rule, row.scale, scale);
    const Divider divider(scale, desc.to);
    const bool is_kept = rows == 1 && quantiser.keeps(row);
#pragma unroll 1
    for (uint32_t i = 0; i < rows; ++i) {
        if (rows > 1) row = find_group(table, desc, index, i);
        fill_around(desc, row, threads);
        if (divides) quantiser.divide_by(row, divider, is_kept);
    }
}

/// A number times its scale. A NaN is the number's quieted, or the scale's, or that of x86.
WINDROW_DEVICE float scaled(float x, float scale) {
    const float y = x * scale;
    const uint32_t nan = x != x ? bits_of(x) | kQuiet32 : scale != scale ? bits_of(scale) | kQuiet32 : 0xFFC00000;
    return y != y ? float_of(nan) : y;
}

/// Multiplies a row of a group by its scale.
template <class N, class To>
WINDROW_DEVICE void multiply_row(const GroupRow& row, float scale, const ThreadGroup& threads) {
    using Bits = typename To::Bits;
    constexpr uint32_t kSize = sizeof(Bits), kElems = 16 / kSize;
    uint8_t* dst = row.dst + static_cast<int64_t>(row.lead) * row.dst_stride;
    const uint32_t chunks = row.src_stride == 1 && row.dst_stride == kSize ? static_cast<uint32_t>(row.real / kChunk) : 0;
#pragma unroll 1
    for (uint32_t chunk = threads.rank; chunk < chunks; chunk += threads.size) {
        uint32_t words[kChunk / 4];
        load_chunk<uint8_t>(row.src + uint64_t{chunk} * kChunk, words);
#pragma unroll
        for (uint32_t first = 0; first < kChunk; first += kElems) {
            uint32_t out[4] = {0, 0, 0, 0};
#pragma unroll
            for (uint32_t i = 0; i < kElems; ++i) {
                const uint64_t bits = To::from(scaled(N::single(element_of<1>(words, first + i)), scale));
                if constexpr (kSize == 8) {
                    out[2 * i] = static_cast<uint32_t>(bits);
                    out[2 * i + 1] = static_cast<uint32_t>(bits >> 32);
                } else {
                    out[kSize * i / 4] |= static_cast<uint32_t>(bits) << (8 * (kSize * i % 4));
                }
            }
            store_vector(dst + (uint64_t{chunk} * kChunk + first) * kSize, out, kSize);
        }
    }
#pragma unroll 1
    for (uint64_t i = uint64_t{chunks} * kChunk + threads.rank; i < row.real; i += threads.size) {
        const float x = N::single(load<uint8_t>(row.src + static_cast<int64_t>(i) * row.src_stride));
        uint8_t* to = dst + static_cast<int64_t>(i) * row.dst_stride;
        store_elements(to, {To::from(scaled(x, scale)), 0}, kSize, 0, 1, misalignment(to, kSize) == 0);
    }
}

/// Multiplies a group by the scale that it is given.
WINDROW_DEVICE void multiply_group(const uint64_t* table, const OutputDesc& desc, uint32_t index, uint32_t item, uint32_t rows,
                                   const ThreadGroup& threads) {
    const ScaleRule& rule = *at<ScaleRule>(table, desc.quantised.rule);
#pragma unroll 1
    for (uint32_t i = 0; i < rows; ++i) {
        const GroupRow row = find_group(table, desc, index, item + i);
        const float scale = at<float>(table, rule.given)[row.scale];
        fill_around(desc, row, threads);
        auto multiply = [&](auto number) {
            using N = decltype(number);
            switch (desc.to) {
                case kF16: return multiply_row<N, Number<kF16>>(row, scale, threads);
                case kBF16: return multiply_row<N, Number<kBF16>>(row, scale, threads);
                case kF32: return multiply_row<N, Number<kF32>>(row, scale, threads);
                default: return multiply_row<N, Number<kF64>>(row, scale, threads);
            }
        };
        if (desc.from == kI8) multiply(Number<kI8>());
        else if (desc.from == kF8E4M3FN) multiply(Float8Number<kF8E4M3FN>());
        else multiply(Float8Number<kF8E5M2>());
    }
}

WINDROW_DEVICE void write_groups(const uint64_t* table, const OutputDesc& desc, uint32_t item, uint32_t lane) {
    ThreadGroup threads = {lane, kLanes};
    if (desc.nest.rows != 0) {
        item = item * (kLanes / kGroupLanes) + lane / kGroupLanes;
        threads = {lane % kGroupLanes, kGroupLanes};
    }
    const ScaleRule& rule = *at<ScaleRule>(table, desc.quantised.rule);
    const bool is_there = item < desc.quantised.groups;
    // Lanes beyond the last group take part in what the others exchange.
    if (!is_there) item = desc.quantised.groups - 1;
    const uint32_t index = find_sample(table, desc.nest, item);
    uint32_t rows = 1;
    if (rule.flags & kOfSample) rows = rows_of_group(table, desc, rule, index);
    if (!is_there) rows = 0;
    if (rule.flags & kGiven) return multiply_group(table, desc, index, item, rows, threads);
    with_float(desc.from, [&](auto number) { quantise_group<decltype(number)>(table, desc, index, item, rows, is_there, threads); });
}

}  // namespace windrow
