//! Page-locked memory that is copied to a device whole, without a plan.
#![allow(unsafe_code)] // A copy between raw addresses.

use std::sync::Arc;

use super::capture::refused_in_capture;
use super::completion::End;
use super::executor::Executor;
use crate::cuda::memory::device::DeviceBlock;
use crate::run_options::RunOptions;
use crate::tensor::{Error, Result, Stream, Tensor};

impl Executor {
    /// Enqueues one copy of all bytes of page-locked memory to a block of windrow's own on this
    /// device, in the order of `stream`, or of the engine's own stream without one, and behind all
    /// that is enqueued on the block so far. `from` is page-locked, which is not checked.
    /// Page-locked memory that is dropped meanwhile is used again when the device has been waited
    /// for.
    ///
    /// # Errors
    /// [`Error::Argument`] for a stream of another device or context, or one that is being captured, and if `to` is no memory of
    /// windrow's of as many bytes; [`Error::Cuda`].
    pub fn copy_block(&self, from: &Tensor, to: &Tensor, stream: Option<Stream>) -> Result<End> {
        let current = self.enter()?;
        let options = RunOptions { stream, ..RunOptions::default() };
        let stream = self.stream_for(&current, &options)?;
        if stream.is_capturing()? {
            return Err(refused_in_capture(
                "it would read the same host memory at each launch: upload before each launch",
            ));
        }
        let block =
            to.owner().downcast_ref::<DeviceBlock>().filter(|_| from.nbytes() == to.nbytes());
        let Some(block) = block else {
            return Err(Error::argument(
                "no memory of windrow's on a device, of as many bytes".into(),
            ));
        };
        block.wait_for_users(&current, &self.events, stream)?;
        let end = Arc::new(self.events.take(&current)?);
        debug_assert!(from.layout().is_compact() && to.layout().is_compact());
        debug_assert!(!from.device().is_cuda() && to.device().is_cuda());
        // SAFETY: two tensors without gaps, of as many bytes, on the host and on the device. A block
        // of the pool that others had is used again, or freed, when everything is done; the device's
        // goes back behind the event.
        unsafe { stream.h2d(to.data_ptr().addr() as u64, from.data_ptr(), from.nbytes()) }?;
        let mark = || {
            stream.record(&end)?;
            block.set_ready(stream, Arc::clone(&end))
        };
        if let Err(error) = mark() {
            // Nothing says when the copy ends, which has to be before the memory is used again.
            let _ = stream.synchronize().or_else(|_| current.synchronize());
            return Err(error.into());
        }
        Ok(End::new(current.context(), end))
    }
}
