//! Runs of plans on a device.
//!
//! | module | what it knows |
//! |---|---|
//! | `devices` | the executors of an engine |
//! | `executor` | the streams, kernels and pools of one device |
//! | `completion` | the end of a batch, and errors that only the device reports |
//! | `run` | one run: its events and waits |
//! | `outputs`, `capture` | into which memory, and what can be recorded in a graph |
//! | `upload`, `download` | host samples to the device, batches back |
//! | `block` | page-locked memory to a device, without a plan |
//! | `select` | samples by indices on a device |
//! | `chosen_moves` | pairs of a move by indices on a device |
//! | `enqueue` | what a run enqueues, in which order |
//! | `mapping` | whether kernels read page-locked memory where it is: how an engine finds out |
//! | `preview` | the launch of a plan, for `explain` |

mod block;
mod capture;
mod chosen_moves;
mod completion;
mod devices;
mod download;
mod enqueue;
mod executor;
mod mapping;
mod outputs;
mod preview;
mod run;
mod select;
mod upload;

pub(crate) use completion::Completion;
pub use completion::End;
pub(crate) use devices::{ordinal_of, Devices};
pub(crate) use enqueue::Host;
pub(crate) use executor::{Executor, LaunchStream};
pub(crate) use preview::launch_of;
