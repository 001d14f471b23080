/* Training as one rank: the loop, and what happens between epochs. */
#include "app/commands.h"
#include "app/evaluate.h"
#include "app/exit_codes.h"
#include "app/job.h"
#include "app/memory_use.h"
#include "app/report.h"
#include "app/run_folder.h"
#include "app/step_graphs.h"

#include "base/log.h"
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct training {
    job j;
    report rep;
    char run_dir[FILE_PATH_BYTES]; /* rank 0's */
    progress at;
    step_graphs graphs;
    run_results results;
    double epoch_loss;      /* sum over the samples of the epoch that this rank trained on */
    uint32_t epoch_samples; /* and how many they are */
    int64_t started_ns;
    bool stepped; /* the first optimizer step is done */
    bool checkpoint_failed;
} training;

/* StepLR with step_size 1, multiplied up as PyTorch does it. */
static double lr_of_epoch(const training *t, int64_t epoch)
{
    double lr = t->j.lr;
    for (int64_t i = 0; i < epoch; i++)
        lr *= t->j.opts->gamma;
    return lr;
}

/* A stretch of the host's time; an accelerator works meanwhile. */
static void mark(training *t, phase which)
{
    if (t->j.dev->stream == NULL)
        phases_mark(&t->results.time, which);
}

/* One optimizer step: done when it returns, or enqueued on an accelerator. */
static status enqueue_step(void *ctx, int step)
{
    training *t = ctx;
    job *j = &t->j;
    batch in;
    int micro_steps = loader_micro_steps(j->load, step);
    for (int micro = 0; micro < micro_steps; micro++) {
        bool last = micro + 1 == micro_steps; /* buckets leave while it runs backward */
        TRY(loader_next(j->load, &in));
        mark(t, PHASE_DATA);
        TRY(network_forward(j->net, &in, NETWORK_TRAIN));
        mark(t, PHASE_FORWARD);
        TRY(network_backward(j->net, micro > 0, last ? ddp_on_grad_ready : NULL, j->reducer));
        mark(t, PHASE_BACKWARD);
    }
    TRY(ddp_wait(j->reducer)); /* gradients are now the mean over all ranks */
    mark(t, PHASE_COMM_EXPOSED);
    TRY(optimizer_step(j->opt, j->numbers));
    mark(t, PHASE_OPTIMIZER);
    return STATUS_OK;
}

static status train_step(training *t, int step, float lr)
{
    job *j = &t->j;
    step_plan plan = {.scale_loss = j->dev->precision == PRECISION_F16};
    if (j->dev->stream == NULL)
        phases_start(&t->results.time);
    loader_begin_step(j->load, step, &plan);
    optimizer_begin_step(j->opt, lr, &plan);
    TRY(j->dev->ops->begin_step(j->dev, &plan, j->numbers));
    int samples = loader_step_samples(j->load, step);
    TRY(step_graphs_run(&t->graphs, samples, step, enqueue_step, t));
    t->epoch_samples += (uint32_t)samples;
    return STATUS_OK;
}

/* What follows a step on the host: the first one's end, and the log. */
static status follow_step(training *t, int step, int steps)
{
    job *j = &t->j;
    if (!t->stepped) {
        TRY(j->dev->ops->synchronize(j->dev));
        t->stepped = true;
        t->results.setup_s = clock_seconds(clock_now_ns() - t->started_ns);
    }
    t->at.step++;
    if (!report_wants_step(&t->rep, step, steps))
        return STATUS_OK;
    score so_far;
    TRY(network_read_score(j->net, &so_far));
    int before_last = (loader_micro_steps(j->load, step) - 1) * j->batch_size;
    report_step(&t->rep, t->at.epoch, step, steps, t->epoch_samples,
                loader_step_samples(j->load, step) - before_last, so_far.last_loss);
    return STATUS_OK;
}

static status train_epoch(training *t)
{
    job *j = &t->j;
    phases *time = &t->results.time;
    int steps = j->opts->dry_run ? 1 : loader_steps(j->load);
    float lr = (float)lr_of_epoch(t, t->at.epoch);
    phases_start(time);
    TRY(loader_start_epoch(j->load, (int)t->at.epoch));
    TRY(network_reset_score(j->net));
    phases_mark(time, PHASE_DATA);
    t->epoch_samples = 0;
    for (int step = (int)t->at.step_in_epoch; step < steps; step++) {
        TRY(train_step(t, step, lr));
        TRY(follow_step(t, step, steps));
    }
    score of_epoch;
    TRY(network_read_score(j->net, &of_epoch));
    if (j->dev->stream != NULL)
        phases_mark(time, PHASE_ACCELERATOR);
    t->epoch_loss = of_epoch.loss_sum;
    t->results.last_loss = of_epoch.last_loss;
    t->at.epoch++;
    t->at.step_in_epoch = 0;
    return STATUS_OK;
}

/* A disk that is full does not end the training: it says so, goes on, and exits with its code. */
static void save(training *t)
{
    if (t->j.place.rank != 0 || !t->j.opts->save_model)
        return;
    t->checkpoint_failed = run_folder_save(t->run_dir, &t->j, &t->at) != STATUS_OK;
    if (t->checkpoint_failed)
        LOG_E("checkpoint not written: %s; the training goes on, the last good checkpoint stays",
              status_message());
}

static bool reached_target(const options *o, const evaluation *test)
{
    double target = o->target_acc > 1 ? o->target_acc / 100 : o->target_acc;
    return o->target_acc >= 0 && evaluation_accuracy(test) >= target;
}

/* Mean loss of the epoch and images trained on, over all ranks. */
static status epoch_totals(training *t, double *loss, int64_t *images)
{
    double totals[] = {t->epoch_loss, (double)t->epoch_samples};
    TRY(process_group_all_reduce(t->j.group, totals, 2, DTYPE_F64, REDUCE_SUM, NULL));
    *loss = totals[0] / totals[1];
    *images = (int64_t)totals[1];
    return STATUS_OK;
}

static status train_epochs(training *t)
{
    job *j = &t->j;
    run_results *results = &t->results;
    int64_t epochs = j->opts->dry_run ? t->at.epoch + 1 : j->opts->epochs;
    if (epochs > t->at.epoch)
        TRY(memory_alloc(sizeof(double) * (size_t)(epochs - t->at.epoch),
                         (void **)&results->train_s));
    bool reached = false;
    while (t->at.epoch < epochs && !reached) {
        report_epoch_start(&t->rep);
        TRY(process_group_barrier(j->group)); /* an epoch's time is not another rank's evaluation */
        int64_t started = clock_now_ns();
        TRY(train_epoch(t));
        double train_s = clock_seconds(clock_now_ns() - started);
        results->train_s[results->epochs++] = train_s;
        double train_loss = 0;
        TRY(epoch_totals(t, &train_loss, &results->images_per_epoch));
        TRY(evaluate(j, &results->test));
        report_epoch(&t->rep, t->at.epoch - 1, train_s, results->images_per_epoch, train_loss,
                     &results->test);
        save(t);
        reached = reached_target(j->opts, &results->test);
    }
    if (results->epochs == 0) { /* resumed behind its last epoch */
        report_line(&t->rep, "nothing left to train: %lld of %lld epochs are done",
                    (long long)t->at.epoch, (long long)epochs);
        TRY(evaluate(j, &results->test));
    }
    return STATUS_OK;
}

/* Rank 0 opens the run's folder and, resuming, its checkpoint; all ranks then stand where it
 * stands. */
static status start_run(training *t)
{
    job *j = &t->j;
    if (j->place.rank == 0) {
        TRY(run_folder_open(j, t->run_dir));
        if (j->opts->resume)
            TRY(run_folder_resume(t->run_dir, j, &t->at));
    }
    if (!j->opts->resume)
        return STATUS_OK;
    int64_t at[] = {t->at.epoch, t->at.step_in_epoch, t->at.step};
    TRY(process_group_broadcast(j->group, at, 3, DTYPE_I64, 0, NULL));
    t->at = (progress){at[0], at[1], at[2]};
    return job_broadcast_state(j);
}

static status finish(training *t)
{
    job *j = &t->j;
    run_results *results = &t->results;
    results->comm = ddp_elapsed(j->reducer);
    results->graph = t->graphs.enabled;
    TRY(memory_use(&results->rss_mib, &results->private_mib));
    return process_group_all_reduce(j->group, &results->private_mib, 1, DTYPE_I64, REDUCE_MAX,
                                    NULL);
}

/* The JSON line, on stdout where it was asked for and always in the run's folder. */
static status print_results(training *t)
{
    char *line = report_json(&t->j, &t->results), path[FILE_PATH_BYTES];
    if (line == NULL)
        return FAIL(STATUS_NO_MEMORY, "no memory for the results");
    const file_part parts[] = {{line, strlen(line)}, {"\n", 1}};
    status st = file_join(t->run_dir, "result.json", path);
    if (st == STATUS_OK)
        st = file_replace(path, parts, 2);
    if (t->j.opts->json)
        printf("%s\n", line);
    free(line);
    if (st != STATUS_OK) {
        LOG_E("results not written: %s", status_message());
        t->checkpoint_failed = true;
    }
    if (t->j.opts->save_model && !t->checkpoint_failed)
        report_line(&t->rep, "saved: %s/model.safetensors", t->run_dir);
    return STATUS_OK;
}

static status run(training *t, int *exit_code)
{
    *exit_code = EXIT_CODE_CHECKPOINT;
    TRY(start_run(t));
    *exit_code = EXIT_CODE_INTERNAL;
    if (t->j.place.rank == 0)
        report_header(&t->rep, t->run_dir, t->at.epoch, t->at.step_in_epoch);
    TRY(train_epochs(t));
    TRY(finish(t));
    if (t->j.place.rank == 0)
        TRY(print_results(t));
    return job_leave(&t->j);
}

int train_command(const options *opts, const rendezvous_place *place, int64_t started_ns)
{
    training t = {.started_ns = started_ns};
    int exit_code = EXIT_SUCCESS;
    status st = job_open(opts, place, &t.j, &exit_code);
    if (st == STATUS_OK) {
        t.rep = report_open(&t.j);
        t.graphs = (step_graphs){
            .dev = t.j.dev,
            .enabled = opts->cuda_graph && t.j.dev->ops->accelerator != NULL &&
                       process_group_can_be_captured(t.j.group),
        };
        st = run(&t, &exit_code);
    }
    step_graphs_close(&t.graphs);
    job_close(&t.j);
    free(t.results.train_s);
    if (st != STATUS_OK)
        return exit_code_failed(st, exit_code);
    return t.checkpoint_failed ? EXIT_CODE_CHECKPOINT : EXIT_SUCCESS;
}
