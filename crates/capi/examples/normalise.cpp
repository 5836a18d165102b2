// Images in HWC bytes to one float32 CHW batch, normalised, in memory of the caller.
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "windrow.h"

namespace {

void check(windrow_status status) {
    if (status != WINDROW_STATUS_OK) {
        throw std::runtime_error(std::string(windrow_status_name(status)) + ": " + windrow_error());
    }
}

template <class T, void (*release)(T *)>
struct Deleter {
    void operator()(T *handle) const { release(handle); }
};
using Engine = std::unique_ptr<windrow_engine, Deleter<windrow_engine, windrow_engine_free>>;
using Samples = std::unique_ptr<windrow_samples, Deleter<windrow_samples, windrow_samples_free>>;

}  // namespace

int main() {
    windrow_engine *made_engine = nullptr;
    windrow_samples *made_samples = nullptr;
    check(windrow_engine_new(2, &made_engine));
    const Engine engine(made_engine);
    check(windrow_samples_new(&made_samples));
    const Samples samples(made_samples);

    std::vector<std::vector<uint8_t>> images(4, std::vector<uint8_t>(8 * 6 * 3));
    int64_t shape[] = {8, 6, 3};
    for (size_t i = 0; i < images.size(); ++i) {
        for (size_t j = 0; j < images[i].size(); ++j) images[i][j] = static_cast<uint8_t>(i + j);
        const DLTensor image = {images[i].data(), {1, 0}, 3, {1, 8, 1}, shape, nullptr, 0};
        check(windrow_samples_push(samples.get(), &image));
    }

    const double mean[] = {0.5, 0.25, 0.125};
    const int64_t permute[] = {2, 0, 1};
    windrow_options options;
    check(windrow_options_init(&options));
    options.has_dtype = 1;
    options.dtype = {2, 32, 1};
    options.scale = 1.0 / 255;
    options.mean = mean;
    options.num_mean = 3;
    options.permute = permute;
    options.num_permute = 3;

    std::vector<float> batch(4 * 3 * 8 * 6);
    int64_t batch_shape[] = {4, 3, 8, 6};
    const DLTensor out = {batch.data(), {1, 0}, 4, {2, 32, 1}, batch_shape, nullptr, 0};
    check(windrow_assemble_into(engine.get(), samples.get(), &options, &out, nullptr));
    for (size_t i = 0; i < 4; ++i) {
        for (size_t c = 0; c < 3; ++c) {
            for (size_t pixel = 0; pixel < 48; ++pixel) {
                const double wanted = static_cast<uint8_t>(i + 3 * pixel + c) / 255.0 - mean[c];
                const double error = batch[(3 * i + c) * 48 + pixel] - wanted;
                if (error > 1e-6 || error < -1e-6) return 1;
            }
        }
    }
    std::printf("(4, 3, 8, 6) float32, first element %.4f\n", batch[0]);
    return 0;
}
