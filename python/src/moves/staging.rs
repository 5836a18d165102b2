//! Functions behind `windrow.Staging`: blocks of bytes, and their upload. No figure of time: on the
//! simulated driver 300 tensors are 13 calls and one copy. It is Rust because a block waits for the event of its last upload.

use pyo3::prelude::*;
use windrow::bindings::Staging;
use windrow::{Device, Stream};

use crate::collate::options::engine_of;
use crate::collate::torch_memory::used_table;
use crate::engine::default::{default_engine, drop_detached};
use crate::ground::arguments::device_of;
use crate::ground::errors::OrPyErr;
use crate::ground::logging::LogScope;
use crate::ground::stream::{current_of, stream_of};
use crate::ground::tensor::PyTensor;

/// Two blocks of host memory in turn, and one of a device.
///
/// Without a `device` that is the engine's, else the first CUDA device, else the host. Each block has `num_bytes` bytes and is
/// zeroed, that of a device in the order of the engine's stream.
#[pyclass(name = "_Staging", module = "windrow._windrow", frozen)]
pub(crate) struct PyStaging(
    /// `None` only while it is dropped.
    Option<Staging>,
);

impl Drop for PyStaging {
    /// An engine waits for its work on devices, which others may need the interpreter lock for.
    fn drop(&mut self) {
        drop_detached(self.0.take());
    }
}

impl PyStaging {
    /// The staging memory, which is there until drop.
    fn staging(&self) -> &Staging {
        self.0.as_ref().expect("taken by drop alone")
    }
}

#[pymethods]
impl PyStaging {
    #[new]
    #[pyo3(signature = (num_bytes, device = None, engine = None))]
    fn new(
        py: Python<'_>,
        num_bytes: u64,
        device: Option<&Bound<'_, PyAny>>,
        engine: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyStaging> {
        let engine = engine.map_or_else(|| Ok(default_engine().clone()), engine_of)?;
        let device = device.map(device_of).transpose()?;
        let staging = py.detach(|| Staging::new(&engine, num_bytes, device)).or_py_err(py)?;
        Ok(PyStaging(Some(staging)))
    }

    /// The blocks of the host.
    #[getter]
    fn hosts(&self) -> (PyTensor, PyTensor) {
        let [first, second] = self.staging().hosts();
        (PyTensor::from(first.clone()), PyTensor::from(second.clone()))
    }

    /// The block of the device.
    #[getter]
    fn device(&self) -> PyTensor {
        PyTensor::from(self.staging().device().clone())
    }

    /// The number of the block of the host that no copy reads.
    #[getter]
    fn turn(&self) -> usize {
        self.staging().turn()
    }

    /// Waits for the copy of the other block, enqueues the copy of this one on `stream`, or torch's current one, else one of the
    /// engine's, and gives the turn to the other one. Without a device the bytes are copied when it returns, and a `stream` is a
    /// ValueError. After an error the turn stays.
    #[pyo3(signature = (stream = None))]
    #[allow(unsafe_code)]
    fn upload(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let _log_scope = LogScope::for_call(py);
        let stream = match stream {
            Some(stream) => Some(stream_of(stream)?),
            None => torch_stream(py, self.staging().device().device())?,
        };
        // SAFETY: that nothing else touches the blocks meanwhile is the contract of `Staging.upload`.
        py.detach(|| unsafe { self.staging().upload(stream) }).or_py_err(py)
    }
}

/// torch's current stream on a device, if the program uses devices with torch: what reads the tensors runs there. `None` on the
/// host.
fn torch_stream(py: Python<'_>, device: Device) -> PyResult<Option<Stream>> {
    let Device::Cuda(ordinal) = device else { return Ok(None) };
    let Some(api) = used_table(py)? else { return Ok(None) };
    current_of(api, ordinal).map_or_else(|| Err(PyErr::fetch(py)), |stream| Ok(Some(stream)))
}
