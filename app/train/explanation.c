#include "app/train/explanation.h"

#include "app/train/rank_context.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

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
    int world_size = rank->place.world_size;
    int64_t more = own * world_size - n;
    (void)run;
    fprintf(out, "%lld an epoch, %s\n", (long long)n,
            rank->opts->shuffle ? "shuffled anew in each" : "in order");
    if (world_size > 1)
        fprintf(out, "rank r gets numbers r, r + %d, r + %d, ...: %lld of them\n", world_size,
                2 * world_size, (long long)own);
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
    if (rank->settings.replicas > 1)
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
    size_t states = optimizer_states(strategy_optimizer(rank->strategy), names, arenas);
    double mb = (double)(network_count(rank->net) * sizeof(float)) * 1e-6;
    (void)run;
    fprintf(out, "%.2f MB of rank 0: parameters %.2f, gradients %.2f\n",
            (double)rank->dev->memory_bytes * 1e-6, mb, mb);
    fprintf(out, "the optimizer's state %.2f; activations and work space the rest\n",
            mb * (double)states);
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

void explanation_say(progress *p, const json_t *run)
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
