// Windows: adjacent bytes of a source in registers, from any address, and how a run of elements is cut into them.
//
// The problem: stores have to be vectors at multiples of 16 bytes of the output, and the bytes for such a vector begin anywhere
// in the source, where a load has to be at a multiple of its size. Nothing beyond the sample may be read.
//
//     words of the source   |   w0   |   w1   |   w2   |        loads of kStep bytes, here 8, and one word more
//     window                    |<---- 16 bytes --->|
//                           skew
//     registers             one half of each pair of words by `skew & 4`, then funnel shifts by `skew & 3` bytes
//
//     a run of the output   |s   |  vec  |  vec  |  vec  |s |   cut_run: `head` singles, vectors, singles
//                                ^ a multiple of 16             no window reaches beyond `before` and `after`: else it is singles
//
// Lanes that exchange words would load fewer, but lanes exchange nothing (kernels/README.md): a misaligned window loads 24 bytes
// for 16, and rows of 512 bytes take 58 thread instructions for 16 bytes, where aligned ones take 24.
#pragma once

#include "convert.cuh"
#include "fences.cuh"
#include "lanes.cuh"

namespace windrow {

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
        for (uint32_t i = 0; i < kWords; ++i) w[i] = undef_u32();
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

    /// Reads the window by `load`; of a misaligned one of more than 2 bytes the word behind those by `load_last`.
    template <class Load, class LoadLast>
    WINDROW_DEVICE void read(uint32_t ahead, uint32_t (&w)[kWords], const Load& load, const LoadLast& load_last) const {
        const uint8_t* p = src + ahead;
        if constexpr (alignment == kMisaligned && bytes == 2) {
            uint32_t raw[2] = {undef_u32(), undef_u32()};
            load(uint8_t{}, p, raw);
            load(uint8_t{}, p + 1, raw + 1);
            w[0] = raw[0] | raw[1] << 8;
        } else if constexpr (alignment == kMisaligned) {
            using Word = typename WordOf<kStep<bytes>>::Type;
            constexpr uint32_t kEach = sizeof(Word) / 4;
            uint32_t raw[kWords + kEach];
#pragma unroll
            for (uint32_t i = 0; i < kWords + kEach; ++i) raw[i] = undef_u32();
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
            for (uint32_t i = 0; i < kWords; ++i) w[i] = undef_u32();
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

/// Cuts `count` elements by the first address of the output that is a multiple of 16. Elements of
/// `from_size` bytes become 2^log_to bytes; windows begin at byte `skipped` of an element. No
/// window reaches beyond the `before` and `after` bytes
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

}  // namespace windrow
