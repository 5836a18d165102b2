//! The table of driver functions, and the symbols that call through it.
//!
//! Symbols and table stay in one module: they then share an object file, so that a linker which
//! reads archives in order finds the symbols once anything asks for the table.

// Foreign functions are called by address, and symbols are defined in assembly.
#![allow(unsafe_code)]

use core::arch::global_asm;
use core::ffi::{c_char, c_int, c_void, CStr};
use core::mem::transmute;
use core::ptr::{null_mut, NonNull};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

const NO_DEVICE: u32 = 100;
const NOT_FOUND: u32 = 500;
const UNKNOWN: u32 = 999;

/// Result codes that cust_raw's `CUresult` enum can hold; any other value is undefined behaviour.
static KNOWN: [u32; 32] = bitmap(&[
    0, 1, 2, 3, 4, 5, 6, 7, 8, 34, 100, 101, 102, 200, 201, 202, 205, 206, 207, 208, 209, 210, 211,
    212, 213, 214, 215, 216, 217, 218, 219, 220, 221, 222, 223, 224, 300, 301, 302, 303, 304, 400,
    401, 500, 600, 700, 701, 702, 703, 704, 705, 708, 709, 710, 711, 712, 713, 714, 715, 716, 717,
    718, 719, 720, 800, 801, 802, 803, 804, 805, 806, 807, 808, 809, 900, 901, 902, 903, 904, 905,
    906, 907, 908, 909, 910, 911, 999,
]);

/// A bit for each code, which is below 1024.
const fn bitmap(codes: &[u32]) -> [u32; 32] {
    let mut words = [0; 32];
    let mut i = 0;
    while i < codes.len() {
        words[codes[i] as usize / 32] |= 1 << (codes[i] % 32);
        i += 1;
    }
    words
}

static LOADED: AtomicBool = AtomicBool::new(false);
static LAST_UNKNOWN: AtomicU32 = AtomicU32::new(0);

/// The latest result code of any thread that was replaced by 999, or 0.
pub fn last_unknown_code() -> u32 {
    LAST_UNKNOWN.load(Ordering::Relaxed)
}

/// The code, or 999 in place of one that [`KNOWN`] lacks.
#[inline]
fn checked(code: u32) -> u32 {
    if code < 1000 && KNOWN[code as usize / 32] >> (code % 32) & 1 == 1 {
        return code;
    }
    unknown(code)
}

/// Notes a code for [`last_unknown_code`]; the result is 999.
#[cold]
fn unknown(code: u32) -> u32 {
    LAST_UNKNOWN.store(code, Ordering::Relaxed);
    UNKNOWN
}

/// The result of a call whose slot is empty: 100 as long as no driver is loaded, 500 if the driver lacks the function.
#[cold]
extern "C" fn absent() -> u32 {
    if LOADED.load(Ordering::Acquire) {
        NOT_FOUND
    } else {
        NO_DEVICE
    }
}

/// One function per number of arguments, instantiated once per table slot. Every argument is an
/// integer or a pointer of at most 8 bytes; a `usize` carries it unchanged in its register or stack
/// slot, on x86-64 as on aarch64 Linux.
macro_rules! trampolines {
    ($($name:ident($($arg:ident),*);)*) => {$(
        unsafe extern "C" fn $name<const SLOT: usize>($($arg: usize),*) -> u32 {
            let entry = TABLE[SLOT].load(Ordering::Acquire);
            if entry.is_null() {
                return absent();
            }
            type Entry = unsafe extern "C" fn($(trampolines!(@usize $arg)),*) -> u32;
            // SAFETY: `load` stored the driver function of this slot; symbols.rs gives its arity.
            checked(unsafe { transmute::<*mut c_void, Entry>(entry)($($arg),*) })
        }
    )*};
    (@usize $arg:ident) => { usize };
}

trampolines! {
    call0();
    call1(a);
    call2(a, b);
    call3(a, b, c);
    call4(a, b, c, d);
    call5(a, b, c, d, e);
    call6(a, b, c, d, e, f);
    call7(a, b, c, d, e, f, g);
    call8(a, b, c, d, e, f, g, h);
    call10(a, b, c, d, e, f, g, h, i, j);
    call11(a, b, c, d, e, f, g, h, i, j, k);
}

/// The jump from a driver symbol to its Rust function.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {target}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {target}"
    };
}

/// The jump from a driver symbol to the driver itself, arguments untouched, result code unchecked.
#[cfg(target_arch = "x86_64")]
macro_rules! tail_jump {
    () => {
        concat!("mov r11, qword ptr [rip + {table}@GOTPCREL]\n", "jmp qword ptr [r11 + {offset}]",)
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! tail_jump {
    () => {
        concat!(
            "adrp x16, :got:{table}\n",
            "ldr x16, [x16, :got_lo12:{table}]\n",
            "ldr x16, [x16, {offset}]\n",
            "br x16",
        )
    };
}

/// Defines the hidden symbol of one driver function, in its own section so that the linker can drop
/// those nothing calls.
macro_rules! symbol {
    ($name:ident, $body:expr, $($operand:tt)*) => {
        global_asm!(
            concat!(".pushsection .text.", stringify!($name), ",\"ax\",@progbits"),
            concat!(".globl ", stringify!($name)),
            concat!(".hidden ", stringify!($name)),
            concat!(".type ", stringify!($name), ",@function"),
            ".p2align 2",
            concat!(stringify!($name), ":"),
            $body,
            concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
            ".popsection",
            $($operand)*
        );
    };
}

macro_rules! alias {
    ($name:ident newer) => { alias!($name tail); };
    ($name:ident tail) => {
        symbol!($name, tail_jump!(), table = sym TABLE, offset = const 8 * Function::$name as usize);
    };
    ($name:ident 0) => { alias!($name => call0); };
    ($name:ident 1) => { alias!($name => call1); };
    ($name:ident 2) => { alias!($name => call2); };
    ($name:ident 3) => { alias!($name => call3); };
    ($name:ident 4) => { alias!($name => call4); };
    ($name:ident 5) => { alias!($name => call5); };
    ($name:ident 6) => { alias!($name => call6); };
    ($name:ident 7) => { alias!($name => call7); };
    ($name:ident 8) => { alias!($name => call8); };
    ($name:ident 10) => { alias!($name => call10); };
    ($name:ident 11) => { alias!($name => call11); };
    ($name:ident => $call:ident) => {
        symbol!($name, jump!(), target = sym $call::<{ Function::$name as usize }>);
    };
}

/// A tail jump needs something to jump to at all times; a trampoline tests for null itself.
macro_rules! empty_slot {
    (newer) => {
        empty_slot!(tail)
    };
    (tail) => {
        absent as *mut c_void
    };
    ($kind:tt) => {
        null_mut()
    };
}

macro_rules! driver_table {
    ($($name:ident $kind:tt;)*) => {
        /// A function of the driver by the name it has in libcuda.
        #[allow(non_camel_case_types)]
        #[repr(usize)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Function {
            $(#[doc = concat!("`", stringify!($name), "`")] $name),*
        }

        const NAMES: &[&str] = &[$(concat!(stringify!($name), "\0")),*];

        static TABLE: [AtomicPtr<c_void>; NAMES.len()] = [$(AtomicPtr::new(empty_slot!($kind))),*];

        $(alias!($name $kind);)*
    };
}

include!("symbols.rs");

extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}
const RTLD_NOW: c_int = 2;

/// Loads the driver, once per process: the library that `$WINDROW_CUDA_DRIVER` names (for tests),
/// else `libcuda.so.1`. Returns the number of listed functions that it lacks.
///
/// # Errors
/// The dynamic linker's message, if there is no such library or it cannot be used.
pub fn load() -> Result<usize, &'static str> {
    // An empty name would open the program itself.
    match std::env::var_os("WINDROW_CUDA_DRIVER").filter(|path| !path.is_empty()) {
        Some(path) => {
            let path = CString::new(path.as_bytes()).map_err(|_| "a path with a NUL in it")?;
            load_from(&path)
        }
        None => load_from(c"libcuda.so.1"),
    }
}

/// Like [`load`], with the library named by the caller; the first call of either decides.
///
/// # Errors
/// As for [`load`].
pub fn load_from(library: &CStr) -> Result<usize, &'static str> {
    static MISSING: OnceLock<Result<usize, String>> = OnceLock::new();
    MISSING
        .get_or_init(|| fill(library))
        .as_ref()
        .map_or_else(|text| Err(text.as_str()), |n| Ok(*n))
}

/// Loads a library, for the life of the process, and fills the slots of the functions that it has. Returns the number of the
/// others.
fn fill(library: &CStr) -> Result<usize, String> {
    // SAFETY: a NUL-terminated name; the library stays loaded for the life of the process.
    let handle = unsafe { dlopen(library.as_ptr(), RTLD_NOW) };
    if handle.is_null() {
        // SAFETY: asked by the thread whose dlopen has just failed.
        let text = unsafe { dlerror() };
        if text.is_null() {
            return Err(format!("{}: cannot be loaded", library.to_string_lossy()));
        }
        // SAFETY: a NUL-terminated text, valid until this thread's next call of the linker.
        return Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
    }
    let mut missing = 0;
    for (slot, name) in TABLE.iter().zip(NAMES) {
        debug_assert!(name.ends_with('\0'));
        // SAFETY: an open handle and a NUL-terminated name.
        let entry = unsafe { dlsym(handle, name.as_ptr().cast()) };
        if entry.is_null() {
            missing += 1;
        } else {
            slot.store(entry, Ordering::Release);
        }
    }
    LOADED.store(true, Ordering::Release);
    Ok(missing)
}

/// The address of a driver function. `None` before [`load`], without a driver, and if the driver
/// lacks the function. A call by this address gives the driver's own result codes.
#[inline]
pub fn entry(function: Function) -> Option<NonNull<c_void>> {
    let entry = TABLE[function as usize].load(Ordering::Acquire);
    NonNull::new(entry).filter(|entry| entry.as_ptr() != absent as *mut c_void)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cust_raw as sys;
    use std::sync::Mutex;

    static SEEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

    /// Eleven arguments, some of them 32 bits wide, as cuLaunchKernel has them.
    #[rustfmt::skip]
    unsafe extern "C" fn launch(
        f: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32,
        stream: usize, params: usize, extra: usize,
    ) -> u32 {
        let dims = [gx, gy, gz, bx, by, bz, shared].map(|n| n as usize);
        *SEEN.lock().unwrap() = [&[f], &dims[..], &[stream, params, extra]].concat();
        917
    }

    unsafe extern "C" fn open_mem_handle(_: usize, h: sys::CUipcMemHandle, flags: u32) -> u32 {
        let ends = [h.reserved[0], h.reserved[63]].map(|c| c as usize);
        *SEEN.lock().unwrap() = vec![ends[0], ends[1], flags as usize];
        1
    }

    unsafe extern "C" fn clamp(tex: usize, min: f32, max: f32) -> u32 {
        *SEEN.lock().unwrap() = vec![tex, min as usize, max as usize];
        0
    }

    /// One test, because there is one table per process.
    #[test]
    fn arguments_and_result_codes_pass_through_the_symbols() {
        let fill = |slot: Function, entry: *mut c_void| {
            TABLE[slot as usize].store(entry, Ordering::Release);
        };
        let ptr = |n: usize| n as *mut c_void;
        // SAFETY: the functions reached are the three above, which dereference nothing.
        unsafe {
            assert_eq!(sys::cuCtxSynchronize() as u32, NO_DEVICE);
            let code = sys::cuTexRefSetMipmapLevelClamp(null_mut(), 0.0, 0.0);
            assert_eq!(code as u32, NO_DEVICE);
            assert_eq!(entry(Function::cuLaunchKernel), None);
            assert_eq!(entry(Function::cuTexRefSetMipmapLevelClamp), None);

            fill(Function::cuLaunchKernel, launch as *mut c_void);
            let (f, stream) = (ptr(11).cast(), ptr(19).cast());
            let (params, extra) = (ptr(20).cast(), ptr(21).cast());
            let code =
                sys::cuLaunchKernel(f, 12, 13, 14, 15, 16, 17, 18, stream, params, extra) as u32;
            assert_eq!(*SEEN.lock().unwrap(), (11..22).collect::<Vec<_>>());
            assert_eq!((code, last_unknown_code()), (UNKNOWN, 917));
            let address = entry(Function::cuLaunchKernel).map(NonNull::as_ptr);
            assert_eq!(address, Some(launch as *mut c_void));

            fill(Function::cuIpcOpenMemHandle_v2, open_mem_handle as *mut c_void);
            let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
            (handle.reserved[0], handle.reserved[63]) = (5, 6);
            assert_eq!(sys::cuIpcOpenMemHandle_v2(null_mut(), handle, 7) as u32, 1);
            assert_eq!(*SEEN.lock().unwrap(), [5, 6, 7]);

            fill(Function::cuTexRefSetMipmapLevelClamp, clamp as *mut c_void);
            let code = sys::cuTexRefSetMipmapLevelClamp(ptr(8).cast(), 9.0, 10.0);
            assert_eq!(code as u32, 0);
            assert_eq!(*SEEN.lock().unwrap(), [8, 9, 10]);
        }
    }
}
