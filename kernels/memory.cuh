// Loads of samples and stores to outputs: the only functions that touch either, and the only place
// for cache hints. Addresses are multiples of the size; the host's version checks it, since it is
// the host that runs the tests.
//
// Sources are never written while a launch reads them (the plan refuses outputs that overlap), so
// loads take the read-only path. They may stay in the first cache: neighbouring lanes share the
// words of a misaligned source. Outputs stay in the L2 cache for the next reader. Other
// hints for vectors are a matter of policy.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef __CUDA_ARCH__
#include <assert.h>
#endif

#include "policy.h"

#ifdef __CUDACC__
#define WINDROW_DEVICE __device__ __forceinline__
#define WINDROW_OUT_OF_LINE static __device__ __noinline__
#else
#define WINDROW_DEVICE inline
#define WINDROW_OUT_OF_LINE inline
#endif

/// Hooks of every read of a sample and every store to an output; the simulator defines them.
#ifndef WINDROW_ON_READ
#define WINDROW_ON_READ(p, bytes)
#endif
#ifndef WINDROW_ON_WRITE
#define WINDROW_ON_WRITE(p, bytes)
#endif

namespace windrow {

/// 16 bytes, the first in the low byte of `lo`.
struct alignas(16) Vec16 {
    uint64_t lo;
    uint64_t hi;
};

/// Reads the sizeof(T) bytes at `p`; T is an unsigned integer.
template <class T>
WINDROW_DEVICE T load(const uint8_t* p) {
#ifdef __CUDA_ARCH__
    return __ldg(reinterpret_cast<const T*>(p));
#else
    assert(reinterpret_cast<uintptr_t>(p) % sizeof(T) == 0);
    WINDROW_ON_READ(p, sizeof(T));
    T value;
    memcpy(&value, p, sizeof value);
    return value;
#endif
}

template <>
WINDROW_DEVICE uint64_t load<uint64_t>(const uint8_t* p) {
#ifdef __CUDA_ARCH__
    return __ldg(reinterpret_cast<const unsigned long long*>(p));
#else
    assert(reinterpret_cast<uintptr_t>(p) % 8 == 0);
    WINDROW_ON_READ(p, 8);
    uint64_t value;
    memcpy(&value, p, sizeof value);
    return value;
#endif
}

/// Reads the 16 bytes at `p`.
WINDROW_DEVICE Vec16 load16(const uint8_t* p) {
#ifdef __CUDA_ARCH__
    uint4 v;
    if (Policy::kLoad == 1) {
        asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
            : "l"(__cvta_generic_to_global(p)));
    } else {
        v = __ldg(reinterpret_cast<const uint4*>(p));
    }
    return {v.x | static_cast<uint64_t>(v.y) << 32, v.z | static_cast<uint64_t>(v.w) << 32};
#else
    assert(reinterpret_cast<uintptr_t>(p) % 16 == 0);
    WINDROW_ON_READ(p, 16);
    Vec16 v;
    memcpy(&v, p, sizeof v);
    return v;
#endif
}

/// The sizeof(T) bytes at `p` in the low bytes of a register or two, zeros above: a load of fewer than four bytes
/// costs an instruction more if it returns T.
template <class T>
WINDROW_DEVICE auto load_word(const uint8_t* p) {
    if constexpr (sizeof(T) >= 4) {
        return load<T>(p);
    } else {
#ifdef __CUDA_ARCH__
        uint32_t value;
        if (sizeof(T) == 1) {
            asm("ld.global.nc.u8 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(p)));
        } else {
            asm("ld.global.nc.u16 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(p)));
        }
        return value;
#else
        return uint32_t{load<T>(p)};
#endif
    }
}

/// Reads the sizeof(T) bytes at `p` into words; of fewer than four bytes, zeros above.
template <class T>
WINDROW_DEVICE void load_words(const uint8_t* p, uint32_t* words) {
    if constexpr (sizeof(T) == 16) {
        const Vec16 v = load16(p);
        words[0] = static_cast<uint32_t>(v.lo);
        words[1] = static_cast<uint32_t>(v.lo >> 32);
        words[2] = static_cast<uint32_t>(v.hi);
        words[3] = static_cast<uint32_t>(v.hi >> 32);
    } else if constexpr (sizeof(T) == 8) {
        const uint64_t v = load<uint64_t>(p);
        words[0] = static_cast<uint32_t>(v);
        words[1] = static_cast<uint32_t>(v >> 32);
    } else {
        words[0] = load_word<T>(p);
    }
}

/// Reads the sizeof(T) bytes at `p` into words if `left` is more than `beyond`; else the words have any value. A branch
/// around loads would take an instruction or two more than each load's own predicate.
template <class T>
WINDROW_DEVICE void load_if(int32_t left, int32_t beyond, const uint8_t* p, uint32_t* words) {
#ifdef __CUDA_ARCH__
    const auto from = __cvta_generic_to_global(p);
    if constexpr (sizeof(T) == 16) {
        if (Policy::kLoad == 1) {
            asm("{ .reg .pred there; setp.gt.s32 there, %5, %6;\n"
                " @there ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3])
                : "l"(from), "r"(left), "r"(beyond));
        } else {
            asm("{ .reg .pred there; setp.gt.s32 there, %5, %6;\n @there ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3])
                : "l"(from), "r"(left), "r"(beyond));
        }
    } else if constexpr (sizeof(T) == 8) {
        asm("{ .reg .pred there; setp.gt.s32 there, %3, %4;\n @there ld.global.nc.v2.u32 {%0, %1}, [%2]; }"
            : "+r"(words[0]), "+r"(words[1])
            : "l"(from), "r"(left), "r"(beyond));
    } else if constexpr (sizeof(T) == 4) {
        asm("{ .reg .pred there; setp.gt.s32 there, %2, %3;\n @there ld.global.nc.u32 %0, [%1]; }"
            : "+r"(words[0])
            : "l"(from), "r"(left), "r"(beyond));
    } else if constexpr (sizeof(T) == 2) {
        asm("{ .reg .pred there; setp.gt.s32 there, %2, %3;\n @there ld.global.nc.u16 %0, [%1]; }"
            : "+r"(words[0])
            : "l"(from), "r"(left), "r"(beyond));
    } else {
        asm("{ .reg .pred there; setp.gt.s32 there, %2, %3;\n @there ld.global.nc.u8 %0, [%1]; }"
            : "+r"(words[0])
            : "l"(from), "r"(left), "r"(beyond));
    }
#else
    if (left > beyond) load_words<T>(p, words);
#endif
}

/// Writes the sizeof(T) bytes at `p`. Nothing that a kernel reads is written by it, so that no load waits.
template <class T>
WINDROW_DEVICE void store(uint8_t* p, T value) {
#ifdef __CUDA_ARCH__
    const auto to = __cvta_generic_to_global(p);
    if constexpr (sizeof(T) == 8) {
        asm volatile("st.global.u64 [%0], %1;" : : "l"(to), "l"(static_cast<uint64_t>(value)));
    } else if constexpr (sizeof(T) == 4) {
        asm volatile("st.global.u32 [%0], %1;" : : "l"(to), "r"(static_cast<uint32_t>(value)));
    } else if constexpr (sizeof(T) == 2) {
        asm volatile("st.global.u16 [%0], %1;" : : "l"(to), "r"(static_cast<uint32_t>(value)));
    } else {
        asm volatile("st.global.u8 [%0], %1;" : : "l"(to), "r"(static_cast<uint32_t>(value)));
    }
#else
    assert(reinterpret_cast<uintptr_t>(p) % sizeof(T) == 0);
    WINDROW_ON_WRITE(p, sizeof(T));
    memcpy(p, &value, sizeof value);
#endif
}

/// Writes the low sizeof(T) bytes of a word; to cut it to T first would take an instruction.
template <class T>
WINDROW_DEVICE void store_word(uint8_t* p, uint32_t word) {
#ifdef __CUDA_ARCH__
    const auto to = __cvta_generic_to_global(p);
    if constexpr (sizeof(T) == 4) {
        asm volatile("st.global.u32 [%0], %1;" : : "l"(to), "r"(word));
    } else if constexpr (sizeof(T) == 2) {
        asm volatile("st.global.u16 [%0], %1;" : : "l"(to), "r"(word));
    } else {
        asm volatile("st.global.u8 [%0], %1;" : : "l"(to), "r"(word));
    }
#else
    store(p, static_cast<T>(word));
#endif
}

/// Writes the 16 bytes at `p`.
WINDROW_DEVICE void store16(uint8_t* p, Vec16 v) {
#ifdef __CUDA_ARCH__
    const uint4 bits = make_uint4(static_cast<uint32_t>(v.lo), static_cast<uint32_t>(v.lo >> 32),
                                  static_cast<uint32_t>(v.hi), static_cast<uint32_t>(v.hi >> 32));
    if (Policy::kStore == 1) {
        __stcs(reinterpret_cast<uint4*>(p), bits);
    } else if (Policy::kStore == 2) {
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                     :
                     : "l"(__cvta_generic_to_global(p)), "r"(bits.x), "r"(bits.y), "r"(bits.z),
                       "r"(bits.w)
                     : "memory");
    } else {
        __stwb(reinterpret_cast<uint4*>(p), bits);
    }
#else
    assert(reinterpret_cast<uintptr_t>(p) % 16 == 0);
    WINDROW_ON_WRITE(p, 16);
    memcpy(p, &v, sizeof v);
#endif
}

/// base + step * i, in one instruction; `step` is in bytes for pointers, too.
WINDROW_DEVICE uint64_t stepped(uint64_t base, int32_t step, uint32_t i) {
#ifdef __CUDA_ARCH__
    uint64_t sum;
    asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(sum) : "r"(step), "r"(i), "l"(base));
    return sum;
#else
    return base + static_cast<int64_t>(step) * i;
#endif
}

WINDROW_DEVICE uint64_t stepped(uint64_t base, uint32_t step, uint32_t i) {
#ifdef __CUDA_ARCH__
    uint64_t sum;
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(sum) : "r"(step), "r"(i), "l"(base));
    return sum;
#else
    return base + uint64_t{step} * i;
#endif
}

template <class T, class Step>
WINDROW_DEVICE const T* stepped(const T* base, Step step, uint32_t i) {
    return reinterpret_cast<const T*>(stepped(reinterpret_cast<uint64_t>(base), step, i));
}

/// An address modulo `size`, a power of two.
WINDROW_DEVICE uint32_t misalignment(const void* p, uint32_t size) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p)) & (size - 1);
}

WINDROW_DEVICE Vec16 operator|(Vec16 a, Vec16 b) { return {a.lo | b.lo, a.hi | b.hi}; }
WINDROW_DEVICE Vec16 operator&(Vec16 a, Vec16 b) { return {a.lo & b.lo, a.hi & b.hi}; }

/// Moves all bytes up by `bytes`, 0 to 15.
WINDROW_DEVICE Vec16 shift_up(Vec16 v, uint32_t bytes) {
    uint32_t bits = 8 * bytes;
    if (bits >= 64) {
        return {0, v.lo << (bits - 64)};
    }
    return {v.lo << bits, v.hi << bits | (bits == 0 ? 0 : v.lo >> (64 - bits))};
}

/// Moves all bytes down by `bytes`, 0 to 15.
WINDROW_DEVICE Vec16 shift_down(Vec16 v, uint32_t bytes) {
    uint32_t bits = 8 * bytes;
    if (bits >= 64) {
        return {v.hi >> (bits - 64), 0};
    }
    return {v.lo >> bits | (bits == 0 ? 0 : v.hi << (64 - bits)), v.hi >> bits};
}

/// The low 32 bits of (high, low) >> shift, shift 0 to 31.
WINDROW_DEVICE uint32_t funnel(uint32_t low, uint32_t high, uint32_t shift) {
#ifdef __CUDA_ARCH__
    return __funnelshift_r(low, high, shift);
#else
    return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> shift);
#endif
}

/// The 16 bytes from byte `bytes` of (high, low) on, 0 to 15.
WINDROW_DEVICE Vec16 funnel16(Vec16 low, Vec16 high, uint32_t bytes) {
    uint32_t w[8] = {static_cast<uint32_t>(low.lo),  static_cast<uint32_t>(low.lo >> 32),
                     static_cast<uint32_t>(low.hi),  static_cast<uint32_t>(low.hi >> 32),
                     static_cast<uint32_t>(high.lo), static_cast<uint32_t>(high.lo >> 32),
                     static_cast<uint32_t>(high.hi), static_cast<uint32_t>(high.hi >> 32)};
#pragma unroll
    for (int i = 0; i < 6; ++i) {
        w[i] = bytes & 8 ? w[i + 2] : w[i];
    }
#pragma unroll
    for (int i = 0; i < 5; ++i) {
        w[i] = bytes & 4 ? w[i + 1] : w[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        w[i] = funnel(w[i], w[i + 1], 8 * (bytes & 3));
    }
    return {w[0] | static_cast<uint64_t>(w[1]) << 32, w[2] | static_cast<uint64_t>(w[3]) << 32};
}

/// The first `size` bytes of `v` over and over; size is 1, 2, 4, 8 or 16.
WINDROW_DEVICE Vec16 repeated(Vec16 v, uint32_t size) {
    if (size == 16) {
        return v;
    }
    uint64_t bits = v.lo;
    if (size == 1) bits = (bits & 0xFF) * 0x0101010101010101ull;
    if (size == 2) bits = (bits & 0xFFFF) * 0x0001000100010001ull;
    if (size == 4) bits = (bits & 0xFFFFFFFF) * 0x0000000100000001ull;
    return {bits, bits};
}

/// The `count` bytes at `src`, 0 to 16, of any alignment; reads no others. The rest is 0.
WINDROW_DEVICE Vec16 read_bytes(const uint8_t* src, uint32_t count) {
    Vec16 v = {0, 0};
#pragma unroll 1
    for (uint32_t done = 0; done < count;) {
        const uint8_t* p = src + done;
        uint32_t left = count - done;
        uint64_t bits;
        uint32_t width;
        if (left >= 8 && misalignment(p, 8) == 0) {
            width = 8;
            bits = load<uint64_t>(p);
        } else if (left >= 4 && misalignment(p, 4) == 0) {
            width = 4;
            bits = load<uint32_t>(p);
        } else if (left >= 2 && misalignment(p, 2) == 0) {
            width = 2;
            bits = load<uint16_t>(p);
        } else {
            width = 1;
            bits = load<uint8_t>(p);
        }
        v = v | shift_up({bits, 0}, done);
        done += width;
    }
    return v;
}

/// Writes elements [from, to) of `v`, `size` bytes each, to `base` + index * size. Bytewise unless `aligned`: all of these
/// addresses are multiples of the size, or of 8 if it is 16.
WINDROW_DEVICE void store_elements(uint8_t* base, Vec16 v, uint32_t size, uint32_t from,
                                   uint32_t to, bool aligned) {
    const uint32_t step = !aligned ? 1 : size < 8 ? size : 8;
#pragma unroll 1
    for (uint32_t at = from * size; at < to * size; at += step) {
        uint64_t bits = shift_down(v, at).lo;
        uint8_t* p = base + at;
        switch (step) {
            case 1: store(p, static_cast<uint8_t>(bits)); break;
            case 2: store(p, static_cast<uint16_t>(bits)); break;
            case 4: store(p, static_cast<uint32_t>(bits)); break;
            default: store(p, bits);
        }
    }
}

}  // namespace windrow
