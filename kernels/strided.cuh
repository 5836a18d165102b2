// Family strided: whatever no other family takes. Elements any number of bytes apart on either side, in any
// order of the loops, of any pair of dtypes, with padding on all sides.
//
// A warp writes a box: two loops of a sample, or one loop of many small samples. A lane takes kTurns elements
// at once, along the rows or along the columns, so that neighbouring lanes write neighbouring elements; where
// a source is transposed its kTurns elements are adjacent, and both sides are touched in whole sectors.
#pragma once

#include "pieces.cuh"

namespace windrow {

/// Elements of a lane that are under way together.
constexpr uint32_t kTurns = 8;

WINDROW_DEVICE uint64_t stepped(uint64_t base, int32_t step, uint32_t i) {
    return base + static_cast<int64_t>(step) * i;
}

/// The rows of a box, or its columns: those in [lo, hi) are real, the rest padding. Strides are in bytes.
struct Side {
    uint32_t count, lo, hi;
    uint32_t channel;  ///< 1: the channel goes on from one to the next
    int32_t src, dst;
};

/// Number by number, as a choice between structs would put both into memory.
WINDROW_DEVICE Side either(bool is_first, const Side& a, const Side& b) {
    return {is_first ? a.count : b.count, is_first ? a.lo : b.lo,   is_first ? a.hi : b.hi, is_first ? a.channel : b.channel,
            is_first ? a.src : b.src,     is_first ? a.dst : b.dst};
}

/// Rows and columns are below 2^15, strides below 2^26 either way.
struct Box {
    const uint64_t* table;
    const Field* field;  ///< of which dtypes, map, padding and value are, and the samples of a list
    const uint8_t* src;  ///< of element (0, 0), whether that is real or padding
    uint8_t* dst;        ///< of element (0, 0)
    Side rows, cols;
    Divisor by_cols;
    bool is_list;      ///< row r is sample `number + r`, and `src` is not used
    uint32_t number;   ///< of the sample, or of that of row 0
    uint32_t channel;  ///< of element (0, 0) if that is real; modulo channels
};

/// A box along the turns of a lane, and across them.
struct Turned {
    const Box& box;
    Side along, across;
    bool is_down;
    uint32_t log_step;  ///< of the coordinates from turn to turn

    /// Numbers, as they may be no addresses: of padding.
    WINDROW_DEVICE uint64_t target(uint32_t t, uint32_t o) const {
        return stepped(stepped(reinterpret_cast<uintptr_t>(box.dst), along.dst, t), across.dst, o);
    }
    WINDROW_DEVICE const uint8_t* source(uint32_t t, uint32_t o) const {
        return reinterpret_cast<const uint8_t*>(stepped(stepped(reinterpret_cast<uintptr_t>(box.src), along.src, t), across.src, o));
    }
    WINDROW_DEVICE const uint8_t* listed(uint32_t t, uint32_t o) const {
        const uint8_t* src = source_at(sources_of(box.table, *box.field), box.number + (is_down ? t : o));
        return reinterpret_cast<const uint8_t*>(stepped(stepped(reinterpret_cast<uintptr_t>(src), along.src, t), across.src, o));
    }
};

/// Up to kTurns elements of a lane, 2^log_step coordinates apart: their bits, from the lowest on.
struct Turns {
    uint32_t lo[kTurns], hi[kTurns];  ///< `hi` is that of 8 bytes alone
    uint32_t count;

    WINDROW_DEVICE uint64_t bits(uint32_t i) const { return lo[i] | static_cast<uint64_t>(hi[i]) << 32; }
    WINDROW_DEVICE void set(uint32_t i, uint64_t bits) {
        lo[i] = static_cast<uint32_t>(bits);
        hi[i] = static_cast<uint32_t>(bits >> 32);
    }
};

/// Reads elements of sizeof(T) bytes, from `src` on `step` bytes apart; or, where that is null, from `listed(i)`.
template <class T, class Listed>
WINDROW_DEVICE void load_turns(Turns& at, const uint8_t* src, int32_t step, const Listed& listed) {
    constexpr uint32_t kWide = sizeof(T) == 1 ? 8 : 16, kEach = kWide / sizeof(T);
    auto address = [&](uint32_t i) { return src + static_cast<int64_t>(step) * i; };
    if (at.count < kTurns || src == nullptr) {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) {
            at.lo[i] = 0;
            if (i < at.count) at.set(i, load_word<T>(src == nullptr ? listed(i) : address(i)));
        }
    } else if (step == sizeof(T) && misalignment(src, kWide) == 0) {
#pragma unroll
        for (uint32_t first = 0; first < kTurns; first += kEach) {
            const uint8_t* p = src + first * sizeof(T);
            const Vec16 all = sizeof(T) == 1 ? Vec16{load<uint64_t>(p), 0} : load16(p);
#pragma unroll
            for (uint32_t i = 0; i < kEach; ++i) {
                const uint32_t shift = 8 * sizeof(T) * i;
                at.set(first + i, static_cast<T>(shift < 64 ? all.lo >> shift : all.hi >> (shift - 64)));
            }
        }
    } else {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) at.set(i, load_word<T>(address(i)));
    }
}

/// Writes elements of sizeof(T) bytes, the first at `dst`.
template <class T>
WINDROW_DEVICE void store_turns(const Turns& at, uint64_t dst, int32_t step) {
    auto store_one = [&](uint32_t i) { store(reinterpret_cast<uint8_t*>(stepped(dst, step, i)), static_cast<T>(at.bits(i))); };
    if (at.count < kTurns) {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) if (i < at.count) store_one(i);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) store_one(i);
    }
}

/// a and b of a lane's elements: one pair for all of them if `step` is 0, else the channel goes on.
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
    map.apply(x, !is_integral(to));
    with_number(to, [&](auto number) {
        using N = decltype(number);
        if constexpr (N::kIsWhole || sizeof(typename N::Bits) < 8) {
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i) at.set(i, N::from(x[i]));
        }
    });
}

/// float64 on either side.
WINDROW_DEVICE void cast_doubles(Turns& at, uint8_t from, uint8_t to, Map& map) {
    double x[kTurns];
    with_number(from, [&](auto number) {
        using N = decltype(number);
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) x[i] = N::wide(sizeof(typename N::Bits) == 8 ? at.bits(i) : at.lo[i]);
    });
    map.apply(x, !is_integral(to));
    with_number(to, [&](auto number) {
        using N = decltype(number);
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) at.set(i, N::from(x[i]));
    });
}

/// How many of the turns from coordinate `t` on, 2^log_step apart, are below `end`.
WINDROW_DEVICE uint32_t turns_below(uint32_t end, uint32_t t, uint32_t log_step) {
    return end > t ? (end - t + (1u << log_step) - 1) >> log_step : 0;
}

/// The least power of 2 that times `cols` is 32 or more, as its logarithm.
WINDROW_DEVICE uint32_t log_span(uint32_t cols) {
    uint32_t log = 0;
#pragma unroll
    for (uint32_t i = 0; i < 5; ++i) log += cols << i < kLanes;
    return log;
}

/// How the lanes share a box. Down the rows: each has a column and, where these are few, one of 2^log_step rows.
/// Across: each row is for all lanes, 32 columns a turn.
WINDROW_DEVICE Turned turned(const Box& box) {
    const Side &rows = box.rows, &cols = box.cols;
    const uint32_t span = log_span(cols.count);
    const uint32_t down = ((cols.count << span) + kLanes - 1) / kLanes * (rows.count + (kTurns << span) - 1 >> (3 + span));
    const uint32_t across = rows.count * ((cols.count + kTurns * kLanes - 1) / (kTurns * kLanes));
    const bool is_transposed = abs(rows.src) < abs(cols.src);
    const bool is_down = is_transposed ? down <= 2 * across : down < across;
    return {box, either(is_down, rows, cols), either(is_down, cols, rows), is_down, is_down ? span : 5};
}

/// The elements of a lane: `turns` of them from coordinates `t` along the turns and `o` across on, of which [first, last)
/// are real.
struct Unit {
    uint32_t t, o, turns, first, last;
};

/// How an element is written.
enum Kind : uint32_t { kWhole, kSingles, kOddSingles, kDoubles, kSlow };

WINDROW_DEVICE uint64_t value_of(const Box& box) { return box.field->op == kConst ? box.field->value : box.number; }

/// One by one: at any address, or of 16 bytes.
WINDROW_DEVICE void write_slowly(const Turned& turned, const Unit& unit, Map map) {
    const Box& box = turned.box;
    const Field& field = *box.field;
    uint32_t t = unit.t;
#pragma unroll 1
    for (uint32_t i = 0; i < unit.turns; ++i, t += 1u << turned.log_step) {
        Vec16 bits = fill_of(field);
        if (i >= unit.first && i < unit.last) {
            bits = {value_of(box), 0};
            if (field.from_size != 0) {
                bits = read_bytes(box.is_list ? turned.listed(t, unit.o) : turned.source(t, unit.o), field.from_size);
                if (map.affine.a != nullptr || field.from != field.to) bits.lo = convert_one(bits.lo, field.from, field.to, map.affine, map.channel);
            }
            map.next();
        }
        uint8_t* dst = reinterpret_cast<uint8_t*>(turned.target(t, unit.o));
        store_elements(dst, bits, field.to_size, 0, 1, field.to_size < 16 && misalignment(dst, field.to_size) == 0);
    }
}

/// kTurns elements of a lane after the other: padding, real ones, padding.
WINDROW_DEVICE void write_quickly(const Turned& turned, const Unit& unit, Kind kind, Map map) {
    const Box& box = turned.box;
    const Field& field = *box.field;
    const int32_t src_step = turned.along.src * (1 << turned.log_step), dst_step = turned.along.dst * (1 << turned.log_step);
    uint64_t dst = turned.target(unit.t, unit.o);
    Turns at;
    uint32_t i = 0;
#pragma unroll 1
    for (uint32_t part = 0; part < 3; ++part) {
        const uint32_t end = part == 0 ? unit.first : part == 1 ? unit.last : unit.turns;
#pragma unroll 1
        for (; i < end; i += at.count) {
            at.count = minimum(end - i, kTurns);
            if (part != 1 || field.from_size == 0) {
                const uint64_t bits = part == 1 ? value_of(box) : fill_of(field).lo;
#pragma unroll
                for (uint32_t k = 0; k < kTurns; ++k) at.set(k, bits);
            } else {
                const uint32_t t = unit.t + (i << turned.log_step);
                const uint8_t* src = box.is_list ? nullptr : turned.source(t, unit.o);
                auto listed = [&](uint32_t k) { return turned.listed(t + (k << turned.log_step), unit.o); };
                switch (field.from_size) {
                    case 1: load_turns<uint8_t>(at, src, src_step, listed); break;
                    case 2: load_turns<uint16_t>(at, src, src_step, listed); break;
                    case 4: load_turns<uint32_t>(at, src, src_step, listed); break;
                    default: load_turns<uint64_t>(at, src, src_step, listed);
                }
                if (kind == kWhole) {
                    if (field.from != field.to) cast_whole(at, field.from, field.to, field.from_size, field.to_size);
                } else if (kind == kDoubles) {
                    cast_doubles(at, field.from, field.to, map);
                } else {
                    cast_singles(at, field.from, field.to, map, kind == kOddSingles);
                }
            }
            switch (field.to_size) {
                case 1: store_turns<uint8_t>(at, dst, dst_step); break;
                case 2: store_turns<uint16_t>(at, dst, dst_step); break;
                case 4: store_turns<uint32_t>(at, dst, dst_step); break;
                default: store_turns<uint64_t>(at, dst, dst_step);
            }
            dst = stepped(dst, dst_step, at.count);
        }
    }
}

WINDROW_DEVICE Kind kind_of(const Box& box) {
    const Field& field = *box.field;
    const uint32_t from_size = field.from_size, to_size = field.to_size;
    const bool mapped = field.op == kAffine;
    const uint32_t src = box.is_list ? !(field.flags & kAlignedSources)
                                     : static_cast<uint32_t>(reinterpret_cast<uintptr_t>(box.src)) | box.rows.src;
    const uint32_t dst = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(box.dst)) | box.rows.dst | box.cols.dst;
    const bool is_misaligned = (dst & (to_size - 1)) != 0 || (from_size != 0 && ((src | box.cols.src) & (from_size - 1)) != 0);
    if (to_size == 16 || is_misaligned) return kSlow;
    if (!mapped && (field.from == field.to || (is_integral(field.from) && is_integral(field.to)))) return kWhole;
    if (field.from == kF64 || field.to == kF64) return kDoubles;
    return is_rare(field.from, field.to, mapped) ? kOddSingles : kSingles;
}

WINDROW_DEVICE void write_box(const Box& box, uint32_t lane) {
    const Turned turned = windrow::turned(box);
    const Side &along = turned.along, &across = turned.across;
    const Kind kind = kind_of(box);
    const Field& field = *box.field;
    Map map = {{nullptr, 1}, 0, 0};
    if (field.op == kAffine) {
        const uint32_t step = along.channel << turned.log_step;
        map = {{at<uint8_t>(box.table, field.affine), field.channels}, 0, step - divide(step, field.by_channels) * field.channels};
    }
    const uint32_t units = turned.is_down ? box.cols.count << turned.log_step : box.rows.count * kLanes;
#pragma unroll 1
    for (uint32_t number = lane; number < units; number += kLanes) {
        Unit unit = {lane, number / kLanes, 0, 0, 0};
        if (turned.is_down) {
            unit.t = turned.log_step == 0 ? 0 : divide(number, box.by_cols);
            unit.o = number - unit.t * box.cols.count;
        }
        unit.turns = turns_below(along.count, unit.t, turned.log_step);
        if (unit.o >= across.lo && unit.o < across.hi) {
            unit.first = turns_below(along.lo, unit.t, turned.log_step);
            unit.last = turns_below(along.hi, unit.t, turned.log_step);
            unit.first = minimum(unit.first, unit.last);
        }
        if (field.op == kAffine && unit.first < unit.last) {
            const uint32_t t = unit.t + (unit.first << turned.log_step);
            const uint32_t channel = box.channel + t * along.channel + unit.o * across.channel;
            map.channel = channel - divide(channel, field.by_channels) * field.channels;
        }
        if (kind == kSlow) write_slowly(turned, unit, map);
        else write_quickly(turned, unit, kind, map);
    }
}

}  // namespace windrow
