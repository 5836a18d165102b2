// The kernels. All fields of a batch go in one launch, whatever is done for each of them.
//
// Every thread works on its own: no barrier, no shared memory, no exchange between lanes.
#include "copy.cuh"
#include "params.h"
#include "planar.cuh"
#include "policy.h"
#include "walk.cuh"

namespace windrow {

/// The field of a tile, at or behind `field`.
WINDROW_DEVICE uint32_t field_of(const Field* fields, uint32_t num_fields, uint32_t field,
                                 uint64_t tile) {
    uint32_t low = field, high = num_fields - 1;
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        if (fields[middle].first_tile <= tile) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

/// Calls `f(table, field, tile, tile_bytes)` for every tile of this block; tiles of a field count
/// from 0. The branches in `f` on what a field says are the same for the whole block.
template <int bytes, class F>
WINDROW_DEVICE void for_tiles(const Params<bytes>& params, const F& f) {
    const Header& header = params.header;
    const uint64_t* table = header.table != nullptr ? header.table : params.table;
    const Field* fields = at<Field>(table, 0);
    uint32_t field = 0;
    for (uint64_t tile = blockIdx.x; tile < header.num_tiles; tile += gridDim.x) {
        field = field_of(fields, header.num_fields, field, tile);
        f(table, fields[field], tile - fields[field].first_tile, header.tile_bytes);
    }
}

/// Fields that are all kCopy or kTable.
template <int bytes>
WINDROW_DEVICE void gather_fields(const Params<bytes>& params) {
    for_tiles(params, [](const uint64_t* table, const Field& field, uint64_t tile, uint32_t size) {
        if (field.kind == kTable) {
            table_tile(table, field, tile, size);
        } else {
            copy_tile(table, field, tile, size);
        }
    });
}

/// Fields of any kind.
template <int bytes>
WINDROW_DEVICE void assemble_fields(const Params<bytes>& params) {
    for_tiles(params, [](const uint64_t* table, const Field& field, uint64_t tile, uint32_t size) {
        switch (field.kind) {
            case kCopy: return copy_tile(table, field, tile, size);
            case kTable: return table_tile(table, field, tile, size);
            case kPlanar: return planar_tile(table, field, tile, size);
            default: return walk_tile(table, field, tile, size);
        }
    });
}

}  // namespace windrow

using windrow::Policy;
using SmallParams = windrow::Params<windrow::kSmallBytes>;
using LargeParams = windrow::Params<windrow::kLargeBytes>;

extern "C" __global__ void __launch_bounds__(Policy::kThreads, Policy::kGatherBlocks)
    windrow_gather_small(const __grid_constant__ SmallParams params) {
    windrow::gather_fields(params);
}

extern "C" __global__ void __launch_bounds__(Policy::kThreads, Policy::kGatherBlocks)
    windrow_gather_large(const __grid_constant__ LargeParams params) {
    windrow::gather_fields(params);
}

extern "C" __global__ void __launch_bounds__(Policy::kThreads, Policy::kAssembleBlocks)
    windrow_assemble_small(const __grid_constant__ SmallParams params) {
    windrow::assemble_fields(params);
}

extern "C" __global__ void __launch_bounds__(Policy::kThreads, Policy::kAssembleBlocks)
    windrow_assemble_large(const __grid_constant__ LargeParams params) {
    windrow::assemble_fields(params);
}
