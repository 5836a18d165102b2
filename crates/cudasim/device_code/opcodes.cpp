// The opcodes that the emulator supports, each with its supported modifiers.
//
// A new one: a row here, a function in integer.cpp, logic.cpp, floating.cpp, convert.cpp, access.cpp or
// flow.cpp (its name goes into warp.h), and a test against host arithmetic in tests/device_code/.

#include <sstream>

#include "warp.h"

namespace cudasim::device_code {

const char* const unit_names[] = {"alu", "fma", "xu", "fp64", "memory", "control", "uniform", "half"};
const char* const access_names[] = {"none", "table", "sample", "store", "local", "shared"};

namespace {

struct Opcode {
    Run run;
    Unit unit;
    Access access;
    Modifiers known;
};

const std::map<std::string, Mod, std::less<>>& modifier_names() {
    static const std::map<std::string, Mod, std::less<>> names = {
#define X(name) {#name, Mod::name},
        CUDASIM_MODIFIERS(X)
#undef X
        {"32", Mod::b32}, {"64", Mod::b64}, {"128", Mod::b128}, {"NAN", Mod::is_nan},
    };
    return names;
}

Modifiers modifiers_of(const std::string& list) {
    Modifiers known;
    std::stringstream names(list);
    for (std::string name; names >> name;) known.set(size_t(modifier_names().at(name)));
    return known;
}

const std::map<std::string, Opcode, std::less<>>& opcodes() {
    static const auto* const table = [] {
        auto* all = new std::map<std::string, Opcode, std::less<>>;
        const std::string compare = "LT EQ LE GT NE GE AND OR XOR ";
        const std::string floats = compare + "NUM NAN LTU EQU LEU GTU NEU GEU";
        const std::string sizes = "U8 S8 U16 S16 64 128 ";
        auto add = [&](const char* names, Run run, Unit unit, const std::string& modifiers = "",
                       Access access = Access::none) {
            std::stringstream list(names);
            for (std::string name; list >> name;) {
                (*all)[name] = {run, name[0] == 'U' ? Unit::uniform : unit, access, modifiers_of(modifiers)};
            }
        };
        add("NOP", run_nop, Unit::control);
        add("MOV UMOV", run_mov, Unit::alu, "64");
        add("R2UR", run_mov, Unit::alu);
        add("IMAD UIMAD", run_imad, Unit::fma, "MOV U32 IADD SHL WIDE HI X");
        add("IADD3", run_iadd3, Unit::alu, "X");
        add("UIADD3", run_iadd3, Unit::alu, "X 64");
        add("VIADD", run_iadd, Unit::alu);
        add("IADD", run_iadd, Unit::alu, "64");
        add("LEA ULEA", run_lea, Unit::alu, "HI X SX32");
        add("IMNMX", run_min_max, Unit::alu, "U32 U64 S64");
        add("VIMNMX UVIMNMX", run_min_max, Unit::alu, "U32 S32 U16x2");
        add("VIADDMNMX", run_add_min_max, Unit::alu, "U32");
        add("POPC UPOPC", run_popc, Unit::xu);
        add("FLO UFLO", run_flo, Unit::xu, "U32 SH");
        add("IABS", run_iabs, Unit::alu);
        add("LOP3 ULOP3", run_lop3, Unit::alu, "LUT");
        add("PLOP3 UPLOP3", run_plop3, Unit::alu, "LUT");
        add("SHF USHF", run_shf, Unit::alu, "L R W HI U32 S32 U64 S64");
        add("SEL USEL", run_sel, Unit::alu, "64");
        add("ISETP UISETP", run_isetp, Unit::alu, compare + "U32 U64 S64 EX");
        add("PRMT UPRMT", run_prmt, Unit::alu);
        add("SGXT USGXT", run_sgxt, Unit::alu, "U32");
        add("BREV UBREV", run_brev, Unit::xu);
        add("R2P", run_r2p, Unit::alu);
        add("P2R", run_p2r, Unit::alu);
        add("FADD", run_fadd, Unit::fma, "FTZ");
        add("FMUL", run_fmul, Unit::fma, "RZ");
        add("FFMA", run_ffma, Unit::fma, "RM RP RZ");
        add("FCHK", run_fchk, Unit::alu);
        add("FSEL", run_fsel, Unit::alu);
        add("FMNMX FMNMX3", run_fmnmx, Unit::alu, "NAN");
        add("FSETP", run_fsetp, Unit::alu, floats + " FTZ");
        add("DSETP", run_dsetp, Unit::fp64, floats);
        add("DADD", run_dadd, Unit::fp64);
        add("DMUL", run_dmul, Unit::fp64);
        add("DFMA", run_dfma, Unit::fp64);
        add("MUFU", run_mufu, Unit::xu, "RCP RSQ");
        add("HADD2", run_hadd2, Unit::half, "F32");
        add("HMUL2", run_hmul2, Unit::half);
        add("HMNMX2 VHMNMX", run_hmnmx2, Unit::alu, "NAN");
        add("HFMA2", run_hfma2, Unit::fma, "MMA");
        add("I2F UI2F", run_i2f, Unit::xu, "F64 U8 S8 U16 S16 U32 U64 S64 RP RZ");
        add("I2FP", run_i2f, Unit::alu, "F32 S32 U32");
        add("F2I", run_f2i, Unit::xu, "FTZ TRUNC NTZ F64 U32 U64 S64");
        add("F2F", run_f2f, Unit::xu, "F64 F32 F16 RZ");
        add("F2FP", run_f2fp, Unit::alu, "F16 BF16 F32 E4M3 E5M2 PACK_AB PACK_AB_MERGE_C UNPACK_B SATFINITE");
        add("LD LDG", run_load, Unit::memory, sizes + "E SYS CONSTANT NA", Access::table);
        add("ST STG", run_store, Unit::memory, sizes + "E SYS STRONG SM EF", Access::store);
        add("LDL", run_local, Unit::memory, sizes + "LU", Access::local);
        add("STL", run_local, Unit::memory, sizes, Access::local);
        add("LDS STS", run_shared, Unit::memory, sizes, Access::shared);
        add("LDC ULDC LDCU", run_ldc, Unit::memory, sizes);
        add("CS2R", run_cs2r, Unit::alu, "32");
        add("S2R S2UR", run_s2r, Unit::xu);
        add("SHFL", run_shfl, Unit::memory, "IDX UP DOWN BFLY");
        add("VOTE VOTEU", run_vote, Unit::alu, "ALL ANY EQ");
        add("BRA", run_bra, Unit::control, "DIV U");
        add("BRX", run_brx, Unit::control);
        add("CALL", run_call, Unit::control, "REL NOINC");
        add("RET", run_ret, Unit::control, "REL NODEC");
        add("EXIT", run_exit, Unit::control);
        add("BSSY", run_bssy, Unit::control, "RECONVERGENT RELIABLE");
        add("BSYNC", run_bsync, Unit::control, "RECONVERGENT RELIABLE");
        add("BREAK", run_break, Unit::control, "RELIABLE");
        // Lanes that met at one with COLLECTIVE part again behind ENDCOLLECTIVE, where they would go on together anyway.
        add("WARPSYNC", run_warpsync, Unit::control, "ALL COLLECTIVE");
        add("ENDCOLLECTIVE", run_nop, Unit::control);
        add("BMOV", run_bmov, Unit::control, "32 CLEAR");
        add("BAR", run_bar, Unit::control, "SYNC DEFER_BLOCKING");
        return all;
    }();
    return *table;
}

Compare compare_of(const Instruction& in) {
    static constexpr std::pair<Mod, Compare> all[] = {
        {Mod::LT, Compare::lt},   {Mod::EQ, Compare::eq},   {Mod::LE, Compare::le},   {Mod::GT, Compare::gt},
        {Mod::NE, Compare::ne},   {Mod::GE, Compare::ge},   {Mod::NUM, Compare::num}, {Mod::is_nan, Compare::nan},
        {Mod::LTU, Compare::ltu}, {Mod::EQU, Compare::equ}, {Mod::LEU, Compare::leu}, {Mod::GTU, Compare::gtu},
        {Mod::NEU, Compare::neu}, {Mod::GEU, Compare::geu},
    };
    for (auto [mod, compare] : all) {
        if (in.has(mod)) return compare;
    }
    return Compare::never;
}

}  // namespace

std::string opcode_table() {
    std::string text;
    for (auto& [name, opcode] : opcodes()) {
        text += name;
        for (auto& [modifier, mod] : modifier_names()) {
            if (opcode.known[size_t(mod)]) text += " " + modifier;
        }
        text += '\n';
    }
    return text;
}

void find_opcode(Instruction& in, std::string_view text) {
    std::string_view name = text.substr(0, text.find('.'));
    auto found = opcodes().find(name);
    if (found == opcodes().end()) throw Unsupported("the opcode " + std::string(name));
    const Opcode& opcode = found->second;
    for (size_t point = text.find('.'); point != std::string_view::npos;) {
        size_t next = text.find('.', point + 1);
        auto modifier = text.substr(point + 1, next - point - 1);
        auto known = modifier_names().find(modifier);
        if (known == modifier_names().end() || !opcode.known[size_t(known->second)])
            throw Unsupported("the modifier " + std::string(modifier) + " of " + std::string(name));
        in.modifiers.set(size_t(known->second));
        point = next;
    }
    in.run = opcode.run;
    in.unit = opcode.unit;
    in.access = opcode.access;
    if (in.access == Access::table && in.has(Mod::CONSTANT)) in.access = Access::sample;
    in.bytes = in.has(Mod::U8) || in.has(Mod::S8)     ? 1
               : in.has(Mod::U16) || in.has(Mod::S16) ? 2
               : in.has(Mod::b64)                     ? 8
               : in.has(Mod::b128)                    ? 16
                                                      : 4;
    in.is_signed = !in.has(Mod::U32) && !in.has(Mod::U64);
    in.compare = compare_of(in);
}

}  // namespace cudasim::device_code
