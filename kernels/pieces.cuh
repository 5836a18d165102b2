// Which part of which sample an item is: found once for a warp.
#pragma once

#include "lanes.cuh"
#include "params.h"

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
WINDROW_DEVICE uint64_t entry(const uint64_t* table, uint64_t position, bool wide, uint32_t index) {
    const uint64_t* column = table + position;
    return wide ? column[index] : reinterpret_cast<const uint32_t*>(column)[index];
}

WINDROW_DEVICE Sources sources_of(const uint64_t* table, const Field& field) {
    return {table + field.data, field.by_id ? at<uint32_t>(table, field.data) : nullptr, field.base,
            static_cast<uint32_t>(field.stride)};
}

WINDROW_DEVICE Vec16 fill_of(const Field& field) {
    const uint64_t* words = reinterpret_cast<const uint64_t*>(field.fill);
    return {words[0], words[1]};
}

WINDROW_DEVICE bool reads(const Field& field) { return field.op <= kAffine; }

/// A sample among those of a field.
struct Sample {
    uint32_t index;   ///< among the samples of the field
    uint32_t number;  ///< among those of the tensor
    uint64_t offset;  ///< joined: its offset,
    uint64_t steps;   ///< and how far it goes
};

WINDROW_DEVICE Sample sample_of(const uint64_t* table, const Field& field, uint32_t index) {
    Sample sample = {index, index, index, 1};
    if (field.places != 0) sample.offset = sample.number = at<uint32_t>(table, field.places)[index];
    if (field.offsets != 0) {
        sample.offset = entry(table, field.offsets, field.wide, sample.number);
        sample.steps = entry(table, field.offsets, field.wide, sample.number + 1) - sample.offset;
    }
    return sample;
}

/// One loop as it is for a sample.
struct Bounds {
    uint64_t extent, lo, hi;
    int64_t src_stride;
};

WINDROW_DEVICE Bounds bounds_of(const uint64_t* table, const Field& field, const Loop& loop, const Sample& sample) {
    Bounds bounds = {loop.extent, loop.lo, loop.hi, loop.src_stride};
    const uint32_t varies = loop.varies;
    if (varies == 0) return bounds;
    if (varies & kExtent) bounds.hi = bounds.extent = loop.extent * sample.steps;
    if (varies & kLo) bounds.lo = entry(table, loop.lo, field.wide, sample.index);
    if (varies & kHi) bounds.hi = entry(table, loop.hi, field.wide, sample.index);
    if (varies & kSrcStride) {
        bounds.src_stride = static_cast<int64_t>(table[loop.src_stride + sample.index]);
    }
    return bounds;
}

/// An item of a field whose items are pieces of rows.
struct Item {
    Sample sample;
    uint32_t row;     ///< of the sample, counted through the outer loops
    uint32_t piece;   ///< of the row,
    uint32_t pieces;  ///< and how many it has
};

/// n / d, where the host could not know d.
WINDROW_DEVICE uint32_t blocks_of(uint64_t extent, uint32_t block) {
    return static_cast<uint32_t>((extent + block - 1) / block);
}

WINDROW_DEVICE Item item_of(const uint64_t* table, const Field& field, uint32_t own) {
    Item item;
    uint32_t index, items = field.items;
    if (items != 0) {
        index = divide(own, field.by_items);
        own -= index * items;
    } else {
        const uint32_t* first = at<uint32_t>(table, field.first);
        const uint32_t* hint = at<uint32_t>(table, field.hints) + (own >> field.hint_shift);
        uint32_t high = hint[1];
        index = hint[0];
#pragma unroll 1
        while (index < high) {
            const uint32_t middle = (index + high + 1) / 2;
            if (first[middle] <= own) {
                index = middle;
            } else {
                high = middle - 1;
            }
        }
        own -= first[index];
    }
    item.sample = sample_of(table, field, index);
    item.row = 0;
    item.piece = own;
    item.pieces = field.pieces;
    if (item.pieces == 0) {
        // The columns are joined.
        const uint32_t slack = field.family == kBox ? 0 : 16 / field.to_size - (field.to_size <= 16);
        item.pieces = blocks_of(field.cols.extent * item.sample.steps + slack, field.piece);
        if (field.num_outer != 0) {
            item.row = own / item.pieces;
            item.piece = own - item.row * item.pieces;
        }
    } else if (field.num_outer != 0) {
        item.row = divide(own, field.by_pieces);
        item.piece = own - item.row * item.pieces;
    }
    return item;
}

/// Where a row begins, and what of it is real.
struct Row {
    const uint8_t* src;  ///< of its first real element
    uint8_t* dst;        ///< of its first element
    uint64_t extent, lo, hi;
    uint64_t before, after;  ///< bytes of the sample in front of the row's first real element, behind its last
    uint32_t channel;
};

/// The row at `row` of the outer loops; the last `skipped` of them are left at their first coordinate.
WINDROW_DEVICE Row row_of(const uint64_t* table, const Field& field, const Sample& sample, uint32_t row) {
    Row at_row;
    const Bounds cols = bounds_of(table, field, field.cols, sample);
    at_row.extent = cols.extent;
    at_row.lo = cols.lo;
    at_row.hi = cols.hi;
    at_row.before = at_row.after = 0;
    at_row.channel = field.channel_first;
    at_row.dst = field.out + static_cast<int64_t>(sample.offset) * field.step;
    at_row.src = reads(field) ? source_at(sources_of(table, field), sample.index) : nullptr;
    const Loop* outer = at<Loop>(table, field.outer);
#pragma unroll 1
    for (uint32_t d = field.num_outer; d-- > 0;) {
        const Loop& loop = outer[d];
        const Bounds bounds = bounds_of(table, field, loop, sample);
        uint32_t coord = row;
        if (d > 0) {  // nothing is left over from the outermost
            const uint32_t extent = static_cast<uint32_t>(bounds.extent);
            row = loop.varies & kExtent ? row / extent : divide(row, loop.by_blocks);
            coord -= row * extent;
        }
        const int64_t real = static_cast<int64_t>(coord - bounds.lo);
        at_row.dst += static_cast<int64_t>(coord) * loop.dst_stride;
        at_row.src += real * bounds.src_stride;
        if (coord < bounds.lo || coord >= bounds.hi) at_row.lo = at_row.hi = 0;
        if (loop.channel_step) at_row.channel += static_cast<uint32_t>(real);
        if (field.joint) {
            at_row.before += real * bounds.src_stride;
            at_row.after += (bounds.hi - 1 - coord) * bounds.src_stride;
        }
    }
    return at_row;
}

/// A part of a row: elements [begin, begin + width), of which [begin + lead, begin + lead + real) are real.
struct Stretch {
    const uint8_t* src;  ///< of its first real element
    uint8_t* dst;
    uint32_t lead, real, width;
    uint32_t before, after;  ///< bytes of the sample that may be read beside it, cut off at 64
};

/// `begin` to `end` of a row whose elements have so many bytes.
WINDROW_DEVICE Stretch stretch_of(const Row& row, uint64_t begin, uint64_t end, uint32_t from_size, uint32_t to_size) {
    Stretch stretch;
    if (end > row.extent) end = row.extent;
    stretch.width = end > begin ? static_cast<uint32_t>(end - begin) : 0;
    const uint64_t lo = row.lo < begin ? begin : row.lo, hi = row.hi < end ? row.hi : end;
    stretch.real = lo < hi ? static_cast<uint32_t>(hi - lo) : 0;
    stretch.lead = stretch.real == 0 ? 0 : static_cast<uint32_t>(lo - begin);
    stretch.src = row.src + (lo - row.lo) * from_size;
    stretch.dst = row.dst + begin * to_size;
    const uint64_t before = row.before + (lo - row.lo) * from_size, after = row.after + (row.hi - hi) * from_size;
    stretch.before = before < 64 ? static_cast<uint32_t>(before) : 64;
    stretch.after = after < 64 ? static_cast<uint32_t>(after) : 64;
    return stretch;
}

/// How many neighbouring items write one stretch together.
constexpr uint32_t kTogether = 8;

/// The stretch that an item of a row shares with its neighbours. It begins where the output is a multiple of
/// 16, or with the row.
WINDROW_DEVICE Stretch shared_stretch(const Field& field, const Item& item, const Row& row, uint32_t from_size) {
    const uint32_t size = field.to_size, phase = misalignment(row.dst, 16) / size;
    const uint64_t whole = uint64_t{item.piece & ~(kTogether - 1)} * field.piece, end = whole + kTogether * field.piece;
    return stretch_of(row, whole == 0 ? 0 : whole - phase, end - phase, from_size, size);
}

}  // namespace windrow
