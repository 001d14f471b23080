#include "dist/backends/nccl/nccl_comm.h"

#include "base/clock.h"
#include "dist/membership/keys.h"
#include "dist/membership/membership.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PREFIX_BYTES = 64, FINALIZE_TIMEOUT_MS = 3000, LOOK_EVERY_MS = 100 };

/* What a rank that joins looks at meanwhile. */
typedef struct joining {
    membership ranks; /* of this group: who has a communicator, and who gives up */
    first_cause *cause;
    int64_t next_look_ns;
} joining;

static status share_id(const membership *ranks, int64_t deadline_ns, ncclUniqueId *id)
{
    char value[sizeof *id + 1];
    keys_text key = keys_make(ranks->prefix, KEYS_NCCL_ID, -1);
    if (ranks->member == 0) {
        TRY(NCCL_CALL(ncclGetUniqueId(id)));
        return store_set(ranks->store, key.text, id, sizeof *id);
    }
    TRY(store_get_text(ranks->store, key.text, deadline_ns, value, sizeof value));
    memcpy(id, value, sizeof *id);
    return STATUS_OK;
}

/* An nccl_ask: whether another rank has failed or ended. */
static status look_at_others(void *ctx)
{
    joining *j = ctx;
    int64_t now_ns = clock_now_ns();
    if (now_ns < j->next_look_ns)
        return STATUS_OK;
    j->next_look_ns = now_ns + LOOK_EVERY_MS * 1000000;
    bool known = false;
    TRY(membership_hear(&j->ranks, &known));
    int dead = peers_find_ended(first_cause_peers(j->cause), 0, 0);
    return dead < 0 ? STATUS_OK : first_cause_death(j->cause, dead);
}

/* Names the first other rank that has no communicator yet. */
static status name_missing(const membership *ranks, status st)
{
    int rank = 0;
    status_kept before;
    status_keep(&before);
    bool *up = calloc((size_t)ranks->n, sizeof *up);
    if (up != NULL && membership_look(ranks, up) == STATUS_OK)
        while (rank < ranks->n && (rank == ranks->member || up[rank]))
            rank++;
    else
        rank = ranks->n;
    free(up);
    status_restore(&before);
    if (rank == ranks->n)
        return st;
    return status_context(st,
                          "rank %d has not connected (is a network in between that NCCL cannot "
                          "cross? NCCL_SOCKET_IFNAME chooses one)",
                          rank);
}

static status join(joining *j, int64_t deadline_ns, nccl_comm *out)
{
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    nccl_ask ask = {look_at_others, j};
    meeting up = {.record = "up", .deadline_ns = deadline_ns};
    config.blocking = 0;
    TRY(share_id(&j->ranks, deadline_ns, &id));
    pthread_mutex_lock(&out->lock);
    status st =
        NCCL_CALL(ncclCommInitRankConfig(&out->handle, j->ranks.n, id, j->ranks.member, &config));
    if (st == STATUS_OK)
        st = nccl_comm_settle(out, "ncclCommInitRankConfig", deadline_ns, &ask);
    pthread_mutex_unlock(&out->lock);
    if (st == STATUS_TIMEOUT)
        return name_missing(&j->ranks, st);
    return st == STATUS_OK ? membership_arrive(&j->ranks, &up) : st;
}

void nccl_comm_init(nccl_comm *comm)
{
    comm->handle = NULL;
    pthread_mutex_init(&comm->lock, NULL);
}

status nccl_comm_open(nccl_comm *comm, const group_setup *setup, first_cause *cause,
                      int64_t deadline_ns)
{
    const process_group_options *o = setup->options;
    char prefix[PREFIX_BYTES];
    snprintf(prefix, sizeof prefix, "%snccl/", setup->prefix);
    joining j = {.ranks = {.store = o->store,
                           .prefix = prefix,
                           .member = o->rank,
                           .n = o->world_size,
                           .noun = "rank"},
                 .cause = cause};
    status st = join(&j, deadline_ns, comm);
    if (st != STATUS_OK && st != STATUS_PEER && st != STATUS_TIMEOUT)
        (void)membership_give_up(&j.ranks, STATUS_PEER);
    return st;
}

status nccl_comm_settle(nccl_comm *comm, const char *call, int64_t deadline_ns, const nccl_ask *ask)
{
    poll_pause pause = {0};
    for (;;) {
        ncclResult_t state = ncclSuccess;
        TRY(NCCL_CALL(ncclCommGetAsyncError(comm->handle, &state)));
        if (state != ncclInProgress)
            return nccl_call_status(state, call, __FILE__, __LINE__);
        if (clock_passed(deadline_ns))
            return FAIL(STATUS_TIMEOUT, "%s: not done within the timeout", call);
        if (poll_pause_once(&pause))
            TRY(ask->fn(ask->ctx));
    }
}

static status never(void *ctx)
{
    (void)ctx;
    return STATUS_OK;
}

static status take_leave(nccl_comm *comm)
{
    nccl_ask ask = {never, NULL};
    TRY(NCCL_CALL(ncclCommFinalize(comm->handle)));
    TRY(nccl_comm_settle(comm, "ncclCommFinalize", clock_deadline_ns(FINALIZE_TIMEOUT_MS), &ask));
    ncclComm_t handle = comm->handle;
    comm->handle = NULL;
    return NCCL_CALL(ncclCommDestroy(handle));
}

void nccl_comm_close(nccl_comm *comm, bool well)
{
    pthread_mutex_lock(&comm->lock);
    if (comm->handle != NULL && well)
        (void)take_leave(comm);
    if (comm->handle != NULL)
        (void)NCCL_CALL(ncclCommAbort(comm->handle));
    comm->handle = NULL;
    pthread_mutex_unlock(&comm->lock);
    pthread_mutex_destroy(&comm->lock);
}
