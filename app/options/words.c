/* Words that were typed and are none here: what is meant by them. */
#include "app/options/options_table.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

void options_table_normalize(const char *name, char out[OPTION_NAME_BYTES])
{
    size_t length = strlen(name);
    out[0] = '\0';
    if (length >= OPTION_NAME_BYTES)
        return;
    for (size_t i = 0; i <= length; i++)
        out[i] = name[i] == '_' ? '-' : name[i];
}

static int smallest(int a, int b, int c)
{
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Inserted, deleted, changed or swapped neighbouring letters that lead from `a` to `b`.
 * Row by row over a's letters: cost[k][j] is the distance of a's first i letters (i mod 3 == k) to
 * b's first j. A swap looks two rows back. */
static int edit_distance(const char *a, const char *b)
{
    int cost[3][NEAREST_BYTES + 1];
    int n = (int)strlen(a), m = (int)strlen(b);
    if (n > NEAREST_BYTES || m > NEAREST_BYTES)
        return INT_MAX;
    for (int j = 0; j <= m; j++)
        cost[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *row = cost[i % 3];
        const int *above = cost[(i + 2) % 3], *two_above = cost[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int change = above[j - 1] + (a[i - 1] != b[j - 1]);
            row[j] = smallest(change, above[j] + 1, row[j - 1] + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                two_above[j - 2] + 1 < row[j])
                row[j] = two_above[j - 2] + 1;
        }
    }
    return cost[n % 3][m];
}

void nearest_init(nearest *search, const char *word)
{
    *search = (nearest){.word = word, .distance = INT_MAX};
}

void nearest_offer(nearest *search, const char *candidate)
{
    /* One edit in three letters: more is another word. */
    int allowed = (int)strlen(search->word) / 3;
    if (allowed < 1)
        allowed = 1;
    int distance = edit_distance(search->word, candidate);
    if (distance > allowed || distance >= search->distance)
        return;
    search->distance = distance;
    snprintf(search->best, sizeof search->best, "%s", candidate);
}

bool nearest_found(const nearest *search)
{
    return search->distance != INT_MAX;
}

int names_find(const char *word, const void *rows, int n, size_t row_bytes, char hint[HINT_BYTES])
{
    nearest search;
    nearest_init(&search, word);
    int used = snprintf(hint, HINT_BYTES, "there are");
    for (int i = 0; i < n; i++) {
        const char *name =
            *(const char *const *)(const void *)((const char *)rows + (size_t)i * row_bytes);
        if (strcmp(word, name) == 0)
            return i;
        nearest_offer(&search, name);
        if (used < HINT_BYTES)
            used +=
                snprintf(hint + used, HINT_BYTES - (size_t)used, "%s %s", i > 0 ? "," : "", name);
    }
    if (nearest_found(&search))
        snprintf(hint, HINT_BYTES, "did you mean '%s'?", search.best);
    return -1;
}

enum { SCRIPTS = FOR_ALL & ~FOR_RUN };

/* clang-format off */
const foreign_word foreign_words[] = {
    {"torchrun python python3 torch.distributed.launch torch.distributed.run", FOR_ALL,
     "no command here: leave it out, -m and the script too; for another script type mnist_ddp run SCRIPT.py"},
    {"-m", FOR_TRAIN,
     "train needs no module's name: leave it out; for a module of Python's type mnist_ddp run -m MODULE"},
    {"-np", FOR_ALL, "mpirun's: give --nproc-per-node=N, or type mpirun -np N before mnist_ddp"},
    {"--gpus", FOR_ALL, "give --nproc-per-node=N, or --devices=0,3 for the GPUs themselves: a rank each"},
    {"--dist-url", SCRIPTS, "give --init-method=URL, with --rank and --world-size"},
    {"--dist-backend", SCRIPTS, "give --backend=NAME"},
    {"--workers --num-workers", SCRIPTS,
     "no process loads data: MNIST is mapped into memory, and the device makes the batch"},
    {"--pin-memory", SCRIPTS, "always so where it matters: a GPU has a copy of the images"},
    {"--download", SCRIPTS, "type mnist_ddp data fetch, once, before the run"},
    {"--sync-bn", SCRIPTS, "no network here has a batch norm"},
    {"--find-unused-parameters", SCRIPTS, "each layer is in every backward, so no parameter is unused"},
    {"--static-graph", SCRIPTS, "always so: gradients become final from the last layer to the first"},
    {"--gradient-as-bucket-view", SCRIPTS, "always so: a bucket is a slice of the one array of gradients"},
    {"--fp16 --apex", SCRIPTS, "give --amp=fp16 (on a GPU) or --amp=bf16"},
    {"--compile", SCRIPTS, "no interpreter is in a step; --cuda-graph records it once, and is on"},
    {"--tensorboard", SCRIPTS, "always written, in the run's folder: tensorboard --logdir runs"},
    {"--mode=rpc", SCRIPTS, "not here: --mode=ps --async has what needs it; see mnist_ddp demo rpc"},
    {"-g --ngpus -t --nthreads", FOR_BENCH, "nccl-tests': every rank is a process; give --nproc-per-node=N"},
    {"--agg-iters", FOR_BENCH, "nccl-tests': operations are never sent together"},
    {"-p --parallel-init", FOR_BENCH, "nccl-tests': ranks are processes, which always start in parallel"},
    {"-z --blocking", FOR_BENCH, "nccl-tests': each operation is waited for on the CPU, and enqueued on a GPU"},
    {"-G --cudagraph", FOR_BENCH, "nccl-tests': on with nccl, unless --no-cuda-graph"},
    {"-N --run-cycles", FOR_BENCH, "nccl-tests': give more --iters, or repeat the command"},
    {"-C --report-cputime", FOR_BENCH, "nccl-tests': the time is that of the whole operation"},
    {"--hold-out", FOR_BENCH, "not here any more: bench/scaling.py holds out each world size in turn"},
    {"--link-latency-us --link-bandwidth-gbps --node-latency-us --node-bandwidth-gbps --ranks-per-node "
     "--images-per-s --project-ranks --project-batch --project-global-batch", FOR_BENCH,
     "not here any more: a cluster is projected to by bench/scaling.py, which has this flag"},
};
/* clang-format on */
const size_t foreign_words_count = sizeof foreign_words / sizeof foreign_words[0];

/* Whether `list` (separated by blanks) has the word. */
static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; *at != '\0'; at += *at == ' ') {
        size_t n = strcspn(at, " ");
        if (n == length && strncmp(at, word, n) == 0)
            return true;
        at += n;
    }
    return false;
}

const char *foreign_words_answer(const char *word, unsigned commands)
{
    char whole[OPTION_NAME_BYTES], flag[OPTION_NAME_BYTES];
    options_table_normalize(word, whole);
    snprintf(flag, sizeof flag, "%.*s", (int)strcspn(whole, "="), whole);
    for (size_t i = 0; i < foreign_words_count; i++) {
        const foreign_word *row = &foreign_words[i];
        if ((row->commands & commands) != 0 &&
            (has_word(row->words, whole) || has_word(row->words, flag)))
            return row->answer;
    }
    return NULL;
}
