//! How long memory and owners are kept alive.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use windrow::engine::RunOptions;
use windrow::tensor::Owner;
use windrow::{Collate, DType, Device, Engine, Ragged, SampleView};

use crate::rig::{
    consume, engine, hold, on_gpu, run, Buffer, ForeignStream, Gpu, Paused, Rows, HERE,
};

/// Counts when it is let go.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

pub fn counted(count: &Arc<AtomicUsize>) -> Owner {
    Arc::new(Counted(Arc::clone(count)))
}

pub fn keeping(owners: Vec<Owner>) -> RunOptions {
    let mut options = RunOptions::default();
    options.keep = owners;
    options
}

/// Long enough for what the streams may do at all.
pub fn settle() {
    thread::sleep(Duration::from_millis(20));
}

/// Samples on the device with an owner given in the options, and one of a tensor.
fn held_call(gpu: &Gpu, then: impl FnOnce(Engine, &dyn Fn())) {
    let count = Arc::new(AtomicUsize::new(0));
    let engine = engine();
    let rows = Rows::new(1, DType::U8, &[&[100]]);
    let memory = rows.upload(gpu);
    let held = hold(gpu);
    let samples = rows.at([memory[0].address]);
    let options = keeping(vec![counted(&count)]);
    drop(run(&engine, &samples, &Collate::stack(), options).unwrap());

    let layout = windrow::Layout::compact(DType::U8, &[100]).unwrap();
    let data = memory[0].address as *mut u8;
    // SAFETY: the buffer outlives the test's work.
    let tensor = unsafe {
        windrow::Tensor::new_unchecked(counted(&count), data, DType::U8, HERE, layout, true)
    };
    drop(engine.assemble(&[SampleView::from(&tensor)], &Collate::stack()).unwrap());
    drop(tensor);

    let number = || count.load(Ordering::Relaxed);
    settle();
    assert_eq!(number(), 0);
    // The next call looks, and finds nothing done.
    drop(run(&engine, &samples, &Collate::stack(), keeping(vec![])).unwrap());
    assert_eq!(number(), 0);
    drop(held);
    gpu.sim.synchronize_all();
    assert_eq!(number(), 0);
    let check = || assert_eq!(number(), 2);
    then(engine, &check);
    assert_eq!(number(), 2);
}

#[test]
fn samples_are_let_go_by_the_next_call() {
    on_gpu(|gpu| {
        held_call(gpu, |engine, check| {
            let rows = Rows::new(1, DType::U8, &[&[100]]);
            let batch = engine.assemble(&rows.on_host(), &Collate::stack()).unwrap();
            check();
            drop(batch);
        });
    });
}

#[test]
fn samples_are_let_go_with_their_batch() {
    on_gpu(|gpu| {
        let (engine, rows) = (engine(), Rows::new(1, DType::U8, &[&[100]]));
        let memory = rows.upload(gpu);
        let samples = rows.at([memory[0].address]);
        let (count, number) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::load);
        let batch =
            || run(&engine, &samples, &Collate::stack(), keeping(vec![counted(&count)])).unwrap();
        let checked = batch();
        checked.check().unwrap();
        assert_eq!(number(&count, Ordering::Relaxed), 1);
        let dropped = batch();
        gpu.sim.synchronize_all();
        drop(dropped);
        assert_eq!(number(&count, Ordering::Relaxed), 2);
    });
}

#[test]
fn samples_are_let_go_by_emptying_the_cache_and_by_the_end_of_the_engine() {
    on_gpu(|gpu| {
        held_call(gpu, |engine, check| {
            engine.empty_cache();
            check();
        });
        held_call(gpu, |engine, check| {
            drop(engine);
            check();
        });
    });
}

#[test]
fn the_end_of_an_engine_waits_for_the_samples_being_read() {
    on_gpu(|gpu| {
        let count = Arc::new(AtomicUsize::new(0));
        let (engine, rows) = (engine(), Rows::new(1, DType::U8, &[&[100]]));
        let memory = rows.upload(gpu);
        let held = hold(gpu);
        let samples = rows.at([memory[0].address]);
        let options = keeping(vec![counted(&count)]);
        let batch = run(&engine, &samples, &Collate::stack(), options).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| drop(engine));
            settle();
            assert_eq!(count.load(Ordering::Relaxed), 0);
            drop(held);
        });
        assert_eq!(count.load(Ordering::Relaxed), 1);
        // The batch outlives its engine.
        let consumer = ForeignStream::new(gpu);
        assert_eq!(consume(&consumer, &batch), rows.bytes);
        drop(batch);
    });
}

/// An owner that asks for more than memory when it is let go, as a Python object may.
struct Reentrant(Engine);

impl Drop for Reentrant {
    fn drop(&mut self) {
        self.0.empty_cache();
        let rows = Rows::new(1, DType::U8, &[&[10]]);
        drop(self.0.assemble(&rows.on_host(), &Collate::stack()).unwrap());
        assert_eq!(self.0.stats().device_bytes, 0);
    }
}

#[test]
fn owners_may_use_the_engine_when_they_are_let_go() {
    on_gpu(|gpu| {
        let (engine, rows) = (engine(), Rows::new(1, DType::U8, &[&[10]]));
        let memory = rows.upload(gpu);
        for empties in [true, false] {
            let options = keeping(vec![Arc::new(Reentrant(engine.clone()))]);
            let samples = rows.at([memory[0].address]);
            drop(run(&engine, &samples, &Collate::stack(), options).unwrap());
            gpu.sim.synchronize_all();
            match empties {
                true => engine.empty_cache(),
                false => drop(engine.assemble(&samples, &Collate::stack()).unwrap()),
            }
        }
    });
}

#[test]
fn a_batch_dropped_early_is_there_until_its_consumer_is_done() {
    on_gpu(|gpu| {
        let (engine, consumer) = (engine(), ForeignStream::new(gpu));
        let rows = Rows::new(3, DType::U8, &[&[5000]]);
        let (memory, copy) = (rows.upload(gpu), Buffer::poisoned(gpu, 5000));
        let paused = consumer.pause();
        let samples = rows.at([memory[0].address]);
        let batch = engine.assemble(&samples, &Collate::stack()).unwrap();
        batch.data().ready_on(consumer.stream()).unwrap();
        consumer.copy(&copy, batch.data());
        drop(batch);
        settle();
        // Others take memory of the same size meanwhile.
        let others: Vec<_> =
            (0..4).map(|_| engine.assemble(&samples, &Collate::stack()).unwrap()).collect();
        others.iter().for_each(|other| other.data().synchronize().unwrap());
        drop(paused);
        assert_eq!(copy.read(), rows.bytes[0]);
        drop(others);
        assert_eq!(engine.stats().device_bytes, 0);
    });
}

#[test]
fn slots_and_tables_wait_for_their_copies() {
    on_gpu(|gpu| {
        let (engine, work, consumer) = (engine(), ForeignStream::new(gpu), ForeignStream::new(gpu));
        let shapes: Vec<&[i64]> = (0..2600).map(|i| [&[3][..], &[5]][i % 2]).collect();
        let all: Vec<_> = (0..4).map(|seed| Rows::new(seed, DType::U8, &shapes)).collect();
        let paused = work.pause();
        // Uploads, and tables of more than 32 kB, all behind a stream that stands still.
        let batches: Vec<_> = all
            .iter()
            .map(|rows| {
                let cast = Collate::ragged(Ragged::new()).cast(DType::I16);
                let uploaded = engine.assemble_on(&rows.on_host(), &cast, &work.stream()).unwrap();
                (uploaded, rows.expected(&cast))
            })
            .collect();
        settle();
        drop(paused);
        for (batch, expected) in &batches {
            assert!(consume(&consumer, batch) == *expected);
        }
        // Everything is used again, not allocated anew.
        let pinned = engine.stats().pinned_bytes;
        assert_eq!(pinned.1, 0);
        drop(engine.assemble(&all[0].on_host(), &Collate::ragged(Ragged::new())).unwrap());
        assert_eq!(engine.stats().pinned_bytes, pinned);
    });
}

#[test]
fn a_batch_on_the_stream_of_its_thread_may_end_on_another() {
    on_gpu(|gpu| {
        let engine = engine();
        let rows = Rows::new(3, DType::U8, &[&[400]]);
        let (memory, copy) = (rows.upload(gpu), Buffer::poisoned(gpu, 400));
        // SAFETY: each thread has such a stream.
        let thread_stream = unsafe { windrow::Stream::from_raw(2) };
        let batch = engine.assemble(&rows.at([memory[0].address]), &Collate::stack()).unwrap();
        gpu.sim.set_delay_us(3000);
        ForeignStream::linger_on(gpu, 2);
        batch.data().ready_on(thread_stream).unwrap();
        let from = batch.data().data_ptr() as u64;
        assert_eq!(gpu.cuMemcpyDtoDAsync_v2(copy.address, from, 400, 2), 0);
        thread::scope(|scope| scope.spawn(|| drop(batch)).join().unwrap());
        assert_eq!(copy.read(), rows.bytes[0]);
        gpu.sim.set_delay_us(0);
    });
}

#[test]
fn a_sample_outlives_the_engine_that_read_it() {
    on_gpu(|gpu| {
        let (one, two, consumer) = (engine(), engine(), ForeignStream::new(gpu));
        let rows = Rows::new(3, DType::U8, &[&[400]]);
        let a = one.assemble(&rows.on_host(), &Collate::stack()).unwrap();
        let b = two.assemble(&[SampleView::from(a.data())], &Collate::stack()).unwrap();
        let c = one.assemble(&[SampleView::from(a.data())], &Collate::stack()).unwrap();
        // The batches' streams are destroyed; the records of them stay.
        drop((one, two));
        for batch in [a, b, c] {
            assert_eq!(consume(&consumer, &batch), rows.bytes);
        }
    });
}

#[test]
fn a_device_is_left_with_the_last_that_is_on_it() {
    on_gpu(|gpu| {
        let is_used = || {
            let (mut flags, mut active) = (0, 0);
            assert_eq!(gpu.cuDevicePrimaryCtxGetState(1, &mut flags, &mut active), 0);
            active != 0
        };
        assert!(!is_used());
        let (engine, rows) = (Engine::cuda(1).unwrap(), Rows::new(1, DType::U8, &[&[100]]));
        let batch = engine.assemble(&rows.on_host(), &Collate::stack()).unwrap();
        assert_eq!(batch.data().device(), Device::Cuda(1));
        drop(engine);
        assert!(is_used());
        drop(batch);
        assert!(!is_used());
    });
}

/// The device has no other memory pools.
#[test]
fn the_pool_of_the_device_is_everybodys() {
    on_gpu(|gpu| {
        let (rows, lane) = (Rows::new(1, DType::U8, &[&[100], &[3]]), ForeignStream::new(gpu));
        for _ in 0..2 {
            gpu.sim.fail_function("cuMemPoolCreate", 1, 801);
            let engine = engine();
            let batch = engine.assemble(&rows.on_host(), &Collate::ragged(Ragged::new())).unwrap();
            assert_eq!(consume(&lane, &batch), rows.expected(&Collate::ragged(Ragged::new())));
        }
        // Then it releases what is unused.
        assert_eq!(gpu.cuCtxSynchronize(), 0);
    });
}

/// Pageable memory may be written to when the call has returned, whatever the device has done by then.
#[test]
fn pageable_samples_have_been_read_when_the_call_returns() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        for dtype in [DType::U8, DType::U16] {
            let mut bytes = vec![5u8; 300];
            let layout = windrow::Layout::compact(DType::U8, &[300]).unwrap();
            // SAFETY: the bytes stay where they are until the batch has been read.
            let sample = unsafe {
                SampleView::from_raw_parts(bytes.as_mut_ptr(), DType::U8, Device::Cpu, layout)
            };
            let paused = Paused::stream(gpu, engine.stream(0).unwrap().handle());
            let batch = engine.assemble(&[sample], &Collate::stack().cast(dtype)).unwrap();
            bytes.fill(9);
            drop(paused);
            let five: &[u8] = if dtype == DType::U8 { &[5] } else { &[5, 0] };
            assert_eq!(consume(&lane, &batch), [five.repeat(300)]);
        }
    });
}

/// Memory that a dropped batch has left goes to the next one on its stream, not to one on another that has its handle by then:
/// consumers of the batch may still be at work.
#[test]
fn a_stream_by_the_handle_of_another_takes_none_of_its_memory() {
    on_gpu(|gpu| {
        let engine = engine();
        let [old, new] = [1, 2].map(|seed| Rows::new(seed, DType::U8, &[&[3000]]));
        let (old_memory, new_memory) = (old.upload(gpu), new.upload(gpu));
        let [before, after] =
            [(&old, &old_memory), (&new, &new_memory)].map(|(rows, m)| rows.at([m[0].address]));
        let copy = Buffer::poisoned(gpu, 3000);
        gpu.sim.set_delay_us(2000);
        let first = ForeignStream::new(gpu);
        let handle = first.handle;
        first.linger();
        let batch = engine.assemble_on(&before, &Collate::stack(), &first.stream()).unwrap();
        first.copy(&copy, batch.data());
        drop(batch);
        drop(first);
        gpu.sim.recycle(handle);
        let second = ForeignStream::new(gpu);
        assert_eq!(second.handle, handle);
        let batch = engine.assemble_on(&after, &Collate::stack(), &second.stream()).unwrap();
        gpu.sim.synchronize_all();
        assert_eq!(copy.read(), old.bytes[0]);
        assert_eq!(consume(&second, &batch), new.bytes);
        gpu.sim.set_delay_us(0);
    });
}

/// Memory beyond the limit goes to all streams, behind its writing and what has been enqueued on its stream.
#[test]
fn more_dropped_batches_than_are_kept() {
    more_dropped_batches(false);
}

#[test]
fn more_dropped_batches_of_the_engines_own_stream_than_are_kept() {
    more_dropped_batches(true);
}

fn more_dropped_batches(is_own: bool) {
    on_gpu(|gpu| {
        let (engine, foreign, other) = (engine(), ForeignStream::new(gpu), ForeignStream::new(gpu));
        let handle = engine.stream(0).unwrap().handle();
        let own = ManuallyDrop::new(ForeignStream { gpu, handle });
        let late = if is_own { &*own } else { &foreign };
        let [old, new] = [1, 2].map(|seed| Rows::new(seed, DType::U8, &[&[3000]]));
        let (old_memory, new_memory) = (old.upload(gpu), new.upload(gpu));
        let [before, after] =
            [(&old, &old_memory), (&new, &new_memory)].map(|(rows, m)| rows.at([m[0].address]));
        let stack = Collate::stack();
        let copies: Vec<_> = (0..70).map(|_| Buffer::poisoned(gpu, 3000)).collect();
        let paused = late.pause();
        let batch = |_| engine.assemble_on(&before, &stack, &late.stream()).unwrap();
        let batches: Vec<_> = copies.iter().map(batch).collect();
        for (copy, batch) in copies.iter().zip(&batches) {
            late.copy(copy, batch.data());
        }
        drop(batches);
        let batches: Vec<_> =
            (0..10).map(|_| engine.assemble_on(&after, &stack, &other.stream()).unwrap()).collect();
        settle();
        drop(paused);
        gpu.sim.synchronize_all();
        for batch in &batches {
            assert_eq!(consume(&other, batch), new.bytes);
        }
        for copy in &copies {
            assert_eq!(copy.read(), old.bytes[0]);
        }
    });
}

/// A consumer may destroy its stream before it releases the batch.
#[test]
fn a_batch_outlives_the_stream_it_was_handed_to() {
    on_gpu(|gpu| {
        let (engine, rows) = (engine(), Rows::new(1, DType::U8, &[&[3000]]));
        let memory = rows.upload(gpu);
        let samples = rows.at([memory[0].address]);
        for is_last in [false, true] {
            // More than are kept before the device is waited for.
            for _ in 0..70 {
                let consumer = ForeignStream::new(gpu);
                let batch = engine.assemble(&samples, &Collate::stack()).unwrap();
                batch.data().ready_on_borrowed(consumer.stream()).unwrap();
                drop(consumer);
                drop(batch);
            }
            match is_last {
                true => break,
                false => engine.empty_cache(),
            }
        }
        assert_eq!(engine.stats().device_bytes, 0);
    });
}

/// Memory that a consumer was handed goes back behind what is on the stream when it is named again.
#[test]
fn memory_of_a_consumer_goes_back_when_its_stream_is_named_again() {
    on_gpu(|gpu| {
        let (engine, consumer) = (engine(), ForeignStream::new(gpu));
        let rows: Vec<_> = (0..6).map(|seed| Rows::new(seed, DType::U8, &[&[3000]])).collect();
        let memory: Vec<_> = rows.iter().map(|rows| rows.upload(gpu)).collect();
        let copies: Vec<_> = rows.iter().map(|_| Buffer::poisoned(gpu, 3000)).collect();
        let paused = consumer.pause();
        let mut addresses = std::collections::BTreeSet::new();
        for ((rows, memory), copy) in rows.iter().zip(&memory).zip(&copies) {
            let samples = rows.at([memory[0].address]);
            let batch = engine.assemble(&samples, &Collate::stack()).unwrap();
            batch.data().ready_on_borrowed(consumer.stream()).unwrap();
            consumer.copy(copy, batch.data());
            addresses.insert(batch.data().data_ptr());
        }
        settle();
        drop(paused);
        for (rows, copy) in rows.iter().zip(&copies) {
            assert_eq!(copy.read(), rows.bytes[0]);
        }
        // Nothing has waited meanwhile; once the consumer is done, it is used again.
        assert_eq!((addresses.len(), engine.stats().waits), (6, 0));
        for _ in 0..20 {
            let samples = rows[0].at([memory[0][0].address]);
            let batch = engine.assemble(&samples, &Collate::stack()).unwrap();
            batch.data().ready_on_borrowed(consumer.stream()).unwrap();
            gpu.sim.synchronize_all();
            addresses.insert(batch.data().data_ptr());
        }
        assert!(addresses.len() <= 8, "{}", addresses.len());
    });
}
