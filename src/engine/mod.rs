//! Stage 4. Runs plans: see [`Engine`].

mod engine;
mod rows;
mod small;

pub use engine::{Engine, EngineOptions};
