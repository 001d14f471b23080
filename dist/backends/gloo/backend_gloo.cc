// The gloo backend as a module: libgloo is C++ and has many dependencies, so the program opens this
// only when asked for it. No exception leaves: each becomes a status.
#include "dist/backends/gloo/algorithms.h"

extern "C" {
#include "base/clock.h"
#include "base/log.h"
#include "base/module.h"
#include "base/thread.h"
#include "dist/backends/gloo/import_slot.h"
#include "dist/collective/process_group_ops.h"
#include "dist/health/first_cause.h"
#include "dist/membership/keys.h"
#include "dist/net/socket.h"
#include "dist/store/store.h"
}

#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <thread>

namespace mnist_ddp
{
namespace
{

// Sets up gloo's connections among all ranks.

void check(status code)
{
    if (code != STATUS_OK)
        throw failure(code);
}

// gloo's view of our store.
class key_store : public gloo::rendezvous::Store
{
  public:
    key_store(store *client, const std::string &prefix, int64_t deadline_ns)
        : client_(client), prefix_(prefix), deadline_ns_(deadline_ns)
    {
    }

    void set(const std::string &key, const std::vector<char> &data) override
    {
        check(store_set(client_, (prefix_ + key).c_str(), data.data(), data.size()));
    }

    std::vector<char> get(const std::string &key) override
    {
        void *value = nullptr;
        size_t size_bytes = 0;
        wait({key});
        check(store_get(client_, (prefix_ + key).c_str(), &value, &size_bytes));
        const char *bytes = static_cast<const char *>(value);
        std::vector<char> data(bytes, bytes + size_bytes);
        std::free(value);
        return data;
    }

    void wait(const std::vector<std::string> &keys) override
    {
        for (const std::string &key : keys)
            check(store_wait(client_, (prefix_ + key).c_str(), clock_remaining_ms(deadline_ns_)));
    }

    void wait(const std::vector<std::string> &keys, const std::chrono::milliseconds &) override
    {
        wait(keys);
    }

  private:
    store *client_;
    std::string prefix_;
    int64_t deadline_ns_;
};

// This host's address on the way to `host`.
std::string address_towards(const char *host)
{
    char number[SOCKET_ROUTE_NUMBER_BYTES];
    check(socket_route_source(host, number));
    return number;
}

gloo::transport::tcp::attr choose_interface(const group_setup &setup)
{
    gloo::transport::tcp::attr attr;
    const char *interface = std::getenv("GLOO_SOCKET_IFNAME");
    const char *host = setup.options->master_addr;
    if (interface != nullptr && interface[0] != '\0') {
        attr.iface = interface;
        return attr;
    }
    attr.hostname = setup.one_host || host == nullptr ? "127.0.0.1" : address_towards(host);
    if (!setup.one_host && socket_address_says_loopback(attr.hostname.c_str()))
        throw failure(STATUS_INVALID,
                      "the ranks run on several hosts, but the way to the master address " +
                          std::string(host == nullptr ? "" : host) + " is " + attr.hostname +
                          " here: name the interface in GLOO_SOCKET_IFNAME, as in eth0");
    return attr;
}

// As epoll_wait(), for gloo's event loop: a thread that gets its events without waiting, again and
// again, yields its core in between.
//
// gloo's loop thread does not wait for a connection that another thread is using: it tries the
// lock, and if that is held it leaves the event to the next round. That round comes at once,
// because epoll reports the event again. So the loop spins while the other thread writes. If both
// share a core, it spins for a whole time slice (4 ms at 250 Hz) before the writer goes on.
int yielding_epoll_wait(int fd, struct epoll_event *events, int max_events, int timeout_ms)
{
    constexpr int prompt_rounds = 2; // that are ordinary: a burst of data
    static thread_local int prompt;  // rounds in a row that did not have to wait
    int n = epoll_wait(fd, events, max_events, 0);
    if (n <= 0) {
        prompt = 0;
        return n < 0 ? n : epoll_wait(fd, events, max_events, timeout_ms);
    }
    if (++prompt > prompt_rounds)
        sched_yield();
    return n;
}

// As writev() on a socket; EPIPE without the signal. gloo writes to a peer from whatever thread
// starts a send. If the peer has closed its socket, writev() would end a process that has not asked
// to ignore SIGPIPE. gloo reads EPIPE as well.
ssize_t quiet_writev(int fd, const struct iovec *pieces, int n)
{
    struct msghdr message = {};
    message.msg_iov = const_cast<struct iovec *>(pieces);
    message.msg_iovlen = static_cast<size_t>(n);
    return sendmsg(fd, &message, MSG_NOSIGNAL);
}

// Without it gloo is slow, or SIGPIPE ends a rank whose peer is gone; results stay right.
void redirect(const char *name, void *replacement)
{
    auto create_device = &gloo::transport::tcp::CreateDevice; // some function of libgloo's
    if (import_slot_redirect(reinterpret_cast<void *>(create_device), name, replacement) !=
        STATUS_OK)
        LOG_W("libgloo: %s; collectives may be slow on loopback, or end by a signal",
              status_text());
}

// libgloo's calls of three functions go to ours. All other callers keep libc's.
void redirect_libgloo()
{
    static std::once_flag done;
    std::call_once(done, [] {
        redirect("listen", reinterpret_cast<void *>(&loopback_mss_listen));
        redirect("epoll_wait", reinterpret_cast<void *>(&yielding_epoll_wait));
        redirect("writev", reinterpret_cast<void *>(&quiet_writev));
    });
}

// While it lives, this thread sets up gloo's sockets in this mode.
struct segments {
    explicit segments(loopback_mss mode)
    {
        loopback_mss_set(mode);
    }
    ~segments()
    {
        loopback_mss_set(LOOPBACK_MSS_LEAVE);
    }
};

using context_ptr = std::shared_ptr<gloo::rendezvous::Context>;

context_ptr connect_once(const group_setup &setup, loopback_mss mode, int64_t deadline_ns)
{
    const process_group_options &o = *setup.options;
    const char *keys_of_mode = mode == LOOPBACK_MSS_CLAMP ? "gloo/clamped/" : "gloo/";
    key_store keys(o.store, std::string(setup.prefix) + keys_of_mode, deadline_ns);
    auto device = gloo::transport::tcp::CreateDevice(choose_interface(setup));
    auto context = std::make_shared<gloo::rendezvous::Context>(o.rank, o.world_size);
    context->setTimeout(std::chrono::milliseconds(process_group_patience_ms(&o)));
    segments while_connecting(mode);
    context->connectFullMesh(keys, device);
    return context;
}

// Tries a message size that stalls if the kernel delays acknowledgements. All ranks see the same
// answer.
bool stalls(const context_ptr &context)
{
    const int rounds = 5, slow_ms = 20; // a stall takes 40 ms, a sound round less than one
    const int64_t timeout_ms = context->getTimeout().count();
    std::vector<char> scratch;
    const place here = {*context, context->rank, context->size, scratch};
    std::vector<float> data(20000);
    float slow_rounds = 0;
    collective c = {};
    c.prescale = 1;
    for (int i = 0; i < rounds; i++) {
        c.seq++;
        c.in = c.out = data.data();
        c.count = data.size();
        int64_t started_ns = clock_now_ns();
        perform(here, c, clock_deadline_ns(timeout_ms));
        slow_rounds += clock_now_ns() - started_ns > slow_ms * 1000000LL;
    }
    c.op = REDUCE_MAX;
    c.in = c.out = &slow_rounds;
    c.count = 1;
    perform(here, c, clock_deadline_ns(timeout_ms));
    return slow_rounds > rounds / 2;
}

// Keys go through the group's store under "<prefix>gloo/". Sockets are bound to loopback if all
// ranks are on this host, else to $GLOO_SOCKET_IFNAME's address, else to the one from which the
// store's host is reached. On one host a few rings are tried. If they stall (import_slot.h), the
// ranks connect again with small segments; $MNIST_DDP_GLOO_CLAMP=1 does that at once. Blocks until
// all ranks are connected, at most options->timeout_ms; throws failure or gloo's exceptions.
context_ptr connect_ranks(const group_setup &setup)
{
    int64_t deadline_ns = clock_deadline_ns(process_group_patience_ms(setup.options));
    const char *forced = std::getenv("MNIST_DDP_GLOO_CLAMP");
    context_ptr context;
    redirect_libgloo();
    if (forced == nullptr || std::strcmp(forced, "1") != 0) {
        context = connect_once(setup, LOOPBACK_MSS_LEAVE, deadline_ns);
        if (!setup.one_host || !stalls(context))
            return context;
        LOG_I("gloo stalls on this host's loopback: connecting again with small segments");
    }
    return connect_once(setup, LOOPBACK_MSS_CLAMP, deadline_ns);
}

// One gloo context and the thread that runs its collectives, one after the other, in the order of
// their launch. One whose caller blocks is run by the caller: that saves two changes of threads.
// Sends and receives need no thread: gloo moves them from their launch on. Methods
// may throw; guard turns that into a status.

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

// The table of operations.

typedef std::shared_ptr<engine> handle;

template <typename Fn> status guard(Fn fn)
{
    try {
        fn();
        return STATUS_OK;
    } catch (const failure &e) {
        status_restore(&e.kept);
        return e.code;
    } catch (const std::bad_alloc &) {
        return FAIL(STATUS_NO_MEMORY, "gloo");
    } catch (const std::exception &e) {
        return FAIL(STATUS_PEER, "gloo: %s", e.what());
    } catch (...) {
        return FAIL(STATUS_PEER, "gloo threw something unknown");
    }
}

status gloo_create(const group_setup *setup, void **self)
{
    return guard([setup, self] {
        handle made = std::make_shared<engine>(*setup);
        handle *out = new handle(made);
        made->start();
        *self = out;
    });
}

status gloo_launch(void *self, const collective *c, device_stream *, void **out_work)
{
    return guard([=] { *out_work = (*static_cast<handle *>(self))->launch(*c); });
}

status gloo_wait(void *self, void *w, int64_t deadline_ns, int64_t *done_ns)
{
    return guard(
        [=] { (*static_cast<handle *>(self))->wait(static_cast<job *>(w), deadline_ns, done_ns); });
}

void gloo_abort(void *self, const char *)
{
    (void)guard([self] { (*static_cast<handle *>(self))->abort(); });
}

void gloo_destroy(void *self)
{
    handle *held = static_cast<handle *>(self);
    (void)guard([held] { (*held)->stop(); });
    (void)guard([held] { delete held; });
}

rank_traffic gloo_traffic(const collective *c, int rank, int world_size)
{
    return perform_traffic(*c, rank, world_size);
}

const process_group_ops gloo_ops = {
    "gloo",  false,   false,      gloo_create,  gloo_launch,  gloo_wait, nullptr,
    nullptr, nullptr, gloo_abort, gloo_destroy, gloo_traffic, nullptr,
};

} // namespace
} // namespace mnist_ddp

extern "C" {
extern const module mnist_ddp_module;
const module mnist_ddp_module = {MODULE_ABI_VERSION,   nullptr, nullptr,
                                 &mnist_ddp::gloo_ops, nullptr, nullptr};
}
