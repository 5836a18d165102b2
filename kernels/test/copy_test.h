// kCopy and kTable.
#pragma once

#include "harness.h"

/// Adds a field of samples of these sizes, which are multiples of `unit` if joined.
inline void add_copy(Batch& batch, const std::vector<uint64_t>& sizes,
                     const std::vector<size_t>& skews, size_t out_skew, bool joined,
                     uint64_t unit) {
    std::vector<uint64_t> starts = {0}, data;
    std::vector<int64_t> offsets = {0};
    for (uint64_t size : sizes) {
        starts.push_back(starts.back() + size);
        offsets.push_back(offsets.back() + (unit == 0 ? 0 : size / unit));
    }
    Output& output = batch.output(starts.back(), out_skew);
    for (size_t i = 0; i < sizes.size(); ++i) {
        uint8_t* sample = allocate(sizes[i], skews[i % skews.size()], true);
        data.push_back(sizes[i] == 0 && pick(2) == 0 ? 0 : uint64_t(sample));
        if (sizes[i] > 0) memcpy(output.want(starts[i]), sample, sizes[i]);
    }
    Field field{};
    field.out = output.data();
    field.numel = starts.back();
    field.unit = unit;
    field.step = unit;
    field.num_samples = sizes.size();
    field.by_unit = divisor(unit);
    field.data = batch.put(data);
    if (joined) field.offsets = batch.put(offsets);
    field.kind = kCopy;
    field.elem_size = 1;
    field.aligned = 1;
    batch.add(field, starts);
}

inline void add_table(Batch& batch, size_t num, size_t elem_size, size_t out_skew) {
    std::vector<uint8_t> bytes(num * elem_size);
    for (uint8_t& byte : bytes) byte = uint8_t(rng());
    Output& output = batch.output(bytes.size(), out_skew);
    std::copy(bytes.begin(), bytes.end(), output.want(0));
    Field field{};
    field.out = output.data();
    field.numel = num;
    field.data = batch.put(bytes);
    field.kind = kTable;
    field.elem_size = elem_size;
    field.aligned = out_skew % elem_size == 0;
    batch.add(field, {});
}

inline uint32_t any_tile() { return 64u << pick(9); }

/// A tile size that cuts `bytes` into a few dozen tiles at most: the tests run every thread.
inline uint32_t fitting_tile(uint64_t bytes) {
    uint32_t tile = any_tile();
    while (bytes / tile > 24) tile *= 2;
    return std::min(tile, 16384u);
}

inline void test_copy() {
    const uint64_t sizes[] = {0,  1,  15, 16,  17,  31,  32,  33,  255,
                              256, 257, 4095, 4096, 4097};
    for (size_t src = 0; src < 16; ++src) {
        for (size_t dst = 0; dst < 16; ++dst) {
            for (uint64_t size : sizes) {
                size_t num = size > 1000 ? 3 : 1 + pick(9);
                Batch batch(fitting_tile(size * num), 1);
                std::vector<size_t> skews = {src};
                if (pick(2) == 0) skews = {src, pick(16), pick(16)};
                if (pick(2) == 0) {
                    add_copy(batch, std::vector<uint64_t>(num, size), skews, dst, false,
                             size);
                } else {
                    std::vector<uint64_t> some(num);
                    for (uint64_t& s : some) s = pick(3) == 0 ? sizes[pick(14)] : size;
                    add_copy(batch, some, skews, dst, true, 1);
                }
                batch.run("copy");
            }
        }
    }
    for (int i = 0; i < 1000; ++i) {
        size_t num_fields = 1 + pick(6);
        Batch batch(any_tile(), num_fields);
        for (size_t f = 0; f < num_fields; ++f) {
            if (pick(5) == 0) {
                add_table(batch, pick(60), 1 << pick(4), pick(16));
                continue;
            }
            uint64_t unit = 1 + pick(40), num = pick(30);
            std::vector<uint64_t> all(num, unit);
            bool joined = pick(2) == 0;
            if (joined) for (uint64_t& s : all) s = unit * pick(5);
            std::vector<size_t> skews(1 + pick(20));
            for (size_t& skew : skews) skew = pick(16);
            add_copy(batch, all, skews, pick(16), joined, unit);
        }
        batch.run("fields");
    }
}
