// What a launch is told: one header and one table of 8-byte words, the same for every kernel.
//
// src/cuda/params.rs mirrors these structs; both sides assert sizes and offsets. The table lies in
// the kernel's parameters if it fits, else in device memory. A position in the table is a number of
// words from its beginning; position 0 is a field, so 0 also says "none".
//
// A field is one tensor to write. Its elements are counted in the order of the work: sample after
// sample, within a sample as the loops of its class go, outermost first. Work is cut into tiles of
// equal size by output bytes, numbered across all fields.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace windrow {

/// What is done for a field.
enum Kind : uint8_t {
    /// Samples are runs of bytes that follow each other in the output without gaps. Elements are
    /// bytes. Tiles begin where the output's address is a multiple of 16: tile k covers the bytes
    /// [k * tile_bytes - m, (k + 1) * tile_bytes - m), m = out % 16, as far as the field has them.
    kCopy = 0,
    /// Elements are found one by one through the loops of their class: copied, cast, put through
    /// the affine map, constant, or padding. A tile covers tile_bytes / elem_size elements.
    kWalk = 1,
    /// As kWalk, for classes that are all planar: the outermost loop runs over 2 to 4 channels that
    /// lie interleaved in the source. A tile covers those pixels whose first channel would be
    /// counted in: of the elements [begin, end) counted through all samples, the pixels from
    /// ceil(begin / channels) to ceil(end / channels).
    kPlanar = 2,
    /// Words of the table itself, `numel` elements from position `data` on: lengths, offsets. Tiles
    /// are counted as those of kWalk.
    kTable = 3,
};

/// What a real element becomes.
enum Op : uint8_t {
    kRead = 0,    ///< the source's element, cast if the class has another dtype
    kAffine = 1,  ///< the same through x * a[c] + b[c]
    kConst = 2,   ///< the byte `value` of the field
    kIndex = 3,   ///< the number of its sample, as int64
};

/// Codes as in the dtype table of src/cuda/params.rs.
enum DType : uint8_t {
    kBool = 0,
    kI8 = 1,
    kI16 = 2,
    kI32 = 3,
    kI64 = 4,
    kU8 = 5,
    kU16 = 6,
    kU32 = 7,
    kU64 = 8,
    kF16 = 9,
    kBF16 = 10,
    kF32 = 11,
    kF64 = 12,
    kMoved = 13,  ///< complex and float8: moved by elem_size, never cast
};

/// Where the channel number of an element comes from.
enum Channel : uint8_t {
    kNoChannel = 0,    ///< one pair of coefficients for all
    kLoopChannel = 1,  ///< the coordinate in loop channel_dim, less its lo, plus channel_first
    kInnerChannel = 2, ///< ((column - lo) modulo channels) plus channel_first
};

/// A divisor below 2^31 for dividends below 2^31: n / d = (mulhi(n, mul) + n) >> shift.
/// `is_small` is 0 for a larger divisor, which needs a real division.
struct Divisor {
    uint32_t mul;
    uint16_t shift;
    uint16_t is_small;
};

/// One loop of a class. Coordinates count output elements; lo <= c < hi are real, the rest padding.
/// Strides are in bytes. The source address of coordinate c is base + (c - lo) * src_stride.
struct Dim {
    uint64_t extent;
    uint64_t lo;
    uint64_t hi;
    int64_t src_stride;
    int64_t dst_stride;
    Divisor by_extent;
};

/// How samples of one kind are read.
struct Class {
    uint32_t dims;  ///< position of its first Dim, outermost; they follow each other
    uint16_t num_dims;
    uint8_t dtype;
    uint8_t elem_size;
    uint8_t channel;  ///< a Channel
    uint8_t reserved;
    uint16_t channel_dim;
    uint32_t channel_first;
};

struct Field {
    uint8_t* out;
    uint64_t numel;        ///< elements of the output
    uint64_t unit;         ///< rows: elements of a sample; joined: elements for one step of offset
    int64_t step;          ///< rows: bytes from sample to sample; joined: for one step of offset
    uint64_t first_tile;
    uint64_t num_samples;
    Divisor by_unit;
    uint32_t data;         ///< position of the samples' addresses (of their first element read);
                           ///< unused by kConst and kIndex
    uint32_t class_ids;    ///< position of a uint32 each; 0: all are of the first class
    uint32_t classes;      ///< position of the first Class
    uint32_t offsets;      ///< joined: position of num_samples + 1 int64; 0: rows
    uint32_t tile_samples; ///< joined: position of a uint32 for each tile, the sample of its first
                           ///< element, and one more, the last sample
    uint32_t affine;       ///< position of a[channels], then b[channels]; 0: none
    uint32_t channels;
    uint8_t kind;
    uint8_t op;
    uint8_t dtype;
    uint8_t elem_size;
    uint8_t value;         ///< of kConst
    uint8_t wide;          ///< 1: a and b are float64, else float32; the arithmetic is float64
                           ///< where an element is so before or after, whatever this says
    uint8_t aligned;       ///< 1: `out` is a multiple of elem_size
    uint8_t reserved[5];
    uint8_t fill[16];      ///< bits of the padding
};

struct Header {
    const uint64_t* table; ///< null: it follows in the parameters
    uint64_t num_tiles;
    uint32_t num_fields;   ///< they are at the beginning of the table
    uint32_t tile_bytes;   ///< a multiple of 64
};

/// The parameters of a kernel, `bytes` in all.
template <int bytes>
struct Params {
    Header header;
    uint64_t table[(bytes - sizeof(Header)) / 8];
};

constexpr int kSmallBytes = 4096;   // one page of the constant bank
constexpr int kLargeBytes = 32760;  // 32,764 are allowed

static_assert(sizeof(Divisor) == 8, "layout");
static_assert(sizeof(Dim) == 48 && offsetof(Dim, by_extent) == 40, "layout");
static_assert(sizeof(Class) == 16 && offsetof(Class, channel_first) == 12, "layout");
static_assert(sizeof(Field) == 112 && offsetof(Field, by_unit) == 48, "layout");
static_assert(offsetof(Field, kind) == 84 && offsetof(Field, fill) == 96, "layout");
static_assert(sizeof(Header) == 24, "layout");
static_assert(sizeof(Params<kLargeBytes>) == kLargeBytes, "layout");

}  // namespace windrow
