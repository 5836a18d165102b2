//! `copy_many`: pairs of any layouts against a loop of single elements, and every refusal, which writes nothing.
#![allow(unsafe_code, reason = "pairs at raw addresses of one memory")]

mod common;

use std::collections::BTreeSet;

use common::pieces::{moved, random_bytes, run, shares, Piece};
use common::{runner, Random, ARITHMETIC};
use windrow::bindings::MoveOptions;
use windrow::{
    Collate, DType, Engine, Error, Layout, MoveSide, SampleList, SampleView, Tensor, Transform,
};
#[cfg(feature = "cuda")]
use windrow::{Device, Target};

fn with(transform: &Transform) -> MoveOptions<'static> {
    MoveOptions { transform: transform.clone().into(), ..MoveOptions::default() }
}

#[test]
fn random_pairs() {
    let mut random = Random::new(48);
    let mut outcomes = [0; 4];
    for case in 0..if cfg!(miri) { 20 } else { 4000 } {
        let len = [5000, 10_000, 40_000][random.below(3) as usize];
        let memory = random_bytes(&mut random, len);
        let mut pairs = Vec::new();
        for _ in 0..random.below(6) {
            let shape: Vec<i64> = (0..random.below(4))
                .map(|_| [0, 1, 2, 3, 3, 4][random.below(6) as usize])
                .collect();
            let dtype = |random: &mut Random| ARITHMETIC[random.below(15) as usize];
            let to = dtype(&mut random);
            let from = if random.below(2) == 0 { to } else { dtype(&mut random) };
            // Bools that are neither 0 nor 1 are moved as they are, and cast as 1.
            let repeats = random.below(40) == 0;
            let dst = Piece::random(&mut random, to, &shape, repeats, len);
            let src = match random.below(20) {
                0 => Piece { dtype: to, ..dst.clone() },
                _ => Piece::random(&mut random, from, &shape, true, len),
            };
            pairs.push((dst, src));
        }
        let (itself, others) = shares(&pairs);
        for (name, engine) in runner().engines() {
            let (result, after) = run(engine, &memory, &pairs);
            let name = format!("case {case} on {name}: {pairs:?}");
            match result {
                Ok(()) => {
                    assert!(!itself && !others, "shared bytes are written, {name}");
                    assert_eq!(after, moved(&memory, &pairs), "{name}");
                    outcomes[0] += 1;
                }
                Err(error) => {
                    assert_eq!(after, memory, "{error}, {name}");
                    match error {
                        Error::Overlap(_) => outcomes[if others { 1 } else { 2 }] += 1,
                        Error::Layout(_) => {
                            assert!(itself, "{error}, {name}");
                            outcomes[3] += 1;
                        }
                        _ => panic!("{error}, {name}"),
                    }
                }
            }
        }
    }
    let [moved, overlaps, maybe, itself] = outcomes;
    // Of each engine that runs.
    let engines = runner().engines().len();
    let are_enough = moved > 2000 * engines && overlaps > 120 * engines && itself > 20 * engines;
    assert!(cfg!(miri) || are_enough, "{outcomes:?} of {engines}");
    // Tensors that take turns in memory may count as sharing it.
    assert!(20 * maybe <= moved, "{outcomes:?}");
}

/// Every dtype that is moved, in rows anywhere; casts between all that are cast.
#[test]
fn dtypes() {
    let mut random = Random::new(7);
    let memory = random_bytes(&mut random, 1 << 14);
    let shape = [3, 5];
    for &to in DType::ALL {
        for &from in DType::ALL {
            let dst = Piece { strides: vec![7, -1], ..Piece::compact(to, &shape, 200 + 4 * 16) };
            let pairs = [(dst, Piece::compact(from, &shape, 5001))];
            for (name, engine) in runner().engines() {
                let (result, after) = run(engine, &memory, &pairs);
                if to == from || to.is_arithmetic() && from.is_arithmetic() {
                    result.unwrap_or_else(|error| panic!("{name}: {error}"));
                    assert_eq!(after, moved(&memory, &pairs), "{from} to {to} on {name}");
                } else {
                    let error = result.expect_err("no cast");
                    assert!(matches!(error, Error::DType(_)), "{error}");
                    let text = format!(
                        "destination 0: expected {from}, got {to}; complex and smaller dtypes, and float8 but for e4m3fn and e5m2, are moved, never cast or transformed"
                    );
                    assert_eq!(error.to_string(), text);
                    assert_eq!(after, memory, "{name}");
                }
            }
        }
    }
}

/// Thousands of short rows, of one layout and of several, moved and cast.
#[test]
fn many_short_pairs() {
    let count = if cfg!(miri) { 40 } else { 4096 };
    let mut random = Random::new(3);
    let mut order: Vec<usize> = (0..count).collect();
    for at in (1..count).rev() {
        order.swap(at, random.below(at as u64 + 1) as usize);
    }
    let memory = random_bytes(&mut random, 2 * 80 * count);
    for kinds in [1, 2, 5] {
        let pairs: Vec<_> = (0..count)
            .map(|pair| {
                let (len, to) = [
                    (8, DType::F32),
                    (8, DType::I32),
                    (3, DType::I16),
                    (0, DType::F32),
                    (9, DType::I64),
                ][pair % kinds];
                let dst = Piece::compact(to, &[len], 80 * (count + order[pair]));
                (dst, Piece::compact(DType::F32, &[len], 80 * pair + pair % 3))
            })
            .collect();
        let expected = moved(&memory, &pairs);
        for (name, engine) in runner().engines() {
            let (result, after) = run(engine, &memory, &pairs);
            result.unwrap();
            assert!(after == expected, "{kinds} kinds on {name}");
        }
    }
}

/// Pairs that threads share, whose ends are in the middle of tiles.
#[test]
#[cfg_attr(miri, ignore = "megabytes")]
fn large_pairs() {
    let mut random = Random::new(5);
    let memory = random_bytes(&mut random, 12 << 20);
    let mib = 1 << 20;
    let pairs = [
        (
            Piece::compact(DType::U8, &[1_300_001], 3),
            Piece::compact(DType::U8, &[1_300_001], 6 * mib),
        ),
        (Piece::compact(DType::U8, &[7], 2 * mib), Piece::compact(DType::U8, &[7], 8 * mib)),
        (
            Piece { strides: vec![1, 500], ..Piece::compact(DType::F32, &[500, 301], 3 * mib + 1) },
            Piece::compact(DType::I16, &[500, 301], 9 * mib),
        ),
        (
            Piece::compact(DType::F32, &[100_000], 4 * mib),
            Piece {
                strides: vec![-1],
                ..Piece::compact(DType::F32, &[100_000], 10 * mib + 399_996)
            },
        ),
        (Piece::compact(DType::U8, &[0, 3], 0), Piece::compact(DType::U8, &[0, 3], 0)),
    ];
    let expected = moved(&memory, &pairs);
    for (name, engine) in runner().engines() {
        if *name != "reference" {
            let (result, after) = run(engine, &memory, &pairs);
            result.unwrap();
            assert!(after == expected, "{name}");
        }
    }
}

/// What each refusal says; nothing is written.
#[test]
fn refusals() {
    let memory: Vec<u8> = (0..=255).cycle().take(4000).collect();
    let piece = Piece::compact;
    let (f32, shape) = (DType::F32, &[4i64][..]);
    let sound = |at: usize| (piece(f32, shape, at), piece(f32, shape, 2000 + at));
    let other = |dst: Piece, src: Piece| [sound(0), sound(100), sound(200), (dst, src)];
    let text = |pairs: &[(Piece, Piece)]| {
        let mut texts = BTreeSet::new();
        for (name, engine) in runner().engines() {
            let (result, after) = run(engine, &memory, pairs);
            let error = result.expect_err(name);
            assert!(after == memory, "{name}: {error}");
            let mismatch = error.mismatch().expect("a pair");
            assert_eq!(mismatch.side, Some(MoveSide::Destination));
            texts.insert((error.to_string(), mismatch.index.expect("a pair")));
        }
        let mut texts = texts.into_iter();
        let (text, index) = texts.next().expect("an engine");
        assert_eq!(texts.next(), None, "engines agree");
        assert!(text.starts_with(&format!("destination {index}: ")), "{text}");
        text
    };
    assert_eq!(
        text(&other(piece(f32, &[4], 500), piece(f32, &[5], 600))),
        "destination 3: expected shape (5,), got (4,)"
    );
    assert_eq!(
        text(&[
            (piece(f32, &[4], 500), piece(f32, &[4, 1], 600)),
            (piece(f32, &[1, 4], 800), piece(f32, &[4], 600)),
            sound(0)
        ]),
        "destination 0: expected shape (4, 1), got (4,); 2 destinations differ in all"
    );
    assert_eq!(
        text(&other(Piece { strides: vec![0], ..piece(f32, shape, 500) }, piece(f32, shape, 600))),
        "destination 3: expected elements with a place of their own, got strides [0] for shape [4]"
    );
    let swapped = DType::F32.swapped().expect("four bytes");
    assert_eq!(
        text(&other(piece(swapped, shape, 500), piece(f32, shape, 600))),
        "destination 3: expected native byte order, got float32 of other byte order"
    );
    assert_eq!(
        text(&other(piece(f32, shape, 96), piece(f32, shape, 600))),
        "destination 3: expected memory apart from destination 1, got memory that overlaps destination 1"
    );
    assert_eq!(
        text(&other(piece(f32, shape, 500), piece(f32, shape, 115))),
        "destination 1: expected memory apart from source 3, got memory that overlaps source 3"
    );
    // Its own source, but in another order, or of another dtype.
    for own in
        [Piece { strides: vec![-1], ..piece(f32, shape, 512) }, piece(DType::I32, shape, 500)]
    {
        assert_eq!(
            text(&other(piece(f32, shape, 500), own)),
            "destination 3: expected memory apart from source 3, got memory that overlaps source 3"
        );
    }
    let engine = Engine::host();
    let view = SampleView::from(&[1u8, 2][..]);
    let error =
        engine.copy_many::<[SampleView<'_>]>(&mut [] as &mut [Tensor], &[view]).unwrap_err();
    assert_eq!(error, Error::Argument("0 destinations for 1 sources".to_owned()));
    let mut tensor = Tensor::from_vec(vec![0u8; 2], &[2]).unwrap();
    let shared = tensor.clone();
    let error = engine.copy_many(std::slice::from_mut(&mut tensor), &[SampleView::from(&shared)]);
    let text = "destination 0: expected memory that nothing else holds, got shared memory";
    assert_eq!(error.unwrap_err().to_string(), text);
    drop(shared);
    engine
        .copy_many(std::slice::from_mut(&mut tensor), &[SampleView::from(&[7u8, 8][..])])
        .unwrap();
    assert_eq!(tensor.as_slice::<u8>().unwrap(), [7, 8]);
}

#[test]
fn the_same_memory_and_no_pairs() {
    let memory: Vec<u8> = (0..200).collect();
    for (name, engine) in runner().engines() {
        let (result, after) = run(engine, &memory, &[]);
        assert!(result.is_ok() && after == memory, "{name}");
        // The strides of one element are of no account.
        let one = Piece { strides: vec![9, 1], ..Piece::compact(DType::U16, &[1, 3], 10) };
        let pairs = [
            (Piece::compact(DType::U16, &[1, 3], 10), one),
            (Piece::compact(DType::U16, &[2], 100), Piece::compact(DType::U16, &[2], 50)),
        ];
        let (result, after) = run(engine, &memory, &pairs);
        result.unwrap();
        assert_eq!(after, moved(&memory, &pairs), "{name}");
        assert_ne!(after, memory, "{name}");
    }
}

/// Rows of tables, columns too, which lie between each other, and rows by ids.
#[test]
fn lists_on_both_sides() {
    let (rows, columns) = (37i64, 29i64);
    let table: Vec<i32> = (0..(rows * columns) as i32).collect();
    let read = Tensor::from_vec(table.clone(), &[rows, columns]).unwrap();
    let turned = Layout::try_new(DType::F64, &[rows, columns], Some(&[1, rows])).unwrap();
    for (name, engine) in runner().engines() {
        let write = Tensor::from_vec(vec![0f64; table.len()], &[columns, rows]).unwrap();
        let write_columns = write.view(0, turned.clone()).unwrap();
        let (dsts, srcs) =
            (SampleList::rows(&write_columns).unwrap(), SampleList::rows(&read).unwrap());
        let copy = |dsts: &SampleList<'_>, srcs: &SampleList<'_>, transform: &Transform| {
            // SAFETY: memory of the table, which nothing else touches.
            unsafe { engine.copy_lists(dsts, srcs, with(transform)) }
        };
        copy(&dsts, &srcs, &Transform::default()).unwrap();
        let at = |row: i64, column: i64| {
            write.as_slice::<f64>().unwrap()[(column * rows + row) as usize]
        };
        for (index, &number) in table.iter().enumerate() {
            let (row, column) = (index as i64 / columns, index as i64 % columns);
            assert_eq!(at(row, column), f64::from(number), "{name}");
        }
        let [to, from] = [[5, 0, -1], [1, 1, 36]].map(Vec::from);
        copy(&dsts.take(to).unwrap(), &srcs.take(from).unwrap(), &Transform::new().scale(-2.0))
            .unwrap();
        for (to, from) in [(5, 1), (0, 1), (36, 36)] {
            for column in 0..columns {
                assert_eq!(at(to, column), -2.0 * (from * columns + column) as f64, "{name}");
            }
        }
        let error = copy(
            &dsts.take([4, 2, 7, 2]).unwrap(),
            &srcs.take([0, 1, 2, 3]).unwrap(),
            &Transform::default(),
        );
        let text = "destination 3: expected memory apart from destination 1, got memory that overlaps destination 1";
        assert_eq!(error.unwrap_err().to_string(), text, "{name}");
    }
}

/// Columns of a table that are given one by one lie between each other: on either side, and on both of one table.
#[test]
fn columns_one_by_one() {
    let (rows, columns) = if cfg!(miri) { (3, 24) } else { (7i64, 20_000i64) };
    let mut memory: Vec<u8> = vec![0; (2 * 4 * rows * columns + 64) as usize];
    for (at, byte) in memory.iter_mut().enumerate() {
        *byte = (at * 37 % 251) as u8;
    }
    // So many elements of each row.
    let column = |dtype: DType, first: i64, width: i64| Piece {
        dtype,
        shape: vec![rows, width],
        strides: vec![columns * 4 / dtype.size() as i64, 1],
        first: (4 * first) as usize,
    };
    let other =
        |piece: &Piece, by: i64| Piece { first: piece.first + by as usize, ..piece.clone() };
    let table_bytes = 4 * rows * columns;
    let half = columns / 2;
    let turned = |at: i64| (at * 7919) % half;
    let mut cases: Vec<(&str, Vec<(Piece, Piece)>)> = Vec::new();
    let own = |at: i64| column(DType::F32, 2 * turned(at), 1);
    let into_own = |at: i64| (own(at), other(&own(at), 4));
    cases.push(("to neighbours", (0..half).map(into_own).collect()));
    let wide = |at: i64| column(if at % 2 == 0 { DType::F64 } else { DType::I32 }, 2 * at, 1);
    let from_other = |at: i64| (wide(at), other(&wide(at), table_bytes));
    cases.push(("of two widths", (0..half).map(from_other).collect()));
    let from_column = |at: i64| {
        let read = Piece { shape: vec![rows], strides: vec![columns], ..own(at) };
        (
            Piece {
                shape: vec![rows],
                strides: vec![1],
                first: 4 * (rows * columns + rows * at) as usize,
                ..own(at)
            },
            read,
        )
    };
    cases.push(("to rows elsewhere", (0..half).map(from_column).collect()));
    // Two tables whose widths have nothing in common, each into neighbours of its own.
    let narrow = |at: i64| Piece {
        shape: vec![rows, 1],
        strides: vec![columns - 1, 1],
        first: (table_bytes + 8 * turned(at)) as usize,
        ..own(at)
    };
    let is_within = |&at: &i64| turned(at) < half - 1;
    let into_narrow = |at: i64| (narrow(at), other(&narrow(at), 4));
    let both = (0..half).map(into_own).chain((0..half).filter(is_within).map(into_narrow));
    cases.push(("of two tables", both.collect()));
    for (what, pairs) in &cases {
        let expected = moved(&memory, pairs);
        for (name, engine) in runner().engines() {
            if *name == "reference" && !cfg!(miri) {
                continue;
            }
            let (result, after) = run(engine, &memory, pairs);
            result.unwrap_or_else(|error| panic!("{what} on {name}: {error}"));
            assert!(after == expected, "{what} on {name}");
        }
    }
    // Two that are one, wherever they are.
    for (first, second) in [(3, half - 1), (half - 2, half - 1), (0, 1)] {
        let mut pairs = cases[0].1.clone();
        pairs[second as usize].0 = pairs[first as usize].0.clone();
        let error = run(&Engine::host(), &memory, &pairs).0.unwrap_err();
        let text = format!(
            "destination {second}: expected memory apart from destination {first}, got memory that overlaps destination {first}"
        );
        assert_eq!(error.to_string(), text);
        let mut pairs = cases[0].1.clone();
        pairs[second as usize].1 = pairs[first as usize].0.clone();
        let error = run(&Engine::host(), &memory, &pairs).0.unwrap_err();
        let text = format!(
            "destination {first}: expected memory apart from source {second}, got memory that overlaps source {second}"
        );
        assert_eq!(error.to_string(), text);
    }
}

/// Which of several pairs that share bytes is named does not depend on where the memory is.
#[test]
fn the_same_pair_is_named_wherever_memory_is() {
    let memory = vec![0; 64 * 4 * 8 + 64];
    let engine = Engine::host();
    for by in [0, 4, 8, 28, 60] {
        let column = |at: usize| Piece {
            strides: vec![64],
            ..Piece::compact(DType::F32, &[4], by + 4 * at)
        };
        let mut pairs: Vec<_> = (0..30)
            .map(|at| (column(at), Piece::compact(DType::F32, &[4], by + 1024 + 16 * at)))
            .collect();
        for (second, first) in [(9, 1), (5, 2), (29, 0)] {
            pairs[second].0 = pairs[first].0.clone();
        }
        let error = run(&engine, &memory, &pairs).0.unwrap_err();
        let text = "destination 5: expected memory apart from destination 2, got memory that overlaps destination 2";
        assert_eq!(error.to_string(), text, "{by}");
    }
}

/// The arithmetic and the order of dims of a transform are those of a stack.
#[test]
fn transforms() {
    let image: Vec<u8> = (0..4 * 5 * 3).map(|i| (i * 7) as u8).collect();
    let views = [SampleView::from_slice(&image, &[4, 5, 3]).unwrap()];
    let transform = Transform::new()
        .scale(1.0 / 255.0)
        .mean([0.1, 0.2, 0.3])
        .std([0.5, 0.6, 0.7])
        .channel_dim(-1)
        .permute([2, 0, 1]);
    let srcs: SampleList<'_> = views.iter().cloned().collect();
    for (name, engine) in runner().engines() {
        let collate = Collate::stack().cast(DType::F32).transform(transform.clone());
        let batch = engine.assemble(&views, &collate).unwrap();
        let into = Tensor::from_vec(vec![0f32; 60], &[3, 4, 5]).unwrap();
        let dsts: SampleList<'_> = [SampleView::from(&into)].into_iter().collect();
        // SAFETY: memory of the tensor, which nothing else touches.
        unsafe { engine.copy_lists(&dsts, &srcs, with(&transform)) }.unwrap();
        assert_eq!(
            into.as_slice::<f32>().unwrap(),
            batch.data().as_slice::<f32>().unwrap(),
            "{name}"
        );
        let wrong = Tensor::from_vec(vec![0f32; 60], &[4, 5, 3]).unwrap();
        let dsts: SampleList<'_> = [SampleView::from(&wrong)].into_iter().collect();
        // SAFETY: as above.
        let error = unsafe { engine.copy_lists(&dsts, &srcs, with(&transform)) }.unwrap_err();
        let text = "destination 0: expected shape (3, 4, 5), got (4, 5, 3)";
        assert_eq!(error.to_string(), text, "{name}");
        let two = Transform::new().mean([0.1, 0.2]).channel_dim(-1);
        // SAFETY: as above.
        let error = unsafe { engine.copy_lists(&dsts, &srcs, with(&two)) }.unwrap_err();
        assert!(error.to_string().starts_with("source 0: expected 2 channels"), "{error}");
    }
}

/// The same on a device: from the host and page-locked memory to the device, back, and from there to there.
#[cfg(feature = "cuda")]
#[test]
fn random_pairs_on_a_device() {
    use common::device::{self, Bytes, PinnedBytes};

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
            let (written, read) = (Bytes::of(&memory), Bytes::of(&memory));
            let (pinned, read_pinned) = (PinnedBytes::of(&memory), PinnedBytes::of(&memory));
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
#[cfg(feature = "cuda")]
#[test]
fn rows_on_a_device() {
    use common::device::{self, Bytes};

    if device::engine().is_none() {
        return;
    }
    // Whose launches no other test adds to.
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
            let (written, read) = (Bytes::of(&memory), Bytes::of(&memory));
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
            // What the destinations had is what the sources were read of: the same memory, twice.
            assert!(written.to_host() == expected, "case {case}: {count} at {align}, {cast}");
            assert_eq!(engine.stats().launches - launches, 1);
        }
    }
}

/// Ids on a device, of either side or of both, of rows of a table and of samples by address, with gaps and in another order of dims:
/// a pair whose id is out of range is left out.
#[cfg(feature = "cuda")]
#[test]
fn ids_on_a_device() {
    use common::device::{self, Bytes};
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
            let layouts =
                strides.each_ref().map(|own| Layout::try_new(dtype, &table, Some(own)).unwrap());
            let memory = layouts
                .each_ref()
                .map(|layout| random_bytes(&mut random, layout.byte_span(dtype).end as usize));
            let on_device = memory.each_ref().map(|bytes| Bytes::of(bytes));
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
                Bytes::of(&ids.iter().flat_map(bytes).collect::<Vec<u8>>())
            });
            let listed = |side: usize| {
                let all = SampleList::rows(&tables[side]).unwrap();
                if !by_address {
                    return all;
                }
                let mut list = SampleList::new();
                for row in 0..rows {
                    let own = &strides[side][1..];
                    // SAFETY: a row of the table.
                    unsafe { list.push(all.address(row), dtype, here, &shape, Some(own)) }.unwrap();
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
