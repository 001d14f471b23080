#include "dist/process_group/process_group_check.h"

#include "dist/process_group/backend_choice.h"

#include <inttypes.h>
#include <string.h>

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
