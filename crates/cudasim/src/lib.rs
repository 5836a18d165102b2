//! A stand-in for libcuda, and the functions by which tests control it.
//!
//! [`LIBRARY`] is a shared library with the driver's names. Load it where libcuda would be loaded
//! (`WINDROW_CUDA_DRIVER` in the environment, or by path), and [`load`] gives the controls of the
//! same instance. See README.md for what is modelled.

// One dlopen, and calls through the pointers that dlsym gives.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The path of the simulated driver.
pub const LIBRARY: &str = env!("CUDASIM_LIBRARY");

/// Objects that exist in the simulated driver, to find leaks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Device and managed allocations, those of pools included.
    pub device_allocations: u64,
    /// The bytes of these allocations, as they were asked for.
    pub device_bytes: u64,
    /// Bytes that pools hold for later.
    pub pooled_bytes: u64,
    /// Pinned host allocations.
    pub pinned_allocations: u64,
    /// The bytes of these objects.
    pub pinned_bytes: u64,
    /// Registered ranges of host memory.
    pub registered: u64,
    /// Pools, without the default ones.
    pub pools: u64,
    /// Streams, without the default ones.
    pub streams: u64,
    /// Events.
    pub events: u64,
    /// Graphs.
    pub graphs: u64,
    /// Instantiated graphs.
    pub graph_execs: u64,
    /// Modules.
    pub modules: u64,
    /// Devices whose primary context is active.
    pub contexts: u64,
}

macro_rules! controls {
    ($($name:ident: fn($($type:ty),*) $(-> $result:ty)?, $symbol:literal;)*) => {
        /// The controls of the simulated driver. They are no driver calls: nothing counts them and
        /// no fault hits them.
        pub struct Sim {
            handle: usize,
            $($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
        }

        /// Loads [`LIBRARY`] and looks up every control. The panic where the library does
        /// not load, or lacks one, does not say why.
        fn open() -> Sim {
            let path = CString::new(LIBRARY).expect("no NUL in a path");
            // SAFETY: the path is a C string; the library's initialisers only register kernels.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            assert!(!handle.is_null(), "{LIBRARY} does not load");
            Sim {
                handle: handle as usize,
                $($name: {
                    let address = find(handle, $symbol);
                    assert!(!address.is_null(), "{LIBRARY} lacks a control");
                    // SAFETY: sim/control.cpp defines this symbol with this signature.
                    unsafe {
                        std::mem::transmute::<*mut c_void,
                            unsafe extern "C" fn($($type),*) $(-> $result)?>(address)
                    }
                },)*
            }
        }
    };
}

controls! {
    set_seed: fn(u64), c"cudasim_set_seed";
    set_delay_us: fn(u64), c"cudasim_set_delay_us";
    set_confidential: fn(c_int), c"cudasim_set_confidential";
    fail: fn(*const c_char, u64, u32), c"cudasim_fail";
    pending_faults: fn() -> u64, c"cudasim_pending_faults";
    clear_faults: fn(), c"cudasim_clear_faults";
    calls: fn() -> u64, c"cudasim_calls";
    trace: fn(c_int), c"cudasim_trace";
    take_trace: fn() -> *mut c_char, c"cudasim_take_trace";
    take_errors: fn() -> *mut c_char, c"cudasim_take_errors";
    free: fn(*mut c_void), c"cudasim_free";
    ignore_wait: fn(u64), c"cudasim_ignore_wait";
    waits: fn() -> u64, c"cudasim_waits";
    hold: fn(), c"cudasim_hold";
    release: fn(), c"cudasim_release";
    pause: fn(usize, c_int) -> c_int, c"cudasim_pause";
    recycle: fn(usize), c"cudasim_recycle";
    synchronize_all: fn(), c"cudasim_synchronize_all";
    check_memory: fn(), c"cudasim_check_memory";
    live: fn(*mut Live), c"cudasim_live";
    reset: fn(), c"cudasim_reset";
}

/// The address of a symbol, or null.
fn find(handle: *mut c_void, symbol: &CStr) -> *mut c_void {
    // SAFETY: `handle` came from dlopen and is never closed; the name is a C string.
    unsafe { libc::dlsym(handle, symbol.as_ptr()) }
}

/// Loads the simulated driver once, and panics if it cannot be. The same path loaded elsewhere in this process is the same
/// instance.
pub fn load() -> &'static Sim {
    static SIM: OnceLock<Sim> = OnceLock::new();
    SIM.get_or_init(open)
}

/// The simulated driver for one test at a time: waits for the test that has it. [`Sim::reset`] is called at the start and
/// at the end, so a handle of [`Sim::recycle`] that no stream has taken passes to the next test.
pub fn exclusive() -> Exclusive {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let exclusive = Exclusive { sim: load(), _turn: turn };
    exclusive.reset();
    exclusive
}

/// Given by [`exclusive`]; dropping it lets the next test have the driver.
pub struct Exclusive {
    sim: &'static Sim,
    _turn: MutexGuard<'static, ()>,
}

impl Deref for Exclusive {
    type Target = Sim;

    fn deref(&self) -> &Sim {
        self.sim
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        self.reset();
    }
}

// All controls may be called from any thread, at any time: they take the simulator's own locks.
impl Sim {
    /// The address of a driver function, null if the simulator has none of that name.
    pub fn symbol(&self, name: &CStr) -> *mut c_void {
        find(self.handle as *mut c_void, name)
    }

    /// Starts the random sequences of all streams anew, but for those that have work left, and
    /// seeds the streams that are created from here on.
    pub fn set_seed(&self, seed: u64) {
        // SAFETY: a control of numbers only.
        unsafe { (self.set_seed)(seed) }
    }

    /// Bounds the random delay before each operation of a stream; 0 for none.
    pub fn set_delay_us(&self, bound: u64) {
        // SAFETY: a control of numbers only.
        unsafe { (self.set_delay_us)(bound) }
    }

    /// Adds a fault: the `k`-th driver call from now on, counted from 1, fails with `code`. 0 adds
    /// none; [`Sim::clear_faults`] takes them away. A call that releases something does so
    /// nevertheless. The fault hits one call, but a sticky code (README.md) is then the result of every later call that
    /// needs the context, until [`Sim::clear_faults`] or a reset of the context.
    pub fn fail_call(&self, k: u64, code: u32) {
        // SAFETY: a null name stands for any function.
        unsafe { (self.fail)(std::ptr::null(), k, code) }
    }

    /// The same for the `k`-th call of one function. `name` is that of its symbol, as in `cuMemAlloc_v2`; a fault of a name that
    /// is never called stays pending.
    pub fn fail_function(&self, name: &str, k: u64, code: u32) {
        let name = CString::new(name).expect("no NUL in a name");
        // SAFETY: the name is a C string that the simulator copies.
        unsafe { (self.fail)(name.as_ptr(), k, code) }
    }

    /// Faults that have not hit a call yet.
    pub fn pending_faults(&self) -> u64 {
        // SAFETY: a control of numbers only.
        unsafe { (self.pending_faults)() }
    }

    /// Forgets all faults, ignored waits and sticky errors of contexts.
    pub fn clear_faults(&self) {
        // SAFETY: a control without arguments.
        unsafe { (self.clear_faults)() }
    }

    /// Driver calls since the last reset. Looking up the text of a code is none.
    pub fn calls(&self) -> u64 {
        // SAFETY: a control of numbers only.
        unsafe { (self.calls)() }
    }

    /// Begins or ends noting driver calls, with an empty list.
    pub fn trace(&self, on: bool) {
        // SAFETY: a control of numbers only.
        unsafe { (self.trace)(on.into()) }
    }

    /// The calls noted since the last time: a name, and the stream's handle where there is one.
    pub fn take_trace(&self) -> Vec<String> {
        // SAFETY: gives an owned C string.
        self.lines(unsafe { (self.take_trace)() })
    }

    /// Uses noted since the last time that are wrong whatever the timing: unknown or destroyed
    /// handles, addresses freed twice, writes outside allocations or to freed memory, driver calls
    /// in host functions.
    pub fn take_errors(&self) -> Vec<String> {
        // SAFETY: gives an owned C string.
        self.lines(unsafe { (self.take_errors)() })
    }

    /// Lets the `n`-th `cuStreamWaitEvent` from now on, counted from 1 as by [`Sim::waits`], succeed and do nothing;
    /// 0: none. It takes the place of an earlier one.
    pub fn ignore_wait(&self, n: u64) {
        // SAFETY: a control of numbers only.
        unsafe { (self.ignore_wait)(n) }
    }

    /// Calls of `cuStreamWaitEvent` since the library was loaded, but for those that a fault or an invalid argument ended.
    /// [`Sim::reset`] does not set the number back.
    pub fn waits(&self) -> u64 {
        // SAFETY: a control of numbers only.
        unsafe { (self.waits)() }
    }

    /// Keeps every stream from beginning another operation. Calls that wait for one then hang until
    /// [`Sim::release`].
    pub fn hold(&self) {
        // SAFETY: a control without arguments.
        unsafe { (self.hold)() }
    }

    /// Ends [`Sim::hold`]; a stream that is paused stays so.
    pub fn release(&self) {
        // SAFETY: a control without arguments.
        unsafe { (self.release)() }
    }

    /// The same as [`Sim::hold`] for one stream, by its handle; false if the handle is unknown.
    pub fn pause(&self, stream: usize) -> bool {
        // SAFETY: the handle is only looked up.
        unsafe { (self.pause)(stream, 1) != 0 }
    }

    /// Ends [`Sim::pause`]; false if the handle is unknown.
    pub fn resume(&self, stream: usize) -> bool {
        // SAFETY: the handle is only looked up.
        unsafe { (self.pause)(stream, 0) != 0 }
    }

    /// The next stream that is created gets this handle, which is that of a destroyed one.
    pub fn recycle(&self, stream: usize) {
        // SAFETY: the handle is only noted.
        unsafe { (self.recycle)(stream) }
    }

    /// Gives kernels stale copies of the page-locked memory that is allocated from here on, as under confidential computing.
    pub fn set_confidential(&self, on: bool) {
        // SAFETY: a control that takes any number.
        unsafe { (self.set_confidential)(on.into()) }
    }

    /// Waits until all streams are idle.
    pub fn synchronize_all(&self) {
        // SAFETY: a control without arguments.
        unsafe { (self.synchronize_all)() }
    }

    /// Waits until all streams are idle, then notes writes outside allocations and to freed memory.
    /// A free looks for them too.
    pub fn check_memory(&self) {
        // SAFETY: a control without arguments.
        unsafe { (self.check_memory)() }
    }

    /// The objects that exist now.
    pub fn live(&self) -> Live {
        let mut live = Live::default();
        // SAFETY: `Live` has the layout of the struct in sim/control.cpp.
        unsafe { (self.live)(&mut live) }
        live
    }

    /// Sets all controls but [`Sim::recycle`] back to their defaults, counts calls from 0 and forgets what was noted. Objects
    /// stay.
    pub fn reset(&self) {
        // SAFETY: a control without arguments.
        unsafe { (self.reset)() }
    }

    /// The lines of a string of the simulator, which is freed and must not be null.
    fn lines(&self, text: *mut c_char) -> Vec<String> {
        // SAFETY: a C string that this call owns.
        let lines = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        // SAFETY: not used any more.
        unsafe { (self.free)(text.cast()) };
        lines.lines().map(String::from).collect()
    }
}
