//! Extents and strides.

use std::fmt;

use smallvec::SmallVec;

/// Extents or strides of one tensor; four dims without an allocation.
pub type Dims = SmallVec<[i64; 4]>;

/// The largest number of dims that a tensor may have; it is NumPy's limit too.
pub const MAX_NDIM: usize = 64;

/// A shape printed as Python prints a tuple.
pub(crate) struct Tuple<'a>(pub(crate) &'a [i64]);

impl fmt::Display for Tuple<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (i, extent) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{extent}")?;
        }
        f.write_str(if self.0.len() == 1 { ",)" } else { ")" })
    }
}
