// Stream capture: work becomes nodes of a graph instead of running.

#include "sim.h"

namespace cudasim {

Table<CUgraph, Graph>& graphs = *new Table<CUgraph, Graph>;

/// Those that have begun and not ended.
static auto& captures = *new std::vector<CapturePtr>;
static thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/// Ends a capture that a call conflicts with. Noted, for the caller may not learn of it: its call may succeed.
void lose(Capture& capture) {
    if (!capture.invalid) misuse("%s ended a capture", current_call);
    capture.invalid = true;
}

CUresult forbidden_by_capture() {
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
    CUresult code = CUDA_SUCCESS;
    for (auto& capture : captures) {
        bool ours = capture->thread == std::this_thread::get_id();
        bool forbids = ours ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                            : capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                  thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (!forbids) continue;
        lose(*capture);
        code = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return code;
}

CUresult forbidden_on(const StreamPtr& stream) {
    if (!stream->capture) return CUDA_SUCCESS;
    lose(*stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult forbidden_of_context(const Context* context) {
    CUresult code = CUDA_SUCCESS;
    for (auto& capture : captures) {
        if (capture->context != context) continue;
        lose(*capture);
        code = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return code;
}

CUresult forbidden_on_legacy(const Context* context, bool invalidate) {
    CUresult code = CUDA_SUCCESS;
    for (auto& capture : captures) {
        if (capture->context != context || !capture->origin->blocking()) continue;
        if (invalidate) lose(*capture);
        code = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    return code;
}

CUresult capture_node(const StreamPtr& stream, Operation operation) {
    Capture& capture = *stream->capture;
    if (capture.invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    auto& frontier = capture.frontier[stream];
    capture.graph->nodes.push_back({std::move(operation), frontier});
    frontier = {capture.graph->nodes.size() - 1};
    return CUDA_SUCCESS;
}

CUresult capture_record(const StreamPtr& stream, Event& event) {
    if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event.capture = stream->capture;
    event.nodes = stream->capture->frontier[stream];
    event.ticket = {};
    event.time = nullptr;
    return CUDA_SUCCESS;
}

/// A wait for a captured event brings the stream into the capture; other mixtures are errors.
CUresult capture_wait(const StreamPtr& stream, Event& event) {
    if (stream->capture && stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!event.capture) {
        lose(*stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    bool ended = std::find(captures.begin(), captures.end(), event.capture) == captures.end();
    if (ended) {
        if (stream->capture) lose(*stream->capture);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    if (event.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream == stream->context->legacy) {
        lose(*event.capture);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (stream->capture && stream->capture != event.capture) {
        lose(*stream->capture);
        lose(*event.capture);
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    stream->capture = event.capture;
    stream->capture->frontier[stream].insert(event.nodes.begin(), event.nodes.end());
    return CUDA_SUCCESS;
}

static void end(const CapturePtr& capture) {
    for (auto& [stream, frontier] : capture->frontier)
        if (stream->capture == capture) stream->capture = nullptr;
    capture->frontier.clear();
    std::erase(captures, capture);
}

void end_captures_of(const Context* context) {
    for (auto& capture : std::vector(captures))
        if (capture->context == context) end(capture);
}

/// Whether all that other streams did comes before the end of the stream that began the capture.
static bool joined(const Capture& capture, const StreamPtr& origin) {
    auto& nodes = capture.graph->nodes;
    std::set<size_t> before = capture.frontier.at(origin);
    for (size_t i = nodes.size(); i--;)  // a node comes after those it depends on
        if (before.contains(i)) before.insert(nodes[i].after.begin(), nodes[i].after.end());
    for (auto& [stream, frontier] : capture.frontier)
        if (!std::includes(before.begin(), before.end(), frontier.begin(), frontier.end()))
            return false;
    return true;
}

/// Status and number of the capture that a stream is in.
static CUresult status_of(const StreamPtr& stream, CUstreamCaptureStatus* status, uint64_t* id) {
    if (stream == stream->context->legacy)
        if (CUresult implicit = forbidden_on_legacy(stream->context, false)) return implicit;
    auto& capture = stream->capture;
    *status = !capture           ? CU_STREAM_CAPTURE_STATUS_NONE
              : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                 : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (id && capture) *id = capture->id;
    return CUDA_SUCCESS;
}

}  // namespace cudasim

using namespace cudasim;

API cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
    ENTER_STREAM(context, stream, handle);
    if (unsigned(mode) > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    if (stream == context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    static uint64_t num_captures;
    auto graph = std::make_shared<Graph>(Graph{stream->context, {}});
    auto capture = std::make_shared<Capture>(Capture{++num_captures, mode,
                                                     std::this_thread::get_id(), stream.get(),
                                                     stream->context, false, graph, {}});
    capture->frontier[stream] = {};
    captures.push_back(capture);
    stream->capture = capture;
    return CUDA_SUCCESS;
}

API cuStreamEndCapture(CUstream handle, CUgraph* graph) {
    ENTER_STREAM(context, stream, handle);
    if (graph) *graph = nullptr;
    CapturePtr capture = stream->capture;
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream.get()) {
        lose(*capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    bool ours = capture->thread == std::this_thread::get_id();
    if (!ours && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    bool unjoined = !joined(*capture, stream);
    end(capture);
    if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (unjoined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (graph) *graph = graphs.add(capture->graph);
    return CUDA_SUCCESS;
}

API cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
    ENTER_STREAM(context, stream, handle);
    return status_of(stream, status, nullptr);
}

// Graphs in the making are not handed out: who asks for more than the status gets null.
static CUresult capture_info(const StreamPtr& stream, CUstreamCaptureStatus* status,
                             cuuint64_t* id, CUgraph* graph, const CUgraphNode** nodes,
                             size_t* num_nodes) {
    if (graph) *graph = nullptr;
    if (nodes) *nodes = nullptr;
    if (num_nodes) *num_nodes = 0;
    uint64_t number = 0;
    CUresult result = status_of(stream, status, &number);
    if (id) *id = number;
    return result;
}

API cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                              CUgraph* graph, const CUgraphNode** nodes, size_t* num_nodes) {
    ENTER_STREAM(context, stream, handle);
    return capture_info(stream, status, id, graph, nodes, num_nodes);
}

API cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                              CUgraph* graph, const CUgraphNode** nodes,
                              const CUgraphEdgeData** edges, size_t* num_nodes) {
    ENTER_STREAM(context, stream, handle);
    if (edges) *edges = nullptr;
    return capture_info(stream, status, id, graph, nodes, num_nodes);
}

API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    ENTER();
    if (!mode || unsigned(*mode) > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, thread_mode);
    return CUDA_SUCCESS;
}
