#include "app/demo/demo.h"

#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "app/options/command_table.h"
#include "app/report/report.h"
#include "base/file.h"
#include "base/host.h"
#include "base/status.h"
#include "data/dataset.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_frames(const json_t *data, FILE *out)
{
    const json_t *frame;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(data, "demo"), "frames"), i, frame)
        demo_print_frame(frame, out);
}

/* `document`: as --json prints it. STATUS_IO. */
static status demo_page_write(const char *path, const json_t *document)
{
    json_t *title =
        json_sprintf("mnist_ddp demo %s", json_string_value(json_object_get(document, "demo")));
    json_t *data = json_pack("{s:s, s:o, s:O}", "kind", "demo", "title", title, "demo", document);
    status st = page_save(path, data, print_frames);
    json_decref(data);
    return st;
}

enum { SHOWN_BYTES = 80 };

const demo_entry demo_table[] = {
    {"linear", "nn.Linear(10, 10) on two ranks: DDP averages gradients", 2, 1, 16, linear_demo,
     false, NULL},
    {"ring", "an all-reduce around a ring, chunk by chunk", 4, 2, 7, ring_demo, false, NULL},
    {"tree", "an all-reduce up and down a tree, in 2 log2 N steps", 8, 2, 12, tree_demo, false,
     NULL},
    {"sampler", "who gets which sample: DistributedSampler on all ranks", 3, 1, 16, sampler_demo,
     false, sampler_check_demo},
    {"buckets", "DDP's buckets: ready, sent, there; what overlap hides", 2, 2, 4, buckets_demo,
     true, NULL},
    {"dp", "DataParallel: a batch of 30 on three replicas", 1, 1, 1, dp_demo, true, dp_check_demo},
    {"ps", "a parameter server: who sends what, how many bytes", 4, 2, 8, ps_demo, true, NULL},
    {"rendezvous", "how ranks find each other, and what stands in the store", 3, 2, 7,
     rendezvous_demo, false, NULL},
    {"store", "TCPStore among ranks: set, get, wait, add, compare_set", 3, 2, 7, store_demo, false,
     NULL},
    {"p2p", "send, recv, isend, irecv; two ranks that both send first", 2, 2, 2, p2p_demo, false,
     NULL},
    {"groups", "new_group: who is which rank in which group", 4, 2, 7, groups_demo, false, NULL},
    {"world-size", "what nodes, processes, world size and ranks are", 1, 1, 1, world_size_demo,
     false, NULL},
    {"failure", "each fault of --inject, and how its cause is named", 1, 1, 1, failure_demo, true,
     failure_check_demo},
    {"precision", "gradients in fp16 and bf16: underflow, loss scaling", 1, 1, 1, precision_demo,
     true, NULL},
    {"one-batch-four-ways", "single, dp, ddp and ps: the same batch, the same loss", 2, 2, 4,
     one_batch_four_ways_demo, true, one_batch_four_ways_check_demo},
};
const int demo_table_count = sizeof demo_table / sizeof demo_table[0];

/* STATUS_INVALID if none has this name: the message names the nearest, or all. */
static status demo_table_find(const char *name, const demo_entry **out)
{
    char hint[HINT_BYTES];
    int i = names_find(name, demo_table, demo_table_count, sizeof *demo_table, hint);
    if (i < 0)
        return FAIL(STATUS_INVALID, "'%.*s' is not a demo; %s", SHOWN_BYTES, name, hint);
    *out = &demo_table[i];
    return STATUS_OK;
}

enum { SHARED_BYTES = 1 << 20 }; /* what a demonstration may ask of process_group_alloc */

status demo_complete(options *opts)
{
    const demo_entry *entry;
    char ranks[16];
    if (opts->command != COMMAND_DEMO || opts->action == NULL)
        return STATUS_OK;
    TRY(demo_table_find(opts->action, &entry));
    if (opts->nproc_per_node != NULL)
        return STATUS_OK;
    snprintf(ranks, sizeof ranks, "%d", entry->ranks);
    opts->nproc_per_node = strdup(ranks);
    return opts->nproc_per_node != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "a setting");
}

status demo_check(const options *opts, int world_size)
{
    const demo_entry *entry;
    TRY(demo_table_find(opts->action, &entry));
    int least = entry->least_ranks, most = entry->most_ranks;
    if (world_size < least)
        return FAIL(STATUS_INVALID,
                    "demo %s: one rank has nobody to talk to; give --nproc-per-node=%d%s",
                    entry->name, least, most > least ? " or more" : "");
    if (world_size > most && most == 1)
        return FAIL(STATUS_INVALID, "demo %s: %d ranks; at most 1: %s", entry->name, world_size,
                    entry->show == dp_demo ? "it is one process, and --replicas says how many "
                                             "replicas it has"
                                           : "it is one process; leave --nproc-per-node out");
    if (world_size > most)
        return FAIL(STATUS_INVALID, "demo %s: %d ranks; at most %d fit on a screen", entry->name,
                    world_size, most);
    if (strcmp(opts->backend, "local") == 0)
        return FAIL(STATUS_INVALID,
                    "demo %s: --backend=local is for the threads of --mode=dp; "
                    "ranks take shm (one host), gloo or mpi",
                    entry->name);
    return entry->check != NULL ? entry->check(opts, world_size) : STATUS_OK;
}

static status check_data(const options *opts)
{
    static const dataset_split splits[] = {DATASET_TRAIN, DATASET_TEST};
    dataset_location where;
    TRY(dataset_locate(DATASET_MNIST, opts->data_dir, &where));
    for (size_t i = 0; i < sizeof splits / sizeof splits[0] && !where.embedded; i++) {
        dataset set;
        TRY(dataset_open(&where, splits[i], &set));
        dataset_close(&set);
    }
    return STATUS_OK;
}

static status check_page(const options *opts)
{
    return opts->demo.html != NULL ? status_context(file_draft_try(opts->demo.html), "--html")
                                   : STATUS_OK;
}

status demo_check_files(const options *opts, int *code)
{
    const demo_entry *entry;
    if (opts->command != COMMAND_DEMO || opts->action == NULL ||
        environment_text("MNIST_DDP_LAUNCHED") != NULL)
        return STATUS_OK;
    *code = EXIT_CODE_USAGE;
    TRY(demo_table_find(opts->action, &entry));
    *code = EXIT_CODE_DATA;
    if (entry->reads_data)
        TRY(check_data(opts));
    *code = EXIT_CODE_OUTPUT;
    bool is_rank = opts->rank >= 0 || environment_text("RANK") != NULL; /* rank 0 will write it */
    return is_rank ? STATUS_OK : check_page(opts);
}

int demo_list(void)
{
    puts("mnist_ddp demo NAME shows, with ranks that really do it:\n");
    for (int i = 0; i < demo_table_count; i++)
        printf("  %-20s  %s\n", demo_table[i].name, demo_table[i].summary);
    puts("\nmnist_ddp demo ring --nproc-per-node=6    with another number of ranks\n"
         "mnist_ddp demo ring --html=ring.html      as an animated page\n"
         "mnist_ddp help demo                       all flags");
    return EXIT_SUCCESS;
}

static status open_group(demo *d)
{
    process_group_options settings = {.backend = d->opts->backend,
                                      .rank = d->rank,
                                      .world_size = d->world_size,
                                      .store = d->rdzv ? rendezvous_store(d->rdzv) : NULL,
                                      .master_addr = d->place.master_addr,
                                      .timeout_ms = d->opts->timeout * 1000,
                                      .shared_bytes = SHARED_BYTES};
    return process_group_create(&settings, &d->group);
}

static status open_demo(demo *d, const demo_entry *entry)
{
    TRY(rendezvous_join(&d->place, d->opts->join_timeout * 1000, d->opts->timeout * 1000,
                        &d->rdzv));
    d->place = *rendezvous_joined(d->rdzv);
    TRY(open_group(d));
    d->document =
        json_pack("{s:s, s:i, s:s, s:{}, s:[]}", "demo", entry->name, "world_size", d->world_size,
                  "backend", process_group_backend(d->group), "facts", "frames");
    return d->document != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "a demonstration");
}

static status write_results(const demo *d)
{
    if (d->rank != 0)
        return STATUS_OK;
    if (d->opts->demo.html != NULL)
        TRY(demo_page_write(d->opts->demo.html, d->document));
    if (d->print_error != 0 && d->print_error != EPIPE)
        return FAIL(STATUS_IO, "stdout: %s: not all is shown there", strerror(d->print_error));
    if (d->opts->demo.html != NULL && !d->opts->json && d->print_error == 0)
        printf("\npage: %s\n", d->opts->demo.html);
    return d->opts->json ? json_value_print(json_incref(d->document)) : STATUS_OK;
}

static status run(demo *d, int *exit_code)
{
    const demo_entry *entry = NULL;
    *exit_code = EXIT_CODE_USAGE;
    TRY(demo_table_find(d->opts->action, &entry));
    *exit_code = EXIT_CODE_OUTPUT;
    if (d->rank == 0)
        TRY(check_page(d->opts));
    *exit_code = EXIT_CODE_RENDEZVOUS;
    TRY(open_demo(d, entry));
    *exit_code = EXIT_CODE_INTERNAL;
    status st = entry->show(d);
    demo_child_close(d);
    TRY(st);
    TRY(process_group_barrier(d->group));
    rendezvous_leave(d->rdzv); /* what cannot be written is not the other ranks' failure */
    *exit_code = EXIT_CODE_OUTPUT;
    return write_results(d);
}

int demo_command(const options *opts, const rendezvous_place *place, int64_t started_ns)
{
    status_kept cause;
    int exit_code = EXIT_CODE_INTERNAL;
    demo d = {.opts = opts,
              .place = *place,
              .rank = place->rank,
              .world_size = place->world_size,
              .member = "rank"};
    (void)started_ns;
    status st = run(&d, &exit_code);
    status_keep(&cause);
    process_group_destroy(d.group);
    rendezvous_destroy(d.rdzv);
    json_decref(d.frame);
    json_decref(d.document);
    status_restore(&cause);
    return st == STATUS_OK ? EXIT_SUCCESS : exit_code_failed(st, exit_code);
}
