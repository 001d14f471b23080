#include "dist/backends/gloo/engine.h"

#include "dist/backends/gloo/connect.h"

extern "C" {
#include "base/clock.h"
#include "base/fnv1a.h"
#include "base/thread.h"
#include "dist/collective/reduce.h"
#include "dist/membership/keys.h"
#include "dist/store/store.h"
}

#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>

#include <signal.h>

#include <algorithm>
#include <cstring>
#include <thread>

namespace mnist_ddp
{
namespace
{

const std::chrono::milliseconds GOODBYE_TIMEOUT(2000);
const std::chrono::milliseconds THREAD_END_TIMEOUT(1000);
const size_t REDUCE_CHUNK_BYTES = 1 << 20;

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

// What gloo tells messages apart by. It holds all that the ranks must agree on. So the messages of
// a rank that issues another collective match none, which is a timeout. Matched messages of
// different sizes would make gloo end the process.
uint32_t tag_of(const collective &c)
{
    const uint64_t parts[] = {
        c.seq,           uint64_t(c.kind), uint64_t(c.op), uint64_t(c.type), uint64_t(c.count),
        uint64_t(c.root)};
    const uint64_t hash = fnv1a(FNV1A_START, parts, sizeof parts);
    const uint32_t low = (1u << 20) - 1; // collectives under way differ here
    return (uint32_t(hash >> 32) & ~low) | (uint32_t(c.seq) & low);
}

// gloo's reduction: out may be a.
gloo::AllreduceOptions::Func reduction(dtype type, reduce_op op)
{
    return [type, op](void *out, const void *a, const void *b, size_t count) {
        if (out != a)
            std::memcpy(out, a, count * dtype_size(type));
        reduce_fold(type, op, out, b, count);
    };
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

std::shared_ptr<job> engine::enqueue(const collective &what, std::chrono::milliseconds timeout)
{
    auto j = std::make_shared<job>();
    j->what = what;
    j->timeout = timeout;
    queue_.push_back(j);
    changed_.notify_all();
    return j;
}

job *engine::launch(const collective &what)
{
    if (what.kind > COLLECTIVE_REDUCE)
        throw failure(STATUS_INVALID, std::string("backend gloo has no ") +
                                          collective_kind_name(what.kind) + ": use nccl");
    std::lock_guard<std::mutex> hold(lock_);
    launched_.push_back(enqueue(what, std::chrono::milliseconds(what.timeout_ms)));
    return launched_.back().get();
}

void engine::wait(job *waited, int64_t deadline_ns, int64_t *done_ns)
{
    std::unique_lock<std::mutex> hold(lock_);
    if (launched_.empty() || launched_.front().get() != waited)
        throw failure(STATUS_INVALID, "a work is waited for before an older one");
    std::shared_ptr<job> j = launched_.front();
    launched_.pop_front();
    if (!changed_.wait_until(hold, time_point(deadline_ns), [&j] { return j->done; })) {
        broken_ = failure(STATUS_TIMEOUT, "timed out before");
        throw failure(STATUS_TIMEOUT,
                      "not done within the timeout; a peer is late or out of reach");
    }
    if (j->result.code != STATUS_OK)
        throw j->result;
    *done_ns = j->done_ns;
}

void engine::run()
{
    std::unique_lock<std::mutex> hold(lock_);
    for (;;) {
        changed_.wait(hold, [this] { return ending_ || !queue_.empty(); });
        if (ending_)
            break;
        std::shared_ptr<job> j = queue_.front();
        queue_.pop_front();
        if (broken_.code == STATUS_OK) {
            failure result(STATUS_OK);
            hold.unlock();
            try {
                execute(*j);
            } catch (const std::exception &e) {
                result = explain(e.what());
            }
            hold.lock();
            broken_ = result;
        }
        j->result = broken_;
        j->done_ns = clock_now_ns();
        j->done = true;
        changed_.notify_all();
    }
    ended_ = true;
    changed_.notify_all();
}

failure engine::explain(const std::string &text)
{
    if (text.find("Timed out") != std::string::npos || text.find("timeout") != std::string::npos)
        return failure(STATUS_TIMEOUT, "a peer is late or out of reach: " + text);
    (void)FAIL(STATUS_PEER, "%s", text.c_str());
    if (first_cause_blame(cause_))
        return failure(STATUS_PEER);
    if (world_size_ == 2)
        return failure(STATUS_PEER,
                       "rank " + std::to_string(1 - rank_) + " has closed its connection: " + text);
    return failure(STATUS_PEER, "a peer has closed its connection: " + text);
}

void engine::execute(const job &j)
{
    switch (j.what.kind) {
    case COLLECTIVE_ALL_REDUCE:
        return all_reduce(j);
    case COLLECTIVE_BROADCAST:
        return broadcast(j);
    case COLLECTIVE_BARRIER:
        return barrier(j);
    case COLLECTIVE_REDUCE:
        return j.what.root == rank_ ? reduce_here(j) : reduce_there(j);
    default: // launch() refused it
        throw failure(STATUS_INVALID, "no such collective");
    }
}

// Scaled on the way in, then a ring in place. gloo takes sizes from the element's type.
void engine::all_reduce(const job &j)
{
    const collective &c = j.what;
    size_t size = dtype_size(c.type);
    if (c.out != c.in)
        std::memmove(c.out, c.in, c.count * size);
    if (c.prescale < 1 || c.prescale > 1) {
        void *out = c.out;
        reduce_buffers(c.type, c.op, c.prescale, &out, 1, c.count);
    }
    gloo::AllreduceOptions options(context_);
    if (size == sizeof(float))
        options.setOutput(static_cast<float *>(c.out), c.count);
    else
        options.setOutput(static_cast<int64_t *>(c.out), c.count);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setReduceFunction(reduction(c.type, c.op));
    options.setTag(tag_of(c));
    options.setTimeout(j.timeout);
    gloo::allreduce(options);
}

void engine::broadcast(const job &j)
{
    const collective &c = j.what;
    gloo::BroadcastOptions options(context_);
    options.setOutput(static_cast<char *>(c.out), c.count * dtype_size(c.type));
    options.setRoot(c.root);
    options.setTag(tag_of(c));
    options.setTimeout(j.timeout);
    gloo::broadcast(options);
}

// gloo's own reduce is a ring, in an order of its own. Here all ranks send to the root, chunk by
// chunk, and the root sums in rank order: the same bits as on every other backend.
void engine::reduce_there(const job &j)
{
    const collective &c = j.what;
    size_t size_bytes = c.count * dtype_size(c.type), chunks = 0;
    auto buffer = context_->createUnboundBuffer(const_cast<void *>(c.in), size_bytes);
    const uint64_t slot = gloo::Slot::build(gloo::kReduceSlotPrefix, tag_of(c));
    for (size_t at = 0; at < size_bytes; at += REDUCE_CHUNK_BYTES, chunks++)
        buffer->send(c.root, slot, at, std::min(REDUCE_CHUNK_BYTES, size_bytes - at));
    while (chunks-- > 0)
        if (!buffer->waitSend(j.timeout))
            throw failure(STATUS_PEER, "a send was aborted");
}

void engine::reduce_here(const job &j)
{
    const collective &c = j.what;
    size_t size = dtype_size(c.type), size_bytes = c.count * size;
    size_t n = static_cast<size_t>(world_size_), chunk = std::min(REDUCE_CHUNK_BYTES, size_bytes);
    const uint64_t slot = gloo::Slot::build(gloo::kReduceSlotPrefix, tag_of(c));
    // Two rows of chunks: while one is summed, the other is received.
    std::vector<char> memory[2] = {std::vector<char>(n * chunk), std::vector<char>(n * chunk)};
    std::unique_ptr<gloo::transport::UnboundBuffer> buffers[2];
    std::vector<const void *> ins(n);
    auto receive = [&](size_t at, int row) {
        for (int peer = 0; peer < world_size_ && at < size_bytes; peer++)
            if (peer != rank_)
                buffers[row]->recv(peer, slot, static_cast<size_t>(peer) * chunk,
                                   std::min(chunk, size_bytes - at));
    };
    for (int row = 0; row < 2; row++) {
        buffers[row] = context_->createUnboundBuffer(memory[row].data(), n * chunk);
        receive(static_cast<size_t>(row) * chunk, row);
    }
    int row = 0;
    for (size_t at = 0; at < size_bytes; at += chunk, row = 1 - row) {
        for (int peer = 1; peer < world_size_; peer++)
            if (!buffers[row]->waitRecv(j.timeout))
                throw failure(STATUS_PEER, "a receive was aborted");
        for (size_t peer = 0; peer < n; peer++)
            ins[peer] = memory[row].data() + peer * chunk;
        ins[static_cast<size_t>(rank_)] = static_cast<const char *>(c.in) + at;
        void *out = static_cast<char *>(c.out) + at;
        reduce_parts parts = {ins.data(), world_size_, &out, 1};
        reduce_into(c.type, c.op, c.prescale, &parts, std::min(chunk, size_bytes - at) / size);
        receive(at + 2 * chunk, row);
    }
}

void engine::barrier(const job &j)
{
    gloo::BarrierOptions options(context_);
    options.setTag(tag_of(j.what));
    options.setTimeout(j.timeout);
    gloo::barrier(options);
}

// A rank that closes its sockets can cut off data that a slower one has yet to read. So all meet in
// a barrier, which fails at once if a peer is gone, and then in the store, whose data is not at
// risk.
void engine::say_goodbye()
{
    collective last = {};
    last.kind = COLLECTIVE_BARRIER;
    std::unique_lock<std::mutex> hold(lock_);
    if (broken_.code != STATUS_OK || !launched_.empty())
        return;
    std::shared_ptr<job> j = enqueue(last, GOODBYE_TIMEOUT);
    if (!changed_.wait_for(hold, 2 * GOODBYE_TIMEOUT, [&j] { return j->done; }) ||
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
        (void)store_wait(store_, all_left.text, GOODBYE_TIMEOUT.count());
}

// A thread that hangs in gloo keeps the engine alive, with its sockets closed, until gloo's
// timeout.
void engine::stop()
{
    say_goodbye();
    std::unique_lock<std::mutex> hold(lock_);
    ending_ = true;
    first_cause_leave_store(cause_); // it may be gone from now on
    changed_.notify_all();
    auto ended = [this] { return ended_; };
    if (!changed_.wait_for(hold, std::chrono::milliseconds(10), ended)) {
        hold.unlock();
        context_->closeConnections();
        hold.lock();
        changed_.wait_for(hold, THREAD_END_TIMEOUT, ended);
    }
    queue_.clear();
    launched_.clear();
}

} // namespace mnist_ddp
