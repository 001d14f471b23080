/* Nobody leaves a barrier before all have entered it. With true times on rank 0's clock:
 *
 *   own.entered + offset <= first.left     and     first.entered <= own.left + offset
 *
 * so that every barrier bounds the offset from both sides. The tightest bounds of a few barriers
 * are as far apart as the fastest way there and back was long; the offset is taken in their middle.
 */
#include "app/trace/trace_clock.h"

#include "base/clock.h"
#include "base/host.h"

#include <stdlib.h>

enum { BARRIERS = 16 };

status trace_clock_estimate(const trace_barrier *own, const trace_barrier *first, int n,
                            trace_clock *out)
{
    int64_t low = INT64_MIN, high = INT64_MAX;
    for (int i = 0; i < n; i++) {
        int64_t at_least = first[i].entered_ns - own[i].left_ns;
        int64_t at_most = first[i].left_ns - own[i].entered_ns;
        low = at_least > low ? at_least : low;
        high = at_most < high ? at_most : high;
    }
    if (n < 1 || low > high)
        return FAIL(STATUS_INVALID, "the clocks of this rank and of rank 0 do not run alike");
    out->error_ns = (high - low + 1) / 2;
    out->offset_ns = low + out->error_ns;
    return STATUS_OK;
}

status trace_clock_compare(process_group *group, trace_clock *out, bool *fits)
{
    struct {
        trace_barrier met[BARRIERS];
        int64_t host;
    } first, own;
    own.host = (int64_t)host_number();
    for (int i = 0; i < BARRIERS; i++) {
        own.met[i].entered_ns = clock_now_ns();
        TRY(process_group_barrier(group));
        own.met[i].left_ns = clock_now_ns();
    }
    first = own;
    TRY(process_group_broadcast(group, &first, sizeof first / sizeof(int64_t), DTYPE_I64, 0, NULL));
    *fits = trace_clock_estimate(own.met, first.met, BARRIERS, out) == STATUS_OK;
    /* Containers of one kernel may still have clocks of their own: then 0 is no possible offset. */
    if (*fits && own.host != 0 && own.host == first.host && llabs(out->offset_ns) <= out->error_ns)
        out->offset_ns = out->error_ns = 0;
    return STATUS_OK;
}

status trace_clock_agree(process_group *group, int64_t began_ns, trace_clock *out)
{
    trace_clock clock = {0};
    bool fits = false;
    TRY(trace_clock_compare(group, &clock, &fits));
    if (!fits) /* as the estimate has said */
        return STATUS_INVALID;
    clock.zero_ns = began_ns + clock.offset_ns;
    TRY(process_group_all_reduce(group, &clock.zero_ns, 1, DTYPE_I64, REDUCE_MIN, NULL));
    *out = clock;
    return STATUS_OK;
}
