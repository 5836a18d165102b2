//! Plans of shapes, strides and options up to the edges of 64 bits. Nothing is read or written, so no
//! memory need be there: no panic, no overflow, and of what is accepted every size is right.
#![allow(unsafe_code, reason = "samples at addresses where there is no memory")]

use std::ptr;

use arbitrary::{Arbitrary, Result, Unstructured};
use windrow::plan::{BatchShape, Leaf, Target};
use windrow::tensor::{Offsets, Scalar};
use windrow::{
    Collate, DType, Device, Layout, Mask, Pad, Plan, Ragged, SampleList, SampleView, Side, Tensor,
    Transform,
};

fn number(u: &mut Unstructured<'_>) -> Result<i64> {
    Ok(match u.int_in_range(0..=15u8)? {
        0..=8 => u.int_in_range(0..=6)?,
        9 => u.int_in_range(-6..=-1)?,
        10..=12 => (1i64 << u.int_in_range(0..=63u8)?).wrapping_add(u.int_in_range(-2..=2)?),
        13 => (1i64 << u.int_in_range(0..=63u8)?).wrapping_neg(),
        14 => i64::MAX - u.int_in_range(0..=40)?,
        _ => u.arbitrary()?,
    })
}

fn numbers(u: &mut Unstructured<'_>, ndim: usize) -> Result<Vec<i64>> {
    let count = if u.ratio(1, 20)? { u.int_in_range(0..=70)? } else { ndim };
    (0..count).map(|_| number(u)).collect()
}

fn layout(u: &mut Unstructured<'_>, dtype: DType, base: &[i64]) -> Result<Option<Layout>> {
    let mut shape = base.to_vec();
    for extent in &mut shape {
        if u.ratio(1, 4)? {
            *extent = number(u)?;
        }
    }
    let strides = if u.arbitrary()? { Some(numbers(u, shape.len())?) } else { None };
    let layout = Layout::try_new(dtype, &shape, strides.as_deref());
    if let Ok(layout) = &layout {
        sizes(layout, dtype);
    }
    // Over a slice: refused, or within it.
    let bytes = [0u8; 64];
    if let Some(strides) = &strides {
        if let Ok(view) = SampleView::with_strides(&bytes, &shape, strides) {
            assert_eq!(view.shape(), shape);
        }
    }
    Ok(layout.ok())
}

/// Counts again in 128 bits.
fn sizes(layout: &Layout, dtype: DType) {
    let span = layout.byte_span(dtype);
    let _ = layout.is_compact();
    if layout.shape().contains(&0) {
        assert_eq!((layout.numel(), span), (0, 0..0));
        return;
    }
    let numel: i128 = layout.shape().iter().map(|&extent| i128::from(extent)).product();
    assert_eq!(i128::from(layout.numel()), numel);
    assert!(numel * dtype.size() as i128 <= i128::from(i64::MAX));
    let (mut low, mut high) = (0, dtype.size() as i128);
    for (&extent, &stride) in layout.shape().iter().zip(layout.strides()) {
        let reach = (i128::from(extent) - 1) * i128::from(stride) * dtype.size() as i128;
        *(if reach < 0 { &mut low } else { &mut high }) += reach;
    }
    assert_eq!((i128::from(span.start), i128::from(span.end)), (low, high));
}

fn scalar(u: &mut Unstructured<'_>, dtype: DType) -> Result<Scalar> {
    let scalar = match u.int_in_range(0..=4u8)? {
        0..=1 => Scalar::Int(number(u)?.into()),
        2 => Scalar::Int(u.arbitrary()?),
        3 => Scalar::Float(u.arbitrary()?),
        _ => Scalar::Complex(u.arbitrary()?, u.arbitrary()?),
    };
    let _ = scalar.bits(dtype);
    Ok(scalar)
}

fn pad(u: &mut Unstructured<'_>, dtype: DType, ndim: usize) -> Result<Pad> {
    let mut pad = Pad::new().value(scalar(u, dtype)?).truncate(u.arbitrary()?);
    let sides = [Side::Right, Side::Left, Side::Center];
    pad = if u.arbitrary()? {
        pad.side(*u.choose(&sides)?)
    } else {
        pad.sides((0..ndim).map(|_| Ok(*u.choose(&sides)?)).collect::<Result<Vec<_>>>()?)
    };
    if u.ratio(1, 3)? {
        pad = pad.dims(numbers(u, ndim)?);
    }
    pad = match u.int_in_range(0..=2u8)? {
        0 => pad.size(number(u)?),
        1 => {
            let sizes = numbers(u, ndim)?.into_iter().map(|n| Some(n).filter(|&n| n != 3));
            pad.sizes(sizes.collect::<Vec<_>>())
        }
        _ => pad,
    };
    pad = match u.int_in_range(0..=2u8)? {
        0 => pad.multiple_of(number(u)?),
        1 => pad.multiples_of(numbers(u, ndim)?),
        _ => pad,
    };
    if u.arbitrary()? {
        pad = pad.mask(*u.choose(&[Mask::Real, Mask::Pad])?);
    }
    Ok(pad)
}

fn collate(u: &mut Unstructured<'_>, dtype: DType, ndim: usize) -> Result<Collate> {
    let form = u.int_in_range(0..=5u8)?;
    let mut collate = match form {
        0 => Collate::stack(),
        1 => Collate::concat(number(u)?),
        2 => Collate::ragged(Ragged::new()),
        _ => Collate::pad(pad(u, dtype, ndim)?),
    };
    let (batch_index, is_short) = (u.arbitrary()?, u.arbitrary()?);
    if form == 2 {
        let offsets = if is_short { DType::I32 } else { DType::I64 };
        let ragged = Ragged::new().offsets(offsets);
        collate = Collate::ragged(if batch_index { ragged.batch_index() } else { ragged });
    }
    if u.arbitrary()? {
        collate = collate.cast(*u.choose(DType::ALL)?);
    }
    let mut transform = Transform::new();
    if u.ratio(1, 3)? {
        transform = transform.permute(numbers(u, ndim)?);
    }
    if u.ratio(1, 4)? {
        transform = transform
            .scale(u.arbitrary()?)
            .mean(Vec::<f64>::arbitrary(u)?)
            .std(Vec::<f64>::arbitrary(u)?);
    }
    if u.ratio(1, 4)? {
        transform = transform.channel_dim(number(u)?);
    }
    collate = collate.transform(transform);
    if u.ratio(1, 8)? {
        collate = collate.device(device(u)?);
    }
    Ok(collate)
}

fn device(u: &mut Unstructured<'_>) -> Result<Device> {
    Ok(*u.choose(&[Device::Cpu, Device::Pinned, Device::Cuda(0), Device::Cuda(u32::MAX)])?)
}

fn address(u: &mut Unstructured<'_>) -> Result<*mut u8> {
    let address = match u.int_in_range(0..=3u8)? {
        0 => 0x1000 * u.int_in_range(1..=9usize)?,
        1 => usize::MAX - usize::from(u.arbitrary::<u8>()?),
        _ => u.arbitrary()?,
    };
    Ok(ptr::without_provenance_mut(address))
}

/// The batch that a plan says it makes.
fn accepted(spec: &BatchShape, samples: &SampleList<'_>) {
    let size = spec.dtype.size() as i128;
    let mut bytes = size;
    for &extent in spec.shape() {
        assert!(extent >= 0);
        bytes = bytes.saturating_mul(extent.into());
    }
    assert!(bytes <= i128::from(i64::MAX), "{spec:?}");
    assert_eq!(spec.num_samples, samples.len());
    if let Some(lengths) = spec.lengths() {
        assert_eq!(lengths.len() as i64, spec.lengths_shape().iter().product::<i64>());
        assert!(lengths.iter().all(|&length| length >= 0));
    }
}

/// Samples, which are none of them read.
fn list(u: &mut Unstructured<'_>, dtype: DType, ndim: usize) -> Result<SampleList<'static>> {
    let base = numbers(u, ndim)?;
    let mut list = SampleList::new();
    for _ in 0..u.int_in_range(0..=6u8)? {
        push(u, &mut list, dtype, &base)?;
    }
    if u.ratio(1, 6)? {
        list = rows(u, dtype, &base)?.unwrap_or(list);
    }
    if u.ratio(1, 3)? {
        let indices =
            (0..u.int_in_range(0..=4u8)?).map(|_| number(u)).collect::<Result<Vec<_>>>()?;
        list = list.take(indices).unwrap_or(list);
    }
    Ok(list)
}

fn push(
    u: &mut Unstructured<'_>,
    list: &mut SampleList<'static>,
    dtype: DType,
    base: &[i64],
) -> Result<()> {
    let dtype = if u.ratio(1, 20)? { *u.choose(DType::ALL)? } else { dtype };
    let device = if u.ratio(1, 20)? { device(u)? } else { Device::Cpu };
    let Some(layout) = layout(u, dtype, base)? else { return Ok(()) };
    let data = address(u)?;
    // SAFETY: none of it is read: plans only are made here.
    unsafe {
        if u.arbitrary()? {
            let view = SampleView::from_raw_parts(data, dtype, device, layout);
            list.push_view(&view).expect("a list that the host knows");
        } else {
            let strides = numbers(u, base.len())?;
            let strides = u.arbitrary::<bool>()?.then_some(&strides[..]);
            let _ = list.push(data, dtype, device, layout.shape(), strides);
        }
    }
    Ok(())
}

/// The rows of a table, unless there are very many.
fn rows(
    u: &mut Unstructured<'_>,
    dtype: DType,
    base: &[i64],
) -> Result<Option<SampleList<'static>>> {
    let Some(layout) = layout(u, dtype, base)? else { return Ok(None) };
    let owner = std::sync::Arc::new(());
    let data = address(u)?;
    // SAFETY: none of it is read: plans only are made here.
    let rows = unsafe {
        let table = Tensor::new_unchecked(owner, data, dtype, Device::Cpu, layout, false);
        SampleList::rows_from_raw_parts(&table)
    };
    Ok(rows.ok().filter(|rows| rows.len() < 1000))
}

/// Plans one list; of what is accepted, an output of the right shape, anywhere, with any strides.
fn plan_alone(
    u: &mut Unstructured<'_>,
    list: &SampleList<'_>,
    collate: &Collate,
) -> Result<Option<Target<'static>>> {
    let Ok(plan) = Plan::new(list, collate) else { return Ok(None) };
    let spec = &plan.batch_shapes()[0];
    accepted(spec, list);
    assert!(!plan.explain().to_string().is_empty());
    let _ = plan.as_view(0);
    let strides = numbers(u, spec.shape().len())?;
    let strides = u.arbitrary::<bool>()?.then_some(&strides[..]);
    let layout = Layout::try_new(spec.dtype, spec.shape(), strides);
    let data = address(u)?;
    // SAFETY: it is not written to.
    Ok(layout
        .ok()
        .map(|layout| unsafe { Target::from_raw_parts(data, spec.dtype, Device::Cpu, layout) }))
}

fn check_case(u: &mut Unstructured<'_>) -> Result<()> {
    let mut lists = Vec::new();
    for _ in 0..u.int_in_range(1..=3u8)? {
        let dtype = *u.choose(DType::ALL)?;
        let ndim = u.int_in_range(0..=5usize)?;
        lists.push((list(u, dtype, ndim)?, collate(u, dtype, ndim)?));
    }
    let mut targets = Vec::new();
    for (list, collate) in &lists {
        targets.push(plan_alone(u, list, collate)?);
    }
    let leaves: Vec<_> = lists
        .iter()
        .zip(&targets)
        .map(|((samples, collate), out)| Leaf { samples, collate, path: "leaf", out: out.as_ref() })
        .collect();
    match Plan::for_leaves(&leaves) {
        Ok(plan) => {
            assert_eq!(plan.batch_shapes().len(), leaves.len());
            assert!(!plan.explain().to_string().is_empty());
            for leaf in 0..leaves.len() {
                let _ = plan.as_view(leaf);
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(offsets) = Offsets::from_lengths(numbers(u, 4)?) {
        assert!(offsets.total() >= 0);
    }
    Ok(())
}

/// Plans the lists that an input describes.
pub fn check(data: &[u8]) {
    // Input that runs out of bytes is no case.
    let _ = check_case(&mut Unstructured::new(data));
}
