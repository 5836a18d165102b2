// Numbers that tuning may change, in one place.
#pragma once

namespace windrow {

struct Policy {
    /// Threads of a block; every launch uses exactly this many.
    static constexpr unsigned kThreads = 256;
    /// Blocks that a multiprocessor must have room for, which bounds the registers of a thread: 80
    /// for bytes alone (3 x 16 KiB of loads under way), 128 for everything. To be measured for the
    /// latter: 3 blocks, at the price of some spills around each tile.
    static constexpr unsigned kGatherBlocks = 3;
    static constexpr unsigned kAssembleBlocks = 2;
    /// kCopy: 16-byte vectors of a thread whose loads are under way together. 256 x 4 x 16 bytes
    /// are 16 KiB, the largest tile worth having.
    static constexpr unsigned kVectors = 4;
    /// kWalk: elements whose loads are under way together, and which are converted in one go.
    static constexpr unsigned kRun = 4;
    /// kPlanar: threads that share one sample where a sample has few pixels, and the number of
    /// 16-byte groups from which on the whole block shares it.
    static constexpr unsigned kTeam = 32;
    static constexpr unsigned kBlockGroups = 128;
};

}  // namespace windrow
