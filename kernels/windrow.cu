// The kernels. All fields of a batch go in one launch, whatever is done for each of them.
//
// A warp takes one item and ends: nothing but the item lives while a family's function runs. No barrier
// and no exchange between lanes.
#include "line.cuh"
#include "params.h"
#include "pieces.cuh"
#include "planes.cuh"
#include "policy.h"
#include "rows.cuh"
#include "select.cuh"
#include "short.cuh"
#include "strided.cuh"

namespace windrow {

/// Read where it is needed: what families do with it is too different for a register that all of them keep.
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

/// The field of an item.
WINDROW_DEVICE uint32_t field_of(const Field* fields, uint32_t num_fields, uint32_t item) {
    uint32_t low = 0, high = num_fields - 1;
#pragma unroll 1
    while (low < high) {
        const uint32_t middle = (low + high + 1) / 2;
        if (fields[middle].first_item <= item) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

WINDROW_DEVICE void rows_item(const uint64_t* table, const Field& field, uint32_t own) {
    const uint32_t lane = lane_of_thread();
    constexpr uint32_t kVectors = kMoveBytes / 16;
    const Sources sources = sources_of(table, field);
    const uint32_t vectors = static_cast<uint32_t>(field.cols.extent), first = own * kVectors + lane;
    if (field.family == kPages) {
        page_piece(sources, field.out, field.items, field.by_items, own, lane);
    } else if (field.flags & kById) {
        rows_piece<true>(sources, field.out, vectors, field.cols.by_blocks, first, vectors * field.num_samples);
    } else {
        rows_piece<false>(sources, field.out, vectors, field.cols.by_blocks, first, vectors * field.num_samples);
    }
}

WINDROW_DEVICE void short_item(const uint64_t* table, const Field& field, uint32_t own) {
    const uint32_t lane = lane_of_thread();
    const Sources sources = sources_of(table, field);
    const uint32_t size = static_cast<uint32_t>(field.cols.extent);
    const Short all = {sources, field.out, uint64_t{size} * field.num_samples, size, field.cols.by_blocks, field.piece};
    if (field.flags & kById) {
        short_piece<true>(all, own, lane);
    } else {
        short_piece<false>(all, own, lane);
    }
}

/// What becomes of the elements of a row, which are all of one channel.
WINDROW_DEVICE LineCast cast_of(const uint64_t* table, const Field& field, uint32_t channel, uint32_t number) {
    LineCast cast;
    cast.from = field.from;
    cast.to = field.to;
    cast.loop = field.loop;
    cast.from_size = field.from_size;
    cast.to_size = field.to_size;
    cast.log_to = field.log_to;
    cast.value = field.op == kConst ? field.value : number;
    cast.affine = {nullptr, 1};
    if (field.op == kAffine) {
        if (channel >= field.channels) channel -= divide(channel, field.by_channels) * field.channels;
        const uint32_t size = field.from == kF64 || field.to == kF64 ? 8 : 4;
        cast.affine = {at<uint8_t>(table, field.affine) + size * channel, field.channels};
    }
    return cast;
}

/// Lines, and lines of pixels.
WINDROW_DEVICE void line_item(const uint64_t* table, const Field& field, uint32_t own) {
    const uint32_t lane = lane_of_thread();
    const bool is_planar = field.family == kPlanar;
    Team team = {lane, kLanes};
    if (field.samples != 0) {
        // Short rows: one for each group of 8 lanes, whole.
        own = own * (kLanes / kTeamLanes) + lane / kTeamLanes;
        team = {lane % kTeamLanes, kTeamLanes};
        if (own >= field.num_samples * field.items) return;
    }
    const Shared shared = shared_stretch(table, field, own, is_planar ? field.planes : field.from_size);
    const Stretch& part = shared.part;
    team.thread += kLanes * shared.warp;
    team.threads *= shared.warps;
    if (is_planar) {
        const Pixels run = {part.src, part.dst, field.plane, part.lead, part.real, part.width, part.before, part.after};
        const float* by = field.op == kAffine ? at<float>(table, field.affine) : nullptr;
        write_pixels(run, field.to, field.planes, by, field.channels, fill_of(field), team);
    } else {
        write_line({part.src, part.dst, part.lead, part.real, part.width, part.before, part.after},
                   cast_of(table, field, shared.channel, shared.number), fill_of(field), team);
    }
}

/// The divisor for a number of columns that the host did not know.
WINDROW_DEVICE Divisor divisor_of(uint32_t d) {
    uint32_t shift = 0;
#pragma unroll 1
    while (1u << shift < d) ++shift;
    const uint64_t top = (uint64_t{1} << shift) - d;
    return {static_cast<uint32_t>((top << 32) / d + 1), shift};
}

/// The part of [lo, hi) in the `count` numbers from `begin` on, counted from there.
WINDROW_DEVICE uint32_t clipped(uint64_t bound, uint64_t begin, uint32_t count) {
    return bound <= begin ? 0 : bound - begin < count ? static_cast<uint32_t>(bound - begin) : count;
}

WINDROW_DEVICE void box_item(const uint64_t* table, const Field& field, uint32_t own) {
    Box box;
    box.table = table;
    box.field = &field;
    box.is_list = false;
    box.by_cols = field.cols.by_blocks;
    const Loop& cols = field.cols;
    box.rows.channel = 0;
    box.cols.channel = cols.channel_step;
    box.cols.dst = static_cast<int32_t>(cols.dst_stride);
    int64_t channel = field.channel_first;
    if (field.samples != 0) {
        // Its rows are samples.
        box.number = own * field.samples;
        box.rows.count = box.rows.hi = minimum(field.samples, field.num_samples - box.number);
        box.rows.lo = box.cols.lo = 0;
        box.cols.count = static_cast<uint32_t>(cols.extent);
        box.cols.hi = static_cast<uint32_t>(cols.hi);
        box.rows.src = 0;
        box.cols.src = static_cast<int32_t>(cols.src_stride);
        box.rows.dst = static_cast<int32_t>(field.step);
        box.dst = field.out + static_cast<int64_t>(box.number) * field.step;
        box.src = nullptr;
        box.is_list = reads(field);
    } else {
        const Item item = item_of(table, field, own);
        const Sample& sample = item.sample;
        box.number = sample.number;
        const Bounds col = bounds_of(table, field, cols, sample);
        const uint64_t begin = uint64_t{item.piece} * field.piece;
        const uint64_t rest = col.extent - begin;
        box.cols.count = rest < field.piece ? static_cast<uint32_t>(rest) : field.piece;
        box.cols.lo = clipped(col.lo, begin, box.cols.count);
        box.cols.hi = clipped(col.hi, begin, box.cols.count);
        box.cols.src = static_cast<int32_t>(col.src_stride);
        box.src = reads(field) ? source_at(sources_of(table, field), sample.index) : field.out;
        box.src += static_cast<int64_t>(begin - col.lo) * col.src_stride;
        box.dst = field.out + static_cast<int64_t>(sample.offset) * field.step +
                  static_cast<int64_t>(begin) * cols.dst_stride;
        if (cols.varies & kExtent || box.cols.count != static_cast<uint32_t>(cols.extent)) box.by_cols = divisor_of(box.cols.count);
        if (cols.channel_step) channel += static_cast<int64_t>(begin - col.lo);
        // The last of the outer loops is that of its rows.
        const Loop* outer = at<Loop>(table, field.outer);
        uint32_t number = item.row;
        bool is_real = true;
#pragma unroll 1
        for (uint32_t d = field.num_outer; d-- > 0;) {
            const Loop& loop = outer[d];
            const Bounds bounds = bounds_of(table, field, loop, sample);
            uint64_t coord = number;
            if (d > 0) {  // nothing is left over from the outermost
                const uint32_t blocks = blocks_of(bounds.extent, loop.block);
                number = loop.varies & kExtent ? number / blocks : divide(number, loop.by_blocks);
                coord -= uint64_t{number} * blocks;
            }
            coord *= loop.block;
            const int64_t real = static_cast<int64_t>(coord - bounds.lo);
            box.dst += static_cast<int64_t>(coord) * loop.dst_stride;
            box.src += real * bounds.src_stride;
            if (loop.channel_step) channel += real;
            if (d + 1 == field.num_outer) {
                const uint64_t left = bounds.extent - coord;
                box.rows.count = left < loop.block ? static_cast<uint32_t>(left) : loop.block;
                box.rows.lo = clipped(bounds.lo, coord, box.rows.count);
                box.rows.hi = clipped(bounds.hi, coord, box.rows.count);
                box.rows.src = static_cast<int32_t>(bounds.src_stride);
                box.rows.dst = static_cast<int32_t>(loop.dst_stride);
                box.rows.channel = loop.channel_step;
            } else if (coord < bounds.lo || coord >= bounds.hi) {
                is_real = false;
            }
        }
        if (!is_real) box.rows.hi = box.rows.lo;
    }
    box.channel = 0;
    if (field.op == kAffine) {
        // Below 0 in front of padding.
        channel %= static_cast<int64_t>(field.channels);
        box.channel = static_cast<uint32_t>(channel < 0 ? channel + field.channels : channel);
    }
    write_box(box, lane_of_thread());
}

/// Numbers of the table itself.
WINDROW_DEVICE void values_item(const uint64_t* table, const Field& field, uint32_t own) {
    const uint32_t lane = lane_of_thread();
    const uint64_t begin = uint64_t{own} * field.piece, rest = field.cols.extent - begin;
    const uint32_t count = rest < field.piece ? static_cast<uint32_t>(rest) : field.piece;
    const uint32_t from = field.from_size, to = field.to_size;
    const uint8_t* src = at<uint8_t>(table, field.data) + begin * from;
    uint8_t* dst = field.out + begin * to;
#pragma unroll 1
    for (uint32_t i = lane; i < count; i += kLanes) {
        uint64_t bits;
        switch (from) {
            case 1: bits = src[i]; break;
            case 4: bits = reinterpret_cast<const uint32_t*>(src)[i]; break;
            default: bits = reinterpret_cast<const uint64_t*>(src)[i];
        }
        store_elements(dst + uint64_t{i} * to, {bits, 0}, to, 0, 1, misalignment(dst, to) == 0);
    }
}

/// Writes an item.
template <int bytes>
WINDROW_DEVICE void write_item(const Params<bytes>& params) {
    const Header& header = params.header;
    const uint32_t item = warp_of_grid();
    if (item >= header.num_items) return;
    const uint64_t* table = header.table != nullptr ? header.table : params.table;
    const Field* fields = at<Field>(table, 0);
    const Field& field = fields[field_of(fields, header.num_fields, item)];
    const uint32_t own = item - field.first_item;
    switch (field.family) {
        case kRows:
        case kPages: return rows_item(table, field, own);
        case kShort: return short_item(table, field, own);
        case kBox: return box_item(table, field, own);
        case kValues: return values_item(table, field, own);
        default: return line_item(table, field, own);
    }
}

}  // namespace windrow

using windrow::Policy;
using SmallParams = windrow::Params<windrow::kSmallBytes>;
using LargeParams = windrow::Params<windrow::kLargeBytes>;
using SmallSelect = windrow::SelectParams<windrow::kSmallBytes>;
using LargeSelect = windrow::SelectParams<windrow::kLargeBytes>;

extern "C" __global__ void __launch_bounds__(Policy::kThreads, Policy::kBlocks)
    windrow_assemble_small(const __grid_constant__ SmallParams params) {
    windrow::write_item(params);
}

extern "C" __global__ void __launch_bounds__(Policy::kThreads, Policy::kBlocks)
    windrow_assemble_large(const __grid_constant__ LargeParams params) {
    windrow::write_item(params);
}

extern "C" __global__ void __launch_bounds__(Policy::kThreads, Policy::kBlocks)
    windrow_select_small(const __grid_constant__ SmallSelect params) {
    windrow::select_samples(params);
}

extern "C" __global__ void __launch_bounds__(Policy::kThreads, Policy::kBlocks)
    windrow_select_large(const __grid_constant__ LargeSelect params) {
    windrow::select_samples(params);
}
