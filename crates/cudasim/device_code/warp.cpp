// Operands of a warp, and its next instruction.

#include "warp.h"

#include "reach.h"
#include "trace.h"

namespace cudasim::device_code {

void Warp::reset(BlockState& of, uint32_t thread, uint32_t num_threads, Reach& may_touch, Counts& to) {
    block = &of;
    reach = &may_touch;
    counts = &to;
    first_thread = thread;
    // A register that nothing has written is not zero. A kernel has no others than its cubin says.
    memset(registers, 0xDD, of.kernel->registers * sizeof registers[0]);
    memset(registers[kZero], 0, sizeof registers[kZero]);
    memset(uniform, 0xDD, sizeof uniform);
    memset(predicates, 0, sizeof predicates);
    memset(uniform_predicates, 0, sizeof uniform_predicates);
    memset(barriers, 0, sizeof barriers);
    uniform[kZero] = 0;
    predicates[kTrue] = kAllLanes;
    uniform_predicates[kTrue] = true;
    live = num_threads >= 32 ? kAllLanes : (1u << num_threads) - 1;
    ready.assign(1, {0, live});
    waiting.clear();
    local.assign(size_t(of.kernel->frame_bytes) / 4 * 32, 0xDDDDDDDD);
}

const Instruction& Warp::step() {
    Group& group = ready.back();
    if (group.at >= kernel().code.size()) fail("it runs beyond its end");
    const Instruction& instruction = kernel().code[group.at];
    Lanes guard = instruction.guard_uniform ? (uniform_predicates[instruction.guard] ? kAllLanes : 0)
                                            : predicates[instruction.guard];
    Lanes active = group.lanes & (instruction.guard_inverted ? ~guard : guard);
    int present = std::popcount(group.lanes);
    counts->instructions++;
    counts->lanes += present;
    counts->few += present <= 4;
    counts->units[size_t(instruction.unit)]++;
    auto& mutable_kernel = const_cast<Kernel&>(kernel());
    mutable_kernel.executed[group.at]++;
    mutable_kernel.lanes[group.at] += present;
    touched.clear();
    current = group.at;
    if (!instruction.run) {
        fail("this instruction is not known to the emulator (" + instruction.why_not +
             "): teach it in crates/cudasim/device_code/opcodes.cpp, with a test in tests/device_code/");
    }
    group.at++;
    instruction.run(*this, instruction, active);
    if (block->trace) block->trace->add(*this, instruction, active);
    return instruction;
}

void Warp::fail(const std::string& why) const {
    std::string text = why;
    char line[256];
    for (uint32_t at : {current, current + 1}) {
        if (at >= kernel().code.size()) continue;
        auto& instruction = kernel().code[at];
        snprintf(line, sizeof line, "\n  %s %05x: %s  %s", kernel().name.c_str(), 16 * at, instruction.text.c_str(),
                 instruction.line.c_str());
        text += line;
    }
    auto& index = block->index;
    snprintf(line, sizeof line, "\n  block %u,%u,%u, threads from %u, lanes %08x", index.x, index.y, index.z, first_thread,
             ready.empty() ? 0 : ready.back().lanes);
    throw Failure(text + line);
}

// ---- operands --------------------------------------------------------------------------------

uint32_t Warp::constant(uint8_t bank, int64_t offset, unsigned bytes) const {
    const std::vector<char>* words = nullptr;
    if (bank == 0) {
        words = block->bank0;
    } else if (auto found = kernel().constants.find(bank); found != kernel().constants.end()) {
        words = &found->second;
    }
    if (!words || offset < 0 || size_t(offset) + bytes > words->size()) {
        fail("a constant beyond the end of its bank: c[" + std::to_string(bank) + "][" + std::to_string(offset) + "]");
    }
    uint32_t value = 0;
    if (bytes == 4) {
        memcpy(&value, words->data() + offset, 4);
    } else {
        memcpy(&value, words->data() + offset, bytes);
    }
    return value;
}

Lanes Warp::predicate(const Operand& operand) const {
    Lanes value;
    if (operand.kind == Kind::pred) {
        value = predicates[operand.index];
    } else if (operand.kind == Kind::upred) {
        value = uniform_predicates[operand.index] ? kAllLanes : 0;
    } else {
        fail("a predicate was expected");
    }
    return operand.inverted ? ~value : value;
}

const Vector& Warp::raw(const Operand& operand, Vector& scratch, int word) const {
    uint32_t value = 0;
    switch (operand.kind) {
        case Kind::reg: {
            size_t index = operand.index == kZero ? kZero : operand.index + word;
            return *reinterpret_cast<const Vector*>(registers[index]);
        }
        case Kind::uniform: value = uniform[operand.index == kZero ? kZero : operand.index + word]; break;
        case Kind::immediate: value = word ? uint32_t(operand.value >> 32) : uint32_t(operand.value); break;
        case Kind::constant: {
            if (operand.index != kZero) fail("an indexed constant as an operand");
            value = constant(operand.bank, operand.value + 4 * word);
            break;
        }
        default: fail("a number was expected");
    }
    for_lanes([&](int i) { scratch[i] = value; });
    return scratch;
}

const Vector& Warp::integers(const Operand& operand, Vector& scratch) const {
    const Vector& value = raw(operand, scratch);
    if (operand.kind == Kind::immediate || (!operand.negative && !operand.inverted)) return value;
    if (operand.negative) {
        for_lanes([&](int i) { scratch[i] = 0 - value[i]; });
    } else {
        for_lanes([&](int i) { scratch[i] = ~value[i]; });
    }
    return scratch;
}

const Vector& Warp::floats(const Operand& operand, Vector& scratch) const {
    if (operand.kind == Kind::immediate) {
        for_lanes([&](int i) { scratch[i] = operand.bits; });
        return scratch;
    }
    const Vector& value = raw(operand, scratch);
    if (!operand.negative && !operand.absolute) return value;
    uint32_t keep = operand.absolute ? 0x7FFFFFFF : ~0u, flip = operand.negative ? 0x80000000 : 0;
    for_lanes([&](int i) { scratch[i] = (value[i] & keep) ^ flip; });
    return scratch;
}

Pairs Warp::pairs(const Operand& operand) const {
    Vector low_room, high_room;
    const Vector &low = raw(operand, low_room), &high = raw(operand, high_room, 1);
    Pairs value;
    for_lanes([&](int i) { value[i] = uint64_t(high[i]) << 32 | low[i]; });
    if (operand.kind == Kind::immediate) return value;
    if (operand.negative) for_lanes([&](int i) { value[i] = 0 - value[i]; });
    if (operand.inverted) for_lanes([&](int i) { value[i] = ~value[i]; });
    return value;
}

Doubles Warp::doubles(const Operand& operand) const {
    Pairs bits;
    if (operand.kind == Kind::immediate) {
        // The operand is the upper half of the float64, the rest being zero.
        for_lanes([&](int i) { bits[i] = uint64_t(operand.bits) << 32; });
        return std::bit_cast<Doubles>(bits);
    }
    Operand plain = operand;
    plain.negative = false;
    bits = pairs(plain);
    uint64_t keep = operand.absolute ? ~0ull >> 1 : ~0ull, flip = operand.negative ? 1ull << 63 : 0;
    for_lanes([&](int i) { bits[i] = (bits[i] & keep) ^ flip; });
    return std::bit_cast<Doubles>(bits);
}

void Warp::put(const Operand& operand, Lanes active, const Vector& value, int word) {
    if (operand.index == kZero) return;
    if (operand.kind == Kind::uniform) {
        if (active) uniform[operand.index + word] = value[std::countr_zero(active)];
        return;
    }
    if (operand.kind != Kind::reg) fail("a register was expected");
    uint32_t* to = registers[operand.index + word];
    if (active == kAllLanes) {
        memmove(to, value.lane, sizeof value.lane);
    } else {
        for_lanes([&](int i) { to[i] = active >> i & 1 ? value[i] : to[i]; });
    }
}

void Warp::put(const Operand& operand, Lanes active, const Pairs& value) {
    Vector low, high;
    for_lanes([&](int i) {
        low[i] = uint32_t(value[i]);
        high[i] = uint32_t(value[i] >> 32);
    });
    put(operand, active, low);
    put(operand, active, high, 1);
}

void Warp::put(const Operand& operand, Lanes active, Lanes value) {
    if (operand.index == kTrue) return;
    if (operand.kind == Kind::upred) {
        if (active) uniform_predicates[operand.index] = value >> std::countr_zero(active) & 1;
    } else if (operand.kind == Kind::pred) {
        auto& to = predicates[operand.index];
        to = (to & ~active) | (value & active);
    } else {
        fail("a predicate was expected");
    }
}

}  // namespace cudasim::device_code
