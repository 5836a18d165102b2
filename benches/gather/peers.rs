//! The peers of peers.cu, in a library that is loaded if it is there.

use std::env;
use std::ffi::{c_void, CStr, CString};
use std::mem::transmute;

use super::gpu::{check, Outcome};

/// Functions of the library, by their names without `peer_`.
pub struct Peers {
    nothing: unsafe extern "C" fn(usize) -> u32,
    spin: unsafe extern "C" fn(u64, usize) -> u32,
    copy16: unsafe extern "C" fn(u64, u64, u64, usize) -> u32,
    block_per_buffer: unsafe extern "C" fn(u64, u64, u64, u32, usize) -> u32,
    cub: unsafe extern "C" fn(u64, *mut usize, u64, u64, u64, u32, usize) -> u32,
}

impl Peers {
    /// `$WINDROW_BENCH_PEERS`, or `libpeers.so` beside this program.
    pub fn load() -> Result<Peers, String> {
        let beside = || Some(env::current_exe().ok()?.parent()?.join("libpeers.so"));
        let path = env::var_os("WINDROW_BENCH_PEERS").map(Into::into).or_else(beside);
        let path = path
            .filter(|path| path.is_file())
            .ok_or("no libpeers.so, see scripts/gpu/bundle.sh")?;
        let name = CString::new(path.into_os_string().into_encoded_bytes())
            .map_err(|_| "a path with a NUL in it")?;
        // SAFETY: a C string; the library has initialisers of the CUDA runtime only.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            // SAFETY: dlopen has just failed on this thread, so there is a text.
            let text = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(text.to_string_lossy().into_owned());
        }
        let find = |name: &CStr| -> Result<*mut c_void, String> {
            // SAFETY: a library that is never closed, and a C string.
            let address = unsafe { libc::dlsym(library, name.as_ptr()) };
            if address.is_null() {
                return Err(format!("libpeers.so has no {}", name.to_string_lossy()));
            }
            Ok(address)
        };
        // SAFETY: peers.cu defines these names with these parameters: pointers and streams are
        // carried as integers of their size.
        #[allow(clippy::missing_transmute_annotations, reason = "the fields have the types")]
        unsafe {
            Ok(Peers {
                nothing: transmute::<*mut c_void, _>(find(c"peer_nothing")?),
                spin: transmute::<*mut c_void, _>(find(c"peer_spin")?),
                copy16: transmute::<*mut c_void, _>(find(c"peer_copy16")?),
                block_per_buffer: transmute::<*mut c_void, _>(find(c"peer_block_per_buffer")?),
                cub: transmute::<*mut c_void, _>(find(c"peer_cub")?),
            })
        }
    }

    /// One empty launch.
    pub fn nothing(&self, stream: usize) -> Outcome {
        // SAFETY: nothing but a stream.
        check("an empty launch of the peers", unsafe { (self.nothing)(stream) })
    }

    /// Keeps a stream busy.
    pub fn spin(&self, nanoseconds: u64, stream: usize) -> Outcome {
        // SAFETY: nothing but a stream.
        check("spin", unsafe { (self.spin)(nanoseconds, stream) })
    }

    /// Copies 16 bytes for each lane.
    pub fn copy16(&self, to: u64, from: u64, bytes: u64, stream: usize) -> Outcome {
        // SAFETY: the caller names memory that is so large, at multiples of 16.
        check("copy16", unsafe { (self.copy16)(to, from, bytes, stream) })
    }

    /// One block for each buffer. Addresses and sizes are on the device.
    pub fn block_per_buffer(&self, t: Tables, stream: usize) -> Outcome {
        // SAFETY: the caller's tables name memory of the right sizes.
        let code = unsafe { (self.block_per_buffer)(t.to, t.from, t.bytes, t.count, stream) };
        check("block_per_buffer", code)
    }

    /// CUB's scratch memory for a batch.
    pub fn cub_scratch(&self, t: Tables, stream: usize) -> Result<usize, String> {
        let mut needed = 0;
        // SAFETY: without scratch memory nothing is launched.
        let code =
            unsafe { (self.cub)(0, &raw mut needed, t.from, t.to, t.bytes, t.count, stream) };
        check("cub::DeviceMemcpy::Batched", code).map(|()| needed)
    }

    /// CUB's batched copy.
    pub fn cub(&self, t: Tables, scratch: (u64, usize), stream: usize) -> Outcome {
        let (scratch, mut size) = scratch;
        // SAFETY: as for `block_per_buffer`; the scratch memory is as large as was asked for.
        let code =
            unsafe { (self.cub)(scratch, &raw mut size, t.from, t.to, t.bytes, t.count, stream) };
        check("cub::DeviceMemcpy::Batched", code)
    }
}

/// Addresses of tables on the device: where from, where to, how many bytes.
#[derive(Clone, Copy)]
pub struct Tables {
    pub from: u64,
    pub to: u64,
    pub bytes: u64,
    pub count: u32,
}
