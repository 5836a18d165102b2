//! The loops of samples as a descriptor has them: a number that differs between samples is a column.

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
