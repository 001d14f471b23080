#include "app/options/options_table.h"

#include <stdlib.h>
#include <string.h>

enum { SHOWN_BYTES = 80 };

/* clang-format off */
const command_row command_table[] = {
    [COMMAND_TRAIN] = {
        "train", "mnist_ddp [train] [FLAGS]", "train a network; what happens without a command",
        "Trains a network on MNIST, as one process or as ranks that share the work. The log goes to "
        "stdout. The model, checkpoints and result.json go to the run's folder.", FOR_TRAIN, false, {{0}},
        {{"mnist_ddp --epochs=1", "one process, one pass over the images"},
         {"mnist_ddp --nproc-per-node=2 --global-batch-size=64", "two ranks share a batch"},
         {"mnist_ddp --run-dir=runs/a --resume=auto", "go on where runs/a stopped, or start it"}}},
    [COMMAND_RESUME] = {
        "resume", "mnist_ddp resume [FLAGS] [RUN]", "train on where a run stopped",
        "The same as train --run-dir=RUN --resume. RUN is the run's folder; without it: the newest in runs/. "
        "Settings that are not given are those of the run.", FOR_TRAIN, true, {{0}},
        {{"mnist_ddp resume", "the newest run"},
         {"mnist_ddp resume runs/a --epochs=20", "and more epochs than it was to have"}}},
    [COMMAND_EVAL] = {
        "eval", "mnist_ddp eval [FLAGS] [RUN]",
        "the accuracy of a trained model on the test images",
        "Prints the accuracy and the confusion matrix. RUN is a run's folder or a safetensors file, as with --checkpoint. "
        "Without it: the newest model in runs/. --json also has the worst mistakes and the filters of "
        "the first layer.", FOR_EVAL, false, {{0}},
        {{"mnist_ddp eval", "the newest model"},
         {"mnist_ddp eval runs/a --out=runs/a", "writes runs/a/eval.json, for mnist_ddp report"},
         {"mnist_ddp eval model.safetensors --json", "a file, also one of PyTorch's"}}},
    [COMMAND_PREDICT] = {
        "predict", "mnist_ddp predict [FLAGS] [RUN] FILE ...", "what a trained model takes a picture for",
        "FILE is a picture of one digit, bright on dark or dark on bright, of any size: PNG, PGM, PPM or PBM. It is "
        "made into an image such as MNIST's are. FILE#3 and FILE#0-9 are images of an IDX file, as they are. RUN is a "
        "run's folder or a safetensors file, as with --checkpoint; without it: the newest model in runs/.",
        FOR_PREDICT, false, {{0}},
        {{"mnist_ddp predict seven.png", "by the newest model in runs/"},
         {"mnist_ddp predict runs/a --quiet *.png", "one digit a line"},
         {"mnist_ddp predict --json data/MNIST/raw/t10k-images-idx3-ubyte.gz#0-9", "the first ten test images"}}},
    [COMMAND_SERVE] = {
        "serve", "mnist_ddp serve [FLAGS] [RUN]", "a page to draw digits on, and to watch a run",
        "Prints the address of a page for the browser, and serves it until Ctrl-C. RUN is a run's folder, also of one "
        "under way: its curves grow, and each model that it saves is used. Or a safetensors file. Without it: the "
        "newest model in runs/.", FOR_SERVE, false, {{"threads", "1"}},
        {{"mnist_ddp serve", "the newest model"},
         {"mnist_ddp serve runs/a --port=8000", "a run, at http://127.0.0.1:8000/"}}},
    [COMMAND_REPORT] = {
        "report", "mnist_ddp report [RUN ...]",
        "a page with the curves of a run, or of several",
        "Writes RUN/report.html from what the run has left in its folder, also while it goes on. "
        "Several runs are overlaid in ./report.html. Without RUN: the newest in runs/.", FOR_REPORT, false, {{0}},
        {{"mnist_ddp report runs/a", "writes runs/a/report.html"},
         {"mnist_ddp report runs/a runs/b", "compares two runs, in ./report.html"}}},
    [COMMAND_SAMPLER] = {
        "sampler", "mnist_ddp sampler --world-size=N --rank=N [FLAGS]",
        "the indices that a rank trains on, one a line",
        "They are those of PyTorch's DistributedSampler.", FOR_SAMPLER, true, {{"rank", "0"}},
        {{"mnist_ddp sampler --world-size=2 --rank=1 --head=5", "the first five of rank 1"},
         {"mnist_ddp sampler --samples=10 --epoch=3 --json", "as JSON, of the fourth epoch"}}},
    [COMMAND_DATA] = {
        "data", "mnist_ddp data fetch|info|verify|show [INDEX ...] [FLAGS]",
        "fetch MNIST or another data set, or look at those that are here",
        "fetch gets what is missing of one set over https, into the folder that a run looks in first, or below "
        "--data-dir as torchvision lays it out. What was broken off goes on. info lists all data sets, or the "
        "one of --dataset: where each is found, its images and digests. verify compares one set's files with "
        "the digests of the original ones. show prints images, the first ten or those of the indices and ranges "
        "(7, 10-19), with index and label.", FOR_DATA, true, {{0}},
        {{"mnist_ddp data fetch", "MNIST, 12 MB, into ./data/MNIST/raw"},
         {"mnist_ddp data fetch --dataset=fashion --data-dir=/srv/data", "Fashion-MNIST, as torchvision would"},
         {"mnist_ddp data show 0-4 --test --label=7", "the sevens among the first test images"}}},
    [COMMAND_RUN] = {
        "run", "mnist_ddp run [FLAGS] [--] PROGRAM [ARGS]",
        "any program as several ranks, as torchrun does",
        "PROGRAM is a Python script (by its .py), an executable, or with -m a module. Flags end at "
        "PROGRAM.", FOR_RUN, false, {{0}},
        {{"mnist_ddp run --nproc-per-node=2 train.py --lr=0.1", "two ranks of a script"},
         {"mnist_ddp run --nproc-per-node=2 --tee=3 --log-dir=logs ./program", "and keep their output"},
         {"mnist_ddp run --nnodes=2 --node-rank=0 --master-addr=10.0.0.1 train.py",
          "the first of two machines"}}},
    [COMMAND_STORE] = {
        "store", "mnist_ddp store serve|set|get|wait|add|delete|... [KEY ...] [FLAGS]",
        "a key-value store, as PyTorch's TCPStore, which joins in",
        "serve prints its address and serves until Ctrl-C. Of a store, also a job's or one of Python's: set KEY "
        "VALUE, where - is stdin; get KEY, wait KEY ... wait until it is there; add KEY [N] counts; delete KEY; "
        "check KEY ...; num_keys; compare_set KEY EXPECTED DESIRED. What follows -- is no flag. Exit code: 1 if a "
        "key is not there or holds another value, 110 if it did not come in time, 69 if there is no store.",
        FOR_STORE, true, {{"port", "29500"}, {"timeout", "300"}},
        {{"mnist_ddp store serve --port=1234", "in one terminal"},
         {"mnist_ddp store set first_key first_value --port=1234", "in another"},
         {"mnist_ddp store get first_key --port=1234", "prints first_value"}}},
    [COMMAND_BENCH] = {
        "bench", "mnist_ddp bench BENCHMARK [FLAGS]",
        "measure this machine: modes, scaling, operations", NULL, FOR_BENCH, false, {{0}},
        {{"mnist_ddp bench dp-vs-ddp --world-sizes=1,2", "DataParallel beside DDP, a report in runs/"},
         {"mnist_ddp help bench scaling", "the flags of one benchmark"}}},
    [COMMAND_DEMO] = {
        "demo", "mnist_ddp demo [NAME] [FLAGS]", "see data-parallel training happen, step by step",
        "Shows an idea with ranks that really do it. Without NAME it lists them. On a terminal each step "
        "stays until it can have been read, or until you press Enter.", FOR_DEMO, false,
        {{"samples", "10"}},
        {{"mnist_ddp demo", "what there is"},
         {"mnist_ddp demo ring --nproc-per-node=6", "an all-reduce among six ranks"},
         {"mnist_ddp demo linear --html=linear.html", "also as an animated page"}}},
    [COMMAND_DOCTOR] = {
        "doctor", "mnist_ddp doctor [train|run] [FLAGS OF THE RUN]",
        "can a run work here? looks before it is tried",
        "Put doctor in front of the command line of a run. It takes each flag of train, and after "
        "'doctor run' those of run; below are those that it looks at beside them.", FOR_DOCTOR, false, {{0}},
        {{"mnist_ddp doctor --nproc-per-node=2 --model=cnn --run-dir=runs/a", "what such a run needs"},
         {"mnist_ddp doctor --nnodes=2 --node-rank=1 --master-addr=10.0.0.1",
          "and whether machine 0 can be reached"}}},
    [COMMAND_ENV] = {
        "env", "mnist_ddp env [--json]", "this machine, for a bug report", NULL, FOR_ENV, true, {{0}},
        {{"mnist_ddp env", "for people"}, {"mnist_ddp env --json", "for programs"}}},
    [COMMAND_COMPLETION] = {
        "completion", "mnist_ddp completion bash|zsh|fish", "completes command lines in a shell",
        "Prints a script for the shell. bash loads it with source; zsh and fish look for it in a "
        "folder of theirs.", FOR_COMPLETION, true, {{0}},
        {{"mnist_ddp completion bash >mnist_ddp.bash", "for bash: then source mnist_ddp.bash"},
         {"mnist_ddp completion zsh >~/.zfunc/_mnist_ddp", "a folder in $fpath"},
         {"mnist_ddp completion fish >~/.config/fish/completions/mnist_ddp.fish", "for fish"}}},
    [COMMAND_MANUAL] = {
        "manual", "mnist_ddp manual", "the man page", "Prints it as roff.", FOR_MANUAL, true, {{0}},
        {{"mnist_ddp manual | man -l -", "reads it"},
         {"mnist_ddp manual >mnist_ddp.1", "keeps it"}}},
    [COMMAND_HELP] = {
        "help", "mnist_ddp help [COMMAND [BENCHMARK] | all]", "this text, or all flags of a command",
        NULL, 0, true, {{0}}, {{0}}},
    [COMMAND_VERSION] = {
        "version", "mnist_ddp version", "version and the library that computes", NULL, 0, true, {{0}}, {{0}}},
};
/* clang-format on */
const int command_table_count = sizeof command_table / sizeof command_table[0];

#define OWN_THREAD \
    { \
        "threads", "1" \
    }

/* Of operations between ranks; after the summary its examples. */
#define COLLECTIVE(name, summary, ...) \
    { \
        name, "mnist_ddp bench " name " [FLAGS]", summary, "The table goes to stdout.", \
            FOR_COLLECTIVES, false, {{0}}, __VA_ARGS__ \
    }

/* clang-format off */
const command_row benchmark_table[] = {
    {"dp-vs-ddp", "mnist_ddp bench dp-vs-ddp [FLAGS]",
     "DataParallel beside DistributedDataParallel, and why",
     "Trains each combination of the lists below. Tables go to stdout; plots, figures and "
     "report.html to the folder --out.", FOR_DP_VS_DDP, false, {OWN_THREAD},
     {{"mnist_ddp bench dp-vs-ddp --models=mlp --repeats=3 --steps=15", "a short one"},
      {"mnist_ddp bench dp-vs-ddp --modes=ddp,ps --world-sizes=1,2,4", "against a parameter server"},
      {"mnist_ddp bench dp-vs-ddp --peer=torch --peer-python=venv/bin/python", "and beside PyTorch"}}},
    {"modes", "mnist_ddp bench modes [FLAGS]",
     "all modes beside ddp: speed, bytes, memory, loss, and which to take when",
     "Trains one network with one global batch in every mode. Tables go to stdout; plots, figures and "
     "report.html to the folder --out.", FOR_DP_VS_DDP, false,
     {{"modes", "all"}, {"world-sizes", "2"}, {"models", "cnn"}, {"scaling", "strong"}, OWN_THREAD},
     {{"mnist_ddp bench modes", "as the defaults below say"},
      {"mnist_ddp bench modes --models=mlp --repeats=3 --steps=15", "a short one"},
      {"mnist_ddp bench modes --modes=ddp,zero1,pipeline --peer=torch", "and PyTorch's beside them"}}},
    {"scaling", "mnist_ddp bench scaling [FLAGS]",
     "steps and all-reduces by the number of ranks",
     "Measures them here. Figures and report.html go to the folder --out; bench/scaling.py of the "
     "sources fits a cost model to the figures, and projects it to a cluster.",
     FOR_SCALING, false,
     {{"modes", "ddp,dp,ps"}, {"world-sizes", "1,2,3,4,5,6,8"}, {"batch-sizes", "16,64"},
      {"repeats", "3"}, {"steps", "20"}, OWN_THREAD},
     {{"mnist_ddp bench scaling", "as the defaults below say"},
      {"mnist_ddp bench scaling --world-sizes=1,2,4 --models=mlp", "a short one"},
      {"mnist_ddp bench scaling --backend=gloo", "what a cluster's ranks would use"}}},
    COLLECTIVE("all-reduce", "sums over all ranks: time and bandwidth by size, as nccl-tests",
     {{"mnist_ddp bench all-reduce --nproc-per-node=2", "two ranks, 8 bytes to 16 MiB"},
      {"mnist_ddp bench all-reduce --nproc-per-node=2 --backend=gloo -b 64K -e 1M -f 4",
       "over gloo: 64 KiB, 256 KiB, 1 MiB"}}),
    COLLECTIVE("broadcast", "one rank's data to all", {{0}}),
    COLLECTIVE("reduce", "sums over all ranks, on one of them", {{0}}),
    COLLECTIVE("all-gather", "each rank's data to all", {{0}}),
    COLLECTIVE("reduce-scatter", "sums over all ranks, a part on each", {{0}}),
    COLLECTIVE("gather", "each rank's data to one", {{0}}),
    COLLECTIVE("scatter", "a part of one rank's data to each", {{0}}),
    COLLECTIVE("all-to-all", "a part of each rank's data to each", {{0}}),
    COLLECTIVE("send-recv", "each rank to the next, and from the one before", {{0}}),
    COLLECTIVE("barrier", "all ranks wait for each other", {{0}}),
};
/* clang-format on */
const int benchmark_table_count = sizeof benchmark_table / sizeof benchmark_table[0];

const command_row *command_table_row(command which, const char *benchmark)
{
    for (int i = 0; i < benchmark_table_count && benchmark != NULL; i++)
        if (strcmp(benchmark_table[i].name, benchmark) == 0)
            return &benchmark_table[i];
    return &command_table[which];
}

status command_table_find(const char *word, command *out)
{
    char hint[HINT_BYTES];
    int i = names_find(word, command_table, command_table_count, sizeof *command_table, hint);
    if (i >= 0) {
        *out = (command)i;
        return STATUS_OK;
    }
    size_t length = strlen(word);
    if (length > 3 && strcmp(word + length - 3, ".py") == 0)
        return FAIL(STATUS_INVALID,
                    "'%.*s': mnist_ddp is the training script itself; leave it out, or start that "
                    "one: mnist_ddp run %.*s",
                    SHOWN_BYTES, word, SHOWN_BYTES, word);
    const char *answer = foreign_words_answer(word, FOR_ALL);
    if (answer != NULL)
        return FAIL(STATUS_INVALID, "'%.*s': %s", SHOWN_BYTES, word, answer);
    return FAIL(STATUS_INVALID, "'%.*s' is not a command; %s", SHOWN_BYTES, word, hint);
}

/* Are two names the same but for dashes and underscores? */
static bool is_same_name(const char *a, const char *b)
{
    for (;; a++, b++) {
        a += strspn(a, "-_");
        b += strspn(b, "-_");
        if (*a != *b)
            return false;
        if (*a == '\0')
            return true;
    }
}

/* "all_reduce" and "allreduce" are all-reduce. */
static status find_benchmark(const char *word, const command_row **out)
{
    char hint[HINT_BYTES];
    const command_row *rows = benchmark_table;
    for (int i = 0; i < benchmark_table_count; i++)
        if (is_same_name(word, rows[i].name)) {
            *out = &rows[i];
            return STATUS_OK;
        }
    (void)names_find(word, rows, benchmark_table_count, sizeof *rows, hint);
    return FAIL(STATUS_INVALID, "bench: '%.*s' is no benchmark; %s", SHOWN_BYTES, word, hint);
}

/* "doctor run ...": the command line of a run, after the word doctor. */
static status take_examined(options *opts, const char *word)
{
    TRY(command_table_find(word, &opts->examined));
    if (opts->examined != COMMAND_TRAIN && opts->examined != COMMAND_RUN)
        return FAIL(STATUS_INVALID,
                    "doctor %.*s: it looks at runs of train and run; one command is enough",
                    SHOWN_BYTES, word);
    return STATUS_OK;
}

static bool shows_data(const options *opts)
{
    return opts->command == COMMAND_DATA && opts->action != NULL &&
           strcmp(opts->action, "show") == 0;
}

bool command_words_are_free(const options *opts)
{
    return shows_data(opts) || opts->command == COMMAND_STORE;
}

/* A picture of predict, an index of data show, a key or value of store. */
static status take_file(options *opts, const char *word)
{
    size_t n = (size_t)opts->n_files + 1;
    const char **files = realloc(opts->files, n * sizeof *files);
    if (files == NULL)
        return FAIL(STATUS_NO_MEMORY, "the list of %zu files", n);
    files[opts->n_files++] = word;
    opts->files = files;
    return STATUS_OK;
}

/* A run folder of the report, what serve shows, eval tests or resume goes on with. */
static status take_run(options *opts, const char *word)
{
    if (opts->command != COMMAND_REPORT && opts->n_runs == 1)
        return FAIL(STATUS_INVALID, "%s: '%.*s': one run is enough",
                    command_table[opts->resumes ? COMMAND_RESUME : opts->command].name, SHOWN_BYTES,
                    word);
    if (opts->n_runs == OPTIONS_MAX_RUNS)
        return FAIL(STATUS_INVALID, "report: at most %d runs on one page", OPTIONS_MAX_RUNS);
    opts->runs[opts->n_runs++] = word;
    return STATUS_OK;
}

status command_words_take(options *opts, const char *word, int at)
{
    command about = opts->command == COMMAND_HELP ? opts->help_topic : opts->command;
    const command_row *benchmark = NULL;
    opts->words++;
    if (at == 0) {
        TRY(command_table_find(word, &opts->command));
        opts->resumes = opts->command == COMMAND_RESUME;
        opts->command = opts->resumes ? COMMAND_TRAIN : opts->command;
        return STATUS_OK;
    }
    opts->help_all = at == 1 && opts->command == COMMAND_HELP && strcmp(word, "all") == 0;
    if (at == 1 && opts->command == COMMAND_HELP && !opts->help_all)
        return command_table_find(word, &opts->help_topic);
    if (at == 1 && opts->command == COMMAND_COMPLETION) {
        opts->shell = word;
        return STATUS_OK;
    }
    if (at == 1 && (opts->command == COMMAND_DATA || opts->command == COMMAND_STORE ||
                    opts->command == COMMAND_DEMO)) {
        opts->action = word;
        return STATUS_OK;
    }
    if (at == 1 && opts->command == COMMAND_DOCTOR)
        return take_examined(opts, word);
    if (opts->command == COMMAND_PREDICT || command_words_are_free(opts))
        return take_file(opts, word);
    if (opts->command == COMMAND_REPORT || opts->command == COMMAND_SERVE ||
        opts->command == COMMAND_EVAL || opts->resumes)
        return take_run(opts, word);
    if (about != COMMAND_BENCH || opts->benchmark != NULL) {
        opts->words--; /* the second pass refuses it */
        return STATUS_OK;
    }
    TRY(find_benchmark(word, &benchmark));
    opts->benchmark = benchmark->name;
    return STATUS_OK;
}
