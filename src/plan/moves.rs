//! [`Moves`]: pairs of tensors of which the second is written to the first.
//!
//! All pairs whose destinations have one dtype are one output, in which each sample has a place of its own; all pairs with the
//! same two layouts share a loop nest. A plan of `n` pairs so takes a few tables of `n` entries, and nothing else for each pair.
//!
//! ```text
//! pairs    (a, x) (b, y) (c, z)      a, c float32 [2]; b int64 [3]; x, y, z float32
//! outputs  float32: data x z, places a c, one loop nest      int64: data y, places b, one loop nest, a cast
//! ```

use std::borrow::Cow;

use crate::collate::{Affine, AnyTransform};
use crate::plan::disjoint::check_pairs_disjoint;
use crate::plan::loops::{Dim, LoopNest};
use crate::plan::move_scales::{check_scales_out, MoveScales};
use crate::plan::output::{saturating_sum, ElementOp, OutputPlan, Starts};
use crate::plan::pair_classes::{PairClass, PairClasses};
use crate::plan::role::Role;
use crate::plan::scaled_moves::DeviceScales;
use crate::samples::SampleList;
use crate::tensor::{DType, Device, Error, Layout, Offsets, Result};

/// The plan of a move: which tensor is written from which.
#[derive(Debug)]
pub(crate) struct Moves<'s> {
    /// One for each dtype of destinations on the host that something is written to.
    pub outputs: Vec<OutputPlan<'s>>,
    /// The scales of each output; none if nothing is scaled.
    pub scales: Vec<MoveScales<'s>>,
    /// The map that sources are put through.
    pub affine: Option<Box<Affine>>,
    /// Pairs with a side on a device that something is written to, by position.
    pub on_device: Vec<usize>,
    /// The scales of these; `None` if they are not scaled.
    pub(super) device_scales: Option<DeviceScales<'s>>,
    /// Scales of pairs on the host go to page-locked memory.
    has_pinned_scales: bool,
    pub num_pairs: usize,
    pub(super) all: PairClasses<'s>,
}

impl<'s> Moves<'s> {
    /// Plans all pairs.
    ///
    /// # Errors
    /// [`Error::Argument`] for lists of different lengths or of samples that only a device knows; of each pair what
    /// [`Engine::copy_many`](crate::Engine::copy_many) says.
    pub fn new<'a: 's>(
        dsts: &'s SampleList<'a>,
        srcs: &'s SampleList<'a>,
        transform: &AnyTransform,
        scales_out: Option<&SampleList<'a>>,
    ) -> Result<Moves<'s>> {
        dsts.check_known()?;
        srcs.check_known()?;
        if dsts.len() != srcs.len() {
            let text = format!("{} destinations for {} sources", dsts.len(), srcs.len());
            return Err(Error::argument(text));
        }
        let mut moves = Moves {
            outputs: Vec::new(),
            scales: Vec::new(),
            affine: None,
            on_device: Vec::new(),
            device_scales: None,
            has_pinned_scales: false,
            num_pairs: dsts.len(),
            all: PairClasses::default(),
        };
        if dsts.is_empty() {
            return Ok(moves);
        }
        dsts.check_rows(0)?;
        srcs.check_rows(0)?;
        let mut all = PairClasses::new(dsts, srcs);
        let asked = transform;
        let transform = Some(asked).filter(|asked| **asked != AnyTransform::default());
        all.check(srcs, transform)?;
        check_scales_out(dsts, srcs, &all, asked, scales_out)?;
        check_pairs_disjoint(dsts, srcs, |pair| all.class_of(pair).is_same)?;
        moves.affine = all.classes.iter_mut().find_map(|class| {
            class.transformed.as_mut().and_then(|transformed| transformed.affine.take())
        });
        moves.add([dsts, srcs], &mut all, asked, scales_out)?;
        moves.all = all;
        if !matches!(asked, AnyTransform::Elements(_)) && moves.is_on_several() {
            let text = "the sides are on several devices, and a move with scales is of one: copy once for each device";
            return Err(Error::argument(text.to_owned()));
        }
        Ok(moves)
    }

    /// Whether a pair without a side on a device, or its scales, are in page-locked memory, which work on a device may still use.
    pub fn has_pinned_on_host(&self) -> bool {
        let is_pinned = |class: &PairClass<'_>| {
            !class.is_on_device && [class.dst.device, class.src.device].contains(&Device::Pinned)
        };
        self.has_pinned_scales || self.all.classes.iter().any(is_pinned)
    }

    /// Whether sides are on more than one CUDA device.
    pub fn is_on_several(&self) -> bool {
        let mut ordinals = self.ordinals();
        let first = ordinals.next();
        ordinals.any(|ordinal| Some(ordinal) != first)
    }

    /// The ordinal of the first CUDA device that a side is on; `None` if all pairs are on the host.
    pub fn ordinal(&self) -> Option<u32> {
        self.ordinals().next()
    }

    /// The ordinals of the CUDA devices of all sides, of classes whose pairs have elements: one for
    /// each such side, a destination before its source.
    fn ordinals(&self) -> impl Iterator<Item = u32> + '_ {
        let classes = self.all.classes.iter().filter(|class| class.is_on_device);
        let sides = classes.flat_map(|class| [class.dst.device, class.src.device]);
        sides.filter_map(Device::ordinal)
    }

    /// Bytes read and bytes written by the outputs on the host, scales that are found there included.
    pub fn traffic(&self) -> (u64, u64) {
        let found = self.scales.iter().filter_map(|scales| scales.found.as_ref());
        let written = self.outputs.iter().chain(found.map(|(_, output)| output));
        let read = self.outputs.iter().map(OutputPlan::bytes_read);
        (saturating_sum(read), saturating_sum(written.map(OutputPlan::bytes)))
    }

    /// Adds the outputs of pairs on the host, with their scales, and the positions of pairs on a device; sets the place of each
    /// class on the host.
    ///
    /// # Errors
    /// As [`MoveScales::new`]; [`Error::TooLarge`], [`Error::OutOfMemory`].
    fn add<'a: 's>(
        &mut self,
        [dsts, srcs]: [&'s SampleList<'a>; 2],
        all: &mut PairClasses<'s>,
        transform: &AnyTransform,
        scales_out: Option<&SampleList<'a>>,
    ) -> Result<()> {
        let mut dtypes: Vec<DType> = Vec::new();
        let mut nests: Vec<(Vec<LoopNest>, Vec<Dim>)> = Vec::new();
        for class in &mut all.classes {
            if class.is_on_device {
                continue;
            }
            let known = dtypes.iter().position(|&dtype| dtype == class.dst.dtype);
            let output = known.unwrap_or(dtypes.len());
            if known.is_none() {
                dtypes.push(class.dst.dtype);
                nests.push(Default::default());
            }
            let (loop_nests, table) = &mut nests[output];
            class.place = (output, loop_nests.len() as u32);
            loop_nests.push(class.nest_between(class.src, class.dst, table));
        }
        let is_done = |pair: usize| all.is_done(pair, dsts, srcs);
        if all.classes.iter().any(|class| class.is_on_device) {
            let pairs = (0..dsts.len()).filter(|&pair| {
                let class = all.class_of(pair);
                class.is_on_device && class.src.layout.numel() > 0 && !is_done(pair)
            });
            self.on_device = pairs.collect();
        }
        let may_skip = all.classes.iter().any(|class| class.is_same);
        let are_all = dtypes.len() == 1
            && self.on_device.is_empty()
            && !(may_skip && (0..dsts.len()).any(is_done));
        let affine = self.affine.is_some();
        let is_scaled = !matches!(transform, AnyTransform::Elements(_));
        if is_scaled && !self.on_device.is_empty() {
            let scales = DeviceScales::new(&self.on_device, all, srcs, transform, scales_out)?;
            self.device_scales = Some(scales);
        }
        let is_pinned = |scales: &SampleList<'_>| {
            (0..dsts.len()).any(|pair| {
                !all.class_of(pair).is_on_device && scales.meta(pair).device == Device::Pinned
            })
        };
        self.has_pinned_scales = scales_out.is_some_and(is_pinned);
        for (output, (dtype, (classes, dims))) in dtypes.into_iter().zip(nests).enumerate() {
            let is_its = |pair: &usize| {
                let class = all.class_of(*pair);
                !class.is_on_device && class.place.0 == output && !is_done(*pair)
            };
            let pairs: Option<Vec<usize>> =
                (!are_all).then(|| (0..dsts.len()).filter(is_its).collect());
            let count = pairs.as_ref().map_or(dsts.len(), Vec::len);
            let pair_at = |position: usize| pairs.as_ref().map_or(position, |all| all[position]);
            let id_at = |position: usize| all.class_of(pair_at(position)).place.1;
            let elems_of = |id: u32| classes[id as usize].num_real;
            let are_alike = classes.iter().all(|class| class.num_real == classes[0].num_real);
            let (starts, total) = if are_alike {
                let elems = elems_of(0);
                (Starts::Rows { elems, step: 0 }, elems.saturating_mul(count as u64))
            } else {
                let elems = (0..count).map(|position| elems_of(id_at(position)) as i64);
                let offsets = Offsets::from_lengths(elems)?;
                let total = offsets.total() as u64;
                (Starts::Joined { offsets, unit: 1, step: 0 }, total)
            };
            // Scales of no elements are written, too.
            if total == 0 && !is_scaled {
                continue;
            }
            if is_scaled {
                let its: Vec<usize> = (0..count).map(pair_at).collect();
                self.scales.push(MoveScales::new(&its, all, srcs, transform, scales_out)?);
            }
            let nest_ids = match classes.len() {
                1 => Vec::new(),
                _ => (0..count).map(id_at).collect(),
            };
            let (data, places) = match &pairs {
                None => (srcs.data(), dsts.data()),
                Some(pairs) => (
                    pairs.iter().map(|&pair| srcs.address(pair)).collect(),
                    pairs.iter().map(|&pair| dsts.address(pair)).collect(),
                ),
            };
            let bytes_only =
                !affine && !is_scaled && classes.iter().all(|class| class.is_bytes(dtype, &dims));
            let total = i64::try_from(total).unwrap_or(i64::MAX);
            self.outputs.push(OutputPlan {
                data,
                places,
                nest_ids: Cow::Owned(nest_ids),
                nests: classes,
                dims,
                bytes_only,
                ..OutputPlan::new(
                    Role::Data,
                    dtype,
                    Layout::compact(dtype, &[total])?,
                    match is_scaled {
                        true => ElementOp::Rescale,
                        false => ElementOp::Read { affine, saturate: false },
                    },
                    starts,
                )
            });
        }
        Ok(())
    }
}
