//! [`ListTable`]: the table of a list on its device, and the indices that the device has found out of range.
#![allow(unsafe_code)] // Numbers that a kernel writes to the host's memory.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::device::DeviceBlock;
use super::pinned::PinnedBlock;
use crate::plan::Plan;
use crate::samples::SampleList;
use crate::tensor::{Error, Owner, Result};

/// The table of a list on its device, by which kernels find samples by indices on that device.
#[derive(Debug)]
pub(crate) struct ListTable {
    pub block: Option<Arc<DeviceBlock>>,
    /// The device address of the samples' addresses; 0: samples are rows from `first` on, `step` bytes apart.
    pub addresses: u64,
    pub first: u64,
    pub step: i64,
    /// The device address of each sample's `TensorMeta` position; 0: all samples have the same.
    pub metas: u64,
    pub num_metas: usize,
    pub num_listed: usize,
    /// The address and bytes of a sample of zeros: it is read for an index out of range where bytes are moved.
    pub zeros: (u64, u64),
    /// All addresses, by or.
    pub alignment: u64,
    /// Page-locked: indices out of range, of the list and of its calls.
    pub found: PinnedBlock,
    pub num_calls: AtomicU32,
    /// Whether a graph reads the table.
    pub is_in_graph: AtomicBool,
    /// What graphs need: the tables of their launches, and the owners of their calls.
    pub in_graphs: Mutex<Vec<Owner>>,
}

/// The length of [`ListTable::found`]: a call uses the slot of its number, modulo the number of slots for calls.
pub(crate) const NUM_FOUND: usize = (64 << 10) / 8;

/// The call of an index out of range that a move has met, which is that of no batch: kFoundByMove of kernels/params.h.
const MOVE: u64 = u32::MAX as u64;

/// A call whose indices may turn out to be out of range.
#[derive(Clone, Debug)]
pub(crate) struct IndexCheck {
    /// A [`ListTable`].
    pub list: Owner,
    pub call: u32,
}

impl ListTable {
    /// Keeps owners for a graph that reads the table, as long as the table is there.
    pub fn keep_for_graph(&self, owners: &[Owner]) {
        self.is_in_graph.store(true, Ordering::Relaxed);
        let mut kept = self.in_graphs.lock().unwrap_or_else(PoisonError::into_inner);
        for owner in owners {
            if !kept.iter().any(|known| Arc::ptr_eq(known, owner)) {
                kept.push(Arc::clone(owner));
            }
        }
    }

    /// The table that a device selects samples by, if it does.
    pub fn of<'t>(list: &'t SampleList<'_>) -> Option<&'t ListTable> {
        list.selection().and_then(|selection| selection.list.table.downcast_ref())
    }

    /// The table for the samples of a plan, if a device chooses them.
    pub fn in_plan<'p>(plan: &'p Plan<'_>) -> Option<&'p ListTable> {
        plan.selection().and_then(|selection| selection.list.table.downcast_ref())
    }

    /// The address of the zeros that are read for an index out of range; `None` if there are fewer than `bytes`, those
    /// of a sample.
    pub fn zeros(&self, bytes: u64) -> Option<u64> {
        (self.zeros.1 >= bytes).then_some(self.zeros.0)
    }

    /// An address that may be read in place of a sample: zeros, or else the first sample.
    pub fn any_address(&self) -> u64 {
        match self.zeros.1 {
            0 => self.first,
            _ => self.zeros.0,
        }
    }

    /// A slot of [`ListTable::found`]: slot 0 is the list's, the others those of calls. Only debug builds check that it is below
    /// [`NUM_FOUND`].
    fn number(&self, slot: usize) -> &AtomicU64 {
        debug_assert!(slot < NUM_FOUND);
        let numbers = self.found.as_ptr().cast::<AtomicU64>();
        debug_assert!(numbers.is_aligned());
        // SAFETY: aligned page-locked memory of as many numbers, zeroed when it was taken, held by
        // `self`; kernels write whole numbers to it.
        unsafe { &*numbers.add(slot) }
    }

    /// Reports an index out of range that an earlier call has met, once.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn check(&self) -> Result<()> {
        match self.number(0).swap(0, Ordering::Relaxed) {
            0 => Ok(()),
            found if found >> 32 == MOVE => {
                Err(self.out_of_range(found, "an earlier move of this list: "))
            }
            found => Err(self.out_of_range(found, "an earlier batch of this list: ")),
        }
    }

    /// Notes an index out of range that the host has met in a move, for the next [`ListTable::check`], in place of one noted
    /// before.
    pub fn note(&self, position: u32) {
        self.number(0).store(MOVE << 32 | u64::from(position), Ordering::Relaxed);
    }

    /// The [`Error::Index`] of a number that a slot had; `whose` begins its text.
    fn out_of_range(&self, found: u64, whose: &str) -> Error {
        let what = match found >> 32 == MOVE {
            true => "its pair was left out",
            false => "the batch has padding there",
        };
        Error::index(format!(
            "{whose}the index at position {} is out of range for a list of {} samples, and {what}",
            found as u32, self.num_listed
        ))
    }
}

impl IndexCheck {
    /// The call's slot in [`ListTable::found`], which later calls use too.
    pub fn slot(&self) -> usize {
        1 + self.call as usize % (NUM_FOUND - 1)
    }

    /// Reports an index out of range that the device has found in this call. The error stays, but `in_graph` it is reported
    /// once for each replay that found it. Call it when the work has ended.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn check(&self, in_graph: bool) -> Result<()> {
        let Some(list) = self.list.downcast_ref::<ListTable>() else { return Ok(()) };
        let number = list.number(self.slot());
        match number.load(Ordering::Relaxed) {
            found if found >> 32 == u64::from(self.call) => {
                if in_graph {
                    number.store(0, Ordering::Relaxed);
                }
                Err(list.out_of_range(found, ""))
            }
            _ => Ok(()),
        }
    }
}
