//! Page-locked memory of which kernels have stale copies, as under confidential computing. In processes of their own: what an engine
//! has found out holds for all of the process.

use std::env;
use std::process::Command;

use windrow::engine::RunOptions;
use windrow::{Collate, DType, Device, Error, Layout, Pad, SampleList, SampleView, Transform};

use crate::calls::{count, traced};
use crate::capture::{end_capture, GLOBAL};
use crate::rig::{consume, engine, hold, lent_by, on_gpu, run, Buffer, ForeignStream, Rows, HERE};

const CASE: &str = "CUDASIM_TEST_CONFIDENTIAL";

/// The child: does nothing unless told to.
#[test]
fn child_beside_stale_mappings() {
    if env::var(CASE).is_err() {
        return;
    }
    on_gpu(|gpu| {
        gpu.sim.set_confidential(true);
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        assert!(!engine.reads_mapped(0).unwrap());
        let turned = Transform::new().scale(0.5).permute([1, 0]);
        // Read by the kernel where they are elsewhere, and copied as they are.
        for shape in [&[9, 4][..], &[300, 200]] {
            let rows = Rows::new(1, DType::U8, &[shape; 5]);
            let pinned = rows.pinned(gpu);
            for collate in [
                Collate::stack().device(HERE),
                Collate::stack().transform(turned.clone()).cast(DType::F32).device(HERE),
                Collate::pad(Pad::new().dims([0]).size(310)).device(HERE),
            ] {
                for seed in [1, 2] {
                    let rows = Rows::new(seed, DType::U8, &[shape; 5]);
                    pinned.fill(&rows);
                    let samples = rows.on(Device::Pinned, &pinned.addresses);
                    let batch = engine.assemble(&samples, &collate).unwrap();
                    assert_eq!(consume(&lane, &batch), rows.expected(&collate));
                }
            }
        }
        // The host reads samples with gaps, behind the work that writes them.
        let rows = Rows::new(4, DType::U8, &[&[64]]);
        let (memory, pinned) = (rows.upload(gpu), rows.pinned(gpu));
        let layout = Layout::try_new(DType::U8, &[32], Some(&[2])).unwrap();
        let data = pinned.addresses[0] as *const u8;
        // SAFETY: memory of 64 bytes, which outlives the batch.
        let view = unsafe { SampleView::from_raw_parts(data, DType::U8, Device::Pinned, layout) };
        let samples: SampleList<'_> = std::iter::once(view).collect();
        let mut options = RunOptions::default();
        options.producers = vec![lane.stream()];
        gpu.sim.set_delay_us(2000);
        lane.linger();
        assert_eq!(
            gpu.cuMemcpyDtoHAsync_v2(data.cast_mut().cast(), memory[0].address, 64, lane.handle),
            0
        );
        let batch = run(&engine, &samples, &Collate::stack().device(HERE), options).unwrap();
        let every_other: Vec<u8> = rows.bytes[0].iter().step_by(2).copied().collect();
        assert_eq!(consume(&lane, &batch), [every_other]);
        gpu.sim.set_delay_us(0);
        // Errors of indices on the device would be lost.
        let rows = Rows::new(3, DType::U8, &[&[8], &[8]]);
        let memory = rows.upload(gpu);
        let list = rows.at(memory.iter().map(|buffer| buffer.address));
        let refused = engine.resident(list.clone(), HERE).unwrap_err();
        assert!(
            matches!(&refused, Error::Argument(text) if text.to_string().contains("confidential"))
        );
        // A graph would have no memory to copy them to.
        let pinned = rows.pinned(gpu);
        let samples = rows.on(Device::Pinned, &pinned.addresses);
        let out = Buffer::poisoned(gpu, 16);
        assert_eq!(gpu.cuStreamBeginCapture_v2(lane.handle, GLOBAL), 0);
        let mut options = lent_by(&lane, out.tensor(DType::U8, &[2, 8]));
        options.stream = Some(lane.stream());
        let refused = run(&engine, &samples, &Collate::stack().device(HERE), options).unwrap_err();
        assert!(
            matches!(&refused, Error::Argument(text) if text.to_string().contains("confidential"))
        );
        drop(end_capture(gpu, &lane));
        gpu.sim.set_confidential(false);
    });
}

#[test]
fn stale_mappings_are_found_and_samples_copied() {
    let status = Command::new(env::current_exe().unwrap())
        .args(["--exact", "mapping::child_beside_stale_mappings"])
        .env(CASE, "1")
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn a_mapping_is_tried_once_and_nobody_waits_for_a_busy_device() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let rows = Rows::new(1, DType::U8, &[&[50], &[50]]);
        let pinned = rows.pinned(gpu);
        pinned.fill(&rows);
        let samples = rows.on(Device::Pinned, &pinned.addresses);
        let stack = Collate::stack().device(HERE);
        let held = hold(gpu);
        // The answer is not known yet: these are copied.
        let first = engine.assemble(&samples, &stack).unwrap();
        assert_eq!(engine.stats().bytes_to_device, 100);
        drop(held);
        gpu.sim.synchronize_all();
        let second = engine.assemble(&samples, &stack).unwrap();
        assert_eq!(engine.stats().bytes_to_device, 100);
        assert_eq!(consume(&lane, &first), [rows.bytes.concat()]);
        assert_eq!(consume(&lane, &second), [rows.bytes.concat()]);
        let (calls, third) = traced(gpu, || engine.assemble(&samples, &stack).unwrap());
        assert_eq!((count(&calls, "cuLaunchKernel"), count(&calls, "cuMemHostAlloc")), (1, 0));
        assert_eq!(consume(&lane, &third), [rows.bytes.concat()]);
        assert_eq!(engine.stats().waits, 0);
    });
}
