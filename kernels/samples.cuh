// Which sample an element of the output belongs to.
#pragma once

#include "memory.cuh"
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

/// n / d for n and d below 2^31.
WINDROW_DEVICE uint32_t divide(uint32_t n, Divisor by) {
#ifdef __CUDA_ARCH__
    return (__umulhi(n, by.mul) + n) >> by.shift;
#else
    return (static_cast<uint32_t>(static_cast<uint64_t>(n) * by.mul >> 32) + n) >> by.shift;
#endif
}

/// n / d for any n.
WINDROW_DEVICE uint64_t divide(uint64_t n, uint64_t d, Divisor by) {
    if (by.is_small && n < 1u << 31) {
        return divide(static_cast<uint32_t>(n), by);
    }
    return n / d;
}

/// A sample and its elements [begin, end) in the order of the work.
struct Owner {
    uint64_t sample;
    uint64_t begin;
    uint64_t end;
};

/// The samples that own the elements of one tile.
struct Samples {
    const int64_t* offsets;  // null: rows
    uint64_t unit;
    Divisor by_unit;
    uint32_t tile_elems;
    uint64_t tile_begin;  // the tile's first element
    uint64_t first;       // the sample of that
    uint64_t last;        // joined: a sample at or behind that of the tile's last element
    uint64_t before;      // rows: elements of the first sample in front of the tile

    /// `tile` is counted within the field, and covers at most `tile_elems` elements from
    /// `tile_begin` on.
    WINDROW_DEVICE Samples(const uint64_t* table, const Field& field, uint64_t tile,
                           uint64_t tile_begin, uint32_t tile_elems)
        : offsets(nullptr),
          unit(field.unit),
          by_unit(field.by_unit),
          tile_elems(tile_elems),
          tile_begin(tile_begin),
          last(0),
          before(0) {
        if (field.offsets != 0) {
            offsets = at<int64_t>(table, field.offsets);
            const uint32_t* ends = at<uint32_t>(table, field.tile_samples) + tile;
            first = ends[0];
            last = ends[1];
        } else {
            first = divide(tile_begin, unit, by_unit);
            before = tile_begin - first * unit;
        }
    }

    WINDROW_DEVICE Owner get(uint64_t sample) const {
        if (offsets == nullptr) {
            return {sample, sample * unit, (sample + 1) * unit};
        }
        return {sample, static_cast<uint64_t>(offsets[sample]) * unit,
                static_cast<uint64_t>(offsets[sample + 1]) * unit};
    }

    /// The sample that owns `elem`, an element of the tile. Empty samples own none.
    WINDROW_DEVICE Owner of(uint64_t elem) const {
        if (offsets == nullptr) {
            // Below unit + tile_elems: 32 bits where more than two samples are possible.
            uint64_t skip = before + (elem - tile_begin);
            uint64_t steps = skip < unit          ? 0
                             : unit >= tile_elems ? 1
                                                  : divide(static_cast<uint32_t>(skip), by_unit);
            return get(first + steps);
        }
        uint64_t low = first, high = last;
        while (low < high) {
            uint64_t middle = (low + high + 1) / 2;
            if (static_cast<uint64_t>(offsets[middle]) * unit <= elem) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        return get(low);
    }
};

}  // namespace windrow
