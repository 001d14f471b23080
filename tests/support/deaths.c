#include "tests/support/deaths.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { BEFORE = 3, COUNT = 5000 };

static status start(process_group *group, float *data, work **w)
{
    return process_group_all_reduce_async(group, data, data, COUNT, DTYPE_F32, REDUCE_SUM, 1, NULL,
                                          w);
}

status deaths_in_all_reduce(process_group *group, int rank, int world_size, void *arg)
{
    (void)world_size;
    const death *d = arg;
    static _Thread_local float data[COUNT];
    char message[RANK_MESSAGE_BYTES];
    work *w = NULL;
    for (int i = 0; i < BEFORE; i++)
        TRY(process_group_all_reduce(group, data, COUNT, DTYPE_F32, REDUCE_SUM, NULL));
    if (rank == d->rank) {
        if (d->signal == 0)
            return STATUS_OK;
        TRY(start(group, data, &w));
        raise(d->signal);
    }
    TRY(start(group, data, &w));
    status st = process_group_wait(group, w, NULL);
    snprintf(message, sizeof message, "%s", status_message());
    if (st == STATUS_OK)
        return FAIL(STATUS_INVALID, "the all_reduce came to an end without rank %d", d->rank);
    if (process_group_barrier(group) != st || strstr(status_message(), "broken since") == NULL)
        return FAIL(STATUS_INVALID, "the group is not broken: %s", status_message());
    return FAIL(st, "%s", message);
}
