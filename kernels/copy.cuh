// kCopy: samples that are runs of bytes, one behind the other in the output. kTable.
#pragma once

#include "policy.h"
#include "samples.cuh"

namespace windrow {

/// The bytes of one sample: [begin, end) of the output are those from `src` on.
struct Run {
    const uint8_t* src;
    uint64_t begin;
    uint64_t end;
};

/// The `count` bytes of the output from `pos` on, 1 to 16, of as many samples as they come from.
/// Reads these bytes and no others.
template <class Find>
WINDROW_DEVICE Vec16 gather(uint64_t pos, uint32_t count, const Find& find) {
    Vec16 v = {0, 0};
    for (uint32_t done = 0; done < count;) {
        Run run = find(pos + done);
        uint64_t left = run.end - (pos + done);
        uint32_t n = left < count - done ? static_cast<uint32_t>(left) : count - done;
        v = v | shift_up(read_bytes(run.src + (pos + done - run.begin), n), done);
        done += n;
    }
    return v;
}

/// Writes the bytes [begin, end) of the output. `find` gives the run of any of them. Of a run, only
/// its own bytes are read; where aligned words lie wholly inside it, also those beside the vector.
///
/// The output is written in 16-byte vectors, with single bytes only in front of its first aligned
/// address and behind its last: a tile begins and ends at such an address or with the field.
template <class Find>
WINDROW_DEVICE void copy_vectors(uint8_t* out, uint64_t begin, uint64_t end, const Find& find) {
    constexpr unsigned kThreads = Policy::kThreads;
    constexpr unsigned kVectors = Policy::kVectors;
    constexpr uint32_t kSlow = 16;
    // Vectors are numbered from the aligned address at or in front of the first byte.
    const uint32_t head = misalignment(out + begin, 16);
    const uint32_t num = static_cast<uint32_t>((head + (end - begin) + 15) / 16);
    for (uint32_t v0 = threadIdx.x; v0 < num; v0 += kThreads * kVectors) {
        Vec16 low[kVectors], high[kVectors];
        uint32_t shift[kVectors];
#pragma unroll
        for (unsigned i = 0; i < kVectors; ++i) {
            uint32_t v = v0 + i * kThreads;
            uint64_t pos = begin + 16ull * v - head;
            shift[i] = kSlow;
            low[i] = high[i] = {0, 0};
            bool is_whole = v < num && (v > 0 || head == 0) && pos + 16 <= end;
            if (!is_whole) {
                continue;
            }
            Run run = find(pos);
            const uint8_t* src = run.src + (pos - run.begin);
            uint32_t skew = misalignment(src, 16);
            uint64_t own_before = pos - run.begin, own_after = run.end - pos;
            if (skew == 0 ? own_after >= 16 : own_before >= skew && own_after >= 32 - skew) {
                shift[i] = skew;
                low[i] = load16(src - skew);
                if (skew != 0) {
                    high[i] = load16(src - skew + 16);
                }
            }
        }
#pragma unroll
        for (unsigned i = 0; i < kVectors; ++i) {
            uint32_t v = v0 + i * kThreads;
            if (v >= num) {
                break;
            }
            uint64_t pos = begin + 16ull * v - head;
            if (shift[i] != kSlow) {
                store16(out + pos, funnel16(low[i], high[i], shift[i]));
                continue;
            }
            uint64_t from = v == 0 ? begin : pos;
            uint64_t to = pos + 16 <= end ? pos + 16 : end;
            Vec16 bits = gather(from, static_cast<uint32_t>(to - from), find);
            if (to - from == 16) {
                store16(out + pos, bits);
            } else {
                store_elements(out + from, bits, 1, 0, static_cast<uint32_t>(to - from), true);
            }
        }
    }
}

/// Writes the bytes of one tile of a kCopy field.
WINDROW_DEVICE void copy_tile(const uint64_t* table, const Field& field, uint64_t tile,
                              uint32_t tile_bytes) {
    uint8_t* out = field.out;
    const uint32_t head = misalignment(out, 16);
    const uint64_t numel = field.numel;
    const uint64_t begin = tile == 0 ? 0 : tile * tile_bytes - head;
    const uint64_t behind = (tile + 1) * tile_bytes - head;
    const uint64_t end = behind < numel ? behind : numel;
    if (begin >= end) {
        return;
    }
    const uint64_t* data = table + field.data;
    const Samples samples(table, field, tile, begin, tile_bytes);
    auto run_of = [&](const Owner& owner) -> Run {
        return {reinterpret_cast<const uint8_t*>(data[owner.sample]), owner.begin, owner.end};
    };
    const Owner owner = samples.of(begin);
    if (owner.end >= end) {
        const Run run = run_of(owner);
        copy_vectors(out, begin, end, [&](uint64_t) { return run; });
    } else {
        copy_vectors(out, begin, end, [&](uint64_t pos) { return run_of(samples.of(pos)); });
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
