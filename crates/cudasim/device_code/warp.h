// A warp while it runs: registers of 32 lanes, predicates, and which lanes are where.
#pragma once

#include <bit>
#include <cstring>
#include <utility>

#include "code.h"
#include "count.h"

namespace cudasim::device_code {

/// One 32-bit value of each lane.
struct alignas(64) Vector {
    uint32_t lane[32];
    uint32_t& operator[](size_t i) { return lane[i]; }
    uint32_t operator[](size_t i) const { return lane[i]; }
};

/// One 64-bit value of each lane.
struct alignas(64) Pairs {
    uint64_t lane[32];
    uint64_t& operator[](size_t i) { return lane[i]; }
    uint64_t operator[](size_t i) const { return lane[i]; }
};

struct alignas(64) Doubles {
    double lane[32];
    double operator[](size_t i) const { return lane[i]; }
};

/// Calls `f` for lanes 0 to 31, whether they are active or not.
template <class F>
inline void for_lanes(const F& f) {
    for (int lane = 0; lane < 32; lane++) f(lane);
}

/// The lanes for which `f` holds.
template <class F>
inline Lanes lanes_where(const F& f) {
    Lanes lanes = 0;
    for (int lane = 0; lane < 32; lane++) lanes |= Lanes(bool(f(lane))) << lane;
    return lanes;
}

struct Dim3 {
    uint32_t x, y, z;
};

class Trace;

/// The state that the warps of a block share.
struct BlockState {
    const Kernel* kernel;
    const std::vector<char>* bank0;  ///< constants of the launch, parameters among them
    Dim3 dim, index;
    std::vector<char> shared;
    Trace* trace = nullptr;  ///< trace of what is executed, if one is asked for
};

/// Bytes that a kernel may touch.
class Reach;

struct Warp {
    /// Lanes that go on together.
    struct Group {
        uint32_t at;
        Lanes lanes;
        uint16_t barrier = 0;  ///< barrier that they wait at
        Lanes met = 0;         ///< with whom, for WARPSYNC
    };
    static constexpr uint16_t kWarpSync = 16, kBlock = 17;

    alignas(64) uint32_t registers[256][32];
    Lanes predicates[8];
    uint32_t uniform[256];
    bool uniform_predicates[8];
    Lanes barriers[16][32];  ///< by the lane that waits
    Lanes live;
    uint32_t first_thread;
    uint32_t current = 0;  ///< the instruction that runs
    std::vector<Group> ready;  ///< the last one runs
    std::vector<Group> waiting;
    std::vector<uint32_t> local;  ///< 32 words for each word of a lane's
    BlockState* block;
    Reach* reach;
    Counts* counts;
    /// The memory that the last instruction touched, for the model of time and for traces.
    Touched touched;

    /// Makes it the warp of threads from `thread` on, of which the block has `num_threads` left.
    /// The kernel's registers and local memory are 0xDD bytes, predicates false but PT; nothing else that it may read stays of an
    /// earlier warp.
    void reset(BlockState& of, uint32_t thread, uint32_t num_threads, Reach& may_touch, Counts& to);
    /// Whether all lanes have ended.
    bool done() const { return ready.empty() && waiting.empty(); }
    /// Whether all lanes that have not ended wait at the barrier of the block; false if all have
    /// ended.
    bool at_block_barrier() const;
    /// Lets all waiting lanes go on; each warp of the block is at the barrier or has ended.
    void leave_block_barrier();
    /// Runs one instruction of the running group, counts it, and returns it. There is a group that is ready. Throws a Failure at
    /// the end of the code, and at an instruction that is not known.
    const Instruction& step();
    /// Lets lanes go on whose barriers are complete. A Failure if lanes meet at two places, or if
    /// none is ready and some wait at another barrier than that of the block.
    void release();

    /// `bytes` bytes, at most 4, of a constant bank; a Failure if it has fewer.
    uint32_t constant(uint8_t bank, int64_t offset, unsigned bytes = 4) const;
    /// The lanes for which a predicate holds, after its inversion; a Failure for another operand.
    Lanes predicate(const Operand& operand) const;
    /// An operand without its sign; as integers, negated or inverted as it says; as floats, with
    /// magnitude and sign as it says. An immediate has its sign already. `word` 1: the second of a
    /// pair. The result may be in `scratch`, or the register itself. A Failure for an operand that is
    /// no number.
    const Vector& raw(const Operand& operand, Vector& scratch, int word = 0) const;
    const Vector& integers(const Operand& operand, Vector& scratch) const;
    const Vector& floats(const Operand& operand, Vector& scratch) const;
    /// 64 bits of each lane: a pair of registers or constants, or an immediate, changed as by
    /// integers(); as doubles, as by floats(), of which an immediate is the upper 32 bits.
    Pairs pairs(const Operand& operand) const;
    Doubles doubles(const Operand& operand) const;

    /// Writes a register or predicate of the active lanes; one of the warp gets the first active lane's value. Nothing for RZ and
    /// PT; a Failure for another kind of operand.
    void put(const Operand& operand, Lanes active, const Vector& value, int word = 0);
    void put(const Operand& operand, Lanes active, const Pairs& value);
    void put(const Operand& operand, Lanes active, Lanes value);

    /// Throws a Failure that says where.
    [[noreturn]] void fail(const std::string& why) const;
    const Kernel& kernel() const { return *block->kernel; }
};

inline float as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t as_bits(float value) { return std::bit_cast<uint32_t>(value); }
/// The end of the frames of local memory: the first stack pointer of a thread.
constexpr uint32_t kStackTop = 0xFFFDC0;
/// The NaN that the units return for any NaN.
constexpr uint32_t kNan32 = 0x7FFFFFFF;

// The instructions: integer.cpp, logic.cpp, floating.cpp, convert.cpp, flow.cpp, access.cpp.
#define CUDASIM_RUNS(X)                                                                            \
    X(run_nop) X(run_mov) X(run_imad) X(run_iadd3) X(run_iadd) X(run_lea) X(run_min_max)           \
    X(run_add_min_max) X(run_popc) X(run_flo) X(run_iabs) X(run_lop3) X(run_plop3) X(run_shf)      \
    X(run_sel) X(run_isetp) X(run_prmt) X(run_sgxt) X(run_brev) X(run_r2p) X(run_p2r)              \
    X(run_fadd) X(run_fmul) X(run_ffma) X(run_fsel) X(run_fsetp) X(run_dsetp) X(run_dadd)          \
    X(run_dmul) X(run_dfma) X(run_mufu) X(run_hadd2) X(run_hmul2) X(run_hfma2) X(run_i2f)          \
    X(run_f2i) X(run_f2f) X(run_f2fp) X(run_load) X(run_store) X(run_local) X(run_shared)          \
    X(run_ldc) X(run_cs2r) X(run_s2r) X(run_shfl) X(run_vote) X(run_bra) X(run_brx) X(run_call)    \
    X(run_ret) X(run_exit) X(run_bssy) X(run_bsync) X(run_break) X(run_warpsync) X(run_bmov)       \
    X(run_bar) X(run_fchk) X(run_fmnmx) X(run_hmnmx2)
#define X(name) void name(Warp&, const Instruction&, Lanes);
CUDASIM_RUNS(X)
#undef X

}  // namespace cudasim::device_code
