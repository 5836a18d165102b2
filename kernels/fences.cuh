// Fences against the optimiser. They emit no instruction: each use is there for the instructions that it saves.
#pragma once

#include "memory.cuh"

namespace windrow {

/// A word of any value, which takes no instruction: for lanes that read nothing and store nothing. With zeros in its place 25 of 30
/// workloads take more instructions on sm_90, rows of 32 KiB at any address 29.0 for 16 bytes in place of 25.5.
WINDROW_DEVICE uint32_t undef_u32() {
#ifdef __CUDA_ARCH__
    uint32_t word;
    asm("" : "=r"(word));
    return word;
#else
    return 0;
#endif
}

/// Makes the compiler branch around what follows in its block, instead of doing it for all and choosing. Without it float32 to float8
/// takes 57.6 instructions for 16 bytes on sm_90 in place of 55.5, bfloat16 to float8_e5m2 58.3 in place of 57.2.
WINDROW_DEVICE void force_branch() {
#ifdef __CUDA_ARCH__
    asm volatile("");
#endif
}

/// Makes the compiler forget what it knows of a word: what is made of it is made in each turn of a loop, in place of
/// registers for all of it. Without it strided loops spill (2.1 requests for 512 bytes on sm_90), and int64 to int32
/// takes 27.4 instructions for 16 bytes in place of 26.4.
WINDROW_DEVICE void opaque(uint32_t& word) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+r"(word));
#else
    (void)word;
#endif
}

}  // namespace windrow
