// Family strided: whatever no other family takes. Elements any number of bytes apart on either side, in any
// order of the loops, of any pair of dtypes, with padding on all sides.
//
// A warp writes a box: two loops of a sample, or one loop of many small samples. A lane takes kTurns elements
// at once, along the rows or along the columns, so that neighbouring lanes write neighbouring elements; where
// a source is transposed its kTurns elements are adjacent, and both sides are touched in whole sectors.
#pragma once

#include "lanes.cuh"

namespace windrow {

/// Elements of a lane that are under way together.
constexpr uint32_t kTurns = 8;

/// Strides are in bytes, and below 2^26 either way; rows and columns below 2^15.
struct Box {
    const uint8_t* src;  ///< of element (0, 0), whether that is real or padding
    uint8_t* dst;        ///< of element (0, 0)
    const Sources* samples;  ///< not null: row r is sample `sample + r`, and `src` is not used
    uint32_t sample;
    int32_t src_row, src_col, dst_row, dst_col;
    uint32_t rows, cols;
    uint32_t row_lo, row_hi, col_lo, col_hi;  ///< elements in [lo, hi) of both are real, the rest padding
    Divisor by_cols;
    const uint8_t* affine;  ///< a[channels], b[channels], float64 if either dtype is; null: none
    uint32_t channels;
    Divisor by_channels;
    uint32_t channel, channel_row, channel_col;  ///< of real elements, channel + r * channel_row + c * channel_col, modulo channels
    uint64_t value;  ///< the bits of real elements where `from_size` is 0
    uint64_t fill[2];  ///< the bits of padding
    uint8_t from, to;  ///< the same without a map: moved
    uint8_t from_size, to_size;
};

WINDROW_DEVICE uint64_t stepped(uint64_t base, int32_t step, uint32_t i) {
    return base + static_cast<int64_t>(step) * i;
}

/// `count` elements of a lane, up to kTurns: element i is `src_step` * i and `dst_step` * i bytes further on.
struct Turns {
    uint64_t src, dst;  ///< numbers, as they may be no addresses: of padding
    int32_t src_step, dst_step;
    uint32_t count;

    WINDROW_DEVICE const uint8_t* source(uint32_t i) const {
        return reinterpret_cast<const uint8_t*>(stepped(src, src_step, i));
    }
};

/// Bits of an element in registers: four bytes at least.
template <class T>
using WordFor = typename WordOf<sizeof(T) < 4 ? 4 : sizeof(T)>::Type;

template <class T>
WINDROW_DEVICE void load_turns(const Turns& at, WordFor<T> (&raw)[kTurns]) {
    constexpr uint32_t kWide = sizeof(T) == 1 ? 8 : 16, kEach = kWide / sizeof(T);
    if (at.count < kTurns) {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) {
            raw[i] = 0;
            if (i < at.count) raw[i] = load_word<T>(at.source(i));
        }
    } else if (at.src_step == sizeof(T) && at.src % kWide == 0) {
#pragma unroll
        for (uint32_t first = 0; first < kTurns; first += kEach) {
            const uint8_t* p = reinterpret_cast<const uint8_t*>(at.src) + first * sizeof(T);
            const Vec16 all = sizeof(T) == 1 ? Vec16{load<uint64_t>(p), 0} : load16(p);
#pragma unroll
            for (uint32_t i = 0; i < kEach; ++i) {
                const uint32_t shift = 8 * sizeof(T) * i;
                raw[first + i] = static_cast<T>(shift < 64 ? all.lo >> shift : all.hi >> (shift - 64));
            }
        }
    } else {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) raw[i] = load_word<T>(at.source(i));
    }
}

/// Stores `bits(i)`.
template <class T, class F>
WINDROW_DEVICE void store_turns(const Turns& at, const F& bits) {
    auto store_one = [&](uint32_t i) {
        store(reinterpret_cast<uint8_t*>(stepped(at.dst, at.dst_step, i)), static_cast<T>(bits(i)));
    };
    if (at.count < kTurns) {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) if (i < at.count) store_one(i);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) store_one(i);
    }
}

template <class F>
WINDROW_DEVICE void store_sized(const Turns& at, uint32_t size, const F& bits) {
    switch (size) {
        case 1: return store_turns<uint8_t>(at, bits);
        case 2: return store_turns<uint16_t>(at, bits);
        case 4: return store_turns<uint32_t>(at, bits);
        default: return store_turns<uint64_t>(at, bits);
    }
}

/// a and b of a lane's elements: one pair for all of them if `step` is 0, else the channel goes on.
struct Map {
    const uint8_t* a;
    uint32_t channels, channel, step;

    template <class Float>
    WINDROW_DEVICE Float get(uint32_t index) const {
        return reinterpret_cast<const Float*>(a)[index];
    }

    /// `nan`: whether a NaN's bits matter.
    template <class Float>
    WINDROW_DEVICE void apply(Float (&x)[kTurns], bool nan) {
        if (a == nullptr) return;
        auto map_one = [&](Float one) {
            const Float by = get<Float>(channel), plus = get<Float>(channel + channels);
            return nan ? multiply_add(one, by, plus) : fma_of(one, by, plus);
        };
        if (step == 0) {
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i) x[i] = map_one(x[i]);
        } else {
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i) {
                x[i] = map_one(x[i]);
                next();
            }
        }
    }

    WINDROW_DEVICE void next() {
        channel += step;
        if (channel >= channels) channel -= channels;
    }

    static WINDROW_DEVICE float fma_of(float x, float by, float plus) { return fmaf(x, by, plus); }
    static WINDROW_DEVICE double fma_of(double x, double by, double plus) { return fma(x, by, plus); }
};

/// Whole numbers, or elements that are moved, of 8 bytes.
WINDROW_DEVICE void write_long(const Turns& at, uint8_t from) {
    uint64_t x[kTurns];
    with_number(from, [&](auto number) {
        using N = decltype(number);
        if constexpr (N::kIsWhole) {
            WordFor<typename N::Bits> raw[kTurns];
            load_turns<typename N::Bits>(at, raw);
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i) x[i] = N::kIsPlain ? raw[i] : N::wrapped(raw[i]);
        }
    });
    store_turns<uint64_t>(at, [&](uint32_t i) { return x[i]; });
}

/// The same of fewer bytes: the rest of a source does not matter, but for bool.
WINDROW_DEVICE void write_short(const Turns& at, uint8_t from, uint8_t to, uint32_t to_size) {
    uint32_t x[kTurns];
    with_number(from, [&](auto number) {
        using N = decltype(number);
        if constexpr (N::kIsWhole) {
            WordFor<typename N::Bits> raw[kTurns];
            load_turns<typename N::Bits>(at, raw);
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i) {
                x[i] = static_cast<uint32_t>(N::kIsPlain ? raw[i] : N::wrapped(raw[i]));
                if constexpr (sizeof(raw[i]) == 8) {
                    if (to == kBool) x[i] |= static_cast<uint32_t>(raw[i] >> 32);
                }
            }
        }
    });
    if (to == kBool) {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) x[i] = x[i] != 0;
    }
    switch (to_size) {
        case 1: return store_turns<uint8_t>(at, [&](uint32_t i) { return x[i]; });
        case 2: return store_turns<uint16_t>(at, [&](uint32_t i) { return x[i]; });
        default: return store_turns<uint32_t>(at, [&](uint32_t i) { return x[i]; });
    }
}

/// Numbers that float32 has room for, or that are rounded to it on their way. `odd`: rounded to odd, as they are
/// rounded once more, to 16 bits.
template <bool odd>
WINDROW_DEVICE void write_singles(const Turns& at, uint8_t from, uint8_t to, Map& map) {
    float x[kTurns];
    with_number(from, [&](auto number) {
        using N = decltype(number);
        if constexpr (odd ? N::kIsWhole && sizeof(typename N::Bits) >= 4 : N::kIsWhole || sizeof(typename N::Bits) < 8) {
            WordFor<typename N::Bits> raw[kTurns];
            load_turns<typename N::Bits>(at, raw);
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i) x[i] = odd ? N::odd(raw[i]) : N::single(raw[i]);
        }
    });
    if (!odd) {
        if (is_integral(to)) map.apply(x, false);
        else map.apply(x, true);
    }
    if constexpr (odd) {  // none is NaN
        if (to == kF16) store_turns<uint16_t>(at, [&](uint32_t i) { return pack_f16(x[i], 0); });
        else store_turns<uint16_t>(at, [&](uint32_t i) { return pack_bf16(x[i], 0); });
    } else {
        with_number(to, [&](auto number) {
            using N = decltype(number);
            if constexpr (N::kIsWhole || sizeof(typename N::Bits) < 8) {
                store_turns<typename N::Bits>(at, [&](uint32_t i) { return N::from(x[i]); });
            }
        });
    }
}

/// float64 on either side.
WINDROW_DEVICE void write_doubles(const Turns& at, uint8_t from, uint8_t to, Map& map) {
    double x[kTurns];
    with_number(from, [&](auto number) {
        using N = decltype(number);
        WordFor<typename N::Bits> raw[kTurns];
        load_turns<typename N::Bits>(at, raw);
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) x[i] = N::wide(raw[i]);
    });
    if (is_integral(to)) map.apply(x, false);
    else map.apply(x, true);
    with_number(to, [&](auto number) {
        using N = decltype(number);
        store_turns<typename N::Bits>(at, [&](uint32_t i) { return N::from(x[i]); });
    });
}

/// The dtype whose elements are moved as ones of `size` bytes are.
WINDROW_DEVICE uint8_t moved_as(uint32_t size) {
    return size == 1 ? kU8 : size == 2 ? kU16 : size == 4 ? kU32 : kU64;
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

/// The elements of a lane: `turns` of them from row `r` and column `c` on, of which [first, last) are real.
struct Unit {
    uint32_t r, c, turns, first, last;
};

/// One by one: at any address, of 16 bytes, or from a list. `row_step`, `col_step`: from turn to turn.
WINDROW_DEVICE void write_slowly(const Box& box, const Unit& unit, uint32_t row_step, uint32_t col_step, Map map) {
    const bool moved = map.a == nullptr && box.from == box.to;
    uint32_t r = unit.r, c = unit.c;
#pragma unroll 1
    for (uint32_t i = 0; i < unit.turns; ++i, r += row_step, c += col_step) {
        Vec16 bits = {box.fill[0], box.fill[1]};
        if (i >= unit.first && i < unit.last) {
            bits = {box.value, 0};
            if (box.from_size != 0) {
                uint64_t src = static_cast<int64_t>(box.src_col) * c;
                src += box.samples != nullptr ? reinterpret_cast<uintptr_t>(source_at(*box.samples, box.sample + r))
                                              : reinterpret_cast<uintptr_t>(box.src) + static_cast<int64_t>(box.src_row) * r;
                bits = read_bytes(reinterpret_cast<const uint8_t*>(src), box.from_size);
                if (!moved) bits.lo = convert_one(bits.lo, box.from, box.to, map.a, map.channels, map.channel);
            }
        }
        uint8_t* dst = box.dst + static_cast<int64_t>(box.dst_row) * r + static_cast<int64_t>(box.dst_col) * c;
        store_elements(dst, bits, box.to_size, 0, 1, box.to_size < 16 && misalignment(dst, box.to_size) == 0);
        if (i >= unit.first) map.next();
    }
}

/// Calls `write(turns, map)` for kTurns elements of a lane after the other, and writes the padding. `at` begins
/// with the first real element of the source and the first of the output, `map` with the first real one.
template <class Write>
WINDROW_DEVICE void write_quickly(const Box& box, const Unit& unit, Turns at, Map map, const Write& write) {
    const uint64_t src = at.src, dst = at.dst;
    auto go = [&](uint32_t begin, uint32_t end, const auto& write) {
        at.src = src;
        at.dst = stepped(dst, at.dst_step, begin);
#pragma unroll 1
        for (uint32_t left = end - begin; left > 0; left -= at.count) {
            at.count = minimum(left, kTurns);
            write();
            at.src = stepped(at.src, at.src_step, kTurns);
            at.dst = stepped(at.dst, at.dst_step, kTurns);
        }
    };
    auto fill = [&] { store_sized(at, box.to_size, [&](uint32_t) { return box.fill[0]; }); };
    if (unit.last - unit.first < unit.turns) {
#pragma unroll 1
        for (uint32_t part = 0; part < 2; ++part) {
            const uint32_t begin = part == 0 ? 0 : unit.last, end = part == 0 ? unit.first : unit.turns;
            if (begin < end) go(begin, end, fill);
        }
    }
    if (unit.first < unit.last) go(unit.first, unit.last, [&] { write(at, map); });
}

/// How the lanes share a box. Down the rows: each has a column and, where these are few, one of 2^log_step rows.
/// Across: each row is for all lanes, 32 columns a turn.
struct Shape {
    bool is_down;
    uint32_t log_step, row_step, col_step;

    WINDROW_DEVICE explicit Shape(const Box& box) {
        const uint32_t span = log_span(box.cols);
        const uint32_t down = ((box.cols << span) + kLanes - 1) / kLanes * (box.rows + (kTurns << span) - 1 >> (3 + span));
        const uint32_t across = box.rows * ((box.cols + kTurns * kLanes - 1) / (kTurns * kLanes));
        const bool transposed = abs(box.src_row) < abs(box.src_col);
        is_down = transposed ? down <= 2 * across : down < across;
        log_step = is_down ? span : 5;
        row_step = is_down ? 1u << span : 0;
        col_step = is_down ? 0 : kLanes;
    }
};

/// Calls `write(unit, map)` for all elements of a lane.
template <class Write>
WINDROW_DEVICE void for_units(const Box& box, const Shape& shape, uint32_t lane, const Write& write) {
    Map map = {box.affine, box.channels, 0, 0};
    if (box.affine != nullptr) {
        const uint32_t step = shape.row_step * box.channel_row + shape.col_step * box.channel_col;
        map.step = step - divide(step, box.by_channels) * box.channels;
    }
    const uint32_t units = shape.is_down ? box.cols << shape.log_step : box.rows * kLanes;
#pragma unroll 1
    for (uint32_t number = lane; number < units; number += kLanes) {
        Unit unit = {number / kLanes, lane, 0, 0, 0};
        if (shape.is_down) {
            unit.r = shape.log_step == 0 ? 0 : divide(number, box.by_cols);
            unit.c = number - unit.r * box.cols;
        }
        // Along the turns, and across them.
        const uint32_t t = shape.is_down ? unit.r : unit.c, o = shape.is_down ? unit.c : unit.r;
        unit.turns = turns_below(shape.is_down ? box.rows : box.cols, t, shape.log_step);
        unit.first = turns_below(shape.is_down ? box.row_lo : box.col_lo, t, shape.log_step);
        unit.last = turns_below(shape.is_down ? box.row_hi : box.col_hi, t, shape.log_step);
        const uint32_t lo = shape.is_down ? box.col_lo : box.row_lo, hi = shape.is_down ? box.col_hi : box.row_hi;
        if (o < lo || o >= hi) unit.last = 0;
        unit.first = minimum(unit.first, unit.last);
        if (map.a != nullptr && unit.first < unit.last) {
            const uint32_t r = unit.r + unit.first * shape.row_step, c = unit.c + unit.first * shape.col_step;
            const uint32_t channel = box.channel + r * box.channel_row + c * box.channel_col;
            map.channel = channel - divide(channel, box.by_channels) * box.channels;
        }
        write(unit, map);
    }
}

WINDROW_DEVICE void write_box(const Box& box, uint32_t lane) {
    const Shape shape(box);
    const bool moved = box.affine == nullptr && box.from == box.to;
    const uint8_t from = moved ? moved_as(box.from_size) : box.from, to = moved ? moved_as(box.from_size) : box.to;
    const uint32_t from_low = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(box.src)) | box.src_row | box.src_col;
    const uint32_t to_low = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(box.dst)) | box.dst_row | box.dst_col;
    if (box.samples != nullptr || box.to_size == 16 || (to_low & (box.to_size - 1)) != 0 ||
        (box.from_size != 0 && (from_low & (box.from_size - 1)) != 0)) {
        for_units(box, shape, lane, [&](const Unit& unit, const Map& map) {
            write_slowly(box, unit, shape.row_step, shape.col_step, map);
        });
        return;
    }
    auto quickly = [&](const auto& write) {
        for_units(box, shape, lane, [&](const Unit& unit, const Map& map) {
            Turns at;
            at.src_step = box.src_row * static_cast<int32_t>(shape.row_step) + box.src_col * static_cast<int32_t>(shape.col_step);
            at.dst_step = box.dst_row * static_cast<int32_t>(shape.row_step) + box.dst_col * static_cast<int32_t>(shape.col_step);
            const uint32_t r = unit.r + unit.first * shape.row_step, c = unit.c + unit.first * shape.col_step;
            at.src = stepped(stepped(reinterpret_cast<uintptr_t>(box.src), box.src_row, r), box.src_col, c);
            at.dst = stepped(stepped(reinterpret_cast<uintptr_t>(box.dst), box.dst_row, unit.r), box.dst_col, unit.c);
            write_quickly(box, unit, at, map, write);
        });
    };
    if (box.from_size == 0) {
        quickly([&](const Turns& at, Map&) { store_sized(at, box.to_size, [&](uint32_t) { return box.value; }); });
    } else if (box.affine == nullptr && is_integral(from) && is_integral(to)) {
        if (box.to_size == 8) quickly([&](const Turns& at, Map&) { write_long(at, from); });
        else quickly([&](const Turns& at, Map&) { write_short(at, from, to, box.to_size); });
    } else if (from == kF64 || to == kF64) {
        quickly([&](const Turns& at, Map& map) { write_doubles(at, from, to, map); });
    } else if (is_rare(from, to, box.affine != nullptr)) {
        quickly([&](const Turns& at, Map& map) { write_singles<true>(at, from, to, map); });
    } else {
        quickly([&](const Turns& at, Map& map) { write_singles<false>(at, from, to, map); });
    }
}

}  // namespace windrow
