//! [`SampleRows`]: samples on the host that are row-major and differ in the extent of dim 0 at most.

use std::borrow::Cow;
use std::ops::Range;

use crate::samples::list::SampleList;
use crate::samples::meta::TensorMeta;
use crate::samples::view::SampleView;
use crate::tensor::{are_compact, bytes_of, try_vec, Device, Element, Footprint, Layout};

/// The largest table, in bytes and in rows, whose rows are looked at one by one: a plan reads a larger one in fewer steps.
#[derive(Clone, Copy, Debug)]
pub struct TableLimits {
    pub bytes: u64,
    pub rows: usize,
}

/// Samples on the host that are row-major and differ in the extent of dim 0 at most, read where they are.
pub struct SampleRows<'r> {
    meta: &'r TensorMeta,
    addresses: Cow<'r, [*const u8]>,
    /// The extent of dim 0 of each; empty if they do not differ.
    lengths: Cow<'r, [i64]>,
    /// The extent of dim 0 of samples without a length of their own; 1 without dims.
    length: i64,
}

// SAFETY: the addresses are those of samples, which are only read and which `'r` keeps alive, on
// whatever thread.
#[allow(unsafe_code)]
unsafe impl Sync for SampleRows<'_> {}

impl<'r> SampleRows<'r> {
    /// The samples of a list as rows; `None` if they are no rows, without samples, for a table beyond `limits`, or
    /// without memory.
    pub fn from_list(list: &'r SampleList<'_>, limits: TableLimits) -> Option<SampleRows<'r>> {
        let (meta, lengths) = list.as_rows().filter(|_| !list.is_empty())?;
        if list.as_table().is_some() {
            // The limits are checked before there is an address for each row.
            let row_bytes = bytes_of(meta.dtype, meta.layout.shape());
            if list.len() > limits.rows
                || row_bytes.saturating_mul(list.len() as u64) > limits.bytes
            {
                return None;
            }
        }
        list.check_rows(0).ok()?;
        let (addresses, lengths) = (list.data(), Cow::Borrowed(lengths));
        Some(SampleRows { meta, addresses, lengths, length: length_of(meta) })
    }

    /// The samples at these indices of a list as rows; negative ones count from the end. `None` if
    /// the list has other samples than rows of one length, without indices or memory, for an index
    /// out of range, or if the samples have more than `most_bytes` together.
    pub fn from_indices(
        list: &'r SampleList<'_>,
        indices: &[i64],
        most_bytes: u64,
    ) -> Option<SampleRows<'r>> {
        let (meta, lengths) = list.as_rows().filter(|_| !indices.is_empty())?;
        let bytes = bytes_of(meta.dtype, meta.layout.shape()).saturating_mul(indices.len() as u64);
        if !lengths.is_empty() || bytes > most_bytes {
            return None;
        }
        let addresses = Cow::Owned(list.addresses_at(indices).ok()?);
        Some(SampleRows { meta, addresses, lengths: Cow::Borrowed(&[]), length: length_of(meta) })
    }

    /// Views as rows; `None` if they are no rows, or without views or memory.
    pub fn from_views(views: &'r [SampleView<'_>]) -> Option<SampleRows<'r>> {
        let meta = views.first()?.meta();
        if meta.device != Device::Cpu || !are_compact(meta.layout.strides(), meta.layout.shape()) {
            return None;
        }
        let is_alike = |view: &SampleView<'_>| {
            let TensorMeta { dtype, device, layout } = view.meta();
            // Strides of a row-major sample do not depend on the extent of dim 0.
            *dtype == meta.dtype
                && *device == meta.device
                && layout.is_same_beyond_dim_0(&meta.layout)
        };
        if !views[1..].iter().all(is_alike) {
            return None;
        }
        let each = |view: &SampleView<'_>| (view.data(), length_of(view.meta()));
        SampleRows::from_each(meta, views.iter().map(each))
    }

    /// Samples that are slices, each a row of one dim; `None` without slices or memory.
    pub fn from_slices<T: Element, S>(
        samples: &'r [S],
        slice_of: impl Fn(&S) -> &[T],
    ) -> Option<SampleRows<'r>> {
        let meta = const {
            &TensorMeta {
                dtype: T::DTYPE,
                device: Device::Cpu,
                layout: Layout::from_slice::<T>(&[]),
            }
        };
        let each = |sample| {
            let slice = slice_of(sample);
            (slice.as_ptr().cast(), slice.len() as i64)
        };
        SampleRows::from_each(meta, samples.iter().map(each))
    }

    /// Rows by the address and the extent of dim 0 of each; `None` without rows or memory.
    fn from_each(
        meta: &'r TensorMeta,
        rows: impl ExactSizeIterator<Item = (*const u8, i64)>,
    ) -> Option<SampleRows<'r>> {
        let mut read = (try_vec(rows.len()).ok()?, try_vec(rows.len()).ok()?);
        read.extend(rows);
        let (addresses, mut lengths): (Vec<*const u8>, Vec<i64>) = read;
        let length = *lengths.first()?;
        if lengths.iter().all(|&other| other == length) {
            lengths.clear();
        }
        let (addresses, lengths) = (Cow::Owned(addresses), Cow::Owned(lengths));
        Some(SampleRows { meta, addresses, lengths, length })
    }

    /// The metadata that all rows share, except for the extent of dim 0.
    pub fn meta(&self) -> &'r TensorMeta {
        self.meta
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// The address of a row, and its extent of dim 0.
    #[inline]
    pub fn at(&self, index: usize) -> (*const u8, i64) {
        self.each().at(index)
    }

    /// All rows, for a loop that writes through pointers.
    #[inline]
    pub(crate) fn each(&self) -> EachRow<'_> {
        EachRow { addresses: &self.addresses, lengths: &self.lengths, length: self.length }
    }

    /// The addresses of rows that do not differ at all, else `None`.
    pub fn alike(&self) -> Option<&[*const u8]> {
        self.lengths.is_empty().then_some(&self.addresses)
    }

    /// The extent of dim 0 of each row; empty if they do not differ.
    pub fn lengths(&self) -> &[i64] {
        &self.lengths
    }

    /// The position of the first row that shares a byte with a tensor; `None` if none does.
    pub(crate) fn sharing(&self, other: &Footprint<'_>) -> Option<usize> {
        let (unit, rows) = (self.meta.unit(), self.each());
        let bytes_of = |length: i64| length.wrapping_mul(unit) as usize;
        let span = other.span();
        let (start, size) = (span.start as usize, (span.end - span.start) as usize);
        // True of a row that ends where the tensor begins, too: one comparison for each row.
        let may_share = |first: &*const u8, length: i64| {
            let bytes = bytes_of(length);
            first.addr().wrapping_add(bytes.wrapping_sub(start)) < size.saturating_add(bytes)
        };
        // Most outputs are elsewhere, which takes a look at all rows.
        let mut each = rows.addresses.iter();
        let is_beside = match rows.lengths {
            [] => each.any(|first| may_share(first, rows.length)),
            lengths => each.zip(lengths).any(|(first, &length)| may_share(first, length)),
        };
        let shares = |index: &usize| {
            let (first, length) = rows.at(*index);
            let (start, bytes) = (first.addr() as i128, bytes_of(length) as i128);
            Footprint::for_run(start..start + bytes).shares_with(other)
        };
        match is_beside {
            true => (0..rows.len()).find(shares),
            false => None,
        }
    }

    /// Whether each row that has elements begins where the one before it ends.
    pub fn is_one_range(&self) -> bool {
        let (unit, rows) = (self.meta.unit(), self.each());
        let mut end = None;
        (0..rows.len()).map(|index| rows.at(index)).filter(|(_, length)| *length > 0).all(
            |(row, length)| {
                let is_next = end.is_none_or(|end| end == row);
                end = Some(row.wrapping_add((length * unit) as usize));
                is_next
            },
        )
    }
}

/// The addresses of rows, and the extent of dim 0 of each.
#[derive(Clone, Copy)]
pub(crate) struct EachRow<'r> {
    addresses: &'r [*const u8],
    lengths: &'r [i64],
    length: i64,
}

impl EachRow<'_> {
    /// The number of rows.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// The address of a row, and its extent of dim 0.
    #[inline]
    pub fn at(&self, index: usize) -> (*const u8, i64) {
        let length = self.lengths.get(index).copied().unwrap_or(self.length);
        (self.addresses[index], length)
    }

    /// The end of the run of rows from the first of the range on, of which each begins where the one before it ends, and their
    /// extents of dim 0 added up. The range has a row. `unit`: bytes of one place along dim 0.
    #[inline]
    pub fn run_at(&self, range: Range<usize>, unit: usize) -> (usize, i64) {
        let (mut end, mut places) = (range.start, 0i64);
        let first = self.addresses[end];
        while end < range.end {
            let (row, length) = self.at(end);
            if row != first.wrapping_add(places as usize * unit) {
                break;
            }
            places += length;
            end += 1;
        }
        (end, places)
    }
}

/// The extent of dim 0; 1 without dims.
#[inline]
fn length_of(meta: &TensorMeta) -> i64 {
    meta.layout.shape().first().copied().unwrap_or(1)
}
