//! A few instructions on registers of the test's.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_char, c_int, CStr, CString};
use std::sync::OnceLock;

thread_local! {
    /// The opcodes that this thread's programs had, and opcodes with one of their modifiers.
    static RUN: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

/// `ProbeState` of device_code/probe.cpp.
#[repr(C)]
#[derive(Clone)]
pub struct State {
    pub registers: [[u32; 32]; 256],
    pub uniform: [u32; 256],
    pub predicates: [u32; 8],
    pub uniform_predicates: [u32; 8],
    pub constants: [u8; 1024],
    pub shared: [u8; 1024],
    pub memory_begin: u64,
    pub memory_end: u64,
    pub num_lanes: u32,
    pub frame_bytes: u32,
    pub instructions: u64,
    pub sample_sectors: u64,
    pub store_sectors: u64,
    pub few: u64,
    /// The address of its name, ending with a NUL, or 0.
    pub trace_folder: u64,
}

impl State {
    /// Registers of all kinds hold numbers at which arithmetic has corners, and random ones.
    pub fn new(seed: u64) -> Box<State> {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        // SAFETY: numbers, for which any bits are right.
        let mut state: Box<State> = unsafe { Box::new(std::mem::zeroed()) };
        for register in 0..255 {
            state.registers[register] = std::array::from_fn(|_| random.corner());
            state.uniform[register] = random.corner();
        }
        for i in 0..7 {
            state.predicates[i] = random.next() as u32;
            state.uniform_predicates[i] = random.next() as u32 & 1;
        }
        state.constants = std::array::from_fn(|_| random.next() as u8);
        state.num_lanes = 32;
        state
    }

    /// Runs the lines and an EXIT.
    pub fn run(&mut self, program: &str) -> Result<(), String> {
        let symbol = cudasim::load().symbol(c"cudasim_probe");
        assert!(!symbol.is_null());
        type Probe = unsafe extern "C" fn(*const c_char, *mut State, *mut c_char, usize) -> c_int;
        let text = CString::new(format!("{program}\nEXIT")).expect("no NUL");
        let mut error = vec![0u8; 1024];
        // SAFETY: the function of that name has this signature; the structs are of one layout.
        let failed = unsafe {
            let probe = std::mem::transmute::<*mut std::ffi::c_void, Probe>(symbol);
            probe(text.as_ptr(), self, error.as_mut_ptr().cast(), error.len())
        };
        let end = error.iter().position(|&byte| byte == 0).unwrap_or(0);
        match failed {
            0 => {
                RUN.with_borrow_mut(|run| run.extend(words(program).flat_map(with_modifiers)));
                Ok(())
            }
            _ => Err(String::from_utf8_lossy(&error[..end]).into_owned()),
        }
    }

    /// A register of a lane, and a pair of them.
    pub fn r(&self, register: usize, lane: usize) -> u32 {
        self.registers[register][lane]
    }
    pub fn pair(&self, register: usize, lane: usize) -> u64 {
        u64::from(self.r(register + 1, lane)) << 32 | u64::from(self.r(register, lane))
    }
    pub fn p(&self, predicate: usize, lane: usize) -> bool {
        self.predicates[predicate] >> lane & 1 != 0
    }
}

/// The emulator's table: opcode -> modifiers.
fn table() -> &'static BTreeMap<String, Vec<String>> {
    static TABLE: OnceLock<BTreeMap<String, Vec<String>>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let symbol = cudasim::load().symbol(c"cudasim_opcodes");
        assert!(!symbol.is_null());
        type Opcodes = unsafe extern "C" fn() -> *const c_char;
        // SAFETY: the function of that name has this signature, and gives a text that stays.
        let text = unsafe {
            CStr::from_ptr(std::mem::transmute::<*mut std::ffi::c_void, Opcodes>(symbol)())
        };
        let row = |line: &str| {
            let mut words = line.split(' ').map(String::from);
            (words.next().expect("an opcode"), words.collect())
        };
        text.to_str().expect("ASCII").lines().map(row).collect()
    })
}

/// Rows of the table, and modifiers in them, that no program of this thread has had.
pub fn not_run() -> Vec<String> {
    let run = RUN.take();
    let all = table().iter().flat_map(|(opcode, modifiers)| {
        let with = modifiers.iter().map(move |modifier| format!("{opcode}.{modifier}"));
        std::iter::once(opcode.clone()).chain(with)
    });
    all.filter(|word| !run.contains(word)).collect()
}

/// The instructions of a program, without labels and guards: opcode and modifiers of each.
fn words(program: &str) -> impl Iterator<Item = &str> {
    let lines = program.lines().map(str::trim).filter(|line| !line.ends_with(':'));
    lines.filter_map(|line| line.split(' ').find(|word| !word.starts_with('@')))
}

/// `ISETP.GE.AND`: ISETP, ISETP.GE and ISETP.AND.
fn with_modifiers(word: &str) -> Vec<String> {
    let (opcode, modifiers) = word.split_once('.').unwrap_or((word, ""));
    let with = modifiers.split('.').map(|modifier| format!("{opcode}.{modifier}"));
    std::iter::once(opcode.to_owned()).chain(with).collect()
}

/// A program on the registers of the warp, if each of its opcodes has such a form: `UIADD3 UR0, UR2, UR4, URZ`.
fn uniform_form(program: &str) -> Option<String> {
    let has_form = |word: &str| {
        let mut parts = word.split('.');
        let known = table().get(&format!("U{}", parts.next().unwrap_or_default()));
        known.is_some_and(|known| parts.all(|modifier| known.iter().any(|name| name == modifier)))
    };
    if !words(program).all(has_form) {
        return None;
    }
    let is_register = |word: &str| {
        let number = word.strip_prefix(['R', 'P']).unwrap_or_default();
        matches!(number, "Z" | "T") || number.parse::<u8>().is_ok()
    };
    let mut text = String::new();
    for piece in program.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let word = piece.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        if !text.ends_with('.') && (is_register(word) || table().contains_key(word)) {
            text.push('U');
        }
        text.push_str(piece);
    }
    Some(text)
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16
    }

    fn corner(&mut self) -> u32 {
        const CORNERS: [u32; 20] = [
            0,
            1,
            2,
            31,
            32,
            33,
            63,
            64,
            0x7FFF_FFFF,
            0x8000_0000,
            0xFFFF_FFFF,
            0xFFFF_FFFE,
            0x7F80_0000, // infinity
            0xFF80_0000,
            0x7FC0_0001, // NaN
            0x3F80_0000, // 1.0
            0x0000_FFFF,
            0x477F_E000, // 65504.0
            0x4B00_0001,
            0xBF00_0000,
        ];
        match self.next() % 3 {
            0 => CORNERS[self.next() as usize % CORNERS.len()],
            1 => ((self.next() % 4096) as f32 * 0.25 - 300.0).to_bits(),
            _ => self.next() as u32,
        }
    }
}

/// Runs a program on many states and compares register 0 of each lane.
pub fn check(program: &str, want: impl Fn(&State, usize) -> u32) {
    each(program, |before, after, lane| {
        assert_eq!(after.r(0, lane), want(before, lane), "{program}, lane {lane}");
    });
}

/// The same for the pair of registers 0 and 1.
pub fn check_pair(program: &str, want: impl Fn(&State, usize) -> u64) {
    each(program, |before, after, lane| {
        assert_eq!(after.pair(0, lane), want(before, lane), "{program}, lane {lane}");
    });
}

type Join = fn(bool, bool) -> bool;
type Holds = fn(u32) -> bool;

/// How a comparison is joined with another predicate.
pub const JOINS: [(&str, Join); 3] =
    [("AND", |a, b| a && b), ("OR", |a, b| a || b), ("XOR", |a, b| a ^ b)];

/// The result of a vote of all lanes on their predicates.
pub const VOTES: [(&str, Holds); 3] =
    [("ALL", |set| set == !0), ("ANY", |set| set != 0), ("EQ", |set| set == 0 || set == !0)];

/// The same for predicate 0.
pub fn check_p(program: &str, want: impl Fn(&State, usize) -> bool) {
    each(program, |before, after, lane| {
        assert_eq!(after.p(0, lane), want(before, lane), "{program}, lane {lane}");
    });
}

/// Runs a program on many states and looks at each lane; then its uniform form, if it has one, as if that were lane 0.
pub fn each(program: &str, look: impl Fn(&State, &State, usize)) {
    let uniform = uniform_form(program);
    for seed in 1..24 {
        let mut before = State::new(seed);
        let mut after = before.clone();
        after.run(program).unwrap_or_else(|error| panic!("{program}: {error}"));
        (0..32).for_each(|lane| look(&before, &after, lane));
        let Some(program) = &uniform else { continue };
        before.uniform = before.registers.map(|lanes| lanes[0]);
        before.uniform_predicates = before.predicates.map(|lanes| lanes & 1);
        after = before.clone();
        after.run(program).unwrap_or_else(|error| panic!("{program}: {error}"));
        (0..255).for_each(|k| after.registers[k][0] = after.uniform[k]);
        (0..7).for_each(|k| after.predicates[k] = after.uniform_predicates[k]);
        look(&before, &after, 0);
    }
}
