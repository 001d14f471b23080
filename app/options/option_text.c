#include "app/options/option_text.h"

#include <stdio.h>
#include <string.h>

const char *const option_group_titles[GROUP_COUNT] = {
    [GROUP_TRAINING] = "Training",
    [GROUP_DEVICE] = "Device",
    [GROUP_DATA] = "Data and results",
    [GROUP_LOG] = "Log",
    [GROUP_PARALLEL] = "Data parallelism",
    [GROUP_LAUNCHER] = "Launcher (as torchrun; also PET_NPROC_PER_NODE, PET_NNODES, ...)",
    [GROUP_PROGRAM] = "The launched program (mnist_ddp run)",
    [GROUP_BENCH] = "Benchmark",
    [GROUP_MESSAGES] = "Messages (as nccl-tests; sizes as 8, 64K, 16M)",
    [GROUP_SAMPLER] = "Sampler",
    [GROUP_DEMO] = "Demonstration",
    [GROUP_SERVER] = "Server",
    [GROUP_GENERAL] = "General",
};

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
