/* Keys in the store, under the group's prefix:
 *
 *   peers/<rank>   "<pid> <start>" of that rank, or "0 " and why it goes no further
 *   peers/all      by rank 0: the same of all ranks, one a line, or "0 " and which rank declined
 */
#include "dist/health/peers.h"

#include "base/clock.h"
#include "base/text_stream.h"
#include "dist/backend_choice.h"
#include "dist/health/process.h"
#include "dist/store/store.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum { KEY_BYTES = 96, TEXT_BYTES = 1024 };

struct peers {
    int n;
    process_id *ids;      /* (n); all zero: not known */
    struct pollfd *polls; /* (n); fd -1: not watched */
};

static void key_of(const group_setup *setup, int rank, char *key)
{
    snprintf(key, KEY_BYTES, "%speers/%d", setup->prefix, rank);
}

static void key_of_all(const group_setup *setup, char *key)
{
    snprintf(key, KEY_BYTES, "%speers/all", setup->prefix);
}

static status put(const group_setup *setup, const char *key, const char *text)
{
    return store_set(setup->options->store, key, text, strlen(text));
}

/* On rank 0: what all ranks say, one a line. STATUS_PEER with the first that has declined. */
static status gather(const group_setup *setup, int64_t deadline_ns, FILE *lines)
{
    const process_group_options *o = setup->options;
    char key[KEY_BYTES], text[TEXT_BYTES];
    for (int rank = 0; rank < o->world_size; rank++) {
        key_of(setup, rank, key);
        status st = backend_choice_fetch(o->store, key, deadline_ns, text, sizeof text);
        if (st == STATUS_TIMEOUT)
            return FAIL(st, "rank %d has not opened its backend in time", rank);
        if (st != STATUS_OK)
            return st;
        if (atoi(text) <= 0)
            return FAIL(STATUS_PEER, "rank %d: %s", rank, text + strspn(text, "0 "));
        fprintf(lines, "%s\n", text);
    }
    return STATUS_OK;
}

static status publish(const group_setup *setup, int64_t deadline_ns)
{
    char key[KEY_BYTES], why[TEXT_BYTES], *text = NULL;
    text_stream lines;
    TRY(text_stream_open(&lines));
    status st = gather(setup, deadline_ns, lines.file),
           whole = text_stream_close(&lines, &text, NULL);
    if (st == STATUS_OK)
        st = whole;
    key_of_all(setup, key);
    if (st == STATUS_OK) {
        st = put(setup, key, text);
    } else if (st == STATUS_PEER) {
        status_kept kept;
        status_keep(&kept);
        snprintf(why, sizeof why, "0 %.1000s", status_text());
        (void)put(setup, key, why);
        status_restore(&kept);
    }
    free(text);
    return st;
}

/* Nobody has given out the list: names the first other rank that has not come, else rank 0. */
static status name_missing(const group_setup *setup)
{
    const process_group_options *o = setup->options;
    char key[KEY_BYTES];
    int missing = 0;
    for (int rank = 1; rank < o->world_size && missing == 0; rank++) {
        bool is_there = true;
        key_of(setup, rank, key);
        if (rank != o->rank && store_check(o->store, key, &is_there) == STATUS_OK && !is_there)
            missing = rank;
    }
    return FAIL(STATUS_TIMEOUT, "rank %d has not opened its backend in time", missing);
}

/* Sets *out, to be freed, to what publish() has given out. */
static status fetch(const group_setup *setup, int64_t deadline_ns, char **out)
{
    store *keys = setup->options->store;
    char key[KEY_BYTES];
    void *value = NULL;
    size_t size_bytes = 0;
    key_of_all(setup, key);
    status st = store_wait(keys, key, clock_remaining_ms(deadline_ns));
    if (st == STATUS_TIMEOUT)
        return name_missing(setup);
    if (st == STATUS_OK)
        st = store_get(keys, key, &value, &size_bytes);
    *out = value;
    return st;
}

static status read_list(peers *p, const char *text)
{
    if (strncmp(text, "0 ", 2) == 0)
        return FAIL(STATUS_PEER, "%.1000s", text + 2);
    for (int rank = 0; rank < p->n; rank++) {
        process_id *id = &p->ids[rank];
        if (sscanf(text, "%" SCNd32 " %" SCNu64, &id->pid, &id->start) != 2 || id->pid <= 0)
            return FAIL(STATUS_PEER, "rank 0 does not say which process rank %d is", rank);
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
    const process_group_options *o = setup->options;
    process_id self = process_self();
    char key[KEY_BYTES], text[64], *list = NULL;
    key_of(setup, o->rank, key);
    snprintf(text, sizeof text, "%d %" PRIu64, self.pid, self.start);
    TRY(put(setup, key, text));
    if (o->rank == 0)
        TRY(publish(setup, deadline_ns));
    TRY(fetch(setup, deadline_ns, &list));
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
    char key[KEY_BYTES], text[TEXT_BYTES], all[TEXT_BYTES];
    int rank = setup->options->rank;
    status_kept kept;
    status_keep(&kept);
    snprintf(text, sizeof text, "0 %.900s", status_text());
    snprintf(all, sizeof all, "0 rank 0: %.900s", status_text());
    key_of(setup, rank, key);
    (void)put(setup, key, text);
    key_of_all(setup, key);
    if (rank == 0)
        (void)put(setup, key, all);
    status_restore(&kept);
}

int peers_pid(const peers *p, int rank)
{
    return p->ids[rank].pid;
}

void peers_name(const peers *p, int rank, char out[PEERS_NAME_BYTES])
{
    if (peers_pid(p, rank) == 0)
        snprintf(out, PEERS_NAME_BYTES, "rank %d", rank);
    else
        snprintf(out, PEERS_NAME_BYTES, "rank %d (pid %d)", rank, peers_pid(p, rank));
}

int peers_find_ended(const peers *p, int from, int timeout_ms)
{
    if (poll(p->polls, (nfds_t)p->n, timeout_ms) <= 0)
        return -1;
    for (int rank = from; rank < p->n; rank++)
        if (p->polls[rank].revents != 0)
            return rank;
    return -1;
}

int peers_find_stopped(const peers *p, int from)
{
    for (int rank = from; rank < p->n; rank++)
        if (p->polls[rank].fd >= 0 && process_look(p->ids[rank]) == PROCESS_STOPPED)
            return rank;
    return -1;
}
