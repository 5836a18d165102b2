//! The loops of samples as a descriptor has them: a number that differs between samples is a column.
//!
//! The problem: one descriptor writes samples of many lengths, paddings and strides by one loop nest. Each number of a loop is
//! therefore either the same for all of them, or a list with an entry for each loop nest of the plan, from which `encode/nest.rs`
//! makes a column with an entry for each sample.
//!
//! ```text
//! float32 rows of 3, 5, 3   padded to 6                       joined along dim 0
//! nests of the plan         0: 3 real    1: 5 real            0: 3 long    1: 5 long
//! nest of each sample       0  1  0                           0  1  0
//! the loop   extent         Fixed(6)                          Joined(1): one element for each step of offset
//!            lo, hi         Same(0), Each([3, 5])             not lists: all coordinates are real
//!            src_stride     Same(4)                           Same(4)
//! columns of the table      hi: 3  5  3                       offsets: 0  3  8  11
//! ```
//!
//! A descriptor for each layout would be simpler, but a ragged batch has a layout for nearly every sample (`sample_groups`). A
//! column for each number of a loop would be simpler, too, but the columns are the table: with one nest for all samples, 32-bit
//! columns of what differs and ids in place of addresses, that of 4096 padded rows (W2) fell from 322 KB to under 34, and with
//! 16-bit lengths it goes with the parameters of the launch.

use smallvec::SmallVec;

/// A number of a loop.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PerSample {
    /// One value for all samples.
    Same(i64),
    /// A value for each loop nest of the output.
    Each(Vec<i64>),
}

impl PerSample {
    /// Whether it is this value for all samples; false for a list, even if its values are equal.
    pub fn is(&self, value: i64) -> bool {
        *self == PerSample::Same(value)
    }

    /// The value, if it is one for all samples; `None` for a list, even if its values are equal.
    pub fn same(&self) -> Option<i64> {
        match self {
            PerSample::Same(value) => Some(*value),
            PerSample::Each(_) => None,
        }
    }
}

/// How many coordinates a loop has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    Fixed(u64),
    /// This number of coordinates for each step of the sample's offset, all of them real.
    Joined(u64),
}

/// One loop, as [`Dim`](crate::plan::Dim).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SampleLoop {
    pub extent: Extent,
    pub lo: PerSample,
    pub hi: PerSample,
    pub src_stride: PerSample,
    pub dst_stride: i64,
    /// Its coordinates count channels, modulo their number.
    pub is_channel: bool,
}

impl SampleLoop {
    /// A loop without padding, the same for all samples.
    pub fn whole(extent: Extent, src_stride: i64, dst_stride: i64) -> SampleLoop {
        let hi = match extent {
            Extent::Fixed(extent) => extent as i64,
            Extent::Joined(_) => 0,
        };
        let src_stride = PerSample::Same(src_stride);
        SampleLoop {
            extent,
            lo: PerSample::Same(0),
            hi: PerSample::Same(hi),
            src_stride,
            dst_stride,
            is_channel: false,
        }
    }

    /// Whether no coordinate of any sample is padding; false for bounds that are lists, even if all
    /// are those of the loop.
    pub fn is_whole(&self) -> bool {
        match self.extent {
            Extent::Fixed(extent) => self.lo.is(0) && self.hi.is(extent as i64),
            Extent::Joined(_) => true,
        }
    }

    /// Its number of coordinates; `None` if each sample has its own.
    pub fn fixed(&self) -> Option<u64> {
        match self.extent {
            Extent::Fixed(extent) => Some(extent),
            Extent::Joined(_) => None,
        }
    }
}

pub(crate) type Loops = SmallVec<[SampleLoop; 4]>;
