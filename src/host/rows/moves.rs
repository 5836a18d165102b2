//! Elements that are moved as they are: copies, gathers, scatters and fills of one row.
#![allow(unsafe_code, reason = "rows are raw pointers with strides in bytes")]

use super::with_width;
use crate::host::isa::with_isa;
use crate::host::simd::Isa;

/// The [`RowFn`](super::RowFn) that moves elements of one width.
///
/// # Safety
/// `len` elements at `src` and at `dst`, at their strides, at any address; the two sides are disjoint. They are as wide
/// as `T`.
pub(super) unsafe fn copy<T: Copy>(src: *const u8, ss: isize, dst: *mut u8, ds: isize, len: usize) {
    let width = size_of::<T>() as isize;
    // SAFETY: both sides are good for `len` elements at their strides, at any address, and disjoint.
    unsafe {
        if ss == width && ds == width {
            std::ptr::copy_nonoverlapping(src, dst, len * size_of::<T>());
        } else if ss == 0 && len > 0 {
            fill::<T>(dst, ds, src.cast::<T>().read_unaligned(), len);
        } else if ds == width {
            gather::<T>(src, ss, dst, len);
        } else {
            scatter::<T>(src, ss, dst, ds, len);
        }
    }
}

/// Moves `len` elements, `stride` bytes apart, to contiguous ones.
///
/// # Safety
/// `len` elements at `src`, `stride` apart; as many, contiguous, at `dst`.
pub(super) unsafe fn gather<T: Copy>(src: *const u8, stride: isize, dst: *mut u8, len: usize) {
    for i in 0..len {
        // SAFETY: `i < len`.
        unsafe {
            let x = src.offset(stride * i as isize).cast::<T>().read_unaligned();
            dst.cast::<T>().add(i).write_unaligned(x);
        }
    }
}

/// Moves elements of any stride to any stride, one by one.
///
/// # Safety
/// `len` elements on both sides, at their strides.
pub(super) unsafe fn scatter<T: Copy>(
    src: *const u8,
    ss: isize,
    dst: *mut u8,
    ds: isize,
    len: usize,
) {
    for i in 0..len as isize {
        // SAFETY: `i < len`.
        unsafe {
            let x = src.offset(ss * i).cast::<T>().read_unaligned();
            dst.offset(ds * i).cast::<T>().write_unaligned(x);
        }
    }
}

/// The bytes of an element in the opposite order; of a complex one, those of each half.
pub(super) trait ByteSwapped: Copy {
    /// The element with its bytes in the opposite order; of each half by itself if `in_halves`.
    fn byte_swapped(self, in_halves: bool) -> Self;
}

macro_rules! byte_swapped {
    ($($t:ty),*) => {$(
        impl ByteSwapped for $t {
            #[inline(always)]
            fn byte_swapped(self, in_halves: bool) -> $t {
                let all = self.swap_bytes();
                if in_halves { all.rotate_left(<$t>::BITS / 2) } else { all }
            }
        }
    )*};
}

byte_swapped!(u16, u32, u64, u128);

/// Copies as [`copy`] does, and reverses the bytes of each element; of each half of it with `HALVES`.
///
/// # Safety
/// As of [`copy`].
pub(super) unsafe fn swap<T: ByteSwapped, const HALVES: bool>(
    src: *const u8,
    ss: isize,
    dst: *mut u8,
    ds: isize,
    len: usize,
) {
    let width = size_of::<T>() as isize;
    if ss == width && ds == width {
        // SAFETY: the caller's promise.
        return unsafe { swap_elems::<T, HALVES>(src, dst, len) };
    }
    for i in 0..len as isize {
        // SAFETY: `i < len`.
        unsafe {
            let x = src.offset(ss * i).cast::<T>().read_unaligned();
            dst.offset(ds * i).cast::<T>().write_unaligned(x.byte_swapped(HALVES));
        }
    }
}

/// Does what [`swap`] does, with contiguous elements on both sides.
///
/// # Safety
/// `len` contiguous elements as wide as `T` on both sides, disjoint.
pub(super) unsafe fn swap_elems<T: ByteSwapped, const HALVES: bool>(
    src: *const u8,
    dst: *mut u8,
    len: usize,
) {
    debug_assert!(src.addr().abs_diff(dst.addr()) >= len * size_of::<T>());
    for i in 0..len {
        // SAFETY: `i < len`.
        unsafe {
            let x = src.cast::<T>().add(i).read_unaligned();
            dst.cast::<T>().add(i).write_unaligned(x.byte_swapped(HALVES));
        }
    }
}

/// Writes a value to `len` elements, `stride` bytes apart.
///
/// # Safety
/// `len` elements at `dst`, `stride` apart.
unsafe fn fill<T: Copy>(dst: *mut u8, stride: isize, value: T, len: usize) {
    if stride == size_of::<T>() as isize {
        for i in 0..len {
            // SAFETY: `i < len`.
            unsafe { dst.cast::<T>().add(i).write_unaligned(value) };
        }
    } else {
        for i in 0..len as isize {
            // SAFETY: `i < len`.
            unsafe { dst.offset(stride * i).cast::<T>().write_unaligned(value) };
        }
    }
}

/// Writes `len` contiguous elements, each the first bytes of a value. As for [`fill_row`].
pub(crate) type FillFn = unsafe fn(dst: *mut u8, value: &[u8; 16], len: usize);

/// The function that fills elements of `width` bytes with this value, and with no other: by the system's fill if its first
/// `width` bytes are all the same. A panic unless `width` is 1, 2, 4, 8 or 16.
pub(crate) fn fill_of(width: usize, value: &[u8; 16]) -> FillFn {
    let is_one_byte = value[..width].iter().all(|&byte| byte == value[0]);
    with_width!(width, T => if is_one_byte { fill_bytes::<T> } else { fill_elems::<T> })
}

/// The [`FillFn`] of a value whose bytes are all the same.
///
/// # Safety
/// Room for `len` contiguous elements as wide as `T` at `dst`; all their bytes are the value's first.
unsafe fn fill_bytes<T>(dst: *mut u8, value: &[u8; 16], len: usize) {
    debug_assert!(value[..size_of::<T>()].iter().all(|&byte| byte == value[0]));
    // SAFETY: `len` contiguous elements.
    unsafe { std::ptr::write_bytes(dst, value[0], len * size_of::<T>()) }
}

/// The [`FillFn`] of any value.
///
/// # Safety
/// Room for `len` contiguous elements as wide as `T` at `dst`.
unsafe fn fill_elems<T: Copy>(dst: *mut u8, value: &[u8; 16], len: usize) {
    debug_assert!(size_of::<T>() <= value.len());
    // SAFETY: `len` contiguous elements; `T` has at most 16 bytes and any bits are a value of it.
    unsafe {
        let value = value.as_ptr().cast::<T>().read_unaligned();
        fill::<T>(dst, size_of::<T>() as isize, value, len);
    }
}

/// Writes `len` elements of `width` bytes, `dst_stride` bytes apart, each the first `width` bytes of `value`.
///
/// # Safety
/// `dst` is good for `len` elements, `dst_stride` bytes apart, at any address.
pub(crate) unsafe fn fill_row(
    dst: *mut u8,
    dst_stride: isize,
    width: usize,
    value: &[u8; 16],
    len: usize,
) {
    debug_assert!(width <= value.len());
    if dst_stride == width as isize {
        // SAFETY: `len` contiguous elements of this width.
        return unsafe { fill_of(width, value)(dst, value, len) };
    }
    with_width!(width, T => {
        // SAFETY: `T` has `width <= 16` bytes and any bits are a value of it.
        unsafe { fill::<T>(dst, dst_stride, value.as_ptr().cast::<T>().read_unaligned(), len) }
    })
}

/// Copies bytes; `streaming` keeps the destination out of the caches, and asks for a
/// [`stream_fence`] before another thread may read it.
///
/// # Safety
/// `len` bytes on both sides, disjoint.
#[inline]
pub(crate) unsafe fn copy_bytes(src: *const u8, dst: *mut u8, len: usize, streaming: bool) {
    debug_assert!(src.addr().abs_diff(dst.addr()) >= len);
    // SAFETY: the caller's promise; the processor runs what is chosen.
    unsafe {
        match streaming {
            true => with_isa!(I => stream::<I>(src, dst, len)),
            false => std::ptr::copy_nonoverlapping(src, dst, len),
        }
    }
}

/// Copies bytes around the caches, if `I` is for a processor with such stores, else through them.
///
/// # Safety
/// The processor runs `I`; `len` bytes on both sides, disjoint.
unsafe fn stream<I: Isa>(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if I::AVX2 {
        // SAFETY: the caller's promise.
        return unsafe { crate::host::simd::x86::stream(src, dst, len) };
    }
    // SAFETY: as above.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
}

/// Orders what [`copy_bytes`] streamed before what this thread stores later.
pub(crate) fn stream_fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // Miri has one order of stores and no such instruction.
    {
        #[allow(unused_unsafe, reason = "unsafe in Rust 1.85 and safe since")]
        // SAFETY: SSE is part of x86-64.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }
}
