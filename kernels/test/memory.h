// Memory of the tests: what may be read of it, and what an output has to become.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <vector>

inline std::mt19937_64 rng(251);

/// 0 to n - 1.
inline uint64_t pick(uint64_t n) { return rng() % n; }

#define CHECK(condition, ...)                                                  \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);    \
            fprintf(stderr, __VA_ARGS__);                                      \
            fputc('\n', stderr);                                               \
            abort();                                                           \
        }                                                                      \
    } while (0)

/// A block of memory of which `readable` bytes may be read; it ends where the allocation does.
struct Block {
    std::unique_ptr<uint8_t[]> memory;
    uint8_t* data;
    std::vector<bool> readable;
};

inline std::map<uintptr_t, Block> blocks;

/// `bytes` random bytes at an address of the given misalignment. None may be read yet, or all.
inline uint8_t* allocate(size_t bytes, size_t skew, bool readable) {
    Block block{std::make_unique<uint8_t[]>(bytes + skew), nullptr,
                std::vector<bool>(bytes, readable)};
    block.data = block.memory.get() + skew;
    for (size_t i = 0; i < bytes; ++i) block.data[i] = uint8_t(rng());
    uint8_t* data = block.data;
    if (bytes > 0) blocks[uintptr_t(data)] = std::move(block);
    else blocks[uintptr_t(block.memory.get())] = std::move(block);
    return data;
}

inline void allow(const uint8_t* p, size_t bytes, bool check = false) {
    auto it = blocks.upper_bound(uintptr_t(p));
    CHECK(it != blocks.begin(), "no memory at %p", static_cast<const void*>(p));
    Block& block = std::prev(it)->second;
    size_t at = p - block.data;
    CHECK(p >= block.data && at + bytes <= block.readable.size(), "%zu bytes at %zu of %zu",
          bytes, at, block.readable.size());
    for (size_t i = at; i < at + bytes; ++i) {
        if (check) CHECK(block.readable[i], "byte %zu read, of no sample", i);
        block.readable[i] = true;
    }
}

inline void on_read_checked(const void* p, size_t bytes) {
    allow(static_cast<const uint8_t*>(p), bytes, true);
}

/// One output: what it is and what it must become.
struct Output {
    std::vector<uint8_t> memory, expected;
    size_t begin;  // of the output in `memory`
    uint8_t* data() { return memory.data() + begin; }
    uint8_t* want(ptrdiff_t at) { return expected.data() + begin + at; }

    /// Poisoned memory of `bytes` bytes at a misalignment.
    Output(size_t bytes, size_t skew) : memory(bytes + skew + 64, 0xA5) {
        begin = 32 - uintptr_t(memory.data() + 32) % 16 + skew;
        expected = memory;
    }

    /// The first byte that differs, counted from the output's beginning.
    void check(const char* what) const {
        for (size_t at = 0; at < memory.size(); ++at) {
            CHECK(memory[at] == expected[at], "%s: byte %td of %zu: %02x, not %02x", what,
                  ptrdiff_t(at) - ptrdiff_t(begin), memory.size(), memory[at], expected[at]);
        }
    }
};
