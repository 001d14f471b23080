#include "app/options/command_table.h"
#include "app/options/options_table.h"

#include <stdio.h>
#include <string.h>

enum { TEXT_COLUMN = 28, WIDTH = 80, LINE_BYTES = 256 };

static const char *const GROUP_TITLES[GROUP_COUNT] = {
    [GROUP_TRAINING] = "Training",
    [GROUP_DEVICE] = "Device",
    [GROUP_DATA] = "Data and results",
    [GROUP_LOG] = "Log",
    [GROUP_PARALLEL] = "Data parallelism",
    [GROUP_LAUNCHER] = "Launcher (as torchrun; also PET_NPROC_PER_NODE, PET_NNODES, ...)",
    [GROUP_PROGRAM] = "The launched program (mnist_ddp run)",
    [GROUP_BENCH] = "Benchmark",
    [GROUP_ALL_REDUCE] = "Messages (as nccl-tests; sizes as 8, 64K, 16M)",
    [GROUP_SCALING] = "Model, and the cluster that is projected to",
    [GROUP_SAMPLER] = "Sampler",
    [GROUP_GENERAL] = "General",
};

/* Words of `text` from column `column` on, broken at WIDTH and continued at `indent`. */
static void print_wrapped(int column, int indent, const char *text)
{
    bool begins = true;
    while (*text != '\0') {
        int length = (int)strcspn(text, " ");
        if (!begins && column + 1 + length > WIDTH) {
            printf("\n%*s", indent, "");
            column = indent;
        } else if (!begins) {
            putchar(' ');
            column++;
        }
        printf("%.*s", length, text);
        begins = false;
        column += length;
        text += length;
        text += strspn(text, " ");
    }
    putchar('\n');
}

/* "  HEAD", and `text` beside it, or below it if it is too long. */
static void print_entry(const char *head, const char *text)
{
    int column = printf("  %s", head);
    if (column + 2 > TEXT_COLUMN) {
        putchar('\n');
        column = 0;
    }
    printf("%*s", TEXT_COLUMN - column, "");
    print_wrapped(TEXT_COLUMN, TEXT_COLUMN, text);
}

static void write_head(const option_row *row, char out[LINE_BYTES])
{
    bool negatable = row->kind == OPTION_SWITCH && row->initial != NULL;
    const char *equals = row->kind == OPTION_MODE ? "[=" : "", *end = equals[0] ? "]" : "";
    snprintf(out, LINE_BYTES, "--%s%s%s%s%s%s", negatable ? "[no-]" : "", row->name,
             row->value ? " " : "", equals, row->value ? row->value : "", end);
}

/* The default of a row, if it is not the one in the row itself; NULL. */
static const char *own_default(const command_row *of, const option_row *row)
{
    for (const command_default *own = of->defaults; own->setting != NULL; own++)
        if (strcmp(own->setting, row->name) == 0)
            return own->value;
    return NULL;
}

static void print_flag(const command_row *of, const option_row *row)
{
    char head[LINE_BYTES], text[2 * LINE_BYTES], spelling[OPTION_NAME_BYTES];
    bool negated;
    const char *own = own_default(of, row), *initial = own != NULL ? own : row->initial;
    /* A default in words, at the end of the help: "[all]". */
    int said = (int)(own != NULL ? strcspn(row->help, "[") : strlen(row->help));
    int length = snprintf(text, sizeof text, "%.*s", said, row->help);
    if (initial != NULL)
        length += snprintf(text + length, sizeof text - (size_t)length, " [%s]",
                           row->kind == OPTION_SWITCH ? "on" : initial);
    for (int i = 1; options_table_spelling(row, i, spelling, &negated) && !negated; i++)
        length += snprintf(text + length, sizeof text - (size_t)length, "%s%s%s",
                           i == 1 ? "; also " : ", ", spelling[0] == '-' ? "" : "--", spelling);
    write_head(row, head);
    print_entry(head, text);
}

static void print_flags(const command_row *of, unsigned flags)
{
    for (int group = 0; group < GROUP_COUNT; group++) {
        bool titled = false;
        for (size_t i = 0; i < options_table_count; i++) {
            const option_row *row = &options_table[i];
            if (row->group != (option_group)group || (row->commands & flags) == 0)
                continue;
            if (!titled)
                printf("\n%s\n", GROUP_TITLES[group]);
            titled = true;
            print_flag(of, row);
        }
    }
    puts("\nEvery flag may be spelled with dashes or underscores, and cut short while it is\n"
         "unique. A setting is taken from the command line, else from MNIST_DDP_<NAME>\n"
         "(MNIST_DDP_BATCH_SIZE), else from --config FILE, else its [default].");
}

static void print_names(const command_row *rows, int n)
{
    for (int i = 0; i < n; i++)
        print_entry(rows[i].name, rows[i].summary);
}

static void print_command(const command_row *of)
{
    bool benchmark = (of->flags & FOR_BENCH) != 0 && of != &command_table[COMMAND_BENCH];
    printf("mnist_ddp %s%s: ", benchmark ? "bench " : "", of->name);
    print_wrapped((int)strlen("mnist_ddp : ") + (int)strlen(of->name), 0, of->summary);
    printf("\nUsage: %s\n", of->usage);
    if (of->details != NULL) {
        putchar('\n');
        print_wrapped(0, 0, of->details);
    }
    if (of == &command_table[COMMAND_BENCH]) {
        puts("\nBenchmarks");
        print_names(benchmark_table, benchmark_table_count);
    }
    puts("\nExamples");
    for (int i = 0; i < COMMAND_EXAMPLES_MAX && of->examples[i].line != NULL; i++)
        printf("  %s\n      %s\n", of->examples[i].line, of->examples[i].text);
}

/* A flag of the program's help: its text without the default that stands in it in words. */
static void print_most_used(const char *name)
{
    char head[LINE_BYTES], text[LINE_BYTES];
    option_match match;
    bool found = options_table_find(name, FOR_TRAIN, &match);
    ASSERT(found);
    int length = (int)strcspn(match.row->help, "[");
    snprintf(text, sizeof text, "%.*s", length, match.row->help);
    write_head(match.row, head);
    print_entry(head, text);
}

/* One screen of 24 lines. */
static void print_program(void)
{
    static const char *const most_used[] = {"nproc-per-node", "epochs", "batch-size", "model",
                                            "data-dir"};
    char names[LINE_BYTES] = "";
    puts("mnist_ddp [COMMAND] [FLAGS]: PyTorch's distributed training of MNIST\n");
    for (int i = 0; i < command_table_count; i++) {
        const command_row *row = &command_table[i];
        size_t used = strlen(names);
        if (row->minor)
            snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "", row->name);
        else
            print_entry(row->name, row->summary);
    }
    print_entry("and", names);
    puts("\nThe most used flags of train");
    for (size_t i = 0; i < sizeof most_used / sizeof most_used[0]; i++)
        print_most_used(most_used[i]);
    puts("\nmnist_ddp --nproc-per-node=2 --epochs=1   two ranks on this machine, one epoch\n"
         "mnist_ddp help train                      all its flags; so for each command");
}

void options_print_help(const options *opts)
{
    const command_row *of = command_table_row(opts->help_topic, opts->benchmark);
    if (opts->help_all) {
        puts("mnist_ddp: every flag of every command.");
        print_flags(of, FOR_ALL);
    } else if (of->flags == 0) {
        print_program();
    } else {
        print_command(of);
        if (of != &command_table[COMMAND_BENCH]) /* whose benchmarks have flags and defaults */
            print_flags(of, of->flags);
    }
}
