// Streams: a queue and a thread each, a random delay before each operation, the legacy rule.

#include "sim.h"

namespace cudasim {

thread_local Stream* running;
thread_local bool in_host_function;

Table<CUstream, Stream>& streams = *new Table<CUstream, Stream>;

// ---- delays ----------------------------------------------------------------------------------

static long delay_of_environment() { return setting("CUDASIM_DELAY_US", 200); }
static uint64_t seed_of_environment() { return setting("CUDASIM_SEED", 0); }

static std::atomic<long> delay_bound_us{delay_of_environment()};
static std::atomic<uint64_t> seed{seed_of_environment()}, num_seeded{0};

void set_delay(long bound_us) { delay_bound_us = bound_us; }

/// A stream draws from its own sequence, so that its delays do not depend on other threads.
uint64_t next_seed() { return seed * 0x9E3779B97F4A7C15 + ++num_seeded; }

void set_seed(uint64_t value) {
    Guard guard(global);
    seed = value;
    num_seeded = 0;
    for (int device = 0; device < num_devices(); device++)
        if (auto& legacy = context_at(device).legacy) legacy->reseed();
    for (auto& [handle, stream] : streams.all) stream->reseed();
}

void reset_delays() {
    set_seed(seed_of_environment());
    set_delay(delay_of_environment());
}

void random_delay(Random& random) {
    uint64_t drawn = random();  // always, so that what follows in the sequence stays the same
    if (long bound = delay_bound_us)
        std::this_thread::sleep_for(std::chrono::microseconds(drawn % bound));
}

// ---- the gate --------------------------------------------------------------------------------

/// Every stream passes here before an operation; tests close it for one stream or for all.
static struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool held = false;
}& gate = *new Gate;

static void pass_gate(const Stream& stream) {
    std::unique_lock lock(gate.mutex);
    gate.changed.wait(lock, [&] { return !gate.held && !stream.paused; });
}

void hold_streams(bool hold) {
    std::lock_guard lock(gate.mutex);
    gate.held = hold;
    gate.changed.notify_all();
}

void set_paused(Stream& stream, bool paused) {
    std::lock_guard lock(gate.mutex);
    stream.paused = paused;
    gate.changed.notify_all();
}

// ---- a stream --------------------------------------------------------------------------------

static std::atomic<uint64_t> last_id{0};

Stream::Stream(Context* context, unsigned flags, int priority)
    : context(context), flags(flags), priority(priority), id(++last_id), random(next_seed()) {}

void Stream::reseed() {
    uint64_t value = next_seed();
    std::lock_guard lock(mutex);
    if (submitted == finished) random.seed(value);
}

void Stream::run() {
    running = this;
    std::unique_lock lock(mutex);
    for (;;) {
        changed.wait(lock, [&] { return closing || !queue.empty(); });
        if (queue.empty()) return;
        lock.unlock();
        pass_gate(*this);
        lock.lock();
        Operation operation = std::move(queue.front());
        queue.pop_front();
        lock.unlock();
        random_delay(random);
        operation();
        operation = nullptr;  // what it holds is gone before anyone learns that it is done
        lock.lock();
        finished++;
        changed.notify_all();
    }
}

uint64_t Stream::push(Operation operation) {
    std::lock_guard lock(mutex);
    if (!started) {
        started = true;
        // The thread keeps its stream alive, so that a destroyed stream finishes its work.
        std::thread([self = shared_from_this()] { self->run(); }).detach();
    }
    queue.push_back(std::move(operation));
    changed.notify_all();
    return ++submitted;
}

void Stream::wait(uint64_t number) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return finished >= number; });
}

bool Stream::reached(uint64_t number) {
    std::lock_guard lock(mutex);
    return finished >= number;
}

Ticket Stream::last() {
    std::lock_guard lock(mutex);
    return {shared_from_this(), submitted};
}

void Stream::close() {
    std::lock_guard lock(mutex);
    closing = true;
    changed.notify_all();
}

bool Ticket::reached() const { return !stream || stream->reached(number); }

void Ticket::wait() const {
    if (stream) stream->wait(number);
}

// ---- all streams -----------------------------------------------------------------------------

CUresult find_stream(CUstream handle, Context* current, StreamPtr& stream) {
    if (!handle || handle == CU_STREAM_LEGACY) {
        stream = current->legacy;
    } else if (handle == CU_STREAM_PER_THREAD) {
        auto& per_thread = current->per_thread[std::this_thread::get_id()];
        if (!per_thread) per_thread = std::make_shared<Stream>(current, CU_STREAM_DEFAULT, 0);
        stream = per_thread;
    } else {
        stream = streams.find(handle);
    }
    if (stream) return CUDA_SUCCESS;
    misuse("unknown or destroyed stream %p", (void*)handle);
    return CUDA_ERROR_INVALID_HANDLE;
}

CUresult submit(const StreamPtr& stream, Operation operation, Ticket* ticket) {
    if (stream->capture) return capture_node(stream, std::move(operation));
    Context* context = stream->context;
    std::vector<Ticket> before;
    if (stream == context->legacy) {
        if (CUresult implicit = forbidden_on_legacy(context)) return implicit;
        for (Ticket& end : ends_of(context))
            if (end.stream != stream && end.stream->blocking()) before.push_back(end);
    } else if (stream->blocking()) {
        before.push_back(context->legacy->last());
    }
    std::erase_if(before, [](const Ticket& end) { return end.reached(); });
    uint64_t number = stream->push([before, operation = std::move(operation)] {
        for (auto& end : before) end.wait();
        operation();
    });
    if (ticket) *ticket = {stream, number};
    return CUDA_SUCCESS;
}

std::vector<Ticket> ends_of(const Context* context) {
    std::vector<Ticket> ends;
    if (context->legacy) ends.push_back(context->legacy->last());
    for (auto& [id, stream] : context->per_thread) ends.push_back(stream->last());
    for (auto& [handle, stream] : streams.all)
        if (stream->context == context) ends.push_back(stream->last());
    for (auto& gone : context->draining)
        if (StreamPtr stream = gone.lock()) ends.push_back(stream->last());
    return ends;
}

void wait_for_all(const Context* context) {
    std::vector<Ticket> ends;
    {
        Guard guard(global);
        ends = ends_of(context);
    }
    for (auto& end : ends) end.wait();
}

static CUstream recycled;  // guarded by `global`

void recycle_handle(CUstream handle) {
    Guard guard(global);
    recycled = handle;
}

}  // namespace cudasim

using namespace cudasim;

// ---- the driver's functions ------------------------------------------------------------------

static CUresult create(CUstream* handle, unsigned flags, int priority, Context* context) {
    if (!handle || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    Guard guard(global);
    auto stream = std::make_shared<Stream>(context, flags, std::clamp(priority, -5, 0));
    *handle = std::exchange(recycled, nullptr);
    if (*handle && !streams.find(*handle))
        streams.all[*handle] = std::move(stream);
    else
        *handle = streams.add(std::move(stream));
    return CUDA_SUCCESS;
}

API cuStreamCreate(CUstream* handle, unsigned flags) {
    ENTER_CONTEXT(context, nullptr);
    return create(handle, flags, 0, context);
}

API cuStreamCreateWithPriority(CUstream* handle, unsigned flags, int priority) {
    ENTER_CONTEXT(context, nullptr);
    return create(handle, flags, priority, context);
}

/// Returns at once; the stream's work goes on to its end.
API cuStreamDestroy_v2(CUstream handle) {
    ENTER_RELEASE(context, handle);
    Guard guard(global);
    StreamPtr stream = streams.remove(handle);
    if (!stream) {
        misuse("destroy of unknown or destroyed stream %p", (void*)handle);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (stream->capture) {
        misuse("destroy of stream %p while it is captured", (void*)handle);
        lose(*stream->capture);
        stream->capture = nullptr;
    }
    std::erase_if(stream->context->draining, [](auto& gone) { return gone.expired(); });
    stream->context->draining.push_back(stream);
    stream->close();
    return code;
}

API cuStreamSynchronize(CUstream handle) {
    ENTER_STREAM(context, stream, handle);
    if (CUresult forbidden = forbidden_on(stream)) return forbidden;
    if (CUresult forbidden = forbidden_by_capture()) return forbidden;
    Ticket end = stream->last();
    // To wait for the legacy stream is to wait for what it waits for.
    if (stream == context->legacy)
        if (CUresult failed = submit(stream, [] {}, &end)) return failed;
    guard.unlock();
    end.wait();
    trim_pools_on_sync(context);
    return CUDA_SUCCESS;
}

API cuStreamQuery(CUstream handle) {
    ENTER_STREAM(context, stream, handle);
    if (CUresult forbidden = forbidden_on(stream)) return forbidden;
    if (CUresult forbidden = forbidden_by_capture()) return forbidden;
    bool ready = stream->last().reached();
    if (stream == context->legacy)
        for (Ticket& end : ends_of(context)) ready &= !end.stream->blocking() || end.reached();
    return ready ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

API cuStreamGetCtx(CUstream handle, CUcontext* result) {
    ENTER_STREAM(context, stream, handle);
    *result = handle_of(stream->context);
    return CUDA_SUCCESS;
}

/// The stream stands still until a word of page-locked memory has come as far as `value`, by whoever writes it.
API cuStreamWaitValue32_v2(CUstream handle, CUdeviceptr address, cuuint32_t value, unsigned flags) {
    ENTER_STREAM(context, stream, handle);
    if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_NOT_SUPPORTED;
    const Allocation* memory = find_memory(address);
    if (address % 4 || !memory || !memory->on_host()) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult forbidden = forbidden_on(stream)) return forbidden;
    auto* word = reinterpret_cast<const uint32_t*>(address);
    return submit(stream, [=] {
        while (int32_t(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) < 0)
            std::this_thread::sleep_for(std::chrono::microseconds(50));
    });
}

API cuStreamGetId(CUstream handle, unsigned long long* id) {
    ENTER_STREAM(context, stream, handle);
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    *id = stream->id;
    return CUDA_SUCCESS;
}

API cuStreamGetFlags(CUstream handle, unsigned* flags) {
    ENTER_STREAM(context, stream, handle);
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

API cuStreamGetPriority(CUstream handle, int* priority) {
    ENTER_STREAM(context, stream, handle);
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

API cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
    ENTER_STREAM(context, stream, handle);
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    return submit(stream, [=] {
        in_host_function = true;
        function(data);
        in_host_function = false;
    });
}
