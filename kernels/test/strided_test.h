// Family strided.
#pragma once

#include "../strided.cuh"
#include "values.h"

/// One loop of a box: `extent` elements, of which [lo, hi) are real.
struct BoxLoop {
    uint32_t extent, lo, hi;
    int64_t src_stride, dst_stride;
};

inline BoxLoop any_loop(uint32_t extent, bool padded) {
    BoxLoop loop{extent, 0, extent, 0, 0};
    if (padded) {
        loop.lo = uint32_t(pick(extent + 1));
        loop.hi = loop.lo + uint32_t(pick(extent - loop.lo + 1));
    }
    return loop;
}

/// Strides of `size` bytes for two loops, the one that `inner` says innermost: with gaps, reversed, or 0.
/// Returns how many bytes are in front of the first element, and behind its beginning.
inline std::pair<int64_t, int64_t> lay_out(BoxLoop (&loops)[2], bool of_source, int inner, uint32_t size) {
    int64_t reach = size, before = 0, gaps = pick(3) == 0 ? size * pick(3) : 0;
    for (int d : {inner, 1 - inner}) {
        BoxLoop& loop = loops[d];
        int64_t& stride = of_source ? loop.src_stride : loop.dst_stride;
        const int64_t num = of_source ? loop.hi - loop.lo : loop.extent;
        stride = reach;
        if (of_source && pick(10) == 0) {
            stride = 0;
            continue;
        }
        reach = reach * std::max<int64_t>(num, 1) + gaps;
        if (pick(5) == 0) {
            before += stride * std::max<int64_t>(num - 1, 0);
            stride = -stride;
        }
    }
    return {before, reach};
}

struct BoxCase {
    int from, to;
    uint32_t rows, cols;
    bool listed = false, constant = false, affine = false, padded = false, odd = false;
    uint32_t size = 0;  // moved elements of so many bytes
};

inline void check_box(const BoxCase& c) {
    using namespace windrow;
    const uint32_t a = c.size ? c.size : oracle::kSizes[c.from], b = c.size ? c.size : oracle::kSizes[c.to];
    BoxLoop loops[2] = {any_loop(c.rows, c.padded && pick(2)), any_loop(c.cols, c.padded && pick(2))};
    const auto [out_before, out_bytes] = lay_out(loops, false, pick(5) == 0 ? 0 : 1, b);
    const auto [before, bytes] = lay_out(loops, true, int(pick(2)), a);
    Output output(out_bytes, c.odd ? pick(16) : b * pick(16 / b));
    Field field{};
    Box box{};
    box.field = &field;
    auto side = [](uint32_t count, const auto& loop) {
        return Side{count, uint32_t(loop.lo), uint32_t(loop.hi), 0, int32_t(loop.src_stride), int32_t(loop.dst_stride)};
    };
    box.rows = side(c.rows, loops[0]), box.cols = side(c.cols, loops[1]);
    box.dst = output.data() + out_before;
    field.from = uint8_t(c.from), field.to = uint8_t(c.to), field.to_size = uint8_t(b);
    field.from_size = c.constant ? 0 : uint8_t(a);
    field.op = !c.constant ? kRead : pick(2) ? kConst : kIndex;
    field.value = uint32_t(rng()), box.number = uint32_t(rng());
    const Vec16 fill = {rng(), rng()};
    memcpy(field.fill, &fill, sizeof fill);
    // Sources: one, or one for each row.
    std::vector<uint64_t> addresses(c.rows + 3, 1);
    std::vector<uint8_t*> row_of(c.rows);
    uint8_t* first = nullptr;
    const size_t skew = c.odd ? pick(16) : a * pick(16 / a);
    const bool some = loops[0].hi > loops[0].lo && loops[1].hi > loops[1].lo && !c.constant;
    if (c.listed) {
        const int64_t num = loops[1].hi - loops[1].lo, step = std::abs(loops[1].src_stride);
        box.number = 3;
        for (uint32_t r = loops[0].lo; some && r < loops[0].hi; ++r) {
            row_of[r] = allocate((num - 1) * step + a, c.odd ? pick(16) : skew, false);
            if (loops[1].src_stride < 0) row_of[r] += (num - 1) * step;
            addresses[r + 3] = uint64_t(row_of[r]) - loops[1].lo * loops[1].src_stride;
        }
        // The table begins with them.
        box.table = addresses.data();
        box.is_list = !c.constant, box.rows.src = 0;
        bool is_aligned = true;
        for (uint32_t r = box.rows.lo; r < box.rows.hi; ++r) is_aligned &= addresses[r + 3] % a == 0;
        if (is_aligned) field.flags |= kAlignedSources;
    } else if (some) {
        first = allocate(bytes, skew, false) + before;
        for (uint32_t r = loops[0].lo; r < loops[0].hi; ++r) row_of[r] = first + (r - loops[0].lo) * loops[0].src_stride;
        box.src = first - loops[0].lo * loops[0].src_stride - loops[1].lo * loops[1].src_stride;
    }
    const bool wide = c.from == kF64 || c.to == kF64;
    std::vector<double> map;
    std::vector<float> narrow;
    if (c.affine) {
        const double some_numbers[] = {1, 0, -1, 0.5, 3.25, 1 / 255.0, -2.118, 1e30, 1e-30, INFINITY};
        field.op = kAffine;
        field.channels = pick(3) == 0 ? 1 : 1 + uint32_t(pick(70));
        field.by_channels = divisor(field.channels);
        for (uint32_t i = 0; i < 2 * field.channels; ++i) map.push_back(some_numbers[pick(i < field.channels ? 10 : 9)]);
        narrow.assign(map.begin(), map.end());
        // Behind the addresses, if there are any.
        const size_t bytes_of_map = map.size() * (wide ? sizeof(double) : sizeof(float));
        field.affine = uint32_t(addresses.size());
        addresses.resize(addresses.size() + (bytes_of_map + 7) / 8);
        memcpy(&addresses[field.affine], wide ? (const void*)map.data() : narrow.data(), bytes_of_map);
        box.table = addresses.data();
        box.channel = uint32_t(pick(field.channels));
        box.rows.channel = uint32_t(pick(2)), box.cols.channel = uint32_t(pick(2));
    }
    for (uint32_t r = 0; r < c.rows; ++r) {
        for (uint32_t col = 0; col < c.cols; ++col) {
            uint64_t bits[2] = {fill.lo, fill.hi};
            if (r >= box.rows.lo && r < box.rows.hi && col >= box.cols.lo && col < box.cols.hi) {
                bits[0] = field.op == kConst ? field.value : box.number, bits[1] = 0;
                if (!c.constant) {
                    uint8_t* p = row_of[r] + int64_t(col - box.cols.lo) * loops[1].src_stride;
                    const uint64_t element = any_element(c.from);
                    if (c.size == 0) memcpy(p, &element, a);
                    allow(p, a);
                }
            }
            memcpy(output.want(out_before + r * loops[0].dst_stride + col * loops[1].dst_stride), bits, b);
        }
    }
    for (uint32_t r = box.rows.lo; some && r < box.rows.hi; ++r) {
        for (uint32_t col = box.cols.lo; col < box.cols.hi; ++col) {
            uint64_t bits[2] = {};
            memcpy(bits, row_of[r] + int64_t(col - box.cols.lo) * loops[1].src_stride, a);
            const uint32_t channel = c.affine ? (box.channel + r * box.rows.channel + col * box.cols.channel) % field.channels : 0;
            if (c.size == 0) {
                bits[0] = oracle::convert(c.from, c.to, bits[0], c.affine ? &map[channel] : nullptr,
                                          c.affine ? &map[channel + field.channels] : nullptr);
            }
            memcpy(output.want(out_before + r * loops[0].dst_stride + col * loops[1].dst_stride), bits, b);
        }
    }
    const auto all = [](auto... numbers) { return (uint64_t(numbers) | ...); };
    const auto sources = c.listed ? uint64_t(field.flags & kAlignedSources ? 0 : 1) : uint64_t(box.src) | box.rows.src;
    const bool is_odd = all(box.dst, box.rows.dst, box.cols.dst) % b != 0 || (!c.constant && all(sources, box.cols.src) % a != 0);
    field.loop = is_odd || b == 16                                                                            ? kSlow
                 : !c.affine && (c.constant || c.from == c.to || (is_integral(c.from) && is_integral(c.to))) ? kWhole
                 : wide                                                                                       ? kDoubles
                 : is_rare(c.from, c.to, c.affine)                                                            ? kOddSingles
                                                                                                              : kSingles;
    field.log_step = uint8_t(pick(6));
    for (uint32_t round = 0; round * kLanes < c.cols << field.log_step; ++round) {
        for (uint32_t lane = 0; lane < kLanes; ++lane) write_box(box, round, lane);
    }
    char what[100];
    snprintf(what, sizeof what, "box of %u x %u, dtype %d to %d", c.rows, c.cols, c.from, c.to);
    output.check(what);
    blocks.clear();
}

inline void test_strided() {
    using namespace windrow;
    // Every pair, moved and mapped.
    for (int from = 0; from < kMoved; ++from) {
        for (int to = 0; to < kMoved; ++to) {
            for (bool affine : {false, true}) {
                check_box({from, to, 16 + uint32_t(pick(9)), 1 + uint32_t(pick(50)), pick(4) == 0, false, affine, pick(2) == 0, pick(4) == 0});
            }
        }
    }
    // Every size around those where lanes or turns are full, of elements of 1 to 16 bytes.
    const uint32_t edges[] = {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300};
    for (uint32_t rows : edges) {
        for (uint32_t cols : edges) {
            if (rows * cols > 9000) continue;
            BoxCase c{kMoved, kMoved, rows, cols};
            c.size = 1u << pick(5);
            c.listed = pick(4) == 0, c.constant = c.size < 16 && pick(8) == 0, c.padded = pick(2) == 0, c.odd = pick(6) == 0;
            check_box(c);
        }
    }
}
