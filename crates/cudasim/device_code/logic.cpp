// Bits, shifts, bytes, comparisons of integers, predicates.

#include <algorithm>

#include "warp.h"

namespace cudasim::device_code {

namespace {

bool is_predicate(const Operand& operand) { return operand.kind == Kind::pred || operand.kind == Kind::upred; }

/// A function of three bits, by its table of eight.
uint32_t look_up(uint32_t table, uint32_t a, uint32_t b, uint32_t c) {
    uint32_t result = 0;
    for (int k = 0; k < 8; k++) {
        uint32_t chosen = (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
        result |= table >> k & 1 ? chosen : 0;
    }
    return result;
}

}  // namespace

void run_lop3(Warp& warp, const Instruction& in, Lanes active) {
    // A predicate in front receives whether the result is not zero, or another predicate holds.
    size_t i = is_predicate(in[0]);
    Vector scratches[3], result;
    const Vector &a = warp.raw(in[i + 1], scratches[0]), &b = warp.raw(in[i + 2], scratches[1]),
                 &c = warp.raw(in[i + 3], scratches[2]);
    uint32_t table = uint32_t(in[i + 4].value);
    if (table == 0xC0) {
        for_lanes([&](int l) { result[l] = a[l] & b[l]; });
    } else {
        for_lanes([&](int l) { result[l] = look_up(table, a[l], b[l], c[l]); });
    }
    warp.put(in[i], active, result);
    if (!i) return;
    Lanes not_zero = lanes_where([&](int l) { return result[l]; }), other = warp.predicate(in[i + 5]);
    warp.put(in[0], active, not_zero | other);
}

void run_plop3(Warp& warp, const Instruction& in, Lanes active) {
    Lanes a = warp.predicate(in[2]), b = warp.predicate(in[3]), c = warp.predicate(in[4]);
    Lanes first = look_up(uint32_t(in[5].value), a, b, c), second = look_up(uint32_t(in[6].value), a, b, c);
    warp.put(in[0], active, first);
    warp.put(in[1], active, second);
}

/// c:a shifted by b, the lower half of it or with HI the upper one.
void run_shf(Warp& warp, const Instruction& in, Lanes active) {
    Vector scratches[3], result;
    const Vector &a = warp.raw(in[1], scratches[0]), &b = warp.raw(in[2], scratches[1]), &c = warp.raw(in[3], scratches[2]);
    bool is_64 = in.has(Mod::U64) || in.has(Mod::S64), is_signed = in.has(Mod::S32) || in.has(Mod::S64);
    bool wraps = in.has(Mod::W), left = in.has(Mod::L), high = in.has(Mod::HI);
    for_lanes([&](int l) {
        uint64_t value = uint64_t(c[l]) << 32 | a[l];
        uint32_t by = wraps ? b[l] & (is_64 ? 63 : 31) : std::min(b[l], is_64 ? 64u : 32u);
        if (left) {
            value = by > 63 ? 0 : value << by;
        } else if (is_signed) {
            value = uint64_t(int64_t(value) >> std::min(by, 63u));
        } else {
            value = by > 63 ? 0 : value >> by;
        }
        result[l] = uint32_t(high ? value >> 32 : value);
    });
    warp.put(in[0], active, result);
}

void run_sel(Warp& warp, const Instruction& in, Lanes active) {
    Lanes first = warp.predicate(in[3]);
    if (in.has(Mod::b64)) {
        Pairs a = warp.pairs(in[1]), b = warp.pairs(in[2]);
        for_lanes([&](int l) { a[l] = first >> l & 1 ? a[l] : b[l]; });
        return warp.put(in[0], active, a);
    }
    Vector room_a, room_b, result;
    const Vector &a = warp.integers(in[1], room_a), &b = warp.integers(in[2], room_b);
    for_lanes([&](int l) { result[l] = first >> l & 1 ? a[l] : b[l]; });
    warp.put(in[0], active, result);
}

/// Joins a comparison with another predicate; the second destination takes the opposite.
void put_joined(Warp& warp, const Instruction& in, Lanes active, Lanes holds) {
    Lanes other = warp.predicate(in[4]);
    auto joined = [&](Lanes value) {
        return in.has(Mod::OR) ? value | other : in.has(Mod::XOR) ? value ^ other : value & other;
    };
    warp.put(in[0], active, joined(holds));
    warp.put(in[1], active, joined(~holds));
}

/// EX: of the upper words; the last operand says how the lower ones compare.
void run_isetp(Warp& warp, const Instruction& in, Lanes active) {
    Lanes less = 0, equal = 0;
    bool extends = in.has(Mod::EX);
    if (in.has(Mod::U64) || in.has(Mod::S64)) {
        if (extends) warp.fail("a comparison of more than 64 bits");
        Pairs a = warp.pairs(in[2]), b = warp.pairs(in[3]);
        uint64_t flip = in.has(Mod::S64) ? 1ull << 63 : 0;
        less = lanes_where([&](int l) { return (a[l] ^ flip) < (b[l] ^ flip); });
        equal = lanes_where([&](int l) { return a[l] == b[l]; });
    } else {
        Vector room_a, room_b;
        const Vector &a = warp.integers(in[2], room_a), &b = warp.integers(in[3], room_b);
        uint32_t flip = in.is_signed ? 0x80000000 : 0;
        less = lanes_where([&](int l) { return (a[l] ^ flip) < (b[l] ^ flip); });
        equal = lanes_where([&](int l) { return a[l] == b[l]; });
    }
    Lanes greater = ~less & ~equal, low = extends ? warp.predicate(in[5]) : 0, holds = 0;
    Lanes if_equal = extends ? equal & low : equal;
    switch (in.compare) {
        case Compare::lt: holds = extends ? less | if_equal : less; break;
        case Compare::le: holds = less | if_equal; break;
        case Compare::gt: holds = extends ? greater | if_equal : greater; break;
        case Compare::ge: holds = greater | if_equal; break;
        case Compare::eq: holds = if_equal; break;
        case Compare::ne: holds = extends ? ~equal | low : ~equal; break;
        default: warp.fail("a comparison of integers that is none");
    }
    put_joined(warp, in, active, holds);
}

void run_prmt(Warp& warp, const Instruction& in, Lanes active) {
    Vector scratches[3], result;
    const Vector &a = warp.raw(in[1], scratches[0]), &selector = warp.raw(in[2], scratches[1]), &b = warp.raw(in[3], scratches[2]);
    for_lanes([&](int l) {
        uint64_t bytes = uint64_t(b[l]) << 32 | a[l];
        uint32_t chosen = 0;
        for (int k = 0; k < 4; k++) {
            uint32_t nibble = selector[l] >> 4 * k & 15, byte = bytes >> 8 * (nibble & 7) & 255;
            if (nibble & 8) byte = byte & 128 ? 255 : 0;
            chosen |= byte << 8 * k;
        }
        result[l] = chosen;
    });
    warp.put(in[0], active, result);
}

/// The lower bits with their sign, or without.
void run_sgxt(Warp& warp, const Instruction& in, Lanes active) {
    Vector room_a, room_b, result;
    const Vector &a = warp.integers(in[1], room_a), &b = warp.integers(in[2], room_b);
    for_lanes([&](int l) {
        uint32_t bits = std::min(b[l], 32u);
        if (bits == 0) {
            result[l] = 0;
        } else {
            uint32_t up = a[l] << (32 - bits);
            result[l] = in.is_signed ? uint32_t(int32_t(up) >> (32 - bits)) : up >> (32 - bits);
        }
    });
    warp.put(in[0], active, result);
}

void run_brev(Warp& warp, const Instruction& in, Lanes active) {
    Vector scratch, result;
    const Vector& a = warp.integers(in[1], scratch);
    for_lanes([&](int l) {
        uint32_t reversed = 0;
        for (int k = 0; k < 32; k++) reversed |= (a[l] >> k & 1) << (31 - k);
        result[l] = reversed;
    });
    warp.put(in[0], active, result);
}

/// Bits of a register, or of one of its bytes, to the predicates that the last operand names.
void run_r2p(Warp& warp, const Instruction& in, Lanes active) {
    Vector scratch;
    const Vector& a = warp.raw(in[1], scratch);
    int shift = in[1].part > 0 ? 8 * in[1].part : 0;
    for (int k = 0; k < 7; k++) {
        if (!(in[2].value >> k & 1)) continue;
        Lanes set = lanes_where([&](int l) { return a[l] >> (k + shift) & 1; });
        warp.predicates[k] = (warp.predicates[k] & ~active) | (set & active);
    }
}

void run_p2r(Warp& warp, const Instruction& in, Lanes active) {
    Vector scratch, result;
    const Vector& a = warp.raw(in[2], scratch);
    uint32_t chosen = uint32_t(in[3].value);
    if (in[0].part > 0 || in[2].part > 0) warp.fail("P2R to a byte");
    for_lanes([&](int l) {
        uint32_t bits = 0;
        for (int k = 0; k < 7; k++) bits |= (warp.predicates[k] >> l & 1) << k;
        result[l] = (a[l] & ~chosen) | (bits & chosen);
    });
    warp.put(in[0], active, result);
}

}  // namespace cudasim::device_code
