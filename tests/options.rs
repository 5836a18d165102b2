//! Options that say what they mean in every batch, and are refused where they mean nothing.

use crate::common::{sample::views, Sample};
use windrow::batch::Fields;
use windrow::error::Hint;
use windrow::plan::{BatchShape, Target};
use windrow::{Collate, DType, Engine, Error, Mask, Pad, Plan, Ragged, Result, Transform};

fn samples(shapes: &[&[i64]]) -> Vec<Sample> {
    shapes.iter().map(|shape| Sample::new(DType::U8, shape, 1)).collect()
}

/// The batch that both the plan and the engine make, or the error that both raise.
fn spec(samples: &[Sample], collate: &Collate) -> Result<BatchShape> {
    let views = views(samples);
    let batch = Engine::host().assemble(&views, collate).map(|batch| batch.data().shape().to_vec());
    let spec = Plan::new(&views, collate).map(|plan| plan.batch_shapes()[0].clone());
    assert_eq!(batch, spec.clone().map(|spec| spec.shape().to_vec()));
    spec
}

fn refused(samples: &[Sample], collate: &Collate) -> Error {
    spec(samples, collate).expect_err("a refusal")
}

/// The same options pad the same dims, whatever the samples: one, equal ones, different ones.
#[test]
fn named_dims_do_not_depend_on_the_samples() {
    let (alike, differ) = ([[3, 30, 20], [3, 30, 20]], [[3, 30, 20], [3, 24, 20]]);
    for pad in [
        Pad::new().dims([1, 2]).multiple_of(32),
        Pad::new().dims([-1, 1]).size(32),
        Pad::new().multiples_of([1, 32, 16]),
        Pad::new().sizes([None, Some(32), Some(32)]),
        Pad::new().dims([1]).sizes([None, None, Some(32)]).multiples_of([1, 32, 1]),
    ] {
        let collate = Collate::pad(pad.mask(Mask::Real));
        for shapes in [&alike[..1], &alike, &differ] {
            let shapes: Vec<&[i64]> = shapes.iter().map(|shape| &shape[..]).collect();
            let list = samples(&shapes);
            let count = list.len() as i64;
            let batch = Engine::host().assemble(&views(&list), &collate).unwrap();
            assert_eq!(batch.data().shape(), [count, 3, 32, 32], "{collate:?}");
            assert_eq!(batch.mask().unwrap().shape(), [count, 32, 32], "{collate:?}");
            assert_eq!(batch.lengths().unwrap().shape(), [count, 2], "{collate:?}");
        }
    }
}

#[test]
fn a_difference_in_a_dim_that_is_not_named() {
    let list = samples(&[&[3, 30, 20], &[3, 30, 20], &[1, 24, 20]]);
    for pad in [
        Pad::new().dims([1, 2]),
        Pad::new().dims([]),
        Pad::new().dims([1]).size(32),
        Pad::new().multiples_of([1, 32, 1]),
        Pad::new().sizes([None, Some(32), None]),
    ] {
        let error = refused(&list, &Collate::pad(pad));
        let text = "sample 2: expected shape (3, 30, 20), got (1, 24, 20); \
                    name dim 0 in Pad::dims to pad it too";
        assert_eq!(error.to_string(), text);
        let mismatch = error.mismatch().unwrap();
        assert_eq!((mismatch.index, mismatch.hint), (Some(2), Some(Hint::PadDim(0))));
    }
    // Nothing is named: entries of None and 1 name nothing.
    for pad in [Pad::new(), Pad::new().sizes([None; 3]).multiples_of([1; 3]).multiple_of(1)] {
        assert_eq!(spec(&list, &Collate::pad(pad)).unwrap().shape(), [3, 3, 30, 20]);
    }
}

#[test]
fn the_dtype_of_a_mask_is_one_for_a_mask() {
    let list = samples(&[&[3], &[2]]);
    let text = |pad: Pad| refused(&list, &Collate::pad(pad)).to_string();
    let real = Pad::new().mask(Mask::Real);
    assert_eq!(
        text(real.clone().mask_dtype(DType::I16)),
        "mask_dtype must be bool, uint8, int32, int64, float16 or float32, got int16"
    );
    assert_eq!(text(Pad::new().mask_dtype(DType::I64)), "mask_dtype=int64, but mask is not set");
    assert!(spec(&list, &Collate::pad(Pad::new().mask_dtype(DType::Bool))).is_ok());
    assert!(spec(&list, &Collate::pad(real.mask_dtype(DType::F16))).is_ok());
}

#[test]
fn one_number_speaks_of_dims() {
    let text = |shapes: &[&[i64]], pad: Pad| match refused(&samples(shapes), &Collate::pad(pad)) {
        Error::Argument(message) => message.to_string(),
        other => panic!("{other}"),
    };
    let tail = "for samples of 2 dims: name those to pad in dims, or give one entry for each";
    for shapes in [[&[3i64, 4][..], &[3, 4]], [&[3, 4], &[2, 4]]] {
        assert_eq!(text(&shapes, Pad::new().size(5)), format!("size=5 {tail}"));
        assert_eq!(text(&shapes, Pad::new().multiple_of(2)), format!("multiple_of=2 {tail}"));
        let both = Pad::new().sizes([Some(4), None]).multiple_of(2);
        assert_eq!(text(&shapes, both), format!("multiple_of=2 {tail}"));
        let none = "size=5 is for the dims that dims names, which is empty";
        assert_eq!(text(&shapes, Pad::new().dims([]).size(5)), none);
        // Wrong by themselves, also where no dim is padded.
        let wrong = Pad::new().dims([]).multiples_of([1, 0]);
        assert_eq!(text(&shapes, wrong), "multiple_of must be at least 1, got 0");
        assert_eq!(text(&shapes, Pad::new().sizes([None, Some(-1)])), "size=-1 is negative");
    }
    assert_eq!(text(&[&[], &[]], Pad::new().size(2)), "size=2 for samples without dims");
    // Samples of one dim have only that one.
    for list in [samples(&[&[3], &[3]]), samples(&[&[3], &[2]])] {
        let spec = spec(&list, &Collate::pad(Pad::new().size(5).multiple_of(4))).unwrap();
        assert_eq!((spec.shape(), &spec.lengths_shape()[..]), (&[2, 8][..], &[2][..]));
    }
}

#[test]
fn arithmetic_on_integers_needs_a_dtype() {
    let (scale, mean, std) =
        (Transform::new().scale(0.5), Transform::new().mean([1.0]), Transform::new().std([1.0]));
    let forms = [
        Collate::stack(),
        Collate::concat(0),
        Collate::ragged(Ragged::new()),
        Collate::pad(Pad::new()),
    ];
    for &dtype in DType::ALL.iter().filter(|dtype| dtype.is_arithmetic()) {
        let list = [Sample::new(dtype, &[4], 1), Sample::new(dtype, &[4], 2)];
        for collate in &forms {
            for transform in [&scale, &mean, &std] {
                let collate = collate.clone().transform(transform.clone());
                if dtype.is_float() {
                    assert_eq!(spec(&list, &collate).unwrap().dtype, dtype);
                    continue;
                }
                let text = format!(
                    "sample 0: expected a floating-point dtype for scale, mean and std, got {dtype}; \
                     .cast(DType::F32) gives floats; an integer dtype truncates and saturates"
                );
                let error = refused(&list, &collate);
                assert!(matches!(error, Error::DType(_)), "{error:?}");
                assert_eq!(error.to_string(), text);
                for to in [DType::F32, DType::U8, dtype] {
                    assert_eq!(spec(&list, &collate.clone().cast(to)).unwrap().dtype, to);
                }
            }
            // A transform that only moves elements needs no cast.
            let permuted = collate.clone().transform(Transform::new().scale(1.0).permute([0]));
            assert_eq!(spec(&list, &permuted).unwrap().dtype, dtype);
        }
    }
}

/// Truncated and saturated, as the cast of the result.
#[test]
fn arithmetic_into_integers_that_are_asked_for() {
    let list = [Sample::new(DType::U8, &[256], 0)];
    let transform = Transform::new().scale(2.5).mean([100.0]);
    let collate = Collate::stack().cast(DType::U8).transform(transform);
    let batch = Engine::host().assemble(&views(&list), &collate).unwrap();
    let source = Engine::host().assemble(&views(&list), &Collate::stack()).unwrap();
    let cast = |x: &u8| (f32::from(*x) * 2.5 - 100.0) as u8;
    let expected: Vec<u8> = source.data().as_slice().unwrap().iter().map(cast).collect();
    assert_eq!(batch.data().as_slice::<u8>().unwrap(), expected);
}

#[test]
fn offsets_are_integers() {
    let list = samples(&[&[2], &[2]]);
    for &dtype in DType::ALL {
        let collate = Collate::ragged(Ragged::new().offsets(dtype));
        if let DType::I32 | DType::I64 = dtype {
            let batch = Engine::host().assemble(&views(&list), &collate).unwrap();
            assert_eq!(batch.offsets().unwrap().dtype(), dtype);
            continue;
        }
        let error = Error::argument(format!("offsets are int32 or int64, not {dtype}"));
        assert_eq!(refused(&list, &collate), error);
        let mut out = [0xA5u8; 4];
        let mut target = Target::from_slice(&mut out, &[4]).unwrap();
        let into: Result<Fields> =
            Engine::host().assemble_into(&views(&list), &collate, &mut target);
        assert_eq!(into.map(|_| ()), Err(error));
        assert_eq!(out, [0xA5; 4]);
    }
}

#[test]
fn dtypes_by_the_names_of_numpy() {
    let long = size_of::<std::ffi::c_long>() == 8;
    for (names, dtype) in [
        ("bool_ ? b1 <? >b1 |b1", DType::Bool),
        ("byte b i1 |i1 >i1", DType::I8),
        ("short h i2 <i2 =h", DType::I16),
        ("intc i i4 <i", DType::I32),
        ("int int_ intp longlong q p n i8 <i8", DType::I64),
        ("ubyte B u1", DType::U8),
        ("ushort H u2", DType::U16),
        ("uintc I u4", DType::U32),
        ("uint uintp ulonglong Q P N u8", DType::U64),
        ("half e f2 <e", DType::F16),
        ("single f f4 <f4 =f4 |f4", DType::F32),
        ("float double d f8", DType::F64),
        ("csingle F c8", DType::C64),
        ("complex cdouble D c16", DType::C128),
        ("long l <l", if long { DType::I64 } else { DType::I32 }),
        ("ulong L", if long { DType::U64 } else { DType::U32 }),
    ] {
        for name in names.split(' ') {
            assert_eq!(name.parse(), Ok(dtype), "{name}");
        }
    }
    let text = |name: &str| name.parse::<DType>().unwrap_err().to_string();
    for name in [">f4", ">i8", ">e", ">c16"] {
        let native = name.replace('>', "<");
        let expected = format!(
            "dtype={name:?} is big-endian; batches have the byte order of this machine: {native:?}"
        );
        assert_eq!(text(name), expected);
    }
    for name in ["fp16", "flaot32", "", "<half", "f12", "f16", "longdouble", "f4 ", "u", "<"] {
        let text = text(name);
        let names: Vec<_> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
        let choices = format!("dtype must be one of {}, or NumPy's", names.join(", "));
        assert!(text.starts_with(&choices), "{text}");
        let rest = format!("such as \"half\" or \"<f4\", got {name:?}");
        assert!(text.ends_with(&rest), "{text}");
    }
}
