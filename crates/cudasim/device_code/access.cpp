// Loads and stores, constants, special registers, and what lanes tell each other.

#include "reach.h"
#include "warp.h"

namespace cudasim::device_code {

namespace {

unsigned words_of(const Instruction& in) { return in.bytes < 4 ? 1 : in.bytes / 4; }

/// Offsets are numbers of 24 bits with a sign, which the listing may leave to its reader.
int64_t offset_of(const Warp& warp, const Operand& memory) {
    int64_t offset = memory.value;
    if (offset >= 1 << 23) offset -= 1 << 24;
    if (offset < -(1 << 23) || offset >= 1 << 23) warp.fail("an offset of more than 24 bits");
    return offset;
}

/// The register of a lane after a load of fewer than 4 bytes.
uint32_t extended(const Instruction& in, uint32_t value) {
    if (in.has(Mod::S8)) return uint32_t(int32_t(int8_t(value)));
    if (in.has(Mod::S16)) return uint32_t(int32_t(int16_t(value)));
    return value;
}

/// 1, 2, 4, 8 or 16 bytes, without a call.
void copy_bytes(void* to, const void* from, unsigned bytes) {
    switch (bytes) {
        case 1: memcpy(to, from, 1); break;
        case 2: memcpy(to, from, 2); break;
        case 4: memcpy(to, from, 4); break;
        case 8: memcpy(to, from, 8); break;
        default: memcpy(to, from, 16);
    }
}

std::string hex(uint64_t number) {
    char text[24];
    snprintf(text, sizeof text, "%#llx", (unsigned long long)number);
    return text;
}

/// Notes the addresses of the lanes that take part in `touched`, looks at alignment and counts. Returns whether these lanes form
/// one row of adjacent bytes, as most accesses do: the row is then looked at as a whole.
bool touch(Warp& warp, const Instruction& in, const Operand& memory, Lanes active, bool may_touch(Reach&, uint64_t, uint64_t)) {
    if (!active) return false;
    uint64_t base = offset_of(warp, memory);
    if (memory.uniform != kZero) {
        base += uint64_t(warp.uniform[memory.uniform + 1]) << 32 | warp.uniform[memory.uniform];
    }
    const uint32_t *low = warp.registers[memory.index],
                   *high = warp.registers[memory.index == kZero ? kZero : memory.index + 1];
    uint64_t* addresses = warp.touched.addresses;
    for_lanes([&](int lane) { addresses[lane] = base + (uint64_t(high[lane]) << 32 | low[lane]); });
    const int first = std::countr_zero(active), count = std::popcount(active);
    const uint64_t begin = addresses[first], bytes = uint64_t(count) * in.bytes;
    uint64_t apart = active >> first == kAllLanes >> (32 - count) ? begin & (in.bytes - 1) : 1;
    for_lanes([&](int lane) {
        uint64_t from_row = addresses[lane] - (begin + uint64_t(lane - first) * in.bytes);
        apart |= active >> lane & 1 ? from_row : 0;
    });
    const bool is_row = !apart && may_touch(*warp.reach, begin, bytes);
    if (is_row) {
        warp.touched.add(begin, bytes);
    } else {
        uint64_t last = ~begin;
        for (Lanes left = active; left; left &= left - 1) {
            const int lane = std::countr_zero(left);
            const uint64_t address = addresses[lane];
            // Mostly all lanes ask for one place.
            if (address == last) continue;
            last = address;
            // A power of two: a division is a third of what a load takes.
            if (address & (in.bytes - 1)) warp.fail("address " + hex(address) + " is not a multiple of " + std::to_string(in.bytes));
            if (!may_touch(*warp.reach, address, in.bytes)) {
                auto near = warp.reach->near(address);
                warp.fail(std::to_string(in.bytes) + " bytes at " + hex(address) + " (lane " + std::to_string(lane) +
                          ") are not in memory that is allocated" +
                          (near.end ? ", which is " + hex(near.begin) + " to " + hex(near.end) + " there" : ""));
            }
            warp.touched.add(address, in.bytes);
        }
    }
    auto& accesses = warp.counts->accesses[size_t(in.access)];
    accesses.requests++;
    accesses.sectors += warp.touched.num_sectors;
    accesses.lines += warp.touched.num_lines;
    accesses.bytes += bytes;
    return is_row;
}

/// Calls `f(lane, address)` for the lanes that take part.
template <class F>
void for_addresses(const Warp& warp, Lanes active, const F& f) {
    for (Lanes left = active; left; left &= left - 1) f(std::countr_zero(left), warp.touched.addresses[std::countr_zero(left)]);
}

}  // namespace

void run_load(Warp& warp, const Instruction& in, Lanes active) {
    auto may_read = [](Reach& reach, uint64_t address, uint64_t bytes) { return reach.may_read(address, bytes); };
    const Operand& to = in[0];
    if (to.kind != Kind::reg) warp.fail("a load to this operand");
    const bool is_row = touch(warp, in, in[1], active, may_read);
    if (to.index == kZero) return;
    unsigned words = words_of(in);
    if (is_row && in.bytes >= 4) {
        const int first = std::countr_zero(active), count = std::popcount(active);
        const auto* row = reinterpret_cast<const uint32_t*>(warp.touched.addresses[first]);
        for (unsigned word = 0; word < words; word++) {
            uint32_t* lanes = &warp.registers[to.index + word][first];
            for (int lane = 0; lane < count; lane++) lanes[lane] = row[lane * words + word];
        }
        return;
    }
    for_addresses(warp, active, [&](int lane, uint64_t address) {
        uint32_t value[4] = {};
        copy_bytes(value, reinterpret_cast<const void*>(address), in.bytes);
        value[0] = extended(in, value[0]);
        for (unsigned word = 0; word < words; word++) warp.registers[to.index + word][lane] = value[word];
    });
}

void run_store(Warp& warp, const Instruction& in, Lanes active) {
    auto may_write = [](Reach& reach, uint64_t address, uint64_t bytes) { return reach.may_write(address, bytes); };
    Vector scratches[4];
    const Vector* values[4];
    const unsigned words = words_of(in);
    for (unsigned word = 0; word < words; word++) values[word] = &warp.raw(in[1], scratches[word], word);
    const bool is_row = touch(warp, in, in[0], active, may_write);
    const int first = std::countr_zero(active), count = std::popcount(active);
    const bool is_first = is_row && warp.reach->write_once(warp.touched.addresses[first], uint64_t(count) * in.bytes);
    if (is_first && in.bytes >= 4) {
        auto* row = reinterpret_cast<uint32_t*>(warp.touched.addresses[first]);
        for (unsigned word = 0; word < words; word++) {
            const uint32_t* lanes = &values[word]->lane[first];
            for (int lane = 0; lane < count; lane++) row[lane * words + word] = lanes[lane];
        }
        return;
    }
    for_addresses(warp, active, [&](int lane, uint64_t address) {
        uint32_t value[4];
        for (unsigned word = 0; word < words; word++) value[word] = (*values[word])[lane];
        if (!is_first && !warp.reach->write_once(address, in.bytes)) {
            warp.fail(std::to_string(in.bytes) + " bytes at " + hex(address) + " (lane " + std::to_string(lane) +
                      ") are written a second time");
        }
        copy_bytes(reinterpret_cast<void*>(address), value, in.bytes);
    });
}

/// LDL, STL: the frame below the stack pointer that a kernel begins with.
void run_local(Warp& warp, const Instruction& in, Lanes active) {
    bool is_load = in[0].kind == Kind::reg;
    const Operand &memory = is_load ? in[1] : in[0], &data = is_load ? in[0] : in[1];
    uint32_t frame = warp.kernel().frame_bytes, begin = kStackTop - frame;
    int64_t offset = offset_of(warp, memory);
    for (int lane = 0; lane < 32; lane++) {
        if (!(active >> lane & 1)) continue;
        uint32_t at = warp.registers[memory.index][lane] + uint32_t(offset) - begin;
        if (at % in.bytes || at > frame || in.bytes > frame - at) warp.fail("a spill outside of the kernel's frame");
        warp.touched.addresses[lane] = at;
        uint32_t value[4] = {};
        for (unsigned word = 0; word < words_of(in); word++) {
            uint32_t& home = warp.local[(at / 4 + word) * 32 + lane];
            uint32_t* number = data.index == kZero ? nullptr : &warp.registers[data.index + word][lane];
            char* place = reinterpret_cast<char*>(&home) + at % 4;
            unsigned bytes = std::min<unsigned>(in.bytes, 4);
            if (is_load) {
                memcpy(&value[word], place, bytes);
                if (number) *number = extended(in, value[word]);
            } else {
                if (number) value[word] = *number;
                memcpy(place, &value[word], bytes);
            }
        }
    }
    if (!active) return;
    // The words of all lanes are side by side.
    auto& accesses = warp.counts->accesses[size_t(Access::local)];
    accesses.requests++;
    accesses.sectors += 4 * words_of(in);
    accesses.lines += words_of(in);
    accesses.bytes += uint64_t(std::popcount(active)) * in.bytes;
}

/// LDS, STS.
void run_shared(Warp& warp, const Instruction& in, Lanes active) {
    bool is_load = in[0].kind == Kind::reg;
    const Operand &memory = is_load ? in[1] : in[0], &data = is_load ? in[0] : in[1];
    auto& shared = warp.block->shared;
    uint32_t base = uint32_t(offset_of(warp, memory)) + (memory.uniform == kZero ? 0 : warp.uniform[memory.uniform]);
    for (int lane = 0; lane < 32; lane++) {
        if (!(active >> lane & 1)) continue;
        uint32_t at = base + warp.registers[memory.index][lane];
        if (at % in.bytes || at > shared.size() || in.bytes > shared.size() - at)
            warp.fail("shared memory at " + hex(at) + ", of " + std::to_string(shared.size()) + " bytes");
        warp.touched.addresses[lane] = at;
        uint32_t value[4] = {};
        if (is_load) {
            memcpy(value, shared.data() + at, in.bytes);
            value[0] = extended(in, value[0]);
        }
        for (unsigned word = 0; word < words_of(in) && data.index != kZero; word++) {
            uint32_t& number = warp.registers[data.index + word][lane];
            (is_load ? number : value[word]) = is_load ? value[word] : number;
        }
        if (!is_load) memcpy(shared.data() + at, value, in.bytes);
    }
    auto& accesses = warp.counts->accesses[size_t(Access::shared)];
    accesses.requests += active != 0;
    accesses.bytes += uint64_t(std::popcount(active)) * in.bytes;
}

/// LDC, ULDC, LDCU: constants, at the same place for all lanes or not.
void run_ldc(Warp& warp, const Instruction& in, Lanes active) {
    const Operand& from = in[1];
    if (from.kind != Kind::constant) warp.fail("a constant was expected");
    int64_t base = from.value + (from.uniform == kZero ? 0 : warp.uniform[from.uniform]);
    unsigned bytes = std::min<unsigned>(in.bytes, 4);
    // A copy: the register may be the first of those that are written.
    Vector index;
    for_lanes([&](int l) { index[l] = from.index == kZero ? 0 : warp.registers[from.index][l]; });
    for (unsigned word = 0; word < words_of(in) && active; word++) {
        Vector result;
        // Mostly all lanes ask for the same place.
        uint32_t value = 0, of = 0;
        bool is_known = false;
        for_lanes([&](int l) {
            if (!is_known || index[l] != of) {
                bool is_asked = from.index == kZero || (active >> l & 1);
                of = index[l];
                value = is_asked ? extended(in, warp.constant(from.bank, base + of + 4 * word, bytes)) : 0;
                is_known = is_asked;
            }
            result[l] = value;
        });
        warp.put(in[0], active, result, int(word));
    }
}

/// Clears a pair of registers, or with 32 one.
void run_cs2r(Warp& warp, const Instruction& in, Lanes active) {
    if (in[1].kind != Kind::special || Special(in[1].index) != Special::zero) warp.fail("CS2R of this register");
    Vector zero = {};
    warp.put(in[0], active, zero);
    if (!in.has(Mod::b32)) warp.put(in[0], active, zero, 1);
}

void run_s2r(Warp& warp, const Instruction& in, Lanes active) {
    Vector result;
    const auto& [kernel, bank0, dim, index, shared, trace] = *warp.block;
    for_lanes([&](int l) {
        uint32_t thread = warp.first_thread + l;
        switch (Special(in[1].index)) {
            case Special::tid_x: result[l] = thread % dim.x; break;
            case Special::tid_y: result[l] = thread / dim.x % dim.y; break;
            case Special::tid_z: result[l] = thread / (dim.x * dim.y); break;
            case Special::ctaid_x: result[l] = index.x; break;
            case Special::ctaid_y: result[l] = index.y; break;
            case Special::ctaid_z: result[l] = index.z; break;
            case Special::laneid: result[l] = l; break;
            case Special::zero: result[l] = 0; break;
        }
    });
    warp.put(in[0], active, result);
}

/// Each lane takes another one's number; the predicate says whether that is within its group.
void run_shfl(Warp& warp, const Instruction& in, Lanes active) {
    Vector scratches[3], result;
    const Vector &a = warp.raw(in[2], scratches[0]), &b = warp.raw(in[3], scratches[1]), &c = warp.raw(in[4], scratches[2]);
    Lanes within = 0;
    for (int l = 0; l < 32; l++) {
        if (!(active >> l & 1)) continue;
        int by = b[l] & 31, clamp = c[l] & 31, segment = c[l] >> 8 & 31;
        int last = (l & segment) | (clamp & ~segment), from = l;
        bool is_within = false;
        if (in.has(Mod::UP)) from = l - by, is_within = from >= last;
        if (in.has(Mod::DOWN)) from = l + by, is_within = from <= last;
        if (in.has(Mod::BFLY)) from = l ^ by, is_within = from <= last;
        if (in.has(Mod::IDX)) from = (l & segment) | (by & ~segment), is_within = from <= last;
        if (!is_within) from = l;
        if (!(active >> from & 1)) warp.fail("a shuffle from lane " + std::to_string(from) + ", which is not there");
        result[l] = a[from];
        within |= Lanes(is_within) << l;
    }
    warp.put(in[1], active, result);
    warp.put(in[0], active, within);
}

void run_vote(Warp& warp, const Instruction& in, Lanes active) {
    Lanes set = warp.predicate(in[2]) & active;
    bool holds = in.has(Mod::ALL) ? set == active : in.has(Mod::ANY) ? set != 0 : !set || set == active;
    Vector result;
    for_lanes([&](int l) { result[l] = set; });
    warp.put(in[0], active, result);
    warp.put(in[1], active, holds ? kAllLanes : 0);
}

}  // namespace cudasim::device_code
