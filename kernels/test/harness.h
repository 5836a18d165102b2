// Tables, samples and outputs for the tests, and the checks of a launch.
#pragma once

#include <limits>

#include "../windrow.cu"
#include "memory.h"
#include "values.h"

using namespace windrow;

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
        outputs.push_back(std::make_unique<Output>(bytes, skew));
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
        for (auto& output : outputs) output->check(what);
        blocks.clear();
    }
};
