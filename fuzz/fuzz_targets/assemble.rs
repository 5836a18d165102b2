//! Feeds what libFuzzer makes to the check of `assemble`, which `tests/corpus.rs` runs too.
#![no_main]

#[path = "../checks/assemble.rs"]
mod assemble;
// The check's module, at the root as it is in a test.
#[path = "../../tests/common/mod.rs"]
mod common;

libfuzzer_sys::fuzz_target!(|data: &[u8]| assemble::check(data));
