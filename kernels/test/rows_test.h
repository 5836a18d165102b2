// Family rows.
#pragma once

#include "../rows.cuh"
#include "values.h"

template <bool by_id>
void check_rows(uint32_t vectors, uint32_t num, uint32_t gap) {
    using namespace windrow;
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
    const RowsOf rows = {base, addresses.data(), ids.data(), stride};
    const uint64_t count = uint64_t{num} * vectors;
    for (uint64_t first = 0; first < count; first += 4 * kLanes) {
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
            rows_piece<by_id, 4>(rows, output.data(), vectors, divisor(vectors), first + lane, count);
        }
    }
    output.check(by_id ? "rows by id" : "rows by address");
    blocks.clear();
}

inline void test_rows() {
    for (uint32_t vectors : {1, 2, 3, 31, 32, 33, 127, 128, 129}) {
        for (uint32_t num : {1, 2, 3, 41}) {
            check_rows<false>(vectors, num, uint32_t(pick(3)));
            check_rows<true>(vectors, num, uint32_t(pick(3)));
        }
    }
}
