//! Stage 4. [`Engine`] runs plans; options of a run, and memory of the caller that it uses.

pub(crate) mod bindings;
mod builder;
mod chosen_moves;
mod engine;
mod moves;
mod moves_across;
mod on_device;
mod packed;
mod page_locked;
mod resident;
mod small;
mod staging;
mod streams;

pub use builder::EngineBuilder;
pub use engine::Engine;
pub use moves::CopyOptions;
pub use packed::Packed;
pub use resident::Resident;

pub use crate::host::{ChosenStores, StreamingStores};
pub use crate::run_options::{OutputMemory, PinnedMemory, RunOptions};

use std::sync::OnceLock;

use crate::batch::Batch;
use crate::collate::Collate;
use crate::samples::Samples;
use crate::tensor::Result;

/// Assembles one batch by an engine that all callers of this function share: [`Engine::host`].
///
/// # Errors
/// As [`Engine::assemble`].
///
/// ```
/// use windrow::{assemble, Collate, Pad};
/// let rows = [vec![1, 2, 3], vec![4], vec![5, 6]];
/// let batch = assemble(&rows, &Collate::pad(Pad::new().value(-1)))?;
/// assert_eq!(batch.data().as_slice::<i32>()?, [1, 2, 3, 4, -1, -1, 5, 6, -1]);
/// # Ok::<(), windrow::Error>(())
/// ```
pub fn assemble<S: Samples + ?Sized>(samples: &S, collate: &Collate) -> Result<Batch> {
    static DEFAULT: OnceLock<Engine> = OnceLock::new();
    DEFAULT.get_or_init(Engine::host).assemble(samples, collate)
}
