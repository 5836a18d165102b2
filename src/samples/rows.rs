//! [`SampleRows`]: samples on the host that are row-major and differ in the extent of dim 0 at most.

use std::borrow::Cow;
use std::ops::Range;

use crate::samples::list::{room_for, SampleList};
use crate::samples::meta::TensorMeta;
use crate::samples::view::SampleView;
use crate::tensor::{are_compact, bytes_of, Device, Element, Layout};

/// Samples on the host that are row-major and differ in the extent of dim 0 at most, read where they are.
pub struct SampleRows<'r> {
    meta: &'r TensorMeta,
    addresses: Cow<'r, [*const u8]>,
    /// The extent of dim 0 of each, if they differ.
    lengths: Cow<'r, [i64]>,
    /// The extent of dim 0 of samples without a length of their own; 1 without dims.
    length: i64,
    /// The least and the largest, and the sum of all.
    extents: [i64; 3],
}

// SAFETY: addresses of samples, which are only read and which `'r` keeps alive, on whatever thread.
#[allow(unsafe_code)]
unsafe impl Sync for SampleRows<'_> {}

impl<'r> SampleRows<'r> {
    /// `length`: of those without one of their own. `None` where the sum of all extents is beyond 64 bits.
    fn new(
        meta: &'r TensorMeta,
        addresses: Cow<'r, [*const u8]>,
        lengths: Cow<'r, [i64]>,
        length: i64,
    ) -> Option<SampleRows<'r>> {
        let count = addresses.len() as i64;
        let [least, most] = match lengths.is_empty() {
            true => [length, length],
            false => lengths.iter().fold([i64::MAX, 0], |[least, most], &length| {
                [least.min(length), most.max(length)]
            }),
        };
        let bound = most.checked_mul(count)?;
        let total = if least == most { bound } else { lengths.iter().sum() };
        Some(SampleRows { meta, addresses, lengths, length, extents: [least, most, total] })
    }

    /// The samples of a list, if they are such.
    pub fn of_list(list: &'r SampleList<'_>, most_bytes: u64) -> Option<SampleRows<'r>> {
        let (meta, lengths) = list.as_rows().filter(|_| !list.is_empty())?;
        let bytes = bytes_of(meta.dtype, meta.layout.shape()).saturating_mul(list.len() as u64);
        if lengths.is_empty() && bytes > most_bytes {
            // Before there is an address for each row of a large table.
            return None;
        }
        list.check_rows(0).ok()?;
        SampleRows::new(meta, list.data(), Cow::Borrowed(lengths), length_of(meta))
    }

    /// The samples at these positions of a list, if they are such and do not differ.
    pub fn taken(
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
        SampleRows::new(meta, addresses, Cow::Borrowed(&[]), length_of(meta))
    }

    /// Views, if they are such.
    pub fn of_views(views: &'r [SampleView<'_>]) -> Option<SampleRows<'r>> {
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
        SampleRows::of_each(meta, views.iter().map(each))
    }

    /// Slices, each a row of one dim.
    pub fn of_slices<T: Element>(slices: &'r [&[T]]) -> Option<SampleRows<'r>> {
        let meta = const {
            &TensorMeta { dtype: T::DTYPE, device: Device::Cpu, layout: Layout::of_slice::<T>(&[]) }
        };
        let each = |slice: &&[T]| (slice.as_ptr().cast(), slice.len() as i64);
        SampleRows::of_each(meta, slices.iter().map(each))
    }

    /// The address and the extent of dim 0 of each.
    fn of_each(
        meta: &'r TensorMeta,
        rows: impl ExactSizeIterator<Item = (*const u8, i64)>,
    ) -> Option<SampleRows<'r>> {
        let mut read = (room_for(rows.len()).ok()?, room_for(rows.len()).ok()?);
        read.extend(rows);
        let (addresses, mut lengths): (Vec<*const u8>, Vec<i64>) = read;
        let length = *lengths.first()?;
        if lengths.iter().all(|&other| other == length) {
            lengths.clear();
        }
        SampleRows::new(meta, Cow::Owned(addresses), Cow::Owned(lengths), length)
    }

    /// The metadata that all rows share, except for the extent of dim 0.
    pub fn meta(&self) -> &'r TensorMeta {
        self.meta
    }

    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Where a row is, and its extent of dim 0.
    #[inline]
    pub fn at(&self, index: usize) -> (*const u8, i64) {
        self.each().at(index)
    }

    /// All rows, for a loop that writes through pointers.
    #[inline]
    pub(crate) fn each(&self) -> EachRow<'_> {
        EachRow { addresses: &self.addresses, lengths: &self.lengths, length: self.length }
    }

    /// The addresses of rows that do not differ at all.
    pub fn alike(&self) -> Option<&[*const u8]> {
        self.lengths.is_empty().then_some(&self.addresses)
    }

    /// The least and the largest extent of dim 0, and the sum of all.
    pub fn extents(&self) -> [i64; 3] {
        self.extents
    }

    /// The extent of dim 0 of each row, none counted for more than `most`.
    pub fn lengths_within(&self, most: i64) -> Cow<'_, [i64]> {
        match (self.alike(), self.extents) {
            (Some(all), _) => Cow::Owned(vec![self.length.min(most); all.len()]),
            (None, [_, longest, _]) if longest <= most => Cow::Borrowed(&self.lengths),
            _ => self.lengths.iter().map(|&length| length.min(most)).collect(),
        }
    }

    /// Bytes of one place along dim 0.
    fn unit(&self) -> i64 {
        let rest = self.meta.layout.shape().get(1..).unwrap_or_default();
        rest.iter().product::<i64>() * self.meta.dtype.size() as i64
    }

    /// Whether no row has any of the bytes at these addresses.
    pub fn are_apart_from(&self, bytes: &Range<usize>) -> bool {
        let (unit, rows) = (self.unit(), self.each());
        (0..rows.len()).all(|index| {
            let (first, length) = rows.at(index);
            let begin = first.addr();
            begin.max(bytes.start) >= bytes.end.min(begin + (length * unit) as usize)
        })
    }

    /// Whether each row begins where the one before it ends.
    pub fn is_one_range(&self) -> bool {
        let bytes = self.unit();
        (1..self.len()).all(|index| {
            let (before, length) = self.at(index - 1);
            before.wrapping_add((length * bytes) as usize) == self.at(index).0
        })
    }
}

/// Where rows are, and the extent of dim 0 of each.
#[derive(Clone, Copy)]
pub(crate) struct EachRow<'r> {
    addresses: &'r [*const u8],
    lengths: &'r [i64],
    length: i64,
}

impl EachRow<'_> {
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    #[inline]
    pub fn at(&self, index: usize) -> (*const u8, i64) {
        let length = self.lengths.get(index).copied().unwrap_or(self.length);
        (self.addresses[index], length)
    }
}

#[inline]
fn length_of(meta: &TensorMeta) -> i64 {
    meta.layout.shape().first().copied().unwrap_or(1)
}
