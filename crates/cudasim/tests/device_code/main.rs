//! The emulator of machine code: each opcode against arithmetic of the host's, and what it refuses.

// One call through a pointer that dlsym gives.
#![allow(unsafe_code)]

mod floats;
mod flow;
mod integers;
mod memory;
mod probe;
