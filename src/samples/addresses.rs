//! [`Addresses`]: where each sample of a list begins; allocation of a list's columns.

use crate::samples::meta::TensorMeta;
use crate::tensor::{out_of_memory, Result};

/// The address of each sample.
#[derive(Clone, Debug)]
pub(super) enum Addresses {
    Each(Vec<*const u8>),
    /// `len` rows, `step` bytes apart.
    Rows {
        first: *const u8,
        step: i64,
        len: usize,
    },
}

impl Default for Addresses {
    fn default() -> Self {
        Addresses::Each(Vec::new())
    }
}

impl Addresses {
    /// The number of addresses.
    pub fn len(&self) -> usize {
        match self {
            Addresses::Each(each) => each.len(),
            Addresses::Rows { len, .. } => *len,
        }
    }

    /// The address of sample `index`, which is below `len`: that is not checked for rows.
    pub fn at(&self, index: usize) -> *const u8 {
        match self {
            Addresses::Each(each) => each[index],
            Addresses::Rows { first, step, .. } => {
                first.wrapping_offset((index as i64).wrapping_mul(*step) as isize)
            }
        }
    }

    /// The addresses as a list that can grow: rows get an entry each first. Without memory the process ends.
    #[inline]
    pub fn each(&mut self) -> &mut Vec<*const u8> {
        if let Addresses::Rows { len, .. } = *self {
            self.expand(len);
        }
        match self {
            Addresses::Each(each) => each,
            Addresses::Rows { .. } => unreachable!("rows were just expanded"),
        }
    }

    /// Turns rows into an entry each. Out of line, so that [`Addresses::each`] is small enough for a loop that appends.
    #[cold]
    fn expand(&mut self, len: usize) {
        *self = Addresses::Each((0..len).map(|index| self.at(index)).collect());
    }
}

/// Makes room for `count` entries in all; [`Error::OutOfMemory`] without memory.
pub(super) fn reserve_in_all<T>(entries: &mut Vec<T>, count: usize) -> Result<()> {
    let additional = count.saturating_sub(entries.len());
    entries.try_reserve(additional).map_err(|_| out_of_memory::<T>(count))
}

/// Ends the process, from functions that cannot return an error.
#[cold]
pub(super) fn end_without_memory() -> ! {
    std::alloc::handle_alloc_error(std::alloc::Layout::new::<TensorMeta>())
}
