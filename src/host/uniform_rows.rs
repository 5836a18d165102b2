//! Rows of one size, copied or cast one after the other.
//!
//! The loop prefetches a row some rows before it reads it, since rows can be anywhere. Rows that are only moved are
//! copied in blocks of 16 or 32 bytes, whose number is known when the loop is compiled, so that a row has no branch; longer ones
//! by the system's copy.
#![allow(unsafe_code)] // Raw rows.

#[cfg(target_arch = "x86_64")]
use crate::host::isa::detects_avx2;
use crate::host::isa::with_isa;
use crate::host::policy::POLICY;
use crate::host::prefetch::prefetch;
use crate::host::simd::{are_disjoint, Cast, Isa};

/// The distance of the prefetch, in rows.
const AHEAD: usize = POLICY.rows_ahead;

/// Copies rows of `bytes` each one after the other.
///
/// # Safety
/// `bytes` bytes at each address, and as many for each at `dst`, which nothing else has.
pub(super) unsafe fn copy_all(addresses: &[*const u8], dst: *mut u8, bytes: usize) {
    match (32..=256).contains(&bytes) {
        // SAFETY: the caller's promise; the processor runs what is chosen.
        true => with_isa!(I => unsafe { copy_blocked::<I>(addresses, dst, bytes) }),
        // SAFETY: as above.
        false => unsafe { copy_narrow(addresses, dst, bytes) },
    }
}

/// Casts rows of `elems` elements each one after the other by `cast`. `[from, to]`: bytes of an element on both sides.
///
/// # Safety
/// Each address has `elems` elements, and `dst` room for as many of each, which nothing else has; `cast` takes these sizes.
pub(super) unsafe fn cast_all(
    addresses: &[*const u8],
    mut dst: *mut u8,
    elems: usize,
    [from, to]: [usize; 2],
    cast: Cast,
) {
    if elems == 0 {
        return;
    }
    for (index, &src) in addresses.iter().enumerate() {
        if let Some(&ahead) = addresses.get(index + AHEAD) {
            prefetch(ahead, elems * from);
        }
        // SAFETY: the caller's promise.
        unsafe { cast(src, dst, elems) };
        dst = dst.wrapping_add(elems * to);
    }
}

/// Copies rows of 32 to 256 bytes. Callgrind, a call that stacks 256 float32 tensors of 256 bytes: 68 000 instructions, and
/// 76 700 with the system's copy of each.
///
/// # Safety
/// The processor runs `I`; `bytes` bytes at each address, and as many for each at `dst`, which nothing else has.
#[inline(always)]
unsafe fn copy_blocked<I: Isa>(addresses: &[*const u8], dst: *mut u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    if I::AVX2 {
        debug_assert!(detects_avx2() && (32..=256).contains(&bytes));
        // SAFETY: the caller's promise, and as many blocks as are begun in a row.
        return unsafe {
            match bytes.div_ceil(32) {
                1 => copy_wide::<1>(addresses, dst, bytes),
                2 => copy_wide::<2>(addresses, dst, bytes),
                3 => copy_wide::<3>(addresses, dst, bytes),
                4 => copy_wide::<4>(addresses, dst, bytes),
                5 => copy_wide::<5>(addresses, dst, bytes),
                6 => copy_wide::<6>(addresses, dst, bytes),
                7 => copy_wide::<7>(addresses, dst, bytes),
                _ => copy_wide::<8>(addresses, dst, bytes),
            }
        };
    }
    // SAFETY: the caller's promise.
    unsafe { copy_narrow(addresses, dst, bytes) }
}

/// Copies rows as [`copy_all`] does, on every processor. Callgrind, 256 rows of 68 bytes: 4 300 instructions, and 13
/// 900 by the first and the last 64 bytes of each.
///
/// # Safety
/// `bytes` bytes at each address, and as many for each at `dst`, which nothing else has.
unsafe fn copy_narrow(addresses: &[*const u8], dst: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise, and as many blocks as are begun in a row.
    unsafe {
        match bytes.div_ceil(16) {
            1 if bytes == 16 => copy_uniform::<1, 16>(addresses, dst, bytes),
            2 => copy_uniform::<2, 16>(addresses, dst, bytes),
            3 => copy_uniform::<3, 16>(addresses, dst, bytes),
            4 => copy_uniform::<4, 16>(addresses, dst, bytes),
            5 => copy_uniform::<5, 16>(addresses, dst, bytes),
            6 => copy_uniform::<6, 16>(addresses, dst, bytes),
            7 => copy_uniform::<7, 16>(addresses, dst, bytes),
            8 => copy_uniform::<8, 16>(addresses, dst, bytes),
            _ => copy_uniform::<0, 16>(addresses, dst, bytes),
        }
    }
}

/// Copies rows as [`copy_uniform`] does, by registers of 32 bytes.
///
/// # Safety
/// The processor has AVX2. `bytes` bytes at each address, at most `32 * N` and more than 32 less, and as many for each
/// at `dst`, which nothing else has.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn copy_wide<const N: usize>(addresses: &[*const u8], dst: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_uniform::<N, 32>(addresses, dst, bytes) }
}

/// Copies rows of one size one after the other: of `N` blocks of `B` bytes, the last two of which may overlap, or for an
/// `N` of 0 of any size.
///
/// # Safety
/// Each address has `bytes` bytes, at most `B * N` and more than one block less, and as many for each at `dst`, which
/// nothing else has.
#[inline(always)]
unsafe fn copy_uniform<const N: usize, const B: usize>(
    addresses: &[*const u8],
    mut dst: *mut u8,
    bytes: usize,
) {
    debug_assert!(N == 0 || bytes >= B && bytes.div_ceil(B) == N);
    let (first, last) = addresses.split_at(addresses.len().saturating_sub(AHEAD));
    // A slice: a loop over `skip` may look for its end twice.
    let ahead = addresses.get(AHEAD..).unwrap_or_default();
    for (&src, &ahead) in first.iter().zip(ahead) {
        prefetch(ahead, if N == 0 { bytes } else { B * N });
        // SAFETY: the caller's promise, here and below.
        unsafe { copy_blocks::<N, B>(src, dst, bytes) };
        dst = dst.wrapping_add(bytes);
    }
    for &src in last {
        // SAFETY: as above.
        unsafe { copy_blocks::<N, B>(src, dst, bytes) };
        dst = dst.wrapping_add(bytes);
    }
}

/// Copies one row of [`copy_uniform`].
///
/// # Safety
/// `bytes` bytes at `src`, at most `B * N` and more than one block less unless `N` is 0, and as many at `dst`, which
/// nothing else has.
#[inline(always)]
unsafe fn copy_blocks<const N: usize, const B: usize>(src: *const u8, dst: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if N == 0 {
            copy_short(src, dst, bytes);
        }
        for block in 0..N {
            let at = if block + 1 < N { B * block } else { bytes - B };
            let block = src.add(at).cast::<[u8; B]>().read_unaligned();
            dst.add(at).cast::<[u8; B]>().write_unaligned(block);
        }
    }
}

/// Copies `N` to `2 * N` bytes: the first `N` and the last, which overlap in the middle.
///
/// # Safety
/// Both sides have `bytes` bytes, disjoint.
#[inline(always)]
unsafe fn copy_ends<const N: usize>(src: *const u8, dst: *mut u8, bytes: usize) {
    debug_assert!((N..=2 * N).contains(&bytes));
    // SAFETY: at least `N` bytes, at any address.
    unsafe {
        let first = src.cast::<[u8; N]>().read_unaligned();
        let last = src.add(bytes - N).cast::<[u8; N]>().read_unaligned();
        dst.cast::<[u8; N]>().write_unaligned(first);
        dst.add(bytes - N).cast::<[u8; N]>().write_unaligned(last);
    }
}

/// Copies `bytes` bytes, up to 32 of them without a call. Callgrind, a ragged batch of 1024 rows of 4 to 256 bytes: 191
/// 481 instructions, and 195 523 without a call up to 64 bytes.
///
/// # Safety
/// Both sides have `bytes` bytes, disjoint; for 0 bytes any address will do.
#[inline]
pub(super) unsafe fn copy_short(src: *const u8, dst: *mut u8, bytes: usize) {
    debug_assert!(are_disjoint(src, bytes, dst, bytes));
    if bytes > 32 {
        // SAFETY: the caller's promise.
        return unsafe { std::ptr::copy_nonoverlapping(src, dst, bytes) };
    }
    // SAFETY: each class has at least as many bytes as are taken at either end, and at most twice as many.
    unsafe {
        match bytes {
            0 => {}
            1 => *dst = *src,
            2..=3 => copy_ends::<2>(src, dst, bytes),
            4..=7 => copy_ends::<4>(src, dst, bytes),
            8..=15 => copy_ends::<8>(src, dst, bytes),
            _ => copy_ends::<16>(src, dst, bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_every_length() {
        let from: Vec<u8> = (0..200).map(|i| (i * 7 % 251) as u8).collect();
        for begin in [0, 1, 7] {
            for bytes in 0..=190 {
                let mut to = vec![0xAA; 210];
                // SAFETY: `begin + bytes` is within both.
                unsafe { copy_short(from[begin..].as_ptr(), to[5..].as_mut_ptr(), bytes) };
                assert_eq!(&to[5..5 + bytes], &from[begin..begin + bytes]);
                assert!(to[..5].iter().chain(&to[5 + bytes..]).all(|&byte| byte == 0xAA));
            }
        }
        // SAFETY: no bytes.
        unsafe { copy_short(std::ptr::null(), std::ptr::null_mut(), 0) };
    }

    #[test]
    fn uniform_rows_of_every_size() {
        use crate::collate::Collate;
        use crate::samples::{SampleList, SampleView};
        use crate::Engine;
        let from: Vec<u8> = (0..3 * AHEAD * 331).map(|i| (i * 7 % 251) as u8).collect();
        for bytes in 1..=259 {
            for count in [1, AHEAD - 1, AHEAD, AHEAD + 1, 3 * AHEAD] {
                let rows: Vec<&[u8]> =
                    (0..count).map(|row| &from[row * 331..][..bytes]).rev().collect();
                let list: SampleList<'_> = rows.iter().map(|&row| SampleView::from(row)).collect();
                let batch = Engine::host().assemble(&list, &Collate::stack()).unwrap();
                assert_eq!(batch.data().as_slice::<u8>().unwrap(), rows.concat());
                let addresses: Vec<_> = rows.iter().map(|row| row.as_ptr()).collect();
                let mut to = vec![0xAA; count * bytes + 1];
                // SAFETY: rows of `bytes` bytes, and room for all of them.
                unsafe { copy_narrow(&addresses, to.as_mut_ptr(), bytes) };
                assert_eq!(to, [rows.concat(), vec![0xAA]].concat());
            }
        }
    }
}
