//! Host execution.
