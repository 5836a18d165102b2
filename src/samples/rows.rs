//! [`Rows`]: samples on the host that are row-major and differ in the extent of dim 0 at most.

use std::borrow::Cow;

use crate::samples::list::SampleList;
use crate::samples::meta::{same_dims, TensorMeta};
use crate::samples::view::SampleView;
use crate::tensor::{are_compact, bytes_of, Device};

/// Samples on the host that are row-major and differ in the extent of dim 0 at most, read where they are.
pub(crate) struct Rows<'r> {
    meta: &'r TensorMeta,
    /// The extent of dim 0 of those without one of their own; 1 without dims.
    length: i64,
    source: Source<'r>,
}

enum Source<'r> {
    /// Addresses, and the extent of dim 0 of each if they differ.
    List(Cow<'r, [*const u8]>, &'r [i64]),
    Views(&'r [SampleView<'r>]),
}

impl<'r> Rows<'r> {
    /// The samples of a list, if they are such.
    pub fn of_list(list: &'r SampleList<'_>, most_bytes: u64) -> Option<Rows<'r>> {
        let (meta, lengths) = list.as_rows().filter(|_| !list.is_empty())?;
        let bytes = bytes_of(meta.dtype, meta.layout.shape()).saturating_mul(list.len() as u64);
        if lengths.is_empty() && bytes > most_bytes {
            // Before there is an address for each row of a large table.
            return None;
        }
        list.check_rows(0).ok()?;
        Some(Rows { meta, length: length_of(meta), source: Source::List(list.data(), lengths) })
    }

    /// The samples at these positions of a list, if they are such and do not differ.
    pub fn taken(list: &'r SampleList<'_>, indices: &[i64], most_bytes: u64) -> Option<Rows<'r>> {
        let (meta, lengths) = list.as_rows().filter(|_| !indices.is_empty())?;
        let bytes = bytes_of(meta.dtype, meta.layout.shape()).saturating_mul(indices.len() as u64);
        if !lengths.is_empty() || bytes > most_bytes {
            return None;
        }
        let source = Source::List(Cow::Owned(list.addresses_at(indices).ok()?), &[]);
        Some(Rows { meta, length: length_of(meta), source })
    }

    /// Views, if they are such.
    pub fn of_views(views: &'r [SampleView<'_>]) -> Option<Rows<'r>> {
        let (first, others) = views.split_first()?;
        let meta = first.meta();
        let is_row = |view: &SampleView<'_>| is_row_of(meta, view.meta());
        let rows = Rows { meta, length: length_of(meta), source: Source::Views(views) };
        (is_row(first) && others.iter().all(is_row)).then_some(rows)
    }

    /// What all have in common, but for the extent of dim 0.
    pub fn meta(&self) -> &'r TensorMeta {
        self.meta
    }

    pub fn len(&self) -> usize {
        match &self.source {
            Source::List(data, _) => data.len(),
            Source::Views(views) => views.len(),
        }
    }

    /// Where a row is, and its extent of dim 0.
    #[inline]
    pub fn at(&self, index: usize) -> (*const u8, i64) {
        match &self.source {
            Source::List(data, lengths) => {
                (data[index], lengths.get(index).copied().unwrap_or(self.length))
            }
            Source::Views(views) => (views[index].data(), length_of(views[index].meta())),
        }
    }

    /// The addresses of rows that do not differ at all.
    pub fn alike(&self) -> Option<&[*const u8]> {
        match &self.source {
            Source::List(data, []) => Some(data),
            _ => None,
        }
    }

    /// The least and the largest extent of dim 0, and the sum of all.
    pub fn extents(&self) -> Option<[i64; 3]> {
        let length = self.length;
        if self.alike().is_some() {
            return Some([length, length, length.checked_mul(self.len() as i64)?]);
        }
        (0..self.len()).try_fold([i64::MAX, 0, 0], |[least, most, total], index| {
            let (_, length) = self.at(index);
            Some([least.min(length), most.max(length), i64::checked_add(total, length)?])
        })
    }

    /// The sum of all extents of dim 0, none counted for more than `most`.
    pub fn total_within(&self, most: i64) -> i64 {
        (0..self.len()).fold(0, |total, index| total.saturating_add(self.at(index).1.min(most)))
    }

    /// Whether each row begins where the one before it ends.
    pub fn is_one_range(&self) -> bool {
        let rest = self.meta.layout.shape().get(1..).unwrap_or_default();
        let bytes = rest.iter().product::<i64>() * self.meta.dtype.size() as i64;
        (1..self.len()).all(|index| {
            let (before, length) = self.at(index - 1);
            before.wrapping_add((length * bytes) as usize) == self.at(index).0
        })
    }
}

fn length_of(meta: &TensorMeta) -> i64 {
    meta.layout.shape().first().copied().unwrap_or(1)
}

/// Whether a sample is a row like the first one.
fn is_row_of(first: &TensorMeta, meta: &TensorMeta) -> bool {
    let (own, shape) = (first.layout.shape(), meta.layout.shape());
    meta.dtype == first.dtype
        && meta.device == Device::Cpu
        && own.len() == shape.len()
        && same_dims(own.get(1..).unwrap_or_default(), shape.get(1..).unwrap_or_default())
        && are_compact(meta.layout.strides(), shape)
}
