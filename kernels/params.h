// The parameters of a launch: one header and one table of 8-byte words, the same for every kernel.
//
// src/cuda/launch/output_desc.rs and kernel_abi.rs mirror these structs; both sides assert sizes and offsets. The table
// is in the kernel's parameters if it fits, else in device memory. Its descriptors are in the parameters even then: a
// warp reads them from the constant bank, without waiting for memory. If there is no room for all of them, the kernel
// of all families and large parameters reads them from the table, as does the one that quantises. A position in the
// table is a number of words from its beginning; position 0 is a descriptor, so 0 also says "none".
//
// A descriptor is one tensor to write, or the part of it whose samples have the same loops. Its work is cut
// into items, numbered across all descriptors: a warp takes one item, which is of one descriptor and, in most
// families, a piece of one row of one sample.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace windrow {

/// How a descriptor is written, and which member of its union says more. See src/cuda/launch/family.rs.
enum Family : uint8_t {
    /// Samples of one size, moved; size, sources and output are multiples of 16 bytes. An item is
    /// kMoveBytes of the output.
    kRows = 0,
    /// The same, where a sample is a multiple of kMoveBytes: an item is of one sample.
    kAlignedCopy = 1,
    /// Rows of elements that are adjacent in the source and in the output.
    kContiguousCast = 2,
    /// uint8 pixels of 3 or 4 interleaved channels become planes. A column is a pixel, whose channels are adjacent.
    kPlanar = 3,
    /// Short samples of one size, moved to an output that is a multiple of 16 and has no gaps.
    kSmallCopy = 4,
    /// Everything else: a box is of up to two loops, `piece` columns by the `block` of the innermost outer
    /// loop, and an item is one of its `rounds`.
    kStrided = 5,
    /// Numbers that are in the table itself, from position `data` on: lengths, offsets.
    kMetadata = 6,
    /// The same as kContiguousCast, of a pair of dtypes that has no loop of its own.
    kContiguousGeneric = 7,
    /// Small samples of one size, moved or cast element by element to an output that has no gaps: labels.
    kScalarFallback = 8,
    /// kRows of samples that each have a place of their own, a multiple of 16.
    kPlacedRows = 9,
    /// kAlignedCopy of such samples.
    kPlacedCopy = 10,
    /// Elements are divided by scales that groups of them share, or multiplied: an item is the
    /// groups that a warp has lanes for, times a run of neighbours.
    kQuantised = 11,
};

constexpr uint32_t kMoveBytes = 2048;

/// The operation on a real element.
enum Op : uint8_t {
    kRead = 0,    ///< the source's element, cast if it has another dtype
    kConst = 1,   ///< the bits `value` of the descriptor
    kIndex = 2,   ///< the number of its sample, as int64
    kAffine = 3,  ///< as kRead, through x * a[c] + b[c]
    kAddPerSample = 4,   ///< as kRead, plus a number of its sample, modulo a power of two: whole numbers
};

/// Codes as by code_of() of src/cuda/launch/kernel_abi.rs.
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
    kF8E4M3FN = 13,
    kF8E5M2 = 14,
    kMoved = 15,  ///< complex, other float8 and smaller: moved by their size, never cast. kAddPerSample: `from`, if it is `to`
};

/// A bit of OutputDesc::to beside a float8: results beyond the largest finite number become it.
constexpr uint8_t kSaturate = 16;

enum Flags : uint8_t {
    kWide = 1,   ///< columns and offsets are of uint64, else of uint32
    kById = 2,   ///< `data` has ids, else addresses
    kJoint = 4,  ///< the rows of a sample follow each other in its memory
    kVaried = 8,  ///< `places`, `offsets`, outer loops, or columns of numbers for `cols`
    kMixed = 16,   ///< rows that share a warp may begin at a multiple of 16 bytes, in the source or the output, or not
    kOfLengths = 32,  ///< `offsets` are lengths, of samples that have places of their own: uint32, or uint64 if kWide
};

/// A divisor below 2^31 for dividends below 2^31: n / d = (mulhi(n, mul) + n) >> shift.
struct Divisor {
    uint32_t mul;
    uint32_t shift;
};

/// Bits for the properties that differ from sample to sample; each then has a position in place of the number.
enum Varies : uint32_t {
    kLo = 1,         ///< position of the descriptor's columns: uint32 each, or uint64 if kWide
    kHi = 2,
    kSrcStride = 4,  ///< position of int64 each
    kExtent = 8,     ///< joined: extent and hi are `extent` elements for each step of offset
    kNarrowLo = 16,  ///< in place of kLo: uint16 each. A descriptor that is kWide has no such columns
    kNarrowHi = 32,
};

/// One loop of a sample. Coordinates count output elements; lo <= c < hi are real, the rest padding.
/// Strides are in bytes. The source address of coordinate c is base + (c - lo) * src_stride.
struct Loop {
    uint64_t extent;
    uint64_t lo;
    uint64_t hi;
    int64_t src_stride;
    int64_t dst_stride;
    Divisor by_blocks;      ///< divisor by the blocks, ceil(extent / block); unset if that varies
    uint32_t block;         ///< coordinates in an item; 1 but for the innermost outer loop of kStrided
    uint16_t varies;        ///< flags of Varies
    uint16_t channel_step;  ///< 1: the channel number grows with c - lo
};

struct Rows {
    Divisor by_vectors;
    uint32_t vectors;    ///< vectors of 16 bytes in a sample
};

struct AlignedCopy {
    Divisor by_items;
    uint32_t items;      ///< items of a sample
};

/// The samples of Rows and AlignedCopy at places of their own: sample i begins places[i] * step bytes behind the
/// output.
struct PlacedRows {
    Divisor by_vectors;
    uint32_t vectors;
    uint32_t places;     ///< position of a uint32 each
    uint64_t step;       ///< a multiple of 16, below 2^32
};

struct PlacedCopy {
    Divisor by_items;
    uint32_t items;
    uint32_t places;
    uint64_t step;
};

struct SmallCopy {
    Divisor by_size;
    uint32_t size;       ///< bytes of a sample
    uint32_t piece;      ///< bytes of the output in an item
};

struct ScalarFallback {
    Divisor by_elems;
    uint32_t elems;      ///< elements of a sample
    uint32_t piece;      ///< elements in an item, whatever samples they are of
    uint32_t affine;     ///< as in Nest, of one channel
    uint32_t channels;
};

struct Metadata {
    uint64_t count;      ///< number of integers
    uint32_t piece;      ///< numbers in an item
    uint32_t reserved;
};

/// The loops of each sample, and how they are cut into items: of families that go row by row.
struct Nest {
    int64_t step;          ///< bytes of the output from sample to sample; joined: for one step
    uint32_t places;       ///< position of a uint32 each: numbers of the samples; 0: in order
    uint32_t offsets;      ///< joined: position of a number for each sample of the tensor, and the end; see kOfLengths
    uint32_t items;        ///< items of a sample, if it is the same for all of them;
    uint32_t first;        ///< else position of the first item of each, uint32,
    uint32_t hints;        ///< and of the sample of item k << hint_shift, uint32, and the last sample
    uint32_t pieces;       ///< pieces of a row; 0: it depends on the extent of `cols`
    Divisor by_items;
    Divisor by_pieces;     ///< divisor by `pieces`, or by `piece` if that is 0
    uint32_t piece;        ///< elements of a row in an item
    uint32_t channel_first;
    uint32_t outer;        ///< position of the outer loops, outermost first
    uint8_t num_outer;
    uint8_t rows;          ///< 0: an item is of one row; else rows in an item, each of a group of 8 lanes; kQuantised: log2 of the lanes of a group
    uint8_t hint_shift;
    uint8_t log_coefficient;  ///< log2 of the bytes of a coefficient
    Loop cols;             ///< the innermost loop
    uint32_t affine;       ///< position of a[channels], then b[channels]: float64 if either dtype is. kAddPerSample: of an int64
                           ///< for each sample of the tensor, and `channels` is 0
    uint32_t channels;
    Divisor by_channels;
    uint8_t fill[16];      ///< bits of the padding, over and over
};

/// kContiguousCast and kContiguousGeneric.
struct Contiguous {
    Nest nest;
    uint8_t cast;          ///< kContiguousCast: the loop over vectors, by cast_number() of casts.cuh; 0: moved
    uint8_t kind;          ///< kContiguousGeneric: of Kind
    uint8_t reserved[6];
};

struct Planar {
    Nest nest;
    int64_t plane;         ///< bytes from plane to plane
    uint32_t planes;
    uint32_t reserved;
};

struct Strided {
    Nest nest;
    uint32_t rounds;       ///< items of a box
    uint16_t samples;      ///< samples that are the rows of a box; 0: a box is of one sample
    uint16_t lane_rows;    ///< adjacent rows of a lane; 0: those of a lane are 2^log_step apart
    Divisor by_rounds;
    uint8_t kind;          ///< a Kind
    uint8_t log_step;      ///< log2 of the rows from one element of a lane to its next
    uint8_t log_columns;   ///< log2 of the adjacent columns of a lane
    uint8_t reserved[5];
};

/// Bits of ScaleRule::flags.
enum ScaleFlags : uint32_t {
    kGiven = 1,       ///< scales are given, else found
    kPowers = 2,      ///< found scales are powers of two, a byte each
    kOfSample = 4,    ///< a group is a sample, else `piece` elements of a row, of which the last of a row may have fewer
    kJoinedRows = 8,  ///< a sample has `rows` rows for each step of its offset
    kByIndex = 16,    ///< given scales follow the positions of samples in the descriptor, wherever these begin in the output
};

/// Scales of groups. Behind it is an int64 for each outer loop: bytes from the found scale of a coordinate to that of the next.
struct ScaleRule {
    float least;        ///< the least magnitude that scales are found for
    float largest;      ///< the largest number of the results' dtype,
    int32_t exponent;   ///< and its exponent
    uint32_t flags;     ///< of ScaleFlags
    uint32_t rows;      ///< of a group
    uint32_t given;     ///< position of float32 each
    uint32_t run;       ///< neighbouring groups of a row that the same lanes take, one after the other: of one size
    uint32_t reserved;
    int64_t step;       ///< bytes of found scales from sample to sample, or joined: for one step; given scales: their number
    int64_t block_step; ///< bytes from the found scale of a block to that of the next one of its row
};

struct Quantised {
    Nest nest;
    uint8_t* scales;    ///< that are found
    uint32_t rule;      ///< position of a ScaleRule
    uint32_t groups;
};

/// A head that all families have, and what `family` has beside it.
struct alignas(16) OutputDesc {
    uint8_t* out;
    uint32_t first_item;
    uint8_t family;
    uint8_t op;
    uint8_t from;          ///< dtypes
    uint8_t to;            ///< with kSaturate, if it is cast so
    uint8_t from_size;     ///< bytes of an element; 0: kConst and kIndex, of kStrided, kContiguousCast and kContiguousGeneric
    uint8_t to_size;
    uint8_t log_to;        ///< log2 of `to_size`
    uint8_t flags;         ///< flags of Flags
    uint32_t value;        ///< bits of kConst, zeros behind them
    uint32_t num_samples;
    uint32_t data;         ///< position of the samples' first elements read: addresses, or ids
    const uint8_t* base;   ///< by id: a sample is at base + id * stride
    uint64_t stride;
    union {
        Rows rows;
        AlignedCopy aligned_copy;
        SmallCopy small_copy;
        ScalarFallback scalar_fallback;
        PlacedRows placed_rows;
        PlacedCopy placed_copy;
        Metadata metadata;
        Contiguous contiguous;
        Planar planar;
        Strided strided;
        Quantised quantised;
        Nest nest;         ///< with which the last four begin
    };
};

struct Header {
    const uint64_t* table; ///< null: it follows in the parameters
    uint32_t num_items;
    uint32_t last_desc;   ///< its number: descriptors are at the beginning of the table, and of what follows
};

/// The parameters of a kernel, `bytes` in all.
template <int bytes>
struct Params {
    Header header;
    uint64_t table[(bytes - sizeof(Header)) / 8];
};

constexpr int kSmallBytes = 4096;   // one page of the constant bank
constexpr int kLargeBytes = 32752;  // 32,764 are allowed

/// A column of a table that depends on which samples were selected: `count` numbers for each of them, 1 if they have 32 bits.
struct Column {
    uint32_t position;    ///< in the table
    uint32_t values;      ///< position of the numbers of each kind, and then of a sample that is not there
    uint32_t count;
    uint16_t is_wide;     ///< 64 bits, else 32
    uint16_t is_address;  ///< numbers are added to the address of the sample, if it is there
};

/// Parameters of the kernel that makes a table of indices: see select.cuh. Columns are at the beginning of `words`.
struct Select {
    const uint64_t* words;      ///< null: they follow in the parameters
    uint64_t* table;
    const void* indices;
    int64_t index_step;         ///< in elements
    const uint64_t* addresses;  ///< addresses of the list's samples; null: they are rows,
    uint64_t first;             ///< where the first one begins,
    int64_t step;               ///< and the bytes from row to row
    const uint32_t* kinds;      ///< kinds of the list's samples; null: there is one
    uint64_t num_listed;        ///< samples in the list
    uint64_t* found;            ///< number 0 and `slot`: `call` and the position of an index out of range
    uint64_t call;
    uint32_t slot;
    uint32_t num_samples;
    uint32_t num_kinds;
    uint32_t num_columns;
    uint32_t first_word;        ///< position of the words that are the beginning of the table
    uint32_t num_words;
    uint32_t index_bytes;       ///< 4 or 8
    uint32_t reserved;
};

template <int bytes>
struct SelectParams {
    Select select;
    uint64_t words[(bytes - sizeof(Select)) / 8];
};

/// A side of pairs of which a device chooses some: see move.cuh.
struct MoveSide {
    const void* indices;        ///< null: pair i is of sample i
    int64_t index_step;         ///< in elements
    const uint64_t* addresses;  ///< addresses of the samples; null: they are rows,
    uint64_t first;             ///< where the first one begins,
    int64_t step;               ///< and the bytes from row to row
    uint64_t num_listed;        ///< samples that indices are of
    uint64_t* found;            ///< note of an index out of range: kFoundByMove and the position
    uint32_t word;              ///< position of the addresses in the words behind the parameters,
    uint16_t index_bytes;       ///< 4 or 8
    uint8_t is_inline;          ///< if they are there
    uint8_t is_gathered;        ///< row i is that of pair i, and indices say only whether it is there
};

constexpr uint64_t kFoundByMove = uint64_t{0xFFFFFFFF} << 32;

/// A loop of a pair around rows of adjacent units. Strides are in bytes.
struct MoveDim {
    uint64_t extent;
    int64_t src_stride;
    int64_t dst_stride;
};

constexpr uint32_t kMostMoveDims = 12;

/// Parameters of the kernel that moves pairs of which a device chooses some.
struct Move {
    MoveSide dst, src;
    uint64_t row_units;         ///< units of a row, which are adjacent
    uint64_t units;             ///< of a pair
    uint32_t num_items;         ///< pieces of kMoveBytes
    uint32_t items;             ///< of a pair
    uint32_t log_unit;          ///< log2 of the bytes of a unit
    uint32_t num_dims;          ///< 0: a pair is one row
    MoveDim dims[kMostMoveDims];  ///< outermost first
};

template <int bytes>
struct MoveParams {
    Move move;
    uint64_t words[(bytes - sizeof(Move)) / 8];
};

static_assert(sizeof(MoveSide) == 64 && offsetof(MoveSide, word) == 56 && offsetof(MoveSide, is_gathered) == 63, "layout");
static_assert(sizeof(Move) == 448 && offsetof(Move, num_items) == 144 && offsetof(Move, dims) == 160, "layout");
static_assert(sizeof(MoveParams<kLargeBytes>) == kLargeBytes, "layout");
static_assert(sizeof(Column) == 16 && sizeof(Select) == 120, "layout");
static_assert(offsetof(Select, call) == 80 && offsetof(Select, index_bytes) == 112, "layout");
static_assert(sizeof(SelectParams<kLargeBytes>) == kLargeBytes, "layout");
static_assert(sizeof(Divisor) == 8, "layout");
static_assert(sizeof(Loop) == 56 && offsetof(Loop, block) == 48, "layout");
static_assert(sizeof(OutputDesc) == 224 && offsetof(OutputDesc, from_size) == 16 && offsetof(OutputDesc, value) == 20, "layout");
static_assert(offsetof(OutputDesc, num_samples) == 24 && offsetof(OutputDesc, base) == 32 && offsetof(OutputDesc, nest) == 48, "layout");
static_assert(sizeof(Rows) == 12 && sizeof(AlignedCopy) == 12 && sizeof(SmallCopy) == 16, "layout");
static_assert(sizeof(ScalarFallback) == 24 && offsetof(ScalarFallback, affine) == 16, "layout");
static_assert(sizeof(PlacedRows) == 24 && offsetof(PlacedRows, step) == 16, "layout");
static_assert(sizeof(PlacedCopy) == 24 && offsetof(PlacedCopy, step) == 16, "layout");
static_assert(sizeof(Metadata) == 16 && offsetof(Metadata, piece) == 8, "layout");
static_assert(sizeof(Nest) == 152 && offsetof(Nest, piece) == 48 && offsetof(Nest, num_outer) == 60, "layout");
static_assert(offsetof(Nest, cols) == 64 && offsetof(Nest, affine) == 120 && offsetof(Nest, fill) == 136, "layout");
static_assert(sizeof(Contiguous) == 160 && offsetof(Contiguous, cast) == 152, "layout");
static_assert(sizeof(Planar) == 168 && offsetof(Planar, planes) == 160, "layout");
static_assert(sizeof(Strided) == 176 && offsetof(Strided, by_rounds) == 160 && offsetof(Strided, kind) == 168, "layout");
static_assert(sizeof(Quantised) == 168 && offsetof(Quantised, scales) == 152 && offsetof(Quantised, groups) == 164, "layout");
static_assert(sizeof(ScaleRule) == 48 && offsetof(ScaleRule, flags) == 12 && offsetof(ScaleRule, step) == 32, "layout");
static_assert(sizeof(Header) == 16, "layout");
static_assert(sizeof(Params<kLargeBytes>) == kLargeBytes, "layout");

}  // namespace windrow
