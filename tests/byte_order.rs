//! Samples in the byte order of other machines: what their native twins give, by every executor of the host.
#![allow(unsafe_code)] // Samples at raw addresses.

use windrow::plan::Target;
use windrow::{
    Collate, DType, Device, Engine, Error, Layout, Mask, Pad, Ragged, SampleList, SampleView, Side,
    Transform,
};

/// Bytes of samples of these shapes, in native order and in the other.
fn bytes(dtype: DType, shapes: &[&[i64]]) -> Vec<[Vec<u8>; 2]> {
    let part = match dtype {
        DType::C64 => 4,
        DType::C128 => 8,
        dtype => dtype.size(),
    };
    let sample = |(seed, shape): (usize, &&[i64])| {
        let count = shape.iter().product::<i64>() as usize * dtype.size();
        let native: Vec<u8> = (0..count).map(|i| ((i + seed) * 7 % 61) as u8).collect();
        let mut other = native.clone();
        other.chunks_mut(part).for_each(<[u8]>::reverse);
        [native, other]
    };
    shapes.iter().enumerate().map(sample).collect()
}

fn view<'a>(bytes: &'a [u8], dtype: DType, shape: &[i64]) -> SampleView<'a> {
    let layout = Layout::compact(dtype, shape).unwrap();
    assert_eq!(layout.numel() as usize * dtype.size(), bytes.len());
    // SAFETY: as many elements.
    unsafe { SampleView::from_raw_parts(bytes.as_ptr(), dtype, Device::Cpu, layout) }
}

const SWAPPED: [DType; 11] = [
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::F16,
    DType::F32,
    DType::F64,
    DType::C64,
    DType::C128,
];

#[test]
fn every_form_on_every_executor() {
    let uneven: &[&[i64]] = &[&[3, 4], &[0, 4], &[40, 4], &[1, 4]];
    let even: &[&[i64]] = &[&[20, 3], &[20, 3]];
    let planes = || Transform::new().permute([1, 0]);
    for dtype in SWAPPED {
        let mut cases = vec![
            (uneven, Collate::ragged(Ragged::new().batch_index())),
            (uneven, Collate::concat(0)),
            (uneven, Collate::pad(Pad::new().side(Side::Center).mask(Mask::Real))),
            (even, Collate::stack()),
            (even, Collate::stack().transform(planes())),
        ];
        if dtype.is_arithmetic() {
            for to in [DType::Bool, DType::I8, DType::U32, DType::I64, DType::F16, DType::F64] {
                cases.push((uneven, Collate::ragged(Ragged::new()).cast(to)));
                cases.push((even, Collate::stack().transform(planes()).cast(to)));
            }
            let scaled = planes().scale(0.5).mean([1.0, 2.0, 3.0]);
            cases.push((even, Collate::stack().transform(scaled).cast(DType::F32)));
        }
        for (shapes, collate) in cases {
            let samples = bytes(dtype, shapes);
            let list = |is_other: fn(usize) -> bool| {
                let mut list = SampleList::new();
                for (index, (bytes, shape)) in samples.iter().zip(shapes).enumerate() {
                    let view = match is_other(index) {
                        true => view(&bytes[1], dtype.swapped().unwrap(), shape),
                        false => view(&bytes[0], dtype, shape),
                    };
                    list.push_view(&view).unwrap();
                }
                list
            };
            let want = Engine::host().assemble(&list(|_| false), &collate).unwrap();
            for engine in [Engine::host(), Engine::reference()] {
                for order in [|_| true, |index| index % 2 == 0, |index: usize| index > 2] {
                    let got = engine.assemble(&list(order), &collate).unwrap();
                    let of = |batch: &windrow::Batch| {
                        let data = batch.data().bytes().unwrap().as_slice::<u8>().unwrap().to_vec();
                        (batch.data().dtype(), batch.data().shape().to_vec(), data)
                    };
                    assert!(of(&got) == of(&want), "{dtype} {collate:?}");
                }
            }
        }
    }
}

#[test]
fn names_and_twins() {
    for &dtype in DType::ALL {
        assert!(dtype.is_native() && dtype.native() == dtype);
        let Some(swapped) = dtype.swapped() else { continue };
        assert_eq!((swapped.native(), swapped.swapped()), (dtype, Some(dtype)));
        assert_eq!(swapped.size(), dtype.size());
        assert_eq!(swapped == dtype, dtype.size() == 1);
        assert_eq!(swapped.is_arithmetic(), dtype.is_arithmetic());
        assert_eq!(swapped.is_integer(), dtype.is_integer());
        assert_eq!(swapped.is_float(), dtype.is_float());
        assert!(swapped == dtype || DType::from_name(swapped.name()).is_none());
    }
}

#[test]
fn no_batch_is_of_other_byte_order() {
    let [(native, other)] = [(DType::F32, DType::F32.swapped().unwrap())];
    let row = [0u8; 12];
    let list: SampleList<'_> = [view(&row, other, &[3])].into_iter().collect();
    let asked = Engine::host().assemble(&list, &Collate::stack().cast(other));
    let Err(Error::DType(mismatch)) = asked else { panic!("{asked:?}") };
    assert!(mismatch.to_string().contains("native byte order"), "{mismatch:?}");
    let batch = Engine::host().assemble(&list, &Collate::stack()).unwrap();
    assert_eq!(batch.data().dtype(), native);
    let mut out = [0u8; 12];
    let layout = Layout::compact(other, &[1, 3]).unwrap();
    // SAFETY: as many elements, which nothing else has.
    let mut target =
        unsafe { Target::from_raw_parts(out.as_mut_ptr(), other, Device::Cpu, layout) };
    let written = Engine::host().assemble_into(&list, &Collate::stack(), &mut target);
    let Err(Error::Layout(mismatch)) = written else { panic!("{written:?}") };
    assert!(mismatch.to_string().contains("native byte order"), "{mismatch:?}");
}
