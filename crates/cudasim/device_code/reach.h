// The bytes that a launch may touch: it reads live allocations of the simulator's memory table, and writes each byte of them
// once at most.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>

namespace cudasim::device_code {

class Reach {
  public:
    /// The allocation that holds an address, as [begin, end); empty where there is none.
    struct Range {
        uint64_t begin = 0, end = 0;
        bool has(uint64_t address, uint64_t bytes) const {
            return address >= begin && address < end && bytes <= end - address;
        }
    };
    using Find = std::function<Range(uint64_t address)>;

    explicit Reach(Find find) : find(std::move(find)) {}

    /// Constants of the launch: their generic address may be read.
    Range constants;

    /// Whether a byte has one writer; not in kernels that select samples or move, whose indices may name a place twice.
    bool is_written_once = true;

    /// Whether these bytes are in one allocation; or, to read, in the constants.
    bool may_read(uint64_t address, uint64_t bytes) {
        return constants.has(address, bytes) || known(address, bytes);
    }
    bool may_write(uint64_t address, uint64_t bytes) { return known(address, bytes); }

    /// Notes a store, whose bytes are aligned to 1 to 16 of them. False, and nothing is noted, if one of them has been written
    /// before: an output has one writer, and what a second one writes may be the same.
    bool write_once(uint64_t address, uint64_t bytes) {
        if (!is_written_once) return true;
        uint64_t before = 0;
        for_words(address, bytes, [&](uint64_t& written, uint64_t mask) { before |= written & mask; });
        if (before) return false;
        for_words(address, bytes, [](uint64_t& written, uint64_t mask) { written |= mask; });
        return true;
    }

    /// The allocation that an address is in or right behind; empty if there is none.
    Range near(uint64_t address) {
        Range here = find(address);
        return here.end ? here : find(address - 1);
    }

  private:
    /// Whether these bytes are in one allocation. One that was found may stay known when it is freed.
    bool known(uint64_t address, uint64_t bytes) {
        Range& last = lasts[address >> 12 & (kLasts - 1)];
        if (last.has(address, bytes)) return true;
        Range found = find(address);
        if (!found.has(address, bytes)) return false;
        last = found;
        return true;
    }

    /// A bit for each byte of 4096.
    using Page = std::array<uint64_t, 64>;
    Page& page_of(uint64_t address) {
        const uint64_t number = address >> 12;
        auto& [last_number, last] = last_pages[number & (kLasts - 1)];
        if (!last || last_number != number) last_number = number, last = &pages[number];
        return *last;
    }

    /// Calls `f(word, mask)` for the words that have these bytes' bits.
    template <class F>
    void for_words(uint64_t address, uint64_t bytes, const F& f) {
        for (const uint64_t end = address + bytes; address < end;) {
            const uint64_t next = std::min(end, (address | 63) + 1);
            f(page_of(address)[address / 64 % 64], (~0ull >> (64 - (next - address))) << address % 64);
            address = next;
        }
    }

    static constexpr size_t kLasts = 64;
    Range lasts[kLasts];
    std::pair<uint64_t, Page*> last_pages[kLasts] = {};
    std::unordered_map<uint64_t, Page> pages;
    Find find;
};

}  // namespace cudasim::device_code
