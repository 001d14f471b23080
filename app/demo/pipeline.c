/* Pipeline parallelism: each rank is a stage y = w x with w = 10, and numbers go through all of
 * them and back. Time is in slots, one for a forward or a backward. A message carries the slot that
 * it was made in, and what comes of it has a later one: so no clock, and no busy machine, is in the
 * picture. */
#include "app/demo/demo.h"
#include "app/train/pipeline_schedule.h"

#include <math.h>
#include <stdio.h>

enum { MICRO_BATCHES = 6, RANKS_MAX = 4, SLOTS = 2 * (MICRO_BATCHES + RANKS_MAX - 1) };

#define WEIGHT 10.0

typedef struct message {
    double value, slot;
} message;

/* What one stage does in a step. */
typedef struct stage_run {
    demo *d;
    char cells[SLOTS][8];    /* "F0", "B0", "." */
    int slot, idle;          /* the next one; how many before it were idle */
    double x[MICRO_BATCHES]; /* kept for backward: micro-batch m has x[m % (the most under way)] */
    int waiting, most;       /* so many of them are in use, and were at most */
    double gradient;         /* of the weight */
    message out;             /* goes with the next receive: two stages never wait for each other */
    int to;                  /* -1: there is none yet */
} stage_run;

/* In slots. */
static int length_of(const demo *d)
{
    return 2 * (MICRO_BATCHES + d->world_size - 1);
}

static void idle_until(stage_run *run, int slot)
{
    for (; run->slot < slot; run->idle++)
        snprintf(run->cells[run->slot++], sizeof run->cells[0], ".");
}

/* A forward or a backward: what comes in at one side goes out at the other, times the weight. */
static status work_on(stage_run *run, bool forward, int m, double *x)
{
    int side = forward ? 1 : -1;
    message in = {.value = forward ? m + 1 : 1, .slot = -1}; /* the loss is the sum of all y */
    TRY(demo_swap(run->d, run->to, &run->out, run->d->rank - side, &in, sizeof in));
    idle_until(run, (int)in.slot + 1);
    run->out = (message){.value = WEIGHT * in.value, .slot = run->slot};
    run->to = run->d->rank + side;
    snprintf(run->cells[run->slot++], sizeof run->cells[0], "%c%d", forward ? 'F' : 'B', m);
    run->waiting += side;
    run->most = run->waiting > run->most ? run->waiting : run->most;
    if (forward)
        *x = in.value;
    else
        run->gradient += *x * in.value;
    return STATUS_OK;
}

static status run_schedule(demo *d, bool gpipe, stage_run *run)
{
    int most = pipeline_under_way(gpipe, d->rank, d->world_size, MICRO_BATCHES);
    int forwards = 0, backwards = 0;
    *run = (stage_run){.d = d, .to = -1};
    while (backwards < MICRO_BATCHES) {
        bool forward = forwards < MICRO_BATCHES && run->waiting < most;
        int m = forward ? forwards++ : backwards++;
        TRY(work_on(run, forward, m, &run->x[m % most]));
    }
    idle_until(run, length_of(d));
    return demo_swap(d, run->to, &run->out, -1, NULL, sizeof run->out);
}

static void say_start(demo *d)
{
    demo_say(d,
             "If a model does not fit on one device, each rank can have some of its layers: a "
             "stage. Here a stage is one weight, w = %g, and y = w x goes to the next stage. With "
             "one batch only one stage works at a time. So the batch is cut into %d micro-batches, "
             "here the numbers 1 to %d.",
             WEIGHT, MICRO_BATCHES, MICRO_BATCHES);
    demo_say(d, "GPipe does all forwards, then all backwards. A column is a slot of time. F2 is "
                "the forward of micro-batch 2, and B2 its backward. A dot is an idle slot: the "
                "bubble.");
    if (d->rank + 1 < d->world_size) {
        demo_arrow(d, d->rank, d->rank + 1, "y");
        demo_arrow(d, d->rank + 1, d->rank, "the gradient of y");
    }
}

static status show_schedule(demo *d, bool gpipe, stage_run *run)
{
    json_t *cells = json_pack("[o]", json_sprintf("rank %d", d->rank));
    TRY(run_schedule(d, gpipe, run));
    demo_begin(d, "%s", gpipe ? "ScheduleGPipe" : "Schedule1F1B");
    if (gpipe)
        say_start(d);
    else
        demo_say(d, "One forward, one backward: a stage does a backward as soon as there is one. "
                    "The bubble is as large, but a stage keeps fewer micro-batches.");
    demo_columns(d, "%s", "");
    for (int slot = 0; slot < length_of(d); slot++) {
        demo_columns(d, "%d", slot);
        json_array_append_new(cells, json_string(run->cells[slot]));
    }
    demo_cells(d, cells);
    return demo_show(d);
}

static status show_cost(demo *d, const stage_run *gpipe, const stage_run *one)
{
    int others = d->world_size - 1;
    double bubble = (double)others / (MICRO_BATCHES + others);
    /* all stages have the same: dy times x has all weights but the stage's own */
    double whole = MICRO_BATCHES * (MICRO_BATCHES + 1) / 2 * pow(WEIGHT, others);
    double off = fabs(gpipe->gradient - whole) + fabs(one->gradient - whole);
    demo_begin(d, "The bubble, and what waits in memory");
    demo_say(d,
             "With S stages and M micro-batches a stage is idle for (S - 1) / (M + S - 1) of the "
             "step: %.1f %% of %d slots. More micro-batches make it less, but they are smaller, "
             "and small products are slow.",
             100 * bubble, length_of(d));
    demo_say(d,
             "A stage keeps its x until the backward: with gpipe all %d, with 1f1b as many as "
             "there are stages from here to the end. The gradients of all micro-batches add up to "
             "that of the batch, %g.",
             MICRO_BATCHES, whole);
    demo_say(d, "mnist_ddp train --mode=pipeline has this order: see --micro-batches and "
                "--pipeline-schedule. In PyTorch it is torch.distributed.pipelining.");
    demo_columns(d, "|idle, gpipe|idle, 1f1b|kept, gpipe|kept, 1f1b|gradient of w");
    demo_row(d, "rank %d|#%d|#%d|#%d|#%d|#%.17g", d->rank, gpipe->idle, one->idle, gpipe->most,
             one->most, one->gradient);
    demo_fact(d, "slots", json_integer(length_of(d)));
    demo_fact(d, "bubble", json_real(bubble));
    demo_fact(d, "gradient", json_real(whole));
    return demo_show_proof(d, off <= 0, "the gradient is not that of the whole batch");
}

status pipeline_demo(demo *d)
{
    stage_run gpipe, one;
    TRY(show_schedule(d, true, &gpipe));
    TRY(show_schedule(d, false, &one));
    return show_cost(d, &gpipe, &one);
}
