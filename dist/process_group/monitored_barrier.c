/* A barrier that goes through the store: so it can say who is missing, also if the backend hangs,
 * and its failure says nothing about the backend. */
#include "dist/membership/keys.h"
#include "dist/process_group/process_group_state.h"
#include "dist/process_group/store_meeting.h"

#include <inttypes.h>
#include <stdio.h>

status process_group_monitored_barrier(process_group *group, int64_t timeout_ms)
{
    char of[48];
    if (timeout_ms < 1)
        return FAIL(STATUS_INVALID, "a monitored barrier of %" PRId64 " ms: at least 1 is needed",
                    timeout_ms);
    if (group->ops == NULL)
        return STATUS_OK;
    if (group->options.store == NULL)
        return FAIL(STATUS_INVALID, "backend %s has no monitored barrier: that needs a store",
                    group->ops->name);
    pthread_mutex_lock(&group->lock);
    uint64_t number = ++group->barriers;
    pthread_mutex_unlock(&group->lock);
    snprintf(of, sizeof of, "monitored barrier #%" PRIu64, number);
    store_meeting all = {
        .name = KEYS_BARRIER, .number = number, .record = "", .of = of, .timeout_ms = timeout_ms};
    status st = store_meeting_hold(group, &all);
    return st == STATUS_OK ? st : status_context(st, "%s on rank %d", of, group->rank);
}
