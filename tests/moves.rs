//! `copy_many`: pairs of any layouts against a loop of single elements, and every refusal, which writes nothing.
#![allow(unsafe_code, reason = "pairs at raw addresses of one memory")]

use std::collections::BTreeSet;

use crate::common::pieces::{moved, random_bytes, run, shares, Piece};
use crate::common::{runner, Random, ARITHMETIC};
use windrow::bindings::MoveOptions;
use windrow::error::MoveSide;
use windrow::{Collate, DType, Engine, Error, Layout, SampleList, SampleView, Tensor, Transform};

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
    // Each engine that runs has its share.
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

/// Each refusal has its text, and nothing is written.
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
        "destination 3: expected memory whose elements do not overlap, got strides [0] for shape [4]"
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
    // A destination is its own source, but in another order, or of another dtype.
    for dst in
        [Piece { strides: vec![-1], ..piece(f32, shape, 512) }, piece(DType::I32, shape, 500)]
    {
        assert_eq!(
            text(&other(piece(f32, shape, 500), dst)),
            "destination 3: expected memory apart from source 3, got memory that overlaps source 3"
        );
    }
    let engine = Engine::host();
    let view = SampleView::from(&[1u8, 2][..]);
    let error =
        engine.copy_many::<[SampleView<'_>]>(&mut [] as &mut [Tensor], &[view]).unwrap_err();
    assert_eq!(error, Error::argument("0 destinations for 1 sources".to_owned()));
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
    // `width` elements of each row.
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
    let column_at = |at: i64| column(DType::F32, 2 * turned(at), 1);
    let into_column = |at: i64| (column_at(at), other(&column_at(at), 4));
    cases.push(("to neighbours", (0..half).map(into_column).collect()));
    let wide = |at: i64| column(if at % 2 == 0 { DType::F64 } else { DType::I32 }, 2 * at, 1);
    let from_other = |at: i64| (wide(at), other(&wide(at), table_bytes));
    cases.push(("of two widths", (0..half).map(from_other).collect()));
    let from_column = |at: i64| {
        let read = Piece { shape: vec![rows], strides: vec![columns], ..column_at(at) };
        (
            Piece {
                shape: vec![rows],
                strides: vec![1],
                first: 4 * (rows * columns + rows * at) as usize,
                ..column_at(at)
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
        ..column_at(at)
    };
    let is_within = |&at: &i64| turned(at) < half - 1;
    let into_narrow = |at: i64| (narrow(at), other(&narrow(at), 4));
    let both = (0..half).map(into_column).chain((0..half).filter(is_within).map(into_narrow));
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

/// The pair that an error names, of several that share bytes, does not depend on where the memory is.
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
