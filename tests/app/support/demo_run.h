/* What `mnist_ddp demo --json` says. */
#ifndef MNIST_DDP_TESTS_APP_SUPPORT_DEMO_RUN_H
#define MNIST_DDP_TESTS_APP_SUPPORT_DEMO_RUN_H

#include "tests/support/program.h"

#include <jansson.h>

/* The document of "mnist_ddp demo LINE --json", which must end well; to be freed. */
json_t *demo_run(const char *line);

/* A number of its facts, which must be there. */
double demo_run_fact(const json_t *document, const char *name);

/* The cell in column `column` of row `row` of frame `frame`; counted from the end if negative. */
const json_t *demo_run_cell(const json_t *document, int frame, int row, int column);

/* All that a frame says, and quotes, as one line of words; to be freed. */
char *demo_run_text(const json_t *document, int frame);

/* Returns once a program's stdout holds these words; fails the test after RUN_S. */
void demo_run_await(const program *p, const char *words);

#endif
