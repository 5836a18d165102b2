//! Whole trees in one allocation: every batch as the oracle has it, each tensor aligned and inside, zeros
//! between them, and the same batches again from a copy of the bytes.
#![allow(unsafe_code, reason = "samples at raw addresses on a device")]

use std::ops::Range;

use crate::common::ask::Form;
use crate::common::runner::{bytes_of, check_batch};
use crate::common::sample::views;
use crate::common::{oracle, runner, Ask, Expected, PadAsk, Sample};
use windrow::batch::{Fields, LeafOutput};
use windrow::collate::PerDim;
use windrow::engine::RunOptions;
use windrow::error::{ErrorKind, ErrorValue};
use windrow::plan::{Leaf, Target};
use windrow::{
    Batch, Collate, DType, Device, Engine, Error, Mask, Plan, SampleList, SampleView, Side, Tensor,
};

/// One leaf of a tree, and what it should become.
struct Case {
    name: String,
    samples: Vec<Sample>,
    collate: Collate,
    expected: Expected,
}

impl Case {
    fn new(samples: Vec<Sample>, ask: &Ask) -> Case {
        let name = format!("{}, {ask:?}", samples[0].dtype);
        let (collate, expected) = (ask.collate(), oracle(&samples, ask));
        Case { name, samples, collate, expected }
    }
}

fn rows(dtype: DType, lengths: [i64; 3]) -> Vec<Sample> {
    lengths.iter().map(|&n| Sample::new(dtype, &[n, 3], n as u64 * 40)).collect()
}

/// Every dtype, in every form in turn: with masks, lengths, offsets, indices; empty leaves among them.
fn tree() -> Vec<Case> {
    let padded = |side| PadAsk { side: PerDim::All(side), ..PadAsk::default() };
    let forms = [
        Ask::concat(0),
        Ask::ragged(),
        Ask::new(Form::Ragged { offsets_i32: true, batch_index: false }),
        Ask::pad(padded(Side::Right)),
        Ask::pad(PadAsk {
            mask: None,
            multiple_of: PerDim::Each(vec![4, 5]),
            ..padded(Side::Left)
        }),
        Ask::pad(PadAsk { mask: Some(Mask::Pad), ..padded(Side::Center) }).mask_dtype(DType::F16),
    ];
    let mut cases = Vec::new();
    for (index, &dtype) in DType::ALL.iter().enumerate() {
        let form = &forms[index % forms.len()];
        cases.push(Case::new(rows(dtype, [4, 0, 7]), form));
        cases.push(Case::new(rows(dtype, [5; 3]), &Ask::stack()));
    }
    let rich = |shape: &[i64]| (0..3).map(|i| Sample::rich(DType::U8, shape, i)).collect();
    cases.push(Case::new(rich(&[4, 5, 3]), &Ask::stack().normalised(3, 2).cast(DType::F32)));
    cases.push(Case::new(rich(&[0, 2]), &Ask::stack()));
    cases.push(Case::new(rich(&[0, 2]), &Ask::ragged()));
    cases.push(Case::new(rich(&[]), &Ask::stack()));
    cases
}

fn leaves<'s>(lists: &'s [SampleList<'s>], cases: &'s [Case]) -> Vec<Leaf<'s, 's>> {
    let leaf = |(samples, case): (&'s SampleList<'s>, &'s Case)| Leaf {
        samples,
        collate: &case.collate,
        path: &case.name,
        out: None,
    };
    lists.iter().zip(cases).map(leaf).collect()
}

fn lists<'s>(
    cases: &'s [Case],
    view: impl Fn(&'s Sample) -> SampleView<'s>,
) -> Vec<SampleList<'s>> {
    let list = |case: &'s Case| {
        let mut list = SampleList::new();
        case.samples.iter().for_each(|sample| list.push_view(&view(sample)).unwrap());
        list
    };
    cases.iter().map(list).collect()
}

fn plain(cases: &[Case]) -> Vec<SampleList<'_>> {
    lists(cases, |sample| views(std::slice::from_ref(sample)).remove(0))
}

/// The tensors of a batch.
fn tensors(batch: &Batch) -> Vec<&Tensor> {
    let fields = [batch.lengths(), batch.offsets(), batch.mask(), batch.batch_index()];
    std::iter::once(batch.data()).chain(fields.into_iter().flatten()).collect()
}

fn place(arena: &Tensor, tensor: &Tensor) -> Range<usize> {
    let begin = tensor.data_ptr().addr() - arena.data_ptr().addr();
    begin..begin + tensor.nbytes()
}

/// The same batch, of the bytes of a copy.
fn moved(batch: &Batch, arena: &Tensor, copy: &Tensor) -> Batch {
    let part = |tensor: &Tensor| {
        let byte_offset = place(arena, tensor).start as u64;
        copy.part(byte_offset, tensor.dtype(), tensor.shape()).unwrap()
    };
    let boxed = |tensor: Option<&Tensor>| tensor.map(part).map(Box::new);
    let mut fields = Fields::with_bounds(batch.len(), batch.fields().bounds().clone());
    fields.max_length = batch.max_length();
    (fields.lengths, fields.offsets) = (boxed(batch.lengths()), boxed(batch.offsets()));
    (fields.mask, fields.batch_index) = (boxed(batch.mask()), boxed(batch.batch_index()));
    Batch::try_new(part(batch.data()), fields).unwrap()
}

fn check(
    name: &str,
    filled: Vec<LeafOutput>,
    cases: &[Case],
    device: Device,
    explained: (u64, u64),
) {
    let align = if device == Device::Cpu { 64 } else { 256 };
    let batches: Vec<Batch> = filled
        .into_iter()
        .map(|f| Batch::try_new(f.data.expect("data"), f.fields).unwrap())
        .collect();
    let arena = batches[0].arena().expect("an arena").clone();
    assert_eq!((arena.dtype(), arena.device(), arena.shape().len()), (DType::U8, device, 1));
    assert_eq!(arena.nbytes() % align, 0, "{name}");
    let bytes = bytes_of(&arena);
    let copy = Tensor::from_vec(bytes.clone(), arena.shape()).unwrap();
    let mut end = 0;
    let mut gaps = 0;
    for (batch, case) in batches.iter().zip(cases) {
        let name = format!("{name}: {}", case.name);
        check_batch(&name, batch, &case.expected);
        check_batch(&format!("{name}, of a copy"), &moved(batch, &arena, &copy), &case.expected);
        assert_eq!(batch.arena().map(Tensor::data_ptr), Some(arena.data_ptr()), "{name}");
        for tensor in tensors(batch) {
            assert_eq!(tensor.device(), device, "{name}");
            assert_eq!(tensor.data_ptr().addr() % align, 0, "{name}");
            let place = place(&arena, tensor);
            assert!(place.start >= end && place.end <= bytes.len(), "{name}: {place:?}");
            assert!(bytes[end..place.start].iter().all(|&byte| byte == 0), "{name}: gap at {end}");
            gaps += place.start - end;
            end = place.end;
        }
    }
    assert!(bytes[end..].iter().all(|&byte| byte == 0), "{name}: the last gap");
    gaps += bytes.len() - end;
    assert_eq!(explained, (bytes.len() as u64, gaps as u64), "{name}");
}

fn run(name: &str, engine: &Engine, leaves: &[Leaf<'_, '_>], cases: &[Case], device: Device) {
    let plan = Plan::in_arena(leaves).unwrap_or_else(|e| panic!("{name}: {e}"));
    let explain = plan.explain();
    let explained = (explain.arena_bytes, explain.arena_gap_bytes);
    let separate = Plan::for_leaves(leaves).unwrap().explain();
    assert_eq!((separate.arena_bytes, separate.arena_gap_bytes), (0, 0));
    assert_eq!(explain.bytes_written, separate.bytes_written);
    let before = engine.stats().launches;
    let filled = engine.run(plan).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(engine.stats().launches - before, explain.launches as u64, "{name}");
    check(name, filled, cases, device, explained);
}

#[test]
fn every_dtype_and_form_in_one_allocation() {
    let cases = tree();
    let lists = plain(&cases);
    for (name, engine) in runner().engines() {
        // Twice: the second time in memory that held something else.
        for _ in 0..2 {
            run(name, engine, &leaves(&lists, &cases), &cases, Device::Cpu);
            assert_eq!(engine.stats().pool.used_bytes, 0, "{name}");
        }
    }
}

#[test]
fn some_leaves_in_one_allocation() {
    let cases = tree();
    let lists = plain(&cases);
    let leaves = leaves(&lists, &cases);
    for (name, engine) in runner().engines() {
        for is_in in [|leaf: usize| leaf % 3 == 1, |_| false] {
            let plan = Plan::partly_in_arena(&leaves, is_in).unwrap();
            let bytes = plan.arena_bytes();
            let filled = engine.run(plan).unwrap();
            for (leaf, (filled, case)) in filled.into_iter().zip(&cases).enumerate() {
                let batch = Batch::try_new(filled.data.unwrap(), filled.fields).unwrap();
                check_batch(&format!("{name}: {}", case.name), &batch, &case.expected);
                let arena = batch.arena().map(Tensor::nbytes);
                assert_eq!(arena, is_in(leaf).then_some(bytes as usize), "{name}");
            }
        }
    }
}

#[test]
fn large_leaves_on_several_threads() {
    let lengths = [40_000, 1, 90_000];
    let cases = [
        Case::new(rows(DType::F32, lengths), &Ask::side(Side::Right)),
        Case::new(rows(DType::U8, lengths), &Ask::ragged()),
        Case::new(rows(DType::I16, [60_001; 3]), &Ask::stack().cast(DType::I64)),
    ];
    let lists = plain(&cases);
    let engine = Engine::builder().threads(3).build().unwrap();
    // Junk in the block that the pool gives.
    let bytes = Plan::in_arena(&leaves(&lists, &cases)).unwrap().explain().arena_bytes;
    let junk = vec![0xEEu8; bytes as usize];
    let view = SampleView::from_slice(&junk, &[junk.len() as i64]).unwrap();
    drop(engine.assemble(&[view], &Collate::stack()).unwrap());
    run("junk", &engine, &leaves(&lists, &cases), &cases, Device::Cpu);
    let pool = engine.stats().pool;
    assert_eq!((pool.used_bytes, pool.misses, pool.hits), (0, 1, 1), "one allocation, no more");
}

#[test]
fn trees_of_nothing_and_of_one() {
    let engine = Engine::host();
    assert!(engine.run(Plan::in_arena(&[]).unwrap()).unwrap().is_empty());
    assert_eq!(Plan::in_arena(&[]).unwrap().explain().arena_bytes, 0);
    let cases = [Case::new(rows(DType::U8, [0; 3]), &Ask::stack())];
    let lists = plain(&cases);
    run("no bytes", &engine, &leaves(&lists, &cases), &cases, Device::Cpu);
    let cases = [Case::new(rows(DType::U8, [1; 3]), &Ask::stack())];
    let lists = plain(&cases);
    run("one leaf", &engine, &leaves(&lists, &cases), &cases, Device::Cpu);
}

#[test]
fn what_cannot_share_an_allocation() {
    let cases = [Case::new(rows(DType::U8, [2; 3]), &Ask::stack())];
    let lists = plain(&cases);
    let mut memory = [7u8; 18];
    let out = Target::from_slice(&mut memory, &[3, 2, 3]).unwrap();
    let leaf = leaves(&lists, &cases)[0];
    let error = Plan::in_arena(&[leaf, Leaf { out: Some(&out), path: "x.y", ..leaf }]).unwrap_err();
    let text =
        "at \"x.y\": an arena allocates its outputs itself, so it cannot be combined with out=";
    assert_eq!((error.kind(), error.path()), (ErrorKind::Argument, "x.y"));
    assert_eq!(error.to_string(), text);
    assert_eq!(memory, [7; 18]);

    let none = SampleList::new();
    let error = Plan::in_arena(&[leaf, Leaf { samples: &none, ..leaf }]).unwrap_err();
    assert_eq!(error, Error::Empty);
}

#[test]
fn sizes_beyond_memory_are_errors() {
    // One byte for all of a sample's elements.
    let byte = [1u8];
    let huge = |extent: i64| {
        let layout = windrow::Layout::try_new(DType::U8, &[extent], Some(&[0])).unwrap();
        SampleView::with_strides(&byte, &[extent], layout.strides()).unwrap()
    };
    let stack = Collate::stack();
    let mut list = SampleList::new();
    list.push_view(&huge(1 << 62)).unwrap();
    let leaf = Leaf { samples: &list, collate: &stack, path: "", out: None };
    let error = Plan::in_arena(&[leaf; 3]).unwrap_err();
    assert!(matches!(error, Error::TooLarge(_)), "{error}");
    let engine = Engine::host();
    let error = engine.run(Plan::in_arena(&[leaf]).unwrap()).unwrap_err();
    assert_eq!(error, Error::OutOfMemory { bytes: 1 << 62 });
    assert_eq!(engine.stats().pool.used_bytes, 0);
}

#[test]
fn memory_of_the_callers() {
    let cases = tree();
    let lists = plain(&cases);
    let leaves = leaves(&lists, &cases);
    let engine = Engine::host();
    let plan = || Plan::in_arena(&leaves).unwrap();
    let (bytes, explain) = (plan().arena_bytes() as usize, plan().explain());
    assert_eq!(bytes as u64, explain.arena_bytes);
    let run = |given: Tensor| {
        let mut options = RunOptions::default();
        options.arena = Some(given);
        engine.run_with(plan(), options)
    };
    // The arena begins at a cache line, like the engine's own.
    let memory = vec![0xEEu8; bytes + 300];
    let first = memory.as_ptr().align_offset(64);
    let whole = Tensor::from_vec(memory, &[bytes as i64 + 300]).unwrap();
    let given = whole.part(first as u64, DType::U8, &[bytes as i64 + 7]).unwrap();
    drop(whole);
    let address = given.data_ptr();
    let error = run(given.clone()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "arena: expected memory that nothing else holds, got shared memory"
    );
    let filled = run(given).unwrap();
    assert_eq!(filled[0].fields.arena.as_ref().map(|arena| arena.data_ptr()), Some(address));
    let explained = (explain.arena_bytes, explain.arena_gap_bytes);
    check("given memory", filled, &cases, Device::Cpu, explained);
    assert_eq!(engine.stats().pool.misses, 0);

    let small = Tensor::from_vec(vec![0u8; bytes - 1], &[bytes as i64 - 1]).unwrap();
    let error = run(small).unwrap_err();
    assert!(
        matches!(error, Error::Layout(_)) && error.to_string().starts_with("arena: "),
        "{error}"
    );
    let words = Tensor::from_vec(vec![0u64; bytes], &[bytes as i64]).unwrap();
    assert!(matches!(run(words), Err(Error::DType(_))));
}

#[test]
fn batches_that_do_not_fit_their_data() {
    let data = |shape: &[i64]| {
        Tensor::from_vec(vec![0u8; shape.iter().product::<i64>() as usize], shape).unwrap()
    };
    let lengths = |all: &[i64]| windrow::batch::SampleBounds::padded([(0, Side::Left)], all);
    let joined = |dim, all: &[i64]| {
        windrow::batch::SampleBounds::joined(
            dim,
            windrow::tensor::Offsets::from_lengths(all.iter().copied()).unwrap(),
        )
    };
    let make = |samples, parts| Batch::try_new(data(&[2, 3]), Fields::with_bounds(samples, parts));
    let rows = windrow::batch::SampleBounds::rows;
    for fits in [rows(), lengths(&[3, 0]), joined(0, &[2, 0]), joined(1, &[1, 2])] {
        let batch = make(2, fits.clone()).unwrap();
        assert!(batch.sample(0).is_ok() && batch.sample(1).is_ok(), "{fits:?}");
    }
    let twice = [(0, Side::Left); 2];
    let twice = windrow::batch::SampleBounds::padded(twice, [1, 1, 1, 1]);
    for parts in [lengths(&[3]), lengths(&[3, 4]), lengths(&[3, -1]), joined(0, &[2, 1]), twice] {
        assert!(matches!(make(2, parts), Err(Error::Argument(_))));
    }
    for (parts, text) in [
        (rows(), "rows"),
        (lengths(&[7; 10]), "10 lengths along 1 padded dims"),
        (joined(0, &[1; 10_000]), "10000 samples joined along dim 0, 10000 places together"),
    ] {
        let error = make(10_000, parts).unwrap_err().to_string();
        let samples = "10000 samples in data of shape [2, 3] do not fit the bounds";
        assert_eq!(error, format!("{samples}: {text}"));
    }
    for parts in [rows(), lengths(&[1; 3]), joined(0, &[2, 0]), joined(2, &[1, 1, 1])] {
        assert!(matches!(make(3, parts), Err(Error::Argument(_))));
    }
    assert!(make(usize::MAX, lengths(&[1])).is_err());
    assert!(Batch::try_new(data(&[]), Fields::with_bounds(1, rows())).is_err());
}

#[test]
fn parts_of_bytes() {
    let bytes = Tensor::from_vec((0..64).collect::<Vec<u8>>(), &[64]).unwrap();
    let part = bytes.part(8, DType::U8, &[2, 2]).unwrap();
    assert_eq!(part.as_slice::<u8>().unwrap(), [8, 9, 10, 11]);
    assert_eq!(bytes_of(&part.bytes().unwrap()), [8, 9, 10, 11]);
    assert_eq!(bytes.part(64, DType::F64, &[0]).unwrap().nbytes(), 0);
    for (byte_offset, extent) in [(57, 1), (64, 1), (65, 0), (0, 9), (u64::MAX, 1)] {
        let error = bytes.part(byte_offset, DType::F64, &[extent]).unwrap_err();
        assert!(matches!(error, Error::Layout(_)), "{byte_offset}: {error}");
    }
    let error = bytes.part(60, DType::I32, &[1, 2]).unwrap_err();
    assert_eq!(error.to_string(), "tensor: expected int32 (1, 2) at byte 60, got 64 bytes");
    let floats = Tensor::from_vec(vec![0f32; 4], &[4]).unwrap();
    let error = floats.part(0, DType::U8, &[4]).unwrap_err();
    assert_eq!(error.mismatch().map(|m| &m.got), Some(&ErrorValue::DType(DType::F32)));
    let column = bytes.bytes().unwrap();
    let layout = windrow::Layout::try_new(DType::U8, &[32], Some(&[2])).unwrap();
    let gaps = column.view(0, layout).unwrap();
    assert!(matches!(gaps.part(0, DType::U8, &[1]), Err(Error::Layout(_))));
    assert!(matches!(gaps.bytes(), Err(Error::Layout(_))));
}

#[cfg(feature = "cuda")]
mod on_device {
    use std::panic::{catch_unwind, AssertUnwindSafe};

    use super::*;
    use crate::common::device;
    use crate::common::placed::Copies;

    #[test]
    fn from_every_place_to_every_place() {
        let Some(engine) = device::engine() else { return };
        let cases = tree();
        let here = Device::Cuda(0);
        let all: Vec<&Sample> = cases.iter().flat_map(|case| &case.samples).collect();
        let bytes = Copies::<device::Bytes>::new(all.iter().map(|sample| sample.bytes()));
        let pinned = Copies::<device::PinnedBytes>::new(all.iter().map(|sample| sample.bytes()));
        let position = |sample: &Sample| all.iter().position(|s| std::ptr::eq(*s, sample)).unwrap();
        // SAFETY: copies of the samples' memory, which live until the results have been read.
        let on_device = lists(&cases, |sample| unsafe {
            sample.view_at(bytes.address(position(sample)), here)
        });
        // SAFETY: as above.
        let in_pinned = lists(&cases, |sample| unsafe {
            sample.view_at(pinned.address(position(sample)), Device::Pinned)
        });
        let sources = [("host", plain(&cases)), ("device", on_device), ("pinned", in_pinned)];
        for device in [here, Device::Cpu, Device::Pinned] {
            let collates: Vec<Collate> =
                cases.iter().map(|case| case.collate.clone().device(device)).collect();
            for (source, lists) in &sources {
                let mut leaves = leaves(lists, &cases);
                for (leaf, collate) in leaves.iter_mut().zip(&collates) {
                    leaf.collate = collate;
                }
                let name = format!("{source} to {device}");
                run(&name, engine, &leaves, &cases, device);
            }
        }
        drop(sources);
        let stats = engine.stats();
        assert_eq!((stats.device_bytes, stats.pinned_bytes.1, stats.pool.used_bytes), (0, 0, 0));
    }

    /// Samples of a case that share an allocation, see `common::placed`.
    #[test]
    fn a_write_beside_a_shared_sample_is_found() {
        let Some(_) = device::engine() else { return };
        let samples = [Sample::new(DType::U8, &[100], 1), Sample::new(DType::U8, &[0], 2)];
        let copies = Copies::<device::Bytes>::in_one(samples.iter().map(Sample::bytes));
        let end = copies.address(0) + 100;
        copies.check("nothing", 0);
        for (address, first_output, is_found) in [
            (end - 1, 0, false),
            (end - 1, 1, true),
            (end, 0, true),
            (copies.address(0) - 1, 0, true),
        ] {
            let old = device::read(address, 1)[0];
            let write = |value| {
                device::enter();
                // SAFETY: a byte of the allocation.
                assert_eq!(unsafe { device::cuMemsetD8Async(address, value, 1, 0) }, 0);
            };
            write(!old);
            let check = AssertUnwindSafe(|| copies.check("a byte", first_output));
            assert_eq!(catch_unwind(check).is_err(), is_found, "{address:#x}, {first_output}");
            write(old);
        }
    }

    #[test]
    fn leaves_in_two_places() {
        let Some(engine) = device::engine() else { return };
        let cases = [Case::new(rows(DType::U8, [2; 3]), &Ask::stack())];
        let lists = plain(&cases);
        let leaf = leaves(&lists, &cases)[0];
        let elsewhere = cases[0].collate.clone().device(Device::Cuda(0));
        let leaves = [leaf, Leaf { collate: &elsewhere, path: "y", ..leaf }];
        let error = Plan::in_arena(&leaves).unwrap_err();
        let text = "sample 0 at \"y\": expected cpu, got cuda:0; an arena is in one place: .device(Device) says which";
        assert_eq!(error.to_string(), text);
        assert_eq!(engine.run(Plan::for_leaves(&leaves).unwrap()).unwrap().len(), 2);
    }
}
