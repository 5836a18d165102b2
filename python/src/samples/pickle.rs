//! Pickles of lists, by value: a tensor for all samples of a device that differ in the extent of dim 0 at most, and the place of each
//! in the list. A pickle of trees has the first tree, or a template of the structure if the list is empty, the column of each leaf and
//! the number of trees. A column is a `SampleList` of tensors, or a Python list of other objects.

use std::collections::HashMap;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use windrow::{Collate, DType, Device, Tensor};

use crate::export::pickle::{maker, packed, unpacked, Reduced};
use crate::ground::dtype::dtype_of;
use crate::ground::errors::OrPyErr;
use crate::ground::reserve::try_vec;
use crate::ground::tensor::PyTensor;
use crate::import::importer::Reading;
use crate::import::rows::{has_no_numbers, set_empty_dtype};
use crate::ownership::copy::copy_of_list;
use crate::samples::imported::Imported;
use crate::samples::leaf_columns::LeafColumn;
use crate::samples::list::{ListSamples, PySampleList};
use crate::samples::pieces::pieces;
use crate::samples::trees::Trees;

/// Samples of a list that make one tensor.
struct Group {
    /// The device that they are on, or the host.
    device: Device,
    /// The samples' positions in the list, in order.
    positions: Vec<i64>,
    /// The sum of the extents of dim 0 before each sample, and of all.
    offsets: Vec<i64>,
    /// Whether the extents of dim 0 are all the same.
    is_uniform: bool,
}

/// The function that makes the list again, and its arguments: the samples as they are now, by value. LayoutError for memory
/// that was moved. A list of tensors gives the IndexError of indices on the device; trees do not, because their columns are
/// pickled, and refused, on their own.
pub(crate) fn reduce_list<'py>(py: Python<'py>, list: &PySampleList) -> PyResult<Reduced<'py>> {
    match list.snapshot(py) {
        ListSamples::Leaves(_) => {
            let groups = reduced(py, &*list.unmoved(py, "")?)?;
            Ok((maker(py, "_list_of_groups")?, (groups,).into_pyobject(py)?))
        }
        ListSamples::Trees(trees) => {
            let columns = PyList::empty(py);
            for (path, column) in trees.leaves() {
                match column {
                    LeafColumn::Objects(objects) => columns.append(PyList::new(py, &**objects)?)?,
                    LeafColumn::Tensors(imported) => {
                        imported.check_unmoved(py, path)?;
                        let samples = ListSamples::Leaves(Arc::clone(imported));
                        columns.append(Bound::new(py, PySampleList::from_samples(samples))?)?;
                    }
                }
            }
            let like = if trees.len() == 0 { trees.template(py)? } else { trees.sample(py, 0)? };
            let arguments = (like, columns, trees.len()).into_pyobject(py)?;
            Ok((maker(py, "_list_of_trees")?, arguments))
        }
    }
}

/// The tensor of each group, the offsets of its samples if they are not the rows, and their positions if the group has
/// not all samples. The last entry is the dtype and the positions of rows without numbers, if there are any: samples that
/// come later change this dtype.
fn reduced<'py>(py: Python<'py>, samples: &Imported) -> PyResult<Bound<'py, PyList>> {
    let list = &samples.list;
    list.check_known().or_py_err(py)?;
    let groups = PyList::empty(py);
    for group in groups_of(samples)? {
        let (is_all, collate) = (group.positions.len() == list.len(), group.collate());
        let (producers, owners) = (samples.producers(), samples.owners.owners_to_hold().collect());
        let make = || match is_all {
            true => copy_of_list(list, &collate, producers, owners),
            false => {
                let list = list.take(group.positions.iter().copied())?;
                copy_of_list(&list, &collate, producers, owners)
            }
        };
        let tensor = PyTensor::from(py.detach(make).or_py_err(py)?);
        let offsets = (!group.is_uniform).then(|| packed(py, &group.offsets)).transpose()?;
        let positions = (!is_all).then(|| packed(py, &group.positions)).transpose()?;
        groups.append((tensor, offsets, positions))?;
    }
    let empty: Vec<i64> =
        (0..list.len()).filter(|&i| has_no_numbers(list, i)).map(|i| i as i64).collect();
    if let Some(&first) = empty.first() {
        let dtype = list.meta(first as usize).dtype.name();
        groups.append((dtype, py.None(), packed(py, &empty)?))?;
    }
    Ok(groups)
}

/// The groups of all samples but rows without numbers, those of one dtype, one device and the same extents beyond dim 0. Samples
/// without dims have groups of their own. The groups are in the order of the list's metas; after a change of the list it may
/// differ from that of the samples.
fn groups_of(samples: &Imported) -> PyResult<Vec<Group>> {
    let list = &samples.list;
    let mut groups: Vec<Group> = Vec::new();
    let mut known: HashMap<(DType, Device, Option<&[i64]>), usize> = HashMap::new();
    // Samples of one layout are of one group.
    let (metas, ids) = (list.metas(), list.meta_ids());
    let mut group_ids = try_vec(metas.len())?;
    for meta in metas {
        let (dtype, shape) = (meta.dtype, meta.layout.shape());
        // Page-locked memory comes back as memory of the host, which it is.
        let device = match meta.device {
            Device::Cuda(_) => meta.device,
            _ => Device::Cpu,
        };
        let id = *known.entry((dtype, device, shape.get(1..))).or_insert(groups.len());
        if id == groups.len() {
            let (positions, offsets) = (Vec::new(), vec![0]);
            groups.push(Group { device, positions, offsets, is_uniform: true });
        }
        group_ids.push(id);
    }
    for index in (0..list.len()).filter(|&index| !has_no_numbers(list, index)) {
        let meta_id = ids.map_or(0, |ids| ids[index] as usize);
        let group = &mut groups[group_ids[meta_id]];
        let extent = metas[meta_id].layout.shape().first().copied().unwrap_or(1);
        group.push(index, extent);
    }
    // A list that was changed has layouts of samples that are gone.
    groups.retain(|group| !group.positions.is_empty());
    Ok(groups)
}

impl Group {
    /// Adds a sample of the list; `extent`: that of its dim 0, 1 without dims.
    fn push(&mut self, index: usize, extent: i64) {
        let end = self.offsets.last().copied().unwrap_or(0);
        // A sum beyond 64 bits is for the plan to refuse, which has the extents.
        self.is_uniform &= end == extent.wrapping_mul(self.positions.len() as i64);
        self.offsets.push(end.wrapping_add(extent));
        self.positions.push(index as i64);
    }

    /// The options by which its samples are one tensor where they are.
    fn collate(&self) -> Collate {
        let collate = match self.is_uniform {
            true => Collate::stack(),
            false => Collate::concat(0),
        };
        collate.device(self.device)
    }
}

/// The list of the groups of [`reduce_list`], each sample at its position. Without any positions the samples keep the order of
/// the groups. ValueError for positions that do not name each sample once.
#[pyfunction]
pub(crate) fn _list_of_groups(groups: &Bound<'_, PyList>) -> PyResult<PySampleList> {
    let py = groups.py();
    let (mut whole, mut order) = (Imported::default(), Vec::new());
    let mut empty_dtype = None;
    for group in groups.iter() {
        type PickledGroup<'py> =
            (Bound<'py, PyAny>, Option<Bound<'py, PyBytes>>, Option<Bound<'py, PyBytes>>);
        let (content, offsets, positions): PickledGroup<'_> = group.extract()?;
        let positions = positions.map(|bytes| unpacked(bytes.as_bytes())).transpose()?;
        let part = match content.cast::<PyTensor>() {
            Ok(tensor) => samples_of_group(py, tensor.get().inner().clone(), offsets)?,
            Err(_) => {
                empty_dtype = Some(dtype_of(&content)?);
                rows_without_numbers(py, positions.as_ref().map_or(0, Vec::len))?
            }
        };
        order.extend(positions.into_iter().flatten());
        whole.join(py, &part)?;
    }
    if let Some(dtype) = empty_dtype {
        set_empty_dtype(py, &mut whole.list, dtype)?;
    }
    if !order.is_empty() {
        whole = whole.taken(py, &inverse(&order, whole.list.len())?)?;
    }
    Ok(PySampleList::from_imported(whole))
}

/// The samples of a group: without offsets the rows of its tensor.
fn samples_of_group(
    py: Python<'_>,
    tensor: Tensor,
    offsets: Option<Bound<'_, PyBytes>>,
) -> PyResult<Imported> {
    let Some(offsets) = offsets else { return Imported::from_rows(py, tensor) };
    let list = pieces(&tensor, &unpacked(offsets.as_bytes())?).or_py_err(py)?;
    Imported::from_parts(py, tensor, list)
}

/// Rows without numbers, of float64.
fn rows_without_numbers(py: Python<'_>, count: usize) -> PyResult<Imported> {
    let mut rows = try_vec(count)?;
    rows.resize(count, PyTuple::empty(py).into_any());
    Imported::from_objects(py, rows, 0, Reading::OWNED).map(|(imported, _)| imported)
}

/// The inverse of these positions of `len` samples; ValueError unless each of them is there once.
fn inverse(positions: &[i64], len: usize) -> PyResult<Vec<i64>> {
    let unfit = || PyValueError::new_err("a list whose positions are not those of its samples");
    let mut places = try_vec(len)?;
    places.resize(len, -1);
    for (place, &position) in positions.iter().enumerate() {
        let entry = usize::try_from(position).ok().and_then(|at| places.get_mut(at));
        *entry.ok_or_else(unfit)? = place as i64;
    }
    let is_whole = positions.len() == len && !places.contains(&-1);
    if is_whole {
        Ok(places)
    } else {
        Err(unfit())
    }
}

/// The list of `len` trees of the structure of `like`. A column is a `SampleList` of a leaf's tensors, or a Python list of its
/// other objects. ValueError for another number or kind of columns, or a column of another number of samples.
#[pyfunction]
pub(crate) fn _list_of_trees(
    like: &Bound<'_, PyAny>,
    columns: &Bound<'_, PyList>,
    len: usize,
) -> PyResult<PySampleList> {
    let mut leaves = try_vec(columns.len())?;
    for column in columns.iter() {
        leaves.push(match column.cast::<PySampleList>() {
            Ok(list) => LeafColumn::Tensors(list.get().leaves(column.py())?),
            Err(_) => LeafColumn::from_objects(column.cast::<PyList>()?.iter().collect())?,
        });
    }
    let trees = Trees::read_template(like.clone())?.with_columns(leaves, len)?;
    Ok(PySampleList::from_samples(ListSamples::Trees(trees)))
}
