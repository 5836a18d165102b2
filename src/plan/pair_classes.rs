//! [`PairClasses`]: pairs whose sides have the same layouts, checked and planned once for all of them.

use std::collections::HashMap;

use crate::collate::{AnyTransform, Collate, Dequantize, Scales};
use crate::plan::batch_shape::BatchShape;
use crate::plan::checks::ONLY_MOVED;
use crate::plan::loops::{Dim, LoopNest};
use crate::plan::scaling::{is_dequantised, Scaling, DEQUANTISED};
use crate::samples::{SampleList, TensorMeta};
use crate::tensor::{
    DType, Device, Dims, Error, Footprint, Hint, Layout, Mismatch, MoveSide, Result, Tensor,
};

/// Pairs whose destinations are alike, and whose sources are.
#[derive(Debug)]
pub(super) struct PairClass<'l> {
    pub dst: &'l TensorMeta,
    pub src: &'l TensorMeta,
    /// The number of the first pair of the class.
    pub first: usize,
    /// The number of its pairs.
    pub count: usize,
    /// Whether both sides have the same metadata and nothing is transformed: a pair at one address then needs no work.
    pub is_same: bool,
    /// Whether a side is on a device, and there are elements.
    pub is_on_device: bool,
    /// The batch that the transform makes of the source, if there is one.
    pub transformed: Option<BatchShape>,
    /// The class's output in the plan, and its loop nest there.
    pub place: (usize, u32),
}

/// The classes of all pairs, and that of each pair; none if there is one for all.
#[derive(Debug, Default)]
pub(super) struct PairClasses<'l> {
    pub classes: Vec<PairClass<'l>>,
    ids: Vec<u32>,
}

impl<'l> PairClasses<'l> {
    /// The classes of pairs, of which there is one at least, in the order of their first pairs; nothing is checked.
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
            let key = which(pair);
            if key != last.0 {
                let next = all.classes.len() as u32;
                let id = *known.entry(key).or_insert(next);
                if id == next {
                    all.classes.push(class(pair, key));
                }
                last = (key, id);
            }
            all.classes[last.1 as usize].count += 1;
            all.ids.push(last.1);
        }
        all
    }

    /// The class of a pair.
    pub fn class_of(&self, pair: usize) -> &PairClass<'l> {
        &self.classes[self.id_of(pair)]
    }

    /// Whether a pair is the same memory and dtype, so that there is nothing to be done; known after [`PairClasses::check`].
    pub fn is_done(&self, pair: usize, dsts: &SampleList<'_>, srcs: &SampleList<'_>) -> bool {
        self.class_of(pair).is_same && dsts.address(pair) == srcs.address(pair)
    }

    /// The position of a pair's class.
    pub fn id_of(&self, pair: usize) -> usize {
        self.ids.get(pair).map_or(0, |&id| id as usize)
    }

    /// Checks the pairs of each class, but for memory that they share, and sets `is_same` and `transformed`. The error is that of
    /// the first pair that has one, and counts those of its kind.
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
    /// The scaling of one pair's elements; `None` if they are not scaled, and before [`PairClasses::check`].
    pub fn scaling(&self) -> Option<&Scaling> {
        self.transformed.as_ref().and_then(|shape| shape.scaling.as_deref())
    }

    /// A class whose first pair is `first`, without pairs counted and checks made.
    fn new(dst: &'l TensorMeta, src: &'l TensorMeta, first: usize) -> PairClass<'l> {
        PairClass {
            dst,
            src,
            first,
            count: 0,
            is_same: false,
            // A tensor without elements may name any device.
            is_on_device: dst.layout.numel() > 0 && (dst.device.is_cuda() || src.device.is_cuda()),
            transformed: None,
            place: (0, 0),
        }
    }

    /// Checks a class with a side on a device.
    ///
    /// # Errors
    /// [`Error::NoDriver`] in a build without CUDA; [`Error::Layout`] for a source of foreign byte order, unless it is pageable.
    fn check_device(&self) -> Result<()> {
        let (to, from) = (self.dst.device, self.src.device);
        if !crate::HAS_CUDA {
            return Err(Error::host_only(if to.is_cuda() { to } else { from }));
        }
        if !self.src.dtype.is_native() && from != Device::Cpu {
            let expected = "native byte order, in which alone a device reads memory";
            let found = Mismatch::new(None, expected, self.src.dtype);
            let hint = Hint::Text("copy it on the host first");
            let error = found.with_hint(hint).into_error(Error::Layout);
            return Err(error.at_side(MoveSide::Source, self.first));
        }
        Ok(())
    }

    /// Checks one pair for all of the class, and sets `is_same` and `transformed`.
    ///
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
        let is_given = matches!(transform, Some(AnyTransform::Dequantize(_)));
        if is_given && !is_dequantised(dst.dtype) {
            return refuse(Error::DType, Mismatch::new(None, DEQUANTISED, dst.dtype));
        }
        if let Some(transform) = transform {
            let transformed = transformed(srcs, dst.dtype, transform, first)?;
            if dst.dtype != transformed.dtype {
                let found = Mismatch::new(None, transformed.dtype, dst.dtype);
                return refuse(Error::DType, found);
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
            let found = Mismatch::new(None, "memory whose elements do not overlap", got);
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

/// The batch that a transform makes of a source, as a stack of that alone, with all checks of a batch: an [`Error::Argument`] has
/// no number, others are of the source of `pair`.
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
            let scales = Scales::Samples(vec![given_for(dequantize, pair, srcs.len())?]);
            let given = Dequantize { block: dequantize.block, ..Dequantize::new(scales) };
            Collate::stack().cast(dtype).transform(given)
        }
    };
    BatchShape::new(&srcs.take([pair as i64])?, &collate).map_err(|error| match error {
        Error::Argument(text) => Error::Argument(text),
        error => error.at_side(MoveSide::Source, pair),
    })
}

/// The given scales of a pair, as those of a stack of its source; [`Error::Argument`] if they are not of `num_pairs`.
pub(super) fn given_for(dequantize: &Dequantize, pair: usize, num_pairs: usize) -> Result<Tensor> {
    let refuse = |count: i64| Err(Error::argument(format!("{count} scales for {num_pairs} pairs")));
    match &*dequantize.scales {
        Scales::Samples(all) if all.len() != num_pairs => refuse(all.len() as i64),
        Scales::Samples(all) => Ok(all[pair].clone()),
        Scales::Batch(all) => match all.shape().first() {
            Some(&count) if count == num_pairs as i64 => all.select(pair as i64),
            count => refuse(count.copied().unwrap_or(1)),
        },
    }
}

/// Metadata of the same shape and device, row-major and in native byte order; the error of [`Layout::compact`].
pub(super) fn packed(meta: &TensorMeta) -> Result<TensorMeta> {
    let dtype = meta.dtype.native();
    Ok(TensorMeta {
        dtype,
        device: meta.device,
        layout: Layout::compact(dtype, meta.layout.shape())?,
    })
}
