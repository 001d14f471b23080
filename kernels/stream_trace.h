/* When an accelerator does what. Timing events are recorded on its stream and read later, a few
 * hundred at once. They give the spans of a trace lane, and the time of each phase. This is the
 * only pool of timing events.
 *
 * The device_ calls here trace both: what the host does, in dev->lane (on a host device that is
 * everything), and, if the device has a stream, when the work enqueued meanwhile runs. Without a
 * trace they cost a test of a pointer.
 */
#ifndef MNIST_DDP_KERNELS_STREAM_TRACE_H
#define MNIST_DDP_KERNELS_STREAM_TRACE_H

#include "base/trace.h"
#include "kernels/device.h"

typedef struct stream_trace stream_trace;

/* For an accelerator with timers. Waits for the device. `t` NULL: phases are timed, and there are
 * no spans. */
status stream_trace_open(device *dev, trace *t, const char *name, stream_trace **out);
void stream_trace_close(stream_trace *s); /* accepts NULL */

/* The stream's part of the calls below. If a timer cannot be enqueued, the lane ends and the run
 * goes on. stream_trace_switch with a total, and stream_trace_settle, return that failure. */
void stream_trace_begin(stream_trace *s, const char *of, const char *name);
void stream_trace_end(stream_trace *s);
status stream_trace_switch(stream_trace *s, const char *name, int64_t *total_ns);

/* During graph capture spans are not kept: the events would become part of the graph. */
void stream_trace_hold(stream_trace *s, bool held);

/* Waits for the device. Writes the spans so far to the lane, and adds the times of ended phases to
 * their totals. */
status stream_trace_settle(stream_trace *s);

/* As trace_begin and trace_end. */
static inline void device_span_begin(device *dev, const char *of, const char *name)
{
    if (dev->lane == NULL)
        return;
    trace_begin(dev->lane, of, name);
    if (dev->stream_trace != NULL)
        stream_trace_begin(dev->stream_trace, of, name);
}

static inline void device_span_end(device *dev)
{
    if (dev->lane == NULL)
        return;
    if (dev->stream_trace != NULL)
        stream_trace_end(dev->stream_trace);
    trace_end(dev->lane);
}

/* Thread and stream enter another phase, called `name` in the trace; NULL: no span. The stream's
 * time in it is added to *total_ns once it is known, unless NULL. STATUS_DEVICE if there is a total
 * and the time cannot be measured. */
static inline status device_span_switch(device *dev, const char *name, int64_t *total_ns)
{
    trace_switch(dev->lane, name);
    return dev->stream_trace != NULL ? stream_trace_switch(dev->stream_trace, name, total_ns)
                                     : STATUS_OK;
}

#endif
