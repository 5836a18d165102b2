//! Pairs of page-locked memory, which the host copies between the work of a device.

use windrow::bindings::MoveOptions;
use windrow::engine::RunOptions;
use windrow::{Collate, DType, Device, Engine};

use crate::paused_streams::{pause_own, waits};
use crate::rig::{engine, on_gpu, Buffer, ForeignStream, Gpu, Pinned, Rows};

/// The bytes from which on pairs are copied to a device and not read by its kernels.
const LEN: usize = 40_000;

/// Page-locked memory that has `1` everywhere, and what it is copied to on the device.
fn memory(gpu: &Gpu) -> (Rows, Pinned<'_>, Buffer<'_>) {
    let mut rows = Rows::new(3, DType::U8, &[&[LEN as i64]]);
    rows.bytes[0] = vec![1; LEN];
    let pinned = rows.pinned(gpu);
    pinned.fill(&rows);
    (rows, pinned, Buffer::poisoned(gpu, LEN))
}

/// Fills page-locked memory with `9`.
fn overwrite(engine: &Engine, rows: &Rows, pinned: &Pinned<'_>, run: RunOptions) {
    let nines = vec![9u8; LEN];
    let srcs = rows.on(Device::Cpu, &[nines.as_ptr() as u64]);
    let options = MoveOptions { run, ..MoveOptions::default() };
    // SAFETY: memory of that size, which the host alone uses once the stream has been waited for.
    unsafe { engine.copy_lists(&rows.on(Device::Pinned, &pinned.addresses), &srcs, options) }
        .unwrap();
}

#[test]
fn page_locked_pairs_wait_for_what_the_engine_has_enqueued() {
    on_gpu(|gpu| {
        let engine = engine();
        let (rows, pinned, copy) = memory(gpu);
        let (dsts, srcs) = (rows.at([copy.address]), rows.on(Device::Pinned, &pinned.addresses));
        let upload = || {
            // SAFETY: memory of that size, which nothing else uses.
            unsafe { engine.copy_lists(&dsts, &srcs, MoveOptions::default()) }.unwrap();
        };
        upload();
        assert_eq!(gpu.cuCtxSynchronize(), 0);
        let paused = pause_own(gpu, &engine);
        upload();
        waits(paused, || overwrite(&engine, &rows, &pinned, RunOptions::default()));
        assert_eq!(copy.read(), [1; LEN]);
    });
}

#[test]
fn page_locked_destinations_are_written_on_return() {
    on_gpu(|gpu| {
        // Small ones come back together, large ones by a copy each; where a device chooses the source, a kernel writes them.
        for (len, is_chosen) in [(LEN, false), (1 << 21, false), (LEN, true)] {
            let (engine, rows) = (engine(), Rows::new(3, DType::U8, &[&[len as i64]]));
            let uploaded = rows.upload(gpu);
            let listed = rows.at([uploaded[0].address]);
            let here = Device::Cuda(0);
            let zero = Collate::concat(0).device(here);
            let zero = engine.assemble(&[[0i64]], &zero).unwrap();
            let resident = engine.resident(listed.clone(), here).unwrap();
            let srcs = match is_chosen {
                true => resident.take(zero.data()).unwrap(),
                false => listed,
            };
            let mut tensor = engine.empty(DType::U8, &[len as i64], Device::Pinned).unwrap();
            let mut download =
                || engine.copy_many(std::slice::from_mut(&mut tensor), &srcs).unwrap();
            download();
            assert_eq!(gpu.cuCtxSynchronize(), 0);
            let paused = pause_own(gpu, &engine);
            waits(paused, download);
            assert!(tensor.as_slice::<u8>().unwrap() == rows.bytes[0]);
        }
    });
}

#[test]
fn page_locked_pairs_wait_for_the_stream_and_the_writers() {
    on_gpu(|gpu| {
        for is_named in [true, false] {
            let (engine, lane, other) =
                (engine(), ForeignStream::new(gpu), ForeignStream::new(gpu));
            let (rows, pinned, copy) = memory(gpu);
            let mut run = RunOptions::default();
            run.stream = Some(if is_named { lane.stream() } else { other.stream() });
            run.producers = if is_named { vec![] } else { vec![lane.stream()] };
            let paused = lane.pause();
            let from = pinned.addresses[0] as *const _;
            assert_eq!(gpu.cuMemcpyHtoDAsync_v2(copy.address, from, LEN, lane.handle), 0);
            waits(paused, || overwrite(&engine, &rows, &pinned, run));
            assert_eq!(copy.read(), [1; LEN]);
        }
    });
}
