//! Waits that random delays seldom show: a stream stands still, and nothing gets ahead of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread;

use windrow::engine::{OutputMemory, RunOptions};
use windrow::tensor::Owner;
use windrow::{
    Collate, DType, Device, Engine, Error, Layout, Plan, SampleList, SampleView, Stream, Tensor,
};

use crate::lifetime::{counted, keeping, settle};
use crate::page_locked::{copy_slowly, elsewhere};
use crate::rig::{
    consume, engine, lent_by, on_gpu, run, Buffer, ForeignStream, Gpu, Paused, Rows, HERE,
};

/// The engine's own stream stands still.
pub fn pause_own<'g>(gpu: &'g Gpu, engine: &Engine) -> Paused<'g> {
    Paused::stream(gpu, engine.stream(0).unwrap().handle())
}

/// Runs `work` on another thread: it has not ended while the stream stands still, and ends after.
pub fn waits<T: Send>(paused: Paused<'_>, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let work = scope.spawn(work);
        settle();
        let early = work.is_finished();
        drop(paused);
        let result = work.join().unwrap();
        assert!(!early, "did not wait");
        result
    })
}

#[test]
fn a_call_that_fails_ends_behind_its_work() {
    on_gpu(|gpu| {
        let (engine, lane, rows) =
            (engine(), ForeignStream::new(gpu), Rows::new(1, DType::U8, &[&[300]]));
        let memory = rows.upload(gpu);
        let samples = rows.at([memory[0].address]);
        drop(engine.assemble(&samples, &Collate::stack()).unwrap());
        let paused = lane.pause();
        // Marks the end: the kernel is enqueued by then.
        gpu.sim.fail_function("cuEventRecord", 1, 400);
        let stream = lane.stream();
        let error = waits(paused, || {
            engine.assemble_on(&samples, &Collate::stack(), &stream).map(drop).unwrap_err()
        });
        assert!(matches!(error, Error::Cuda(e) if e.function == "cuEventRecord"));
    });
}

#[test]
fn zeros_are_there_when_they_are_handed_over() {
    on_gpu(|gpu| {
        let (engine, lane, copy) = (engine(), ForeignStream::new(gpu), Buffer::poisoned(gpu, 400));
        drop(engine.empty(DType::U8, &[400], HERE).unwrap());
        let paused = pause_own(gpu, &engine);
        let zeros = engine.empty(DType::U8, &[400], HERE).unwrap();
        zeros.ready_on(lane.stream()).unwrap();
        lane.copy(&copy, &zeros);
        settle();
        drop(paused);
        assert_eq!(copy.read(), [0; 400]);
    });
}

#[test]
fn to_synchronize_is_to_wait() {
    on_gpu(|gpu| {
        let (engine, rows) = (engine(), Rows::new(1, DType::U8, &[&[300]]));
        let paused = pause_own(gpu, &engine);
        let batch = engine.assemble(&rows.on_host(), &Collate::stack()).unwrap();
        waits(paused, || batch.data().synchronize().unwrap());
    });
}

#[test]
fn to_check_a_batch_is_to_wait_and_to_learn_of_failures() {
    on_gpu(|gpu| {
        let (engine, rows) = (engine(), Rows::new(1, DType::U8, &[&[300]]));
        let (out, other) = (Buffer::poisoned(gpu, 300), ForeignStream::new(gpu));
        // The outputs are in memory of the engine and of others.
        for options in [RunOptions::default(), lent_by(&other, out.tensor(DType::U8, &[1, 300]))] {
            let paused = pause_own(gpu, &engine);
            let collate = Collate::stack().device(HERE);
            let batch = run(&engine, &rows.on_host(), &collate, options).unwrap();
            waits(paused, || batch.check().unwrap());
            gpu.sim.fail_function("cuEventSynchronize", 1, 400);
            let error = batch.check().unwrap_err();
            assert!(matches!(error, Error::Cuda(e) if e.code == 400));
            batch.check().unwrap();
        }
        engine
            .assemble(&rows.on_host(), &Collate::stack().device(Device::Cpu))
            .unwrap()
            .check()
            .unwrap();
    });
}

#[test]
fn emptying_the_cache_waits_for_samples_being_read() {
    on_gpu(|gpu| {
        let (engine, rows) = (engine(), Rows::new(1, DType::U8, &[&[300]]));
        let (memory, count) = (rows.upload(gpu), Arc::new(AtomicUsize::new(0)));
        let paused = pause_own(gpu, &engine);
        let samples = rows.at([memory[0].address]);
        let batch = run(&engine, &samples, &Collate::stack(), keeping(vec![counted(&count)]));
        waits(paused, || engine.empty_cache());
        assert_eq!(count.load(Ordering::Relaxed), 1);
        drop(batch);
    });
}

#[test]
fn a_slow_reader_keeps_its_own_samples_alone() {
    on_gpu(|gpu| {
        let (engine, rows) = (engine(), Rows::new(1, DType::U8, &[&[300]]));
        let (slow, fast) = (ForeignStream::new(gpu), ForeignStream::new(gpu));
        let memory = rows.upload(gpu);
        let samples = rows.at([memory[0].address]);
        let counts = [(); 5].map(|()| Arc::new(AtomicUsize::new(0)));
        let keep = |lane: &ForeignStream<'_>, count| {
            let mut options = keeping(vec![counted(count)]);
            options.stream = Some(lane.stream());
            run(&engine, &samples, &Collate::stack(), options).unwrap()
        };
        let paused = slow.pause();
        let batches: Vec<_> = [&slow, &slow, &fast, &fast, &fast]
            .into_iter()
            .zip(&counts)
            .map(|(lane, count)| keep(lane, count))
            .collect();
        gpu.cuStreamSynchronize(fast.handle);
        engine.trim(0, false).unwrap();
        let released = || counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        assert_eq!(released(), [0, 0, 1, 1, 1]);
        drop(paused);
        gpu.cuStreamSynchronize(slow.handle);
        engine.trim(0, false).unwrap();
        assert_eq!(released(), [1; 5]);
        drop(batches);
    });
}

#[test]
fn memory_whose_order_is_lost_ends_behind_everything() {
    on_gpu(|gpu| {
        for function in ["cuEventQuery", "cuEventRecord"] {
            let (engine, rows) = (engine(), Rows::new(1, DType::U8, &[&[300]]));
            let memory = rows.upload(gpu);
            let paused = pause_own(gpu, &engine);
            let samples = rows.at([memory[0].address]);
            let batch = engine.assemble(&samples, &Collate::stack()).unwrap();
            batch.data().ready_on(Stream::LEGACY).unwrap();
            gpu.sim.fail_function(function, 1, 400);
            if function == "cuEventQuery" {
                waits(paused, || drop(batch));
                continue;
            }
            // The drop does not wait: the memory is left until the device was waited for.
            drop(batch);
            assert!(engine.trim(0, false).unwrap());
            assert!(!waits(paused, || engine.trim(0, true).unwrap()));
        }
    });
}

#[test]
fn memory_that_is_given_back_without_its_order_ends_behind_everything() {
    on_gpu(|gpu| {
        let (engine, rows) = (engine(), Rows::new(1, DType::U8, &[&[300]]));
        let memory = rows.upload(gpu);
        let samples = rows.at([memory[0].address]);
        drop(engine.assemble(&samples, &Collate::stack()).unwrap());
        let paused = pause_own(gpu, &engine);
        drop(engine.assemble(&samples, &Collate::stack()).unwrap());
        gpu.sim.fail_function("cuStreamWaitEvent", 1, 400);
        waits(paused, || engine.trim(0, false).unwrap());
    });
}

#[test]
fn the_fifth_chunk_waits_for_the_first() {
    on_gpu(|gpu| {
        let (engine, lane, bytes) = (engine(), ForeignStream::new(gpu), vec![3u8; (16 << 20) + 1]);
        let paused = pause_own(gpu, &engine);
        let batch = waits(paused, || {
            let view = SampleView::from_slice(&bytes, &[bytes.len() as i64]).unwrap();
            engine.assemble(&[view], &Collate::stack()).unwrap()
        });
        assert!(consume(&lane, &batch)[0] == bytes);
        let (unused, used) = engine.stats().pinned_bytes;
        assert!(unused <= 20 << 20 && used == 0, "{unused} {used}");
    });
}

#[test]
fn page_locked_memory_is_freed_behind_all_devices() {
    on_gpu(|gpu| {
        for ordinal in [0, 1] {
            let (engine, rows) = (engine(), Rows::new(1, DType::U8, &[&[900]]));
            let collate = Collate::stack().device(Device::Pinned);
            let batch = engine.assemble(&rows.on_host(), &collate).unwrap();
            let (others, copy) = elsewhere(gpu, ordinal);
            let paused = copy_slowly(gpu, &others, &copy, batch);
            waits(paused, || engine.empty_cache());
            assert_eq!(copy.read(), rows.bytes[0]);
            drop((others, copy));
            assert_eq!(gpu.cuCtxSetCurrent(gpu.context), 0);
        }
    });
}

/// Another library's memory, which it still writes to when it gives it out, by a stream that stands still.
#[derive(Debug)]
struct ForeignMemory {
    /// The address of a [`Gpu`], for lack of a lifetime.
    gpu: usize,
    stream: Stream,
    address: u64,
    old: Vec<u8>,
    freed: Arc<AtomicUsize>,
}

impl OutputMemory for ForeignMemory {
    fn stream(&self) -> Stream {
        self.stream
    }

    fn allocate(&self, dtype: DType, shape: &[i64], _: u32) -> windrow::Result<Option<Tensor>> {
        // SAFETY: the test keeps it for longer.
        let gpu = unsafe { &*(self.gpu as *const Gpu) };
        let (from, stream) = (self.old.as_ptr().cast(), self.stream.handle());
        // The copy comes after the work of the stream has ended: a run that had waited for the stream before would not
        // wait for the copy.
        assert_eq!(gpu.cuStreamSynchronize(stream), 0);
        assert!(gpu.sim.pause(stream));
        assert_eq!(gpu.cuMemcpyHtoDAsync_v2(self.address, from, self.old.len(), stream), 0);
        let layout = Layout::compact(dtype, shape)?;
        let (owner, data): (Owner, _) = (counted(&self.freed), self.address as *mut u8);
        // SAFETY: the test keeps as many bytes for longer.
        Ok(Some(unsafe { Tensor::new_unchecked(owner, data, dtype, HERE, layout, false) }))
    }
}

#[test]
fn lent_memory_is_written_behind_its_lender_and_held_until_then() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let rows = Rows::new(1, DType::U8, &[&[300]]);
        let (memory, out) = (rows.upload(gpu), Buffer::poisoned(gpu, 300));
        let samples = rows.at([memory[0].address]);
        drop(engine.assemble(&samples, &Collate::stack()).unwrap());
        let freed = Arc::new(AtomicUsize::new(0));
        let mut options = RunOptions::default();
        options.memory = Some(Arc::new(ForeignMemory {
            gpu: std::ptr::from_ref(gpu).addr(),
            stream: lane.stream(),
            address: out.address,
            old: vec![7; 300],
            freed: Arc::clone(&freed),
        }));
        drop(run(&engine, &samples, &Collate::stack(), options).unwrap());
        // It stands still already, and goes on if this test fails.
        let paused = lane.pause();
        settle();
        // Nothing reads the batch, but it is still to be written.
        drop(engine.assemble(&samples, &Collate::stack()).unwrap());
        assert_eq!(freed.load(Ordering::Relaxed), 0);
        drop(paused);
        assert_eq!(out.read(), rows.bytes[0]);
        engine.empty_cache();
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn more_borrowed_batches_than_are_kept_end_behind_the_device() {
    on_gpu(|gpu| {
        let (engine, lane, rows) =
            (engine(), ForeignStream::new(gpu), Rows::new(1, DType::U8, &[&[300]]));
        let (memory, copy) = (rows.upload(gpu), Buffer::poisoned(gpu, 300));
        let samples = rows.at([memory[0].address]);
        let batch = || engine.assemble(&samples, &Collate::stack()).unwrap();
        let batches: Vec<_> = (0..65).map(|_| batch()).collect();
        let paused = lane.pause();
        for batch in &batches {
            batch.data().ready_on_borrowed(lane.stream()).unwrap();
        }
        lane.copy(&copy, batches[0].data());
        // The drop does not wait; the next call does.
        drop(batches);
        waits(paused, || drop(batch()));
        assert_eq!(copy.read(), rows.bytes[0]);
    });
}

/// The stream that is named passes the batch on to others, as in JAX.
#[test]
fn memory_that_streams_without_a_name_use_waits_for_the_device() {
    on_gpu(|gpu| {
        let (engine, named, other) = (engine(), ForeignStream::new(gpu), ForeignStream::new(gpu));
        let rows: Vec<_> = (0..8).map(|seed| Rows::new(seed, DType::U8, &[&[3000]])).collect();
        let memory: Vec<_> = rows.iter().map(|rows| rows.upload(gpu)).collect();
        let copy = Buffer::poisoned(gpu, 3000);
        let mut paused = None;
        for (number, (rows, memory)) in rows.iter().zip(&memory).enumerate() {
            let samples = rows.at([memory[0].address]);
            let batch = engine.assemble(&samples, &Collate::stack()).unwrap();
            batch.data().ready_on_borrowed(named.stream()).unwrap();
            batch.data().ready_on_unnamed().unwrap();
            if number == 0 {
                other.wait_for(&named);
                paused = Some(other.pause());
                other.copy(&copy, batch.data());
            }
            drop(batch);
            assert_eq!(gpu.cuStreamSynchronize(named.handle), 0);
        }
        drop(paused);
        assert_eq!(copy.read(), rows[0].bytes[0]);
        assert_eq!(engine.stats().waits, 0);
        engine.empty_cache();
        assert_eq!(engine.stats().device_bytes, 0);
    });
}

#[test]
fn much_memory_of_streams_without_a_name_is_waited_for_by_the_next_call() {
    on_gpu(|gpu| {
        let (engine, other) = (engine(), ForeignStream::new(gpu));
        // The device has 64 MiB.
        let bytes = 300 << 10;
        let memory = Buffer::poisoned(gpu, bytes);
        let table = memory.tensor(DType::U8, &[1, bytes as i64]);
        // SAFETY: the buffer is kept for longer.
        let samples = unsafe { SampleList::rows_from_raw_parts(&table) }.unwrap();
        let batch = || engine.assemble(&samples, &Collate::stack()).unwrap();
        let batches: Vec<_> = (0..5).map(|_| batch()).collect();
        for batch in &batches {
            batch.data().ready_on_unnamed().unwrap();
        }
        gpu.sim.synchronize_all();
        let paused = other.pause();
        let copy = Buffer::poisoned(gpu, bytes);
        other.copy(&copy, batches[0].data());
        drop(batches);
        waits(paused, || drop(batch()));
        assert_eq!(engine.stats().waits, 1);
    });
}

#[test]
fn an_output_that_streams_without_a_name_use_is_written_behind_the_device() {
    on_gpu(|gpu| {
        let (engine, other, lane) = (engine(), ForeignStream::new(gpu), ForeignStream::new(gpu));
        let [old, new] = [1, 2].map(|seed| Rows::new(seed, DType::U8, &[&[3000]]));
        let (old_memory, new_memory) = (old.upload(gpu), new.upload(gpu));
        let before = old.at([old_memory[0].address]);
        let mut batch = engine.assemble(&before, &Collate::stack()).unwrap();
        batch.data().ready_on_unnamed().unwrap();
        gpu.sim.synchronize_all();
        let (copy, paused) = (Buffer::poisoned(gpu, 3000), other.pause());
        other.copy(&copy, batch.data());
        let after = new.at([new_memory[0].address]);
        waits(paused, || {
            engine.assemble_into(&after, &Collate::stack(), &mut batch).unwrap();
        });
        assert_eq!(consume(&lane, &batch), new.bytes);
        assert_eq!(copy.read(), old.bytes[0]);
    });
}

#[test]
fn a_stream_that_is_gone_is_waited_for_by_the_one_that_stands_for_it() {
    on_gpu(|gpu| {
        let (engine, lane, gate) = (engine(), ForeignStream::new(gpu), ForeignStream::new(gpu));
        let rows = Rows::new(1, DType::U8, &[&[300]]);
        let (memory, late) = (Buffer::poisoned(gpu, 300), ForeignStream::new(gpu));
        let samples = rows.at([memory.address]);
        // One-time work is done before the producer begins.
        drop(engine.assemble(&samples, &Collate::stack()).unwrap());
        let paused = gate.pause();
        late.wait_for(&gate);
        late.write(memory.address, &rows.bytes[0]);
        let mut options = RunOptions::default();
        options.producers = vec![engine.adopt(0, late.stream()).unwrap()];
        drop(late);
        let batch = run(&engine, &samples, &Collate::stack(), options).unwrap();
        settle();
        drop(paused);
        assert_eq!(consume(&lane, &batch), rows.bytes);
    });
}

/// A handle that the driver gave to a new stream: what the old one still reads is not the new one's to end.
#[test]
fn a_stream_of_the_same_handle_is_another_one() {
    on_gpu(|gpu| {
        let (engine, gate, lane) = (engine(), ForeignStream::new(gpu), ForeignStream::new(gpu));
        let [old, new] = [1, 2].map(|seed| Rows::new(seed, DType::U8, &[&[3000]]));
        let (old_memory, new_memory) = (old.upload(gpu), new.upload(gpu));
        let (before, after) = (old.at([old_memory[0].address]), new.at([new_memory[0].address]));
        drop(engine.assemble(&before, &Collate::stack()).unwrap());
        let batch = engine.assemble(&before, &Collate::stack()).unwrap();
        let (copy, reader) = (Buffer::poisoned(gpu, 3000), ForeignStream::new(gpu));
        batch.data().ready_on_borrowed(reader.stream()).unwrap();
        gpu.sim.synchronize_all();
        let paused = gate.pause();
        reader.wait_for(&gate);
        reader.copy(&copy, batch.data());
        drop(batch);
        let reader = again(gpu, reader);
        // Named: but that is not the stream that reads.
        let batches = [(); 4].map(|()| {
            let made = engine.assemble_on(&after, &Collate::stack(), &reader.stream());
            made.inspect(|batch| batch.data().ready_on(lane.stream()).unwrap()).unwrap()
        });
        settle();
        drop(paused);
        assert_eq!(copy.read(), old.bytes[0]);
        for batch in &batches {
            assert_eq!(consume(&lane, batch), new.bytes);
        }
    });
}

/// The test is the one above, with a handle that was the batch's own stream.
#[test]
fn memory_of_a_stream_that_is_gone_is_not_left_to_others_of_its_handle() {
    on_gpu(|gpu| {
        let (engine, gate, lane) = (engine(), ForeignStream::new(gpu), ForeignStream::new(gpu));
        let [old, new] = [1, 2].map(|seed| Rows::new(seed, DType::U8, &[&[3000]]));
        let (old_memory, new_memory) = (old.upload(gpu), new.upload(gpu));
        let (before, after) = (old.at([old_memory[0].address]), new.at([new_memory[0].address]));
        let (home, copy) = (ForeignStream::new(gpu), Buffer::poisoned(gpu, 3000));
        let batch = engine.assemble_on(&before, &Collate::stack(), &home.stream()).unwrap();
        gpu.sim.synchronize_all();
        let reader = again(gpu, home);
        batch.data().ready_on_borrowed(reader.stream()).unwrap();
        let paused = gate.pause();
        reader.wait_for(&gate);
        reader.copy(&copy, batch.data());
        drop(batch);
        let third = again(gpu, reader);
        let batch = engine.assemble_on(&after, &Collate::stack(), &third.stream()).unwrap();
        batch.data().ready_on(lane.stream()).unwrap();
        settle();
        drop(paused);
        assert_eq!(copy.read(), old.bytes[0]);
        assert_eq!(consume(&lane, &batch), new.bytes);
    });
}

/// Destroys a stream, whose work goes on; a new one has its handle.
fn again<'g>(gpu: &'g Gpu, lane: ForeignStream<'g>) -> ForeignStream<'g> {
    let handle = lane.handle;
    drop(lane);
    gpu.sim.recycle(handle);
    let lane = ForeignStream::new(gpu);
    assert_eq!(lane.handle, handle);
    lane
}

#[test]
fn an_output_that_a_stream_that_is_gone_reads_is_written_behind_the_device() {
    on_gpu(|gpu| {
        let (engine, gate, lane) = (engine(), ForeignStream::new(gpu), ForeignStream::new(gpu));
        let [old, new] = [1, 2].map(|seed| Rows::new(seed, DType::U8, &[&[3000]]));
        let (old_memory, new_memory) = (old.upload(gpu), new.upload(gpu));
        let (before, after) = (old.at([old_memory[0].address]), new.at([new_memory[0].address]));
        let mut batch = engine.assemble(&before, &Collate::stack()).unwrap();
        let (copy, reader) = (Buffer::poisoned(gpu, 3000), ForeignStream::new(gpu));
        batch.data().ready_on_borrowed(reader.stream()).unwrap();
        gpu.sim.synchronize_all();
        let paused = gate.pause();
        reader.wait_for(&gate);
        reader.copy(&copy, batch.data());
        let _reader = again(gpu, reader);
        waits(paused, || engine.assemble_into(&after, &Collate::stack(), &mut batch).unwrap());
        assert_eq!(copy.read(), old.bytes[0]);
        assert_eq!(consume(&lane, &batch), new.bytes);
    });
}

#[test]
fn the_end_of_a_call_is_known_when_its_stream_is_gone() {
    on_gpu(|gpu| {
        let (engine, gate, lane) = (engine(), ForeignStream::new(gpu), ForeignStream::new(gpu));
        let rows = Rows::new(1, DType::U8, &[&[3000]]);
        let (memory, out) = (rows.upload(gpu), Buffer::poisoned(gpu, 3000));
        let (samples, collate) = (rows.at([memory[0].address]), Collate::stack());
        drop(engine.assemble(&samples, &collate).unwrap());
        let (copy, work) = (Buffer::poisoned(gpu, 3000), ForeignStream::new(gpu));
        let mut options = lent_by(&work, out.tensor(DType::U8, &[1, 3000]));
        options.stream = Some(work.stream());
        gpu.sim.synchronize_all();
        let paused = gate.pause();
        work.wait_for(&gate);
        let filled = engine.run_with(Plan::new(&samples, &collate).unwrap(), options).unwrap();
        let end = filled[0].fields.end().unwrap();
        drop((work, filled));
        // A stream, and a call that reads what was written.
        end.order(lane.stream()).unwrap();
        lane.copy(&copy, &out.tensor(DType::U8, &[1, 3000]));
        let mut options = RunOptions::default();
        options.keep = vec![Arc::new(end)];
        let batch = run(&engine, &rows.at([out.address]), &collate, options).unwrap();
        settle();
        drop(paused);
        assert_eq!(copy.read(), rows.bytes[0]);
        assert_eq!(consume(&lane, &batch), rows.bytes);
    });
}
