//! Reads objects one after the other, each by the route of its type.
#![allow(unsafe_code)] // Types of objects, samples copied ahead.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use pyo3::{ffi, intern};
use windrow::{Collate, Engine};

use crate::ground::batch::tensor_in;
use crate::ground::errors::OrPyErr;
use crate::ground::iterables::tuple_items;
use crate::ground::modules::{grad_is_enabled, has_tangent, records_nothing, requires_grad};
use crate::ground::reserve::{out_of_memory, push_to, try_vec};
use crate::import::array_interface::ON_HOST;
use crate::import::importer::Importer;
use crate::import::routes::{may_have_words, route_of, ImportRoute, Lazy};
use crate::ownership::storage_watch::StorageWatches;

impl<'py> Importer<'py> {
    /// Reads every sample of a tuple and keeps them alive. `stacker` may stack them meanwhile.
    pub fn import_tuple(
        &mut self,
        samples: &Bound<'py, PyTuple>,
        stacker: Option<(&Engine, &Collate)>,
    ) -> PyResult<()> {
        let mut items = try_vec(samples.len())?;
        items.extend(samples.iter_borrowed());
        self.import_items(&items, 0, stacker)?;
        match self.is_per_sample() {
            true => self.fill_keepers(tuple_items(samples)?),
            false => push_to(&mut self.owner.objects, samples.clone().into_any().unbind()),
        }
    }

    /// Reads every object of a list of our own and keeps it alive. `start`: the number of the first.
    pub fn import_objects(
        &mut self,
        samples: Vec<Bound<'py, PyAny>>,
        start: usize,
        stacker: Option<(&Engine, &Collate)>,
    ) -> PyResult<()> {
        let mut items = try_vec(samples.len())?;
        items.extend(samples.iter().map(|sample| sample.as_borrowed()));
        self.import_items(&items, start, stacker)?;
        drop(items);
        if self.is_per_sample() {
            return self.fill_keepers(samples);
        }
        let objects = &mut self.owner.objects;
        objects.try_reserve(samples.len()).map_err(out_of_memory)?;
        objects.extend(samples.into_iter().map(Bound::unbind));
        Ok(())
    }

    /// Reads one object, which is number `index` of its list. The caller keeps it alive as long as `owner`.
    pub fn import_one(&mut self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        self.import_items(&[object.as_borrowed()], index, None)
    }

    /// Reads objects. `start`: the number of the first in its list.
    fn import_items(
        &mut self,
        items: &[Borrowed<'_, 'py, PyAny>],
        start: usize,
        stacker: Option<(&Engine, &Collate)>,
    ) -> PyResult<()> {
        self.list.reserve(items.len()).or_py_err(self.py)?;
        if self.owned {
            self.watches.reserve(items.len())?;
        }
        let num_read = self.import_empty_rows(items, start)?;
        for (index, sample) in items.iter().enumerate().skip(num_read) {
            self.prefetch(&items[index..]);
            if let Some(path) = self.paths.get(start + index) {
                self.path.clone_from(path);
            }
            if let Err(error) = self.import(sample, start + index) {
                // The caller may release the samples now.
                self.ahead = None;
                return Err(error);
            }
            if let (0, Some((engine, collate))) = (index, stacker) {
                self.start_ahead(engine, collate, items.len());
            }
        }
        if let Some(ahead) = &mut self.ahead {
            ahead.close();
        }
        Ok(())
    }

    /// Begins to stack after the first sample. Only for samples that are read without running Python
    /// code, which might change those that are being copied.
    fn start_ahead(&mut self, engine: &Engine, collate: &Collate, count: usize) {
        if !self.is_quiet {
            return;
        }
        self.ahead = engine.start_rows(collate, self.list.meta(0), count);
        if let Some(ahead) = &mut self.ahead {
            debug_assert_eq!(self.list.len(), 1);
            // SAFETY: a sample just read, kept alive by the caller, as all are that follow.
            unsafe { ahead.push(self.list.address(0)) };
        }
    }

    /// Prefetches the memory of the samples that follow, where they are tensors of the last one's class.
    #[inline]
    fn prefetch(&self, ahead: &[Borrowed<'_, 'py, PyAny>]) {
        let Some((class, _, Lazy::Layout(torch))) = &self.last else { return };
        // SAFETY: live objects.
        unsafe {
            torch.prefetch_ahead(class.as_type_ptr(), self.owned, |steps| {
                Some(ahead.get(steps)?.as_ptr())
            })
        };
    }

    /// Reads one object. The caller keeps it alive as long as `owner` and `ahead`. Called in one place, which it
    /// becomes a part of: a call for each sample costs a twentieth of its import.
    #[inline(always)]
    fn import(&mut self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        // SAFETY: a live object has a type.
        let class = unsafe { ffi::Py_TYPE(object.as_ptr()) };
        let (route, lazy) = match &self.last {
            Some((last, route, lazy)) if last.as_type_ptr() == class => (*route, *lazy),
            _ => {
                (self.ahead, self.is_unrecorded) = (None, false);
                // `route_of` may run Python code, which may give the object another class.
                let class = object.get_type();
                let (route, lazy) = route_of(object)?;
                self.last = Some((class, route, lazy));
                if let ImportRoute::Exchange { api, is_torch: true, .. } = route {
                    self.owner.producers.torch = Some(api);
                }
                (route, lazy)
            }
        };
        // The question is asked before memory is lent: the answer may come from Python code of the caller's, such as a
        // `TorchFunctionMode`, which can resize the tensor.
        match lazy {
            Lazy::No => {}
            // SAFETY: a live object of a class that has words.
            Lazy::Layout(torch) if unsafe { torch.is_plain(object.as_ptr()) } => {}
            _ => self.ask_lazy(object, (route, lazy), index)?,
        }
        if self.owned {
            // The question is asked before memory is lent, for the same reason.
            self.hold_storage(object, lazy)?;
        }
        self.read(object, (route, lazy), index)?;
        if self.owned {
            if self.is_lent {
                self.check_lender(route, lazy)?;
            }
            self.check_writable(index)?;
            self.watch_storage(object, route, lazy)?;
            if self.is_per_sample() {
                self.note_keeper(object, route, lazy)?;
            }
        }
        Ok(())
    }

    /// Reads an object by its route.
    #[inline(always)] // As `import`.
    fn read(
        &mut self,
        object: &Bound<'py, PyAny>,
        (route, lazy): (ImportRoute, Lazy),
        index: usize,
    ) -> PyResult<()> {
        match route {
            ImportRoute::Exchange { api, is_torch } => {
                self.import_exchanged(object, api, is_torch, lazy, index)
            }
            ImportRoute::Tensor | ImportRoute::Batch => match tensor_in(object) {
                Some(tensor) => self.push_tensor(tensor, index),
                None => self.import_by_protocol(object, index),
            },
            ImportRoute::Array => self.import_array(object, index),
            ImportRoute::ArrayStruct => self.import_array_struct(object, index),
            ImportRoute::Number => self.import_number(object, index),
            ImportRoute::Scalar(dtype) => self.import_scalar(object, dtype, index),
            ImportRoute::Row if self.rows => self.import_row(object, index),
            ImportRoute::Row => self.refuse_row(object, index),
            ImportRoute::Tracer => self.refuse_traced(object, index),
            // Most are then refused for the dtype that it tells.
            ImportRoute::Described => {
                let found = object.getattr(intern!(self.py, "__array_interface__"))?;
                self.import_interface(object, found, ON_HOST, index)
            }
            ImportRoute::Masked => {
                let mask = object.getattr(intern!(self.py, "mask"))?;
                if mask.call_method0(intern!(self.py, "any"))?.is_truthy()? {
                    let (expected, got) = ("an array without a mask", "one with masked values");
                    return Err(self.layout_error(index, expected, got));
                }
                self.import_by_protocol(object, index)
            }
            ImportRoute::Protocols => self.import_by_protocol(object, index),
        }
    }

    /// Reads rows without numbers at the head of a list and the first sample that says their dtype. Gives
    /// the number of samples read: 0 if the head is no such row, all are, or samples were read before.
    fn import_empty_rows(
        &mut self,
        items: &[Borrowed<'_, 'py, PyAny>],
        start: usize,
    ) -> PyResult<usize> {
        let is_empty = |item: &Borrowed<'_, 'py, PyAny>| {
            let empty_list = item.cast_exact::<PyList>().is_ok_and(|list| list.is_empty());
            empty_list || item.cast_exact::<PyTuple>().is_ok_and(|tuple| tuple.is_empty())
        };
        let count = items.iter().take_while(|item| is_empty(item)).count();
        if !self.rows || count == 0 || count == items.len() || !self.list.is_empty() {
            return Ok(0);
        }
        self.import_one(&items[count], start + count)?;
        let first = std::mem::take(&mut self.list);
        let first_watch = StorageWatches::from(std::mem::take(&mut self.watches));
        let first_keeper = std::mem::take(&mut self.keepers).pop().flatten();
        let first_tensor = std::mem::take(&mut self.tensors).pop().flatten();
        self.empty_dtype = first.meta(0).dtype.native();
        for (index, item) in items[..count].iter().enumerate() {
            self.import_one(item, start + index)?;
        }
        self.list.extend(&first).map_err(|error| self.error(error, start + count))?;
        self.watches.push(self.py, count, first_watch.entry(self.py, 0))?;
        self.keepers.resize_with(count, || None);
        self.keepers.push(first_keeper);
        if first_tensor.is_some() {
            self.tensors.resize_with(count, || None);
            self.tensors.push(first_tensor);
        }
        Ok(count + 1)
    }

    /// Whether torch records nothing now, so that a sample may require grad. A yes to a tensor of torch's exchange API
    /// holds for all of its class that follow it. Where torch is asked, `ahead` ends.
    fn is_unrecorded(&mut self, route: ImportRoute) -> PyResult<bool> {
        if self.is_unrecorded {
            return Ok(true);
        }
        self.ahead = None;
        let is_unrecorded = records_nothing(self.py)?;
        self.is_unrecorded =
            is_unrecorded && matches!(route, ImportRoute::Exchange { is_torch: true, .. });
        Ok(is_unrecorded)
    }

    /// Refuses a torch tensor that has a part in gradients, as a batch has none, one whose memory does not hold its values: torch
    /// keeps conjugation and negation as a bit beside the memory; and one of a dtype that [`Importer::check_small`] refuses.
    #[cold]
    fn ask_lazy(
        &mut self,
        object: &Bound<'py, PyAny>,
        (route, lazy): (ImportRoute, Lazy),
        index: usize,
    ) -> PyResult<()> {
        if let Lazy::Layout(torch) = lazy {
            debug_assert!(may_have_words(object));
            // SAFETY: a live object of a class that has words.
            let has_its_values = unsafe { torch.has_its_values(object.as_ptr()) };
            if has_its_values && self.is_unrecorded(route)? {
                return Ok(());
            }
        }
        self.ahead = None;
        if requires_grad(object)? && grad_is_enabled(self.py)? {
            let op =
                self.form.map(|form| format!("windrow.torch.ops.{form} keeps gradients; else "));
            let got = format!(
                "one that requires grad; {}detach() it, or call within torch.no_grad()",
                op.unwrap_or_default()
            );
            return Err(self.layout_error(index, "a tensor that does not require grad", &got));
        }
        if has_tangent(object)? {
            let got =
                "a dual tensor; unpack_dual(tensor).primal of torch.autograd.forward_ad has none";
            return Err(self.layout_error(index, "a tensor without a tangent", got));
        }
        self.check_small(object, index)?;
        for question in [intern!(self.py, "is_neg"), intern!(self.py, "is_conj")] {
            if object.call_method0(question)?.is_truthy()? {
                let expected = "memory that holds the values";
                let got =
                    "a lazily conjugated or negated view; call resolve_conj() or resolve_neg()";
                return Err(self.layout_error(index, expected, got));
            }
        }
        Ok(())
    }
}
