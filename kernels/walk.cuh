// kWalk: elements found one by one through the loops of their class.
#pragma once

#include "convert.cuh"
#include "policy.h"
#include "samples.cuh"

namespace windrow {

/// Counts of elements that are compared with those of a group, at most 16, are cut off here.
constexpr uint32_t kMany = 64;

WINDROW_DEVICE uint32_t many(uint64_t count) {
    return count < kMany ? static_cast<uint32_t>(count) : kMany;
}

/// Where an element is, and what is left of its row, the innermost loop at fixed outer coordinates,
/// from it on: `lead` elements of padding, then `real` ones, then `tail` of padding; up to kMany.
struct Cursor {
    const uint8_t* src;  ///< of the element, if it is real
    uint8_t* dst;
    int64_t src_stride;
    int64_t dst_stride;
    uint64_t sample;
    uint32_t lead;
    uint32_t real;
    uint32_t tail;
    uint32_t behind;   ///< real elements of the row in front of it, up to kMany
    uint32_t channel;  ///< of the next real element, below the number of channels
    uint32_t channel_step;
    uint8_t dtype;  ///< of the source
    uint8_t src_size;

    /// Goes `n` elements on, which are all real or none, and of this row.
    WINDROW_DEVICE void advance(uint32_t n, uint32_t channels) {
        src += n * src_stride;
        dst += n * dst_stride;
        if (lead > 0) {
            lead -= n;
        } else if (real > 0) {
            real -= n;
            behind += n;
            channel += n * channel_step;
            channel = channel < channels ? channel : channel % channels;
        } else {
            tail -= n;
        }
    }
};

/// The cursor at element `elem` of a sample, counted through `num_dims` loops from `dims` on.
/// `src` and `dst` are the addresses of its first real element and of its first output element.
/// Computes addresses only.
WINDROW_DEVICE Cursor find_element(const Class& cls, const Dim* dims, uint32_t num_dims,
                                   uint64_t elem, uint32_t channels, const uint8_t* src,
                                   uint8_t* dst) {
    Cursor at;
    uint64_t channel = cls.channel_first;
    at.channel_step = 0;
    at.dtype = cls.dtype;
    at.src_size = cls.elem_size;
    at.lead = at.real = at.tail = at.behind = 0;
    bool is_real = true;
    uint64_t rest = elem;
#pragma unroll 1
    for (uint32_t d = num_dims; d-- > 0;) {
        const Dim& dim = dims[d];
        uint64_t coord = rest;
        if (d > 0) {  // nothing is left over from the outermost
            rest = divide(rest, dim.extent, dim.by_extent);
            coord -= rest * dim.extent;
        }
        const uint64_t real = coord - dim.lo;
        dst += static_cast<int64_t>(coord) * dim.dst_stride;
        src += static_cast<int64_t>(real) * dim.src_stride;
        const bool is_channel = cls.channel == kLoopChannel && d == cls.channel_dim;
        if (d + 1 < num_dims) {
            channel += is_channel ? real : 0;
            is_real = is_real && coord >= dim.lo && coord < dim.hi;
            continue;
        }
        at.src_stride = dim.src_stride;
        at.dst_stride = dim.dst_stride;
        at.lead = coord < dim.lo ? many(dim.lo - coord) : 0;
        at.real = coord < dim.hi ? many(dim.hi - (coord < dim.lo ? dim.lo : coord)) : 0;
        at.tail = many(dim.extent - (coord < dim.hi ? dim.hi : coord));
        at.behind = coord < dim.lo ? 0 : many(real);
        if (is_channel || cls.channel == kInnerChannel) {
            at.channel_step = 1;
            channel += coord < dim.lo ? 0 : real;
        }
    }
    if (!is_real) {
        at.tail = at.lead + at.real + at.tail;
        at.lead = at.real = 0;
    }
    at.channel = 0;
    if (channels > 1 && cls.channel != kNoChannel) {
        at.channel = channel < channels        ? static_cast<uint32_t>(channel)
                     : (channel >> 32) == 0 ? static_cast<uint32_t>(channel) % channels
                                            : static_cast<uint32_t>(channel % channels);
    }
    at.src = src;
    at.dst = dst;
    return at;
}

/// What a thread keeps of its field. The rest is read again where it is needed: registers are
/// scarcer than loads from the first cache.
struct Target {
    const Field* field;
    Affine affine;
    uint32_t size;
    uint8_t dtype;
    bool aligned;

    WINDROW_DEVICE Target(const uint64_t* table, const Field& field)
        : field(&field),
          size(field.elem_size),
          dtype(field.dtype),
          aligned(field.aligned != 0) {
        const bool has = field.op == kAffine && field.affine != 0;
        affine.a = has ? at<uint8_t>(table, field.affine) : nullptr;
        affine.channels = has ? field.channels : 1;
        affine.wide = field.wide != 0;
    }

    /// The padding, over and over.
    WINDROW_DEVICE Vec16 fill() const {
        const uint64_t* words = reinterpret_cast<const uint64_t*>(field->fill);
        return repeated({words[0], words[1]}, size);
    }
};

/// The bits of Policy::kRun adjacent elements of `size` bytes, by loads of up to 16 bytes that are
/// aligned to their width.
template <uint32_t size>
WINDROW_DEVICE void read_adjacent(const uint8_t* src, uint64_t (&bits)[Policy::kRun]) {
    constexpr uint32_t kBytes = Policy::kRun * size < 16 ? Policy::kRun * size : 16;
    constexpr uint32_t kElems = kBytes / size;
    static_assert(kBytes >= 2 && (kBytes & (kBytes - 1)) == 0, "a load of so many bytes");
#pragma unroll
    for (uint32_t first = 0; first < Policy::kRun; first += kElems) {
        const uint8_t* p = src + first * size;
        const Vec16 all = kBytes == 16  ? load16(p)
                          : kBytes == 8 ? Vec16{load<uint64_t>(p), 0}
                          : kBytes == 4 ? Vec16{load<uint32_t>(p), 0}
                                        : Vec16{load<uint16_t>(p), 0};
#pragma unroll
        for (uint32_t i = 0; i < kElems; ++i) {
            const uint32_t shift = 8 * size * i;
            bits[first + i] = (shift < 64 ? all.lo >> shift : all.hi >> (shift - 64)) &
                              ~0ull >> (64 - 8 * size);
        }
    }
}

/// The bits of up to Policy::kRun elements of `size` bytes, `stride` bytes apart, at any alignment.
/// Reads these elements and nothing else.
WINDROW_DEVICE void read_run(const uint8_t* src, int64_t stride, uint32_t size, uint32_t n,
                             uint64_t (&bits)[Policy::kRun]) {
    constexpr uint32_t kRun = Policy::kRun;
    const uint32_t bytes = kRun * size;
    if (n == kRun && stride == size && size <= 8 &&
        misalignment(src, bytes < 16 ? bytes : 16) == 0) {
        switch (size) {
            case 1: return read_adjacent<1>(src, bits);
            case 2: return read_adjacent<2>(src, bits);
            case 4: return read_adjacent<4>(src, bits);
            default: return read_adjacent<8>(src, bits);
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
/// converted: sets `n`, 1 at least and `most` at most, and returns their bits as the output's.
/// Reads their source elements; where adjacent ones are moved, also others of the row.
WINDROW_DEVICE Vec16 read_elements(const Target& to, const Cursor& at, uint32_t most,
                                   uint32_t& n) {
    const uint32_t size = to.size;
    if (at.dtype == to.dtype && to.affine.a == nullptr) {
        if (at.src_stride == size && most * size == 16) {
            n = most;
            return read16(at.src, at.src - at.behind * size, at.src + at.real * size);
        }
        if (size == 16) {
            n = 1;
            return read_bytes(at.src, 16);
        }
    }
    n = most < Policy::kRun ? most : Policy::kRun;
    uint64_t bits[Policy::kRun];
    read_run(at.src, at.src_stride, at.src_size, n, bits);
    convert(bits, at.dtype, to.dtype, to.affine, at.channel, at.channel_step);
    const uint64_t mask = size == 8 ? ~0ull : (1ull << (8 * size)) - 1;
    Vec16 all = {0, 0};
#pragma unroll
    for (uint32_t i = 0; i < Policy::kRun; ++i) {
        if (i < n) {
            all = all | shift_up({bits[i] & mask, 0}, i * size);
        }
    }
    return all;
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
    at.lead = at.real = at.tail = 0;
    // The last turn only stores.
#pragma unroll 1
    for (uint32_t done = 0;;) {
        const bool is_over = done == count;
        if (!is_over && at.lead + at.real + at.tail == 0) {
            at = find(done);
        }
        if (is_over || at.dst != base + done * size) {
            if (is_over && kept == 0 && count * size == 16 && misalignment(base, 16) == 0) {
                store16(base, group);
            } else {
                store_elements(base, group, size, kept, done, to.aligned);
            }
            if (is_over) {
                return;
            }
            base = at.dst - done * size;
            kept = done;
        }
        // A run: elements of the row, all of them real or none.
        uint32_t n = at.lead > 0 ? at.lead : at.real > 0 ? at.real : at.tail;
        n = n < count - done ? n : count - done;
        if (at.dst_stride != size) {
            n = 1;
        }
        Vec16 bits;
        const uint8_t op = to.field->op;
        if (at.lead > 0 || at.real == 0) {
            bits = to.fill();
        } else if (op == kConst || op == kIndex) {
            bits = repeated({op == kConst ? to.field->value : at.sample, 0}, size);
        } else {
            bits = read_elements(to, at, n, n);
        }
        group = group | shift_up(bits & first_bytes(n * size), done * size);
        done += n;
        at.advance(n, to.affine.channels);
    }
}

/// The class of a sample.
WINDROW_DEVICE const Class& class_of(const uint64_t* table, const Field& field, uint64_t sample) {
    uint32_t id = field.class_ids == 0 ? 0 : at<uint32_t>(table, field.class_ids)[sample];
    return at<Class>(table, field.classes)[id];
}

/// The address of a sample's first output element.
WINDROW_DEVICE uint8_t* output_of(const uint64_t* table, const Field& field, uint64_t sample) {
    const int64_t steps = field.offsets == 0 ? static_cast<int64_t>(sample)
                                             : at<int64_t>(table, field.offsets)[sample];
    return field.out + steps * field.step;
}

/// The address of a sample's first real element; any address where nothing is read.
WINDROW_DEVICE const uint8_t* source_of(const uint64_t* table, const Field& field,
                                        uint64_t sample) {
    if (field.op == kConst || field.op == kIndex) {
        return field.out;
    }
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
#pragma unroll 1
    for (uint32_t group = threadIdx.x; group * width < num + phase; group += Policy::kThreads) {
        // Relative to the tile.
        uint32_t from = group == 0 ? 0 : group * width - phase;
        uint32_t to_elem = group * width + width - phase;
        to_elem = to_elem < num ? to_elem : num;
        write_group(to, to_elem - from, [&](uint32_t i) {
            const Samples samples(table, field, tile, begin, tile_elems);
            const Owner owner = samples.of(from + i);
            const Class& cls = class_of(table, field, owner.sample);
            Cursor at = find_element(cls, ::windrow::at<Dim>(table, cls.dims), cls.num_dims,
                                     owner.skip, to.affine.channels,
                                     source_of(table, field, owner.sample),
                                     output_of(table, field, owner.sample));
            at.sample = owner.sample;
            return at;
        });
    }
}

}  // namespace windrow
