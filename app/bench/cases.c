#include "app/bench/bench.h"

#include "app/common/run_files.h"
#include "base/text.h"
#include "data/dataset.h"
#include "model/model_kind.h"
#include "model/network.h"
#include "model/optimizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_WORLD = 64, MAX_BATCH = 1 << 20, WORD_BYTES = 32 };

static const bench_mode VARIANTS[] = {
    {.name = "ps-async",
     .strategy = STRATEGY_PS,
     .flags = "--async",
     .by_rank = true,
     .advice = "take it if ranks are unequally fast, and steps of somewhat old weights do no harm: "
               "nobody waits, and no two runs are alike"},
    {.name = "localsgd",
     .strategy = STRATEGY_DDP,
     .flags = "--sync-every=16",
     .has_peer = true,
     .advice =
         "take it if ranks seldom can talk: a sixteenth of ddp's bytes, for weights that part "
         "in between"},
    {.name = "ddp-bf16",
     .strategy = STRATEGY_DDP,
     .flags = "--comm-hook=bf16",
     .cpu_only = true,
     .has_peer = true,
     .advice = "take it if the link between machines is the limit: half of ddp's bytes, for "
               "gradients of 16 bits"},
    {.name = "powersgd",
     .strategy = STRATEGY_DDP,
     .flags = "--comm-hook=powersgd --powersgd-start-iter=2",
     .cpu_only = true,
     .advice = "take it if the link is slow and matrices are large: a few of ddp's bytes, for "
               "gradients that are close"},
};
_Static_assert(sizeof VARIANTS / sizeof VARIANTS[0] == BENCH_VARIANTS, "BENCH_VARIANTS");

/* `place`: as bench_list_modes has it. */
static bench_mode mode_at(int place)
{
    if (place >= STRATEGY_COUNT)
        return VARIANTS[place - STRATEGY_COUNT];
    const strategy_facts *how = strategy_about((strategy_kind)place);
    return (bench_mode){.name = how->name,
                        .strategy = (strategy_kind)place,
                        .has_peer = how->has_peer,
                        .advice = how->advice};
}

bench_mode bench_case_mode(const bench_case *c)
{
    return mode_at(c->variant > 0 ? STRATEGY_COUNT + c->variant - 1 : (int)c->mode);
}

/* Reads whole numbers from 1 to n; or, unless `words` is NULL, words, as their places among those,
 * of which there are n. */
static status read_list(const char *flag, const char *text, const char *const *words, int n,
                        bench_list *out)
{
    char word[WORD_BYTES], allowed[128] = "";
    const char *at = text, *entry;
    size_t length;
    *out = (bench_list){.n = 0};
    for (int i = 0; i < n && words != NULL; i++)
        snprintf(allowed + strlen(allowed), sizeof allowed - strlen(allowed), "%s%s",
                 i > 0 ? ", " : "", words[i]);
    while ((entry = comma_list_next(&at, &length)) != NULL) {
        int value = 0;
        snprintf(word, sizeof word, "%.*s", (int)length, entry);
        while (words != NULL && value < n && strcmp(word, words[value]) != 0)
            value++;
        if (words != NULL && value == n)
            return FAIL(STATUS_INVALID, "%s: '%s' is not one of %s", flag, word, allowed);
        if (words == NULL && !number_parse(word, 1, n, &value))
            return FAIL(STATUS_INVALID, "%s: '%s' is not a whole number from 1 to %d (in '%.80s')",
                        flag, word, n, text);
        bool is_there = false;
        for (int i = 0; i < out->n; i++)
            is_there |= out->values[i] == value;
        if (!is_there && out->n == BENCH_LIST_MAX)
            return FAIL(STATUS_INVALID, "%s: more than %d entries", flag, BENCH_LIST_MAX);
        if (!is_there)
            out->values[out->n++] = value;
    }
    return out->n > 0 ? STATUS_OK : FAIL(STATUS_INVALID, "%s: the list is empty", flag);
}

status bench_list_numbers(const char *flag, const char *text, int most, bench_list *out)
{
    return read_list(flag, text, NULL, most, out);
}

status bench_list_modes(const char *text, bench_list *out)
{
    enum { N = STRATEGY_COUNT + BENCH_VARIANTS };
    const char *names[N];
    for (int i = 0; i < N; i++)
        names[i] = mode_at(i).name;
    if (strcmp(text, "all") != 0)
        return read_list("--modes", text, names, N, out);
    for (out->n = 0; out->n < N; out->n++)
        out->values[out->n] = out->n;
    return STATUS_OK;
}

status bench_list_models(const char *text, bench_list *out)
{
    return read_list("--models", text, model_kind_names, MODEL_COUNT, out);
}

/* Everything that cases are made from. */
typedef struct plan {
    bench_list modes, worlds, models, batches;
    bool strong, weak, peer, is_cuda;
    bench_cases *cases;
    int room;
    json_t *notes;
} plan;

void bench_case_name(const bench_case *c, char out[BENCH_CASE_BYTES])
{
    snprintf(out, BENCH_CASE_BYTES, "%s%s x %d, %s, batch %d", c->torch ? "torch " : "",
             bench_case_mode(c).name, c->world, model_kind_name(c->model), c->global_batch);
}

/* A note, once. */
static void note(plan *p, const char *text)
{
    const json_t *old;
    size_t i;
    json_array_foreach(p->notes, i, old) if (strcmp(json_string_value(old), text) == 0) return;
    json_array_append_new(p->notes, json_string(text));
}

static bool is_same(const bench_case *a, const bench_case *b)
{
    return a->torch == b->torch && a->mode == b->mode && a->variant == b->variant &&
           a->world == b->world && a->batch == b->batch && a->global_batch == b->global_batch &&
           a->model == b->model;
}

static status add_case(plan *p, const bench_case *c)
{
    bench_cases *cases = p->cases;
    for (int i = 0; i < cases->count; i++)
        if (is_same(&cases->list[i], c)) {
            cases->list[i].strong |= c->strong;
            cases->list[i].weak |= c->weak;
            return STATUS_OK;
        }
    if (cases->count == p->room) {
        p->room = p->room > 0 ? 2 * p->room : 32;
        bench_case *grown = realloc(cases->list, (size_t)p->room * sizeof *grown);
        if (grown == NULL)
            return FAIL(STATUS_NO_MEMORY, "%d cases", p->room);
        cases->list = grown;
    }
    cases->list[cases->count++] = *c;
    return STATUS_OK;
}

/* Why this case cannot be measured; "" if it can. */
static void refuse(const plan *p, const bench_case *c, char *out, size_t size_bytes)
{
    out[0] = '\0';
    const strategy_facts *how = strategy_about(c->mode);
    const bench_mode mode = bench_case_mode(c);
    if (c->world < 2 && how->alone != NULL)
        snprintf(out, size_bytes, "%s x %d is left out: it takes a second rank", how->name,
                 c->world);
    else if (how->most != NULL && c->world > how->most(c->model))
        snprintf(out, size_bytes, "%s x %d is left out: %s can be cut for %d %ss at most",
                 how->name, c->world, model_kind_name(c->model), how->most(c->model), how->unit);
    else if (c->torch && c->mode == STRATEGY_DP && !p->is_cuda)
        snprintf(out, size_bytes,
                 "torch dp is left out: without a GPU torch.nn.DataParallel "
                 "calls its module as it is, on one device");
    else if (c->torch && !mode.has_peer)
        snprintf(out, size_bytes, "torch %s is left out: bench/peers has no such training",
                 mode.name);
    else if (p->is_cuda && mode.cpu_only)
        snprintf(out, size_bytes, "%s is left out: its %s is for the CPU", mode.name, mode.flags);
    else if (c->global_batch > MAX_BATCH)
        snprintf(out, size_bytes, "%s x %d with batch %d is left out: at most %d images per step",
                 how->name, c->world, c->global_batch, MAX_BATCH);
    else if (c->mode != STRATEGY_DP && !how->cuts_model && c->global_batch % c->world != 0)
        snprintf(out, size_bytes,
                 "%s x %d with batch %d is left out: its ranks cannot share that evenly", how->name,
                 c->world, c->global_batch);
}

/* A case of ours, and the peer's beside it. */
static status offer(plan *p, bench_case c)
{
    char reason[160];
    for (int torch = 0; torch <= p->peer; torch++) {
        c.torch = torch != 0;
        refuse(p, &c, reason, sizeof reason);
        if (reason[0] != '\0')
            note(p, reason);
        else
            TRY(add_case(p, &c));
    }
    return STATUS_OK;
}

/* One mode at one world size, for both comparisons. */
static status offer_world(plan *p, bench_case c, int world)
{
    c.world = world;
    for (int weak = 0; weak < 2; weak++) {
        if (weak ? !p->weak || world == 1 : !p->strong && world > 1)
            continue;
        c.global_batch = weak ? c.batch * world : c.batch;
        c.strong = !weak && p->strong;
        c.weak = weak || (p->weak && world == 1);
        TRY(offer(p, c));
    }
    return STATUS_OK;
}

static status offer_all(plan *p)
{
    for (int model = 0; model < p->models.n; model++)
        for (int size = 0; size < p->batches.n; size++)
            for (int mode = 0; mode < p->modes.n; mode++) {
                int place = p->modes.values[mode];
                bench_case c = {.mode = mode_at(place).strategy,
                                .variant = place < STRATEGY_COUNT ? 0 : place - STRATEGY_COUNT + 1,
                                .model = (model_kind)p->models.values[model],
                                .batch = p->batches.values[size]};
                if (c.mode == STRATEGY_SINGLE)
                    TRY(offer_world(p, c, 1));
                for (int w = 0; w < p->worlds.n && c.mode != STRATEGY_SINGLE; w++)
                    TRY(offer_world(p, c, p->worlds.values[w]));
            }
    return STATUS_OK;
}

status bench_cases_make(const options *opts, bool is_cuda, bench_cases *out, json_t *notes)
{
    bench_cases cases = {NULL, 0};
    plan p = {.cases = &cases, .notes = notes, .is_cuda = is_cuda};
    TRY(bench_list_modes(opts->bench.modes, &p.modes));
    TRY(bench_list_models(opts->bench.models, &p.models));
    TRY(bench_list_numbers("--world-sizes", opts->bench.world_sizes, MAX_WORLD, &p.worlds));
    TRY(bench_list_numbers("--batch-sizes", opts->bench.batch_sizes, MAX_BATCH, &p.batches));
    p.strong = strcmp(opts->bench.scaling, "weak") != 0;
    p.weak = strcmp(opts->bench.scaling, "strong") != 0;
    p.peer = strcmp(opts->bench.peer, "torch") == 0;
    if (!p.peer && strcmp(opts->bench.peer, "none") != 0)
        return FAIL(STATUS_INVALID, "--peer=%s: %s has torch beside it only", opts->bench.peer,
                    opts->benchmark);
    status st = offer_all(&p);
    if (st == STATUS_OK && cases.count == 0) {
        const char *why = json_string_value(json_array_get(notes, 0));
        st = FAIL(STATUS_INVALID, "nothing to measure: %s", why != NULL ? why : "no case");
    }
    if (st == STATUS_OK)
        *out = cases;
    else
        bench_cases_free(&cases);
    return st;
}

void bench_cases_free(bench_cases *cases)
{
    free(cases->list);
    *cases = (bench_cases){NULL, 0};
}

int bench_cases_base(const bench_cases *cases, int i)
{
    const bench_case *c = &cases->list[i];
    int best = -1, best_rank = 0;
    for (int k = 0; k < cases->count; k++) {
        const bench_case *other = &cases->list[k];
        if (other->torch != c->torch || other->world != 1 || other->batch != c->batch ||
            other->model != c->model)
            continue;
        int rank = other->mode == STRATEGY_SINGLE ? 3 : other->mode == c->mode ? 2 : 1;
        if (rank > best_rank) {
            best = k;
            best_rank = rank;
        }
    }
    return best;
}

int bench_cases_find(const bench_cases *cases, int i, bool torch, strategy_kind mode)
{
    bench_case wanted = cases->list[i];
    wanted.torch = torch;
    wanted.mode = mode;
    wanted.variant = 0;
    for (int k = 0; k < cases->count; k++)
        if (is_same(&cases->list[k], &wanted))
            return k;
    return -1;
}

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
    dataset_location place;
    TRY(dataset_locate(DATASET_MNIST, opts->data_dir, &place)); /* made now, not in the first run */
    commands->is_mnist = !place.embedded;
    snprintf(commands->data, sizeof commands->data, "%s", place.folder);
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
    bench_words_split(out,
                      "--model=%s --optimizer=%s --lr=%g --epochs=%lld --limit=%lld --seed=%lld "
                      "--threads=%d",
                      model_kind_name(c->model), o->optimizer, commands->lr,
                      (long long)o->bench.warmup + 1, (long long)commands->steps * c->global_batch,
                      (long long)o->seed, commands->threads);
    if (o->momentum > 0)
        bench_words_add(out, "--momentum=%g", o->momentum);
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
    const strategy_facts *how = strategy_about(c->mode);
    if (c->mode != STRATEGY_DDP)
        bench_words_add(out, "--mode=%s", how->name);
    bench_mode mode = bench_case_mode(c);
    if (mode.flags != NULL)
        bench_words_split(out, "%s", mode.flags);
    bool whole = how->is_one_process || mode.by_rank;
    if (!how->is_one_process)
        bench_words_split(out, "--nproc-per-node=%d --backend=%s", c->world,
                          commands->opts->backend);
    bench_words_add(out, "--%sbatch-size=%d", whole ? "" : "global-", c->global_batch);
    list_devices(c->world, list);
    if (how->has_replicas && commands->is_cuda)
        bench_words_add(out, "--devices=%s", list);
    else if (how->has_replicas)
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
    add_mode(commands, c, out);
    add_work(commands, c, out);
    add_settings(commands, out);
    bench_words_add(out, "--run-dir=%s/run", commands->folder);
    bench_words_split(out, "--eval-every=%lld --no-save-model --json --quiet",
                      commands->evaluates ? (long long)commands->opts->bench.warmup + 1 : 0);
}

static void make_torch(const bench_commands *commands, const bench_case *c, bench_words *out)
{
    const strategy_facts *how = strategy_about(c->mode);
    bench_mode mode = bench_case_mode(c);
    if (how->is_one_process) { /* torch.nn.DataParallel takes all GPUs that it sees */
        char list[DEVICES_BYTES];
        list_devices(commands->is_cuda ? c->world : 0, list);
        bench_words_split(out, "env CUDA_VISIBLE_DEVICES=%s", list);
    }
    bench_words_add(out, "%s", commands->python);
    if (!how->is_one_process)
        bench_words_split(out, "-m torch.distributed.run --standalone --nproc_per_node=%d",
                          c->world);
    bench_words_add(out, "%s", commands->script);
    bench_words_add(out, "--mode=%s", how->name);
    if (mode.flags != NULL)
        bench_words_split(out, "%s", mode.flags);
    add_work(commands, c, out);
    bench_words_add(out, "--batch-size=%d",
                    how->is_one_process || how->cuts_model ? c->global_batch
                                                           : c->global_batch / c->world);
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
