//! [`StorageWatch`]: the address that memory had at its import. Its owner is held and may still move it, as `resize_` and
//! `share_memory_` do; a move is noticed before the memory is read.
//!
//! The problem: a list keeps the addresses of thousands of samples, and before each use all of them have to be those of their
//! memory. To ask torch for one is a call of Python.
//!
//! ```text
//! Word       the word in which the owner has the address is still the address of the import: one load
//! IMMOVABLE  a word as well, which never changes: memory that its owner does not move
//! Storage    no word is known: the storage is asked, by a tensor over it that tells its address for reading
//! Any        a tensor over several of these
//! ```
//!
//! ```text
//! find_moved  a loop over words, up to a watch whose word has changed or that has none; without such a one nothing was moved
//! search      from there on each is asked, which may run Python code
//! is          watches of one word or one storage are one: rows of a tensor have one for all
//! ```
//!
//! An import for each use would be simpler, but takes 63 to 110 ns a sample, where `take` from a list takes 2.4. Without words a
//! sample that a list keeps takes 92 ns to import, with them 46.
#![allow(unsafe_code)] // Words of foreign objects.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use pyo3::{ffi, intern};
use windrow::error::Mismatch;
use windrow::Error;

use crate::ground::errors::answered;
use crate::ground::reserve::{check_small_memory, out_of_memory};
use crate::ownership::column::{Column, Entries, Entry};
use crate::ownership::release::release_objects;
use crate::private_layouts::HAS_LOCK;

/// The address of a sample's memory at its import, and a way to see whether that has changed.
#[derive(Clone)]
pub(crate) enum StorageWatch {
    /// The word in which its owner has the address, and that address.
    Word(NonNull<AtomicUsize>, usize),
    /// No word has it.
    Recheck(Arc<Recheck>),
}

const _: () = assert!(size_of::<StorageWatch>() == 16);

/// The object that is asked for its address.
pub(crate) enum Recheck {
    /// A torch storage, held by the same list.
    Storage(StorageAddress),
    /// Any of the places of a tensor over several of them, which the same list holds.
    Any(StorageWatches),
}

/// A storage, and the address that its memory had.
pub(crate) struct StorageAddress {
    storage: *mut ffi::PyObject,
    address: usize,
    /// A tensor of the storage, made when the address is asked for again: a storage tells it only as memory to be written to,
    /// which is moved if it is shared with a lazy clone. `None` where torch makes no such tensor.
    alias: PyOnceLock<Option<Py<PyAny>>>,
}

// SAFETY: words of objects that are held, read as atomics; Python objects are used attached only.
unsafe impl Send for StorageWatch {}
// SAFETY: as above.
unsafe impl Sync for StorageWatch {}
// SAFETY: as above.
unsafe impl Send for Recheck {}
// SAFETY: as above.
unsafe impl Sync for Recheck {}

/// The word of memory that does not move.
static IMMOVABLE: AtomicUsize = AtomicUsize::new(0);

impl StorageWatch {
    /// Watches a torch storage, which the caller keeps as long as the watch: the watch holds no reference.
    pub fn for_storage(storage: &Bound<'_, PyAny>) -> PyResult<StorageWatch> {
        let (storage, address) = (storage.as_ptr(), data_ptr(storage)?);
        check_small_memory()?;
        let watched = StorageAddress { storage, address, alias: PyOnceLock::new() };
        Ok(StorageWatch::Recheck(Arc::new(Recheck::Storage(watched))))
    }

    /// False if the memory is where it was; true if it was moved, or an object has to be asked. Runs no Python code.
    #[inline]
    fn may_have_moved(&self) -> bool {
        match self {
            // SAFETY: the word of a live object, as `push_word` was promised, or a static.
            StorageWatch::Word(word, address) => unsafe { address_in(*word) != *address },
            StorageWatch::Recheck(_) => true,
        }
    }

    /// Whether the memory was moved. May run Python code.
    fn has_moved(&self, py: Python<'_>) -> PyResult<bool> {
        match self {
            StorageWatch::Word(..) => Ok(self.may_have_moved()),
            StorageWatch::Recheck(ask) => match &**ask {
                Recheck::Storage(watched) => watched.has_changed(py),
                Recheck::Any(watches) => Ok(watches.find_moved(py)?.is_some()),
            },
        }
    }
}

impl StorageAddress {
    /// Whether the memory is elsewhere now. Leaves it shared if it is.
    fn has_changed(&self, py: Python<'_>) -> PyResult<bool> {
        // SAFETY: held with the samples; attached.
        let storage = unsafe {
            debug_assert!(!HAS_LOCK || ffi::Py_REFCNT(self.storage) > 0);
            Bound::from_borrowed_ptr(py, self.storage)
        };
        // A tensor without elements has no address.
        let alias = match storage.call_method0(intern!(py, "nbytes"))?.extract()? {
            0 => None,
            1_usize.. => self.alias(&storage)?,
        };
        let address = match alias {
            Some(alias) => alias.call_method0(py, intern!(py, "const_data_ptr"))?.extract(py)?,
            None => data_ptr(&storage)?,
        };
        Ok(address != self.address)
    }

    /// The tensor over the storage.
    fn alias(&self, storage: &Bound<'_, PyAny>) -> PyResult<Option<&Py<PyAny>>> {
        let py = storage.py();
        if self.alias.get(py).is_none() {
            // Not under the lock: a mode of torch's runs Python code, which may ask for the same address.
            // One that a mode refuses is made the next time.
            let Ok(made) = answered(py, alias_of(storage))? else { return Ok(None) };
            drop(self.alias.set(py, made));
        }
        Ok(self.alias.get(py).and_then(Option::as_ref))
    }
}

impl Drop for StorageAddress {
    fn drop(&mut self) {
        // torch frees tensors over our memory on threads that PyO3 takes for attached.
        if let Some(alias) = self.alias.take().flatten() {
            release_objects(vec![Some(alias)]);
        }
    }
}

/// A tensor of all bytes of a torch storage; `None` if it cannot tell an address for reading, as those of older releases, or is
/// not of this storage, as in a mode of tensors without memory.
fn alias_of(storage: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyAny>>> {
    let torch = storage.py().import("torch")?;
    let kwargs = PyDict::new(storage.py());
    kwargs.set_item("dtype", torch.getattr("uint8")?)?;
    kwargs.set_item("device", storage.getattr("device")?)?;
    let alias =
        torch.call_method("empty", (0,), Some(&kwargs))?.call_method1("set_", (storage,))?;
    let is_its = alias.call_method0("untyped_storage")?.is(storage);
    Ok((is_its && alias.hasattr("const_data_ptr")?).then(|| alias.unbind()))
}

/// The address in a word.
///
/// # Safety
/// The word of a live object.
#[inline]
pub(crate) unsafe fn address_in(word: NonNull<AtomicUsize>) -> usize {
    debug_assert!(word.is_aligned());
    // SAFETY: the caller's promise. Another thread may be moving the memory.
    unsafe { word.as_ref() }.load(Ordering::Relaxed)
}

/// The address that a torch storage gives of its memory.
fn data_ptr(storage: &Bound<'_, PyAny>) -> PyResult<usize> {
    storage.call_method0(intern!(storage.py(), "data_ptr"))?.extract()
}

/// The places of a list of samples, or of one tensor.
pub(crate) type StorageWatches = Column<StorageWatch>;

impl Entry for StorageWatch {
    const IS_REFERENCE: bool = false;

    /// The watch of memory that does not move.
    fn none() -> StorageWatch {
        StorageWatch::Word(NonNull::from(&IMMOVABLE), 0)
    }

    /// Whether two places change together: those of one word, one storage or one list of places.
    #[inline]
    fn is(&self, other: &StorageWatch) -> bool {
        match (self, other) {
            (StorageWatch::Word(word, _), StorageWatch::Word(other, _)) => word == other,
            (StorageWatch::Recheck(recheck), StorageWatch::Recheck(other)) => {
                match (&**recheck, &**other) {
                    (Recheck::Storage(one), Recheck::Storage(other)) => {
                        one.storage == other.storage
                    }
                    _ => Arc::ptr_eq(recheck, other),
                }
            }
            _ => false,
        }
    }

    fn copied(&self, _: Python<'_>) -> StorageWatch {
        self.clone()
    }
}

impl Entries<StorageWatch> {
    /// Adds the watch of the next sample, which is number `index`, by the word in which its owner has the address.
    ///
    /// # Safety
    /// The word of a live object, kept as long as the place.
    #[inline]
    pub unsafe fn push_word(
        &mut self,
        py: Python<'_>,
        index: usize,
        word: NonNull<AtomicUsize>,
        address: usize,
    ) -> PyResult<()> {
        debug_assert!(word.is_aligned());
        match self.0[..] {
            // Rows of one tensor.
            [StorageWatch::Word(all, _)] if all == word => return Ok(()),
            _ => {}
        }
        if self.0.len() != index {
            return self.push(py, index, StorageWatch::Word(word, address));
        }
        self.0.try_reserve(1).map_err(out_of_memory)?;
        self.0.push(StorageWatch::Word(word, address));
        Ok(())
    }

    /// Adds the watch of the next sample, whose memory its owner does not move.
    #[inline]
    pub fn push_immovable(&mut self, py: Python<'_>, index: usize) -> PyResult<()> {
        match self.0.is_empty() {
            true => Ok(()),
            false => self.push(py, index, StorageWatch::none()),
        }
    }
}

impl StorageWatches {
    /// Whether the answer is yes for all words in which owners have the addresses of samples; memory that does not move is not
    /// asked about. False if a place has no word.
    pub fn all_words(&self, is: &impl Fn(NonNull<AtomicUsize>) -> bool) -> bool {
        self.all().iter().all(|watch| match watch {
            StorageWatch::Word(word, _) => *word == NonNull::from(&IMMOVABLE) || is(*word),
            StorageWatch::Recheck(recheck) => match &**recheck {
                Recheck::Storage(..) => false,
                Recheck::Any(watches) => watches.all_words(is),
            },
        })
    }

    /// The watch of rows or pieces of a tensor, from the watches of its memory: the same word, if there is one. None or empty
    /// ones: memory that does not move.
    pub fn combined(whole: Option<&StorageWatches>) -> StorageWatch {
        match whole.map(Column::all).unwrap_or_default() {
            [] => StorageWatch::none(),
            [one] => one.clone(),
            _ => StorageWatch::Recheck(Arc::new(Recheck::Any(whole.cloned().unwrap_or_default()))),
        }
    }

    /// The position of the first sample whose memory has moved; 0 where all are in one place. Few instructions while none has.
    #[inline]
    pub fn find_moved(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        match self.all().iter().position(StorageWatch::may_have_moved) {
            None => Ok(None),
            Some(first) => self.search(py, first),
        }
    }

    /// The position of the first sample from `first` on whose memory has moved.
    #[cold]
    fn search(&self, py: Python<'_>, first: usize) -> PyResult<Option<usize>> {
        for (index, watch) in self.all().iter().enumerate().skip(first) {
            if watch.has_moved(py)? {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }
}

/// The error text for memory that has moved.
pub(super) const MOVED: &str =
    "memory that was moved or freed since, as by resize_() or share_memory_(); import it again";

/// The refusal of a sample whose owner has moved it.
pub(crate) fn moved(index: usize) -> Error {
    let expected = "memory that is where it was imported";
    Error::Layout(Box::new(Mismatch::new(Some(index), expected, MOVED)))
}
