//! Keyword arguments to a `Collate`.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyComplexMethods, PyDict, PyFloat, PyInt, PyString};
use windrow::{Collate, DType, Engine, Pad, PerDim, Scalar, Side, Stream, Transform};

use crate::engine::{default_engine, device_of, PyEngine};
use crate::ground::dtype::dtype_of;
use crate::ground::errors::{in_words, is_answer, quoted, shown, OrPyErr};
use crate::ground::iterables::entries;
use crate::ground::stream::stream_of;

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

/// Keyword arguments that must all be taken. Read once: to ask a dict for every name that there might be makes a
/// string of each.
struct Kwargs<'a, 'py> {
    form: &'a str,
    items: Vec<(String, Bound<'py, PyAny>)>,
}

impl<'f, 'py> Kwargs<'f, 'py> {
    fn new(form: &'f str, kwargs: Option<&Bound<'py, PyDict>>) -> PyResult<Kwargs<'f, 'py>> {
        let mut items = Vec::new();
        for (name, item) in kwargs.into_iter().flatten() {
            items.push((name.extract()?, item));
        }
        Ok(Kwargs { form, items })
    }

    /// An argument as given, `None` included.
    fn raw(&mut self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let found = self.items.iter().position(|(given, _)| given == name);
        Ok(found.map(|position| self.items.swap_remove(position).1))
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
        item.extract::<T>().map(Some).map_err(|error| unfit(&item, name, what, error))
    }

    /// A dtype, one of a few.
    fn dtype_among(&mut self, name: &str, choices: &[DType]) -> PyResult<Option<DType>> {
        let Some(item) = self.get(name)? else { return Ok(None) };
        match dtype_of(&item) {
            Ok(dtype) if choices.contains(&dtype) => Ok(Some(dtype)),
            Err(error) if !is_answer(item.py(), &error) => Err(error),
            _ => {
                let choices: Vec<_> = choices.iter().map(|dtype| format!("\"{dtype}\"")).collect();
                let (last, others) = choices.split_last().expect("a few");
                let text =
                    format!("{name}={}; it is {} or {last}", quoted(&item)?, others.join(", "));
                Err(PyValueError::new_err(text))
            }
        }
    }

    /// Refuses options that were not asked for.
    fn finish(self, own: &[&str]) -> PyResult<()> {
        match self.items.first() {
            Some((name, _)) => Err(unexpected(self.form, name, &[own, COMMON].concat())),
            None => Ok(()),
        }
    }
}

/// What a form takes besides.
fn own_of(form: &str) -> &'static [&'static str] {
    match form {
        "concat" => &["dim"],
        "pad" => {
            &["value", "side", "dims", "size", "multiple_of", "truncate", "mask", "mask_dtype"]
        }
        "ragged" => &["offsets_dtype", "batch_index"],
        "collate" => &["spec", "sep", "arena"],
        _ => &[],
    }
}

/// What NumPy, torch, transformers and others call an argument of ours.
const PEERS: &[(&str, &str)] = &[
    ("attention_mask", "mask"),
    ("axes", "dims"),
    ("axis", "dim"),
    ("constant_values", "value"),
    ("fill_value", "value"),
    ("max_length", "size"),
    ("num_threads", "threads"),
    ("num_workers", "threads"),
    ("pad_to_multiple_of", "multiple_of"),
    ("pad_token_id", "value"),
    ("pad_value", "value"),
    ("padding_mask", "mask"),
    ("padding_side", "side"),
    ("padding_value", "value"),
    ("return_attention_mask", "mask"),
    ("truncation", "truncate"),
];

const TRANSFORM: &[&str] = &["scale", "mean", "std", "channel_dim", "permute"];

/// The refusal of a keyword argument that `call` does not take: our word for it, or who takes it, or all
/// that there are.
pub(crate) fn unexpected(call: &str, key: &str, takes: &[&str]) -> PyErr {
    let word = PEERS.iter().find(|(peer, _)| *peer == key).map_or(key, |(_, ours)| ours);
    let word = match (call, word) {
        ("pad", "dim") => "dims",
        ("Transform", "dim") => "channel_dim",
        ("Transform", "dims" | "order") => "permute",
        _ => word,
    };
    let owner = ["concat", "pad", "ragged"].into_iter().find(|form| own_of(form).contains(&word));
    let cure = match (word, owner) {
        _ if takes.contains(&word) => format!("use {word}="),
        ("batch_first" | "dim", _) if !matches!(call, "concat" | "ragged") => {
            "dim 0 is always that of the samples".to_owned()
        }
        ("dim", _) if call == "ragged" => "samples are joined along dim 0".to_owned(),
        ("pin_memory", _) => "use device=\"pinned\"".to_owned(),
        ("return_tensors", _) => "the result has .torch(), .numpy() and .jax()".to_owned(),
        ("threads", _) => "use engine=wr.Engine(threads=...)".to_owned(),
        (word, _) if TRANSFORM.contains(&word) => format!("use transform=wr.Transform({word}=...)"),
        (word, Some(form)) if call == "collate" => {
            format!("use spec= with wr.{}{}({word}=...)", form[..1].to_uppercase(), &form[1..])
        }
        (word, Some(form)) => format!("wr.{form} takes {word}="),
        _ => format!("it takes {}", takes.join(", ")),
    };
    PyTypeError::new_err(format!("{call}() got an unexpected keyword argument '{key}'; {cure}"))
}

/// Refuses the rest of the keyword arguments, if there is any.
pub(crate) fn none_unknown(
    call: &str,
    unknown: Option<&Bound<'_, PyDict>>,
    takes: &[&str],
) -> PyResult<()> {
    match unknown.and_then(|unknown| unknown.keys().iter().next()) {
        Some(key) => Err(unexpected(call, &key.extract::<String>()?, takes)),
        None => Ok(()),
    }
}

const COMMON: &[&str] = &["dtype", "device", "out", "stream", "transform", "copy", "engine"];

impl<'py> Options<'py> {
    /// Reads the keyword arguments of a form.
    pub fn parse(form: &str, kwargs: Option<&Bound<'py, PyDict>>) -> PyResult<Options<'py>> {
        let mut kwargs = Kwargs::new(form, kwargs)?;
        let mut collate = match form {
            "stack" | "collate" => Collate::stack(),
            "concat" => Collate::concat(kwargs.extract::<i64>("dim", "an int")?.unwrap_or(0)),
            "pad" => Collate::pad(pad_options(&mut kwargs)?),
            "ragged" => ragged_options(&mut kwargs)?,
            other => {
                return Err(PyValueError::new_err(format!(
                "form={other:?}; it is \"stack\", \"concat\", \"pad\", \"ragged\" or \"collate\""
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
        kwargs.finish(own_of(form))?;
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

fn ragged_options(kwargs: &mut Kwargs<'_, '_>) -> PyResult<Collate> {
    let mut collate = Collate::ragged();
    if kwargs.dtype_among("offsets_dtype", &[DType::I32, DType::I64])? == Some(DType::I32) {
        collate = collate.offsets_i32();
    }
    if kwargs.extract::<bool>("batch_index", "a bool")?.unwrap_or(false) {
        collate = collate.batch_index();
    }
    Ok(collate)
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
        let name = match mask.is_instance_of::<PyString>() {
            true => mask.extract::<String>()?,
            false => {
                let text = format!("mask={}; it is None, \"real\" or \"pad\"", quoted(&mask)?);
                return Err(PyValueError::new_err(text));
            }
        };
        pad = pad.mask(name.parse().or_py_err(mask.py())?);
    }
    use DType::{Bool, F16, F32, I32, I64, U8};
    if let Some(dtype) = kwargs.dtype_among("mask_dtype", &[Bool, U8, I32, I64, F16, F32])? {
        pad = pad.mask_dtype(dtype);
        pad.check_mask().map_err(|error| PyValueError::new_err(error.to_string()))?;
    }
    Ok(pad)
}

/// The refusal of an argument that did not become what it is to be.
pub(crate) fn unfit(item: &Bound<'_, PyAny>, name: &str, what: &str, error: PyErr) -> PyErr {
    let py = item.py();
    match (is_answer(py, &error), quoted(item)) {
        (false, _) => error,
        (true, Err(aborted)) => aborted,
        (true, Ok(item)) if error.is_instance_of::<PyOverflowError>(py) => {
            PyValueError::new_err(format!("{name}={item} is beyond 64 bits"))
        }
        (true, Ok(item)) => PyTypeError::new_err(format!("{name}={item}; it is {what}")),
    }
}

/// An int of a range; a bool is none.
pub(crate) fn int_within(
    item: &Bound<'_, PyAny>,
    name: &str,
    range: RangeInclusive<u64>,
) -> PyResult<u64> {
    let (py, is_bool) = (item.py(), item.is_instance_of::<PyBool>());
    match item.extract::<u64>() {
        Ok(int) if !is_bool && range.contains(&int) => Ok(int),
        Err(error) if !is_answer(py, &error) => Err(error),
        found => {
            let (least, most) = range.into_inner();
            let text = format!("{name}={}; it is an int from {least} to {most}", quoted(item)?);
            let is_int = found.err().is_none_or(|e| e.is_instance_of::<PyOverflowError>(py));
            Err(match is_int && !is_bool {
                true => PyValueError::new_err(text),
                false => PyTypeError::new_err(text),
            })
        }
    }
}

/// A single option, or a sequence of one for each dim.
fn per_dim<'py, T>(item: &Bound<'py, PyAny>, name: &str, what: &str) -> PyResult<PerDim<T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    let py = item.py();
    let refuse = |error: PyErr| unfit(item, name, what, error);
    if item.is_exact_instance_of::<PyInt>() || item.is_exact_instance_of::<PyString>() {
        // To ask these for an iterator costs more than all else of a small call.
        return item.extract::<T>().map(PerDim::All).map_err(refuse);
    }
    match item.try_iter() {
        Ok(_) if !item.is_instance_of::<PyString>() => {
            entries(item, |entry| entry.extract::<T>()).map(PerDim::Each).map_err(refuse)
        }
        Err(error) if !is_answer(py, &error) => Err(error),
        _ => item.extract::<T>().map(PerDim::All).map_err(refuse),
    }
}

/// A number, exactly as given.
pub(crate) fn scalar_of(value: &Bound<'_, PyAny>) -> PyResult<Scalar> {
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
/// ``scale``, ``mean`` or ``std`` on integer or bool samples need ``dtype=``, else the call raises
/// `DTypeError`: ``"float32"``, say. An integer dtype truncates the result toward zero and saturates it, so
/// that bytes scaled by ``1 / 255`` become 0 and 1.
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
    #[pyo3(
        signature = (scale = 1.0, mean = None, std = None, channel_dim = None, permute = None, **unknown),
        text_signature = "(scale=1.0, mean=None, std=None, channel_dim=None, permute=None)"
    )]
    fn new(
        py: Python<'_>,
        scale: f64,
        mean: Option<Bound<'_, PyAny>>,
        std: Option<Bound<'_, PyAny>>,
        channel_dim: Option<i64>,
        permute: Option<Bound<'_, PyAny>>,
        unknown: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyTransform> {
        none_unknown("Transform", unknown, TRANSFORM)?;
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
