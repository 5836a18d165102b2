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

WINDROW_DEVICE uint64_t stepped(uint64_t base, int32_t step, uint32_t i) {
    return base + static_cast<int64_t>(step) * i;
}

/// Strides are in bytes, and below 2^26 either way; rows and columns below 2^15.
struct Box {
    const uint8_t* src;  ///< of element (0, 0), whether that is real or padding
    uint8_t* dst;        ///< of element (0, 0)
    bool is_list;        ///< row r is sample `sample + r` of these, and `src` is not used
    Sources samples;
    bool is_aligned;     ///< their addresses are multiples of `from_size`
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

    /// A number, as it may be no address: of padding.
    WINDROW_DEVICE uint64_t target(uint32_t r, uint32_t c) const {
        return stepped(stepped(reinterpret_cast<uintptr_t>(dst), dst_row, r), dst_col, c);
    }
    WINDROW_DEVICE const uint8_t* source(uint32_t r, uint32_t c) const {
        const uint64_t row = is_list ? reinterpret_cast<uintptr_t>(source_at(samples, sample + r))
                                     : stepped(reinterpret_cast<uintptr_t>(src), src_row, r);
        return reinterpret_cast<const uint8_t*>(stepped(row, src_col, c));
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

/// The elements of a lane: `turns` of them from row `r` and column `c` on, of which [first, last) are real.
struct Unit {
    uint32_t r, c, turns, first, last;
};

/// How an element is written.
enum Kind : uint32_t { kWhole, kSingles, kOddSingles, kDoubles, kSlow };

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

/// One by one: at any address, or of 16 bytes.
WINDROW_DEVICE void write_slowly(const Box& box, const Shape& shape, const Unit& unit, Map map) {
    const bool moved = box.affine == nullptr && box.from == box.to;
    uint32_t r = unit.r, c = unit.c;
#pragma unroll 1
    for (uint32_t i = 0; i < unit.turns; ++i, r += shape.row_step, c += shape.col_step) {
        Vec16 bits = {box.fill[0], box.fill[1]};
        if (i >= unit.first && i < unit.last) {
            bits = {box.value, 0};
            if (box.from_size != 0) {
                bits = read_bytes(box.source(r, c), box.from_size);
                if (!moved) bits.lo = convert_one(bits.lo, box.from, box.to, map.affine, map.channel);
            }
            map.next();
        }
        uint8_t* dst = reinterpret_cast<uint8_t*>(box.target(r, c));
        store_elements(dst, bits, box.to_size, 0, 1, box.to_size < 16 && misalignment(dst, box.to_size) == 0);
    }
}

/// kTurns elements of a lane after the other: padding, real ones, padding.
WINDROW_DEVICE void write_quickly(const Box& box, const Shape& shape, const Unit& unit, Kind kind, Map map) {
    const auto row_step = static_cast<int32_t>(shape.row_step), col_step = static_cast<int32_t>(shape.col_step);
    const int32_t src_step = box.src_row * row_step + box.src_col * col_step, dst_step = box.dst_row * row_step + box.dst_col * col_step;
    const uint64_t dst = box.target(unit.r, unit.c);
    Turns at;
    uint32_t i = 0;
#pragma unroll 1
    for (uint32_t part = 0; part < 3; ++part) {
        const uint32_t end = part == 0 ? unit.first : part == 1 ? unit.last : unit.turns;
#pragma unroll 1
        for (; i < end; i += at.count) {
            at.count = minimum(end - i, kTurns);
            if (part != 1 || box.from_size == 0) {
                const uint64_t bits = part == 1 ? box.value : box.fill[0];
#pragma unroll
                for (uint32_t k = 0; k < kTurns; ++k) at.set(k, bits);
            } else {
                const uint32_t r = unit.r + i * shape.row_step, c = unit.c + i * shape.col_step;
                const uint8_t* src = box.is_list ? nullptr : box.source(r, c);
                auto listed = [&](uint32_t k) { return box.source(r + k * shape.row_step, c + k * shape.col_step); };
                switch (box.from_size) {
                    case 1: load_turns<uint8_t>(at, src, src_step, listed); break;
                    case 2: load_turns<uint16_t>(at, src, src_step, listed); break;
                    case 4: load_turns<uint32_t>(at, src, src_step, listed); break;
                    default: load_turns<uint64_t>(at, src, src_step, listed);
                }
                if (kind == kWhole) {
                    if (box.from != box.to) cast_whole(at, box.from, box.to, box.from_size, box.to_size);
                } else if (kind == kDoubles) {
                    cast_doubles(at, box.from, box.to, map);
                } else {
                    cast_singles(at, box.from, box.to, map, kind == kOddSingles);
                }
            }
            const uint64_t first = stepped(dst, dst_step, i);
            switch (box.to_size) {
                case 1: store_turns<uint8_t>(at, first, dst_step); break;
                case 2: store_turns<uint16_t>(at, first, dst_step); break;
                case 4: store_turns<uint32_t>(at, first, dst_step); break;
                default: store_turns<uint64_t>(at, first, dst_step);
            }
        }
    }
}

WINDROW_DEVICE Kind kind_of(const Box& box) {
    const bool mapped = box.affine != nullptr;
    const uint32_t from_low = box.src_col | (box.is_list ? !box.is_aligned : static_cast<uint32_t>(reinterpret_cast<uintptr_t>(box.src)) | box.src_row);
    const uint32_t to_low = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(box.dst)) | box.dst_row | box.dst_col;
    const bool is_misaligned = (to_low & (box.to_size - 1)) != 0 || (box.from_size != 0 && (from_low & (box.from_size - 1)) != 0);
    if (box.to_size == 16 || is_misaligned) return kSlow;
    if (!mapped && (box.from == box.to || (is_integral(box.from) && is_integral(box.to)))) return kWhole;
    if (box.from == kF64 || box.to == kF64) return kDoubles;
    return is_rare(box.from, box.to, mapped) ? kOddSingles : kSingles;
}

WINDROW_DEVICE void write_box(const Box& box, uint32_t lane) {
    const Shape shape(box);
    const Kind kind = kind_of(box);
    Map map = {{box.affine, box.channels}, 0, 0};
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
        if (box.affine != nullptr && unit.first < unit.last) {
            const uint32_t r = unit.r + unit.first * shape.row_step, c = unit.c + unit.first * shape.col_step;
            const uint32_t channel = box.channel + r * box.channel_row + c * box.channel_col;
            map.channel = channel - divide(channel, box.by_channels) * box.channels;
        }
        if (kind == kSlow) write_slowly(box, shape, unit, map);
        else write_quickly(box, shape, unit, kind, map);
    }
}

}  // namespace windrow
