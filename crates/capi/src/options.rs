//! The options of a batch, as a struct of C.

use std::sync::Arc;

use windrow::collate::{AnyTransform, Granularity};
use windrow::dlpack::{self, device_from_dl, dtype_from_dl, DLDataType, DLDevice, DLTensor};
use windrow::plan::Target;
use windrow::tensor::Scalar;
use windrow::{
    Collate, DType, Dequantize, Error, Pad, Quantize, Ragged, Result, Side, Tensor, Transform,
};

/// The form of the batch: `windrow_options.form`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Equal shapes to `[N, ...]`.
    Stack = 0,
    /// Joined along `dim`, with offsets and lengths.
    Concat = 1,
    /// Padded to the largest, with lengths and perhaps a mask.
    Pad = 2,
    /// Joined along dim 0, with offsets and lengths.
    Ragged = 3,
}

/// The mask of a padded batch: `windrow_options.mask`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// No mask.
    None = 0,
    /// True where the samples are.
    Real = 1,
    /// True where padding is.
    Pad = 2,
}

/// How a batch is assembled. Call `windrow_options_init` first, then set what differs. Arrays are read during the call.
/// `dim` is read for `WINDROW_FORM_CONCAT` only, and `value` to `num_multiples` for `WINDROW_FORM_PAD` only.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// `sizeof(windrow_options)`, set by `windrow_options_init`.
    pub size: usize,
    /// A `windrow_form`.
    pub form: i32,
    /// The dim of a concat; negative counts from the end.
    pub dim: i64,
    /// The dtype of the batch; all zero: all samples must share a dtype, which is kept.
    pub dtype: DLDataType,
    /// The device to place the batch on; all zero: where the samples are.
    pub device: DLDevice,
    /// Padding, if `int_value` is NULL.
    pub value: f64,
    /// Padding as an integer, exact for int64.
    pub int_value: *const i64,
    /// The side that padding is on: 0 right, 1 left, 2 both.
    pub side: i32,
    /// Not 0: cut samples off that are larger than `sizes`.
    pub truncate: i32,
    /// A `windrow_mask`.
    pub mask: i32,
    /// The dtype of the mask: 1 where it is true. All zero: bool.
    pub mask_dtype: DLDataType,
    /// The dims that are padded; NULL: those that an entry of `sizes` or `multiples` names or, if none does, those that differ.
    /// Samples of one dim are always padded along it.
    pub dims: *const i64,
    /// Entries of `dims`.
    pub num_dims: usize,
    /// The size of each dim of a sample, -1 for none; NULL: the largest sample's.
    pub sizes: *const i64,
    /// Entries of `sizes`.
    pub num_sizes: usize,
    /// For each dim of a sample, the number to whose multiples its size is rounded up; NULL: 1.
    pub multiples: *const i64,
    /// Entries of `multiples`.
    pub num_multiples: usize,
    /// Not 0: offsets of a ragged batch are int32; for another form, WINDROW_STATUS_ARGUMENT.
    pub offsets_i32: i32,
    /// Not 0: a ragged batch has `WINDROW_FIELD_BATCH_INDEX`; for another form, WINDROW_STATUS_ARGUMENT.
    pub batch_index: i32,
    /// Elements become `(x * scale - mean[c]) / std[c]`.
    pub scale: f64,
    /// One mean, or one for each channel; NULL: 0.
    pub mean: *const f64,
    /// Entries of `mean`.
    pub num_mean: usize,
    /// One standard deviation, or one for each channel; NULL: 1.
    pub std: *const f64,
    /// Entries of `std`.
    pub num_std: usize,
    /// The dim of the channels, if `has_channel_dim` is not 0.
    pub channel_dim: i64,
    /// Not 0: `channel_dim` is given. Otherwise it is the only dim whose extent is the number of entries of `mean` or `std`.
    pub has_channel_dim: i32,
    /// The order of a sample's dims in the batch; NULL: as they are.
    pub permute: *const i64,
    /// Entries of `permute`.
    pub num_permute: usize,
    /// Not 0: of a batch of float8_e4m3fn or float8_e5m2; values beyond the largest finite one become it. For a batch of another
    /// dtype, WINDROW_STATUS_ARGUMENT.
    pub saturate: i32,
    /// float8_e4m3fn, float8_e5m2 or int8: elements are divided by scales that are found on the way, and the batch has this
    /// dtype and `WINDROW_FIELD_SCALES`. With `dtype`, `scale`, `mean`, `std` or `permute`, WINDROW_STATUS_ARGUMENT. All zero: not.
    pub quantize: DLDataType,
    /// Which elements share a scale: 0 a row of the last dim, -1 a sample, else blocks of so many along the last dim.
    pub scale_of: i64,
    /// The dtype of the scales that are found: float32, or float8_e8m0fnu for powers of two. All zero: float32.
    pub scale_dtype: DLDataType,
    /// The least magnitude that a scale is made of; 0: 1e-12.
    pub eps: f64,
    /// Where `windrow_assemble_into` writes the scales that are found; NULL: in memory of windrow's.
    pub scales_out: *const DLTensor,
    /// Scales that int8 or float8 samples are multiplied by on the way to `dtype`, shaped as those of a batch of this form are;
    /// NULL: they are not. With `scale`, `mean`, `std` or `permute`, WINDROW_STATUS_ARGUMENT.
    pub scales: *const DLTensor,
    /// The block length of `scales`, if they are of blocks along the last dim; else 0.
    pub scales_block: i64,
}

impl Default for Options {
    fn default() -> Options {
        // SAFETY: numbers and pointers may be zero.
        let zero: Options = unsafe { std::mem::zeroed() };
        Options { size: size_of::<Options>(), scale: 1.0, ..zero }
    }
}

/// A tensor of the caller's memory, which stays as long as the call.
///
/// # Safety
/// A tensor whose memory is there as long as the result.
unsafe fn tensor_at(tensor: *const DLTensor) -> Result<Tensor> {
    // SAFETY: the caller's promise.
    unsafe {
        let foreign = dlpack::read_tensor(tensor)?;
        let layout = foreign.layout()?;
        let (data, dtype, device) = (foreign.data, foreign.dtype, foreign.device);
        Ok(Tensor::new_unchecked(Arc::new(()), data, dtype, device, layout, true))
    }
}

/// Memory of the caller's to be written to.
///
/// # Safety
/// The memory may be written to, and nothing else uses it while the target lives.
pub(crate) unsafe fn target_at<'t>(tensor: *const DLTensor) -> Result<Target<'t>> {
    // SAFETY: the caller's promise.
    unsafe {
        let foreign = dlpack::read_tensor(tensor)?;
        let layout = foreign.layout()?;
        Ok(Target::from_raw_parts(foreign.data, foreign.dtype, foreign.device, layout))
    }
}

/// # Safety
/// NULL, or an array of so many values.
unsafe fn list<T: Copy>(values: *const T, count: usize) -> Option<Vec<T>> {
    // SAFETY: not NULL, and the caller's promise.
    (!values.is_null()).then(|| unsafe { std::slice::from_raw_parts(values, count) }.to_vec())
}

impl Options {
    /// # Safety
    /// The arrays have as many entries as the options say.
    pub(crate) unsafe fn collate(&self) -> Result<Collate> {
        let refuse = |text: String| Err(Error::Argument(text));
        self.check_size()?;
        let of_ragged = [("offsets_i32", self.offsets_i32), ("batch_index", self.batch_index)];
        if let Some((option, _)) = of_ragged.iter().find(|(_, set)| *set != 0 && self.form != 3) {
            return refuse(format!("{option} is an option of a ragged batch"));
        }
        let mut collate = match self.form {
            0 => Collate::stack(),
            1 => Collate::concat(self.dim),
            // SAFETY: the caller's promise.
            2 => Collate::pad(unsafe { self.pad() }?),
            3 => Collate::ragged(self.ragged()),
            form => return refuse(format!("form must be a windrow_form, got {form}")),
        };
        if self.dtype.bits != 0 {
            collate =
                collate.cast(dtype_from_dl(self.dtype).map_err(|error| error.about("dtype"))?);
        }
        if self.device.device_type.0 != 0 {
            collate =
                collate.device(device_from_dl(self.device).map_err(|error| error.about("device"))?);
        }
        if self.saturate != 0 {
            collate = collate.saturate();
        }
        // SAFETY: the caller's promise.
        Ok(collate.transform(unsafe { self.transform() }?))
    }

    /// # Errors
    /// [`Error::Argument`] for options of another library.
    pub(crate) fn check_size(&self) -> Result<()> {
        let wanted = size_of::<Options>();
        if self.size == wanted {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "options of {} bytes instead of {wanted}: call windrow_options_init, and use the windrow.h of this library",
            self.size
        )))
    }

    /// What samples are put through.
    ///
    /// # Safety
    /// As of [`Options::collate`].
    pub(crate) unsafe fn transform(&self) -> Result<AnyTransform> {
        let mut transform = Transform::new().scale(self.scale);
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(mean) = list(self.mean, self.num_mean) {
                transform = transform.mean(mean);
            }
            if let Some(std) = list(self.std, self.num_std) {
                transform = transform.std(std);
            }
            if let Some(permute) = list(self.permute, self.num_permute) {
                transform = transform.permute(permute);
            }
        }
        if self.has_channel_dim != 0 {
            transform = transform.channel_dim(self.channel_dim);
        }
        // SAFETY: the caller's promise.
        match unsafe { self.scaled() }? {
            None => Ok(transform.into()),
            Some(_) if transform != Transform::new() => Err(Error::Argument(
                "quantize and scales exclude scale, mean, std and permute".to_owned(),
            )),
            Some(scaled) => Ok(scaled),
        }
    }

    /// # Safety
    /// As of [`Options::collate`].
    unsafe fn scaled(&self) -> Result<Option<AnyTransform>> {
        if self.quantize.bits != 0 {
            if !self.scales.is_null() {
                return Err(Error::Argument(
                    "quantize excludes scales, which are its inverse's".into(),
                ));
            }
            let dtype = dtype_from_dl(self.quantize).map_err(|error| error.about("quantize"))?;
            let mut quantize = Quantize::new(dtype).scale(match self.scale_of {
                0 => Granularity::Row,
                -1 => Granularity::Sample,
                elems => Granularity::Block(elems),
            });
            if self.scale_dtype.bits != 0 {
                let dtype = dtype_from_dl(self.scale_dtype);
                quantize = quantize.scale_dtype(dtype.map_err(|error| error.about("scale_dtype"))?);
            }
            if self.eps != 0.0 {
                quantize = quantize.eps(self.eps);
            }
            return Ok(Some(quantize.into()));
        }
        if self.scales.is_null() {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        let scales = unsafe { tensor_at(self.scales) }.map_err(|error| error.about("scales"))?;
        let given = Dequantize::new(scales);
        Ok(Some(match self.scales_block {
            0 => given.into(),
            elems => given.block(elems).into(),
        }))
    }

    /// Where scales go, if that is memory of the caller's.
    ///
    /// # Safety
    /// The memory may be written to, and nothing else uses it while the target lives.
    pub(crate) unsafe fn scales_target<'t>(&self) -> Result<Option<Target<'t>>> {
        if self.scales_out.is_null() {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        unsafe { target_at(self.scales_out) }.map(Some).map_err(|error| error.about("scales_out"))
    }

    fn ragged(&self) -> Ragged {
        let ragged = match self.offsets_i32 {
            0 => Ragged::new(),
            _ => Ragged::new().offsets(DType::I32),
        };
        match self.batch_index {
            0 => ragged,
            _ => ragged.batch_index(),
        }
    }

    /// # Safety
    /// The arrays have as many entries as the options say.
    unsafe fn pad(&self) -> Result<Pad> {
        let refuse = |text: String| Err(Error::Argument(text));
        let mut pad = Pad::new().truncate(self.truncate != 0);
        // SAFETY: the caller's promise.
        unsafe {
            pad = pad.value(match self.int_value.as_ref() {
                Some(&value) => Scalar::from(value),
                None => Scalar::from(self.value),
            });
            if let Some(dims) = list(self.dims, self.num_dims) {
                pad = pad.dims(dims);
            }
            if let Some(sizes) = list(self.sizes, self.num_sizes) {
                let given = |size: i64| (size != -1).then_some(size);
                pad = pad.sizes(sizes.into_iter().map(given).collect::<Vec<_>>());
            }
            if let Some(multiples) = list(self.multiples, self.num_multiples) {
                pad = pad.multiples_of(multiples);
            }
        }
        pad = pad.side(match self.side {
            0 => Side::Right,
            1 => Side::Left,
            2 => Side::Center,
            side => {
                return refuse(format!("side must be 0 (right), 1 (left) or 2 (both), got {side}"))
            }
        });
        if self.mask_dtype.bits != 0 {
            let dtype = dtype_from_dl(self.mask_dtype);
            pad = pad.mask_dtype(dtype.map_err(|error| error.about("mask_dtype"))?);
        }
        match self.mask {
            0 => Ok(pad),
            1 => Ok(pad.mask(windrow::Mask::Real)),
            2 => Ok(pad.mask(windrow::Mask::Pad)),
            mask => refuse(format!("mask must be a windrow_mask, got {mask}")),
        }
    }
}
