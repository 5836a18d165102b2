// kWalk: elements found one by one through the loops of their class.
#pragma once

#include "convert.cuh"
#include "policy.h"
#include "samples.cuh"

namespace windrow {

/// Where an element is, and the row it is in: the innermost loop at fixed outer coordinates.
/// Elements [lo, hi) of the row are real, none if an outer coordinate is padding.
struct Cursor {
    const uint8_t* src;  // of the element, if it is real
    uint8_t* dst;
    uint64_t column;
    uint64_t lo;
    uint64_t hi;
    uint64_t extent;
    int64_t src_stride;
    int64_t dst_stride;
    uint64_t sample;
    uint64_t channel;  // of the column lo
    uint32_t channel_step;
    uint8_t dtype;  // of the source
    uint8_t src_size;
};

/// The cursor at element `elem` of a sample, counted through `num_dims` loops from `dims` on.
/// `src` and `dst` are the addresses of its first real element and of its first output element.
/// Computes addresses only.
WINDROW_DEVICE Cursor find_element(const Class& cls, const Dim* dims, uint32_t num_dims,
                                   uint64_t elem, const uint8_t* src, uint8_t* dst) {
    Cursor at;
    at.channel = cls.channel == kNoChannel ? 0 : cls.channel_first;
    at.channel_step = cls.channel == kInnerChannel;
    at.dtype = cls.dtype;
    at.src_size = cls.elem_size;
    bool is_real = true;
    uint64_t rest = elem;
    for (uint32_t d = num_dims; d-- > 0;) {
        const Dim& dim = dims[d];
        uint64_t coord = rest;
        if (d > 0) {  // nothing is left over from the outermost
            rest = divide(rest, dim.extent, dim.by_extent);
            coord -= rest * dim.extent;
        }
        uint64_t real = coord - dim.lo;
        dst += static_cast<int64_t>(coord) * dim.dst_stride;
        src += static_cast<int64_t>(real) * dim.src_stride;
        if (d + 1 == num_dims) {
            at.column = coord;
            at.lo = dim.lo;
            at.hi = dim.hi;
            at.extent = dim.extent;
            at.src_stride = dim.src_stride;
            at.dst_stride = dim.dst_stride;
        } else {
            is_real = is_real && coord >= dim.lo && coord < dim.hi;
        }
        if (cls.channel == kLoopChannel && d == cls.channel_dim) {
            if (d + 1 == num_dims) {
                at.channel_step = 1;
            } else {
                at.channel += real;
            }
        }
    }
    if (!is_real) {
        at.lo = at.hi = at.extent;
    }
    at.src = src;
    at.dst = dst;
    return at;
}

/// What a thread needs to know of its field.
struct Target {
    Affine affine;
    Vec16 fill;  // over and over
    uint32_t size;
    uint8_t dtype;
    uint8_t op;
    uint8_t value;
    bool aligned;

    WINDROW_DEVICE Target(const uint64_t* table, const Field& field)
        : size(field.elem_size),
          dtype(field.dtype),
          op(field.op),
          value(field.value),
          aligned(field.aligned != 0) {
        bool has = op == kAffine && field.affine != 0;
        affine.a = has ? at<uint8_t>(table, field.affine) : nullptr;
        affine.channels = field.channels;
        affine.wide = field.wide != 0;
        const uint64_t* words = reinterpret_cast<const uint64_t*>(field.fill);
        fill = repeated({words[0], words[1]}, size);
    }
};

/// The bits of up to Policy::kRun elements of `size` bytes, `stride` bytes apart, at any alignment.
/// Reads these elements and nothing else.
WINDROW_DEVICE void read_run(const uint8_t* src, int64_t stride, uint32_t size, uint32_t n,
                             uint64_t (&bits)[Policy::kRun]) {
    constexpr uint32_t kRun = Policy::kRun;
    static_assert(kRun == 4, "the wide loads below are for four elements");
    // Adjacent ones by wide loads: at most 16 bytes each, aligned to their width.
    const uint32_t bytes = kRun * size;
    if (n == kRun && stride == size && size <= 8 &&
        misalignment(src, bytes < 16 ? bytes : 16) == 0) {
        switch (size) {
            case 1: {
                uint32_t all = load<uint32_t>(src);
#pragma unroll
                for (uint32_t i = 0; i < kRun; ++i) bits[i] = all >> (8 * i) & 0xFF;
                return;
            }
            case 2: {
                uint64_t all = load<uint64_t>(src);
#pragma unroll
                for (uint32_t i = 0; i < kRun; ++i) bits[i] = all >> (16 * i) & 0xFFFF;
                return;
            }
            case 4: {
                Vec16 all = load16(src);
                bits[0] = all.lo & 0xFFFFFFFF;
                bits[1] = all.lo >> 32;
                bits[2] = all.hi & 0xFFFFFFFF;
                bits[3] = all.hi >> 32;
                return;
            }
            default: {
                Vec16 first = load16(src), second = load16(src + 16);
                bits[0] = first.lo;
                bits[1] = first.hi;
                bits[2] = second.lo;
                bits[3] = second.hi;
                return;
            }
        }
    }
    auto read = [&](auto element) {
#pragma unroll
        for (uint32_t i = 0; i < kRun; ++i) {
            bits[i] = i < n ? element(src + static_cast<int64_t>(i) * stride) : 0;
        }
    };
    const bool aligned =
        ((reinterpret_cast<uintptr_t>(src) | static_cast<uint64_t>(stride)) & (size - 1)) == 0;
    if (!aligned) {
        return read([size](const uint8_t* p) { return read_bytes(p, size).lo; });
    }
    switch (size) {
        case 1: return read([](const uint8_t* p) { return uint64_t{load<uint8_t>(p)}; });
        case 2: return read([](const uint8_t* p) { return uint64_t{load<uint16_t>(p)}; });
        case 4: return read([](const uint8_t* p) { return uint64_t{load<uint32_t>(p)}; });
        default: return read([](const uint8_t* p) { return load<uint64_t>(p); });
    }
}

/// Real elements of one row, as many as fit 16 bytes and at most Policy::kRun where they are
/// converted: sets `n`, 1 at least and `most` at most, and returns their bits in the output's dtype.
/// Reads their source elements; where adjacent ones are moved, also others of the row.
WINDROW_DEVICE Vec16 read_elements(const Target& to, const Cursor& at, uint32_t most,
                                   uint32_t& n) {
    const uint32_t size = to.size;
    if (at.dtype == to.dtype && to.affine.a == nullptr) {
        if (at.src_stride == size && most * size == 16) {
            n = most;
            const uint8_t* begin = at.src - (at.column - at.lo) * size;
            return read16(at.src, begin, begin + (at.hi - at.lo) * size);
        }
        if (size == 16) {
            n = 1;
            return read_bytes(at.src, 16);
        }
    }
    n = most < Policy::kRun ? most : Policy::kRun;
    uint64_t bits[Policy::kRun];
    read_run(at.src, at.src_stride, at.src_size, n, bits);
    uint32_t channel = 0;
    if (to.affine.a != nullptr && to.affine.channels > 1) {
        uint64_t number = at.channel + (at.channel_step ? at.column - at.lo : 0);
        channel = number < to.affine.channels ? static_cast<uint32_t>(number)
                  : number >> 32 == 0 ? static_cast<uint32_t>(number) % to.affine.channels
                                      : static_cast<uint32_t>(number % to.affine.channels);
    }
    convert(bits, at.dtype, to.dtype, to.affine, channel, at.channel_step);
    uint64_t mask = size == 8 ? ~0ull : (1ull << (8 * size)) - 1;
    Vec16 all = {0, 0};
#pragma unroll
    for (uint32_t i = 0; i < Policy::kRun; ++i) {
        if (i * size < 16) {
            all = all | shift_up({bits[i] & mask, 0}, i * size);
        }
    }
    return all & first_bytes(n * size);
}

/// Writes `count` elements, at most 16 bytes of them. `find(i)` gives the cursor at the i-th; it is
/// called for the first, and where a row has ended. One store if they turn out to be 16 adjacent
/// and aligned bytes, else element by element. Reads as read_elements.
template <class Find>
WINDROW_DEVICE void write_group(const Target& to, uint32_t count, const Find& find) {
    const uint32_t size = to.size;
    Vec16 group = {0, 0};     // element i at byte i * size
    uint8_t* base = nullptr;  // elements [kept, done) of the group belong to base + i * size
    uint32_t kept = 0;
    Cursor at;
    at.column = at.extent = 0;
    for (uint32_t done = 0; done < count;) {
        if (at.column == at.extent) {
            at = find(done);
        }
        // A run: elements of one row, all of them real or none.
        const bool is_real = at.column >= at.lo && at.column < at.hi;
        uint64_t until = is_real ? at.hi : at.column < at.lo ? at.lo : at.extent;
        uint32_t n = count - done;
        if (until - at.column < n) {
            n = static_cast<uint32_t>(until - at.column);
        }
        if (at.dst_stride != size) {
            n = 1;
        }
        if (at.dst != base + done * size) {
            store_elements(base, group, size, kept, done, to.aligned);
            base = at.dst - done * size;
            kept = done;
        }
        Vec16 bits;
        if (!is_real) {
            bits = to.fill & first_bytes(n * size);
        } else if (to.op == kConst || to.op == kIndex) {
            uint64_t number = to.op == kConst ? to.value : at.sample;
            bits = repeated({number, 0}, size) & first_bytes(n * size);
        } else {
            bits = read_elements(to, at, n, n);
        }
        group = group | shift_up(bits, done * size);
        done += n;
        at.column += n;
        at.src += n * at.src_stride;
        at.dst += n * at.dst_stride;
    }
    if (kept == 0 && count * size == 16 && misalignment(base, 16) == 0) {
        store16(base, group);
    } else {
        store_elements(base, group, size, kept, count, to.aligned);
    }
}

/// The class of a sample.
WINDROW_DEVICE const Class& class_of(const uint64_t* table, const Field& field, uint64_t sample) {
    uint32_t id = field.class_ids == 0 ? 0 : at<uint32_t>(table, field.class_ids)[sample];
    return at<Class>(table, field.classes)[id];
}

/// The address of a sample's first output element. `owner` is where its elements are.
WINDROW_DEVICE uint8_t* output_of(const Field& field, const Samples& samples, uint64_t sample) {
    uint64_t steps = samples.offsets == nullptr ? sample : samples.offsets[sample];
    return field.out + static_cast<int64_t>(steps) * field.step;
}

/// The address of a sample's first real element.
WINDROW_DEVICE const uint8_t* source_of(const uint64_t* table, const Field& field,
                                        uint64_t sample) {
    return reinterpret_cast<const uint8_t*>(table[field.data + sample]);
}

/// How many elements lie between the last multiple of 16 bytes and `p`.
WINDROW_DEVICE uint32_t phase_of(const uint8_t* p, uint32_t size) {
    return misalignment(p, 16) / size;
}

/// Writes the elements of one tile of a kWalk field, in groups that begin at multiples of 16 bytes
/// if the output has no gaps.
WINDROW_DEVICE void walk_tile(const uint64_t* table, const Field& field, uint64_t tile,
                              uint32_t tile_bytes) {
    const Target to(table, field);
    const uint32_t tile_elems = tile_bytes / to.size, width = 16 / to.size;
    const uint64_t begin = tile * tile_elems;
    if (begin >= field.numel) {
        return;
    }
    const uint64_t left = field.numel - begin;
    const uint32_t num = left < tile_elems ? static_cast<uint32_t>(left) : tile_elems;
    const uint32_t phase = to.aligned ? phase_of(field.out, to.size) : 0;
    const Samples samples(table, field, tile, begin, tile_elems);
    for (uint32_t group = threadIdx.x; group * width < num + phase; group += Policy::kThreads) {
        // Relative to the tile.
        uint32_t from = group == 0 ? 0 : group * width - phase;
        uint32_t to_elem = group * width + width - phase;
        to_elem = to_elem < num ? to_elem : num;
        write_group(to, to_elem - from, [&](uint32_t i) {
            Owner owner = samples.of(from + i);
            const Class& cls = class_of(table, field, owner.sample);
            Cursor at = find_element(cls, ::windrow::at<Dim>(table, cls.dims), cls.num_dims,
                                     owner.skip, source_of(table, field, owner.sample),
                                     output_of(field, samples, owner.sample));
            at.sample = owner.sample;
            return at;
        });
    }
}

}  // namespace windrow
