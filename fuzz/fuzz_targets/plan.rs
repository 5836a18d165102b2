//! Feeds what libFuzzer makes to the check of `plan`, which `tests/corpus.rs` runs too.
#![no_main]

#[path = "../checks/plan.rs"]
mod plan;

libfuzzer_sys::fuzz_target!(|data: &[u8]| plan::check(data));
