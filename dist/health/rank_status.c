#include "dist/health/rank_status.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "dist/collective/collective.h"
#include "dist/health/peers.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The moments. */

static const moment_facts FACTS[N_MOMENTS] = {
    /* clang-format off */
    [MOMENT_LOAD]        = {"data",        "in the data loader",       MOMENT_LOAD,        false},
    [MOMENT_BROADCAST]   = {"broadcast",   "sending parameters",       MOMENT_BROADCAST,   true},
    [MOMENT_SCATTER]     = {"scatter",     "sending inputs",           MOMENT_SCATTER,     false},
    [MOMENT_FORWARD]     = {"forward",     "in the forward pass",      MOMENT_FORWARD,     false},
    [MOMENT_GATHER]      = {"gather",      "gathering",                MOMENT_GATHER,      true},
    [MOMENT_BACKWARD]    = {"backward",    "in the backward pass",     MOMENT_BACKWARD,    false},
    [MOMENT_REDUCE]      = {"reduce",      "summing gradients",        MOMENT_REDUCE,      true},
    [MOMENT_WAITING]     = {"waiting",     "waiting",                  MOMENT_WAITING,     false},
    [MOMENT_OPTIMIZER]   = {"optimizer",   "in the optimizer",         MOMENT_OPTIMIZER,   false},
    [MOMENT_ACCELERATOR] = {"accelerator", "on the accelerator",       MOMENT_ACCELERATOR, false},
    [MOMENT_START]       = {NULL,          "starting",                 MOMENT_LOAD,        false},
    [MOMENT_BARRIER]     = {"barrier",     "before an epoch",          MOMENT_LOAD,        false},
    [MOMENT_STAGE]       = {"stage",       "waiting for a stage",      MOMENT_WAITING,     false},
    [MOMENT_PUSH]        = {"push",        "pushing or pulling",       MOMENT_REDUCE,      false},
    [MOMENT_SERVE]       = {"serve",       "waiting for a push",       MOMENT_WAITING,     false},
    [MOMENT_PARTIAL]     = {"partial",     "summing parts",            MOMENT_REDUCE,      true},
    [MOMENT_DDP_WAIT]    = {"ddp_wait",    "after the backward pass",  MOMENT_REDUCE,      true},
    [MOMENT_GRAPH]       = {"graph",       "replaying a step",         MOMENT_ACCELERATOR, false},
    [MOMENT_BETWEEN]     = {NULL,          "between two steps",        MOMENT_LOAD,        false},
    [MOMENT_EVALUATION]  = {"evaluation",  "in the evaluation",        MOMENT_LOAD,        false},
    [MOMENT_CHECKPOINT]  = {"checkpoint",  "writing a checkpoint",     MOMENT_LOAD,        false},
    [MOMENT_LEAVE]       = {NULL,          "leaving",                  MOMENT_LOAD,        false},
    /* clang-format on */
};

const moment_facts *moment_about(moment m)
{
    return &FACTS[m];
}

/* The page. */

enum { LAYOUT = 6, LABELS = 16, LABEL_BYTES = 200, NO_LABEL = LABELS };

static const uint64_t MAGIC = 0x6d6e6973742d7067;

/* A collective as the page holds it. A reader between two stores sees parts of two collectives.
 * People read this, so a lock is not worth its price. */
typedef struct page_collective {
    _Atomic uint64_t seq; /* 0: none */
    _Atomic uint64_t count;
    _Atomic int64_t since_ns;
    _Atomic uint32_t kind, type, label;
    _Atomic int32_t peer; /* whom a send or receive waits for */
} page_collective;

/* Of one file; every number may be read by another process at any time. */
struct rank_status {
    uint64_t magic;
    process_id process;
    uint32_t layout;
    int32_t rank, world_size, attempt;
    int32_t is_file;
    char host[64];
    _Atomic uint32_t moment, failed;
    _Atomic int64_t moment_since_ns, epoch, step;
    _Atomic double loss, images_per_s;
    page_collective launched, waited;
    _Atomic uint32_t n_labels;
    char labels[LABELS][LABEL_BYTES];
};

static void page_path(const char *folder, int rank, const char *suffix, char *out)
{
    snprintf(out, FILE_PATH_BYTES, "%s/rank%d.page%s", folder, rank, suffix);
}

/* Made under another name first: a rank of an older attempt may still have the final one mapped. */
static status map_file(const rank_status_options *options, rank_status **out)
{
    char path[FILE_PATH_BYTES], temporary[FILE_PATH_BYTES];
    if (strlen(options->folder) + 64 > FILE_PATH_BYTES)
        return FAIL(STATUS_INVALID, "a folder's name of %zu bytes", strlen(options->folder));
    TRY(file_make_folders(options->folder));
    page_path(options->folder, options->rank, "", path);
    page_path(options->folder, options->rank, ".tmp", temporary);
    (void)unlink(temporary);
    int fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return FAIL(STATUS_IO, "create %s: %s", temporary, strerror(errno));
    /* Takes its blocks now: else a full disk would be a SIGBUS at the first store. */
    int error = posix_fallocate(fd, 0, sizeof(rank_status));
    void *memory = MAP_FAILED;
    if (error == 0) {
        memory = mmap(NULL, sizeof(rank_status), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        error = memory == MAP_FAILED ? errno : 0;
    }
    close(fd);
    if (error == 0 && rename(temporary, path) != 0) {
        error = errno;
        munmap(memory, sizeof(rank_status));
    }
    if (error != 0) {
        (void)unlink(temporary);
        return FAIL(STATUS_IO, "%s: %s", path, strerror(error));
    }
    *out = memory;
    return STATUS_OK;
}

status rank_status_create(const rank_status_options *options, rank_status **out)
{
    rank_status *page = NULL;
    bool is_file = options->folder != NULL;
    if (is_file && map_file(options, &page) != STATUS_OK) {
        LOG_W("if this rank hangs, no other process can see where: %s", status_text());
        is_file = false;
    }
    if (!is_file)
        TRY(memory_alloc(sizeof *page, (void **)&page));
    page->layout = LAYOUT;
    page->rank = options->rank;
    page->world_size = options->world_size;
    page->attempt = options->attempt;
    page->process = process_self();
    page->is_file = is_file;
    if (gethostname(page->host, sizeof page->host - 1) != 0)
        page->host[0] = '\0';
    rank_status_enter(page, MOMENT_START);
    page->magic = MAGIC;
    *out = page;
    return STATUS_OK;
}

void rank_status_destroy(rank_status *page)
{
    if (page != NULL && page->is_file)
        munmap(page, sizeof *page);
    else
        free(page);
}

#define SET(field, value) atomic_store_explicit(&(field), (value), memory_order_relaxed)
#define GET(field) atomic_load_explicit(&(field), memory_order_relaxed)

void rank_status_enter(rank_status *page, moment m)
{
    if (page == NULL)
        return;
    SET(page->moment_since_ns, clock_now_ns());
    SET(page->moment, (uint32_t)m);
}

void rank_status_step(rank_status *page, int64_t epoch, int64_t step)
{
    if (page == NULL)
        return;
    SET(page->epoch, epoch);
    SET(page->step, step);
}

void rank_status_pace(rank_status *page, double loss, double images_per_s)
{
    if (page == NULL)
        return;
    SET(page->loss, loss);
    SET(page->images_per_s, images_per_s);
}

/* Labels are few, and each is one piece of memory (process_group_keep_label). */
static uint32_t label_index(rank_status *page, const char *label)
{
    uint32_t n = GET(page->n_labels);
    if (label == NULL)
        return NO_LABEL;
    for (uint32_t i = 0; i < n; i++)
        if (strncmp(page->labels[i], label, LABEL_BYTES - 1) == 0)
            return i;
    if (n == LABELS)
        return NO_LABEL;
    snprintf(page->labels[n], LABEL_BYTES, "%s", label);
    atomic_store(&page->n_labels, n + 1);
    return n;
}

static void put(rank_status *page, page_collective *to, const collective *c, int64_t now_ns)
{
    SET(to->since_ns, now_ns);
    SET(to->count, c->count);
    SET(to->kind, (uint32_t)c->kind);
    SET(to->type, (uint32_t)c->type);
    SET(to->peer, c->root);
    /* Who reads the number reads the text, too. */
    atomic_store_explicit(&to->label, label_index(page, c->label), memory_order_release);
    SET(to->seq, c->seq);
}

void rank_status_launch(rank_status *page, const collective *c)
{
    if (page != NULL)
        put(page, &page->launched, c, 0);
}

void rank_status_wait(rank_status *page, const collective *c, int64_t now_ns)
{
    if (page != NULL)
        put(page, &page->waited, c, now_ns);
}

void rank_status_end_wait(rank_status *page)
{
    if (page != NULL)
        SET(page->waited.seq, 0);
}

void rank_status_fail(rank_status *page)
{
    if (page != NULL)
        SET(page->failed, 1u);
}

/* What the page says of a collective, or of a send or receive; `page` is a copy. */
static collective describe(const rank_status *page, const page_collective *from, char *out)
{
    uint32_t label = atomic_load_explicit(&from->label, memory_order_acquire);
    collective c = {.kind = (collective_kind)GET(from->kind),
                    .type = (dtype)GET(from->type),
                    .count = GET(from->count),
                    .seq = GET(from->seq),
                    .root = GET(from->peer),
                    .label = label < LABELS ? page->labels[label] : NULL};
    out[0] = '\0';
    if (c.seq == 0)
        return c;
    collective_describe(&c, out, RANK_TEXT_BYTES);
    size_t length = strlen(out);
    if (collective_is_send_or_recv(c.kind))
        snprintf(out + length, RANK_TEXT_BYTES - length, " %s rank %d",
                 c.kind == COLLECTIVE_SEND ? "to" : "from", c.root);
    return c;
}

static rank_state state_of(const rank_status *page)
{
    if (GET(page->failed) != 0)
        return RANK_FAILED;
    switch (process_look(page->process)) {
    case PROCESS_ENDED:
        return GET(page->moment) == MOMENT_LEAVE ? RANK_LEFT : RANK_GONE;
    case PROCESS_STOPPED:
        return RANK_STOPPED;
    case PROCESS_RUNS:
        break;
    }
    return GET(page->waited.seq) != 0 ? RANK_WAITS : RANK_WORKS;
}

static moment moment_of(const rank_status *page)
{
    uint32_t now = GET(page->moment);
    return now < N_MOMENTS ? (moment)now : N_MOMENTS;
}

static void say_doing(const rank_status *page, rank_snapshot *out)
{
    char what[RANK_TEXT_BYTES + 32], where[64] = "";
    moment now = moment_of(page);
    bool waits = out->waits_text[0] != '\0';
    int64_t since_ns = waits ? GET(page->waited.since_ns) : GET(page->moment_since_ns);
    int64_t now_ns = clock_now_ns();
    if (waits)
        snprintf(what, sizeof what, "waiting for %s", out->waits_text);
    else
        snprintf(what, sizeof what, "%s", now < N_MOMENTS ? moment_about(now)->doing : "somewhere");
    if (since_ns < 0 || since_ns > now_ns) /* torn, or overwritten */
        since_ns = now_ns;
    if (out->step > 0 && out->epoch >= 0 && out->epoch < INT64_MAX) /* it trains */
        snprintf(where, sizeof where, ", step %" PRId64 " in epoch %" PRId64, out->step,
                 out->epoch + 1);
    snprintf(out->doing, sizeof out->doing, "%.200s%s, %.1f s ago", what, where,
             clock_seconds(now_ns - since_ns));
}

void rank_status_look(const rank_status *page, rank_snapshot *out)
{
    *out = (rank_snapshot){.rank = page->rank,
                           .pid = page->process.pid,
                           .attempt = page->attempt,
                           .state = state_of(page),
                           .now = moment_of(page),
                           .epoch = GET(page->epoch),
                           .step = GET(page->step),
                           .loss = GET(page->loss),
                           .images_per_s = GET(page->images_per_s)};
    snprintf(out->host, sizeof out->host, "%.63s", page->host);
    out->entered = describe(page, &page->launched, out->entered_text).seq;
    collective waited = describe(page, &page->waited, out->waits_text);
    bool between_two = waited.seq != 0 && collective_is_send_or_recv(waited.kind);
    out->waits = between_two ? 0 : waited.seq;
    out->peer = between_two ? waited.root : -1;
    say_doing(page, out);
}

static status check_page(const char *path, const rank_status *page, int rank)
{
    char host[sizeof page->host] = "";
    if (page->magic != MAGIC || page->layout != LAYOUT || page->rank != rank ||
        memchr(page->host, '\0', sizeof page->host) == NULL)
        return FAIL(STATUS_PEER, "%s: not a page of rank %d", path, rank);
    if (gethostname(host, sizeof host - 1) != 0 || strcmp(host, page->host) != 0)
        return FAIL(STATUS_PEER, "%s: a page of host %s", path, page->host);
    return STATUS_OK;
}

status rank_status_read(const char *folder, int rank, rank_snapshot *out)
{
    char path[FILE_PATH_BYTES], *data = NULL;
    size_t size_bytes = 0;
    if (strlen(folder) + 64 > FILE_PATH_BYTES)
        return FAIL(STATUS_INVALID, "a folder's name of %zu bytes", strlen(folder));
    page_path(folder, rank, "", path);
    TRY(file_read(path, sizeof(rank_status), &data, &size_bytes));
    status st = STATUS_OK;
    if (size_bytes != sizeof(rank_status)) {
        st = FAIL(STATUS_PEER, "%s: %zu bytes, a page has %zu", path, size_bytes,
                  sizeof(rank_status));
    } else {
        rank_status *page = (rank_status *)(void *)data;
        st = check_page(path, page, rank);
        for (int i = 0; i < LABELS; i++)
            page->labels[i][LABEL_BYTES - 1] = '\0';
        if (st == STATUS_OK)
            rank_status_look(page, out);
    }
    free(data);
    return st;
}
