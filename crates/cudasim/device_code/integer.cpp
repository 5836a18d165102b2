// Integer arithmetic. The uniform forms (UIADD3 and its like) are the same with other operands.

#include <algorithm>

#include "warp.h"

namespace cudasim::device_code {

namespace {

/// The first operand behind the destination and the predicates that take carries.
size_t first_source(const Instruction& in) {
    size_t i = 1;
    while (i < in.num_operands && (in[i].kind == Kind::pred || in[i].kind == Kind::upred)) i++;
    return i;
}

/// The lanes of predicate `index`, none where the operand is not there.
Lanes optional_predicate(const Warp& warp, const Instruction& in, size_t index) {
    return index < in.num_operands ? warp.predicate(in[index]) : 0;
}

/// The bit to flip so that signed numbers compare as unsigned ones.
uint32_t sign_flip(const Instruction& in) { return in.is_signed ? 0x80000000 : 0; }

}  // namespace

void run_nop(Warp&, const Instruction&, Lanes) {}

void run_mov(Warp& warp, const Instruction& in, Lanes active) {
    if (in.has(Mod::b64)) return warp.put(in[0], active, warp.pairs(in[1]));
    Vector scratch;
    warp.put(in[0], active, warp.integers(in[1], scratch));
}

void run_imad(Warp& warp, const Instruction& in, Lanes active) {
    size_t i = first_source(in);
    const Operand &a = in[i], &b = in[i + 1], &c = in[i + 2];
    bool has_carry = i > 1;
    Lanes add = in.has(Mod::X) ? optional_predicate(warp, in, i + 3) : 0;
    Vector room_a, room_b, result;
    if (!in.has(Mod::WIDE) && !in.has(Mod::HI)) {
        if (has_carry) warp.fail("IMAD of 32 bits with a carry");
        Vector room_c;
        const Vector &x = warp.integers(a, room_a), &y = warp.integers(b, room_b), &z = warp.integers(c, room_c);
        for_lanes([&](int l) { result[l] = x[l] * y[l] + z[l] + (add >> l & 1); });
        return warp.put(in[0], active, result);
    }
    if (a.negative || b.negative || c.inverted || add || in.has(Mod::X) || (has_carry && c.negative))
        warp.fail("IMAD of 64 bits with these operands");
    const Vector &x = warp.raw(a, room_a), &y = warp.raw(b, room_b);
    // The addend is a pair, also where only the upper half of the sum is kept.
    Pairs sum = warp.pairs(c);
    Lanes carry = 0;
    for_lanes([&](int l) {
        uint64_t product = in.is_signed ? uint64_t(int64_t(int32_t(x[l])) * int32_t(y[l])) : uint64_t(x[l]) * y[l];
        sum[l] += product;
        carry |= Lanes(sum[l] < product) << l;
    });
    if (has_carry && in.is_signed) warp.fail("a carry of a signed product");
    if (in.has(Mod::WIDE)) {
        warp.put(in[0], active, sum);
    } else {
        for_lanes([&](int l) { result[l] = uint32_t(sum[l] >> 32); });
        warp.put(in[0], active, result);
    }
    if (has_carry) warp.put(in[1], active, carry);
}

/// Three numbers and up to two carries in, two carries out.
void run_iadd3(Warp& warp, const Instruction& in, Lanes active) {
    size_t i = first_source(in), num_carries = i - 1;
    if (in.has(Mod::b64)) {
        Pairs a = warp.pairs(in[i]), b = warp.pairs(in[i + 1]), c = warp.pairs(in[i + 2]);
        if (num_carries || in.has(Mod::X)) warp.fail("a carry of 64 bits");
        for_lanes([&](int l) { a[l] += b[l] + c[l]; });
        return warp.put(in[0], active, a);
    }
    Vector scratches[3], result;
    const Vector* terms[3];
    uint32_t flips[3];
    uint64_t ones = 0;
    for (int k = 0; k < 3; k++) {
        const Operand& term = in[i + k];
        bool flipped = term.kind != Kind::immediate && (term.negative || term.inverted);
        terms[k] = &warp.raw(term, scratches[k]);
        flips[k] = flipped ? ~0u : 0;
        ones += flipped && term.negative;
    }
    Lanes first = 0, second = 0;
    if (in.has(Mod::X)) {
        if (ones) warp.fail("a negated term beside a carry");
        first = optional_predicate(warp, in, i + 3);
        second = optional_predicate(warp, in, i + 4);
    }
    Lanes once = 0, twice = 0;
    for_lanes([&](int l) {
        uint64_t sum = ones + (first >> l & 1) + (second >> l & 1);
        for (int k = 0; k < 3; k++) sum += (*terms[k])[l] ^ flips[k];
        result[l] = uint32_t(sum);
        once |= Lanes(sum >> 32 >= 1) << l;
        twice |= Lanes(sum >> 32 >= 2) << l;
    });
    // A second carry that nothing takes would be lost on a GPU too: then the compiler was wrong, or this.
    bool takes_one = num_carries && in[1].index != kTrue, takes_two = num_carries > 1 && in[2].index != kTrue;
    if (takes_one && !takes_two && (twice & active)) warp.fail("a second carry is lost");
    warp.put(in[0], active, result);
    if (num_carries > 0) warp.put(in[1], active, once);
    if (num_carries > 1) warp.put(in[2], active, twice);
}

/// VIADD, and IADD.64.
void run_iadd(Warp& warp, const Instruction& in, Lanes active) {
    if (in.has(Mod::b64)) {
        Pairs a = warp.pairs(in[1]), b = warp.pairs(in[2]);
        for_lanes([&](int l) { a[l] += b[l]; });
        return warp.put(in[0], active, a);
    }
    Vector room_a, room_b, result;
    const Vector &a = warp.integers(in[1], room_a), &b = warp.integers(in[2], room_b);
    for_lanes([&](int l) { result[l] = a[l] + b[l]; });
    warp.put(in[0], active, result);
}

/// (a << shift) + b; HI: the upper half of (c:a << shift), SX32 with a's sign for c.
void run_lea(Warp& warp, const Instruction& in, Lanes active) {
    size_t i = first_source(in);
    bool has_carry = i > 1;
    Vector room_a, room_b, room_c, result;
    const Vector &a = warp.raw(in[i], room_a), &b = warp.integers(in[i + 1], room_b);
    bool extends = in.has(Mod::SX32);
    if (!in.has(Mod::HI)) {
        uint32_t shift = uint32_t(in[i + 2].value);
        bool negated = in[i].negative;
        if (in.has(Mod::X) || in[i].inverted) warp.fail("LEA with these operands");
        Lanes carry = 0;
        for_lanes([&](int l) {
            uint32_t shifted = a[l] << shift;
            uint64_t sum = uint64_t(negated ? ~shifted : shifted) + b[l] + negated;
            result[l] = uint32_t(sum);
            carry |= Lanes(sum >> 32 & 1) << l;
        });
        warp.put(in[0], active, result);
        if (has_carry) warp.put(in[1], active, carry);
        return;
    }
    if (in[i].negative || in[i].inverted || has_carry) warp.fail("LEA.HI with these operands");
    if (!extends) {
        const Vector& c = warp.raw(in[i + 2], room_c);
        if (&c != &room_c) room_c = c;
    } else {
        for_lanes([&](int l) { room_c[l] = uint32_t(int32_t(a[l]) >> 31); });
    }
    size_t behind = i + (extends ? 2 : 3);
    uint32_t shift = uint32_t(in[behind].value);
    Lanes add = in.has(Mod::X) ? optional_predicate(warp, in, behind + 1) : 0;
    for_lanes([&](int l) {
        uint64_t wide = uint64_t(room_c[l]) << 32 | a[l];
        result[l] = uint32_t(wide << shift >> 32) + b[l] + (add >> l & 1);
    });
    warp.put(in[0], active, result);
}

/// The smaller where the operand behind the numbers holds, else the larger. Predicates that take nothing are
/// listed in front of the destination or behind it.
void run_min_max(Warp& warp, const Instruction& in, Lanes active) {
    size_t to = in[0].kind == Kind::pred ? first_source(in) : 0;
    size_t i = to ? to + 1 : first_source(in);
    Lanes is_min = warp.predicate(in[i + 2]);
    if (in.has(Mod::U64) || in.has(Mod::S64)) {
        Pairs a = warp.pairs(in[i]), b = warp.pairs(in[i + 1]);
        uint64_t flip = in.has(Mod::S64) ? 1ull << 63 : 0;
        for_lanes([&](int l) {
            bool less = (a[l] ^ flip) < (b[l] ^ flip);
            if (less != bool(is_min >> l & 1)) a[l] = b[l];
        });
        return warp.put(in[to], active, a);
    }
    Vector room_a, room_b, result;
    const Vector &a = warp.integers(in[i], room_a), &b = warp.integers(in[i + 1], room_b);
    if (in.has(Mod::U16x2)) {
        for_lanes([&](int l) {
            uint32_t both = 0;
            for (int shift : {0, 16}) {
                uint32_t x = a[l] >> shift & 0xFFFF, y = b[l] >> shift & 0xFFFF;
                both |= (is_min >> l & 1 ? std::min(x, y) : std::max(x, y)) << shift;
            }
            result[l] = both;
        });
        return warp.put(in[to], active, result);
    }
    uint32_t flip = sign_flip(in);
    for_lanes([&](int l) {
        bool less = (a[l] ^ flip) < (b[l] ^ flip);
        result[l] = less == bool(is_min >> l & 1) ? a[l] : b[l];
    });
    warp.put(in[to], active, result);
}

/// The smaller, or larger, of a + b and c.
void run_add_min_max(Warp& warp, const Instruction& in, Lanes active) {
    size_t i = first_source(in);
    Vector scratches[3], result;
    const Vector &a = warp.integers(in[i], scratches[0]), &b = warp.integers(in[i + 1], scratches[1]),
                 &c = warp.integers(in[i + 2], scratches[2]);
    Lanes is_min = warp.predicate(in[i + 3]);
    uint32_t flip = sign_flip(in);
    for_lanes([&](int l) {
        uint32_t sum = a[l] + b[l];
        bool less = (sum ^ flip) < (c[l] ^ flip);
        result[l] = less == bool(is_min >> l & 1) ? sum : c[l];
    });
    warp.put(in[0], active, result);
}

void run_popc(Warp& warp, const Instruction& in, Lanes active) {
    Vector scratch, result;
    const Vector& a = warp.integers(in[1], scratch);
    for_lanes([&](int l) { result[l] = std::popcount(a[l]); });
    warp.put(in[0], active, result);
}

/// The number of the highest set bit, or with SH how far it is from the top; ~0 where there is none.
void run_flo(Warp& warp, const Instruction& in, Lanes active) {
    size_t i = first_source(in);
    Vector scratch, result;
    const Vector& a = warp.integers(in[i], scratch);
    for_lanes([&](int l) {
        uint32_t value = in.is_signed && a[l] >> 31 ? ~a[l] : a[l];
        int zeros = std::countl_zero(value);
        result[l] = !value ? ~0u : in.has(Mod::SH) ? zeros : 31 - zeros;
    });
    warp.put(in[0], active, result);
}

void run_iabs(Warp& warp, const Instruction& in, Lanes active) {
    Vector scratch, result;
    const Vector& a = warp.integers(in[1], scratch);
    for_lanes([&](int l) { result[l] = a[l] >> 31 ? 0 - a[l] : a[l]; });
    warp.put(in[0], active, result);
}

}  // namespace cudasim::device_code
