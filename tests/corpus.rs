//! Replays the corpora of the fuzz targets: each input that fuzzing once kept for a branch of its own is checked by a stable
//! compiler in every run of the tests, by the function that `fuzz/fuzz_targets/` calls too.
//!
//! The archives are part of the test program, because the bundle for a GPU runner holds no source tree.

use std::io::Read;
use std::panic::{catch_unwind, RefUnwindSafe};

use arbitrary::{Arbitrary, Unstructured};

mod common;

#[path = "../fuzz/checks/arrow.rs"]
mod arrow;
#[path = "../fuzz/checks/assemble.rs"]
mod assemble;
#[path = "../fuzz/checks/dlpack.rs"]
mod dlpack;
#[path = "../fuzz/checks/moves.rs"]
mod moves;
#[path = "../fuzz/checks/plan.rs"]
mod plan;

/// The name and the bytes of each input.
///
/// # Panics
/// If the archive is broken, or has other than `count` inputs: an empty one passes no test.
fn inputs(archive: &[u8], count: usize) -> Vec<(String, Vec<u8>)> {
    let mut archive = tar::Archive::new(archive);
    let inputs: Vec<_> = archive
        .entries()
        .expect("an archive")
        .map(|entry| {
            let mut entry = entry.expect("a whole entry");
            let name = entry.path().expect("a name").display().to_string();
            let mut data = Vec::new();
            entry.read_to_end(&mut data).expect("a whole input");
            (name, data)
        })
        .collect();
    assert_eq!(inputs.len(), count, "inputs of the archive");
    // `scripts/ci/fuzz.sh` sorts them, and so none is counted twice.
    assert!(inputs.is_sorted_by(|a, b| a.0 < b.0), "names of inputs rise");
    inputs
}

/// Checks every input, also behind one that fails.
///
/// # Panics
/// Panics with the names of the inputs whose check panics.
fn replay(archive: &[u8], count: usize, check: impl Fn(&[u8]) + RefUnwindSafe) {
    let failed: Vec<_> = inputs(archive, count)
        .into_iter()
        .filter(|(name, data)| {
            let failed = catch_unwind(|| check(data)).is_err();
            if failed {
                // The case is printed below the message of its panic.
                eprintln!("input {name} fails");
            }
            failed
        })
        .map(|(name, _)| name)
        .collect();
    assert!(failed.is_empty(), "{} of {count} inputs fail: {}", failed.len(), failed.join(", "));
}

#[test]
fn arrow() {
    replay(include_bytes!("../fuzz/corpus/arrow.tar"), 422, arrow::check);
}

#[test]
fn assemble() {
    replay(include_bytes!("../fuzz/corpus/assemble.tar"), 517, assemble::check);
}

#[test]
fn dlpack() {
    replay(include_bytes!("../fuzz/corpus/dlpack.tar"), 153, |data| {
        // The case is made of the bytes as `fuzz_target!` makes it.
        let case = dlpack::Case::arbitrary_take_rest(Unstructured::new(data));
        dlpack::check(&case.expect("a case"));
    });
}

#[test]
fn moves() {
    replay(include_bytes!("../fuzz/corpus/moves.tar"), 556, moves::check);
}

#[test]
fn plan() {
    replay(include_bytes!("../fuzz/corpus/plan.tar"), 110, plan::check);
}

/// An archive of inputs of one byte each.
fn archive(inputs: &[(&str, u8)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for &(name, byte) in inputs {
        let mut header = tar::Header::new_ustar();
        header.set_size(1);
        archive.append_data(&mut header, name, &[byte][..]).expect("room");
    }
    archive.into_inner().expect("room")
}

#[test]
#[should_panic(expected = "2 of 3 inputs fail: b, c")]
fn failing_inputs_are_named() {
    replay(&archive(&[("a", 1), ("b", 2), ("c", 3)]), 3, |data| assert_eq!(data, [1]));
}

#[test]
#[should_panic(expected = "inputs of the archive")]
fn an_archive_without_inputs_fails() {
    replay(&archive(&[]), 1, |_| ());
}

#[test]
#[should_panic(expected = "inputs of the archive")]
fn an_empty_file_fails() {
    replay(&[], 1, |_| ());
}

#[test]
#[should_panic(expected = "names of inputs rise")]
fn an_input_counts_once() {
    replay(&archive(&[("a", 1), ("a", 1)]), 2, |_| ());
}
