//! `Batch` of the package: the object. Its methods are in `classes/batch.rs`.

use std::sync::Arc;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use windrow::{Batch, Tensor};

use crate::ground::tensor::PyTensor;

/// One assembled batch. It stands for its ``data`` wherever an array-like is taken.
///
/// ``batch[i]`` is sample ``i`` without its padding, a `Tensor` in the memory of the batch. ``len(batch)`` is the number of samples, and
/// iteration gives one after the other. Slices and further indices are for ``batch.numpy()`` and ``batch.torch()``. A page-locked batch
/// is pickled as one of the host.
///
/// Attributes:
///     data (Tensor): the samples, assembled.
///     lengths (Tensor or None): real length of each sample: int64 ``[N]``, or ``[N, k]`` if ``k != 1`` dims are padded.
///     offsets (Tensor or None): where each sample begins along the joined dim, and the end of the last, ``[N + 1]``; int64, or the
///         ``offsets_dtype`` of `ragged`.
///     mask (Tensor or None): ``[N, *padded dims]``, if requested; bool, or the given ``mask_dtype``.
///     batch_index (Tensor or None): sample of each row, int64 ``[sum]``, if asked for.
///     scales (Tensor or None): by which `Quantize` divided, float32 or float8_e8m0fnu: of samples ``[N]``, of rows the shape of
///         ``data`` without its last dim, of blocks the same with the number of blocks in its place.
///     arena (Tensor or None): uint8, the one allocation of all leaves of `collate`, if asked for; the
///         same object for each of them.
///     arena_layout (dict or None): the place in the arena of each tensor that this batch has: name to dtype, shape and byte offset.
///     max_length (int or None): the largest length of a ragged batch.
///     shape, dtype, device, ndim, nbytes: those of ``data``.
#[pyclass(name = "Batch", module = "windrow", frozen, weakref)]
pub(crate) struct PyBatch {
    batch: Batch,
    /// Each field as an object, made when first asked for.
    fields: [PyOnceLock<Option<Py<PyTensor>>>; 7],
    /// torch's tensor of the offsets, by which torch knows ragged sizes that are the same.
    pub nested_offsets: PyOnceLock<Py<PyAny>>,
}

impl From<Batch> for PyBatch {
    #[inline]
    fn from(batch: Batch) -> Self {
        let (fields, nested_offsets) = ([const { PyOnceLock::new() }; 7], PyOnceLock::new());
        PyBatch { batch, fields, nested_offsets }
    }
}

impl PyBatch {
    /// One of several batches of one arena, which is the same object for all.
    #[inline]
    pub fn in_arena(batch: Batch, arena: Option<&Bound<'_, PyTensor>>) -> PyBatch {
        let batch = PyBatch::from(batch);
        if let Some(arena) = arena {
            // Nothing has asked for it yet.
            let _ = batch.fields[5].set(arena.py(), Some(arena.clone().unbind()));
        }
        batch
    }

    /// The data of the batch.
    pub fn inner(&self) -> &Tensor {
        self.batch.data()
    }

    /// Whether all tensors of the batch, the arena too, are parts of the one allocation that [`PyBatch::inner`] is in.
    pub fn is_all_memory(&self) -> bool {
        let owner = self.inner().owner();
        let is_its = |tensor: &Tensor| Arc::ptr_eq(tensor.owner(), owner);
        self.tensors().all(|(_, tensor)| is_its(tensor)) && self.batch.arena().is_none_or(is_its)
    }

    /// The batch itself.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// The tensors that there are, by name, `data` first; the arena is not among them.
    pub fn tensors(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        let fields = [
            ("data", Some(self.batch.data())),
            ("lengths", self.batch.lengths()),
            ("offsets", self.batch.offsets()),
            ("mask", self.batch.mask()),
            ("batch_index", self.batch.batch_index()),
            ("scales", self.batch.scales()),
        ];
        fields.into_iter().filter_map(|(name, tensor)| Some((name, tensor?)))
    }

    /// The field of number `position`, below 7, as an object, the same each time; `None` if `tensor`, which is asked the first
    /// time only, gives none.
    pub fn field(
        &self,
        py: Python<'_>,
        position: usize,
        tensor: impl FnOnce() -> Option<Tensor>,
    ) -> PyResult<Option<Py<PyTensor>>> {
        let make = || tensor().map(|tensor| Py::new(py, PyTensor::from(tensor))).transpose();
        let field = self.fields[position].get_or_try_init(py, make)?;
        Ok(field.as_ref().map(|field| field.clone_ref(py)))
    }

    /// Shows the collector the objects that were made.
    pub fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // SAFETY: the collector is attached; nothing is counted or run here.
        #[allow(unsafe_code)]
        let py = unsafe { Python::assume_attached() };
        for field in &self.fields {
            visit.call(field.get(py).and_then(Option::as_ref))?;
        }
        visit.call(self.nested_offsets.get(py))
    }
}

/// The tensor that an object of ours is or stands for; `None` for any other object.
#[inline]
pub(crate) fn tensor_in<'t>(object: &'t Bound<'_, PyAny>) -> Option<&'t Tensor> {
    match object.cast_exact::<PyTensor>() {
        Ok(tensor) => Some(tensor.get().inner()),
        Err(_) => object.cast_exact::<PyBatch>().ok().map(|batch| batch.get().inner()),
    }
}
