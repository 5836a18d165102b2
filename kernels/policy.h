// Numbers that tuning may change, in one place. src/cuda/launch/policy.rs has those that are chosen at run
// time. Each can be given to the compiler for a trial: -DWINDROW_BLOCKS=3.
#pragma once

#ifndef WINDROW_THREADS
#define WINDROW_THREADS 256
#endif
#ifndef WINDROW_BLOCKS
#define WINDROW_BLOCKS 4
#endif
#ifndef WINDROW_ANY_BLOCKS
#define WINDROW_ANY_BLOCKS 3
#endif
#ifndef WINDROW_QUANTISED_BLOCKS
#define WINDROW_QUANTISED_BLOCKS 2
#endif
#ifndef WINDROW_LOAD
#define WINDROW_LOAD 0
#endif
#ifndef WINDROW_STORE
#define WINDROW_STORE 2
#endif

namespace windrow {

struct Policy {
    /// Threads of a block; every launch uses exactly this many.
    static constexpr unsigned kThreads = WINDROW_THREADS;
    /// Blocks that a multiprocessor must have room for, which bounds the registers of a thread: 64 for
    /// 1024 threads.
    static constexpr unsigned kBlocks = WINDROW_BLOCKS;
    /// The same of the kernels that have all families: 80 registers, which is as many as these need.
    static constexpr unsigned kAnyBlocks = WINDROW_ANY_BLOCKS;
    /// The same of the kernel that quantises, too: 128 registers, since a lane keeps up to 32 words of its group.
    static constexpr unsigned kQuantisedBlocks = WINDROW_QUANTISED_BLOCKS;
    /// 16-byte loads of sources: 0 read-only path, as all others; 1 the same, and not kept in the
    /// first cache.
    static constexpr unsigned kLoad = WINDROW_LOAD;
    /// 16-byte stores: 0 written back whenever (the compiler makes STG.STRONG.SM of it); 1 first to
    /// leave the second cache; 2 plain ones, which may be reordered and joined.
    static constexpr unsigned kStore = WINDROW_STORE;
};

}  // namespace windrow
