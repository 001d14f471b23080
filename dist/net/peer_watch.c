#include "dist/net/peer_watch.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

struct peer_watch {
    int n;
    int *pids;
    struct pollfd *polls; /* by rank; fd -1: not watched */
};

status peer_watch_create(const int *pids, int n, peer_watch **out)
{
    status st = STATUS_OK;
    peer_watch *watch = calloc(1, sizeof *watch);
    if (watch == NULL)
        return FAIL(STATUS_NO_MEMORY, "a watch on %d ranks", n);
    watch->pids = calloc((size_t)n, sizeof *watch->pids);
    watch->polls = calloc((size_t)n, sizeof *watch->polls);
    if (watch->pids == NULL || watch->polls == NULL) {
        st = FAIL(STATUS_NO_MEMORY, "a watch on %d ranks", n);
        goto out;
    }
    for (int rank = 0; rank < n && st == STATUS_OK; rank++) {
        watch->pids[rank] = pids[rank];
        watch->polls[rank] = (struct pollfd){.fd = -1, .events = POLLIN};
        watch->n = rank + 1;
        if (pids[rank] == (int)getpid())
            continue;
        int fd = (int)syscall(SYS_pidfd_open, (pid_t)pids[rank], 0);
        if (fd < 0 && errno == ESRCH)
            st = FAIL(STATUS_PEER, "rank %d (pid %d) is gone", rank, pids[rank]);
        else if (fd < 0)
            st = FAIL(STATUS_IO, "pidfd_open of rank %d (pid %d): %s", rank, pids[rank],
                      strerror(errno));
        watch->polls[rank].fd = fd;
    }
out:
    if (st == STATUS_OK)
        *out = watch;
    else
        peer_watch_destroy(watch);
    return st;
}

void peer_watch_destroy(peer_watch *watch)
{
    if (watch == NULL)
        return;
    for (int rank = 0; rank < watch->n; rank++)
        if (watch->polls[rank].fd >= 0)
            close(watch->polls[rank].fd);
    free(watch->polls);
    free(watch->pids);
    free(watch);
}

static int find_dead(const peer_watch *watch, int from, int timeout_ms)
{
    if (poll(watch->polls, (nfds_t)watch->n, timeout_ms) <= 0)
        return -1;
    for (int rank = from; rank < watch->n; rank++)
        if (watch->polls[rank].revents != 0)
            return rank;
    return -1;
}

int peer_watch_dead(const peer_watch *watch, int timeout_ms)
{
    return find_dead(watch, 0, timeout_ms);
}

int peer_watch_next_dead(const peer_watch *watch, int from)
{
    return find_dead(watch, from, 0);
}

int peer_watch_pid(const peer_watch *watch, int rank)
{
    return watch->pids[rank];
}
