//! [`Path`]: how the data of a leaf moves.

use crate::plan::loops::LoopNest;
use crate::plan::output::{ElementOp, OutputPlan};
use crate::tensor::DType;

/// How the data of a leaf moves: what [`crate::explain::Explain::path`] says of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Path {
    View,
    Memcpy,
    Gather,
    Strided,
    Swap,
    Cast,
    Transform,
    Quantize,
    Dequantize,
    Upload,
    Staged,
    CopiedPinned,
    DirectPinned,
    Download,
}

impl Path {
    /// All paths, in the order of their numbers.
    pub const ALL: [Path; 14] = [
        Path::View,
        Path::Memcpy,
        Path::Gather,
        Path::Strided,
        Path::Swap,
        Path::Cast,
        Path::Transform,
        Path::Quantize,
        Path::Dequantize,
        Path::Upload,
        Path::Staged,
        Path::CopiedPinned,
        Path::DirectPinned,
        Path::Download,
    ];

    /// The name of the path in `explain` and `stats`.
    pub fn name(self) -> &'static str {
        match self {
            Path::View => "view",
            Path::Memcpy => "memcpy",
            Path::Gather => "gather",
            Path::Strided => "strided",
            Path::Cast => "cast",
            Path::Swap => "swap",
            Path::Transform => "transform",
            Path::Quantize => "quantize",
            Path::Dequantize => "dequantize",
            Path::Upload => "upload",
            Path::Staged => "staged",
            Path::CopiedPinned => "copied pinned",
            Path::DirectPinned => "direct pinned",
            Path::Download => "download",
        }
    }
}

impl Path {
    /// The path of data that does not cross between host and device.
    pub fn within(output: &OutputPlan<'_>) -> Path {
        let converted = |nest: &LoopNest| Path::for_conversion(nest.dtype, output.dtype);
        let conversion = || match &*output.nest_ids {
            [] => converted(&output.nests[0]),
            ids => ids.iter().map(|&id| converted(&output.nests[id as usize])).max().flatten(),
        };
        match output.op {
            ElementOp::Read { affine: true, .. } => Path::Transform,
            ElementOp::Rescale if output.dtype.size() == 1 => Path::Quantize,
            ElementOp::Rescale => Path::Dequantize,
            _ => {
                let is_empty = output.bytes() == 0;
                let is_moved = output.bytes_only || output.is_table_of_runs;
                let is_bytes = is_moved || is_empty && conversion().is_none();
                let is_one_range = || !is_empty && num_ranges(output) == 1;
                Path::untransformed(is_bytes, is_one_range, conversion)
            }
        }
    }

    /// The path of data without arithmetic: memcpy or gather if `is_bytes`, that is, if each sample is one run of bytes to be
    /// moved; else the conversion, or strided without one.
    pub fn untransformed(
        is_bytes: bool,
        is_one_range: impl FnOnce() -> bool,
        conversion: impl FnOnce() -> Option<Path>,
    ) -> Path {
        match is_bytes {
            true if is_one_range() => Path::Memcpy,
            true => Path::Gather,
            false => conversion().unwrap_or(Path::Strided),
        }
    }

    /// The conversion from one dtype to another: a cast, or only a reversal of bytes; `None` if they are the same.
    pub fn for_conversion(from: DType, to: DType) -> Option<Path> {
        match from == to {
            true => None,
            false if from.native() == to => Some(Path::Swap),
            false => Some(Path::Cast),
        }
    }
}

/// Copies that are left after neighbours were merged; 0 where bytes are not just moved.
pub(crate) fn num_ranges(output: &OutputPlan<'_>) -> usize {
    match &output.ranges {
        Some(ranges) => ranges.len(),
        None if output.bytes_only => output.num_samples(),
        None => 0,
    }
}
