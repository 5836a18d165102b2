// Family line.
#pragma once

#include "../line.cuh"
#include "values.h"

/// One line from a sample of `before` + `real` + `after` elements at a misalignment, to another.
template <class Cast>
void check_line(const char* what, const Cast& cast, int from, int to, const double* ab, size_t src_skew, size_t dst_skew,
                uint32_t before, uint32_t real, uint32_t after, uint32_t padding, bool every) {
    using namespace windrow;
    const uint32_t size = Cast::kFrom, width = real + padding;
    Output output(size_t{width} * Cast::kTo, dst_skew);
    uint8_t* sample = nullptr;
    if (Cast::kReads) {
        sample = allocate((before + real + after) * size, src_skew, true);
        for (uint32_t i = 0; i < before + real + after; ++i) {
            const uint64_t bits = every ? i : from < 0 ? rng() : any_element(from);
            memcpy(sample + i * size, &bits, size);
        }
        sample += before * size;
    }
    const uint64_t fill = rng();
    for (uint32_t i = 0; i < width; ++i) {
        uint64_t bits = fill;
        if (i < real) {
            bits = cast.one(0);
            if (Cast::kReads) {
                bits = 0;
                memcpy(&bits, sample + i * size, size);
                if (from >= 0) bits = oracle::convert(from, to, bits, ab, ab == nullptr ? nullptr : ab + 1);
            }
        }
        memcpy(output.want(i * Cast::kTo), &bits, Cast::kTo);
    }
    const Line line = {sample, output.data(), real, width, before * size, after * size};
    for (uint32_t lane = 0; lane < kLanes; ++lane) write_line<kLanes, 4>(cast, line, fill_of(fill, Cast::kTo), lane);
    output.check(what);
    blocks.clear();
}

/// `from` < 0: moved.
template <class Cast>
void test_cast(const char* what, const Cast& cast, int from = -1, int to = -1, const double* ab = nullptr) {
    const uint32_t elems = 16 / Cast::kTo;
    for (size_t src = 0; src < 16; ++src) {
        for (size_t dst = 0; dst < 16; ++dst) {
            const uint32_t vectors = uint32_t(pick(4) == 0 ? 30 + pick(200) : pick(5));
            const uint32_t real = vectors * elems + 1 + uint32_t(pick(2 * elems)) - std::min(vectors, 1u) * uint32_t(pick(3));
            check_line(what, cast, from, to, ab, src, dst, pick(2) ? pick(20) : 0, real, pick(2) ? pick(20) : 0, pick(2) ? pick(4 * elems) : 0, false);
        }
    }
    check_line(what, cast, from, to, ab, 0, 0, 0, 0, 0, 5, false);
    if (Cast::kFrom <= 2 && from >= 0) check_line(what, cast, from, to, ab, 0, 0, 0, Cast::kFrom == 1 ? 256 : 65536, 0, 0, true);
}

inline void test_line() {
    using namespace windrow;
    const double ab[] = {0.0171f, -2.1f};
    const float a = 0.0171f, b = -2.1f;
    test_cast("move 1", Move<1>{});
    test_cast("move 2", Move<2>{});
    test_cast("move 4", Move<4>{});
    test_cast("move 8", Move<8>{});
    test_cast("constant", Constant<1>{1});
    test_cast("i32 i64", I32ToI64{}, kI32, kI64);
    test_cast("u8 f16", SmallInt<kU8, kF16, false>{a, b}, kU8, kF16);
    test_cast("u8 f16 affine", SmallInt<kU8, kF16, true>{a, b}, kU8, kF16, ab);
    test_cast("u8 bf16 affine", SmallInt<kU8, kBF16, true>{a, b}, kU8, kBF16, ab);
    test_cast("i16 f32", SmallInt<kI16, kF32, false>{a, b}, kI16, kF32);
    test_cast("f32 f16", Float<kF32, kF16, false>{a, b}, kF32, kF16);
    test_cast("f16 f32", Float<kF16, kF32, false>{a, b}, kF16, kF32);
    test_cast("bf16 f32", Float<kBF16, kF32, false>{a, b}, kBF16, kF32);
    test_cast("f32 f32 affine", Float<kF32, kF32, true>{a, b}, kF32, kF32, ab);
    test_cast("bf16 bf16 affine", Float<kBF16, kBF16, true>{a, b}, kBF16, kBF16, ab);
}
