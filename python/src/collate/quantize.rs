//! `Quantize` and `Dequantize`: elements that share a scale are divided by it, or multiplied.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use windrow::collate::{AnyTransform, Granularity, Scales};
use windrow::{DType, Dequantize, Quantize, Tensor};

use crate::collate::transform::PyTransform;
use crate::ground::arguments::{call_text, number_argument, NoBool};
use crate::ground::dtype::dtype_of;
use crate::ground::errors::{is_answer, quoted, OrPyErr};
use crate::ground::reserve::push_to;
use crate::import::importer::Reading;
use crate::import::tensor::table_of;
use crate::ownership::holder::{unmoved, visit_tensor, Visited};

/// Divides elements by a scale that is found on the way, and rounds them to float8 or int8: a ``transform=``.
///
/// The elements that share a scale are read for the largest magnitude among them, ``amax``, in float32, float64 rounded to it. The scale
/// is ``max(amax, eps) / largest``, in float32, where ``largest`` is 448 (float8_e4m3fn), 57344 (float8_e5m2) or 127 (int8). The
/// result is ``x / scale``, in float32, rounded to nearest even and saturated.
///
/// Args:
///     dtype: ``"float8_e4m3fn"``, ``"float8_e5m2"`` or ``"int8"``.
///     scale (str or int): ``"sample"``: one scale for each sample. ``"row"``: one for each row of the last dim; where that is the dim that
///         is joined or padded, as of 1-d samples, the row is the sample. A block length: one for each block of this many
///         elements along the last dim, of which the last may be shorter; ValueError where that dim is joined or padded.
///     scale_dtype: ``"float32"``; or, not for int8, ``"e8m0"``: powers of two as float8_e8m0fnu, those of OCP MX:
///         ``2 ** (floor(log2(max(amax, eps))) - e)`` with ``e`` 8 for float8_e4m3fn and 15 for float8_e5m2, at least ``2 ** -127``.
///     eps (float): the least magnitude that a scale is made of, positive.
///
/// ``Batch.scales`` has the scales: of samples ``[N]``; of rows the shape of ``data`` without its last dim; of blocks the same with the
/// number of blocks in its place. Padding has scale 1 and ``value`` as given. ``out=`` takes a pair ``(data, scales)``.
///
/// Rows of zeros have ``eps / largest`` as scale and stay zeros, -0 too; so do samples and rows without elements. NaN does not
/// count for ``amax`` and stays NaN, in int8 0. An infinity makes a float32 scale infinite: results are then 0, and NaN of infinities, in
/// int8 0; of powers of two, which have no infinity, NaN, and all results NaN. Subnormal numbers count as what they are, in ``amax`` and in results.
///
/// Samples are floating point: integers are a DTypeError. ``dtype=`` beside it is a ValueError, for the batch has its ``dtype``. A
/// batch is quantised by the device that its samples are on or that it goes to, else on the host; so is each pair of `copy_many`. Within `wr.List` and classes whose leaves are torch tensors, where scales have no place, it is a
/// ValueError.
///
/// Raises:
///     ValueError: an argument with a wrong value.
///
/// Examples:
///     >>> import windrow as wr
///     >>> batch = wr.stack([[1.0, -127.0], [0.0, 0.5]], transform=wr.Quantize("int8"))
///     >>> memoryview(batch).tolist(), memoryview(batch.scales).tolist()[0]
///     ([[1, -127], [0, 127]], 1.0)
#[pyclass(name = "Quantize", module = "windrow", frozen)]
pub(crate) struct PyQuantize {
    quantize: Quantize,
    kwargs: Py<PyDict>,
}

#[pymethods]
impl PyQuantize {
    #[new]
    #[pyo3(
        signature = (dtype, scale = None, scale_dtype = None, eps = None),
        text_signature = "(dtype, scale='row', scale_dtype='float32', eps=1e-12)"
    )]
    fn new(
        dtype: &Bound<'_, PyAny>,
        scale: Option<&Bound<'_, PyAny>>,
        scale_dtype: Option<&Bound<'_, PyAny>>,
        eps: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyQuantize> {
        let py = dtype.py();
        let mut quantize = Quantize::new(dtype_of(dtype)?);
        let kwargs = PyDict::new(py);
        kwargs.set_item("dtype", dtype_of(dtype)?.name())?;
        if let Some(scale) = scale {
            quantize = quantize.scale(granularity_of(scale)?);
            kwargs.set_item("scale", scale)?;
        }
        if let Some(scale_dtype) = scale_dtype {
            let dtype = scale_dtype_of(scale_dtype)?;
            quantize = quantize.scale_dtype(dtype);
            kwargs.set_item("scale_dtype", dtype.name())?;
        }
        if let Some(eps) = eps {
            let eps = number_argument(eps, "eps", "a number")?;
            quantize = quantize.eps(eps);
            kwargs.set_item("eps", eps)?;
        }
        quantize.check().map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(PyQuantize { quantize, kwargs: kwargs.unbind() })
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> ((), Bound<'py, PyDict>) {
        ((), self.kwargs.bind(py).clone())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        call_text("Quantize", self.kwargs.bind(py))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<PyQuantize>().is_ok_and(|other| other.get().quantize == self.quantize)
    }
}

/// The granularity of `scale=`. Its range is checked with the whole.
fn granularity_of(scale: &Bound<'_, PyAny>) -> PyResult<Granularity> {
    let text = || -> PyResult<String> {
        Ok(format!("scale must be \"sample\", \"row\" or a block length, got {}", quoted(scale)?))
    };
    if let Ok(name) = scale.cast::<PyString>() {
        return match name.extract::<&str>()? {
            "sample" => Ok(Granularity::Sample),
            "row" => Ok(Granularity::Row),
            _ => Err(PyValueError::new_err(text()?)),
        };
    }
    match scale.extract::<NoBool<i64>>() {
        Ok(NoBool(elems)) => Ok(Granularity::Block(elems)),
        Err(error) if is_answer(scale.py(), &error) => Err(PyTypeError::new_err(text()?)),
        Err(error) => Err(error),
    }
}

/// The dtype of `scale_dtype=`: `"e8m0"`, or the name of any dtype. Whether scales can have it is checked with the whole.
fn scale_dtype_of(dtype: &Bound<'_, PyAny>) -> PyResult<DType> {
    if dtype.cast::<PyString>().is_ok_and(|name| name.extract::<&str>().is_ok_and(|n| n == "e8m0"))
    {
        return Ok(DType::F8E8M0FNU);
    }
    dtype_of(dtype)
}

/// Multiplies elements of int8, float8_e4m3fn or float8_e5m2 with their scales, in float32, and rounds the product to ``dtype=``: a
/// ``transform=``.
///
/// Args:
///     scales: those of the batch, an array-like as ``Batch.scales`` of a batch of this form has them: of samples ``[N]``, of rows, or of
///         blocks; where rows and samples are as many, those of rows. Or a list or tuple with one array-like, or one number, for each sample: a
///         number, or an array without dims, for all its elements, else one for each of its rows or blocks. They have a floating-point
///         dtype or float8_e8m0fnu, and are in host memory. They are read as the call begins, page-locked ones too, which waits for no device.
///     block (int): the block length, if the scales are of blocks; else None.
///
/// The call needs ``dtype=``: float16, bfloat16, float32 or float64, else DTypeError. Other samples than int8, float8_e4m3fn and
/// float8_e5m2 are a DTypeError, scales of another shape a ShapeError, scales on a device a DeviceError: copy them to the host first. A
/// batch is dequantised by the device that its samples are on or that it goes to, else on the host; so is each pair of `copy_many`.
/// Samples taken by indices on a device are a ValueError. NaN, of a sample or a scale, gives NaN. Padding keeps
/// ``value`` as given: it is not multiplied. Within `wr.List` it is a ValueError.
///
/// Raises:
///     ValueError: a ``block`` below 1.
///     TypeError: scales that are no array-like.
///
/// Examples:
///     >>> import windrow as wr
///     >>> batch = wr.ragged([[0.5, -2.0], [96.0]], transform=wr.Quantize("int8"))
///     >>> back = wr.ragged(batch, dtype="float32", transform=wr.Dequantize(batch.scales))
///     >>> [round(x, 2) for x in memoryview(back).tolist()]
///     [0.5, -2.0, 96.0]
#[pyclass(name = "Dequantize", module = "windrow", frozen)]
pub(crate) struct PyDequantize {
    scales: Py<PyAny>,
    /// One of all samples, or one for each.
    tensors: Vec<Tensor>,
    is_list: bool,
    block: Option<i64>,
}

impl PyDequantize {
    /// The transform. It has the scales for one call: references that it kept would not be seen by the collector.
    fn dequantize(&self) -> Dequantize {
        let scales: Scales = match &self.tensors[..] {
            [whole] if !self.is_list => whole.clone().into(),
            each => each.to_vec().into(),
        };
        let dequantize = Dequantize::new(scales);
        match self.block {
            Some(block) => dequantize.block(block),
            None => dequantize,
        }
    }
}

#[pymethods]
impl PyDequantize {
    #[new]
    #[pyo3(signature = (scales, block = None))]
    fn new(scales: &Bound<'_, PyAny>, block: Option<&Bound<'_, PyAny>>) -> PyResult<PyDequantize> {
        let read = |values: &Bound<'_, PyAny>| {
            table_of(values, "scales", Reading { rows: true, ..Reading::OWNED })
        };
        let is_list =
            scales.is_exact_instance_of::<PyList>() || scales.is_exact_instance_of::<PyTuple>();
        let mut tensors = Vec::new();
        if is_list {
            for item in scales.try_iter()? {
                let item = item?;
                let is_number =
                    item.is_exact_instance_of::<PyFloat>() || item.is_exact_instance_of::<PyInt>();
                push_to(
                    &mut tensors,
                    match is_number {
                        true => Tensor::from_vec(vec![item.extract::<f64>()? as f32], &[])
                            .or_py_err(item.py())?,
                        false => read(&item)?,
                    },
                )?;
            }
        } else {
            tensors.push(read(scales)?);
        }
        let block = block.map(|block| number_argument(block, "block", "an int")).transpose()?;
        let scales = scales.clone().unbind();
        let made = PyDequantize { scales, tensors, is_list, block };
        let checked = made.dequantize().check();
        checked.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(made)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Visited {
        visit.call(&self.scales)?;
        self.tensors.iter().try_for_each(|tensor| visit_tensor(tensor, &visit))
    }

    fn __getnewargs__(&self, py: Python<'_>) -> (Py<PyAny>, Option<i64>) {
        (self.scales.clone_ref(py), self.block)
    }

    fn __repr__(&self) -> String {
        let block = self.block.map(|block| format!(", block={block}")).unwrap_or_default();
        match &self.tensors[..] {
            [whole] => format!("Dequantize({} {:?}{block})", whole.dtype(), whole.shape()),
            each => format!("Dequantize({} scales{block})", each.len()),
        }
    }
}

/// The transform of `transform=`; TypeError for any other object, LayoutError if the memory of its scales was moved since.
pub(crate) fn transform_of(transform: &Bound<'_, PyAny>) -> PyResult<AnyTransform> {
    if let Ok(transform) = transform.cast::<PyTransform>() {
        return Ok(transform.get().transform.clone().into());
    }
    if let Ok(quantize) = transform.cast::<PyQuantize>() {
        return Ok(quantize.get().quantize.into());
    }
    if let Ok(dequantize) = transform.cast::<PyDequantize>() {
        let dequantize = dequantize.get();
        for tensor in &dequantize.tensors {
            unmoved(transform.py(), tensor)?;
        }
        return Ok(dequantize.dequantize().into());
    }
    let text = format!(
        "transform must be a wr.Transform, wr.Quantize or wr.Dequantize, got {}",
        transform.repr()?
    );
    Err(PyTypeError::new_err(text))
}
