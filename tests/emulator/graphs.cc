/* Graphs: recorded by a capture, and played again in any order that their edges allow. */
#include "streams.h"

#include <algorithm>
#include <map>
#include <set>

namespace emulated
{

namespace
{

struct executable {
    std::vector<operation_ptr> work;
    std::vector<std::vector<size_t>> followers; /* of each node */
    std::vector<size_t> predecessors;           /* their number */
    bool running = false;                       /* the device thread's */
};

} // namespace

} // namespace emulated

struct CUgraph_st {
    std::vector<emulated::graph_node> nodes;
};

struct CUgraphExec_st {
    std::shared_ptr<emulated::executable> graph;
};

namespace emulated
{

namespace
{

/* One launch of a graph. */
class replay
{
  public:
    explicit replay(std::shared_ptr<executable> g)
        : graph(std::move(g)), missing(graph->predecessors), left(graph->work.size())
    {
    }

    /* Runs a piece of one node, drawn among those whose predecessors are done. */
    progress step()
    {
        if (!begun && graph->running)
            return progress::pending; /* an earlier launch, in another stream */
        if (!begun)
            begin();
        std::vector<size_t> candidates = ready;
        while (!candidates.empty() && left > 0) {
            size_t drawn = random_below(static_cast<uint32_t>(candidates.size()));
            size_t node = candidates[drawn];
            candidates.erase(candidates.begin() + static_cast<std::ptrdiff_t>(drawn));
            execution &current = executions[node];
            current.work = graph->work[node];
            current.where = "graph";
            progress result = current.advance();
            if (result == progress::done)
                finish(node);
            if (result != progress::pending)
                break;
            if (candidates.empty())
                return progress::pending;
        }
        if (left > 0)
            return progress::advanced;
        graph->running = false;
        return progress::done;
    }

  private:
    void begin()
    {
        begun = graph->running = true;
        for (size_t node = 0; node < missing.size(); node++)
            if (missing[node] == 0)
                ready.push_back(node);
    }

    void finish(size_t node)
    {
        executions.erase(node);
        ready.erase(std::find(ready.begin(), ready.end(), node));
        for (size_t follower : graph->followers[node])
            if (--missing[follower] == 0)
                ready.push_back(follower);
        left--;
    }

    std::shared_ptr<executable> graph;
    std::vector<size_t> missing; /* of each node: predecessors that are not done */
    std::vector<size_t> ready;
    std::map<size_t, execution> executions;
    size_t left;
    bool begun = false;
};

/* Under runtime_lock(). Never destroyed. */
std::set<cudaGraph_t> &live_graphs()
{
    static auto *all = new std::set<cudaGraph_t>;
    return *all;
}

std::set<cudaGraphExec_t> &live_executables()
{
    static auto *all = new std::set<cudaGraphExec_t>;
    return *all;
}

/* Captures that have begun and not ended. */
std::vector<std::shared_ptr<capture>> &open_captures()
{
    static auto *all = new std::vector<std::shared_ptr<capture>>;
    return *all;
}

std::atomic<size_t> open_capture_count{0};

/* Whether all nodes come before the end of the stream that the capture began on. */
bool all_joined(const capture &c)
{
    std::vector<bool> joined(c.nodes.size(), false);
    std::vector<size_t> reached = c.origin->tail;
    while (!reached.empty()) {
        size_t node = reached.back();
        reached.pop_back();
        if (joined[node])
            continue;
        joined[node] = true;
        reached.insert(reached.end(), c.nodes[node].after.begin(), c.nodes[node].after.end());
    }
    return std::find(joined.begin(), joined.end(), false) == joined.end();
}

/* With the lock held. */
void close_capture(const std::shared_ptr<capture> &c)
{
    c->ended = true;
    for (cudaStream_t stream : streams_of(c)) {
        stream->capturing = nullptr;
        stream->tail.clear();
    }
    auto &open = open_captures();
    open.erase(std::find(open.begin(), open.end(), c));
    open_capture_count = open.size();
}

/* With the lock held. Events may still name it, but what it recorded is gone. */
void discard_capture(const std::shared_ptr<capture> &c)
{
    close_capture(c);
    c->nodes.clear();
}

} // namespace

void leave_capture(cudaStream_t stream)
{
    std::shared_ptr<capture> c = stream->capturing;
    stream->capturing = nullptr;
    if (c == nullptr)
        return;
    c->broken = true;
    if (c->origin == stream)
        discard_capture(c);
}

bool break_captures_of_this_thread()
{
    if (open_capture_count.load() == 0)
        return false;
    bool forbidden = false;
    std::lock_guard<std::mutex> hold(runtime_lock());
    for (const auto &c : open_captures()) {
        bool own = c->thread == std::this_thread::get_id();
        if (c->mode == cudaStreamCaptureModeGlobal ||
            (own && c->mode == cudaStreamCaptureModeThreadLocal)) {
            c->broken = true;
            forbidden = true;
        }
    }
    return forbidden;
}

} // namespace emulated

using namespace emulated;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    if (cudaError_t error = begin_call(__func__))
        return error;
    if (cudaError_t error = check_stream(stream, __func__))
        return record(error);
    std::lock_guard<std::mutex> hold(runtime_lock());
    if (!is_live(stream))
        return record(cudaErrorInvalidResourceHandle);
    if (stream->capturing != nullptr)
        return record(cudaErrorIllegalState);
    auto c = std::make_shared<capture>();
    c->origin = stream;
    c->thread = std::this_thread::get_id();
    c->mode = mode;
    stream->capturing = c;
    stream->tail.clear();
    open_captures().push_back(c);
    open_capture_count = open_captures().size();
    return cudaSuccess;
}

/* A failure ends the capture too. */
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    cudaError_t error = begin_call(__func__);
    *graph = nullptr;
    std::lock_guard<std::mutex> hold(runtime_lock());
    if (!is_live(stream))
        return record(cudaErrorInvalidResourceHandle);
    if (error != cudaSuccess) { /* ended all the same, on every stream that had joined */
        if (stream->capturing != nullptr)
            discard_capture(std::shared_ptr<capture>(stream->capturing));
        return error;
    }
    std::shared_ptr<capture> c = stream->capturing;
    if (c == nullptr)
        return record(cudaErrorIllegalState);
    if (c->origin != stream)
        return record(cudaErrorStreamCaptureUnmatched);
    if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != std::this_thread::get_id())
        return record(cudaErrorStreamCaptureWrongThread);
    if (bool joined = all_joined(*c); c->broken || !joined) {
        discard_capture(c);
        return record(c->broken ? cudaErrorStreamCaptureInvalidated
                                : cudaErrorStreamCaptureUnjoined);
    }
    close_capture(c);
    *graph = new CUgraph_st{std::move(c->nodes)};
    live_graphs().insert(*graph);
    account("graph", 1);
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *capture_status)
{
    if (cudaError_t error = begin_call(__func__))
        return error;
    if (cudaError_t error = check_stream(stream, __func__))
        return record(error);
    std::lock_guard<std::mutex> hold(runtime_lock());
    if (!is_live(stream))
        return record(cudaErrorInvalidResourceHandle);
    *capture_status = stream->capturing == nullptr ? cudaStreamCaptureStatusNone
                      : stream->capturing->broken  ? cudaStreamCaptureStatusInvalidated
                                                   : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    if (cudaError_t error = begin_call(__func__))
        return error;
    *exec = nullptr;
    std::lock_guard<std::mutex> hold(runtime_lock());
    if (live_graphs().count(graph) == 0 || flags != 0)
        return record(cudaErrorInvalidValue);
    auto made = std::make_shared<executable>();
    made->followers.resize(graph->nodes.size());
    for (size_t node = 0; node < graph->nodes.size(); node++) {
        made->work.push_back(graph->nodes[node].work);
        made->predecessors.push_back(graph->nodes[node].after.size());
        for (size_t before : graph->nodes[node].after)
            made->followers[before].push_back(node);
    }
    *exec = new CUgraphExec_st{made};
    live_executables().insert(*exec);
    account("executable graph", 1);
    return cudaSuccess;
}

/* Does nothing: there is nothing to be sent ahead. */
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    if (cudaError_t error = begin_call(__func__))
        return error;
    if (cudaError_t error = check_stream(stream, __func__))
        return record(error);
    std::lock_guard<std::mutex> hold(runtime_lock());
    if (live_executables().count(exec) == 0 || !is_live(stream))
        return record(cudaErrorInvalidValue);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    if (cudaError_t error = begin_call(__func__))
        return error;
    if (cudaError_t error = check_stream(stream, __func__))
        return record(error);
    std::lock_guard<std::mutex> hold(runtime_lock());
    if (live_executables().count(exec) == 0 || !is_live(stream))
        return record(cudaErrorInvalidValue);
    if (stream->capturing != nullptr)
        fatal("cudaGraphLaunch in a capture is not emulated");
    operation launch = {"cudaGraphLaunch", nullptr, nullptr, stream->device};
    launch.begin = [graph = exec->graph]() -> step_fn {
        auto one = std::make_shared<replay>(graph);
        return [one] { return one->step(); };
    };
    return record(submit(stream, std::make_shared<const operation>(std::move(launch))));
}

/* Executable graphs made from it stay. */
cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    cudaError_t error = begin_call(__func__);
    std::lock_guard<std::mutex> hold(runtime_lock());
    if (live_graphs().erase(graph) == 0)
        return record(cudaErrorInvalidValue);
    delete graph;
    account("graph", -1);
    return error;
}

/* Launches that are under way go on. */
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    cudaError_t error = begin_call(__func__);
    std::lock_guard<std::mutex> hold(runtime_lock());
    if (live_executables().erase(exec) == 0)
        return record(cudaErrorInvalidValue);
    delete exec;
    account("executable graph", -1);
    return error;
}
