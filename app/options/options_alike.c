#include "app/options/options_alike.h"

#include "app/options/options_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* No result depends on --test-batch-size. */
static bool is_alike(const option_row *row)
{
    static const char *const others[] = {"amp",  "dataset", "save-every",
                                         "mode", "backend", "comm-hook"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(row->name, others[i]) == 0)
            return true;
    return row->group == GROUP_TRAINING && (row->commands & FOR_TRAIN) != 0 &&
           row->kind < OPTION_REFUSED && strcmp(row->name, "test-batch-size") != 0;
}

static void write_line(const option_row *row, const void *value, char *out, size_t size_bytes)
{
    bool is_text =
        row->kind != OPTION_SWITCH && row->kind != OPTION_INTEGER && row->kind != OPTION_REAL;
    bool none = (is_text && *(char *const *)value == NULL) ||
                (row->kind == OPTION_SWITCH && !*(const bool *)value) ||
                (row->kind == OPTION_INTEGER && *(const int64_t *)value == -1) ||
                (row->kind == OPTION_REAL && *(const double *)value < 0);
    if (none)
        snprintf(out, size_bytes, "no --%s\n", row->name);
    else if (row->kind == OPTION_SWITCH)
        snprintf(out, size_bytes, "--%s\n", row->name);
    else if (row->kind == OPTION_INTEGER)
        snprintf(out, size_bytes, "--%s=%" PRId64 "\n", row->name, *(const int64_t *)value);
    else if (row->kind == OPTION_REAL)
        snprintf(out, size_bytes, "--%s=%.15g\n", row->name, *(const double *)value);
    else
        snprintf(out, size_bytes, "--%s=%s\n", row->name, *(char *const *)value);
}

void options_alike(const options *opts, char out[OPTIONS_ALIKE_BYTES])
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < options_table_count; i++) {
        const option_row *row = &options_table[i];
        if (!is_alike(row))
            continue;
        write_line(row, (const char *)opts + row->offset, out + used, OPTIONS_ALIKE_BYTES - used);
        used += strlen(out + used);
    }
}
