//! `SampleList`: samples imported once. Its methods are in `classes/sample_list.rs`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use windrow::engine::Resident;
use windrow::tensor::Owner;
use windrow::Device;

use crate::engine::default::default_engine;
use crate::ground::arguments::position_of;
use crate::ground::errors::{shown, OrPyErr};
use crate::import::importer::{Importer, Reading};
use crate::import::integers::{integers, is_list};
use crate::import::tensor::tensor_of;
use crate::ownership::holder::{Holder, Visited};
use crate::samples::imported::Imported;
use crate::samples::leaf_columns::LeafColumn;
use crate::samples::trees::{is_tree, Trees};

/// Samples that are imported, checked and kept alive once. Every assembling call takes one in place of a list, and so do the functions
/// that `windrow.torch.collate_fn` makes and those of `windrow.sequence`.
///
/// The memory of torch tensors is kept as well as the tensors: after ``x.data = ...``, ``x.set_(...)`` or
/// ``module.half()`` the list still has what was imported. If the owner has moved or freed the memory by
/// ``x.resize_()``, ``x.share_memory_()``, ``x.untyped_storage().resize_()`` or NumPy's ``a.resize()``, the next use raises
/// LayoutError with the index. Moves during a call, or after the memory was exported as an array, are not noticed, nor are changes
/// that objects of other libraries make behind their own pointers.
///
/// Whether a torch tensor requires grad is asked when it is imported, not when the list is used: one that comes to require it later, or
/// was imported under ``torch.no_grad()``, is read as if it were detached. `asarray` does the same.
///
/// ``samples[i]`` is a `Tensor` over the sample's memory, or, for one of foreign byte order, which no tensor has, a copy in native order.
/// ``samples[i] = sample`` replaces one sample: the list refers to the new one from then on, and no memory is written. The old one
/// is released at once, unless another list or view has it, or work on a device reads it: Python numbers that were given together,
/// fewer than 256 to a sample, with the last of some of them (512 KiB at most). Samples cannot be deleted: `take` gives a list of those
/// to keep. A slice, like `take`, is a separate list that shares the samples: later replacements and additions do not show in it. A pickle, and so a list that is sent to
/// a process, has each sample by value, also those that share memory, as has a deep copy; `copy.copy` shares them.
///
/// Samples that refer to the list they are in are collected as any cycle of Python objects, through `take`, views, `asarray` and
/// ``out=`` too. Not seen by the collector, and kept with all that they refer to: what is exported to other libraries, until they let
/// go of it; samples that are memoryviews, were lent by a DLPack capsule, or are not on the host.
///
/// A list of trees (dicts and other mappings, lists, tuples, namedtuples, dataclasses, classes of `register_node`: what `collate`
/// takes apart) is for `collate`. Each leaf is imported once; `take` picks a sample of every leaf, ``samples[i]`` is a tree of
/// tensors in the same containers, and what is assigned or appended has the structure of the first sample: another one is refused
/// with sample and path, before anything is changed. Shapes and dtypes may differ until `collate` is called. str and bytes,
/// lists and tuples of Python numbers and objects that are collated as a whole (TensorDict, graphs of PyTorch Geometric) are
/// kept as they are. A list or tuple of Python numbers that is a sample by itself is an array-like of one dim, but for a
/// namedtuple, which is a tree. One without numbers has the dtype of the samples that come to it.
///
/// Args:
///     samples: an iterable of array-likes, of any shapes and dtypes, or of trees of one structure; or one tensor, whose rows along
///         dim 0 are registered without anything kept for each of them; or a batch, for its samples; or an Arrow array, chunked array or
///         column, whose rows are the samples, in Arrow's memory, or an Arrow table, whose rows are dicts.
///
/// Examples:
///     >>> import windrow as wr
///     >>> rows = wr.SampleList([b"ab", b"cd", b"ef"])
///     >>> wr.stack(rows.take([2, 0])).shape
///     (2, 2)
///     >>> rows[0] = b"xy"
///     >>> bytes(wr.stack(rows[:2]))
///     b'xycd'
///     >>> steps = wr.SampleList([{"x": [1.5], "n": n} for n in range(4)])
///     >>> steps[1] = {"x": [2.5], "n": 7}
///     >>> batch = wr.collate(steps.take([3, 1]), {"x": wr.Stack()})
///     >>> memoryview(batch["x"]).tolist(), memoryview(batch["n"]).tolist()
///     ([[1.5], [2.5]], [3, 7])
#[pyclass(name = "SampleList", module = "windrow", frozen, sequence)]
pub(crate) struct PySampleList {
    samples: Mutex<Versioned>,
    /// The list of one version on its device, made when first selected by indices there.
    resident: Mutex<Option<Selectable>>,
    /// Tables of earlier ones that graphs read; each keeps the samples that the graphs select from.
    in_graphs: Mutex<Vec<Resident<'static>>>,
}

/// A list whose samples are selected by indices on their device.
#[derive(Clone)]
struct Selectable {
    version: u64,
    table: Resident<'static>,
    /// What keeps all samples, and the work that they wait for: looked at once, as a list can have many more samples than are
    /// selected. `None` once the list has changed.
    owner: Option<Owner>,
}

/// The contents of a list.
pub(crate) enum ListSamples {
    Leaves(Arc<Imported>),
    Trees(Trees),
}

impl ListSamples {
    /// The same samples for another list. Runs no Python code.
    fn copied(&self, py: Python<'_>) -> ListSamples {
        match self {
            ListSamples::Leaves(imported) => ListSamples::Leaves(Arc::clone(imported)),
            ListSamples::Trees(trees) => ListSamples::Trees(trees.copied(py)),
        }
    }

    /// The same samples with new references to what keeps them, for a list that lives beside the one they are from: the collector
    /// does not see the references of samples that two lists share.
    ///
    /// # Errors
    /// MemoryError.
    pub fn unshared(mut self, py: Python<'_>) -> PyResult<ListSamples> {
        match &mut self {
            ListSamples::Leaves(imported) => Imported::make_mut(imported, py).map(drop)?,
            ListSamples::Trees(trees) => trees.unshare(py)?,
        }
        Ok(self)
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        match self {
            ListSamples::Leaves(imported) => imported.list.len(),
            ListSamples::Trees(trees) => trees.len(),
        }
    }

    /// The samples, if they are array-likes; TypeError for trees.
    fn leaves(self, py: Python<'_>) -> PyResult<Arc<Imported>> {
        match self {
            ListSamples::Leaves(imported) => Ok(imported),
            ListSamples::Trees(trees) => {
                let class = trees.class(py)?;
                Err(PyTypeError::new_err(format!(
                    "the samples of this list are trees ({class}); use wr.collate, which takes the list, or take(indices) of it"
                )))
            }
        }
    }

    /// The samples at these positions, of which negative ones count from the end; IndexError for one that is not in the list.
    pub fn taken(&self, py: Python<'_>, positions: Vec<i64>) -> PyResult<ListSamples> {
        Ok(match self {
            ListSamples::Leaves(imported) => {
                ListSamples::Leaves(Arc::new(imported.taken(py, &positions)?))
            }
            ListSamples::Trees(trees) => ListSamples::Trees(trees.taken(py, positions)?),
        })
    }
}

/// The samples as they are now.
struct Versioned {
    samples: ListSamples,
    /// The number of changes so far.
    version: u64,
}

impl PySampleList {
    /// A list of these samples, unchanged so far.
    pub fn from_samples(samples: ListSamples) -> PySampleList {
        let samples = Mutex::new(Versioned { samples, version: 0 });
        PySampleList { samples, resident: Mutex::default(), in_graphs: Mutex::default() }
    }

    /// A list of imported array-likes.
    pub fn from_imported(imported: Imported) -> PySampleList {
        PySampleList::from_samples(ListSamples::Leaves(Arc::new(imported)))
    }

    /// The samples, locked. The caller runs no Python code while it has the guard.
    fn samples(&self) -> MutexGuard<'_, Versioned> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the collector what keeps the samples, if no call has them now.
    pub fn visit(&self, visit: &PyVisit<'_>) -> Visited {
        let samples = match self.samples.try_lock() {
            Ok(samples) => samples,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            // The thread that has it does not go on while the collector runs.
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        match &samples.samples {
            ListSamples::Leaves(imported) => visit_samples(imported, visit),
            ListSamples::Trees(trees) => {
                visit.call(trees.shape())?;
                trees.leaves().try_for_each(|(_, column)| match column {
                    LeafColumn::Tensors(imported) => visit_samples(imported, visit),
                    LeafColumn::Objects(objects) if Arc::strong_count(objects) == 1 => {
                        objects.iter().try_for_each(|object| visit.call(object))
                    }
                    LeafColumn::Objects(_) => Ok(()),
                })
            }
        }
    }

    /// Empties the list, as the collector asks of one in a cycle, without a new version; its resident table stays. To release the
    /// samples can run any code.
    pub fn clear(&self) {
        let gone = std::mem::replace(
            &mut self.samples().samples,
            ListSamples::Leaves(Arc::new(Imported::default())),
        );
        drop(gone);
    }

    /// Locks the resident table of the list, which is `None` until one is made.
    fn resident(&self) -> MutexGuard<'_, Option<Selectable>> {
        self.resident.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what keeps all samples for selections by a device, whose release can run any code: before a change, for which it would
    /// share the samples' owners, and again within it, as another thread may select meanwhile.
    fn unselected(&self) -> Option<Owner> {
        self.resident().as_mut().and_then(|made| made.owner.take())
    }

    /// The samples as they are now; appending later does not change what was taken.
    pub fn snapshot(&self, py: Python<'_>) -> ListSamples {
        self.samples().samples.copied(py)
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        self.samples().samples.len()
    }

    /// The samples of `snapshot`, if they are array-likes; an error for trees.
    pub fn leaves(&self, py: Python<'_>) -> PyResult<Arc<Imported>> {
        self.snapshot(py).leaves(py)
    }

    /// The samples of `leaves`; LayoutError if the memory of a sample was moved since its import, and the error that
    /// indices on the device have had.
    pub fn unmoved(&self, py: Python<'_>, path: &str) -> PyResult<Arc<Imported>> {
        let imported = self.leaves(py)?;
        self.check_resident(py)?;
        imported.check_unmoved(py, path)?;
        Ok(imported)
    }

    /// Raises the IndexError of indices on the device that is known by now; nothing is waited for.
    pub fn check_resident(&self, py: Python<'_>) -> PyResult<()> {
        match &*self.resident() {
            Some(made) => made.table.check().or_py_err(py),
            None => Ok(()),
        }
    }

    /// Makes the samples selectable by indices on `device`, unless that was done since the last change of the list: their addresses
    /// are uploaded, which is waited for. TypeError for trees; errors as of `Engine::resident`.
    pub fn resident_on(&self, py: Python<'_>, device: Device) -> PyResult<()> {
        self.selectable_on(py, device).map(drop)
    }

    /// The samples, and what [`PySampleList::resident_on`] makes, with its owner.
    fn selectable_on(
        &self,
        py: Python<'_>,
        device: Device,
    ) -> PyResult<(Arc<Imported>, Resident<'static>, Owner)> {
        let (contents, version) = {
            let samples = self.samples();
            (samples.samples.copied(py), samples.version)
        };
        let imported = contents.leaves(py)?;
        let is_current =
            |made: &Selectable| made.version == version && made.table.device() == device;
        let known = self.resident().clone().filter(is_current);
        if let Some(Selectable { table, owner: Some(owner), .. }) = known {
            return Ok((imported, table, owner));
        }
        let list = imported.list.clone();
        let table = py.detach(|| default_engine().resident(list, device)).or_py_err(py)?;
        let mut holder = Holder::default();
        holder.owners = imported.owners.owners_to_hold().collect();
        holder.producers = imported.producers();
        let owner: Owner = Arc::new(holder);
        let made = Selectable { version, table: table.clone(), owner: Some(Arc::clone(&owner)) };
        // Released without the lock.
        let gone = self.resident().replace(made);
        if let Some(gone) = gone.filter(|gone| gone.table.is_in_graph()) {
            self.in_graphs.lock().unwrap_or_else(PoisonError::into_inner).push(gone.table);
        }
        Ok((imported, table, owner))
    }

    /// The samples at indices in the memory of a CUDA device, which are not read here; `None` for other indices, and for a list that
    /// [`PySampleList::resident_on`] never made selectable. A list that has changed since is uploaded again, which is waited for;
    /// DeviceError for indices on another device than its own.
    fn chosen(&self, indices: &Bound<'_, PyAny>) -> PyResult<Option<Imported>> {
        let py = indices.py();
        let Some(device) = self.resident().as_ref().map(|made| made.table.device()) else {
            return Ok(None);
        };
        if is_list(indices) {
            return Ok(None);
        }
        let tensor = tensor_of(indices, "indices", Reading::OWNED)?;
        if !matches!(tensor.device(), Device::Cuda(_)) {
            return Ok(None);
        }
        let (imported, table, owner) = self.selectable_on(py, device)?;
        let list = table.take(&tensor).or_py_err(py)?;
        let owners = imported.owners.selected(owner, Arc::clone(tensor.owner()));
        Ok(Some(Imported { list, owners, watches: imported.watches.clone() }))
    }

    /// The samples at these positions, as `SampleList.take` has them. Errors as of [`PySampleList::check_resident`] and of the
    /// indices.
    pub fn taken(&self, indices: &Bound<'_, PyAny>) -> PyResult<ListSamples> {
        let py = indices.py();
        let contents = self.snapshot(py);
        self.check_resident(py)?;
        if let Some(chosen) = self.chosen(indices)? {
            return Ok(ListSamples::Leaves(Arc::new(chosen)));
        }
        let (positions, _) = integers(indices, "indices", 1)?;
        contents.taken(py, positions)
    }

    /// All samples, which are array-likes, and the positions that are asked for, not yet looked up. By indices on a device the
    /// samples at these, and no positions. TypeError for trees; else errors as of [`PySampleList::taken`], without that of a
    /// position out of range.
    pub fn asked_for(
        &self,
        indices: &Bound<'_, PyAny>,
    ) -> PyResult<(Arc<Imported>, Option<Vec<i64>>)> {
        let imported = self.leaves(indices.py())?;
        self.check_resident(indices.py())?;
        if let Some(chosen) = self.chosen(indices)? {
            return Ok((Arc::new(chosen), None));
        }
        let (positions, _) = integers(indices, "indices", 1)?;
        Ok((imported, Some(positions)))
    }

    /// The position of one of `len` samples, of which a negative one counts from the end; IndexError if it is not there,
    /// TypeError for what is no int.
    pub fn position(index: &Bound<'_, PyAny>, len: usize) -> PyResult<usize> {
        let words =
            "an index of a SampleList is an int or a slice; take(indices) takes an array of them";
        match position_of(index, len, words)? {
            Some(position) => Ok(position),
            None => {
                let text = format!("index {} in a list of {len} samples", shown(index)?);
                Err(PyIndexError::new_err(text))
            }
        }
    }

    /// Reads objects to come to this list, which is not changed: array-likes or trees as the list has, for an empty list as the first
    /// object is. Errors of the importer for a tree among array-likes, those of [`Trees::read_more`] for what does not fit trees.
    /// `start`: the number of the first.
    fn read(
        &self,
        py: Python<'_>,
        objects: Vec<Bound<'_, PyAny>>,
        start: usize,
    ) -> PyResult<ListSamples> {
        let imported = match self.snapshot(py) {
            ListSamples::Leaves(imported) if imported.list.is_empty() => {
                match objects.first().map_or(Ok(false), is_tree)? {
                    true => return Trees::read(objects).map(ListSamples::Trees),
                    false => imported,
                }
            }
            ListSamples::Leaves(imported) => imported,
            ListSamples::Trees(trees) => {
                return trees.read_more(objects, start).map(ListSamples::Trees);
            }
        };
        let importer = Importer::new(py, Reading::OWNED);
        let more = imported.read_more(importer, objects, start)?;
        Ok(ListSamples::Leaves(Arc::new(more)))
    }

    /// Reads objects as the next samples of this list; on an error none.
    pub fn add(&self, py: Python<'_>, objects: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        if objects.is_empty() {
            return Ok(());
        }
        let added = self.read(py, objects, self.len())?;
        self.join(py, added)
    }

    /// Adds the samples of another list; on an error none. TypeError for samples of the other kind,
    /// and trees of another structure; the error of `check_known` where one of the lists was
    /// selected by indices on a device.
    pub fn join(&self, py: Python<'_>, mut other: ListSamples) -> PyResult<()> {
        // These are released without the lock of the list, and structures are compared without it.
        let (_gone, _emptied, _unselected);
        let mut current = loop {
            match (&self.snapshot(py), &mut other) {
                (ListSamples::Leaves(imported), ListSamples::Leaves(other)) => {
                    imported.list.check_known().and(other.list.check_known()).or_py_err(py)?;
                }
                (ListSamples::Trees(trees), ListSamples::Trees(other))
                    if !trees.is_alike(other) =>
                {
                    *other = trees.arrange(py, other)?;
                }
                // They may take the place of an empty list, with references of their own.
                (ListSamples::Leaves(_), ListSamples::Trees(other)) => other.unshare(py)?,
                (ListSamples::Trees(_), ListSamples::Leaves(other)) => {
                    Imported::make_mut(other, py).map(drop)?;
                }
                _ => {}
            }
            drop(self.unselected());
            let current = self.samples();
            match (&current.samples, &other) {
                // Another thread was the first to add to an empty list.
                (ListSamples::Trees(trees), ListSamples::Trees(other))
                    if !trees.is_alike(other) => {}
                _ => break current,
            }
        };
        current.version += 1;
        _unselected = self.unselected();
        // Columns of an empty list drop what kept the table without rows that it was.
        _emptied = (current.samples.len() == 0).then(|| current.samples.copied(py));
        match (&mut current.samples, other) {
            (ListSamples::Leaves(imported), ListSamples::Leaves(other)) => {
                Imported::make_mut(imported, py)?.join(py, &other)?;
            }
            (ListSamples::Trees(trees), ListSamples::Trees(other)) => trees.join(py, &other)?,
            (_, other) if other.len() == 0 => {}
            (contents, other) if contents.len() == 0 => {
                _gone = std::mem::replace(contents, other);
            }
            _ => return Err(no_mixture()),
        }
        Ok(())
    }

    /// Replaces the sample at a valid position of the list; on an error none. TypeError, KeyError or ValueError for a sample of
    /// the other kind, or a tree of another structure.
    pub fn replace(&self, position: usize, sample: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = sample.py();
        let other = self.read(py, vec![sample.clone()], position)?;
        // These are released without the lock of the list.
        let (_gone_leaf, _gone_tree, _unselected);
        drop(self.unselected());
        let mut current = self.samples();
        current.version += 1;
        _unselected = self.unselected();
        match (&mut current.samples, &other) {
            (ListSamples::Leaves(imported), ListSamples::Leaves(other)) => {
                _gone_leaf = Imported::make_mut(imported, py)?.replace(py, position, other)?;
            }
            (ListSamples::Trees(trees), ListSamples::Trees(other)) if trees.is_alike(other) => {
                _gone_tree = trees.replace(py, position, other)?;
            }
            _ => return Err(no_mixture()),
        }
        Ok(())
    }
}

/// Shows the collector the references of samples that no other list has.
fn visit_samples(samples: &Arc<Imported>, visit: &PyVisit<'_>) -> Visited {
    match Arc::strong_count(samples) {
        1 => samples.owners.visit(visit),
        _ => Ok(()),
    }
}

/// The TypeError of array-likes and trees in one list.
fn no_mixture() -> PyErr {
    PyTypeError::new_err("samples of a list are all array-likes or all trees of one structure")
}
