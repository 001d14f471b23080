#include "dist/backends/gloo/connect.h"

#include "dist/backends/gloo/algorithms.h"
#include "dist/backends/gloo/failure.h"

extern "C" {
#include "base/clock.h"
#include "base/log.h"
#include "dist/backends/gloo/import_slot.h"
#include "dist/backends/gloo/loopback_mss.h"
#include "dist/net/socket_address.h"
#include "dist/net/socket_route.h"
#include "dist/store/store.h"
}

#include <gloo/transport/tcp/device.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>

namespace mnist_ddp
{
namespace
{

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

} // namespace

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

} // namespace mnist_ddp
