// Which sample an element of the output belongs to.
#pragma once

#include "lanes.cuh"
#include "params.h"

namespace windrow {

/// The struct or array at a position of the table.
///
/// The table is read through generic addresses, whether it lies in global memory or in the
/// parameters: such a load of a parameter goes through the first cache like any other, where one
/// from the constant bank would be serialised if lanes differ in the index. To be measured against
/// a copy of the tile's part of the table in shared memory.
template <class T>
WINDROW_DEVICE const T* at(const uint64_t* table, uint32_t position) {
    return reinterpret_cast<const T*>(table + position);
}

/// n / d for any n.
WINDROW_DEVICE uint64_t divide(uint64_t n, uint64_t d, Divisor by) {
    if (by.is_small && n < 1u << 31) {
        return divide(static_cast<uint32_t>(n), by);
    }
    return n / d;
}

/// A sample that owns an element.
struct Owner {
    uint64_t sample;
    uint64_t skip;  ///< its elements in front of that one
    uint64_t left;  ///< its elements from that one on
};

/// The samples that own the elements of one tile, whose elements are counted from 0.
struct Samples {
    const int64_t* offsets;  ///< null: rows
    uint64_t unit;
    uint64_t begin;  ///< rows: elements of the first sample in front of the tile; joined: all such
    uint64_t first;  ///< the sample of the tile's first element
    uint32_t more;   ///< joined: how many samples may follow it in the tile
    Divisor by_unit; ///< rows: only used where a tile has room for more than two samples

    /// `tile` is counted within the field, and covers at most `tile_elems` elements from `elem` on.
    WINDROW_DEVICE Samples(const uint64_t* table, const Field& field, uint64_t tile, uint64_t elem,
                           uint32_t tile_elems)
        : offsets(nullptr), unit(field.unit), begin(elem), more(0), by_unit(field.by_unit) {
        if (field.offsets != 0) {
            offsets = at<int64_t>(table, field.offsets);
            const uint32_t* ends = at<uint32_t>(table, field.tile_samples) + tile;
            first = ends[0];
            more = ends[1] - ends[0];
        } else {
            first = divide(elem, unit, by_unit);
            begin = elem - first * unit;
            by_unit.is_small = unit < tile_elems;
        }
    }

    /// The sample that owns element `elem` of the tile. Empty samples own none.
    WINDROW_DEVICE Owner of(uint32_t elem) const {
        uint64_t skip = begin + elem;
        if (offsets == nullptr) {
            uint64_t sample = first;
            if (skip >= unit) {
                const uint32_t steps =
                    by_unit.is_small ? divide(static_cast<uint32_t>(skip), by_unit) : 1;
                sample += steps;
                skip -= steps * unit;
            }
            return {sample, skip, unit - skip};
        }
        uint32_t low = 0, high = more;
#pragma unroll 1
        while (low < high) {
            uint32_t middle = (low + high + 1) / 2;
            if (static_cast<uint64_t>(offsets[first + middle]) * unit <= skip) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        const int64_t* ends = offsets + first + low;
        return {first + low, skip - static_cast<uint64_t>(ends[0]) * unit,
                static_cast<uint64_t>(ends[1]) * unit - skip};
    }
};

}  // namespace windrow
