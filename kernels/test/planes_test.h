// Family planes.
#pragma once

#include "../planes.cuh"
#include "line_test.h"

/// One run of pixels; planes `gap` bytes apart. `maps`: pairs of coefficients, 0, 1 or one for each channel.
inline void check_pixels(uint8_t to, uint32_t channels, const Place& at, uint32_t real, uint32_t gap, uint32_t maps, uint32_t warps) {
    const uint32_t size = oracle::kSizes[to], width = at.lead + real + at.padding, plane = width * size + gap;
    Output output(size_t{channels} * plane, at.dst);
    const uint8_t* image = allocate((at.before + real + at.after) * channels, at.src, true) + at.before * channels;
    const Vec16 fill = repeated({rng(), 0}, size);
    std::vector<float> by(2 * maps);
    for (uint32_t c = 0; c < maps; ++c) by[c] = 0.0171f + 0.001f * c, by[maps + c] = -2.1f + 0.3f * c;
    for (uint32_t c = 0; c < channels; ++c) {
        const double factor = maps == 0 ? 1 : by[maps == 1 ? 0 : c], offset = maps == 0 ? 0 : by[maps == 1 ? 1 : maps + c];
        for (uint32_t i = 0; i < width; ++i) {
            uint64_t bits = fill.lo;
            const uint32_t e = i - at.lead;
            if (i >= at.lead && e < real) {
                bits = image[e * channels + c];
                bits = oracle::convert(kU8, to, bits, maps == 0 ? nullptr : &factor, &offset);
            }
            memcpy(output.want(c * plane + i * size), &bits, size);
        }
    }
    const Pixels run = {image, output.data(), plane, at.lead, real, width, at.before * channels, at.after * channels};
    for (uint32_t thread = 0; thread < kLanes * warps; ++thread) {
        write_pixels(run, to, channels, maps == 0 ? nullptr : by.data(), maps, fill, {thread, kLanes * warps});
    }
    output.check("pixels");
    blocks.clear();
}

inline void test_planes() {
    for (uint8_t to : {kU8, kF16, kBF16, kF32}) {
        const uint32_t size = oracle::kSizes[to], pixels = 16 / size;
        for (uint32_t channels = 3; channels <= 4; ++channels) {
            for (size_t src = 0; src < 16; ++src) {
                for (size_t dst = 0; dst < 16; ++dst) {
                    if (dst % size != 0 && pick(4) != 0) continue;
                    auto some = [](uint32_t n) { return pick(2) ? uint32_t(pick(n)) : 0; };
                    const Place at = {src, dst, some(8), some(8), some(3 * pixels), some(3 * pixels)};
                    const uint32_t groups = uint32_t(pick(6) == 0 ? 60 + pick(20) : pick(5));
                    const uint32_t real = groups * pixels + uint32_t(pick(pixels));
                    const uint32_t row = (at.lead + real + at.padding) * size % 16;
                    const uint32_t gap = pick(2) ? (16 - row) % 16 : size * uint32_t(pick(9));
                    const uint32_t maps = to == kU8 ? 0 : pick(3) == 0 ? uint32_t(pick(2)) : channels;
                    check_pixels(to, channels, at, real, gap, maps, 1 + uint32_t(pick(4)));
                }
            }
        }
    }
}
