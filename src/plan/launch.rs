//! [`Launch`]: what the kernel launch of a plan does, as an account of it.

/// The launch of a batch that is on a device, or comes from one: see [`crate::explain::Explain::launch`]. How work is
/// cut depends on the device; without a driver it is cut as for an H200.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Launch {
    /// Pieces of work, each for one warp.
    pub items: u64,
    /// Kernels that are launched for it: 2 if only some parts are `"quantised"`, else 1.
    pub num_kernels: usize,
    /// Bytes of the table that tells the kernel what to do.
    pub table_bytes: u64,
    /// Whether the table is copied to the device before the launch; else it goes with its parameters.
    pub is_uploaded: bool,
    /// The parts that it writes. A tensor has several where its samples need different loops.
    pub parts: Vec<SegmentReport>,
}

/// A part of one tensor that a launch writes by one family of loops.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SegmentReport {
    /// The leaf; `None` for the zeros between tensors of an arena.
    pub leaf: Option<usize>,
    /// `"data"`, `"mask"`, `"batch_index"`, `"scales"`, `"lengths"`, `"offsets"` or `"gap"`.
    pub output: &'static str,
    /// The loops that write it: `"rows"` (samples of whole 16-byte vectors), `"aligned_copy"` (the same, multiples
    /// of 2 KiB), `"small_copy"` (samples of up to 2 KiB, at any byte), `"contiguous_cast"` (rows of adjacent elements, moved or
    /// cast), `"contiguous_generic"` (the same, of dtypes without a loop of their own), `"planar"` (u8 pixels to planes),
    /// `"scalar_fallback"` (samples of few elements, one by one), `"strided"` (any strides, any cast), `"placed_rows"` and
    /// `"placed_copy"` (as `"rows"` and `"aligned_copy"`, each sample to a place of its own), `"quantised"` (elements with scales, and
    /// the scales), `"metadata"` (numbers known on the host: lengths, offsets).
    pub family: &'static str,
    /// Samples of it; 0 for metadata.
    pub samples: usize,
    /// Pieces of work.
    pub items: u64,
    /// How samples are found: by `"addresses"` of 8 bytes, or by `"ids"` of 4, multiples of a distance;
    /// `None` where nothing is read.
    pub sources: Option<&'static str>,
}
