/* mnist_ddp bench: which of the benchmarks. */
#include "app/bench/benchmarks.h"
#include "app/commands.h"
#include "app/exit_codes.h"
#include "app/options/nearest.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(const options *opts, int argc, char **argv);
} BENCHMARKS[] = {
    {"dp-vs-ddp", dp_vs_ddp_command},
};
enum { COUNT = sizeof BENCHMARKS / sizeof BENCHMARKS[0] };

static status unknown(const char *name)
{
    char list[256] = "";
    nearest search;
    nearest_init(&search, name != NULL ? name : "");
    for (int i = 0; i < COUNT; i++) {
        size_t used = strlen(list);
        nearest_offer(&search, BENCHMARKS[i].name);
        snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", BENCHMARKS[i].name);
    }
    if (name == NULL)
        return FAIL(STATUS_INVALID, "bench: which benchmark? There is %s", list);
    if (nearest_found(&search))
        return FAIL(STATUS_INVALID, "bench: '%.80s' is no benchmark; did you mean '%s'?", name,
                    search.best);
    return FAIL(STATUS_INVALID, "bench: '%.80s' is no benchmark; there is %s", name, list);
}

int bench_command(const options *opts, int argc, char **argv)
{
    if (opts->quiet)
        log_set_level(LOG_WARNING);
    for (int i = 0; i < COUNT && opts->benchmark != NULL; i++)
        if (strcmp(opts->benchmark, BENCHMARKS[i].name) == 0)
            return BENCHMARKS[i].run(opts, argc, argv);
    return exit_code_failed(unknown(opts->benchmark), EXIT_CODE_USAGE);
}
