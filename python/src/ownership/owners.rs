//! [`Owners`]: what keeps the samples of a list alive.

use std::sync::Arc;

use pyo3::prelude::*;
use windrow::bindings::new_owners;
use windrow::{Device, Owner};

use crate::ground::reserve::{no_room, room_for};

/// The owners that keep the samples of a list alive.
#[derive(Clone, Default)]
pub(crate) struct Owners {
    /// Of many samples each, or of memory on a device.
    shared: Arc<Vec<Owner>>,
    /// Of one sample each, which came alone and is released with it; empty if none did.
    per_sample: Arc<Vec<Option<Owner>>>,
    /// How many samples have one of these.
    num_per_sample: usize,
}

impl Owners {
    /// Of all samples.
    pub fn of_all(owner: Owner) -> Owners {
        Owners::from_parts(Arc::new(vec![owner]), Vec::new())
    }

    /// Of one sample alone. Work on device memory is ordered by owners that are shared.
    pub fn of_one(owner: Owner, device: Option<Device>) -> Owners {
        match device {
            Some(Device::Cuda(_)) => Owners::of_all(owner),
            _ => Owners::from_parts(Arc::default(), vec![Some(owner)]),
        }
    }

    /// The owners of many samples each.
    pub fn shared(&self) -> &Arc<Vec<Owner>> {
        &self.shared
    }

    /// The owners of single samples, as one owner.
    pub fn all_per_sample(&self) -> Option<Owner> {
        (self.num_per_sample > 0).then(|| Arc::clone(&self.per_sample) as Owner)
    }

    /// The owner of a sample alone.
    pub fn of_sample(&self, index: usize) -> Option<&Owner> {
        self.per_sample.get(index).and_then(Option::as_ref)
    }

    /// Of many samples each, and of one sample each, if any has one.
    pub fn from_parts(shared: Arc<Vec<Owner>>, per_sample: Vec<Option<Owner>>) -> Owners {
        let num_per_sample = per_sample.iter().flatten().count();
        Owners { shared, per_sample: Arc::new(per_sample), num_per_sample }
    }

    /// Keeps those of the first `len` samples.
    pub fn truncate(&mut self, len: usize) {
        if let Some(per_sample) = Arc::get_mut(&mut self.per_sample) {
            per_sample.truncate(len);
            self.num_per_sample = per_sample.iter().flatten().count();
        }
    }

    /// With another one, of all samples.
    pub fn with(&self, owner: Owner) -> PyResult<Owners> {
        let mut shared = room_for(self.shared.len() + 1)?;
        shared.extend_from_slice(&self.shared);
        shared.push(owner);
        Ok(Owners { shared: Arc::new(shared), ..self.clone() })
    }

    /// The owners of the samples at these valid positions, of `len`; negative ones count from the end.
    pub fn take(&self, positions: &[i64], len: usize) -> PyResult<Owners> {
        let mut per_sample = Vec::new();
        if self.num_per_sample > 0 {
            per_sample = room_for(positions.len())?;
            per_sample.extend(positions.iter().map(|&position| {
                let position = if position < 0 { position + len as i64 } else { position };
                self.of_sample(position as usize).cloned()
            }));
        }
        Ok(Owners::from_parts(Arc::clone(&self.shared), per_sample))
    }

    /// Room for those of `other_len` more samples, and for one of each sample if any of them has one.
    pub fn reserve(&mut self, len: usize, other: &Owners, other_len: usize) -> PyResult<()> {
        let added = new_owners(&self.shared, &other.shared).len();
        if added > 0 {
            reserve_in(&mut self.shared, added)?;
        }
        if self.num_per_sample + other.num_per_sample > 0 {
            let additional = len + other_len - self.per_sample.len();
            reserve_in(&mut self.per_sample, additional)?;
        }
        Ok(())
    }

    /// Adds those of `other_len` more samples to those of `len`. There is room for them.
    pub fn extend(&mut self, len: usize, other: &Owners, other_len: usize) {
        self.add_shared(other);
        if self.num_per_sample + other.num_per_sample == 0 {
            return;
        }
        let Some(per_sample) = Arc::get_mut(&mut self.per_sample) else { return };
        per_sample.resize(len, None);
        per_sample.extend_from_slice(&other.per_sample);
        per_sample.resize(len + other_len, None);
        self.num_per_sample += other.num_per_sample;
    }

    fn add_shared(&mut self, other: &Owners) {
        let added = new_owners(&self.shared, &other.shared);
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.extend_from_slice(added);
        }
    }

    /// Puts the owner of another list's one sample in the place of a sample's, of `len`; there is room for it. Returns the
    /// owners that may be released now, which can run any code.
    pub fn replace(&mut self, len: usize, index: usize, other: &Owners) -> [Option<Owner>; 2] {
        self.add_shared(other);
        if self.num_per_sample + other.num_per_sample == 0 {
            return [None, None];
        }
        let Some(per_sample) = Arc::get_mut(&mut self.per_sample) else { return [None, None] };
        per_sample.resize(len, None);
        let old = std::mem::replace(&mut per_sample[index], other.of_sample(0).cloned());
        self.num_per_sample += other.num_per_sample;
        self.num_per_sample -= usize::from(old.is_some());
        // No sample is left that the others are for.
        let is_last = self.num_per_sample == len;
        let shared = is_last.then(|| std::mem::take(&mut self.shared) as Owner);
        [old, shared]
    }
}

/// Makes room for so many more, in a copy if others have them too.
fn reserve_in<T: Clone>(owners: &mut Arc<Vec<T>>, additional: usize) -> PyResult<()> {
    if let Some(owners) = Arc::get_mut(owners) {
        return owners.try_reserve(additional).map_err(no_room);
    }
    let mut copy = room_for(owners.len() + additional)?;
    copy.extend_from_slice(owners);
    *owners = Arc::new(copy);
    Ok(())
}
