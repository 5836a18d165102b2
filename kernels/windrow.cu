// The kernels. All descriptors of a batch go in one launch, whatever is done for each of them: the engine takes the smallest
// kernel that has all their families. Only a batch that has quantised and any other family takes two launches of one table, each
// of which leaves out the descriptors of the other.
//
// A warp takes one item and ends: nothing but the item lives while a family's function runs. No barrier, and no exchange between
// lanes but for the largest magnitude of a group in quantise.cuh.
#include "scalar_fallback.cuh"
#include "contiguous.cuh"
#include "move.cuh"
#include "params.h"
#include "planes.cuh"
#include "policy.h"
#include "quantise.cuh"
#include "rows.cuh"
#include "segments.cuh"
#include "select.cuh"
#include "small_copy.cuh"
#include "strided.cuh"

namespace windrow {

/// The lane of this thread, re-read on demand: keeping it live across all families would cost a register.
WINDROW_DEVICE uint32_t lane_of_thread() {
#ifdef __CUDA_ARCH__
    uint32_t lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
#else
    return threadIdx.x % kLanes;
#endif
}
WINDROW_DEVICE uint32_t warp_of_grid() {
    return blockIdx.x * (Policy::kThreads / kLanes) + threadIdx.x / kLanes;
}

/// The number of the descriptor that has item `item`.
WINDROW_DEVICE uint32_t field_of(const OutputDesc* descs, uint32_t last_desc, uint32_t item) {
    uint32_t low = 0, high = last_desc;
#pragma unroll 1
    while (low < high) {
        const uint32_t middle = (low + high + 1) / 2;
        if (descs[middle].first_item <= item) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

/// Each function of this name, NAME_item, writes one item of a descriptor of its family; `local_item` counts from its first one.
template <bool by_id>
WINDROW_DEVICE void rows_item(const uint64_t* table, const OutputDesc& desc, uint32_t local_item) {
    const uint32_t vectors = desc.rows.vectors;
    const uint32_t first = local_item * (kMoveBytes / 16) + lane_of_thread();
    rows_piece<by_id>(sources_of<by_id>(table, desc), desc.out, vectors, desc.rows.by_vectors, first, vectors * desc.num_samples);
}

WINDROW_DEVICE void aligned_copy_item(const uint64_t* table, const OutputDesc& desc, uint32_t local_item) {
    const uint32_t sample = divide(local_item, desc.aligned_copy.by_items);
    aligned_copy_piece(source_of(table, desc, sample), desc.out, local_item, local_item - sample * desc.aligned_copy.items, lane_of_thread());
}

template <bool by_id>
WINDROW_DEVICE void placed_rows_item(const uint64_t* table, const OutputDesc& desc, uint32_t local_item) {
    const PlacedRows& rows = desc.placed_rows;
    const uint32_t first = local_item * (kMoveBytes / 16) + lane_of_thread();
    placed_rows_piece<by_id>(sources_of<by_id>(table, desc), desc.out, at<uint32_t>(table, rows.places), static_cast<uint32_t>(rows.step),
                             rows.vectors, rows.by_vectors, first, rows.vectors * desc.num_samples);
}

WINDROW_DEVICE void placed_copy_item(const uint64_t* table, const OutputDesc& desc, uint32_t local_item) {
    const PlacedCopy& copy = desc.placed_copy;
    const uint32_t sample = divide(local_item, copy.by_items), piece = local_item - sample * copy.items;
    uint8_t* out = desc.out + copy.step * entry<uint32_t>(table, copy.places, sample);
    aligned_copy_piece(source_of(table, desc, sample), out, piece, piece, lane_of_thread());
}

template <bool by_id>
WINDROW_DEVICE void small_copy_item(const uint64_t* table, const OutputDesc& desc, uint32_t local_item) {
    const SmallCopy& copy = desc.small_copy;
    const SmallSamples all = {sources_of<by_id>(table, desc), desc.out, copy.size * desc.num_samples, copy.size, copy.by_size, copy.piece};
    small_copy_piece<by_id>(all, local_item, lane_of_thread());
}

/// The operation on the elements of a row, which are all of one channel; `channel` may be beyond the last and wraps. `number`: of
/// the sample, among those of the tensor.
WINDROW_DEVICE RunCast cast_of(const uint64_t* table, const OutputDesc& desc, uint32_t channel, uint32_t number) {
    const Contiguous& contiguous = desc.contiguous;
    const Nest& nest = contiguous.nest;
    const uint64_t value = desc.op == kConst ? desc.value : number;
    const Codes codes(desc, contiguous.kind, 0);
    RunCast cast = {desc.from, desc.to, contiguous.cast, desc.from_size, desc.to_size, desc.log_to, {nullptr, 1}, value, codes,
                    (desc.flags & kMixed) != 0};
    if (desc.op >= kAffine) {
        if (channel >= nest.channels) {
            force_branch();
            channel = desc.op == kAddPerSample ? number : channel - divide(channel, nest.by_channels) * nest.channels;
        }
        cast.affine = {at<uint8_t>(table, nest.affine) + (channel << nest.log_coefficient), nest.channels};
    }
    return cast;
}

/// Rows of adjacent elements, or of pixels. `is_any`: contiguous_generic alone, whose registers others have no use for.
template <bool is_any>
WINDROW_DEVICE void contiguous_item(const uint64_t* table, const OutputDesc& desc, uint32_t local_item) {
    const uint32_t lane = lane_of_thread();
    const bool is_planar = !is_any && desc.family == kPlanar;
    ThreadGroup threads = {lane, kLanes};
    if (desc.nest.rows != 0) {
        // Short rows: one for each group of 8 lanes, whole.
        local_item = local_item * (kLanes / kGroupLanes) + lane / kGroupLanes;
        threads = {lane % kGroupLanes, kGroupLanes};
        if (local_item >= desc.num_samples * desc.nest.items) return;
    }
    const RowSegment segment = locate_segment(table, desc, local_item, is_planar ? desc.planar.planes : desc.from_size);
    const Segment& part = segment.part;
    threads.rank += kLanes * part.warp;
    threads.size *= part.warps;
    if (is_planar) {
        const Planar& planar = desc.planar;
        const Pixels run = {part.src, part.dst, planar.plane, part.lead, part.real, part.width, part.before, part.after};
        const float* by = desc.op == kAffine ? at<float>(table, planar.nest.affine) : nullptr;
        write_pixels(run, desc.to, desc.log_to, planar.planes, by, planar.nest.channels, fill_of(desc), threads);
    } else {
        write_run<is_any>({part.src, part.dst, part.lead, part.real, part.width, part.before, part.after},
                   cast_of(table, desc, segment.channel, segment.number), fill_of(desc), threads);
    }
}

WINDROW_DEVICE void strided_item(const uint64_t* table, const OutputDesc& desc, uint32_t local_item) {
    uint32_t round = 0;
    if (desc.strided.rounds > 1) {
        const uint32_t number = divide(local_item, desc.strided.by_rounds);
        round = local_item - number * desc.strided.rounds;
        local_item = number;
    }
    write_box(box_of(table, desc, local_item), round, lane_of_thread());
}

WINDROW_DEVICE void scalar_fallback_item(const uint64_t* table, const OutputDesc& desc, uint32_t local_item) {
    const ScalarFallback& scalars = desc.scalar_fallback;
    const Affine affine = {desc.op == kAffine ? at<uint8_t>(table, scalars.affine) : nullptr, scalars.channels};
    const Scalars all = {desc.out, scalars.elems, scalars.by_elems, desc.from_size, desc.to_size, desc.from, desc.to, affine};
    const uint32_t begin = local_item * scalars.piece, end = begin + minimum(scalars.elems * desc.num_samples - begin, scalars.piece);
    if (desc.flags & kById) write_scalars<true>(all, sources_of<true>(table, desc), begin + lane_of_thread(), end);
    else write_scalars<false>(all, sources_of<false>(table, desc), begin + lane_of_thread(), end);
}

/// Writes lengths or offsets, which are in the table itself.
WINDROW_DEVICE void metadata_item(const uint64_t* table, const OutputDesc& desc, uint32_t local_item) {
    const uint32_t lane = lane_of_thread();
    const Metadata& metadata = desc.metadata;
    const uint64_t begin = uint64_t{local_item} * metadata.piece, rest = metadata.count - begin;
    const uint32_t count = rest < metadata.piece ? static_cast<uint32_t>(rest) : metadata.piece;
    const uint32_t from = desc.from_size, to = desc.to_size;
    const uint8_t* src = at<uint8_t>(table, desc.data) + begin * from;
    uint8_t* dst = desc.out + begin * to;
#pragma unroll 1
    for (uint32_t i = lane; i < count; i += kLanes) {
        uint64_t bits;
        switch (from) {
            case 1: bits = src[i]; break;
            case 2: bits = reinterpret_cast<const uint16_t*>(src)[i]; break;
            case 4: bits = reinterpret_cast<const uint32_t*>(src)[i]; break;
            default: bits = reinterpret_cast<const uint64_t*>(src)[i];
        }
        store_elements(dst + uint64_t{i} * to, {bits, 0}, to, 0, 1, misalignment(dst, to) == 0);
    }
}

/// Writes an item; nothing if it is beyond the last, or of a family that is left out. `is_quantised`: that family alone is not, which
/// takes most registers; `has_any`: strided and contiguous_generic are not, which take more than the common ones.
template <bool has_any, bool is_quantised, int bytes>
WINDROW_DEVICE void write_item(const Params<bytes>& params, uint32_t item) {
    const Header& header = params.header;
    if (item >= header.num_items) return;
    const uint64_t* table = header.table != nullptr ? header.table : params.table;
    // Descriptors in the parameters are read from the constant bank: see params.h.
    const OutputDesc* descs = at<OutputDesc>((has_any || is_quantised) && bytes == kLargeBytes ? table : params.table, 0);
    if (header.last_desc != 0) descs += field_of(descs, header.last_desc, item);
    const OutputDesc& desc = *descs;
    const uint32_t local_item = item - desc.first_item;
    const uint32_t family = desc.family;
    if constexpr (is_quantised) {
        if (family == kQuantised) write_groups(table, desc, local_item, lane_of_thread());
    } else {
        const bool by_id = desc.flags & kById;
        // The most frequent first.
        if (family == kRows) return by_id ? rows_item<true>(table, desc, local_item) : rows_item<false>(table, desc, local_item);
        if (family == kAlignedCopy) return aligned_copy_item(table, desc, local_item);
        if (family <= kPlanar) return contiguous_item<false>(table, desc, local_item);
        switch (family) {
            case kSmallCopy: return by_id ? small_copy_item<true>(table, desc, local_item) : small_copy_item<false>(table, desc, local_item);
            case kScalarFallback: return scalar_fallback_item(table, desc, local_item);
            case kPlacedRows: return by_id ? placed_rows_item<true>(table, desc, local_item) : placed_rows_item<false>(table, desc, local_item);
            case kPlacedCopy: return placed_copy_item(table, desc, local_item);
            case kStrided:
                if constexpr (has_any) strided_item(table, desc, local_item);
                return;
            case kContiguousGeneric:
                if constexpr (has_any) contiguous_item<true>(table, desc, local_item);
                return;
            case kQuantised: return;
            default: return metadata_item(table, desc, local_item);
        }
    }
}

}  // namespace windrow

using windrow::Policy;
using SmallParams = windrow::Params<windrow::kSmallBytes>;
using LargeParams = windrow::Params<windrow::kLargeBytes>;
using SmallSelect = windrow::SelectParams<windrow::kSmallBytes>;
using SmallMove = windrow::MoveParams<windrow::kSmallBytes>;
using LargeMove = windrow::MoveParams<windrow::kLargeBytes>;
using LargeSelect = windrow::SelectParams<windrow::kLargeBytes>;

// Kernels for batches that have only common families.
extern "C" __global__ void __launch_bounds__(Policy::kThreads, Policy::kBlocks)
    windrow_assemble_small(const __grid_constant__ SmallParams params) {
    windrow::write_item<false, false>(params, windrow::warp_of_grid());
}

extern "C" __global__ void __launch_bounds__(Policy::kThreads, Policy::kBlocks)
    windrow_assemble_large(const __grid_constant__ LargeParams params) {
    windrow::write_item<false, false>(params, windrow::warp_of_grid());
}

// The kernels for all other batches.
extern "C" __global__ void __launch_bounds__(Policy::kThreads, Policy::kAnyBlocks)
    windrow_assemble_any_small(const __grid_constant__ SmallParams params) {
    windrow::write_item<true, false>(params, windrow::warp_of_grid());
}

// The kernel is also for launches whose blocks are bounded, whatever their parameters: a warp then takes one item after
// the other.
extern "C" __global__ void __launch_bounds__(Policy::kThreads, Policy::kAnyBlocks)
    windrow_assemble_any_large(const __grid_constant__ LargeParams params) {
    const uint32_t warps = gridDim.x * (Policy::kThreads / windrow::kLanes);
#pragma unroll 1
    for (uint64_t item = windrow::warp_of_grid(); item < params.header.num_items; item += warps) {
        windrow::write_item<true, false>(params, static_cast<uint32_t>(item));
    }
}

// The kernel for elements that share scales: what else a batch has is written by one of the kernels above, launched with the
// same table.
extern "C" __global__ void __launch_bounds__(Policy::kThreads, Policy::kQuantisedBlocks)
    windrow_quantise(const __grid_constant__ LargeParams params) {
    const uint32_t warps = gridDim.x * (Policy::kThreads / windrow::kLanes);
#pragma unroll 1
    for (uint64_t item = windrow::warp_of_grid(); item < params.header.num_items; item += warps) {
        windrow::write_item<false, true>(params, static_cast<uint32_t>(item));
    }
}

extern "C" __global__ void __launch_bounds__(Policy::kThreads, Policy::kBlocks)
    windrow_select_small(const __grid_constant__ SmallSelect params) {
    windrow::select_samples(params);
}

extern "C" __global__ void __launch_bounds__(Policy::kThreads, Policy::kBlocks)
    windrow_select_large(const __grid_constant__ LargeSelect params) {
    windrow::select_samples(params);
}

extern "C" __global__ void __launch_bounds__(Policy::kThreads, Policy::kBlocks)
    windrow_move_small(const __grid_constant__ SmallMove params) {
    const uint32_t warps = gridDim.x * (Policy::kThreads / windrow::kLanes);
    windrow::move_pairs(params.move, params.words, windrow::warp_of_grid(), warps, windrow::lane_of_thread());
}

extern "C" __global__ void __launch_bounds__(Policy::kThreads, Policy::kBlocks)
    windrow_move_large(const __grid_constant__ LargeMove params) {
    const uint32_t warps = gridDim.x * (Policy::kThreads / windrow::kLanes);
    windrow::move_pairs(params.move, params.words, windrow::warp_of_grid(), warps, windrow::lane_of_thread());
}
