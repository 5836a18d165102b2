// The peers of windrow on a device, and helpers of the bench: plain C functions
// that enqueue on a stream and give a cudaError_t.
//
// Built by scripts/gpu/bundle.sh into a library of its own with the CUDA runtime inside; the bench loads
// it if it is there.

#include <cstdint>

#include <cub/device/device_memcpy.cuh>
#include <cuda_runtime.h>

#define PEER extern "C" __attribute__((visibility("default"))) int

namespace {

__global__ void nothing() {}

/// Keeps the stream busy, so that what follows is enqueued before the first of it begins.
__global__ void spin(uint64_t nanoseconds) {
    uint64_t begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - begin < nanoseconds);
}

/// 16 bytes for each lane, four of them under way at once.
__global__ void __launch_bounds__(256) copy16(uint4* to, const uint4* from, uint64_t count) {
    constexpr int unroll = 4;
    uint64_t stride = uint64_t(gridDim.x) * blockDim.x * unroll;
    uint64_t first = uint64_t(blockIdx.x) * blockDim.x * unroll + threadIdx.x;
    for (uint64_t at = first; at < count; at += stride) {
        uint4 words[unroll];
#pragma unroll
        for (int i = 0; i < unroll; i++) {
            uint64_t index = at + uint64_t(i) * blockDim.x;
            if (index < count) words[i] = __ldcs(from + index);
        }
#pragma unroll
        for (int i = 0; i < unroll; i++) {
            uint64_t index = at + uint64_t(i) * blockDim.x;
            if (index < count) to[index] = words[i];
        }
    }
}

template <typename Word>
__device__ void copy_by(char* to, const char* from, uint64_t bytes) {
    uint64_t count = bytes / sizeof(Word);
    for (uint64_t i = threadIdx.x; i < count; i += blockDim.x)
        reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
    for (uint64_t i = count * sizeof(Word) + threadIdx.x; i < bytes; i += blockDim.x)
        to[i] = from[i];
}

/// The work split that inference servers use: a block for each buffer, whatever its size, in words
/// of 4 bytes where addresses allow it.
__global__ void __launch_bounds__(512)
    block_per_buffer(char* const* to, const char* const* from, const uint64_t* bytes) {
    char* own = to[blockIdx.x];
    const char* source = from[blockIdx.x];
    bool aligned = (uintptr_t(own) | uintptr_t(source)) % 4 == 0;
    if (aligned)
        copy_by<uint32_t>(own, source, bytes[blockIdx.x]);
    else
        copy_by<char>(own, source, bytes[blockIdx.x]);
}

}  // namespace

PEER peer_nothing(cudaStream_t stream) {
    nothing<<<1, 32, 0, stream>>>();
    return cudaGetLastError();
}

PEER peer_spin(uint64_t nanoseconds, cudaStream_t stream) {
    spin<<<1, 1, 0, stream>>>(nanoseconds);
    return cudaGetLastError();
}

/// `bytes` is a multiple of 16.
PEER peer_copy16(void* to, const void* from, uint64_t bytes, cudaStream_t stream) {
    int device = 0, num_sms = 0;
    if (cudaError_t code = cudaGetDevice(&device)) return code;
    if (cudaError_t code =
            cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device))
        return code;
    uint64_t needed = (bytes / 16 + 1023) / 1024;
    unsigned most = unsigned(num_sms) * 8;
    unsigned grid = needed < most ? unsigned(needed) : most;
    copy16<<<grid ? grid : 1, 256, 0, stream>>>(static_cast<uint4*>(to),
                                               static_cast<const uint4*>(from), bytes / 16);
    return cudaGetLastError();
}

/// Addresses and sizes are on the device.
PEER peer_block_per_buffer(void* to, const void* from, const uint64_t* bytes, uint32_t count,
                           cudaStream_t stream) {
    block_per_buffer<<<count, 512, 0, stream>>>(static_cast<char* const*>(to),
                                                static_cast<const char* const*>(from), bytes);
    return cudaGetLastError();
}

/// CUB. With `scratch` null it only says how much scratch memory it needs.
PEER peer_cub(void* scratch, size_t* scratch_bytes, const void* from, void* to,
              const uint64_t* bytes, uint32_t count, cudaStream_t stream) {
    return cub::DeviceMemcpy::Batched(scratch, *scratch_bytes,
                                      static_cast<const void* const*>(from),
                                      static_cast<void* const*>(to), bytes, int64_t(count), stream);
}
