// Events: a record captures a point of a stream, a wait takes the latest record before it.

#include "sim.h"

namespace cudasim {

Table<CUevent, Event>& events = *new Table<CUevent, Event>;

static std::atomic<uint64_t> waits, ignored;

void ignore_wait(uint64_t n) { ignored = n ? waits + n : 0; }
uint64_t num_waits() { return waits; }

static CUresult find_event(CUevent handle, std::shared_ptr<Event>& event) {
    event = events.find(handle);
    if (event) return CUDA_SUCCESS;
    misuse("unknown or destroyed event %p", (void*)handle);
    return CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace cudasim

using namespace cudasim;

#define FIND_EVENT(event, handle)                                              \
    std::shared_ptr<Event> event;                                              \
    if (CUresult unknown = find_event(handle, event)) return unknown

API cuEventCreate(CUevent* handle, unsigned flags) {
    ENTER_CONTEXT(context, nullptr);
    unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    bool timed_ipc = flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING);
    if (!handle || flags & ~known || timed_ipc) return CUDA_ERROR_INVALID_VALUE;
    Guard guard(global);
    *handle = events.add(std::make_shared<Event>(Event{context, flags, {}, {}, {}, {}}));
    return CUDA_SUCCESS;
}

API cuEventDestroy_v2(CUevent handle) {
    ENTER_RELEASE(context, nullptr);
    Guard guard(global);
    if (events.remove(handle)) return code;
    misuse("destroy of unknown or destroyed event %p", (void*)handle);
    return CUDA_ERROR_INVALID_HANDLE;
}

API cuEventRecord(CUevent handle, CUstream stream_handle) {
    ENTER_CONTEXT(context, stream_handle);
    Guard guard(global);
    FIND_EVENT(event, handle);
    StreamPtr stream;
    if (CUresult unknown = find_stream(stream_handle, context, stream)) return unknown;
    if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) return capture_record(stream, *event);
    auto time = std::make_shared<Clock::time_point>();
    Ticket ticket;
    if (CUresult failed = submit(stream, [time] { *time = Clock::now(); }, &ticket)) return failed;
    event->ticket = ticket;
    event->time = time;
    event->capture = nullptr;
    event->nodes.clear();
    return CUDA_SUCCESS;
}

API cuEventQuery(CUevent handle) {
    ENTER_CONTEXT(context, nullptr);
    Guard guard(global);
    FIND_EVENT(event, handle);
    if (event->capture) {
        lose(*event->capture);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    if (CUresult forbidden = forbidden_by_capture()) return forbidden;
    return event->ticket.reached() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

API cuEventSynchronize(CUevent handle) {
    ENTER_CONTEXT(context, nullptr);
    Guard guard(global);
    FIND_EVENT(event, handle);
    if (event->capture) {
        lose(*event->capture);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    if (CUresult forbidden = forbidden_by_capture()) return forbidden;
    Ticket ticket = event->ticket;
    guard.unlock();
    ticket.wait();
    trim_pools_on_sync(context);
    return CUDA_SUCCESS;
}

/// An event that was never recorded is complete, so waiting for it is nothing.
API cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags) {
    ENTER_CONTEXT(context, stream_handle);
    Guard guard(global);
    FIND_EVENT(event, handle);
    StreamPtr stream;
    if (CUresult unknown = find_stream(stream_handle, context, stream)) return unknown;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (++waits == ignored) return CUDA_SUCCESS;
    if (stream->capture || event->capture) return capture_wait(stream, *event);
    Ticket ticket = event->ticket;
    if (!ticket.stream || ticket.stream == stream) return CUDA_SUCCESS;
    return submit(stream, [ticket] { ticket.wait(); });
}

static CUresult elapsed(float* milliseconds, CUevent start_handle, CUevent end_handle) {
    Guard guard(global);
    FIND_EVENT(start, start_handle);
    FIND_EVENT(end, end_handle);
    if (start->capture || end->capture) return CUDA_ERROR_CAPTURED_EVENT;
    bool timed = !((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING);
    if (!timed || !start->time || !end->time || start->context != end->context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!start->ticket.reached() || !end->ticket.reached()) return CUDA_ERROR_NOT_READY;
    auto time = *end->time - *start->time;
    *milliseconds = std::chrono::duration<float, std::milli>(time).count();
    return CUDA_SUCCESS;
}

API cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    ENTER_CONTEXT(context, nullptr);
    return elapsed(milliseconds, start, end);
}

API cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
    ENTER_CONTEXT(context, nullptr);
    return elapsed(milliseconds, start, end);
}
