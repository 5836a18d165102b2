//! The CUDA engine on the simulated driver: order, lifetimes, captures, faults, bad input.
//!
//! Each fault is a typed error that names the cure, after which the engine goes on:
//!
//! | fault | test |
//! |---|---|
//! | no driver; no device; driver too old for the images; no kernels for the device | `processes::drivers_that_do_not_fit` |
//! | used in a forked child | `processes::a_fork_after_the_first_use` |
//! | the k-th driver call of a batch, or of making an engine, fails | `faults::each_call_of_...`, `capture::each_call_in_a_capture_...` |
//! | device lost, sticky error | `faults::a_device_that_is_lost_...` |
//! | out of memory | `faults::memory_that_lies_unused_...`, `faults::each_call_of_...` |
//! | device that is not there, samples or output on another device | `input::devices_that_are_not_there_...`, `input::outputs_on_the_wrong_device_...` |
//! | pointer of another device, freed or unregistered | `input::whose_memory_an_address_is`; refused by the importers: python/tests `test_the_array_interface_is_checked`, `test_several_devices`, `test_claims_of_page_locked_memory_...` |
//! | stream of another context, or destroyed | `input::streams_of_others_...` |
//! | samples of no bytes | `input::nothing_to_read`; tests/executors.rs on the device |
//! | misaligned samples | no fault: tests/executors.rs, tests/small.rs on the device |
//! | memory of worker processes that cannot be page-locked | `blocks::a_refusal_is_said_...` |
//! | capture, with a call that would allocate or synchronise | `capture::what_cannot_be_recorded_...`, `capture::the_first_use_...`, `capture::captures_of_others_...` |

// Device memory and streams are handed over by address, as other programs do it.
#![allow(unsafe_code)]

mod blocks;
mod calls;
mod capi;
mod capture;
mod chosen_in_graphs;
mod driver_rules;
mod faults;
#[allow(dead_code, reason = "shared with the tests of the simulator itself")]
#[path = "../sim/gpu.rs"]
mod gpu;
mod input;
mod launch_cache;
mod lifetime;
mod losses;
mod mapping;
mod moves;
mod order;
mod page_locked;
mod pairs;
mod paused_streams;
mod preview;
mod processes;
mod resident;
mod rig;
mod scenarios;
mod staging;
mod waits;
