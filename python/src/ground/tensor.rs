//! `Tensor` of the package: the object. Its methods are in `classes/tensor.rs`.

use pyo3::prelude::*;
use windrow::Tensor;

/// A strided piece of memory that keeps its owner alive. Made by the assembling calls and
/// `asarray`.
///
/// Attributes:
///     shape (tuple of int): extents.
///     strides (tuple of int): steps in elements.
///     dtype (str): name of the element type, such as ``"float16"``.
///     device (str): ``"cpu"``, ``"pinned"`` or ``"cuda:0"``.
///     ndim (int): number of dims.
///     nbytes (int): size of all elements in bytes.
///
/// ``int()``, ``float()``, ``complex()`` and ``bool()`` take a tensor of one element. A tensor of one integer or bool also serves
/// as an index.
#[pyclass(name = "Tensor", module = "windrow", frozen, weakref)]
pub(crate) struct PyTensor(Tensor);

impl From<Tensor> for PyTensor {
    fn from(tensor: Tensor) -> Self {
        PyTensor(tensor)
    }
}

impl PyTensor {
    /// The tensor itself.
    pub fn inner(&self) -> &Tensor {
        &self.0
    }

    /// Always true: this object keeps the allocation that [`PyTensor::inner`] is in, and no other.
    pub fn is_all_memory(&self) -> bool {
        true
    }
}
