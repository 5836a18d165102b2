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
