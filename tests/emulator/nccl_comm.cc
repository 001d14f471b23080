#include "nccl_comm.h"
#include "streams.h"

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <poll.h>
#include <random>
#include <string>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

namespace emulated
{

namespace
{

using clock = std::chrono::steady_clock;

constexpr auto LONGEST_RELEASE = std::chrono::seconds(20);
constexpr auto LONGEST_JOIN = std::chrono::seconds(120);
constexpr auto NAP = std::chrono::microseconds(100);
constexpr auto GRAPH_ENDS_AFTER = std::chrono::microseconds(500);
constexpr uint32_t LONGEST_ENQUEUE_US = 60;

struct behaviour {
    bool reports_dead_peers = false, aborts_leave_garbage = false;
    uint64_t hangs = 0; /* the number of the operation, from 1 */
};

behaviour read_behaviour()
{
    behaviour b;
    const char *text = std::getenv("MNIST_DDP_EMULATED_NCCL");
    std::string rest = text == nullptr ? "" : text;
    while (!rest.empty()) {
        size_t comma = rest.find(',');
        std::string word = rest.substr(0, comma);
        rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
        char end;
        unsigned long long number;
        if (word == "remote_error")
            b.reports_dead_peers = true;
        else if (word == "garbage")
            b.aborts_leave_garbage = true;
        else if (std::sscanf(word.c_str(), "hang:%llu%c", &number, &end) == 1)
            b.hangs = number;
        else
            fatal("MNIST_DDP_EMULATED_NCCL: '%s' is none of remote_error, garbage, hang:<number>",
                  word.c_str());
    }
    return b;
}

const behaviour &the_behaviour()
{
    static const behaviour b = read_behaviour();
    return b;
}

/* Whether what is enqueued there now goes into a graph. */
bool records(cudaStream_t stream)
{
    std::lock_guard<std::mutex> hold(runtime_lock());
    return is_live(stream) && stream->capturing != nullptr;
}

bool has_ended(int pidfd)
{
    pollfd poll_for = {pidfd, POLLIN, 0};
    return poll(&poll_for, 1, 0) > 0;
}

} // namespace

bool nccl_reports_dead_peers()
{
    return the_behaviour().reports_dead_peers;
}

bool nccl_aborts_leave_garbage()
{
    return the_behaviour().aborts_leave_garbage;
}

bool nccl_next_hangs()
{
    static uint64_t begun = 0; /* the device thread's */
    return ++begun == the_behaviour().hangs;
}

communicator::ticket::ticket(std::shared_ptr<communicator> of, bool in_graph_)
    : owner(std::move(of)), in_graph(in_graph_)
{
    (in_graph ? owner->in_graphs : owner->outstanding)++;
}

communicator::ticket::~ticket()
{
    if (!in_graph) {
        owner->outstanding--;
        return;
    }
    std::thread([of = owner] {
        std::this_thread::sleep_for(GRAPH_ENDS_AFTER);
        of->in_graphs--;
    }).detach();
}

communicator::communicator(std::shared_ptr<nccl_family> family_, int ranks_, int rank_,
                           bool blocking_, int device_)
    : ranks(ranks_), rank(rank_), family(std::move(family_)), region(family->region),
      blocking(blocking_), device(device_)
{
}

communicator::~communicator()
{
    join_enqueuer();
}

void communicator::join_enqueuer()
{
    if (enqueuer.joinable())
        enqueuer.join();
}

ncclResult_t communicator::join(const ncclUniqueId &id)
{
    if (ncclResult_t result = region.join(id, ranks, rank, physical_device(device)))
        return result;
    if (!blocking)
        return ncclInProgress;
    clock::time_point last = clock::now() + LONGEST_JOIN;
    ncclResult_t result;
    while ((result = async_error()) == ncclInProgress) {
        if (clock::now() > last)
            fatal("ncclCommInitRankConfig: not all of %d ranks have come", ranks);
        std::this_thread::sleep_for(NAP);
    }
    return result;
}

ncclResult_t communicator::check_duplicates()
{
    for (int a = 0; a < ranks; a++)
        for (int b = 0; b < a; b++)
            if (region.of(a).device == region.of(b).device)
                return nccl_failure(
                    ncclInvalidUsage,
                    "Duplicate GPU detected : rank %d and rank %d both on CUDA device %x", a, b,
                    static_cast<unsigned>(region.of(a).device + 1) << 12);
    return ncclSuccess;
}

/* In the mode that reports dead peers. */
ncclResult_t communicator::check_peers()
{
    if (!nccl_reports_dead_peers())
        return ncclSuccess;
    for (int peer = 0; peer < ranks; peer++) {
        const nccl_rank &other = region.of(peer);
        nccl_presence presence = other.presence;
        bool gone = presence == nccl_presence::aborted;
        auto at = static_cast<size_t>(peer);
        if (presence == nccl_presence::joined && peer != rank && !watched.empty())
            gone = watched[at] < 0 || has_ended(watched[at]);
        if (gone && peer != rank)
            return nccl_failure(ncclRemoteError, "rank %d (process %d) has ended or aborted", peer,
                                other.pid.load());
    }
    return ncclSuccess;
}

void communicator::watch_peers()
{
    for (int peer = 0; peer < ranks && nccl_reports_dead_peers(); peer++)
        watched.push_back(static_cast<int>(syscall(SYS_pidfd_open, region.of(peer).pid.load(), 0)));
}

ncclResult_t communicator::connect(const nccl_launch &launch)
{
    std::vector<nccl_channel *> channels;
    for (const nccl_call &call : launch.calls) {
        const nccl_operation &o = call.operation;
        bool sends = o.kind == nccl_kind::send;
        if (!is_message(o.kind)) {
            region.of(rank).connects = true;
            continue;
        }
        channels.push_back(&region.channel(sends ? rank : o.root, sends ? o.root : rank));
        channels.back()->ends |= sends ? 1 : 2;
    }
    auto all_have_come = [&] {
        for (const nccl_channel *one : channels)
            if (one->ends != 3)
                return false;
        for (int peer = 0; peer < ranks && channels.empty(); peer++)
            if (!region.of(peer).connects)
                return false;
        return true;
    };
    while (!all_have_come()) {
        if (was_aborted())
            return nccl_failure(ncclInternalError, "aborted while it connects to its peers");
        std::this_thread::sleep_for(NAP);
    }
    return ncclSuccess;
}

bool communicator::a_peer_has_aborted() const
{
    for (int peer = 0; peer < ranks; peer++)
        if (region.of(peer).presence == nccl_presence::aborted)
            return true;
    return false;
}

ncclResult_t communicator::enqueue(const std::vector<nccl_launch> &launches)
{
    for (const nccl_launch &launch : launches) {
        auto kept = std::make_shared<ticket>(shared_from_this(), records(launch.stream));
        const char *name = nccl_name(launch.calls.front().operation.kind);
        auto begin = [kept, calls = launch.calls] { return nccl_begin(kept->owner, calls); };
        if (cudaError_t code = enqueue_steps(launch.stream, name, begin))
            return nccl_failure(ncclUnhandledCudaError, "%s: error %d of the runtime", name, code);
    }
    return ncclSuccess;
}

ncclResult_t communicator::launch(std::vector<nccl_launch> launches)
{
    std::unique_lock<std::mutex> hold(lock);
    ncclResult_t state = error;
    if (state == ncclSuccess && (now != phase::ready || enqueuer.joinable()))
        state = now == phase::finalized ? ncclInvalidUsage : ncclInProgress;
    if (state != ncclSuccess) {
        nccl_failure(state, "Attempt to use communicator before the previous operation returned "
                            "ncclSuccess");
        return state == ncclInProgress ? ncclInvalidArgument : state;
    }
    for (const nccl_launch &launch : launches)
        if (stream_device(launch.stream) != device)
            return nccl_failure(ncclInvalidUsage,
                                "the communicator is of device %d, its stream of "
                                "device %d",
                                device, stream_device(launch.stream));
    if (launches.empty())
        return ncclSuccess;
    if (blocking)
        return enqueue_here(hold, launches);
    count_work("thread", "ncclGroupEnd");
    asked = false;
    has_enqueued = false;
    enqueuer = std::thread([this, all = std::move(launches)] {
        std::minstd_rand random{std::random_device{}()};
        std::this_thread::sleep_for(std::chrono::microseconds(random() % LONGEST_ENQUEUE_US));
        enqueued = enqueue(all);
        has_enqueued = true;
    });
    return ncclInProgress;
}

/* Other threads may ask for the state, and abort the family, meanwhile. */
ncclResult_t communicator::enqueue_here(std::unique_lock<std::mutex> &hold,
                                        const std::vector<nccl_launch> &launches)
{
    callers++;
    hold.unlock();
    ncclResult_t result = ncclSuccess;
    for (const nccl_launch &launch : launches)
        result = result == ncclSuccess ? connect(launch) : result;
    if (result == ncclSuccess)
        result = enqueue(launches);
    hold.lock();
    callers--;
    return error = result;
}

ncclResult_t communicator::split(bool blocks,
                                 std::function<void(std::shared_ptr<communicator>)> tell)
{
    std::unique_lock<std::mutex> hold(lock);
    if (blocking)
        fatal("ncclCommSplit: of a communicator that blocks is not emulated");
    if (error != ncclSuccess || now != phase::ready || enqueuer.joinable())
        return nccl_failure(ncclInvalidArgument, "ncclCommSplit: the communicator is not ready");
    child_blocks = blocks;
    publish = std::move(tell);
    region.of(rank).has_split = true;
    now = phase::splitting;
    return ncclInProgress;
}

ncclResult_t communicator::advance()
{
    if (now == phase::joining) {
        if (!region.all_have_joined())
            return ncclInProgress;
        region.close_door();
        watch_peers();
        now = phase::ready;
        if (ncclResult_t result = nccl_choose_algorithms(ranks, &algorithms))
            return result;
        return check_duplicates();
    }
    if (enqueuer.joinable()) {
        if (!asked || !has_enqueued) {
            asked = true;
            return ncclInProgress;
        }
        enqueuer.join();
        return enqueued;
    }
    if (now == phase::splitting) {
        for (int peer = 0; peer < ranks; peer++)
            if (!region.of(peer).has_split)
                return ncclInProgress;
        auto child = std::make_shared<communicator>(family, ranks, rank, child_blocks, device);
        child->now = phase::ready;
        child->algorithms = algorithms;
        child->watch_peers();
        publish(child);
        now = phase::split;
    }
    if (now == phase::finalizing) {
        if (outstanding.load() > 0)
            return ncclInProgress;
        now = phase::finalized;
    }
    return check_peers();
}

ncclResult_t communicator::async_error()
{
    std::unique_lock<std::mutex> hold(lock);
    if (error != ncclSuccess)
        return error;
    ncclResult_t result = advance();
    if (result != ncclInProgress)
        error = result;
    return result;
}

ncclResult_t communicator::finalize()
{
    {
        std::unique_lock<std::mutex> hold(lock);
        if (error != ncclSuccess)
            return error;
        if ((now != phase::ready && now != phase::split) || enqueuer.joinable())
            return nccl_failure(ncclInvalidArgument, "ncclCommFinalize: the communicator is not "
                                                     "ready, or finalized before");
        now = phase::finalizing;
        if (!blocking)
            return ncclInProgress;
    }
    ncclResult_t result;
    while ((result = async_error()) == ncclInProgress)
        std::this_thread::sleep_for(NAP);
    return result;
}

void communicator::abort()
{
    if (callers.load() > 0)
        fatal("ncclCommAbort: another thread is in a call of this communicator: the real one frees "
              "what that uses");
    family->aborted = true;
    {
        std::unique_lock<std::mutex> hold(lock);
        join_enqueuer();
        error = ncclInvalidUsage;
    }
    region.leave(rank, nccl_presence::aborted);
    release("ncclCommAbort");
}

void communicator::release(const char *caller)
{
    {
        std::unique_lock<std::mutex> hold(lock);
        join_enqueuer();
    }
    clock::time_point last = clock::now() + LONGEST_RELEASE;
    while (outstanding.load() + in_graphs.load() > 0) {
        if (clock::now() > last)
            fatal("%s: %d operations are not done and %d are in graphs that live: the real one "
                  "waits for ever",
                  caller, outstanding.load(), in_graphs.load());
        std::this_thread::sleep_for(NAP);
    }
    region.leave(rank, nccl_presence::left);
    std::unique_lock<std::mutex> hold(lock);
    for (int pidfd : watched)
        if (pidfd >= 0)
            close(pidfd);
    watched.clear();
}

} // namespace emulated
