/* send, recv, isend, irecv, batch_isend_irecv: from one rank to another. */
#include "app/demo/demo.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LATE_MS = 100, DEADLOCK_MS = 1000, SMALL = 1 << 10, LARGE = 4 << 20 };

/* One rank's arrays: bytes. */
typedef struct p2p {
    demo *d;
    int peer;
    uint8_t *out, *in; /* (LARGE) */
} p2p;

/* Both ranks begin at the same time: now. */
static status begin(const p2p *p, int64_t *start_ns)
{
    memset(p->out, 1 + p->d->rank, LARGE);
    memset(p->in, 0, LARGE);
    return demo_begin_together(p->d, start_ns);
}

/* Whether the peer's bytes have come. */
static status check(const p2p *p, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (p->in[i] != 1 + p->peer)
            return FAIL(STATUS_DEVICE, "byte %zu is not what rank %d has sent", i, p->peer);
    return STATUS_OK;
}

static status send_bytes(const p2p *p, process_group *group, size_t count)
{
    return process_group_send(group, p->out, count, DTYPE_U8, p->peer, NULL);
}

static status recv_bytes(const p2p *p, process_group *group, size_t count)
{
    return process_group_recv(group, p->in, count, DTYPE_U8, p->peer, NULL);
}

/* "rank 0 | send of 1024 bytes | 200 | 201" */
static void tell(demo *d, const char *call, double begins_ms, double ends_ms)
{
    demo_row(d, "rank %d|%s|%.1f ms|%.1f ms", d->rank, call, begins_ms, ends_ms);
}

/* Rank 0 sends, after `send_late_ms`; rank 1 receives, after `recv_late_ms`. */
static status show_pass(const p2p *p, size_t count, int64_t send_late_ms, int64_t recv_late_ms)
{
    demo *d = p->d;
    char call[64];
    bool sends = d->rank == 0;
    int64_t start_ns;
    TRY(begin(p, &start_ns));
    clock_sleep_ms(sends ? send_late_ms : recv_late_ms);
    double begins_ms = demo_since_ms(start_ns);
    TRY(sends ? send_bytes(p, d->group, count) : recv_bytes(p, d->group, count));
    double ends_ms = demo_since_ms(start_ns);
    if (!sends)
        TRY(check(p, count));
    else
        demo_arrow(d, d->rank, p->peer, "%zu bytes", count);
    snprintf(call, sizeof call, "%s %zu bytes", sends ? "send" : "recv", count);
    demo_columns(d, "|call|begins|ends");
    tell(d, call, begins_ms, ends_ms);
    return demo_show(d);
}

static status show_blocking(const p2p *p)
{
    demo *d = p->d;
    demo_begin(d, "dist.send(x, dst=1) and dist.recv(x, src=0)");
    demo_say(d,
             "A send needs a recv of the same size on the other rank. No other rank has a part "
             "in it. Rank 1 calls recv at once, and rank 0 sends %d ms later. A recv ends when "
             "the data are there.",
             LATE_MS);
    TRY(show_pass(p, SMALL, LATE_MS, 0));
    demo_begin(d, "When does a send end? A small one");
    if (strcmp(process_group_backend(d->group), "shm") == 0)
        demo_say(d, "Now rank 1 is late. The send does not wait for it: its bytes go into a "
                    "channel between the two ranks, with room for 256 KiB, and x may be changed. "
                    "Another backend may wait; gloo does.");
    else
        demo_say(d,
                 "Now rank 1 is late. On %s a send waits for its recv, however small it is. On "
                 "shm a small one does not: its bytes go into a channel between the two ranks.",
                 process_group_backend(d->group));
    TRY(show_pass(p, SMALL, 0, LATE_MS));
    demo_begin(d, "When does a send end? A large one");
    demo_say(d,
             "The same with %d bytes. So many wait nowhere on their way: the send ends "
             "after the recv has begun.",
             LARGE);
    return show_pass(p, LARGE, 0, LATE_MS);
}

static status show_async(const p2p *p)
{
    demo *d = p->d;
    bool sends = d->rank == 0;
    const collective what = {.kind = sends ? COLLECTIVE_SEND : COLLECTIVE_RECV,
                             .type = DTYPE_U8,
                             .in = p->out,
                             .out = p->in,
                             .count = LARGE,
                             .root = p->peer};
    work *w;
    int64_t start_ns;
    TRY(begin(p, &start_ns));
    TRY(process_group_launch(d->group, &what, NULL, &w));
    double launched_ms = demo_since_ms(start_ns);
    clock_sleep_ms(LATE_MS); /* the rank's own work */
    double waits_ms = demo_since_ms(start_ns);
    TRY(process_group_wait(d->group, w, NULL));
    double ends_ms = demo_since_ms(start_ns);
    if (!sends)
        TRY(check(p, LARGE));
    demo_begin(d, "work = dist.isend(x, dst=1) ... work.wait()");
    demo_say(d,
             "isend and irecv only start. The rank goes on at once, here with %d ms of other "
             "work, and waits later. Until the wait has ended, x belongs to the message: who "
             "changes it may send the change.",
             LATE_MS);
    if (sends)
        demo_arrow(d, d->rank, p->peer, "%d bytes", LARGE);
    demo_columns(d, "|call|begins|ends");
    tell(d, sends ? "isend" : "irecv", 0, launched_ms);
    tell(d, "wait", waits_ms, ends_ms);
    return demo_show(d);
}

/* Each sends first, and receives then: in a group of its own, as a failure breaks it. */
static status try_deadlock(const p2p *p, size_t count, double *elapsed_ms, char why[512])
{
    process_group *group = NULL;
    int64_t start_ns;
    TRY(begin(p, &start_ns));
    TRY(demo_open_group(p->d, DEADLOCK_MS, &group));
    start_ns = clock_now_ns();
    status st = send_bytes(p, group, count);
    if (st == STATUS_OK)
        st = recv_bytes(p, group, count);
    if (st == STATUS_OK)
        st = check(p, count);
    *elapsed_ms = demo_since_ms(start_ns);
    snprintf(why, 512, "%s", st == STATUS_OK ? "" : status_text());
    process_group_destroy(group);
    return STATUS_OK;
}

static status show_exchange(const p2p *p, size_t count)
{
    demo *d = p->d;
    char why[512];
    double elapsed_ms;
    TRY(try_deadlock(p, count, &elapsed_ms, why));
    bool done = why[0] == '\0';
    demo_begin(d, "Both send first: %zu bytes", count);
    demo_say(d, "Both ranks call send, and then recv.");
    if (done) {
        demo_say(d, "So few bytes do not wait for the recv. It works, but by luck: who tests with "
                    "small data does not see what comes next.");
    } else {
        demo_say(d, "Each send waits for the other rank's recv, and no rank gets to its recv: a "
                    "deadlock. Nothing crashes, and nobody works. What ends it is the deadline, "
                    "here of one second (--timeout in a training). Rank 0 says:");
        demo_say(d, "%s", why);
    }
    demo_row(d, "rank %d|send, then recv|%s after %.1f ms", d->rank, done ? "done" : "failed",
             elapsed_ms);
    demo_fact(d, done ? "exchanged_bytes" : "deadlock_bytes", json_integer((json_int_t)count));
    return demo_show(d);
}

static status show_batch(const p2p *p)
{
    demo *d = p->d;
    int64_t start_ns;
    TRY(begin(p, &start_ns));
    TRY(demo_swap(d, p->peer, p->out, p->peer, p->in, LARGE));
    double elapsed_ms = demo_since_ms(start_ns);
    TRY(check(p, LARGE));
    demo_begin(d, "dist.batch_isend_irecv([send, recv])");
    demo_say(d, "The way out is to start both, and to wait after that: with isend and irecv, or "
                "with a batch, none of whose messages waits for another. It needs no thought about "
                "who sends first. NCCL wants a batch here, too.");
    demo_arrow(d, d->rank, p->peer, "%d bytes", LARGE);
    demo_row(d, "rank %d|send and recv, together|done after %.1f ms", d->rank, elapsed_ms);
    return demo_show(d);
}

static status show_all(const p2p *p)
{
    if (p->out == NULL || p->in == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d bytes", 2 * LARGE);
    TRY(show_blocking(p));
    TRY(show_async(p));
    TRY(show_exchange(p, SMALL));
    TRY(show_exchange(p, LARGE));
    return show_batch(p);
}

status p2p_demo(demo *d)
{
    p2p p = {.d = d, .peer = 1 - d->rank, .out = malloc(LARGE), .in = malloc(LARGE)};
    status st = show_all(&p);
    free(p.out);
    free(p.in);
    return st;
}
