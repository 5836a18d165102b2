//! Shared by the test files: painted samples, an oracle that never sees a plan, and the runner that
//! holds every executor against it.
#![allow(dead_code, unused_imports, reason = "each test file uses a part of this")]
#![allow(unsafe_code, reason = "samples and outputs at raw addresses, at any alignment")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small sizes, and conversions whose point is to wrap or round"
)]

pub mod ask;
pub mod convert;
#[cfg(feature = "cuda")]
pub mod device;
pub mod oracle;
pub mod pieces;
#[cfg(feature = "cuda")]
pub mod placed;
pub mod runner;
pub mod sample;
pub mod scaled;

pub use ask::{Ask, PadAsk};
pub use oracle::{oracle, Expected};
pub use runner::{runner, Runner};
pub use sample::{Paint, Sample};

/// A fixed sequence of pseudo-random numbers (an xorshift multiplied by a constant).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Every coordinate of a shape in row-major order.
pub fn coordinates(shape: &[i64], mut f: impl FnMut(&[i64])) {
    if shape.contains(&0) {
        return;
    }
    let mut at = vec![0; shape.len()];
    loop {
        f(&at);
        let mut dim = shape.len();
        loop {
            if dim == 0 {
                return;
            }
            dim -= 1;
            at[dim] += 1;
            if at[dim] < shape[dim] {
                break;
            }
            at[dim] = 0;
        }
    }
}

/// The arithmetic dtypes.
pub const ARITHMETIC: &[windrow::DType] = windrow::DType::ALL.split_at(15).0;
