/* ZeRO: the optimizer's state in slices. The model has one parameter a rank, so that a slice is one
 * number. Gradients are summed and not averaged, and the learning rate is 1: so each digit of a sum
 * is one rank's. */
#include "app/demo/demo.h"
#include "model/model_kind.h"

#include <stdio.h>
#include <string.h>

enum { RANKS_MAX = 4, ROW_BYTES = 16 * RANKS_MAX };

static const double START[] = {0, 9, 99, 999, 9999}; /* all parameters, with so many ranks */

/* One rank. Of sums and state it has number `rank` alone. */
typedef struct zero {
    demo *d;
    double parameters[RANKS_MAX], gradients[RANKS_MAX], sums[RANKS_MAX], state[RANKS_MAX];
} zero;

/* "9999 - -": number `only`, or all if it is -1. */
static const char *list(const zero *z, const double *numbers, int only, char out[ROW_BYTES])
{
    out[0] = '\0';
    for (int i = 0; i < z->d->world_size; i++)
        snprintf(out + strlen(out), 16, only < 0 || only == i ? "%s%.0f" : "%s-", i > 0 ? " " : "",
                 numbers[i]);
    return out;
}

/* What this rank has now: gradients of its own batch, or its slice of the sums. */
static status show_arrays(zero *z, const double *gradients)
{
    demo *d = z->d;
    char rows[3][ROW_BYTES];
    demo_columns(d, "|parameters|gradients|state");
    demo_row(d, "rank %d|%s|%s|%s", d->rank, list(z, z->parameters, -1, rows[0]),
             list(z, gradients, gradients == z->gradients ? -1 : d->rank, rows[1]),
             list(z, z->state, d->rank, rows[2]));
    return demo_show(d);
}

static status show_start(zero *z)
{
    demo *d = z->d;
    for (int i = 0; i < d->world_size; i++) {
        z->parameters[i] = START[d->world_size];
        z->gradients[i] = (i + 1) * demo_digit(d);
    }
    demo_begin(d, "The optimizer's state in slices");
    demo_say(d,
             "With DDP every rank has the whole state of the optimizer, here a momentum, and all "
             "make the same step. With ZeRO each of the %d ranks has the state of a slice of the "
             "parameters, and steps that slice alone. A dash is what a rank does not have.",
             d->world_size);
    demo_say(d, "After backward each rank has the gradients of its own batch. Rank r's are 1, 2, 3 "
                "... times 10 to the power of r: so each digit of a sum is one rank's.");
    return show_arrays(z, z->gradients);
}

static status show_reduce_scatter(zero *z)
{
    demo *d = z->d;
    const collective sum = {.kind = COLLECTIVE_REDUCE_SCATTER,
                            .op = REDUCE_SUM,
                            .type = DTYPE_F64,
                            .in = z->gradients,
                            .out = &z->sums[d->rank],
                            .count = 1};
    TRY(process_group_run(d->group, &sum, NULL));
    demo_begin(d, "dist.reduce_scatter_tensor: to each the sum of its slice");
    demo_say(d, "Gradient i of all ranks goes to rank i, which adds them up. The arrows are those "
                "of rank 0's slice.");
    if (d->rank > 0)
        demo_arrow(d, d->rank, 0, "%.0f", z->gradients[0]);
    return show_arrays(z, z->sums);
}

static status show_step(zero *z)
{
    demo *d = z->d;
    z->state[d->rank] = 0.9 * z->state[d->rank] + z->sums[d->rank];
    z->parameters[d->rank] -= z->state[d->rank];
    demo_begin(d, "optimizer.step(), each rank its slice");
    demo_say(d, "The momentum becomes 0.9 times what it was, here 0, plus the gradient. The "
                "parameter becomes less by lr = 1 times the momentum.");
    TRY(show_arrays(z, z->sums));
    demo_begin(d, "dist.all_gather_into_tensor: all have all parameters");
    TRY(process_group_all_gather(d->group, &z->parameters[d->rank], z->parameters, 1, DTYPE_F64,
                                 NULL)); /* in place */
    demo_say(d, "Each rank sends its slice to all others. The arrows are those of rank 0's.");
    for (int to = 1; to < d->world_size && d->rank == 0; to++)
        demo_arrow(d, 0, to, "%.0f", z->parameters[0]);
    return show_arrays(z, z->sums);
}

/* DDP's step, from the same gradients, has the same parameters. */
static status check(const zero *z)
{
    double sums[RANKS_MAX];
    size_t n = (size_t)z->d->world_size;
    memcpy(sums, z->gradients, sizeof sums);
    TRY(process_group_all_reduce(z->d->group, sums, n, DTYPE_F64, REDUCE_SUM, NULL));
    for (size_t i = 0; i < n; i++)
        sums[i] = START[n] - sums[i];
    return memcmp(sums, z->parameters, sizeof *sums * n) == 0
               ? STATUS_OK
               : FAIL(STATUS_DEVICE, "slices have not the parameters of all_reduce");
}

/* Of parameters, gradients and state a rank has the first so many whole, and a slice of the others;
 * and what moves them in a step. */
static const struct mode {
    const char *name;
    int whole, n_calls;
    collective_kind calls[3];
} MODES[] = {
    {"ddp", 3, 1, {COLLECTIVE_ALL_REDUCE}},
    {"zero1", 2, 2, {COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_ALL_GATHER}},
    {"fsdp", 0, 3, {COLLECTIVE_ALL_GATHER, COLLECTIVE_ALL_GATHER, COLLECTIVE_REDUCE_SCATTER}},
};

/* A row of counts for slices of so many floats. */
static void tell_mode(demo *d, const struct mode *mode, size_t slice)
{
    size_t has[3], all = slice * (size_t)d->world_size, bytes = 0;
    for (int i = 0; i < 3; i++)
        has[i] = i < mode->whole ? all : slice;
    for (int i = 0; i < mode->n_calls; i++) {
        collective c = {.kind = mode->calls[i], .type = DTYPE_F32};
        c.count = c.kind == COLLECTIVE_ALL_REDUCE ? all : slice;
        bytes += process_group_expect_traffic(d->group, &c).sent;
    }
    demo_fact(d, mode->name,
              json_pack("[I, I]", (json_int_t)(has[0] + has[1] + has[2]), (json_int_t)bytes));
    if (d->rank == 0)
        demo_row(d, "%s|#%zu|#%zu|#%zu|#%zu", mode->name, has[0], has[1], has[2], bytes);
}

static status show_costs(demo *d)
{
    size_t n = (size_t)d->world_size, parameters = model_kind_count(MODEL_CNN);
    demo_begin(d, "Who holds what, and what travels");
    demo_say(d,
             "For the %zu parameters of --model=cnn: the floats that a rank has, and the bytes "
             "that it sends in a step. An all-reduce is a reduce-scatter and an all-gather. So "
             "zero1 sends what ddp sends: 2 (N - 1) / N of the parameters.",
             parameters);
    demo_say(d, "FSDP has slices of everything. It gathers a layer's parameters when it needs "
                "them, for forward and again for backward, and gives them away after it. So it "
                "sends 3 (N - 1) / N.");
    demo_say(d, "mnist_ddp train --mode=zero1 trains with slices. PyTorch's "
                "ZeroRedundancyOptimizer leaves the all-reduce to DDP, and broadcasts its slices "
                "after the step: so it moves more.");
    demo_columns(d, "|parameters|gradients|state|bytes sent");
    for (size_t i = 0; i < sizeof MODES / sizeof MODES[0]; i++)
        tell_mode(d, &MODES[i], (parameters + n - 1) / n);
    return demo_show(d);
}

status zero_demo(demo *d)
{
    zero z = {.d = d};
    TRY(show_start(&z));
    TRY(show_reduce_scatter(&z));
    TRY(show_step(&z));
    TRY(check(&z));
    return show_costs(d);
}
