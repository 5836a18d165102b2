//! [`Stream`]: a handle of work that runs in order on a device.

/// A CUDA stream of any library, by its handle: 0 and 1 are the legacy default stream, 2 is the
/// per-thread default stream of the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(usize);

impl Stream {
    /// The legacy default stream, which is torch's current one by default.
    pub const LEGACY: Stream = Stream(1);

    /// A stream by its handle (`cudaStream_t`, `CUstream`). It is never destroyed. A call waits for it
    /// only to place a batch on the host, and after a failure.
    ///
    /// # Safety
    /// The handle is that of a stream that exists as long as batches enqueued on it, or exported to it,
    /// live.
    ///
    /// ```
    /// # let handle = 0usize; // `torch.cuda.current_stream().cuda_stream`, a `cudaStream_t`
    /// // SAFETY: the stream outlives every batch that is enqueued on it.
    /// let stream = unsafe { windrow::Stream::from_raw(handle) };
    /// assert_eq!(stream, windrow::Stream::LEGACY); // as 0 is the legacy default stream
    /// ```
    #[allow(unsafe_code)]
    pub unsafe fn from_raw(handle: usize) -> Stream {
        // The two names of the legacy stream must compare equal.
        Stream(handle.max(1))
    }

    /// The handle, 1 for the legacy stream; never 0.
    pub fn handle(self) -> usize {
        self.0
    }
}
