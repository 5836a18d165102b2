//! Shared by the tests: device 0, memory and streams on it, samples and their expected batches.

use std::ffi::{c_void, CString};
use std::ptr::null_mut;
use std::sync::{Arc, Once, OnceLock};

use cudasim::Live;
use windrow::engine::{OutputMemory, RunOptions};
use windrow::{
    Batch, Collate, DType, Device, Engine, Layout, Plan, SampleList, SampleView, Stream, Tensor,
};

pub use crate::gpu::Gpu;

pub const HERE: Device = Device::Cuda(0);

/// Runs a test, and looks for misuse and leaks after it.
pub fn on_gpu(test: impl FnOnce(&Gpu)) {
    let gpu = start();
    test(&gpu);
    gpu.sim.check_memory();
    assert_eq!(gpu.sim.take_errors(), [""; 0]);
    let live = gpu.sim.live();
    // One module for each context, which stays.
    assert!(live.modules <= live.contexts, "modules: {live:?}");
    let stays = Live { contexts: live.contexts, modules: live.modules, ..Live::default() };
    assert_eq!(live, stays, "leaks");
}

/// The simulator as the driver of this process, without delays.
pub fn start() -> Gpu {
    static LOADED: Once = Once::new();
    LOADED.call_once(|| {
        let library = CString::new(cudasim::LIBRARY).unwrap();
        windrow_driver::load_from(&library).unwrap();
    });
    let gpu = Gpu::new();
    gpu.sim.set_delay_us(0);
    gpu
}

/// An engine for device 0 with one thread.
pub fn engine() -> Engine {
    Engine::builder().threads(1).device(HERE).build().unwrap()
}

/// Memory on the device.
pub struct Buffer<'g> {
    gpu: &'g Gpu,
    pub address: u64,
    pub len: usize,
}

impl<'g> Buffer<'g> {
    pub fn from_bytes(gpu: &'g Gpu, bytes: &[u8]) -> Buffer<'g> {
        let buffer = Buffer::poisoned(gpu, bytes.len());
        assert_eq!(gpu.cuMemcpyHtoD_v2(buffer.address, bytes.as_ptr().cast(), bytes.len()), 0);
        buffer
    }

    pub fn poisoned(gpu: &'g Gpu, len: usize) -> Buffer<'g> {
        let mut address = 0;
        assert_eq!(gpu.cuMemAlloc_v2(&mut address, len.max(1)), 0);
        Buffer { gpu, address, len }
    }

    /// The contents once all work is done.
    pub fn read(&self) -> Vec<u8> {
        assert_eq!(self.gpu.cuCtxSynchronize(), 0);
        let mut bytes = vec![0; self.len];
        let code = self.gpu.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), self.address, self.len);
        assert_eq!(code, 0);
        bytes
    }

    /// The buffer as a row-major output.
    pub fn tensor(&self, dtype: DType, shape: &[i64]) -> Tensor {
        let layout = Layout::compact(dtype, shape).unwrap();
        let data = self.address as *mut u8;
        // SAFETY: the tests keep the buffer for longer than the tensor.
        unsafe { Tensor::new_unchecked(Arc::new(()), data, dtype, HERE, layout, false) }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        self.gpu.cuMemFree_v2(self.address);
    }
}

/// Another library's page-locked memory.
pub struct Pinned<'g> {
    gpu: &'g Gpu,
    pub addresses: Vec<u64>,
}

impl Pinned<'_> {
    /// Writes the samples that the memory is for, while nothing uses it.
    pub fn fill(&self, rows: &Rows) {
        for (&to, from) in self.addresses.iter().zip(&rows.bytes) {
            // SAFETY: memory of that size.
            unsafe { (to as *mut u8).copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        }
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        for &address in &self.addresses {
            self.gpu.cuMemFreeHost(address as *mut u32);
        }
    }
}

/// A foreign stream.
pub struct ForeignStream<'g> {
    pub gpu: &'g Gpu,
    pub handle: usize,
}

impl<'g> ForeignStream<'g> {
    pub fn new(gpu: &'g Gpu) -> ForeignStream<'g> {
        ForeignStream { gpu, handle: gpu.stream() }
    }

    pub fn stream(&self) -> Stream {
        // SAFETY: lives as long as what the tests enqueue on it.
        unsafe { Stream::from_raw(self.handle) }
    }

    /// Enqueues new contents for memory on the device.
    pub fn write(&self, to: u64, bytes: &[u8]) {
        let (from, len) = (bytes.as_ptr().cast(), bytes.len());
        assert_eq!(self.gpu.cuMemcpyHtoDAsync_v2(to, from, len, self.handle), 0);
    }

    /// Enqueues operations that do nothing but be late.
    pub fn linger(&self) {
        ForeignStream::linger_on(self.gpu, self.handle);
    }

    pub fn linger_on(gpu: &Gpu, stream: usize) {
        extern "C" fn nothing(_: *mut c_void) {}
        for _ in 0..12 {
            assert_eq!(gpu.cuLaunchHostFunc(stream, nothing, null_mut()), 0);
        }
    }

    /// Enqueues a copy on the device.
    pub fn copy(&self, to: &Buffer<'_>, from: &Tensor) {
        let (bytes, from) = (from.nbytes(), from.data_ptr() as u64);
        assert_eq!(self.gpu.cuMemcpyDtoDAsync_v2(to.address, from, bytes, self.handle), 0);
    }

    /// The next work on this stream waits for the work so far on another one.
    pub fn wait_for(&self, other: &ForeignStream<'_>) {
        let event = self.gpu.event();
        other.linger();
        assert_eq!(self.gpu.cuEventRecord(event, other.handle), 0);
        assert_eq!(self.gpu.cuStreamWaitEvent(self.handle, event, 0), 0);
        assert_eq!(self.gpu.cuEventDestroy_v2(event), 0);
    }

    pub fn pause(&self) -> Paused<'g> {
        Paused::stream(self.gpu, self.handle)
    }
}

impl Drop for ForeignStream<'_> {
    fn drop(&mut self) {
        self.gpu.cuStreamDestroy_v2(self.handle);
    }
}

/// A pause of one stream, or of all, which begin nothing new while it lives. Declared after the engine, so that a
/// test that fails ends.
pub struct Paused<'g> {
    gpu: &'g Gpu,
    stream: Option<usize>,
}

impl<'g> Paused<'g> {
    pub fn stream(gpu: &'g Gpu, handle: usize) -> Paused<'g> {
        assert!(gpu.sim.pause(handle));
        Paused { gpu, stream: Some(handle) }
    }
}

pub fn hold(gpu: &Gpu) -> Paused<'_> {
    gpu.sim.hold();
    Paused { gpu, stream: None }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        match self.stream {
            Some(stream) => drop(self.gpu.sim.resume(stream)),
            None => self.gpu.sim.release(),
        }
    }
}

/// Samples, as bytes on the host.
pub struct Rows {
    pub dtype: DType,
    pub shapes: Vec<Vec<i64>>,
    pub bytes: Vec<Vec<u8>>,
}

impl Rows {
    pub fn new(seed: u64, dtype: DType, shapes: &[&[i64]]) -> Rows {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut byte = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        let bytes = |shape: &&[i64]| {
            let len = shape.iter().product::<i64>() as usize * dtype.size();
            (0..len).map(|_| byte()).collect()
        };
        let bytes = shapes.iter().map(bytes).collect();
        Rows { dtype, shapes: shapes.iter().map(|shape| shape.to_vec()).collect(), bytes }
    }

    fn view<'v>(&self, index: usize, data: *const u8, device: Device) -> SampleView<'v> {
        let layout = Layout::compact(self.dtype, &self.shapes[index]).unwrap();
        // SAFETY: the tests keep the memory until the batch has been read.
        unsafe { SampleView::from_raw_parts(data, self.dtype, device, layout) }
    }

    pub fn on_host(&self) -> SampleList<'_> {
        self.bytes.iter().enumerate().map(|(i, b)| self.view(i, b.as_ptr(), Device::Cpu)).collect()
    }

    /// The same samples in copies on the device.
    pub fn at(&self, addresses: impl IntoIterator<Item = u64>) -> SampleList<'static> {
        self.on(HERE, &addresses.into_iter().collect::<Vec<_>>())
    }

    /// The same samples at other addresses.
    pub fn on(&self, device: Device, addresses: &[u64]) -> SampleList<'static> {
        let views = addresses.iter().enumerate();
        views.map(|(i, address)| self.view(i, *address as *const u8, device)).collect()
    }

    /// Page-locked memory for the samples, with nothing in it.
    pub fn pinned<'g>(&self, gpu: &'g Gpu) -> Pinned<'g> {
        let place = |bytes: &Vec<u8>| {
            let mut address = null_mut();
            assert_eq!(gpu.cuMemHostAlloc(&mut address, bytes.len().max(1), 0), 0);
            address as u64
        };
        Pinned { gpu, addresses: self.bytes.iter().map(place).collect() }
    }

    pub fn upload<'g>(&self, gpu: &'g Gpu) -> Vec<Buffer<'g>> {
        self.bytes.iter().map(|bytes| Buffer::from_bytes(gpu, bytes)).collect()
    }

    /// The batch by the host executor.
    pub fn expected(&self, collate: &Collate) -> Vec<Vec<u8>> {
        static HOST: OnceLock<Engine> = OnceLock::new();
        let host = HOST.get_or_init(|| Engine::builder().threads(1).build().unwrap());
        let collate = collate.clone().device(Device::Cpu);
        let batch = host.assemble(&self.on_host(), &collate).unwrap();
        parts(&batch).into_iter().map(host_bytes).collect()
    }
}

/// Another library's allocator that gives one tensor, whatever it is asked for.
#[derive(Debug)]
struct LentTensor(Tensor, Stream);

impl OutputMemory for LentTensor {
    fn stream(&self) -> Stream {
        self.1
    }

    fn allocate(&self, _: DType, _: &[i64], _: u32) -> windrow::Result<Option<Tensor>> {
        Ok(Some(self.0.clone()))
    }
}

/// Has outputs lie in a tensor that belongs to a stream of others.
pub fn lent_by(lane: &ForeignStream<'_>, tensor: Tensor) -> RunOptions {
    let mut options = RunOptions::default();
    options.memory = Some(Arc::new(LentTensor(tensor, lane.stream())));
    options
}

/// Runs one leaf with options.
pub fn run(
    engine: &Engine,
    samples: &SampleList<'_>,
    collate: &Collate,
    options: RunOptions,
) -> windrow::Result<Batch> {
    let collate = engine.placed(collate);
    let filled = engine.run_with(Plan::new(samples, &collate)?, options)?.remove(0);
    Batch::try_new(filled.data.expect("no output was given"), filled.fields)
}

/// All tensors of a batch.
pub fn parts(batch: &Batch) -> Vec<&Tensor> {
    let others = [batch.lengths(), batch.offsets(), batch.mask(), batch.batch_index()];
    std::iter::once(batch.data()).chain(others.into_iter().flatten()).collect()
}

pub fn host_bytes(tensor: &Tensor) -> Vec<u8> {
    assert!(!matches!(tensor.device(), Device::Cuda(_)));
    if tensor.nbytes() == 0 {
        return Vec::new();
    }
    // SAFETY: a compact tensor on the host, written when its batch was returned.
    unsafe { std::slice::from_raw_parts(tensor.data_ptr(), tensor.nbytes()) }.to_vec()
}

/// Reads a batch as a consumer on a stream does, behind nothing but [`Tensor::ready_on`].
pub fn consume(lane: &ForeignStream<'_>, batch: &Batch) -> Vec<Vec<u8>> {
    let read = |tensor: &Tensor| {
        if !matches!(tensor.device(), Device::Cuda(_)) {
            return host_bytes(tensor);
        }
        tensor.ready_on(lane.stream()).unwrap();
        let mut bytes = vec![0; tensor.nbytes()];
        let (to, from) = (bytes.as_mut_ptr().cast(), tensor.data_ptr() as u64);
        if !bytes.is_empty() {
            // Waits for the stream: the destination is pageable.
            assert_eq!(lane.gpu.cuMemcpyDtoHAsync_v2(to, from, bytes.len(), lane.handle), 0);
        }
        bytes
    };
    parts(batch).into_iter().map(read).collect()
}
