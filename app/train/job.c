#include "app/train/job.h"

#include "app/device_list.h"
#include "app/exit_codes.h"
#include "app/modes/replicas.h"
#include "app/train/agreement.h"
#include "app/train/evaluate.h"
#include "app/train/failure.h"
#include "base/log.h"
#include "base/team.h"
#include "dist/chunk.h"
#include "kernels/ops.h"

#include <stdio.h>
#include <string.h>

enum {
    /* Images of one forward in evaluation, where the training batch is smaller: as many as fit the
     * caches of a processor, or as fill a GPU. */
    EVAL_BATCH = 64,
    EVAL_BATCH_ACCELERATOR = 1000,
};

status job_place(rendezvous_place *out, bool *is_worker)
{
    TRY(rendezvous_place_from_env(out, is_worker));
    if (!*is_worker)
        *out = (rendezvous_place){.world_size = 1, .local_world_size = 1};
    return STATUS_OK;
}

static status resolve_batch(job *j)
{
    const options *o = j->opts;
    int64_t per_rank = o->batch_size;
    if (o->global_batch_size > 0) {
        int64_t parts = (int64_t)j->place.world_size * o->accum;
        if (o->global_batch_size % parts != 0)
            return FAIL(STATUS_INVALID,
                        "--global-batch-size %lld is not divisible by %d ranks x --accum %lld",
                        (long long)o->global_batch_size, j->place.world_size, (long long)o->accum);
        per_rank = o->global_batch_size / parts;
    }
    j->batch_size = (int)per_rank;
    return STATUS_OK;
}

rank_bytes job_bytes(const job *j, int index)
{
    uint64_t sent = 0, received = 0;
    if (j->others != NULL)
        replicas_bytes(j->others, index, &sent, &received);
    else
        process_group_traffic(j->group, &sent, &received);
    return (rank_bytes){(int64_t)sent, (int64_t)received};
}

int64_t job_global_batch(const job *j)
{
    return (int64_t)j->place.world_size * j->batch_size * j->opts->accum;
}

static status resolve_mode(job *j)
{
    static const step_ops *const modes[] = {[MODE_DDP] = &step_ddp,
                                            [MODE_DP] = &step_dp,
                                            [MODE_PS] = &step_ps,
                                            [MODE_SINGLE] = &step_single};
    j->mode = modes[mode_of(j->opts)];
    return mode_replicas(j->opts, &j->replicas);
}

/* Names and defaults to kinds and numbers. */
static status resolve(job *j)
{
    const options *o = j->opts;
    TRY(model_kind_parse(o->model, &j->model));
    TRY(optimizer_kind_parse(o->optimizer, &j->optimizer.kind));
    j->optimizer.momentum = (float)o->momentum;
    j->optimizer.weight_decay = (float)o->weight_decay;
    j->optimizer.nesterov = o->nesterov;
    j->lr = o->lr < 0 ? (double)optimizer_default_lr(j->optimizer.kind) : o->lr;
    TRY(resolve_mode(j));
    int share = team_cores() / (j->place.local_world_size * j->replicas);
    j->threads = o->threads > 0 ? (int)o->threads : share > 1 ? share : 1;
    return resolve_batch(j);
}

static status open_data(job *j, bool with_train)
{
    TRY(dataset_locate(j->opts->data_dir, &j->location));
    TRY(dataset_open(&j->location, DATASET_TEST, &j->test_set));
    if (!with_train)
        return STATUS_OK;
    TRY(dataset_open(&j->location, DATASET_TRAIN, &j->train_set));
    int64_t limit = j->opts->limit;
    if (limit > 0 && limit < (int64_t)j->train_set.count)
        j->train_set.count = (uint32_t)limit;
    return STATUS_OK;
}

static status open_device(job *j)
{
    TRY(device_list_choose(j->opts, j->place.local_rank, &j->device));
    j->device.threads = j->threads;
    TRY(device_create(&j->device, &j->dev));
    if (j->dev->emulation != NULL)
        LOG_W("device %s: %s", j->dev->ops->name, j->dev->emulation);
    if (j->dev->stream != NULL && !j->opts->quiet)
        LOG_I("rank %d computes on %s", j->place.rank, j->dev->description);
    TRY(device_trace(j->dev, j->trace.spans, j->trace.lane));
    timeline_open(j->dev, j->page, &j->timeline);
    return j->dev->ops->alloc(j->dev, sizeof *j->numbers, (void **)&j->numbers);
}

static status interrupted(void *group)
{
    return process_group_check(group);
}

static size_t gradient_bytes(const job *j)
{
    return sizeof(float) * (model_kind_count(j->model) + PREEMPT_FLOATS);
}

/* Only a parameter server's parameters travel. */
static size_t parameter_bytes(const job *j)
{
    return j->mode == &step_ps ? sizeof(float) * (model_kind_count(j->model) + JOB_PS_FLOATS) : 0;
}

static status open_group(job *j)
{
    const options *o = j->opts;
    process_group_options settings = {.backend = j->mode == &step_dp ? "auto" : o->backend,
                                      .rank = j->place.rank,
                                      .world_size = j->place.world_size,
                                      .store = j->rdzv ? rendezvous_store(j->rdzv) : NULL,
                                      .master_addr = j->place.master_addr,
                                      .timeout_ms = o->timeout * 1000,
                                      .device = j->dev,
                                      .page = j->page,
                                      .lane = j->trace.group,
                                      .shared_bytes = gradient_bytes(j) + parameter_bytes(j),
                                      .stuck = failure_end_stuck,
                                      .stuck_ctx = j,
                                      .inject_delay_ms = o->inject_delay_ms};
    TRY(process_group_create(&settings, &j->group));
    j->dev->interrupted = interrupted;
    j->dev->interrupted_ctx = j->group;
    return STATUS_OK;
}

static int forward_batch(const job *j)
{
    int least = j->dev->stream != NULL ? EVAL_BATCH_ACCELERATOR : EVAL_BATCH;
    int most = chunk_size(j->batch_size, j->replicas);
    return most > least ? most : least;
}

/* A host device's arrays live in the group's memory: shm sums them where they are. */
static status open_array(job *j, size_t size_bytes, float **out)
{
    if (j->dev->stream == NULL) {
        device_note_memory(j->dev, (int64_t)size_bytes);
        return process_group_alloc(j->group, size_bytes, (void **)out);
    }
    return j->dev->ops->alloc(j->dev, size_bytes, (void **)out);
}

static status open_arrays(job *j)
{
    TRY(open_array(j, gradient_bytes(j), &j->gradients));
    return parameter_bytes(j) > 0 ? open_array(j, parameter_bytes(j), &j->parameters) : STATUS_OK;
}

static status open_network(job *j)
{
    network_options settings = {.kind = j->model,
                                .max_batch = forward_batch(j),
                                .seed = (uint64_t)j->opts->seed,
                                .gradients = j->gradients,
                                .parameters = j->parameters};
    return network_create(j->dev, &settings, &j->net);
}

static status open_optimizer(job *j)
{
    return optimizer_create(j->dev, &j->optimizer, network_parameters(j->net),
                            network_gradients(j->net), network_count(j->net), &j->opt);
}

static status open_loader(job *j)
{
    loader_options settings = {.batch_size = j->batch_size,
                               .accum = (int)j->opts->accum,
                               .sampler = {.samples = j->train_set.count,
                                           .rank = j->place.rank,
                                           .world_size = j->place.world_size,
                                           .seed = (uint64_t)j->opts->seed,
                                           .shuffle = j->opts->shuffle,
                                           .drop_last = j->opts->drop_last},
                               .numbers = j->numbers};
    return loader_create(j->dev, &j->train_set, &settings, &j->load);
}

static status open_page(job *j)
{
    rank_page_options settings = {.folder = failure_folder(),
                                  .rank = j->place.rank,
                                  .world_size = j->place.world_size,
                                  .generation = j->place.restart_count};
    return rank_page_create(&settings, &j->page);
}

static status join(job *j)
{
    return rendezvous_join(&j->place, j->opts->join_timeout * 1000, j->opts->timeout * 1000,
                           &j->rdzv);
}

static status agree(job *j)
{
    return agreement_check(j);
}

static status open_compute(job *j)
{
    TRY(open_arrays(j));
    TRY(open_network(j));
    TRY(open_optimizer(j));
    TRY(open_loader(j));
    TRY(j->mode->open(j));
    return evaluate_open(j);
}

status job_open(const options *opts, const rendezvous_place *place, job *out, int *exit_code)
{
    static const struct {
        status (*open)(job *);
        int exit_code;
    } steps[] = {
        {resolve, EXIT_CODE_USAGE},         {open_page, EXIT_CODE_INTERNAL},
        {join, EXIT_CODE_RENDEZVOUS},       {agree, EXIT_CODE_USAGE},
        {run_trace_open, EXIT_CODE_USAGE},  {open_device, EXIT_CODE_USAGE},
        {open_group, EXIT_CODE_RENDEZVOUS}, {run_trace_start, EXIT_CODE_USAGE},
        {open_compute, EXIT_CODE_USAGE},    {job_broadcast_state, EXIT_CODE_RENDEZVOUS},
    };
    *out = (job){.opts = opts, .place = *place};
    status st = open_data(out, true);
    *exit_code = EXIT_CODE_DATA;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && st == STATUS_OK; i++) {
        st = steps[i].open(out);
        *exit_code = steps[i].exit_code;
    }
    if (st != STATUS_OK) {
        st = failure_explain(out, st);
        job_close(out);
    }
    return st;
}

status job_open_eval(const options *opts, model_kind kind, job *out, int *exit_code)
{
    *out = (job){.opts = opts, .place = {.world_size = 1, .local_world_size = 1}};
    status st = resolve(out);
    out->model = kind;
    *exit_code = EXIT_CODE_USAGE;
    if (st == STATUS_OK) {
        st = open_data(out, false);
        *exit_code = EXIT_CODE_DATA;
    }
    if (st == STATUS_OK) {
        st = open_device(out);
        if (st == STATUS_OK)
            st = open_network(out);
        if (st == STATUS_OK)
            st = evaluate_open(out);
        *exit_code = EXIT_CODE_USAGE;
    }
    if (st != STATUS_OK)
        job_close(out);
    return st;
}

status job_loss_scaling(job *j, loss_scaling *out)
{
    step_numbers numbers;
    TRY(j->dev->ops->download(j->dev, &numbers, j->numbers, sizeof numbers));
    *out = numbers.scaling;
    return STATUS_OK;
}

status job_set_loss_scaling(job *j, const loss_scaling *scaling)
{
    step_numbers numbers = {.scaling = *scaling};
    return j->dev->ops->upload(j->dev, j->numbers, &numbers, sizeof numbers);
}

static status broadcast_loss_scaling(job *j)
{
    loss_scaling scaling;
    TRY(job_loss_scaling(j, &scaling));
    double scale = (double)scaling.scale;
    int64_t counts[] = {scaling.good_steps, scaling.skipped, scaling.overflow};
    TRY(process_group_broadcast(j->group, &scale, 1, DTYPE_F64, 0, NULL));
    TRY(process_group_broadcast(j->group, counts, 3, DTYPE_I64, 0, NULL));
    scaling = (loss_scaling){(float)scale, (int32_t)counts[0], counts[1], (uint32_t)counts[2]};
    return job_set_loss_scaling(j, &scaling);
}

status job_broadcast_state(job *j)
{
    const char *names[OPTIMIZER_MAX_STATES];
    float *states[OPTIMIZER_MAX_STATES];
    size_t count = network_count(j->net), n = optimizer_states(j->opt, names, states);
    int64_t steps = optimizer_steps(j->opt);
    device_stream *stream = j->dev->stream;
    TRY(process_group_broadcast(j->group, network_parameters(j->net), count, DTYPE_F32, 0, stream));
    TRY(process_group_broadcast(j->group, &steps, 1, DTYPE_I64, 0, NULL));
    optimizer_set_steps(j->opt, steps);
    if (steps == 0)
        return STATUS_OK; /* no state yet */
    for (size_t i = 0; i < n; i++)
        TRY(process_group_broadcast(j->group, states[i], count, DTYPE_F32, 0, stream));
    return broadcast_loss_scaling(j);
}

status job_leave(job *j)
{
    TRY(timeline_enter(&j->timeline, MOMENT_LEAVE));
    if (j->group != NULL)
        TRY(process_group_barrier(j->group));
    if (j->rdzv != NULL)
        rendezvous_leave(j->rdzv);
    return STATUS_OK;
}

void job_close(job *j)
{
    status_kept cause; /* it is closed also because something failed */
    status_keep(&cause);
    /* The group first: a collective that hangs on the device would hold up all that follows. */
    if (j->dev != NULL)
        j->dev->interrupted = NULL;
    process_group_destroy(j->group);
    replicas_destroy(j->others);
    ddp_destroy(j->reducer);
    param_server_destroy(j->server);
    preempt_close(&j->stop);
    loader_destroy(j->load);
    loader_destroy(j->test_load);
    optimizer_destroy(j->opt);
    network_destroy(j->net);
    if (j->dev != NULL && j->dev->stream != NULL) {
        j->dev->ops->free(j->dev, j->gradients);
        j->dev->ops->free(j->dev, j->parameters);
    }
    if (j->dev != NULL)
        j->dev->ops->free(j->dev, j->numbers);
    timeline_close(&j->timeline);
    device_destroy(j->dev);
    rendezvous_destroy(j->rdzv);
    dataset_close(&j->train_set);
    dataset_close(&j->test_set);
    rank_page_destroy(j->page);
    run_trace_close(&j->trace);
    *j = (job){0};
    status_restore(&cause);
}
