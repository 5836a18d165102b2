//! Random batches whose elements are scaled.

use windrow::collate::Granularity;
use windrow::tensor::Scalar;
use windrow::{Collate, DType, Pad, Quantize, Ragged, Side};

use super::{Random, Sample};

pub const FLOATS: [DType; 6] =
    [DType::F16, DType::BF16, DType::F32, DType::F64, DType::F8E4M3FN, DType::F8E5M2];
pub const QUANTISED: [DType; 3] = [DType::F8E4M3FN, DType::F8E5M2, DType::I8];

/// Samples, a form that takes them, and a quantisation.
pub struct Case {
    pub samples: Vec<Sample>,
    pub collate: Collate,
    pub quantize: Quantize,
    /// The shape of a sample, but for dims that differ.
    pub shape: Vec<i64>,
}

impl Case {
    pub fn random(random: &mut Random) -> Case {
        let ndim = 1 + random.below(3) as usize;
        let shape: Vec<i64> =
            (0..ndim).map(|_| [0, 1, 2, 3, 5, 40][random.below(6) as usize]).collect();
        let (collate, differ) = any_form(random, ndim);
        let quantize = any_of(random, 45);
        let samples: Vec<Sample> = (0..1 + random.below(4))
            .map(|_| {
                let mut shape = shape.clone();
                for &dim in &differ {
                    shape[dim] = [0, 1, 2, 4, 7][random.below(5) as usize];
                }
                let from = FLOATS[random.below(6) as usize];
                let strides: Vec<i64> = (0..ndim)
                    .map(|dim| {
                        let step =
                            shape[dim + 1..].iter().map(|&extent| extent.max(1)).product::<i64>();
                        match random.below(12) {
                            0 => -2 * step,
                            1 => 0,
                            2 => 3 * step,
                            _ => step,
                        }
                    })
                    .collect();
                Sample::strided(from, &shape, &strides, random.below(1000))
            })
            .collect();
        Case { samples, collate, quantize, shape }
    }
}

/// A random quantisation.
pub fn any_of(random: &mut Random, most: i64) -> Quantize {
    let dtype = QUANTISED[random.below(3) as usize];
    let scale = match random.below(4) {
        0 => Granularity::Sample,
        1 => Granularity::Row,
        _ => Granularity::Block(1 + random.below(most as u64) as i64),
    };
    let eps = [1e-12, 1e-3, 1e-35][random.below(3) as usize];
    let quantize = Quantize::new(dtype).scale(scale).eps(eps);
    match dtype != DType::I8 && random.below(2) == 0 {
        true => quantize.scale_dtype(DType::F8E8M0FNU),
        false => quantize,
    }
}

/// A form for samples of so many dims, the dims that may differ, and whether the last one is not joined or padded.
fn any_form(random: &mut Random, ndim: usize) -> (Collate, Vec<usize>) {
    let sides = [Side::Right, Side::Left, Side::Center];
    match random.below(4) {
        1 => (Collate::ragged(Ragged::new()), vec![0]),
        2 => {
            let dim = random.below(ndim as u64) as usize;
            (Collate::concat(dim as i64), vec![dim])
        }
        3 => {
            let side = sides[random.below(3) as usize];
            let dims: Vec<usize> = (0..ndim).filter(|_| random.below(2) == 0).collect();
            let named: Vec<i64> = dims.iter().map(|&dim| dim as i64).collect();
            let mut pad = Pad::new().side(side).dims(named).value(Scalar::Float(0.5));
            if !dims.is_empty() && random.below(2) == 0 {
                pad = pad.size(3).truncate(true);
            }
            (Collate::pad(pad), dims)
        }
        _ => (Collate::stack(), Vec::new()),
    }
}

/// The elements of a block, if scales are those of blocks.
pub fn block_of(quantize: &Quantize) -> Option<i64> {
    let text = format!("{quantize:?}");
    let (_, rest) = text.split_once("Block(")?;
    rest.split_once(')')?.0.parse().ok()
}
