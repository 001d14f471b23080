/* mnist_ddp doctor: looks at what a run with these settings needs, before it is tried. */
#include "app/doctor/doctor.h"

#include "app/common/device_list.h"
#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "app/doctor/checkup.h"
#include "app/launch/entrypoint.h"
#include "app/launch/outer_launcher.h"
#include "app/train/rank_settings.h"
#include "app/train/strategy.h"
#include "app/train/train_command.h"
#include "base/thread.h"
#include "data/dataset.h"

#include <stdio.h>
#include <stdlib.h>

/* A launcher whose processes would be the ranks. */
static status check_launcher(checkup *c)
{
    outer_launcher outer;
    char text[OUTER_LAUNCHER_TEXT_BYTES];
    TRY(outer_launcher_find(c->opts, &outer));
    outer_launcher_describe(&outer, text);
    if (outer.role == OUTER_ROLE_RANK && !outer.row->is_torchrun)
        checkup_add(c, CHECKUP_OK, "launcher", "%s", text);
    return STATUS_OK;
}

/* What train or run would refuse before it starts a rank. */
static void check_command(checkup *c)
{
    entrypoint program = {.words = NULL};
    status st = check_launcher(c);
    if (st == STATUS_OK && c->opts->examined == COMMAND_TRAIN) {
        st = strategy_check(c->opts, c->spec.world_size);
        if (st == STATUS_OK)
            st = rank_settings_check(c->opts, c->spec.world_size, worker_spec_is_elastic(&c->spec));
    } else if (st == STATUS_OK && c->opts->program != NULL) {
        st = entrypoint_find(c->opts, &program);
        entrypoint_free(&program);
    }
    if (st != STATUS_OK)
        checkup_fail_message(c, EXIT_CODE_USAGE, "settings");
}

/* false: the settings make no launch, and the rest cannot be looked at. */
static bool check_settings(checkup *c)
{
    int gpus = 0;
    const char *rank = getenv("RANK");
    if (rank != NULL)
        checkup_add(c, CHECKUP_WARNING, "settings",
                    "RANK=%.20s is set here: train would join as that rank; unset it to launch",
                    rank);
    (void)device_list_count(c->opts, &gpus); /* the device's own check tells */
    if (worker_spec_read(c->opts, cores_count(), gpus, &c->spec) != STATUS_OK) {
        checkup_fail_message(c, EXIT_CODE_USAGE, "settings");
        return false;
    }
    check_command(c);
    if (c->spec.counts_nodes) {
        checkup_add(c, CHECKUP_OK, "settings",
                    "world size %d, for the nodes that come; this is node %d", c->spec.world_size,
                    c->spec.node_rank);
        return true;
    }
    checkup_add(c, CHECKUP_OK, "settings", "%d node%s x %d rank%s = world size %d; this is node %d",
                c->spec.nnodes, c->spec.nnodes == 1 ? "" : "s", c->spec.nproc,
                c->spec.nproc == 1 ? "" : "s", c->spec.world_size,
                c->spec.node_rank < 0 ? 0 : c->spec.node_rank);
    return true;
}

/* Only where rank 0 is to be is the file needed. */
static void check_init(checkup *c)
{
    int code = EXIT_CODE_USAGE;
    bool here = c->spec.nnodes <= 1 || c->spec.node_rank == 0;
    if (here && train_check_init(c->opts, &code) != STATUS_OK)
        checkup_fail_message(c, code, "init");
}

static void check_data(checkup *c)
{
    dataset_location location;
    dataset sets[2] = {{0}};
    dataset_kind kind;
    bool found = true;
    status st = dataset_kind_parse(c->opts->dataset, &kind);
    if (st == STATUS_OK && c->silent)
        st = dataset_find(kind, c->opts->data_dir, &location, &found);
    if (!found && kind == DATASET_MNIST)
        return; /* ranks draw digits once they know rank 0's data */
    if (st == STATUS_OK)
        st = dataset_locate(kind, c->opts->data_dir, &location);
    for (int i = 0; i < 2 && st == STATUS_OK; i++)
        st = dataset_open(&location, i == 0 ? DATASET_TRAIN : DATASET_TEST, &sets[i]);
    if (st != STATUS_OK)
        checkup_fail_message(c, EXIT_CODE_DATA, "data");
    else
        checkup_add(c, location.embedded ? CHECKUP_WARNING : CHECKUP_OK, "data",
                    "%s (%s), %u train and %u test images%s",
                    location.folder[0] != '\0' ? location.folder : "in memory", location.found_by,
                    sets[0].count, sets[1].count,
                    location.embedded ? ": digits of our own, not MNIST; mnist_ddp data fetch "
                                        "gets it, --data-dir names its folder"
                                      : "");
    const char *why = sets[0].uncached[0] != '\0' ? sets[0].uncached : sets[1].uncached;
    if (st == STATUS_OK && why[0] != '\0')
        checkup_add(c, CHECKUP_WARNING, "cache",
                    "%s: each rank decompresses the .gz files for itself; set XDG_CACHE_HOME to a "
                    "folder that can be written",
                    why);
    for (int i = 0; i < 2; i++)
        dataset_close(&sets[i]);
}

static status print_end(checkup *c)
{
    if (!c->opts->json) {
        printf("%d failed, %d warning%s\n", c->failures, c->warnings, c->warnings == 1 ? "" : "s");
        return STATUS_OK;
    }
    json_t *object = json_object();
    json_object_set_new(object, "ok", json_boolean(c->failures == 0));
    json_object_set_new(object, "failed", json_integer(c->failures));
    json_object_set_new(object, "warnings", json_integer(c->warnings));
    json_object_set(object, "checks", c->list);
    return json_value_print(object);
}

status doctor_check_train(const options *opts, const worker_spec *spec, int *exit_code)
{
    checkup c = {.opts = opts, .spec = *spec, .silent = true};
    check_data(&c);
    check_init(&c);
    checkup_modules(&c);
    if (c.failures == 0 && spec->node_rank == 0 && !opts->dry_run)
        checkup_results(&c);
    *exit_code = c.exit_code;
    return c.failures == 0 ? STATUS_OK : FAIL(STATUS_INVALID, "%s", c.why);
}

int doctor_command(const options *opts)
{
    checkup c = {.opts = opts, .list = opts->json ? json_array() : NULL};
    if (check_settings(&c))
        checkup_network(&c);
    checkup_machine(&c);
    if (opts->examined == COMMAND_TRAIN) {
        check_data(&c);
        check_init(&c);
    }
    checkup_results(&c);
    status st = print_end(&c);
    json_decref(c.list);
    return st == STATUS_OK ? c.exit_code : exit_code_failed(st, EXIT_CODE_INTERNAL);
}
