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
pub(crate) use selection::{Listed, Selection};
pub use view::SampleView;

use std::borrow::Cow;

use crate::tensor::Element;

/// Anything the engine accepts as samples: a [`SampleList`], or a slice, array or `Vec` of [`SampleView`]s or of
/// slices, each a sample of one dim.
///
/// ```
/// use windrow::{Collate, Ragged, Engine};
///
/// let rows: [&[i32]; 3] = [&[1, 2, 3], &[4], &[5, 6]];
/// let batch = Engine::host().assemble(&rows, &Collate::ragged(Ragged::new()))?;
/// assert_eq!(batch.data().as_slice::<i32>()?, [1, 2, 3, 4, 5, 6]);
/// # Ok::<(), windrow::Error>(())
/// ```
pub trait Samples<'a> {
    /// The samples as a list.
    fn to_list(&self) -> Cow<'_, SampleList<'a>>;

    /// The samples where they are, if they are rows that a small batch is made of without a list of them, and no table beyond the
    /// limits.
    #[doc(hidden)]
    fn to_rows(&self, _limits: TableLimits) -> Option<SampleRows<'_>> {
        None
    }
}

impl<'a> Samples<'a> for SampleList<'a> {
    fn to_list(&self) -> Cow<'_, SampleList<'a>> {
        Cow::Borrowed(self)
    }

    fn to_rows(&self, limits: TableLimits) -> Option<SampleRows<'_>> {
        SampleRows::of_list(self, limits)
    }
}

impl<'a> Samples<'a> for [SampleView<'a>] {
    fn to_list(&self) -> Cow<'_, SampleList<'a>> {
        Cow::Owned(SampleList::of_views(self))
    }

    fn to_rows(&self, _: TableLimits) -> Option<SampleRows<'_>> {
        SampleRows::of_views(self)
    }
}

impl<'a, T: Element> Samples<'a> for [&'a [T]] {
    fn to_list(&self) -> Cow<'_, SampleList<'a>> {
        Cow::Owned(SampleList::of_views(self.iter().map(|&row| SampleView::from(row))))
    }

    fn to_rows(&self, _: TableLimits) -> Option<SampleRows<'_>> {
        SampleRows::of_slices(self)
    }
}

impl<'a, S> Samples<'a> for Vec<S>
where
    [S]: Samples<'a>,
{
    fn to_list(&self) -> Cow<'_, SampleList<'a>> {
        self.as_slice().to_list()
    }

    fn to_rows(&self, limits: TableLimits) -> Option<SampleRows<'_>> {
        self.as_slice().to_rows(limits)
    }
}

impl<'a, S, const N: usize> Samples<'a> for [S; N]
where
    [S]: Samples<'a>,
{
    fn to_list(&self) -> Cow<'_, SampleList<'a>> {
        self.as_slice().to_list()
    }

    fn to_rows(&self, limits: TableLimits) -> Option<SampleRows<'_>> {
        self.as_slice().to_rows(limits)
    }
}
