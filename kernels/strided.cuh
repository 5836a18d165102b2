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
#include "group.cuh"

namespace windrow {

/// Elements of a lane that are under way together.
constexpr uint32_t kTurns = kGroup;

/// What a lane has yet to write of a box: `turns` elements, of which [first, last) are real. Addresses are numbers, as
/// those of padding may be none. What else there is to know is read from the field again.
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
    WINDROW_DEVICE BoxCodes(const Field& field, bool is_list, bool is_adjacent) : Codes(field) {
        set(0, is_adjacent);
        set(1, is_list);
        set(2, field.op == kAffine);
    }
    /// Elements of a lane are read as vectors.
    WINDROW_DEVICE bool is_adjacent() const { return is(0); }
    WINDROW_DEVICE bool is_list() const { return is(1); }
    WINDROW_DEVICE bool is_mapped() const { return is(2); }
    /// Rows of a list from one element of a lane to its next, else 0.
    WINDROW_DEVICE uint32_t samples() const { return uint32_t{is_list()} << log_step(); }
};

/// Where an element of a list is, `turn` elements of the lane on.
WINDROW_DEVICE const uint8_t* listed_source(const Box& box, const Unit& unit, uint32_t turn) {
    return source_of(box.table, *box.field, unit.sample + (turn << box.field->log_step)) + unit.src;
}

/// Elements of a lane, of which `count` are written and [first, last) are real.
struct Turns : Group {
    uint32_t count, first, last;

    WINDROW_DEVICE bool is_real(uint32_t i) const { return i - first < last - first; }
};

/// Where a lane's elements are: one after the other, as a product for each takes more.
struct Steps {
    /// Elements that are read of a group that is not whole, at most.
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
WINDROW_DEVICE constexpr uint32_t vector_of(uint32_t size) { return size == 1 ? 8 : 16; }

/// Reads adjacent elements of sizeof(T) bytes as vectors.
template <class T>
WINDROW_DEVICE void load_adjacent(Turns& at, uint64_t src) {
    constexpr uint32_t kEach = vector_of(sizeof(T)) / sizeof(T);
#pragma unroll
    for (uint32_t first = 0; first < kTurns; first += kEach) {
        const uint8_t* p = reinterpret_cast<const uint8_t*>(src) + first * sizeof(T);
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

WINDROW_DEVICE Affine affine_of(const Box& box) { return {at<uint8_t>(box.table, box.field->affine), box.field->channels}; }

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
                    if (field.op == kRaise) bits.lo += at<uint64_t>(box.table, field.affine)[unit.sample];
                }
            }
        }
        // That of kTurns elements that are padding stays.
        if (codes.is_mapped() && unit.last > 0 && unit.first + i < kTurns) unit.channel = next_channel(unit.channel, unit.channel_step, field.channels);
        uint8_t* dst = reinterpret_cast<uint8_t*>(unit.dst);
        store_elements(dst, bits, field.to_size, 0, 1, field.to_size < 16 && misalignment(dst, field.to_size) == 0);
        unit.src = stepped(unit.src, unit.src_step, 1);
        unit.dst = stepped(unit.dst, unit.dst_step, 1);
        unit.pass(1, codes.samples());
    }
}

/// The elements that are read, by loads of their size. `unit.src` is that of the next ones then.
WINDROW_DEVICE void read_turns(Turns& at, const Box& box, BoxCodes codes, const Unit& unit, bool is_whole) {
    if (codes.is_adjacent() && is_whole) {
        switch (codes.from_size()) {
            case 1: load_adjacent<uint8_t>(at, unit.src); break;
            case 2: load_adjacent<uint16_t>(at, unit.src); break;
            case 4: load_adjacent<uint32_t>(at, unit.src); break;
            default: load_adjacent<uint64_t>(at, unit.src);
        }
        return;
    }
    auto load = [&](auto& from) {
        switch (codes.from_size()) {
            case 1: return load_turns<uint8_t>(at, is_whole, from);
            case 2: return load_turns<uint16_t>(at, is_whole, from);
            case 4: return load_turns<uint32_t>(at, is_whole, from);
            default: return load_turns<uint64_t>(at, is_whole, from);
        }
    };
    if (codes.is_list()) {
        ListSteps from = {box, unit, 0};
        load(from);
    } else {
        Steps from = {unit.src, unit.src_step};
        load(from);
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
    unit.src = stepped(stepped(box.src, rows.src, row), cols.src, col);
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
    const uint32_t size = field.from_size;
    const bool is_adjacent = unit.src_step == static_cast<int32_t>(size) && (unit.src & (vector_of(size) - 1)) == 0;
    BoxCodes codes(field, box.is_list, is_adjacent && !box.is_list);
#pragma unroll 1
    while (unit.turns > 0) {
        keep(codes.word);
        // A single one takes less by itself.
        const uint32_t count = minimum(unit.turns, kTurns);
        if (count == 1 || codes.kind() == kSlow || !write_quickly(box, codes, unit, count)) write_slowly(box, codes, unit, count);
    }
}

}  // namespace windrow
