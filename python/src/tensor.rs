//! `Tensor`: a typed, strided view of memory, and `asarray`.
#![allow(unsafe_op_in_unsafe_fn)] // What `pymethods` makes of the buffer protocol's unsafe methods.

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyComplex, PyDict, PyFloat, PyInt, PyTuple};
use windrow::{DType, Owner, Tensor};

use crate::batch::PyBatch;
use crate::export;
use crate::import::{Importer, Reading};
use crate::number::{is_single, number_of};
use crate::pickle;
use crate::places::{in_place, Places};

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
}

/// The methods that a tensor and a batch, which stands for its data, have in common: those of the
/// tensor that `inner()` gives.
macro_rules! tensor_methods {
    ($class:ident, { $($own:tt)* }) => {
        #[pymethods]
        impl $class {
            $($own)*

            /// Extents, a tuple of int.
            #[getter]
            fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
                PyTuple::new(py, self.inner().shape())
            }

            /// Name of the element type, such as ``"float16"``.
            #[getter]
            fn dtype(&self) -> &'static str {
                self.inner().dtype().name()
            }

            /// ``"cpu"``, ``"pinned"`` or ``"cuda:0"``.
            #[getter]
            fn device(&self) -> String {
                self.inner().device().to_string()
            }

            /// Number of dims.
            #[getter]
            fn ndim(&self) -> usize {
                self.inner().shape().len()
            }

            /// Bytes of all elements.
            #[getter]
            fn nbytes(&self) -> usize {
                self.inner().nbytes()
            }

            /// Address of the first element.
            fn data_ptr(&self) -> usize {
                self.inner().data_ptr().expose_provenance()
            }

            /// A NumPy array of the same host memory; bfloat16 and float8 need the package ml_dtypes.
            fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                export::numpy(py, in_place(py, self.inner())?)
            }

            /// A torch tensor of the same memory.
            fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                export::torch(py, in_place(py, self.inner())?)
            }

            /// A JAX array, of the same memory where JAX takes its alignment. JAX arrays do not
            /// change: do not write to the memory afterwards.
            fn jax<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                export::jax(py, in_place(py, self.inner())?)
            }

            /// A CuPy array; of host memory a copy on the current device.
            fn cupy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                export::cupy(py, in_place(py, self.inner())?)
            }

            /// DLPack capsule. Without ``max_version``, or below 1.0, a legacy one.
            #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
            fn __dlpack__<'py>(
                &self,
                py: Python<'py>,
                stream: Option<&Bound<'py, PyAny>>,
                max_version: Option<&Bound<'py, PyAny>>,
                dl_device: Option<&Bound<'py, PyAny>>,
                copy: Option<&Bound<'py, PyAny>>,
            ) -> PyResult<Bound<'py, PyAny>> {
                export::dlpack(py, in_place(py, self.inner())?, stream, max_version, dl_device, copy)
            }

            fn __dlpack_device__(&self) -> (i32, i32) {
                export::dlpack_device(self.inner())
            }

            #[getter]
            fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                export::array_interface(py, in_place(py, self.inner())?)
            }

            #[getter]
            fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                export::cuda_array_interface(py, in_place(py, self.inner())?)
            }

            #[pyo3(signature = (dtype = None, copy = None))]
            fn __array__<'py>(
                &self,
                py: Python<'py>,
                dtype: Option<&Bound<'py, PyAny>>,
                copy: Option<bool>,
            ) -> PyResult<Bound<'py, PyAny>> {
                export::array(py, in_place(py, self.inner())?, dtype, copy)
            }

            #[allow(unsafe_code)]
            unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
                let owner = slf.clone().into_any();
                // SAFETY: Python's own view; `slf` holds the tensor.
                unsafe { export::get_buffer(in_place(slf.py(), slf.get().inner())?, owner, view, flags) }
            }

            #[allow(unsafe_code)]
            unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
                // SAFETY: Python releases a view that `__getbuffer__` filled in, once.
                unsafe { export::release_buffer(view) }
            }
        }
    };
}
pub(crate) use tensor_methods;

tensor_methods!(PyTensor, {
    /// Steps in elements, a tuple of int.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.strides())
    }

    fn __reduce_ex__<'py>(
        &self,
        py: Python<'py>,
        protocol: i32,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        pickle::reduce_tensor(py, in_place(py, &self.0)?, protocol)
    }

    fn __len__(&self) -> PyResult<usize> {
        let extent = self
            .0
            .shape()
            .first()
            .ok_or_else(|| PyTypeError::new_err("a tensor without dims has no length"))?;
        Ok(*extent as usize)
    }

    fn __int__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.get_type::<PyInt>().call1((number_of(py, &self.0)?,))
    }

    fn __float__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.get_type::<PyFloat>().call1((number_of(py, &self.0)?,))
    }

    fn __complex__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.get_type::<PyComplex>().call1((number_of(py, &self.0)?,))
    }

    fn __index__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.0.dtype() {
            dtype if dtype.is_integer() || dtype == DType::Bool => self.__int__(py),
            dtype => Err(PyTypeError::new_err(format!("{dtype} is no index; an integer is"))),
        }
    }

    /// The truth of one element, as NumPy has it.
    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        if !is_single(&self.0) {
            let shape = PyTuple::new(py, self.0.shape())?.repr()?;
            let text = format!("the truth of a tensor of shape {shape} is ambiguous");
            return Err(PyValueError::new_err(text));
        }
        number_of(py, &self.0)?.is_truthy()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let shape = PyTuple::new(py, self.0.shape())?.repr()?;
        Ok(format!("Tensor(shape={shape}, dtype={}, device={})", self.0.dtype(), self.0.device()))
    }
});

/// A single array-like as a tensor of the same memory. `name`: of the argument that it is.
pub(crate) fn tensor_of(
    object: &Bound<'_, PyAny>,
    name: &'static str,
    reading: Reading<'_>,
) -> PyResult<Tensor> {
    // Ours as it is: what also kept the object would grow with every result that is an output again.
    if let Ok(tensor) = object.cast_exact::<PyTensor>() {
        return in_place(object.py(), tensor.get().inner()).cloned();
    }
    if let Ok(batch) = object.cast_exact::<PyBatch>() {
        return in_place(object.py(), batch.get().inner()).cloned();
    }
    let mut importer = Importer::new(object.py(), reading);
    importer.lone = Some(name);
    importer.import_one(object, 0)?;
    let Importer { list, mut keep, places, .. } = importer;
    keep.objects.push(object.clone().unbind());
    keep.places = Places::from(places);
    let kind = list.kind(0);
    let owner: Owner = Arc::new(keep);
    // SAFETY: `keep` holds the object and whatever it lent us.
    #[allow(unsafe_code)]
    Ok(unsafe {
        Tensor::new_unchecked(
            owner,
            list.address(0).cast_mut(),
            kind.dtype,
            kind.device,
            kind.layout.clone(),
            list.is_read_only(),
        )
    })
}

/// A `Tensor` of the same memory as any array-like; the array-like is kept alive, and of a torch tensor the
/// memory too. Memory that was moved since is a LayoutError when the tensor is used next, as with `SampleList`.
/// Python numbers, and lists and tuples of them, are copied.
///
/// Raises:
///     TypeError: if ``x`` is not an array-like.
///     LayoutError: if its memory cannot be expressed, and for a torch tensor that requires grad while
///         torch's grad mode is on.
#[pyfunction]
#[pyo3(signature = (x, /))]
pub(crate) fn asarray(x: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
    Ok(PyTensor(tensor_of(x, "x", Reading::OWNED)?))
}
