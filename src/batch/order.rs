//! Results on a device, and who may use them when: other libraries' streams, and the host.

use crate::cuda::DeviceBlock;
use crate::tensor::{Result, Stream, Tensor};

impl Tensor {
    /// Orders work that is enqueued on `stream` from now on behind the work that writes this tensor. Its memory is reused only
    /// after what is on the stream when the memory is released. Does nothing for memory that windrow did not allocate.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for a stream of another device or context, or one that is being captured in
    /// a graph; [`Error::NoDriver`](crate::Error::NoDriver) in a forked child; [`Error::Cuda`](crate::Error::Cuda).
    pub fn ready_on(&self, stream: Stream) -> Result<()> {
        self.hand_to(stream, false)
    }

    /// Orders work as [`Tensor::ready_on`] does, for a stream that need not exist when the call has returned, as DLPack
    /// requires. The memory is used again when the stream has been named in a later call, behind what is on it then; or
    /// when the whole device has been waited for.
    ///
    /// # Errors
    /// As [`Tensor::ready_on`].
    pub fn ready_on_borrowed(&self, stream: Stream) -> Result<()> {
        self.hand_to(stream, true)
    }

    /// Declares that work on streams that are never named, such as those inside other libraries,
    /// may use this tensor. It orders nothing and does not wait: [`Tensor::synchronize`] does,
    /// before such work starts. The memory is reused only after the whole device has been waited
    /// for. A later call does that once more than 64 such blocks of memory have been released, or
    /// more than four that together exceed 1/64 of the device's memory. Does nothing for memory
    /// that windrow did not allocate.
    ///
    /// # Errors
    /// [`Error::NoDriver`](crate::Error::NoDriver) in a forked child; [`Error::Cuda`](crate::Error::Cuda).
    pub fn ready_on_unnamed(&self) -> Result<()> {
        if let Some(block) = self.owner().downcast_ref::<DeviceBlock>() {
            return block.hand_to_unnamed();
        }
        Ok(())
    }

    /// Hands a block of windrow's to a stream, borrowed or not; does nothing for other memory.
    fn hand_to(&self, stream: Stream, is_borrowed: bool) -> Result<()> {
        if let Some(block) = self.owner().downcast_ref::<DeviceBlock>() {
            return block.hand_to(stream, is_borrowed);
        }
        Ok(())
    }

    /// Blocks the host until this tensor has been written. Does nothing for memory that windrow did
    /// not allocate.
    ///
    /// # Errors
    /// [`Error::NoDriver`](crate::Error::NoDriver) in a forked child; [`Error::Cuda`](crate::Error::Cuda).
    pub fn synchronize(&self) -> Result<()> {
        if let Some(block) = self.owner().downcast_ref::<DeviceBlock>() {
            return block.synchronize();
        }
        Ok(())
    }
}
