//! Traces of executed code, in the format of Accel-Sim's tracer.

use std::ffi::CString;
use std::fs;

use crate::probe::State;

const PROGRAM: &str = "
    LDG.E.128.CONSTANT R20, [R10.64+0x20]
    @P1 STG.E.64 [R10.64], R20
    @!P2 LDG.E.U8 R2, [R10.64+-0x1]
    IMAD.WIDE R30, R31, 0x10, R32
    LOP3.LUT P0, R3, R4, R5, RZ, 0xc0, !PT
    ISETP.GE.AND P3, PT, R1, R2, PT
    STL.64 [R1+0x8], R6";

/// Lines after the head of the file.
const LINES: &str = "
#BEGIN_TB

thread block = 5,6,7

warp = 0
insts = 8
0000 ffffffff 4 R20 R21 R22 R23 LDG.E.128.CONSTANT 2 R10 R11 16 1 0x10000000020 16 0
0010 80000006 0 STG.E.64 4 R10 R11 R20 R21 8 0 0x10000000010 0x10000000020 0x100000001f0 0
0020 0000fff8 1 R2 LDG.E.U8 2 R10 R11 1 1 0x1000000002f 16 0
0030 ffffffff 2 R30 R31 IMAD.WIDE 3 R31 R32 R33 0 0
0040 ffffffff 1 R3 LOP3.LUT 2 R4 R5 0 0
0050 ffffffff 0 ISETP.GE.AND 2 R1 R2 0 0
0060 ffffffff 0 STL.64 3 R1 R6 R7 8 1 0xff00000000000100 8 0
0070 ffffffff 0 EXIT 0 0 0

#END_TB
";

#[test]
fn a_launch_is_traced() {
    let folder = std::env::temp_dir().join(format!("cudasim-trace-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for it");
    let name = CString::new(folder.to_str().expect("a path in UTF-8")).expect("no NUL");
    let memory = [0u64; 128];
    let begin = memory.as_ptr().addr() as u64;
    let mut state = State::new(3);
    (state.memory_begin, state.memory_end) = (begin, begin + 1024);
    for lane in 0..32 {
        let address = begin + 16 * lane as u64;
        state.registers[10][lane] = address as u32;
        state.registers[11][lane] = (address >> 32) as u32;
        // The frame's first byte: its end is where the stack begins.
        state.registers[1][lane] = 0x00FF_FDC0 - 16;
    }
    (state.predicates[1], state.predicates[2]) = (0x8000_0006, !0xFFF8);
    state.frame_bytes = 16;
    state.trace_folder = name.as_ptr().addr() as u64;
    state.run(PROGRAM).expect("a sound program");
    let listed = fs::read_to_string(folder.join("kernelslist.g")).expect("a list");
    let text =
        fs::read_to_string(folder.join(listed.trim_end())).expect("the launch that it names");
    let (head, lines) = text.split_once("immediate\n").expect("a line for the format");
    for line in [
        "-kernel name = probe",
        "-grid dim = (8,8,8)",
        "-block dim = (32,1,1)",
        "-binary version = 80",
    ] {
        assert!(head.lines().any(|found| found == line), "{line}: {head}");
    }
    assert_eq!(lines, LINES);
    fs::remove_dir_all(folder).expect("removed");
}
