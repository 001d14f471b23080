#include "app/options/options_table.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

#define TITLE_OF(name, title) title,
const char *const option_group_titles[GROUP_COUNT] = {GROUPS(TITLE_OF)};

/* Of commands to which a flag means something else than its row in the table says. */
static const struct own_text {
    const char *name, *who;
    unsigned commands;
    const char *help;
} OWN_TEXTS[] = {
    /* clang-format off */
    {"dry-run", "run", FOR_RUN, "only print what every node would start"},
    {"threads", "eval, predict, serve", FOR_EVAL | FOR_PREDICT | FOR_SERVE, "threads that compute [cores]"},
    {"out", "eval", FOR_EVAL, "folder for eval.json [none]"},
    {"out", "collectives", FOR_COLLECTIVES, "folder for figures, plots and report.html [none]"},
    {"timeout", "store", FOR_STORE, "until the store answers and a key has come; of serve, if given, its end"},
    {"rank", "sampler", FOR_SAMPLER, "whose indices to print"},
    {"backend", "train", FOR_TRAIN, "how ranks talk: auto, shm (one host), gloo, hierarchical (shm on each host, gloo between "
     "them), mpi or nccl (GPUs); of --mode=dp: local or nccl"},
    {"inject", "demo", FOR_DEMO, "failure: only this fault, as kill:rank=1,step=50"},
    {"peer", "dp-vs-ddp", FOR_DP_VS_DDP, "torch: measure PyTorch (a Python with torch, and MNIST) beside ours"},
    /* clang-format on */
};

const char *option_text_help(unsigned flags, const option_row *row, char out[OPTION_TEXT_BYTES])
{
    int length = snprintf(out, OPTION_TEXT_BYTES, "%s", row->help);
    for (size_t i = 0; i < sizeof OWN_TEXTS / sizeof OWN_TEXTS[0]; i++) {
        const struct own_text *own = &OWN_TEXTS[i];
        if (strcmp(own->name, row->name) != 0)
            continue;
        if (flags == FOR_ALL)
            length += snprintf(out + length, OPTION_TEXT_BYTES - (size_t)length, "; %s: %s",
                               own->who, own->help);
        else if ((own->commands & flags) != 0)
            snprintf(out, OPTION_TEXT_BYTES, "%s", own->help);
    }
    return out;
}

const char *option_text_flag(const option_row *row, char out[OPTION_TEXT_BYTES])
{
    bool negatable = row->kind == OPTION_SWITCH && row->initial != NULL;
    snprintf(out, OPTION_TEXT_BYTES, "--%s%s", negatable ? "[no-]" : "", row->name);
    return out;
}

const char *option_text_value(const option_row *row, char out[OPTION_TEXT_BYTES])
{
    bool optional = row->kind == OPTION_MODE;
    snprintf(out, OPTION_TEXT_BYTES, "%s%s%s", optional ? "[=" : "",
             row->value != NULL ? row->value : "", optional ? "]" : "");
    return out;
}

/* The default of a command or benchmark, if it is not the one in the row itself; NULL. */
static const char *own_default(const command_row *of, const option_row *row)
{
    for (const command_default *own = of->defaults; own->setting != NULL; own++)
        if (strcmp(own->setting, row->name) == 0)
            return own->value;
    return NULL;
}

const char *option_text_meaning(const command_row *of, const option_row *row,
                                char out[OPTION_TEXT_BYTES])
{
    char spelling[OPTION_NAME_BYTES];
    bool negated;
    char help[OPTION_TEXT_BYTES];
    option_text_help(of->flags != 0 ? of->flags : FOR_ALL, row, help);
    const char *own = own_default(of, row), *initial = own != NULL ? own : row->initial;
    /* A default in words, at the end of the help: "[all]". */
    int said = (int)(own != NULL ? strcspn(help, "[") : strlen(help));
    int length = snprintf(out, OPTION_TEXT_BYTES, "%.*s", said, help);
    if (initial != NULL)
        length += snprintf(out + length, OPTION_TEXT_BYTES - (size_t)length, " [%s]",
                           row->kind == OPTION_SWITCH ? "on" : initial);
    for (int i = 1; options_table_spelling(row, i, spelling, &negated) && !negated; i++)
        length += snprintf(out + length, OPTION_TEXT_BYTES - (size_t)length, "%s%s%s",
                           i == 1 ? "; also " : ", ", spelling[0] == '-' ? "" : "--", spelling);
    return out;
}

enum { TEXT_COLUMN = 28, NARROW_TEXT_COLUMN = 6, LINE_BYTES = 1024 };

/* "  HEAD", and `text` beside it, or below it if it is too long. */
static void print_entry(const char *head, const char *text)
{
    int column = printf("  %s", head);
    int begin = paragraph_columns(stdout) < 2 * TEXT_COLUMN ? NARROW_TEXT_COLUMN : TEXT_COLUMN;
    if (column + 2 > begin) {
        putchar('\n');
        column = 0;
    }
    printf("%*s", begin - column, "");
    paragraph_print(stdout, begin, begin, text);
}

/* "--model mlp|cnn" */
static const char *head_of(const option_row *row, char out[LINE_BYTES])
{
    char flag[OPTION_TEXT_BYTES], value[OPTION_TEXT_BYTES];
    option_text_value(row, value);
    snprintf(out, LINE_BYTES, "%s%s%s", option_text_flag(row, flag), value[0] != '\0' ? " " : "",
             value);
    return out;
}

static void print_flag(const command_row *of, const option_row *row)
{
    char head[LINE_BYTES], text[OPTION_TEXT_BYTES];
    print_entry(head_of(row, head), option_text_meaning(of, row, text));
}

static void print_flags(const command_row *of, unsigned flags)
{
    char named[LINE_BYTES] = "as train takes them:";
    bool short_of_launcher = of->flags == FOR_COLLECTIVES; /* launched as train is */
    for (int group = 0; group < GROUP_COUNT; group++) {
        bool titled = false, names = short_of_launcher && group == GROUP_LAUNCHER;
        for (size_t i = 0; i < options_table_count; i++) {
            const option_row *row = &options_table[i];
            if (row->group != (option_group)group || (row->commands & flags) == 0)
                continue;
            if (!titled)
                printf("\n%s\n", option_group_titles[group]);
            titled = true;
            if (names && strcmp(row->name, "nproc-per-node") != 0)
                snprintf(named + strlen(named), sizeof named - strlen(named), " --%s", row->name);
            else
                print_flag(of, row);
        }
        if (names)
            print_entry("and", named);
    }
    putchar('\n');
    paragraph_print(stdout, 0, 0,
                    "Every flag may be spelled with dashes or underscores, and cut short while it "
                    "is unique. A setting is taken from the command line, else from "
                    "MNIST_DDP_<NAME> (MNIST_DDP_BATCH_SIZE), else from --config FILE, else its "
                    "[default].");
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
    paragraph_print(stdout, (int)strlen("mnist_ddp : ") + (int)strlen(of->name), 0, of->summary);
    printf("\nUsage: %s\n", of->usage);
    if (of->details != NULL) {
        putchar('\n');
        paragraph_print(stdout, 0, 0, of->details);
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
    print_entry(head_of(match.row, head), text);
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
