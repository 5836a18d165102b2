//! [`Devices`]: the executors of an engine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::executor::Executor;
use crate::cuda::driver;
use crate::plan::Plan;
use crate::run_options::RunOptions;
use crate::tensor::{Device, Error, Hint, Mismatch, Result, Stream};

/// The executors of an engine, made when they are first asked for.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    executors: Mutex<BTreeMap<u32, Arc<Executor>>>,
}

impl Devices {
    /// The executor of a device, which the first call makes.
    ///
    /// # Errors
    /// As [`Executor::new`]; [`Error::NoDriver`] in a forked child.
    pub fn executor(&self, ordinal: u32) -> Result<Arc<Executor>> {
        self.executor_on(ordinal, None)
    }

    /// The executor of [`Devices::executor`], for work on a stream.
    ///
    /// # Errors
    /// As [`Executor::new`], with [`Error::Argument`] only if this call makes the executor while
    /// the stream is being captured; [`Error::NoDriver`] in a forked child.
    pub fn executor_on(&self, ordinal: u32, stream: Option<Stream>) -> Result<Arc<Executor>> {
        if let Some(error) = driver::forked() {
            return Err(error);
        }
        let mut executors = self.executors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(executor) = executors.get(&ordinal) {
            return Ok(Arc::clone(executor));
        }
        let executor = Executor::new(ordinal, stream)?;
        executors.insert(ordinal, Arc::clone(&executor));
        Ok(executor)
    }

    /// Blocks until all work on the engine's own streams has ended, one device after the other; stops at the first error.
    pub fn settle(&self) -> Result<()> {
        self.all().iter().try_for_each(|executor| executor.settle(&RunOptions::default()))
    }

    /// Bytes of device memory in use; page-locked bytes unused and in use.
    pub fn bytes(&self) -> (u64, (u64, u64)) {
        let all = self.all();
        let all = all.iter().map(|executor| executor.bytes());
        all.fold((0, (0, 0)), |(device, (free, used)), (more, (more_free, more_used))| {
            (device + more, (free + more_free, used + more_used))
        })
    }

    /// How often the host waited for a device, and for how long in all.
    pub fn waits(&self) -> (u64, Duration) {
        let all = self.all();
        let waits = all.iter().map(|executor| executor.waits().get());
        waits.fold(Default::default(), |(n, time), (more_n, more_time)| {
            (n + more_n, time + more_time)
        })
    }

    /// Counts waits anew.
    pub fn reset_waits(&self) {
        self.all().iter().for_each(|executor| executor.waits().reset());
    }

    /// The executors made so far. None in a forked child: they are the parent's, and the lock may be one that
    /// nothing will ever release.
    fn all(&self) -> Vec<Arc<Executor>> {
        if driver::forked().is_some() {
            return Vec::new();
        }
        let executors = self.executors.lock().unwrap_or_else(PoisonError::into_inner);
        executors.values().cloned().collect()
    }

    /// Gives unused memory back to the devices and the system. Waits for the devices; errors are ignored.
    pub fn clear(&self) {
        // Releases may run arbitrary code: not under the lock.
        for executor in self.all() {
            // A device that fails has nothing to give back; the next batch says so.
            let _ = executor.empty_cache();
        }
    }
}

/// The ordinal of the CUDA device that a plan needs; `None` if it needs none, [`Error::Device`] if it needs several.
pub(crate) fn ordinal_of(plan: &Plan<'_>) -> Result<Option<u32>> {
    let mut found = None;
    for device in
        plan.batch_shapes().iter().flat_map(|batch_shape| [batch_shape.source, batch_shape.device])
    {
        match (device, found) {
            (Device::Cuda(ordinal), None) => found = Some(ordinal),
            (Device::Cuda(ordinal), Some(known)) if ordinal != known => {
                let (expected, got) = (Device::Cuda(known).to_string(), device.to_string());
                let mismatch = Mismatch::for_subject("leaves", expected, got);
                let hint = Hint::Text("all leaves of one call must be on one device");
                return Err(mismatch.with_hint(hint).into_error(Error::Device));
            }
            _ => {}
        }
    }
    Ok(found)
}
