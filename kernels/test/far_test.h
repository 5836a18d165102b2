// Positions beyond 32 bits. Only the memory around one tile exists: the addresses of samples and
// outputs are computed back from there.
#pragma once

#include "copy_test.h"
#include "oracle.h"

/// Runs one tile of a batch of one field, and compares the bytes that it writes.
inline void run_tile(Batch& batch, uint64_t tile, const char* what) {
    std::vector<uint64_t> table(sizeof(Field) / 8);
    memcpy(table.data(), batch.fields.data(), sizeof(Field));
    table.insert(table.end(), batch.rest.begin(), batch.rest.end());
    SmallParams params{};
    params.header = {table.data(), tile + 1, 1, batch.tile_bytes};
    gridDim = dim3(tile + 1);
    blockIdx = {unsigned(tile), 0, 0};
    for (threadIdx = {0, 0, 0}; threadIdx.x < Policy::kThreads; ++threadIdx.x) {
        windrow_assemble_small(params);
    }
    for (auto& output : batch.outputs) {
        CHECK(output->memory == output->expected, "%s, tile %lu", what, tile);
    }
    blocks.clear();
}

/// The border between the second and the third of four samples of more than 2^31 bytes.
inline void test_far_copy(bool joined, size_t skew) {
    const uint64_t unit = (3ull << 30) + 5, numel = 4 * unit, around = 20000;
    Batch batch(4096, 1);
    uint64_t tile = (2 * unit + skew) / 4096, begin = tile * 4096 - skew;
    Output& output = batch.output(4096, 0);
    uint8_t* second = allocate(around, pick(16), true);
    uint8_t* third = allocate(around, pick(16), true);
    for (uint64_t i = 0; i < 4096; ++i) {
        uint64_t pos = begin + i;
        *output.want(i) = pos < 2 * unit ? second[pos + around - 2 * unit]
                                             : third[pos - 2 * unit];
    }
    Field field{};
    field.out = output.data() - begin;
    CHECK(uintptr_t(field.out) % 16 == skew, "alignment");
    field.numel = numel;
    field.unit = joined ? 1 : unit;
    field.num_samples = 4;
    field.by_unit = divisor(field.unit);
    field.data = batch.put(std::vector<uint64_t>{
        0, uint64_t(second) + around - unit, uint64_t(third), 0});
    if (joined) {
        field.offsets = batch.put(std::vector<uint64_t>{0, unit, 2 * unit, 3 * unit, numel});
        std::vector<uint32_t> samples;
        for (uint64_t t = 0; t <= numel / 4096 + 1; ++t) samples.push_back(t * 4096 / unit);
        samples[tile] = 1;
        samples[tile + 1] = 2;
        field.tile_samples = batch.put(samples);
    }
    field.kind = kCopy;
    field.elem_size = 1;
    field.aligned = 1;
    batch.fields.push_back(field);
    run_tile(batch, tile, "far copy");
}

/// Rows of 1001 bytes in samples of 5 * 10^9 elements; uint8 becomes uint16.
inline void test_far_walk() {
    const uint64_t rows = 5000000, row = 1001, unit = rows * row;
    Batch batch(1024, 1);
    uint64_t tile = (unit + unit / 3 * 2) / 512, begin = tile * 512;
    Output& output = batch.output(1024, 0);
    uint8_t* src = allocate(512, 3, true);
    for (uint64_t i = 0; i < 512; ++i) {
        uint16_t value = (begin + i) % row < 7 ? 0xABCD : src[i];
        memcpy(output.want(2 * i), &value, 2);
    }
    Class cls{};
    cls.dtype = kU8;
    cls.elem_size = 1;
    cls.num_dims = 2;
    // The second loop's first 7 elements are padding.
    cls.dims = batch.put(std::vector<Dim>{{rows, 0, rows, int64_t(row), 2 * row, divisor(rows)},
                                          {row, 7, row, 1, 2, divisor(row)}});
    Field field{};
    field.out = output.data() - 2 * begin;
    field.numel = 3 * unit;
    field.unit = unit;
    field.step = 2 * unit;
    field.num_samples = 3;
    field.by_unit = divisor(unit);
    field.data = batch.put(std::vector<uint64_t>{0, uint64_t(src) - (begin - unit) + 7, 0});
    field.classes = batch.put(std::vector<Class>{cls});
    field.dtype = kU16;
    field.elem_size = 2;
    field.aligned = 1;
    field.kind = kWalk;
    field.fill[0] = 0xCD;
    field.fill[1] = 0xAB;
    batch.fields.push_back(field);
    run_tile(batch, tile, "far walk");
}

inline void test_far() {
    for (size_t skew = 0; skew < 16; ++skew) {
        test_far_copy(false, skew);
        test_far_copy(true, skew);
    }
    test_far_walk();
}
