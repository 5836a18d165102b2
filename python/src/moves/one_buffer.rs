//! Functions behind `windrow.packed`: one tree taken apart, and parts of one buffer.
//!
//! Rust for the walk, views and the move; layouts are Python. 300 tensors of 1 KiB to 4 MiB, 194 MB, two busy cores: pack 44 ms,
//! `torch.cat` 590; unpack 28, `_foreach_copy_` of views 350.

use pyo3::exceptions::PyValueError;
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use windrow::bindings::Places;
use windrow::{DType, Device, Layout, SampleList, Tensor};

use crate::collate::options::engine_of;
use crate::engine::default::default_engine;
use crate::ground::arguments::device_of;
use crate::ground::dtype::dtype_of;
use crate::ground::errors::OrPyErr;
use crate::ground::iterables::{items_of, list_of};
use crate::ground::logging::LogScope;
use crate::ground::reserve::try_vec;
use crate::ground::tensor::PyTensor;
use crate::import::importer::Reading;
use crate::import::tensor::{table_of, tensor_of};
use crate::moves::copy_many::copy_parts;
use crate::moves::pairs::flatten_both;
use crate::ownership::holder::{with_own_references, Visited};
use crate::trees::flatten_like::TreeNames;
use crate::trees::tree_def::TreeDef;

/// The containers of one tree.
#[pyclass(name = "_Structure", module = "windrow._windrow", frozen)]
pub(crate) struct PyStructure(TreeDef);

#[pymethods]
impl PyStructure {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Visited {
        self.0.visit(&visit)
    }

    /// Each container before its children: a list of its keys, or the number of its entries with whether they are in a tuple.
    /// None for each leaf.
    fn nodes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let nodes = PyList::empty(py);
        for container in self.0.containers() {
            match container.map(|container| (container, container.keys())) {
                None => nodes.append(py.None())?,
                Some((_, Some(keys))) => nodes.append(PyList::new(py, keys)?)?,
                Some((container, None)) => {
                    nodes.append((container.len(), container.is_tuple(py)?))?
                }
            }
        }
        Ok(nodes)
    }

    /// The same containers with the first of these leaves, IndexError for too few. Classes that make only batches, as TensorDict
    /// and graphs do, are dicts.
    fn unflatten<'py>(&self, leaves: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyAny>> {
        let py = leaves.py();
        self.0.fold(
            |leaf| leaves.get_item(leaf),
            |container, children| match container.keys().filter(|_| !container.is_open()) {
                None => container.unflatten(py, children),
                Some(keys) => {
                    let dict = PyDict::new(py);
                    let mut items = keys.iter().zip(children);
                    items.try_for_each(|(key, child)| dict.set_item(key, child))?;
                    Ok(dict.into_any())
                }
            },
        )
    }
}

/// Paths, leaves, those at the same places of a tree `like` this one (an empty list without it), and the containers.
type Flattened<'py> = (Vec<String>, Bound<'py, PyList>, Bound<'py, PyList>, PyStructure);

/// Takes a tree apart. `like`: a tree with an entry for each of its own.
#[pyfunction]
#[pyo3(signature = (tree, like = None))]
pub(crate) fn _flatten<'py>(
    tree: &Bound<'py, PyAny>,
    like: Option<&Bound<'py, PyAny>>,
) -> PyResult<Flattened<'py>> {
    let py = tree.py();
    let names = TreeNames { name: "layout", like: "tensors of into", side: None };
    let (tree, paths, leaves, others) = flatten_both(tree, like, names)?;
    Ok((paths, list_of(py, leaves)?, list_of(py, others)?, PyStructure(tree)))
}

/// Leaves as tensors of the same memory, with the dtypes that they have in native byte order. `name`: of the tree that they are in.
#[pyfunction]
pub(crate) fn _leaf_tensors<'py>(
    leaves: &Bound<'py, PyList>,
    paths: Vec<String>,
    name: &str,
) -> PyResult<Vec<(Bound<'py, PyTensor>, &'static str)>> {
    let (py, name) = (leaves.py(), static_name(name));
    let mut tensors = try_vec(paths.len())?;
    for (leaf, path) in items_of(leaves)?.iter().zip(&paths) {
        let tensor = table_of(leaf, name, Reading { path, rows: false, ..Reading::OWNED })?;
        let dtype = tensor.dtype().native().name();
        tensors.push((Bound::new(py, PyTensor::from(tensor))?, dtype));
    }
    Ok(tensors)
}

/// A leaf's memory as uint8, not copied; LayoutError for a leaf that is not row-major without gaps. `name`: of the tree that it
/// is in.
#[pyfunction]
pub(crate) fn _leaf_bytes(leaf: &Bound<'_, PyAny>, path: &str, name: &str) -> PyResult<PyTensor> {
    let name = static_name(name);
    let tensor = tensor_of(leaf, name, Reading { path, rows: false, ..Reading::OWNED })?;
    let bytes = tensor.bytes().map_err(|error| error.about(name).at_path(path));
    Ok(PyTensor::from(bytes.or_py_err(leaf.py())?))
}

/// The name of an argument as a static string: "buffer" for all but the other three.
fn static_name(name: &str) -> &'static str {
    match name {
        "into" => "into",
        "out" => "out",
        "tree" => "tree",
        _ => "buffer",
    }
}

/// Does what `_copy_leaves` does, from row-major parts of the bytes of `buffer`, each with its dtype, shape and first byte.
/// Returns False and does nothing if `buffer` is not in pageable memory of the host. ValueError for fewer bytes than `num_bytes`,
/// DTypeError and LayoutError as for `_parts`.
#[pyfunction]
pub(crate) fn _copy_parts(
    dsts: &Bound<'_, PyList>,
    buffer: &Bound<'_, PyAny>,
    parts: &Bound<'_, PyList>,
    num_bytes: u64,
    paths: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    let py = dsts.py();
    let _log_scope = LogScope::for_call(py);
    let memory = bytes_of_buffer(buffer, num_bytes, "buffer")?;
    if memory.device() != Device::Cpu {
        return Ok(false);
    }
    let mut list = SampleList::new();
    list.reserve(parts.len()).or_py_err(py)?;
    let mut last: Option<(Bound<'_, PyAny>, DType)> = None;
    for part in parts {
        let (name, shape, offset): (Bound<'_, PyAny>, Bound<'_, PyTuple>, u64) = part.extract()?;
        let dtype = match &last {
            Some((known, dtype)) if known.is(&name) => *dtype,
            _ => dtype_of(&name)?,
        };
        let shape: Vec<i64> = shape.extract()?;
        let view = memory.part(offset, dtype, &shape).map_err(|error| error.about("buffer"));
        let data = view.or_py_err(py)?.data_ptr();
        // SAFETY: a part of the buffer, which the samples' owner keeps.
        #[allow(unsafe_code)]
        unsafe { list.push(data, dtype, Device::Cpu, &shape, None) }.or_py_err(py)?;
        last = Some((name, dtype));
    }
    copy_parts(dsts, memory, list, paths)?;
    Ok(true)
}

/// New memory of the engine's, uint8 `[num_bytes]`, uninitialised: the caller writes each byte before it gives the tensor on.
#[pyfunction]
pub(crate) fn _unwritten(
    num_bytes: u64,
    device: &Bound<'_, PyAny>,
    engine: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyTensor> {
    let py = device.py();
    let engine = engine.map_or_else(|| Ok(default_engine().clone()), engine_of)?;
    let device = device_of(device)?;
    // SAFETY: those of `windrow.packed` write all of the tensor before they give it on.
    #[allow(unsafe_code)]
    let tensor =
        py.detach(|| unsafe { engine.unwritten_bytes(num_bytes, device) }).or_py_err(py)?;
    Ok(PyTensor::from(tensor))
}

/// The name of a device as tensors have it; ValueError for a text that is none.
#[pyfunction]
pub(crate) fn _device_name(device: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(device_of(device)?.to_string())
}

/// The dtype, first byte and size of each tensor in one buffer, and where the last one ends, in bytes. `parts`: the dtype and
/// shape of each. `align`: what the first bytes are multiples of. ValueError beyond 63 bits, and for an `align` of 0 beside a
/// tensor.
#[pyfunction]
pub(crate) fn _places(parts: &Bound<'_, PyList>, align: u64) -> PyResult<(Vec<TensorRange>, u64)> {
    let (py, mut all) = (parts.py(), Places::new(align));
    let mut found = try_vec(parts.len())?;
    for part in parts {
        let (dtype, shape): (Bound<'_, PyAny>, Vec<i64>) = part.extract()?;
        let dtype = dtype_of(&dtype)?;
        let layout = Layout::compact(dtype, &shape).or_py_err(py)?;
        let bytes = layout.numel() as u64 * dtype.size() as u64;
        let text = "the tensors of one buffer are beyond 64 bits together";
        let first = all.place(bytes).ok_or_else(|| PyValueError::new_err(text))?;
        found.push((dtype.name(), first, bytes));
    }
    Ok((found, all.end()))
}

/// Dtype, first byte and number of bytes.
type TensorRange = (&'static str, u64, u64);

/// An argument as a tensor of its own dtype and shape; ValueError if it has fewer bytes.
fn bytes_of_buffer(
    buffer: &Bound<'_, PyAny>,
    num_bytes: u64,
    name: &'static str,
) -> PyResult<Tensor> {
    let memory = tensor_of(buffer, name, Reading::OWNED)?;
    if (memory.nbytes() as u64) < num_bytes {
        let got = memory.nbytes();
        let text = format!("{name}: expected {num_bytes} bytes or more, got {got}");
        return Err(PyValueError::new_err(text));
    }
    Ok(memory)
}

/// Row-major views of bytes, each with its dtype, shape and first byte. `num_bytes`: how many there are at least, else
/// ValueError; `name`: of the argument that has them. DTypeError for a buffer that is not uint8, LayoutError for a part beyond
/// its end.
#[pyfunction]
pub(crate) fn _parts<'py>(
    buffer: &Bound<'py, PyAny>,
    parts: &Bound<'py, PyList>,
    num_bytes: u64,
    name: &str,
) -> PyResult<Vec<Bound<'py, PyTensor>>> {
    let (py, name) = (buffer.py(), static_name(name));
    let memory = bytes_of_buffer(buffer, num_bytes, name)?;
    let mut views = try_vec(parts.len())?;
    for part in parts {
        let (dtype, shape, offset): (Bound<'py, PyAny>, Bound<'py, PyTuple>, u64) =
            part.extract()?;
        let shape: Vec<i64> = shape.extract()?;
        let view = memory.part(offset, dtype_of(&dtype)?, &shape);
        let view = view.map_err(|error| error.about(name)).or_py_err(py)?;
        views.push(Bound::new(py, PyTensor::from(with_own_references(py, &view)))?);
    }
    Ok(views)
}
