// kCopy: samples that are runs of bytes, one behind the other in the output. kTable.
//
// A misaligned source is read in two aligned 16-byte words and shifted, whatever the misalignment.
// To be measured: 8-byte and 4-byte loads where that is all it is off by; the words at the ends of
// short samples (below some 100 bytes they are most of all words), which are read in pieces.
#pragma once

#include "policy.h"
#include "samples.cuh"

namespace windrow {

/// The bytes of one sample from `src` on: `left` of them, and `skip` in front.
struct Run {
    const uint8_t* src;
    uint64_t skip;
    uint64_t left;
};

/// The bytes [from, to) of a tile, 1 to 16, of as many samples as they come from. Reads no
/// others. `find(pos)` gives the run from byte `pos` of the tile on.
template <class Find>
WINDROW_DEVICE Vec16 gather(uint32_t from, uint32_t to, const Find& find) {
    Vec16 v = {0, 0};
#pragma unroll 1
    for (uint32_t pos = from; pos < to;) {
        Run run = find(pos);
        uint32_t n = run.left < to - pos ? static_cast<uint32_t>(run.left) : to - pos;
        v = v | shift_up(read_bytes(run.src, n), pos - from);
        pos += n;
    }
    return v;
}

/// Writes the bytes of a tile, `size` of them from `out` on. Of a run only its own bytes are read:
/// those of the vector, and those beside it that share its aligned words.
///
/// The output is written in 16-byte vectors, with single bytes only in front of its first aligned
/// address and behind its last: a tile begins and ends at such an address or with the field.
template <class Find>
WINDROW_DEVICE void copy_vectors(uint8_t* out, uint32_t size, const Find& find) {
    constexpr uint32_t kThreads = Policy::kThreads;
    constexpr uint32_t kVectors = Policy::kVectors;
    // Vectors are numbered from the aligned address at or in front of the first byte.
    const uint32_t head = misalignment(out, 16);
    out -= head;
    const uint32_t end = head + size;
    for (uint32_t pos0 = 16 * threadIdx.x; pos0 < end; pos0 += 16 * kThreads * kVectors) {
        Vec16 low[kVectors], high[kVectors];
        uint32_t skew[kVectors];
        uint32_t fast = 0;
#pragma unroll
        for (uint32_t i = 0; i < kVectors; ++i) {
            const uint32_t pos = pos0 + 16 * kThreads * i;
            low[i] = high[i] = {0, 0};
            skew[i] = 0;
            if (pos < head || pos + 16 > end) {
                continue;
            }
            const Run run = find(pos - head);
            const uint32_t s = misalignment(run.src, 16);
            if (run.skip >= s && run.left >= (s == 0 ? 16 : 32 - s)) {
                fast |= 1u << i;
                skew[i] = s;
                low[i] = load16(run.src - s);
                if (s != 0) {
                    high[i] = load16(run.src - s + 16);
                }
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < kVectors; ++i) {
            if (fast >> i & 1) {
                store16(out + (pos0 + 16 * kThreads * i), funnel16(low[i], high[i], skew[i]));
            }
        }
        // The ends of the field, and what lies at the ends of samples.
#pragma unroll 1
        for (uint32_t i = 0; i < kVectors; ++i) {
            const uint32_t pos = pos0 + 16 * kThreads * i;
            if (fast >> i & 1 || pos >= end) {
                continue;
            }
            const uint32_t from = pos < head ? head : pos;
            const uint32_t to = pos + 16 < end ? pos + 16 : end;
            const Vec16 bits = gather(from - head, to - head, find);
            if (to - from == 16) {
                store16(out + pos, bits);
            } else {
                store_elements(out + from, bits, 1, 0, to - from, true);
            }
        }
    }
}

/// Writes the bytes of one tile of a kCopy field.
WINDROW_DEVICE void copy_tile(const uint64_t* table, const Field& field, uint64_t tile,
                              uint32_t tile_bytes) {
    const uint32_t head = misalignment(field.out, 16);
    const uint64_t begin = tile == 0 ? 0 : tile * tile_bytes - head;
    const uint64_t behind = (tile + 1) * tile_bytes - head;
    const uint64_t end = behind < field.numel ? behind : field.numel;
    if (begin >= end) {
        return;
    }
    uint8_t* out = field.out + begin;
    const uint32_t size = static_cast<uint32_t>(end - begin);
    const uint64_t* data = table + field.data;
    const Samples samples(table, field, tile, begin, tile_bytes);
    auto find = [&](uint32_t pos) -> Run {
        Owner owner = samples.of(pos);
        auto src = reinterpret_cast<const uint8_t*>(data[owner.sample]) + owner.skip;
        return {src, owner.skip, owner.left};
    };
    const Run first = find(0);
    if (first.left >= size) {
        copy_vectors(out, size, [&](uint32_t pos) -> Run {
            return {first.src + pos, first.skip + pos, first.left - pos};
        });
    } else {
        copy_vectors(out, size, find);
    }
}

/// Writes the elements of one tile of a kTable field. Tiles are counted as those of kWalk.
WINDROW_DEVICE void table_tile(const uint64_t* table, const Field& field, uint64_t tile,
                               uint32_t tile_bytes) {
    uint8_t* out = field.out;
    const uint64_t bytes = field.numel * field.elem_size;
    const uint64_t* words = table + field.data;
    const bool aligned = misalignment(out, 8) == 0;
    const uint64_t first = tile * (tile_bytes / 8);
    for (uint32_t i = threadIdx.x; i < tile_bytes / 8; i += Policy::kThreads) {
        uint64_t pos = 8 * (first + i);
        if (pos >= bytes) {
            break;
        }
        uint32_t n = bytes - pos < 8 ? static_cast<uint32_t>(bytes - pos) : 8;
        if (n == 8 && aligned) {
            store(out + pos, words[first + i]);
        } else {
            store_elements(out + pos, {words[first + i], 0}, 1, 0, n, true);
        }
    }
}

}  // namespace windrow
