//! `spec=` of the collate calls: which leaf gets which form and arguments.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::collate::patterns::Patterns;
use crate::ground::errors::attribute;

/// All entries, and the leaves met so far.
pub(crate) struct Specs<'a, 'py> {
    sep: &'a str,
    entries: Vec<SpecEntry<'py>>,
    /// The patterns of the entries.
    patterns: Patterns,
    /// The paths of leaves that [`Specs::find`] was asked for.
    paths: Vec<String>,
    /// The paths of str and bytes leaves.
    texts: Vec<String>,
}

struct SpecEntry<'py> {
    pattern: String,
    form: String,
    kwargs: Bound<'py, PyDict>,
    used: bool,
}

impl<'py> SpecEntry<'py> {
    /// The entry of a pattern; TypeError for an object that is no spec.
    fn new(pattern: String, spec: &Bound<'py, PyAny>) -> PyResult<SpecEntry<'py>> {
        let form = attribute(spec, "form")?.and_then(|form| form.extract::<String>().ok());
        let kwargs = attribute(spec, "kwargs")?.and_then(|kwargs| kwargs.cast_into().ok());
        match (form, kwargs) {
            (Some(form), Some(kwargs)) => Ok(SpecEntry { pattern, form, kwargs, used: false }),
            _ => Err(PyTypeError::new_err(format!(
                "the spec of {pattern:?} must be wr.Stack(...), wr.Concat(...), wr.Pad(...), wr.Ragged(...) or wr.List(...), got {}",
                spec.repr()?
            ))),
        }
    }
}

/// The pattern that a key of a spec is; TypeError for what is no str.
fn pattern_of(key: &Bound<'_, PyAny>) -> PyResult<String> {
    match key.cast::<PyString>() {
        Ok(pattern) => pattern.extract(),
        Err(_) => {
            let key = key.repr()?;
            let text = format!(
                "a key of spec must be a path, such as \"image\" or \"tokens.*\", got {key}"
            );
            Err(PyTypeError::new_err(text))
        }
    }
}

impl<'a, 'py> Specs<'a, 'py> {
    /// A dict of path patterns, or one spec for all leaves, which is that of `*`; TypeError for another key than a str and for
    /// what is no spec.
    pub fn new(spec: Option<&Bound<'py, PyAny>>, sep: &'a str) -> PyResult<Specs<'a, 'py>> {
        let mut entries = Vec::new();
        match spec.map(|spec| (spec, spec.cast::<PyDict>())) {
            None => {}
            Some((spec, Err(_))) => entries.push(SpecEntry::new("*".to_owned(), spec)?),
            Some((_, Ok(specs))) => {
                for item in specs.items() {
                    let (key, spec): (Bound<'py, PyAny>, Bound<'py, PyAny>) = item.extract()?;
                    entries.push(SpecEntry::new(pattern_of(&key)?, &spec)?);
                }
            }
        }
        let patterns = Patterns::new(entries.iter().map(|entry| entry.pattern.as_str()));
        Ok(Specs { sep, entries, patterns, paths: Vec::new(), texts: Vec::new() })
    }

    /// The separator between the keys of a path.
    pub fn sep(&self) -> &'a str {
        self.sep
    }

    /// Whether no spec was given.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Records a leaf of text, which no spec is for, for the error of [`Specs::all_used`].
    pub fn pass(&mut self, path: &str) {
        if !self.entries.is_empty() {
            self.texts.push(path.to_owned());
        }
    }

    /// Whether a key is exactly this path: a list of numbers there is a leaf.
    pub fn names(&self, path: &str) -> bool {
        self.patterns.exactly(path).is_some()
    }

    /// Form and arguments of a leaf by the entry that is its path, else by the first glob that matches, whose arguments take
    /// precedence over the common ones; `None` if no entry matches. Records the leaf, and the entry as used.
    pub fn find(
        &mut self,
        path: &str,
        common: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Option<(String, Bound<'py, PyDict>)>> {
        let Some(py) = self.entries.first().map(|entry| entry.kwargs.py()) else {
            return Ok(None);
        };
        self.paths.push(path.to_owned());
        let Some(position) = self.patterns.find(py, path)? else { return Ok(None) };
        let entry = &mut self.entries[position];
        entry.used = true;
        let kwargs = match common {
            Some(common) => common.copy()?,
            None => PyDict::new(py),
        };
        kwargs.update(entry.kwargs.as_mapping())?;
        Ok(Some((entry.form.clone(), kwargs)))
    }

    /// Refuses a spec without a leaf; the caller has read the last leaf.
    ///
    /// # Errors
    /// ValueError for an entry that matched no leaf, or leaves of text alone: names the leaves.
    pub fn all_used(&self) -> PyResult<()> {
        let Some(unused) = self.entries.iter().find(|entry| !entry.used) else { return Ok(()) };
        let pattern = &unused.pattern;
        let alone = Patterns::new([pattern.as_str()]);
        for path in &self.texts {
            if alone.find(unused.kwargs.py(), path)?.is_some() {
                return Err(PyValueError::new_err(format!(
                    "spec {pattern:?} names the leaf {path:?} of str or bytes, which becomes a list as it is; \
                     a spec is for tensors"
                )));
            }
        }
        for path in &self.paths {
            if alone.find(unused.kwargs.py(), path)?.is_some() {
                return Err(PyValueError::new_err(format!(
                    "spec {pattern:?} is used for no leaf: {path:?} and others that it matches have another entry, an exact name \
                     or a pattern before it"
                )));
            }
        }
        let leaves = self.paths.iter().map(|path| format!("{path:?}")).collect::<Vec<_>>();
        let leaves = if leaves.is_empty() { "none".to_owned() } else { leaves.join(", ") };
        Err(PyValueError::new_err(format!(
            "spec {pattern:?} matches no leaf; the leaves are {leaves}"
        )))
    }
}
