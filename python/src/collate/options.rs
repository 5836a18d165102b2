//! Keyword arguments to a `Collate`.
//!
//! The signature that a call declares (`text_signature`) is the source of its names and defaults: for Python, for the stubs, and for
//! messages about unknown arguments. A call takes `**kwargs` all the same. With PyO3's parser of each argument, a stack of 8 rows
//! took 9,823 instructions in place of 9,379 without keyword arguments, and 14,993 in place of 12,533 with three.

use std::borrow::Cow;
use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::PyDict;
use windrow::{Collate, DType, Engine, Stream};

use crate::collate::options_cache::{self, CopyMode, Items};
use crate::collate::quantize::transform_of;
use crate::engine::default::default_engine;
use crate::engine::engine::PyEngine;
use crate::ground::arguments::{device_of, unexpected, unfit};
use crate::ground::dtype::dtype_of;
use crate::ground::errors::{in_words, is_answer, quoted};
use crate::ground::stream::stream_of;

/// A form as callers name it, and the function that takes the options of its own out of the arguments.
pub(crate) struct CallForm {
    pub name: &'static str,
    pub options: fn(&mut Kwargs<'_, '_>) -> PyResult<Collate>,
}

/// The arguments of one call, or of one leaf.
#[derive(Clone)]
pub(crate) struct Options<'py> {
    pub collate: Arc<Collate>,
    pub out: Option<Bound<'py, PyAny>>,
    /// The stream of work on a device, if the caller names one.
    pub stream: Option<Stream>,
    pub copy: CopyMode,
    pub engine: Engine,
    /// Whether rows may be copied while later samples are still being read.
    pub may_start: bool,
    /// Whether the samples of a leaf stay separate, as by `wr.List`.
    pub is_list: bool,
}

/// The keyword arguments of a call: those that are another object each time, and the rest.
#[derive(Default)]
struct GivenOptions<'py> {
    out: Option<Bound<'py, PyAny>>,
    stream: Option<Bound<'py, PyAny>>,
    transform: Option<Bound<'py, PyAny>>,
    engine: Option<Bound<'py, PyAny>>,
    rest: Items<'py>,
}

impl<'py> GivenOptions<'py> {
    /// Sorts arguments by the identity of their names; a name that is not interned goes to `rest`, where [`GivenOptions::collate`]
    /// finds it.
    fn new(kwargs: Option<&Bound<'py, PyDict>>) -> GivenOptions<'py> {
        let mut given = GivenOptions::default();
        let Some(kwargs) = kwargs else { return given };
        let py = kwargs.py();
        for (name, item) in kwargs {
            // Names in a program's text are interned. Any others are found by `Kwargs`.
            let place = match () {
                () if name.is(intern!(py, "engine")) => &mut given.engine,
                () if name.is(intern!(py, "out")) => &mut given.out,
                () if name.is(intern!(py, "transform")) => &mut given.transform,
                () if name.is(intern!(py, "stream")) => &mut given.stream,
                () => {
                    // The buffer stays empty in most calls, which have no such arguments.
                    if given.rest.is_empty() {
                        given.rest.reserve_exact(kwargs.len());
                    }
                    given.rest.push((name, item));
                    continue;
                }
            };
            *place = Some(item);
        }
        given
    }

    /// The form with its options and the mode of the copy, from `rest`: as this thread has parsed them last, or parsed
    /// now and stored. Refuses unknown arguments. Arguments of the call that were in `rest` are in their fields
    /// afterwards.
    fn collate(&mut self, form: &CallForm) -> PyResult<(Collate, CopyMode)> {
        if let Some(known) = options_cache::get(form.name, &self.rest) {
            return Ok(known);
        }
        let mut kwargs = Kwargs::new(form.name, &self.rest)?;
        let parsed = collate_of(form, &mut kwargs)?;
        let copy = kwargs.raw("copy")?.map_or(Ok(CopyMode::Always), |copy| copy_mode(&copy))?;
        let GivenOptions { out, stream, transform, engine, .. } = self;
        let of_call =
            [("out", out), ("stream", stream), ("transform", transform), ("engine", engine)];
        let mut is_rest_parsed = true;
        for (name, place) in of_call {
            if let Some(item) = kwargs.raw(name)? {
                is_rest_parsed = false;
                *place = Some(item);
            }
        }
        kwargs.finish()?;
        // Arguments of the call itself are read each time.
        if is_rest_parsed {
            options_cache::insert(form.name, &self.rest, &parsed, copy);
        }
        Ok((parsed, copy))
    }
}

/// Keyword arguments that must all be taken out. Read once: to ask a dict for every name that there might be makes a string of
/// each.
pub(crate) struct Kwargs<'a, 'py> {
    form: &'a str,
    items: Vec<(PyBackedStr, Bound<'py, PyAny>)>,
}

impl<'f, 'py> Kwargs<'f, 'py> {
    /// TypeError for a name that is no str.
    fn new(form: &'f str, given: &Items<'py>) -> PyResult<Kwargs<'f, 'py>> {
        let items = given.iter().map(|(name, item)| Ok((name.extract()?, item.clone())));
        Ok(Kwargs { form, items: items.collect::<PyResult<_>>()? })
    }

    /// Takes an argument out, be it Python's None; `None` if it was not given.
    pub fn raw(&mut self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let found = self.items.iter().position(|(given, _)| **given == *name);
        Ok(found.map(|position| self.items.swap_remove(position).1))
    }

    /// Takes an argument out; `None` if it was not given or is Python's None.
    pub fn get(&mut self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.raw(name)?.filter(|item| !item.is_none()))
    }

    /// Takes an argument out as [`Kwargs::get`] does and converts it; TypeError that `name` must be `what`,
    /// ValueError for an int beyond 64 bits.
    pub fn extract<T: for<'a> FromPyObject<'a, 'py, Error = PyErr>>(
        &mut self,
        name: &str,
        what: &str,
    ) -> PyResult<Option<T>> {
        let Some(item) = self.get(name)? else { return Ok(None) };
        item.extract::<T>().map(Some).map_err(|error| unfit(&item, name, what, error))
    }

    /// Takes a dtype out as [`Kwargs::get`] does; ValueError for one that is not in `choices`, and for what is no dtype.
    pub fn dtype_among(&mut self, name: &str, choices: &[DType]) -> PyResult<Option<DType>> {
        let Some(item) = self.get(name)? else { return Ok(None) };
        match dtype_of(&item) {
            Ok(dtype) if choices.contains(&dtype) => Ok(Some(dtype)),
            Err(error) if !is_answer(item.py(), &error) => Err(error),
            _ => {
                let choices: Vec<_> = choices.iter().map(|dtype| format!("\"{dtype}\"")).collect();
                let (last, others) = choices.split_last().expect("a few");
                let text = format!(
                    "{name} must be {} or {last}, got {}",
                    others.join(", "),
                    quoted(&item)?
                );
                Err(PyValueError::new_err(text))
            }
        }
    }

    /// TypeError for an argument that was not taken out.
    fn finish(self) -> PyResult<()> {
        match self.items.first() {
            Some((name, item)) => Err(unexpected(item.py(), self.form, name)),
            None => Ok(()),
        }
    }
}

impl<'py> Options<'py> {
    /// Reads the keyword arguments of a form, with the default engine if none is given, and the engine's device where `device` is
    /// not given. TypeError for an unknown one, ValueError for `out` beside `copy=False`. `may_start` is true.
    pub fn parse(form: &CallForm, kwargs: Option<&Bound<'py, PyDict>>) -> PyResult<Options<'py>> {
        Options::for_call(form, None, kwargs)
    }

    /// Parses as `parse` does, for a call that takes `engine` by itself: PyO3 makes another dict of what it does not
    /// know, and so none for a call with nothing else. An `engine` in `kwargs` goes before it.
    pub fn for_call(
        form: &CallForm,
        engine: Option<&Bound<'py, PyAny>>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Options<'py>> {
        let mut given = GivenOptions::new(kwargs);
        given.engine = given.engine.or_else(|| engine.cloned());
        let (mut collate, copy) = given.collate(form)?;
        let GivenOptions { out, stream, transform, engine, .. } = given;
        let present = |item: Option<Bound<'py, PyAny>>| item.filter(|item| !item.is_none());
        if let Some(transform) = present(transform) {
            collate = collate.transform(transform_of(&transform)?);
        }
        let stream = present(stream).map(|stream| stream_of(&stream)).transpose()?;
        let engine = present(engine)
            .map_or_else(|| Ok(default_engine().clone()), |engine| engine_of(&engine))?;
        let out = present(out);
        if out.is_some() && copy == CopyMode::Never {
            return Err(PyValueError::new_err("copy=False asks for a view, out= for a copy"));
        }
        let placed = match engine.placed(&collate) {
            Cow::Owned(placed) => Some(placed),
            Cow::Borrowed(_) => None,
        };
        if let Some(placed) = placed {
            collate = placed;
        }
        let collate = Arc::new(collate);
        let is_list = form.name == LIST;
        Ok(Options { collate, out, stream, copy, engine, may_start: true, is_list })
    }

    /// Whether the batch is a copy in memory of the engine's own, and no stream is named.
    pub fn is_plain(&self) -> bool {
        self.out.is_none() && self.is_copy()
    }

    /// Whether the batch is a copy, to `out` or new memory, and no stream is named.
    pub fn is_copy(&self) -> bool {
        self.stream.is_none() && self.copy == CopyMode::Always
    }
}

/// The form of `wr.List`, which no call is named by.
pub(crate) const LIST: &str = "List";

/// A form with its own options, and `dtype`, `device` and `saturate`, all of which are taken out of the arguments. ValueError
/// for `saturate` beside a `dtype` other than float8.
fn collate_of(form: &CallForm, kwargs: &mut Kwargs<'_, '_>) -> PyResult<Collate> {
    let mut collate = (form.options)(kwargs)?;
    if let Some(dtype) = kwargs.get("dtype")? {
        collate = collate.cast(dtype_of(&dtype)?);
    }
    if let Some(device) = kwargs.get("device")? {
        collate = collate.device(device_of(&device)?);
    }
    if kwargs.extract::<bool>("saturate", "a bool")?.unwrap_or(false) {
        collate = collate.saturate();
        let checked = collate.check_saturate();
        checked.map_err(|error| PyValueError::new_err(error.to_string()))?;
    }
    Ok(collate)
}

/// The mode of `copy=`; TypeError unless it is True, False or None.
fn copy_mode(copy: &Bound<'_, PyAny>) -> PyResult<CopyMode> {
    if copy.is_none() {
        return Ok(CopyMode::IfNeeded);
    }
    match copy.extract::<bool>() {
        Ok(true) => Ok(CopyMode::Always),
        Ok(false) => Ok(CopyMode::Never),
        Err(error) => {
            let text = format!("copy must be True, False or None, got {}", copy.repr()?);
            Err(in_words(copy.py(), error, || PyTypeError::new_err(text)))
        }
    }
}

/// The engine of `engine=`; TypeError for what is no `Engine`, None too.
pub(crate) fn engine_of(engine: &Bound<'_, PyAny>) -> PyResult<Engine> {
    match engine.cast::<PyEngine>() {
        Ok(engine) => Ok(engine.get().engine().clone()),
        Err(_) => {
            let text = format!("engine must be a wr.Engine, got {}", engine.repr()?);
            Err(PyTypeError::new_err(text))
        }
    }
}
