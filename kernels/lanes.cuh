// The lanes of a warp, which write one piece: a run of output elements that are adjacent in memory.
//
// The first address of a piece that is a multiple of 16 begins its vectors; lane l writes vectors l, l + 32
// and so on. Lanes exchange nothing, so the host runs the same functions lane by lane.
#pragma once

#include "memory.cuh"
#include "params.h"

namespace windrow {

constexpr uint32_t kLanes = 32;
/// Lanes that write a short row; a warp writes 4 of them.
constexpr uint32_t kGroupLanes = 8;

WINDROW_DEVICE constexpr uint32_t minimum(uint32_t a, uint32_t b) { return a < b ? a : b; }

/// n / d for n and d below 2^31.
WINDROW_DEVICE uint32_t divide(uint32_t n, Divisor by) {
#ifdef __CUDA_ARCH__
    return (__umulhi(n, by.mul) + n) >> by.shift;
#else
    return (static_cast<uint32_t>(static_cast<uint64_t>(n) * by.mul >> 32) + n) >> by.shift;
#endif
}

/// The samples of a descriptor: addresses, or rows of a table. They are in the table of the launch, which may
/// be in the parameters, so plain loads read them.
struct Sources {
    const uint64_t* addresses;
    const uint32_t* ids;
    const uint8_t* base;
    uint32_t stride;      ///< bytes from row to row
};

/// The address of a sample.
template <bool by_id>
WINDROW_DEVICE const uint8_t* source_at(const Sources& sources, uint32_t sample) {
    if (by_id) return stepped(sources.base, sources.stride, sources.ids[sample]);
    return reinterpret_cast<const uint8_t*>(*stepped(sources.addresses, 8u, sample));
}

/// The threads that write one segment together, in turns, 8 lanes beside each other: each turn of 8 lanes
/// follows that of the 8 before them, so that what is under way at one time is adjacent. 8 lanes alone
/// write a short row; else they are those of one warp or more.
struct ThreadGroup {
    uint32_t rank, size;  ///< position of this thread, and number of threads

    /// The first vector of this thread, if each turn has `unroll` vectors, kWidth apart.
    template <uint32_t kWidth = kGroupLanes>
    WINDROW_DEVICE uint32_t first(uint32_t unroll) const {
        return rank / kWidth * kWidth * unroll + rank % kWidth;
    }
    /// Vectors from turn to turn.
    WINDROW_DEVICE uint32_t step(uint32_t unroll) const { return size * unroll; }
};

/// The number of vectors from the begin of the sector of `dst`, a multiple of 16, to `dst`; of its line of the cache
/// where more than 8 lanes write.
WINDROW_DEVICE uint32_t first_turn(const uint8_t* dst, const ThreadGroup& threads) {
    return misalignment(dst, threads.size > kGroupLanes ? 16 * kGroupLanes : 32) / 16;
}

}  // namespace windrow
