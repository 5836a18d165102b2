//! Every driver call of every kind of batch fails once, in several ways.

use std::process::abort;
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use cudasim::Live;
use windrow::batch::LeafOutput;
use windrow::engine::RunOptions;
use windrow::plan::{Leaf, Target};
use windrow::{
    Batch, Collate, DType, Device, Engine, Error, Mask, Pad, Plan, Ragged, Stream, Transform,
};

use crate::rig::{consume, engine, run, start, Buffer, ForeignStream, Gpu, Pinned, Rows, HERE};

pub const OUT_OF_MEMORY: u32 = 2;
pub const INVALID_HANDLE: u32 = 400;
pub const LAUNCH_FAILED: u32 = 719;
pub const UNKNOWN: u32 = 999;

/// Ends the process if the test hangs.
pub fn watched(test: impl FnOnce()) {
    let (done, end) = channel::<()>();
    let watchdog = thread::spawn(move || {
        if end.recv_timeout(Duration::from_secs(120)) == Err(RecvTimeoutError::Timeout) {
            eprintln!("a call hangs");
            abort();
        }
    });
    test();
    drop(done);
    watchdog.join().unwrap();
}

/// The contexts stay for as long as the device is used.
pub fn without_contexts(gpu: &Gpu) -> Live {
    Live { contexts: 0, modules: 0, pooled_bytes: 0, ..gpu.sim.live() }
}

/// The memory that each kind of call works on.
pub struct Setting<'g> {
    lane: ForeignStream<'g>,
    rows: Rows,
    few: Rows,
    many: Rows,
    memory: Vec<Buffer<'g>>,
    packed: Buffer<'g>,
    out: Buffer<'g>,
    large: Rows,
    pinned: Pinned<'g>,
    indices: Buffer<'g>,
}

/// Bytes on either side of `Setting::out`.
const MARGIN: usize = 64;

impl<'g> Setting<'g> {
    pub fn new(gpu: &'g Gpu) -> Setting<'g> {
        let rows = Rows::new(1, DType::U8, &[&[5, 3], &[2, 3], &[9, 3]]);
        let few = Rows::new(4, DType::F32, &[&[4], &[7]]);
        let many = Rows::new(2, DType::U8, &[&[2][..]; 4400]);
        let (memory, packed) = (rows.upload(gpu), Buffer::from_bytes(gpu, &many.bytes.concat()));
        let out = Buffer::poisoned(gpu, 16 * 3 + 2 * MARGIN);
        let large = Rows::new(3, DType::U8, &[&[30_000], &[30_000]]);
        let pinned = large.pinned(gpu);
        pinned.fill(&large);
        let indices = Buffer::from_bytes(gpu, &[2i64, 0, 1].map(i64::to_ne_bytes).concat());
        Setting {
            lane: ForeignStream::new(gpu),
            rows,
            few,
            many,
            memory,
            packed,
            out,
            large,
            pinned,
            indices,
        }
    }

    fn samples(&self) -> windrow::SampleList<'static> {
        self.rows.at(self.memory.iter().map(|b| b.address))
    }

    fn scattered(&self) -> windrow::SampleList<'static> {
        // Neighbours would be merged.
        self.many.at((0..4400).rev().map(|i| self.packed.address + 2 * i))
    }
}

fn transformed() -> Collate {
    let transform = Transform::new().scale(2.0).mean([1.0, 2.0, 3.0]).channel_dim(1);
    Collate::pad(Pad::new().mask(Mask::Real)).transform(transform).cast(DType::F32)
}

/// The pad has a given size, as samples by indices on the device need it.
fn sized() -> Collate {
    Collate::pad(Pad::new().dims([0]).size(9).mask(Mask::Real))
}

/// One kind of call, and the bytes it must give: of no batch, in `Setting::out`.
pub struct Call {
    pub name: &'static str,
    pub run: fn(&Setting<'_>, &Engine) -> windrow::Result<Vec<Batch>>,
    expected: fn(&Setting<'_>) -> Vec<Vec<u8>>,
}

fn one(batch: Batch) -> Vec<Batch> {
    vec![batch]
}

/// Two leaves on the host, of which one is padded, in one copy and one launch.
fn tree(setting: &Setting<'_>, engine: &Engine, in_arena: bool) -> windrow::Result<Vec<Batch>> {
    let samples = [setting.rows.on_host(), setting.few.on_host()];
    let collates = [Collate::ragged(Ragged::new()).device(HERE), sized().device(HERE)];
    let leaf = |(samples, collate)| Leaf { samples, collate, path: "", out: None };
    let leaves: Vec<_> = samples.iter().zip(&collates).map(leaf).collect();
    let plan = if in_arena { Plan::in_arena(&leaves) } else { Plan::for_leaves(&leaves) };
    let batch = |filled: LeafOutput| Batch::try_new(filled.data.unwrap(), filled.fields).unwrap();
    Ok(engine.run_with(plan?, RunOptions::default())?.into_iter().map(batch).collect())
}

fn tree_of(setting: &Setting<'_>) -> Vec<Vec<u8>> {
    [concat_of(setting), setting.few.expected(&sized())].concat()
}

fn concat_of(setting: &Setting<'_>) -> Vec<Vec<u8>> {
    setting.rows.expected(&Collate::ragged(Ragged::new()))
}

pub const CALLS: &[Call] = &[
    Call {
        name: "gather on the device",
        run: |s, engine| engine.assemble(&s.samples(), &Collate::ragged(Ragged::new())).map(one),
        expected: concat_of,
    },
    Call {
        name: "transform with a mask",
        run: |s, engine| engine.assemble(&s.samples(), &transformed()).map(one),
        expected: |s| s.rows.expected(&transformed()),
    },
    Call {
        name: "upload",
        run: |s, engine| {
            engine.assemble(&s.rows.on_host(), &Collate::ragged(Ragged::new())).map(one)
        },
        expected: concat_of,
    },
    Call {
        name: "staged upload",
        run: |s, engine| engine.assemble(&s.rows.on_host(), &transformed()).map(one),
        expected: |s| s.rows.expected(&transformed()),
    },
    Call {
        name: "page-locked samples, copied",
        run: |s, engine| {
            let large = s.large.on(Device::Pinned, &s.pinned.addresses);
            engine.assemble(&large, &Collate::stack().device(HERE)).map(one)
        },
        expected: |s| vec![s.large.bytes.concat()],
    },
    Call {
        name: "to the host",
        run: |s, engine| {
            engine
                .assemble(&s.samples(), &Collate::ragged(Ragged::new()).device(Device::Cpu))
                .map(one)
        },
        expected: concat_of,
    },
    Call {
        name: "to pinned memory",
        run: |s, engine| {
            engine.assemble(&s.samples(), &transformed().device(Device::Pinned)).map(one)
        },
        expected: |s| s.rows.expected(&transformed()),
    },
    Call {
        name: "large table",
        run: |s, engine| engine.assemble(&s.scattered(), &Collate::stack()).map(one),
        expected: |s| {
            let backwards: Vec<u8> = s.many.bytes.iter().rev().flatten().copied().collect();
            vec![backwards]
        },
    },
    Call {
        name: "producers and a stream",
        run: |s, engine| {
            let mut options = RunOptions::default();
            options.stream = Some(s.lane.stream());
            options.producers = vec![Stream::LEGACY, s.lane.stream()];
            run(engine, &s.samples(), &Collate::ragged(Ragged::new()), options).map(one)
        },
        expected: concat_of,
    },
    Call {
        name: "our own batch as a sample",
        run: |s, engine| {
            let a = engine.assemble(&s.samples(), &Collate::ragged(Ragged::new()))?;
            let list = windrow::SampleList::rows(a.data())?;
            engine.assemble(&list, &Collate::stack()).map(one)
        },
        expected: |s| vec![s.rows.bytes.concat()],
    },
    Call {
        name: "indices on the device",
        run: |s, engine| {
            let resident = engine.resident(s.samples(), HERE)?;
            let taken = resident.take(&s.indices.tensor(DType::I64, &[3]))?;
            engine.assemble(&taken, &sized()).map(one)
        },
        expected: |s| {
            let rows =
                [2, 0, 1].map(|i: usize| (s.rows.shapes[i].clone(), s.rows.bytes[i].clone()));
            let (shapes, bytes) = rows.into_iter().unzip();
            Rows { dtype: s.rows.dtype, shapes, bytes }.expected(&sized())
        },
    },
    Call { name: "tree", run: |s, engine| tree(s, engine, false), expected: tree_of },
    Call { name: "tree in an arena", run: |s, engine| tree(s, engine, true), expected: tree_of },
    Call {
        name: "memory of the caller's",
        run: |s, engine| {
            let layout = windrow::Layout::compact(DType::U8, &[16, 3]).unwrap();
            let data = (s.out.address as *mut u8).wrapping_add(MARGIN);
            // SAFETY: the middle of a buffer that outlives the call.
            let mut out = unsafe { Target::from_raw_parts(data, DType::U8, HERE, layout) };
            engine.assemble_into(&s.samples(), &Collate::concat(0), &mut out).map(|_| Vec::new())
        },
        expected: |s| vec![s.rows.bytes.concat()],
    },
];

/// The contents of the batch; around memory of the caller's, nothing has been touched.
pub fn check(setting: &Setting<'_>, call: &Call, batches: Vec<Batch>, what: &str) {
    let got = match batches.is_empty() {
        true => vec![setting.out.read()[MARGIN..][..48].to_vec()],
        false => batches.iter().flat_map(|batch| consume(&setting.lane, batch)).collect(),
    };
    assert!(got == (call.expected)(setting), "{what}: wrong bytes");
}

fn is_untouched(setting: &Setting<'_>) -> bool {
    let out = setting.out.read();
    out[..MARGIN].iter().chain(&out[MARGIN + 48..]).all(|&byte| byte == 0xA5)
}

/// The functions that `work` calls.
pub fn traced(gpu: &Gpu, work: impl FnOnce()) -> Vec<String> {
    gpu.sim.trace(true);
    work();
    let lines = gpu.sim.take_trace();
    gpu.sim.trace(false);
    lines.iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

fn check_error(error: &Error, function: &str, code: u32, what: &str) {
    match error {
        Error::Cuda(e) => assert_eq!((e.function, e.code), (function, code), "{what}"),
        Error::OutOfMemory { bytes } => {
            assert!(code == OUT_OF_MEMORY && *bytes > 0, "{what}: {error}")
        }
        _ => panic!("{what}: {error}"),
    }
}

#[test]
fn each_call_of_a_batch_fails_once() {
    watched(|| {
        for code in [OUT_OF_MEMORY, INVALID_HANDLE, UNKNOWN, LAUNCH_FAILED] {
            for call in CALLS {
                sweep(call, code, false);
                sweep(call, code, true);
            }
        }
    });
}

/// Resources whose release needs a context are lost without one: those calls have a sweep of their own.
fn sweep(call: &Call, code: u32, of_contexts: bool) {
    let is_chosen = |(_, function): &(u64, &String)| {
        ["cuCtxGetCurrent", "cuCtxPushCurrent_v2"].contains(&function.as_str()) == of_contexts
    };
    let gpu = start();
    {
        let setting = Setting::new(&gpu);
        let before = without_contexts(&gpu);
        let engine = engine();
        // One-time state and reusable memory exist after these calls.
        for _ in 0..3 {
            check(&setting, call, (call.run)(&setting, &engine).unwrap(), call.name);
        }
        let mut result = Vec::new();
        // All work ends first, so that each call makes the same driver calls.
        gpu.sim.synchronize_all();
        let functions = traced(&gpu, || result = (call.run)(&setting, &engine).unwrap());
        let drops = traced(&gpu, || drop(result));
        for (k, function) in (1..).zip(&functions).filter(is_chosen) {
            let what = format!("{}: {code} from call {k}, {function}", call.name);
            gpu.sim.synchronize_all();
            gpu.sim.fail_call(k, code);
            let mut result = Ok(Vec::new());
            let called = traced(&gpu, || result = (call.run)(&setting, &engine));
            gpu.sim.clear_faults();
            // Page-locked batches take other memory by turns.
            let function = called.get(k as usize - 1).unwrap_or(function);
            match result {
                Ok(batch) => check(&setting, call, batch, &what),
                Err(error) => check_error(&error, function, code, &what),
            }
            assert!(is_untouched(&setting), "{what}");
            let again = (call.run)(&setting, &engine);
            let again = again.unwrap_or_else(|error| panic!("{what}, then {error}"));
            check(&setting, call, again, &what);
            assert_eq!(gpu.sim.take_errors(), [""; 0], "{what}");
        }
        for (k, function) in (1..).zip(&drops).filter(is_chosen) {
            let what = format!("{}: {code} from call {k} of its end, {function}", call.name);
            let result = (call.run)(&setting, &engine).unwrap();
            gpu.sim.fail_call(k, code);
            drop(result);
            gpu.sim.clear_faults();
            let again = (call.run)(&setting, &engine);
            check(&setting, call, again.unwrap(), &what);
            assert_eq!(gpu.sim.take_errors(), [""; 0], "{what}");
        }
        engine.empty_cache();
        drop(engine);
        gpu.sim.check_memory();
        assert_eq!(gpu.sim.take_errors(), [""; 0], "{}", call.name);
        // The memory is gone with the context after a sticky error.
        if !of_contexts && code != LAUNCH_FAILED {
            assert_eq!(without_contexts(&gpu), before, "{}, {code}", call.name);
        }
    }
}

#[test]
fn each_call_of_making_an_engine_fails_once() {
    watched(|| {
        let gpu = start();
        let mut kept = None;
        let functions = traced(&gpu, || kept = Some(Engine::cuda(0).unwrap()));
        drop(kept);
        for code in [OUT_OF_MEMORY, INVALID_HANDLE, UNKNOWN, LAUNCH_FAILED] {
            for (k, function) in (1..).zip(&functions) {
                let what = format!("{code} from call {k}, {function}");
                let before = without_contexts(&gpu);
                gpu.sim.fail_call(k, code);
                let result = Engine::cuda(0);
                gpu.sim.clear_faults();
                match &result {
                    Ok(_) | Err(Error::NoDriver(_)) => {}
                    Err(Error::Cuda(e)) => assert_eq!(e.code, code, "{what}: {e}"),
                    Err(error) => panic!("{what}: {error}"),
                }
                println!("{what}: {:?}", result.as_ref().map(|_| ()).map_err(Error::to_string));
                drop(result);
                let engine = Engine::cuda(0).unwrap_or_else(|e| panic!("{what}, then {e}"));
                let rows = Rows::new(1, DType::U8, &[&[5]]);
                let batch = engine.assemble(&rows.on_host(), &Collate::stack()).unwrap();
                let lane = ForeignStream::new(&gpu);
                assert_eq!(consume(&lane, &batch), rows.bytes, "{what}");
                drop((batch, engine, lane));
                assert_eq!(gpu.sim.take_errors(), [""; 0], "{what}");
                if code != LAUNCH_FAILED && function != "cuCtxPushCurrent_v2" {
                    assert_eq!(without_contexts(&gpu), before, "{what}");
                }
            }
        }
    });
}

#[test]
fn a_device_that_is_lost_fails_every_call_and_nothing_hangs() {
    watched(|| {
        let gpu = start();
        let (setting, engine) = (Setting::new(&gpu), engine());
        let lost = |error: Error| match &error {
            Error::Cuda(e) if e.code == LAUNCH_FAILED => {
                assert!(error.to_string().contains("restart the process"), "{error}");
            }
            _ => panic!("{error}"),
        };
        for call in CALLS {
            let batch = (call.run)(&setting, &engine).unwrap();
            // The fault is that of another library's kernel: every call returns the code.
            gpu.sim.fail_function("cuCtxSynchronize", 1, LAUNCH_FAILED);
            assert_eq!(gpu.cuCtxSynchronize(), LAUNCH_FAILED);
            for _ in 0..2 {
                lost((call.run)(&setting, &engine).map(drop).unwrap_err());
            }
            for tensor in batch.iter().map(Batch::data) {
                if matches!(tensor.device(), Device::Cuda(_)) {
                    lost(tensor.ready_on(setting.lane.stream()).unwrap_err());
                    lost(tensor.synchronize().unwrap_err());
                }
            }
            drop(batch);
            engine.empty_cache();
            lost(Engine::cuda(0).map(drop).unwrap_err());
            let host =
                Engine::host().assemble(&setting.rows.on_host(), &Collate::ragged(Ragged::new()));
            assert!(host.is_ok());
            // Cleared faults stand for a new process.
            gpu.sim.clear_faults();
            let batch = (call.run)(&setting, &engine).unwrap();
            check(&setting, call, batch, call.name);
            assert_eq!(gpu.sim.take_errors(), [""; 0], "{}", call.name);
        }
    });
}

#[test]
fn memory_that_lies_unused_is_given_back_before_there_is_none() {
    crate::rig::on_gpu(|gpu| {
        // 64 MiB in all: see `Gpu::new`.
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let (small, large) = (vec![1u8; 5 << 20], vec![2u8; 50 << 20]);
        for bytes in [&small, &large, &small] {
            let views = [windrow::SampleView::from_slice(bytes, &[bytes.len() as i64]).unwrap()];
            let batch = engine.assemble(&views, &Collate::stack()).unwrap();
            assert!(consume(&lane, &batch)[0] == *bytes);
        }
        let views: [_; 2] = std::array::from_fn(|_| {
            windrow::SampleView::from_slice(&large, &[large.len() as i64]).unwrap()
        });
        engine.reset_stats();
        let error = engine.assemble(&views, &Collate::stack()).unwrap_err();
        assert_eq!(error, Error::OutOfMemory { bytes: 100 << 20 });
        // The waits are for memory on its way back, and for the work of the call that failed.
        assert_eq!(engine.stats().waits, 2);
        assert_eq!(engine.stats().device_bytes, 0);
    });
}
