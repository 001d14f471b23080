/* A sub-group is a process group with a name of its own in the store, where its ranks meet. */
#include "dist/backends/local/local_hub.h"
#include "dist/process_group/process_group_state.h"

#include <stdio.h>

static status check_ranks(const process_group *group, const sub_group *what)
{
    if (what->n < 1 || what->n > group->world_size)
        return FAIL(STATUS_INVALID, "a sub-group of %d ranks of %d", what->n, group->world_size);
    for (int i = 0; i < what->n; i++) {
        int rank = what->ranks[i];
        if (rank < 0 || rank >= group->world_size)
            return FAIL(STATUS_INVALID, "a sub-group with rank %d of %d", rank, group->world_size);
        if (i > 0 && rank <= what->ranks[i - 1])
            return FAIL(STATUS_INVALID, "a sub-group's ranks ascend, but %d comes after %d", rank,
                        what->ranks[i - 1]);
    }
    return STATUS_OK;
}

/* This rank's number in the sub-group; -1: it is not in it. */
static int place_of(const sub_group *what, int rank)
{
    for (int i = 0; i < what->n; i++)
        if (what->ranks[i] == rank)
            return i;
    return -1;
}

/* Short and without an end: "ranks 0, 2, 4 ...". */
static void describe(const sub_group *what, char *out, size_t size_bytes)
{
    int length = snprintf(out, size_bytes, "rank%s", what->n > 1 ? "s" : "");
    for (int i = 0; i < what->n && (size_t)length + 24 < size_bytes; i++)
        length += snprintf(out + length, size_bytes - (size_t)length, "%s %d", i > 0 ? "," : "",
                           what->ranks[i]);
}

status process_group_new_group(process_group *group, const sub_group *what, process_group **out)
{
    char prefix[PROCESS_GROUP_PREFIX_BYTES], ranks[128];
    *out = NULL;
    TRY(check_ranks(group, what));
    pthread_mutex_lock(&group->lock);
    int number = ++group->sub_groups;
    pthread_mutex_unlock(&group->lock);
    int length = snprintf(prefix, sizeof prefix, "%ssub/%d/", group->prefix, number);
    if (length < 0 || (size_t)length >= sizeof prefix)
        return FAIL(STATUS_INVALID, "sub-groups of sub-groups, too deep: at %s", group->prefix);
    int place = place_of(what, group->rank);
    if (place < 0)
        return STATUS_OK;
    process_group_options options = group->options;
    options.rank = place;
    options.world_size = what->n;
    options.prefix = prefix;
    options.shared_bytes = what->shared_bytes;
    options.page = NULL; /* others compare the numbers on it with the whole group's */
    if (what->backend != NULL)
        options.backend = what->backend;
    if (options.hub != NULL)
        TRY(local_hub_sub(group->options.hub, number, what->n, &options.hub));
    describe(what, ranks, sizeof ranks);
    status st = process_group_create(&options, out);
    return st == STATUS_OK ? st : status_context(st, "the sub-group of %s", ranks);
}
