//! Feeds what libFuzzer makes to the check of `arrow`, which `tests/corpus.rs` runs too.
#![no_main]

#[path = "../checks/arrow.rs"]
mod arrow;

libfuzzer_sys::fuzz_target!(|data: &[u8]| arrow::check(data));
