//! `copy_many`: pairs of any layouts against a loop of single elements, and every refusal, which writes nothing.
#![allow(unsafe_code, reason = "pairs at raw addresses of one memory")]

mod common;

use std::collections::BTreeSet;

use common::convert::cast;
use common::{coordinates, runner, Random, ARITHMETIC};
use windrow::bindings::MoveOptions;
use windrow::{
    Collate, DType, Device, Engine, Error, Layout, MoveSide, SampleList, SampleView, Target,
    Tensor, Transform,
};

/// A tensor in a memory that others are in too.
#[derive(Clone, Debug)]
struct Piece {
    dtype: DType,
    shape: Vec<i64>,
    strides: Vec<i64>,
    first: usize,
}

impl Piece {
    fn compact(dtype: DType, shape: &[i64], first: usize) -> Piece {
        let layout = Layout::compact(dtype, shape).unwrap();
        Piece { dtype, shape: shape.to_vec(), strides: layout.strides().to_vec(), first }
    }

    /// Of a random layout, somewhere in the memory. `repeats`: elements may be read again and again.
    fn random(
        random: &mut Random,
        dtype: DType,
        shape: &[i64],
        repeats: bool,
        len: usize,
    ) -> Piece {
        let mut order: Vec<usize> = (0..shape.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, random.below(at as u64 + 1) as usize);
        }
        let (mut strides, mut step) = (vec![0; shape.len()], 1);
        for &dim in &order {
            step *= [1, 1, 1, 2][random.below(4) as usize];
            strides[dim] = match random.below(8) {
                0 if repeats => 0,
                1 => -step,
                _ => step,
            };
            step *= shape[dim].max(1);
        }
        let size = dtype.size() as i64;
        let reach = |sign: i64| -> i64 {
            let each = shape.iter().zip(&strides).map(|(extent, stride)| (extent - 1) * stride);
            each.map(|reach| (sign * reach).max(0)).sum::<i64>() * size
        };
        let (below, above) = match shape.contains(&0) {
            true => (0, 0),
            false => (reach(-1), reach(1)),
        };
        let room = len as i64 - below - above - size;
        assert!(room > 0, "{shape:?} {strides:?}");
        let first = (below + random.below(room as u64) as i64) as usize;
        Piece { dtype, shape: shape.to_vec(), strides, first }
    }

    /// The first byte of each element, row-major.
    fn elements(&self) -> Vec<usize> {
        let mut all = Vec::new();
        coordinates(&self.shape, |at| {
            let steps: i64 = at.iter().zip(&self.strides).map(|(at, stride)| at * stride).sum();
            all.push((self.first as i64 + steps * self.dtype.size() as i64) as usize);
        });
        all
    }

    fn bytes(&self) -> BTreeSet<usize> {
        let size = self.dtype.size();
        self.elements().into_iter().flat_map(|at| at..at + size).collect()
    }

    fn layout(&self) -> Layout {
        Layout::try_new(self.dtype, &self.shape, Some(&self.strides)).unwrap()
    }

    fn is(&self, other: &Piece) -> bool {
        self.dtype == other.dtype && self.elements() == other.elements()
    }

    /// # Safety
    /// It is within the memory, which lives on and is written to by the engine alone.
    unsafe fn target(&self, memory: *mut u8) -> Target<'static> {
        // SAFETY: the caller's promise.
        unsafe {
            let data = memory.wrapping_add(self.first);
            Target::from_raw_parts(data, self.dtype, Device::Cpu, self.layout())
        }
    }

    /// # Safety
    /// As of [`Piece::target`].
    unsafe fn view(&self, memory: *mut u8) -> SampleView<'static> {
        // SAFETY: the caller's promise.
        unsafe {
            let data = memory.wrapping_add(self.first);
            SampleView::from_raw_parts(data, self.dtype, Device::Cpu, self.layout())
        }
    }
}

fn random_bytes(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.next() as u8).collect()
}

/// What a loop of single elements makes of the memory.
fn moved(memory: &[u8], pairs: &[(Piece, Piece)]) -> Vec<u8> {
    let mut out = memory.to_vec();
    for (dst, src) in pairs {
        for (to, from) in dst.elements().into_iter().zip(src.elements()) {
            let mut bits = [0; 16];
            bits[..src.dtype.size()].copy_from_slice(&memory[from..from + src.dtype.size()]);
            if src.dtype != dst.dtype {
                bits = cast(src.dtype, dst.dtype, u128::from_le_bytes(bits)).to_le_bytes();
            }
            out[to..to + dst.dtype.size()].copy_from_slice(&bits[..dst.dtype.size()]);
        }
    }
    out
}

/// Whether a destination shares bytes with itself, with another one, or with a source but its own identical one.
fn shares(pairs: &[(Piece, Piece)]) -> (bool, bool) {
    let written: Vec<_> = pairs.iter().map(|(dst, _)| dst.bytes()).collect();
    let read: Vec<_> = pairs.iter().map(|(_, src)| src.bytes()).collect();
    let itself = pairs
        .iter()
        .zip(&written)
        .any(|((dst, _), own)| own.len() != dst.elements().len() * dst.dtype.size());
    let others = (0..pairs.len()).any(|i| {
        (0..i).any(|j| !written[i].is_disjoint(&written[j]))
            || (0..pairs.len()).any(|j| {
                let is_own = i == j && pairs[i].0.is(&pairs[i].1);
                !is_own && !written[i].is_disjoint(&read[j])
            })
    });
    (itself, others)
}

/// Runs pairs in a memory: the result of the call and the memory then.
fn run(engine: &Engine, memory: &[u8], pairs: &[(Piece, Piece)]) -> (Result<(), Error>, Vec<u8>) {
    let mut memory = memory.to_vec();
    let base = memory.as_mut_ptr();
    // SAFETY: within the memory, which nothing else touches until the call is over.
    let (mut dsts, srcs): (Vec<_>, Vec<_>) =
        pairs.iter().map(|(dst, src)| unsafe { (dst.target(base), src.view(base)) }).unzip();
    let result = engine.copy_many(&mut dsts, &srcs);
    (result, memory)
}

fn with(transform: &Transform) -> MoveOptions {
    MoveOptions { transform: transform.clone(), ..MoveOptions::default() }
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
