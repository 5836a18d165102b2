//! Stage 4. Runs plans: see [`Engine`], whose methods are in these files:
//!
//! | file | methods |
//! |---|---|
//! | `engine` | how it is made; `assemble` and its kin, `plan`, `run`, `run_with`; streams, memory, counters |
//! | `small` | batches without a plan |
//! | `on_device`, `page_locked` | runs on a device, and where on the host their results go |
//! | `moves`, `packed` | `copy_many`, `pack` |
//! | `staging` | host memory in turn, copied whole to a device |
//! | `resident` | `resident`: lists on a device |
//! | [`bindings`] | what bindings in other languages need beside that |

pub mod bindings;
mod engine;
mod moves;
mod on_device;
mod packed;
mod page_locked;
mod resident;
mod small;
mod staging;

pub use engine::{Engine, EngineOptions};
pub use packed::Packed;
pub use resident::Resident;
