//! The emulator of machine code: each opcode against arithmetic of the host's, and what it refuses.

// One call through a pointer that dlsym gives.
#![allow(unsafe_code)]
// Comparisons and bits are written as the machine's manual has them: "not less" holds for NaN, "not (a and b)" is one table.
#![allow(clippy::neg_cmp_op_on_partial_ord, clippy::double_comparisons, clippy::nonminimal_bool)]

mod floats;
mod flow;
mod integers;
mod memory;
mod probe;
mod trace;

/// The opcodes with tests and the table of opcodes are the same set, and so are their modifiers: what is not in the table is refused.
#[test]
fn every_opcode_and_modifier_has_a_test() {
    let tests = [
        floats::float32,
        floats::comparisons,
        floats::float64,
        floats::float16_pairs,
        floats::integers_to_floats,
        floats::floats_to_integers,
        floats::between_floats,
        flow::lanes_part_and_meet,
        flow::loops_of_different_lengths,
        flow::calls_and_tables,
        flow::barriers_as_registers,
        flow::shuffles_and_votes,
        integers::sums_and_products,
        integers::carries,
        integers::the_smaller_and_the_larger,
        integers::bits_and_bytes,
        integers::predicates_and_registers,
        integers::comparisons,
        integers::uniform,
        memory::loads_of_every_size,
        memory::stores_of_every_size,
        memory::spills_and_shared_memory,
        memory::constants_and_special_registers,
    ];
    tests.iter().for_each(|test: &fn()| test());
    let missing = probe::not_run();
    assert!(missing.is_empty(), "rows of opcodes.cpp, and modifiers, without a test: {missing:?}");
}
