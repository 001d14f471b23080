/* The train command: one rank, from its start to its exit code. To be read from its end:
 * train_command, run_rounds (once, if the job is not elastic), open_and_run, run, begin. */
#include "app/train/train_command.h"

#include "app/common/exit_codes.h"
#include "app/common/run_files.h"
#include "app/common/run_log.h"
#include "app/report/run_page.h"
#include "app/report/trace_picture.h"
#include "app/train/agent_link.h"
#include "app/train/agreement.h"
#include "app/train/eval_document.h"
#include "app/train/failure.h"
#include "app/train/rank_context.h"
#include "app/train/result.h"
#include "app/train/trainer.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "data/sampler.h"
#include "kernels/ops.h"
#include "model/checkpoint.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT_STATE_NONE = -1 };

/* Where a run stands, and with whom it came there. */
typedef struct run_standing {
    position at;
    run_world world; /* .size is 0: the run begins */
    test_found best;
    char sums[CHECKPOINT_SUMS_BYTES]; /* for rank_context */
    int64_t began_ns;                 /* the run, by this process's clock */
} run_standing;

/* What a run has come to after its last completed step, in host memory: it outlives the round in
 * which the rank has taken that step. Loss scaling and the totals of the epoch are in it; random
 * numbers need nothing, as they come from seed, epoch and sample.
 * Begins as {.step = KEPT_STATE_NONE}. */
typedef struct kept_state {
    int64_t step; /* place.at.step; KEPT_STATE_NONE: there is nothing else */
    run_standing place;
    size_t count;
    float *parameters;                   /* (count), owned */
    float *states[OPTIMIZER_MAX_STATES]; /* (count) each, owned; NULL: the optimizer has fewer */
    int64_t optimizer_steps;
    loss_scaling scaling;
} kept_state;

typedef struct training {
    rank_signals signals;
    agent_link *link; /* NULL: the job is not elastic */
    kept_state kept;  /* what its latest round has kept */
    rank_context rank;
    run_folder folder; /* rank 0's; of an elastic job all ranks know its path */
    progress progress;
    result result;
    trainer trainer;
    rendezvous_place place;                /* this rank's, in the round */
    run_standing from;                     /* where the round goes on from */
    bool runs;                             /* the round's ranks have begun, or gone on */
    bool survives;                         /* the round is over, and the process goes on */
    int64_t failed_ns, left_ns, joined_ns; /* the latest change of rounds; 0: there was none */
    int init_code;                         /* --init has failed so; 0: it has not */
    bool output_failed;                    /* something is not on disk that was asked for */
    bool refused;                          /* rank 0 has said why the run does not start */
} training;

/* train --explain: what is about to happen, in lines of the log. */

/* How a backend sums over ranks; docs/internals/collectives.md has all of it. */
static const char *algorithm_of(const char *backend)
{
    static const struct {
        const char *backend, *how;
    } all[] = {
        {"shm", "ranks read each other's memory; each adds up a part for all"},
        {"gloo", "messages over TCP; each rank adds up a part for all"},
        {"hierarchical", "shm on each host, then gloo between the hosts"},
        {"mpi", "messages of Open MPI, by an algorithm of its choice"},
        {"nccl", "between GPUs, in a ring or a tree as NCCL chooses"},
        {"local", "threads read each other's memory"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strcmp(all[i].backend, backend) == 0)
            return all[i].how;
    return "no messages";
}

static void explain_place(const rank_context *rank, const json_t *run, FILE *out)
{
    size_t i;
    json_t *host;
    const char *unit = strategy_of(rank->opts)->unit;
    const json_t *hosts = json_object_get(run, "hosts");
    int n = rank->place.world_size * rank->settings.replicas, threads = rank->settings.threads;
    fprintf(out, "%d %s%s on %zu host%s, %d thread%s each\n", n, unit, n == 1 ? "" : "s",
            json_array_size(hosts), json_array_size(hosts) == 1 ? "" : "s", threads,
            threads == 1 ? "" : "s");
    json_array_foreach(hosts, i, host) fprintf(out, "host %zu: %s\n", i, json_string_value(host));
}

static void explain_samples(const rank_context *rank, const json_t *run, FILE *out)
{
    int64_t n = rank->train_set.count, own = loader_samples(rank->loader);
    int world_size = rank->sharing.world_size;
    int64_t more = own * world_size - n;
    int serves = strategy_of(rank->opts)->has_server; /* rank 0; the others stand after it */
    (void)run;
    fprintf(out, "%lld an epoch, %s\n", (long long)n,
            rank->opts->shuffle ? "shuffled anew in each" : "in order");
    if (world_size > 1)
        fprintf(out, "%s r gets numbers r%s, r + %d, r + %d, ...: %lld of them\n",
                serves || world_size == rank->place.world_size ? "rank" : "row",
                serves ? " - 1" : "", world_size - serves, 2 * world_size - serves, (long long)own);
    if (more > 0)
        fprintf(out, "%lld %s dealt twice, so that all ranks make equally many steps\n",
                (long long)more, more == 1 ? "is" : "are");
    if (more < 0)
        fprintf(out, "%lld %s left out (--drop-last)\n", (long long)-more,
                more == -1 ? "is" : "are");
}

static void explain_step(const rank_context *rank, const json_t *run, FILE *out)
{
    (void)run;
    long long own = (long long)(rank->settings.batch_size * rank->opts->accum);
    if (rank->settings.replicas > 1 && !strategy_of(rank->opts)->cuts_model)
        fprintf(out, "forward and backward of %lld samples, cut among %d replicas\n", own,
                rank->settings.replicas);
    else
        fprintf(out, "forward and backward of %lld samples on each rank, %lld on all\n", own,
                (long long)rank_context_global_batch(rank));
    int steps = loader_steps(rank->loader);
    int last = steps > 0 ? loader_step_samples(rank->loader, steps - 1) : 0;
    fprintf(out, "%d such steps an epoch", steps);
    if (steps > 0 && last != own)
        fprintf(out, ", the last one of %d samples", last);
    fputc('\n', out);
}

static void explain_transfers(const rank_context *rank, const json_t *run, FILE *out)
{
    (void)run;
    strategy_describe(rank->strategy, out);
}

static void explain_backend(const rank_context *rank, const json_t *run, FILE *out)
{
    const char *backend = strategy_backend(rank->strategy);
    (void)run;
    fprintf(out, "%s: %s\n", backend, algorithm_of(backend));
}

static void explain_memory(const rank_context *rank, const json_t *run, FILE *out)
{
    const char *names[OPTIMIZER_MAX_STATES];
    float *arenas[OPTIMIZER_MAX_STATES];
    optimizer *opt = strategy_optimizer(rank->strategy);
    size_t states = optimizer_states(opt, names, arenas) * optimizer_count(opt);
    double mb = (double)(network_count(rank->net) * sizeof(float)) * 1e-6;
    (void)run;
    fprintf(out, "%.2f MB of rank 0: parameters %.2f, gradients %.2f\n",
            (double)rank->dev->memory_bytes * 1e-6, mb, mb);
    fprintf(out, "the optimizer's state %.2f; activations and work space the rest\n",
            (double)(states * sizeof(float)) * 1e-6);
}

/* Lines of one subject, with its name before the first. */
static void say(progress *p, const char *subject, char *text)
{
    for (char *line; (line = strsep(&text, "\n")) != NULL && *line != '\0'; subject = "")
        progress_line(p, "  %-9s%s", subject, line);
}

typedef void explain_fn(const rank_context *rank, const json_t *run, FILE *out);

static void explain_subject(progress *p, const char *subject, explain_fn *explain,
                            const json_t *run)
{
    text_stream stream;
    char *text = NULL;
    if (text_stream_open(&stream) != STATUS_OK)
        return;
    explain(p->rank, run, stream.file);
    if (text_stream_close(&stream, &text, NULL) == STATUS_OK)
        say(p, subject, text);
    free(text);
}

/* Of rank 0: who is where, who gets which samples, what moves in a step, and what memory it takes.
 * `run`: with the facts of result_describe. */
static void explanation_say(progress *p, const json_t *run)
{
    static const struct {
        const char *name;
        explain_fn *explain;
    } subjects[] = {{"ranks", explain_place},     {"samples", explain_samples},
                    {"step", explain_step},       {"sends", explain_transfers},
                    {"backend", explain_backend}, {"memory", explain_memory}};
    progress_line(p, "what is about to happen:");
    for (size_t i = 0; i < sizeof subjects / sizeof subjects[0]; i++)
        explain_subject(p, subjects[i].name, subjects[i].explain, run);
}

/* An elastic run from round to round: what its ranks keep, and from whom they take it. */

enum { RECOVER_MS = 5000 }; /* for a device to end what was aborted */

static status copy_out(device *dev, const float *from, size_t count, float **out)
{
    if (*out == NULL)
        TRY(memory_alloc(count * sizeof **out, (void **)out));
    return dev->ops->download(dev, *out, from, count * sizeof **out);
}

static status copy_all(rank_context *rank, kept_state *out)
{
    const char *names[OPTIMIZER_MAX_STATES];
    float *states[OPTIMIZER_MAX_STATES];
    size_t n = optimizer_states(strategy_optimizer(rank->strategy), names, states);
    out->count = network_count(rank->net);
    ASSERT(optimizer_count(strategy_optimizer(rank->strategy)) == out->count); /* it can commit */
    TRY(copy_out(rank->dev, network_parameters(rank->net), out->count, &out->parameters));
    for (size_t i = 0; i < n && out->optimizer_steps > 0; i++) /* else there is none yet */
        TRY(copy_out(rank->dev, states[i], out->count, &out->states[i]));
    return rank_context_loss_scaling(rank, &out->scaling);
}

/* After the rank's process group has been destroyed: nothing that is enqueued on its device waits
 * for another rank. */
static status recover(const rank_context *rank)
{
    const accelerator_ops *accelerator = rank->dev != NULL ? rank->dev->ops->accelerator : NULL;
    return accelerator != NULL && accelerator->recover != NULL
               ? accelerator->recover(rank->dev, RECOVER_MS)
               : STATUS_OK;
}

/* Copies it from the rank's device, which is idle.
 * `updates`: of the optimizer; it may have begun one that has not come to its end. On failure there
 * is KEPT_STATE_NONE. */
static status kept_state_take(rank_context *rank, const run_standing *place, int64_t updates,
                              kept_state *out)
{
    out->step = KEPT_STATE_NONE;
    out->optimizer_steps = updates;
    TRY(copy_all(rank, out));
    out->place = *place;
    out->step = place->at.step;
    return STATUS_OK;
}

/* Copies parameters, optimizer state and loss scaling to the device of `rank`, of the same model
 * and optimizer. */
static status kept_state_restore(const kept_state *kept, rank_context *rank)
{
    const char *names[OPTIMIZER_MAX_STATES];
    float *states[OPTIMIZER_MAX_STATES];
    size_t n = optimizer_states(strategy_optimizer(rank->strategy), names, states);
    size_t size_bytes = kept->count * sizeof(float);
    device *dev = rank->dev;
    ASSERT(kept->count == network_count(rank->net) && kept->step == kept->place.at.step);
    TRY(dev->ops->upload(dev, network_parameters(rank->net), kept->parameters, size_bytes));
    for (size_t i = 0; i < n && kept->optimizer_steps > 0; i++)
        TRY(dev->ops->upload(dev, states[i], kept->states[i], size_bytes));
    optimizer_set_steps(strategy_optimizer(rank->strategy), kept->optimizer_steps);
    return rank_context_set_loss_scaling(rank, &kept->scaling);
}

static void kept_state_free(kept_state *kept)
{
    free(kept->parameters);
    for (size_t i = 0; i < OPTIMIZER_MAX_STATES; i++)
        free(kept->states[i]);
    *kept = (kept_state){.step = KEPT_STATE_NONE};
}

/* The lowest rank that has the newest state; -1: none has any. */
static status find_newest(training *t, int *out)
{
    int n = t->rank.place.world_size;
    int64_t newest = KEPT_STATE_NONE, *steps = calloc((size_t)n, sizeof *steps);
    if (steps == NULL)
        return FAIL(STATUS_NO_MEMORY, "the steps of %d ranks", n);
    status st = process_group_all_gather(t->rank.group, &t->kept.step, steps, 1, DTYPE_I64, NULL);
    *out = -1;
    for (int rank = 0; rank < n && st == STATUS_OK; rank++)
        if (steps[rank] > newest) {
            newest = steps[rank];
            *out = rank;
        }
    free(steps);
    return st;
}

/* t->from of `root` is that of all, and so is the run's folder, as any may be rank 0 later. What is
 * sent of the beginning is how long ago it was: clocks of hosts differ. */
static status share_standing(training *t, int root)
{
    run_standing *from = &t->from;
    int64_t now_ns = clock_now_ns();
    from->began_ns = now_ns - from->began_ns;
    TRY(process_group_broadcast(t->rank.group, from, sizeof *from, DTYPE_U8, root, NULL));
    from->began_ns = now_ns - from->began_ns;
    return process_group_broadcast(t->rank.group, t->folder.path, sizeof t->folder.path, DTYPE_U8,
                                   root, NULL);
}

/* Not 0, which may be what an aborted collective leaves. */
enum { FIRST_REFUSED = -1, FIRST_DID = 1 };

/* Rank 0 does it, and the others give or take what they have of its state; if it fails, rank 0 says
 * why, and the others end with `refusal`. */
static status first_does(training *t, status (*does)(training *), const char *refusal)
{
    status_kept why;
    strategy *state = t->rank.strategy;
    if (t->rank.place.rank != 0)
        TRY(strategy_serve_state(state));
    status st = t->rank.place.rank == 0 ? does(t) : STATUS_OK;
    status_keep(&why);
    int64_t done = st == STATUS_OK ? FIRST_DID : FIRST_REFUSED;
    status told = t->rank.place.rank == 0 ? strategy_end_state(state) : STATUS_OK;
    if (told == STATUS_OK)
        told = process_group_broadcast(t->rank.group, &done, 1, DTYPE_I64, 0, NULL);
    if (st != STATUS_OK) {
        status_restore(&why);
        return st;
    }
    TRY(told);
    t->refused = done == FIRST_REFUSED;
    return t->refused ? FAIL(STATUS_PEER, "%s", refusal) : STATUS_OK;
}

static status continue_folder(training *t)
{
    TRY(run_folder_continue(&t->rank, &t->trainer.at, &t->folder));
    if (!t->folder.is_dry)
        run_log_open(t->folder.path);
    return STATUS_OK;
}

/* Another number of ranks goes on: what no step of the epoch has used is dealt out anew, each image
 * once. */

static void say_change(const rank_context *rank, const run_world *from, const position *at,
                       uint32_t left, const sampler_plan *plan)
{
    int64_t was = from->size, batch_size = from->batch_size;
    int now = rank->place.world_size;
    LOG_V("world size %" PRId64 " -> %d: batch %" PRId64 " -> %d of each rank, %" PRId64
          " -> %" PRId64 " of all (--elastic-batch=%s)",
          was, now, batch_size, rank->settings.batch_size, was * batch_size * from->accum,
          rank_context_global_batch(rank), rank_settings_elastic_batch(rank->opts));
    if (rank->opts->scale_lr)
        LOG_V("--lr %g x %" PRId64 " ranks -> %g x %d ranks: the learning rate is %g, was %g",
              rank->settings.lr, was, rank->settings.lr, now, rank->settings.schedule.lr, from->lr);
    if (at->epoch_first > 0 && left > 0)
        LOG_V("world size %" PRId64 " -> %d: %u images of epoch %" PRId64
              " are left and are redistributed (%u repeated, %u dropped)",
              was, now, left, at->epoch + 1, plan->padded, plan->dropped);
}

/* In result.json. */
static status note_change(training *t, const run_world *from, const position *at, uint32_t left,
                          const sampler_plan *plan)
{
    const rank_context *rank = &t->rank;
    json_t *one = json_object();
    if (t->result.changes == NULL)
        t->result.changes = json_array();
    json_object_set_new(one, "round", json_integer(rank->place.round));
    json_object_set_new(one, "step", json_integer(at->step));
    json_object_set_new(one, "epoch", json_integer(at->epoch + 1));
    json_object_set_new(one, "world_size_before", json_integer(from->size));
    json_object_set_new(one, "world_size", json_integer(rank->place.world_size));
    json_object_set_new(one, "batch_size", json_integer(rank->settings.batch_size));
    json_object_set_new(one, "global_batch", json_integer(rank_context_global_batch(rank)));
    json_object_set_new(one, "lr", json_real(rank->settings.schedule.lr));
    json_object_set_new(one, "images_left", json_integer(left));
    json_object_set_new(one, "repeated", json_integer(plan->padded));
    json_object_set_new(one, "dropped", json_integer(plan->dropped));
    return json_array_append_new(t->result.changes, one) == 0
               ? STATUS_OK
               : FAIL(STATUS_NO_MEMORY, "a change of the number of ranks");
}

/* Moves *at, where the former world stood, to where this one begins. The same on all ranks. */
static status change_world(training *t, const run_world *from, position *at)
{
    const rank_context *rank = &t->rank;
    sampler_plan plan;
    sampler_options rest = {.samples = rank->train_set.count,
                            .first = (uint32_t)at->epoch_first,
                            .world_size = (int)from->size,
                            .drop_last = rank->opts->drop_last};
    double taken = (double)at->step_in_epoch * (double)from->batch_size * (double)from->accum;
    rest.first = taken < (double)UINT32_MAX ? sampler_used(&rest, (uint64_t)taken) : rest.samples;
    rest.world_size = rank->sharing.world_size;
    TRY(sampler_check(&rest, &plan));
    at->epoch_first = rest.first;
    at->step_in_epoch = 0;
    at->world_changes++;
    if (rank->place.rank != 0)
        return STATUS_OK;
    say_change(rank, from, at, rest.samples - rest.first, &plan);
    return note_change(t, from, at, rest.samples - rest.first, &plan);
}

static void say_round(training *t, int root)
{
    const rank_context *rank = &t->rank;
    const position *at = &t->trainer.at;
    int64_t now_ns = clock_now_ns();
    char place[PROGRESS_PLACE_BYTES], took[96] = "";
    progress_name_place(at->epoch, at->step_in_epoch, place);
    if (t->left_ns != 0)
        snprintf(took, sizeof took, "; left in %.2f s, waited %.2f s, opened in %.2f s",
                 clock_seconds(t->left_ns - t->failed_ns), clock_seconds(t->joined_ns - t->left_ns),
                 clock_seconds(now_ns - t->joined_ns));
    progress_line(&t->progress,
                  "round %" PRId64 ": %d ranks go on after %s (step %" PRId64
                  ") with the state of rank %d, in the processes that live%s",
                  rank->place.round, rank->place.world_size, place, at->step, root, took);
}

/* Whether `st` is what a lost rank makes of another one's wait. */
static bool means_lost_rank(status st)
{
    return st == STATUS_PEER || st == STATUS_TIMEOUT || st == STATUS_REFUSED;
}

/* Whether all ranks have paused, with something left to train. */
static bool has_paused(const training *t)
{
    return t->rank.stop.paused && !t->rank.stop.agreed && !trainer_is_done(&t->trainer);
}

/* Whether this rank goes on in its process after the round has ended with `st`: all have paused, or
 * what it waited for failed because another rank was lost or the agent has ended the round; and
 * what the mode keeps is whole on each rank. A failure of its own ends it. */
static bool rounds_survives(const training *t, status st)
{
    if (t->link == NULL || t->refused || !rank_context_outlives_rounds(t->rank.opts))
        return false;
    return st == STATUS_OK ? has_paused(t) : means_lost_rank(st);
}

/* The training is done, and rank 0 is about to say what it has come to: no newcomer is taken in
 * any more, or it would be said twice. Returns when that is so for all ranks. */
static status rounds_finish(training *t)
{
    if (t->link == NULL)
        return STATUS_OK;
    agent_link_finish(t->link);
    return process_group_barrier(t->rank.group);
}

/* Keeps the state after the last completed step; the rank is still open. */
static status rounds_keep(training *t)
{
    position at = t->trainer.began;
    step_graphs_close(&t->trainer.graphs); /* they hold the communicator that is to end */
    rank_context_close_group(&t->rank);
    TRY(recover(&t->rank));
    if (!t->runs) /* the round has not begun: what was kept before it still counts */
        return STATUS_OK;
    step_commits commit;
    TRY(strategy_committed(t->rank.strategy, &commit));
    at.step += commit.steps;
    at.step_in_epoch += commit.steps;
    at.epoch_loss += commit.loss;
    at.epoch_samples += commit.images;
    if (t->trainer.records.late.number <= at.step) /* else it has not been taken */
        (void)run_records_say(&t->trainer.records);
    if (commit.images > 0) /* else the epoch has not begun in this round */
        at.epoch_s =
            clock_seconds(clock_now_ns() - t->trainer.epoch_began_ns - t->trainer.tested_ns);
    at.epoch_timed += commit.images;
    run_standing here = {at, rank_context_world(&t->rank), t->result.best, "",
                         t->progress.started_ns};
    memcpy(here.sums, t->rank.sums, sizeof here.sums);
    return kept_state_take(&t->rank, &here, commit.updates + commit.steps, &t->kept);
}

/* The round is closed: tells the agent, and waits for the place in the next one, which is set in
 * *place. */
static status rounds_await_next(training *t, rendezvous_place *place)
{
    int64_t was = place->round;
    TRY(agent_link_left(t->link, t->kept.step, !t->runs));
    t->left_ns = clock_now_ns();
    TRY(agent_link_await_join(t->link, &t->signals.asked_by, place));
    t->joined_ns = clock_now_ns();
    LOG_D("round %" PRId64 " after round %" PRId64 ": rank %d of %d", place->round, was,
          place->rank, place->world_size);
    return STATUS_OK;
}

/* How a run starts. */

static status read_settings(training *t)
{
    rank_context *rank = &t->rank;
    inject *fault = &t->trainer.fault;
    TRY(interval_parse("--save-every", 1, rank->opts->save_every, &t->trainer.save_every));
    TRY(inject_parse(rank->opts->inject, fault));
    int64_t attempt = rank->place.round > 0 ? rank->place.round - 1 : rank->place.restart_count;
    if (attempt > 0 && fault->attempt != attempt) /* fewer ranks may be left than it names */
        fault->kind = INJECT_NONE;
    TRY(fault_aim(fault, rank->place.rank, rank->place.world_size, (int)attempt));
    rank->timeline.slow_ms = fault->kind == INJECT_SLOW ? fault->ms : 0;
    return STATUS_OK;
}

status train_check_init(const options *opts, int *exit_code)
{
    model_kind kind = MODEL_MLP;
    if (opts->init == NULL)
        return STATUS_OK;
    *exit_code = EXIT_CODE_DATA;
    TRY(checkpoint_model_kind(opts->init, &kind));
    *exit_code = EXIT_CODE_USAGE;
    if (strcmp(model_kind_name(kind), opts->model) != 0)
        return FAIL(STATUS_INVALID,
                    "--init: %s holds the model %s, and this run trains %s: give --model=%s",
                    opts->init, model_kind_name(kind), opts->model, model_kind_name(kind));
    return STATUS_OK;
}

/* --init: rank 0's weights, of PyTorch or of another run. */
static status load_weights(const rank_context *rank, int *exit_code)
{
    const char *path = rank->opts->init;
    bool finite = true;
    TRY(train_check_init(rank->opts, exit_code));
    *exit_code = EXIT_CODE_DATA;
    TRY(checkpoint_load_model(path, rank->net, strategy_access(rank->strategy)));
    TRY(network_is_finite(rank->net, &finite));
    return finite ? STATUS_OK
                  : FAIL(STATUS_INVALID,
                         "--init: %s holds a weight that is not finite: give another file", path);
}

static status resume(training *t)
{
    checkpoint_state was = {0}, best = {0};
    TRY(run_folder_resume(&t->folder, &t->rank, &was, &best));
    run_standing *from = &t->from;
    from->at = was.at;
    from->world = was.world;
    from->best = (test_found){best.test, best.at.step, best.at.epoch + (best.at.step_in_epoch > 0)};
    memcpy(from->sums, was.sums, sizeof from->sums);
    return STATUS_OK;
}

/* In the folder's log: when the run began or went on, and by which command. */
static void log_start(const rank_context *rank, const position *at)
{
    char place[PROGRESS_PLACE_BYTES], again[48] = "";
    int restarts = rank->place.restart_count;
    char *words = shell_words_line(rank->opts->command_line);
    progress_name_place(at->epoch, at->step_in_epoch, place);
    if (restarts > 0)
        snprintf(again, sizeof again, ", restart %d", restarts);
    run_log_line("%s%s%s: %s", at->step > 0 ? "the run resumes after " : "the run begins",
                 at->step > 0 ? place : "", again, words != NULL ? words : "");
    free(words);
}

/* Rank 0 opens the run's folder and what it starts from: nothing, weights or a checkpoint. */
static status open_start(training *t)
{
    rank_context *rank = &t->rank;
    if (rank->opts->init != NULL)
        TRY(load_weights(rank, &t->init_code));
    t->init_code = 0;
    TRY(run_folder_open(rank, &t->folder));
    if (!t->folder.is_dry)
        run_log_open(t->folder.path);
    return run_folder_resume_mode(rank) != RESUME_NEVER ? resume(t) : STATUS_OK;
}

/* In --event-log, with the times of a change of rounds. */
static status log_opening(training *t)
{
    bool was_in_one = t->left_ns != 0;
    event_log_opening opening = {
        .left_s = was_in_one ? clock_seconds(t->left_ns - t->failed_ns) : -1,
        .waited_s = was_in_one ? clock_seconds(t->joined_ns - t->left_ns) : -1,
        .opened_s = clock_seconds(clock_now_ns() - t->trainer.records.started_ns)};
    TRY(agreement_on_state(&t->rank, strategy_shared_optimizer(t->rank.strategy), &opening.state));
    run_records_round(&t->trainer.records, &t->trainer.at, &opening);
    return STATUS_OK;
}

/* All ranks go on from where `root` stands, whose state a round has kept; -1: rank 0 has opened the
 * run's folder. */
static status go_on_from(training *t, int root)
{
    rank_context *rank = &t->rank;
    const run_standing *from = &t->from;
    t->trainer.at = from->at;
    t->result.best = from->best;
    t->progress.started_ns = from->began_ns;
    if (root >= 0 && rank->place.rank == 0)
        say_round(t, root);
    run_folder_continue_sums(rank, from->sums);
    if (from->world.size > 0 && from->world.size != rank->sharing.world_size)
        TRY(change_world(t, &from->world, &t->trainer.at));
    if (root >= 0)
        return first_does(t, continue_folder, "rank 0 cannot go on in the run's folder");
    if (rank->place.rank == 0)
        log_start(rank, &t->trainer.at);
    return STATUS_OK;
}

/* The ranks have opened a round. If any of them has the state of an earlier one, all take the
 * newest, from the lowest rank that has it, and rank 0 goes on in the run's folder; else all take
 * what rank 0 starts from. */
static status begin(training *t)
{
    rank_context *rank = &t->rank;
    int root = -1;
    t->from = (run_standing){.began_ns = t->progress.started_ns};
    if (t->link != NULL)
        TRY(find_newest(t, &root));
    bool anew = root < 0 && rank->opts->init == NULL &&
                run_folder_resume_mode(rank) == RESUME_NEVER; /* all have the same already */
    if (root < 0)
        TRY(first_does(t, open_start, "rank 0 has refused to start the run"));
    if (rank->place.rank == root) {
        t->from = t->kept.place; /* the rank's own stays what it is until it keeps another */
        TRY(kept_state_restore(&t->kept, rank));
    }
    if (t->link != NULL || !anew)
        TRY(share_standing(t, root < 0 ? 0 : root));
    if (!anew)
        TRY(strategy_share_state(rank->strategy, root < 0 ? 0 : root));
    TRY(go_on_from(t, root));
    t->trainer.began = t->trainer.at;
    strategy_commit_begin(rank->strategy);
    TRY(strategy_commit_confirm(rank->strategy, 0));
    t->runs = true;
    return log_opening(t);
}

/* What a run leaves and says at its end. */

/* Whether the run's folder holds what the run has come to. Says so if it does not, and if
 * checkpoints are missing that later ones have made up for. */
static bool check_saved(training *t)
{
    if (checkpoint_check_published(t->folder.path, t->trainer.at.step) != STATUS_OK) {
        LOG_E("the end of the run is not on disk: %s", status_text());
        t->output_failed = true;
        return false;
    }
    if (t->result.failed_checkpoints > 0)
        LOG_W("%d of this run's checkpoints could not be written; the last one is there, whole",
              t->result.failed_checkpoints);
    return true;
}

/* If the saved model is not the best one. */
static void say_best(training *t)
{
    const test_found *best = &t->result.best;
    if (!run_folder_takes_checkpoints(t->rank.opts) || best->test.images == 0)
        return;
    if (t->folder.best_step != best->step) {
        LOG_E("the best checkpoint, of step %lld, is not on disk", (long long)best->step);
        t->output_failed = true;
    } else if (best->step != t->trainer.at.step) {
        char what[128], path[FILE_PATH_BYTES + 64];
        snprintf(what, sizeof what, "best: %.2f%% of the %s images right, in epoch %lld, step %lld",
                 100.0 * (double)best->test.correct / (double)best->test.images,
                 t->rank.val_set.count > 0 ? "validation" : "test", (long long)best->epoch,
                 (long long)best->step);
        snprintf(path, sizeof path, "%s/%s/%s", t->folder.path, CHECKPOINT_FOLDER, CHECKPOINT_BEST);
        progress_path(&t->progress, what, path);
    }
}

/* All that --quiet leaves of the log, as eval prints it. */
static void print_result_line(const training *t)
{
    const evaluation *test = &t->result.test;
    char name[FILE_PATH_BYTES];
    printable_copy(PRINTABLE_LINE, t->folder.path, name, sizeof name);
    printf("%s: %s, ", t->rank.opts->dry_run ? "dry run" : name,
           model_kind_name(t->rank.settings.model));
    if (test->images > 0)
        printf("accuracy %.2f%% (%lld/%lld), loss %.4f\n", 100 * evaluation_accuracy(test),
               (long long)test->correct, (long long)test->images, test->loss);
    else
        printf("train loss %.4f\n", t->result.last_loss);
}

/* Rank 0's: the JSON line, on stdout if it was asked for and always in the run's folder, and what
 * was saved. */
static status run_end_print(training *t)
{
    char *line = NULL, path[FILE_PATH_BYTES];
    TRY(result_print(&t->result, &t->rank, &line));
    status st = run_folder_write_result(&t->folder, line);
    if (t->rank.opts->json)
        printf("%s\n", line);
    else if (t->rank.opts->quiet && !t->rank.stop.diverged)
        print_result_line(t);
    free(line);
    if (st != STATUS_OK) {
        LOG_E("results not written: %s", status_text());
        t->output_failed = true;
    }
    if (run_folder_takes_checkpoints(t->rank.opts) && !t->rank.stop.diverged && check_saved(t) &&
        file_join(t->folder.path, CHECKPOINT_MODEL, path) == STATUS_OK)
        progress_path(&t->progress, "saved", path);
    say_best(t);
    if (!t->rank.stop.diverged && t->result.epochs > 0)
        progress_end(&t->progress, t->result.epochs);
    return STATUS_OK;
}

/* Each image's logits are one rank's, and on all others they are zero: now all ranks have them. */
static status gather_logits(rank_context *rank, float *logits)
{
    size_t count = (size_t)rank->test_set.count * NETWORK_CLASSES;
    return process_group_all_reduce(rank->group, logits, count, DTYPE_F32, REDUCE_SUM, NULL);
}

/* eval.json: what the run's last test says of each class. All ranks call it. A run without it is
 * still a run. */
static status run_end_write_eval(training *t)
{
    rank_context *rank = &t->rank;
    const float *logits = t->trainer.logits;
    if (logits == NULL || t->result.test.images == 0 || rank->stop.diverged)
        return STATUS_OK;
    TRY(gather_logits(rank, t->trainer.logits));
    if (rank->place.rank != 0)
        return strategy_serve_state(rank->strategy);
    const eval_subject subject = {.net = rank->net,
                                  .access = strategy_access(rank->strategy),
                                  .step = t->trainer.at.step,
                                  .location = &rank->location,
                                  .set = &rank->test_set,
                                  .logits = logits};
    const tally counted = tally_of(&rank->test_set, logits);
    json_t *document = NULL;
    status st = eval_document_make(&subject, &counted, &document);
    if (st == STATUS_OK)
        st = eval_document_save(document, t->folder.path);
    if (st != STATUS_OK)
        LOG_W("%s is not written: %s", RUN_FILE_EVAL, status_text());
    json_decref(document);
    return strategy_end_state(rank->strategy);
}

/* Rank 0's: the page of what the run's folder holds; a run without it is still a run. */
static void run_end_write_report(training *t)
{
    char path[FILE_PATH_BYTES];
    const char *folder = t->folder.path;
    if (t->folder.is_dry)
        return;
    metrics_close(t->trainer.records.metrics);
    t->trainer.records.metrics = NULL;
    if (file_join(folder, RUN_FILE_REPORT, path) != STATUS_OK ||
        run_page_write(path, &folder, 1) != STATUS_OK)
        LOG_W("no report is written: %s", status_text());
    else
        progress_path(&t->progress, "report", path);
}

/* "trace.json" -> "trace.html". */
static status name_trace_page(const char *trace_path, char page[FILE_PATH_BYTES])
{
    size_t length = strlen(trace_path);
    bool is_json = length > 5 && strcmp(trace_path + length - 5, ".json") == 0;
    int n = snprintf(page, FILE_PATH_BYTES, "%.*s.html", (int)(is_json ? length - 5 : length),
                     trace_path);
    return n < FILE_PATH_BYTES ? STATUS_OK : FAIL(STATUS_INVALID, "--trace is too long");
}

/* The report is there already. */
static status draw_steps(const training *t)
{
    char path[FILE_PATH_BYTES];
    const char *folder = t->folder.path;
    TRY(file_join(folder, RUN_FILE_TRACE, path));
    TRY(trace_picture_write_steps(t->rank.opts->trace, path));
    TRY(file_join(folder, RUN_FILE_REPORT, path));
    return file_exists(path) ? run_page_write(path, &folder, 1) : STATUS_OK;
}

/* Of the rank that has written the trace: FILE.html beside it, and a picture of some steps for the
 * run's report. A run without them is still a run. */
static void run_end_draw_trace(training *t)
{
    char page[FILE_PATH_BYTES];
    status st = name_trace_page(t->rank.opts->trace, page);
    if (st == STATUS_OK)
        st = trace_picture_page_write(t->rank.opts->trace, page);
    if (st == STATUS_OK)
        progress_path(&t->progress, "as a page", page);
    if (st == STATUS_OK && t->rank.place.rank == 0 && !t->folder.is_dry)
        st = draw_steps(t);
    if (st != STATUS_OK)
        LOG_W("the trace is not drawn: %s", status_text());
}

static void say_how_to_continue(char *path)
{
    char *words[] = {"mnist_ddp", "--run-dir", path, "--resume", NULL};
    char *line = shell_words_line(words);
    if (line != NULL)
        LOG_W("to continue: %s", line);
    free(line);
}

/* After a stop that a signal has asked for. */
static void run_end_say_stopped(training *t)
{
    const position *at = &t->trainer.at;
    if (t->rank.place.rank != 0)
        return;
    int number = rank_signals_asked(&t->signals);
    char place[PROGRESS_PLACE_BYTES];
    progress_name_place(at->epoch, at->step_in_epoch, place);
    LOG_W("stopped after %s: %s%s asked for it", place,
          number != 0                       ? "SIG"
          : agent_link_wants_pause(t->link) ? "its agent"
                                            : "a signal to another rank",
          number != 0 ? sigabbrev_np(number) : "");
    if (!run_folder_takes_checkpoints(t->rank.opts))
        LOG_W("nothing was saved, as %s says",
              t->rank.opts->dry_run ? "--dry-run" : "--no-save-model");
    else if (check_saved(t))
        say_how_to_continue(t->folder.path);
    run_end_write_report(t);
}

/* "nan", "inf"; a loss that is finite here is not on another rank. */
static const char *name_of(double loss)
{
    return isnan(loss) ? "nan" : isinf(loss) ? "inf" : "not finite";
}

/* Not every mode knows the norm of all gradients. */
static bool can_clip(const rank_context *rank)
{
    options with = *rank->opts;
    with.clip_grad_norm = 1;
    return strategy_check(&with, rank->place.world_size) == STATUS_OK;
}

/* Every rank leaves an error file; rank 0 speaks for all. */
static void run_end_say_diverged(training *t)
{
    rank_context *rank = &t->rank;
    const trainer *at = &t->trainer;
    int64_t step = at->diverged_step, epoch = at->at.epoch + (at->at.step_in_epoch > 0);
    const result *r = &t->result;
    double loss = !isfinite(r->last_loss)         ? r->last_loss
                  : !isfinite(r->validation.loss) ? r->validation.loss
                                                  : r->test.loss;
    bool later = rank->dev->ops->accelerator != NULL || rank->opts->sync_every > 1;
    const char *when = later ? "by" : "after";
    status st =
        FAIL(STATUS_INVALID,
             "%s is %s %s step %lld (epoch %lld; lr %g, %s): training ends, as no step after it "
             "learns anything; give a smaller --lr%s",
             at->not_finite, name_of(loss), when, (long long)step, (long long)epoch,
             schedule_lr(&rank->schedule, step > 0 ? step - 1 : 0),
             optimizer_kind_name(rank->settings.optimizer.kind),
             can_clip(rank) ? ", a --warmup-steps, or --clip-grad-norm" : " or a --warmup-steps");
    failure_write_error_file(st, rank->place.rank, EXIT_CODE_DIVERGED);
    if (rank->place.rank != 0)
        return;
    LOG_E("%s", status_text());
    if (t->folder.saved_step > 0)
        LOG_W("the last good checkpoint, of step %lld, is kept: %s/model.safetensors",
              (long long)t->folder.saved_step, t->folder.path);
    else
        LOG_W("no checkpoint was written before it");
}

/* The run. */

/* A run without its config.json is still a run. */
static void write_config(training *t, json_t *run)
{
    const rank_context *rank = &t->rank;
    const run_start start = {rank->opts, run, t->result.date, t->trainer.at.step};
    if (rank->place.rank == 0 && !t->folder.is_dry &&
        run_config_write(t->folder.path, &start) != STATUS_OK)
        LOG_W("settings not written: %s", status_text());
}

/* As write_config: a run whose numbers are not kept is still a run. */
static void open_metrics(training *t)
{
    const rank_context *rank = &t->rank;
    const metrics_options settings = {.folder = t->folder.path,
                                      .step = t->trainer.at.step,
                                      .epochs = t->trainer.at.epoch,
                                      .started_ns = t->trainer.records.started_ns};
    if (rank->place.rank == 0 && !t->folder.is_dry &&
        metrics_open(&settings, &t->trainer.records.metrics) != STATUS_OK)
        LOG_W("no metrics are written: %s", status_text());
}

/* A trace that cannot be written does not undo what the run has done, but shows in its exit code.
 */
static void write_trace(training *t, trace_ending ending)
{
    rank_context *rank = &t->rank;
    int ranks = 0;
    if (run_trace_write(&rank->trace, rank->dev->stream_trace, ending, &ranks) != STATUS_OK) {
        LOG_E("trace not written: %s", status_text());
        t->output_failed = true;
    }
    if (ranks > 0 && rank->place.rank > 0)
        LOG_W("rank 0 is gone: rank %d has written the trace, %s", rank->place.rank,
              rank->opts->trace);
    char what[48];
    snprintf(what, sizeof what, "trace (%d of %d ranks)", ranks, rank->place.world_size);
    if (ranks > 0)
        progress_path(&t->progress, what, rank->opts->trace);
    if (ranks > 0)
        run_end_draw_trace(t);
}

static status leave(training *t, trace_ending ending)
{
    write_trace(t, ending);
    return rank_context_leave(&t->rank);
}

/* "staleness of 1874 pushes: 0: 12, 1: 1850, 2: 12" */
static void say_staleness(training *t)
{
    json_t *s = t->rank.place.rank == 0 ? strategy_outcome(t->rank.strategy) : NULL, *n;
    char text[512] = "";
    size_t i, length = 0;
    json_array_foreach(json_object_get(s, "histogram"), i, n) if (length < sizeof text) length +=
        (size_t)snprintf(text + length, sizeof text - length, "%s%zu: %lld", i > 0 ? ", " : "", i,
                         (long long)json_integer_value(n));
    if (s != NULL)
        progress_line(&t->progress, "staleness of %lld pushes: %s",
                      (long long)json_integer_value(json_object_get(s, "pushes")), text);
    json_decref(s);
}

/* The result, by rank 0. In an elastic run the others may be lost after it. */
static status finish(training *t, trace_ending ending)
{
    bool says = t->rank.place.rank == 0;
    TRY(result_finish(&t->result, &t->rank));
    TRY(run_end_write_eval(t));
    TRY(rounds_finish(t));
    if (says) {
        TRY(run_folder_check_own(&t->folder, &t->rank));
        say_staleness(t);
        TRY(run_end_print(t));
        run_end_write_report(t);
    }
    status st = leave(t, ending);
    if (t->link == NULL || !says || !means_lost_rank(st))
        return st;
    LOG_W("the run is done, but a rank was lost at its end: %s", status_text());
    return STATUS_OK;
}

static void say_start(training *t, const json_t *run)
{
    const options *o = t->rank.opts;
    const position *at = &t->trainer.at;
    if (t->rank.place.rank == 0)
        progress_header(&t->progress, t->folder.path, at->epoch, at->step_in_epoch);
    if (t->rank.place.rank == 0 && o->init != NULL && at->step == 0)
        progress_path(&t->progress, "starting from", o->init);
    if (t->rank.place.rank == 0 && o->global_batch_size > 0 &&
        rank_context_global_batch(&t->rank) != o->global_batch_size) /* only if it is elastic */
        progress_line(&t->progress, "%d ranks cannot share --global-batch-size=%lld: it is %lld",
                      t->rank.place.world_size, (long long)o->global_batch_size,
                      (long long)rank_context_global_batch(&t->rank));
    if (o->explain && t->rank.place.rank == 0)
        explanation_say(&t->progress, run);
    if (o->dry_run)
        progress_line(&t->progress, "dry run: one step and one test, nothing is saved");
}

/* What the run is, as its folder and its log have it. */
static status tell_start(training *t)
{
    json_t *run = json_object();
    status st = result_describe(run, &t->rank);
    if (st == STATUS_OK) { /* the last wait for other ranks before the first step */
        rank_signals_train(&t->signals);
        write_config(t, run);
        open_metrics(t);
        say_start(t, run);
    }
    json_decref(run);
    return st;
}

static status run(training *t, int *exit_code)
{
    *exit_code = EXIT_CODE_USAGE;
    TRY(read_settings(t));
    *exit_code = EXIT_CODE_CHECKPOINT;
    status st = begin(t);
    if (t->init_code != 0)
        *exit_code = t->init_code;
    TRY(st);
    *exit_code = EXIT_CODE_INTERNAL;
    TRY(tell_start(t));
    trace_end(t->rank.trace.lane); /* the setup is over */
    TRY(trainer_run(&t->trainer));
    progress_close_bar(&t->progress);
    bool diverged = t->rank.stop.diverged;
    if (t->rank.stop.agreed && !diverged) {
        run_end_say_stopped(t);
        return leave(t, TRACE_STOPPED);
    }
    if (has_paused(t))
        return STATUS_OK;
    if (diverged)
        run_end_say_diverged(t);
    return finish(t, diverged ? TRACE_STOPPED : TRACE_DONE);
}

/* Says more of a failure than its message, while the rank is still open. */
static status explain(training *t, status st)
{
    status_kept why;
    st = strategy_explain(t->rank.strategy, st);
    st = failure_explain(&t->rank, st);
    status_keep(&why);
    (void)run_records_say(&t->trainer.records);
    write_trace(t, TRACE_FAILED);
    status_restore(&why);
    return st;
}

static status run_or_explain(training *t, int *exit_code)
{
    rank_signals_set_rank(&t->signals, &t->rank);
    status st = run(t, exit_code);
    t->survives = rounds_survives(t, st);
    if (st != STATUS_OK && !t->survives)
        st = explain(t, st);
    if (means_lost_rank(st) && t->link != NULL && !t->refused &&
        !rank_context_outlives_rounds(t->rank.opts) && run_folder_takes_checkpoints(t->rank.opts))
        LOG_W("--mode=%s, --backend=%s: this process cannot go on with other ranks; new ones go on "
              "from the newest checkpoint",
              strategy_of(t->rank.opts)->name, t->rank.opts->backend);
    rank_signals_set_rank(&t->signals, NULL);
    return st;
}

static status open_and_run(training *t, const options *opts, int *exit_code)
{
    status st = rank_context_open(opts, &t->place, t->link, &t->rank, exit_code);
    t->survives = st != STATUS_OK && rounds_survives(t, st);
    if (st != STATUS_OK)
        return t->survives ? st : failure_explain(&t->rank, st);
    t->survives = false;
    progress_open(&t->rank, &t->signals, t->trainer.records.started_ns, &t->progress);
    TRY(trainer_open(&t->rank, &t->trainer));
    return run_or_explain(t, exit_code);
}

/* All that belongs to one round. */
static void close_round(training *t)
{
    progress_close_bar(&t->progress);
    trainer_close(&t->trainer);
    rank_context_close_round(&t->rank);
    run_folder_close(&t->folder);
}

static void begin_round(training *t, int64_t started_ns)
{
    t->trainer = (trainer){
        .signals = &t->signals,
        .folder = &t->folder,
        .result = &t->result,
        .records = {.progress = &t->progress, .result = &t->result, .started_ns = started_ns}};
    t->progress = (progress){0};
    t->runs = t->survives = false;
}

/* The numbers of a round are those of a start of the run; what is known of the run stays. */
static void forget_round(training *t)
{
    result known = {.best = t->result.best,
                    .failed_checkpoints = t->result.failed_checkpoints,
                    .changes = json_incref(t->result.changes)};
    memcpy(known.date, t->result.date, sizeof known.date);
    result_close(&t->result);
    t->result = known;
}

/* In the log, as main() does at the start. */
static void name_rank(const rendezvous_place *place)
{
    char prefix[32] = "";
    if (place->world_size > 1)
        snprintf(prefix, sizeof prefix, "rank %d", place->rank);
    log_set_prefix(prefix);
}

/* After a round that this process survives: keeps the state, and waits for the next. */
static status pass_to_next_round(training *t, status ended)
{
    t->failed_ns = clock_now_ns();
    if (ended != STATUS_OK)
        LOG_W("round %lld ends for rank %d: %s", (long long)t->place.round, t->place.rank,
              status_text());
    status st = rounds_keep(t);
    close_round(t);
    run_log_leave();
    forget_round(t);
    if (st == STATUS_OK)
        st = rounds_await_next(t, &t->place);
    name_rank(&t->place);
    return st;
}

static status run_rounds(training *t, const options *opts, int *exit_code)
{
    TRY(rank_signals_start(&t->signals));
    TRY(agent_link_open(&t->link));
    for (;;) {
        agent_link_begin_round(t->link, t->place.round, &t->place.breaker);
        status st = open_and_run(t, opts, exit_code);
        if (!t->survives)
            return st;
        *exit_code = EXIT_CODE_RENDEZVOUS;
        TRY(pass_to_next_round(t, st));
        begin_round(t, t->joined_ns);
    }
}

int train_command(const options *opts, const rendezvous_place *place, int64_t started_ns)
{
    training t = {.folder.lock_fd = -1, .kept.step = KEPT_STATE_NONE, .place = *place};
    int exit_code = EXIT_CODE_INTERNAL;
    begin_round(&t, started_ns);
    run_config_date(t.result.date);
    status st = run_rounds(&t, opts, &exit_code);
    bool stopped = t.rank.stop.agreed, diverged = t.rank.stop.diverged;
    close_round(&t);
    rank_context_close(&t.rank);
    rank_signals_stop(&t.signals);
    agent_link_close(t.link);
    kept_state_free(&t.kept);
    result_close(&t.result);
    if (st != STATUS_OK) {
        exit_code = t.refused ? EXIT_CODE_PEER : exit_code_failed(st, exit_code);
        failure_write_error_file(st, t.place.rank, exit_code);
        return exit_code;
    }
    if (diverged)
        return EXIT_CODE_DIVERGED;
    if (t.output_failed)
        return EXIT_CODE_CHECKPOINT;
    return stopped ? EXIT_CODE_PREEMPTED : EXIT_SUCCESS;
}
