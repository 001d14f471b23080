/* An asynchronous parameter server: trainers of different speeds push to rank 0, without a bound of
 * staleness and with one. The rule is that of --mode=ps --async (app/train/staleness.h). */
#include "app/demo/demo.h"
#include "app/train/staleness.h"
#include "base/clock.h"
#include "dist/rpc.h"

#include <stdlib.h>

enum { STEP_MS = 30, STEPS = 6, PICTURE_BYTES = 128 };

typedef struct async_ps {
    demo *d;
    staleness rule; /* rank 0's */
    int64_t start_ns;
} async_ps;

/* "###>..  ##....  #w....": steps of each trainer, and what it does now. */
static void draw(const staleness *s, char out[PICTURE_BYTES])
{
    char *at = out;
    for (int t = 0; t < s->trainers; t++) {
        for (int step = 0; step < STEPS; step++)
            *at++ = step < s->each[t].steps   ? '#'
                    : step > s->each[t].steps ? '.'
                    : s->each[t].call != 0    ? 'w'
                                              : '>';
        *at++ = ' ';
    }
    at[-1] = '\0';
}

static status take_push(void *ctx, const rpc_call *call, rpc_value *out)
{
    async_ps *p = ctx;
    char picture[PICTURE_BYTES];
    int64_t missed = staleness_push(&p->rule, call->from - 1, call->id), made = p->rule.version;
    out->later = true;
    for (int t, id; (t = staleness_next(&p->rule, &id)) >= 0;)
        TRY(rpc_reply(p->d->calls, t + 1, id, STATUS_OK, &(rpc_value){0}));
    draw(&p->rule, picture);
    demo_row(p->d, "%3.0f ms|rank %d|%lld|%lld|#%lld|%s", demo_since_ms(p->start_ns), call->from,
             (long long)(made - 1 - missed), (long long)made, (long long)missed, picture);
    return STATUS_OK;
}

/* Rank 0 serves; a step of each other one takes rank x STEP_MS. */
static status train(async_ps *p)
{
    rpc_value nothing;
    while (p->d->rank == 0 && p->rule.made < (int64_t)STEPS * p->rule.trainers)
        TRY(rpc_serve_one(p->d->calls));
    for (int step = 0; p->d->rank > 0 && step < STEPS; step++) {
        clock_sleep_ms((int64_t)STEP_MS * p->d->rank);
        TRY(rpc_sync(p->d->calls, 0, "push", NULL, 0, &nothing));
        free(nothing.data);
    }
    return STATUS_OK;
}

/* The columns before the picture are one push: when it came, whose it was, the version that it was
 * computed at, the version that it made, and its staleness. */
static status show_run(async_ps *p, int64_t bound, const char *fact)
{
    demo *d = p->d;
    int64_t most = staleness_most(d->world_size - 1, bound);
    if (bound < 0) {
        demo_begin(d, "--async: nobody waits");
        demo_say(d, "A push's staleness is the number of updates that it has not seen: the "
                    "server's version when it comes, less the version that it was computed at.");
    } else {
        demo_begin(d, "--async --staleness=%lld", (long long)bound);
        demo_say(d,
                 "Who is more than %lld step ahead of the slowest waits (w). So a push has missed "
                 "%lld updates at most, and the fast ones are as fast as the slowest.",
                 (long long)bound, (long long)most);
    }
    demo_say(d, "# is a step that is done, > one under way.");
    demo_columns(d, "at|push of|of|makes|staleness|ranks 1, 2, ...");
    TRY(staleness_open(d->world_size - 1, bound, &p->rule));
    staleness_begin(&p->rule, 0, STEPS);
    TRY(demo_begin_together(d, &p->start_ns));
    TRY(train(p));
    demo_fact(d, fact, json_integer(p->rule.most));
    staleness_close(&p->rule);
    return demo_show(d);
}

static status show_all(async_ps *p)
{
    demo *d = p->d;
    demo_begin(d, "A parameter server whose trainers do not wait for each other");
    demo_say(d, "With --mode=ps all ranks make a step together, and the slowest sets the pace. "
                "Here rank 0 only serves: it has the weights and the optimizer. The others train.");
    demo_say(d,
             "A trainer pushes its gradients when it has them. The server makes a step of them at "
             "once, which is a new version of the weights, and sends these back to that trainer. "
             "Here a step of rank r takes r x %d ms, and each makes %d.",
             STEP_MS, STEPS);
    TRY(demo_show(d));
    TRY(show_run(p, -1, "most_unbounded"));
    TRY(show_run(p, 1, "most_bounded"));
    demo_begin(d, "What is the price?");
    demo_say(d, "Gradients of old weights point a little aside. The more trainers, the older: "
                "with N - 1 trainers of one speed N - 2 updates come between. With a bound of 0 "
                "all begin each step with the same weights, as synchronous training does.");
    demo_say(d, "mnist_ddp train --mode=ps --async --staleness=1 --nproc-per-node=3 trains so, and "
                "ends with how many pushes had which staleness.");
    return demo_show(d);
}

status async_ps_demo(demo *d)
{
    async_ps p = {.d = d};
    const rpc_function push = {"push", take_push, &p};
    TRY(demo_open_rpc(d, &push, 1));
    status st = show_all(&p);
    staleness_close(&p.rule);
    return st;
}
