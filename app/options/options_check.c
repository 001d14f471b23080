/* What no single setting can tell: settings that do not go together. */
#include "app/options/options_table.h"
#include "app/options/training_values.h"
#include "base/log.h"

#include <string.h>

/* Was `name` given, and not for another choice of `chooser` than the one that counts? A file may
 * hold settings of a schedule that the command line has replaced. */
static bool given_with(const options *opts, const char *name, const char *chooser)
{
    option_source source = options_value_source(opts, name);
    return source != SOURCE_DEFAULT && source >= options_value_source(opts, chooser);
}

static status check_optimizer(const options *opts)
{
    if (opts->momentum > 0.0 && strcmp(opts->optimizer, "sgd") != 0)
        return FAIL(STATUS_INVALID, "--momentum=%g: only sgd has it; add --optimizer=sgd",
                    opts->momentum);
    adam_betas betas;
    TRY(adam_betas_parse(opts->adam_betas, &betas));
    bool is_adam = strncmp(opts->optimizer, "adam", strlen("adam")) == 0;
    if (!is_adam && given_with(opts, "adam-betas", "optimizer"))
        return FAIL(STATUS_INVALID,
                    "--adam-betas=%s: only adam and adamw have them; add --optimizer=adam",
                    opts->adam_betas);
    return STATUS_OK;
}

static status check_schedule(const options *opts)
{
    bool onecycle = strcmp(opts->schedule, "onecycle") == 0;
    if (strcmp(opts->schedule, "step") != 0 && given_with(opts, "gamma", "schedule"))
        return FAIL(STATUS_INVALID, "--gamma=%g: only --schedule=step has it, not %s", opts->gamma,
                    opts->schedule);
    if (!onecycle && given_with(opts, "pct-start", "schedule"))
        return FAIL(STATUS_INVALID, "--pct-start=%g: only --schedule=onecycle has it, not %s",
                    opts->pct_start, opts->schedule);
    if (onecycle && opts->warmup_steps > 0)
        return FAIL(STATUS_INVALID,
                    "--warmup-steps=%lld: --schedule=onecycle rises by itself: give --pct-start, "
                    "the share of the steps in which it does",
                    (long long)opts->warmup_steps);
    if (opts->warmup_steps == 0 && given_with(opts, "warmup-factor", "schedule"))
        return FAIL(STATUS_INVALID, "--warmup-factor=%g: needs --warmup-steps=N",
                    opts->warmup_factor);
    return STATUS_OK;
}

static status check_tests(const options *opts)
{
    interval tests;
    TRY(interval_parse("--eval-every", 0, opts->eval_every, &tests));
    TRY(val_split_check(opts->val_split));
    if (opts->target_acc >= 0 && tests.count == 0)
        return FAIL(STATUS_INVALID, "--target-acc=%g: needs tests; leave --eval-every=0 out",
                    opts->target_acc);
    return STATUS_OK;
}

/* It says in plain words which of the two sizes was given. */
static status check_elastic_batch(const options *opts)
{
    bool is_global = opts->global_batch_size > 0;
    if (opts->elastic_batch == NULL || (strcmp(opts->elastic_batch, "global") == 0) == is_global)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "--elastic-batch=%s: give %s, which is what stays",
                opts->elastic_batch,
                is_global ? "--batch-size (per rank) in place of --global-batch-size"
                          : "--global-batch-size=N (of all ranks)");
}

void options_say_unused(const options *opts)
{
    bool powersgd = opts->comm_hook != NULL && strcmp(opts->comm_hook, "powersgd") == 0;
    bool saves = opts->save_model && !opts->dry_run, ddp = strcmp(opts->mode, "ddp") == 0;
    bool tees = strcmp(opts->tee, "0") != 0;
    const struct {
        const char *name, *needs;
        bool is_used;
    } rows[] = {
        {"powersgd-rank", "--comm-hook=powersgd", powersgd},
        {"powersgd-start-iter", "--comm-hook=powersgd", powersgd},
        {"bucket-cap-mb", "--mode=ddp", ddp},
        {"overlap", "--mode=ddp", ddp},
        {"duplicate-stdout-filters", "--tee=SPEC", tees},
        {"duplicate-stderr-filters", "--tee=SPEC", tees},
        {"log-line-prefix-template", "--tee=SPEC", tees},
        {"trace-steps", "--trace=FILE", opts->trace != NULL},
        {"event-log-steps", "--event-log=FILE", opts->event_log != NULL},
        {"save-every", "checkpoints, and this run writes none", saves},
        {"keep", "checkpoints, and this run writes none", saves},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && opts->command == COMMAND_TRAIN; i++)
        if (!rows[i].is_used && options_value_source(opts, rows[i].name) == SOURCE_COMMAND_LINE)
            LOG_W("--%s is not used: it needs %s", rows[i].name, rows[i].needs);
}

status options_check(options *opts)
{
    command of = opts->command == COMMAND_DOCTOR ? opts->examined : opts->command;
    if (of != COMMAND_TRAIN)
        return STATUS_OK;
    option_source global = options_value_source(opts, "global-batch-size");
    option_source local = options_value_source(opts, "batch-size");
    if (global != SOURCE_DEFAULT && global == local)
        return FAIL(STATUS_INVALID, "--batch-size (per rank) and --global-batch-size (of all "
                                    "ranks) exclude each other: give one");
    if (local > global)
        opts->global_batch_size = -1;
    TRY(check_elastic_batch(opts));
    augment images;
    interval saves;
    inject fault;
    TRY(check_optimizer(opts));
    TRY(check_schedule(opts));
    TRY(check_tests(opts));
    TRY(augment_parse(opts->augment, &images));
    TRY(interval_parse("--save-every", 1, opts->save_every, &saves));
    TRY(inject_parse(opts->inject, &fault));
    if (opts->nesterov && opts->momentum <= 0.0)
        return FAIL(STATUS_INVALID,
                    "--nesterov: needs a momentum; add --optimizer=sgd --momentum=0.9");
    return STATUS_OK;
}
