// The counters of a launch.
#pragma once

#include <cstdio>

#include "code.h"

namespace cudasim::device_code {

/// 32-byte sectors and 128-byte lines that the lanes of one instruction touched.
struct Touched {
    uint32_t num_sectors = 0, num_lines = 0;
    uint64_t sectors[160];  ///< 32 lanes of 16 bytes, none aligned: two for each; a pair may be more
    uint64_t addresses[32];  ///< by lane, anything for those that took no part; of local and shared memory from its beginning

    /// Forgets the sectors and lines; `addresses` stays as it is.
    void clear() { num_sectors = num_lines = 0; }
    /// Adds those sectors and lines of `bytes` bytes, at least one, that are not there yet.
    void add(uint64_t address, uint32_t bytes);
};

struct Counts {
    struct Accesses {
        uint64_t requests = 0, sectors = 0, lines = 0, bytes = 0;
    };
    uint64_t instructions = 0;  ///< instructions of warps
    uint64_t lanes = 0;         ///< lanes that were there, whatever their guard
    uint64_t few = 0;           ///< instructions of at most 4 lanes
    uint64_t units[size_t(Unit::count)] = {};
    Accesses accesses[size_t(Access::count)];

    /// Appends one line of JSON; `more`: members of it that describe the launch.
    void write(FILE* file, const Kernel& kernel, const std::string& more) const;
};

/// Appends a line to a file for each instruction but the padding: architecture, kernel, address, how often it was run, and
/// whether the emulator knows it; then its text and its source behind tabs. Does nothing if the file cannot be opened.
void write_coverage(const char* path, const Image& image);
/// Appends to a file how many instructions of warps each line of the source took, dearest first, with their mean number of
/// lanes; needs a listing with -g.
void write_lines(const char* path, const Image& image);

}  // namespace cudasim::device_code
