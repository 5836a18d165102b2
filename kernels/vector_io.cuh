// Elements at any address, vectors of 16 bytes, and padding.
#pragma once

#include "fences.cuh"
#include "lanes.cuh"

namespace windrow {

/// The element of `size` bytes, 1, 2, 4 or 8, at any address, zero-extended.
WINDROW_DEVICE uint64_t read_element(const uint8_t* p, uint32_t size) {
    if (misalignment(p, size) == 0) {
        switch (size) {
            case 1: return load<uint8_t>(p);
            case 2: return load<uint16_t>(p);
            case 4: return load<uint32_t>(p);
            default: return load<uint64_t>(p);
        }
    }
    uint64_t bits = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < size; ++i) bits |= static_cast<uint64_t>(load<uint8_t>(p + i)) << (8 * i);
    return bits;
}

/// Writes an element of `size` bytes, 1, 2, 4 or 8, to any address.
WINDROW_DEVICE void write_element(uint8_t* p, uint64_t bits, uint32_t size) {
    if (misalignment(p, size) == 0) {
        switch (size) {
            case 1: return store(p, static_cast<uint8_t>(bits));
            case 2: return store(p, static_cast<uint16_t>(bits));
            case 4: return store(p, static_cast<uint32_t>(bits));
            default: return store(p, bits);
        }
    }
#pragma unroll 1
    for (uint32_t i = 0; i < size; ++i) store(p + i, static_cast<uint8_t>(bits >> (8 * i)));
}

/// Writes four words to a multiple of 16.
WINDROW_DEVICE void store_words(uint8_t* p, const uint32_t (&w)[4]) {
    store16(p, {w[0] | static_cast<uint64_t>(w[1]) << 32, w[2] | static_cast<uint64_t>(w[3]) << 32});
}

/// Writes four words to a multiple of 16 if `left` is more than `beyond`. A branch around the store would draw all that
/// makes the words into it, once for each vector of a turn; here the store alone has a predicate.
WINDROW_DEVICE void store_words(int32_t left, int32_t beyond, uint8_t* p, const uint32_t (&w)[4]) {
#ifdef __CUDA_ARCH__
    if (Policy::kStore == 2) {
        asm volatile("{ .reg .pred there; setp.gt.s32 there, %5, %6;\n @there st.global.v4.u32 [%0], {%1, %2, %3, %4}; }"
                     :
                     : "l"(__cvta_generic_to_global(p)), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(left), "r"(beyond));
        return;
    }
#endif
    if (left > beyond) store_words(p, w);
}

/// Writes the thread's part of `count` elements of `size` bytes from `dst` on: `fill`, which is one element over and over, its
/// first byte first. The same in `planes` planes, 1 or more, of one phase, `plane` bytes apart. The
/// elements of a plane have less than 2^32 bytes, and the threads are 8 or more.
WINDROW_DEVICE void fill_run(uint8_t* dst, uint32_t count, uint32_t size, Vec16 fill, const ThreadGroup& threads, uint32_t planes = 1,
                             int64_t plane = 0) {
    constexpr uint32_t kMany = 4;
    const uint32_t bytes = count * size, head = minimum((16 - misalignment(dst, 16)) & 15, bytes);
    const uint32_t vectors = (bytes - head) / 16, ends = bytes - 16 * vectors;
#pragma unroll 1
    for (uint32_t i = threads.rank; i < ends; i += threads.size) {
        const uint32_t at = i < head ? i : i + 16 * vectors;
        uint8_t* p = dst + at;
        const auto byte = static_cast<uint8_t>((at & 8 ? fill.hi : fill.lo) >> (8 * (at & 7)));
        uint32_t c = planes;
#pragma unroll 1
        do {
            store(p, byte);
            p += plane;
        } while (--c > 0);
    }
    if (misalignment(dst, size) != 0) fill = funnel16(fill, fill, head);
    dst += head;
    const auto first = static_cast<int32_t>(threads.first(kMany) - first_turn(dst, threads)), step = static_cast<int32_t>(threads.step(kMany));
    int32_t before = -first;
    dst += 16 * int64_t{first};
#pragma unroll 1
    for (int32_t left = static_cast<int32_t>(vectors) - first; left > 0; left -= step) {
        uint8_t* p = dst;
        uint32_t c = planes;
#pragma unroll 1
        do {
#pragma unroll
            for (uint32_t i = 0; i < kMany; ++i) {
                if (i == 0 ? before <= 0 : left > static_cast<int32_t>(kGroupLanes * i)) store16(p + 16 * kGroupLanes * i, fill);
            }
            p += plane;
        } while (--c > 0);
        before = 0;
        dst += 16 * int64_t{step};
    }
}

}  // namespace windrow
