//! Which part of a program valgrind counts.
#![allow(unsafe_code, reason = "valgrind is addressed by instructions that change nothing")]

/// Turns before those that are counted: the engine's memory is warm after the first.
const WARM: usize = 2;

/// The numbers of `WARM` turns and of `times` more. Callgrind counts the latter alone if it was started with
/// `--instr-atstart=no`.
pub fn rounds(times: usize) -> impl Iterator<Item = usize> {
    let mut round = 0;
    std::iter::from_fn(move || {
        if round == WARM {
            callgrind(START_INSTRUMENTATION);
        }
        if round == WARM + times {
            callgrind(STOP_INSTRUMENTATION);
            return None;
        }
        round += 1;
        Some(round - 1)
    })
}

/// The requests of `valgrind/callgrind.h`: the tool's letters, and a number.
const START_INSTRUMENTATION: usize = (b'C' as usize) << 24 | (b'T' as usize) << 16 | 4;
const STOP_INSTRUMENTATION: usize = START_INSTRUMENTATION + 1;

/// Makes a request of callgrind. A processor, and any other tool, does nothing.
#[cfg(target_arch = "x86_64")]
fn callgrind(request: usize) {
    let arguments = [request, 0, 0, 0, 0, 0];
    // SAFETY: the rotations by 128 bits in all and the exchange of a register with itself leave every register as it was;
    // valgrind, which knows them, reads the six numbers and writes its answer to rdx.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") arguments.as_ptr(),
            inout("rdx") 0usize => _,
        );
    }
}

/// Elsewhere nothing is counted.
#[cfg(not(target_arch = "x86_64"))]
fn callgrind(_: usize) {}
