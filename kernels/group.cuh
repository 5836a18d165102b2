// Eight elements of a lane from any dtype to any other: the bits of convert.cuh.
//
// There are 15 dtypes on either side, so not a loop for each pair: what is read becomes whole numbers, float32 or float64 by one
// switch, and what is written by another. Each switch is paid once for eight elements.
//
//     kind          read as                         written as
//     kWhole        their bits                      their low bits; bool is whether there are any; wider ones are extended
//     kSingles      float32, through the map        float16, bfloat16: pairs; float8: four at once; integers; float32
//     kOddSingles   float32, rounded to odd         bfloat16
//     kDoubles      float64, through the map        float64, or as kSingles, to odd in float32 on the way to 16 and 8 bits
//     kSlow         one by one, by convert.cuh
//
// A group with a NaN that stays one, or a float8 beyond its range, is cast by the caller, one by one from where it was read. That
// alone would be simpler: float32 to int8 takes 654 thread instructions for 16 bytes by it and 347 by groups, bfloat16 to uint8
// 696 and 321, int64 to bool 576 and 317, int64 to float16 509 and 201 (adjacent elements, sm_90).
#pragma once

#include "casts.cuh"
#include "fences.cuh"

namespace windrow {

/// Elements of a lane that are cast together.
constexpr uint32_t kGroup = 8;

/// The way in which they are cast: `kind` of a descriptor that is kStrided or kContiguousGeneric. src/cuda/launch/output_desc.rs
/// has the same.
enum Kind : uint8_t {
    kWhole = 0,       ///< moved, or cast among whole numbers
    kSingles = 1,     ///< through float32
    kOddSingles = 2,  ///< the same, rounded to odd, as there is another rounding behind it
    kDoubles = 3,     ///< through float64
    kSlow = 4,        ///< one by one, as addresses are no multiples of the sizes, these are 16, or numbers have an increment
};

/// The properties of a descriptor that a loop over groups reads, in one register, since each turn needs the others.
struct Codes {
    uint32_t word;

    WINDROW_DEVICE Codes(const OutputDesc& desc, uint32_t kind, uint32_t log_step)
        : word(desc.from | desc.to << 4 | kind << 9 | desc.log_to << 12 | desc.from_size << 15 | log_step << 20) {}
    WINDROW_DEVICE uint8_t from() const { return word & 15; }
    WINDROW_DEVICE uint8_t to() const { return word >> 4 & 15; }
    /// `to` as a descriptor has it.
    WINDROW_DEVICE uint8_t result() const { return word >> 4 & 31; }
    WINDROW_DEVICE uint8_t kind() const { return word >> 9 & 7; }
    WINDROW_DEVICE uint32_t log_to() const { return word >> 12 & 7; }
    WINDROW_DEVICE uint32_t from_size() const { return word >> 15 & 31; }
    WINDROW_DEVICE uint32_t log_step() const { return word >> 20 & 7; }
    /// The loop's own bits by number, 0 to 8. A bit that is set stays set.
    WINDROW_DEVICE bool is(uint32_t bit) const { return word >> (23 + bit) & 1; }
    WINDROW_DEVICE void set(uint32_t bit, bool is) { word |= uint32_t{is} << (23 + bit); }
};

/// The elements: their bits, from the lowest on.
struct Group {
    uint32_t lo[kGroup], hi[kGroup];  ///< `hi` is that of 8 bytes alone

    WINDROW_DEVICE uint64_t bits(uint32_t i) const { return lo[i] | static_cast<uint64_t>(hi[i]) << 32; }
    /// The bits of an element of sizeof(T) bytes; other bits are not read.
    template <class T>
    WINDROW_DEVICE uint64_t bits_as(uint32_t i) const {
        return sizeof(T) == 8 ? bits(i) : lo[i];
    }
    WINDROW_DEVICE void set(uint32_t i, uint64_t bits) {
        lo[i] = static_cast<uint32_t>(bits);
        hi[i] = static_cast<uint32_t>(bits >> 32);
    }
    /// The same of an element of sizeof(T) bytes: where they fit into `lo`, `hi` stays as it is.
    template <class T>
    WINDROW_DEVICE void set_as(uint32_t i, uint64_t bits) {
        if constexpr (sizeof(T) == 8) set(i, bits);
        else lo[i] = static_cast<uint32_t>(bits);
    }
    /// Any values, which take no instruction.
    WINDROW_DEVICE void clear() {
#pragma unroll
        for (uint32_t i = 0; i < kGroup; ++i) lo[i] = hi[i] = undef_u32();
    }
};

/// The channel `step` further on, modulo `channels`, of which both are below it.
WINDROW_DEVICE uint32_t next_channel(uint32_t channel, uint32_t step, uint32_t channels) {
    channel += step;
    return channel >= channels ? channel - channels : channel;
}

/// The map of a descriptor, whose channels are a lane's own. `Find`: gives its Affine, where it is needed and not before.
template <class Find>
struct Map {
    Find find;
    bool is_there;
    uint32_t channel, step;

    /// Puts the numbers through the map, if there is one, and moves the channel on behind them. `nan`: whether a NaN's bits
    /// matter.
    template <class Float>
    WINDROW_DEVICE void apply(Float (&x)[kGroup], bool nan) {
        if (!is_there) return;
        if (nan) apply(x, [](Float one, Float by, Float plus) { return multiply_add(one, by, plus); });
        else apply(x, [](Float one, Float by, Float plus) { return fma_of(one, by, plus); });
    }

    /// The same by `map_one`, of a map that is there.
    template <class Float, class F>
    WINDROW_DEVICE void apply(Float (&x)[kGroup], const F& map_one) {
        const Affine affine = find();
        if (step == 0) {
            const Float by = affine.get<Float>(channel), plus = affine.get<Float>(channel + affine.channels);
#pragma unroll
            for (uint32_t i = 0; i < kGroup; ++i) x[i] = map_one(x[i], by, plus);
            return;
        }
#pragma unroll
        for (uint32_t i = 0; i < kGroup; ++i) {
            x[i] = map_one(x[i], affine.get<Float>(channel), affine.get<Float>(channel + affine.channels));
            channel = next_channel(channel, step, affine.channels);
        }
    }

    static WINDROW_DEVICE float fma_of(float x, float by, float plus) { return fmaf(x, by, plus); }
    static WINDROW_DEVICE double fma_of(double x, double by, double plus) { return fma(x, by, plus); }
};

template <class Find>
WINDROW_DEVICE Map<Find> map_with(const Find& find, bool is_there, uint32_t channel, uint32_t step) {
    return {find, is_there, channel, step};
}

/// Casts whole numbers to whole numbers of `to_size` bytes. `lo` has zeros above an element of 1 or 2 bytes before, and any bits
/// above the result after.
WINDROW_DEVICE void cast_whole(Group& at, uint8_t from, uint8_t to, uint32_t from_size, uint32_t to_size) {
    if (to == kBool || from == kBool) {
#pragma unroll
        for (uint32_t i = 0; i < kGroup; ++i) at.set(i, (from_size == 8 ? at.bits(i) : at.lo[i]) != 0);
    } else if (from_size < to_size) {
        const uint32_t shift = from_size < 4 ? 32 - 8 * from_size : 0;
        const bool is_signed = from <= kI64;
#pragma unroll
        for (uint32_t i = 0; i < kGroup; ++i) {
            const int32_t high = static_cast<int32_t>(at.lo[i] << shift);
            at.lo[i] = is_signed ? static_cast<uint32_t>(high >> shift) : at.lo[i];
            at.hi[i] = is_signed ? static_cast<uint32_t>(high >> 31) : 0;
        }
    }
}

/// Makes floats of 16 bits. False, and nothing is done, if one may be a NaN.
WINDROW_DEVICE bool pack_group(Group& at, const float (&x)[kGroup], uint8_t to) {
    if (any_nan(x)) return false;
#pragma unroll
    for (uint32_t i = 0; i < kGroup; i += 2) {
        const uint32_t pair = to == kF16 ? pack_f16(x[i], x[i + 1]) : pack_bf16(x[i], x[i + 1]);
        at.lo[i] = pair;  // of which the low bytes are stored
        at.lo[i + 1] = pair >> 16;
    }
    return true;
}

/// Makes floats of 8 bits. False, and nothing is done, if one may be a NaN, whose sign counts, or is beyond what pack_float8()
/// takes.
WINDROW_DEVICE bool pack_group_8(Group& at, const float (&x)[kGroup], Codes codes) {
    const bool saturates = (codes.result() & kSaturate) != 0;
    if (!all_within(x, packed_limit(codes.to(), saturates))) return false;
#pragma unroll
    for (uint32_t i = 0; i < kGroup; i += 4) {
        const uint32_t word = pack_float8<false>(codes.to(), x + i, signs_of(x + i));
#pragma unroll
        for (uint32_t byte = 0; byte < 4; ++byte) at.lo[i + byte] = word >> 8 * byte;
    }
    return true;
}

/// Gives floats of 8 bits as numbers, but for a NaN's sign.
WINDROW_DEVICE void unpack_group_8(const Group& at, uint8_t from, float (&x)[kGroup]) {
#if WINDROW_CASTS_FLOAT8
#pragma unroll
    for (uint32_t i = 0; i < kGroup; i += 2) unpack_f16(unpack_float8(from, pair_of<1>(at.lo[i], at.lo[i + 1]), false), x[i], x[i + 1]);
#else
    // A NaN of e4m3fn has to be one here.
    const Float8 format(from);
#pragma unroll
    for (uint32_t i = 0; i < kGroup; ++i) x[i] = format.value(at.lo[i]);
#endif
}

/// Casts numbers that float32 has room for, or that are rounded to it on their way. `odd`: to odd, as they are rounded once more,
/// to 16 bits. False, with the group as it was and the map of no more use, if one may be a NaN
/// whose payload matters, or is beyond what pack_group_8() takes.
template <class M>
WINDROW_DEVICE bool cast_singles(Group& at, Codes codes, M& map, bool odd) {
    const uint8_t from = codes.from(), to = codes.to();
    float x[kGroup];
    if (is_float8(from)) unpack_group_8(at, from, x);
    else with_number(from, [&](auto number) {
        using N = decltype(number);
        if constexpr (N::kIsWhole && sizeof(typename N::Bits) >= 4) {
            if (odd) {
#pragma unroll
                for (uint32_t i = 0; i < kGroup; ++i) x[i] = N::odd(at.bits(i));
                return;
            }
        }
        if constexpr (N::kIsWhole || sizeof(typename N::Bits) < 8) {
#pragma unroll
            for (uint32_t i = 0; i < kGroup; ++i) x[i] = N::loose(at.bits_as<typename N::Bits>(i));
        }
    });
    map.apply(x, false);
    if (is_half(to)) return pack_group(at, x, to);
    if (is_float8(to)) return pack_group_8(at, x, codes);
    if (to == kF32 && any_nan(x)) return false;
    with_number(to, [&](auto number) {
        using N = decltype(number);
        if constexpr (N::kIsWhole || sizeof(typename N::Bits) == 4) {
#pragma unroll
            for (uint32_t i = 0; i < kGroup; ++i) at.set_as<typename N::Bits>(i, N::from(x[i]));
        }
    });
    return true;
}

/// Casts with float64 on either side, or on both. False, with the group of no more use, if one that becomes a float of 16 or 8
/// bits may be a NaN, or is beyond what pack_group_8() takes.
template <class M>
WINDROW_DEVICE bool cast_doubles(Group& at, Codes codes, M& map) {
    const uint8_t from = codes.from(), to = codes.to();
    const bool is_narrow = is_half(to) || is_float8(to);
    double x[kGroup];
    if (from == kF64) {
        if (map.is_there) {
#pragma unroll
            for (uint32_t i = 0; i < kGroup; ++i) x[i] = double_of(at.bits(i));
            map.apply(x, !is_integral(to) && !is_narrow);
#pragma unroll
            for (uint32_t i = 0; i < kGroup; ++i) at.set(i, bits_of(x[i]));
        }
        if (is_narrow) {
            float odd[kGroup];
#pragma unroll
            for (uint32_t i = 0; i < kGroup; ++i) odd[i] = toward_odd(double_of(at.bits(i)));
            return is_half(to) ? pack_group(at, odd, to) : pack_group_8(at, odd, codes);
        }
        with_number(to, [&](auto number) {
            using N = decltype(number);
#pragma unroll
            for (uint32_t i = 0; i < kGroup; ++i) {
                if constexpr (N::kIsWhole || sizeof(typename N::Bits) >= 4) at.set_as<typename N::Bits>(i, N::from(double_of(at.bits(i))));
            }
        });
    } else {
        if (is_float8(from)) {
            const Float8 format(from);
#pragma unroll
            for (uint32_t i = 0; i < kGroup; ++i) x[i] = widen(format.value(at.lo[i]));
        } else with_number(from, [&](auto number) {
            using N = decltype(number);
#pragma unroll
            for (uint32_t i = 0; i < kGroup; ++i) x[i] = N::wide(at.bits_as<typename N::Bits>(i));
        });
        map.apply(x, true);
#pragma unroll
        for (uint32_t i = 0; i < kGroup; ++i) at.set(i, bits_of(x[i]));
    }
    return true;
}

/// Casts a group by its kind, which is not kSlow. False, with group and map of no more use, if the elements have to be cast one
/// by one from where they are read.
template <class M>
WINDROW_DEVICE bool cast_group(Group& at, Codes codes, M& map) {
    const uint8_t kind = codes.kind(), from = codes.from(), to = codes.to();
    if (kind == kWhole) {
        if (from != to) cast_whole(at, from, to, codes.from_size(), 1 << codes.log_to());
        return true;
    }
    return kind == kDoubles ? cast_doubles(at, codes, map) : cast_singles(at, codes, map, kind == kOddSingles);
}

}  // namespace windrow
