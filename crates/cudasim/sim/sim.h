// Declarations that the files of the simulator share: contexts, streams, events, memory, the entry of a call.
#pragma once

// Every name as libcuda exports it, none redirected to a newer one.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../device_code/reach.h"
#include "cudasim.h"

#define API extern "C" __attribute__((visibility("default"))) CUresult

namespace cudasim {

using Clock = std::chrono::steady_clock;
using Random = std::mt19937_64;
using Operation = std::function<void()>;

struct Context;
struct Stream;
struct Capture;
using StreamPtr = std::shared_ptr<Stream>;
using CapturePtr = std::shared_ptr<Capture>;

/// Guards every table. Never held while waiting for a stream, whose operations may take it.
extern std::mutex global;
using Guard = std::unique_lock<std::mutex>;

// ---- the way into a call (control.cpp) -------------------------------------------------------

/// Counts and traces a call; gives the code it must return at once, if any. `handle`: its stream.
CUresult enter(const char* name, const void* handle = nullptr);
/// The same for a call that needs a current context, whose sticky error goes first. `context` is null if there is none that
/// lives.
CUresult enter(const char* name, const void* handle, Context*& context);
/// Notes a use that is wrong whatever the timing; tests ask for the list.
void misuse(const char* format, ...) __attribute__((format(printf, 1, 2)));
/// Notes how many blocks a launch has: the most since the trace began are kept.
void note_blocks(unsigned blocks);
/// The function that this thread has called last.
extern thread_local const char* current_call;
/// False before cuInit and in a child forked after it: nothing may be touched.
bool usable();

#define ENTER() \
    if (CUresult code = enter(__func__)) return code
#define ENTER_CONTEXT(context, handle) \
    Context* context;                  \
    if (CUresult code = enter(__func__, handle, context)) return code
/// Enters a call that releases something: an injected or sticky error does not keep it from that, as a real driver
/// reports earlier faults there. So a leak is the caller's in every run.
#define ENTER_RELEASE(context, handle)                   \
    Context* context = nullptr;                          \
    CUresult code = enter(__func__, handle, context);    \
    if (!usable() || !context) return code

/// Objects by handle. A handle is a number that is never used twice, so that a stale one shows. Tables are never destroyed, nor other
/// globals: streams may still run when the process ends.
template <class Handle, class T>
struct Table {
    std::map<Handle, std::shared_ptr<T>> all;

    Handle add(std::shared_ptr<T> object);
    std::shared_ptr<T> find(Handle handle) const {
        auto i = all.find(handle);
        return i == all.end() ? nullptr : i->second;
    }
    std::shared_ptr<T> remove(Handle handle) {
        auto node = all.extract(handle);
        return node.empty() ? nullptr : node.mapped();
    }
    void remove_of(const Context* context) {
        std::erase_if(all, [&](auto& entry) { return entry.second->context == context; });
    }
    size_t count() const { return all.size(); }
};

/// One that no object has had; any thread may call it.
uintptr_t new_handle();

template <class Handle, class T>
Handle Table<Handle, T>::add(std::shared_ptr<T> object) {
    Handle handle = (Handle)new_handle();
    all[handle] = std::move(object);
    return handle;
}

// ---- contexts (device.cpp) -------------------------------------------------------------------

/// A device's primary context.
struct Context {
    int device;
    uint64_t id = 0;  // number of this life of the context
    bool active = false;
    unsigned retained = 0;
    unsigned flags = 0;
    CUresult sticky = CUDA_SUCCESS;  // guarded by control.cpp's lock
    StreamPtr legacy;
    std::map<std::thread::id, StreamPtr> per_thread;
    std::vector<std::weak_ptr<Stream>> draining;  // destroyed with work pending
};

extern thread_local std::vector<CUcontext> context_stack;
/// The context of a device below 4, active or not.
Context& context_at(int device);
/// Null for an unknown handle.
Context* context_of(CUcontext handle);
/// Null for null; the same in every life of the context.
CUcontext handle_of(const Context* context);
/// A variable of the environment as a number, 0 if it is none; `otherwise` if it is not set.
long setting(const char* name, long otherwise);
/// Settings by variables of the environment, read once: 0 to 4 devices, the bytes of each; 90 for sm_90; 13010
/// for CUDA 13.1.
int num_devices();
size_t device_memory();
int compute_capability();
int num_multiprocessors();
int driver_version();

// ---- streams and events (stream.cpp, event.cpp) ----------------------------------------------

/// A point in a stream: what an event captures when it is recorded. Without a stream it is reached from the beginning.
struct Ticket {
    StreamPtr stream;
    uint64_t number = 0;

    bool reached() const;
    void wait() const;
};

/// A queue and the thread that empties it. Operations are numbered from 1 in order of submission.
struct Stream : std::enable_shared_from_this<Stream> {
    Context* const context;
    const unsigned flags;
    const int priority;
    /// Never that of another stream, unlike a handle.
    const uint64_t id;
    CapturePtr capture;  // guarded by `global`
    bool paused = false;

    Stream(Context* context, unsigned flags, int priority);
    bool blocking() const { return !(flags & CU_STREAM_NON_BLOCKING); }
    /// Queues an operation, without the rules of `submit`, and returns its number.
    uint64_t push(Operation operation);
    /// Waits until the operation of this number is done; `global` is not held.
    void wait(uint64_t number);
    /// Whether that operation is done, without waiting.
    bool reached(uint64_t number);
    /// The end of what has been queued so far.
    Ticket last();
    /// Lets the thread end once the queue is empty.
    void close();
    /// Draws the next seed, if no work is left.
    void reseed();

    Random random;  // used by the stream's thread

  private:
    void run();

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Operation> queue;
    uint64_t submitted = 0, finished = 0;
    bool started = false, closing = false;
};

/// The stream whose thread this is, or null.
extern thread_local Stream* running;
/// Whether this thread is inside a host function, which may not call CUDA.
extern thread_local bool in_host_function;

extern Table<CUstream, Stream>& streams;
/// The next stream gets the handle of a destroyed one, as a real driver may have it.
void recycle_handle(CUstream handle);
/// Finds the stream of a handle, default streams included. An unknown handle is noted as misuse. `global` is held.
CUresult find_stream(CUstream handle, Context* current, StreamPtr& stream);
#define ENTER_STREAM(context, stream, handle) \
    ENTER_CONTEXT(context, handle);           \
    Guard guard(global);                      \
    StreamPtr stream;                         \
    if (CUresult unknown = find_stream(handle, context, stream)) return unknown
/// Queues an operation by the legacy rule and sets `ticket` to its end; or, while the stream is captured, makes a node of it
/// and leaves `ticket` as it is. `global` is held.
CUresult submit(const StreamPtr& stream, Operation operation, Ticket* ticket = nullptr);
/// The ends of all streams of a context, destroyed ones that still have work included. `global` is held.
std::vector<Ticket> ends_of(const Context* context);
/// Waits for them; `global` is not held.
void wait_for_all(const Context* context);
/// Sleeps less than the bound that the tests set; draws one number in any case.
void random_delay(Random& random);
/// The seed of another sequence, by the number of those before it.
uint64_t next_seed();
/// Keeps all streams, or one, from beginning an operation, or lets them go on.
void hold_streams(bool hold);
void set_paused(Stream& stream, bool paused);

struct Event {
    Context* context;
    unsigned flags;
    Ticket ticket;
    std::shared_ptr<Clock::time_point> time;
    CapturePtr capture;  // capture of the last record, if it was captured
    std::set<size_t> nodes;
};

extern Table<CUevent, Event>& events;
/// The n-th wait for an event from now on does nothing; 0: none.
void ignore_wait(uint64_t n);
/// Waits for events so far, ignored ones included.
uint64_t num_waits();

// ---- capture and graphs (capture.cpp, graph.cpp) ---------------------------------------------

struct Node {
    Operation run;
    std::set<size_t> after;
};

struct Graph {
    Context* context;
    std::vector<Node> nodes;
};

struct Capture {
    uint64_t id;
    CUstreamCaptureMode mode;
    std::thread::id thread;
    Stream* origin;
    Context* context;
    bool invalid = false;
    std::shared_ptr<Graph> graph;
    /// Per captured stream, the nodes that its next one follows.
    std::map<StreamPtr, std::set<size_t>> frontier;
};

extern Table<CUgraph, Graph>& graphs;
/// Adds a node behind the captured stream's last ones; INVALIDATED once the capture is lost.
CUresult capture_node(const StreamPtr& stream, Operation operation);
/// Makes the event stand for the captured stream's last nodes.
CUresult capture_record(const StreamPtr& stream, Event& event);
/// Puts the stream's next node behind the event's, and brings it into the event's capture; another mixture is an error, and the
/// capture is lost.
CUresult capture_wait(const StreamPtr& stream, Event& event);
/// Ends a capture, which stays so until it is taken down, and notes it as misuse.
void lose(Capture& capture);
/// Refuses a call that might synchronise while a capture forbids it; that capture is lost.
CUresult forbidden_by_capture();
/// Refuses a call that a captured stream never allows.
CUresult forbidden_on(const StreamPtr& stream);
/// Refuses a call that would cover captured streams, in whatever mode; their captures are lost.
CUresult forbidden_of_context(const Context* context);
/// The legacy stream may not be used while a blocking stream of the context is captured; `invalidate`: the capture is lost.
CUresult forbidden_on_legacy(const Context* context, bool invalidate = true);
/// Ends the captures of a context; their graphs are dropped.
void end_captures_of(const Context* context);
size_t num_graph_execs();
/// Drops graphs and executables of a context.
void drop_graphs_of(const Context* context);

// ---- memory (memory.cpp, pool.cpp) -----------------------------------------------------------

enum class MemoryKind { device, pinned, registered, managed };
struct Pool;

/// An entry of the memory table.
struct Allocation {
    size_t size;
    MemoryKind kind;
    Context* context;  // null for pool memory, as a driver says it
    int device;
    unsigned flags;
    uint64_t id;
    std::shared_ptr<Pool> pool;
    size_t capacity;  // bytes of the block, for pool memory

    bool on_host() const {
        return kind == MemoryKind::pinned || kind == MemoryKind::registered;
    }
};

extern std::map<uintptr_t, Allocation>& allocations;
/// The allocation that holds address `p`, or null; `base`: its address, to be used only if it is found.
Allocation* find_memory(uintptr_t p, uintptr_t* base = nullptr);
/// Whether [p, p + size) is in one allocation.
bool in_one_allocation(uintptr_t p, size_t size);

/// Memory between guard bytes. Fresh memory holds 0xA5, freed memory 0xDD.
constexpr unsigned char kFresh = 0xA5, kFreed = 0xDD;
/// Memory that counts as freed until `begin_use`; null if the system has none.
char* guarded_new(size_t capacity);
void guarded_delete(char* p, size_t capacity);
/// Marks [p + size, p + capacity) as out of bounds and the rest as usable and fresh; or all as freed, and notes writes out of
/// bounds as misuse.
void begin_use(char* p, size_t size, size_t capacity);
void end_use(char* p, size_t size, size_t capacity);
/// The memory in use that holds an address, at this point of a stream; empty if there is none. `global` is not held.
device_code::Reach::Range memory_in_use_at(uintptr_t address);
/// Notes a misuse unless freed memory still holds 0xDD.
void check_untouched(const char* p, size_t capacity);
/// Takes bytes of the device's memory, and gives them back; false, and nothing is taken, if there are not enough.
bool take_device_memory(int device, size_t size);
void give_device_memory(int device, size_t size);
size_t device_memory_used(int device);
uint64_t new_buffer_id();
/// Whether kernels have stale copies of page-locked memory, as under confidential computing.
extern std::atomic<bool> confidential;
/// Runs a kernel with such copies: it reads the copies that were made when the memory was locked, and the host does not see
/// what it writes.
void with_stale_mappings(const std::function<void()>& kernel);
/// Notes writes outside live allocations and to those freed last. Streams must be idle.
void check_memory();
/// Drops all memory and pools of a context.
void drop_memory_of(const Context* context);

/// Gives memory of pools above their threshold back, as a synchronising call does.
void trim_pools_on_sync(const Context* context);
/// A stream-ordered free, or at once with no stream; `global` is held. Takes the entry out of the memory table, unless it fails.
CUresult free_pooled(std::map<uintptr_t, Allocation>::iterator entry, const StreamPtr& stream);
void drop_pools_of(const Context* context);
/// Pools without the default ones; bytes of blocks that pools keep.
size_t num_pools();
size_t pooled_bytes();
CUmemoryPool handle_of(const Pool* pool);

// ---- modules and kernels (module.cpp, exec.cpp) ----------------------------------------------

/// A kernel that was compiled for the host, or null.
const Kernel* find_kernel(const std::string& name);
/// Runs all blocks on this thread, in any order. Ends the program at a deadlock and at an access that `Reach` does not allow.
void run_grid(const Bound& kernel, dim3 grid, dim3 block);
size_t num_modules();
void drop_modules_of(const Context* context);

}  // namespace cudasim
