//! The driver's functions as the tests call them: found by name, with a context made current.

use std::ffi::{c_void, CString};
use std::ptr::{null, null_mut};

use cudasim::Exclusive;

pub const INVALID_VALUE: u32 = 1;
pub const OUT_OF_MEMORY: u32 = 2;
pub const NOT_READY: u32 = 600;

macro_rules! driver {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        /// Results are codes, 0 for success.
        #[allow(non_snake_case, clippy::too_many_arguments)]
        impl Gpu {
            $(pub fn $name(&self, $($argument: $type),*) -> u32 {
                let symbol = CString::new(stringify!($name)).unwrap();
                let address = self.sim.symbol(&symbol);
                assert!(!address.is_null(), "no {}", stringify!($name));
                // SAFETY: the types are those of cuda.h; the simulator checks what it is given, and
                // tests that hand over wrong pointers do so where it only looks them up.
                unsafe {
                    let call = std::mem::transmute::<*mut c_void,
                        unsafe extern "C" fn($($type),*) -> u32>(address);
                    call($($argument),*)
                }
            })*
        }
    };
}

driver! {
    cuInit(flags: u32);
    cuGetErrorName(code: u32, name: &mut *const i8);
    cuDeviceGetCount(count: &mut i32);
    cuDevicePrimaryCtxRetain(context: &mut usize, device: i32);
    cuDevicePrimaryCtxRelease_v2(device: i32);
    cuDevicePrimaryCtxReset_v2(device: i32);
    cuDevicePrimaryCtxGetState(device: i32, flags: &mut u32, active: &mut i32);
    cuCtxSetCurrent(context: usize);
    cuCtxPushCurrent_v2(context: usize);
    cuCtxPopCurrent_v2(context: &mut usize);
    cuCtxGetCurrent(context: &mut usize);
    cuCtxGetId(context: usize, id: &mut u64);
    cuCtxSynchronize();
    cuStreamCreate(stream: &mut usize, flags: u32);
    cuStreamDestroy_v2(stream: usize);
    cuStreamQuery(stream: usize);
    cuStreamSynchronize(stream: usize);
    cuStreamWaitEvent(stream: usize, event: usize, flags: u32);
    cuStreamWaitValue32_v2(stream: usize, address: u64, value: u32, flags: u32);
    cuStreamGetCtx(stream: usize, context: &mut usize);
    cuStreamGetId(stream: usize, id: &mut u64);
    cuStreamIsCapturing(stream: usize, status: &mut u32);
    cuStreamBeginCapture_v2(stream: usize, mode: u32);
    cuStreamEndCapture(stream: usize, graph: &mut usize);
    cuThreadExchangeStreamCaptureMode(mode: &mut u32);
    cuGraphInstantiateWithFlags(exec: &mut usize, graph: usize, flags: u64);
    cuGraphLaunch(exec: usize, stream: usize);
    cuGraphGetNodes(graph: usize, nodes: *mut usize, count: &mut usize);
    cuGraphDestroy(graph: usize);
    cuGraphExecDestroy(exec: usize);
    cuEventCreate(event: &mut usize, flags: u32);
    cuEventDestroy_v2(event: usize);
    cuEventRecord(event: usize, stream: usize);
    cuEventQuery(event: usize);
    cuEventSynchronize(event: usize);
    cuEventElapsedTime(milliseconds: &mut f32, start: usize, end: usize);
    cuLaunchHostFunc(stream: usize, function: extern "C" fn(*mut c_void), data: *mut c_void);
    cuMemAlloc_v2(p: &mut u64, size: usize);
    cuMemFree_v2(p: u64);
    cuMemGetInfo_v2(available: &mut usize, total: &mut usize);
    cuMemHostAlloc(p: &mut *mut u32, size: usize, flags: u32);
    cuMemFreeHost(p: *mut u32);
    cuMemHostRegister_v2(p: *mut u8, size: usize, flags: u32);
    cuMemHostUnregister(p: *mut u8);
    cuMemAllocAsync(p: &mut u64, size: usize, stream: usize);
    cuMemAllocFromPoolAsync(p: &mut u64, size: usize, pool: usize, stream: usize);
    cuMemFreeAsync(p: u64, stream: usize);
    cuMemPoolCreate(pool: &mut usize, props: &[u64; 11]);
    cuMemPoolDestroy(pool: usize);
    cuMemPoolTrimTo(pool: usize, keep: usize);
    cuMemPoolSetAttribute(pool: usize, attribute: u32, value: &mut u64);
    cuMemPoolGetAttribute(pool: usize, attribute: u32, value: &mut u64);
    cuMemcpyHtoD_v2(dst: u64, src: *const u32, size: usize);
    cuMemcpyDtoH_v2(dst: *mut u32, src: u64, size: usize);
    cuMemcpyHtoDAsync_v2(dst: u64, src: *const u32, size: usize, stream: usize);
    cuMemcpyDtoHAsync_v2(dst: *mut u32, src: u64, size: usize, stream: usize);
    cuMemcpyDtoDAsync_v2(dst: u64, src: u64, size: usize, stream: usize);
    cuMemcpy2DAsync_v2(copy: &Copy2D, stream: usize);
    cuMemcpyBatchAsync_v2(dsts: *const u64, srcs: *const u64, sizes: *const usize, count: usize,
        attributes: *const BatchAttributes, first_copies: *const usize, num: usize, stream: usize);
    cuMemsetD8Async(p: u64, value: u8, count: usize, stream: usize);
    cuMemsetD32Async(p: u64, value: u32, count: usize, stream: usize);
    cuPointerGetAttribute(value: *mut u64, attribute: u32, p: u64);
    cuPointerGetAttributes(count: u32, attributes: *const u32, values: *const *mut u64, p: u64);
    cuModuleLoadData(module: &mut usize, image: *const u8);
    cuModuleUnload(module: usize);
    cuModuleGetFunction(function: &mut usize, module: usize, name: *const u8);
    cuLaunchKernel(function: usize, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32,
        block_y: u32, block_z: u32, shared_bytes: u32, stream: usize, params: *const *mut c_void,
        extra: *const c_void);
}

/// CUDA_MEMCPY2D; `memory` is 1 for host, 2 for device.
#[repr(C)]
#[derive(Default)]
pub struct Copy2D {
    pub src_x: usize,
    pub src_y: usize,
    pub src_memory: u64,
    pub src_host: usize,
    pub src_device: u64,
    pub src_array: usize,
    pub src_pitch: usize,
    pub dst_x: usize,
    pub dst_y: usize,
    pub dst_memory: u64,
    pub dst_host: usize,
    pub dst_device: u64,
    pub dst_array: usize,
    pub dst_pitch: usize,
    pub width: usize,
    pub height: usize,
}

/// CUmemcpyAttributes; the order is 1 for the stream's, 2 during the call, 3 any.
#[repr(C)]
#[derive(Default)]
pub struct BatchAttributes {
    pub order: u32,
    pub hints: [u32; 4],
    pub flags: u32,
}

#[repr(C)]
struct GatherParams {
    src: u64,
    dst: u64,
    idx: u64,
    rows: u64,
    row_words: u64,
}

/// A fatbin without parts, but with these names in it.
pub fn image(names: &str) -> Vec<u8> {
    let mut image = 0xBA55_ED50_u32.to_le_bytes().to_vec();
    image.extend([1, 0, 16, 0]);
    image.extend((names.len() as u64).to_le_bytes());
    image.extend(names.as_bytes());
    image
}

/// Device 0 with its primary context, and the test's turn at it.
pub struct Gpu {
    pub sim: Exclusive,
    pub context: usize,
}

impl Gpu {
    pub fn new() -> Gpu {
        // Read once, at the simulator's first call.
        std::env::set_var("CUDASIM_DEVICES", "2");
        std::env::set_var("CUDASIM_MEMORY", (64 << 20).to_string());
        let mut gpu = Gpu { sim: cudasim::exclusive(), context: 0 };
        assert_eq!(gpu.cuInit(0), 0);
        let mut context = 0;
        assert_eq!(gpu.cuDevicePrimaryCtxRetain(&mut context, 0), 0);
        assert_eq!(gpu.cuCtxSetCurrent(context), 0);
        gpu.context = context;
        gpu
    }

    pub fn stream(&self) -> usize {
        let mut stream = 0;
        assert_eq!(self.cuStreamCreate(&mut stream, 1), 0);
        stream
    }

    pub fn event(&self) -> usize {
        let mut event = 0;
        assert_eq!(self.cuEventCreate(&mut event, 2), 0);
        event
    }

    /// Device memory for `words` words.
    pub fn alloc(&self, words: usize) -> u64 {
        let mut p = 0;
        assert_eq!(self.cuMemAlloc_v2(&mut p, words * 4), 0);
        p
    }

    pub fn pinned(&self, words: usize) -> &'static mut [u32] {
        let mut p = null_mut();
        assert_eq!(self.cuMemHostAlloc(&mut p, words * 4, 0), 0);
        // SAFETY: fresh memory of this size, all written by the simulator's poison.
        unsafe { std::slice::from_raw_parts_mut(p, words) }
    }

    pub fn write(&self, dst: u64, words: &[u32]) {
        assert_eq!(self.cuMemcpyHtoD_v2(dst, words.as_ptr(), words.len() * 4), 0);
    }

    pub fn read(&self, src: u64, words: usize) -> Vec<u32> {
        let mut result = vec![0; words];
        assert_eq!(self.cuMemcpyDtoH_v2(result.as_mut_ptr(), src, words * 4), 0);
        result
    }

    /// A kernel of kernels/test.cu.
    pub fn kernel(&self, name: &str) -> usize {
        let (mut module, mut function) = (0, 0);
        assert_eq!(self.cuModuleLoadData(&mut module, image(name).as_ptr()), 0);
        let name = CString::new(name).unwrap();
        assert_eq!(self.cuModuleGetFunction(&mut function, module, name.as_ptr().cast()), 0);
        function
    }

    pub fn launch(
        &self,
        function: usize,
        grid: u32,
        block: u32,
        stream: usize,
        params: &[*mut c_void],
    ) -> u32 {
        let params = params.as_ptr();
        self.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, params, null())
    }

    /// `dst[i] = value + i`, on the device.
    pub fn fill(&self, mut dst: u64, words: usize, mut value: u32, stream: usize) -> u32 {
        let mut count = words as u64;
        let params =
            [(&raw mut dst).cast(), (&raw mut count).cast(), (&raw mut value).cast::<c_void>()];
        let grid = words.div_ceil(128) as u32;
        self.launch(self.kernel("sim_fill"), grid, 128, stream, &params)
    }

    /// Rows `idx` of `src`, one word each.
    pub fn gather(&self, src: u64, dst: u64, idx: u64, rows: u64, stream: usize) -> u32 {
        let mut params = GatherParams { src, dst, idx, rows, row_words: 1 };
        self.launch(self.kernel("sim_gather"), 2, 32, stream, &[(&raw mut params).cast()])
    }
}

impl Drop for Gpu {
    /// Drops all objects of both contexts.
    fn drop(&mut self) {
        self.sim.reset();
        let (mut flags, mut active) = (0, 1);
        for device in 0..2 {
            while self.cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) == 0
                && active != 0
            {
                if self.cuDevicePrimaryCtxRelease_v2(device) != 0 {
                    break;
                }
            }
        }
        self.cuCtxSetCurrent(0);
    }
}
