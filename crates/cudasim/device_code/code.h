// Machine code of a cubin, decoded: what the emulator runs.
#pragma once

#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace cudasim::device_code {

/// A set of a warp's lanes.
using Lanes = uint32_t;
constexpr Lanes kAllLanes = ~0u;

/// A cubin, listing or instruction that cannot be run as it is.
struct Unsupported : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Machine code did what no GPU allows, or what the emulator does not know: `run` ends the program.
struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Modifiers: what follows an opcode behind points. One that is not in this list, or not in that of its
// opcode, is not known, and an instruction that has it is refused when it is reached.
#define CUDASIM_MODIFIERS(X)                                                                       \
    X(ALL) X(AND) X(ANY) X(BF16) X(BFLY) X(CLEAR) X(COLLECTIVE) X(CONSTANT) X(DEFER_BLOCKING) X(DIV) X(DOWN) X(E) \
    X(E4M3) X(E5M2) X(EF) X(EQ) X(EQU) X(EX) X(F16) X(F32) X(F64) X(FTZ) X(GE) X(GEU) X(GT)        \
    X(GTU) X(HI) X(IADD) X(IDX) X(L) X(LE) X(LEU) X(LT) X(LTU) X(LU) X(LUT) X(MMA) X(MOV) X(NA)    \
    X(NE) X(NEU) X(NODEC) X(NOINC) X(NTZ) X(NUM) X(OR) X(PACK_AB) X(PACK_AB_MERGE_C) X(R) X(RCP)   \
    X(RECONVERGENT) X(REL) X(RELIABLE) X(RM) X(RP) X(RSQ) X(RZ) X(S16) X(S32) X(S64) X(S8) X(SATFINITE) X(SH)   \
    X(SHL) X(SM) X(STRONG) X(SX32) X(SYNC) X(SYS) X(TRUNC) X(U) X(U16) X(U16x2) X(U32) X(U64)      \
    X(U8) X(UNPACK_B) X(UP) X(W) X(WIDE) X(X) X(XOR)

enum class Mod : uint8_t {
#define X(name) name,
    CUDASIM_MODIFIERS(X)
#undef X
    is_nan, b32, b64, b128,  ///< NAN, 32, 64, 128
    count
};
using Modifiers = std::bitset<size_t(Mod::count)>;

enum class Kind : uint8_t {
    none,
    reg,         ///< a register of each lane
    uniform,     ///< one of the warp
    pred,        ///< a predicate of each lane
    upred,       ///< one of the warp
    preds,       ///< all predicates of a lane
    immediate,   ///< in the instruction
    constant,    ///< c[bank][offset], or c[bank][register + offset]
    memory,      ///< [register + uniform + offset]
    barrier,     ///< a set of lanes that meet: B0 to B15
    special,     ///< S2R's
    label,       ///< in the same kernel
};

/// Registers that read as zero and predicates that read as true.
constexpr uint16_t kZero = 255, kTrue = 7;

enum class Special : uint16_t { tid_x, tid_y, tid_z, ctaid_x, ctaid_y, ctaid_z, laneid, zero };

struct Operand {
    Kind kind = Kind::none;
    uint16_t index = 0;       ///< number of the register, predicate or barrier; the Special
    bool negative = false;    ///< -x
    bool absolute = false;    ///< |x|
    bool inverted = false;    ///< ~x, !p
    int8_t part = -1;         ///< a byte of the register (B0: 0), or -1
    int8_t half = -1;         ///< a half of it (H1: 1), or -1
    bool wide = false;        ///< .64: a pair of registers
    uint8_t bank = 0;         ///< bank of constants
    uint16_t uniform = kZero; ///< memory: the pair added to the address
    int64_t value = 0;        ///< immediate; offset of a constant or address; number of an instruction
    uint32_t bits = 0;        ///< immediate: the 32 bits that are in the instruction
};

struct Warp;
struct Instruction;
using Run = void (*)(Warp&, const Instruction&, Lanes active);

enum class Unit : uint8_t { alu, fma, xu, fp64, memory, control, uniform, half, count };
extern const char* const unit_names[size_t(Unit::count)];

enum class Compare : uint8_t { lt, eq, le, gt, ne, ge, num, nan, ltu, equ, leu, gtu, neu, geu, never };

/// The memory access of an instruction.
enum class Access : uint8_t {
    none,
    table,   ///< a load that may see what is written: of tables
    sample,  ///< a load through the read-only path: of samples
    store,
    local,   ///< registers that were spilled
    shared,
    count
};
extern const char* const access_names[size_t(Access::count)];

struct Instruction {
    Run run = nullptr;  ///< null: not known
    Unit unit = Unit::alu;
    Compare compare = Compare::never;
    Access access = Access::none;
    uint8_t bytes = 4;      ///< that a lane loads or stores
    uint8_t num_operands = 0;
    uint8_t guard = kTrue;  ///< the predicate under which it is run
    bool guard_inverted = false, guard_uniform = false;
    bool is_signed = true;  ///< no .U32, .U64
    Modifiers modifiers;
    Operand operands[9];
    /// The scheduling that ptxas encodes: cycles to wait before the next, barriers set and waited for.
    uint8_t stall = 0, sets_on_write = 7, sets_on_read = 7, waits_for = 0;
    uint32_t at = 0;        ///< its number in the kernel
    uint64_t low = 0, high = 0;
    std::string text, why_not, line;

    bool has(Mod mod) const { return modifiers[size_t(mod)]; }
    const Operand& operator[](size_t i) const { return operands[i]; }
};

struct Parameter {
    uint32_t offset, bytes;
};

struct Kernel {
    std::string name;
    std::vector<Instruction> code;
    std::map<uint8_t, std::vector<char>> constants;  ///< by bank; bank 0 is that of a launch
    uint32_t first_parameter = 0;  ///< offset in bank 0
    uint32_t parameter_bytes = 0;
    std::vector<Parameter> parameters;
    uint32_t registers = 0, frame_bytes = 0, shared_bytes = 0, code_bytes = 0;
    bool has_barriers = false;
    std::map<std::string, uint32_t> labels;
    std::vector<uint64_t> executed;  ///< how often each instruction was issued since the beginning
    std::vector<uint64_t> lanes;     ///< by how many lanes, all in all
};

struct Image {
    uint32_t arch = 0;  ///< 90 for sm_90
    std::map<std::string, Kernel> kernels;
};

/// Reads a cubin, without its instructions' meaning. Throws an Unsupported.
Image read_cubin(const std::string& path);
/// Adds the meaning from nvdisasm's listing of the same cubin. Throws an Unsupported where the two differ.
void read_listing(const std::string& path, Image& image);
/// One instruction as nvdisasm writes it, `low` and `high` being its bits. If it is not known, `run` is null and `why_not` says
/// why.
Instruction parse(const std::string& text, uint64_t low, uint64_t high,
                  const std::map<std::string, uint32_t>& labels);
/// A line for each opcode, with the modifiers that it may have; for tests.
std::string opcode_table();
/// Finds what an instruction does by its opcode and modifiers. Throws an Unsupported if one of them is not known.
void find_opcode(Instruction& instruction, std::string_view opcode);

}  // namespace cudasim::device_code
