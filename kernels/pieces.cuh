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
template <class T>
WINDROW_DEVICE T entry(const uint64_t* table, uint32_t position, uint32_t index) {
    return at<T>(table, position)[index];
}

/// A bound of a loop, in place of the position of its column: one of type Index, or a narrow one. Without branches around it
/// each load has its own predicate.
template <class Index, class Bound>
WINDROW_DEVICE void read_bound(const uint64_t* table, bool is_varied, bool is_narrow, uint32_t index, Bound& bound) {
    auto position = static_cast<uint32_t>(bound);
    keep(position);
    if (is_varied) bound = static_cast<Bound>(entry<Index>(table, position, index));
    if (sizeof(Index) == 4 && is_narrow) bound = entry<uint16_t>(table, position, index);
}

template <bool by_id>
WINDROW_DEVICE Sources sources_of(const uint64_t* table, const Field& field) {
    return {table + field.data, by_id ? at<uint32_t>(table, field.data) : nullptr, field.base, static_cast<uint32_t>(field.stride)};
}

WINDROW_DEVICE const uint8_t* source_of(const uint64_t* table, const Field& field, uint32_t sample) {
    return field.flags & kById ? source_at<true>(sources_of<true>(table, field), sample)
                               : source_at<false>(sources_of<false>(table, field), sample);
}

WINDROW_DEVICE Vec16 fill_of(const Field& field) {
    const uint64_t* words = reinterpret_cast<const uint64_t*>(field.nest.fill);
    return {words[0], words[1]};
}

/// The sample of item `own`, whose number becomes that among the items of the sample.
WINDROW_DEVICE uint32_t sample_of_item(const uint64_t* table, const Nest& nest, uint32_t& own) {
    if (const uint32_t items = nest.items; items != 0) {
        const uint32_t index = divide(own, nest.by_items);
        own -= index * items;
        return index;
    }
    const uint32_t* first = at<uint32_t>(table, nest.first);
    const uint32_t* hint = at<uint32_t>(table, nest.hints) + (own >> nest.hint_shift);
    uint32_t index = hint[0], high = hint[1];
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
    return index;
}

/// A part of a row: elements [begin, begin + width), of which [begin + lead, begin + lead + real) are real.
struct Stretch {
    const uint8_t* src;  ///< of its first real element
    uint8_t* dst;
    uint32_t lead, real, width;
    uint32_t before, after;  ///< bytes of the sample that may be read beside it, cut off at 64
};

/// How many neighbouring items write one stretch together.
constexpr uint32_t kTogether = 8;

/// The stretch that an item of a row shares with its neighbours.
struct Shared {
    Stretch part;
    uint32_t number;       ///< of the sample, among those of the tensor
    uint32_t channel;      ///< of the row
    uint32_t warp, warps;  ///< which of those that share it this one is
};

/// The stretch of item `own` of a field. Index counts columns and offsets: 32 bits where the field is not
/// kWide. A stretch begins where the output is a multiple of 16, or with the row.
template <class Index>
WINDROW_DEVICE Shared shared_stretch(const uint64_t* table, const Field& field, uint32_t own, uint32_t from_size) {
    const Nest& nest = field.nest;
    Shared shared;
    Stretch& part = shared.part;
    const uint32_t size = field.to_size, wide = sizeof(Index) == 8;
    const uint32_t index = sample_of_item(table, nest, own);
    uint32_t pieces = nest.pieces;
    Index offset = index, extent = static_cast<Index>(nest.cols.extent);
    Index lo = static_cast<Index>(nest.cols.lo), hi = static_cast<Index>(nest.cols.hi);
    part.src = from_size != 0 ? source_of(table, field, index) : nullptr;
    part.before = part.after = 0;
    shared.number = index;
    shared.channel = nest.channel_first;
    if (!(field.flags & kVaried)) {
        part.dst = field.out + static_cast<int64_t>(offset) * nest.step;
    } else {
        const uint32_t of_cols = nest.cols.varies;
        uint32_t steps = 1;
        if (nest.places != 0) offset = shared.number = at<uint32_t>(table, nest.places)[index];
        // A branch: the compiler would do for all fields what is for these alone.
        if (__builtin_expect(nest.offsets != 0, false)) {
            offset = entry<Index>(table, nest.offsets, shared.number);
            const Index next = entry<Index>(table, nest.offsets, shared.number + 1);
            steps = static_cast<uint32_t>(next - offset);
            if (of_cols & kExtent) {
                hi = extent = extent * (next - offset);
                const uint32_t slack = (16 >> field.log_to) + nest.piece - 2;
                if (pieces == 0) {
                    pieces = wide ? static_cast<uint32_t>((extent + slack) / nest.piece)
                                  : divide(static_cast<uint32_t>(extent) + slack, nest.by_pieces);
                }
            }
        }
        // Few fields have padding in front.
        if (of_cols & (kLo | kNarrowLo)) {
            as_branch();
            read_bound<Index>(table, of_cols & kLo, of_cols & kNarrowLo, index, lo);
        }
        read_bound<Index>(table, of_cols & kHi, of_cols & kNarrowHi, index, hi);
        part.dst = field.out + static_cast<int64_t>(offset) * nest.step;
        // The row.
        if (const uint32_t num_outer = nest.num_outer; num_outer != 0) {
            uint32_t row = own;
            if (pieces == 1) {
                own = 0;
            } else {
                row = nest.pieces != 0 ? divide(own, nest.by_pieces) : own / pieces;
                own -= row * pieces;
            }
            const Loop* loop = at<Loop>(table, nest.outer) + num_outer;
#pragma unroll 1
            for (uint32_t d = num_outer; d-- > 0;) {
                --loop;
                const uint32_t varies = loop->varies;
                uint32_t first = static_cast<uint32_t>(loop->lo), end = static_cast<uint32_t>(loop->hi), coord = row;
                int64_t stride = loop->src_stride;
                if (varies != 0) {
                    if (varies & kExtent) end = static_cast<uint32_t>(loop->extent) * steps;
                    read_bound<Index>(table, varies & kLo, varies & kNarrowLo, index, first);
                    read_bound<Index>(table, varies & kHi, varies & kNarrowHi, index, end);
                    if (varies & kSrcStride) stride = static_cast<int64_t>(table[static_cast<uint32_t>(stride) + index]);
                }
                if (d > 0) {  // nothing is left over from the outermost
                    const uint32_t whole = static_cast<uint32_t>(loop->extent) * (varies & kExtent ? steps : 1);
                    row = varies & kExtent ? row / whole : divide(row, loop->by_blocks);
                    coord -= row * whole;
                }
                const uint32_t real = coord - first;
                part.dst += coord * loop->dst_stride;
                if (real >= end - first) {
                    hi = lo;
                } else {
                    part.src += real * stride;
                    shared.channel += loop->channel_step * real;
                    if (field.flags & kJoint) {
                        const uint32_t bytes = stride < 64 ? static_cast<uint32_t>(stride) : 64;
                        part.before += minimum(real, 64) * bytes;
                        part.after += minimum(end - 1 - coord, 64) * bytes;
                    }
                }
            }
        }
    }
    // What of it is this stretch.
    shared.warp = own % kTogether;
    own -= shared.warp;
    shared.warps = minimum(pieces - own, kTogether);
    Index begin = 0;
    uint32_t span = kTogether * nest.piece;
    if (pieces > kTogether) {
        const uint32_t phase = misalignment(part.dst, 16) >> field.log_to;
        begin = static_cast<Index>(own) * nest.piece;
        if (own == 0) span -= phase; else begin -= phase;
    }
    auto clip = [&](Index bound, uint32_t most) {
        const Index beyond = bound > begin ? bound - begin : 0;
        return beyond < most ? static_cast<uint32_t>(beyond) : most;
    };
    part.width = clip(extent, span);
    const uint32_t end = clip(hi, part.width);
    part.lead = minimum(clip(lo, part.width), end);
    part.real = end - part.lead;
    const Index skipped = begin + part.lead - lo, rest = hi - begin - end;
    part.src += static_cast<uint64_t>(skipped) * from_size;
    part.dst += static_cast<uint64_t>(begin) * size;
    part.before += static_cast<uint32_t>(skipped < 64 ? skipped : 64) * from_size;
    part.after += static_cast<uint32_t>(rest < 64 ? rest : 64) * from_size;
    if (part.real == 0) part.lead = 0;
    return shared;
}

/// The same for the few fields that are kWide, compiled once.
WINDROW_OUT_OF_LINE Shared wide_stretch(const uint64_t* table, const Field& field, uint32_t own, uint32_t from_size) {
    return shared_stretch<uint64_t>(table, field, own, from_size);
}

WINDROW_DEVICE Shared shared_stretch(const uint64_t* table, const Field& field, uint32_t own, uint32_t from_size) {
    if (__builtin_expect(!(field.flags & kWide), true)) return shared_stretch<uint32_t>(table, field, own, from_size);
    return wide_stretch(table, field, own, from_size);
}

}  // namespace windrow
