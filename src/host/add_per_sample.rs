//! Adds to the elements of each sample of a batch a number of its own, in place.
//!
//! The problem: samples that are joined along a dim other than the first have elements in each block before that dim; and
//! integers may leave the limits of their dtype, which has to be an error before the first one is written.
//!
//! ```text
//! a batch (2, 5), joined along dim 1, offsets 0 2 5     | a a b b b | a a b b b |     block 0, block 1
//! starts 10 99          all of a + 10, all of b + 99
//! starts 10 20 99 -1    a + 10 in block 0 and + 20 in block 1, b + 99 and - 1
//! ```
//!
//! ```text
//! add_to_integers: the least and the largest of all elements and of all starts; if these do not fit together,
//!                  the same of each sample, until one does not fit: its error, and nothing is written
//!                  then add modulo 2^64 and cut off to the dtype: no sum is beyond it
//! add_to_floats:   no check; the start is rounded to the dtype, the sum from float32, or from float64 to float64
//! ```
//!
//! An addition that checks each sum would be simpler, but finds the error when sums before it are written.
#![allow(unsafe_code, reason = "the memory of a batch is written through a pointer")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "a number that was found within the limits of the dtype"
)]

use std::ops::Range;

use super::convert::{Elem, BF16, F16};
use crate::tensor::{DType, Error, Hint, Mismatch, Result, Tensor};

/// The number that is added to each element of a row-major batch.
struct Increments<'a> {
    /// Blocks of rows, one after the other.
    num_blocks: usize,
    /// Elements of a row.
    row_len: usize,
    /// The first row of each sample, and the end of the last one.
    offsets: &'a [i64],
    /// A number for each sample, or one for each of its blocks.
    starts: &'a [i64],
}

impl<'a> Increments<'a> {
    /// The increments of a batch, after a check of `dim`, `offsets` and `starts`.
    ///
    /// # Errors
    /// Argument for a `dim` that the batch lacks, offsets that are not those of `dim`, or starts of another number.
    fn new(
        batch: &Tensor,
        dim: usize,
        offsets: &'a [i64],
        starts: &'a [i64],
    ) -> Result<Increments<'a>> {
        let shape = batch.shape();
        let Some((before, [num_rows, after @ ..])) = shape.split_at_checked(dim) else {
            return Err(Error::argument(format!("dim {dim} of a batch of {} dims", shape.len())));
        };
        let product = |extents: &[i64]| extents.iter().product::<i64>() as usize;
        let (num_blocks, row_len) = (product(before), product(after));
        let num_samples = offsets.len().saturating_sub(1);
        let is_ordered = offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        if offsets.first() != Some(&0) || offsets.last() != Some(num_rows) || !is_ordered {
            return Err(Error::argument(format!("offsets that are not those of {num_rows} rows")));
        }
        if starts.len() != num_samples && Some(starts.len()) != num_samples.checked_mul(num_blocks)
        {
            let text =
                format!("{} starts for {num_samples} samples of {num_blocks} blocks", starts.len());
            return Err(Error::argument(text));
        }
        Ok(Increments { num_blocks, row_len, offsets, starts })
    }

    /// The number of each sample, the range of its elements in the batch, and the number that is
    /// added to them: all samples of the first block, then those of the next one.
    fn iter(&self) -> impl Iterator<Item = (usize, Range<usize>, i64)> + '_ {
        let num_samples = self.offsets.len() - 1;
        let num_rows = self.offsets[num_samples] as usize;
        let has_own = self.starts.len() != num_samples;
        (0..self.num_blocks).flat_map(move |block| {
            (0..num_samples).map(move |sample| {
                let at = |row: i64| (block * num_rows + row as usize) * self.row_len;
                let part = at(self.offsets[sample])..at(self.offsets[sample + 1]);
                let index = if has_own { sample * self.num_blocks + block } else { sample };
                (sample, part, self.starts[index])
            })
        })
    }
}

/// Adds to the elements of each sample of a batch a number, in place: `starts` has one for each sample, or one for each block before
/// `dim`, sample by sample. `offsets`: where the samples begin along `dim`.
///
/// # Errors
/// DType for integers that do not hold a sum, with the sample, and for complex numbers and the like; Layout for memory that is
/// read-only, unaligned or has gaps, Device for memory of a device, Argument for offsets or starts that do not fit. Nothing is
/// written then.
///
/// # Safety
/// Nothing else reads or writes the memory meanwhile.
pub unsafe fn add_per_sample(
    batch: &Tensor,
    dim: usize,
    offsets: &[i64],
    starts: &[i64],
) -> Result<()> {
    let parts = Increments::new(batch, dim, offsets, starts)?;
    if batch.device().is_cuda() {
        return Err(Mismatch::for_subject("batch", "host memory", batch.device().to_string())
            .into_error(Error::Device));
    }
    let (dtype, data) = (batch.dtype(), batch.data_ptr());
    let is_in_order = batch.layout().is_compact() && !batch.is_read_only();
    if batch.layout().numel() == 0 {
        return Ok(());
    }
    if !is_in_order || data.addr() % dtype.size() != 0 {
        let mismatch =
            Mismatch::for_subject("batch", "writable memory without gaps", "other memory");
        return Err(mismatch.into_error(Error::Layout));
    }
    let count = batch.layout().numel() as usize;
    debug_assert!(!data.is_null());
    macro_rules! by_dtype {
        ($add_to_integers:ident: $($dtype:ident $t:ty),*; $($float:ident $f:ty),*) => {
            match dtype {
                $(DType::$dtype => {
                    debug_assert_eq!(<$t as Elem>::DTYPE, dtype);
                    // SAFETY: `count` elements of the dtype, without gaps, aligned; the caller promises that nothing else uses them.
                    let values = unsafe { std::slice::from_raw_parts_mut(data.cast::<$t>(), count) };
                    $add_to_integers(values, &parts, dtype)
                })*
                $(DType::$float => {
                    debug_assert_eq!(<$f as Elem>::DTYPE, dtype);
                    // SAFETY: as above.
                    let values = unsafe { std::slice::from_raw_parts_mut(data.cast::<$f>(), count) };
                    add_to_floats(values, &parts);
                    Ok(())
                })*
                _ => {
                    let mismatch = Mismatch::for_subject("batch", "integers or real numbers", dtype);
                    Err(mismatch.into_error(Error::DType))
                }
            }
        };
    }
    by_dtype!(add_to_integers: I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64; F16 F16, BF16 BF16, F32 f32, F64 f64)
}

/// Properties of an integer that its sums need.
trait Integer: Elem + Ord + Into<i128> {
    const LIMITS: (Self, Self);
}

macro_rules! integers {
    ($($t:ident)*) => {$(
        impl Integer for $t {
            const LIMITS: (Self, Self) = ($t::MIN, $t::MAX);
        }
    )*};
}

integers! { i8 i16 i32 i64 u8 u16 u32 u64 }

/// The least and the largest value; `None` without values.
fn extremes<T: Integer>(values: &[T]) -> Option<(i128, i128)> {
    let first = *values.first()?;
    let (low, high) =
        values.iter().fold((first, first), |(low, high), &x| (low.min(x), high.max(x)));
    Some((low.into(), high.into()))
}

/// Adds to integers, if all sums are within the limits of the dtype; else writes nothing and returns [`Error::DType`]
/// for the first sample with a sum that is not.
fn add_to_integers<T: Integer>(
    values: &mut [T],
    parts: &Increments<'_>,
    dtype: DType,
) -> Result<()> {
    let limits: Range<i128> = T::LIMITS.0.into()..T::LIMITS.1.into() + 1;
    let all_starts = parts.starts.iter();
    let lowest = i128::from(all_starts.clone().min().copied().unwrap_or(0));
    let highest = i128::from(all_starts.max().copied().unwrap_or(0));
    let fits = |(low, high): (i128, i128), (least, most): (i128, i128)| {
        limits.contains(&(low + least)) && limits.contains(&(high + most))
    };
    // The extremes of both are rarely of the same sample.
    if !extremes(values).is_none_or(|all| fits(all, (lowest, highest))) {
        for (sample, part, start) in parts.iter() {
            let start = i128::from(start);
            let Some((low, high)) = extremes(&values[part]) else { continue };
            if let Some(sum) =
                [low + start, high + start].into_iter().find(|sum| !limits.contains(sum))
            {
                let mismatch =
                    Mismatch::new(Some(sample), dtype, format!("{sum} after the addition"));
                let hint = Hint::Text("store it in a wider dtype");
                return Err(mismatch.with_hint(hint).into_error(Error::DType));
            }
        }
    }
    for (_, part, start) in parts.iter() {
        // Sums modulo 2^64 are within the limits, so that they are the sums.
        let start = start as u64;
        values[part]
            .iter_mut()
            .for_each(|x| *x = T::from_wrapped(x.to_wrapped().wrapping_add(start)));
    }
    Ok(())
}

/// Adds to floats: the number rounded to the dtype, and the sum rounded from float32, or float64 for float64.
fn add_to_floats<T: Elem>(values: &mut [T], parts: &Increments<'_>) {
    for (_, part, start) in parts.iter() {
        let start = T::from_f64(start as f64);
        match T::DTYPE {
            DType::F64 => {
                values[part].iter_mut().for_each(|x| *x = T::from_f64(x.to_f64() + start.to_f64()))
            }
            _ => {
                values[part].iter_mut().for_each(|x| *x = T::from_f32(x.to_f32() + start.to_f32()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raised<T: crate::tensor::Element>(
        values: Vec<T>,
        shape: &[i64],
        dim: usize,
        offsets: &[i64],
        starts: &[i64],
    ) -> Result<Tensor> {
        let batch = Tensor::from_vec(values, shape)?;
        // SAFETY: of this function alone.
        unsafe { add_per_sample(&batch, dim, offsets, starts) }.map(|()| batch)
    }

    #[test]
    fn samples_are_raised_along_a_dim() {
        let batch =
            raised(vec![0i32, 1, 2, 3, 4, 5], &[2, 3], 1, &[0, 1, 1, 3], &[10, 99, -1]).unwrap();
        assert_eq!(batch.as_slice::<i32>().unwrap(), [10, 0, 1, 13, 3, 4]);
        let batch = raised(vec![0u8, 1, 2, 3, 4, 5], &[3, 2], 0, &[0, 1, 3], &[250, 7]).unwrap();
        assert_eq!(batch.as_slice::<u8>().unwrap(), [250, 251, 9, 10, 11, 12]);
        // One for each block.
        let batch = raised(vec![0f32; 6], &[2, 3], 1, &[0, 1, 3], &[1, 2, 3, 4]).unwrap();
        assert_eq!(batch.as_slice::<f32>().unwrap(), [1., 3., 3., 2., 4., 4.]);
    }

    #[test]
    fn sums_beyond_the_dtype_change_nothing() {
        let batch = Tensor::from_vec(vec![1u64, u64::MAX - 1, 5], &[3]).unwrap();
        let add = |starts: &[i64]| {
            // SAFETY: of this function alone.
            unsafe { add_per_sample(&batch, 0, &[0, 1, 2, 3], starts) }
        };
        let error = add(&[0, 2, 0]).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("18446744073709551616 after the addition; store it in a wider dtype"),
            "{error}"
        );
        assert_eq!(error.mismatch().unwrap().index, Some(1));
        assert!(add(&[0, 1, -6]).is_err());
        assert_eq!(batch.as_slice::<u64>().unwrap(), [1, u64::MAX - 1, 5]);
        add(&[-1, 1, i64::MAX]).unwrap();
        assert_eq!(batch.as_slice::<u64>().unwrap(), [0, u64::MAX, 5 + i64::MAX as u64]);
    }

    #[test]
    fn what_is_no_part_of_the_batch_is_refused() {
        for (dim, offsets, starts) in [
            (1, &[0, 2][..], &[1][..]),
            (0, &[0, 1], &[1]),
            (0, &[0, 3, 2], &[1, 1]),
            (0, &[-1, 2], &[1]),
            (0, &[], &[]),
            (0, &[0, 2], &[1, 1]),
        ] {
            assert!(matches!(
                raised(vec![0i64; 2], &[2], dim, offsets, starts),
                Err(Error::Argument(_))
            ));
        }
        assert!(matches!(raised(vec![true], &[1], 0, &[0, 1], &[1]), Err(Error::DType(_))));
    }
}
