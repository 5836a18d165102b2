//! Samples that are parts of others, by numbers: windows of one array, crops of images.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use windrow::bindings::Dims;
use windrow::{Collate, DType, Device, Error, Result, SampleList, Tensor};

use crate::ground::arguments::number_argument;
use crate::ground::errors::{quoted, OrPyErr};
use crate::ground::iterables::entries;
use crate::ground::reserve::try_vec;
use crate::import::importer::Reading;
use crate::import::integers::integers;
use crate::import::tensor::{table_of, tensor_of};
use crate::ownership::copy::copy_of;
use crate::samples::imported::Imported;
use crate::samples::list::PySampleList;
use crate::samples::list_import::samples_of;
use crate::samples::pieces::{push, refuse};

/// Windows of one array, ``array[start:start + length]`` for each start, with no Python object for each of them.
///
/// Args:
///     array: an array-like ``[T, ...]``, or ``[T]``; windows can overlap.
///     starts: an integer array-like ``[N]``; none below 0.
///     length: of every window, along dim 0.
///
/// Returns:
///     SampleList: N samples of the shape ``(length, ...)``, views of the array.
///
/// Raises:
///     ShapeError: a window reaches beyond the array (names its index), or the array has no dims.
///     ValueError: ``length`` is negative. TypeError: ``starts`` are not integers of one dim.
///
/// Example:
///     >>> import windrow as wr
///     >>> wr.stack(wr.windows(b"abcdef", [0, 1, 3], 3)).numpy().tolist()
///     [[97, 98, 99], [98, 99, 100], [100, 101, 102]]
#[pyfunction]
pub(crate) fn windows(
    array: &Bound<'_, PyAny>,
    starts: &Bound<'_, PyAny>,
    length: &Bound<'_, PyAny>,
) -> PyResult<PySampleList> {
    let py = array.py();
    let length = number_argument(length, "length", "an int")?;
    let table = table_of(array, "array", Reading::OWNED)?;
    let (starts, _) = integers(starts, "starts", 1)?;
    let list = windows_of(&table, &starts, length).or_py_err(py)?;
    Imported::from_parts(py, table, list).map(PySampleList::from_imported)
}

/// Windows of `length` rows, one for each start, of a table that the caller keeps alive. [`Error::Shape`] for one that is not
/// inside, [`Error::Argument`] for a negative length.
fn windows_of(table: &Tensor, starts: &[i64], length: i64) -> Result<SampleList<'static>> {
    let Some(&len) = table.shape().first() else {
        return Err(refuse(0, "an array of at least one dim", "a single value"));
    };
    if length < 0 {
        return Err(Error::argument(format!("length must be at least 0, got {length}")));
    }
    let mut shape = table.shape().to_vec();
    shape[0] = length;
    let mut list = SampleList::new();
    list.reserve(starts.len())?;
    for (index, &start) in starts.iter().enumerate() {
        if length > len {
            let expected = format!("an array of at least {length} rows for a length of {length}");
            return Err(refuse(index, expected, len.to_string()));
        }
        if start < 0 || start > len - length {
            let expected = format!("a start from 0 to {} for a length of {length}", len - length);
            return Err(refuse(index, expected, format!("{start} in an array of {len}")));
        }
        push(&mut list, table, start, &shape, Some(table.strides()))?;
    }
    Ok(list)
}

/// Crops of images, one for each image, with no Python object for each of them.
///
/// Args:
///     images: a list of array-likes, a `SampleList`, or one array whose rows along dim 0 are the images.
///     boxes: an integer array-like ``[N, 4]``: left, top, right, bottom, in pixels, right and bottom not included,
///         as in ``PIL.Image.crop`` and torchvision's boxes.
///     dims: the dims of height and width; ``(1, 2)`` for CHW.
///     flip: booleans ``[N]``, or one for all: True mirrors the crop from left to right.
///
/// Returns:
///     SampleList: views of the images. `stack` takes crops of one size, `pad` any.
///
/// Raises:
///     ShapeError: a box reaches beyond its image (names its index), or there are more or fewer boxes than images.
///     TypeError: ``boxes`` are not integers of two dims, or ``flip`` is not bools of one dim.
///     ValueError: ``dims`` are not two dims of the images, or ``flip`` has another number of entries than there are images.
///
/// Example:
///     >>> import numpy as np
///     >>> import windrow as wr
///     >>> image = np.arange(12).reshape(3, 4)
///     >>> wr.stack(wr.crops([image, image], [[0, 0, 2, 2], [2, 1, 4, 3]], flip=[False, True])).numpy().tolist()
///     [[[0, 1], [4, 5]], [[7, 6], [11, 10]]]
#[pyfunction]
#[pyo3(signature = (images, boxes, *, dims = None, flip = None), text_signature = "(images, boxes, *, dims=(0, 1), flip=None)")]
pub(crate) fn crops(
    images: &Bound<'_, PyAny>,
    boxes: &Bound<'_, PyAny>,
    dims: Option<&Bound<'_, PyAny>>,
    flip: Option<&Bound<'_, PyAny>>,
) -> PyResult<PySampleList> {
    let py = images.py();
    let dims = match dims {
        None => (0, 1),
        Some(dims) => match integers(dims, "dims", 1)?.0[..] {
            [height, width] => (height as isize, width as isize),
            _ => {
                let text = format!("dims are two dims of the images, got {}", quoted(dims)?);
                return Err(pyo3::exceptions::PyValueError::new_err(text));
            }
        },
    };
    let (images, _) = samples_of(images, Reading::OWNED)?;
    images.list.check_known().or_py_err(py)?;
    let (boxes, extents) = integers(boxes, "boxes", 2)?;
    let flip = flip.map(|flip| flags(flip, images.list.len())).transpose()?;
    let list = crops_of(&images.list, &boxes, &extents, dims, flip.as_deref()).or_py_err(py)?;
    let (owners, watches) = match Arc::try_unwrap(images) {
        Ok(images) => (images.owners, images.watches),
        Err(shared) => (shared.owners.copied(py)?, shared.watches.clone()),
    };
    Ok(PySampleList::from_imported(Imported { list, owners, watches }))
}

/// Booleans of one dim, of whatever number, or one for all images, repeated; TypeError for anything else.
fn flags(flags: &Bound<'_, PyAny>, num_images: usize) -> PyResult<Vec<bool>> {
    if let Ok(flag) = flags.extract::<bool>() {
        let mut flags = try_vec(num_images)?;
        flags.resize(num_images, flag);
        return Ok(flags);
    }
    if flags.is_instance_of::<PyList>() || flags.is_instance_of::<PyTuple>() {
        let mut position = 0..;
        return entries(flags, |flag| {
            let position = position.next().unwrap_or_default();
            flag.extract().or_else(|_| {
                let text = format!("flip[{position}]={}; flip are booleans", quoted(&flag)?);
                Err(pyo3::exceptions::PyTypeError::new_err(text))
            })
        });
    }
    let tensor = tensor_of(flags, "flip", Reading::default())?;
    if tensor.shape().len() != 1 || tensor.dtype() != DType::Bool {
        let (dtype, ndim) = (tensor.dtype(), tensor.shape().len());
        let text = format!("flip are booleans of one dim, not {dtype} of {ndim} dims");
        return Err(pyo3::exceptions::PyTypeError::new_err(text));
    }
    let collate = Collate::concat(0).cast(DType::U8).device(Device::Cpu);
    let row = flags.py().detach(|| copy_of(&tensor, &collate, None)).or_py_err(flags.py())?;
    let row = row.as_slice::<u8>().or_py_err(flags.py())?;
    let mut flags = try_vec(row.len())?;
    flags.extend(row.iter().map(|&flag| flag != 0));
    Ok(flags)
}

/// The crops of all images, which the caller keeps alive; read-only if one of these is. `extents`: the two of `boxes`.
/// [`Error::Shape`] for a box that is not inside its image, or another number of boxes; [`Error::Argument`] for other dims, or
/// another number of entries in `flip`.
fn crops_of(
    images: &SampleList<'static>,
    boxes: &[i64],
    extents: &[i64],
    dims: (isize, isize),
    flip: Option<&[bool]>,
) -> Result<SampleList<'static>> {
    let are_boxes = extents[1] == 4 || boxes.is_empty();
    if !are_boxes || extents[0] != images.len() as i64 {
        let expected = format!("boxes of shape ({}, 4), one for each image", images.len());
        return Err(refuse(0, expected, format!("({}, {})", extents[0], extents[1])));
    }
    if let Some(flip) = flip.filter(|flip| flip.len() != images.len()) {
        let text = format!("flip has {} entries for {} images", flip.len(), images.len());
        return Err(Error::argument(text));
    }
    let mut list = SampleList::new();
    list.reserve(images.len())?;
    for (index, corners) in boxes.chunks_exact(4).enumerate() {
        let is_flipped = flip.is_some_and(|flip| flip[index]);
        push_crop(&mut list, images, index, corners, dims, is_flipped)?;
    }
    if images.is_read_only() {
        list.mark_read_only();
    }
    Ok(list)
}

/// Appends the crop of image `index` whose four corners are left, top, right and bottom, not marked as read-only;
/// [`Error::Shape`] for a box that is not inside the image, [`Error::Argument`] for dims that are not two of it. The caller keeps
/// the image alive.
fn push_crop(
    list: &mut SampleList<'static>,
    images: &SampleList<'static>,
    index: usize,
    corners: &[i64],
    dims: (isize, isize),
    is_flipped: bool,
) -> Result<()> {
    let meta = images.meta(index);
    let (mut shape, mut strides) =
        (Dims::from(meta.layout.shape()), Dims::from(meta.layout.strides()));
    let ndim = shape.len() as isize;
    let place =
        |dim: isize| usize::try_from(if dim < 0 { dim + ndim } else { dim }).unwrap_or(usize::MAX);
    let (rows, cols) = (place(dims.0), place(dims.1));
    if rows.max(cols) >= shape.len() || rows == cols {
        let text = format!("dims={dims:?} are not two dims of sample {index}, which has {ndim}");
        return Err(Error::argument(text));
    }
    let [left, top, right, bottom] = [corners[0], corners[1], corners[2], corners[3]];
    let (height, width) = (shape[rows], shape[cols]);
    if left < 0 || top < 0 || left > right || top > bottom || right > width || bottom > height {
        let expected = format!("a box within width {width} and height {height}");
        return Err(refuse(index, expected, format!("{corners:?}")));
    }
    let is_empty = left == right || top == bottom || shape.contains(&0);
    (shape[rows], shape[cols]) = (bottom - top, right - left);
    let mut data = images.address(index);
    if !is_empty {
        let first = if is_flipped { right - 1 } else { left };
        let elements =
            top.wrapping_mul(strides[rows]).wrapping_add(first.wrapping_mul(strides[cols]));
        data = data.wrapping_offset(elements.wrapping_mul(meta.dtype.size() as i64) as isize);
        if is_flipped {
            strides[cols] = -strides[cols];
        }
    }
    // SAFETY: a part of an image, which the caller keeps alive.
    #[allow(unsafe_code)]
    unsafe {
        list.push(data, meta.dtype, meta.device, &shape, Some(&strides))
    }
}
