// Family short.
#pragma once

#include "../short.cuh"
#include "values.h"

template <bool by_id>
void check_short(uint32_t size, uint32_t num) {
    using namespace windrow;
    const uint32_t many = 20, stride = size + uint32_t(pick(20));
    std::vector<uint32_t> ids(num);
    std::vector<uint64_t> addresses(num);
    const uint8_t* base = by_id ? allocate((many - 1) * stride + size, pick(64), true) : nullptr;
    Output output(size_t{num} * size, 0);
    for (uint32_t i = 0; i < num; ++i) {
        ids[i] = uint32_t(pick(many));
        const uint8_t* sample = by_id ? base + ids[i] * stride : allocate(size, pick(64), true);
        addresses[i] = uint64_t(sample);
        memcpy(output.want(size_t{i} * size), sample, size);
    }
    const uint64_t bytes = uint64_t{num} * size;
    const Short rows = {{addresses.data(), ids.data(), base, stride}, output.data(), bytes, size, divisor(size), uint32_t(512 * (1 + pick(16)))};
    for (uint64_t piece = 0; piece * rows.piece < bytes; ++piece) {
        for (uint32_t lane = 0; lane < kLanes; ++lane) short_piece<by_id>(rows, piece, lane);
    }
    output.check(by_id ? "short rows by id" : "short rows");
    blocks.clear();
}

inline void test_short() {
    for (uint32_t size = 24; size < 120; ++size) {
        check_short<false>(size, 1 + uint32_t(pick(90)));
        check_short<true>(size, 1 + uint32_t(pick(90)));
    }
    for (uint32_t size : {511, 512, 513, 777, 2047, 2048, 2049}) check_short<false>(size, 9);
}
