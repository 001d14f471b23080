#include "kernels/device.h"

#include "kernels/ops.h"
#include "kernels/stream_trace.h"

#include <stdio.h>
#include <stdlib.h>

status device_trace(device *dev, trace *t, trace_lane *lane)
{
    if (lane == NULL)
        return STATUS_OK;
    char name[TRACE_LANE_NAME_BYTES];
    if (dev->ops->accelerator != NULL && dev->ops->accelerator->timer_create != NULL) {
        snprintf(name, sizeof name, "%s stream of %.24s", dev->ops->name, trace_lane_text(lane));
        TRY(stream_trace_open(dev, t, name, &dev->stream_trace));
    }
    dev->lane = lane;
    return dev->ops->trace != NULL ? dev->ops->trace(dev, t) : STATUS_OK;
}

void device_destroy(device *dev)
{
    if (dev == NULL)
        return;
    stream_trace_close(dev->stream_trace);
    dev->ops->destroy(dev);
    free(dev);
}

const char *precision_name(precision p)
{
    static const char *const names[] = {"f32", "tf32", "bf16", "fp16"};
    return names[p];
}
