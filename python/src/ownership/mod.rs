//! Owners of samples, values that are borrowed for a while, watches of their memory, and the work that has to finish first.

pub(crate) mod buffer;
pub(crate) mod child_columns;
pub(crate) mod column;
pub(crate) mod copy;
pub(crate) mod holder;
pub(crate) mod number_chunks;
pub(crate) mod owners;
pub(crate) mod producers;
pub(crate) mod ready;
pub(crate) mod release;
pub(crate) mod storage_watch;

/// The number of objects between the one whose reference is counted or released and the one whose memory is prefetched: to count
/// waits for it.
const OBJECTS_AHEAD: usize = 16;
