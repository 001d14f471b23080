/* An asynchronous parameter server (--mode=ps --async), as PyTorch's tutorial of one: rank 0 has
 * the parameters and the optimizer, and no batches. The other ranks train, and none waits for
 * another: each pushes the gradients of its batch, and gets the parameters for its next one. The
 * server makes a step of its optimizer of each push, as soon as it comes, whoever it is from.
 *
 *   trainer  rpc "push", version | gradients ------------------> | waits | <---- parameters
 *   server                         gradients -> step of optimizer -> answer, version
 *
 * Calls are messages in the job's store (dist/rpc.h); what is large goes by send and receive, as
 * the store would carry it four times. A push is answered when --staleness lets its trainer go on
 * (staleness.h), and after an epoch's last step only when all trainers have made it: so all ranks
 * test the same parameters. A wish to stop comes with a push, and ends all trainers after the same
 * step.
 */
#include "app/train/staleness.h"
#include "app/train/strategy_ops.h"
#include "base/host.h"
#include "base/memory.h"
#include "dist/process_group/process_group.h"
#include "dist/rpc.h"
#include "kernels/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct ps_async {
    rank_context *rank;
    rpc *calls;
    rpc_function functions[1];
    int64_t version; /* of a trainer's parameters */

    /* The server's. */
    staleness rule;
    int *ids; /* (trainers): of the call that each waits for */
    step_plan plan;
    bool is_begun; /* the device has begun a step for the next update */
    bool is_open;  /* an epoch is under way */
    float stop;    /* 1: some rank wishes to stop; NaN: a loss is not finite */
    status failed; /* of a push, with */
    status_kept why;
} ps_async;

/* What a trainer says of its gradients. */
typedef struct push {
    int64_t version;
    double loss;
    float stop;
} push;

static status check_flags(const options *o)
{
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
    return strategy_ranks_check(o);
}

static status check(const options *opts, int world_size)
{
    if (world_size < 2)
        return FAIL(STATUS_INVALID, "--mode=ps --async: rank 0 is the server, and no rank trains: "
                                    "give --nproc-per-node=2 or more, or --mode=single");
    return check_flags(opts);
}

static bool is_server(const rank_context *rank)
{
    return rank->place.rank == 0;
}

/* Parameters travel, and after them whether to stop. */
static void share_network(const rank_context *rank, network_share *out)
{
    out->parameters = model_kind_count(rank->settings.model) + PREEMPT_FLOATS;
}

static optimizer_part part_of_server(rank_context *rank, void *self)
{
    (void)self;
    return (optimizer_part){network_parameters(rank->net), network_gradients(rank->net),
                            .count = is_server(rank) ? network_count(rank->net) : 0};
}

static void close_async(void *self)
{
    ps_async *a = self;
    rpc_close(a->calls);
    staleness_close(&a->rule);
    free(a->ids);
    free(a);
}

static rpc_fn take_push;

static status open_calls(rank_context *rank, ps_async *a)
{
    bool ours = !rank->place.agent_store || environment_text("MNIST_DDP_LAUNCHED") != NULL;
    a->functions[0] = (rpc_function){"push", take_push, a};
    return rpc_open(&(rpc_options){.store = rendezvous_store(rank->rendezvous),
                                   .rank = rank->place.rank,
                                   .world_size = rank->place.world_size,
                                   .functions = a->functions,
                                   .n_functions = is_server(rank),
                                   .timeout_ms = rank->opts->timeout * 1000,
                                   .watches = ours},
                    &a->calls);
}

static status open_async(rank_context *rank, void **self)
{
    ps_async *a = NULL;
    int trainers = rank->place.world_size - 1;
    TRY(memory_alloc(sizeof *a, (void **)&a));
    a->rank = rank;
    status st = staleness_open(trainers, rank->opts->staleness, &a->rule);
    if (st == STATUS_OK)
        st = memory_alloc(sizeof *a->ids * (size_t)trainers, (void **)&a->ids);
    if (st == STATUS_OK)
        st = open_calls(rank, a);
    if (st != STATUS_OK) {
        close_async(a);
        return st;
    }
    *self = a;
    return STATUS_OK;
}

/* With rank `peer`: the gradients, or the parameters and what follows them. */
static status move_floats(rank_context *rank, collective_kind kind, float *data, size_t count,
                          int peer)
{
    bool sends = kind == COLLECTIVE_SEND;
    const collective c = {.kind = kind,
                          .type = DTYPE_F32,
                          .in = sends ? data : NULL,
                          .out = sends ? NULL : data,
                          .count = count,
                          .root = peer,
                          .label = data == rank->gradients ? "gradients to rank 0"
                                                           : "parameters from rank 0"};
    TRY(timeline_enter(&rank->timeline, MOMENT_PUSH));
    return process_group_run(rank->group, &c, rank->dev->stream);
}

static size_t parameter_floats(const rank_context *rank)
{
    return network_count(rank->net) + PREEMPT_FLOATS;
}

/* The trainer's side. */

static status compute_gradients(rank_context *rank, int step)
{
    int micro_steps = loader_micro_steps(rank->loader, step); /* --accum */
    for (int micro = 0; micro < micro_steps; micro++) {
        step_batch b = {.first = micro == 0, .last = micro + 1 == micro_steps};
        TRY(timeline_enter(&rank->timeline, MOMENT_LOAD));
        TRY(loader_next(rank->loader, &b.in));
        TRY(strategy_ranks_forward_backward(rank, &b, NULL, NULL));
    }
    return STATUS_OK;
}

static status await_version(ps_async *a, const rpc_future *answer)
{
    rpc_value value = {0};
    TRY(rpc_wait(a->calls, answer, &value));
    bool fits = value.size == sizeof a->version;
    if (fits)
        memcpy(&a->version, value.data, sizeof a->version);
    free(value.data);
    return fits ? STATUS_OK : FAIL(STATUS_PEER, "rank 0 answers a push with nonsense");
}

static status push_and_pull(rank_context *rank, ps_async *a)
{
    score so_far;
    rpc_future answer;
    push p = {.version = a->version};
    TRY(network_read_score(rank->net, &so_far));
    TRY(rank->dev->ops->download(rank->dev, &p.stop, rank->stop.flag, sizeof p.stop));
    p.loss = so_far.last_loss;
    TRY(rpc_async(a->calls, 0, "push", &p, sizeof p, &answer));
    TRY(move_floats(rank, COLLECTIVE_SEND, rank->gradients, network_count(rank->net), 0));
    TRY(timeline_enter(&rank->timeline, MOMENT_SERVE));
    TRY(await_version(a, &answer));
    return move_floats(rank, COLLECTIVE_RECV, rank->parameters, parameter_floats(rank), 0);
}

/* The server's side. */

static void note_wish(ps_async *a, float wish)
{
    if (wish == 0.0f)
        return;
    a->stop = isnan(wish) || isnan(a->stop) ? (float)NAN : 1.0f;
    staleness_stop(&a->rule);
}

/* Of the trainer's gradients, which have come. */
static status update(ps_async *a)
{
    rank_context *rank = a->rank;
    if (!a->is_begun) {
        optimizer_plan_step(strategy_optimizer(rank->strategy), a->plan.lr, &a->plan);
        TRY(rank->dev->ops->begin_step(rank->dev, &a->plan, rank->step_state, NULL));
    }
    a->is_begun = false;
    return strategy_ranks_optimizer_step(rank, a);
}

/* A trainer at the step where all meet learns there whether to stop. */
static status send_parameters(ps_async *a, int trainer)
{
    rank_context *rank = a->rank;
    float stop = a->rule.steps[trainer] >= a->rule.meet ? a->stop : 0.0f;
    const rpc_value version = {.data = &a->rule.version, .size = sizeof a->rule.version};
    TRY(rank->dev->ops->upload(rank->dev, rank->parameters + network_count(rank->net), &stop,
                               sizeof stop));
    TRY(rpc_reply(a->calls, trainer + 1, a->ids[trainer], STATUS_OK, &version));
    return move_floats(rank, COLLECTIVE_SEND, rank->parameters, parameter_floats(rank),
                       trainer + 1);
}

static status serve_push(ps_async *a, const rpc_call *call)
{
    push p;
    rank_context *rank = a->rank;
    if (call->size != sizeof p || call->from == 0)
        return FAIL(STATUS_PEER, "a push of rank %d makes no sense", call->from);
    memcpy(&p, call->args, sizeof p);
    if (p.version < 0 || p.version > a->rule.version)
        return FAIL(STATUS_PEER, "rank %d pushes gradients of version %lld, and the latest is %lld",
                    call->from, (long long)p.version, (long long)a->rule.version);
    TRY(move_floats(rank, COLLECTIVE_RECV, rank->gradients, network_count(rank->net), call->from));
    TRY(update(a));
    TRY(rank->dev->ops->upload(rank->dev, (void *)&network_totals(rank->net)->last_loss, &p.loss,
                               sizeof p.loss)); /* what rank 0 says of the step */
    a->ids[call->from - 1] = call->id;
    (void)staleness_push(&a->rule, call->from - 1, p.version);
    note_wish(a, p.stop);
    for (int t; (t = staleness_next(&a->rule)) >= 0;)
        TRY(send_parameters(a, t));
    return timeline_enter(&rank->timeline, MOMENT_SERVE);
}

/* A failure is the server's own, and no answer. */
static status take_push(void *ctx, const rpc_call *call, rpc_value *out)
{
    ps_async *a = ctx;
    out->later = true;
    a->failed = serve_push(a, call);
    status_keep(&a->why);
    return STATUS_OK;
}

/* As many pushes as there are trainers, whoever they are from. */
static status serve_step(rank_context *rank, ps_async *a, int step)
{
    float wish;
    const staleness *rule = &a->rule;
    int64_t steps = rank->opts->dry_run ? 1 : loader_steps(rank->loader);
    if (!a->is_open)
        staleness_begin(&a->rule, step, steps);
    TRY(rank->dev->ops->download(rank->dev, &wish, rank->stop.flag, sizeof wish));
    note_wish(a, wish);
    TRY(timeline_enter(&rank->timeline, MOMENT_SERVE));
    while (staleness_steps(rule) < (int64_t)(step + 1) * rule->trainers) {
        TRY(rpc_serve_one(a->calls));
        if (a->failed != STATUS_OK)
            return status_restore(&a->why), a->failed;
    }
    a->is_open = staleness_steps(rule) < rule->meet * rule->trainers;
    return STATUS_OK;
}

static void plan_step(rank_context *rank, void *self, const step_plan *plan)
{
    ps_async *a = self;
    (void)rank;
    a->plan = *plan;
    a->is_begun = true;
}

static status run_step(rank_context *rank, void *self, int step)
{
    if (is_server(rank)) {
        TRY(serve_step(rank, self, step));
    } else {
        TRY(compute_gradients(rank, step));
        TRY(push_and_pull(rank, self));
    }
    return timeline_enter(&rank->timeline, MOMENT_BETWEEN);
}

/* The trainers test. */
static status evaluate(rank_context *rank, void *self, const batch *in)
{
    (void)self;
    if (is_server(rank))
        return STATUS_OK;
    TRY(network_forward(rank->net, in, NETWORK_EVAL));
    return network_score(rank->net);
}

static json_t *outcome(const rank_context *rank, void *self)
{
    const staleness *s = &((ps_async *)self)->rule;
    json_t *rows = json_array();
    int64_t most = staleness_most(s->trainers, s->bound), last = 0;
    for (int64_t i = 0; i < STALENESS_ROWS; i++)
        last = s->rows[i] > 0 ? i : last;
    for (int64_t i = 0; i <= last; i++)
        json_array_append_new(rows, json_integer(s->rows[i]));
    (void)rank;
    return json_pack("{s:I, s:o, s:o, s:I, s:o}", "pushes", (json_int_t)s->version, "bound",
                     s->bound < 0 ? json_null() : json_integer(s->bound), "allowed",
                     most < 0 ? json_null() : json_integer(most), "most", (json_int_t)s->most,
                     "histogram", rows);
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
              .least_ranks = 2,
              .is_central = true,
              .has_server = true},
    .check = check,
    .open = open_async,
    .close = close_async,
    .network = share_network,
    .part = part_of_server,
    .share_state = strategy_ranks_share_parameters,
    .plan_step = plan_step,
    .run_step = run_step,
    .evaluate = evaluate,
    .backend = strategy_ranks_backend,
    .use = strategy_ranks_use,
    .describe = describe,
    .outcome = outcome,
};
