#include "app/options/options_table.h"

#include <stdio.h>
#include <string.h>

enum { TEXT_COLUMN = 30, WIDTH = 96, LINE_BYTES = 256 };

static const char *const GROUP_TITLES[GROUP_COUNT] = {
    [GROUP_TRAINING] = "Training",
    [GROUP_DEVICE] = "Device",
    [GROUP_DATA] = "Data and results",
    [GROUP_LOG] = "Log",
    [GROUP_PARALLEL] = "Data parallelism",
    [GROUP_LAUNCHER] = "Launcher (as torchrun's; also PET_NPROC_PER_NODE, PET_NNODES, ...)",
    [GROUP_PROGRAM] = "The launched program (mnist_ddp run)",
    [GROUP_BENCH] = "Benchmark",
    [GROUP_ALL_REDUCE] = "bench all-reduce (as nccl-tests; sizes as 8, 64K, 16M)",
    [GROUP_SCALING] = "bench scaling: the cluster that is projected to (if not given, it "
                      "measures world sizes\n"
                      "  1 to 6 and 8 of ddp, dp and ps, with 16 and 64 images per rank, in 3 "
                      "repeats of 20 steps)",
    [GROUP_SAMPLER] = "Sampler",
    [GROUP_GENERAL] = "General",
};

/* Words of `text` from column `column` on, broken at WIDTH and continued at TEXT_COLUMN. */
static void print_wrapped(int column, const char *text)
{
    while (*text != '\0') {
        int length = (int)strcspn(text, " ");
        if (column > TEXT_COLUMN && column + 1 + length > WIDTH) {
            printf("\n%*s", TEXT_COLUMN, "");
            column = TEXT_COLUMN;
        } else if (column > TEXT_COLUMN) {
            putchar(' ');
            column++;
        }
        printf("%.*s", length, text);
        column += length;
        text += length;
        text += strspn(text, " ");
    }
    putchar('\n');
}

static void print_row(const option_row *row)
{
    char head[LINE_BYTES], text[2 * LINE_BYTES];
    bool negatable = row->kind == OPTION_SWITCH && row->initial != NULL;
    const char *equals = row->kind == OPTION_MODE ? "[=" : "", *end = equals[0] ? "]" : "";
    snprintf(head, sizeof head, "  --%s%s%s%s%s%s", negatable ? "[no-]" : "", row->name,
             row->value ? " " : "", equals, row->value ? row->value : "", end);
    int length = snprintf(text, sizeof text, "%s", row->help);
    if (row->initial != NULL)
        length += snprintf(text + length, sizeof text - (size_t)length, " [%s]",
                           negatable ? "on" : row->initial);
    char spelling[OPTION_NAME_BYTES];
    bool negated;
    for (int i = 1; options_table_spelling(row, i, spelling, &negated) && !negated; i++)
        length += snprintf(text + length, sizeof text - (size_t)length, "%s%s%s",
                           i == 1 ? "; also " : ", ", spelling[0] == '-' ? "" : "--", spelling);
    int column = printf("%s", head);
    if (column + 2 > TEXT_COLUMN) {
        putchar('\n');
        column = 0;
    }
    column += printf("%*s", TEXT_COLUMN - column, "");
    print_wrapped(column, text);
}

static void print_usage(command which)
{
    switch (which) {
    case COMMAND_EVAL:
        puts("mnist_ddp eval: the accuracy of a trained model on the test images.\n\n"
             "Usage: mnist_ddp eval --checkpoint PATH [flags]");
        return;
    case COMMAND_SAMPLER:
        puts("mnist_ddp sampler: the indices that a rank trains on, one a line.\n\n"
             "Usage: mnist_ddp sampler --world-size N --rank N [flags]");
        return;
    case COMMAND_TRAIN:
        puts("mnist_ddp train: trains on MNIST.\n\n"
             "Usage: mnist_ddp [train] [flags]");
        return;
    case COMMAND_RUN:
        puts("mnist_ddp run: starts any program as several ranks, as torchrun does.\n\n"
             "Usage: mnist_ddp run [flags] [--] PROGRAM [ARGS]\n\n"
             "PROGRAM is a Python script (by its .py), an executable, or with -m a module. Flags "
             "end at\nPROGRAM.");
        return;
    case COMMAND_BENCH:
        puts("mnist_ddp bench: measures this machine; plots, figures and DIR/report.html.\n\n"
             "Usage: mnist_ddp bench BENCHMARK [flags]\n\n"
             "  dp-vs-ddp                   DataParallel beside DistributedDataParallel, and why\n"
             "  scaling                     a cost model, fitted here and projected to a cluster\n"
             "  all-reduce                  time and bandwidth by size, as nccl-tests");
        return;
    case COMMAND_DOCTOR:
        puts("mnist_ddp doctor: looks whether a run can work here, before it is tried.\n\n"
             "Usage: mnist_ddp doctor [flags of the run]");
        return;
    case COMMAND_ENV:
        puts("mnist_ddp env: what a bug report needs to say about this machine.\n\n"
             "Usage: mnist_ddp env [--json]");
        return;
    case COMMAND_HELP:
    case COMMAND_VERSION:
        puts("mnist_ddp: distributed data-parallel training of MNIST.\n\n"
             "Usage: mnist_ddp [command] [flags]\n\n"
             "  train                       train; the default\n"
             "  eval                        the accuracy of a trained model\n"
             "  sampler                     the indices that a rank trains on\n"
             "  run PROGRAM [ARGS]          any program as several ranks, as torchrun does\n"
             "  bench BENCHMARK             DataParallel beside DistributedDataParallel, and why\n"
             "  doctor                      can a run work here?\n"
             "  env                         this machine, for a bug report\n"
             "  help [command]              this text, or the flags of one command\n"
             "  version                     version and libraries\n\n"
             "  mnist_ddp --nproc-per-node=2 --epochs=1     two ranks on this machine, one epoch");
        return;
    }
}

void options_print_help(command which)
{
    unsigned commands = which == COMMAND_HELP || which == COMMAND_VERSION ? FOR_ALL : 1u << which;
    print_usage(which);
    for (int group = 0; group < GROUP_COUNT; group++) {
        bool titled = false;
        for (size_t i = 0; i < options_table_count; i++) {
            const option_row *row = &options_table[i];
            if (row->group != (option_group)group || (row->commands & commands) == 0)
                continue;
            if (!titled)
                printf("\n%s\n", GROUP_TITLES[group]);
            titled = true;
            print_row(row);
        }
    }
    puts("\nEvery flag may be spelled with dashes or underscores and cut short while it stays "
         "unique.\n"
         "A setting is taken from the command line, else from MNIST_DDP_<NAME> "
         "(MNIST_DDP_BATCH_SIZE),\n"
         "else from --config FILE, else its [default].");
}
