//! Torch's tensors that are to travel together.
#![allow(unsafe_code)] // Copies of storages.

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use windrow::workers::{self, Parcel, Sent};
use windrow::{DType, Layout, Tensor};

use crate::ground::errors::answered;
use crate::import::importer::Reading;
use crate::import::tensor::tensor_of;
use crate::workers::allocated;

/// The tensors of a message. Those that are not in the pool are copied there as it is sent.
#[pyclass(name = "_Parcel", module = "windrow")]
#[derive(Default)]
pub(crate) struct PyParcel {
    tensors: Vec<Added>,
    /// Storages that are copied whole, so that tensors which share one still do.
    storages: Vec<Storage>,
}

struct Added {
    /// A tensor in pageable memory, without gradients.
    tensor: Tensor,
    /// The position of its storage, if that is copied.
    storage: Option<usize>,
}

/// A storage that is copied; `address` is that of its memory.
struct Storage {
    address: usize,
    bytes: usize,
    _kept: Py<PyAny>,
}

#[pymethods]
impl PyParcel {
    #[new]
    fn new() -> PyParcel {
        PyParcel::default()
    }

    /// Adds a torch tensor; its position in the message. None: it is to be sent as torch does, since it requires grad, is not
    /// dense in pageable memory, or is not in the pool and `may_copy` is false or `storage_of` gives none.
    #[pyo3(signature = (tensor, may_copy))]
    fn add(&mut self, tensor: &Bound<'_, PyAny>, may_copy: bool) -> PyResult<Option<usize>> {
        let py = tensor.py();
        if tensor.getattr(intern!(py, "requires_grad"))?.is_truthy()? {
            return Ok(None);
        }
        let read = match answered(py, tensor_of(tensor, "tensor", Reading::OWNED))? {
            Ok(read) if read.device() == windrow::Device::Cpu => read,
            _ => return Ok(None),
        };
        let storage = match workers::is_own(read.data_ptr()) {
            true => None,
            false if may_copy => match self.storage_of(tensor, &read)? {
                None => return Ok(None),
                storage => storage,
            },
            false => return Ok(None),
        };
        self.tensors.push(Added { tensor: read, storage });
        Ok(Some(self.tensors.len() - 1))
    }

    /// The message. None: there is no pool, no room for the copies below the limit of bytes, or no claim for a block, and nothing
    /// is sent. MemoryError: the system has no memory.
    fn send(&self, py: Python<'_>, limit: u64) -> PyResult<Option<PySent>> {
        let bytes = |storage: &Storage| Layout::compact(DType::U8, &[storage.bytes as i64]);
        let layouts = self.storages.iter().map(|storage| Ok((DType::U8, bytes(storage)?)));
        let layouts = layouts.collect::<windrow::Result<Vec<_>>>();
        let layouts = layouts.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        let Some(copies) = allocated(py, &layouts, limit)? else { return Ok(None) };
        for (storage, copy) in self.storages.iter().zip(&copies) {
            let source = storage.address as *const u8;
            debug_assert_eq!(copy.nbytes(), storage.bytes);
            debug_assert!(!source.is_null());
            // SAFETY: all of a storage, as torch says, which is kept; a copy of as many bytes, which nothing else has yet.
            unsafe { std::ptr::copy_nonoverlapping(source, copy.data_ptr(), storage.bytes) };
        }
        let mut parcel = Parcel::default();
        for Added { tensor, storage } in &self.tensors {
            let data = match storage {
                None => tensor.data_ptr(),
                Some(index) => {
                    let start = tensor.data_ptr() as usize - self.storages[*index].address;
                    copies[*index].data_ptr().wrapping_add(start)
                }
            };
            if !parcel.add(data, tensor.dtype(), tensor.layout()) {
                return Ok(None);
            }
        }
        Ok(parcel.send().map(PySent))
    }
}

impl PyParcel {
    /// The position of a tensor's storage among those that are copied, where it is added if it is new. `None`: it is in memory
    /// that is shared already, has no bytes, is larger than the tensor or does not contain it. torch moves such a storage to
    /// shared memory once, for all its tensors.
    fn storage_of(&mut self, tensor: &Bound<'_, PyAny>, read: &Tensor) -> PyResult<Option<usize>> {
        let py = tensor.py();
        let storage = tensor.call_method0(intern!(py, "untyped_storage"))?;
        let address: usize = storage.call_method0(intern!(py, "data_ptr"))?.extract()?;
        let bytes: usize = storage.call_method0(intern!(py, "nbytes"))?.extract()?;
        let is_same = |known: &Storage| (known.address, known.bytes) == (address, bytes);
        if let Some(known) = self.storages.iter().position(is_same) {
            return Ok(Some(known));
        }
        let own_bytes = read.layout().numel() as usize * read.dtype().size();
        let span = read.layout().byte_span(read.dtype());
        let begin = (read.data_ptr() as usize).checked_sub(address);
        let is_inside =
            begin.is_some_and(|begin| span.start >= 0 && begin + span.end as usize <= bytes);
        if bytes == 0 || bytes > own_bytes || !is_inside {
            return Ok(None);
        }
        if storage.call_method0(intern!(py, "is_shared"))?.is_truthy()? {
            return Ok(None);
        }
        self.storages.push(Storage { address, bytes, _kept: storage.unbind() });
        Ok(Some(self.storages.len() - 1))
    }
}

/// A message on its way. If it is dropped before it is taken, its blocks are free again.
#[pyclass(name = "_Sent", module = "windrow")]
pub(crate) struct PySent(Sent);

#[pymethods]
impl PySent {
    /// The message, once; RuntimeError after that.
    fn take(&mut self) -> PyResult<Vec<u8>> {
        let text = "a batch of a worker process is sent once";
        self.0.hand_over().ok_or_else(|| PyRuntimeError::new_err(text))
    }
}
