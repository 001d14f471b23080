#include "app/train/rank_context.h"

#include "app/common/debug_level.h"
#include "app/common/device_list.h"
#include "app/common/exit_codes.h"
#include "app/options/training_values.h"
#include "app/train/agent_link.h"
#include "app/train/agreement.h"
#include "app/train/failure.h"
#include "base/file.h"
#include "base/log.h"
#include "dist/chunk.h"
#include "dist/comm_hook.h"
#include "kernels/device_kind.h"
#include "kernels/stream_trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

status rank_context_place(const options *opts, rendezvous_place *out, bool *is_worker)
{
    const rendezvous_request asked = {.init_method = opts->init_method,
                                      .rank = (int)opts->rank,
                                      .world_size = (int)opts->world_size,
                                      .own_address = opts->local_addr};
    if (opts->rank >= 0 && opts->nproc_per_node != NULL)
        return FAIL(STATUS_INVALID,
                    "--rank=%d is one rank, --nproc-per-node=%.40s starts ranks: give one of them",
                    (int)opts->rank, opts->nproc_per_node);
    TRY(rendezvous_place_read(&asked, out, is_worker));
    if (!*is_worker)
        *out = (rendezvous_place){.world_size = 1, .local_world_size = 1};
    return STATUS_OK;
}

static status read_settings(rank_context *rank)
{
    return rank_settings_read(rank->opts, &rank->place, &rank->settings);
}

/* Once for all files and all ranks of this node. */
static void say_uncached(const rank_context *rank)
{
    const char *why = dataset_uncached(&rank->train_set, &rank->test_set);
    if (why[0] != '\0' && rank->place.local_rank == 0)
        LOG_W("the .gz files in %s are decompressed into the memory of each rank, not into a "
              "folder that they share: %s; set XDG_CACHE_HOME to one that can be written",
              rank->location.folder, why);
}

/* Without `draws` no digits are drawn: if there are no files, no set is opened. */
static status open_data(rank_context *rank, bool draws)
{
    dataset_kind kind;
    bool found = false;
    TRY(dataset_kind_parse(rank->opts->dataset, &kind));
    TRY(dataset_find(kind, rank->opts->data_dir, &rank->location, &found));
    rank->location.embedded = !found && kind == DATASET_MNIST;
    if (rank->location.embedded && !draws)
        return STATUS_OK;
    if (!found)
        TRY(dataset_locate(kind, rank->opts->data_dir, &rank->location));
    TRY(dataset_open(&rank->location, DATASET_TEST, &rank->test_set));
    TRY(dataset_open(&rank->location, DATASET_TRAIN, &rank->train_set));
    rank->data_digest = dataset_digest(&rank->train_set, &rank->test_set);
    int64_t limit = rank->opts->limit;
    if (limit > 0 && limit < (int64_t)rank->train_set.count)
        rank->train_set.count = (uint32_t)limit;
    return STATUS_OK;
}

/* Digits, as all ranks have agreed on them. */
static status draw_data(rank_context *rank)
{
    if (rank->location.embedded)
        return open_data(rank, true);
    say_uncached(rank);
    return STATUS_OK;
}

/* --val-split. What is held back is the same in every run, at any world size. */
static status split_data(rank_context *rank)
{
    uint32_t images = rank->train_set.count, held = 0;
    TRY(val_split_images(rank->opts->val_split, images, &held));
    rank->train_set.count = images - held;
    rank->val_set =
        (dataset){.count = held,
                  .images = rank->train_set.images + (size_t)(images - held) * DATASET_PIXELS,
                  .labels = rank->train_set.labels + (images - held)};
    return STATUS_OK;
}

static status choose_device(rank_context *rank)
{
    device_options which = {.threads = 1};
    TRY(device_list_choose(rank->opts, rank->place.local_rank, &which));
    return device_title(&which, rank->device);
}

status rank_context_agreement_of_node(const options *opts, bool is_elastic, char *out)
{
    rank_context node = {.opts = opts};
    if (open_data(&node, false) != STATUS_OK) /* its ranks say why */
        node.location = (dataset_location){.folder = "a folder that cannot be read"};
    status st = is_elastic ? choose_device(&node) : STATUS_OK;
    if (st == STATUS_OK)
        st = agreement_of_rank(&node, out);
    if (st == STATUS_OK && !is_elastic)
        out[strcspn(out, "\n") + 1] = '\0';
    dataset_close(&node.train_set);
    dataset_close(&node.test_set);
    return st;
}

/* A host device's arrays live in the group's memory: shm sums them where they are. Those of ranks
 * that have different parts of a network are not summed. */
static bool arrays_are_groups(const rank_context *rank)
{
    return rank->dev->stream == NULL && !strategy_of(rank->opts)->cuts_model;
}

/* What a round may leave to the next one (rank_context_close_round). */
static void close_device(rank_context *rank)
{
    device *dev = rank->dev;
    network_destroy(rank->net);
    if (dev != NULL && !arrays_are_groups(rank)) {
        dev->ops->free(dev, rank->gradients);
        dev->ops->free(dev, rank->parameters);
    }
    if (dev != NULL)
        dev->ops->free(dev, rank->step_state);
    if (rank->aborted != NULL)
        dev->ops->accelerator->free_pinned(dev, rank->aborted);
    device_destroy(dev);
    rank->net = NULL;
    rank->gradients = rank->parameters = NULL;
    rank->step_state = NULL;
    rank->aborted = NULL;
    rank->dev = NULL;
}

/* Only what a round may leave to the next one, if it is open. */
static rank_context device_of(const rank_context *rank)
{
    return (rank_context){.device_number = rank->device_number,
                          .dev = rank->dev,
                          .net = rank->net,
                          .gradients = rank->gradients,
                          .parameters = rank->parameters,
                          .step_state = rank->step_state,
                          .aborted = rank->aborted};
}

static status open_device(rank_context *rank)
{
    bool has_last = strategy_of(rank->opts)->cuts_model; /* of a process's parts of the model */
    int own = rank->place.local_rank + (has_last ? rank->settings.replicas - 1 : 0);
    if (rank->dev != NULL && rank->device_number != own)
        close_device(rank);
    if (rank->dev == NULL) {
        TRY(device_list_open(rank->opts, own, rank->settings.threads, &rank->dev));
        rank->device_number = own;
        TRY(rank->dev->ops->alloc(rank->dev, sizeof *rank->step_state, (void **)&rank->step_state));
        const accelerator_ops *accelerator = rank->dev->ops->accelerator;
        if (rank->link != NULL && accelerator != NULL) {
            accelerator->keep_freed(rank->dev);
            TRY(accelerator->alloc_pinned(rank->dev, sizeof *rank->aborted,
                                          (void **)&rank->aborted));
        }
    }
    if (rank->aborted != NULL)
        *rank->aborted = 0;
    if (rank->dev->stream != NULL)
        LOG_V("rank %d computes on %s", rank->place.rank, rank->dev->description);
    TRY(device_trace(rank->dev, rank->trace.spans, rank->trace.lane));
    timeline_open(rank->dev, rank->page, &rank->trace, &rank->timeline);
    return STATUS_OK;
}

/* A rank without a store is alone. */
static store *store_of(const rank_context *rank)
{
    return rank->rendezvous != NULL ? rendezvous_store(rank->rendezvous) : NULL;
}

static status interrupted(void *ctx)
{
    const rank_context *rank = ctx;
    TRY(process_group_check(rank->group));
    return mesh_check(&rank->mesh);
}

static size_t hook_bytes(const rank_context *rank)
{
    comm_hook_kind kind = COMM_HOOK_NONE;
    (void)comm_hook_parse(rank->opts->comm_hook, &kind); /* the options' table knows the words */
    return comm_hook_shared_bytes(kind, model_kind_count(rank->settings.model), PREEMPT_FLOATS);
}

static size_t shared_bytes(const rank_context *rank)
{
    const network_share share = strategy_network(rank);
    return strategy_of(rank->opts)->cuts_model
               ? 0 /* each asks for another size */
               : sizeof(float) * (share.gradients + share.parameters) + hook_bytes(rank);
}

static status open_group(rank_context *rank)
{
    const options *o = rank->opts;
    bool is_alone = strategy_of(o)->has_replicas; /* --backend is theirs */
    bool eager = !o->cuda_graph || !strategy_of(o)->can_be_captured;
    process_group_options settings = {.backend = is_alone ? "auto" : o->backend,
                                      .rank = rank->place.rank,
                                      .world_size = rank->place.world_size,
                                      .store = store_of(rank),
                                      .master_addr = rank->place.master_addr,
                                      .timeout_ms = o->timeout * 1000,
                                      .device = rank->dev,
                                      .page = rank->page,
                                      .lane = rank->trace.group,
                                      .shared_bytes = shared_bytes(rank),
                                      .aborted = rank->aborted,
                                      .stuck = failure_end_stuck,
                                      .stuck_ctx = rank,
                                      .eager = eager,
                                      .inject_delay_ms = o->inject_delay_ms,
                                      .debug = debug_level()};
    TRY(process_group_create(&settings, &rank->group));
    agent_link_set_group(rank->link, rank->group);
    rank->dev->interrupted = interrupted;
    rank->dev->interrupted_ctx = rank;
    return mesh_open(&rank->mesh, rank->group);
}

static int forward_batch(const rank_context *rank)
{
    int least = network_eval_batch(rank->dev);
    int most = chunk_size(rank->settings.batch_size, strategy_network(rank).pieces);
    return most > least ? most : least;
}

static status open_array(rank_context *rank, size_t count, float **out)
{
    size_t size_bytes = sizeof **out * count;
    if (arrays_are_groups(rank)) {
        device_note_memory(rank->dev, (int64_t)size_bytes);
        return process_group_alloc(rank->group, size_bytes, (void **)out);
    }
    return rank->dev->ops->alloc(rank->dev, size_bytes, (void **)out);
}

static status open_arrays(rank_context *rank)
{
    const network_share share = strategy_network(rank);
    if (rank->gradients != NULL) /* an earlier round's */
        return STATUS_OK;
    TRY(open_array(rank, share.gradients, &rank->gradients));
    return share.parameters > 0 ? open_array(rank, share.parameters, &rank->parameters) : STATUS_OK;
}

network_options rank_context_network_options(const rank_context *rank)
{
    const network_share share = strategy_network(rank);
    return (network_options){.kind = rank->settings.model,
                             .cut = share.cut,
                             .sum = share.sum,
                             .shard = share.shard,
                             .seed = (uint64_t)rank->opts->seed,
                             .label_smoothing = (float)rank->opts->label_smoothing};
}

static status open_network(rank_context *rank)
{
    network_options settings = rank_context_network_options(rank);
    settings.max_batch = forward_batch(rank);
    settings.gradients = rank->gradients;
    settings.parameters = rank->parameters;
    if (rank->net != NULL && network_max_batch(rank->net) == settings.max_batch)
        return network_draw(rank->net); /* as if it were new */
    network_destroy(rank->net);         /* the ranks of another round have other batches */
    rank->net = NULL;
    return network_create(rank->dev, &settings, &rank->net);
}

static augmentation augmentation_of(const rank_context *rank)
{
    const augment *most = &rank->settings.augment;
    return (augmentation){.shift = (float)most->shift,
                          .rotate = (float)most->rotate,
                          .scale = (float)most->scale,
                          .seed = (uint64_t)rank->opts->seed};
}

static status open_loader(rank_context *rank)
{
    loader_options settings = {.batch_size = rank->settings.batch_size,
                               .accum = (int)rank->opts->accum,
                               .sampler = {.samples = rank->train_set.count,
                                           .rank = rank->sharing.rank,
                                           .world_size = rank->sharing.world_size,
                                           .seed = (uint64_t)rank->opts->seed,
                                           .shuffle = rank->opts->shuffle,
                                           .drop_last = rank->opts->drop_last},
                               .augment = augmentation_of(rank),
                               .state = rank->step_state};
    return loader_create(rank->dev, &rank->train_set, &settings, &rank->loader);
}

/* Its steps are those of the loader. */
static status open_schedule(rank_context *rank)
{
    schedule_options settings = rank->settings.schedule;
    settings.epoch_steps = loader_steps(rank->loader);
    settings.total_steps = rank->opts->epochs * settings.epoch_steps;
    return schedule_init(&settings, &rank->schedule);
}

static status open_page(rank_context *rank)
{
    rank_status_options settings = {.folder = rank_context_dump_folder(),
                                    .rank = rank->place.rank,
                                    .world_size = rank->place.world_size,
                                    .attempt = (int)rendezvous_place_attempt(&rank->place)};
    return rank_status_create(&settings, &rank->page);
}

static status join(rank_context *rank)
{
    TRY(rendezvous_join(&rank->place, rank->opts->join_timeout * 1000, rank->opts->timeout * 1000,
                        &rank->rendezvous));
    rank->place = *rendezvous_joined(rank->rendezvous);
    TRY(strategy_place(rank->opts, rank->place.rank, rank->place.world_size, &rank->mesh));
    rank->sharing = strategy_data_sharing(rank->opts, &rank->mesh);
    return STATUS_OK;
}

static status agree(rank_context *rank)
{
    char settings[AGREEMENT_BYTES];
    rank->peers = (cores_peers){rank->place.local_rank, rank->place.local_world_size};
    TRY(choose_device(rank));
    if (store_of(rank) == NULL)
        return STATUS_OK;
    TRY(agreement_of_rank(rank, settings));
    TRY(agreement_check(settings, store_of(rank), rank->place.rank, rank->place.world_size,
                        rank->opts->timeout * 1000, &rank->peers));
    rank->settings.threads =
        rank_settings_threads(rank->opts, rank->peers.count, rank->settings.replicas);
    return STATUS_OK;
}

static status open_trace(rank_context *rank)
{
    const options *o = rank->opts;
    return o->trace != NULL ? run_trace_open(o->trace_steps, &rank->trace) : STATUS_OK;
}

static status start_trace(rank_context *rank)
{
    trace_gathering how = {.path = rank->opts->trace,
                           .shared = rank->place.world_size > 1 ? store_of(rank) : NULL,
                           .rank = rank->place.rank,
                           .world_size = rank->place.world_size,
                           .attempt = (int)rendezvous_place_attempt(&rank->place),
                           .wait_ms = rank->opts->timeout * 1000};
    const char *run = rank->opts->run_dir; /* which may not be there yet */
    if (how.path != NULL && run != NULL && how.rank == 0 && file_is_in(how.path, run))
        TRY(status_context(file_make_folders(run), "--trace"));
    return run_trace_start(&rank->trace, rank->group, &how);
}

static int test_batch(const rank_context *rank)
{
    int most = network_max_batch(rank->net);
    return rank->opts->test_batch_size < most ? (int)rank->opts->test_batch_size : most;
}

int rank_context_test_steps(const rank_context *rank, const dataset *set)
{
    return chunk_size(chunk_size((int)set->count, rank->sharing.world_size), test_batch(rank));
}

/* This rank's contiguous part of a set that is not trained on, on the device. */
static status open_part(rank_context *rank, const dataset *set, loader **out)
{
    uint32_t first = rank_context_first_tested(rank, set, rank->sharing.rank);
    uint32_t end = rank_context_first_tested(rank, set, rank->sharing.rank + 1);
    if (first == end)
        return STATUS_OK; /* more ranks than images */
    dataset part = {.count = end - first,
                    .images = set->images + (size_t)first * DATASET_PIXELS,
                    .labels = set->labels + first};
    loader_options settings = {.batch_size = test_batch(rank),
                               .accum = 1,
                               .sampler = {.samples = part.count, .world_size = 1},
                               .state = rank->step_state};
    TRY(loader_create(rank->dev, &part, &settings, out));
    return loader_start_epoch(*out, 0);
}

/* A rank's wish to stop travels after its gradients. The answer, in which that of any rank shows,
 * comes back there, or after the parameters if those travel. */
static status open_stop(rank_context *rank)
{
    size_t count = network_count(rank->net);
    float *flag = rank->gradients + count;
    TRY(preempt_open(rank->dev, flag, rank->parameters != NULL ? rank->parameters + count : flag,
                     &rank->stop));
    if (rank->link != NULL && rank_context_outlives_rounds(rank->opts))
        rank->stop.ranks = rank->place.world_size;
    return STATUS_OK;
}

static status open_compute(rank_context *rank)
{
    TRY(open_arrays(rank));
    TRY(open_network(rank));
    TRY(open_loader(rank));
    TRY(open_schedule(rank));
    TRY(open_stop(rank));
    TRY(strategy_open(rank->opts, rank, &rank->strategy));
    if (rank->stop.ranks > 0) /* an elastic run that keeps its state */
        TRY(strategy_commit_open(rank->strategy));
    TRY(open_part(rank, &rank->val_set, &rank->val_loader));
    return open_part(rank, &rank->test_set, &rank->test_loader);
}

static void say_crowded(const rank_context *rank)
{
    char text[CORE_BINDING_TEXT_BYTES];
    if (rank->place.rank == 0 && rank->dev->stream == NULL && !rank->opts->quiet &&
        core_binding_is_crowded(rank->peers.count, rank->settings.threads, text))
        LOG_W("cores: %s", text);
}

/* After the backend has started its threads, and before memory is touched. */
static status bind_threads(rank_context *rank)
{
    say_crowded(rank);
    if (rank->settings.replicas == 1)
        core_binding_open(rank->opts, &rank->peers, rank->dev, &rank->binding);
    return STATUS_OK;
}

static status broadcast_from_first(rank_context *rank)
{
    return strategy_share_state(rank->strategy, 0);
}

status rank_context_open(const options *opts, const rendezvous_place *place,
                         struct agent_link *link, rank_context *out, int *exit_code)
{
    static const struct {
        status (*open)(rank_context *);
        int exit_code;
    } steps[] = {
        {read_settings, EXIT_CODE_USAGE},
        {open_page, EXIT_CODE_INTERNAL},
        {join, EXIT_CODE_RENDEZVOUS},
        {agree, EXIT_CODE_USAGE},
        {draw_data, EXIT_CODE_DATA},
        {split_data, EXIT_CODE_USAGE},
        {open_trace, EXIT_CODE_USAGE},
        {open_device, EXIT_CODE_USAGE},
        {open_group, EXIT_CODE_RENDEZVOUS},
        {bind_threads, EXIT_CODE_INTERNAL},
        {start_trace, EXIT_CODE_USAGE},
        {open_compute, EXIT_CODE_USAGE},
        {broadcast_from_first, EXIT_CODE_RENDEZVOUS},
    };
    *out = device_of(out);
    out->opts = opts;
    out->place = *place;
    out->link = link;
    status st = open_data(out, false);
    *exit_code = EXIT_CODE_DATA;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && st == STATUS_OK; i++) {
        st = steps[i].open(out);
        *exit_code = steps[i].exit_code;
    }
    return st;
}

status rank_context_leave(rank_context *rank)
{
    TRY(timeline_enter(&rank->timeline, MOMENT_LEAVE));
    if (rank->group != NULL)
        TRY(process_group_barrier(rank->group));
    if (rank->rendezvous != NULL)
        rendezvous_leave(rank->rendezvous);
    return STATUS_OK;
}

void rank_context_close_group(rank_context *rank)
{
    if (rank->dev != NULL)
        rank->dev->interrupted = NULL;
    agent_link_set_group(rank->link, NULL);
    mesh_close(&rank->mesh);
    process_group_destroy(rank->group);
    rank->group = NULL;
}

static void close_all(rank_context *rank, bool keeps_device)
{
    status_kept cause; /* it is closed also because something failed */
    status_keep(&cause);
    /* The group first: a collective that hangs on the device would hold up all that follows. */
    rank_context_close_group(rank);
    if (keeps_device && rank->link != NULL)
        rank->dev->ops->accelerator->keep_freed(rank->dev);
    strategy_close(rank->strategy);
    preempt_close(&rank->stop);
    loader_destroy(rank->loader);
    loader_destroy(rank->val_loader);
    loader_destroy(rank->test_loader);
    timeline_close(&rank->timeline);
    core_binding_close(&rank->binding);
    if (keeps_device) {
        stream_trace_close(rank->dev->stream_trace);
        rank->dev->stream_trace = NULL;
        rank->dev->lane = NULL;
    } else {
        close_device(rank);
    }
    rendezvous_destroy(rank->rendezvous);
    dataset_close(&rank->train_set);
    dataset_close(&rank->test_set);
    rank_status_destroy(rank->page);
    run_trace_close(&rank->trace);
    *rank = device_of(rank);
    status_restore(&cause);
}

void rank_context_close_round(rank_context *rank)
{
    close_all(rank, rank->dev != NULL && rank->dev->ops->accelerator != NULL);
}

void rank_context_close(rank_context *rank)
{
    close_all(rank, false);
}
