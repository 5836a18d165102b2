// The part of a sample that an item writes, located once for a warp in three steps: its sample, its row, and the segment of the
// row that it writes together with its neighbours.
//
// The problem: a warp has the number of its item among those of its descriptor, and can load nothing before it knows where that
// is. Samples may differ in length, so that no division tells which one it is, and rows have padding at either end and begin
// anywhere in memory.
//
//     items      |  0  1  2 |  3  4  5  6  7  8 |  9  10 11 | ...        find_sample: the sample, and the item within it
//     rows       |  0  0  0 |  0  0  0  1  1  1 |  0  0  0  |            find_row: the row, and the piece of it: here 3 in each
//
//     one row    |. . padding . .|############### real ###############|. . padding . .|
//     pieces     | 0 | 1 | 2 | ..... | 7 | 8 | 9 | .................. | n |
//     segments   |<------- 0 ------->|<------- 8 pieces ------->|                         find_segment: lead, real, width
//                                    ^ a multiple of 16 bytes of the output
//
//     find_sample    as many items for each sample:  a multiplication in place of a division
//                    else:  the hints in front of the item and behind it, then a search of a step or two among `first`
//     find_row       nothing varies:  the address of the sample, and `step` for each in the output
//                    else:  the place of the sample and the bounds of the columns; then, from the innermost outer loop on, a
//                           coordinate and its strides; one that is padding makes the whole row padding
//     find_segment   the pieces that share the item's segment, cut off at the ends of the row and of its real elements
//
// Numbers are found in 32 bits unless the descriptor is kWide. Pieces that warps write by themselves would be simpler, but a warp
// that walks its piece alone opens as many rows of DRAM as there are warps (kernels/README.md). A search without hints takes as
// many steps as the number of samples has bits.
#pragma once

#include "fences.cuh"
#include "lanes.cuh"

namespace windrow {

/// The struct or array at a position of the table.
///
/// The table is read through generic addresses, whether it is in global memory or in the parameters: such
/// a load of a parameter goes through the first cache like any other.
template <class T>
WINDROW_DEVICE const T* at(const uint64_t* table, uint32_t position) {
    return reinterpret_cast<const T*>(table + position);
}

/// Entry `index` of a column.
template <class T>
WINDROW_DEVICE T entry(const uint64_t* table, uint32_t position, uint32_t index) {
    return at<T>(table, position)[index];
}

/// A bound of a loop, in place of the position of its column: one of type Index, or a narrow one; else it stays. Without branches
/// around it each load has its own predicate.
template <class Index, class Bound>
WINDROW_DEVICE void read_bound(const uint64_t* table, bool is_varied, bool is_narrow, uint32_t index, Bound& bound) {
    auto position = static_cast<uint32_t>(bound);
    opaque(position);
    if (is_varied) bound = static_cast<Bound>(entry<Index>(table, position, index));
    if (sizeof(Index) == 4 && is_narrow) bound = entry<uint16_t>(table, position, index);
}

/// The samples of a descriptor.
template <bool by_id>
WINDROW_DEVICE Sources sources_of(const uint64_t* table, const OutputDesc& desc) {
    return {table + desc.data, by_id ? at<uint32_t>(table, desc.data) : nullptr, desc.base, static_cast<uint32_t>(desc.stride)};
}

/// The address of a sample, by position in the descriptor.
WINDROW_DEVICE const uint8_t* source_of(const uint64_t* table, const OutputDesc& desc, uint32_t sample) {
    return desc.flags & kById ? source_at<true>(sources_of<true>(table, desc), sample)
                               : source_at<false>(sources_of<false>(table, desc), sample);
}

/// The padding of a descriptor, over and over.
WINDROW_DEVICE Vec16 fill_of(const OutputDesc& desc) {
    const uint64_t* words = reinterpret_cast<const uint64_t*>(desc.nest.fill);
    return {words[0], words[1]};
}

/// The sample of an item, by position in the descriptor. `item` becomes its number among the items of the sample.
WINDROW_DEVICE uint32_t find_sample(const uint64_t* table, const Nest& nest, uint32_t& item) {
    if (const uint32_t items = nest.items; items != 0) {
        const uint32_t index = divide(item, nest.by_items);
        item -= index * items;
        return index;
    }
    const uint32_t* first = at<uint32_t>(table, nest.first);
    const uint32_t* hint = at<uint32_t>(table, nest.hints) + (item >> nest.hint_shift);
    uint32_t index = hint[0], high = hint[1];
#pragma unroll 1
    while (index < high) {
        const uint32_t middle = (index + high + 1) / 2;
        if (first[middle] <= item) {
            index = middle;
        } else {
            high = middle - 1;
        }
    }
    item -= first[index];
    return index;
}

/// The start of a sample in the output. Index counts columns and offsets: 32 bits where the descriptor is not kWide.
template <class Index>
struct SamplePlace {
    uint32_t number;  ///< among the samples of the tensor
    Index offset;     ///< position of its first element, in steps of the descriptor
    Index steps;      ///< joined: how many it goes along; else 1
};

/// Locates sample `index` of a descriptor.
template <class Index>
WINDROW_DEVICE SamplePlace<Index> place_of(const uint64_t* table, const OutputDesc& desc, uint32_t index) {
    const Nest& nest = desc.nest;
    SamplePlace<Index> place = {index, index, 1};
    if (nest.places != 0) place.offset = place.number = at<uint32_t>(table, nest.places)[index];
    // A branch: the compiler would do for all descriptors what is for these alone.
    if (__builtin_expect(nest.offsets != 0, false)) {
        if (desc.flags & kOfLengths) {
            place.steps = entry<Index>(table, nest.offsets, index);
            return place;
        }
        place.offset = entry<Index>(table, nest.offsets, place.number);
        place.steps = entry<Index>(table, nest.offsets, place.number + 1) - place.offset;
    }
    return place;
}

/// A row of a sample: elements [0, extent), of which those from `lo` to `hi` are real, the rest padding. If all are
/// padding, `hi` is `lo`, and `src` is of no use.
template <class Index>
struct RowPlace {
    const uint8_t* src;      ///< address of element `lo`
    uint8_t* dst;            ///< address of element 0
    Index extent, lo, hi;
    uint32_t before, after;  ///< bytes of the sample that may be read beside the row, cut off at 64 or more
    uint32_t number;         ///< number of the sample among those of the tensor
    uint32_t channel;
    uint32_t piece, pieces;  ///< the piece that the item is, and how many the row has
};

/// The row of item `item` of sample `index` of a descriptor. `from_size`: bytes from element to element of a row; 0: nothing is
/// read, and `src` is of no use. `each` is told the number of each outer loop and the coordinate in
/// it, from the innermost on.
template <class Index, class Each>
WINDROW_DEVICE RowPlace<Index> find_row(const uint64_t* table, const OutputDesc& desc, uint32_t index, uint32_t item, uint32_t from_size,
                                        const Each& each) {
    const Nest& nest = desc.nest;
    RowPlace<Index> row;
    row.src = from_size != 0 ? source_of(table, desc, index) : nullptr;
    row.number = index;
    row.extent = static_cast<Index>(nest.cols.extent);
    row.lo = static_cast<Index>(nest.cols.lo);
    row.hi = static_cast<Index>(nest.cols.hi);
    row.before = row.after = 0;
    row.channel = nest.channel_first;
    row.piece = item;
    row.pieces = nest.pieces;
    if (!(desc.flags & kVaried)) {
        row.dst = desc.out + static_cast<int64_t>(Index{index}) * nest.step;
        return row;
    }
    const SamplePlace<Index> place = place_of<Index>(table, desc, index);
    row.number = place.number;
    row.dst = desc.out + static_cast<int64_t>(place.offset) * nest.step;
    const uint32_t of_cols = nest.cols.varies;
    if (of_cols & kExtent) {
        row.hi = row.extent = row.extent * place.steps;
        const uint32_t slack = (16 >> desc.log_to) + nest.piece - 2;
        if (row.pieces == 0) {
            row.pieces = sizeof(Index) == 8 ? static_cast<uint32_t>((row.extent + slack) / nest.piece)
                                            : divide(static_cast<uint32_t>(row.extent) + slack, nest.by_pieces);
        }
    }
    // Padding in front is rare.
    if (of_cols & (kLo | kNarrowLo)) {
        force_branch();
        read_bound<Index>(table, of_cols & kLo, of_cols & kNarrowLo, index, row.lo);
    }
    read_bound<Index>(table, of_cols & kHi, of_cols & kNarrowHi, index, row.hi);
    const uint32_t num_outer = nest.num_outer, steps = static_cast<uint32_t>(place.steps);
    if (num_outer == 0) return row;
    uint32_t rest = item;
    if (row.pieces == 1) {
        row.piece = 0;
    } else {
        rest = nest.pieces != 0 ? divide(item, nest.by_pieces) : item / row.pieces;
        row.piece -= rest * row.pieces;
    }
    const Loop* loop = at<Loop>(table, nest.outer) + num_outer;
#pragma unroll 1
    for (uint32_t d = num_outer; d-- > 0;) {
        --loop;
        const uint32_t varies = loop->varies;
        uint32_t first = static_cast<uint32_t>(loop->lo), end = static_cast<uint32_t>(loop->hi), coord = rest;
        int64_t stride = loop->src_stride;
        if (varies != 0) {
            if (varies & kExtent) end = static_cast<uint32_t>(loop->extent) * steps;
            read_bound<Index>(table, varies & kLo, varies & kNarrowLo, index, first);
            read_bound<Index>(table, varies & kHi, varies & kNarrowHi, index, end);
            if (varies & kSrcStride) stride = static_cast<int64_t>(table[static_cast<uint32_t>(stride) + index]);
        }
        if (d > 0) {  // nothing is left over from the outermost
            const uint32_t whole = static_cast<uint32_t>(loop->extent) * (varies & kExtent ? steps : 1);
            rest = varies & kExtent ? rest / whole : divide(rest, loop->by_blocks);
            coord -= rest * whole;
        }
        const uint32_t real = coord - first;
        each(d, coord);
        row.dst += coord * loop->dst_stride;
        if (real >= end - first) {
            row.hi = row.lo;
        } else {
            row.src += real * stride;
            row.channel += loop->channel_step * real;
            if (desc.flags & kJoint) {
                const uint32_t bytes = stride < 64 ? static_cast<uint32_t>(stride) : 64;
                row.before += minimum(real, 64) * bytes;
                row.after += minimum(end - 1 - coord, 64) * bytes;
            }
        }
    }
    return row;
}

template <class Index>
WINDROW_DEVICE RowPlace<Index> find_row(const uint64_t* table, const OutputDesc& desc, uint32_t index, uint32_t item, uint32_t from_size) {
    return find_row<Index>(table, desc, index, item, from_size, [](uint32_t, uint32_t) {});
}

/// The neighbouring pieces of a row that are one segment, which their warps write together.
constexpr uint32_t kWarpsPerSegment = 8;

/// A part of a row: elements [begin, begin + width), of which [begin + lead, begin + lead + real) are real.
struct Segment {
    const uint8_t* src;  ///< address of its first real element
    uint8_t* dst;
    uint32_t lead, real, width;
    uint32_t before, after;  ///< bytes of the sample that may be read beside it, cut off at 64 or more
    uint32_t warp, warps;    ///< which of those that share it this one is
};

/// The segment that a piece of a row is of. It begins where the output is a multiple of 16, or with the row. If none of it is
/// real, `lead` is 0 and `src` of no use.
template <class Index>
WINDROW_DEVICE Segment find_segment(const OutputDesc& desc, const RowPlace<Index>& row, uint32_t from_size) {
    const uint32_t piece = desc.nest.piece;
    Segment segment;
    segment.warp = row.piece % kWarpsPerSegment;
    const uint32_t first = row.piece - segment.warp;
    segment.warps = minimum(row.pieces - first, kWarpsPerSegment);
    Index begin = 0;
    uint32_t span = kWarpsPerSegment * piece;
    if (row.pieces > kWarpsPerSegment) {
        const uint32_t phase = misalignment(row.dst, 16) >> desc.log_to;
        begin = static_cast<Index>(first) * piece;
        if (first == 0) span -= phase; else begin -= phase;
    }
    auto clip = [&](Index bound, uint32_t most) {
        const Index beyond = bound > begin ? bound - begin : 0;
        return beyond < most ? static_cast<uint32_t>(beyond) : most;
    };
    segment.width = clip(row.extent, span);
    const uint32_t end = clip(row.hi, segment.width);
    segment.lead = minimum(clip(row.lo, segment.width), end);
    segment.real = end - segment.lead;
    const Index skipped = begin + segment.lead - row.lo, rest = row.hi - begin - end;
    segment.src = row.src + static_cast<uint64_t>(skipped) * from_size;
    segment.dst = row.dst + static_cast<uint64_t>(begin) * desc.to_size;
    segment.before = row.before + static_cast<uint32_t>(skipped < 64 ? skipped : 64) * from_size;
    segment.after = row.after + static_cast<uint32_t>(rest < 64 ? rest : 64) * from_size;
    if (segment.real == 0) segment.lead = 0;
    return segment;
}

/// The part of a row that an item writes.
struct RowSegment {
    Segment part;
    uint32_t number;   ///< number of the sample among those of the tensor
    uint32_t channel;  ///< channel of the row
};

/// The part of a row that an item of a descriptor writes.
template <class Index>
WINDROW_DEVICE RowSegment locate_segment(const uint64_t* table, const OutputDesc& desc, uint32_t item, uint32_t from_size) {
    const uint32_t index = find_sample(table, desc.nest, item);
    const RowPlace<Index> row = find_row<Index>(table, desc, index, item, from_size);
    return {find_segment<Index>(desc, row, from_size), row.number, row.channel};
}

/// The part of a row that an item of a kWide descriptor writes. Few descriptors are, so it is compiled once.
WINDROW_OUT_OF_LINE RowSegment locate_wide_segment(const uint64_t* table, const OutputDesc& desc, uint32_t item, uint32_t from_size) {
    return locate_segment<uint64_t>(table, desc, item, from_size);
}

WINDROW_DEVICE RowSegment locate_segment(const uint64_t* table, const OutputDesc& desc, uint32_t item, uint32_t from_size) {
    if (__builtin_expect(!(desc.flags & kWide), true)) return locate_segment<uint32_t>(table, desc, item, from_size);
    return locate_wide_segment(table, desc, item, from_size);
}

}  // namespace windrow
