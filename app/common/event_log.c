#include "app/common/event_log.h"

#include "app/common/json_value.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { TIME_BYTES = 32 };

struct event_log {
    int fd;
    char path[FILE_PATH_BYTES];
    char *run_id, *node;
    atomic_bool was_cut; /* the latest line may be without its end */
    atomic_bool has_warned;
    int64_t leaves_ns,
        waits_ns; /* when it has last said so; 0: not, or not since the round began */
    int64_t opens_ns;
};

status event_log_open(const char *path, const char *run_id, const char *node, event_log **out)
{
    if (path == NULL || path[0] == '\0') {
        *out = NULL;
        return STATUS_OK;
    }
    event_log *self = calloc(1, sizeof *self);
    if (self == NULL)
        return FAIL(STATUS_NO_MEMORY, "an event log");
    status st = STATUS_OK;
    snprintf(self->path, sizeof self->path, "%s", path);
    self->run_id = strdup(run_id);
    self->node = strdup(node);
    self->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, 0666);
    if (self->fd < 0)
        st = FAIL(STATUS_IO, "--event-log: open %s: %s", path, strerror(errno));
    else if (self->run_id == NULL || self->node == NULL)
        st = FAIL(STATUS_NO_MEMORY, "an event log");
    if (st != STATUS_OK) {
        event_log_close(self);
        return st;
    }
    self->was_cut = file_ends_amid_a_line(self->fd);
    *out = self;
    return STATUS_OK;
}

void event_log_close(event_log *log)
{
    if (log == NULL)
        return;
    if (log->fd >= 0)
        close(log->fd);
    free(log->run_id);
    free(log->node);
    free(log);
}

static void warn(event_log *log, const char *why)
{
    if (!atomic_exchange(&log->has_warned, true))
        LOG_W("--event-log: %s: %s: events are missing there from now on", log->path, why);
}

/* In one write, or lines of two processes could mix. */
static void write_line(event_log *log, char *text)
{
    bool was_cut = atomic_exchange(&log->was_cut, false);
    size_t length = strlen(text), size_bytes = was_cut + length + 1;
    struct iovec parts[] = {{"\n", was_cut}, {text, length}, {"\n", 1}};
    ssize_t n;
    do
        n = writev(log->fd, parts, 3);
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)size_bytes)
        return;
    log->was_cut = was_cut || n > 0;
    warn(log, n < 0 ? strerror(errno) : "not all of a line could be written");
}

static void print_time(char out[TIME_BYTES])
{
    struct timespec now;
    struct tm utc;
    (void)timespec_get(&now, TIME_UTC);
    size_t length = strftime(out, TIME_BYTES, "%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &utc));
    snprintf(out + length, TIME_BYTES - length, ".%03dZ", (int)(now.tv_nsec / 1000000 % 1000));
}

/* Writes the line of an event. Takes `further`, its own keys; NULL: memory ran out. */
static void say(event_log *log, int64_t round, const char *event, json_t *further)
{
    char time_text[TIME_BYTES], *text = NULL;
    print_time(time_text);
    json_t *line = json_pack("{s:s, s:I, s:s, s:s, s:I, s:s}", "time", time_text, "monotonic_ns",
                             (json_int_t)clock_now_ns(), "node", log->node, "run_id", log->run_id,
                             "round", (json_int_t)round, "event", event);
    if (line != NULL && further != NULL && json_object_update(line, further) == 0 &&
        json_text_print(line, JSON_COMPACT, &text) == STATUS_OK)
        write_line(log, text);
    else
        warn(log, "an event could not be written down"); /* memory, or a text that is no UTF-8 */
    free(text);
    json_decref(line);
    json_decref(further);
}

/* Adds the seconds since *began_ns, and ends that time, if it has begun. */
static json_t *since(int64_t *began_ns, const char *key, json_t *further)
{
    if (*began_ns != 0)
        json_object_set_new(further, key,
                            json_value_rounded(clock_seconds(clock_now_ns() - *began_ns), 6));
    *began_ns = 0;
    return further;
}

void event_log_waits(event_log *log, int64_t round)
{
    if (log != NULL)
        say(log, round, "waits", since(&log->leaves_ns, "left_s", json_object()));
    if (log != NULL)
        log->waits_ns = clock_now_ns();
}

void event_log_round_begins(event_log *log, const round_state *now, int node_rank)
{
    if (log == NULL)
        return;
    int first_rank = 0;
    json_t *members = json_array();
    for (int i = 0; i < now->n; i++) {
        const round_node *node = &now->members[i];
        const char *id = i == node_rank ? log->node : node->id[0] != '\0' ? node->id : NULL;
        json_array_append_new(members, json_pack("{s:s?, s:i, s:i}", "node", id, "first_rank",
                                                 first_rank, "nproc", node->nproc));
        first_rank += node->nproc;
    }
    json_t *further = json_pack("{s:i, s:i, s:i, s:o}", "node_rank", node_rank, "world_size",
                                first_rank, "restarts", now->restarts, "members", members);
    log->leaves_ns = 0;
    say(log, now->round, "round_begins", since(&log->waits_ns, "waited_s", further));
}

void event_log_workers(event_log *log, int64_t round, const pid_t *pids, int n, int kept)
{
    if (log == NULL)
        return;
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_integer(pids[i]));
    say(log, round, "workers", json_pack("{s:o, s:i}", "pids", list, "kept", kept));
}

void event_log_text(event_log *log, int64_t round, event_log_kind kind, const char *text)
{
    static const char *const events[] = {"node_gone", "node_lost", "leaves", "closed"};
    static const char *const keys[] = {"gone", "lost", "reason", "reason"};
    if (log == NULL)
        return;
    say(log, round, events[kind], json_pack("{s:s}", keys[kind], text));
    if (kind == EVENT_LOG_LEAVES)
        log->leaves_ns = clock_now_ns();
}

void event_log_ends(event_log *log, int64_t round, int code)
{
    if (log != NULL)
        say(log, round, "ends", json_pack("{s:i}", "code", code));
}

void event_log_opens(event_log *log, const event_log_opening *opening)
{
    char state[17];
    if (log == NULL)
        return;
    snprintf(state, sizeof state, "%016" PRIx64, opening->state);
    json_t *further = json_pack("{s:i, s:i, s:I, s:I, s:s}", "rank", opening->rank, "world_size",
                                opening->world_size, "step", (json_int_t)opening->step, "epoch",
                                (json_int_t)opening->epoch, "state", state);
    if (opening->left_s >= 0) {
        json_object_set_new(further, "left_s", json_value_rounded(opening->left_s, 6));
        json_object_set_new(further, "waited_s", json_value_rounded(opening->waited_s, 6));
    }
    json_object_set_new(further, "opened_s", json_value_rounded(opening->opened_s, 6));
    say(log, opening->round, "opens", further);
    log->opens_ns = clock_now_ns();
}

void event_log_first_step(event_log *log, const event_log_step *step)
{
    if (log != NULL)
        say(log, step->round, "first_step",
            since(&log->opens_ns, "stepped_s",
                  json_pack("{s:i, s:I, s:I}", "rank", step->rank, "step", (json_int_t)step->step,
                            "epoch", (json_int_t)step->epoch)));
}

void event_log_step_begins(event_log *log, const event_log_step *step)
{
    char hash[17];
    if (log == NULL)
        return;
    snprintf(hash, sizeof hash, "%016" PRIx64, step->hash);
    say(log, step->round, "step",
        json_pack("{s:i, s:i, s:I, s:I, s:I, s:s}", "rank", step->rank, "world_size",
                  step->world_size, "step", (json_int_t)step->step, "epoch",
                  (json_int_t)step->epoch, "samples", (json_int_t)step->samples, "hash", hash));
}

/* The finalizer of splitmix64: sums of it tell sets of indices apart. */
uint64_t event_log_sample(int64_t index)
{
    uint64_t x = (uint64_t)index + 0x9e3779b97f4a7c15U;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
    x = (x ^ x >> 27) * 0x94d049bb133111ebU;
    return x ^ x >> 31;
}
