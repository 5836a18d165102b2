//! Keyword arguments to a `Collate`.

use std::borrow::Cow;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyDict, PyString};
use windrow::{Collate, DType, Engine, Pad, PerDim, Side, Stream};

use crate::collate::transform::PyTransform;
use crate::engine::default::default_engine;
use crate::engine::engine::PyEngine;
use crate::ground::arguments::{device_of, own_of, per_dim, scalar_of, unexpected, unfit, NoBool};
use crate::ground::dtype::dtype_of;
use crate::ground::errors::{in_words, is_answer, quoted, OrPyErr};
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
    items: Vec<(PyBackedStr, Bound<'py, PyAny>)>,
}

impl<'f, 'py> Kwargs<'f, 'py> {
    fn new(form: &'f str, kwargs: Option<&Bound<'py, PyDict>>) -> PyResult<Kwargs<'f, 'py>> {
        let mut items = Vec::with_capacity(kwargs.map_or(0, |kwargs| kwargs.len()));
        for (name, item) in kwargs.into_iter().flatten() {
            items.push((name.extract()?, item));
        }
        Ok(Kwargs { form, items })
    }

    /// An argument as given, `None` included.
    fn raw(&mut self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let found = self.items.iter().position(|(given, _)| **given == *name);
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

const COMMON: &[&str] = &["dtype", "device", "out", "stream", "transform", "copy", "engine"];

impl<'py> Options<'py> {
    /// Reads the keyword arguments of a form.
    pub fn parse(form: &str, kwargs: Option<&Bound<'py, PyDict>>) -> PyResult<Options<'py>> {
        let mut kwargs = Kwargs::new(form, kwargs)?;
        let mut collate = match form {
            "stack" | "collate" => Collate::stack(),
            "concat" => {
                let dim = kwargs.extract::<NoBool<i64>>("dim", "an int")?;
                Collate::concat(dim.map_or(0, |NoBool(dim)| dim))
            }
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
        let copy = kwargs.raw("copy")?.map_or(Ok(CopyMode::Always), |copy| copy_mode(&copy))?;
        let engine = kwargs.get("engine")?;
        let engine = engine.map_or_else(|| Ok(default_engine().clone()), |it| engine_of(&it))?;
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

fn copy_mode(copy: &Bound<'_, PyAny>) -> PyResult<CopyMode> {
    if copy.is_none() {
        return Ok(CopyMode::IfNeeded);
    }
    match copy.extract::<bool>() {
        Ok(true) => Ok(CopyMode::Always),
        Ok(false) => Ok(CopyMode::Never),
        Err(error) => {
            let text = format!("copy={}; it is True, False or None", copy.repr()?);
            Err(in_words(copy.py(), error, || PyTypeError::new_err(text)))
        }
    }
}

fn engine_of(engine: &Bound<'_, PyAny>) -> PyResult<Engine> {
    match engine.cast::<PyEngine>() {
        Ok(engine) => Ok(engine.get().engine().clone()),
        Err(_) => {
            let text = format!("engine={}; it is a wr.Engine", engine.repr()?);
            Err(PyTypeError::new_err(text))
        }
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
