/* Streams and the device thread that runs what they hold.
 *
 * One lock, runtime_lock(), guards streams, captures and events. The device thread runs operations
 * without it. Work of one stream runs in order. Of the streams that have work, the device thread
 * takes one by a priority that changes at random; so what is ordered by no event comes in any
 * order. To have a choice at all it lets an idle device's first work wait a little, for more to
 * come, unless the host asks for results meanwhile.
 */
#ifndef MNIST_DDP_TESTS_EMULATOR_STREAMS_H
#define MNIST_DDP_TESTS_EMULATOR_STREAMS_H

#include "runtime.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace emulated
{

/* Work of a stream or a node of a graph. Either `run` is set or `begin`. */
struct operation {
    const char *name;
    std::function<void()> run;
    std::function<step_fn()> begin;
    int device = -1; /* its stream's: whose memory it may touch */
};

using operation_ptr = std::shared_ptr<const operation>;

struct graph_node {
    operation_ptr work;
    std::vector<size_t> after; /* nodes that must be done before; all earlier in the list */
};

/* What is recorded between cudaStreamBeginCapture and cudaStreamEndCapture. */
struct capture {
    cudaStream_t origin;
    std::thread::id thread;
    cudaStreamCaptureMode mode;
    bool broken = false;
    bool ended = false;
    std::vector<graph_node> nodes;
};

/* One cudaEventRecord. */
struct event_record {
    std::atomic<bool> done{false};
    std::chrono::steady_clock::time_point time;
};

/* One operation under way; advance() runs a piece of it. */
struct execution {
    operation_ptr work;
    step_fn step;
    const char *where = "stream"; /* for count_work */

    progress advance();
};

std::mutex &runtime_lock();

/* These need the lock held. */
bool is_live(cudaStream_t stream);
cudaError_t submit(cudaStream_t stream, operation_ptr work);
std::vector<cudaStream_t> streams_of(const std::shared_ptr<capture> &c);

/* Breaks the stream's capture, if it has one, and ends it if it began there. */
void leave_capture(cudaStream_t stream);

/* Takes the lock. */
cudaError_t submit_work(cudaStream_t stream, operation work);

/* A new stream of the current device that no account knows. Takes the lock. */
cudaStream_t make_stream();

/* cudaSuccess; the sticky error; or fatal if it is the default stream, which is not emulated. */
cudaError_t check_stream(cudaStream_t stream, const char *caller);

/* The host waits for the device: it must not idle any longer. With the lock held. */
void hurry();

/* Blocks until the stream has run all its work. */
void wait_until_idle(cudaStream_t stream, const char *caller);

} // namespace emulated

struct CUstream_st {
    int device = 0;
    bool live = true; /* false: destroyed, and gone once its work is done */
    uint32_t priority = 0;
    std::deque<emulated::operation_ptr> queue;
    emulated::execution current; /* of the first in the queue; the device thread's */
    std::shared_ptr<emulated::capture> capturing;
    std::vector<size_t> tail; /* while capturing: the nodes that its next one comes after */
};

#endif
