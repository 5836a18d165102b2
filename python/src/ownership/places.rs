//! Where memory that outlives a call lay when it was imported. Its owner is held and may still move it, as
//! `resize_` and `share_memory_` do; that is noticed before the memory is read.
#![allow(unsafe_code)] // Words of foreign objects.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::{ffi, intern};
use windrow::{Error, Mismatch};

use crate::ground::reserve::{no_room, push_to, room_for};

/// The word in which an owner has the address of its memory, and that address.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    word: *const usize,
    address: usize,
}

/// Tables for memory that does not move, and for memory whose place can only be asked for.
static STILL: usize = 0;
static ASKED: usize = 0;

impl Place {
    const STILL: Place = Place { word: &STILL, address: 0 };

    /// # Safety
    /// The word of a live object, kept as long as the place.
    pub unsafe fn at(word: *const usize) -> Place {
        // SAFETY: the caller's promise.
        Place { word, address: unsafe { word.read() } }
    }

    /// Where the memory was.
    pub fn address(self) -> usize {
        self.address
    }

    /// Zero while the memory is where it was.
    #[inline]
    fn change(self) -> usize {
        self.now() ^ self.address
    }

    #[inline]
    fn now(self) -> usize {
        // SAFETY: by `at`, or a static. Another thread may be moving the memory, which a call cannot defend
        // itself against.
        unsafe { self.word.read() }
    }
}

/// Whose place no word tells.
#[derive(Clone)]
pub(crate) enum Ask {
    /// A torch storage, held by the same list, and the address of its memory.
    Storage(*mut ffi::PyObject, usize),
    /// Any of the places of a tensor over several of them, which the same list holds.
    Any(Places),
    /// The sample was replaced.
    Nothing,
}

/// The places of a list of samples, or of one tensor.
#[derive(Clone, Default)]
pub(crate) struct Places(Arc<PlaceTable>);

/// Of samples, as they are imported.
#[derive(Default)]
pub(crate) struct PlaceTable {
    places: Vec<Place>,
    /// The position among the places for each sample; empty while they are the same, or there is one for all.
    ids: Vec<u32>,
    /// The address of those is their position here, and one.
    asks: Vec<Ask>,
}

// SAFETY: words of objects that are held; Python objects are used attached only.
unsafe impl Send for PlaceTable {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for PlaceTable {}

impl PlaceTable {
    /// Makes room for the places of so many more samples.
    pub fn reserve(&mut self, count: usize) -> PyResult<()> {
        self.places.try_reserve_exact(count).map_err(no_room)
    }

    /// The next sample's, which is number `index`, and not to be asked for.
    #[inline]
    pub fn push(&mut self, index: usize, place: Place) -> PyResult<()> {
        let is_last = self.places.last().is_some_and(|last| std::ptr::eq(last.word, place.word));
        if self.ids.is_empty() && is_last && self.places.len() == 1 {
            return Ok(()); // One for all.
        }
        match self.ids.is_empty() && !is_last && self.places.len() == index {
            true => self.enter(place),
            false => self.push_among(index, place, is_last),
        }
    }

    /// As `push`, where the number of samples is not that of the places.
    #[inline(never)]
    fn push_among(&mut self, index: usize, place: Place, is_last: bool) -> PyResult<()> {
        if self.places.is_empty() && index > 0 {
            self.enter(Place::STILL)?;
        }
        let num_before = self.places.len();
        let id = num_before - usize::from(is_last);
        let is_told = id != index || !self.ids.is_empty();
        if is_told && self.ids.is_empty() {
            self.ids = room_for(self.places.capacity().max(index + 1))?;
            self.ids.extend((0..index as u32).map(|id| if num_before == 1 { 0 } else { id }));
        }
        self.ids.try_reserve(usize::from(is_told)).map_err(no_room)?;
        if !is_last {
            self.enter(place)?;
        }
        if is_told {
            self.ids.push(id as u32);
        }
        Ok(())
    }

    /// The place of a tensor of ours, by those of its memory: of the same word as of the sample that it is, if it is one.
    pub fn push_tensor(&mut self, index: usize, places: Option<&Places>) -> PyResult<()> {
        let Some(places) = places.filter(|places| !places.is_empty()) else {
            return self.push_still(index);
        };
        match places.0.places.len() == 1 {
            true => self.push_from(index, places, 0),
            false => self.push_asked(index, Ask::Any(places.clone())),
        }
    }

    /// The place of a sample of another list.
    pub fn push_from(&mut self, index: usize, other: &Places, from: usize) -> PyResult<()> {
        if other.is_empty() {
            return self.push_still(index);
        }
        match other.place(from) {
            (_, Some(ask)) => self.push_asked(index, ask),
            (place, None) => self.push(index, place),
        }
    }

    pub fn push_asked(&mut self, index: usize, ask: Ask) -> PyResult<()> {
        self.asks.try_reserve(1).map_err(no_room)?;
        let address = self.asks.len() + 1;
        self.push_among(index, Place { word: &ASKED, address }, false)?;
        self.asks.push(ask);
        Ok(())
    }

    /// A sample whose memory its owner does not move.
    #[inline]
    pub fn push_still(&mut self, index: usize) -> PyResult<()> {
        match self.places.is_empty() {
            true => Ok(()),
            false => self.push(index, Place::STILL),
        }
    }

    #[inline]
    fn enter(&mut self, place: Place) -> PyResult<()> {
        self.places.try_reserve(1).map_err(no_room)?;
        self.places.push(place);
        Ok(())
    }

    /// The place of a sample, all of which have one of their own, and what to ask if that is all that can be done.
    #[inline]
    fn enter_own(&mut self, mut place: Place, ask: Option<Ask>) -> PyResult<()> {
        if let Some(ask) = ask {
            push_to(&mut self.asks, ask)?;
            place.address = self.asks.len();
        }
        self.enter(place)
    }

    /// The position among the places of a sample.
    #[inline]
    fn id(&self, index: usize) -> usize {
        match self.ids.get(index) {
            Some(&id) => id as usize,
            None if self.places.len() == 1 => 0,
            None => index,
        }
    }

    fn has_moved(&self, py: Python<'_>, id: usize) -> PyResult<bool> {
        let place = self.places[id];
        if !std::ptr::eq(place.word, &ASKED) {
            return Ok(place.change() != 0);
        }
        match &self.asks[place.address - 1] {
            Ask::Storage(storage, address) => {
                // SAFETY: held with the samples; attached.
                let storage = unsafe { Bound::from_borrowed_ptr(py, *storage) };
                let now: usize = storage.call_method0(intern!(py, "data_ptr"))?.extract()?;
                Ok(now != *address)
            }
            Ask::Any(places) => Ok(places.find_moved(py)?.is_some()),
            Ask::Nothing => Ok(false),
        }
    }
}

impl From<PlaceTable> for Places {
    fn from(mut table: PlaceTable) -> Places {
        table.places.shrink_to_fit();
        Places(Arc::new(table))
    }
}

impl Places {
    /// Of rows or pieces of a tensor, by the places of its memory.
    pub fn of_parts(whole: Option<&Places>) -> PyResult<Places> {
        match whole {
            Some(places) if places.0.places.len() == 1 => Ok(places.clone()),
            Some(places) if !places.is_empty() => {
                let mut all = PlaceTable::default();
                all.push_asked(0, Ask::Any(places.clone()))?;
                Ok(Places::from(all))
            }
            _ => Ok(Places::default()),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.places.is_empty()
    }

    /// Whether all samples have one place, if any.
    pub fn are_one(&self) -> bool {
        self.0.places.len() < 2
    }

    /// The places of the samples at these valid positions, of `len`; negative ones count from the end.
    pub fn take(&self, positions: &[i64], len: usize) -> PyResult<Places> {
        if self.are_one() {
            return Ok(self.clone());
        }
        let PlaceTable { places, ids, asks } = &*self.0;
        let mut taken = PlaceTable::default();
        taken.reserve(positions.len())?;
        let indices = positions.iter().map(|&position| {
            let end = if position < 0 { len as i64 } else { 0 };
            (position + end) as usize
        });
        match (asks.is_empty(), ids.is_empty()) {
            (true, true) => taken.places.extend(indices.map(|index| places[index])),
            (true, false) => taken.places.extend(indices.map(|index| places[ids[index] as usize])),
            (false, _) => {
                for (place, ask) in indices.map(|index| self.place(index)) {
                    taken.enter_own(place, ask)?;
                }
            }
        }
        Ok(Places::from(taken))
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
        let is_spread = |table: &PlaceTable| table.ids.is_empty() && table.places.len() == len;
        if !Arc::get_mut(&mut self.0).is_some_and(|table| is_spread(table)) {
            let mut table = PlaceTable::default();
            table.reserve(len)?;
            for index in 0..len {
                let (place, ask) = self.place(index);
                table.enter_own(place, ask)?;
            }
            *self = Places(Arc::new(table));
        }
        let table = Arc::get_mut(&mut self.0).expect("just made");
        table.asks.try_reserve(1).map_err(no_room)?;
        Ok(true)
    }

    /// The place of a sample, and what to ask if that is all that can be done.
    fn place(&self, index: usize) -> (Place, Option<Ask>) {
        if self.is_empty() {
            return (Place::STILL, None);
        }
        let place = self.0.places[self.0.id(index)];
        let is_asked = std::ptr::eq(place.word, &ASKED);
        (place, is_asked.then(|| self.0.asks[place.address - 1].clone()))
    }

    /// The place of the first sample of another list in place of that of a sample, after `spread`. What was asked so
    /// far, the release of which can run any code.
    pub fn replace(&mut self, index: usize, other: &Places) -> Option<Ask> {
        let (mut place, ask) = other.place(0);
        let PlaceTable { places, asks, .. } = Arc::get_mut(&mut self.0)?;
        let is_new = ask.is_some();
        let old = std::ptr::eq(places[index].word, &ASKED).then(|| places[index].address);
        let gone = match old {
            Some(position) => {
                let ask = ask.unwrap_or(Ask::Nothing);
                Some(std::mem::replace(&mut asks[position - 1], ask))
            }
            None => {
                asks.extend(ask);
                None
            }
        };
        if is_new {
            place.address = old.unwrap_or(asks.len());
        }
        places[index] = place;
        gone
    }

    /// Adds those of another list to these, of `len` samples, and does the rest; on an error nothing is added.
    pub fn extend(
        &mut self,
        len: usize,
        other: &Places,
        other_len: usize,
        rest: impl FnOnce() -> PyResult<()>,
    ) -> PyResult<()> {
        if self.is_empty() && other.is_empty() {
            return rest();
        }
        if Arc::get_mut(&mut self.0).is_none() {
            let mut copy = PlaceTable::default();
            (0..len).try_for_each(|index| copy.push_from(index, self, index))?;
            *self = Places::from(copy);
        }
        let table = Arc::get_mut(&mut self.0).expect("just made");
        let before = (table.places.len(), table.ids.len(), table.asks.len());
        let add = |index| table.push_from(len + index, other, index);
        let done = (0..other_len).try_for_each(add).and_then(|()| rest());
        if done.is_err() {
            table.places.truncate(before.0);
            table.ids.truncate(before.1);
            table.asks.truncate(before.2);
        }
        done
    }

    /// The first of the samples whose memory has moved. Few instructions while none has.
    #[inline]
    pub fn find_moved(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        let change = self.0.places.iter().map(|place| place.change());
        match change.fold(0, |all, one| all | one) {
            0 => Ok(None),
            _ => self.search(py),
        }
    }

    #[cold]
    fn search(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        let PlaceTable { places, ids, .. } = &*self.0;
        let mut last = None;
        for index in 0..ids.len().max(places.len()) {
            let id = self.0.id(index);
            if last != Some(id) && self.0.has_moved(py, id)? {
                return Ok(Some(index));
            }
            last = Some(id);
        }
        Ok(None)
    }

    /// Keeps those of the first `len` samples.
    pub fn truncate(&mut self, len: usize) {
        let Some(PlaceTable { places, ids, asks }) = Arc::get_mut(&mut self.0) else { return };
        ids.truncate(len);
        let count = match ids.iter().max() {
            Some(&last) => last as usize + 1,
            None => len,
        };
        places.truncate(count);
        let is_asked = |place: &&Place| std::ptr::eq(place.word, &ASKED);
        asks.truncate(places.iter().filter(is_asked).map(|place| place.address).max().unwrap_or(0));
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
