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
};

/// Reads elements of sizeof(T) bytes: `step` bytes apart from `src` on; or, where these are not all, from `source(i)`.
template <class T, class Source>
WINDROW_DEVICE void load_turns(Turns& at, bool is_whole, uint64_t src, int32_t step, const Source& source) {
    constexpr uint32_t kWide = sizeof(T) == 1 ? 8 : 16, kEach = kWide / sizeof(T);
    auto pointer = [](uint64_t address) { return reinterpret_cast<const uint8_t*>(address); };
    if (!is_whole) {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) {
            at.lo[i] = 0;
            if (at.is_real(i)) at.set(i, load_word<T>(source(i)));
        }
    } else if (step == sizeof(T) && (src & (kWide - 1)) == 0) {
#pragma unroll
        for (uint32_t first = 0; first < kTurns; first += kEach) {
            const uint8_t* p = pointer(src) + first * sizeof(T);
            const Vec16 all = sizeof(T) == 1 ? Vec16{load<uint64_t>(p), 0} : load16(p);
#pragma unroll
            for (uint32_t i = 0; i < kEach; ++i) {
                const uint32_t shift = 8 * sizeof(T) * i;
                at.set(first + i, static_cast<T>(shift < 64 ? all.lo >> shift : all.hi >> (shift - 64)));
            }
        }
    } else {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) at.set(i, load_word<T>(pointer(stepped(src, step, i))));
    }
}

/// Writes elements of sizeof(T) bytes, the first at `dst`.
template <class T>
WINDROW_DEVICE void store_turns(const Turns& at, uint64_t dst, int32_t step) {
    auto store_one = [&](uint32_t i) {
        uint8_t* p = reinterpret_cast<uint8_t*>(stepped(dst, step, i));
        if constexpr (sizeof(T) == 8) store(p, at.bits(i));
        else store_word<T>(p, at.lo[i]);
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
/// more, to 16 bits.
WINDROW_DEVICE void cast_singles(Turns& at, uint8_t from, uint8_t to, Map& map, bool odd) {
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
    Map again = map;
    map.apply(x, false);
    if (!is_integral(to)) {
        if (any_nan(x)) {
            // Only the rules of convert.cuh keep a payload.
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i) {
                at.set(i, convert_one(at.bits(i), from, to, again.affine, again.channel));
                again.next();
            }
            return;
        }
        if (to != kF32) {
#pragma unroll
            for (uint32_t i = 0; i < kTurns; i += 2) {
                const uint32_t pair = to == kF16 ? pack_f16(x[i], x[i + 1]) : pack_bf16(x[i], x[i + 1]);
                at.lo[i] = pair;  // of which the low bytes are stored
                at.lo[i + 1] = pair >> 16;
            }
            return;
        }
    }
    with_number(to, [&](auto number) {
        using N = decltype(number);
        if constexpr (N::kIsWhole || sizeof(typename N::Bits) == 4) {
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i) at.set(i, N::from(x[i]));
        }
    });
}

/// float64 on either side, or on both.
WINDROW_DEVICE void cast_doubles(Turns& at, uint8_t from, uint8_t to, Map& map) {
    double x[kTurns];
    if (from == kF64) {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) x[i] = double_of(at.bits(i));
        map.apply(x, !is_integral(to));
        with_number(to, [&](auto number) {
            using N = decltype(number);
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i) at.set(i, N::from(x[i]));
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
    kSlow = 4,        ///< one by one, as addresses are no multiples of the sizes, or these are 16
};

WINDROW_DEVICE uint64_t value_of(const Field& field, const Unit& unit) { return field.op == kConst ? field.value : unit.sample; }

/// One by one: at any address, or of 16 bytes.
WINDROW_DEVICE void write_slowly(const Box& box, Unit unit) {
    const Field& field = *box.field;
#pragma unroll 1
    for (uint32_t i = 0; unit.turns > 0; ++i) {
        Vec16 bits = fill_of(field);
        Map map = map_of(box, unit);
        if (unit.first == 0 && unit.last > 0) {
            bits = {value_of(field, unit), 0};
            if (field.from_size != 0) {
                bits = read_bytes(source_of(box, unit, 0), field.from_size);
                if (map.affine.a != nullptr || field.from != field.to) bits.lo = convert_one(bits.lo, field.from, field.to, map.affine, unit.channel);
            }
        }
        // That of kTurns elements that are padding stays.
        if (unit.last > 0 && unit.first + i % kTurns < kTurns) map.next();
        unit.channel = map.channel;
        uint8_t* dst = reinterpret_cast<uint8_t*>(unit.dst);
        store_elements(dst, bits, field.to_size, 0, 1, field.to_size < 16 && misalignment(dst, field.to_size) == 0);
        unit.advance(1, samples_of_turn(box));
    }
}

/// kTurns elements after the other.
WINDROW_DEVICE void write_quickly(const Box& box, Unit unit) {
    const Field& field = *box.field;
#pragma unroll 1
    while (unit.turns > 0) {
        Turns at;
        at.count = minimum(unit.turns, kTurns);
        at.first = minimum(unit.first, kTurns);
        at.last = minimum(unit.last, kTurns);
        const bool is_whole = at.last - at.first == kTurns;
        if (at.first < at.last) {
            if (field.from_size == 0) {
                const uint64_t bits = value_of(field, unit);
#pragma unroll
                for (uint32_t k = 0; k < kTurns; ++k) at.set(k, bits);
            } else {
                auto source = [&](uint32_t k) { return source_of(box, unit, k); };
                const bool is_even = is_whole && !box.is_list;
                switch (field.from_size) {
                    case 1: load_turns<uint8_t>(at, is_even, unit.src, unit.src_step, source); break;
                    case 2: load_turns<uint16_t>(at, is_even, unit.src, unit.src_step, source); break;
                    case 4: load_turns<uint32_t>(at, is_even, unit.src, unit.src_step, source); break;
                    default: load_turns<uint64_t>(at, is_even, unit.src, unit.src_step, source);
                }
                const uint8_t kind = field.loop, from = field.from, to = field.to;
                if (kind == kWhole) {
                    if (from != to) cast_whole(at, from, to, field.from_size, field.to_size);
                } else {
                    Map map = map_of(box, unit);
                    if (kind == kDoubles) cast_doubles(at, from, to, map);
                    else cast_singles(at, from, to, map, kind == kOddSingles);
                    unit.channel = map.channel;
                }
            }
        }
        if (!is_whole) {
            const uint64_t bits = fill_of(field).lo;
#pragma unroll
            for (uint32_t k = 0; k < kTurns; ++k) if (!at.is_real(k)) at.set(k, bits);
        }
        switch (field.to_size) {
            case 1: store_turns<uint8_t>(at, unit.dst, unit.dst_step); break;
            case 2: store_turns<uint16_t>(at, unit.dst, unit.dst_step); break;
            case 4: store_turns<uint32_t>(at, unit.dst, unit.dst_step); break;
            default: store_turns<uint64_t>(at, unit.dst, unit.dst_step);
        }
        unit.advance(at.count, samples_of_turn(box));
    }
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
    if (field.loop == kSlow) write_slowly(box, unit);
    else write_quickly(box, unit);
}

}  // namespace windrow
