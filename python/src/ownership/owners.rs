//! [`Owners`]: what keeps the samples of a list alive.

use std::sync::Arc;

use pyo3::prelude::*;
use windrow::{new_owners, Device, Owner};

use crate::ground::reserve::{no_room, room_for};

/// What keeps the samples of a list alive.
#[derive(Clone, Default)]
pub(crate) struct Owners {
    /// Of many samples each, or of memory on a device.
    shared: Arc<Vec<Owner>>,
    /// Of one sample each, which came alone and is let go of with it; empty if none did.
    lone: Arc<Vec<Option<Owner>>>,
    /// How many samples have one of these.
    num_lone: usize,
}

impl Owners {
    /// Of all samples.
    pub fn of_all(owner: Owner) -> Owners {
        Owners { shared: Arc::new(vec![owner]), ..Owners::default() }
    }

    /// Of one sample alone. Work on device memory is ordered by owners that are shared.
    pub fn of_one(owner: Owner, device: Option<Device>) -> Owners {
        match device {
            Some(Device::Cuda(_)) => Owners::of_all(owner),
            _ => Owners { lone: Arc::new(vec![Some(owner)]), num_lone: 1, ..Owners::default() },
        }
    }

    /// Those that are of many samples.
    pub fn shared(&self) -> &Arc<Vec<Owner>> {
        &self.shared
    }

    /// All others, as one.
    pub fn others(&self) -> Option<Owner> {
        (self.num_lone > 0).then(|| Arc::clone(&self.lone) as Owner)
    }

    /// The one that a sample has for itself.
    pub fn lone(&self, index: usize) -> Option<&Owner> {
        self.lone.get(index).and_then(Option::as_ref)
    }

    /// Of samples that are in a list already, the owners of which are shared.
    pub fn again(shared: Arc<Vec<Owner>>, lone: Vec<Option<Owner>>) -> Owners {
        let num_lone = lone.iter().flatten().count();
        Owners { shared, lone: Arc::new(lone), num_lone }
    }

    /// With another one, of all samples.
    pub fn with(&self, owner: Owner) -> PyResult<Owners> {
        let mut shared = room_for(self.shared.len() + 1)?;
        shared.extend_from_slice(&self.shared);
        shared.push(owner);
        Ok(Owners { shared: Arc::new(shared), ..self.clone() })
    }

    /// Those of the samples at these positions, of `len`, which are there; negative ones count from the end.
    pub fn take(&self, positions: &[i64], len: usize) -> PyResult<Owners> {
        let mut taken = Owners { shared: Arc::clone(&self.shared), ..Owners::default() };
        if self.num_lone > 0 {
            let mut lone = room_for(positions.len())?;
            lone.extend(positions.iter().map(|&position| {
                let position = if position < 0 { position + len as i64 } else { position };
                self.lone(position as usize).cloned()
            }));
            taken = Owners::again(taken.shared, lone);
        }
        Ok(taken)
    }

    /// Room for those of `other_len` more samples, and for one of each sample if any of them has one.
    pub fn reserve(&mut self, len: usize, other: &Owners, other_len: usize) -> PyResult<()> {
        let added = new_owners(&self.shared, &other.shared).len();
        if added > 0 {
            reserve_in(&mut self.shared, added)?;
        }
        if self.num_lone + other.num_lone > 0 {
            let additional = len + other_len - self.lone.len();
            reserve_in(&mut self.lone, additional)?;
        }
        Ok(())
    }

    /// Adds those of `other_len` more samples to those of `len`. There is room for them.
    pub fn extend(&mut self, len: usize, other: &Owners, other_len: usize) {
        self.share(other);
        if self.num_lone + other.num_lone == 0 {
            return;
        }
        let Some(lone) = Arc::get_mut(&mut self.lone) else { return };
        lone.resize(len, None);
        lone.extend_from_slice(&other.lone);
        lone.resize(len + other_len, None);
        self.num_lone += other.num_lone;
    }

    fn share(&mut self, other: &Owners) {
        let added = new_owners(&self.shared, &other.shared);
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.extend_from_slice(added);
        }
    }

    /// That of the one sample of another list in place of that of a sample, of `len`. There is room for it. What may be
    /// let go of now, which can run any code.
    pub fn replace(&mut self, len: usize, index: usize, other: &Owners) -> [Option<Owner>; 2] {
        self.share(other);
        if self.num_lone + other.num_lone == 0 {
            return [None, None];
        }
        let Some(lone) = Arc::get_mut(&mut self.lone) else { return [None, None] };
        lone.resize(len, None);
        let old = std::mem::replace(&mut lone[index], other.lone(0).cloned());
        self.num_lone += other.num_lone;
        self.num_lone -= usize::from(old.is_some());
        // No sample is left that the others are for.
        let is_last = self.num_lone == len;
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
