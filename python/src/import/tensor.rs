//! A single array-like as a tensor: `asarray`, and arguments that are arrays.

use std::sync::Arc;

use pyo3::prelude::*;
use windrow::{Device, Error, Owner, Tensor};

use crate::ground::batch::PyBatch;
use crate::ground::dtype::in_other_order;
use crate::ground::errors::to_py_err;
use crate::ground::tensor::PyTensor;
use crate::import::importer::{Importer, Reading};
use crate::ownership::owner::in_place;
use crate::ownership::places::Places;
use crate::ownership::visible::with_own_references;

/// A single array-like as a tensor of the same memory. `name`: of the argument that it is.
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

/// As [`tensor_of`], of an array whose parts are samples: its byte order may be another one.
pub(crate) fn table_of(
    object: &Bound<'_, PyAny>,
    name: &'static str,
    reading: Reading<'_>,
) -> PyResult<Tensor> {
    let py = object.py();
    // Ours as it is: what also kept the object would grow with every result that is an output again.
    if let Ok(tensor) = object.cast_exact::<PyTensor>() {
        return in_place(py, tensor.get().inner()).map(|tensor| with_own_references(py, tensor));
    }
    if let Ok(batch) = object.cast_exact::<PyBatch>() {
        return in_place(py, batch.get().inner()).map(|tensor| with_own_references(py, tensor));
    }
    let mut importer = Importer::new(py, reading);
    importer.argument = Some(name);
    importer.import_one(object, 0)?;
    let Importer { list, mut owner, places, .. } = importer;
    owner.objects.push(object.clone().unbind());
    owner.places = Places::from(places);
    let meta = list.meta(0);
    if meta.device == Device::Cpu {
        let lent = owner.take_lent(py)?;
        owner.objects.extend(lent);
    }
    let owner: Owner = Arc::new(owner);
    // SAFETY: `owner` holds the object and whatever it lent us.
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
