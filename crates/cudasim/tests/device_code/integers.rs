//! Integers, bits and predicates.

use crate::probe::{check, check_p, check_pair, each, State, JOINS, VOTES};

type Three = fn(u32, u32, u32) -> u32;

/// Register 0 from registers 2, 4 and 6.
fn three(program: &str, want: Three) {
    check(program, |s, l| want(s.r(2, l), s.r(4, l), s.r(6, l)));
}

#[test]
pub fn sums_and_products() {
    three("IADD3 R0, R2, R4, R6", |a, b, c| a.wrapping_add(b).wrapping_add(c));
    three("IADD3 R0, R2, -R4, ~R6", |a, b, c| a.wrapping_sub(b).wrapping_add(!c));
    three("VIADD R0, R2, 0xffffffff", |a, _, _| a.wrapping_sub(1));
    three("IMAD R0, R2, R4, R6", |a, b, c| a.wrapping_mul(b).wrapping_add(c));
    three("IMAD R0, R2, -R4, R6", |a, b, c| c.wrapping_sub(a.wrapping_mul(b)));
    three("IMAD.MOV.U32 R0, RZ, RZ, R2", |a, _, _| a);
    three("IMAD.SHL.U32 R0, R2, 0x8, RZ", |a, _, _| a << 3);
    three("IMAD.IADD R0, R2, 0x1, R4", |a, b, _| a.wrapping_add(b));
    three("MOV R0, R2", |a, _, _| a);
    three("IABS R0, R2", |a, _, _| (a as i32).unsigned_abs());
    three("POPC R0, R2", |a, _, _| a.count_ones());
    three("BREV R0, R2", |a, _, _| a.reverse_bits());
    three("FLO.U32 R0, R2", |a, _, _| 31u32.wrapping_sub(a.leading_zeros()));
    three("FLO.U32.SH R0, R2", |a, _, _| if a == 0 { !0 } else { a.leading_zeros() });
    check_pair("IMAD.WIDE.U32 R0, R2, R4, R6", |s, l| {
        (u64::from(s.r(2, l)) * u64::from(s.r(4, l))).wrapping_add(s.pair(6, l))
    });
    check_pair("IMAD.WIDE R0, R2, R4, R6", |s, l| {
        let product = i64::from(s.r(2, l) as i32) * i64::from(s.r(4, l) as i32);
        (product as u64).wrapping_add(s.pair(6, l))
    });
    // The addend is a pair here too.
    check("IMAD.HI.U32 R0, R2, R4, R6", |s, l| {
        let sum = (u64::from(s.r(2, l)) * u64::from(s.r(4, l))).wrapping_add(s.pair(6, l));
        (sum >> 32) as u32
    });
    check_pair("IADD.64 R0, R2, R4", |s, l| s.pair(2, l).wrapping_add(s.pair(4, l)));
    check_pair("MOV.64 R0, R2", |s, l| s.pair(2, l));
    check_pair("SEL.64 R0, R2, R4, P1", |s, l| s.pair(if s.p(1, l) { 2 } else { 4 }, l));
}

#[test]
pub fn carries() {
    let sum = |s: &State, l| s.pair(2, l).wrapping_add(s.pair(4, l));
    check_pair("IADD3 R0, P0, R2, R4, RZ\nIADD3.X R1, R3, R5, RZ, P0, !PT", sum);
    check_pair("IADD3 R0, P0, R2, R4, RZ\nIMAD.X R1, R3, 0x1, R5, P0", sum);
    let difference = |s: &State, l| s.pair(2, l).wrapping_sub(s.pair(4, l));
    check_pair("IADD3 R0, P0, R2, -R4, RZ\nIADD3.X R1, R3, ~R5, RZ, P0, !PT", difference);
    check_pair("IADD3 R0, P0, P1, R2, R4, R6\nIADD3.X R1, R3, R5, R7, P0, P1", |s, l| {
        s.pair(2, l).wrapping_add(s.pair(4, l)).wrapping_add(s.pair(6, l))
    });
    let address = |s: &State, l| (u64::from(s.r(2, l)) << 3).wrapping_add(s.pair(4, l));
    check_pair("LEA R0, P0, R2, R4, 0x3\nLEA.HI.X R1, R2, R5, RZ, 0x3, P0", address);
    check_pair("LEA R0, P0, R2, R4, 0x2\nLEA.HI.X.SX32 R1, R2, R5, 0x2, P0", |s, l| {
        ((i64::from(s.r(2, l) as i32) << 2) as u64).wrapping_add(s.pair(4, l))
    });
    check_p("IMAD.WIDE.U32 R2, P0, R2, R4, R6", |s, l| {
        let product = u64::from(s.r(2, l)) * u64::from(s.r(4, l));
        product.checked_add(s.pair(6, l)).is_none()
    });
    check("LEA.HI R0, R2, R4, R6, 0x5", |s, l| {
        let wide = u64::from(s.r(6, l)) << 32 | u64::from(s.r(2, l));
        ((wide << 5 >> 32) as u32).wrapping_add(s.r(4, l))
    });
}

#[test]
pub fn the_smaller_and_the_larger() {
    three("VIMNMX.U32 R0, R2, R4, PT", |a, b, _| a.min(b));
    three("IMNMX.U32 R0, R2, R4, !PT", |a, b, _| a.max(b));
    three("VIMNMX R0, R2, R4, PT", |a, b, _| (a as i32).min(b as i32) as u32);
    three("VIMNMX.S32 R0, R2, R4, PT", |a, b, _| (a as i32).min(b as i32) as u32);
    three("VIMNMX.U32 R0, PT, PT, R2, R4, PT", |a, b, _| a.min(b));
    three("VIADDMNMX.U32 R0, R2, R4, R6, PT", |a, b, c| a.wrapping_add(b).min(c));
    three("VIADDMNMX.U32 R0, R2, -R4, R6, !PT", |a, b, c| a.wrapping_sub(b).max(c));
    three("VIMNMX.U16x2 R0, PT, PT, R2, R4, PT", |a, b, _| {
        (a >> 16).min(b >> 16) << 16 | (a & 0xFFFF).min(b & 0xFFFF)
    });
    check_pair("IMNMX.U64 PT, PT, R0, R2, R4, PT, !PT", |s, l| s.pair(2, l).min(s.pair(4, l)));
    check_pair("IMNMX.S64 R0, R2, R4, !PT", |s, l| {
        (s.pair(2, l) as i64).max(s.pair(4, l) as i64) as u64
    });
}

#[test]
pub fn bits_and_bytes() {
    three("LOP3.LUT R0, R2, R4, R6, 0xc0, !PT", |a, b, _| a & b);
    three("LOP3.LUT R0, R2, R4, R6, 0xfe, !PT", |a, b, c| a | b | c);
    three("LOP3.LUT R0, R2, R4, R6, 0xca, !PT", |a, b, c| (a & b) | (!a & c));
    three("LOP3.LUT R0, R2, R4, R6, 0x96, !PT", |a, b, c| a ^ b ^ c);
    check_p("LOP3.LUT P0, RZ, R2, R4, RZ, 0xc0, !PT", |s, l| s.r(2, l) & s.r(4, l) != 0);
    check_p("LOP3.LUT P0, RZ, R2, R4, RZ, 0xc0, P1", |s, l| {
        s.r(2, l) & s.r(4, l) != 0 || s.p(1, l)
    });
    check_p("PLOP3.LUT P0, PT, P1, P2, P3, 0x80, 0x0", |s, l| s.p(1, l) && s.p(2, l) && s.p(3, l));
    check_p("PLOP3.LUT P0, PT, P1, !P2, PT, 0x2a, 0x0", |s, l| !(s.p(1, l) && !s.p(2, l)));
    three("SHF.R.U32.HI R0, RZ, R4, R6", |_, b, c| c.checked_shr(b).unwrap_or(0));
    three("SHF.R.S32.HI R0, RZ, R4, R6", |_, b, c| ((c as i32) >> b.min(31)) as u32);
    three("SHF.L.U32 R0, R2, R4, RZ", |a, b, _| a.checked_shl(b).unwrap_or(0));
    let joined = |a: u32, c: u32| u64::from(c) << 32 | u64::from(a);
    check("SHF.R.W.U32 R0, R2, R4, R6", move |s, l| {
        (joined(s.r(2, l), s.r(6, l)) >> (s.r(4, l) & 31)) as u32
    });
    check("SHF.R.U64 R0, R2, R4, R6", move |s, l| {
        joined(s.r(2, l), s.r(6, l)).checked_shr(s.r(4, l)).unwrap_or(0) as u32
    });
    check("SHF.L.U64.HI R0, R2, R4, R6", move |s, l| {
        (joined(s.r(2, l), s.r(6, l)).checked_shl(s.r(4, l)).unwrap_or(0) >> 32) as u32
    });
    check("SHF.R.S64 R0, R2, R4, R6", move |s, l| {
        (joined(s.r(2, l), s.r(6, l)) as i64 >> s.r(4, l).min(63)) as u32
    });
    three("SGXT R0, R2, 0x8", |a, _, _| a as i8 as u32);
    three("SGXT.U32 R0, R2, 0x9", |a, _, _| a & 0x1FF);
    three("PRMT R0, R2, 0x5410, R4", |a, b, _| a & 0xFFFF | b << 16);
    three("PRMT R0, R2, 0x9910, RZ", |a, _, _| a as i16 as u32);
    check("PRMT R0, R2, R4, R6", move |s, l| {
        let bytes = joined(s.r(2, l), s.r(6, l)).to_le_bytes();
        let byte = |k: u32| {
            let nibble = s.r(4, l) >> (4 * k) & 15;
            let byte = bytes[(nibble & 7) as usize];
            if nibble & 8 == 0 {
                byte
            } else {
                (byte as i8 >> 7) as u8
            }
        };
        u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)])
    });
    check("SEL R0, R2, R4, P1", |s, l| if s.p(1, l) { s.r(2, l) } else { s.r(4, l) });
    check("SEL R0, R2, R4, !P1", |s, l| if s.p(1, l) { s.r(4, l) } else { s.r(2, l) });
}

#[test]
pub fn predicates_and_registers() {
    each("R2P PR, R2, 0x5", |before, after, l| {
        for k in 0..7 {
            let want = if k == 0 || k == 2 { before.r(2, l) >> k & 1 != 0 } else { before.p(k, l) };
            assert_eq!(after.p(k, l), want);
        }
    });
    each("R2P PR, R2.B1, 0x7f", |before, after, l| {
        (0..7).for_each(|k| assert_eq!(after.p(k, l), before.r(2, l) >> (8 + k) & 1 != 0));
    });
    check("P2R R0, PR, R2, 0xc", |s, l| {
        s.r(2, l) & !12 | u32::from(s.p(2, l)) << 2 | u32::from(s.p(3, l)) << 3
    });
}

#[test]
pub fn comparisons() {
    check_p("ISETP.GE.AND P0, PT, R2, R4, PT", |s, l| s.r(2, l) as i32 >= s.r(4, l) as i32);
    for (join, joined) in JOINS {
        check_p(&format!("ISETP.LT.U32.{join} P0, PT, R2, R4, P1"), |s, l| {
            joined(s.r(2, l) < s.r(4, l), s.p(1, l))
        });
    }
    check_p("ISETP.EQ.AND P1, P0, R2, R4, PT", |s, l| s.r(2, l) != s.r(4, l));
    check_p("ISETP.LE.U32.AND P0, PT, R2, R4, !P1", |s, l| s.r(2, l) <= s.r(4, l) && !s.p(1, l));
    let (a, b) = (|s: &State, l| s.pair(2, l), |s: &State, l| s.pair(4, l));
    for (name, holds) in [
        ("GE", (|a, b| a >= b) as fn(u64, u64) -> bool),
        ("GT", |a, b| a > b),
        ("LT", |a, b| a < b),
        ("LE", |a, b| a <= b),
        ("EQ", |a, b| a == b),
        ("NE", |a, b| a != b),
    ] {
        let low = format!("ISETP.{name}.U32.AND P0, PT, R2, R4, PT");
        let both = format!("{low}\nISETP.{name}.U32.AND.EX P0, PT, R3, R5, PT, P0");
        check_p(&both, |s, l| holds(a(s, l), b(s, l)));
        check_p(&format!("ISETP.{name}.U64.AND P0, PT, R2, R4, PT"), |s, l| {
            holds(a(s, l), b(s, l))
        });
    }
    check_p("ISETP.LT.S64.AND P0, PT, R2, R4, PT", |s, l| {
        (s.pair(2, l) as i64) < s.pair(4, l) as i64
    });
}

/// Uniform opcodes beside those that are forms of others, which `check` runs too; and what goes between lanes and warp.
#[test]
pub fn uniform() {
    let uniform = |program: &str, want: fn(&State) -> u32| {
        each(program, |before, after, _| assert_eq!(after.uniform[0], want(before), "{program}"));
    };
    uniform("UIADD3 UR0, UP1, UPT, UR2, 0x18, URZ", |s| s.uniform[2].wrapping_add(0x18));
    each("UIADD3.64 UR0, UR2, UR4, UR6", |before, after, _| {
        let pair = |s: &State, k| u64::from(s.uniform[k + 1]) << 32 | u64::from(s.uniform[k]);
        let want = pair(before, 2).wrapping_add(pair(before, 4)).wrapping_add(pair(before, 6));
        assert_eq!(pair(after, 0), want);
    });
    uniform("UPLOP3.LUT UP0, UPT, UP1, UP2, UPT, 0x80, 0x0\n@UP0 UMOV UR2, 0x1\n@!UP0 UMOV UR2, 0x2\nUMOV UR0, UR2", |s| {
        if s.uniform_predicates[1] & s.uniform_predicates[2] != 0 { 1 } else { 2 }
    });
    uniform("R2UR UR0, R2", |s| s.r(2, 0));
    check("IADD3 R0, R2, UR4, RZ", |s, l| s.r(2, l).wrapping_add(s.uniform[4]));
    // Votes over the lanes' predicates, as a number and as the warp's predicate.
    for (name, holds) in VOTES {
        each(&format!("VOTEU.{name} UR0, UP0, P1"), |before, after, _| {
            assert_eq!(after.uniform[0], before.predicates[1]);
            assert_eq!(after.uniform_predicates[0] != 0, holds(before.predicates[1]), "{name}");
        });
    }
}
