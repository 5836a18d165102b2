// Conversions between numbers.

#include <algorithm>
#include <cmath>
#include <limits>

#include "warp.h"

namespace cudasim::device_code {

namespace {

/// Towards zero; beyond the type its end, NaN is 0.
template <class I>
I saturated(double value) {
    if (value != value) return 0;
    if (value <= double(std::numeric_limits<I>::min())) return std::numeric_limits<I>::min();
    if (value >= std::ldexp(1.0, std::numeric_limits<I>::digits)) return std::numeric_limits<I>::max();
    return I(value);
}

/// A NaN's sign and payload are lost.
uint32_t to_half(uint32_t bits) {
    float value = as_float(bits);
    return value != value ? 0x7FFF : std::bit_cast<uint16_t>(_Float16(value));
}
uint32_t to_bfloat(uint32_t bits) {
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FFF;
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;  // ties to even
}

/// A float8: e4m3fn, which has no infinities, or e5m2.
struct Float8 {
    explicit Float8(const Instruction& in) : fraction(in.has(Mod::E4M3) ? 3 : 2), bias(in.has(Mod::E4M3) ? 7 : 15), largest(in.has(Mod::E4M3) ? 448 : 57344) {}

    /// The spacing of numbers as large as one.
    double spacing(double size) const { return std::ldexp(1.0, std::max(size == 0 ? 1 - bias : std::ilogb(size), 1 - bias) - fraction); }

    /// Returns the code nearest to a float, ties to even, at most the largest number. A NaN's sign is lost.
    uint32_t of(uint32_t bits) const {
        float value = as_float(bits);
        if (value != value) return 0x7F;
        double size = std::min(std::fabs(double(value)), largest);
        size = std::nearbyint(size / spacing(size)) * spacing(size);
        uint32_t units = uint32_t(size / spacing(size)), binade = uint32_t(std::ilogb(spacing(size)) + fraction + bias - 1);
        return (bits >> 24 & 0x80) | (units + (binade << fraction));
    }

    uint32_t half_of(uint32_t code) const {
        if ((code & 0x7F) == 0x7F) return 0x7FFF;
        int binade = std::max(int(code & 0x7F) >> fraction, 1);
        double units = double(code & 0x7F) - ((binade - 1) << fraction);
        return (code & 0x80) << 8 | std::bit_cast<uint16_t>(_Float16(std::ldexp(units, binade - bias - fraction)));
    }

    int fraction, bias;
    double largest;
};

/// An integer of a lane, as its sign and magnitude.
struct Integer {
    bool negative;
    uint64_t magnitude;
};
Integer integer_of(const Instruction& in, uint64_t bits) {
    auto is_signed = [](int64_t value) { return Integer{value < 0, value < 0 ? 0 - uint64_t(value) : uint64_t(value)}; };
    if (in.has(Mod::U64)) return {false, bits};
    if (in.has(Mod::S64)) return is_signed(int64_t(bits));
    if (in.has(Mod::U8)) return {false, uint8_t(bits)};
    if (in.has(Mod::S8)) return is_signed(int8_t(bits));
    if (in.has(Mod::U16)) return {false, uint16_t(bits)};
    if (in.has(Mod::S16)) return is_signed(int16_t(bits));
    if (in.has(Mod::U32)) return {false, uint32_t(bits)};
    return is_signed(int32_t(bits));
}

float to_float(const Instruction& in, Integer from) {
    float value = float(from.magnitude);
    long double exact = from.magnitude;
    if (in.has(Mod::RP) && !from.negative && (long double)value < exact) value = std::nextafterf(value, INFINITY);
    if (in.has(Mod::RZ) && (long double)value > exact) value = std::nextafterf(value, 0.0f);
    return from.negative ? -value : value;
}

}  // namespace

/// I2F, I2FP, UI2F: of a register, a pair, or of a byte or half of one.
void run_i2f(Warp& warp, const Instruction& in, Lanes active) {
    bool is_64 = in.has(Mod::U64) || in.has(Mod::S64), wide = in.has(Mod::F64);
    if (in.has(Mod::RP) && !in.has(Mod::U32) && !in.has(Mod::U64)) warp.fail("a signed number rounded up");
    if (in[1].negative || in[1].absolute) warp.fail("I2F of a negated number");
    Vector scratch;
    Pairs from;
    if (is_64) {
        from = warp.pairs(in[1]);
    } else {
        const Vector& a = warp.raw(in[1], scratch);
        int shift = in[1].half == 1 ? 16 : in[1].part > 0 ? 8 * in[1].part : 0;
        for_lanes([&](int l) { from[l] = a[l] >> shift; });
    }
    if (wide) {
        for_lanes([&](int l) {
            Integer integer = integer_of(in, from[l]);
            double value = double(integer.magnitude);
            from[l] = std::bit_cast<uint64_t>(integer.negative ? -value : value);
        });
        return warp.put(in[0], active, from);
    }
    Vector result;
    for_lanes([&](int l) { result[l] = as_bits(to_float(in, integer_of(in, from[l]))); });
    warp.put(in[0], active, result);
}

/// Towards zero. A NaN is 0 with NTZ, else the number of which only the highest bit is set.
void run_f2i(Warp& warp, const Instruction& in, Lanes active) {
    if (!in.has(Mod::TRUNC)) warp.fail("F2I that does not cut off");
    bool is_64 = in.has(Mod::U64) || in.has(Mod::S64), is_unsigned = in.has(Mod::U64) || in.has(Mod::U32);
    Doubles from;
    if (in.has(Mod::F64)) {
        from = warp.doubles(in[1]);
    } else {
        Vector scratch;
        const Vector& a = warp.floats(in[1], scratch);
        for_lanes([&](int l) { from.lane[l] = as_float(a[l]); });
    }
    Pairs result;
    for_lanes([&](int l) {
        double value = from[l];
        if (value != value && !in.has(Mod::NTZ)) {
            result[l] = is_64 ? 1ull << 63 : 1ull << 31;
        } else if (is_64) {
            result[l] = is_unsigned ? saturated<uint64_t>(value) : uint64_t(saturated<int64_t>(value));
        } else {
            result[l] = is_unsigned ? saturated<uint32_t>(value) : uint32_t(saturated<int32_t>(value));
        }
    });
    if (is_64) return warp.put(in[0], active, result);
    Vector low;
    for_lanes([&](int l) { low[l] = uint32_t(result[l]); });
    warp.put(in[0], active, low);
}

/// Between floats: the first modifier says to what, the second from what.
void run_f2f(Warp& warp, const Instruction& in, Lanes active) {
    bool to_double = in.text.find("F2F.F64") != std::string::npos, from_double = in.has(Mod::F64) && !to_double;
    Vector result;
    if (from_double) {
        if (!in.has(Mod::F32)) warp.fail("F2F of float64 to this type");
        Doubles from = warp.doubles(in[1]);
        bool to_zero = in.has(Mod::RZ);
        for_lanes([&](int l) {
            float value = float(from[l]);
            bool is_away = std::fabs(double(value)) > std::fabs(from[l]);
            if (to_zero && is_away) value = std::nextafterf(value, 0.0f);
            result[l] = value != value ? kNan32 : as_bits(value);
        });
        return warp.put(in[0], active, result);
    }
    if (in.has(Mod::RZ)) warp.fail("F2F between these types towards zero");
    Vector scratch;
    const Vector& from = warp.floats(in[1], scratch);
    if (to_double) {
        Pairs wide;
        for_lanes([&](int l) {
            double value = as_float(from[l]);
            wide[l] = value != value ? 0x7FFFFFFFFFFFFFFF : std::bit_cast<uint64_t>(value);
        });
        return warp.put(in[0], active, wide);
    }
    if (!in.has(Mod::F16) || in.text.find("F2F.F16") == std::string::npos) warp.fail("F2F between these types");
    for_lanes([&](int l) { result[l] = to_half(from[l]); });
    warp.put(in[0], active, result);
}

/// Two float32 to a pair of 16 bits, the first to the upper half, or to two float8 with two others above them; or two float8 to a
/// pair of float16.
void run_f2fp(Warp& warp, const Instruction& in, Lanes active) {
    Vector scratches[3], result;
    if (in.has(Mod::UNPACK_B)) {
        if (!in.has(Mod::E4M3) || !in.has(Mod::F16)) warp.fail("F2FP that unpacks other types");
        const Vector& a = warp.raw(in[1], scratches[0]);
        for_lanes([&](int l) {
            uint32_t two = in[1].half == 1 ? a[l] >> 16 : a[l];
            result[l] = Float8(in).half_of(two & 0xFF) | Float8(in).half_of(two >> 8 & 0xFF) << 16;
        });
        return warp.put(in[0], active, result);
    }
    const Vector &a = warp.floats(in[1], scratches[0]), &b = warp.floats(in[2], scratches[1]);
    if (in.has(Mod::PACK_AB_MERGE_C)) {
        if (!in.has(Mod::SATFINITE) || in.has(Mod::E4M3) == in.has(Mod::E5M2)) warp.fail("F2FP to another type");
        const Vector& c = warp.raw(in[3], scratches[2]);
        for_lanes([&](int l) { result[l] = c[l] << 16 | Float8(in).of(a[l]) << 8 | Float8(in).of(b[l]); });
        return warp.put(in[0], active, result);
    }
    bool is_bfloat = in.has(Mod::BF16);
    for_lanes([&](int l) {
        result[l] = is_bfloat ? to_bfloat(a[l]) << 16 | to_bfloat(b[l]) : to_half(a[l]) << 16 | to_half(b[l]);
    });
    warp.put(in[0], active, result);
}

}  // namespace cudasim::device_code
