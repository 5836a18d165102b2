//! Feeds what libFuzzer makes to the check of `dlpack`, which `tests/corpus.rs` runs too.
#![no_main]

#[path = "../checks/dlpack.rs"]
mod dlpack;

libfuzzer_sys::fuzz_target!(|case: dlpack::Case| dlpack::check(&case));
