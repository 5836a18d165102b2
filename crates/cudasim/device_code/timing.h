// A model of one multiprocessor in clocks, for ranking: it has never been compared with a GPU.
#pragma once

#include <memory>

#include "warp.h"

namespace cudasim::device_code {

/// The numbers that the model assumes; scripts/gpu_model says where they come from.
struct Machine {
    double multiprocessors = 132, gigahertz = 1.755, bytes_per_second = 4.3e12;
    double latency = 800, l1_latency = 38, l1_bytes = 192 << 10;

    /// From `name=number,...`.
    explicit Machine(const char* text);
};

struct Modelled {
    uint64_t clocks = 0, issued = 0, dram_sectors = 0;
};

/// Runs the blocks of the first multiprocessor, `resident` at a time: those whose number is a multiple of the
/// multiprocessors. In-order issue by four schedulers, by the compiler's own stall counts and barriers; units that are
/// busy; a first cache; one queue to memory.
Modelled run_timed(BlockState& block, uint32_t num_blocks, uint32_t resident, const Machine& machine, Reach& reach,
                   Counts& counts);

}  // namespace cudasim::device_code
