// Control flow: branches, and the barriers at which diverged lanes reconverge.
//
// The problem: the 32 lanes of a warp share one instruction, but a branch may send some of them elsewhere. The machine code says
// where they meet again (BSSY names a barrier and its lanes, BSYNC waits there). In between each group of lanes runs by itself.
//
//     ready     stack of groups {at, lanes}: the top one runs, one instruction at a time
//     waiting   groups that wait at a barrier
//     barriers  per lane: the lanes that a barrier register waits for
//
//            BSSY B0                       ready: {0, 1111}
//         @P BRA else   lanes 1100 taken   ready: {2, 0011} {else, 1100}     the taken group runs first
//            ...        BSYNC B0           waiting: {7, 1100}                then the other one
//     else:  ...        BSYNC B0           all lanes of B0 wait: ready: {7, 1111}
//
// A lane that exits is taken out of `live`, so that no barrier waits for it; BREAK takes lanes out of one barrier. If nothing is
// ready and not all wait at __syncthreads, the lanes wait for each other: the emulator fails rather than hang.
//
// Comparing addresses after each instruction would be simpler and would merge groups anywhere. The machine code names its meeting
// points; groups that meet elsewhere would give other counts of issued instructions, which this emulator is for.

#include <algorithm>

#include "warp.h"

namespace cudasim::device_code {

namespace {

const Operand& last_operand(const Instruction& in) { return in[in.num_operands - 1]; }

/// Lets `taken` of the running group go to `target`; the rest goes on where it is, later.
void branch(Warp& warp, Lanes taken, int64_t target) {
    if (!taken) return;
    if (target < 0) warp.fail("a branch to a label that the listing lacks");
    auto& group = warp.ready.back();
    Lanes rest = group.lanes & ~taken;
    if (!rest) {
        group.at = uint32_t(target);
        return;
    }
    group.lanes = rest;
    warp.ready.push_back({uint32_t(target), taken});
}

/// The running group waits at a barrier, all of it.
void wait(Warp& warp, Lanes active, uint16_t barrier, Lanes with) {
    auto group = warp.ready.back();
    if (active != group.lanes) warp.fail("a part of a group waits");
    warp.ready.pop_back();
    group.barrier = barrier;
    group.met = with;
    warp.waiting.push_back(group);
    warp.release();
}

}  // namespace

void Warp::release() {
    for (bool again = true; again;) {
        again = false;
        for (auto& first : waiting) {
            uint16_t barrier = first.barrier;
            if (barrier == kBlock) continue;
            Lanes wanted = barrier == kWarpSync ? first.met : barriers[barrier][std::countr_zero(first.lanes)];
            wanted &= live;
            Lanes here = 0;
            auto belongs = [&](const Group& group) { return group.barrier == barrier && (group.lanes & wanted); };
            for (auto& group : waiting) here |= belongs(group) ? group.lanes : 0;
            if ((here & wanted) != wanted) continue;
            uint32_t at = first.at;
            for (auto& group : waiting) {
                if (belongs(group) && group.at != at) fail("lanes meet at two places");
            }
            std::erase_if(waiting, belongs);
            ready.push_back({at, here});
            again = true;
            break;
        }
    }
    if (ready.empty() && !waiting.empty() && !at_block_barrier()) fail("all lanes wait for each other");
}

bool Warp::at_block_barrier() const {
    return ready.empty() && !waiting.empty() &&
           std::all_of(waiting.begin(), waiting.end(), [](auto& group) { return group.barrier == kBlock; });
}

void Warp::leave_block_barrier() {
    ready = std::exchange(waiting, {});
}

void run_bra(Warp& warp, const Instruction& in, Lanes active) {
    if (in.has(Mod::DIV)) {
        // Taken if other lanes than those of a mask have come here together.
        Vector scratch;
        if (warp.ready.back().lanes == warp.raw(in[0], scratch)[0]) active = 0;
    } else if (in.num_operands > 1) active &= warp.predicate(in[0]);
    branch(warp, active, last_operand(in).value);
}

/// Branches to where a register says, by a table: lanes may go to several places.
void run_brx(Warp& warp, const Instruction& in, Lanes active) {
    auto group = warp.ready.back();
    if (active != group.lanes) warp.fail("a part of a group branches by a table");
    warp.ready.pop_back();
    Lanes left = active;
    while (left) {
        uint32_t to = warp.registers[in[0].index][std::countr_zero(left)];
        Lanes same = lanes_where([&](int l) { return warp.registers[in[0].index][l] == to; }) & left;
        left &= ~same;
        int64_t target = int64_t(int32_t(to)) + in[1].value + 16 * (in.at + 1);
        if (target < 0 || target % 16) warp.fail("a branch by a table that leads nowhere");
        warp.ready.push_back({uint32_t(target / 16), same});
    }
}

void run_call(Warp& warp, const Instruction& in, Lanes active) { branch(warp, active, last_operand(in).value); }

void run_ret(Warp& warp, const Instruction& in, Lanes active) {
    if (!active) return;
    uint32_t to = warp.registers[in[0].index][std::countr_zero(active)];
    Lanes same = lanes_where([&](int l) { return warp.registers[in[0].index][l] == to; });
    if ((same & active) != active) warp.fail("lanes return to two places");
    branch(warp, active, to / 16);
}

void run_exit(Warp& warp, const Instruction&, Lanes active) {
    if (!active) return;
    warp.live &= ~active;
    auto& group = warp.ready.back();
    group.lanes &= ~active;
    if (!group.lanes) warp.ready.pop_back();
    warp.release();
}

void run_bssy(Warp& warp, const Instruction& in, Lanes active) {
    for_lanes([&](int l) {
        if (active >> l & 1) warp.barriers[in[0].index][l] = active;
    });
}

void run_bsync(Warp& warp, const Instruction& in, Lanes active) { wait(warp, active, in[0].index, 0); }

/// Lanes leave a barrier that others will wait at.
void run_break(Warp& warp, const Instruction& in, Lanes active) {
    if (in.num_operands > 1) active &= warp.predicate(in[0]);
    if (!active) return;
    auto& barrier = warp.barriers[last_operand(in).index];
    Lanes all = barrier[std::countr_zero(active)];
    for_lanes([&](int l) {
        if (all >> l & 1) barrier[l] &= ~active;
    });
    warp.release();
}

void run_warpsync(Warp& warp, const Instruction& in, Lanes active) {
    Lanes with = kAllLanes;
    if (in.num_operands) {
        Vector scratch;
        with = warp.raw(in[0], scratch)[std::countr_zero(active | 1u << 31)];
    }
    wait(warp, active, Warp::kWarpSync, with);
}

/// A barrier's lanes to a register or back; CLEAR empties it.
void run_bmov(Warp& warp, const Instruction& in, Lanes active) {
    if (in[0].kind == Kind::barrier) {
        Vector scratch;
        const Vector& lanes = warp.raw(in[1], scratch);
        for_lanes([&](int l) {
            if (active >> l & 1) warp.barriers[in[0].index][l] = lanes[l];
        });
        return;
    }
    Vector result;
    auto& barrier = warp.barriers[in[1].index];
    for_lanes([&](int l) { result[l] = barrier[l]; });
    warp.put(in[0], active, result);
    if (!in.has(Mod::CLEAR)) return;
    for_lanes([&](int l) {
        if (active >> l & 1) barrier[l] = 0;
    });
}

/// __syncthreads().
void run_bar(Warp& warp, const Instruction& in, Lanes active) {
    if (in.num_operands != 1 || in[0].value != 0) warp.fail("a barrier of a part of the block");
    wait(warp, active, Warp::kBlock, 0);
}

}  // namespace cudasim::device_code
