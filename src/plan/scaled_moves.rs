//! [`DeviceScales`]: the scales of pairs that a device writes.
//!
//! The host finds the scales of any mixture of pairs, since it asks for the groups of each sample. A descriptor of a launch has one
//! rule for all of its samples: a transfer group of scaled pairs has one class, and its rows keep their dims.

use std::borrow::Cow;

use crate::collate::{AnyTransform, Quantize};
use crate::plan::loops::LoopNest;
use crate::plan::move_scales::MoveScales;
use crate::plan::output::{ElementOp, OutputPlan, Starts};
use crate::plan::pair_classes::{packed, PairClass, PairClasses};
use crate::plan::role::Role;
use crate::plan::scales_output::nest_of_scales;
use crate::plan::scaling::{rows_too_long, Groups, Scaling, DEVICE_COUNT};
use crate::samples::SampleList;
use crate::tensor::{Dims, Error, Layout, Result};

/// The scales of pairs that a device writes.
#[derive(Debug)]
pub(super) struct DeviceScales<'s> {
    /// The rule by which they are found, and where those of all pairs go.
    found: Option<(Quantize, SampleList<'s>)>,
    /// The scales given to these pairs, in ascending order.
    given: MoveScales<'s>,
    pairs: Vec<usize>,
}

/// The output of found scales, and if it lands on the host, as it is written and read on the way.
type FoundOutput = (OutputPlan<'static>, Option<(OutputPlan<'static>, OutputPlan<'static>)>);

impl<'s> DeviceScales<'s> {
    /// The scales of pairs with a side on a device, by position.
    ///
    /// # Errors
    /// As [`MoveScales::new`]; [`Error::TooLarge`] for more than a launch counts, of all pairs together, so that none of several
    /// rounds finds it. A sample with one scale must have fewer than 2^31 elements, which is stricter than a launch: that counts its
    /// rows and the elements of a row apart, as it finds them.
    pub fn new<'a: 's>(
        pairs: &[usize],
        all: &PairClasses<'s>,
        srcs: &'s SampleList<'a>,
        transform: &AnyTransform,
        scales_out: Option<&SampleList<'a>>,
    ) -> Result<DeviceScales<'s>> {
        let mut num_scales = 0u64;
        for class in pairs.iter().map(|&pair| all.class_of(pair)) {
            let Some(scaling) = class.scaling() else { continue };
            match (scaling.groups, class.dst.layout.numel() as u64) {
                (Groups::Blocks { row: row @ DEVICE_COUNT.., .. }, _) => {
                    return Err(rows_too_long(row));
                }
                (Groups::Sample, elems @ DEVICE_COUNT..) => {
                    return Err(Error::too_large(format!(
                        "a sample of {elems} elements with one scale: a device takes fewer than 2^31; pass its parts as samples with \
                         scales of their own, or both sides on the host"
                    )));
                }
                _ => {}
            }
            num_scales = num_scales.saturating_add(scaling.num_scales());
        }
        if num_scales >= DEVICE_COUNT {
            let text = "2^31 scales or more in one call: move fewer pairs at a time";
            return Err(Error::too_large(text.to_owned()));
        }
        let mut device_scales =
            DeviceScales { found: None, given: MoveScales::default(), pairs: pairs.to_vec() };
        match (transform, scales_out) {
            (AnyTransform::Quantize(quantize), Some(scales)) => {
                device_scales.found = Some((*quantize, scales.clone()));
            }
            _ => device_scales.given = MoveScales::new(pairs, all, srcs, transform, None)?,
        }
        Ok(device_scales)
    }

    /// A number that pairs have in common whose found scales have one layout.
    pub fn layout_of(&self, pair: usize) -> u32 {
        let ids = self.found.as_ref().and_then(|(_, list)| list.meta_ids());
        ids.map_or(0, |ids| ids[pair])
    }

    /// The scales of these pairs of a class, as those of a batch of them in this order; `None` if
    /// the class is not scaled.
    pub fn scaling(&self, class: &PairClass<'_>, pairs: &[usize]) -> Option<Scaling> {
        let one = class.scaling()?;
        let mut shape = one.shape.clone();
        shape[0] = pairs.len() as i64;
        let count = one.shape[1..].iter().product::<i64>() as usize;
        let first = |pair: &usize| {
            let at = self.pairs.binary_search(pair).unwrap_or_default();
            self.given.first[at]
        };
        let given = self.found.is_none().then(|| {
            let firsts = pairs.iter().map(first);
            firsts.flat_map(|first| &self.given.given[first..first + count]).copied().collect()
        });
        Some(Scaling { rescale: one.rescale.clone(), groups: one.groups, shape, given })
    }

    /// The output of the scales of pairs of a class, which are leaf number `leaf`, with sources at `data`; `None` if they are given.
    /// If it `lands` on the host, also as it is written row-major, and as it is read from that at address 0.
    ///
    /// # Errors
    /// As [`Layout::try_new`].
    pub fn output(
        &self,
        class: &PairClass<'_>,
        (pairs, leaf): (&[usize], usize),
        data: Vec<*const u8>,
        lands: bool,
    ) -> Result<Option<FoundOutput>> {
        let (Some((quantize, list)), Some(shape)) = (&self.found, &class.transformed) else {
            return Ok(None);
        };
        let groups = class.scaling().map_or(Groups::Sample, |scaling| scaling.groups);
        let (dtype, meta) = (quantize.scale_dtype, list.meta(pairs[0]));
        let size = dtype.size() as i64;
        let (elems, whole) = (meta.layout.numel(), packed(meta)?);
        let output =
            |data, places: &[*const u8], layout: &Layout, step: i64| -> Result<OutputPlan<'_>> {
                let count = [pairs.len() as i64];
                let extents: Dims = count.iter().chain(layout.shape()).copied().collect();
                // Samples have places of their own, or follow one another.
                let strides: Dims = [step].iter().chain(layout.strides()).copied().collect();
                let bytes: Dims =
                    layout.strides().iter().map(|stride| stride.wrapping_mul(size)).collect();
                let mut dims = Vec::new();
                let nest = nest_of_scales(class.src, shape, groups, &bytes, &mut dims);
                Ok(OutputPlan {
                    leaf,
                    fill: quantize.bits_of(1.0),
                    data: Cow::Owned(data),
                    places: Cow::Owned(places.to_vec()),
                    nests: vec![nest],
                    dims,
                    ..OutputPlan::new(
                        Role::Scales,
                        dtype,
                        Layout::try_new(dtype, &extents, Some(&strides))?,
                        ElementOp::Scales,
                        Starts::Rows { elems: elems as u64, step: step * size },
                    )
                })
            };
        let places: Vec<*const u8> = pairs.iter().map(|&pair| list.address(pair)).collect();
        let placed = output(data.clone(), &places, &meta.layout, 0)?;
        if !lands {
            return Ok(Some((placed, None)));
        }
        let compact = output(data, &[], &whole.layout, elems)?;
        let at = |pair: usize| std::ptr::without_provenance(pair * (elems * size) as usize);
        let mut dims = Vec::new();
        let nest = LoopNest::for_pair(&whole, meta, &mut dims);
        let read = OutputPlan {
            bytes_only: nest.is_bytes(dtype, &dims),
            data: (0..pairs.len()).map(at).collect(),
            places: Cow::Owned(places),
            nests: vec![nest],
            dims,
            ..OutputPlan::new(
                Role::Scales,
                dtype,
                compact.layout.clone(),
                ElementOp::MOVED,
                Starts::Rows { elems: elems as u64, step: 0 },
            )
        };
        Ok(Some((placed, Some((compact, read)))))
    }
}

#[cfg(all(test, feature = "cuda"))]
#[path = "scaled_moves_tests.rs"]
mod tests;
