/* One program per room: `test_<room> NAME [ARGUMENT ...]` runs tests/<room>/test_NAME.c, whose
 * main() was compiled under another name. The list of the room's tests comes from CMake. */
#include "tests/support/runner.h"

#include <stdio.h>
#include <string.h>

#define ALONE(name) int test_main_##name(void);
#define WITH_ARGUMENTS(name) int test_main_##name(int argc, char **argv);
#include TEST_LIST
#undef ALONE
#undef WITH_ARGUMENTS

typedef struct room_test {
    const char *name;
    int (*alone)(void); /* one of the two is NULL */
    int (*with_arguments)(int argc, char **argv);
} room_test;

static const room_test tests[] = {
#define ALONE(name) {#name, test_main_##name, NULL},
#define WITH_ARGUMENTS(name) {#name, NULL, test_main_##name},
#include TEST_LIST
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof tests / sizeof *tests; i++) {
        if (strcmp(argv[1], tests[i].name) != 0)
            continue;
        runner_test = tests[i].name;
        return tests[i].alone != NULL ? tests[i].alone()
                                      : tests[i].with_arguments(argc - 1, argv + 1);
    }
    fprintf(stderr, "usage: %s NAME [ARGUMENT ...], where NAME is one of:\n", argv[0]);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        fprintf(stderr, "  %s\n", tests[i].name);
    return 64;
}
