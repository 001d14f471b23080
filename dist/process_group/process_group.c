/* A process group's life, its memory, and what it says of itself. */
#include "dist/process_group/process_group.h"

#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/memory.h"
#include "dist/health/rank_status.h"
#include "dist/process_group/backend_choice.h"
#include "dist/process_group/process_group_state.h"
#include "kernels/ops.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

status process_group_break(process_group *group, status st)
{
    if (group->broken == STATUS_OK) {
        group->broken = st;
        status_keep(&group->failure);
    }
    return st;
}

status process_group_broken(process_group *group)
{
    if (group->broken == STATUS_OK)
        return STATUS_OK;
    status_restore(&group->failure);
    return status_context(group->broken, "the process group is broken since");
}

status process_group_may_begin(process_group *group, const collective *c)
{
    TRY(process_group_broken(group));
    if (!c->blocks || group->first == NULL)
        return STATUS_OK;
    const collective *other = &group->first->what;
    return FAIL(STATUS_INVALID, "a blocking %s while %s #%" PRIu64 " is still to be waited for",
                collective_kind_name(c->kind), collective_kind_name(other->kind), other->seq);
}

/* The ranks meet in the store before each collective: who is missing there may have ended. */
static status watch_ranks(process_group *group)
{
    const process_group_options *o = &group->options;
    char prefix[PROCESS_GROUP_PREFIX_BYTES];
    if (o->debug < PROCESS_GROUP_DEBUG_DETAIL || o->store == NULL || !group->one_host)
        return STATUS_OK;
    snprintf(prefix, sizeof prefix, "%.40scall/", group->prefix);
    const group_setup setup = {.options = o, .prefix = prefix, .one_host = true};
    return peers_create(&setup, clock_deadline_ns(group->patience_ms), &group->watched);
}

static status open_backend(process_group *group, const process_group_options *options)
{
    backend_choice choice = {.ops = &local_ops, .one_host = true};
    if (options->hub == NULL)
        TRY(backend_choice_make(options, &choice));
    group_setup setup = {options, choice.prefix, choice.one_host, choice.hosts, choice.between};
    status st;
    if (choice.ops->device_memory && options->inject_delay_ms > 0)
        st = FAIL(STATUS_INVALID,
                  "an injected delay needs a backend on host memory: %s works on the "
                  "device, so use --backend=%s with it",
                  choice.ops->name, choice.one_host ? "shm" : "gloo");
    else
        st = choice.ops->create(&setup, &group->self);
    if (!choice.one_host)
        group->hosts = lane_hash(0, choice.hosts, (size_t)group->world_size * sizeof(int));
    free(choice.hosts);
    if (st != STATUS_OK)
        return st;
    group->ops = choice.ops;
    group->one_host = choice.one_host;
    snprintf(group->prefix, sizeof group->prefix, "%s", choice.prefix);
    st = watch_ranks(group);
    if (st != STATUS_OK) {
        status_kept cause;
        status_keep(&cause);
        group->ops->destroy(group->self);
        status_restore(&cause);
    }
    return st;
}

status process_group_create(const process_group_options *options, process_group **out)
{
    TRY(process_group_check_options(options));
    process_group *group = calloc(1, sizeof *group);
    if (group == NULL)
        return FAIL(STATUS_NO_MEMORY, "a process group");
    group->options = *options;
    group->options.prefix = NULL; /* that was only for this call */
    group->dev = options->device;
    group->rank = options->rank;
    group->world_size = options->world_size;
    group->timeout_ms = options->timeout_ms;
    group->patience_ms = process_group_patience_ms(options);
    group->delay.delay_ns = options->inject_delay_ms * 1000000;
    group->shared_left = options->shared_bytes;
    group->page = options->page;
    group->recorder.lane = options->lane;
    group->one_host = true;
    status st = options->world_size > 1 ? open_backend(group, options) : STATUS_OK;
    if (st != STATUS_OK) {
        free(group);
        return status_context(st, "process group of rank %d", options->rank);
    }
    pthread_mutex_init(&group->lock, NULL);
    pthread_mutex_init(&group->abort_lock, NULL);
    LOG_D("process group %s: rank %d of %d, backend %s, %s, timeout %.1f s", group->prefix,
          group->rank, group->world_size, process_group_backend(group),
          group->one_host ? "one host" : "several hosts", (double)group->timeout_ms / 1000);
    *out = group;
    return STATUS_OK;
}

void process_group_write_flight_record(process_group *group, FILE *file)
{
    pthread_mutex_lock(&group->lock);
    flight_recorder_write(&group->recorder, file);
    pthread_mutex_unlock(&group->lock);
}

void process_group_destroy(process_group *group)
{
    if (group == NULL)
        return;
    if (group->staging != NULL) /* its copies may be under way; without peers they come to an end */
        (void)group->dev->ops->synchronize(group->dev);
    while (group->first != NULL) {
        work *w = group->first;
        group->first = w->next;
        if (w->copy != NULL)
            staging_release(group->staging, w->copy);
        free(w);
    }
    spares_free(&group->works);
    staging_destroy(group->staging); /* unpins memory that the backend is about to unmap */
    if (group->ops != NULL)
        group->ops->destroy(group->self);
    peers_destroy(group->watched);
    allocations_free(&group->memory);
    pthread_mutex_destroy(&group->lock);
    pthread_mutex_destroy(&group->abort_lock);
    free(group);
}

int process_group_rank(const process_group *group)
{
    return group->rank;
}

int process_group_world_size(const process_group *group)
{
    return group->world_size;
}

const char *process_group_backend(const process_group *group)
{
    return group->ops == NULL ? "none" : group->ops->name;
}

uint64_t process_group_hosts(const process_group *group)
{
    return group->hosts;
}

bool process_group_is_on_one_host(const process_group *group)
{
    return group->one_host;
}

void process_group_traffic(process_group *group, uint64_t *sent, uint64_t *received)
{
    pthread_mutex_lock(&group->lock);
    *sent = group->moved.sent;
    *received = group->moved.received;
    pthread_mutex_unlock(&group->lock);
}

rank_traffic process_group_expect_traffic(const process_group *group, const collective *c)
{
    return group->ops != NULL ? group->ops->traffic(c, group->rank, group->world_size)
                              : (rank_traffic){0};
}

bool process_group_can_be_captured(const process_group *group)
{
    return group->ops == NULL || group->ops->device_memory;
}

status process_group_check(process_group *group)
{
    pthread_mutex_lock(&group->lock);
    status st = process_group_broken(group);
    if (st == STATUS_OK && group->ops != NULL && group->ops->check != NULL) {
        st = group->ops->check(group->self);
        if (st != STATUS_OK) {
            status_context(st, "rank %d (%s)", group->rank, group->ops->name);
            process_group_break(group, st);
        }
    }
    pthread_mutex_unlock(&group->lock);
    return st;
}

void process_group_abort(process_group *group, const char *why)
{
    pthread_mutex_lock(&group->abort_lock);
    bool first = !group->aborted;
    if (first) {
        (void)FAIL(STATUS_PEER, "%s", why);
        status_keep(&group->why);
        group->aborted = true;
    }
    pthread_mutex_unlock(&group->abort_lock);
    if (first && group->ops != NULL) /* before the lock: a launch that holds it ends by this */
        group->ops->abort(group->self, why);
    pthread_mutex_lock(&group->lock);
    if (first)
        process_group_break(group, FAIL(STATUS_PEER, "%s", why));
    pthread_mutex_unlock(&group->lock);
}

status process_group_keep_label(process_group *group, const char *text, const char **out)
{
    char *copy = NULL;
    pthread_mutex_lock(&group->lock);
    status st = allocations_add(&group->memory, strlen(text) + 1, (void **)&copy);
    pthread_mutex_unlock(&group->lock);
    if (st == STATUS_OK)
        *out = strcpy(copy, text);
    return st;
}

status process_group_alloc(process_group *group, size_t size_bytes, void **out)
{
    status st = STATUS_OK;
    pthread_mutex_lock(&group->lock);
    if (size_bytes > group->shared_left)
        st =
            FAIL(STATUS_NO_MEMORY,
                 "%zu bytes asked of the process group, %zu left: create it with more shared_bytes",
                 size_bytes, group->shared_left);
    else if (group->ops != NULL && group->ops->alloc != NULL)
        st = group->ops->alloc(group->self, size_bytes, out);
    else
        st = allocations_add(&group->memory, size_bytes, out);
    if (st == STATUS_OK)
        group->shared_left -= size_bytes;
    pthread_mutex_unlock(&group->lock);
    return st;
}
