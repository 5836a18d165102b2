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

/// The modifiers that tell how many bytes a load or store has, and the bytes.
const SIZES: [(&str, usize); 7] =
    [(".U8", 1), (".S8", 1), (".U16", 2), (".S16", 2), ("", 4), (".64", 8), (".128", 16)];

/// The register or registers that a load of these bytes fills.
fn loaded(size: &str, bytes: &[u8]) -> Vec<u32> {
    match (size, bytes) {
        (".S8", &[byte]) => vec![byte as i8 as u32],
        (_, &[byte]) => vec![byte.into()],
        (".S16", &[low, high]) => vec![i16::from_ne_bytes([low, high]) as u32],
        (_, &[low, high]) => vec![u16::from_ne_bytes([low, high]).into()],
        _ => bytes.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().expect("4"))).collect(),
    }
}

/// The bytes of a lane's registers from `first` on.
fn bytes_of(state: &State, first: usize, lane: usize, bytes: usize) -> Vec<u8> {
    let words = (first..).map(|register| state.r(register, lane).to_ne_bytes());
    words.flatten().take(bytes).collect()
}

/// Each opcode with each hint.
fn with_hints(names: [&'static str; 2], hints: [&'static str; 4]) -> impl Iterator<Item = String> {
    names.into_iter().flat_map(move |name| hints.map(|hint| format!("{name}{hint}")))
}

#[test]
pub fn loads_of_every_size() {
    let hints = ["", ".SYS", ".CONSTANT", ".NA"];
    for opcode in with_hints(["LD.E", "LDG.E"], hints) {
        for (size, num_bytes) in SIZES {
            let name = format!("{opcode}{size}");
            let (mut state, memory) = with_memory(1024, num_bytes);
            state.run(&format!("{name} R20, desc[UR4][R10.64+0x10]")).expect("in bounds");
            let bytes: Vec<u8> = memory.iter().flat_map(|word| word.to_ne_bytes()).collect();
            for lane in 0..32 {
                let want = loaded(size, &bytes[16 + lane * num_bytes..][..num_bytes]);
                let got: Vec<u32> = (20..20 + want.len()).map(|k| state.r(k, lane)).collect();
                assert_eq!(got, want, "{name}, lane {lane}");
            }
            let first = state.memory_begin + 16;
            let sectors = (first + 32 * num_bytes as u64 - 1) / 32 - first / 32 + 1;
            let want = if name.contains("CONSTANT") { sectors } else { 0 };
            assert_eq!(state.sample_sectors, want, "{name}");
        }
    }
}

#[test]
pub fn stores_of_every_size() {
    let hints = ["", ".SYS", ".STRONG.SM", ".EF"];
    for opcode in with_hints(["ST.E", "STG.E"], hints) {
        for (size, num_bytes) in SIZES {
            let name = format!("{opcode}{size}");
            let (mut state, memory) = with_memory(1024, num_bytes);
            let before = state.clone();
            state.run(&format!("@P1 {name} desc[UR4][R10.64], R20")).expect("in bounds");
            for lane in 0..32 {
                // SAFETY: the vector's own memory, which the instruction wrote to.
                let got = unsafe {
                    let at = memory.as_ptr().cast::<u8>().add(lane * num_bytes);
                    std::slice::from_raw_parts(at, num_bytes)
                };
                let want = bytes_of(&before, 20, lane, num_bytes);
                assert_eq!(got == want, before.p(1, lane), "{name}, lane {lane}");
            }
            assert!(state.store_sectors <= num_bytes as u64 + 1);
        }
    }
}

#[test]
pub fn accesses_that_no_gpu_allows() {
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
    // A row of all lanes, across the words in which the bytes that were written are noted.
    let row = "STG.E desc[UR4][R10.64], R0";
    let (mut state, _memory) = with_memory(512, 4);
    state.run(row).expect("the first store");
    let error = state.run(&format!("{row}\n{row}")).expect_err("the second one");
    assert!(error.contains("lane 0") && error.contains("are written a second time"), "{error}");
    // Inactive lanes may have any address.
    let (mut state, _memory) = with_memory(64, 4096);
    state.predicates[1] = 1;
    state.run("@P1 LDG.E R0, desc[UR4][R10.64]").expect("lane 0 alone");
}

#[test]
pub fn what_is_not_known_is_named() {
    for (program, words) in [
        ("FRND R0, R2", "the opcode FRND"),
        ("LDG.E.256 R0, desc[UR4][R10.64]", "the modifier 256 of LDG"),
        ("S2R R0, SR_CLOCKLO", "the special register SR_CLOCKLO"),
        ("MUFU.LG2 R0, R2", "the modifier LG2 of MUFU"),
    ] {
        let error = State::new(1).run(program).expect_err(program);
        assert!(error.contains(words) && error.contains("opcodes.cpp"), "{error}");
    }
}

/// A frame of 64 bytes below the stack pointer.
fn with_frame(seed: u64) -> Box<State> {
    const TOP: u32 = 0xFF_FDC0;
    let mut state = State::new(seed);
    state.frame_bytes = 64;
    state.registers[1] = [TOP - 64; 32];
    state
}

#[test]
pub fn spills_and_shared_memory() {
    for (size, num_bytes) in SIZES {
        let spilled = |load: &str| {
            let mut state = with_frame(1);
            let before = state.clone();
            state
                .run(&format!("STL{size} [R1+0x10], R20\n{load}{size} R40, [R1+0x10]"))
                .expect("in it");
            for lane in 0..32 {
                let want = loaded(size, &bytes_of(&before, 20, lane, num_bytes));
                let got: Vec<u32> = (40..40 + want.len()).map(|k| state.r(k, lane)).collect();
                assert_eq!(got, want, "{load}{size}, lane {lane}");
            }
        };
        ["LDL", "LDL.LU"].iter().for_each(|load| spilled(load));
        // Each lane writes its own place and reads the one of the lane across.
        let mut state = State::new(2);
        for lane in 0..32 {
            state.registers[10][lane] = 16 * lane as u32;
            state.registers[11][lane] = 16 * (31 - lane as u32);
        }
        let before = state.clone();
        state
            .run(&format!(
                "STS{size} [R10], R20\nBAR.SYNC.DEFER_BLOCKING 0x0\nLDS{size} R40, [R11]"
            ))
            .expect("in it");
        for lane in 0..32 {
            let want = loaded(size, &bytes_of(&before, 20, 31 - lane, num_bytes));
            let got: Vec<u32> = (40..40 + want.len()).map(|k| state.r(k, lane)).collect();
            assert_eq!(got, want, "LDS{size}, lane {lane}");
        }
    }
    // A part of what was spilled, and a part of it overwritten.
    let mut state = with_frame(3);
    let before = state.clone();
    state
        .run("STL.64 [R1+0x8], R2\nLDL R0, [R1+0xc]\nSTL.U8 [R1+0x9], R4\nLDL R6, [R1+0x8]")
        .expect("in it");
    for lane in 0..32 {
        assert_eq!(state.r(0, lane), before.r(3, lane));
        let want = before.r(2, lane) & !0xFF00 | (before.r(4, lane) & 0xFF) << 8;
        assert_eq!(state.r(6, lane), want);
    }
}

#[test]
pub fn constants_and_special_registers() {
    let word =
        |s: &State, at: usize| u32::from_ne_bytes(s.constants[at..at + 4].try_into().expect("4"));
    for (size, num_bytes) in SIZES {
        // ULDC too, as LDC's uniform form.
        each(&format!("LDC{size} R0, c[0x0][0x210]"), |before, after, lane| {
            let want = loaded(size, &before.constants[0x210..][..num_bytes]);
            let got: Vec<u32> = (0..want.len()).map(|k| after.r(k, lane)).collect();
            assert_eq!(got, want, "LDC{size}");
        });
        each(&format!("LDCU{size} UR4, c[0x0][0x220]"), |before, after, _| {
            let want = loaded(size, &before.constants[0x220..][..num_bytes]);
            assert_eq!(after.uniform[4..][..want.len()], want, "LDCU{size}");
        });
    }
    check("IADD3 R0, R2, c[0x0][0x30], RZ", move |s, l| s.r(2, l).wrapping_add(word(s, 0x30)));
    check(
        "S2R R0, SR_TID.X\nIMAD.SHL.U32 R0, R0, 0x4, RZ\nLDC R0, c[0x0][R0+0x40]",
        move |s, l| word(s, 0x40 + 4 * l),
    );
    check_pair(
        "S2R R0, SR_TID.X\nIMAD.SHL.U32 R0, R0, 0x8, RZ\nLDC.64 R0, c[0x0][R0+0x40]",
        move |s, l| u64::from(word(s, 0x44 + 8 * l)) << 32 | u64::from(word(s, 0x40 + 8 * l)),
    );
    check("S2R R0, SR_TID.X", |_, l| l as u32);
    check("S2R R0, SR_LANEID", |_, l| l as u32);
    check("S2R R0, SR_CTAID.X", |_, _| 5);
    check("S2UR UR4, SR_CTAID.Y\nMOV R0, UR4", |_, _| 6);
    check_pair("CS2R R0, SRZ", |_, _| 0);
    check_pair("CS2R.32 R0, SRZ", |s, l| u64::from(s.r(1, l)) << 32);
    check("NOP\n@!PT MOV R0, 0x1\n@P2 MOV R0, R2", |s, l| s.r(if s.p(2, l) { 2 } else { 0 }, l));
}
