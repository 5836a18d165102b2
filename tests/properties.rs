//! Random batches: every executor agrees with the oracle, whatever the form, the dtypes, the layouts,
//! the sides, the sizes and the transform.
#![cfg(not(miri))]

use crate::common::ask::Form;
use crate::common::runner::{bytes_of, is_emulated};
use crate::common::{runner, Ask, PadAsk, Paint, Sample, ARITHMETIC};
use ndarray::{ArrayView, IxDyn, ShapeBuilder};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use windrow::batch::{Fields, SampleBounds};
use windrow::collate::{AnyTransform, Granularity, PerDim};
use windrow::packing::{balance, buckets, pack, token_budget, Packing};
use windrow::plan::Target;
use windrow::tensor::{Offsets, Scalar};
use windrow::{
    Batch, Collate, DType, Dequantize, Engine, Layout, Mask, Pad, Plan, Quantize, Ragged,
    SampleList, SampleView, Side, Tensor,
};

/// `PROPTEST_CASES` overrides the number of cases.
fn config(cases: u32) -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    config
}

/// How one sample is in memory: the order of its dims, the gap and the sign of each step, zero
/// strides, and the misalignment.
#[derive(Clone, Debug)]
struct Lie {
    order: Vec<usize>,
    gap: i64,
    signs: Vec<i64>,
    misalign: usize,
    seed: u64,
}

impl Lie {
    fn sample(&self, dtype: DType, shape: &[i64]) -> Sample {
        let mut strides = vec![0; shape.len()];
        let mut step = 1 + self.gap;
        for &dim in self.order.iter().rev() {
            strides[dim] = step * self.signs[dim];
            step = step * shape[dim].max(1) + self.gap;
        }
        Sample::laid_out(dtype, shape, &strides, self.misalign, Paint::Rich, self.seed)
    }
}

fn lie(ndim: usize) -> impl Strategy<Value = Lie> {
    // Most samples are compact, as most are in life.
    let order = prop_oneof![
        2 => Just((0..ndim).collect::<Vec<_>>()),
        1 => Just((0..ndim).collect::<Vec<_>>()).prop_shuffle(),
    ];
    lie_in_order(order, vec(prop_oneof![12 => Just(1i64), 2 => Just(-1), 1 => Just(0)], ndim))
}

fn lie_in_order(
    order: impl Strategy<Value = Vec<usize>>,
    signs: impl Strategy<Value = Vec<i64>>,
) -> impl Strategy<Value = Lie> {
    let gap = prop_oneof![3 => Just(0i64), 1 => 1..3i64];
    let misalign = prop_oneof![2 => Just(0usize), 1 => 1..16usize];
    (order, gap, signs, misalign, 0..500u64).prop_map(|(order, gap, signs, misalign, seed)| Lie {
        order,
        gap,
        signs,
        misalign,
        seed,
    })
}

/// A batch to be made: samples and options.
#[derive(Clone, Debug)]
struct Case {
    samples: Vec<(DType, Vec<i64>, Lie)>,
    ask: Ask,
}

fn extent() -> impl Strategy<Value = i64> {
    prop_oneof![1 => Just(0i64), 8 => 1..5i64, 4 => 5..20i64, 1 => select(vec![31i64, 32, 33, 64, 65])]
}

/// Shapes that fit the form.
fn shapes(form: &Form, ndim: usize) -> impl Strategy<Value = Vec<Vec<i64>>> {
    let free: Vec<bool> = (0..ndim)
        .map(|d| match form {
            Form::Stack => false,
            Form::Concat(dim) => d as i64 == dim.rem_euclid(ndim as i64),
            Form::Ragged { .. } => d == 0,
            Form::Pad(pad) => {
                crate::common::oracle::named_dims(pad, ndim).is_none_or(|named| named[d])
            }
        })
        .collect();
    (vec(extent(), ndim), vec(vec(extent(), ndim), 1..6)).prop_map(move |(common, extents)| {
        let shape = |extents: Vec<i64>| {
            (0..ndim).map(|d| if free[d] { extents[d] } else { common[d] }).collect()
        };
        extents.into_iter().map(shape).collect()
    })
}

fn per_dim<T: Clone + std::fmt::Debug + 'static>(
    one: impl Strategy<Value = T> + Clone + 'static,
    ndim: usize,
) -> impl Strategy<Value = PerDim<T>> {
    prop_oneof![one.clone().prop_map(PerDim::All), vec(one, ndim).prop_map(PerDim::Each)]
}

fn pad(ndim: usize) -> impl Strategy<Value = PadAsk> {
    let side = select(vec![Side::Right, Side::Left, Side::Center]);
    let size = prop_oneof![2 => Just(None), 1 => (0..40i64).prop_map(Some)];
    let multiple = prop_oneof![2 => Just(1i64), 1 => 2..9i64];
    let all: Vec<i64> = (0..ndim as i64).collect();
    let mask = select(vec![None, Some(Mask::Real), Some(Mask::Pad)]);
    let mask_dtype = select(vec![DType::Bool, DType::U8, DType::I64, DType::F16]);
    let mask = (mask, mask_dtype);
    let dims = prop_oneof![2 => Just(None), 1 => subsequence(all, 0..=ndim).prop_map(Some)];
    let value = prop_oneof![Just(Scalar::Int(0)), Just(Scalar::Int(1))];
    (per_dim(side, ndim), per_dim(size, ndim), per_dim(multiple, ndim), dims, mask, value).prop_map(
        move |(side, size, multiple_of, dims, (mask, mask_dtype), value)| {
            let pad = PadAsk { value, side, dims, size, multiple_of, ..PadAsk::default() };
            let mut pad = PadAsk { truncate: true, mask, mask_dtype, ..pad };
            // One number applies to the named dims.
            if ndim != 1 && pad.dims.as_ref().is_none_or(Vec::is_empty) {
                if matches!(pad.size, PerDim::All(_)) {
                    pad.size = PerDim::All(None);
                }
                if matches!(pad.multiple_of, PerDim::All(_)) {
                    pad.multiple_of = PerDim::All(1);
                }
            }
            pad
        },
    )
}

fn form(ndim: usize) -> BoxedStrategy<Form> {
    let padded = pad(ndim).prop_map(Form::Pad);
    if ndim == 0 {
        return prop_oneof![Just(Form::Stack), padded].boxed();
    }
    let ndim = ndim as i64;
    let ragged = |(offsets_i32, batch_index)| Form::Ragged { offsets_i32, batch_index };
    prop_oneof![
        1 => Just(Form::Stack),
        2 => (-ndim..ndim).prop_map(Form::Concat),
        2 => any::<(bool, bool)>().prop_map(ragged),
        4 => padded,
    ]
    .boxed()
}

/// Coefficients, one or one for each channel; the channels are those of a dim that no sample differs in.
fn arithmetic(mut ask: Ask, kind: u8, dim: usize, shapes: &[Vec<i64>]) -> Ask {
    match kind {
        0 | 1 => {}
        2 => ask = ask.scaled(),
        _ => {
            let channels = shapes[0].get(dim).copied().unwrap_or(1);
            let one = shapes.iter().all(|shape| shape.get(dim) == Some(&channels));
            if one && channels > 1 {
                ask = ask.normalised(usize::try_from(channels).expect("small"), dim as i64);
            }
        }
    }
    ask
}

fn batch() -> impl Strategy<Value = Case> {
    (0..=4usize)
        .prop_flat_map(|ndim| (Just(ndim), form(ndim)))
        .prop_flat_map(|(ndim, form)| {
            let order: Vec<i64> = (0..ndim as i64).collect();
            let keeps_rows = matches!(form, Form::Ragged { .. });
            let order = prop_oneof![
                1 => Just(None),
                1 => Just(order).prop_shuffle().prop_map(move |mut order| {
                    if keeps_rows {
                        order.sort_by_key(|&d| d != 0);
                    }
                    Some(order)
                }),
            ];
            let dtypes = (select(DType::ALL.to_vec()), select(ARITHMETIC.to_vec()), 0..4u8, 0..4u8);
            let lies = (lie(ndim), vec(lie(ndim), 6), any::<bool>());
            (shapes(&form, ndim), dtypes, order, lies, 0..ndim.max(1), Just(form))
        })
        .prop_map(|(shapes, (moved, computed, casts, transforms), permute, lies, dim, form)| {
            let (lie, each_lie, one_layout) = lies;
            let mut ask = Ask { permute, ..Ask::new(form) };
            let mut dtype = moved;
            let mut mixed = false;
            if casts > 1 {
                ask = ask.cast(computed);
                mixed = casts == 3;
                dtype = if moved.is_arithmetic() { moved } else { computed };
                ask = arithmetic(ask, transforms, dim, &shapes);
            }
            let samples = shapes.into_iter().zip(each_lie).enumerate().map(|(i, (shape, one))| {
                let other = ARITHMETIC[(i * 5 + dtype as usize) % ARITHMETIC.len()];
                let dtype = if mixed { other } else { dtype };
                (dtype, shape, if one_layout { Lie { seed: one.seed, ..lie.clone() } } else { one })
            });
            Case { samples: samples.collect(), ask }
        })
}

/// Images of interleaved channels on their way to planes, padded or cropped.
fn images() -> impl Strategy<Value = Case> {
    let dtype = select(vec![DType::U8, DType::U8, DType::I16, DType::F32]);
    let to = select(vec![None, Some(DType::F32), Some(DType::F16), Some(DType::BF16)]);
    let extents = vec((1..20i64, 1..70i64), 1..4);
    let side = select(vec![Side::Right, Side::Left, Side::Center]);
    let size = prop_oneof![Just(None), (0..50i64).prop_map(Some)];
    (dtype, to, extents, 1..6i64, vec(side, 3), (size.clone(), size), any::<bool>(), vec(lie(3), 3))
        .prop_map(|(dtype, to, extents, channels, sides, (rows, columns), normalise, lies)| {
            let pad = PadAsk {
                side: PerDim::Each(sides),
                dims: Some(vec![0, 1]),
                size: PerDim::Each(vec![rows, columns, None]),
                truncate: true,
                ..PadAsk::default()
            };
            let mut ask = Ask::pad(pad).permute(&[2, 0, 1]);
            ask.cast = to;
            if normalise && channels > 1 {
                ask.cast = to.or(Some(dtype));
                ask = ask.normalised(usize::try_from(channels).expect("small"), 2);
            }
            let samples = extents.into_iter().zip(lies);
            let samples =
                samples.map(|((height, width), lie)| (dtype, vec![height, width, channels], lie));
            Case { samples: samples.collect(), ask }
        })
}

/// Samples of many dims in any order, of sizes up to some that are cut into tiles.
fn permuted() -> impl Strategy<Value = Case> {
    let shape = (3..=8usize).prop_flat_map(|ndim| {
        let most = [40i64, 18, 9, 6, 5, 4][ndim - 3];
        let dims = vec(prop_oneof![8 => 1..=most, 1 => Just(1i64), 1 => Just(16i64)], ndim);
        dims.prop_map(|mut dims| {
            while dims.iter().product::<i64>() > 12_000 {
                let longest = (0..dims.len()).max_by_key(|&dim| dims[dim]).expect("three at least");
                dims[longest] -= dims[longest] / 2;
            }
            dims
        })
    });
    shape.prop_flat_map(|shape| {
        let ndim = shape.len();
        let order = Just((0..ndim as i64).collect::<Vec<_>>()).prop_shuffle();
        let form = prop_oneof![
            3 => Just(Form::Stack),
            1 => (0..ndim as i64).prop_map(Form::Concat),
            1 => pad(ndim).prop_map(|pad| Form::Pad(PadAsk { multiple_of: PerDim::All(1), size: PerDim::All(None), ..pad })),
        ];
        let lies = vec(shuffled_lie(ndim), 1..4);
        let dtypes = (select(DType::ALL.to_vec()), select(ARITHMETIC.to_vec()), 0..6u8, 0..4u8);
        (Just(shape), order, form, lies, dtypes, 0..ndim, any::<bool>()).prop_map(
            |(shape, order, form, lies, (moved, computed, casts, transforms), dim, one_layout)| {
                let mut ask = Ask { permute: Some(order), ..Ask::new(form) };
                let mut dtype = moved;
                let shapes = vec![shape; lies.len()];
                if casts > 2 {
                    dtype = if moved.is_arithmetic() { moved } else { computed };
                    ask = arithmetic(ask.cast(computed), transforms, dim, &shapes);
                }
                let first = lies[0].clone();
                let samples = shapes.into_iter().zip(lies).map(|(shape, one)| {
                    (dtype, shape, if one_layout { Lie { seed: one.seed, ..first.clone() } } else { one })
                });
                Case { samples: samples.collect(), ask }
            },
        )
    })
}

/// A layout like that of [`lie`], with the dims in any order, and fewer of them backwards.
fn shuffled_lie(ndim: usize) -> impl Strategy<Value = Lie> {
    let order = Just((0..ndim).collect::<Vec<_>>()).prop_shuffle();
    lie_in_order(order, vec(prop_oneof![20 => Just(1i64), 1 => Just(-1), 1 => Just(0)], ndim))
}

impl Case {
    fn check(&self) {
        let samples: Vec<_> =
            self.samples.iter().map(|(dtype, shape, lie)| lie.sample(*dtype, shape)).collect();
        runner().check("a random batch", &samples, &self.ask);
    }
}

/// A dtype, a shape and bytes, if there is such a tensor.
type Told = Option<(DType, Vec<i64>, Vec<u8>)>;

/// The tensors of a batch.
fn told(batch: &Batch) -> Vec<Told> {
    let beside = [batch.lengths(), batch.offsets(), batch.mask(), batch.batch_index()];
    let each = std::iter::once(Some(batch.data())).chain(beside);
    each.map(|t| t.map(|t| (t.dtype(), t.shape().to_vec(), bytes_of(t)))).collect()
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn executors_agree_with_the_oracle(batch in batch()) {
        batch.check();
    }
}

/// The number of permuted cases is a third on an emulator, which takes as long for one of them as for ten others.
fn config_of_permuted() -> ProptestConfig {
    let mut config = config(300);
    if is_emulated() {
        config.cases /= 3;
    }
    config
}

proptest! {
    #![proptest_config(config_of_permuted())]

    #[test]
    fn permuted_samples_agree_with_the_oracle(batch in permuted()) {
        batch.check();
    }
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn images_agree_with_the_oracle(batch in images()) {
        batch.check();
    }

    #[test]
    fn taking_is_the_same_as_listing(lengths in vec(0..9i64, 1..20), picks in vec(any::<u32>(), 1..20)) {
        let samples: Vec<_> = lengths.iter().map(|&n| Sample::new(DType::I16, &[n], n as u64)).collect();
        let list: SampleList<'_> = samples.iter().map(Sample::view).collect();
        let picks: Vec<usize> = picks.iter().map(|&pick| pick as usize % samples.len()).collect();
        let picked: Vec<_> = picks.iter().map(|&pick| samples[pick].view()).collect();
        for (at, collate) in [Collate::ragged(Ragged::new()), Collate::pad(windrow::Pad::new()), Collate::concat(0)].iter().enumerate() {
            // Half of the indices count from the end.
            let indices = picks.iter().map(|&pick| pick as i64 - if pick % 2 == 0 { 0 } else { samples.len() as i64 });
            let taken = list.take(indices).unwrap();
            let (_, engine) = &runner().engines()[at % runner().engines().len()];
            let (one, other) = (engine.assemble(&taken, collate).unwrap(), engine.assemble(&picked, collate).unwrap());
            prop_assert_eq!(one.data().as_slice::<i16>().unwrap(), other.data().as_slice::<i16>().unwrap());
            prop_assert_eq!(
                one.lengths().unwrap().as_slice::<i64>().unwrap(),
                other.lengths().unwrap().as_slice::<i64>().unwrap()
            );
        }
    }

    /// Whatever a list has been taken from: the same batch, account or error as of the samples themselves.
    #[test]
    fn taking_from_mixed_lists_is_listing(
        listed in vec((select(vec![DType::I16, DType::I16, DType::F32]), vec(0..4i64, 0..4)), 1..6),
        picks in vec(any::<u32>(), 1..5),
        ask in (0..=3usize).prop_flat_map(form).prop_map(Ask::new),
        cast in any::<bool>(),
    ) {
        let samples: Vec<_> = listed
            .iter()
            .enumerate()
            .map(|(i, (dtype, shape))| Sample::new(*dtype, shape, i as u64))
            .collect();
        let list: SampleList<'_> = samples.iter().map(Sample::view).collect();
        let picks = picks.iter().map(|&pick| pick as usize % samples.len());
        let picked: Vec<_> = picks.clone().map(|pick| samples[pick].view()).collect();
        let taken = list.take(picks.map(|pick| pick as i64)).unwrap();
        let collate = if cast { ask.cast(DType::F64) } else { ask }.collate();
        for (name, engine) in runner().engines() {
            let of_list = engine.assemble(&taken, &collate);
            match (of_list, engine.assemble(&picked[..], &collate)) {
                (Ok(one), Ok(other)) => prop_assert_eq!(told(&one), told(&other), "{}", name),
                (Err(one), Err(other)) => prop_assert_eq!(one.to_string(), other.to_string()),
                (one, other) => prop_assert!(false, "{}: {:?}, {:?}", name, one, other),
            }
        }
        let engine = Engine::host();
        if engine.assemble(&taken, &collate).is_ok() {
            let (explain, stats) = (Plan::new(&taken, &collate).unwrap().explain(), engine.stats());
            prop_assert_eq!(&stats.paths, &[(explain.path, 1)].into());
            let told = (explain.bytes_read, explain.padding_bytes);
            prop_assert_eq!((stats.bytes_in, stats.padding_bytes), told);
        }
    }

    #[test]
    fn accounts_add_up(lengths in vec(0..50i64, 1..30), multiple in 1..9i64) {
        let samples: Vec<_> = lengths.iter().map(|&n| Sample::new(DType::U32, &[n, 2], 1)).collect();
        let views = crate::common::sample::views(&samples);
        let collate = Collate::pad(windrow::Pad::new().multiple_of(multiple).dims([0]));
        let explain = Plan::new(&views, &collate).unwrap().explain();
        let longest = lengths.iter().max().unwrap();
        let size = (longest + multiple - 1) / multiple * multiple;
        prop_assert_eq!(&explain.outputs, &[(vec![lengths.len() as i64, size, 2], DType::U32)]);
        let (all, real) = (8 * size * lengths.len() as i64, 8 * lengths.iter().sum::<i64>());
        prop_assert_eq!(explain.bytes_written, all as u64);
        prop_assert_eq!(explain.bytes_read, real as u64);
        prop_assert_eq!(explain.padding_bytes, (all - real) as u64);
        prop_assert_eq!((explain.samples, explain.leaves, explain.launches), (lengths.len(), 1, 0));
        let waste = if all == 0 { 0.0 } else { (all - real) as f64 / all as f64 };
        prop_assert_eq!(explain.padding_waste, waste);
        let engine = Engine::reference();
        engine.assemble(&views, &collate).unwrap();
        let stats = engine.stats();
        prop_assert_eq!(&stats.paths, &[(explain.path, 1)].into());
        prop_assert_eq!((stats.bytes_in, stats.data_bytes), (explain.bytes_read, all as u64));
        prop_assert_eq!((stats.padding_bytes, stats.padding_waste()), (explain.padding_bytes, waste));
    }
}

/// Extents, strides and offsets that nobody means.
fn wild() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => -2i64..6,
        1 => select(vec![i64::MIN, i64::MIN + 1, i64::MAX, i64::MAX - 1, 1 << 32, -(1 << 40)]),
        1 => any::<i64>(),
    ]
}

fn wild_size() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0usize..6, 1 => select(vec![usize::MAX, 1 << 31, 1 << 62])]
}

proptest! {
    #![proptest_config(config(2000))]

    /// Constructors refuse what does not fit, and what they take can be used: nothing panics.
    #[test]
    fn constructors_take_any_arguments(
        dtype in select(DType::ALL.to_vec()),
        shape in vec(wild(), 0..5),
        other in vec(wild(), 0..5),
        sides in vec((wild_size(), select(vec![Side::Left, Side::Right, Side::Center])), 0..4),
        (start, index, count) in (wild(), wild_size(), wild_size()),
    ) {
        let table = Tensor::from_vec((0..24).collect::<Vec<i32>>(), &[4, 6]).unwrap();
        let bytes = Tensor::from_vec(vec![0u8; 96], &[96]).unwrap();
        let _ = Tensor::from_vec(vec![0u8; 6], &shape);
        let _ = bytes.part(start as u64, dtype, &shape);
        let _ = table.select(start);
        let mut wild = vec![table.clone()];
        let layouts = [Layout::compact(dtype, &shape), Layout::try_new(dtype, &shape, Some(&other))];
        for layout in layouts.into_iter().flatten() {
            if let Ok(view) = table.view(start, layout) {
                let _ = (view.as_slice::<i32>().map(<[i32]>::len), view.select(start), view.bytes());
                let _ = (view.nbytes(), Plan::new(&[&view], &Collate::pad(Pad::new())));
                wild.push(view);
            }
        }
        let elements = [0i16; 6];
        let views = [
            SampleView::from_slice(&elements, &shape),
            SampleView::with_strides(&elements, &shape, &other),
        ];
        for view in views.into_iter().flatten() {
            let pad = Pad::new().dims(other.clone()).value(start).truncate(true);
            let _ = Plan::new(std::slice::from_ref(&view), &Collate::pad(pad));
            let _ = Plan::new(std::slice::from_ref(&view), &Collate::concat(start));
        }
        let sizes = |numbers: &[i64]| numbers.iter().map(|&n| n as usize).collect::<Vec<_>>();
        let array_shape = IxDyn(&sizes(&shape)).strides(IxDyn(&sizes(&other)));
        if let Ok(array) = ArrayView::from_shape(array_shape, &elements) {
            let view = SampleView::try_from(array);
            prop_assert!(view.is_err() || Plan::new(&[view.unwrap()], &Collate::stack()).is_ok());
        }
        let mut memory = elements;
        if let Ok(mut target) = Target::from_slice(&mut memory, &shape) {
            let samples = [&elements[..count.min(6)]];
            for collate in [Collate::stack(), Collate::ragged(Ragged::new()), Collate::concat(start)] {
                let _ = Engine::host().assemble_into(&samples, &collate, &mut target);
            }
        }
        let lengths: Vec<i64> = other.iter().map(|&n| n.max(0)).collect();
        for how in [Packing::InOrder, Packing::FirstFitDecreasing, Packing::BestFitDecreasing] {
            let _ = pack(&lengths, start, how, Some(count));
        }
        let _ = token_budget(&lengths, start, index.min(9) as i64, Some(count));
        let _ = buckets(&other, count.min(99), Some(&shape), true, None);
        let _ = balance(&lengths, count.min(99), Some(7));
        let floats = [&[0.5f32; 4][..count.min(4)], &[2.0]];
        let quantize = Quantize::new(dtype).scale(Granularity::Block(start));
        let dequantize = Dequantize::new(bytes.clone()).block(start);
        for transform in [AnyTransform::from(quantize), dequantize.into()] {
            let _ = Plan::new(&floats, &Collate::ragged(Ragged::new()).transform(transform));
        }
        let parts = [Some(SampleBounds::rows()), Some(SampleBounds::padded(sides, shape.clone()))];
        let offsets = [Offsets::try_new(other.clone()), Offsets::from_lengths(other)];
        let joined = offsets.map(|offsets| Some(SampleBounds::joined(index, offsets.ok()?)));
        for parts in parts.into_iter().chain(joined).flatten() {
            for data in &wild {
                let fields = Fields::with_bounds(count, parts.clone());
                if let Ok(batch) = Batch::try_new(data.clone(), fields) {
                    for index in [0, 1, index, count.wrapping_sub(1)] {
                        let _ = batch.sample(index);
                    }
                }
            }
        }
    }
}
