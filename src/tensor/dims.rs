//! Extents and strides.

use std::fmt;

use smallvec::SmallVec;

/// Extents or strides of one tensor; four dims without an allocation.
pub type Dims = SmallVec<[i64; 4]>;

/// Collects items by pushes: `collect` first asks for room for as many as there may be, which takes longer for the few
/// dims of a tensor.
#[inline]
pub(crate) fn small_vec<T>(items: impl Iterator<Item = T>) -> SmallVec<[T; 4]> {
    let mut small_vec = SmallVec::new();
    items.for_each(|item| small_vec.push(item));
    small_vec
}

/// A set of dims of a tensor, each below [`MAX_NDIM`], which is not checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DimSet(u64);

impl DimSet {
    /// The set of the first `ndim` dims.
    pub fn all(ndim: usize) -> DimSet {
        (0..ndim).collect()
    }

    /// Adds a dim; returns whether it was absent.
    pub fn insert(&mut self, dim: usize) -> bool {
        let is_new = !self.contains(dim);
        self.0 |= 1 << dim;
        is_new
    }

    /// Whether a dim is in the set.
    pub fn contains(self, dim: usize) -> bool {
        self.0 >> dim & 1 == 1
    }

    /// The number of dims in the set.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the set has no dim.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The dims in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let dim = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            (dim < u64::BITS).then_some(dim as usize)
        })
    }
}

impl FromIterator<usize> for DimSet {
    fn from_iter<I: IntoIterator<Item = usize>>(dims: I) -> DimSet {
        let mut set = DimSet::default();
        dims.into_iter().for_each(|dim| _ = set.insert(dim));
        set
    }
}

/// The largest number of dims that a tensor may have; it is NumPy's limit too.
pub const MAX_NDIM: usize = 64;

const _: () = assert!(MAX_NDIM <= u64::BITS as usize, "a DimSet has a bit for each dim");

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
