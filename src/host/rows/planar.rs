//! Interleaved pixels to planes.
//!
//! The problem: a plane is a row of elements `channels` apart. Plane by plane, all pixels would be read once for each channel, by
//! loads of single elements. So a block of pixels is read once and split as it is, by shuffles where there are some, and each
//! part then goes through the loop over vectors for its pair of dtypes.
//!
//! ```text
//! pixels   r0 g0 b0 r1 g1 b1 r2 g2 b2 ...              a block of BLOCK pixels
//! stack    r0 r1 r2 ... | g0 g1 g2 ... | b0 b1 ...     split: elements as they are; more than four channels come one at a time
//! planes   each part cast, or mapped by the pair of its channel and cast, straight into its plane; then the next block
//! ```
//!
//! Elements that are only moved are split into the planes themselves. The other loops of `tile` would do without this one: images
//! to float16 planes then take 7.4 times as long, to float32 planes 4.1 times (Xeon, one thread).
#![allow(unsafe_code, reason = "rows are raw pointers with strides in bytes")]

use super::super::convert::Elem;
use super::super::simd::{Isa, Pairs, Real, Scratch, BLOCK};
use super::{affine_block, copy_row, gather, Pair, PairTable, PlanarFn, Row};
use crate::collate::Affine;
use crate::tensor::DType;

/// The [`PlanarFn`] of elements that are moved, without a map.
///
/// # Safety
/// `pixels` of `channels` elements at `src`, and as many rows at `dst`, `plane` bytes apart. Elements are as wide as `T`;
/// the processor runs `I`.
pub(super) unsafe fn planar_copy<I: Isa, T: Copy>(
    src: *const u8,
    dst: *mut u8,
    plane: isize,
    pixels: usize,
    channels: usize,
    _: Option<&Affine>,
) {
    // SAFETY: `pixels` pixels of `channels` elements as wide as `T`, and as many in each row.
    unsafe {
        match channels {
            2 => I::split::<T, 2>(src, dst, plane, pixels),
            3 => I::split::<T, 3>(src, dst, plane, pixels),
            4 => I::split::<T, 4>(src, dst, plane, pixels),
            _ => {
                for c in 0..channels {
                    let x = src.add(c * size_of::<T>());
                    let stride = (channels * size_of::<T>()) as isize;
                    gather::<T>(x, stride, dst.offset(plane * c as isize), pixels);
                }
            }
        }
    }
}

/// Pixels as [`PlanarFn`] takes them.
#[derive(Clone, Copy)]
struct Pixels {
    src: *const u8,
    dst: *mut u8,
    plane: isize,
    len: usize,
    channels: usize,
}

/// The [`PlanarFn`] of a pair of dtypes.
///
/// # Safety
/// `len` pixels of `channels` elements at `src`, and as many rows at `dst`, `plane` bytes apart; a pair for each channel,
/// or one. The processor runs `I`.
pub(super) unsafe fn planar<I: Isa, S: Elem, D: Elem>(
    src: *const u8,
    dst: *mut u8,
    plane: isize,
    len: usize,
    channels: usize,
    affine: Option<&Affine>,
) {
    let split: PlanarFn = match size_of::<S>() {
        1 => planar_copy::<I, u8>,
        2 => planar_copy::<I, u16>,
        4 => planar_copy::<I, u32>,
        _ => planar_copy::<I, u64>,
    };
    debug_assert!(matches!(size_of::<S>(), 1 | 2 | 4 | 8));
    let pixels = Pixels { src, dst, plane, len, channels };
    // SAFETY: the tables are those of the types, and `split` that of their width; the rest is the
    // caller's promise.
    unsafe {
        if S::DTYPE == D::DTYPE && affine.is_none() {
            split(src, dst, plane, len, channels, None);
        } else if S::DTYPE == DType::F64 || D::DTYPE == DType::F64 {
            planar_blocks(&PairTable::<I, S, D, f64, false>::PAIR, split, pixels, affine);
        } else {
            planar_blocks(&PairTable::<I, S, D, f32, false>::PAIR, split, pixels, affine);
        }
    }
}

/// Splits blocks of pixels: `split` moves the source elements of up to four channels to planes, which are then mapped in `T`,
/// or only converted without `affine`, and written as destination elements. More channels come one at a time, without `split`.
///
/// # Safety
/// `len` pixels of `channels` elements at `src`, and as many rows at `dst`, `plane` bytes apart; a pair for each channel,
/// or one. Elements are those of `pair`, and `split` takes ones as wide as those at `src`.
unsafe fn planar_blocks<T: Real>(
    pair: &Pair<T>,
    split: PlanarFn,
    Pixels { src, dst, plane, len, channels }: Pixels,
    affine: Option<&Affine>,
) {
    let mut planes = Scratch::<{ 4 * BLOCK * 8 }>::new();
    let coefficients = affine.map(T::coefficients);
    let (from, to) = (pair.src as isize, pair.dst as isize);
    let held = BLOCK as isize * from;
    debug_assert!(pair.src <= 8);
    let mut done = 0;
    while done < len {
        let n = (len - done).min(BLOCK);
        // SAFETY: `done + n <= len`. Four planes of `BLOCK` elements fit; where there are more
        // channels they come one at a time.
        unsafe {
            let x = src.add(done * channels * pair.src);
            if channels <= 4 {
                split(x, planes.at(), held, n, channels, None);
            }
            for c in 0..channels as isize {
                let mut src = planes.at().offset(held * (c % 4)).cast_const();
                if channels > 4 {
                    let stride = from * channels as isize;
                    src = planes.at();
                    copy_row(pair.src)(x.offset(from * c), stride, planes.at(), from, n);
                }
                let dst = dst.offset(plane * c + to * done as isize);
                let Some((a, b)) = coefficients else {
                    (pair.cast)(src, dst, n);
                    continue;
                };
                let pick = if a.len() == 1 { 0 } else { c as usize };
                let pairs = Pairs { a: &raw const a[pick], b: &raw const b[pick], period: 0 };
                affine_block(pair, Row { src, ss: from, dst, ds: to, len: n }, pairs);
            }
        }
        done += n;
    }
}
