//! The table of a launch: a plan as the kernels read it.
//!
//! | module | what it knows |
//! |---|---|
//! | `field`, `params` | the structs that kernels/params.h has too |
//! | `policy` | numbers of a launch that tuning may change, for each architecture |
//! | `written`, `numbers` | what a launch writes; lengths and offsets, which the host knows |
//! | `part`, `loops`, `boxes`, `family` | what of an output one loop writes, and which family of kernels it is |
//! | `words`, `encode`, `table` | the table itself |
//! | `kept` | what is kept of a launch for the next one of its plan |
//! | `parameters` | parameters of launches, in memory that is used again |

mod boxes;
mod encode;
mod family;
pub(crate) mod field;
pub(crate) mod kept;
mod loops;
pub(crate) mod numbers;
pub(crate) mod parameters;
pub(crate) mod params;
pub(crate) mod part;
pub(crate) mod policy;
pub(crate) mod table;
pub(crate) mod words;
pub(crate) mod written;
