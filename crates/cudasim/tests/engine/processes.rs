//! Facts about the driver that a process learns only once: none, no device, an old one, another GPU; and
//! forks.

use std::env;
use std::process::Command;

use windrow::{Collate, DType, Device, Engine, Error, Ragged};

use crate::rig::{consume, start, ForeignStream, Rows};

const CASE: &str = "CUDASIM_TEST_PROCESS";

/// Runs a case in a process with these settings.
fn in_process(case: &str, settings: &[(&str, &str)]) {
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", "processes::child", "--nocapture"]).env(CASE, case);
    let output = child.envs(settings.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{case}: {}\n{text}", output.status);
}

/// The child: does nothing unless told to.
#[test]
fn child() {
    let Ok(case) = env::var(CASE) else { return };
    let missing = "/nonexistent/libcuda.so";
    let driver = if case == "missing" { missing } else { cudasim::LIBRARY };
    env::set_var("WINDROW_CUDA_DRIVER", driver);
    let refused = |words: &[&str]| {
        for _ in 0..2 {
            let Err(Error::NoDriver(text)) = Engine::cuda(0) else { panic!("no error") };
            assert!(words.iter().all(|word| text.to_string().contains(word)), "{text}");
        }
        // The host goes on.
        let rows = Rows::new(1, DType::U8, &[&[5]]);
        let host = Engine::host();
        assert!(host.assemble(&rows.on_host(), &Collate::stack()).is_ok());
        let collate = Collate::stack().device(Device::Cuda(0));
        let error = host.assemble(&rows.on_host(), &collate).unwrap_err();
        assert!(matches!(error, Error::NoDriver(_)), "{error}");
    };
    match case.as_str() {
        "missing" => refused(&["no driver found", missing]),
        "none" => refused(&["no device", "CUDA_VISIBLE_DEVICES"]),
        "old" | "no large parameters" => {
            let toolkit = windrow::device::cuda_build().unwrap().toolkit;
            let toolkit = format!("compiled with CUDA {toolkit}");
            let version = if case == "old" { "11.4" } else { "12.0" };
            refused(&[&format!("supports CUDA {version}"), &toolkit, "update the driver to"]);
        }
        "other" => refused(&["compute capability 7.5", "WINDROW_CUDA_ARCHS=75"]),
        "fork" => forked(),
        "two" => two(),
        _ => panic!("{case}"),
    }
}

#[test]
fn drivers_that_do_not_fit() {
    in_process("missing", &[]);
    in_process("none", &[("CUDASIM_DEVICES", "0")]);
    in_process("old", &[("CUDASIM_DRIVER_VERSION", "11040")]);
    // Launches with more than 4 KiB of parameters came with 12.1.
    in_process("no large parameters", &[("CUDASIM_DRIVER_VERSION", "12000")]);
    in_process("other", &[("CUDASIM_CAPABILITY", "75")]);
}

#[test]
fn a_fork_after_the_first_use() {
    in_process("fork", &[]);
}

#[test]
fn two_processes_and_memory_that_they_share() {
    in_process("two", &[]);
}

/// A worker forked before the first use: both use the device, and one fills what the other reads.
fn two() {
    const BYTES: usize = 5000;
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, which stays.
    let shared = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, kind, -1, 0) };
    assert_ne!(shared, libc::MAP_FAILED);
    let shared = shared.cast::<u8>();
    let work = |seed: u64| {
        let (gpu, engine) = (start(), Engine::cuda(0).unwrap());
        gpu.sim.set_seed(seed);
        gpu.sim.set_delay_us(200);
        let lane = ForeignStream::new(&gpu);
        for seed in seed..seed + 20 {
            let rows = Rows::new(seed, DType::U8, &[&[500], &[700]]);
            let batch = engine.assemble(&rows.on_host(), &Collate::ragged(Ragged::new())).unwrap();
            assert_eq!(consume(&lane, &batch), rows.expected(&Collate::ragged(Ragged::new())));
        }
    };
    let row = Rows::new(3, DType::U8, &[&[BYTES as i64]]).bytes.remove(0);
    // SAFETY: nothing of CUDA has been used, and the child ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let worked = std::panic::catch_unwind(|| work(100)).is_ok();
        // SAFETY: as many bytes, which the parent reads when this process has ended.
        unsafe {
            shared.copy_from_nonoverlapping(row.as_ptr(), BYTES);
            libc::_exit(i32::from(!worked));
        }
    }
    work(200);
    let mut status = -1;
    // SAFETY: a child of ours, and a live integer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    let (gpu, engine) = (start(), Engine::cuda(0).unwrap());
    // SAFETY: mapped, and nothing writes to it any more.
    let bytes = unsafe { std::slice::from_raw_parts(shared, BYTES) };
    let samples = [windrow::SampleView::from_slice(bytes, &[BYTES as i64]).unwrap()];
    let batch = engine.assemble(&samples, &Collate::stack()).unwrap();
    assert_eq!(consume(&ForeignStream::new(&gpu), &batch)[0], row);
}

fn forked() {
    let gpu = start();
    let engine = Engine::cuda(0).unwrap();
    let (rows, lane) = (Rows::new(1, DType::U8, &[&[500], &[700]]), ForeignStream::new(&gpu));
    let batch = engine.assemble(&rows.on_host(), &Collate::ragged(Ragged::new())).unwrap();
    let memory = rows.upload(&gpu);
    let samples = rows.at(memory.iter().map(|b| b.address));
    // SAFETY: the child takes no lock that another thread may hold, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut ok = true;
        let mut refused = |result: windrow::Result<()>| {
            ok &=
                matches!(&result, Err(Error::NoDriver(text)) if text.to_string().contains("spawn"));
        };
        refused(Engine::cuda(0).map(drop));
        refused(engine.assemble(&samples, &Collate::ragged(Ragged::new())).map(drop));
        refused(batch.data().synchronize());
        refused(batch.data().ready_on(windrow::Stream::LEGACY));
        drop((batch, engine));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!ok)) };
    }
    let mut status = -1;
    // SAFETY: a child of ours, and a live integer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(consume(&lane, &batch), rows.expected(&Collate::ragged(Ragged::new())));
    let again = engine.assemble(&samples, &Collate::ragged(Ragged::new())).unwrap();
    assert_eq!(consume(&lane, &again), rows.expected(&Collate::ragged(Ragged::new())));
}
