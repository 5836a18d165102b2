//! Images and the like on every executor: channels moved, cut, and each with a mean and a deviation of its own.
#![cfg(not(miri))]
#![allow(clippy::cast_possible_wrap, reason = "extents of a few elements")]

use crate::common::ask::SIDES;
use crate::common::runner::{bytes_of, swept};
use crate::common::{runner, Ask, PadAsk, Sample};
use windrow::collate::PerDim;
use windrow::{DType, Mask, Side};

#[test]
fn interleaved_channels_to_planes() {
    let sizes: &[(i64, i64)] = &[(1, 1), (3, 31), (5, 33), (16, 16), (7, 97)];
    let others = [DType::U16, DType::F32, DType::F64, DType::C64];
    for channels in [2, 3, 4, 5] {
        for (at, &(height, width)) in sizes.iter().enumerate() {
            let others = swept(3, others.into_iter().cycle().skip(at).take(4));
            for dtype in std::iter::once(DType::U8).chain(others) {
                let shape = [height, width, channels];
                let samples: Vec<_> = (0..3).map(|i| Sample::rich(dtype, &shape, i)).collect();
                let planes = Ask::stack().permute(&[2, 0, 1]);
                runner().check(&format!("{dtype} {shape:?}"), &samples, &planes);
                runner().check(
                    &format!("{dtype} {shape:?}, swapped"),
                    &samples,
                    &planes.clone().permute(&[2, 1, 0]),
                );
                if dtype.is_arithmetic() {
                    for dst in [DType::F32, DType::F16, DType::F64, DType::U8] {
                        let ask = planes.clone().cast(dst).normalised(channels as usize, 2);
                        runner().check(&format!("{dtype} {shape:?} to {dst}"), &samples, &ask);
                        runner().check(
                            &format!("{dtype} {shape:?} to {dst}, cast"),
                            &samples,
                            &planes.clone().cast(dst),
                        );
                        let ask = planes.clone().cast(dst).scaled();
                        runner().check(
                            &format!("{dtype} {shape:?} to {dst}, scaled"),
                            &samples,
                            &ask,
                        );
                    }
                }
            }
        }
    }
}

/// The pixels are enough for whole vectors, with planes of one phase and of several.
#[test]
fn bytes_of_larger_images_to_planes() {
    for channels in [3, 4] {
        for (height, width) in [(48, 64), (47, 61)] {
            let shape = [height, width, channels];
            let samples: Vec<_> = (0..3).map(|i| Sample::rich(DType::U8, &shape, i)).collect();
            let planes = Ask::stack().permute(&[2, 0, 1]);
            runner().check(&format!("{shape:?}"), &samples, &planes);
            for dst in [DType::F16, DType::BF16, DType::F32] {
                let cast = planes.clone().cast(dst);
                runner().check(&format!("{shape:?} to {dst}"), &samples, &cast);
                let ask = cast.normalised(channels as usize, 2);
                runner().check(&format!("{shape:?} to {dst}, normalised"), &samples, &ask);
            }
        }
    }
}

/// Elements of each size, of which several are read at once.
#[test]
fn larger_matrices_are_transposed() {
    for dtype in [DType::U8, DType::I16, DType::F32, DType::F64] {
        for shape in [[64, 96], [70, 90]] {
            let samples: Vec<_> = (0..3).map(|i| Sample::rich(dtype, &shape, i)).collect();
            let turned = Ask::stack().permute(&[1, 0]);
            runner().check(&format!("{dtype} {shape:?}"), &samples, &turned);
            for dst in [DType::U8, DType::F16, DType::F32, DType::I64] {
                let ask = turned.clone().cast(dst);
                runner().check(&format!("{dtype} {shape:?} to {dst}"), &samples, &ask);
            }
        }
    }
}

/// The other way round, with more pixels than are read at once.
#[test]
fn planes_to_interleaved_channels() {
    let dtypes = [DType::U8, DType::U16, DType::F32, DType::F64, DType::C64];
    for channels in [2, 3, 4, 5] {
        let sizes = [(1, 1), (3, 31), (16, 16), (1, 257), (7, 97)];
        for (at, (height, width)) in sizes.into_iter().enumerate() {
            for dtype in swept(3, dtypes.into_iter().cycle().skip(at).take(5)) {
                let shape = [channels, height, width];
                let samples: Vec<_> = (0..3).map(|i| Sample::rich(dtype, &shape, i)).collect();
                let pixels = Ask::stack().permute(&[1, 2, 0]);
                runner().check(&format!("{dtype} {shape:?}"), &samples, &pixels);
                for dst in [DType::U8, DType::F16, DType::F32, DType::F64] {
                    if dtype.is_arithmetic() {
                        let cast = pixels.clone().cast(dst);
                        runner().check(&format!("{dtype} {shape:?} to {dst}"), &samples, &cast);
                        let ask = cast.normalised(channels as usize, 0);
                        runner().check(
                            &format!("{dtype} {shape:?} to {dst}, affine"),
                            &samples,
                            &ask,
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn planes_padded_and_cropped() {
    for channels in 2..=4 {
        for side in SIDES {
            let shapes = [[9, 40, channels], [12, 33, channels], [4, 5, channels]];
            let samples: Vec<_> =
                shapes.iter().map(|shape| Sample::rich(DType::U8, shape, 1)).collect();
            for size in [None, Some(8), Some(35), Some(0)] {
                let pad = PadAsk {
                    side: PerDim::Each(vec![side, SIDES[(side as usize + 1) % 3], side]),
                    size: PerDim::Each(vec![size, size, None]),
                    truncate: true,
                    mask: Some(Mask::Pad),
                    ..PadAsk::default()
                };
                for dst in [DType::U8, DType::F16, DType::F32] {
                    let ask = Ask::pad(pad.clone()).cast(dst).permute(&[2, 0, 1]);
                    runner().check(&format!("{ask:?}"), &samples, &ask);
                    let ask = ask.normalised(channels as usize, 2);
                    runner().check(&format!("{ask:?}"), &samples, &ask);
                }
            }
        }
    }
}

#[test]
fn channels_cut_and_padded() {
    for dim in [0, 1, 2] {
        let mut shape = [4, 6, 5];
        shape[dim] = 3;
        let samples: Vec<_> = (0..2).map(|i| Sample::rich(DType::I16, &shape, i)).collect();
        for (size, side) in [
            (2, Side::Left),
            (2, Side::Right),
            (1, Side::Center),
            (5, Side::Left),
            (4, Side::Center),
        ] {
            let mut sizes = vec![None; 3];
            sizes[dim] = Some(size);
            let pad = PadAsk::cut(side, PerDim::Each(sizes));
            for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
                let ask = Ask::pad(pad.clone())
                    .cast(DType::F32)
                    .normalised(3, dim as i64)
                    .permute(&order);
                runner().check(&format!("{ask:?}"), &samples, &ask);
            }
        }
    }
}

#[test]
fn channels_cut_and_padded_of_short_rows() {
    // Pixels upwards, mirrored, and planes, with equal steps from one channel to the next.
    let layouts = [([5, 20, 3], [64, 3, 1]), ([5, 20, 3], [60, -3, 1]), ([5, 20, 3], [60, 1, 20])];
    for (shape, strides) in layouts {
        let samples = [1, 2].map(|seed| Sample::strided(DType::I16, &shape, &strides, seed));
        for size in [1, 3, 4, 5, 6, 9] {
            for side in SIDES {
                let pad = PadAsk::cut(side, PerDim::Each(vec![Some(size), None, None]));
                for dst in [DType::F32, DType::I16] {
                    let ask = Ask::pad(pad.clone()).cast(dst);
                    runner().check(&format!("{strides:?}, {ask:?}"), &samples, &ask);
                    let ask = ask.normalised(5, 0);
                    runner().check(&format!("{strides:?}, {ask:?}"), &samples, &ask);
                }
            }
        }
    }
}

#[test]
fn long_rows_of_channels_cut_and_padded() {
    // The channels are in one row, and neighbours of short rows.
    for (dim, shape) in [(1, [3, 40]), (0, [40, 3])] {
        let samples = [1, 2].map(|seed| Sample::rich(DType::I16, &shape, seed));
        for size in [9, 21, 38, 39, 41, 50] {
            for side in SIDES {
                let mut sizes = vec![None; 2];
                sizes[dim] = Some(size);
                let pad = PadAsk::cut(side, PerDim::Each(sizes));
                for dst in [DType::F32, DType::F16] {
                    let ask = Ask::pad(pad.clone()).cast(dst).normalised(40, dim as i64);
                    runner().check(&format!("{ask:?}"), &samples, &ask);
                }
            }
        }
    }
}

#[test]
fn channels_of_many() {
    for channels in [1, 2, 7, 8, 9, 31, 32, 33, 100, 257] {
        for (dim, shape) in [(0, [channels, 5, 3]), (1, [4, channels, 3]), (2, [3, 4, channels])] {
            let samples = [Sample::rich(DType::U8, &shape, 0), Sample::rich(DType::U8, &shape, 9)];
            for dst in [DType::F32, DType::F16, DType::F64] {
                let ask = Ask::stack().cast(dst).normalised(channels as usize, dim);
                runner().check(&format!("{shape:?}, {dst}"), &samples, &ask);
                runner().check(
                    &format!("{shape:?}, {dst}, turned"),
                    &samples,
                    &ask.permute(&[1, 2, 0]),
                );
            }
        }
    }
}

/// The order of the samples decides nothing: the channels are along a dim that no sample may differ in.
#[test]
fn channels_without_a_dim_are_along_the_one_that_fits_all_samples() {
    let (_, engine) = &runner().engines()[0];
    for shapes in [[[4, 3], [3, 3]], [[3, 3], [4, 3]]] {
        let samples = shapes.map(|shape| Sample::rich(DType::U8, &shape, 0));
        let views = crate::common::sample::views(&samples);
        let dims = PadAsk { dims: Some(vec![0]), ..PadAsk::default() };
        for ask in [Ask::ragged(), Ask::concat(-2), Ask::side(Side::Left), Ask::pad(dims)] {
            let named = ask.cast(DType::F32).normalised(3, 1);
            let unnamed = Ask { channel_dim: None, ..named.clone() };
            let [want, got] = [named, unnamed]
                .map(|ask| bytes_of(engine.assemble(&views, &ask.collate()).unwrap().data()));
            assert_eq!(want, got);
        }
    }
}

#[test]
fn one_mean_or_one_deviation_for_many_channels() {
    let samples = [Sample::rich(DType::U8, &[4, 5, 3], 0), Sample::rich(DType::U8, &[4, 5, 3], 9)];
    let both = Ask::stack().cast(DType::F32).normalised(3, 2);
    for ask in [
        Ask { mean: vec![0.485], ..both.clone() },
        Ask { mean: vec![], ..both.clone() },
        Ask { std: vec![0.229], ..both.clone() },
        Ask { std: vec![], ..both },
    ] {
        runner().check(&format!("{ask:?}"), &samples, &ask);
    }
}
