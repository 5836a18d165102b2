// kPlanar: channels that lie interleaved in the source become planes of the output.
//
// Fast for uint8 to uint8, float16, bfloat16 and float32; other dtypes are right, but one pixel at
// a time: kWalk suits them better. To be measured for the fast ones: a thread's 24 bytes (3 channels,
// 2-byte output) come as three 8-byte loads that share sectors with its neighbours', against
// 16-byte loads through shared memory.
#pragma once

#include "walk.cuh"

namespace windrow {

/// The pixels of one sample: addresses of its first real element and of its first output element.
struct Image {
    const Class* cls;
    const Dim* dims;  ///< the channels, then the pixels
    const uint8_t* src;
    uint8_t* dst;

    WINDROW_DEVICE uint32_t channels() const { return static_cast<uint32_t>(dims[0].extent); }
    WINDROW_DEVICE int64_t plane() const { return dims[0].dst_stride; }
};

/// `num` 32-bit words from `src` on, of any alignment. [begin, end) may be read.
template <int num>
WINDROW_DEVICE void read_words(const uint8_t* src, const uint8_t* begin, const uint8_t* end,
                               uint32_t (&words)[num]) {
    if (num % 2 == 0 && misalignment(src, 8) == 0) {
#pragma unroll
        for (int i = 0; i + 1 < num; i += 2) {
            uint64_t pair = load<uint64_t>(src + 4 * i);
            words[i] = static_cast<uint32_t>(pair);
            words[i + 1] = static_cast<uint32_t>(pair >> 32);
        }
        return;
    }
    const uint32_t skew = misalignment(src, 4);
    const uint8_t* first = src - skew;
    if (skew == 0) {
#pragma unroll
        for (int i = 0; i < num; ++i) words[i] = load<uint32_t>(first + 4 * i);
        return;
    }
    uint32_t last;
    if (first >= begin) {
        words[0] = load<uint32_t>(first);
    } else {
        words[0] = static_cast<uint32_t>(read_bytes(src, 4 - skew).lo) << (8 * skew);
    }
#pragma unroll
    for (int i = 1; i < num; ++i) words[i] = load<uint32_t>(first + 4 * i);
    if (end - first >= 4 * num + 4) {
        last = load<uint32_t>(first + 4 * num);
    } else {
        last = static_cast<uint32_t>(read_bytes(first + 4 * num, skew).lo);
    }
#pragma unroll
    for (int i = 0; i < num; ++i) {
        words[i] = funnel(words[i], i + 1 < num ? words[i + 1] : last, 8 * skew);
    }
}

/// Writes one group of uint8 pixels, 16 bytes of each plane: `dtype` is the output's. `at` is at
/// the first; all are real and of its row. Reads bytes of the row.
template <uint8_t dtype, int channels>
WINDROW_DEVICE void write_bytes_of_pixels(const Target& to, const Image& image, const Cursor& at) {
    constexpr int size = dtype == kU8 ? 1 : dtype == kF32 ? 4 : 2;
    constexpr int pixels = 16 / size;
    constexpr int num = pixels * channels / 4;
    uint32_t words[num];
    read_words(at.src, at.src - at.behind * channels, at.src + at.real * channels, words);
    // One plane after the other, to save registers: the next channel's bytes move to the first's
    // places.
#pragma unroll 1
    for (int c = 0; c < channels; ++c) {
        float a = 1, b = 0;
        if (dtype != kU8 && to.affine.a != nullptr) {
            const uint32_t index = to.affine.channels > 1 ? c : 0;
            a = to.affine.get<float>(index);
            b = to.affine.get<float>(index + to.affine.channels);
        }
        Vec16 bits = {0, 0};
#pragma unroll
        for (int i = 0; i < pixels; ++i) {
            const int byte = i * channels;
            uint64_t x = words[byte / 4] >> (8 * (byte % 4)) & 0xFF;
            if (dtype != kU8) {
                // 1 and 0 change no value, so a mere cast needs no code of its own.
                x = Number<dtype>::from(multiply_add(static_cast<float>(x), a, b));
            }
            (i * size < 8 ? bits.lo : bits.hi) |= x << (8 * (i * size % 8));
        }
        uint8_t* dst = at.dst + c * image.plane();
        if (misalignment(dst, 16) == 0) {
            store16(dst, bits);
        } else {
            store_elements(dst, bits, size, 0, pixels, to.aligned);
        }
#pragma unroll
        for (int i = 0; i < num; ++i) {
            words[i] = funnel(words[i], i + 1 < num ? words[i + 1] : 0, 8);
        }
    }
}

template <uint8_t dtype>
WINDROW_DEVICE void write_bytes(const Target& to, const Image& image, const Cursor& at) {
    switch (image.channels()) {
        case 2: return write_bytes_of_pixels<dtype, 2>(to, image, at);
        case 3: return write_bytes_of_pixels<dtype, 3>(to, image, at);
        default: return write_bytes_of_pixels<dtype, 4>(to, image, at);
    }
}

/// Writes the pixels `at` is at in every plane: one if they are real, up to `most` of padding.
/// Returns how many. Reads that pixel and nothing else.
WINDROW_DEVICE uint32_t write_few(const Target& to, const Image& image, const Cursor& at,
                                  uint32_t most) {
    const bool is_real = at.lead == 0 && at.real > 0;
    const uint32_t padding = at.lead > 0 ? at.lead : at.tail;
    const uint32_t n = is_real ? 1 : padding < most ? padding : most;
#pragma unroll 1
    for (uint32_t c = 0; c < image.channels(); ++c) {
        uint8_t* dst = at.dst + c * image.plane();
        Vec16 bits;
        if (is_real) {
            bits = read_bytes(at.src + c * at.src_size, at.src_size);
            if (at.dtype != kMoved) {
                uint64_t element[1] = {bits.lo};
                const uint32_t channel = to.affine.channels > 1 ? c : 0;
                convert(element, at.dtype, to.dtype, to.affine, channel, 0);
                bits.lo = element[0];
            }
        } else {
            bits = to.fill();
        }
        if (n * to.size == 16 && misalignment(dst, 16) == 0) {
            store16(dst, bits);
        } else {
            store_elements(dst, bits, to.size, 0, n, to.aligned);
        }
    }
    return n;
}

/// Writes `count` pixels from `pixel` on in every plane, at most 16 bytes of each.
WINDROW_DEVICE void write_pixels(const Target& to, const Image& image, uint64_t pixel,
                                 uint32_t count) {
    Cursor at;
    at.lead = at.real = at.tail = 0;
#pragma unroll 1
    for (uint32_t done = 0; done < count;) {
        if (at.lead + at.real + at.tail == 0) {
            at = find_element(*image.cls, image.dims + 1, image.cls->num_dims - 1, pixel + done, 1,
                              image.src, image.dst);
        }
        if (count * to.size == 16 && at.lead == 0 && at.real >= count && at.dtype == kU8) {
            switch (to.dtype) {
                case kU8:
                    if (to.affine.a == nullptr) return write_bytes<kU8>(to, image, at);
                    break;
                case kF16: return write_bytes<kF16>(to, image, at);
                case kBF16: return write_bytes<kBF16>(to, image, at);
                case kF32: return write_bytes<kF32>(to, image, at);
                default: break;
            }
        }
        // Padding, the ends of rows, and dtypes that are seldom split into planes.
        const uint32_t n = write_few(to, image, at, count - done);
        done += n;
        at.advance(n, 1);
    }
}

/// The elements [begin, end) of a sample.
struct Extent {
    uint64_t begin;
    uint64_t end;
};

WINDROW_DEVICE Extent extent_of(const uint64_t* table, const Field& field, uint64_t sample) {
    if (field.offsets == 0) {
        return {sample * field.unit, (sample + 1) * field.unit};
    }
    const int64_t* ends = at<int64_t>(table, field.offsets) + sample;
    return {static_cast<uint64_t>(ends[0]) * field.unit,
            static_cast<uint64_t>(ends[1]) * field.unit};
}

/// Writes the pixels of one tile of a kPlanar field. Samples are shared out over teams of threads,
/// small ones; groups begin where the first plane's address is a multiple of 16.
WINDROW_DEVICE void planar_tile(const uint64_t* table, const Field& field, uint64_t tile,
                                uint32_t tile_bytes) {
    constexpr uint32_t kThreads = Policy::kThreads;
    const Target to(table, field);
    const uint32_t tile_elems = tile_bytes / to.size, width = 16 / to.size;
    const uint64_t begin = tile * tile_elems;
    if (begin >= field.numel) {
        return;
    }
    const uint64_t end = field.numel - begin < tile_elems ? field.numel : begin + tile_elems;
    const Owner owner = Samples(table, field, tile, begin, tile_elems).of(0);
    const bool shared = owner.left < end - begin &&
                        owner.skip + owner.left < width * uint64_t{Policy::kBlockGroups};
    const uint32_t team_size = shared ? Policy::kTeam : kThreads;
    const uint32_t teams = kThreads / team_size;
#pragma unroll 1
    for (uint64_t sample = owner.sample + threadIdx.x / team_size; sample < field.num_samples;
         sample += teams) {
        const Extent own = extent_of(table, field, sample);
        if (own.begin >= end) {
            break;
        }
        if (own.end <= begin || own.begin == own.end) {
            continue;
        }
        const Class& cls = class_of(table, field, sample);
        const Image image = {&cls, at<Dim>(table, cls.dims), source_of(table, field, sample),
                             output_of(table, field, sample)};
        // Pixels of the sample whose first channel would be counted in.
        const uint32_t channels = image.channels();
        const uint64_t skip = own.begin < begin ? begin - own.begin : 0;
        const uint64_t first = skip == 0 ? 0 : (skip + channels - 1) / channels;
        const uint64_t until = (own.end < end ? own.end : end) - own.begin + channels - 1;
        const uint32_t num = static_cast<uint32_t>(until / channels - first);
        const uint32_t phase = to.aligned ? phase_of(image.dst + first * to.size, to.size) : 0;
#pragma unroll 1
        for (uint32_t group = threadIdx.x % team_size; group * width < num + phase;
             group += team_size) {
            const uint32_t from = group == 0 ? 0 : group * width - phase;
            const uint32_t behind = group * width + width - phase;
            write_pixels(to, image, first + from, (behind < num ? behind : num) - from);
        }
    }
}

}  // namespace windrow
