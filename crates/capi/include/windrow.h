// The C interface of windrow: batch assembly. Written by cbindgen from crates/capi; do not edit.

#ifndef WINDROW_H
#define WINDROW_H

#include <stddef.h>
#include <stdint.h>

// The version of this header; `windrow_version` has that of the library that runs.
#define WINDROW_VERSION "0.1.0"
#define WINDROW_VERSION_MAJOR 0
#define WINDROW_VERSION_MINOR 1
#define WINDROW_VERSION_PATCH 0

// Fills in the defaults of `windrow_options`: see `windrow_options_init_sized`.
#define windrow_options_init(options) windrow_options_init_sized((options), sizeof(windrow_options))

// Include dlpack.h before this file to use its own definitions of these structs, which are the same.
#ifndef DLPACK_DLPACK_H_
typedef struct { int32_t device_type; int32_t device_id; } DLDevice;
typedef struct { uint8_t code; uint8_t bits; uint16_t lanes; } DLDataType;
typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} DLTensor;
typedef struct { uint32_t major; uint32_t minor; } DLPackVersion;
typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;
#endif


// The result of a call.
typedef enum {
  // Done.
  WINDROW_STATUS_OK = 0,
  // A shape that does not fit.
  WINDROW_STATUS_SHAPE = 1,
  // A dtype that does not fit.
  WINDROW_STATUS_DTYPE = 2,
  // A device that does not fit.
  WINDROW_STATUS_DEVICE = 3,
  // Strides or memory that cannot be used.
  WINDROW_STATUS_LAYOUT = 4,
  // An argument that is wrong, NULL where a pointer is needed, or an empty list.
  WINDROW_STATUS_ARGUMENT = 5,
  // A size beyond 64 bits, or offsets beyond int32.
  WINDROW_STATUS_TOO_LARGE = 6,
  // No memory.
  WINDROW_STATUS_OUT_OF_MEMORY = 7,
  // No CUDA driver or device, or a build without devices.
  WINDROW_STATUS_NO_DRIVER = 8,
  // A call of the CUDA driver failed.
  WINDROW_STATUS_CUDA = 9,
  // A bug in windrow.
  WINDROW_STATUS_BUG = 10,
} windrow_status;

// The form of the batch: `windrow_options.form`.
typedef enum {
  // Equal shapes to `[N, ...]`.
  WINDROW_FORM_STACK = 0,
  // Joined along `dim`, with offsets and lengths.
  WINDROW_FORM_CONCAT = 1,
  // Padded to the largest, with lengths and perhaps a mask.
  WINDROW_FORM_PAD = 2,
  // Joined along dim 0, with offsets and lengths.
  WINDROW_FORM_RAGGED = 3,
} windrow_form;

// The mask of a padded batch: `windrow_options.mask`.
typedef enum {
  // No mask.
  WINDROW_MASK_NONE = 0,
  // True where the samples are.
  WINDROW_MASK_REAL = 1,
  // True where padding is.
  WINDROW_MASK_PAD = 2,
} windrow_mask;

// A tensor of a batch.
typedef enum {
  // The data; absent if it was written to memory of the caller.
  WINDROW_FIELD_DATA = 0,
  // Lengths, int64.
  WINDROW_FIELD_LENGTHS = 1,
  // Offsets of a ragged or joined batch, int64 or int32.
  WINDROW_FIELD_OFFSETS = 2,
  // The mask of a padded batch, bool or of `mask_dtype`.
  WINDROW_FIELD_MASK = 3,
  // The sample of each row of a ragged batch, int64.
  WINDROW_FIELD_BATCH_INDEX = 4,
  // The scales of a batch that was quantised, of `scale_dtype`; absent if they were written to memory of the caller.
  WINDROW_FIELD_SCALES = 5,
} windrow_field;

// The side that padding is on: `windrow_options.side`. With `truncate`, the side that is cut off too.
typedef enum {
  // After the data.
  WINDROW_SIDE_RIGHT = 0,
  // Before the data.
  WINDROW_SIDE_LEFT = 1,
  // Half before, half after; the odd one after.
  WINDROW_SIDE_CENTER = 2,
} windrow_side;

// Elements that share a scale: `windrow_options.scale_of`.
typedef enum {
  // A row of the last dim.
  WINDROW_GRANULARITY_ROW = 0,
  // A sample.
  WINDROW_GRANULARITY_SAMPLE = 1,
  // A block of `scale_block` elements along the last dim.
  WINDROW_GRANULARITY_BLOCK = 2,
} windrow_granularity;

// The member of `windrow_number.as` that holds the number: `windrow_number.kind`.
typedef enum {
  // `int64`.
  WINDROW_NUMBER_KIND_INT64 = 0,
  // `uint64`.
  WINDROW_NUMBER_KIND_UINT64 = 1,
  // `float64`.
  WINDROW_NUMBER_KIND_FLOAT64 = 2,
  // `complex128`: real and imaginary part.
  WINDROW_NUMBER_KIND_COMPLEX128 = 3,
} windrow_number_kind;

// How much is reported: `windrow_set_log`.
typedef enum {
  // Each call that fails.
  WINDROW_LOG_LEVEL_ERROR = 1,
  // Settings that are not followed, and what is done instead, when an engine is made.
  WINDROW_LOG_LEVEL_WARNING = 2,
  // The stages of each call, with their times, paths, samples and bytes.
  WINDROW_LOG_LEVEL_DEBUG = 3,
} windrow_log_level;

// An assembled batch. Its tensors are handed out by DLPack and live on without it.
typedef struct windrow_batch windrow_batch;

// Threads and memory that assemble batches. It can be used from several threads at once.
typedef struct windrow_engine windrow_engine;

// A list of borrowed samples. Used by one thread at a time.
typedef struct windrow_samples windrow_samples;

// The number itself; `windrow_number.kind` says which member it is.
typedef union {
  // The number of kind `WINDROW_NUMBER_KIND_INT64`.
  int64_t int64;
  // The number of kind `WINDROW_NUMBER_KIND_UINT64`.
  uint64_t uint64;
  // The number of kind `WINDROW_NUMBER_KIND_FLOAT64`.
  double float64;
  // The number of kind `WINDROW_NUMBER_KIND_COMPLEX128`: real and imaginary part.
  double complex128[2];
} windrow_number_value;

// A number. `windrow_int64`, `windrow_uint64`, `windrow_float64` and `windrow_complex128` make one. It reaches the dtype that
// it is for exactly or, where that is a floating-point dtype, rounded once; a number that an integer dtype cannot hold is
// WINDROW_STATUS_ARGUMENT.
typedef struct {
  // A `windrow_number_kind`.
  int32_t kind;
  // The number.
  windrow_number_value as;
} windrow_number;

// How a batch is assembled. Call `windrow_options_init` first, then set what differs. Arrays are read during the call.
// A `has_...` that is 0 says that the option which it names is not given; that option is then zero, as `windrow_options_init`
// leaves it, or WINDROW_STATUS_ARGUMENT. The struct and what it points to belong to the caller, and no call keeps them. Several
// threads may read one struct at once. An option that is set and belongs to another form, or to an option that is not given, is
// WINDROW_STATUS_ARGUMENT: `dim` belongs to `WINDROW_FORM_CONCAT`, and `value` to `num_multiples` to `WINDROW_FORM_PAD`.
typedef struct {
  // `sizeof(windrow_options)`, set by `windrow_options_init`.
  size_t size;
  // A `windrow_form`.
  int32_t form;
  // The dim of a concat; negative counts from the end.
  int64_t dim;
  // If not 0, `dtype` is given. Otherwise all samples must share a dtype, which is kept.
  int32_t has_dtype;
  // The dtype of the batch, which elements are cast to.
  DLDataType dtype;
  // If not 0, `device` is given. Otherwise the batch is where the samples are.
  int32_t has_device;
  // The device to place the batch on: kDLCPU or, for page-locked memory, kDLCUDAHost, both with id 0, or kDLCUDA.
  DLDevice device;
  // The value of padding, at first the integer 0.
  windrow_number value;
  // A `windrow_side`.
  int32_t side;
  // If not 0, samples are cut off that are larger than `sizes`.
  int32_t truncate;
  // A `windrow_mask`.
  int32_t mask;
  // If not 0, `mask_dtype` is given. Otherwise the mask is bool.
  int32_t has_mask_dtype;
  // The dtype of the mask: 1 where it is true.
  DLDataType mask_dtype;
  // The dims that are padded; NULL: those that an entry of `sizes` or `multiples` names or, if none does, those that differ.
  // Samples of one dim are always padded along it.
  const int64_t *dims;
  // Entries of `dims`.
  size_t num_dims;
  // The size of each dim of a sample, -1 for none; NULL: the largest sample's.
  const int64_t *sizes;
  // Entries of `sizes`.
  size_t num_sizes;
  // The number for each dim of a sample to whose multiples its size is rounded up; NULL: 1.
  const int64_t *multiples;
  // Entries of `multiples`.
  size_t num_multiples;
  // If not 0, offsets of a ragged batch are int32; for another form, WINDROW_STATUS_ARGUMENT.
  int32_t offsets_i32;
  // If not 0, a ragged batch has `WINDROW_FIELD_BATCH_INDEX`; for another form, WINDROW_STATUS_ARGUMENT.
  int32_t batch_index;
  // Elements become `(x * scale - mean[c]) / std[c]`.
  double scale;
  // One mean, or one for each channel; NULL: 0.
  const double *mean;
  // Entries of `mean`.
  size_t num_mean;
  // One standard deviation, or one for each channel; NULL: 1.
  const double *std;
  // Entries of `std`.
  size_t num_std;
  // If not 0, `channel_dim` is given. Otherwise it is the only dim whose extent is the number of entries of `mean` or `std` in all
  // samples, of those that are neither joined nor named to be padded.
  int32_t has_channel_dim;
  // The dim of the channels; negative counts from the end.
  int64_t channel_dim;
  // The order of a sample's dims in the batch; NULL: as they are.
  const int64_t *permute;
  // Entries of `permute`.
  size_t num_permute;
  // If not 0, values beyond the largest finite one of float8_e4m3fn or float8_e5m2 become it. For a batch of another
  // dtype, WINDROW_STATUS_ARGUMENT.
  int32_t saturate;
  // If not 0, `quantize` is given, with which `dtype`, `scale`, `mean`, `std` or `permute` is WINDROW_STATUS_ARGUMENT. The options from
  // `scale_of` to `eps` belong to it.
  int32_t has_quantize;
  // float8_e4m3fn, float8_e5m2 or int8: elements are divided by scales that are found on the way, and the batch has this
  // dtype and `WINDROW_FIELD_SCALES`.
  DLDataType quantize;
  // A `windrow_granularity`: which elements share a scale.
  int32_t scale_of;
  // The elements of a block of `WINDROW_GRANULARITY_BLOCK`.
  int64_t scale_block;
  // If not 0, `scale_dtype` is given. Otherwise scales that are found are float32.
  int32_t has_scale_dtype;
  // The dtype of the scales that are found: float32, or float8_e8m0fnu for powers of two.
  DLDataType scale_dtype;
  // The least magnitude that a scale is made of, at first 1e-12.
  double eps;
  // The memory that `windrow_assemble_into` writes the scales to that are found; NULL: memory of windrow's.
  const DLTensor *scales_out;
  // Scales that int8 or float8 samples are multiplied by on the way to `dtype`, shaped as those of a batch of this form are;
  // NULL: they are not. With `scale`, `mean`, `std` or `permute`, WINDROW_STATUS_ARGUMENT.
  const DLTensor *scales;
  // If not 0, `scales_block` is given. Otherwise `scales` are of rows or of samples, as their shape says.
  int32_t has_scales_block;
  // The elements of a block, if `scales` are of blocks along the last dim.
  int64_t scales_block;
} windrow_options;

// Takes a record: the `user` of `windrow_set_log`, a `windrow_log_level` and a text, which is valid until it returns.
// NULL: there is none.
typedef void (*windrow_log_callback)(void *user, int32_t level, const char *text);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library that runs, such as "0.1.0": `WINDROW_VERSION` is that of the header that was compiled. A string of
// the library, valid forever. Any thread may call it.
const char *windrow_version(void);

// Makes an engine with `num_threads` threads, the calling one included, and 4096 at most; 0 means
// one for each core that the process may use. `engine` is written only if the call succeeds.
//
// # Safety
// `engine` points to a place for a pointer.
windrow_status windrow_engine_new(size_t num_threads, windrow_engine **engine);

// Frees an engine; its batches live on, and so does work on a device: what it reads and writes
// stays until it is done. NULL is ignored.
//
// # Safety
// `engine` is NULL, or comes from `windrow_engine_new`, is not in use by a call and has not been freed.
void windrow_engine_free(windrow_engine *engine);

// Makes an empty list of samples.
//
// # Safety
// `samples` points to a place for a pointer.
windrow_status windrow_samples_new(windrow_samples **samples);

// Appends a sample, with strides in elements, or NULL if it is row-major without gaps. The struct is only read within the
// call; its memory is borrowed. A sample that is refused is not appended; `windrow_error_sample` is the position that it would
// have had.
//
// # Safety
// A list, and a tensor whose shape and strides have `ndim` entries. Every element that they reach stays valid and
// unchanged until the last call that assembles the list has returned, in device or page-locked memory until that work is done.
windrow_status windrow_samples_push(windrow_samples *samples,
                                    const DLTensor *tensor);

// The number of samples; 0 for NULL.
//
// # Safety
// A list, or NULL.
size_t windrow_samples_len(const windrow_samples *samples);

// Takes all samples out of the list. NULL is ignored.
//
// # Safety
// A list, or NULL.
void windrow_samples_clear(windrow_samples *samples);

// Frees a list. NULL is ignored.
//
// # Safety
// `samples` is NULL, or comes from `windrow_samples_new`, is not in use by a call and has not been freed.
void windrow_samples_free(windrow_samples *samples);

// Fills in the defaults: a stack of the samples as they are. `windrow_options_init(options)` calls it with
// `size = sizeof(windrow_options)`; another size than the library's is WINDROW_STATUS_ARGUMENT, and nothing is written.
//
// # Safety
// `options` points to a place of `size` bytes for options.
windrow_status windrow_options_init_sized(windrow_options *options,
                                          size_t size);

// Assembles a batch in memory of windrow. `batch` is written only if the call succeeds. Work on a device goes to one of the
// engine's own streams, and the call waits for it only if the batch is on the host:
// `windrow_batch_ready_on` orders other streams behind it.
//
// # Safety
// `engine` and `samples` are handles of this library; each array of `options` has as many entries as its count says; `batch`
// points to a place for a pointer.
windrow_status windrow_assemble(const windrow_engine *engine,
                                const windrow_samples *samples,
                                const windrow_options *options,
                                windrow_batch **batch);

// Does what `windrow_assemble` does, by work enqueued on a stream (`CUstream`, `cudaStream_t`; NULL is the default
// one) behind what is already on it. The call does not wait for a batch on a device: samples in device or page-locked
// memory stay until the work is done, and a user on another stream calls `windrow_batch_ready_on` first. A batch on the
// host is complete on return; if its samples are in pageable memory too, the stream is not used.
//
// # Safety
// `engine` and `samples` are handles of this library; each array of `options` has as many entries as its count says; `batch`
// points to a place for a pointer. The stream exists as long as the batch and the tensors handed out of it.
windrow_status windrow_assemble_on(const windrow_engine *engine,
                                   const windrow_samples *samples,
                                   const windrow_options *options,
                                   void *stream,
                                   windrow_batch **batch);

// Assembles a batch into the memory of `out`, which has exactly its shape and dtype. `batch` receives everything else
// (lengths, offsets, mask), and may be NULL if none of it is needed. If `device` is not given and all samples are on the
// host, the batch is in that memory of the host, pageable or page-locked, which `out` is. Work on a device goes to one of
// the engine's own streams.
//
// # Safety
// `engine` and `samples` are handles of this library; each array of `options` has as many entries as its count says; `batch`
// is NULL or points to a place for a pointer. The memory of `out` and of `scales_out` may be written to, and nothing else uses it
// during the call, on a device until that work is done.
windrow_status windrow_assemble_into(const windrow_engine *engine,
                                     const windrow_samples *samples,
                                     const windrow_options *options,
                                     const DLTensor *out,
                                     windrow_batch **batch);

// Orders a stream behind the work that writes a batch: all of its tensors can be used on it, and the memory that
// `windrow_assemble_into` was given. Nothing for a batch on the host.
//
// # Safety
// A batch; a stream that exists as long as the batch and the tensors handed out of it.
windrow_status windrow_batch_ready_on(const windrow_batch *batch,
                                      void *stream);

// The largest length of a ragged batch; -1 for any other, and for NULL.
//
// # Safety
// A batch, or NULL.
int64_t windrow_batch_max_length(const windrow_batch *batch);

// The number of samples of a batch; 0 for NULL.
//
// # Safety
// A batch, or NULL.
size_t windrow_batch_len(const windrow_batch *batch);

// Hands out a tensor of a batch, a `windrow_field`, by DLPack: the caller owns it and calls its deleter once. Its memory lives
// as long as it does. NULL, and WINDROW_STATUS_OK, if the batch has no such tensor; WINDROW_STATUS_ARGUMENT for a number that
// is no field.
//
// # Safety
// A batch, and a place for a pointer.
windrow_status windrow_batch_tensor(const windrow_batch *batch,
                                    int32_t field,
                                    DLManagedTensorVersioned **tensor);

// Frees a batch; tensors handed out live on. NULL is ignored.
//
// # Safety
// `batch` is NULL, or comes from this library, is not in use by a call and has not been freed.
void windrow_batch_free(windrow_batch *batch);

// Reports to `callback` from now on, from all threads and engines, in place of an earlier one; NULL: no longer. Records of
// `level`, a `windrow_log_level`, and of lower ones are given; another number is WINDROW_STATUS_ARGUMENT, and with NULL it is
// not read. Set the callback before the first engine is made.
//
// The callback runs on the thread that called, when the work of its call is done and before it returns, perhaps on several
// threads at once. The library holds nothing meanwhile that another call needs, but for the callback itself: this function
// returns when no thread is in the callback that was set before, which is never called again; calls that report
// wait as long. The callback may call other functions of the library, which then report nothing; this one is
// WINDROW_STATUS_ARGUMENT within it. It does not throw, nor leave by longjmp.
//
// # Safety
// `callback` and `user` may be used by any thread until this has been called again.
windrow_status windrow_set_log(windrow_log_callback callback,
                               void *user,
                               int32_t level);

// Writes source `i` into destination `i`, for all of both lists, which have as many tensors: `dsts` is a list whose memory is written
// to. Empty lists are no error. Shapes are equal pair by pair; dtypes may differ, and elements are
// then cast; strides and alignment may be any. A
// pair that is the same memory and dtype is left as it is. All errors are found before a byte is written;
// `windrow_error_sample` is the position of the pair. A destination that shares bytes with another one, or with any source but its own
// identical one, is WINDROW_STATUS_ARGUMENT. Work on a device goes to one of the engine's own streams.
//
// # Safety
// `engine`, `dsts` and `srcs` are handles of this library. The memory of destinations may be written to, and nothing else uses
// it during the call, on a device until that work is done.
windrow_status windrow_copy_many(const windrow_engine *engine,
                                 const windrow_samples *dsts,
                                 const windrow_samples *srcs);

// Does what `windrow_copy_many` does, by work enqueued on a stream (`CUstream`, `cudaStream_t`; NULL is the default
// one) behind what is already on it. On return, destinations on the host are written and sources in pageable memory
// are read; device and page-locked memory stay until the work is done. Without a side on a device or in page-locked memory the
// stream is not used.
//
// # Safety
// As of `windrow_copy_many`; the stream exists until the work is done.
windrow_status windrow_copy_many_on(const windrow_engine *engine,
                                    const windrow_samples *dsts,
                                    const windrow_samples *srcs,
                                    void *stream);

// Does what `windrow_copy_many` does, and transforms the sources as `options` say: `scale`, `mean` and `std` with
// their channel dim, and `permute`; or `quantize` with what belongs to it; or `scales`, whose dim 0 is that of the
// pairs. Any other option that is set is WINDROW_STATUS_ARGUMENT. A destination has the shape of the result. The
// scales that are found are written to the tensors of `scales_out`, one for each pair: of rows of the source's shape
// without its last dim, of blocks with their number in its place, of a sample without dims; NULL without `quantize`.
// Each is where its destination is: on its device, or on the host, where those of no elements always are.
//
// # Safety
// As of `windrow_copy_many`, and of `windrow_assemble` for the options, which are not NULL;
// `scales_out` is a list as `dsts` or NULL.
windrow_status windrow_copy_many_with(const windrow_engine *engine,
                                      const windrow_samples *dsts,
                                      const windrow_samples *srcs,
                                      const windrow_options *options,
                                      const windrow_samples *scales_out);

// A number that is an integer. It owns nothing, and any thread may call this.
windrow_number windrow_int64(int64_t value);

// A number that is an integer without a sign, for values beyond int64.
windrow_number windrow_uint64(uint64_t value);

// A number of floating point.
windrow_number windrow_float64(double value);

// A complex number.
windrow_number windrow_complex128(double re, double im);

// The name of a status, such as "WINDROW_STATUS_SHAPE", and "unknown status" for any other number. A string of the library,
// valid forever. Any thread may call it.
const char *windrow_status_name(int32_t status);

// The text of this thread's last failure, and "" before the first; valid until the next one, or until the thread ends.
const char *windrow_error(void);

// The position of the sample that this thread's last failure is about; -1 if there is none.
int64_t windrow_error_sample(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* WINDROW_H */
