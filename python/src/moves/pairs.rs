//! [`Pairs`]: the sides of `copy_many` as lists of samples.
//!
//! The problem: a side is given in one of five forms, and destinations have to be what torch allows to be written to. Errors name
//! the side, the pair and, in a tree, the path.
//!
//! ```text
//! both sides are trees   flatten_both: the leaves of `dsts` in order, those of `srcs` at the same places; each as objects
//! a SampleList           SideReader::list      imported before: its memory must be where it was
//! a list or tuple        SideReader::objects   each object is imported
//! one array or tensor    SideReader::table     its rows along dim 0
//! an Arrow array         a source alone
//! ```
//!
//! ```text
//! destinations   memory that came to be shared with a lazy clone becomes their own, before its address is read
//!                read-only memory, tensors with gradients now, inference tensors outside of their mode: an error
//!                the torch tensors among them are in `Side::torch`, whose versions the call increments
//! ```
//!
//! The import of samples alone would be simpler, but a sample may be read whatever it shares or is recorded for.

use std::sync::Arc;

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::ffi::PyTypeObject;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use windrow::error::{Mismatch, MoveSide};
use windrow::{Error, Stream};

use crate::collate::job::{is_frozen, torch_of_object, torch_of_owner, FROZEN};
use crate::ground::batch::tensor_in;
use crate::ground::errors::{at, at_pair, to_py_err};
use crate::ground::iterables::{is_text, tuple_items};
use crate::ground::modules::loaded;
use crate::ground::reserve::{push_to, try_vec};
use crate::ground::tensor::PyTensor;
use crate::import::importer::{Importer, Reading};
use crate::import::routes::{cached_route, is_array, keeps_gradients, route_of, Lazy};
use crate::import::storages::{own_all_memory, own_list_memory};
use crate::import::tensor::table_of;
use crate::ownership::holder::Holder;
use crate::ownership::storage_watch::moved;
use crate::samples::arrow::{is_arrow, samples_in};
use crate::samples::imported::Imported;
use crate::samples::list::{ListSamples, PySampleList};
use crate::samples::list_import::{self, SamplesArgument};
use crate::samples::trees::is_tree;
use crate::trees::container::ColumnPlace;
use crate::trees::flatten::{flatten, Classified, TreeRules};
use crate::trees::flatten_like::TreeNames;
use crate::trees::rules;
use crate::trees::tree_def::TreeDef;

/// Joins the names of a path.
const SEP: &str = ".";

/// One side of all pairs.
pub(super) struct Side {
    pub samples: Arc<Imported>,
    /// The torch tensors that are written to; none for sources.
    pub torch: Vec<Py<PyAny>>,
}

/// The tensors of both sides, and the path of each pair if the sides are trees.
pub(super) struct Pairs {
    pub dsts: Side,
    pub srcs: Side,
    pub paths: Vec<String>,
}

impl Pairs {
    /// Imports both sides, destinations first; `is_written` as of [`SideReader`]. TypeError if one side alone is a tree. That
    /// both have as many samples is not checked.
    pub fn read(
        dsts: &Bound<'_, PyAny>,
        srcs: &Bound<'_, PyAny>,
        stream: Option<Stream>,
        is_written: bool,
    ) -> PyResult<Pairs> {
        let py = dsts.py();
        let [to, from] = [MoveSide::Destination, MoveSide::Source]
            .map(|side| SideReader::new(side, is_written, stream));
        match (is_tree_side(dsts)?, is_tree_side(srcs)?) {
            (true, true) => {
                let side = Some(MoveSide::Destination);
                let names = TreeNames { name: "srcs", like: "destinations", side };
                let (_, paths, destinations, sources) = flatten_both(dsts, Some(srcs), names)?;
                let dsts = to.objects(py, destinations, &paths)?;
                let srcs = from.objects(py, sources, &paths)?;
                Ok(Pairs { dsts, srcs, paths })
            }
            (false, false) => {
                Ok(Pairs { dsts: to.read(dsts)?, srcs: from.read(srcs)?, paths: Vec::new() })
            }
            (is_first, _) => {
                let names = ("destinations", "sources");
                let (tree, other) = if is_first { names } else { (names.1, names.0) };
                let text = format!(
                    "the {tree} are a tree and the {other} are none; give trees of one structure, or two lists of array-likes"
                );
                Err(to.error(py, PyTypeError::new_err(text), None, ""))
            }
        }
    }
}

/// Whether a side is a tree, or a list or tuple whose first entry is one.
fn is_tree_side(side: &Bound<'_, PyAny>) -> PyResult<bool> {
    if side.is_exact_instance_of::<PyList>() || side.is_exact_instance_of::<PyTuple>() {
        return side.try_iter()?.next().map_or(Ok(false), |first| is_tree(&first?));
    }
    if side.is_instance_of::<PySampleList>() || is_array(side)? || is_arrow(side)? {
        return Ok(false);
    }
    is_tree(side)
}

/// A tree, the paths of its leaves, its leaves, and those of another tree at the same places, none without one.
type FlatPair<'py> = (TreeDef, Vec<String>, Vec<Bound<'py, PyAny>>, Vec<Bound<'py, PyAny>>);

/// Flattens a tree by [`PairRules`], and another one along its structure; an error where that differs.
pub(super) fn flatten_both<'py>(
    tree: &Bound<'py, PyAny>,
    other: Option<&Bound<'py, PyAny>>,
    names: TreeNames,
) -> PyResult<FlatPair<'py>> {
    let py = tree.py();
    let flat = flatten(py, &mut PairRules::default(), tree.clone(), String::new(), SEP);
    flat.end?;
    let (paths, leaves): (Vec<_>, Vec<_>) = flat.leaves.into_iter().unzip();
    let mut others = try_vec(leaves.len())?;
    if let Some(other) = other {
        flat.tree.flatten_up_to(
            other.clone(),
            |container, path, other| container.outputs(other, ColumnPlace::new(path, SEP), names),
            |_, leaf| push_to(&mut others, leaf),
        )?;
    }
    Ok((flat.tree, paths, leaves, others))
}

/// The rules of one tree, in which everything that is no container is a leaf.
#[derive(Default)]
struct PairRules {
    /// The class that was asked for last, and whether it is a leaf for certain.
    last: Option<(*mut PyTypeObject, bool)>,
}

impl PairRules {
    /// Whether an object is exactly a tensor of ours, a torch tensor or parameter or a NumPy array: a leaf whatever containers
    /// are registered.
    fn is_plain(&mut self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        let class = object.get_type_ptr();
        if let Some((_, is_plain)) = self.last.filter(|&(last, _)| last == class) {
            return Ok(is_plain);
        }
        let py = object.py();
        let object_type = object.get_type();
        let is = |module: &str, name: &str| {
            Ok::<_, PyErr>(loaded(py, module, name)?.is_some_and(|known| known.is(&object_type)))
        };
        let is_plain = object_type.is(py.get_type::<PyTensor>())
            || is("torch", "Tensor")?
            || is("torch.nn", "Parameter")?
            || is("numpy", "ndarray")?;
        self.last = Some((class, is_plain));
        Ok(is_plain)
    }
}

impl<'py> TreeRules<'py> for PairRules {
    type Column = Bound<'py, PyAny>;
    type Leaf = Bound<'py, PyAny>;

    fn classify(
        &mut self,
        object: Bound<'py, PyAny>,
        place: ColumnPlace<'_>,
        _: bool,
    ) -> PyResult<Classified<Self::Column, Self::Leaf>> {
        if self.is_plain(&object)? || is_text(&object) {
            return Ok(Classified::Leaf(object));
        }
        let samples = [object];
        let flattened = rules::flatten_container(&samples, place, false, None)?;
        let [object] = samples;
        Ok(match flattened {
            None => Classified::Leaf(object),
            Some(flattened) => {
                let columns = flattened.columns.into_lists()?.into_iter();
                let children = columns.filter_map(|column| column.into_iter().next()).collect();
                Classified::Container(Arc::new(flattened.container), children)
            }
        })
    }
}

/// A side of the pairs, and how it is read.
#[derive(Clone, Copy)]
pub(super) struct SideReader {
    side: MoveSide,
    /// Whether destinations will be written to, so that those that share memory with a lazy clone own it afterwards; without it
    /// read-only entries of a list of objects pass. False for sources.
    is_written: bool,
    stream: Option<Stream>,
}

impl SideReader {
    /// The reader of a side. `is_written`: whether destinations will be written to.
    pub fn new(side: MoveSide, is_written: bool, stream: Option<Stream>) -> SideReader {
        SideReader { side, is_written: is_written && side.is_written(), stream }
    }

    /// The destinations of scales, which are a tree as `dsts` if that is one; as [`SideReader::read`].
    pub fn scales(self, dsts: &Bound<'_, PyAny>, scales: &Bound<'_, PyAny>) -> PyResult<Side> {
        if !is_tree_side(dsts)? {
            return self.read(scales);
        }
        let names = TreeNames { name: "scales_out", like: "destinations", side: Some(self.side) };
        let (_, paths, _, places) = flatten_both(dsts, Some(scales), names)?;
        self.objects(dsts.py(), places, &paths)
    }

    /// Imports one side. LayoutError for destinations that are read-only or have a part in gradients now, RuntimeError for
    /// inference tensors outside of inference mode.
    fn read(self, given: &Bound<'_, PyAny>) -> PyResult<Side> {
        let py = given.py();
        if let Ok(list) = given.cast_exact::<PySampleList>() {
            return self.list(py, list.get());
        }
        match (list_import::samples_argument(given)?, self.side) {
            (SamplesArgument::Samples(tuple), _) => self.objects(py, tuple_items(&tuple)?, &[]),
            (SamplesArgument::Table, _) => self.table(given),
            (SamplesArgument::Arrow, MoveSide::Source) => {
                Ok(Side { samples: Arc::new(samples_in(given, "")?), torch: Vec::new() })
            }
            (SamplesArgument::Arrow, _) => {
                Err(self.read_only(py, "an Arrow array, which no one writes to"))
            }
        }
    }

    /// The rows of one tensor along dim 0; as [`SideReader::read`].
    fn table(self, given: &Bound<'_, PyAny>) -> PyResult<Side> {
        let py = given.py();
        if self.is_written {
            own_memory_in(given)?;
        }
        let table = table_of(given, self.argument(), self.reading())?;
        let torch = match self.side {
            MoveSide::Source => None,
            _ if table.is_read_only() => return Err(self.read_only(py, "read-only memory")),
            _ => self.without_gradients(py, torch_of_owner(py, table.owner())?, None, "")?,
        };
        let samples = Arc::new(Imported::from_rows(py, table)?);
        Ok(Side { samples, torch: torch.into_iter().collect() })
    }

    /// Samples that were imported before; as [`SideReader::read`]. LayoutError if their memory has moved, TypeError for a list
    /// of trees, the IndexError that its indices on a device have had.
    fn list(self, py: Python<'_>, list: &PySampleList) -> PyResult<Side> {
        if let ListSamples::Trees(trees) = list.snapshot(py) {
            let class = trees.class(py)?;
            let text = format!(
                "the samples of a list are trees ({class}); give a tree of lists, one for each leaf"
            );
            return Err(self.error(py, PyTypeError::new_err(text), None, ""));
        }
        let samples = list.leaves(py)?;
        list.check_resident(py)?;
        let mut torch = Vec::new();
        if self.side.is_written() {
            if self.is_written {
                own_list_memory(py, &samples.owners, &samples.watches)?;
            }
            if let Some(index) = samples.list.first_read_only() {
                if samples.list.is_all_read_only() {
                    return Err(self.read_only(py, "a SampleList in read-only memory"));
                }
                let found = Mismatch::new(Some(index), "writable memory", "read-only memory");
                let error = Error::Layout(Box::new(found));
                return Err(to_py_err(py, &error.at_side(self.side, index)));
            }
            for tensor in samples.owners.tensors() {
                let object = tensor.clone_ref(py);
                let found = match is_plain_torch(object.bind(py)) {
                    true => Some(object),
                    false => self.without_gradients(py, Some(object), None, "")?,
                };
                found.map_or(Ok(()), |tensor| push_to(&mut torch, tensor))?;
            }
            let mut add = |tensor| -> PyResult<()> {
                let tensor = self.without_gradients(py, tensor, None, "")?;
                tensor.map_or(Ok(()), |tensor| push_to(&mut torch, tensor))
            };
            // Arrays and storages, which hold nothing of torch's that is written to, are as many as samples.
            let mut skipped = None;
            for kept in samples.owners.objects() {
                let object = kept.bind(py);
                if skipped == Some(object.get_type_ptr()) {
                    continue;
                }
                let tensor = torch_of_object(py, kept)?;
                if tensor.is_none() && !holds_others(object) {
                    skipped = Some(object.get_type_ptr());
                }
                add(tensor)?;
            }
            for owner in samples.owners.shared().iter() {
                add(torch_of_owner(py, owner)?)?;
            }
        }
        match samples.watches.find_moved(py)? {
            None => Ok(Side { samples, torch }),
            Some(index) => Err(to_py_err(py, &moved(index).at_side(self.side, index))),
        }
    }

    /// Array-likes, with the path of each if they are leaves of a tree; as [`SideReader::read`].
    pub fn objects(
        self,
        py: Python<'_>,
        objects: Vec<Bound<'_, PyAny>>,
        paths: &[String],
    ) -> PyResult<Side> {
        let path_of = |index: usize| paths.get(index).map_or("", String::as_str);
        let mut torch = Vec::new();
        if self.is_written {
            objects.iter().try_for_each(own_memory_in)?;
        }
        if self.side.is_written() {
            for (index, object) in objects.iter().enumerate() {
                let (place, path) = (Some(index), path_of(index));
                let found = match (tensor_in(object), route_of(object)?.1) {
                    (Some(tensor), _) => {
                        let torch = torch_of_owner(py, tensor.owner())?;
                        self.without_gradients(py, torch, place, path)?
                    }
                    (None, Lazy::No) => None,
                    // The import refuses one with gradients.
                    (None, _) => self.unless_frozen(py, object.clone().unbind(), place, path)?,
                };
                if let Some(found) = found {
                    push_to(&mut torch, found)?;
                }
            }
        }
        let mut importer = Importer::new(py, Reading { side: Some(self.side), ..self.reading() });
        importer.paths = paths.to_vec();
        importer.import_objects(objects, 0, None)?;
        // Destinations that are read only to explain or check a call were not looked at one by one.
        if let Some(index) = importer.list.first_read_only() {
            path_of(index).clone_into(&mut importer.path);
            importer.check_writable(index)?;
        }
        let (samples, _) = Imported::from_importer(importer)?;
        Ok(Side { samples: Arc::new(samples), torch })
    }

    /// The way in which arrays are read: as owned tensors if they will be written to.
    fn reading(self) -> Reading<'static> {
        let reading = if self.is_written { Reading::OWNED } else { Reading::default() };
        Reading { rows: !self.side.is_written(), stream: self.stream, ..reading }
    }

    /// `torch` as it is, LayoutError if it has a part in gradients now, and as [`SideReader::unless_frozen`]. For one that was
    /// imported earlier: an import now would refuse it.
    fn without_gradients(
        self,
        py: Python<'_>,
        torch: Option<Py<PyAny>>,
        index: Option<usize>,
        path: &str,
    ) -> PyResult<Option<Py<PyAny>>> {
        let Some(tensor) = torch else { return Ok(None) };
        if !keeps_gradients(tensor.bind(py))? {
            return self.unless_frozen(py, tensor, index, path);
        }
        let expected = "a tensor that does not require grad";
        let got = "one that requires grad; detach() it, or call within torch.no_grad()";
        let found = match index {
            Some(index) => Mismatch::new(Some(index), expected, got),
            None => Mismatch::for_subject(self.argument(), expected, got),
        };
        let error = Error::Layout(Box::new(found));
        let error = match index {
            Some(index) => error.at_side(self.side, index),
            None => error,
        };
        Err(self.error(py, to_py_err(py, &error), index, path))
    }

    /// A torch tensor as it is, always `Some`; RuntimeError if it is an inference tensor outside of inference mode.
    #[allow(unsafe_code)]
    fn unless_frozen(
        self,
        py: Python<'_>,
        tensor: Py<PyAny>,
        index: Option<usize>,
        path: &str,
    ) -> PyResult<Option<Py<PyAny>>> {
        let object = tensor.bind(py);
        let is_plain = match route_of(object)?.1 {
            // SAFETY: a live object of a class that has words. Inference tensors have other keys than plain ones.
            Lazy::Layout(torch) => unsafe { torch.fields_of(object.as_ptr()) }.is_some(),
            _ => false,
        };
        if is_plain || !is_frozen(object)? {
            return Ok(Some(tensor));
        }
        let subject = match index {
            Some(index) => format!("{} {index}", self.side),
            None => self.argument().to_owned(),
        };
        let text = format!("{subject}{}: {FROZEN}", at(path));
        Err(self.error(py, PyRuntimeError::new_err(text), index, path))
    }

    /// The argument of `copy_many` that gives the side.
    fn argument(self) -> &'static str {
        match self.side {
            MoveSide::Destination => "dsts",
            MoveSide::Source => "srcs",
            MoveSide::Scales => "scales_out",
        }
    }

    /// The same error with `index`, `path` and this side as its attributes.
    fn error(self, py: Python<'_>, error: PyErr, index: Option<usize>, path: &str) -> PyErr {
        at_pair(py, error, self.side, index, path)
    }

    /// The LayoutError of a side that, as a whole, must not be written to: `got`.
    fn read_only(self, py: Python<'_>, got: &str) -> PyErr {
        let mismatch = Mismatch::for_subject(self.argument(), "writable memory", got);
        self.error(py, to_py_err(py, &Error::Layout(Box::new(mismatch))), None, "")
    }
}

/// Whether an object is one of ours that may hold a torch tensor: a holder, a tensor or a batch.
fn holds_others(object: &Bound<'_, PyAny>) -> bool {
    object.is_exact_instance_of::<Holder>() || tensor_in(object).is_some()
}

/// Whether an object is a torch tensor whose fields say that it may be written to here: dense, on the host, without gradients and
/// not of inference mode. False also where they do not say so.
#[allow(unsafe_code)]
fn is_plain_torch(object: &Bound<'_, PyAny>) -> bool {
    match cached_route(object) {
        // SAFETY: a live object of a class that has words.
        Some((_, Lazy::Layout(torch))) => unsafe { torch.is_plain_on_host(object.as_ptr()) },
        _ => false,
    }
}

/// Has a tensor of ours own its memory, which may have come to be shared with a lazy clone. Does nothing for other objects.
fn own_memory_in(object: &Bound<'_, PyAny>) -> PyResult<()> {
    tensor_in(object).map_or(Ok(()), |tensor| own_all_memory(object.py(), tensor))
}
