// Pairs of a move of which the device chooses one side or both: a warp finds where a pair begins, and writes a piece of it. What
// is not there is left out.
//
// The problem: the host knows the layout of a pair, which all of them share, but not the addresses; and an index may be out of
// range, so that there is nothing to read, or no place to write to.
//
//     indices    7   -1   900   2                          of a side, or none: pair i is sample i
//     address    words of the parameters, a list of addresses, or first + index * step; 0 for 900, which is noted
//     items      | pair 0: piece 0, 1, ... | pair 1 | ...  kMoveBytes each; warp w takes w, w + warps and so on
//
//     move_pairs:  the addresses of both sides; one of them 0: next item
//     move_units:  one row:    four loads of 16 bytes of a lane under way, or units one by one
//                  loops:      row and column of each unit by division, then both strides
//
// A table as select.cuh makes it would need a launch of its own before; here each warp looks its pair up.
#pragma once

#include "lanes.cuh"

namespace windrow {

/// The address of a pair's sample on a side; 0 if its index is out of range, which is noted in `found` if `tells`. A negative
/// index counts from the end.
WINDROW_DEVICE uint64_t address_of(const MoveSide& side, const uint64_t* words, uint32_t pair, bool tells) {
    uint64_t index = pair;
    if (side.indices != nullptr) {
        const int64_t place = static_cast<int64_t>(pair) * side.index_step;
        int64_t chosen = side.index_bytes == 8 ? reinterpret_cast<const int64_t*>(side.indices)[place]
                                               : reinterpret_cast<const int32_t*>(side.indices)[place];
        if (chosen < 0) chosen += static_cast<int64_t>(side.num_listed);
        if (static_cast<uint64_t>(chosen) >= side.num_listed) {
            // Any of those that are out of range will do.
            if (tells) *side.found = kFoundByMove | pair;
            return 0;
        }
        if (!side.is_gathered) index = static_cast<uint64_t>(chosen);
    }
    if (side.is_inline) return words[side.word + index];
    if (side.addresses != nullptr) return side.addresses[index];
    return side.first + index * static_cast<uint64_t>(side.step);
}

/// Moves a unit of 1 << log_unit bytes, of which both addresses are multiples.
template <uint32_t log_unit>
WINDROW_DEVICE void move_unit(uint8_t* dst, const uint8_t* src) {
    if constexpr (log_unit == 0) store(dst, load<uint8_t>(src));
    else if constexpr (log_unit == 1) store(dst, load<uint16_t>(src));
    else if constexpr (log_unit == 2) store(dst, load<uint32_t>(src));
    else if constexpr (log_unit == 3) store(dst, load<uint64_t>(src));
    else store16(dst, load16(src));
}

/// Moves this lane's units, 32 apart, from `unit` to before `end`. Units of 16 bytes in a single row are 4 at most.
template <uint32_t log_unit>
WINDROW_DEVICE void move_units(const Move& move, uint8_t* dst, const uint8_t* src, uint64_t unit, uint64_t end) {
    if (move.num_dims == 0) {
        if constexpr (log_unit == 4) {
            if (unit + 3 * kLanes < end) {
                Vec16 v[4];
#pragma unroll
                for (uint32_t i = 0; i < 4; ++i) v[i] = load16(src + 16 * (unit + kLanes * i));
#pragma unroll
                for (uint32_t i = 0; i < 4; ++i) store16(dst + 16 * (unit + kLanes * i), v[i]);
                return;
            }
        }
#pragma unroll 1
        for (; unit < end; unit += kLanes) move_unit<log_unit>(dst + (unit << log_unit), src + (unit << log_unit));
        return;
    }
#pragma unroll 1
    for (; unit < end; unit += kLanes) {
        uint64_t row = unit / move.row_units;
        const uint64_t column = (unit - row * move.row_units) << log_unit;
        uint64_t to = column, from = column;
#pragma unroll 1
        for (uint32_t i = move.num_dims; i-- > 0;) {
            const MoveDim& dim = move.dims[i];
            const uint64_t outer = row / dim.extent, coord = row - outer * dim.extent;
            to += coord * static_cast<uint64_t>(dim.dst_stride);
            from += coord * static_cast<uint64_t>(dim.src_stride);
            row = outer;
        }
        move_unit<log_unit>(dst + to, src + from);
    }
}

/// Moves items `warp`, `warp + warps` and so on, of kMoveBytes or what is left of a pair. A pair with an index out of range on
/// either side is left out.
WINDROW_DEVICE void move_pairs(const Move& move, const uint64_t* words, uint32_t warp, uint32_t warps, uint32_t lane) {
    const uint64_t piece = kMoveBytes >> move.log_unit;
#pragma unroll 1
    for (uint64_t item = warp; item < move.num_items; item += warps) {
        const uint32_t pair = static_cast<uint32_t>(item) / move.items, local_item = static_cast<uint32_t>(item) - pair * move.items;
        const bool tells = local_item == 0 && lane == 0;
        const uint64_t to = address_of(move.dst, words, pair, tells), from = address_of(move.src, words, pair, tells);
        if (to == 0 || from == 0) continue;
        uint8_t* dst = reinterpret_cast<uint8_t*>(to);
        const uint8_t* src = reinterpret_cast<const uint8_t*>(from);
        const uint64_t begin = local_item * piece, left = move.units - begin, end = begin + (left < piece ? left : piece);
        switch (move.log_unit) {
            case 0: move_units<0>(move, dst, src, begin + lane, end); break;
            case 1: move_units<1>(move, dst, src, begin + lane, end); break;
            case 2: move_units<2>(move, dst, src, begin + lane, end); break;
            case 3: move_units<3>(move, dst, src, begin + lane, end); break;
            default: move_units<4>(move, dst, src, begin + lane, end);
        }
    }
}

}  // namespace windrow
