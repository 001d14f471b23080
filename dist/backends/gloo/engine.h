// One gloo context and the thread that runs its collectives, one after the other, in the order of
// their launch. One whose caller blocks is run by the caller: that saves two changes of threads.
// Sends and receives need no thread: gloo moves them from their launch on. Methods
// may throw; dist/backends/gloo/module.cc turns that into a status.
#ifndef MNIST_DDP_DIST_BACKENDS_GLOO_ENGINE_H
#define MNIST_DDP_DIST_BACKENDS_GLOO_ENGINE_H

#include <cstddef>
#include <cstdint>

extern "C" {
#include "dist/collective/process_group_ops.h"
#include "dist/health/first_cause.h"
}

#include "dist/backends/gloo/failure.h"
#include "dist/backends/gloo/messages.h"

#include <gloo/rendezvous/context.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace mnist_ddp
{

// An operation under way. If it is a collective, the thread that runs it writes it until done,
// under the engine's lock.
struct job {
    collective what;
    std::unique_ptr<messages> between_two; // of a send or recv
    bool done = false;
    failure result{STATUS_OK};
    int64_t done_ns = 0;
};

class engine : public std::enable_shared_from_this<engine>
{
  public:
    // Connects to all ranks; throws failure.
    explicit engine(const group_setup &setup);
    ~engine();
    engine(const engine &) = delete;
    engine &operator=(const engine &) = delete;

    // Starts the thread; it shares the ownership of the engine.
    void start();

    // Enqueues; the job lives until it is waited for, or the engine ends.
    job *launch(const collective &what);

    // Returns when `waited`, the oldest job, is done, and forgets it. Throws failure.
    void wait(job *waited, int64_t deadline_ns, int64_t *done_ns);

    // From any thread: what waits fails, and all that is launched after it.
    void abort();

    // Ends the thread and the connections; see gloo_destroy.
    void stop();

  private:
    void run();
    void run_oldest(std::unique_lock<std::mutex> &hold, int64_t deadline_ns);
    bool finish(std::unique_lock<std::mutex> &hold, const std::shared_ptr<job> &j,
                int64_t deadline_ns);
    std::shared_ptr<job> start_between_two(const collective &what);
    failure finish_between_two(const job &j, int64_t deadline_ns);
    void say_goodbye();
    failure explain(const std::string &text);
    std::string who_stopped() const;
    std::shared_ptr<job> enqueue(const collective &what);

    int rank_, world_size_;
    store *store_; // borrowed
    std::string prefix_;
    std::shared_ptr<gloo::rendezvous::Context> context_;
    first_cause *cause_ = nullptr;
    std::vector<char> scratch_; // of the collective under way
    std::mutex explaining_;
    std::atomic<bool> aborted_{false};

    std::mutex lock_;                           // of all below
    std::condition_variable wanted_;            // something to run, or the end; for the thread
    std::condition_variable done_;              // a job, or the thread
    std::deque<std::shared_ptr<job>> queue_;    // to be run
    bool running_ = false;                      // one of them, by any thread
    std::deque<std::shared_ptr<job>> launched_; // not waited for
    bool ending_ = false, ended_ = true;
    failure broken_{STATUS_OK};
};

} // namespace mnist_ddp

#endif
