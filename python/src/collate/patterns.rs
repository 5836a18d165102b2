//! The pattern of a spec that a path matches: the equal one, else the first glob.
//!
//! Each path is looked up, whatever the number of patterns: among all as it is, and among globs by a text that each of them needs,
//! of those in it the one that the fewest others have.

use std::collections::{BTreeSet, HashMap};

use pyo3::intern;
use pyo3::prelude::*;

/// Patterns by their position.
#[derive(Default)]
pub(super) struct Patterns {
    exact: HashMap<String, usize>,
    /// The patterns with special characters, by a text that is in every path that they match; empty if there is none.
    globs: HashMap<String, Vec<Glob>>,
    /// The lengths of these texts in bytes.
    lengths: BTreeSet<usize>,
}

struct Glob {
    position: usize,
    tokens: Vec<Token>,
    /// The pattern, if Python's `fnmatch` has to say what a set with ranges is.
    with_ranges: Option<String>,
}

/// A part of a glob, by the rules of Python's `fnmatch`.
#[derive(PartialEq)]
enum Token {
    Char(char),
    Any,
    Star,
    /// One of these characters, or, if true, none of them.
    Set(Vec<char>, bool),
}

impl Token {
    /// Whether it matches a character. A star does not: it matches any number.
    fn matches(&self, char: char) -> bool {
        match self {
            Token::Char(literal) => *literal == char,
            Token::Any => true,
            Token::Star => false,
            Token::Set(chars, is_negated) => chars.contains(&char) != *is_negated,
        }
    }
}

/// The parts of a pattern; a set of one character is that character.
fn tokens_of(pattern: &str) -> Vec<Token> {
    let chars: Vec<char> = pattern.chars().collect();
    let (mut tokens, mut next) = (Vec::new(), 0);
    while let Some(&char) = chars.get(next) {
        next += 1;
        let token = match char {
            '*' => Token::Star,
            '?' => Token::Any,
            '[' => {
                let is_negated = chars.get(next) == Some(&'!');
                let start = next + usize::from(is_negated);
                // A bracket that is the first in a set does not end it.
                let end = (start + 1..chars.len()).find(|&end| chars[end] == ']');
                match end.map(|end| (end, &chars[start..end])) {
                    None => Token::Char('['),
                    Some((end, set)) => {
                        next = end + 1;
                        match set {
                            [char] if !is_negated => Token::Char(*char),
                            set => Token::Set(set.to_vec(), is_negated),
                        }
                    }
                }
            }
            char => Token::Char(char),
        };
        tokens.push(token);
    }
    tokens
}

/// The texts of a glob before, between and behind its other parts, empty ones too.
fn texts_of(tokens: &[Token]) -> impl Iterator<Item = String> + '_ {
    tokens.split(|token| !matches!(token, Token::Char(_))).map(|text| {
        let chars = text.iter().filter_map(|token| match token {
            Token::Char(char) => Some(*char),
            _ => None,
        });
        chars.collect()
    })
}

impl Glob {
    /// Whether it matches a path of these characters.
    fn matches(&self, py: Python<'_>, path: &str, chars: &[char]) -> PyResult<bool> {
        if let Some(pattern) = &self.with_ranges {
            let fnmatch = py.import(intern!(py, "fnmatch"))?;
            let fnmatch = fnmatch.getattr(intern!(py, "fnmatchcase"))?;
            return fnmatch.call1((path, pattern))?.is_truthy();
        }
        // The token and the character that are next, and where to go on if the last star has to match one more.
        let (mut token, mut char, mut retry) = (0, 0, None);
        while char < chars.len() {
            match self.tokens.get(token) {
                Some(Token::Star) => {
                    token += 1;
                    retry = Some((token, char + 1));
                }
                Some(next) if next.matches(chars[char]) => (token, char) = (token + 1, char + 1),
                _ => {
                    let Some((after_star, from)) = retry else { return Ok(false) };
                    retry = Some((after_star, from + 1));
                    (token, char) = (after_star, from);
                }
            }
        }
        Ok(self.tokens[token..].iter().all(|token| *token == Token::Star))
    }
}

impl Patterns {
    /// Patterns in their order. A glob also counts as its exact text; of equal patterns the first counts.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Patterns {
        let (mut all, mut globs) = (Patterns::default(), Vec::new());
        let mut counts: HashMap<String, usize> = HashMap::new();
        for (position, pattern) in patterns.into_iter().enumerate() {
            all.exact.entry(pattern.to_owned()).or_insert(position);
            let tokens = tokens_of(pattern);
            if !pattern.contains(['*', '?', '[']) {
                continue;
            }
            for text in texts_of(&tokens) {
                *counts.entry(text).or_default() += 1;
            }
            let has_range =
                |token: &Token| matches!(token, Token::Set(set, _) if set.contains(&'-'));
            let with_ranges = tokens.iter().any(has_range).then(|| pattern.to_owned());
            globs.push(Glob { position, tokens, with_ranges });
        }
        for glob in globs {
            let rank =
                |text: &String| (text.is_empty(), counts[text], std::cmp::Reverse(text.len()));
            let text = texts_of(&glob.tokens).min_by_key(rank).unwrap_or_default();
            all.lengths.insert(text.len());
            all.globs.entry(text).or_default().push(glob);
        }
        all
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
        let chars: Vec<char> = path.chars().collect();
        let mut found: Option<usize> = None;
        for &length in &self.lengths {
            // The empty text is in a path once.
            let num_starts = if length == 0 { 1 } else { (path.len() + 1).saturating_sub(length) };
            let texts = (0..num_starts).filter_map(|start| path.get(start..start + length));
            for glob in texts.filter_map(|text| self.globs.get(text)).flatten() {
                if found.is_some_and(|found| found <= glob.position) {
                    continue;
                }
                if glob.matches(py, path, &chars)? {
                    found = Some(glob.position);
                }
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
    let all = Patterns::new(patterns.iter().map(String::as_str));
    paths.iter().map(|path| all.find(py, path)).collect()
}
