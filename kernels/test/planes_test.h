// Family planes.
#pragma once

#include "../planes.cuh"
#include "values.h"

/// One run of pixels in an image of `before` + `real` + `after` of them; planes `gap` bytes apart.
template <uint8_t dtype, int channels>
void check_pixels(const char* what, size_t src_skew, size_t dst_skew, uint32_t before, uint32_t real, uint32_t after, uint32_t padding,
                  uint32_t gap) {
    using namespace windrow;
    constexpr uint32_t kSize = SizeOf<dtype>::value;
    const uint32_t width = real + padding, plane = width * kSize + gap;
    Output output(size_t{channels} * plane, dst_skew);
    const uint8_t* image = allocate((before + real + after) * channels, src_skew, true) + before * channels;
    const uint64_t fill = rng();
    Coefficients<channels> by;
    for (int c = 0; c < channels; ++c) by.a[c] = 0.0171f + 0.001f * c, by.b[c] = -2.1f + 0.3f * c;
    for (int c = 0; c < channels; ++c) {
        const double a = by.a[c], b = by.b[c];
        for (uint32_t i = 0; i < width; ++i) {
            uint64_t bits = fill;
            if (i < real) bits = dtype == kU8 ? image[i * channels + c] : oracle::convert(kU8, dtype, image[i * channels + c], &a, &b);
            memcpy(output.want(c * plane + i * kSize), &bits, kSize);
        }
    }
    const Pixels run = {image, output.data(), plane, real, width, before * channels, after * channels};
    for (uint32_t lane = 0; lane < kLanes; ++lane) write_pixels<dtype, channels, dtype == kU8 ? 1 : 2>(by, run, fill_of(fill, kSize), lane);
    output.check(what);
    blocks.clear();
}

template <uint8_t dtype, int channels>
void test_planes_of(const char* what) {
    constexpr uint32_t kSize = windrow::SizeOf<dtype>::value, kPixels = 16 / kSize;
    for (size_t src = 0; src < 16; ++src) {
        for (size_t dst = 0; dst < 16; dst += kSize) {
            const uint32_t groups = uint32_t(pick(4) == 0 ? 30 + pick(100) : pick(4)), real = groups * kPixels + uint32_t(pick(kPixels));
            const uint32_t padding = pick(2) ? uint32_t(pick(3 * kPixels)) : 0, row = (real + padding) * kSize % 16;
            check_pixels<dtype, channels>(what, src, dst, pick(2) ? pick(8) : 0, real, pick(2) ? pick(8) : 0, padding,
                                          pick(2) ? (16 - row) % 16 : kSize * uint32_t(pick(9)));
        }
    }
}

inline void test_planes() {
    using namespace windrow;
    test_planes_of<kF16, 3>("planes f16");
    test_planes_of<kBF16, 3>("planes bf16");
    test_planes_of<kF32, 3>("planes f32");
    test_planes_of<kU8, 3>("planes u8");
    test_planes_of<kF16, 4>("planes f16 of 4");
    test_planes_of<kF32, 2>("planes f32 of 2");
}
