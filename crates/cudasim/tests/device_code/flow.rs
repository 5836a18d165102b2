//! Branches, barriers and what lanes tell each other.

use crate::probe::{check, check_p, State, VOTES};

#[test]
pub fn lanes_part_and_meet() {
    for how in ["", ".RECONVERGENT", ".RELIABLE"] {
        let program = format!(
            "BSSY{how} B0, `(.L_end)
            @P1 BRA `(.L_then)
            MOV R0, 0x1
            BRA `(.L_join)
            .L_then:
            MOV R0, 0x2
            .L_join:
            BSYNC{how} B0
            .L_end:
            IADD3 R0, R0, 0x10, RZ"
        );
        check(&program, |s, l| if s.p(1, l) { 0x12 } else { 0x11 });
    }
    // All lanes are together again behind the barrier: the last instructions are issued once.
    let mut state = State::new(1);
    state.predicates[1] = 0xFFFF;
    state
        .run("BSSY B0, `(.L_end)\n@P1 BRA `(.L_a)\nNOP\n.L_a:\nBSYNC B0\n.L_end:\nNOP")
        .expect("ends");
    assert_eq!(state.instructions, 2 + 1 + 2 + 1 + 1);
}

#[test]
pub fn loops_of_different_lengths() {
    for how in ["", ".RELIABLE"] {
        let program = format!(
            "S2R R3, SR_LANEID
            MOV R0, RZ
            BSSY B1, `(.L_out)
            .L_loop:
            ISETP.GE.U32.AND P0, PT, R0, R3, PT
            @P0 BREAK{how} B1
            @P0 BRA `(.L_out)
            IADD3 R0, R0, 0x1, RZ
            BRA `(.L_loop)
            BSYNC B1
            .L_out:
            WARPSYNC.ALL
            IADD3 R0, R0, 0x5, RZ"
        );
        check(&program, |_, l| l as u32 + 5);
    }
    // A shuffle that a part of a warp reaches by itself, and the rest behind it.
    let program = "BSSY B0, `(.L_end)
        @P1 BRA `(.L_then)
        .L_then:
        MOV R3, 0xffffffff
        WARPSYNC.COLLECTIVE R3, `(.L_met)
        SHFL.BFLY P2, R0, R2, 0x1, 0x1f
        ENDCOLLECTIVE
        .L_met:
        BSYNC B0
        .L_end:
        NOP";
    check(program, |s, l| s.r(2, l ^ 1));
    check(
        "BRA P1, `(.L_x)\nMOV R0, 0x1\nEXIT\n.L_x:\nMOV R0, 0x2",
        |s, l| if s.p(1, l) { 2 } else { 1 },
    );
    let whole = "UMOV UR4, 0xffffffff\nBRA.DIV UR4, `(.L_x)\nMOV R0, 0x1\nEXIT\n.L_x:\nMOV R0, 0x2";
    check(whole, |_, _| 1);
    let part = "UMOV UR4, 0xffff\nBRA.DIV UR4, `(.L_x)\nMOV R0, 0x1\nEXIT\n.L_x:\nMOV R0, 0x2";
    check(part, |_, _| 2);
    check("@!UP1 BRA.U UP2, `(.L_x)\nMOV R0, 0x1\nEXIT\n.L_x:\nMOV R0, 0x2", |s, _| {
        if s.uniform_predicates[1] == 0 && s.uniform_predicates[2] != 0 {
            2
        } else {
            1
        }
    });
}

#[test]
pub fn calls_and_tables() {
    check("MOV R4, 0x30\nCALL.REL.NOINC `(.L_f)\nNOP\nIADD3 R0, R0, 0x1, RZ\nEXIT\n.L_f:\nMOV R0, R2\nRET.REL.NODEC R4 `(.L_f)", |s, l| {
        s.r(2, l).wrapping_add(1)
    });
    // Some lanes return before others.
    check(
        "MOV R4, 0x20
        CALL.REL.NOINC `(.L_f)
        EXIT
        .L_f:
        MOV R0, 0x7
        @P1 RET.REL.NODEC R4 `(.L_f)
        MOV R0, 0x8
        RET.REL.NODEC R4 `(.L_f)",
        |s, l| if s.p(1, l) { 7 } else { 8 },
    );
    // The target is in a register, relative to the end of the branch.
    let mut state = State::new(1);
    state.registers[3] = std::array::from_fn(|lane| 0x10 + (lane as u32 & 1) * 0x20);
    state
        .run("BRX R3 -0x10 (*\"BRANCH_TARGETS .L_a,.L_b\"*)\nMOV R0, 0x7\nEXIT\nMOV R0, 0x8")
        .expect("ends");
    (0..32).for_each(|lane| assert_eq!(state.r(0, lane), 7 + (lane as u32 & 1)));
}

#[test]
pub fn barriers_as_registers() {
    check("BSSY B0, `(.L_x)\nBMOV.32.CLEAR R0, B0\n.L_x:\nNOP", |_, _| !0);
    check("MOV R2, 0xffffffff\nBMOV.32 B3, R2\nBMOV.32 R0, B3", |_, _| !0);
}

#[test]
pub fn shuffles_and_votes() {
    check("SHFL.IDX PT, R0, R2, 0x5, 0x1f", |s, _| s.r(2, 5));
    check("SHFL.DOWN PT, R0, R2, 0x3, 0x1f", |s, l| s.r(2, if l + 3 < 32 { l + 3 } else { l }));
    check("SHFL.UP PT, R0, R2, 0x3, RZ", |s, l| s.r(2, if l >= 3 { l - 3 } else { l }));
    check("SHFL.BFLY PT, R0, R2, 0x10, 0x1f", |s, l| s.r(2, l ^ 16));
    // Groups of eight.
    check("SHFL.IDX PT, R0, R2, 0x2, 0x181f", |s, l| s.r(2, l / 8 * 8 + 2));
    for (name, holds) in VOTES {
        check(&format!("VOTE.{name} R0, PT, P1"), |s, _| s.predicates[1]);
        check_p(&format!("VOTE.{name} R0, P0, P1"), |s, _| holds(s.predicates[1]));
        // All of one mind.
        check_p(&format!("VOTE.{name} R0, P0, PT"), |_, _| holds(!0));
        check_p(&format!("VOTE.{name} R0, P0, !PT"), |_, _| holds(0));
    }
    let mut state = State::new(1);
    state.predicates[1] = 0xFFFF;
    let error = state.run("@P1 SHFL.IDX PT, R0, R2, 0x1f, 0x1f").expect_err("lane 31 is not there");
    assert!(error.contains("a shuffle from lane 31"), "{error}");
}

#[test]
pub fn what_never_ends_is_found() {
    let mut state = State::new(1);
    state.predicates[1] = 1;
    // Lane 0 waits for the others at one place, they for it at another.
    let error = state
        .run("BSSY B0, `(.L_b)\n@P1 BRA `(.L_a)\nBSYNC B0\nNOP\n.L_a:\nBSYNC B0\n.L_b:\nNOP")
        .expect_err("two places");
    assert!(error.contains("lanes meet at two places"), "{error}");
    let error = State::new(1).run("BRA `(.L_nowhere)").expect_err("no label");
    assert!(error.contains("a label that the listing lacks"), "{error}");
}
