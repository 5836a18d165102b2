//! The pattern of a spec that a path matches: the equal one, else the first glob.
//!
//! Each path is looked up, whatever the number of patterns: among all as it is, and among globs by their beginning.

use std::collections::{BTreeSet, HashMap};

use pyo3::intern;
use pyo3::prelude::*;

const SPECIAL: [char; 4] = ['*', '?', '[', ']'];

/// Patterns by their position.
#[derive(Default)]
pub(super) struct Patterns {
    len: usize,
    exact: HashMap<String, usize>,
    /// The patterns with special characters, by the text before the first of these.
    globs: HashMap<String, Vec<Glob>>,
    /// The lengths of these texts.
    lengths: BTreeSet<usize>,
}

struct Glob {
    position: usize,
    pattern: String,
    /// The text after its last special character.
    end: String,
    /// Whether it has one star and nothing else that is special.
    is_star: bool,
}

impl Glob {
    /// Whether it matches a path. The caller has found that the path begins with the text before the first special character.
    fn is_for(&self, py: Python<'_>, path: &str) -> PyResult<bool> {
        if !path.ends_with(&self.end) {
            return Ok(false);
        }
        if self.is_star {
            return Ok(path.len() + 1 >= self.pattern.len());
        }
        let fnmatch = py.import(intern!(py, "fnmatch"))?;
        fnmatch.call_method1(intern!(py, "fnmatchcase"), (path, &self.pattern))?.is_truthy()
    }
}

impl Patterns {
    /// Adds the next pattern. A glob also counts as its exact text; of equal patterns the first counts.
    pub fn push(&mut self, pattern: &str) {
        let position = self.len;
        self.len += 1;
        self.exact.entry(pattern.to_owned()).or_insert(position);
        let Some(first) = pattern.find(SPECIAL) else { return };
        let (_, end) = pattern.rsplit_once(SPECIAL).unwrap_or_default();
        let is_star = pattern[first..].len() == 1 + end.len() && pattern[first..].starts_with('*');
        let (end, pattern, begin) = (end.to_owned(), pattern.to_owned(), &pattern[..first]);
        self.lengths.insert(first);
        let globs = self.globs.entry(begin.to_owned()).or_default();
        globs.push(Glob { position, pattern, end, is_star });
    }

    /// The position of the pattern that is exactly this path.
    pub fn exactly(&self, path: &str) -> Option<usize> {
        self.exact.get(path).copied()
    }

    /// The position of the pattern for a path: the equal one, else the first glob that matches.
    pub fn find(&self, py: Python<'_>, path: &str) -> PyResult<Option<usize>> {
        if let Some(position) = self.exactly(path) {
            return Ok(Some(position));
        }
        let mut found: Option<usize> = None;
        let begins = self.lengths.iter().filter_map(|&length| path.get(..length));
        for glob in begins.filter_map(|begin| self.globs.get(begin)).flatten() {
            if found.is_none_or(|found| glob.position < found) && glob.is_for(py, path)? {
                found = Some(glob.position);
            }
        }
        Ok(found)
    }
}

/// The position of the pattern of each path among the keys of a spec, or None.
#[pyfunction]
#[pyo3(signature = (patterns, paths, /))]
pub(crate) fn _patterns_of(
    py: Python<'_>,
    patterns: Vec<String>,
    paths: Vec<String>,
) -> PyResult<Vec<Option<usize>>> {
    let mut all = Patterns::default();
    patterns.iter().for_each(|pattern| all.push(pattern));
    paths.iter().map(|path| all.find(py, path)).collect()
}
