//! Ranges for profilers that speak NVTX 3, such as Nsight Systems: `WINDROW_NVTX=1` in the environment
//! turns them on.
//!
//! NVTX has no library of its own. A tool names one of its libraries in `NVTX_INJECTION64_PATH`; a
//! program with ranges to report loads that, and calls its `InitializeInjectionNvtx2` with a function that gives
//! tables of slots, into which the tool writes its callbacks. NVIDIA's headers do this in C
//! (`nvtxDetail/nvtxInit.h`, `nvtxTypes.h` of github.com/NVIDIA/NVTX, whose ABI is fixed); this is the
//! same for the four callbacks that we use.
#![allow(unsafe_code)] // A foreign library and its callbacks.

use std::env;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr, CString};
use std::marker::PhantomData;
use std::mem::{size_of, transmute};
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::OnceLock;

use crate::observe::stage::Stage;

/// A range that is under way on this thread.
#[derive(Debug)]
pub(crate) struct Range {
    tool: &'static Tool,
    /// Ranges of a thread nest.
    thread: PhantomData<*mut ()>,
}

/// Begins a range that ends on drop; `None` if no profiler listens.
#[inline]
pub(crate) fn range(stage: Stage) -> Option<Range> {
    let tool = TOOL.get_or_init(load).as_ref().ok()?;
    tool.push(stage);
    Some(Range { tool, thread: PhantomData })
}

impl Drop for Range {
    fn drop(&mut self) {
        self.tool.pop();
    }
}

/// `Ok` if ranges go to a profiler, else the reason why not.
pub(crate) fn state() -> Result<(), &'static str> {
    TOOL.get_or_init(load).as_ref().map(drop).map_err(String::as_str)
}

static TOOL: OnceLock<Result<Tool, String>> = OnceLock::new();

/// A profiler that took our tables.
#[derive(Debug)]
struct Tool {
    /// The tool's handle of our domain; null if the tool ignores the domain.
    domain: usize,
}

/// Callbacks of a module that is indexed by the numbers of `NvtxCallbackIdCore2`.
type PushEx = unsafe extern "C" fn(domain: *mut c_void, event: *const EventAttributes) -> c_int;
type Pop = unsafe extern "C" fn(domain: *mut c_void) -> c_int;
type CreateDomain = unsafe extern "C" fn(name: *const c_char) -> *mut c_void;
const PUSH_EX: usize = 4;
const POP: usize = 5;
const CREATE_DOMAIN: usize = 12;

/// `nvtxEventAttributes_v2`.
#[repr(C)]
struct EventAttributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_char,
}

const _: () = assert!(size_of::<EventAttributes>() == 48);
const VERSION: u16 = 3;
const MESSAGE_ASCII: i32 = 1;

impl Tool {
    /// Begins a range of this stage in the tool; does nothing if the tool stored no function for
    /// it.
    fn push(&self, stage: Stage) {
        let name = match stage {
            Stage::Import => c"import",
            Stage::Plan => c"plan",
            Stage::Run => c"run",
            Stage::Launch => c"launch",
            Stage::Wait => c"wait",
            Stage::Export => c"export",
        };
        let event = EventAttributes {
            version: VERSION,
            size: size_of::<EventAttributes>() as u16,
            category: 0,
            color_type: 0,
            color: 0,
            payload_type: 0,
            reserved: 0,
            payload: 0,
            message_type: MESSAGE_ASCII,
            message: name.as_ptr(),
        };
        if let Some(push) = callback(PUSH_EX) {
            // SAFETY: the tool put a function of this signature into this slot; the event and its text
            // live through the call.
            unsafe { transmute::<*mut c_void, PushEx>(push)(self.domain as *mut c_void, &event) };
        }
    }

    /// Ends the range that was begun last on this thread; does nothing if the tool stored no
    /// function for it.
    fn pop(&self) {
        if let Some(pop) = callback(POP) {
            // SAFETY: as for `push`.
            unsafe { transmute::<*mut c_void, Pop>(pop)(self.domain as *mut c_void) };
        }
    }
}

/// The function that the tool stored in a slot of `NVTX_CB_MODULE_CORE2`.
fn callback(id: usize) -> Option<*mut c_void> {
    let callback = SLOTS[CORE2][id].load(Ordering::Acquire);
    (!callback.is_null()).then_some(callback)
}

/// Slots of each module, by `NvtxCallbackModule`: none, CORE, CUDA, OPENCL, CUDART, CORE2, SYNC. The
/// first slot of each stands for no callback.
const NUM_SLOTS: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const MAX_SLOTS: usize = 16;
const CORE2: usize = 5;

static SLOTS: [[AtomicPtr<c_void>; MAX_SLOTS]; NUM_SLOTS.len()] =
    [const { [const { AtomicPtr::new(null_mut()) }; MAX_SLOTS] }; NUM_SLOTS.len()];

/// `NvtxFunctionTable`: where each slot is. The first place is null, and the last one.
struct CallbackTable([*const AtomicPtr<c_void>; MAX_SLOTS + 1]);

// SAFETY: it only holds NULL and addresses of static atomics.
unsafe impl Sync for CallbackTable {}

static TABLES: [CallbackTable; NUM_SLOTS.len()] = {
    let mut tables = [const { CallbackTable([null_mut(); MAX_SLOTS + 1]) }; NUM_SLOTS.len()];
    let mut module = 0;
    while module < NUM_SLOTS.len() {
        let mut id = 1;
        while id < NUM_SLOTS[module] {
            tables[module].0[id] = &raw const SLOTS[module][id];
            id += 1;
        }
        module += 1;
    }
    tables
};

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    struct_size: usize,
    get_module: unsafe extern "C" fn(c_uint, *mut *const c_void, *mut c_uint) -> c_int,
}

static CALLBACKS: Callbacks = Callbacks { struct_size: size_of::<Callbacks>(), get_module };

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct VersionInfo {
    struct_size: usize,
    version: u32,
    reserved: u32,
    set_tool_version: unsafe extern "C" fn(u32),
}

static VERSION_INFO: VersionInfo = VersionInfo {
    struct_size: size_of::<VersionInfo>(),
    version: VERSION as u32,
    reserved: 0,
    set_tool_version,
};

unsafe extern "C" fn set_tool_version(_: u32) {}

/// Gives the tool the table of a module and the number of its slots, the first of them without a
/// callback, and returns 1; returns 0 and gives nothing for a number of no module.
///
/// # Safety
/// The pointers are null, or to writable memory for a pointer and a number.
unsafe extern "C" fn get_module(
    module: c_uint,
    table: *mut *const c_void,
    size: *mut c_uint,
) -> c_int {
    let Some(found) = TABLES.get(module as usize).filter(|_| module != 0) else { return 0 };
    debug_assert!(size.is_aligned() && table.is_aligned());
    // SAFETY: the caller's promise; neither is written to if it is NULL.
    unsafe {
        if !size.is_null() {
            *size = NUM_SLOTS[module as usize] as c_uint;
        }
        if !table.is_null() {
            *table = found.0.as_ptr().cast();
        }
    }
    1
}

/// The function `nvtxGetExportTable` of the tool's interface: the table of this id, or null.
unsafe extern "C" fn export_table(id: u32) -> *const c_void {
    match id {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION_INFO).cast(),
        _ => null_mut(),
    }
}

/// Loads the profiler's library and starts it; an error says why there is none.
fn load() -> Result<Tool, String> {
    let is_set = |value: &std::ffi::OsString| !value.is_empty() && value != "0";
    if env::var_os("WINDROW_NVTX").filter(is_set).is_none() {
        return Err("off; WINDROW_NVTX=1 turns ranges on".into());
    }
    let Some(path) = env::var_os("NVTX_INJECTION64_PATH") else {
        return Err("on, but no profiler listens: NVTX_INJECTION64_PATH is not set".into());
    };
    let shown = path.to_string_lossy();
    let name = CString::new(path.as_bytes()).map_err(|_| "a path with a NUL in it".to_owned())?;
    // SAFETY: `name` is a C string; to run the tool's initialisers is what its user asked for.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) };
    if library.is_null() {
        return Err(format!("on, but {shown} does not load"));
    }
    const ENTRY: &CStr = c"InitializeInjectionNvtx2";
    // SAFETY: the library is open, and `ENTRY` is a C string.
    let entry = unsafe { libc::dlsym(library, ENTRY.as_ptr()) };
    if entry.is_null() {
        return Err(format!("on, but {shown} has no {}", ENTRY.to_string_lossy()));
    }
    type ExportTable = unsafe extern "C" fn(u32) -> *const c_void;
    type Initialize = unsafe extern "C" fn(ExportTable) -> c_int;
    // SAFETY: the function of this name has this signature; the library stays loaded.
    if unsafe { transmute::<*mut c_void, Initialize>(entry)(export_table) } == 0 {
        return Err(format!("on, but {shown} did not start"));
    }
    let domain = callback(CREATE_DOMAIN).map_or(null_mut(), |create| {
        // SAFETY: the tool put a function of this signature into this slot.
        unsafe { transmute::<*mut c_void, CreateDomain>(create)(c"windrow".as_ptr()) }
    });
    Ok(Tool { domain: domain as usize })
}
