//! Batches around the sizes at which the host executor changes its ways, and of very uneven samples.
#![cfg(not(miri))]
#![allow(clippy::cast_possible_wrap, reason = "extents of a few million elements")]

use crate::common::ask::SIDES;
use crate::common::runner::{bytes_of, swept, Frame, Runner};
use crate::common::{runner, Ask, PadAsk, Paint, Sample};
use windrow::collate::PerDim;
use windrow::tensor::Scalar;
use windrow::{Collate, DType, Engine, Pad, Side};

/// Elements of a dtype at, just below and just above a number of bytes, the first of them where a device runs alone.
fn around(bytes: i64, dtype: DType) -> impl Iterator<Item = i64> {
    let numel = bytes / dtype.size() as i64;
    swept(3, [numel, numel - 1, numel + 1].into_iter())
}

/// Bytes of output from which on there are tiles (64 KiB, 1 MiB), other threads are woken (1 MiB read and written, so
/// 512 KiB), and tiles grow (4 MiB).
const STEPS: [i64; 4] = [64 << 10, 512 << 10, 1 << 20, 4 << 20];

#[test]
fn outputs_around_every_threshold() {
    for bytes in STEPS {
        let dtypes: &[DType] =
            if bytes <= 512 << 10 { &[DType::U8, DType::F32, DType::C128] } else { &[DType::C128] };
        for &dtype in dtypes {
            for numel in around(bytes, dtype) {
                let one = [Sample::new(dtype, &[numel], 5)];
                runner().check(&format!("{numel} of {dtype} in one"), &one, &Ask::stack());
                let lengths = [numel / 2, 1, numel - numel / 2 - 1];
                let three: Vec<_> =
                    lengths.iter().map(|&n| Sample::new(dtype, &[n], n as u64)).collect();
                runner().check(&format!("{numel} of {dtype} in three"), &three, &Ask::ragged());
            }
        }
    }
}

#[test]
fn casts_and_padding_around_every_threshold() {
    for bytes in &STEPS[..3] {
        for numel in around(*bytes, DType::F64) {
            let lengths = [numel / 2, numel / 3];
            let samples: Vec<_> =
                lengths.iter().map(|&n| Sample::rich(DType::F32, &[n], n as u64)).collect();
            let ask = Ask::side(Side::Center).cast(DType::F64);
            runner().check(&format!("{numel} float64"), &samples, &ask);
            runner().check(&format!("{numel} float64, scaled"), &samples, &ask.scaled());
        }
    }
}

#[test]
fn images_cut_into_tiles() {
    for (height, width, channels) in [(150, 151, 3), (129, 257, 4), (181, 363, 2)] {
        let shape = [height, width, channels];
        let samples: Vec<_> = (0..3).map(|i| Sample::rich(DType::U8, &shape, i)).collect();
        let ask = Ask::stack().permute(&[2, 0, 1]);
        runner().check(&format!("{shape:?}"), &samples, &ask);
        runner().check(
            &format!("{shape:?}, float32"),
            &samples,
            &ask.cast(DType::F32).normalised(channels as usize, 2),
        );
    }
    let shapes = [[200, 90, 3], [90, 301, 3], [1, 1, 3]];
    let samples: Vec<_> = shapes.iter().map(|shape| Sample::rich(DType::U8, shape, 2)).collect();
    let pad = PadAsk {
        side: PerDim::Each(vec![Side::Left, Side::Center, Side::Right]),
        ..PadAsk::default()
    };
    let ask = Ask::pad(pad).cast(DType::F16).normalised(3, 2).permute(&[2, 0, 1]);
    runner().check("padded planes in tiles", &samples, &ask);
}

/// Samples of the host go to a device in chunks of 4 MiB, through four pieces of memory in turn. The fourth chunk ends within a
/// short row, whose rest begins the fifth, in the first piece.
#[cfg(feature = "cuda")]
#[test]
fn short_rows_cut_by_the_chunks_of_an_upload() {
    use windrow::{Device, SampleView};
    let Some(engine) = crate::common::device::engine() else { return };
    let pixels = Sample::strided(DType::U8, &[1000, 700, 3], &[11200, 16, 1], 1);
    let of = |views: &[SampleView<'_>], device| {
        engine.assemble(views, &Collate::stack().device(device)).unwrap()
    };
    let one = of(&[pixels.view()], Device::Cpu);
    let batch = of(&vec![pixels.view(); 9], Device::Cuda(0));
    let back = of(&[SampleView::from(batch.data())], Device::Cpu);
    let (one, back) = (one.data().as_slice::<u8>().unwrap(), back.data().as_slice::<u8>().unwrap());
    for (index, sample) in back.chunks(one.len()).enumerate() {
        let at = sample.iter().zip(one).position(|(a, b)| a != b);
        assert_eq!(at, None, "sample {index}");
    }
}

#[test]
fn many_tiny_samples() {
    let samples: Vec<_> = (0..10_000).map(|i| Sample::new(DType::U8, &[3], 3 * i)).collect();
    runner().check("10 000 rows", &samples, &Ask::stack());
    runner().check(
        "10 000 rows to float16",
        &samples,
        &Ask::stack().cast(DType::F16).normalised(3, 0),
    );
    runner().check("10 000 joined", &samples, &Ask::concat(0));
    let uneven: Vec<_> =
        (0..10_000).map(|i| Sample::new(DType::U8, &[(i % 4) as i64], i)).collect();
    runner().check("10 000 uneven", &uneven, &Ask::ragged());
    runner().check("10 000 padded", &uneven, &Ask::side(Side::Left).cast(DType::I32));
}

#[test]
fn one_huge_sample_among_tiny_ones() {
    let lengths = [3, 0, 1, 400_001, 0, 2, 5, 0];
    let samples: Vec<_> =
        lengths.iter().map(|&n| Sample::new(DType::U16, &[n], n as u64)).collect();
    runner().check("ragged", &samples, &Ask::ragged());
    let misaligned: Vec<_> =
        lengths.iter().map(|&n| Sample::misaligned(DType::U16, &[n], 3, 1)).collect();
    runner().check("ragged to float32", &misaligned, &Ask::ragged().cast(DType::F32));
    let pad = PadAsk {
        size: PerDim::All(Some(60_001)),
        truncate: true,
        side: PerDim::All(Side::Left),
        value: Scalar::Int(0xABCD),
        ..PadAsk::default()
    };
    runner().check("padded", &samples, &Ask::pad(pad));
}

#[test]
fn outputs_written_around_the_caches() {
    // 32 MiB and one element more or less, from sources and to outputs at odd addresses.
    for extra in [-1, 0, 1] {
        let numel = (32 << 20) / 16 + extra;
        let lengths = [numel / 3, 0, 1, numel - numel / 3 - 1];
        let sample = |n: i64| Sample::laid_out(DType::C128, &[n], &[1], 7, Paint::Bytes, n as u64);
        let samples: Vec<_> = lengths.iter().map(|&n| sample(n)).collect();
        let check = if extra == 0 { Runner::check } else { Runner::check_on_host };
        check(runner(), &format!("{numel} of 16 bytes"), &samples, &Ask::ragged());
    }
}

#[test]
fn rows_made_in_blocks_and_written_around_the_caches() {
    // Copied, filled and, with their mask, padded rows; then rows and planes that are computed.
    let lengths = [1 << 20, (1 << 20) - 1, 5, 0, 1000];
    let samples: Vec<_> = lengths.map(|n| Sample::new(DType::C128, &[n], n as u64)).into();
    runner().check("padded rows", &samples, &Ask::side(Side::Center));

    let shape = [699, 701, 3];
    let samples: Vec<_> = (0..3).map(|i| Sample::rich(DType::U8, &shape, i)).collect();
    let ask = Ask::stack().cast(DType::F64).normalised(3, 2);
    runner().check_on_host("rows of pixels", &samples, &ask);
    let planes = ask.permute(&[2, 0, 1]);
    runner().check_on_host("planes at odd places", &samples, &planes);
    let shape = [704, 704, 3];
    let samples: Vec<_> = (0..3).map(|i| Sample::rich(DType::U8, &shape, i)).collect();
    runner().check_on_host("planes that begin at a line", &samples, &planes);
}

#[test]
fn large_outputs_with_gaps() {
    // More than 32 MiB, filled and copied into every second element of memory that has been written to:
    // nothing of it is in whole lines.
    let lengths = [(1 << 20) + 1, 1 << 20];
    let shape = [2, (1 << 20) + 3];
    let samples = lengths.map(|n| Sample::new(DType::C128, &[n], n as u64));
    let views = crate::common::sample::views(&samples);
    let collate = Collate::pad(Pad::new().size(shape[1]).side(Side::Center).value(1));
    let expected = Engine::reference().assemble(&views, &collate).expect("a batch");
    let expected = bytes_of(expected.data());
    for (name, engine) in runner().engines().iter().filter(|(name, _)| *name != "reference") {
        let mut frame = Frame::new(DType::C128, &shape, &[2 * shape[1] + 1, 2], 0);
        engine.assemble_into(&views, &collate, &mut frame.target()).expect("a batch");
        frame.check(name, &expected);
    }
}

/// Tables of the CUDA engine have lengths in 16 bits if all of a column fit: rows, widths, heights and paddings in front,
/// by every family that reads them.
#[test]
fn lengths_around_16_bits() {
    for longest in [65_535, 65_536] {
        let lengths = [longest, 1, 0, longest - 1, 300];
        let rows = lengths.map(|n| Sample::new(DType::U8, &[n], n as u64));
        for ask in [Ask::ragged(), Ask::concat(0)].into_iter().chain(SIDES.map(Ask::side)) {
            let name = format!("{longest}, {:?}", ask.form);
            runner().check(&name, &rows, &ask);
            runner().check(&format!("{name}, cast"), &rows, &ask.cast(DType::I16));
        }
        // Long rows, long columns, and boxes of both.
        let size = |longest: [i64; 2]| {
            let sizes = [longest, [1, 1], longest.map(|extent| (extent - 1).max(1))];
            sizes.map(|[height, width]| Sample::new(DType::U8, &[height, width], height as u64))
        };
        for samples in [size([3, longest]), size([longest, 3])] {
            for side in SIDES {
                let (pad, name) = (Ask::side(side), format!("{:?}, {side:?}", samples[0].shape));
                runner().check(&name, &samples, &pad);
                runner().check(&format!("{name}, transposed"), &samples, &pad.permute(&[1, 0]));
            }
        }
    }
}

/// Numbers of rows that have a table that just goes with the parameters of a launch, one less and one more: see
/// `tables_of_lengths_fill_the_parameters` of src/cuda/launch/table_tests.rs.
#[test]
fn lengths_whose_table_fills_the_parameters() {
    let pad = Ask::pad(PadAsk { size: PerDim::All(Some(192)), ..PadAsk::default() });
    for (ask, most) in [(pad, 5344), (Ask::ragged(), 3183), (Ask::concat(0), 3205)] {
        for count in most - 1..=most + 1 {
            let row = |i: i64| Sample::new(DType::I32, &[30 + i % 32], i as u64);
            let rows: Vec<_> = (0..count).map(row).collect();
            runner().check(
                &format!("{count} rows, {:?}", ask.form),
                &rows,
                &ask.clone().cast(DType::I64),
            );
        }
    }
}
