/* What an accelerator does when, as spans in a lane of a trace: events on its stream, whose times
 * are read later, a few hundred at once.
 *
 * The device_ calls here note both: what the host does in dev->lane (which is all of it on a host
 * device) and, where the device has a stream, when the work that it enqueues meanwhile is done.
 * Without a trace they cost a test of a pointer.
 */
#ifndef MNIST_DDP_KERNELS_STREAM_TRACE_H
#define MNIST_DDP_KERNELS_STREAM_TRACE_H

#include "base/trace.h"
#include "kernels/device.h"

typedef struct stream_trace stream_trace;

/* For an accelerator with timers and an idle stream. */
status stream_trace_open(device *dev, trace *t, const char *name, stream_trace **out);
void stream_trace_close(stream_trace *s); /* accepts NULL */

/* The stream's part of the calls below. A failure to enqueue an event ends the lane, not the run.
 */
void stream_trace_begin(stream_trace *s, const char *of, const char *name);
void stream_trace_end(stream_trace *s);
void stream_trace_switch(stream_trace *s, const char *name);

/* While work is recorded in a graph its spans are not kept: they are the recording's. */
void stream_trace_hold(stream_trace *s, bool held);

/* Waits for the device and brings the spans so far into the lane. */
status stream_trace_settle(stream_trace *s);

/* As trace_begin, trace_end and trace_switch. */
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

static inline void device_span_switch(device *dev, const char *name)
{
    if (dev->lane == NULL)
        return;
    trace_switch(dev->lane, name);
    if (dev->stream_trace != NULL)
        stream_trace_switch(dev->stream_trace, name);
}

#endif
