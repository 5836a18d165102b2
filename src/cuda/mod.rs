//! The CUDA executor: runs the same plans as the host's, by one launch, or two if only some outputs are
//! quantised, in the order of a stream.
//!
//! | module | what it knows |
//! |---|---|
//! | [`driver`] | the calls of the driver |
//! | `probe` | devices, the driver, the device that owns an address |
//! | `memory` | device and page-locked memory, and what is kept alive until a device has finished with it |
//! | `launch` | the table of a launch: a plan as the kernels read it |
//! | `run` | runs of plans: what is enqueued, in which order, and what is known when it is done |
//!
//! None of them imports a later one.

pub(crate) mod driver;
#[cfg(test)]
mod far_tests;
mod launch;
mod memory;
pub(crate) mod probe;
mod run;

pub(crate) use driver::Current;
pub use driver::{relax_captures, relaxed};
pub use memory::blocks::{
    hold_until_done, lock_refusal, lock_stats, page_locked, reap_copies, try_lock,
};
pub(crate) use memory::{DeviceBlock, ListTable, PinnedBlock};
pub use run::End;
pub(crate) use run::{launch_of, ordinal_of, Completion, Devices, Executor, Host, LaunchStream};
