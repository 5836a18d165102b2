// A launch: its constants, then block by block, warp by warp.

#include "launch.h"

#include <cstdlib>
#include <mutex>

#include "timing.h"
#include "trace.h"

namespace cudasim::device_code {

namespace {

Image* the_image = nullptr;

void at_end() {
    if (const char* path = getenv("CUDASIM_COVERAGE")) write_coverage(path, *the_image);
    if (const char* path = getenv("CUDASIM_LINES")) write_lines(path, *the_image);
}

Image* load() {
    const char* path = getenv("CUDASIM_DEVICE_CODE");
    if (!path) return nullptr;
    std::string cubin = path;
    try {
        auto* image = new Image(read_cubin(cubin));
        read_listing(cubin.substr(0, cubin.rfind('.')) + ".sass", *image);
        the_image = image;
    } catch (std::exception& error) {
        fprintf(stderr, "cudasim: CUDASIM_DEVICE_CODE=%s: %s\n  made by scripts/sim/device_code.py\n", path, error.what());
        abort();
    }
    atexit(at_end);
    return the_image;
}

/// The constant-bank positions of a launch's properties, by generation. They are read off the loads in nvcc's code.
struct Places {
    uint32_t first_parameter, block, grid, stack;
    uint32_t generic;       ///< the address of `generic_of` as memory
    bool generic_of_bank;   ///< that of the bank itself, or of the parameters
};
Places places_of(uint32_t arch) {
    if (arch >= 100) return {0x380, 0x360, 0x370, 0x37C, 0x348, false};
    if (arch >= 90) return {0x210, 0x0, 0xC, 0x28, 0x198, false};
    return {0x160, 0x0, 0xC, 0x28, 0x40, true};
}

std::vector<char> bank_of(const Kernel& kernel, const Launch& launch) {
    std::vector<char> bank;
    if (auto found = kernel.constants.find(0); found != kernel.constants.end()) bank = found->second;
    bank.resize(std::max<size_t>(bank.size(), kernel.first_parameter + launch.parameters.size()));
    memcpy(bank.data() + kernel.first_parameter, launch.parameters.data(), launch.parameters.size());
    Places places = places_of(the_image->arch);
    auto put = [&](uint32_t at, auto value) {
        if (at + sizeof value <= bank.size()) memcpy(bank.data() + at, &value, sizeof value);
    };
    for (uint32_t i = 0; i < 3; i++) {
        put(places.block + 4 * i, launch.block[i]);
        put(places.grid + 4 * i, launch.grid[i]);
    }
    put(places.stack, kStackTop);
    put(places.generic, uint64_t(bank.data()) + (places.generic_of_bank ? 0 : kernel.first_parameter));
    return bank;
}

/// Runs the warps of a block until all have ended, each for as long as it meets no barrier of the block.
void run_warps(BlockState& block, std::vector<std::unique_ptr<Warp>>& warps, Reach& reach, Counts& counts) {
    uint32_t threads = block.dim.x * block.dim.y * block.dim.z;
    size_t num_warps = (threads + 31) / 32;
    if (!block.kernel->has_barriers) {
        for (size_t i = 0; i < num_warps; i++) {
            warps[0]->reset(block, 32 * i, threads - 32 * i, reach, counts);
            while (!warps[0]->done()) warps[0]->step();
        }
        return;
    }
    while (warps.size() < num_warps) warps.push_back(std::make_unique<Warp>());
    for (size_t i = 0; i < num_warps; i++) warps[i]->reset(block, 32 * i, threads - 32 * i, reach, counts);
    for (bool live = true; live;) {
        live = false;
        for (size_t i = 0; i < num_warps; i++) {
            while (!warps[i]->ready.empty()) warps[i]->step();
            live |= !warps[i]->done();
        }
        // All warps that have not ended are at the barrier now.
        for (size_t i = 0; i < num_warps; i++) warps[i]->leave_block_barrier();
    }
}

void run_block(BlockState& block, std::vector<std::unique_ptr<Warp>>& warps, Reach& reach, Counts& counts) {
    std::fill(block.shared.begin(), block.shared.end(), char(0xDD));
    run_warps(block, warps, reach, counts);
    if (block.trace) block.trace->end_block(block.index);
}

/// The trace of a launch where CUDASIM_DEVICE_CODE_TRACE names a folder for it, or null.
std::unique_ptr<Trace> trace_of(const BlockState& block, const Launch& launch, Reach& reach) {
    const char* folder = getenv("CUDASIM_DEVICE_CODE_TRACE");
    if (!folder) return nullptr;
    if (getenv("CUDASIM_TIMING")) throw Failure("a launch is either traced or timed");
    Dim3 grid{launch.grid[0], launch.grid[1], launch.grid[2]};
    return std::make_unique<Trace>(folder, *block.kernel, grid, block.dim, image()->arch, reach);
}

}  // namespace

Image* image() {
    static Image* const loaded = load();
    return loaded;
}

Kernel* find_kernel(const std::string& name) {
    if (!image()) return nullptr;
    auto found = image()->kernels.find(name);
    return found == image()->kernels.end() ? nullptr : &found->second;
}

std::vector<char> parameters_of(const Kernel& kernel, void** arguments) {
    std::vector<char> bytes(kernel.parameter_bytes);
    for (size_t i = 0; i < kernel.parameters.size(); i++) {
        memcpy(bytes.data() + kernel.parameters[i].offset, arguments[i], kernel.parameters[i].bytes);
    }
    return bytes;
}

uint32_t resident_blocks(const Kernel& kernel, uint32_t arch, uint32_t threads) {
    // CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". Registers are given to
    // warps in units of 256.
    uint32_t most_threads = arch == 75 ? 1024 : arch == 86 || arch == 89 || arch >= 120 ? 1536 : 2048;
    uint32_t most_blocks = arch == 75 || arch == 86 ? 16 : arch == 89 || arch >= 120 ? 24 : 32;
    uint32_t warps = (threads + 31) / 32, of_warp = (kernel.registers + 7) / 8 * 8 * 32;
    uint32_t by_registers = of_warp ? 65536 / of_warp / warps : most_blocks;
    return std::min({by_registers, most_threads / (32 * warps), most_blocks});
}

void run(Kernel& kernel, const Launch& launch, Reach::Find find) {
    static std::mutex one_at_a_time;
    std::lock_guard lock(one_at_a_time);
    static std::vector<std::unique_ptr<Warp>> warps;
    if (warps.empty()) warps.push_back(std::make_unique<Warp>());
    std::vector<char> bank = bank_of(kernel, launch);
    Reach reach(std::move(find));
    // Indices may name a place twice, or several that are out of range.
    auto begins = [&](const char* name) { return kernel.name.rfind(name, 0) == 0; };
    reach.is_written_once = !begins("windrow_select") && !begins("windrow_move");
    reach.constants = {uint64_t(bank.data()), uint64_t(bank.data()) + bank.size()};
    Counts counts;
    BlockState block{&kernel, &bank, {launch.block[0], launch.block[1], launch.block[2]}, {}, {}};
    block.shared.resize(kernel.shared_bytes + launch.shared_bytes);
    const char* timing = getenv("CUDASIM_TIMING");
    std::string modelled;
    uint32_t timed = 0;  // the model runs one in this many blocks
    try {
        auto trace = trace_of(block, launch, reach);
        block.trace = trace.get();
        if (timing) {
            Machine machine(timing);
            timed = uint32_t(machine.multiprocessors);
            // The grid has one dim, as all of windrow's have.
            uint32_t resident = resident_blocks(kernel, image()->arch, launch.block[0]);
            Modelled model = run_timed(block, launch.grid[0], resident, machine, reach, counts);
            char text[96];
            snprintf(text, sizeof text, ", \"model_us\": %.3f, \"model_ipc\": %.3f", double(model.clocks) / machine.gigahertz / 1e3,
                     double(model.issued) / double(std::max<uint64_t>(1, model.clocks)));
            modelled = text;
        }
        for (uint32_t z = 0; z < launch.grid[2]; z++) {
            for (uint32_t y = 0; y < launch.grid[1]; y++) {
                for (uint32_t x = 0; x < launch.grid[0]; x++) {
                    if (timed && x % timed == 0) continue;  // has been run
                    block.index = {x, y, z};
                    run_block(block, warps, reach, counts);
                }
            }
        }
    } catch (Failure& failure) {
        fprintf(stderr, "cudasim: machine code: %s\n", failure.what());
        abort();
    }
    if (const char* path = getenv("CUDASIM_COUNTS")) {
        FILE* file = fopen(path, "a");
        if (!file) {
            fprintf(stderr, "cudasim: CUDASIM_COUNTS=%s cannot be written\n", path);
            abort();
        }
        char about[160];
        snprintf(about, sizeof about, "\"arch\": %u, \"grid\": %u, \"block\": %u", image()->arch, launch.grid[0], launch.block[0]);
        counts.write(file, kernel, about + modelled);
        fclose(file);
    }
}

}  // namespace cudasim::device_code
