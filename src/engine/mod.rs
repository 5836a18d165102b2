//! Stage 4. Runs plans: see [`Engine`].

mod engine;
mod resident;
mod rows;
mod small;

pub use engine::{Engine, EngineOptions};
pub use resident::Resident;
