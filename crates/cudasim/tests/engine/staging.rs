//! Blocks of page-locked memory in turn: nothing is filled while it is copied, nothing copied over what is read.

use windrow::bindings::Staging;
use windrow::{Engine, Error, Stream, Tensor};

use crate::paused_streams::{pause_own, waits};
use crate::rig::{engine, on_gpu, Buffer, ForeignStream, HERE};

const LEN: usize = 900;

fn staging(engine: &Engine) -> Staging {
    Staging::new(engine, LEN as u64, Some(HERE)).unwrap()
}

/// Fills the block whose turn it is, and uploads it.
fn send(staging: &Staging, value: u8, stream: Stream) -> windrow::Result<()> {
    let block = &staging.hosts()[staging.turn()];
    // SAFETY: as many bytes, which no copy reads; nothing else uses the block until the copy has ended.
    unsafe {
        block.data_ptr().write_bytes(value, LEN);
        staging.upload(Some(stream))
    }
}

/// Copies behind the work that the tensor tells of.
fn read(lane: &ForeignStream<'_>, copy: &Buffer<'_>, tensor: &Tensor) {
    tensor.ready_on(lane.stream()).unwrap();
    lane.copy(copy, tensor);
}

#[test]
fn a_block_is_given_out_when_its_copy_has_ended() {
    on_gpu(|gpu| {
        let (engine, lane, copy) = (engine(), ForeignStream::new(gpu), Buffer::poisoned(gpu, LEN));
        let staging = staging(&engine);
        send(&staging, 1, lane.stream()).unwrap();
        assert_eq!(gpu.cuCtxSynchronize(), 0);
        let paused = lane.pause();
        send(&staging, 2, lane.stream()).unwrap();
        lane.copy(&copy, staging.device());
        waits(paused, || send(&staging, 3, lane.stream()).unwrap());
        // The block that is filled from here on is that of 2, whose copy has ended.
        let block = &staging.hosts()[staging.turn()];
        // SAFETY: as many bytes, which no copy reads.
        unsafe { block.data_ptr().write_bytes(9, LEN) };
        assert_eq!(copy.read(), [2; LEN]);
        read(&lane, &copy, staging.device());
        assert_eq!(copy.read(), [3; LEN]);
    });
}

#[test]
fn uploads_wait_for_who_reads_on_other_streams() {
    on_gpu(|gpu| {
        let (engine, uploads, reads) = (engine(), ForeignStream::new(gpu), ForeignStream::new(gpu));
        let (old, new) = (Buffer::poisoned(gpu, LEN), Buffer::poisoned(gpu, LEN));
        let staging = staging(&engine);
        send(&staging, 1, uploads.stream()).unwrap();
        staging.device().ready_on(reads.stream()).unwrap();
        let paused = reads.pause();
        reads.copy(&old, staging.device());
        send(&staging, 2, uploads.stream()).unwrap();
        uploads.linger();
        crate::lifetime::settle();
        drop(paused);
        assert_eq!(old.read(), [1; LEN]);
        read(&reads, &new, staging.device());
        assert_eq!(new.read(), [2; LEN]);
    });
}

#[test]
fn readers_on_other_streams_wait_for_the_upload() {
    on_gpu(|gpu| {
        let (engine, uploads, reads) = (engine(), ForeignStream::new(gpu), ForeignStream::new(gpu));
        let copy = Buffer::poisoned(gpu, LEN);
        let staging = staging(&engine);
        send(&staging, 1, uploads.stream()).unwrap();
        assert_eq!(gpu.cuCtxSynchronize(), 0);
        let paused = uploads.pause();
        send(&staging, 2, uploads.stream()).unwrap();
        read(&reads, &copy, staging.device());
        crate::lifetime::settle();
        drop(paused);
        assert_eq!(copy.read(), [2; LEN]);
    });
}

#[test]
fn an_upload_is_behind_the_zeros() {
    on_gpu(|gpu| {
        let (engine, lane, copy) = (engine(), ForeignStream::new(gpu), Buffer::poisoned(gpu, LEN));
        drop(staging(&engine));
        let paused = pause_own(gpu, &engine);
        let staging = staging(&engine);
        send(&staging, 1, lane.stream()).unwrap();
        crate::lifetime::settle();
        drop(paused);
        read(&lane, &copy, staging.device());
        assert_eq!(copy.read(), [1; LEN]);
    });
}

#[test]
fn the_end_of_an_engine_waits_for_uploads() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let staging = staging(&engine);
        let paused = lane.pause();
        send(&staging, 1, lane.stream()).unwrap();
        waits(paused, || drop((staging, engine)));
    });
}

#[test]
fn an_upload_that_fails_ends_behind_its_copy_and_leaves_the_turn() {
    on_gpu(|gpu| {
        let (engine, lane, copy) = (engine(), ForeignStream::new(gpu), Buffer::poisoned(gpu, LEN));
        let staging = staging(&engine);
        let turn = staging.turn();
        let paused = lane.pause();
        // Marks the end of the copy.
        gpu.sim.fail_function("cuEventRecord", 1, 400);
        let error = waits(paused, || send(&staging, 1, lane.stream()).unwrap_err());
        assert!(matches!(error, Error::Cuda(e) if e.function == "cuEventRecord"));
        assert_eq!(staging.turn(), turn);
        send(&staging, 2, lane.stream()).unwrap();
        read(&lane, &copy, staging.device());
        assert_eq!(copy.read(), [2; LEN]);
    });
}
