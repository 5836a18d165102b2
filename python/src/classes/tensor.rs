//! `Tensor`: a typed, strided view of memory, and `asarray`.
#![allow(unsafe_op_in_unsafe_fn)] // What `pymethods` makes of the buffer protocol's unsafe methods.

use std::ffi::c_int;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyComplex, PyDict, PyFloat, PyInt, PyTuple};
use windrow::bindings::set_handed_out;
use windrow::DType;

use crate::export::number::{is_single, number_of};
use crate::export::{array_interface, buffer, dlpack, libraries, pickle};
use crate::ground::tensor::PyTensor;
use crate::import::storages::lent;
use crate::ownership::holder::{unmoved, visit_tensor, with_own_references, Visited};

/// The methods that a tensor and a batch, which stands for its data, have in common: those of the
/// tensor that `inner()` gives. Those that hand its memory on, but for `data_ptr`, raise
/// LayoutError if the owner has moved it.
macro_rules! tensor_methods {
    (
        $class:ident, { $($methods:tt)* }
        $(fields { $($(#[$doc:meta])* $field:ident = $position:literal;)* })?
    ) => {
        #[pymethods]
        impl $class {
            $($(
                $(#[$doc])*
                #[getter]
                fn $field(&self, py: Python<'_>) -> PyResult<Option<Py<PyTensor>>> {
                    let with_references = |tensor| with_own_references(py, tensor);
                    self.field(py, $position, || self.batch().$field().map(with_references))
                }
            )*)?
            $($methods)*

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

            // Marks page-locked memory as handed out: it is not used again before the work of others on it is done.
            /// Address of the element whose indices are all 0. On a device, the work that writes it
            /// may not be done.
            fn data_ptr(&self) -> usize {
                set_handed_out(self.inner(), true);
                self.inner().data_ptr().expose_provenance()
            }

            /// A NumPy array of the same host memory; bfloat16 and float8 need the package ml_dtypes, else ImportError. DeviceError for
            /// memory of a CUDA device.
            fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
                let (py, tensor) = (slf.py(), slf.get().inner());
                let keeper = slf.get().is_all_memory().then(|| slf.as_any());
                libraries::numpy(py, lent(py, tensor)?, keeper)
            }

            /// A torch tensor of the same memory. DTypeError for a dtype that torch lacks,
            /// LayoutError for a stride below 0. torch has no read-only tensors: of
            /// immutable memory it comes with a UserWarning, as from ``torch.from_numpy``, and must not be written to.
            fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                libraries::torch(py, lent(py, self.inner())?)
            }

            /// A JAX array, of the same memory if JAX accepts its alignment, else a copy; of read-only memory, and of any that is not
            /// row-major without gaps, a copy. JAX arrays are immutable: do not write to the memory afterwards. On a device, the array may be deleted before the work that uses it is done.
            fn jax<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                libraries::jax(py, lent(py, self.inner())?)
            }

            /// The JAX array of it, for ``jax.numpy.asarray`` and JAX's functions.
            fn __jax_array__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                self.jax(py)
            }

            /// A CuPy array of the same device memory; for host memory a copy on the current device.
            fn cupy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                libraries::cupy(py, lent(py, self.inner())?)
            }

            /// DLPack capsule; a legacy one without ``max_version`` or below 1.0. BufferError: read-only memory in a legacy capsule,
            /// a device that is neither the memory's own nor the host, or ``copy=False`` where a copy is needed.
            #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
            fn __dlpack__<'py>(
                &self,
                py: Python<'py>,
                stream: Option<&Bound<'py, PyAny>>,
                max_version: Option<&Bound<'py, PyAny>>,
                dl_device: Option<&Bound<'py, PyAny>>,
                copy: Option<&Bound<'py, PyAny>>,
            ) -> PyResult<Bound<'py, PyAny>> {
                dlpack::dlpack(py, lent(py, self.inner())?, stream, max_version, dl_device, copy)
            }

            fn __dlpack_device__(&self) -> (i32, i32) {
                dlpack::dlpack_device(self.inner())
            }

            #[getter]
            fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                array_interface::array_interface(py, lent(py, self.inner())?)
            }

            #[getter]
            fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                array_interface::cuda_array_interface(py, lent(py, self.inner())?)
            }

            #[pyo3(signature = (dtype = None, copy = None))]
            fn __array__<'py>(
                &self,
                py: Python<'py>,
                dtype: Option<&Bound<'py, PyAny>>,
                copy: Option<bool>,
            ) -> PyResult<Bound<'py, PyAny>> {
                libraries::array(py, lent(py, self.inner())?, dtype, copy)
            }

            // DeviceError for memory of a CUDA device; BufferError as of `buffer::get_buffer`.
            #[allow(unsafe_code)]
            unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
                let owner = slf.clone().into_any();
                // SAFETY: Python's own view; `slf` holds the tensor.
                unsafe { buffer::get_buffer(lent(slf.py(), slf.get().inner())?, owner, view, flags) }
            }

            #[allow(unsafe_code)]
            unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
                // SAFETY: Python releases a view that `__getbuffer__` filled in, once.
                unsafe { buffer::release_buffer(view) }
            }
        }
    };
}
pub(crate) use tensor_methods;

tensor_methods!(PyTensor, {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Visited {
        visit_tensor(self.inner(), &visit)
    }

    /// Steps in elements, a tuple of int.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.inner().strides())
    }

    fn __reduce_ex__<'py>(
        &self,
        py: Python<'py>,
        protocol: i32,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        pickle::reduce_tensor(py, unmoved(py, self.inner())?, protocol)
    }

    /// Shares the memory; the copy has references of its own to what keeps it.
    fn __copy__(&self, py: Python<'_>) -> PyResult<PyTensor> {
        let tensor = unmoved(py, self.inner())?;
        Ok(PyTensor::from(with_own_references(py, tensor)))
    }

    fn __len__(&self) -> PyResult<usize> {
        let extent = self
            .inner()
            .shape()
            .first()
            .ok_or_else(|| PyTypeError::new_err("a tensor without dims has no length"))?;
        Ok(*extent as usize)
    }

    // `int`, `float`, `complex` and `bool` take one element, which is waited for on a device; another number of elements is a
    // TypeError, for `bool` a ValueError.
    fn __int__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.get_type::<PyInt>().call1((number_of(py, self.inner())?,))
    }

    fn __float__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.get_type::<PyFloat>().call1((number_of(py, self.inner())?,))
    }

    fn __complex__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.get_type::<PyComplex>().call1((number_of(py, self.inner())?,))
    }

    /// The elements' bytes, row-major; DeviceError for memory of a CUDA device. Without this,
    /// `bytes` takes a tensor of one integer as a length.
    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        pickle::bytes_of(py, self.inner())
    }

    // TypeError unless it is one integer or bool.
    fn __index__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.inner().dtype() {
            dtype if dtype.is_integer() || dtype == DType::Bool => self.__int__(py),
            dtype => {
                Err(PyTypeError::new_err(format!("a {dtype} cannot be an index; an integer can")))
            }
        }
    }

    /// The truth of one element, as NumPy has it.
    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        if !is_single(self.inner()) {
            let shape = PyTuple::new(py, self.inner().shape())?.repr()?;
            let text = format!("the truth of a tensor of shape {shape} is ambiguous");
            return Err(PyValueError::new_err(text));
        }
        number_of(py, self.inner())?.is_truthy()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let shape = PyTuple::new(py, self.inner().shape())?.repr()?;
        Ok(format!(
            "Tensor(shape={shape}, dtype={}, device={})",
            self.inner().dtype(),
            self.inner().device()
        ))
    }
});
