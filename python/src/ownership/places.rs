//! Where memory that outlives a call lay when it was imported. Its owner is held and may still move it, as
//! `resize_` and `share_memory_` do; that is noticed before the memory is read.
#![allow(unsafe_code)] // Words of foreign objects.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::{ffi, intern};
use windrow::{Error, Mismatch};

use crate::ground::reserve::{check_small_room, no_room, push_to, room_for};

/// Where the memory of a sample lay.
#[derive(Clone)]
pub(crate) enum Place {
    /// The word in which its owner has the address, and that address.
    Word(NonNull<AtomicUsize>, usize),
    /// No word has it.
    Ask(Arc<Ask>),
}

const _: () = assert!(size_of::<Place>() == 16);

/// Whom to ask for a place.
pub(crate) enum Ask {
    /// A torch storage, held by the same list, and the address of its memory.
    Storage(*mut ffi::PyObject, usize),
    /// Any of the places of a tensor over several of them, which the same list holds.
    Any(Places),
}

// SAFETY: words of objects that are held, read as atomics; Python objects are used attached only.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}
// SAFETY: as above.
unsafe impl Send for Ask {}
// SAFETY: as above.
unsafe impl Sync for Ask {}

/// The word of memory that does not move.
static STILL: AtomicUsize = AtomicUsize::new(0);

impl Place {
    fn still() -> Place {
        Place::Word(NonNull::from(&STILL), 0)
    }

    /// Of a torch storage, which is kept as long as the place.
    pub fn of_storage(storage: &Bound<'_, PyAny>) -> PyResult<Place> {
        let address = data_ptr(storage)?;
        check_small_room()?;
        Ok(Place::Ask(Arc::new(Ask::Storage(storage.as_ptr(), address))))
    }

    /// Whether two places change together.
    #[inline]
    fn is(&self, other: &Place) -> bool {
        match (self, other) {
            (Place::Word(own, _), Place::Word(other, _)) => own == other,
            (Place::Ask(own), Place::Ask(other)) => match (&**own, &**other) {
                (Ask::Storage(own, _), Ask::Storage(other, _)) => own == other,
                _ => Arc::ptr_eq(own, other),
            },
            _ => false,
        }
    }

    /// False if the memory is where it was; of a place that is to be asked for, true.
    #[inline]
    fn may_have_moved(&self) -> bool {
        match self {
            // SAFETY: by `push_word`, or a static.
            Place::Word(word, address) => unsafe { address_in(*word) != *address },
            Place::Ask(_) => true,
        }
    }

    fn has_moved(&self, py: Python<'_>) -> PyResult<bool> {
        match self {
            Place::Word(..) => Ok(self.may_have_moved()),
            Place::Ask(ask) => match &**ask {
                Ask::Storage(storage, address) => {
                    // SAFETY: held with the samples; attached.
                    let storage = unsafe { Bound::from_borrowed_ptr(py, *storage) };
                    Ok(data_ptr(&storage)? != *address)
                }
                Ask::Any(places) => Ok(places.find_moved(py)?.is_some()),
            },
        }
    }
}

/// The address in a word.
///
/// # Safety
/// The word of a live object.
#[inline]
pub(crate) unsafe fn address_in(word: NonNull<AtomicUsize>) -> usize {
    // SAFETY: the caller's promise. Another thread may be moving the memory.
    unsafe { word.as_ref() }.load(Ordering::Relaxed)
}

fn data_ptr(storage: &Bound<'_, PyAny>) -> PyResult<usize> {
    storage.call_method0(intern!(storage.py(), "data_ptr"))?.extract()
}

/// The places of a list of samples, or of one tensor: none if no memory can move, one if all samples have the same, or one for
/// each sample.
#[derive(Clone, Default)]
pub(crate) struct Places(Arc<PlaceTable>);

/// The same of samples that are being imported.
#[derive(Default)]
pub(crate) struct PlaceTable(Vec<Place>);

impl PlaceTable {
    /// Makes room for the places of so many more samples.
    pub fn reserve(&mut self, count: usize) -> PyResult<()> {
        self.0.try_reserve_exact(count).map_err(no_room)
    }

    /// The next sample's, which is number `index`, by the word in which its owner has the address.
    ///
    /// # Safety
    /// The word of a live object, kept as long as the place.
    #[inline]
    pub unsafe fn push_word(
        &mut self,
        index: usize,
        word: NonNull<AtomicUsize>,
        address: usize,
    ) -> PyResult<()> {
        if self.0.len() != index || index == 1 {
            return self.push(index, Place::Word(word, address));
        }
        self.0.try_reserve(1).map_err(no_room)?;
        self.0.push(Place::Word(word, address));
        Ok(())
    }

    /// The next sample's, which is number `index`.
    #[inline(never)]
    pub fn push(&mut self, index: usize, place: Place) -> PyResult<()> {
        if self.0.len() == 1 && self.0[0].is(&place) {
            return Ok(());
        }
        if self.0.len() < index {
            // Those before it have one place together, or none that moves.
            self.0.try_reserve(index + 1 - self.0.len()).map_err(no_room)?;
            let before = self.0.pop().unwrap_or_else(Place::still);
            self.0.resize(index, before);
        }
        push_to(&mut self.0, place)
    }

    /// The place of a tensor of ours, by those of its memory: of the same word as of the sample that it is, if it is one.
    pub fn push_tensor(&mut self, index: usize, places: Option<&Places>) -> PyResult<()> {
        match places {
            Some(places) if !places.is_empty() => self.push(index, places.together()),
            _ => self.push_still(index),
        }
    }

    /// The place of a sample of another list.
    pub fn push_from(&mut self, index: usize, other: &Places, from: usize) -> PyResult<()> {
        match other.is_empty() {
            true => self.push_still(index),
            false => self.push(index, other.place(from)),
        }
    }

    /// A sample whose memory its owner does not move.
    #[inline]
    pub fn push_still(&mut self, index: usize) -> PyResult<()> {
        match self.0.is_empty() {
            true => Ok(()),
            false => self.push(index, Place::still()),
        }
    }
}

impl From<PlaceTable> for Places {
    fn from(mut table: PlaceTable) -> Places {
        table.0.shrink_to_fit();
        Places(Arc::new(table))
    }
}

impl Places {
    /// Of rows or pieces of a tensor, by the places of its memory.
    pub fn of_parts(whole: Option<&Places>) -> PyResult<Places> {
        let mut all = PlaceTable::default();
        all.push_tensor(0, whole)?;
        Ok(Places::from(all))
    }

    fn all(&self) -> &[Place] {
        &self.0 .0
    }

    pub fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    /// Whether all samples have one place, if any.
    pub fn are_one(&self) -> bool {
        self.all().len() < 2
    }

    /// The place of what is over all of the samples, of which there are some.
    fn together(&self) -> Place {
        match self.all() {
            [one] => one.clone(),
            _ => Place::Ask(Arc::new(Ask::Any(self.clone()))),
        }
    }

    /// The place of a sample.
    fn place(&self, index: usize) -> Place {
        match self.all() {
            [] => Place::still(),
            [one] => one.clone(),
            places => places[index].clone(),
        }
    }

    /// The places of the samples at these valid positions, of `len`; negative ones count from the end.
    pub fn take(&self, positions: &[i64], len: usize) -> PyResult<Places> {
        if positions.is_empty() {
            return Ok(Places::default()); // Whose owners may go.
        }
        if self.are_one() {
            return Ok(self.clone());
        }
        let (places, mut taken) = (self.all(), room_for(positions.len())?);
        taken.extend(positions.iter().map(|&position| {
            let end = if position < 0 { len as i64 } else { 0 };
            places[(position + end) as usize].clone()
        }));
        Ok(Places(Arc::new(PlaceTable(taken))))
    }

    /// The place of one sample.
    pub fn at(&self, index: usize) -> PyResult<Places> {
        self.take(&[index as i64], 0)
    }

    /// Makes each of `len` samples have a place of its own, if one of them or another has one that can change. Says
    /// whether there are places.
    pub fn spread(&mut self, len: usize, other: &Places) -> PyResult<bool> {
        if self.is_empty() && other.is_empty() {
            return Ok(false);
        }
        if self.all().len() != len || Arc::get_mut(&mut self.0).is_none() {
            let mut places = room_for(len)?;
            places.extend((0..len).map(|index| self.place(index)));
            self.0 = Arc::new(PlaceTable(places));
        }
        Ok(true)
    }

    /// The place of the first sample of another list in place of that of a sample, after `spread`. What it was so far, the
    /// release of which can run any code.
    pub fn replace(&mut self, index: usize, other: &Places) -> Option<Place> {
        let place = Arc::get_mut(&mut self.0)?.0.get_mut(index)?;
        Some(std::mem::replace(place, other.place(0)))
    }

    /// Adds those of another list to these, of `len` samples, and does the rest; on an error nothing is added.
    pub fn extend(
        &mut self,
        len: usize,
        other: &Places,
        other_len: usize,
        rest: impl FnOnce() -> PyResult<()>,
    ) -> PyResult<()> {
        if len == 0 {
            *self = Places::default(); // That of a table without rows is for none.
        }
        if self.is_empty() && other.is_empty() {
            return rest();
        }
        if Arc::get_mut(&mut self.0).is_none() {
            let mut copy = room_for(self.all().len() + other_len)?;
            copy.extend_from_slice(self.all());
            self.0 = Arc::new(PlaceTable(copy));
        }
        let table = Arc::get_mut(&mut self.0).expect("just made");
        let before = table.0.len();
        let add = |index| table.push_from(len + index, other, index);
        let done = (0..other_len).try_for_each(add).and_then(|()| rest());
        if done.is_err() {
            table.0.truncate(before);
        }
        done
    }

    /// The first of the samples whose memory has moved. Few instructions while none has.
    #[inline]
    pub fn find_moved(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        match self.all().iter().position(Place::may_have_moved) {
            None => Ok(None),
            Some(first) => self.search(py, first),
        }
    }

    #[cold]
    fn search(&self, py: Python<'_>, first: usize) -> PyResult<Option<usize>> {
        for (index, place) in self.all().iter().enumerate().skip(first) {
            if place.has_moved(py)? {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Keeps those of the first `len` samples.
    pub fn truncate(&mut self, len: usize) {
        if let Some(places) = Arc::get_mut(&mut self.0) {
            places.0.truncate(len);
        }
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
