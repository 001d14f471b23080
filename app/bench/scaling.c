/* mnist_ddp bench scaling: measures, fits, predicts what was held out, projects. */
#include "app/bench/benchmarks.h"
#include "app/exit_codes.h"

int scaling_command(const options *opts, int argc, char **argv)
{
    (void)opts;
    (void)argc;
    (void)argv;
    return EXIT_CODE_INTERNAL;
}
