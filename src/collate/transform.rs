//! [`Transform`]: arithmetic on each element, and the order of the dims.

use super::affine::Affine;
use crate::tensor::{Error, Result};

/// `(x * scale - mean[c]) / std[c]` for each element, then a permutation of the sample's dims.
///
/// Evaluated as one fused multiply-add `x * a[c] + b[c]` with `a = scale / std` and
/// `b = -mean / std` formed in float64: in float32, or in float64 when source or result is float64,
/// then rounded once, to nearest even. Every `a[c]` and `b[c]` must be finite, so no `std` may be 0, in float32 too where it is
/// used, which no `a[c]` may vanish in; otherwise planning fails with [`Error::Argument`].
///
/// Scale, mean or std on integer or bool samples need a dtype ([`Collate::cast`](super::Collate::cast)): a floating-point one
/// or, if truncation toward zero and saturation are wanted, an integer one.
#[derive(Clone, Debug, PartialEq)]
pub struct Transform {
    pub(crate) scale: f64,
    pub(crate) mean: Vec<f64>,
    pub(crate) std: Vec<f64>,
    pub(crate) channel_dim: Option<i64>,
    pub(crate) permute: Option<Vec<i64>>,
}

impl Default for Transform {
    fn default() -> Transform {
        Transform {
            scale: 1.0,
            mean: Vec::new(),
            std: Vec::new(),
            channel_dim: None,
            permute: None,
        }
    }
}

impl Transform {
    /// The identity: no arithmetic, no permutation.
    ///
    /// ```
    /// use windrow::{assemble, Collate, DType, Transform};
    /// let collate = Collate::stack().cast(DType::F32).transform(Transform::new().scale(0.5));
    /// assert_eq!(assemble(&[[2u8, 4]], &collate)?.data().as_slice::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn new() -> Transform {
        Transform::default()
    }

    /// Sets the factor that elements are multiplied by before the mean is taken off: 1/255 for 8-bit images.
    #[must_use]
    pub fn scale(mut self, scale: f64) -> Transform {
        self.scale = scale;
        self
    }

    /// Sets one mean, or one for each channel.
    #[must_use]
    pub fn mean(mut self, mean: impl Into<Vec<f64>>) -> Transform {
        self.mean = mean.into();
        self
    }

    /// Sets one standard deviation, or one for each channel.
    #[must_use]
    pub fn std(mut self, std: impl Into<Vec<f64>>) -> Transform {
        self.std = std.into();
        self
    }

    /// Sets the sample dim that the channels are along; without it, the only dim whose extent is the number of
    /// channels in all samples that is neither joined nor named by [`Pad::dims`](crate::Pad::dims).
    #[must_use]
    pub fn channel_dim(mut self, dim: i64) -> Transform {
        self.channel_dim = Some(dim);
        self
    }

    /// Sets the order of the sample's dims in the batch, as for `numpy.transpose`.
    #[must_use]
    pub fn permute(mut self, dims: impl Into<Vec<i64>>) -> Transform {
        self.permute = Some(dims.into());
        self
    }

    /// Whether a `scale` other than 1, `mean` or `std` is given.
    pub(crate) fn computes(&self) -> bool {
        self.scale != 1.0 || !self.mean.is_empty() || !self.std.is_empty()
    }

    /// The multiply-add `x * a + b` of each channel; `None` if the scale and every std are 1 and every mean is 0.
    ///
    /// # Errors
    /// [`Error::Argument`] for several means beside another number of standard deviations, or coefficients that are not finite.
    pub(crate) fn affine(&self) -> Result<Option<Affine>> {
        let channels = self.mean.len().max(self.std.len()).max(1);
        for (name, values) in [("mean", &self.mean), ("std", &self.std)] {
            if values.len() > 1 && values.len() != channels {
                return Err(Error::argument(format!(
                    "{name} has {} entries where mean or std has {channels}",
                    values.len()
                )));
            }
        }
        let at = |values: &[f64], c: usize, default: f64| match values.len() {
            0 => default,
            1 => values[0],
            _ => values[c],
        };
        if self.scale == 1.0
            && self.mean.iter().all(|&m| m == 0.0)
            && self.std.iter().all(|&s| s == 1.0)
        {
            return Ok(None);
        }
        let pair = |c| {
            let std = at(&self.std, c, 1.0);
            (self.scale / std, -at(&self.mean, c, 0.0) / std)
        };
        let (a, b): (Vec<f64>, Vec<f64>) = (0..channels).map(pair).unzip();
        // FMA implementations differ in which of two NaN payloads survives, so non-finite coefficients are refused.
        if let Some(c) = (0..channels).find(|&c| !a[c].is_finite() || !b[c].is_finite()) {
            return Err(Error::argument(format!(
                "scale={}, mean={} and std={} of channel {c} give no finite factor and offset",
                self.scale,
                at(&self.mean, c, 0.0),
                at(&self.std, c, 1.0)
            )));
        }
        Ok(Some(Affine::new(a, b)))
    }
}
