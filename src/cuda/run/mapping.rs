//! Whether kernels read page-locked memory where it is. Under confidential computing they have copies of it that are stale
//! (vllm#50671): an engine finds that out before it relies on it.
#![allow(unsafe_code)] // Page-locked memory as a sample.

use std::thread;
use std::time::{Duration, Instant};

use super::enqueue::Host;
use super::executor::{Executor, LaunchStream};
use crate::collate::Collate;
use crate::cuda::driver::{Current, OwnStream};
use crate::cuda::memory::pinned::PinnedBlock;
use crate::cuda::memory::trial::Trial;
use crate::host::MemoryPool;
use crate::plan::{set_mapping_stale, Plan};
use crate::run_options::RunOptions;
use crate::samples::{SampleList, SampleView};
use crate::tensor::{DType, Device, Layout, Result};

/// Bytes that are read: fewer than those that would be copied first.
const LEN: usize = 64;
/// The bytes before and after the host writes.
const VALUES: [u8; 2] = [0x3C, 0xC5];
/// How long calls wait for the answer of a device that is busy, before they copy their samples instead.
const PATIENCE: Duration = Duration::from_millis(200);

impl Executor {
    /// Whether kernels are known to read page-locked memory as the host has it. The first time a
    /// kernel reads two values that the host has just written, one after the other, on a stream of
    /// its own. With `waits` the call waits for the answer, however busy the device is. Else it
    /// waits at most 200 ms for each value, then returns false without an answer, and later calls
    /// look again without a wait. An answer of no holds for all plans of the process.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), [`Error::Cuda`](crate::Error::Cuda).
    pub fn reads_mapped(&self, current: &Current<'_>, waits: bool) -> Result<bool> {
        if let Some(known) = self.mapping.known.get() {
            return Ok(*known);
        }
        // The trial is taken out, so that no lock is held: another thread makes a trial of its own.
        let begun = self.mapping.trial().take();
        let mut trial = match begun {
            Some(trial) => trial,
            None => {
                let blocks = [self.pinned(LEN as u64)?, self.pinned(LEN as u64)?];
                self.begin_trial(current, VALUES[0], blocks, current.stream(0)?)?
            }
        };
        loop {
            while !trial.end.query()? {
                if !waits && Instant::now() > trial.deadline {
                    *self.mapping.trial() = Some(trial);
                    return Ok(false);
                }
                thread::sleep(Duration::from_micros(20));
            }
            let Trial { value, sample, seen, stream, .. } = trial;
            // SAFETY: as many bytes, whose copy is done.
            let is_seen = unsafe { std::slice::from_raw_parts(seen.as_ptr(), LEN) } == [value; LEN];
            if is_seen && value == VALUES[0] {
                trial = self.begin_trial(current, VALUES[1], [sample, seen], stream)?;
                continue;
            }
            sample.free();
            seen.free();
            if !is_seen {
                set_mapping_stale();
            }
            return Ok(*self.mapping.known.get_or_init(|| is_seen));
        }
    }

    /// Makes a kernel read page-locked bytes, and brings back the bytes that it has seen.
    fn begin_trial(
        &self,
        current: &Current<'_>,
        value: u8,
        [sample, seen]: [PinnedBlock; 2],
        own_stream: OwnStream,
    ) -> Result<Trial> {
        // SAFETY: as many bytes, which nothing else has.
        unsafe { sample.as_ptr().write_bytes(value, LEN) };
        let (device, stream) = (Device::Cuda(current.context().ordinal()), own_stream.on(current));
        let layout = Layout::compact(DType::U8, &[LEN as i64])?;
        // SAFETY: page-locked bytes, which exist until the end of the trial.
        let view = unsafe {
            SampleView::from_raw_parts(sample.as_ptr(), DType::U8, Device::Pinned, layout)
        };
        let list: SampleList<'_> = std::iter::once(view).collect();
        let mut plan = Plan::new(&list, &Collate::stack().device(device))?;
        plan.reroute(true)?;
        let (launch_stream, memory) =
            (LaunchStream { stream, is_capturing: false }, MemoryPool::new(0));
        let host = Host { memory: &memory, threads: None };
        let done =
            self.run(current, launch_stream, &plan, &[None], &RunOptions::default(), host)?;
        let batch: Vec<_> = done.tensors.into_iter().map(|(_, tensor)| tensor).collect();
        for tensor in &batch {
            debug_assert_eq!(tensor.nbytes(), LEN);
            // SAFETY: as many bytes of both, which exist until the end of the trial.
            unsafe { stream.d2h(seen.as_ptr(), tensor.data_ptr().addr() as u64, LEN) }?;
        }
        let end = self.events.take(current)?;
        stream.record(&end)?;
        let deadline = Instant::now() + PATIENCE;
        Ok(Trial { value, sample, seen, end, deadline, _batch: batch, stream: own_stream })
    }
}
