// Runs a few instructions on registers that the caller gives, for tests.

#include <sstream>

#include "reach.h"
#include "trace.h"
#include "warp.h"

namespace cudasim::device_code {

/// The struct `State` of tests/device_code/probe.rs.
struct ProbeState {
    uint32_t registers[256][32];
    uint32_t uniform[256];
    Lanes predicates[8];
    uint32_t uniform_predicates[8];
    char constants[1024];
    char shared[1024];
    uint64_t memory_begin, memory_end;
    uint32_t num_lanes, frame_bytes;
    uint64_t instructions, sample_sectors, store_sectors, few;
    const char* trace_folder;  ///< or null
};

/// Lines of nvdisasm, labels among them; a float's bits in a comment behind its line.
static Kernel assemble(const std::string& program) {
    Kernel kernel;
    kernel.name = "probe";
    std::vector<std::string> lines;
    std::stringstream text(program);
    for (std::string line; getline(text, line);) {
        line.erase(0, line.find_first_not_of(' '));
        if (line.ends_with(":")) {
            kernel.labels[line.substr(0, line.size() - 1)] = uint32_t(lines.size());
        } else if (!line.empty()) {
            lines.push_back(line);
        }
    }
    for (auto& line : lines) {
        size_t comment = line.find("/*");
        uint64_t bits = comment == std::string::npos ? 0 : strtoull(line.c_str() + comment + 2, nullptr, 0);
        if (comment != std::string::npos) line.erase(comment, line.find("*/") + 2 - comment);
        auto instruction = parse(line, bits << 32, 0, kernel.labels);
        instruction.at = uint32_t(kernel.code.size());
        kernel.code.push_back(instruction);
    }
    kernel.executed.resize(lines.size());
    kernel.lanes.resize(lines.size());
    return kernel;
}

}  // namespace cudasim::device_code

using namespace cudasim::device_code;

/// The table of opcodes, as text.
extern "C" __attribute__((visibility("default"))) const char* cudasim_opcodes() {
    static const std::string table = opcode_table();
    return table.c_str();
}

/// Runs a program until all lanes have ended; 0, or 1 with a text of what was wrong.
extern "C" __attribute__((visibility("default"))) int cudasim_probe(const char* program, ProbeState* state, char* error,
                                                                    size_t error_bytes) {
    Kernel kernel = assemble(program);
    kernel.frame_bytes = state->frame_bytes;
    std::vector<char> constants(std::begin(state->constants), std::end(state->constants));
    BlockState block{&kernel, &constants, {32, 1, 1}, {5, 6, 7}, {std::begin(state->shared), std::end(state->shared)}};
    Reach reach([&](uint64_t) { return Reach::Range{state->memory_begin, state->memory_end}; });
    auto warp = std::make_unique<Warp>();
    Counts counts;
    warp->reset(block, 0, state->num_lanes, reach, counts);
    memcpy(warp->registers, state->registers, sizeof(uint32_t[kZero][32]));
    memcpy(warp->uniform, state->uniform, sizeof(uint32_t[kZero]));
    for (int i = 0; i < kTrue; i++) {
        warp->predicates[i] = state->predicates[i];
        warp->uniform_predicates[i] = state->uniform_predicates[i];
    }
    try {
        std::unique_ptr<Trace> trace;
        if (state->trace_folder) trace = std::make_unique<Trace>(state->trace_folder, kernel, Dim3{8, 8, 8}, block.dim, 80, reach);
        block.trace = trace.get();
        while (!warp->done()) {
            while (!warp->ready.empty()) warp->step();
            warp->leave_block_barrier();
        }
        if (trace) trace->end_block(block.index);
    } catch (Failure& failure) {
        snprintf(error, error_bytes, "%s", failure.what());
        return 1;
    }
    memcpy(state->registers, warp->registers, sizeof state->registers);
    memcpy(state->uniform, warp->uniform, sizeof state->uniform);
    memcpy(state->shared, block.shared.data(), sizeof state->shared);
    for (int i = 0; i < 8; i++) {
        state->predicates[i] = warp->predicates[i];
        state->uniform_predicates[i] = warp->uniform_predicates[i];
    }
    state->instructions = counts.instructions;
    state->few = counts.few;
    state->sample_sectors = counts.accesses[size_t(Access::sample)].sectors;
    state->store_sectors = counts.accesses[size_t(Access::store)].sectors;
    return 0;
}
