//! Calls about pages of memory, which Linux alone has. Only speed depends on them; on other systems they do nothing.
#![allow(unsafe_code)] // Calls of the system.

#[cfg(all(target_os = "linux", not(miri)))] // Miri has no pages.
pub(super) use linux::{is_resident, prefer_huge};

#[cfg(all(target_os = "linux", not(miri)))]
mod linux {
    /// A multiple of any system's page, and less than a tile of an output that is written around the caches.
    pub(super) const PAGES_BYTES: usize = 64 << 10;

    /// Asks the system for huge pages in `bytes` bytes from `start` on; a refusal changes nothing.
    /// The system refuses a `start` that is not the start of a page.
    pub fn prefer_huge(start: *mut u8, bytes: usize) {
        // SAFETY: the advice changes no contents, whatever the range, and may be refused.
        unsafe { libc::madvise(start.cast(), bytes, libc::MADV_HUGEPAGE) };
    }

    /// Whether the memory before `end` has been written to before: the first page of the 64 KiB
    /// that the byte right before `end` is in stands for it. True if the system does not say. The
    /// system zeroes a page at its first write, and then its lines are in the caches: a batch of 38
    /// MB in new shared memory took 10 to 15 % longer written around them (Sapphire Rapids).
    #[inline(never)]
    pub fn is_resident(end: *const u8) -> bool {
        let page = ((end as usize).wrapping_sub(1) & !(PAGES_BYTES - 1)) as *mut libc::c_void;
        let mut found = 1u8;
        // SAFETY: one page is asked about, and one byte is written; an address without memory is an error.
        let asked = unsafe { libc::mincore(page, 1, &mut found) } == 0;
        !asked || found & 1 == 1
    }
}

#[cfg(any(not(target_os = "linux"), miri))]
pub(super) use elsewhere::{is_resident, prefer_huge};

/// Other systems choose their pages themselves, and all memory counts as touched.
#[cfg(any(not(target_os = "linux"), miri))]
mod elsewhere {
    /// Does nothing: huge pages are asked for on Linux alone.
    pub fn prefer_huge(_: *mut u8, _: usize) {}

    /// True: the system is not asked.
    pub fn is_resident(_: *const u8) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn memory_that_was_never_written() {
        use super::linux::{is_resident, PAGES_BYTES};

        let size = 8 * PAGES_BYTES;
        // SAFETY: a mapping of its own, whose bytes are written within its size, and which is then gone.
        unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            let map = libc::mmap(std::ptr::null_mut(), size, access, flags, -1, 0);
            assert_ne!(map, libc::MAP_FAILED);
            let middle = map.cast::<u8>().add(size / 2);
            assert!(!is_resident(middle));
            middle.sub(PAGES_BYTES + 1).write_bytes(1, PAGES_BYTES);
            assert!(is_resident(middle) && !is_resident(middle.add(2 * PAGES_BYTES)));
            assert_eq!(libc::munmap(map, size), 0);
        }
        assert!(is_resident(16 as *const u8), "what cannot be asked counts as touched");
    }
}
