#include "app/options/options_torchrun.h"

#include "app/options/options_table.h"
#include "app/options/options_value.h"
#include "base/environment.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

/* Rows of the launcher that are our own. */
static bool is_torchruns(const option_row *row)
{
    if (row->group != GROUP_LAUNCHER && row->group != GROUP_PROGRAM)
        return false;
    static const size_t own[] = {offsetof(options, world_size),       offsetof(options, local_rank),
                                 offsetof(options, local_world_size), offsetof(options, exit_code),
                                 offsetof(options, launcher),         offsetof(options, use_env)};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (row->offset == own[i])
            return false;
    return true;
}

status options_torchrun_read(options *opts)
{
    char name[OPTION_NAME_BYTES + 8];
    command of = opts->command == COMMAND_DOCTOR ? opts->examined : opts->command;
    unsigned commands = 1u << of;
    for (size_t i = 0; i < options_table_count; i++) {
        const option_row *row = &options_table[i];
        if (!is_torchruns(row) || (row->commands & commands) == 0)
            continue;
        snprintf(name, sizeof name, "PET_%s", row->name);
        for (char *c = name; *c != '\0'; c++)
            *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
        const char *value = environment_text(name);
        if (value != NULL)
            TRY(options_value_set(opts, (option_match){row, false}, value, SOURCE_ENVIRONMENT,
                                  name));
    }
    return STATUS_OK;
}
