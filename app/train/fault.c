#include "app/train/fault.h"

#include "base/clock.h"
#include "base/log.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>

status fault_check(const inject *what, int world_size)
{
    if (what->kind == INJECT_NONE || what->rank < world_size)
        return STATUS_OK;
    if (world_size > 1)
        return FAIL(STATUS_INVALID, "--inject: rank %lld of %d: they are numbered from 0 to %d",
                    (long long)what->rank, world_size, world_size - 1);
    return FAIL(STATUS_INVALID, "--inject: rank %lld of %d: the only one is rank 0",
                (long long)what->rank, world_size);
}

status fault_aim(inject *what, int rank, int world_size, int attempt)
{
    TRY(fault_check(what, world_size));
    if ((what->rank >= 0 && what->rank != rank) || what->attempt != attempt)
        what->kind = INJECT_NONE;
    if (what->kind == INJECT_DELAY && what->step == 0)
        LOG_W("injected: every step begins %lld ms late", (long long)what->ms);
    if (what->kind == INJECT_SLOW && (rank == 0 || what->rank >= 0))
        LOG_W("injected: every forward and every backward takes %lld ms longer",
              (long long)what->ms);
    if (what->kind == INJECT_UNEVEN)
        LOG_W("injected: every epoch ends one step early on this rank");
    if (what->kind == INJECT_FORGET_SET_EPOCH && rank == 0)
        LOG_W("injected: every epoch has the first one's order");
    return STATUS_OK;
}

/* Returns how many of this process's TCP connections it has shut down. */
static int drop_connections(void)
{
    int dropped = 0;
    DIR *list = opendir("/proc/self/fd");
    for (struct dirent *e = list != NULL ? readdir(list) : NULL; e != NULL; e = readdir(list)) {
        int fd = atoi(e->d_name), domain = 0;
        socklen_t size = sizeof domain;
        struct sockaddr_storage peer;
        socklen_t peer_size = sizeof peer;
        if (e->d_name[0] != '.' && getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 &&
            (domain == AF_INET || domain == AF_INET6) &&
            getpeername(fd, (struct sockaddr *)&peer, &peer_size) == 0)
            dropped += shutdown(fd, SHUT_RDWR) == 0;
    }
    if (list != NULL)
        closedir(list);
    return dropped;
}

void fault_before_step(const inject *what, int64_t step)
{
    if (what->step != step && (what->step != 0 || what->kind != INJECT_DELAY))
        return;
    long long number = step;
    switch (what->kind) {
    case INJECT_KILL:
        LOG_W("injected: SIGKILL before step %lld", number);
        raise(SIGKILL);
        break;
    case INJECT_STOP:
        LOG_W("injected: SIGSTOP before step %lld", number);
        raise(SIGSTOP);
        break;
    case INJECT_DELAY:
        if (what->step != 0)
            LOG_W("injected: %lld ms before step %lld", (long long)what->ms, number);
        clock_sleep_ms(what->ms);
        break;
    case INJECT_DROP_CONN:
        LOG_W("injected: TCP connections (%d) dropped before step %lld", drop_connections(),
              number);
        break;
    default: /* not tied to a step */
        break;
    }
}

int fault_steps(const inject *what, int steps)
{
    return what->kind == INJECT_UNEVEN ? steps - 1 : steps;
}

int fault_order(const inject *what, int64_t epoch)
{
    return what->kind == INJECT_FORGET_SET_EPOCH ? 0 : (int)epoch;
}
