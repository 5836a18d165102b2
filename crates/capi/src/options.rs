//! The options of a batch, as a struct of C.

use std::sync::Arc;

use windrow::collate::AnyTransform;
use windrow::dlpack::{
    dtype_from_dl, DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLTensor,
};
use windrow::plan::Target;
use windrow::tensor::Scalar;
use windrow::{
    Collate, DType, Dequantize, Device, Error, Pad, Quantize, Ragged, Result, Tensor, Transform,
};

use crate::number::Number;
use crate::place::{place_of, read_tensor};
use crate::status::is_null;

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

/// The side that padding is on: `windrow_options.side`. With `truncate`, the side that is cut off too.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// After the data.
    Right = 0,
    /// Before the data.
    Left = 1,
    /// Half before, half after; the odd one after.
    Center = 2,
}

/// Elements that share a scale: `windrow_options.scale_of`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// A row of the last dim.
    Row = 0,
    /// A sample.
    Sample = 1,
    /// A block of `scale_block` elements along the last dim.
    Block = 2,
}

/// How a batch is assembled. Call `windrow_options_init` first, then set what differs. Arrays are read during the call.
/// A `has_...` that is 0 says that the option which it names is not given; that option is then zero, as `windrow_options_init`
/// leaves it, or WINDROW_STATUS_ARGUMENT. The struct and what it points to belong to the caller, and no call keeps them. Several
/// threads may read one struct at once. An option that is set and belongs to another form, or to an option that is not given, is
/// WINDROW_STATUS_ARGUMENT: `dim` belongs to `WINDROW_FORM_CONCAT`, and `value` to `num_multiples` to `WINDROW_FORM_PAD`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// `sizeof(windrow_options)`, set by `windrow_options_init`.
    pub size: usize,
    /// A `windrow_form`.
    pub form: i32,
    /// The dim of a concat; negative counts from the end.
    pub dim: i64,
    /// If not 0, `dtype` is given. Otherwise all samples must share a dtype, which is kept.
    pub has_dtype: i32,
    /// The dtype of the batch, which elements are cast to.
    pub dtype: DLDataType,
    /// If not 0, `device` is given. Otherwise the batch is where the samples are.
    pub has_device: i32,
    /// The device to place the batch on: kDLCPU or, for page-locked memory, kDLCUDAHost, both with id 0, or kDLCUDA.
    pub device: DLDevice,
    /// The value of padding, at first the integer 0.
    pub value: Number,
    /// A `windrow_side`.
    pub side: i32,
    /// If not 0, samples are cut off that are larger than `sizes`.
    pub truncate: i32,
    /// A `windrow_mask`.
    pub mask: i32,
    /// If not 0, `mask_dtype` is given. Otherwise the mask is bool.
    pub has_mask_dtype: i32,
    /// The dtype of the mask: 1 where it is true.
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
    /// The number for each dim of a sample to whose multiples its size is rounded up; NULL: 1.
    pub multiples: *const i64,
    /// Entries of `multiples`.
    pub num_multiples: usize,
    /// If not 0, offsets of a ragged batch are int32; for another form, WINDROW_STATUS_ARGUMENT.
    pub offsets_i32: i32,
    /// If not 0, a ragged batch has `WINDROW_FIELD_BATCH_INDEX`; for another form, WINDROW_STATUS_ARGUMENT.
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
    /// If not 0, `channel_dim` is given. Otherwise it is the only dim whose extent is the number of entries of `mean` or `std` in all
    /// samples, of those that are neither joined nor named to be padded.
    pub has_channel_dim: i32,
    /// The dim of the channels; negative counts from the end.
    pub channel_dim: i64,
    /// The order of a sample's dims in the batch; NULL: as they are.
    pub permute: *const i64,
    /// Entries of `permute`.
    pub num_permute: usize,
    /// If not 0, values beyond the largest finite one of float8_e4m3fn or float8_e5m2 become it. For a batch of another
    /// dtype, WINDROW_STATUS_ARGUMENT.
    pub saturate: i32,
    /// If not 0, `quantize` is given, with which `dtype`, `scale`, `mean`, `std` or `permute` is WINDROW_STATUS_ARGUMENT. The options from
    /// `scale_of` to `eps` belong to it.
    pub has_quantize: i32,
    /// float8_e4m3fn, float8_e5m2 or int8: elements are divided by scales that are found on the way, and the batch has this
    /// dtype and `WINDROW_FIELD_SCALES`.
    pub quantize: DLDataType,
    /// A `windrow_granularity`: which elements share a scale.
    pub scale_of: i32,
    /// The elements of a block of `WINDROW_GRANULARITY_BLOCK`.
    pub scale_block: i64,
    /// If not 0, `scale_dtype` is given. Otherwise scales that are found are float32.
    pub has_scale_dtype: i32,
    /// The dtype of the scales that are found: float32, or float8_e8m0fnu for powers of two.
    pub scale_dtype: DLDataType,
    /// The least magnitude that a scale is made of, at first 1e-12.
    pub eps: f64,
    /// The memory that `windrow_assemble_into` writes the scales to that are found; NULL: memory of windrow's.
    pub scales_out: *const DLTensor,
    /// Scales that int8 or float8 samples are multiplied by on the way to `dtype`, shaped as those of a batch of this form are;
    /// NULL: they are not. With `scale`, `mean`, `std` or `permute`, WINDROW_STATUS_ARGUMENT.
    pub scales: *const DLTensor,
    /// If not 0, `scales_block` is given. Otherwise `scales` are of rows or of samples, as their shape says.
    pub has_scales_block: i32,
    /// The elements of a block, if `scales` are of blocks along the last dim.
    pub scales_block: i64,
}

impl Default for Options {
    fn default() -> Options {
        // SAFETY: all fields are numbers and pointers, which may be zero.
        let zero: Options = unsafe { std::mem::zeroed() };
        Options { size: size_of::<Options>(), scale: 1.0, eps: 1e-12, ..zero }
    }
}

/// A tensor of the caller's memory, with the errors of [`read_tensor`] and of its layout.
///
/// # Safety
/// A tensor, not NULL, whose memory is there as long as the result.
unsafe fn tensor_at(tensor: *const DLTensor) -> Result<Tensor> {
    // SAFETY: the caller's promise.
    unsafe {
        let foreign = read_tensor(tensor)?;
        let layout = foreign.layout()?;
        let (data, dtype, device) = (foreign.data, foreign.dtype, foreign.device);
        Ok(Tensor::new_unchecked(Arc::new(()), data, dtype, device, layout, true))
    }
}

/// Memory of the caller's to be written to, and its device, with the errors of [`read_tensor`] and of its layout.
///
/// # Safety
/// A tensor, not NULL. Its memory may be written to, and nothing else uses it while the target
/// lives.
pub(crate) unsafe fn target_at<'t>(tensor: *const DLTensor) -> Result<(Target<'t>, Device)> {
    // SAFETY: the caller's promise.
    unsafe {
        let foreign = read_tensor(tensor)?;
        let layout = foreign.layout()?;
        let (data, dtype, device) = (foreign.data, foreign.dtype, foreign.device);
        Ok((Target::from_raw_parts(data, dtype, device, layout), device))
    }
}

/// A copy of an array; `None` for NULL.
///
/// # Errors
/// [`Error::Argument`] for NULL with a count that is not 0.
///
/// # Safety
/// NULL, or an array of `count` values.
unsafe fn list<T: Copy>(name: &str, values: *const T, count: usize) -> Result<Option<Vec<T>>> {
    if values.is_null() {
        return match count {
            0 => Ok(None),
            _ => Err(Error::argument(format!("num_{name} is {count} and {name} is NULL"))),
        };
    }
    debug_assert!(values.is_aligned() && count <= isize::MAX as usize / size_of::<T>());
    // SAFETY: it is not NULL; the rest is the caller's promise.
    Ok(Some(unsafe { std::slice::from_raw_parts(values, count) }.to_vec()))
}

/// An option: `value`, unless its flag is 0, then `None`.
///
/// # Errors
/// [`Error::Argument`] if its flag is 0 and it is not `absent`.
fn given<T: PartialEq>(name: &str, flag: i32, value: T, absent: T) -> Result<Option<T>> {
    if flag == 0 && value != absent {
        return Err(Error::argument(format!(
            "{name} is set and has_{name} is 0; set has_{name} to 1, or leave {name} as windrow_options_init does"
        )));
    }
    Ok((flag != 0).then_some(value))
}

/// # Errors
/// [`Error::Argument`] for the first of these options that is set, unless what they belong to is there.
fn refuse_set(owner: &str, is_there: bool, options: &[(&str, bool)]) -> Result<()> {
    match options.iter().find(|(_, is_set)| *is_set && !is_there) {
        Some((name, _)) => Err(Error::argument(format!("{name} is an option of {owner}"))),
        None => Ok(()),
    }
}

/// Reads a dtype as [`given`] does. Also [`Error::DType`] for one that windrow lacks.
fn given_dtype(name: &'static str, flag: i32, dtype: DLDataType) -> Result<Option<DType>> {
    let absent = DLDataType { code: DLDataTypeCode(0), bits: 0, lanes: 0 };
    let found = given(name, flag, dtype, absent)?;
    found.map(|dtype| dtype_from_dl(dtype).map_err(|error| error.about(name))).transpose()
}

/// # Errors
/// [`Error::Argument`] for options of another size than this library's.
pub(crate) fn check_size(size: usize) -> Result<()> {
    let wanted = size_of::<Options>();
    if size == wanted {
        return Ok(());
    }
    Err(Error::argument(format!(
        "options of {size} bytes instead of {wanted}: call windrow_options_init, and use the windrow.h of this library"
    )))
}

/// A caller's options.
///
/// # Errors
/// [`Error::Argument`] for NULL, and for options of another size than this library's.
///
/// # Safety
/// NULL, or the address of options whose `size` is how many bytes there are.
pub(crate) unsafe fn of_caller<'a>(options: *const Options) -> Result<&'a Options> {
    if options.is_null() {
        return Err(is_null("options"));
    }
    debug_assert!(options.is_aligned());
    // SAFETY: the caller's promise. Options of an older header end before those of this one, so their size is read alone.
    check_size(unsafe { (&raw const (*options).size).read() })?;
    // SAFETY: the caller's promise; they are as large as that.
    Ok(unsafe { &*options })
}

impl Options {
    /// The batch that is asked for, but for [`Options::scales_target`].
    ///
    /// # Errors
    /// [`Error::Argument`]; [`Error::DType`] and [`Error::Device`] for one that windrow does not have; those of reading `scales`.
    ///
    /// # Safety
    /// The arrays have as many entries as the options say.
    pub(crate) unsafe fn collate(&self) -> Result<Collate> {
        let refuse = |text: String| Err(Error::argument(text));
        let mut collate = match self.form {
            0 => Collate::stack(),
            1 => Collate::concat(self.dim),
            // SAFETY: the caller's promise.
            2 => Collate::pad(unsafe { self.pad() }?),
            3 => Collate::ragged(self.ragged()),
            form => return refuse(format!("form must be a windrow_form, got {form}")),
        };
        // SAFETY: the caller's promise.
        unsafe { self.check_form_options() }?;
        if let Some(dtype) = self.dtype()? {
            collate = collate.cast(dtype);
        }
        if let Some(device) = self.device()? {
            collate = collate.device(place_of(device).map_err(|error| error.about("device"))?);
        }
        if self.saturate != 0 {
            collate = collate.saturate();
        }
        // SAFETY: the caller's promise.
        Ok(collate.transform(unsafe { self.transform() }?))
    }

    /// The option `dtype`, with the errors of [`given_dtype`]; `None` if it is not given.
    fn dtype(&self) -> Result<Option<DType>> {
        given_dtype("dtype", self.has_dtype, self.dtype)
    }

    /// The option `mask_dtype`, with the errors of [`given_dtype`]; `None` if it is not given.
    fn mask_dtype(&self) -> Result<Option<DType>> {
        given_dtype("mask_dtype", self.has_mask_dtype, self.mask_dtype)
    }

    /// The option `device`, with the errors of [`given`]; `None` if it is not given. Whether
    /// windrow has such a device is not checked.
    fn device(&self) -> Result<Option<DLDevice>> {
        let absent = DLDevice { device_type: DLDeviceType(0), device_id: 0 };
        given("device", self.has_device, self.device, absent)
    }

    /// # Errors
    /// [`Error::Argument`] for an option of another form that is set.
    ///
    /// # Safety
    /// The member of `value` that its kind names has been written to.
    unsafe fn check_form_options(&self) -> Result<()> {
        refuse_set("WINDROW_FORM_CONCAT", self.form == 1, &[("dim", self.dim != 0)])?;
        // SAFETY: the caller's promise.
        let value = unsafe { self.value.scalar("value") }?;
        let options = [
            ("value", value != Scalar::from(0i64)),
            ("side", self.side != 0),
            ("truncate", self.truncate != 0),
            ("mask", self.mask != 0),
            ("mask_dtype", self.mask_dtype()?.is_some()),
            ("dims", !self.dims.is_null() || self.num_dims != 0),
            ("sizes", !self.sizes.is_null() || self.num_sizes != 0),
            ("multiples", !self.multiples.is_null() || self.num_multiples != 0),
        ];
        refuse_set("WINDROW_FORM_PAD", self.form == 2, &options)?;
        let options =
            [("offsets_i32", self.offsets_i32 != 0), ("batch_index", self.batch_index != 0)];
        refuse_set("WINDROW_FORM_RAGGED", self.form == 3, &options)
    }

    /// # Errors
    /// [`Error::Argument`] for an option of `quantize`, of `scales` or of
    /// `WINDROW_GRANULARITY_BLOCK` that is set without them; `quantize` beside `scales` is not
    /// checked.
    fn check_scale_options(&self) -> Result<()> {
        let options = [
            ("scale_of", self.scale_of != 0),
            ("scale_dtype", self.has_scale_dtype != 0),
            ("eps", self.eps != Options::default().eps),
            ("scales_out", !self.scales_out.is_null()),
        ];
        refuse_set("quantize", self.has_quantize != 0, &options)?;
        let is_block = self.scale_of == Granularity::Block as i32;
        refuse_set(
            "WINDROW_GRANULARITY_BLOCK",
            is_block,
            &[("scale_block", self.scale_block != 0)],
        )?;
        let options = [("scales_block", self.has_scales_block != 0)];
        refuse_set("scales", !self.scales.is_null(), &options)
    }

    /// The transform of the sources of moves; the identity without options.
    ///
    /// # Errors
    /// [`Error::Argument`] for an option of batches that is set; those of [`Options::transform`].
    ///
    /// # Safety
    /// As of [`Options::collate`].
    pub(crate) unsafe fn move_transform(&self) -> Result<AnyTransform> {
        let options = [
            ("form", self.form != 0),
            ("dtype", self.dtype()?.is_some()),
            ("device", self.device()?.is_some()),
            ("saturate", self.saturate != 0),
            ("options.scales_out", !self.scales_out.is_null()),
        ];
        refuse_set("windrow_assemble, not of moves", false, &options)?;
        // SAFETY: the caller's promise.
        unsafe {
            self.check_form_options()?;
            self.transform()
        }
    }

    /// The transform of samples; the identity without options.
    ///
    /// # Errors
    /// [`Error::Argument`], also for `quantize` or `scales` with any other transform or a
    /// `channel_dim`; those of [`Options::scaled`].
    ///
    /// # Safety
    /// As of [`Options::collate`].
    unsafe fn transform(&self) -> Result<AnyTransform> {
        let mut transform = Transform::new().scale(self.scale);
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(mean) = list("mean", self.mean, self.num_mean)? {
                transform = transform.mean(mean);
            }
            if let Some(std) = list("std", self.std, self.num_std)? {
                transform = transform.std(std);
            }
            if let Some(permute) = list("permute", self.permute, self.num_permute)? {
                transform = transform.permute(permute);
            }
        }
        if let Some(dim) = given("channel_dim", self.has_channel_dim, self.channel_dim, 0)? {
            transform = transform.channel_dim(dim);
        }
        // SAFETY: the caller's promise.
        match unsafe { self.scaled() }? {
            None => Ok(transform.into()),
            Some(_) if transform != Transform::new() => Err(Error::argument(
                "quantize and scales exclude scale, mean, std and permute".to_owned(),
            )),
            Some(scaled) => Ok(scaled),
        }
    }

    /// `quantize` or `scales`; `None` without both. [`Error::Argument`], also for both; [`Error::DType`]; those of reading
    /// `scales`.
    ///
    /// # Safety
    /// As of [`Options::collate`].
    unsafe fn scaled(&self) -> Result<Option<AnyTransform>> {
        self.check_scale_options()?;
        let quantize = given_dtype("quantize", self.has_quantize, self.quantize)?;
        let scale_dtype = given_dtype("scale_dtype", self.has_scale_dtype, self.scale_dtype)?;
        let block = given("scales_block", self.has_scales_block, self.scales_block, 0)?;
        if let Some(dtype) = quantize {
            if !self.scales.is_null() {
                return Err(Error::argument(
                    "quantize excludes scales, which are its inverse's".into(),
                ));
            }
            let quantize = Quantize::new(dtype).eps(self.eps).scale(match self.scale_of {
                0 => windrow::collate::Granularity::Row,
                1 => windrow::collate::Granularity::Sample,
                2 => windrow::collate::Granularity::Block(self.scale_block),
                other => {
                    return Err(Error::argument(format!(
                        "scale_of must be a windrow_granularity, got {other}"
                    )))
                }
            });
            return Ok(Some(match scale_dtype {
                Some(dtype) => quantize.scale_dtype(dtype).into(),
                None => quantize.into(),
            }));
        }
        if self.scales.is_null() {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        let scales = unsafe { tensor_at(self.scales) }.map_err(|error| error.about("scales"))?;
        let dequantize = Dequantize::new(scales);
        Ok(Some(match block {
            None => dequantize.into(),
            Some(elems) => dequantize.block(elems).into(),
        }))
    }

    /// The target of the scales, with the errors of [`target_at`]; `None` without `scales_out`.
    ///
    /// # Safety
    /// The memory may be written to, and nothing else uses it while the target lives.
    pub(crate) unsafe fn scales_target<'t>(&self) -> Result<Option<Target<'t>>> {
        if self.scales_out.is_null() {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        let scales = unsafe { target_at(self.scales_out) };
        scales.map(|(target, _)| Some(target)).map_err(|error| error.about("scales_out"))
    }

    /// The options of a ragged batch.
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

    /// [`Error::DType`] for a `mask_dtype` that windrow does not have, [`Error::Argument`] for all else that is wrong.
    ///
    /// # Safety
    /// The arrays have as many entries as the options say.
    unsafe fn pad(&self) -> Result<Pad> {
        let refuse = |text: String| Err(Error::argument(text));
        let mut pad = Pad::new().truncate(self.truncate != 0);
        // SAFETY: the caller's promise.
        unsafe {
            pad = pad.value(self.value.scalar("value")?);
            if let Some(dims) = list("dims", self.dims, self.num_dims)? {
                pad = pad.dims(dims);
            }
            if let Some(sizes) = list("sizes", self.sizes, self.num_sizes)? {
                let given = |size: i64| (size != -1).then_some(size);
                pad = pad.sizes(sizes.into_iter().map(given).collect::<Vec<_>>());
            }
            if let Some(multiples) = list("multiples", self.multiples, self.num_multiples)? {
                pad = pad.multiples_of(multiples);
            }
        }
        pad = pad.side(match self.side {
            0 => windrow::Side::Right,
            1 => windrow::Side::Left,
            2 => windrow::Side::Center,
            side => return refuse(format!("side must be a windrow_side, got {side}")),
        });
        if let Some(dtype) = self.mask_dtype()? {
            pad = pad.mask_dtype(dtype);
        }
        match self.mask {
            0 => Ok(pad),
            1 => Ok(pad.mask(windrow::Mask::Real)),
            2 => Ok(pad.mask(windrow::Mask::Pad)),
            mask => refuse(format!("mask must be a windrow_mask, got {mask}")),
        }
    }
}
