// Tiles of family strided: eight rows of four columns of a transposed source, whose results have 8 or 16 bits. A lane reads a
// column as vectors and writes four elements of a row by one store.
//
// The problem: elements of a column are adjacent in the source, those of a row in the output. A lane with elements of one column
// reads them by vectors, but stores each by itself, and an element of 8 or 16 bits is a small part of a word.
//
//     source    c0: x00 x10 x20 ... x70 | c1: x01 x11 ... x71 | c2 | c3      each column by loads of 4, 8 or 16 bytes
//     bits      4 columns of 8 registers: whole numbers, or float32 rounded to odd; cast where they are
//     output    r0: x00 x01 x02 x03    one store of 4 or 8 bytes, then r1 ... r7
//
//     write_tiles:  down the rows of a lane, 8 at a time; the last one begins before the end, in rows of another one
//                   read_whole or read_numbers by one switch, cast by another, for 32 elements; pairs of columns by byte permutes
//                   a NaN that stays one: element by element
//
// Elements of a column would be simpler: float64 to int16 takes 408 thread instructions for 16 bytes by them and 203 by tiles,
// uint8 317 and 141 (sm_90). Tiles of two columns for 16 bits took 167 in place of 133 from float32 to bfloat16.
#pragma once

#include "box.cuh"
#include "group.cuh"

namespace windrow {

/// Elements of a lane that are under way together.
constexpr uint32_t kItemsPerThread = kGroup;

/// Elements `step` bytes apart, one after the other, as a product for each takes more.
struct Steps {
    static constexpr uint32_t kPart = kItemsPerThread;

    uint64_t at;
    int32_t step;

    WINDROW_DEVICE uint8_t* place() const { return reinterpret_cast<uint8_t*>(at); }
    WINDROW_DEVICE void next() { at = stepped(at, step, 1); }
};

/// The bytes of which the address of adjacent elements is a multiple if they are read as vectors: 4, 8 or, from 4 bytes on, 16.
WINDROW_DEVICE constexpr uint32_t vector_of(uint32_t size) { return size == 1 ? 4 : size == 2 ? 8 : 16; }

/// Reads adjacent elements of sizeof(T) bytes as vectors of kBytes.
template <class T, uint32_t kBytes>
WINDROW_DEVICE void load_vectors(Group& at, uint64_t src) {
    constexpr uint32_t kEach = kBytes / sizeof(T);
    using Word = typename WordOf<kBytes>::Type;
#pragma unroll
    for (uint32_t first = 0; first < kItemsPerThread; first += kEach) {
        uint32_t words[kBytes / 4];
        load_words<Word>(reinterpret_cast<const uint8_t*>(src) + first * sizeof(T), words);
#pragma unroll
        for (uint32_t i = 0; i < kEach; ++i) at.set_as<T>(first + i, element_of<sizeof(T)>(words, i));
    }
}

/// Reads adjacent elements by the loads of vector_of(); of single bytes by one load where their address allows it.
template <class T>
WINDROW_DEVICE void load_adjacent(Group& at, uint64_t src) {
    if constexpr (sizeof(T) == 1) {
        if (src % kItemsPerThread == 0) return load_vectors<T, kItemsPerThread>(at, src);
    }
    load_vectors<T, vector_of(sizeof(T))>(at, src);
}

/// A tile: kItemsPerThread rows of four columns, of any pair of dtypes but float8 whose result has 8 or 16 bits. An element is on its way as 32
/// bits: the lowest of a whole number, or a float32 that gives the same bits as the element, as it is rounded to odd.
struct Tile {
    static constexpr uint32_t kColumns = 4;

    uint32_t bits[kColumns][kItemsPerThread];

    /// Reads numbers of sizeof(T) bytes, `step` bytes from column to column; `one` makes 32 bits of each.
    template <class T, class F>
    WINDROW_DEVICE void read(uint64_t src, int32_t step, const F& one) {
#pragma unroll
        for (uint32_t column = 0; column < kColumns; ++column) {
            Group at;
            load_adjacent<T>(at, src);
#pragma unroll
            for (uint32_t i = 0; i < kItemsPerThread; ++i) bits[column][i] = one(at.bits_as<T>(i));
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

    /// Reads numbers that go through float32.
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
            for (uint32_t i = 0; i < kItemsPerThread; ++i) bits[column][i] = one(bits[column][i]);
        }
    }

    /// Casts numbers; results are in the lowest bits, of 16 bits in pairs. False, and nothing is done, if one may be a NaN that
    /// stays one.
    WINDROW_DEVICE bool cast(uint8_t to) {
        if (is_half(to)) {
            bool found = false;
#pragma unroll
            for (uint32_t i = 0; i < kItemsPerThread; ++i) {
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
        for (uint32_t i = 0; i < kItemsPerThread; ++i) {
            bits[0][i] = pack(at(0, i), at(1, i));
            bits[2][i] = pack(at(2, i), at(3, i));
        }
    }

    /// The same of 16 bits each.
    WINDROW_DEVICE void pair() {
#pragma unroll
        for (uint32_t i = 0; i < kItemsPerThread; ++i) {
            bits[0][i] = pair_of<2>(bits[0][i], bits[1][i]);
            bits[2][i] = pair_of<2>(bits[2][i], bits[3][i]);
        }
    }

    /// Writes the rows from `skipped` on; `dst` is the address of row 0.
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
            for (uint32_t i = 0; i < kItemsPerThread; ++i, to.next()) store_one(to.place(), i);
        } else {
#pragma unroll
            for (uint32_t i = 0; i < kItemsPerThread; ++i, to.next()) if (i >= skipped) store_one(to.place(), i);
        }
    }
};

/// The position of a tile, and the steps to the elements beside its first.
struct TilePlace {
    uint64_t src, dst;
    int32_t src_step, dst_step;  ///< bytes from column to column of the source, from row to row of the output
    uint32_t skipped;            ///< rows that another tile has
};

/// Writes a tile element by element, with the NaNs of convert.cuh: floats that become floats of 16 bits.
WINDROW_DEVICE void write_tile_slowly(Codes codes, const TilePlace& place) {
#pragma unroll 1
    for (uint32_t i = place.skipped * Tile::kColumns; i < kItemsPerThread * Tile::kColumns; ++i) {
        const uint32_t row = i / Tile::kColumns, column = i % Tile::kColumns;
        const uint64_t src = stepped(place.src, place.src_step, column) + row * codes.from_size();
        const uint64_t dst = stepped(place.dst, place.dst_step, row) + 2 * column;
        const auto* p = reinterpret_cast<const uint8_t*>(src);
        const uint32_t size = codes.from_size();
        const uint64_t bits = size == 8 ? load<uint64_t>(p) : size == 4 ? load<uint32_t>(p) : load<uint16_t>(p);
        store_word<uint16_t>(reinterpret_cast<uint8_t*>(dst), static_cast<uint32_t>(convert_one(bits, codes.from(), codes.to(), {nullptr, 1}, 0)));
    }
}

/// Writes tiles of a box from an element on, down `turns` rows. The box has kItemsPerThread rows at least.
WINDROW_DEVICE void write_tiles(const Box& box, uint32_t row, uint32_t col, uint32_t turns) {
    const OutputDesc& desc = *box.desc;
    const BoxAxis &rows = box.rows, &cols = box.cols;
    const uint64_t src = stepped(box.src, cols.src, col), dst = reinterpret_cast<uintptr_t>(box.dst) + (col << desc.log_to);
    Codes codes(desc, desc.strided.kind, 0);
    Tile tile;
#pragma unroll 1
    for (const uint32_t end = row + turns; row < end; row += kItemsPerThread) {
        opaque(codes.word);
        // One that the end of the rows would cut off begins before, in rows that another one writes: there are enough for one.
        const uint32_t first = minimum(row, rows.count - kItemsPerThread);
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

}  // namespace windrow
