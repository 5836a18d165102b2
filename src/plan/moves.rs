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
use std::collections::HashMap;

use crate::collate::{Affine, AnyTransform, Collate, Dequantize, Scales};
use crate::plan::apart::check_pairs_apart;
use crate::plan::batch_shape::BatchShape;
use crate::plan::checks::ONLY_MOVED;
use crate::plan::loops::{Dim, LoopNest};
use crate::plan::move_scales::{check_scales_out, given_for, MoveScales};
use crate::plan::output::{ElementOp, OutputPlan, Starts};
use crate::plan::role::Role;
use crate::samples::{SampleList, TensorMeta};
use crate::tensor::{
    DType, Device, Dims, Error, Footprint, Hint, Layout, Mismatch, MoveSide, Offsets, Result,
};

/// Which tensor is written from which.
#[derive(Debug)]
pub(crate) struct Moves<'s> {
    /// One for each dtype of destinations on the host that something is written to.
    pub outputs: Vec<OutputPlan<'s>>,
    /// The scales of each output; none if nothing is scaled.
    pub scales: Vec<MoveScales<'s>>,
    /// What sources are put through.
    pub affine: Option<Box<Affine>>,
    /// Pairs with a side on a device that something is written to, by position.
    pub on_device: Vec<usize>,
    pub num_pairs: usize,
    pub(super) all: PairClasses<'s>,
}

/// Pairs whose destinations are alike, and whose sources are.
#[derive(Debug)]
pub(super) struct PairClass<'l> {
    pub dst: &'l TensorMeta,
    pub src: &'l TensorMeta,
    /// The first of them, and how many there are.
    first: usize,
    count: usize,
    /// Both are the same, so that pairs of the same address are nothing to be done.
    is_same: bool,
    is_on_device: bool,
    /// What the transform makes of the source, if there is one.
    pub transformed: Option<BatchShape>,
    /// Its output, and its loop nest there.
    place: (usize, u32),
}

/// The classes of all pairs, and that of each pair; none if there is one for all.
#[derive(Debug, Default)]
pub(super) struct PairClasses<'l> {
    pub classes: Vec<PairClass<'l>>,
    ids: Vec<u32>,
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
            return Err(Error::Argument(text));
        }
        let mut moves = Moves {
            outputs: Vec::new(),
            scales: Vec::new(),
            affine: None,
            on_device: Vec::new(),
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
        check_pairs_apart(dsts, srcs, |pair| all.of(pair).is_same)?;
        moves.affine = all.classes.iter_mut().find_map(|class| {
            class.transformed.as_mut().and_then(|transformed| transformed.affine.take())
        });
        moves.add([dsts, srcs], &mut all, asked, scales_out)?;
        moves.all = all;
        Ok(moves)
    }

    /// Whether a pair without a side on a device has one in page-locked memory, which work on a device may still use.
    pub fn has_pinned_on_host(&self) -> bool {
        let is_pinned = |class: &PairClass<'_>| {
            !class.is_on_device && [class.dst.device, class.src.device].contains(&Device::Pinned)
        };
        self.all.classes.iter().any(is_pinned)
    }

    /// Whether sides are on several devices.
    pub fn is_on_several(&self) -> bool {
        let mut ordinals = self.ordinals();
        let first = ordinals.next();
        ordinals.any(|ordinal| Some(ordinal) != first)
    }

    /// The first device that a side is on.
    pub fn ordinal(&self) -> Option<u32> {
        self.ordinals().next()
    }

    fn ordinals(&self) -> impl Iterator<Item = u32> + '_ {
        let classes = self.all.classes.iter().filter(|class| class.is_on_device);
        let sides = classes.flat_map(|class| [class.dst.device, class.src.device]);
        sides.filter_map(|device| match device {
            Device::Cuda(ordinal) => Some(ordinal),
            _ => None,
        })
    }

    /// Elements of all outputs, in bytes read and written.
    pub fn traffic(&self) -> (u64, u64) {
        let read = self.outputs.iter().map(OutputPlan::bytes_read);
        let written = self.outputs.iter().map(OutputPlan::bytes);
        (read.fold(0, u64::saturating_add), written.fold(0, u64::saturating_add))
    }

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
            let (own, table) = &mut nests[output];
            class.place = (output, own.len() as u32);
            own.push(class.nest_between(class.src, class.dst, table));
        }
        let is_done = |pair: usize| all.is_done(pair, dsts, srcs);
        if all.classes.iter().any(|class| class.is_on_device) {
            let pairs = (0..dsts.len()).filter(|&pair| {
                let class = all.of(pair);
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
        for (output, (dtype, (classes, dims))) in dtypes.into_iter().zip(nests).enumerate() {
            let is_its = |pair: &usize| {
                let class = all.of(*pair);
                !class.is_on_device && class.place.0 == output && !is_done(*pair)
            };
            let pairs: Option<Vec<usize>> =
                (!are_all).then(|| (0..dsts.len()).filter(is_its).collect());
            let count = pairs.as_ref().map_or(dsts.len(), Vec::len);
            let pair_at = |position: usize| pairs.as_ref().map_or(position, |all| all[position]);
            let id_at = |position: usize| all.of(pair_at(position)).place.1;
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
                leaf: 0,
                role: Role::Data,
                dtype,
                out: None,
                layout: Layout::compact(dtype, &[total])?,
                op: match is_scaled {
                    true => ElementOp::Rescale { saturate: dtype.is_float8() },
                    false => ElementOp::Read { affine, saturate: false },
                },
                fill: [0; 16],
                data,
                places,
                nest_ids: Cow::Owned(nest_ids),
                nests: classes,
                dims,
                starts,
                bytes_only,
                is_table_of_runs: false,
                ranges: None,
                selected: None,
            });
        }
        Ok(())
    }
}

impl<'l> PairClasses<'l> {
    pub fn new(dsts: &'l SampleList<'_>, srcs: &'l SampleList<'_>) -> PairClasses<'l> {
        let (dst_ids, src_ids) = (dsts.meta_ids(), srcs.meta_ids());
        let which = |pair: usize| {
            let id = |ids: Option<&[u32]>| ids.map_or(0, |ids| ids[pair]);
            (id(dst_ids), id(src_ids))
        };
        let class = |pair: usize, (dst, src): (u32, u32)| {
            PairClass::new(&dsts.metas()[dst as usize], &srcs.metas()[src as usize], pair)
        };
        let mut all = PairClasses { classes: vec![class(0, which(0))], ids: Vec::new() };
        if dst_ids.is_none() && src_ids.is_none() {
            all.classes[0].count = dsts.len();
            return all;
        }
        let mut known = HashMap::from([(which(0), 0)]);
        let mut last = (which(0), 0);
        all.ids.reserve_exact(dsts.len());
        for pair in 0..dsts.len() {
            let own = which(pair);
            if own != last.0 {
                let next = all.classes.len() as u32;
                let id = *known.entry(own).or_insert(next);
                if id == next {
                    all.classes.push(class(pair, own));
                }
                last = (own, id);
            }
            all.classes[last.1 as usize].count += 1;
            all.ids.push(last.1);
        }
        all
    }

    pub fn of(&self, pair: usize) -> &PairClass<'l> {
        &self.classes[self.id_of(pair)]
    }

    /// Whether a pair is the same memory and dtype, so that there is nothing to be done.
    pub fn is_done(&self, pair: usize, dsts: &SampleList<'_>, srcs: &SampleList<'_>) -> bool {
        self.of(pair).is_same && dsts.address(pair) == srcs.address(pair)
    }

    pub fn id_of(&self, pair: usize) -> usize {
        self.ids.get(pair).map_or(0, |&id| id as usize)
    }

    /// Checks the pairs of each class; the error is that of the first pair that has one, and counts those of its kind.
    pub fn check(&mut self, srcs: &SampleList<'_>, transform: Option<&AnyTransform>) -> Result<()> {
        let mut found: Option<Error> = None;
        // Classes are in the order of their first pairs.
        for class in &mut self.classes {
            let Err(mut error) = class.check(srcs, transform) else {
                continue;
            };
            let count = error.mismatch_mut().map_or(0, |mismatch| {
                mismatch.count = class.count;
                class.count
            });
            match &mut found {
                None => found = Some(error),
                Some(first) if std::mem::discriminant(first) == std::mem::discriminant(&error) => {
                    first.mismatch_mut().into_iter().for_each(|first| first.count += count);
                }
                Some(_) => {}
            }
        }
        found.map_or(Ok(()), Err)
    }
}

impl<'l> PairClass<'l> {
    /// How many pairs there are.
    pub fn count(&self) -> usize {
        self.count
    }

    fn new(dst: &'l TensorMeta, src: &'l TensorMeta, first: usize) -> PairClass<'l> {
        let is_on_device = |meta: &TensorMeta| matches!(meta.device, Device::Cuda(_));
        PairClass {
            dst,
            src,
            first,
            count: 0,
            is_same: false,
            // What has no elements may say that it is anywhere.
            is_on_device: dst.layout.numel() > 0 && (is_on_device(dst) || is_on_device(src)),
            transformed: None,
            place: (0, 0),
        }
    }

    /// # Errors
    /// A pair that no work on a device is for.
    fn check_device(&self) -> Result<()> {
        let (to, from) = (self.dst.device, self.src.device);
        let is_cuda = |device: Device| matches!(device, Device::Cuda(_));
        if !crate::HAS_CUDA {
            return Err(Error::host_only(if is_cuda(to) { to } else { from }));
        }
        if !self.src.dtype.is_native() && from != Device::Cpu {
            let expected = "native byte order, in which alone a device reads memory";
            let found = Mismatch::new(None, expected, self.src.dtype);
            let hint = Hint::Text("copy it on the host first");
            let error = Error::Layout(Box::new(found.with_hint(hint)));
            return Err(error.at_side(MoveSide::Source, self.first));
        }
        Ok(())
    }

    /// # Errors
    /// Those of [`Engine::copy_many`](crate::Engine::copy_many) that one pair shows without its addresses.
    fn check(&mut self, srcs: &SampleList<'_>, transform: Option<&AnyTransform>) -> Result<()> {
        let (dst, src, first) = (self.dst, self.src, self.first);
        let refuse = |error: fn(Box<Mismatch>) -> Error, mismatch: Mismatch| {
            Err(error(Box::new(mismatch)).at_side(MoveSide::Destination, first))
        };
        if !dst.dtype.is_native() {
            let found = Mismatch::new(None, "native byte order", dst.dtype);
            return refuse(Error::Layout, found);
        }
        let is_cast = src.dtype.is_arithmetic() && dst.dtype.is_arithmetic();
        if src.dtype.native() != dst.dtype && !is_cast {
            let found = Mismatch::new(None, src.dtype.native(), dst.dtype);
            return refuse(Error::DType, found.with_hint(Hint::Text(ONLY_MOVED)));
        }
        if let Some(transform) = transform {
            let transformed = transformed(srcs, dst.dtype, transform, first)?;
            if dst.dtype != transformed.dtype {
                let found = Mismatch::new(None, transformed.dtype, dst.dtype);
                return refuse(Error::DType, found);
            }
            if transformed.scaling.is_some() && self.is_on_device {
                let found = Mismatch::new(None, "host memory", dst.device.to_string());
                let hint = Hint::Text("quantising runs on the host yet");
                return refuse(Error::Device, found.with_hint(hint));
            }
            self.transformed = Some(transformed);
        }
        let expected: Dims = match &self.transformed {
            Some(transformed) => transformed.shape[1..].into(),
            None => src.layout.shape().into(),
        };
        if dst.layout.shape() != &expected[..] {
            let found = Mismatch::new(None, &expected[..], dst.layout.shape());
            return refuse(Error::Shape, found);
        }
        if Footprint::new(std::ptr::null(), &dst.layout, dst.dtype).shares_with_itself() {
            let (strides, shape) = (dst.layout.strides(), dst.layout.shape());
            let got = format!("strides {strides:?} for shape {shape:?}");
            let found = Mismatch::new(None, "elements with a place of their own", got);
            return refuse(Error::Layout, found);
        }
        if self.is_on_device {
            self.check_device()?;
        }
        let steps = |meta: &TensorMeta| -> Dims {
            let each = meta.layout.shape().iter().zip(meta.layout.strides());
            each.map(|(&extent, &stride)| if extent > 1 { stride } else { 0 }).collect()
        };
        self.is_same = transform.is_none() && src.dtype == dst.dtype && steps(src) == steps(dst);
        Ok(())
    }

    /// The loops from a source to its destination, or between tensors that stand for these.
    pub fn nest_between(
        &self,
        src: &TensorMeta,
        dst: &TensorMeta,
        table: &mut Vec<Dim>,
    ) -> LoopNest {
        match &self.transformed {
            None => LoopNest::for_pair(src, dst, table),
            Some(transformed) => {
                LoopNest::for_data(src, transformed, None, dst.layout.strides(), table)
            }
        }
    }
}

/// What a transform makes of a source, as the stack of this one: with all that is checked of those.
fn transformed(
    srcs: &SampleList<'_>,
    dtype: DType,
    transform: &AnyTransform,
    pair: usize,
) -> Result<BatchShape> {
    let collate = match transform {
        AnyTransform::Elements(transform) => {
            Collate::stack().cast(dtype).transform(transform.clone())
        }
        AnyTransform::Quantize(quantize) => Collate::stack().transform(*quantize),
        AnyTransform::Dequantize(dequantize) => {
            let own = Scales::Samples(vec![given_for(dequantize, pair, srcs.len())?]);
            let given = Dequantize { block: dequantize.block, ..Dequantize::new(own) };
            Collate::stack().cast(dtype).transform(given)
        }
    };
    BatchShape::new(&srcs.take([pair as i64])?, &collate).map_err(|error| match error {
        Error::Argument(text) => Error::Argument(text),
        error => error.at_side(MoveSide::Source, pair),
    })
}
