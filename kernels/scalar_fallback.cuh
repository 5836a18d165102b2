// Family scalar_fallback: small samples of one size, dense in the output, whose elements are moved or cast one by one: numbers
// that are labels, above all. A lane has one element in 32, whatever sample that is of.
#pragma once

#include "convert.cuh"
#include "lanes.cuh"

namespace windrow {

struct Scalars {
    uint8_t* out;                 ///< a multiple of the size of an element, as sources are
    uint32_t each;                ///< elements of a sample
    Divisor by_each;
    uint32_t from_size, to_size;  ///< 1, 2, 4 or 8 bytes
    uint8_t from, to;             ///< dtypes; the same of elements that are moved
    Affine affine;                ///< map of one channel
};

/// Elements of a lane that are under way together.
constexpr uint32_t kScalarsAtOnce = 4;

/// Casts elements of any pair of dtypes, of equal ones too, in place, with `affine` if there is one. Bits above them are zeros
/// before, and have any value after.
WINDROW_DEVICE void cast_scalars(const Scalars& all, uint64_t (&bits)[kScalarsAtOnce]) {
    auto each = [&](auto cast) {
#pragma unroll
        for (uint32_t i = 0; i < kScalarsAtOnce; ++i) bits[i] = cast(bits[i]);
    };
    const bool is_whole = all.from != kBool && all.to != kBool && is_integral(all.from) && is_integral(all.to);
    if (all.affine.a == nullptr && (all.from == all.to || is_whole)) {
        // Integers become integers by their low bytes, behind a sign if they have one.
        const uint32_t unused = all.from <= kI64 ? 64 - 8 * all.from_size : 0;
        return each([&](uint64_t x) { return static_cast<uint64_t>(static_cast<int64_t>(x << unused) >> unused); });
    }
    if (all.affine.a == nullptr && all.to == kF32 && !is_float8(all.from)) {
        return with_number(all.from, [&](auto number) { each([&](uint64_t x) { return uint64_t{bits_of(number.single(x))}; }); });
    }
    each([&](uint64_t x) { return convert_one(x, all.from, all.to, all.affine, 0); });
}

/// Reads this lane's elements, `first` and those 32 apart from there on below `end`, and writes them behind cast_scalars().
template <bool by_id>
WINDROW_DEVICE void write_scalars(const Scalars& all, const Sources& sources, uint32_t first, uint32_t end) {
    constexpr uint32_t kMany = kScalarsAtOnce;
#pragma unroll 1
    for (; first < end; first += kLanes * kMany) {
        const uint8_t* src[kMany];
        uint64_t bits[kMany];
#pragma unroll
        for (uint32_t i = 0; i < kMany; ++i) {
            // Lanes that are beyond the end read the last one.
            const uint32_t at = minimum(first + kLanes * i, end - 1), sample = divide(at, all.by_each);
            src[i] = source_at<by_id>(sources, sample) + (at - sample * all.each) * all.from_size;
        }
        auto read = [&](auto word) {
#pragma unroll
            for (uint32_t i = 0; i < kMany; ++i) bits[i] = load<decltype(word)>(src[i]);
        };
        switch (all.from_size) {
            case 1: read(uint8_t{}); break;
            case 2: read(uint16_t{}); break;
            case 4: read(uint32_t{}); break;
            default: read(uint64_t{});
        }
        cast_scalars(all, bits);
        auto write = [&](auto word) {
            uint8_t* dst = all.out + uint64_t{first} * sizeof word;
#pragma unroll
            for (uint32_t i = 0; i < kMany; ++i) {
                if (first + kLanes * i < end) store(dst + kLanes * sizeof word * i, static_cast<decltype(word)>(bits[i]));
            }
        };
        switch (all.to_size) {
            case 1: write(uint8_t{}); break;
            case 2: write(uint16_t{}); break;
            case 4: write(uint32_t{}); break;
            default: write(uint64_t{});
        }
    }
}

}  // namespace windrow
