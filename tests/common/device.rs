//! Device memory for tests, by the driver itself: what samples and outputs are in.

use std::ffi::c_void;
use std::mem::transmute;
use std::sync::OnceLock;

use windrow::Engine;
use windrow_driver::Function;

/// The device engine of a test binary, if there is a driver. Without one a test says SKIP, and fails
/// where `WINDROW_REQUIRE_GPU=1`.
pub fn engine() -> Option<&'static Engine> {
    static ENGINE: OnceLock<Option<Engine>> = OnceLock::new();
    let engine = ENGINE.get_or_init(|| match Engine::cuda(0) {
        Ok(engine) => Some(engine),
        Err(error) if std::env::var("WINDROW_REQUIRE_GPU").is_ok_and(|value| value == "1") => {
            panic!("WINDROW_REQUIRE_GPU=1, and there is no device: {error}")
        }
        Err(error) => {
            eprintln!("SKIP: the CUDA engine is left out: {error}");
            None
        }
    });
    engine.as_ref()
}

macro_rules! driver {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[allow(non_snake_case, clippy::missing_safety_doc)]
        pub unsafe fn $name($($argument: $type),*) -> u32 {
            let entry = windrow_driver::entry(Function::$name).expect(stringify!($name));
            // SAFETY: the function of this name has these parameters.
            unsafe {
                transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> u32>(entry.as_ptr())(
                    $($argument),*
                )
            }
        }
    )*};
}

driver! {
    cuDevicePrimaryCtxRetain(context: *mut usize, device: i32);
    cuCtxSetCurrent(context: usize);
    cuMemAlloc_v2(address: *mut u64, bytes: usize);
    cuMemFree_v2(address: u64);
    cuMemHostAlloc(address: *mut *mut u8, bytes: usize, flags: u32);
    cuMemFreeHost(address: *mut u8);
    cuMemHostRegister_v2(address: *const u8, bytes: usize, flags: u32);
    cuMemHostUnregister(address: *const u8);
    cuDeviceGetName(name: *mut u8, bytes: i32, device: i32);
    cuMemcpyDtoH_v2(to: *mut u8, from: u64, bytes: usize);
    cuStreamCreate(stream: *mut usize, flags: u32);
    cuStreamDestroy_v2(stream: usize);
    cuStreamSynchronize(stream: usize);
    cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, bytes: usize, stream: usize);
    cuMemcpyDtoHAsync_v2(to: *mut u8, from: u64, bytes: usize, stream: usize);
    cuMemsetD8Async(to: u64, value: u8, bytes: usize, stream: usize);
    cuStreamBeginCapture_v2(stream: usize, mode: u32);
    cuStreamEndCapture(stream: usize, graph: *mut usize);
    cuGraphInstantiateWithFlags(exec: *mut usize, graph: usize, flags: u64);
    cuGraphLaunch(exec: usize, stream: usize);
    cuGraphExecDestroy(exec: usize);
    cuGraphDestroy(graph: usize);
    cuCtxSynchronize();
}

/// Makes the primary context current on this thread, as a program that uses CUDA does.
pub fn enter() {
    let mut context = 0;
    // SAFETY: the driver is started, for there is an engine.
    unsafe {
        assert_eq!(cuDevicePrimaryCtxRetain(&raw mut context, 0), 0);
        assert_eq!(cuCtxSetCurrent(context), 0);
    }
}

/// Bytes on the device, at a multiple of 256.
pub struct Bytes {
    pub address: u64,
    pub len: usize,
}

impl Bytes {
    pub fn from_bytes(host: &[u8]) -> Bytes {
        enter();
        let mut address = 0;
        // SAFETY: a place for the address; then as many bytes as were asked for.
        unsafe {
            assert_eq!(cuMemAlloc_v2(&raw mut address, host.len().max(1)), 0);
            assert_eq!(cuMemcpyHtoDAsync_v2(address, host.as_ptr(), host.len(), 0), 0);
            assert_eq!(cuCtxSynchronize(), 0);
        }
        Bytes { address, len: host.len() }
    }

    pub fn to_host(&self) -> Vec<u8> {
        read(self.address, self.len)
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        enter();
        // SAFETY: allocated above, freed once.
        let code = unsafe { cuMemFree_v2(self.address) };
        if !std::thread::panicking() {
            assert_eq!(code, 0);
        }
    }
}

/// Page-locked bytes.
pub struct PinnedBytes {
    pub address: *mut u8,
    pub len: usize,
}

impl PinnedBytes {
    pub fn from_bytes(host: &[u8]) -> PinnedBytes {
        enter();
        let mut address = std::ptr::null_mut();
        // SAFETY: a place for the address; then as many bytes as were asked for.
        unsafe {
            assert_eq!(cuMemHostAlloc(&raw mut address, host.len().max(1), 0), 0);
            address.copy_from_nonoverlapping(host.as_ptr(), host.len());
        }
        PinnedBytes { address, len: host.len() }
    }

    /// The copy is behind all work that is enqueued anywhere.
    pub fn to_host(&self) -> Vec<u8> {
        enter();
        // SAFETY: a context is current; no work writes to these bytes any more.
        unsafe {
            assert_eq!(cuCtxSynchronize(), 0);
            std::slice::from_raw_parts(self.address, self.len).to_vec()
        }
    }
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        enter();
        // SAFETY: allocated above, freed once.
        unsafe { cuMemFreeHost(self.address) };
    }
}

/// Bytes of device memory, after all that is enqueued anywhere.
pub fn read(address: u64, len: usize) -> Vec<u8> {
    enter();
    let mut bytes = vec![0; len];
    // SAFETY: the caller names memory of the device.
    unsafe {
        assert_eq!(cuCtxSynchronize(), 0);
        if len > 0 {
            assert_eq!(cuMemcpyDtoH_v2(bytes.as_mut_ptr(), address, len), 0);
        }
    }
    bytes
}
