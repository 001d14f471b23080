#include "app/bench/commands.h"

#include "app/common/run_config.h"
#include "data/dataset.h"
#include "model/optimizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEVICES_BYTES = 256 };

/* Beside the installed program, beside the build folder, or in the working directory. */
status bench_find_peer(const char *name, char *out)
{
    static const char *const places[] = {"../share/mnist_ddp/peers", "../bench/peers"};
    char program[FILE_PATH_BYTES - 64];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n < 0)
        return FAIL(STATUS_IO, "/proc/self/exe: %s", strerror(errno));
    program[n] = '\0';
    char *slash = strrchr(program, '/');
    if (slash != NULL)
        *slash = '\0';
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(out, FILE_PATH_BYTES, "%s/%s/%s", program, places[i], name);
        if (file_exists(out))
            return STATUS_OK;
    }
    char here[64];
    snprintf(here, sizeof here, "bench/peers/%.40s", name);
    if (realpath(here, out) != NULL) /* FILE_PATH_BYTES is PATH_MAX */
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "--peer=%.*s: no %s beside the program (../share/mnist_ddp/peers, "
                "../bench/peers) nor in ./bench/peers; start from the source folder",
                (int)strcspn(name, "_"), name, name);
}

const char *bench_peer_python(const options *opts)
{
    const char *python =
        opts->bench.peer_python != NULL ? opts->bench.peer_python : getenv("TORCH_PYTHON");
    return python != NULL ? python : "python3";
}

/* Where the runs will find their images; if there are none they are made now, not in the first run.
 */
static status find_data(bench_commands *commands)
{
    dataset_location place;
    TRY(dataset_locate(DATASET_MNIST, commands->opts->data_dir, &place));
    commands->is_mnist = !place.embedded;
    snprintf(commands->data, sizeof commands->data, "%s", place.folder);
    return STATUS_OK;
}

status bench_commands_init(const options *opts, bool is_cuda, const char *folder,
                           bench_commands *out)
{
    optimizer_kind kind;
    TRY(optimizer_kind_parse(opts->optimizer, &kind));
    *out = (bench_commands){.opts = opts,
                            .program = "/proc/self/exe",
                            .folder = folder,
                            .is_cuda = is_cuda,
                            .steps = opts->bench.steps,
                            .threads = (int)opts->threads};
    /* As people write it: 0.001, and not the double that is next to the float. */
    char text[32];
    snprintf(text, sizeof text, "%g", (double)optimizer_default_lr(kind));
    out->lr = opts->lr >= 0 ? opts->lr : strtod(text, NULL);
    return STATUS_OK;
}

status bench_commands_find(bench_commands *commands)
{
    const options *opts = commands->opts;
    TRY(find_data(commands));
    if (strcmp(opts->bench.peer, "torch") != 0)
        return STATUS_OK;
    if (!commands->is_mnist)
        return FAIL(STATUS_INVALID, "--peer=torch: PyTorch's side reads MNIST's files, and there "
                                    "are none: name their folder with --data-dir");
    snprintf(commands->python, sizeof commands->python, "%s", bench_peer_python(opts));
    return bench_find_peer("torch_ddp_mnist.py", commands->script);
}

/* What both sides are given alike. */
static void add_work(const bench_commands *commands, const bench_case *c, bench_words *out)
{
    const options *o = commands->opts;
    bench_words_add(out, "--model=%s", c->model);
    bench_words_add(out, "--optimizer=%s", o->optimizer);
    bench_words_add(out, "--lr=%g", commands->lr);
    if (o->momentum > 0)
        bench_words_add(out, "--momentum=%g", o->momentum);
    bench_words_add(out, "--epochs=%lld", (long long)o->bench.warmup + 1);
    bench_words_add(out, "--limit=%lld", (long long)commands->steps * c->global_batch);
    bench_words_add(out, "--seed=%lld", (long long)o->seed);
    bench_words_add(out, "--threads=%d", commands->threads);
}

/* "0,1,2" */
static void list_devices(int n, char out[DEVICES_BYTES])
{
    out[0] = '\0';
    for (int i = 0; i < n; i++)
        snprintf(out + strlen(out), DEVICES_BYTES - strlen(out), "%s%d", i > 0 ? "," : "", i);
}

static void add_mode(const bench_commands *commands, const bench_case *c, bench_words *out)
{
    char list[DEVICES_BYTES];
    if (c->mode != STRATEGY_DDP)
        bench_words_add(out, "--mode=%s", strategy_about(c->mode)->name);
    if (!strategy_about(c->mode)->is_one_process) {
        bench_words_add(out, "--nproc-per-node=%d", c->world);
        bench_words_add(out, "--global-batch-size=%d", c->global_batch);
        bench_words_add(out, "--backend=%s", commands->opts->backend);
    } else {
        bench_words_add(out, "--batch-size=%d", c->global_batch);
    }
    list_devices(c->world, list);
    if (c->mode == STRATEGY_DP && commands->is_cuda)
        bench_words_add(out, "--devices=%s", list);
    else if (c->mode == STRATEGY_DP)
        bench_words_add(out, "--replicas=%d", c->world);
}

/* Each setting that a benchmark hands to its runs; which backend, add_mode says. */
static void add_settings(const bench_commands *commands, bench_words *out)
{
    for (size_t i = 0; i < options_table_count; i++) {
        const option_row *row = &options_table[i];
        char *text = NULL;
        if ((row->commands & FOR_TRAIN) == 0 || (row->commands & FOR_DP_VS_DDP) == 0 ||
            row->class == PRIVATE || row->offset == offsetof(options, backend))
            continue;
        if (run_config_text(row, commands->opts, &text) == STATUS_OK && text != NULL)
            bench_words_add(out, "--%s=%s", row->name, text);
        free(text);
    }
}

static void make_ours(const bench_commands *commands, const bench_case *c, bench_words *out)
{
    bench_words_add(out, "%s", commands->program);
    bench_words_add(out, "train");
    add_settings(commands, out);
    add_mode(commands, c, out);
    add_work(commands, c, out);
    bench_words_add(out, "--run-dir=%s/run", commands->folder);
    bench_words_add(out, "--eval-every=%lld",
                    commands->evaluates ? (long long)commands->opts->bench.warmup + 1 : 0);
    bench_words_add(out, "--no-save-model");
    bench_words_add(out, "--json");
    bench_words_add(out, "--quiet");
}

static void make_torch(const bench_commands *commands, const bench_case *c, bench_words *out)
{
    if (c->mode != STRATEGY_DDP) { /* torch.nn.DataParallel takes all GPUs that it sees */
        char list[DEVICES_BYTES];
        list_devices(commands->is_cuda ? c->world : 0, list);
        bench_words_add(out, "env");
        bench_words_add(out, "CUDA_VISIBLE_DEVICES=%s", list);
    }
    bench_words_add(out, "%s", commands->python);
    if (c->mode == STRATEGY_DDP) {
        bench_words_add(out, "-m");
        bench_words_add(out, "torch.distributed.run");
        bench_words_add(out, "--standalone");
        bench_words_add(out, "--nproc_per_node=%d", c->world);
    }
    bench_words_add(out, "%s", commands->script);
    bench_words_add(out, "--mode=%s", strategy_about(c->mode)->name);
    add_work(commands, c, out);
    bench_words_add(out, "--batch-size=%d",
                    c->mode == STRATEGY_DDP ? c->global_batch / c->world : c->global_batch);
    bench_words_add(out, "--data=%s", commands->data);
}

void bench_commands_make(const bench_commands *commands, const bench_case *c, bench_words *out)
{
    *out = (bench_words){.n = 0};
    if (c->torch)
        make_torch(commands, c, out);
    else
        make_ours(commands, c, out);
}
