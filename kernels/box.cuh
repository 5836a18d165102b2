// The box of an item of family strided, located once for a warp.
//
// The problem: an item has to know both loops of its box, of a sample whose bounds may be its own, and where elements begin that
// may be padding, in front of the sample's memory.
//
//     columns    |<-- piece -->|<-- piece -->|. . .|           nest.cols
//     rows       | box 0       | box 1       | box |  block    the last outer loop
//                | box 3       | box 4       | box |  block
//     outer loops: one coordinate each; if that is padding, no row of the box is real
//     small samples: rows are `samples` of them, each at an address of its own
//
//     box_of:  the sample, by find_sample of segments.cuh, or the first of `samples`
//              the piece of the columns; then, from the innermost outer loop on, a block and its coordinate
//              src is the address of element (0, 0), real or not: (begin - lo) strides from the first real one, either way
//              the channel of (0, 0), modulo channels, also if (0, 0) is in front of the first real one
//
// One row for an item, as find_row has it, would be simpler, but neighbours of a transposed source are along another loop than
// those of the output. Bounds are clipped to the box on both axes, so that its lanes compute with numbers below 2^15: field and
// box take a warp some 290 instructions, once.
#pragma once

#include "segments.cuh"

namespace windrow {

/// The rows of a box, or its columns: those in [lo, hi) are real, the rest padding. Strides are in bytes.
struct BoxAxis {
    uint32_t count, lo, hi;
    uint32_t channel;  ///< 1: the channel goes on from one to the next
    int32_t src, dst;
};

/// The part of the output that an item writes, by rows and columns. Rows and columns are below 2^15, strides below 2^26
/// either way.
struct Box {
    const uint64_t* table;
    const OutputDesc* desc;  ///< its dtypes, map, padding and value are those of the box, and its samples those of a list
    uint64_t src;        ///< address of element (0, 0), whether that is real or padding: of padding it may be none
    uint8_t* dst;        ///< address of element (0, 0)
    BoxAxis rows, cols;
    bool is_list;      ///< row r is sample `number + r`, and `src` is not used
    uint32_t number;   ///< number of the sample, or of that of row 0
    uint32_t channel;  ///< channel of element (0, 0) if that is real; modulo channels
};

/// One loop as it is for a sample. Index counts columns and offsets, as in find_row().
template <class Index>
struct Bounds {
    Index extent, lo, hi;
    int64_t src_stride;
};

/// A loop as it is for sample `index` of the descriptor, which goes `steps` along the joined dim.
template <class Index>
WINDROW_DEVICE Bounds<Index> bounds_of(const uint64_t* table, const Loop& loop, uint32_t index, Index steps) {
    const auto low = [](uint64_t number) { return static_cast<Index>(number); };
    Bounds<Index> bounds = {low(loop.extent), low(loop.lo), low(loop.hi), loop.src_stride};
    const uint32_t varies = loop.varies;
    if (varies == 0) return bounds;
    if (varies & kExtent) bounds.hi = bounds.extent = bounds.extent * steps;
    read_bound<Index>(table, varies & kLo, varies & kNarrowLo, index, bounds.lo);
    read_bound<Index>(table, varies & kHi, varies & kNarrowHi, index, bounds.hi);
    if (varies & kSrcStride) bounds.src_stride = static_cast<int64_t>(table[bounds.src_stride + index]);
    return bounds;
}

/// The coordinates of a loop from `begin` on, which is below its extent: at most `most`.
template <class Index>
WINDROW_DEVICE BoxAxis axis_of(const Bounds<Index>& bounds, const Loop& loop, Index begin, uint32_t most) {
    const Index rest = bounds.extent - begin;
    const uint32_t count = rest < most ? static_cast<uint32_t>(rest) : most;
    auto clip = [&](Index bound) {
        const Index beyond = bound > begin ? bound - begin : 0;
        return beyond < count ? static_cast<uint32_t>(beyond) : count;
    };
    return {count, clip(bounds.lo), clip(bounds.hi), loop.channel_step, static_cast<int32_t>(bounds.src_stride),
            static_cast<int32_t>(loop.dst_stride)};
}

/// Box `item` of a descriptor.
template <class Index>
WINDROW_DEVICE Box box_of(const uint64_t* table, const OutputDesc& desc, uint32_t item) {
    constexpr bool kWideColumns = sizeof(Index) == 8;
    const Nest& nest = desc.nest;
    const uint32_t samples = desc.strided.samples;
    Box box = {};
    box.table = table;
    box.desc = &desc;
    box.is_list = samples != 0 && desc.from_size != 0;
    uint32_t index;
    if (samples != 0) {
        // Its rows are samples.
        index = item * samples;
        item = 0;
        box.rows.count = box.rows.hi = minimum(samples, desc.num_samples - index);
        box.rows.dst = static_cast<int32_t>(nest.step);
    } else {
        index = find_sample(table, nest, item);
    }
    const SamplePlace<Index> place = place_of<Index>(table, desc, index);
    const Index offset = place.offset, steps = place.steps;
    box.number = place.number;
    // The columns.
    const Bounds<Index> col = bounds_of<Index>(table, nest.cols, index, steps);
    uint32_t row = 0;
    if (nest.pieces == 0) {
        const auto pieces = static_cast<uint32_t>((col.extent + nest.piece - 1) / nest.piece);
        row = item / pieces;
        item -= row * pieces;
    } else if (nest.pieces > 1 || nest.num_outer != 0) {
        row = divide(item, nest.by_pieces);
        item -= row * nest.pieces;
    }
    const Index begin = static_cast<Index>(item) * nest.piece;
    box.cols = axis_of<Index>(col, nest.cols, begin, nest.piece);
    // Signed: the first real one may be behind.
    auto distance = [](Index from, Index to) {
        return sizeof(Index) == 8 ? static_cast<int64_t>(to - from) : static_cast<int64_t>(static_cast<int32_t>(to - from));
    };
    int64_t real = distance(col.lo, begin), channel = nest.channel_first;
    uint64_t src = samples != 0 || desc.from_size == 0 ? 0 : reinterpret_cast<uint64_t>(source_of(table, desc, index));
    src += static_cast<uint64_t>(real * box.cols.src);
    uint8_t* dst = desc.out + static_cast<int64_t>(offset) * nest.step + static_cast<int64_t>(begin) * box.cols.dst;
    if (box.cols.channel) channel += real;
    // The last of the outer loops is that of its rows.
    const Loop* loop = at<Loop>(table, nest.outer) + nest.num_outer;
    bool is_real = true;
#pragma unroll 1
    for (uint32_t d = nest.num_outer; d-- > 0;) {
        --loop;
        const Bounds<Index> bounds = bounds_of<Index>(table, *loop, index, steps);
        uint32_t block = row;
        if (d > 0) {  // nothing is left over from the outermost
            const auto blocks = static_cast<uint32_t>((bounds.extent + loop->block - 1) / loop->block);
            row = loop->varies & kExtent ? row / blocks : divide(row, loop->by_blocks);
            block -= row * blocks;
        }
        const Index coord = static_cast<Index>(block) * loop->block;
        real = distance(bounds.lo, coord);
        dst += static_cast<int64_t>(coord) * loop->dst_stride;
        src += static_cast<uint64_t>(real * bounds.src_stride);
        if (loop->channel_step) channel += real;
        if (d + 1 == nest.num_outer) {
            box.rows = axis_of<Index>(bounds, *loop, coord, loop->block);
        } else if (coord < bounds.lo || coord >= bounds.hi) {
            is_real = false;
        }
    }
    if (!is_real) box.rows.hi = box.rows.lo;
    box.src = src;
    box.dst = dst;
    if (desc.op == kAffine) {
        // The channel is below 0 in front of padding.
        const auto size = static_cast<Index>(channel < 0 ? -channel : channel);
        const uint32_t rest = static_cast<uint32_t>(
            kWideColumns ? size % nest.channels : size - divide(static_cast<uint32_t>(size), nest.by_channels) * nest.channels);
        box.channel = channel < 0 && rest != 0 ? nest.channels - rest : rest;
    }
    return box;
}

/// Box `item` of a descriptor that is kWide. Few are, so it is compiled once.
WINDROW_OUT_OF_LINE void wide_box(const uint64_t* table, const OutputDesc& desc, uint32_t item, Box& box) {
    box = box_of<uint64_t>(table, desc, item);
}

WINDROW_DEVICE Box box_of(const uint64_t* table, const OutputDesc& desc, uint32_t item) {
    if (__builtin_expect(!(desc.flags & kWide), true)) return box_of<uint32_t>(table, desc, item);
    Box box;
    wide_box(table, desc, item, box);
    return box;
}

}  // namespace windrow
