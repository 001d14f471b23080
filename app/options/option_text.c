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
    [GROUP_SCALING] = "Model, and the cluster that is projected to",
    [GROUP_SAMPLER] = "Sampler",
    [GROUP_DEMO] = "Demonstration",
    [GROUP_SERVER] = "Server",
    [GROUP_GENERAL] = "General",
};

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
    const char *own = own_default(of, row), *initial = own != NULL ? own : row->initial;
    /* A default in words, at the end of the help: "[all]". */
    int said = (int)(own != NULL ? strcspn(row->help, "[") : strlen(row->help));
    int length = snprintf(out, OPTION_TEXT_BYTES, "%.*s", said, row->help);
    if (initial != NULL)
        length += snprintf(out + length, OPTION_TEXT_BYTES - (size_t)length, " [%s]",
                           row->kind == OPTION_SWITCH ? "on" : initial);
    for (int i = 1; options_table_spelling(row, i, spelling, &negated) && !negated; i++)
        length += snprintf(out + length, OPTION_TEXT_BYTES - (size_t)length, "%s%s%s",
                           i == 1 ? "; also " : ", ", spelling[0] == '-' ? "" : "--", spelling);
    return out;
}
