//! `Tensor` of the package: the object. Its methods are in `classes/tensor.rs`.

use pyo3::prelude::*;
use windrow::Tensor;

/// A strided piece of memory that keeps its owner alive. Made by the assembling calls and
/// `asarray`.
///
/// Attributes:
///     shape (tuple of int), strides (tuple of int, in elements), dtype (str), device (str),
///     ndim (int), nbytes (int)
///
/// ``int()``, ``float()``, ``complex()`` and ``bool()`` take a tensor of one element; of integers and bools
/// it is an index too.
#[pyclass(name = "Tensor", module = "windrow", frozen, weakref)]
pub(crate) struct PyTensor(Tensor);

impl From<Tensor> for PyTensor {
    fn from(tensor: Tensor) -> Self {
        PyTensor(tensor)
    }
}

impl PyTensor {
    pub fn inner(&self) -> &Tensor {
        &self.0
    }

    /// Whether this object keeps the memory of [`PyTensor::inner`] and no other.
    pub fn is_all_memory(&self) -> bool {
        true
    }
}
