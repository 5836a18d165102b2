//! Samples that are consecutive pieces of one tensor.

use windrow::error::Mismatch;
use windrow::{Error, Layout, Result, SampleList, Tensor};

/// Sample `i` is `values[offsets[i]..offsets[i + 1]]` along dim 0; ShapeError for offsets that `values` cannot have. The caller
/// keeps the tensor alive.
pub(crate) fn pieces(values: &Tensor, offsets: &[i64]) -> Result<SampleList<'static>> {
    check_offsets(values, offsets)?;
    let (mut shape, strides) = (values.shape().to_vec(), values.strides());
    let mut list = SampleList::new();
    list.reserve(offsets.len() - 1)?;
    for bounds in offsets.windows(2) {
        shape[0] = bounds[1] - bounds[0];
        push(&mut list, values, bounds[0], &shape, Some(strides))?;
    }
    Ok(list)
}

/// Cuts a flat tensor as `pieces` does, sample `i` in the shape that row `i` of `shapes` has; `extents` are the two of
/// `shapes` itself (not checked). LayoutError for values that are not flat and without gaps, ShapeError for another
/// number of shapes than of samples, or a shape of another number of elements.
pub(crate) fn shaped_pieces(
    values: &Tensor,
    offsets: &[i64],
    shapes: &[i64],
    extents: &[i64],
) -> Result<SampleList<'static>> {
    check_offsets(values, offsets)?;
    let len = values.shape()[0];
    if values.shape().len() != 1 || len > 1 && values.strides()[0] != 1 {
        let got = format!("shape {:?}, strides {:?}", values.shape(), values.strides());
        return Err(Error::Layout(Box::new(Mismatch::new(
            Some(0),
            "flat values without gaps",
            got,
        ))));
    }
    let (count, ndim) = (offsets.len() - 1, extents[1] as usize);
    if extents[0] != count as i64 {
        let expected = format!("{count} shapes, one for each sample");
        return Err(refuse(0, expected, format!("{}", extents[0])));
    }
    let mut list = SampleList::new();
    list.reserve(count)?;
    for (index, bounds) in offsets.windows(2).enumerate() {
        let shape = &shapes[index * ndim..][..ndim];
        let numel = shape.iter().try_fold(1i64, |numel, &extent| match extent {
            0.. => numel.checked_mul(extent),
            _ => None,
        });
        if numel != Some(bounds[1] - bounds[0]) {
            let expected = format!("a shape of {} elements", bounds[1] - bounds[0]);
            return Err(refuse(index, expected, format!("{shape:?}")));
        }
        push(&mut list, values, bounds[0], shape, None)?;
    }
    Ok(list)
}

/// Appends what begins at row `first` of `values`; without `strides` it is row-major. Marks the whole list as read-only if
/// `values` are. The caller has found that it is inside `values`, which has a dim or more, and keeps these alive.
pub(crate) fn push(
    list: &mut SampleList<'static>,
    values: &Tensor,
    first: i64,
    shape: &[i64],
    strides: Option<&[i64]>,
) -> Result<()> {
    let step = values.strides()[0].wrapping_mul(values.dtype().size() as i64);
    let data = values.data_ptr().wrapping_offset(first.wrapping_mul(step) as isize);
    debug_assert!((0..=values.shape()[0]).contains(&first));
    debug_assert!(Layout::try_new(values.dtype(), shape, strides).ok().is_none_or(|part| {
        let start = first.wrapping_mul(step);
        let span = |layout: &Layout| layout.byte_span(values.dtype());
        let (part, all) = (span(&part), span(values.layout()));
        part.is_empty() || all.start <= start + part.start && start + part.end <= all.end
    }));
    // SAFETY: a part of a tensor that the caller keeps alive.
    #[allow(unsafe_code)]
    unsafe {
        list.push(data, values.dtype(), values.device(), shape, strides)?;
    }
    if values.is_read_only() {
        list.mark_read_only();
    }
    Ok(())
}

/// Refuses offsets that go back or leave the tensor, none at all, and a tensor without dims.
fn check_offsets(values: &Tensor, offsets: &[i64]) -> Result<()> {
    let Some(&len) = values.shape().first() else {
        return Err(refuse(0, "values of at least one dim", "a single value"));
    };
    if offsets.is_empty() {
        return Err(refuse(0, "N + 1 offsets", "none"));
    }
    if offsets[0] < 0 {
        return Err(refuse(0, "offsets from 0 on", format!("{}", offsets[0])));
    }
    for (index, bounds) in offsets.windows(2).enumerate() {
        if bounds[1] < bounds[0] || bounds[1] > len {
            let expected = format!("an end from {} to {len}", bounds[0]);
            return Err(refuse(index, expected, format!("{}", bounds[1])));
        }
    }
    match offsets[0] <= len {
        true => Ok(()),
        false => Err(refuse(0, format!("offsets up to {len}"), format!("{}", offsets[0]))),
    }
}

/// The ShapeError of sample `index`.
pub(crate) fn refuse(index: usize, expected: impl Into<String>, got: impl Into<String>) -> Error {
    let (expected, got): (String, String) = (expected.into(), got.into());
    Error::Shape(Box::new(Mismatch::new(Some(index), expected, got)))
}
