//! Streams of an engine, and their order around those of others.

use super::engine::Engine;
use crate::tensor::{Result, Stream};
#[allow(unused_imports, reason = "for the documentation")]
use crate::Error;

impl Engine {
    /// The stream that work on a device is enqueued on if no other is named. It exists as long as the engine: name it to nothing
    /// that outlives that.
    ///
    /// # Errors
    /// [`Error::NoDriver`]; [`Error::Argument`] for a device that is not there; [`Error::Cuda`].
    ///
    /// ```
    /// use windrow::error::ErrorKind;
    /// use windrow::Engine;
    /// match Engine::host().stream(0) {
    ///     Ok(stream) => println!("{:#x}", stream.handle()),
    ///     Err(error) => assert_eq!(error.kind(), ErrorKind::NoDriver),
    /// }
    /// ```
    pub fn stream(&self, ordinal: u32) -> Result<Stream> {
        self.shared.devices.executor(ordinal)?.stream()
    }

    /// The engine's one stream for producers of other libraries on a device, ordered behind what is on `producer` now. It
    /// exists as long as the engine: use it as a producer where `producer` itself may be destroyed. Each call returns the
    /// same stream, which stays behind the producers of earlier calls.
    ///
    /// # Errors
    /// As [`Engine::stream`]; [`Error::Argument`] for a stream of another device or context.
    ///
    /// ```no_run
    /// use windrow::Engine;
    /// let engine = Engine::host();
    /// let producer = engine.stream(0)?; // such as that of another library
    /// let adopted = engine.adopt(0, producer)?;
    /// engine.order(0, &[adopted], engine.stream(0)?)?; // what follows reads what the producer wrote
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn adopt(&self, ordinal: u32, producer: Stream) -> Result<Stream> {
        self.shared.devices.executor(ordinal)?.adopt(producer)
    }

    /// The stream of [`Engine::adopt`], ordered behind an event of another library (`CUevent`, `cudaEvent_t`).
    ///
    /// # Errors
    /// As [`Engine::stream`].
    ///
    /// # Safety
    /// The handle is that of an event that exists during the call.
    ///
    /// ```no_run
    /// # let event = 0usize; // recorded by another library
    /// let engine = windrow::Engine::cuda(0)?;
    /// // SAFETY: the event exists until the call has returned.
    /// let stream = unsafe { engine.adopt_event(0, event) }?; // behind the work that was recorded
    /// # Ok::<(), windrow::Error>(())
    /// ```
    #[allow(unsafe_code)]
    pub unsafe fn adopt_event(&self, ordinal: u32, event: usize) -> Result<Stream> {
        let executor = self.shared.devices.executor(ordinal)?;
        // SAFETY: the caller's promise.
        unsafe { executor.adopt_event(event) }
    }

    /// Orders what is enqueued on `consumer` from now on behind what is on `producers` now, all of
    /// them streams of one device. If `consumer` is being captured, producers that are not are left
    /// out. Without a producer other than `consumer` the call succeeds, and does not look for the device.
    ///
    /// # Errors
    /// As [`Engine::stream`]; [`Error::Argument`] for a stream of another device or context.
    ///
    /// ```no_run
    /// use windrow::{Engine, Stream};
    /// let engine = Engine::cuda(0)?;
    /// let stream = engine.stream(0)?;
    /// engine.order(0, &[Stream::LEGACY], stream)?; // what follows on `stream` reads what is written there
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn order(&self, ordinal: u32, producers: &[Stream], consumer: Stream) -> Result<()> {
        if producers.iter().all(|&producer| producer == consumer) {
            return Ok(());
        }
        self.shared.devices.executor(ordinal)?.order(producers, consumer)
    }
}
