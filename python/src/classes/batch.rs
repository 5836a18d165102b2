//! `Batch`: the result of an assembling call.
#![allow(unsafe_op_in_unsafe_fn)] // What `pymethods` makes of the buffer protocol's unsafe methods.

use std::ffi::{c_int, CStr};

use pyo3::exceptions::PyIndexError;
use pyo3::ffi;
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList, PyTuple};
use windrow::arrow::{ARROW_ARRAY, ARROW_SCHEMA};
use windrow::bindings::set_handed_out;

use crate::classes::tensor::tensor_methods;
use crate::export::{array_interface, buffer, dlpack, libraries, pickle};
use crate::ground::arguments::position_of;
use crate::ground::batch::PyBatch;
use crate::ground::errors::{shown, OrPyErr};
use crate::ground::tensor::PyTensor;
use crate::import::storages::lent;
use crate::ownership::holder::{visit_tensor, with_own_references, Visited};

tensor_methods!(PyBatch, {
    // This field is never None, as others may be.
    /// The samples, assembled.
    #[getter]
    fn data(&self, py: Python<'_>) -> PyResult<Option<Py<PyTensor>>> {
        self.field(py, 0, || Some(with_own_references(py, self.batch().data())))
    }

    /// The place in the arena of each tensor of this batch: name to dtype, shape and byte offset; None without an arena.
    #[getter]
    fn arena_layout<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(arena) = self.batch().arena() else { return Ok(None) };
        let layout = PyDict::new(py);
        for (name, tensor) in self.tensors() {
            let byte_offset = tensor.data_ptr().addr() - arena.data_ptr().addr();
            let shape = PyTuple::new(py, tensor.shape())?;
            layout.set_item(name, (tensor.dtype().name(), shape, byte_offset))?;
        }
        Ok(Some(layout))
    }

    /// The largest length of a ragged batch, an int of the host; None in other batches.
    #[getter]
    fn max_length(&self) -> Option<i64> {
        self.batch().max_length()
    }

    /// Waits until the batch has been written, and raises what went wrong on the way. A batch on the host is
    /// complete when its call returns, and so is one made by ``copy=None`` or ``copy=False`` without a copy; a
    /// batch captured in a CUDA graph is not waited for: synchronize its stream first.
    ///
    /// Raises:
    ///     IndexError: an index on the device was out of range; the batch has padding there.
    ///     CudaError: the device has failed.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.batch().check()).or_py_err(py)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Visited {
        let tensors = self.tensors().map(|(_, tensor)| tensor).chain(self.batch().arena());
        tensors.into_iter().try_for_each(|tensor| visit_tensor(tensor, &visit))?;
        self.visit(&visit)
    }

    fn __len__(&self) -> usize {
        self.batch().len()
    }

    /// The real part of sample ``index``, without a copy.
    fn __getitem__(&self, index: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
        let (py, len) = (index.py(), self.batch().len());
        let words = "an index of a Batch is an int, the position of a sample; .numpy() and .torch() take slices";
        match position_of(index, len, words)? {
            Some(position) => {
                let sample = self.batch().sample(position).or_py_err(py)?;
                Ok(PyTensor::from(with_own_references(py, &sample)))
            }
            None => Err(PyIndexError::new_err(format!("sample {} of {len}", shown(index)?))),
        }
    }

    // The views of all samples are made at once.
    fn __iter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        let (py, batch) = (slf.py(), slf.get().batch());
        let items = PyList::empty(py);
        for position in 0..batch.len() {
            let sample = batch.sample(position).or_py_err(py)?;
            items.append(PyTensor::from(with_own_references(py, &sample)))?;
        }
        Ok(items.try_iter()?.into_any())
    }

    /// torch's jagged nested tensor of a ragged batch, sharing its memory. All nested tensors of one batch have the same ragged
    /// size, so that torch can add and compare them.
    ///
    /// Raises:
    ///     ValueError: the batch is not ragged.
    fn nested<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (Some(offsets), Some(longest)) = (self.batch().offsets(), self.batch().max_length())
        else {
            return Err(pyo3::exceptions::PyValueError::new_err(
                "only a ragged batch has a nested form",
            ));
        };
        let data = lent(py, self.inner())?;
        let kwargs = PyDict::new(py);
        let make = || Ok::<_, PyErr>(libraries::torch(py, offsets)?.unbind());
        kwargs.set_item("offsets", self.nested_offsets.get_or_try_init(py, make)?)?;
        // The lengths come from the host's account of the samples: the tensor may be on a device.
        let mut shortest = longest;
        for index in 0..self.batch().len() {
            let sample = self.batch().sample(index).or_py_err(py)?;
            shortest = shortest.min(sample.shape().first().copied().unwrap_or(0));
        }
        // The bounds are given here: torch would otherwise read them back from the offsets.
        kwargs.set_item("min_seqlen", shortest)?;
        kwargs.set_item("max_seqlen", longest)?;
        let values = libraries::torch(py, data)?;
        py.import("torch")?.getattr("nested")?.call_method(
            "nested_tensor_from_jagged",
            (values,),
            Some(&kwargs),
        )
    }

    // `requested_schema` is ignored: the interface lets a producer give its own types.
    /// The Arrow PyCapsule interface: the samples as an array in the memory of the batch, which stays as long as the
    /// array. A ragged batch gives lists (`large_list`, or `list` with ``offsets_dtype="int32"``), any other the rows of its
    /// data; further dims are fixed-size lists.
    ///
    /// Raises:
    ///     DTypeError: for bools, which Arrow packs into bits, bfloat16, float8 and smaller floats and integers, and complex numbers.
    ///     DeviceError: for a batch on a device.
    ///     LayoutError: for data with gaps.
    ///     ValueError: for data without dims.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        let _ = requested_schema;
        lent(py, self.inner())?;
        if let Some(offsets) = self.batch().offsets() {
            set_handed_out(offsets, true);
        }
        // Cloned while attached: see `ownership::holder`.
        let batch = self.batch().clone();
        let (schema, array) = py.detach(|| batch.to_arrow()).or_py_err(py)?;
        Ok((capsule_of(py, schema, ARROW_SCHEMA)?, capsule_of(py, array, ARROW_ARRAY)?))
    }

    fn __reduce_ex__<'py>(
        slf: &Bound<'py, Self>,
        _protocol: i32,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        pickle::reduce_batch(slf)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let tuple = |shape: &[i64]| -> PyResult<String> {
            Ok(PyTuple::new(py, shape)?.repr()?.to_string())
        };
        let data = self.batch().data();
        let mut text = format!(
            "Batch({} samples, shape={}, dtype={}, device={}",
            self.batch().len(),
            tuple(data.shape())?,
            data.dtype(),
            data.device()
        );
        for (name, field) in self.tensors().skip(1) {
            text += &format!(", {name}={} {}", field.dtype(), tuple(field.shape())?);
        }
        if let Some(longest) = self.batch().max_length() {
            text += &format!(", max_length={longest}");
        }
        Ok(text + ")")
    }
} fields {
    /// The real length of each sample: int64 ``[N]``, or ``[N, k]`` if ``k != 1`` dims are padded; None in a stack.
    lengths = 1;

    /// The start of each sample along the joined dim, and the end of the last, ``[N + 1]``; None in other batches than
    /// of `concat` and `ragged`.
    offsets = 2;

    /// ``[N, *padded dims]``, if ``mask`` was given: bool, or the given ``mask_dtype``; else None.
    mask = 3;

    /// The sample that each row comes from, int64 ``[sum]``, if ``batch_index`` was given; else None.
    batch_index = 4;

    /// uint8, the one allocation of all leaves of `collate` with ``arena=True``, the same object for each; else None.
    arena = 5;

    /// The scales that `Quantize` divided by, float32 or float8_e8m0fnu; None without one.
    scales = 6;
});

/// A capsule of this name that owns `value` and drops it with itself; an error of Python's if it cannot be made.
#[allow(deprecated)] // `new_with_value` came with PyO3 0.29, and the free-threaded 3.13 has 0.28: scripts/ci/oldest_pyo3.sh.
fn capsule_of<'py, T: Send + 'static>(
    py: Python<'py>,
    value: T,
    name: &CStr,
) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new(py, value, Some(name.to_owned()))
}
