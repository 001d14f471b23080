/* A core is taken by listening on a local socket with the core's number in its name: the system
 * lets only one process do that, and ends it with the process, however that ends. Other programs'
 * work shows in how long a thread that wants to run is kept from it (/proc/thread-self/schedstat).
 */
#include "app/common/core_binding.h"

#include "base/clock.h"
#include "base/memory.h"
#include "dist/net/socket.h"
#include "kernels/ops.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LOOK_MS = 250,   /* from one look at the delay to the next */
    MOST_DELAY = 25, /* percent of that time */
};

bool core_binding_is_crowded(int ranks, int threads, char text[CORE_BINDING_TEXT_BYTES])
{
    char of_each[32] = "";
    if (threads > 1)
        snprintf(of_each, sizeof of_each, " of %d threads", threads);
    snprintf(text, CORE_BINDING_TEXT_BYTES,
             "%d for %d ranks%s: on the CPU they will wait for each other", cores_count(), ranks,
             of_each);
    return ranks > 1 && (int64_t)ranks * threads > cores_count();
}

static void let_claims_go(core_binding *b)
{
    for (int i = 0; b->claims != NULL && i < b->threads; i++)
        if (b->claims[i] >= 0)
            close(b->claims[i]);
    free(b->claims);
    b->claims = NULL;
}

/* A core of the share for each computing thread, which then are the share, or none. */
static bool claim(core_binding *b)
{
    char name[64];
    if (memory_alloc(sizeof *b->claims * (size_t)b->threads, (void **)&b->claims) != STATUS_OK)
        return false;
    for (int i = 0; i < b->threads; i++)
        b->claims[i] = -1;
    int claimed = 0;
    for (int i = 0; i < b->share.n && claimed < b->threads; i++) {
        int16_t id = b->share.ids[i];
        snprintf(name, sizeof name, "mnist_ddp-core-%d", id);
        if (socket_listen_local(name, &b->claims[claimed]) == STATUS_OK)
            b->share.ids[claimed++] = id;
        else
            snprintf(b->note, sizeof b->note, "core %d is taken", id);
    }
    if (claimed < b->threads) {
        let_claims_go(b);
        return false;
    }
    b->note[0] = '\0';
    b->share.n = claimed;
    return true;
}

/* This rank's cores, if there are enough for all ranks here. */
static bool choose(core_binding *b, const options *opts, const cores_peers *peers)
{
    int ranks = peers->count, need = ranks * b->threads;
    cores all;
    if (strcmp(opts->bind_to, "core") != 0)
        snprintf(b->note, sizeof b->note, "--bind-to=%s", opts->bind_to);
    else if (need < 2)
        snprintf(b->note, sizeof b->note, "one thread alone");
    else if (need > cores_count())
        snprintf(b->note, sizeof b->note, "ranks here: %d, threads of each: %d, cores: %d", ranks,
                 b->threads, cores_count());
    if (b->note[0] != '\0')
        return false;
    cores_list(need, &all);
    cores_share(&all, peers->index, ranks, &b->share);
    return all.n > 0;
}

void core_binding_open(const options *opts, const cores_peers *peers, device *dev,
                       core_binding *out)
{
    *out = (core_binding){.threads = dev->threads, .delay_fd = -1};
    if (dev->stream != NULL) {
        snprintf(out->note, sizeof out->note, "device %s", dev->ops->name);
        return;
    }
    if (!choose(out, opts, peers))
        return;
    cores_list(cores_count(), &out->before);
    if (!claim(out) || !cores_bind(pthread_self(), out->share.ids, 1)) {
        let_claims_go(out);
        out->share.n = 0;
        return;
    }
    if (dev->ops->bind != NULL)
        dev->ops->bind(dev, &out->share);
    out->delay_fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
}

static void give_up(core_binding *b)
{
    snprintf(b->note, sizeof b->note, "core %d was busy with other work", b->share.ids[0]);
    cores_bind_process(&b->before);
    b->share.n = 0;
    let_claims_go(b);
}

/* Nanoseconds that the thread was kept waiting since it began; -1: not known. */
static int64_t read_delay(const core_binding *b)
{
    char text[96];
    long long run_ns = 0, delay_ns = 0;
    ssize_t n = pread(b->delay_fd, text, sizeof text - 1, 0);
    if (n <= 0)
        return -1;
    text[n] = '\0';
    return sscanf(text, "%lld %lld", &run_ns, &delay_ns) == 2 ? delay_ns : -1;
}

void core_binding_look(core_binding *binding)
{
    core_binding *b = binding;
    if (b->share.n == 0)
        return;
    int64_t now_ns = clock_now_ns(), passed_ns = now_ns - b->read_ns;
    if (passed_ns < LOOK_MS * INT64_C(1000000))
        return;
    int64_t delay_ns = read_delay(b), more_ns = delay_ns - b->delay_ns;
    if (b->read_ns > 0 && delay_ns >= 0 && more_ns > passed_ns / 100 * MOST_DELAY)
        give_up(b);
    b->delay_ns = delay_ns;
    b->read_ns = now_ns;
}

int core_binding_core(const core_binding *binding)
{
    return binding->share.n > 0 ? binding->share.ids[0] : -1;
}

void core_binding_close(core_binding *binding)
{
    let_claims_go(binding);
    if (binding->delay_fd > 0)
        close(binding->delay_fd);
    *binding = (core_binding){0};
}
