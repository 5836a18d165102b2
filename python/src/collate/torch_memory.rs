//! Outputs in torch's memory: a batch on a device is a torch tensor itself, from torch's caching allocator, if its samples
//! are torch's, or if they are on the host and torch uses devices. torch protects memory of its own alone: what it computes
//! with it on further streams is told by `record_stream`, which does nothing for memory of others.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use windrow::bindings::relaxed;
use windrow::dlpack::DLPackExchangeAPI;
use windrow::engine::{OutputMemory, PinnedMemory};
use windrow::tensor::Owner;
use windrow::{DType, Device, Engine, Error, Plan, Stream, Tensor};

use crate::collate::job::Job;
use crate::ground::stream::current_of;
use crate::import::importer::Reading;
use crate::import::routes::{exchange_api, torch_api};
use crate::import::tensor::tensor_of;
use crate::ownership::holder::{producers_of, Holder};
use crate::ownership::producers::Producers;
use crate::ownership::ready::torch_stream;

/// The allocator of outputs on a device.
#[derive(Clone, Copy)]
pub(crate) enum OutputAllocator {
    /// The engine's own pool.
    Windrow,
    /// torch, on its current stream: samples are torch's.
    TorchOnCurrent(&'static DLPackExchangeAPI),
    /// torch, on a stream of the engine's: samples are on the host, and go up beside what torch computes.
    TorchBeside(&'static DLPackExchangeAPI),
}

impl OutputAllocator {
    /// Chooses the allocator of a plan whose samples wait for `producers`.
    pub fn for_plan(plan: &Plan<'_>, producers: &Producers) -> windrow::Result<OutputAllocator> {
        let is_on_device = |device: Device| matches!(device, Device::Cuda(_));
        if !plan.batch_shapes().iter().any(|shape| is_on_device(shape.device)) {
            return Ok(OutputAllocator::Windrow);
        }
        let are_on_host = !plan.batch_shapes().iter().any(|shape| is_on_device(shape.source));
        let allocator = Python::attach(|py| match producers.torch {
            Some(api) if has_devices(py)? => Ok(OutputAllocator::TorchOnCurrent(api)),
            None if are_on_host => {
                Ok(used_table(py)?.map_or(OutputAllocator::Windrow, OutputAllocator::TorchBeside))
            }
            _ => Ok(OutputAllocator::Windrow),
        });
        allocator.map_err(from_torch)
    }

    /// The library that gives the memory of outputs: ``"torch"`` or ``"windrow"`` on a device, ``"torch"`` for page-locked memory
    /// that it lends, else `None`.
    pub fn name_for(plan: &Plan<'_>, jobs: &[Job]) -> windrow::Result<Option<&'static str>> {
        let is_in = |device: fn(&Device) -> bool| {
            plan.batch_shapes().iter().any(|shape| device(&shape.device))
        };
        if !is_in(|device| matches!(device, Device::Cuda(_))) {
            let has_pinned = is_in(|device| *device == Device::Pinned);
            let pinned = has_pinned.then(TorchPinned::used).transpose()?;
            return Ok(pinned.flatten().map(|_| "torch"));
        }
        let mut producers = Producers::default();
        for job in jobs {
            producers.merge(&job.samples.producers());
        }
        Ok(Some(match OutputAllocator::for_plan(plan, &producers)? {
            OutputAllocator::Windrow => "windrow",
            OutputAllocator::TorchOnCurrent(_) | OutputAllocator::TorchBeside(_) => "torch",
        }))
    }

    /// The memory for the outputs of one call on the device `ordinal`; `None` if the engine gives it.
    pub fn memory(
        self,
        engine: &Engine,
        ordinal: u32,
    ) -> windrow::Result<Option<Arc<TorchMemory>>> {
        let (stream, torch_stream, owner, capture) = match self {
            OutputAllocator::Windrow => return Ok(None),
            OutputAllocator::TorchOnCurrent(api) => Python::attach(|py| {
                let stream = current_of(api, ordinal).ok_or_else(|| from_torch(PyErr::fetch(py)));
                Ok::<_, Error>((stream?, None, None, None))
            })?,
            OutputAllocator::TorchBeside(api) => {
                let stream = engine.stream(ordinal)?;
                let (current, torch_stream) = Python::attach(|py| {
                    let current = current_of(api, ordinal).ok_or_else(|| PyErr::fetch(py))?;
                    Ok((current, torch_stream(py, stream, ordinal)?.unbind()))
                })
                .map_err(from_torch)?;
                let capture = engine.capture_of(ordinal, current)?;
                (stream, Some(torch_stream), Some(engine.stream_owner(ordinal)?), capture)
            }
        };
        let (engine, raised) = (engine.clone(), Mutex::default());
        Ok(Some(Arc::new(TorchMemory { stream, torch_stream, owner, capture, engine, raised })))
    }
}

/// An exception of torch's as [`Error::Argument`], by its text.
fn from_torch(error: PyErr) -> Error {
    Error::argument(format!("torch: {error}"))
}

/// torch's allocator, for one call.
#[derive(Debug)]
pub(crate) struct TorchMemory {
    stream: Stream,
    /// The same stream as a torch stream, if it is not the current one.
    torch_stream: Option<Py<PyAny>>,
    /// The owner that keeps the stream as long as the memory.
    owner: Option<Owner>,
    /// The capture that torch's current stream is in, if the stream of the memory is another one.
    capture: Option<u64>,
    /// The engine, whose unused memory is given back where torch has none left.
    engine: Engine,
    /// The exception that torch raised, which is more than an `Error` can say.
    raised: Mutex<Option<PyErr>>,
}

impl TorchMemory {
    /// `torch.empty`, in the order of the stream; `None` for a dtype that torch does not have.
    fn empty(
        &self,
        py: Python<'_>,
        dtype: DType,
        shape: &[i64],
        ordinal: u32,
    ) -> PyResult<Option<Tensor>> {
        let beside = (self.owner.clone(), self.capture);
        let Some(torch_stream) = &self.torch_stream else {
            return empty(py, dtype, shape, ordinal, beside);
        };
        let cuda = torch(py)?.getattr(intern!(py, "cuda"))?;
        let scope = cuda.call_method1(intern!(py, "stream"), (torch_stream,))?;
        scope.call_method0(intern!(py, "__enter__"))?;
        let tensor = empty(py, dtype, shape, ordinal, beside);
        let none = py.None();
        scope.call_method1(intern!(py, "__exit__"), (&none, &none, &none))?;
        tensor
    }

    /// Takes the exception that torch raised, the cause of the error of [`TorchMemory::allocate`].
    pub fn take_raised(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl OutputMemory for TorchMemory {
    fn stream(&self) -> Stream {
        self.stream
    }

    /// Asks torch; where it is out of memory, again after the engine has given back memory that nothing uses, at last after a
    /// wait.
    fn allocate(
        &self,
        dtype: DType,
        shape: &[i64],
        ordinal: u32,
    ) -> windrow::Result<Option<Tensor>> {
        let ask = || Python::attach(|py| self.empty(py, dtype, shape, ordinal));
        let answer = ask().or_else(|error| {
            if !is_out_of_memory(&error) {
                return Err(error);
            }
            // torch reports a failure of the device itself.
            let has_more = self.engine.trim(ordinal, false).unwrap_or(false);
            match ask() {
                Err(error) if has_more && is_out_of_memory(&error) => {
                    let _ = self.engine.trim(ordinal, true);
                    ask()
                }
                answer => answer,
            }
        });
        answer.map_err(|error| {
            let extents = shape.iter().map(|&extent| extent as u64);
            let text = match is_out_of_memory(&error) {
                true => Error::OutOfMemory {
                    bytes: extents.fold(dtype.size() as u64, u64::saturating_mul),
                },
                false => Error::argument(format!("torch.empty: {error}")),
            };
            *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            text
        })
    }
}

/// torch's allocator of page-locked memory, which knows the streams that torch copies on.
#[derive(Debug)]
pub(crate) struct TorchPinned;

impl TorchPinned {
    /// An allocator of torch's page-locked memory; `None` unless the program uses devices with torch.
    pub fn used() -> windrow::Result<Option<Arc<dyn PinnedMemory>>> {
        let table = Python::attach(used_table).map_err(from_torch)?;
        Ok(table.map(|_| Arc::new(TorchPinned) as Arc<dyn PinnedMemory>))
    }
}

impl PinnedMemory for TorchPinned {
    /// `None` for a dtype that torch does not have, and after any exception of torch's, such as of one that locks no pages.
    fn allocate(&self, dtype: DType, shape: &[i64]) -> Option<Tensor> {
        Python::attach(|py| -> PyResult<Option<Tensor>> {
            // torch's pinned allocator queries the events of copies from memory that is unused by now.
            let made = relaxed(|| torch_empty(py, dtype, shape, "cpu", true))?;
            Ok(made.map(|(output, object)| {
                Holder::lent(&output, Device::Pinned, Producers::default(), object, None)
            }))
        })
        .ok()
        .flatten()
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

/// The exchange table of torch; `None` unless the program has imported a torch that offers it, and uses devices with
/// it.
pub(crate) fn used_table(py: Python<'_>) -> PyResult<Option<&'static DLPackExchangeAPI>> {
    if torch_api(py)?.is_none() {
        return Ok(None);
    }
    let (cuda, class) = (intern!(py, "cuda"), intern!(py, "Tensor"));
    match torch(py)?.getattr(cuda)?.call_method0(intern!(py, "is_initialized"))?.is_truthy()? {
        true => exchange_api(torch(py)?.getattr(class)?.cast()?),
        false => Ok(None),
    }
}

/// The module torch; an ImportError without it.
fn torch(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import(intern!(py, "torch"))
}

/// Memory of torch's on a device; `None` for a dtype that torch does not have. If it is written beside torch's current stream: the owner
/// of the stream that it belongs to, and the capture that torch's is in.
fn empty(
    py: Python<'_>,
    dtype: DType,
    shape: &[i64],
    ordinal: u32,
    (stream, capture): (Option<Owner>, Option<u64>),
) -> PyResult<Option<Tensor>> {
    let made = torch_empty(py, dtype, shape, &format!("cuda:{ordinal}"), false)?;
    Ok(made.map(|(output, object)| {
        let producers = Producers { made_beside: capture, ..producers_of(&output) };
        Holder::lent(&output, output.device(), producers, object, stream)
    }))
}

/// `torch.empty`, and the tensor as its lender; `None` for a dtype that torch does not have.
fn torch_empty(
    py: Python<'_>,
    dtype: DType,
    shape: &[i64],
    device: &str,
    is_pinned: bool,
) -> PyResult<Option<(Tensor, Py<PyAny>)>> {
    let torch = torch(py)?;
    let Some(dtype) = torch.getattr_opt(dtype.name())? else { return Ok(None) };
    let kwargs = PyDict::new(py);
    kwargs.set_item(intern!(py, "dtype"), dtype)?;
    kwargs.set_item(intern!(py, "device"), device)?;
    if is_pinned {
        kwargs.set_item(intern!(py, "pin_memory"), true)?;
    }
    let tensor = torch.call_method(intern!(py, "empty"), (shape,), Some(&kwargs))?;
    Ok(Some((tensor_of(&tensor, "torch.empty", Reading::OWNED)?, tensor.unbind())))
}

/// Whether an exception is torch's OutOfMemoryError.
fn is_out_of_memory(error: &PyErr) -> bool {
    Python::attach(|py| {
        let class = torch(py).and_then(|torch| torch.getattr(intern!(py, "OutOfMemoryError")));
        class.is_ok_and(|class| error.is_instance(py, &class))
    })
}
