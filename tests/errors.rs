//! Every refusal: the variant, what it says of whom, its text, and that nothing was written.

use crate::common::runner::Frame;
use crate::common::sample::views;
use crate::common::{runner, Sample};
use windrow::engine::{CopyOptions, RunOptions};
use windrow::error::{ErrorValue, Mismatch};
use windrow::plan::Target;
use windrow::tensor::Scalar;
use windrow::{
    Collate, DType, Device, Engine, Error, Layout, Mask, Pad, Plan, Ragged, SampleList, SampleView,
    Side, Tensor, Transform,
};

/// The expected class and text of an error.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Is {
    Shape,
    DType,
    Device,
    Layout,
    Empty,
    Argument,
    TooLarge,
    OutOfMemory,
    NoDriver,
}

fn variant(error: &Error) -> Is {
    match error {
        Error::Shape(_) => Is::Shape,
        Error::DType(_) => Is::DType,
        Error::Device(_) => Is::Device,
        Error::Layout(_) => Is::Layout,
        Error::Empty => Is::Empty,
        Error::Argument(_) => Is::Argument,
        Error::TooLarge(_) => Is::TooLarge,
        Error::OutOfMemory { .. } => Is::OutOfMemory,
        Error::NoDriver(_) => Is::NoDriver,
        other => panic!("a kind of error that no test expects: {other:?}"),
    }
}

/// The one error that every executor gives, for a batch of its own and for one into poisoned memory,
/// which stays as it is. The engine works on afterwards.
fn refused(samples: &[SampleView<'_>], collate: &Collate) -> Error {
    let planned = Plan::new(samples, collate).err();
    let mut last = None;
    for (name, engine) in runner().engines() {
        let error = engine.assemble(samples, collate).expect_err("a refusal");
        if let Some(planned) = &planned {
            assert_eq!(&error, planned, "{name}");
        }
        if planned.is_some() {
            let mut frame = Frame::new(DType::U8, &[2, 4], &[4, 1], 0);
            let into =
                engine.assemble_into(samples, collate, &mut frame.target()).expect_err("a refusal");
            assert_eq!(into, error, "{name}");
            assert!(frame.is_untouched(), "{name}: {error}");
        }
        still_works(engine);
        last = Some(error);
    }
    last.expect("some executor")
}

fn still_works(engine: &Engine) {
    let rows = [[1u8, 2], [3, 4]];
    let samples = rows.each_ref().map(|row| SampleView::from_slice(row, &[2]).unwrap());
    let batch = engine.assemble(&samples, &Collate::stack()).unwrap();
    assert_eq!(batch.data().as_slice::<u8>().unwrap(), [1, 2, 3, 4]);
}

fn check(shapes: &[&[i64]], collate: &Collate, is: Is, text: &str) -> Error {
    let samples: Vec<_> = shapes.iter().map(|shape| Sample::new(DType::U8, shape, 1)).collect();
    let error = refused(&views(&samples), collate);
    assert_eq!((variant(&error), error.to_string().as_str()), (is, text));
    error
}

fn error_values(error: &Error) -> (Option<usize>, &ErrorValue, &ErrorValue, usize) {
    let mismatch: &Mismatch = error.mismatch().expect("a mismatch");
    (mismatch.index, &mismatch.expected, &mismatch.got, mismatch.count)
}

fn shape(dims: &[i64]) -> ErrorValue {
    ErrorValue::from(dims)
}

#[test]
fn empty_lists() {
    for collate in [
        Collate::stack(),
        Collate::concat(0),
        Collate::ragged(Ragged::new()),
        Collate::pad(Pad::new()),
    ] {
        check(&[], &collate, Is::Empty, "cannot assemble an empty list of samples");
    }
}

#[test]
fn shapes_that_differ() {
    let error = check(
        &[&[2, 4], &[2, 4], &[2, 3]],
        &Collate::stack(),
        Is::Shape,
        "sample 2: expected shape (2, 4), got (2, 3); Collate::pad takes samples of different shapes",
    );
    assert_eq!(error_values(&error), (Some(2), &shape(&[2, 4]), &shape(&[2, 3]), 1));
    let hint = "samples of one batch have equal rank";
    for collate in [
        Collate::stack(),
        Collate::concat(0),
        Collate::ragged(Ragged::new()),
        Collate::pad(Pad::new()),
    ] {
        let text = format!("sample 1: expected shape (4,), got (); {hint}");
        let error = check(&[&[4], &[]], &collate, Is::Shape, &text);
        assert_eq!(error_values(&error), (Some(1), &shape(&[4]), &shape(&[]), 1));
    }
    for (collate, first, second) in [
        (Collate::concat(0), [2, 4], "(2, 5)"),
        (Collate::concat(-1), [2, 4], "(3, 4)"),
        (Collate::ragged(Ragged::new()), [2, 4], "(2, 5)"),
    ] {
        let other = if second == "(2, 5)" { [2, 5] } else { [3, 4] };
        let text = format!(
            "sample 1: expected shape (2, 4), got {second}; only the joined dim may differ"
        );
        check(&[&first, &other], &collate, Is::Shape, &text);
    }
    check(
        &[&[2, 4], &[3, 5]],
        &Collate::pad(Pad::new().dims([0])),
        Is::Shape,
        "sample 1: expected shape (2, 4), got (3, 5); name dim 1 in Pad::dims to pad it too",
    );
}

#[test]
fn three_offenders_then_the_count() {
    let error = check(
        &[&[2], &[3], &[2], &[4], &[5]],
        &Collate::stack(),
        Is::Shape,
        "sample 1: expected shape (2,), got (3,); sample 3: got (4,); sample 4: got (5,); \
         Collate::pad takes samples of different shapes",
    );
    assert_eq!(error_values(&error).3, 3);
    let error = check(
        &[&[2], &[3], &[2], &[4], &[5], &[6], &[0]],
        &Collate::stack(),
        Is::Shape,
        "sample 1: expected shape (2,), got (3,); sample 3: got (4,); sample 4: got (5,); \
         5 samples differ in all; Collate::pad takes samples of different shapes",
    );
    let mismatch = error.mismatch().unwrap();
    assert_eq!((mismatch.count, mismatch.others.len(), mismatch.path.as_str()), (5, 2, ""));
    assert_eq!(mismatch.others[1], (4, shape(&[5])));
}

#[test]
fn samples_without_dims() {
    for collate in [Collate::concat(0), Collate::ragged(Ragged::new())] {
        let text = "sample 0: expected at least one dim, got shape (); Collate::stack takes samples without dims";
        check(&[&[], &[]], &collate, Is::Shape, text);
    }
}

#[test]
fn samples_without_dims_of_a_list_with_others() {
    let (row, number) = ([1f32, 2.0, 3.0], [4f32]);
    let views = [
        SampleView::from_slice(&row, &[3]).unwrap(),
        SampleView::from_slice(&number, &[]).unwrap(),
    ];
    let list: SampleList<'_> = views.into_iter().collect();
    let taken = list.take([1]).unwrap();
    for collate in [Collate::concat(0), Collate::ragged(Ragged::new())] {
        let error = Plan::new(&taken, &collate).unwrap_err();
        assert!(matches!(&error, Error::Shape(_)), "{error}");
    }
    for dim in [5, -2] {
        let rows = list.take([0]).unwrap();
        let error = Plan::new(&rows, &Collate::concat(dim)).unwrap_err();
        assert!(error.to_string().contains("samples of 1 dims"), "{error}");
    }
}

#[test]
fn dtypes_that_differ() {
    let samples =
        [DType::U8, DType::U8, DType::F32, DType::BF16, DType::U8, DType::I64, DType::Bool]
            .map(|dtype| Sample::new(dtype, &[3], 0));
    let error = refused(&views(&samples), &Collate::stack());
    assert_eq!(
        error.to_string(),
        "sample 2: expected uint8, got float32; sample 3: got bfloat16; sample 5: got int64; \
         4 samples differ in all; .cast(DType) casts on the way"
    );
    assert_eq!(variant(&error), Is::DType);
    assert_eq!(
        error_values(&error),
        (Some(2), &ErrorValue::DType(DType::U8), &ErrorValue::DType(DType::F32), 4)
    );
}

#[test]
fn dtypes_that_are_only_moved() {
    let moved: Vec<DType> =
        DType::ALL.iter().copied().filter(|dtype| !dtype.is_arithmetic()).collect();
    assert_eq!(moved.len(), 11);
    let tail = "complex and smaller dtypes, and float8 but for e4m3fn and e5m2, are moved, never cast or transformed";
    let takes =
        "bool, an integer, float16, bfloat16, float32, float64, float8_e4m3fn or float8_e5m2";
    for dtype in moved {
        let samples = [Sample::new(DType::F32, &[2], 0), Sample::new(dtype, &[2], 0)];
        let error = refused(&views(&samples), &Collate::stack().cast(DType::F32));
        assert_eq!(error.to_string(), format!("sample 1: expected {takes}, got {dtype}; {tail}"));
        assert_eq!(variant(&error), Is::DType);
        let error = refused(
            &views(&samples[1..]),
            &Collate::ragged(Ragged::new()).transform(Transform::new().scale(2.0)),
        );
        assert_eq!(error.to_string(), format!("sample 0: expected {takes}, got {dtype}; {tail}"));
        let error = refused(&views(&samples[..1]), &Collate::stack().cast(dtype));
        assert_eq!(
            error.to_string(),
            format!("sample 0: expected {takes}, got a cast to {dtype}; {tail}")
        );
    }
}

#[test]
fn only_float8_saturates() {
    let samples = [Sample::new(DType::F32, &[2], 0)];
    for collate in [Collate::stack(), Collate::concat(0), Collate::ragged(Ragged::new())] {
        let text = "saturate is for batches of float8_e4m3fn or float8_e5m2, not of ";
        let error = refused(&views(&samples), &collate.clone().saturate());
        assert_eq!((variant(&error), error.to_string()), (Is::Argument, format!("{text}float32")));
        for dtype in [DType::U8, DType::F16, DType::F64] {
            let asked = collate.clone().cast(dtype).saturate();
            let error = refused(&views(&samples), &asked);
            assert_eq!(error.to_string(), format!("{text}{dtype}"));
            assert_eq!(asked.check_saturate().unwrap_err(), error);
        }
        let fits = collate.clone().cast(DType::F8E5M2).saturate();
        assert_eq!(fits.check_saturate(), Ok(()));
        assert!(Plan::new(&views(&samples)[..], &fits).is_ok());
    }
}

#[test]
fn moved_dtypes_are_listed_and_counted() {
    let dtypes = [DType::F32, DType::C64, DType::C64, DType::F32, DType::C128, DType::F8E4M3];
    let samples = dtypes.map(|dtype| Sample::new(dtype, &[2], 0));
    let error = refused(&views(&samples), &Collate::stack().cast(DType::F32));
    let mismatch = error.mismatch().unwrap();
    assert_eq!((mismatch.index, mismatch.count), (Some(1), 4), "{error}");
    assert_eq!(mismatch.others, [(2, DType::C64.into()), (4, DType::C128.into())], "{error}");
}

#[test]
fn dims_that_are_not_there() {
    check(
        &[&[2, 3]],
        &Collate::concat(2),
        Is::Argument,
        "dim=2 for samples of 2 dims: pass one of -2 to 1",
    );
    check(
        &[&[2, 3]],
        &Collate::concat(-3),
        Is::Argument,
        "dim=-3 for samples of 2 dims: pass one of -2 to 1",
    );
    check(
        &[&[2, 3]],
        &Collate::concat(i64::MIN),
        Is::Argument,
        "dim=-9223372036854775808 for samples of 2 dims: pass one of -2 to 1",
    );
    check(
        &[&[2]],
        &Collate::pad(Pad::new().dims([1])),
        Is::Argument,
        "dims=1 for samples of 1 dims: pass one of -1 to 0",
    );
    let twice = Collate::pad(Pad::new().dims([0, -2]));
    check(&[&[2, 3]], &twice, Is::Argument, "dims names dim 0 twice");
    let permute = |order: &[i64]| Collate::stack().transform(Transform::new().permute(order));
    check(
        &[&[2, 3]],
        &permute(&[0]),
        Is::Argument,
        "permute=[0] is not an order of 2 dims: name each of them once",
    );
    check(
        &[&[2, 3]],
        &permute(&[0, 0]),
        Is::Argument,
        "permute=[0, 0] is not an order of 2 dims: name each of them once",
    );
    check(
        &[&[2, 3]],
        &permute(&[0, 1, -1]),
        Is::Argument,
        "permute=[0, 1, -1] is not an order of 2 dims: name each of them once",
    );
    check(
        &[&[2, 3]],
        &permute(&[0, 2]),
        Is::Argument,
        "permute=2 for samples of 2 dims: pass one of -2 to 1",
    );
    check(
        &[&[2, 3]],
        &Collate::ragged(Ragged::new()).transform(Transform::new().permute([1, 0])),
        Is::Argument,
        "a ragged batch joins along dim 0, so permute must leave dim 0 first",
    );
}

#[test]
fn channels_that_do_not_fit() {
    let three = || Transform::new().mean([1.0, 2.0, 3.0]);
    let hint = "channel_dim must say which dim of shape";
    for shape in ["(3, 3)", "(2, 4)"] {
        let text = format!("mean or std has 3 entries; {hint} {shape} they belong to");
        let dims = if shape == "(3, 3)" { [3, 3] } else { [2, 4] };
        check(&[&dims], &Collate::stack().transform(three()), Is::Argument, &text);
    }
    let text = format!("mean or std has 3 entries; {hint} (3, 2) they belong to");
    for collate in
        [Collate::ragged(Ragged::new()), Collate::concat(-2), Collate::pad(Pad::new().dims([0]))]
    {
        check(&[&[3, 2]], &collate.transform(three()), Is::Argument, &text);
    }
    let collate = Collate::pad(Pad::new()).transform(three().channel_dim(-1));
    let tail = "mean and std have one entry for each channel";
    let text = format!("sample 1: expected 3 channels along dim 1, got shape (2, 4); {tail}");
    check(&[&[2, 3], &[2, 4]], &collate, Is::Shape, &text);
    let collate = Collate::stack().transform(three().channel_dim(2));
    check(
        &[&[2, 3]],
        &collate,
        Is::Argument,
        "channel_dim=2 for samples of 2 dims: pass one of -2 to 1",
    );
    let collate = Collate::stack().transform(three().std([1.0, 2.0]));
    check(&[&[2, 3]], &collate, Is::Argument, "std has 2 entries where mean or std has 3");
    let collate =
        Collate::stack().transform(Transform::new().mean([1.0, 2.0]).std([1.0, 2.0, 3.0]));
    check(&[&[2, 3]], &collate, Is::Argument, "mean has 2 entries where mean or std has 3");
}

#[test]
fn transforms_of_finite_coefficients() {
    let (nan, infinite) = (f64::NAN, f64::INFINITY);
    for (scale, mean, std, channel) in [
        (1.0, [0.0, 0.0], [1.0, 0.0], 1),
        (1.0, [0.0, 5.0], [1.0, -0.0], 1),
        (nan, [0.0, 0.0], [1.0, 1.0], 0),
        (infinite, [0.0, 0.0], [1.0, 1.0], 0),
        (1.0, [0.0, nan], [1.0, 1.0], 1),
        (1.0, [-infinite, 0.0], [1.0, 1.0], 0),
        (1.0, [0.0, 0.0], [1.0, nan], 1),
        (1e300, [0.0, 0.0], [1.0, 1e-300], 1),
        (1.0, [1e300, 0.0], [1e-300, 1.0], 0),
    ] {
        let transform = Transform::new().scale(scale).mean(mean).std(std);
        let text = format!(
            "scale={scale}, mean={} and std={} of channel {channel} give no finite factor and offset",
            mean[channel], std[channel]
        );
        check(&[&[2, 3]], &Collate::stack().transform(transform), Is::Argument, &text);
    }
}

#[test]
fn transforms_beyond_float32() {
    for (scale, mean, std) in
        [(1e39, 0.0, 1.0), (1.0, -1e39, 1.0), (1.0, 0.0, 1e-39), (1e-46, 0.0, 1.0)]
    {
        let transform = Transform::new().scale(scale).mean([mean]).std([std]);
        let stack = Collate::stack().transform(transform);
        let (factor, offset) = (scale / std, 0.0 - mean / std);
        let text = format!(
            "the factor {factor:e} and the offset {offset:e} of channel 0 are beyond float32, in which they are applied; \
             float64 samples or results have them applied in float64"
        );
        check(&[&[2, 3]], &stack, Is::Argument, &text);
        let wide = stack.cast(DType::F64);
        let batch = Engine::host().assemble(&[&[0.0f32, 1.0][..]], &wide).unwrap();
        assert!(batch.data().as_slice::<f64>().unwrap().iter().all(|value| value.is_finite()));
    }
}

#[test]
fn padding_that_does_not_fit() {
    let pad = |pad: Pad| Collate::pad(pad);
    check(
        &[&[2, 3]],
        &pad(Pad::new().sides([Side::Left])),
        Is::Argument,
        "side has 1 entries for samples of 2 dims",
    );
    check(
        &[&[2, 3]],
        &pad(Pad::new().sizes([None; 3])),
        Is::Argument,
        "size has 3 entries for samples of 2 dims",
    );
    check(
        &[&[2]],
        &pad(Pad::new().multiples_of([])),
        Is::Argument,
        "multiple_of has 0 entries for samples of 1 dims",
    );
    check(&[&[2]], &pad(Pad::new().size(-1)), Is::Argument, "size=-1 is negative");
    check(
        &[&[2]],
        &pad(Pad::new().multiple_of(0)),
        Is::Argument,
        "multiple_of must be at least 1, got 0",
    );
    check(
        &[&[2]],
        &pad(Pad::new().multiple_of(-4)),
        Is::Argument,
        "multiple_of must be at least 1, got -4",
    );
    let error = check(
        &[&[2, 3], &[2, 5], &[2, 4]],
        &pad(Pad::new().dims([1]).size(4)),
        Is::Shape,
        "sample 1: expected at most shape (2, 4), got shape (2, 5); Pad::truncate(true) cuts what does not fit",
    );
    assert_eq!(error_values(&error).0, Some(1));
    check(
        &[&[2]],
        &pad(Pad::new().size(i64::MAX).multiple_of(2)),
        Is::TooLarge,
        "size 9223372036854775807 rounded up to 2 is beyond 64 bits",
    );
}

#[test]
fn values_that_a_dtype_cannot_hold() {
    for (value, dtype) in [
        (Scalar::from(256), DType::U8),
        (Scalar::from(-1), DType::U64),
        (Scalar::from(u64::MAX), DType::I64),
        (Scalar::from(2), DType::Bool),
        (Scalar::from(0.5), DType::I32),
        (Scalar::from(f64::NAN), DType::I64),
        (Scalar::from(f64::INFINITY), DType::U8),
        (Scalar::from(70_000), DType::F16),
        (Scalar::from(1e300), DType::F32),
        (Scalar::Complex(0.0, 1.0), DType::F64),
    ] {
        let samples = [Sample::new(dtype, &[2], 0)];
        let error = refused(&views(&samples), &Collate::pad(Pad::new().value(value)));
        assert_eq!(
            error,
            Error::argument(format!("value={value} is not representable in {dtype}"))
        );
    }
    // Padding has the dtype of the result.
    let samples = [Sample::new(DType::U8, &[2], 0)];
    let collate = Collate::pad(Pad::new().value(256)).cast(DType::I16);
    assert!(Plan::new(&views(&samples), &collate).is_ok());
    // The padding of a dtype without a zero is its smallest number.
    let samples = [Sample::new(DType::F8E8M0FNU, &[1], 9)];
    let views = views(&samples);
    let batch = Engine::host().assemble(&views, &Collate::pad(Pad::new().size(2))).unwrap();
    assert_eq!(crate::common::runner::bytes_of(batch.data()), [9, 0]);
    assert_eq!(variant(&refused(&views, &Collate::pad(Pad::new().value(-1)))), Is::Argument);
}

#[test]
fn samples_elsewhere() {
    let layout = Layout::compact(DType::U8, &[2, 4]).unwrap();
    // SAFETY: the address is never read: the engine refuses memory of a device.
    #[allow(unsafe_code)]
    let there = |ordinal| unsafe {
        SampleView::from_raw_parts(
            std::ptr::null(),
            DType::U8,
            Device::Cuda(ordinal),
            layout.clone(),
        )
    };
    let here = Sample::new(DType::U8, &[2, 4], 0);
    let hint = "samples of one batch are all on the host or all on one device";
    let error = refused(&[here.view(), there(0), there(1)], &Collate::stack());
    let text = format!("sample 1: expected cpu, got cuda:0; sample 2: got cuda:1; {hint}");
    assert_eq!((variant(&error), error.to_string()), (Is::Device, text));
    let error = refused(&[there(0), there(0), there(0), there(1), here.view()], &Collate::stack());
    assert_eq!(
        error_values(&error),
        (Some(3), &ErrorValue::from("cuda:0"), &ErrorValue::from("cuda:1"), 2)
    );
    let error = refused(&[there(1)], &Collate::stack().device(Device::Cuda(0)));
    assert_eq!(
        error_values(&error),
        (Some(0), &ErrorValue::from("cuda:0"), &ErrorValue::from("cuda:1"), 1)
    );
    #[cfg(not(feature = "cuda"))]
    for (samples, collate) in [
        (here.view(), Collate::stack().device(Device::Cuda(3))),
        (here.view(), Collate::stack().device(Device::Pinned)),
        (there(0), Collate::stack()),
        (there(0), Collate::stack().device(Device::Cpu)),
    ] {
        let error = refused(&[samples], &collate);
        assert_eq!(variant(&error), Is::NoDriver);
        assert!(
            error.to_string().contains("this build of windrow works on the host only"),
            "{error}"
        );
    }
    assert!(Plan::new(&[here.view()], &Collate::stack().device(Device::Cpu)).is_ok());
}

/// A sample of many elements that all are in one place.
fn vast(shape: &[i64]) -> SampleView<'static> {
    SampleView::with_strides(&[7u8], shape, &vec![0; shape.len()]).unwrap()
}

#[test]
fn threads_without_end() {
    let engine = Engine::builder().threads(usize::MAX).build().unwrap();
    assert_eq!(engine.num_threads(), Engine::MAX_THREADS);
}

#[test]
fn launches_without_a_block() {
    let none = || RunOptions::default().max_blocks(0);
    let (row, mut copy) = ([1u8, 2], [7u8; 2]);
    let sources = [SampleView::from_slice(&row, &[2]).unwrap()];
    for (_, engine) in runner::runner().engines() {
        let plan = Plan::new(&sources, &Collate::stack()).unwrap();
        let error = engine.run_with(plan, none()).unwrap_err();
        assert!(matches!(error, Error::Argument(_)), "{error}");
        let mut dsts = [Target::from_slice(&mut copy, &[2]).unwrap()];
        let options = CopyOptions::new().run(none());
        let error = engine.copy_many_with(&mut dsts, &sources, options).unwrap_err();
        assert!(matches!(error, Error::Argument(_)), "{error}");
        still_works(engine);
    }
    assert_eq!(copy, [7; 2]);
}

#[test]
fn batches_beyond_64_bits_or_all_memory() {
    let half = vast(&[1 << 61, 2]);
    let error = refused(&[half.clone(), half.clone()], &Collate::stack());
    assert_eq!(variant(&error), Is::TooLarge);
    assert_eq!(error.to_string(), "shape (2, 2305843009213693952, 2) of uint8 is beyond 64 bits");
    let error = refused(&[half.clone(), half.clone()], &Collate::concat(1).cast(DType::F64));
    assert_eq!(variant(&error), Is::TooLarge);
    let long = vast(&[i64::MAX]);
    let error = refused(&[long.clone(), long], &Collate::concat(0));
    assert_eq!(error.to_string(), "the lengths add up to more than 64 bits hold");
    let error = refused(&[vast(&[1 << 31])], &Collate::ragged(Ragged::new().offsets(DType::I32)));
    assert_eq!(variant(&error), Is::TooLarge);
    let text = "offsets up to 2147483648 do not fit in int32; ask for int64 offsets, or join fewer samples";
    assert_eq!(error.to_string(), text);

    let error = refused(&[half], &Collate::stack());
    assert_eq!(error, Error::OutOfMemory { bytes: 1 << 62 });
    assert_eq!(
        error.to_string(),
        "could not allocate 4611686018427387904 bytes for the batch: reduce the batch size or free other batches"
    );
    let small = SampleView::from_slice(&[1u8], &[1]).unwrap();
    let error = refused(&[small], &Collate::pad(Pad::new().size(1 << 59).mask(Mask::Real)));
    assert_eq!(variant(&error), Is::OutOfMemory);
}

#[test]
fn paths_are_named() {
    let samples = [Sample::new(DType::U8, &[2], 0), Sample::new(DType::U8, &[3], 0)];
    let list = samples.iter().map(Sample::view).collect();
    let stack = Collate::stack();
    let leaf =
        windrow::plan::Leaf { samples: &list, collate: &stack, path: "camera.front", out: None };
    let error = Plan::for_leaves(&[leaf]).unwrap_err();
    assert_eq!(error.mismatch().unwrap().path, "camera.front");
    let text = "sample 1 at \"camera.front\": expected shape (2,), got (3,); \
                Collate::pad takes samples of different shapes";
    assert_eq!(error.to_string(), text);
    let concat = Collate::concat(5);
    let leaf = windrow::plan::Leaf { collate: &concat, ..leaf };
    let error = Plan::for_leaves(&[leaf]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "at \"camera.front\": dim=5 for samples of 1 dims: pass one of -1 to 0"
    );
}

#[test]
fn names_that_are_not() {
    let text = |error: Error| error.to_string();
    for name in ["cuda:x", "gpu", "mps", "cpu:1", "cuda:-1", ""] {
        let expected =
            format!(r#"device must be "cpu", "pinned", "cuda" or "cuda:N", got {name:?}"#);
        assert_eq!(text(name.parse::<Device>().unwrap_err()), expected);
    }
    assert_eq!("cpu:0".parse::<Device>().unwrap(), Device::Cpu);
    assert!(text("top".parse::<Side>().unwrap_err()).ends_with("got \"top\""));
    assert!(text("all".parse::<Mask>().unwrap_err()).ends_with("got \"all\""));
    for &dtype in DType::ALL {
        assert_eq!(dtype.name().parse::<DType>().unwrap(), dtype);
    }
    for device in [Device::Cpu, Device::Pinned, Device::Cuda(7)] {
        assert_eq!(device.to_string().parse::<Device>().unwrap(), device);
    }
    for (name, side) in [("right", Side::Right), ("left", Side::Left), ("center", Side::Center)] {
        assert_eq!((side.to_string(), name.parse::<Side>().unwrap()), (name.to_owned(), side));
    }
    for (name, mask) in [("real", Mask::Real), ("pad", Mask::Pad)] {
        assert_eq!(name.parse::<Mask>().unwrap(), mask);
    }
}

/// Tables whose rows are empty or all the same may have more of them than memory has addresses.
#[test]
#[cfg(not(miri))] // Miri stops where memory is refused.
fn more_rows_than_memory() {
    let element = vec![7u8];
    let count = 1i64 << 50;
    let layout = |shape: &[i64]| Layout::try_new(DType::U8, shape, Some(&[0, 1])).unwrap();
    let no_elements = Tensor::from_vec(Vec::<u8>::new(), &[count, 0]).unwrap();
    let one_row = Tensor::from_vec(element, &[1]).unwrap().view(0, layout(&[count, 1])).unwrap();
    for table in [&no_elements, &one_row] {
        let rows = SampleList::rows(table).unwrap();
        let bytes = 8 << 50;
        for engine in [Engine::host(), Engine::reference()] {
            for collate in
                [Collate::stack(), Collate::ragged(Ragged::new()), Collate::pad(Pad::new())]
            {
                let error = engine.assemble(&rows, &collate).unwrap_err();
                assert_eq!(error, Error::OutOfMemory { bytes });
            }
        }
        let mut grown = rows.clone();
        assert_eq!(grown.reserve(1), Err(Error::OutOfMemory { bytes: bytes + 8 }));
        assert_eq!(grown.extend(&rows), Err(Error::OutOfMemory { bytes }));
        let mut few = SampleList::new();
        assert_eq!(few.extend(&rows), Err(Error::OutOfMemory { bytes }));
        assert_eq!((grown.len(), few.len()), (1 << 50, 0));
        let some = rows.take([-1, 0, count / 2]).unwrap();
        assert_eq!(Engine::host().assemble(&some, &Collate::stack()).unwrap().len(), 3);
    }
}
