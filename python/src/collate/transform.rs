//! `Transform`: arithmetic and axis order on the way.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use windrow::collate::PerDim;
use windrow::Transform;

use crate::ground::arguments::{call_text, none_unknown, number_argument, per_dim};

/// ``(x * scale - mean[c]) / std[c]`` for each element, then a permutation of the sample's dims.
///
/// Computed as one fused multiply-add ``x * a[c] + b[c]``, with ``a = scale / std`` and ``b = -mean / std`` formed in float64. The
/// multiply-add is in float32, or in float64 when source or result is float64; its result is rounded once, to nearest even.
///
/// Args:
///     scale (float): multiplies first; ``1 / 255`` for 8-bit images.
///     mean, std (float or sequence): one number, or one for each channel.
///     channel_dim (int): sample dim of the channels, before ``permute``; None: the only dim with as many entries as ``mean`` or
///         ``std`` in all samples that is neither joined nor in ``dims``, else ValueError.
///     permute (sequence of int): order of the sample's dims in the batch, as for ``numpy.transpose``.
///
/// The call raises ``ValueError`` if ``scale / std`` or ``-mean / std`` is not finite, as with a ``std`` of 0. With ``scale``,
/// ``mean`` or ``std``, integer and bool samples need ``dtype=``, such as ``"float32"``; without it the call raises `DTypeError`. An
/// integer dtype truncates the result toward zero and saturates it: bytes scaled by ``1 / 255`` become 0 and 1. One
/// that changes no element, as of scale 1 and mean 0, casts as ``dtype=`` alone does, which wraps integers around.
///
/// Examples:
///     >>> import windrow as wr
///     >>> chw = wr.Transform(scale=1 / 255, mean=[0.5, 0.5, 0.5], std=[0.5, 0.5, 0.5],
///     ...                    channel_dim=2, permute=(2, 0, 1))
///     >>> image = wr.asarray(memoryview(bytes(2 * 2 * 3)).cast("B", (2, 2, 3)))
///     >>> wr.stack([image], dtype="float32", transform=chw).shape
///     (1, 3, 2, 2)
#[pyclass(name = "Transform", module = "windrow", frozen)]
pub(crate) struct PyTransform {
    pub transform: Transform,
    // The arguments for the text and for pickles: `scale` always, the others if they were given. A single number of `mean`,
    // `std` or `permute` is a list of one here.
    kwargs: Py<PyDict>,
}

#[pymethods]
impl PyTransform {
    // TypeError for an argument of another type, a bool and an unknown name too; ValueError for an empty `mean` or `std`, and
    // for a number of these or of `permute` that is beyond 64 bits. The call that uses the transform checks the rest.
    #[new]
    #[pyo3(
        signature = (scale = None, mean = None, std = None, channel_dim = None, permute = None, **unknown),
        text_signature = "(scale=1.0, mean=None, std=None, channel_dim=None, permute=None)"
    )]
    fn new(
        py: Python<'_>,
        scale: Option<&Bound<'_, PyAny>>,
        mean: Option<Bound<'_, PyAny>>,
        std: Option<Bound<'_, PyAny>>,
        channel_dim: Option<&Bound<'_, PyAny>>,
        permute: Option<Bound<'_, PyAny>>,
        unknown: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyTransform> {
        none_unknown("Transform", unknown)?;
        let kwargs = PyDict::new(py);
        let scale = scale.map_or(Ok(1.0), |scale| number_argument(scale, "scale", "a number"))?;
        let mut transform = Transform::new().scale(scale);
        kwargs.set_item("scale", scale)?;
        let numbers = |item: &Bound<'_, PyAny>, name: &str| -> PyResult<Vec<f64>> {
            Ok(match per_dim::<f64>(item, name, "a number, or one for each channel")? {
                PerDim::All(one) => vec![one],
                PerDim::Each(each) if each.is_empty() => {
                    return Err(PyValueError::new_err(format!("{name} is empty")))
                }
                PerDim::Each(each) => each,
            })
        };
        if let Some(mean) = mean {
            let mean = numbers(&mean, "mean")?;
            kwargs.set_item("mean", &mean)?;
            transform = transform.mean(mean);
        }
        if let Some(std) = std {
            let std = numbers(&std, "std")?;
            kwargs.set_item("std", &std)?;
            transform = transform.std(std);
        }
        if let Some(dim) = channel_dim {
            let dim = number_argument(dim, "channel_dim", "an int")?;
            kwargs.set_item("channel_dim", dim)?;
            transform = transform.channel_dim(dim);
        }
        if let Some(permute) = permute {
            let order = match per_dim::<i64>(&permute, "permute", "an order of dims")? {
                PerDim::All(dim) => vec![dim],
                PerDim::Each(dims) => dims,
            };
            kwargs.set_item("permute", &order)?;
            transform = transform.permute(order);
        }
        Ok(PyTransform { transform, kwargs: kwargs.unbind() })
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> ((), Bound<'py, PyDict>) {
        ((), self.kwargs.bind(py).clone())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        call_text("Transform", self.kwargs.bind(py))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<PyTransform>().is_ok_and(|other| other.get().transform == self.transform)
    }
}
