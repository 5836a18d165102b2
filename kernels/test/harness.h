// Tables, samples and outputs for the tests, and the checks of a launch.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "../windrow.cu"

using namespace windrow;

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
};

/// A batch under construction.
struct Batch {
    std::vector<Field> fields;
    std::vector<uint64_t> rest;  // of the table, behind the fields
    std::vector<std::unique_ptr<Output>> outputs;
    uint32_t tile_bytes;
    uint32_t max_fields;
    uint64_t num_tiles = 0;

    Batch(uint32_t tile_bytes, uint32_t max_fields)
        : tile_bytes(tile_bytes), max_fields(max_fields) {}

    template <class T>
    uint32_t put(const std::vector<T>& values) {
        uint32_t position = max_fields * sizeof(Field) / 8 + rest.size();
        size_t bytes = values.size() * sizeof(T), old = rest.size();
        rest.resize(old + (bytes + 7) / 8 + 1);
        if (bytes > 0) memcpy(&rest[old], values.data(), bytes);
        return position;
    }

    /// Poisoned memory of `bytes` bytes at a misalignment.
    Output& output(size_t bytes, size_t skew) {
        auto output = std::make_unique<Output>();
        output->memory.assign(bytes + skew + 64, 0xA5);
        output->begin = 32 - uintptr_t(output->memory.data() + 32) % 16 + skew;
        output->expected = output->memory;
        outputs.push_back(std::move(output));
        return *outputs.back();
    }

    /// `starts`: of joined fields, the first element of each sample in order, and the end.
    void add(Field field, const std::vector<uint64_t>& starts) {
        bool copy = field.kind == kCopy;
        uint64_t head = copy ? uintptr_t(field.out) % 16 : 0;
        uint64_t elems = tile_bytes / (copy ? 1 : field.elem_size);
        uint64_t tiles = field.numel == 0 ? 0 : (field.numel + head + elems - 1) / elems;
        field.first_tile = num_tiles;
        num_tiles += tiles;
        if (field.offsets != 0) {
            std::vector<uint32_t> samples;
            for (uint64_t tile = 0; tile < tiles; ++tile) {
                uint64_t first = tile == 0 ? 0 : tile * elems - head;
                auto it = std::upper_bound(starts.begin(), starts.end() - 1, first);
                samples.push_back(it - starts.begin() - 1);
            }
            samples.push_back(field.num_samples == 0 ? 0 : field.num_samples - 1);
            field.tile_samples = put(samples);
        }
        fields.push_back(field);
    }

    /// Launches and compares. The table lies in the parameters if it fits, or in memory.
    void run(const char* what) {
        CHECK(fields.size() <= max_fields, "%s", what);
        std::vector<uint64_t> table(max_fields * sizeof(Field) / 8);
        if (!fields.empty()) memcpy(table.data(), fields.data(), fields.size() * sizeof(Field));
        table.insert(table.end(), rest.begin(), rest.end());
        bool lean = true;
        for (const Field& field : fields) lean &= field.kind == kCopy || field.kind == kTable;
        lean &= pick(4) != 0;
        unsigned num_blocks = num_tiles == 0 ? 1 : 1 + pick(std::min<uint64_t>(num_tiles, 5));
        auto start = [&](auto params, auto gather, auto assemble) {
            memset(&params, 0, sizeof params);
            params.header = {nullptr, num_tiles, uint32_t(fields.size()), tile_bytes};
            if (table.size() * 8 <= sizeof params.table && pick(2) == 0) {
                memcpy(params.table, table.data(), table.size() * 8);
            } else {
                params.header.table = table.data();
            }
            launch(lean ? gather : assemble, num_blocks, Policy::kThreads, params);
        };
        if (!fields.empty() && pick(64) == 0) {
            start(LargeParams(), windrow_gather_large, windrow_assemble_large);
        } else if (!fields.empty()) {
            start(SmallParams(), windrow_gather_small, windrow_assemble_small);
        }
        for (size_t i = 0; i < outputs.size(); ++i) {
            Output& output = *outputs[i];
            for (size_t at = 0; at < output.memory.size(); ++at) {
                CHECK(output.memory[at] == output.expected[at],
                      "%s: output %zu of %zu, byte %td: %02x, not %02x; tiles of %u", what, i,
                      outputs.size(), ptrdiff_t(at) - ptrdiff_t(output.begin), output.memory[at],
                      output.expected[at], tile_bytes);
            }
        }
        blocks.clear();
    }
};

inline Divisor divisor(uint64_t d) {
    if (d == 0 || d >= 1ull << 31) return {0, 0, 0};
    uint16_t shift = 0;
    while (1ull << shift < d) ++shift;
    uint64_t mul = ((1ull << 32) * ((1ull << shift) - d)) / d + 1;
    return {uint32_t(mul), shift, 1};
}
