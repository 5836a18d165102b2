//! How an [`Engine`] is made.

use std::sync::Arc;

use crate::cuda;
use crate::engine::engine::{Engine, Shared};
use crate::host::{MemoryPool, StreamingStores, Threads, POLICY};
use crate::observe::Counters;
use crate::tensor::{DType, Device, Result};

impl Engine {
    /// The most threads that an engine starts, whatever is requested. More would keep the system busy for minutes.
    pub const MAX_THREADS: usize = 4096;

    /// An engine with threads of its own, one for each core; batches are placed where their samples are unless a call says
    /// otherwise.
    ///
    /// ```
    /// use windrow::{Collate, Engine};
    /// let engine = Engine::host(); // made once, used for many batches
    /// assert_eq!(engine.assemble(&[[1, 2], [3, 4]], &Collate::stack())?.data().shape(), [2, 2]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn host() -> Engine {
        EngineBuilder::default().build_on_host()
    }

    /// Makes an engine like [`Engine::host`], with the caller's thread pool.
    ///
    /// ```
    /// let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    /// let engine = windrow::Engine::host_with(std::sync::Arc::new(pool));
    /// assert_eq!(engine.num_threads(), 2);
    /// ```
    pub fn host_with(pool: Arc<rayon::ThreadPool>) -> Engine {
        EngineBuilder::default().thread_pool(pool).build_on_host()
    }

    /// A builder of an engine with other options than those of [`Engine::host`].
    ///
    /// ```
    /// let engine = windrow::Engine::builder().threads(2).pool_bytes(1 << 20).build()?;
    /// assert_eq!(engine.num_threads(), 2);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// The naive executor, one element at a time: the oracle of tests, with no other use. Needs feature `testing`.
    ///
    /// ```
    /// use windrow::{Collate, Engine};
    /// let (rows, stack) = ([[1u8, 2], [3, 4]], Collate::stack());
    /// let wanted = Engine::reference().assemble(&rows, &stack)?;
    /// let batch = Engine::host().assemble(&rows, &stack)?;
    /// assert_eq!(batch.data().as_slice::<u8>()?, wanted.data().as_slice::<u8>()?);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    #[cfg(feature = "testing")]
    pub fn reference() -> Engine {
        let builder = EngineBuilder { is_reference: true, ..EngineBuilder::default() };
        builder.threads(1).pool_bytes(0).build_on_host()
    }

    /// An engine whose batches go to a CUDA device unless a call says otherwise.
    ///
    /// # Errors
    /// [`Error::NoDriver`](crate::Error::NoDriver) where there is no driver, no device, or none that the kernels fit;
    /// [`Error::Argument`](crate::Error::Argument) for a device that is not there; [`Error::Cuda`](crate::Error::Cuda).
    ///
    /// ```
    /// use windrow::{Engine, Error};
    /// let engine = match Engine::cuda(0) {
    ///     Err(Error::NoDriver(_)) => Engine::host(),
    ///     engine => engine?,
    /// };
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn cuda(ordinal: u32) -> Result<Engine> {
        Engine::builder().device(Device::Cuda(ordinal)).build()
    }
}

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
    threads: Option<usize>,
    thread_pool: Option<Arc<rayon::ThreadPool>>,
    pool_bytes: Option<u64>,
    device: Option<Device>,
    streaming_stores: Option<StreamingStores>,
    is_reference: bool,
}

impl EngineBuilder {
    /// Sets the number of threads that work on a batch that reads and writes 1 MiB or more, the
    /// calling one included: 1 to [`Engine::MAX_THREADS`], the nearest of them for another number.
    /// Without it, one for each core that the process may use. The first such batch starts them; an
    /// engine of one thread starts none. It has no effect beside [`EngineBuilder::thread_pool`].
    pub fn threads(self, count: usize) -> EngineBuilder {
        EngineBuilder { threads: Some(count), ..self }
    }

    /// Sets the caller's thread pool, in place of threads of the engine's own.
    pub fn thread_pool(self, pool: Arc<rayon::ThreadPool>) -> EngineBuilder {
        EngineBuilder { thread_pool: Some(pool), ..self }
    }

    /// Sets how many bytes of free output memory the engine keeps for later batches: that of batches that were dropped.
    /// The default is 1 GiB. [`Engine::empty_cache`] gives them back.
    pub fn pool_bytes(self, bytes: u64) -> EngineBuilder {
        EngineBuilder { pool_bytes: Some(bytes), ..self }
    }

    /// Sets the device of batches whose call names none. By default batches are where the samples are.
    pub fn device(self, device: Device) -> EngineBuilder {
        EngineBuilder { device: Some(device), ..self }
    }

    /// Sets which outputs are written around the caches. By default the machine's description decides.
    pub fn streaming_stores(self, stores: StreamingStores) -> EngineBuilder {
        EngineBuilder { streaming_stores: Some(stores), ..self }
    }

    /// Makes the engine.
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

    /// Makes the engine without a look for its device.
    fn build_on_host(self) -> Engine {
        let available = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = match &self.thread_pool {
            Some(pool) => Threads::Given(Arc::clone(pool)),
            None => {
                Threads::new(self.threads.unwrap_or_else(available).clamp(1, Engine::MAX_THREADS))
            }
        };
        let shared = Shared {
            threads,
            memory: MemoryPool::new(self.pool_bytes.unwrap_or(POLICY.pool_bytes)),
            counters: Counters::default(),
            reference: self.is_reference,
            device: self.device,
            devices: cuda::Devices::default(),
            streaming_stores: self.streaming_stores,
        };
        Engine { shared: Arc::new(shared) }
    }
}
