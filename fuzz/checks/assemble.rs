//! Random batches, most of them sound: whatever a plan accepts, every executor makes as the oracle of
//! the tests does, byte for byte; whatever it refuses, all calls refuse alike and write nothing.

use crate::common::ask::Form;
use crate::common::runner::{bytes_of, Frame};
use crate::common::{self, runner, Ask, PadAsk, Paint, Sample, ARITHMETIC};
use arbitrary::{Result, Unstructured};
use windrow::collate::PerDim;
use windrow::tensor::Scalar;
use windrow::{DType, Mask, Plan, SampleList, Side};

/// The oracle goes element by element.
const LARGEST: i64 = 4_000;

/// True in about one of `n` cases.
fn rarely(u: &mut Unstructured<'_>, n: u8) -> Result<bool> {
    Ok(u.int_in_range(0..=n - 1)? == n - 1)
}

fn extent(u: &mut Unstructured<'_>) -> Result<i64> {
    Ok(match u.int_in_range(0..=15u8)? {
        0 => 0,
        1..=9 => u.int_in_range(1..=5)?,
        10..=13 => u.int_in_range(5..=20)?,
        _ => *u.choose(&[31, 32, 33, 63, 64, 65, 100, 257])?,
    })
}

/// Strides of dims in some order, with gaps and signs; or any at all, so that elements overlap.
fn strides(u: &mut Unstructured<'_>, shape: &[i64]) -> Result<Vec<i64>> {
    if rarely(u, 8)? {
        return shape.iter().map(|_| u.int_in_range(-9..=40)).collect();
    }
    let mut order: Vec<usize> = (0..shape.len()).collect();
    if rarely(u, 3)? {
        shuffle(u, &mut order)?;
    }
    let gap = if rarely(u, 3)? { u.int_in_range(1..=3)? } else { 0 };
    let mut strides = vec![0; shape.len()];
    let mut step = 1 + gap;
    for &dim in order.iter().rev() {
        let sign = match u.int_in_range(0..=15u8)? {
            0 => 0,
            1..=2 => -1,
            _ => 1,
        };
        strides[dim] = step * sign;
        step = step * shape[dim].max(1) + gap;
    }
    Ok(strides)
}

fn shuffle<T>(u: &mut Unstructured<'_>, items: &mut [T]) -> Result<()> {
    for at in (1..items.len()).rev() {
        items.swap(at, u.int_in_range(0..=at)?);
    }
    Ok(())
}

fn dim(u: &mut Unstructured<'_>, ndim: usize) -> Result<i64> {
    let ndim = ndim as i64;
    if ndim == 0 || rarely(u, 30)? {
        return u.int_in_range(-6..=6);
    }
    u.int_in_range(-ndim..=ndim - 1)
}

fn per_dim<T>(
    u: &mut Unstructured<'_>,
    ndim: usize,
    mut one: impl FnMut(&mut Unstructured<'_>) -> Result<T>,
) -> Result<PerDim<T>> {
    if u.arbitrary()? {
        return Ok(PerDim::All(one(u)?));
    }
    let count = if rarely(u, 30)? { u.int_in_range(0..=6)? } else { ndim };
    Ok(PerDim::Each((0..count).map(|_| one(u)).collect::<Result<_>>()?))
}

fn scalar(u: &mut Unstructured<'_>) -> Result<Scalar> {
    Ok(match u.int_in_range(0..=9u8)? {
        0..=4 => Scalar::Int(u.int_in_range(-1..=2)?),
        5 => Scalar::Int(u.arbitrary::<i64>()?.into()),
        6 => Scalar::Int(u.arbitrary()?),
        7 => Scalar::Float(u.arbitrary()?),
        8 => Scalar::Float(*u.choose(&[
            f64::NAN,
            f64::INFINITY,
            -0.0,
            0.5,
            65504.0,
            65520.0,
            1e39,
        ])?),
        _ => Scalar::Complex(u.arbitrary()?, u.arbitrary()?),
    })
}

fn coefficient(u: &mut Unstructured<'_>) -> Result<f64> {
    Ok(match u.int_in_range(0..=9u8)? {
        0 => 0.0,
        1 => 1.0,
        2 => f64::from(u.arbitrary::<f32>()?),
        3 => u.arbitrary()?,
        _ => f64::from(u.int_in_range(-300..=300i32)?) / 64.0,
    })
}

fn form(u: &mut Unstructured<'_>, ndim: usize) -> Result<Form> {
    Ok(match u.int_in_range(0..=7u8)? {
        0 => Form::Stack,
        1..=2 => Form::Concat(dim(u, ndim)?),
        3..=4 => Form::Ragged { offsets_i32: u.arbitrary()?, batch_index: u.arbitrary()? },
        _ => Form::Pad(PadAsk {
            value: scalar(u)?,
            side: per_dim(u, ndim, |u| Ok(*u.choose(&[Side::Right, Side::Left, Side::Center])?))?,
            dims: if rarely(u, 3)? {
                let count = u.int_in_range(0..=ndim)?;
                Some((0..count).map(|_| dim(u, ndim)).collect::<Result<_>>()?)
            } else {
                None
            },
            size: per_dim(u, ndim, |u| {
                Ok(if rarely(u, 3)? { Some(u.int_in_range(-1..=40)?) } else { None })
            })?,
            multiple_of: per_dim(u, ndim, |u| {
                Ok(if rarely(u, 3)? { u.int_in_range(-1..=9)? } else { 1 })
            })?,
            truncate: u.arbitrary()?,
            mask: *u.choose(&[None, Some(Mask::Real), Some(Mask::Pad)])?,
            mask_dtype: *u.choose(&[DType::Bool, DType::U8, DType::I64, DType::F16])?,
        }),
    })
}

/// Samples that mostly fit the form.
fn samples(u: &mut Unstructured<'_>, form: &Form, ndim: usize, mixed: bool) -> Result<Vec<Sample>> {
    let free = |d: usize| match form {
        Form::Stack => false,
        Form::Concat(dim) => d as i64 == dim.rem_euclid(ndim as i64),
        Form::Ragged { .. } => d == 0,
        Form::Pad(pad) => pad
            .dims
            .as_ref()
            .is_none_or(|dims| dims.iter().any(|&dim| d as i64 == dim.rem_euclid(ndim as i64))),
    };
    let base = (0..ndim).map(|_| extent(u)).collect::<Result<Vec<_>>>()?;
    let dtype = *u.choose(DType::ALL)?;
    let one_layout = u.arbitrary()?;
    let mut common = None;
    let mut samples = Vec::new();
    for _ in 0..u.int_in_range(0..=7u8)? {
        let mut shape = base.clone();
        for (d, length) in shape.iter_mut().enumerate() {
            if free(d) || rarely(u, 100)? {
                *length = extent(u)?;
            }
        }
        if rarely(u, 100)? {
            shape.pop();
        }
        // Extents of zero count as one: gaps and strides take memory too.
        if shape.iter().map(|&extent| extent.max(1)).product::<i64>() > LARGEST {
            continue;
        }
        let dtype = if (mixed && u.arbitrary()?) || rarely(u, 100)? {
            *u.choose(ARITHMETIC)?
        } else {
            dtype
        };
        let strides = match &common {
            Some((known, strides)) if one_layout && *known == shape => Vec::clone(strides),
            _ => strides(u, &shape)?,
        };
        let misalign = if rarely(u, 3)? { u.int_in_range(0..=15)? } else { 0 };
        samples.push(Sample::laid_out(
            dtype,
            &shape,
            &strides,
            misalign,
            Paint::Rich,
            u.arbitrary::<u16>()?.into(),
        ));
        common = Some((shape, strides));
    }
    Ok(samples)
}

fn batch(u: &mut Unstructured<'_>) -> Result<(Vec<Sample>, Ask)> {
    let ndim = u.int_in_range(0..=5usize)?;
    let mut ask = Ask::new(form(u, ndim)?);
    if u.arbitrary()? {
        ask.cast =
            Some(if rarely(u, 30)? { *u.choose(DType::ALL)? } else { *u.choose(ARITHMETIC)? });
    }
    let samples = samples(u, &ask.form, ndim, ask.cast.is_some())?;
    if u.arbitrary()? {
        let mut order: Vec<i64> = (0..ndim as i64).collect();
        let first =
            usize::from(matches!(ask.form, Form::Ragged { .. }) && !rarely(u, 30)?).min(ndim);
        shuffle(u, &mut order[first..])?;
        if rarely(u, 30)? {
            order.push(dim(u, ndim)?);
        }
        ask.permute = Some(order);
    }
    if rarely(u, 3)? {
        ask.scale = coefficient(u)?;
        let channels = match (samples.first(), u.arbitrary()?) {
            (Some(sample), true) if !sample.shape.is_empty() => {
                let at = u.choose_index(sample.shape.len())?;
                ask.channel_dim = Some(at as i64);
                usize::try_from(sample.shape[at]).unwrap_or(0).min(70)
            }
            _ => u.int_in_range(0..=4)?,
        };
        ask.mean = (0..channels).map(|_| coefficient(u)).collect::<Result<_>>()?;
        ask.std = if u.arbitrary()? {
            vec![]
        } else {
            (0..channels).map(|_| coefficient(u)).collect::<Result<_>>()?
        };
    }
    Ok((samples, ask))
}

/// The oracle knows 0 and 1 among the values in float8.
fn judged(ask: &Ask, dtype: DType) -> bool {
    match &ask.form {
        Form::Pad(pad) => {
            dtype.is_arithmetic()
                || matches!(dtype, DType::C64 | DType::C128)
                || matches!(pad.value, Scalar::Int(0 | 1))
        }
        _ => true,
    }
}

fn check_case(u: &mut Unstructured<'_>) -> Result<()> {
    let (samples, ask) = batch(u)?;
    let views = common::sample::views(&samples);
    let collate = ask.collate();
    let refused = match Plan::new(&views, &collate) {
        Err(error) => Some(error),
        Ok(plan) => {
            // A mask may be large where there are no elements.
            let (numel, bytes) = (
                plan.batch_shapes()[0].shape().iter().product::<i64>(),
                plan.explain().bytes_written,
            );
            if numel > 4 * LARGEST
                || bytes > 64 << 10
                || !judged(&ask, plan.batch_shapes()[0].dtype)
            {
                return Ok(());
            }
            None
        }
    };
    let Some(refused) = refused else {
        runner().check("a batch", &samples, &ask);
        return taken(u, &samples, &ask);
    };
    assert!(!refused.to_string().is_empty());
    let dtype = samples.first().map_or(DType::U8, |sample| ask.cast.unwrap_or(sample.dtype));
    let mut frame = Frame::new(dtype, &[2, 3], &[3, 1], 1);
    for (name, engine) in runner().engines() {
        assert_eq!(engine.assemble(&views, &collate).map(|_| ()), Err(refused.clone()), "{name}");
        let into = engine.assemble_into(&views, &collate, &mut frame.target());
        assert_eq!(into.map(|_| ()), Err(refused.clone()), "{name}");
    }
    assert!(frame.is_untouched());
    Ok(())
}

/// A list by indices is the same batch as the samples one by one.
fn taken(u: &mut Unstructured<'_>, samples: &[Sample], ask: &Ask) -> Result<()> {
    let list: SampleList<'_> = samples.iter().map(Sample::view).collect();
    let count = samples.len() as i64;
    let mut indices = Vec::new();
    for _ in 0..u.int_in_range(0..=6u8)? {
        indices.push(u.int_in_range(-count - 1..=count)?);
    }
    let picked: Option<Vec<_>> = indices
        .iter()
        .map(|&at| samples.get(if at < 0 { at + count } else { at } as usize).map(Sample::view))
        .collect();
    let taken = list.take(indices.iter().copied());
    assert_eq!(taken.is_ok(), picked.is_some());
    let (Ok(taken), Some(picked)) = (taken, picked) else { return Ok(()) };
    let (_, engine) = &runner().engines()[0];
    let collate = ask.collate();
    let one = engine.assemble(&taken, &collate);
    let other = engine.assemble(&picked, &collate);
    match (one, other) {
        (Ok(one), Ok(other)) => assert_eq!(bytes_of(one.data()), bytes_of(other.data())),
        (one, other) => assert_eq!(one.map(|_| ()), other.map(|_| ())),
    }
    Ok(())
}

/// Assembles the batch that an input describes on every executor.
pub fn check(data: &[u8]) {
    // Input that runs out of bytes is no case.
    let _ = check_case(&mut Unstructured::new(data));
}
