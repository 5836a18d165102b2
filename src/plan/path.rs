//! [`Path`]: how the data of a leaf moves.

use crate::plan::loops::LoopNest;
use crate::plan::output::{ElementOp, OutputPlan};

/// How the data of a leaf moves: what [`crate::Explain::path`] says of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    View,
    Memcpy,
    Gather,
    Strided,
    Cast,
    Transform,
    Upload,
    Staged,
    CopiedPinned,
    DirectPinned,
    Download,
}

impl Path {
    /// In the order of their numbers.
    pub const ALL: [Path; 11] = [
        Path::View,
        Path::Memcpy,
        Path::Gather,
        Path::Strided,
        Path::Cast,
        Path::Transform,
        Path::Upload,
        Path::Staged,
        Path::CopiedPinned,
        Path::DirectPinned,
        Path::Download,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Path::View => "view",
            Path::Memcpy => "memcpy",
            Path::Gather => "gather",
            Path::Strided => "strided",
            Path::Cast => "cast",
            Path::Transform => "transform",
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
        let casts = |class: &LoopNest| class.dtype != output.dtype;
        match output.op {
            ElementOp::Read { affine: true } => Path::Transform,
            _ if output.bytes_only && num_ranges(output) == 1 => Path::Memcpy,
            _ if output.bytes_only => Path::Gather,
            _ => match &*output.class_ids {
                [] if casts(&output.classes[0]) => Path::Cast,
                ids if ids.iter().any(|&id| casts(&output.classes[id as usize])) => Path::Cast,
                _ => Path::Strided,
            },
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
