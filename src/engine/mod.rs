//! Stage 4. Runs plans: see [`Engine`].

pub mod bindings;
mod engine;
mod on_device;
mod page_locked;
mod resident;
mod small;

pub use engine::{Engine, EngineOptions};
pub use resident::Resident;
