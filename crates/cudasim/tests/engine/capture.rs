//! Graphs: what can be recorded, and what is refused without harm.

use windrow::engine::RunOptions;
use windrow::plan::{AsTarget, Leaf, Target};
use windrow::{
    Collate, DType, Device, Engine, Error, Mask, Pad, Plan, SampleList, SampleView, Stream,
    Transform,
};

use crate::faults::{traced, watched, INVALID_HANDLE, LAUNCH_FAILED, OUT_OF_MEMORY, UNKNOWN};
use crate::rig::{
    consume, engine, host_bytes, on_gpu, run, start, Buffer, ForeignStream, Gpu, Rows, HERE,
};

pub const GLOBAL: u32 = 0;
pub const THREAD_LOCAL: u32 = 1;
pub const RELAXED: u32 = 2;

/// An engine that has what it makes at its first use, which a capture does not allow.
fn ready() -> Engine {
    Engine::cuda(0).unwrap()
}

fn on(stream: Stream) -> RunOptions {
    let mut options = RunOptions::default();
    options.stream = Some(stream);
    options
}

/// Runs a leaf into memory of the caller's.
fn into(
    engine: &Engine,
    samples: &SampleList<'_>,
    collate: &Collate,
    target: &Target<'_>,
    options: RunOptions,
) -> windrow::Result<()> {
    let collate = engine.placed(collate);
    let leaf = Leaf { samples, collate: &collate, path: "", out: Some(target) };
    engine.run_with(Plan::for_leaves(&[leaf])?, options).map(drop)
}

pub struct Exec<'g>(&'g Gpu, pub usize);

impl Drop for Exec<'_> {
    fn drop(&mut self) {
        assert_eq!(self.0.cuGraphExecDestroy(self.1), 0);
    }
}

pub fn end_capture<'g>(gpu: &'g Gpu, lane: &ForeignStream<'_>) -> Exec<'g> {
    let (mut graph, mut exec) = (0, 0);
    assert_eq!(gpu.cuStreamEndCapture(lane.handle, &mut graph), 0);
    assert_eq!(gpu.cuGraphInstantiateWithFlags(&mut exec, graph, 0), 0);
    assert_eq!(gpu.cuGraphDestroy(graph), 0);
    Exec(gpu, exec)
}

#[test]
fn a_graph_is_replayed_with_other_contents() {
    on_gpu(|gpu| {
        let (engine, lane) = (ready(), ForeignStream::new(gpu));
        let turned = Transform::new().scale(0.5).permute([1, 0]);
        for (collate, dtype) in [
            (Collate::stack(), DType::U8),
            (Collate::stack().transform(turned).cast(DType::F32), DType::F32),
        ] {
            let shapes: &[&[i64]] = &[&[9, 4][..]; 30];
            let rows = Rows::new(0, DType::U8, shapes);
            let memory = rows.upload(gpu);
            let samples = rows.at(memory.iter().map(|b| b.address));
            let len = rows.expected(&collate)[0].len();
            let out = Buffer::poisoned(gpu, len);
            let shape = if dtype == DType::U8 { [30, 9, 4] } else { [30, 4, 9] };
            let mut tensor = out.tensor(dtype, &shape);
            let target = tensor.as_target().unwrap();
            let calls = gpu.sim.live();
            assert_eq!(gpu.cuStreamBeginCapture_v2(lane.handle, THREAD_LOCAL), 0);
            into(&engine, &samples, &collate, &target, on(lane.stream())).unwrap();
            // Another in the same graph; producers outside of it have to be done before.
            let mut options = on(lane.stream());
            options.producers = vec![Stream::LEGACY];
            into(&engine, &samples, &collate, &target, options).unwrap();
            let exec = end_capture(gpu, &lane);
            assert_eq!(gpu.sim.live().device_allocations, calls.device_allocations);
            assert!(out.read().iter().all(|&byte| byte == 0xA5));
            for seed in 1..6 {
                let rows = Rows::new(seed, DType::U8, shapes);
                for (buffer, bytes) in memory.iter().zip(&rows.bytes) {
                    lane.write(buffer.address, bytes);
                }
                assert_eq!(gpu.cuGraphLaunch(exec.1, lane.handle), 0);
                assert!(out.read() == rows.expected(&collate)[0], "seed {seed}");
            }
        }
    });
}

#[test]
fn what_cannot_be_recorded_is_refused_and_the_capture_goes_on() {
    on_gpu(|gpu| {
        let (engine, lane, consumer) = (ready(), ForeignStream::new(gpu), ForeignStream::new(gpu));
        let rows = Rows::new(5, DType::U8, &[&[6, 3], &[6, 3]]);
        let many = Rows::new(6, DType::U8, &[&[1][..]; 9000]);
        let (memory, packed) = (rows.upload(gpu), Buffer::from_bytes(gpu, &many.bytes.concat()));
        let samples = rows.at(memory.iter().map(|b| b.address));
        let scattered = many.at((0..9000).map(|i| packed.address + (i * 7919) % 9000));
        let earlier = engine.assemble(&samples, &Collate::stack()).unwrap();
        let (out, out_many) = (Buffer::poisoned(gpu, 36), Buffer::poisoned(gpu, 9000));
        let (mut tensor, mut all) =
            (out.tensor(DType::U8, &[2, 6, 3]), out_many.tensor(DType::U8, &[9000, 1]));
        let (target, large) = (tensor.as_target().unwrap(), all.as_target().unwrap());
        let mut pageable = [0u8; 36];
        let pageable = Target::from_slice(&mut pageable[..], &[2, 6, 3]).unwrap();
        let stack = Collate::stack();
        let here = || on(lane.stream());
        let masked = Collate::pad(Pad::new().mask(Mask::Real));

        assert_eq!(gpu.cuStreamBeginCapture_v2(lane.handle, THREAD_LOCAL), 0);
        let refused = [
            engine.assemble_on(&samples, &stack, &lane.stream()).map(drop),
            engine.assemble_on(&rows.on_host(), &stack, &lane.stream()).map(drop),
            run(&engine, &samples, &stack.clone().device(Device::Cpu), here()).map(drop),
            run(&engine, &samples, &stack.clone().device(Device::Pinned), here()).map(drop),
            into(&engine, &rows.on_host(), &stack, &target, here()),
            into(&engine, &samples, &masked, &target, here()),
            into(&engine, &samples, &Collate::pad(Pad::new()), &target, here()),
            into(&engine, &samples, &stack.clone().device(Device::Cpu), &pageable, here()),
            into(&engine, &scattered, &stack, &large, here()),
            earlier.data().ready_on(lane.stream()),
        ];
        for (number, refused) in refused.into_iter().enumerate() {
            let error = refused.expect_err(&format!("call {number}"));
            assert!(
                matches!(&error, Error::Argument(text) if text.to_string().contains("captured")),
                "{error}"
            );
        }
        // No stream of ours is drawn into the capture.
        let mut behind = RunOptions::default();
        behind.producers = vec![lane.stream()];
        let error = run(&engine, &samples, &stack, behind).unwrap_err();
        assert!(
            matches!(&error, Error::Argument(text) if text.to_string().contains("captured")),
            "{error}"
        );

        into(&engine, &samples, &stack, &target, here()).unwrap();
        let exec = end_capture(gpu, &lane);
        assert_eq!(gpu.cuGraphLaunch(exec.1, lane.handle), 0);
        assert_eq!(out.read(), rows.bytes.concat());

        let batch = engine.assemble_on(&rows.on_host(), &stack, &lane.stream()).unwrap();
        assert_eq!(consume(&consumer, &batch), [rows.bytes.concat()]);
        assert_eq!(consume(&consumer, &earlier), [rows.bytes.concat()]);
    });
}

#[test]
fn the_first_use_of_an_engine_is_refused_and_the_capture_goes_on() {
    on_gpu(|gpu| {
        let (ready, lane) = (ready(), ForeignStream::new(gpu));
        let rows = Rows::new(5, DType::U8, &[&[64]]);
        let (memory, out) = (rows.upload(gpu), Buffer::poisoned(gpu, 64));
        let samples = rows.at([memory[0].address]);
        let mut tensor = out.tensor(DType::U8, &[1, 64]);
        let target = tensor.as_target().unwrap();
        let stack = Collate::stack();
        for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
            // One that is made for a device looks at it at once.
            let fresh = Engine::builder().threads(1).build().unwrap();
            let to_device = stack.clone().device(HERE);
            assert_eq!(gpu.cuStreamBeginCapture_v2(lane.handle, mode), 0);
            let before = gpu.sim.live();
            for error in [
                into(&fresh, &samples, &stack, &target, on(lane.stream())).unwrap_err(),
                fresh.assemble_on(&rows.on_host(), &to_device, &lane.stream()).unwrap_err(),
            ] {
                assert!(
                    matches!(&error, Error::Argument(text)
                        if text.to_string().contains("captured") && text.to_string().contains("one batch before")),
                    "{error}"
                );
            }
            assert_eq!(gpu.sim.live(), before);
            into(&ready, &samples, &stack, &target, on(lane.stream())).unwrap();
            let exec = end_capture(gpu, &lane);
            lane.write(out.address, &[0; 64]);
            assert_eq!(gpu.cuGraphLaunch(exec.1, lane.handle), 0);
            assert_eq!(out.read(), rows.bytes[0]);

            // The cure.
            let batch = fresh.assemble_on(&samples, &stack, &lane.stream()).unwrap();
            assert_eq!(consume(&lane, &batch), rows.bytes);
            assert_eq!(gpu.cuStreamBeginCapture_v2(lane.handle, mode), 0);
            into(&fresh, &samples, &stack, &target, on(lane.stream())).unwrap();
            let exec = end_capture(gpu, &lane);
            lane.write(out.address, &[0; 64]);
            assert_eq!(gpu.cuGraphLaunch(exec.1, lane.handle), 0);
            assert_eq!(out.read(), rows.bytes[0]);
        }
    });
}

/// Outside of a graph they would be copied first, to memory of the engine.
#[test]
fn large_page_locked_samples_are_read_by_the_kernel() {
    on_gpu(|gpu| {
        let (engine, lane) = (ready(), ForeignStream::new(gpu));
        let rows = Rows::new(5, DType::U8, &[&[30_000], &[30_000]]);
        let (pinned, out) = (rows.pinned(gpu), Buffer::poisoned(gpu, 60_000));
        let samples = rows.on(Device::Pinned, &pinned.addresses);
        let mut tensor = out.tensor(DType::U8, &[2, 30_000]);
        let target = tensor.as_target().unwrap();
        assert_eq!(gpu.cuStreamBeginCapture_v2(lane.handle, THREAD_LOCAL), 0);
        into(&engine, &samples, &Collate::stack(), &target, on(lane.stream())).unwrap();
        let exec = end_capture(gpu, &lane);
        pinned.fill(&rows);
        assert_eq!(gpu.cuGraphLaunch(exec.1, lane.handle), 0);
        assert_eq!(out.read(), rows.bytes.concat());
        assert_eq!(engine.stats().bytes_to_device, 0);
    });
}

#[test]
fn captures_of_others_are_left_alone() {
    on_gpu(|gpu| {
        let (lane, consumer, source) =
            (ForeignStream::new(gpu), ForeignStream::new(gpu), Buffer::from_bytes(gpu, &[1; 64]));
        let rows = Rows::new(5, DType::U8, &[&[9, 3], &[4, 3]]);
        let (memory, to) = (rows.upload(gpu), Buffer::poisoned(gpu, 64));
        let samples = rows.at(memory.iter().map(|b| b.address));
        let collate = Collate::pad(Pad::new().mask(Mask::Real));
        let expected = rows.expected(&collate);
        // Everything that a capture forbids: modules, memory, events asked, waits of the host.
        let work = || {
            let engine = engine();
            for list in [&samples, &rows.on_host(), &samples] {
                let batch = engine.assemble(list, &collate).unwrap();
                batch.data().synchronize().unwrap();
                batch.data().ready_on(consumer.stream()).unwrap();
            }
            // Page-locked memory of a batch is used again when the whole device is idle: only once here.
            for device in [Device::Cpu, Device::Pinned] {
                let batch = engine.assemble(&samples, &collate.clone().device(device)).unwrap();
                assert_eq!(host_bytes(batch.data()), expected[0]);
            }
        };
        for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
            assert_eq!(gpu.cuStreamBeginCapture_v2(lane.handle, mode), 0);
            assert_eq!(gpu.cuMemcpyDtoDAsync_v2(to.address, source.address, 64, lane.handle), 0);
            work();
            std::thread::scope(|scope| scope.spawn(work).join().unwrap());
            let mut of_thread = GLOBAL;
            gpu.cuThreadExchangeStreamCaptureMode(&mut of_thread);
            assert_eq!(of_thread, GLOBAL, "the thread's own mode is back");
            let exec = end_capture(gpu, &lane);
            lane.write(to.address, &[0; 64]);
            assert_eq!(gpu.cuGraphLaunch(exec.1, lane.handle), 0);
            assert_eq!(to.read(), [1; 64]);
        }
    });
}

#[test]
fn streams_of_one_capture_are_ordered() {
    on_gpu(|gpu| {
        let (engine, origin, side) = (ready(), ForeignStream::new(gpu), ForeignStream::new(gpu));
        let rows = Rows::new(5, DType::U8, &[&[64]]);
        let (source, staged) = (Buffer::from_bytes(gpu, &rows.bytes[0]), Buffer::poisoned(gpu, 64));
        let out = Buffer::poisoned(gpu, 64);
        let (fork, mut tensor) = (gpu.event(), out.tensor(DType::U8, &[1, 64]));
        assert_eq!(gpu.cuStreamBeginCapture_v2(origin.handle, THREAD_LOCAL), 0);
        assert_eq!(gpu.cuEventRecord(fork, origin.handle), 0);
        assert_eq!(gpu.cuStreamWaitEvent(side.handle, fork, 0), 0);
        let code = gpu.cuMemcpyDtoDAsync_v2(staged.address, source.address, 64, side.handle);
        assert_eq!(code, 0);
        let (mut options, target) = (on(origin.stream()), tensor.as_target().unwrap());
        options.producers = vec![side.stream()];
        // Joins the side stream too: else the capture could not end.
        let samples = rows.at([staged.address]);
        into(&engine, &samples, &Collate::stack(), &target, options).unwrap();
        let exec = end_capture(gpu, &origin);
        for seed in 0..20 {
            gpu.sim.set_seed(seed);
            let rows = Rows::new(seed, DType::U8, &[&[64]]);
            origin.write(source.address, &rows.bytes[0]);
            assert_eq!(gpu.cuGraphLaunch(exec.1, origin.handle), 0);
            assert_eq!(out.read(), rows.bytes[0]);
        }
        gpu.cuEventDestroy_v2(fork);
    });
}

#[test]
fn a_capture_that_failed_is_no_end_of_the_engine() {
    on_gpu(|gpu| {
        let (engine, lane) = (ready(), ForeignStream::new(gpu));
        let rows = Rows::new(5, DType::U8, &[&[64]]);
        let (memory, out) = (rows.upload(gpu), Buffer::poisoned(gpu, 64));
        let mut tensor = out.tensor(DType::U8, &[1, 64]);
        let (samples, target) = (rows.at([memory[0].address]), tensor.as_target().unwrap());
        assert_eq!(gpu.cuStreamBeginCapture_v2(lane.handle, THREAD_LOCAL), 0);
        assert_ne!(gpu.cuStreamSynchronize(lane.handle), 0);
        let error = into(&engine, &samples, &Collate::stack(), &target, on(lane.stream()));
        assert!(matches!(error, Err(Error::Cuda(e)) if e.code == 901));
        assert_ne!(gpu.cuStreamEndCapture(lane.handle, &mut 0), 0);
        assert_eq!(gpu.sim.take_errors(), ["cuStreamSynchronize ended a capture"]);
        into(&engine, &samples, &Collate::stack(), &target, on(lane.stream())).unwrap();
        assert_eq!(out.read(), rows.bytes[0]);
        let again = [SampleView::from(&tensor)];
        drop(engine.assemble(&again, &Collate::stack()).unwrap());
    });
}

#[test]
fn thousands_of_samples_fit_into_the_parameters_of_a_graph() {
    on_gpu(|gpu| {
        let (engine, lane, num) = (ready(), ForeignStream::new(gpu), 8000);
        for num in [4096, num] {
            let rows = Rows::new(6, DType::U8, &vec![&[16][..]; num]);
            let memory = Buffer::from_bytes(gpu, &rows.bytes.concat());
            // The rows are in reverse order, or neighbours would be merged.
            let samples = rows.at((0..num as u64).rev().map(|i| memory.address + 16 * i));
            let out = Buffer::poisoned(gpu, 16 * num);
            let mut tensor = out.tensor(DType::U8, &[num as i64, 16]);
            let target = tensor.as_target().unwrap();
            assert_eq!(gpu.cuStreamBeginCapture_v2(lane.handle, THREAD_LOCAL), 0);
            into(&engine, &samples, &Collate::stack(), &target, on(lane.stream())).unwrap();
            let exec = end_capture(gpu, &lane);
            for seed in 0..3 {
                let rows = Rows::new(seed, DType::U8, &vec![&[16][..]; num]);
                lane.write(memory.address, &rows.bytes.concat());
                assert_eq!(gpu.cuGraphLaunch(exec.1, lane.handle), 0);
                let expected: Vec<u8> = rows.bytes.iter().rev().flatten().copied().collect();
                assert!(out.read() == expected, "{num} samples, seed {seed}");
            }
        }
    });
}

/// Every call in a capture fails in turn; the capture may be lost, and nothing else is.
#[test]
fn each_call_in_a_capture_fails_once() {
    watched(|| {
        let gpu = &start();
        let (engine, lane, num) = (ready(), ForeignStream::new(gpu), 100);
        let rows = Rows::new(6, DType::U8, &vec![&[16][..]; num]);
        let (memory, out) =
            (Buffer::from_bytes(gpu, &rows.bytes.concat()), Buffer::poisoned(gpu, 16 * num));
        let samples = rows.at((0..num as u64).map(|i| memory.address + 16 * i));
        let mut tensor = out.tensor(DType::U8, &[num as i64, 16]);
        let target = tensor.as_target().unwrap();
        let stack = || into(&engine, &samples, &Collate::stack(), &target, on(lane.stream()));
        let capture = |call: &mut dyn FnMut()| {
            assert_eq!(gpu.cuStreamBeginCapture_v2(lane.handle, THREAD_LOCAL), 0);
            call();
            gpu.sim.clear_faults();
            let (mut graph, mut exec) = (0, 0);
            let code = gpu.cuStreamEndCapture(lane.handle, &mut graph);
            if code != 0 {
                return None;
            }
            assert_eq!(gpu.cuGraphInstantiateWithFlags(&mut exec, graph, 0), 0);
            assert_eq!(gpu.cuGraphDestroy(graph), 0);
            Some(Exec(gpu, exec))
        };
        let replay = |exec: Exec<'_>, what: &str| {
            lane.write(out.address, &vec![0; 16 * num]);
            assert_eq!(gpu.cuGraphLaunch(exec.1, lane.handle), 0);
            assert!(out.read() == rows.bytes.concat(), "{what}: wrong bytes");
        };
        stack().unwrap();
        let mut functions = Vec::new();
        drop(capture(&mut || functions = traced(gpu, || stack().unwrap())));
        for code in [OUT_OF_MEMORY, INVALID_HANDLE, UNKNOWN, LAUNCH_FAILED] {
            for (k, function) in (1..).zip(&functions) {
                let what = format!("{code} from call {k}, {function}");
                let mut result = Ok(());
                let exec = capture(&mut || {
                    gpu.sim.fail_call(k, code);
                    result = stack();
                });
                match result {
                    Ok(()) => replay(exec.expect("a graph"), &what),
                    Err(Error::Cuda(e)) => assert_eq!((e.function, e.code), (&**function, code)),
                    Err(error) => panic!("{what}: {error}"),
                }
                let exec = capture(&mut || stack().unwrap());
                replay(exec.expect("a graph"), &what);
                assert_eq!(gpu.sim.take_errors(), [""; 0], "{what}");
            }
        }
    });
}
