// Family strided.
#pragma once

#include "../strided.cuh"
#include "values.h"

inline void check_strided(int from, int to, uint32_t lo, uint32_t real, uint32_t padding, int64_t step, bool flip, size_t skew) {
    using namespace windrow;
    const uint32_t a = oracle::kSizes[from], b = oracle::kSizes[to], width = lo + real + padding;
    const int64_t stride = a * step;
    const uint8_t* src = allocate(real == 0 ? 0 : (real - 1) * stride + a, skew, true);
    Output output(size_t{width} * b, 0);
    const uint64_t fill = rng();
    for (uint32_t e = 0; e < width; ++e) {
        uint64_t bits = fill;
        if (e >= lo && e < lo + real) {
            bits = 0;
            memcpy(&bits, src + (flip ? lo + real - 1 - e : e - lo) * stride, a);
            bits = oracle::convert(from, to, bits, nullptr, nullptr);
        }
        memcpy(output.want(e * b), &bits, b);
    }
    const Strided line = {flip ? src + (real - 1) * stride : src, output.data(), flip ? -stride : stride, b, lo, lo + real, width, 0, 0,
                          uint8_t(from), uint8_t(to), uint8_t(a), uint8_t(b)};
    for (uint32_t lane = 0; lane < kLanes; ++lane) strided_line<4>(line, Affine{nullptr, 1, false}, fill, lane);
    output.check("strided");
    blocks.clear();
}

inline void test_strided() {
    for (int from = 0; from <= windrow::kF64; ++from) {
        for (int to = 0; to <= windrow::kF64; ++to) {
            const uint32_t real = 1 + uint32_t(pick(200));
            check_strided(from, to, uint32_t(pick(40)), real, uint32_t(pick(40)), 1 + int64_t(pick(4)), pick(2), pick(3) == 0 ? pick(8) : 0);
        }
    }
}
