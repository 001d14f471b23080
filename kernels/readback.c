#include "kernels/readback.h"

#include "base/memory.h"
#include "kernels/ops.h"

#include <stdlib.h>
#include <string.h>

status readback_open(device *dev, size_t size_bytes, readback *out)
{
    const accelerator_ops *accelerator = dev->ops->accelerator;
    readback r = {.dev = dev, .size_bytes = size_bytes};
    if (accelerator == NULL) {
        TRY(memory_alloc(size_bytes, &r.seen));
        *out = r;
        return STATUS_OK;
    }
    status st = accelerator->alloc_pinned(dev, size_bytes, &r.seen);
    if (st == STATUS_OK)
        st = dev->ops->alloc(dev, size_bytes, &r.snapshot);
    if (st == STATUS_OK)
        st = accelerator->event_create(dev, &r.copied);
    if (st != STATUS_OK) {
        readback_close(&r);
        return st;
    }
    *out = r;
    return STATUS_OK;
}

void readback_close(readback *r)
{
    if (r->dev == NULL)
        return;
    const device_ops *ops = r->dev->ops;
    if (ops->accelerator == NULL) {
        free(r->seen);
    } else {
        if (r->under_way)
            (void)ops->synchronize(r->dev); /* errors come back from other calls */
        ops->accelerator->event_destroy(r->copied);
        ops->accelerator->free_pinned(r->dev, r->seen);
        ops->free(r->dev, r->snapshot);
    }
    *r = (readback){0};
}

/* Copies to the snapshot first: later work may overwrite `src` during the copy to the host. */
status readback_start(readback *r, const void *src)
{
    const device_ops *ops = r->dev->ops;
    ASSERT(!r->under_way);
    if (ops->accelerator == NULL) {
        memcpy(r->seen, src, r->size_bytes);
    } else {
        TRY(ops->copy(r->dev, r->snapshot, src, r->size_bytes));
        TRY(ops->accelerator->copy_out(r->dev, r->seen, r->snapshot, r->size_bytes, r->copied));
    }
    r->under_way = true;
    return STATUS_OK;
}

status readback_wait(readback *r)
{
    ASSERT(r->under_way);
    r->under_way = false;
    const accelerator_ops *accelerator = r->dev->ops->accelerator;
    return accelerator != NULL ? accelerator->event_wait(r->dev, r->copied) : STATUS_OK;
}
