// Traces of launches.

#include "trace.h"

#include <algorithm>
#include <atomic>

namespace cudasim::device_code {

namespace {

/// The generic addresses of shared and local memory: above all others.
constexpr uint64_t kSharedBase = 0xFE00000000000000, kLocalBase = 0xFF00000000000000;

template <class... T>
void append(std::string& text, const char* format, T... values) {
    char line[96];
    text.append(line, size_t(snprintf(line, sizeof line, format, values...)));
}

/// Registers that an instruction writes and reads. A pair counts where one may be meant: a conversion from float64
/// says so of its result too.
struct Registers {
    std::vector<uint16_t> written, read;

    explicit Registers(const Instruction& in) {
        static constexpr Run kNoResult[] = {run_isetp, run_fsetp, run_dsetp, run_r2p, run_brx, run_ret, run_call, run_bra};
        bool may_write = std::find(std::begin(kNoResult), std::end(kNoResult), in.run) == std::end(kNoResult);
        for (int i = 0; i < in.num_operands; i++) {
            const Operand& operand = in[i];
            bool is_predicate = operand.kind == Kind::pred || operand.kind == Kind::upred || operand.kind == Kind::preds;
            if (is_predicate) continue;
            if (operand.kind == Kind::memory) add(read, operand.index, in.access == Access::local || in.access == Access::shared ? 1 : 2);
            if (operand.kind == Kind::reg) add(may_write ? written : read, operand.index, words_of(in, i, may_write));
            // The first that is no predicate is the result, if there is one.
            may_write = false;
        }
    }

  private:
    static int words_of(const Instruction& in, int operand, bool is_written) {
        bool moves = in.access != Access::none || in.run == run_ldc;
        if (moves) return std::max(1, in.bytes / 4);
        if (in.run == run_imad && in.has(Mod::WIDE)) return is_written || operand == in.num_operands - 1 ? 2 : 1;
        if (in.run == run_cs2r) return in.has(Mod::b32) ? 1 : 2;
        return in.unit == Unit::fp64 || in.has(Mod::F64) ? 2 : 1;
    }
    static void add(std::vector<uint16_t>& to, uint16_t first, int count) {
        for (int i = 0; i < count && first != kZero; i++) to.push_back(uint16_t(first + i));
    }
};

std::string list(const std::vector<uint16_t>& registers) {
    std::string text;
    append(text, "%zu ", registers.size());
    for (auto number : registers) append(text, "R%u ", number);
    return text;
}

std::string opcode_of(const Instruction& in) {
    size_t begin = in.text.starts_with("@") ? in.text.find(' ') + 1 : 0;
    return in.text.substr(begin, in.text.find(' ', begin) - begin);
}

}  // namespace

Trace::Trace(const std::string& folder, const Kernel& kernel, const Dim3& grid, const Dim3& block, uint32_t arch, Reach& reach)
    : reach(reach), warps((block.x * block.y * block.z + 31) / 32) {
    for (auto& in : kernel.code) {
        Registers registers(in);
        named.push_back(list(registers.written) + opcode_of(in) + " " + list(registers.read));
    }
    static std::atomic<unsigned> launches = 0;
    unsigned number = ++launches;
    std::string name = "kernel-" + std::to_string(number) + ".traceg";
    FILE* list = fopen((folder + "/kernelslist.g").c_str(), "a");
    file = list ? fopen((folder + "/" + name).c_str(), "w") : nullptr;
    if (!file) throw Failure("no trace can be written to " + folder);
    fprintf(list, "%s\n", name.c_str());
    fclose(list);
    fprintf(file, "-kernel name = %s\n-kernel id = %u\n", kernel.name.c_str(), number);
    fprintf(file, "-grid dim = (%u,%u,%u)\n-block dim = (%u,%u,%u)\n", grid.x, grid.y, grid.z, block.x, block.y, block.z);
    fprintf(file, "-shmem = %u\n-nregs = %u\n-binary version = %u\n-cuda stream id = 0\n", kernel.shared_bytes, kernel.registers, arch);
    fprintf(file, "-shmem base_addr = %#llx\n-local mem base_addr = %#llx\n", (unsigned long long)kSharedBase, (unsigned long long)kLocalBase);
    fprintf(file, "-nvbit version = 1.5.5\n-accelsim tracer version = 4\n-enable lineinfo = 0\n\n#traces format = PC mask "
                  "dest_num [reg_dests] opcode src_num [reg_srcs] mem_width [address format, addresses] immediate\n");
}

Trace::~Trace() { fclose(file); }

void Trace::add(const Warp& warp, const Instruction& in, Lanes active) {
    auto& [count, text] = warps[warp.first_thread / 32];
    count++;
    append(text, "%04x %08x ", 16 * in.at, active);
    text += named[in.at];
    if (in.access == Access::none) {
        text += "0 ";
    } else {
        append(text, "%u ", in.bytes);
        add_addresses(text, warp, in, active);
    }
    text += "0\n";
}

/// Adds addresses in one of two formats: 1, the first address and the step to the next if it is the same for all lanes,
/// which have no gaps; 0, all addresses.
void Trace::add_addresses(std::string& text, const Warp& warp, const Instruction& in, Lanes active) {
    uint64_t addresses[32];
    // Each warp has a frame of its own, in which lanes are side by side.
    uint64_t frame = kLocalBase + (num_warps + warp.first_thread / 32) * warp.kernel().frame_bytes * 32;
    for (int lane = 0; lane < 32; lane++) {
        if (!(active >> lane & 1)) continue;
        uint64_t address = warp.touched.addresses[lane];
        addresses[lane] = in.access == Access::local    ? frame + address * 32 + uint64_t(lane) * in.bytes
                          : in.access == Access::shared ? kSharedBase + address
                                                        : placed(address);
    }
    int first = std::countr_zero(active), count = std::popcount(active);
    bool has_gaps = !active || active >> first != kAllLanes >> (32 - count);
    int64_t step = count > 1 && !has_gaps ? int64_t(addresses[first + 1] - addresses[first]) : 0;
    bool is_even = !has_gaps && step == int32_t(step);
    for (int i = 1; is_even && i < count; i++) is_even = int64_t(addresses[first + i] - addresses[first + i - 1]) == step;
    if (is_even) {
        append(text, "1 %#llx %d ", (unsigned long long)addresses[first], int(step));
        return;
    }
    text += "0 ";
    for (int lane = 0; lane < 32; lane++) {
        if (active >> lane & 1) append(text, "%#llx ", (unsigned long long)addresses[lane]);
    }
}

uint64_t Trace::placed(uint64_t address) {
    constexpr uint64_t kBoundary = 2 << 20;
    auto found = std::find_if(places.rbegin(), places.rend(), [&](auto& place) { return place.range.has(address, 1); });
    if (found != places.rend()) return address + found->moved;
    Reach::Range range = reach.constants.has(address, 1) ? reach.constants : reach.near(address);
    places.push_back({range, next_place - range.begin});
    next_place += (range.end - range.begin + kBoundary - 1) / kBoundary * kBoundary;
    return address + places.back().moved;
}

void Trace::end_block(const Dim3& index) {
    fprintf(file, "\n#BEGIN_TB\n\nthread block = %u,%u,%u\n", index.x, index.y, index.z);
    for (size_t i = 0; i < warps.size(); i++) {
        fprintf(file, "\nwarp = %zu\ninsts = %llu\n", i, (unsigned long long)warps[i].count);
        fwrite(warps[i].text.data(), 1, warps[i].text.size(), file);
        warps[i] = {};
    }
    fprintf(file, "\n#END_TB\n");
    num_warps += warps.size();
}

}  // namespace cudasim::device_code
