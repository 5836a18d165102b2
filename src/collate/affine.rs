//! The arithmetic of a transform: one multiply-add for each element.

/// `x * a[c] + b[c]`, with `a` and `b` formed in float64 and kept in both widths.
#[derive(Clone, Debug, PartialEq)]
pub struct Affine {
    a: Box<[f64]>,
    b: Box<[f64]>,
    a32: Box<[f32]>,
    b32: Box<[f32]>,
}

impl Affine {
    /// One pair for all elements, or one for each channel.
    ///
    /// `a` and `b` are of equal length, at least 1.
    pub(crate) fn new(a: Vec<f64>, b: Vec<f64>) -> Affine {
        debug_assert!(!a.is_empty() && a.len() == b.len());
        let narrow = |v: &[f64]| v.iter().map(|&x| x as f32).collect();
        Affine { a32: narrow(&a), b32: narrow(&b), a: a.into(), b: b.into() }
    }

    /// The first channel whose pair float32 does not hold: as an infinity, or as a factor of 0 that is none; `None` if
    /// it holds all.
    pub(crate) fn beyond_f32(&self) -> Option<usize> {
        let is_held = |c: usize| {
            let (a, b) = (self.a32[c], self.b32[c]);
            a.is_finite() && b.is_finite() && (a == 0.0) == (self.a[c] == 0.0)
        };
        (0..self.channels()).find(|&c| !is_held(c))
    }

    /// Number of pairs: 1, or the extent of the channel dim.
    pub fn channels(&self) -> usize {
        self.a.len()
    }

    /// `a` in float64.
    pub fn a(&self) -> &[f64] {
        &self.a
    }

    /// `b` in float64.
    pub fn b(&self) -> &[f64] {
        &self.b
    }

    /// `a` rounded to float32.
    pub fn a32(&self) -> &[f32] {
        &self.a32
    }

    /// `b` rounded to float32.
    pub fn b32(&self) -> &[f32] {
        &self.b32
    }
}
