//! Rows written around the caches, for outputs that leave them before anyone reads: a store into a line
//! that is in no cache otherwise fetches it first, only to write over it.
#![allow(unsafe_code)] // Raw rows.

use std::mem::MaybeUninit;

use crate::host::policy::POLICY;
use crate::host::rows;

/// Bytes of a row that are made at once.
const BLOCK_BYTES: usize = POLICY.streamed_block_bytes;

/// A cache line of x86-64.
const LINE_BYTES: usize = 64;

/// More rows than that are written as they come: as many as the channels that are split at once.
const MAX_ROWS: usize = 4;

#[repr(C, align(64))]
struct Blocks(MaybeUninit<[u8; MAX_ROWS * BLOCK_BYTES]>);

/// Rows that are written side by side, as the planes of an image are: `count` rows of `len` elements of
/// `size` bytes without gaps, the first at `dst`, the others `plane` bytes apart.
#[derive(Clone, Copy)]
pub(super) struct WrittenRows {
    pub dst: *mut u8,
    pub plane: isize,
    pub count: usize,
    pub size: usize,
    pub len: usize,
    /// Whether to write them around the caches.
    pub streaming: bool,
}

impl WrittenRows {
    /// A single row of `len` elements of `size` bytes at `dst`, which is not written around the caches.
    pub fn one(dst: *mut u8, size: usize, len: usize) -> WrittenRows {
        WrittenRows { dst, plane: 0, count: 1, size, len, streaming: false }
    }

    /// Calls `make` with all of the rows, or, to write them around the caches, with parts in order:
    /// where the first row of the part is to be written, which may be a block on the stack, the
    /// bytes between two rows, how many elements of a row come before, how many there are, perhaps
    /// none.
    ///
    /// # Safety
    /// The rows may be written to by nothing else; `make` writes what it is asked for, and no more.
    #[inline]
    pub unsafe fn write(self, mut make: impl FnMut(*mut u8, isize, usize, usize)) {
        match self.streaming {
            // SAFETY: the caller's promise.
            true => unsafe { self.write_around(&mut make) },
            false => make(self.dst, self.plane, 0, self.len),
        }
    }

    /// Copies rows around the caches. If all rows begin at one position within a cache line, are `min_streamed_blocks`
    /// long and [`MAX_ROWS`] at most, whole lines are made in a block and copied out past the caches; the ends, and
    /// other rows, are written directly. Another thread may read them after [`rows::stream_fence`].
    ///
    /// # Safety
    /// The rows may be written to by nothing else; `make` writes what it is asked for, and no more.
    #[inline(never)]
    unsafe fn write_around(self, make: &mut dyn FnMut(*mut u8, isize, usize, usize)) {
        let WrittenRows { dst, plane, count, size, len, .. } = self;
        let head = dst.align_offset(LINE_BYTES);
        let is_even = head % size == 0 && (count == 1 || plane % LINE_BYTES as isize == 0);
        let head = head / size;
        if !is_even
            || count > MAX_ROWS
            || len < head + POLICY.min_streamed_blocks * (BLOCK_BYTES / size)
        {
            return make(dst, plane, 0, len);
        }
        let mut blocks = Blocks(MaybeUninit::uninit());
        let block: *mut u8 = blocks.0.as_mut_ptr().cast();
        make(dst, plane, 0, head);
        let step = BLOCK_BYTES / size;
        let lines = (len - head) / step * step;
        debug_assert_eq!(step * size, BLOCK_BYTES);
        for done in (head..head + lines).step_by(step) {
            debug_assert!(done + step <= len);
            make(block, BLOCK_BYTES as isize, done, step);
            for row in 0..count {
                let to = dst.wrapping_offset(row as isize * plane).wrapping_add(done * size);
                // SAFETY: `make` filled the block of each row, and `done + step <= len`.
                unsafe { rows::copy_bytes(block.add(row * BLOCK_BYTES), to, BLOCK_BYTES, true) };
            }
        }
        let done = head + lines;
        make(dst.wrapping_add(done * size), plane, done, len - done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of element `i` of row `row` in the output.
    fn element(row: usize, i: usize, size: usize) -> Vec<u8> {
        (0..size).map(|byte| (row * 89 + i * 31 + byte * 7) as u8 | 1).collect()
    }

    #[test]
    fn every_begin_and_length() {
        // Miri, which takes minutes for all, does one of each kind.
        let first = |all: usize| if cfg!(miri) { 1 } else { all };
        for size in [16, 8, 4, 2, 1].into_iter().take(first(5)) {
            for count in [3, 1, 5].into_iter().take(first(3)) {
                let begins = [(64, 16), (64, 0), (64, 1), (64, 63), (5, 16)];
                for (gap, begin) in begins.into_iter().take(first(5)) {
                    let block = BLOCK_BYTES / size;
                    for len in
                        [0, 1, block + 1, 3 * block - 1, 3 * block, 3 * block + 64, 5 * block + 3]
                    {
                        let plane = (len * size).next_multiple_of(64) + gap;
                        let mut out = vec![0u8; count * plane + 256];
                        let first = out.as_ptr().align_offset(64) + begin;
                        // SAFETY: the rows are inside of `out`, and each part inside of its row.
                        unsafe {
                            let dst = out.as_mut_ptr().add(first);
                            let rows = WrittenRows {
                                plane: plane as isize,
                                count,
                                streaming: true,
                                ..WrittenRows::one(dst, size, len)
                            };
                            rows.write(|dst, plane, done, len| {
                                for row in 0..count {
                                    for i in 0..len {
                                        let to = dst.offset(row as isize * plane).add(i * size);
                                        let bytes = element(row, done + i, size);
                                        to.copy_from_nonoverlapping(bytes.as_ptr(), size);
                                    }
                                }
                            });
                        }
                        rows::stream_fence();
                        let mut expected = vec![0u8; out.len()];
                        for row in 0..count {
                            for i in 0..len {
                                let at = first + row * plane + i * size;
                                expected[at..at + size].copy_from_slice(&element(row, i, size));
                            }
                        }
                        assert_eq!(out, expected, "{count} rows of {len} x {size} from {begin}");
                    }
                }
            }
        }
    }
}
