// What the kernels make of a table: positions beyond 32 bits. Only the memory around one item exists: the
// addresses of samples and outputs are computed back from there. (Tables as the host makes them are run by
// the engine's own tests.)
#pragma once

#include <functional>

#include "../windrow.cu"
#include "values.h"

using namespace windrow;

/// A table of one field.
struct Table {
    Field field = {};
    std::vector<uint64_t> words = std::vector<uint64_t>(sizeof(Field) / 8);

    template <class T>
    uint32_t put(const std::vector<T>& values) {
        const size_t position = words.size(), bytes = values.size() * sizeof(T);
        words.resize(position + (bytes + 7) / 8);
        memcpy(&words[position], values.data(), bytes);
        return uint32_t(position);
    }

    /// Runs one item, with the table in memory or in the parameters.
    void run(uint32_t item) {
        memcpy(words.data(), &field, sizeof field);
        SmallParams params = {};
        params.header = {words.data(), item + 1, 1};
        if (pick(2) == 0) {
            params.header.table = nullptr;
            memcpy(params.table, words.data(), 8 * words.size());
        }
        blockIdx = {item / (Policy::kThreads / kLanes), 0, 0};
        const uint32_t first = item % (Policy::kThreads / kLanes) * kLanes;
        for (threadIdx = {first, 0, 0}; threadIdx.x < first + kLanes; ++threadIdx.x) windrow_assemble_small(params);
    }
};

inline Loop whole_loop(uint64_t extent, int64_t src_stride, int64_t dst_stride, uint32_t block = 1) {
    return {extent, 0, extent, src_stride, dst_stride, divisor((extent + block - 1) / block), block, 0, 0};
}

/// The stretch at the end of the second of four samples of more than 2^31 bytes, and that at the beginning
/// of the third: all items that share them.
inline void test_far_line(bool joined, size_t skew) {
    const uint64_t unit = (3ull << 30) + 5, piece = 4096, stretch = piece * kTogether, around = 2 * stretch;
    for (uint64_t sample : {1, 2}) {
        const uint64_t start = sample * unit, phase = (start + skew) % 16;
        const uint64_t pieces = (unit + 15 + piece - 1) / piece, mine = (unit + phase + piece - 1) / piece;
        const uint64_t begin = sample == 2 ? 0 : (mine - 1) / kTogether * stretch - phase;
        const uint64_t end = sample == 2 ? stretch - phase : unit;
        Output output(end - begin, (begin + phase) % 16);
        uint8_t* src = allocate(around + 64, pick(16), true) + 64;
        memcpy(output.want(0), src, end - begin);
        Table table;
        Field& field = table.field;
        field.out = output.data() - begin - start;
        CHECK(uintptr_t(field.out) % 16 == skew, "alignment");
        field.family = kLine;
        field.op = kRead;
        field.from = field.to = kU8;
        field.from_size = field.to_size = 1;
        field.flags = kJoint | kWide | (joined ? kVaried : 0);
        field.num_samples = 4;
        std::vector<uint64_t> data(4);
        data[sample] = uint64_t(src) - begin;
        field.data = table.put(data);
        field.piece = piece;
        field.cols = whole_loop(joined ? 1 : unit, 1, 1);
        uint32_t item = uint32_t(sample * pieces + begin / piece + (begin != 0));
        if (joined) {
            field.by_pieces = divisor(piece);
            field.step = 1;
            field.cols.varies = kExtent;
            field.offsets = table.put(std::vector<uint64_t>{0, unit, 2 * unit, 3 * unit, 4 * unit});
            field.first = table.put(std::vector<uint32_t>{0, uint32_t(pieces), uint32_t(2 * pieces), uint32_t(3 * pieces)});
            field.hints = table.put(std::vector<uint32_t>{0, 3});
            field.hint_shift = 31;
        } else {
            field.step = int64_t(unit);
            field.items = field.pieces = uint32_t(pieces);
            field.by_items = field.by_pieces = divisor(pieces);
        }
        const uint64_t first = begin == 0 ? 0 : (begin + phase) / piece;
        item = uint32_t(sample * pieces + first);
        for (uint64_t i = 0; i < kTogether && first + i < pieces; ++i) table.run(item + uint32_t(i));
        output.check(joined ? "far joined line" : "far line");
        blocks.clear();
    }
}

/// Rows of 1001 bytes in samples of 5 * 10^9 elements; uint8 becomes uint16. The first 7 of a row are
/// padding.
inline void test_far_box() {
    const uint64_t rows = 5000000, row = 1001, box = 4, unit = rows * row, at = rows / 3 * 2 / box * box;
    Output output(2 * box * row, 0);
    uint8_t* src = allocate(box * row, 3, true);
    for (uint64_t i = 0; i < box * row; ++i) {
        const uint16_t value = i % row < 7 ? 0xABCD : src[i - 7];
        memcpy(output.want(2 * i), &value, 2);
    }
    Table table;
    Field& field = table.field;
    field.out = output.data() - 2 * (unit + at * row);
    field.family = kBox;
    field.op = kRead;
    field.from = kU8, field.to = kU16;
    field.from_size = 1, field.to_size = 2;
    field.num_samples = 3;
    field.data = table.put(std::vector<uint64_t>{0, uint64_t(src) - at * row, 0});
    field.step = int64_t(2 * unit);
    field.pieces = 1;
    field.by_pieces = divisor(1);
    field.items = uint32_t(rows / box);
    field.by_items = divisor(rows / box);
    field.piece = row;
    field.cols = whole_loop(row, 1, 2);
    field.cols.lo = 7;
    field.num_outer = 1;
    field.outer = table.put(std::vector<Loop>{whole_loop(rows, int64_t(row), 2 * row, box)});
    for (int i = 0; i < 16; i += 2) field.fill[i] = 0xCD, field.fill[i + 1] = 0xAB;
    field.log_step = 1;
    field.rounds = uint32_t(2 * row + 31) / 32;
    field.cols.by_blocks = divisor(field.rounds);
    for (uint32_t round = 0; round < field.rounds; ++round) table.run(uint32_t(rows / box + at / box) * field.rounds + round);
    output.check("far box");
    blocks.clear();
}

/// Bytes of samples of any lengths, joined, four samples a warp or by pieces of a sample.
inline void test_ragged(uint32_t piece) {
    const uint32_t num = 1 + uint32_t(pick(9));
    std::vector<uint32_t> offsets = {0}, first, hints = {0};
    std::vector<uint64_t> data;
    for (uint32_t i = 0; i < num; ++i) offsets.push_back(offsets.back() + uint32_t(pick(3) ? pick(5) : pick(3000)));
    const size_t skew = pick(16);
    Output output(offsets.back(), skew);
    uint32_t items = 0;
    for (uint32_t i = 0; i < num; ++i) {
        const uint32_t length = offsets[i + 1] - offsets[i];
        const uint8_t* sample = allocate(length, pick(16), true);
        memcpy(output.want(offsets[i]), sample, length);
        data.push_back(uint64_t(sample));
        first.push_back(items);
        if (length > 0) items += (length + 15 + piece - 1) / piece;
    }
    hints.push_back(num - 1);
    Table table;
    Field& field = table.field;
    field.out = output.data();
    field.family = kLine;
    field.op = kRead;
    field.from = field.to = kU8;
    field.from_size = field.to_size = 1;
    field.flags = kVaried;
    field.num_samples = num;
    field.data = table.put(data);
    field.step = 1;
    field.cols = whole_loop(1, 1, 1);
    field.cols.varies = kExtent;
    field.offsets = table.put(offsets);
    field.first = table.put(first);
    field.hints = table.put(hints);
    field.hint_shift = 31;
    field.piece = piece;
    field.by_pieces = divisor(piece);
    if (piece == ~0u) field.samples = 4, field.items = field.pieces = 1, field.by_items = divisor(1), items = (num + 3) / 4;
    for (uint32_t item = 0; item < items; ++item) table.run(item);
    output.check(piece == ~0u ? "ragged, by four" : "ragged");
    blocks.clear();
}

inline void test_launch() {
    for (int i = 0; i < 1000; ++i) {
        test_ragged(~0u);
        test_ragged(512);
    }
    for (size_t skew = 0; skew < 16; ++skew) {
        test_far_line(false, skew);
        test_far_line(true, skew);
    }
    test_far_box();
}
