// Family strided: whatever no other family takes. Elements any number of bytes apart on either side, in any
// order of the loops, of any pair of dtypes, with padding on all sides.
//
// A box is two loops of a sample, or one loop of many small samples. Its elements are dealt to lanes row by row, so
// that neighbouring lanes write neighbouring elements; a lane then goes down the rows, 2^log_step at a time, kTurns
// elements at once. Where 2^log_step rows have more than 32 elements, each 32 of them are an item of their own, a
// round: a lane has one column, and nothing of the box lives while it is written. Where a source is transposed the
// kTurns elements are adjacent, and both sides are touched in whole sectors.
#pragma once

#include "box.cuh"
#include "casts.cuh"

namespace windrow {

/// Elements of a lane that are under way together.
constexpr uint32_t kTurns = 8;

/// What a lane has yet to write of a box: `turns` elements, of which [first, last) are real. Addresses are numbers, as
/// those of padding may be none. What else there is to know is read from the field again.
struct Unit {
    uint64_t src;  ///< of the first; of a list: from where each sample begins
    uint64_t dst;
    int32_t src_step, dst_step;
    uint32_t turns, first, last;
    uint32_t sample;  ///< its number; of a list that of the first element
    uint32_t channel, channel_step;

    WINDROW_DEVICE void advance(uint32_t count, uint32_t samples) {
        src = stepped(src, src_step, count);
        dst = stepped(dst, dst_step, count);
        turns -= count;
        first -= minimum(first, count);
        last -= minimum(last, count);
        sample += samples * count;
    }
};

/// Rows of a list from one element of a lane to its next, else 0.
WINDROW_DEVICE uint32_t samples_of_turn(const Box& box) { return box.is_list ? 1u << box.field->log_step : 0; }

WINDROW_DEVICE const uint8_t* source_of(const Box& box, const Unit& unit, uint32_t turn) {
    if (!box.is_list) return reinterpret_cast<const uint8_t*>(stepped(unit.src, unit.src_step, turn));
    return source_of(box.table, *box.field, unit.sample + (turn << box.field->log_step)) + unit.src;
}

/// Elements of a lane: their bits, from the lowest on. `count` of them are written, of which [first, last) are real.
struct Turns {
    uint32_t lo[kTurns], hi[kTurns];  ///< `hi` is that of 8 bytes alone
    uint32_t count, first, last;

    WINDROW_DEVICE bool is_real(uint32_t i) const { return i - first < last - first; }
    WINDROW_DEVICE uint64_t bits(uint32_t i) const { return lo[i] | static_cast<uint64_t>(hi[i]) << 32; }
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
};

/// The addresses of a lane's elements, which are computed once for all sizes.
using Places = uint64_t[kTurns];

WINDROW_DEVICE uint8_t* pointer_to(uint64_t address) { return reinterpret_cast<uint8_t*>(address); }

template <class T>
WINDROW_DEVICE void load_turn(Turns& at, uint32_t i, uint64_t from) {
    at.set_as<T>(i, load_word<T>(pointer_to(from)));
}

/// Reads those elements of sizeof(T) bytes that are real; the others are 0.
template <class T>
WINDROW_DEVICE void load_turns(Turns& at, bool is_whole, const Places& from) {
    if (is_whole) {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) load_turn<T>(at, i, from[i]);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) {
            at.lo[i] = 0;
            if (at.is_real(i)) load_turn<T>(at, i, from[i]);
        }
    }
}

/// The bytes of which the address of adjacent elements is a multiple if they are read as vectors.
WINDROW_DEVICE constexpr uint32_t vector_of(uint32_t size) { return size == 1 ? 8 : 16; }

/// Reads adjacent elements of sizeof(T) bytes as vectors.
template <class T>
WINDROW_DEVICE void load_adjacent(Turns& at, uint64_t src) {
    constexpr uint32_t kEach = vector_of(sizeof(T)) / sizeof(T);
#pragma unroll
    for (uint32_t first = 0; first < kTurns; first += kEach) {
        const uint8_t* p = pointer_to(src) + first * sizeof(T);
        const Vec16 all = sizeof(T) == 1 ? Vec16{load<uint64_t>(p), 0} : load16(p);
#pragma unroll
        for (uint32_t i = 0; i < kEach; ++i) {
            const uint32_t shift = 8 * sizeof(T) * i;
            const auto bits = static_cast<T>(shift < 64 ? all.lo >> shift : all.hi >> (shift - 64));
            at.set_as<T>(first + i, bits);
        }
    }
}

/// Writes elements of sizeof(T) bytes.
template <class T>
WINDROW_DEVICE void store_turns(const Turns& at, const Places& to) {
    auto store_one = [&](uint32_t i) {
        if constexpr (sizeof(T) == 8) store(pointer_to(to[i]), at.bits(i));
        else store_word<T>(pointer_to(to[i]), at.lo[i]);
    };
    if (at.count < kTurns) {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) if (i < at.count) store_one(i);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) store_one(i);
    }
}

/// The map of a field, whose channels are a lane's own.
struct Map {
    Affine affine;
    uint32_t channel, step;

    /// `nan`: whether a NaN's bits matter.
    template <class Float>
    WINDROW_DEVICE void apply(Float (&x)[kTurns], bool nan) {
        if (affine.a == nullptr) return;
        if (nan) apply(x, [](Float one, Float by, Float plus) { return multiply_add(one, by, plus); });
        else apply(x, [](Float one, Float by, Float plus) { return fma_of(one, by, plus); });
    }

    template <class Float, class F>
    WINDROW_DEVICE void apply(Float (&x)[kTurns], const F& map_one) {
        if (step == 0) {
            const Float by = affine.get<Float>(channel), plus = affine.get<Float>(channel + affine.channels);
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i) x[i] = map_one(x[i], by, plus);
            return;
        }
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) {
            x[i] = map_one(x[i], affine.get<Float>(channel), affine.get<Float>(channel + affine.channels));
            next();
        }
    }

    WINDROW_DEVICE void next() {
        channel += step;
        if (channel >= affine.channels) channel -= affine.channels;
    }

    static WINDROW_DEVICE float fma_of(float x, float by, float plus) { return fmaf(x, by, plus); }
    static WINDROW_DEVICE double fma_of(double x, double by, double plus) { return fma(x, by, plus); }
};

WINDROW_DEVICE Map map_of(const Box& box, const Unit& unit) {
    const Field& field = *box.field;
    if (field.op != kAffine) return {{nullptr, 1}, unit.channel, 0};
    return {{at<uint8_t>(box.table, field.affine), field.channels}, unit.channel, unit.channel_step};
}

/// Whole numbers, or elements that are moved.
WINDROW_DEVICE void cast_whole(Turns& at, uint8_t from, uint8_t to, uint32_t from_size, uint32_t to_size) {
    if (to == kBool || from == kBool) {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) at.set(i, (from_size == 8 ? at.bits(i) : at.lo[i]) != 0);
    } else if (from_size < to_size) {
        const uint32_t shift = from_size < 4 ? 32 - 8 * from_size : 0;
        const bool is_signed = from <= kI64;
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) {
            const int32_t high = static_cast<int32_t>(at.lo[i] << shift);
            at.lo[i] = is_signed ? static_cast<uint32_t>(high >> shift) : at.lo[i];
            at.hi[i] = is_signed ? static_cast<uint32_t>(high >> 31) : 0;
        }
    }
}

/// Numbers that float32 has room for, or that are rounded to it on their way. `odd`: to odd, as they are rounded once
/// more, to 16 bits. False, and nothing is cast, if one may be a NaN whose payload matters.
WINDROW_DEVICE bool cast_singles(Turns& at, uint8_t from, uint8_t to, Map& map, bool odd) {
    float x[kTurns];
    with_number(from, [&](auto number) {
        using N = decltype(number);
        if constexpr (N::kIsWhole && sizeof(typename N::Bits) >= 4) {
            if (odd) {
#pragma unroll
                for (uint32_t i = 0; i < kTurns; ++i) x[i] = N::odd(at.bits(i));
                return;
            }
        }
        if constexpr (N::kIsWhole || sizeof(typename N::Bits) < 8) {
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i) x[i] = N::single(sizeof(typename N::Bits) == 8 ? at.bits(i) : at.lo[i]);
        }
    });
    map.apply(x, false);
    if (!is_integral(to)) {
        if (any_nan(x)) return false;
        if (to != kF32) {
#pragma unroll
            for (uint32_t i = 0; i < kTurns; i += 2) {
                const uint32_t pair = to == kF16 ? pack_f16(x[i], x[i + 1]) : pack_bf16(x[i], x[i + 1]);
                at.lo[i] = pair;  // of which the low bytes are stored
                at.lo[i + 1] = pair >> 16;
            }
            return true;
        }
    }
    with_number(to, [&](auto number) {
        using N = decltype(number);
        if constexpr (N::kIsWhole || sizeof(typename N::Bits) == 4) {
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i) at.set_as<typename N::Bits>(i, N::from(x[i]));
        }
    });
    return true;
}

/// float64 on either side, or on both.
WINDROW_DEVICE void cast_doubles(Turns& at, uint8_t from, uint8_t to, Map& map) {
    double x[kTurns];
    if (from == kF64) {
        if (map.affine.a != nullptr) {
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i) x[i] = double_of(at.bits(i));
            map.apply(x, !is_integral(to));
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i) at.set(i, bits_of(x[i]));
        }
        with_number(to, [&](auto number) {
            using N = decltype(number);
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i) at.set_as<typename N::Bits>(i, N::from(double_of(at.bits(i))));
        });
    } else {
        with_number(from, [&](auto number) {
            using N = decltype(number);
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i) x[i] = N::wide(sizeof(typename N::Bits) == 8 ? at.bits(i) : at.lo[i]);
        });
        map.apply(x, true);
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) at.set(i, bits_of(x[i]));
    }
}

/// How many of the turns from coordinate `t` on, 2^log_step apart, are below `end`.
WINDROW_DEVICE uint32_t turns_below(uint32_t end, uint32_t t, uint32_t log_step) {
    return end > t ? (end - t + (1u << log_step) - 1) >> log_step : 0;
}

/// How an element is written: `loop` of a field that is kBox. src/cuda/params.rs has the same.
enum Kind : uint8_t {
    kWhole = 0,       ///< moved, or cast among whole numbers
    kSingles = 1,     ///< through float32
    kOddSingles = 2,  ///< the same, rounded to odd, as there is another rounding behind it
    kDoubles = 3,     ///< through float64
    kSlow = 4,        ///< one by one, as addresses are no multiples of the sizes, these are 16, or numbers are raised
};

WINDROW_DEVICE uint64_t value_of(const Field& field, const Unit& unit) { return field.op == kConst ? field.value : unit.sample; }

/// The next `count` elements, at most kTurns, one by one: at any address, of 16 bytes, or with NaNs.
WINDROW_DEVICE void write_slowly(const Box& box, Unit& unit, uint32_t count) {
    const Field& field = *box.field;
#pragma unroll 1
    for (uint32_t i = 0; i < count; ++i) {
        Vec16 bits = fill_of(field);
        Map map = map_of(box, unit);
        if (unit.first == 0 && unit.last > 0) {
            bits = {value_of(field, unit), 0};
            if (field.from_size != 0) {
                bits = read_bytes(source_of(box, unit, 0), field.from_size);
                if (map.affine.a != nullptr || field.from != field.to) {
                    if (field.from != kMoved) bits.lo = convert_one(bits.lo, field.from, field.to, map.affine, unit.channel);
                    if (field.op == kRaise) bits.lo += at<uint64_t>(box.table, field.affine)[unit.sample];
                }
            }
        }
        // That of kTurns elements that are padding stays.
        if (unit.last > 0 && unit.first + i < kTurns) map.next();
        unit.channel = map.channel;
        uint8_t* dst = reinterpret_cast<uint8_t*>(unit.dst);
        store_elements(dst, bits, field.to_size, 0, 1, field.to_size < 16 && misalignment(dst, field.to_size) == 0);
        unit.advance(1, samples_of_turn(box));
    }
}

/// The elements that are read, by loads of their size.
WINDROW_DEVICE void read_turns(Turns& at, const Box& box, const Unit& unit, bool is_whole) {
    const uint32_t size = box.field->from_size;
    const bool is_adjacent = unit.src_step == static_cast<int32_t>(size) && (unit.src & (vector_of(size) - 1)) == 0;
    if (is_adjacent && is_whole && !box.is_list) {
        switch (size) {
            case 1: return load_adjacent<uint8_t>(at, unit.src);
            case 2: return load_adjacent<uint16_t>(at, unit.src);
            case 4: return load_adjacent<uint32_t>(at, unit.src);
            default: return load_adjacent<uint64_t>(at, unit.src);
        }
    }
    Places from;
    if (box.is_list) {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) {
            from[i] = 0;
            if (at.is_real(i)) from[i] = reinterpret_cast<uintptr_t>(source_of(box, unit, i));
        }
    } else {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) from[i] = i == 0 ? unit.src : sum_of(from[i - 1], unit.src_step);
    }
    switch (size) {
        case 1: return load_turns<uint8_t>(at, is_whole, from);
        case 2: return load_turns<uint16_t>(at, is_whole, from);
        case 4: return load_turns<uint32_t>(at, is_whole, from);
        default: return load_turns<uint64_t>(at, is_whole, from);
    }
}

/// The next `count` elements together, at most kTurns. False, and nothing is written, if they have to go one by one.
WINDROW_DEVICE bool write_quickly(const Box& box, Unit& unit, uint32_t count) {
    const Field& field = *box.field;
    Turns at;
    at.count = count;
    at.first = minimum(unit.first, kTurns);
    at.last = minimum(unit.last, kTurns);
#pragma unroll
    for (uint32_t k = 0; k < kTurns; ++k) at.lo[k] = at.hi[k] = any_word();
    const bool is_whole = at.last - at.first == kTurns;
    if (at.first < at.last) {
        if (field.from_size == 0) {
            const uint64_t bits = value_of(field, unit);
#pragma unroll
            for (uint32_t k = 0; k < kTurns; ++k) at.set(k, bits);
        } else {
            read_turns(at, box, unit, is_whole);
            const uint8_t kind = field.loop, from = field.from, to = field.to;
            if (kind == kWhole) {
                if (from != to) cast_whole(at, from, to, field.from_size, field.to_size);
            } else {
                Map map = map_of(box, unit);
                if (kind == kDoubles) cast_doubles(at, from, to, map);
                else if (!cast_singles(at, from, to, map, kind == kOddSingles)) return false;
                unit.channel = map.channel;
            }
        }
    }
    if (at.last - at.first < count) {
        const uint64_t bits = fill_of(field).lo;
#pragma unroll
        for (uint32_t k = 0; k < kTurns; ++k) if (!at.is_real(k)) at.set(k, bits);
    }
    Places to;
#pragma unroll
    for (uint32_t k = 0; k < kTurns; ++k) to[k] = k == 0 ? unit.dst : sum_of(to[k - 1], unit.dst_step);
    switch (field.to_size) {
        case 1: store_turns<uint8_t>(at, to); break;
        case 2: store_turns<uint16_t>(at, to); break;
        case 4: store_turns<uint32_t>(at, to); break;
        default: store_turns<uint64_t>(at, to);
    }
    unit.advance(count, samples_of_turn(box));
    return true;
}

/// n / d for n below 2^20 whose quotient is below 2^6: the estimate is less than 1 / (2 d) off.
WINDROW_DEVICE uint32_t quotient(uint32_t n, uint32_t d) {
#ifdef __CUDA_ARCH__
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(static_cast<float>(d)));
    return static_cast<uint32_t>((static_cast<float>(n) + 0.5f) * inverse);
#else
    return n / d;
#endif
}

/// Writes a round of a box.
WINDROW_DEVICE void write_box(const Box& box, uint32_t round, uint32_t lane) {
    const Field& field = *box.field;
    const Side &rows = box.rows, &cols = box.cols;
    const uint32_t log_step = field.log_step, number = round * kLanes + lane;
    if (number >= cols.count << log_step) return;
    const uint32_t row = log_step == 0 ? 0 : quotient(number, cols.count), col = number - row * cols.count;
    Unit unit;
    unit.turns = turns_below(rows.count, row, log_step);
    unit.first = unit.last = 0;
    if (col >= cols.lo && col < cols.hi) {
        unit.last = turns_below(rows.hi, row, log_step);
        unit.first = minimum(turns_below(rows.lo, row, log_step), unit.last);
    }
    unit.src = stepped(stepped(reinterpret_cast<uintptr_t>(box.src), rows.src, row), cols.src, col);
    unit.dst = stepped(stepped(reinterpret_cast<uintptr_t>(box.dst), rows.dst, row), cols.dst, col);
    unit.src_step = rows.src * (1 << log_step);
    unit.dst_step = rows.dst * (1 << log_step);
    unit.sample = box.number + (box.is_list ? row : 0);
    unit.channel = unit.channel_step = 0;
    if (field.op == kAffine) {
        // The channels of the first kTurns elements that are not all padding, and of what follows.
        auto modulo = [&](uint32_t channel) { return channel - divide(channel, field.by_channels) * field.channels; };
        const uint32_t down = row + ((unit.first & ~(kTurns - 1)) << log_step);
        unit.channel = modulo(box.channel + down * rows.channel + col * cols.channel);
        unit.channel_step = modulo(rows.channel << log_step);
    }
#pragma unroll 1
    while (unit.turns > 0) {
        // A single one takes less by itself.
        const uint32_t count = minimum(unit.turns, kTurns);
        if (count == 1 || field.loop == kSlow || !write_quickly(box, unit, count)) write_slowly(box, unit, count);
    }
}

}  // namespace windrow
