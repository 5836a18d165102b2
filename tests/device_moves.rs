//! `copy_many` with sides on a device: pairs of any layouts against a loop of single elements, rows, and ids on the device.
#![cfg(feature = "cuda")]
#![allow(unsafe_code, reason = "pairs at raw addresses of device memory")]

use crate::common::pieces::{moved, random_bytes, shares, Piece};
use crate::common::{Random, ARITHMETIC};
use windrow::bindings::MoveOptions;
use windrow::plan::Target;
use windrow::{DType, Device, Engine, Error, Layout, SampleList, SampleView, Tensor};

/// The same on a device: from the host and page-locked memory to the device, back, and from there to there.
#[test]
fn random_pairs_on_a_device() {
    use crate::common::device::{self, Bytes, PinnedBytes};

    let Some(engine) = device::engine() else { return };
    let mut random = Random::new(49);
    let (len, mut moves) = (6000, 0);
    for case in 0..60 {
        let memory = random_bytes(&mut random, len);
        let pairs = loop {
            let pairs: Vec<_> = (0..1 + random.below(6))
                .map(|_| {
                    let shape: Vec<i64> =
                        (0..random.below(4)).map(|_| random.below(6) as i64).collect();
                    let dtype = |random: &mut Random| ARITHMETIC[random.below(15) as usize];
                    let to = dtype(&mut random);
                    let from = if random.below(2) == 0 { to } else { dtype(&mut random) };
                    let dst = Piece::random(&mut random, to, &shape, false, len);
                    (dst, Piece::random(&mut random, from, &shape, true, len))
                })
                .collect();
            let apart = |(dst, _): &(Piece, Piece)| {
                (dst.clone(), Piece::compact(dst.dtype, &dst.shape, 1 << 20))
            };
            let written: Vec<_> = pairs.iter().map(apart).collect();
            if shares(&written) == (false, false) {
                break pairs;
            }
        };
        let expected = moved(&memory, &pairs);
        let places = [Device::Cpu, Device::Pinned, Device::Cuda(0)];
        for (to, from) in places.iter().flat_map(|to| places.map(|from| (*to, from))) {
            if ![to, from].contains(&Device::Cuda(0)) {
                continue;
            }
            let (mut host, read_host) = (memory.clone(), memory.clone());
            let (written, read) = (Bytes::from_bytes(&memory), Bytes::from_bytes(&memory));
            let (pinned, read_pinned) =
                (PinnedBytes::from_bytes(&memory), PinnedBytes::from_bytes(&memory));
            let write_to = match to {
                Device::Cpu => host.as_mut_ptr(),
                Device::Pinned => pinned.address,
                _ => written.address as *mut u8,
            };
            let read_from = match from {
                Device::Cpu => read_host.as_ptr(),
                Device::Pinned => read_pinned.address.cast_const(),
                _ => read.address as *const u8,
            };
            // SAFETY: within both memories, which live until the work is done.
            let (mut dsts, srcs): (Vec<_>, Vec<_>) = pairs
                .iter()
                .map(|(dst, src)| unsafe {
                    (
                        Target::from_raw_parts(
                            write_to.wrapping_add(dst.first),
                            dst.dtype,
                            to,
                            dst.layout(),
                        ),
                        SampleView::from_raw_parts(
                            read_from.wrapping_add(src.first),
                            src.dtype,
                            from,
                            src.layout(),
                        ),
                    )
                })
                .unzip();
            let name = format!("case {case}, {from} to {to}: {pairs:?}");
            if let Err(error) = engine.copy_many(&mut dsts, &srcs) {
                // Tensors that take turns in memory may count as sharing it.
                assert!(matches!(error, Error::Overlap(_)), "{error}, {name}");
                continue;
            }
            moves += 1;
            let after = match to {
                Device::Cpu => host.clone(),
                Device::Pinned => pinned.to_host(),
                _ => written.to_host(),
            };
            assert_eq!(after, expected, "{name}");
        }
    }
    assert!(moves > 250, "{moves}");
}

/// Runs of bytes of one length and of many, some of them cast, at multiples of 16 and elsewhere, few and many.
#[test]
fn rows_on_a_device() {
    use crate::common::device::{self, Bytes};

    if device::engine().is_none() {
        return;
    }
    // No other test adds to its launches.
    let engine = Engine::cuda(0).unwrap();
    let mut random = Random::new(50);
    let lengths: [&[i64]; 7] =
        [&[16], &[48], &[528], &[2048], &[6144], &[77], &[1, 5, 64, 300, 4100, 16, 0, 31]];
    for (case, lengths) in lengths.iter().enumerate() {
        for (count, align, cast) in
            [(1, 16, false), (5, 16, false), (300, 16, false), (300, 1, false), (40, 4, true)]
        {
            let most = *lengths.iter().max().unwrap() as usize;
            let step = (most + 40).next_multiple_of(16) * 4;
            let memory = random_bytes(&mut random, step * count + 64);
            let mut order: Vec<usize> = (0..count).collect();
            for at in (1..count).rev() {
                order.swap(at, random.below(at as u64 + 1) as usize);
            }
            let dtypes = [DType::I16, DType::I32];
            let pairs: Vec<_> = (0..count)
                .map(|pair| {
                    let shape = [lengths[pair % lengths.len()]];
                    let mut at = |row: usize| {
                        16 + row * step + align * random.below(16 / align as u64) as usize
                    };
                    let (to, from) = (at(order[pair]), at(pair));
                    match cast && pair % 3 > 0 {
                        true => (
                            Piece::compact(dtypes[pair % 2], &shape, to),
                            Piece::compact(DType::U8, &shape, from),
                        ),
                        false => (
                            Piece::compact(DType::U8, &shape, to),
                            Piece::compact(DType::U8, &shape, from),
                        ),
                    }
                })
                .collect();
            let expected = moved(&memory, &pairs);
            let (written, read) = (Bytes::from_bytes(&memory), Bytes::from_bytes(&memory));
            // SAFETY: within both memories, which live until the work is done.
            let (mut dsts, srcs): (Vec<_>, Vec<_>) = pairs
                .iter()
                .map(|(dst, src)| unsafe {
                    (
                        dst.target_on(written.address as *mut u8, Device::Cuda(0)),
                        src.view_on(read.address as *mut u8, Device::Cuda(0)),
                    )
                })
                .unzip();
            let launches = engine.stats().launches;
            engine.copy_many(&mut dsts, &srcs).unwrap();
            // The bytes of the destinations were read as sources: the same memory, twice.
            assert!(written.to_host() == expected, "case {case}: {count} at {align}, {cast}");
            assert_eq!(engine.stats().launches - launches, 1);
        }
    }
}

/// Ids on a device, of either side or of both, of rows of a table and of samples by address, with gaps and in another order of dims:
/// a pair whose id is out of range is left out.
#[test]
fn ids_on_a_device() {
    use crate::common::device::{self, Bytes};
    use std::sync::Arc;

    if device::engine().is_none() {
        return;
    }
    let engine = Engine::cuda(0).unwrap();
    let here = Device::Cuda(0);
    let mut random = Random::new(51);
    let (rows, count) = (40usize, 24usize);
    // The dtype, the shape of a sample, and for both sides the strides of the table.
    type Case = (DType, Vec<i64>, [Vec<i64>; 2]);
    let compact = |dtype, n: i64| (dtype, vec![n], [vec![n, 1], vec![n, 1]]);
    let cases: Vec<Case> = vec![
        compact(DType::U8, 16),
        compact(DType::U8, 77),
        compact(DType::I16, 264),
        compact(DType::U8, 4100),
        (DType::U8, vec![33], [vec![40, 1], vec![48, 1]]),
        compact(DType::I16, 7),
        compact(DType::I32, 3),
        compact(DType::I64, 3),
        (DType::I16, vec![3, 7], [vec![40, 9, 1], vec![24, 8, 1]]),
        (DType::I32, vec![3, 5], [vec![40, 7, 1], vec![24, 6, 1]]),
        (DType::F64, vec![3, 3], [vec![24, 5, 1], vec![20, 4, 1]]),
        (DType::U8, vec![3, 32], [vec![160, 48, 1], vec![96, 32, 1]]),
        (DType::U8, vec![3, 9], [vec![160, 48, 1], vec![37, 11, 1]]),
        (DType::F32, vec![5], [vec![20, 3], vec![12, 2]]),
        (DType::I16, vec![3, 6], [vec![40, 12, 2], vec![18, 1, 3]]),
        (DType::F64, vec![2, 3, 4], [vec![24, 12, 4, 1], vec![40, 1, 2, 6]]),
        (DType::U8, vec![3, 32], [vec![120, 40, 1], vec![96, 32, 1]]),
    ];
    for (dtype, shape, strides) in cases {
        for turn in 0..6 {
            let (is_dst, is_src) = (turn % 3 != 1, turn % 3 != 0);
            let (by_address, wide) = (turn > 2, turn % 2 == 0);
            let size = dtype.size();
            let table: Vec<i64> = [rows as i64].into_iter().chain(shape.iter().copied()).collect();
            let layouts = strides
                .each_ref()
                .map(|side_strides| Layout::try_new(dtype, &table, Some(side_strides)).unwrap());
            let memory = layouts
                .each_ref()
                .map(|layout| random_bytes(&mut random, layout.byte_span(dtype).end as usize));
            let on_device = memory.each_ref().map(|bytes| Bytes::from_bytes(bytes));
            let tensor = |address: u64, dtype: DType, layout: &Layout| {
                // SAFETY: memory that lives until the work is done.
                unsafe {
                    let (owner, data) = (Arc::new(()), address as *mut u8);
                    Tensor::new_unchecked(owner, data, dtype, here, layout.clone(), false)
                }
            };
            let tables =
                [0, 1].map(|side: usize| tensor(on_device[side].address, dtype, &layouts[side]));
            // Destinations differ; every fifth id is out of range, at either end.
            let ids = [1, 7].map(|step: usize| -> Vec<i64> {
                let first = random.below(rows as u64) as usize;
                let at = |pair: usize| ((first + step * pair) % rows) as i64;
                let id = |pair: usize| match pair % 5 {
                    4 if pair % 2 == 0 => rows as i64 + pair as i64,
                    4 => -(rows as i64) - 1 - pair as i64,
                    3 => at(pair) - rows as i64,
                    _ => at(pair),
                };
                (0..count).map(id).collect()
            });
            let index_dtype = if wide { DType::I64 } else { DType::I32 };
            let index_bytes = ids.each_ref().map(|ids| {
                let bytes = |&id: &i64| match wide {
                    true => id.to_ne_bytes().to_vec(),
                    false => (id as i32).to_ne_bytes().to_vec(),
                };
                Bytes::from_bytes(&ids.iter().flat_map(bytes).collect::<Vec<u8>>())
            });
            let listed = |side: usize| {
                let all = SampleList::rows(&tables[side]).unwrap();
                if !by_address {
                    return all;
                }
                let mut list = SampleList::new();
                for row in 0..rows {
                    let sample_strides = &strides[side][1..];
                    // SAFETY: a row of the table.
                    unsafe {
                        list.push(all.address(row), dtype, here, &shape, Some(sample_strides))
                    }
                    .unwrap();
                }
                list
            };
            let known = |side: usize| listed(side).take(0..count as i64).unwrap();
            let chosen = |side: usize| {
                let resident = engine.resident(listed(side), here).unwrap();
                let layout = Layout::compact(index_dtype, &[count as i64]).unwrap();
                let indices = tensor(index_bytes[side].address, index_dtype, &layout);
                (resident.take(&indices).unwrap(), resident)
            };
            let (dst, src) = (is_dst.then(|| chosen(0)), is_src.then(|| chosen(1)));
            let dsts = dst.as_ref().map_or_else(|| known(0), |(list, _)| list.clone());
            let srcs = src.as_ref().map_or_else(|| known(1), |(list, _)| list.clone());
            // SAFETY: memory of the test alone.
            unsafe { engine.copy_lists(&dsts, &srcs, MoveOptions::default()) }.unwrap();
            let place = |side: usize, is_chosen: bool, pair: usize| {
                let id = if is_chosen { ids[side][pair] } else { pair as i64 };
                let id = if id < 0 { id + rows as i64 } else { id };
                (0..rows as i64).contains(&id).then_some(id)
            };
            let mut expected = memory[0].clone();
            for pair in 0..count {
                let (Some(to), Some(from)) = (place(0, is_dst, pair), place(1, is_src, pair))
                else {
                    continue;
                };
                for elem in 0..shape.iter().product::<i64>() {
                    let mut rest = elem;
                    let mut at = [to * strides[0][0], from * strides[1][0]];
                    for dim in (0..shape.len()).rev() {
                        let coord = rest % shape[dim];
                        rest /= shape[dim];
                        for (at, strides) in at.iter_mut().zip(&strides) {
                            *at += coord * strides[dim + 1];
                        }
                    }
                    let [to, from] = at.map(|at| at as usize * size);
                    expected[to..to + size].copy_from_slice(&memory[1][from..from + size]);
                }
            }
            assert!(on_device[0].to_host() == expected, "{dtype} {shape:?}, turn {turn}");
            for resident in [dst, src].into_iter().flatten().map(|(_, resident)| resident) {
                assert!(matches!(resident.check(), Err(Error::Index(_))));
            }
        }
    }
}
