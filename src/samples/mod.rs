//! Stage 1. What the engine takes as samples.

mod addresses;
mod layouts;
mod list;
#[cfg(test)]
mod list_tests;
mod memo;
mod meta;
mod read;
mod read_only;
mod replace;
mod rows;
mod selection;
mod view;

pub use list::SampleList;
pub(crate) use memo::Memo;
pub use meta::TensorMeta;
pub(crate) use rows::{EachRow, SampleRows, TableLimits};
pub(crate) use selection::{ResidentList, Selection};
pub use view::SampleView;

use std::borrow::Cow;

use crate::tensor::{Element, Tensor};

/// Samples as an engine takes them: a [`SampleList`], or a slice, array or `Vec`
///
/// - of `&[T]`, `Vec<T>` or `[T; N]`, each a sample of one dim;
/// - of [`Tensor`]s or `&Tensor`s;
/// - of [`SampleView`]s, which have any layout, in any memory.
///
/// Views from an iterator become a list by `collect`. The trait is sealed.
///
/// ```
/// use windrow::{Collate, Engine, Ragged, SampleList, SampleView};
///
/// let engine = Engine::host();
/// let rows = vec![vec![1, 2, 3], vec![4], vec![5, 6]];
/// let batch = engine.assemble(&rows, &Collate::ragged(Ragged::new()))?;
/// assert_eq!(batch.data().as_slice::<i32>()?, [1, 2, 3, 4, 5, 6]);
///
/// let longer = rows.iter().filter(|row| row.len() > 1).map(|row| SampleView::from(&row[..]));
/// let batch = engine.assemble(&longer.collect::<SampleList>(), &Collate::concat(0))?;
/// assert_eq!(batch.data().as_slice::<i32>()?, [1, 2, 3, 5, 6]);
/// # Ok::<(), windrow::Error>(())
/// ```
pub trait Samples: sealed::Read {}

impl<S: sealed::Read + ?Sized> Samples for S {}

/// The way in which the engine reads samples: out of reach, so that it may change.
pub(crate) mod sealed {
    use std::borrow::Cow;

    use super::{SampleList, SampleRows, TableLimits};

    pub trait Read {
        /// The samples as a list.
        fn to_list(&self) -> Cow<'_, SampleList<'_>>;

        /// Returns the samples as borrowed rows if a small batch can be made of them without a list, and if they are no table
        /// beyond the limits.
        fn to_rows(&self, limits: TableLimits) -> Option<SampleRows<'_>>;
    }

    /// One of the samples of a slice.
    pub trait Sample: Sized {
        /// All samples of a slice, as a list, which marks none as read-only. Aborts on allocation failure.
        fn list(samples: &[Self]) -> SampleList<'_>;

        /// All samples of a slice, where they are. `None` if they cannot be read as rows, for an empty slice, or without memory.
        fn rows(_: &[Self]) -> Option<SampleRows<'_>> {
            None
        }
    }
}

use sealed::{Read, Sample};

impl Read for SampleList<'_> {
    fn to_list(&self) -> Cow<'_, SampleList<'_>> {
        Cow::Borrowed(self)
    }

    fn to_rows(&self, limits: TableLimits) -> Option<SampleRows<'_>> {
        SampleRows::from_list(self, limits)
    }
}

impl<S: Sample> Read for [S] {
    fn to_list(&self) -> Cow<'_, SampleList<'_>> {
        Cow::Owned(S::list(self))
    }

    fn to_rows(&self, _: TableLimits) -> Option<SampleRows<'_>> {
        S::rows(self)
    }
}

impl<S: Sample> Read for Vec<S> {
    fn to_list(&self) -> Cow<'_, SampleList<'_>> {
        self.as_slice().to_list()
    }

    fn to_rows(&self, limits: TableLimits) -> Option<SampleRows<'_>> {
        self.as_slice().to_rows(limits)
    }
}

impl<S: Sample, const N: usize> Read for [S; N] {
    fn to_list(&self) -> Cow<'_, SampleList<'_>> {
        self.as_slice().to_list()
    }

    fn to_rows(&self, limits: TableLimits) -> Option<SampleRows<'_>> {
        self.as_slice().to_rows(limits)
    }
}

impl Sample for SampleView<'_> {
    fn list(samples: &[Self]) -> SampleList<'_> {
        SampleList::from_views(samples)
    }

    fn rows(samples: &[Self]) -> Option<SampleRows<'_>> {
        SampleRows::from_views(samples)
    }
}

/// Samples that are slices of elements.
macro_rules! slices {
    ($($slice:ty $(, $len:ident)?;)*) => {$(
        impl<T: Element $(, const $len: usize)?> Sample for $slice {
            fn list(samples: &[Self]) -> SampleList<'_> {
                SampleList::from_views(samples.iter().map(|row| SampleView::from(&row[..])))
            }

            fn rows(samples: &[Self]) -> Option<SampleRows<'_>> {
                SampleRows::from_slices(samples, |row| &row[..])
            }
        }
    )*};
}

slices! {
    &[T];
    &[T; N], N;
    [T; N], N;
    &Vec<T>;
    Vec<T>;
}

impl Sample for Tensor {
    fn list(samples: &[Self]) -> SampleList<'_> {
        SampleList::from_views(samples.iter().map(SampleView::from))
    }
}

impl Sample for &Tensor {
    fn list(samples: &[Self]) -> SampleList<'_> {
        SampleList::from_views(samples.iter().map(|&sample| SampleView::from(sample)))
    }
}
