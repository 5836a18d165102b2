// Family strided: everything else. Rows of the output whose elements lie any number of bytes apart in
// the source: other axis orders, flips, crops, steps, rare dtypes. A row's place is found once for the
// warp; its elements go to the lanes one by one, neighbours to neighbouring lanes, so that a store is
// 32 elements in a row. The switches on dtypes are taken once for kUnroll elements of a lane.
#pragma once

#include "lanes.cuh"

namespace windrow {

struct Strided {
    const uint8_t* src;   ///< of the first real element
    uint8_t* dst;         ///< of the first element
    int64_t src_stride, dst_stride;
    uint32_t lo, hi, width;  ///< elements [lo, hi) are real, the rest of `width` is padding
    uint32_t channel, channel_step;
    uint8_t from, to, from_size, to_size;
};

template <class T, int n>
WINDROW_DEVICE void load_each(const uint8_t* const (&p)[n], const bool (&real)[n], uint64_t (&bits)[n]) {
#pragma unroll
    for (int i = 0; i < n; ++i) if (real[i]) bits[i] = load<T>(p[i]);
}

template <int kUnroll>
WINDROW_DEVICE void strided_line(const Strided& s, const Affine& affine, uint64_t fill, uint32_t lane) {
#pragma unroll 1
    for (uint32_t e = lane; e < s.width; e += kLanes * kUnroll) {
        uint64_t bits[kUnroll];
        const uint8_t* p[kUnroll];
        bool real[kUnroll], odd = false;
#pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
            const uint32_t at = e + kLanes * i;
            real[i] = at >= s.lo && at < s.hi;
            p[i] = s.src + static_cast<int64_t>(at - s.lo) * s.src_stride;
            odd = odd || (real[i] && misalignment(p[i], s.from_size) != 0);
            bits[i] = 0;
        }
        if (odd) {
#pragma unroll 1
            for (int i = 0; i < kUnroll; ++i) {  // the next is always the first
                const uint64_t one = real[0] ? read_bytes(p[0], s.from_size).lo : 0;
#pragma unroll
                for (int k = 1; k < kUnroll; ++k) bits[k - 1] = bits[k], p[k - 1] = p[k];
                const bool first = real[0];
#pragma unroll
                for (int k = 1; k < kUnroll; ++k) real[k - 1] = real[k];
                bits[kUnroll - 1] = one, real[kUnroll - 1] = first;
            }
        } else {
            switch (s.from_size) {
                case 1: load_each<uint8_t>(p, real, bits); break;
                case 2: load_each<uint16_t>(p, real, bits); break;
                case 4: load_each<uint32_t>(p, real, bits); break;
                default: load_each<uint64_t>(p, real, bits);
            }
        }
        // A lane's elements are 32 apart. Channels along the row (channel_step 1) need convert() to step by
        // 32 modulo their number, which it cannot yet; the prototype has those along other loops.
        convert(bits, s.from, s.to, affine, s.channel, 0);
        uint8_t* q = s.dst + static_cast<int64_t>(e) * s.dst_stride;
#pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
            if (e + kLanes * i >= s.width) break;
            const uint64_t done = real[i] ? bits[i] : fill;
            switch (s.to_size) {
                case 1: store(q, static_cast<uint8_t>(done)); break;
                case 2: store(q, static_cast<uint16_t>(done)); break;
                case 4: store(q, static_cast<uint32_t>(done)); break;
                default: store(q, done);
            }
            q += kLanes * s.dst_stride;
        }
    }
}

}  // namespace windrow
