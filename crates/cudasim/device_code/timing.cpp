// The model of one multiprocessor.

#include "timing.h"

#include <algorithm>
#include <list>
#include <queue>
#include <sstream>
#include <unordered_map>

#include "reach.h"

namespace cudasim::device_code {

Machine::Machine(const char* text) {
    std::stringstream list(text);
    for (std::string entry; getline(list, entry, ',');) {
        size_t equals = entry.find('=');
        std::string name = entry.substr(0, equals);
        double* to = name == "multiprocessors"    ? &multiprocessors
                     : name == "gigahertz"        ? &gigahertz
                     : name == "bytes_per_second" ? &bytes_per_second
                     : name == "latency"          ? &latency
                     : name == "l1_latency"       ? &l1_latency
                     : name == "l1_bytes"         ? &l1_bytes
                                                  : nullptr;
        if (!to || equals == std::string::npos) throw Failure("CUDASIM_TIMING has no " + entry);
        *to = strtod(entry.c_str() + equals + 1, nullptr);
    }
    for (double number : {multiprocessors, gigahertz, bytes_per_second, latency, l1_latency, l1_bytes}) {
        if (!(number > 0)) throw Failure("CUDASIM_TIMING needs all of its numbers: see scripts/sim/gpu_model.py");
    }
}

namespace {

/// Sectors in the first cache, the one used longest ago leaving first.
class Cache {
  public:
    explicit Cache(size_t capacity) : capacity(capacity) {}
    /// Whether the sector was there; it is now.
    bool touch(uint64_t sector) {
        auto found = places.find(sector);
        bool hit = found != places.end();
        if (hit) order.erase(found->second);
        order.push_front(sector);
        places[sector] = order.begin();
        if (places.size() > capacity) {
            places.erase(order.back());
            order.pop_back();
        }
        return hit;
    }

  private:
    size_t capacity;
    std::list<uint64_t> order;
    std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places;
};

/// Clocks that a unit is busy with one warp's instruction.
uint64_t busy_for(const Instruction& in) {
    switch (in.unit) {
        case Unit::alu:
        case Unit::fp64:
        case Unit::uniform: return 2;
        case Unit::xu: return 8;
        default: return 1;
    }
}

struct Slot {
    std::unique_ptr<Warp> warp = std::make_unique<Warp>();
    uint64_t ready = 0, age = 0;
    int pending[6] = {};
    bool live = false;
};

struct Event {
    uint64_t at;
    size_t slot;
    int barrier;
    uint64_t age;
    bool operator<(const Event& other) const { return at > other.at; }
};

constexpr int kSchedulers = 4;

class Multiprocessor {
  public:
    Multiprocessor(BlockState& first, uint32_t num_blocks, uint32_t resident, const Machine& machine, Reach& reach, Counts& counts)
        : machine(machine), reach(reach), counts(counts), num_blocks(num_blocks),
          step(uint32_t(machine.multiprocessors)), warps_of_block((first.dim.x + 31) / 32), blocks(resident, first),
          slots(resident * warps_of_block), cache(size_t(machine.l1_bytes) / 32) {
        for (size_t i = 0; i < resident; i++) start(i);
    }

    Modelled run() {
        while (true) {
            for (; !events.empty() && events.top().at <= clock; events.pop()) {
                auto& slot = slots[events.top().slot];
                if (slot.age == events.top().age) slot.pending[events.top().barrier]--;
            }
            bool any = false, issued = false;
            uint64_t soonest = ~0ull;
            for (int scheduler = 0; scheduler < kSchedulers; scheduler++) issued |= issue(scheduler, any, soonest);
            if (!any) break;
            if (!issued && !events.empty()) soonest = std::min(soonest, events.top().at);
            clock = issued || soonest == ~0ull ? clock + 1 : std::max(clock + 1, soonest);
        }
        modelled.clocks = std::max(clock, uint64_t(memory_free));
        return modelled;
    }

  private:
    void start(size_t place) {
        if (next >= num_blocks) return;
        blocks[place].index = {next, 0, 0};
        next += step;
        for (size_t i = 0; i < warps_of_block; i++) {
            auto& slot = slots[place * warps_of_block + i];
            slot.warp->reset(blocks[place], 32 * i, blocks[place].dim.x - 32 * i, reach, counts);
            slot.live = true;
            slot.ready = clock + 20;
            slot.age = ++ages;
            std::fill(std::begin(slot.pending), std::end(slot.pending), 0);
        }
    }

    bool issue(int scheduler, bool& any, uint64_t& soonest) {
        size_t best = slots.size();
        for (size_t i = scheduler; i < slots.size(); i += kSchedulers) {
            auto& slot = slots[i];
            if (!slot.live) continue;
            any = true;
            if (slot.warp->ready.empty()) continue;  // at a barrier of the block
            if (slot.ready > clock) {
                soonest = std::min(soonest, slot.ready);
                continue;
            }
            auto& in = slot.warp->kernel().code[slot.warp->ready.back().at];
            bool waits = false;
            for (int k = 0; k < 6; k++) waits |= (in.waits_for >> k & 1) && slot.pending[k];
            if (waits) continue;
            bool is_far = in.access != Access::none && queue > clock + 32;
            if (unit_free[scheduler][size_t(in.unit)] > clock || is_far) {
                soonest = std::min(soonest, clock + 1);
                continue;
            }
            // The one that was issued last goes on, else the oldest.
            if (best == slots.size() || i == last[scheduler] || (best != last[scheduler] && slot.age < slots[best].age)) best = i;
        }
        if (best == slots.size()) return false;
        last[scheduler] = best;
        run_one(scheduler, best);
        return true;
    }

    void run_one(int scheduler, size_t number) {
        auto& slot = slots[number];
        auto& in = slot.warp->step();
        modelled.issued++;
        bool is_multiplication = in.run == run_imad && !in.has(Mod::MOV);
        unit_free[scheduler][size_t(in.unit)] = clock + (is_multiplication ? 2 : busy_for(in));
        slot.ready = clock + std::max<uint64_t>(1, in.stall);
        uint64_t written = clock + (in.unit == Unit::xu ? 20 : in.unit == Unit::fp64 ? 16 : 12), read = clock + 10;
        if (in.access != Access::none) to_memory(in, slot.warp->touched, written, read);
        if (in.sets_on_write < 6) slot.pending[in.sets_on_write]++, events.push({written, number, in.sets_on_write, slot.age});
        if (in.sets_on_read < 6) slot.pending[in.sets_on_read]++, events.push({read, number, in.sets_on_read, slot.age});
        size_t place = number / warps_of_block;
        auto begin = slots.begin() + place * warps_of_block, end = begin + warps_of_block;
        if (slot.warp->ready.empty() && std::all_of(begin, end, [](auto& other) { return other.warp->ready.empty(); })) {
            for (auto other = begin; other != end; ++other) other->warp->leave_block_barrier();
        }
        slot.live = !slot.warp->done();
        if (std::none_of(begin, end, [](auto& other) { return other.live; })) start(place);
    }

    void to_memory(const Instruction& in, const Touched& touched, uint64_t& written, uint64_t& read) {
        uint64_t begin = std::max(queue, clock);
        // Spills and shared memory are counted as one line of the cache.
        queue = begin + std::max<uint64_t>({1, touched.num_lines, (touched.num_sectors + 3) / 4});
        read = queue + 6;
        written = queue + uint64_t(machine.l1_latency);
        double bytes_per_clock = machine.bytes_per_second / machine.multiprocessors / machine.gigahertz / 1e9;
        for (uint32_t i = 0; i < touched.num_sectors; i++) {
            uint64_t sector = touched.sectors[i];
            bool is_store = in.access == Access::store;
            if (reach.constants.has(sector * 32, 1) || (!is_store && cache.touch(sector))) continue;
            modelled.dram_sectors++;
            memory_free = std::max(memory_free, double(begin)) + 32 / bytes_per_clock;
            if (!is_store) {
                written = std::max(written, uint64_t(memory_free + machine.latency));
            } else if (memory_free > double(begin) + 4000) {
                queue = std::max(queue, uint64_t(memory_free) - 4000);  // what waits to be written is full
            }
        }
    }

    const Machine& machine;
    Reach& reach;
    Counts& counts;
    uint32_t num_blocks, step, next = 0;
    size_t warps_of_block;
    std::vector<BlockState> blocks;
    std::vector<Slot> slots;
    Cache cache;
    Modelled modelled;
    std::priority_queue<Event> events;
    uint64_t clock = 0, ages = 0, queue = 0;
    double memory_free = 0;
    uint64_t unit_free[kSchedulers][size_t(Unit::count)] = {};
    size_t last[kSchedulers] = {~size_t(0), ~size_t(0), ~size_t(0), ~size_t(0)};
};

}  // namespace

Modelled run_timed(BlockState& block, uint32_t num_blocks, uint32_t resident, const Machine& machine, Reach& reach,
                   Counts& counts) {
    return Multiprocessor(block, num_blocks, std::max(resident, 1u), machine, reach, counts).run();
}

}  // namespace cudasim::device_code
