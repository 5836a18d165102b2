// Kernels for the simulator's own tests.

#include <cuda_fp16.h>
#include <stdint.h>

struct SimGather {
    const uint32_t* src;
    uint32_t* dst;
    const int64_t* idx;
    uint64_t rows;
    uint64_t row_words;
};

/// An index that no row has comes from poison: a wait is missing.
extern "C" __global__ void sim_gather(const __grid_constant__ SimGather p) {
    uint64_t count = p.rows * p.row_words, step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count; i += step) {
        uint64_t row = i / p.row_words, column = i % p.row_words;
        int64_t from = p.idx[row];
        bool poisoned = from < 0 || from > 1 << 20;
        p.dst[i] = poisoned ? 0xBAD : p.src[from * p.row_words + column];
    }
}

extern "C" __global__ void __launch_bounds__(256)
    sim_fill(uint32_t* dst, uint64_t count, uint32_t value) {
    uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    if (i < count) dst[i] = value + (uint32_t)i;
}

extern "C" __global__ void sim_halve(const uint8_t* src, __half* dst, uint64_t count) {
    uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    if (i < count) dst[i] = __float2half_rn(src[i] * 0.5f);
}

/// One block per row: shared memory, a block barrier and warp shuffles.
// cudasim: fibers
extern "C" __global__ void __launch_bounds__(256)
    sim_row_sum(const float* x, float* out, int cols) {
    __shared__ alignas(16) float part[32];
    float sum = 0.f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) sum += x[(size_t)blockIdx.x * cols + c];
    for (int o = 16; o; o >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, o);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.f;
        for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
        if (threadIdx.x == 0) out[blockIdx.x] = sum;
    }
}

/// Half of the threads wait for the block, the others for their warp.
// cudasim: fibers
extern "C" __global__ void sim_diverge(int) {
    if (threadIdx.x & 1)
        __syncthreads();
    else
        __syncwarp();
}

/// A barrier in a kernel that is not marked.
extern "C" __global__ void sim_unmarked(int) { __syncthreads(); }

struct SimLarge {
    uint32_t* dst;
    uint32_t words[8188];
};

/// A kernel with the most bytes of parameters that a launch may have.
extern "C" __global__ void sim_large(const __grid_constant__ SimLarge p) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < 8188) p.dst[i] = p.words[i];
}

/// A plain copy: 16 bytes a lane, four of them under way. Traces of it are what others are compared with.
extern "C" __global__ void __launch_bounds__(256)
    sim_copy(const uint4* __restrict__ src, uint4* __restrict__ dst, uint64_t count) {
    uint64_t first = blockIdx.x * 4ull * blockDim.x + threadIdx.x;
    uint4 words[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint64_t i = first + k * blockDim.x;
        if (i < count) words[k] = __ldg(src + i);
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint64_t i = first + k * blockDim.x;
        if (i < count) dst[i] = words[k];
    }
}
