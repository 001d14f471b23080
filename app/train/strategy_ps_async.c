/* An asynchronous parameter server (--mode=ps --async), as PyTorch's tutorial of one: rank 0 has
 * the parameters and the optimizer, and no batches. The other ranks train, and none waits for
 * another: each pushes the gradients of its batch, and gets the parameters for its next one. The
 * server makes a step of its optimizer of each push, as soon as it comes, whoever it is from.
 *
 *   trainer  rpc "push", gradients ------------------> | waits | <---- parameters
 *   server                  gradients -> step of optimizer -> answer
 *
 * Calls are messages in the job's store (dist/rpc.h); what is large goes by send and receive, as
 * the store would carry it four times. A push is answered when --staleness lets its trainer go on
 * (staleness.h), and after an epoch's last step only when all trainers have made it: so all ranks
 * test the same parameters. A wish to stop comes after the gradients, and ends all trainers after
 * the same step: what all wish goes back after the parameters.
 */
#include "app/train/staleness.h"
#include "app/train/strategy_ops.h"
#include "base/memory.h"
#include "dist/process_group/process_group.h"
#include "dist/rpc.h"
#include "kernels/ops.h"

#include <stdlib.h>
#include <string.h>

typedef struct ps_async {
    rank_context *rank;
    rpc *calls;
    rpc_function push;
    rpc_future answer; /* a trainer's */

    /* The server's. */
    staleness rule;
    step_plan plan; /* of the latest update */
    float stop;     /* above 0: some rank wishes to stop; NaN: a loss is not finite */
} ps_async;

static status check(const options *o, int n)
{
    (void)n;
    interval tests, saves;
    TRY(interval_parse("--eval-every", 0, o->eval_every, &tests));
    TRY(interval_parse("--save-every", 1, o->save_every, &saves));
    const struct {
        bool is_given;
        const char *why;
    } refused[] = {
        {o->global_batch_size > 0, "an update is of one trainer's batch: give --batch-size"},
        {o->scale_lr, "an update is of one trainer's batch: leave --scale-lr out, or give --lr"},
        {strcmp(o->amp, "fp16") == 0,
         "--amp=fp16 would scale each trainer's loss by itself: give --amp=bf16"},
        {tests.in_steps, "trainers meet after an epoch only: give --eval-every=1epochs"},
        {saves.in_steps, "trainers meet after an epoch only: give --save-every=1epochs"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (refused[i].is_given)
            return FAIL(STATUS_INVALID, "--mode=ps --async: %s", refused[i].why);
    return STATUS_OK;
}

/* Parameters travel, and after them whether to stop. */
static void share_network(const rank_context *rank, network_share *out)
{
    out->parameters = model_kind_count(rank->settings.model) + PREEMPT_FLOATS;
}

static void close_async(void *self)
{
    ps_async *a = self;
    rpc_close(a->calls);
    staleness_close(&a->rule);
}

static rpc_fn take_push;

static status open_async(rank_context *rank, void *self)
{
    ps_async *a = self;
    *a = (ps_async){.rank = rank, .push = {"push", take_push, a}};
    const rpc_options how = {.store = rendezvous_store(rank->rendezvous),
                             .rank = rank->place.rank,
                             .world_size = rank->place.world_size,
                             .functions = &a->push,
                             .n_functions = 1,
                             .timeout_ms = rank->opts->timeout * 1000,
                             .watches = rendezvous_watches(rank->rendezvous)};
    TRY(staleness_open(rank->place.world_size - 1, rank->opts->staleness, &a->rule));
    return rpc_open(&how, &a->calls);
}

/* With rank `peer`: the gradients, or the parameters, and the wish that follows either. */
static status move(rank_context *rank, collective_kind kind, float *data, int peer)
{
    bool sends = kind == COLLECTIVE_SEND;
    const collective c = {.kind = kind,
                          .in = sends ? data : NULL,
                          .out = sends ? NULL : data,
                          .count = network_count(rank->net) + PREEMPT_FLOATS,
                          .root = peer,
                          .label = data == rank->gradients ? "gradients to rank 0"
                                                           : "parameters from rank 0"};
    TRY(timeline_enter(&rank->timeline, MOMENT_PUSH));
    return process_group_run(rank->group, &c, rank->dev->stream);
}

/* The trainer's side. */

static status push(rank_context *rank, void *self)
{
    ps_async *a = self;
    score so_far;
    TRY(network_read_score(rank->net, &so_far));
    TRY(rpc_async(a->calls, 0, "push", &so_far.last_loss, sizeof so_far.last_loss, &a->answer));
    return move(rank, COLLECTIVE_SEND, rank->gradients, 0);
}

static status pull(rank_context *rank, void *self)
{
    rpc_value nothing;
    ps_async *a = self;
    TRY(timeline_enter(&rank->timeline, MOMENT_SERVE));
    TRY(rpc_wait(a->calls, &a->answer, &nothing));
    free(nothing.data);
    return move(rank, COLLECTIVE_RECV, rank->parameters, 0);
}

/* The server's side. */

/* Of the gradients that are here. For a step's first ones the device has begun it. */
static status update(ps_async *a)
{
    rank_context *rank = a->rank;
    if (a->rule.made % a->rule.trainers != 0) {
        optimizer_plan_step(strategy_optimizer(rank->strategy), a->plan.lr, &a->plan);
        TRY(rank->dev->ops->begin_step(rank->dev, &a->plan, rank->step_state, NULL));
    }
    return strategy_ranks_optimizer_step(rank);
}

/* Of the rank whose gradients are here, or its own before any are. */
static status note_wish(ps_async *a)
{
    float wish;
    device *dev = a->rank->dev;
    TRY(dev->ops->download(dev, &wish, a->rank->stop.flag, sizeof wish));
    a->stop += wish;
    if (wish != 0.0f)
        staleness_stop(&a->rule);
    return STATUS_OK;
}

/* A trainer at the step where all meet learns there whether to stop. */
static status send_parameters(ps_async *a, int trainer, int call)
{
    rank_context *rank = a->rank;
    float stop = a->rule.each[trainer].steps >= a->rule.meet ? a->stop : 0.0f;
    TRY(rank->dev->ops->upload(rank->dev, rank->parameters + network_count(rank->net), &stop,
                               sizeof stop));
    TRY(rpc_reply(a->calls, trainer + 1, call, STATUS_OK, &(rpc_value){0}));
    return move(rank, COLLECTIVE_SEND, rank->parameters, trainer + 1);
}

static status take_push(void *ctx, const rpc_call *call, rpc_value *out)
{
    ps_async *a = ctx;
    rank_context *rank = a->rank;
    double loss, *latest = (double *)&network_totals(rank->net)->last_loss;
    out->later = true;
    if (call->size != sizeof loss || call->from == 0 || a->rule.each[call->from - 1].call != 0)
        return FAIL(STATUS_PEER, "a push of rank %d makes no sense", call->from);
    memcpy(&loss, call->args, sizeof loss);
    TRY(move(rank, COLLECTIVE_RECV, rank->gradients, call->from));
    TRY(update(a));
    TRY(rank->dev->ops->upload(rank->dev, latest, &loss, sizeof loss)); /* rank 0 says it */
    (void)staleness_push(&a->rule, call->from - 1, call->id);
    TRY(note_wish(a));
    for (int t, id; (t = staleness_next(&a->rule, &id)) >= 0;)
        TRY(send_parameters(a, t, id));
    return timeline_enter(&rank->timeline, MOMENT_SERVE);
}

static void plan_step(void *self, const step_plan *plan)
{
    ((ps_async *)self)->plan = *plan;
}

/* As many pushes as there are trainers, whoever they are from. */
static status serve_step(rank_context *rank, ps_async *a, int step)
{
    staleness *rule = &a->rule;
    if (rule->made == rule->meet * rule->trainers) /* an epoch begins, or what is left of it */
        staleness_begin(rule, step, rank->opts->dry_run ? 1 : loader_steps(rank->loader));
    TRY(note_wish(a));
    TRY(timeline_enter(&rank->timeline, MOMENT_SERVE));
    while (rule->made < (step + 1) * (int64_t)rule->trainers)
        TRY(rpc_serve_one(a->calls));
    return timeline_enter(&rank->timeline, MOMENT_BETWEEN);
}

static status run_step(rank_context *rank, void *self, int step)
{
    return rank->place.rank == 0 ? serve_step(rank, self, step) : strategy_ranks_step(rank, step);
}

static json_t *outcome(const rank_context *rank, void *self)
{
    const staleness *s = &((ps_async *)self)->rule;
    json_t *rows = json_array();
    int64_t last = s->most < STALENESS_ROWS ? s->most : STALENESS_ROWS - 1;
    int64_t allowed = staleness_most(s->trainers, s->bound);
    for (int64_t i = 0; i <= last; i++)
        json_array_append_new(rows, json_integer(s->rows[i]));
    (void)rank;
    return json_pack("{s:I, s:o, s:o, s:I, s:o}", "pushes", (json_int_t)s->version, "bound",
                     s->bound < 0 ? json_null() : json_integer(s->bound), "allowed",
                     s->bound < 0 ? json_null() : json_integer(allowed), "most",
                     (json_int_t)s->most, "histogram", rows);
}

static void describe(const rank_context *rank, void *self, FILE *out)
{
    const staleness *s = &((ps_async *)self)->rule;
    double mb = (double)(network_count(rank->net) * sizeof(float)) * 1e-6;
    fprintf(out, "rank 0 is the server: it has no batches; %d rank%s train%s\n", s->trainers,
            s->trainers == 1 ? "" : "s", s->trainers == 1 ? "s" : "");
    fprintf(out, "gradients, %.2f MB, go to rank 0 when a trainer has them; rank 0 makes a step\n",
            mb);
    fputs("of its optimizer of each at once, and sends parameters back to that trainer\n", out);
    if (s->bound < 0)
        fputs("no trainer waits for another before the epoch's end (--staleness)\n", out);
    else
        fprintf(out,
                "a trainer more than %lld steps ahead of the slowest waits: its gradients are of\n"
                "parameters that lack at most %lld updates\n",
                (long long)s->bound, (long long)staleness_most(s->trainers, s->bound));
}

const strategy_ops strategy_ps_async = {
    .facts = {.name = "ps",
              .title = "mode ps --async, trainers",
              .unit = "rank",
              .alone = "with --async rank 0 is the server, and no rank trains",
              .is_central = true,
              .has_server = true},
    .check = check,
    .self_bytes = sizeof(ps_async),
    .open = open_async,
    .close = close_async,
    .network = share_network,
    .part = strategy_server_part,
    .share_state = strategy_ranks_share_parameters,
    .plan_step = plan_step,
    .run_step = run_step,
    .synchronize = push,
    .optimizer_step = pull,
    .describe = describe,
    .outcome = outcome,
};
