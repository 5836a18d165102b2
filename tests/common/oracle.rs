//! The oracle: every batch by plain loops over coordinates, one element at a time.

use windrow::collate::PerDim;
use windrow::tensor::Scalar;
use windrow::{DType, Mask, Side};

use super::ask::{Ask, Form, PadAsk};
use super::convert::{affine, cast, cast_saturating, scalar, Bits};
use super::coordinates;
use super::sample::Sample;

/// The most elements of a sample whose view is compared; of larger ones only the shape is.
const LARGE: i64 = 20_000;

/// A batch as it must be, byte for byte.
#[derive(Clone, Debug)]
pub struct Expected {
    pub dtype: DType,
    pub shape: Vec<i64>,
    /// The data, row-major without gaps.
    pub data: Vec<u8>,
    pub lengths: Option<(Vec<i64>, Vec<i64>)>,
    pub offsets: Option<Vec<i64>>,
    pub mask: Option<(Vec<i64>, DType, Vec<u8>)>,
    pub batch_index: Option<Vec<i64>>,
    pub max_length: Option<i64>,
    /// The data of each sample's real part: shape and bytes, row-major; no bytes of a large one.
    pub parts: Vec<(Vec<i64>, Option<Vec<u8>>)>,
    /// Elements of the data that are padding.
    pub padding: i64,
    /// Bytes of the samples that are read.
    pub bytes_read: u64,
}

impl Expected {
    pub fn numel(&self) -> i64 {
        self.shape.iter().product()
    }
}

/// The place of a sample's elements: the extents of one sample in the result (before the permutation),
/// and for each sample dim where its first element would be; it may be negative.
struct Room {
    extents: Vec<i64>,
    lead: Vec<i64>,
}

/// Makes the batch.
pub fn oracle(samples: &[Sample], ask: &Ask) -> Expected {
    let ndim = samples[0].shape.len();
    let dtype = ask.cast.unwrap_or(samples[0].dtype);
    let order: Vec<usize> = match &ask.permute {
        None => (0..ndim).collect(),
        Some(order) => order.iter().map(|&d| from_front(d, ndim)).collect(),
    };
    let arithmetic = Arithmetic::new(ask, samples);
    let mut expected = frame(samples, ask, dtype, &order);

    let (mut source, mut target) = (Vec::new(), Vec::new());
    for (index, sample) in samples.iter().enumerate() {
        let (room, at) = room(samples, ask, index);
        let kept: Vec<i64> =
            sample.shape.iter().zip(&room.extents).map(|(a, b)| *a.min(b)).collect();
        let read = kept.iter().product::<i64>();
        expected.bytes_read += read as u64 * sample.dtype.size() as u64;
        coordinates(&kept, |coords| {
            // A sample that is too long on its left loses its first elements.
            source.clear();
            source.extend(coords.iter().zip(&room.lead).map(|(c, lead)| c - lead.min(&0)));
            let bits = arithmetic.apply(sample.dtype, dtype, sample.element(&source), &source);
            let bits = raised(ask, index, bits);
            let place = |d: usize| match at {
                At::Joined(dim, start) if dim == d => coords[d] + start,
                _ => coords[d] + room.lead[d].max(0),
            };
            let row = if let At::Row = at { Some(index as i64) } else { None };
            target.clear();
            target.extend(row.into_iter().chain(order.iter().map(|&d| place(d))));
            store(&mut expected.data, dtype, &expected.shape, &target, bits);
        });
        let shape: Vec<i64> = order.iter().map(|&d| kept[d]).collect();
        let mut part = Vec::new();
        coordinates(if read > LARGE { &[0] } else { &shape }, |coords| {
            let mut kept_coords = vec![0; ndim];
            for (k, &d) in order.iter().enumerate() {
                kept_coords[d] = coords[k] - room.lead[d].min(0);
            }
            let bits =
                arithmetic.apply(sample.dtype, dtype, sample.element(&kept_coords), &kept_coords);
            let bits = raised(ask, index, bits);
            part.extend_from_slice(&bits.to_le_bytes()[..dtype.size()]);
        });
        if matches!(ask.form, Form::Pad(_)) {
            expected.padding -= read;
        }
        expected.parts.push((shape, (read <= LARGE).then_some(part)));
    }
    expected
}

/// An element of a sample with what that is raised by, in its low bits.
fn raised(ask: &Ask, sample: usize, bits: Bits) -> Bits {
    bits.wrapping_add(ask.increments.get(sample).copied().unwrap_or(0) as Bits)
}

/// Shapes, padding, lengths, offsets, mask and index: all that does not look at elements.
fn frame(samples: &[Sample], ask: &Ask, dtype: DType, order: &[usize]) -> Expected {
    let num = samples.len() as i64;
    let mut expected = Expected {
        dtype,
        shape: Vec::new(),
        data: Vec::new(),
        lengths: None,
        offsets: None,
        mask: None,
        batch_index: None,
        max_length: None,
        parts: Vec::new(),
        padding: 0,
        bytes_read: 0,
    };
    let mut fill: Bits = 0;
    match &ask.form {
        Form::Stack => {
            expected.shape.push(num);
            expected.shape.extend(order.iter().map(|&d| samples[0].shape[d]));
        }
        Form::Concat(_) | Form::Ragged { .. } => join(&mut expected, samples, ask, order),
        Form::Pad(pad) => {
            let (sizes, padded) = pad_sizes(pad, samples);
            fill = scalar(pad.value, dtype);
            expected.shape.push(num);
            expected.shape.extend(order.iter().map(|&d| sizes[d]));
            let dims: Vec<usize> = (0..sizes.len()).filter(|&d| padded[d]).collect();
            let real =
                |s: &Sample| dims.iter().map(|&d| s.shape[d].min(sizes[d])).collect::<Vec<_>>();
            let shape = if dims.len() == 1 { vec![num] } else { vec![num, dims.len() as i64] };
            expected.lengths = Some((shape, samples.iter().flat_map(real).collect()));
            expected.padding = expected.shape.iter().product();
            if let Some(mask) = pad.mask {
                let dims: Vec<usize> = order.iter().copied().filter(|&d| padded[d]).collect();
                expected.mask = Some(mask_of(samples, pad, &sizes, &dims, mask));
            }
        }
    }
    let bytes = fill.to_le_bytes();
    expected.data = bytes[..dtype.size()].repeat(expected.numel() as usize);
    expected
}

/// The frame of samples that are joined along a dim.
fn join(expected: &mut Expected, samples: &[Sample], ask: &Ask, order: &[usize]) {
    let dim = joined_dim(ask, samples);
    let lengths: Vec<i64> = samples.iter().map(|sample| sample.shape[dim]).collect();
    let total = lengths.iter().sum();
    expected.shape =
        order.iter().map(|&d| if d == dim { total } else { samples[0].shape[d] }).collect();
    let mut offsets = vec![0];
    for length in &lengths {
        offsets.push(offsets[offsets.len() - 1] + length);
    }
    if let Form::Ragged { batch_index, .. } = &ask.form {
        expected.max_length = lengths.iter().max().copied();
        if *batch_index {
            let rows = |(i, &length): (usize, &i64)| vec![i as i64; length as usize];
            expected.batch_index = Some(lengths.iter().enumerate().flat_map(rows).collect());
        }
    }
    expected.offsets = Some(offsets);
    expected.lengths = Some((vec![samples.len() as i64], lengths));
}

fn mask_of(
    samples: &[Sample],
    pad: &PadAsk,
    sizes: &[i64],
    dims: &[usize],
    mask: Mask,
) -> (Vec<i64>, DType, Vec<u8>) {
    let extents: Vec<i64> = dims.iter().map(|&d| sizes[d]).collect();
    let mut bytes = Vec::new();
    for sample in samples {
        coordinates(&extents, |coords| {
            let inside = dims.iter().zip(coords).all(|(&d, &c)| {
                let lead = lead(side_of(pad, d), sample.shape[d], sizes[d]);
                (0..sample.shape[d]).contains(&(c - lead))
            });
            let is_true = Scalar::Int(i128::from(inside == (mask == Mask::Real)));
            bytes.extend(&scalar(is_true, pad.mask_dtype).to_le_bytes()[..pad.mask_dtype.size()]);
        });
    }
    (std::iter::once(samples.len() as i64).chain(extents).collect(), pad.mask_dtype, bytes)
}

/// The start of a sample in the result.
#[derive(Clone, Copy)]
enum At {
    Row,
    Joined(usize, i64),
}

fn room(samples: &[Sample], ask: &Ask, index: usize) -> (Room, At) {
    let shape = &samples[index].shape;
    match &ask.form {
        Form::Stack => (Room { extents: shape.clone(), lead: vec![0; shape.len()] }, At::Row),
        Form::Concat(_) | Form::Ragged { .. } => {
            let dim = joined_dim(ask, samples);
            let start = samples[..index].iter().map(|s| s.shape[dim]).sum();
            let room = Room { extents: shape.clone(), lead: vec![0; shape.len()] };
            (room, At::Joined(dim, start))
        }
        Form::Pad(pad) => {
            let (extents, _) = pad_sizes(pad, samples);
            let lead =
                (0..shape.len()).map(|d| lead(side_of(pad, d), shape[d], extents[d])).collect();
            (Room { extents, lead }, At::Row)
        }
    }
}

/// Extents of a padded batch, and which sample dims count as padded.
fn pad_sizes(pad: &PadAsk, samples: &[Sample]) -> (Vec<i64>, Vec<bool>) {
    let ndim = samples[0].shape.len();
    let longest = |d: usize| samples.iter().map(|s| s.shape[d]).max().unwrap();
    let differs = |d: usize| samples.iter().any(|s| s.shape[d] != samples[0].shape[d]);
    let named = named_dims(pad, ndim);
    let padded: Vec<bool> = (0..ndim)
        .map(|d| match &named {
            Some(named) => named[d],
            None => differs(d),
        })
        .collect();
    let sizes = (0..ndim).map(|d| {
        if !padded[d] {
            return longest(d);
        }
        // One number is for the dims in `dims`, not for those that the other option names.
        let in_dims = pad.dims.iter().flatten().any(|&dim| from_front(dim, ndim) == d);
        let is_meant = ndim == 1 || in_dims;
        let asked = match &pad.size {
            PerDim::All(size) => size.filter(|_| is_meant),
            PerDim::Each(sizes) => sizes[d],
        };
        let multiple = match &pad.multiple_of {
            PerDim::All(_) if !is_meant => 1,
            PerDim::All(multiple) => *multiple,
            PerDim::Each(multiples) => multiples[d],
        };
        let mut size = asked.unwrap_or(longest(d));
        while size % multiple != 0 {
            size += 1;
        }
        size
    });
    (sizes.collect(), padded)
}

/// The dims that the options name, and the only one there is; `None` if they name none.
pub fn named_dims(pad: &PadAsk, ndim: usize) -> Option<Vec<bool>> {
    let mut named: Vec<bool> = (0..ndim)
        .map(|d| {
            ndim == 1
                || matches!(&pad.size, PerDim::Each(sizes) if sizes[d].is_some())
                || matches!(&pad.multiple_of, PerDim::Each(multiples) if multiples[d] > 1)
        })
        .collect();
    for &dim in pad.dims.iter().flatten() {
        named[from_front(dim, ndim)] = true;
    }
    (pad.dims.is_some() || named.contains(&true)).then_some(named)
}

fn side_of(pad: &PadAsk, dim: usize) -> Side {
    match &pad.side {
        PerDim::All(side) => *side,
        PerDim::Each(sides) => sides[dim],
    }
}

/// Places before the sample: those cut off count as negative.
fn lead(side: Side, length: i64, size: i64) -> i64 {
    let all = (size - length).abs();
    let before = match side {
        Side::Right => 0,
        Side::Left => all,
        Side::Center => all / 2,
    };
    if size >= length {
        before
    } else {
        -before
    }
}

fn joined_dim(ask: &Ask, samples: &[Sample]) -> usize {
    match &ask.form {
        Form::Concat(dim) => from_front(*dim, samples[0].shape.len()),
        _ => 0,
    }
}

fn from_front(dim: i64, ndim: usize) -> usize {
    (if dim < 0 { dim + ndim as i64 } else { dim }) as usize
}

fn store(data: &mut [u8], dtype: DType, shape: &[i64], place: &[i64], bits: Bits) {
    let mut flat = 0;
    for (at, extent) in place.iter().zip(shape) {
        flat = flat * extent + at;
    }
    let (begin, size) = (flat as usize * dtype.size(), dtype.size());
    data[begin..begin + size].copy_from_slice(&bits.to_le_bytes()[..size]);
}

/// The transform's arithmetic, if it does anything.
struct Arithmetic {
    pairs: Vec<(f64, f64)>,
    channel_dim: usize,
    cast: fn(DType, DType, Bits) -> Bits,
}

impl Arithmetic {
    fn new(ask: &Ask, samples: &[Sample]) -> Arithmetic {
        let nothing = ask.scale == 1.0
            && ask.mean.iter().all(|&m| m == 0.0)
            && ask.std.iter().all(|&s| s == 1.0);
        let cast = if ask.saturate { cast_saturating } else { cast };
        if nothing {
            return Arithmetic { pairs: Vec::new(), channel_dim: 0, cast };
        }
        let channels = ask.mean.len().max(ask.std.len()).max(1);
        let pick = |all: &[f64], c: usize, none: f64| match all {
            [] => none,
            [one] => *one,
            all => all[c],
        };
        let pairs = (0..channels).map(|c| {
            let std = pick(&ask.std, c, 1.0);
            (ask.scale / std, -pick(&ask.mean, c, 0.0) / std)
        });
        let shape = &samples[0].shape;
        let channel_dim = match ask.channel_dim {
            Some(dim) => from_front(dim, shape.len()),
            None => shape.iter().position(|&extent| extent == channels as i64).unwrap_or(0),
        };
        Arithmetic { pairs: pairs.collect(), channel_dim, cast }
    }

    fn apply(&self, src: DType, dst: DType, bits: Bits, coords: &[i64]) -> Bits {
        match &self.pairs[..] {
            [] => (self.cast)(src, dst, bits),
            [pair] => affine([src, dst], bits, *pair, self.cast),
            pairs => {
                let pair = pairs[coords[self.channel_dim] as usize];
                affine([src, dst], bits, pair, self.cast)
            }
        }
    }
}
