//! Keepers: each keeps one sample of a list alive and is released with it.
//!
//! The list is kept longer than the call, and its samples are replaced one by one, so that one owner of all would keep memory
//! that no sample has. What keeps a sample depends on how it was read:
//!
//! | the last sample | `Importer::keepers` at its position | who keeps the memory |
//! |---|---|---|
//! | an array of NumPy's, or anything else, in pageable memory | nothing | the object itself |
//! | a torch tensor with a storage | the storage; the tensor is in `Importer::tensors` | the storage, since the tensor can
//! exchange it |
//! | lent, by a capsule or a buffer | a holder of the loan and of the object | that holder |
//! | a Python number, or a row of some | Python's None | a holder of the numbers of all samples that were read together |
//! | a tensor of ours | the object of its list, or the tensor | that |
//! | not in pageable memory, and all that follow | Python's None | `Importer::owner`, which work on a device holds too |
//!
//! `note_keeper` fills in one position after each sample; `fill_keepers` replaces nothing by the object and None by the holder of the
//! numbers.

use pyo3::prelude::*;

use crate::ground::batch::tensor_in;
use crate::ground::reserve::{check_small_memory, out_of_memory, push_to};
use crate::import::importer::Importer;
use crate::import::routes::{ImportRoute, Lazy};
use crate::ownership::holder::{keeper_of, Holder};

impl<'py> Importer<'py> {
    /// Notes what keeps the last sample, unless the object does. Takes what lent it out of `owner`.
    #[inline]
    pub fn note_keeper(
        &mut self,
        object: &Bound<'py, PyAny>,
        route: ImportRoute,
        lazy: Lazy,
    ) -> PyResult<()> {
        let is_array = matches!(route, ImportRoute::Array | ImportRoute::ArrayStruct);
        match is_array && !self.is_lent && !self.is_on_device {
            true => Ok(()),
            false => self.note_other(object, lazy),
        }
    }

    /// Does what [`Importer::note_keeper`] does, for anything but a plain array.
    fn note_other(&mut self, object: &Bound<'py, PyAny>, lazy: Lazy) -> PyResult<()> {
        let storage = self.storage.as_ref().filter(|_| !matches!(lazy, Lazy::No));
        let storage = storage.map(|storage| storage.object.clone_ref(self.py));
        let position = self.list.len() - 1;
        if storage.is_some() {
            self.tensors.try_reserve(position + 1 - self.tensors.len()).map_err(out_of_memory)?;
            self.tensors.resize_with(position, || None);
            self.tensors.push(Some(object.clone().unbind()));
        }
        let is_lent = std::mem::take(&mut self.is_lent);
        let is_number = std::mem::take(&mut self.is_number);
        // The owner of this sample alone; the next must not be bundled with it, and the numbers of other samples are not for it.
        let loan = (is_lent && !self.is_on_device).then(|| {
            let numbers = std::mem::take(&mut self.owner.numbers);
            let loan = std::mem::take(&mut self.owner);
            (self.owner.numbers, self.owner.producers) = (numbers, loan.producers.clone());
            loan
        });
        let keeper = if self.is_on_device {
            self.owner.objects.try_reserve(2).map_err(out_of_memory)?;
            self.owner.objects.extend(storage);
            self.owner.objects.push(object.clone().unbind());
            self.py.None()
        } else if let Some(storage) = storage {
            // The loan is given back.
            storage
        } else if let Some(mut holder) = loan {
            check_small_memory()?;
            push_to(&mut holder.objects, object.clone().unbind())?;
            holder.into_object(self.py)?
        } else if is_number {
            self.py.None()
        } else if let Some(tensor) = tensor_in(object) {
            keeper_of(object, tensor)
        } else {
            return Ok(());
        };
        self.keepers.try_reserve(position + 1 - self.keepers.len()).map_err(out_of_memory)?;
        self.keepers.resize_with(position, || None);
        self.keepers.push(Some(keeper));
        Ok(())
    }

    /// Fills in the keepers of all samples of the list, which these objects are.
    pub fn fill_keepers(&mut self, objects: Vec<Bound<'py, PyAny>>) -> PyResult<()> {
        let numbers = match self.owner.numbers.is_empty() {
            true => None,
            false => {
                let mut holder = Holder::default();
                holder.numbers = std::mem::take(&mut self.owner.numbers);
                Some(holder.into_object(self.py)?)
            }
        };
        let mut noted = std::mem::take(&mut self.keepers).into_iter();
        let keeper_of = |object: Bound<'py, PyAny>| match noted.next().flatten() {
            None => Some(object.unbind()),
            Some(keeper) if keeper.is_none(self.py) => {
                numbers.as_ref().map(|numbers| numbers.clone_ref(self.py))
            }
            keeper => keeper,
        };
        // Collected into the memory of `objects`, without an allocation.
        self.keepers = objects.into_iter().map(keeper_of).collect();
        Ok(())
    }
}
