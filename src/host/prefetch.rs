//! [`prefetch`]: bytes that are read soon.
#![allow(unsafe_code)] // An instruction that never faults.

#[cfg(target_arch = "x86_64")]
use crate::host::policy::POLICY;

/// Prefetches the first `prefetched_bytes` of the policy of `bytes` bytes at `data`. Any address is allowed; it is not
/// read.
#[inline]
pub fn prefetch(data: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        let (mut line, bytes) = (0, bytes.min(POLICY.prefetched_bytes));
        while line < bytes {
            // SAFETY: a prefetch never faults, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(data.wrapping_add(line).cast()) };
            line += 64;
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (data, bytes);
}
