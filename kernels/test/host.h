// The execution model for barrier-free kernels on the host. Force-included.
#pragma once

#include <vector_types.h>  // outside nvcc its __global__, __device__ etc. are empty

#include <cmath>
#include <cstddef>

#undef __grid_constant__
#define __grid_constant__
#undef __launch_bounds__
#define __launch_bounds__(...)

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

void on_read(const void* p, size_t bytes);
#define WINDROW_ON_READ(p, bytes) on_read(p, bytes)

/// Runs a kernel, thread by thread.
template <class P>
void launch(void (*kernel)(P), unsigned blocks, unsigned threads, const P& params) {
    gridDim = dim3(blocks);
    blockDim = dim3(threads);
    for (blockIdx = {0, 0, 0}; blockIdx.x < blocks; ++blockIdx.x) {
        for (threadIdx = {0, 0, 0}; threadIdx.x < threads; ++threadIdx.x) {
            kernel(params);
        }
    }
}
