#include "dist/nccl/nccl_peers.h"

#include <stdlib.h>

enum {
    DEATH_GRACE_MS = 100,  /* what a dead rank has sent may still be on its way */
    LEAVE_GRACE_MS = 1000, /* likewise of one that left in peace */
    LEAVE_LOOK_MS = 1000,
};

struct nccl_peers {
    const nccl_news *news;
    int64_t *ended_ns; /* (world_size): when it was noticed; 0: not */
    int64_t looked_ns; /* for ranks that have left */
};

status nccl_peers_create(const nccl_news *news, nccl_peers **out)
{
    nccl_peers *p = calloc(1, sizeof *p);
    int64_t *ended_ns = calloc((size_t)news->world_size, sizeof *ended_ns);
    if (p == NULL || ended_ns == NULL) {
        free(ended_ns);
        free(p);
        return FAIL(STATUS_NO_MEMORY, "a watch on %d ranks", news->world_size);
    }
    *p = (nccl_peers){.news = news, .ended_ns = ended_ns};
    *out = p;
    return STATUS_OK;
}

void nccl_peers_destroy(nccl_peers *peers)
{
    if (peers == NULL)
        return;
    free(peers->ended_ns);
    free(peers);
}

void nccl_peers_look(nccl_peers *peers, int64_t now_ns)
{
    const peer_watch *watch = peers->news->peers;
    int rank = watch == NULL ? -1 : peer_watch_next_dead(watch, 0);
    for (; rank >= 0; rank = peer_watch_next_dead(watch, rank + 1))
        if (peers->ended_ns[rank] == 0)
            peers->ended_ns[rank] = now_ns;
}

/* A rank that has closed its group: whether the collective waits for it in vain. */
static status check_left(const nccl_awaited *what, int rank, const nccl_leave *how, int64_t now_ns)
{
    if (what->only < 0 && how->number >= what->number)
        return STATUS_OK;
    if (how->why != STATUS_OK)
        return FAIL(how->why, "rank %d has closed its process group: %s", rank, how->words);
    if (now_ns - what->since_ns < LEAVE_GRACE_MS * INT64_C(1000000))
        return STATUS_OK;
    return FAIL(STATUS_PEER, "rank %d has closed its process group", rank);
}

static status check_ended(nccl_peers *p, const nccl_awaited *what, int rank, int64_t now_ns)
{
    int64_t ended_ns = p->ended_ns[rank];
    int64_t from_ns = what->since_ns > ended_ns ? what->since_ns : ended_ns;
    if (ended_ns == 0 || now_ns - from_ns < DEATH_GRACE_MS * INT64_C(1000000))
        return STATUS_OK;
    nccl_leave how;
    if (nccl_news_has_left(p->news, rank, &how))
        return check_left(what, rank, &how, now_ns);
    int lost = nccl_news_agree_on_lost(p->news, rank);
    return FAIL(STATUS_PEER, "rank %d (pid %d) is gone", lost,
                peer_watch_pid(p->news->peers, lost));
}

/* Those that live on without their group, or did so on another host. */
static status check_leaver(nccl_peers *p, const nccl_awaited *what, int64_t now_ns)
{
    const int64_t every_ns = LEAVE_LOOK_MS * INT64_C(1000000);
    nccl_leave how;
    if (now_ns - what->since_ns < every_ns || now_ns - p->looked_ns < every_ns)
        return STATUS_OK;
    p->looked_ns = now_ns;
    int rank = nccl_news_latest_leaver(p->news);
    if (rank < 0 || (what->only >= 0 && what->only != rank))
        return STATUS_OK;
    return nccl_news_has_left(p->news, rank, &how) ? check_left(what, rank, &how, now_ns)
                                                   : STATUS_OK;
}

status nccl_peers_check(nccl_peers *peers, const nccl_awaited *what, int64_t now_ns)
{
    for (int rank = 0; rank < peers->news->world_size; rank++)
        if (rank != peers->news->rank && (what->only < 0 || what->only == rank))
            TRY(check_ended(peers, what, rank, now_ns));
    return check_leaver(peers, what, now_ns);
}

void nccl_peers_blame(const nccl_peers *peers)
{
    const peer_watch *watch = peers->news->peers;
    int dead = watch == NULL ? -1 : peer_watch_dead(watch, DEATH_GRACE_MS);
    if (dead < 0)
        return;
    int lost = nccl_news_agree_on_lost(peers->news, dead);
    status_context(STATUS_PEER, "rank %d (pid %d) is gone", lost, peer_watch_pid(watch, lost));
}
