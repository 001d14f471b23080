/* Streams and events: in order within, in any order among each other but for events. */
#include "checks.h"

#include "emulator.h"
#include "kernels/cuda/launch.cuh"

#include <unistd.h>

namespace
{

__global__ void append(float *list, float value)
{
    unsigned at = static_cast<unsigned>(list[0]);
    list[1 + at] = value;
    list[0] = static_cast<float>(at + 1);
}

__global__ void set(float *out, float value)
{
    *out = value;
}

__global__ void copy_one(float *out, const float *in)
{
    *out = *in;
}

/* A list in device memory: its length, then its values. */
void clear(bench &b)
{
    OK(cudaMemsetAsync(b.memory, 0, bench::COUNT * sizeof(float), b.stream));
    b.wait(b.stream);
}

void one_stream_runs_in_order()
{
    bench b;
    clear(b);
    for (int i = 0; i < 1000; i++)
        LAUNCH(b.stream, 1, 1, append, b.memory, static_cast<float>(i));
    std::vector<float> values = b.read();
    for (size_t i = 0; i < 1000; i++)
        EXPECT(values[1 + i] == static_cast<float>(i));
    b.close();
}

/* Fails if the values of the two streams come one stream after the other. */
void two_streams_mix()
{
    bench b;
    clear(b);
    gate busy(b.stream);
    OK(cudaEventRecord(b.event, b.stream));
    OK(cudaStreamWaitEvent(b.side, b.event, 0));
    for (int i = 0; i < 100; i++) {
        LAUNCH(b.stream, 1, 1, append, b.memory, 0.0f);
        LAUNCH(b.side, 1, 1, append, b.memory, 1.0f);
    }
    busy.open();
    std::vector<float> values = b.read();
    int changes = 0;
    for (size_t i = 1; i < 200; i++)
        changes += values[i] != values[i + 1] ? 1 : 0;
    EXPECT(changes > 3);
    b.close();
}

void device_runs_while_the_host_goes_on()
{
    bench b;
    clear(b);
    gate busy(b.stream);
    LAUNCH(b.stream, 1, 1, set, b.memory, 1.0f);
    EXPECT(cudaStreamQuery(b.stream) == cudaErrorNotReady);
    busy.open();
    EXPECT(cudaGetLastError() == cudaErrorNotReady);
    b.wait(b.stream);
    LAUNCH(b.stream, 1, 1, set, b.memory, 2.0f);
    usleep(200000); /* also without being asked */
    OK(cudaStreamQuery(b.stream));
    b.close();
}

/* The side stream reads what the first stream writes. */
template <bool WITH_EVENT> float pass_between_streams(bench &b)
{
    clear(b);
    for (int i = 1; i <= 5; i++)
        LAUNCH(b.stream, 1, 1, set, b.memory, static_cast<float>(i));
    OK(cudaEventRecord(b.event, b.stream));
    if (WITH_EVENT)
        OK(cudaStreamWaitEvent(b.side, b.event, 0));
    LAUNCH(b.side, 1, 1, copy_one, b.memory + 1, b.memory);
    return b.read()[1];
}

void events_order_streams()
{
    bench b;
    for (int i = 0; i < 20; i++)
        EXPECT(pass_between_streams<true>(b) == 5.0f);
    b.close();
}

void missing_wait_shows()
{
    bench b;
    float seen = pass_between_streams<false>(b);
    b.close();
    if (seen != 5.0f)
        wrong_result();
}

/* A wait is for the record that was the latest at the call, not for later ones. */
void waits_are_for_the_latest_record()
{
    bench b;
    clear(b);
    OK(cudaStreamWaitEvent(b.side, b.event, 0)); /* not recorded: no wait */
    OK(cudaEventQuery(b.event));
    gate busy(b.stream);
    LAUNCH(b.stream, 1, 1, append, b.memory, 1.0f);
    OK(cudaEventRecord(b.event, b.stream));
    OK(cudaStreamWaitEvent(b.side, b.event, 0));
    LAUNCH(b.side, 1, 1, append, b.memory, 2.0f);
    OK(cudaEventRecord(b.event, b.side));
    OK(cudaStreamWaitEvent(b.stream, b.event, 0));
    LAUNCH(b.stream, 1, 1, append, b.memory, 3.0f);
    EXPECT(cudaEventQuery(b.event) == cudaErrorNotReady);
    busy.open();
    std::vector<float> values = b.read();
    EXPECT(values[1] == 1.0f && values[2] == 2.0f && values[3] == 3.0f);
    OK(cudaEventQuery(b.event));
    b.close();
}

void events_measure_time()
{
    bench b;
    cudaEvent_t start, end;
    float elapsed_ms = -1.0f;
    OK(cudaEventCreateWithFlags(&start, cudaEventDefault));
    OK(cudaEventCreateWithFlags(&end, cudaEventDefault));
    EXPECT(cudaEventElapsedTime(&elapsed_ms, start, end) == cudaErrorInvalidResourceHandle);
    OK(cudaEventRecord(start, b.stream));
    OK(emulated::enqueue(b.stream, "sleep", [] { usleep(20000); }));
    gate busy(b.stream);
    OK(cudaEventRecord(end, b.stream));
    EXPECT(cudaEventElapsedTime(&elapsed_ms, start, end) == cudaErrorNotReady);
    busy.open();
    b.wait(b.stream);
    OK(cudaEventElapsedTime(&elapsed_ms, start, end));
    EXPECT(elapsed_ms >= 20.0f && elapsed_ms < 10000.0f);
    OK(cudaEventDestroy(start));
    OK(cudaEventDestroy(end));
    b.close();
}

/* Work that waits for the host holds up its own stream alone. */
void waiting_work_lets_others_run()
{
    bench b;
    clear(b);
    gate busy(b.stream);
    LAUNCH(b.stream, 1, 1, append, b.memory, 2.0f);
    LAUNCH(b.side, 1, 1, append, b.memory, 1.0f);
    b.wait(b.side);
    EXPECT(cudaStreamQuery(b.stream) == cudaErrorNotReady);
    busy.open();
    std::vector<float> values = b.read();
    EXPECT(values[0] == 2.0f && values[1] == 1.0f && values[2] == 2.0f);
    b.close();
}

void destroyed_streams_finish_their_work()
{
    bench b;
    clear(b);
    cudaStream_t other;
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    for (int i = 0; i < 10; i++)
        LAUNCH(other, 1, 1, append, b.memory, 1.0f);
    OK(cudaEventRecord(b.event, other));
    OK(cudaStreamDestroy(other));
    EXPECT(cudaStreamQuery(other) == cudaErrorInvalidResourceHandle);
    EXPECT(emulated::stream_device(other) == -1 && emulated::stream_device(b.side) == 0);
    OK(cudaStreamWaitEvent(b.stream, b.event, 0));
    EXPECT(b.read()[0] == 10.0f);
    b.close();
}

/* cudaFree waits for its own device alone. */
void devices_do_not_wait_for_each_other()
{
    bench b;
    gate busy(b.stream);
    OK(cudaSetDevice(1));
    bench other;
    LAUNCH(other.stream, 1, 1, set, other.memory, 1.0f);
    EXPECT(other.read()[0] == 1.0f);
    other.close();
    EXPECT(cudaStreamQuery(b.stream) == cudaErrorNotReady);
    busy.open();
    b.close();
}

void default_stream_dies()
{
    bench b;
    LAUNCH(static_cast<cudaStream_t>(nullptr), 1, 1, set, b.memory, 1.0f);
}

void forked_child_is_told()
{
    bench b;
    pid_t child = fork();
    if (child == 0)
        cudaStreamQuery(b.stream);
    EXPECT(waitpid(child, nullptr, 0) == child);
    b.close();
}

} // namespace

static const std::vector<check> CHECKS = {
    {"stream: one runs in order", one_stream_runs_in_order},
    {"stream: two mix", two_streams_mix, ending::succeeds, nullptr, nullptr, 3},
    {"stream: the device runs while the host goes on", device_runs_while_the_host_goes_on},
    {"stream: events order streams", events_order_streams, ending::succeeds, nullptr, nullptr, 5},
    {"stream: a missing wait shows", missing_wait_shows, ending::shows, nullptr, nullptr, 5},
    {"stream: waits are for the latest record", waits_are_for_the_latest_record, ending::succeeds,
     nullptr, nullptr, 3},
    {"stream: events measure time", events_measure_time},
    {"stream: waiting work lets others run", waiting_work_lets_others_run, ending::succeeds,
     nullptr, nullptr, 3},
    {"stream: destroyed ones finish their work", destroyed_streams_finish_their_work},
    {"stream: devices do not wait for each other", devices_do_not_wait_for_each_other,
     ending::succeeds, nullptr, "MNIST_DDP_EMULATED_DEVICES=2"},
    {"stream: the default one dies", default_stream_dies, ending::dies,
     "the default stream is not emulated"},
    {"stream: a forked child is told", forked_child_is_told, ending::succeeds,
     "called in a child of the process"},
};

int main(int argc, char **argv)
{
    return run_checks(CHECKS, argc, argv);
}
