//! [`Mapping`]: what an engine knows of page-locked memory that is mapped; [`Trial`]: a read that tells.

use std::sync::OnceLock;
use std::time::Instant;

use super::super::driver::{OwnStream, PooledEvent};
use super::pinned::PinnedBlock;
use crate::sync::{lock, Mutex, MutexGuard};
use crate::tensor::Tensor;

/// Whether kernels read page-locked memory as the host has it.
#[derive(Debug, Default)]
pub(crate) struct Mapping {
    /// Empty until a trial has ended.
    pub known: OnceLock<bool>,
    trial: Mutex<Option<Trial>>,
}

/// A read under way.
#[derive(Debug)]
pub(crate) struct Trial {
    pub value: u8,
    pub sample: PinnedBlock,
    /// The bytes that the kernel has read, valid once the event is reached.
    pub seen: PinnedBlock,
    pub end: PooledEvent,
    /// The time until which calls wait for the trial.
    pub deadline: Instant,
    /// The tensors that the kernel writes, kept until the trial has ended.
    pub _batch: Vec<Tensor>,
    pub stream: OwnStream,
}

impl Mapping {
    /// The trial under way, locked; `None` if there is none, or a thread has taken it out.
    pub fn trial(&self) -> MutexGuard<'_, Option<Trial>> {
        lock(&self.trial)
    }
}
