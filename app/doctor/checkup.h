/* What doctor finds: one line per thing looked at, for people or as JSON. */
#ifndef MNIST_DDP_APP_DOCTOR_CHECKUP_H
#define MNIST_DDP_APP_DOCTOR_CHECKUP_H

#include "app/launch/worker_spec.h"
#include "app/options/options.h"

#include <jansson.h>
#include <stdbool.h>

typedef enum checkup_level {
    CHECKUP_OK,
    CHECKUP_NOTE,
    CHECKUP_WARNING,
    CHECKUP_FAILED
} checkup_level;

typedef struct checkup {
    const options *opts;
    worker_spec spec; /* of a launch with these settings */
    json_t *list;     /* with --json; else lines go to stdout as they come */
    int warnings, failures;
    int exit_code;  /* what the first failure would have ended a run with */
    bool silent;    /* nothing is printed */
    char why[1024]; /* the first failure */
} checkup;

/* Notes what was found of `name`. */
void checkup_add(checkup *c, checkup_level level, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* The same for something that ends a run with `exit_code`. */
void checkup_fail(checkup *c, int exit_code, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* This thread's message as such a failure. */
void checkup_fail_message(checkup *c, int exit_code, const char *name);

/* Names, interfaces, ports, and the way to node 0. */
void checkup_network(checkup *c);

/* The folders that a run writes to: permission, space, and whether a run is in them already. */
void checkup_results(checkup *c);

/* Cores, memory, limits, devices, modules; and the modules alone that a run needs. */
void checkup_machine(checkup *c);
void checkup_modules(checkup *c);

#endif
