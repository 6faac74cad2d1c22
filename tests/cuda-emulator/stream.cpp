// Streams, events, captures and graphs.
//
// Whatever is enqueued has happened when the call returns, in whichever stream: so streams and events have no more to do than
// to be valid, and to record while they capture. A graph is the list of its nodes in the order in which they were recorded.
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "runtime.hpp"

using namespace hotseam_emulated;

using CUstream = void *;
using CUevent = void *;
using CUgraph = void *;
using CUgraphExec = void *;
using CUgraphNode = void *;
using CUfunction = void *;

namespace {

struct Graph {
    std::vector<std::unique_ptr<Node>> nodes;
};

struct Exec {
    std::vector<Node> nodes;
};

enum CaptureMode : int { GlobalMode = 0, ThreadLocalMode = 1, RelaxedMode = 2 };

struct Stream;

struct Capture {
    std::unique_ptr<Graph> graph = std::make_unique<Graph>();
    Stream *origin = nullptr;
    int mode = GlobalMode;
    std::thread::id thread;
    uint64_t id = 0;
    bool invalid = false;
};

struct Stream {
    std::shared_ptr<Capture> capture;
    unsigned flags = 0;
    int priority = 0;
};

struct Event {
    std::shared_ptr<Capture> capture;
    bool recorded = false, timed = true;
    timespec when = {};
};

std::mutex mutex;
std::set<Stream *> streams;
std::set<Event *> events;
std::set<Graph *> graphs;
std::set<Exec *> execs;
std::set<std::shared_ptr<Capture>> captures;
uint64_t captures_begun;
Stream legacy;   // the default stream, under all its names

// 0 and 1 are the default stream, 2 that of the thread.
Stream *stream_of(CUstream handle) {
    if (reinterpret_cast<uintptr_t>(handle) <= 2) return &legacy;
    auto *stream = static_cast<Stream *>(handle);
    return streams.count(stream) ? stream : nullptr;
}

template <class T> T *find(std::set<T *> &all, void *handle) {
    auto *it = static_cast<T *>(handle);
    return all.count(it) ? it : nullptr;
}

// A capture that something was done to which it does not bear gives an error from then on.
CUresult unsupported(Stream *stream) {
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

}   // namespace

namespace hotseam_emulated {

bool valid_stream(const void *stream) {
    std::lock_guard<std::mutex> lock(mutex);
    return stream_of(const_cast<void *>(stream)) != nullptr;
}

CUresult idle_stream(const void *handle) {
    std::lock_guard<std::mutex> lock(mutex);
    Stream *stream = stream_of(const_cast<void *>(handle));
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    return stream->capture ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

// As `cuThreadExchangeStreamCaptureMode` describes it: a global capture forbids such calls to every thread, a thread-local one to
// its own, a relaxed one to none. Calls that wait are forbidden to the thread of any capture.
bool capture_forbids(bool synchronous) {
    std::lock_guard<std::mutex> lock(mutex);
    bool forbidden = false;
    for (const auto &capture : captures) {
        bool own = capture->thread == std::this_thread::get_id();
        if (capture->mode == GlobalMode || (own && (synchronous || capture->mode == ThreadLocalMode))) {
            capture->invalid = true;
            forbidden = true;
        }
    }
    return forbidden;
}

CUresult perform(const Node &node) {
    if (node.type == Node::KernelNode) {
        if (!valid_function(node.function)) {
            say("kernel %s: its module is unloaded", node.launch.kernel->name);
            return stick(CUDA_ERROR_INVALID_HANDLE);
        }
        return stick(run_grid(node.launch));
    }
    if (node.type == Node::HostNode) {
        node.host(node.host_data);
        return CUDA_SUCCESS;
    }
    if (node.type == Node::EmptyNode || node.bytes == 0) return CUDA_SUCCESS;
    // A graph may be replayed when its memory is gone.
    if ((memory::in_arena(node.to) && !memory::holds(node.to, node.bytes)) ||
        (node.type == Node::MemcpyNode && memory::in_arena(node.from) && !memory::holds(node.from, node.bytes))) {
        say("a copy or memset of %zu bytes at 0x%llx: %s", node.bytes, (unsigned long long)node.to,
            memory::nearest(node.to).c_str());
        return stick(CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    memory::Open open;
    auto *to = reinterpret_cast<unsigned char *>(node.to);
    if (node.type == Node::MemcpyNode) {
        memmove(to, reinterpret_cast<const void *>(node.from), node.bytes);
    } else if (node.width == 1) {
        memset(to, int(node.value & 0xffu), node.bytes);
    } else {
        for (size_t i = 0; i < node.bytes; i += node.width) memcpy(to + i, &node.value, node.width);
    }
    return CUDA_SUCCESS;
}

CUresult enqueue(void *handle, Node node) {
    {
        std::lock_guard<std::mutex> lock(mutex);
        Stream *stream = stream_of(handle);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        if (stream->capture) {
            if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
            stream->capture->graph->nodes.push_back(std::make_unique<Node>(std::move(node)));
            return CUDA_SUCCESS;
        }
    }
    return perform(node);
}

}   // namespace hotseam_emulated

extern "C" CUresult cuCtxGetCurrent(void **context);

#define NEEDS(check)                                                       \
    do {                                                                   \
        if (CUresult result_ = (check); result_ != CUDA_SUCCESS) return result_; \
    } while (0)
// What a call needs that names a handle: a usable context, the lock, and a valid handle.
#define WITH(kind, name, expression)                 \
    NEEDS(usable());                                 \
    std::lock_guard<std::mutex> lock(mutex);         \
    kind *name = expression;                         \
    if (!name) return CUDA_ERROR_INVALID_HANDLE

// ---- streams -------------------------------------------------------------------------------------------------------------

EXPORTED CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
    NEEDS(usable());
    if (!out || flags > 1) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard<std::mutex> lock(mutex);
    auto *stream = new Stream;
    stream->flags = flags;
    stream->priority = priority;
    streams.insert(stream);
    *out = stream;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamCreate(CUstream *out, unsigned flags) { return cuStreamCreateWithPriority(out, flags, 0); }

EXPORTED CUresult cuStreamDestroy_v2(CUstream handle) {
    WITH(Stream, stream, find(streams, handle));
    if (stream->capture) captures.erase(stream->capture);
    streams.erase(stream);
    delete stream;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamSynchronize(CUstream handle) {
    WITH(Stream, stream, stream_of(handle));
    return stream->capture ? unsupported(stream) : CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamQuery(CUstream handle) { return cuStreamSynchronize(handle); }

EXPORTED CUresult cuStreamGetCtx(CUstream handle, void **context) {
    NEEDS(usable());
    return valid_stream(handle) ? cuCtxGetCurrent(context) : CUDA_ERROR_INVALID_HANDLE;
}

EXPORTED CUresult cuStreamGetFlags(CUstream handle, unsigned *flags) {
    WITH(Stream, stream, stream_of(handle));
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamGetPriority(CUstream handle, int *priority) {
    WITH(Stream, stream, stream_of(handle));
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

// A stream that waits for an event of a capture takes part in it.
EXPORTED CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned) {
    WITH(Stream, stream, stream_of(handle));
    Event *event = find(events, event_handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture && captures.count(event->capture)) {
        if (stream == &legacy || (stream->capture && stream->capture != event->capture)) {
            event->capture->invalid = true;
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
        stream->capture = event->capture;
    } else if (stream->capture && event->recorded) {
        // An event from outside has no node to depend on.
        return unsupported(stream);
    }
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuLaunchHostFunc(CUstream handle, void (*function)(void *), void *data) {
    NEEDS(usable());
    Node node;
    node.type = Node::HostNode;
    node.host = function;
    node.host_data = data;
    return enqueue(handle, std::move(node));
}

// ---- events --------------------------------------------------------------------------------------------------------------

EXPORTED CUresult cuEventCreate(CUevent *out, unsigned flags) {
    NEEDS(usable());
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard<std::mutex> lock(mutex);
    auto *event = new Event;
    event->timed = (flags & 2u) == 0;
    events.insert(event);
    *out = event;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuEventDestroy_v2(CUevent handle) {
    WITH(Event, event, find(events, handle));
    events.erase(event);
    delete event;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
    WITH(Event, event, find(events, handle));
    Stream *stream = stream_of(stream_handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    event->capture = stream->capture;
    event->recorded = true;
    clock_gettime(CLOCK_MONOTONIC, &event->when);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuEventRecordWithFlags(CUevent handle, CUstream stream, unsigned) { return cuEventRecord(handle, stream); }

EXPORTED CUresult cuEventQuery(CUevent handle) {
    WITH(Event, event, find(events, handle));
    if (!event->capture) return CUDA_SUCCESS;
    event->capture->invalid = true;
    return CUDA_ERROR_CAPTURED_EVENT;
}

EXPORTED CUresult cuEventSynchronize(CUevent handle) { return cuEventQuery(handle); }

EXPORTED CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
    WITH(Event, begin, find(events, from));
    Event *end = find(events, to);
    if (!end || !begin->recorded || !end->recorded || !begin->timed || !end->timed || begin->capture || end->capture)
        return CUDA_ERROR_INVALID_HANDLE;
    const timespec &a = begin->when, &b = end->when;
    *milliseconds = float(double(b.tv_sec - a.tv_sec) * 1e3 + double(b.tv_nsec - a.tv_nsec) * 1e-6);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to) {
    return cuEventElapsedTime(milliseconds, from, to);
}

// ---- captures ------------------------------------------------------------------------------------------------------------

EXPORTED CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
    WITH(Stream, stream, stream_of(handle));
    if (mode < GlobalMode || mode > RelaxedMode) return CUDA_ERROR_INVALID_VALUE;
    if (stream == &legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    auto capture = std::make_shared<Capture>();
    capture->origin = stream;
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->id = ++captures_begun;
    captures.insert(capture);
    stream->capture = std::move(capture);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamEndCapture(CUstream handle, CUgraph *out) {
    WITH(Stream, stream, stream_of(handle));
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = nullptr;
    std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream) {
        capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->mode != RelaxedMode && capture->thread != std::this_thread::get_id())
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    for (Stream *other : streams)
        if (other->capture == capture) other->capture = nullptr;
    captures.erase(capture);
    if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    Graph *graph = capture->graph.release();
    graphs.insert(graph);
    *out = graph;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamIsCapturing(CUstream handle, int *status) {
    WITH(Stream, stream, stream_of(handle));
    *status = !stream->capture ? 0 : stream->capture->invalid ? 2 : 1;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamGetCaptureInfo_v2(CUstream handle, int *status, uint64_t *id, CUgraph *graph,
                                            const CUgraphNode **dependencies, size_t *n) {
    WITH(Stream, stream, stream_of(handle));
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    *status = !stream->capture ? 0 : stream->capture->invalid ? 2 : 1;
    static thread_local CUgraphNode last;
    if (*status != 1) return CUDA_SUCCESS;
    auto &nodes = stream->capture->graph->nodes;
    last = nodes.empty() ? nullptr : nodes.back().get();
    if (id) *id = stream->capture->id;
    if (graph) *graph = stream->capture->graph.get();
    if (dependencies) *dependencies = &last;
    if (n) *n = nodes.empty() ? 0 : 1;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamGetCaptureInfo_v3(CUstream handle, int *status, uint64_t *id, CUgraph *graph,
                                            const CUgraphNode **dependencies, const void **edges, size_t *n) {
    if (edges) *edges = nullptr;
    return cuStreamGetCaptureInfo_v2(handle, status, id, graph, dependencies, n);
}

// ---- graphs --------------------------------------------------------------------------------------------------------------

EXPORTED CUresult cuGraphCreate(CUgraph *out, unsigned) {
    NEEDS(usable());
    std::lock_guard<std::mutex> lock(mutex);
    auto *graph = new Graph;
    graphs.insert(graph);
    *out = graph;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphDestroy(CUgraph handle) {
    WITH(Graph, graph, find(graphs, handle));
    graphs.erase(graph);
    delete graph;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph handle, unsigned long long) {
    WITH(Graph, graph, find(graphs, handle));
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    auto *exec = new Exec;
    for (const auto &node : graph->nodes) exec->nodes.push_back(*node);
    execs.insert(exec);
    *out = exec;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *, char *, size_t) {
    return cuGraphInstantiateWithFlags(out, graph, 0);
}

EXPORTED CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *, char *, size_t) {
    return cuGraphInstantiateWithFlags(out, graph, 0);
}

EXPORTED CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, void *) {
    return cuGraphInstantiateWithFlags(out, graph, 0);
}

EXPORTED CUresult cuGraphExecDestroy(CUgraphExec handle) {
    WITH(Exec, exec, find(execs, handle));
    execs.erase(exec);
    delete exec;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphUpload(CUgraphExec handle, CUstream) {
    WITH(Exec, exec, find(execs, handle));
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    NEEDS(launchable());
    std::vector<Node> nodes;
    {
        WITH(Exec, exec, find(execs, handle));
        Stream *stream = stream_of(stream_handle);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        nodes = exec->nodes;
    }
    for (Node &node : nodes) NEEDS(enqueue(stream_handle, std::move(node)));
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode *out, size_t *n) {
    WITH(Graph, graph, find(graphs, handle));
    if (!n) return CUDA_ERROR_INVALID_VALUE;
    if (out)
        for (size_t i = 0; i < *n; ++i) out[i] = i < graph->nodes.size() ? graph->nodes[i].get() : nullptr;
    if (!out || *n > graph->nodes.size()) *n = graph->nodes.size();
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphNodeGetType(CUgraphNode node, int *type) {
    NEEDS(usable());
    if (!node || !type) return CUDA_ERROR_INVALID_VALUE;
    *type = static_cast<const Node *>(node)->type;
    return CUDA_SUCCESS;
}

namespace {

struct KernelNodeParams {
    CUfunction function;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
    void *kernel, *context;
};

}   // namespace

EXPORTED CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph handle, const CUgraphNode *, size_t, const void *params) {
    if (!out || !params) return CUDA_ERROR_INVALID_VALUE;
    const auto &p = *static_cast<const KernelNodeParams *>(params);
    auto node = std::make_unique<Node>();
    NEEDS(launchable());
    NEEDS(node_of_launch(p.function, {p.grid[0], p.grid[1], p.grid[2]}, {p.block[0], p.block[1], p.block[2]}, p.shared, p.params,
                         p.extra, node.get()));
    WITH(Graph, graph, find(graphs, handle));
    *out = node.get();
    graph->nodes.push_back(std::move(node));
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *from, size_t n, const void *params) {
    return cuGraphAddKernelNode_v2(out, graph, from, n, params);
}

// Never done: who asks for an update must be able to make the graph anew. The result begins with why: 1, "for an unknown reason".
EXPORTED CUresult cuGraphExecUpdate_v2(CUgraphExec, CUgraph, void *result) {
    NEEDS(usable());
    struct Result {
        int why;
        CUgraphNode node, from;
    };
    if (result) *static_cast<Result *>(result) = {1, nullptr, nullptr};
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

EXPORTED CUresult cuGraphExecUpdate(CUgraphExec, CUgraph, CUgraphNode *, int *why) {
    NEEDS(usable());
    if (why) *why = 1;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}
