//! Results on a device, and who may use them when: other libraries' streams, and the host.

use crate::cuda::DeviceBlock;
use crate::tensor::{Result, Stream, Tensor};

impl Tensor {
    /// Orders what is enqueued on a stream from now on behind the work that writes this tensor, and the
    /// end of its memory behind what is on the stream then. Nothing for memory that is not windrow's.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] for a stream of another device or context; [`crate::Error::Cuda`].
    pub fn ready_on(&self, stream: Stream) -> Result<()> {
        self.hand_to(stream, false)
    }

    /// As [`Tensor::ready_on`], for a stream that need not exist when the call has returned, as DLPack has it. The
    /// memory is used again when the stream has been named in a later call, behind what is on it then; or when the whole
    /// device has been waited for.
    ///
    /// # Errors
    /// As [`Tensor::ready_on`].
    pub fn ready_on_borrowed(&self, stream: Stream) -> Result<()> {
        self.hand_to(stream, true)
    }

    /// Declares that work on streams that are never named may use this tensor, such as that of libraries with streams of
    /// their own: its memory is used again when the whole device has been waited for. That is done by a later call, when more
    /// than 64 such batches, or four and a 64th of the device's memory, have been dropped. Nothing for memory that is not windrow's.
    ///
    /// # Errors
    /// [`crate::Error::Cuda`].
    pub fn ready_on_unnamed(&self) -> Result<()> {
        if let Some(block) = self.owner().downcast_ref::<DeviceBlock>() {
            return block.hand_to_unnamed();
        }
        Ok(())
    }

    fn hand_to(&self, stream: Stream, is_borrowed: bool) -> Result<()> {
        if let Some(block) = self.owner().downcast_ref::<DeviceBlock>() {
            return block.hand_to(stream, is_borrowed);
        }
        Ok(())
    }

    /// Waits until this tensor has been written. Nothing for memory that is not windrow's.
    ///
    /// # Errors
    /// [`crate::Error::Cuda`].
    pub fn synchronize(&self) -> Result<()> {
        if let Some(block) = self.owner().downcast_ref::<DeviceBlock>() {
            return block.synchronize();
        }
        Ok(())
    }
}
