//! Outputs in torch's memory: a batch of torch tensors on a device is a torch tensor itself, from
//! torch's caching allocator, on the stream that torch works on.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use windrow::{DType, Engine, Error, OutputMemory, Stream, Tensor};

use crate::ground::stream::current_of;
use crate::import::importer::Reading;
use crate::import::tensor::tensor_of;
use crate::ownership::owner::{producers_of, ImportOwner};
use crate::ownership::producers::Producers;

/// torch's allocator, for one call.
#[derive(Debug)]
pub(crate) struct TorchMemory {
    stream: Stream,
    /// Whose unused memory is given back where torch has none left.
    engine: Engine,
    /// What torch raised, which is more than an `Error` can say.
    raised: Mutex<Option<PyErr>>,
}

impl TorchMemory {
    /// `None` if no sample is torch's, or if torch cannot use devices.
    pub fn for_samples(
        engine: &Engine,
        producers: &Producers,
        ordinal: u32,
    ) -> windrow::Result<Option<Arc<TorchMemory>>> {
        let Some(api) = producers.torch else { return Ok(None) };
        Python::attach(|py| {
            let stream = match has_devices(py) {
                Ok(false) => return Ok(None),
                Ok(true) => current_of(api, ordinal).ok_or_else(|| PyErr::fetch(py)),
                Err(error) => Err(error),
            };
            let stream = stream.map_err(|error| Error::Argument(format!("torch: {error}")))?;
            let (engine, raised) = (engine.clone(), Mutex::default());
            Ok(Some(Arc::new(TorchMemory { stream, engine, raised })))
        })
    }

    /// What torch raised, the cause of the error that came of it.
    pub fn take_raised(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl OutputMemory for TorchMemory {
    fn stream(&self) -> Stream {
        self.stream
    }

    fn allocate(
        &self,
        dtype: DType,
        shape: &[i64],
        ordinal: u32,
    ) -> windrow::Result<Option<Tensor>> {
        let ask = || Python::attach(|py| empty(py, dtype, shape, ordinal));
        let answer = ask().or_else(|error| {
            if !is_out_of_memory(&error) {
                return Err(error);
            }
            self.engine.empty_cache();
            ask()
        });
        answer.map_err(|error| {
            let extents = shape.iter().map(|&extent| extent as u64);
            let text = match is_out_of_memory(&error) {
                true => Error::OutOfMemory {
                    bytes: extents.fold(dtype.size() as u64, u64::saturating_mul),
                },
                false => Error::Argument(format!("torch.empty: {error}")),
            };
            *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            text
        })
    }
}

/// Whether this torch can use CUDA devices; one built or started without them still has host tensors. Once it can, it is
/// not asked again: that takes longer than all else.
fn has_devices(py: Python<'_>) -> PyResult<bool> {
    static AVAILABLE: Mutex<Option<Py<PyAny>>> = Mutex::new(None);
    let known = || AVAILABLE.lock().unwrap_or_else(PoisonError::into_inner);
    let cuda = torch(py)?.getattr(intern!(py, "cuda"))?;
    let asked = cuda.getattr(intern!(py, "is_available"))?;
    if known().as_ref().is_some_and(|known| known.is(&asked)) {
        return Ok(true);
    }
    let is_available = asked.call0()?.is_truthy()?;
    if is_available {
        let before = known().replace(asked.unbind());
        drop(before);
    }
    Ok(is_available)
}

fn torch(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import(intern!(py, "torch"))
}

/// `torch.empty`; `None` for a dtype that torch does not have.
fn empty(py: Python<'_>, dtype: DType, shape: &[i64], ordinal: u32) -> PyResult<Option<Tensor>> {
    let torch = torch(py)?;
    let Some(dtype) = torch.getattr_opt(dtype.name())? else { return Ok(None) };
    let kwargs = PyDict::new(py);
    kwargs.set_item(intern!(py, "dtype"), dtype)?;
    kwargs.set_item(intern!(py, "device"), format!("cuda:{ordinal}"))?;
    let tensor = torch.call_method(intern!(py, "empty"), (shape,), Some(&kwargs))?;
    let output = tensor_of(&tensor, "torch.empty", Reading::OWNED)?;
    Ok(Some(ImportOwner::wrap(&output, producers_of(&output), Some(tensor.unbind()))))
}

fn is_out_of_memory(error: &PyErr) -> bool {
    Python::attach(|py| {
        let class = torch(py).and_then(|torch| torch.getattr(intern!(py, "OutOfMemoryError")));
        class.is_ok_and(|class| error.is_instance(py, &class))
    })
}
