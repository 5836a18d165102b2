// Samples by indices that are on the device: makes the table of the launch that comes next.
//
// A thread takes one sample. The part of the table that the host knows is copied as it is; the columns that depend on the sample,
// such as its address, are written behind that, in the form in which the host writes those that it knows.
//
//     thread t   index = indices[t], from the end if it is negative; kind = kinds[index]; out of range: num_kinds, and noted
//     table      | known words: thread t copies word t | column: entry t is values[kind], the sample's address added or not |
//
// The host could make the table of indices that are copied to it, but would wait for the device.
#pragma once

#include "params.h"
#include "segments.cuh"

namespace windrow {

/// Writes this thread's word of the known part, and its sample's numbers in each column, if there are such. A negative index
/// counts from the end. One out of range is noted in `found`; its numbers are those of a sample that is not there.
template <int bytes>
WINDROW_DEVICE void select_samples(const SelectParams<bytes>& params) {
    const Select& select = params.select;
    const uint64_t* words = select.words != nullptr ? select.words : params.words;
    const uint32_t thread = blockIdx.x * Policy::kThreads + threadIdx.x;
    if (thread < select.num_words) select.table[thread] = words[select.first_word + thread];
    if (thread >= select.num_samples) return;
    const int64_t place = static_cast<int64_t>(thread) * select.index_step;
    int64_t index = select.index_bytes == 8 ? reinterpret_cast<const int64_t*>(select.indices)[place]
                                            : reinterpret_cast<const int32_t*>(select.indices)[place];
    if (index < 0) index += static_cast<int64_t>(select.num_listed);
    const bool is_there = static_cast<uint64_t>(index) < select.num_listed;
    uint32_t kind = select.num_kinds;
    if (is_there) {
        kind = select.kinds != nullptr ? select.kinds[index] : 0;
    } else {
        // Any of those that are out of range will do.
        const uint64_t found = select.call << 32 | thread;
        select.found[0] = found;
        select.found[select.slot] = found;
    }
    const Column* columns = at<Column>(words, 0);
#pragma unroll 1
    for (uint32_t c = 0; c < select.num_columns; ++c) {
        const Column column = columns[c];
        uint64_t* out = select.table + column.position;
        if (!column.is_wide) {
            reinterpret_cast<uint32_t*>(out)[thread] = at<uint32_t>(words, column.values)[kind];
            continue;
        }
        const uint64_t* values = at<uint64_t>(words, column.values) + uint64_t{kind} * column.count;
        uint64_t sample = 0;
        if (column.is_address && is_there) {
            sample = select.addresses != nullptr
                         ? select.addresses[index]
                         : select.first + static_cast<uint64_t>(index) * static_cast<uint64_t>(select.step);
        }
#pragma unroll 1
        for (uint32_t i = 0; i < column.count; ++i) out[uint64_t{thread} * column.count + i] = sample + values[i];
    }
}

}  // namespace windrow
