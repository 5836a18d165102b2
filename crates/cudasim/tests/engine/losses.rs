//! A device that is lost while batches are made ahead, and two devices of which one is.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::Arc;
use std::thread;

use windrow::{Batch, Collate, DType, Device, Engine, Error, Layout, Ragged, Tensor};

use crate::faults::{watched, LAUNCH_FAILED};
use crate::lifetime::counted;
use crate::rig::{consume, engine, lent_by, run, start, Buffer, ForeignStream, Gpu, Rows, HERE};

const BATCHES: u64 = 6;

fn rows(seed: u64) -> Rows {
    Rows::new(seed, DType::U8, &[&[400], &[300]])
}

/// Reads a batch as [`consume`] does, and says what comes of it.
fn read(gpu: &Gpu, lane: &ForeignStream<'_>, batch: &Batch) -> Result<Vec<u8>, u32> {
    let tensor = batch.data();
    tensor.ready_on(lane.stream()).map_err(code)?;
    let mut bytes = vec![0; tensor.nbytes()];
    let (to, from) = (bytes.as_mut_ptr().cast(), tensor.data_ptr() as u64);
    match gpu.cuMemcpyDtoHAsync_v2(to, from, bytes.len(), lane.handle) {
        0 => Ok(bytes),
        code => Err(code),
    }
}

fn code(error: Error) -> u32 {
    match error {
        Error::Cuda(e) => e.code,
        error => panic!("{error}"),
    }
}

/// A thread assembles ahead of one who reads. The batches that were read, and the code that ended it.
fn prefetched(gpu: &Gpu, engine: &Engine, lane: &ForeignStream<'_>) -> (Vec<Vec<u8>>, u32) {
    let (send, receive) = sync_channel(2);
    thread::scope(|scope| {
        scope.spawn(move || {
            for seed in 0..BATCHES {
                let batch = engine.assemble(&rows(seed).on_host(), &Collate::ragged(Ragged::new()));
                let ends = batch.is_err();
                // A failed send means that the reader has gone away.
                if send.send(batch).is_err() || ends {
                    break;
                }
            }
        });
        let mut got = Vec::new();
        for batch in receive {
            match batch.map_err(code).and_then(|batch| read(gpu, lane, &batch)) {
                Ok(bytes) => got.push(bytes),
                Err(code) => return (got, code),
            }
        }
        (got, 0)
    })
}

#[test]
fn a_device_is_lost_while_batches_are_made_ahead() {
    watched(|| {
        let gpu = start();
        let (engine, lane) = (engine(), ForeignStream::new(&gpu));
        let expected: Vec<_> = (0..BATCHES).map(|seed| rows(seed).bytes.concat()).collect();
        assert_eq!(prefetched(&gpu, &engine, &lane), (expected.clone(), 0));
        gpu.sim.set_delay_us(100);
        let mut lost = 0;
        for k in 1..=150 {
            gpu.sim.set_seed(k);
            gpu.sim.fail_call(k, LAUNCH_FAILED);
            let (got, code) = prefetched(&gpu, &engine, &lane);
            assert!([0, LAUNCH_FAILED].contains(&code), "call {k}: {code}");
            assert!(expected.starts_with(&got), "call {k}: wrong bytes");
            lost += u32::from(code != 0);
            let host = Engine::host()
                .assemble(&rows(0).on_host(), &Collate::ragged(Ragged::new()))
                .unwrap();
            assert_eq!(consume(&lane, &host)[0], expected[0]);
            // Cleared faults stand for a new process.
            gpu.sim.clear_faults();
            assert_eq!(gpu.sim.take_errors(), [""; 0], "call {k}");
        }
        assert!(lost > 50, "{lost}");
        assert_eq!(prefetched(&gpu, &engine, &lane), (expected, 0));
    });
}

#[test]
fn of_two_devices_one_is_lost() {
    watched(|| {
        let gpu = start();
        let engine = Engine::host();
        let contexts = [0, 1].map(|ordinal| {
            let mut context = 0;
            assert_eq!(gpu.cuDevicePrimaryCtxRetain(&mut context, ordinal), 0);
            context
        });
        let on =
            |ordinal: usize| Collate::ragged(Ragged::new()).device(Device::Cuda(ordinal as u32));
        let both = |lost: Option<usize>| {
            thread::scope(|scope| {
                for ordinal in [0, 1] {
                    let (gpu, engine, contexts) = (&gpu, &engine, &contexts);
                    scope.spawn(move || {
                        assert_eq!(gpu.cuCtxSetCurrent(contexts[ordinal]), 0);
                        if lost == Some(ordinal) {
                            let error = engine.assemble(&rows(1).on_host(), &on(ordinal));
                            assert_eq!(code(error.unwrap_err()), LAUNCH_FAILED);
                            return;
                        }
                        let lane = ForeignStream::new(gpu);
                        for seed in 0..40 {
                            let rows = rows(100 * ordinal as u64 + seed);
                            let batch = engine.assemble(&rows.on_host(), &on(ordinal)).unwrap();
                            assert_eq!(
                                consume(&lane, &batch),
                                rows.expected(&Collate::ragged(Ragged::new()))
                            );
                        }
                    });
                }
            });
        };
        gpu.sim.set_delay_us(100);
        both(None);
        for ordinal in [0, 1] {
            assert_eq!(gpu.cuCtxSetCurrent(contexts[ordinal]), 0);
            gpu.sim.fail_function("cuCtxSynchronize", 1, LAUNCH_FAILED);
            assert_eq!(gpu.cuCtxSynchronize(), LAUNCH_FAILED);
            both(Some(ordinal));
            gpu.sim.clear_faults();
            both(None);
        }
        assert_eq!(gpu.cuCtxSetCurrent(gpu.context), 0);
        assert_eq!(gpu.sim.take_errors(), [""; 0]);
    });
}

/// The device may still write to it, for all that is known.
#[test]
fn lent_memory_is_not_given_back_when_the_device_is_lost() {
    watched(|| {
        let gpu = &start();
        let (engine, lane, rows) =
            (engine(), ForeignStream::new(gpu), Rows::new(1, DType::U8, &[&[700]]));
        let (memory, given_back) = (Buffer::poisoned(gpu, 700), Arc::new(AtomicUsize::new(0)));
        let stack_in_lent = || {
            let layout = Layout::compact(DType::U8, &[1, 700]).unwrap();
            let (owner, data) = (counted(&given_back), memory.address as *mut u8);
            // SAFETY: the buffer outlives the tensor.
            let lent =
                unsafe { Tensor::new_unchecked(owner, data, DType::U8, HERE, layout, false) };
            run(&engine, &rows.on_host(), &Collate::stack(), lent_by(&lane, lent))
        };
        stack_in_lent().unwrap().data().synchronize().unwrap();
        gpu.sim.synchronize_all();
        engine.empty_cache();
        assert_eq!(given_back.load(Ordering::Relaxed), 1);
        gpu.sim.fail_function("cuMemcpyHtoDAsync_v2", 1, LAUNCH_FAILED);
        assert_eq!(code(stack_in_lent().unwrap_err()), LAUNCH_FAILED);
        drop(engine);
        assert_eq!(given_back.load(Ordering::Relaxed), 1);
        gpu.sim.clear_faults();
    });
}
