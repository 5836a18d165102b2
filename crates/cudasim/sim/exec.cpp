// Kernels: a loop over the threads of a block, or a fiber per thread where barriers occur.

#include <setjmp.h>
#include <ucontext.h>

#include "sim.h"

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;

namespace cudasim {

thread_local Fiber* current;

static std::map<std::string, Kernel>& kernels() {
    static auto* table = new std::map<std::string, Kernel>;
    return *table;
}

void add(const char* name, Kernel kernel) { kernels()[name] = std::move(kernel); }

const Kernel* find_kernel(const std::string& name) {
    auto i = kernels().find(name);
    return i == kernels().end() ? nullptr : &i->second;
}

void die(const char* why) {
    fprintf(stderr, "cudasim: %s (block %u,%u,%u, thread %u,%u,%u)\n", why, blockIdx.x, blockIdx.y,
            blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    abort();
}

/// The reach of the launch that runs on this thread.
static thread_local device_code::Reach* reach;

void on_read(const void* p, size_t bytes) {
    if (!reach->may_read(uintptr_t(p), bytes)) die("a kernel reads outside of memory that is in use");
}

void on_write(const void* p, size_t bytes) {
    if (!reach->may_write(uintptr_t(p), bytes)) die("a kernel writes outside of memory that is in use");
    if (!reach->write_once(uintptr_t(p), bytes)) die("a kernel writes a byte for the second time");
}

enum class Wait { none, block, warp };

constexpr size_t kStackBytes = 1 << 16;

// swapcontext makes two system calls, so it only starts fibers; after that longjmp is enough.
// AddressSanitizer follows swapcontext and not the other.
#ifdef __SANITIZE_ADDRESS__
struct Switch {
    ucontext_t context;
    static void go(Switch& from, Switch& to) { swapcontext(&from.context, &to.context); }
    static void start(Switch& from, Switch& to) { go(from, to); }
};
#else
struct Switch {
    ucontext_t context;
    jmp_buf jump;
    static void go(Switch& from, Switch& to) {
        if (!_setjmp(from.jump)) _longjmp(to.jump, 1);
    }
    static void start(Switch& from, Switch& to) {
        if (!_setjmp(from.jump)) setcontext(&to.context);
    }
};
#endif

struct RunningFiber : Fiber {
    Switch place;
    std::unique_ptr<char[]> stack{new char[kStackBytes]};
    Wait waits;
    bool started, done;
};

struct Block {
    Switch home;  // the scheduler loop in run_fibers
    std::vector<std::unique_ptr<RunningFiber>> fibers;
    const Bound* kernel;
};

static void yield(Wait why) {
    if (!current->block) die("a kernel that is not marked `cudasim: fibers` uses a barrier");
    auto* fiber = static_cast<RunningFiber*>(current);
    fiber->waits = why;
    Switch::go(fiber->place, fiber->block->home);
}

void barrier() { yield(Wait::block); }
void warp_barrier() { yield(Wait::warp); }

const uint64_t* peek(unsigned lane) {
    if (!current->block) die("a kernel that is not marked `cudasim: fibers` uses a warp intrinsic");
    auto& fibers = current->block->fibers;
    size_t i = current->warp * 32 + (lane & 31);
    return i < fibers.size() && !fibers[i]->done ? &fibers[i]->slot : nullptr;
}

static void fiber_main() {
    auto* fiber = static_cast<RunningFiber*>(current);
    fiber->block->kernel->body();
    fiber->done = true;
    Switch::go(fiber->place, fiber->block->home);
}

static uint3 thread_at(unsigned i) {
    return {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
}

/// A kernel without barriers: a plain loop over the threads of the block, in either direction.
static void run_loop(const Bound& kernel, unsigned num_threads, bool backwards) {
    Fiber fiber{};
    current = &fiber;
    for (unsigned i = 0; i < num_threads; i++) {
        threadIdx = thread_at(backwards ? num_threads - 1 - i : i);
        kernel.body();
    }
    current = nullptr;
}

/// Lets every fiber of warp `warp` go on if all of its live lanes wait at a warp barrier.
static bool release_warp(Block& block, unsigned warp) {
    unsigned first = warp * 32, last = std::min<unsigned>(block.fibers.size(), first + 32);
    bool all = true, any = false;
    for (unsigned i = first; i < last; i++) {
        RunningFiber& fiber = *block.fibers[i];
        if (fiber.done) continue;
        any = true;
        all &= fiber.waits == Wait::warp;
    }
    if (!any || !all) return false;
    for (unsigned i = first; i < last; i++) block.fibers[i]->waits = Wait::none;
    return true;
}

static thread_local std::vector<std::unique_ptr<RunningFiber>> spare_fibers;

static std::unique_ptr<RunningFiber> new_fiber(Block& block, unsigned i) {
    std::unique_ptr<RunningFiber> fiber;
    if (spare_fibers.empty()) {
        fiber = std::make_unique<RunningFiber>();
    } else {
        fiber = std::move(spare_fibers.back());
        spare_fibers.pop_back();
    }
    fiber->tid = thread_at(i);
    fiber->lane = i & 31;
    fiber->warp = i >> 5;
    fiber->block = &block;
    fiber->waits = Wait::none;
    fiber->started = fiber->done = false;
    getcontext(&fiber->place.context);
    fiber->place.context.uc_stack.ss_sp = fiber->stack.get();
    fiber->place.context.uc_stack.ss_size = kStackBytes;
    fiber->place.context.uc_link = nullptr;
    makecontext(&fiber->place.context, fiber_main, 0);
    return fiber;
}

static void resume(Block& block, RunningFiber& fiber) {
    current = &fiber;
    threadIdx = fiber.tid;
    bool started = std::exchange(fiber.started, true);
    started ? Switch::go(block.home, fiber.place) : Switch::start(block.home, fiber.place);
}

/// A fiber per thread, run in turn until each is done; barriers release them in groups. The turn
/// goes either way, so that a thread may not count on its neighbours having been there before.
static void run_fibers(const Bound& kernel, unsigned num_threads, bool backwards) {
    Block block;
    block.kernel = &kernel;
    for (unsigned i = 0; i < num_threads; i++) block.fibers.push_back(new_fiber(block, i));

    for (;;) {
        bool progress = false;
        for (unsigned i = 0; i < num_threads; i++) {
            RunningFiber& fiber = *block.fibers[backwards ? num_threads - 1 - i : i];
            if (fiber.done || fiber.waits != Wait::none) continue;
            resume(block, fiber);
            progress = true;
        }
        for (unsigned warp = 0; warp * 32 < num_threads; warp++)
            progress |= release_warp(block, warp);

        // Threads that have returned are not waited for, as on a GPU since sm_70.
        bool live = false, all_at_barrier = true;
        for (auto& fiber : block.fibers) {
            if (fiber->done) continue;
            live = true;
            all_at_barrier &= fiber->waits == Wait::block;
        }
        if (!live) break;
        if (all_at_barrier) {
            for (auto& fiber : block.fibers) fiber->waits = Wait::none;
            progress = true;
        }
        if (!progress) die("barrier divergence (deadlock on a GPU)");
    }
    for (auto& fiber : block.fibers) spare_fibers.push_back(std::move(fiber));
}

void run_grid(const Bound& kernel, dim3 grid, dim3 block) {
    device_code::Reach of_launch(memory_in_use_at);
    reach = &of_launch;
    gridDim = grid;
    blockDim = block;
    unsigned num_threads = block.x * block.y * block.z;
    uint64_t num_blocks = uint64_t(grid.x) * grid.y * grid.z;
    // Blocks may run in any order: begin anywhere.
    uint64_t first = running ? running->random() % num_blocks : 0;
    for (uint64_t i = 0; i < num_blocks; i++) {
        uint64_t b = (first + i) % num_blocks;
        blockIdx = {unsigned(b % grid.x), unsigned(b / grid.x % grid.y),
                    unsigned(b / (uint64_t(grid.x) * grid.y))};
        bool backwards = running && running->random() & 1;
        (kernel.fibers ? run_fibers : run_loop)(kernel, num_threads, backwards);
    }
}

}  // namespace cudasim
