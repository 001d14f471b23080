/* The program: reads what is asked for and hands it to the command, or to the launcher if that
 * command runs as several ranks. */
#include "app/bench/bench.h"
#include "app/common/commands.h"
#include "app/common/debug_level.h"
#include "app/common/device_list.h"
#include "app/common/exit_codes.h"
#include "app/common/run_log.h"
#include "app/common/terminal.h"
#include "app/common/version.h"
#include "app/demo/demo.h"
#include "app/launch/agent.h"
#include "app/launch/outer_launcher.h"
#include "app/launch/workers.h"
#include "app/options/options.h"
#include "app/predict/predict.h"
#include "app/report/run_page.h"
#include "app/train/failure.h"
#include "app/train/rank_context.h"
#include "app/train/rank_settings.h"
#include "app/train/run_folder.h"
#include "app/train/run_settings.h"
#include "app/train/strategy.h"
#include "app/train/train_command.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/host.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/thread.h"
#include "dist/process_group/backend_choice.h"
#include "kernels/device_kind.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

/* A launched worker's clock starts with its launcher's. */
static int64_t launch_time(int64_t started_ns)
{
    const char *text = getenv("MNIST_DDP_LAUNCHED");
    return text != NULL ? strtoll(text, NULL, 10) : started_ns;
}

/* What to start here. Refuses more ranks than NCCL can serve, before any is started. */
static status read_spec(const options *opts, worker_spec *out)
{
    int gpus = 0;
    bool is_nccl = strcmp(opts->backend, "nccl") == 0;
    TRY(device_list_check(opts));
    TRY(is_nccl ? device_list_count(opts, &gpus) : worker_spec_count_gpus(opts, &gpus));
    if (is_nccl && gpus == 0)
        return FAIL(STATUS_INVALID,
                    "backend nccl is for CUDA devices, and none is used here: give --device=cuda "
                    "to see why, or on the CPU --backend=shm (one host) or gloo (several)");
    TRY(worker_spec_read(opts, cores_count(), gpus, out));
    if (is_nccl && out->nproc > gpus)
        return FAIL(STATUS_INVALID,
                    "%d ranks on %d GPU%s: NCCL takes one rank per GPU; give --nproc-per-node=%d, "
                    "or --backend=shm for ranks that share a GPU",
                    out->nproc, gpus, gpus == 1 ? "" : "s", gpus);
    return STATUS_OK;
}

/* One rank needs no launcher, unless it may have to be started again or its output is to be kept;
 * or a health port is to answer; or it shows something, and whoever stops it is to read the same as
 * with several. */
static bool needs_launcher(const options *opts, const worker_spec *spec)
{
    return spec->world_size > 1 || spec->nnodes > 1 || worker_spec_is_elastic(spec) ||
           spec->max_restarts > 0 || opts->command == COMMAND_DEMO || opts->log_dir != NULL ||
           strcmp(opts->redirects, "0") != 0 || strcmp(opts->tee, "0") != 0 ||
           spec->health_check_port >= 0;
}

static int launch_ranks(const options *opts, int argc, char **argv, worker_spec *spec,
                        int64_t started_ns)
{
    status st = STATUS_OK;
    bool made = false;
    if (opts->command == COMMAND_TRAIN && spec->node_rank == 0) /* rank 0's folder is here */
        st = run_folder_check(opts);
    if (st == STATUS_OK && opts->command == COMMAND_TRAIN && spec->node_rank == 0 &&
        opts->run_dir != NULL && !opts->dry_run) /* some file systems let nobody make folders */
        st = status_context(file_make_new_folder(opts->run_dir, &made), "--run-dir");
    if (st != STATUS_OK)
        return failure_before_start(st, EXIT_CODE_CHECKPOINT);
    st = worker_spec_complete(opts, argc, argv, spec);
    if (opts->command == COMMAND_TRAIN)
        run_log_follow(opts->run_dir != NULL ? opts->run_dir : spec->run_dir);
    if (opts->quiet)
        log_set_level(LOG_WARNING);
    int code =
        st == STATUS_OK ? agent_run(spec, started_ns) : failure_before_start(st, EXIT_CODE_USAGE);
    if (spec->run_dir[0] != '\0')
        (void)rmdir(spec->run_dir); /* if no rank has written there */
    if (made)
        (void)rmdir(opts->run_dir);
    worker_spec_free(spec);
    return code;
}

/* What is wrong with these settings for so many ranks, before any of them is started. */
static status check_ranks(const options *opts, int world_size, bool is_elastic)
{
    if (opts->command == COMMAND_DEMO)
        return demo_check(opts, world_size);
    TRY(strategy_check(opts, world_size));
    return opts->command == COMMAND_TRAIN ? rank_settings_check(opts, world_size, is_elastic)
                                          : STATUS_OK;
}

/* A command that runs as the ranks of a job. */
typedef int rank_command(const options *opts, const rendezvous_place *place, int64_t started_ns);

/* The rest of this process's life is that of one rank. */
static int become_rank(const options *opts, const rendezvous_place *place, int64_t started_ns,
                       rank_command *work_as)
{
    if (place->rank != 0 && place->round == 0) /* else it may be rank 0 later */
        run_log_end();
    if (place->world_size > 1) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "rank %d", place->rank);
        log_set_prefix(prefix);
    }
    status st = nccl_settings_apply(opts->nccl_nvls); /* before the rank has threads */
    if (st != STATUS_OK)
        return exit_code_failed(st, EXIT_CODE_INTERNAL);
    return work_as(opts, place, launch_time(started_ns));
}

/* A launcher, ours or another one, has started it. */
static int as_worker(const options *opts, const rendezvous_place *place, int64_t started_ns,
                     rank_command *work_as)
{
    bool launched = getenv("MNIST_DDP_LAUNCHED") != NULL;
    status st = check_ranks(opts, place->world_size, place->round > 0);
    if (st != STATUS_OK) {
        if (opts->command == COMMAND_DEMO && place->rank > 0)
            return EXIT_CODE_USAGE; /* rank 0 says the same */
        int code = exit_code_failed(st, EXIT_CODE_USAGE);
        failure_write_error_file(st, place->rank, code);
        return code;
    }
    if (opts->launch_flags_given && !launched && opts->init_method == NULL && opts->rank < 0)
        LOG_W("RANK is set: joining as rank %d of %d; the launcher's flags are not used",
              place->rank, place->world_size);
    if (place->rank == 0 && !launched)
        options_say_unused(opts);
    return become_rank(opts, place, started_ns, work_as);
}

/* Runs as one rank if the environment names it or there is only one; else launches all. */
static int as_ranks(const options *opts, int argc, char **argv, int64_t started_ns,
                    rank_command *work_as)
{
    rendezvous_place place;
    worker_spec spec;
    bool is_worker = false;
    int code = EXIT_CODE_USAGE;
    status st = backend_choice_check(opts->backend);
    if (st == STATUS_OK)
        st = rank_context_place(opts, &place, &is_worker);
    if (st != STATUS_OK)
        return failure_before_start(st, EXIT_CODE_USAGE);
    if (is_worker)
        return as_worker(opts, &place, started_ns, work_as);
    options_say_unused(opts);
    st = read_spec(opts, &spec);
    if (st == STATUS_OK)
        st = check_ranks(opts, spec.world_size, worker_spec_is_elastic(&spec));
    if (st == STATUS_OK && opts->command == COMMAND_TRAIN)
        st = worker_spec_check_mode(&spec, opts);
    if (st == STATUS_OK && opts->command == COMMAND_TRAIN && needs_launcher(opts, &spec))
        st = doctor_check_train(opts, &spec, &code);
    if (st != STATUS_OK)
        return failure_before_start(st, code);
    if (spec.world_size > 1 && strcmp(opts->backend, "mpi") == 0)
        return exit_code_failed(mpirun_become(&spec, argc, argv), EXIT_CODE_USAGE);
    if (needs_launcher(opts, &spec))
        return launch_ranks(opts, argc, argv, &spec, started_ns);
    return become_rank(opts, &place, started_ns, work_as);
}

static int bench(const options *opts, int argc, char **argv, int64_t started_ns)
{
    if (!collective_is_meant(opts))
        return bench_command(opts, argc, argv);
    if (collective_compares(opts))
        return collective_compare_command(opts, argc, argv);
    status st = collective_check_flags(opts); /* before any rank is started */
    return st == STATUS_OK ? as_ranks(opts, argc, argv, started_ns, collective_command)
                           : exit_code_failed(st, EXIT_CODE_USAGE);
}

static int print_version(const options *opts)
{
    (void)opts;
    printf("mnist_ddp %s (%s)\n", MNIST_DDP_VERSION, device_libraries());
    return EXIT_SUCCESS;
}

static int print_help(const options *opts)
{
    options_print_help(opts);
    return EXIT_SUCCESS;
}

static int run_named(const options *opts, int argc, char **argv, int64_t started_ns)
{
    static int (*const alone[])(const options *) = {
        [COMMAND_EVAL] = eval_command,       [COMMAND_PREDICT] = predict_command,
        [COMMAND_SERVE] = serve_command,     [COMMAND_REPORT] = report_command,
        [COMMAND_SAMPLER] = sampler_command, [COMMAND_DATA] = data_command,
        [COMMAND_STORE] = store_command,     [COMMAND_DOCTOR] = doctor_command,
        [COMMAND_ENV] = env_command,         [COMMAND_COMPLETION] = completion_command,
        [COMMAND_MANUAL] = manual_command,   [COMMAND_VERSION] = print_version,
        [COMMAND_HELP] = print_help,
    };
    if (opts->command == COMMAND_TRAIN)
        return as_ranks(opts, argc, argv, started_ns, train_command);
    if (opts->command == COMMAND_DEMO)
        return opts->action == NULL ? demo_list()
                                    : as_ranks(opts, argc, argv, started_ns, demo_command);
    if (opts->command == COMMAND_RUN)
        return run_command(opts, started_ns);
    if (opts->command == COMMAND_BENCH)
        return bench(opts, argc, argv, started_ns);
    return alone[opts->command](opts);
}

/* Who has started this process, for the commands that are ranks or start them. One process of the
 * job says it. */
static status take_launcher(options *opts)
{
    outer_launcher outer;
    char text[OUTER_LAUNCHER_TEXT_BYTES];
    command what = opts->command == COMMAND_DOCTOR ? opts->examined : opts->command;
    if (what != COMMAND_TRAIN && what != COMMAND_RUN &&
        !(opts->command == COMMAND_DEMO && opts->action != NULL) &&
        !(what == COMMAND_BENCH && collective_is_meant(opts)))
        return STATUS_OK;
    bool examines = opts->command == COMMAND_DOCTOR; /* and says itself what is wrong */
    status st = outer_launcher_find(opts, &outer);
    if (examines && (st != STATUS_OK || outer.role != OUTER_ROLE_AGENT))
        return STATUS_OK;
    TRY(st);
    if (what == COMMAND_BENCH && collective_compares(opts) && outer.role != OUTER_ROLE_ALONE)
        return FAIL(STATUS_INVALID,
                    "%s: a comparison starts its own ranks: run it once, without %s",
                    opts->benchmark, outer.row->title);
    if (outer_launcher_speaks(&outer) && !examines) {
        outer_launcher_describe(&outer, text);
        LOG_V("launcher: %s", text);
    }
    return outer_launcher_adopt(&outer, opts);
}

/* On failure *code is what to exit with. */
static status read_options(int argc, char **argv, options *out, int *code)
{
    options opts;
    *code = EXIT_CODE_USAGE;
    TRY(options_read(argc, argv, &opts));
    worker_spec_hide(&opts, argc, argv);
    if (opts.quiet)
        log_set_quiet();
    status st = take_launcher(&opts);
    if (st == STATUS_OK)
        st = run_settings_complete(&opts);
    if (st == STATUS_OK) {
        *code = EXIT_CODE_CHECKPOINT;
        st = run_settings_complete_eval(&opts);
    }
    if (st == STATUS_OK) {
        *code = EXIT_CODE_USAGE;
        st = demo_complete(&opts);
    }
    if (st == STATUS_OK)
        st = demo_check_files(&opts, code);
    if (st == STATUS_OK)
        *code = EXIT_CODE_USAGE;
    if (st == STATUS_OK)
        st = options_check(&opts);
    if (st == STATUS_OK)
        *out = opts;
    else
        options_free(&opts);
    return st;
}

/* What every command needs of the shell's limits. */
static status check_limits(void)
{
    enum { FILES = 12 }; /* a rank on its own has 7 open at most */
    TRY(thread_check_stack());
    return status_context(file_limit_check(FILES), "this program needs");
}

int main(int argc, char **argv)
{
    int64_t started_ns = clock_now_ns();
    static char name[] = "mnist_ddp";
    prctl(PR_SET_NAME, name); /* workers are started as /proc/self/exe */
    if (strncmp(argv[0], WORKER_TITLE, strlen(WORKER_TITLE)) == 0)
        argv[0] = name;       /* as it is typed */
    signal(SIGXFSZ, SIG_IGN); /* a file over ulimit -f fails to be written, no more */
    log_set_level_from_environment();
    json_text_watch_memory();
    options opts;
    int code = EXIT_CODE_INTERNAL;
    status st = standard_streams_open();
    if (st == STATUS_OK) {
        run_log_begin();
        st = check_limits();
    }
    if (st == STATUS_OK)
        st = read_options(argc, argv, &opts, &code);
    if (st != STATUS_OK)
        return exit_code_failed(st, code);
    debug_level_apply(&opts);
    if (opts.command != COMMAND_TRAIN)
        run_log_end();
    standard_streams_set_signal(&opts);
    terminal_take_log();
    code = standard_streams_close(&opts, run_named(&opts, argc, argv, started_ns));
    options_free(&opts);
    return code;
}
