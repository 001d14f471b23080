/* Events: an event stands for its latest record, and waits refer to the record that was the latest
 * when they were enqueued. In a capture it stands for nodes of the graph. */
#include "streams.h"

#include <algorithm>
#include <set>

struct CUevent_st {
    unsigned flags;
    std::shared_ptr<emulated::event_record> latest;
    std::shared_ptr<emulated::capture> captured; /* set: the latest record was in this capture */
    std::vector<size_t> nodes;                   /* of that capture */
};

namespace emulated
{

namespace
{

/* Under runtime_lock(). Never destroyed. */
std::set<cudaEvent_t> &live_events()
{
    static auto *all = new std::set<cudaEvent_t>;
    return *all;
}

bool is_live_event(cudaEvent_t event)
{
    return live_events().count(event) != 0;
}

/* With the lock held. The stream joins the event's capture, if it is in none. */
cudaError_t wait_in_capture(cudaStream_t stream, cudaEvent_t event)
{
    if (event->captured == nullptr || event->captured->ended) {
        stream->capturing->broken = true;
        return cudaErrorStreamCaptureIsolation;
    }
    if (stream->capturing == nullptr) {
        stream->capturing = event->captured;
        stream->tail.clear();
    } else if (stream->capturing != event->captured) {
        stream->capturing->broken = event->captured->broken = true;
        return cudaErrorStreamCaptureMerge;
    }
    for (size_t node : event->nodes)
        if (std::find(stream->tail.begin(), stream->tail.end(), node) == stream->tail.end())
            stream->tail.push_back(node);
    return stream->capturing->broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

operation_ptr waiting_for(std::shared_ptr<event_record> latest)
{
    operation wait = {"cudaStreamWaitEvent", nullptr, nullptr};
    wait.begin = [latest] {
        return [latest] { return latest->done.load() ? progress::done : progress::pending; };
    };
    return std::make_shared<const operation>(std::move(wait));
}

operation_ptr recording(std::shared_ptr<event_record> latest)
{
    operation mark = {"cudaEventRecord", nullptr, nullptr};
    mark.run = [latest] {
        latest->time = std::chrono::steady_clock::now();
        latest->done.store(true);
    };
    return std::make_shared<const operation>(std::move(mark));
}

} // namespace

} // namespace emulated

using namespace emulated;

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    if (cudaError_t error = begin_call(__func__))
        return error;
    if ((flags & ~static_cast<unsigned>(cudaEventBlockingSync | cudaEventDisableTiming)) != 0)
        return record(cudaErrorInvalidValue);
    std::lock_guard<std::mutex> hold(runtime_lock());
    *event = new CUevent_st{flags, nullptr, nullptr, {}};
    live_events().insert(*event);
    account("event", 1);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    cudaError_t error = begin_call(__func__);
    std::lock_guard<std::mutex> hold(runtime_lock());
    if (live_events().erase(event) == 0)
        return record(cudaErrorInvalidResourceHandle);
    delete event;
    account("event", -1);
    return error;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    if (cudaError_t error = begin_call(__func__))
        return error;
    if (cudaError_t error = check_stream(stream, __func__))
        return record(error);
    std::lock_guard<std::mutex> hold(runtime_lock());
    if (!is_live_event(event) || !is_live(stream))
        return record(cudaErrorInvalidResourceHandle);
    if (stream->capturing != nullptr) {
        if (stream->capturing->broken)
            return record(cudaErrorStreamCaptureInvalidated);
        event->captured = stream->capturing;
        event->nodes = stream->tail;
        return cudaSuccess;
    }
    event->captured = nullptr;
    event->latest = std::make_shared<event_record>();
    return record(submit(stream, recording(event->latest)));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    if (cudaError_t error = begin_call(__func__))
        return error;
    if (cudaError_t error = check_stream(stream, __func__))
        return record(error);
    std::lock_guard<std::mutex> hold(runtime_lock());
    if (!is_live_event(event) || !is_live(stream))
        return record(cudaErrorInvalidResourceHandle);
    if (flags != 0)
        return record(cudaErrorInvalidValue);
    if (stream->capturing != nullptr || (event->captured != nullptr && !event->captured->ended))
        return record(wait_in_capture(stream, event));
    if (event->captured != nullptr)
        return record(cudaErrorCapturedEvent);
    if (event->latest == nullptr)
        return cudaSuccess;
    return record(submit(stream, waiting_for(event->latest)));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (cudaError_t error = begin_unsafe_call(__func__))
        return error;
    std::lock_guard<std::mutex> hold(runtime_lock());
    if (!is_live_event(event))
        return record(cudaErrorInvalidResourceHandle);
    if (event->captured != nullptr)
        return record(cudaErrorCapturedEvent);
    if (event->latest != nullptr && !event->latest->done.load()) {
        hurry();
        return record(cudaErrorNotReady);
    }
    count_work("wait", __func__);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *elapsed_ms, cudaEvent_t start, cudaEvent_t end)
{
    if (cudaError_t error = begin_call(__func__))
        return error;
    std::lock_guard<std::mutex> hold(runtime_lock());
    if (!is_live_event(start) || !is_live_event(end))
        return record(cudaErrorInvalidResourceHandle);
    if (((start->flags | end->flags) & cudaEventDisableTiming) != 0 || start->latest == nullptr ||
        end->latest == nullptr)
        return record(cudaErrorInvalidResourceHandle);
    if (!start->latest->done.load() || !end->latest->done.load())
        return record(cudaErrorNotReady);
    std::chrono::duration<float, std::milli> elapsed = end->latest->time - start->latest->time;
    *elapsed_ms = elapsed.count();
    return cudaSuccess;
}
