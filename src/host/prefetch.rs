//! [`prefetch`]: bytes that are read soon.
#![allow(unsafe_code)] // An instruction that never faults.

/// Asks for the first lines of some bytes that are read soon.
#[inline]
pub(super) fn prefetch(data: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes.min(1024)).step_by(64) {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: a prefetch never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(data.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (data, bytes);
}
