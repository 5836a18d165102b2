//! Limits and rounds of moves whose elements are scaled.

#![allow(unsafe_code)] // Samples at made-up addresses.

use super::*;
use crate::collate::{Dequantize, Granularity, Scales};
use crate::plan::Moves;
use crate::tensor::{DType, Device};

const CUDA: Device = Device::Cuda(0);

/// Compact tensors of one shape, each far from all others.
fn list(
    first: usize,
    count: usize,
    dtype: DType,
    device: Device,
    shape: &[i64],
) -> SampleList<'static> {
    let mut list = SampleList::new();
    for number in first..first + count {
        let data = std::ptr::without_provenance((1 + number) << 40);
        // SAFETY: a plan neither reads nor writes.
        unsafe { list.push(data, dtype, device, shape, None) }.unwrap();
    }
    list
}

#[test]
fn limits_are_known_before_the_first_round() {
    let text = |shape: &[i64], count: usize, scale: Granularity| {
        let quantize = Quantize::new(DType::I8).scale(scale);
        let of_scales: &[i64] = if scale == Granularity::Sample { &[] } else { &shape[..1] };
        let srcs = list(0, count, DType::F32, CUDA, shape);
        let dsts = list(100, count, DType::I8, CUDA, shape);
        let scales = list(200, count, DType::F32, CUDA, of_scales);
        let moves = Moves::new(&dsts, &srcs, &quantize.into(), Some(&scales));
        moves.map(drop).map_err(|error| error.to_string())
    };
    for (shape, scale, begin) in [
        ([2, 1 << 31], Granularity::Row, "rows of 2147483648 elements:"),
        (
            [1 << 16, 1 << 15],
            Granularity::Sample,
            "a sample of 2147483648 elements with one scale:",
        ),
    ] {
        let error = text(&shape, 1, scale).unwrap_err();
        assert!(error.starts_with(begin), "{error}");
    }
    assert_eq!(text(&[2, (1 << 31) - 1], 1, Granularity::Row), Ok(()));
    let all = 1 << 30;
    let error = text(&[all, 2], 2, Granularity::Row).unwrap_err();
    assert!(error.contains("2^31 scales or more in one call"), "{error}");
    assert_eq!(text(&[all, 2], 1, Granularity::Row), Ok(()));

    let ones = crate::Tensor::from_vec(vec![1f32; 2], &[2]).unwrap();
    let given = Dequantize::new(Scales::Samples(vec![ones]));
    let [srcs, dsts] = [(0, DType::I8), (100, DType::F32)]
        .map(|(first, dtype)| list(first, 1, dtype, CUDA, &[2, 1 << 31]));
    let error = Moves::new(&dsts, &srcs, &given.into(), None).unwrap_err().to_string();
    assert!(error.starts_with("rows of 2147483648 elements"), "{error}");
}

/// Codes of 32 MiB, with scales of as many bytes where these land, too.
#[test]
fn scales_that_land_take_room() {
    let rounds = |scales_dtype: DType, block: i64| {
        let quantize = Quantize::new(DType::F8E4M3FN)
            .scale(Granularity::Block(block))
            .scale_dtype(scales_dtype);
        let shape = [1 << 15, 1 << 10];
        let srcs = list(0, 16, DType::F32, CUDA, &shape);
        let dsts = list(100, 16, DType::F8E4M3FN, Device::Cpu, &shape);
        let scales = list(200, 16, scales_dtype, Device::Cpu, &[1 << 15, (1 << 10) / block]);
        let moves = Moves::new(&dsts, &srcs, &quantize.into(), Some(&scales)).unwrap();
        moves.rounds(true).iter().map(|round| round.len()).collect::<Vec<_>>()
    };
    assert_eq!(rounds(DType::F32, 1024), [8, 8]);
    assert_eq!(rounds(DType::F32, 4), [4, 4, 4, 4]);
    assert_eq!(rounds(DType::F8E8M0FNU, 1), [4, 4, 4, 4]);
}
