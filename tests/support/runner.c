#include "tests/support/runner.h"

const char *runner_test;
