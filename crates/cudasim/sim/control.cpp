// The way into every call (counting, tracing, injected and sticky errors), and the functions by
// which tests control the simulator. The latter are no driver calls: never counted, never failing.

#include <pthread.h>
#include <stdarg.h>
#include <unistd.h>

#include "sim.h"

#define CONTROL extern "C" __attribute__((visibility("default")))

namespace cudasim {

std::mutex global;

struct Fault {
    std::string name;  // empty: any function
    uint64_t remaining;
    CUresult code;
};

/// Guarded by a lock of its own, since notes are taken with and without `global`.
static struct Control {
    std::mutex mutex;
    std::vector<Fault> faults;
    uint64_t calls = 0;
    bool tracing = false;
    std::vector<std::string> trace;
    uint64_t most_blocks = 0;  // blocks of the largest launch since the trace began
    std::vector<std::string> misuses;
}& control = *new Control;

static std::atomic<bool> initialized, forked;

bool usable() { return initialized && !forked; }

void set_initialized() {
    if (!initialized.exchange(true)) pthread_atfork(nullptr, nullptr, [] { forked = true; });
}

uintptr_t new_handle() {
    static std::atomic<uintptr_t> next{0x1000};
    return next += 0x10;
}

void misuse(const char* format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    std::lock_guard lock(control.mutex);
    control.misuses.push_back(text);
}

/// The codes after which the documentation says that the context, or the process, is lost.
static bool is_sticky(CUresult code) {
    switch (code) {
        case CUDA_ERROR_CONTAINED:
        case CUDA_ERROR_ILLEGAL_ADDRESS:
        case CUDA_ERROR_LAUNCH_TIMEOUT:
        case CUDA_ERROR_ASSERT:
        case CUDA_ERROR_HARDWARE_STACK_ERROR:
        case CUDA_ERROR_ILLEGAL_INSTRUCTION:
        case CUDA_ERROR_MISALIGNED_ADDRESS:
        case CUDA_ERROR_INVALID_ADDRESS_SPACE:
        case CUDA_ERROR_INVALID_PC:
        case CUDA_ERROR_LAUNCH_FAILED:
        case CUDA_ERROR_TENSOR_MEMORY_LEAK: return true;
        default: return false;
    }
}

static CUresult injected(const char* name) {
    CUresult code = CUDA_SUCCESS;
    std::erase_if(control.faults, [&](Fault& fault) {
        if (!fault.name.empty() && fault.name != name) return false;
        if (--fault.remaining) return false;
        code = fault.code;
        return true;
    });
    return code;
}

thread_local const char* current_call = "nothing";

void note_blocks(unsigned blocks) {
    std::lock_guard lock(control.mutex);
    control.most_blocks = std::max<uint64_t>(control.most_blocks, blocks);
}

CUresult enter(const char* name, const void* handle) {
    current_call = name;
    if (forked) return CUDA_ERROR_NOT_INITIALIZED;
    std::lock_guard lock(control.mutex);
    control.calls++;
    if (control.tracing) {
        char text[96];
        if (handle)
            snprintf(text, sizeof text, "%s %p", name, handle);
        else
            snprintf(text, sizeof text, "%s", name);
        control.trace.push_back(text);
    }
    if (in_host_function) {
        control.misuses.push_back(std::string(name) + " in a host function");
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (!initialized && strcmp(name, "cuInit") != 0 && strcmp(name, "cuDriverGetVersion") != 0)
        return CUDA_ERROR_NOT_INITIALIZED;
    return injected(name);
}

CUresult enter(const char* name, const void* handle, Context*& context) {
    CUresult code = enter(name, handle);
    if (!usable()) return code;
    context = context_stack.empty() ? nullptr : context_of(context_stack.back());
    if (!context) return code ? code : CUDA_ERROR_INVALID_CONTEXT;
    if (!context->active) {
        context = nullptr;
        return code ? code : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    std::lock_guard lock(control.mutex);
    if (context->sticky) return context->sticky;
    if (is_sticky(code)) context->sticky = code;
    return code;
}

/// The texts as one string of lines, to be freed by the caller with free().
static char* lines_of(std::vector<std::string>& texts) {
    std::string all;
    for (auto& text : texts) all += text + '\n';
    texts.clear();
    return strdup(all.c_str());
}

void clear_sticky(Context& context) {
    std::lock_guard lock(control.mutex);
    context.sticky = CUDA_SUCCESS;
}

void set_delay(long bound_us);
void set_seed(uint64_t seed);
void reset_delays();

}  // namespace cudasim

using namespace cudasim;

CONTROL void cudasim_set_seed(uint64_t seed) { set_seed(seed); }
/// Kernels have stale copies of the page-locked memory that is allocated from here on, as under confidential computing.
CONTROL void cudasim_set_confidential(int on) { confidential = on; }
CONTROL void cudasim_set_delay_us(uint64_t bound) { set_delay(bound); }

/// The k-th call from now on, counted from 1, fails with `code`; `name`: of that function, or null.
CONTROL void cudasim_fail(const char* name, uint64_t k, unsigned code) {
    std::lock_guard lock(control.mutex);
    if (k) control.faults.push_back({name ? name : "", k, CUresult(code)});
}

CONTROL uint64_t cudasim_pending_faults() {
    std::lock_guard lock(control.mutex);
    return control.faults.size();
}

CONTROL void cudasim_clear_faults() {
    {
        std::lock_guard lock(control.mutex);
        control.faults.clear();
    }
    for (int i = 0; i < num_devices(); i++) clear_sticky(context_at(i));
    ignore_wait(0);
}

CONTROL uint64_t cudasim_calls() {
    std::lock_guard lock(control.mutex);
    return control.calls;
}

CONTROL void cudasim_trace(int on) {
    std::lock_guard lock(control.mutex);
    control.tracing = on;
    control.trace.clear();
    control.most_blocks = 0;
}

CONTROL uint64_t cudasim_most_blocks() {
    std::lock_guard lock(control.mutex);
    return control.most_blocks;
}

CONTROL char* cudasim_take_trace() {
    std::lock_guard lock(control.mutex);
    return lines_of(control.trace);
}

CONTROL char* cudasim_take_errors() {
    std::lock_guard lock(control.mutex);
    return lines_of(control.misuses);
}

CONTROL void cudasim_free(void* text) { free(text); }

CONTROL void cudasim_ignore_wait(uint64_t n) { ignore_wait(n); }
CONTROL uint64_t cudasim_waits() { return num_waits(); }
CONTROL void cudasim_hold() { hold_streams(true); }
CONTROL void cudasim_release() { hold_streams(false); }

CONTROL int cudasim_pause(CUstream handle, int paused) {
    Guard guard(global);
    auto stream = streams.find(handle);
    if (stream) set_paused(*stream, paused);
    return stream != nullptr;
}

/// The next stream that is created gets this handle, which is that of a destroyed one.
CONTROL void cudasim_recycle(CUstream handle) { recycle_handle(handle); }

CONTROL void cudasim_synchronize_all() {
    for (int i = 0; i < num_devices(); i++) wait_for_all(&context_at(i));
}

/// Waits for all work, then looks for writes outside allocations and to freed memory.
CONTROL void cudasim_check_memory() {
    cudasim_synchronize_all();
    Guard guard(global);
    check_memory();
}

/// The objects that exist now. The order of the fields is that of `Live` in src/lib.rs.
struct Live {
    uint64_t device_allocations, device_bytes, pooled_bytes, pinned_allocations, pinned_bytes,
        registered, pools, streams, events, graphs, graph_execs, modules, contexts;
};

CONTROL void cudasim_live(Live* live) {
    Guard guard(global);
    *live = {};
    for (auto& [address, memory] : allocations) {
        if (memory.kind == MemoryKind::registered) {
            live->registered++;
        } else if (memory.kind == MemoryKind::pinned) {
            live->pinned_allocations++;
            live->pinned_bytes += memory.size;
        } else {
            live->device_allocations++;
            live->device_bytes += memory.size;
        }
    }
    live->pooled_bytes = pooled_bytes();
    live->pools = num_pools();
    live->streams = streams.count();
    live->events = events.count();
    live->graphs = graphs.count();
    live->graph_execs = num_graph_execs();
    live->modules = num_modules();
    for (int i = 0; i < num_devices(); i++)
        live->contexts += context_at(i).active;
}

/// Everything that the functions above set goes back to its default; objects stay.
CONTROL void cudasim_reset() {
    cudasim_release();
    {
        Guard guard(global);
        for (auto& [handle, stream] : streams.all) set_paused(*stream, false);
    }
    cudasim_clear_faults();
    cudasim_trace(0);
    free(cudasim_take_errors());
    {
        std::lock_guard lock(control.mutex);
        control.calls = 0;
    }
    confidential = false;
    reset_delays();
}
