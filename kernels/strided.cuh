// Family strided: whatever no other family takes. Elements any number of bytes apart on either side, in any
// order of the loops, of any pair of dtypes, with padding on all sides.
//
// A box is two loops of a sample, or one loop of many small samples. Its elements are dealt to lanes row by row, so
// that neighbouring lanes write neighbouring elements; a lane then goes down the rows, 2^log_step at a time, kTurns
// elements at once. Where 2^log_step rows have more than 32 elements, each 32 of them are an item of their own, a
// round: nothing of the box lives while it is written.
//
// Where a source is transposed, a lane has adjacent rows, whose elements are adjacent in the source, so that both sides are
// touched in whole sectors. Results of 8 and 16 bits are made by tiles of four columns: a store writes four of them.
#pragma once

#include "box.cuh"
#include "group.cuh"

namespace windrow {

/// Elements of a lane that are under way together.
constexpr uint32_t kTurns = kGroup;

/// The elements that a lane has yet to write of a column: `turns` of them, of which [first, last) are real. Addresses are numbers, as
/// those of padding may be none. All other properties are read from the field again.
struct Unit {
    uint64_t src;  ///< of the first; of a list: from where each sample begins
    uint64_t dst;
    int32_t src_step, dst_step;
    uint32_t turns, first, last;
    uint32_t sample;  ///< its number; of a list that of the first element
    uint32_t channel, channel_step;

    /// Past elements whose addresses have been passed.
    WINDROW_DEVICE void pass(uint32_t count, uint32_t samples) {
        turns -= count;
        first -= minimum(first, count);
        last -= minimum(last, count);
        sample += samples * count;
    }
};

/// Codes of a box.
struct BoxCodes : Codes {
    WINDROW_DEVICE BoxCodes(const Field& field, bool is_list, bool is_adjacent, bool is_vector)
        : Codes(field, field.strided.kind, field.strided.log_step) {
        set(0, is_adjacent);
        set(1, is_list);
        set(2, field.op == kAffine);
        set(3, is_vector);
    }
    /// Elements of a lane are adjacent in the source.
    WINDROW_DEVICE bool is_adjacent() const { return is(0); }
    WINDROW_DEVICE bool is_list() const { return is(1); }
    WINDROW_DEVICE bool is_mapped() const { return is(2); }
    /// They are read as vectors, too, if all of them are there.
    WINDROW_DEVICE bool is_vector() const { return is(3); }
    /// Rows of a list from one element of a lane to its next, else 0.
    WINDROW_DEVICE uint32_t samples() const { return uint32_t{is_list()} << log_step(); }
};

/// Where an element of a list is, `turn` elements of the lane on.
WINDROW_DEVICE const uint8_t* listed_source(const Box& box, const Unit& unit, uint32_t turn) {
    return source_of(box.table, *box.field, unit.sample + (turn << box.field->strided.log_step)) + unit.src;
}

/// Elements of a lane, of which `count` are written and [first, last) are real.
struct Turns : Group {
    uint32_t count, first, last;

    WINDROW_DEVICE bool is_real(uint32_t i) const { return i - first < last - first; }
};

/// Where a lane's elements are: adjacent in the source.
template <class T>
struct Adjacent {
    /// Elements that are read of a group that is not whole, at most.
    static constexpr uint32_t kPart = kTurns;

    const uint8_t* at;

    WINDROW_DEVICE const uint8_t* place() const { return at; }
    WINDROW_DEVICE void next() { at += sizeof(T); }
};

/// One after the other, as a product for each takes more.
struct Steps {
    static constexpr uint32_t kPart = kTurns;

    uint64_t at;
    int32_t step;

    WINDROW_DEVICE uint8_t* place() const { return reinterpret_cast<uint8_t*>(at); }
    WINDROW_DEVICE void next() { at = stepped(at, step, 1); }
};

/// The same of elements of a list.
struct ListSteps {
    /// One less: none is behind padding.
    static constexpr uint32_t kPart = kTurns - 1;

    const Box& box;
    const Unit& unit;
    uint32_t turn;

    WINDROW_DEVICE const uint8_t* place() const { return listed_source(box, unit, turn); }
    WINDROW_DEVICE void next() { ++turn; }
};

/// Reads those elements of sizeof(T) bytes that are real; the others are 0.
template <class T, class S>
WINDROW_DEVICE void load_turns(Turns& at, bool is_whole, S& from) {
    if (is_whole) {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i, from.next()) at.set_as<T>(i, load_word<T>(from.place()));
    } else {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i, from.next()) {
            at.lo[i] = 0;
            if (i < S::kPart && at.is_real(i)) at.set_as<T>(i, load_word<T>(from.place()));
        }
    }
}

/// The bytes of which the address of adjacent elements is a multiple if they are read as vectors.
WINDROW_DEVICE constexpr uint32_t vector_of(uint32_t size) { return size == 1 ? 4 : size == 2 ? 8 : 16; }

/// Reads adjacent elements of sizeof(T) bytes as vectors of kBytes.
template <class T, uint32_t kBytes>
WINDROW_DEVICE void load_vectors(Group& at, uint64_t src) {
    constexpr uint32_t kEach = kBytes / sizeof(T);
    using Word = typename WordOf<kBytes>::Type;
#pragma unroll
    for (uint32_t first = 0; first < kTurns; first += kEach) {
        uint32_t words[kBytes / 4];
        load_words<Word>(reinterpret_cast<const uint8_t*>(src) + first * sizeof(T), words);
#pragma unroll
        for (uint32_t i = 0; i < kEach; ++i) at.set_as<T>(first + i, element_of<sizeof(T)>(words, i));
    }
}

/// The same by those of vector_of(); of single bytes by one load where their address allows it.
template <class T>
WINDROW_DEVICE void load_adjacent(Group& at, uint64_t src) {
    if constexpr (sizeof(T) == 1) {
        if (src % kTurns == 0) return load_vectors<T, kTurns>(at, src);
    }
    load_vectors<T, vector_of(sizeof(T))>(at, src);
}

/// Writes elements of sizeof(T) bytes.
template <class T>
WINDROW_DEVICE void store_turns(const Turns& at, Steps& to) {
    auto store_one = [&](uint32_t i) {
        if constexpr (sizeof(T) == 8) store(to.place(), at.bits(i));
        else store_word<T>(to.place(), at.lo[i]);
    };
    const bool is_whole = at.count == kTurns;
    if (is_whole) {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i, to.next()) store_one(i);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i, to.next()) if (i < at.count) store_one(i);
    }
}

WINDROW_DEVICE Affine affine_of(const Box& box) { return {at<uint8_t>(box.table, box.field->nest.affine), box.field->nest.channels}; }

/// How many of the turns from coordinate `t` on, 2^log_step apart, are below `end`.
WINDROW_DEVICE uint32_t turns_below(uint32_t end, uint32_t t, uint32_t log_step) {
    return end > t ? (end - t + (1u << log_step) - 1) >> log_step : 0;
}

WINDROW_DEVICE uint64_t value_of(const Field& field, const Unit& unit) { return field.op == kConst ? field.value : unit.sample; }

/// The next `count` elements, at most kTurns, one by one: at any address, of 16 bytes, or with NaNs.
WINDROW_DEVICE void write_slowly(const Box& box, BoxCodes codes, Unit& unit, uint32_t count) {
    const Field& field = *box.field;
#pragma unroll 1
    for (uint32_t i = 0; i < count; ++i) {
        Vec16 bits = fill_of(field);
        if (unit.first == 0 && unit.last > 0) {
            bits = {value_of(field, unit), 0};
            if (field.from_size != 0) {
                const auto* src = codes.is_list() ? listed_source(box, unit, 0) : reinterpret_cast<const uint8_t*>(unit.src);
                bits = read_bytes(src, field.from_size);
                if (codes.is_mapped() || field.from != field.to) {
                    const Affine map = codes.is_mapped() ? affine_of(box) : Affine{nullptr, 1};
                    if (field.from != kMoved) bits.lo = convert_one(bits.lo, field.from, field.to, map, unit.channel);
                    if (field.op == kRaise) bits.lo += at<uint64_t>(box.table, field.nest.affine)[unit.sample];
                }
            }
        }
        // That of kTurns elements that are padding stays.
        if (codes.is_mapped() && unit.last > 0 && unit.first + i < kTurns) {
            unit.channel = next_channel(unit.channel, unit.channel_step, field.nest.channels);
        }
        uint8_t* dst = reinterpret_cast<uint8_t*>(unit.dst);
        store_elements(dst, bits, field.to_size, 0, 1, field.to_size < 16 && misalignment(dst, field.to_size) == 0);
        unit.src = stepped(unit.src, unit.src_step, 1);
        unit.dst = stepped(unit.dst, unit.dst_step, 1);
        unit.pass(1, codes.samples());
    }
}

/// The elements that are read, by loads of their size.
WINDROW_DEVICE void read_turns(Turns& at, const Box& box, BoxCodes codes, const Unit& unit, bool is_whole) {
    const uint64_t src = unit.src;
    if (codes.is_vector() && is_whole) {
        switch (codes.from_size()) {
            case 1: load_adjacent<uint8_t>(at, src); break;
            case 2: load_adjacent<uint16_t>(at, src); break;
            case 4: load_adjacent<uint32_t>(at, src); break;
            default: load_adjacent<uint64_t>(at, src);
        }
        return;
    }
    auto load = [&](auto&& from_of) {
        auto load_as = [&](auto word) {
            using T = decltype(word);
            auto from = from_of(word);
            load_turns<T>(at, is_whole, from);
        };
        switch (codes.from_size()) {
            case 1: return load_as(uint8_t());
            case 2: return load_as(uint16_t());
            case 4: return load_as(uint32_t());
            default: return load_as(uint64_t());
        }
    };
    if (codes.is_list()) {
        load([&](auto) { return ListSteps{box, unit, 0}; });
    } else if (codes.is_adjacent()) {
        load([&](auto word) { return Adjacent<decltype(word)>{reinterpret_cast<const uint8_t*>(src)}; });
    } else {
        load([&](auto) { return Steps{src, unit.src_step}; });
    }
}

/// The next `count` elements together, at most kTurns. False, and nothing is written, if they have to go one by one.
WINDROW_DEVICE bool write_quickly(const Box& box, BoxCodes codes, Unit& unit, uint32_t count) {
    const Field& field = *box.field;
    Turns at;
    at.count = count;
    at.first = minimum(unit.first, kTurns);
    at.last = minimum(unit.last, kTurns);
    at.clear();
    const bool is_whole = at.last - at.first == kTurns;
    if (at.first < at.last) {
        if (codes.from_size() == 0) {
            const uint64_t bits = value_of(field, unit);
#pragma unroll
            for (uint32_t k = 0; k < kTurns; ++k) at.set(k, bits);
        } else {
            read_turns(at, box, codes, unit, is_whole);
            auto map = map_with([&] { return affine_of(box); }, codes.is_mapped(), unit.channel, unit.channel_step);
            if (!cast_group(at, codes, map)) {
                return false;
            }
            unit.channel = map.channel;
        }
    }
    if (at.last - at.first < count) {
        const uint64_t bits = fill_of(field).lo;
#pragma unroll
        for (uint32_t k = 0; k < kTurns; ++k) if (!at.is_real(k)) at.set(k, bits);
    }
    Steps to = {unit.dst, unit.dst_step};
    switch (codes.log_to()) {
        case 0: store_turns<uint8_t>(at, to); break;
        case 1: store_turns<uint16_t>(at, to); break;
        case 2: store_turns<uint32_t>(at, to); break;
        default: store_turns<uint64_t>(at, to);
    }
    unit.dst = to.at;
    unit.src = stepped(unit.src, unit.src_step, count);
    unit.pass(count, codes.samples());
    return true;
}

/// n / d for n below 2^20: the estimate is less than 1 / (2 d) off.
WINDROW_DEVICE uint32_t quotient(uint32_t n, uint32_t d) {
#ifdef __CUDA_ARCH__
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(static_cast<float>(d)));
    return static_cast<uint32_t>((static_cast<float>(n) + 0.5f) * inverse);
#else
    return n / d;
#endif
}

/// A tile: kTurns rows of four columns, of any pair of dtypes whose result has 8 or 16 bits. An element is on its way as 32
/// bits: the lowest of a whole number, or a float32 that gives the same bits as the element, as it is rounded to odd.
struct Tile {
    static constexpr uint32_t kColumns = 4;

    uint32_t bits[kColumns][kTurns];

    /// Reads numbers of sizeof(T) bytes; `one` makes 32 bits of each.
    template <class T, class F>
    WINDROW_DEVICE void read(uint64_t src, int32_t step, const F& one) {
#pragma unroll
        for (uint32_t column = 0; column < kColumns; ++column) {
            Group at;
            load_adjacent<T>(at, src);
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i) bits[column][i] = one(at.bits_as<T>(i));
            src = stepped(src, step, 1);
        }
    }

    /// Whole numbers that stay such: `high` are the bits of those above that count, too.
    WINDROW_DEVICE void read_whole(uint64_t src, int32_t step, uint8_t from, uint32_t size, uint32_t high) {
        auto low = [](uint64_t number) { return static_cast<uint32_t>(number); };
        if (from == kI8) return read<uint8_t>(src, step, [](uint64_t number) { return static_cast<uint32_t>(static_cast<int8_t>(number)); });
        switch (size) {
            case 1: return read<uint8_t>(src, step, low);
            case 2: return read<uint16_t>(src, step, low);
            case 4: return read<uint32_t>(src, step, low);
            default: return read<uint64_t>(src, step, [&](uint64_t number) { return low(number) | (low(number >> 32) & high); });
        }
    }

    WINDROW_DEVICE void read_numbers(uint64_t src, int32_t step, uint8_t from) {
        with_number(from, [&](auto number) {
            using N = decltype(number);
            read<typename N::Bits>(src, step, [](uint64_t one) {
                if constexpr (!N::kIsWhole && sizeof(typename N::Bits) == 8) return bits_of(toward_odd(double_of(one)));
                else return bits_of(N::loose(one));
            });
        });
    }

    template <class F>
    WINDROW_DEVICE void each(const F& one) {
#pragma unroll
        for (uint32_t column = 0; column < kColumns; ++column) {
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i) bits[column][i] = one(bits[column][i]);
        }
    }

    /// Casts them; results are in the lowest bits. False, and nothing is done, if one may be a NaN that stays one.
    WINDROW_DEVICE bool cast(uint8_t to) {
        if (is_half(to)) {
            bool found = false;
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i) {
                const float sum = at(0, i) + at(1, i) + (at(2, i) + at(3, i));
                found = found || sum != sum;
            }
            if (found) return false;
        }
        if (to == kF16) {
            each_pair([](float low, float high) { return pack_f16(low, high); });
        } else if (to == kBF16) {
            each_pair([](float low, float high) { return pack_bf16(low, high); });
        } else {
            with_number(to, [&](auto number) {
                using N = decltype(number);
                if constexpr (N::kIsWhole && sizeof(typename N::Bits) <= 2) {
                    each([](uint32_t one) { return static_cast<uint32_t>(N::from(float_of(one))); });
                    if constexpr (sizeof(typename N::Bits) == 2) pair();
                }
            });
        }
        return true;
    }

    WINDROW_DEVICE float at(uint32_t column, uint32_t i) const { return float_of(bits[column][i]); }

    /// Puts two columns into words that columns 0 and 2 have then.
    template <class F>
    WINDROW_DEVICE void each_pair(const F& pack) {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) {
            bits[0][i] = pack(at(0, i), at(1, i));
            bits[2][i] = pack(at(2, i), at(3, i));
        }
    }

    /// The same of 16 bits each.
    WINDROW_DEVICE void pair() {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; ++i) {
            bits[0][i] = pair_of<2>(bits[0][i], bits[1][i]);
            bits[2][i] = pair_of<2>(bits[2][i], bits[3][i]);
        }
    }

    /// Writes the rows from `skipped` on.
    WINDROW_DEVICE void store(uint64_t dst, int32_t step, uint32_t skipped, uint32_t size) const {
        Steps to = {dst, step};
        if (size == 1) {
            store_rows(to, skipped, [&](uint8_t* p, uint32_t i) {
                store_word<uint32_t>(p, pair_of<2>(pair_of<1>(bits[0][i], bits[1][i]), pair_of<1>(bits[2][i], bits[3][i])));
            });
        } else {
            store_rows(to, skipped, [&](uint8_t* p, uint32_t i) { windrow::store(p, bits[0][i] | static_cast<uint64_t>(bits[2][i]) << 32); });
        }
    }

    template <class F>
    static WINDROW_DEVICE void store_rows(Steps& to, uint32_t skipped, const F& store_one) {
        if (skipped == 0) {
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i, to.next()) store_one(to.place(), i);
        } else {
#pragma unroll
            for (uint32_t i = 0; i < kTurns; ++i, to.next()) if (i >= skipped) store_one(to.place(), i);
        }
    }
};

/// Where a tile is, and where the elements beside the first are.
struct TilePlace {
    uint64_t src, dst;
    int32_t src_step, dst_step;  ///< of a column of the source, of a row of the output
    uint32_t skipped;            ///< rows that another tile has
};

/// Writes a tile element by element, with the NaNs of convert.cuh: floats that become floats of 16 bits.
WINDROW_DEVICE void write_tile_slowly(Codes codes, const TilePlace& place) {
#pragma unroll 1
    for (uint32_t i = place.skipped * Tile::kColumns; i < kTurns * Tile::kColumns; ++i) {
        const uint32_t row = i / Tile::kColumns, column = i % Tile::kColumns;
        const uint64_t src = stepped(place.src, place.src_step, column) + row * codes.from_size();
        const uint64_t dst = stepped(place.dst, place.dst_step, row) + 2 * column;
        const auto* p = reinterpret_cast<const uint8_t*>(src);
        const uint32_t size = codes.from_size();
        const uint64_t bits = size == 8 ? load<uint64_t>(p) : size == 4 ? load<uint32_t>(p) : load<uint16_t>(p);
        store_word<uint16_t>(reinterpret_cast<uint8_t*>(dst), static_cast<uint32_t>(convert_one(bits, codes.from(), codes.to(), {nullptr, 1}, 0)));
    }
}

/// Writes tiles of a box from an element on, down `turns` rows.
WINDROW_DEVICE void write_tiles(const Box& box, uint32_t row, uint32_t col, uint32_t turns) {
    const Field& field = *box.field;
    const Side &rows = box.rows, &cols = box.cols;
    const uint64_t src = stepped(box.src, cols.src, col), dst = reinterpret_cast<uintptr_t>(box.dst) + (col << field.log_to);
    Codes codes(field, field.strided.kind, 0);
    Tile tile;
#pragma unroll 1
    for (const uint32_t end = row + turns; row < end; row += kTurns) {
        keep(codes.word);
        // One that the end of the rows would cut off begins before, in rows that another one writes: there are enough for one.
        const uint32_t first = minimum(row, rows.count - kTurns);
        const TilePlace place = {stepped(src, rows.src, first), stepped(dst, rows.dst, first), cols.src, rows.dst, row - first};
        const uint8_t from = codes.from(), to = codes.to();
        if (codes.kind() == kWhole) {
            const bool is_flag = from != to && (from == kBool || to == kBool);
            tile.read_whole(place.src, place.src_step, from, codes.from_size(), is_flag ? ~0u : 0);
            if (is_flag) tile.each([](uint32_t one) { return uint32_t{one != 0}; });
            if (codes.log_to() == 1) tile.pair();
        } else {
            tile.read_numbers(place.src, place.src_step, from);
            if (!tile.cast(to)) {
                write_tile_slowly(codes, place);
                continue;
            }
        }
        tile.store(place.dst, place.dst_step, place.skipped, 1 << codes.log_to());
    }
}

/// Writes a round of a box.
WINDROW_DEVICE void write_box(const Box& box, uint32_t round, uint32_t lane) {
    const Field& field = *box.field;
    const Strided& strided = field.strided;
    const Side &rows = box.rows, &cols = box.cols;
    const uint32_t log_step = strided.log_step, number = round * kLanes + lane, width = cols.count >> strided.log_columns;
    uint32_t row = quotient(number, width);
    const uint32_t col = number - row * width << strided.log_columns;
    Unit unit;
    if (strided.lane_rows != 0) {
        row *= strided.lane_rows;
        unit.turns = minimum(turns_below(rows.count, row, 0), strided.lane_rows);
        if (strided.log_columns != 0) return write_tiles(box, row, col, unit.turns);
    } else {
        if (row >> log_step != 0) return;
        unit.turns = turns_below(rows.count, row, log_step);
    }
    unit.first = unit.last = 0;
    if (col >= cols.lo && col < cols.hi) {
        unit.last = minimum(turns_below(rows.hi, row, log_step), unit.turns);
        unit.first = minimum(turns_below(rows.lo, row, log_step), unit.last);
    }
    unit.src = stepped(stepped(box.src, rows.src, row), cols.src, col);
    unit.dst = stepped(stepped(reinterpret_cast<uintptr_t>(box.dst), rows.dst, row), cols.dst, col);
    unit.src_step = rows.src * (1 << log_step);
    unit.dst_step = rows.dst * (1 << log_step);
    unit.sample = box.number + (box.is_list ? row : 0);
    unit.channel = unit.channel_step = 0;
    if (field.op == kAffine) {
        // The channels of the first kTurns elements that are not all padding, and of what follows.
        auto modulo = [&](uint32_t channel) { return channel - divide(channel, strided.nest.by_channels) * strided.nest.channels; };
        const uint32_t down = row + ((unit.first & ~(kTurns - 1)) << log_step);
        unit.channel = modulo(box.channel + down * rows.channel + col * cols.channel);
        unit.channel_step = modulo(rows.channel << log_step);
    }
    const uint32_t size = field.from_size;
    const bool is_adjacent = unit.src_step == static_cast<int32_t>(size) && !box.is_list;
    BoxCodes codes(field, box.is_list, is_adjacent, is_adjacent && (unit.src & (vector_of(size) - 1)) == 0);
#pragma unroll 1
    while (unit.turns > 0) {
        keep(codes.word);
        // A single one takes less by itself.
        const uint32_t count = minimum(unit.turns, kTurns);
        if (count == 1 || codes.kind() == kSlow || !write_quickly(box, codes, unit, count)) write_slowly(box, codes, unit, count);
    }
}

}  // namespace windrow
