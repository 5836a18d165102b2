//! Feeds what libFuzzer makes to the check of `moves`, which `tests/corpus.rs` runs too.
#![no_main]

#[path = "../checks/moves.rs"]
mod moves;
// The check's module, at the root as it is in a test.
#[path = "../../tests/common/mod.rs"]
mod common;

libfuzzer_sys::fuzz_target!(|data: &[u8]| moves::check(data));
