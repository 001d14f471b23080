/* The device thread, and the streams it serves. */
#include "streams.h"

#include <algorithm>
#include <condition_variable>
#include <sched.h>

namespace emulated
{

namespace
{

using namespace std::chrono_literals;

constexpr auto GATHERING_TIME = 300us;   /* of an idle device, for more work to come */
constexpr auto POLLING_TIME = 50us;      /* between looks at work that waits for other processes */
constexpr auto LONGEST_WAIT = 120s;      /* of the host for the device */
constexpr unsigned SPINS = 100;          /* looks before POLLING_TIME is waited */
constexpr uint32_t PRIORITY_CHANGES = 4; /* one in so many operations changes a priority */

struct scheduler {
    std::mutex lock;
    std::condition_variable for_device, for_host;
    std::vector<std::unique_ptr<CUstream_st>> streams;
    bool started = false;
    bool host_waits = false;
    bool stopping = false, stopped = false;
};

/* Never destroyed: the device thread may still run while the process ends. */
scheduler &the_scheduler()
{
    static scheduler *one = new scheduler;
    return *one;
}

bool has_work(const scheduler &s)
{
    return std::any_of(s.streams.begin(), s.streams.end(),
                       [](const auto &stream) { return !stream->queue.empty(); });
}

/* Streams with work, most urgent first. */
std::vector<cudaStream_t> runnable(const scheduler &s)
{
    std::vector<cudaStream_t> found;
    for (const auto &stream : s.streams)
        if (!stream->queue.empty())
            found.push_back(stream.get());
    std::sort(found.begin(), found.end(),
              [](cudaStream_t a, cudaStream_t b) { return a->priority > b->priority; });
    return found;
}

/* The stream's first operation is done. */
void finish_first(scheduler &s, cudaStream_t stream)
{
    stream->queue.pop_front();
    if (stream->queue.empty())
        s.for_host.notify_all();
    if (!stream->live && stream->queue.empty())
        s.streams.erase(std::find_if(s.streams.begin(), s.streams.end(),
                                     [=](const auto &one) { return one.get() == stream; }));
}

/* Runs a piece of one stream's work; false if every stream's first operation waits. */
bool run_some(scheduler &s, std::unique_lock<std::mutex> &hold)
{
    std::vector<cudaStream_t> streams = runnable(s);
    if (random_below(PRIORITY_CHANGES) == 0)
        streams[random_below(static_cast<uint32_t>(streams.size()))]->priority =
            random_below(UINT32_MAX); /* from the next look on */
    for (cudaStream_t stream : streams) {
        execution &current = stream->current;
        if (current.work == nullptr)
            current.work = stream->queue.front();
        hold.unlock();
        progress result = sticky_error() != cudaSuccess ? progress::done : current.advance();
        if (result == progress::done)
            current = {};
        hold.lock();
        if (result == progress::done)
            finish_first(s, stream);
        if (result != progress::pending)
            return true;
    }
    return false;
}

void serve(scheduler &s)
{
    become_device_thread();
    unsigned fruitless = 0;
    std::unique_lock<std::mutex> hold(s.lock);
    while (!s.stopping) {
        if (!has_work(s)) {
            s.host_waits = false;
            s.for_device.wait(hold, [&] { return s.stopping || has_work(s); });
            s.for_device.wait_for(hold, GATHERING_TIME, [&] { return s.stopping || s.host_waits; });
        } else if (run_some(s, hold)) {
            fruitless = 0;
        } else if (++fruitless < SPINS) {
            hold.unlock();
            sched_yield();
            hold.lock();
        } else {
            s.for_device.wait_for(hold, POLLING_TIME);
        }
    }
    s.stopped = true;
    s.for_host.notify_all();
}

/* At the end of the process: work that is left is not done. */
void stop(int, void *)
{
    scheduler &s = the_scheduler();
    std::unique_lock<std::mutex> hold(s.lock);
    s.stopping = true;
    s.for_device.notify_all();
    s.for_host.wait_for(hold, 1s, [&] { return s.stopped; });
}

void start(scheduler &s)
{
    s.started = true;
    on_exit(stop, nullptr);
    std::thread([&s] { serve(s); }).detach();
}

template <typename Condition>
void wait_for_device(scheduler &s, std::unique_lock<std::mutex> &hold, const char *caller,
                     Condition reached)
{
    if (on_device_thread())
        fatal("%s: called by work of the device", caller);
    hurry();
    if (!s.for_host.wait_for(hold, LONGEST_WAIT, reached))
        fatal("%s has waited too long for the device", caller);
}

} // namespace

std::mutex &runtime_lock()
{
    return the_scheduler().lock;
}

progress execution::advance()
{
    progress result = progress::done;
    set_operation(work->name);
    if (!step)
        count_work(where, work->name);
    int before = work_on_device(work->device);
    if (work->run) {
        work->run();
    } else {
        if (!step)
            step = work->begin();
        result = step();
    }
    work_on_device(-1);
    if (result != progress::pending)
        check_guard_zones(work->name);
    work_on_device(before);
    set_operation(nullptr);
    return result;
}

bool is_live(cudaStream_t stream)
{
    const scheduler &s = the_scheduler();
    return std::any_of(s.streams.begin(), s.streams.end(),
                       [=](const auto &one) { return one.get() == stream && one->live; });
}

std::vector<cudaStream_t> streams_of(const std::shared_ptr<capture> &c)
{
    std::vector<cudaStream_t> found;
    for (const auto &stream : the_scheduler().streams)
        if (stream->capturing == c)
            found.push_back(stream.get());
    return found;
}

void hurry()
{
    scheduler &s = the_scheduler();
    if (s.host_waits)
        return;
    s.host_waits = true;
    s.for_device.notify_all();
}

cudaError_t submit(cudaStream_t stream, operation_ptr work)
{
    scheduler &s = the_scheduler();
    if (!is_live(stream))
        return cudaErrorInvalidResourceHandle;
    if (stream->capturing != nullptr) {
        capture &c = *stream->capturing;
        if (c.broken)
            return cudaErrorStreamCaptureInvalidated;
        c.nodes.push_back({std::move(work), stream->tail});
        stream->tail = {c.nodes.size() - 1};
        return cudaSuccess;
    }
    stream->queue.push_back(std::move(work));
    if (!s.started)
        start(s);
    s.for_device.notify_all();
    return cudaSuccess;
}

cudaError_t submit_work(cudaStream_t stream, operation work)
{
    if (cudaError_t error = check_stream(stream, work.name))
        return error;
    std::lock_guard<std::mutex> hold(runtime_lock());
    work.device = is_live(stream) ? stream->device : -1;
    return submit(stream, std::make_shared<const operation>(std::move(work)));
}

cudaError_t check_stream(cudaStream_t stream, const char *caller)
{
    if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
        fatal("%s: the default stream is not emulated", caller);
    return device_status();
}

cudaError_t enqueue(cudaStream_t stream, const char *name, std::function<void()> run)
{
    return submit_work(stream, {name, std::move(run), nullptr});
}

cudaError_t enqueue_steps(cudaStream_t stream, const char *name, std::function<step_fn()> begin)
{
    return submit_work(stream, {name, nullptr, std::move(begin)});
}

cudaStream_t make_stream()
{
    scheduler &s = the_scheduler();
    std::lock_guard<std::mutex> hold(s.lock);
    s.streams.push_back(std::make_unique<CUstream_st>());
    s.streams.back()->device = current_device();
    return s.streams.back().get();
}

int stream_device(cudaStream_t stream)
{
    std::lock_guard<std::mutex> hold(runtime_lock());
    return is_live(stream) ? stream->device : -1;
}

bool is_capturing(cudaStream_t stream)
{
    std::lock_guard<std::mutex> hold(runtime_lock());
    return is_live(stream) && stream->capturing != nullptr;
}

void wait_until_idle(cudaStream_t stream, const char *caller)
{
    scheduler &s = the_scheduler();
    std::unique_lock<std::mutex> hold(s.lock);
    wait_for_device(s, hold, caller, [=] { return !is_live(stream) || stream->queue.empty(); });
}

void wait_until_device_is_idle(int device, const char *caller)
{
    scheduler &s = the_scheduler();
    std::unique_lock<std::mutex> hold(s.lock);
    wait_for_device(s, hold, caller, [&] {
        return std::all_of(s.streams.begin(), s.streams.end(), [=](const auto &stream) {
            bool counts = device == ALL_DEVICES || stream->device == device;
            return !counts || stream->queue.empty();
        });
    });
}

} // namespace emulated

using namespace emulated;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    if (cudaError_t error = begin_call(__func__))
        return error;
    if (flags != cudaStreamNonBlocking)
        fatal("cudaStreamCreateWithFlags: only cudaStreamNonBlocking is emulated");
    *stream = make_stream();
    account("stream", 1);
    return cudaSuccess;
}

/* The device thread's choice is random: what a priority asks for, no program may rely on. */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int)
{
    if (cudaError_t error = begin_call(__func__))
        return error;
    if (flags != cudaStreamNonBlocking)
        fatal("cudaStreamCreateWithPriority: only cudaStreamNonBlocking is emulated");
    *stream = make_stream();
    account("stream", 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    if (cudaError_t error = begin_call(__func__))
        return error;
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

/* Its work goes on. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cudaError_t error = begin_call(__func__);
    scheduler &s = the_scheduler();
    std::lock_guard<std::mutex> hold(s.lock);
    if (!is_live(stream))
        return record(cudaErrorInvalidResourceHandle);
    leave_capture(stream);
    stream->live = false;
    if (stream->queue.empty())
        s.streams.erase(std::find_if(s.streams.begin(), s.streams.end(),
                                     [=](const auto &one) { return one.get() == stream; }));
    account("stream", -1);
    return error;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    if (cudaError_t error = begin_unsafe_call(__func__))
        return error;
    if (cudaError_t error = check_stream(stream, __func__))
        return record(error);
    std::lock_guard<std::mutex> hold(runtime_lock());
    if (!is_live(stream))
        return record(cudaErrorInvalidResourceHandle);
    if (stream->capturing != nullptr) {
        stream->capturing->broken = true;
        return record(cudaErrorStreamCaptureUnsupported);
    }
    if (!stream->queue.empty()) {
        hurry();
        return record(cudaErrorNotReady);
    }
    count_work("wait", __func__);
    return record(sticky_error()); /* which that work may have set since the call began */
}
