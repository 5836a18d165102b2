// Host stand-in for the CUDA execution model: force-included before a .cu that g++ compiles.
#pragma once

#include <vector_functions.h>  // make_uint4 and its like
#include <vector_types.h>      // uint4, dim3, ...; outside nvcc its __global__ etc. are empty

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>

// A block runs on one OS thread and its threads are fibers of it, so thread_local is "per block".
#undef __shared__
#define __shared__ static thread_local
// nvcc takes `__shared__ alignas(16) T x[n]`; behind `static` g++ takes only its own spelling.
#define alignas(n) __attribute__((aligned(n)))
#undef __grid_constant__
#define __grid_constant__
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __maxnreg__
#define __maxnreg__(...)

// build.rs looks for kernels behind the preprocessor, whatever macros they are declared by.
#ifdef CUDASIM_SCAN
#undef __global__
#define __global__ CUDASIM_KERNEL
#endif

namespace cudasim {

struct Block;

/// One simulated GPU thread.
struct Fiber {
    uint3 tid;
    unsigned lane;
    unsigned warp;
    uint64_t slot;  // the value this lane offers to a shuffle
    Block* block;   // null in a kernel that was registered as free of barriers
};

extern thread_local Fiber* current;

/// Waits for the live threads of the block, and of the warp; ends the program in a kernel without fibers.
void barrier();
void warp_barrier();
/// The slot of another lane of this warp; null if the warp has no such lane or it has returned. Ends the program in a kernel
/// without fibers.
const uint64_t* peek(unsigned lane);
/// Ends the program with a message that names the thread.
[[noreturn]] void die(const char* why);

/// Called before every read of a sample and every store to an output: end the program if it is not in memory that is in
/// use, or if the launch has stored there before.
void on_read(const void* p, size_t bytes);
void on_write(const void* p, size_t bytes);
#define WINDROW_ON_READ(p, bytes) cudasim::on_read(p, bytes)
#define WINDROW_ON_WRITE(p, bytes) cudasim::on_write(p, bytes)

/// A kernel together with copies of its arguments.
struct Bound {
    std::function<void()> body;
    bool fibers;
};

/// Copies the arguments out of kernelParams when the kernel is launched.
struct Kernel {
    std::function<Bound(void** params)> bind;
    size_t num_params;
};

/// Makes a kernel known by its name, in place of an earlier one of that name.
void add(const char* name, Kernel kernel);

/// A call of a kernel for one thread, with copies of the parameters, which `params` points to one
/// by one.
template <class... A, size_t... I>
std::function<void()> bind_arguments(void (*kernel)(A...), void** params,
                                     std::index_sequence<I...>) {
    using Arguments = std::tuple<std::decay_t<A>...>;
    auto arguments = std::make_shared<Arguments>(*static_cast<std::decay_t<A>*>(params[I])...);
    return [kernel, arguments] { std::apply(kernel, *arguments); };
}

/// Registers a kernel; `fibers`: it uses a barrier or a warp intrinsic. The result is always 0, for
/// an initialiser.
template <class... A>
int reg(const char* name, void (*kernel)(A...), bool fibers) {
    static_assert((0 + ... + sizeof(std::decay_t<A>)) <= 32764, "too many bytes of parameters");
    auto bind = [=](void** params) {
        return Bound{bind_arguments(kernel, params, std::index_sequence_for<A...>{}), fibers};
    };
    add(name, {bind, sizeof...(A)});
    return 0;
}

/// Every live lane of the warp offers `value`; gives what lane `source` offered, or `value` itself if there is no such lane.
template <class T>
T exchange(T value, unsigned source) {
    static_assert(sizeof(T) <= 8);
    current->slot = 0;
    memcpy(&current->slot, &value, sizeof value);
    warp_barrier();  // every lane has offered its value
    T result = value;
    if (const uint64_t* bits = peek(source)) memcpy(&result, bits, sizeof result);
    warp_barrier();  // every lane has read
    return result;
}

/// The mask of the live lanes of the warp for which `value` holds.
inline unsigned ballot(bool value) {
    current->slot = value;
    warp_barrier();
    unsigned mask = 0;
    for (unsigned lane = 0; lane < 32; lane++) {
        const uint64_t* bits = peek(lane);
        if (bits && *bits) mask |= 1u << lane;
    }
    warp_barrier();
    return mask;
}

}  // namespace cudasim

// Variables rather than macros: kernels may shadow these names.
extern thread_local uint3 threadIdx, blockIdx;
extern thread_local dim3 blockDim, gridDim;
constexpr int warpSize = 32;

// ---- barriers and warps ----------------------------------------------------------------------
// Masks are not looked at: all live lanes of the warp take part.

static inline void __syncthreads() { cudasim::barrier(); }
static inline void __syncwarp(unsigned = ~0u) { cudasim::warp_barrier(); }
static inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
static inline void __threadfence_block() { __threadfence(); }
static inline void __threadfence_system() { __threadfence(); }

// A group of `width` lanes shuffles within itself, as on a GPU.
template <class T>
T __shfl_sync(unsigned, T value, int source, int width = 32) {
    unsigned lane = cudasim::current->lane;
    return cudasim::exchange(value, (lane & ~(width - 1)) | (source & (width - 1)));
}

template <class T>
T __shfl_down_sync(unsigned, T value, unsigned delta, int width = 32) {
    unsigned lane = cudasim::current->lane, within = lane & (width - 1);
    return cudasim::exchange(value, within + delta < unsigned(width) ? lane + delta : lane);
}

template <class T>
T __shfl_up_sync(unsigned, T value, unsigned delta, int width = 32) {
    unsigned lane = cudasim::current->lane, within = lane & (width - 1);
    return cudasim::exchange(value, within >= delta ? lane - delta : lane);
}

template <class T>
T __shfl_xor_sync(unsigned, T value, unsigned lanes, int width = 32) {
    unsigned lane = cudasim::current->lane, other = lane ^ lanes;
    // Reaching down into an earlier group is allowed, up into a later one gives the own value.
    bool later = other / width > lane / width;
    return cudasim::exchange(value, later ? lane : other);
}

static inline unsigned __ballot_sync(unsigned, int value) { return cudasim::ballot(value); }
static inline int __any_sync(unsigned, int value) { return cudasim::ballot(value) != 0; }
static inline int __all_sync(unsigned, int value) { return cudasim::ballot(!value) == 0; }

// ---- loads, stores, bits, arithmetic ---------------------------------------------------------

// clang-format off
template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldcg(const T* p) { return *p; }
template <class T> T __ldca(const T* p) { return *p; }
template <class T> T __ldcs(const T* p) { return *p; }
template <class T> T __ldlu(const T* p) { return *p; }
template <class T> T __ldcv(const T* p) { return *p; }
template <class T> void __stwb(T* p, T value) { *p = value; }
template <class T> void __stcg(T* p, T value) { *p = value; }
template <class T> void __stcs(T* p, T value) { *p = value; }
template <class T> void __stwt(T* p, T value) { *p = value; }

template <class T> T atomicAdd(T* p, T value) {
    std::atomic_ref<T> cell(*p);
    T old = cell.load();
    while (!cell.compare_exchange_weak(old, old + value)) {}
    return old;
}

static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    uint64_t bytes = uint64_t(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned s = selector >> 4 * i & 15, byte = bytes >> 8 * (s & 7) & 255;
        if (s & 8) byte = byte & 128 ? 255 : 0;  // this selector asks for the sign
        result |= byte << 8 * i;
    }
    return result;
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {
    return (uint64_t(hi) << 32 | lo) >> (shift & 31);
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) {
    return (uint64_t(hi) << 32 | lo) << (shift & 31) >> 32;
}
static inline unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned shift) {
    return (uint64_t(hi) << 32 | lo) >> std::min(shift, 32u);
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return uint64_t(a) * b >> 32; }
static inline int __mulhi(int a, int b) { return int64_t(a) * b >> 32; }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned __int128)a * b >> 64;
}
static inline int __clz(int x) { return std::countl_zero(unsigned(x)); }
static inline int __clzll(long long x) { return std::countl_zero((unsigned long long)x); }
static inline int __popc(unsigned x) { return std::popcount(x); }
static inline int __popcll(unsigned long long x) { return std::popcount(x); }
static inline int __ffs(int x) { return x ? std::countr_zero(unsigned(x)) + 1 : 0; }
static inline int __ffsll(long long x) {
    return x ? std::countr_zero((unsigned long long)x) + 1 : 0;
}

static inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
static inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
static inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
static inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
static inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
static inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }

static inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
static inline float __double2float_rn(double x) { return float(x); }
static inline float __int2float_rn(int x) { return float(x); }
static inline float __uint2float_rn(unsigned x) { return float(x); }
static inline float __ll2float_rn(long long x) { return float(x); }
static inline float __ull2float_rn(unsigned long long x) { return float(x); }
static inline double __ll2double_rn(long long x) { return double(x); }
static inline double __ull2double_rn(unsigned long long x) { return double(x); }
// clang-format on

static inline void __trap() { cudasim::die("kernel trap"); }

using std::max;
using std::min;
static inline unsigned min(unsigned a, int b) { return std::min(a, unsigned(b)); }
static inline unsigned min(int a, unsigned b) { return std::min(unsigned(a), b); }
