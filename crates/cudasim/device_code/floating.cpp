// Arithmetic of float32, float64 and float16 pairs. The host's arithmetic is IEEE's, as is a GPU's; NaN
// are made the ones that a GPU gives.

#include <cmath>

#include "warp.h"

namespace cudasim::device_code {

namespace {

uint32_t rounded(float value) { return value != value ? kNan32 : as_bits(value); }

/// Towards zero: what was rounded away from it steps back.
float towards_zero(double exact) {
    float value = float(exact);
    return std::fabs(double(value)) > std::fabs(exact) ? std::nextafterf(value, 0.0f) : value;
}

uint64_t rounded(double value) {
    return value != value ? 0xFFF8000000000000 : std::bit_cast<uint64_t>(value);
}

/// Compares two floats, ordered or unordered.
Lanes compared(const Warp& warp, Compare compare, Lanes less, Lanes equal, Lanes greater) {
    Lanes unordered = ~(less | equal | greater);
    switch (compare) {
        case Compare::lt: return less;
        case Compare::eq: return equal;
        case Compare::le: return less | equal;
        case Compare::gt: return greater;
        case Compare::ne: return less | greater;
        case Compare::ge: return greater | equal;
        case Compare::num: return ~unordered;
        case Compare::nan: return unordered;
        case Compare::ltu: return less | unordered;
        case Compare::equ: return equal | unordered;
        case Compare::leu: return less | equal | unordered;
        case Compare::gtu: return greater | unordered;
        case Compare::neu: return ~equal;
        case Compare::geu: return greater | equal | unordered;
        case Compare::never: break;
    }
    warp.fail("a comparison that is none");
}

template <class A, class B>
Lanes compare_all(const Warp& warp, const Instruction& in, const A& a, const B& b) {
    Lanes less = lanes_where([&](int l) { return a(l) < b(l); }), equal = lanes_where([&](int l) { return a(l) == b(l); }),
          greater = lanes_where([&](int l) { return a(l) > b(l); });
    return compared(warp, in.compare, less, equal, greater);
}

}  // namespace

void put_joined(Warp& warp, const Instruction& in, Lanes active, Lanes holds);

/// Returns zero of the same sign for a subnormal number under FTZ, else `x`.
static float flushed(float x, const Instruction& in) { return in.has(Mod::FTZ) && std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

void run_fadd(Warp& warp, const Instruction& in, Lanes active) {
    Vector room_a, room_b, result;
    const Vector &a = warp.floats(in[1], room_a), &b = warp.floats(in[2], room_b);
    for_lanes([&](int l) { result[l] = rounded(flushed(flushed(as_float(a[l]), in) + flushed(as_float(b[l]), in), in)); });
    warp.put(in[0], active, result);
}

void run_fmul(Warp& warp, const Instruction& in, Lanes active) {
    Vector room_a, room_b, result;
    const Vector &a = warp.floats(in[1], room_a), &b = warp.floats(in[2], room_b);
    bool to_zero = in.has(Mod::RZ);
    for_lanes([&](int l) {
        double exact = double(as_float(a[l])) * as_float(b[l]);  // 48 bits fit
        result[l] = rounded(to_zero ? towards_zero(exact) : float(exact));
    });
    warp.put(in[0], active, result);
}

namespace {

/// x * y + z, rounded towards zero or to either side.
float directed_fma(float x, float y, float z, const Instruction& in) {
    const float near = std::fmaf(x, y, z);
    if (!std::isfinite(near)) return near;
    // The product has 48 bits; what its sum with z loses is exact, too.
    const double product = double(x) * y, sum = product + z, of_z = sum - product;
    const double lost = (product - (sum - of_z)) + (z - of_z), rest = (sum - near) + lost;
    const float zero = 0, above = HUGE_VALF;
    if (rest > 0 && (in.has(Mod::RP) || (in.has(Mod::RZ) && near < zero))) return std::nextafterf(near, above);
    if (rest < 0 && (in.has(Mod::RM) || (in.has(Mod::RZ) && near > zero))) return std::nextafterf(near, -above);
    return near;
}

}  // namespace

void run_ffma(Warp& warp, const Instruction& in, Lanes active) {
    Vector scratches[3], result;
    const Vector &a = warp.floats(in[1], scratches[0]), &b = warp.floats(in[2], scratches[1]), &c = warp.floats(in[3], scratches[2]);
    const bool is_directed = in.has(Mod::RP) || in.has(Mod::RM) || in.has(Mod::RZ);
    for_lanes([&](int l) {
        const float x = as_float(a[l]), y = as_float(b[l]), z = as_float(c[l]);
        result[l] = rounded(is_directed ? directed_fma(x, y, z, in) : std::fmaf(x, y, z));
    });
    warp.put(in[0], active, result);
}

/// Whether a quotient takes more than the usual steps: a GPU may say so less often, where these steps do.
void run_fchk(Warp& warp, const Instruction& in, Lanes active) {
    Vector room_a, room_b;
    const Vector &a = warp.floats(in[1], room_a), &b = warp.floats(in[2], room_b);
    warp.put(in[0], active, lanes_where([&](int l) {
        const int over = a[l] >> 23 & 255, under = b[l] >> 23 & 255;
        return over < 26 || over == 255 || under < 2 || under > 251 || over - under > 125 || over - under < -100;
    }));
}

void run_fsel(Warp& warp, const Instruction& in, Lanes active) {
    Vector room_a, room_b, result;
    const Vector &a = warp.floats(in[1], room_a), &b = warp.floats(in[2], room_b);
    Lanes first = warp.predicate(in[3]);
    for_lanes([&](int l) { result[l] = first >> l & 1 ? a[l] : b[l]; });
    warp.put(in[0], active, result);
}

/// The smallest where the last operand holds, else the largest; a NaN loses against a number, or wins with NAN.
void run_fmnmx(Warp& warp, const Instruction& in, Lanes active) {
    const size_t last = in.num_operands - 1;
    Lanes is_min = warp.predicate(in[last]);
    Vector scratch, result = warp.floats(in[1], scratch);
    for (size_t i = 2; i < last; i++) {
        Vector other;
        const Vector& b = warp.floats(in[i], other);
        for_lanes([&](int l) {
            float x = as_float(result[l]), y = as_float(b[l]);
            bool is_least = is_min >> l & 1, has_nan = x != x || y != y;
            // -0 is less than +0 here.
            bool x_first = x < y || (x == y && std::signbit(x) && !std::signbit(y));
            bool is_nan = has_nan && (in.has(Mod::is_nan) || (x != x && y != y));
            result[l] = is_nan ? kNan32 : x != x ? b[l] : y != y ? result[l] : x_first == is_least ? result[l] : b[l];
        });
    }
    warp.put(in[0], active, result);
}

void run_fsetp(Warp& warp, const Instruction& in, Lanes active) {
    Vector room_a, room_b;
    const Vector &a = warp.floats(in[2], room_a), &b = warp.floats(in[3], room_b);
    auto x = [&](int l) { return flushed(as_float(a[l]), in); };
    auto y = [&](int l) { return flushed(as_float(b[l]), in); };
    put_joined(warp, in, active, compare_all(warp, in, x, y));
}

void run_dsetp(Warp& warp, const Instruction& in, Lanes active) {
    Doubles a = warp.doubles(in[2]), b = warp.doubles(in[3]);
    auto x = [&](int l) { return a[l]; };
    auto y = [&](int l) { return b[l]; };
    put_joined(warp, in, active, compare_all(warp, in, x, y));
}

void run_dadd(Warp& warp, const Instruction& in, Lanes active) {
    Doubles a = warp.doubles(in[1]), b = warp.doubles(in[2]);
    Pairs result;
    for_lanes([&](int l) { result[l] = rounded(a[l] + b[l]); });
    warp.put(in[0], active, result);
}

void run_dmul(Warp& warp, const Instruction& in, Lanes active) {
    Doubles a = warp.doubles(in[1]), b = warp.doubles(in[2]);
    Pairs result;
    for_lanes([&](int l) { result[l] = rounded(a[l] * b[l]); });
    warp.put(in[0], active, result);
}

void run_dfma(Warp& warp, const Instruction& in, Lanes active) {
    Doubles a = warp.doubles(in[1]), b = warp.doubles(in[2]), c = warp.doubles(in[3]);
    Pairs result;
    for_lanes([&](int l) { result[l] = rounded(std::fma(a[l], b[l], c[l])); });
    warp.put(in[0], active, result);
}

/// A GPU's reciprocal may be one unit off: CUDASIM_RECIPROCAL_ULPS makes this one so, to show that nothing
/// depends on it.
void run_mufu(Warp& warp, const Instruction& in, Lanes active) {
    static const int off = getenv("CUDASIM_RECIPROCAL_ULPS") ? atoi(getenv("CUDASIM_RECIPROCAL_ULPS")) : 0;
    Vector scratch, result;
    const Vector& a = warp.floats(in[1], scratch);
    for_lanes([&](int l) {
        float value = 1.0f / (in.has(Mod::RSQ) ? std::sqrt(as_float(a[l])) : as_float(a[l]));
        result[l] = rounded(value);
        if (std::isnormal(value)) result[l] += off;
    });
    warp.put(in[0], active, result);
}

// ---- pairs of float16 ------------------------------------------------------------------------

namespace {

float half_at(uint32_t bits, int which) {
    return float(std::bit_cast<_Float16>(uint16_t(bits >> 16 * which)));
}
uint32_t half_bits(double exact) {
    // Sums and products of float16 are exact in float64, and rounded once.
    _Float16 value = _Float16(exact);
    return value != value ? 0x7FFF : std::bit_cast<uint16_t>(value);
}

/// The two halves of an operand, as its suffix says.
struct Halves {
    Halves(const Warp& warp, const Operand& operand) : operand(operand) {
        if (operand.kind == Kind::immediate) {
            for_lanes([&](int i) { bits[i] = operand.bits; });
        } else {
            Vector scratch;
            bits = warp.raw(operand, scratch);
        }
    }
    float at(int lane, int which) const {
        if (operand.kind == Kind::immediate) return half_at(bits[lane], which);
        float value = half_at(bits[lane], operand.half >= 0 ? operand.half : which);
        if (operand.absolute) value = std::fabs(value);
        return operand.negative ? -value : value;
    }
    const Operand& operand;
    Vector bits;
};

template <class F>
void put_halves(Warp& warp, const Instruction& in, Lanes active, const F& f) {
    Vector result;
    for_lanes([&](int l) { result[l] = half_bits(f(l, 0)) | half_bits(f(l, 1)) << 16; });
    warp.put(in[0], active, result);
}

}  // namespace

/// F32: the sum of two halves as float32, by which a float16 is widened.
void run_hadd2(Warp& warp, const Instruction& in, Lanes active) {
    Halves a(warp, in[1]), b(warp, in[2]);
    if (!in.has(Mod::F32)) {
        return put_halves(warp, in, active, [&](int l, int k) { return double(a.at(l, k)) + b.at(l, k); });
    }
    Vector result;
    for_lanes([&](int l) { result[l] = rounded(a.at(l, 0) + b.at(l, 0)); });
    warp.put(in[0], active, result);
}

/// The largest; a NaN wins, and is positive.
void run_hmnmx2(Warp& warp, const Instruction& in, Lanes active) {
    const size_t last = in.num_operands - 1;
    if (!in.has(Mod::is_nan) || warp.predicate(in[last]) & active) warp.fail("the least of halves, or one without NAN");
    Halves a(warp, in[1]), b(warp, in[2]), c(warp, in[last == 3 ? 2 : 3]);
    put_halves(warp, in, active, [&](int l, int k) {
        double all[] = {a.at(l, k), b.at(l, k), c.at(l, k)}, most = all[0];
        for (double one : all) {
            // -0 is less than +0 here.
            if (one != one || one > most || (one == most && std::signbit(most))) most = one;
        }
        return most;
    });
}

void run_hmul2(Warp& warp, const Instruction& in, Lanes active) {
    Halves a(warp, in[1]), b(warp, in[2]);
    put_halves(warp, in, active, [&](int l, int k) { return double(a.at(l, k)) * b.at(l, k); });
}

void run_hfma2(Warp& warp, const Instruction& in, Lanes active) {
    // nvcc's way to load a constant: nothing is computed, so that any bits come through.
    if (in[1].index == kZero && in[2].index == kZero && in[1].kind == Kind::reg && in[3].kind == Kind::immediate) {
        Vector result;
        for_lanes([&](int l) { result[l] = in[3].bits; });
        return warp.put(in[0], active, result);
    }
    // Both halves of an immediate are in the text.
    Halves a(warp, in[1]), b(warp, in[2]), c(warp, in[in[2].kind == Kind::immediate ? 4 : 3]);
    put_halves(warp, in, active, [&](int l, int k) { return std::fma(double(a.at(l, k)), b.at(l, k), c.at(l, k)); });
}

}  // namespace cudasim::device_code
