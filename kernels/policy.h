// Numbers that tuning may change, in one place. src/cuda/policy.rs has those that are chosen at run
// time. Each can be given to the compiler for a trial: -DWINDROW_VECTORS=8.
#pragma once

#ifndef WINDROW_THREADS
#define WINDROW_THREADS 256
#endif
#ifndef WINDROW_GATHER_BLOCKS
#define WINDROW_GATHER_BLOCKS 3
#endif
#ifndef WINDROW_ASSEMBLE_BLOCKS
#define WINDROW_ASSEMBLE_BLOCKS 2
#endif
#ifndef WINDROW_VECTORS
#define WINDROW_VECTORS 4
#endif
#ifndef WINDROW_RUN
#define WINDROW_RUN 4
#endif
#ifndef WINDROW_LOAD
#define WINDROW_LOAD 0
#endif
#ifndef WINDROW_STORE
#define WINDROW_STORE 0
#endif

namespace windrow {

struct Policy {
    /// Threads of a block; every launch uses exactly this many.
    static constexpr unsigned kThreads = WINDROW_THREADS;
    /// Blocks that a multiprocessor must have room for, which bounds the registers of a thread: 80
    /// for bytes alone (3 x 16 KiB of loads under way), 128 for everything. To be measured for the
    /// latter: 3 blocks, at the price of some spills around each tile.
    static constexpr unsigned kGatherBlocks = WINDROW_GATHER_BLOCKS;
    static constexpr unsigned kAssembleBlocks = WINDROW_ASSEMBLE_BLOCKS;
    /// kCopy: 16-byte vectors of a thread whose loads are under way together. 256 x 4 x 16 bytes
    /// are 16 KiB, the largest tile worth having.
    static constexpr unsigned kVectors = WINDROW_VECTORS;
    /// kWalk: elements whose loads are under way together, and which are converted in one go.
    static constexpr unsigned kRun = WINDROW_RUN;
    /// kPlanar: threads that share one sample where a sample has few pixels, and the number of
    /// 16-byte groups from which on the whole block shares it.
    static constexpr unsigned kTeam = 32;
    static constexpr unsigned kBlockGroups = 128;
    /// 16-byte loads of sources: 0 read-only path, as all others; 1 the same, and not kept in the
    /// first cache.
    static constexpr unsigned kLoad = WINDROW_LOAD;
    /// 16-byte stores: 0 written back whenever (the compiler makes STG.STRONG.SM of it); 1 first to
    /// leave the second cache; 2 plain ones.
    static constexpr unsigned kStore = WINDROW_STORE;
};

}  // namespace windrow
