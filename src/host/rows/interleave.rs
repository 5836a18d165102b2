//! Rows to interleaved pixels: the other way round from planes.
#![allow(unsafe_code, reason = "rows are raw pointers with strides in bytes")]

/// Writes `len` pixels to `dst`, channel `c` of them from the row at `src + c * held`. Rows and pixels
/// lie without gaps, at any alignment.
pub(crate) type InterleaveFn = unsafe fn(src: *const u8, held: usize, dst: *mut u8, len: usize);

macro_rules! pick {
    ($f:ident, $width:expr, $channels:expr) => {
        Some(match ($width, $channels) {
            (1, 2) => $f::<u8, 2>,
            (1, 3) => $f::<u8, 3>,
            (1, 4) => $f::<u8, 4>,
            (2, 2) => $f::<u16, 2>,
            (2, 3) => $f::<u16, 3>,
            (2, 4) => $f::<u16, 4>,
            (4, 2) => $f::<u32, 2>,
            (4, 3) => $f::<u32, 3>,
            (4, 4) => $f::<u32, 4>,
            (8, 2) => $f::<u64, 2>,
            (8, 3) => $f::<u64, 3>,
            (8, 4) => $f::<u64, 4>,
            _ => return None,
        })
    };
}
/// Interleaves 2, 3 or 4 rows of elements of `width` bytes; `None` for other numbers.
pub(crate) fn interleave_rows(width: usize, channels: usize) -> Option<InterleaveFn> {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        return pick!(with_avx2, width, channels);
    }
    pick!(plain, width, channels)
}

/// # Safety
/// As for [`InterleaveFn`]; the processor runs AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn with_avx2<T: Copy, const C: usize>(
    src: *const u8,
    held: usize,
    dst: *mut u8,
    len: usize,
) {
    // SAFETY: the caller's promise. The same loop, for the compiler to vectorise with wider shuffles.
    unsafe { plain::<T, C>(src, held, dst, len) }
}

/// # Safety
/// As for [`InterleaveFn`].
#[inline(always)]
unsafe fn plain<T: Copy, const C: usize>(src: *const u8, held: usize, dst: *mut u8, len: usize) {
    let dst = dst.cast::<[T; C]>();
    for pixel in 0..len {
        // SAFETY: `len` elements in each row, `len` pixels of `C` elements.
        unsafe {
            let at = |c: usize| src.add(c * held).cast::<T>().add(pixel).read_unaligned();
            dst.add(pixel).write_unaligned(std::array::from_fn(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::interleave_rows;

    #[test]
    fn every_width_and_number_of_channels() {
        for width in [1, 2, 4, 8] {
            for channels in 2..=4 {
                for len in [0, 1, 2, 15, 16, 17, 31, 33, 64, 100] {
                    let held = 1000;
                    let src: Vec<u8> = (0..4 * held).map(|i| (i % 251) as u8).collect();
                    let mut dst = vec![0xA5u8; 1 + len * channels * width + 1];
                    let interleave = interleave_rows(width, channels).unwrap();
                    // SAFETY: rows of 1000 bytes hold 100 elements; `dst` holds the pixels after its
                    // first byte.
                    unsafe { interleave(src.as_ptr(), held, dst.as_mut_ptr().add(1), len) };
                    assert_eq!((dst[0], dst[dst.len() - 1]), (0xA5, 0xA5));
                    for (i, &byte) in dst[1..dst.len() - 1].iter().enumerate() {
                        let (elem, within) = (i / width, i % width);
                        let from = (elem % channels) * held + (elem / channels) * width + within;
                        assert_eq!(byte, src[from], "{width} {channels} {len} {i}");
                    }
                }
            }
        }
        assert!(interleave_rows(16, 3).is_none() && interleave_rows(1, 5).is_none());
    }
}
