//! [`Ask`]: one batch as a test asks for it, of the library and of the oracle.

use windrow::collate::PerDim;
use windrow::tensor::Scalar;
use windrow::{Collate, DType, Mask, Pad, Ragged, Side, Transform};

/// The form of a batch.
#[derive(Clone, Debug)]
pub enum Form {
    Stack,
    Concat(i64),
    Ragged { offsets_i32: bool, batch_index: bool },
    Pad(PadAsk),
}

/// The options of a padded batch.
#[derive(Clone, Debug)]
pub struct PadAsk {
    pub value: Scalar,
    pub side: PerDim<Side>,
    pub dims: Option<Vec<i64>>,
    pub size: PerDim<Option<i64>>,
    pub multiple_of: PerDim<i64>,
    pub truncate: bool,
    pub mask: Option<Mask>,
    pub mask_dtype: DType,
}

impl Default for PadAsk {
    fn default() -> PadAsk {
        PadAsk {
            value: Scalar::Int(1),
            side: PerDim::All(Side::Right),
            dims: None,
            size: PerDim::All(None),
            multiple_of: PerDim::All(1),
            truncate: false,
            mask: Some(Mask::Real),
            mask_dtype: DType::Bool,
        }
    }
}

impl PadAsk {
    /// Filled up or cut to these sizes.
    pub fn cut(side: Side, size: PerDim<Option<i64>>) -> PadAsk {
        PadAsk { side: PerDim::All(side), size, truncate: true, ..PadAsk::default() }
    }
}

/// Every side.
pub const SIDES: [Side; 3] = [Side::Right, Side::Left, Side::Center];

/// One batch.
#[derive(Clone, Debug)]
pub struct Ask {
    pub form: Form,
    pub cast: Option<DType>,
    pub scale: f64,
    pub mean: Vec<f64>,
    pub std: Vec<f64>,
    pub channel_dim: Option<i64>,
    pub permute: Option<Vec<i64>>,
    pub saturate: bool,
    /// The increment of each sample; only on a device, if any.
    pub increments: Vec<i64>,
}

impl Ask {
    pub fn new(form: Form) -> Ask {
        Ask {
            form,
            cast: None,
            scale: 1.0,
            mean: vec![],
            std: vec![],
            channel_dim: None,
            permute: None,
            saturate: false,
            increments: vec![],
        }
    }

    pub fn stack() -> Ask {
        Ask::new(Form::Stack)
    }

    pub fn concat(dim: i64) -> Ask {
        Ask::new(Form::Concat(dim))
    }

    pub fn ragged() -> Ask {
        Ask::new(Form::Ragged { offsets_i32: false, batch_index: true })
    }

    pub fn pad(pad: PadAsk) -> Ask {
        Ask::new(Form::Pad(pad))
    }

    /// The same with a mask of this dtype.
    pub fn mask_dtype(mut self, dtype: DType) -> Ask {
        if let Form::Pad(pad) = &mut self.form {
            pad.mask_dtype = dtype;
        }
        self
    }

    /// A pad of one side, with a mask.
    pub fn side(side: Side) -> Ask {
        Ask::pad(PadAsk { side: PerDim::All(side), ..PadAsk::default() })
    }

    pub fn cast(mut self, dtype: DType) -> Ask {
        self.cast = Some(dtype);
        self
    }

    /// Cast to float8, whose largest number larger ones become.
    pub fn saturate(mut self, dtype: DType) -> Ask {
        self.saturate = true;
        self.cast(dtype)
    }

    pub fn permute(mut self, order: &[i64]) -> Ask {
        self.permute = Some(order.to_vec());
        self
    }

    /// One pair of coefficients for all elements.
    pub fn scaled(mut self) -> Ask {
        self.scale = 1.0 / 58.395;
        self.mean = vec![0.485];
        self.std = vec![0.225];
        self
    }

    /// Adds a mean and a deviation for each channel along `dim`.
    pub fn normalised(mut self, channels: usize, dim: i64) -> Ask {
        self.scale = 1.0 / 255.0;
        self.mean = (0..channels).map(|c| 0.485 - 0.04 * c as f64).collect();
        self.std = (0..channels).map(|c| 0.229 + 0.01 * c as f64).collect();
        self.channel_dim = Some(dim);
        self
    }

    /// The same for the library.
    pub fn collate(&self) -> Collate {
        let collate = match &self.form {
            Form::Stack => Collate::stack(),
            Form::Concat(dim) => Collate::concat(*dim),
            Form::Ragged { offsets_i32, batch_index } => {
                let mut ragged = Ragged::new();
                if *offsets_i32 {
                    ragged = ragged.offsets(DType::I32);
                }
                if *batch_index {
                    ragged = ragged.batch_index();
                }
                Collate::ragged(ragged)
            }
            Form::Pad(pad) => Collate::pad(pad.options()),
        };
        let mut transform =
            Transform::new().scale(self.scale).mean(self.mean.clone()).std(self.std.clone());
        if let Some(dim) = self.channel_dim {
            transform = transform.channel_dim(dim);
        }
        if let Some(order) = &self.permute {
            transform = transform.permute(order.clone());
        }
        let mut collate = collate.transform(transform);
        if !self.increments.is_empty() {
            collate = collate.increments(self.increments.clone());
        }
        if self.saturate {
            collate = collate.saturate();
        }
        match self.cast {
            Some(dtype) => collate.cast(dtype),
            None => collate,
        }
    }
}

impl PadAsk {
    fn options(&self) -> Pad {
        let mut pad = Pad::new().value(self.value).truncate(self.truncate);
        pad = match &self.side {
            PerDim::All(side) => pad.side(*side),
            PerDim::Each(sides) => pad.sides(sides.clone()),
        };
        if let Some(dims) = &self.dims {
            pad = pad.dims(dims.clone());
        }
        pad = match &self.size {
            PerDim::All(None) => pad,
            PerDim::All(Some(size)) => pad.size(*size),
            PerDim::Each(sizes) => pad.sizes(sizes.clone()),
        };
        pad = match &self.multiple_of {
            PerDim::All(multiple) => pad.multiple_of(*multiple),
            PerDim::Each(multiples) => pad.multiples_of(multiples.clone()),
        };
        match self.mask {
            Some(mask) => pad.mask(mask).mask_dtype(self.mask_dtype),
            None => pad,
        }
    }
}
