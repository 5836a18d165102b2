//! Code that the examples share.

use windrow::batch::Fields;
use windrow::plan::Target;
use windrow::tensor::Element;
use windrow::{Collate, Engine, Plan, Samples};

/// The error of an example.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// A batch in a vector, which frameworks take over without a copy; its shape; and lengths and mask.
pub fn assemble<T: Element + Default, S: Samples + ?Sized>(
    engine: &Engine,
    samples: &S,
    collate: &Collate,
) -> windrow::Result<(Vec<T>, Vec<usize>, Fields)> {
    let collate = collate.clone().cast(T::DTYPE);
    let shape = Plan::new(samples, &collate)?.batch_shapes()[0].shape().to_vec();
    let extents: Vec<usize> = shape.iter().map(|&extent| extent as usize).collect();
    let mut data = vec![T::default(); extents.iter().product()];
    let mut target = Target::from_slice(&mut data, &shape)?;
    let fields = engine.assemble_into(samples, &collate, &mut target)?;
    Ok((data, extents, fields))
}
