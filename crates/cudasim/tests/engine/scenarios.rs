//! Programs in which a missing wait, or memory let go too early, gives wrong bytes under some delays.

use cudasim::Sim;
use windrow::engine::RunOptions;
use windrow::{Collate, DType, Device, Engine, Pad, Ragged, SampleList, SampleView, Transform};

use crate::calls::Tree;
use crate::rig::{consume, engine, host_bytes, run, Buffer, ForeignStream, Gpu, Rows, HERE};

/// Says what went wrong.
type Outcome = Result<(), String>;

pub struct Scenario {
    pub name: &'static str,
    pub run: fn(&Gpu, u64) -> Outcome,
}

macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        pub const ALL: &[Scenario] =
            &[$(Scenario { name: stringify!($name), run: $name }),*];
    };
}

scenarios! {
    producers, ordered_by_hand, chain_on_streams, chain_of_engines, written_again, overwritten, small_uploads, staged_uploads,
    chunks, pinned_samples, to_the_host, to_pinned, large_tables, dropped_at_once, legacy_stream, trees, resident_list,
}

/// Misuse that a scenario has led to.
pub fn misuse(sim: &Sim) -> Outcome {
    sim.check_memory();
    match sim.take_errors().as_slice() {
        [] => Ok(()),
        errors => Err(errors.join("\n")),
    }
}

fn same(what: &str, got: &[Vec<u8>], expected: &[Vec<u8>]) -> Outcome {
    match got == expected {
        true => Ok(()),
        false => Err(format!("{what}: wrong bytes")),
    }
}

fn padded() -> Collate {
    Collate::pad(Pad::new().value(7)).transform(Transform::new().scale(0.5)).cast(DType::F32)
}

const UNEVEN: &[&[i64]] = &[&[40, 3], &[7, 3], &[0, 3], &[64, 3]];

/// Several streams write the samples; another reads the batch.
fn producers(gpu: &Gpu, seed: u64) -> Outcome {
    let (engine, rows) = (engine(), Rows::new(seed, DType::U8, UNEVEN));
    let (lanes, consumer) =
        ([ForeignStream::new(gpu), ForeignStream::new(gpu)], ForeignStream::new(gpu));
    let memory: Vec<_> =
        rows.bytes.iter().map(|bytes| Buffer::poisoned(gpu, bytes.len())).collect();
    lanes.iter().for_each(ForeignStream::linger);
    for (index, (buffer, bytes)) in memory.iter().zip(&rows.bytes).enumerate() {
        lanes[index % 2].write(buffer.address, bytes);
    }
    let mut options = RunOptions::default();
    options.producers = [0, 1, 0].map(|lane: usize| lanes[lane].stream()).to_vec();
    let batch = run(&engine, &rows.at(memory.iter().map(|b| b.address)), &padded(), options);
    let got = consume(&consumer, &batch.unwrap());
    engine.empty_cache();
    same("batch", &got, &rows.expected(&padded()))
}

/// The same told to the engine beforehand, for the stream of its own.
fn ordered_by_hand(gpu: &Gpu, seed: u64) -> Outcome {
    let (engine, rows) = (engine(), Rows::new(seed, DType::U8, UNEVEN));
    let (lanes, consumer) =
        ([ForeignStream::new(gpu), ForeignStream::new(gpu)], ForeignStream::new(gpu));
    let memory: Vec<_> =
        rows.bytes.iter().map(|bytes| Buffer::poisoned(gpu, bytes.len())).collect();
    lanes.iter().for_each(ForeignStream::linger);
    for (index, (buffer, bytes)) in memory.iter().zip(&rows.bytes).enumerate() {
        lanes[index % 2].write(buffer.address, bytes);
    }
    engine
        .order(0, &lanes.each_ref().map(ForeignStream::stream), engine.stream(0).unwrap())
        .unwrap();
    let batch = engine.assemble(&rows.at(memory.iter().map(|b| b.address)), &padded());
    let got = consume(&consumer, &batch.unwrap());
    engine.empty_cache();
    same("batch", &got, &rows.expected(&padded()))
}

/// A batch on one stream is a sample of the next on another, and let go before it is read.
fn chain_on_streams(gpu: &Gpu, seed: u64) -> Outcome {
    let (engine, rows) = (engine(), Rows::new(seed, DType::F32, &[&[50], &[50]]));
    let (first, second, third) =
        (ForeignStream::new(gpu), ForeignStream::new(gpu), ForeignStream::new(gpu));
    let memory = rows.upload(gpu);
    let samples = rows.at(memory.iter().map(|b| b.address));
    first.linger();
    let a = engine.assemble_on(&samples, &Collate::stack(), &first.stream()).unwrap();
    let views = [SampleView::from(a.data()), SampleView::from(a.data())];
    second.linger();
    let b = engine.assemble_on(&views, &Collate::stack(), &second.stream()).unwrap();
    drop(views);
    drop(a);
    // Memory that was free too early is written by this one.
    let c = engine.assemble_on(&samples, &Collate::stack(), &third.stream()).unwrap();
    let got = [consume(&third, &b), consume(&first, &c)].concat();
    drop((b, c));
    engine.empty_cache();
    let once = rows.bytes.concat();
    same("batches", &got, &[[&once[..], &once[..]].concat(), once])
}

/// The same between engines, which have streams of their own.
fn chain_of_engines(gpu: &Gpu, seed: u64) -> Outcome {
    let (one, two) = (engine(), engine());
    let (rows, consumer) = (Rows::new(seed, DType::U8, UNEVEN), ForeignStream::new(gpu));
    let a = one.assemble(&rows.on_host(), &Collate::ragged(Ragged::new().batch_index())).unwrap();
    let b = two.assemble(&[SampleView::from(a.data())], &Collate::stack()).unwrap();
    drop(one);
    let before = consume(&consumer, &a);
    drop(a);
    let got = consume(&consumer, &b);
    drop(b);
    two.empty_cache();
    same("ragged", &before, &rows.expected(&Collate::ragged(Ragged::new().batch_index())))?;
    same("stack", &got, &[rows.bytes.concat()])
}

/// A batch is the output of the next call while others read it.
fn written_again(gpu: &Gpu, seed: u64) -> Outcome {
    let engine = engine();
    let (old, new) = ([0, 1].map(|i| Rows::new(2 * seed + i, DType::U8, &[&[300], &[300]]))).into();
    let (reader, writer, late) =
        (ForeignStream::new(gpu), ForeignStream::new(gpu), ForeignStream::new(gpu));
    let copy = Buffer::poisoned(gpu, 600);
    let (old_memory, new_memory) = (Rows::upload(&old, gpu), Rows::upload(&new, gpu));
    let at = |rows: &Rows, memory: &[Buffer<'_>]| rows.at(memory.iter().map(|b| b.address));
    let samples = at(&old, &old_memory);
    writer.linger();
    let mut batch = engine.assemble_on(&samples, &Collate::stack(), &writer.stream()).unwrap();
    batch.data().ready_on(reader.stream()).unwrap();
    reader.linger();
    reader.copy(&copy, batch.data());
    let samples = at(&new, &new_memory);
    engine.assemble_into(&samples, &Collate::stack(), &mut batch).unwrap();
    let got = consume(&late, &batch);
    // The batch is written once more, and dropped with the work under way.
    engine.assemble_into(&samples, &Collate::stack(), &mut batch).unwrap();
    drop(batch);
    engine.empty_cache();
    same("new contents", &got, &[new.bytes.concat()])?;
    same("old contents", &[copy.read()], &[old.bytes.concat()])
}

/// The same while the first write, or a batch of which it is a sample, is still to come.
fn overwritten(gpu: &Gpu, seed: u64) -> Outcome {
    let engine = engine();
    let [old, new] = [0, 1].map(|i| Rows::new(2 * seed + i, DType::U8, &[&[300], &[300]]));
    let (writer, reader, late) =
        (ForeignStream::new(gpu), ForeignStream::new(gpu), ForeignStream::new(gpu));
    let (old_memory, new_memory) = (old.upload(gpu), new.upload(gpu));
    let before = old.at(old_memory.iter().map(|b| b.address));
    let after = new.at(new_memory.iter().map(|b| b.address));
    let stack = Collate::stack();
    writer.linger();
    let mut a = engine.assemble_on(&before, &stack, &writer.stream()).unwrap();
    engine.assemble_into(&after, &stack, &mut a).unwrap();
    let mut b = engine.assemble_on(&before, &stack, &writer.stream()).unwrap();
    reader.linger();
    let c = engine.assemble_on(&[SampleView::from(b.data())], &stack, &reader.stream()).unwrap();
    engine.assemble_into(&after, &stack, &mut b).unwrap();
    let got = [consume(&late, &a), consume(&late, &b), consume(&late, &c)].concat();
    drop((a, b, c));
    engine.empty_cache();
    same("batches", &got, &[new.bytes.concat(), new.bytes.concat(), old.bytes.concat()])
}

/// Page-locked slots are used again and again.
fn small_uploads(gpu: &Gpu, seed: u64) -> Outcome {
    let (engine, consumer) = (engine(), ForeignStream::new(gpu));
    let all: Vec<_> =
        (0..6).map(|i| Rows::new(6 * seed + i, DType::I16, &[&[300], &[200]])).collect();
    let upload =
        |rows: &Rows| engine.assemble(&rows.on_host(), &Collate::ragged(Ragged::new())).unwrap();
    let batches: Vec<_> = all.iter().map(upload).collect();
    for (rows, batch) in all.iter().zip(batches) {
        same(
            "batch",
            &consume(&consumer, &batch),
            &rows.expected(&Collate::ragged(Ragged::new())),
        )?;
    }
    engine.empty_cache();
    Ok(())
}

/// Samples go to memory that the work itself needs.
fn staged_uploads(gpu: &Gpu, seed: u64) -> Outcome {
    let (engine, consumer) = (engine(), ForeignStream::new(gpu));
    let all: Vec<_> = (0..4).map(|i| Rows::new(4 * seed + i, DType::U8, UNEVEN)).collect();
    let upload = |rows: &Rows| engine.assemble(&rows.on_host(), &padded()).unwrap();
    let batches: Vec<_> = all.iter().map(upload).collect();
    for (rows, batch) in all.iter().zip(batches) {
        same("batch", &consume(&consumer, &batch), &rows.expected(&padded()))?;
    }
    engine.empty_cache();
    Ok(())
}

/// More chunks than are under way at once; few distinct bytes, for it is many.
fn chunks(gpu: &Gpu, seed: u64) -> Outcome {
    let (engine, consumer) = (engine(), ForeignStream::new(gpu));
    let row: Vec<u8> = Rows::new(seed, DType::U8, &[&[65_521]]).bytes.remove(0);
    let samples: SampleList<'_> =
        (0..330).map(|_| SampleView::from_slice(&row, &[65_521]).unwrap()).collect();
    let batch = engine.assemble(&samples, &Collate::stack()).unwrap();
    let got = consume(&consumer, &batch);
    match got[0].chunks(row.len()).all(|got| got == row) && got[0].len() == 330 * row.len() {
        true => Ok(()),
        false => Err("wrong bytes".into()),
    }
}

/// Page-locked samples that are still to be written, read by the kernel or copied.
fn pinned_samples(gpu: &Gpu, seed: u64) -> Outcome {
    let (engine, lane, consumer) = (engine(), ForeignStream::new(gpu), ForeignStream::new(gpu));
    for shapes in [UNEVEN, &[&[20_000, 3], &[7, 3]]] {
        let rows = Rows::new(seed, DType::U8, shapes);
        let (memory, pinned) = (rows.upload(gpu), rows.pinned(gpu));
        lane.linger();
        for (from, to) in memory.iter().zip(&pinned.addresses) {
            let to = *to as *mut std::ffi::c_void;
            assert_eq!(gpu.cuMemcpyDtoHAsync_v2(to.cast(), from.address, from.len, lane.handle), 0);
        }
        let mut options = RunOptions::default();
        options.producers = vec![lane.stream()];
        let batch = run(&engine, &rows.on(Device::Pinned, &pinned.addresses), &padded(), options);
        let got = consume(&consumer, &batch.unwrap());
        same("batch", &got, &rows.expected(&padded()))?;
    }
    engine.empty_cache();
    Ok(())
}

fn home(gpu: &Gpu, seed: u64, device: Device) -> Outcome {
    let engine = engine();
    let collate = padded().device(device);
    let (rows, lane) = (Rows::new(seed, DType::U8, UNEVEN), ForeignStream::new(gpu));
    let memory: Vec<_> =
        rows.bytes.iter().map(|bytes| Buffer::poisoned(gpu, bytes.len())).collect();
    lane.linger();
    for (buffer, bytes) in memory.iter().zip(&rows.bytes) {
        lane.write(buffer.address, bytes);
    }
    let mut options = RunOptions::default();
    options.producers = vec![lane.stream()];
    let batch = run(&engine, &rows.at(memory.iter().map(|b| b.address)), &collate, options);
    let batch = batch.unwrap();
    let got: Vec<_> = crate::rig::parts(&batch).into_iter().map(host_bytes).collect();
    drop(batch);
    engine.empty_cache();
    same("batch", &got, &rows.expected(&collate))
}

fn to_the_host(gpu: &Gpu, seed: u64) -> Outcome {
    home(gpu, seed, Device::Cpu)
}

fn to_pinned(gpu: &Gpu, seed: u64) -> Outcome {
    home(gpu, seed, Device::Pinned)
}

/// Tables that do not fit into parameters, one call behind the other.
fn large_tables(gpu: &Gpu, seed: u64) -> Outcome {
    let (engine, consumer) = (engine(), ForeignStream::new(gpu));
    let shapes: Vec<&[i64]> = (0..2600).map(|i| [&[3][..], &[1], &[8]][i % 3]).collect();
    let all: Vec<_> = (0..3).map(|i| Rows::new(3 * seed + i, DType::U8, &shapes)).collect();
    let memory: Vec<_> =
        all.iter().map(|rows| Buffer::from_bytes(gpu, &rows.bytes.concat())).collect();
    let mut batches = Vec::new();
    for (rows, buffer) in all.iter().zip(&memory) {
        let ends = rows.bytes.iter().scan(buffer.address, |at, bytes| {
            *at += bytes.len() as u64;
            Some(*at - bytes.len() as u64)
        });
        let backwards = rows.at(ends);
        batches.push(engine.assemble(&backwards, &Collate::pad(Pad::new())).unwrap());
    }
    for (rows, batch) in all.iter().zip(batches) {
        same("batch", &consume(&consumer, &batch), &rows.expected(&Collate::pad(Pad::new())))?;
    }
    engine.empty_cache();
    Ok(())
}

/// Batches that nothing waits for, and memory that goes to the next ones.
fn dropped_at_once(gpu: &Gpu, seed: u64) -> Outcome {
    let (engine, consumer) = (engine(), ForeignStream::new(gpu));
    let rows = Rows::new(seed, DType::U8, &[&[3000], &[3000]]);
    let (memory, copy) = (rows.upload(gpu), Buffer::poisoned(gpu, 6000));
    let samples = rows.at(memory.iter().map(|b| b.address));
    for _ in 0..3 {
        drop(engine.assemble(&samples, &Collate::stack()).unwrap());
    }
    let batch = engine.assemble(&samples, &Collate::stack()).unwrap();
    batch.data().ready_on(consumer.stream()).unwrap();
    consumer.linger();
    consumer.copy(&copy, batch.data());
    drop(batch);
    for _ in 0..3 {
        drop(engine.assemble(&samples, &Collate::stack()).unwrap());
    }
    engine.empty_cache();
    same("copy", &[copy.read()], &[rows.bytes.concat()])
}

/// The default stream as producer, as consumer and as the place of the work.
fn legacy_stream(gpu: &Gpu, seed: u64) -> Outcome {
    let engine: Engine = engine();
    let rows = Rows::new(seed, DType::U8, &[&[500], &[500]]);
    let (memory, copy) = (Buffer::poisoned(gpu, 1000), Buffer::poisoned(gpu, 2000));
    let (legacy, bytes) = (windrow::Stream::LEGACY, rows.bytes.concat());
    ForeignStream::linger_on(gpu, 0);
    assert_eq!(gpu.cuMemcpyHtoDAsync_v2(memory.address, bytes.as_ptr().cast(), 1000, 0), 0);
    let samples = rows.at([memory.address, memory.address + 500]);
    let mut options = RunOptions::default();
    options.producers = vec![legacy];
    let a = run(&engine, &samples, &Collate::stack(), options).unwrap();
    let b = engine.assemble_on(&[SampleView::from(a.data())], &Collate::stack(), &legacy).unwrap();
    for (tensor, to) in [(a.data(), copy.address), (b.data(), copy.address + 1000)] {
        tensor.ready_on(legacy).unwrap();
        assert_eq!(gpu.cuMemcpyDtoDAsync_v2(to, tensor.data_ptr() as u64, 1000, 0), 0);
    }
    drop((a, b));
    engine.empty_cache();
    same("copies", &[copy.read()], &[[&bytes[..], &bytes[..]].concat()])
}

/// Trees from the host, each one copy and one launch, in an arena and not, on streams that take turns.
fn trees(gpu: &Gpu, seed: u64) -> Outcome {
    let (engine, consumer) = (engine(), ForeignStream::new(gpu));
    let lanes = [ForeignStream::new(gpu), ForeignStream::new(gpu)];
    let all: Vec<_> = (0..6).map(|i| Tree::new(6 * seed + i, 5, 300)).collect();
    lanes.iter().for_each(ForeignStream::linger);
    let assemble = |(number, tree): (usize, &Tree)| {
        tree.assemble(&engine, Some(lanes[number % 2].stream()), number % 3 == 0)
    };
    let made: Vec<_> = all.iter().enumerate().map(assemble).collect();
    for (tree, batches) in all.iter().zip(made) {
        for (rows, batch) in tree.0.iter().zip(batches) {
            same("leaf", &consume(&consumer, &batch), &[rows.bytes.concat()])?;
        }
    }
    engine.empty_cache();
    Ok(())
}

/// Indices that a stream writes late, for lists whose samples it writes too; tables that go to the next call.
fn resident_list(gpu: &Gpu, seed: u64) -> Outcome {
    let (engine, writer, consumer) = (engine(), ForeignStream::new(gpu), ForeignStream::new(gpu));
    let rows = Rows::new(seed, DType::U8, UNEVEN);
    let memory: Vec<_> =
        rows.bytes.iter().map(|bytes| Buffer::poisoned(gpu, bytes.len())).collect();
    let resident = engine.resident(rows.at(memory.iter().map(|b| b.address)), HERE).unwrap();
    let collate = Collate::pad(Pad::new().dims([0]).size(64).value(7));
    let places = [(); 3].map(|()| Buffer::poisoned(gpu, 5 * 8));
    writer.linger();
    for (buffer, bytes) in memory.iter().zip(&rows.bytes) {
        writer.write(buffer.address, bytes);
    }
    let mut batches = Vec::new();
    for (number, place) in places.iter().enumerate() {
        let chosen: Vec<i64> =
            (0..5).map(|i| (seed as i64 + i * 3 + number as i64).rem_euclid(4)).collect();
        let bytes: Vec<u8> = chosen.iter().flat_map(|n| n.to_ne_bytes()).collect();
        writer.write(place.address, &bytes);
        let mut options = RunOptions::default();
        options.producers = vec![writer.stream()];
        let taken = resident.take(&place.tensor(DType::I64, &[5])).unwrap();
        let batch = run(&engine, &taken, &collate, options).unwrap();
        // Memory of the first goes to the last.
        batches.push((chosen, (number != 0).then_some(batch)));
    }
    for (chosen, batch) in batches {
        let Some(batch) = batch else { continue };
        let pick = |from: &[Vec<i64>]| chosen.iter().map(|&i| from[i as usize].clone()).collect();
        let bytes = chosen.iter().map(|&i| rows.bytes[i as usize].clone()).collect();
        let expected = Rows { dtype: rows.dtype, shapes: pick(&rows.shapes), bytes };
        same("batch", &consume(&consumer, &batch), &expected.expected(&collate))?;
        batch.check().map_err(|error| error.to_string())?;
    }
    engine.empty_cache();
    Ok(())
}
