// Families contiguous_cast and contiguous_generic: runs of elements that are adjacent in the source and in the output, moved or
// cast, with padding on both sides (stack, pad, ragged, masks). Source and output may have any alignment.
//
// A run is cut into vectors of 16 bytes and single elements by the sizes of its elements alone. The single elements,
// which are few, go through the one conversion for all dtypes; only the loops over vectors are compiled for their pair
// of dtypes. The loop of contiguous_generic is for all pairs that have none of their own.
#pragma once

#include "group.cuh"
#include "vector_io.cuh"
#include "windows.cuh"

namespace windrow {

/// Elements in a row: [0, lead) are padding, [lead, lead + real) are read, the rest of `width` is padding.
struct Run {
    const uint8_t* src;  ///< address of the first element read
    uint8_t* dst;
    uint32_t lead, real, width;
    uint32_t before;     ///< readable bytes of the sample in front of `src`, cut off at 16 or more
    uint32_t after;      ///< the same behind the last element read
};

/// The operation on the elements that are read.
struct RunCast {
    uint32_t from, to;
    uint32_t loop;       ///< loop of the vectors: cast_number(), kMovedLoop, kAddLoop32 or kAddLoop64
    uint32_t from_size;  ///< bytes; 0: nothing is read, and the elements are `value`
    uint32_t to_size, log_to;
    Affine affine;       ///< map of one channel; kAddPerSample: address of the number
    uint64_t value;
    Codes codes;         ///< codes of any pair of dtypes: all of it but the map
    bool is_mixed;       ///< rows that share a warp may be aligned or not, which would go through two loops, one after the other
};

/// Vectors of a lane whose loads are under way together: 64 bytes of the source, or 32 where a vector may be made
/// twice or the cast is rare, for the sake of the code's size.
template <class Cast, uint32_t words>
constexpr uint32_t kUnroll = words > 8 ? 1 : words > 4 || !Cast::kIsCommon || (words == 4 && Cast::kTo == 2) ? 2 : 4;

/// Moves 16 bytes.
struct Bytes {
    static constexpr uint32_t kFrom = 1, kTo = 1;
    static constexpr bool kIsCommon = true;
    WINDROW_DEVICE void vector(const uint32_t (&in)[4], uint32_t (&out)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[i] = in[i];
    }
};

/// Vectors [0, count) of a run, the first from `src` to `dst`, which is a multiple of 16. The turns begin with the
/// sector or, of long runs, the line of the cache that the first is in: stores touch as few as may be.
template <Alignment alignment, class Cast>
WINDROW_DEVICE void run_vectors(const Cast& cast, const uint8_t* src, uint8_t* dst, uint32_t count, const ThreadGroup& threads) {
    constexpr uint32_t kBytes = 16 / Cast::kTo * Cast::kFrom, kWords = (kBytes + 3) / 4, kMany = kUnroll<Cast, kWords>;
    const auto first = static_cast<int32_t>(threads.first(kMany) - first_turn(dst, threads)), step = static_cast<int32_t>(threads.step(kMany));
    Windows<alignment, kBytes> windows(src + int64_t{first} * kBytes);
    dst += int64_t{first} * 16;
    int32_t before = -first;
#pragma unroll 1
    for (int32_t left = static_cast<int32_t>(count) - first; left > 0; left -= step) {
        uint32_t in[kMany][kWords];
#pragma unroll
        for (uint32_t i = 0; i < kMany; ++i) {
            if (i == 0) windows.read_if(0, before - 1, 0, in[i]);
            else windows.read_if(left, static_cast<int32_t>(kGroupLanes * i), kGroupLanes * kBytes * i, in[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < kMany; ++i) {
            uint32_t out[4];
            cast.vector(in[i], out);
            if (i == 0) {
                store_words(0, before - 1, dst, out);
            } else {
                store_words(left, static_cast<int32_t>(kGroupLanes * i), dst + kGroupLanes * 16 * i, out);
            }
        }
        before = 0;
        windows.advance(int64_t{step} * kBytes);
        dst += int64_t{step} * 16;
    }
}

/// Writes vectors [0, count) of a run by the loop for its alignment, which is that of all lanes.
template <class Cast>
WINDROW_DEVICE void run_vectors(const Cast& cast, bool is_aligned, const uint8_t* src, uint8_t* dst, uint32_t count, const ThreadGroup& threads) {
    if (Cast::kIsCommon && is_aligned) {
        // The common prologue is in both loops on purpose: registers for all of it are dearer.
        ThreadGroup same = threads;
        opaque(same.rank);
        run_vectors<kAligned>(cast, src, dst, count, same);
    } else {
        run_vectors<kMisaligned>(cast, src, dst, count, threads);
    }
}

/// Reads the vectors of a group of elements of type From, `elems` of them in each, 8 vectors apart.
/// The first is there if `before` is 0 or less, another if `left` is more than the number of
/// vectors from the first to it; the elements of others have any value.
template <class From, uint32_t elems, Alignment alignment>
WINDROW_DEVICE void load_group(Group& group, const uint8_t* src, int32_t before, int32_t left) {
    constexpr uint32_t kBytes = elems * sizeof(From);
    const Windows<alignment, kBytes> windows(src);
#pragma unroll
    for (uint32_t v = 0; v < kGroup / elems; ++v) {
        uint32_t in[(kBytes + 3) / 4];
        if (v == 0) windows.read_if(0, before - 1, 0, in);
        else windows.read_if(left, static_cast<int32_t>(kGroupLanes * v), kGroupLanes * kBytes * v, in);
#pragma unroll
        for (uint32_t i = 0; i < elems; ++i) group.set_as<From>(v * elems + i, element_of<sizeof(From)>(in, i));
    }
}

/// Reads the vectors of a group by the size of an element, 1, 2, 4 or 8 bytes, and the alignment.
template <uint32_t elems>
WINDROW_DEVICE void load_group(Group& group, uint32_t from_size, bool is_aligned, const uint8_t* src, int32_t before, int32_t left) {
    auto load = [&](auto element) {
        if (is_aligned) load_group<decltype(element), elems, kAligned>(group, src, before, left);
        else load_group<decltype(element), elems, kMisaligned>(group, src, before, left);
    };
    switch (from_size) {
        case 1: return load(uint8_t{});
        case 2: return load(uint16_t{});
        case 4: return load(uint32_t{});
        default: return load(uint64_t{});
    }
}

/// Writes the vectors of a group, whose elements have sizeof(To) bytes; those that load_group() would read.
template <class To>
WINDROW_DEVICE void store_group(const Group& group, uint8_t* dst, int32_t before, int32_t left) {
    if constexpr (sizeof(To) == 1) {
        if (before > 0) return;
        auto word = [&](uint32_t i) {
            const uint32_t low = pair_of<1>(group.lo[i], group.lo[i + 1]), high = pair_of<1>(group.lo[i + 2], group.lo[i + 3]);
            return pair_of<2>(low, high);
        };
        store(dst, word(0) | static_cast<uint64_t>(word(4)) << 32);
    } else {
        constexpr uint32_t kElems = 16 / sizeof(To);
#pragma unroll
        for (uint32_t v = 0; v < kGroup / kElems; ++v) {
            uint32_t out[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; ++i) {
                const uint32_t at = v * kElems + i * 4 / sizeof(To);
                out[i] = sizeof(To) == 2 ? pair_of<2>(group.lo[at], group.lo[at + (sizeof(To) == 2)]) : sizeof(To) == 8 && i % 2 ? group.hi[at] : group.lo[at];
            }
            if (v == 0) store_words(0, before - 1, dst, out);
            else store_words(left, static_cast<int32_t>(kGroupLanes * v), dst + kGroupLanes * 16 * v, out);
        }
    }
}

/// Elements of each vector of a group.
WINDROW_DEVICE uint32_t elems_of(Codes codes) { return minimum(kGroup, 16 >> codes.log_to()); }

/// Reads, casts and writes a group element by element, with the NaNs of convert.cuh.
WINDROW_DEVICE void write_group_slowly(Codes codes, const Affine& map, const uint8_t* src, uint8_t* dst, int32_t before, int32_t left) {
    const uint32_t elems = elems_of(codes);
#pragma unroll 1
    for (uint32_t i = 0; i < kGroup; ++i) {
        const uint32_t vector = i / elems * kGroupLanes, at = vector * elems + i % elems;
        if (vector == 0 ? before > 0 : left <= static_cast<int32_t>(vector)) continue;
        const uint64_t bits = read_element(src + at * codes.from_size(), codes.from_size());
        write_element(dst + (at << codes.log_to()), convert_one(bits, codes.from(), codes.result(), map, 0), 1 << codes.log_to());
    }
}

/// `count` times 16 bytes of a run of any pair of dtypes, in groups of kGroup elements: in turns as run_vectors(). Vectors of
/// elements of one byte have 8 bytes.
WINDROW_DEVICE void run_groups(Codes codes, bool is_aligned, const Affine& affine, const uint8_t* src, uint8_t* dst, uint32_t count, const ThreadGroup& threads) {
    const uint32_t elems = elems_of(codes), many = kGroup / elems, bytes = elems << codes.log_to();
    const auto first = static_cast<int32_t>(threads.first(many) - first_turn(dst, threads) * 16 / bytes), step = static_cast<int32_t>(threads.step(many));
    src += int64_t{first} * static_cast<int32_t>(elems * codes.from_size());
    dst += int64_t{first} * static_cast<int32_t>(bytes);
    int32_t before = -first;
    codes.set(0, is_aligned);
#pragma unroll 1
    for (int32_t left = static_cast<int32_t>(count * 16 / bytes) - first; left > 0; left -= step) {
        opaque(codes.word);
        is_aligned = codes.is(0);
        Group group;
        group.clear();
        switch (codes.log_to()) {
            case 3: load_group<2>(group, codes.from_size(), is_aligned, src, before, left); break;
            case 2: load_group<4>(group, codes.from_size(), is_aligned, src, before, left); break;
            default: load_group<8>(group, codes.from_size(), is_aligned, src, before, left);
        }
        auto map = map_with([&] { return affine; }, affine.a != nullptr, 0, 0);
        if (cast_group(group, codes, map)) {
            switch (codes.log_to()) {
                case 0: store_group<uint8_t>(group, dst, before, left); break;
                case 1: store_group<uint16_t>(group, dst, before, left); break;
                case 2: store_group<uint32_t>(group, dst, before, left); break;
                default: store_group<uint64_t>(group, dst, before, left);
            }
        } else {
            write_group_slowly(codes, affine, src, dst, before, left);
        }
        before = 0;
        opaque(codes.word);
        src = stepped(src, step, elems_of(codes) * codes.from_size());
        dst = const_cast<uint8_t*>(stepped(dst, step, elems_of(codes) << codes.log_to()));
    }
}

/// Casts the elements of a run that are read: `real` of them, one at least. `is_any`: of any pair of dtypes.
template <bool is_any>
WINDROW_DEVICE void cast_run(const RunCast& cast, const uint8_t* src, uint8_t* dst, uint32_t real, uint32_t before, uint32_t after,
                              const ThreadGroup& threads) {
    const uint32_t from_size = cast.from_size, log_to = cast.log_to;
    const Cut cut = cut_run(src, dst, real, from_size, log_to, before, after);
    const bool is_aligned = cut.is_aligned && !cast.is_mixed;
    const uint32_t in_vectors = cut.vectors << (4 - log_to);
#pragma unroll 1
    for (uint32_t i = threads.rank; i < real - in_vectors; i += threads.size) {
        const uint32_t at = i < cut.head ? i : i + in_vectors;
        uint64_t bits = read_element(src + uint64_t{at} * from_size, from_size);
        if (is_any || cast.loop != kMovedLoop) {
            // A cast among integers that has a loop of its own extends a sign at most.
            if (is_any || !is_integral(cast.from) || !is_integral(cast.to)) {
                if (!is_any && cast.loop >= kAddLoop32) bits += cast.affine.get<uint64_t>(0);
                else bits = convert_one(bits, static_cast<uint8_t>(cast.from), static_cast<uint8_t>(cast.to), cast.affine, 0);
            } else if (cast.from <= kI32) {
                const uint32_t unused = 32 - 8 * from_size;
                bits = static_cast<uint64_t>(int64_t{static_cast<int32_t>(static_cast<uint32_t>(bits) << unused) >> unused});
            }
        }
        write_element(dst + (uint64_t{at} << log_to), bits, cast.to_size);
    }
    if (cut.vectors == 0) return;
    src += cut.head * from_size;
    dst += cut.head << log_to;
    if (is_any) return run_groups(cast.codes, is_aligned, cast.affine, src, dst, cut.vectors, threads);
    const uint32_t result = cast.to;
    if (cast.loop == kMovedLoop) return run_vectors(Bytes{}, is_aligned, src, dst, cut.vectors, threads);
    switch (cast.loop) {
#define WINDROW_CAST(type, from, to, mapped) \
    case cast_number(from, to, mapped):      \
        return run_vectors(type<from, to, mapped>(cast.affine, result), is_aligned, src, dst, cut.vectors, threads);
#include "cast_table.h"
#undef WINDROW_CAST
        case kAddLoop32: return run_vectors(Add<kI32>(cast.affine), is_aligned, src, dst, cut.vectors, threads);
        case kAddLoop64: return run_vectors(Add<kI64>(cast.affine), is_aligned, src, dst, cut.vectors, threads);
        default: __builtin_unreachable();
    }
}

/// Writes the thread group's part of a run. `fill`: the padding over and over, its first byte at `run.dst`.
template <bool is_any>
WINDROW_DEVICE void write_run(const Run& run, RunCast cast, Vec16 fill, const ThreadGroup& threads) {
    const uint32_t size = cast.to_size, padding = run.width - run.lead - run.real;
    uint8_t* dst = run.dst + run.lead * size;
    uint32_t real = run.real;
    if (run.lead > 0) fill_run(run.dst, run.lead, size, fill, threads);
    if (padding > 0) fill_run(dst + real * size, padding, size, fill, threads);
    if (real == 0) return;
    if (cast.from_size == 0) return fill_run(dst, real, size, repeated({cast.value, 0}, size), threads);
    if (!is_any && cast.loop == kMovedLoop) {
        force_branch();
        real *= size;
        cast.from_size = cast.to_size = 1;
        cast.log_to = 0;
    }
    cast_run<is_any>(cast, run.src, dst, real, run.before, run.after, threads);
}

}  // namespace windrow
