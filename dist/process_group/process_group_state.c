#include "dist/process_group/process_group_state.h"

#include "base/clock.h"
#include "base/memory.h"
#include "dist/process_group/backend_choice.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct allocation {
    struct allocation *next;
    void *memory;
} allocation;

status allocations_add(allocations *list, size_t size_bytes, void **out)
{
    allocation *a = calloc(1, sizeof *a);
    if (a == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu bytes", sizeof *a);
    status st = memory_alloc(size_bytes, &a->memory);
    if (st != STATUS_OK) {
        free(a);
        return st;
    }
    a->next = list->first;
    list->first = a;
    *out = a->memory;
    return STATUS_OK;
}

void allocations_free(allocations *list)
{
    while (list->first != NULL) {
        allocation *a = list->first;
        list->first = a->next;
        free(a->memory);
        free(a);
    }
}

bool first_runs_note(first_runs *runs, const collective *c)
{
    for (int i = 0; i < runs->n; i++)
        if (runs->seen[i].kind == c->kind && runs->seen[i].type == c->type &&
            runs->seen[i].root == c->root && runs->seen[i].count == c->count)
            return false;
    if (runs->n == FIRST_RUNS_MOST)
        return false;
    runs->seen[runs->n].kind = c->kind;
    runs->seen[runs->n].type = c->type;
    runs->seen[runs->n].root = c->root;
    runs->seen[runs->n].count = c->count;
    runs->n++;
    return true;
}

int64_t injected_delay_send(injected_delay *delay)
{
    int64_t now_ns = clock_now_ns();
    delay->free_ns = (delay->free_ns > now_ns ? delay->free_ns : now_ns) + delay->delay_ns;
    return delay->free_ns;
}

static void sleep_until(int64_t point_ns)
{
    struct timespec point = {.tv_sec = (time_t)(point_ns / 1000000000),
                             .tv_nsec = (long)(point_ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &point, NULL) == EINTR) {
    }
}

status injected_delay_wait(int64_t leaves_ns, int64_t deadline_ns, int64_t *done_ns)
{
    while (*done_ns < leaves_ns) {
        int64_t now_ns = clock_now_ns();
        if (now_ns >= leaves_ns)
            *done_ns = leaves_ns;
        else if (now_ns >= deadline_ns)
            return FAIL(STATUS_TIMEOUT, "the injected delay is longer than the timeout");
        else
            sleep_until(leaves_ns < deadline_ns ? leaves_ns : deadline_ns);
    }
    return STATUS_OK;
}

enum { MAX_WORLD_SIZE = 1 << 16 };

static status check_backend(const process_group_options *o)
{
    if (o->hub != NULL)
        return STATUS_OK;
    TRY(backend_choice_check(o->backend));
    if (strcmp(o->backend, "local") == 0)
        return FAIL(STATUS_INVALID, "backend local is for threads that meet at a hub");
    bool on_cpu = o->device == NULL || o->device->stream == NULL;
    return o->world_size == 1 && on_cpu ? backend_choice_check_cpu(o->backend) : STATUS_OK;
}

status process_group_check_options(const process_group_options *o)
{
    if (o->world_size < 1 || o->world_size > MAX_WORLD_SIZE)
        return FAIL(STATUS_INVALID, "world_size %d is not in 1 .. %d", o->world_size,
                    (int)MAX_WORLD_SIZE);
    if (o->rank < 0 || o->rank >= o->world_size)
        return FAIL(STATUS_INVALID, "rank %d is not in 0 .. %d", o->rank, o->world_size - 1);
    if (o->timeout_ms < 1)
        return FAIL(STATUS_INVALID, "timeout of %" PRId64 " ms: at least 1 is needed",
                    o->timeout_ms);
    if (o->inject_delay_ms < 0)
        return FAIL(STATUS_INVALID, "injected delay of %" PRId64 " ms is negative",
                    o->inject_delay_ms);
    if (o->hub == NULL && o->store == NULL && o->world_size > 1)
        return FAIL(STATUS_INVALID, "a process group of %d ranks needs a store", o->world_size);
    return check_backend(o);
}
