// The bytes that machine code may touch: live allocations of the simulator's memory table.
#pragma once

#include <cstdint>
#include <functional>

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

    bool may_read(uint64_t address, uint64_t bytes) {
        return constants.has(address, bytes) || known(address, bytes);
    }
    bool may_write(uint64_t address, uint64_t bytes) { return known(address, bytes); }

    /// For a message: the allocation that an address is in or right behind.
    Range near(uint64_t address) {
        Range here = find(address);
        return here.end ? here : find(address - 1);
    }

  private:
    bool known(uint64_t address, uint64_t bytes) {
        Range& last = lasts[address >> 12 & (kLasts - 1)];
        if (last.has(address, bytes)) return true;
        Range found = find(address);
        if (!found.has(address, bytes)) return false;
        last = found;
        return true;
    }

    static constexpr size_t kLasts = 64;
    Range lasts[kLasts];
    Find find;
};

}  // namespace cudasim::device_code
