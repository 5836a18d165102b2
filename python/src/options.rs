//! Keyword arguments to a `Collate`.

use std::borrow::Cow;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyComplexMethods, PyDict, PyFloat, PyString, PyType};
use windrow::{Collate, DType, Engine, Pad, PerDim, Scalar, Side, Stream, Transform};

use crate::engine::{default_engine, device_of, PyEngine};
use crate::errors::{attribute, in_words, is_answer, shown, OrPyErr};
use crate::samples::entries;
use crate::stream::stream_of;

/// What a call may do instead of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyMode {
    Always,
    IfNeeded,
    Never,
}

/// The arguments of one call, or of one leaf.
pub(crate) struct Options<'py> {
    pub collate: Collate,
    pub out: Option<Bound<'py, PyAny>>,
    /// Where work on a device is enqueued, if the caller says so.
    pub stream: Option<Stream>,
    pub copy: CopyMode,
    pub engine: Engine,
    /// Rows may be copied while later samples are still being read.
    pub may_start: bool,
}

/// Keyword arguments that must all be taken.
struct Kwargs<'a, 'py> {
    form: &'a str,
    items: Option<&'a Bound<'py, PyDict>>,
    taken: usize,
}

impl<'py> Kwargs<'_, 'py> {
    /// An argument as given, `None` included.
    fn raw(&mut self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(items) = self.items else { return Ok(None) };
        let item = items.get_item(name)?;
        self.taken += usize::from(item.is_some());
        Ok(item)
    }

    /// An argument that is not `None`.
    fn get(&mut self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.raw(name)?.filter(|item| !item.is_none()))
    }

    fn extract<T: for<'a> FromPyObject<'a, 'py, Error = PyErr>>(
        &mut self,
        name: &str,
        what: &str,
    ) -> PyResult<Option<T>> {
        let Some(item) = self.get(name)? else { return Ok(None) };
        match item.extract::<T>() {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                let text = format!("{name}={}; it is {what}", item.repr()?);
                Err(in_words(item.py(), error, || PyTypeError::new_err(text)))
            }
        }
    }

    /// Refuses what nobody asked for.
    fn finish(self, own: &[&str]) -> PyResult<()> {
        let Some(items) = self.items.filter(|items| items.len() > self.taken) else {
            return Ok(());
        };
        for key in items.keys() {
            let key: String = key.extract()?;
            if !COMMON.iter().chain(own).any(|name| *name == key) {
                let form = self.form;
                return Err(PyTypeError::new_err(format!(
                    "{form}() got an unexpected keyword argument '{key}'"
                )));
            }
        }
        Ok(())
    }
}

const COMMON: &[&str] = &["dtype", "device", "out", "stream", "transform", "copy", "engine"];

impl<'py> Options<'py> {
    /// Reads the keyword arguments of a form.
    pub fn parse(form: &str, kwargs: Option<&Bound<'py, PyDict>>) -> PyResult<Options<'py>> {
        let mut kwargs = Kwargs { form, items: kwargs, taken: 0 };
        let (mut collate, own): (Collate, &[&str]) = match form {
            "stack" | "collate" => (Collate::stack(), &[]),
            "concat" => {
                let dim = kwargs.extract::<i64>("dim", "an int")?.unwrap_or(0);
                (Collate::concat(dim), &["dim"])
            }
            "pad" => {
                let own = &["value", "side", "dims", "size", "multiple_of", "truncate", "mask"];
                (Collate::pad(pad_options(&mut kwargs)?), own)
            }
            "ragged" => {
                let mut collate = Collate::ragged();
                if let Some(dtype) = kwargs.get("offsets_dtype")? {
                    collate = match dtype_of(&dtype)? {
                        DType::I32 => collate.offsets_i32(),
                        DType::I64 => collate,
                        other => {
                            return Err(PyValueError::new_err(format!(
                                "offsets_dtype={other}; it is int32 or int64"
                            )))
                        }
                    };
                }
                if kwargs.extract::<bool>("batch_index", "a bool")?.unwrap_or(false) {
                    collate = collate.batch_index();
                }
                (collate, &["offsets_dtype", "batch_index"])
            }
            other => {
                return Err(PyValueError::new_err(format!(
                    "form={other:?}; it is \"stack\", \"concat\", \"pad\" or \"ragged\""
                )))
            }
        };
        if let Some(dtype) = kwargs.get("dtype")? {
            collate = collate.cast(dtype_of(&dtype)?);
        }
        if let Some(device) = kwargs.get("device")? {
            collate = collate.device(device_of(&device)?);
        }
        if let Some(transform) = kwargs.get("transform")? {
            let Ok(transform) = transform.cast::<PyTransform>() else {
                return Err(PyTypeError::new_err(format!(
                    "transform={}; it is a wr.Transform",
                    transform.repr()?
                )));
            };
            collate = collate.transform(transform.get().transform.clone());
        }
        let stream = kwargs.get("stream")?.map(|stream| stream_of(&stream)).transpose()?;
        let copy = match kwargs.raw("copy")? {
            None => CopyMode::Always,
            Some(copy) if copy.is_none() => CopyMode::IfNeeded,
            Some(copy) => match copy.extract::<bool>() {
                Ok(true) => CopyMode::Always,
                Ok(false) => CopyMode::Never,
                Err(error) => {
                    let text = format!("copy={}; it is True, False or None", copy.repr()?);
                    return Err(in_words(copy.py(), error, || PyTypeError::new_err(text)));
                }
            },
        };
        let engine = match kwargs.get("engine")? {
            None => default_engine().clone(),
            Some(engine) => match engine.cast::<PyEngine>() {
                Ok(engine) => engine.get().engine().clone(),
                Err(_) => {
                    return Err(PyTypeError::new_err(format!(
                        "engine={}; it is a wr.Engine",
                        engine.repr()?
                    )))
                }
            },
        };
        let out = kwargs.get("out")?;
        if out.is_some() && copy == CopyMode::Never {
            return Err(PyValueError::new_err("copy=False asks for a view, out= for a copy"));
        }
        kwargs.finish(own)?;
        let placed = match engine.placed(&collate) {
            Cow::Owned(placed) => Some(placed),
            Cow::Borrowed(_) => None,
        };
        let collate = placed.unwrap_or(collate);
        Ok(Options { collate, out, stream, copy, engine, may_start: true })
    }

    /// Whether the samples' own memory may become the batch.
    pub fn may_view(&self) -> bool {
        self.copy != CopyMode::Always && self.out.is_none()
    }
}

fn pad_options(kwargs: &mut Kwargs<'_, '_>) -> PyResult<Pad> {
    let mut pad = Pad::new();
    if let Some(value) = kwargs.raw("value")? {
        pad = pad.value(scalar_of(&value)?);
    }
    if let Some(side) = kwargs.get("side")? {
        let py = side.py();
        pad = match per_dim::<String>(&side, "side", "a string, or one for each dim")? {
            PerDim::All(side) => pad.side(side.parse::<Side>().or_py_err(py)?),
            PerDim::Each(sides) => {
                let sides = sides.iter().map(|side| side.parse::<Side>().or_py_err(py));
                pad.sides(sides.collect::<PyResult<Vec<_>>>()?)
            }
        };
    }
    if let Some(dims) = kwargs.get("dims")? {
        pad = match per_dim::<i64>(&dims, "dims", "an int or ints")? {
            PerDim::All(dim) => pad.dims([dim]),
            PerDim::Each(dims) => pad.dims(dims),
        };
    }
    if let Some(size) = kwargs.get("size")? {
        pad = match per_dim::<Option<i64>>(&size, "size", "an int, or an int or None for each dim")?
        {
            PerDim::All(size) => size.map_or(pad.clone(), |size| pad.size(size)),
            PerDim::Each(sizes) => pad.sizes(sizes),
        };
    }
    if let Some(multiple) = kwargs.get("multiple_of")? {
        pad = match per_dim::<i64>(&multiple, "multiple_of", "an int, or one for each dim")? {
            PerDim::All(multiple) => pad.multiple_of(multiple),
            PerDim::Each(multiples) => pad.multiples_of(multiples),
        };
    }
    if let Some(truncate) = kwargs.extract::<bool>("truncate", "a bool")? {
        pad = pad.truncate(truncate);
    }
    if let Some(mask) = kwargs.get("mask")? {
        let name: String = mask
            .extract()
            .map_err(|_| PyValueError::new_err("mask is None, \"real\" or \"pad\""))?;
        pad = pad.mask(name.parse().or_py_err(mask.py())?);
    }
    Ok(pad)
}

/// A single option, or a sequence of one for each dim.
fn per_dim<'py, T>(item: &Bound<'py, PyAny>, name: &str, what: &str) -> PyResult<PerDim<T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    let py = item.py();
    let refuse = |error: PyErr| match (is_answer(py, &error), shown(item)) {
        (false, _) => error,
        (true, Err(aborted)) => aborted,
        (true, Ok(item)) if error.is_instance_of::<PyOverflowError>(py) => {
            PyValueError::new_err(format!("{name}={item} is beyond 64 bits"))
        }
        (true, Ok(item)) => PyTypeError::new_err(format!("{name}={item}; it is {what}")),
    };
    match item.try_iter() {
        Ok(_) if !item.is_instance_of::<PyString>() => {
            entries(item, |entry| entry.extract::<T>()).map(PerDim::Each).map_err(refuse)
        }
        Err(error) if !is_answer(py, &error) => Err(error),
        _ => item.extract::<T>().map(PerDim::All).map_err(refuse),
    }
}

/// A number, exactly as given.
fn scalar_of(value: &Bound<'_, PyAny>) -> PyResult<Scalar> {
    if let Ok(float) = value.cast::<PyFloat>() {
        return Ok(Scalar::Float(float.value()));
    }
    if let Ok(complex) = value.cast::<PyComplex>() {
        return Ok(Scalar::Complex(complex.real(), complex.imag()));
    }
    if let Ok(bool) = value.cast::<PyBool>() {
        return Ok(Scalar::from(bool.is_true()));
    }
    if value.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(format!("value={}; it is a number", value.repr()?)));
    }
    match value.extract::<i128>() {
        Ok(int) => Ok(Scalar::Int(int)),
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => {
            Err(PyValueError::new_err(format!("value={} is beyond every dtype", shown(value)?)))
        }
        Err(error) if !is_answer(value.py(), &error) => Err(error),
        Err(_) => value.extract::<f64>().map(Scalar::Float).map_err(|error| {
            let refuse = |value| PyTypeError::new_err(format!("value={value}; it is a number"));
            in_words(value.py(), error, || value.repr().map_or_else(|error| error, refuse))
        }),
    }
}

/// A dtype by name, from NumPy, torch, JAX, ml_dtypes or Python itself.
pub(crate) fn dtype_of(dtype: &Bound<'_, PyAny>) -> PyResult<DType> {
    let refuse = || match shown(dtype) {
        Ok(dtype) => PyTypeError::new_err(format!("dtype={dtype} is not a dtype we know")),
        Err(error) => error,
    };
    let name: String = if let Ok(class) = dtype.cast::<PyType>() {
        class.name()?.to_string()
    } else if dtype.is_instance_of::<PyString>() {
        dtype.extract()?
    } else if let Some(name) = attribute(dtype, "name")? {
        let order = attribute(dtype, "byteorder")?;
        let order = order.and_then(|order| order.extract::<String>().ok());
        if order
            .is_some_and(|order| order == if cfg!(target_endian = "little") { ">" } else { "<" })
        {
            return Err(refuse());
        }
        name.extract().map_err(|_| refuse())?
    } else {
        dtype.str()?.to_string()
    };
    let name = match name.strip_prefix("torch.").unwrap_or(&name) {
        "float" => "float64",
        "int" => "int64",
        "bool_" => "bool",
        name => name,
    };
    name.parse().map_err(|_| refuse())
}

/// ``(x * scale - mean[c]) / std[c]`` for each element, then a permutation of the sample's dims.
///
/// Evaluated as one fused multiply-add ``x * a[c] + b[c]``, ``a = scale / std`` and
/// ``b = -mean / std`` formed in float64: in float32, or in float64 when source or result is float64,
/// then rounded once, to nearest even.
///
/// Args:
///     scale (float): multiplies first; ``1 / 255`` for 8-bit images.
///     mean, std (float or sequence): one number, or one for each channel.
///     channel_dim (int): sample dim of the channels, before ``permute``; without it the only dim of
///         that extent.
///     permute (sequence of int): order of the sample's dims in the batch, as for ``numpy.transpose``.
///
/// A call whose ``scale / std`` or ``-mean / std`` is not finite, as with a ``std`` of 0, raises ``ValueError``.
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
    transform: Transform,
    kwargs: Py<PyDict>,
}

#[pymethods]
impl PyTransform {
    #[new]
    #[pyo3(signature = (scale = 1.0, mean = None, std = None, channel_dim = None, permute = None))]
    fn new(
        py: Python<'_>,
        scale: f64,
        mean: Option<Bound<'_, PyAny>>,
        std: Option<Bound<'_, PyAny>>,
        channel_dim: Option<i64>,
        permute: Option<Bound<'_, PyAny>>,
    ) -> PyResult<PyTransform> {
        let kwargs = PyDict::new(py);
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
        let items =
            self.kwargs.bind(py).iter().map(|(key, value)| Ok(format!("{key}={}", value.repr()?)));
        Ok(format!("Transform({})", items.collect::<PyResult<Vec<_>>>()?.join(", ")))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<PyTransform>().is_ok_and(|other| other.get().transform == self.transform)
    }
}
