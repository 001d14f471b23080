#include "dist/elastic/rdzv.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "dist/elastic/rdzv_client.h"
#include "dist/elastic/round.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SAY_MS = 5000,      /* between two lines about what is missing */
    FAREWELL_MS = 1000, /* for closing the job, at the end */
    CROWD = 32,         /* nodes: of more than these not every change is looked at */
};

static const int64_t NS_PER_MS = 1000000;

struct rdzv_handle {
    rdzv_options options; /* its texts are owned */
    pthread_t thread;
    rdzv_queue *owner; /* what it is told, and asks for */

    /* The thread's. */
    round_machine machine;
    rdzv_client service;
    round_view view;
    int64_t until_ms;       /* the machine waits until then, or for another view */
    int64_t waits_since_ns; /* for a round */
    int64_t said_ns;
    rdzv_requests asked;
    bool finished; /* closed, or failed */
};

static int64_t now_ms(void)
{
    return clock_now_ns() / NS_PER_MS;
}

/* A thread that cannot tell its owner anything any more ends. */
static status tell(rdzv_handle *rdzv, rdzv_phase phase, round_ending ending, const char *reason)
{
    const round_machine *machine = &rdzv->machine;
    const rdzv_news news = {.phase = phase,
                            .failure = STATUS_PEER,
                            .ending = ending,
                            .reason = reason,
                            .now = &machine->last,
                            .node_rank = round_rank_of(&machine->last, machine->self.id)};
    status st = rdzv_queue_tell(rdzv->owner, &news);
    rdzv->finished =
        rdzv->finished || st != STATUS_OK || phase == RDZV_CLOSED || phase == RDZV_FAILED;
    return st;
}

static status fail(rdzv_handle *rdzv, const char *reason)
{
    return tell(rdzv, RDZV_FAILED, ROUND_BADLY, reason);
}

static status expire(rdzv_handle *rdzv, const char *why)
{
    char reason[1300];
    round_action action;
    round_event event = {.kind = ROUND_EXPIRED, .reason = reason};
    if (rdzv->service.silent_ns != 0)
        snprintf(reason, sizeof reason, "%s: %s", why, rdzv->service.why);
    else
        snprintf(reason, sizeof reason, "%s%s", why, rdzv_client_slowness(&rdzv->service).text);
    TRY(round_step(&rdzv->machine, &event, now_ms(), &action));
    return action.kind == ROUND_LEAVE ? tell(rdzv, RDZV_LEAVES, action.ending, action.reason)
                                      : STATUS_OK;
}

static status begin(rdzv_handle *rdzv)
{
    int64_t end_ns = rdzv_client_lease_end_ns(&rdzv->service);
    if (clock_passed(end_ns))
        return expire(rdzv, "this node's lease ended before the round began");
    rdzv_queue_extend(rdzv->owner, end_ns);
    return tell(rdzv, RDZV_RUNS, ROUND_WELL, "");
}

/* One step of the machine, and what it asks for. */
static status act(rdzv_handle *rdzv)
{
    round_action action;
    round_event event = {.kind = ROUND_VIEW, .view = &rdzv->view};
    TRY(round_step(&rdzv->machine, &event, now_ms(), &action));
    rdzv->until_ms = action.kind == ROUND_WAIT ? action.until_ms : 0;
    status st = STATUS_OK;
    switch (action.kind) {
    case ROUND_WAIT:
        break;
    case ROUND_PUT:
        st = rdzv_client_put(&rdzv->service, &rdzv->machine.self,
                             rdzv->machine.phase == ROUND_WAITS);
        break;
    case ROUND_WRITE:
        st = rdzv_client_write(&rdzv->service, &rdzv->view, &action.state);
        break;
    case ROUND_BEGIN:
        st = begin(rdzv);
        break;
    case ROUND_LEAVE:
        st = tell(rdzv, RDZV_LEAVES, action.ending, action.reason);
        break;
    case ROUND_END:
        st = tell(rdzv, RDZV_CLOSED, action.ending, action.reason);
        break;
    }
    round_action_free(&action);
    return st;
}

static status renew(rdzv_handle *rdzv)
{
    bool gone;
    TRY(rdzv_client_renew(&rdzv->service, &gone));
    if (gone)
        return expire(rdzv, "this node's lease at the rendezvous has ended");
    if (rdzv->machine.phase == ROUND_RUNS)
        rdzv_queue_extend(rdzv->owner, rdzv_client_lease_end_ns(&rdzv->service));
    return STATUS_OK;
}

/* All that is due now, and one look. */
static status turn(rdzv_handle *rdzv)
{
    TRY(renew(rdzv));
    TRY(rdzv_client_look(&rdzv->service, &rdzv->machine.self, rdzv->until_ms, &rdzv->view));
    return act(rdzv);
}

static void pause_for(const rdzv_handle *rdzv, int64_t ms)
{
    struct pollfd wake = {.fd = rdzv_queue_wake_fd(rdzv->owner), .events = POLLIN};
    poll(&wake, 1, (int)ms);
}

/* What a waiting node waits for. */
static void describe_wait(const rdzv_handle *rdzv, char *out, size_t size_bytes)
{
    char missing[512] = "many have come";
    if (!rdzv->view.only_state)
        round_quorum_text(&rdzv->machine.rules, &rdzv->view, missing, sizeof missing);
    if (rdzv->service.silent_ns != 0)
        snprintf(out, size_bytes, "the rendezvous cannot be used: %s", rdzv->service.why);
    else
        snprintf(out, size_bytes, "waits for nodes: %s%s", missing,
                 rdzv_client_slowness(&rdzv->service).text);
}

/* How long this node has waited for a round. */
static status check_wait(rdzv_handle *rdzv)
{
    char waits[1200], reason[1300];
    int64_t now_ns = clock_now_ns();
    if (rdzv->machine.phase != ROUND_WAITS && rdzv->machine.phase != ROUND_AGREES) {
        rdzv->waits_since_ns = rdzv->said_ns = now_ns;
        return STATUS_OK;
    }
    bool late = now_ns - rdzv->waits_since_ns > rdzv->options.join_ms * NS_PER_MS;
    if (!late && now_ns - rdzv->said_ns < SAY_MS * NS_PER_MS)
        return STATUS_OK;
    rdzv->said_ns = now_ns;
    describe_wait(rdzv, waits, sizeof waits);
    if (!late) {
        LOG_I("%s", waits);
        return STATUS_OK;
    }
    snprintf(reason, sizeof reason, "no round within %lld s (--join-timeout): %s",
             (long long)rdzv->options.join_ms / 1000, waits);
    return fail(rdzv, reason);
}

static bool is_since(int64_t since_ns, int64_t ms)
{
    return since_ns != 0 && clock_passed(since_ns + ms * NS_PER_MS);
}

/* A store that answers no more: a node without a round waits for it as long as a lease lasts. */
static bool is_gone(const rdzv_client *service, round_phase phase)
{
    return service->ops->ends_with_its_host && service->ever &&
           (is_since(service->refused_ns, service->keep_alive_ms) ||
            (phase == ROUND_WAITS && is_since(service->silent_ns, service->options.ttl_ms)));
}

/* What has taken too long. */
static status check_times(rdzv_handle *rdzv)
{
    const rdzv_client *service = &rdzv->service;
    round_phase phase = rdzv->machine.phase;
    char reason[1300];
    if ((phase == ROUND_RUNS || phase == ROUND_AGREES) &&
        clock_passed(rdzv_client_lease_end_ns(service)))
        TRY(expire(rdzv, "this node's lease has ended, as the rendezvous does not answer in time"));
    if (!is_gone(service, phase))
        return check_wait(rdzv);
    snprintf(reason, sizeof reason, "the job's store is gone, or this node is cut off from it: %s",
             service->why);
    return fail(rdzv, reason);
}

/* The machine hears that no rank of this node is in the round any more. */
static status note_left(rdzv_handle *rdzv)
{
    round_action action;
    round_event event = {.kind = ROUND_LEFT,
                         .restarts = rdzv->asked.how.restarts,
                         .lost = rdzv->asked.how.lost,
                         .n_lost = rdzv->asked.how.n_lost,
                         .unmet = rdzv->asked.how.unmet};
    TRY(round_step(&rdzv->machine, &event, now_ms(), &action));
    rdzv->until_ms = 0;
    rdzv->waits_since_ns = rdzv->said_ns = clock_now_ns();
    rdzv_queue_heard_left(rdzv->owner);
    rdzv_requests_free(&rdzv->asked);
    return STATUS_OK;
}

/* The owner's wishes. */
static status take_requests(rdzv_handle *rdzv)
{
    rdzv_requests *asked = &rdzv->asked;
    rdzv_queue_take(rdzv->owner, asked);
    if (asked->close) {
        round_action action;
        round_event event = {.kind = ROUND_CLOSE, .ending = asked->ending, .reason = asked->reason};
        TRY(round_step(&rdzv->machine, &event, now_ms(), &action));
        rdzv->until_ms = 0;
    }
    return asked->left ? note_left(rdzv) : STATUS_OK;
}

/* After a turn. */
static status note_turn(rdzv_handle *rdzv, status result)
{
    rdzv_client *service = &rdzv->service;
    rdzv_client_note(service, result);
    if (result == STATUS_INVALID)
        return fail(rdzv, service->why);
    if (!rdzv->finished)
        TRY(check_times(rdzv));
    if (result != STATUS_OK)
        pause_for(rdzv, service->retry_ms);
    else if (rdzv->view.n > CROWD && rdzv->until_ms > 0)
        pause_for(rdzv, rdzv->view.n / 8);
    return STATUS_OK;
}

static void *serve(void *arg)
{
    rdzv_handle *rdzv = arg;
    int64_t end_ns = 0;
    while (!rdzv->finished) {
        status st = take_requests(rdzv);
        bool quit = rdzv->asked.quit;
        if (quit && end_ns == 0)
            end_ns = clock_deadline_ns(FAREWELL_MS);
        if (quit && (!rdzv->machine.closing || clock_passed(end_ns)))
            break;
        if (st == STATUS_OK)
            st = turn(rdzv);
        if (note_turn(rdzv, st) != STATUS_OK)
            pause_for(rdzv, rdzv->service.retry_ms); /* memory is short */
    }
    rdzv_client_close(&rdzv->service);
    return NULL;
}

static void release(rdzv_handle *rdzv)
{
    rdzv_queue_destroy(rdzv->owner);
    rdzv_requests_free(&rdzv->asked);
    round_machine_free(&rdzv->machine);
    round_view_free(&rdzv->view);
    free((char *)rdzv->options.endpoints);
    free((char *)rdzv->options.run_id);
    free(rdzv);
}

static void init_service(rdzv_handle *rdzv)
{
    const rdzv_options *o = &rdzv->options;
    int64_t ttl_ms = o->keep_alive_ms * o->keep_alive_misses, third_ms = ttl_ms / 3;
    rdzv_service_options options = {
        .endpoints = o->endpoints,
        .run_id = o->run_id,
        .access = o->access,
        .node_id = rdzv->machine.self.id,
        .ttl_ms = ttl_ms,
        .timeout_ms = o->read_ms > 0 && o->read_ms < third_ms ? o->read_ms : third_ms,
        .wake_fd = rdzv_queue_wake_fd(rdzv->owner),
    };
    rdzv_client_init(&rdzv->service, o->backend, &options, o->keep_alive_ms);
}

status rdzv_open(const rdzv_options *options, rdzv_handle **out)
{
    rdzv_handle *rdzv = calloc(1, sizeof *rdzv);
    if (rdzv == NULL)
        return FAIL(STATUS_NO_MEMORY, "a rendezvous");
    round_rules rules = {options->min_nodes, options->max_nodes, options->last_call_ms};
    rdzv->options = *options;
    rdzv->options.endpoints = strdup(options->endpoints);
    rdzv->options.run_id = strdup(options->run_id);
    round_machine_init(&rdzv->machine, &rules, &options->self);
    rdzv->waits_since_ns = rdzv->said_ns = clock_now_ns();
    status st = rdzv_queue_create(&rdzv->owner);
    if (rdzv->options.endpoints == NULL || rdzv->options.run_id == NULL)
        st = FAIL(STATUS_NO_MEMORY, "a rendezvous");
    if (st == STATUS_OK) {
        init_service(rdzv);
        st = thread_start(serve, rdzv, "the rendezvous'", &rdzv->thread);
    }
    if (st == STATUS_OK)
        *out = rdzv;
    else
        release(rdzv);
    return st;
}

int rdzv_fd(const rdzv_handle *rdzv)
{
    return rdzv_queue_news_fd(rdzv->owner);
}

rdzv_news rdzv_watch(rdzv_handle *rdzv)
{
    return rdzv_queue_look(rdzv->owner);
}

void rdzv_leave(rdzv_handle *rdzv, const rdzv_departure *how)
{
    rdzv_queue_left(rdzv->owner, how);
}

void rdzv_end_job(rdzv_handle *rdzv, round_ending ending, const char *reason)
{
    rdzv_queue_close_job(rdzv->owner, ending, reason);
}

void rdzv_close(rdzv_handle *rdzv)
{
    if (rdzv == NULL)
        return;
    rdzv_queue_quit(rdzv->owner);
    pthread_join(rdzv->thread, NULL);
    release(rdzv);
}
