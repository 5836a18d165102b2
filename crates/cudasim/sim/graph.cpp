// Graphs: nodes in an order that their dependencies allow, chosen anew at each launch.

#include "sim.h"

namespace cudasim {

/// An instantiated graph. It does not run beside itself: a launch waits for the one before.
struct Exec {
    Context* context;
    std::vector<Node> nodes;
    Ticket last;
};

static auto& execs = *new Table<CUgraphExec, Exec>;

size_t num_graph_execs() { return execs.count(); }

void drop_graphs_of(const Context* context) {
    graphs.remove_of(context);
    execs.remove_of(context);
}

/// Runs the nodes one after another, each time any of those that are due: a dependency that was
/// forgotten shows for some seeds.
static void replay(const std::vector<Node>& nodes) {
    std::vector<std::vector<size_t>> followers(nodes.size());
    std::vector<size_t> missing(nodes.size()), due;
    for (size_t i = 0; i < nodes.size(); i++) {
        missing[i] = nodes[i].after.size();
        if (!missing[i]) due.push_back(i);
        for (size_t before : nodes[i].after) followers[before].push_back(i);
    }
    while (!due.empty()) {
        std::swap(due[running->random() % due.size()], due.back());
        size_t i = due.back();
        due.pop_back();
        random_delay(running->random);
        nodes[i].run();
        for (size_t follower : followers[i])
            if (!--missing[follower]) due.push_back(follower);
    }
}

static CUresult instantiate(CUgraphExec* handle, CUgraph graph_handle, Context* context) {
    Guard guard(global);
    auto graph = graphs.find(graph_handle);
    if (!handle || !graph) return CUDA_ERROR_INVALID_VALUE;
    *handle = execs.add(std::make_shared<Exec>(Exec{context, graph->nodes, {}}));
    return CUDA_SUCCESS;
}

}  // namespace cudasim

using namespace cudasim;

API cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode*, char*, size_t) {
    ENTER_CONTEXT(context, nullptr);
    return instantiate(exec, graph, context);
}

API cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long) {
    ENTER_CONTEXT(context, nullptr);
    return instantiate(exec, graph, context);
}

API cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    ENTER_CONTEXT(context, stream_handle);
    Guard guard(global);
    auto exec = execs.find(handle);
    if (!exec) {
        misuse("launch of unknown or destroyed graph %p", (void*)handle);
        return CUDA_ERROR_INVALID_VALUE;
    }
    StreamPtr stream;
    if (CUresult unknown = find_stream(stream_handle, context, stream)) return unknown;
    if (stream->context != exec->context) return CUDA_ERROR_INVALID_HANDLE;
    Ticket before = exec->last, ticket;
    CUresult result = submit(
        stream,
        [exec, before, stream] {
            if (before.stream != stream) before.wait();
            replay(exec->nodes);
        },
        &ticket);
    if (ticket.stream) exec->last = ticket;
    return result;
}

API cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* num_nodes) {
    ENTER();
    Guard guard(global);
    auto graph = graphs.find(handle);
    if (!graph || !num_nodes) return CUDA_ERROR_INVALID_VALUE;
    if (nodes)
        for (size_t i = 0; i < *num_nodes; i++)
            nodes[i] = i < graph->nodes.size() ? CUgraphNode(&graph->nodes[i]) : nullptr;
    *num_nodes = graph->nodes.size();
    return CUDA_SUCCESS;
}

API cuGraphDestroy(CUgraph handle) {
    CUresult code = enter(__func__);
    if (!usable()) return code;
    Guard guard(global);
    if (graphs.remove(handle)) return code;
    misuse("destroy of unknown or destroyed graph %p", (void*)handle);
    return CUDA_ERROR_INVALID_VALUE;
}

API cuGraphExecDestroy(CUgraphExec handle) {
    CUresult code = enter(__func__);
    if (!usable()) return code;
    Guard guard(global);
    if (execs.remove(handle)) return code;
    misuse("destroy of unknown or destroyed graph %p", (void*)handle);
    return CUDA_ERROR_INVALID_VALUE;
}
