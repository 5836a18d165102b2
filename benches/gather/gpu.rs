//! The driver, as the bench needs it: a stream, events around work on it, memory.

use std::time::Instant;

use std::ffi::c_void;
use std::mem::transmute;
use windrow::Stream;
use windrow_driver::Function;

use super::peers::Peers;

/// Driver calls and device memory are those of the tests.
#[macro_use]
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/common/device.rs"]
pub mod device;

use device::{cuMemAlloc_v2, cuMemcpyHtoDAsync_v2, cuStreamCreate, cuStreamSynchronize, Bytes};

driver! {
    cuDriverGetVersion(version: *mut i32);
    cuDeviceGetName(name: *mut u8, len: i32, device: i32);
    cuDeviceGetAttribute(value: *mut i32, attribute: u32, device: i32);
    cuEventCreate(event: *mut usize, flags: u32);
    cuEventRecord(event: usize, stream: usize);
    cuEventQuery(event: usize);
    cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize);
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize);
}

/// The error of a driver call or of a peer.
pub type Outcome = Result<(), String>;

pub fn check(what: &str, code: u32) -> Outcome {
    match code {
        0 => Ok(()),
        _ => Err(format!("{what}: error {code}")),
    }
}

/// One run.
#[derive(Clone, Copy)]
pub struct Timed {
    /// The time between the events, in microseconds.
    pub device_us: f64,
    /// The time until all was enqueued, in microseconds.
    pub host_us: f64,
    /// The device began before all was enqueued: it may have waited for the host.
    pub late: bool,
}

/// A stream and two events on device 0.
pub struct Gpu {
    pub stream: usize,
    pub peers: Result<Peers, String>,
    start: usize,
    end: usize,
}

impl Gpu {
    pub fn new() -> Result<Gpu, String> {
        device::enter();
        let (mut stream, mut start, mut end) = (0, 0, 0);
        // SAFETY: places for three handles; a stream that does not wait for the legacy one (1), events
        // that take the time (0).
        unsafe {
            check("cuStreamCreate", cuStreamCreate(&raw mut stream, 1))?;
            check("cuEventCreate", cuEventCreate(&raw mut start, 0))?;
            check("cuEventCreate", cuEventCreate(&raw mut end, 0))?;
        }
        let peers = Peers::load().and_then(|peers| {
            peers.nothing(stream)?;
            Ok(peers)
        });
        let gpu = Gpu { stream, peers, start, end };
        gpu.synchronize()?;
        Ok(gpu)
    }

    pub fn windrow_stream(&self) -> Stream {
        // SAFETY: the stream is never destroyed.
        unsafe { Stream::from_raw(self.stream) }
    }

    pub fn synchronize(&self) -> Outcome {
        // SAFETY: a stream of ours.
        check("cuStreamSynchronize", unsafe { cuStreamSynchronize(self.stream) })
    }

    pub fn copy(&self, to: u64, from: u64, bytes: usize) -> Outcome {
        // SAFETY: callers name memory of their own that is at least so large.
        check("cuMemcpyDtoDAsync", unsafe { cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream) })
    }

    /// The same from page-locked memory of the host.
    pub fn upload(&self, to: u64, from: u64, bytes: usize) -> Outcome {
        // SAFETY: as above.
        let code = unsafe { cuMemcpyHtoDAsync_v2(to, from as *const u8, bytes, self.stream) };
        check("cuMemcpyHtoDAsync", code)
    }

    /// Gives the stream work of some length, if there are the peers that have it.
    pub fn keep_busy(&self, microseconds: f64) -> Outcome {
        match &self.peers {
            Ok(peers) => peers.spin((microseconds * 1e3) as u64, self.stream),
            Err(_) => Ok(()),
        }
    }

    /// Times one run between two events. The stream is kept busy for `delay_us` first, so that the
    /// device does not wait for the host in between.
    pub fn timed(&self, delay_us: f64, run: &dyn Fn() -> Outcome) -> Result<Timed, String> {
        self.keep_busy(delay_us)?;
        let mut milliseconds = 0f32;
        // SAFETY: events and stream are ours.
        check("cuEventRecord", unsafe { cuEventRecord(self.start, self.stream) })?;
        let begin = Instant::now();
        run()?;
        let host_us = begin.elapsed().as_secs_f64() * 1e6;
        // SAFETY: as above.
        let late = unsafe { cuEventQuery(self.start) } == 0;
        // SAFETY: as above; a place for the number.
        unsafe {
            check("cuEventRecord", cuEventRecord(self.end, self.stream))?;
            self.synchronize()?;
            let code = cuEventElapsedTime(&raw mut milliseconds, self.start, self.end);
            check("cuEventElapsedTime", code)?;
        }
        Ok(Timed { device_us: f64::from(milliseconds) * 1e3, host_us, late })
    }
}

/// Memory with nothing in it yet.
pub fn allocate(len: usize) -> Result<Bytes, String> {
    let mut address = 0;
    // SAFETY: a place for the address; `Bytes` frees it.
    check("cuMemAlloc", unsafe { cuMemAlloc_v2(&raw mut address, len.max(1)) })?;
    Ok(Bytes { address, len })
}

/// The driver's description of the machine: device, driver version, multiprocessors, bytes of L2.
pub fn describe() -> (String, String, i32, i32) {
    let (mut name, mut version, mut num_sms, mut l2) = ([0u8; 128], 0, 0, 0);
    // SAFETY: places for what is asked for, of the length that is told.
    unsafe {
        cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, 0);
        cuDriverGetVersion(&raw mut version);
        cuDeviceGetAttribute(&raw mut num_sms, 16, 0);
        cuDeviceGetAttribute(&raw mut l2, 38, 0);
    }
    let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    let name = String::from_utf8_lossy(&name[..len]).into_owned();
    (name, format!("{}.{}", version / 1000, version % 1000 / 10), num_sms, l2)
}
