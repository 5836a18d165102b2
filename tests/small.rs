//! A few small batches through every kind of loop on every executor: what Miri runs in four minutes.
//!
//! ```text
//! MIRIFLAGS="-Zmiri-permissive-provenance -Zmiri-tree-borrows -Zmiri-ignore-leaks" \
//!     cargo +nightly miri test --test suite small::
//! ```
//! The queues of rayon break the rules of Stacked Borrows and its threads outlive the test, hence the
//! last two flags; they are not needed for the library itself.

#[cfg(feature = "cuda")]
use std::slice::from_ref;
use std::sync::Arc;

#[cfg(feature = "cuda")]
use crate::common::device;
#[cfg(feature = "cuda")]
use crate::common::oracle;
#[cfg(feature = "cuda")]
use crate::common::placed::Copies;
use crate::common::runner::bytes_of;
#[cfg(feature = "cuda")]
use crate::common::runner::same_bytes;
use crate::common::sample::views;
use crate::common::{runner, Ask, PadAsk, Sample};
use windrow::collate::PerDim;
use windrow::{
    Collate, DType, Device, Engine, Layout, Mask, Pad, Ragged, SampleList, SampleView, Side,
};

fn samples(dtype: DType, shapes: &[&[i64]]) -> Vec<Sample> {
    shapes.iter().zip(0..).map(|(shape, seed)| Sample::rich(dtype, shape, seed)).collect()
}

#[test]
fn bytes_are_moved() {
    let uneven = samples(DType::U16, &[&[3], &[0], &[9], &[1]]);
    runner().check("ragged", &uneven, &Ask::ragged());
    runner().check("padded", &uneven, &Ask::side(Side::Center));
    let even = samples(DType::C128, &[&[2, 3], &[2, 3]]);
    runner().check("stack", &even, &Ask::stack());
    runner().check("turned", &even, &Ask::concat(1).permute(&[1, 0]));
    let odd =
        [Sample::misaligned(DType::F32, &[5], 3, 1), Sample::misaligned(DType::F32, &[5], 1, 2)];
    runner().check("misaligned", &odd, &Ask::stack());
}

#[test]
fn rows_that_follow_each_other_in_memory() {
    let memory: Vec<u16> = (0..500_000u32).map(|i| (i * 7) as u16).collect();
    // Runs of as many rows, of lengths from 0 on, and so many elements between one run and the next; those of the last two begin
    // behind rows that are not looked at.
    for (run, gap) in
        [(1, 1), (2, 3), (15, 1), (16, 1), (17, 2), (40, 1), (127, 1), (129, 1), (50_000, 0)]
    {
        let (mut rows, mut at) = (Vec::new(), 0);
        for row in 0..50_000 {
            let len = row * 5 % 7;
            at += if row % run == 0 || run > 100 && row % run < 9 { gap } else { 0 };
            // A row without elements may be anywhere.
            rows.push(if row % 14 == 0 {
                &memory[499_999..499_999]
            } else {
                &memory[at..at + len]
            });
            at += len;
        }
        let list: SampleList<'_> = rows.iter().map(|&row| SampleView::from(row)).collect();
        for threads in [1, 2] {
            let engine = Engine::builder().threads(threads).build().unwrap();
            let ragged = engine.assemble(&list, &Collate::ragged(Ragged::new())).unwrap();
            assert_eq!(ragged.data().as_slice::<u16>().unwrap(), rows.concat(), "{run} {gap}");
            let cast = engine.assemble(&list, &Collate::concat(0).cast(DType::F64)).unwrap();
            let expected: Vec<f64> = rows.concat().into_iter().map(f64::from).collect();
            assert_eq!(cast.data().as_slice::<f64>().unwrap(), expected, "{run} {gap}");
        }
    }
}

#[test]
fn strides_of_every_sign() {
    for strides in [[0, 0], [0, 1], [-4, 1], [1, -3], [2, 7]] {
        let samples = [Sample::strided(DType::I16, &[3, 4], &strides, 1)];
        runner().check(&format!("{strides:?}"), &samples, &Ask::stack());
        runner().check(&format!("{strides:?}, cast"), &samples, &Ask::stack().cast(DType::F32));
    }
}

#[test]
fn casts_and_transforms() {
    for (src, dst) in [
        (DType::U8, DType::F16),
        (DType::F64, DType::BF16),
        (DType::F16, DType::F64),
        (DType::I64, DType::U8),
        (DType::U64, DType::F16),
        (DType::Bool, DType::F32),
        (DType::F32, DType::Bool),
    ] {
        let rows = samples(src, &[&[3, 7], &[3, 7]]);
        let name = format!("{src} to {dst}");
        runner().check(&name, &rows, &Ask::stack().cast(dst));
        runner().check(&format!("{name}, scaled"), &rows, &Ask::ragged().cast(dst).scaled());
        runner().check(&format!("{name}, outer"), &rows, &Ask::stack().cast(dst).normalised(3, 0));
        runner().check(&format!("{name}, inner"), &rows, &Ask::stack().cast(dst).normalised(7, 1));
    }
}

#[test]
fn planes_and_padding() {
    let images = samples(DType::U8, &[&[2, 5, 3], &[4, 3, 3]]);
    let pad = PadAsk {
        side: PerDim::Each(vec![Side::Left, Side::Center, Side::Right]),
        size: PerDim::Each(vec![Some(3), Some(4), None]),
        truncate: true,
        mask: Some(Mask::Pad),
        ..PadAsk::default()
    };
    let ask = Ask::pad(pad).permute(&[2, 0, 1]);
    runner().check("planes", &images, &ask);
    runner().check("planes of float16", &images, &ask.cast(DType::F16).normalised(3, 2));
}

#[test]
fn nothing_at_all() {
    for shape in [&[][..], &[0], &[2, 0]] {
        let samples = samples(DType::F32, &[shape, shape]);
        runner().check(&format!("{shape:?}"), &samples, &Ask::stack());
        runner().check(&format!("{shape:?}, padded"), &samples, &Ask::side(Side::Left));
    }
}

#[test]
#[allow(unsafe_code, reason = "samples at NULL")]
fn nothing_at_no_address() {
    let layout = Layout::compact(DType::F32, &[2, 0]).expect("a sound layout");
    // SAFETY: there are no elements to be read.
    let view =
        unsafe { SampleView::from_raw_parts(std::ptr::null(), DType::F32, Device::Cpu, layout) };
    let views = vec![view; 6];
    for (name, engine) in runner().engines() {
        for collate in [Collate::stack(), Collate::concat(0), Collate::pad(Pad::new())] {
            let batch = engine.assemble(&views, &collate);
            let batch = batch.unwrap_or_else(|e| panic!("{name}, {collate:?}: {e}"));
            assert_eq!(batch.data().shape().iter().product::<i64>(), 0, "{name}, {collate:?}");
        }
    }
}

/// Samples whose addresses are on the device, by indices that are there too.
#[cfg(feature = "cuda")]
#[test]
#[allow(unsafe_code, reason = "samples and indices at addresses of the device")]
fn samples_are_chosen_on_a_device() {
    let Some(engine) = device::engine() else { return };
    let samples = samples(DType::I16, &[&[5, 3][..]; 4]);
    let copies = Copies::<device::Bytes>::new(samples.iter().map(Sample::bytes));
    let at = |(index, sample): (usize, &Sample)| {
        // SAFETY: a copy of the sample, which lives until the batches have been read.
        unsafe { sample.view_at(copies.address(index), Device::Cuda(0)) }
    };
    let list = samples.iter().enumerate().map(at).collect();
    let resident = engine.resident(list, Device::Cuda(0)).unwrap();

    let chosen = [2_i64, 0, -1, 2, 1];
    let layout = Layout::try_new(DType::I64, &[5], None).unwrap();
    // SAFETY: five numbers on the host, which live until they have been copied.
    let host = unsafe {
        SampleView::from_raw_parts(chosen.as_ptr().cast(), DType::I64, Device::Cpu, layout)
    };
    let indices = engine.assemble(from_ref(&host), &Collate::concat(0).device(Device::Cuda(0)));
    let taken = resident.take(indices.unwrap().data()).unwrap();
    let same = [2, 0, 3, 2, 1].map(|index| samples[index].clone());
    let padded = PadAsk { size: PerDim::Each(vec![Some(7), Some(3)]), ..PadAsk::default() };
    for ask in [Ask::stack(), Ask::stack().cast(DType::F32), Ask::pad(padded)] {
        let batch = engine.assemble(&taken, &ask.collate()).unwrap();
        batch.check().unwrap();
        let (want, size) = (oracle(&same, &ask), batch.data().dtype().size());
        same_bytes(&format!("{ask:?}"), size, &want.data, &bytes_of(batch.data()));
    }
}

#[test]
fn threads_write_side_by_side() {
    // More than 1 MiB read and written, in tiles of 64 KiB.
    let lengths = [(300_001, 1), (0, 2), (7, 3), (250_000, 4)];
    let samples = lengths.map(|(length, byte)| Sample::flat(length, byte));
    let samples = views(&samples);
    let want =
        bytes_of(one_thread().assemble(&samples, &Collate::ragged(Ragged::new())).unwrap().data());
    let pool = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap());
    for engine in [Engine::host_with(pool), Engine::host()] {
        let batch = engine.assemble(&samples, &Collate::ragged(Ragged::new())).unwrap();
        assert!(bytes_of(batch.data()) == want);
    }
}

fn one_thread() -> Engine {
    Engine::builder().threads(1).build().unwrap()
}
