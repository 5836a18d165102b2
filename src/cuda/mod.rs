//! The CUDA executor: runs the same plans as the host's, by one launch in the order of a stream.
//!
//! | module | what it knows |
//! |---|---|
//! | `devices` | the executors of an engine |
//! | `executor` | what there is of one device |
//! | `held` | what is kept alive until when |
//! | `late` | what is known of a batch when the device has come so far |
//! | `run`, `enqueue`, `outputs`, `written` | what is enqueued, in which order, into which memory |
//! | `capture` | what can be recorded in a graph |
//! | `select`, `list_table` | samples by indices on a device |
//! | `kept` | what is kept of a launch for the next one of its plan |
//! | `table`, `encode`, `words`, `params`, `parameters` | the plan as the kernels read it |
//! | `part`, `loops`, `boxes`, `family` | what of an output one loop writes, and which family of kernels it is |
//! | `numbers` | lengths and offsets, which the host knows |
//! | `probe` | devices, the driver, whose memory an address is |
//! | `preview` | the launch of a plan, for `explain` |
//! | `policy` | numbers of a launch that tuning may change |
//! | `upload`, `download` | host samples to the device, batches back |
//! | `memory`, `handed` | outputs in stream order, and the streams that they were handed to |
//! | `pinned`, `ring` | page-locked host memory: for batches, and on the way to the device |
//! | `mapping`, `trial` | whether kernels read page-locked memory where it is |
//! | [`driver`] | the calls of the driver |

mod boxes;
mod capture;
mod devices;
mod download;
pub(crate) mod driver;
mod encode;
mod enqueue;
mod executor;
mod family;
#[cfg(test)]
mod far_tests;
mod handed;
mod held;
mod kept;
mod late;
mod list_table;
mod loops;
mod mapping;
mod memory;
mod numbers;
mod outputs;
mod parameters;
mod params;
mod part;
mod pinned;
mod policy;
mod preview;
pub(crate) mod probe;
mod ring;
mod run;
mod select;
mod table;
mod trial;
mod upload;
mod words;
mod written;

pub(crate) use devices::{ordinal_of, Devices};
pub(crate) use driver::Current;
pub use driver::{relax_captures, relaxed};
pub(crate) use executor::{Executor, Lane};
pub use late::End;
pub(crate) use late::Late;
pub(crate) use list_table::ListTable;
pub(crate) use memory::DeviceBlock;
pub(crate) use pinned::PinnedBlock;
pub(crate) use preview::launch_of;
pub(crate) use run::Host;
