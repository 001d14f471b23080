#include "app/options/foreign_words.h"

#include "app/options/options_table.h"

#include <stdio.h>
#include <string.h>

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
    {"--mode=tp --mode=pipeline --mode=model --mode=rpc", SCRIPTS,
     "not here: no model has to be cut; --mode=ddp, dp and ps spread the batch"},
    {"--mode=fsdp --mode=zero1", SCRIPTS,
     "not here: the largest network has 4.8 MB of parameters, so each rank has them whole"},
    {"-g --ngpus -t --nthreads", FOR_BENCH, "nccl-tests': every rank is a process; give --nproc-per-node=N"},
    {"--agg-iters", FOR_BENCH, "nccl-tests': operations are never sent together"},
    {"-p --parallel-init", FOR_BENCH, "nccl-tests': ranks are processes, which always start in parallel"},
    {"-z --blocking", FOR_BENCH, "nccl-tests': each operation is waited for on the CPU, and enqueued on a GPU"},
    {"-G --cudagraph", FOR_BENCH, "nccl-tests': only train records CUDA graphs"},
    {"-N --run-cycles", FOR_BENCH, "nccl-tests': give more --iters, or repeat the command"},
    {"-C --report-cputime", FOR_BENCH, "nccl-tests': the time is that of the whole operation"},
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
