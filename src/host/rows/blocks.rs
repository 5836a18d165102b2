//! Blocks of a transposition: the same places of several rows, which share lines of the source.
#![allow(unsafe_code, reason = "elements are at raw addresses")]

use crate::host::isa::with_isa;
use crate::host::simd::Isa;

/// Elements at these places from `src + from[i]` on to as many without gaps from `dst + to[i]` on, for each `i`.
///
/// # Safety
/// There are elements at all places of all rows, and room for them elsewhere; there are as many `from` as `to`.
pub(crate) type GatherFn =
    unsafe fn(src: *const u8, places: &[isize], from: &[isize], dst: *mut u8, to: &[isize]);

/// A [`GatherFn`] for elements as wide as `T`: in squares, if the rows are neighbours in the source.
///
/// # Safety
/// As of [`GatherFn`].
pub(super) unsafe fn gather<T: Copy>(
    src: *const u8,
    places: &[isize],
    from: &[isize],
    dst: *mut u8,
    to: &[isize],
) {
    // SAFETY: the caller's promise; the processor runs what is chosen.
    with_isa!(I => unsafe { gather_on::<I, T>(src, places, from, dst, to) })
}

/// Does what [`gather`] does, compiled for `I`.
///
/// # Safety
/// As of [`GatherFn`]; the processor runs `I`.
unsafe fn gather_on<I: Isa, T: Copy>(
    src: *const u8,
    places: &[isize],
    from: &[isize],
    dst: *mut u8,
    to: &[isize],
) {
    debug_assert_eq!(from.len(), to.len());
    #[cfg(target_arch = "x86_64")]
    if I::AVX2 && crate::host::simd::x86::are_squares(size_of::<T>(), places, from) {
        debug_assert!(matches!(size_of::<T>(), 1 | 2 | 4 | 8));
        // SAFETY: the caller's promise, of which the sizes were just checked.
        return unsafe {
            match size_of::<T>() {
                1 => crate::host::simd::x86::write_squares::<1, 16>(src, places, dst, to),
                2 => crate::host::simd::x86::write_squares::<2, 8>(src, places, dst, to),
                4 => crate::host::simd::x86::write_squares::<4, 4>(src, places, dst, to),
                _ => crate::host::simd::x86::write_squares::<8, 2>(src, places, dst, to),
            }
        };
    }
    // SAFETY: the caller's promise.
    unsafe { gather_each::<T>(src, places, from, dst, to) }
}

/// Places whose offsets are held in registers, of which x86-64 has 16.
const HELD: usize = 8;

/// Does what [`gather`] does, element by element: some places of all rows, then the next, so that the lines which rows
/// share are still in the first cache.
///
/// # Safety
/// As of [`GatherFn`].
unsafe fn gather_each<T: Copy>(
    src: *const u8,
    places: &[isize],
    from: &[isize],
    mut dst: *mut u8,
    to: &[isize],
) {
    let mut blocks = places.chunks_exact(HELD);
    for block in blocks.by_ref() {
        let held: [isize; HELD] = std::array::from_fn(|place| block[place]);
        for (&from, &to) in from.iter().zip(to) {
            let (src, dst) = (src.wrapping_offset(from), dst.wrapping_offset(to).cast::<T>());
            for (place, offset) in held.into_iter().enumerate() {
                // SAFETY: a place of this row, on both sides.
                unsafe {
                    let x = src.offset(offset).cast::<T>().read_unaligned();
                    dst.add(place).write_unaligned(x);
                }
            }
        }
        dst = dst.wrapping_add(HELD * size_of::<T>());
    }
    for &offset in blocks.remainder() {
        for (&from, &to) in from.iter().zip(to) {
            // SAFETY: as above.
            unsafe {
                let x = src.wrapping_offset(from).offset(offset).cast::<T>().read_unaligned();
                dst.wrapping_offset(to).cast::<T>().write_unaligned(x);
            }
        }
        dst = dst.wrapping_add(size_of::<T>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of rows that are neighbours and of others, exactly as large as they are said to be.
    fn check<T: Copy + PartialEq + std::fmt::Debug>(value: impl Fn(usize) -> T) {
        for (num_places, num_rows) in (1..=40)
            .flat_map(|places| [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 32].map(|rows| (places, rows)))
        {
            for apart in [1, 2] {
                let (size, step) = (size_of::<T>() as isize, num_rows * apart + 3);
                let src: Vec<T> = (0..num_places * step - 3 - (apart - 1)).map(&value).collect();
                let places: Vec<isize> =
                    (0..num_places).rev().map(|place| (place * step) as isize * size).collect();
                let from: Vec<isize> =
                    (0..num_rows).map(|row| (row * apart) as isize * size).collect();
                let to: Vec<isize> =
                    (0..num_rows).map(|row| (row * (num_places + 1)) as isize * size).collect();
                let gap = value(usize::MAX);
                let mut expected = vec![gap; num_rows * (num_places + 1)];
                for (row, place) in
                    (0..num_rows).flat_map(|row| (0..num_places).map(move |place| (row, place)))
                {
                    expected[row * (num_places + 1) + place] =
                        src[(num_places - 1 - place) * step + row * apart];
                }
                for gather in [gather::<T>, gather_each::<T>] {
                    let mut dst = vec![gap; expected.len()];
                    // SAFETY: the places and rows are those of `src` and of `dst`.
                    unsafe {
                        gather(src.as_ptr().cast(), &places, &from, dst.as_mut_ptr().cast(), &to)
                    };
                    assert_eq!(
                        dst, expected,
                        "{num_rows} rows of {num_places} places, {apart} apart"
                    );
                }
            }
        }
    }

    #[test]
    fn blocks_of_every_size() {
        check(|i| (i % 251) as u8);
        check(|i| (i % 65_521) as u16);
        check(|i| i as u32);
        check(|i| i as u64);
        check(|i| i as u128);
    }
}
