// Family strided: whatever no other family takes. Elements any number of bytes apart on either side, in any
// order of the loops, of any pair of dtypes, with padding on all sides.
//
// The problem: to find its field and its box takes a warp some 290 instructions, and the dtypes have to be told apart. So an item
// has many elements, several of whose loads are under way together, and neighbouring lanes share sectors of memory.
//
// A box is two loops of a sample, or one loop of many small samples. Its elements are dealt to lanes row by row, so
// that neighbouring lanes write neighbouring elements; a lane then goes down the rows, 2^log_step at a time,
// kItemsPerThread elements at once. If 2^log_step rows have more than 32 elements, each 32 of them are an item of their
// own, a round: nothing of the box lives while it is written.
//
//     box of 8 columns, log_step 2: one round          box of 20 columns, log_step 3: 160 elements, 5 rounds
//            c0   c1  ...  c7                                 c0   c1  ...  c11  c12  ...  c19
//     r0     L0   L1       L7                          r0     L0   L1       L11  L12       L19    round 0: r0 c0 to r1 c11
//     r1     L8   L9       L15                         r1     L20  L21      L31 |L0        L7     round 1: r1 c12 to r3 c3
//     r2     L16  L17      L23                         ...
//     r3     L24  L25      L31                         r8     as r0: the next turn of the same lanes
//     r4     L0   L1       L7     the next turn
//
//     write_box:   the lane's first element, how many turns it has, and which of them are real
//                  with tiles: write_tiles
//                  else up to 8 turns at once: load what is real, cast it, put padding beside it, store
//                  a turn alone, elements of kSlow, NaNs that stay such and the like: one by one
//
// If the source is transposed, a lane has adjacent rows, whose elements are adjacent in the source, so that both sides are
// touched in whole sectors. Results of 8 and 16 bits are made by tiles of four columns: tile.cuh.
//
// Items of few elements would be simpler. When boxes of few columns got more rows, and read their field from the table, the
// dearest order of dims went from 3430 thread instructions for 16 bytes to 747. With tiles float64 to int16, transposed, takes
// 203 in place of 408 on sm_90.
#pragma once

#include "box.cuh"
#include "tile.cuh"

namespace windrow {

/// The elements that a lane has yet to write of a column: `turns` of them, of which [first, last) are real. Addresses are numbers, as
/// those of padding may be none. All other properties are read from the descriptor again.
struct LaneCursor {
    uint64_t src;  ///< address of the first; of a list: bytes from the begin of each sample
    uint64_t dst;
    int32_t src_step, dst_step;
    uint32_t turns, first, last;
    uint32_t sample;  ///< its number; of a list that of the first element
    uint32_t channel, channel_step;

    /// Counts off elements whose addresses and channels have been passed already. `samples`: from one element of a list to the next.
    WINDROW_DEVICE void pass(uint32_t count, uint32_t samples) {
        turns -= count;
        first -= minimum(first, count);
        last -= minimum(last, count);
        sample += samples * count;
    }
};

/// Codes of a box.
struct BoxCodes : Codes {
    WINDROW_DEVICE BoxCodes(const OutputDesc& desc, bool is_list, bool is_adjacent, bool is_vector)
        : Codes(desc, desc.strided.kind, desc.strided.log_step) {
        set(0, is_adjacent);
        set(1, is_list);
        set(2, desc.op == kAffine);
        set(3, is_vector);
    }
    /// Whether elements of a lane are adjacent in the source.
    WINDROW_DEVICE bool is_adjacent() const { return is(0); }
    WINDROW_DEVICE bool is_list() const { return is(1); }
    WINDROW_DEVICE bool is_mapped() const { return is(2); }
    /// Whether elements of a lane are read as vectors, if all of them are there.
    WINDROW_DEVICE bool is_vector() const { return is(3); }
    /// Rows of a list from one element of a lane to its next, else 0.
    WINDROW_DEVICE uint32_t samples() const { return uint32_t{is_list()} << log_step(); }
};

/// The address of an element of a list, `turn` elements of the lane on: `cursor.src` bytes into its sample.
WINDROW_DEVICE const uint8_t* listed_source(const Box& box, const LaneCursor& cursor, uint32_t turn) {
    return source_of(box.table, *box.desc, cursor.sample + (turn << box.desc->strided.log_step)) + cursor.src;
}

/// Elements of a lane, of which `count` are written and [first, last) are real.
struct Turns : Group {
    uint32_t count, first, last;

    WINDROW_DEVICE bool is_real(uint32_t i) const { return i - first < last - first; }
};

/// Sources of a lane's elements that are adjacent.
template <class T>
struct Adjacent {
    /// Elements that are read of a group that is not whole, at most.
    static constexpr uint32_t kPart = kItemsPerThread;

    const uint8_t* at;

    WINDROW_DEVICE const uint8_t* place() const { return at; }
    WINDROW_DEVICE void next() { at += sizeof(T); }
};

/// Sources of a lane's elements of a list.
struct ListSteps {
    /// One less: none is behind padding.
    static constexpr uint32_t kPart = kItemsPerThread - 1;

    const Box& box;
    const LaneCursor& cursor;
    uint32_t turn;

    WINDROW_DEVICE const uint8_t* place() const { return listed_source(box, cursor, turn); }
    WINDROW_DEVICE void next() { ++turn; }
};

/// Reads those elements of sizeof(T) bytes that are real, all of them if `is_whole`; `lo` of the others is 0.
template <class T, class S>
WINDROW_DEVICE void load_turns(Turns& at, bool is_whole, S& from) {
    if (is_whole) {
#pragma unroll
        for (uint32_t i = 0; i < kItemsPerThread; ++i, from.next()) at.set_as<T>(i, load_word<T>(from.place()));
    } else {
#pragma unroll
        for (uint32_t i = 0; i < kItemsPerThread; ++i, from.next()) {
            at.lo[i] = 0;
            if (i < S::kPart && at.is_real(i)) at.set_as<T>(i, load_word<T>(from.place()));
        }
    }
}

/// Writes the first `count` elements, of sizeof(T) bytes; `to` goes on by kItemsPerThread whatever `count` is.
template <class T>
WINDROW_DEVICE void store_turns(const Turns& at, Steps& to) {
    auto store_one = [&](uint32_t i) {
        if constexpr (sizeof(T) == 8) store(to.place(), at.bits(i));
        else store_word<T>(to.place(), at.lo[i]);
    };
    const bool is_whole = at.count == kItemsPerThread;
    if (is_whole) {
#pragma unroll
        for (uint32_t i = 0; i < kItemsPerThread; ++i, to.next()) store_one(i);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < kItemsPerThread; ++i, to.next()) if (i < at.count) store_one(i);
    }
}

/// The map of a box of op kAffine.
WINDROW_DEVICE Affine affine_of(const Box& box) { return {at<uint8_t>(box.table, box.desc->nest.affine), box.desc->nest.channels}; }

/// How many of the turns from coordinate `t` on, 2^log_step apart, are below `end`.
WINDROW_DEVICE uint32_t turns_below(uint32_t end, uint32_t t, uint32_t log_step) {
    return end > t ? (end - t + (1u << log_step) - 1) >> log_step : 0;
}

/// The bits of a real element without a source: the constant, or the number of its sample. Padding has those of fill_of.
WINDROW_DEVICE uint64_t value_of(const OutputDesc& desc, const LaneCursor& cursor) { return desc.op == kConst ? desc.value : cursor.sample; }

/// Writes the next `count` elements, at most kItemsPerThread, and passes them: one by one, at any address, of 16 bytes, with
/// NaNs or with an increment.
WINDROW_DEVICE void write_slowly(const Box& box, BoxCodes codes, LaneCursor& cursor, uint32_t count) {
    const OutputDesc& desc = *box.desc;
#pragma unroll 1
    for (uint32_t i = 0; i < count; ++i) {
        Vec16 bits = fill_of(desc);
        if (cursor.first == 0 && cursor.last > 0) {
            bits = {value_of(desc, cursor), 0};
            if (desc.from_size != 0) {
                const auto* src = codes.is_list() ? listed_source(box, cursor, 0) : reinterpret_cast<const uint8_t*>(cursor.src);
                bits = read_bytes(src, desc.from_size);
                if (codes.is_mapped() || desc.from != desc.to) {
                    const Affine map = codes.is_mapped() ? affine_of(box) : Affine{nullptr, 1};
                    if (desc.from != kMoved) bits.lo = convert_one(bits.lo, desc.from, desc.to, map, cursor.channel);
                    if (desc.op == kAddPerSample) bits.lo += at<uint64_t>(box.table, desc.nest.affine)[cursor.sample];
                }
            }
        }
        // The value of elements that are padding stays as it is.
        if (codes.is_mapped() && cursor.last > 0 && cursor.first + i < kItemsPerThread) {
            cursor.channel = next_channel(cursor.channel, cursor.channel_step, desc.nest.channels);
        }
        uint8_t* dst = reinterpret_cast<uint8_t*>(cursor.dst);
        store_elements(dst, bits, desc.to_size, 0, 1, desc.to_size < 16 && misalignment(dst, desc.to_size) == 0);
        cursor.src = stepped(cursor.src, cursor.src_step, 1);
        cursor.dst = stepped(cursor.dst, cursor.dst_step, 1);
        cursor.pass(1, codes.samples());
    }
}

/// Reads the elements that are real, by loads of their size or by vectors.
WINDROW_DEVICE void read_turns(Turns& at, const Box& box, BoxCodes codes, const LaneCursor& cursor, bool is_whole) {
    const uint64_t src = cursor.src;
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
        load([&](auto) { return ListSteps{box, cursor, 0}; });
    } else if (codes.is_adjacent()) {
        load([&](auto word) { return Adjacent<decltype(word)>{reinterpret_cast<const uint8_t*>(src)}; });
    } else {
        load([&](auto) { return Steps{src, cursor.src_step}; });
    }
}

/// Writes the next `count` elements together, at most kItemsPerThread, and passes them. The kind is not kSlow. False, and nothing is
/// written or passed, if the cast has to go one by one.
WINDROW_DEVICE bool write_quickly(const Box& box, BoxCodes codes, LaneCursor& cursor, uint32_t count) {
    const OutputDesc& desc = *box.desc;
    Turns at;
    at.count = count;
    at.first = minimum(cursor.first, kItemsPerThread);
    at.last = minimum(cursor.last, kItemsPerThread);
    at.clear();
    const bool is_whole = at.last - at.first == kItemsPerThread;
    if (at.first < at.last) {
        if (codes.from_size() == 0) {
            const uint64_t bits = value_of(desc, cursor);
#pragma unroll
            for (uint32_t k = 0; k < kItemsPerThread; ++k) at.set(k, bits);
        } else {
            read_turns(at, box, codes, cursor, is_whole);
            auto map = map_with([&] { return affine_of(box); }, codes.is_mapped(), cursor.channel, cursor.channel_step);
            if (!cast_group(at, codes, map)) {
                return false;
            }
            cursor.channel = map.channel;
        }
    }
    if (at.last - at.first < count) {
        const uint64_t bits = fill_of(desc).lo;
#pragma unroll
        for (uint32_t k = 0; k < kItemsPerThread; ++k) if (!at.is_real(k)) at.set(k, bits);
    }
    Steps to = {cursor.dst, cursor.dst_step};
    switch (codes.log_to()) {
        case 0: store_turns<uint8_t>(at, to); break;
        case 1: store_turns<uint16_t>(at, to); break;
        case 2: store_turns<uint32_t>(at, to); break;
        default: store_turns<uint64_t>(at, to);
    }
    cursor.dst = to.at;
    cursor.src = stepped(cursor.src, cursor.src_step, count);
    cursor.pass(count, codes.samples());
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

/// Writes this lane's elements of a round of a box.
WINDROW_DEVICE void write_box(const Box& box, uint32_t round, uint32_t lane) {
    const OutputDesc& desc = *box.desc;
    const Strided& strided = desc.strided;
    const BoxAxis &rows = box.rows, &cols = box.cols;
    const uint32_t log_step = strided.log_step, number = round * kLanes + lane, width = cols.count >> strided.log_columns;
    uint32_t row = quotient(number, width);
    const uint32_t col = number - row * width << strided.log_columns;
    LaneCursor cursor;
    if (strided.lane_rows != 0) {
        row *= strided.lane_rows;
        cursor.turns = minimum(turns_below(rows.count, row, 0), strided.lane_rows);
        if (strided.log_columns != 0) return write_tiles(box, row, col, cursor.turns);
    } else {
        if (row >> log_step != 0) return;
        cursor.turns = turns_below(rows.count, row, log_step);
    }
    cursor.first = cursor.last = 0;
    if (col >= cols.lo && col < cols.hi) {
        cursor.last = minimum(turns_below(rows.hi, row, log_step), cursor.turns);
        cursor.first = minimum(turns_below(rows.lo, row, log_step), cursor.last);
    }
    cursor.src = stepped(stepped(box.src, rows.src, row), cols.src, col);
    cursor.dst = stepped(stepped(reinterpret_cast<uintptr_t>(box.dst), rows.dst, row), cols.dst, col);
    cursor.src_step = rows.src * (1 << log_step);
    cursor.dst_step = rows.dst * (1 << log_step);
    cursor.sample = box.number + (box.is_list ? row : 0);
    cursor.channel = cursor.channel_step = 0;
    if (desc.op == kAffine) {
        // The channels of the first kItemsPerThread elements that are not all padding, and of what follows.
        auto modulo = [&](uint32_t channel) { return channel - divide(channel, strided.nest.by_channels) * strided.nest.channels; };
        const uint32_t down = row + ((cursor.first & ~(kItemsPerThread - 1)) << log_step);
        cursor.channel = modulo(box.channel + down * rows.channel + col * cols.channel);
        cursor.channel_step = modulo(rows.channel << log_step);
    }
    const uint32_t size = desc.from_size;
    const bool is_adjacent = cursor.src_step == static_cast<int32_t>(size) && !box.is_list;
    BoxCodes codes(desc, box.is_list, is_adjacent, is_adjacent && (cursor.src & (vector_of(size) - 1)) == 0);
#pragma unroll 1
    while (cursor.turns > 0) {
        opaque(codes.word);
        // The scalar loop is cheaper for one element.
        const uint32_t count = minimum(cursor.turns, kItemsPerThread);
        if (count == 1 || codes.kind() == kSlow || !write_quickly(box, codes, cursor, count)) write_slowly(box, codes, cursor, count);
    }
}

}  // namespace windrow
