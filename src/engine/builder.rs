//! [`EngineBuilder`]: the options of an engine.

use std::sync::Arc;

use crate::engine::engine::Engine;
use crate::host::{StreamingStores, Threads, POLICY};
use crate::tensor::{DType, Device, Result};

/// Options of an engine, from [`Engine::builder`].
///
/// ```
/// let engine = windrow::Engine::builder().threads(2).pool_bytes(64 << 20).build()?;
/// assert_eq!(engine.num_threads(), 2);
/// # Ok::<(), windrow::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct EngineBuilder {
    pub(super) threads: Option<usize>,
    pub(super) thread_pool: Option<Arc<rayon::ThreadPool>>,
    pub(super) pool_bytes: Option<u64>,
    pub(super) device: Option<Device>,
    pub(super) streaming_stores: Option<StreamingStores>,
    pub(super) is_reference: bool,
}

impl EngineBuilder {
    /// Threads that work on a large batch, the calling one included: 1 to [`Engine::MAX_THREADS`], the nearest of them for
    /// another number. Without it, one for each core that the process may use.
    pub fn threads(self, count: usize) -> EngineBuilder {
        EngineBuilder { threads: Some(count), ..self }
    }

    /// The caller's thread pool, in place of threads of the engine's own.
    pub fn thread_pool(self, pool: Arc<rayon::ThreadPool>) -> EngineBuilder {
        EngineBuilder { thread_pool: Some(pool), ..self }
    }

    /// Bytes of free output memory that the engine keeps for later batches. Without it, 1 GiB.
    pub fn pool_bytes(self, bytes: u64) -> EngineBuilder {
        EngineBuilder { pool_bytes: Some(bytes), ..self }
    }

    /// Where batches go if the call does not say. Without it, where the samples are.
    pub fn device(self, device: Device) -> EngineBuilder {
        EngineBuilder { device: Some(device), ..self }
    }

    /// Which outputs are written around the caches. Without it, by what the machine says of itself.
    pub fn streaming_stores(self, stores: StreamingStores) -> EngineBuilder {
        EngineBuilder { streaming_stores: Some(stores), ..self }
    }

    /// The engine.
    ///
    /// # Errors
    /// For a device [`Error::NoDriver`](crate::Error::NoDriver) where there is no driver, no device, or none that the kernels
    /// fit; [`Error::Argument`](crate::Error::Argument) for a device that is not there; [`Error::Cuda`](crate::Error::Cuda).
    pub fn build(self) -> Result<Engine> {
        let device = self.device;
        let engine = self.build_on_host();
        match device {
            Some(Device::Cpu) | None => {}
            Some(device) => drop(engine.empty(DType::U8, &[0], device)?),
        }
        Ok(engine)
    }

    /// The engine, whose device is not looked for yet.
    pub(super) fn build_on_host(self) -> Engine {
        let available = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = match &self.thread_pool {
            Some(pool) => Threads::Given(Arc::clone(pool)),
            None => {
                Threads::own(self.threads.unwrap_or_else(available).clamp(1, Engine::MAX_THREADS))
            }
        };
        let pool_bytes = self.pool_bytes.unwrap_or(POLICY.pool_bytes);
        Engine::new(threads, pool_bytes, &self)
    }
}
