#include "dist/health/peers.h"

#include "base/text.h"
#include "dist/membership/membership.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum { PREFIX_BYTES = 64 };

struct peers {
    int n;
    process_id *ids;      /* (n); all zero: not known */
    struct pollfd *polls; /* (n); fd -1: not watched */
};

/* The ranks of the group, which meet to say who they are. */
static membership members(const group_setup *setup, char prefix[PREFIX_BYTES])
{
    const process_group_options *o = setup->options;
    snprintf(prefix, PREFIX_BYTES, "%speers/", setup->prefix);
    return (membership){.store = o->store,
                        .prefix = prefix,
                        .member = o->rank,
                        .n = o->world_size,
                        .noun = "rank",
                        .of_job = o->prefix == NULL};
}

/* A meeting's compare(): the records of all ranks, one a line. */
static status list_all(void *ctx, char *const records[], char **outcome)
{
    int n = *(const int *)ctx;
    text_stream lines;
    TRY(text_stream_open(&lines));
    for (int rank = 0; rank < n; rank++)
        fprintf(lines.file, "%s\n", records[rank]);
    return text_stream_close(&lines, outcome, NULL);
}

static status read_list(peers *p, const char *text)
{
    for (int rank = 0; rank < p->n; rank++) {
        process_id *id = &p->ids[rank];
        if (sscanf(text, "%" SCNd32 " %" SCNu64, &id->pid, &id->start) != 2 || id->pid <= 0)
            return FAIL(STATUS_PEER, "rank %d has not said which process it is", rank);
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    return STATUS_OK;
}

static status watch(peers *p, int rank)
{
    const process_id *id = &p->ids[rank];
    if (id->pid == (int)getpid())
        return STATUS_OK;
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)id->pid, 0);
    p->polls[rank].fd = fd;
    if (fd < 0 && errno != ESRCH)
        return FAIL(STATUS_IO, "pidfd_open of rank %d (pid %d): %s", rank, id->pid,
                    strerror(errno));
    /* Looked at with the descriptor open: from now on it is that process. */
    if (fd < 0 || process_look(*id) == PROCESS_ENDED)
        return FAIL(STATUS_PEER, "rank %d (pid %d) is gone", rank, id->pid);
    return STATUS_OK;
}

static status meet(peers *p, const group_setup *setup, int64_t deadline_ns)
{
    process_id self = process_self();
    char prefix[PREFIX_BYTES], record[64], *list = NULL;
    membership ranks = members(setup, prefix);
    meeting how = {.record = record,
                   .deadline_ns = deadline_ns,
                   .late = "has not opened its backend in time",
                   .compare = list_all,
                   .ctx = &p->n};
    snprintf(record, sizeof record, "%d %" PRIu64, self.pid, self.start);
    TRY(membership_meet(&ranks, &how, &list));
    status st = read_list(p, list);
    free(list);
    for (int rank = 0; rank < p->n && st == STATUS_OK && setup->one_host; rank++)
        st = watch(p, rank);
    if (!setup->one_host) /* other hosts' numbers mean nothing here */
        memset(p->ids, 0, (size_t)p->n * sizeof *p->ids);
    return st;
}

status peers_create(const group_setup *setup, int64_t deadline_ns, peers **out)
{
    size_t n = (size_t)setup->options->world_size;
    peers *p = calloc(1, sizeof *p);
    if (p == NULL)
        return FAIL(STATUS_NO_MEMORY, "a watch on %zu ranks", n);
    status st = STATUS_OK;
    p->ids = calloc(n, sizeof *p->ids);
    p->polls = calloc(n, sizeof *p->polls);
    if (p->ids == NULL || p->polls == NULL) {
        st = FAIL(STATUS_NO_MEMORY, "a watch on %zu ranks", n);
        goto out;
    }
    p->n = (int)n;
    for (size_t rank = 0; rank < n; rank++)
        p->polls[rank] = (struct pollfd){.fd = -1, .events = POLLIN};
    st = meet(p, setup, deadline_ns);
out:
    if (st == STATUS_OK)
        *out = p;
    else
        peers_destroy(p);
    return st;
}

void peers_destroy(peers *p)
{
    if (p == NULL)
        return;
    for (int rank = 0; rank < p->n; rank++)
        if (p->polls[rank].fd >= 0)
            close(p->polls[rank].fd);
    free(p->polls);
    free(p->ids);
    free(p);
}

void peers_decline(const group_setup *setup)
{
    char prefix[PREFIX_BYTES];
    membership ranks = members(setup, prefix);
    (void)membership_give_up(&ranks, STATUS_PEER);
}

void peers_name(const peers *p, int rank, char out[PEERS_NAME_BYTES])
{
    int pid = p->ids[rank].pid;
    if (pid == 0)
        snprintf(out, PEERS_NAME_BYTES, "rank %d", rank);
    else
        snprintf(out, PEERS_NAME_BYTES, "rank %d (pid %d)", rank, pid);
}

int peers_find_ended(const peers *p, int from, int timeout_ms)
{
    size_t size_bytes = (size_t)p->n * sizeof *p->polls;
    struct pollfd *polls = malloc(size_bytes); /* poll() writes there, and others may look too */
    int found = -1;
    if (polls == NULL)
        return -1;
    memcpy(polls, p->polls, size_bytes);
    if (poll(polls, (nfds_t)p->n, timeout_ms) > 0)
        for (int rank = p->n - 1; rank >= from; rank--)
            if (polls[rank].revents != 0)
                found = rank;
    free(polls);
    return found;
}

int peers_find_stopped(const peers *p, int from)
{
    for (int rank = from; rank < p->n; rank++)
        if (p->polls[rank].fd >= 0 && process_look(p->ids[rank]) == PROCESS_STOPPED)
            return rank;
    return -1;
}

enum { STAT_BYTES = 512 };

/* State and start. They come after the name, which may hold anything and ends at the last bracket.
 * false: they were not read; errno says why. */
static bool read_stat(int pid, char *state, uint64_t *start)
{
    char path[64], text[STAT_BYTES];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    errno = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *end = strrchr(text, ')');
    return end != NULL && sscanf(end,
                                 ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d "
                                 "%*d %*d %*d %" SCNu64,
                                 state, start) == 2;
}

process_id process_self(void)
{
    process_id self = {.pid = (int32_t)getpid()};
    char state = '\0';
    if (!read_stat(self.pid, &state, &self.start))
        self.start = 0;
    return self;
}

process_state process_look(process_id id)
{
    char state = '\0';
    uint64_t start = 0;
    if (!read_stat(id.pid, &state, &start)) /* without a free descriptor nobody is dead */
        return errno == ENOENT || errno == ESRCH ? PROCESS_ENDED : PROCESS_RUNS;
    if (state == 'Z' || state == 'X')
        return PROCESS_ENDED;
    if (id.start != 0 && id.start != start)
        return PROCESS_ENDED;
    return state == 'T' || state == 't' ? PROCESS_STOPPED : PROCESS_RUNS;
}
