//! Loads, stores, constants, special registers; and accesses that are refused.

use crate::probe::{check, check_pair, each, State};

/// A state whose lanes have the addresses `step` bytes apart in register 10, and the memory behind them.
fn with_memory(bytes: usize, step: usize) -> (Box<State>, Vec<u64>) {
    let words: Vec<u64> =
        (0..bytes / 8).map(|i| 0x0123_4567_89AB_CDEF_u64.rotate_left(i as u32 * 7)).collect();
    let begin = words.as_ptr().addr() as u64;
    let mut state = State::new(3);
    (state.memory_begin, state.memory_end) = (begin, begin + bytes as u64);
    for lane in 0..32 {
        let address = begin + (lane * step) as u64;
        state.registers[10][lane] = address as u32;
        state.registers[11][lane] = (address >> 32) as u32;
    }
    (state, words)
}

#[test]
fn loads_of_every_size() {
    for (name, size, words) in [
        ("LDG.E.U8.CONSTANT", 1, 1),
        ("LDG.E.S8", 1, 1),
        ("LD.E.U16", 2, 1),
        ("LDG.E.S16", 2, 1),
        ("LDG.E", 4, 1),
        ("LDG.E.64.CONSTANT", 8, 2),
        ("LDG.E.128.CONSTANT", 16, 4),
    ] {
        let (mut state, memory) = with_memory(1024, size);
        state.run(&format!("{name} R20, desc[UR4][R10.64+0x10]")).expect("in bounds");
        let bytes: Vec<u8> = memory.iter().flat_map(|word| word.to_ne_bytes()).collect();
        for lane in 0..32 {
            let at = &bytes[16 + lane * size..][..size];
            for word in 0..words {
                let want = match (size, name.contains(".S")) {
                    (1, true) => at[0] as i8 as u32,
                    (1, false) => at[0].into(),
                    (2, true) => i16::from_ne_bytes([at[0], at[1]]) as u32,
                    (2, false) => u16::from_ne_bytes([at[0], at[1]]).into(),
                    _ => u32::from_ne_bytes(at[4 * word..4 * word + 4].try_into().expect("4")),
                };
                assert_eq!(state.r(20 + word, lane), want, "{name}, lane {lane}");
            }
        }
        if name.contains("CONSTANT") {
            let (first, last) =
                (state.memory_begin + 16, state.memory_begin + 15 + 32 * size as u64);
            assert_eq!(state.sample_sectors, last / 32 - first / 32 + 1, "{name}");
        }
    }
}

#[test]
fn stores_of_every_size() {
    for (name, size) in [
        ("STG.E.U8.STRONG.SM", 1),
        ("STG.E.U16", 2),
        ("ST.E", 4),
        ("STG.E.64", 8),
        ("STG.E.128", 16),
    ] {
        let (mut state, memory) = with_memory(1024, size);
        let before = state.clone();
        state.run(&format!("@P1 {name} desc[UR4][R10.64], R20")).expect("in bounds");
        for lane in 0..32 {
            let bytes: Vec<u8> =
                (0..4).flat_map(|word| before.r(20 + word, lane).to_ne_bytes()).collect();
            // SAFETY: the vector's own memory, which the instruction wrote to.
            let got = unsafe {
                std::slice::from_raw_parts(memory.as_ptr().cast::<u8>().add(lane * size), size)
            };
            assert_eq!(got == &bytes[..size], before.p(1, lane), "{name}, lane {lane}");
        }
        assert!(state.store_sectors <= size as u64 + 1);
    }
}

#[test]
fn accesses_that_no_gpu_allows() {
    let refused = |program: &str, step: usize, shift: i64, words: &str| {
        let (mut state, _memory) = with_memory(512, step);
        for lane in 0..32 {
            state.registers[10][lane] = state.registers[10][lane].wrapping_add(shift as u32);
        }
        let error = state.run(program).expect_err(program);
        assert!(error.contains(words) && error.contains(program), "{error}");
    };
    let outside = "not in memory that is allocated";
    refused("LDG.E.128.CONSTANT R0, desc[UR4][R10.64+0x8]", 16, 0, "is not a multiple of 16");
    refused("LDG.E.128.CONSTANT R0, desc[UR4][R10.64+0x10]", 16, 0, outside);
    refused("LDG.E.U8 R0, desc[UR4][R10.64+-0x1]", 1, 0, outside);
    refused("STG.E desc[UR4][R10.64], R0", 4, 512 - 31 * 4, outside);
    refused("STG.E.64 desc[UR4][R10.64], R0", 8, 4, "is not a multiple of 8");
    refused("STG.E desc[UR4][R10.64], R0", 0, 0, "are written a second time");
    refused("STG.E.U8 desc[UR4][R10.64], R0", 0, 0, "are written a second time");
    refused("STL [R1], R0", 4, 0, "a spill outside of the kernel's frame");
    refused("LDS R0, [R10]", 0, 0, "shared memory");
    refused("LDC R0, c[0x0][0x400]", 0, 0, "a constant beyond the end");
    refused("LDC R0, c[0x3][0x0]", 0, 0, "a constant beyond the end");
    // Inactive lanes may have any address.
    let (mut state, _memory) = with_memory(64, 4096);
    state.predicates[1] = 1;
    state.run("@P1 LDG.E R0, desc[UR4][R10.64]").expect("lane 0 alone");
}

#[test]
fn what_is_not_known_is_named() {
    for (program, words) in [
        ("FCHK P0, R2, R4", "the opcode FCHK"),
        ("LDG.E.256 R0, desc[UR4][R10.64]", "the modifier 256 of LDG"),
        ("S2R R0, SR_CLOCKLO", "the special register SR_CLOCKLO"),
        ("MUFU.RSQ R0, R2", "the modifier RSQ of MUFU"),
    ] {
        let error = State::new(1).run(program).expect_err(program);
        assert!(error.contains(words) && error.contains("opcodes.cpp"), "{error}");
    }
}

#[test]
fn spills_and_shared_memory() {
    const TOP: u32 = 0xFF_FDC0;
    for seed in 1..8 {
        let mut state = State::new(seed);
        state.frame_bytes = 64;
        state.registers[1] = [TOP - 64; 32];
        let before = state.clone();
        state
            .run("STL.64 [R1+0x8], R2\nLDL R0, [R1+0xc]\nSTL.U8 [R1+0x9], R4\nLDL.U8 R5, [R1+0x9]")
            .expect("in it");
        (0..32).for_each(|l| assert_eq!(state.r(0, l), before.r(3, l)));
        (0..32).for_each(|l| assert_eq!(state.r(5, l), before.r(4, l) & 0xFF));
        state = before.clone();
        for lane in 0..32 {
            state.registers[10][lane] = 16 * lane as u32;
            state.registers[11][lane] = 16 * (31 - lane as u32);
        }
        state
            .run("STS.128 [R10], R20\nBAR.SYNC.DEFER_BLOCKING 0x0\nLDS.64 R0, [R11+0x8]")
            .expect("in it");
        (0..32).for_each(|l| assert_eq!(state.pair(0, l), before.pair(22, 31 - l)));
    }
}

#[test]
fn constants_and_special_registers() {
    let word =
        |s: &State, at: usize| u32::from_ne_bytes(s.constants[at..at + 4].try_into().expect("4"));
    check("LDC R0, c[0x0][0x28]", move |s, _| word(s, 0x28));
    check_pair("LDC.64 R0, c[0x0][0x210]", move |s, _| {
        u64::from(word(s, 0x214)) << 32 | u64::from(word(s, 0x210))
    });
    check("LDC.U8 R0, c[0x0][0x29]", |s, _| s.constants[0x29].into());
    check("IADD3 R0, R2, c[0x0][0x30], RZ", move |s, l| s.r(2, l).wrapping_add(word(s, 0x30)));
    check(
        "S2R R0, SR_TID.X\nIMAD.SHL.U32 R0, R0, 0x4, RZ\nLDC R0, c[0x0][R0+0x40]",
        move |s, l| word(s, 0x40 + 4 * l),
    );
    each("ULDC.64 UR0, c[0x0][0x208]\nLDCU.128 UR4, c[0x0][0x220]", |before, after, _| {
        assert_eq!(after.uniform[1], word(before, 0x20C));
        assert_eq!(after.uniform[7], word(before, 0x22C));
    });
    check("S2R R0, SR_TID.X", |_, l| l as u32);
    check("S2R R0, SR_LANEID", |_, l| l as u32);
    check("S2R R0, SR_CTAID.X", |_, _| 5);
    check("S2UR UR4, SR_CTAID.Y\nMOV R0, UR4", |_, _| 6);
    check_pair("CS2R R0, SRZ", |_, _| 0);
    check_pair("CS2R.32 R0, SRZ", |s, l| u64::from(s.r(1, l)) << 32);
    check("NOP\n@!PT MOV R0, 0x1\n@P2 MOV R0, R2", |s, l| s.r(if s.p(2, l) { 2 } else { 0 }, l));
}
