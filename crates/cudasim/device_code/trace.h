// Traces of the warps of a launch, in the format of Accel-Sim's tracer.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "reach.h"
#include "warp.h"

namespace cudasim::device_code {

/// The trace of one launch: FOLDER/kernel-N.traceg, which FOLDER/kernelslist.g names. The format is that of version 4:
/// for each warp of each block its instructions in the order of execution, a line each, of PC, active lanes, registers
/// written, opcode, registers read, and bytes and addresses of an access. Predicates and uniform registers have no place
/// in it. Addresses are those of a process that got its allocations one after the other from 2^40 on, each on a boundary
/// of 2 MiB, in the order in which the kernel touches them: they are the same in every run.
class Trace {
  public:
    /// Throws a Failure if the folder cannot be written to.
    Trace(const std::string& folder, const Kernel& kernel, const Dim3& grid, const Dim3& block, uint32_t arch, Reach& reach);
    ~Trace();
    Trace(const Trace&) = delete;

    /// An instruction after its execution, by the lanes for which its guard held.
    void add(const Warp& warp, const Instruction& in, Lanes active);
    /// Writes what the warps of a block have executed.
    void end_block(const Dim3& index);

  private:
    struct Lines {
        uint64_t count = 0;
        std::string text;
    };
    struct Place {
        Reach::Range range;
        uint64_t moved;  ///< what is added to an address
    };

    void add_addresses(std::string& text, const Warp& warp, const Instruction& in, Lanes active);
    /// An address as the trace has it.
    uint64_t placed(uint64_t address);

    FILE* file;
    Reach& reach;
    std::vector<Lines> warps;
    std::vector<std::string> named;  ///< registers and opcode of each instruction
    std::vector<Place> places;
    uint64_t next_place = 1ull << 40;
    uint64_t num_warps = 0;  ///< warps of the blocks that have ended
};

}  // namespace cudasim::device_code
