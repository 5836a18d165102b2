/* Token rows of different lengths to one padded int64 batch with a mask, and ragged with offsets. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "windrow.h"

static void check(windrow_status status) {
    if (status != WINDROW_STATUS_OK) {
        fprintf(stderr, "windrow %s: %s: %s (sample %" PRId64 ")\n", windrow_version(), windrow_status_name(status),
                windrow_error(), windrow_error_sample());
        exit(1);
    }
}

/* A row of int32 on the host. The struct is only read by windrow_samples_push. */
static DLTensor row(int32_t *data, int64_t *length) {
    DLTensor tensor = {data, {1, 0}, 1, {0, 32, 1}, length, NULL, 0};
    return tensor;
}

static DLManagedTensorVersioned *tensor_of(const windrow_batch *batch, windrow_field field) {
    DLManagedTensorVersioned *tensor = NULL;
    check(windrow_batch_tensor(batch, field, &tensor));
    return tensor;
}

int main(void) {
    int32_t a[] = {1, 2, 3}, b[] = {4}, c[] = {5, 6};
    int64_t lengths[] = {3, 1, 2};
    int32_t *rows[] = {a, b, c};
    windrow_engine *engine = NULL;
    windrow_samples *samples = NULL;
    windrow_options options;
    windrow_batch *batch = NULL;

    check(windrow_engine_new(0, &engine));
    check(windrow_samples_new(&samples));
    for (int i = 0; i < 3; ++i) {
        DLTensor tensor = row(rows[i], &lengths[i]);
        check(windrow_samples_push(samples, &tensor));
    }

    check(windrow_options_init(&options));
    options.form = WINDROW_FORM_PAD;
    options.value = windrow_int64(-1);
    options.side = WINDROW_SIDE_RIGHT;
    options.mask = WINDROW_MASK_REAL;
    options.has_mask_dtype = 1;
    options.mask_dtype = (DLDataType){0, 32, 1};
    options.has_dtype = 1;
    options.dtype = (DLDataType){0, 64, 1};
    check(windrow_assemble(engine, samples, &options, &batch));

    DLManagedTensorVersioned *data = tensor_of(batch, WINDROW_FIELD_DATA);
    DLManagedTensorVersioned *mask = tensor_of(batch, WINDROW_FIELD_MASK);
    windrow_batch_free(batch); /* the tensors live on */
    const int64_t *values = data->dl_tensor.data;
    const int32_t *real = mask->dl_tensor.data;
    for (int64_t i = 0; i < data->dl_tensor.shape[0]; ++i) {
        for (int64_t j = 0; j < data->dl_tensor.shape[1]; ++j) {
            printf(real[3 * i + j] ? "%" PRId64 " " : "(%" PRId64 ") ", values[3 * i + j]);
        }
        printf("\n");
    }
    data->deleter(data);
    mask->deleter(mask);

    /* A failure names the sample and changes nothing. */
    check(windrow_options_init(&options));
    if (windrow_assemble(engine, samples, &options, &batch) != WINDROW_STATUS_SHAPE) return 1;
    printf("%s\n", windrow_error());

    /* Into memory of the caller. */
    int32_t joined[6];
    int64_t total = 6;
    DLTensor out = row(joined, &total);
    options.form = WINDROW_FORM_RAGGED;
    check(windrow_assemble_into(engine, samples, &options, &out, &batch));
    DLManagedTensorVersioned *offsets = tensor_of(batch, WINDROW_FIELD_OFFSETS);
    for (int i = 0; i < 4; ++i) printf("%" PRId64 " ", ((const int64_t *)offsets->dl_tensor.data)[i]);
    printf("(at most %" PRId64 ")\n", windrow_batch_max_length(batch));
    offsets->deleter(offsets);
    windrow_batch_free(batch);
    windrow_samples_free(samples);
    windrow_engine_free(engine);
    return 0;
}
