// Family line.
#pragma once

#include "../line.cuh"
#include "values.h"

/// Where a line is: misalignments, elements of the sample beside it, padding.
struct Place {
    size_t src, dst;
    uint32_t before, after, lead, padding;
};

/// Writes one line by so many threads, and compares.
inline void check_line(const char* what, const LineCast& cast, const double* ab, const Place& at, uint32_t real, uint32_t threads,
                       bool every = false) {
    const uint32_t from = cast.from_size, to = cast.to_size, width = at.lead + real + at.padding;
    Output output(size_t{width} * to, at.dst);
    uint8_t* sample = nullptr;
    if (from != 0) {
        const uint32_t all = at.before + real + at.after;
        sample = allocate(all * from, at.src, true);
        for (uint32_t i = 0; i < all && cast.from != kMoved; ++i) {
            const uint64_t bits = every ? i : any_element(cast.from);
            memcpy(sample + i * from, &bits, from);
        }
        sample += at.before * from;
    }
    const Vec16 fill = repeated({rng(), rng()}, to);
    for (uint32_t i = 0; i < width; ++i) {
        uint8_t* want = output.want(i * to);
        const uint32_t e = i - at.lead;
        uint64_t bits = 0;
        if (i < at.lead || e >= real) {
            memcpy(want, &fill, to);
        } else if (from == 0) {
            memcpy(want, &cast.value, to);
        } else if (cast.from == cast.to && ab == nullptr) {
            memcpy(want, sample + e * from, to);
        } else {
            memcpy(&bits, sample + e * from, from);
            bits = oracle::convert(cast.from, cast.to, bits, ab, ab == nullptr ? nullptr : ab + 1);
            memcpy(want, &bits, to);
        }
    }
    const Line line = {sample, output.data(), at.lead, real, width, at.before * from, at.after * from};
    for (uint32_t thread = 0; thread < threads; ++thread) write_line(line, cast, fill, {thread, threads});
    output.check(what);
    blocks.clear();
}

/// All misalignments of both sides; lengths at the boundaries of vectors and turns.
inline void test_lines_of(const char* what, const LineCast& cast, const double* ab) {
    const uint32_t elems = 16 / cast.to_size;
    for (size_t src = 0; src < 16; ++src) {
        for (size_t dst = 0; dst < 16; ++dst) {
            // Outputs at an odd address are rare, and slow.
            if (dst % cast.to_size != 0 && pick(4) != 0) continue;
            auto some = [](uint32_t n) { return pick(2) ? uint32_t(pick(n)) : 0; };
            const Place at = {src, dst, some(20), some(20), some(3 * elems), some(3 * elems)};
            const uint32_t vectors = uint32_t(pick(6) == 0 ? 120 + pick(20) : pick(5));
            const uint32_t real = vectors * elems + uint32_t(pick(2 * elems + 1));
            check_line(what, cast, ab, at, real, pick(4) == 0 ? kTeamLanes : kLanes * (1 + uint32_t(pick(3))));
        }
    }
    check_line(what, cast, ab, {0, 0, 0, 0, 0, 5}, 0, kLanes);
    if (cast.from_size <= 2 && cast.from_size > 0) {
        check_line(what, cast, ab, {0, 0, 0, 0, 0, 0}, cast.from_size == 1 ? 256 : 65536, kLanes, true);
    }
}

inline uint8_t log_of(uint32_t size) { return uint8_t(__builtin_ctz(size)); }

inline void test_line() {
    const double wide[] = {0.0171, -2.1};
    const float narrow[] = {0.0171f, -2.1f};
    const double rounded[] = {narrow[0], narrow[1]};
    for (uint8_t size : {1, 2, 4, 8, 16}) {
        test_lines_of("moved", {kMoved, kMoved, kMovedLoop, size, size, log_of(size), {nullptr, 1}, 0}, nullptr);
        if (size <= 8) test_lines_of("constant", {kMoved, kMoved, kMovedLoop, 0, size, log_of(size), {nullptr, 1}, rng()}, nullptr);
    }
    auto test = [&](const char* what, uint8_t from, uint8_t to, uint8_t loop, bool mapped) {
        const bool is_wide = from == kF64 || to == kF64;
        const Affine map = {!mapped ? nullptr : is_wide ? reinterpret_cast<const uint8_t*>(wide) : reinterpret_cast<const uint8_t*>(narrow), 1};
        const auto from_size = uint8_t(oracle::kSizes[from]), to_size = uint8_t(oracle::kSizes[to]);
        test_lines_of(what, {from, to, loop, from_size, to_size, log_of(to_size), map, 0}, !mapped ? nullptr : is_wide ? wide : rounded);
    };
    // The loop of small integers with a map is theirs without one too.
#define TEST(cast, from, to, mapped)                                         \
    test(#from " " #to, from, to, cast_number(from, to, mapped), mapped);    \
    if (mapped && from <= kU16 && kSize<from> <= 2) test(#from " " #to, from, to, cast_number(from, to, mapped), false);
    WINDROW_CASTS(TEST)
#undef TEST
}
