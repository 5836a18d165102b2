// Family rows.
#pragma once

#include "../rows.cuh"
#include "values.h"

inline void check_rows(uint32_t vectors, uint32_t num, uint32_t gap, bool by_id) {
    const uint32_t many = 30, stride = 16 * (vectors + gap), size = 16 * vectors;
    const uint8_t* base = allocate(many * stride, 0, true);
    std::vector<uint32_t> ids(num);
    std::vector<uint64_t> addresses(num);
    Output output(size_t{num} * size, 16 * pick(2));
    for (uint32_t i = 0; i < num; ++i) {
        ids[i] = uint32_t(pick(many));
        addresses[i] = uint64_t(base + ids[i] * stride);
        memcpy(output.want(i * size), base + ids[i] * stride, size);
    }
    const Sources sources = {addresses.data(), by_id ? ids.data() : nullptr, base, stride};
    const uint32_t count = num * vectors, pieces = vectors / 128;
    for (uint32_t own = 0; own * 128 < count; ++own) {
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
            if (vectors % 128 == 0) {
                const uint32_t sample = own / pieces;
                const uint8_t* src = by_id ? source_at<true>(sources, sample) : source_at<false>(sources, sample);
                page_piece(src, output.data(), own, own % pieces, lane);
            } else if (by_id) {
                rows_piece<true>(sources, output.data(), vectors, divisor(vectors), own * 128 + lane, count);
            } else {
                rows_piece<false>(sources, output.data(), vectors, divisor(vectors), own * 128 + lane, count);
            }
        }
    }
    output.check("rows");
    blocks.clear();
}

inline void test_rows() {
    for (uint32_t vectors : {1, 2, 3, 31, 32, 33, 127, 128, 129, 384}) {
        for (uint32_t num : {1, 2, 3, 41}) {
            check_rows(vectors, num, uint32_t(pick(3)), false);
            check_rows(vectors, num, uint32_t(pick(3)), true);
        }
    }
}
