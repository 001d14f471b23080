#include "dist/backends/gloo/engine.h"

#include "dist/backends/gloo/algorithms.h"
#include "dist/backends/gloo/connect.h"

extern "C" {
#include "base/clock.h"
#include "base/thread.h"
#include "dist/membership/keys.h"
#include "dist/store/store.h"
}

#include <signal.h>

#include <thread>

namespace mnist_ddp
{
namespace
{

const int64_t GOODBYE_MS = 2000;
const std::chrono::milliseconds THREAD_END_TIMEOUT(1000);

// Signals are for the program's own threads: ours and gloo's start with all of them blocked.
struct block_signals {
    block_signals()
    {
        thread_block_signals(&before);
    }
    ~block_signals()
    {
        thread_restore_signals(&before);
    }
    sigset_t before;
};

std::chrono::steady_clock::time_point time_point(int64_t deadline_ns)
{
    return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline_ns));
}

} // namespace

engine::engine(const group_setup &setup)
    : rank_(setup.options->rank), world_size_(setup.options->world_size),
      store_(setup.options->store), prefix_(setup.prefix)
{
    int64_t deadline_ns = clock_deadline_ns(process_group_patience_ms(setup.options));
    block_signals blocked;
    context_ = connect_ranks(setup);
    // gloo does not say whose connection broke. On one host, the processes that have ended do.
    status st = first_cause_create(&setup, nullptr, deadline_ns, &cause_);
    if (st != STATUS_OK)
        throw failure(st);
}

engine::~engine()
{
    first_cause_destroy(cause_);
}

void engine::start()
{
    auto self = shared_from_this();
    block_signals blocked;
    ended_ = false;
    std::thread([self] { self->run(); }).detach();
}

std::shared_ptr<job> engine::enqueue(const collective &what)
{
    auto j = std::make_shared<job>();
    j->what = what;
    queue_.push_back(j);
    if (!what.blocks)
        wanted_.notify_one();
    return j;
}

// gloo's thread moves it, and whatever else is under way.
std::shared_ptr<job> engine::start_between_two(const collective &what)
{
    auto j = std::make_shared<job>();
    const bool is_send = what.kind == COLLECTIVE_SEND;
    const size_t size_bytes = what.count * dtype_size(what.type);
    j->what = what;
    j->between_two = std::make_unique<messages>(*context_, match_bits(what),
                                                is_send ? what.in : what.out, size_bytes);
    try {
        if (is_send)
            j->between_two->send(what.root, MESSAGE_INPUT, 0, size_bytes);
        else
            j->between_two->recv(what.root, MESSAGE_INPUT, 0, size_bytes);
    } catch (const std::exception &e) {
        throw explain(e.what());
    }
    return j;
}

failure engine::finish_between_two(const job &j, int64_t deadline_ns)
{
    try {
        j.between_two->finish(deadline_ns);
    } catch (const std::exception &e) {
        return explain(e.what());
    }
    return failure(STATUS_OK);
}

job *engine::launch(const collective &what)
{
    std::shared_ptr<job> started;
    if (collective_is_send_or_recv(what.kind))
        started = start_between_two(what);
    std::lock_guard<std::mutex> hold(lock_);
    launched_.push_back(started != nullptr ? started : enqueue(what));
    return launched_.back().get();
}

void engine::wait(job *waited, int64_t deadline_ns, int64_t *done_ns)
{
    std::unique_lock<std::mutex> hold(lock_);
    if (launched_.empty() || launched_.front().get() != waited)
        throw failure(STATUS_INVALID, "a work is waited for before an older one");
    std::shared_ptr<job> j = launched_.front();
    launched_.pop_front();
    if (j->between_two != nullptr) {
        hold.unlock();
        j->result = finish_between_two(*j, deadline_ns);
        hold.lock();
        j->done_ns = clock_now_ns();
        if (j->result.code != STATUS_OK)
            broken_ = j->result;
    } else if (!finish(hold, j, deadline_ns)) {
        broken_ = failure(STATUS_TIMEOUT, "timed out before");
        throw failure(STATUS_TIMEOUT,
                      "not done within the timeout; a peer is late or out of reach" +
                          who_stopped());
    }
    if (j->result.code != STATUS_OK)
        throw j->result;
    *done_ns = j->done_ns;
}

// The lock is held. false: not done at the deadline.
bool engine::finish(std::unique_lock<std::mutex> &hold, const std::shared_ptr<job> &j,
                    int64_t deadline_ns)
{
    if (!running_ && !queue_.empty() && queue_.front() == j) {
        run_oldest(hold, deadline_ns);
        return true;
    }
    wanted_.notify_one();
    return done_.wait_until(hold, time_point(deadline_ns), [&j] { return j->done; });
}

// The lock is held; not meanwhile.
void engine::run_oldest(std::unique_lock<std::mutex> &hold, int64_t deadline_ns)
{
    std::shared_ptr<job> j = queue_.front();
    queue_.pop_front();
    if (broken_.code == STATUS_OK) {
        failure result(STATUS_OK);
        running_ = true;
        hold.unlock();
        try {
            const place here = {*context_, rank_, world_size_, scratch_};
            perform(here, j->what, deadline_ns);
        } catch (const failure &e) {
            result = e;
        } catch (const std::bad_alloc &) {
            result = failure(STATUS_NO_MEMORY, "gloo's scratch memory");
        } catch (const std::exception &e) {
            result = explain(e.what());
        }
        hold.lock();
        running_ = false;
        if (result.code != STATUS_OK)
            broken_ = result;
    }
    j->result = broken_;
    j->done_ns = clock_now_ns();
    j->done = true;
    done_.notify_all();
    if (!queue_.empty())
        wanted_.notify_one();
}

void engine::run()
{
    std::unique_lock<std::mutex> hold(lock_);
    for (;;) {
        wanted_.wait(hold, [this] { return ending_ || (!running_ && !queue_.empty()); });
        if (ending_)
            break;
        run_oldest(hold, clock_deadline_ns(queue_.front()->what.timeout_ms));
    }
    ended_ = true;
    done_.notify_all();
}

// ": rank 2 (pid 71) is stopped", if that can be seen here.
std::string engine::who_stopped() const
{
    const peers *all = first_cause_peers(cause_);
    char who[PEERS_NAME_BYTES];
    int stopped = peers_find_stopped(all, 0);
    if (stopped < 0)
        return "";
    peers_name(all, stopped, who);
    return std::string(": ") + who + " is stopped";
}

// From the engine's thread, and from one that launches or waits for a send or recv.
failure engine::explain(const std::string &text)
{
    if (aborted_)
        return failure(STATUS_PEER, "the group was aborted: " + text);
    std::lock_guard<std::mutex> one_at_a_time(explaining_);
    if (text.find("Timed out") != std::string::npos || text.find("timeout") != std::string::npos)
        return failure(STATUS_TIMEOUT,
                       "a peer is late or out of reach" + who_stopped() + ": " + text);
    (void)FAIL(STATUS_PEER, "%s", text.c_str());
    if (first_cause_blame(cause_))
        return failure(STATUS_PEER);
    if (world_size_ == 2)
        return failure(STATUS_PEER,
                       "rank " + std::to_string(1 - rank_) + " has closed its connection: " + text);
    return failure(STATUS_PEER, "a peer has closed its connection: " + text);
}

// gloo breaks all connections if anybody's wait times out, and all who wait hear it: so this waits
// for what nobody sends.
void engine::abort()
{
    aborted_ = true;
    {
        std::lock_guard<std::mutex> hold(lock_);
        if (broken_.code == STATUS_OK)
            broken_ = failure(STATUS_PEER, "the group was aborted");
    }
    char nothing = 0;
    auto buffer = context_->createUnboundBuffer(&nothing, sizeof nothing);
    try {
        buffer->waitRecv(std::chrono::milliseconds(1));
    } catch (const std::exception &) {
        // as meant
    }
}

// A rank that closes its sockets can cut off data that a slower one has yet to read. So all meet in
// a barrier, which fails at once if a peer is gone, and then in the store, whose data is not at
// risk.
void engine::say_goodbye()
{
    collective last = {};
    last.kind = COLLECTIVE_BARRIER;
    last.timeout_ms = GOODBYE_MS;
    std::unique_lock<std::mutex> hold(lock_);
    if (broken_.code != STATUS_OK || !launched_.empty())
        return;
    std::shared_ptr<job> j = enqueue(last);
    if (!done_.wait_for(hold, std::chrono::milliseconds(2 * GOODBYE_MS),
                        [&j] { return j->done; }) ||
        j->result.code != STATUS_OK)
        return;
    hold.unlock();
    int64_t gone = 0;
    keys_text all_left = keys_make(prefix_.c_str(), KEYS_ALL_LEFT, -1);
    if (store_add(store_, keys_make(prefix_.c_str(), KEYS_LEFT, -1).text, 1, &gone) != STATUS_OK)
        return;
    if (gone == world_size_)
        (void)store_set(store_, all_left.text, "1", 1);
    else
        (void)store_wait(store_, all_left.text, GOODBYE_MS);
}

// A thread that hangs in gloo keeps the engine alive, with its sockets closed, until gloo's
// timeout.
void engine::stop()
{
    say_goodbye();
    std::unique_lock<std::mutex> hold(lock_);
    ending_ = true;
    first_cause_leave_store(cause_); // it may be gone from now on
    wanted_.notify_one();
    auto ended = [this] { return ended_; };
    if (!done_.wait_for(hold, std::chrono::milliseconds(10), ended)) {
        hold.unlock();
        context_->closeConnections();
        hold.lock();
        done_.wait_for(hold, THREAD_END_TIMEOUT, ended);
    }
    queue_.clear();
    launched_.clear();
}

} // namespace mnist_ddp
