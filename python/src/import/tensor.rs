//! A single array-like as a tensor: `asarray`, and arguments that are arrays.

use std::sync::Arc;

use pyo3::prelude::*;
use windrow::tensor::Owner;
use windrow::{Device, Error, Tensor};

use crate::ground::batch::tensor_in;
use crate::ground::dtype::in_other_order;
use crate::ground::errors::to_py_err;
use crate::ground::reserve::out_of_memory;
use crate::ground::tensor::PyTensor;
use crate::import::importer::{Importer, Reading};
use crate::ownership::holder::{unmoved, with_own_references, Reference};
use crate::ownership::storage_watch::StorageWatches;

/// A single array-like as a tensor of the same memory; LayoutError for foreign byte order. `name`: of the argument that it is.
pub(crate) fn tensor_of(
    object: &Bound<'_, PyAny>,
    name: &'static str,
    reading: Reading<'_>,
) -> PyResult<Tensor> {
    let tensor = table_of(object, name, reading)?;
    if !tensor.dtype().is_native() {
        let error = Error::Layout(in_other_order(None, tensor.dtype()));
        return Err(to_py_err(object.py(), &error.about(name).at_path(reading.path)));
    }
    Ok(tensor)
}

/// Reads an array as [`tensor_of`] does, whose parts are samples: its byte order may be foreign. A tensor of ours
/// counts as handed out, and is refused if its memory was moved.
pub(crate) fn table_of(
    object: &Bound<'_, PyAny>,
    name: &'static str,
    reading: Reading<'_>,
) -> PyResult<Tensor> {
    let py = object.py();
    // Ours as it is: what also kept the object would grow with every result that is an output again.
    if let Some(tensor) = tensor_in(object) {
        return unmoved(py, tensor).map(|tensor| with_own_references(py, tensor));
    }
    let mut importer = Importer::new(py, reading);
    importer.argument = Some(name);
    importer.import_one(object, 0)?;
    let Importer { list, mut owner, watches, storage, .. } = importer;
    let (object, storage) = (object.clone().unbind(), storage.map(|storage| storage.object));
    let (meta, watches) = (list.meta(0), StorageWatches::from(watches));
    let owner: Owner = match meta.device {
        Device::Cpu => {
            // A storage keeps the memory by itself. A capsule that lent it would keep the tensor by a reference that the
            // collector does not see.
            let object = match &storage {
                Some(_) => object,
                None => owner.with(py, object)?,
            };
            Arc::new(Reference { object: Some(object), storage, shared: None, watches })
        }
        _ => {
            owner.objects.try_reserve(2).map_err(out_of_memory)?;
            owner.objects.extend(storage.into_iter().chain([object]));
            owner.watches = watches;
            Arc::new(owner)
        }
    };
    // SAFETY: `owner` holds the storage that the memory is in (`Importer::check_lender`), or the object and whatever it lent us.
    #[allow(unsafe_code)]
    Ok(unsafe {
        Tensor::new_unchecked(
            owner,
            list.address(0).cast_mut(),
            meta.dtype,
            meta.device,
            meta.layout.clone(),
            list.is_read_only(),
        )
    })
}

/// A `Tensor` over the memory of any array-like. It keeps the array-like alive, and for a torch tensor the storage as well. If the
/// owner moves the memory later, the next use of the tensor raises LayoutError, as for `SampleList`. Python numbers, and lists and
/// tuples of them, are copied.
///
/// Raises:
///     TypeError: if ``x`` is not an array-like.
///     LayoutError: if its memory cannot be expressed or is of foreign byte order, and for a torch tensor that requires grad while
///         torch's grad mode is on.
#[pyfunction]
#[pyo3(signature = (x, /))]
pub(crate) fn asarray(x: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
    tensor_of(x, "x", Reading::OWNED).map(PyTensor::from)
}
