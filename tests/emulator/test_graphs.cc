/* Capture and replay. */
#include "checks.h"

#include "emulator.h"
#include "kernels/cuda/launch.cuh"

#include <atomic>
#include <memory>
#include <thread>

namespace
{

__global__ void add_to(float *out, float value)
{
    *out += value;
}

__global__ void multiply(float *out, const float *by)
{
    *out *= *by;
}

__global__ void append(float *list, float value)
{
    unsigned at = static_cast<unsigned>(list[0]);
    list[1 + at] = value;
    list[0] = static_cast<float>(at + 1);
}

cudaGraphExec_t instantiate(cudaStream_t stream)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphUpload(exec, stream));
    return exec;
}

/* The side stream takes part from here on. */
void fork_side(bench &b)
{
    OK(cudaEventRecord(b.event, b.stream));
    OK(cudaStreamWaitEvent(b.side, b.event, 0));
}

void join_side(bench &b)
{
    OK(cudaEventRecord(b.event, b.side));
    OK(cudaStreamWaitEvent(b.stream, b.event, 0));
}

void begin(bench &b)
{
    OK(cudaMemsetAsync(b.memory, 0, bench::COUNT * sizeof(float), b.stream));
    b.wait(b.stream);
    OK(cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeThreadLocal));
}

/* x += 1 | y = x, then y += 10 on the side, while z += 1 | x *= y */
void graph_with_a_side_stream()
{
    bench b;
    float *x = b.memory, *y = x + 1, *z = x + 2;
    begin(b);
    LAUNCH(b.stream, 1, 1, add_to, x, 1.0f);
    fork_side(b);
    OK(cudaMemcpyAsync(y, x, sizeof *x, cudaMemcpyDeviceToDevice, b.side));
    LAUNCH(b.side, 1, 1, add_to, y, 10.0f);
    LAUNCH(b.stream, 1, 1, add_to, z, 1.0f);
    join_side(b);
    LAUNCH(b.stream, 1, 1, multiply, x, y);
    cudaGraphExec_t exec = instantiate(b.stream);
    EXPECT(b.read()[2] == 0.0f); /* nothing has run yet */
    float want = 0.0f;
    for (int i = 0; i < 3; i++) {
        OK(cudaGraphLaunch(exec, b.stream));
        LAUNCH(b.stream, 1, 1, add_to, x, -1.0f); /* a launch is one unit in its stream's order */
        want = (want + 1.0f) * (want + 11.0f) - 1.0f;
    }
    std::vector<float> values = b.read();
    EXPECT(values[0] == want && values[2] == 3.0f);
    OK(cudaGraphExecDestroy(exec));
    b.close();
}

void unordered_nodes_come_in_any_order()
{
    bench b;
    begin(b);
    fork_side(b);
    LAUNCH(b.stream, 1, 1, append, b.memory, 1.0f);
    LAUNCH(b.side, 1, 1, append, b.memory, 2.0f);
    join_side(b);
    cudaGraphExec_t exec = instantiate(b.stream);
    for (int i = 0; i < 50; i++)
        OK(cudaGraphLaunch(exec, b.stream));
    std::vector<float> values = b.read();
    int first = 0;
    for (size_t i = 0; i < 50; i++) {
        EXPECT(values[1 + 2 * i] + values[2 + 2 * i] == 3.0f);
        first += values[1 + 2 * i] == 1.0f ? 1 : 0;
    }
    EXPECT(first > 10 && first < 40);
    OK(cudaGraphExecDestroy(exec));
    b.close();
}

/* Of the same executable graph, even in different streams. */
void launches_do_not_overlap()
{
    bench b;
    begin(b);
    for (float value : {1.0f, 2.0f, 3.0f})
        LAUNCH(b.stream, 1, 1, append, b.memory, value);
    cudaGraphExec_t exec = instantiate(b.stream);
    gate busy(b.stream);
    OK(cudaEventRecord(b.event, b.stream));
    OK(cudaStreamWaitEvent(b.side, b.event, 0));
    for (int i = 0; i < 20; i++) {
        OK(cudaGraphLaunch(exec, b.stream));
        OK(cudaGraphLaunch(exec, b.side));
    }
    busy.open();
    std::vector<float> values = b.read();
    EXPECT(values[0] == 120.0f);
    for (size_t i = 0; i < 120; i++)
        EXPECT(values[1 + i] == static_cast<float>(1 + i % 3));
    OK(cudaGraphExecDestroy(exec));
    b.close();
}

/* Arguments and pinned memory: the former as they were at the capture, the latter as it is. */
void copies_read_pinned_memory_at_replay()
{
    bench b;
    void *pinned;
    OK(cudaHostAlloc(&pinned, sizeof(float), cudaHostAllocDefault));
    auto *value = static_cast<float *>(pinned);
    *value = 1.0f;
    begin(b);
    OK(cudaMemcpyAsync(b.memory, value, sizeof *value, cudaMemcpyHostToDevice, b.stream));
    cudaGraphExec_t exec = instantiate(b.stream);
    for (int i = 5; i < 8; i++) {
        *value = static_cast<float>(i);
        OK(cudaGraphLaunch(exec, b.stream));
        EXPECT(b.read()[0] == static_cast<float>(i));
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaFreeHost(pinned));
    b.close();
}

/* Library work on a side stream that waits: begun anew at each replay. */
void steps_begin_at_each_replay()
{
    bench b;
    std::atomic<int> begun{0}, steps{0};
    begin(b);
    fork_side(b);
    OK(emulated::enqueue_steps(b.side, "collective", [&]() -> emulated::step_fn {
        begun++;
        auto left = std::make_shared<int>(3);
        return [&steps, left] {
            steps++;
            return --*left == 0 ? emulated::progress::done : emulated::progress::pending;
        };
    }));
    LAUNCH(b.stream, 1, 1, add_to, b.memory, 1.0f);
    join_side(b);
    OK(emulated::enqueue(b.stream, "check", [&] { EXPECT(steps.load() == 3 * begun.load()); }));
    cudaGraphExec_t exec = instantiate(b.stream);
    for (int i = 0; i < 10; i++)
        OK(cudaGraphLaunch(exec, b.stream));
    EXPECT(b.read()[0] == 10.0f);
    EXPECT(begun.load() == 10 && steps.load() == 30);
    OK(cudaGraphExecDestroy(exec));
    b.close();
}

template <typename Call> void is_forbidden(bench &b, Call call)
{
    cudaGraph_t graph;
    cudaStreamCaptureStatus status;
    begin(b);
    LAUNCH(b.stream, 1, 1, add_to, b.memory, 1.0f);
    EXPECT(call() == cudaErrorStreamCaptureUnsupported);
    EXPECT(cudaGetLastError() == cudaErrorStreamCaptureUnsupported);
    OK(cudaStreamIsCapturing(b.stream, &status));
    EXPECT(status == cudaStreamCaptureStatusInvalidated);
    LAUNCH(b.stream, 1, 1, add_to, b.memory, 1.0f);
    EXPECT(cudaGetLastError() == cudaErrorStreamCaptureInvalidated);
    EXPECT(cudaStreamEndCapture(b.stream, &graph) == cudaErrorStreamCaptureInvalidated);
    EXPECT(graph == nullptr);
    OK(cudaStreamIsCapturing(b.stream, &status));
    EXPECT(status == cudaStreamCaptureStatusNone);
    EXPECT(b.read()[0] == 0.0f);
}

void unsafe_calls_are_forbidden()
{
    bench b;
    void *memory;
    float own = 0.0f;
    is_forbidden(b, [&] { return cudaMalloc(&memory, 4); });
    is_forbidden(b, [&] { return cudaFree(b.memory); });
    is_forbidden(b, [&] { return cudaHostAlloc(&memory, 4, 0); });
    is_forbidden(b, [&] { return cudaMemset(b.memory, 0, 4); });
    is_forbidden(b, [&] { return cudaStreamQuery(b.stream); });
    is_forbidden(b, [&] { return cudaEventQuery(b.event); });
    is_forbidden(
        b, [&] { return cudaMemcpyAsync(&own, b.memory, 4, cudaMemcpyDeviceToHost, b.stream); });
    is_forbidden(
        b, [&] { return cudaMemcpyAsync(b.memory, &own, 4, cudaMemcpyHostToDevice, b.stream); });
    b.close();
}

void other_threads_go_on()
{
    bench b;
    begin(b);
    LAUNCH(b.stream, 1, 1, add_to, b.memory, 1.0f);
    std::thread([&] {
        void *memory;
        OK(cudaMalloc(&memory, 4));
        OK(cudaFree(memory));
        OK(cudaStreamQuery(b.side));
    }).join();
    cudaGraphExec_t exec = instantiate(b.stream);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeGlobal));
    std::thread([&] {
        void *memory;
        EXPECT(cudaMalloc(&memory, 4) == cudaErrorStreamCaptureUnsupported);
    }).join();
    cudaGraph_t graph;
    EXPECT(cudaStreamEndCapture(b.stream, &graph) == cudaErrorStreamCaptureInvalidated);
    b.close();
}

void captures_must_be_joined()
{
    bench b;
    cudaGraph_t graph;
    begin(b);
    LAUNCH(b.stream, 1, 1, add_to, b.memory, 1.0f);
    fork_side(b);
    LAUNCH(b.side, 1, 1, add_to, b.memory + 1, 1.0f);
    EXPECT(cudaStreamEndCapture(b.side, &graph) == cudaErrorStreamCaptureUnmatched);
    EXPECT(cudaStreamEndCapture(b.stream, &graph) == cudaErrorStreamCaptureUnjoined);
    EXPECT(graph == nullptr);
    OK(cudaStreamQuery(b.side)); /* it captures no longer */
    b.close();
}

void captures_stay_apart()
{
    bench b;
    cudaGraph_t graph;
    cudaEvent_t other;
    OK(cudaEventCreateWithFlags(&other, cudaEventDisableTiming));
    OK(cudaEventRecord(other, b.side));
    begin(b);
    EXPECT(cudaStreamWaitEvent(b.stream, other, 0) == cudaErrorStreamCaptureIsolation);
    EXPECT(cudaStreamEndCapture(b.stream, &graph) == cudaErrorStreamCaptureInvalidated);

    begin(b);
    OK(cudaStreamBeginCapture(b.side, cudaStreamCaptureModeThreadLocal));
    OK(cudaEventRecord(b.event, b.stream));
    EXPECT(cudaStreamWaitEvent(b.side, b.event, 0) == cudaErrorStreamCaptureMerge);
    EXPECT(cudaStreamEndCapture(b.stream, &graph) == cudaErrorStreamCaptureInvalidated);
    EXPECT(cudaStreamEndCapture(b.side, &graph) == cudaErrorStreamCaptureInvalidated);
    EXPECT(cudaEventQuery(b.event) == cudaErrorCapturedEvent);

    begin(b);
    EXPECT(cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeThreadLocal) ==
           cudaErrorIllegalState);
    std::thread([&] {
        EXPECT(cudaStreamEndCapture(b.stream, &graph) == cudaErrorStreamCaptureWrongThread);
    }).join();
    OK(cudaStreamEndCapture(b.stream, &graph)); /* empty */
    OK(cudaGraphDestroy(graph));
    EXPECT(cudaGraphDestroy(graph) == cudaErrorInvalidValue);
    EXPECT(cudaStreamEndCapture(b.stream, &graph) == cudaErrorIllegalState);
    OK(cudaEventDestroy(other));
    b.close();
}

void failures_end_the_capture()
{
    bench b;
    cudaGraph_t graph;
    void *memory;
    begin(b);
    EXPECT(cudaStreamEndCapture(b.stream, &graph) == cudaErrorUnknown && graph == nullptr);
    OK(cudaMalloc(&memory, 4));
    OK(cudaFree(memory));
    begin(b);
    OK(cudaStreamDestroy(b.stream));
    OK(cudaMalloc(&memory, 4));
    OK(cudaFree(memory));
    OK(cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking));
    b.close();
}

/* Whether a kernel's first launch, into a recording on device 0, waits for a stream that is held
 * up.
 */
bool loading_waits_for(cudaStream_t held, bench &b)
{
    gate busy(held);
    std::atomic<bool> launched{false};
    bool waited = false;
    begin(b);
    std::thread opener([&] {
        usleep(100000);
        waited = !launched;
        busy.open();
    });
    LAUNCH(b.stream, 1, 1, add_to, b.memory, 1.0f);
    OK(cudaGetLastError());
    launched = true;
    opener.join();
    LAUNCH(b.stream, 1, 1, add_to, b.memory, 1.0f); /* waits for nothing */
    OK(cudaGraphExecDestroy(instantiate(b.stream)));
    b.wait(held);
    return waited;
}

void loading_in_a_recording()
{
    bench b;
    EXPECT(loading_waits_for(b.side, b));
    b.close();
}

template <bool waits> void loading_beside_another_device()
{
    bench b;
    cudaStream_t other;
    OK(cudaSetDevice(1));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    OK(cudaSetDevice(0));
    EXPECT(loading_waits_for(other, b) == waits);
    OK(cudaStreamDestroy(other));
    b.close();
}

} // namespace

static const std::vector<check> CHECKS = {
    {"graph: captured with a side stream", graph_with_a_side_stream, ending::succeeds, nullptr,
     nullptr, 5},
    {"graph: unordered nodes come in any order", unordered_nodes_come_in_any_order,
     ending::succeeds, nullptr, nullptr, 3},
    {"graph: launches of one do not overlap", launches_do_not_overlap},
    {"graph: copies read pinned memory at replay", copies_read_pinned_memory_at_replay},
    {"graph: steps begin at each replay", steps_begin_at_each_replay, ending::succeeds, nullptr,
     nullptr, 3},
    {"graph: unsafe calls are forbidden", unsafe_calls_are_forbidden},
    {"graph: other threads go on", other_threads_go_on},
    {"graph: captures must be joined", captures_must_be_joined},
    {"graph: captures stay apart", captures_stay_apart},
    {"graph: a failure ends the capture", failures_end_the_capture, ending::succeeds, nullptr,
     "MNIST_DDP_EMULATED_FAIL=cudaStreamEndCapture:1:999"},
    {"graph: loading a kernel waits for the device", loading_in_a_recording, ending::succeeds,
     nullptr, "MNIST_DDP_EMULATED_LAZY=1"},
    {"graph: loading a kernel does not wait for others", loading_beside_another_device<false>,
     ending::succeeds, nullptr, "MNIST_DDP_EMULATED_LAZY=1 MNIST_DDP_EMULATED_DEVICES=2"},
    {"graph: loading a kernel waits behind one lock", loading_beside_another_device<true>,
     ending::succeeds, nullptr, "MNIST_DDP_EMULATED_LAZY=2 MNIST_DDP_EMULATED_DEVICES=2"},
};

int main(int argc, char **argv)
{
    return run_checks(CHECKS, argc, argv);
}
