#include "app/common/debug_level.h"

#include "base/host.h"
#include "base/log.h"

#include <stdlib.h>
#include <strings.h>

static const char VARIABLE[] = "TORCH_DISTRIBUTED_DEBUG";

void debug_level_apply(const options *opts)
{
    if (opts->debug == NULL)
        return;
    setenv(VARIABLE, opts->debug, 1);
    log_set_level(LOG_VERBOSE);
    log_set_level_from_environment();
    if (opts->quiet)
        log_set_quiet();
}

process_group_debug debug_level(void)
{
    const char *text = environment_text(VARIABLE);
    if (text != NULL && strcasecmp(text, "DETAIL") == 0)
        return PROCESS_GROUP_DEBUG_DETAIL;
    return text != NULL && strcasecmp(text, "INFO") == 0 ? PROCESS_GROUP_DEBUG_INFO
                                                         : PROCESS_GROUP_DEBUG_OFF;
}
