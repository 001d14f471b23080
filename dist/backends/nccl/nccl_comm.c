/* Keys in the store, under the group's prefix:
 *
 *   nccl/id            NCCL's unique id, by rank 0
 *   nccl/up/<rank>     its communicator stands
 *   nccl/failed        why some rank's does not
 */
#include "dist/backends/nccl/nccl_comm.h"

#include "base/clock.h"
#include "base/poll_pause.h"
#include "dist/backend_choice.h"

#include <stdio.h>
#include <string.h>

enum { KEY_BYTES = 96, TEXT_BYTES = 1024, FINALIZE_TIMEOUT_MS = 3000, LOOK_EVERY_MS = 100 };

/* What a rank that joins looks at meanwhile. */
typedef struct joining {
    const group_setup *setup;
    first_cause *cause;
    int64_t next_look_ns;
} joining;

static void key_of(const group_setup *setup, const char *name, char *key)
{
    snprintf(key, KEY_BYTES, "%snccl/%s", setup->prefix, name);
}

static void key_of_rank(const group_setup *setup, const char *name, int rank, char *key)
{
    snprintf(key, KEY_BYTES, "%snccl/%s/%d", setup->prefix, name, rank);
}

static status share_id(const group_setup *setup, int64_t deadline_ns, ncclUniqueId *id)
{
    const process_group_options *o = setup->options;
    char key[KEY_BYTES], value[sizeof *id + 1];
    key_of(setup, "id", key);
    if (o->rank == 0) {
        TRY(NCCL_CALL(ncclGetUniqueId(id)));
        return store_set(o->store, key, id, sizeof *id);
    }
    TRY(backend_choice_fetch(o->store, key, deadline_ns, value, sizeof value));
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
    const process_group_options *o = j->setup->options;
    char key[KEY_BYTES], text[TEXT_BYTES];
    bool failed = false;
    key_of(j->setup, "failed", key);
    TRY(store_check(o->store, key, &failed));
    if (failed) {
        TRY(backend_choice_fetch(o->store, key, clock_deadline_ns(1000), text, sizeof text));
        return FAIL(STATUS_PEER, "%s", text);
    }
    int dead = peers_find_ended(first_cause_peers(j->cause), 0, 0);
    return dead < 0 ? STATUS_OK : first_cause_death(j->cause, dead);
}

/* The first other rank whose communicator does not stand. */
static status name_missing(const group_setup *setup, status st)
{
    const process_group_options *o = setup->options;
    char key[KEY_BYTES];
    bool up = true;
    int rank = 0;
    status_kept before;
    status_keep(&before);
    for (; rank < o->world_size; rank++) {
        key_of_rank(setup, "up", rank, key);
        if (rank != o->rank && (store_check(o->store, key, &up) != STATUS_OK || !up))
            break;
    }
    status_restore(&before);
    if (rank == o->world_size)
        return st;
    return status_context(st,
                          "rank %d has not connected (is a network in between that NCCL cannot "
                          "cross? NCCL_SOCKET_IFNAME chooses one)",
                          rank);
}

static status join(const group_setup *setup, joining *j, int64_t deadline_ns, nccl_comm *out)
{
    const process_group_options *o = setup->options;
    char key[KEY_BYTES];
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    nccl_ask ask = {look_at_others, j};
    config.blocking = 0;
    TRY(share_id(setup, deadline_ns, &id));
    pthread_mutex_lock(&out->lock);
    status st =
        NCCL_CALL(ncclCommInitRankConfig(&out->handle, o->world_size, id, o->rank, &config));
    if (st == STATUS_OK)
        st = nccl_comm_settle(out, "ncclCommInitRankConfig", deadline_ns, &ask);
    pthread_mutex_unlock(&out->lock);
    if (st == STATUS_TIMEOUT)
        return name_missing(setup, st);
    if (st != STATUS_OK)
        return st;
    key_of_rank(setup, "up", o->rank, key);
    return store_set(o->store, key, "1", 1);
}

/* So that no other rank waits for this one. */
static void tell_failure(const group_setup *setup)
{
    char key[KEY_BYTES], text[TEXT_BYTES];
    status_kept kept;
    status_keep(&kept);
    snprintf(text, sizeof text, "rank %d: %.900s", setup->options->rank, kept.text);
    key_of(setup, "failed", key);
    (void)store_set(setup->options->store, key, text, strlen(text));
    status_restore(&kept);
}

void nccl_comm_init(nccl_comm *comm)
{
    comm->handle = NULL;
    pthread_mutex_init(&comm->lock, NULL);
}

status nccl_comm_open(nccl_comm *comm, const group_setup *setup, first_cause *cause,
                      int64_t deadline_ns)
{
    joining j = {.setup = setup, .cause = cause};
    status st = join(setup, &j, deadline_ns, comm);
    if (st != STATUS_OK && st != STATUS_PEER && st != STATUS_TIMEOUT)
        tell_failure(setup);
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
