/* Emulated NCCL: a communicator. */
#ifndef MNIST_DDP_TESTS_EMULATOR_NCCL_COMM_H
#define MNIST_DDP_TESTS_EMULATOR_NCCL_COMM_H

#include "emulator.h"
#include "nccl_region.h"
#include "nccl_settings.h"

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace emulated
{

/* One call of a collective, of ncclSend or of ncclRecv. */
struct nccl_call {
    nccl_operation operation;
    const void *send;
    void *receive;
};

/* What is enqueued as one: a collective, or the messages of a group. */
struct nccl_launch {
    std::vector<nccl_call> calls;
    cudaStream_t stream;
};

inline bool is_message(nccl_kind kind)
{
    return kind == nccl_kind::send || kind == nccl_kind::receive;
}

/* What a communicator shares with the one that it was split from. */
struct nccl_family {
    nccl_region region;
    std::atomic<bool> aborted{false};
};

/* One that blocks enqueues in the caller. Its first collective, and its first message with a peer,
 * connect: they return when the others have come to theirs as well, or the family is aborted. */
class communicator : public std::enable_shared_from_this<communicator>
{
  public:
    communicator(std::shared_ptr<nccl_family> family, int ranks, int rank, bool blocking,
                 int device);
    ~communicator();

    /* ncclInProgress if the communicator does not block. */
    ncclResult_t join(const ncclUniqueId &id);

    /* ncclSuccess; or, if the communicator does not block, ncclInProgress: then a thread of its own
     * enqueues it, also into a capture, and async_error() tells when that is done. */
    ncclResult_t launch(std::vector<nccl_launch> launches);

    ncclResult_t async_error();
    ncclResult_t finalize();

    /* One with the same ranks, which shares the region: this one may do no operation from then on.
     * `publish` gets it once all ranks have asked; then this one has settled. */
    ncclResult_t split(bool child_blocks,
                       std::function<void(std::shared_ptr<communicator>)> publish);

    /* Waits until no operation of this communicator runs or can be replayed; after abort() running
     * ones end at once. Fatal if that does not happen: the real one would block forever. */
    void release(const char *caller);
    void abort();

    /* The device thread's. */
    bool was_aborted() const
    {
        return family->aborted.load();
    }
    bool a_peer_has_aborted() const;

    const int ranks, rank;
    bool shares = false; /* config.splitShare */

  private:
    const std::shared_ptr<nccl_family> family;

  public:
    nccl_region &region;
    nccl_algorithms algorithms; /* set once all have joined */

    /* The device thread's: those that have begun, in their order; the first may go on. */
    std::deque<const void *> executions;
    uint64_t round = 0, operations = 0;

    /* What is kept for an operation that is enqueued, or recorded in a graph. CUDA tells of the end
     * of a graph later, from a thread of its own. */
    struct ticket {
        ticket(std::shared_ptr<communicator> of, bool in_graph_);
        ~ticket();
        ticket(const ticket &) = delete;
        ticket &operator=(const ticket &) = delete;

        const std::shared_ptr<communicator> owner;
        const bool in_graph;
    };

  private:
    enum class phase { joining, ready, splitting, split, finalizing, finalized };

    ncclResult_t check_duplicates();
    ncclResult_t check_peers();
    void watch_peers();
    ncclResult_t connect(const nccl_launch &launch);
    ncclResult_t enqueue_here(std::unique_lock<std::mutex> &hold,
                              const std::vector<nccl_launch> &launches);
    ncclResult_t enqueue(const std::vector<nccl_launch> &launches);
    ncclResult_t advance();
    void join_enqueuer();

    const bool blocking;
    const int device;
    std::mutex lock; /* of all below */
    phase now = phase::joining;
    ncclResult_t error = ncclSuccess;
    bool asked = false; /* whether ncclInProgress was told of what is being enqueued */
    std::thread enqueuer;
    std::vector<int> watched; /* pidfds of the other processes */
    bool child_blocks = false;
    std::function<void(std::shared_ptr<communicator>)> publish;

    ncclResult_t enqueued = ncclSuccess; /* the enqueuer's, until it has: */
    std::atomic<bool> has_enqueued{false};

    std::atomic<int> outstanding{0}, in_graphs{0}, callers{0};
};

/* Whether MNIST_DDP_EMULATED_NCCL has "remote_error". */
bool nccl_reports_dead_peers();

/* Whether it has "garbage": what a rank aborts ends on all others, too, as if it were whole, and
 * leaves garbage there. The real one's kernels let their peers go on when they end early. */
bool nccl_aborts_leave_garbage();

/* Whether the operation that begins now is the K-th of "hang:K" there. */
bool nccl_next_hangs();

/* "ncclAllReduce(5 x ncclFloat32, ncclSum)" */
void nccl_describe(const nccl_operation &operation, char *text, size_t size_bytes);
const char *nccl_name(nccl_kind kind);

/* Called by the device thread when a launch is next in its stream. */
step_fn nccl_begin(const std::shared_ptr<communicator> &comm, const std::vector<nccl_call> &calls);

} // namespace emulated

#endif
