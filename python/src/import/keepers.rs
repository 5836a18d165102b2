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
//! | a Python number, or a row of some | Python's None | a holder of the numbers of its chunk (`number_chunks`): those of a long row, or of short ones that were read together |
//! | a tensor of ours | the object of its list, or the tensor | that |
//! | not in pageable memory | the object of its list, or a holder of the object, its storage, the loan and the producers | that; work on a device holds it too |
//!
//! `note_keeper` fills in one position after each sample; `fill_keepers` replaces nothing by the object and None by a holder of numbers.

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
        let is_on_device = std::mem::take(&mut self.is_on_device);
        // The owner of this sample alone; the next must not be bundled with it, and the numbers of other samples are not for it.
        let loan = (is_lent || is_on_device).then(|| {
            let numbers = std::mem::take(&mut self.owner.numbers);
            let loan = std::mem::take(&mut self.owner);
            // It is found once for samples of one class.
            (self.owner.numbers, self.owner.producers.torch) = (numbers, loan.producers.torch);
            loan
        });
        let of_list = tensor_in(object).and_then(|tensor| keeper_of(self.py, tensor));
        let keeper = if of_list.is_some() {
            of_list
        } else if !is_on_device && storage.is_some() {
            // The loan is given back.
            storage
        } else if let Some(mut holder) = loan {
            check_small_memory()?;
            holder.objects.try_reserve(2).map_err(out_of_memory)?;
            holder.objects.extend(storage);
            holder.objects.push(object.clone().unbind());
            Some(holder.into_object(self.py)?)
        } else if is_number {
            self.owner.numbers.note_sample()?;
            Some(self.py.None())
        } else {
            None
        };
        let Some(keeper) = keeper else { return Ok(()) };
        self.keepers.try_reserve(position + 1 - self.keepers.len()).map_err(out_of_memory)?;
        self.keepers.resize_with(position, || None);
        self.keepers.push(Some(keeper));
        Ok(())
    }

    /// Fills in the keepers of all samples of the list, which these objects are.
    pub fn fill_keepers(&mut self, objects: Vec<Bound<'py, PyAny>>) -> PyResult<()> {
        let mut noted = std::mem::take(&mut self.keepers);
        let (chunks, chunk_of) = std::mem::take(&mut self.owner.numbers).into_chunks();
        let mut holders = Vec::new();
        for numbers in chunks {
            let mut holder = Holder::default();
            holder.numbers = numbers;
            push_to(&mut holders, holder.into_object(self.py)?)?;
        }
        let of_numbers = noted.iter_mut().flatten().filter(|keeper| keeper.is_none(self.py));
        for (keeper, chunk) in of_numbers.zip(chunk_of) {
            *keeper = holders[chunk].clone_ref(self.py);
        }
        let mut noted = noted.into_iter();
        let keeper_of = |object: Bound<'py, PyAny>| match noted.next().flatten() {
            None => Some(object.unbind()),
            keeper => keeper,
        };
        // Collected into the memory of `objects`, without an allocation.
        self.keepers = objects.into_iter().map(keeper_of).collect();
        Ok(())
    }
}
