// Shared by the families. A warp writes one piece: a run of output elements that are adjacent in memory.
//
// The first address of a piece that is a multiple of 16 begins its vectors; lane l writes vectors l, l + 32
// and so on. Lanes exchange nothing, so the host runs the same functions lane by lane.
#pragma once

#include "convert.cuh"
#include "memory.cuh"

namespace windrow {

constexpr uint32_t kLanes = 32;
/// Lanes that write a short row; a warp writes 4 of them.
constexpr uint32_t kTeamLanes = 8;

WINDROW_DEVICE constexpr uint32_t minimum(uint32_t a, uint32_t b) { return a < b ? a : b; }

/// n / d for n and d below 2^31.
WINDROW_DEVICE uint32_t divide(uint32_t n, Divisor by) {
#ifdef __CUDA_ARCH__
    return (__umulhi(n, by.mul) + n) >> by.shift;
#else
    return (static_cast<uint32_t>(static_cast<uint64_t>(n) * by.mul >> 32) + n) >> by.shift;
#endif
}

/// The samples of a field: addresses, or rows of a table. They are in the table of the launch, which may
/// be in the parameters, so plain loads read them.
struct Sources {
    const uint64_t* addresses;
    const uint32_t* ids;
    const uint8_t* base;
    uint32_t stride;      ///< bytes from row to row
};

template <bool by_id>
WINDROW_DEVICE const uint8_t* source_at(const Sources& sources, uint32_t sample) {
    if (by_id) return stepped(sources.base, sources.stride, sources.ids[sample]);
    return reinterpret_cast<const uint8_t*>(*stepped(sources.addresses, 8u, sample));
}

/// The threads that write one stretch of memory together, in turns, in groups of 8 lanes: each turn of a group
/// follows that of the group before it, so that what is under way at one time is adjacent. A group alone
/// writes a short row; else they are those of one warp or more.
struct Team {
    uint32_t thread, threads;  ///< this one, and how many there are

    /// The first vector of this thread, if each turn has `unroll` vectors, kWidth apart.
    template <uint32_t kWidth = kTeamLanes>
    WINDROW_DEVICE uint32_t first(uint32_t unroll) const {
        return thread / kWidth * kWidth * unroll + thread % kWidth;
    }
    /// Vectors from turn to turn.
    WINDROW_DEVICE uint32_t step(uint32_t unroll) const { return threads * unroll; }
};

/// How many vectors in front of `dst`, a multiple of 16, its sector begins; or, where not only 8 lanes write, its line of
/// the cache.
WINDROW_DEVICE uint32_t first_turn(const uint8_t* dst, const Team& team) {
    return misalignment(dst, team.threads > kTeamLanes ? 16 * kTeamLanes : 32) / 16;
}

/// The element of `size` bytes at any address.
WINDROW_DEVICE uint64_t read_element(const uint8_t* p, uint32_t size) {
    if (misalignment(p, size) == 0) {
        switch (size) {
            case 1: return load<uint8_t>(p);
            case 2: return load<uint16_t>(p);
            case 4: return load<uint32_t>(p);
            default: return load<uint64_t>(p);
        }
    }
    uint64_t bits = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < size; ++i) bits |= static_cast<uint64_t>(load<uint8_t>(p + i)) << (8 * i);
    return bits;
}

/// Writes an element of `size` bytes to any address.
WINDROW_DEVICE void write_element(uint8_t* p, uint64_t bits, uint32_t size) {
    if (misalignment(p, size) == 0) {
        switch (size) {
            case 1: return store(p, static_cast<uint8_t>(bits));
            case 2: return store(p, static_cast<uint16_t>(bits));
            case 4: return store(p, static_cast<uint32_t>(bits));
            default: return store(p, bits);
        }
    }
#pragma unroll 1
    for (uint32_t i = 0; i < size; ++i) store(p + i, static_cast<uint8_t>(bits >> (8 * i)));
}

/// Writes four words to a multiple of 16.
WINDROW_DEVICE void store_words(uint8_t* p, const uint32_t (&w)[4]) {
    store16(p, {w[0] | static_cast<uint64_t>(w[1]) << 32, w[2] | static_cast<uint64_t>(w[3]) << 32});
}

/// The same, if `left` is more than `beyond`. A branch around the store would draw all that makes the words
/// into it, once for each vector of a turn; here the store alone has a predicate.
WINDROW_DEVICE void store_words(int32_t left, int32_t beyond, uint8_t* p, const uint32_t (&w)[4]) {
#ifdef __CUDA_ARCH__
    if (Policy::kStore == 2) {
        asm volatile("{ .reg .pred there; setp.gt.s32 there, %5, %6;\n @there st.global.v4.u32 [%0], {%1, %2, %3, %4}; }"
                     :
                     : "l"(__cvta_generic_to_global(p)), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(left), "r"(beyond));
        return;
    }
#endif
    if (left > beyond) store_words(p, w);
}

// ---- Windows: `bytes` adjacent bytes of a source in registers, from any address.

/// The alignment of the windows of a piece, the same for all its lanes.
enum Alignment : uint32_t {
    kAligned = 0,     ///< each begins at a multiple of the widest load that divides its size
    kMisaligned = 1,  ///< any other
};

/// The widest load of an aligned window.
WINDROW_DEVICE constexpr uint32_t widest_of(uint32_t bytes) { return bytes % 16 == 0 ? 16 : bytes & (0 - bytes); }
template <uint32_t bytes>
constexpr uint32_t kWidest = widest_of(bytes);

/// The loads of a misaligned window: long windows by 8 bytes, since each load touches all sectors of the
/// warp's windows; those of 2 bytes by single ones.
WINDROW_DEVICE constexpr uint32_t step_of(uint32_t bytes) { return bytes >= 16 && bytes % 8 == 0 ? 8 : bytes < 4 ? 1 : 4; }
template <uint32_t bytes>
constexpr uint32_t kStep = step_of(bytes);

/// A word of any value, which takes no instruction: for lanes that read nothing and store nothing.
WINDROW_DEVICE uint32_t any_word() {
#ifdef __CUDA_ARCH__
    uint32_t word;
    asm("" : "=r"(word));
    return word;
#else
    return 0;
#endif
}

/// Makes the compiler branch around what follows in its block, instead of doing it for all and choosing.
WINDROW_DEVICE void as_branch() {
#ifdef __CUDA_ARCH__
    asm volatile("");
#endif
}

/// Makes the compiler keep a pointer that moves on in a loop: it would replace each address near it by a
/// product of a counter of its own.
template <class T>
WINDROW_DEVICE void keep(T*& p) {
#ifdef __CUDA_ARCH__
    asm("" : "+l"(p));
#else
    (void)p;
#endif
}

/// The same of a word: what is made of it is made in each turn of a loop, in place of registers for all of it.
WINDROW_DEVICE void keep(uint32_t& word) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+r"(word));
#else
    (void)word;
#endif
}

/// Windows of a lane, of `bytes` each, a multiple of 32 bytes apart: all begin as far behind an aligned address. Callers
/// see to what is beside a misaligned one, which is read in aligned words.
template <Alignment alignment, uint32_t bytes>
struct Windows {
    static constexpr uint32_t kWords = (bytes + 3) / 4;
    const uint8_t* src;  ///< the aligned address at or in front of the first
    uint32_t skew;       ///< bytes from there to the window
    uint32_t last;       ///< bytes from there to the word behind those that it fills; or to the last of these, if it fills them all

    WINDROW_DEVICE explicit Windows(const uint8_t* first) : src(first), skew(0), last(0) {
        if (alignment == kAligned) return;
        skew = misalignment(first, kStep<bytes>);
        src -= skew;
        last = skew == 0 ? bytes - kStep<bytes> : bytes;
    }

    WINDROW_DEVICE void advance(int64_t by) { src += by; }

    /// Reads the window `ahead` bytes behind the first, if it is there; else its words have any value.
    WINDROW_DEVICE void read(bool is_there, uint32_t ahead, uint32_t (&w)[kWords]) const {
#pragma unroll
        for (uint32_t i = 0; i < kWords; ++i) w[i] = any_word();
        if (!is_there) return;
        auto load = [](auto word, const uint8_t* p, uint32_t* words) { load_words<decltype(word)>(p, words); };
        read(ahead, w, load, [&](auto word, uint32_t* words) {
            words[0] = words[sizeof word / 4 - 1] = 0;
            if (skew != 0) load(word, src + ahead + bytes, words);
        });
    }

    /// The same without a branch, if `left` is more than `beyond`. Predicates keep registers for all words from before a
    /// loop on.
    WINDROW_DEVICE void read_if(int32_t left, int32_t beyond, uint32_t ahead, uint32_t (&w)[kWords]) const {
        auto load = [&](auto word, const uint8_t* p, uint32_t* words) { load_if<decltype(word)>(left, beyond, p, words); };
        read(ahead, w, load, [&](auto word, uint32_t* words) { load(word, src + last + ahead, words); });
    }

    template <class Load, class LoadLast>
    WINDROW_DEVICE void read(uint32_t ahead, uint32_t (&w)[kWords], const Load& load, const LoadLast& load_last) const {
        const uint8_t* p = src + ahead;
        if constexpr (alignment == kMisaligned && bytes == 2) {
            uint32_t raw[2] = {any_word(), any_word()};
            load(uint8_t{}, p, raw);
            load(uint8_t{}, p + 1, raw + 1);
            w[0] = raw[0] | raw[1] << 8;
        } else if constexpr (alignment == kMisaligned) {
            using Word = typename WordOf<kStep<bytes>>::Type;
            constexpr uint32_t kEach = sizeof(Word) / 4;
            uint32_t raw[kWords + kEach];
#pragma unroll
            for (uint32_t i = 0; i < kWords + kEach; ++i) raw[i] = any_word();
#pragma unroll
            for (uint32_t i = 0; i < kWords; i += kEach) load(Word{}, p + 4 * i, raw + i);
            load_last(Word{}, raw + kWords);
            if constexpr (kEach == 2) {
#pragma unroll
                for (uint32_t i = 0; i <= kWords; ++i) raw[i] = skew & 4 ? raw[i + 1] : raw[i];
            }
#pragma unroll
            for (uint32_t i = 0; i < kWords; ++i) w[i] = funnel(raw[i], raw[i + 1], 8 * (skew & 3));
        } else {
            using Word = typename WordOf<kWidest<bytes>>::Type;
            constexpr uint32_t kEach = (sizeof(Word) + 3) / 4;
#pragma unroll
            for (uint32_t i = 0; i < kWords; ++i) w[i] = any_word();
#pragma unroll
            for (uint32_t i = 0; i < kWords; i += kEach) load(Word{}, p + 4 * i, w + i);
        }
    }
};

/// How a run of elements is cut: `head` single ones, then vectors of 16 bytes of output, then single ones.
struct Cut {
    uint32_t head, vectors;
    bool is_aligned;  ///< the windows of the vectors
};

/// Cuts `count` elements by the first address of the output that is a multiple of 16. Elements of `from_size` bytes, of
/// which those from `skipped` on are read, become 2^log_to bytes. No window reaches beyond the `before` and `after` bytes
/// beside the run. Elements of an output that is misaligned to their size are all single.
WINDROW_DEVICE Cut cut_run(const uint8_t* src, const uint8_t* dst, uint32_t count, uint32_t from_size, uint32_t log_to, uint32_t before,
                           uint32_t after, uint32_t skipped = 0) {
    const uint32_t log_elems = 4 - log_to, elems = 1 << log_elems, window = from_size << log_elems;
    Cut cut = {minimum((16 - misalignment(dst, 16) & 15) >> log_to, count), 0, true};
    if (misalignment(dst, 1 << log_to) != 0) cut.head = count;
    cut.vectors = count - cut.head >> log_elems;
    src += cut.head * from_size + skipped;
    cut.is_aligned = misalignment(src, widest_of(window)) == 0;
    if (window >= 4 && cut.vectors > 0 && !(cut.is_aligned && skipped == 0)) {
        const uint32_t step = step_of(window), skew = misalignment(src, step), beyond = (skew != 0 ? step - skew : 0) + skipped;
        if (beyond > after + (count - cut.head - (cut.vectors << log_elems)) * from_size) cut.vectors -= 1;
        if (skew > before + cut.head * from_size + skipped && cut.vectors > 0) {
            cut.head += elems;
            cut.vectors -= 1;
        }
    }
    return cut;
}

// ---- Packing. A NaN loses its payload here: callers see to it.

/// Two float32 as two float16, each rounded to nearest even.
WINDROW_DEVICE uint32_t pack_f16(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return to_f16(low) | static_cast<uint32_t>(to_f16(high)) << 16;
#endif
}

/// Two float32 as two bfloat16, each rounded to nearest even.
WINDROW_DEVICE uint32_t pack_bf16(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return to_bf16(low) | static_cast<uint32_t>(to_bf16(high)) << 16;
#endif
}

/// 16 bytes of float16, bfloat16 or float32 from 8, 8 or 4 numbers.
template <uint8_t dtype>
WINDROW_DEVICE void pack(const float* x, uint32_t (&out)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out[i] = dtype == kF16    ? pack_f16(x[2 * i], x[2 * i + 1])
                 : dtype == kBF16 ? pack_bf16(x[2 * i], x[2 * i + 1])
                                  : bits_of(x[i]);
    }
}

/// The low `bytes` bytes of a word, and behind them those of another: 1 or 2.
template <uint32_t bytes>
WINDROW_DEVICE uint32_t pair_of(uint32_t low, uint32_t high) {
#ifdef __CUDA_ARCH__
    return __byte_perm(low, high, bytes == 1 ? 0x7740 : 0x5410);
#else
    constexpr uint32_t kMask = (1u << 8 * bytes) - 1;
    return (low & kMask) | (high & kMask) << (8 * bytes);
#endif
}

/// Byte `i` of some words as a float32. nvcc makes three instructions of such a cast, one of them at an
/// eighth of the rate; this is two at full rate: the byte becomes the end of 2^23, which is subtracted.
/// A signed one is counted from -128.
template <bool is_signed>
WINDROW_DEVICE float byte_as_float(const uint32_t* words, uint32_t i) {
#ifdef __CUDA_ARCH__
    const uint32_t word = words[i / 4] ^ (is_signed ? 0x80808080u : 0);
    return __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7650 + i % 4)) - (is_signed ? 8388736.0f : 8388608.0f);
#else
    const uint32_t byte = words[i / 4] >> (8 * (i % 4)) & 0xFF;
    return is_signed ? static_cast<float>(static_cast<int8_t>(byte)) : static_cast<float>(byte);
#endif
}

/// The same for the 16-bit integer `i` of some words.
template <bool is_signed>
WINDROW_DEVICE float half_as_float(const uint32_t* words, uint32_t i) {
#ifdef __CUDA_ARCH__
    const uint32_t word = words[i / 2] ^ (is_signed ? 0x80008000u : 0);
    return __uint_as_float(__byte_perm(word, 0x4B000000u, i % 2 ? 0x7632 : 0x7610)) - (is_signed ? 8421376.0f : 8388608.0f);
#else
    const uint32_t half = words[i / 2] >> (16 * (i % 2)) & 0xFFFF;
    return is_signed ? static_cast<float>(static_cast<int16_t>(half)) : static_cast<float>(half);
#endif
}

/// Two bytes of a word, the low or the high ones, as two float16: at the end of 1024 they are 1024 + x,
/// exactly, and 1024 is subtracted; a signed one is counted from -128.
template <bool is_signed>
WINDROW_DEVICE uint32_t bytes_as_f16(uint32_t word, bool high) {
#ifdef __CUDA_ARCH__
    uint32_t pair, done;
    word ^= is_signed ? 0x80808080u : 0;
    asm("prmt.b32 %0, %1, 0x64646464, %2;" : "=r"(pair) : "r"(word), "r"(high ? 0x4342u : 0x4140u));
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(done) : "r"(pair), "r"(is_signed ? 0x64806480u : 0x64006400u));
    return done;
#else
    const uint32_t first = high ? 2 : 0;
    return pack_f16(byte_as_float<is_signed>(&word, first), byte_as_float<is_signed>(&word, first + 1));
#endif
}

/// Writes `count` elements of `size` bytes from `dst` on: `fill` over and over, its first byte first. The same
/// in `planes` planes of one phase, `plane` bytes apart.
WINDROW_DEVICE void fill_run(uint8_t* dst, uint32_t count, uint32_t size, Vec16 fill, const Team& team, uint32_t planes = 1,
                             int64_t plane = 0) {
    constexpr uint32_t kMany = 4;
    const uint32_t bytes = count * size, head = minimum((16 - misalignment(dst, 16)) & 15, bytes);
    const uint32_t vectors = (bytes - head) / 16, ends = bytes - 16 * vectors;
#pragma unroll 1
    for (uint32_t i = team.thread; i < ends; i += team.threads) {
        const uint32_t at = i < head ? i : i + 16 * vectors;
        uint8_t* p = dst + at;
        const auto byte = static_cast<uint8_t>((at & 8 ? fill.hi : fill.lo) >> (8 * (at & 7)));
        uint32_t c = planes;
#pragma unroll 1
        do {
            store(p, byte);
            p += plane;
        } while (--c > 0);
    }
    if (misalignment(dst, size) != 0) fill = funnel16(fill, fill, head);
    dst += head;
    const auto first = static_cast<int32_t>(team.first(kMany) - first_turn(dst, team)), step = static_cast<int32_t>(team.step(kMany));
    int32_t before = -first;
    dst += 16 * int64_t{first};
#pragma unroll 1
    for (int32_t left = static_cast<int32_t>(vectors) - first; left > 0; left -= step) {
        uint8_t* p = dst;
        uint32_t c = planes;
#pragma unroll 1
        do {
            keep(p);
#pragma unroll
            for (uint32_t i = 0; i < kMany; ++i) {
                if (i == 0 ? before <= 0 : left > static_cast<int32_t>(kTeamLanes * i)) store16(p + 16 * kTeamLanes * i, fill);
            }
            p += plane;
        } while (--c > 0);
        before = 0;
        dst += 16 * int64_t{step};
    }
}

}  // namespace windrow
