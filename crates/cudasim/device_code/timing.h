// A model of one multiprocessor in clocks, for ranking: it has never been compared with a GPU.
#pragma once

#include <memory>

#include "warp.h"

namespace cudasim::device_code {

/// The numbers that the model assumes: CONSTANTS of scripts/sim/gpu_model.py, with their sources.
struct Machine {
    double multiprocessors = 0, gigahertz = 0, bytes_per_second = 0, latency = 0, l1_latency = 0, l1_bytes = 0;

    /// Reads `name=number,...`; throws a Failure unless it names all of them and no other, each above 0.
    explicit Machine(const char* text);
};

/// Clocks until the last block has ended, instructions issued, and sectors that went to or came from memory.
struct Modelled {
    uint64_t clocks = 0, issued = 0, dram_sectors = 0;
};

/// Runs the blocks of the first multiprocessor, `resident` at a time: those whose number is a multiple of the
/// multiprocessors. In-order issue by four schedulers, by the compiler's own stall counts and barriers; units that are
/// busy; a first cache; one queue to memory.
Modelled run_timed(BlockState& block, uint32_t num_blocks, uint32_t resident, const Machine& machine, Reach& reach,
                   Counts& counts);

}  // namespace cudasim::device_code
