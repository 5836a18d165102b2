// The rows of groups that share a scale: where each is, its elements by chunks, and its padding.
//
// The problem: a group may be a part of a row, or all rows of a sample; its lanes have to find its elements, the padding among
// them and the place of its scale, and short groups have few elements to pay for that.
//
//     a row, blocks of `piece`   |. . . . . . .|. . . ######|#############|####. . . .|. . .|
//     groups                     |      0      |      1     |      2      |     3     |  4  |   find_group: lead, real, width
//     chunks of group 2          |  16  |  16  |  16  |  16 |                                   one for each lane, and again
//     its scale                  one for a sample: number * step; found: strides of the loops and block_step; given: its number
//
//     find_first  the first row of a group, or the only one        fill_around  padding in front of it and behind it
//     find_next   the others, of a group that is a sample          load_chunk   16 elements, by vectors if they are aligned
//
// Groups of 8 or 32 lanes that each find their place would be simpler. By these blocks of 128 bfloat16 took 667 thread
// instructions for 16 bytes on sm_90, rows of 64 float32 1660; with a lane for each 16 elements, which go on to neighbouring
// groups, 364 and 373.
#pragma once

#include "segments.cuh"
#include "vector_io.cuh"

namespace windrow {

/// Elements of a lane that are written together.
constexpr uint32_t kChunk = 16;

/// The elements of a group that are in one row of its sample, and the padding around them.
struct GroupRow {
    const uint8_t* src;  ///< of the first real element
    uint8_t* dst;        ///< of the first element
    int64_t src_stride, dst_stride;
    uint32_t lead, real, width;
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
    if ((desc.flags & kVaried) && !(rule.flags & kByIndex)) place = place_of<Index>(table, desc, index);
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
    group.lead = static_cast<uint32_t>(lo - begin);
    group.real = static_cast<uint32_t>(hi - lo);
    group.width = static_cast<uint32_t>(end - begin);
    group.src = row.src + static_cast<int64_t>(uint64_t{lo} - uint64_t{row.lo}) * group.src_stride;
    group.dst = row.dst + static_cast<int64_t>(uint64_t{begin}) * group.dst_stride;
    return group;
}

/// The same for the few descriptors that are kWide, compiled once.
WINDROW_OUT_OF_LINE GroupRow find_wide_group(const uint64_t* table, const OutputDesc& desc, uint32_t index, uint32_t item) {
    return find_group<uint64_t>(table, desc, index, item);
}

WINDROW_DEVICE GroupRow find_first(const uint64_t* table, const OutputDesc& desc, uint32_t index, uint32_t item) {
    if (__builtin_expect(!(desc.flags & kWide), true)) return find_group<uint32_t>(table, desc, index, item);
    return find_wide_group(table, desc, index, item);
}

/// The other rows of a group that has several, compiled once for all dtypes.
WINDROW_OUT_OF_LINE GroupRow find_next(const uint64_t* table, const OutputDesc& desc, uint32_t index, uint32_t item) {
    return find_first(table, desc, index, item);
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
    } else if constexpr (kBytes == 4) {
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

/// Writes `count` elements of padding.
WINDROW_DEVICE void fill_group(const OutputDesc& desc, const GroupRow& row, uint32_t first, uint32_t count, const ThreadGroup& threads) {
    if (count == 0) return;
    uint8_t* dst = row.dst + int64_t{first} * row.dst_stride;
    const uint32_t size = desc.to_size;
    const Vec16 fill = fill_of(desc);
    // fill_run() is for 8 lanes or more.
    const bool is_adjacent = row.dst_stride == size && threads.size >= kGroupLanes, is_aligned = misalignment(dst, size) == 0 && row.dst_stride % size == 0;
    // fill_run() counts bytes in 32 bits.
    constexpr uint32_t kMost = 1 << 24;
    if (is_adjacent) {
#pragma unroll 1
        for (uint32_t done = 0; done < count; done += kMost) {
            fill_run(dst + uint64_t{done} * size, minimum(count - done, kMost), size, fill, threads);
        }
        return;
    }
#pragma unroll 1
    for (uint32_t i = threads.rank; i < count; i += threads.size) {
        store_elements(dst + int64_t{i} * row.dst_stride, fill, size, 0, 1, is_aligned);
    }
}

/// The padding of a row of a group.
WINDROW_DEVICE void fill_around(const OutputDesc& desc, const GroupRow& row, const ThreadGroup& threads) {
    fill_group(desc, row, 0, row.lead, threads);
    fill_group(desc, row, row.lead + row.real, row.width - row.lead - row.real, threads);
}

}  // namespace windrow
