/* Calls from rank to rank: a call, a future that is waited for later, a reference, an error that
 * travels back. */
#include "dist/rpc.h"

#include "app/demo/demo.h"
#include "base/clock.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { SLOW_MS = 100, NUMBERS = 1000 };

static status divide(void *ctx, const rpc_call *call, rpc_value *out)
{
    double x[2] = {0, 0};
    (void)ctx;
    memcpy(x, call->args, call->size < sizeof x ? call->size : sizeof x);
    if (x[1] == 0)
        return FAIL(STATUS_INVALID, "%g cannot be divided by 0", x[0]);
    out->size = sizeof x[0];
    TRY(memory_alloc(out->size, &out->data));
    *(double *)out->data = x[0] / x[1];
    return STATUS_OK;
}

/* Takes SLOW_MS for each number up to this rank's. */
static status work_slowly(void *ctx, const rpc_call *call, rpc_value *out)
{
    const demo *d = ctx;
    (void)call, (void)out;
    clock_sleep_ms((int64_t)SLOW_MS * d->rank);
    return STATUS_OK;
}

static status make_numbers(void *ctx, const rpc_call *call, rpc_value *out)
{
    (void)ctx, (void)call;
    out->size = NUMBERS * sizeof(double);
    return memory_alloc(out->size, &out->data);
}

static status show_call(demo *d)
{
    static const double args[] = {12, 3};
    rpc_value value;
    demo_begin(d, "rpc_sync(\"worker1\", divide, args=(12, 3))");
    demo_say(d, "A remote procedure call: rank 0 calls a function that rank 1 runs, and waits for "
                "what it returns. A send needs a receive on the other side; a call needs a "
                "function there, and a rank that serves.");
    demo_columns(d, "|does|result");
    if (d->rank == 0) {
        TRY(rpc_sync(d->calls, 1, "divide", args, sizeof args, &value));
        if (value.size == sizeof(double))
            demo_row(d, "rank 0|calls, and waits|#%.17g", *(double *)value.data);
        free(value.data);
        demo_arrow(d, 0, 1, "divide 12, 3");
        demo_arrow(d, 1, 0, "4");
    } else if (d->rank == 1) {
        TRY(rpc_serve_one(d->calls));
        demo_row(d, "rank 1|serves|");
    }
    return demo_show(d);
}

/* Rank 0 has all results when the slowest is done. */
static status call_all(demo *d, int64_t start_ns)
{
    rpc_value nothing;
    rpc_future futures[16];
    for (int to = 1; to < d->world_size; to++)
        TRY(rpc_async(d->calls, to, "work_slowly", NULL, 0, &futures[to]));
    demo_row(d, "rank 0 has called all|%.0f ms", demo_since_ms(start_ns));
    for (int to = 1; to < d->world_size; to++) {
        TRY(rpc_wait(d->calls, &futures[to], &nothing));
        free(nothing.data);
        demo_row(d, "rank 0 has the result of rank %d|%.0f ms", to, demo_since_ms(start_ns));
    }
    demo_fact(d, "futures_ms", json_real(demo_since_ms(start_ns)));
    return STATUS_OK;
}

static status show_futures(demo *d)
{
    int64_t start_ns;
    TRY(demo_begin_together(d, &start_ns));
    demo_begin(d, "future = rpc_async(\"worker2\", work_slowly)");
    demo_say(d,
             "The call returns at once, with a future: the result is waited for when it is "
             "needed. Rank r takes r x %d ms. Rank 0 calls all, and has all results when the "
             "slowest is done, not after the sum of all times.",
             SLOW_MS);
    demo_columns(d, "|at");
    TRY(d->rank == 0 ? call_all(d, start_ns) : rpc_serve_one(d->calls));
    return demo_show(d);
}

/* Rank 0 makes it, rank 1 has it, the last rank fetches it. */
static status show_reference(demo *d)
{
    rpc_rref ref = {0};
    rpc_value value = {0};
    if (d->rank == 0)
        TRY(rpc_remote(d->calls, 1, "make_numbers", NULL, 0, &ref));
    TRY(process_group_broadcast(d->group, &ref, sizeof ref, DTYPE_U8, 0, NULL));
    demo_begin(d, "rref = remote(\"worker1\", make_numbers); rref.to_here()");
    demo_say(d,
             "What the function returns stays with rank 1: %d numbers. Rank 0 has only a "
             "reference to it, a few bytes, and gives that to rank %d, which fetches the numbers "
             "from their owner. Rank 0 never has them.",
             NUMBERS, d->world_size - 1);
    demo_columns(d, "|does|bytes");
    if (d->rank == 0) {
        demo_row(d, "rank 0|has the reference (owner 1, creator 0, id %d)|#%zu", ref.id,
                 sizeof ref);
    } else if (d->rank == 1) {
        for (int i = 0; i < 3; i++) /* remote, to_here, delete */
            TRY(rpc_serve_one(d->calls));
        demo_row(d, "rank 1|has the numbers|#%zu", NUMBERS * sizeof(double));
    } else if (d->rank + 1 == d->world_size) {
        TRY(rref_to_here(d->calls, &ref, &value));
        TRY(rref_delete(d->calls, &ref));
        demo_row(d, "rank %d|fetches them|#%zu", d->rank, value.size);
        free(value.data);
    }
    return demo_show(d);
}

static status show_errors(demo *d)
{
    static const double args[] = {1, 0};
    static const char *const names[] = {"divide", "no_such"};
    rpc_value value;
    demo_begin(d, "rpc_sync(\"worker1\", divide, args=(1, 0))");
    demo_say(d, "A failure travels back to the caller, as an exception of Python's does. So does a "
                "function that the other rank does not have:");
    demo_columns(d, "|rank 0 gets");
    for (int i = 0; i < 2 && d->rank < 2; i++) {
        if (d->rank == 1)
            TRY(rpc_serve_one(d->calls));
        else if (rpc_sync(d->calls, 1, names[i], args, sizeof args, &value) != STATUS_INVALID)
            return FAIL(STATUS_DEVICE, "%s did not fail as it should", names[i]);
        else
            demo_row(d, "%s|%s", names[i], status_text());
    }
    return demo_show(d);
}

status rpc_demo(demo *d)
{
    const rpc_function functions[] = {
        {"divide", divide, d}, {"work_slowly", work_slowly, d}, {"make_numbers", make_numbers, d}};
    TRY(demo_open_rpc(d, functions, 3));
    TRY(show_call(d));
    TRY(show_futures(d));
    TRY(show_reference(d));
    TRY(show_errors(d));
    TRY(rpc_shutdown(d->calls));
    demo_begin(d, "rpc.shutdown()");
    demo_say(d, "All ranks have called it: each has served until no rank had anything to ask any "
                "more.");
    demo_say(d, "Data-parallel training needs no calls: all ranks do the same at the same time. A "
                "parameter server does, whose trainers come when they are ready: demo async-ps.");
    return demo_show(d);
}
