//! The naive executor: one element at a time, straight from the plan. Slow, readable, the judge of
//! every other executor.
#![allow(unsafe_code)] // Reads and writes single elements at raw addresses.

use half::{bf16, f16};

use crate::collate::{Affine, Quantize};
use crate::host::Outputs;
use crate::plan::{Channel, ElementOp, Groups, Moves, OutputPlan, Plan, Role};
use crate::tensor::{CastTo, DType, Scalar};

/// Writes the outputs of a plan that have an address, element by element: the reference for all other executors.
pub(crate) fn run(plan: &Plan<'_>, outputs: &Outputs) {
    debug_assert_eq!(outputs.0.len(), plan.outputs().len());
    let addressed = plan.outputs().iter().zip(&outputs.0);
    for (output, out) in addressed.filter_map(|(output, out)| Some((output, (*out)?))) {
        if let Some(scaling) = &plan.batch_shapes()[output.leaf].scaling {
            let all = plan.outputs().iter().zip(&outputs.0);
            let scales = all
                .clone()
                .find(|(other, _)| (other.leaf, other.role) == (output.leaf, Role::Scales));
            let scales = scales.and_then(|(output, out)| Some((output, (*out)?)));
            let given = scaling.given.as_deref().unwrap_or_default();
            // SAFETY: the plan borrows its samples, and `Outputs::new` promised the output and its scales.
            unsafe {
                match output.op {
                    ElementOp::Scales => continue,
                    ElementOp::Rescale => {
                        rescale(output, out, scaling.quantize().zip(scales), (given, &[]));
                        continue;
                    }
                    _ => {}
                }
            }
        }
        for elem in 0..output.numel() {
            // SAFETY: the plan borrows its samples, and `Outputs::new` promised the output.
            unsafe { write_element(plan.affine_of(output), output, out, elem) };
        }
    }
}

/// Copies pairs as [`run_moves`](crate::host::run_moves) does, element by element.
///
/// # Safety
/// As of [`run_moves`](crate::host::run_moves).
pub(crate) unsafe fn run_moves(moves: &Moves<'_>) {
    let affine = moves.affine.as_deref();
    for (index, output) in moves.outputs.iter().enumerate() {
        debug_assert_eq!(output.places.len(), output.num_samples());
        if let Some(scales) = moves.scales.get(index) {
            let nowhere = std::ptr::null_mut();
            let found = scales
                .found
                .as_ref()
                .map(|(quantize, scales_output)| (quantize, (scales_output, nowhere)));
            debug_assert!(
                found.is_none_or(|(_, (scales, _))| scales.places.len() == scales.num_samples())
            );
            // SAFETY: the caller's promise, for places that all samples have.
            unsafe { rescale(output, nowhere, found, (&scales.given, &scales.first)) };
            continue;
        }
        for elem in 0..output.numel() {
            // SAFETY: the caller's promise, for places that all samples have.
            unsafe { write_element(affine, output, std::ptr::null_mut(), elem) };
        }
    }
}

/// Divides elements by their scales, which are written, or without `found` multiplies them by those
/// that are given: one after the other, or each pair's from its entry of `first` on, and by 1
/// behind the last one. Padding gets the fill value, and 1 as its scale.
///
/// # Safety
/// The samples of the output are alive, and its elements and those of the scales may be written to.
pub(crate) unsafe fn rescale(
    output: &OutputPlan<'_>,
    out: *mut u8,
    found: Option<(&Quantize, (&OutputPlan<'_>, *mut u8))>,
    (all_given, first): (&[f32], &[usize]),
) {
    // The bits of an element and of a scale that are copied.
    debug_assert!(output.dtype.size() <= output.fill.len());
    debug_assert!(found.is_none_or(|(_, (scales, _))| scales.dtype.size() <= 4));
    let mut given = all_given.iter();
    for sample in 0..output.num_samples() {
        // Pairs of moves have scales of their own.
        if let Some(&first) = first.get(sample) {
            given = all_given[first..].iter();
        }
        let elems = output.starts.elems(sample);
        debug_assert!(elems.end <= output.numel());
        let (groups, count) = (output.nest_of(sample).groups, elems.end - elems.start);
        let num_groups = match (found, groups) {
            (Some((_, (scales, _))), _) => {
                let scale_elems = scales.starts.elems(sample);
                debug_assert!(scale_elems.end <= scales.numel());
                scale_elems.end - scale_elems.start
            }
            (None, Groups::Sample) => 1,
            (None, Groups::Blocks { row: 0, .. }) => 0,
            (None, Groups::Blocks { row, per_row, .. }) => count / row * per_row,
        };
        for group in 0..num_groups {
            let group_elems = groups.elems(group, count);
            debug_assert!(group_elems.end <= count);
            let places = || group_elems.clone().map(|elem| place_of(output, sample, out, elem));
            // SAFETY: `group_elems` are elements of the sample in the output, `group` is one of its scales, and
            // bits are as long as what is copied of them.
            unsafe {
                let scale = match found {
                    None => *given.next().unwrap_or(&1.0),
                    Some((quantize, (scales, at))) => {
                        let place = place_of(scales, sample, at, group);
                        let is_real = match groups {
                            Groups::Sample => true,
                            Groups::Blocks { .. } => place.is_real,
                        };
                        let read = |place: ElementPlace| float_at(output, sample, &place);
                        let values = places().filter(|place| place.is_real).map(read);
                        let amax = values.filter(|x| !x.is_nan()).fold(0f32, |a, x| a.max(x.abs()));
                        let (scale, bits) = match is_real {
                            true => found_scale(quantize, amax),
                            false if scales.dtype == DType::F32 => (1.0, 1f32.to_ne_bytes()),
                            false => (1.0, [127, 0, 0, 0]),
                        };
                        let size = scales.dtype.size();
                        place.dst.copy_from_nonoverlapping(bits.as_ptr(), size);
                        scale
                    }
                };
                for place in places() {
                    let bits = match place.is_real {
                        false => output.fill,
                        true => {
                            let x = float_at(output, sample, &place);
                            let number = match found {
                                None => x * scale,
                                Some(_) => (x / scale).copysign(x),
                            };
                            write(
                                output.to(),
                                match output.dtype {
                                    DType::I8 => Scalar::Float(number.round_ties_even().into()),
                                    _ => Scalar::Float(number.into()),
                                },
                            )
                        }
                    };
                    place.dst.copy_from_nonoverlapping(bits.as_ptr(), output.dtype.size());
                }
            }
        }
    }
}

/// The scale of elements whose largest magnitude is `amax`, or the options' `eps` if that is
/// larger, and its bits; NaN for an infinity if scales are powers of two.
fn found_scale(quantize: &Quantize, amax: f32) -> (f32, [u8; 4]) {
    let amax = amax.max(quantize.eps as f32);
    let (largest, exponent) = match quantize.dtype {
        DType::I8 => (127.0, 0),
        DType::F8E4M3FN => (448.0, 8),
        _ => (57344.0, 15),
    };
    if quantize.scale_dtype == DType::F32 {
        return (amax / largest, (amax / largest).to_ne_bytes());
    }
    if amax.is_infinite() {
        return (f32::NAN, [255, 0, 0, 0]);
    }
    let mut power = 128;
    while 2f64.powi(power) > amax.into() && power > -150 {
        power -= 1;
    }
    let power = (power - exponent).clamp(-127, 127);
    (2f64.powi(power) as f32, [(power + 127) as u8, 0, 0, 0])
}

/// An element of an output and what it is made of.
struct ElementPlace {
    src: *const u8,
    dst: *mut u8,
    coords: Vec<u64>,
    is_real: bool,
}

/// The place of element `elem` of a sample.
fn place_of(output: &OutputPlan<'_>, sample: usize, out: *mut u8, elem: u64) -> ElementPlace {
    let nest = output.nest_of(sample);
    let dims = &output.dims[nest.dims.clone()];
    let mut rest = elem;
    let mut src = output.data[sample].wrapping_offset(nest.src_offset as isize);
    let mut dst = output.place_of(sample, out);
    let mut coords = vec![0u64; dims.len()];
    let mut is_real = true;
    for (coord, dim) in coords.iter_mut().zip(dims).rev() {
        *coord = rest % dim.extent;
        rest /= dim.extent;
        is_real &= (dim.lo..dim.hi).contains(coord);
        dst = dst.wrapping_offset((*coord as i64 * dim.dst_stride) as isize);
        let real = (*coord as i64).wrapping_sub(dim.lo as i64);
        src = src.wrapping_offset(real.wrapping_mul(dim.src_stride) as isize);
    }
    ElementPlace { src, dst, coords, is_real }
}

/// The bits of an element of a sample, in native byte order, with zeros behind them.
///
/// # Safety
/// The place is that of a real element of a living sample.
unsafe fn bits_at(dtype: DType, place: &ElementPlace) -> [u8; 16] {
    let mut bits = [0u8; 16];
    debug_assert!(place.is_real && dtype.size() <= bits.len());
    // SAFETY: the caller's promise.
    unsafe { place.src.copy_to_nonoverlapping(bits.as_mut_ptr(), dtype.size()) };
    if !dtype.is_native() {
        bits.chunks_mut(dtype.ordered_bytes()).for_each(<[u8]>::reverse);
    }
    bits
}

/// The element converted to float32.
///
/// # Safety
/// The place is that of a real element of a living sample.
unsafe fn float_at(output: &OutputPlan<'_>, sample: usize, place: &ElementPlace) -> f32 {
    let dtype = output.nest_of(sample).dtype;
    // SAFETY: the caller's promise.
    read(dtype.native(), unsafe { bits_at(dtype, place) }).to_f32()
}

/// Writes element `elem` of the output, counted over all samples, padding included.
///
/// # Safety
/// The samples of the output are alive, and `elem` is an element of the output at `out`.
unsafe fn write_element(affine: Option<&Affine>, output: &OutputPlan<'_>, out: *mut u8, elem: u64) {
    debug_assert!(elem < output.numel());
    let sample = output.starts.sample_at(elem);
    let nest = output.nest_of(sample);
    let dims = &output.dims[nest.dims.clone()];
    let place = place_of(output, sample, out, elem - output.starts.elems(sample).start);
    let size = output.dtype.size();
    let bits = match output.op {
        _ if !place.is_real => output.fill,
        ElementOp::Read { .. } => {
            // SAFETY: a real coordinate of a living sample.
            let bits = unsafe { bits_at(nest.dtype, &place) };
            let coords = &place.coords;
            let channel = match nest.channel {
                Channel::None => 0,
                Channel::Loop { dim, first, .. } => (coords[dim] - dims[dim].lo) as usize + first,
                Channel::Inner { first } => {
                    let column = (coords[dims.len() - 1] - dims[dims.len() - 1].lo) as usize;
                    first + column
                }
            };
            convert_one(
                nest.dtype.native(),
                output.to(),
                bits,
                affine.map(|affine| (affine, channel)),
            )
        }
        op => op.constant(sample).unwrap_or(output.fill),
    };
    debug_assert!(size <= bits.len());
    // SAFETY: the place is that of an element of the output, and `bits` has as many bytes.
    unsafe { place.dst.copy_from_nonoverlapping(bits.as_ptr(), size) };
}

/// Converts one element's bits from one dtype to another, through the affine map and its channel if
/// there is one: by one fused multiply-add in float64 if one of the dtypes is that, else in
/// float32.
fn convert_one(
    src: DType,
    to: CastTo,
    bits: [u8; 16],
    affine: Option<(&Affine, usize)>,
) -> [u8; 16] {
    if src == to.dtype && affine.is_none() {
        return bits;
    }
    let number = read(src, bits);
    let Some((affine, channel)) = affine else { return write(to, number) };
    let channel = if affine.channels() == 1 { 0 } else { channel % affine.channels() };
    let result = if [src, to.dtype].contains(&DType::F64) {
        let x = match number {
            Scalar::Int(x) => x as f64,
            Scalar::Float(x) | Scalar::Complex(x, _) => x,
        };
        x.mul_add(affine.a()[channel], affine.b()[channel])
    } else {
        let x = number.to_f32();
        x.mul_add(affine.a32()[channel], affine.b32()[channel]).into()
    };
    write(to, Scalar::Float(result))
}

/// The number of some bits, of which an element of the dtype, an arithmetic one, has the first; those behind it are zeros.
fn read(dtype: DType, bits: [u8; 16]) -> Scalar {
    // The bytes beyond the element are zeros.
    let unsigned = i128::from(u64::from_le_bytes(std::array::from_fn(|i| bits[i])));
    match dtype {
        DType::Bool => Scalar::Int(i128::from(bits[0] != 0)),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => {
            let sign = 1 << (8 * dtype.size() - 1);
            Scalar::Int(if unsigned & sign == 0 { unsigned } else { unsigned - 2 * sign })
        }
        DType::F8E4M3FN | DType::F8E5M2 => Scalar::Float(float8_value(dtype, bits[0])),
        DType::F16 => Scalar::Float(f16::from_le_bytes([bits[0], bits[1]]).into()),
        DType::BF16 => Scalar::Float(bf16::from_le_bytes([bits[0], bits[1]]).into()),
        DType::F32 => Scalar::Float(f32::from_le_bytes(std::array::from_fn(|i| bits[i])).into()),
        DType::F64 => Scalar::Float(f64::from_le_bytes(std::array::from_fn(|i| bits[i]))),
        _ => Scalar::Int(unsigned),
    }
}

/// The bits of a number, which is not complex, as the dtype has it, with zeros behind them. A float is rounded once to nearest
/// even; an integer is a float toward zero and saturated, or a whole number modulo its range.
fn write(to: CastTo, number: Scalar) -> [u8; 16] {
    let dtype = to.dtype;
    let mut bits = [0u8; 16];
    let mut put = |bytes: &[u8]| bits[..bytes.len()].copy_from_slice(bytes);
    match (dtype, number) {
        (DType::Bool, Scalar::Int(x)) => put(&[u8::from(x != 0)]),
        (DType::Bool, Scalar::Float(x)) => put(&[u8::from(x != 0.0)]),
        (DType::F64, Scalar::Int(x)) => put(&(x as f64).to_le_bytes()),
        (DType::F64, Scalar::Float(x)) => put(&x.to_le_bytes()),
        (DType::F32, _) => put(&number.to_f32().to_le_bytes()),
        (DType::F16, _) => put(&f16::from_f32(number.to_odd_f32()).to_le_bytes()),
        (DType::BF16, _) => put(&bf16::from_f32(number.to_odd_f32()).to_le_bytes()),
        (DType::F8E4M3FN | DType::F8E5M2, Scalar::Int(x)) => put(&[nearest_float8(to, x as f64)]),
        (DType::F8E4M3FN | DType::F8E5M2, Scalar::Float(x)) => put(&[nearest_float8(to, x)]),
        (_, Scalar::Int(x)) => put(&x.to_le_bytes()[..dtype.size()]),
        (DType::I8, Scalar::Float(x)) => put(&(x as i8).to_le_bytes()),
        (DType::I16, Scalar::Float(x)) => put(&(x as i16).to_le_bytes()),
        (DType::I32, Scalar::Float(x)) => put(&(x as i32).to_le_bytes()),
        (DType::I64, Scalar::Float(x)) => put(&(x as i64).to_le_bytes()),
        (DType::U8, Scalar::Float(x)) => put(&(x as u8).to_le_bytes()),
        (DType::U16, Scalar::Float(x)) => put(&(x as u16).to_le_bytes()),
        (DType::U32, Scalar::Float(x)) => put(&(x as u32).to_le_bytes()),
        (_, Scalar::Float(x)) => put(&(x as u64).to_le_bytes()),
        (_, Scalar::Complex(..)) => unreachable!("complex numbers are moved, never cast"),
    }
    bits
}

/// Bits of the fraction, and the code of the first number that there is none of: an infinity, or the NaN of a type without. Any
/// dtype but float8_e4m3fn counts as float8_e5m2.
fn format_of_float8(dtype: DType) -> (u32, u8) {
    match dtype {
        DType::F8E4M3FN => (3, 0x7f),
        _ => (2, 0x7c),
    }
}

/// The value of a code without a sign bit; codes past the last number count as if the numbers went on.
fn counted_float8(dtype: DType, code: u8) -> f64 {
    let (fraction_bits, _) = format_of_float8(dtype);
    let fraction = f64::from(code % (1 << fraction_bits)) / f64::from(1 << fraction_bits);
    let (exponent, bias) = (i32::from(code >> fraction_bits), (1 << (6 - fraction_bits)) - 1);
    match exponent {
        0 => fraction * 2f64.powi(1 - bias),
        _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
    }
}

/// The value of any code. A NaN has no payload.
fn float8_value(dtype: DType, code: u8) -> f64 {
    let (size, (_, end)) = (code & 0x7f, format_of_float8(dtype));
    let magnitude = match size {
        _ if size < end => counted_float8(dtype, size),
        0x7c => f64::INFINITY,
        _ => f64::NAN,
    };
    magnitude.copysign(if code & 0x80 == 0 { 1.0 } else { -1.0 })
}

/// The code whose value is nearest; on a tie the even one. Beyond the largest number it is the code behind that, or that of the
/// number if results saturate. A NaN keeps its sign alone.
fn nearest_float8(to: CastTo, x: f64) -> u8 {
    let (_, end) = format_of_float8(to.dtype);
    // The products are exact on both sides: a value has four bits at most.
    let is_beyond = |code: u8| {
        let sum = counted_float8(to.dtype, code) + counted_float8(to.dtype, code + 1);
        2.0 * x.abs() > sum || 2.0 * x.abs() == sum && code % 2 == 1
    };
    let (mut size, mut above) = (0, end);
    while size < above {
        let middle = (size + above) / 2;
        match is_beyond(middle) {
            true => size = middle + 1,
            false => above = middle,
        }
    }
    let size = match size {
        _ if x.is_nan() => end | 2,
        size if size == end && to.saturate => end - 1,
        size => size,
    };
    size | u8::from(x.is_sign_negative()) << 7
}
