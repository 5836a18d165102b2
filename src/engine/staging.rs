//! [`Staging`]: two blocks of host memory in turn, each copied whole to one block of a device.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::engine::Engine;
use crate::cuda;
use crate::device::devices;
use crate::host;
use crate::observe::Traffic;
use crate::tensor::{DType, Device, Error, Layout, Mismatch, Result, Stream, Tensor};

/// Two blocks of host memory, page-locked for a CUDA device, and one of the device. While one is copied, the other one is filled.
#[derive(Debug)]
pub struct Staging {
    engine: Engine,
    hosts: [Tensor; 2],
    device: Tensor,
    /// The number of the block that is filled next: no copy reads it. Written under the lock.
    turn: AtomicUsize,
    /// The last copy of each.
    copies: Mutex<[Option<cuda::End>; 2]>,
}

impl Staging {
    /// Zeroed blocks of `num_bytes` bytes. `device` `None`: that of the engine, else the first CUDA device, else the host.
    ///
    /// # Errors
    /// [`Error::Device`] for page-locked memory as the device; [`Error::NoDriver`]; [`Error::Argument`] for a device that is
    /// not there; [`Error::OutOfMemory`]; [`Error::Cuda`].
    pub fn new(engine: &Engine, num_bytes: u64, device: Option<Device>) -> Result<Staging> {
        let first = || match devices() {
            Ok(found) if !found.is_empty() => Device::Cuda(0),
            _ => Device::Cpu,
        };
        let device = device.or(engine.shared.device).unwrap_or_else(first);
        let shape = [i64::try_from(num_bytes).unwrap_or(i64::MAX)];
        let host = || match device {
            Device::Cpu => engine.empty(DType::U8, &shape, device),
            Device::Cuda(ordinal) => {
                let layout = Layout::compact(DType::U8, &shape)?;
                engine.memory(ordinal, DType::U8, layout, Device::Pinned, true)
            }
            Device::Pinned => {
                let found =
                    Mismatch::for_subject("device", "cpu or a CUDA device", device.to_string());
                Err(found.into_error(Error::Device))
            }
        };
        Ok(Staging {
            hosts: [host()?, host()?],
            device: engine.empty(DType::U8, &shape, device)?,
            engine: engine.clone(),
            turn: AtomicUsize::new(0),
            copies: Mutex::default(),
        })
    }

    /// The blocks of the host.
    pub fn hosts(&self) -> &[Tensor; 2] {
        &self.hosts
    }

    /// The block of the device.
    pub fn device(&self) -> &Tensor {
        &self.device
    }

    /// The number of the block of the host that no copy reads.
    pub fn turn(&self) -> usize {
        self.turn.load(Ordering::Acquire)
    }

    /// Enqueues a copy of the block whose turn it is, on `stream`, or the engine's own without one,
    /// and gives the turn to the other one, whose own copy it waits for. Without a device the bytes
    /// are copied when it returns. If the call fails, the turn stays.
    ///
    /// # Errors
    /// [`Error::Argument`] for a stream of another device or context, or one that is being captured, and for a stream where
    /// there is no device; [`Error::Cuda`].
    ///
    /// # Safety
    /// Nothing else reads or writes the block whose turn it is until the copy is done; on the host nothing reads or writes the
    /// block of the device during the call.
    #[allow(unsafe_code)]
    pub unsafe fn upload(&self, stream: Option<Stream>) -> Result<()> {
        // First: in a forked child the lock below may be one that is never released.
        let executor = match self.device.device() {
            Device::Cuda(ordinal) => Some(self.engine.executor(ordinal)?),
            _ if stream.is_some() => {
                let text = "stream= is for a CUDA device; host memory has no streams";
                return Err(Error::argument(text.into()));
            }
            _ => None,
        };
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = self.turn.load(Ordering::Relaxed);
        let (from, to, next) = (&self.hosts[turn], &self.device, 1 - turn);
        let bytes = from.nbytes() as u64;
        match executor {
            Some(executor) => {
                if let Some(end) = &copies[next] {
                    end.wait()?;
                }
                copies[next] = None;
                copies[turn] = Some(executor.copy_block(from, to, stream)?);
                let traffic = Traffic { bytes_to_device: bytes, ..Traffic::default() };
                self.engine.shared.counters.count_traffic(traffic);
            }
            None => {
                let threads = match host::is_small(2 * bytes) {
                    true => None,
                    false => self.engine.shared.threads.helpers()?,
                };
                debug_assert_eq!(from.nbytes(), to.nbytes());
                // SAFETY: two blocks of as many bytes; the rest is the caller's promise.
                unsafe { host::copy(from.data_ptr(), to.data_ptr(), bytes, threads.as_ref()) };
            }
        }
        self.turn.store(next, Ordering::Release);
        Ok(())
    }
}
